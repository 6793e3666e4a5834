/* A call of a function compiled for training: the forward, and the node that it leaves on the tape. The backward of that is the
   plan's; for gradients that the plan is not for, or that are to be differentiated again, the call runs again under the tape
   (aot_again.h). */
#include "ops/private.h"
#include <string.h>

#include "compile/aot_again.h"
#include "compile/aot_parts.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "ops/format.h"
#include "ops/grad.h"

typedef struct argument { /* of the call, should it run again */
    rp_tensor *tensor;    /* arguments: retained; captured tensors: the graph's; own: a copy from before the call */
    uint64_t version;
    bool own;
} argument;

typedef struct payload {
    rp__aot *aot; /* counted */
    const rp__aot_plan *plan;
    rp__saved *saved;
    uint32_t n_saved; /* packed so far */
    int64_t *binding;
    rp__executable_random *draws; /* of the compiled forward, for its backward */
    size_t n_draws;
    rp__executable_random *starts; /* per generator of the function: where the call found it; borrowed generators */
    argument *arguments;           /* arguments, then captured tensors */
} payload;

static size_t n_arguments(const rp__aot *a) { return a->graph->body.n_args + a->graph->n_captured; }

static void drop_arguments(payload *p) {
    for (size_t k = 0; p->arguments && k < n_arguments(p->aot); k++)
        if (k < p->aot->graph->body.n_args || p->arguments[k].own) rp_release(p->arguments[k].tensor);
    rp__free(p->arguments);
    p->arguments = NULL;
}

static void drop_saved(payload *p) {
    for (uint32_t k = 0; k < p->n_saved; k++) rp__saved_drop(&p->saved[k]);
    p->n_saved = 0;
}

static void node_release_saved(rp__tape_node *n) {
    payload *p = n->payload;
    n->released = n->released || p->n_saved > 0 || p->arguments;
    drop_saved(p);
    drop_arguments(p);
}

static void payload_free(payload *p) {
    if (!p) return;
    drop_saved(p);
    drop_arguments(p);
    for (size_t k = 0; k < p->n_draws; k++) {
        rp__generator_drop(p->draws[k].generator);
        rp__random_memory_release(p->draws[k].memory);
    }
    for (size_t k = 0; p->starts && k < p->aot->n_random; k++) rp__random_memory_release(p->starts[k].memory);
    rp__free(p->draws);
    rp__free(p->starts);
    rp__free(p->saved);
    rp__free(p->binding);
    rp__aot_release(p->aot);
    rp__free(p);
}

static void node_destroy(rp__tape_node *n) { payload_free(n->payload); }

/* The graph takes tangents row-major: any other layout is copied. */
static rp_tensor *tangent(const rp__tape_node *n, rp_tensor *const *grad_out, uint32_t k) {
    if (!grad_out[k]) {
        rp__meta meta;
        rp__tape_out_meta(n, k, &meta);
        return rp__zeros_of(&meta);
    }
    return rp__row_major(grad_out[k]);
}

static uint64_t given_to(const rp__aot *a, rp_tensor *const *grad_out) {
    uint64_t given = 0;
    bool all = true;
    for (uint32_t k = 0; k < a->n_tangents; k++) {
        if (!grad_out[k])
            all = false;
        else if (a->tangent_of[k] < 64)
            given |= UINT64_C(1) << a->tangent_of[k];
    }
    return all ? RP__AOT_EVERY : given;
}

static rp_status changed(const rp__tape_node *n, const rp_tensor *t, uint64_t expected) {
    const rp__storage *s = t->storage;
    char text[RP__SHAPE_TEXT];
    return rp__fail(
        RP_ERROR_VERSION,
        "a compiled function must run again for a gradient (%s), but what it read has been modified in place "
        "by `%s` (%s): %s is at version %llu, expected version %llu",
        n->site && *n->site ? n->site : "no call site", s->writer_op ? s->writer_op : "a write",
        s->writer_site && *s->writer_site ? s->writer_site : "no call site", rp__tensor_text(t, text),
        (unsigned long long)atomic_load(&s->version), (unsigned long long)expected);
}

