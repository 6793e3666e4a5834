/* Activations: rules of activation.def. What PyTorch makes of other ops is made of them here. */
#include "ops/formula.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

RP__UNARY(leaky_relu, WHERE(LT(NUM(0), x), x, MUL(x, ATTR(0))))

RP__UNARY_WITH(elu, WHERE(LT(NUM(0), x), MUL(x, b), MUL(PRIM(EXPM1, MUL(x, c)), MUL(a, b))), a = ATTR(0), b = ATTR(1),
               c = ATTR(2))

RP__UNARY(hardsigmoid, DIV(MIN(MAX(ADD(x, NUM(3)), NUM(0)), NUM(6)), NUM(6)))
RP__UNARY(log_sigmoid, SUB(MIN(x, NUM(0)), LOG1P(EXP(NEG(ABS(x))))))
RP__UNARY(mish, MUL(x, PRIM(TANH, LOG1P(EXP(x)))))

rp_status rp__infer_softsign(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__call_need_number(call, (rp_dtype)call->in[0]->dtype));
    return rp__infer_unary_float(call, out);
}
RP__UNARY(softsign, DIV(x, ADD(NUM(1), ABS(x))))
RP__UNARY(tanhshrink, SUB(x, PRIM(TANH, x)))

rp_status rp__infer_softshrink(const rp__call *call, rp__meta *out) {
    const double lambd = rp__scalar_f64(call->attrs[0].v.scalar);
    if (!(lambd >= 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "lambda must be greater or equal to 0, but found to be %g.", lambd);
    return rp__infer_float_only(call, out);
}
RP__UNARY_WITH(softshrink, WHERE(LT(lambd, x), SUB(x, lambd), WHERE(LT(x, NEG(lambd)), ADD(x, lambd), MUL(x, NUM(0)))),
               lambd = ATTR(0))
RP__UNARY_WITH(hardshrink, WHERE(AND(LE(NEG(lambd), x), LE(x, lambd)), NUM(0), x), lambd = ATTR(0))
RP__UNARY_SAME(threshold, WHERE(LE(x, rp__lw_number(lw, 0, type)), rp__lw_number(lw, 1, type), x))

/* ---- made of other ops */

rp_status rp__expand_relu6(const rp__call *call) {
    return rp__give(call, rp_hardtanh_at(call->site, call->in[0], rp_i64(0), rp_i64(6)));
}

rp_status rp__expand_selu(const rp__call *call) {
    return rp__give(call, rp_elu_at(call->site, call->in[0], rp_f64(1.6732632423543772848170429916717),
                                    rp_f64(1.0507009873554804934193349852946), rp_i64(1)));
}

rp_status rp__expand_celu(const rp__call *call) {
    const double alpha = rp__scalar_f64(call->attrs[0].v.scalar);
    if (alpha == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "alpha cannot be 0 for CELU");
    return rp__give(call, rp_elu_at(call->site, call->in[0], call->attrs[0].v.scalar, rp_i64(1), rp_f64(1 / alpha)));
}

rp_status rp__expand_prelu(const rp__call *call) {
    rp_tensor *x = call->in[0], *weight = call->in[1];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (x->dtype != weight->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "prelu: Type promoting not supported. Got %s and %s",
                            rp__dtype_title((rp_dtype)x->dtype), rp__dtype_title((rp_dtype)weight->dtype));
    if (weight->ndim > 1)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = %u", weight->ndim);
    if (!rp__dim_is(RP__DIM_EQ, rp__tensor_numel(weight), 1)) {
        if (x->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "Not allow zero-dim input tensor.");
        const rp_dim channels = x->ndim > 1 ? x->size[1] : 1;
        if (!rp__dim_is(RP__DIM_EQ, weight->size[0], channels))
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = %lld and "
                "channel size = %lld.",
                (long long)weight->size[0], (long long)channels);
    }
    rp_dim size[RP_MAX_DIMS];
    for (unsigned d = 0; d < x->ndim; d++) size[d] = d == 1 && weight->ndim == 1 ? weight->size[0] : 1;
    if (x->ndim > 0 || weight->ndim > 0) weight = rp_view_at(call->site, weight, size, x->ndim);
    rp_tensor *scaled = rp_mul_at(call->site, weight, x);
    return rp__give(call, rp_where_at(call->site, rp_gt_scalar_at(call->site, x, rp_i64(0)), x, scaled));
}

rp_status rp__expand_glu(const rp__call *call) {
    rp_tensor *x = call->in[0];
    unsigned dim;
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (x->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "glu does not support 0-dimensional tensors");
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), x->ndim, &dim));
    if (!rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MOD, x->size[dim], 2), 0))
        return rp__op_error(call, RP_ERROR_SHAPE, "Halving dimension must be even, but dimension %u is size %lld", dim,
                            (long long)x->size[dim]);
    const rp_dim half = rp__dim_apply(RP__DIM_FLOORDIV, x->size[dim], 2);
    rp_tensor *first = rp_slice_at(call->site, x, dim, 0, half, 1);
    rp_tensor *second = rp_slice_at(call->site, x, dim, half, x->size[dim], 1);
    return rp__give(call, rp_mul_at(call->site, first, rp_sigmoid_at(call->site, second)));
}
