/* Draws of further distributions: functions of uniform and normal ones, which are calculated in float32 at least. Values and history
   of what says the size do not count. */
#include <math.h>

#include "ops/private.h"

#include "ops/infer.h"
#include "ops/rules.h"

/* The result in self's type. */
static rp_status give_as(const rp__call *call, rp_tensor *t) {
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    return rp__give(call, rp__tensor_is_error(t) || (rp_dtype)t->dtype == dtype ? t : rp_to_dtype(t, dtype));
}

/* self as a model to draw into. */
static rp_tensor *model_of(const rp__call *call) {
    rp_tensor *t = rp_detach(call->in[0]);
    if (rp__tensor_is_error(t) || t->dtype == RP_F32 || t->dtype == RP_F64) return t;
    return rp_to_dtype(t, RP_F32);
}

static rp_tensor *unit(const rp__call *call, unsigned generator) {
    return rp_uniform(model_of(call), 0, 1,
                      RP_OPTIONS(rp_uniform_options, .generator = call->attrs[generator].v.generator));
}

rp_status rp__expand_bernoulli_tensor(const rp__call *call) {
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[1]->dtype));
    rp_tensor *p = rp_expand(rp_detach(call->in[1]), call->in[0]->size, call->in[0]->ndim);
    return give_as(call, rp_bernoulli(p, RP_OPTIONS(rp_bernoulli_options, .generator = call->attrs[0].v.generator)));
}

/* log(1 - u) / log(1 - p), rounded up; u = 0 is the first. */
rp_status rp__expand_geometric(const rp__call *call) {
    const double p = rp__attr_float(call, 0);
    if (!(p > 0 && p < 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects p to be in (0, 1), but got p=%g", p);
    if (call->in[0]->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    rp_tensor *turns = rp_div_scalar(rp_log1p(rp_neg(unit(call, 1))), rp_f64(log1p(-p)));
    return give_as(call, rp_clamp(rp_ceil(turns), rp_i64(1)));
}

rp_status rp__expand_log_normal(const rp__call *call) {
    const double std = rp__attr_float(call, 1);
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    if (!(std > 0)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects std > 0.0, but found std=%g", std);
    return give_as(call, rp_exp(rp_normal(model_of(call), rp__attr_float(call, 0), std,
                                          RP_OPTIONS(rp_normal_options, .generator = call->attrs[2].v.generator))));
}

rp_status rp__expand_cauchy(const rp__call *call) {
    const double sigma = rp__attr_float(call, 1), pi = 3.14159265358979323846;
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    if (!(sigma > 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects sigma > 0.0, but found sigma=%g", sigma);
    rp_tensor *angle = rp_mul_scalar(rp_sub_scalar(unit(call, 2), rp_f64(0.5)), rp_f64(pi));
    return give_as(call, rp_add_scalar(rp_mul_scalar(rp_tan(angle), rp_f64(sigma)), rp_f64(rp__attr_float(call, 0))));
}

rp_status rp__expand_normal_tensors(const rp__call *call) {
    rp_tensor *mean = rp_detach(call->in[0]), *std = rp_detach(call->in[1]);
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[1]->dtype));
    rp_tensor *size = rp_add(mean, rp_mul_scalar(std, rp_i64(0)));
    rp_tensor *z = rp_normal(size, 0, 1, RP_OPTIONS(rp_normal_options, .generator = call->attrs[0].v.generator));
    return give_as(call, rp_add(rp_mul(z, std), mean));
}
