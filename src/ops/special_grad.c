/* Derivatives of special.c. */
#include <math.h>

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"

static rp_tensor *scaled(rp_tensor *t, double by) { return rp_mul_scalar(t, rp_f64(by)); }
static rp_tensor *plus(rp_tensor *t, double number) { return rp_add_scalar(t, rp_f64(number)); }

RP__SLOPE(special_entr, plus(rp_neg(rp_log(x)), -1))
RP__SLOPE(special_ndtr, scaled(rp_exp(scaled(rp_mul(x, x), -0.5)), M_2_SQRTPI *M_SQRT1_2 / 2))

RP__GRAD(special_log_ndtr, scaled(rp_div(grad, rp_special_erfcx(scaled(x, -M_SQRT1_2))), M_2_SQRTPI *M_SQRT1_2))
RP__SLOPE(special_ndtri, scaled(rp_exp(scaled(rp_mul(y, y), 0.5)), 2 / (M_2_SQRTPI * M_SQRT1_2)))
RP__SLOPE(special_erfcx, plus(scaled(rp_mul(x, y), 2), -M_2_SQRTPI))

/* 0 times what is not finite is 0 here. */
static rp_tensor *xlog1py_grad(rp_tensor *grad, rp_tensor *a, rp_tensor *b) {
    rp_tensor *none = rp_logical_and(rp_eq_scalar(a, rp_i64(0)), rp_le_scalar(b, rp_i64(-1)));
    return rp_where(none, rp__zero_like(grad), rp_mul(grad, rp_log1p(b)));
}
RP__SLOPES(special_xlog1py, xlog1py_grad(grad, a, b), rp_mul(grad, rp_div(a, plus(b, 1))))
RP__GRAD(special_xlog1py_scalar, rp_mul_scalar(grad, rp_f64(log1p(rp__scalar_f64(NUMBER(0))))))

rp_tensor *rp__no_slope(const rp__vjp *g) {
    (void)rp__op_error(g->call, RP_ERROR_UNAVAILABLE, "the derivative with respect to self is not known");
    return rp__tensor_error();
}
RP__SLOPES(special_zeta, rp__no_slope(g), rp_mul(grad, rp_mul(rp_neg(a), rp_special_zeta(plus(a, 1), b))))

/* y' of I1 is I0 - I1 / x; that quotient is 1/2 at 0 and beside it, where y is small for its type. Scaled ones fall by sign(x) y. */
static rp_tensor *over(const rp__vjp *g, rp_tensor *y, rp_tensor *x) {
    const rp_dtype dtype = (rp_dtype)g->grad_out[0]->dtype;
    const double beside = dtype == RP_F64 ? 0x1p-53 : dtype == RP_F32 ? 0x1p-24 : 0x1p-9;
    rp_tensor *zero = rp_lt_scalar(rp_abs(x), rp_f64(beside));
    return rp_where(zero, plus(rp__zero_like(x), 0.5), rp_div(y, rp_where(zero, plus(rp__zero_like(x), 1), x)));
}
RP__SLOPE(i0, rp_special_i1(x))
RP__SLOPE(special_i0e, rp_sub(rp_special_i1e(x), rp_mul(rp_sgn(x), y)))
RP__SLOPE(special_i1, rp_sub(rp_i0(x), over(g, y, x)))
RP__SLOPE(special_i1e, rp_sub(rp_special_i0e(x), rp_add(rp_mul(rp_sgn(x), y), over(g, y, x))))

/* ---- Bessel functions: f0' = -f1 and f1' = f0 - f1 / x of J and Y, with other signs of I and K */

RP__SLOPE(special_bessel_j0, rp_neg(rp_special_bessel_j1(x)))
RP__SLOPE(special_bessel_j1, rp_sub(rp_special_bessel_j0(x), over(g, y, x)))
RP__SLOPE(special_bessel_y0, rp_neg(rp_special_bessel_y1(x)))
/* Both terms are infinite at 0, the second one more so. */
RP__SLOPE(special_bessel_y1,
          rp_where(rp_eq_scalar(x, rp_i64(0)), rp_neg(y), rp_sub(rp_special_bessel_y0(x), rp_div(y, x))))
RP__SLOPE(special_modified_bessel_i0, rp_special_modified_bessel_i1(x))
RP__SLOPE(special_modified_bessel_i1, rp_sub(rp_special_modified_bessel_i0(x), over(g, y, x)))
RP__SLOPE(special_modified_bessel_k0, rp_neg(rp_special_modified_bessel_k1(x)))
RP__SLOPE(special_modified_bessel_k1, rp_sub(rp_neg(rp_special_modified_bessel_k0(x)), rp_div(y, x)))
