/* Blocks: regions as graphs of their own, which the passes behind this one (fuse, order, plan, lowering) take like any other.
   Requires  a functional graph with concrete sizes.
   Keeps     every value; nodes and their order.
   After it  the state of a loop is memory that the loop writes: operand k of a WHILE, k < n_out, is a fresh row-major value that
             nobody else reads, and result k lies in it. In the graph of a block
             - arguments have the layout of the operands behind them (a block takes what is there; state is row-major);
             - results of a branch and of a loop's condition are fresh, row-major, one storage each;
             - a loop's body has no results: it ends with an ASSIGN to each state that changes. */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"

static rp_status emit_clone(rp__rewrite *w, rp__ir_value *v, const char *site) {
    const rp_attr format = {.kind = RP_ATTR_INT, .v.i = RP_CONTIGUOUS_FORMAT};
    rp__meta meta = w->dst->values[*v].meta;
    rp__ir_value in = *v;
    return rp__ir_emit(w->dst, &w->dst->body, RP__OP(clone), &in, 1, &format, 1, &meta, 1, site, v);
}

/* Memory that its node makes, row-major: not a view, an argument, a captured tensor or a constant. */
static bool is_fresh(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_node *n = rp__ir_producer(ir, v);
    if (!n || n->kind == RP__IR_CAPTURED || n->kind == RP__IR_CONST || rp__ir_is_view(n)) return false;
    if (n->kind == RP__IR_OP && (n->op->flags & RP_OP_INPLACE)) return false;
    return ir->values[v].offset == 0 && rp__ir_value_contiguous(&ir->values[v]);
}

static rp_status copy_loop(rp__rewrite *w, uint32_t index, const uint32_t *uses) {
    const rp__ir_node *n = &w->src->nodes[index];
    rp__ir_value *in = rp__alloc((n->n_in + 1u) * sizeof *in);
    if (!in) return RP__OOM("operands of a loop");
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < n->n_in && status == RP_OK; k++) {
        in[k] = w->map[n->in[k]];
        if (k < n->n_out && !(uses[n->in[k]] == 1 && is_fresh(w->dst, in[k]))) status = emit_clone(w, &in[k], n->site);
    }
    if (status == RP_OK) status = rp__rewrite_copy_with(w, &w->dst->body, index, in);
    for (uint32_t k = 0; k < n->n_out && status == RP_OK; k++)
        w->dst->values[w->map[n->out[k]]].storage = w->dst->values[in[k]].storage;
    rp__free(in);
    return status;
}

static rp_status copy_nodes(rp__rewrite *w, const rp__ir_block *from) {
    const rp_ir *src = w->src;
    uint32_t *uses = rp__calloc(src->n_values + 1, sizeof *uses);
    if (!uses) return RP__OOM("a block of a graph");
    for (size_t k = 0; k < from->n_nodes; k++) {
        const rp__ir_node *n = &src->nodes[from->nodes[k]];
        for (uint32_t i = 0; i < n->n_in && !n->dead; i++) uses[n->in[i] == RP__IR_NONE ? src->n_values : n->in[i]]++;
    }
    for (uint32_t k = 0; k < from->n_results; k++)
        uses[from->results[k] == RP__IR_NONE ? src->n_values : from->results[k]]++;
    rp_status status = RP_OK;
    for (size_t k = 0; k < from->n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &src->nodes[from->nodes[k]];
        if (n->dead) continue;
        status = n->kind == RP__IR_WHILE ? copy_loop(w, from->nodes[k], uses)
                                         : rp__rewrite_copy(w, &w->dst->body, from->nodes[k]);
    }
    rp__free(uses);
    return status;
}

rp_status rp__blocks_settle(const rp_ir *ir, rp_ir **out) {
    bool loops = false;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        loops = loops || (!n->dead && n->kind == RP__IR_WHILE);
    }
    if (!loops) {
        *out = rp__ir_retain((rp_ir *)(uintptr_t)ir);
        return RP_OK;
    }
    rp__rewrite w;
    rp_status status = rp__rewrite_begin(&w, ir);
    if (status == RP_OK) status = copy_nodes(&w, &ir->body);
    if (status == RP_OK) status = rp__rewrite_results(&w, &ir->body, &w.dst->body);
    return rp__rewrite_end(&w, status, "blocks", out);
}

