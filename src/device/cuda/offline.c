/* A stand-in for the driver of a GPU that is not here (REPRISE_CUDA_OFFLINE): memory is the host's, kernels are taken and not run.
 * So functions trace and compile as on the real device, and their kernels, for which NVRTC needs no GPU, come into the cache
 * (`reprise cache --warm --arch`). Nothing is computed, so nothing can be read back: copies to the host fail, and so do graphs. */
#include "device/cuda/offline.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/env.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* of functions that take what the driver's take */

enum { PAGE = 4096 };
static int arch, multiprocessors;

static struct
    known { /* multiprocessors of the common product, and what a block may have for itself (CUDA C guide, 16.2) */
    int arch, multiprocessors, shared;
} const known[] = {
    {70, 80, 98304},   {75, 68, 65536},   {80, 108, 166912},  {86, 84, 101376},
    {89, 128, 101376}, {90, 132, 232448}, {100, 148, 232448}, {120, 170, 101376},
};
static const struct known *nearest(void) {
    const struct known *k = known;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].arch <= arch) k = &known[i];
    return k;
}

/* ---- what programs need before a launch */

static CUresult done(void) { return CUDA_SUCCESS; }
static CUresult initialise(unsigned int flags) { return CUDA_SUCCESS; }
static CUresult version(int *out) {
    *out = 12040;
    return CUDA_SUCCESS;
}
static CUresult error_name(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_NOT_SUPPORTED ? "no device" : "an error of the driver's stand-in";
    return CUDA_SUCCESS;
}
static CUresult error_words(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_NOT_SUPPORTED ? "REPRISE_CUDA_OFFLINE is set: kernels are compiled, nothing is computed"
                                              : "an error of the driver's stand-in";
    return CUDA_SUCCESS;
}
static CUresult device_count(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}
static CUresult device_get(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
static CUresult device_name(char *name, int len, CUdevice device) {
    (void)snprintf(name, (size_t)len, "sm_%d, which is not here", arch);
    return CUDA_SUCCESS;
}
static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = nearest()->shared; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = arch % 10; break;
    default: *value = 0; /* no virtual memory among others */
    }
    return CUDA_SUCCESS;
}
static CUresult device_memory(size_t *bytes, CUdevice device) {
    *bytes = (size_t)64 << 30;
    return CUDA_SUCCESS;
}
static CUresult memory_info(size_t *left, size_t *all) {
    *left = *all = (size_t)64 << 30;
    return CUDA_SUCCESS;
}
static char context;
static CUresult context_retain(CUcontext *ctx, CUdevice device) {
    *ctx = (CUcontext)(void *)&context;
    return CUDA_SUCCESS;
}
static CUresult context_release(CUdevice device) { return CUDA_SUCCESS; }
static CUresult context_flags(CUdevice device, unsigned int flags) { return CUDA_SUCCESS; }
static CUresult context_set(CUcontext ctx) { return CUDA_SUCCESS; }
static CUresult context_get(CUcontext *ctx) {
    *ctx = (CUcontext)(void *)&context;
    return CUDA_SUCCESS;
}

