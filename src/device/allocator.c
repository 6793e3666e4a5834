/* The caching allocator. Three layers:
     segments  from the device (rarely);
     shelves   free blocks of one (pool, stream, small or large), best fit, split and merged inside their segment;
     pieces    CPU only: fixed size classes up to 32 KiB on the default stream, cached by each thread, never merged.
   A shelf's stream orders the reuse of its blocks; blocks that other streams used wait for events of those streams.
   Called by storages and by captures; never calls up. A live block of a side stream holds the stream, one of a pool holds the
   pool; so the lock is recursive: dropping such a reference under it may end a stream or a pool. Under the lock only the
   device's ops are called. */
#include "device/allocator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "device/capture.h"
#include "tensor/tensor.h"

#if defined(__SANITIZE_ADDRESS__)
#define RP__ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RP__ASAN 1
#endif
#endif
#ifdef RP__ASAN
#include <sanitizer/asan_interface.h>
#endif

enum {
    BINS = 256,
    CLASSES = 32,
    PIECE_LIMIT = 32 * 1024,
    CHUNK_BYTES = 16 * 1024,  /* pieces are cut from blocks of this size or of 8 pieces */
    THREAD_BYTES = 64 * 1024, /* a thread keeps about this much of each class */
};

typedef enum kind { GENERAL, PIECE, EMPTY } kind;

/* What an allocation from another stream left behind: reuse waits until each is done. */
typedef struct use {
    rp_stream *stream; /* retained */
    rp_event *event;   /* recorded when the block was freed; NULL before, and while the stream is capturing */
} use;
typedef struct uses {
    size_t n, capacity;
    use *entries;
} uses;

typedef struct base { /* what every block begins with */
    rp__block pub;
    uint8_t kind, size_class;
    uses *uses;
    struct base *pending_next;
} base;

typedef struct piece {
    base b;
    struct piece *next;
} piece;

typedef struct chunk { /* a block cut into pieces of one class, until the allocator ends */
    struct chunk *next;
    struct block *memory;
    piece pieces[];
} chunk;

typedef struct shelf shelf;
typedef struct block {
    base b;
    shelf *shelf;
    char *address;
    size_t size;
    bool free;
    struct block *before, *after;        /* neighbours in the segment */
    struct block *free_prev, *free_next; /* in the bin; free_next also links spare structs */
} block;

struct shelf {
    rp_pool *pool;
    rp_stream *stream;
    bool small, orphan; /* orphan: its pool is gone; the segments go when no capture forbids it */
    /* Nothing uses memory that is free: a sanitizer may watch it. A stream that queues still runs what was launched before,
       and a graph's replay uses memory of its pool that was free in between. */
    bool in_order;
    shelf *next;
    uint64_t occupied[BINS / 64];
    block *bins[BINS];
};

typedef struct rules {
    size_t granule, small_limit, small_segment, medium_limit, medium_segment, large_round, large_split;
} rules;
/* PyTorch's c10/cuda/CUDACachingAllocator constants. */
static const rules cuda_rules = {512, 1 << 20, 2 << 20, 10 << 20, 20 << 20, 2 << 20, (1 << 20) + 1};
/* Segments are reserved address space: pages cost nothing before they are touched. */
static const rules cpu_rules = {64, 32 << 10, 1 << 20, 8 << 20, 16 << 20, 2 << 20, 4096};

struct rp__allocator {
    rp__device *device;
    rules rules;
    rp__mutex lock;
    rp__fork_lock fork_lock;
    shelf *shelves;
    block *spare;
    base *pending; /* freed, but used by other streams */
    size_t n_pending;
    int64_t allocated, allocated_peak; /* without what threads hold in their counters */
    uint64_t reserved, reserved_peak, in_private_pools, allocations, frees;
    base empty;
    bool has_pieces;
    piece *classes[CLASSES];
    chunk *chunks;
    struct cache *caches; /* of all threads */
};

/* ---- pieces: the fast path of the CPU device */

typedef struct cache {
    struct cache *next, *prev;
    struct {
        piece *head;
        size_t n;
    } list[CLASSES];
    /* Written by the owner only; read by statistics. Bytes allocated since the last flush, their peak, and counts. */
    _Atomic int64_t allocated, peak;
    _Atomic uint64_t allocations, frees;
    rp__allocator *owner;
} cache;

