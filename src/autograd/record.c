/* The autograd layer of the dispatch chain: runs a call below, then puts a node on the tape when grad mode is on, an input needs
   a gradient and a result is floating. In-place ops take the derivative of their functional form and give the written handle,
   or the base of the written view, a new history. Composite ops never get here: dispatch expands them above. */
#include "autograd/tape.h"
#include "core/alloc.h"
#include "ops/grad.h"

#include "ops/private.h"
#include <string.h>

/* ---------------------------------------------------------------- the node of an op */

typedef struct op_payload {
    const rp__op *op; /* whose derivative runs: the functional form of in-place ops */
    uint32_t n_saved, n_attrs;
    uint32_t *list_begin; /* only of ops that take a list; NULL: entry p is p */
    rp_attr *attrs;
    rp_dtype
        computed;  /* in place: what the functional form gives, if that is not the type of what is written; else none */
    bool constant; /* in place: what the functional form gives has no gradient (a comparison) */
    /* A write through a view: the node of the base, not counted (it holds this one), and the way to the view. A saved output
       is then kept as the base, of which unpacking takes the view: so it has the history that the base has now. */
    rp__tape_node *outer;
    const rp__view_step *steps;
    rp__saved saved[]; /* one for every bit of op->saves, rising; may be empty */
} op_payload;

static bool saves_input(const rp__op *op, const rp__call *call, const bool *needs, uint32_t k) {
    if (k >= 16 || !(op->saves & RP__SAVE_IN(k)) || !call->in[k]) return false;
    /* Of a product each factor is kept for the gradient of the other. */
    if ((op->saves & RP__SAVE_CROSS) && k < 2 && !needs[1 - k]) return false;
    return true;
}

static void op_release_saved(rp__tape_node *n) {
    op_payload *p = n->payload;
    for (uint32_t i = 0; i < p->n_saved; i++) {
        n->released = true;
        rp__saved_drop(&p->saved[i]);
    }
}

static void op_destroy(rp__tape_node *n) {
    op_payload *p = n->payload;
    for (uint32_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
}

static uint32_t count_bits(uint32_t bits) { return (uint32_t)__builtin_popcount(bits); }

enum { FEW = 8 };
static rp_status op_vjp(rp__tape_node *n, const bool *needed, rp_tensor *const *grad_out, rp_tensor **grad_in,
                        rp_tensor **in, rp__meta *in_meta, rp__meta *out_meta) {
    op_payload *p = n->payload;
    rp_tensor *out[RP__MAX_OUTS] = {NULL};
    uint32_t i = 0;
    for (uint32_t bit = 0; bit < 16 + RP__MAX_OUTS; bit++) {
        if (!(p->op->saves & (1u << bit))) continue;
        rp__saved *s = &p->saved[i++];
        if (!s->tensor && !s->checkpoint) continue;
        rp_tensor *t = rp__saved_unpack(s, p->outer ? p->outer : n);
        if (p->outer && s->is_output && !rp__tensor_is_error(t)) t = rp__view_replay(p->steps, t);
        if (rp__tensor_is_error(t)) return rp_error_status();
        *(bit < 16 ? &in[bit] : &out[bit - 16]) = t;
    }
    for (uint32_t k = 0; k < n->n_in; k++) rp__tape_in_meta(n, k, &in_meta[k]);
    for (uint32_t k = 0; k < n->n_out; k++) rp__tape_out_meta(n, k, &out_meta[k]);
    rp__call call = {.op = p->op,
                     .site = n->site,
                     .in = in,
                     .n_in = n->n_in,
                     .attrs = p->attrs,
                     .n_attrs = p->n_attrs,
                     .out = out,
                     .n_out = n->n_out};
    for (uint32_t k = 0; k <= p->op->schema.n_tensor_params; k++)
        call.list_begin[k] = p->list_begin ? p->list_begin[k] : k;
    rp_tensor *wide;
    if (RP__UNLIKELY(p->computed != RP_DTYPE_NONE) && grad_out[0]) { /* computed, then converted: the way back too */
        wide = rp_to_dtype(grad_out[0], p->computed);
        out_meta[0].dtype = p->computed;
        grad_out = &wide;
    }
    rp__vjp g = {&call, in_meta, out_meta, grad_out, needed, grad_in};
    return rp__grad_run(&g);
}

static rp_status op_backward_needed(rp__tape_node *n, const bool *needed, rp_tensor *const *grad_out,
                                    rp_tensor **grad_in) {
    const op_payload *p = n->payload;
    if (p->constant) return RP_OK;
    if (!p->op->vjp)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "`%s` (%s) is not differentiable, and a gradient was asked through it", n->op,
                        n->site ? n->site : "no call site");
    if (n->n_in <= FEW && n->n_out <= FEW) {
        rp_tensor *in[FEW] = {NULL};
        rp__meta in_meta[FEW], out_meta[FEW];
        return op_vjp(n, needed, grad_out, grad_in, in, in_meta, out_meta);
    }
    rp_tensor **in = rp__calloc(n->n_in, sizeof *in);
    rp__meta *metas = rp__alloc((n->n_in + n->n_out) * sizeof *metas);
    rp_status status =
        in && metas ? op_vjp(n, needed, grad_out, grad_in, in, metas, metas + n->n_in) : RP__OOM("backward");
    rp__free(in);
    rp__free(metas);
    return status;
}

