/* Hooks on gradients, and .grad of results that asked for it. A hook on a result belongs to the node that made the value (an
   in-place op later gives the handle a new node, and the hook stays with the old value); one on a leaf belongs to the leaf.
   The handle keeps its hooks as well, to find them by id. Called by backward.c while gradients pass. */
#include "autograd/tape.h"
#include "core/alloc.h"

#include "ops/private.h"
#include <string.h>

struct rp__hook_entry {
    atomic_uint refs;
    atomic_bool removed;
    uint64_t id;
    uint32_t index; /* output of the node */
    rp_hook *hook;
    void *ctx;
    const char *site; /* of the registration */
    rp__hook_entry *next_of_tensor, *next_of_node;
};

rp_status (*rp__hook_watch_hook)(rp_tensor *t, int change);

static atomic_uint_fast64_t last_id;

static void entry_release(rp__hook_entry *e) {
    if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1) rp__free(e);
}

void rp__hooks_free(rp__tape_node *n) {
    rp__hook_entry *e = n->hooks;
    n->hooks = NULL;
    while (e) {
        rp__hook_entry *next = e->next_of_node;
        entry_release(e);
        e = next;
    }
}

void rp__hooks_free_of_tensor(rp__autograd *a) {
    rp__hook_entry *e = a->hooks;
    a->hooks = NULL;
    while (e) {
        rp__hook_entry *next = e->next_of_tensor;
        entry_release(e);
        e = next;
    }
}

static uint64_t add_hook(const char *site, rp_tensor *t, rp_hook *hook, void *ctx) {
    if (rp__tensor_check(t, "rp_register_hook: the tensor") != RP_OK) return 0;
    if (!hook) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_register_hook: hook is NULL"), (uint64_t)0;
    if (rp__hook_watch(t, 1) != RP_OK) return 0;
    if (!rp__grad_needed(t)) {
        (void)rp__fail(RP_ERROR_STATE, "rp_register_hook: a hook needs a tensor that requires a gradient");
        return 0;
    }
    rp__autograd *a = rp__autograd_get(t);
    rp__hook_entry *e = a ? rp__calloc(1, sizeof *e) : NULL;
    if (!e) {
        if (a) (void)RP__OOM("hook");
        return 0;
    }
    rp__edge edge;
    if (rp__tape_edge_of(t, &edge) != RP_OK) {
        rp__free(e);
        return 0;
    }
    bool leaf = (t->flags & RP__T_REQUIRES_GRAD) != 0;
    uint64_t id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
    atomic_init(&e->refs, leaf ? 1u : 2u);
    e->id = id;
    e->index = edge.index;
    e->hook = hook;
    e->ctx = ctx;
    e->site = site;
    rp__lock(rp__autograd_lock(a));
    rp__hook_entry **end = &a->hooks;
    while (*end) end = &(*end)->next_of_tensor;
    *end = e;
    rp__unlock(rp__autograd_lock(a));
    rp__grad_change(t);
    if (!leaf) {
        rp__lock(rp__autograd_lock(edge.node));
        for (end = &edge.node->hooks; *end;) end = &(*end)->next_of_node;
        *end = e;
        rp__unlock(rp__autograd_lock(edge.node));
    }
    rp__tape_node_release(edge.node);
    return id;
}

uint64_t rp_register_hook_at(const char *site, rp_tensor *t, rp_hook *hook, void *ctx) {
    rp__site_frame outer = rp__site_push(site, NULL);
    uint64_t id = add_hook(site, t, hook, ctx);
    rp__site_pop(outer);
    return id;
}

