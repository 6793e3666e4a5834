/* The emulated cuDNN: the descriptors of cudnn_api.h for one convolution or one of its gradients, as one kernel of a stream of the
 * emulated driver (capturable), in plain loops that add up in f32 in an order of their own. What the real library refuses of them is
 * refused here, and a descriptor that lacks an attribute says which. The heuristic's list begins with engines that a caller may not want,
 * with the notes that say so: each of them leaves results that are wrong. CUDASIM_CUDNN_VERSION: another version;
 * CUDASIM_CUDNN_FAIL=CALL: that call fails; CUDASIM_CUDNN_NO_MEMORY=CALL: cudnnCreate, or in a plan cudnnBackendFinalize, or of an engine
 * cudnnBackendGetAttribute, has none; CUDASIM_CUDNN_NONE=1: no engine for anything; CUDASIM_CUDNN_PLAIN=1: none with transforms. */
#include "kernel/cuda/cudnn_api.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudasim.h"

#define EXPORT __attribute__((visibility("default")))
#define RP__CUDNN_FN(need, name, symbol, ret, args) EXPORT ret symbol args;
#include "kernel/cuda/libcudnn.def"
#undef RP__CUDNN_FN

struct cudnnContext {
    cudaStream_t stream;
};

enum { MOST_ATTRIBUTES = 12, MOST_COUNT = 8, SPATIAL = 3 };

typedef struct attribute {
    int name, type;
    int64_t count;
    unsigned char bytes[MOST_COUNT * 8];
} attribute;

typedef struct descriptor {
    int type, n;
    bool finished;
    attribute at[MOST_ATTRIBUTES];
    struct convolved *work; /* of an operation, its graph and what is made of it */
    int engine, mode;       /* of configurations, engines and plans */
    int64_t workspace;
} descriptor;

typedef struct tensor {
    int data;
    int64_t id, n, size[SPATIAL + 2], stride[SPATIAL + 2];
} tensor;

typedef struct convolved {
    int kind; /* 0: forward, 1: input gradient, 2: weight gradient */
    int64_t spatial, groups, padding[SPATIAL], stride[SPATIAL], dilation[SPATIAL];
    tensor y, x, w;
} convolved;

/* ---- errors */

static _Thread_local char last[256];

static cudnnStatus_t refuse(cudnnStatus_t status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last, sizeof last, format, args);
    va_end(args);
    return status;
}

static bool is_to_fail(const char *call) {
    const char *wanted = getenv("CUDASIM_CUDNN_FAIL");
    return wanted && strcmp(wanted, call) == 0;
}
static bool has_no_memory(const char *call) {
    const char *wanted = getenv("CUDASIM_CUDNN_NO_MEMORY");
    return wanted && strcmp(wanted, call) == 0;
}
#define MAY_FAIL(call, status)                                                                                         \
    if (is_to_fail(call)) return refuse(status, "%s was to fail", call)

size_t cudnnGetVersion(void) {
    const char *wanted = getenv("CUDASIM_CUDNN_VERSION");
    return wanted ? strtoul(wanted, NULL, 10) : 91900;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (status / 1000) {
    case 0: return "CUDNN_STATUS_SUCCESS";
    case 1: return "CUDNN_STATUS_NOT_INITIALIZED";
    case 2: return "CUDNN_STATUS_BAD_PARAM";
    case 3: return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4: return "CUDNN_STATUS_INTERNAL_ERROR";
    default: return "CUDNN_STATUS_EXECUTION_FAILED";
    }
}

void cudnnGetLastErrorString(char *message, size_t max_size) {
    if (max_size) snprintf(message, max_size, "%s", last);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    MAY_FAIL("cudnnCreate", CUDNN_STATUS_NOT_INITIALIZED);
    *handle = has_no_memory("cudnnCreate") ? NULL : calloc(1, sizeof **handle);
    return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    if (!handle) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- attributes */

static size_t bytes_of(int type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_FLOAT:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_NUMERICAL_NOTE:
    case CUDNN_TYPE_BEHAVIOR_NOTE: return 4;
    default: return 8;
    }
}

