/* Gradients and traces: what a function does with .grad, hooks, leaves and custom functions while it is recorded, and whether
   a graph of it gives the gradients that the tape would. Called by trace.c; computes nothing, and records nothing but the
   detach ops that stand for grad mode switched off in a block. */
#include "ops/private.h"
#include <string.h>

#include "core/alloc.h"
#include "trace/trace_parts.h"

/* ---- what the function does */

static void watch_gradient(rp_tensor *x) {
    rp__trace *t = rp__trace_current();
    if (!t || t->mode == RP__TRACE_SEGMENTS) return;
    if (rp__trace_index(&t->by_watched, rp__trace_key(x)) != SIZE_MAX) return;
    uint32_t arg = RP__IR_NONE;
    rp_tensor *const *args = t->stand_in ? t->stand_in : t->request->in;
    for (size_t i = 0; args && i < t->request->n_in; i++) {
        if (args[i] == x) arg = (uint32_t)i;
    }
    if (x->traced && arg == RP__IR_NONE) return; /* made inside */
    rp_tensor *entry = x->autograd ? x->autograd->grad : NULL;
    void *const index = (void *)(uintptr_t)(t->n_watches + 1);
    if (!RP__GROW(&t->watches, &t->watches_capacity, t->n_watches + 1) ||
        (entry && !rp__map_get(&t->by_entry, rp__trace_key(entry)) &&
         !rp__map_put(&t->by_entry, rp__trace_key(entry), index)) ||
        !rp__map_put(&t->by_watched, rp__trace_key(x), index)) {
        (void)RP__OOM("trace");
        return;
    }
    t->watches[t->n_watches++] = (rp__trace_watch){rp_retain(x), entry ? rp_retain(entry) : NULL, arg, RP__IR_NONE};
}

static rp_status watch_hook(rp_tensor *x, int change) {
    rp__trace *t = rp__trace_current();
    if (!t || t->mode == RP__TRACE_SEGMENTS) return RP_OK;
    const char *site = rp__site();
    if (!site || !*site) site = x->site; /* rp_register_hook takes no call site */
    if (t->request->close) {
        t->result->reason = "hook-registered";
        t->result->site = site;
        (void)rp__trace_spoil(t, RP_ERROR_GRAPH_BREAK);
        return rp__fail(RP_ERROR_GRAPH_BREAK, "a function of a region registers a hook on a gradient");
    }
    t->hook_site = site;
    *(x->flags & RP__T_REQUIRES_GRAD ? &t->leaf_hooks : &t->hooks) += change;
    return RP_OK;
}

static rp_status watch_history(rp_tensor *x) {
    rp__trace *t = rp__trace_current();
    if (!t || (x->traced && x->traced->trace == t)) return RP_OK; /* made inside */
    for (size_t i = 0; i < t->n_histories; i++) {
        if (t->histories[i].tensor == x) return RP_OK;
    }
    if (!RP__GROW(&t->histories, &t->histories_capacity, t->n_histories + 1))
        return rp__trace_spoil(t, RP__OOM("trace"));
    const rp__autograd *a = x->autograd;
    t->histories[t->n_histories++] =
        (rp__trace_history){rp_retain(x), rp__tape_node_retain(a->node), a->out_index, a->view_version};
    return RP_OK;
}

void rp__trace_restore_histories(rp__trace *t) {
    for (size_t i = 0; i < t->n_histories; i++) {
        const rp__trace_history *h = &t->histories[i];
        rp__tape_put_back(h->tensor, h->node, h->out_index, h->view_version);
    }
}

void rp__trace_forget_histories(rp__trace *t) {
    for (size_t i = 0; i < t->n_histories; i++) {
        rp__tape_node_release(t->histories[i].node);
        rp_release(t->histories[i].tensor);
    }
    t->n_histories = 0;
}

/* ---- grad mode in a block */

/* The tape is off in a block, but a derivative of it runs its ops with the tape on: what that must not go through is cut here. */
rp_tensor *rp__trace_cut(rp__trace *t, rp_tensor *x, const char *site) {
    const bool on = rp__grad_said_now.on;
    if (!t->request->derived || !rp__grad_said_now.apart || on == t->request->grad_mode) return x;
    rp__ir_value v = rp__trace_resolve(t, x);
    if (v == RP__IR_NONE || rp__flow_advance(&t->flow, t->ir, NULL) != RP_OK) return rp__tensor_error();
    if (!rp__flow_carries(&t->flow, t->ir, v)) return x;
    if (!on) return rp_detach_at(site, x);
    (void)rp__trace_spoil(t, RP_ERROR_GRAPH_BREAK);
    (void)rp__fail(RP_ERROR_GRAPH_BREAK, "a function of a region that began with grad mode off switches it on");
    return rp__tensor_error();
}

