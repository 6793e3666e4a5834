/* Losses that are made of other ops: the losses of elements, in float32 where operands are narrower, and their reduction. Those of
   classes are in loss_rows.c. */
#include "ops/loss.h"

#include <math.h>

#include "ops/formula.h"
#include "ops/grad.h"
#include "ops/private.h"
#include "ops/rules.h"

rp_status rp__loss_reduction(const rp__call *call, unsigned attr, int64_t *reduction) {
    *reduction = rp__attr_int(call, attr);
    if (*reduction >= RP__LOSS_NONE && *reduction <= RP__LOSS_SUM) return RP_OK;
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "reduction is 0 (none), 1 (mean) or 2 (sum), not %lld",
                        (long long)*reduction);
}

rp_status rp__loss_give(const rp__call *call, rp_tensor *loss, int64_t reduction, rp_dtype dtype) {
    if (reduction == RP__LOSS_MEAN) loss = rp_mean(loss);
    if (reduction == RP__LOSS_SUM) loss = rp_sum(loss);
    if (!rp__tensor_is_error(loss) && rp__dtype_is_float(dtype) && (rp_dtype)loss->dtype != dtype)
        loss = rp_to_dtype(loss, dtype);
    call->out[0] = loss;
    return rp__tensor_is_error(loss) ? rp_error_status() : RP_OK;
}

rp_status rp__loss_same_size(const rp__call *call, unsigned a, unsigned b) {
    const rp_tensor *x = call->in[a], *y = call->in[b];
    char s[RP__SHAPE_TEXT], t[RP__SHAPE_TEXT];
    if (rp__same_size(x, y)) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE, "the size of target, %s, must be that of the input, %s",
                        rp__shape_text(y->size, y->ndim, s), rp__shape_text(x->size, x->ndim, t));
}

/* What every loss of two operands begins with: its reduction and the type of its result, a floating one. */
static rp_status begin(const rp__call *call, unsigned attr, int64_t *reduction, rp_dtype *dtype) {
    RP_TRY(rp__loss_reduction(call, attr, reduction));
    *dtype = rp__call_promote(call, 0, 2, -1);
    return rp__call_need_float(call, *dtype);
}

static rp_tensor *half(rp_tensor *t) { return rp_mul_scalar(t, rp_f64(0.5)); }
static rp_tensor *one_minus(rp_tensor *t) { return rp_add_scalar(rp_neg(t), rp_i64(1)); }
static rp_tensor *at_least_zero(rp_tensor *t) { return rp_clamp(t, rp_i64(0), rp_none()); }

/* ---- distances of elements */

rp_status rp__expand_mse_loss(const rp__call *call) {
    int64_t reduction;
    rp_dtype dtype;
    RP_TRY(begin(call, 0, &reduction, &dtype));
    return rp__loss_give(call, rp_square(rp_sub(rp__wide(call->in[0]), rp__wide(call->in[1]))), reduction, dtype);
}

rp_status rp__expand_l1_loss(const rp__call *call) {
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 0, &reduction));
    rp_tensor *difference = rp_sub(rp__wide(call->in[0]), rp__wide(call->in[1]));
    return rp__loss_give(call, rp_abs(difference), reduction, rp__call_promote(call, 0, 2, -1));
}

rp_status rp__expand_smooth_l1_loss(const rp__call *call) {
    const double beta = rp__attr_float(call, 1);
    int64_t reduction;
    rp_dtype dtype;
    RP_TRY(begin(call, 0, &reduction, &dtype));
    if (beta < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "smooth_l1_loss does not support negative values for beta.");
    rp_tensor *difference = rp_sub(rp__wide(call->in[0]), rp__wide(call->in[1])), *far = rp_abs(difference);
    if (beta == 0) return rp__loss_give(call, far, reduction, dtype);
    rp_tensor *near = rp_mul_scalar(rp_square(difference), rp_f64(0.5 / beta));
    far = rp_where(rp_lt_scalar(far, rp_f64(beta)), near, rp_add_scalar(far, rp_f64(-0.5 * beta)));
    return rp__loss_give(call, far, reduction, dtype);
}

