/* The interface of the caching allocator (allocator.h), pieces, and statistics. Pieces are the fast path of the CPU device: a
   thread takes and gives them back without the lock, so what that path needs is all in this file. */
#include "device/allocator_parts.h"

#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "device/capture.h"
#include "tensor/tensor.h"

enum {
    PIECE_LIMIT = 32 * 1024,
    CHUNK_BYTES = 16 * 1024,  /* pieces are cut from blocks of this size or of 8 pieces */
    THREAD_BYTES = 64 * 1024, /* a thread keeps about this much of each class */
};

typedef struct rp__piece {
    rp__block_base b;
    struct rp__piece *next;
} piece;

typedef struct rp__chunk { /* a block cut into pieces of one class, until the allocator ends */
    struct rp__chunk *next;
    rp__shelf_block *memory;
    piece pieces[];
} chunk;

/* PyTorch's c10/cuda/CUDACachingAllocator constants. */
static const rp__allocator_rules cuda_rules = {512, 1 << 20, 2 << 20, 10 << 20, 20 << 20, 2 << 20, (1 << 20) + 1};
/* Segments are reserved address space: pages cost nothing before they are touched. */
static const rp__allocator_rules cpu_rules = {64, 32 << 10, 1 << 20, 8 << 20, 16 << 20, 2 << 20, 4096};

/* ---- the lock */

void rp__allocator_enter(rp__allocator *a) {
    rp__lock(&a->lock);
    a->depth++;
}

void rp__allocator_leave(rp__allocator *a) {
    while (a->depth == 1 && (a->given_up_streams || a->given_up_pools)) {
        rp_stream *s = a->given_up_streams;
        rp_pool *p = s ? NULL : a->given_up_pools;
        unsigned n = s ? s->given_up : p->given_up;
        if (s) {
            a->given_up_streams = s->given_up_next;
            s->given_up = 0;
        } else {
            a->given_up_pools = p->given_up_next;
            p->given_up = 0;
        }
        a->depth = 0;
        rp__unlock(&a->lock);
        for (; n; n--) {
            rp__stream_drop(s);
            rp__pool_drop(p);
        }
        rp__allocator_enter(a);
    }
    bool out = --a->depth == 0;
    rp__unlock(&a->lock);
    if (out && a->device->ops->poll) a->device->ops->poll(a->device);
}

void rp__allocator_give_up_stream(rp__allocator *a, rp_stream *s) {
    if (s &&
        s->device !=
            a->device) { /* of page-locked memory: it has no place in this list, and what it takes along is not a's */
        rp__stream_drop(s);
        return;
    }
    if (!s || s->is_default || s->given_up++) return;
    s->given_up_next = a->given_up_streams;
    a->given_up_streams = s;
}

void rp__allocator_give_up_pool(rp__allocator *a, rp_pool *p) {
    if (!p || p->given_up++) return;
    p->given_up_next = a->given_up_pools;
    a->given_up_pools = p;
}

void rp__allocator_settle(rp__allocator *a) {
    if (a->device->ops->idle && !rp__captures_active()) (void)a->device->ops->synchronize(a->device);
}

bool rp__allocator_at_rest(rp__allocator *a) {
    const rp__device_ops *ops = a->device->ops;
    if (ops->idle) return ops->idle(a->device);
    (void)ops->synchronize(a->device);
    return true;
}

/* rp__block_take, once more when the device has nothing left and there is work that keeps memory. Under the lock, which it leaves
   to wait for that work. */
static rp_status block_take(rp__allocator *a, rp_pool *pool, rp_stream *s, size_t bytes, rp__shelf_block **out) {
    rp__error_state state;
    rp__error_save(&state);
    rp_status status = rp__block_take(a, pool, s, bytes, out);
    if (RP__UNLIKELY(status == RP_ERROR_OUT_OF_MEMORY) && a->depth == 1 && a->device->ops->idle &&
        !rp__captures_active() && !a->device->ops->idle(a->device)) {
        rp_error_take();
        rp__allocator_leave(a);
        rp__allocator_settle(a);
        rp__allocator_enter(a);
        rp_error_take();
        status = rp__block_take(a, pool, s, bytes, out);
    }
    rp__error_restore(&state);
    return status;
}

