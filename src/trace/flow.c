/* The flow of gradients through a body (flow.h): forward, node by node. A node with regions is taken as a whole: its results
   carry if an operand does. */
#include "trace/flow.h"

#include <string.h>

#include "core/alloc.h"

static rp_status widen(bool **flags, size_t *capacity, size_t *n, size_t needed) {
    if (needed <= *n) return RP_OK;
    if (!RP__GROW(flags, capacity, needed)) return RP__OOM("trace");
    memset(*flags + *n, 0, (needed - *n) * sizeof **flags);
    *n = needed;
    return RP_OK;
}

static void through_node(rp__flow *f, const rp_ir *ir, const rp__ir_node *n) {
    bool carries = false;
    if (n->kind == RP__IR_OP && n->op == RP__OP(detach)) return;
    for (uint32_t k = 0; k < n->n_in && !carries; k++) carries = rp__flow_carries(f, ir, n->in[k]);
    if (!carries) return;
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (rp__ir_writes(n, k)) f->written[ir->values[n->in[k]].storage] = true;
    }
    for (uint32_t k = 0; k < n->n_out; k++) f->value[n->out[k]] = true;
}

rp_status rp__flow_advance(rp__flow *f, const rp_ir *ir, const bool *args) {
    RP_TRY(widen(&f->value, &f->value_capacity, &f->values, ir->n_values + 1));
    RP_TRY(widen(&f->written, &f->storage_capacity, &f->storages, ir->n_storages + 1u));
    for (uint32_t k = 0; k < ir->body.n_args; k++) f->value[ir->body.args[k]] = !args || args[k];
    for (; f->next < ir->body.n_nodes; f->next++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[f->next]];
        if (!n->dead) through_node(f, ir, n);
    }
    return RP_OK;
}

bool rp__flow_in_memory(const rp__flow *f, const rp_ir *ir, rp__ir_value v) {
    uint32_t storage = ir->values[v].storage;
    bool any = f->written[storage];
    for (size_t k = 0; k < ir->n_values && !any; k++) any = ir->values[k].storage == storage && f->value[k];
    return any;
}

void rp__flow_free(rp__flow *f) {
    rp__free(f->value);
    rp__free(f->written);
    *f = (rp__flow){0};
}