rp_status rp__expand_huber_loss(const rp__call *call) {
    const double delta = rp__attr_float(call, 1);
    int64_t reduction;
    rp_dtype dtype;
    RP_TRY(begin(call, 0, &reduction, &dtype));
    if (!(delta > 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "huber_loss does not support non-positive values for delta.");
    rp_tensor *difference = rp_sub(rp__wide(call->in[0]), rp__wide(call->in[1])), *far = rp_abs(difference);
    rp_tensor *beyond = rp_mul_scalar(rp_add_scalar(far, rp_f64(-0.5 * delta)), rp_f64(delta));
    far = rp_where(rp_le_scalar(far, rp_f64(delta)), half(rp_square(difference)), beyond);
    return rp__loss_give(call, far, reduction, dtype);
}

/* ---- likelihoods of elements */

static rp_status need_type_of_self(const rp__call *call, unsigned k) {
    const rp_tensor *x = call->in[0], *t = call->in[k];
    if (!t || t->dtype == x->dtype) return RP_OK;
    return rp__op_error(call, RP_ERROR_DTYPE, "Found dtype %s but expected %s", rp__dtype_title((rp_dtype)t->dtype),
                        rp__dtype_title((rp_dtype)x->dtype));
}

/* loss * weight in the size of loss */
static rp_status weigh(const rp__call *call, rp_tensor **loss, rp_tensor *weight) {
    if (!weight || rp__tensor_is_error(*loss)) return RP_OK;
    rp__meta both;
    RP_TRY(rp__meta_broadcast(*loss, weight, &both));
    bool fits = both.ndim == (*loss)->ndim;
    for (unsigned d = 0; fits && d < both.ndim; d++) fits = rp__dim_is(RP__DIM_EQ, both.size[d], (*loss)->size[d]);
    if (!fits) return rp__op_error(call, RP_ERROR_SHAPE, "weight does not broadcast to the size of the input");
    *loss = rp_mul(*loss, rp__wide(weight));
    return RP_OK;
}

rp_status rp__expand_binary_cross_entropy(const rp__call *call) {
    int64_t reduction;
    rp_dtype dtype;
    RP_TRY(begin(call, 0, &reduction, &dtype));
    RP_TRY(need_type_of_self(call, 1));
    RP_TRY(need_type_of_self(call, 2));
    RP_TRY(rp__loss_same_size(call, 0, 1));
    rp_tensor *loss = rp_binary_cross_entropy_elements(rp__wide(call->in[0]), rp__wide(call->in[1]));
    RP_TRY(weigh(call, &loss, call->in[2]));
    return rp__loss_give(call, loss, reduction, dtype);
}

void rp__lower_binary_cross_entropy_elements(rp__lower *lw) {
    const rp_dtype type = rp__lw_promoted(lw, 2, -1), compute = rp__lw_compute(type);
    const rp__val x = rp__lw_in_as(lw, 0, type), t = rp__lw_in_as(lw, 1, type), low = NUM(-100);
    const rp__val yes = MAX(LOG(x), low), no = MAX(LOG1P(NEG(x)), low);
    rp__lw_out(lw, 0, SUB(MUL(SUB(t, NUM(1)), no), MUL(t, yes)));
}

rp_status rp__expand_binary_cross_entropy_with_logits(const rp__call *call) {
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 0, &reduction));
    rp_tensor *x = rp__wide(call->in[0]), *target = rp__wide(call->in[1]), *log_yes = rp_log_sigmoid(x);
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    RP_TRY(rp__loss_same_size(call, 0, 1));
    if (call->in[3]) /* a yes counts pos_weight times */
        RP_TRY(weigh(call, &log_yes,
                     rp_add_scalar(rp_mul(rp_add_scalar(rp__wide(call->in[3]), rp_i64(-1)), target), rp_i64(1))));
    rp_tensor *loss = rp_sub(rp_mul(one_minus(target), x), log_yes);
    RP_TRY(weigh(call, &loss, call->in[2]));
    return rp__loss_give(call, loss, reduction, rp__call_promote(call, 0, 2, -1));
}

rp_status rp__expand_kl_div(const rp__call *call) {
    enum { BATCH_MEAN = 3 };
    rp_tensor *x = rp__wide(call->in[0]), *target = rp__wide(call->in[1]);
    const rp_dtype dtype = rp__call_promote(call, 0, 2, -1);
    int64_t reduction = rp__attr_int(call, 0);
    if (reduction != BATCH_MEAN) RP_TRY(rp__loss_reduction(call, 0, &reduction));
    RP_TRY(rp__call_need_float(call, dtype));
    rp_tensor *loss = rp__attr_bool(call, 1) ? rp_mul(rp_exp(target), rp_sub(target, x))
                                             : rp_sub(rp_xlogy(target, target), rp_mul(target, x));
    if (reduction == BATCH_MEAN) {
        loss = rp_sum(loss);
        if (call->in[0]->ndim > 0) loss = rp_div_scalar(loss, rp__scalar_dim(call->in[0]->size[0]));
        reduction = RP__LOSS_NONE;
    }
    return rp__loss_give(call, loss, reduction, dtype);
}

