/* CUDA devices: contexts, memory, streams, events, copies. One rp__device a GPU, over its primary context. Called through
 * rp__cuda_ops; graphs and captures are in graph.c, kernels in src/kernel/cuda/. */
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"
#include "core/log.h"
#include "device/capture.h"
#include "device/error_record.h"

/* What the floor above makes for this device; its types are not known here. */
extern const struct rp__loop_backend rp__cuda_loops; /* kernel/cuda/loops.c */
extern const struct rp__library rp__cuda_library;    /* kernel/cuda/library.c */
rp_status rp__cuda_user_kernel(rp__device *d, const char *op, const char *source, const char *entry,
                               const uint8_t *bytes, uint32_t n, rp__kernel **out); /* kernel/cuda/user.c */

/* ---- results ---- */

/* After these the context cannot be used again (CUDA driver API, descriptions of CUresult). */
static bool ends_context(CUresult r) {
    switch (r) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED: return true;
    default: return false;
    }
}

rp_status rp__cuda_status(rp__device *d, CUresult result, const char *call) {
    if (RP__LIKELY(result == CUDA_SUCCESS)) return RP_OK;
    const rp__libcuda *cu = rp__cuda_of(d)->cu;
    const char *name = NULL, *words = NULL;
    (void)cu->cuGetErrorName(result, &name);
    (void)cu->cuGetErrorString(result, &words);
    int length = (int)strcspn(call, "(");
    rp_status status = RP_ERROR_DRIVER;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        status = RP_ERROR_OUT_OF_MEMORY;
    else if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        status = RP_ERROR_CAPTURE;
    else if (ends_context(result)) {
        status = RP_ERROR_DEVICE_LOST;
        atomic_store(&d->lost, RP_ERROR_DEVICE_LOST);
    }
    return rp__fail(status, "%.*s on cuda:%d gave %s (%s)%s", length, call, (int)d->id.index,
                    name ? name : "an unknown error", words ? words : "",
                    status == RP_ERROR_DEVICE_LOST ? "; the device is lost to this process" : "");
}

CUstreamCaptureMode rp__cuda_relax(rp__device *d) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)rp__cuda_of(d)->cu->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void rp__cuda_unrelax(rp__device *d, CUstreamCaptureMode mode) {
    (void)rp__cuda_of(d)->cu->cuThreadExchangeStreamCaptureMode(&mode);
}

/* Queries, waits and what makes or ends streams and events: a capture that somebody else began, in this thread or in global mode in any,
   is ended by some of them although they touch none of its streams, and nobody tells us of such a capture. */
#define RELAXED(d, result, call)                                                                                       \
    do {                                                                                                               \
        CUstreamCaptureMode relaxed_from = rp__cuda_relax(d);                                                          \
        (result) = rp__cuda_of(d)->cu->call;                                                                           \
        rp__cuda_unrelax(d, relaxed_from);                                                                             \
    } while (0)

static rp_status wait_for(rp__device *d, CUstream s) {
    CUresult result;
    RELAXED(d, result, cuStreamSynchronize(s));
    return rp__cuda_status(d, result, "cuStreamSynchronize");
}

/* ---- opening ---- */

static int attribute(rp__device *d, CUdevice_attribute which) {
    int value = 0;
    rp__cuda *c = rp__cuda_of(d);
    return c->cu->cuDeviceGetAttribute(&value, which, c->device) == CUDA_SUCCESS ? value : 0;
}

static CUmemAllocationProp segment_properties(const rp__device *d) {
    const rp__cuda *c = rp__cuda_of(d);
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = c->device;
    p.requestedHandleTypes = c->shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    return p;
}

