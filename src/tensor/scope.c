/* Scopes: a stack of marks over one list of handles a thread. An entry is one reference; ending a scope drops the entries past
   its mark, except those that move out. */
#include "tensor/local.h"

#include <string.h>

#include "core/alloc.h"
#include "core/log.h"

/* Squeezes out holes when they are many, so that the list does not grow with them. */
static void compact(rp__tensor_local *l) {
    size_t to = 0, scope = 0;
    for (size_t i = 0; i < l->n_entries; i++) {
        while (scope < l->n_scopes && l->scopes[scope].first == i) l->scopes[scope++].first = to;
        if (l->entries[i]) l->entries[to++] = l->entries[i];
    }
    for (; scope < l->n_scopes; scope++) l->scopes[scope].first = to;
    l->n_entries = to;
    l->holes = 0;
}

/* What no scope releases stays until the thread ends: said once, when it is much. Asked where a list grows and where a scope is
   opened, not at every tensor. */
static __attribute__((noinline)) void root_is_large(rp__tensor_local *l) {
    const rp_tensor *last = NULL;
    size_t n = 0;
    for (size_t i = 0; i < l->n_entries; i++) {
        if (!l->entries[i]) continue;
        last = l->entries[i];
        n++;
    }
    if (n <= RP__ROOT_SCOPE_ADVICE) return;
    l->root_told = true;
    rp__log(
        RP__LOG_SCOPE,
        "%zu tensors belong to a thread's root scope, of the latest ones one of %s at %s: nothing releases them before the "
        "thread ends; rp_scope_begin and rp_scope_end around a step do",
        n, last->op ? last->op : "no op", last->site && *last->site ? last->site : "no call site");
}
static inline void look_at_root(rp__tensor_local *l) {
    if (RP__UNLIKELY(!l->n_scopes && l->n_entries > RP__ROOT_SCOPE_ADVICE && !l->root_told)) root_is_large(l);
}

bool rp__scope_push_slow(rp__tensor_local *l, rp_tensor *t) {
    look_at_root(l);
    if (l->holes > l->n_entries / 4) compact(l);
    if (!RP__GROW(&l->entries, &l->entries_capacity, l->n_entries + 1)) {
        RP__OOM("the tensors of a scope");
        return false;
    }
    l->entries[l->n_entries++] = t;
    return true;
}

static size_t scope_first(const rp__tensor_local *l) { return l->n_scopes ? l->scopes[l->n_scopes - 1].first : 0; }

rp_tensor *rp__tensor_enter_scope(rp_tensor *t) {
    if (rp__tensor_is_error(t)) return t;
    rp__tensor_local *l = rp__local();
    if (!l || !rp__scope_push(l, t)) return rp__tensor_error();
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

rp_tensor *rp__tensor_unscope(rp_tensor *t) {
    rp__tensor_local *l = rp__local_tls;
    if (!l || rp__tensor_is_error(t)) return t;
    for (size_t i = l->n_entries; i-- > 0;) {
        if (l->entries[i] != t) continue;
        atomic_fetch_add_explicit(&t->retained, 1, memory_order_relaxed);
        l->entries[i] = NULL;
        l->holes++;
        while (l->n_entries > scope_first(l) && !l->entries[l->n_entries - 1]) {
            l->n_entries--;
            l->holes--;
        }
        break;
    }
    return t;
}

static bool scopes_grow(rp__tensor_local *l) {
    rp__scope_record *grown = rp__alloc(2 * l->scopes_capacity * sizeof *grown);
    if (!grown) return false;
    memcpy(grown, l->scopes, l->n_scopes * sizeof *grown);
    if (l->scopes != l->first_scopes) rp__free(l->scopes);
    l->scopes = grown;
    l->scopes_capacity *= 2;
    return true;
}

/* Room for one more; NULL: there is no memory. */
static __attribute__((noinline)) rp__tensor_local *room_for_scope(const char *site) {
    RP__CALLED_FROM(site);
    rp__tensor_local *l = rp__local();
    if (!l || l->n_scopes < l->scopes_capacity || scopes_grow(l)) return l;
    RP__OOM("a scope");
    return NULL;
}

rp_scope rp_scope_begin_at(const char *site) {
    rp__tensor_local *l = rp__local_tls;
    if (RP__UNLIKELY(!l || l->n_scopes == l->scopes_capacity)) l = room_for_scope(site);
    if (RP__UNLIKELY(!l)) return (rp_scope){0};
    look_at_root(l);
    rp__scope_record *s = &l->scopes[l->n_scopes++];
    s->id = l->next_scope++;
    s->first = l->n_entries;
    return (rp_scope){s->id};
}

static bool is_kept(const rp_tensor *t, rp_tensor *const *keep, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (keep[i] == t) return true;
    }
    return false;
}

