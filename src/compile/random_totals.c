/* Random totals: how many counters a function takes of each generator, also through ops that later passes remove.
   Requires  a functional graph whose random nodes have their places (offset and count, numbers or words of symbols).
   Keeps     the graph. */
#include <string.h>

#include "compile/passes.h"
#include "core/alloc.h"

rp_generator *rp__random_generator(const rp__ir_node *n) {
    for (uint32_t k = 0; k < n->n_attrs; k++) {
        if (n->attrs[k].kind == RP_ATTR_GENERATOR) return n->attrs[k].v.generator;
    }
    return NULL;
}

rp_status rp__random_totals(const rp_ir *ir, rp__executable_random **out, size_t *n) {
    size_t capacity = 0;
    *out = NULL;
    *n = 0;
    for (size_t k = 0; k < ir->n_nodes; k++) {
        const rp__ir_node *node = &ir->nodes[k];
        if (node->dead || node->kind != RP__IR_OP || !(node->op->flags & RP_OP_RANDOM)) continue;
        rp_generator *g = rp__random_generator(node);
        if (!g) {
            rp__device *d = rp__device_get(ir->values[node->out[0]].meta.device);
            if (!d) goto failed;
            g = d->generator;
        }
        size_t i = 0;
        while (i < *n && (*out)[i].generator != g) i++;
        if (i == *n) {
            if (!RP__GROW(out, &capacity, *n + 1)) {
                (void)RP__OOM("random state of a program");
                goto failed;
            }
            (*out)[(*n)++] = (rp__executable_random){.generator = g};
        }
        rp_dim end = rp__dim_apply(RP__DIM_ADD, node->random_offset, node->random_count);
        (*out)[i].count = (uint64_t)rp__dim_apply(RP__DIM_MAX, (rp_dim)(*out)[i].count, end);
    }
    return RP_OK;
failed:
    rp__free(*out);
    *out = NULL;
    *n = 0;
    return rp_error_status();
}
