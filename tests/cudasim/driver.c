/* The rest of the emulated driver: entering and leaving calls, failure on demand, live handles, devices, contexts,
 * copies, errors. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "sim.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
cudasim_counters sim_counters;
struct CUctx_st sim_contexts[SIM_DEVICES];
int sim_n_devices;
CUresult sim_sticky;
extern _Thread_local bool sim_in_host_function;
void sim_memory_count(cudasim_counters *c);

static bool initialised;
static uint64_t random_state = 0x9e3779b97f4a7c15u;
static unsigned long long fail_at;
static CUresult fail_code = CUDA_ERROR_OUT_OF_MEMORY;
static char last_text[512];
static _Thread_local CUcontext context_stack[16];
static _Thread_local int context_depth;

/* ---- Helpers ---- */

void sim_complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_text, sizeof last_text, format, args);
    va_end(args);
    const char *quiet = getenv("CUDASIM_QUIET");
    if (!quiet || *quiet == '0' || !*quiet) {
        fprintf(stderr, "cudasim: %s\n", last_text);
    }
}

void *sim_alloc(size_t n, size_t size) {
    const size_t bytes = ((n ? n : 1) * (size ? size : 1) + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes); /* parameters of kernels may ask for it */
    if (!p) {
        abort();
    }
    return memset(p, 0, bytes);
}

void *sim_grow(void *p, size_t n, size_t size) {
    p = realloc(p, n * size);
    if (!p) {
        abort();
    }
    return p;
}

uint32_t sim_random(uint32_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return below ? (uint32_t)((random_state >> 32) * below >> 32) : 0;
}

static void seed(unsigned long long n) {
    random_state = (n + 1) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 8; i++) {
        sim_random(2);
    }
}

/* Open addressing; a removed place keeps a mark. */
static struct handle {
    const void *p;
    int type;
} * handles;
static size_t handles_size, handles_filled;
static unsigned int live[SIM_TYPES];
#define REMOVED ((const void *)&live)

static struct handle *handle_place(const void *p) {
    size_t i = ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 20 & (handles_size - 1);
    while (handles[i].p && handles[i].p != p) {
        i = (i + 1) & (handles_size - 1);
    }
    return &handles[i];
}

void sim_handle_add(const void *p, int type) {
    if (handles_filled * 2 >= handles_size) {
        struct handle *old = handles;
        size_t n = handles_size;
        handles_size = handles_size ? handles_size * 2 : 1024;
        handles = sim_alloc(handles_size, sizeof *handles);
        handles_filled = 0;
        for (size_t i = 0; i < n; i++) {
            if (old[i].p && old[i].p != REMOVED) {
                *handle_place(old[i].p) = old[i];
                handles_filled++;
            }
        }
        free(old);
    }
    struct handle *h = handle_place(p);
    handles_filled += h->p == NULL;
    *h = (struct handle){p, type};
    live[type]++;
}

bool sim_handle_is(const void *p, int type) {
    if (!p || !handles) {
        return false;
    }
    const struct handle *h = handle_place(p);
    return h->p == p && h->type == type;
}

void sim_handle_remove(const void *p) {
    struct handle *h = handle_place(p);
    if (h->p == p) {
        live[h->type]--;
        h->p = REMOVED;
    }
}

/* ---- Entering ---- */

static void report_leaks(void) {
    cudasim_counters c;
    const char *wanted = getenv("CUDASIM_LEAKS");
    if (!wanted || *wanted == '0' || !*wanted) {
        return;
    }
    cudasim_get_counters(&c);
    if (c.live_allocations || c.live_pinned || c.live_physical || c.live_reservations || c.live_streams ||
        c.live_events || c.live_libraries || c.live_graphs || c.live_execs) {
        fprintf(
            stderr,
            "cudasim: alive at exit: %u allocations (%llu bytes), %u pinned, %u physical, %u reservations, %u streams, %u events, "
            "%u libraries, %u graphs, %u executables\n",
            c.live_allocations, c.device_bytes, c.live_pinned, c.live_physical, c.live_reservations, c.live_streams,
            c.live_events, c.live_libraries, c.live_graphs, c.live_execs);
    }
}