/* A long list of tensors to keep, as a table (open addressing, 0: free). The last bit says that an entry was kept already: a
   handle has one entry for each time that it entered the scope, and one of them moves out. */
enum { FEW_KEPT = 16 };
typedef struct keep_table {
    uintptr_t *places; /* NULL: the list is short, or there is no memory for a table */
    size_t mask;
} keep_table;

static uintptr_t *keep_place(const keep_table *k, const rp_tensor *t) {
    size_t i = (size_t)((uint64_t)(uintptr_t)t * UINT64_C(0x9e3779b97f4a7c15) >> 20) & k->mask;
    while (k->places[i] && (k->places[i] & ~(uintptr_t)1) != (uintptr_t)t) i = (i + 1) & k->mask;
    return &k->places[i];
}

static keep_table keep_table_new(rp_tensor *const *keep, size_t n) {
    keep_table k = {NULL, 63};
    if (n <= FEW_KEPT) return k;
    while (k.mask < 2 * n) k.mask = 2 * k.mask + 1;
    k.places = rp__calloc(k.mask + 1, sizeof *k.places);
    for (size_t i = 0; i < n && k.places; i++)
        if (keep[i]) *keep_place(&k, keep[i]) = (uintptr_t)keep[i];
    return k;
}

/* Is t one of those to keep, and was it not kept before? */
static bool keep_take(const keep_table *k, const rp_tensor *t) {
    uintptr_t *place = keep_place(k, t);
    if (!*place || (*place & 1)) return false;
    *place |= 1;
    return true;
}

/* Moves those of entries [first, n_entries) that are to be kept to the front; returns where they end. Those to keep that are none of
   them, as the gradient of a tensor that is, are held: in a list of *n_held, with room for n, if there is one. */
static __attribute__((noinline)) size_t close_up(rp__tensor_local *l, size_t first, rp_tensor *const *keep, size_t n,
                                                 rp_tensor **held, size_t *n_held) {
    size_t end = l->n_entries, kept = first;
    keep_table table = keep_table_new(keep, n);
    for (size_t i = first; i < end; i++) {
        rp_tensor *t = l->entries[i];
        if (!t) continue;
        if (table.places ? !keep_take(&table, t)
                         : !is_kept(t, keep, n) || is_kept(t, (rp_tensor *const *)l->entries + first, kept - first))
            continue;
        l->entries[i] = l->entries[kept];
        l->entries[kept++] = t;
    }
    for (size_t i = 0; i < n && held; i++) {
        rp_tensor *t = keep[i];
        if (!t || t->magic != RP__TENSOR_MAGIC || rp__tensor_is_error(t)) continue;
        if (table.places
                ? !keep_take(&table, t)
                : is_kept(t, (rp_tensor *const *)l->entries + first, kept - first) || is_kept(t, held, *n_held))
            continue;
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
        held[(*n_held)++] = t;
    }
    rp__free(table.places);
    return kept;
}

