/* rp_compile, rp_plain, rp_call: the front end of the compiler. A compiled function is a list of specialisations, most
   recently used first; each is guards, a graph and the backend's object. The first call records and computes as it goes; the
   second traces again and compares (purity); a call that differs in sizes only is traced with those sizes as symbols. A
   function that cannot be one graph becomes trace-and-flush: it runs at every call, and its segments are looked up by hash. */
#include "compile/compiled.h"

#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "compile/backend.h"
#include "compile/guards.h"
#include "compile/instances.h"
#include "compile/program.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "trace/ir_run.h"
#include "trace/trace.h"

enum { CACHE_LIMIT = 32, SEGMENT_LIMIT = 256, FEW = 24 };

typedef struct specialisation {
    atomic_uint refs;
    rp__guards guards;
    rp__trace_result trace; /* ir and effects on gradients */
    rp__hash hash;
    rp__explain *explain; /* what is said of it; NULL: nothing */
    const rp__engine *engine;
    void *object;
    size_t n_out; /* of the function */
    uint64_t calls;
    uint64_t *arg_ids; /* of the tensors that were its arguments when it was recorded */
    bool symbolic;
    bool repeats;                      /* the function gives one tensor as several of its results */
    bool holds_replayed;               /* it captured outputs of a replay, which a later one overwrites */
    bool moves_gradients;              /* the graph reads or leaves gradients of leaves */
    _Atomic(rp__executable *) program; /* what a call comes down to; NULL: more than a program, or not known yet */
    struct specialisation *next;
} specialisation;

typedef struct segment {
    void *object; /* NULL: node by node */
    rp__explain *explain;
} segment;

typedef struct compiled {
    rp_compiled base;
    const rp__engine *engine;
    rp_compile_options options;
    rp__mutex lock;       /* list, segments; held while a call is traced */
    specialisation *list; /* most recently used first */
    size_t n;
    size_t n_made, n_segments; /* so far; they are numbered */
    rp__instances *instances;
    /* There never were two specialisations at a time: a call may keep the lock and take no other, as calls of one program
       take turns anyway. */
    bool alone;
    bool lazy; /* trace-and-flush, because of: */
    rp__reason lazy_reason;
    char lazy_site[256];
    unsigned ctx_misses; /* calls that were recorded anew because bytes of ctx differed, and gave another graph */
    rp__map segments;    /* hash -> segment */
    uint64_t calls;
    uint64_t resets;        /* rp_compile_reset has been heard so often */
    _Atomic uint64_t given; /* rp__engine_request.given */
} compiled;

static _Atomic uint64_t resets; /* calls of rp_compile_reset */

/* ---- life of callables */

rp_compiled *rp__callable_failed(void) {
    static rp_compiled failed;
    return &failed;
}

rp_status rp__callable_refuse(const rp_compiled *f, const char *call) {
    if (f == rp__callable_failed())
        return rp__fail(RP_ERROR_STATE, "%s: the function was not made (see the error of its constructor)", call);
    return rp__handle_refuse(&f->handle, call, "function");
}

rp_status rp__callable_begin(rp_compiled *f, const rp__callable_ops *ops, rp_fn fn) {
    f->ops = ops;
    f->fn = fn;
    f->name = rp__strdup(fn.name ? fn.name : "function");
    if (!f->name) return RP__OOM("compiled function");
    f->fn.name = f->name;
    snprintf(f->handle.name, sizeof f->handle.name, "%s", f->name);
    f->explain = rp__explain_new();
    if (f->explain) {
        rp__explain_enter(f);
        return RP_OK;
    }
    rp__free(f->name);
    return RP_ERROR_OUT_OF_MEMORY;
}

void rp_compiled_release(rp_compiled *f) {
    if (!f || f == rp__callable_failed() || !rp__handle_give_up(&f->handle, "rp_compiled_release")) return;
    const rp__callable_ops *ops = f->ops;
    rp__explain_leave(f);
    char *name = f->name;
    rp__explain *explain = f->explain;
    struct rp__argument_names *names = atomic_load(&f->names);
    f->ops = NULL; /* what a tape still needs of it may stay */
    ops->destroy(f);
    rp__free(names);
    rp__explain_free(explain);
    rp__free(name);
}

static bool is_tensor(const rp_tensor *t) {
    return t && t->magic == RP__TENSOR_MAGIC && !rp__tensor_is_error(t) && !rp__storage_is_stale(t->storage) &&
           !t->traced;
}

static bool has_value(const rp_tensor *t) { return !t->traced || t->storage->data; }

/* The function, or one of the arguments, is none. */
static __attribute__((noinline)) rp_status refuse_call(const char *site, const rp_compiled *f, rp_tensor *const *in,
                                                       size_t n_in) {
    rp_status status = RP_OK;
    rp__site_frame frame = rp__site_push(site, NULL);
    if (!f->ops) status = rp__callable_refuse(f, "rp_call");
    for (size_t k = 0; k < n_in && status == RP_OK; k++) {
        if (is_tensor(in[k])) {
            /* In a trace it may be one of its values. Outside it is one of another thread's, or has outlived its trace. */
            if (!has_value(in[k]) && !rp__trace_current()) status = rp__tensor_materialise(in[k]);
            continue;
        }
        char what[128];
        snprintf(what, sizeof what, "%s: argument %zu", f->name, k);
        status = rp__tensor_check(in[k], what);
        if (status == RP_OK)
            status = rp__tensor_is_error(in[k])
                         ? rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: argument %zu is the error tensor", f->name, k)
                         : rp__trace_check_alive(in[k]);
    }
    rp__site_pop(frame);
    return status;
}

