/* Tensor handles: making, counting, checking and looking at them. No op is dispatched from here: what reads elements copies
   bytes to the host and walks them there. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "device/capture.h"
#include "tensor/local.h"

rp_status (*rp__materialise_hook)(rp_tensor *t);
void (*rp__autograd_free_hook)(struct rp__autograd *a);
void (*rp__trace_free_hook)(struct rp__trace_value *v);

rp_tensor *rp__tensor_error(void) {
    static rp_tensor error = {.magic = RP__TENSOR_MAGIC, .flags = RP__T_ERROR};
    return &error;
}

/* ---- making */

/* A handle over `storage`, whose reference moves in; owned by the innermost scope. The caller fills sizes and strides. */
static inline __attribute__((always_inline)) rp_tensor *handle(rp_dtype dtype, size_t ndim, rp__storage *storage) {
    rp__tensor_local *l = rp__local();
    rp_tensor *t = l ? rp__tensor_slot_take(l) : NULL;
    if (RP__UNLIKELY(!t)) {
        rp__storage_release(storage);
        return rp__tensor_error();
    }
    t->magic = RP__TENSOR_MAGIC;
    atomic_store_explicit(&t->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&t->retained, 0, memory_order_relaxed);
    t->dtype = (uint8_t)dtype;
    t->ndim = (uint8_t)ndim;
    t->flags = 0;
    t->device = storage->device;
    t->storage = storage;
    t->offset = 0;
    t->autograd = NULL;
    t->traced = NULL;
    t->op = rp__site_op();
    t->site = rp__site();
    t->id = rp__local_id(l);
    atomic_store_explicit(&l->created, atomic_load_explicit(&l->created, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    if (RP__UNLIKELY(!rp__scope_push(l, t))) {
        rp__tensor_destroy(t);
        return rp__tensor_error();
    }
    return t;
}

static bool rank_fits(size_t ndim) {
    if (RP__LIKELY(ndim <= RP_MAX_DIMS)) return true;
    rp__fail(RP_ERROR_SHAPE, "a tensor has at most %d dimensions, not %zu", RP_MAX_DIMS, ndim);
    return false;
}

rp_tensor *rp__tensor_new(rp_dtype dtype, const rp_dim *size, size_t ndim, rp__storage *storage) {
    if (!storage) return rp__tensor_error();
    if (!rank_fits(ndim)) {
        rp__storage_release(storage);
        return rp__tensor_error();
    }
    rp_tensor *t = handle(dtype, ndim, storage);
    if (RP__UNLIKELY(rp__tensor_is_error(t))) return t;
    for (size_t i = 0; i < ndim; i++) t->size[i] = size[i];
    rp__contiguous_strides(size, ndim, t->stride);
    return t;
}

/* Bytes of a row-major tensor; false and a sticky error for sizes that no tensor can have. */
static __attribute__((noinline)) bool byte_count_checked(rp_dtype dtype, const int64_t *size, size_t ndim,
                                                         size_t *bytes) {
    if (RP__UNLIKELY(!rp__dtype_is_valid(dtype))) {
        rp__fail(RP_ERROR_DTYPE, "%d is not an element type", (int)dtype);
        return false;
    }
    if (!rank_fits(ndim)) return false;
    if (RP__UNLIKELY(ndim && !size)) {
        rp__fail(RP_ERROR_INVALID_ARGUMENT, "the size is NULL");
        return false;
    }
    int64_t n = 1;
    bool fits = true, empty = false;
    for (size_t i = 0; i < ndim; i++) {
        if (RP__UNLIKELY(size[i] < 0)) {
            char text[RP__SHAPE_TEXT];
            rp__fail(RP_ERROR_SHAPE, "Trying to create tensor with negative dimension %" PRId64 ": %s", size[i],
                     rp__dim_is_symbol(size[i]) ? "(...)" : rp__shape_text(size, ndim, text));
            return false;
        }
        empty = empty || size[i] == 0;
        fits = rp__mul_i64(n, size[i], &n) && fits;
    }
    if (empty) n = 0, fits = true;
    if (!fits || !rp__mul_i64(n, (int64_t)rp__dtype_bytes(dtype), &n)) {
        char text[RP__SHAPE_TEXT];
        rp__fail(RP_ERROR_SHAPE, "a %s tensor of size %s has more bytes than can be counted", rp_dtype_name(dtype),
                 rp__shape_text(size, ndim, text));
        return false;
    }
    *bytes = (size_t)n;
    return true;
}

/* The same, quickly for tensors with elements. */
static inline bool byte_count(rp_dtype dtype, const int64_t *size, size_t ndim, size_t *bytes) {
    if (RP__UNLIKELY(!rp__dtype_is_valid(dtype) || ndim > RP_MAX_DIMS || !size))
        return byte_count_checked(dtype, size, ndim, bytes);
    int64_t n = (int64_t)rp__dtype_bytes(dtype);
    bool sound = true;
    for (size_t i = 0; i < ndim; i++) sound = sound && size[i] > 0 && rp__mul_i64(n, size[i], &n);
    if (RP__UNLIKELY(!sound)) return byte_count_checked(dtype, size, ndim, bytes);
    *bytes = (size_t)n;
    return true;
}

bool rp__tensor_bytes(rp_dtype dtype, const int64_t *size, size_t ndim, size_t *bytes) {
    return byte_count(dtype, size, ndim, bytes);
}

rp_tensor *rp__tensor_empty(rp__device *d, rp_dtype dtype, const rp_dim *size, size_t ndim) {
    size_t bytes;
    if (!byte_count(dtype, size, ndim, &bytes)) return rp__tensor_error();
    rp__storage *s = rp__storage_new(d, rp__current_stream(d), bytes);
    return RP__LIKELY(s != NULL) ? rp__tensor_new(dtype, size, ndim, s) : rp__tensor_error();
}

rp_tensor *rp__tensor_of_form(rp__device *d, rp_stream *s, const rp__tensor_form *form) {
    rp__storage *storage = rp__storage_new(d, s, form->bytes);
    rp_tensor *t =
        RP__LIKELY(storage != NULL) ? handle((rp_dtype)form->dtype, form->ndim, storage) : rp__tensor_error();
    if (RP__UNLIKELY(rp__tensor_is_error(t))) return t;
    for (size_t i = 0; i < form->ndim; i++) {
        t->size[i] = form->size[i];
        t->stride[i] = form->stride[i];
    }
    return t;
}

rp_tensor *rp__tensor_over(rp_dtype dtype, const rp_dim *size, const rp_dim *stride, size_t ndim, rp_dim offset,
                           rp__storage *storage) {
    rp_tensor *t = handle(dtype, ndim, storage);
    if (RP__UNLIKELY(rp__tensor_is_error(t))) return t;
    t->offset = offset;
    for (size_t i = 0; i < ndim; i++) {
        t->size[i] = size[i];
        t->stride[i] = stride[i];
    }
    return t;
}

rp_tensor *rp__tensor_view(rp_tensor *base, const rp_dim *size, const rp_dim *stride, size_t ndim, rp_dim offset) {
    if (rp__tensor_is_error(base) || !rank_fits(ndim)) return rp__tensor_error();
    rp_tensor *t =
        rp__tensor_over((rp_dtype)base->dtype, size, stride, ndim, offset, rp__storage_retain(base->storage));
    if (!rp__tensor_is_error(t)) t->flags = RP__T_VIEW;
    return t;
}

/* ---- counting */

void rp__tensor_destroy(rp_tensor *t) {
    t->magic = RP__TENSOR_DEAD;
    if (t->autograd) {
        struct rp__autograd *a = t->autograd;
        t->autograd = NULL;
        if (rp__autograd_free_hook) rp__autograd_free_hook(a);
    }
    if (t->traced) {
        struct rp__trace_value *v = t->traced;
        t->traced = NULL;
        if (rp__trace_free_hook) rp__trace_free_hook(v);
    }
    rp__storage *s = t->storage;
    t->storage = NULL;
    rp__storage_release(s);
    rp__tensor_local *l = rp__local();
    if (!l) { /* out of memory in a thread that never made a tensor: the slot stays in its slab */
        rp_error_take();
        return;
    }
    atomic_store_explicit(&l->destroyed, atomic_load_explicit(&l->destroyed, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    rp__tensor_slot_give(l, t);
}

static const char *made_by(const rp_tensor *t, char buf[256]) {
    snprintf(buf, 256, "made%s%s%s%s", *t->op ? " by " : "", t->op, *t->site ? " at " : "", t->site);
    return buf;
}

rp_tensor *rp_retain_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    if (!t || rp__tensor_is_error(t)) return t ? t : rp__tensor_error();
    if (RP__UNLIKELY(t->magic != RP__TENSOR_MAGIC)) {
        rp__tensor_check(t, "the tensor to retain");
        return rp__tensor_error();
    }
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->retained, 1, memory_order_relaxed);
    return t;
}

/* Always an atomic decrement, also for the last holder: the tape upgrades weak references while refs is not 0. */
static void drop(rp_tensor *t) {
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1) rp__tensor_destroy(t);
}

void rp_release_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    if (!t || rp__tensor_is_error(t)) return;
    char made[256];
    if (RP__UNLIKELY(t->magic != RP__TENSOR_MAGIC)) {
        rp__tensor_check(t, "the tensor to release");
        return;
    }
    unsigned retained = atomic_load_explicit(&t->retained, memory_order_relaxed);
    do {
        if (RP__UNLIKELY(retained == 0)) {
            rp__fail(RP_ERROR_STATE,
                     "release: the tensor (%s) belongs to a scope only: it was released more often than retained",
                     made_by(t, made));
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&t->retained, &retained, retained - 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    drop(t);
}

void rp__scope_release(rp_tensor *t) { drop(t); }

/* ---- checking */

bool rp_is_error(const rp_tensor *t) { return t && rp__tensor_is_error(t); }

rp_status rp__tensor_check(const rp_tensor *t, const char *what) {
    char made[256];
    if (RP__UNLIKELY(!t)) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s is NULL", what);
    if (RP__UNLIKELY(rp__tensor_is_error(t)))
        return rp__fail(rp_failed() ? rp_error_status() : RP_ERROR_INVALID_ARGUMENT,
                        "%s is the error tensor of an earlier failure", what);
    if (RP__UNLIKELY(t->magic == RP__TENSOR_DEAD))
        return rp__fail(RP_ERROR_STATE, "%s was released already: a tensor %s", what, made_by(t, made));
    if (RP__UNLIKELY(t->magic != RP__TENSOR_MAGIC)) {
        const char *given = rp__handle_kind_of(t);
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s is %s%snot a tensor", what, given ? given : "",
                        given ? ", " : "");
    }
    if (rp__storage_is_stale(t->storage)) {
        const char *site = t->storage->replay_site;
        return rp__fail(RP_ERROR_STALE,
                        "%s is the output of a replay (rp_call%s%s) that a later replay has overwritten: %s; copy it "
                        "before the next replay",
                        what, site && *site ? " at " : "", site && *site ? site : "", made_by(t, made));
    }
    return RP_OK;
}

/* For accessors: is there a tensor to look at? The error tensor answers silently. */
static bool usable(const rp_tensor *t, const char *what) {
    if (RP__LIKELY(t && t->magic == RP__TENSOR_MAGIC)) return !rp__tensor_is_error(t);
    rp__tensor_check(t, what);
    return false;
}

size_t rp_ndim_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return usable(t, "ndim: the tensor") ? t->ndim : 0;
}
rp_dtype rp_dtype_of_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return usable(t, "dtype_of: the tensor") ? (rp_dtype)t->dtype : RP_DTYPE_NONE;
}
rp_device rp_device_of_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return usable(t, "device_of: the tensor") ? t->device : rp_cpu();
}
bool rp_is_contiguous_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return usable(t, "is_contiguous: the tensor") ? rp__tensor_contiguous(t) : false;
}
int64_t rp_numel_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return usable(t, "numel: the tensor") ? rp__dim_value(rp__tensor_numel(t)) : 0;
}
int64_t rp_sym_numel_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return usable(t, "sym_numel: the tensor") ? rp__tensor_numel(t) : 0;
}
uint64_t rp_version_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return usable(t, "version: the tensor") ? atomic_load_explicit(&t->storage->version, memory_order_relaxed) : 0;
}