/* ---- pieces: the fast path of the CPU device */

typedef struct rp__thread_cache {
    struct rp__thread_cache *next, *prev;
    struct {
        piece *head;
        uint32_t n, limit;
    } list[RP__ALLOCATOR_CLASSES];
    /* Written by the owner only; read by statistics. Bytes allocated since the last flush, their peak, and counts. */
    _Atomic int64_t allocated, peak;
    _Atomic uint64_t allocations, frees;
    rp__allocator *owner;
} cache;

static RP__TLS_FAST cache *mine;

static unsigned class_of(size_t bytes) { /* 64-byte steps up to 512, then four steps a doubling */
    if (bytes <= 512) return (unsigned)((bytes + 63) / 64 - 1);
    unsigned log = 63u - (unsigned)__builtin_clzll((unsigned long long)bytes - 1);
    return 8 + (log - 9) * 4 + (unsigned)((bytes - 1) >> (log - 2) & 3);
}

static size_t class_bytes(unsigned c) {
    return c < 8 ? 64 * ((size_t)c + 1) : (size_t)(5 + (c - 8) % 4) << ((c - 8) / 4 + 7);
}

static uint32_t class_limit(unsigned c) {
    size_t n = THREAD_BYTES / class_bytes(c);
    return n < 8 ? 8 : (uint32_t)n;
}

#define RELAXED_ADD(field, value)                                                                                      \
    atomic_store_explicit(&(field), atomic_load_explicit(&(field), memory_order_relaxed) + (value),                    \
                          memory_order_relaxed)

/* Moves a thread's counters into the allocator's; under the lock. Another thread's are only read. */
static void flush_counters(rp__allocator *a, cache *c) {
    int64_t peak = a->allocated + atomic_load_explicit(&c->peak, memory_order_relaxed);
    if (peak > a->allocated_peak) a->allocated_peak = peak;
    a->allocated += atomic_load_explicit(&c->allocated, memory_order_relaxed);
    a->allocations += atomic_load_explicit(&c->allocations, memory_order_relaxed);
    a->frees += atomic_load_explicit(&c->frees, memory_order_relaxed);
    atomic_store_explicit(&c->allocated, 0, memory_order_relaxed);
    atomic_store_explicit(&c->peak, 0, memory_order_relaxed);
    atomic_store_explicit(&c->allocations, 0, memory_order_relaxed);
    atomic_store_explicit(&c->frees, 0, memory_order_relaxed);
}

