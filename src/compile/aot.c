/* AOT autograd (aot.h): makes functional graphs of a traced one, has a leaf compile them, and joins forward and backward to the
   tape as one node. Knows no op; a graph whose derivative cannot be written as a graph runs node by node under the tape, and
   explain says why. */
#include "compile/aot.h"

#include <string.h>

#include "autograd/tape.h"
#include "compile/fused.h"
#include "compile/passes.h"
#include "core/alloc.h"
#include "ops/grad.h"
#include "trace/ir_run.h"

struct rp__aot {
    atomic_uint refs; /* the engine's, and one a tape node */
    rp_ir *graph;     /* as traced */
    bool on_tape;     /* runs node by node under the tape */
    rp__unit *forward, *backward;
    rp__shared_arena arena;
    size_t n_symbols;
    uint32_t n_results; /* of the function */
    /* training */
    rp__saved_source *saved;
    uint32_t n_saved;
    bool donates; /* the backward may overwrite some of them */
    uint32_t *tangent_of; /* per tangent: result number */
    uint32_t n_tangents;
    uint32_t *leaves; /* argument, or n_args + captured tensor */
    uint32_t n_leaves;
};

static void release(rp__aot *a) {
    if (!a || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1) return;
    rp__unit_free(a->forward);
    rp__unit_free(a->backward);
    if (a->arena.storage) rp__storage_release(a->arena.storage);
    rp__free(a->saved);
    rp__free(a->tangent_of);
    rp__free(a->leaves);
    rp_ir_release(a->graph);
    rp__free(a);
}

void rp__aot_free(rp__aot *a) {
    if (!a) return;
    rp__unit_forget_explain(a->forward); /* tapes may hold the units longer than the list lives */
    rp__unit_forget_explain(a->backward);
    release(a);
}

/* ---- compiling */

static rp_status make_unit(rp__aot *a, const rp_backend *leaf, const rp__engine_request *request, rp_ir *graph,
                           const rp__executable_random *random, size_t n_random, const bool *donors, rp__unit **out) {
    const rp__unit_request unit = {.graph = graph,
                                   .leaf = leaf == &rp__leaf_interpreter ? NULL : leaf,
                                   .no_graph = request->options && request->options->no_graph,
                                   .strict = request->options && request->options->strict,
                                   .arena = &a->arena,
                                   .random = random,
                                   .n_random = n_random,
                                   .donors = donors,
                                   .explain = request->explain};
    return rp__unit_new(&unit, out);
}

/* Once no gradient is to be taken any more. */
static rp_status simplify(rp_ir *ir, const rp_backend *leaf, rp_ir **out) {
    rp_ir *parts = NULL;
    if (leaf == &rp__leaf_fused) RP_TRY(rp__decompose(ir, &parts));
    rp_status status = rp__simplify(parts ? parts : ir, true, out);
    rp_ir_release(parts);
    return status;
}

static rp_status compile_inference(rp__aot *a, const rp_backend *leaf, const rp__engine_request *request) {
    rp__executable_random *random = NULL;
    size_t n_random = 0;
    rp_ir *functional = NULL, *simple = NULL;
    RP_TRY(rp__functionalise(request->graph, &functional));
    rp_status status = RP_OK;
    if (rp__leaf_is_program(leaf)) { /* the interpreter and users' leaves draw as they go: they get every node */
        status = rp__random_totals(functional, &random, &n_random); /* also of what goes now */
        if (status == RP_OK) status = simplify(functional, leaf, &simple);
    }
    if (status == RP_OK)
        status = make_unit(a, leaf, request, simple ? simple : functional, random, n_random, NULL, &a->forward);
    rp_ir_release(functional);
    rp_ir_release(simple);
    rp__free(random);
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

/* A saved argument or captured tensor that the function writes: its old value would be gone. */
static bool saves_written(const rp__partitioned *parts) {
    const rp_ir *ir = parts->forward;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->kind != RP__IR_ASSIGN) continue;
        const rp__ir_node *target = rp__ir_producer(ir, n->in[0]);
        for (uint32_t i = 0; i < parts->n_saved; i++) {
            const rp__saved_source *s = &parts->saved[i];
            if (target ? s->kind == RP__SAVED_CAPTURED && s->index == target->captured_index
                       : s->kind == RP__SAVED_ARG && s->index == ir->values[n->in[0]].out_index) {
                return true;
            }
        }
    }
    return false;
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

/* A tensor that carries a gradient, has views that do, and is written in place: the tape finds the history of its views anew and
   adds gradients up in an order of its own, which the functional form does not have. */
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

