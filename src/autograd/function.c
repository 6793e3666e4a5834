/* Custom functions (torch.autograd.Function): a forward that runs without a tape and a backward written with ops, as one node. */
#include "autograd/tape.h"

#include "ops/private.h"

#include "core/alloc.h"
#include "core/options.h"
#include "ops/grad.h"

typedef struct function_payload {
    rp_function function;
    uint32_t n_saved;
    rp__saved saved[]; /* inputs, then outputs if they are saved */
} function_payload;

static const char *name_of(const rp_function *f) { return f->forward.name ? f->forward.name : "function"; }

static void function_release_saved(rp__tape_node *n) {
    function_payload *p = n->payload;
    for (uint32_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    n->released = true;
}

static void function_destroy(rp__tape_node *n) {
    function_payload *p = n->payload;
    for (uint32_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    rp__free(p);
}

static rp_status function_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in,
                                   bool create_graph) {
    (void)create_graph;
    function_payload *p = n->payload;
    size_t total = p->n_saved + n->n_out;
    rp_tensor **saved = rp__calloc(total > 0 ? total : 1, sizeof *saved);
    if (!saved) return RP__OOM("backward of a custom function");
    rp_tensor **grads = saved + p->n_saved;
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < p->n_saved && status == RP_OK; i++) {
        if (!p->saved[i].tensor && !p->saved[i].checkpoint) continue; /* an absent argument or result */
        saved[i] = rp__saved_unpack(&p->saved[i], n);
        if (rp__tensor_is_error(saved[i])) status = rp_error_status();
    }
    for (uint32_t k = 0; k < n->n_out && status == RP_OK; k++) {
        rp__meta meta;
        rp__tape_out_meta(n, k, &meta);
        grads[k] = grad_out[k] ? grad_out[k] : rp__zeros_of(&meta);
        if (rp__tensor_is_error(grads[k])) status = rp_error_status();
    }
    if (status == RP_OK) {
        uint64_t before = rp__error_count();
        rp__site_frame outer = rp__site_enter((rp__site_frame){NULL, NULL}); /* its ops have lines of their own */
        status = p->function.backward(p->function.backward_ctx, saved, p->n_saved, grads, n->n_out, grad_in, n->n_in);
        rp__site_pop(outer);
        status = rp__returned(status, before, "the backward of custom function", n->op);
    }
    for (uint32_t i = 0; i < n->n_in && status == RP_OK; i++)
        if (grad_in[i]) status = rp__tensor_check(grad_in[i], "gradient of a custom function");
    rp__free(saved);
    return status;
}

static const rp__tape_class function_class = {"function", function_backward, function_release_saved, function_destroy};

/* Results that are an argument, or the same handle twice, become handles of their own: each has its own history. */
static rp_status outputs_separate(rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    for (size_t k = 0; k < n_out; k++) {
        if (!out[k]) continue;
        bool known = false;
        for (size_t i = 0; i < n_in; i++) known = known || out[k] == in[i];
        for (size_t i = 0; i < k; i++) known = known || out[k] == out[i];
        if (known || rp__grad_needed(out[k])) out[k] = rp_detach(out[k]);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    return RP_OK;
}

static rp_status function_forward(const rp_function *f, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                  size_t n_out) {
    bool grad_mode = rp_set_grad_enabled(false);
    f->forward.body(f->forward.ctx, in, n_in, out, n_out);
    rp_status status = RP_OK;
    for (size_t k = 0; k < n_out && status == RP_OK; k++)
        if (out[k]) status = rp__tensor_check(out[k], "result of a custom function");
    if (status == RP_OK) status = outputs_separate(in, n_in, out, n_out);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

/* ---- in a trace */

rp_status (*rp__function_trace_hook)(const char *site, rp_fn forward, rp_fn backward, rp_tensor *const *in, size_t n_in,
                                     rp_tensor **out, size_t n_out, bool needed, bool *traced);

/* The two functions over lists without absent arguments. */
typedef struct traced_call {
    const rp_function *f;
    rp_tensor *const *in; /* n_in, some NULL */
    size_t n_in, n_out, n_given;
    bool needed;
} traced_call;

static size_t spread(const traced_call *c, rp_tensor *const *given, rp_tensor **to) {
    size_t at = 0;
    for (size_t i = 0; i < c->n_in; i++) to[i] = c->in[i] ? given[at++] : NULL;
    return at;
}

static void traced_forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const traced_call *c = ctx;
    rp_tensor *all[RP__MAX_IN] = {0};
    (void)n_in;
    (void)spread(c, in, all);
    c->f->forward.body(c->f->forward.ctx, all, c->n_in, out, n_out);
}

/* in: arguments, results, gradients of results. */
static void traced_backward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const traced_call *c = ctx;
    size_t n_saved = c->n_in + (c->f->save_outputs ? c->n_out : 0);
    rp_tensor **saved = rp__calloc(n_saved + c->n_in + 1, sizeof *saved);
    (void)n_in;
    (void)n_out;
    if (!saved) {
        (void)RP__OOM("backward of a custom function");
        return;
    }
    rp_tensor **grads = saved + n_saved;
    size_t at = spread(c, in, saved);
    for (size_t k = 0; k < c->n_out && c->f->save_outputs; k++) saved[c->n_in + k] = in[at + k];
    uint64_t before = rp__error_count();
    rp_status status = c->f->backward(c->f->backward_ctx, saved, n_saved, in + at + c->n_out, c->n_out, grads, c->n_in);
    status = rp__returned(status, before, "the backward of custom function", name_of(c->f));
    for (size_t i = 0, k = 0; i < c->n_in && status == RP_OK; i++) {
        if (!c->in[i]) continue;
        rp__meta meta;
        rp__meta_of(c->in[i], &meta);
        bool wanted = rp__dtype_is_float(meta.dtype) && (!c->needed || rp__grad_needed(c->in[i]));
        if (grads[i] && wanted) {
            status = rp__tensor_check(grads[i], "gradient of a custom function");
            if (status == RP_OK) status = rp__grad_fit(&grads[i], &meta, name_of(c->f));
            out[k] = grads[i];
        }
        k++;
    }
    rp__free(saved);
}