static void start(void) {
    static bool started;
    if (started) {
        return;
    }
    started = true;
    const char *text = getenv("CUDASIM_SEED");
    seed(text && *text ? strtoull(text, NULL, 0) : 1);
    text = getenv("CUDASIM_DEVICES");
    sim_n_devices = text && *text ? atoi(text) : 1;
    sim_n_devices = sim_n_devices < 0 ? 0 : sim_n_devices > SIM_DEVICES ? SIM_DEVICES : sim_n_devices;
    text = getenv("CUDASIM_FAIL");
    if (text && *text) {
        char *end;
        fail_at = strtoull(text, &end, 0);
        fail_code = *end == ':' ? (CUresult)atoi(end + 1) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (int i = 0; i < SIM_DEVICES; i++) {
        sim_contexts[i].device = i;
    }
    sim_memory_start();
    sim_exec_start();
    atexit(report_leaks);
}

CUcontext sim_current(void) { return context_depth ? context_stack[context_depth - 1] : NULL; }

/* Functions that need neither cuInit nor a context. */
static bool needs_nothing(const char *name) {
    return strcmp(name, "cuInit") == 0 || strcmp(name, "cuDriverGetVersion") == 0 || strncmp(name, "cuGet", 5) == 0 ||
           strncmp(name, "cudasim_", 8) == 0;
}

static bool needs_context(const char *name) {
    static const char *const without[] = {
        "cuDevice",   "cuCtxSet",       "cuCtxGet",     "cuCtxPush",     "cuCtxPop",      "cuThread",
        "cuLibrary",  "cuMemGetAlloc",  "cuMemAddress", "cuMemCreate",   "cuMemRelease",  "cuMemMap",
        "cuMemUnmap", "cuMemSetAccess", "cuPointer",    "cuGraphCreate", "cuGraphDestroy"};
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        if (strncmp(name, without[i], strlen(without[i])) == 0) {
            return false;
        }
    }
    return !needs_nothing(name);
}

static CUresult enter(const char *name, bool freeing) {
    if (sim_in_host_function) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    pthread_mutex_lock(&sim_lock);
    CUresult result = CUDA_SUCCESS;
    if (!initialised && !needs_nothing(name)) {
        result = CUDA_ERROR_NOT_INITIALIZED;
    } else if (!freeing) {
        sim_counters.calls++;
        if (fail_at && --fail_at == 0) {
            result = fail_code;
        } else if (sim_sticky != CUDA_SUCCESS && needs_context(name)) {
            result = sim_sticky;
        }
    }
    if (result == CUDA_SUCCESS && needs_context(name) && !sim_current()) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    }
    if (result != CUDA_SUCCESS) {
        pthread_mutex_unlock(&sim_lock);
    }
    return result;
}

CUresult sim_begin(const char *name) { return enter(name, false); }

CUresult sim_begin_free(const char *name) { return enter(name, true); }

