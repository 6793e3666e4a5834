/* Private header of the emulated CUDA driver (libcuda.so.1 of the tests). One mutex guards everything; work is queued
 * as a graph of `op`s and runs only inside sim_run_*, on the thread that synchronises. Files: memory.c (device memory),
 * exec.c (fibers, blocks, grids), engine.c (ops, streams, events), capture.c, graph.c, module.c, driver.c (the rest of
 * the API). */
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cuda/cuda_api.h"

#include "cudasim.h"
#include "runtime.h"

#define SIM_EXPORT __attribute__((visibility("default")))

/* Prototypes of all exports, from the library's own table. */
#define RP__CUDA_FN(need, name, symbol, ret, args) SIM_EXPORT ret symbol args;
#include "device/cuda/libcuda.def"
#undef RP__CUDA_FN

/* ---- Entering the API ---- */

/* Takes the lock; counts the call, fails it on demand, and returns a sticky error. On anything but CUDA_SUCCESS the
 * lock is free. */
CUresult sim_begin(const char *name);
/* For calls that only free or only tell: never failed on demand, allowed after an error. */
CUresult sim_begin_free(const char *name);
CUresult sim_end(CUresult result); /* releases the lock */
#define SIM_BEGIN()                                                                                                    \
    do {                                                                                                               \
        CUresult begin_ = sim_begin(__func__);                                                                         \
        if (begin_ != CUDA_SUCCESS) {                                                                                  \
            return begin_;                                                                                             \
        }                                                                                                              \
    } while (0)
#define SIM_BEGIN_FREE()                                                                                               \
    do {                                                                                                               \
        CUresult begin_ = sim_begin_free(__func__);                                                                    \
        if (begin_ != CUDA_SUCCESS) {                                                                                  \
            return begin_;                                                                                             \
        }                                                                                                              \
    } while (0)

uint32_t sim_random(uint32_t below);    /* 0 .. below-1; 0 for 0 */
void *sim_alloc(size_t n, size_t size); /* zeroed; the emulator may abort when the host has no memory */
void *sim_grow(void *p, size_t n, size_t size);
__attribute__((format(printf, 1, 2))) void sim_complain(const char *format, ...);

/* Live handles. Types count separately; a handle that is not in the table is invalid. */
enum { SIM_STREAM, SIM_EVENT, SIM_LIBRARY, SIM_KERNEL, SIM_GRAPH, SIM_NODE, SIM_EXEC, SIM_COND, SIM_TYPES };
void sim_handle_add(const void *p, int type);
bool sim_handle_is(const void *p, int type);
void sim_handle_remove(const void *p);

/* ---- Devices and contexts ---- */

struct CUctx_st {
    CUdevice device;
    unsigned int retained;
    unsigned int flags;
};
#define SIM_DEVICES 8
extern struct CUctx_st sim_contexts[SIM_DEVICES];
extern int sim_n_devices;
CUcontext sim_current(void);
extern CUresult sim_sticky; /* after a kernel's fault every call returns it */

/* ---- Memory (memory.c) ---- */

void sim_memory_start(void);
void sim_memory_open(void);                             /* device memory becomes readable: an engine run begins */
void sim_memory_close(void);                            /* and, under CUDASIM_STRICT, unreadable again */
bool sim_memory_is_device(CUdeviceptr p, size_t bytes); /* wholly in one live range */
bool sim_memory_is_pinned(const void *p, size_t bytes);
/* Red zones and such; complains and returns CUDA_ERROR_ILLEGAL_ADDRESS when one was written. */
CUresult sim_memory_check(void);
void sim_memory_global_add(void *p, size_t bytes); /* a __device__ variable */
void sim_memory_global_remove(void *p);
void sim_memory_describe(const void *p, char *text, size_t size);

/* ---- Modules (module.c) ---- */

struct CUfunc_st {
    const struct cudasim_kernel *kernel;
    struct CUlib_st *library;
    unsigned int bytes; /* of all parameters */
    int max_dynamic_shared;
    int carveout;
    struct sim_block *shared_owner; /* whose data the static shared variables hold */
};

