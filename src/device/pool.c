/* Private pools of graphs: their life, and ledgers of the memory that captures used of them. A hold keeps such memory from later
   captures; ranges tell which it is. Called by captures and graphs. The blocks themselves are those of allocator_shelves.c. */
#include "device/allocator_parts.h"

#include <stdlib.h>

#include "core/alloc.h"
#include "device/capture.h"

/* ---- pools */

static rp_pool error_pool; /* what rp_pool_new returns on failure: no device */

rp_pool *rp_pool_new_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    static _Atomic uint64_t ids;
    rp__device *d = rp__device_get(device);
    if (!d) return &error_pool;
    rp_pool *p = rp__handle_new(RP__HANDLE_POOL, sizeof *p);
    if (!p) {
        RP__OOM("a memory pool");
        return &error_pool;
    }
    atomic_init(&p->refs, 1);
    (void)pthread_mutex_init(&p->turn, NULL);
    p->device = d;
    p->id = atomic_fetch_add(&ids, 1) + 1;
    return p;
}

rp_pool *rp__pool_retain(rp_pool *p) {
    if (p && p->device) atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void rp_pool_release(rp_pool *p) {
    if (!p || p == &error_pool) return;
    if (rp__handle_give_up(p, RP__HANDLE_POOL, "pool_release")) rp__pool_drop(p);
}

void rp__pool_drop(rp_pool *p) {
    if (!p || !p->device || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    rp__allocator *a = p->device->allocator;
    bool orphans = false;
    rp__allocator_enter(a);
    for (rp__shelf *s = a->shelves; s; s = s->next) {
        if (s->pool == p) {
            s->pool = NULL;
            s->orphan = orphans = true;
        }
    }
    rp__allocator_leave(a);
    if (orphans) {
        rp__allocator_settle(a);
        rp__allocator_enter(a);
        rp__allocator_drop_orphans(a);
        rp__allocator_leave(a);
    }
    if (p->replayed_on) rp__stream_drop(p->replayed_on);
    (void)pthread_mutex_destroy(&p->turn);
    rp__handle_free(p);
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
rp_status rp__pool_ledger_room(ledger *l) {
    if (l->n < l->capacity) return RP_OK;
    if (l->n) ledger_join(l);
    if (l->n < l->capacity / 2) return RP_OK;
    return RP__GROW(&l->ranges, &l->capacity, l->capacity + 1) ? RP_OK : RP__OOM("the memory that captures use");
}

void rp__pool_ledger_note(ledger *l, char *address, size_t size) {
    l->ranges[l->n++] = (range){address, address + size};
}

/* A free block of the pool that lies in the range, in part at least. */
static rp__shelf_block *free_in(const rp__allocator *a, const rp_pool *p, range r) {
    for (const rp__shelf *s = a->shelves; s; s = s->next) {
        if (s->pool != p) continue;
        for (unsigned bin = 0; bin < RP__SHELF_BINS; bin++)
            for (rp__shelf_block *b = s->bins[bin]; b; b = b->free_next)
                if (b->address < r.end && b->address + b->size > r.begin) return b;
    }
    return NULL;
}

/* Takes what of a free block lies in the range; all of it where there is no memory for records of the rest. */
static rp__shelf_block *take_part(rp__allocator *a, rp__shelf_block *b, range r) {
    rp__block_unshelve(a, b);
    if (b->address < r.begin) {
        rp__shelf_block *tail = rp__block_cut(a, b, (size_t)(r.begin - b->address));
        if (tail) {
            rp__block_shelve(a, b);
            b = tail;
        }
    }
    if (b->address + b->size > r.end) {
        rp__shelf_block *tail = rp__block_cut(a, b, (size_t)(r.end - b->address));
        if (tail) rp__block_shelve(a, tail);
    }
    b->b = (rp__block_base){.pub = {b->address, b->size, b->shelf->pool, b->shelf->stream}, .kind = RP__BLOCK_GENERAL};
    rp__block_unpoison(b->address, b->size);
    rp__pool_retain(b->shelf->pool);
    if (!b->shelf->stream->is_default) rp__stream_retain(b->shelf->stream);
    rp__allocator_count(a, b->size);
    return b;
}

static rp_status ledger_open(rp_pool *p, ledger **l) {
    rp__allocator *a = p->device->allocator;
    rp_status status = RP_OK;
    rp__allocator_enter(a);
    if (*l)
        status = rp__fail(RP_ERROR_STATE, "another thread is capturing graphed callables into this pool");
    else if (!(*l = rp__calloc(1, sizeof **l)))
        status = RP__OOM("the memory that captures use");
    rp__allocator_leave(a);
    return status;
}

rp_status rp__pool_ranges_begin(rp_pool *p) { return ledger_open(p, &p->capture_ledger); }

void rp__pool_ranges_end(rp_pool *p, rp__pool_range **out, size_t *n) {
    rp__allocator *a = p->device->allocator;
    rp__allocator_enter(a);
    ledger *l = p->capture_ledger;
    p->capture_ledger = NULL;
    rp__allocator_leave(a);
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
    if (h) rp__allocator_settle(a);
    rp__allocator_enter(a);
    ledger *l = p->ledger;
    p->ledger = NULL;
    if (h) {
        atomic_init(&h->refs, 1);
        if (a->pending) rp__allocator_collect(a, !rp__captures_active());
        if (l->n) ledger_join(l);
    }
    for (size_t i = 0; h && i < l->n && status == RP_OK; i++) {
        for (rp__shelf_block *b; status == RP_OK && (b = free_in(a, p, l->ranges[i]));) {
            if (RP__GROW(&h->blocks, &h->capacity, h->n + 1))
                h->blocks[h->n++] = &take_part(a, b, l->ranges[i])->b.pub;
            else
                status = RP__OOM("the memory that captures use");
        }
    }
    rp__allocator_leave(a);
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
