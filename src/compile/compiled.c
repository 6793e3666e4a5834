/* rp_compile: the front end of the compiler. A compiled function is a list of specialisations, most recently used first; each is
   guards, a graph and the backend's object. The first call records and computes as it goes; the second traces again and
   compares (purity); a call that differs in sizes only is traced with those sizes as symbols. A function that cannot be one
   graph becomes trace-and-flush: it runs at every call, and its segments are looked up by hash. */
#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "compile/compiled_parts.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"

static _Atomic uint64_t resets; /* calls of rp_compile_reset */

static rp_status call_first(rp__compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__trace_result result = {0};
    rp_fn fn = c->base.fn;
    const uint64_t environment = rp__guards_environment();
    size_t bytes = fn.ctx ? fn.ctx_bytes : 0;
    void *ctx = rp__alloc(bytes ? bytes : 1);
    if (!ctx) return RP__OOM("compiled function");
    if (bytes) memcpy(ctx, fn.ctx, bytes);
    /* .grad of arguments and captured tensors as the guards must find it: as it was before. */
    rp_status status = rp__segments_trace(c, RP__TRACE_FUNCTION, in, n_in, out, n_out, &result);
    rp__reason reason = status == RP_OK ? rp__retrace_unusable(&result) : RP__REASON_NONE;
    if (status == RP_OK && reason == RP__REASON_NONE && bytes && memcmp(ctx, fn.ctx, bytes) != 0)
        reason = RP__REASON_CTX_CHANGES;
    rp__free(ctx);
    if (status == RP_OK && reason != RP__REASON_NONE) {
        rp__segments_only(c, reason, result.site, NULL);
        if (c->options.fullgraph) status = rp__segments_fullgraph(c);
    } else if (status == RP_OK) {
        rp__specialisation *s;
        status = rp__specialisation_make(c, &result, environment, in, n_in, n_out, NULL, NULL, &s);
    }
    rp__trace_result_free(&result);
    return status;
}

/* Records the call with changed sizes as symbols, and runs what came of it. */
static rp_status call_symbolic(rp__compiled *c, const rp__specialisation *from, rp_tensor *const *in, size_t n_in,
                               rp_tensor **out, size_t n_out) {
    rp__pattern p;
    rp__trace_result result = {0};
    const uint64_t environment = rp__guards_environment();
    rp__error_state before;
    rp__error_save(&before);
    rp__reason reason = RP__REASON_NONE;
    rp__text detail = {0};
    rp_status status = rp__pattern_make(from, in, n_in, &p);
    rp__specialisation *s = NULL;
    if (status == RP_OK) {
        rp_status traced = rp__retrace_abstract(c, &p, in, n_in, n_out, &result);
        if (traced == RP_ERROR_OUT_OF_MEMORY)
            status = traced;
        else if (traced != RP_OK)
            reason = result.reason ? rp__reason_find(result.reason) : RP__REASON_TRACE_FAILED;
        else
            reason = rp__retrace_unusable(&result);
    }
    if (status == RP_OK && reason == RP__REASON_NONE) {
        status = rp__specialisation_make(c, &result, environment, in, n_in, n_out, p.sizes, p.strides, &s);
        if (status == RP_OK) s->by_rows = p.by_rows, p.by_rows = NULL;
        if (status == RP_OK) status = rp__specialisation_run(s, in, n_in, out, n_out);
    } else if (status == RP_OK && reason == RP__REASON_TRACE_FAILED) {
        rp__text_puts(&detail, rp_error_message());
        (void)rp_error_take();
        status = rp__segments_call_failing(c, detail.data, in, n_in, out, n_out);
    } else if (status == RP_OK) {
        (void)rp_error_take();
        rp__segments_only(c, reason, result.site, NULL);
        status = rp__segments_call(c, in, n_in, out, n_out);
    }
    rp__text_free(&detail);
    rp__error_restore(&before);
    rp__trace_result_free(&result);
    rp__pattern_free(&p);
    return status;
}