static rp_status op_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    (void)create_graph;
    bool few[FEW] = {false}, *needed = few;
    if (n->n_in > FEW) needed = rp__alloc(n->n_in);
    if (!needed) return RP__OOM("backward");
    for (uint32_t i = 0; i < n->n_in; i++) needed[i] = rp__tape_needs(n, i);
    rp_status status = op_backward_needed(n, needed, grad_out, grad_in);
    if (needed != few) rp__free(needed);
    return status;
}

static const rp__tape_class op_class = {"op", op_backward, op_release_saved, op_destroy};

/* The node of a call, with its inputs saved (not yet its outputs). `self` replaces in[0] as saved value: the clone that an
   in-place op makes of what it overwrites. */
static rp_status op_node(const rp__call *call, const rp__op *op, rp_tensor *self, rp_tensor *const *out,
                         rp__tape_node **node) {
    bool lists = false;
    for (unsigned i = 0; i < op->schema.n_params; i++) lists = lists || op->schema.params[i].kind == RP__PARAM_TENSORS;
    uint32_t n_saved = count_bits(op->saves & ~RP__SAVE_CROSS);
    size_t at_attrs = sizeof(op_payload) + n_saved * sizeof(rp__saved);
    size_t at_lists = at_attrs + rp__attrs_bytes(call->attrs, call->n_attrs);
    size_t bytes = at_lists + (lists ? sizeof call->list_begin : 0);
    rp__tape_node *n;
    RP_TRY(rp__tape_node_new(&op_class, call->op->name, call->site, call->in, call->n_in, out, call->n_out, bytes, &n));
    op_payload *p = n->payload;
    p->op = op;
    p->n_saved = n_saved;
    p->n_attrs = call->n_attrs;
    p->attrs = (rp_attr *)(void *)((char *)p + at_attrs);
    rp__attrs_copy(p->attrs, call->attrs, call->n_attrs);
    if (lists) {
        p->list_begin = (uint32_t *)(void *)((char *)p + at_lists);
        memcpy(p->list_begin, call->list_begin, sizeof call->list_begin);
    }
    bool needs[2] = {call->n_in > 0 && n->edges[0].node, call->n_in > 1 && n->edges[1].node};
    uint32_t i = 0;
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < 16 && status == RP_OK; k++) {
        if (!(op->saves & RP__SAVE_IN(k))) continue;
        if (k < call->n_in && saves_input(op, call, needs, k))
            status = rp__saved_pack(&p->saved[i], k == 0 && self ? self : call->in[k], false, 0);
        i++;
    }
    if (status != RP_OK) {
        rp__tape_node_release(n);
        return status;
    }
    *node = n;
    return RP_OK;
}

