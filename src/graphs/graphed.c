/* Graphed callables (torch.cuda.make_graphed_callables): each function becomes one tape node whose forward and whose backward are
   one graph replay each, over static inputs (the sample arguments themselves), outputs and gradients. What upstream leaves silent
   is an error here: other sizes, dtypes or needs of gradients, a parameter that moved or was never named, a backward after another
   forward or twice, the use of an output that a later call has overwritten. What the function writes into an argument is in the
   caller's tensor after the call, wherever that lies: written in place where the graph was re-pointed, copied back where it was
   copied. */
#include "ops/private.h"

#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "compile/callable.h"
#include "core/alloc.h"
#include "core/options.h"
#include "device/allocator.h"
#include "graphs/recording.h"
#include "trace/trace.h"

/* How often the forward ran, or another forward over its outputs. Outputs hold it too: they may outlive the callable. */
typedef struct generation {
    atomic_uint refs;
    _Atomic uint64_t now;
    _Atomic uint64_t lost; /* how often a replay of the family may have written over what the backward reads */
} generation;

/* The callables of one making, in the order of capture. Their graphs share memory, which is right as long as forwards run in
   that order and backwards in reverse: a forward may write where later callables keep what they computed, a backward where
   later ones kept what their own backward reads. Each replay tells those that it may have harmed. */
typedef struct family {
    atomic_uint refs;
    size_t n;
    bool *overwrites; /* [j * n + i]: the forward of j writes outputs of i */
    generation *members[];
} family;

typedef struct graphed {
    rp_compiled base;
    atomic_uint refs; /* the handle, and tape nodes of calls */
    char *name;       /* base.name and base.explain go with the handle, and a backward may come later */
    rp__explain *explain;
    rp__device *device;
    size_t n_args, n_params, n_out;
    rp_tensor **args; /* n_args, then n_params: the static surface; retained */
    bool *leaf;       /* of the surface: had no history when it was given */
    rp__storage **
        param_storage; /* of the parameters at capture; borrowed from the recordings' point of view: handles hold them */
    rp_tensor **outputs;      /* static, without history; retained */
    bool *differentiable;     /* per output */
    rp_tensor **grad_outputs; /* static; NULL where not differentiable */
    rp_tensor **grad_inputs;  /* static, per surface tensor; NULL where there is none */
    rp__static_input *forward_inputs, *backward_inputs, *backward_grads;
    rp__recording forward, backward; /* backward.graph NULL: nothing to differentiate */
    rp__pool_hold *hold;             /* of all captures of the same making; NULL: their pool is nobody else's */
    generation *generation;
    family *family; /* NULL: alone */
    size_t number;  /* in it */
    unsigned *lent; /* references to the surface when the function was last called; NULL: settled */
    rp__meta *warm; /* per output: what the first warm-up gave; NULL until then */
    void *ctx;      /* the bytes at fn.ctx when the forward was captured; NULL: none are compared */
    bool captured_training, training;
    bool writes; /* the forward writes memory from outside: an argument, a parameter, a buffer */
} graphed;

static size_t surface(const graphed *g) { return g->n_args + g->n_params; }
static rp_tensor *param(const graphed *g, size_t k) { return g->args[g->n_args + k]; }

static void generation_release(generation *x) {
    if (x && atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) == 1) rp__free(x);
}

static void family_release(family *f) {
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t i = 0; i < f->n; i++) generation_release(f->members[i]);
    rp__free(f->overwrites);
    rp__free(f);
}

/* A graph of g is about to run: calls of later callables lose what their backward reads, and outputs that it writes over. */
static void tell_family(const graphed *g, bool forward) {
    const family *f = g->family;
    for (size_t i = g->number + 1; f && i < f->n; i++) {
        atomic_fetch_add(&f->members[i]->lost, 1);
        if (forward && f->overwrites[g->number * f->n + i]) atomic_fetch_add(&f->members[i]->now, 1);
    }
}

static void release_all(rp_tensor **list, size_t n) {
    for (size_t k = 0; list && k < n; k++)
        if (list[k]) rp_release(list[k]);
    rp__free(list);
}

static void graphed_free(graphed *g) {
    rp__recording_free(&g->backward);
    rp__recording_free(&g->forward);
    rp__pool_hold_release(g->hold);
    release_all(g->args, surface(g));
    release_all(g->outputs, g->n_out);
    release_all(g->grad_outputs, g->n_out);
    release_all(g->grad_inputs, surface(g));
    rp__free(g->param_storage);
    rp__free(g->leaf);
    rp__free(g->name);
    rp__explain_free(g->explain);
    rp__free(g->ctx);
    rp__free(g->warm);
    rp__free(g->lent);
    rp__free(g->differentiable);
    rp__free(g->forward_inputs);
    rp__free(g->backward_inputs);
    rp__free(g->backward_grads);
    generation_release(g->generation);
    family_release(g->family);
    rp__handle_free(g);
}

static void graphed_drop(graphed *g) {
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) == 1) graphed_free(g);
}

/* ---- backward ---- */

typedef struct call { /* payload of the tape node of one call */
    graphed *g;
    uint64_t stamp, lost;
    bool done;
    size_t n_in;
    struct {
        rp_tensor *tensor; /* what the call got; counted; NULL: the backward does not read it */
        uint64_t version;
    } in[];
} call;

static void call_drop_inputs(call *c) {
    for (size_t k = 0; k < c->n_in; k++) {
        if (c->in[k].tensor) rp_release(c->in[k].tensor);
        c->in[k].tensor = NULL;
    }
}

static void call_release_saved(rp__tape_node *n) {
    call_drop_inputs(n->payload);
    n->released = true;
}

static void call_destroy(rp__tape_node *n) {
    call *c = n->payload;
    call_drop_inputs(c);
    graphed_drop(c->g);
    rp__free(c);
}

static rp_status check_versions(const graphed *g, const call *c) {
    for (size_t k = 0; k < c->n_in; k++) {
        const rp_tensor *t = c->in[k].tensor;
        if (t) RP_TRY(rp__tensor_check(t, "an argument that the backward graph reads"));
        if (!t || atomic_load(&t->storage->version) == c->in[k].version) continue;
        return rp__fail(
            RP_ERROR_VERSION,
            "%s: argument %zu is needed by the backward graph and was modified in place after the call, by %s at %s",
            g->name, k, t->storage->writer_op ? t->storage->writer_op : "an op",
            t->storage->writer_site ? t->storage->writer_site : "an unknown place");
    }
    return RP_OK;
}

