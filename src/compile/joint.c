/* Joint graph: a traced graph with its derivatives, recorded as the tape takes them.
   Requires  a graph as traced: in-place ops, views, blocks and custom functions as the function called them.
   After it  (inputs, tangents) -> (results, gradients), functional (functionalise.c).
   The graph is run node by node under the tape inside an abstract trace, and differentiated there. So what the tape does for an
   eager call is what is recorded: histories of views that were written, checkpoints, blocks, the order in which gradients are added
   up; a compiled gradient has the bits of an eager one. Captured tensors are arguments of the trace, which changes no history of
   theirs, and captured tensors again behind it.
   Refused (RP_ERROR_UNAVAILABLE, the caller runs the tape instead): what the tape refuses, now or in a backward; an argument that
   is written with a value that needs a gradient; an op that works in place on many tensors. */
#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "trace/ir_run.h"
#include "trace/trace.h"

typedef struct recording {
    const rp_ir *ir;
    const rp__joint *joint;
    const int64_t *binding;         /* values of its symbols; NULL: they stay */
    rp_dim *words;                  /* what stands for them */
    rp__ir_value_info *info;        /* of the trace's arguments: those of ir, its captured tensors, tangents */
    const rp__ir_value_info **args; /* the same */
    uint32_t n_args;                /* of them, before tangents */
    rp_status status;
} recording;

/* ---- inside the trace */

/* From results with tangents to leaves. */
static rp_status differentiate(const recording *r, rp_tensor *const *in, rp_tensor *const *results, rp_tensor **grads) {
    const rp__joint *j = r->joint;
    rp_tensor **roots = rp__calloc(j->n_tangents + j->n_grads + 1u, sizeof *roots);
    if (!roots) return RP__OOM("derivatives");
    rp_tensor **leaves = roots + j->n_tangents;
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < j->n_tangents && status == RP_OK; k++) {
        roots[k] = results[j->tangent_of[k]];
        if (!rp__grad_needed(roots[k])) status = rp__fail(RP_ERROR_UNAVAILABLE, "a gradient through what is no op");
    }
    for (uint32_t k = 0; k < j->n_grads; k++) leaves[k] = in[j->grad_arg[k]];
    if (status == RP_OK) /* a history that is gone would leave no mark on results: it stays */
        status = rp__tape_grads(roots, in + r->n_args, j->n_tangents, leaves, j->n_grads, grads, true, false);
    rp__free(roots);
    return status;
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    recording *r = ctx;
    const rp__ir_block *of = &r->ir->body;
    const rp__ir_run_options options = {.captured = in + of->n_args, .binding = r->words, .whole = true};
    rp__checkpoint_state around; /* a function that is run for a checkpoint may be compiled meanwhile */
    (void)n_in, (void)n_out;
    rp__checkpoint_suspend(&around);
    r->status = rp__ir_run(r->ir, in, of->n_args, out, of->n_results, &options);
    if (r->status == RP_OK) r->status = differentiate(r, in, out, out + of->n_results);
    rp__checkpoint_resume(&around);
}

/* ---- before it */

static rp_status sized(const recording *r, rp_dim *d) {
    const rp__symbols *s = r->ir->symbols;
    if (!s || !r->binding || !rp__dim_is_symbol(*d)) return RP_OK;
    int64_t value;
    if (!rp__symbols_value(s, *d, r->binding, &value))
        return rp__fail(RP_ERROR_SHAPE, "a size of the graph overflows for these arguments");
    *d = value;
    return RP_OK;
}

static rp_status take_info(recording *r, uint32_t k, rp__ir_value v, bool tangent) {
    rp__ir_value_info *info = &r->info[k];
    const uint64_t failures = rp__error_count();
    *info = r->ir->values[v];
    for (unsigned d = 0; d < info->meta.ndim; d++) {
        RP_TRY(sized(r, &info->meta.size[d]));
        RP_TRY(sized(r, &info->stride[d]));
    }
    RP_TRY(sized(r, &info->offset));
    if (!tangent) return RP_OK;
    info->requires_grad = false;
    rp__contiguous_strides(info->meta.size, info->meta.ndim, info->stride);
    return rp__status_since(failures);
}