rp_status rp__expand_poisson_nll_loss(const rp__call *call) {
    rp_tensor *x = rp__wide(call->in[0]), *target = rp__wide(call->in[1]);
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 3, &reduction));
    rp_tensor *loss = rp__attr_bool(call, 0)
                          ? rp_sub(rp_exp(x), rp_mul(target, x))
                          : rp_sub(x, rp_mul(target, rp_log(rp_add_scalar(x, rp_f64(rp__attr_float(call, 2))))));
    if (rp__attr_bool(call, 1)) {
        rp_tensor *log_factorial = rp_add(rp_sub(rp_mul(target, rp_log(target)), target),
                                          half(rp_log(rp_mul_scalar(target, rp_f64(2 * M_PI)))));
        rp_tensor *small = rp_le_scalar(target, rp_i64(1));
        loss = rp_add(loss, rp_masked_fill_scalar(log_factorial, small, rp_i64(0)));
    }
    return rp__loss_give(call, loss, reduction, rp__call_promote(call, 0, 2, -1));
}

rp_status rp__expand_gaussian_nll_loss(const rp__call *call) {
    rp_tensor *x = call->in[0], *var = call->in[2];
    const rp_scalar eps = rp_f64(rp__attr_float(call, 1));
    const rp_dtype dtype = rp__call_promote(call, 0, 3, -1);
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 2, &reduction));
    for (unsigned k = 0; k < 3; k++) RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[k]->dtype));
    if (!rp__same_size(x, var)) { /* one variance for each row, with or without the last dim */
        bool fits = x->ndim > 0 && (var->ndim == x->ndim || var->ndim + 1u == x->ndim);
        for (unsigned d = 0; fits && d + 1u < x->ndim; d++) fits = rp__dim_is(RP__DIM_EQ, x->size[d], var->size[d]);
        if (fits && var->ndim == x->ndim) fits = rp__dim_is(RP__DIM_EQ, var->size[var->ndim - 1], 1);
        if (!fits) return rp__op_error(call, RP_ERROR_SHAPE, "var is of incorrect size");
        if (var->ndim < x->ndim) var = rp_unsqueeze(var, -1);
    }
    var = rp__wide(var);
    /* at least eps, with the gradient of var itself */
    var = rp_where(rp_lt_scalar(var, eps), rp_add_scalar(rp_sub(var, rp_detach(var)), eps), var);
    rp_tensor *off = rp_square(rp_sub(rp__wide(x), rp__wide(call->in[1])));
    rp_tensor *loss = half(rp_add(rp_log(var), rp_div(off, var)));
    if (rp__attr_bool(call, 0)) loss = rp_add_scalar(loss, rp_f64(0.5 * log(2 * M_PI)));
    return rp__loss_give(call, loss, reduction, dtype);
}

rp_status rp__expand_soft_margin_loss(const rp__call *call) {
    int64_t reduction;
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    RP_TRY(rp__loss_reduction(call, 0, &reduction));
    RP_TRY(rp__call_need_float(call, dtype));
    rp_tensor *off = rp_exp(rp_mul(rp_neg(rp__wide(call->in[1])), rp__wide(call->in[0])));
    return rp__loss_give(call, rp_log1p(off), reduction, dtype);
}

rp_status rp__expand_multilabel_soft_margin_loss(const rp__call *call) {
    rp_tensor *x = rp__wide(call->in[0]), *target = rp__wide(call->in[1]);
    const rp_dtype dtype = rp__call_promote(call, 0, 2, -1);
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 0, &reduction));
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    if (x->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "the input must have a dim of classes");
    rp_tensor *yes = rp_mul(target, rp_log_sigmoid(x)), *no = rp_mul(one_minus(target), rp_log_sigmoid(rp_neg(x)));
    rp_tensor *loss = rp_neg(rp_add(yes, no));
    if (call->in[2]) loss = rp_mul(loss, rp__wide(call->in[2]));
    loss = rp_div_scalar(rp_sum(loss, RP_DIMS(-1)), rp__scalar_dim(x->size[x->ndim - 1]));
    return rp__loss_give(call, loss, reduction, dtype);
}

/* ---- embeddings and ranks */

rp_status rp__expand_hinge_embedding_loss(const rp__call *call) {
    rp_tensor *x = rp__wide(call->in[0]), *target = call->in[1];
    const double margin = rp__attr_float(call, 0);
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 1, &reduction));
    if (x->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    /* Integers stay integers, and the margin becomes one. */
    const rp_scalar number =
        rp__dtype_is_float((rp_dtype)x->dtype) ? rp_f64(margin) : rp_i64((int64_t)fmax(fmin(margin, 0x1p61), -0x1p61));
    rp_tensor *apart = at_least_zero(rp_add_scalar(rp_neg(x), number)), *zero = rp_zeros_like(x);
    rp_tensor *loss = rp_add(rp_where(rp_ne_scalar(target, rp_i64(1)), apart, zero),
                             rp_where(rp_ne_scalar(target, rp_i64(-1)), x, zero));
    return rp__loss_give(call, loss, reduction, (rp_dtype)call->in[0]->dtype);
}

