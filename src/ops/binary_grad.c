/* Derivatives of binary.c: a and b are the operands, y is the result. */
#include <math.h>

#include "ops/grad.h"
#include "ops/private.h"

static rp_tensor *masked(rp_tensor *t, rp_tensor *zero_where) { return rp_where(zero_where, rp__zero_like(t), t); }

/* t / (a^2 + b^2), and 0 at the origin */
static rp_tensor *over_squares(rp_tensor *t, rp_tensor *a, rp_tensor *b) {
    rp_tensor *sum = rp_add(rp_mul(a, a), rp_mul(b, b));
    return masked(rp_div(t, sum), rp_eq_scalar(sum, rp_i64(0)));
}
RP__SLOPES(atan2, over_squares(rp_mul(grad, b), a, b), over_squares(rp_neg(rp_mul(grad, a)), a, b))
RP__SLOPES(hypot, rp_mul(grad, rp_div(a, y)), rp_mul(grad, rp_div(b, y)))

static rp_tensor *copysign_grad(rp_tensor *grad, rp_tensor *x, rp_tensor *y) {
    return rp_mul(grad, masked(rp_div(y, x), rp_eq_scalar(x, rp_i64(0))));
}
RP__SLOPES(copysign, copysign_grad(grad, a, y), rp__zeros_of(&g->in_meta[1]))
RP__GRAD(copysign_scalar, copysign_grad(grad, x, y))

RP__SLOPES(fmod, grad, rp_neg(rp_mul(grad, rp_div_mode(a, b, "trunc"))))
RP__SLOPES(remainder, grad, rp_neg(rp_mul(grad, rp_div_mode(a, b, "floor"))))
RP__GRAD(fmod_scalar, grad)
RP__GRAD(remainder_scalar, grad)

/* What is rounded has slope 0. */
static bool is_rounded(const rp__vjp *g) { return g->call->attrs[0].v.string && *g->call->attrs[0].v.string; }
RP__SLOPES(div_mode, is_rounded(g) ? rp__zeros_of(&g->in_meta[0]) : rp_div(grad, b),
           is_rounded(g) ? rp__zeros_of(&g->in_meta[1]) : rp_neg(rp_mul(grad, rp_div(rp_div(a, b), b))))
static bool scalar_is_rounded(const rp__vjp *g) { return g->call->attrs[1].v.string && *g->call->attrs[1].v.string; }
RP__GRAD(div_mode_scalar, scalar_is_rounded(g) ? rp__zeros_of(&g->in_meta[0]) : rp_div_scalar(grad, NUMBER(0)))

/* At exponent 0, and of 0 for exponents that do not fall below 0, the slopes are 0. */
static rp_tensor *base_grad(rp_tensor *grad, rp_tensor *a, rp_tensor *b) {
    rp_tensor *slope = rp_mul(b, rp_pow(a, rp_sub_scalar(b, rp_i64(1))));
    return rp_mul(grad, masked(slope, rp_eq_scalar(b, rp_i64(0))));
}
static rp_tensor *exponent_grad(rp_tensor *grad, rp_tensor *a, rp_tensor *b, rp_tensor *y) {
    rp_tensor *flat = rp_logical_and(rp_eq_scalar(a, rp_i64(0)), rp_ge_scalar(b, rp_i64(0)));
    return masked(rp_mul(grad, rp_mul(y, rp_log(a))), flat);
}
RP__SLOPES(pow, base_grad(grad, a, b), exponent_grad(grad, a, b, y))

/* The first of equal operands; never NaN. */
static rp_tensor *first_chosen(rp_tensor *a, rp_tensor *b, bool larger) {
    return rp_logical_or(larger ? rp_ge(a, b) : rp_le(a, b), rp_isnan(b));
}
/* Equal ones take half each. */
static rp_tensor *chosen_part(rp_tensor *grad, rp_tensor *a, rp_tensor *b, bool larger, bool of_first) {
    rp_tensor *zero = rp__zero_like(grad), *first = first_chosen(a, b, larger);
    rp_tensor *part = of_first ? rp_where(first, grad, zero) : rp_where(first, zero, grad);
    return rp_where(rp_eq(a, b), rp_mul_scalar(grad, rp_f64(0.5)), part);
}
RP__SLOPES(fmax, chosen_part(grad, a, b, true, true), chosen_part(grad, a, b, true, false))
RP__SLOPES(fmin, chosen_part(grad, a, b, false, true), chosen_part(grad, a, b, false, false))

static rp_tensor *xlogy_grad(rp_tensor *grad, rp_tensor *a, rp_tensor *b) {
    rp_tensor *none = rp_logical_and(rp_eq_scalar(a, rp_i64(0)), rp_le_scalar(b, rp_i64(0)));
    return masked(rp_mul(grad, rp_log(b)), none);
}
RP__SLOPES(xlogy, xlogy_grad(grad, a, b), rp_mul(grad, rp_div(a, b)))
RP__GRAD(xlogy_scalar, rp_mul_scalar(grad, rp_f64(log(rp__scalar_f64(NUMBER(0))))))

RP__SLOPES(logaddexp, rp_mul(grad, rp_sigmoid(rp_sub(a, b))), rp_mul(grad, rp_sigmoid(rp_sub(b, a))))
static rp_tensor *share2(rp_tensor *a, rp_tensor *b) { return rp_sigmoid(rp_mul_scalar(rp_sub(a, b), rp_f64(M_LN2))); }
RP__SLOPES(logaddexp2, rp_mul(grad, share2(a, b)), rp_mul(grad, share2(b, a)))

rp_status rp__vjp_lerp(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0], *weight = rp__wide(g->call->in[2]);
    if (g->needed[0]) g->grad_in[0] = rp_mul(grad, rp_add_scalar(rp_neg(weight), rp_i64(1)));
    if (g->needed[1]) g->grad_in[1] = rp_mul(grad, weight);
    if (g->needed[2]) g->grad_in[2] = rp_mul(grad, rp_sub(rp__wide(g->call->in[1]), rp__wide(g->call->in[0])));
    return RP_OK;
}
RP__SLOPES(lerp_scalar, rp_mul_scalar(grad, rp_f64(1 - rp__scalar_f64(NUMBER(0)))), rp_mul_scalar(grad, NUMBER(0)))

rp_status rp__vjp_addcmul(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0];
    g->grad_in[0] = grad;
    if (g->needed[1]) g->grad_in[1] = rp_mul(grad, rp_mul_scalar(rp__wide(g->call->in[2]), NUMBER(0)));
    if (g->needed[2]) g->grad_in[2] = rp_mul(grad, rp_mul_scalar(rp__wide(g->call->in[1]), NUMBER(0)));
    return RP_OK;
}
rp_status rp__vjp_addcdiv(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0], *under = rp__wide(g->call->in[2]);
    g->grad_in[0] = grad;
    if (g->needed[1]) g->grad_in[1] = rp_mul(grad, rp_mul_scalar(rp_reciprocal(under), NUMBER(0)));
    if (g->needed[2]) {
        rp_tensor *ratio = rp_div(rp_mul_scalar(rp__wide(g->call->in[1]), NUMBER(0)), rp_mul(under, under));
        g->grad_in[2] = rp_neg(rp_mul(grad, ratio));
    }
    return RP_OK;
}

rp_status rp__vjp_masked_fill(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0], *mask = g->call->in[1];
    if (g->needed[0]) g->grad_in[0] = masked(grad, mask);
    if (g->needed[2]) g->grad_in[2] = rp_where(mask, grad, rp__zero_like(grad));
    return RP_OK;
}
RP__GRAD(masked_fill_scalar, masked(grad, g->call->in[1]))
