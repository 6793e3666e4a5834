/* cuDNN: a row of the table of templates for convolutions, their input and weight gradients, of 1 to 3 spatial dims. A plan by problem is
 * chosen once by the library's heuristic, the first of its list that is allowed, and kept for the life of the process, so every run
 * of a problem, eager, captured and compiled, gives the same bits. Allowed is what is deterministic, adds up in f32 and wants no more workspace
 * than is given: of f32 without tensor cores, and never by Fourier transforms. A launch record holds the problem and the addresses; no
 * descriptor of the library is in it. Operands lie densely, by rows or with their channels innermost, each as it likes, at 16 bytes; a bias,
 * 64-bit places and everything else are our own rows'. Whose a problem is depends on its family (`times_of`): what the library takes by
 * itself against ours, which take what follows into their store. */
#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/log.h"
#include "device/cuda/cuda.h"
#include "device/cuda/offline.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/libcudnn.h"
#include "tensor/tensor.h"

enum { ALIGNMENT = 16, MOST_CONFIGS = 96, MOST_NOTES = 16, MOST_PLANS = 4096 };
/* Of workspace: so many bytes, and so many times those of the operands, which some engines turn first. */
static const size_t WORKSPACE = (size_t)32 << 20, WORKSPACE_TIMES = 4;

enum { Y, X, W, OPERANDS }; /* as rp__conv_sort has them; unique ids are these + 1 */

typedef struct dnn_problem { /* zeroed first, compared as bytes: the key of a plan */
    int32_t kind, dtype, spatial, device;
    int64_t last; /* bit k: operand k has its channels innermost */
    int64_t batch, channels, made, groups;
    int64_t in[3], out[3], window[3], stride[3], padding[3], dilation[3];
} dnn_problem;

typedef struct plan {
    cudnnBackendDescriptor_t execution; /* NULL: the library has none */
    size_t workspace;
} plan;

unsigned rp__cuda_dnn_use;

static rp__mutex lock = RP__MUTEX_INIT;
static rp__map plans; /* by the bytes of dnn_problem */
static cudnnHandle_t handles[RP__DEVICE_SLOTS];
static bool refused[RP__DEVICE_SLOTS]; /* the library does not work with the device */

/* ---- descriptors: made, filled and finished until something fails, which then stays */

typedef struct maker {
    const rp__libcudnn *dnn;
    cudnnStatus_t status;
    const char *call; /* that gave it */
    cudnnBackendDescriptor_t made[MOST_CONFIGS + 32];
    unsigned n;
} maker;