/* The bytes of ctx in which two specialisations differ. */
static void differing(const rp__specialisation *a, const rp__specialisation *b, size_t *first, size_t *last) {
    const unsigned char *x = a->guards.ctx_copy, *y = b->guards.ctx_copy;
    *first = *last = SIZE_MAX;
    for (size_t i = 0; i < a->guards.ctx_bytes && i < b->guards.ctx_bytes; i++) {
        if (x[i] == y[i]) continue;
        if (*first == SIZE_MAX) *first = i;
        *last = i;
    }
}

/* After a call that was recorded anew because bytes of ctx differed from those of the most recent specialisation. */
static void advise_ctx(rp__compiled *c) {
    enum { MANY = 4 };
    rp__specialisation *now = c->list, *before = now ? now->next : NULL;
    size_t first, last;
    if (!before) return;
    differing(before, now, &first, &last);
    if (first == SIZE_MAX) return;
    if (rp__hash_equal(now->hash, before->hash) && rp__retrace_same_outside(&now->trace, &before->trace))
        rp__explain_advise(c->base.explain, RP__REASON_CTX_PADDING, NULL, c->base.name, "bytes %zu to %zu of ctx: %s",
                           first, last, rp__reason_text(RP__REASON_CTX_PADDING));
    else if (++c->ctx_misses >= MANY)
        rp__explain_advise(c->base.explain, RP__REASON_CTX_NUMBER, NULL, c->base.name,
                           "bytes %zu to %zu of ctx, %u times: %s", first, last, c->ctx_misses,
                           rp__reason_text(RP__REASON_CTX_NUMBER));
}

/* Arguments that come with the history of many calls of one line. */
static void advise_history(rp__compiled *c, rp_tensor *const *in, size_t n_in) {
    for (size_t k = 0; k < n_in; k++) {
        const rp__tape_node *node = in[k]->autograd ? in[k]->autograd->node : NULL;
        if (node && node->repeats >= RP__TAPE_REPEATS_ADVICE)
            rp__explain_advise(c->base.explain, RP__REASON_SUM_OVER_STEPS, node->site, c->base.name, "argument %zu: %s",
                               k, rp__reason_text(RP__REASON_SUM_OVER_STEPS));
    }
}

