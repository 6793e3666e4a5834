/* AOT autograd (aot.h): has the pipeline make functional graphs of a traced one, and units of those. Knows no op; a graph whose
   derivative cannot be written as a graph runs node by node under the tape, and explain says why.

   A forward and a backward are made for each other, and for gradients of certain results: a *plan*. What a backward is given
   is only known when it runs. If it is not what the plan is for, or the gradients are to be differentiated again, the call is
   run again under the tape (aot_again.c); later calls then use a plan for what was given. */
#include "compile/aot.h"

#include <string.h>

#include "compile/aot_parts.h"
#include "compile/pipeline.h"
#include "core/alloc.h"
#include "trace/symbols.h"

enum { PLAN_LIMIT = 16 }; /* beyond: calls that no plan is for run again */

static void plan_free(rp__aot_plan *p) {
    if (!p) return;
    rp__unit_free(p->forward);
    rp__unit_free(p->backward);
    rp__free(p->binding);
    rp__free(p->saved);
    rp__free(p->tangents);
    rp__free(p);
}

void rp__aot_release(rp__aot *a) {
    if (!a || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1) return;
    while (a->plans) {
        rp__aot_plan *next = a->plans->next;
        plan_free(a->plans);
        a->plans = next;
    }
    rp__shared_arena_end(&a->arena);
    rp__instances_release(a->instances);
    rp__engine_options_free(&a->engine_options);
    rp__free(a->tangent_of);
    rp__free(a->leaves);
    rp__free(a->free_results);
    rp__free(a->writes);
    rp__free(a->random);
    rp__ir_release(a->graph);
    (void)pthread_mutex_destroy(&a->lock);
    rp__free(a);
}

void rp__aot_free(rp__aot *a) {
    if (!a) return;
    rp__lock(&a->lock);
    for (rp__aot_plan *p = a->plans; p; p = p->next) { /* tapes may hold the units longer than the list lives */
        rp__unit_forget_explain(p->forward);
        rp__unit_forget_explain(p->backward);
        if (p->explain != a->explain) rp__explain_close(p->explain);
        p->explain = NULL;
    }
    a->explain = NULL;
    rp__unlock(&a->lock);
    rp__aot_release(a);
}

/* ---- compiling */

/* The function's generators; counters that follow from symbols as those of `binding`, unless it is NULL. */
static rp_status random_for(const rp__aot *a, const int64_t *binding, rp__executable_random **out) {
    *out = NULL;
    if (a->n_random == 0 || !binding) return RP_OK;
    *out = rp__alloc(a->n_random * sizeof **out);
    if (!*out) return RP__OOM("compiled graph");
    for (size_t k = 0; k < a->n_random; k++) {
        int64_t count;
        if (!rp__symbols_value(a->graph->symbols, (rp_dim)a->random[k].count, binding, &count))
            return rp__fail(RP_ERROR_SHAPE, "a count of random numbers overflows for these arguments");
        (*out)[k] = a->random[k];
        (*out)[k].count = (uint64_t)count;
    }
    return RP_OK;
}

typedef struct part { /* of a plan */
    const char *name;
    const bool *donors, *free_args, *free_results; /* as rp__unit_request */
} part;
static rp_status make_unit(rp__aot *a, rp_ir *graph, const rp__aot_plan *p, const part *of, rp__unit **out) {
    rp__executable_random *sized;
    rp_status status = random_for(a, p->binding, &sized);
    const rp__unit_request unit = {.graph = graph,
                                   .leaf = a->leaf,
                                   .no_graph = a->no_graph,
                                   .wait = a->wait,
                                   .numbers = a->numbers,
                                   .tune = a->tune,
                                   .layout = a->layout,
                                   .strict = a->strict,
                                   .engine_options = &a->engine_options,
                                   .arena = &a->arena,
                                   .random = sized ? sized : a->random,
                                   .n_random = a->n_random,
                                   .donors = of->donors,
                                   .free_args = of->free_args,
                                   .free_results = of->free_results,
                                   .instances = a->instances,
                                   .explain = p->explain,
                                   .name = of->name};
    if (status == RP_OK) status = rp__unit_new(&unit, out);
    rp__free(sized);
    return status;
}

static rp_status compile_inference(rp__aot *a, rp__aot_plan *p) {
    rp_ir *graph;
    RP_TRY(rp__pipeline_inference(a->graph, a->leaf->kind, &graph, &a->random, &a->n_random));
    const part of = {.name = a->step ? "step" : a->segment ? "graph" : "forward", .free_results = a->free_results};
    rp_status status = make_unit(a, graph, p, &of, &p->forward);
    rp__ir_release(graph);
    return status;
}

