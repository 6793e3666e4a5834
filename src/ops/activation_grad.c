/* Derivatives of activation.c: x is the operand. Kinks have PyTorch's side. */
#include "ops/grad.h"
#include "ops/private.h"

static rp_tensor *where_above(rp_tensor *x, rp_scalar limit, rp_tensor *above, rp_tensor *else_) {
    return rp_where(rp_gt_scalar(x, limit), above, else_);
}

RP__GRAD(leaky_relu, where_above(x, rp_i64(0), grad, rp_mul_scalar(grad, NUMBER(0))))

static rp_tensor *elu_grad(rp_tensor *grad, rp_tensor *x, double alpha, rp_scalar scale, double input_scale) {
    rp_tensor *slope = rp_mul_scalar(rp_exp(rp_mul_scalar(x, rp_f64(input_scale))),
                                     rp_f64(alpha * rp__scalar_f64(scale) * input_scale));
    return where_above(x, rp_i64(0), rp_mul_scalar(grad, scale), rp_mul(grad, slope));
}
RP__GRAD(elu, elu_grad(grad, x, rp__scalar_f64(NUMBER(0)), NUMBER(1), rp__scalar_f64(NUMBER(2))))

RP__GRAD(hardsigmoid, rp__inside(rp_div_scalar(grad, rp_i64(6)), x, rp_i64(-3), rp_i64(3)))
RP__SLOPE(log_sigmoid, rp_sigmoid(rp_neg(x)))

RP__SLOPE_WITH(mish, rp_add(t, rp_mul(rp_mul(x, rp_sigmoid(x)), bell)), *t = rp_tanh(rp_softplus(x)),
               *bell = rp_add_scalar(rp_neg(rp_mul(t, t)), rp_i64(1)))
RP__GRAD_WITH(softsign, rp_div(grad, rp_mul(under, under)), *under = rp_add_scalar(rp_abs(x), rp_i64(1)))
RP__SLOPE_WITH(tanhshrink, rp_mul(t, t), *t = rp_tanh(x))

static rp_tensor *shrink_grad(rp_tensor *grad, rp_tensor *x, rp_scalar lambd) {
    return where_above(rp_abs(x), lambd, grad, rp__zero_like(grad));
}
RP__GRAD(softshrink, shrink_grad(grad, x, NUMBER(0)))
RP__GRAD(hardshrink, shrink_grad(grad, x, NUMBER(0)))
RP__GRAD(threshold, rp_where(rp_le_scalar(x, NUMBER(0)), rp__zero_like(grad), grad))
