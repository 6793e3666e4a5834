/* What the files of src/device/cuda/ and src/kernel/cuda/ share: the state of an opened CUDA device, and how driver results
 * become statuses. Nothing outside these two folders includes this file. */
#ifndef RP_DEVICE_CUDA_CUDA_H
#define RP_DEVICE_CUDA_CUDA_H

#include "device/cuda/libcuda.h"
#include "device/device.h"

typedef struct rp__cuda { /* rp__device.native */
    const rp__libcuda *cu;
    CUdevice device;
    _Atomic(CUcontext) ctx; /* the primary context; NULL until first used; written under lock, when all else is there */
    rp__mutex lock;
    rp_stream *side_stream; /* where library calls are captured into explicit graphs; made when first needed */
    size_t granularity;     /* of virtual memory; 0: segments come from cuMemAlloc */
    bool shareable;         /* segments have handles that another process may import */
    bool programmatic;      /* sm_90 and a driver with edge data: programmatic edges between our kernels */
} rp__cuda;

static inline rp__cuda *rp__cuda_of(const rp__device *d) { return d->native; }

/* CUDA_SUCCESS gives RP_OK; anything else a sticky error that names the call and the driver's words. Errors that end the
 * context make the device lost: this and every later call gives RP_ERROR_DEVICE_LOST with the first cause. */
rp_status rp__cuda_status(rp__device *d, CUresult result, const char *call);
#define RP__CU(d, call) rp__cuda_status((d), rp__cuda_of(d)->cu->call, #call)

/* Makes the device's context current in this thread; opens it the first time. The only entry to driver calls. */
rp_status rp__cuda_enter(rp__device *d);

/* The same for giving things back: no error is set, and no single failing call keeps what is to be freed alive. False:
 * nothing can be freed any more. */
bool rp__cuda_enter_to_free(rp__device *d);

/* Runs driver calls that a capture in this thread would refuse although they touch no stream (allocation, module loading). */
CUstreamCaptureMode rp__cuda_relax(rp__device *d);
void rp__cuda_unrelax(rp__device *d, CUstreamCaptureMode mode);

/* ---- graph.c */
enum { RP__CUDA_PARAMS = 64 };
/* Kernel parameters from a launch: pointers into `params` and the launch, which must outlive their use. */
rp_status rp__cuda_kernel_params(const rp__launch *l, void *params[RP__CUDA_PARAMS], CUDA_KERNEL_NODE_PARAMS *out);
rp_status rp__cuda_graph_new(rp__device *d, rp__devgraph **out);
rp_status rp__cuda_graph_add(rp__devgraph *g, const rp__launch *launch, const uint32_t *deps, size_t n_deps,
                             uint32_t *node);
rp_status rp__cuda_graph_choice_new(rp__devgraph *g, bool two, uint64_t *handle);
rp_status rp__cuda_graph_choice_add(rp__devgraph *g, uint64_t handle, bool loop, bool two, const uint32_t *deps,
                                    size_t n_deps, uint32_t *node, rp__devgraph *bodies[2]);
rp_status rp__cuda_graph_instantiate(rp__devgraph *g, rp_stream *upload_on);
rp_status rp__cuda_graph_launch(rp__devgraph *g, rp_stream *s);
rp_status rp__cuda_graph_set_words(rp__devgraph *g, uint32_t node, const uint64_t *words);
size_t rp__cuda_graph_nodes(const rp__devgraph *g);
void rp__cuda_graph_count(rp__devgraph *g, _Atomic uint64_t *count);
const rp__launch *rp__cuda_graph_node(const rp__devgraph *g, uint32_t node);
void rp__cuda_graph_free(rp__devgraph *g);
rp_status rp__cuda_capture_begin(rp__device *d, rp_stream *s, rp_capture_mode mode);
rp_status rp__cuda_capture_end(rp__device *d, rp_stream *s, rp__devgraph **out);
rp_status rp__cuda_capture_of_others(rp__device *d, rp_stream *s, uint64_t *id);
rp_status rp__cuda_capture_note_others(rp__device *d, rp_stream *s);
rp_status rp__cuda_capture_note(rp__device *d, rp_stream *s,
                                const rp__launch *launch); /* after a launch on a capturing stream */

/* ---- launch.c: puts one launch on a stream, whatever its kind. */
rp_status rp__cuda_enqueue(rp__device *d, rp_stream *s, const rp__launch *launch);

#endif
