/* A unit's graph in the hands of a public backend: whatever comes back is checked, and its failures have a message. */
#include <stdio.h>

#include "compile/unit_parts.h"

rp_status rp__unit_leaf_compile(const rp_backend *leaf, rp_ir *graph, void **compiled) {
    uint64_t failures = rp__error_count();
    rp__ir_lend(graph);
    rp_status status = leaf->compile(leaf->ctx, graph, compiled);
    if (status == RP_OK) return RP_OK;
    *compiled = NULL; /* what a failing backend wrote there is nobody's */
    if (status == RP_ERROR_OUT_OF_MEMORY) return RP__OOM("a backend's graph");
    if (rp__error_count() == failures) (void)rp__fail(RP_ERROR_COMPILE, "it gave no reason");
    (void)rp__fail_context("backend \"%s\" compiled a graph", leaf->name);
    return RP_ERROR_COMPILE;
}

void rp__unit_leaf_destroy(const rp_backend *leaf, void *compiled) {
    if (leaf->destroy) leaf->destroy(leaf->ctx, compiled);
}

/* What a user's backend gave must be what the graph says: later graphs, the tape and the caller rely on it. */
static rp_status check_results(const char *name, const rp_ir *graph, rp_tensor **out, size_t n_out) {
    if (n_out != graph->body.n_results)
        return rp__fail(RP_ERROR_INTERNAL, "a graph of %u results was run for %zu", graph->body.n_results, n_out);
    for (size_t k = 0; k < n_out; k++) {
        rp__ir_value v = graph->body.results[k];
        if (v == RP__IR_NONE) {
            out[k] = NULL;
            continue;
        }
        const rp__meta *want = &graph->values[v].meta;
        char have[RP__SHAPE_TEXT], size[RP__SHAPE_TEXT], what[160];
        (void)snprintf(what, sizeof what, "result %zu of backend \"%s\"", k, name);
        if (!out[k])
            return rp__fail(RP_ERROR_STATE, "backend \"%s\" returned RP_OK and no result %zu (%s %s)", name, k,
                            rp_dtype_name(want->dtype), rp__shape_text(want->size, want->ndim, size));
        RP_TRY(rp__tensor_check(out[k], what));
        if (rp__tensor_is_error(out[k]))
            return rp__fail(RP_ERROR_STATE, "backend \"%s\" returned RP_OK and the error tensor as result %zu", name,
                            k);
        bool same = out[k]->dtype == want->dtype && out[k]->ndim == want->ndim &&
                    rp__device_equal(out[k]->device, want->device);
        for (unsigned d = 0; same && d < want->ndim; d++) same = out[k]->size[d] == want->size[d];
        if (!same)
            return rp__fail(RP_ERROR_SHAPE, "backend \"%s\" gave %s as result %zu; the graph says %s %s", name,
                            rp__tensor_text(out[k], have), k, rp_dtype_name(want->dtype),
                            rp__shape_text(want->size, want->ndim, size));
    }
    return RP_OK;
}

rp_status rp__unit_leaf_run(const rp_backend *leaf, const rp_ir *graph, void *compiled, rp_tensor *const *in,
                            size_t n_in, rp_tensor **out, size_t n_out) {
    uint64_t failures = rp__error_count();
    for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    rp_status status = leaf->run(leaf->ctx, compiled, in, n_in, out, n_out);
    if (status == RP_OK && rp__error_count() == failures) return check_results(leaf->name, graph, out, n_out);
    if (status == RP_OK) status = rp_error_status();
    if (rp__error_count() == failures) (void)rp__fail(status, "it gave no reason");
    (void)rp__fail_context("backend \"%s\" ran a graph", leaf->name);
    return status;
}