static rp_dim word_of(const rp_tensor *t, const rp_dim *of, int64_t dim, const char *op) {
    size_t k = 0;
    rp__site_frame outer = rp__site_push(NULL, op);
    rp_status status = RP_ERROR_INVALID_ARGUMENT;
    bool there = usable(t, "the tensor");
    if (there && t->ndim == 0)
        status = rp__fail(RP_ERROR_INDEX, "Dimension specified as %" PRId64 " but tensor has no dimensions", dim);
    else if (there)
        status = rp__wrap_dim(dim, t->ndim, &k);
    rp__site_pop(outer);
    return status == RP_OK ? of[k] : -1;
}

int64_t rp_size_at(const char *site, const rp_tensor *t, int64_t dim) {
    RP__CALLED_FROM(site);
    return rp__dim_value(word_of(t, t ? t->size : NULL, dim, "size"));
}
int64_t rp_stride_at(const char *site, const rp_tensor *t, int64_t dim) {
    RP__CALLED_FROM(site);
    return rp__dim_value(word_of(t, t ? t->stride : NULL, dim, "stride"));
}
int64_t rp_sym_size_at(const char *site, const rp_tensor *t, int64_t dim) {
    RP__CALLED_FROM(site);
    return word_of(t, t ? t->size : NULL, dim, "sym_size");
}

