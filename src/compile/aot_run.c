/* A call of a compiled graph (aot.h): the forward of its plan, without a tape; for training see aot_node.c. */
#include "compile/aot_parts.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "trace/ir_run.h"

static rp_status run(rp__aot *a, const int64_t *binding, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                     size_t n_out) {
    if (a->training) return rp__aot_run_training(a, binding, in, out, n_out);
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
    if (a->training) return rp__aot_run_training(a, NULL, in, out, n_out);
    return rp__unit_run(a->plans->forward, &plain, in, n_in, out, n_out);
}

rp__executable *rp__aot_settled(const rp__aot *a) {
    bool bare = !a->on_tape && !a->training && a->n_symbols == 0;
    return bare ? rp__unit_settled(a->plans->forward) : NULL;
}