/* Which type an attribute has; -1: none of these. */
static int type_of(int name) {
    switch (name) {
    case CUDNN_ATTR_CONVOLUTION_COMP_TYPE:
    case CUDNN_ATTR_TENSOR_DATA_TYPE: return CUDNN_TYPE_DATA_TYPE;
    case CUDNN_ATTR_CONVOLUTION_CONV_MODE: return CUDNN_TYPE_CONVOLUTION_MODE;
    case CUDNN_ATTR_CONVOLUTION_DILATIONS:
    case CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES:
    case CUDNN_ATTR_CONVOLUTION_POST_PADDINGS:
    case CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS:
    case CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS:
    case CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT:
    case CUDNN_ATTR_TENSOR_DIMENSIONS:
    case CUDNN_ATTR_TENSOR_STRIDES:
    case CUDNN_ATTR_TENSOR_UNIQUE_ID:
    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: return CUDNN_TYPE_INT64;
    case CUDNN_ATTR_ENGINEHEUR_MODE: return CUDNN_TYPE_HEUR_MODE;
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
    case CUDNN_ATTR_OPERATIONGRAPH_HANDLE: return CUDNN_TYPE_HANDLE;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA: return CUDNN_TYPE_FLOAT;
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE: return CUDNN_TYPE_VOID_PTR;
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
    case CUDNN_ATTR_OPERATIONGRAPH_OPS: return CUDNN_TYPE_BACKEND_DESCRIPTOR;
    default: return name / 100 == 7 ? CUDNN_TYPE_BACKEND_DESCRIPTOR : -1; /* operands and windows of operations */
    }
}

/* Attributes of a descriptor have its hundred. */
static int hundred_of(int type) {
    switch (type) {
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return 1;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return 2;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return 4;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: return 7;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return 8;
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return 9;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: return 10;
    default: return -1;
    }
}

static const attribute *find(const descriptor *d, int name) {
    for (int k = 0; d && k < d->n; k++)
        if (d->at[k].name == name) return &d->at[k];
    return NULL;
}

static int64_t integer(const descriptor *d, int name) {
    int64_t v = 0;
    const attribute *a = find(d, name);
    if (a) memcpy(&v, a->bytes, bytes_of(a->type));
    return v;
}

static descriptor *child(const descriptor *d, int name) {
    descriptor *v = NULL;
    const attribute *a = find(d, name);
    if (a) memcpy(&v, a->bytes, sizeof v);
    return v;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out) {
    MAY_FAIL("cudnnBackendCreateDescriptor", CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
    if (hundred_of((int)type) < 0 && type != CUDNN_BACKEND_ENGINE_DESCRIPTOR &&
        type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "descriptor type %d", (int)type);
    descriptor *d = calloc(1, sizeof *d);
    if (!d) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    d->type = (int)type;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor_) {
    descriptor *d = descriptor_;
    if (d) free(d->work);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor_, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
    descriptor *d = descriptor_;
    MAY_FAIL("cudnnBackendSetAttribute", CUDNN_STATUS_BAD_PARAM);
    if (!d || !elements) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d of nothing", (int)name);
    if (d->finished) return refuse(CUDNN_STATUS_BAD_PARAM, "attribute %d behind the end", (int)name);
    if ((int)name / 100 != hundred_of(d->type))
        return refuse(CUDNN_STATUS_BAD_PARAM, "descriptor %d has no attribute %d", d->type, (int)name);
    if ((int)type != type_of((int)name))
        return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is not of type %d", (int)name, (int)type);
    if (count < 1 || count > MOST_COUNT) return refuse(CUDNN_STATUS_BAD_PARAM, "%d elements", (int)count);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        const descriptor *value = *(descriptor *const *)elements;
        if (count != 1 || !value || !value->finished)
            return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d is not finished", (int)name);
    }
    int k = 0;
    while (k < d->n && d->at[k].name != (int)name) k++;
    if (k == MOST_ATTRIBUTES) return refuse(CUDNN_STATUS_INTERNAL_ERROR, "too many attributes");
    d->at[k] = (attribute){.name = (int)name, .type = (int)type, .count = count};
    memcpy(d->at[k].bytes, elements, (size_t)count * bytes_of((int)type));
    if (k == d->n) d->n++;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- finishing */

static cudnnStatus_t needs(const descriptor *d, const int *names, const int *counts, int n) {
    for (int k = 0; k < n; k++) {
        const attribute *a = find(d, names[k]);
        if (!a) return refuse(CUDNN_STATUS_BAD_PARAM, "descriptor %d lacks attribute %d", d->type, names[k]);
        if (counts[k] && a->count != counts[k])
            return refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "attribute %d has %d elements, not %d", names[k],
                          (int)a->count, counts[k]);
    }
    return CUDNN_STATUS_SUCCESS;
}
#define NEEDS(d, ...)                                                                                                  \
    do {                                                                                                               \
        static const int names_[] = {__VA_ARGS__};                                                                     \
        static const int counts_[sizeof names_ / sizeof *names_] = {0};                                                \
        const cudnnStatus_t status_ = needs(d, names_, counts_, (int)(sizeof names_ / sizeof *names_));                \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_;                                                           \
    } while (0)

