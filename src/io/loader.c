/* Batches of rows. The order of an epoch is a permutation drawn from (seed, epoch), so a position is three numbers.
   Workers only copy bytes: from the arrays into the slots of a ring, in which batch b has slot b modulo their number;
   they call nothing of the library. The program's thread takes the batches in order and makes tensors of them. Slots in
   page-locked memory are copied to a CUDA device by a stream of the loader's own, while the device still works on the batch
   before: a slot is filled anew when its copy is done, which the next call looks after. */
#include "ops/private.h"
#include <reprise_io.h>

#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/handle.h"
#include "core/options.h"
#include "device/capture.h"
#include "device/device.h"
#include "device/generator.h"
#include "io/loader.h"
#include "tensor/tensor.h"

enum {
    MAX_ARRAYS = 16,
    MAX_WORKERS = 64,
    MAX_PREFETCH = 1024,
    MAX_EPOCH = 1 << 23
}; /* counters of draws: epoch, 40 bits of row */

typedef struct slot {
    char *data;        /* the rows of all arrays, one array after the other */
    rp_tensor *pinned; /* whose memory that is; NULL: the slot's own */
    int64_t full;      /* batch that lies in it, plus 1; 0: none */
} slot;

struct rp_loader {
    rp__handle handle;
    rp_tensor *arrays[MAX_ARRAYS]; /* retained, row-major, on the CPU */
    size_t row[MAX_ARRAYS];        /* bytes */
    size_t n;
    int64_t rows, batch, batches;
    bool shuffle;
    uint64_t seed;
    int64_t epoch;
    int64_t *order; /* rows; NULL: as they are */
    slot *slots;
    size_t n_slots;
    pthread_t threads[MAX_WORKERS];
    size_t n_threads;
    pthread_mutex_t lock; /* what is below, and `full` of slots */
    pthread_cond_t changed;
    int64_t next_fill, next_take; /* batches of this epoch */
    int64_t reusable;             /* batches below lie in slots that may be filled anew */
    int filling;
    bool ends, holds; /* workers end; begin nothing new */
    rp_stream *side;  /* of the program's thread: copies from page-locked slots; NULL: there was none */
    rp_event *copied; /* behind the last one */
};

static rp_loader failed_loader; /* returned where one could not be made */

static rp_status loader_check(const rp_loader *l, const char *call) {
    if (l == &failed_loader) return rp__fail(RP_ERROR_STATE, "%s: the loader could not be made", call);
    return rp__handle_check(l, RP__HANDLE_LOADER, call);
}

/* ---------------------------------------------------------------- order */

static void draw_order(rp_loader *l) {
    for (int64_t i = 0; l->order && i < l->rows; i++) l->order[i] = i;
    for (int64_t i = l->rows - 1; l->order && i > 0; i--) {
        uint32_t word[4];
        rp__philox(l->seed, (uint64_t)l->epoch << 40 | (uint64_t)i, word);
        const uint64_t random = (uint64_t)word[0] << 32 | word[1];
        /* below i + 1: the upper half of a product of 64 bits by 64 */
        const int64_t k = (int64_t)((unsigned __int128)random * (uint64_t)(i + 1) >> 64), kept = l->order[i];
        l->order[i] = l->order[k];
        l->order[k] = kept;
    }
}

static int64_t rows_of(const rp_loader *l, int64_t batch) {
    const int64_t left = l->rows - batch * l->batch;
    return left < l->batch ? left : l->batch;
}

static void fill(const rp_loader *l, int64_t batch, char *to) {
    const int64_t n = rows_of(l, batch);
    for (size_t k = 0; k < l->n; k++) {
        const char *from = rp__tensor_data(l->arrays[k]);
        for (int64_t i = 0; i < n; i++, to += l->row[k]) {
            const int64_t at = batch * l->batch + i;
            memcpy(to, from + (size_t)(l->order ? l->order[at] : at) * l->row[k], l->row[k]);
        }
    }
}

/* ---------------------------------------------------------------- workers */