rp_dim rp__tensor_numel(const rp_tensor *t) {
    int64_t n = 1;
    for (size_t i = 0; i < t->ndim; i++) {
        if (RP__UNLIKELY(rp__dim_is_symbol(t->size[i]))) return rp__numel(t->size, t->ndim);
        n = (int64_t)((uint64_t)n * (uint64_t)t->size[i]); /* checked when the tensor was made */
    }
    return n;
}

static bool same(rp_dim a, rp_dim b) { return rp__dim_same_word(a, b) || rp__dim_is(RP__DIM_EQ, a, b); }

bool rp__tensor_contiguous(const rp_tensor *t) {
    rp_dim expected = 1;
    bool dense = true;
    for (size_t i = t->ndim; i-- > 0;) {
        if (rp__dim_same_word(t->size[i], 0)) return true;
        if (!dense || rp__dim_same_word(t->size[i], 1) || (rp__dim_is_symbol(t->size[i]) && same(t->size[i], 1)))
            continue;
        dense = same(t->stride[i], expected);
        if (dense && (rp__dim_is_symbol(expected) || rp__dim_is_symbol(t->size[i])))
            expected = rp__dim_apply(RP__DIM_MUL, expected, t->size[i]);
        else
            expected = (rp_dim)((uint64_t)expected * (uint64_t)t->size[i]);
    }
    return dense;
}

