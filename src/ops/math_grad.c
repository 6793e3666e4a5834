/* Derivatives of math.c: slopes at x, the operand, or y, the result. */
#include <math.h>

#include "ops/grad.h"
#include "ops/private.h"

static rp_tensor *scaled(rp_tensor *t, double by) { return rp_mul_scalar(t, rp_f64(by)); }
static rp_tensor *plus(rp_tensor *t, double number) { return rp_add_scalar(t, rp_f64(number)); }
static rp_tensor *square(rp_tensor *t) { return rp_mul(t, t); }

RP__SLOPE(exp2, scaled(y, M_LN2))
RP__SLOPE(log2, rp_reciprocal(scaled(x, M_LN2)))
RP__SLOPE(log10, rp_reciprocal(scaled(x, M_LN10)))
RP__GRAD(log1p, rp_div(grad, plus(x, 1)))
RP__SLOPE(tan, plus(square(y), 1))
RP__SLOPE(asin, rp_rsqrt(plus(rp_neg(square(x)), 1)))
RP__SLOPE(acos, rp_neg(rp_rsqrt(plus(rp_neg(square(x)), 1))))
RP__GRAD(atan, rp_div(grad, plus(square(x), 1)))
RP__SLOPE(sinh, rp_cosh(x))
RP__SLOPE(cosh, rp_sinh(x))
RP__SLOPE(asinh, rp_rsqrt(plus(square(x), 1)))
/* 1 / sqrt(x^2 - 1), also below -1, where there is no result */
static rp_tensor *acosh_slope(rp_tensor *size) { return rp_mul(rp_rsqrt(plus(size, -1)), rp_rsqrt(plus(size, 1))); }
RP__SLOPE(acosh, acosh_slope(rp_abs(x)))
RP__GRAD(atanh, rp_div(grad, plus(rp_neg(square(x)), 1)))
RP__SLOPE(erfc, scaled(rp_exp(rp_neg(square(x))), -M_2_SQRTPI))
RP__SLOPE(erfinv, scaled(rp_exp(square(y)), 1 / M_2_SQRTPI))
RP__SLOPE(lgamma, rp_digamma(x))
RP__SLOPE(digamma, rp_polygamma(1, x))
RP__SLOPE(polygamma, rp_polygamma(rp__attr_int(g->call, 0) + 1, x))
RP__SLOPE(reciprocal, rp_neg(square(y)))
RP__GRAD(deg2rad, scaled(grad, M_PI / 180))
RP__GRAD(rad2deg, scaled(grad, 180 / M_PI))

static rp_tensor *sinc_slope(rp_tensor *x) {
    rp_tensor *t = scaled(x, M_PI), *top = rp_sub(rp_mul(t, rp_cos(t)), rp_sin(t)), *bottom = rp_mul(t, x);
    /* The square of what is small is 0 before it is. */
    return rp_where(rp_eq_scalar(bottom, rp_i64(0)), rp__zero_like(x), rp_div(top, bottom));
}
RP__SLOPE(sinc, sinc_slope(x))

/* 1 / (x (1 - x)); outside of [eps, 1 - eps] 0, also of NaN, outside of [0, 1] without eps NaN. */
static rp_tensor *logit_grad(rp_tensor *grad, rp_tensor *x, const rp_attr *eps) {
    bool given = !rp__attr_is_none(eps);
    double low = given ? rp__scalar_f64(eps->v.scalar) : 0;
    rp_tensor *outside = rp_add_scalar(rp__zero_like(x), rp_f64(given ? 0 : (double)NAN));
    rp_tensor *inside = rp_div(grad, rp_mul(x, plus(rp_neg(x), 1)));
    rp_tensor *below = rp_where(rp_le_scalar(x, rp_f64(1 - low)), inside, outside);
    return rp_where(rp_ge_scalar(x, rp_f64(low)), below, outside);
}
/* Of the exponent there is none. */
rp_status rp__vjp_frexp(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0] ? rp__wide(g->grad_out[0]) : NULL;
    if (!grad || rp__tensor_is_error(grad)) return grad ? rp_error_status() : RP_OK;
    g->grad_in[0] = rp_div(grad, rp_exp2(rp_to_dtype(g->call->out[1], (rp_dtype)grad->dtype)));
    return RP_OK;
}
RP__GRAD(logit, logit_grad(grad, x, g->call->attrs))
RP__GRAD(nan_to_num, rp_where(rp_isfinite(x), grad, rp__zero_like(grad)))
