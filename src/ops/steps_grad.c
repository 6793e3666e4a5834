/* Derivatives of steps.c. */
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"

/* x^(a - 1) e^-x / gamma(a), in float64: terms are as large as the shape, what they differ by is not. */
static rp_tensor *density(rp_tensor *a, rp_tensor *x) {
    a = rp_to_dtype(a, RP_F64), x = rp_to_dtype(x, RP_F64);
    return rp_exp(rp_sub(rp_sub(rp_mul(rp_sub_scalar(a, rp_i64(1)), rp_log(x)), x), rp_lgamma(a)));
}
RP__SLOPES(igamma, rp__no_slope(g), rp_mul(grad, density(a, b)))
RP__SLOPES(igammac, rp__no_slope(g), rp_neg(rp_mul(grad, density(a, b))))
RP__SLOPE(standard_gamma, rp_standard_gamma_grad(x, y))