static cudnnStatus_t finish_tensor(const descriptor *d) {
    NEEDS(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
          CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    const attribute *size = find(d, CUDNN_ATTR_TENSOR_DIMENSIONS), *stride = find(d, CUDNN_ATTR_TENSOR_STRIDES);
    const int64_t alignment = integer(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    if (size->count != stride->count || size->count < 3)
        return refuse(CUDNN_STATUS_BAD_PARAM, "%d sizes, %d strides", (int)size->count, (int)stride->count);
    if (alignment < 1 || (alignment & (alignment - 1))) return refuse(CUDNN_STATUS_BAD_PARAM, "alignment");
    for (int64_t k = 0; k < size->count; k++) {
        int64_t v[2];
        memcpy(&v[0], size->bytes + k * 8, 8);
        memcpy(&v[1], stride->bytes + k * 8, 8);
        if (v[0] < 1 || v[1] < 0)
            return refuse(CUDNN_STATUS_BAD_PARAM, "size %lld, stride %lld", (long long)v[0], (long long)v[1]);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_convolution(const descriptor *d) {
    NEEDS(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
          CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_ATTR_CONVOLUTION_DILATIONS,
          CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    const int spatial = (int)integer(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
    const int names[] = {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                         CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES};
    const int counts[] = {spatial, spatial, spatial, spatial};
    if (spatial < 2 || spatial > SPATIAL) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "%d spatial dims", spatial);
    if (integer(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT ||
        integer(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "sums of another type, or windows turned round");
    return needs(d, names, counts, 4);
}

static void read_tensor(const descriptor *d, tensor *out) {
    const attribute *size = find(d, CUDNN_ATTR_TENSOR_DIMENSIONS), *stride = find(d, CUDNN_ATTR_TENSOR_STRIDES);
    out->n = size->count;
    out->data = (int)integer(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
    out->id = integer(d, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    memcpy(out->size, size->bytes, (size_t)size->count * 8);
    memcpy(out->stride, stride->bytes, (size_t)size->count * 8);
}

static cudnnStatus_t finish_operation(descriptor *d) {
    enum {
        DATA = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        FILTER = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA
    };
    static const int names[3][6] = {
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W},
        {DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W},
        {FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW}};
    static const int any[6] = {0};
    const int kind = d->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? 0
                     : d->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? 1
                                                                                               : 2;
    const cudnnStatus_t status = needs(d, names[kind], any, 6);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    float one = 0, zero = 1;
    memcpy(&one, find(d, names[kind][0])->bytes, 4);
    memcpy(&zero, find(d, names[kind][1])->bytes, 4);
    if (one != 1 || zero != 0) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "alpha and beta");
    const descriptor *windows = child(d, names[kind][2]), *of[3];
    for (int k = 0; k < 3; k++) of[k] = child(d, names[kind][3 + k]);
    if (windows->type != CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR) return refuse(CUDNN_STATUS_BAD_PARAM, "no windows");
    convolved *c = d->work = calloc(1, sizeof *c);
    if (!c) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    c->kind = kind;
    c->spatial = integer(windows, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
    memcpy(c->padding, find(windows, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)->bytes, (size_t)c->spatial * 8);
    memcpy(c->stride, find(windows, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)->bytes, (size_t)c->spatial * 8);
    memcpy(c->dilation, find(windows, CUDNN_ATTR_CONVOLUTION_DILATIONS)->bytes, (size_t)c->spatial * 8);
    tensor *to[3] = {&c->y, &c->x, &c->w};
    for (int k = 0; k < 3; k++) {
        if (of[k]->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) return refuse(CUDNN_STATUS_BAD_PARAM, "no tensor");
        read_tensor(of[k], to[k]);
        if (to[k]->n != c->spatial + 2) return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "rank %d", (int)to[k]->n);
    }
    if (c->w.size[1] == 0 || c->x.size[1] % c->w.size[1])
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "groups");
    c->groups = c->x.size[1] / c->w.size[1];
    bool fits = c->y.size[0] == c->x.size[0] && c->y.size[1] == c->w.size[0] && c->w.size[0] % c->groups == 0 &&
                c->y.data == c->x.data && c->w.data == c->x.data && c->y.id != c->x.id && c->y.id != c->w.id &&
                c->x.id != c->w.id;
    for (int64_t k = 0; k < c->spatial; k++) {
        const int64_t reach = c->dilation[k] * (c->w.size[2 + k] - 1) + 1, room = c->x.size[2 + k] + 2 * c->padding[k];
        fits = fits && c->padding[k] >= 0 && c->stride[k] > 0 && c->dilation[k] > 0 && room >= reach &&
               c->y.size[2 + k] == (room - reach) / c->stride[k] + 1;
    }
    return fits ? CUDNN_STATUS_SUCCESS : refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "sizes do not fit");
}

static cudnnStatus_t inherit(descriptor *d, const descriptor *from) {
    d->work = malloc(sizeof *d->work);
    if (!d->work) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    *d->work = *from->work;
    d->engine = from->engine;
    return CUDNN_STATUS_SUCCESS;
}

/* Are the elements of a tensor side by side, by rows or with channels innermost? */
static bool is_dense(const tensor *t) {
    int64_t rows = 1, channels = t->size[1];
    bool by_rows = true, by_channels = t->size[1] == 1 || t->stride[1] == 1;
    for (int64_t k = t->n; k-- > 0; rows *= t->size[k]) by_rows = by_rows && (t->size[k] == 1 || t->stride[k] == rows);
    for (int64_t k = t->n; k-- > 2; channels *= t->size[k])
        by_channels = by_channels && (t->size[k] == 1 || t->stride[k] == channels);
    return by_rows || (by_channels && (t->size[0] == 1 || t->stride[0] == channels));
}

/* ---- engines */

static const struct engine {
    int mode; /* whose list */
    int numerical[3], behaviour;
    int n_numerical, n_behaviour;
    int64_t workspace;
    int refuses; /* finishing its plan */
} engines[] = {
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, 0, 0}, 0, 1, 0, 0, 0}, /* right for f16 and bf16 */
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, 0, 0}, 0, 1, 0, 0, 0},
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, 0, 0}, 0, 1, 0, 0, 0},
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_FFT, 0, 0}, 0, 1, 0, 0, 0},
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 0, 0}, 0, 1, 0, 0, 0},
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, 0}, 0, 2, 0, 0, 0},
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, 0}, 0, 2, 0, 0, 0},
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_WINOGRAD, 0, 0}, 0, 1, 0, 0, 0},
    {CUDNN_HEUR_MODE_A, {CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP, 0, 0}, 0, 1, 0, 0, 0},
    {CUDNN_HEUR_MODE_A,
     {0, 0, 0},
     CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION,
     0,
     1,
     0,
     0}, /* right where a channel is a group */
    {CUDNN_HEUR_MODE_A, {0, 0, 0}, 0, 0, 0, INT64_C(1) << 40, 0},
    {CUDNN_HEUR_MODE_A, {0, 0, 0}, 0, 0, 0, 0, 1},
    {CUDNN_HEUR_MODE_A,
     {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, 0},
     CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY,
     2,
     1,
     4096,
     0}, /* of f32 */
    {CUDNN_HEUR_MODE_A, {0, 0, 0}, 0, 0, 0, 0, 0},
    {CUDNN_HEUR_MODE_FALLBACK, {0, 0, 0}, 0, 0, 0, 0, 0},
};
enum { ENGINES = sizeof engines / sizeof *engines, COMPILED = 9, RIGHT = 12, FALLBACK = 14 };