/* Forward and backward for gradients of p->given, for the sizes of the plan. */
static rp_status compile_pair(rp__aot *a, rp__aot_plan *p) {
    rp__pipeline_pair pair;
    bool *flags = NULL;
    RP_TRY(rp__pipeline_training(a->graph, p->binding, a->leaf->kind, a->leaves, a->n_leaves, p->given, a->numbers,
                                 &pair));
    rp__partitioned *parts = &pair.parts;
    const rp__joint *joint = &pair.joint;
    rp_status status;
    const uint32_t n_args = parts->backward->body.n_args, n_results = parts->forward->body.n_results;
    flags = rp__calloc(2u * n_args + n_results + 1u, sizeof *flags);
    if (!flags) {
        status = RP__OOM("backward of a compiled function");
        goto done;
    }
    bool *donors = flags, *free_args = flags + n_args, *free_results = flags + 2u * n_args;
    rp__layout_free_args(parts->backward, free_args);
    if (a->free_results) memcpy(free_results, a->free_results, a->n_results * sizeof *free_results);
    for (uint32_t k = 0; k < parts->n_saved; k++) {
        const rp__saved_source *s = &parts->saved[k];
        donors[k] = rp__aot_is_tapes_own(parts, s, a->n_results);
        p->donates = p->donates || donors[k];
        if (s->kind != RP__SAVED_RESULT) { /* the caller's, who keeps its strides */
            free_args[k] = false;
            continue;
        }
        const bool may = s->index >= a->n_results || free_results[s->index];
        free_args[k] = free_results[s->index] = free_args[k] && may;
    }
    for (uint32_t k = parts->n_saved; k < n_args; k++) free_args[k] = false; /* tangents come by rows */
    RP_TRY_GOTO(status, done,
                make_unit(a, parts->forward, p, &(part){.name = "forward", .free_results = free_results}, &p->forward));
    RP_TRY_GOTO(status, done,
                make_unit(a, parts->backward, p, &(part){.name = "backward", .donors = donors, .free_args = free_args},
                          &p->backward));
    p->tangents = rp__calloc(joint->n_tangents + 1u, sizeof *p->tangents);
    if (!p->tangents) {
        status = RP__OOM("compiled graph");
        goto done;
    }
    for (uint32_t k = 0, at = 0; k < joint->n_tangents; k++) {
        while (a->tangent_of[at] != joint->tangent_of[k]) at++;
        p->tangents[p->n_tangents++] = at;
    }
    p->saved = parts->saved;
    p->n_saved = parts->n_saved;
    parts->saved = NULL;
    if (p->explain) {
        rp__explain_add(p->explain, "memory", RP__REASON_NONE, NULL, parts->saved_bytes,
                        "saved for the backward (%u values; %u nodes are run again)", parts->n_saved,
                        parts->n_recomputed);
    }
done:
    rp__pipeline_pair_free(&pair);
    rp__free(flags);
    return status;
}

static rp_status compile_training(rp__aot *a, uint64_t given, rp__aot_plan *p) {
    rp_ir *functional = NULL;
    rp_status status;
    RP_TRY_GOTO(status, done, rp__aot_find_leaves(a));
    RP_TRY_GOTO(status, done, rp__pipeline_functional(a->graph, &functional, &a->random, &a->n_random));
    RP_TRY_GOTO(status, done, rp__aot_find_tangents(a));
    RP_TRY_GOTO(status, done, rp__aot_find_written(a, functional));
    p->given = rp__aot_plannable(a, given);
    status = compile_pair(a, p);
done:
    rp__ir_release(functional);
    return status;
}

/* A plan for other gradients, while the graph is in use: of a graph with symbols for the sizes of this call only, since what
   derivatives ask of sizes can be no guard any more. */
static rp_status compile_later(rp__aot *a, const int64_t *binding, rp__aot_plan *p) {
    if (a->n_symbols) {
        p->binding = rp__alloc(a->n_symbols * sizeof *p->binding);
        if (!p->binding) return RP__OOM("compiled graph");
        memcpy(p->binding, binding, a->n_symbols * sizeof *binding);
    }
    rp__symbols *outer = rp__symbols_enter(NULL);
    rp_status status = compile_pair(a, p);
    (void)rp__symbols_enter(outer);
    return status;
}

static bool is_for(const rp__aot *a, const rp__aot_plan *p, uint64_t given, const int64_t *binding) {
    return p->given == given && (!p->binding || memcmp(p->binding, binding, a->n_symbols * sizeof *binding) == 0);
}

