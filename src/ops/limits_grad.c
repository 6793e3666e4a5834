/* Derivatives of limits.c: x is the operand. At a number nothing passes; a tensor as a limit shares with self where they meet. */
#include "ops/grad.h"
#include "ops/private.h"

rp_tensor *rp__inside(rp_tensor *grad, rp_tensor *x, rp_scalar low, rp_scalar high) {
    rp_tensor *zero = rp__zero_like(grad);
    if (low.kind != RP_SCALAR_NONE) grad = rp_where(rp_gt_scalar(x, low), grad, zero);
    return high.kind != RP_SCALAR_NONE ? rp_where(rp_lt_scalar(x, high), grad, zero) : grad;
}
RP__GRAD(clamp, rp__inside(grad, g->call->in[0], NUMBER(0), NUMBER(1)))
RP__GRAD(hardtanh, rp__inside(grad, x, NUMBER(0), NUMBER(1)))

/* As PyTorch: a bound between which and the other there is room shares with self where they meet; bounds that are the other way round
   leave all to max; and no bound has a part where the other one is NaN. */
rp_status rp__vjp_clamp_tensor(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0], *self = g->call->in[0], *min = g->call->in[1], *max = g->call->in[2];
    if (!min || !max) return rp__extremum_grad(g, min ? 1 : 2, min != NULL);
    rp_tensor *zero = rp__zero_like(grad), *half = rp_mul_scalar(grad, rp_f64(0.5));
    rp_tensor *below = rp_lt(self, min), *above = rp_gt(self, max), *room = rp_lt(min, max), *ordered = rp_le(min, max);
    rp_tensor *at_min = rp_logical_and(room, rp_eq(self, min)), *at_max = rp_logical_and(room, rp_eq(self, max));
    if (g->needed[0])
        g->grad_in[0] =
            rp_where(rp_logical_or(below, above), zero, rp_where(rp_logical_or(at_min, at_max), half, grad));
    if (g->needed[1]) g->grad_in[1] = rp_where(rp_logical_and(below, ordered), grad, rp_where(at_min, half, zero));
    if (g->needed[2]) {
        rp_tensor *whole = rp_logical_or(rp_logical_and(above, ordered), rp_gt(min, max));
        g->grad_in[2] = rp_where(whole, grad, rp_where(at_max, half, zero));
    }
    return RP_OK;
}
