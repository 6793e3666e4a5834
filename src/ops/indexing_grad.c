/* Derivatives of indexing.c: what was read at a place is added up there. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_index_select(const rp__vjp *g) {
    g->grad_in[0] =
        rp_index_add(rp__zeros_of(&g->in_meta[0]), rp__attr_int(g->call, 0), g->call->in[1], g->grad_out[0]);
    return RP_OK;
}

rp_status rp__vjp_index_load(const rp__vjp *g) {
    g->grad_in[0] =
        rp_index_put(rp__zeros_of(&g->in_meta[0]), g->call->in + 1, g->call->n_in - 1, g->grad_out[0], true);
    return RP_OK;
}
