/* What every kind of region does (regions.h): closes a function over its operands, records a node, and for the tape keeps it, takes the
   derivative of a block, and calls the backward of the kind. Also the backward of a node as a graph, for the joint graph
   (compile/joint.c). What one kind alone does is in region_*.c.
   Gradients of such a node are nodes of the same kind over the derivative of the block:
     cond        the same predicate chooses the derivative of the branch that ran;
     while       the forward also keeps every iteration's state (max_iter bounds them); a second loop walks back over them;
     checkpoint  the block is recorded again, with the random counters of the first time, and differentiated.
   Gradients are added up in the order of eager execution, where each op of a block is a node of the tape: a derivative gets the sum so
   far of an operand's gradients and adds to it. */
#include "trace/regions.h"

#include "ops/private.h"
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "device/capture.h"
#include "ops/format.h"
#include "ops/grad.h"
#include "trace/flow.h"

/* ---- what every call does */

rp_status rp__region_check_functions(const char *name, const char *what, rp_fn a, rp_fn b, rp_tensor *const *in,
                                     size_t n_in, rp_tensor **out, size_t n_out) {
    if (!a.body || !b.body || (n_in && !in) || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a function or a list of tensors is NULL", name);
    for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    for (size_t k = 0; k < n_in; k++) {
        RP_TRY(rp__tensor_check(in[k], what));
        if (rp__tensor_is_error(in[k]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: argument %zu is the error tensor", name, k);
    }
    return RP_OK;
}

rp_status rp__region_check_result(rp__region_where at, rp_fn fn, rp_tensor *t, size_t k) {
    if (!t)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: `%s` leaves output %zu out (%s)", at.of, rp__region_name_of(fn),
                        k, rp__region_place_of(at.site));
    return rp__tensor_check(t, "an output of a region");
}

rp_status rp__region_own_results(rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    for (size_t k = 0; k < n_out; k++) {
        bool copy = false;
        for (size_t i = 0; i < n_in && !copy; i++) copy = in[i]->storage == out[k]->storage;
        for (size_t i = 0; i < k && !copy; i++) copy = out[i]->storage == out[k]->storage;
        out[k] = copy ? rp__row_major_copy(out[k]) : rp__row_major(out[k]); /* as a trace has them */
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    return RP_OK;
}

rp_status rp__region_settle_operands(rp_tensor *const *in, size_t n, size_t n_own, rp_tensor **out) {
    for (size_t k = 0; k < n; k++) {
        RP_TRY(rp__tensor_check(in[k], "an argument of a region"));
        if (rp__tensor_is_error(in[k]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "an argument of a region is the error tensor");
        out[k] = k >= n_own ? in[k] : rp__row_major(in[k]);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    return RP_OK;
}

rp_status rp__region_may_decide(rp__region_where at, const rp_tensor *on, const char *what) {
    rp__device *d = rp__device_get(on->device);
    if (!d) return rp_error_status();
    rp__site_frame outer = rp__site_push(at.site, at.of);
    rp_status status = rp__capture_forbid(rp__current_stream(d), what);
    rp__site_pop(outer);
    return status;
}

rp_status rp__region_settle(rp__region_where at, rp_tensor *const *in, size_t n, size_t n_own, rp_tensor ***out) {
    *out = rp__calloc(n + 1, sizeof **out);
    return *out ? rp__region_settle_operands(in, n, n_own, *out) : RP__OOM(at.of);
}

bool rp__region_falls_back(rp_status status) {
    if (status != RP_ERROR_GRAPH_BREAK) return false;
    rp__log(RP__LOG_TRACE, "no region: %s", rp_error_message());
    (void)rp_error_take();
    return true;
}

rp_status rp__region_fall_back(rp__region_where at, rp_status status, rp__trace **t) {
    if (status == RP_ERROR_GRAPH_BREAK && rp__trace_mode_of(*t) == RP__TRACE_ABSTRACT) {
        rp__trace_refuse(*t, "region-not-traceable", at.site); /* nothing can be run: the error names op and line */
        return rp__trace_spoil(*t, status);
    }
    if (!rp__region_falls_back(status)) return status;
    status = rp__trace_break(*t, "region-not-traceable", at.site);
    *t = NULL;
    return status;
}

/* One pass over a block; of a loop, until no more states carry: results of one iteration are operands of the next. */
static rp_status flow_of(const rp_ir *ir, size_t n_state, bool *args, bool *carries) {
    rp_status status = RP_OK;
    for (bool more = true; more && status == RP_OK;) {
        rp__flow flow = {0};
        more = false;
        status = rp__flow_advance(&flow, ir, args);
        for (uint32_t k = 0; k < ir->body.n_results && status == RP_OK; k++) {
            if (!rp__flow_carries(&flow, ir, ir->body.results[k])) continue;
            carries[k] = true;
            if (k >= n_state || args[k]) continue;
            args[k] = more = true;
        }
        rp__flow_free(&flow);
    }
    return status;
}

rp_status rp__region_flow(const rp_ir *a, const rp_ir *b, size_t n_state, rp_tensor *const *operands, size_t n,
                          bool *carries, bool *any) {
    bool *args = rp__calloc(n + 1, sizeof *args), needed = false;
    if (!args) return RP__OOM("region");
    *any = false;
    for (size_t k = 0; k < n; k++) {
        args[k] = rp__grad_recording() && rp__grad_needed(operands[k]);
        needed = needed || args[k];
    }
    for (size_t k = 0; k < n_state; k++) carries[k] = args[k]; /* no iteration at all */
    rp_status status = needed ? flow_of(a, n_state, args, carries) : RP_OK;
    if (status == RP_OK && needed && b) status = flow_of(b, n_state, args, carries);
    for (uint32_t k = 0; k < a->body.n_results; k++) *any = *any || carries[k];
    rp__free(args);
    return status;
}

rp_status rp__region_finish(rp_scope scope, rp_status status, rp_tensor **out, size_t n_out) {
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    for (size_t k = 0; out && k < n_out && status != RP_OK; k++) out[k] = rp__tensor_error();
    return status;
}

/* ---- a closed function */

void rp__region_free(rp__region *r) {
    rp__ir_release(r->ir);
    for (size_t i = 0; i < r->n_operands; i++) rp_release(r->operands[i]);
    rp__free(r->operands);
    *r = (rp__region){0};
}

/* Results of a block are fresh tensors: neither arguments, nor views, nor the same twice; of branches and loops row-major. */
typedef struct settled {
    rp_fn fn;
    rp__region_where at;
    bool
        own; /* results that lie in memory from outside, or two in one, are no block's: without a trace they are handed on */
} settled;

static void settled_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const settled *s = ctx;
    s->fn.body(s->fn.ctx, in, n_in, out, n_out);
    for (size_t k = 0; k < n_out && !rp_failed(); k++) {
        if (rp__region_check_result(s->at, s->fn, out[k], k) != RP_OK) return;
        bool copy =
            !rp__trace_pending(out[k]) || (out[k]->flags & RP__T_VIEW) || (!s->own && !rp__tensor_contiguous(out[k]));
        bool shared = !rp__trace_made(rp__trace_current(), out[k]);
        for (size_t i = 0; i < k && !shared; i++) shared = out[i]->storage == out[k]->storage;
        if (shared && s->own) {
            (void)rp__trace_spoil(rp__trace_current(), RP_ERROR_GRAPH_BREAK);
            (void)rp__fail(RP_ERROR_GRAPH_BREAK, "a function of a region gives memory that is not its own");
            return;
        }
        if (copy || shared) out[k] = s->own ? rp_clone(out[k]) : rp__row_major_copy(out[k]);
    }
}

rp_status rp__region_trace_closed(rp_fn fn, bool derived, const rp__ir_value_info *infos, size_t n_in, size_t n_out,
                                  rp__region *out) {
    const rp__trace *around = rp__trace_current();
    rp__trace_result result = {0};
    *out = (rp__region){0};
    const rp__ir_value_info **pointers = rp__calloc(n_in + 1, sizeof *pointers);
    if (!pointers) return RP__OOM("region");
    for (size_t k = 0; k < n_in; k++) pointers[k] = &infos[k];
    rp__trace_request request = {.mode = RP__TRACE_ABSTRACT,
                                 .fn = fn,
                                 .n_in = n_in,
                                 .n_out = n_out,
                                 .arg_info = pointers,
                                 .close = true,
                                 .no_grad = true,
                                 .derived =
                                     derived && (!around || !rp__trace_closes(around) || rp__trace_derived(around)),
                                 .grad_mode = derived && rp_grad_enabled()};
    rp_status status = rp__trace_run(&request, NULL, &result);
    if (status == RP_OK && result.escaped)
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a region keeps a tensor that it made");
    if (status == RP_OK && result.switched)
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a function of a region leaves another grad mode than it found");
    if (status == RP_OK && result.moved)
        status = rp__fail(RP_ERROR_GRAPH_BREAK,
                          "a function of a region leaves another autocast or default device than it found");
    if (status == RP_OK && result.n_words)
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a function of a region changes an object that is no tensor");
    if (status == RP_OK) {
        *out = (rp__region){result.ir, result.operands, result.n_operands, result.random_count};
        result.ir = NULL;
        result.operands = NULL;
        result.n_operands = 0;
    }
    rp__trace_result_free(&result);
    rp__free(pointers);
    return status;
}

void rp__region_info_of(const rp_tensor *t, rp__ir_value_info *out) {
    rp__ir_meta_of(t, &out->meta);
    memcpy(out->stride, t->stride, sizeof out->stride);
}

rp_status rp__region_trace(rp__region_where at, rp_fn fn, bool own, rp_tensor *const *in, size_t n_in, size_t n_out,
                           rp__region *out) {
    settled s = {fn, at, own};
    *out = (rp__region){0};
    rp__ir_value_info *infos = rp__calloc(n_in + 1, sizeof *infos);
    if (!infos) return RP__OOM("region");
    for (size_t k = 0; k < n_in; k++) rp__region_info_of(in[k], &infos[k]);
    rp_status status = rp__region_trace_closed((rp_fn){settled_body, &s, 0, fn.name}, true, infos, n_in, n_out, out);
    rp__free(infos);
    return status;
}

rp_status rp__region_copy_onto(rp_ir *ir, const rp_ir *from, rp__ir_value *args) {
    rp__ir_block to = ir->body;
    to.args = args;
    to.n_args = from->body.n_args;
    rp_status status = rp__ir_copy_block(ir, &to, from, &from->body);
    to.args = ir->body.args;
    to.n_args = ir->body.n_args;
    ir->body = to;
    return status;
}

rp_status rp__region_widen(const rp__region *r, size_t n_explicit, rp_tensor *const *all, size_t n_all, rp_ir **out) {
    rp_ir *ir = rp__ir_new(r->ir->name);
    if (!ir) return RP_ERROR_OUT_OF_MEMORY;
    rp_status status = rp__symbols_fork(r->ir->symbols, &ir->symbols);
    rp__ir_value *args = rp__alloc((r->ir->body.n_args + 1u) * sizeof *args);
    if (!args) status = RP__OOM("region");
    for (size_t k = 0; k < n_explicit + n_all && status == RP_OK; k++) {
        rp__meta meta;
        if (k < n_explicit)
            meta = r->ir->values[r->ir->body.args[k]].meta;
        else
            rp__ir_meta_of(all[k - n_explicit], &meta);
        rp__ir_value v = rp__ir_add_arg(ir, &ir->body, &meta, NULL);
        if (v == RP__IR_NONE)
            status = RP_ERROR_OUT_OF_MEMORY;
        else if (k < n_explicit)
            args[k] = v;
        for (size_t i = 0; k >= n_explicit && i < r->n_operands; i++) {
            if (r->operands[i] == all[k - n_explicit]) args[n_explicit + i] = v;
        }
    }
    if (status == RP_OK) status = rp__region_copy_onto(ir, r->ir, args);
    rp__free(args);
    if (status != RP_OK) {
        rp__ir_release(ir);
        return status;
    }
    *out = ir;
    return RP_OK;
}

rp_status rp__region_merge_operands(const rp__region *a, const rp__region *b, rp_tensor ***all, size_t *n) {
    *n = 0;
    *all = rp__calloc(a->n_operands + (b ? b->n_operands : 0) + 1, sizeof **all);
    if (!*all) return RP__OOM("region");
    for (size_t i = 0; i < a->n_operands; i++) (*all)[(*n)++] = a->operands[i];
    for (size_t i = 0; b && i < b->n_operands; i++) {
        size_t k = 0;
        while (k < *n && (*all)[k] != b->operands[i]) k++;
        if (k == *n) (*all)[(*n)++] = b->operands[i];
    }
    return RP_OK;
}

/* ---- recording a node */

static rp_status add_block(rp_ir *ir, uint32_t node, uint32_t r, const rp_ir *from) {
    rp__ir_block *block = &ir->nodes[node].regions[r];
    for (uint32_t k = 0; k < from->body.n_args; k++) {
        const rp__ir_value_info *info = &from->values[from->body.args[k]];
        if (rp__ir_add_arg(ir, block, &info->meta, info->site) == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    }
    return rp__ir_copy_block(ir, block, from, &from->body);
}

rp_status rp__region_emit(rp__trace *t, rp__region_where at, rp__ir_kind kind, const rp_ir *a, const rp_ir *b,
                          rp_tensor *const *operands, size_t n, int64_t max_iter, size_t keeps, const rp_ir *typed,
                          rp_tensor **out, uint32_t *made) {
    rp_ir *ir = rp__trace_ir(t);
    rp__ir_value *in = rp__alloc((n + 1) * sizeof *in);
    const rp__meta **metas = rp__calloc(typed->body.n_results + 1u, sizeof *metas);
    rp__meta *own = rp__calloc(typed->body.n_results + 1u, sizeof *own);
    const rp_attr attrs[2] = {{.kind = RP_ATTR_INT, .v.i = max_iter}, {.kind = RP_ATTR_INT, .v.i = (int64_t)keeps}};
    uint32_t node = RP__IR_NONE;
    rp_status status = in && metas && own ? RP_OK : RP__OOM("region");
    for (size_t k = 0; k < n && status == RP_OK; k++) {
        rp_tensor *operand = rp__trace_cut(t, operands[k], at.site);
        in[k] = rp__tensor_is_error(operand) ? RP__IR_NONE : rp__trace_resolve(t, operand);
        if (in[k] == RP__IR_NONE) status = rp_error_status();
    }
    if (status == RP_OK) {
        node = rp__ir_add_node(ir, NULL, kind, NULL, in, (uint32_t)n, NULL, attrs, kind == RP__IR_WHILE ? 2 : 0,
                               typed->body.n_results, at.site);
        status = node == RP__IR_NONE ? RP_ERROR_OUT_OF_MEMORY : rp__ir_add_regions(ir, node, b ? 2 : 1);
        if (status == RP_OK) ir->nodes[node].untaped = !rp__grad_recording();
    }
    if (status == RP_OK) status = add_block(ir, node, 0, a);
    if (status == RP_OK && b) status = add_block(ir, node, 1, b);
    for (uint32_t k = 0; metas && own && k < typed->body.n_results; k++) {
        const rp__ir_value_info *info = &typed->values[typed->body.results[k]];
        own[k] = info->meta;
        if (kind == RP__IR_CHECKPOINT) /* its results are the block's own */
            own[k].order = rp__strides_order(info->meta.size, info->stride, info->meta.ndim);
        metas[k] = &own[k];
    }
    if (status == RP_OK) status = rp__trace_outputs(t, node, metas, out, typed->body.n_results);
    if (status == RP_OK) status = rp__ir_block_append(ir, &ir->body, node); /* whole or not at all */
    if (made) *made = node;
    rp__free(in);
    rp__free(metas);
    rp__free(own);
    return status;
}

/* ---- what the tape keeps of a region */

static void kept_contents_free(rp__region_kept *p) {
    rp__ir_release(p->a);
    rp__ir_release(p->b);
    rp__generator_drop(p->generator);
    rp__random_memory_release(p->memory);
}

static void kept_release_saved(rp__tape_node *n) {
    rp__region_kept *p = n->payload;
    for (size_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    n->released = true;
}

static void kept_destroy(rp__tape_node *n) {
    rp__region_kept *p = n->payload;
    for (size_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    kept_contents_free(p);
    rp__free(p->saved);
}

static rp_status kept_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph);
static const rp__tape_class kept_class = {"region", kept_backward, kept_release_saved, kept_destroy};

rp_status rp__region_attach(rp__region_where at, rp__region_kept *contents, const char *name, rp_tensor *const *save,
                            size_t n_save, rp_tensor *const *operands, size_t n_operands, rp_tensor *const *out,
                            const bool *carries, size_t n_out) {
    rp__tape_node *n;
    rp__trace *t = rp__trace_current();
    rp_status status = rp__tape_node_new(&kept_class, name, at.site, operands, (uint32_t)n_operands, out,
                                         (uint32_t)n_out, sizeof(rp__region_kept), &n);
    if (status != RP_OK) {
        kept_contents_free(contents);
        return status;
    }
    rp__region_kept *p = n->payload;
    *p = *contents;
    p->n_operands = n_operands;
    p->saved = rp__calloc(n_save + 1, sizeof *p->saved);
    status = p->saved ? RP_OK : RP__OOM("tape");
    for (size_t i = 0; i < n_save && status == RP_OK; i++) {
        size_t k = 0; /* a result is kept without holding its own node */
        while (k < n_out && out[k] != save[i]) k++;
        status = rp__saved_pack(&p->saved[i], save[i], k < n_out, k < n_out ? (uint32_t)k : 0);
        p->n_saved = i + 1;
    }
    for (size_t k = 0; k < n_out && status == RP_OK; k++) {
        if (!carries[k]) continue;
        status = rp__tape_set_history(out[k], n, (uint32_t)k);
        if (status == RP_OK && t) rp__trace_ir(t)->values[rp__trace_resolve(t, out[k])].requires_grad = true;
    }
    rp__tape_node_release(n);
    return status;
}

/* ---- the derivative of a block */

rp_status rp__region_derive(const rp__region_derivative *d, rp_tensor *const *grad_out, rp_tensor *const *operands,
                            rp_tensor *const *sums, bool create_graph, bool again, rp_tensor **grads) {
    size_t n_out = d->ir->body.n_results, n_wanted = 0, n_roots = 0, most = n_out + d->n_operands;
    rp_tensor **work = rp__calloc(2 * d->n_operands + n_out + 2 * most + 1, sizeof *work);
    if (!work) return RP__OOM("derivative of a region");
    rp_tensor **leaf = work, **wanted = leaf + d->n_operands, **out = wanted + d->n_operands, **roots = out + n_out,
              **seeds = roots + most;
    const uint64_t failures = rp__error_count();
    bool grad = rp__grad_switch(true);
    const rp__grad_said said = rp__grad_said_now;
    rp__grad_said_now.apart = false; /* in the trace of a block, too, this part has a tape */
    rp_status status = RP_OK;
    for (size_t k = 0; k < d->n_operands && status == RP_OK; k++) {
        leaf[k] = d->same ? leaf[d->same[k]] : NULL;
        if (!leaf[k]) leaf[k] = operands[k];
        if (!d->wanted[k]) continue;
        if (create_graph && rp__grad_needed(operands[k])) {
            leaf[k] = rp_view(operands[k], operands[k]->size, operands[k]->ndim);
        } else {
            leaf[k] = rp__tape_shadow(operands[k]);
            status = rp_set_requires_grad(leaf[k], true);
        }
        wanted[n_wanted++] = leaf[k];
        if (sums[k]) {
            roots[n_roots] = leaf[k];
            seeds[n_roots++] = sums[k];
        }
        if (status == RP_OK) status = rp__status_since(failures);
    }
    rp__trace *t = rp__trace_current();
    size_t before = t ? rp__trace_ir(t)->n_nodes : 0;
    if (status == RP_OK) status = rp__ir_run(d->ir, leaf, d->n_operands, out, n_out, NULL);
    for (size_t k = before; again && t && k < rp__trace_ir(t)->n_nodes; k++) rp__trace_ir(t)->nodes[k].recompute = true;
    for (size_t k = 0; k < n_out && status == RP_OK; k++) {
        if (grad_out[k] && rp__grad_needed(out[k])) {
            roots[n_roots] = out[k];
            seeds[n_roots++] = grad_out[k];
        }
    }
    rp_backward_options options = {.struct_size = sizeof options,
                                   .allow_unused = true,
                                   .create_graph = create_graph,
                                   .retain_graph = create_graph};
    if (status == RP_OK && n_roots && n_wanted)
        status = rp_grad(roots, n_roots, wanted, n_wanted, seeds, &options, grads);
    (void)rp__grad_switch(grad);
    rp__grad_said_now = said;
    for (size_t k = 0; k < n_wanted && status == RP_OK; k++) {
        if (!grads[k]) grads[k] = rp_zeros_like(wanted[k]);
    }
    if (status == RP_OK) status = rp__status_since(failures);
    rp__free(work);
    return status;
}

/* ---- backward */

static rp_status region_backward(const rp__region_task *q, rp_tensor **grad_in) {
    return q->p->kind == RP__IR_COND    ? rp__region_cond_backward(q, grad_in)
           : q->p->kind == RP__IR_WHILE ? rp__region_while_backward(q, grad_in)
                                        : rp__region_checkpoint_backward(q, grad_in);
}

static rp_status kept_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    const rp__region_kept *p = n->payload;
    if (n->released) return rp__tape_released(n);
    rp_tensor **tensors = rp__calloc(p->n_saved + p->n_operands + 1, sizeof *tensors);
    bool *needed = rp__calloc(p->n_operands + 1, sizeof *needed);
    uint32_t *same = rp__calloc(p->n_operands + 1, sizeof *same);
    rp_status status = tensors && needed && same ? RP_OK : RP__OOM("backward of a region");
    if (status == RP_OK) {
        rp_tensor **saved = tensors, **sums = tensors + p->n_saved;
        for (size_t i = 0; i < p->n_saved && status == RP_OK; i++) {
            saved[i] = rp__saved_unpack(&p->saved[i], n);
            if (rp__tensor_is_error(saved[i])) status = rp_error_status();
        }
        for (uint32_t k = 0; k < p->n_operands && status == RP_OK; k++) {
            const rp__edge *edge = &n->edges[k];
            needed[k] = rp__tape_needs(n, k);
            same[k] = k;
            for (uint32_t j = 0; j < k && needed[k] && p->kind != RP__IR_WHILE; j++) {
                if (n->edges[j].node != edge->node || n->edges[j].index != edge->index) continue;
                same[k] = same[j];
                needed[k] = false;
            }
            if (needed[k] && !create_graph) sums[k] = rp__tape_take_sum(n, k);
            if (sums[k] && rp__tensor_is_error(sums[k])) status = rp_error_status();
        }
        const rp__region_task q = {p, saved, grad_out, sums, needed, same, create_graph};
        if (status == RP_OK) status = region_backward(&q, grad_in);
    }
    rp__free(tensors);
    rp__free(needed);
    rp__free(same);
    return status;
}