static rp_status take_args(rp__rewrite *w, const rp__ir_node *n, const rp__ir_block *from) {
    uint32_t first = n->kind == RP__IR_COND, n_state = n->kind == RP__IR_WHILE ? n->n_out : 0;
    for (uint32_t k = 0; k < from->n_args; k++) RP_TRY(rp__rewrite_arg(w, from->args[k]));
    for (uint32_t k = n_state; k < from->n_args; k++) {
        rp__ir_value v = w->map[from->args[k]];
        const rp__ir_value_info *operand = &w->src->values[n->in[first + k]];
        rp__ir_value_info *info = &w->dst->values[v];
        memcpy(info->stride, operand->stride, sizeof info->stride);
        info->offset = operand->offset;
        /* Views inside were traced on a row-major tensor, and may exist of that only. */
        if (!rp__ir_value_contiguous(info)) RP_TRY(emit_clone(w, &w->map[from->args[k]], n->site));
    }
    return RP_OK;
}

static rp_status give_results(rp__rewrite *w, const rp__ir_node *n, const rp__ir_block *from) {
    rp__ir_block *body = &w->dst->body;
    RP_TRY(rp__rewrite_results(w, from, body));
    for (uint32_t k = 0; k < body->n_results; k++) {
        if (body->results[k] == RP__IR_NONE)
            return rp__fail(RP_ERROR_INTERNAL, "a block of a graph leaves result %u out", k);
        bool fresh = is_fresh(w->dst, body->results[k]);
        for (uint32_t i = 0; i < k && fresh; i++)
            fresh = w->dst->values[body->results[i]].storage != w->dst->values[body->results[k]].storage;
        if (!fresh) RP_TRY(emit_clone(w, &body->results[k], n->site));
    }
    return RP_OK;
}

/* All reads of the old state come before, or are of the same element in the same kernel. */
static rp_status assign_state(rp__rewrite *w, const rp__ir_node *n, const rp__ir_block *from) {
    rp_ir *dst = w->dst;
    rp__ir_value *next = rp__alloc((n->n_out + 1u) * sizeof *next);
    if (!next) return RP__OOM("state of a loop");
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < n->n_out && status == RP_OK; k++) {
        next[k] = w->map[from->results[k]];
        rp__ir_value root = rp__ir_root(dst, next[k]);
        bool state = dst->values[root].node == RP__IR_NONE && dst->values[root].out_index < n->n_out;
        if (next[k] != dst->body.args[k] && state) status = emit_clone(w, &next[k], n->site);
    }
    for (uint32_t k = 0; k < n->n_out && status == RP_OK; k++) {
        if (next[k] != dst->body.args[k])
            status = rp__ir_emit_assign(dst, &dst->body, dst->body.args[k], next[k], n->site);
    }
    if (status == RP_OK) status = rp__ir_set_results(dst, &dst->body, NULL, 0);
    rp__free(next);
    return status;
}

/* The block as a graph that any pass takes: loops inside are as they were traced, results in whatever memory. */
rp_status rp__block_open(const rp_ir *ir, uint32_t node, uint32_t region, rp_ir **out) {
    const rp__ir_node *n = &ir->nodes[node];
    const rp__ir_block *from = &n->regions[region];
    rp__rewrite w;
    rp_status status = rp__rewrite_begin_bare(&w, ir);
    if (status == RP_OK) status = take_args(&w, n, from);
    for (size_t k = 0; k < from->n_nodes && status == RP_OK; k++) {
        if (!ir->nodes[from->nodes[k]].dead) status = rp__rewrite_copy(&w, &w.dst->body, from->nodes[k]);
    }
    if (status == RP_OK) status = rp__rewrite_results(&w, from, &w.dst->body);
    return rp__rewrite_end(&w, status, "block", out);
}

rp_status rp__block_settle(const rp_ir *block, const rp_ir *ir, uint32_t node, uint32_t region, rp_ir **out) {
    const rp__ir_node *n = &ir->nodes[node];
    const bool loops = n->kind == RP__IR_WHILE && region == 1;
    rp__rewrite w;
    rp_status status = rp__rewrite_begin(&w, block);
    if (status == RP_OK) status = copy_nodes(&w, &block->body);
    if (status == RP_OK) status = loops ? assign_state(&w, n, &block->body) : give_results(&w, n, &block->body);
    return rp__rewrite_end(&w, status, "settled block", out);
}