static rp_status compile_training(rp__aot *a, const rp_backend *leaf, const rp__engine_request *request) {
    rp__executable_random *random = NULL;
    size_t n_random = 0;
    bool fused = rp__leaf_is_program(leaf);
    rp_ir *functional = NULL, *joined = NULL;
    rp__joint joint = {0};
    rp__partitioned parts = {0};
    bool *donors = NULL;
    rp_status status;
    RP_TRY_GOTO(status, done, find_leaves(a));
    if (writes_under_views(a->graph)) {
        status = rp__fail(RP_ERROR_UNAVAILABLE, "a tensor with views is written in place and carries a gradient");
        goto done;
    }
    RP_TRY_GOTO(status, done, rp__functionalise(request->graph, &functional));
    RP_TRY_GOTO(status, done, rp__random_totals(functional, &random, &n_random));
    /* Nothing is simplified before the derivatives are taken: merged values would add up their gradients in another order. */
    RP_TRY_GOTO(status, done, rp__joint_build(functional, a->leaves, a->n_leaves, &joint));
    if (fused) {
        RP_TRY_GOTO(status, done, simplify(joint.ir, leaf, &joined));
        rp_ir_release(joint.ir);
        joint.ir = joined;
    }
    RP_TRY_GOTO(status, done, rp__partition(&joint, !fused, &parts));
    if (saves_written(&parts)) {
        status = rp__fail(RP_ERROR_UNAVAILABLE, "the function writes a tensor whose old value its backward needs");
        goto done;
    }
    donors = rp__calloc(parts.backward->body.n_args + 1u, sizeof *donors);
    if (!donors) {
        status = RP__OOM("backward of a compiled function");
        goto done;
    }
    for (uint32_t k = 0; k < parts.n_saved; k++) {
        donors[k] = is_tapes_own(&parts, &parts.saved[k], a->n_results);
        a->donates = a->donates || donors[k];
    }
    RP_TRY_GOTO(status, done, make_unit(a, leaf, request, parts.forward, random, n_random, NULL, &a->forward));
    RP_TRY_GOTO(status, done, make_unit(a, leaf, request, parts.backward, random, n_random, donors, &a->backward));
    a->saved = parts.saved;
    a->n_saved = parts.n_saved;
    parts.saved = NULL;
    a->tangent_of = joint.tangent_of;
    a->n_tangents = joint.n_tangents;
    joint.tangent_of = NULL;
    if (request->explain) {
        rp__explain_add(request->explain, "memory", RP__REASON_NONE, NULL, parts.saved_bytes,
                        "saved for the backward (%u values; %u nodes are run again)", parts.n_saved,
                        parts.n_recomputed);
    }
done:
    rp__partitioned_free(&parts);
    rp__joint_free(&joint);
    rp__free(random);
    rp__free(donors);
    rp_ir_release(functional);
    return status;
}

