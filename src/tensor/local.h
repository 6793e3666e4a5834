/* What a thread owns of the tensor layer: free handles and storages, its scopes, its share of the statistics. Used by tensor.c,
   storage.c and scope.c only. Freed slots return to the thread that freed them; what a thread leaves behind goes to a shared
   list. Slots live in slabs that are never given back, so a stale pointer can always be looked at. */
#ifndef RP_TENSOR_LOCAL_H
#define RP_TENSOR_LOCAL_H

#include "tensor/tensor.h"

typedef struct rp__slot_queue { /* first in, first out: the longest released is reused first */
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
    _Atomic uint64_t created, destroyed; /* handles; written by the owner only */
    struct rp__tensor_local *next, *prev;
} rp__tensor_local;

extern RP__TLS_FAST rp__tensor_local *rp__local_tls;
rp__tensor_local *rp__local_make(void); /* NULL and a sticky error when out of memory */
static inline rp__tensor_local *rp__local(void) {
    return RP__LIKELY(rp__local_tls != NULL) ? rp__local_tls : rp__local_make();
}

rp_tensor *rp__tensor_slot_take(rp__tensor_local *l); /* NULL and a sticky error */
void rp__tensor_slot_give(rp__tensor_local *l, rp_tensor *t);
rp__storage *rp__storage_slot_take(rp__tensor_local *l);
void rp__storage_slot_give(rp__tensor_local *l, rp__storage *s);
static inline uint64_t rp__local_id(rp__tensor_local *l) {
    return RP__LIKELY(l->next_id < l->id_end) ? l->next_id++ : rp__unique_id();
}

void rp__tensor_destroy(rp_tensor *t);                  /* refs are 0 */
void rp__scope_release(rp_tensor *t);                   /* drops a reference that a scope owned */
void rp__scopes_drop(rp__tensor_local *l);              /* thread exit: every scope ends, the root too */
bool rp__scope_push(rp__tensor_local *l, rp_tensor *t); /* false and a sticky error when out of memory */

#endif