/* Pages that nobody touches cost nothing. The length lies before them. */
static CUresult memory_new(CUdeviceptr *ptr, size_t bytes) {
    void *p = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *(size_t *)p = bytes + PAGE;
    *ptr = (CUdeviceptr)(uintptr_t)p + PAGE;
    return CUDA_SUCCESS;
}
static CUresult memory_free(CUdeviceptr ptr) {
    void *p = (void *)(uintptr_t)(ptr - PAGE);
    return munmap(p, *(size_t *)p) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult host_new(void **ptr, size_t bytes, unsigned int flags) {
    *ptr = calloc(1, bytes);
    return *ptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult host_free(void *ptr) {
    free(ptr);
    return CUDA_SUCCESS;
}
static CUresult host_place(CUdeviceptr *ptr, void *host, unsigned int flags) {
    *ptr = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}
static CUresult copy_in(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) { return CUDA_SUCCESS; }
static CUresult copy_inside(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) { return CUDA_SUCCESS; }
static CUresult fill(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) { return CUDA_SUCCESS; }
static CUresult pointer_attributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr) {
    return CUDA_SUCCESS; /* no pinned memory: what the caller has filled in stays */
}

static CUresult stream_new(CUstream *stream, unsigned int flags) {
    *stream = calloc(1, 1);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult stream_free(CUstream stream) {
    free(stream);
    return CUDA_SUCCESS;
}
static CUresult stream_done(CUstream stream) { return CUDA_SUCCESS; }
static CUresult stream_wait(CUstream stream, CUevent event, unsigned int flags) { return CUDA_SUCCESS; }
static CUresult event_new(CUevent *event, unsigned int flags) {
    *event = calloc(1, 1);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult event_free(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}
static CUresult event_record(CUevent event, CUstream stream) { return CUDA_SUCCESS; }
static CUresult event_done(CUevent event) { return CUDA_SUCCESS; }

static char module;
static CUresult library_load(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                             unsigned int n_jit, CUlibraryOption *options, void **values, unsigned int n) {
    *library = (CUlibrary)(void *)&module;
    return CUDA_SUCCESS;
}
static CUresult library_unload(CUlibrary library) { return CUDA_SUCCESS; }
static CUresult library_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
    *kernel = (CUkernel)(void *)&module;
    return CUDA_SUCCESS;
}
static CUresult kernel_function(CUfunction *function, CUkernel kernel) {
    *function = (CUfunction)(void *)&module;
    return CUDA_SUCCESS;
}
static CUresult function_load(CUfunction function) { return CUDA_SUCCESS; }
static CUresult function_get(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = 0;
    return CUDA_SUCCESS;
}
static CUresult function_set(CUfunction function, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
static CUresult launch(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                       CUstream stream, void **params, void **extra) {
    return CUDA_SUCCESS;
}
static CUresult occupancy(int *blocks, CUfunction function, int block_size, size_t dynamic_shared_bytes) {
    *blocks = 1;
    return CUDA_SUCCESS;
}

/* A program is recorded on a stream that captures, from which the recorder keeps everything. */
static CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode) { return CUDA_SUCCESS; }
static CUresult capture_end(CUstream stream, CUgraph *graph) {
    *graph = (CUgraph)(void *)&module;
    return CUDA_SUCCESS;
}
static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
static CUresult capture_mode(CUstreamCaptureMode *mode) { return CUDA_SUCCESS; }

/* Graphs: nothing of them is kept but what their makers keep. */
static CUresult graph_new(CUgraph *graph, unsigned int flags) {
    *graph = (CUgraph)(void *)&module;
    return CUDA_SUCCESS;
}
static CUresult graph_free(CUgraph graph) { return CUDA_SUCCESS; }
static CUresult graph_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                          size_t n_deps, CUgraphNodeParams *params) {
    *node = (CUgraphNode)(void *)&module;
    return params->type == CU_GRAPH_NODE_TYPE_KERNEL ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}
static CUresult graph_add_kernel(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                                 const CUDA_KERNEL_NODE_PARAMS *params) {
    *node = (CUgraphNode)(void *)&module;
    return CUDA_SUCCESS;
}
static CUresult graph_set(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) { return CUDA_SUCCESS; }
static CUresult graph_nodes(CUgraph graph, CUgraphNode *nodes, size_t *n) {
    *n = 0;
    return CUDA_SUCCESS;
}
static CUresult graph_instantiate(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    *exec = (CUgraphExec)(void *)&module;
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}
static CUresult exec_free(CUgraphExec exec) { return CUDA_SUCCESS; }
static CUresult exec_set(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    return CUDA_SUCCESS;
}
static CUresult exec_launch(CUgraphExec exec, CUstream stream) { return CUDA_SUCCESS; }

/* ---- the rest */

#define RP__CUDA_FN(need, name, symbol, ret, args)                                                                     \
    static ret no_##name args { return CUDA_ERROR_NOT_SUPPORTED; }
#include "device/cuda/libcuda.def"
#undef RP__CUDA_FN

static rp__libcuda table;

static void choose(void) {
    const char *asked = rp__env("REPRISE_CUDA_OFFLINE");
    char rest;
    int n = asked ? sscanf(asked, "sm_%d:%d%c", &arch, &multiprocessors, &rest) : 0;
    if (n < 1 || n > 2 || arch < 50 || arch > 999) {
        arch = 0;
        return;
    }
    if (n == 1 || multiprocessors < 1) multiprocessors = nearest()->multiprocessors;
#define RP__CUDA_FN(need, name, symbol, ret, args) table.name = no_##name;
#include "device/cuda/libcuda.def"
#undef RP__CUDA_FN
    table.cuInit = initialise;
    table.cuDriverGetVersion = version;
    table.cuGetErrorName = error_name;
    table.cuGetErrorString = error_words;
    table.cuDeviceGetCount = device_count;
    table.cuDeviceGet = device_get;
    table.cuDeviceGetName = device_name;
    table.cuDeviceGetAttribute = device_attribute;
    table.cuDeviceTotalMem = device_memory;
    table.cuDevicePrimaryCtxRetain = context_retain;
    table.cuDevicePrimaryCtxRelease = context_release;
    table.cuDevicePrimaryCtxSetFlags = context_flags;
    table.cuCtxSetCurrent = context_set;
    table.cuCtxGetCurrent = context_get;
    table.cuCtxSynchronize = done;
    table.cuMemAlloc = memory_new;
    table.cuMemFree = memory_free;
    table.cuMemGetInfo = memory_info;
    table.cuMemHostAlloc = host_new;
    table.cuMemFreeHost = host_free;
    table.cuMemHostGetDevicePointer = host_place;
    table.cuMemcpyHtoDAsync = copy_in;
    table.cuMemcpyDtoDAsync = copy_inside;
    table.cuMemsetD8Async = fill;
    table.cuPointerGetAttributes = pointer_attributes;
    table.cuStreamCreate = stream_new;
    table.cuStreamDestroy = stream_free;
    table.cuStreamSynchronize = stream_done;
    table.cuStreamQuery = stream_done;
    table.cuStreamWaitEvent = stream_wait;
    table.cuEventCreate = event_new;
    table.cuEventDestroy = event_free;
    table.cuEventRecord = event_record;
    table.cuEventQuery = event_done;
    table.cuEventSynchronize = event_done;
    table.cuLibraryLoadData = library_load;
    table.cuLibraryUnload = library_unload;
    table.cuLibraryGetKernel = library_kernel;
    table.cuKernelGetFunction = kernel_function;
    table.cuFuncLoad = function_load;
    table.cuFuncGetAttribute = function_get;
    table.cuFuncSetAttribute = function_set;
    table.cuLaunchKernel = launch;
    table.cuOccupancyMaxActiveBlocksPerMultiprocessor = occupancy;
    table.cuStreamBeginCapture = capture_begin;
    table.cuStreamEndCapture = capture_end;
    table.cuStreamIsCapturing = is_capturing;
    table.cuThreadExchangeStreamCaptureMode = capture_mode;
    table.cuGraphCreate = graph_new;
    table.cuGraphDestroy = graph_free;
    table.cuGraphAddNode = graph_add;
    table.cuGraphAddKernelNode = graph_add_kernel;
    table.cuGraphKernelNodeSetParams = graph_set;
    table.cuGraphGetNodes = graph_nodes;
    table.cuGraphConditionalHandleCreate = NULL; /* a driver too old for branches in graphs */
    table.cuGraphInstantiateWithParams = graph_instantiate;
    table.cuGraphExecDestroy = exec_free;
    table.cuGraphExecKernelNodeSetParams = exec_set;
    table.cuGraphLaunch = exec_launch;
}

const rp__libcuda *rp__cuda_offline(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose);
    return arch ? &table : NULL;
}