rp_status rp__aot_compile(const rp_backend *leaf, const rp__engine_request *request, rp__aot **out) {
    rp__aot *a = rp__calloc(1, sizeof *a);
    if (!a) return RP__OOM("compiled graph");
    atomic_init(&a->refs, 1);
    a->graph = rp__ir_retain(request->graph);
    a->n_symbols = rp__symbols_count(a->graph->symbols);
    a->n_results = a->graph->body.n_results;
    rp__symbols *outer = rp__symbols_enter(a->graph->symbols);
    bool training = request->training && !request->segment;
    rp_status status = training ? compile_training(a, leaf, request) : compile_inference(a, leaf, request);
    (void)rp__symbols_enter(outer);
    bool strict = request->options && request->options->strict;
    if (status == RP_ERROR_UNAVAILABLE && !strict) { /* a graph, but not one that these passes can take */
        if (request->explain) {
            rp__explain_add(request->explain, "skip", RP__REASON_NOT_DIFFERENTIATED, NULL, 1, "%s", rp_error_message());
        }
        (void)rp_error_take();
        rp__unit_free(a->forward);
        a->forward = NULL;
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

typedef struct payload {
    rp__aot *aot; /* counted */
    rp__saved *saved;
    uint32_t n_saved; /* packed so far */
    int64_t *binding;
    rp__executable_random *draws;
    size_t n_draws;
} payload;

static void drop_saved(payload *p) {
    for (uint32_t k = 0; k < p->n_saved; k++) rp__saved_drop(&p->saved[k]);
    p->n_saved = 0;
}

static void node_release_saved(rp__tape_node *n) {
    payload *p = n->payload;
    n->released = n->released || p->n_saved > 0;
    drop_saved(p);
}

static void payload_free(payload *p) {
    if (!p) return;
    drop_saved(p);
    for (size_t k = 0; k < p->n_draws; k++) rp_generator_release(p->draws[k].generator);
    rp__free(p->draws);
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

/* What the tape saved is read for the last time. A capture may be played again without the forward; a checkpoint keeps what it made
   again for others. */
static bool may_overwrite(const rp__tape_node *n) {
    const payload *p = n->payload;
    if (!p->aot->donates || rp__tape_retains() || (n->stream && n->stream->capture)) return false;
    for (uint32_t k = 0; k < p->n_saved; k++) {
        if (p->saved[k].checkpoint) return false;
    }
    return true;
}

static rp_status node_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    payload *p = n->payload;
    rp__aot *a = p->aot;
    if (create_graph) {
        return rp__fail(RP_ERROR_UNAVAILABLE,
                        "the backward of a compiled function cannot be differentiated again: call the "
                        "function outside rp_compile, or use backend \"eager\"");
    }
    uint32_t n_in = a->n_saved + a->n_tangents;
    rp_tensor **tensors = rp__calloc((size_t)n_in + a->n_leaves + 1, sizeof *tensors), **grads = tensors + n_in;
    if (!tensors) return RP__OOM("backward of a compiled function");
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < a->n_saved && status == RP_OK; k++) {
        tensors[k] = rp__saved_unpack(&p->saved[k], n);
        if (rp__tensor_is_error(tensors[k])) status = rp_error_status();
    }
    for (uint32_t k = 0; k < a->n_tangents && status == RP_OK; k++) {
        tensors[a->n_saved + k] = tangent(n, grad_out, k);
        if (rp__tensor_is_error(tensors[a->n_saved + k])) status = rp_error_status();
    }
    if (status == RP_OK) {
        const rp__unit_call call = {
            .binding = p->binding, .draws = p->draws, .n_draws = p->n_draws, .donate = may_overwrite(n)};
        status = rp__unit_run(a->backward, &call, tensors, n_in, grads, a->n_leaves);
    }
    for (uint32_t k = 0; k < a->n_leaves && status == RP_OK; k++) grad_in[k] = rp__tape_needs(n, k) ? grads[k] : NULL;
    rp__free(tensors);
    return status;
}

static const rp__tape_class compiled_class = {"compiled", node_backward, node_release_saved, node_destroy};

static rp_status keep_draws(rp__aot *a, payload *p) {
    size_t n;
    const rp__executable_random *draws = rp__unit_draws(a->forward, p->binding, &n);
    if (n == 0) return RP_OK;
    p->draws = rp__calloc(n, sizeof *p->draws);
    if (!p->draws) return RP__OOM("a compiled function");
    for (size_t k = 0; k < n; k++) {
        p->draws[p->n_draws++] = draws[k];
        (void)rp__generator_retain(draws[k].generator);
    }
    return RP_OK;
}

static rp_status attach(rp__aot *a, const int64_t *binding, rp_tensor *const *in, rp_tensor **results) {
    payload *p = rp__calloc(1, sizeof *p);
    rp_tensor **ends = rp__calloc((size_t)a->n_leaves + a->n_tangents + 1, sizeof *ends);
    rp_status status = p && ends ? RP_OK : RP__OOM("a compiled function");
    if (p) {
        p->aot = a;
        atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
        p->saved = rp__calloc(a->n_saved + 1u, sizeof *p->saved);
        p->binding = rp__calloc(a->n_symbols + 1, sizeof *p->binding);
        if (status == RP_OK && (!p->saved || !p->binding)) status = RP__OOM("a compiled function");
    }
    if (status == RP_OK && a->n_symbols) memcpy(p->binding, binding, a->n_symbols * sizeof *binding);
    if (status == RP_OK) status = keep_draws(a, p);
    for (uint32_t k = 0; k < a->n_saved && status == RP_OK; k++) {
        const rp__saved_source *s = &a->saved[k];
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

static rp_status run(rp__aot *a, const int64_t *binding, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                     size_t n_out) {
    const rp__unit_call call = {.binding = binding};
    if (!a->backward) return rp__unit_run(a->forward, &call, in, n_in, out, n_out);
    uint32_t n_results = a->n_results;
    for (uint32_t k = 0; k < a->n_saved; k++) {
        if (a->saved[k].kind == RP__SAVED_RESULT && a->saved[k].index >= n_results) n_results = a->saved[k].index + 1;
    }
    rp_tensor *few[RP__FEW_OPERANDS], **results = few;
    if (n_results > RP__FEW_OPERANDS) {
        results = rp__calloc(n_results, sizeof *results);
        if (!results) return RP__OOM("results of a compiled function");
    }
    rp_scope scope = rp__scope_begin();
    bool grad_mode = rp_set_grad_enabled(false);
    rp_status status = rp__unit_run(a->forward, &call, in, n_in, results, n_results);
    (void)rp_set_grad_enabled(grad_mode);
    if (status == RP_OK) status = attach(a, binding, in, results);
    if (status == RP_OK) memcpy(out, results, n_out * sizeof *out);
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    if (results != few) rp__free(results);
    return status;
}

rp_status rp__aot_run(rp__aot *a, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    if (a->on_tape) return rp__ir_run(a->graph, in, n_in, out, n_out, NULL);
    if (RP__UNLIKELY(n_in != a->graph->body.n_args || n_out != a->n_results)) {
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the graph takes %u arguments and gives %u results, not %zu and %zu",
                        a->graph->body.n_args, a->n_results, n_in, n_out);
    }
    if (RP__LIKELY(a->n_symbols == 0)) return run(a, NULL, in, n_in, out, n_out);
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
    rp_ir_release(compiled);
}

const rp_backend rp__leaf_interpreter = {sizeof(rp_backend), "interpreter",       interpreter_compile,
                                         interpreter_run,    interpreter_destroy, NULL};