rp_status rp__expand_margin_ranking_loss(const rp__call *call) {
    rp_tensor *const *in = call->in;
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 1, &reduction));
    if (in[0]->ndim != in[1]->ndim || in[0]->ndim != in[2]->ndim)
        return rp__op_error(call, RP_ERROR_SHAPE, "all operands should have as many dimensions");
    rp_tensor *lead = rp_mul(rp_neg(rp__wide(in[2])), rp_sub(rp__wide(in[0]), rp__wide(in[1])));
    rp_tensor *loss = at_least_zero(rp_add_scalar(lead, rp_f64(rp__attr_float(call, 0))));
    return rp__loss_give(call, loss, reduction, rp__call_promote(call, 0, 3, -1));
}

rp_status rp__expand_cosine_embedding_loss(const rp__call *call) {
    rp_tensor *a = rp__wide(call->in[0]), *b = rp__wide(call->in[1]), *target = call->in[2];
    const rp_scalar tiny = rp_f64(1e-12);
    int64_t reduction, dim = target->ndim;
    RP_TRY(rp__loss_reduction(call, 1, &reduction));
    if (target->ndim > 1)
        return rp__op_error(call, RP_ERROR_SHAPE, "0D or 1D target tensor expected, multi-target not supported");
    if (a->ndim != target->ndim + 1u || b->ndim != target->ndim + 1u)
        return rp__op_error(call, RP_ERROR_SHAPE, "%uD target tensor expects %uD input tensors", target->ndim,
                            target->ndim + 1u);
    rp_tensor *both = rp_sum(rp_mul(a, b), &dim, 1);
    rp_tensor *size_a = rp_add_scalar(rp_sum(rp_mul(a, a), &dim, 1), tiny);
    rp_tensor *size_b = rp_add_scalar(rp_sum(rp_mul(b, b), &dim, 1), tiny);
    rp_tensor *cosine = rp_div(both, rp_sqrt(rp_mul(size_a, size_b))), *zero = rp_zeros_like(cosine);
    rp_tensor *apart = at_least_zero(rp_add_scalar(cosine, rp_f64(-rp__attr_float(call, 0))));
    rp_tensor *loss = rp_add(rp_where(rp_eq_scalar(target, rp_i64(1)), one_minus(cosine), zero),
                             rp_where(rp_eq_scalar(target, rp_i64(-1)), apart, zero));
    return rp__loss_give(call, loss, reduction, rp__call_promote(call, 0, 2, -1));
}

static rp_tensor *distance(rp_tensor *a, rp_tensor *b, double p, double eps, bool keepdim) {
    return rp_linalg_vector_norm(rp_add_scalar(rp_sub(rp__wide(a), rp__wide(b)), rp_f64(eps)), rp_f64(p), RP_DIMS(-1),
                                 keepdim);
}

rp_status rp__expand_pairwise_distance(const rp__call *call) {
    rp_tensor *y =
        distance(call->in[0], call->in[1], rp__attr_float(call, 0), rp__attr_float(call, 1), rp__attr_bool(call, 2));
    return rp__loss_give(call, y, RP__LOSS_NONE, rp__call_promote(call, 0, 2, -1));
}

rp_status rp__expand_triplet_margin_loss(const rp__call *call) {
    rp_tensor *const *in = call->in;
    const double p = rp__attr_float(call, 1), eps = rp__attr_float(call, 2);
    int64_t reduction;
    RP_TRY(rp__loss_reduction(call, 4, &reduction));
    if (in[0]->ndim != in[1]->ndim || in[0]->ndim != in[2]->ndim)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "The anchor, positive, and negative tensors are expected to have the same number of "
                            "dimensions, but got: anchor %uD, positive %uD, and negative %uD inputs",
                            in[0]->ndim, in[1]->ndim, in[2]->ndim);
    rp_tensor *near = distance(in[0], in[1], p, eps, false), *far = distance(in[0], in[2], p, eps, false);
    if (rp__attr_bool(call, 3)) far = rp_minimum(far, distance(in[1], in[2], p, eps, false));
    rp_tensor *loss = at_least_zero(rp_add_scalar(rp_sub(near, far), rp_f64(rp__attr_float(call, 0))));
    return rp__loss_give(call, loss, reduction, rp__call_promote(call, 0, 3, -1));
}