static void *work(void *ctx) {
    rp_loader *l = ctx;
    (void)pthread_mutex_lock(&l->lock);
    while (!l->ends) {
        if (l->holds || l->next_fill >= l->batches || l->next_fill >= l->reusable + (int64_t)l->n_slots) {
            (void)pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        const int64_t batch = l->next_fill++;
        slot *s = &l->slots[(size_t)batch % l->n_slots];
        l->filling++;
        (void)pthread_mutex_unlock(&l->lock);
        fill(l, batch, s->data);
        (void)pthread_mutex_lock(&l->lock);
        s->full = batch + 1;
        l->filling--;
        (void)pthread_cond_broadcast(&l->changed);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* No copy reads a slot any more: those of the batches that were taken may be filled. */
static rp_status copies_end(rp_loader *l) {
    if (l->copied) RP_TRY(rp_event_synchronize(l->copied));
    (void)pthread_mutex_lock(&l->lock);
    l->reusable = l->next_take;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    return RP_OK;
}

/* Another order or place: when no worker reads the old one, and no copy is under way. */
static void go_to(rp_loader *l, uint64_t seed, int64_t epoch, int64_t batch) {
    (void)pthread_mutex_lock(&l->lock);
    l->holds = true;
    while (l->filling > 0) (void)pthread_cond_wait(&l->changed, &l->lock);
    l->seed = seed;
    l->epoch = epoch;
    draw_order(l);
    l->next_fill = l->next_take = l->reusable = batch;
    for (size_t i = 0; i < l->n_slots; i++) l->slots[i].full = 0;
    l->holds = false;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}

/* ---------------------------------------------------------------- construction */

static void loader_free(rp_loader *l) {
    (void)pthread_mutex_lock(&l->lock);
    l->ends = true;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    for (size_t i = 0; i < l->n_threads; i++) (void)pthread_join(l->threads[i], NULL);
    for (size_t i = 0; l->slots && i < l->n_slots; i++) {
        if (l->slots[i].pinned)
            rp_release(l->slots[i].pinned); /* it stays until the last copy is done */
        else
            rp__free(l->slots[i].data);
    }
    rp_event_release(l->copied);
    rp_stream_release(l->side);
    for (size_t k = 0; k < l->n; k++) rp_release(l->arrays[k]);
    rp__free(l->slots);
    rp__free(l->order);
    (void)pthread_cond_destroy(&l->changed);
    (void)pthread_mutex_destroy(&l->lock);
    rp__handle_free(l);
}

static rp_status take_arrays(rp_loader *l, rp_tensor *const *arrays, size_t n, int64_t batch) {
    if (!arrays || n == 0 || n > MAX_ARRAYS || batch <= 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "rp_loader_new: it takes 1 to 16 arrays and batches of at least one row");
    for (size_t k = 0; k < n; k++) {
        RP_TRY(rp__tensor_check(arrays[k], "rp_loader_new: an array"));
        if (arrays[k]->device.type != RP_DEVICE_CPU || arrays[k]->ndim == 0)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_loader_new: array %zu must have rows, and lie on the CPU",
                            k);
        if (arrays[k]->size[0] != arrays[0]->size[0])
            return rp__fail(RP_ERROR_SHAPE, "rp_loader_new: array %zu has %lld rows, array 0 %lld", k,
                            (long long)arrays[k]->size[0], (long long)arrays[0]->size[0]);
        rp_tensor *t = rp_contiguous(rp_detach(arrays[k]));
        if (rp__tensor_is_error(t)) return rp_error_status();
        l->arrays[l->n++] = rp_retain(t);
        l->row[k] = rp_dtype_size((rp_dtype)t->dtype);
        for (unsigned d = 1; d < t->ndim; d++) l->row[k] *= (size_t)t->size[d];
    }
    l->rows = arrays[0]->size[0];
    l->batch = batch;
    return rp_synchronize(rp_cpu()); /* what wrote them has ended: workers read memory */
}

static rp_status slot_new(slot *s, size_t bytes, bool pin) {
    if (!pin) return (s->data = rp__alloc(bytes)) ? RP_OK : RP__OOM("a loader");
    rp_tensor *t = rp_empty_pinned(RP_DIMS((int64_t)bytes), RP_U8);
    if (rp__tensor_is_error(t)) return rp_error_status();
    s->pinned = rp_retain(t);
    s->data = rp__tensor_data(t);
    return RP_OK;
}

static rp_status loader_fill(rp_loader *l, rp_tensor *const *arrays, size_t n, int64_t batch,
                             const rp_loader_options *o) {
    uint64_t seed = o->seed, offset;
    if (o->workers < 0 || o->workers > MAX_WORKERS || o->prefetch < 0 || o->prefetch > MAX_PREFETCH)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_loader_new: workers are 0 to 64, prefetch 0 to 1024");
    RP_TRY(take_arrays(l, arrays, n, batch));
    if (!seed) RP_TRY(rp_generator_get(rp_default_generator(rp_cpu()), &seed, &offset));
    l->batches = o->drop_last ? l->rows / batch : l->rows / batch + (l->rows % batch != 0);
    if (o->shuffle && !(l->order = rp__calloc((size_t)l->rows + 1, sizeof *l->order))) return RP__OOM("a loader");
    size_t bytes = 1;
    for (size_t k = 0; k < n; k++) bytes += (size_t)(batch < l->rows ? batch : l->rows) * l->row[k];
    const size_t slots = o->workers ? (size_t)o->workers * (size_t)(o->prefetch ? o->prefetch : 2) : 1;
    l->slots = rp__calloc(slots, sizeof *l->slots);
    if (!l->slots) return RP__OOM("a loader");
    for (l->n_slots = 0; l->n_slots < slots; l->n_slots++)
        RP_TRY(slot_new(&l->slots[l->n_slots], bytes, o->pin_memory));
    go_to(l, seed, 0, 0);
    for (; l->n_threads < (size_t)o->workers; l->n_threads++)
        if (pthread_create(&l->threads[l->n_threads], NULL, work, l) != 0)
            return rp__fail(RP_ERROR_OUT_OF_MEMORY, "rp_loader_new: the system gives no more threads");
    return RP_OK;
}

rp_loader *rp_loader_new_at(const char *site, rp_tensor *const *arrays, size_t n, int64_t batch,
                            const rp_loader_options *options) {
    RP__CALLED_FROM(site);
    rp_loader_options o;
    if (rp__options_read("rp_loader_new", options, sizeof o, &o) != RP_OK) return &failed_loader;
    rp_loader *l = rp__handle_new(RP__HANDLE_LOADER, sizeof *l);
    if (!l) {
        (void)RP__OOM("a loader");
        return &failed_loader;
    }
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->changed, NULL);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? loader_fill(l, arrays, n, batch, &o) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    if (status == RP_OK) return l;
    loader_free(l);
    return &failed_loader;
}

void rp_loader_release(rp_loader *l) {
    if (l && l != &failed_loader && rp__handle_give_up(l, RP__HANDLE_LOADER, "rp_loader_release")) loader_free(l);
}

/* ---------------------------------------------------------------- batches */

/* d NULL: tensors on the default device, copied at once; else on d, from page-locked memory, by its current stream. */
static rp_status make(const rp_loader *l, rp__device *d, const slot *s, int64_t n, rp_tensor **out) {
    const char *data = s->data;
    for (size_t k = 0; k < l->n; k++) {
        int64_t size[RP_MAX_DIMS];
        const rp_tensor *a = l->arrays[k];
        const size_t bytes = (size_t)n * l->row[k];
        memcpy(size, a->size, a->ndim * sizeof *size);
        size[0] = n;
        out[k] = d ? rp__tensor_empty(d, (rp_dtype)a->dtype, size, a->ndim)
                   : rp_from_data(data, size, a->ndim, (rp_dtype)a->dtype);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
        if (d) {
            rp_stream *side = rp__current_stream(d);
            RP_TRY(rp__storage_used_by(s->pinned->storage, side));
            RP_TRY(d->ops->copy_in_later(d, side, rp__tensor_data(out[k]), data, bytes));
        }
        data += bytes;
    }
    return RP_OK;
}

/* The batch is made by a stream of the loader's own, behind which the current one goes on. */
static rp_status make_aside(rp_loader *l, rp__device *d, const slot *s, int64_t n, rp_tensor **out) {
    rp_stream *own = rp__current_stream(d);
    RP_TRY(rp__capture_forbid(own, "taking a batch from a loader"));
    if (l->side && !rp__device_equal(l->side->device->id, d->id)) {
        rp_event_release(l->copied);
        rp_stream_release(l->side);
        l->side = NULL;
        l->copied = NULL;
    }
    if (!l->side) l->side = rp_stream_new(d->id);
    if (!l->copied) l->copied = rp_event_new(d->id, false);
    RP_TRY(rp_set_current_stream(l->side));
    rp_status status = make(l, d, s, n, out);
    if (rp_event_record(l->copied, l->side) != RP_OK && status == RP_OK) status = rp_error_status();
    if (rp_set_current_stream(own) != RP_OK && status == RP_OK) status = rp_error_status();
    return status == RP_OK ? rp_stream_wait_event(own, l->copied) : status;
}

bool rp_loader_next_at(const char *site, rp_loader *l, rp_tensor **out, size_t n_out) {
    RP__CALLED_FROM(site);
    for (size_t k = 0; out && k < n_out; k++) out[k] = rp__tensor_error();
    if (loader_check(l, "rp_loader_next") != RP_OK) return false;
    if (!out || n_out != l->n) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_loader_next: the loader has %zu arrays, not %zu", l->n, n_out);
        return false;
    }
    if (copies_end(l) != RP_OK) return false;
    if (l->next_take >= l->batches) { /* this thread alone changes it */
        go_to(l, l->seed, l->epoch + 1, 0);
        return false;
    }
    const int64_t batch = l->next_take;
    slot *s = &l->slots[(size_t)batch % l->n_slots];
    if (!l->n_threads) {
        fill(l, batch, s->data);
    } else {
        (void)pthread_mutex_lock(&l->lock);
        while (s->full != batch + 1) (void)pthread_cond_wait(&l->changed, &l->lock);
        (void)pthread_mutex_unlock(&l->lock);
    }
    rp__device *d = s->pinned ? rp__device_get(rp_default_device()) : NULL;
    const bool aside = d && d->id.type != RP_DEVICE_CPU;
    if (s->pinned && !d) return false;
    if ((aside ? make_aside(l, d, s, rows_of(l, batch), out) : make(l, NULL, s, rows_of(l, batch), out)) != RP_OK)
        return false;
    l->next_take = batch + 1; /* read by this thread alone */
    return aside || copies_end(l) == RP_OK;
}

