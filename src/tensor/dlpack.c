/* DLPack 1.x, both ways, and what came before it, in. The structs below are the ABI of dlpack.h, in our own words; they never
   change within version 1. Exports share memory and hold a reference. Imports wrap; memory that may only be read is copied,
   because our tensors can be written. The producer's deleter runs exactly once, on every path. */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "device/capture.h"
#include "tensor/tensor.h"

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2, DEVICE_CUDA_HOST = 3, DEVICE_CUDA_MANAGED = 13 };
#define FLAG_READ_ONLY UINT64_C(1)
#define FLAG_IS_COPIED UINT64_C(2)

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* strides in elements; NULL: row-major */
    uint64_t byte_offset;
};

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self); /* may be NULL */
    uint64_t flags;
    struct dl_tensor tensor;
};

struct DLManagedTensor { /* before 1.0 */
    struct dl_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
};

_Static_assert(sizeof(struct dl_tensor) == 48, "DLTensor of dlpack.h on 64-bit machines");
_Static_assert(sizeof(struct DLManagedTensorVersioned) == 80,
               "DLManagedTensorVersioned of dlpack.h on 64-bit machines");
_Static_assert(sizeof(struct DLManagedTensor) == 64, "DLManagedTensor of dlpack.h on 64-bit machines");

/* ---- out */

typedef struct exported {
    struct DLManagedTensorVersioned managed;
    rp_tensor *owner;
    int64_t dims[]; /* sizes, then strides */
} exported;

static void exported_free(struct DLManagedTensorVersioned *self) {
    exported *e = self->manager_ctx;
    rp_release(e->owner);
    rp__free(e);
}

static struct DLManagedTensorVersioned *export_tensor(rp_tensor *t) {
    if (rp__tensor_check(t, "the tensor") != RP_OK) return NULL;
    if ((t->flags & RP__T_REQUIRES_GRAD) || (rp__grad_name_hook && rp__grad_name_hook(t))) {
        rp__fail(RP_ERROR_STATE, "Can't export tensors that require gradient, use detach first");
        return NULL;
    }
    rp__device *d = rp__device_get(t->device);
    if (!d || rp__tensor_materialise(t) != RP_OK) return NULL;
    rp_stream *s = rp__current_stream(d);
    /* The consumer knows nothing of our queues. */
    if (d->id.type == RP_DEVICE_CPU && (rp__capture_forbid(s, "exporting a tensor") != RP_OK ||
                                        d->ops->stream_synchronize(d, s) != RP_OK || rp__device_waited(d) != RP_OK))
        return NULL;
    exported *e = rp__alloc(sizeof *e + 2 * (size_t)t->ndim * sizeof *e->dims);
    if (!e) {
        RP__OOM("an exported tensor");
        return NULL;
    }
    e->owner = rp_retain(t);
    e->managed = (struct DLManagedTensorVersioned){.major = 1, .minor = 0, .manager_ctx = e, .deleter = exported_free};
    struct dl_tensor *out = &e->managed.tensor;
    out->data = rp__tensor_data(t);
    out->device_type = t->device.type == RP_DEVICE_CPU ? DEVICE_CPU : DEVICE_CUDA;
    out->device_id = t->device.index;
    out->ndim = t->ndim;
    out->lanes = 1;
    out->code = rp__dtypes[t->dtype].dlpack;
    out->bits = (uint8_t)(rp__dtypes[t->dtype].bytes * 8);
    for (size_t i = 0; i < t->ndim; i++) {
        e->dims[i] = rp__dim_value(t->size[i]);
        e->dims[t->ndim + i] = rp__dim_value(t->stride[i]);
    }
    out->shape = e->dims;
    out->strides = e->dims + t->ndim;
    return &e->managed;
}

struct DLManagedTensorVersioned *rp_to_dlpack_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    rp__site_frame outer = rp__site_push(NULL, "to_dlpack");
    struct DLManagedTensorVersioned *managed = export_tensor(t);
    rp__site_pop(outer);
    return managed;
}

/* ---- in */

static void delete_versioned(void *ctx) {
    struct DLManagedTensorVersioned *managed = ctx;
    if (managed->deleter) managed->deleter(managed);
}

static void delete_unversioned(void *ctx) {
    struct DLManagedTensor *managed = ctx;
    if (managed->deleter) managed->deleter(managed);
}

static rp_status read_type(const struct dl_tensor *in, rp_dtype *dtype) {
    if (in->lanes != 1)
        return rp__fail(RP_ERROR_DTYPE, "vector types are not supported: %u lanes", (unsigned)in->lanes);
    for (int d = 1; d < RP__DTYPE_COUNT; d++) {
        if (rp__dtypes[d].dlpack == in->code && rp__dtypes[d].bytes * 8 == in->bits) {
            *dtype = (rp_dtype)d;
            return RP_OK;
        }
    }
    return rp__fail(RP_ERROR_DTYPE, "the element type with code %u and %u bits is not supported", (unsigned)in->code,
                    (unsigned)in->bits);
}

