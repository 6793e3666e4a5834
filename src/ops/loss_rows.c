/* Losses of classes, dim 1 of (N, C, ...): cross-entropy, one rows kernel that gives the loss of each row with both parts of its
   log-sum-exp; negative log-likelihood and the margins between classes, of one load at the place of the class. */
#include "ops/grad.h"
#include "ops/loss.h"
#include "ops/private.h"
#include "ops/rules.h"

#define NO_CLASS (-(INT64_C(1) << 61)) /* no class is ignored */

static rp_status check_target(const rp__call *call) {
    const rp_tensor *x = call->in[0], *target = call->in[1];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (target->dtype != RP_I64 && target->dtype != RP_U8)
        return rp__op_error(call, RP_ERROR_DTYPE, "expected target dtype to be Long or Byte, but got %s",
                            rp__dtype_title((rp_dtype)target->dtype));
    return RP_OK;
}

/* Classes (N, ...) of values (N, C, ...). */
static rp_status check_places(const rp__call *call) {
    const rp_tensor *x = call->in[0], *target = call->in[1];
    RP_TRY(check_target(call));
    if (x->ndim < 2 || target->ndim != x->ndim - 1u)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected values of size (N, C, ...) and targets of size (N, ...)");
    if (!rp__dim_is(RP__DIM_EQ, x->size[0], target->size[0]))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected input batch_size (%lld) to match target batch_size (%lld).",
                            (long long)rp__dim_hint(x->size[0]), (long long)rp__dim_hint(target->size[0]));
    for (unsigned d = 1; d < target->ndim; d++) {
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
        if (!rp__dim_is(RP__DIM_EQ, x->size[d + 1], target->size[d]))
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "size mismatch: the classes of values of size %s have the same without dim 1, not %s",
                                rp__shape_text(x->size, x->ndim, a), rp__shape_text(target->size, target->ndim, b));
    }
    if (rp__dim_is(RP__DIM_EQ, x->size[1], 0) && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(target), 0))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected at least one class");
    return RP_OK;
}

/* ---- operands as (N, C, ...) and (N, ...) */

typedef struct rows {
    rp_tensor *x, *target;
    bool flat; /* (C) with one class (): the result has no dim */
} rows;

static rp_status rows_of(const rp__call *call, rows *r) {
    rp_tensor *x = call->in[0], *target = call->in[1];
    RP_TRY(check_target(call));
    if (x->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "Expected values of size (N, C, ...) or (C)");
    const bool single = x->ndim == 1, /* (C) takes () and (1) */
        one_target = single && target->ndim == 1 && rp__dim_is(RP__DIM_EQ, target->size[0], 1);
    if (target->ndim != x->ndim - 1u && !one_target)
        return rp__op_error(call, RP_ERROR_SHAPE, "%uD target tensor expected, multi-target not supported",
                            x->ndim - 1u);
    r->x = single ? rp_unsqueeze(x, 0) : x;
    r->target = single && !one_target ? rp_unsqueeze(target, 0) : target;
    r->flat = single && !one_target;
    return RP_OK;
}

static rp_status check_weight(const rp__call *call, rp_tensor *weight, const rp_tensor *x, unsigned dim) {
    char text[RP__SHAPE_TEXT];
    if (!weight) return RP_OK;
    if (weight->dtype != call->in[0]->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "expected scalar type %s but found %s for the weights",
                            rp__dtype_title((rp_dtype)call->in[0]->dtype), rp__dtype_title((rp_dtype)weight->dtype));
    if (weight->ndim != 1 || !rp__dim_is(RP__DIM_EQ, weight->size[0], x->size[dim]))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "weight tensor should be defined either for all %lld classes or no classes but got weight tensor of shape: "
            "%s",
            (long long)rp__dim_hint(x->size[dim]), rp__shape_text(weight->size, weight->ndim, text));
    return RP_OK;
}

