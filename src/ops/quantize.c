/* Fake quantization: lowerings of quantize.def. A step is a float32, as is what comes out of integers, whatever the type of self. */
#include "ops/formula.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* quant_min and quant_max are attributes `low` and the next. */
static rp_status check(const rp__call *call, unsigned low) {
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    if (rp__attr_int(call, low) > rp__attr_int(call, low + 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "`quant_min` should be less than or equal to `quant_max`.");
    return RP_OK;
}

rp_status rp__infer_fake_quantize_per_tensor_affine(const rp__call *call, rp__meta *out) {
    const int64_t zero = rp__attr_int(call, 1);
    RP_TRY(check(call, 2));
    if (zero < rp__attr_int(call, 2) || zero > rp__attr_int(call, 3))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "`zero_point` must be between `quant_min` and `quant_max`.");
    return rp__infer_unary(call, out);
}
rp_status rp__infer_fake_quantize(const rp__call *call, rp__meta *out) {
    RP_TRY(check(call, 0));
    return rp__infer_unary(call, out);
}

/* NaN is the smallest integer. A zero point that is whole is added to what was rounded, so that ties stay where they are. */
static void put(rp__lower *lw, rp__val scale, rp__val zero, bool whole, unsigned low) {
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const rp__val one = rp__lw_const(lw, RP_F32, 1), inverse = rp__lw_cast(lw, DIV(one, scale), compute);
    const rp__val x = MUL(rp__lw_in(lw, 0), inverse), min = ATTR(low), max = ATTR(low + 1);
    rp__val q = whole ? ADD(PRIM(RINT, x), zero) : PRIM(RINT, ADD(x, zero));
    q = WHERE(LT(min, q), q, min);
    q = WHERE(LT(q, max), q, max);
    const rp__val steps = rp__lw_cast(lw, SUB(q, zero), RP_F32);
    rp__lw_out(lw, 0, rp__lw_cast(lw, MUL(steps, scale), compute));
}

void rp__lower_fake_quantize_per_tensor_affine(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    put(lw, rp__lw_attr(lw, 0, RP_F32), ATTR(1), true, 2);
}
void rp__lower_fake_quantize(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const bool whole = !rp__dtype_is_float(rp__lw_in_dtype(lw, 2));
    put(lw, rp__lw_cast(lw, rp__lw_in(lw, 1), RP_F32), rp__lw_cast(lw, rp__lw_in(lw, 2), compute), whole, 0);
}

/* Whether zero points lie between quant_min and quant_max would have to be read on the host. */
static rp_status with_numbers(const rp__call *call, rp_tensor *scale, rp_tensor *zero, unsigned low) {
    return rp__give(call, rp_fake_quantize_at(call->site, call->in[0], rp_detach(scale), rp_detach(zero),
                                              rp__attr_int(call, low), rp__attr_int(call, low + 1)));
}

rp_status rp__expand_fake_quantize_per_tensor_affine_tensor_qparams(const rp__call *call) {
    for (unsigned k = 1; k < 3; k++)
        if (!rp__dim_is(RP__DIM_EQ, rp__tensor_numel(call->in[k]), 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "scale and zero_point must have one element");
    rp_tensor *scale = rp_to_dtype(rp_reshape(call->in[1], NULL, 0), RP_F32);
    rp_tensor *zero = rp_to_dtype(rp_reshape(call->in[2], NULL, 0), RP_I64);
    return with_numbers(call, scale, zero, 0);
}

rp_status rp__expand_fake_quantize_per_channel_affine(const rp__call *call) {
    const rp_tensor *x = call->in[0], *scale = call->in[1], *zero = call->in[2];
    rp_dim size[RP_MAX_DIMS];
    unsigned at;
    if (scale->dtype != RP_F32 && scale->dtype != RP_BF16)
        return rp__op_error(call, RP_ERROR_DTYPE, "Scale must be Float or BFloat16, found %s",
                            rp__dtype_title((rp_dtype)scale->dtype));
    if (zero->dtype != RP_I32 && zero->dtype != RP_F32 && zero->dtype != RP_F16)
        return rp__op_error(call, RP_ERROR_DTYPE, "Zero-point must be Int32, Float or Half, found %s",
                            rp__dtype_title((rp_dtype)zero->dtype));
    if (scale->ndim != 1 || zero->ndim != 1)
        return rp__op_error(call, RP_ERROR_SHAPE, "scale and zero point should be 1-D tensors");
    if (!rp__same_size(scale, zero))
        return rp__op_error(call, RP_ERROR_SHAPE, "scale and zero-point need to have the same dimensions");
    if (rp__attr_int(call, 0) < 0 || rp__attr_int(call, 0) > x->ndim)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "`axis` must be between 0 and number of dimensions of input");
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), x->ndim, &at));
    if (x->ndim == 0 || !rp__dim_is(RP__DIM_EQ, scale->size[0], x->size[at]))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "dimensions of scale and zero-point are not consistent with input tensor");
    for (unsigned d = 0; d < x->ndim; d++) size[d] = d == at ? x->size[d] : 1;
    return with_numbers(call, rp_view(call->in[1], size, x->ndim), rp_view(call->in[2], size, x->ndim), 1);
}