static bool is_right(int engine, const convolved *c) {
    if (engine == 0) return c->x.data != CUDNN_DATA_FLOAT;
    if (engine == COMPILED) return c->groups == c->x.size[1] && c->groups == c->y.size[1];
    return engine >= RIGHT && engine < FALLBACK;
}

/* Weight gradients by Winograd's transforms keep them. */
static int64_t workspace_of(int engine, const convolved *c) {
    const bool transforms =
        engine == RIGHT && c->kind == 2 && c->spatial == 2 && c->w.size[2] == 3 && c->w.size[3] == 3;
    if (!transforms || getenv("CUDASIM_CUDNN_PLAIN")) return engines[engine].workspace;
    return 144 * c->x.size[0] * ((c->y.size[2] + 3) / 4) * ((c->y.size[3] + 3) / 4) * (c->x.size[1] + c->y.size[1]);
}

static int list_of(const descriptor *d, int *out) {
    int n = 0;
    if (getenv("CUDASIM_CUDNN_NONE")) return 0;
    for (int k = 0; k < ENGINES; k++)
        if (engines[k].mode == d->mode) out[n++] = k;
    return n;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor_) {
    descriptor *d = descriptor_;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    MAY_FAIL("cudnnBackendFinalize", CUDNN_STATUS_INTERNAL_ERROR);
    if (!d) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nothing to finish");
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: status = finish_tensor(d); break;
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: status = finish_convolution(d); break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: status = finish_operation(d); break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        NEEDS(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_OPS);
        status = inherit(d, child(d, CUDNN_ATTR_OPERATIONGRAPH_OPS));
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
        NEEDS(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE);
        const descriptor *graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        d->mode = (int)integer(d, CUDNN_ATTR_ENGINEHEUR_MODE);
        if (!is_dense(&graph->work->x) || !is_dense(&graph->work->y) || !is_dense(&graph->work->w))
            return refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "a layout without engines");
        status = inherit(d, graph);
        break;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
        NEEDS(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        if (has_no_memory("cudnnBackendFinalize"))
            return refuse(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "no memory for a plan");
        const descriptor *config = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        if (config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR || engines[config->engine].refuses)
            return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this engine has no plan");
        status = inherit(d, config);
        d->workspace = workspace_of(config->engine, config->work);
        break;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        NEEDS(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
              CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
        if (find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count != find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count)
            return refuse(CUDNN_STATUS_BAD_PARAM, "ids and pointers");
        break;
    default: return refuse(CUDNN_STATUS_NOT_SUPPORTED, "descriptor %d", d->type);
    }
    d->finished = status == CUDNN_STATUS_SUCCESS;
    return status;
}