static rp_status set_grad_outputs(graphed *g, rp_tensor *const *grad_out) {
    for (size_t k = 0; k < g->n_out; k++) {
        rp_tensor *fixed = g->grad_outputs[k];
        if (!fixed) continue;
        rp_tensor *given = grad_out[k];
        if (!given) {
            rp_tensor *zero = rp_fill_(fixed, rp_f64(0));
            if (rp__tensor_is_error(zero)) return rp_error_status();
            given = fixed;
        }
        RP_TRY(rp__static_input_set(&g->backward, &g->backward_grads[k], given, false, g->explain, k));
    }
    return RP_OK;
}

static rp_status run_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in) {
    call *c = n->payload;
    graphed *g = c->g;
    if (c->stamp != atomic_load(&g->generation->now))
        return rp__fail(
            RP_ERROR_STALE,
            "%s: the forward ran again before the backward of this call: its graph's intermediate values are gone",
            g->name);
    if (c->lost != atomic_load(&g->generation->lost) && !c->done)
        return rp__fail(
            RP_ERROR_STALE,
            "%s: a callable that was captured before it ran between the forward and the backward of this call, over the "
            "intermediate values: callables of one rp_make_graphed_callables run forward in order and backward in "
            "reverse; make those that do not by calls of their own",
            g->name);
    if (c->done)
        return rp__fail(
            RP_ERROR_STATE,
            "%s: a second backward through one graphed call: the backward graph reuses the memory of the values it read",
            g->name);
    RP_TRY(check_versions(g, c));
    RP_TRY(set_grad_outputs(g, grad_out));
    for (size_t k = 0; k < g->n_args; k++)
        if (c->in[k].tensor)
            RP_TRY(rp__static_input_set(&g->backward, &g->backward_inputs[k], c->in[k].tensor, false, g->explain, k));
    c->done = true;
    tell_family(g, false);
    RP_TRY(rp__recording_replay(&g->backward, rp__current_stream(g->device)));
    for (size_t k = 0; k < surface(g); k++) {
        if (!g->grad_inputs[k] || !rp__tape_needs(n, (uint32_t)k)) continue;
        /* a copy: the static gradient is overwritten by the next backward, and accumulation may keep what it is given */
        grad_in[k] = rp_clone(g->grad_inputs[k]);
        if (rp__tensor_is_error(grad_in[k])) return rp_error_status();
    }
    return RP_OK;
}

static rp_status replay_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in) {
    rp_pool *const turn = rp__turn_begin(((const call *)n->payload)->g->backward.pool);
    rp_status status = run_backward(n, grad_out, grad_in);
    rp__turn_end(turn);
    return status;
}

static rp_status call_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    if (create_graph)
        return rp__fail(RP_ERROR_STATE,
                        "%s: a graphed callable can be differentiated once: its backward is a recorded graph", n->op);
    return replay_backward(n, grad_out, grad_in);
}

static const rp__tape_class call_class = {"graphed", call_backward, call_release_saved, call_destroy};

/* ---- forward ---- */

/* Outputs of one call: handles over the static memory that know which call they belong to. */
typedef struct output_owner {
    rp__storage *storage;
    generation *generation;
} output_owner;

static void output_free(void *ctx) {
    output_owner *o = ctx;
    rp__storage_release(o->storage);
    generation_release(o->generation);
    rp__free(o);
}

static rp_tensor *output_of(graphed *g, const rp_tensor *fixed, uint64_t stamp, const char *site) {
    output_owner *o = rp__alloc(sizeof *o);
    if (!o) {
        RP__OOM("output of a graphed callable");
        return rp__tensor_error();
    }
    atomic_fetch_add_explicit(&g->generation->refs, 1, memory_order_relaxed);
    *o = (output_owner){rp__storage_retain(fixed->storage), g->generation};
    rp__storage *s =
        rp__storage_wrap(fixed->device, fixed->storage->data, fixed->storage->bytes, fixed->storage, output_free, o);
    if (!s) {
        output_free(o);
        return rp__tensor_error();
    }
    s->foreign = false;
    s->generation = &g->generation->now;
    s->stamp = stamp;
    s->replay_site = site;
    rp_tensor *t = rp__tensor_new((rp_dtype)fixed->dtype, fixed->size, fixed->ndim, s);
    if (rp__tensor_is_error(t)) return t;
    memcpy(t->stride, fixed->stride, fixed->ndim * sizeof *t->stride);
    t->offset = fixed->offset;
    return t;
}

static rp_status check_argument(const graphed *g, size_t k, const rp_tensor *given) {
    const rp_tensor *fixed = g->args[k];
    bool same =
        given->dtype == fixed->dtype && given->ndim == fixed->ndim && rp__device_equal(given->device, fixed->device);
    for (unsigned d = 0; same && d < fixed->ndim; d++) same = given->size[d] == fixed->size[d];
    if (RP__UNLIKELY(!same)) {
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT], on_a[24], on_b[24];
        return rp__fail(RP_ERROR_GUARD, "%s: argument %zu is %s on %s; it was captured with %s on %s", g->base.name, k,
                        rp__tensor_text(given, a), rp__device_text(given->device, on_a), rp__tensor_text(fixed, b),
                        rp__device_text(fixed->device, on_b));
    }
    if (RP__UNLIKELY(rp__grad_recording() && rp_requires_grad(given) != rp_requires_grad(fixed)))
        return rp__fail(RP_ERROR_GUARD, "%s: argument %zu %s a gradient, and the sample argument %s", g->base.name, k,
                        rp_requires_grad(given) ? "requires" : "does not require",
                        rp_requires_grad(fixed) ? "did" : "did not");
    return RP_OK;
}

typedef struct span { /* memory, by address: storages of wrapped memory may lie over each other */
    const char *begin, *end;
} span;

static span span_of(const rp_tensor *t) {
    int64_t begin, end;
    const char *base = t->storage->data;
    rp__tensor_byte_range(t, &begin, &end);
    return (span){base + begin, base + end};
}

static bool meet(span a, span b) { return a.begin < b.end && b.begin < a.end; }

