/* Views and in-place ops: what makes a write through one handle show in the history of all others, as PyTorch defines it.
   A view made with grad mode on knows its base, a tensor that is no view, and the ops that lead from it to the view. A write
   through a view gives the base a new node (record.c); a view whose storage was written since finds its own node anew by
   applying these ops to the base. Called by record.c and tape.c. */
#include "autograd/tape.h"
#include "core/alloc.h"

#include <string.h>

struct rp__view_step {
    atomic_uint refs;
    rp__view_step *parent; /* the step before, counted; NULL: the first */
    const rp__op *op;
    const char *site;
    uint32_t n_attrs;
    rp_attr attrs[]; /* ints of attributes follow them */
};

rp__view_step *rp__view_steps_retain(rp__view_step *s) {
    if (s) atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void rp__view_steps_release(rp__view_step *s) {
    while (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
        rp__view_step *parent = s->parent;
        rp__free(s);
        s = parent;
    }
}

size_t rp__attrs_bytes(const rp_attr *attrs, size_t n) {
    size_t bytes = n * sizeof(rp_attr);
    for (size_t i = 0; i < n; i++) {
        if (attrs[i].kind == RP_ATTR_INTS || attrs[i].kind == RP_ATTR_FLOATS) bytes += attrs[i].n * sizeof(int64_t);
        if (attrs[i].kind == RP_ATTR_STRING && attrs[i].v.string)
            bytes += (strlen(attrs[i].v.string) + 8) / 8 * 8; /* with the NUL, in whole words */
    }
    return bytes;
}

void rp__attrs_copy(rp_attr *to, const rp_attr *attrs, size_t n) {
    char *behind = (char *)(to + n);
    for (size_t i = 0; i < n; i++) {
        to[i] = attrs[i];
        size_t bytes = 0;
        if ((attrs[i].kind == RP_ATTR_INTS || attrs[i].kind == RP_ATTR_FLOATS) &&
            attrs[i].v.ints) { /* words of 64 bits */
            bytes = attrs[i].n * sizeof(int64_t);
            if (bytes > 0) memcpy(behind, attrs[i].v.ints, bytes);
            to[i].v.ints = (const int64_t *)(void *)behind;
        } else if (attrs[i].kind == RP_ATTR_STRING && attrs[i].v.string) {
            bytes = (strlen(attrs[i].v.string) + 8) / 8 * 8;
            memcpy(behind, attrs[i].v.string, strlen(attrs[i].v.string) + 1);
            to[i].v.string = behind;
        }
        if (attrs[i].kind == RP_ATTR_GENERATOR) to[i].v.generator = NULL;
        behind += bytes;
    }
}

rp_status rp__view_track(const rp__call *call, rp_tensor *view) {
    rp__autograd *a = rp__autograd_get(view);
    if (!a) return RP_ERROR_OUT_OF_MEMORY;
    rp__view_step *s = rp__alloc(sizeof *s + rp__attrs_bytes(call->attrs, call->n_attrs));
    if (!s) return RP__OOM("history of a view");
    rp_tensor *from = call->in[0];
    const rp__autograd *of = from->autograd;
    bool chained = of && of->base;
    atomic_init(&s->refs, 1);
    s->parent = chained ? rp__view_steps_retain(of->steps) : NULL;
    s->op = call->op;
    s->site = call->site;
    s->n_attrs = call->n_attrs;
    rp__attrs_copy(s->attrs, call->attrs, call->n_attrs);
    a->steps = s;
    a->base = rp_retain(chained ? of->base : from);
    rp__grad_change(view);
    a->view_version = atomic_load_explicit(&view->storage->version, memory_order_relaxed);
    return RP_OK;
}

rp_tensor *rp__view_replay(const rp__view_step *steps, rp_tensor *base) {
    enum { FEW = 16 };
    const rp__view_step *few[FEW], **order = few;
    size_t n = 0;
    for (const rp__view_step *s = steps; s; s = s->parent) n++;
    if (n > FEW) order = rp__alloc(n * sizeof *order);
    if (!order) {
        (void)RP__OOM("history of a view");
        return rp__tensor_error();
    }
    size_t k = n;
    for (const rp__view_step *s = steps; s; s = s->parent) order[--k] = s;
    rp_tensor *t = base;
    for (size_t i = 0; i < n && !rp__tensor_is_error(t); i++) {
        rp_tensor *out = NULL;
        rp__call call = {.op = order[i]->op,
                         .site = order[i]->site,
                         .in = &t,
                         .n_in = 1,
                         .list_begin = {0, 1},
                         .attrs = order[i]->attrs,
                         .n_attrs = order[i]->n_attrs,
                         .out = &out,
                         .n_out = 1};
        t = rp__dispatch(&call) == RP_OK ? out : rp__tensor_error();
    }
    if (order != few) rp__free(order);
    return t;
}

/* The node of a view whose base has no history, although the view had one: a tensor between the two was made a leaf. What was
   written since took it from there. It still requires a gradient, as in PyTorch, and passes none on. */
static rp_status severed_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in,
                                  bool create_graph) {
    (void)n;
    (void)grad_out;
    (void)grad_in;
    (void)create_graph;
    return RP_OK;
}
static void severed_destroy(rp__tape_node *n) { (void)n; }
static const rp__tape_class severed_class = {"severed", severed_backward, NULL, severed_destroy};

rp_status rp__view_refresh(rp__autograd *a) {
    uint64_t version = atomic_load_explicit(&a->tensor->storage->version, memory_order_relaxed);
    rp__mutex *lock = rp__autograd_lock(a);
    rp__lock(lock);
    bool fresh = a->node && a->view_version == version;
    rp__unlock(lock);
    if (fresh) return RP_OK;
    RP_TRY(rp__history_watch(a->tensor));

    rp_scope scope = rp__scope_begin();
    bool grad_mode = rp_set_grad_enabled(true);
    rp_tensor *t = scope.id ? rp__view_replay(a->steps, a->base) : rp__tensor_error();
    (void)rp_set_grad_enabled(grad_mode);
    rp_status status = rp__tensor_is_error(t) ? rp_error_status() : RP_OK;
    rp__tape_node *old = NULL;
    if (status == RP_OK) {
        rp__tape_node *node = rp__tape_node_retain(t->autograd ? t->autograd->node : NULL);
        uint32_t index = node ? t->autograd->out_index : 0;
        if (!node)
            status =
                rp__tape_node_new(&severed_class, a->tensor->op, a->tensor->site, NULL, 0, &a->tensor, 1, 0, &node);
        if (node && (a->tensor->flags & RP__T_RETAINS_GRAD)) status = rp__retain_add(node, index, a);
        if (status == RP_OK) {
            rp__lock(lock);
            old = a->node;
            a->node = node;
            a->out_index = index;
            a->view_version = version;
            rp__unlock(lock);
            rp__grad_change(a->tensor);
            if (old && (a->tensor->flags & RP__T_RETAINS_GRAD)) rp__retain_remove(old, a);
        } else {
            old = node;
        }
        rp__tape_node_release(old);
    }
    rp__scope_end(scope, NULL, 0);
    return status;
}
