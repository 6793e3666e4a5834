/* AOT autograd (aot.h): makes functional graphs of a traced one, has a leaf compile them, and joins forward and backward to
   the tape as one node. Knows no op; a graph whose derivative cannot be written as a graph runs node by node under the tape,
   and explain says why.

   A forward and a backward are made for each other, and for gradients of certain results: a *plan*. What a backward is given
   is only known when it runs. If it is not what the plan is for, or the gradients are to be differentiated again, the call is
   run again under the tape (aot_again.c); later calls then use a plan for what was given. */
#include "compile/aot.h"

#include <reprise_ops.h>
#include <string.h>

#include "autograd/tape.h"
#include "compile/aot_again.h"
#include "compile/fused.h"
#include "compile/passes.h"
#include "core/alloc.h"
#include "ops/grad.h"
#include "trace/ir_run.h"
#include "trace/symbols.h"

enum { PLAN_LIMIT = 16 };                 /* beyond: calls that no plan is for run again */
static const uint64_t EVERY = UINT64_MAX; /* results: all that have tangents */

/* Does the function write an argument or captured tensor, and does a second run of a call need what was there before? */
typedef enum write_kind { WRITES_NOT, NEEDS_NONE, KEEPS_OLD } write_kind;

typedef struct plan {
    uint64_t given;               /* results whose gradients its backward takes */
    int64_t *binding;             /* sizes that it is for; NULL: all */
    rp__unit *forward, *backward; /* backward NULL: inference */
    rp__saved_source *saved;
    uint32_t n_saved;
    bool donates;       /* the backward may overwrite some of them */
    uint32_t *tangents; /* of the backward: numbers of rp__aot.tangent_of */
    uint32_t n_tangents;
    rp__explain *explain; /* of the object, or a part of it; NULL: none */
    struct plan *next;
} plan;

struct rp__aot {
    atomic_uint refs; /* the engine's, and one a tape node */
    rp_ir *graph;     /* as traced */
    const rp_backend *leaf;
    bool on_tape; /* runs node by node under the tape */
    bool no_graph, wait, strict;
    rp_graph_layout layout;
    bool training, step, segment;
    rp__shared_arena arena;
    rp__instances *instances; /* counted */
    size_t n_symbols;
    uint32_t n_results; /* of the function */
    rp__mutex lock;     /* plans, n_plans, explain */
    plan *plans;        /* never changed once in the list */
    uint32_t n_plans;
    rp__explain *explain;
    _Atomic(plan *) current;  /* of the last call */
    _Atomic uint64_t wanted;  /* what the last backward was given; 0: none has run, or nothing can be planned for it */
    _Atomic uint64_t *shared; /* rp__engine_request.given; used by calls only, as tape nodes may live longer */
    rp__executable_random *random; /* generators of the function */
    size_t n_random;
    /* training */
    uint32_t *tangent_of; /* per tangent: result number */
    uint32_t n_tangents;
    uint32_t *leaves; /* argument, or n_args + captured tensor; rising */
    uint32_t n_leaves;
    write_kind *writes; /* per argument, then captured tensor */
};

static void plan_free(plan *p) {
    if (!p) return;
    rp__unit_free(p->forward);
    rp__unit_free(p->backward);
    rp__free(p->binding);
    rp__free(p->saved);
    rp__free(p->tangents);
    rp__free(p);
}

static void release(rp__aot *a) {
    if (!a || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1) return;
    while (a->plans) {
        plan *next = a->plans->next;
        plan_free(a->plans);
        a->plans = next;
    }
    rp__shared_arena_end(&a->arena);
    rp__instances_release(a->instances);
    rp__free(a->tangent_of);
    rp__free(a->leaves);
    rp__free(a->writes);
    rp__free(a->random);
    rp__ir_release(a->graph);
    (void)pthread_mutex_destroy(&a->lock);
    rp__free(a);
}

