/* Derivatives of quantize.c: 1 where the integer was not cut off. */
#include "ops/grad.h"
#include "ops/private.h"

static rp_tensor *inside(const rp__vjp *g, rp_tensor *q, unsigned low) {
    rp_tensor *above = rp_ge_scalar(q, rp_i64(g->call->attrs[low].v.i));
    rp_tensor *within = rp_logical_and(above, rp_le_scalar(q, rp_i64(g->call->attrs[low + 1].v.i)));
    return rp_where(within, g->grad_out[0], rp__zero_like(g->grad_out[0]));
}

rp_status rp__vjp_fake_quantize_per_tensor_affine(const rp__vjp *g) {
    const double inverse = 1 / (float)g->call->attrs[0].v.f;
    rp_tensor *steps = rp_round(rp_mul_scalar(rp__wide(g->call->in[0]), rp_f64((float)inverse)));
    g->grad_in[0] = inside(g, rp_add_scalar(steps, rp_i64(g->call->attrs[1].v.i)), 2);
    return RP_OK;
}

rp_status rp__vjp_fake_quantize(const rp__vjp *g) {
    rp_tensor *zero = g->call->in[2], *inverse = rp_reciprocal(rp__wide(g->call->in[1]));
    rp_tensor *x = rp_mul(rp__wide(g->call->in[0]), inverse);
    const bool whole = !rp__dtype_is_float((rp_dtype)zero->dtype);
    g->grad_in[0] = inside(g, whole ? rp_add(rp_round(x), zero) : rp_round(rp_add(x, zero)), 0);
    return RP_OK;
}