static rp_status op_save_outputs(rp__tape_node *n, rp_tensor *const *out) {
    op_payload *p = n->payload;
    uint32_t i = count_bits(p->op->saves & 0xffffu);
    for (uint32_t k = 0; k < RP__MAX_OUTS; k++)
        if (p->op->saves & RP__SAVE_OUT(k)) RP_TRY(rp__saved_pack(&p->saved[i++], out[k], true, k));
    return RP_OK;
}

/* ---------------------------------------------------------------- writes through views */

/* The new node of a base that was written through a view: input 0 is the base as it was, the others those of the in-place op,
   whose own node (of the view) computes. PyTorch: CopySlices. */
typedef struct slice_payload {
    rp__tape_node *inner; /* counted; it has no edges */
    rp__view_step *steps; /* from base to view, counted */
} slice_payload;

static rp_status slice_compute(rp__tape_node *n, const bool *needed, rp_tensor *grad, rp_tensor **grad_in) {
    slice_payload *p = n->payload;
    rp_tensor *whole = rp_clone(grad);
    rp_tensor *part = rp__view_replay(p->steps, whole);
    rp_tensor *inner_grad = rp_clone(part);
    if (rp__tensor_is_error(inner_grad)) return rp_error_status();
    RP_TRY(op_backward_needed(p->inner, needed, &inner_grad, grad_in));
    if (!needed[0]) return RP_OK;
    rp_tensor *written = grad_in[0] ? rp_copy_(part, grad_in[0]) : rp_fill_(part, rp_f64(0));
    if (rp__tensor_is_error(written)) return rp_error_status();
    grad_in[0] = whole;
    return RP_OK;
}

static rp_status slice_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    (void)create_graph;
    slice_payload *p = n->payload;
    bool few[FEW] = {false}, *needed = few;
    if (p->inner->released) return rp__tape_released(n);
    if (n->n_in > FEW) needed = rp__alloc(n->n_in);
    if (!needed) return RP__OOM("backward");
    for (uint32_t i = 0; i < n->n_in; i++) needed[i] = rp__tape_needs(n, i);
    rp_status status = slice_compute(n, needed, grad_out[0], grad_in);
    if (needed != few) rp__free(needed);
    return status;
}

static void slice_release_saved(rp__tape_node *n) {
    slice_payload *p = n->payload;
    op_release_saved(p->inner);
    n->released = p->inner->released;
}

static void slice_destroy(rp__tape_node *n) {
    slice_payload *p = n->payload;
    rp__tape_node_release(p->inner);
    rp__view_steps_release(p->steps);
}

static const rp__tape_class slice_class = {"slice", slice_backward, slice_release_saved, slice_destroy};

/* ---------------------------------------------------------------- in place */

/* A view that no grad-mode call made: its history cannot be followed. */
static bool untracked_view(const rp_tensor *t) {
    return (t->flags & RP__T_VIEW) && !(t->flags & RP__T_DETACHED) && !(t->autograd && t->autograd->base);
}

static rp_status check_written(const rp__call *call, const rp_tensor *t) {
    const rp_tensor *base = t->autograd ? t->autograd->base : NULL;
    if (untracked_view(t) || (base && untracked_view(base)))
        return rp__op_error(
            call, RP_ERROR_STATE,
            "a view that was made with grad mode off is modified in place with grad mode on, which is ambiguous: "
            "make both under the same mode, or write into a clone");
    if (base && (base->flags & RP__T_REQUIRES_GRAD))
        return rp__op_error(
            call, RP_ERROR_STATE,
            "a view of a leaf that requires a gradient is used in an in-place operation; switch grad mode off "
            "around it, or write into a clone");
    if (t->flags & RP__T_REQUIRES_GRAD)
        return rp__op_error(
            call, RP_ERROR_STATE,
            "a leaf that requires a gradient is used in an in-place operation; switch grad mode off around it, "
            "or write into a clone");
    return RP_OK;
}