/* The same value and strides, which the graph may count on, in memory of its own; of the innermost scope. No two elements of t
   share memory (functionalise.c). */
static rp_tensor *copy_of(rp_tensor *t) {
    rp__device *d = rp__device_get(t->device);
    int64_t begin, end;
    rp__tensor_byte_range(t, &begin, &end);
    rp__storage *s = d ? rp__storage_new(d, rp__current_stream(d), (size_t)(end - begin)) : NULL;
    if (!s) return rp__tensor_error();
    rp_tensor *x = rp__tensor_over((rp_dtype)t->dtype, t->size, t->stride, t->ndim, 0, s);
    if (rp__tensor_is_error(x)) return x;
    bool grad = rp_set_grad_enabled(false);
    rp_tensor *filled = rp_copy_(x, t);
    (void)rp_set_grad_enabled(grad);
    return rp__tensor_is_error(filled) ? filled : x;
}

static rp_status run_again(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    const payload *p = n->payload;
    const rp__aot *a = p->aot;
    rp_tensor **in = rp__calloc(n_arguments(a) + 1u, sizeof *in);
    bool *needed = rp__calloc(a->n_leaves + 1u, sizeof *needed);
    rp_status status = in && needed ? RP_OK : RP__OOM("backward of a compiled function");
    for (size_t k = 0; k < n_arguments(a) && status == RP_OK; k++) {
        const argument *x = &p->arguments[k];
        in[k] = x->tensor;
        if (a->writes[k] != RP__AOT_WRITES_NOT) { /* in memory of its own: the call has written already */
            in[k] = copy_of(x->tensor);
            if (rp__tensor_is_error(in[k])) status = rp_error_status();
            for (uint32_t i = 0; i < a->n_leaves && status == RP_OK; i++)
                if (a->leaves[i] == k) status = rp_set_requires_grad(in[k], true);
        } else if (atomic_load(&x->tensor->storage->version) != x->version) {
            status = changed(n, x->tensor, x->version);
        }
    }
    for (uint32_t k = 0; k < a->n_leaves && status == RP_OK; k++) needed[k] = rp__tape_needs(n, k);
    const rp__again q = {.graph = a->graph,
                         .in = in,
                         .leaves = a->leaves,
                         .needed = needed,
                         .n_leaves = a->n_leaves,
                         .tangent_of = a->tangent_of,
                         .grad_out = grad_out,
                         .n_tangents = a->n_tangents,
                         .starts = p->starts,
                         .n_starts = a->n_random,
                         .create_graph = create_graph};
    if (status == RP_OK) status = rp__aot_again(&q, grad_in);
    rp__free(in);
    rp__free(needed);
    return status;
}

/* What the tape saved is read for the last time. A capture may be played again without the forward; a checkpoint keeps what
   it made again for others. */
static bool may_overwrite(const rp__tape_node *n) {
    const payload *p = n->payload;
    if (!p->plan->donates || rp__tape_retains() || (n->stream && n->stream->capture)) return false;
    for (uint32_t k = 0; k < p->n_saved; k++) {
        if (p->saved[k].checkpoint) return false;
    }
    return true;
}