/* What nobody else holds, now that its owner went with the scope, belongs to the scope outside. */
static void place_borrowed(rp__tensor_local *l, rp_tensor *const *held, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (atomic_load_explicit(&held[i]->refs, memory_order_acquire) != 1 || !rp__scope_push(l, held[i]))
            rp__scope_release(held[i]);
}

void rp_scope_leave(rp_scope *scope) {
    if (scope->id) (void)rp_scope_end(*scope, NULL, 0); /* 0: it could not begin, as the sticky error says */
}

/* Releasing may run deleters and hooks, which may open scopes of their own. */
static inline void release_from(rp__tensor_local *l, size_t kept) {
    while (l->n_entries > kept) {
        rp_tensor *t = l->entries[--l->n_entries];
        if (t)
            rp__scope_release(t);
        else
            l->holes--;
    }
}

/* One that is not the innermost, or keeps tensors. */
static __attribute__((noinline)) rp_status end_keeping(const char *site, rp_scope scope, rp_tensor *const *keep,
                                                       size_t n) {
    RP__CALLED_FROM(site);
    rp__tensor_local *l = rp__local_tls;
    size_t k = l ? l->n_scopes : 0;
    while (k > 0 && l->scopes[k - 1].id != scope.id) k--;
    if (k == 0) return rp__fail(RP_ERROR_STATE, "scope_end: the scope is not open in this thread");
    if (n && !keep)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "scope_end: keep is NULL, but %zu tensors are to be kept", n);
    if (n > PTRDIFF_MAX / sizeof *keep)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "scope_end: no list has %zu tensors", n);
    const size_t first = l->scopes[k - 1].first;
    size_t kept = first, n_held = 0;
    rp_tensor *few[FEW_KEPT], **held = few;
    l->n_scopes = k - 1;
    if (n > FEW_KEPT) held = rp__alloc(n * sizeof *held);
    if (n) kept = close_up(l, first, keep, n, held, &n_held);
    release_from(l, kept);
    place_borrowed(l, held, n_held);
    if (held != few) rp__free(held);
    return RP_OK;
}

rp_status rp_scope_end_at(const char *site, rp_scope scope, rp_tensor *const *keep, size_t n) {
    rp__tensor_local *l = rp__local_tls;
    const rp__scope_record *s = l && l->n_scopes > 0 ? &l->scopes[l->n_scopes - 1] : NULL;
    if (RP__UNLIKELY(!s || s->id != scope.id)) return end_keeping(site, scope, keep, n);
    size_t kept = s->first;
    if (n > 0) { /* the one result of a call that made nothing else stays where it is */
        if (n > 1 || !keep || !keep[0] || l->n_entries != kept + 1 || l->entries[kept] != keep[0])
            return end_keeping(site, scope, keep, n);
        kept++;
    }
    l->n_scopes--;
    if (l->n_entries > kept) {
        const char *const outer = rp__caller_enter(site);
        release_from(l, kept);
        rp__caller_leave(&outer);
    }
    return RP_OK;
}

bool rp__scope_holds(rp_scope scope, const rp_tensor *t) {
    rp__tensor_local *l = rp__local_tls;
    size_t k = l ? l->n_scopes : 0;
    while (k > 0 && l->scopes[k - 1].id != scope.id) k--;
    for (size_t i = k ? l->scopes[k - 1].first : SIZE_MAX; k && i < l->n_entries; i++) {
        if (l->entries[i] == t) return true;
    }
    return false;
}

rp_scope rp__scope_begin(void) { return rp_scope_begin(); }

void rp__scope_end(rp_scope scope, rp_tensor *const *keep, size_t n) {
    if (scope.id) rp_scope_end(scope, keep, n);
}

void rp__scopes_drop(rp__tensor_local *l) {
    l->n_scopes = 0;
    while (l->n_entries) {
        rp_tensor *t = l->entries[--l->n_entries];
        if (t) rp__scope_release(t);
    }
}