/* Is the call one that a function can be given? */
static inline rp_status check_call(const char *site, const rp_compiled *f, rp_tensor *const *in, size_t n_in) {
    bool sound = f->ops != NULL;
    for (size_t k = 0; k < n_in; k++) sound = sound && is_tensor(in[k]) && has_value(in[k]);
    return RP__LIKELY(sound) ? RP_OK : refuse_call(site, f, in, n_in);
}

rp_status rp_call_at(const char *site, rp_compiled *f, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                     size_t n_out) {
    if (RP__UNLIKELY(!f || (n_in && !in) || (n_out && !out)))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_call: the function or a list of tensors is NULL%s%s",
                        site ? " at " : "", site ? site : "");
    RP__LISTS_APART(in, n_in, out, n_out, rp_call_at(site, f, apart, n_in, out, n_out));
    for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    rp_status status = check_call(site, f, in, n_in);
    if (RP__LIKELY(status == RP_OK)) {
        if (rp__trace_current()) { /* inlined */
            f->fn.body(f->fn.ctx, in, n_in, out, n_out);
            status = rp_failed() ? rp_error_status() : RP_OK;
            for (size_t k = 0; k < n_out && status != RP_OK; k++) out[k] = rp__tensor_error();
            return status;
        }
        status = f->ops->call(f, site, in, n_in, out, n_out);
    }
    if (RP__UNLIKELY(status != RP_OK && status != RP_ERROR_GRAPH_BREAK)) {
        for (size_t k = 0; k < n_out; k++) out[k] = rp__tensor_error();
    }
    return status;
}

rp_status rp__callable_body(rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__error_state before;
    bool failed = rp_failed();
    if (failed) rp__error_save(&before);
    fn.body(fn.ctx, in, n_in, out, n_out);
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    for (size_t k = 0; k < n_out && status == RP_OK; k++) {
        if (out[k]) status = rp__tensor_check(out[k], "a result");
    }
    if (failed) rp__error_restore(&before);
    return status;
}

rp_status rp__callable_end(rp_scope scope, rp_status status, rp_tensor **out, size_t n_out) {
    rp__scope_end(scope, out, status == RP_OK || status == RP_ERROR_GRAPH_BREAK ? n_out : 0);
    return status;
}

/* ---- plain */

static rp_status plain_call(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                            size_t n_out) {
    (void)site;
    rp_scope scope = rp__scope_begin();
    return rp__callable_end(scope, rp__callable_body(f->fn, in, n_in, out, n_out), out, n_out);
}

static void plain_destroy(rp_compiled *f) { rp__handle_free(f); }

rp_compiled *rp_plain_at(const char *site, rp_fn fn) {
    RP__CALLED_FROM(site);
    static const rp__callable_ops ops = {"plain", plain_call, plain_destroy};
    if (!fn.body) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_plain: the function is NULL");
        return rp__callable_failed();
    }
    rp_compiled *f = rp__handle_new("function", sizeof *f);
    if (!f || rp__callable_begin(f, &ops, fn) != RP_OK) {
        (void)RP__OOM("function");
        rp__handle_free(f);
        return rp__callable_failed();
    }
    return f;
}

/* ---- specialisations */

static void specialisation_release(specialisation *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    rp__guards_free(&s->guards);
    if (s->object) s->engine->destroy(s->object);
    rp__explain_close(s->explain);
    rp__trace_result_free(&s->trace);
    rp__free(s->arg_ids);
    rp__free(s);
}

static void use_first(compiled *c, specialisation *s, specialisation **link) {
    *link = s->next;
    s->next = c->list;
    c->list = s;
}

static void drop(compiled *c, const specialisation *s) {
    for (specialisation **link = &c->list; *link; link = &(*link)->next) {
        if (*link == s) {
            specialisation *gone = *link;
            *link = gone->next;
            c->n--;
            specialisation_release(gone);
            return;
        }
    }
}

static void add(compiled *c, specialisation *s) {
    size_t limit = c->options.cache_limit ? c->options.cache_limit : CACHE_LIMIT;
    s->next = c->list;
    c->list = s;
    c->n++;
    c->alone = c->alone && c->n == 1;
    while (c->n > limit) {
        specialisation *last = c->list;
        while (last->next) last = last->next;
        rp__explain_add(c->base.explain, "specialisation", RP__REASON_EVICTED, NULL, 1, NULL);
        drop(c, last);
    }
}

static void become_lazy(compiled *c, rp__reason reason, const char *site, const char *detail) {
    c->lazy = true;
    c->lazy_reason = reason;
    (void)snprintf(c->lazy_site, sizeof c->lazy_site, "%s", site && *site ? site : "no call site");
    rp__explain_add(c->base.explain, "break", reason, site, 1,
                    "%s%s%s; the function runs at every call (trace-and-flush)", rp__reason_text(reason),
                    detail ? ": " : "", detail ? detail : "");
    if (reason == RP__REASON_WRITTEN_WITHOUT_TAPE)
        rp__explain_advise(c->base.explain, RP__REASON_STEP_NOT_DETACHED, c->lazy_site, c->base.name, "%s",
                           rp__reason_text(RP__REASON_STEP_NOT_DETACHED));
}

/* The backend's object for a graph; NULL and RP_OK when it could not and that is not to be an error. */
static rp_status compile(compiled *c, const rp__engine_request *of, void **object) {
    rp__engine_request request = *of;
    request.options = &c->options;
    request.instances = c->instances;
    request.given = &c->given;
    *object = NULL;
    rp_status status = c->engine->compile(c->engine, &request, object);
    if (status == RP_OK) return RP_OK;
    *object = NULL;
    if (c->options.strict || status == RP_ERROR_OUT_OF_MEMORY) return status;
    rp__explain_add(request.explain, "skip", RP__REASON_COMPILE_FAILED, NULL, 1, "%s: %s",
                    rp__reason_text(RP__REASON_COMPILE_FAILED), rp_error_message());
    (void)rp_error_take();
    return RP_OK;
}