/* Gives the base of the written view its new node. Everything is made before the write, so that nothing can fail after it. */
static rp_status slice_node(rp_tensor *view, rp__tape_node *inner, const rp__call *call, rp__tape_node **node) {
    const rp__autograd *a = view->autograd;
    enum { FEW_IN = 16 };
    rp_tensor *few[FEW_IN], **in = few;
    if (call->n_in > FEW_IN) in = rp__alloc(call->n_in * sizeof *in);
    if (!in) return RP__OOM("tape node");
    memcpy(in, call->in, call->n_in * sizeof *in);
    in[0] = a->base;
    rp__tape_node *n = NULL;
    rp_status status = rp__tape_node_new(&slice_class, call->op->name, call->site, in, call->n_in, &a->base, 1,
                                         sizeof(slice_payload), &n);
    if (in != few) rp__free(in);
    RP_TRY(status);
    slice_payload *p = n->payload;
    p->inner = rp__tape_node_retain(inner);
    p->steps = rp__view_steps_retain(a->steps);
    ((op_payload *)inner->payload)->outer = n;
    ((op_payload *)inner->payload)->steps = p->steps;
    /* What runs next is found from the outer node's edges; these would keep the old history twice. */
    for (uint32_t i = 0; i < inner->n_in; i++) {
        rp__tape_node_release(inner->edges[i].node);
        inner->edges[i].node = NULL;
    }
    *node = n;
    return RP_OK;
}

/* The type in which an in-place op computes, if it is another than that of self; a type without gradients makes it constant. */
static rp_status computed_dtype(const rp__call *call, const rp__op *op, rp_dtype *out, bool *constant) {
    *out = RP_DTYPE_NONE;
    *constant = false;
    if (op->vjp && (call->n_in < 2 || !call->in[1] || call->in[1]->dtype == call->in[0]->dtype)) return RP_OK;
    rp__call functional = *call;
    functional.op = op;
    rp__meta meta;
    memset(&meta, 0, sizeof meta);
    RP_TRY(op->infer(&functional, &meta));
    *constant = !op->vjp && !rp__dtype_is_float(meta.dtype);
    if (meta.dtype != call->in[0]->dtype && rp__dtype_is_float(meta.dtype)) *out = meta.dtype;
    return RP_OK;
}

static rp_status record_inplace(rp__call *call) {
    const rp__op *op = call->op->functional_op;
    uint32_t written = 0;
    for (unsigned i = 0, p = 0; i < call->op->schema.n_params; i++) {
        const rp__param *param = &call->op->schema.params[i];
        if (param->kind == RP__PARAM_ATTR) continue;
        for (uint32_t k = call->list_begin[p]; param->written && k < call->list_begin[p + 1]; k++, written++)
            if (call->in[k]) RP_TRY(check_written(call, call->in[k]));
        p++;
    }
    if (!op || written != 1 || !rp__dtype_is_float((rp_dtype)call->in[0]->dtype)) {
        if (op && written == 1) return rp__dispatch_below(RP__LAYER_AUTOGRAD, call); /* integers have no gradient */
        return rp__op_error(
            call, RP_ERROR_STATE,
            "writes in place and has no derivative; switch grad mode off around it (rp_set_grad_enabled)");
    }
    rp_tensor *self = call->in[0];
    rp__autograd *a = rp__autograd_get(self);
    if (!a) return RP_ERROR_OUT_OF_MEMORY;
    rp_tensor *target = a->base ? a->base : self; /* whose history changes */
    if (!rp__autograd_get(target)) return RP_ERROR_OUT_OF_MEMORY;

    bool needs[2] = {rp__grad_needed(self), call->n_in > 1 && call->in[1] && rp__grad_needed(call->in[1])};
    rp_tensor *old_self = NULL;
    if (saves_input(op, call, needs, 0)) {
        old_self = rp_clone(self); /* with history: a second derivative may go through it */
        if (rp__tensor_is_error(old_self)) return rp_error_status();
    }
    rp__tape_node *inner, *node = NULL;
    RP_TRY(op_node(call, op, old_self, &self, &inner));
    op_payload *p = inner->payload;
    rp_status status = computed_dtype(call, op, &p->computed, &p->constant);
    if (status == RP_OK && a->base)
        status = slice_node(self, inner, call, &node);
    else if (status == RP_OK)
        node = rp__tape_node_retain(inner);
    if (status == RP_OK) {
        status = rp__dispatch_below(RP__LAYER_AUTOGRAD, call);
        if (status == RP_OK) status = op_save_outputs(inner, &target);
        if (status == RP_OK) status = rp__tape_set_history(target, node, 0);
        if (a->base) rp__grad_change(self); /* its base may be held by nobody else */
        rp__tape_node_release(node);
    }
    rp__tape_node_release(inner);
    return status;
}