static rp_status take_types(recording *r) {
    const rp_ir *ir = r->ir;
    const rp__ir_block *of = &ir->body;
    const rp__joint *j = r->joint;
    size_t n_symbols = rp__symbols_count(ir->symbols), n = r->n_args + j->n_tangents;
    r->info = rp__calloc(n + 1, sizeof *r->info);
    r->args = rp__calloc(n + 1, sizeof *r->args);
    r->words = rp__calloc(n_symbols + 1, sizeof *r->words);
    if (!r->info || !r->args || !r->words) return RP__OOM("derivatives");
    for (size_t k = 0; k < n_symbols; k++) r->words[k] = r->binding ? r->binding[k] : rp__symbols_word(ir->symbols, k);
    for (size_t k = 0; k < n; k++) {
        r->info[k].meta.dtype = RP_F32; /* a captured tensor that nobody reads any more */
        r->args[k] = &r->info[k];
    }
    for (uint32_t k = 0; k < of->n_args; k++) RP_TRY(take_info(r, k, of->args[k], false));
    for (size_t i = 0; i < of->n_nodes; i++) {
        const rp__ir_node *c = &ir->nodes[of->nodes[i]];
        if (!c->dead && c->kind == RP__IR_CAPTURED)
            RP_TRY(take_info(r, of->n_args + c->captured_index, c->out[0], false));
    }
    for (uint32_t k = 0; k < j->n_tangents; k++)
        RP_TRY(take_info(r, r->n_args + k, of->results[j->tangent_of[k]], true));
    return RP_OK;
}

/* ---- behind it */

/* What the tape gives to memory from outside, and what has no functional form, are the caller's affair. */
static rp_status check_writes(const rp_ir *ir) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        if (n->kind == RP__IR_ASSIGN && ir->values[n->in[1]].requires_grad)
            return rp__fail(RP_ERROR_UNAVAILABLE, "an argument is written with a value that needs a gradient at %s",
                            n->site ? n->site : "");
        if (n->kind == RP__IR_OP && rp__ir_node_has_effect(ir, n))
            return rp__fail(RP_ERROR_UNAVAILABLE, "%s, in place, in a function that is differentiated", n->op->name);
    }
    return RP_OK;
}