static bool repeats(const rp_ir *ir, size_t n_out) {
    const rp__ir_value *v = ir->body.results;
    for (size_t k = 0; k < n_out; k++) {
        for (size_t j = 0; j < k; j++)
            if (v[k] != RP__IR_NONE && v[k] == v[j]) return true;
    }
    return false;
}

static bool moves_gradients(const rp__trace_result *trace) {
    for (size_t i = 0; i < trace->n_grads; i++)
        if (trace->grads[i].input != RP__IR_NONE || trace->grads[i].at_exit != RP__GRAD_KEPT) return true;
    return false;
}

static bool holds_replayed(const rp_ir *ir) {
    for (size_t k = 0; k < ir->n_captured; k++)
        if (ir->captured[k] && ir->captured[k]->storage->generation) return true;
    return false;
}

/* Takes the trace over. environment: as the function found it. */
static rp_status specialise(compiled *c, rp__trace_result *trace, uint64_t environment, rp_tensor *const *in,
                            size_t n_in, size_t n_out, const rp_dim *const *sizes, const rp_dim *const *strides,
                            specialisation **out) {
    specialisation *s = rp__calloc(1, sizeof *s);
    if (!s) return RP__OOM("specialisation");
    atomic_init(&s->refs, 1);
    s->trace = *trace;
    memset(trace, 0, sizeof *trace);
    s->engine = c->engine;
    s->n_out = n_out;
    s->symbolic = sizes != NULL;
    s->repeats = repeats(s->trace.ir, n_out);
    s->moves_gradients = moves_gradients(&s->trace);
    s->holds_replayed = holds_replayed(s->trace.ir);
    s->arg_ids = rp__calloc(n_in + 1, sizeof *s->arg_ids);
    for (size_t k = 0; k < n_in && s->arg_ids; k++) s->arg_ids[k] = in[k]->id;
    rp_status status = s->arg_ids ? rp__ir_hash(s->trace.ir, &s->hash) : RP__OOM("specialisation");
    if (status == RP_OK) status = rp__guards_build(&s->guards, &s->trace, c->base.fn, in, n_in, sizes, strides);
    s->guards.environment = environment;
    bool step = !s->trace.training && s->trace.backward;
    s->explain = rp__explain_open(c->base.explain, "specialisation %zu", ++c->n_made);
    const rp__engine_request request = {
        .graph = s->trace.ir, .training = s->trace.training, .step = step, .explain = s->explain};
    if (status == RP_OK) status = compile(c, &request, &s->object);
    if (status != RP_OK) {
        specialisation_release(s);
        return status;
    }
    rp__symbols_seal(s->trace.ir->symbols);
    add(c, s);
    rp__explain_add(s->explain, "specialisation", sizes ? RP__REASON_SYMBOLIC : RP__REASON_NONE, NULL, 1,
                    "%zu nodes, %zu captured tensors, %zu symbols, %s", s->trace.ir->body.n_nodes,
                    s->trace.ir->n_captured, rp__symbols_count(s->trace.ir->symbols),
                    s->trace.training ? "training"
                    : step            ? "whole training step"
                                      : "inference");
    for (size_t i = 0; i < rp__symbols_guard_count(s->trace.ir->symbols); i++) {
        rp__text t = {0};
        rp__symbols_guard_text(s->trace.ir->symbols, rp__symbols_guard_at(s->trace.ir->symbols, i), true, &t);
        rp__explain_add(s->explain, "guard", RP__REASON_NONE, NULL, 1, "%s", t.data ? t.data : "");
        rp__text_free(&t);
    }
    *out = s;
    return RP_OK;
}

/* Gradients that the graph read at entry are its last arguments, those that it leaves its last results. */
static rp_status run_with_gradients(specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                    size_t n_out) {
    const rp_ir *ir = s->trace.ir;
    size_t n_args = ir->body.n_args, n_results = ir->body.n_results, n = n_args + n_results;
    rp_tensor *few[FEW], **args = n <= FEW ? few : rp__alloc(n * sizeof *args);
    if (!args) return RP__OOM("call");
    rp_tensor **results = args + n_args;
    for (size_t i = 0; i < n; i++) args[i] = NULL;
    if (n_in) memcpy(args, in, n_in * sizeof *args);
    rp_status status = RP_OK;
    for (size_t i = 0; i < s->trace.n_grads; i++) {
        const rp__trace_grad *g = &s->trace.grads[i];
        rp_tensor *leaf = g->leaf ? g->leaf : in[g->arg];
        if (g->input != RP__IR_NONE) args[g->input] = rp_grad_of(leaf);
    }
    status = s->object ? s->engine->run(s->object, args, n_args, results, n_results)
                       : rp__ir_run(ir, args, n_args, results, n_results, NULL);
    if (status == RP_OK && n_out) memcpy(out, results, n_out * sizeof *out);
    for (size_t i = 0; i < s->trace.n_grads && status == RP_OK; i++) {
        const rp__trace_grad *g = &s->trace.grads[i];
        rp_tensor *leaf = g->leaf ? g->leaf : in[g->arg];
        if (g->at_exit == RP__GRAD_RESULT)
            status = rp_set_grad(leaf, results[g->result]);
        else if (g->at_exit == RP__GRAD_CLEARED)
            status = rp_set_grad(leaf, NULL);
        else if (g->at_exit == RP__GRAD_TENSOR)
            status = rp_set_grad(leaf, g->tensor);
    }
    if (args != few) rp__free(args);
    return status;
}