void rp__aot_free(rp__aot *a) {
    if (!a) return;
    rp__lock(&a->lock);
    for (plan *p = a->plans; p; p = p->next) { /* tapes may hold the units longer than the list lives */
        rp__unit_forget_explain(p->forward);
        rp__unit_forget_explain(p->backward);
        if (p->explain != a->explain) rp__explain_close(p->explain);
        p->explain = NULL;
    }
    a->explain = NULL;
    rp__unlock(&a->lock);
    release(a);
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

/* A unit of the plan, called so. */
static rp_status make_unit(rp__aot *a, rp_ir *graph, const plan *p, const char *name, const bool *donors,
                           rp__unit **out) {
    rp__executable_random *sized;
    rp_status status = random_for(a, p->binding, &sized);
    const rp__unit_request unit = {.graph = graph,
                                   .leaf = a->leaf == &rp__leaf_interpreter ? NULL : a->leaf,
                                   .no_graph = a->no_graph,
                                   .wait = a->wait,
                                   .layout = a->layout,
                                   .strict = a->strict,
                                   .arena = &a->arena,
                                   .random = sized ? sized : a->random,
                                   .n_random = a->n_random,
                                   .donors = donors,
                                   .instances = a->instances,
                                   .explain = p->explain,
                                   .name = name};
    if (status == RP_OK) status = rp__unit_new(&unit, out);
    rp__free(sized);
    return status;
}

/* Once no gradient is to be taken any more. */
static rp_status simplify(rp_ir *ir, const rp_backend *leaf, rp_ir **out) {
    rp_ir *parts = NULL;
    if (leaf == &rp__leaf_fused) RP_TRY(rp__decompose(ir, &parts));
    rp_status status = rp__simplify(parts ? parts : ir, true, out);
    rp__ir_release(parts);
    return status;
}

static rp_status compile_inference(rp__aot *a, plan *p) {
    rp_ir *functional = NULL, *simple = NULL;
    RP_TRY(rp__functionalise(a->graph, &functional));
    rp_status status = RP_OK;
    if (rp__leaf_is_program(a->leaf)) { /* the interpreter and users' leaves draw as they go: they get every node */
        status = rp__random_totals(functional, &a->random, &a->n_random); /* also of what goes now */
        if (status == RP_OK) status = simplify(functional, a->leaf, &simple);
    }
    if (status == RP_OK)
        status = make_unit(a, simple ? simple : functional, p,
                           a->step      ? "step"
                           : a->segment ? "graph"
                                        : "forward",
                           NULL, &p->forward);
    rp__ir_release(functional);
    rp__ir_release(simple);
    return status;
}

static bool wants_gradient(const rp__ir_value_info *info) {
    return info->requires_grad && rp__dtype_is_float(info->meta.dtype);
}

static rp_status find_leaves(rp__aot *a) {
    const rp_ir *ir = a->graph;
    a->leaves = rp__calloc(ir->body.n_args + ir->n_captured + 1, sizeof *a->leaves);
    if (!a->leaves) return RP__OOM("compiled graph");
    for (uint32_t k = 0; k < ir->body.n_args; k++) {
        if (wants_gradient(&ir->values[ir->body.args[k]])) a->leaves[a->n_leaves++] = k;
    }
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead || n->kind != RP__IR_CAPTURED || !wants_gradient(&ir->values[n->out[0]])) continue;
        a->leaves[a->n_leaves++] = ir->body.n_args + n->captured_index;
    }
    return RP_OK;
}

/* Saved memory that nobody but the tape has a handle of: made by the forward, and no part of another result. */
static bool is_tapes_own(const rp__partitioned *parts, const rp__saved_source *s, uint32_t n_results) {
    const rp_ir *ir = parts->forward;
    if (s->kind != RP__SAVED_RESULT || s->index < n_results) return false;
    uint32_t storage = ir->values[ir->body.results[s->index]].storage;
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        rp__ir_value v = ir->body.results[k];
        if (k != s->index && v != RP__IR_NONE && ir->values[v].storage == storage) return false;
    }
    rp__ir_value root = rp__ir_root(ir, ir->body.results[s->index]);
    const rp__ir_node *n = rp__ir_producer(ir, root);
    return n && n->kind != RP__IR_CAPTURED && n->kind != RP__IR_CONST;
}

