/* Tensors in page-locked memory of the host. It is the CUDA driver's, one allocation a tensor, and goes back to it when the last
   tensor is gone and the streams that copy from or to it have done so (allocator.h: memory of others). */
#include "core/alloc.h"
#include "device/device.h"
#include "tensor/tensor.h"

#include <string.h>

typedef struct pinned {
    rp__device *device; /* whose driver gave it */
    void *data;
} pinned;

static void give_back(void *ctx) {
    pinned *p = ctx;
    p->device->ops->host_free(p->device, p->data);
    rp__free(p);
}

/* A CUDA device: the thread's, else the first. */
static rp__device *driver(void) {
    const rp_device own = rp_default_device();
    return rp__device_get(own.type == RP_DEVICE_CUDA ? own : rp_cuda(0));
}

static rp_tensor *empty(const int64_t *size, size_t ndim, rp_dtype dtype) {
    rp__device *host = rp__device_get(rp_cpu()), *d = host ? driver() : NULL;
    if (!d) return rp__tensor_error();
    size_t bytes;
    if (!rp__tensor_bytes(dtype, size, ndim, &bytes)) return rp__tensor_error();
    if (!bytes) return rp__tensor_empty(host, dtype, size, ndim);
    pinned *p = rp__calloc(1, sizeof *p);
    if (!p) {
        (void)RP__OOM("page-locked memory");
        return rp__tensor_error();
    }
    p->device = d;
    if (d->ops->host_alloc(d, bytes, &p->data) != RP_OK) {
        rp__free(p);
        return rp__tensor_error();
    }
    rp__storage *s = rp__storage_foreign(host, p->data, bytes, give_back, p);
    if (!s) {
        give_back(p);
        return rp__tensor_error();
    }
    s->foreign = false; /* made for us: nobody else writes it */
    return rp__tensor_new(dtype, size, ndim, s);
}

rp_tensor *rp_empty_pinned_at(const char *site, const int64_t *size, size_t ndim, rp_dtype dtype) {
    rp__site_frame frame = rp__site_push(site, "empty_pinned");
    rp_tensor *t = empty(size, ndim, dtype);
    rp__site_pop(frame);
    return t;
}

bool rp_is_pinned_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    if (rp__tensor_check(t, "is_pinned: the tensor") != RP_OK || t->device.type != RP_DEVICE_CPU || !t->storage->data)
        return false;
    for (rp__device *d = rp__device_next_open(NULL); d; d = rp__device_next_open(d))
        if (d->ops->host_is_pinned && d->ops->host_is_pinned(d, t->storage->data)) return true;
    return false;
}

rp_tensor *rp_pin_memory_at(const char *site, rp_tensor *t) {
    rp__site_frame frame = rp__site_push(site, "pin_memory");
    rp_tensor *out = rp__tensor_error();
    if (rp__tensor_check(t, "the tensor") != RP_OK) goto done;
    if (t->device.type != RP_DEVICE_CPU) {
        (void)rp__fail(RP_ERROR_DEVICE, "only tensors on the CPU can be pinned");
        goto done;
    }
    if (rp_is_pinned(t)) {
        out = rp__tensor_enter_scope(t);
        goto done;
    }
    int64_t size[RP_MAX_DIMS];
    for (unsigned k = 0; k < t->ndim; k++) size[k] = rp__dim_value(t->size[k]);
    out = empty(size, t->ndim, (rp_dtype)t->dtype);
    if (!rp__tensor_is_error(out) && rp_to_host(t, out->storage->data, out->storage->bytes) != RP_OK)
        out = rp__tensor_error();
done:
    rp__site_pop(frame);
    return out;
}