static rp_status run_object(specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    if (s->moves_gradients) return run_with_gradients(s, in, n_in, out, n_out);
    if (!s->object) return rp__ir_run(s->trace.ir, in, n_in, out, n_out, NULL);
    rp_status status = s->engine->run(s->object, in, n_in, out, n_out);
    if (status == RP_OK && s->engine->settled && !s->repeats && !s->trace.switched)
        atomic_store_explicit(&s->program, s->engine->settled(s->object), memory_order_release);
    return status;
}

static rp_status run_in_scope(specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_scope scope = rp__scope_begin();
    rp_status status = run_object(s, in, n_in, out, n_out);
    if (RP__UNLIKELY(s->repeats) && status == RP_OK) { /* one handle, as from the function itself */
        const rp__ir_value *v = s->trace.ir->body.results;
        for (size_t k = 1; k < n_out; k++) {
            size_t first = 0;
            while (v[first] != v[k]) first++;
            if (v[k] != RP__IR_NONE) out[k] = out[first];
        }
    }
    return rp__callable_end(scope, status, out, n_out);
}

static rp_status run(specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    /* A graph that nobody can go back through holds its own derivatives already: no tape. For training there is one, also
       where grad mode is off and the function has switched it on. */
    const bool off = rp__grad_disabled;
    rp__grad_disabled = !s->trace.training;
    rp__executable *p = atomic_load_explicit(&s->program, memory_order_acquire);
    rp_status status =
        p ? rp__executable_run(p, in, n_in, out, n_out, NULL, 0, NULL) : run_in_scope(s, in, n_in, out, n_out);
    rp__grad_disabled = s->trace.switched != off; /* as the function leaves it */
    return status;
}

/* A program is never for training (rp__engine.settled). */
static inline rp_status run_alone(rp__executable *p, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const bool off = rp__grad_disabled;
    rp__grad_disabled = true;
    rp_status status = rp__executable_run_alone(p, in, n_in, out, n_out);
    rp__grad_disabled = off;
    return status;
}

/* ---- symbols of a changed call */

typedef struct pattern { /* words of arguments whose sizes changed; NULL entries: as the tensor */
    rp__symbols *symbols;
    rp_dim (*size)[RP_MAX_DIMS], (*stride)[RP_MAX_DIMS];
    const rp_dim **sizes, **strides;
} pattern;

static void pattern_free(pattern *p) {
    rp__symbols_release(p->symbols);
    rp__free(p->size);
    rp__free(p->stride);
    rp__free(p->sizes);
    rp__free(p->strides);
}

typedef struct pair { /* what a dynamic dim was and is: dims that agree in both share a symbol */
    int64_t old, now;
    rp_dim word;
} pair;

static rp_status pattern_make(const specialisation *from, rp_tensor *const *in, size_t n_in, bool all_same,
                              pattern *p) {
    pair *pairs = NULL;
    size_t n = 0, capacity = 0;
    rp_status status = RP_OK;
    *p = (pattern){.symbols = rp__symbols_new()};
    p->size = rp__calloc(n_in + 1, sizeof *p->size);
    p->stride = rp__calloc(n_in + 1, sizeof *p->stride);
    p->sizes = rp__calloc(n_in + 1, sizeof *p->sizes);
    p->strides = rp__calloc(n_in + 1, sizeof *p->strides);
    if (!p->symbols || !p->size || !p->stride || !p->sizes || !p->strides) return RP__OOM("symbolic sizes");
    for (size_t k = 0; k < n_in && status == RP_OK; k++) {
        const rp_tensor *t = in[k];
        rp_dim *size = p->size[k], *stride = p->stride[k];
        bool any = false;
        for (unsigned d = 0; d < t->ndim && status == RP_OK; d++) {
            bool symbolic;
            int64_t old = rp__guards_size(&from->guards, k, d, &symbolic), now = t->size[d];
            size[d] = now;
            if (!symbolic && (old == now || all_same)) continue;
            size_t i = 0;
            while (i < n && (pairs[i].old != old || pairs[i].now != now)) i++;
            if (i == n) {
                rp__symbol s = {.input = (uint32_t)k, .dim = (uint8_t)d, .hint = now};
                if (!RP__GROW(&pairs, &capacity, n + 1)) {
                    status = RP__OOM("symbolic sizes");
                    break;
                }
                pairs[n++] = (pair){old, now, rp__symbols_add(p->symbols, &s)};
            }
            size[d] = pairs[i].word;
            any = true;
        }
        if (!any || status != RP_OK) {
            memcpy(stride, t->stride, t->ndim * sizeof *stride);
            continue;
        }
        if (rp__tensor_contiguous(t)) {
            rp__symbols *outer = rp__symbols_enter(p->symbols);
            rp__contiguous_strides(size, t->ndim, stride);
            (void)rp__symbols_enter(outer);
        } else {
            for (unsigned d = 0; d < t->ndim; d++) {
                bool symbolic;
                int64_t old = rp__guards_stride(&from->guards, k, d, &symbolic);
                rp__symbol s = {.input = (uint32_t)k, .dim = (uint8_t)d, .is_stride = true, .hint = t->stride[d]};
                stride[d] = symbolic || old != t->stride[d] ? rp__symbols_add(p->symbols, &s) : t->stride[d];
            }
        }
        p->sizes[k] = size;
        p->strides[k] = stride;
    }
    rp__free(pairs);
    return status == RP_OK && rp_failed() ? rp_error_status() : status;
}

/* ---- tracing again without computing */

static rp_status trace_abstract(compiled *c, const pattern *p, rp_tensor *const *in, size_t n_in, size_t n_out,
                                rp__trace_result *result) {
    rp__trace_request request = {.mode = RP__TRACE_ABSTRACT, .fn = c->base.fn, .in = in, .n_in = n_in, .n_out = n_out};
    if (p) {
        request.symbols = p->symbols;
        request.sizes = p->sizes;
        request.strides = p->strides;
    }
    return rp__trace_run(&request, NULL, result);
}