bool rp__tensor_overlaps_itself(const rp_tensor *t) {
    for (size_t i = 0; i < t->ndim; i++) {
        if (rp__dim_same_word(t->size[i], 0)) return false;
    }
    for (size_t i = 0; i < t->ndim; i++) {
        if (rp__dim_same_word(t->stride[i], 0) && !rp__dim_same_word(t->size[i], 1) &&
            !rp__dim_is(RP__DIM_EQ, t->size[i], 1))
            return true;
    }
    return false;
}

void rp__tensor_byte_range(const rp_tensor *t, int64_t *begin, int64_t *end) {
    int64_t item = (int64_t)rp__dtype_bytes((rp_dtype)t->dtype), last = t->offset;
    *begin = *end = t->offset * item;
    for (size_t i = 0; i < t->ndim; i++) { /* with a size of 0 behind it a stride may be as large as it likes */
        if (rp__dim_same_word(t->size[i], 0)) return;
        last = (int64_t)((uint64_t)last + (uint64_t)(t->size[i] - 1) * (uint64_t)t->stride[i]);
    }
    *end = (last + 1) * item;
}

rp_tensor **rp__list_copy(rp_tensor *const *list, size_t n) {
    rp_tensor **copy = rp__alloc(n * sizeof *copy);
    if (copy)
        memcpy(copy, list, n * sizeof *copy);
    else
        RP__OOM("arguments");
    return copy;
}

