/* A call of a compiled graph (aot.h): the forward of its plan, and for training a node on the tape. */
#include <string.h>

#include "compile/aot_parts.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "trace/ir_run.h"

static rp_status run_training(rp__aot *a, const int64_t *binding, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                              size_t n_out) {
    rp__aot_plan *made;
    rp__aot_call *p = NULL;
    RP_TRY(rp__aot_choose_plan(a, binding, &made));
    uint32_t n_results = a->n_results;
    for (uint32_t k = 0; k < made->n_saved; k++) {
        if (made->saved[k].kind == RP__SAVED_RESULT && made->saved[k].index >= n_results)
            n_results = made->saved[k].index + 1;
    }
    rp_tensor *few[RP__FEW_OPERANDS], **results = few;
    if (n_results > RP__FEW_OPERANDS) {
        results = rp__calloc(n_results, sizeof *results);
        if (!results) return RP__OOM("results of a compiled function");
    }
    rp_scope scope = rp__scope_begin();
    rp_status status = rp__aot_call_new(a, made, binding, in, &p);
    if (status == RP_OK) {
        const rp__unit_call call = {.binding = made->binding ? NULL : binding, .drawn = p->draws};
        bool grad_mode = rp_set_grad_enabled(false);
        status = rp__unit_run(made->forward, &call, in, n_in, results, n_results);
        (void)rp_set_grad_enabled(grad_mode);
    }
    if (status == RP_OK)
        status = rp__aot_call_attach(a, p, in, results);
    else
        rp__aot_call_free(p);
    if (status == RP_OK) memcpy(out, results, n_out * sizeof *out);
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    if (results != few) rp__free(results);
    return status;
}

static rp_status run(rp__aot *a, const int64_t *binding, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                     size_t n_out) {
    if (a->training) return run_training(a, binding, in, n_in, out, n_out);
    return rp__unit_run(a->plans->forward, &(rp__unit_call){.binding = binding}, in, n_in, out, n_out);
}

static __attribute__((noinline)) rp_status run_bound(rp__aot *a, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                                     size_t n_out) {
    int64_t few[RP__FEW_OPERANDS], *binding = few;
    if (a->n_symbols > RP__FEW_OPERANDS) {
        binding = rp__alloc(a->n_symbols * sizeof *binding);
        if (!binding) return RP__OOM("a compiled function");
    }
    rp_status status = rp__ir_bind(a->graph, in, n_in, binding);
    if (status == RP_OK) status = run(a, binding, in, n_in, out, n_out);
    if (binding != few) rp__free(binding);
    return status;
}

rp_status rp__aot_run(rp__aot *a, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    static const rp__unit_call plain = {0};
    if (a->on_tape) return rp__ir_run(a->graph, in, n_in, out, n_out, NULL);
    if (RP__UNLIKELY(n_in != a->graph->body.n_args || n_out != a->n_results)) {
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the graph takes %u arguments and gives %u results, not %zu and %zu",
                        a->graph->body.n_args, a->n_results, n_in, n_out);
    }
    if (RP__UNLIKELY(a->n_symbols > 0)) return run_bound(a, in, n_in, out, n_out);
    if (a->training) return run_training(a, NULL, in, n_in, out, n_out);
    return rp__unit_run(a->plans->forward, &plain, in, n_in, out, n_out);
}

rp__executable *rp__aot_settled(const rp__aot *a) {
    bool bare = !a->on_tape && !a->training && a->n_symbols == 0;
    return bare ? rp__unit_settled(a->plans->forward) : NULL;
}