static rp_status trace(const rp_function *f, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                       bool needed, bool *traced) {
    rp_tensor *given[RP__MAX_IN];
    traced_call c = {.f = f, .in = in, .n_in = n_in, .n_out = n_out, .needed = needed};
    for (size_t i = 0; i < n_in; i++)
        if (in[i]) given[c.n_given++] = in[i];
    rp_fn forward = {traced_forward, &c, 0, name_of(f)}, backward = {traced_backward, &c, 0, name_of(f)};
    return rp__function_trace_hook(rp__site(), forward, backward, given, c.n_given, out, n_out, needed, traced);
}

/* The forward, as part of a graph if one is recorded. */
static rp_status forward_of(const rp_function *f, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                            bool needed) {
    bool traced = false;
    if (RP__UNLIKELY(rp__flags.tracing) && rp__function_trace_hook && f->backward && n_out > 0)
        RP_TRY(trace(f, in, n_in, out, n_out, needed, &traced));
    return traced ? RP_OK : function_forward(f, in, n_in, out, n_out);
}

static rp_status apply(const rp_function *f, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    bool needed = false;
    for (size_t i = 0; i < n_in; i++) {
        if (!in[i]) continue; /* an absent argument */
        RP_TRY(rp__tensor_check(in[i], "argument of a custom function"));
        needed = needed || rp__grad_needed(in[i]);
    }
    needed = needed && rp__grad_recording();
    if (!needed) return forward_of(f, in, n_in, out, n_out, false);
    if (!f->backward)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "custom function `%s`: no backward, and an argument requires a gradient", name_of(f));

    size_t n_saved = n_in + (f->save_outputs ? n_out : 0);
    function_payload *p = rp__calloc(1, sizeof *p + n_saved * sizeof(rp__saved));
    if (!p) return RP__OOM("custom function");
    rp__tape_node holder = {.class_ = &function_class, .payload = p};
    p->function = *f;
    p->n_saved = (uint32_t)n_saved;
    /* Before the forward, so that an in-place change of an argument is found out. */
    rp_status status = RP_OK;
    for (size_t i = 0; i < n_in && status == RP_OK; i++)
        if (in[i]) status = rp__saved_pack(&p->saved[i], in[i], false, 0);
    if (status == RP_OK) status = forward_of(f, in, n_in, out, n_out, true);
    for (size_t k = 0; k < n_out && f->save_outputs && status == RP_OK; k++)
        if (out[k]) status = rp__saved_pack(&p->saved[n_in + k], out[k], true, (uint32_t)k);
    if (status != RP_OK) {
        function_destroy(&holder);
        return status;
    }
    return rp__tape_attach(&function_class, p, name_of(f), rp__site(), in, (uint32_t)n_in, out, (uint32_t)n_out, NULL);
}

rp_status rp_function_apply_at(const char *site, const rp_function *given, rp_tensor *const *in, size_t n_in,
                               rp_tensor **out, size_t n_out) {
    RP__CALLED_FROM(site);
    if ((n_in && !in) || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_function_apply: a list of tensors is NULL");
    RP__LISTS_APART(in, n_in, out, n_out, rp_function_apply(given, apart, n_in, out, n_out));
    for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    rp_function f;
    rp_status status = rp__options_read("rp_function_apply", given, sizeof f, &f);
    if (status == RP_OK && !f.forward.body)
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_function_apply: no forward function");
    else if (status == RP_OK && n_in > RP__MAX_IN)
        status =
            rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_function_apply: at most %d arguments, not %zu", RP__MAX_IN, n_in);
    if (status == RP_OK) {
        rp_scope scope = rp__scope_begin();
        status = scope.id ? apply(&f, in, n_in, out, n_out) : rp_error_status();
        rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    }
    if (status != RP_OK)
        for (size_t k = 0; k < n_out; k++) out[k] = rp__tensor_error();
    return status;
}