/* A tensor that carries a gradient, has views that do, and is written in place. */
static bool writes_under_views(const rp_ir *ir) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead || n->kind != RP__IR_OP || !(n->op->flags & RP_OP_INPLACE) || n->n_out == 0) continue;
        const rp__ir_value_info *written = &ir->values[n->out[0]];
        for (size_t v = 0; v < ir->n_values && written->requires_grad; v++) {
            const rp__ir_value_info *info = &ir->values[v];
            if (info->storage == written->storage && info->requires_grad &&
                rp__ir_is_view(rp__ir_producer(ir, (rp__ir_value)v))) {
                return true;
            }
        }
    }
    return false;
}

static bool is_detached(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_node *n = rp__ir_producer(ir, v);
    while (rp__ir_is_view(n) || (n && n->kind == RP__IR_OP && n->op->flags & RP_OP_INPLACE)) {
        if (rp__ir_is_op(n, RP__OP(detach))) return true;
        n = rp__ir_producer(ir, n->in[0]);
    }
    return false;
}

static bool carries_gradient(const rp_ir *ir, uint32_t storage) {
    for (size_t v = 0; v < ir->n_values; v++)
        if (ir->values[v].storage == storage && ir->values[v].requires_grad) return true;
    return false;
}

/* A write through rp_detach: the tape leaves the history of what was detached from as it is, and gives that of what is
   written to the detached tensor alone. The functional form knows one memory for both. */
static bool writes_detached(const rp_ir *ir) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead || n->kind != RP__IR_OP || !(n->op->flags & RP_OP_INPLACE) || n->n_out == 0) continue;
        if (is_detached(ir, n->in[0]) && carries_gradient(ir, ir->values[n->out[0]].storage)) return true;
    }
    return false;
}

typedef struct view_state {
    uint32_t *version; /* per storage: writes so far */
    uint32_t *born;    /* per value: version when it was made, if it is a view */
    bool *through;     /* per value: the result of a write through a view */
} view_state;

/* Is v what its op made, and no view that a write has overtaken? */
static bool reads_fresh(const rp_ir *ir, const view_state *s, rp__ir_value v) {
    if (v == RP__IR_NONE || !ir->values[v].requires_grad) return true;
    if (s->through[v]) return false;
    return !rp__ir_is_view(rp__ir_producer(ir, v)) || s->born[v] == s->version[ir->values[v].storage];
}

static bool is_part(const rp_ir *ir, rp__ir_value v) { /* slices and selections of a tensor, or the tensor */
    const rp__ir_node *n = rp__ir_producer(ir, v);
    for (; rp__ir_is_view(n); n = rp__ir_producer(ir, n->in[0]))
        if (!rp__ir_is_op(n, RP__OP(slice)) && !rp__ir_is_op(n, RP__OP(select))) return false;
    return true;
}

static bool views_are_fresh(const rp_ir *ir, const view_state *s) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        for (uint32_t i = 0; i < n->n_in; i++)
            if (!reads_fresh(ir, s, n->in[i])) return false;
        if (rp__ir_is_view(n)) s->born[n->out[0]] = s->version[ir->values[n->out[0]].storage];
        for (uint32_t i = 0; i < n->n_in; i++)
            if (rp__ir_writes(n, i)) s->version[ir->values[n->in[i]].storage]++;
        if (n->kind != RP__IR_OP || !(n->op->flags & RP_OP_INPLACE) || n->n_out == 0) continue;
        if (!ir->values[n->out[0]].requires_grad || !rp__ir_is_view(rp__ir_producer(ir, n->in[0]))) continue;
        if (!is_part(ir, n->in[0])) return false;
        s->through[n->out[0]] = true;
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++)
        if (!reads_fresh(ir, s, ir->body.results[k])) return false;
    return true;
}