/* The weights of classes as they stand beside x: (1, C, 1, ...). */
static rp_tensor *weight_beside(const rows *r, rp_tensor *weight) {
    rp_dim size[RP_MAX_DIMS];
    for (unsigned d = 0; d < r->x->ndim; d++) size[d] = d == 1 ? r->x->size[1] : 1;
    return rp_reshape(rp__wide(weight), size, r->x->ndim);
}

static rp_tensor *weight_at(const rows *r, rp_tensor *weight, int64_t ignore) {
    return rp_class_value(rp_expand(weight_beside(r, weight), r->x->size, r->x->ndim), r->target, ignore);
}

/* As integers that hold ignore_index: in bytes -100 would be class 156. */
static rp_tensor *is_ignored(rp_tensor *target, int64_t ignore) {
    return rp_eq_scalar(target->dtype == RP_U8 ? rp_to_dtype(target, RP_I64) : target, rp_i64(ignore));
}

/* Losses of rows, reduced; the mean is by the weights of the rows' classes (NULL: 1), and ignored rows have none. */
static rp_status give_rows(const rp__call *call, const rows *r, rp_tensor *loss, rp_tensor *weights, int64_t reduction,
                           int64_t ignore) {
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    if (reduction == RP__LOSS_NONE && r->flat) loss = rp_squeeze(loss, 0);
    if (reduction == RP__LOSS_MEAN) {
        if (!weights) weights = rp_logical_not(is_ignored(r->target, ignore));
        loss = rp_div(rp_sum(loss), rp_sum(weights));
        reduction = RP__LOSS_NONE;
    }
    return rp__loss_give(call, loss, reduction, dtype);
}

/* ---- cross-entropy and negative log-likelihood */

/* Of probabilities in the place of classes. */
static rp_status cross_entropy_of_parts(const rp__call *call, int64_t reduction, double smoothing) {
    rp_tensor *x = rp__wide(call->in[0]), *target = rp__wide(call->in[1]);
    const int64_t dim = x->ndim == 1 ? 0 : 1;
    if (!rp__dtype_is_float((rp_dtype)target->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "Expected floating point type for target with class probabilities, got %s",
                            rp__dtype_title((rp_dtype)target->dtype));
    if (rp__attr_int(call, 1) >= 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "ignore_index is not supported for floating point target");
    RP_TRY(check_weight(call, call->in[2], x, (unsigned)dim));
    const rp_scalar classes = rp__scalar_dim(x->size[dim]);
    if (smoothing > 0)
        target = rp_add(rp_mul_scalar(target, rp_f64(1 - smoothing)),
                        rp_div_scalar(rp_fill(target, rp_f64(smoothing)), classes));
    rp_tensor *part = rp_mul(rp_log_softmax(x, dim), target);
    if (call->in[2]) {
        const rows r = {.x = x};
        part = rp_mul(part, dim == 0 ? rp__wide(call->in[2]) : weight_beside(&r, call->in[2]));
    }
    rp_tensor *loss = rp_neg(rp_sum(part, &dim, 1));
    return rp__loss_give(call, loss, reduction, (rp_dtype)call->in[0]->dtype);
}

/* The classes of a linear map of several results, (C, ..., in), are its first dim. */
rp_status rp__expand_linear_cross_entropy(const rp__call *call) {
    rp_tensor *x = call->in[0], *map = call->in[1], *bias = call->in[3];
    rp_dim size[RP_MAX_DIMS];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (x->ndim < 1 || x->ndim > 2 || map->ndim < 2 || (map->ndim > 2 && x->ndim != 2))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expected input (in) or (N, in) and a weight (C, in) or, of a batch, (C, ..., in)");
    bool good = !bias || bias->ndim == map->ndim - 1u;
    for (unsigned d = 0; good && bias && d < bias->ndim; d++)
        good = rp__dim_is(RP__DIM_EQ, bias->size[d], map->size[d]);
    if (!good)
        return rp__op_error(call, RP_ERROR_SHAPE, "expected a linear_bias of the sizes of linear_weight but the last");
    unsigned n = 0;
    if (x->ndim == 2) size[n++] = x->size[0];
    for (unsigned d = 0; d + 1 < map->ndim; d++) size[n++] = map->size[d];
    rp_tensor *y = rp_linear_at(call->site, x, map->ndim > 2 ? rp_flatten(map, 0, -2) : map,
                                bias && bias->ndim > 1 ? rp_flatten(bias, 0, -1) : bias);
    if (map->ndim > 2) y = rp_view(y, size, n);
    if (rp__tensor_is_error(y)) return rp_error_status();
    if (!rp__attr_is_none(&call->attrs[1]) && rp__same_size(y, call->in[2]))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "a target of probabilities has no ignore_index");
    const int64_t ignore = rp__attr_is_none(&call->attrs[1]) ? -100 : call->attrs[1].v.i;
    return rp__give(call, rp_cross_entropy_at(call->site, y, call->in[2], call->in[4], rp__attr_int(call, 0), ignore,
                                              rp__attr_float(call, 2)));
}