/* Why the graph of a trace may not stand for the function. */
static rp__reason unusable(const rp__trace_result *r) {
    return r->reason    ? rp__reason_find(r->reason)
           : r->left    ? RP__REASON_BACKWARD_LEAVES
           : r->escaped ? RP__REASON_TENSOR_ESCAPES
                        : RP__REASON_NONE;
}

static bool same_outside(const rp__trace_result *a, const rp__trace_result *b) {
    if (a->ir->n_captured != b->ir->n_captured || a->n_grads != b->n_grads) return false;
    for (size_t i = 0; i < a->ir->n_captured; i++) {
        if (a->ir->captured[i] != b->ir->captured[i]) return false;
    }
    for (size_t i = 0; i < a->n_grads; i++) {
        if (a->grads[i].leaf != b->grads[i].leaf || a->grads[i].at_exit != b->grads[i].at_exit) return false;
    }
    return true;
}

/* Was a tensor that the function reaches by itself an argument when s was recorded? Then the graph of that call has the
   argument in its place, which no other call could know. */
static bool was_argument(const specialisation *s, const rp_ir *again, size_t n_in) {
    for (size_t i = 0; i < again->n_captured; i++) {
        for (size_t k = 0; k < n_in; k++)
            if (again->captured[i]->id == s->arg_ids[k]) return true;
    }
    return false;
}

static bool ctx_changed(const specialisation *s, rp_fn fn) {
    return s->guards.ctx_bytes && memcmp(s->guards.ctx_copy, fn.ctx, s->guards.ctx_bytes) != 0;
}

/* What tracing a call again shows. */
typedef enum verdict {
    PURE,
    OTHER_CALL, /* the specialisation does not stand for this call, another may */
    FAILS,      /* without computing, the function fails: so may the call */
    UNUSABLE    /* from now on the function runs at every call */
} verdict;

/* Traces the call again and compares. Not RP_OK: out of memory. */
static rp_status trace_again(compiled *c, specialisation *s, rp_tensor *const *in, size_t n_in, size_t n_out,
                             verdict *v, rp__trace_result *again, rp__reason *reason, rp__text *detail) {
    pattern p = {0};
    rp__error_state before;
    rp__error_save(&before);
    rp_status status = s->symbolic ? pattern_make(s, in, n_in, true, &p) : RP_OK;
    rp__hash hash;
    *v = PURE;
    if (status == RP_OK) {
        rp_status traced = trace_abstract(c, s->symbolic ? &p : NULL, in, n_in, n_out, again);
        if (traced == RP_ERROR_OUT_OF_MEMORY) {
            status = traced;
        } else if (traced != RP_OK) {
            *v = again->reason ? UNUSABLE : FAILS;
            *reason = again->reason ? rp__reason_find(again->reason) : RP__REASON_TRACE_FAILED;
            rp__text_puts(detail, rp_error_message());
        } else if ((*reason = unusable(again)) != RP__REASON_NONE) {
            *v = UNUSABLE;
            rp__text_puts(detail, again->site ? again->site : "");
        } else if (ctx_changed(s, c->base.fn)) {
            *v = UNUSABLE;
            *reason = RP__REASON_CTX_CHANGES;
        } else if ((status = rp__ir_hash(again->ir, &hash)) == RP_OK &&
                   (!rp__hash_equal(hash, s->hash) || !same_outside(again, &s->trace))) {
            *v = was_argument(s, again->ir, n_in) ? OTHER_CALL : UNUSABLE;
            *reason = RP__REASON_IMPURE;
            if (rp__hash_equal(hash, s->hash))
                rp__text_puts(detail, "it uses other tensors from outside");
            else
                again->site = rp__ir_diff(s->trace.ir, again->ir, detail);
        }
    }
    if (status == RP_OK) (void)rp_error_take();
    rp__error_restore(&before);
    pattern_free(&p);
    return status;
}

/* ---- trace-and-flush */

static void segment_free(const compiled *c, segment *s) {
    if (s->object) c->engine->destroy(s->object);
    rp__explain_close(s->explain);
    rp__free(s);
}

static void segments_clear(compiled *c) {
    size_t at = 0;
    void *value;
    rp__hash key;
    while (rp__map_next(&c->segments, &at, &key, &value)) segment_free(c, value);
    rp__map_free(&c->segments);
    c->segments = (rp__map){0};
}

static rp_status run_segment(void *ctx, rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    compiled *c = ctx;
    rp__hash hash;
    RP_TRY(rp__ir_hash(ir, &hash));
    segment *s = rp__map_get(&c->segments, hash);
    if (!s) {
        if (c->segments.count >= SEGMENT_LIMIT) segments_clear(c);
        s = rp__calloc(1, sizeof *s);
        if (!s) return RP__OOM("segment");
        s->explain = rp__explain_open(c->base.explain, "segment %zu", ++c->n_segments);
        const rp__engine_request request = {.graph = ir, .segment = true, .explain = s->explain};
        rp_status status = compile(c, &request, &s->object);
        if (status != RP_OK || !rp__map_put(&c->segments, hash, s)) {
            segment_free(c, s);
            return status != RP_OK ? status : RP__OOM("segment");
        }
        rp__explain_add(s->explain, "specialisation", RP__REASON_NONE, NULL, 1, "segment of %zu nodes",
                        ir->body.n_nodes);
    }
    return s->object ? c->engine->run(s->object, in, n_in, out, n_out) : rp__ir_run(ir, in, n_in, out, n_out, NULL);
}