/* ---------------------------------------------------------------- the layer */

static rp_status record(rp__call *call) {
    RP_TRY(rp__dispatch_below(RP__LAYER_AUTOGRAD, call));
    bool floating = false;
    for (uint32_t k = 0; k < call->n_out; k++) floating = floating || rp__dtype_is_float((rp_dtype)call->out[k]->dtype);
    if (!floating) return RP_OK;
    rp__tape_node *n;
    RP_TRY(op_node(call, call->op, NULL, call->out, &n));
    rp_status status = op_save_outputs(n, call->out);
    for (uint32_t k = 0; k < call->n_out && status == RP_OK; k++)
        if (rp__dtype_is_float((rp_dtype)call->out[k]->dtype)) status = rp__tape_set_history(call->out[k], n, k);
    rp__tape_node_release(n);
    return status;
}

static rp_status run_and_record(rp__layer_kind at, rp__call *call) {
    const rp__op *op = call->op;
    bool detach = op == RP__OP(detach);
    rp_status status;
    if (rp__flags.grad_disabled || detach) {
        status = rp__dispatch_below(at, call);
        if (status == RP_OK && detach) call->out[0]->flags |= RP__T_DETACHED;
        return status;
    }
    bool needed = false;
    for (uint32_t i = 0; i < call->n_in && !needed; i++) needed = call->in[i] && rp__grad_needed(call->in[i]);
    if (!needed)
        status = rp__dispatch_below(at, call);
    else if (op->flags & RP_OP_INPLACE)
        status = record_inplace(call);
    else
        status = record(call);
    if (status == RP_OK && (op->flags & RP_OP_VIEW) && rp__dtype_is_float((rp_dtype)call->out[0]->dtype))
        status = rp__view_track(call, call->out[0]);
    return status;
}

static __attribute__((noinline)) rp_status handle(rp__layer_kind at, rp__call *call) {
    const bool noted = RP__UNLIKELY(rp__checkpoint_recording != NULL);
    rp_status status = noted ? rp__checkpoint_reads(call->in, call->n_in) : RP_OK;
    if (status == RP_OK) status = run_and_record(at, call);
    if (status == RP_OK && noted) status = rp__checkpoint_makes(call->out, call->n_out);
    if (status != RP_OK)
        for (uint32_t k = 0; k < call->n_out; k++) call->out[k] = rp__tensor_error();
    return status;
}

/* Most calls leave nothing behind: they go on below at once. (Dispatch gives the results of a failed one.) */
static rp_status autograd_handle(rp__layer *self, rp__layer_kind at, rp__call *call) {
    (void)self;
    if (RP__UNLIKELY(rp__checkpoint_recording != NULL || (call->op->flags & RP_OP_VIEW))) return handle(at, call);
    const uint32_t n = rp__flags.grad_disabled ? 0 : call->n_in;
    for (uint32_t i = 0; i < n; i++) {
        if (call->in[i] && RP__UNLIKELY(rp__grad_needed(call->in[i]))) return handle(at, call);
    }
    return rp__dispatch_below(at, call);
}

rp__layer rp__autograd_layer = {autograd_handle};
