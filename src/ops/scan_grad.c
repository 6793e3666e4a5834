/* Derivatives of scan.c. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_cumsum(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0];
    if (g->out_meta[0].dtype != g->in_meta[0].dtype) grad = rp_to_dtype(grad, g->in_meta[0].dtype);
    g->grad_in[0] = rp_cumsum_reversed(grad, rp__attr_int(g->call, 0));
    return RP_OK;
}

rp_status rp__vjp_cumsum_reversed(const rp__vjp *g) {
    g->grad_in[0] = rp_cumsum(g->grad_out[0], rp__attr_int(g->call, 0));
    return RP_OK;
}
