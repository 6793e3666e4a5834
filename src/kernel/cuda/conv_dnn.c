/* cuDNN: a row of the table of templates for convolutions, their input and weight gradients, of 1 to 3 spatial dims. A plan by problem is
 * chosen once by the library's heuristic, the first of its list that is allowed, and kept for the life of the process, so every run
 * of a problem, eager, captured and compiled, gives the same bits. Allowed is what is deterministic, adds up in f32 and wants no more workspace
 * than is given: of f32 without tensor cores, and never by Fourier transforms. A launch record holds the problem and the addresses; no
 * descriptor of the library is in it. Operands lie densely at 16 bytes, those of 16 bits with their channels innermost, f32 by rows: whoever
 * has others copies them first (`rp__cuda_dnn_turned`). A bias, 64-bit places and everything else are our own rows'. Whose a problem is depends
 * on its family (`times_of`), by sizes and dtype alone: what the library takes by itself against ours, which take what follows into their
 * store. */
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
/* Of workspace: so many bytes, and so many times those of the operands, which some engines turn first; at the most a part of the device's
 * memory, of all that it has: what is free now is another in the next call. */
static const size_t WORKSPACE = (size_t)32 << 20, WORKSPACE_TIMES = 4, WORKSPACE_PART = 8;

enum { Y, X, W, OPERANDS }; /* as rp__conv_sort has them; unique ids are these + 1 */

typedef struct dnn_problem { /* zeroed first, compared as bytes: the key of a plan */
    int32_t kind, dtype, spatial, device;
    int64_t batch, channels, made, groups;
    int64_t in[3], out[3], window[3], stride[3], padding[3], dilation[3];
} dnn_problem;

typedef struct plan {
    cudnnBackendDescriptor_t execution; /* NULL: the library has none */
    size_t workspace;
    unsigned holders;
    bool compiled; /* its kernels were made now, and graphs may have them: they stay */
    bool dropped;  /* the last holder frees it */
} plan;

unsigned rp__cuda_dnn_use, rp__cuda_dnn_plans;

static rp__mutex lock = RP__MUTEX_INIT; /* of the plans; taken last */
static rp__map plans;                   /* by the bytes of dnn_problem */
static rp__hash kept[MOST_PLANS];       /* their keys from the oldest one on, in a ring */
static size_t first_kept, n_kept;

static rp__mutex library = RP__MUTEX_INIT; /* what has a handle is one thread's at a time */
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