/* Does the forward write over t while it reads it? A result of its own, or of a callable that got memory which it had freed. */
static bool overwrites(const graphed *g, const rp_tensor *t) {
    const _Atomic uint64_t *of = t->storage->generation;
    const family *f = g->family;
    if (RP__LIKELY(!of)) return false;
    for (size_t i = g->number + 1; f && i < f->n; i++)
        if (of == &f->members[i]->now && f->overwrites[g->number * f->n + i]) return true;
    return of == &g->generation->now;
}

static const rp__static_input *input_of(const graphed *g, const rp__external *e) {
    for (size_t k = 0; k < g->n_args; k++)
        if (g->forward_inputs[k].external == e) return &g->forward_inputs[k];
    return NULL;
}

/* A function that writes: the graph was captured with arguments that lie apart from each other and from all else that it
   touches. Where they do not, what is read before and after the write would depend on which of them are copied. */
static rp_status check_apart(const graphed *g, rp_tensor *const *in) {
    for (size_t k = 0; k < g->n_args; k++) {
        bool written = rp__static_input_written(&g->forward_inputs[k]);
        span at = span_of(in[k]);
        if (written && rp__tensor_overlaps_itself(in[k]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "%s: the function writes argument %zu, which is expanded: its elements share memory",
                            g->base.name, k);
        for (size_t j = 0; j < k; j++)
            if ((written || rp__static_input_written(&g->forward_inputs[j])) && meet(at, span_of(in[j])))
                return rp__fail(RP_ERROR_GUARD,
                                "%s: arguments %zu and %zu share memory, and the function writes argument %zu; it was "
                                "captured with memory apart",
                                g->base.name, j, k, written ? k : j);
        for (size_t x = 0; x < g->forward.n_externals; x++) {
            const rp__external *e = &g->forward.externals[x];
            if (!(written || e->access & RP__WRITE) || input_of(g, e)) continue;
            if (meet(at, (span){e->now + e->begin, e->now + e->end}))
                return rp__fail(
                    RP_ERROR_GUARD,
                    "%s: argument %zu shares memory with what `%s` %s (%s), and the function writes it; it was "
                    "captured with memory apart",
                    g->base.name, k, e->op ? e->op : "an op", e->access & RP__WRITE ? "writes" : "reads",
                    e->site && *e->site ? e->site : "no call site");
        }
    }
    return RP_OK;
}

/* The static input of another argument: what is copied there would be read as this one. */
static __attribute__((noinline)) rp_status check_sample_memory(const graphed *g, rp_tensor *const *in, size_t k) {
    for (size_t j = 0; j < g->n_args; j++)
        if (j != k && in[k]->storage == g->args[j]->storage)
            return rp__fail(RP_ERROR_GUARD,
                            "%s: argument %zu lies in the sample argument %zu, where that argument is put: pass a copy",
                            g->base.name, k, j);
    return RP_OK;
}

static rp_status attach(graphed *g, rp_tensor *const *in, rp_tensor **out, uint64_t stamp, uint64_t lost) {
    call *c = rp__calloc(1, sizeof *c + g->n_args * sizeof *c->in);
    rp_tensor **all = rp__alloc((surface(g) + g->n_out) * sizeof *all);
    if (!c || !all) {
        rp__free(c);
        rp__free(all);
        return RP__OOM("call of a graphed callable");
    }
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    c->g = g;
    c->stamp = stamp;
    c->lost = lost;
    c->n_in = g->n_args;
    for (size_t k = 0; k < g->n_args; k++) {
        all[k] = in[k];
        if (!g->backward_inputs[k].external) continue;
        c->in[k].tensor = rp_retain(in[k]);
        c->in[k].version = atomic_load(&in[k]->storage->version);
    }
    for (size_t k = 0; k < g->n_params; k++) all[g->n_args + k] = param(g, k);
    for (size_t k = 0; k < g->n_out; k++) all[surface(g) + k] = g->differentiable[k] ? out[k] : NULL;
    rp_status status = rp__tape_attach(&call_class, c, call_class.name, rp__site(), all, (uint32_t)surface(g),
                                       all + surface(g), (uint32_t)g->n_out, NULL);
    rp__free(all);
    return status;
}

/* The graph holds the numbers and addresses that the function read in ctx. */
static rp_status ctx_changed(const graphed *g) {
    const unsigned char *was = g->ctx, *is = g->base.fn.ctx;
    size_t at = 0;
    while (was[at] == is[at]) at++;
    return rp__fail(RP_ERROR_GUARD,
                    "%s: byte %zu of ctx (of %zu) is not what it was at capture: change parameters in place, and "
                    "capture again where the function reads another number or tensor",
                    g->base.name, at, g->base.fn.ctx_bytes);
}

/* Puts the arguments where the graph reads them, and replays it. */
static rp_status run_forward(graphed *g, rp_stream *s, rp_tensor *const *in, uint64_t *stamp, uint64_t *lost) {
    const size_t n_in = g->n_args;
    for (size_t k = 0; k < n_in; k++) /* by a call of another thread, whose turn was before this one */
        if (RP__UNLIKELY(rp__storage_is_stale(in[k]->storage))) return rp__tensor_check(in[k], "an argument");
    for (size_t k = 0; k < n_in; k++)
        RP_TRY(
            rp__static_input_set(&g->forward, &g->forward_inputs[k], in[k], overwrites(g, in[k]), g->base.explain, k));
    *stamp = atomic_fetch_add(&g->generation->now, 1) + 1;
    *lost = atomic_load(&g->generation->lost);
    tell_family(g, true);
    RP_TRY(rp__recording_replay(&g->forward, s));
    for (size_t k = 0; k < n_in && g->writes; k++) RP_TRY(rp__static_input_give_back(&g->forward_inputs[k], in[k]));
    return RP_OK;
}

static rp_status replay_forward(graphed *g, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                size_t n_out) {
    rp_compiled *f = &g->base;
    if (RP__UNLIKELY(n_in != g->n_args || n_out != g->n_out))
        return rp__fail(RP_ERROR_GUARD,
                        "%s: called with %zu arguments and %zu results; it was captured with %zu and %zu", f->name,
                        n_in, n_out, g->n_args, g->n_out);
    for (size_t k = 0; k < n_in; k++) RP_TRY(check_argument(g, k, in[k]));
    if (RP__UNLIKELY(g->ctx && memcmp(g->ctx, f->fn.ctx, f->fn.ctx_bytes) != 0)) return ctx_changed(g);
    for (size_t k = 0; k < g->n_params; k++)
        if (RP__UNLIKELY(param(g, k)->storage != g->param_storage[k]))
            return rp__fail(RP_ERROR_GUARD,
                            "%s: parameter %zu lies elsewhere than at capture: change parameters in place", f->name, k);
    rp_stream *s = rp__current_stream(g->device);
    if (RP__UNLIKELY(rp__stream_capturing(s))) return rp__capture_forbid(s, "calling a graphed callable");
    for (size_t k = 0; k < n_in; k++) {
        RP_TRY(rp__tensor_materialise(in[k]));
        if (RP__UNLIKELY(in[k]->storage->sample && in[k]->storage != g->args[k]->storage))
            RP_TRY(check_sample_memory(g, in, k));
    }
    if (RP__UNLIKELY(g->writes)) RP_TRY(check_apart(g, in));
    uint64_t stamp = 0, lost = 0;
    rp_pool *const turn = rp__turn_begin(g->forward.pool);
    rp_status status = run_forward(g, s, in, &stamp, &lost);
    rp__turn_end(turn);
    RP_TRY(status);
    for (size_t k = 0; k < n_out; k++) {
        out[k] = output_of(g, g->outputs[k], stamp, site);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    if (!rp__grad_recording() || !g->backward.graph) return RP_OK;
    return attach(g, in, out, stamp, lost);
}

static rp_status graphed_call(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                              size_t n_out) {
    graphed *g = (graphed *)f;
    rp_scope scope = rp__scope_begin();
    rp_status status;
    if (!rp__callable_hold(f)) return rp__callable_end(scope, rp__callable_refuse(f, "rp_call"), out, n_out);
    if (RP__UNLIKELY(g->training != g->captured_training && n_in == g->n_args && n_out == g->n_out)) {
        rp__explain_add(f->explain, "skip", RP__REASON_OTHER_MODE, NULL, 1, NULL);
        status = rp__callable_body(f->fn, in, n_in, out, n_out);
    } else {
        rp__site_frame frame = rp__site_push(site, "rp_call");
        status = replay_forward(g, rp__site(), in, n_in, out, n_out);
        rp__site_pop(frame);
    }
    rp__callable_drop(f);
    return rp__callable_end(scope, status, out, n_out);
}

static void graphed_destroy(rp_compiled *f) { graphed_drop((graphed *)f); }

static const rp__callable_ops graphed_ops = {"graphed", graphed_call, graphed_destroy, NULL};

rp_status rp_graphed_set_training_at(const char *site, rp_compiled *f, bool training) {
    RP__CALLED_FROM(site);
    if (!f || !rp__callable_is_live(f)) return rp__callable_refuse(f, "graphed_set_training");
    if (f->ops != &graphed_ops)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "graphed_set_training: the function is not a graphed callable");
    ((graphed *)f)->training = training;
    return RP_OK;
}

/* ---- making ---- */

static rp_status check_sample(const rp_graphed_callable *c, size_t which, size_t k, rp_device device) {
    const rp_tensor *t = c->args[k];
    char what[96];
    (void)snprintf(what, sizeof what, "make_graphed_callables: argument %zu of callable %zu", k, which);
    RP_TRY(rp__tensor_check(t, what));
    if (!rp__device_equal(t->device, device))
        return rp__fail(RP_ERROR_DEVICE, "%s is on another device than the first one", what);
    if (!rp_is_leaf(t))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s has history: sample arguments must be leaves (detach them)",
                        what);
    if (rp__tensor_overlaps_itself(t))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "%s is expanded: its elements share memory, so it cannot be a static input", what);
    for (size_t x = 0; x < k; x++)
        if (c->args[x]->storage == t->storage || rp__storage_meets(c->args[x]->storage, t->storage))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "%s shares memory with argument %zu: each static input needs its own", what, x);
    for (size_t x = 0; x < c->n_params; x++)
        if (c->params[x] &&
            (c->params[x]->storage == t->storage || rp__storage_meets(c->params[x]->storage, t->storage)))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s shares memory with parameter %zu", what, x);
    return RP_OK;
}

