/* Batch normalisation: rows are channels (dim 1), all other dims lie along them. Training is one rows kernel for statistics and
   normalisation, to which a compiler adds the running statistics (values of a row) and what follows each element. */
#include "ops/grad.h"

#include "ops/format.h"
#include "ops/infer.h"
#include "ops/norm.h"
#include "ops/private.h"
#include "ops/rules.h"

static uint32_t all_but_channels(unsigned ndim) { return ((1u << ndim) - 1u) & ~2u; }

/* Given, a tensor of one number a channel. */
static rp_status check_channels(const rp__call *call, unsigned k, rp_dim channels) {
    static const char *const names[] = {"", "weight", "bias", "running_mean", "running_var"};
    const rp_tensor *t = call->in[k];
    if (!t) return RP_OK;
    if (t->ndim == 1 && rp__dim_is(RP__DIM_EQ, t->size[0], channels))
        return rp__call_need_float(call, (rp_dtype)t->dtype);
    char text[RP__SHAPE_TEXT];
    return rp__op_error(call, RP_ERROR_SHAPE, "%s should contain %lld elements not %s", names[k],
                        (long long)rp__dim_hint(channels), rp__shape_text(t->size, t->ndim, text));
}

rp_tensor *rp__per_channel(rp_tensor *t, unsigned ndim) {
    for (unsigned d = 2; t && d < ndim; d++) t = rp_unsqueeze(t, (int64_t)d - 1);
    return t;
}

void rp__bring_up_to_date(rp_tensor *running, rp_tensor *batch, double momentum) {
    if (running)
        rp_add_(rp_mul_scalar_(running, rp_f64(1 - momentum)), batch,
                RP_OPTIONS(rp_add_options, .alpha = rp_f64(momentum)));
}

/* x scale + shift with what belongs to a channel put together first, in the compute type. */
static rp_tensor *by_running(const rp__call *call, double eps) {
    const unsigned n = call->in[0]->ndim;
    rp_tensor *x = rp__wide(rp__channels_last(call->in[0]) ? call->in[0] : rp__row_major(call->in[0])),
              *weight = call->in[1], *bias = call->in[2];
    rp_tensor *scale = rp_rsqrt(rp_add_scalar(rp__wide(call->in[4]), rp_f64(eps)));
    if (weight) scale = rp_mul(scale, rp__wide(weight));
    rp_tensor *shift = rp_neg(rp_mul(rp__wide(call->in[3]), scale));
    if (bias) shift = rp_add(shift, rp__wide(bias));
    rp_tensor *y = rp_add(rp_mul(x, rp__per_channel(scale, n)), rp__per_channel(shift, n));
    return y->dtype == call->in[0]->dtype ? y : rp_to_dtype(y, (rp_dtype)call->in[0]->dtype);
}

rp_status rp__expand_batch_norm(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    rp_tensor *x = call->in[0];
    const double momentum = rp__attr_float(call, 1), eps = rp__attr_float(call, 2);
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (x->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "expected at least 2D input (got %uD input)", x->ndim);
    for (unsigned k = 1; k < 5; k++) RP_TRY(check_channels(call, k, x->size[1]));
    if (!rp__attr_bool(call, 0)) {
        if (!call->in[3] || !call->in[4])
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "Expected running_mean and running_var to be defined when training=False");
        call->out[0] = by_running(call, eps);
        return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
    }
    rp_dim count = 1;
    for (unsigned d = 0; d < x->ndim; d++)
        if (d != 1) count = rp__dim_apply(RP__DIM_MUL, count, x->size[d]);
    if (rp__dim_is(RP__DIM_EQ, count, 1)) {
        char text[RP__SHAPE_TEXT];
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected more than 1 value per channel when training, got input size %s",
                            rp__shape_text(x->size, x->ndim, text));
    }
    rp_tensor *mean = NULL, *var = NULL;
    call->out[0] = rp_batch_norm_train_at(call->site, x, rp__per_channel(call->in[1], x->ndim),
                                          rp__per_channel(call->in[2], x->ndim), eps, &mean, NULL, &var);
    if (rp__tensor_is_error(call->out[0])) return rp_error_status();
    const bool grad = rp__grad_switch(false);
    rp__bring_up_to_date(call->in[3], mean, momentum);
    rp__bring_up_to_date(call->in[4], var, momentum);
    (void)rp__grad_switch(grad);
    return rp__status_since(failures);
}

/* Normalised values in the input's type; mean, 1/std and unbiased variance of each channel in its compute type. weight and bias
   broadcast to the input. */
rp_status rp__infer_batch_norm_train(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
    for (unsigned k = 1; k < 3; k++) {
        const rp_tensor *w = call->in[k];
        bool fits = !w || (t->ndim >= 2 && w->ndim == t->ndim - 1 && rp__dim_is(RP__DIM_EQ, w->size[0], t->size[1]));
        for (unsigned d = 1; w && fits && d < w->ndim; d++) fits = rp__dim_is(RP__DIM_EQ, w->size[d], 1);
        if (t->ndim < 2 || !fits)
            return rp__op_error(call, RP_ERROR_SHAPE, "expected an input (N, C, ..) and weights (C, 1, ..)");
    }
    rp__meta_like(&out[0], t, (rp_dtype)t->dtype);
    for (unsigned k = 1; k < 4; k++)
        rp__meta_reduced(call, all_but_channels(t->ndim), false, (rp_dtype)rp__dtypes[t->dtype].compute, &out[k]);
    return RP_OK;
}

void rp__lower_batch_norm_train(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__lw_inner(lw, all_but_channels(rp__lw_call(lw)->in[0]->ndim));
    const rp__lw_norm norm = rp__lw_normalise(lw, 0);
    rp__val others = rp__lw_2(lw, RP__SUB, norm.extent, rp__lw_const_i(lw, compute, 1));
    rp__lw_out(lw, 0, norm.y);
    rp__lw_out_row(lw, 1, norm.mean);
    rp__lw_out_row(lw, 2, norm.rstd);
    rp__lw_out_row(lw, 3, rp__lw_2(lw, RP__DIV, norm.squares, others));
}