static void cache_free(void *argument) {
    cache *c = argument;
    rp__allocator *a = c->owner;
    mine = NULL;
    rp__allocator_enter(a);
    flush_counters(a, c);
    for (unsigned k = 0; k < RP__ALLOCATOR_CLASSES; k++) {
        for (piece *p = c->list[k].head, *next; p; p = next) {
            next = p->next;
            p->next = a->classes[k];
            a->classes[k] = p;
        }
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        a->caches = c->next;
    if (c->next) c->next->prev = c->prev;
    rp__allocator_leave(a);
    rp__free(c);
}

static __attribute__((noinline)) cache *cache_new(rp__allocator *a) {
    static rp__thread_end caches = {.end = cache_free};
    cache *c = rp__thread_new(&caches, sizeof *c);
    if (!c) return NULL;
    c->owner = a;
    for (unsigned k = 0; k < RP__ALLOCATOR_CLASSES; k++) c->list[k].limit = class_limit(k);
    rp__allocator_enter(a);
    c->next = a->caches;
    if (c->next) c->next->prev = c;
    a->caches = c;
    rp__allocator_leave(a);
    mine = c;
    return c;
}

/* The calling thread's cache; NULL when out of memory: then the slow path serves. */
static inline cache *cache_of(rp__allocator *a) { return RP__LIKELY(mine != NULL) ? mine : cache_new(a); }

int64_t rp__allocator_allocated(rp__allocator *a) {
    int64_t total = a->allocated;
    for (cache *c = a->caches; c; c = c->next) total += atomic_load_explicit(&c->allocated, memory_order_relaxed);
    return total;
}

void rp__allocator_count(rp__allocator *a, size_t bytes) {
    if (a->has_pieces && mine) flush_counters(a, mine);
    a->allocations++;
    a->allocated += (int64_t)bytes;
    int64_t now = rp__allocator_allocated(a);
    if (now > a->allocated_peak) a->allocated_peak = now;
}

/* Cuts a new chunk into pieces of class k; under the lock. */
static rp_status pieces_new(rp__allocator *a, unsigned k) {
    size_t bytes = class_bytes(k), n = CHUNK_BYTES / bytes;
    if (n < 8) n = 8;
    rp__shelf_block *memory;
    RP_TRY(block_take(a, NULL, a->device->default_stream, n * bytes, &memory));
    chunk *c = rp__calloc(1, sizeof *c + n * sizeof *c->pieces);
    if (!c) {
        rp__block_return(a, memory);
        return RP__OOM("records of small memory blocks");
    }
    rp__block_poison(memory->address, n * bytes);
    for (size_t i = 0; i < n; i++) {
        piece *p = &c->pieces[i];
        p->b.pub = (rp__block){memory->address + i * bytes, bytes, NULL, a->device->default_stream};
        p->b.kind = RP__BLOCK_PIECE;
        p->b.size_class = (uint8_t)k;
        p->next = i + 1 < n ? p + 1 : a->classes[k];
    }
    a->classes[k] = c->pieces;
    c->memory = memory;
    c->next = a->chunks;
    a->chunks = c;
    return RP_OK;
}

/* Half a cache full of class k from the shared list. */
static rp_status refill(rp__allocator *a, cache *c, unsigned k) {
    rp_status status = RP_OK;
    rp__allocator_enter(a);
    flush_counters(a, c);
    if (!a->classes[k] && a->pending) rp__allocator_collect(a, false);
    if (!a->classes[k]) status = pieces_new(a, k);
    for (size_t n = class_limit(k) / 2; n && a->classes[k]; n--) {
        piece *p = a->classes[k];
        a->classes[k] = p->next;
        p->next = c->list[k].head;
        c->list[k].head = p;
        c->list[k].n++;
    }
    rp__allocator_leave(a);
    return status;
}

static void spill(rp__allocator *a, cache *c, unsigned k) {
    rp__allocator_enter(a);
    flush_counters(a, c);
    for (size_t n = class_limit(k) / 2; n; n--) {
        piece *p = c->list[k].head;
        c->list[k].head = p->next;
        c->list[k].n--;
        p->next = a->classes[k];
        a->classes[k] = p;
    }
    rp__allocator_leave(a);
}

/* ---- the interface */

static __attribute__((noinline)) rp_status block_alloc_shelved(rp__allocator *a, rp_stream *s, size_t bytes,
                                                               rp__block **out) {
    rp_pool *pool = s->route;
    rp__shelf_block *b = NULL;
    rp__allocator_enter(a);
    rp_status status = pool && pool->ledger ? rp__pool_ledger_room(pool->ledger) : RP_OK;
    if (status == RP_OK && pool && pool->capture_ledger) status = rp__pool_ledger_room(pool->capture_ledger);
    if (status == RP_OK) status = block_take(a, pool, s, bytes, &b);
    if (status == RP_OK) {
        rp__allocator_count(a, b->size);
        if (pool && pool->ledger) rp__pool_ledger_note(pool->ledger, b->address, b->size);
        if (pool && pool->capture_ledger) rp__pool_ledger_note(pool->capture_ledger, b->address, b->size);
    }
    rp__allocator_leave(a);
    RP_TRY(status);
    if (pool) rp__pool_retain(pool);
    if (!s->is_default) rp__stream_retain(s);
    if (rp__shelf_is_guarded(a, b->shelf)) rp__block_poison((char *)b->address + bytes, b->size - bytes);
    *out = &b->b.pub;
    return RP_OK;
}

static rp_status piece_alloc(rp__allocator *a, size_t bytes, rp__block **out);

/* The thread has no piece of the class yet, or no cache. */
static __attribute__((noinline)) rp_status piece_alloc_slow(rp__allocator *a, size_t bytes, rp__block **out) {
    cache *c = cache_of(a);
    if (!c) return RP__OOM("a thread's cache of small memory blocks");
    unsigned k = class_of(bytes);
    if (!c->list[k].head) RP_TRY(refill(a, c, k));
    return piece_alloc(a, bytes, out);
}

static inline __attribute__((always_inline)) rp_status piece_alloc(rp__allocator *a, size_t bytes, rp__block **out) {
    cache *c = mine;
    unsigned k = class_of(bytes);
    piece *p = RP__LIKELY(c != NULL) ? c->list[k].head : NULL;
    if (RP__UNLIKELY(!p)) return piece_alloc_slow(a, bytes, out);
    c->list[k].head = p->next;
    c->list[k].n--;
    RELAXED_ADD(c->allocations, 1);
    int64_t now = atomic_load_explicit(&c->allocated, memory_order_relaxed) + (int64_t)p->b.pub.bytes;
    atomic_store_explicit(&c->allocated, now, memory_order_relaxed);
    if (now > atomic_load_explicit(&c->peak, memory_order_relaxed))
        atomic_store_explicit(&c->peak, now, memory_order_relaxed);
    rp__block_unpoison(p->b.pub.data, bytes);
    *out = &p->b.pub;
    return RP_OK;
}

rp_status rp__block_alloc(rp__device *d, rp_stream *s, size_t bytes, rp__block **out) {
    rp__allocator *a = d->allocator;
    *out = NULL;
    if (RP__UNLIKELY(bytes == 0)) {
        *out = &a->empty.pub;
        return RP_OK;
    }
    if (RP__UNLIKELY(rp__alloc_is_armed()) && rp__alloc_inject()) return RP__OOM("device memory");
    if (RP__LIKELY(bytes <= PIECE_LIMIT && a->has_pieces && s->is_default && !s->route))
        return piece_alloc(a, bytes, out);
    return block_alloc_shelved(a, s, bytes, out);
}

void rp__block_release(rp__allocator *a, rp__block_base *b) {
    if (b->kind == RP__BLOCK_PIECE) {
        piece *p = (piece *)b;
        rp__block_poison(b->pub.data, b->pub.bytes);
        p->next = a->classes[b->size_class];
        a->classes[b->size_class] = p;
        return;
    }
    rp_pool *pool = b->pub.pool;
    rp_stream *stream = b->pub.stream;
    rp__block_return(a, (rp__shelf_block *)b);
    if (!stream->is_default) rp__allocator_give_up_stream(a, stream);
    rp__allocator_give_up_pool(a, pool);
}

static __attribute__((noinline)) void block_free_slow(rp__allocator *a, rp__block_base *b) {
    rp__allocator_enter(a);
    a->frees++;
    a->allocated -= (int64_t)b->pub.bytes;
    if (b->uses && !rp__block_uses_done(a, b->uses, false)) {
        b->pending_next = a->pending;
        a->pending = b;
        a->n_pending++;
    } else {
        if (b->uses) rp__block_uses_free(a, b->uses);
        b->uses = NULL;
        rp__block_release(a, b);
    }
    rp__allocator_leave(a);
}

/* ---- memory of programs */

rp_status rp__block_foreign(rp__device *d, void *data, size_t bytes, void (*deleter)(void *), void *ctx,
                            rp__block **out) {
    *out = NULL;
    rp__foreign_collect(d);
    rp__foreign *f = rp__calloc(1, sizeof *f);
    rp__block_uses *u = NULL;
    if (f && d->id.type != RP_DEVICE_CPU) { /* the CPU's default stream runs what it is given at once */
        u = rp__calloc(1, sizeof *u);
        if (!u || !RP__GROW(&u->entries, &u->capacity, 1)) {
            rp__free(u);
            rp__free(f);
            f = NULL;
        } else {
            u->entries[u->n++] = (rp__block_use){rp__stream_retain(d->default_stream), NULL};
        }
    }
    if (!f) return RP__OOM("a record of wrapped memory");
    *f = (rp__foreign){
        .b = {.pub = {data, bytes, NULL, d->default_stream}, .kind = RP__BLOCK_FOREIGN, .uses = u},
        .deleter = deleter,
        .ctx = ctx,
    };
    *out = &f->b.pub;
    return RP_OK;
}

static void foreign_end(rp__foreign *f) {
    f->deleter(f->ctx);
    rp__free(f);
}

/* Takes those whose work is done out of the list of those that wait, then runs their deleters. */
static __attribute__((noinline)) void foreign_collect(rp__allocator *a) {
    rp__block_base *done = NULL;
    rp__allocator_enter(a);
    for (rp__block_base **link = &a->foreign_pending; *link;) {
        rp__block_base *b = *link;
        if (!rp__block_uses_done(a, b->uses, false)) {
            link = &b->pending_next;
            continue;
        }
        *link = b->pending_next;
        b->pending_next = done;
        done = b;
        rp__block_uses_free(a, b->uses);
    }
    if (!a->foreign_pending) atomic_store_explicit(&a->foreign_waits, false, memory_order_relaxed);
    rp__allocator_leave(a);
    for (rp__block_base *b = done, *next; b; b = next) {
        next = b->pending_next;
        foreign_end((rp__foreign *)b);
    }
}

void rp__foreign_collect(rp__device *d) {
    if (RP__UNLIKELY(atomic_load_explicit(&d->allocator->foreign_waits, memory_order_relaxed)))
        foreign_collect(d->allocator);
}

static void foreign_free(rp__allocator *a, rp__foreign *f) {
    rp__allocator_enter(a);
    bool done = !f->b.uses || rp__block_uses_done(a, f->b.uses, false);
    if (!done) {
        f->b.pending_next = a->foreign_pending;
        a->foreign_pending = &f->b;
        atomic_store_explicit(&a->foreign_waits, true, memory_order_relaxed);
    } else if (f->b.uses) {
        rp__block_uses_free(a, f->b.uses);
    }
    rp__allocator_leave(a);
    if (done) foreign_end(f);
}

void rp__block_free(rp__device *d, rp__block *pub) {
    if (!pub) return;
    rp__allocator *a = d->allocator;
    rp__block_base *b = (rp__block_base *)(void *)pub;
    if (RP__UNLIKELY(b->kind == RP__BLOCK_EMPTY)) return;
    cache *c = RP__LIKELY(b->kind == RP__BLOCK_PIECE && !b->uses) ? cache_of(a) : NULL;
    if (RP__UNLIKELY(!c)) {
        if (b->kind == RP__BLOCK_FOREIGN)
            foreign_free(a, (rp__foreign *)b);
        else
            block_free_slow(a, b);
        return;
    }
    unsigned k = b->size_class;
    piece *p = (piece *)b;
    rp__block_poison(pub->data, pub->bytes);
    p->next = c->list[k].head;
    c->list[k].head = p;
    RELAXED_ADD(c->frees, 1);
    RELAXED_ADD(c->allocated, -(int64_t)pub->bytes);
    if (RP__UNLIKELY(++c->list[k].n > c->list[k].limit)) spill(a, c, k);
}

rp_status rp__block_used_by(rp__block *pub, rp_stream *s) {
    rp__block_base *b = (rp__block_base *)(void *)pub;
    if (!pub || b->kind == RP__BLOCK_EMPTY || s == pub->stream) return RP_OK;
    rp__allocator *a = pub->stream->device->allocator;
    rp_status status = RP_OK;
    rp__allocator_enter(a);
    if (!b->uses) b->uses = rp__calloc(1, sizeof *b->uses);
    rp__block_uses *u = b->uses;
    bool known = false;
    for (size_t i = 0; u && i < u->n; i++) {
        if (u->entries[i].stream != s) continue;
        known = true;
        if (u->entries[i].event) rp_event_release(u->entries[i].event); /* of an earlier use */
        u->entries[i].event = NULL;
    }
    if (!u || (!known && !RP__GROW(&u->entries, &u->capacity, u->n + 1)))
        status = RP__OOM("the list of streams that use a memory block");
    else if (!known)
        u->entries[u->n++] = (rp__block_use){rp__stream_retain(s), NULL};
    rp__allocator_leave(a);
    return status;
}

rp_status rp__block_await(rp__block *pub, rp_stream *s) {
    rp__block_base *b = (rp__block_base *)(void *)pub;
    if (!pub || b->kind == RP__BLOCK_EMPTY || (s == pub->stream && !b->uses)) return RP_OK;
    rp__allocator *a = pub->stream->device->allocator;
    rp_status status = s != pub->stream ? rp__stream_follow(s, pub->stream) : RP_OK;
    for (size_t i = 0; status == RP_OK; i++) { /* not under the lock: the CPU's default stream waits at once */
        rp__allocator_enter(a);
        const rp__block_uses *u = b->uses && (i || !rp__block_uses_done(a, b->uses, false)) ? b->uses : NULL;
        bool more = u && i < u->n;
        rp_stream *other =
            more && u->entries[i].event && u->entries[i].stream != s ? rp__stream_retain(u->entries[i].stream) : NULL;
        rp__allocator_leave(a);
        if (!more) break;
        if (other) status = rp__stream_follow(s, other);
        rp__stream_drop(other);
    }
    return status;
}

rp_status rp__allocator_new(rp__device *d, rp__allocator **out) {
    *out = NULL;
    rp__allocator *a = rp__calloc(1, sizeof *a);
    if (!a) return RP__OOM("the allocator of a device");
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&a->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    a->fork_lock = (rp__fork_lock){.locks = &a->lock, .n = 1, .recursive = true};
    rp__fork_lock_add(&a->fork_lock);
    a->device = d;
    a->has_pieces = d->id.type == RP_DEVICE_CPU;
    a->rules = a->has_pieces ? cpu_rules : cuda_rules;
    a->empty = (rp__block_base){.pub = {NULL, 0, NULL, d->default_stream}, .kind = RP__BLOCK_EMPTY};
    *out = a;
    return RP_OK;
}

void rp__allocator_free(rp__allocator *a) {
    if (!a) return;
    rp__fork_lock_remove(&a->fork_lock);
    for (chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        rp__block_return(a, c->memory);
        rp__free(c);
    }
    for (rp__shelf *s = a->shelves, *next; s; s = next) {
        next = s->next;
        rp__shelf_drop_segments(a, s);
        rp__free(s);
    }
    for (rp__shelf_block *b = a->spare, *next; b; b = next) {
        next = b->free_next;
        rp__free(b);
    }
    pthread_mutex_destroy(&a->lock);
    rp__free(a);
}

bool rp__allocator_capture(rp_stream *s, struct rp__capture *c, rp_pool *pool) {
    rp__allocator *a = s->device->allocator;
    rp__allocator_enter(a);
    bool free = !c || !s->capture;
    if (free) {
        s->capture = c;
        s->route = pool;
    }
    rp__allocator_leave(a);
    return free;
}

/* ---- statistics */

rp_status rp_memory_stats_reset_peak_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    rp__allocator *a = d->allocator;
    rp__allocator_enter(a);
    if (a->has_pieces && mine) flush_counters(a, mine);
    a->allocated_peak = rp__allocator_allocated(a);
    a->reserved_peak = a->reserved;
    rp__allocator_leave(a);
    return RP_OK;
}

