/* Derivatives of loss.c. */
#include "ops/grad.h"

/* Per row: loss = lse - x[target], 0 where the target is ignored; lse = log sum exp x is a result too. */
rp_status rp__vjp_cross_entropy_rows(const rp__vjp *g) {
    if (!g->needed[0]) return RP_OK;
    rp_tensor *x = rp__wide(g->call->in[0]), *target = g->call->in[1];
    rp_tensor *p = rp_exp(rp_sub(x, rp_unsqueeze(g->call->out[1], -1), rp_i64(1)));
    rp_tensor *dx = NULL;
    if (g->grad_out[0]) {
        rp_tensor *ignored = rp_eq_scalar(target, rp_i64(rp__attr_int(g->call, 0)));
        rp_tensor *grad = rp_where(ignored, rp__zero_like(g->grad_out[0]), g->grad_out[0]);
        rp_tensor *hit = rp_is_class(rp_unsqueeze(target, -1), x->size[x->ndim - 1]);
        dx = rp_mul(rp_unsqueeze(grad, -1), rp_sub(p, rp_to_dtype(hit, (rp_dtype)p->dtype), rp_i64(1)));
    }
    if (g->grad_out[1]) {
        rp_tensor *part = rp_mul(rp_unsqueeze(g->grad_out[1], -1), p);
        dx = dx ? rp_add(dx, part, rp_i64(1)) : part;
    }
    g->grad_in[0] = dx;
    return RP_OK;
}