static rp_status check_callables(const rp_graphed_callable *c, size_t n, rp_device *device) {
    bool known = false;
    if (!c || n == 0) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "make_graphed_callables: no callable is given");
    if (rp__trace_current())
        return rp__fail(RP_ERROR_STATE, "make_graphed_callables: not inside a function that is being traced");
    RP_TRY(rp__recorder_check_outermost("make_graphed_callables"));
    for (size_t i = 0; i < n; i++) {
        if (!c[i].fn.body || (c[i].fn.ctx_bytes && !c[i].fn.ctx) || (c[i].n_args && !c[i].args) ||
            (c[i].n_params && !c[i].params) || c[i].n_out == 0)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "make_graphed_callables: callable %zu needs a function, its ctx and arrays, and a result",
                            i);
        for (size_t k = 0; k < c[i].n_args + c[i].n_params; k++) {
            const rp_tensor *t = k < c[i].n_args ? c[i].args[k] : c[i].params[k - c[i].n_args];
            RP_TRY(rp__tensor_check(t, "make_graphed_callables: a tensor of a callable"));
            if (!known) *device = t->device;
            known = true;
        }
        for (size_t k = 0; k < c[i].n_args; k++) RP_TRY(check_sample(&c[i], i, k, *device));
    }
    if (!known) *device = rp_default_device();
    return RP_OK;
}

typedef struct maker { /* what the steps of rp_make_graphed_callables share */
    const rp_graphed_callable *callables;
    graphed **made;
    size_t n;
    rp_graphed_options options;
    rp__device *device;
    rp_stream *stream;
    rp_pool *pool;
} maker;