rp_status rp__expand_cross_entropy(const rp__call *call) {
    const double smoothing = rp__attr_float(call, 2);
    const int64_t ignore = rp__attr_int(call, 1);
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 0, &reduction));
    if (!(smoothing >= 0 && smoothing <= 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "label_smoothing must be between 0.0 and 1.0. Got: %g",
                            smoothing);
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    if (call->in[0]->ndim > 0 && rp__same_size(call->in[0], call->in[1]))
        return cross_entropy_of_parts(call, reduction, smoothing);
    rows r;
    RP_TRY(rows_of(call, &r));
    rp_tensor *weight = call->in[2], *weights = NULL;
    if (rp__tensor_is_error(r.x)) return rp_error_status();
    RP_TRY(check_weight(call, weight, r.x, 1));
    rp_tensor *loss = rp_cross_entropy_rows(r.x, r.target, ignore, NULL, NULL);
    if (weight) {
        weights = weight_at(&r, weight, ignore);
        loss = rp_mul(loss, weights);
    }
    if (smoothing > 0) { /* and a part of the losses of all classes */
        rp_tensor *all = rp_log_softmax(rp__wide(r.x), 1);
        if (weight) all = rp_mul(all, weight_beside(&r, weight));
        all = rp_masked_fill_scalar(rp_neg(rp_sum(all, RP_DIMS(1))), is_ignored(r.target, ignore), rp_i64(0));
        all = rp_div_scalar(rp_mul_scalar(all, rp_f64(smoothing)), rp__scalar_dim(r.x->size[1]));
        loss = rp_add(rp_mul_scalar(loss, rp_f64(1 - smoothing)), all);
    }
    return give_rows(call, &r, loss, weights, reduction, ignore);
}

rp_status rp__expand_nll_loss(const rp__call *call) {
    const int64_t ignore = rp__attr_int(call, 1);
    rp_tensor *weight = call->in[2], *weights = NULL;
    int64_t reduction;
    rows r;
    RP_TRY(rp__loss_reduction(call, 0, &reduction));
    RP_TRY(rows_of(call, &r));
    if (rp__tensor_is_error(r.x)) return rp_error_status();
    RP_TRY(check_weight(call, weight, r.x, 1));
    rp_tensor *loss = rp_neg(rp__wide(rp_class_value(r.x, r.target, ignore)));
    if (weight) {
        weights = weight_at(&r, weight, ignore);
        loss = rp_mul(loss, weights);
    }
    return give_rows(call, &r, loss, weights, reduction, ignore);
}

/* All outputs are numbers of a row and stay in the compute type. */
rp_status rp__infer_cross_entropy_rows(const rp__call *call, rp__meta *out) {
    RP_TRY(check_places(call));
    for (unsigned k = 0; k < 3; k++)
        rp__meta_like(&out[k], call->in[1], (rp_dtype)rp__dtypes[call->in[0]->dtype].compute);
    return RP_OK;
}