static RP__TLS_FAST cache *mine;
static pthread_key_t cache_key;
static pthread_once_t cache_once = PTHREAD_ONCE_INIT;
static bool cache_key_made;

static unsigned class_of(size_t bytes) { /* 64-byte steps up to 512, then four steps a doubling */
    if (bytes <= 512) return (unsigned)((bytes + 63) / 64 - 1);
    unsigned log = 63u - (unsigned)__builtin_clzll((unsigned long long)bytes - 1);
    return 8 + (log - 9) * 4 + (unsigned)((bytes - 1) >> (log - 2) & 3);
}

static size_t class_bytes(unsigned c) {
    return c < 8 ? 64 * ((size_t)c + 1) : (size_t)(5 + (c - 8) % 4) << ((c - 8) / 4 + 7);
}

static size_t class_limit(unsigned c) {
    size_t n = THREAD_BYTES / class_bytes(c);
    return n < 8 ? 8 : n;
}

static void poison(const void *p, size_t bytes) {
#ifdef RP__ASAN
    ASAN_POISON_MEMORY_REGION(p, bytes);
#else
    (void)p, (void)bytes;
#endif
}

static void unpoison(const void *p, size_t bytes) {
#ifdef RP__ASAN
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#else
    (void)p, (void)bytes;
#endif
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
    rp__lock(&a->lock);
    flush_counters(a, c);
    for (unsigned k = 0; k < CLASSES; k++) {
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
    rp__unlock(&a->lock);
    rp__free(c);
}

static void make_cache_key(void) { cache_key_made = pthread_key_create(&cache_key, cache_free) == 0; }

/* The calling thread's cache; NULL when out of memory: then the slow path serves. */
static cache *cache_of(rp__allocator *a) {
    if (RP__LIKELY(mine != NULL)) return mine;
    pthread_once(&cache_once, make_cache_key);
    if (!cache_key_made) return NULL;
    cache *c = rp__calloc(1, sizeof *c);
    if (!c) return NULL;
    if (pthread_setspecific(cache_key, c)) {
        rp__free(c);
        return NULL;
    }
    c->owner = a;
    rp__lock(&a->lock);
    c->next = a->caches;
    if (c->next) c->next->prev = c;
    a->caches = c;
    rp__unlock(&a->lock);
    mine = c;
    return c;
}

/* ---- shelves */

static unsigned bin_of(const rp__allocator *a, size_t size) {
    unsigned long long q = size / a->rules.granule; /* at least 1 */
    unsigned log = 63u - (unsigned)__builtin_clzll(q);
    unsigned sub = log >= 2 ? (unsigned)(q >> (log - 2) & 3) : (unsigned)(q << (2 - log) & 3);
    unsigned bin = log * 4 + sub;
    return bin < BINS ? bin : BINS - 1;
}

static void shelve(rp__allocator *a, block *b) {
    shelf *s = b->shelf;
    unsigned bin = bin_of(a, b->size);
    b->free = true;
    b->free_prev = NULL;
    b->free_next = s->bins[bin];
    if (b->free_next) b->free_next->free_prev = b;
    s->bins[bin] = b;
    s->occupied[bin / 64] |= UINT64_C(1) << bin % 64;
}

static void unshelve(rp__allocator *a, block *b) {
    shelf *s = b->shelf;
    unsigned bin = bin_of(a, b->size);
    if (b->free_prev)
        b->free_prev->free_next = b->free_next;
    else
        s->bins[bin] = b->free_next;
    if (b->free_next) b->free_next->free_prev = b->free_prev;
    if (!s->bins[bin]) s->occupied[bin / 64] &= ~(UINT64_C(1) << bin % 64);
    b->free = false;
}

static shelf *shelf_find(rp__allocator *a, rp_pool *pool, rp_stream *stream, bool small) {
    for (shelf *s = a->shelves; s; s = s->next) {
        if (s->pool == pool && s->stream == stream && s->small == small && !s->orphan) return s;
    }
    shelf *s = rp__calloc(1, sizeof *s);
    if (!s) return NULL;
    s->pool = pool;
    s->stream = stream;
    s->small = small;
    s->in_order = !pool && stream->is_default;
    s->next = a->shelves;
    a->shelves = s;
    return s;
}

static block *struct_new(rp__allocator *a) {
    block *b = a->spare;
    if (!b) return rp__calloc(1, sizeof *b);
    if (rp__alloc_denied()) return NULL;
    a->spare = b->free_next;
    memset(b, 0, sizeof *b);
    return b;
}

static void struct_free(rp__allocator *a, block *b) {
    b->free_next = a->spare;
    a->spare = b;
}

/* Smallest free block of at least `size` bytes. */
static block *best_fit(const rp__allocator *a, const shelf *s, size_t size) {
    unsigned bin = bin_of(a, size);
    for (unsigned word = bin / 64; word < BINS / 64; word++) {
        uint64_t bits = s->occupied[word];
        if (word == bin / 64) bits &= ~UINT64_C(0) << bin % 64;
        for (; bits; bits &= bits - 1) {
            block *best = NULL;
            for (block *b = s->bins[word * 64 + (unsigned)__builtin_ctzll(bits)]; b; b = b->free_next) {
                if (b->size >= size && (!best || b->size < best->size)) best = b;
                if (best && best->size == size) return best;
            }
            if (best) return best;
        }
    }
    return NULL;
}

static void segment_drop(rp__allocator *a, block *b) { /* a free block that is a whole segment */
    unshelve(a, b);
    rp__log(RP__LOG_ALLOC, "%s: segment of %zu bytes returned", a->device->label, b->size);
    unpoison(b->address, b->size);
    a->device->ops->segment_free(a->device, b->address, b->size);
    a->reserved -= b->size;
    if (b->shelf->pool || b->shelf->orphan) a->in_private_pools -= b->size;
    struct_free(a, b);
}

static void shelf_drop_segments(rp__allocator *a, shelf *s) {
    for (unsigned bin = 0; bin < BINS; bin++) {
        for (block *b = s->bins[bin], *next; b; b = next) {
            next = b->free_next;
            if (!b->before && !b->after) segment_drop(a, b);
        }
    }
}

/* Does a touch of memory of this shelf, while no block has it, mean a defect? Not in a private pool, whose graphs go on using it,
 * and not on a device that works behind the host's back. */
static bool is_guarded(const rp__allocator *a, const shelf *s) {
    return a->device->id.type == RP_DEVICE_CPU && s->in_order;
}

/* Joins a block that is being freed with its free neighbours and shelves it. */
static void block_return(rp__allocator *a, block *b) {
    block *n = b->after;
    if (n && n->free) {
        unshelve(a, n);
        b->size += n->size;
        b->after = n->after;
        if (b->after) b->after->before = b;
        struct_free(a, n);
    }
    n = b->before;
    if (n && n->free) {
        unshelve(a, n);
        n->size += b->size;
        n->after = b->after;
        if (n->after) n->after->before = n;
        struct_free(a, b);
        b = n;
    }
    if (is_guarded(a, b->shelf)) poison(b->address, b->size);
    shelve(a, b);
}

static size_t request_size(const rules *r, size_t bytes) { return (bytes + r->granule - 1) / r->granule * r->granule; }

static size_t segment_size(const rules *r, size_t size) {
    if (size <= r->small_limit) return r->small_segment;
    if (size < r->medium_limit) return r->medium_segment;
    return (size + r->large_round - 1) / r->large_round * r->large_round;
}

static void drop_orphans(rp__allocator *a) {
    if (rp__captures_active()) return;
    for (shelf **link = &a->shelves; *link;) {
        shelf *s = *link;
        if (!s->orphan) {
            link = &s->next;
            continue;
        }
        a->device->ops->synchronize(a->device); /* a replay may still be running in it */
        shelf_drop_segments(a, s);
        *link = s->next;
        rp__free(s);
    }
}

static void uses_free(uses *u) {
    for (size_t i = 0; i < u->n; i++) {
        if (u->entries[i].event) rp_event_release(u->entries[i].event);
        rp_stream_release(u->entries[i].stream);
    }
    rp__free(u->entries);
    rp__free(u);
}

/* Is the work of the other streams done? Drops what is. `wait`: waits for it instead (not in captures). */
static bool uses_done(rp__allocator *a, uses *u, bool wait) {
    const rp__device_ops *ops = a->device->ops;
    for (size_t i = 0; i < u->n;) {
        use *e = &u->entries[i];
        bool done = false;
        if (!rp__stream_capturing(e->stream)) {
            if (!e->event) {
                rp__error_state state; /* running out of memory here is answered by waiting, not reported */
                rp__error_save(&state);
                e->event = rp_event_new(a->device->id, false);
                if (rp_failed() || rp_event_record(e->event, e->stream) != RP_OK) {
                    rp_event_release(e->event);
                    e->event = NULL;
                    done = ops->stream_synchronize(a->device, e->stream) == RP_OK;
                }
                rp_error_take();
                rp__error_restore(&state);
            }
            if (e->event)
                done = ops->event_query(a->device, e->event) ||
                       (wait && ops->event_synchronize(a->device, e->event) == RP_OK);
        }
        if (!done) {
            i++;
            continue;
        }
        if (e->event) rp_event_release(e->event);
        rp_stream_release(e->stream);
        *e = u->entries[--u->n];
    }
    return u->n == 0;
}

static void release_now(rp__allocator *a, base *b);

static void collect_pending(rp__allocator *a, bool wait) {
    for (base **link = &a->pending; *link;) {
        base *b = *link;
        if (!uses_done(a, b->uses, wait)) {
            link = &b->pending_next;
            continue;
        }
        *link = b->pending_next;
        a->n_pending--;
        uses_free(b->uses);
        b->uses = NULL;
        release_now(a, b);
    }
}

/* Gives cached segments of the default pool back to the device. */
static void drop_cached(rp__allocator *a) {
    if (rp__captures_active()) return;
    collect_pending(a, true);
    drop_orphans(a);
    a->device->ops->synchronize(a->device); /* queued work may still touch memory that was freed in stream order */
    for (shelf *s = a->shelves; s; s = s->next) {
        if (!s->pool) shelf_drop_segments(a, s);
    }
}

static const char *bytes_text(uint64_t bytes, char buf[32]) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit < 6; unit++) value /= 1024;
    snprintf(buf, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return buf;
}