static graphed *graphed_new(const rp_graphed_callable *c, const maker *m) {
    graphed *g = rp__handle_new(RP__HANDLE_FUNCTION, sizeof *g);
    size_t all = c->n_args + c->n_params;
    if (!g) return NULL;
    g->n_args = c->n_args;
    g->n_params = c->n_params;
    g->n_out = c->n_out;
    g->device = m->device;
    g->captured_training = g->training = m->options.training;
    g->args = rp__calloc(all + 1, sizeof *g->args);
    g->leaf = rp__calloc(all + 1, sizeof *g->leaf);
    g->param_storage = rp__calloc(c->n_params + 1, sizeof *g->param_storage);
    g->outputs = rp__calloc(c->n_out, sizeof *g->outputs);
    g->differentiable = rp__calloc(c->n_out, sizeof *g->differentiable);
    g->grad_outputs = rp__calloc(c->n_out, sizeof *g->grad_outputs);
    g->grad_inputs = rp__calloc(all + 1, sizeof *g->grad_inputs);
    g->forward_inputs = rp__calloc(c->n_args + 1, sizeof *g->forward_inputs);
    g->backward_inputs = rp__calloc(c->n_args + 1, sizeof *g->backward_inputs);
    g->backward_grads = rp__calloc(c->n_out, sizeof *g->backward_grads);
    g->generation = rp__calloc(1, sizeof *g->generation);
    if (g->generation) atomic_init(&g->generation->refs, 1);
    if (c->fn.ctx_bytes) g->ctx = rp__alloc(c->fn.ctx_bytes);
    g->name = rp__strdup(c->fn.name ? c->fn.name : "function");
    if ((c->fn.ctx_bytes && !g->ctx) || !g->name || !g->args || !g->leaf || !g->param_storage || !g->outputs ||
        !g->differentiable || !g->grad_outputs || !g->grad_inputs || !g->forward_inputs || !g->backward_inputs ||
        !g->backward_grads || !g->generation || rp__callable_begin(&g->base, &graphed_ops, c->fn) != RP_OK) {
        graphed_free(g);
        return NULL;
    }
    atomic_init(&g->refs, 1);
    g->explain = rp__explain_retain(g->base.explain);
    for (size_t k = 0; k < all; k++) {
        g->args[k] = rp_retain(k < c->n_args ? c->args[k] : c->params[k - c->n_args]);
        g->leaf[k] = rp_is_leaf(g->args[k]);
    }
    for (size_t k = 0; k < c->n_params; k++) g->param_storage[k] = c->params[k]->storage;
    return g;
}

/* A function may not release what it was lent: the sample arguments are the static inputs. Asked when the tape of the run is
   gone, which holds arguments too. What the function took is given back, so that the accounts of everybody else hold. */
static rp_status lend(graphed *g) {
    if (!g->lent) g->lent = rp__alloc((surface(g) + 1) * sizeof *g->lent);
    if (!g->lent) return RP__OOM("a graphed callable");
    for (size_t k = 0; k < surface(g); k++) g->lent[k] = atomic_load(&rp_retain(g->args[k])->refs);
    return RP_OK;
}

static rp_status settle(graphed *g) {
    unsigned *before = g->lent;
    rp_status status = RP_OK;
    g->lent = NULL;
    for (size_t k = 0; before && k < surface(g); k++) {
        rp_tensor *t = g->args[k];
        const char *what = k < g->n_args ? "argument" : "parameter";
        size_t number = k < g->n_args ? k : k - g->n_args;
        if (t->magic != RP__TENSOR_MAGIC) {
            g->args[k] = rp__tensor_error(); /* gone, and our references with it */
            status = rp__fail(RP_ERROR_STATE, "%s: the function released %s %zu until nothing was left of it",
                              g->base.name, what, number);
            continue;
        }
        if (atomic_load(&t->refs) < before[k])
            status = rp__fail(RP_ERROR_STATE, "%s: the function released %s %zu, which it was only lent", g->base.name,
                              what, number);
        while (atomic_load(&t->refs) < before[k]) (void)rp_retain(t);
    }
    for (size_t k = 0; before && k < surface(g); k++) rp_release(g->args[k]); /* what lend took */
    rp__free(before);
    return status;
}

/* Every run gives the same kinds of results: the graph holds one of them. */
static rp_status compare_results(graphed *g, rp_tensor *const *out) {
    if (!g->warm) {
        g->warm = rp__calloc(g->n_out, sizeof *g->warm);
        if (!g->warm) return RP__OOM("results of a graphed callable");
        for (size_t k = 0; k < g->n_out; k++) rp__ir_meta_of(out[k], &g->warm[k]);
        return RP_OK;
    }
    for (size_t k = 0; k < g->n_out; k++) {
        const rp__meta *first = &g->warm[k];
        bool same = out[k]->dtype == first->dtype && out[k]->ndim == first->ndim &&
                    rp__device_equal(out[k]->device, first->device);
        for (unsigned d = 0; same && d < first->ndim; d++) same = out[k]->size[d] == first->size[d];
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
        if (!same)
            return rp__fail(RP_ERROR_GUARD,
                            "%s: result %zu is %s, and was %s %s when the function ran before: a graph holds one kind "
                            "of result",
                            g->base.name, k, rp__tensor_text(out[k], a), rp_dtype_name(first->dtype),
                            rp__shape_text(first->size, first->ndim, b));
    }
    return RP_OK;
}

typedef struct leaf_search {
    const graphed *g;
    uint64_t first_inside; /* ids of tensors that the function made begin here */
} leaf_search;

/* A leaf that the function made by itself, to differentiate inside, is nobody else's. */
static rp_status check_leaf(void *ctx, const rp_tensor *leaf) {
    const leaf_search *s = ctx;
    const graphed *g = s->g;
    if (leaf->id >= s->first_inside) return RP_OK;
    char text[RP__SHAPE_TEXT];
    return rp__fail(
        RP_ERROR_INVALID_ARGUMENT,
        "%s: the function reads a leaf that requires a gradient and was not given: %s, made by `%s` (%s). Name "
        "it in .params of the callable, or read it through rp_detach: a graph gives gradients to what it was "
        "given alone",
        g->base.name, rp__tensor_text(leaf, text), leaf->op ? leaf->op : "an op",
        leaf->site && *leaf->site ? leaf->site : "no call site");
}

/* What a tape behind the graph could not say: gradients of leaves that nobody named, history of what was written. */
static rp_status check_history(const graphed *g, rp_tensor *const *out, uint64_t first_inside) {
    for (size_t k = 0; k < surface(g); k++) {
        const rp_tensor *t = g->args[k];
        if (!g->leaf[k] || rp_is_leaf(t)) continue;
        return rp__fail(
            RP_ERROR_INVALID_ARGUMENT,
            "%s: the function wrote into %s %zu what has a gradient, by `%s` (%s): a graph hands on gradients "
            "through its results alone. Return it as a result, or write what rp_detach gives",
            g->base.name, k < g->n_args ? "argument" : "parameter", k < g->n_args ? k : k - g->n_args,
            t->storage->writer_op ? t->storage->writer_op : "an op",
            t->storage->writer_site ? t->storage->writer_site : "no call site");
    }
    leaf_search search = {g, first_inside};
    return rp__tape_each_leaf(out, g->n_out, g->args, surface(g), check_leaf, &search);
}

