/* Storages: counted memory under tensors, ours (a block of the allocator) or foreign (with a deleter). */
#include "tensor/local.h"

#include "core/alloc.h"

static inline __attribute__((always_inline)) rp__storage *slot(rp_device device) {
    rp__tensor_local *l = rp__local();
    rp__storage *s = l ? rp__storage_slot_take(l) : NULL;
    if (!s) return NULL;
    uint64_t id = rp__local_id(l);
    *s = (rp__storage){.device = device, .id = id};
    atomic_init(&s->refs, 1);
    return s;
}

static inline __attribute__((always_inline)) void slot_return(rp__storage *s) {
    rp__tensor_local *l = rp__local();
    if (l) /* else: out of memory in a thread that never made a tensor; the slot stays in its slab */
        rp__storage_slot_give(l, s);
    else
        rp_error_take();
}

rp__storage *rp__storage_new(rp__device *d, rp_stream *stream, size_t bytes) {
    rp__storage *s = slot(d->id);
    if (!s) return NULL;
    if (RP__UNLIKELY(rp__block_alloc(d, stream, bytes, &s->block) != RP_OK)) {
        slot_return(s);
        return NULL;
    }
    s->data = s->block->data;
    s->bytes = bytes;
    return s;
}

rp__storage *rp__storage_wrap(rp_device device, void *data, size_t bytes, const rp__storage *behind,
                              void (*deleter)(void *), void *ctx) {
    rp__storage *s = slot(device);
    if (!s) return NULL;
    s->data = data;
    s->bytes = bytes;
    s->behind = behind ? rp__storage_block(behind) : NULL;
    s->deleter = deleter;
    s->deleter_ctx = ctx;
    s->foreign = data != NULL;
    return s;
}

rp__storage *rp__storage_foreign(rp__device *d, void *data, size_t bytes, void (*deleter)(void *), void *ctx) {
    rp__storage *s = rp__storage_wrap(d->id, data, bytes, NULL, NULL, NULL);
    if (!s || !deleter || rp__block_foreign(d, data, bytes, deleter, ctx, &s->block) == RP_OK) return s;
    slot_return(s);
    return NULL;
}

rp__storage *rp__storage_retain(rp__storage *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void rp__storage_release(rp__storage *s) {
    if (!s) return;
    /* The last holder need not pay for an atomic decrement: nobody else can be looking. */
    if (atomic_load_explicit(&s->refs, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (s->block) {
        rp__device *d = RP__LIKELY(s->device.type == RP_DEVICE_CPU) ? &rp__cpu_device : s->block->stream->device;
        rp__block_free(d, s->block);
    } else if (s->deleter) {
        s->deleter(s->deleter_ctx);
    }
    atomic_store_explicit(&s->refs, 0, memory_order_relaxed);
    slot_return(s);
}

void rp__storage_written(rp__storage *s, const char *op, const char *site) {
    s->writer_op = op;
    s->writer_site = site;
    /* Another number than before is enough: a locked instruction would buy the count of two threads that write at once. */
    uint64_t version = atomic_load_explicit(&s->version, memory_order_relaxed);
    atomic_store_explicit(&s->version, version + 1, memory_order_relaxed);
}