/* t's strides along the dims of x, 0 along dim 1; t is x itself or its classes. */
static void strides_beside(const rp_tensor *t, const rp_tensor *x, rp_dim *stride) {
    const bool self = t->ndim == x->ndim;
    for (unsigned d = 0; d < x->ndim; d++) stride[d] = d == 1 ? 0 : t->stride[d - (d > 1 && !self)];
}

/* The place of the class along dim 1 of self; 0 where it is ignored. */
static rp__val class_offset(rp__lower *lw, rp__val target, rp__val *ignored) {
    const rp_tensor *x = rp__lw_call(lw)->in[0];
    target = rp__lw_cast(lw, target, RP_I64);
    *ignored = rp__lw_2(lw, RP__EQ, target, rp__lw_attr(lw, 0, RP_I64));
    rp__val class = rp__lw_3(lw, RP__WHERE, *ignored, rp__lw_const_i(lw, RP_I64, 0), target);
    class = rp__lw_check_index(lw, class, rp__lw_size(lw, x->size[1]), false);
    return rp__lw_2(lw, RP__MUL, class, rp__lw_size(lw, x->stride[1]));
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

    rp_dim target_stride[RP_MAX_DIMS], row_stride[RP_MAX_DIMS];
    strides_beside(call->in[1], logits, target_stride);
    strides_beside(logits, logits, row_stride);
    uint16_t target_access = rp__lw_access(lw, false, 1, target_stride, RP__ALONG_ROWS);
    rp__val ignored, offset = class_offset(lw, rp__lw_load(lw, target_access, RP__NO_VAL, RP__NO_VAL), &ignored);
    rp__val chosen = rp__lw_load(lw, rp__lw_access(lw, false, 0, row_stride, RP__ALONG_ROWS), offset, RP__NO_VAL);
    rp__val loss = rp__lw_2(lw, RP__SUB, log_total, rp__lw_2(lw, RP__SUB, chosen, high));
    rp__lw_out_row(lw, 0, rp__lw_3(lw, RP__WHERE, ignored, rp__lw_const(lw, compute, 0.0), loss));
    rp__lw_out_row(lw, 1, high);
    rp__lw_out_row(lw, 2, log_total);
}