/* Runs the function; its outputs of the innermost scope. Ops inside name their own lines, what is found afterwards that of
   rp_make_graphed_callables. */
static rp_status run_body(graphed *g, rp_tensor **out) {
    for (size_t k = 0; k < g->n_out; k++) out[k] = NULL;
    uint64_t first_inside = rp__unique_id_fresh();
    const bool clean = !rp_failed();
    const uint64_t failures = rp__error_count();
    rp__site_frame frame = rp__site_enter((rp__site_frame){NULL, NULL});
    g->base.fn.body(g->base.fn.ctx, g->args, g->n_args, out, g->n_out);
    rp__site_pop(frame);
    rp_status status = rp__status_since(failures);
    if (status != RP_OK && clean) { /* the first of perhaps several failures: it is told whose it is */
        rp__error_state first;
        rp__error_save(&first);
        rp__error_restore(&first);
        (void)rp__fail_context("graphing `%s`%s%s", g->base.name, *rp__site() ? " at " : "", rp__site());
    }
    for (size_t k = 0; k < g->n_out && status == RP_OK; k++) {
        char what[128];
        (void)snprintf(what, sizeof what, "%.64s: result %zu of a graphed callable", g->base.name, k);
        if (!out[k])
            status = rp__fail(RP_ERROR_INVALID_ARGUMENT,
                              "%s: result %zu was left NULL: every result of a graphed callable is a tensor",
                              g->base.name, k);
        else if (rp__tensor_check(out[k], what) != RP_OK)
            status = rp_error_status();
        else if (rp__tensor_is_error(out[k]))
            status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s is the error tensor", what);
    }
    if (status == RP_OK) status = compare_results(g, out);
    return status == RP_OK ? check_history(g, out, first_inside) : status;
}

/* Surface tensor k requires a gradient and has none. */
static rp_status unused(const graphed *g, size_t k) {
    const rp_tensor *t = g->args[k];
    const bool given = k < g->n_args;
    char text[RP__SHAPE_TEXT];
    return rp__fail(RP_ERROR_STATE,
                    "%s %zu (%s%s%s) requires a gradient, but no output was made of it: %s, or set allow_unused_input",
                    given ? "argument" : "parameter", given ? k : k - g->n_args, rp__tensor_text(t, text),
                    t->site && *t->site ? ", from " : "", t->site ? t->site : "",
                    given ? "give a sample that requires none" : "leave it out of the parameters");
}

/* Differentiable outputs with respect to the surface tensors that require a gradient: grads[k] aligned with the surface. */
static rp_status differentiate(const graphed *g, rp_tensor *const *out, rp_tensor *const *grad_out, bool allow_unused,
                               rp_tensor **grads) {
    size_t n_out = 0, n_in = 0, room = surface(g) > g->n_out ? surface(g) : g->n_out;
    rp_tensor **list = rp__calloc(4 * room + 4, sizeof *list);
    if (!list) return RP__OOM("gradients of a graphed callable");
    rp_tensor **outs = list, **ins = list + room + 1, **given = ins + room + 1, **got = given + room + 1;
    for (size_t k = 0; k < g->n_out; k++) {
        if (!rp_requires_grad(out[k])) continue;
        outs[n_out] = out[k];
        given[n_out++] = grad_out ? grad_out[k] : rp_ones_like(out[k]);
    }
    for (size_t k = 0; k < surface(g); k++)
        if (rp_requires_grad(g->args[k])) ins[n_in++] = g->args[k];
    rp_status status = RP_OK;
    if (n_out && n_in)
        status = rp_grad(outs, n_out, ins, n_in, given, RP_OPTIONS(rp_backward_options, .allow_unused = true), got);
    size_t at = 0;
    for (size_t k = 0; k < surface(g); k++) {
        const bool wants = n_out && rp_requires_grad(g->args[k]);
        grads[k] = status == RP_OK && wants ? got[at++] : NULL;
        if (status == RP_OK && wants && !grads[k] && !allow_unused) status = unused(g, k);
    }
    rp__free(list);
    return status == RP_OK
               ? status
               : rp__fail_context("differentiating `%s`%s%s", g->base.name, *rp__site() ? " at " : "", rp__site());
}

static rp_status warm_up_once(graphed *g, bool allow_unused) {
    rp_tensor **out = rp__calloc(g->n_out + surface(g) + 1, sizeof *out);
    if (!out) return RP__OOM("warm-up of a graphed callable");
    rp_scope scope = rp__scope_begin();
    rp_status status = lend(g);
    if (status == RP_OK) status = run_body(g, out);
    bool any = false;
    for (size_t k = 0; k < g->n_out && status == RP_OK; k++) any = any || rp_requires_grad(out[k]);
    if (status == RP_OK && any) status = differentiate(g, out, NULL, allow_unused, out + g->n_out);
    rp__scope_end(scope, NULL, 0);
    rp__free(out);
    rp_status settled = settle(g);
    return status == RP_OK ? settled : status;
}

/* On the capture's stream, so that libraries and caches are ready for it; random numbers are given back. */
static rp_status warm_up(const maker *m) {
    int rounds = m->options.warmup == 0 ? 3 : m->options.warmup < 0 ? 0 : m->options.warmup;
    uint64_t seed = 0, offset = 0;
    rp_generator *generator = rp_default_generator(m->device->id);
    rp_stream *before = rp__stream_retain(rp__current_stream(m->device));
    rp_status status = rp_generator_get(generator, &seed, &offset);
    if (status == RP_OK) status = rp_synchronize(m->device->id);
    if (status == RP_OK) status = rp_set_current_stream(m->stream);
    for (size_t i = 0; i < m->n && status == RP_OK; i++)
        for (int round = 0; round < rounds && status == RP_OK; round++)
            status = warm_up_once(m->made[i], m->options.allow_unused_input);
    rp__error_state kept;
    rp__error_save(&kept);
    (void)rp_set_current_stream(before);
    (void)rp_synchronize(m->device->id);
    (void)rp_generator_set(generator, seed, offset);
    (void)rp_error_take();
    rp__error_restore(&kept);
    rp__stream_drop(before);
    return status;
}

