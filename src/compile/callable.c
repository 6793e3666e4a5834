/* What rp_call calls (callable.h): the life of callables, calls, plain functions, and what explain is asked of them. */
#include "compile/callable.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/holds.h"
#include "trace/trace.h"

rp_compiled *rp__callable_failed(void) {
    static rp_compiled failed;
    return &failed;
}

rp_status rp__callable_refuse(const rp_compiled *f, const char *call) {
    if (f == rp__callable_failed())
        return rp__fail(RP_ERROR_STATE, "%s: the function was not made (see the error of its constructor)", call);
    return rp__handle_refuse(f, RP__HANDLE_FUNCTION, call);
}

rp_status rp__callable_begin(rp_compiled *f, const rp__callable_ops *ops, rp_fn fn) {
    f->ops = ops;
    atomic_init(&f->holds, 1);
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

bool rp__callable_hold(rp_compiled *f) { return rp__holds_take(&f->holds); }

void rp__callable_drop(rp_compiled *f) {
    unsigned holds = atomic_load_explicit(&f->holds, memory_order_relaxed);
    while (holds > 1) { /* as where a body releases the function whose lock its thread has */
        if (atomic_compare_exchange_weak_explicit(&f->holds, &holds, holds - 1, memory_order_release,
                                                  memory_order_relaxed))
            return;
    }
    const rp__callable_ops *ops = f->ops;
    rp__mutex *const lock = ops->lock ? ops->lock(f) : NULL;
    if (lock) rp__lock(lock); /* a call that has it, and holds nothing yet, is served */
    const bool last = atomic_fetch_sub_explicit(&f->holds, 1, memory_order_acq_rel) == 1;
    if (last) f->ops = NULL; /* what a tape still needs of it may stay */
    if (lock) rp__unlock(lock);
    if (!last) return;
    rp__explain_leave(f);
    char *name = f->name;
    rp__explain *explain = f->explain;
    struct rp__argument_names *names = atomic_load(&f->names);
    ops->destroy(f);
    rp__free(names);
    rp__explain_free(explain);
    rp__free(name);
}

void rp_compiled_release(rp_compiled *f) {
    if (f && f != rp__callable_failed() && rp__handle_give_up(f, RP__HANDLE_FUNCTION, "rp_compiled_release"))
        rp__callable_drop(f);
}

static inline bool is_tensor(const rp_tensor *t) {
    return t && t->magic == RP__TENSOR_MAGIC && !rp__tensor_is_error(t) && !rp__storage_is_stale(t->storage) &&
           !t->traced;
}

static bool has_value(const rp_tensor *t) { return !t->traced || t->storage->data; }

/* The function, or one of the arguments, is none. */
static __attribute__((noinline)) rp_status refuse_call(const char *site, const rp_compiled *f, rp_tensor *const *in,
                                                       size_t n_in) {
    rp_status status = RP_OK;
    rp__site_frame frame = rp__site_push(site, NULL);
    if (!rp__callable_is_live(f)) status = rp__callable_refuse(f, "rp_call");
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
    bool sound = rp__callable_is_live(f);
    for (size_t k = 0; k < n_in; k++) sound = sound && is_tensor(in[k]) && has_value(in[k]);
    return RP__LIKELY(sound) ? RP_OK : refuse_call(site, f, in, n_in);
}

rp_status rp_call_at(const char *site, rp_compiled *f, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                     size_t n_out) {
    if (RP__UNLIKELY(!f || (n_in && !in) || (n_out && !out))) {
        for (size_t k = 0; out && k < n_out; k++) out[k] = rp__tensor_error();
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_call: the function or a list of tensors is NULL%s%s",
                        site ? " at " : "", site ? site : "");
    }
    RP__LISTS_APART(in, n_in, out, n_out, rp_call_at(site, f, apart, n_in, out, n_out));
    if (RP__LIKELY(n_out == 1)) /* most often; a loop becomes a call of memset */
        out[0] = NULL;
    else
        for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    rp_status status = check_call(site, f, in, n_in);
    if (RP__LIKELY(status == RP_OK)) {
        if (rp__trace_current()) { /* inlined */
            const uint64_t failures = rp__error_count();
            f->fn.body(f->fn.ctx, in, n_in, out, n_out);
            status = rp__status_since(failures);
            for (size_t k = 0; k < n_out && status != RP_OK; k++) out[k] = rp__tensor_error();
            return status;
        }
        const rp__callable_ops *ops = f->ops;
        status = ops ? ops->call(f, site, in, n_in, out, n_out) : rp__callable_refuse(f, "rp_call");
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

rp_status rp__callable_plain(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                             size_t n_out) {
    (void)site;
    rp_scope scope = rp__scope_begin();
    rp__callable_hold(f);
    rp_status status = rp__callable_end(scope, rp__callable_body(f->fn, in, n_in, out, n_out), out, n_out);
    rp__callable_drop(f);
    return status;
}

static void plain_destroy(rp_compiled *f) { rp__handle_free(f); }

rp_compiled *rp_plain_at(const char *site, rp_fn fn) {
    RP__CALLED_FROM(site);
    static const rp__callable_ops ops = {"plain", rp__callable_plain, plain_destroy, NULL};
    if (!fn.body) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_plain: the function is NULL");
        return rp__callable_failed();
    }
    rp_compiled *f = rp__handle_new(RP__HANDLE_FUNCTION, sizeof *f);
    if (!f || rp__callable_begin(f, &ops, fn) != RP_OK) {
        (void)RP__OOM("function");
        rp__handle_free(f);
        return rp__callable_failed();
    }
    return f;
}

size_t rp_explain_count_at(const char *site, rp_compiled *f) {
    RP__CALLED_FROM(site);
    if (f && rp__callable_is_live(f)) return rp__explain_count(f->explain);
    (void)rp__callable_refuse(f, "rp_explain_count");
    return 0;
}

rp_status rp_explain_get_at(const char *site, rp_compiled *f, size_t index, rp_explain_entry *entry) {
    RP__CALLED_FROM(site);
    if (!f || !rp__callable_is_live(f)) return rp__callable_refuse(f, "rp_explain_get");
    if (!entry) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_explain_get: an argument is NULL");
    if (rp__explain_at(f->explain, index, entry)) return RP_OK;
    return rp__fail(RP_ERROR_INDEX, "rp_explain_get: there is no entry %zu", index);
}