/* ---- Grids (exec.c) ---- */

typedef struct sim_launch {
    CUfunction function;
    unsigned int grid[3], block[3];
    unsigned int shared_bytes;
    unsigned char *arguments; /* owned */
} sim_launch;

typedef struct sim_grid sim_grid;
sim_grid *sim_grid_new(const sim_launch *launch); /* copies the launch, arguments too */
void sim_grid_free(sim_grid *grid);
/* Runs blocks. With `wait` the grid's predecessors are not complete: threads stop at rp_grid_wait, and a few such
 * blocks are enough. Returns true when every block is done. On a fault sim_sticky is set and the grid counts as done.
 * */
bool sim_grid_run(sim_grid *grid, bool wait);
unsigned int sim_fibers_suspended(void);
void sim_exec_start(void);

/* ---- Ops, streams, events (engine.c) ---- */

enum { OP_EMPTY, OP_KERNEL, OP_COPY, OP_SET, OP_HOST, OP_NATIVE, OP_CONDITIONAL };

typedef struct sim_op sim_op;
typedef struct sim_copy {
    void *dst;
    const void *src;
    size_t width, height, depth;
    size_t dst_pitch, dst_slice, src_pitch, src_slice;
} sim_copy;

struct sim_op {
    int type;
    int state; /* 0 waiting, 1 begun and suspended, 2 done */
    unsigned int refs;
    unsigned int full;    /* incomplete predecessors by full edges */
    unsigned int partial; /* incomplete predecessors by programmatic edges */
    sim_op **producers;   /* of programmatic edges */
    unsigned int n_producers;
    struct {
        sim_op *op;
        bool programmatic;
    } * out;
    unsigned int n_out, cap_out;
    bool early; /* begun before its producers were done */
    double done_at;
    sim_grid *grid;
    sim_copy copy;
    unsigned char *owned; /* copied host bytes */
    CUDA_MEMSET_NODE_PARAMS set;
    CUhostFn host;
    void *host_data;
    void (*native)(void *params);
    struct CUgraphNode_st *conditional;
    struct CUgraphExec_st *exec; /* the first op of a graph launch */
};

struct CUstream_st {
    unsigned int flags;
    int priority;
    CUcontext ctx;
    sim_op *last;   /* tail; next op follows it */
    sim_op *before; /* what else a full successor must wait for (behind programmatic launches) */
    struct sim_capture *capture;
    struct CUgraphNode_st **deps; /* while capturing */
    CUgraphEdgeData *edges;
    size_t n_deps;
    struct CUstream_st *next;
};

struct CUevent_st {
    unsigned int flags;
    sim_op *op; /* last record */
    bool recorded;
    unsigned long long capture_id; /* last record was in this capture; 0: was not */
    struct CUgraphNode_st **deps;
    CUgraphEdgeData *edges;
    size_t n_deps;
};

extern struct CUstream_st sim_legacy;
extern struct CUstream_st *sim_streams;

sim_op *sim_op_new(int type);
void sim_op_release(sim_op *op);
sim_op *sim_op_retain(sim_op *op);
void sim_op_after(sim_op *op, sim_op *producer, bool programmatic); /* before sim_op_submit */
void sim_op_submit(sim_op *op);
/* Takes the caller's reference of `op`; `programmatic`: it may begin before the stream's last kernel is complete. */
void sim_stream_push(CUstream stream, sim_op *op, bool programmatic);
void sim_stream_follow(sim_op *op, CUstream stream); /* op waits for all of the stream */
CUresult sim_run_until(sim_op *target);              /* NULL: everything */
CUresult sim_run_some(void);
CUresult sim_run_stream(CUstream stream);
CUresult sim_run_all(void);
bool sim_stream_idle(CUstream stream);
CUstream sim_stream_get(CUstream stream, CUresult *error); /* resolves NULL and legacy */
void sim_copy_run(const sim_copy *copy);

/* ---- Capture (capture.c) ---- */