/* Where a view is read again after a write, the tape finds its history anew and adds gradients up in an order of its own,
   which the functional form does not have. Where none is, and writes go to slices and selections, joint.c does what the tape
   does. */
static rp_status check_views(const rp_ir *ir) {
    if (writes_detached(ir))
        return rp__fail(RP_ERROR_UNAVAILABLE,
                        "a detached tensor is written that shares memory with what carries a gradient");
    if (!writes_under_views(ir)) return RP_OK;
    view_state s = {rp__calloc(ir->n_storages + 1u, sizeof *s.version), rp__calloc(ir->n_values + 1, sizeof *s.born),
                    rp__calloc(ir->n_values + 1, sizeof *s.through)};
    rp_status status = RP_OK;
    if (!s.version || !s.born || !s.through)
        status = RP__OOM("compiled graph");
    else if (!views_are_fresh(ir, &s))
        status =
            rp__fail(RP_ERROR_UNAVAILABLE, "a view that carries a gradient is read after its memory was written, or "
                                           "written otherwise than by slices and selections");
    rp__free(s.version);
    rp__free(s.born);
    rp__free(s.through);
    return status;
}

/* Which arguments and captured tensors the function writes, and of which what is differentiated depends on the old value. */
static rp_status find_written(rp__aot *a, const rp_ir *functional) {
    const rp__ir_block *body = &functional->body;
    size_t n = body->n_args + functional->n_captured;
    a->writes = rp__calloc(n + 1, sizeof *a->writes);
    bool *reached = rp__calloc(functional->n_values + 1, sizeof *reached);
    rp_status status = a->writes && reached ? RP_OK : RP__OOM("compiled graph");
    for (size_t k = 0; k < body->n_nodes && status == RP_OK; k++) {
        const rp__ir_node *w = &functional->nodes[body->nodes[k]];
        if (w->dead || w->kind != RP__IR_ASSIGN) continue;
        const rp__ir_node *made = rp__ir_producer(functional, w->in[0]);
        size_t leaf = made ? body->n_args + made->captured_index : functional->values[w->in[0]].out_index;
        bool differentiated = functional->values[w->in[0]].requires_grad;
        memset(reached, 0, functional->n_values * sizeof *reached);
        reached[w->in[0]] = true;
        for (size_t i = 0; i < body->n_nodes && !differentiated; i++) {
            const rp__ir_node *m = &functional->nodes[body->nodes[i]];
            bool in = false;
            for (uint32_t r = 0; r < m->n_in && !m->dead; r++)
                in = in || (m->in[r] != RP__IR_NONE && reached[m->in[r]]);
            for (uint32_t r = 0; r < m->n_out && in; r++) {
                reached[m->out[r]] = true;
                differentiated = differentiated || functional->values[m->out[r]].requires_grad;
            }
        }
        a->writes[leaf] = differentiated ? KEEPS_OLD : NEEDS_NONE;
    }
    rp__free(reached);
    return status;
}

static rp_status find_tangents(rp__aot *a, const rp_ir *functional) {
    for (uint32_t k = 0; k < functional->body.n_results; k++) {
        rp__ir_value v = a->graph->body.results[k], now = functional->body.results[k];
        if (v != RP__IR_NONE && a->graph->values[v].late_grad && !functional->values[now].requires_grad)
            return rp__fail(RP_ERROR_UNAVAILABLE, "a result whose history came with a write that is not part of it");
    }
    a->tangent_of = rp__calloc(functional->body.n_results + 1u, sizeof *a->tangent_of);
    if (!a->tangent_of) return RP__OOM("compiled graph");
    for (uint32_t k = 0; k < functional->body.n_results; k++)
        if (rp__joint_has_tangent(functional, k, EVERY)) a->tangent_of[a->n_tangents++] = k;
    return RP_OK;
}

