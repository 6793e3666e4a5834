/* Custom functions in a trace: a FUNCTION node with the forward and the backward as blocks, both closed over the same
   operands. Autograd calls it through rp__function_trace_hook, ir_run.c for a node that is traced again. It puts nothing on
   the tape: the caller does, and the joint graph takes the gradient from the node's second block. What cannot be recorded is
   no failure of the call. */
#include "trace/regions.h"

#include <string.h>

#include "core/alloc.h"
#include "core/log.h"

typedef struct fresh { /* a forward, whose results must be what FUNCTION gives */
    rp_fn fn;
    bool others; /* a result is missing, a view, an argument, or the same as another */
} fresh;

static void fresh_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    fresh *f = ctx;
    f->fn.body(f->fn.ctx, in, n_in, out, n_out);
    for (size_t k = 0; k < n_out && !rp_failed(); k++) {
        if (!out[k] || !rp__trace_pending(out[k]) || (out[k]->flags & RP__T_VIEW) || !rp__tensor_contiguous(out[k])) {
            f->others = true;
            return;
        }
        for (size_t i = 0; i < n_in; i++) f->others = f->others || in[i]->storage == out[k]->storage;
        for (size_t i = 0; i < k; i++) f->others = f->others || out[i]->storage == out[k]->storage;
    }
}

/* The backward b, traced on (in, results, gradients) and closed over operands, as a block of a node with operands (in, all). */
static rp_status arrange_backward(const rp__region *b, size_t n_in, size_t n_out, rp_tensor *const *all, size_t n_all,
                                  rp_ir **out) {
    rp_ir *ir = rp__ir_new(b->ir->name);
    if (!ir) return RP_ERROR_OUT_OF_MEMORY;
    rp_status status = rp__symbols_fork(b->ir->symbols, &ir->symbols);
    uint32_t n_args = (uint32_t)(n_in + n_all + 2 * n_out);
    rp__ir_value *args = rp__alloc((b->ir->body.n_args + 1u) * sizeof *args),
                 *results = rp__alloc((n_in + n_all + 1) * sizeof *results);
    if (!args || !results) status = RP__OOM("a custom function");
    for (size_t k = 0; k < n_args && status == RP_OK; k++) {
        bool operand = k >= n_in && k < n_in + n_all;
        size_t traced = k < n_in ? k : k - n_all; /* of b's explicit arguments */
        rp__meta meta;
        if (operand)
            rp__ir_meta_of(all[k - n_in], &meta);
        else
            meta = b->ir->values[b->ir->body.args[traced]].meta;
        rp__ir_value v = rp__ir_add_arg(ir, &ir->body, &meta, NULL);
        if (v == RP__IR_NONE) status = RP_ERROR_OUT_OF_MEMORY;
        if (!operand && status == RP_OK) args[traced] = v;
        for (size_t i = 0; operand && i < b->n_operands; i++)
            if (b->operands[i] == all[k - n_in]) args[n_in + 2 * n_out + i] = v;
    }
    if (status == RP_OK) status = rp__region_copy_onto(ir, b->ir, args);
    for (size_t k = 0; k < n_in + n_all && status == RP_OK; k++)
        results[k] = k < n_in ? ir->body.results[k] : RP__IR_NONE; /* what is read from outside gets no gradient */
    if (status == RP_OK) status = rp__ir_set_results(ir, &ir->body, results, (uint32_t)(n_in + n_all));
    rp__free(args);
    rp__free(results);
    if (status != RP_OK) {
        rp__ir_release(ir);
        return status;
    }
    *out = ir;
    return RP_OK;
}

