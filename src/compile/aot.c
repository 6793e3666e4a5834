/* Runs traced graphs for leaf backends (aot.h). The tape is built op by op: a training graph is run node by node above it, whatever
   the leaf; an inference graph is the leaf's. */
#include "compile/aot.h"

#include "core/alloc.h"
#include "trace/ir_run.h"

struct rp__aot {
    rp_ir *graph;
    const rp_backend *leaf; /* NULL: node by node */
    void *compiled;
};

rp_status rp__aot_compile(const rp_backend *leaf, const rp__engine_request *request, rp__aot **out)
{
    rp__aot *a = rp__calloc(1, sizeof *a);
    if (!a)
        return RP__OOM("compiled graph");
    a->graph = rp__ir_retain(request->graph);
    if (!request->training && leaf != &rp__leaf_interpreter) {
        rp_status status = leaf->compile(leaf->ctx, a->graph, &a->compiled);
        if (status != RP_OK) {
            rp__aot_free(a);
            return rp_failed() ? status : rp__fail(status, "backend \"%s\" could not compile a graph", leaf->name);
        }
        a->leaf = leaf;
    }
    *out = a;
    return RP_OK;
}

rp_status rp__aot_run(rp__aot *a, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
{
    if (!a->leaf)
        return rp__ir_run(a->graph, in, n_in, out, n_out, NULL);
    rp_status status = a->leaf->run(a->leaf->ctx, a->compiled, in, n_in, out, n_out);
    return status == RP_OK || rp_failed() ? status : rp__fail(status, "backend \"%s\" failed to run a graph", a->leaf->name);
}

void rp__aot_free(rp__aot *a)
{
    if (!a)
        return;
    if (a->leaf && a->leaf->destroy)
        a->leaf->destroy(a->leaf->ctx, a->compiled);
    rp_ir_release(a->graph);
    rp__free(a);
}

/* ---- the interpreter as a leaf */

static rp_status interpreter_compile(void *ctx, const rp_ir *graph, void **compiled)
{
    (void)ctx;
    *compiled = rp__ir_retain((rp_ir *)(uintptr_t)graph);
    return RP_OK;
}

static rp_status interpreter_run(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
{
    (void)ctx;
    return rp__ir_run(compiled, in, n_in, out, n_out, NULL);
}

static void interpreter_destroy(void *ctx, void *compiled)
{
    (void)ctx;
    rp_ir_release(compiled);
}

const rp_backend rp__leaf_interpreter = {sizeof(rp_backend), "interpreter", interpreter_compile, interpreter_run, interpreter_destroy, NULL};