static int64_t allocated_now(rp__allocator *a) {
    int64_t total = a->allocated;
    for (cache *c = a->caches; c; c = c->next) total += atomic_load_explicit(&c->allocated, memory_order_relaxed);
    return total;
}

static rp_status segment_new(rp__allocator *a, shelf *s, size_t size, block **out) {
    size_t bytes = segment_size(&a->rules, size);
    block *b = struct_new(a);
    if (!b) return RP__OOM("a memory block's record");
    void *address = NULL;
    rp__error_state state;
    rp__error_save(&state); /* a first refusal is not an error yet */
    rp_status status = a->device->ops->segment_alloc(a->device, bytes, &address);
    if (status == RP_ERROR_OUT_OF_MEMORY) {
        rp_error_take();
        drop_cached(a);
        rp_error_take();
        status = a->device->ops->segment_alloc(a->device, bytes, &address);
    }
    if (status != RP_OK) {
        struct_free(a, b);
        if (status == RP_ERROR_OUT_OF_MEMORY) {
            char want[32], live[32], held[32], private[32], device[24];
            rp_error_take();
            status = rp__fail(
                RP_ERROR_OUT_OF_MEMORY,
                "out of memory: tried to allocate %s on %s; tensors hold %s of %s reserved, %s of it in private pools of "
                "graphs; %zu freed blocks wait for other streams",
                bytes_text(size, want), rp__device_text(a->device->id, device),
                bytes_text((uint64_t)allocated_now(a), live), bytes_text(a->reserved, held),
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
    if (is_guarded(a, s)) poison(address, bytes);
    *out = b;
    return RP_OK;
}

/* Cuts b, which is not shelved, behind its first `size` bytes; the rest is not shelved either. NULL: no memory for its record. */
static block *cut(rp__allocator *a, block *b, size_t size) {
    block *tail = struct_new(a);
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

/* A block of at least `bytes` bytes; statistics are the caller's. Under the lock. */
static rp_status take_block(rp__allocator *a, rp_pool *pool, rp_stream *stream, size_t bytes, block **out) {
    const rules *r = &a->rules;
    if (bytes > SIZE_MAX / 2)
        return rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: %zu bytes cannot be addressed", bytes);
    if (a->pending) collect_pending(a, false);
    size_t size = request_size(r, bytes);
    shelf *s = shelf_find(a, pool, stream, size <= r->small_limit);
    if (!s) return RP__OOM("the allocator's list of a stream");
    block *b = best_fit(a, s, size);
    if (b)
        unshelve(a, b);
    else
        RP_TRY(segment_new(a, s, size, &b));
    size_t rest = b->size - size;
    if (rest >= (s->small ? r->granule : r->large_split)) {
        block *tail = cut(a, b, size);
        if (tail) shelve(a, tail); /* without a record for it the block stays whole: wasteful, not wrong */
    }
    b->b = (base){.pub = {b->address, b->size, pool, stream}, .kind = GENERAL};
    unpoison(b->address, b->size);
    *out = b;
    return RP_OK;
}

static void count_alloc(rp__allocator *a, size_t bytes) {
    if (a->has_pieces && mine) flush_counters(a, mine);
    a->allocations++;
    a->allocated += (int64_t)bytes;
    int64_t now = allocated_now(a);
    if (now > a->allocated_peak) a->allocated_peak = now;
}

/* Cuts a new chunk into pieces of class k; under the lock. */
static rp_status pieces_new(rp__allocator *a, unsigned k) {
    size_t bytes = class_bytes(k), n = CHUNK_BYTES / bytes;
    if (n < 8) n = 8;
    block *memory;
    RP_TRY(take_block(a, NULL, a->device->default_stream, n * bytes, &memory));
    chunk *c = rp__calloc(1, sizeof *c + n * sizeof *c->pieces);
    if (!c) {
        block_return(a, memory);
        return RP__OOM("records of small memory blocks");
    }
    poison(memory->address, n * bytes);
    for (size_t i = 0; i < n; i++) {
        piece *p = &c->pieces[i];
        p->b.pub = (rp__block){memory->address + i * bytes, bytes, NULL, a->device->default_stream};
        p->b.kind = PIECE;
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
    rp__lock(&a->lock);
    flush_counters(a, c);
    if (!a->classes[k] && a->pending) collect_pending(a, false);
    if (!a->classes[k]) status = pieces_new(a, k);
    for (size_t n = class_limit(k) / 2; n && a->classes[k]; n--) {
        piece *p = a->classes[k];
        a->classes[k] = p->next;
        p->next = c->list[k].head;
        c->list[k].head = p;
        c->list[k].n++;
    }
    rp__unlock(&a->lock);
    return status;
}

static void spill(rp__allocator *a, cache *c, unsigned k) {
    rp__lock(&a->lock);
    flush_counters(a, c);
    for (size_t n = class_limit(k) / 2; n; n--) {
        piece *p = c->list[k].head;
        c->list[k].head = p->next;
        c->list[k].n--;
        p->next = a->classes[k];
        a->classes[k] = p;
    }
    rp__unlock(&a->lock);
}

/* ---- ledgers: which memory of a pool was in use at any time since rp__pool_hold_begin */

typedef rp__pool_range range;
typedef struct rp__pool_ledger {
    size_t n, capacity;
    range *ranges;
} ledger;

static int by_begin(const void *x, const void *y) {
    const range *a = x, *b = y;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Sorts the ranges and joins those that touch. */
static void ledger_join(ledger *l) {
    size_t n = 0;
    qsort(l->ranges, l->n, sizeof *l->ranges, by_begin);
    for (size_t i = 0; i < l->n; i++) {
        range r = l->ranges[i];
        if (n && r.begin <= l->ranges[n - 1].end) {
            if (r.end > l->ranges[n - 1].end) l->ranges[n - 1].end = r.end;
        } else {
            l->ranges[n++] = r;
        }
    }
    l->n = n;
}

/* Room for one more. Temporaries take the same places again and again: joining them keeps the list short. */
static rp_status ledger_room(ledger *l) {
    if (l->n < l->capacity) return RP_OK;
    if (l->n) ledger_join(l);
    if (l->n < l->capacity / 2) return RP_OK;
    return RP__GROW(&l->ranges, &l->capacity, l->capacity + 1) ? RP_OK : RP__OOM("the memory that captures use");
}

static void ledger_note(ledger *l, char *address, size_t size) { l->ranges[l->n++] = (range){address, address + size}; }

/* A free block of the pool that lies in the range, in part at least. */
static block *free_in(const rp__allocator *a, const rp_pool *p, range r) {
    for (const shelf *s = a->shelves; s; s = s->next) {
        if (s->pool != p) continue;
        for (unsigned bin = 0; bin < BINS; bin++)
            for (block *b = s->bins[bin]; b; b = b->free_next)
                if (b->address < r.end && b->address + b->size > r.begin) return b;
    }
    return NULL;
}

/* Takes what of a free block lies in the range; all of it where there is no memory for records of the rest. */
static block *take_part(rp__allocator *a, block *b, range r) {
    unshelve(a, b);
    if (b->address < r.begin) {
        block *tail = cut(a, b, (size_t)(r.begin - b->address));
        if (tail) {
            shelve(a, b);
            b = tail;
        }
    }
    if (b->address + b->size > r.end) {
        block *tail = cut(a, b, (size_t)(r.end - b->address));
        if (tail) shelve(a, tail);
    }
    b->b = (base){.pub = {b->address, b->size, b->shelf->pool, b->shelf->stream}, .kind = GENERAL};
    unpoison(b->address, b->size);
    rp__pool_retain(b->shelf->pool);
    if (!b->shelf->stream->is_default) rp__stream_retain(b->shelf->stream);
    count_alloc(a, b->size);
    return b;
}

static rp_status ledger_open(rp_pool *p, ledger **l) {
    rp__allocator *a = p->device->allocator;
    rp_status status = RP_OK;
    rp__lock(&a->lock);
    if (*l)
        status = rp__fail(RP_ERROR_STATE, "another thread is capturing graphed callables into this pool");
    else if (!(*l = rp__calloc(1, sizeof **l)))
        status = RP__OOM("the memory that captures use");
    rp__unlock(&a->lock);
    return status;
}

rp_status rp__pool_ranges_begin(rp_pool *p) { return ledger_open(p, &p->capture_ledger); }

void rp__pool_ranges_end(rp_pool *p, rp__pool_range **out, size_t *n) {
    rp__allocator *a = p->device->allocator;
    rp__lock(&a->lock);
    ledger *l = p->capture_ledger;
    p->capture_ledger = NULL;
    rp__unlock(&a->lock);
    if (l->n) ledger_join(l);
    *out = l->ranges;
    *n = l->n;
    rp__free(l);
}

rp_status rp__pool_hold_begin(rp_pool *p) { return ledger_open(p, &p->ledger); }

rp_status rp__pool_hold_end(rp_pool *p, rp__pool_hold **out) {
    rp__allocator *a = p->device->allocator;
    rp_status status = RP_OK;
    rp__pool_hold *h = NULL;
    if (out) {
        *out = NULL;
        h = rp__calloc(1, sizeof *h);
        if (!h) status = RP__OOM("the memory that captures use");
    }
    rp__lock(&a->lock);
    ledger *l = p->ledger;
    p->ledger = NULL;
    if (h) {
        atomic_init(&h->refs, 1);
        if (a->pending) collect_pending(a, !rp__captures_active());
        if (l->n) ledger_join(l);
    }
    for (size_t i = 0; h && i < l->n && status == RP_OK; i++) {
        for (block *b; status == RP_OK && (b = free_in(a, p, l->ranges[i]));) {
            if (RP__GROW(&h->blocks, &h->capacity, h->n + 1))
                h->blocks[h->n++] = &take_part(a, b, l->ranges[i])->b.pub;
            else
                status = RP__OOM("the memory that captures use");
        }
    }
    rp__unlock(&a->lock);
    rp__free(l->ranges);
    rp__free(l);
    if (status == RP_OK && out)
        *out = h;
    else
        rp__pool_hold_release(h);
    return status;
}

rp__pool_hold *rp__pool_hold_retain(rp__pool_hold *h) {
    if (h) atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
    return h;
}

void rp__pool_hold_release(rp__pool_hold *h) {
    if (!h || atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t i = 0; i < h->n; i++) rp__block_free(h->blocks[i]->stream->device, h->blocks[i]);
    rp__free(h->blocks);
    rp__free(h);
}

/* ---- the interface */

rp_status rp__block_alloc(rp__device *d, rp_stream *s, size_t bytes, rp__block **out) {
    rp__allocator *a = d->allocator;
    *out = NULL;
    if (bytes == 0) {
        *out = &a->empty.pub;
        return RP_OK;
    }
    if (rp__alloc_denied()) return RP__OOM("device memory");
    rp_pool *pool = s->route;
    if (bytes <= PIECE_LIMIT && a->has_pieces && s->is_default && !pool) {
        cache *c = cache_of(a);
        if (!c) return RP__OOM("a thread's cache of small memory blocks");
        unsigned k = class_of(bytes);
        if (RP__UNLIKELY(!c->list[k].head)) RP_TRY(refill(a, c, k));
        piece *p = c->list[k].head;
        c->list[k].head = p->next;
        c->list[k].n--;
        RELAXED_ADD(c->allocations, 1);
        int64_t now = atomic_load_explicit(&c->allocated, memory_order_relaxed) + (int64_t)p->b.pub.bytes;
        atomic_store_explicit(&c->allocated, now, memory_order_relaxed);
        if (now > atomic_load_explicit(&c->peak, memory_order_relaxed))
            atomic_store_explicit(&c->peak, now, memory_order_relaxed);
        unpoison(p->b.pub.data, bytes);
        *out = &p->b.pub;
        return RP_OK;
    }
    block *b = NULL;
    rp__lock(&a->lock);
    rp_status status = pool && pool->ledger ? ledger_room(pool->ledger) : RP_OK;
    if (status == RP_OK && pool && pool->capture_ledger) status = ledger_room(pool->capture_ledger);
    if (status == RP_OK) status = take_block(a, pool, s, bytes, &b);
    if (status == RP_OK) {
        count_alloc(a, b->size);
        if (pool && pool->ledger) ledger_note(pool->ledger, b->address, b->size);
        if (pool && pool->capture_ledger) ledger_note(pool->capture_ledger, b->address, b->size);
    }
    rp__unlock(&a->lock);
    RP_TRY(status);
    if (pool) rp__pool_retain(pool);
    if (!s->is_default) rp__stream_retain(s);
    if (is_guarded(a, b->shelf)) poison((char *)b->address + bytes, b->size - bytes);
    *out = &b->b.pub;
    return RP_OK;
}

/* Makes memory reusable and drops what a live block holds; under the lock. The block's record is gone afterwards. */
static void release_now(rp__allocator *a, base *b) {
    if (b->kind == PIECE) {
        piece *p = (piece *)b;
        poison(b->pub.data, b->pub.bytes);
        p->next = a->classes[b->size_class];
        a->classes[b->size_class] = p;
        return;
    }
    rp_pool *pool = b->pub.pool;
    rp_stream *stream = b->pub.stream;
    block_return(a, (block *)b);
    if (!stream->is_default) rp_stream_release(stream);
    if (pool) rp_pool_release(pool);
}

void rp__block_free(rp__device *d, rp__block *pub) {
    if (!pub) return;
    rp__allocator *a = d->allocator;
    base *b = (base *)(void *)pub;
    if (b->kind == EMPTY) return;
    if (RP__LIKELY(b->kind == PIECE && !b->uses)) {
        cache *c = cache_of(a);
        if (c) {
            unsigned k = b->size_class;
            piece *p = (piece *)b;
            poison(pub->data, pub->bytes);
            p->next = c->list[k].head;
            c->list[k].head = p;
            RELAXED_ADD(c->frees, 1);
            RELAXED_ADD(c->allocated, -(int64_t)pub->bytes);
            if (RP__UNLIKELY(++c->list[k].n > class_limit(k))) spill(a, c, k);
            return;
        }
    }
    rp__lock(&a->lock);
    a->frees++;
    a->allocated -= (int64_t)pub->bytes;
    if (b->uses && !uses_done(a, b->uses, false)) {
        b->pending_next = a->pending;
        a->pending = b;
        a->n_pending++;
    } else {
        if (b->uses) uses_free(b->uses);
        b->uses = NULL;
        release_now(a, b);
    }
    rp__unlock(&a->lock);
}

rp_status rp__block_used_by(rp__block *pub, rp_stream *s) {
    base *b = (base *)(void *)pub;
    if (!pub || b->kind == EMPTY || s == pub->stream) return RP_OK;
    rp__allocator *a = pub->stream->device->allocator;
    rp_status status = RP_OK;
    rp__lock(&a->lock);
    if (!b->uses) b->uses = rp__calloc(1, sizeof *b->uses);
    uses *u = b->uses;
    bool known = false;
    for (size_t i = 0; u && i < u->n; i++) known = known || u->entries[i].stream == s;
    if (!u || (!known && !RP__GROW(&u->entries, &u->capacity, u->n + 1)))
        status = RP__OOM("the list of streams that use a memory block");
    else if (!known)
        u->entries[u->n++] = (use){rp__stream_retain(s), NULL};
    rp__unlock(&a->lock);
    return status;
}

void rp__allocator_forget(rp__device *d, rp_stream *stream) {
    rp__allocator *a = d->allocator;
    rp__lock(&a->lock);
    for (shelf **link = &a->shelves; *link;) {
        shelf *s = *link, *target = a->shelves;
        if (s->stream != stream) {
            link = &s->next;
            continue;
        }
        while (target && !(target->pool == s->pool && target->stream == d->default_stream &&
                           target->small == s->small && target->orphan == s->orphan))
            target = target->next;
        if (!target) {
            s->stream = d->default_stream;
            link = &s->next;
            continue;
        }
        for (unsigned bin = 0; bin < BINS; bin++) {
            while (s->bins[bin]) {
                block *b = s->bins[bin];
                unshelve(a, b);
                b->shelf = target;
                shelve(a, b);
            }
        }
        *link = s->next;
        rp__free(s);
    }
    rp__unlock(&a->lock);
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
    a->empty = (base){.pub = {NULL, 0, NULL, d->default_stream}, .kind = EMPTY};
    *out = a;
    return RP_OK;
}

void rp__allocator_free(rp__allocator *a) {
    if (!a) return;
    rp__fork_lock_remove(&a->fork_lock);
    for (chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        block_return(a, c->memory);
        rp__free(c);
    }
    for (shelf *s = a->shelves, *next; s; s = next) {
        next = s->next;
        shelf_drop_segments(a, s);
        rp__free(s);
    }
    for (block *b = a->spare, *next; b; b = next) {
        next = b->free_next;
        rp__free(b);
    }
    pthread_mutex_destroy(&a->lock);
    rp__free(a);
}

void rp__allocator_route(rp__device *d, rp_stream *s, rp_pool *pool) {
    (void)d;
    s->route = pool;
}

/* ---- pools */

static rp_pool error_pool; /* what rp_pool_new returns on failure: no device */

rp_pool *rp_pool_new(rp_device device) {
    static _Atomic uint64_t ids;
    rp__device *d = rp__device_get(device);
    if (!d) return &error_pool;
    rp_pool *p = rp__calloc(1, sizeof *p);
    if (!p) {
        RP__OOM("a memory pool");
        return &error_pool;
    }
    atomic_init(&p->refs, 1);
    p->device = d;
    p->id = atomic_fetch_add(&ids, 1) + 1;
    return p;
}

rp_pool *rp__pool_retain(rp_pool *p) {
    if (p && p->device) atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void rp_pool_release(rp_pool *p) {
    if (!p || !p->device || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    rp__allocator *a = p->device->allocator;
    rp__lock(&a->lock);
    for (shelf *s = a->shelves; s; s = s->next) {
        if (s->pool == p) {
            s->pool = NULL;
            s->orphan = true;
        }
    }
    drop_orphans(a);
    rp__unlock(&a->lock);
    if (p->replayed_on) rp_stream_release(p->replayed_on);
    rp__free(p);
}

/* ---- statistics */

rp_status rp_memory_stats_reset_peak(rp_device device) {
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    rp__allocator *a = d->allocator;
    rp__lock(&a->lock);
    if (a->has_pieces && mine) flush_counters(a, mine);
    a->allocated_peak = allocated_now(a);
    a->reserved_peak = a->reserved;
    rp__unlock(&a->lock);
    return RP_OK;
}

rp_status rp_memory_stats_get(rp_device device, rp_memory_stats *stats) {
    if (!stats || stats->struct_size < sizeof stats->struct_size)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "memory_stats_get: struct_size is not set");
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    rp__allocator *a = d->allocator;
    rp_memory_stats full = {.struct_size = stats->struct_size};
    rp__lock(&a->lock);
    if (a->has_pieces && mine) flush_counters(a, mine);
    int64_t now = allocated_now(a);
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
    rp__unlock(&a->lock);
    rp__tensor_statistics(&full.root_scope_tensors, &full.live_tensors);
    memcpy(stats, &full, stats->struct_size < sizeof full ? stats->struct_size : sizeof full);
    return RP_OK;
}

rp_status rp_empty_cache(rp_device device) {
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    rp__lock(&d->allocator->lock);
    drop_cached(d->allocator);
    rp__unlock(&d->allocator->lock);
    return RP_OK;
}