/* A result that lies outside the pool (an argument, a parameter, a view of one) is copied inside the graph. */
static rp_tensor *owned(const maker *m, rp_tensor *t) {
    return t->storage->block && t->storage->block->pool == m->pool ? t : rp_clone(t);
}

static rp_status capture_forward(const maker *m, graphed *g, rp_tensor **live) {
    rp__recorder recorder;
    RP_TRY(rp__recorder_begin(&recorder, &g->forward, m->stream, m->pool, RP_CAPTURE_THREAD_LOCAL));
    rp_scope scope = rp__scope_begin();
    rp_status status = run_body(g, live);
    /* behind the run, which may count in it */
    if (g->ctx) memcpy(g->ctx, g->base.fn.ctx, g->base.fn.ctx_bytes);
    for (size_t k = 0; k < g->n_out && status == RP_OK; k++) {
        rp_tensor *t = owned(m, live[k]);
        if (rp__tensor_is_error(t)) status = rp_error_status();
        live[k] = t;
    }
    for (size_t k = 0; k < g->n_out; k++) {
        if (status != RP_OK) {
            live[k] = NULL;
            continue;
        }
        g->differentiable[k] = rp_requires_grad(live[k]);
        rp_tensor *fixed = rp_detach(live[k]);
        if (rp__tensor_is_error(fixed)) {
            status = rp_error_status();
            live[k] = NULL;
            continue;
        }
        g->outputs[k] = rp_retain(fixed);
        live[k] = rp_retain(live[k]);
    }
    rp__scope_end(scope, NULL, 0);
    rp_status ended = rp__recorder_end(&recorder, NULL);
    return status != RP_OK ? status : ended;
}

static rp_status capture_backward(const maker *m, graphed *g, rp_tensor *const *live) {
    bool any = false;
    rp__recorder recorder;
    for (size_t k = 0; k < g->n_out; k++) {
        if (!g->differentiable[k]) continue;
        rp_tensor *zero = rp_zeros_like(g->outputs[k]); /* outside the capture: from the ordinary pool */
        if (rp__tensor_is_error(zero)) return rp_error_status();
        g->grad_outputs[k] = rp_retain(zero);
        any = true;
    }
    bool wanted = false;
    for (size_t k = 0; k < surface(g); k++) wanted = wanted || rp_requires_grad(g->args[k]);
    if (!any || !wanted) return RP_OK;
    rp_tensor **grads = rp__calloc(surface(g) + 1, sizeof *grads);
    if (!grads) return RP__OOM("gradients of a graphed callable");
    rp_status status = rp__recorder_begin(&recorder, &g->backward, m->stream, m->pool, RP_CAPTURE_THREAD_LOCAL);
    if (status != RP_OK) {
        rp__free(grads);
        return status;
    }
    rp_scope scope = rp__scope_begin();
    status = differentiate(g, live, g->grad_outputs, m->options.allow_unused_input, grads);
    for (size_t k = 0; k < surface(g) && status == RP_OK; k++) {
        if (!grads[k]) continue;
        rp_tensor *t = owned(m, grads[k]);
        bool twice = false; /* one tensor as two gradients: each static one its own memory */
        for (size_t x = 0; x < k; x++) twice = twice || (g->grad_inputs[x] && g->grad_inputs[x]->storage == t->storage);
        if (twice) t = rp_clone(t);
        if (rp__tensor_is_error(t))
            status = rp_error_status();
        else
            g->grad_inputs[k] = rp_retain(t);
    }
    rp__scope_end(scope, NULL, 0);
    rp_status ended = rp__recorder_end(&recorder, NULL);
    rp__free(grads);
    return status != RP_OK ? status : ended;
}

static rp_status finish(graphed *g) {
    RP_TRY(rp__recording_instantiate(&g->forward));
    if (g->backward.graph) RP_TRY(rp__recording_instantiate(&g->backward));
    for (size_t k = 0; k < g->n_args; k++) {
        g->args[k]->storage->sample = true;
        rp__static_input_find(&g->forward, g->args[k], &g->forward_inputs[k]);
        rp__static_input_find(&g->backward, g->args[k], &g->backward_inputs[k]);
    }
    for (size_t k = 0; k < g->n_out; k++)
        if (g->grad_outputs[k]) rp__static_input_find(&g->backward, g->grad_outputs[k], &g->backward_grads[k]);
    for (size_t k = 0; k < g->forward.n_externals; k++)
        g->writes = g->writes || g->forward.externals[k].access & RP__WRITE;
    rp__explain_add(g->base.explain, "graph", RP__REASON_NONE, NULL,
                    (int64_t)g->device->ops->graph_nodes(g->forward.graph), "nodes of the forward graph");
    if (g->device->ops->graph_count)
        rp__explain_live(g->base.explain, "graph", RP__REASON_NONE, "executables of the forward graph",
                         &g->forward.executables);
    if (!g->backward.graph) return RP_OK;
    rp__explain_add(g->base.explain, "graph", RP__REASON_NONE, NULL,
                    (int64_t)g->device->ops->graph_nodes(g->backward.graph), "nodes of the backward graph");
    if (g->device->ops->graph_count)
        rp__explain_live(g->base.explain, "graph", RP__REASON_NONE, "executables of the backward graph",
                         &g->backward.executables);
    return RP_OK;
}

/* A family of what m makes; NULL with the sticky error out of memory. */
static rp_status family_make(const maker *m) {
    if (m->n < 2) return RP_OK;
    family *f = rp__calloc(1, sizeof *f + m->n * sizeof *f->members);
    bool *overwrites = rp__calloc(m->n * m->n, sizeof *overwrites);
    if (!f || !overwrites) {
        rp__free(f);
        rp__free(overwrites);
        return RP__OOM("graphed callables");
    }
    atomic_init(&f->refs, (unsigned)m->n);
    f->n = m->n;
    f->overwrites = overwrites;
    for (size_t i = 0; i < m->n; i++) {
        m->made[i]->family = f;
        m->made[i]->number = i;
        f->members[i] = m->made[i]->generation;
        atomic_fetch_add_explicit(&f->members[i]->refs, 1, memory_order_relaxed);
    }
    return RP_OK;
}