/* The bits of `given` that say something of this graph, EVERY if those are all. */
static uint64_t plannable(const rp__aot *a, uint64_t given) {
    uint64_t all = 0;
    for (uint32_t k = 0; k < a->n_tangents; k++) {
        if (a->tangent_of[k] >= 64) return EVERY;
        all |= UINT64_C(1) << a->tangent_of[k];
    }
    return (given & all) == 0 || (given & all) == all ? EVERY : given & all;
}

/* Forward and backward of a functional graph for gradients of p->given. */
static rp_status compile_pair(rp__aot *a, const rp_ir *functional, plan *p) {
    bool fused = rp__leaf_is_program(a->leaf);
    rp_ir *joined = NULL;
    rp__joint joint = {0};
    rp__partitioned parts = {0};
    bool *donors = NULL;
    rp_status status;
    /* Nothing is simplified before the derivatives are taken: merged values would add up their gradients in another order. */
    RP_TRY_GOTO(status, done, rp__joint_build(functional, a->leaves, a->n_leaves, p->given, &joint));
    if (fused) {
        RP_TRY_GOTO(status, done, simplify(joint.ir, a->leaf, &joined));
        rp__ir_release(joint.ir);
        joint.ir = joined;
    }
    RP_TRY_GOTO(status, done, rp__partition(&joint, !fused, &parts));
    donors = rp__calloc(parts.backward->body.n_args + 1u, sizeof *donors);
    if (!donors) {
        status = RP__OOM("backward of a compiled function");
        goto done;
    }
    for (uint32_t k = 0; k < parts.n_saved; k++) {
        donors[k] = is_tapes_own(&parts, &parts.saved[k], a->n_results);
        p->donates = p->donates || donors[k];
    }
    RP_TRY_GOTO(status, done, make_unit(a, parts.forward, p, "forward", NULL, &p->forward));
    RP_TRY_GOTO(status, done, make_unit(a, parts.backward, p, "backward", donors, &p->backward));
    p->tangents = rp__calloc(joint.n_tangents + 1u, sizeof *p->tangents);
    if (!p->tangents) {
        status = RP__OOM("compiled graph");
        goto done;
    }
    for (uint32_t k = 0, at = 0; k < joint.n_tangents; k++) {
        while (a->tangent_of[at] != joint.tangent_of[k]) at++;
        p->tangents[p->n_tangents++] = at;
    }
    p->saved = parts.saved;
    p->n_saved = parts.n_saved;
    parts.saved = NULL;
    if (p->explain) {
        rp__explain_add(p->explain, "memory", RP__REASON_NONE, NULL, parts.saved_bytes,
                        "saved for the backward (%u values; %u nodes are run again)", parts.n_saved,
                        parts.n_recomputed);
    }
done:
    rp__partitioned_free(&parts);
    rp__joint_free(&joint);
    rp__free(donors);
    return status;
}

static rp_status compile_training(rp__aot *a, uint64_t given, plan *p) {
    rp_ir *functional = NULL;
    rp_status status;
    RP_TRY_GOTO(status, done, find_leaves(a));
    RP_TRY_GOTO(status, done, check_views(a->graph));
    RP_TRY_GOTO(status, done, rp__functionalise(a->graph, &functional));
    RP_TRY_GOTO(status, done, rp__random_totals(functional, &a->random, &a->n_random));
    RP_TRY_GOTO(status, done, find_tangents(a, functional));
    RP_TRY_GOTO(status, done, find_written(a, functional));
    p->given = plannable(a, given);
    status = compile_pair(a, functional, p);
done:
    rp__ir_release(functional);
    return status;
}

/* A plan for other gradients, while the graph is in use: of a graph with symbols for the sizes of this call only, since what
   derivatives ask of sizes can be no guard any more. */
