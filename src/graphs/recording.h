/* A recording: one stream capture turned into a graph that can be replayed. The part that raw graphs (graph.c) and graphed
   callables (graphed.c) share. It owns the graph, a reference to its pool, the random states it writes before a replay, and
   references to every storage outside the pool that its launches read or write: what a graph reads cannot be freed under it. */
#ifndef RP_GRAPHS_RECORDING_H
#define RP_GRAPHS_RECORDING_H

#include "device/capture.h"
#include "tensor/tensor.h"

/* Memory from outside that the graph touches. */
typedef struct rp__external {
    rp__storage *storage;  /* retained */
    uint64_t version;      /* at capture */
    const char *op, *site; /* the first launch that touches it */
    uint32_t access;       /* RP__READ | RP__WRITE over all launches */
    char *now;             /* where its bytes are taken from: storage->data until re-pointed */
    rp__storage *moved;    /* retained; NULL unless re-pointed */
    bool library;          /* a library call or a user's kernel touches it: it cannot be re-pointed */
} rp__external;

typedef struct rp__recording {
    rp__device *device;
    rp_pool *pool;
    rp__devgraph *graph; /* NULL: nothing captured */
    bool instantiated;
    rp__capture_random *random;
    size_t n_random;
    rp__external *externals;
    size_t n_externals, externals_capacity;
    uint64_t replays, patches, stream_waits; /* statistics */
} rp__recording;

/* Capturing, in one thread: begin makes `stream` current and records; end restores what was current on every path. */
typedef struct rp__recorder {
    rp__launch_recorder base;
    rp__launch_recorder *outer;
    rp__recording *recording;
    rp_stream *stream, *previous; /* retained */
    rp_status failed;
} rp__recorder;
rp_status rp__recorder_begin(rp__recorder *c, rp__recording *r, rp_stream *stream, rp_pool *pool, rp_capture_mode mode);
/* On failure the recording is empty. An empty capture is allowed: *nodes = 0. */
rp_status rp__recorder_end(rp__recorder *c, size_t *nodes);

rp_status rp__recording_instantiate(rp__recording *r);
/* On stream s: orders it behind the pool's last replay, writes random states, launches, advances generators. */
rp_status rp__recording_replay(rp__recording *r, rp_stream *s);
void rp__recording_free(rp__recording *r);

rp__external *rp__recording_find(rp__recording *r, const rp__storage *s);
/* Can replays take the bytes of `e` from another place? Otherwise *why says what stands against it. */
bool rp__recording_movable(const rp__recording *r, const rp__external *e, const char **why);
/* From the next replay on the bytes of e are those at `address` of `to` (same layout); touches only the nodes that read it.
   to NULL: back to where they were captured. Addresses must agree modulo 16, since kernels were chosen for their alignment. */
rp_status rp__recording_repoint(rp__recording *r, rp__external *e, rp__storage *to, char *address);

#endif