static cudnnStatus_t give_notes(const int *notes, int n, int64_t requested, int64_t *count, void *elements) {
    *count = n;
    if (requested < n) n = (int)requested;
    if (n) memcpy(elements, notes, (size_t)n * sizeof *notes);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor_, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
                                       void *elements) {
    const descriptor *d = descriptor_;
    MAY_FAIL("cudnnBackendGetAttribute", CUDNN_STATUS_INTERNAL_ERROR);
    if (!d || !d->finished || !count) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d", (int)name);
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        int list[ENGINES];
        const int n = list_of(d, list);
        *count = n;
        if (requested == 0) return CUDNN_STATUS_SUCCESS;
        if (requested < n) *count = requested;
        for (int k = 0; k < *count; k++) {
            descriptor *config = ((descriptor **)elements)[k];
            if (!config || config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
                return refuse(CUDNN_STATUS_BAD_PARAM, "results want descriptors to be written to");
            free(config->work);
            if (inherit(config, d) != CUDNN_STATUS_SUCCESS) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
            config->engine = list[k];
            config->finished = true;
        }
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && requested == 1) {
        descriptor *engine = *(descriptor **)elements;
        if (!engine || engine->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR)
            return refuse(CUDNN_STATUS_BAD_PARAM, "an engine wants a descriptor to be written to");
        engine->engine = d->engine;
        engine->finished = true;
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    const struct engine *e = &engines[d->engine];
    if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && has_no_memory("cudnnBackendGetAttribute"))
        return refuse(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for notes");
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE)
        return give_notes(e->numerical, e->n_numerical, requested, count, elements);
    if (name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE && type == CUDNN_TYPE_BEHAVIOR_NOTE)
        return give_notes(&e->behaviour, e->n_behaviour, requested, count, elements);
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 && requested == 1) {
        memcpy(elements, &d->workspace, sizeof d->workspace);
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "attribute %d", (int)name);
}

