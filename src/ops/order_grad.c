/* Derivatives of order.c. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_gather_shared(const rp__vjp *g) {
    rp_tensor *self = g->call->in[0], *value = g->call->out[0], *is = rp_eq(self, value);
    const int64_t dim = rp__attr_int(g->call, 0);
    is = rp_logical_or(is, rp_logical_and(rp_isnan(self), rp_isnan(value)));
    g->grad_in[0] = rp_where(is, rp_div(g->grad_out[0], rp_sum(is, &dim, 1, true)), rp__zero_like(g->grad_out[0]));
    return RP_OK;
}
