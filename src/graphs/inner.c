/* rp_cudagraphs_inner (torch/_dynamo/backends/cudagraphs.py): a function of fixed inputs as one recorded graph and nothing around it:
   no tape, no guards, no pool shared with others. What is copied is the caller's choice: inputs into the recorded ones, outputs out
   of them, both or neither. */
#include "ops/private.h"

#include <string.h>

#include "compile/callable.h"
#include "core/alloc.h"
#include "graphs/recording.h"
#include "tensor/tensor.h"

typedef struct inner {
    rp_compiled base;
    rp_graph *graph;
    rp_tensor **in, **out; /* recorded ones; retained */
    size_t n_in, n_out;
    bool copy_inputs, copy_outputs;
} inner;

static void destroy(rp_compiled *f) {
    inner *c = (inner *)f;
    if (c->graph) rp_graph_release(c->graph);
    for (size_t k = 0; c->in && k < c->n_in; k++)
        if (c->in[k]) rp_release(c->in[k]);
    for (size_t k = 0; c->out && k < c->n_out; k++)
        if (c->out[k]) rp_release(c->out[k]);
    rp__free(c->in);
    rp__free(c->out);
    rp__handle_free(c);
}

/* The argument goes where the recording reads, or lies there already. */
static rp_status give(const inner *c, size_t k, rp_tensor *t) {
    rp_tensor *to = c->in[k];
    char have[RP__SHAPE_TEXT], want[RP__SHAPE_TEXT];
    bool same = t->dtype == to->dtype && t->ndim == to->ndim;
    for (unsigned d = 0; same && d < t->ndim; d++) same = rp__dim_same_word(t->size[d], to->size[d]);
    if (!same)
        return rp__fail(RP_ERROR_GUARD, "argument %zu is %s; %s was recorded", k, rp__tensor_text(t, have),
                        rp__tensor_text(to, want));
    if (c->copy_inputs) return rp__tensor_is_error(rp_copy_(to, t)) ? rp_error_status() : RP_OK;
    if (rp__tensor_data(t) == rp__tensor_data(to) && memcmp(t->stride, to->stride, t->ndim * sizeof *t->stride) == 0)
        return RP_OK;
    return rp__fail(RP_ERROR_GUARD,
                    "argument %zu lies elsewhere than the recorded one, and inputs are not copied (copy_inputs)", k);
}

static rp_status replay(const inner *c, rp_tensor *const *in, rp_tensor **out) {
    for (size_t k = 0; k < c->n_in; k++) RP_TRY(give(c, k, in[k]));
    RP_TRY(rp_graph_replay(c->graph));
    for (size_t k = 0; k < c->n_out; k++) {
        if (!c->out[k]) continue;
        out[k] = c->copy_outputs ? rp_clone(c->out[k], NULL) : rp__tensor_enter_scope(c->out[k]);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    return RP_OK;
}

static rp_status call(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                      size_t n_out) {
    const inner *c = (const inner *)f;
    (void)site;
    if (n_in != c->n_in || n_out != c->n_out)
        return rp__fail(RP_ERROR_GUARD, "%zu arguments and %zu results; %zu and %zu were recorded", n_in, n_out,
                        c->n_in, c->n_out);
    if (!rp__callable_hold(f)) return rp__callable_refuse(f, "rp_call");
    const bool grad = rp_set_grad_enabled(false);
    const rp_scope scope = rp__scope_begin();
    rp_pool *const turn = rp__turn_begin(rp_graph_pool(c->graph)); /* from the arguments' copies to the results' */
    rp_status status = replay(c, in, out);
    rp__turn_end(turn);
    rp__callable_drop(f);
    (void)rp_set_grad_enabled(grad);
    return rp__callable_end(scope, status, out, n_out);
}

static rp_status run_body(const inner *c) {
    rp_status status = rp__callable_body(c->base.fn, c->in, c->n_in, c->out, c->n_out);
    for (size_t k = 0; k < c->n_out && status == RP_OK; k++)
        if (c->out[k]) (void)rp_retain(c->out[k]);
    if (status != RP_OK) memset(c->out, 0, c->n_out * sizeof *c->out);
    return status;
}

static void forget(const inner *c) {
    for (size_t k = 0; k < c->n_out; k++) {
        if (c->out[k]) rp_release(c->out[k]);
        c->out[k] = NULL;
    }
}

/* Once outside of the recording, for what is made at first use; then into it. */
static rp_status record(inner *c) {
    const rp_device device = c->n_in ? c->in[0]->device : rp_default_device();
    RP_TRY(run_body(c));
    forget(c);
    c->graph = rp_graph_new();
    RP_TRY(rp_graph_begin(c->graph, device, NULL));
    rp_status status = run_body(c);
    const rp_status ended = rp_graph_end(c->graph);
    return status == RP_OK ? ended : status;
}

rp_compiled *rp_cudagraphs_inner_at(const char *site, rp_fn fn, rp_tensor *const *in, size_t n_in, size_t n_out,
                                    bool copy_inputs, bool copy_outputs) {
    RP__CALLED_FROM(site);
    static const rp__callable_ops ops = {"graphed", call, destroy, NULL};
    if (!fn.body || (n_in && !in)) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_cudagraphs_inner: the function or its inputs are NULL");
        return rp__callable_failed();
    }
    for (size_t k = 0; k < n_in; k++)
        if (rp__tensor_check(in[k], "an input of rp_cudagraphs_inner") != RP_OK || rp__tensor_is_error(in[k]))
            return rp__callable_failed();
    inner *c = rp__handle_new(RP__HANDLE_FUNCTION, sizeof *c);
    if (!c || rp__callable_begin(&c->base, &ops, fn) != RP_OK) {
        (void)RP__OOM("a graphed function");
        rp__handle_free(c);
        return rp__callable_failed();
    }
    c->copy_inputs = copy_inputs;
    c->copy_outputs = copy_outputs;
    c->in = rp__calloc(n_in + 1, sizeof *c->in);
    c->out = rp__calloc(n_out + 1, sizeof *c->out);
    const bool grad = rp_set_grad_enabled(false);
    const rp_scope scope = rp__scope_begin();
    rp_status status = c->in && c->out ? RP_OK : RP__OOM("a graphed function");
    for (; c->n_in < n_in && status == RP_OK; c->n_in++) {
        rp_tensor *t = copy_inputs ? rp_clone(in[c->n_in], NULL) : in[c->n_in];
        if (rp__tensor_is_error(t)) {
            status = rp_error_status();
            break;
        }
        c->in[c->n_in] = rp_retain(t);
    }
    c->n_out = status == RP_OK ? n_out : 0;
    if (status == RP_OK) status = record(c);
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad);
    if (status == RP_OK) return &c->base;
    rp_compiled_release(&c->base);
    return rp__callable_failed();
}
