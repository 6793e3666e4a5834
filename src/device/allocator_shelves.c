/* Segments and shelves of the allocator (allocator_parts.h): finds, cuts and joins blocks, gets segments from the device and
   gives them back, and keeps blocks that other streams used until those are done. Called under the allocator's lock, except
   for rp__allocator_forget, which takes it. Statistics are the caller's, but for reserved memory. */
#include "device/allocator_parts.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "device/capture.h"

/* ---- shelves */

static unsigned bin_of(const rp__allocator *a, size_t size) {
    unsigned long long q = size / a->rules.granule; /* at least 1 */
    unsigned log = 63u - (unsigned)__builtin_clzll(q);
    unsigned sub = log >= 2 ? (unsigned)(q >> (log - 2) & 3) : (unsigned)(q << (2 - log) & 3);
    unsigned bin = log * 4 + sub;
    return bin < RP__SHELF_BINS ? bin : RP__SHELF_BINS - 1;
}

void rp__block_shelve(rp__allocator *a, rp__shelf_block *b) {
    rp__shelf *s = b->shelf;
    unsigned bin = bin_of(a, b->size);
    b->free = true;
    b->free_prev = NULL;
    b->free_next = s->bins[bin];
    if (b->free_next) b->free_next->free_prev = b;
    s->bins[bin] = b;
    s->occupied[bin / 64] |= UINT64_C(1) << bin % 64;
}

void rp__block_unshelve(rp__allocator *a, rp__shelf_block *b) {
    rp__shelf *s = b->shelf;
    unsigned bin = bin_of(a, b->size);
    if (b->free_prev)
        b->free_prev->free_next = b->free_next;
    else
        s->bins[bin] = b->free_next;
    if (b->free_next) b->free_next->free_prev = b->free_prev;
    if (!s->bins[bin]) s->occupied[bin / 64] &= ~(UINT64_C(1) << bin % 64);
    b->free = false;
}

static rp__shelf *shelf_find(rp__allocator *a, rp_pool *pool, rp_stream *stream, bool small) {
    for (rp__shelf *s = a->shelves; s; s = s->next) {
        if (s->pool == pool && s->stream == stream && s->small == small && !s->orphan) return s;
    }
    rp__shelf *s = rp__calloc(1, sizeof *s);
    if (!s) return NULL;
    s->pool = pool;
    s->stream = stream;
    s->small = small;
    s->in_order = !pool && stream->is_default;
    s->next = a->shelves;
    a->shelves = s;
    return s;
}

static rp__shelf_block *struct_new(rp__allocator *a) {
    rp__shelf_block *b = a->spare;
    if (!b) return rp__calloc(1, sizeof *b);
    if (rp__alloc_denied()) return NULL;
    a->spare = b->free_next;
    memset(b, 0, sizeof *b);
    return b;
}

static void struct_free(rp__allocator *a, rp__shelf_block *b) {
    b->free_next = a->spare;
    a->spare = b;
}

/* Smallest free block of at least `size` bytes. */
static rp__shelf_block *best_fit(const rp__allocator *a, const rp__shelf *s, size_t size) {
    unsigned bin = bin_of(a, size);
    for (unsigned word = bin / 64; word < RP__SHELF_BINS / 64; word++) {
        uint64_t bits = s->occupied[word];
        if (word == bin / 64) bits &= ~UINT64_C(0) << bin % 64;
        for (; bits; bits &= bits - 1) {
            rp__shelf_block *best = NULL;
            for (rp__shelf_block *b = s->bins[word * 64 + (unsigned)__builtin_ctzll(bits)]; b; b = b->free_next) {
                if (b->size >= size && (!best || b->size < best->size)) best = b;
                if (best && best->size == size) return best;
            }
            if (best) return best;
        }
    }
    return NULL;
}

