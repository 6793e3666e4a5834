/* rp_cond: the host takes a branch, or a trace records a COND node with both as blocks. ir_run.c calls it for a node
   that is traced again; regions.c asks for the backward. Both branches are closed over the same operands and give the same types;
   neither draws random numbers in a trace. */
#include "trace/regions.h"

#include <string.h>

#include "core/alloc.h"

/* The line of the op that made result k; copies of the trace's own have none. */
static const char *made_at(const rp_ir *ir, uint32_t k) {
    rp__ir_value v = ir->body.results[k];
    for (const char *site = NULL;;) {
        uint32_t node = ir->values[v].node;
        const rp__ir_node *n = node == RP__IR_NONE ? NULL : &ir->nodes[node];
        site = n ? n->site : ir->values[v].site;
        if ((site && *site) || !n || n->n_in == 0 || n->in[0] == RP__IR_NONE) return site;
        v = n->in[0];
    }
}

/* Branches give the same types: else an error that names both and the lines where the results were made. */
static rp_status check_types(rp__region_where at, const rp_ir *a, rp_fn a_fn, const rp_ir *b, rp_fn b_fn) {
    for (uint32_t k = 0; k < a->body.n_results; k++) {
        const rp__ir_value_info *x = &a->values[a->body.results[k]], *y = &b->values[b->body.results[k]];
        char x_size[RP__SHAPE_TEXT], y_size[RP__SHAPE_TEXT];
        if (x->meta.dtype == y->meta.dtype && x->meta.ndim == y->meta.ndim &&
            rp__device_equal(x->meta.device, y->meta.device) &&
            memcmp(x->meta.size, y->meta.size, x->meta.ndim * sizeof *x->meta.size) == 0)
            continue;
        return rp__fail(RP_ERROR_SHAPE,
                        "rp_cond: the branches differ in output %u (%s): `%s` gives %s %s (%s), `%s` gives %s %s (%s)",
                        k, rp__region_place_of(at.site), rp__region_name_of(a_fn), rp_dtype_name(x->meta.dtype),
                        rp__shape_text(x->meta.size, x->meta.ndim, x_size), rp__region_place_of(made_at(a, k)),
                        rp__region_name_of(b_fn), rp_dtype_name(y->meta.dtype),
                        rp__shape_text(y->meta.size, y->meta.ndim, y_size), rp__region_place_of(made_at(b, k)));
    }
    return RP_OK;
}

static rp_status host_cond(rp__region_where at, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in,
                           size_t n_in, rp_tensor **out, size_t n_out) {
    const uint64_t failures = rp__error_count();
    RP_TRY(rp__region_may_decide(at, pred, "deciding a branch on the host"));
    rp_scalar take = rp_item(pred);
    RP_TRY(rp__status_since(failures));
    const rp_fn *fn = rp__scalar_f64(take) != 0 ? &then_fn : &else_fn;
    fn->body(fn->ctx, in, n_in, out, n_out);
    rp_status status = rp__status_since(failures);
    for (size_t k = 0; k < n_out && status == RP_OK; k++) status = rp__region_check_result(at, *fn, out[k], k);
    return status == RP_OK ? rp__region_own_results(in, n_in, out, n_out) : status;
}

static rp_status trace_cond(rp__trace *t, rp__region_where at, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn,
                            rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__region a = {0}, b = {0};
    rp_ir *x = NULL, *y = NULL;
    rp_tensor **all = NULL, **operands = NULL;
    bool *carries = NULL, any = false;
    size_t n_all = 0;
    rp_status status;
    RP_TRY_GOTO(status, done, rp__region_trace(at, then_fn, false, in, n_in, n_out, &a));
    RP_TRY_GOTO(status, done, rp__region_trace(at, else_fn, false, in, n_in, n_out, &b));
    if (rp__ir_block_random(a.ir, &a.ir->body) || rp__ir_block_random(b.ir, &b.ir->body)) {
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a branch draws random numbers");
        goto done;
    }
    RP_TRY_GOTO(status, done, check_types(at, a.ir, then_fn, b.ir, else_fn));
    RP_TRY_GOTO(status, done, rp__region_merge_operands(&a, &b, &all, &n_all));
    RP_TRY_GOTO(status, done, rp__region_widen(&a, n_in, all, n_all, &x));
    RP_TRY_GOTO(status, done, rp__region_widen(&b, n_in, all, n_all, &y));
    operands = rp__calloc(1 + n_in + n_all, sizeof *operands);
    if (!operands) {
        status = RP__OOM("rp_cond");
        goto done;
    }
    operands[0] = pred;
    if (n_in) memcpy(operands + 1, in, n_in * sizeof *operands);
    memcpy(operands + 1 + n_in, all, n_all * sizeof *operands);
    RP_TRY_GOTO(status, done,
                rp__region_emit(t, at, RP__IR_COND, x, y, operands, 1 + n_in + n_all, 0, 0, x, out, NULL));
    carries = rp__calloc(n_out + 1, sizeof *carries);
    if (!carries) {
        status = RP__OOM("rp_cond");
        goto done;
    }
    RP_TRY_GOTO(status, done, rp__region_flow(x, y, 0, operands + 1, n_in + n_all, carries, &any));
    if (any) {
        rp__region_kept k = {.kind = RP__IR_COND, .a = x, .b = y};
        x = y = NULL;
        status = rp__region_attach(at, &k, "cond", operands, 1 + n_in + n_all, operands + 1, n_in + n_all, out, carries,
                                   n_out);
    }
done:
    rp__region_free(&a);
    rp__region_free(&b);
    rp__ir_release(x);
    rp__ir_release(y);
    rp__free(all);
    rp__free(operands);
    rp__free(carries);
    return status;
}