/* RP_ERROR_GRAPH_BREAK: it is no node. */
static rp_status trace_custom(rp__trace *t, rp__region_where at, rp_fn forward, rp_fn backward, rp_tensor *const *in,
                              size_t n_in, rp_tensor **out, size_t n_out) {
    rp__region a = {0}, b = {0};
    fresh f = {.fn = forward};
    rp_ir *x = NULL, *y = NULL;
    rp_tensor **all = NULL, **operands = NULL;
    size_t n_all = 0;
    rp_status status;
    rp__ir_value_info *infos = rp__calloc(n_in + 2 * n_out + 1, sizeof *infos);
    if (!infos) return RP__OOM("a custom function");
    for (size_t k = 0; k < n_in; k++) rp__region_info_of(in[k], &infos[k]);
    RP_TRY_GOTO(status, done,
                rp__region_trace_closed((rp_fn){fresh_body, &f, 0, forward.name}, false, infos, n_in, n_out, &a));
    if (f.others || rp__ir_block_random(a.ir, &a.ir->body)) {
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a custom function gives a view or draws random numbers");
        goto done;
    }
    for (size_t k = 0; k < 2 * n_out; k++) infos[n_in + k] = a.ir->values[a.ir->body.results[k % n_out]];
    RP_TRY_GOTO(status, done, rp__region_trace_closed(backward, true, infos, n_in + 2 * n_out, n_in, &b));
    if (rp__ir_block_random(b.ir, &b.ir->body)) {
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "the backward of a custom function draws random numbers");
        goto done;
    }
    RP_TRY_GOTO(status, done, rp__region_merge_operands(&a, &b, &all, &n_all));
    RP_TRY_GOTO(status, done, rp__region_widen(&a, n_in, all, n_all, &x));
    RP_TRY_GOTO(status, done, arrange_backward(&b, n_in, n_out, all, n_all, &y));
    operands = rp__calloc(n_in + n_all + 1, sizeof *operands);
    if (!operands) {
        status = RP__OOM("a custom function");
        goto done;
    }
    if (n_in) memcpy(operands, in, n_in * sizeof *operands);
    if (n_all) memcpy(operands + n_in, all, n_all * sizeof *operands);
    status = rp__region_emit(t, at, RP__IR_FUNCTION, x, y, operands, n_in + n_all, 0, 0, x, out, NULL);
done:
    rp__region_free(&a);
    rp__region_free(&b);
    rp__ir_release(x);
    rp__ir_release(y);
    rp__free(all);
    rp__free(operands);
    rp__free(infos);
    return status;
}

rp_status rp__trace_function(const char *site, rp_fn forward, rp_fn backward, rp_tensor *const *in, size_t n_in,
                             rp_tensor **out, size_t n_out, bool needed, bool *traced) {
    rp__trace *t = rp__trace_current();
    *traced = false;
    if (!t || rp__trace_mode_of(t) == RP__TRACE_SEGMENTS || (!needed && !rp__trace_closes(t))) return RP_OK;
    const rp__region_where at = {"rp_function_apply", site};
    rp__error_state before;
    rp__error_save(&before); /* what fails here is no failure of the call */
    rp_scope scope = rp__scope_begin();
    rp_status status = trace_custom(t, at, forward, backward, in, n_in, out, n_out);
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    if (status == RP_ERROR_OUT_OF_MEMORY) {
        rp__error_restore(&before);
        return status;
    }
    if (status != RP_OK) {
        rp__log(RP__LOG_TRACE, "custom function `%s` at %s: %s", rp__region_name_of(forward), rp__region_place_of(site),
                rp_error_message());
        (void)rp_error_take();
        for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    }
    rp__error_restore(&before);
    if (status != RP_OK && rp__trace_closes(t)) {
        (void)rp__trace_spoil(t, RP_ERROR_GRAPH_BREAK);
        return rp__fail(RP_ERROR_GRAPH_BREAK, "a custom function that cannot be recorded with its backward");
    }
    if (status != RP_OK) {
        rp__trace_refuse(t, "custom-function", site && *site ? site : rp__region_name_of(forward));
        return RP_OK;
    }
    for (size_t k = 0; k < n_out && needed; k++) {
        if (rp__dtype_is_float((rp_dtype)out[k]->dtype))
            rp__trace_ir(t)->values[rp__trace_resolve(t, out[k])].requires_grad = true;
    }
    *traced = true;
    return RP_OK;
}
