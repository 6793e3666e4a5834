/* Derivatives of rearrange.c. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_flip(const rp__vjp *g) {
    g->grad_in[0] = rp_flip(g->grad_out[0], g->call->attrs[0].v.ints, g->call->attrs[0].n);
    return RP_OK;
}
rp_status rp__vjp_tril(const rp__vjp *g) {
    g->grad_in[0] = rp_tril(g->grad_out[0], rp__attr_int(g->call, 0));
    return RP_OK;
}
rp_status rp__vjp_triu(const rp__vjp *g) {
    g->grad_in[0] = rp_triu(g->grad_out[0], rp__attr_int(g->call, 0));
    return RP_OK;
}