const char *rp__tensor_text(const rp_tensor *t, char buf[RP__SHAPE_TEXT]) {
    if (!t || rp__tensor_is_error(t)) {
        snprintf(buf, RP__SHAPE_TEXT, "%s", t ? "error" : "NULL");
        return buf;
    }
    char shape[RP__SHAPE_TEXT];
    rp__shape_text(t->size, t->ndim, shape);
    snprintf(buf, RP__SHAPE_TEXT, "%s %.*s", rp_dtype_name((rp_dtype)t->dtype), RP__SHAPE_TEXT - 16, shape);
    return buf;
}

/* ---- data in and out */

rp_status rp__tensor_materialise(rp_tensor *t) {
    bool pending = t->traced || rp__flags.tracing || (!t->storage->data && t->storage->bytes);
    return RP__UNLIKELY(pending) && rp__materialise_hook ? rp__materialise_hook(t) : RP_OK;
}

void *rp_data_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    if (rp__tensor_check(t, "data: the tensor") != RP_OK || rp__tensor_materialise(t) != RP_OK) return NULL;
    if (t->device.type == RP_DEVICE_CPU) { /* the caller, who knows nothing of our queues, may read at once */
        rp__device *d = rp__device_get(t->device);
        rp_stream *s = d ? rp__current_stream(d) : NULL;
        /* In a capture there is nothing to wait for, and the address is that of the recorded launches. */
        if (!s ||
            (!rp__stream_capturing(s) && (d->ops->stream_synchronize(d, s) != RP_OK || rp__device_waited(d) != RP_OK)))
            return NULL;
    }
    return rp__tensor_data(t);
}

rp_tensor *rp_from_data_at(const char *site, const void *data, const int64_t *size, size_t ndim, rp_dtype dtype) {
    rp__site_frame outer = rp__site_push(site, "from_data");
    rp_tensor *t = rp__tensor_error();
    rp__device *d = rp__device_get(rp_default_device());
    size_t bytes;
    if (!d || !byte_count(dtype, size, ndim, &bytes)) goto done;
    if (bytes && !data) {
        rp__fail(RP_ERROR_INVALID_ARGUMENT, "the data is NULL");
        goto done;
    }
    rp_stream *s = rp__current_stream(d);
    if (rp__capture_forbid(s, "copying data from the host") != RP_OK) goto done;
    t = rp__tensor_empty(d, dtype, size, ndim);
    if (rp__tensor_is_error(t) || bytes == 0) goto done;
    if (d->id.type == RP_DEVICE_CPU && s->is_default)
        memcpy(t->storage->data, data, bytes);
    else if (d->ops->copy_in(d, s, t->storage->data, data, bytes) != RP_OK)
        t = rp__tensor_error(); /* the handle stays with its scope */
done:
    rp__site_pop(outer);
    return t;
}