rp_status rp__trace_cut_operands(rp__trace *t, const rp__call *call, rp__ir_value *in) {
    if (!rp__grad_said_now.apart || rp__grad_said_now.on == t->request->grad_mode || call->op == RP__OP(detach))
        return RP_OK;
    rp__ir_node n = {.kind = RP__IR_OP, .op = call->op};
    memcpy(n.list_begin, call->list_begin, sizeof n.list_begin);
    RP_TRY(rp__flow_advance(&t->flow, t->ir, NULL));
    for (uint32_t k = 0; k < call->n_in; k++) { /* the history stays, with other values: a block knows values only */
        if (rp__ir_writes(&n, k) && rp__flow_in_memory(&t->flow, t->ir, in[k])) {
            (void)rp__trace_spoil(t, RP_ERROR_GRAPH_BREAK);
            return rp__fail(RP_ERROR_GRAPH_BREAK,
                            "a function of a region writes, with grad mode off, into what carries a gradient");
        }
    }
    for (uint32_t k = 0; k < call->n_in; k++) {
        if (in[k] == RP__IR_NONE) continue;
        rp_tensor *cut = rp__trace_cut(t, call->in[k], call->site);
        in[k] = rp__tensor_is_error(cut) ? RP__IR_NONE : rp__trace_resolve(t, cut);
        if (in[k] == RP__IR_NONE) return rp_error_status();
    }
    return RP_OK;
}

/* A backward outside would go through what only the tape knows. */
static void judge_history(rp__trace *t) {
    rp__trace_result *r = t->result;
    if (!r->training || !t->untaped_site) return;
    rp__trace_refuse(t, "written-without-tape", t->untaped_site);
}

/* Does the function leave hooks that a backward outside would have to run, or a result that keeps its gradient? */
static void judge_hooks(rp__trace *t, rp_tensor *const *out) {
    rp__trace_result *r = t->result;
    bool left = t->leaf_hooks != 0 || (t->hooks != 0 && r->training);
    for (size_t k = 0; k < t->request->n_out && !left; k++) {
        left = r->training && out[k] && (out[k]->flags & RP__T_RETAINS_GRAD);
        if (left) t->hook_site = out[k]->site;
    }
    if (!left || r->reason) return;
    r->reason = "hook-registered";
    r->site = t->hook_site;
}

/* ---- leaves that the function makes */

static rp_status alias_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    (void)n;
    (void)grad_out;
    (void)grad_in;
    (void)create_graph;
    rp__trace *t = rp__trace_current();
    if (t) t->result->left = true;
    return RP_OK;
}
static void alias_nothing(rp__tape_node *n) { (void)n; }
const rp__tape_class rp__trace_alias_class = {"argument", alias_backward, alias_nothing, alias_nothing};

static bool made_inside(const rp__trace *t, const rp_tensor *leaf) {
    return leaf->traced && leaf->traced->trace == t && rp__trace_index(&t->by_handle, rp__trace_key(leaf)) == SIZE_MAX;
}

static bool any_leaf_inside(const rp__trace *t) {
    for (const struct rp__trace_value *v = t->values; v; v = v->next) {
        if ((v->tensor->flags & RP__T_REQUIRES_GRAD) && made_inside(t, v->tensor)) return true;
    }
    return false;
}

/* Does a way through the tape behind x end in anything but leaves that the function made? */
static rp_status ends_outside(const rp__trace *t, const rp_tensor *x, bool *found) {
    rp__edge root = {NULL, 0};
    const rp__tape_node **stack = NULL;
    size_t n = 0, capacity = 0;
    rp__map seen = {0};
    *found = false;
    rp_status status = rp__tape_edge_of((rp_tensor *)(uintptr_t)x, &root);
    const rp__tape_node *next = root.node;
    while (next && status == RP_OK && !*found) {
        if (next->class_ == &rp__accumulate_class)
            *found = !made_inside(t, *(rp_tensor *const *)next->payload);
        else
            *found = next->n_in == 0 || next->class_ == &rp__trace_alias_class;
        for (uint32_t k = 0; k < next->n_in && !*found && status == RP_OK; k++) {
            const rp__tape_node *to = next->edges[k].node;
            if (!to || rp__map_get(&seen, rp__trace_key(to))) continue;
            if (!RP__GROW(&stack, &capacity, n + 1) || !rp__map_put(&seen, rp__trace_key(to), t->ir))
                status = RP__OOM("trace");
            else
                stack[n++] = to;
        }
        next = n ? stack[--n] : NULL;
    }
    rp__tape_node_release(root.node);
    rp__map_free(&seen);
    rp__free(stack);
    return status;
}

