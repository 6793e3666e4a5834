/* What a thread owns of the tensor layer: free handles and storages, its scopes, its share of the statistics. Used by tensor.c,
   storage.c and scope.c only. Freed slots return to the thread that freed them; what a thread leaves behind goes to a shared
   list. Slots live in slabs that are never given back, so a stale pointer can always be looked at. */
#ifndef RP_TENSOR_LOCAL_H
#define RP_TENSOR_LOCAL_H

#include "core/alloc.h"
#include "tensor/tensor.h"

typedef struct rp__slot_queue { /* of handles first in, first out: the longest released is reused first */
    void *head, *tail;
    size_t n;
} rp__slot_queue;

typedef struct rp__scope_record {
    uint64_t id;
    size_t first; /* index into entries */
} rp__scope_record;

enum { RP__SCOPES_READY = 64 };

typedef struct rp__tensor_local {
    rp__slot_queue tensors, storages;
    uint64_t next_id, id_end;
    /* scopes: entries [scopes[k].first, scopes[k + 1].first) belong to scope k; before scopes[0].first: the root scope */
    rp_tensor **entries; /* NULL: a hole */
    size_t n_entries, entries_capacity, holes;
    rp__scope_record *scopes;
    size_t n_scopes, scopes_capacity;
    rp__scope_record
        first_scopes[RP__SCOPES_READY]; /* what `scopes` points to at first: opening a scope seldom allocates */
    uint64_t next_scope;
    bool root_told;                      /* that the root scope has many tensors */
    _Atomic uint64_t created, destroyed; /* handles; written by the owner only */
    struct rp__tensor_local *next, *prev;
} rp__tensor_local;

extern RP__TLS_FAST rp__tensor_local *rp__local_tls;
rp__tensor_local *rp__local_make(void); /* NULL and a sticky error when out of memory */
static inline rp__tensor_local *rp__local(void) {
    return RP__LIKELY(rp__local_tls != NULL) ? rp__local_tls : rp__local_make();
}

/* A free slot's link: in a tensor the `traced` field, in a storage the first word of `data`. */
static inline void **rp__tensor_link(void *t) { return (void **)(void *)&((rp_tensor *)t)->traced; }
static inline void **rp__storage_link(void *s) { return &((rp__storage *)s)->data; }

/* NULL and a sticky error. The _slow functions refill the queue, and fail where a test asks for it. */
rp_tensor *rp__tensor_slot_take_slow(rp__tensor_local *l);
rp__storage *rp__storage_slot_take_slow(rp__tensor_local *l);
static inline rp_tensor *rp__tensor_slot_take(rp__tensor_local *l) {
    rp_tensor *t = l->tensors.head;
    if (RP__UNLIKELY(l->tensors.n <= RP__QUARANTINE || rp__alloc_is_armed())) return rp__tensor_slot_take_slow(l);
    l->tensors.head = *rp__tensor_link(t);
    l->tensors.n--;
    return t;
}
static inline rp__storage *rp__storage_slot_take(rp__tensor_local *l) {
    rp__storage *s = l->storages.head;
    if (RP__UNLIKELY(l->storages.n <= 1 || rp__alloc_is_armed())) return rp__storage_slot_take_slow(l);
    l->storages.head = *rp__storage_link(s);
    l->storages.n--;
    return s;
}
extern bool rp__slots_stay;                       /* REPRISE_CHECK=1: handles are never used again */
void rp__tensor_slots_share(rp__tensor_local *l); /* when the thread has many */
void rp__storage_slots_share(rp__tensor_local *l);
enum { RP__SHARE_ABOVE = 4096 };
static inline void rp__tensor_slot_give(rp__tensor_local *l, rp_tensor *t) {
    if (RP__UNLIKELY(rp__slots_stay)) return;
    *rp__tensor_link(t) = NULL;
    if (RP__LIKELY(l->tensors.tail != NULL))
        *rp__tensor_link(l->tensors.tail) = t;
    else
        l->tensors.head = t;
    l->tensors.tail = t;
    if (RP__UNLIKELY(++l->tensors.n > RP__SHARE_ABOVE)) rp__tensor_slots_share(l);
}
/* What was used last is in the cache: it goes first. */
static inline void rp__storage_slot_give(rp__tensor_local *l, rp__storage *s) {
    *rp__storage_link(s) = l->storages.head;
    if (RP__UNLIKELY(!l->storages.head)) l->storages.tail = s;
    l->storages.head = s;
    if (RP__UNLIKELY(++l->storages.n > RP__SHARE_ABOVE)) rp__storage_slots_share(l);
}
static inline uint64_t rp__local_id(rp__tensor_local *l) {
    return RP__LIKELY(l->next_id < l->id_end) ? l->next_id++ : rp__unique_id();
}

void rp__tensor_destroy(rp_tensor *t);     /* refs are 0 */
void rp__scope_release(rp_tensor *t);      /* drops a reference that a scope owned */
void rp__scopes_drop(rp__tensor_local *l); /* thread exit: every scope ends, the root too */
enum { RP__ROOT_SCOPE_ADVICE = 1000 };     /* from more on the root scope is said to be large */
bool rp__scope_push_slow(rp__tensor_local *l, rp_tensor *t);
static inline bool rp__scope_push(rp__tensor_local *l, rp_tensor *t) { /* false and a sticky error when out of memory */
    if (RP__UNLIKELY(l->n_entries == l->entries_capacity)) return rp__scope_push_slow(l, t);
    l->entries[l->n_entries++] = t;
    return true;
}

#endif
