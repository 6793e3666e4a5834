/* A recording: one stream capture turned into a graph that can be replayed. The part that raw graphs (graph.c) and graphed
   callables (graphed.c) share. It owns the graph, a reference to its pool, the random states it writes before a replay, and
   references to every storage outside the pool that its launches read or write: what a graph reads cannot be freed under it. */
#ifndef RP_GRAPHS_RECORDING_H
#define RP_GRAPHS_RECORDING_H

#include "compile/explain.h"
#include "device/capture.h"
#include "tensor/tensor.h"

/* Memory from outside that the graph touches. */
typedef struct rp__external {
    rp__storage *storage;  /* retained */
    uint64_t version;      /* at capture */
    const char *op, *site; /* the first launch that touches it */
    uint32_t access;       /* RP__READ | RP__WRITE over all launches */
    int64_t begin, end;    /* bytes of the storage that launches touch */
    char *now;             /* where its bytes are taken from: storage->data until re-pointed */
    rp__storage *moved;    /* retained; NULL unless re-pointed */
    bool library;          /* a library call touches it: it cannot be re-pointed */
} rp__external;

typedef struct rp__recording {
    rp__device *device;
    rp_pool *pool;
    rp__devgraph *graph; /* NULL: nothing captured */
    bool instantiated;
    bool unknown; /* it has a launch whose operands are not known: that may read anything from outside */
    rp__capture_random *random;
    size_t n_random;
    rp__external *externals;
    size_t n_externals, externals_capacity;
    uint64_t met;         /* stream that is noted as a user of all of them: that of the last replay; 0: none */
    rp__replays *counted; /* counted; for those who keep values of a replay */
    uint64_t replays, patches, stream_waits; /* statistics */
    _Atomic uint64_t executables;            /* of the graph; counted by the device, if it has any */
} rp__recording;

/* A stream for captures that name none. Taken from a few that stay: memory is cached for a stream, so a new one each time would
   leave its cache behind. NULL and a sticky error when none could be made. */
rp_stream *rp__side_stream_take(rp__device *d);
void rp__side_stream_give(rp_stream *s);

/* Capturing, in one thread: begin makes `stream` current and records; end restores what was current on every path. */
typedef struct rp__recorder {
    rp__launch_recorder base;
    rp__recording *recording;
    rp_stream *stream, *previous; /* retained */
    rp_status failed;
} rp__recorder;
rp_status rp__recorder_begin(rp__recorder *c, rp__recording *r, rp_stream *stream, rp_pool *pool, rp_capture_mode mode);
/* Refuses a thread that records already: captures do not nest. */
rp_status rp__recorder_check_outermost(const char *call);
/* Is c what this thread records into? Only then may it be ended: another thread's launches still point to it. */
bool rp__recorder_is_current(const rp__recorder *c);
/* On failure the recording is empty. An empty capture is allowed: *nodes = 0. */
rp_status rp__recorder_end(rp__recorder *c, size_t *nodes);

/* One thread at a time puts arguments in place for a graph and replays it, as do others of its pool, whose memory they share. A
   thread may enter again before it leaves. end takes what begin gave. */
rp_pool *rp__turn_begin(rp_pool *pool);
void rp__turn_end(rp_pool *turn);

rp_status rp__recording_instantiate(rp__recording *r);
/* On stream s: orders it behind the pool's last replay, writes random states, launches, advances generators. */
rp_status rp__recording_replay(rp__recording *r, rp_stream *s);
void rp__recording_free(rp__recording *r);

rp__external *rp__recording_find(rp__recording *r, const rp__storage *s);

/* An argument whose place the graph has recorded. */
typedef struct rp__static_input {
    rp_tensor *tensor;      /* the recorded one, counted by its owner */
    rp__external *external; /* NULL: no launch touches it */
    bool patched, copied;   /* happened before: explain has been told */
    bool stands_in;         /* the last rp__static_input_set copied: writes of the graph are in `tensor` alone */
} rp__static_input;
/* Does the graph write the argument? */
static inline bool rp__static_input_written(const rp__static_input *input) {
    return input->external && input->external->access & RP__WRITE;
}
void rp__static_input_find(rp__recording *r, rp_tensor *recorded, rp__static_input *out);
/* Makes the next replay see `actual` where the recorded tensor was: re-points the nodes that read it, or copies the values
   (library operands, foreign memory, another layout or alignment, or `overwritten`: the replay itself writes over it). Sizes and
   dtype are the caller's to check. Each first copy and patch is told to `explain` with its reason. `number` is the argument's. */
rp_status rp__static_input_set(rp__recording *r, rp__static_input *input, rp_tensor *actual, bool overwritten,
                               rp__explain *explain, size_t number);
/* After the replay, where the graph wrote a copy: gives `actual` what was written. */
rp_status rp__static_input_give_back(const rp__static_input *input, rp_tensor *actual);
/* Can replays take the bytes of `e` from another place? Otherwise *why says what stands against it. */
bool rp__recording_movable(const rp__recording *r, const rp__external *e, const char **why);
/* From the next replay on the bytes of e are those at `address` of `to` (same layout); touches only the nodes that read it.
   to NULL: back to where they were captured. Addresses must agree modulo 16, since kernels were chosen for their alignment. */
rp_status rp__recording_repoint(rp__recording *r, rp__external *e, rp__storage *to, char *address);

#endif