static bool writes_outputs(const rp__pool_range *ranges, size_t n, const graphed *g) {
    for (size_t k = 0; k < g->n_out; k++) {
        const char *begin = g->outputs[k]->storage->data, *end = begin + g->outputs[k]->storage->bytes;
        for (size_t r = 0; r < n; r++)
            if (ranges[r].begin < end && begin < ranges[r].end) return true;
    }
    return false;
}

/* The forwards, and which of them run over outputs of later ones: those got memory that an earlier one had freed. */
static rp_status capture_forwards(const maker *m, rp_tensor **live) {
    typedef struct used {
        rp__pool_range *ranges;
        size_t n;
    } used;
    used *all = rp__calloc(m->n, sizeof *all);
    if (!all) return RP__OOM("graphed callables");
    rp_status status = RP_OK;
    for (size_t i = 0; i < m->n && status == RP_OK; i++) {
        status = rp__pool_ranges_begin(m->pool);
        if (status != RP_OK) break;
        status = capture_forward(m, m->made[i], live);
        rp__pool_ranges_end(m->pool, &all[i].ranges, &all[i].n);
        live += m->made[i]->n_out;
        for (size_t j = 0; j < i && status == RP_OK; j++)
            m->made[j]->family->overwrites[j * m->n + i] = writes_outputs(all[j].ranges, all[j].n, m->made[i]);
    }
    for (size_t i = 0; i < m->n; i++) rp__free(all[i].ranges);
    rp__free(all);
    return status;
}

/* Forwards in order, backwards in reverse: a backward frees what its forward kept, and later captures reuse that memory. */
static rp_status capture_all(const maker *m) {
    size_t total = 0;
    RP_TRY(family_make(m));
    for (size_t i = 0; i < m->n; i++) total += m->made[i]->n_out;
    rp_tensor **live = rp__calloc(total, sizeof *live);
    if (!live) return RP__OOM("outputs of graphed callables");
    rp_status status = RP_OK;
    for (size_t i = 0; i < m->n && status == RP_OK; i++) status = lend(m->made[i]);
    if (status == RP_OK) status = capture_forwards(m, live);
    size_t end = total;
    for (size_t i = m->n; i-- > 0;) {
        end -= m->made[i]->n_out;
        if (status == RP_OK) status = capture_backward(m, m->made[i], live + end);
        for (size_t k = end; k < end + m->made[i]->n_out; k++)
            if (live[k]) rp_release(live[k]);
    }
    rp__free(live);
    /* Callables may share parameters. Each counts what those before it lent, and none the tapes that live now: so all lend before
       the first run, and settle in reverse when all tapes are gone. */
    for (size_t i = m->n; i-- > 0;) {
        rp_status settled = settle(m->made[i]);
        if (status == RP_OK) status = settled;
    }
    for (size_t i = 0; i < m->n && status == RP_OK; i++) status = finish(m->made[i]);
    return status;
}

/* Into a pool that others capture into as well: what these captures used stays theirs as long as one of the callables lives.
   Else a later capture would get memory that their replays write, and results would be overwritten in silence. */
static rp_status capture_holding(const maker *m) {
    rp__pool_hold *hold = NULL;
    RP_TRY(rp__pool_hold_begin(m->pool));
    rp_status status = capture_all(m), held = rp__pool_hold_end(m->pool, status == RP_OK ? &hold : NULL);
    for (size_t i = 0; i < m->n; i++) m->made[i]->hold = rp__pool_hold_retain(hold);
    rp__pool_hold_release(hold);
    return status == RP_OK ? held : status;
}

static rp_status make(maker *m, rp_compiled **out) {
    for (size_t i = 0; i < m->n; i++) {
        m->made[i] = graphed_new(&m->callables[i], m);
        if (!m->made[i]) return RP__OOM("a graphed callable");
    }
    bool grad = rp_set_grad_enabled(true);
    rp_status status = warm_up(m);
    if (status == RP_OK) status = m->options.pool ? capture_holding(m) : capture_all(m);
    (void)rp_set_grad_enabled(grad);
    for (size_t i = 0; i < m->n && status == RP_OK; i++) {
        out[i] = &m->made[i]->base;
        m->made[i] = NULL;
    }
    return status;
}

static rp_status make_callables(const rp_graphed_callable *callables, size_t n, const rp_graphed_options *options,
                                rp_compiled **out) {
    maker m = {.callables = callables, .n = n};
    rp_device device;
    for (size_t i = 0; out && i < n; i++) out[i] = rp__callable_failed();
    if (!out) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "make_graphed_callables: out is NULL");
    RP_TRY(rp__options_read("make_graphed_callables", options, sizeof m.options, &m.options));
    RP_TRY(check_callables(callables, n, &device));
    m.device = rp__device_get(device);
    if (!m.device) return rp_error_status();
    if (m.options.pool) RP_TRY(rp__handle_check(m.options.pool, RP__HANDLE_POOL, "make_graphed_callables"));
    if (m.options.pool && m.options.pool->device != m.device)
        return rp__fail(RP_ERROR_DEVICE, "make_graphed_callables: the pool belongs to another device");
    m.pool = m.options.pool ? rp__pool_retain(m.options.pool) : rp_pool_new(device);
    m.stream = rp__side_stream_take(m.device);
    m.made = rp__calloc(n, sizeof *m.made);
    rp_status status = RP_OK;
    if (!m.pool->device || !m.stream)
        status = rp_error_status();
    else if (!m.made)
        status = RP__OOM("graphed callables");
    if (status == RP_OK) {
        rp_scope scope = rp__scope_begin();
        status = make(&m, out);
        rp__scope_end(scope, NULL, 0);
    }
    for (size_t i = 0; m.made && i < n; i++)
        if (m.made[i]) rp_compiled_release(&m.made[i]->base);
    rp__free(m.made);
    rp__side_stream_give(m.stream);
    rp__pool_drop(m.pool);
    return status;
}

rp_status rp_make_graphed_callables_at(const char *site, const rp_graphed_callable *callables, size_t n,
                                       const rp_graphed_options *options, rp_compiled **out) {
    rp__site_frame frame = rp__site_push(site, NULL);
    rp_status status = make_callables(callables, n, options, out);
    rp__site_pop(frame);
    return status;
}
