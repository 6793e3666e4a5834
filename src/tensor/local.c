/* Per-thread free lists of handles and storages, and their life from a thread's first tensor to its end. */
#include "tensor/local.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"

enum { SLAB = 64, ID_CHUNK = 1 << 16 };

RP__TLS_FAST rp__tensor_local *rp__local_tls;

static struct {
    rp__mutex lock;
    rp__tensor_local *threads;
    rp__slot_queue tensors, storages; /* left by threads that ended or free more than they make */
    uint64_t created, destroyed;      /* of threads that ended */
    void **slabs;                     /* every slab, so that none looks leaked */
    size_t n_slabs, slabs_capacity;
} shared = {.lock = RP__MUTEX_INIT};
RP__LOCKS_SURVIVE_FORK(fork_lock, &shared.lock, 1)
static _Atomic uint64_t ids = 1;
bool rp__slots_stay;

static void queue_push(rp__slot_queue *q, void *slot, void **(*link)(void *)) {
    *link(slot) = NULL;
    if (q->tail)
        *link(q->tail) = slot;
    else
        q->head = slot;
    q->tail = slot;
    q->n++;
}

static void *queue_pop(rp__slot_queue *q, void **(*link)(void *)) {
    void *slot = q->head;
    q->head = *link(slot);
    if (!q->head) q->tail = NULL;
    q->n--;
    return slot;
}

static void queue_move(rp__slot_queue *to, rp__slot_queue *from, size_t n, void **(*link)(void *)) {
    while (n-- && from->n) queue_push(to, queue_pop(from, link), link);
}

static void local_free(void *argument) {
    rp__tensor_local *l = argument;
    rp__local_tls = l; /* releasing what is left needs it */
    rp__scopes_drop(l);
    rp__local_tls = NULL;
    rp__lock(&shared.lock);
    queue_move(&shared.tensors, &l->tensors, l->tensors.n, rp__tensor_link);
    queue_move(&shared.storages, &l->storages, l->storages.n, rp__storage_link);
    shared.created += atomic_load_explicit(&l->created, memory_order_relaxed);
    shared.destroyed += atomic_load_explicit(&l->destroyed, memory_order_relaxed);
    if (l->prev)
        l->prev->next = l->next;
    else
        shared.threads = l->next;
    if (l->next) l->next->prev = l->prev;
    rp__unlock(&shared.lock);
    rp__free(l->entries);
    if (l->scopes != l->first_scopes) rp__free(l->scopes);
    rp__free(l);
}

static void read_environment(void) {
    const char *check = rp__env("REPRISE_CHECK");
    rp__env_check();
    rp__slots_stay = check && strcmp(check, "1") == 0;
}

rp__tensor_local *rp__local_make(void) {
    static _Atomic uint64_t threads;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static rp__thread_end lists = {.end = local_free};
    pthread_once(&once, read_environment);
    rp__tensor_local *l = rp__thread_new(&lists, sizeof *l);
    if (!l) {
        RP__OOM("a thread's tensor lists");
        return NULL;
    }
    l->scopes = l->first_scopes;
    l->scopes_capacity = RP__SCOPES_READY;
    l->next_scope = (atomic_fetch_add(&threads, 1) + 1) << 40; /* scope ids of threads differ */
    rp__lock(&shared.lock);
    l->next = shared.threads;
    if (l->next) l->next->prev = l;
    shared.threads = l;
    rp__unlock(&shared.lock);
    rp__local_tls = l;
    return l;
}

uint64_t rp__unique_id(void) {
    rp__tensor_local *l = rp__local_tls;
    if (!l) return atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed);
    if (l->next_id == l->id_end) {
        l->next_id = atomic_fetch_add_explicit(&ids, ID_CHUNK, memory_order_relaxed);
        l->id_end = l->next_id + ID_CHUNK;
    }
    return l->next_id++;
}

uint64_t rp__unique_id_fresh(void) {
    rp__tensor_local *l = rp__local_tls;
    if (l) l->next_id = l->id_end;
    return rp__unique_id();
}

/* More slots: from what other threads left, else from a new slab. */
static bool refill(rp__slot_queue *q, rp__slot_queue *common, size_t bytes, size_t keep, void **(*link)(void *)) {
    rp__lock(&shared.lock);
    bool enough = common->n > keep;
    if (enough) queue_move(q, common, SLAB, link);
    bool room = RP__GROW(&shared.slabs, &shared.slabs_capacity, shared.n_slabs + 1);
    char *slab = !enough && room ? rp__alloc_aligned(64, SLAB * bytes) : NULL;
    if (slab) shared.slabs[shared.n_slabs++] = slab;
    rp__unlock(&shared.lock);
    if (!slab) return enough;
    memset(slab, 0, SLAB * bytes);
    /* New slots go first: they are in nobody's quarantine. */
    rp__slot_queue fresh = {0};
    for (size_t i = 0; i < SLAB; i++) queue_push(&fresh, slab + i * bytes, link);
    queue_move(&fresh, q, q->n, link);
    *q = fresh;
    return true;
}

#define ROUNDED(type) ((sizeof(type) + 63) / 64 * 64)

/* A slot of `bytes` is used again when `keep` others were released after it. */
static void *take(rp__slot_queue *q, rp__slot_queue *common, size_t bytes, size_t keep, void **(*link)(void *),
                  const char *what) {
    const bool short_of = q->n <= keep && (q->n == 0 || ((rp_tensor *)q->head)->magic == RP__TENSOR_DEAD);
    if (RP__UNLIKELY((short_of && !refill(q, common, bytes, keep, link)) || rp__alloc_denied())) {
        RP__OOM(what);
        return NULL;
    }
    return queue_pop(q, link);
}

static void share(rp__slot_queue *q, rp__slot_queue *common, void **(*link)(void *)) {
    rp__lock(&shared.lock);
    queue_move(common, q, RP__SHARE_ABOVE / 2, link);
    rp__unlock(&shared.lock);
}

rp_tensor *rp__tensor_slot_take_slow(rp__tensor_local *l) {
    return take(&l->tensors, &shared.tensors, ROUNDED(rp_tensor), RP__QUARANTINE, rp__tensor_link, "tensor handles");
}
void rp__tensor_slots_share(rp__tensor_local *l) { share(&l->tensors, &shared.tensors, rp__tensor_link); }

/* Nobody finds a record after its release: none is kept back. */
rp__storage *rp__storage_slot_take_slow(rp__tensor_local *l) {
    return take(&l->storages, &shared.storages, ROUNDED(rp__storage), 0, rp__storage_link, "storage records");
}
void rp__storage_slots_share(rp__tensor_local *l) { share(&l->storages, &shared.storages, rp__storage_link); }

void rp__tensor_statistics(uint64_t *root_scope_tensors, uint64_t *live_tensors) {
    rp__tensor_local *mine = rp__local_tls;
    *root_scope_tensors = 0;
    if (mine) {
        size_t end = mine->n_scopes ? mine->scopes[0].first : mine->n_entries;
        for (size_t i = 0; i < end; i++) *root_scope_tensors += mine->entries[i] != NULL;
    }
    rp__lock(&shared.lock);
    uint64_t live = shared.created - shared.destroyed;
    for (rp__tensor_local *l = shared.threads; l; l = l->next)
        live += atomic_load_explicit(&l->created, memory_order_relaxed) -
                atomic_load_explicit(&l->destroyed, memory_order_relaxed);
    rp__unlock(&shared.lock);
    *live_tensors = live;
}
