/* Caching allocator: one for each device. Blocks come from segments, belong to (pool, stream), and return to their pool at
   once when freed: order on the stream makes reuse safe. Sizes and thresholds are those of PyTorch's CUDACachingAllocator
   (512 B granule; up to 1 MiB from 2 MiB segments; up to 10 MiB from 20 MiB segments; larger rounded to 2 MiB) on CUDA; the
   CPU device uses size classes, with a per-thread cache of small blocks so that a tiny tensor costs tens of nanoseconds. */
#ifndef RP_DEVICE_ALLOCATOR_H
#define RP_DEVICE_ALLOCATOR_H

#include "device/device.h"

typedef struct rp__allocator rp__allocator;

struct rp__block {
    void *data;
    size_t bytes;  /* usable */
    rp_pool *pool; /* NULL: the default pool */
    rp_stream *stream;
    /* the allocator's own links follow in allocator_parts.h */
};

rp_status rp__allocator_new(rp__device *d, rp__allocator **out);
void rp__allocator_free(rp__allocator *a);

/* bytes 0 gives a block with data NULL. In a capture on `s`, memory comes from the capture's pool. */
rp_status rp__block_alloc(rp__device *d, rp_stream *s, size_t bytes, rp__block **out);
void rp__block_free(rp__device *d, rp__block *b);
/* A block for memory that a program gave us until its deleter runs: not under the allocator's lock, once the block was freed and
   the streams that were noted as users, and the device's default stream, have done what they had by then. That is when it is
   freed, or at a later rp__foreign_collect, in any thread: nobody waits for it. Collecting runs code of programs: where the
   host has waited for a device, and where more memory is wrapped. */
rp_status rp__block_foreign(rp__device *d, void *data, size_t bytes, void (*deleter)(void *), void *ctx,
                            rp__block **out);
void rp__foreign_collect(rp__device *d);
/* The block is used by another stream too: reuse waits for that stream's work (Tensor.record_stream). */
rp_status rp__block_used_by(rp__block *b, rp_stream *s);
/* What runs on s from now on may write to b: it waits for b's own stream and for the others that use it. */
rp_status rp__block_await(rp__block *b, rp_stream *s);

struct rp_pool { /* private memory of graphs; freed with the last graph and the last tensor */
    rp__handle handle;
    atomic_uint refs;
    rp__device *device;
    uint64_t id;
    rp_stream *replayed_on; /* floor 7: where a graph of the pool ran last; counted */
    rp__mutex turn;         /* floor 7: one thread at a time runs a graph of the pool (rp__turn_begin) */
    /* between the calls below, of a hold and of one capture; under the allocator's lock */
    struct rp__pool_ledger *ledger, *capture_ledger;
    rp_pool *given_up_next; /* of the allocator, under its lock: references that it has given up */
    unsigned given_up;
};
rp_pool *rp__pool_retain(rp_pool *p);
void rp__pool_drop(rp_pool *p); /* a reference of the library; NULL is nothing */

/* Memory that captures used and freed again is used by every replay of theirs. A hold keeps it from later captures of the pool:
   between begin and end the pool notes what it hands out; end takes as much of it as is free. */
typedef struct rp__pool_hold {
    atomic_uint refs;
    size_t n, capacity;
    rp__block **blocks;
} rp__pool_hold;
rp_status rp__pool_hold_begin(rp_pool *p);
/* out NULL: nothing is held. On failure *out is NULL. Ends on every path. */
rp_status rp__pool_hold_end(rp_pool *p, rp__pool_hold **out);
/* Which memory the pool hands out between begin and end: sorted, disjoint. *out is the caller's to free. Ends on every path. */
typedef struct rp__pool_range {
    char *begin, *end;
} rp__pool_range;
rp_status rp__pool_ranges_begin(rp_pool *p);
void rp__pool_ranges_end(rp_pool *p, rp__pool_range **out, size_t *n);
rp__pool_hold *rp__pool_hold_retain(rp__pool_hold *h); /* NULL is nothing */
void rp__pool_hold_release(rp__pool_hold *h);
/* The stream is about to be destroyed, its work done: what was cached for it is for whoever needs a segment next, or, in a pool,
   for the default stream. */
void rp__allocator_forget(rp__device *d, rp_stream *s);
/* s is part of capture c from now on (false, and nothing changes, if it is part of one already), and its allocations go to pool;
   both NULL: no longer. The allocator, which asks streams for events of their own, does so of none that captures. */
bool rp__allocator_capture(rp_stream *s, struct rp__capture *c, rp_pool *pool);

#endif