static void note(maker *m, cudnnStatus_t status, const char *call) {
    if (m->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    m->status = status;
    m->call = call;
}

static cudnnBackendDescriptor_t make(maker *m, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    if (m->status != CUDNN_STATUS_SUCCESS || m->n == sizeof m->made / sizeof *m->made) return NULL;
    note(m, m->dnn->cudnnBackendCreateDescriptor(type, &d), "cudnnBackendCreateDescriptor");
    if (m->status == CUDNN_STATUS_SUCCESS) m->made[m->n++] = d;
    return d;
}

static void set(maker *m, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
    if (m->status == CUDNN_STATUS_SUCCESS)
        note(m, m->dnn->cudnnBackendSetAttribute(d, name, type, count, elements), "cudnnBackendSetAttribute");
}

static void set_descriptor(maker *m, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value) {
    set(m, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(maker *m, cudnnBackendDescriptor_t d) {
    if (m->status == CUDNN_STATUS_SUCCESS) note(m, m->dnn->cudnnBackendFinalize(d), "cudnnBackendFinalize");
}

static void destroy_all(maker *m) {
    while (m->n) (void)m->dnn->cudnnBackendDestroyDescriptor(m->made[--m->n]);
}

/* What the library says of its last failure in this thread, which the text of the status begins. */
static rp_status fail(const maker *m) {
    char text[512] = "";
    if (m->dnn->cudnnGetLastErrorString) m->dnn->cudnnGetLastErrorString(text, sizeof text);
    const bool memory = m->status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                        m->status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    return rp__fail(memory ? RP_ERROR_OUT_OF_MEMORY : RP_ERROR_DRIVER, "%s gave %s%s%s", m->call,
                    m->dnn->cudnnGetErrorString(m->status), *text ? ": " : "", text);
}

/* ---- the problem */

/* Do the elements lie side by side, by rows or with their channels innermost? Dims of one place lie anyhow. */
static bool is_dense(const rp__operand *o, bool last) {
    int64_t stride = 1;
    for (unsigned k = 0; k < o->ndim; k++) { /* from the innermost one */
        const unsigned d = !last ? o->ndim - 1u - k : k == 0 ? 1 : k == o->ndim - 1u ? 0 : o->ndim - k;
        if (o->size[d] > 1 && o->stride[d] != stride) return false;
        stride *= o->size[d];
    }
    return true;
}

/* Which way operands lie; of those that lie both ways, as the others do. */
static bool find_layouts(const rp__operand *const *sorted, int64_t *last) {
    bool rows[OPERANDS], channels[OPERANDS], any_rows = false;
    for (unsigned k = 0; k < OPERANDS; k++) {
        rows[k] = is_dense(sorted[k], false), channels[k] = is_dense(sorted[k], true);
        if (!rows[k] && !channels[k]) return false;
        any_rows = any_rows || !channels[k];
    }
    for (unsigned k = 0; k < OPERANDS; k++)
        if (!rows[k] || (channels[k] && !any_rows)) *last |= INT64_C(1) << k;
    return true;
}

/* All but how operands lie. */
static bool read_sizes(const rp__problem *p, dnn_problem *out) {
    const rp__operand *sorted[OPERANDS];
    const rp__conv_geometry *conv = &p->call->conv;
    const rp_dtype dtype = p->o[0].dtype;
    memset(out, 0, sizeof *out);
    if (p->n > OPERANDS || (dtype != RP_F32 && dtype != RP_F16 && dtype != RP_BF16)) return false;
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    if (e.m == 0 || e.n == 0 || e.k == 0 || e.groups == 0) return false;
    out->kind = (int32_t)e.kind;
    out->dtype = (int32_t)dtype;
    out->device = p->device->id.index;
    out->batch = e.batch;
    out->channels = sorted[X]->size[1];
    out->made = sorted[W]->size[0];
    out->groups = e.groups;
    /* a line is a picture of one row: engines of one dim there are none */
    const unsigned rows = e.spatial == 1;
    out->spatial = (int32_t)(e.spatial + rows);
    out->in[0] = out->out[0] = out->window[0] = out->stride[0] = out->dilation[0] = 1;
    for (unsigned k = 0; k < e.spatial; k++) {
        if (conv->padding[k] < 0) return false;
        out->in[rows + k] = sorted[X]->size[2 + k];
        out->out[rows + k] = sorted[Y]->size[2 + k];
        out->window[rows + k] = sorted[W]->size[2 + k];
        out->stride[rows + k] = conv->stride[k];
        out->padding[rows + k] = conv->padding[k];
        out->dilation[rows + k] = conv->dilation[k];
    }
    return true;
}

static bool read_problem(const rp__problem *p, dnn_problem *out) {
    const rp__operand *sorted[OPERANDS];
    if (!read_sizes(p, out)) return false;
    (void)rp__conv_sort(p, sorted);
    return find_layouts(sorted, &out->last) && !rp__conv_is_wide(sorted, &p->call->conv);
}

static bool is_aligned(const rp__problem *p) {
    for (unsigned k = 0; k < OPERANDS; k++)
        if ((uintptr_t)p->o[k].base % ALIGNMENT) return false;
    return true;
}

/* Sizes of operand k. */
static void sizes_of(const dnn_problem *q, unsigned k, int64_t *size) {
    size[0] = k == W ? q->made : q->batch;
    size[1] = k == Y ? q->made : k == X ? q->channels : q->channels / q->groups;
    memcpy(&size[2], k == Y ? q->out : k == X ? q->in : q->window, (size_t)q->spatial * sizeof *size);
}

static cudnnDataType_t data_type(const dnn_problem *q) {
    return q->dtype == RP_F16 ? CUDNN_DATA_HALF : q->dtype == RP_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

static size_t bytes_of(const dnn_problem *q, unsigned k) {
    int64_t size[5], n = 1;
    sizes_of(q, k, size);
    for (int d = 0; d < 2 + q->spatial; d++) n *= size[d];
    return (size_t)n * rp__dtype_bytes((rp_dtype)q->dtype);
}

/* A channel a group: of the engines those that turn their operands first, or spread them out, are slower than ours. */
static bool is_depthwise(const dnn_problem *q) { return q->groups == q->channels && q->made == q->groups; }

static size_t most_workspace(const dnn_problem *q) {
    const size_t bytes = bytes_of(q, Y) + bytes_of(q, X) + bytes_of(q, W);
    return is_depthwise(q) ? WORKSPACE + bytes / 4 : WORKSPACE + WORKSPACE_TIMES * bytes;
}

/* ---- plans */

static cudnnBackendDescriptor_t tensor(maker *m, const dnn_problem *q, unsigned k) {
    cudnnBackendDescriptor_t d = make(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = data_type(q);
    const int64_t n = 2 + q->spatial, id = (int64_t)k + 1, alignment = ALIGNMENT;
    rp__operand o = {.ndim = (uint8_t)n};
    sizes_of(q, k, o.size);
    int64_t stride[RP_MAX_DIMS], step = 1;
    if (q->last >> k & 1) {
        rp__channels_innermost(&o, stride);
    } else {
        for (unsigned i = o.ndim; i-- > 0; step *= o.size[i]) stride[i] = step;
    }
    set(m, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(m, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, n, o.size);
    set(m, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, n, stride);
    set(m, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(m, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    finish(m, d);
    return d;
}

static cudnnBackendDescriptor_t convolution(maker *m, const dnn_problem *q) {
    cudnnBackendDescriptor_t d = make(m, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t n = q->spatial;
    set(m, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n);
    set(m, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(m, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(m, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, n, q->padding);
    set(m, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, n, q->padding);
    set(m, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, n, q->dilation);
    set(m, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, n, q->stride);
    finish(m, d);
    return d;
}

/* The one operation, as a graph. */
static cudnnBackendDescriptor_t graph_of(maker *m, const dnn_problem *q, cudnnHandle_t handle) {
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t convolution, alpha, beta, operand[OPERANDS];
    } forms[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W}},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W}},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW}},
    };
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t operands[OPERANDS], windows = convolution(m, q);
    for (unsigned k = 0; k < OPERANDS; k++) operands[k] = tensor(m, q, k);
    cudnnBackendDescriptor_t op = make(m, forms[q->kind].type);
    set_descriptor(m, op, forms[q->kind].convolution, windows);
    for (unsigned k = 0; k < OPERANDS; k++) set_descriptor(m, op, forms[q->kind].operand[k], operands[k]);
    set(m, op, forms[q->kind].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    set(m, op, forms[q->kind].beta, CUDNN_TYPE_FLOAT, 1, &zero);
    finish(m, op);
    cudnnBackendDescriptor_t graph = make(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(m, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_descriptor(m, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
    finish(m, graph);
    return graph;
}

static bool is_numerical(rp_dtype dtype, int32_t value) {
    switch ((cudnnBackendNumericalNote_t)value) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: return dtype != RP_F32;
    case CUDNN_NUMERICAL_NOTE_WINOGRAD:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6: return dtype == RP_F32;
    default: return false; /* plain loops, which promise NaN where it belongs; and what later versions may say */
    }
}

/* May sums be made so? An engine says what it does to numbers, and what it asks for. One that is compiled now costs as long as the
 * library's opening: where a channel is a group there are no others as good. */
static bool is_allowed(const rp__libcudnn *dnn, cudnnBackendDescriptor_t config, const dnn_problem *q) {
    maker m = {.dnn = dnn};
    int32_t notes[MOST_NOTES];
    int64_t n = 0;
    cudnnBackendDescriptor_t engine = make(&m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (m.status == CUDNN_STATUS_SUCCESS)
        note(&m,
             dnn->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                           &engine),
             "cudnnBackendGetAttribute");
    bool allowed = m.status == CUDNN_STATUS_SUCCESS && n == 1;
    if (allowed) {
        note(&m,
             dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                           MOST_NOTES, &n, notes),
             "cudnnBackendGetAttribute");
        allowed = m.status == CUDNN_STATUS_SUCCESS && n <= MOST_NOTES;
        for (int64_t k = 0; allowed && k < n; k++) allowed = is_numerical((rp_dtype)q->dtype, notes[k]);
    }
    if (allowed) {
        note(&m,
             dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                           MOST_NOTES, &n, notes),
             "cudnnBackendGetAttribute");
        allowed = m.status == CUDNN_STATUS_SUCCESS && n <= MOST_NOTES;
        for (int64_t k = 0; allowed && k < n; k++)
            allowed = notes[k] == CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API ||
                      notes[k] == CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY ||
                      (notes[k] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION && is_depthwise(q));
    }
    destroy_all(&m);
    return allowed;
}

/* The plan of a configuration, if the library makes one that fits. */
static bool try_config(const rp__libcudnn *dnn, cudnnHandle_t handle, cudnnBackendDescriptor_t config, size_t most,
                       plan *out) {
    maker m = {.dnn = dnn};
    int64_t n = 0, bytes = 0;
    cudnnBackendDescriptor_t d = make(&m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(&m, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_descriptor(&m, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(&m, d);
    if (m.status == CUDNN_STATUS_SUCCESS)
        note(
            &m,
            dnn->cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes),
            "cudnnBackendGetAttribute");
    if (m.status != CUDNN_STATUS_SUCCESS || bytes < 0 || (size_t)bytes > most) {
        destroy_all(&m);
        return false;
    }
    out->execution = d;
    out->workspace = (size_t)bytes;
    return true;
}

/* The first configuration of the heuristic's list that is allowed and works. (There is another list of what works anyhow, of engines as slow
 * as plain loops: better than these are ours.) */
static bool try_list(maker *m, const dnn_problem *q, cudnnHandle_t handle, cudnnBackendDescriptor_t graph, plan *out) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t configs[MOST_CONFIGS];
    int64_t n = 0, got = 0;
    cudnnBackendDescriptor_t list = make(m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(m, list, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(m, list, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(m, list);
    if (m->status == CUDNN_STATUS_SUCCESS)
        note(m,
             m->dnn->cudnnBackendGetAttribute(list, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n,
                                              NULL),
             "cudnnBackendGetAttribute");
    if (n > MOST_CONFIGS) n = MOST_CONFIGS;
    for (int64_t k = 0; k < n; k++) configs[k] = make(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (m->status == CUDNN_STATUS_SUCCESS && n > 0)
        note(m,
             m->dnn->cudnnBackendGetAttribute(list, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n,
                                              &got, configs),
             "cudnnBackendGetAttribute");
    bool found = false;
    for (int64_t k = 0; m->status == CUDNN_STATUS_SUCCESS && !found && k < got && k < n; k++)
        found = is_allowed(m->dnn, configs[k], q) && try_config(m->dnn, handle, configs[k], most_workspace(q), out);
    return found;
}

/* No memory is an error; what the library refuses otherwise it has no plan for. */
static rp_status search(const dnn_problem *q, cudnnHandle_t handle, plan *out) {
    maker m = {.dnn = rp__libcudnn_get()};
    rp_status status = RP_OK;
    (void)try_list(&m, q, handle, graph_of(&m, q, handle), out);
    if (m.status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        m.status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        status = fail(&m);
    else if (!out->execution)
        rp__log(RP__LOG_KERNEL, "cuDNN has no plan for a convolution: %s gave %s", m.call ? m.call : "its heuristic",
                m.call ? m.dnn->cudnnGetErrorString(m.status) : "none that is allowed");
    destroy_all(&m);
    return status;
}

static cudnnHandle_t handle_of(rp__device *d) {
    const rp__libcudnn *dnn = rp__libcudnn_get();
    if (!handles[d->slot] && !refused[d->slot]) {
        cudnnStatus_t status = dnn->cudnnCreate(&handles[d->slot]);
        if (status != CUDNN_STATUS_SUCCESS) {
            refused[d->slot] = true;
            handles[d->slot] = NULL;
            rp__log(RP__LOG_KERNEL, "cuDNN: cudnnCreate gave %s: not used", dnn->cudnnGetErrorString(status));
        }
    }
    return handles[d->slot];
}

/* The plan of a problem; NULL: there is none, and a sticky error where one could not be made. */
static const plan *plan_of(rp__device *d, const dnn_problem *q) {
    const rp__hash key = rp__hash_bytes(q, sizeof *q, rp__hash_none());
    rp__lock(&lock);
    plan *p = rp__map_get(&plans, key);
    if (!p && plans.count < MOST_PLANS && rp__cuda_enter(d) == RP_OK) {
        const CUstreamCaptureMode mode = rp__cuda_relax(d);
        cudnnHandle_t handle = handle_of(d);
        p = rp__calloc(1, sizeof *p);
        if (!p) {
            (void)RP__OOM("a plan of cuDNN");
        } else if ((handle && search(q, handle, p) != RP_OK) || !rp__map_put(&plans, key, p)) {
            if (!rp_failed()) (void)RP__OOM("a plan of cuDNN");
            if (p->execution) (void)rp__libcudnn_get()->cudnnBackendDestroyDescriptor(p->execution);
            rp__free(p);
            p = NULL;
        }
        rp__cuda_unrelax(d, mode);
    }
    rp__unlock(&lock);
    return p && p->execution ? p : NULL;
}

/* ---- launches */

enum { WORKSPACE_WORD = OPERANDS, BYTES_WORD, PROBLEM_WORD };

static rp_status execute(const rp__launch *l, rp_stream *s, const plan *p) {
    static const int64_t ids[OPERANDS] = {Y + 1, X + 1, W + 1};
    maker m = {.dnn = rp__libcudnn_get()};
    void *operands[OPERANDS], *workspace = (void *)(uintptr_t)l->words[WORKSPACE_WORD];
    for (unsigned k = 0; k < OPERANDS; k++) operands[k] = (void *)(uintptr_t)l->words[k];
    cudnnHandle_t handle = handle_of(s->device);
    cudnnBackendDescriptor_t pack = make(&m, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&m, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, OPERANDS, ids);
    set(&m, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, OPERANDS, operands);
    set(&m, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finish(&m, pack);
    if (m.status == CUDNN_STATUS_SUCCESS) note(&m, m.dnn->cudnnSetStream(handle, s->native), "cudnnSetStream");
    if (m.status == CUDNN_STATUS_SUCCESS)
        note(&m, m.dnn->cudnnBackendExecute(handle, p->execution, pack), "cudnnBackendExecute");
    const rp_status status = m.status == CUDNN_STATUS_SUCCESS ? RP_OK : fail(&m);
    destroy_all(&m);
    return status;
}

/* The first run of an engine loads its kernels, which a capture refuses unless it is told not to. */
static rp_status enqueue(const rp__kernel *k, rp_stream *s, const rp__launch *l) {
    dnn_problem q;
    (void)k;
    memcpy(&q, &l->words[PROBLEM_WORD], sizeof q);
    const plan *p = plan_of(s->device, &q);
    if (!p) return rp_failed() ? rp_error_status() : rp__fail(RP_ERROR_INTERNAL, "%s: no plan of cuDNN", l->op);
    rp__lock(&lock); /* a handle is one thread's at a time */
    const CUstreamCaptureMode mode = rp__cuda_relax(s->device);
    const rp_status status = execute(l, s, p);
    rp__cuda_unrelax(s->device, mode);
    rp__unlock(&lock);
    return status;
}

/* ---- whose a problem is */

static bool everywhere; /* REPRISE_CUDNN=1 */

static void read_environment(void) {
    const char *wanted = rp__env("REPRISE_CUDNN");
    everywhere = wanted && strcmp(wanted, "1") == 0;
}

static bool is_forced(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
    return rp__cuda_dnn_use == RP__DNN_ALWAYS || (everywhere && rp__cuda_dnn_use != RP__DNN_NEVER);
}

/* us of our rows and of the library, on a device of 132 multiprocessors. */
typedef struct times {
    double ours, theirs;
} times;
static const times NEVER = {0, 1};

/* Winograd's transforms of 3 x 3 windows over tiles of 4 x 4 places: 36 products for 144, of operands that are 36 / 16 as large when they
 * have been through memory once more. */
static size_t transformed_bytes(const dnn_problem *q) {
    const int64_t tiles = q->batch * ((q->out[0] + 3) / 4) * ((q->out[1] + 3) / 4);
    return (size_t)(36 * 4 * tiles * (q->channels + q->made));
}
static bool has_transforms(const dnn_problem *q) {
    bool has = q->kind == 2 && q->dtype == RP_F32 && q->groups == 1 && q->spatial == 2;
    for (unsigned k = 0; k < 2; k++) has = has && q->window[k] == 3 && q->stride[k] == 1 && q->dilation[k] == 1;
    return has;
}

/* By family, measured on an H100 with cuDNN 9.14 (gpu_kernels --cudnn 0 and 1). Nothing follows a weight gradient in its kernel. Results and
 * input gradients are ours: what the library wins there is less than the pass that what follows would cost, but by Fourier transforms. */
static times times_of(const rp__problem *p, const dnn_problem *q) {
    static const double OURS = 27.5e6, PRODUCTS = 50e6, CACHE = 48e6, CACHED = 1.9e6, MOVED = 1.05e6,
                        DENSE_OURS = 270e6, DENSE_START = 15, DENSE = 450e6, DEPTH_OURS = 6e6, DEPTH = 10.5e6,
                        GROUPS_OURS = 31e6;
    const double flops = 2 * rp__problem_work(p);
    const bool last = q->last >> X & q->last >> Y & 1;
    if (q->kind != 2) return NEVER;
    if (has_transforms(q)) {
        const double room = (double)transformed_bytes(q), sums = 36 * 4 * (double)q->channels * (double)q->made,
                     read = (double)bytes_of(q, X) + (double)bytes_of(q, Y),
                     moved = read + 2 * room + 2 * sums + (q->last ? 2 * read : 0),
                     products = 2 * room / 4 / (double)(q->channels + q->made) * (double)q->channels * (double)q->made;
        return (times){flops / OURS, products / PRODUCTS + moved / (room + sums > CACHE ? MOVED : CACHED)};
    }
    if (q->dtype == RP_F32 || p->call->conv.spatial != 2) return NEVER; /* nobody has measured lines and volumes */
    if (q->groups == 1)                                                 /* of few channels nothing comes in vectors */
        return q->channels < 8 || q->made < 8 ? NEVER : (times){DENSE_START + flops / DENSE_OURS, flops / DENSE};
    /* Rows of ours for groups of few channels turn nothing, however operands lie; the library does, and loses by it where there is little to
       compute. Other groups have our rows of convolutions without groups, for which operands may be turned: who computes them must not
       depend on that. */
    if (is_depthwise(q))
        return last && q->stride[0] * q->stride[1] == 1 ? (times){flops / DEPTH_OURS, flops / DEPTH} : NEVER;
    const int64_t each = q->channels < q->made ? q->channels / q->groups : q->made / q->groups;
    if (each < 8 || (each < 16 && !last && rp__conv_is_grouped(p))) return NEVER;
    return (times){flops / GROUPS_OURS, flops / (each < 16 ? 40e6 : each < 32 ? 65e6 : 100e6)};
}

/* The library's launches are several, and its opening is a matter for large works. */
static bool is_sooner(const rp__problem *p, const dnn_problem *q) {
    enum { LAUNCH_US = 5, LEAST_US = 20 };
    if (rp__cuda_dnn_use == RP__DNN_NEVER || is_forced()) return is_forced();
    const times t = times_of(p, q);
    const double device = 132 / (double)p->device->multiprocessors;
    return t.ours * device > LEAST_US && t.theirs * device + LAUNCH_US < t.ours * device;
}

static bool is_available(void) { return !rp__cuda_offline() && rp__libcudnn_get() != NULL; }

static bool works_with(rp__device *d) {
    if (rp__cuda_enter(d) != RP_OK) return false;
    rp__lock(&lock);
    const CUstreamCaptureMode mode = rp__cuda_relax(d);
    const bool works = handle_of(d) != NULL;
    rp__cuda_unrelax(d, mode);
    rp__unlock(&lock);
    return works;
}

/* By sizes alone: of the families whose operands our rows turn none goes by how they lie. */
bool rp__cuda_dnn_wants(const rp__problem *p) {
    dnn_problem q;
    return read_sizes(p, &q) && is_sooner(p, &q) && is_available() && works_with(p->device);
}

/* A plan that wins by transforms keeps them in its workspace; other versions of the library have none, and what they have instead is slower than
 * ours. */
static bool serves(const rp__problem *p, size_t *workspace) {
    dnn_problem q;
    if (!read_problem(p, &q) || !is_aligned(p)) return false;
    const plan *found = plan_of(p->device, &q);
    if (!found || (!is_forced() && has_transforms(&q) && found->workspace < transformed_bytes(&q))) return false;
    *workspace = found->workspace;
    return true;
}

static double cost(const rp__problem *p) {
    dnn_problem q;
    return read_problem(p, &q) && is_sooner(p, &q) ? 0 : 1e300;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    static rp__kernel kernels[] = {
        {1, RP__KERNEL_CUDA_LIBRARY, {0x6375646e6e464f52u, 1}, "cudnnConvolutionForward", .enqueue = enqueue},
        {1, RP__KERNEL_CUDA_LIBRARY, {0x6375646e6e444154u, 1}, "cudnnConvolutionBackwardData", .enqueue = enqueue},
        {1, RP__KERNEL_CUDA_LIBRARY, {0x6375646e6e46494cu, 1}, "cudnnConvolutionBackwardFilter", .enqueue = enqueue},
    };
    const rp__operand *sorted[OPERANDS];
    dnn_problem q;
    if (!read_problem(p, &q)) return rp__fail(RP_ERROR_INTERNAL, "%s: no convolution of cuDNN", p->call->op);
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    for (unsigned k = 0; k < OPERANDS; k++)
        rp__operand_slot(sorted[k], k, k == e.kind ? RP__WRITE : RP__READ, buffer, out);
    buffer->words[BYTES_WORD] = workspace;
    RP_TRY(rp__workspace_slot(p->call, workspace, WORKSPACE_WORD, buffer, out));
    memcpy(&buffer->words[PROBLEM_WORD], &q, sizeof q);
    out->n_words = PROBLEM_WORD + sizeof q / sizeof(uint64_t);
    out->kernel = &kernels[e.kind];
    return RP_OK;
}

const rp__cuda_product_row rp__cuda_dnn_row = {.row = {.name = "cudnn",
                                                       .ops = RP__CUDA_CONVOLUTIONS,
                                                       .available = is_available,
                                                       .serves = serves,
                                                       .cost = cost,
                                                       .bind = bind}};