/* Under fullgraph the values are true, and the call is an error all the same. */
static rp_status fullgraph_error(const compiled *c) {
    return rp__fail(RP_ERROR_GRAPH_BREAK, "%s: %s, and fullgraph was asked for: %s", c->base.name,
                    rp__reason_text(c->lazy_reason), c->lazy_site);
}

static rp_status run_lazy(compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__trace_result result = {0};
    rp__trace_request request = {.mode = RP__TRACE_SEGMENTS,
                                 .fn = c->base.fn,
                                 .in = in,
                                 .n_in = n_in,
                                 .n_out = n_out,
                                 .run = run_segment,
                                 .run_ctx = c};
    rp_status status = rp__trace_run(&request, out, &result);
    rp__trace_result_free(&result);
    return status;
}

static rp_status call_lazy(compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_status status = run_lazy(c, in, n_in, out, n_out);
    return status == RP_OK && c->options.fullgraph ? fullgraph_error(c) : status;
}

/* A call of which an abstract trace fails: if the function fails here, too, that is all that there is to it; the next call may
   fare better. Otherwise it cannot be traced, and runs at every call. */
static rp_status call_that_fails(compiled *c, const char *detail, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                 size_t n_out) {
    RP_TRY(run_lazy(c, in, n_in, out, n_out));
    become_lazy(c, RP__REASON_TRACE_FAILED, NULL, detail);
    return c->options.fullgraph ? fullgraph_error(c) : RP_OK;
}

/* ---- a call that no specialisation serves */

static rp_status call_first(compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__trace_result result = {0};
    rp_fn fn = c->base.fn;
    const uint64_t environment = rp__guards_environment();
    size_t bytes = fn.ctx ? fn.ctx_bytes : 0;
    void *ctx = rp__alloc(bytes ? bytes : 1);
    if (!ctx) return RP__OOM("compiled function");
    if (bytes) memcpy(ctx, fn.ctx, bytes);
    rp__trace_request request = {
        .mode = RP__TRACE_FUNCTION, .fn = fn, .in = in, .n_in = n_in, .n_out = n_out, .run = run_segment, .run_ctx = c};
    /* .grad of arguments and captured tensors as the guards must find it: as it was before. */
    rp_status status = rp__trace_run(&request, out, &result);
    rp__reason reason = status == RP_OK ? unusable(&result) : RP__REASON_NONE;
    if (status == RP_OK && reason == RP__REASON_NONE && bytes && memcmp(ctx, fn.ctx, bytes) != 0)
        reason = RP__REASON_CTX_CHANGES;
    rp__free(ctx);
    if (status == RP_OK && reason != RP__REASON_NONE) {
        become_lazy(c, reason, result.site, NULL);
        if (c->options.fullgraph) status = fullgraph_error(c);
    } else if (status == RP_OK) {
        specialisation *s;
        status = specialise(c, &result, environment, in, n_in, n_out, NULL, NULL, &s);
    }
    rp__trace_result_free(&result);
    return status;
}

/* Records the call with changed sizes as symbols, and runs what came of it. */
static rp_status call_symbolic(compiled *c, const specialisation *from, rp_tensor *const *in, size_t n_in,
                               rp_tensor **out, size_t n_out) {
    pattern p;
    rp__trace_result result = {0};
    const uint64_t environment = rp__guards_environment();
    rp__error_state before;
    rp__error_save(&before);
    rp__reason reason = RP__REASON_NONE;
    rp__text detail = {0};
    rp_status status = pattern_make(from, in, n_in, false, &p);
    specialisation *s = NULL;
    if (status == RP_OK) {
        rp_status traced = trace_abstract(c, &p, in, n_in, n_out, &result);
        if (traced == RP_ERROR_OUT_OF_MEMORY)
            status = traced;
        else if (traced != RP_OK)
            reason = result.reason ? rp__reason_find(result.reason) : RP__REASON_TRACE_FAILED;
        else
            reason = unusable(&result);
    }
    if (status == RP_OK && reason == RP__REASON_NONE) {
        status = specialise(c, &result, environment, in, n_in, n_out, p.sizes, p.strides, &s);
        if (status == RP_OK) status = run(s, in, n_in, out, n_out);
    } else if (status == RP_OK && reason == RP__REASON_TRACE_FAILED) {
        rp__text_puts(&detail, rp_error_message());
        (void)rp_error_take();
        status = call_that_fails(c, detail.data, in, n_in, out, n_out);
    } else if (status == RP_OK) {
        (void)rp_error_take();
        become_lazy(c, reason, result.site, NULL);
        status = call_lazy(c, in, n_in, out, n_out);
    }
    rp__text_free(&detail);
    rp__error_restore(&before);
    rp__trace_result_free(&result);
    pattern_free(&p);
    return status;
}

/* The bytes of ctx in which two specialisations differ. */
static void differing(const specialisation *a, const specialisation *b, size_t *first, size_t *last) {
    const unsigned char *x = a->guards.ctx_copy, *y = b->guards.ctx_copy;
    *first = *last = SIZE_MAX;
    for (size_t i = 0; i < a->guards.ctx_bytes && i < b->guards.ctx_bytes; i++) {
        if (x[i] == y[i]) continue;
        if (*first == SIZE_MAX) *first = i;
        *last = i;
    }
}

/* After a call that was recorded anew because bytes of ctx differed from those of the most recent specialisation. */
static void advise_ctx(compiled *c) {
    enum { MANY = 4 };
    specialisation *now = c->list, *before = now ? now->next : NULL;
    size_t first, last;
    if (!before) return;
    differing(before, now, &first, &last);
    if (first == SIZE_MAX) return;
    if (rp__hash_equal(now->hash, before->hash) && same_outside(&now->trace, &before->trace))
        rp__explain_advise(c->base.explain, RP__REASON_CTX_PADDING, NULL, c->base.name, "bytes %zu to %zu of ctx: %s",
                           first, last, rp__reason_text(RP__REASON_CTX_PADDING));
    else if (++c->ctx_misses >= MANY)
        rp__explain_advise(c->base.explain, RP__REASON_CTX_NUMBER, NULL, c->base.name,
                           "bytes %zu to %zu of ctx, %u times: %s", first, last, c->ctx_misses,
                           rp__reason_text(RP__REASON_CTX_NUMBER));
}

