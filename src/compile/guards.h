/* Guards of one specialisation: everything that must be as it was when its graph was recorded. The check is one pass over packed
   words (descriptors of the arguments), then memcmp of ctx, then what the graph says of captured tensors and symbols. */
#ifndef RP_COMPILE_GUARDS_H
#define RP_COMPILE_GUARDS_H

#include "compile/explain.h"
#include "trace/trace.h"

enum { RP__GUARD_BITS = 1024 };

/* What a call is checked against. Built once, then read only (but for rp__guards_only, `changes` and scratch). */
typedef struct rp__guards {
    uint64_t environment; /* grad mode, determinism, default device; whoever builds the guards fills it in */
    uint64_t *words;      /* per argument: head, then size and stride of each dim */
    const rp_dim *
        *symbolic; /* per argument: its words of the graph (sizes, then strides) where some are symbols; else NULL */
    size_t n_in, n_sharing; /* sharing: arguments, and gradients at entry behind them */
    rp_tensor **sharing;    /* room for these, in the call that is looked at; NULL: there are arguments alone */
    /* Memory that arguments share decides which graph a function gives, even where nothing is written. */
    uint32_t *same,
        *twin; /* per argument the first with its storage, the first that is the same tensor; NULL: one argument */
    struct rp__guard_seen { /* what a check has met: a table more than twice as long as that; NULL: few arguments */
        uint64_t checks;
        size_t mask;
        struct {
            const void *what;
            uint64_t check;
        } at[];
    } * seen;
    rp_dim
        *offset; /* per argument that shares memory: how far behind the first it begins; in a captured storage: where */
    rp__map outside;                            /* storages of captured tensors */
    uint64_t outside_bits[RP__GUARD_BITS / 64]; /* a storage whose bit is 0 is not in the map */
    uint64_t
        *in_outside; /* per argument: id of the captured storage that it lies in, 0: none; NULL with an empty map */
    /* Wrapped memory may lie under several storages. One range an argument, then one a captured tensor. */
    struct rp__guard_range {
        uintptr_t begin, end; /* of an argument: in the call that was looked at last */
        const rp__storage *storage;
    } * ranges;
    uint32_t *order; /* their numbers, by the address in that call: seldom far from the order of the next one */
    uint64_t meets;  /* which of them have bytes in common, as a number; 0: none */
    bool wrapped;    /* some captured tensor is in wrapped memory */
    bool apart;      /* few arguments, each in memory of its own, and none that the function reaches by itself */
    uint64_t *only;  /* per argument: id of the tensor that it must be, as the function also reaches that by itself; 0:
                             any. NULL: none */
    void *ctx_copy;
    const void *ctx;
    size_t ctx_bytes;
    const rp__guard_bytes *bytes; /* of the trace result; borrowed */
    size_t n_bytes;
    struct rp__captured_guard {
        const rp_tensor *tensor; /* the graph holds it */
        uint64_t head;
        uint64_t need; /* of the head: type, rank and device are the handle's for life */
    } * captured;
    size_t n_captured;
    const rp_ir *ir;             /* borrowed: sizes and strides of gradients at entry */
    const rp__trace_grad *grads; /* borrowed */
    uint64_t *hooks; /* per entry of grads that is a captured tensor: rp__hooks_key; a backward inside ran them */
    size_t n_grads;
    bool argument_grads; /* some entry of grads is an argument */
    uint64_t
        changes; /* rp__grad_changes when captured tensors were last found as they were; they still are while it stays */
    const rp__symbols *symbols; /* borrowed */
} rp__guards;

uint64_t rp__guards_environment(void);
/* `result` must stay as long as the guards. sizes/strides: words of symbolic arguments, as given to the trace; may be NULL. */
rp_status rp__guards_build(rp__guards *g, const rp__trace_result *result, rp_fn fn, rp_tensor *const *in, size_t n_in,
                           const rp_dim *const *sizes, const rp_dim *const *strides);
void rp__guards_free(rp__guards *g);
/* Argument k must be this very tensor from now on. */
rp_status rp__guards_only(rp__guards *g, size_t k, const rp_tensor *t);
bool rp__guards_hold(rp__guards *g, rp_fn fn, rp_tensor *const *in, size_t n_in);
/* Which guard fails, in words with old and new value, for a call that rp__guards_hold refused. */
rp__reason rp__guards_explain(const rp__guards *g, rp_fn fn, rp_tensor *const *in, size_t n_in, rp__text *out);
/* Does the call differ in nothing but sizes (and the strides that follow from them)? */
bool rp__guards_only_sizes(rp__guards *g, rp_fn fn, rp_tensor *const *in, size_t n_in);
/* The recorded size of a dim: its value, or the hint of its symbol. */
int64_t rp__guards_size(const rp__guards *g, size_t in, unsigned dim, bool *symbolic);
int64_t rp__guards_stride(const rp__guards *g, size_t in, unsigned dim, bool *symbolic);

#endif