rp_tensor *rp_from_blob_at(const char *site, void *data, const int64_t *size, size_t ndim, const int64_t *stride,
                           rp_dtype dtype, rp_device device, void (*deleter)(void *ctx), void *ctx) {
    RP__CALLED_FROM(site);
    rp__site_frame outer = rp__site_push(NULL, "from_blob");
    rp_tensor *t = rp__tensor_error();
    size_t bytes;
    int64_t extent = 1; /* elements between the first and the last, inclusive */
    bool fits = true;
    rp__device *d = rp__device_get(device);
    if (!d || !byte_count(dtype, size, ndim, &bytes)) goto failed;
    if (bytes && !data) {
        rp__fail(RP_ERROR_INVALID_ARGUMENT, "the data is NULL");
        goto failed;
    }
    if ((uintptr_t)data % rp__dtype_bytes(dtype)) {
        rp__fail(RP_ERROR_INVALID_ARGUMENT, "the data is not aligned to its element size of %zu bytes",
                 rp__dtype_bytes(dtype));
        goto failed;
    }
    for (size_t i = 0; stride && i < ndim; i++) {
        int64_t reach = 0;
        if (stride[i] < 0 && size[i] > 1) { /* a dimension of one element is never stepped along */
            rp__fail(RP_ERROR_SHAPE, "negative strides are not supported: stride %" PRId64 " of dimension %zu",
                     stride[i], i);
            goto failed;
        }
        if (bytes && size[i] > 1)
            fits = fits && rp__mul_i64(size[i] - 1, stride[i], &reach) && rp__add_i64(extent, reach, &extent) &&
                   extent <= RP__REACH_LIMIT;
    }
    if (fits && stride && bytes) extent *= (int64_t)rp__dtype_bytes(dtype);
    if (!fits) {
        char at[RP__SHAPE_TEXT], by[RP__SHAPE_TEXT];
        rp__fail(RP_ERROR_SHAPE, "sizes %s and strides %s reach further than any memory",
                 rp__shape_text(size, ndim, at), rp__shape_text(stride, ndim, by));
        goto failed;
    }
    rp__storage *s = rp__storage_foreign(d, data, stride && bytes ? (size_t)extent : bytes, deleter, ctx);
    if (!s) goto failed;
    t = rp__tensor_new(dtype, size, ndim, s); /* owns the storage now: failing calls the deleter */
    for (size_t i = 0; stride && i < ndim && !rp__tensor_is_error(t); i++)
        if (stride[i] >= 0 && stride[i] <= RP__REACH_LIMIT / (size[i] ? size[i] : 1)) t->stride[i] = stride[i];
    rp__site_pop(outer);
    return t;
failed:
    rp__site_pop(outer);
    if (deleter) deleter(ctx);
    return t;
}

rp_status rp_declare_stable_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    rp__site_frame outer = rp__site_push(NULL, "declare_stable");
    rp_status status = rp__tensor_check(t, "the tensor");
    if (status == RP_OK) t->storage->stable = true;
    rp__site_pop(outer);
    return status;
}

/* Copies elements in row-major order; src is the address of element 0. */
static void gather(char *dst, const char *src, const int64_t *size, const int64_t *stride, size_t ndim, size_t item) {
    while (ndim && size[ndim - 1] == 1) ndim--;
    size_t run = item; /* bytes that lie together */
    while (ndim && (stride[ndim - 1] * (int64_t)item == (int64_t)run || size[ndim - 1] == 1)) {
        run *= (size_t)size[ndim - 1];
        ndim--;
    }
    int64_t index[RP_MAX_DIMS] = {0};
    for (;;) {
        const char *row = src;
        for (size_t i = 0; i + 1 < ndim; i++) row += index[i] * stride[i] * (int64_t)item;
        if (ndim == 0) {
            memcpy(dst, row, run);
            return;
        }
        for (int64_t k = 0; k < size[ndim - 1]; k++, dst += run)
            memcpy(dst, row + k * stride[ndim - 1] * (int64_t)item, run);
        size_t i = ndim - 1;
        while (i-- > 0) {
            if (++index[i] < size[i]) break;
            index[i] = 0;
        }
        if (i == SIZE_MAX) return;
    }
}