static rp_status compile_later(rp__aot *a, const int64_t *binding, plan *p) {
    rp_ir *functional = NULL, *sized = NULL;
    rp_status status = rp__functionalise(a->graph, &functional);
    if (status == RP_OK && a->n_symbols) {
        p->binding = rp__alloc(a->n_symbols * sizeof *p->binding);
        status = p->binding ? rp__specialise(functional, binding, &sized) : RP__OOM("compiled graph");
        if (p->binding) memcpy(p->binding, binding, a->n_symbols * sizeof *binding);
    }
    rp__symbols *outer = rp__symbols_enter(NULL);
    if (status == RP_OK) status = compile_pair(a, sized ? sized : functional, p);
    (void)rp__symbols_enter(outer);
    rp__ir_release(functional);
    rp__ir_release(sized);
    return status;
}

static bool is_for(const rp__aot *a, const plan *p, uint64_t given, const int64_t *binding) {
    return p->given == given && (!p->binding || memcmp(p->binding, binding, a->n_symbols * sizeof *binding) == 0);
}

static rp_status find_plan(rp__aot *a, uint64_t given, const int64_t *binding, plan **out) {
    rp_status status = RP_OK;
    plan *p;
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
    for (plan *any = a->plans; !p && any; any = any->next)
        if (!any->binding) p = any;
    rp__unlock(&a->lock);
    if (status == RP_OK) atomic_store_explicit(&a->current, p, memory_order_release);
    *out = p;
    return status;
}

/* The plan for this call: for what the last backward was given. */
static rp_status choose_plan(rp__aot *a, const int64_t *binding, plan **out) {
    plan *p = *out = atomic_load_explicit(&a->current, memory_order_acquire);
    uint64_t wanted = atomic_load_explicit(&a->wanted, memory_order_relaxed);
    if (RP__LIKELY(wanted == 0 || is_for(a, p, wanted, binding))) return RP_OK;
    if (a->shared) atomic_store_explicit(a->shared, wanted, memory_order_relaxed);
    return find_plan(a, wanted, binding, out);
}

static void remember(rp__aot *a, const rp_backend *leaf, const rp__engine_request *request) {
    a->graph = rp__ir_retain(request->graph);
    a->leaf = leaf;
    a->n_symbols = rp__symbols_count(a->graph->symbols);
    a->n_results = a->graph->body.n_results;
    a->no_graph = request->options && request->options->no_graph;
    a->wait = request->options && request->options->wait;
    a->strict = request->options && request->options->strict;
    a->layout = request->options ? request->options->layout : RP_LAYOUT_AUTO;
    a->explain = request->explain;
    a->shared = request->given;
    a->training = request->training && !request->segment;
    a->step = request->step;
    a->segment = request->segment;
}

rp_status rp__aot_compile(const rp_backend *leaf, const rp__engine_request *request, rp__aot **out) {
    rp__aot *a = rp__calloc(1, sizeof *a);
    plan *first = rp__calloc(1, sizeof *first);
    if (!a || !first) {
        rp__free(a);
        rp__free(first);
        return RP__OOM("compiled graph");
    }
    atomic_init(&a->refs, 1);
    (void)pthread_mutex_init(&a->lock, NULL);
    rp__shared_arena_begin(&a->arena);
    remember(a, leaf, request);
    a->instances = request->instances ? rp__instances_retain(request->instances) : rp__instances_new(0, 0);
    a->plans = first;
    a->n_plans = 1;
    atomic_init(&a->current, first);
    first->given = EVERY;
    first->explain = a->explain;
    if (!a->instances) {
        release(a);
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
        release(a);
        return status;
    }
    *out = a;
    return RP_OK;
}

/* ---- the tape node */

typedef struct argument { /* of the call, should it run again */
    rp_tensor *tensor;    /* arguments: retained; captured tensors: the graph's; own: a copy from before the call */
    uint64_t version;
    bool own;
} argument;

