/* Noise as compositions: masks are dropouts of ones, slopes are uniform numbers. */
#include "ops/grad.h"

#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

#include <math.h>

static rp_status done(const rp__call *call, rp_tensor *out) {
    call->out[0] = out;
    return rp__tensor_is_error(out) ? rp_error_status() : RP_OK;
}

/* Attributes p and train. *still: nothing is drawn, and call->out is the result. */
static rp_status begin(const rp__call *call, bool features, bool *still) {
    rp_tensor *x = call->in[0];
    const double p = rp__attr_float(call, 0);
    *still = true;
    if (!(p >= 0 && p <= 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "dropout probability has to be between 0 and 1, but got %g", p);
    if (!rp__attr_bool(call, 1) || p == 0 || rp__dim_is(RP__DIM_EQ, rp__tensor_numel(x), 0))
        return done(call, rp_view_at(call->site, x, x->size, x->ndim));
    if (p == 1) return done(call, rp_mul_scalar_at(call->site, x, rp_i64(0)));
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (features && x->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "Feature dropout requires at least 2 dimensions in the input");
    *still = false;
    return RP_OK;
}

/* 1 / (1 - p) or 0, for each element or for each channel of each image. */
static rp_tensor *mask(const rp__call *call, bool features) {
    const rp_tensor *x = call->in[0];
    rp_dim size[RP_MAX_DIMS];
    for (unsigned d = 0; d < x->ndim; d++) size[d] = features && d > 1 ? 1 : x->size[d];
    rp_tensor *ones =
        rp_ones(size, x->ndim, RP_OPTIONS(rp_ones_options, .dtype = (rp_dtype)x->dtype, .device = &x->device));
    return rp_native_dropout_at(call->site, ones, rp__attr_float(call, 0), RP_TRUE, NULL, NULL);
}

rp_status rp__expand_feature_dropout(const rp__call *call) {
    bool still;
    RP_TRY(begin(call, true, &still));
    return still ? RP_OK : done(call, rp_mul_at(call->site, call->in[0], mask(call, true)));
}

/* Without a batch: one image. */
static rp_status dropout_of(const rp__call *call, bool one) {
    rp_tensor *x = one ? rp_unsqueeze(call->in[0], 0) : call->in[0];
    rp_tensor *y = rp_feature_dropout_at(call->site, x, rp__attr_float(call, 0), rp__attr_bool(call, 1));
    return done(call, one ? rp_squeeze(y, 0) : y);
}
rp_status rp__expand_dropout1d(const rp__call *call) {
    const unsigned dims = call->in[0]->ndim;
    if (dims != 2 && dims != 3)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected 2D or 3D input, but received a %uD input", dims);
    return dropout_of(call, dims == 2);
}
rp_status rp__expand_dropout2d(const rp__call *call) { return dropout_of(call, false); }
rp_status rp__expand_dropout3d(const rp__call *call) { return dropout_of(call, call->in[0]->ndim != 5); }

/* x a where it is kept, else -alpha' a; then + alpha' a p: mean and variance stay (Klambauer et al., arXiv 1706.02515). */
static rp_status alpha(const rp__call *call, bool features) {
    static const double least = 1.7580993408473766; /* alpha' = scale * alpha of selu: its limit below */
    const double p = rp__attr_float(call, 0), a = 1 / sqrt((least * least * p + 1) * (1 - p));
    bool still;
    RP_TRY(begin(call, features, &still));
    if (still) return RP_OK;
    rp_tensor *x = call->in[0], *kept = rp_mul_scalar(rp__wide(mask(call, features)), rp_f64(1 - p));
    rp_tensor *shift = rp_mul_scalar(rp_add_scalar(kept, rp_f64(p - 1)), rp_f64(least * a));
    rp_tensor *y = rp_add(rp_mul(x, rp_mul_scalar(kept, rp_f64(a))), shift);
    if (!rp__tensor_is_error(y) && y->dtype != x->dtype) y = rp_to_dtype(y, (rp_dtype)x->dtype);
    return done(call, y);
}
rp_status rp__expand_alpha_dropout(const rp__call *call) { return alpha(call, false); }
rp_status rp__expand_feature_alpha_dropout(const rp__call *call) { return alpha(call, true); }

rp_status rp__expand_rrelu(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const double low = rp__scalar_f64(call->attrs[0].v.scalar), high = rp__scalar_f64(call->attrs[1].v.scalar);
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (!(low <= high))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "Lower bound should be less than or equal to the upper bound");
    if (!rp__attr_bool(call, 2)) return done(call, rp_leaky_relu_at(call->site, x, rp_f64((low + high) / 2)));
    rp_tensor *u = rp_rand_at(call->site, x->size, x->ndim,
                              RP_OPTIONS(rp_rand_options, .dtype = (rp_dtype)x->dtype, .device = &x->device,
                                         .generator = call->attrs[3].v.generator));
    rp_tensor *slope = rp_add_scalar(rp_mul_scalar(u, rp_f64(high - low)), rp_f64(low));
    return done(call, rp_where(rp_le_scalar(x, rp_i64(0)), rp_mul(x, slope), x));
}

/* -log of exponential numbers is Gumbel's; eps is PyTorch's, which reads it no more. */
rp_status rp__expand_gumbel_softmax(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const double tau = rp__attr_float(call, 0);
    const int64_t dim = rp__attr_int(call, 3);
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    /* drawn in the wide type: the least number of f16 would be 0, and its logarithm no number */
    rp_tensor *noise = rp_to_dtype(rp_neg(rp_log(rp_exponential(rp__wide(rp_detach(x))))), (rp_dtype)x->dtype);
    rp_tensor *soft = rp_softmax_at(call->site, rp_div_scalar(rp_add(x, noise), rp_f64(tau)), dim, RP_DTYPE_NONE);
    if (!rp__attr_bool(call, 1) || rp__tensor_is_error(soft)) return done(call, soft);
    rp_tensor *hard = rp_scatter_scalar(rp_zeros_like(soft), dim, rp_argmax(soft, dim, true), rp_i64(1));
    return done(call, rp_add(rp_sub(hard, rp_detach(soft)), soft));
}