rp_status rp_remove_hook_at(const char *site, rp_tensor *t, uint64_t id) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__tensor_check(t, "rp_remove_hook: the tensor"));
    rp__autograd *a = t->autograd;
    rp__hook_entry *found = NULL;
    rp_status status = RP_OK;
    if (a) {
        rp__lock(rp__autograd_lock(a));
        rp__hook_entry **at = &a->hooks;
        while (*at && (*at)->id != id) at = &(*at)->next_of_tensor;
        if (*at) {
            found = *at;
            *at = found->next_of_tensor;
        }
        rp__unlock(rp__autograd_lock(a));
        rp__grad_change(t);
    }
    if (!found)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_remove_hook: the tensor has no hook %llu",
                        (unsigned long long)id);
    status = rp__hook_watch(t, -1);
    /* Its node keeps the entry and passes over it: a backward may be reading the list. */
    atomic_store_explicit(&found->removed, true, memory_order_release);
    entry_release(found);
    return status;
}

/* What a hook returned must fit. */
static rp_status hook_result(rp_tensor *result, rp_tensor **grad) {
    RP_TRY(rp__tensor_check(result, "result of a hook"));
    bool same = result->ndim == (*grad)->ndim && rp__device_equal(result->device, (*grad)->device);
    for (size_t d = 0; same && d < result->ndim; d++) same = rp__dim_is(RP__DIM_EQ, result->size[d], (*grad)->size[d]);
    if (!same) {
        char have[RP__SHAPE_TEXT], want[RP__SHAPE_TEXT];
        return rp__fail(RP_ERROR_SHAPE, "a hook returned %s; the gradient it was given is %s",
                        rp__tensor_text(result, have), rp__tensor_text(*grad, want));
    }
    *grad = result;
    return RP_OK;
}

/* One hook. What it returns is kept by the caller's scope. */
static rp_status hook_call(rp__hook_entry *e, rp_tensor **grad) {
    if (atomic_load_explicit(&e->removed, memory_order_acquire)) return RP_OK;
    rp__site_frame outer = rp__site_enter((rp__site_frame){NULL, NULL}); /* the hook's ops have lines of their own */
    rp_tensor *result = e->hook(e->ctx, *grad);
    rp_status status = RP_OK;
    if (result && result != *grad) {
        (void)rp__site_enter((rp__site_frame){e->site, "a hook"});
        status = hook_result(result, grad);
    }
    rp__site_pop(outer);
    return status;
}

/* Hooks may add and remove hooks: what runs is the list as it was, less those removed meanwhile. */
static rp_status list_run(rp__hook_entry *const *list, bool of_node, uint32_t index, const void *owner,
                          rp_tensor **grad) {
    enum { FEW = 8 };
    rp__hook_entry *few[FEW], **entries = few;
    size_t n = 0;
    rp__lock(rp__autograd_lock(owner));
    for (rp__hook_entry *e = *list; e; e = of_node ? e->next_of_node : e->next_of_tensor) n += e->index == index;
    if (n > FEW) entries = rp__alloc(n * sizeof(rp__hook_entry *));
    size_t count = 0;
    for (rp__hook_entry *e = *list; e && entries; e = of_node ? e->next_of_node : e->next_of_tensor)
        if (e->index == index) {
            atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
            entries[count++] = e;
        }
    rp__unlock(rp__autograd_lock(owner));
    if (!entries) return RP__OOM("hooks");
    rp_status status = RP_OK;
    for (size_t i = 0; i < count; i++) {
        if (status == RP_OK) status = hook_call(entries[i], grad);
        entry_release(entries[i]);
    }
    if (entries != few) rp__free(entries);
    return status;
}

rp_status rp__hooks_run(rp__tape_node *n, uint32_t index, rp_tensor **grad) {
    return list_run(&n->hooks, true, index, n, grad);
}

rp_status rp__hooks_run_leaf(rp__autograd *a, rp_tensor **grad) { return list_run(&a->hooks, false, 0, a, grad); }

uint64_t rp__hooks_key(rp__autograd *a) {
    uint64_t key = 0;
    rp__lock(rp__autograd_lock(a));
    for (const rp__hook_entry *e = a->hooks; e; e = e->next_of_tensor) key = rp__hash_mix(key, e->id);
    rp__unlock(rp__autograd_lock(a));
    return key;
}