static rp_status run_compiled(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in) {
    payload *p = n->payload;
    rp__aot *a = p->aot;
    const rp__aot_plan *made = p->plan;
    uint32_t n_in = made->n_saved + made->n_tangents;
    rp_tensor **tensors = rp__calloc((size_t)n_in + a->n_leaves + 1, sizeof *tensors);
    if (!tensors) return RP__OOM("backward of a compiled function");
    rp_tensor **grads = tensors + n_in;
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < made->n_saved && status == RP_OK; k++) {
        tensors[k] = rp__saved_unpack(&p->saved[k], n);
        if (rp__tensor_is_error(tensors[k])) status = rp_error_status();
    }
    for (uint32_t k = 0; k < made->n_tangents && status == RP_OK; k++) {
        tensors[made->n_saved + k] = tangent(n, grad_out, made->tangents[k]);
        if (rp__tensor_is_error(tensors[made->n_saved + k])) status = rp_error_status();
    }
    if (status == RP_OK) {
        const rp__unit_call call = {.binding = made->binding ? NULL : p->binding,
                                    .draws = p->draws,
                                    .n_draws = p->n_draws,
                                    .donate = may_overwrite(n)};
        status = rp__unit_run(made->backward, &call, tensors, n_in, grads, a->n_leaves);
    }
    for (uint32_t k = 0; k < a->n_leaves && status == RP_OK; k++) grad_in[k] = rp__tape_needs(n, k) ? grads[k] : NULL;
    rp__free(tensors);
    return status;
}

static rp_status node_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    payload *p = n->payload;
    rp__aot *a = p->aot;
    if (n->released) return rp__tape_released(n);
    if (create_graph) return run_again(n, grad_out, grad_in, true);
    uint64_t given = given_to(a, grad_out);
    if (RP__LIKELY(given == p->plan->given)) return run_compiled(n, grad_out, grad_in);
    uint64_t wanted = given == RP__AOT_EVERY ? RP__AOT_EVERY : rp__aot_plannable(a, given);
    atomic_store_explicit(&a->wanted, wanted, memory_order_relaxed);
    return run_again(n, grad_out, grad_in, false);
}

static const rp__tape_class compiled_class = {"compiled", node_backward, node_release_saved, node_destroy};

/* After the forward: did it write down what it drew? */
static void keep_draws(payload *p) {
    for (size_t k = 0; k < p->aot->n_random && p->draws[k].generator; k++) {
        (void)rp__generator_retain(p->draws[k].generator);
        (void)rp__random_memory_retain(p->draws[k].memory);
        p->n_draws++;
    }
}

/* What a second run needs. Before the forward. */
static rp_status keep_arguments(const rp__aot *a, rp_tensor *const *in, payload *p) {
    uint32_t n_args = a->graph->body.n_args;
    p->arguments = rp__calloc(n_arguments(a) + 1, sizeof *p->arguments);
    p->starts = a->n_random ? rp__calloc(a->n_random, sizeof *p->starts) : NULL;
    if (!p->arguments || (a->n_random && !p->starts)) return RP__OOM("a compiled function");
    for (size_t k = 0; k < n_arguments(a); k++) {
        rp_tensor *t = k < n_args ? in[k] : a->graph->captured[k - n_args];
        bool own = a->writes[k] == RP__AOT_KEEPS_OLD;
        if (own) t = copy_of(t);
        if (rp__tensor_is_error(t)) return rp_error_status();
        if (own || k < n_args) (void)rp_retain(t);
        p->arguments[k] = (argument){t, atomic_load_explicit(&t->storage->version, memory_order_relaxed), own};
    }
    for (size_t k = 0; k < a->n_random; k++) {
        rp_generator *g = a->random[k].generator;
        rp__random_draw draw;
        RP_TRY(rp__random_peek(g, rp__current_stream(g->device), &draw, &p->starts[k].memory));
        p->starts[k].generator = g;
        p->starts[k].seed = draw.seed;
        p->starts[k].base = draw.inner;
        (void)rp__random_memory_retain(p->starts[k].memory);
    }
    return RP_OK;
}

static rp_status payload_new(rp__aot *a, const rp__aot_plan *made, const int64_t *binding, rp_tensor *const *in,
                             payload **out) {
    payload *p = *out = rp__calloc(1, sizeof *p);
    if (!p) return RP__OOM("a compiled function");
    p->aot = a;
    atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
    p->plan = made;
    p->saved = rp__calloc(made->n_saved + 1u, sizeof *p->saved);
    p->binding = rp__calloc(a->n_symbols + 1, sizeof *p->binding);
    if (a->n_random > 0) p->draws = rp__calloc(a->n_random, sizeof *p->draws);
    if (!p->saved || !p->binding || (a->n_random > 0 && !p->draws)) return RP__OOM("a compiled function");
    if (a->n_symbols) memcpy(p->binding, binding, a->n_symbols * sizeof *binding);
    return keep_arguments(a, in, p);
}