typedef struct payload {
    rp__aot *aot; /* counted */
    const plan *plan;
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
    release(p->aot);
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
    return rp__tensor_contiguous(grad_out[k]) ? grad_out[k] : rp_clone(grad_out[k]);
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
    return all ? EVERY : given;
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
        if (a->writes[k] != WRITES_NOT) { /* in memory of its own: the call has written already */
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
    const plan *made = p->plan;
    uint32_t n_in = made->n_saved + made->n_tangents;
    rp_tensor **tensors = rp__calloc((size_t)n_in + a->n_leaves + 1, sizeof *tensors), **grads = tensors + n_in;
    if (!tensors) return RP__OOM("backward of a compiled function");
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
    uint64_t wanted = given == EVERY ? EVERY : plannable(a, given);
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
        bool own = a->writes[k] == KEEPS_OLD;
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

static rp_status payload_new(rp__aot *a, const plan *made, const int64_t *binding, rp_tensor *const *in,
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

/* Takes p over. */
static rp_status attach(rp__aot *a, payload *p, rp_tensor *const *in, rp_tensor **results) {
    const plan *made = p->plan;
    rp_tensor **ends = rp__calloc((size_t)a->n_leaves + a->n_tangents + 1, sizeof *ends);
    rp_status status = ends ? RP_OK : RP__OOM("a compiled function");
    keep_draws(p);
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

/* ---- running */

static rp_status run_training(rp__aot *a, const int64_t *binding, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                              size_t n_out) {
    plan *made;
    payload *p = NULL;
    RP_TRY(choose_plan(a, binding, &made));
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
        status = rp__unit_run(made->forward, &call, in, n_in, results, n_results);
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

static rp_status run(rp__aot *a, const int64_t *binding, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                     size_t n_out) {
    if (a->training) return run_training(a, binding, in, n_in, out, n_out);
    return rp__unit_run(a->plans->forward, &(rp__unit_call){.binding = binding}, in, n_in, out, n_out);
}

static __attribute__((noinline)) rp_status run_bound(rp__aot *a, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                                     size_t n_out) {
    int64_t few[RP__FEW_OPERANDS], *binding = few;
    if (a->n_symbols > RP__FEW_OPERANDS) {
        binding = rp__alloc(a->n_symbols * sizeof *binding);
        if (!binding) return RP__OOM("a compiled function");
    }
    rp_status status = rp__ir_bind(a->graph, in, n_in, binding);
    if (status == RP_OK) status = run(a, binding, in, n_in, out, n_out);
    if (binding != few) rp__free(binding);
    return status;
}

rp_status rp__aot_run(rp__aot *a, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    static const rp__unit_call plain = {0};
    if (a->on_tape) return rp__ir_run(a->graph, in, n_in, out, n_out, NULL);
    if (RP__UNLIKELY(n_in != a->graph->body.n_args || n_out != a->n_results)) {
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the graph takes %u arguments and gives %u results, not %zu and %zu",
                        a->graph->body.n_args, a->n_results, n_in, n_out);
    }
    if (RP__UNLIKELY(a->n_symbols > 0)) return run_bound(a, in, n_in, out, n_out);
    if (a->training) return run_training(a, NULL, in, n_in, out, n_out);
    return rp__unit_run(a->plans->forward, &plain, in, n_in, out, n_out);
}

rp__executable *rp__aot_settled(const rp__aot *a) {
    bool bare = !a->on_tape && !a->training && a->n_symbols == 0;
    return bare ? rp__unit_settled(a->plans->forward) : NULL;
}

/* ---- the interpreter as a leaf */

static rp_status interpreter_compile(void *ctx, const rp_ir *graph, void **compiled) {
    (void)ctx;
    *compiled = rp__ir_retain((rp_ir *)(uintptr_t)graph);
    return RP_OK;
}

static rp_status interpreter_run(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                 size_t n_out) {
    (void)ctx;
    return rp__ir_run(compiled, in, n_in, out, n_out, NULL);
}

static void interpreter_destroy(void *ctx, void *compiled) {
    (void)ctx;
    rp__ir_release(compiled);
}

const rp_backend rp__leaf_interpreter = {sizeof(rp_backend), "interpreter",       interpreter_compile,
                                         interpreter_run,    interpreter_destroy, NULL};