static void segment_drop(rp__allocator *a, rp__shelf_block *b) { /* a free block that is a whole segment */
    rp__block_unshelve(a, b);
    rp__log(RP__LOG_ALLOC, "%s: segment of %zu bytes returned", a->device->label, b->size);
    rp__block_unpoison(b->address, b->size);
    a->device->ops->segment_free(a->device, b->address, b->size);
    a->reserved -= b->size;
    if (b->shelf->pool || b->shelf->orphan) a->in_private_pools -= b->size;
    struct_free(a, b);
}

void rp__shelf_drop_segments(rp__allocator *a, rp__shelf *s) {
    for (unsigned bin = 0; bin < RP__SHELF_BINS; bin++) {
        for (rp__shelf_block *b = s->bins[bin], *next; b; b = next) {
            next = b->free_next;
            if (!b->before && !b->after) segment_drop(a, b);
        }
    }
}

void rp__block_return(rp__allocator *a, rp__shelf_block *b) {
    rp__shelf_block *n = b->after;
    if (n && n->free) {
        rp__block_unshelve(a, n);
        b->size += n->size;
        b->after = n->after;
        if (b->after) b->after->before = b;
        struct_free(a, n);
    }
    n = b->before;
    if (n && n->free) {
        rp__block_unshelve(a, n);
        n->size += b->size;
        n->after = b->after;
        if (n->after) n->after->before = n;
        struct_free(a, b);
        b = n;
    }
    if (rp__shelf_is_guarded(a, b->shelf)) rp__block_poison(b->address, b->size);
    rp__block_shelve(a, b);
}

static size_t request_size(const rp__allocator_rules *r, size_t bytes) {
    return (bytes + r->granule - 1) / r->granule * r->granule;
}

static size_t segment_size(const rp__allocator_rules *r, size_t size) {
    if (size <= r->small_limit) return r->small_segment;
    if (size < r->medium_limit) return r->medium_segment;
    return (size + r->large_round - 1) / r->large_round * r->large_round;
}

void rp__allocator_forget(rp__device *d, rp_stream *stream) {
    rp__allocator *a = d->allocator;
    rp__allocator_enter(a);
    for (rp__shelf **link = &a->shelves; *link;) {
        rp__shelf *s = *link, *target = a->shelves;
        if (s->stream != stream) {
            link = &s->next;
            continue;
        }
        /* Outside of pools all of it is free, whole segments that nothing uses: a live block would hold the stream. */
        rp_stream *heir = s->pool || s->orphan ? d->default_stream : NULL;
        while (target && !(target->pool == s->pool && target->stream == heir && target->small == s->small &&
                           target->orphan == s->orphan))
            target = target->next;
        if (!target) {
            s->stream = heir;
            link = &s->next;
            continue;
        }
        for (unsigned bin = 0; bin < RP__SHELF_BINS; bin++) {
            while (s->bins[bin]) {
                rp__shelf_block *b = s->bins[bin];
                rp__block_unshelve(a, b);
                b->shelf = target;
                rp__block_shelve(a, b);
            }
        }
        *link = s->next;
        rp__free(s);
    }
    rp__allocator_leave(a);
}

/* ---- what waits: for captures, for other streams */

void rp__allocator_drop_orphans(rp__allocator *a) {
    if (rp__captures_active()) return;
    for (rp__shelf **link = &a->shelves; *link;) {
        rp__shelf *s = *link;
        if (!s->orphan) {
            link = &s->next;
            continue;
        }
        if (!rp__allocator_at_rest(a)) return; /* a replay may still be running in it */
        rp__shelf_drop_segments(a, s);
        *link = s->next;
        rp__free(s);
    }
}

void rp__block_uses_free(rp__allocator *a, rp__block_uses *u) {
    for (size_t i = 0; i < u->n; i++) {
        if (u->entries[i].event) rp_event_release(u->entries[i].event);
        rp__allocator_give_up_stream(a, u->entries[i].stream);
    }
    rp__free(u->entries);
    rp__free(u);
}