static rp_status read_device(const struct dl_tensor *in, rp_device *device) {
    if (in->device_type == DEVICE_CPU || in->device_type == DEVICE_CUDA_HOST)
        *device = rp_cpu();
    else if (in->device_type == DEVICE_CUDA || in->device_type == DEVICE_CUDA_MANAGED)
        *device = rp_cuda(in->device_id);
    else
        return rp__fail(RP_ERROR_DEVICE, "memory of device type %d is not supported", (int)in->device_type);
    return rp__device_get(*device) ? RP_OK : rp_error_status();
}

/* What rp_from_blob does not look at. */
static rp_status check_tensor(const struct dl_tensor *in, rp_dtype *dtype, rp_device *device) {
    RP_TRY(read_type(in, dtype));
    RP_TRY(read_device(in, device));
    if (in->ndim < 0 || in->ndim > RP_MAX_DIMS)
        return rp__fail(RP_ERROR_SHAPE, "a tensor has 0 to %d dimensions, not %d", RP_MAX_DIMS, (int)in->ndim);
    if (in->ndim && !in->shape) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the shape is NULL");
    return RP_OK;
}

/* A tensor of our own with the bytes of `wrapped`, of the same layout. */
static rp_tensor *copy_of(rp_tensor *wrapped) {
    rp__device *d = rp__device_get(wrapped->device);
    rp_stream *s = rp__current_stream(d);
    size_t bytes = wrapped->storage->bytes;
    rp__storage *own = rp__storage_new(d, s, bytes);
    rp_tensor *t = rp__tensor_new((rp_dtype)wrapped->dtype, wrapped->size, wrapped->ndim, own);
    if (rp__tensor_is_error(t)) return t;
    memcpy(t->stride, wrapped->stride, sizeof t->stride);
    if (bytes == 0) return t;
    if (d->id.type == RP_DEVICE_CPU)
        return d->ops->copy_in(d, s, own->data, wrapped->storage->data, bytes) == RP_OK ? t : rp__tensor_error();
    char *host = rp__alloc(bytes);
    if (!host) RP__OOM("a host copy of a tensor");
    bool copied = host && d->ops->copy_out(d, s, host, wrapped->storage->data, bytes) == RP_OK &&
                  d->ops->copy_in(d, s, own->data, host, bytes) == RP_OK;
    rp__free(host);
    return copied ? t : rp__tensor_error();
}

/* Takes `managed` over. */
static rp_tensor *import(const struct dl_tensor *in, uint64_t flags, void (*deleter)(void *managed), void *managed) {
    rp_dtype dtype = RP_DTYPE_NONE;
    rp_device device = rp_cpu();
    bool copies = (flags & FLAG_READ_ONLY) != 0;
    if (check_tensor(in, &dtype, &device) != RP_OK) {
        deleter(managed);
        return rp__tensor_error();
    }
    char *data = in->data ? (char *)in->data + in->byte_offset : NULL;
    rp_scope scope = copies ? rp__scope_begin() : (rp_scope){0};
    if (copies && !scope.id) {
        deleter(managed);
        return rp__tensor_error();
    }
    rp_tensor *t = rp_from_blob(data, in->shape, (size_t)in->ndim, in->strides, dtype, device, deleter, managed);
    if ((flags & FLAG_IS_COPIED) && !rp__tensor_is_error(t))
        t->storage->foreign = false; /* the producer made it for us: nobody else writes */
    if (copies) {
        if (!rp__tensor_is_error(t)) t = copy_of(t);
        rp__scope_end(scope, &t, 1); /* releases the wrapper, and with it the producer's memory */
    }
    return t;
}

rp_tensor *rp_from_dlpack_at(const char *site, struct DLManagedTensorVersioned *managed) {
    RP__CALLED_FROM(site);
    rp__site_frame outer = rp__site_push(NULL, "from_dlpack");
    rp_tensor *t = rp__tensor_error();
    if (!managed) {
        rp__fail(RP_ERROR_INVALID_ARGUMENT, "the managed tensor is NULL");
    } else if (managed->major != 1) { /* of such a one only what comes before its tensor is known */
        rp__fail(RP_ERROR_INVALID_ARGUMENT, "DLPack version %u.%u is not supported, only 1.x", (unsigned)managed->major,
                 (unsigned)managed->minor);
        delete_versioned(managed);
    } else {
        t = import(&managed->tensor, managed->flags, delete_versioned, managed);
    }
    rp__site_pop(outer);
    return t;
}

rp_tensor *rp_from_dlpack_unversioned_at(const char *site, struct DLManagedTensor *managed) {
    RP__CALLED_FROM(site);
    rp__site_frame outer = rp__site_push(NULL, "from_dlpack_unversioned");
    rp_tensor *t = rp__tensor_error();
    if (managed)
        t = import(&managed->tensor, 0, delete_unversioned, managed);
    else
        rp__fail(RP_ERROR_INVALID_ARGUMENT, "the managed tensor is NULL");
    rp__site_pop(outer);
    return t;
}