/* Argument k of the trace: an argument, or the captured tensor that it stands for; laid out as that is. */
static rp_status place(const recording *r, rp__rewrite *w, uint32_t k) {
    const uint32_t first = r->ir->body.n_args;
    const rp__ir_value v = w->src->body.args[k];
    if (k < first || k >= r->n_args) {
        RP_TRY(rp__rewrite_arg(w, v));
    } else {
        rp_ir *dst = w->dst;
        uint32_t node =
            rp__ir_add_node(dst, &dst->body, RP__IR_CAPTURED, NULL, NULL, 0, NULL, NULL, 0, 1, r->info[k].site);
        if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        RP_TRY(rp__ir_set_captured(dst, node, r->ir->captured[k - first]));
        w->map[v] = rp__ir_set_out(dst, node, 0, &w->src->values[v].meta);
        if (w->map[v] == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    }
    rp__ir_value_info *made = &w->dst->values[w->map[v]];
    memcpy(made->stride, r->info[k].stride, sizeof made->stride);
    made->offset = r->info[k].offset;
    made->requires_grad = r->info[k].requires_grad;
    return RP_OK;
}

static rp_status place_all(const recording *r, const rp_ir *from, rp_ir **out) {
    rp__rewrite w;
    rp_status status = rp__rewrite_begin_bare(&w, from);
    for (uint32_t k = 0; k < from->body.n_args && status == RP_OK; k++) status = place(r, &w, k);
    for (size_t k = 0; k < from->body.n_nodes && status == RP_OK; k++) {
        if (!from->nodes[from->body.nodes[k]].dead) status = rp__rewrite_copy(&w, &w.dst->body, from->body.nodes[k]);
    }
    if (status == RP_OK) status = rp__rewrite_results(&w, &from->body, &w.dst->body);
    return rp__rewrite_end(&w, status, "joint", out);
}

/* ---- the pass */

bool rp__joint_has_tangent(const rp_ir *ir, uint32_t k, uint64_t given) {
    const rp__ir_value v = ir->body.results[k];
    if (v == RP__IR_NONE || rp__ir_is_outer(ir, v) || (k < 64 && !(given >> k & 1))) return false;
    const rp__ir_value_info *info = &ir->values[v];
    return (info->requires_grad || info->late_grad) && rp__dtype_is_float(info->meta.dtype);
}

static rp_status take_ends(const rp_ir *ir, const uint32_t *leaves, uint32_t n_leaves, uint64_t given, rp__joint *j) {
    j->n_inputs = ir->body.n_args;
    j->n_results = ir->body.n_results;
    j->tangent_of = rp__alloc((j->n_results + 1u) * sizeof *j->tangent_of);
    j->grad_arg = rp__alloc((n_leaves + 1u) * sizeof *j->grad_arg);
    if (!j->tangent_of || !j->grad_arg) return RP__OOM("tangents");
    for (uint32_t k = 0; k < j->n_results; k++)
        if (rp__joint_has_tangent(ir, k, given)) j->tangent_of[j->n_tangents++] = k;
    if (n_leaves) memcpy(j->grad_arg, leaves, n_leaves * sizeof *leaves);
    j->n_grads = n_leaves;
    return RP_OK;
}

static rp_status record(recording *r, rp_ir **out) {
    const rp__joint *j = r->joint;
    rp__trace_result result = {0};
    const rp__trace_request request = {.mode = RP__TRACE_ABSTRACT,
                                       .fn = {body, r, 0, r->ir->name},
                                       .n_in = r->n_args + j->n_tangents,
                                       .n_out = j->n_results + j->n_grads,
                                       .arg_info = r->args,
                                       .symbols = r->binding ? NULL : r->ir->symbols};
    bool grad = rp_set_grad_enabled(true);
    rp_status status = rp__trace_run(&request, NULL, &result);
    (void)rp_set_grad_enabled(grad);
    if (status == RP_OK) status = r->status;
    if (status == RP_OK && result.ir->n_captured > 0)
        status = rp__fail(RP_ERROR_UNAVAILABLE, "a derivative of a value that is not in the graph");
    if (status == RP_OK) {
        *out = result.ir;
        result.ir = NULL;
        (*out)->body.n_results = (uint32_t)request.n_out;
    }
    rp__trace_result_free(&result);
    return status;
}

rp_status rp__joint_build(const rp_ir *ir, const int64_t *binding, const uint32_t *leaves, uint32_t n_leaves,
                          uint64_t given, rp__joint *out) {
    recording r = {.ir = ir, .joint = out, .binding = binding, .n_args = ir->body.n_args + (uint32_t)ir->n_captured};
    rp_ir *recorded = NULL, *functional = NULL;
    rp_status status;
    memset(out, 0, sizeof *out);
    RP_TRY_GOTO(status, done, take_ends(ir, leaves, n_leaves, given, out));
    RP_TRY_GOTO(status, done, take_types(&r));
    RP_TRY_GOTO(status, done, record(&r, &recorded));
    RP_TRY_GOTO(status, done, rp__functionalise(recorded, &functional));
    RP_TRY_GOTO(status, done, check_writes(functional));
    status = place_all(&r, functional, &out->ir);
done:
    rp__ir_release(recorded);
    rp__ir_release(functional);
    rp__free(r.info);
    rp__free(r.args);
    rp__free(r.words);
    if (status == RP_OK) return RP_OK;
    rp__joint_free(out);
    if (status == RP_ERROR_OUT_OF_MEMORY || status == RP_ERROR_UNAVAILABLE) return status;
    char why[1024]; /* the tape tells it when it comes to it */
    (void)snprintf(why, sizeof why, "%s", rp_error_message());
    (void)rp_error_take();
    return rp__fail(RP_ERROR_UNAVAILABLE, "%s", why);
}

void rp__joint_free(rp__joint *j) {
    if (j->ir) rp__ir_release(j->ir);
    rp__free(j->tangent_of);
    rp__free(j->grad_arg);
    memset(j, 0, sizeof *j);
}