static rp_status call_miss(rp__compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__specialisation *from = NULL;
    for (rp__specialisation *s = c->list; s && !from; s = s->next) {
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
    const rp__specialisation *before = c->list;
    rp_status status = call_first(c, in, n_in, out, n_out);
    if (reason == RP__REASON_GUARD_CTX && c->list != before) advise_ctx(c);
    return status;
}

/* Before s serves the call. *served: it does not, this was the call. */
static rp_status check_purity(rp__compiled *c, rp__specialisation *s, rp_tensor *const *in, size_t n_in,
                              rp_tensor **out, size_t n_out, bool *served) {
    rp__trace_result again = {0};
    rp__text detail = {0};
    rp__reason reason = RP__REASON_NONE;
    rp__verdict v;
    rp_status status = rp__retrace(c, s, in, n_in, n_out, &v, &again, &reason, &detail);
    const char *text = detail.data && *detail.data ? detail.data : NULL;
    for (size_t k = 0; k < n_in && status == RP_OK && v == RP__RETRACE_PURE && again.reached; k++)
        if (again.reached[k]) status = rp__guards_only(&s->guards, k, in[k]);
    *served = status == RP_OK && v != RP__RETRACE_PURE;
    if (*served && v == RP__RETRACE_OTHER_CALL) {
        rp__specialisation_drop(c, s);
        status = call_first(c, in, n_in, out, n_out);
    } else if (*served && v == RP__RETRACE_FAILS) {
        s->calls--; /* the next call is looked at again */
        status = rp__segments_call_failing(c, text, in, n_in, out, n_out);
    } else if (*served) {
        rp__segments_only(c, reason, again.site, text);
        if (c->options.fullgraph || c->options.strict) {
            status = rp__fail(RP_ERROR_GUARD, "%s: %s%s%s", c->base.name, rp__reason_text(reason), text ? ": " : "",
                              text ? text : "");
        } else {
            rp__specialisation_drop(c, s);
            status = rp__segments_call(c, in, n_in, out, n_out);
        }
    }
    rp__text_free(&detail);
    rp__trace_result_free(&again);
    return status;
}

static void use_first(rp__compiled *c, rp__specialisation *s, rp__specialisation **link) {
    *link = s->next;
    s->next = c->list;
    c->list = s;
}

/* The specialisation whose guards hold, first in the list and one call older; NULL: none. Under the lock. */
static inline rp__specialisation *find(rp__compiled *c, rp_tensor *const *in, size_t n_in, size_t n_out) {
    if (RP__UNLIKELY(c->lazy)) return NULL;
    for (rp__specialisation **link = &c->list, *s; (s = *link); link = &s->next) {
        if (s->n_out != n_out || !rp__guards_hold(&s->guards, c->base.fn, in, n_in)) continue;
        if (RP__UNLIKELY(link != &c->list)) use_first(c, s, link);
        s->calls++;
        return s;
    }
    return NULL;
}

/* The first call made it; this is the second, or a turn of `purity`. A symbolic one has run once already. */
static inline bool is_to_be_checked(const rp__compiled *c, const rp__specialisation *s) {
    return s->calls == 1 || (c->options.purity > 0 && s->calls % (uint64_t)c->options.purity == 0);
}

/* A call that no specialisation serves, or one that is to be checked. Under the lock; *served: it was the call. */
static __attribute__((noinline)) rp_status trace_call(rp__compiled *c, rp__specialisation *s, rp_tensor *const *in,
                                                      size_t n_in, rp_tensor **out, size_t n_out, bool *served) {
    rp_scope scope = rp__scope_begin();
    rp_status status;
    rp__error_state before; /* of the program: what is tried here takes back its own */
    rp__error_save(&before);
    *served = true;
    if (s)
        status = check_purity(c, s, in, n_in, out, n_out, served);
    else if (c->lazy)
        status = rp__segments_call(c, in, n_in, out, n_out);
    else
        status = call_miss(c, in, n_in, out, n_out);
    rp__error_restore(&before);
    return rp__callable_end(scope, status, out, n_out);
}

/* Ops of the function would refuse what is gone by now. */
static __attribute__((noinline)) rp_status check_replayed(const rp__compiled *c, const rp__specialisation *s,
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
static __attribute__((noinline)) void reset(rp__compiled *c, uint64_t now) {
    c->resets = now;
    while (c->list) rp__specialisation_drop(c, c->list);
    rp__segments_clear(c);
    c->lazy = false;
    atomic_store_explicit(&c->given, 0, memory_order_relaxed);
}

void rp_compile_reset(void) { atomic_fetch_add_explicit(&resets, 1, memory_order_relaxed); }

/* A program is never for training (rp__engine.settled). */
static inline rp_status run_alone(rp__executable *p, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const bool off = rp__flags.grad_disabled;
    rp__flags.grad_disabled = true;
    rp_status status = rp__executable_run_alone(p, in, n_in, out, n_out);
    rp__flags.grad_disabled = off;
    return status;
}

/* With the lock, which it gives back. A function that is released meanwhile waits for it, or for the hold. */
static inline __attribute__((always_inline)) rp_status
compiled_serve(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__compiled *c = (rp__compiled *)f;
    if (RP__UNLIKELY(!f->ops)) {
        rp__unlock(&c->lock);
        return rp__callable_refuse(f, "rp_call");
    }
    const uint64_t now = atomic_load_explicit(&resets, memory_order_relaxed);
    if (RP__UNLIKELY(c->resets != now)) reset(c, now);
    rp__specialisation *s = find(c, in, n_in, n_out);
    if (RP__UNLIKELY(s && s->holds_replayed)) {
        rp_status status = check_replayed(c, s, site);
        if (status != RP_OK) {
            rp__unlock(&c->lock);
            return status;
        }
    }
    if (RP__UNLIKELY(!s || is_to_be_checked(c, s))) {
        bool served;
        (void)rp__callable_hold(f); /* it is not released under the lock */
        rp_status status = trace_call(c, s, in, n_in, out, n_out, &served);
        const bool checked = !served && status == RP_OK;
        if (checked) atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
        rp__unlock(&c->lock);
        if (checked) {
            status = rp__specialisation_run(s, in, n_in, out, n_out);
            rp__specialisation_release(s);
        }
        rp__callable_drop(f);
        return status;
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
    (void)rp__callable_hold(f);
    rp__unlock(&c->lock);
    rp_status status = rp__specialisation_run(s, in, n_in, out, n_out);
    rp__specialisation_release(s);
    rp__callable_drop(f);
    return status;
}

/* Who waits holds the function. */
static __attribute__((noinline)) rp_status wait_and_serve(rp_compiled *f, const char *site, rp_tensor *const *in,
                                                          size_t n_in, rp_tensor **out, size_t n_out) {
    if (!rp__callable_hold(f)) return rp__callable_refuse(f, "rp_call");
    rp__lock(&((rp__compiled *)f)->lock);
    rp_status status = compiled_serve(f, site, in, n_in, out, n_out);
    rp__callable_drop(f);
    return status;
}

static rp_status compiled_call(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                               size_t n_out) {
    rp__compiled *c = (rp__compiled *)f;
    if (RP__UNLIKELY(c->engine->tags & RP__ENGINE_RUNS_FUNCTION))
        return rp__callable_plain(f, site, in, n_in, out, n_out);
    if (RP__UNLIKELY(!rp__trylock(&c->lock))) return wait_and_serve(f, site, in, n_in, out, n_out);
    return compiled_serve(f, site, in, n_in, out, n_out);
}

static rp__mutex *compiled_lock(rp_compiled *f) { return &((rp__compiled *)f)->lock; }

static void compiled_destroy(rp_compiled *f) {
    rp__compiled *c = (rp__compiled *)f;
    rp__lock(&c->lock); /* a call that came too late may be about to give it back */
    rp__unlock(&c->lock);
    while (c->list) {
        rp__specialisation *s = c->list;
        c->list = s->next;
        rp__specialisation_release(s);
    }
    rp__segments_clear(c);
    rp__engine_options_free(&c->engine_options);
    rp__free(c->free_strides);
    rp__instances_release(c->instances);
    (void)pthread_mutex_destroy(&c->lock);
    rp__handle_free(c);
}

static rp_status copy_free_strides(rp__compiled *c, const rp_compile_options *o) {
    c->options.free_strides = NULL;
    c->options.n_free_strides = 0;
    if (o->n_free_strides == 0) return RP_OK;
    if (!o->free_strides) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile: free_strides is NULL");
    c->free_strides = rp__calloc(o->n_free_strides, sizeof *c->free_strides);
    if (!c->free_strides) return RP__OOM("compiled function");
    memcpy(c->free_strides, o->free_strides, o->n_free_strides * sizeof *c->free_strides);
    c->options.free_strides = c->free_strides;
    c->options.n_free_strides = o->n_free_strides;
    return RP_OK;
}

static rp_status check_engine_options(const rp__engine *engine, const rp__engine_options *o) {
    if (engine->leaf && engine->leaf->kind == RP__LEAF_DOOR) return engine->leaf->ops->check(engine->leaf, o);
    if (o->n == 0) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile: backend \"%s\" takes no engine_options", engine->name);
}

rp_compiled *rp_compile_at(const char *site, rp_fn fn, const rp_compile_options *options) {
    RP__CALLED_FROM(site);
    static const rp__callable_ops ops = {"compiled", compiled_call, compiled_destroy, compiled_lock};
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
    if ((unsigned)o.numbers > RP_NUMBERS_FAST) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile: %d is no rp_numbers", (int)o.numbers);
        return rp__callable_failed();
    }
    const rp__engine *engine = rp__engine_find(o.backend);
    if (!engine) return rp__callable_failed();
    o.backend = engine->name;
    rp__compiled *c = rp__handle_new(RP__HANDLE_FUNCTION, sizeof *c);
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
    c->options.engine_options = NULL;
    c->options.n_engine_options = 0;
    if (rp__engine_options_copy(o.engine_options, o.n_engine_options, &c->engine_options) != RP_OK ||
        check_engine_options(engine, &c->engine_options) != RP_OK) {
        rp_compiled_release(&c->base);
        return rp__callable_failed();
    }
    if (copy_free_strides(c, &o) != RP_OK) {
        rp_compiled_release(&c->base);
        return rp__callable_failed();
    }
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