/* Arguments that come with the history of many calls of one line. */
static void advise_history(compiled *c, rp_tensor *const *in, size_t n_in) {
    for (size_t k = 0; k < n_in; k++) {
        const rp__tape_node *node = in[k]->autograd ? in[k]->autograd->node : NULL;
        if (node && node->repeats >= RP__TAPE_REPEATS_ADVICE)
            rp__explain_advise(c->base.explain, RP__REASON_SUM_OVER_STEPS, node->site, c->base.name, "argument %zu: %s",
                               k, rp__reason_text(RP__REASON_SUM_OVER_STEPS));
    }
}

static rp_status call_miss(compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    specialisation *from = NULL;
    for (specialisation *s = c->list; s && !from; s = s->next) {
        if (s->n_out == n_out && rp__guards_only_sizes(&s->guards, c->base.fn, in, n_in)) from = s;
    }
    rp__reason reason = RP__REASON_NONE;
    if (c->list) {
        rp__text t = {0};
        reason = rp__guards_explain(from ? &from->guards : &c->list->guards, c->base.fn, in, n_in, &t);
        const char *text = t.data ? t.data : rp__reason_text(reason);
        rp__explain_add(c->base.explain, "guard", reason, NULL, 1, "%s", text);
        rp__log(RP__LOG_GUARDS, "%s: recorded anew: %s", c->base.name, text);
        rp__text_free(&t);
    }
    advise_history(c, in, n_in);
    if (from && !c->options.static_sizes) return call_symbolic(c, from, in, n_in, out, n_out);
    const specialisation *before = c->list;
    rp_status status = call_first(c, in, n_in, out, n_out);
    if (reason == RP__REASON_GUARD_CTX && c->list != before) advise_ctx(c);
    return status;
}

/* Before s serves the call. *served: it does not, this was the call. */
static rp_status check_purity(compiled *c, specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                              size_t n_out, bool *served) {
    rp__trace_result again = {0};
    rp__text detail = {0};
    rp__reason reason = RP__REASON_NONE;
    verdict v;
    rp_status status = trace_again(c, s, in, n_in, n_out, &v, &again, &reason, &detail);
    const char *text = detail.data && *detail.data ? detail.data : NULL;
    for (size_t k = 0; k < n_in && status == RP_OK && v == PURE && again.reached; k++)
        if (again.reached[k]) status = rp__guards_only(&s->guards, k, in[k]);
    *served = status == RP_OK && v != PURE;
    if (*served && v == OTHER_CALL) {
        drop(c, s);
        status = call_first(c, in, n_in, out, n_out);
    } else if (*served && v == FAILS) {
        s->calls--; /* the next call is looked at again */
        status = call_that_fails(c, text, in, n_in, out, n_out);
    } else if (*served) {
        become_lazy(c, reason, again.site, text);
        if (c->options.fullgraph || c->options.strict) {
            status = rp__fail(RP_ERROR_GUARD, "%s: %s%s%s", c->base.name, rp__reason_text(reason), text ? ": " : "",
                              text ? text : "");
        } else {
            drop(c, s);
            status = call_lazy(c, in, n_in, out, n_out);
        }
    }
    rp__text_free(&detail);
    rp__trace_result_free(&again);
    return status;
}

/* The specialisation whose guards hold, first in the list and one call older; NULL: none. Under the lock. */
static inline specialisation *find(compiled *c, rp_tensor *const *in, size_t n_in, size_t n_out) {
    if (RP__UNLIKELY(c->lazy)) return NULL;
    for (specialisation **link = &c->list, *s; (s = *link); link = &s->next) {
        if (s->n_out != n_out || !rp__guards_hold(&s->guards, c->base.fn, in, n_in)) continue;
        if (RP__UNLIKELY(link != &c->list)) use_first(c, s, link);
        s->calls++;
        return s;
    }
    return NULL;
}

/* The first call made it; this is the second, or a turn of `purity`. A symbolic one has run once already. */
static inline bool is_to_be_checked(const compiled *c, const specialisation *s) {
    return s->calls == 1 || (c->options.purity > 0 && s->calls % (uint64_t)c->options.purity == 0);
}

/* A call that no specialisation serves, or one that is to be checked. Under the lock; *served: it was the call. */
static __attribute__((noinline)) rp_status trace_call(compiled *c, specialisation *s, rp_tensor *const *in, size_t n_in,
                                                      rp_tensor **out, size_t n_out, bool *served) {
    rp_scope scope = rp__scope_begin();
    rp_status status;
    rp__error_state before; /* of the program: what is tried here takes back its own */
    rp__error_save(&before);
    *served = true;
    if (s)
        status = check_purity(c, s, in, n_in, out, n_out, served);
    else if (c->lazy)
        status = call_lazy(c, in, n_in, out, n_out);
    else
        status = call_miss(c, in, n_in, out, n_out);
    rp__error_restore(&before);
    return rp__callable_end(scope, status, out, n_out);
}

/* Ops of the function would refuse what is gone by now. */
static __attribute__((noinline)) rp_status check_replayed(const compiled *c, const specialisation *s,
                                                          const char *site) {
    rp_status status = RP_OK;
    rp__site_frame frame = rp__site_push(site, NULL);
    for (size_t k = 0; k < s->trace.ir->n_captured && status == RP_OK; k++) {
        char what[128];
        snprintf(what, sizeof what, "%s: captured tensor %zu", c->base.name, k);
        if (s->trace.ir->captured[k]) status = rp__tensor_check(s->trace.ir->captured[k], what);
    }
    rp__site_pop(frame);
    return status;
}