static rp_status find_plan(rp__aot *a, uint64_t given, const int64_t *binding, rp__aot_plan **out) {
    rp_status status = RP_OK;
    rp__aot_plan *p;
    rp__lock(&a->lock);
    for (p = a->plans; p && !is_for(a, p, given, binding);) p = p->next;
    if (!p && a->n_plans < PLAN_LIMIT) {
        p = rp__calloc(1, sizeof *p);
        rp__error_state before;
        rp__error_save(&before);
        if (p) p->given = given;
        if (p && a->explain)
            p->explain = rp__explain_open(a->explain, "for gradients of other results (%u)", a->n_plans);
        status = p ? compile_later(a, binding, p) : RP__OOM("compiled graph");
        if (status == RP_OK) {
            p->next = a->plans;
            a->plans = p;
            a->n_plans++;
        } else {
            rp__explain *own = p ? p->explain : NULL;
            plan_free(p); /* what it explains is part of that */
            rp__explain_close(own);
            p = NULL;
            if (status != RP_ERROR_OUT_OF_MEMORY) { /* it could be done for all: calls run again */
                (void)rp_error_take();
                a->n_plans = PLAN_LIMIT;
                status = RP_OK;
            }
        }
        rp__error_restore(&before);
    }
    for (rp__aot_plan *any = a->plans; !p && any; any = any->next)
        if (!any->binding) p = any;
    rp__unlock(&a->lock);
    if (status == RP_OK) atomic_store_explicit(&a->current, p, memory_order_release);
    *out = p;
    return status;
}

/* The plan for this call: for what the last backward was given. */
rp_status rp__aot_choose_plan(rp__aot *a, const int64_t *binding, rp__aot_plan **out) {
    rp__aot_plan *p = *out = atomic_load_explicit(&a->current, memory_order_acquire);
    uint64_t wanted = atomic_load_explicit(&a->wanted, memory_order_relaxed);
    if (RP__LIKELY(wanted == 0 || is_for(a, p, wanted, binding))) return RP_OK;
    if (a->shared) atomic_store_explicit(a->shared, wanted, memory_order_relaxed);
    return find_plan(a, wanted, binding, out);
}

static rp_status remember(rp__aot *a, const rp__leaf *leaf, const rp__engine_request *request) {
    a->graph = rp__ir_retain(request->graph);
    a->leaf = leaf;
    a->n_symbols = rp__symbols_count(a->graph->symbols);
    a->n_results = a->graph->body.n_results;
    a->no_graph = request->options && request->options->no_graph;
    a->wait = request->options && request->options->wait;
    a->numbers = request->options ? request->options->numbers : RP_NUMBERS_DEFAULT;
    a->tune = request->options && request->options->tune;
    a->strict = request->options && request->options->strict;
    a->layout = request->options ? request->options->layout : RP_LAYOUT_AUTO;
    a->explain = request->explain;
    a->shared = request->given;
    a->training = request->training && !request->segment;
    a->step = request->step;
    a->segment = request->segment;
    const rp_compile_options *from = request->options;
    if (from && from->n_free_strides && !a->segment) {
        a->free_results = rp__calloc(a->n_results + 1u, sizeof *a->free_results);
        if (!a->free_results) return RP__OOM("compiled graph");
        for (size_t k = 0; k < from->n_free_strides; k++)
            if (from->free_strides[k] < a->n_results) a->free_results[from->free_strides[k]] = true;
    }
    const rp__engine_options *o = request->engine_options;
    if (!o || o->n == 0) return RP_OK;
    return rp__engine_options_copy((const char *const(*)[2])o->text, o->n, &a->engine_options);
}

rp_status rp__aot_compile(const rp__leaf *leaf, const rp__engine_request *request, rp__aot **out) {
    rp__aot *a = rp__calloc(1, sizeof *a);
    rp__aot_plan *first = rp__calloc(1, sizeof *first);
    if (!a || !first) {
        rp__free(a);
        rp__free(first);
        return RP__OOM("compiled graph");
    }
    atomic_init(&a->refs, 1);
    (void)pthread_mutex_init(&a->lock, NULL);
    rp__shared_arena_begin(&a->arena);
    const rp_status remembered = remember(a, leaf, request);
    a->instances = request->instances ? rp__instances_retain(request->instances) : rp__instances_new(0, 0);
    a->plans = first;
    a->n_plans = 1;
    atomic_init(&a->current, first);
    first->given = RP__AOT_EVERY;
    first->explain = a->explain;
    if (!a->instances || remembered != RP_OK) {
        rp__aot_release(a);
        return RP_ERROR_OUT_OF_MEMORY;
    }
    rp__symbols *outer = rp__symbols_enter(a->graph->symbols);
    uint64_t given = a->shared ? atomic_load_explicit(a->shared, memory_order_relaxed) : 0;
    rp_status status = a->training ? compile_training(a, given, first) : compile_inference(a, first);
    (void)rp__symbols_enter(outer);
    if (status == RP_ERROR_UNAVAILABLE && !a->strict) { /* a graph, but not one that these passes can take */
        if (request->explain) {
            rp__explain_add(request->explain, "skip", RP__REASON_NOT_DIFFERENTIATED, NULL, 1, "%s", rp_error_message());
        }
        (void)rp_error_take();
        a->on_tape = true;
        status = RP_OK;
    }
    if (status != RP_OK) {
        rp__aot_release(a);
        return status;
    }
    *out = a;
    return RP_OK;
}
