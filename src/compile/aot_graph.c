/* What AOT autograd asks of a traced graph before it is differentiated: what gradients are for, what they come from, and what is
   written. Makes no graph. */
#include <string.h>

#include "compile/aot_parts.h"
#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "ops/grad.h"

static bool wants_gradient(const rp__ir_value_info *info) {
    return info->requires_grad && rp__dtype_is_float(info->meta.dtype);
}

rp_status rp__aot_find_leaves(rp__aot *a) {
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

/* Which arguments and captured tensors the function writes, and of which what is differentiated depends on the old value. */
rp_status rp__aot_find_written(rp__aot *a, const rp_ir *functional) {
    const rp__ir_block *body = &functional->body;
    size_t n = body->n_args + functional->n_captured;
    a->writes = rp__calloc(n + 1, sizeof *a->writes);
    bool *reached = rp__calloc(functional->n_values + 1, sizeof *reached);
    rp_status status = a->writes && reached ? RP_OK : RP__OOM("compiled graph");
    for (size_t v = 0; v < functional->n_values && status == RP_OK; v++)
        reached[v] = functional->values[v].requires_grad;
    for (size_t i = body->n_nodes; i-- > 0 && status == RP_OK;) {
        const rp__ir_node *m = &functional->nodes[body->nodes[i]];
        bool leads = false;
        for (uint32_t r = 0; r < m->n_out && !m->dead; r++) leads = leads || reached[m->out[r]];
        for (uint32_t r = 0; r < m->n_in && leads; r++)
            if (m->in[r] != RP__IR_NONE) reached[m->in[r]] = true;
    }
    for (size_t k = 0; k < body->n_nodes && status == RP_OK; k++) {
        const rp__ir_node *w = &functional->nodes[body->nodes[k]];
        if (w->dead || w->kind != RP__IR_ASSIGN) continue;
        const rp__ir_node *made = rp__ir_producer(functional, w->in[0]);
        size_t leaf = made ? body->n_args + made->captured_index : functional->values[w->in[0]].out_index;
        a->writes[leaf] = reached[w->in[0]] ? RP__AOT_KEEPS_OLD : RP__AOT_NEEDS_NONE;
    }
    rp__free(reached);
    return status;
}

rp_status rp__aot_find_tangents(rp__aot *a) {
    const uint32_t n = a->graph->body.n_results;
    a->tangent_of = rp__calloc(n + 1u, sizeof *a->tangent_of);
    if (!a->tangent_of) return RP__OOM("compiled graph");
    for (uint32_t k = 0; k < n; k++)
        if (rp__joint_has_tangent(a->graph, k, RP__AOT_EVERY)) a->tangent_of[a->n_tangents++] = k;
    return RP_OK;
}

/* The bits of `given` that say something of this graph, RP__AOT_EVERY if those are all. */
uint64_t rp__aot_plannable(const rp__aot *a, uint64_t given) {
    uint64_t all = 0;
    for (uint32_t k = 0; k < a->n_tangents; k++) {
        if (a->tangent_of[k] >= 64) return RP__AOT_EVERY;
        all |= UINT64_C(1) << a->tangent_of[k];
    }
    return (given & all) == 0 || (given & all) == all ? RP__AOT_EVERY : given & all;
}

/* Saved memory that nobody but the tape has a handle of: made by the forward, and no part of another result. */
bool rp__aot_is_tapes_own(const rp__partitioned *parts, const rp__saved_source *s, uint32_t n_results) {
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