int64_t rp_loader_batches(const rp_loader *l) { return rp__handle_is(l, RP__HANDLE_LOADER) ? l->batches : 0; }

rp_status rp_loader_position_at(const char *site, const rp_loader *l, uint64_t *seed, int64_t *epoch, int64_t *batch) {
    RP__CALLED_FROM(site);
    RP_TRY(loader_check(l, "rp_loader_position"));
    if (seed) *seed = l->seed;
    if (epoch) *epoch = l->epoch;
    if (batch) *batch = l->next_take;
    return RP_OK;
}

bool rp__loader_has(const rp_loader *l, int64_t epoch, int64_t batch) {
    return epoch >= 0 && epoch < MAX_EPOCH && batch >= 0 && batch <= l->batches;
}

rp_status rp_loader_seek_at(const char *site, rp_loader *l, uint64_t seed, int64_t epoch, int64_t batch) {
    RP__CALLED_FROM(site);
    RP_TRY(loader_check(l, "rp_loader_seek"));
    if (!rp__loader_has(l, epoch, batch))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_loader_seek: there is no epoch %lld with a batch %lld of %lld",
                        (long long)epoch, (long long)batch, (long long)l->batches);
    RP_TRY(copies_end(l));
    go_to(l, seed, epoch, batch);
    return RP_OK;
}