/* ---------------------------------------------------------------- rp_retain_grad */

struct rp__retain {
    uint32_t index;
    rp__autograd *a; /* weak: rp__retain_remove is called when the handle dies */
    struct rp__retain *next;
};

rp_status rp__retain_add(rp__tape_node *n, uint32_t index, rp__autograd *a) {
    struct rp__retain *r = rp__alloc(sizeof *r);
    if (!r) return RP__OOM("rp_retain_grad");
    rp__lock(rp__autograd_lock(n));
    *r = (struct rp__retain){index, a, n->retain};
    n->retain = r;
    rp__unlock(rp__autograd_lock(n));
    return RP_OK;
}

void rp__retain_remove(rp__tape_node *n, rp__autograd *a) {
    if (!n->retain) return;
    struct rp__retain *removed = NULL;
    rp__lock(rp__autograd_lock(n));
    struct rp__retain **at = &n->retain;
    while (*at && (*at)->a != a) at = &(*at)->next;
    if (*at) {
        removed = *at;
        *at = removed->next;
    }
    rp__unlock(rp__autograd_lock(n));
    rp__free(removed);
}

void rp__retain_free(rp__tape_node *n) {
    struct rp__retain *r = n->retain;
    n->retain = NULL;
    while (r) {
        struct rp__retain *next = r->next;
        rp__free(r);
        r = next;
    }
}

static bool tensor_try_retain(rp_tensor *t) {
    unsigned refs = atomic_load_explicit(&t->refs, memory_order_relaxed);
    while (refs > 0)
        if (atomic_compare_exchange_weak_explicit(&t->refs, &refs, refs + 1, memory_order_acq_rel,
                                                  memory_order_relaxed)) {
            atomic_fetch_add_explicit(&t->retained, 1, memory_order_relaxed);
            return true;
        }
    return false;
}

rp_status rp__retain_run(rp__tape_node *n, uint32_t index, rp_tensor *grad) {
    for (size_t skip = 0;; skip++) {
        rp_tensor *t = NULL;
        size_t k = 0;
        bool any = false;
        rp__lock(rp__autograd_lock(n));
        for (struct rp__retain *r = n->retain; r; r = r->next) {
            if (r->index != index || k++ < skip) continue;
            any = true;
            if (tensor_try_retain(r->a->tensor)) t = r->a->tensor;
            break;
        }
        rp__unlock(rp__autograd_lock(n));
        if (!any) return RP_OK;
        if (!t) continue;
        rp__autograd *a = t->autograd;
        rp_tensor *sum = a->grad ? rp_add(a->grad, grad) : rp_clone(grad);
        rp_status status = rp__tensor_is_error(sum) ? rp_error_status() : RP_OK;
        if (status == RP_OK) {
            rp_tensor *old = a->grad;
            a->grad = rp_retain(sum);
            rp__grad_change(t);
            if (old) rp_release(old);
        }
        rp_release(t);
        RP_TRY(status);
    }
}

rp_status rp_retain_grad_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__tensor_check(t, "rp_retain_grad: the tensor"));
    if (!rp__grad_needed(t)) return rp__fail(RP_ERROR_STATE, "rp_retain_grad: the tensor does not require a gradient");
    if (t->flags & (RP__T_REQUIRES_GRAD | RP__T_RETAINS_GRAD)) return RP_OK; /* leaves keep theirs anyway */
    rp__autograd *a = rp__autograd_get(t);
    if (!a) return RP_ERROR_OUT_OF_MEMORY;
    rp__edge edge;
    RP_TRY(rp__tape_edge_of(t, &edge));
    rp_status status = rp__retain_add(edge.node, edge.index, a);
    rp__tape_node_release(edge.node);
    RP_TRY(status);
    t->flags |= RP__T_RETAINS_GRAD;
    return RP_OK;
}