/* Is the work done that the stream had when the memory was freed? */
static bool use_done(rp__block_use *e, bool wait) {
    rp__device *d = e->stream->device; /* another than the memory's, if that is page-locked */
    const rp__device_ops *ops = d->ops;
    bool done = false;
    if (atomic_load(&d->lost) != RP_OK) return true; /* nothing runs there any more */
    if (rp__stream_capturing(e->stream)) return false;
    if (!e->event && ops->idle && ops->idle(d)) return true;
    if (!e->event) {
        rp__error_state state; /* running out of memory here is answered by waiting, not reported */
        rp__error_save(&state);
        e->event = rp_event_new(d->id, false);
        if (rp_failed() || rp_event_record(e->event, e->stream) != RP_OK) {
            rp_event_release(e->event);
            e->event = NULL;
            done = ops->idle ? ops->idle(d) : ops->stream_synchronize(d, e->stream) == RP_OK;
        }
        rp_error_take();
        rp__error_restore(&state);
    }
    if (!e->event) return done;
    if (ops->event_done) return ops->event_done(d, e->event);
    return ops->event_query(d, e->event) || (wait && ops->event_synchronize(d, e->event) == RP_OK);
}

bool rp__block_uses_done(rp__allocator *a, rp__block_uses *u, bool wait) {
    for (size_t i = 0; i < u->n;) {
        rp__block_use *e = &u->entries[i];
        if (!use_done(e, wait)) {
            i++;
            continue;
        }
        if (e->event) rp_event_release(e->event);
        rp__allocator_give_up_stream(a, e->stream);
        *e = u->entries[--u->n];
    }
    return u->n == 0;
}

void rp__allocator_collect(rp__allocator *a, bool wait) {
    for (rp__block_base **link = &a->pending; *link;) {
        rp__block_base *b = *link;
        if (!rp__block_uses_done(a, b->uses, wait)) {
            link = &b->pending_next;
            continue;
        }
        *link = b->pending_next;
        a->n_pending--;
        rp__block_uses_free(a, b->uses);
        b->uses = NULL;
        rp__block_release(a, b);
    }
}

void rp__allocator_drop_cached(rp__allocator *a) {
    if (rp__captures_active()) return;
    rp__allocator_collect(a, true);
    rp__allocator_drop_orphans(a);
    if (!rp__allocator_at_rest(a)) return; /* queued work may still touch memory that was freed in stream order */
    for (rp__shelf *s = a->shelves; s; s = s->next) {
        if (!s->pool) rp__shelf_drop_segments(a, s);
    }
}

/* ---- segments */

static const char *bytes_text(uint64_t bytes, char buf[32]) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit < 6; unit++) value /= 1024;
    snprintf(buf, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return buf;
}

/* What the device was found to have left, for the error; `limit` empty: it does not say. */
typedef struct room {
    uint64_t bytes;
    char limit[96];
} room;

static rp_status segment_get(rp__allocator *a, size_t bytes, void **address, room *left) {
    const rp__device_ops *ops = a->device->ops;
    *left = (room){.bytes = UINT64_MAX};
    if (ops->memory_left) left->bytes = ops->memory_left(a->device, a->reserved, left->limit, sizeof left->limit);
    return bytes <= left->bytes ? ops->segment_alloc(a->device, bytes, address) : RP_ERROR_OUT_OF_MEMORY;
}

/* The segment of a stream that has ended, unless half of it would be too much. */
static rp__shelf_block *segment_inherit(rp__allocator *a, rp__shelf *s, size_t bytes) {
    rp__shelf *from = a->shelves;
    while (from && (from->stream || from->small != s->small)) from = from->next;
    rp__shelf_block *b = from ? best_fit(a, from, bytes) : NULL;
    if (!b || b->size / 2 > bytes) return NULL;
    rp__block_unshelve(a, b);
    if (s->pool) a->in_private_pools += b->size;
    b->shelf = s;
    return b;
}