typedef struct sim_capture {
    unsigned long long id;
    CUstreamCaptureMode mode;
    CUgraph graph;
    bool own_graph;
    CUstream origin;
    unsigned long thread;
    bool invalid;
    struct sim_capture *next;
} sim_capture;

/* A call that may be unsafe during capture (cuMemAlloc ...): CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and a dead capture
 * when one forbids. */
CUresult sim_capture_unsafe(void);
void sim_capture_invalidate(sim_capture *capture);
/* Replaces what the next captured node of the stream will depend on. */
void sim_capture_set(CUstream stream, CUgraphNode const *deps, const CUgraphEdgeData *edges, size_t n);
CUresult sim_capture_usable(CUstream stream); /* CUDA_ERROR_STREAM_CAPTURE_INVALIDATED for a dead capture */
/* Use of the legacy stream while a blocking stream is captured. */
CUresult sim_capture_implicit(CUstream stream);
CUresult sim_capture_record(CUevent event, CUstream stream);
CUresult sim_capture_wait(CUstream stream, CUevent event, bool *handled);
bool sim_capture_any(CUcontext ctx, sim_capture **which);
sim_capture *sim_capture_find(unsigned long long id);

/* ---- Graphs (graph.c) ---- */

typedef struct sim_attr {
    CUlaunchAttributeID id;
    CUlaunchAttributeValue value;
} sim_attr;

struct sim_dep {
    struct CUgraphNode_st *node;
    CUgraphEdgeData edge;
};

struct CUgraphNode_st {
    CUgraph graph;
    CUgraphNodeType type;
    struct CUgraphNode_st *origin; /* of an executable's node: the node it was made from */
    struct sim_dep *deps;
    size_t n_deps;
    size_t index;
    bool disabled;
    bool full_out; /* some full edge leaves it */
    sim_launch launch;
    void **param_pointers; /* into launch.arguments */
    sim_attr attrs[8];
    unsigned int n_attrs;
    void (*native)(void *params); /* kernel node of an emulated library */
    size_t native_bytes;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_HOST_NODE_PARAMS_v2 host;
    CUgraph child;
    CUDA_CONDITIONAL_NODE_PARAMS conditional;
    CUgraph *bodies;
};

typedef struct sim_cond {
    CUgraph graph;
    unsigned int default_value;
    unsigned int flags;
    unsigned int value;
    CUgraphNode user;
    struct sim_cond *next;
} sim_cond;

struct CUgraph_st {
    CUgraphNode *nodes;
    size_t n_nodes;
    bool owned; /* a child, a body or an executable's copy: not the user's to destroy */
    bool instantiated_once;
    sim_cond *conds;
    sim_capture *capturing;
};

struct CUgraphExec_st {
    CUgraph graph; /* deep copy */
    sim_cond **conds;
    size_t n_conds;
    sim_op *last;
    CUgraph source;
    struct CUgraphExec_st *dying; /* destroyed while it runs: the next such */
};

void sim_execs_bury(void); /* frees executables that were destroyed while they ran and have ended */
CUgraph sim_graph_new(void);
void sim_graph_free(CUgraph graph);
CUgraphNode sim_node_new(CUgraph graph, CUgraphNodeType type, CUgraphNode const *deps, const CUgraphEdgeData *edges,
                         size_t n);
CUresult sim_launch_make(sim_launch *launch, CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                         unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, void **params,
                         void **extra);
void sim_node_params(CUgraphNode node);
/* Body graphs of a conditional op that began: queues the next body, or returns false when the node is done. */
bool sim_conditional_step(sim_op *op);
void sim_exec_begin(struct CUgraphExec_st *exec); /* condition values take their defaults */
void sim_cond_set(unsigned long long handle, unsigned int value);
CUresult sim_copy_from_params(const CUDA_MEMCPY3D *p, sim_copy *copy);
/* A new node behind the capturing stream's tail, which it becomes. `programmatic`: by programmatic edges where both are
 * kernels. */
CUresult sim_capture_add(CUstream stream, CUgraphNodeType type, bool programmatic, CUgraphNode *node);
CUresult sim_function_check(CUfunction f); /* alive: its library is loaded */

#endif