static rp_status open_context(rp__device *d) {
    rp__cuda *c = rp__cuda_of(d);
    CUcontext ctx = NULL;
    void *record = NULL;
    /* spinning costs a core while it waits, and saves about 10 us a wait */
    (void)c->cu->cuDevicePrimaryCtxSetFlags(c->device, CU_CTX_SCHED_SPIN);
    RP_TRY(RP__CU(d, cuDevicePrimaryCtxRetain(&ctx, c->device)));
    rp_status status = RP__CU(d, cuCtxSetCurrent(ctx));
    /* kernels write errors straight into host memory: the host reads them without asking the device */
    if (status == RP_OK) {
        CUresult result;
        RELAXED(d, result,
                cuMemHostAlloc(&record, sizeof *d->errors, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
        status = rp__cuda_status(d, result, "cuMemHostAlloc");
    }
    if (status != RP_OK) {
        (void)c->cu->cuDevicePrimaryCtxRelease(c->device);
        return status;
    }
    memset(record, 0, sizeof *d->errors);
    d->errors = record;
    const char *vmm = rp__env("REPRISE_CUDA_VMM");
    if (attribute(d, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) && !(vmm && !strcmp(vmm, "0"))) {
        c->shareable = attribute(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
        CUmemAllocationProp p = segment_properties(d);
        if (c->cu->cuMemGetAllocationGranularity(&c->granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
            c->granularity = 0;
    }
    c->programmatic = d->arch >= 90 && c->cu->cuGraphAddNode;
    c->ctx = ctx;
    return RP_OK;
}

/* The driver does not survive a fork: every device is lost to the child, with a reason of its own. */
static bool forked;
static rp__device *known_devices; /* of the last rp__cuda_devices; `known` of them */
static size_t known;
static void lose_after_fork(void) {
    forked = known > 0;
    for (size_t k = 0; k < known; k++) {
        static rp__error_record none; /* the pinned one is not mapped in the child */
        pthread_mutex_t fresh = RP__MUTEX_INIT;
        ((rp__cuda *)known_devices[k].native)->lock = fresh;
        known_devices[k].errors = &none;
        atomic_store(&known_devices[k].lost, RP_ERROR_DEVICE_LOST);
    }
}

rp_status rp__cuda_enter(rp__device *d) {
    rp__cuda *c = rp__cuda_of(d);
    if (RP__UNLIKELY(atomic_load_explicit(&d->lost, memory_order_relaxed)))
        return forked ? rp__fail(RP_ERROR_DEVICE_LOST,
                                 "cuda:%d cannot be used in this process: it was forked after CUDA had been used; fork "
                                 "before the first use, or start the process anew (posix_spawn)",
                                 (int)d->id.index)
                      : rp__fail(RP_ERROR_DEVICE_LOST, "cuda:%d was lost to this process by an earlier error",
                                 (int)d->id.index);
    CUcontext ctx = atomic_load_explicit(&c->ctx, memory_order_acquire), now = NULL;
    if (RP__UNLIKELY(!ctx)) {
        rp__lock(&c->lock);
        rp_status status = c->ctx ? RP_OK : open_context(d);
        ctx = c->ctx;
        rp__unlock(&c->lock);
        RP_TRY(status);
    }
    if (c->cu->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == ctx) return RP_OK;
    return RP__CU(d, cuCtxSetCurrent(ctx));
}

bool rp__cuda_enter_to_free(rp__device *d) {
    rp__cuda *c = rp__cuda_of(d);
    CUcontext now = NULL;
    if (atomic_load(&d->lost) || !c->ctx) return false;
    if (c->cu->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == c->ctx) return true;
    return c->cu->cuCtxSetCurrent(c->ctx) == CUDA_SUCCESS;
}

static const rp__device_ops rp__cuda_ops;

/* What the rest of the library decides by: a wrong answer would choose wrong kernels, so every failure counts. */
static CUresult describe(rp__device *d, int ordinal) {
    rp__cuda *c = rp__cuda_of(d);
    const rp__libcuda *cu = c->cu;
    int shared = 0, major = 0, minor = 0;
    CUresult result = cu->cuDeviceGet(&c->device, ordinal);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&d->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, c->device);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, c->device);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, c->device);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, c->device);
    d->shared_limit = (size_t)shared;
    d->arch = major * 10 + minor;
    d->clusters = d->arch >= 90;
    if (cu->cuDeviceGetName(d->label, (int)sizeof d->label, c->device) != CUDA_SUCCESS)
        (void)snprintf(d->label, sizeof d->label, "CUDA device %d", ordinal);
    return result;
}

rp_status rp__cuda_devices(rp__device **out, size_t *n, const char **why) {
    static char reason[256];
    static rp__device *devices;
    static size_t count;
    int found = 0;
    *n = 0;
    *out = NULL;
    const rp__libcuda *cu = rp__libcuda_get();
    if (!cu) {
        *why = "no CUDA driver: libcuda could not be loaded (`reprise doctor` says why)";
        return RP_OK;
    }
    CUresult result = cu->cuInit(0);
    if (result == CUDA_SUCCESS) result = cu->cuDeviceGetCount(&found);
    if (result != CUDA_SUCCESS || found <= 0) {
        const char *words = NULL;
        (void)cu->cuGetErrorString(result, &words);
        (void)snprintf(reason, sizeof reason, "the CUDA driver reports no device%s%s",
                       result == CUDA_SUCCESS ? "" : ": ",
                       result == CUDA_SUCCESS ? ""
                       : words                ? words
                                              : "unknown error");
        *why = reason;
        return RP_OK;
    }
    if (!devices) {
        rp__cuda *states = rp__calloc((size_t)found, sizeof *states);
        devices = rp__calloc((size_t)found, sizeof *devices);
        if (!states || !devices) {
            rp__free(states);
            rp__free(devices);
            devices = NULL;
            return RP__OOM("CUDA devices");
        }
        for (int k = 0; k < found && k < RP__DEVICE_SLOTS - 1; k++) {
            rp__device *d = &devices[count];
            rp__cuda *c = &states[count];
            pthread_mutex_t fresh = RP__MUTEX_INIT;
            d->native = c;
            d->id = (rp_device){RP_DEVICE_CUDA, (int32_t)count};
            d->ops = &rp__cuda_ops;
            c->cu = cu;
            c->lock = fresh;
            result = describe(d, k);
            if (result != CUDA_SUCCESS) { /* a device that cannot be asked what it is cannot be used */
                const char *words = NULL;
                (void)cu->cuGetErrorString(result, &words);
                (void)snprintf(reason, sizeof reason, "the CUDA driver cannot tell what device %d is: %s", k,
                               words ? words : "unknown error");
                continue;
            }
            d->slot = 1u + (unsigned)count++;
        }
        known_devices = devices;
        known = count;
        rp__fork_handler_add(lose_after_fork);
    }
    *out = devices;
    *n = count;
    if (count == 0) *why = reason;
    return RP_OK;
}

/* ---- memory ---- */

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

static rp_status segment_map(rp__device *d, size_t bytes, CUdeviceptr *out) {
    rp__cuda *c = rp__cuda_of(d);
    CUmemAllocationProp p = segment_properties(d);
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, c->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    CUresult result = c->cu->cuMemCreate(&handle, bytes, &p, 0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY &&
        c->shareable) { /* some containers refuse handles */
        c->shareable = false;
        p = segment_properties(d);
        result = c->cu->cuMemCreate(&handle, bytes, &p, 0);
    }
    RP_TRY(rp__cuda_status(d, result, "cuMemCreate"));
    rp_status status = RP__CU(d, cuMemAddressReserve(&at, bytes, 0, 0, 0));
    bool mapped = false;
    if (status == RP_OK) {
        status = RP__CU(d, cuMemMap(at, bytes, 0, handle, 0));
        mapped = status == RP_OK;
    }
    if (status == RP_OK) status = RP__CU(d, cuMemSetAccess(at, bytes, &access, 1));
    (void)c->cu->cuMemRelease(handle); /* the mapping keeps the memory */
    if (status != RP_OK) {
        if (mapped) (void)c->cu->cuMemUnmap(at, bytes);
        if (at) (void)c->cu->cuMemAddressFree(at, bytes);
        return status;
    }
    *out = at;
    return RP_OK;
}

static rp_status segment_alloc(rp__device *d, size_t bytes, void **out) {
    RP_TRY(rp__cuda_enter(d));
    rp__cuda *c = rp__cuda_of(d);
    CUdeviceptr at = 0;
    CUstreamCaptureMode mode = rp__cuda_relax(d);
    rp_status status =
        c->granularity ? segment_map(d, round_up(bytes, c->granularity), &at) : RP__CU(d, cuMemAlloc(&at, bytes));
    rp__cuda_unrelax(d, mode);
    *out = (void *)(uintptr_t)at;
    return status;
}

static void segment_free(rp__device *d, void *p, size_t bytes) {
    rp__cuda *c = rp__cuda_of(d);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    if (!p || !rp__cuda_enter_to_free(d)) return;
    CUstreamCaptureMode mode = rp__cuda_relax(d);
    if (c->granularity) {
        /* unlike cuMemFree, unmapping does not wait for work that still uses the memory */
        (void)c->cu->cuCtxSynchronize();
        (void)c->cu->cuMemUnmap(at, round_up(bytes, c->granularity));
        (void)c->cu->cuMemAddressFree(at, round_up(bytes, c->granularity));
    } else {
        (void)c->cu->cuMemFree(at);
    }
    rp__cuda_unrelax(d, mode);
}

/* ---- streams and events ---- */

static CUstream native(const rp_stream *s) { return s->native; }

static rp_status stream_create(rp__device *d, rp_stream *s) {
    CUstream stream = NULL;
    CUresult result;
    RP_TRY(rp__cuda_enter(d));
    RELAXED(d, result, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    s->native = stream;
    return rp__cuda_status(d, result, "cuStreamCreate");
}

static void stream_destroy(rp__device *d, rp_stream *s) {
    if ((s->native || s->foreign) && rp__cuda_enter_to_free(d)) {
        /* The driver would destroy it behind its work, and memory that was freed in its order is about to be used by others. */
        CUresult ignored;
        RELAXED(d, ignored, cuStreamSynchronize(native(s)));
        if (!s->foreign) RELAXED(d, ignored, cuStreamDestroy(native(s)));
        (void)ignored;
    }
    s->native = NULL;
}

static rp_status stream_synchronize(rp__device *d, rp_stream *s) {
    RP_TRY(rp__cuda_enter(d));
    RP_TRY(rp__capture_forbid(s, "waiting for a stream"));
    RP_TRY(wait_for(d, native(s)));
    return rp__error_record_check(d);
}

static bool stream_query(rp__device *d, rp_stream *s) {
    if (rp__cuda_enter(d) != RP_OK || rp__capture_forbid(s, "querying a stream") != RP_OK) return false;
    CUresult result;
    RELAXED(d, result, cuStreamQuery(native(s)));
    if (result != CUDA_ERROR_NOT_READY) (void)rp__cuda_status(d, result, "cuStreamQuery");
    return result == CUDA_SUCCESS;
}

static rp_status stream_wait_event(rp__device *d, rp_stream *s, rp_event *e) {
    RP_TRY(rp__cuda_enter(d));
    return RP__CU(d, cuStreamWaitEvent(native(s), e->native, 0));
}

static rp_status event_create(rp__device *d, rp_event *e) {
    CUevent event = NULL;
    CUresult result;
    RP_TRY(rp__cuda_enter(d));
    RELAXED(d, result, cuEventCreate(&event, e->timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
    e->native = event;
    return rp__cuda_status(d, result, "cuEventCreate");
}

static void event_destroy(rp__device *d, rp_event *e) {
    CUresult ignored = CUDA_SUCCESS;
    if (e->native && rp__cuda_enter_to_free(d)) RELAXED(d, ignored, cuEventDestroy(e->native));
    (void)ignored;
    e->native = NULL;
}

static rp_status event_record(rp__device *d, rp_event *e, rp_stream *s) {
    RP_TRY(rp__cuda_enter(d));
    return RP__CU(d, cuEventRecord(e->native, native(s)));
}

static rp_status event_synchronize(rp__device *d, rp_event *e) {
    CUresult result;
    RP_TRY(rp__cuda_enter(d));
    RELAXED(d, result, cuEventSynchronize(e->native));
    RP_TRY(rp__cuda_status(d, result, "cuEventSynchronize"));
    return rp__error_record_check(d);
}

static bool event_query(rp__device *d, rp_event *e) {
    if (rp__cuda_enter(d) != RP_OK) return false;
    CUresult result;
    RELAXED(d, result, cuEventQuery(e->native));
    if (result != CUDA_ERROR_NOT_READY) (void)rp__cuda_status(d, result, "cuEventQuery");
    return result == CUDA_SUCCESS;
}

static double event_elapsed_ms(rp__device *d, rp_event *start, rp_event *end) {
    const rp__libcuda *cu = rp__cuda_of(d)->cu;
    float ms = -1;
    if (rp__cuda_enter(d) != RP_OK) return -1;
    CUresult result = cu->cuEventElapsedTime_v2 ? cu->cuEventElapsedTime_v2(&ms, start->native, end->native)
                                                : cu->cuEventElapsedTime(&ms, start->native, end->native);
    return rp__cuda_status(d, result, "cuEventElapsedTime") == RP_OK ? (double)ms : -1;
}

/* ---- work ---- */

static rp_status launch(rp__device *d, rp_stream *s, const rp__launch *l) {
    RP_TRY(rp__cuda_enter(d));
    RP_TRY(rp__cuda_enqueue(d, s, l));
    return s->capture ? rp__cuda_capture_note(d, s, l) : RP_OK;
}

rp_status rp__cuda_enqueue(rp__device *d, rp_stream *s, const rp__launch *l) {
    const rp__kernel *k = l->kernel;
    if (k->kind == RP__KERNEL_CUDA_LIBRARY) return k->enqueue(k, s, l);
    union {
        const uint64_t *words;
        void *param;
    } all = {.words = l->words};
    void *params[64] = {all.param};
    if (k->kind == RP__KERNEL_CUDA_USER) { /* one parameter a word; narrower ones lie in its low bytes */
        if (l->n_words > sizeof params / sizeof *params)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a CUDA kernel of a user's op takes at most %zu parameters",
                            l->op, sizeof params / sizeof *params);
        for (uint32_t w = 0; w < l->n_words; w++) {
            all.words = &l->words[w];
            params[w] = all.param;
        }
    }
    return RP__CU(d, cuLaunchKernel(k->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
                                    l->block[2], l->shared_bytes, native(s), params, NULL));
}

static rp_status copy_in(rp__device *d, rp_stream *s, void *dst, const void *host, size_t bytes) {
    RP_TRY(rp__cuda_enter(d));
    RP_TRY(rp__capture_forbid(s, "copying from host memory"));
    if (!bytes) return RP_OK;
    RP_TRY(RP__CU(d, cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)dst, host, bytes, native(s))));
    /* pageable memory has been staged on return; pinned memory may still be read */
    CUmemorytype type = (CUmemorytype)0;
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *answer = &type;
    RP_TRY(RP__CU(d, cuPointerGetAttributes(1, &asked, &answer, (CUdeviceptr)(uintptr_t)host)));
    return type == CU_MEMORYTYPE_HOST ? wait_for(d, native(s)) : RP_OK;
}

static rp_status copy_out(rp__device *d, rp_stream *s, void *host, const void *src, size_t bytes) {
    RP_TRY(rp__cuda_enter(d));
    RP_TRY(rp__capture_forbid(s, "copying to host memory"));
    if (bytes) RP_TRY(RP__CU(d, cuMemcpyDtoHAsync(host, (CUdeviceptr)(uintptr_t)src, bytes, native(s))));
    RP_TRY(wait_for(d, native(s)));
    return rp__error_record_check(d);
}

static rp_status fill(rp__device *d, rp_stream *s, void *dst, int byte, size_t bytes) {
    RP_TRY(rp__cuda_enter(d));
    if (!bytes) return RP_OK;
    return RP__CU(d, cuMemsetD8Async((CUdeviceptr)(uintptr_t)dst, (unsigned char)byte, bytes, native(s)));
}

static rp_status synchronize(rp__device *d) {
    RP_TRY(rp__cuda_enter(d));
    RP_TRY(RP__CU(d, cuCtxSynchronize()));
    return rp__error_record_check(d);
}

static const rp__device_ops rp__cuda_ops = {
    .name = "cuda",
    .segment_alloc = segment_alloc,
    .segment_free = segment_free,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_synchronize = event_synchronize,
    .event_query = event_query,
    .event_elapsed_ms = event_elapsed_ms,
    .launch = launch,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .fill = fill,
    .synchronize = synchronize,
    .capture_begin = rp__cuda_capture_begin,
    .capture_end = rp__cuda_capture_end,
    .capture_of_others = rp__cuda_capture_of_others,
    .capture_note_others = rp__cuda_capture_note_others,
    .graph_new = rp__cuda_graph_new,
    .graph_add = rp__cuda_graph_add,
    .graph_instantiate = rp__cuda_graph_instantiate,
    .graph_choice_new = rp__cuda_graph_choice_new,
    .graph_choice_add = rp__cuda_graph_choice_add,
    .graph_launch = rp__cuda_graph_launch,
    .graph_set_words = rp__cuda_graph_set_words,
    .graph_nodes = rp__cuda_graph_nodes,
    .graph_count = rp__cuda_graph_count,
    .graph_node = rp__cuda_graph_node,
    .graph_free = rp__cuda_graph_free,
    .loops = &rp__cuda_loops,
    .library = &rp__cuda_library,
    .user_kernel = rp__cuda_user_kernel,
};