rp_status rp_cond_at(const char *site, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in, size_t n_in,
                     rp_tensor **out, size_t n_out) {
    RP__CALLED_FROM(site && *site ? site : NULL);
    RP__LISTS_APART(in, n_in, out, n_out, rp_cond_at(site, pred, then_fn, else_fn, apart, n_in, out, n_out));
    return rp__cond_outside(site, pred, then_fn, else_fn, in, n_in, n_in, out, n_out);
}

rp_status rp__cond_outside(const char *site, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in,
                           size_t n_own, size_t n_in, rp_tensor **out, size_t n_out) {
    const rp__region_where at = {"rp_cond", site ? site : rp__site()};
    const uint64_t failures = rp__error_count();
    rp_scope scope = rp__scope_begin();
    rp_status status =
        rp__region_check_functions("rp_cond", "rp_cond: an argument", then_fn, else_fn, in, n_in, out, n_out);
    if (status == RP_OK) status = rp__tensor_check(pred, "rp_cond: the predicate");
    if (status == RP_OK &&
        (rp__tensor_is_error(pred) || pred->dtype != RP_BOOL || rp__dim_is(RP__DIM_NE, rp__tensor_numel(pred), 1)))
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_cond: the predicate must be one bool");
    rp__trace *t = rp__trace_current();
    rp_tensor **settled_in = NULL;
    if (status == RP_OK) status = rp__region_settle(at, in, n_in, n_own, &settled_in);
    if (status == RP_OK && t)
        status = rp__region_fall_back(at, trace_cond(t, at, pred, then_fn, else_fn, settled_in, n_in, out, n_out), &t);
    if (status == RP_OK && !t)
        status = host_cond(at, pred, then_fn, else_fn, settled_in, n_in, out, n_out);
    else if (status == RP_OK)
        status = rp__status_since(failures);
    rp__free(settled_in);
    return rp__region_finish(scope, status, out, n_out);
}

/* ---- backward */

/* The same as a function of what comes in: gradients, operands, sums. On the host grad mode says whether the result needs a
   history; in a trace the function is a block without a tape, which is differentiated as such. */
static void derivative_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const rp__region_derivative *d = ctx;
    size_t n_results = d->ir->body.n_results, at = 0;
    rp_tensor **all = rp__calloc(n_results + 2 * d->n_operands + 1, sizeof *all);
    (void)n_in;
    (void)n_out;
    if (!all) {
        (void)RP__OOM("derivative of a region");
        return;
    }
    rp_tensor **operands = all + n_results, **sums = operands + d->n_operands;
    for (size_t k = 0; k < n_results; k++) all[k] = d->given[k] ? in[at++] : NULL;
    for (size_t k = 0; k < d->n_operands; k++) operands[k] = in[at++];
    for (size_t k = 0; k < d->n_operands; k++) sums[k] = d->summed[k] ? in[at++] : NULL;
    (void)rp__region_derive(d, all, operands, sums, rp__grad_recording(), false, out);
    rp__free(all);
}

rp_status rp__region_cond_backward(const rp__region_task *q, rp_tensor **grad_in) {
    const rp__region_kept *p = q->p;
    size_t n_out = p->a->body.n_results, n_wanted = 0, n = 0;
    rp_tensor **in = rp__calloc(n_out + 3 * p->n_operands + 1, sizeof *in);
    bool *flags = rp__calloc(n_out + p->n_operands + 1, sizeof *flags);
    if (!in || !flags) {
        rp__free(in);
        rp__free(flags);
        return RP__OOM("backward of rp_cond");
    }
    rp_tensor **grads = in + n_out + 2 * p->n_operands;
    bool *given = flags, *summed = flags + n_out;
    for (size_t k = 0; k < n_out; k++) {
        given[k] = q->grad_out[k] != NULL;
        if (given[k]) in[n++] = q->grad_out[k];
    }
    memcpy(in + n, q->saved + 1, p->n_operands * sizeof *in);
    n += p->n_operands;
    for (size_t k = 0; k < p->n_operands; k++) {
        n_wanted += q->needed[k];
        summed[k] = q->needed[k] && q->sums[k];
        if (summed[k]) in[n++] = q->sums[k];
    }
    rp__region_derivative x = {p->a, q->needed, q->same, given, summed, p->n_operands};
    rp__region_derivative y = x;
    y.ir = p->b;
    rp_status status = rp_cond_at(rp__site(), q->saved[0], (rp_fn){derivative_body, &x, 0, "then backward"},
                                  (rp_fn){derivative_body, &y, 0, "else backward"}, in, n, grads, n_wanted);
    for (size_t k = 0, g = 0; k < p->n_operands && status == RP_OK; k++) {
        if (q->needed[k]) grad_in[k] = grads[g++];
    }
    rp__free(in);
    rp__free(flags);
    return status;
}
