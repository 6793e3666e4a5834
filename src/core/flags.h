/* What holds in the calling thread, yes or no: a byte each in one thread-local struct, as a bool by itself takes a word. The file
   named beside a flag alone writes it. */
#ifndef RP_CORE_FLAGS_H
#define RP_CORE_FLAGS_H

#include "core/error.h"

typedef struct rp__thread_flags {
    bool held_is_last;  /* core/error.c: no call has failed since the one whose error is held */
    bool in_slice;      /* core/thread.c: runs a slice of rp__parallel */
    bool in_item;       /* device/cpu/stream.c: runs an item, and has the turn: a wait in it must not run others */
    bool tracing;       /* trace/trace.c: a trace records; every read of data on the host asks rp__materialise_hook */
    bool grad_disabled; /* autograd/tape.c: grad mode of the thread; rp_set_grad_enabled, inline */
    /* autograd/tape.c: rp__tape_shadow makes a handle in a trace. That of a block, which may be differentiated again, takes it
       for the value that it is; where a user detaches, the block has a node that cuts. */
    bool shadowing;
    bool taking_apart; /* autograd/tape.c: nodes are destroyed, those that become free meanwhile wait */
    bool muted; /* autograd/checkpoint.c: in a checkpoint inside the one recomputed, whose numbers are not wanted */
    uint8_t autocast; /* ops/autocast.c: the type for the CPU, and in the upper four bits that for CUDA; 0: off */
    bool quiet;       /* trace/symbols.c: relations are decided without a guard */
    bool has_turn;    /* graphs/recording.c: this thread's graphs run, no others of their pool */
} rp__thread_flags;
extern RP__TLS_FAST rp__thread_flags rp__flags;

#endif