static rp_status copy_elements(rp_tensor *t, void *dst, size_t bytes) {
    RP_TRY(rp__tensor_materialise(t));
    rp__device *d = rp__device_get(t->device);
    if (!d) return rp_error_status();
    rp_stream *s = rp__current_stream(d);
    RP_TRY(rp__capture_forbid(s, "copying data to the host"));
    size_t item = rp__dtype_bytes((rp_dtype)t->dtype);
    if (bytes == 0 || d->id.type == RP_DEVICE_CPU) {
        RP_TRY(d->ops->stream_synchronize(d, s));
        RP_TRY(rp__device_waited(d));
        if (bytes) gather(dst, rp__tensor_data(t), t->size, t->stride, t->ndim, item);
        return RP_OK;
    }
    if (rp__tensor_contiguous(t)) {
        RP_TRY(d->ops->copy_out(d, s, dst, rp__tensor_data(t), bytes));
        return rp__device_waited(d);
    }
    int64_t begin, end;
    rp__tensor_byte_range(t, &begin, &end);
    char *range = rp__alloc((size_t)(end - begin));
    if (!range) return RP__OOM("a host copy of a tensor");
    rp_status status = d->ops->copy_out(d, s, range, (char *)t->storage->data + begin, (size_t)(end - begin));
    if (status == RP_OK) status = rp__device_waited(d);
    if (status == RP_OK) gather(dst, range, t->size, t->stride, t->ndim, item);
    rp__free(range);
    return status;
}

/* Elements in row-major order into dst; t is checked and has values for sizes. A replay in another thread may have begun to write over
   them meanwhile. */
static rp_status read_elements(rp_tensor *t, void *dst, size_t bytes) {
    RP_TRY(copy_elements(t, dst, bytes));
    return RP__LIKELY(!rp__storage_is_stale(t->storage)) ? RP_OK : rp__tensor_check(t, "the tensor");
}

rp_status rp_to_host_at(const char *site, rp_tensor *t, void *dst, size_t bytes) {
    RP__CALLED_FROM(site);
    rp__site_frame outer = rp__site_push(NULL, "to_host");
    rp_status status = rp__tensor_check(t, "the tensor");
    if (status == RP_OK) {
        size_t want = (size_t)rp_numel(t) * rp__dtype_bytes((rp_dtype)t->dtype);
        char text[RP__SHAPE_TEXT];
        if (bytes != want)
            status = rp__fail(RP_ERROR_SHAPE, "the destination has %zu bytes, the tensor %s has %zu", bytes,
                              rp__tensor_text(t, text), want);
        else if (bytes && !dst)
            status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "the destination is NULL");
        else
            status = read_elements(t, dst, bytes);
    }
    rp__site_pop(outer);
    return status;
}

rp_scalar rp_item_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    rp__site_frame outer = rp__site_push(NULL, "item");
    rp_scalar value = rp_i64(0);
    if (rp__tensor_check(t, "the tensor") == RP_OK) {
        uint64_t word = 0;
        int64_t n = rp_numel(t);
        if (n != 1)
            rp__fail(RP_ERROR_SHAPE, "a Tensor with %" PRId64 " elements cannot be converted to Scalar", n);
        else if (read_elements(t, &word, rp__dtype_bytes((rp_dtype)t->dtype)) == RP_OK)
            value = rp__scalar_load((rp_dtype)t->dtype, &word);
    }
    rp__site_pop(outer);
    return value;
}

double rp_item_f64_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    return rp__scalar_f64(rp_item(t));
}
int64_t rp_item_i64_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    rp_scalar s = rp_item(t);
    if (s.kind == RP_SCALAR_F64 && !(s.v.f >= -0x1p63 && s.v.f < 0x1p63)) { /* NaN too */
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_item_i64: the value %g is not an integer of 64 bits", s.v.f);
        return 0;
    }
    return rp__scalar_i64(s);
}