/* After the forward: what shares storage with what it wrote, in bytes of its own (functionalise.c), is as it was for all that. */
static void keep_versions(const rp__aot *a, payload *p, rp_tensor *const *in) {
    const uint32_t n_args = a->graph->body.n_args;
    for (size_t k = 0; k < n_arguments(a); k++) {
        argument *x = &p->arguments[k];
        const rp__storage *s = x->tensor->storage;
        const uint64_t now = atomic_load_explicit(&s->version, memory_order_relaxed);
        if (a->writes[k] != RP__AOT_WRITES_NOT || now == x->version) continue;
        for (size_t j = 0; j < n_arguments(a); j++) {
            const rp_tensor *other = j < n_args ? in[j] : a->graph->captured[j - n_args];
            if (a->writes[j] != RP__AOT_WRITES_NOT && other->storage == s) x->version = now;
        }
    }
}

/* Takes p over. */
static rp_status attach(rp__aot *a, payload *p, rp_tensor *const *in, rp_tensor **results) {
    const rp__aot_plan *made = p->plan;
    rp_tensor **ends = rp__calloc((size_t)a->n_leaves + a->n_tangents + 1, sizeof *ends);
    rp_status status = ends ? RP_OK : RP__OOM("a compiled function");
    keep_draws(p);
    keep_versions(a, p, in);
    for (uint32_t k = 0; k < made->n_saved && status == RP_OK; k++) {
        const rp__saved_source *s = &made->saved[k];
        rp_tensor *t = s->kind == RP__SAVED_ARG        ? in[s->index]
                       : s->kind == RP__SAVED_CAPTURED ? a->graph->captured[s->index]
                                                       : results[s->index];
        bool own = false;
        uint32_t index = 0;
        for (uint32_t i = 0; i < a->n_tangents && s->kind == RP__SAVED_RESULT; i++) {
            if (a->tangent_of[i] != s->index) continue;
            own = true;
            index = i;
        }
        status = rp__saved_pack(&p->saved[k], t, own, index);
        if (status == RP_OK) p->n_saved++;
    }
    for (uint32_t k = 0; k < a->n_leaves && status == RP_OK; k++) {
        uint32_t n_args = a->graph->body.n_args;
        ends[k] = a->leaves[k] < n_args ? in[a->leaves[k]] : a->graph->captured[a->leaves[k] - n_args];
    }
    for (uint32_t k = 0; k < a->n_tangents && status == RP_OK; k++) ends[a->n_leaves + k] = results[a->tangent_of[k]];
    if (status == RP_OK) {
        status = rp__tape_attach(&compiled_class, p, "compiled", rp__site(), ends, a->n_leaves, ends + a->n_leaves,
                                 a->n_tangents, NULL);
        p = NULL; /* taken over, also on failure */
    }
    payload_free(p);
    rp__free(ends);
    return status;
}

rp_status rp__aot_run_training(rp__aot *a, const int64_t *binding, rp_tensor *const *in, rp_tensor **out,
                               size_t n_out) {
    rp__aot_plan *made;
    payload *p = NULL;
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
    rp_status status = payload_new(a, made, binding, in, &p);
    if (status == RP_OK) {
        const rp__unit_call call = {.binding = made->binding ? NULL : binding, .drawn = p->draws};
        bool grad_mode = rp_set_grad_enabled(false);
        status = rp__unit_run(made->forward, &call, in, a->graph->body.n_args, results, n_results);
        (void)rp_set_grad_enabled(grad_mode);
    }
    if (status == RP_OK)
        status = attach(a, p, in, results);
    else
        payload_free(p);
    if (status == RP_OK) memcpy(out, results, n_out * sizeof *out);
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    if (results != few) rp__free(results);
    return status;
}
