/* What AOT autograd asks of a traced graph before it is differentiated: what gradients are for, what they come from, what is
   written, and whether the functional form has the derivative that the tape would have. Makes no graph. */
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

static bool is_part(const rp_ir *ir, rp__ir_value v) { /* of a tensor, or the tensor */
    const rp__ir_node *n = rp__ir_producer(ir, v);
    for (; rp__ir_is_view(n); n = rp__ir_producer(ir, n->in[0]))
        if (!n->op->inverse) return false;
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
rp_status rp__aot_check_views(const rp_ir *ir) {
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
rp_status rp__aot_find_written(rp__aot *a, const rp_ir *functional) {
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
        a->writes[leaf] = differentiated ? RP__AOT_KEEPS_OLD : RP__AOT_NEEDS_NONE;
    }
    rp__free(reached);
    return status;
}

rp_status rp__aot_find_tangents(rp__aot *a, const rp_ir *functional) {
    for (uint32_t k = 0; k < functional->body.n_results; k++) {
        rp__ir_value v = a->graph->body.results[k], now = functional->body.results[k];
        if (v != RP__IR_NONE && a->graph->values[v].late_grad && !functional->values[now].requires_grad)
            return rp__fail(RP_ERROR_UNAVAILABLE, "a result whose history came with a write that is not part of it");
    }
    a->tangent_of = rp__calloc(functional->body.n_results + 1u, sizeof *a->tangent_of);
    if (!a->tangent_of) return RP__OOM("compiled graph");
    for (uint32_t k = 0; k < functional->body.n_results; k++)
        if (rp__joint_has_tangent(functional, k, RP__AOT_EVERY)) a->tangent_of[a->n_tangents++] = k;
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