rp_status rp_memory_stats_get_at(const char *site, rp_device device, rp_memory_stats *stats) {
    RP__CALLED_FROM(site);
    if (!stats) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "memory_stats_get: the struct is NULL");
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    rp__allocator *a = d->allocator;
    rp_memory_stats full = {.struct_size = sizeof full};
    rp__allocator_enter(a);
    if (a->has_pieces && mine) flush_counters(a, mine);
    int64_t now = rp__allocator_allocated(a);
    if (now > a->allocated_peak) a->allocated_peak = now;
    full.allocated = (uint64_t)now;
    full.allocated_peak = (uint64_t)a->allocated_peak;
    full.reserved = a->reserved;
    full.reserved_peak = a->reserved_peak;
    full.in_private_pools = a->in_private_pools;
    full.allocations = a->allocations;
    full.frees = a->frees;
    for (cache *c = a->caches; c; c = c->next) {
        full.allocations += atomic_load_explicit(&c->allocations, memory_order_relaxed);
        full.frees += atomic_load_explicit(&c->frees, memory_order_relaxed);
    }
    rp__allocator_leave(a);
    rp__tensor_statistics(&full.root_scope_tensors, &full.live_tensors);
    return rp__options_write("memory_stats_get", stats, sizeof full, &full);
}

rp_status rp_empty_cache_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    rp__allocator_settle(d->allocator);
    rp__allocator_enter(d->allocator);
    rp__allocator_drop_cached(d->allocator);
    rp__allocator_leave(d->allocator);
    rp__foreign_collect(d);
    return RP_OK;
}
