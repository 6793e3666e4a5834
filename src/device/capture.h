/* Stream capture: what a stream holds while it records. Device-independent part: pool routing, random accounting, inputs seen
   (for liveness checks). Floor 7 (rp_graph_*) begins and ends it; devices record launches into it. */
#ifndef RP_DEVICE_CAPTURE_H
#define RP_DEVICE_CAPTURE_H

#include "device/device.h"
#include "device/generator.h"

typedef struct rp__capture_random { /* one generator used in the capture */
    rp_generator *generator;
    uint64_t *state; /* device memory {seed, base}: that of `memory` */
    rp__random_memory *memory;
    uint64_t used; /* counters reserved so far: the replay's increment */
    bool
        borrowed; /* of another capture, whose replays write it: only held. Else written before each replay of this one */
} rp__capture_random;

/* How often what a capture recorded has been replayed. It outlives capture and graph: whoever keeps values of a replay looks
   whether they are still those. */
typedef struct rp__replays {
    atomic_uint refs;
    _Atomic uint64_t count;
} rp__replays;
rp__replays *rp__replays_retain(rp__replays *r);
void rp__replays_release(rp__replays *r); /* NULL is nothing */

typedef struct rp__capture {
    rp_stream *stream;
    rp_pool *pool;
    rp_capture_mode mode;
    pthread_t thread;
    bool invalid;  /* an operation that capture does not permit happened */
    char why[256]; /* the first such operation, with op and site */
    rp__capture_random *random;
    size_t n_random, random_capacity;
    rp__replays *replays; /* counted */
    void *native;         /* the device's recording */
    uint64_t others;      /* not 0: somebody else began it on an adopted stream, and this is its number there */
    rp_stream **forked;   /* streams that joined by waiting for an event of the capture; retained */
    size_t n_forked, n_joining, forked_capacity; /* joining: about to be, with room in the list */
    struct rp__capture *next;                    /* all captures of the process */
} rp__capture;

/* rp__random_reserve in a capture. */
rp_status rp__capture_reserve(rp__capture *c, rp_generator *g, uint64_t counters, rp__random_draw *out,
                              rp__random_memory **memory); /* borrowed */
/* What c records draws from memory of another capture (or of its own), which must live as long as the graph. */
rp_status rp__capture_hold_random(rp__capture *c, rp_generator *g, rp__random_memory *m);

rp_status rp__capture_begin(rp_stream *s, rp_pool *pool, rp_capture_mode mode);
/* s is adopted: does whoever owns it capture it now? If so, what s is given from now on is recorded as in a capture of ours, one by one,
   with memory of a pool of its own. Nobody says when that graph is gone, so pool and operands stay for good. Captures that have ended
   meanwhile, on any adopted stream, are taken off. */
rp_status rp__capture_follow(rp_stream *s);
/* The capture that this thread's launches go into, on whatever device; NULL: none. */
rp__capture *rp__capture_current(void);
/* Ends on every path; on failure *graph is NULL. The random records move to the caller. */
rp_status rp__capture_end(rp_stream *s, rp__devgraph **graph, rp__capture_random **random, size_t *n_random);
void rp__capture_random_free(rp__capture_random *random,
                             size_t n); /* frees the device state, releases the generators */
/* (s NULL: an operation of the whole device: forbidden to a thread that captures, unless relaxed.)
   An operation that cannot be captured (host read, synchronise, ...): marks the capture and returns RP_ERROR_CAPTURE; RP_OK
   when s is not capturing (and, in global mode, no stream of the process is). */
rp_status rp__capture_forbid(rp_stream *s, const char *what);
bool rp__stream_capturing(const rp_stream *s);
bool rp__captures_active(void); /* is any stream of the process capturing? */
/* Devices: s waited for an event of capture c and records into it from now on; its allocations come from c's pool. */
rp_status rp__capture_join(rp__capture *c, rp_stream *s);
/* Devices: an operation failed while c records; the first reason is kept. */
void rp__capture_invalidate(rp__capture *c, const char *why);

#endif
