/* Cross-entropy of logits and class indices: one rows kernel gives the loss of each row with both parts of its log-sum-exp; the
   reduction is made of other ops. */
#include "ops/infer.h"

#include "ops/private.h"
#include "ops/rules.h"

static rp_status check_target(const rp__call *call) {
    const rp_tensor *x = call->in[0], *target = call->in[1];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (target->dtype != RP_I64 && target->dtype != RP_U8)
        return rp__op_error(call, RP_ERROR_DTYPE, "expected target dtype to be Long or Byte, but got %s",
                            rp__dtype_title((rp_dtype)target->dtype));
    return RP_OK;
}

enum { REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM };

rp_status rp__expand_cross_entropy(const rp__call *call) {
    rp_tensor *x = call->in[0], *target = call->in[1];
    int64_t reduction = rp__attr_int(call, 0), ignore = rp__attr_int(call, 1);
    const char *site = call->site;
    RP_TRY(check_target(call));
    if (call->in[2]) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "weights of the classes are not supported yet");
    if (rp__attr_float(call, 2) != 0)
        return rp__op_error(call, RP_ERROR_UNAVAILABLE, "label_smoothing is not supported yet");
    if (reduction < REDUCTION_NONE || reduction > REDUCTION_SUM)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%lld is not a valid value for reduction",
                            (long long)reduction);
    if (x->ndim != 1 && x->ndim != 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected logits of size (N, C) or (C)");
    bool single = x->ndim == 1;
    bool one_target =
        single && target->ndim == 1 && rp__dim_is(RP__DIM_EQ, target->size[0], 1); /* (C) takes () and (1) */
    if (target->ndim != x->ndim - 1u && !one_target)
        return rp__op_error(call, RP_ERROR_SHAPE, "%uD target tensor expected, multi-target not supported",
                            x->ndim - 1u);
    rp_dtype dtype = (rp_dtype)x->dtype;
    if (single) {
        x = rp_unsqueeze_at(site, x, 0);
        target = one_target ? target : rp_unsqueeze_at(site, target, 0);
    }
    rp_tensor *loss = rp_cross_entropy_rows_at(site, x, target, ignore, NULL, NULL);
    if (reduction == REDUCTION_NONE) {
        if (single && !one_target) loss = rp_squeeze_at(site, loss, 0);
    } else {
        loss = rp_sum_at(site, loss, NULL, 0, false, NULL);
        if (reduction == REDUCTION_MEAN) {
            /* as integers that hold ignore_index: in bytes -100 would be class 156 */
            rp_tensor *classes = target->dtype == RP_U8 ? rp_to_dtype_at(site, target, RP_I64, NULL) : target;
            rp_tensor *kept = rp_logical_not_at(site, rp_eq_scalar_at(site, classes, rp_i64(ignore)));
            loss = rp_div_at(site, loss, rp_sum_at(site, kept, NULL, 0, false, NULL));
        }
    }
    if (!rp_is_error(loss) && (rp_dtype)loss->dtype != dtype) loss = rp_to_dtype_at(site, loss, dtype, NULL);
    call->out[0] = loss;
    return rp_is_error(loss) ? rp_error_status() : RP_OK;
}

/* All outputs are numbers of a row and stay in the compute type. */
rp_status rp__infer_cross_entropy_rows(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[0], *target = call->in[1];
    RP_TRY(check_target(call));
    if (x->ndim != 2 || target->ndim != 1)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected logits of size (N, C) and targets of size (N)");
    if (!rp__dim_is(RP__DIM_EQ, x->size[0], target->size[0]))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected input batch_size (%lld) to match target batch_size (%lld).",
                            (long long)rp__dim_hint(x->size[0]), (long long)rp__dim_hint(target->size[0]));
    if (rp__dim_is(RP__DIM_EQ, x->size[1], 0) && !rp__dim_is(RP__DIM_EQ, x->size[0], 0))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected at least one class");
    for (unsigned k = 0; k < 3; k++) {
        out[k].dtype = (rp_dtype)rp__dtypes[x->dtype].compute;
        out[k].ndim = 1;
        out[k].size[0] = x->size[0];
    }
    return RP_OK;
}

/* loss = log sum exp(x - max) - (x[target] - max), 0 where the target is ignored. The sum of max and log sum is never rounded: of
   large logits it would keep no digit of a small loss. */
void rp__lower_cross_entropy_rows(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *logits = call->in[0];
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__lw_inner(lw, 2u);
    rp__val x = rp__lw_in(lw, 0);
    rp__val high = rp__lw_reduce(lw, RP__REDUCE_MAX, x);
    rp__val total = rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_1(lw, RP__EXP, rp__lw_2(lw, RP__SUB, x, high)));
    rp__val log_total = rp__lw_1(lw, RP__LOG, total);

    const rp_dim target_stride[2] = {call->in[1]->stride[0], 0}, row_stride[2] = {logits->stride[0], 0};
    uint16_t target_access = rp__lw_access(lw, false, 1, target_stride, RP__ALONG_ROWS);
    rp__val target = rp__lw_cast(lw, rp__lw_load(lw, target_access, RP__NO_VAL, RP__NO_VAL), RP_I64);
    rp__val ignored = rp__lw_2(lw, RP__EQ, target, rp__lw_attr(lw, 0, RP_I64));
    rp__val zero = rp__lw_const_i(lw, RP_I64, 0);
    rp__val class = rp__lw_3(lw, RP__WHERE, ignored, zero, target);
    class = rp__lw_check_index(lw, class, rp__lw_inner_extent(lw, RP_I64), false);
    rp__val offset = rp__lw_2(lw, RP__MUL, class, rp__lw_size(lw, logits->stride[1]));
    rp__val chosen = rp__lw_load(lw, rp__lw_access(lw, false, 0, row_stride, RP__ALONG_ROWS), offset, RP__NO_VAL);
    rp__val loss = rp__lw_2(lw, RP__SUB, log_total, rp__lw_2(lw, RP__SUB, chosen, high));
    rp__lw_out_row(lw, 0, rp__lw_3(lw, RP__WHERE, ignored, rp__lw_const(lw, compute, 0.0), loss));
    rp__lw_out_row(lw, 1, high);
    rp__lw_out_row(lw, 2, log_total);
}