static rp_status segment_new(rp__allocator *a, rp__shelf *s, size_t size, rp__shelf_block **out) {
    size_t bytes = segment_size(&a->rules, size);
    rp__shelf_block *b = segment_inherit(a, s, bytes);
    if (b) {
        *out = b;
        return RP_OK;
    }
    b = struct_new(a);
    if (!b) return RP__OOM("a memory block's record");
    void *address = NULL;
    rp__error_state state;
    rp__error_save(&state); /* a first refusal is not an error yet */
    room left;
    rp_status status = segment_get(a, bytes, &address, &left);
    if (status == RP_ERROR_OUT_OF_MEMORY) {
        rp_error_take();
        rp__allocator_drop_cached(a);
        rp_error_take();
        status = segment_get(a, bytes, &address, &left);
    }
    if (status != RP_OK) {
        struct_free(a, b);
        if (status == RP_ERROR_OUT_OF_MEMORY) {
            char want[32], live[32], held[32], private[32], device[24], there[32], has[192] = "";
            rp_error_take();
            if (left.limit[0])
                snprintf(has, sizeof has, ", which has %s left (%s)", bytes_text(left.bytes, there), left.limit);
            status = rp__fail(
                RP_ERROR_OUT_OF_MEMORY,
                "out of memory: tried to allocate %s on %s%s; tensors hold %s of %s reserved, %s of it in private pools of "
                "graphs; %zu freed blocks wait for other streams",
                bytes_text(size, want), rp__device_text(a->device->id, device), has,
                bytes_text((uint64_t)rp__allocator_allocated(a), live), bytes_text(a->reserved, held),
                bytes_text(a->in_private_pools, private), a->n_pending);
        }
        rp__error_restore(&state);
        return status;
    }
    rp__error_restore(&state);
    rp__log(RP__LOG_ALLOC, "%s: segment of %zu bytes", a->device->label, bytes);
    a->reserved += bytes;
    if (a->reserved > a->reserved_peak) a->reserved_peak = a->reserved;
    if (s->pool) a->in_private_pools += bytes;
    b->shelf = s;
    b->address = address;
    b->size = bytes;
    if (rp__shelf_is_guarded(a, s)) rp__block_poison(address, bytes);
    *out = b;
    return RP_OK;
}

rp__shelf_block *rp__block_cut(rp__allocator *a, rp__shelf_block *b, size_t size) {
    rp__shelf_block *tail = struct_new(a);
    if (!tail) return NULL;
    tail->shelf = b->shelf;
    tail->address = b->address + size;
    tail->size = b->size - size;
    tail->before = b;
    tail->after = b->after;
    if (tail->after) tail->after->before = tail;
    b->after = tail;
    b->size = size;
    return tail;
}

rp_status rp__block_take(rp__allocator *a, rp_pool *pool, rp_stream *stream, size_t bytes, rp__shelf_block **out) {
    const rp__allocator_rules *r = &a->rules;
    if (bytes > SIZE_MAX / 2)
        return rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: %zu bytes cannot be addressed", bytes);
    if (a->pending) rp__allocator_collect(a, false);
    size_t size = request_size(r, bytes);
    rp__shelf *s = shelf_find(a, pool, stream, size <= r->small_limit);
    if (!s) return RP__OOM("the allocator's list of a stream");
    rp__shelf_block *b = best_fit(a, s, size);
    if (b)
        rp__block_unshelve(a, b);
    else
        RP_TRY(segment_new(a, s, size, &b));
    size_t rest = b->size - size;
    if (rest >= (s->small ? r->granule : r->large_split)) {
        rp__shelf_block *tail = rp__block_cut(a, b, size);
        if (tail) rp__block_shelve(a, tail); /* without a record for it the block stays whole: wasteful, not wrong */
    }
    b->b = (rp__block_base){.pub = {b->address, b->size, pool, stream}, .kind = RP__BLOCK_GENERAL};
    rp__block_unpoison(b->address, b->size);
    *out = b;
    return RP_OK;
}