/* As it was when it was made. Calls that run without the lock go on with what they have. */
static __attribute__((noinline)) void reset(compiled *c, uint64_t now) {
    c->resets = now;
    while (c->list) drop(c, c->list);
    segments_clear(c);
    c->lazy = false;
    atomic_store_explicit(&c->given, 0, memory_order_relaxed);
}

void rp_compile_reset(void) { atomic_fetch_add_explicit(&resets, 1, memory_order_relaxed); }

static rp_status compiled_call(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                               size_t n_out) {
    compiled *c = (compiled *)f;
    if (RP__UNLIKELY(c->engine->tags & RP__ENGINE_RUNS_FUNCTION)) return plain_call(f, site, in, n_in, out, n_out);
    rp__lock(&c->lock);
    const uint64_t now = atomic_load_explicit(&resets, memory_order_relaxed);
    if (RP__UNLIKELY(c->resets != now)) reset(c, now);
    specialisation *s = find(c, in, n_in, n_out);
    if (RP__UNLIKELY(s && s->holds_replayed)) {
        rp_status status = check_replayed(c, s, site);
        if (status != RP_OK) {
            rp__unlock(&c->lock);
            return status;
        }
    }
    if (RP__UNLIKELY(!s || is_to_be_checked(c, s))) {
        bool served;
        rp_status status = trace_call(c, s, in, n_in, out, n_out, &served);
        if (served || status != RP_OK) {
            rp__unlock(&c->lock);
            return status;
        }
    }
    /* Calls that run without the lock (the first ones, before the program was known) hold a reference each. */
    const bool alone = c->alone && atomic_load_explicit(&s->refs, memory_order_acquire) == 1;
    rp__executable *p = alone ? atomic_load_explicit(&s->program, memory_order_acquire) : NULL;
    if (RP__LIKELY(p != NULL)) {
        rp_status status = run_alone(p, in, n_in, out, n_out);
        rp__unlock(&c->lock);
        return status;
    }
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    rp__unlock(&c->lock);
    rp_status status = run(s, in, n_in, out, n_out);
    specialisation_release(s);
    return status;
}

static void compiled_destroy(rp_compiled *f) {
    compiled *c = (compiled *)f;
    while (c->list) {
        specialisation *s = c->list;
        c->list = s->next;
        specialisation_release(s);
    }
    segments_clear(c);
    rp__instances_release(c->instances);
    (void)pthread_mutex_destroy(&c->lock);
    rp__handle_free(c);
}

rp_compiled *rp_compile_at(const char *site, rp_fn fn, const rp_compile_options *options) {
    RP__CALLED_FROM(site);
    static const rp__callable_ops ops = {"compiled", compiled_call, compiled_destroy};
    rp_compile_options o;
    if (!fn.body || (fn.ctx_bytes && !fn.ctx)) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT,
                       "rp_compile: the function is NULL, or ctx_bytes is given without ctx");
        return rp__callable_failed();
    }
    if (rp__options_read("rp_compile", options, sizeof o, &o) != RP_OK) return rp__callable_failed();
    if (o.purity < 0) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile: a negative purity, %d", o.purity);
        return rp__callable_failed();
    }
    if ((unsigned)o.layout > RP_LAYOUT_FORKS) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile: %d is no rp_graph_layout", (int)o.layout);
        return rp__callable_failed();
    }
    const rp__engine *engine = rp__engine_find(o.backend);
    if (!engine) return rp__callable_failed();
    o.backend = engine->name;
    compiled *c = rp__handle_new("function", sizeof *c);
    if (!c || rp__callable_begin(&c->base, &ops, fn) != RP_OK) {
        (void)RP__OOM("compiled function");
        rp__handle_free(c);
        return rp__callable_failed();
    }
    (void)pthread_mutex_init(&c->lock, NULL);
    c->engine = engine;
    c->options = o;
    c->alone = true;
    c->resets = atomic_load_explicit(&resets, memory_order_relaxed);
    c->instances = rp__instances_new(o.instance_limit, o.instance_bytes);
    if (!c->instances) {
        rp_compiled_release(&c->base);
        return rp__callable_failed();
    }
    if (fn.ctx && !fn.ctx_bytes && !(engine->tags & RP__ENGINE_RUNS_FUNCTION))
        rp__explain_advise(c->base.explain, RP__REASON_CTX_UNGUARDED, NULL, c->base.name, "%s",
                           rp__reason_text(RP__REASON_CTX_UNGUARDED));
    return &c->base;
}

/* ---- explain */

size_t rp_explain_count_at(const char *site, rp_compiled *f) {
    RP__CALLED_FROM(site);
    if (f && !f->ops && f != rp__callable_failed()) {
        (void)rp__callable_refuse(f, "rp_explain_count");
        return 0;
    }
    if (!f || !f->ops) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_explain_count: the function is NULL or was not made");
        return 0;
    }
    return rp__explain_count(f->explain);
}

rp_status rp_explain_at_at(const char *site, rp_compiled *f, size_t index, rp_explain_entry *entry) {
    RP__CALLED_FROM(site);
    if (f && !f->ops && f != rp__callable_failed()) return rp__callable_refuse(f, "rp_explain_at");
    if (!f || !f->ops || !entry) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_explain_at: an argument is NULL");
    if (rp__explain_at(f->explain, index, entry)) return RP_OK;
    return rp__fail(RP_ERROR_INDEX, "rp_explain_at: there is no entry %zu", index);
}