/* What may be there the next time. */
static bool is_memory(cudnnStatus_t status) {
    return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
           status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

/* What a part failed by fails the whole only where it says nothing about the part. */
static void note_memory(maker *whole, const maker *part) {
    if (is_memory(part->status)) note(whole, part->status, part->call);
}

/* What the library says of its last failure in this thread, which the text of the status begins. */
static rp_status fail(const maker *m) {
    char text[512] = "";
    if (m->dnn->cudnnGetLastErrorString) m->dnn->cudnnGetLastErrorString(text, sizeof text);
    return rp__fail(is_memory(m->status) ? RP_ERROR_OUT_OF_MEMORY : RP_ERROR_DRIVER, "%s gave %s%s%s", m->call,
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

/* With channels innermost, or by rows? By the engines' wishes: those of tensor cores read channels side by side, transforms places. */
static bool has_channels_innermost(rp_dtype dtype) { return dtype != RP_F32; }

static bool lies_right(const rp__operand *o) {
    return (uintptr_t)o->base % ALIGNMENT == 0 && is_dense(o, has_channels_innermost(o->dtype));
}

/* Do operands that lie so need places of 64 bits? */
static bool is_wide(const rp__problem *p) {
    const rp__operand *sorted[OPERANDS];
    rp__operand dense[OPERANDS];
    (void)rp__conv_sort(p, sorted);
    for (unsigned k = 0; k < OPERANDS; k++) {
        dense[k] = *sorted[k];
        rp__channels_innermost(sorted[k], dense[k].stride); /* reaches as far by rows */
        sorted[k] = &dense[k];
    }
    return rp__conv_is_wide(sorted, &p->call->conv);
}

/* By sizes and dtype: how operands lie is of no account. */
static bool read_problem(const rp__problem *p, dnn_problem *out) {
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
    return !is_wide(p);
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

static size_t most_workspace(const rp__device *d, const dnn_problem *q) {
    const size_t bytes = bytes_of(q, Y) + bytes_of(q, X) + bytes_of(q, W),
                 wanted = WORKSPACE + (is_depthwise(q) ? bytes / 4 : WORKSPACE_TIMES * bytes);
    size_t memory = 0;
    if (rp__libcuda_get()->cuDeviceTotalMem(&memory, rp__cuda_of(d)->device) != CUDA_SUCCESS) return 0;
    return wanted < memory / WORKSPACE_PART ? wanted : memory / WORKSPACE_PART;
}

/* ---- plans */

static cudnnBackendDescriptor_t tensor(maker *m, const dnn_problem *q, unsigned k) {
    cudnnBackendDescriptor_t d = make(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = data_type(q);
    const int64_t n = 2 + q->spatial, id = (int64_t)k + 1, alignment = ALIGNMENT;
    rp__operand o = {.ndim = (uint8_t)n};
    sizes_of(q, k, o.size);
    int64_t stride[RP_MAX_DIMS], step = 1;
    if (has_channels_innermost((rp_dtype)q->dtype)) {
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

/* Of what an engine says that it does to numbers. Tiles of transforms that are larger lose more digits, and an engine may keep to itself how
 * large its are. */
static bool is_numerical(rp_dtype dtype, const int32_t *notes, int64_t n) {
    bool transforms = false, small = false;
    for (int64_t k = 0; k < n; k++) {
        switch ((cudnnBackendNumericalNote_t)notes[k]) {
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
            if (dtype == RP_F32) return false;
            break;
        case CUDNN_NUMERICAL_NOTE_WINOGRAD: transforms = true; break;
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4: transforms = small = true; break;
        default: return false; /* plain loops, which promise NaN where it belongs; and what later versions may say */
        }
    }
    return !transforms || (small && dtype == RP_F32);
}

static int64_t notes_of(maker *m, cudnnBackendDescriptor_t engine, cudnnBackendAttributeName_t name,
                        cudnnBackendAttributeType_t type, int32_t *notes) {
    int64_t n = 0;
    if (m->status == CUDNN_STATUS_SUCCESS)
        note(m, m->dnn->cudnnBackendGetAttribute(engine, name, type, MOST_NOTES, &n, notes),
             "cudnnBackendGetAttribute");
    return n;
}

/* May sums be made so? An engine says what it does to numbers, and what it asks for. One that is compiled now costs as long as the
 * library's opening: where a channel is a group there are no others as good. */
static bool is_allowed(maker *whole, cudnnBackendDescriptor_t config, const dnn_problem *q, bool *compiled) {
    maker m = {.dnn = whole->dnn};
    int32_t numerical[MOST_NOTES], behaviour[MOST_NOTES];
    int64_t n = 0;
    *compiled = false;
    cudnnBackendDescriptor_t engine = make(&m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (m.status == CUDNN_STATUS_SUCCESS)
        note(&m,
             m.dnn->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                             &engine),
             "cudnnBackendGetAttribute");
    const int64_t n_numerical =
                      notes_of(&m, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, numerical),
                  n_behaviour =
                      notes_of(&m, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, behaviour);
    bool allowed = m.status == CUDNN_STATUS_SUCCESS && n == 1 && n_numerical <= MOST_NOTES &&
                   n_behaviour <= MOST_NOTES && is_numerical((rp_dtype)q->dtype, numerical, n_numerical);
    for (int64_t k = 0; allowed && k < n_behaviour; k++) {
        *compiled = *compiled || behaviour[k] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
        allowed = behaviour[k] == CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API ||
                  behaviour[k] == CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY ||
                  (behaviour[k] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION && is_depthwise(q));
    }
    note_memory(whole, &m);
    destroy_all(&m);
    return allowed;
}

/* The plan of a configuration, if the library makes one that fits. */
static bool try_config(maker *whole, cudnnHandle_t handle, cudnnBackendDescriptor_t config, size_t most, plan *out) {
    maker m = {.dnn = whole->dnn};
    int64_t n = 0, bytes = 0;
    cudnnBackendDescriptor_t d = make(&m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(&m, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_descriptor(&m, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(&m, d);
    if (m.status == CUDNN_STATUS_SUCCESS)
        note(&m,
             m.dnn->cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                             &bytes),
             "cudnnBackendGetAttribute");
    if (m.status != CUDNN_STATUS_SUCCESS || bytes < 0 || (size_t)bytes > most) {
        note_memory(whole, &m);
        destroy_all(&m);
        return false;
    }
    out->execution = d;
    out->workspace = (size_t)bytes;
    return true;
}

/* The first configuration of the heuristic's list that is allowed and works. (There is another list of what works anyhow, of engines as slow
 * as plain loops: better than these are ours.) */
static bool try_list(maker *m, const dnn_problem *q, cudnnHandle_t handle, cudnnBackendDescriptor_t graph, size_t most,
                     plan *out) {
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
        found = is_allowed(m, configs[k], q, &out->compiled) && try_config(m, handle, configs[k], most, out);
    return found;
}

/* No memory is an error; what the library refuses otherwise it has no plan for. */
static rp_status search(const rp__device *device, const dnn_problem *q, cudnnHandle_t handle, plan *out) {
    maker m = {.dnn = rp__libcudnn_get()};
    rp_status status = RP_OK;
    (void)try_list(&m, q, handle, graph_of(&m, q, handle), most_workspace(device, q), out);
    if (is_memory(m.status))
        status = fail(&m);
    else if (!out->execution)
        rp__log(RP__LOG_KERNEL, "cuDNN has no plan for a convolution: %s gave %s", m.call ? m.call : "its heuristic",
                m.call ? m.dnn->cudnnGetErrorString(m.status) : "none that is allowed");
    destroy_all(&m);
    return status;
}

/* NULL: the library does not work with the device. */
static rp_status handle_of(rp__device *d, cudnnHandle_t *out) {
    maker m = {.dnn = rp__libcudnn_get(), .call = "cudnnCreate"};
    if (!handles[d->slot] && !refused[d->slot]) {
        m.status = m.dnn->cudnnCreate(&handles[d->slot]);
        if (m.status != CUDNN_STATUS_SUCCESS) {
            handles[d->slot] = NULL;
            if (is_memory(m.status)) return fail(&m);
            refused[d->slot] = true;
            rp__log(RP__LOG_KERNEL, "cuDNN: cudnnCreate gave %s: not used", m.dnn->cudnnGetErrorString(m.status));
        }
    }
    *out = handles[d->slot];
    return RP_OK;
}

static void free_plan(plan *p) {
    if (p->execution) (void)rp__libcudnn_get()->cudnnBackendDestroyDescriptor(p->execution);
    rp__free(p);
}

static plan *hold(rp__hash key) {
    rp__lock(&lock);
    plan *p = rp__map_get(&plans, key);
    if (p) p->holders++;
    rp__unlock(&lock);
    return p;
}

static void let_go(plan *p) {
    rp__lock(&lock);
    const bool last = --p->holders == 0 && p->dropped;
    rp__unlock(&lock);
    if (last) free_plan(p);
}

/* The oldest ones make room: a problem that comes again is searched for again, and finds the same. Those compiled here stay. */
static bool keep(rp__hash key, plan *p) {
    const size_t most = rp__cuda_dnn_plans ? rp__cuda_dnn_plans : MOST_PLANS;
    rp__lock(&lock);
    for (; n_kept >= most; n_kept--) {
        plan *old = rp__map_remove(&plans, kept[first_kept]);
        first_kept = (first_kept + 1) % MOST_PLANS;
        if (old && old->holders)
            old->dropped = true;
        else if (old)
            free_plan(old);
    }
    const bool put = rp__map_put(&plans, key, p);
    if (put && !p->compiled) kept[(first_kept + n_kept++) % MOST_PLANS] = key;
    rp__unlock(&lock);
    return put;
}

static rp_status make_plan(rp__device *d, const dnn_problem *q, rp__hash key, plan **out) {
    cudnnHandle_t handle = NULL;
    plan *p = rp__calloc(1, sizeof *p);
    if (!p) return RP__OOM("a plan of cuDNN");
    rp_status status = handle_of(d, &handle);
    p->holders = 1;
    if (status == RP_OK && handle) status = search(d, q, handle, p);
    if (status == RP_OK && !keep(key, p)) status = RP__OOM("a plan of cuDNN");
    if (status != RP_OK)
        free_plan(p);
    else
        *out = p;
    return status;
}

/* The plan of a problem, held; without execution: the library has none. Who looks for another plan does not wait for a search. */
static rp_status plan_of(rp__device *d, const dnn_problem *q, plan **out) {
    const rp__hash key = rp__hash_bytes(q, sizeof *q, rp__hash_none());
    rp_status status = RP_OK;
    *out = hold(key);
    if (*out) return RP_OK;
    RP_TRY(rp__cuda_enter(d));
    rp__lock(&library);
    *out = hold(key); /* another thread may have searched meanwhile */
    if (!*out) {
        const CUstreamCaptureMode mode = rp__cuda_relax(d);
        status = make_plan(d, q, key, out);
        rp__cuda_unrelax(d, mode);
    }
    rp__unlock(&library);
    return status;
}

/* ---- launches */

enum { WORKSPACE_WORD = OPERANDS, BYTES_WORD, PROBLEM_WORD };

static rp_status execute(const rp__launch *l, rp_stream *s, const plan *p) {
    static const int64_t ids[OPERANDS] = {Y + 1, X + 1, W + 1};
    maker m = {.dnn = rp__libcudnn_get()};
    void *operands[OPERANDS], *workspace = (void *)(uintptr_t)l->words[WORKSPACE_WORD];
    for (unsigned k = 0; k < OPERANDS; k++) operands[k] = (void *)(uintptr_t)l->words[k];
    cudnnHandle_t handle = handles[s->device->slot]; /* there, since the plan is */
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
    plan *p;
    RP_TRY(plan_of(s->device, &q, &p));
    rp_status status = RP_OK;
    rp__lock(&library);
    const CUstreamCaptureMode mode = rp__cuda_relax(s->device);
    if (p->execution)
        status = execute(l, s, p);
    else
        status = rp__fail(RP_ERROR_INTERNAL, "%s: no plan of cuDNN", l->op);
    rp__cuda_unrelax(s->device, mode);
    rp__unlock(&library);
    let_go(p);
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
 * input gradients are ours: what the library wins there is less than the pass that what follows would cost, but by Fourier transforms.
 * Copies of operands that lie otherwise are the library's time where our rows read them as they are: half of it, since either way is as
 * likely. */
static times times_of(const rp__problem *p, const dnn_problem *q) {
    static const double OURS = 27.5e6, PRODUCTS = 50e6, CACHE = 48e6, CACHED = 1.9e6, MOVED = 1.05e6,
                        DENSE_OURS = 270e6, DENSE_START = 15, DENSE = 450e6, DEPTH_OURS = 6e6, DEPTH = 10.5e6,
                        GROUPS_OURS = 31e6, COPY = 2.5, COPIED = 2e6;
    const double flops = 2 * rp__problem_work(p), read = (double)bytes_of(q, X) + (double)bytes_of(q, Y),
                 turned = (2 * COPY + 2 * read / COPIED) / 2;
    if (q->kind != 2 || (q->dtype == RP_F32 && rp__conv_on_tensor_cores(p))) return NEVER;
    if (has_transforms(q)) {
        const double room = (double)transformed_bytes(q), sums = 36 * 4 * (double)q->channels * (double)q->made,
                     moved = read + 2 * room + 2 * sums,
                     products = 2 * room / 4 / (double)(q->channels + q->made) * (double)q->channels * (double)q->made;
        return (times){flops / OURS, turned + products / PRODUCTS + moved / (room + sums > CACHE ? MOVED : CACHED)};
    }
    if (q->dtype == RP_F32 || p->call->conv.spatial != 2) return NEVER; /* nobody has measured lines and volumes */
    if (q->groups == 1)                                                 /* of few channels nothing comes in vectors */
        return q->channels < 8 || q->made < 8 ? NEVER : (times){DENSE_START + flops / DENSE_OURS, flops / DENSE};
    /* Other groups have our rows of convolutions without groups, for which operands are turned as for the library. */
    if (is_depthwise(q))
        return q->stride[0] * q->stride[1] == 1 ? (times){flops / DEPTH_OURS, turned + flops / DEPTH} : NEVER;
    const int64_t each = q->channels < q->made ? q->channels / q->groups : q->made / q->groups;
    if (each < 8) return NEVER;
    return (times){flops / GROUPS_OURS, (rp__conv_is_grouped(p) ? turned : 0) + flops / (each < 16   ? 40e6
                                                                                         : each < 32 ? 65e6
                                                                                                     : 100e6)};
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

/* A plan that wins by transforms keeps them in its workspace; other versions of the library have none, and what they have instead is slower than
 * ours. */
static rp_status find(const rp__problem *p, bool *serves, size_t *workspace) {
    dnn_problem q;
    plan *found;
    *serves = false;
    if (!read_problem(p, &q) || !is_sooner(p, &q) || !is_available()) return RP_OK;
    RP_TRY(plan_of(p->device, &q, &found));
    *serves = found->execution && (is_forced() || !has_transforms(&q) || found->workspace >= transformed_bytes(&q));
    *workspace = found->workspace;
    let_go(found);
    return RP_OK;
}

static bool serves(const rp__problem *p, size_t *workspace) {
    bool does;
    return find(p, &does, workspace) == RP_OK && does;
}

rp_status rp__cuda_dnn_turned(const rp__problem *p, bool *serves_it, rp__turned *out) {
    size_t workspace;
    RP_TRY(find(p, serves_it, &workspace));
    for (unsigned k = 0; *serves_it && k < OPERANDS; k++) {
        if (lies_right(&p->o[k])) continue;
        *(has_channels_innermost(p->o[k].dtype) ? &out->channels : &out->rows) |= 1u << k;
    }
    return RP_OK;
}

bool rp__cuda_dnn_is_everywhere(void) { return is_forced(); }

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
    bool right = read_problem(p, &q);
    for (unsigned k = 0; k < OPERANDS; k++) right = right && lies_right(&p->o[k]);
    if (!right) return rp__fail(RP_ERROR_INTERNAL, "%s: no convolution of cuDNN", p->call->op);
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
