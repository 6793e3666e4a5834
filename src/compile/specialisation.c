/* Specialisations: guards, a graph and the backend's object for calls like one that was traced. */
#include <string.h>

#include "autograd/tape.h"
#include "compile/compiled_parts.h"
#include "core/alloc.h"
#include "trace/ir_run.h"

enum { CACHE_LIMIT = 32, FEW = 24 };

void rp__specialisation_release(rp__specialisation *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    rp__guards_free(&s->guards);
    if (s->object) s->engine->destroy(s->object);
    rp__explain_close(s->explain);
    rp__trace_result_free(&s->trace);
    rp__free(s->arg_ids);
    rp__free(s->by_rows);
    rp__free(s);
}

void rp__specialisation_drop(rp__compiled *c, const rp__specialisation *s) {
    for (rp__specialisation **link = &c->list; *link; link = &(*link)->next) {
        if (*link == s) {
            rp__specialisation *gone = *link;
            *link = gone->next;
            c->n--;
            rp__specialisation_release(gone);
            return;
        }
    }
}

static void add(rp__compiled *c, rp__specialisation *s) {
    size_t limit = c->options.cache_limit ? c->options.cache_limit : CACHE_LIMIT;
    s->next = c->list;
    c->list = s;
    c->n++;
    c->alone = c->alone && c->n == 1;
    while (c->n > limit) {
        rp__specialisation *last = c->list;
        while (last->next) last = last->next;
        rp__explain_add(c->base.explain, "specialisation", RP__REASON_EVICTED, NULL, 1, NULL);
        rp__specialisation_drop(c, last);
    }
}

rp_status rp__specialisation_compile(rp__compiled *c, const rp__engine_request *of, void **object) {
    rp__engine_request request = *of;
    request.options = &c->options;
    request.engine_options = &c->engine_options;
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
rp_status rp__specialisation_make(rp__compiled *c, rp__trace_result *trace, uint64_t environment, rp_tensor *const *in,
                                  size_t n_in, size_t n_out, const rp_dim *const *sizes, const rp_dim *const *strides,
                                  rp__specialisation **out) {
    rp__specialisation *s = rp__calloc(1, sizeof *s);
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
    for (size_t i = 0; i < s->trace.n_grads; i++) {
        rp_release(s->trace.grads[i].entry);
        s->trace.grads[i].entry = NULL;
    }
    bool step = !s->trace.training && s->trace.backward;
    s->explain = rp__explain_open(c->base.explain, "specialisation %zu", ++c->n_made);
    const rp__engine_request request = {
        .graph = s->trace.ir, .training = s->trace.training, .step = step, .explain = s->explain};
    if (status == RP_OK) status = rp__specialisation_compile(c, &request, &s->object);
    if (status != RP_OK) {
        rp__specialisation_release(s);
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
static rp_status run_with_gradients(rp__specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out,
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

static rp_status run_object(rp__specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    if (s->moves_gradients) return run_with_gradients(s, in, n_in, out, n_out);
    if (!s->object) return rp__ir_run(s->trace.ir, in, n_in, out, n_out, NULL);
    rp_status status = s->engine->run(s->object, in, n_in, out, n_out);
    if (status == RP_OK && s->engine->settled && !s->repeats && !s->trace.switched && !s->trace.moved &&
        !s->trace.n_words)
        atomic_store_explicit(&s->program, s->engine->settled(s->object), memory_order_release);
    return status;
}

static rp_status run_in_scope(rp__specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
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

rp_status rp__specialisation_run(rp__specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                 size_t n_out) {
    /* A graph that nobody can go back through holds its own derivatives already: no tape. For training there is one, also
       where grad mode is off and the function has switched it on. */
    const bool off = rp__flags.grad_disabled;
    rp__flags.grad_disabled = !s->trace.training;
    rp__executable *p = atomic_load_explicit(&s->program, memory_order_acquire);
    rp_status status =
        p ? rp__executable_run(p, in, n_in, out, n_out, NULL, 0, NULL) : run_in_scope(s, in, n_in, out, n_out);
    rp__flags.grad_disabled = s->trace.switched != off; /* as the function leaves it */
    for (size_t k = 0; k < s->trace.n_words && status == RP_OK; k++)
        *s->trace.words[k].address = s->trace.words[k].exit;
    if (RP__UNLIKELY(s->trace.moved)) rp__modes_leave(s->trace.autocast, s->trace.device);
    return status;
}