rp_status rp__infer_class_value(const rp__call *call, rp__meta *out) {
    RP_TRY(check_places(call));
    rp__meta_like(out, call->in[1], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

void rp__lower_class_value(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *x = call->in[0], *target = call->in[1];
    rp_dim stride[RP_MAX_DIMS];
    rp__lw_space(lw, target->size, target->ndim, 0);
    for (unsigned d = 0; d < target->ndim; d++) stride[d] = x->stride[d + (d > 0)];
    rp__val ignored, offset;
    rp__val classes = rp__lw_in_front(lw, 1);
    uint16_t from = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    offset = class_offset(lw, classes, &ignored);
    rp__val value = rp__lw_load(lw, from, offset, RP__NO_VAL);
    rp__lw_out(lw, 0,
               rp__lw_3(lw, RP__WHERE, ignored, rp__lw_const(lw, rp__lw_compute(rp__lw_in_dtype(lw, 0)), 0.0), value));
}

/* ---- margins between classes */

/* Operand 0 as (N, C); what has fewer dims is one row. */
static rp_status margin_rows(const rp__call *call, rp_tensor **x) {
    rp_tensor *self = call->in[0];
    if (self->dtype != RP_F32 && self->dtype != RP_F64) return rp__call_refuse_dtype(call, (rp_dtype)self->dtype);
    if (self->ndim > 2 || (self->ndim > 0 && rp__dim_is(RP__DIM_EQ, self->size[self->ndim - 1], 0)))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected non-empty vector or matrix with optional 0-dim batch size");
    if (call->in[1]->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_DTYPE, "expected scalar type Long but found %s",
                            rp__dtype_title((rp_dtype)call->in[1]->dtype));
    *x = self;
    for (unsigned n = self->ndim; n < 2; n++) *x = rp_unsqueeze(*x, 0);
    return rp__tensor_is_error(*x) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_multi_margin_loss(const rp__call *call) {
    rp_tensor *x, *target = call->in[1], *weight = call->in[2];
    const double p = rp__scalar_f64(call->attrs[0].v.scalar);
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 2, &reduction));
    RP_TRY(margin_rows(call, &x));
    if (p != 1 && p != 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "multi_margin_loss: only p == 1 and p == 2 supported");
    if (target->ndim > 1 || !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(target), x->size[0]))
        return rp__op_error(call, RP_ERROR_SHAPE, "inconsistent target size, expected %lld classes",
                            (long long)rp__dim_hint(x->size[0]));
    RP_TRY(check_weight(call, weight, x, 1));
    const bool flat = target->ndim == 0;
    const rows r = {.x = x, .target = flat ? rp_unsqueeze(target, 0) : target};
    rp_tensor *chosen = rp_unsqueeze(rp_class_value(x, r.target, NO_CLASS), 1);
    rp_tensor *margin = rp_relu(rp_add_scalar(rp_sub(x, chosen), call->attrs[1].v.scalar));
    if (p == 2) margin = rp_square(margin);
    if (weight) margin = rp_mul(margin, rp_unsqueeze(weight_at(&r, weight, NO_CLASS), 1));
    rp_tensor *own = rp_eq(rp_unsqueeze(r.target, 1), rp__count_beside(x, x->size[1]));
    rp_tensor *loss = rp_sum(rp_masked_fill_scalar(margin, own, rp_i64(0)), RP_DIMS(1));
    loss = rp_div_scalar(loss, rp__scalar_dim(x->size[1]));
    if (flat) loss = rp_squeeze(loss, 0);
    return rp__loss_give(call, loss, reduction, (rp_dtype)x->dtype);
}

rp_status rp__expand_multilabel_margin_loss(const rp__call *call) {
    rp_tensor *x, *target = call->in[1];
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 0, &reduction));
    RP_TRY(margin_rows(call, &x));
    RP_TRY(rp__loss_same_size(call, 0, 1));
    for (unsigned n = target->ndim; n < 2; n++) target = rp_unsqueeze(target, 0);
    /* Classes (N, J) up to the first -1; what stands behind is none. */
    rp_tensor *none = rp_gt_scalar(rp_cumsum(rp_eq_scalar(target, rp_i64(-1)), 1), rp_i64(0));
    target = rp_masked_fill_scalar(target, none, rp_i64(0));
    rp_tensor *is_class = rp_logical_not(rp_unsqueeze(none, 2)); /* (N, J, 1) */
    rp_tensor *hit = rp_eq(rp_unsqueeze(target, 2), rp__count_beside(x, x->size[1]));
    rp_tensor *is_own = rp_any(rp_logical_and(hit, is_class), RP_DIMS(1), true); /* (N, 1, C) */
    rp_tensor *own = rp_unsqueeze(rp_gather(x, 1, target), 2), *other = rp_unsqueeze(x, 1);
    rp_tensor *margin = rp_relu(rp_add_scalar(rp_sub(other, own), rp_i64(1))); /* (N, J, C) */
    rp_tensor *counts = rp_logical_and(is_class, rp_logical_not(is_own));
    rp_tensor *loss = rp_sum(rp_masked_fill_scalar(margin, rp_logical_not(counts), rp_i64(0)), RP_DIMS(1, 2));
    loss = rp_div_scalar(loss, rp__scalar_dim(x->size[1]));
    if (call->in[0]->ndim < 2) loss = rp_squeeze(loss, 0);
    return rp__loss_give(call, loss, reduction, (rp_dtype)x->dtype);
}