CUresult sim_end(CUresult result) {
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* ---- For tests ---- */

SIM_EXPORT void cudasim_seed(unsigned long long n) {
    pthread_mutex_lock(&sim_lock);
    seed(n);
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT void cudasim_fail_after(unsigned long long n, int code) {
    pthread_mutex_lock(&sim_lock);
    fail_at = n;
    fail_code = (CUresult)code;
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT void cudasim_get_counters(cudasim_counters *c) {
    pthread_mutex_lock(&sim_lock);
    sim_execs_bury();
    *c = sim_counters;
    sim_memory_count(c);
    c->live_streams = live[SIM_STREAM];
    c->live_events = live[SIM_EVENT];
    c->live_libraries = live[SIM_LIBRARY];
    c->live_execs = live[SIM_EXEC];
    c->live_graphs = live[SIM_GRAPH];
    for (int i = 0; i < SIM_DEVICES; i++) {
        c->live_contexts += sim_contexts[i].retained;
    }
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT void cudasim_reset_error(void) {
    pthread_mutex_lock(&sim_lock);
    sim_sticky = CUDA_SUCCESS;
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT int cudasim_last_text(char *text, unsigned int size) {
    pthread_mutex_lock(&sim_lock);
    int n = snprintf(text, size, "%s", last_text);
    pthread_mutex_unlock(&sim_lock);
    return n;
}

/* ---- Start, devices ---- */

CUresult cuInit(unsigned int flags) {
    SIM_BEGIN();
    start();
    if (flags) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (sim_n_devices == 0) {
        return sim_end(CUDA_ERROR_NO_DEVICE);
    }
    initialised = true;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version) {
    SIM_BEGIN();
    if (!version) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *version = 13000;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuDeviceGetCount(int *count) {
    SIM_BEGIN();
    if (!count) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *count = sim_n_devices;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    SIM_BEGIN();
    if (!device) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (ordinal < 0 || ordinal >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    }
    *device = ordinal;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
    SIM_BEGIN();
    if (!name || len <= 0) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (device < 0 || device >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    }
    snprintf(name, (size_t)len, "Emulated H200");
    return sim_end(CUDA_SUCCESS);
}

/* The values of an H200 (NVIDIA's data sheet and deviceQuery). */
static const struct {
    CUdevice_attribute id;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 39321600},
    {CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 134217728},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    SIM_BEGIN();
    if (!value) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (device < 0 || device >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    }
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if (attributes[i].id == attribute) {
            *value = attributes[i].value;
            return sim_end(CUDA_SUCCESS);
        }
    }
    return sim_end(CUDA_ERROR_INVALID_VALUE);
}

/* ---- Contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
    SIM_BEGIN();
    if (!ctx) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (device < 0 || device >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    }
    sim_contexts[device].retained++;
    *ctx = &sim_contexts[device];
    return sim_end(CUDA_SUCCESS);
}

/* The last release loses the context: what is queued runs out, and a sticky error ends. */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    SIM_BEGIN_FREE();
    if (device < 0 || device >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    }
    if (sim_contexts[device].retained == 0) {
        return sim_end(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (--sim_contexts[device].retained == 0) {
        sim_run_all();
        sim_sticky = CUDA_SUCCESS;
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    SIM_BEGIN();
    if (device < 0 || device >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    }
    sim_contexts[device].flags = flags;
    return sim_end(CUDA_SUCCESS);
}

static bool is_context(CUcontext ctx) { return ctx >= sim_contexts && ctx < sim_contexts + sim_n_devices; }

CUresult cuCtxSetCurrent(CUcontext ctx) {
    SIM_BEGIN();
    if (ctx && !is_context(ctx)) {
        return sim_end(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (ctx) {
        context_depth += context_depth == 0;
        context_stack[context_depth - 1] = ctx;
    } else if (context_depth) {
        context_depth--;
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *ctx) {
    SIM_BEGIN();
    if (!ctx) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *ctx = sim_current();
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    SIM_BEGIN();
    if (!is_context(ctx)) {
        return sim_end(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (context_depth == 16) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    context_stack[context_depth++] = ctx;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
    SIM_BEGIN_FREE();
    if (context_depth == 0) {
        return sim_end(CUDA_ERROR_INVALID_CONTEXT);
    }
    context_depth--;
    if (ctx) {
        *ctx = context_stack[context_depth];
    }
    return sim_end(CUDA_SUCCESS);
}

/* ---- Copies, fills, host functions ---- */

enum { TO_DEVICE, TO_HOST, ON_DEVICE };

static CUresult copy(int kind, void *dst, const void *src, size_t bytes, CUstream stream, bool wait) {
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return result;
    }
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    bool dst_device = sim_memory_is_device((CUdeviceptr)(uintptr_t)dst, bytes),
         dst_pinned = sim_memory_is_pinned(dst, bytes);
    bool src_device = sim_memory_is_device((CUdeviceptr)(uintptr_t)src, bytes),
         src_pinned = sim_memory_is_pinned(src, bytes);
    if (!dst || !src || (kind != TO_HOST && !dst_device && !dst_pinned) ||
        (kind != TO_DEVICE && !src_device && !src_pinned)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = sim_capture_implicit(s);
    if (wait && result == CUDA_SUCCESS) {
        result = sim_capture_unsafe();
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_copy c = {.dst = dst, .src = src, .width = bytes, .height = 1, .depth = 1};
    if (s->capture) {
        CUgraphNode node;
        result = sim_capture_add(s, CU_GRAPH_NODE_TYPE_MEMCPY, false, &node);
        if (result == CUDA_SUCCESS) {
            node->copy = (CUDA_MEMCPY3D){.srcMemoryType = kind == TO_DEVICE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                                         .srcHost = kind == TO_DEVICE ? src : NULL,
                                         .srcDevice = kind == TO_DEVICE ? 0 : (CUdeviceptr)(uintptr_t)src,
                                         .dstMemoryType = kind == TO_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                                         .dstHost = kind == TO_HOST ? dst : NULL,
                                         .dstDevice = kind == TO_HOST ? 0 : (CUdeviceptr)(uintptr_t)dst,
                                         .WidthInBytes = bytes,
                                         .Height = 1,
                                         .Depth = 1};
        }
        return result;
    }
    sim_op *op = sim_op_new(OP_COPY);
    op->copy = c;
    if (kind == TO_DEVICE && !src_device && !src_pinned && !wait) { /* pageable: read before the call returns */
        op->owned = sim_alloc(bytes, 1);
        memcpy(op->owned, src, bytes);
        op->copy.src = op->owned;
    }
    sim_op_retain(op);
    sim_stream_push(s, op, false);
    if (wait || (kind == TO_HOST && !dst_pinned && !dst_device)) { /* pageable: written before the call returns */
        result = sim_run_until(op);
    }
    sim_op_release(op);
    return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
    SIM_BEGIN();
    return sim_end(copy(TO_DEVICE, (void *)(uintptr_t)dst, src, bytes, stream, false));
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    SIM_BEGIN();
    return sim_end(copy(TO_HOST, dst, (const void *)(uintptr_t)src, bytes, stream, false));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    SIM_BEGIN();
    return sim_end(copy(ON_DEVICE, (void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, stream, false));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes) {
    SIM_BEGIN();
    return sim_end(copy(TO_DEVICE, (void *)(uintptr_t)dst, src, bytes, NULL, true));
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes) {
    SIM_BEGIN();
    return sim_end(copy(TO_HOST, dst, (const void *)(uintptr_t)src, bytes, NULL, true));
}

static CUresult fill(CUdeviceptr dst, unsigned int value, unsigned int size, size_t count, CUstream stream) {
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s || count == 0) {
        return result;
    }
    if (dst % size || !sim_memory_is_device(dst, count * size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = sim_capture_implicit(s);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUDA_MEMSET_NODE_PARAMS set = {
        .dst = dst, .value = value, .elementSize = size, .width = count, .height = 1, .pitch = 0};
    if (s->capture) {
        CUgraphNode node;
        result = sim_capture_add(s, CU_GRAPH_NODE_TYPE_MEMSET, false, &node);
        if (result == CUDA_SUCCESS) {
            node->set = set;
        }
        return result;
    }
    sim_op *op = sim_op_new(OP_SET);
    op->set = set;
    sim_stream_push(s, op, false);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
    SIM_BEGIN();
    return sim_end(fill(dst, value, 1, count, stream));
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream) {
    SIM_BEGIN();
    return sim_end(fill(dst, value, 4, count, stream));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s || !fn) {
        return sim_end(s ? CUDA_ERROR_INVALID_VALUE : result);
    }
    result = sim_capture_implicit(s);
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    if (s->capture) {
        CUgraphNode node;
        result = sim_capture_add(s, CU_GRAPH_NODE_TYPE_HOST, false, &node);
        if (result == CUDA_SUCCESS) {
            node->host = (CUDA_HOST_NODE_PARAMS_v2){fn, data};
        }
        return sim_end(result);
    }
    sim_op *op = sim_op_new(OP_HOST);
    op->host = fn;
    op->host_data = data;
    sim_stream_push(s, op, false);
    return sim_end(CUDA_SUCCESS);
}

/* ---- Errors and symbols ---- */

#define ERROR_LIST(E)                                                                                                  \
    E(CUDA_SUCCESS, "no error")                                                                                        \
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                                    \
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                       \
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                              \
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                                      \
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                             \
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                                      \
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                            \
    E(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")                        \
    E(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")                             \
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                            \
    E(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")                              \
    E(CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy")                                   \
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                                  \
    E(CUDA_ERROR_NOT_READY, "device not ready")                                                                        \
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                          \
    E(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                                            \
    E(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                                                         \
    E(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                                             \
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                          \
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                                             \
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                             \
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                       \
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")                \
    E(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")              \
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")                     \
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                                        \
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")                  \
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                                              \
      "operation would make the legacy stream depend on a capturing blocking stream")                                  \
    E(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")            \
    E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                                          \
      "attempt to terminate a thread-local capture sequence from another thread")                                      \
    E(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,                                                                            \
      "the graph update was not performed because it included changes which violated constraints")                     \
    E(CUDA_ERROR_UNKNOWN, "unknown error")

CUresult cuGetErrorName(CUresult error, const char **text) {
    switch (error) {
#define NAME(code, words)                                                                                              \
    case code: *text = #code; return CUDA_SUCCESS;
        ERROR_LIST(NAME)
#undef NAME
    default: *text = NULL; return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    switch (error) {
#define WORDS(code, words)                                                                                             \
    case code: *text = words; return CUDA_SUCCESS;
        ERROR_LIST(WORDS)
#undef WORDS
    default: *text = NULL; return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    SIM_BEGIN();
    (void)flags;
    void *found = NULL;
    /* The newest form of a name, as a request for 13.0 gives; the older ones of the list carry their suffix in `name`.
     * */
#define RP__CUDA_FN(need, name, exact, ret, args)                                                                      \
    if (!found && symbol && strcmp(symbol, #name) == 0) {                                                              \
        ret(*p) args = exact;                                                                                          \
        memcpy(&found, &p, sizeof found);                                                                              \
    }
#include "device/cuda/libcuda.def"
#undef RP__CUDA_FN
    if (!symbol || !fn || version < 2000) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *fn = found;
    if (status) {
        *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return sim_end(found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

/* Not part of the library's table: NVIDIA's NVRTC asks any loaded driver for its private tables, and goes without them
 * when there are none. (It asks by dlsym and does not expect the function to be absent.) */
SIM_EXPORT CUresult cuGetExportTable(const void **export_table, const void *id);
SIM_EXPORT CUresult cuGetExportTable(const void **export_table, const void *id) {
    (void)id;
    if (export_table) {
        *export_table = NULL;
    }
    return CUDA_ERROR_NOT_FOUND;
}