/* ---- the kernel */

typedef struct job {
    convolved c;
    void *y, *x, *w, *workspace;
    int64_t workspace_bytes;
    bool right;
} job;

static float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    const uint32_t bits =
        exponent == 31 ? sign | 0x7f800000u | mantissa << 13 : sign | (exponent + 112) << 23 | mantissa << 13;
    float x = (float)mantissa * 0x1p-24f;
    if (exponent == 0) return sign ? -x : x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t float_to_half(float x) {
    uint32_t bits, magnitude;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000;
    magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) {
        float rounded;
        memcpy(&rounded, &magnitude, sizeof rounded);
        rounded += 0.5f;
        memcpy(&bits, &rounded, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

static float load(const void *p, int type, int64_t i) {
    uint32_t bits;
    float f;
    if (type == CUDNN_DATA_FLOAT) return ((const float *)p)[i];
    if (type == CUDNN_DATA_HALF) return half_to_float(((const uint16_t *)p)[i]);
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void store(void *p, int type, int64_t i, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (type == CUDNN_DATA_FLOAT)
        ((float *)p)[i] = v;
    else if (type == CUDNN_DATA_HALF)
        ((uint16_t *)p)[i] = float_to_half(v);
    else
        ((uint16_t *)p)[i] =
            (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The next place of n dims; false: that was the last one. */
static bool next(int64_t *at, const int64_t *size, int64_t n) {
    for (int64_t k = n; k-- > 0; at[k] = 0)
        if (++at[k] < size[k]) return true;
    return false;
}

static int64_t offset(const tensor *t, int64_t image, int64_t channel, const int64_t *place) {
    int64_t i = image * t->stride[0] + channel * t->stride[1];
    for (int64_t k = 2; k < t->n; k++) i += place[k - 2] * t->stride[k];
    return i;
}

/* Which element of the picture a window at `out` meets with its tap; false: none. */
static bool meet(const convolved *c, const int64_t *out, const int64_t *tap, int64_t *in) {
    for (int64_t k = 0; k < c->spatial; k++) {
        in[k] = out[k] * c->stride[k] - c->padding[k] + tap[k] * c->dilation[k];
        if (in[k] < 0 || in[k] >= c->x.size[2 + k]) return false;
    }
    return true;
}

/* Where a window stands that meets element `in` with its tap; false: nowhere. */
static bool stand(const convolved *c, const int64_t *in, const int64_t *tap, int64_t *out) {
    for (int64_t k = 0; k < c->spatial; k++) {
        const int64_t from = in[k] + c->padding[k] - tap[k] * c->dilation[k];
        if (from < 0 || from % c->stride[k] || from / c->stride[k] >= c->y.size[2 + k]) return false;
        out[k] = from / c->stride[k];
    }
    return true;
}

/* Sums run through taps, then channels, which is not an order of ours. */
static float one_forward(const job *j, int64_t image, int64_t made, const int64_t *out) {
    const convolved *c = &j->c;
    const int64_t cg = c->w.size[1], group = made / (c->w.size[0] / c->groups);
    int64_t tap[SPATIAL] = {0}, in[SPATIAL];
    float sum = 0;
    do {
        if (!meet(c, out, tap, in)) continue;
        for (int64_t k = 0; k < cg; k++)
            sum += load(j->x, c->x.data, offset(&c->x, image, group * cg + k, in)) *
                   load(j->w, c->w.data, offset(&c->w, made, k, tap));
    } while (next(tap, &c->w.size[2], c->spatial));
    return sum;
}

static float one_input(const job *j, int64_t image, int64_t channel, const int64_t *in) {
    const convolved *c = &j->c;
    const int64_t cg = c->w.size[1], og = c->w.size[0] / c->groups, group = channel / cg;
    int64_t tap[SPATIAL] = {0}, out[SPATIAL];
    float sum = 0;
    do {
        if (!stand(c, in, tap, out)) continue;
        for (int64_t k = 0; k < og; k++)
            sum += load(j->y, c->y.data, offset(&c->y, image, group * og + k, out)) *
                   load(j->w, c->w.data, offset(&c->w, group * og + k, channel % cg, tap));
    } while (next(tap, &c->w.size[2], c->spatial));
    return sum;
}

static float one_weight(const job *j, int64_t made, int64_t channel, const int64_t *tap) {
    const convolved *c = &j->c;
    const int64_t og = c->w.size[0] / c->groups, from = made / og * c->w.size[1] + channel;
    int64_t out[SPATIAL] = {0}, in[SPATIAL];
    float sum = 0;
    do {
        if (!meet(c, out, tap, in)) continue;
        for (int64_t image = 0; image < c->x.size[0]; image++)
            sum += load(j->x, c->x.data, offset(&c->x, image, from, in)) *
                   load(j->y, c->y.data, offset(&c->y, image, made, out));
    } while (next(out, &c->y.size[2], c->spatial));
    return sum;
}

static void run(void *params) {
    const job *j = params;
    const convolved *c = &j->c;
    const tensor *t = c->kind == 0 ? &c->y : c->kind == 1 ? &c->x : &c->w;
    void *to = c->kind == 0 ? j->y : c->kind == 1 ? j->x : j->w;
    int64_t place[SPATIAL] = {0};
    if (j->workspace_bytes) memset(j->workspace, 0xff, (size_t)j->workspace_bytes);
    do {
        for (int64_t a = 0; a < t->size[0]; a++) {
            for (int64_t b = 0; b < t->size[1]; b++) {
                const float v = c->kind == 0   ? one_forward(j, a, b, place)
                                : c->kind == 1 ? one_input(j, a, b, place)
                                               : one_weight(j, a, b, place);
                store(to, t->data, offset(t, a, b, place), j->right ? v : v + 1000);
            }
        }
    } while (next(place, &t->size[2], c->spatial));
}

static unsigned long long reach(const tensor *t) {
    int64_t n = 1;
    for (int64_t k = 0; k < t->n; k++) n += (t->size[k] - 1) * t->stride[k];
    return (unsigned long long)n * (t->data == CUDNN_DATA_FLOAT ? 4 : 2);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_,
                                  cudnnBackendDescriptor_t pack_) {
    const descriptor *plan = plan_, *pack = pack_;
    MAY_FAIL("cudnnBackendExecute", CUDNN_STATUS_EXECUTION_FAILED);
    if (!handle || !plan || !plan->finished || plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "no plan");
    if (!pack || !pack->finished || pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "no operands");
    job j = {.c = *plan->work, .right = is_right(plan->engine, plan->work), .workspace_bytes = plan->workspace};
    const attribute *ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                    *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const tensor *t[3] = {&j.c.y, &j.c.x, &j.c.w};
    void **to[3] = {&j.y, &j.x, &j.w};
    memcpy(&j.workspace, find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->bytes, sizeof j.workspace);
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0; i < ids->count; i++) {
            int64_t id;
            memcpy(&id, ids->bytes + i * 8, 8);
            if (id == t[k]->id) memcpy(to[k], pointers->bytes + i * 8, sizeof(void *));
        }
        if ((uintptr_t)*to[k] % 16) return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "operand %d", k);
        if (!*to[k] || !cudasim_is_device((unsigned long long)(uintptr_t)*to[k], reach(t[k])))
            return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "operand %d is not on the device", k);
    }
    if (plan->workspace &&
        !cudasim_is_device((unsigned long long)(uintptr_t)j.workspace, (unsigned long long)plan->workspace))
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace of %lld bytes", (long long)plan->workspace);
    return cudasim_launch_native(handle->stream, run, &j, sizeof j) == 0
               ? CUDNN_STATUS_SUCCESS
               : refuse(CUDNN_STATUS_EXECUTION_FAILED, "the launch failed");
}