/* The graph has no leaves of its own: a result that needs a gradient for one of them alone would lose it. */
static rp_status judge_leaves(rp__trace *t, rp_tensor *const *out) {
    rp__trace_result *r = t->result;
    if (!r->training || r->reason || !any_leaf_inside(t)) return RP_OK;
    for (size_t k = 0; k < t->request->n_out; k++) {
        if (!out[k] || !rp__grad_needed(out[k])) continue;
        bool found;
        RP_TRY(ends_outside(t, out[k], &found));
        if (found) continue;
        r->reason = "leaf-inside";
        r->site = out[k]->site;
        break;
    }
    return RP_OK;
}

/* What needs a gradient for such leaves alone needs none in the graph. */
static rp_status forget_leaves(rp__trace *t) {
    enum { LEAVES_ONLY = 1, OUTSIDE = 2 };
    rp_ir *ir = t->ir;
    if (!t->result->training || t->result->reason || !any_leaf_inside(t)) return RP_OK;
    unsigned char *ends = rp__calloc(ir->n_values + 1, 1); /* per value: where the ways of its gradient end */
    if (!ends) return RP__OOM("trace");
    for (const struct rp__trace_value *v = t->values; v; v = v->next) {
        if ((v->tensor->flags & RP__T_REQUIRES_GRAD) && made_inside(t, v->tensor)) ends[v->value] = LEAVES_ONLY;
    }
    for (uint32_t k = 0; k < ir->body.n_args; k++) {
        if (ir->values[ir->body.args[k]].requires_grad) ends[ir->body.args[k]] = OUTSIDE;
    }
    for (size_t i = 0; i < ir->body.n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[i]];
        unsigned char from = 0;
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (n->in[k] != RP__IR_NONE && from < ends[n->in[k]]) from = ends[n->in[k]];
        }
        for (uint32_t k = 0; k < n->n_out; k++) {
            rp__ir_value v = n->out[k];
            if (!ir->values[v].requires_grad || ends[v]) continue;
            ends[v] = from ? from : OUTSIDE; /* from nowhere: captured, or what a custom function gives */
            if (from == LEAVES_ONLY) ir->values[v].requires_grad = false;
        }
    }
    rp__free(ends);
    return RP_OK;
}

void rp__trace_restore_gradients(rp__trace *t) {
    for (size_t i = 0; i < t->n_watches; i++) {
        const rp__trace_watch *w = &t->watches[i];
        rp_tensor *now = w->tensor->autograd ? w->tensor->autograd->grad : NULL;
        if (now == w->entry) continue;
        w->tensor->autograd->grad = w->entry ? rp_retain(w->entry) : NULL;
        rp__grad_change(w->tensor);
        if (now) rp_release(now);
    }
}

/* What .grad of watched tensors is at the end, as results or effects. */
rp_status rp__trace_exit_gradients(rp__trace *t, rp__ir_value *results, uint32_t *n) {
    rp__trace_result *r = t->result;
    r->grads = rp__calloc(t->n_watches + 1, sizeof *r->grads);
    if (!r->grads) return RP__OOM("trace");
    for (size_t i = 0; i < t->n_watches; i++) {
        const rp__trace_watch *w = &t->watches[i];
        rp_tensor *now = w->tensor->autograd ? w->tensor->autograd->grad : NULL;
        rp__trace_grad *g = &r->grads[r->n_grads++];
        g->leaf = w->arg == RP__IR_NONE ? rp_retain(w->tensor) : NULL;
        g->arg = w->arg;
        g->at_entry = w->entry != NULL;
        g->entry = w->entry ? rp_retain(w->entry) : NULL;
        g->input = w->input;
        g->result = RP__IR_NONE;
        if (now == w->entry) {
            g->at_exit = RP__GRAD_KEPT;
        } else if (!now) {
            g->at_exit = RP__GRAD_CLEARED;
        } else if (now->traced && now->traced->trace == t) {
            g->at_exit = RP__GRAD_RESULT;
            g->result = *n;
            results[(*n)++] = now->traced->value;
        } else {
            g->at_exit = RP__GRAD_TENSOR;
            g->tensor = rp_retain(now);
        }
    }
    return RP_OK;
}

rp_status rp__trace_judge(rp__trace *t, rp_tensor *const *out) {
    judge_hooks(t, out);
    judge_history(t);
    RP_TRY(judge_leaves(t, out));
    return forget_leaves(t);
}

static void watch_backward(void) {
    rp__trace *t = rp__trace_current();
    if (t) t->result->backward = true;
}

void rp__trace_watch_gradients(void) {
    rp__grad_watch_hook = watch_gradient;
    rp__hook_watch_hook = watch_hook;
    rp__history_watch_hook = watch_history;
    rp__backward_watch_hook = watch_backward;
}
