/* Connectionist temporal classification (Graves et al., 2006): the probability of all ways through the labels with blanks between them,
   a step of the recursion for each time, all sequences of the batch at once, by one kernel. States without a way have a logarithm that is low but
   finite, so that no derivative is NaN. */
#include <math.h>

#include "ops/execute.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/library_ops.h"
#include "ops/loss.h"
#include "ops/private.h"
#include "ops/rules.h"

#define NO_WAY RP__NO_WAY  /* a sum of a few of them is no infinity in float32 */
#define NO_WAY_AT_ALL 1e29 /* a loss above has no way */

static rp_tensor *low(rp_tensor *t, rp_tensor *where) { return rp_masked_fill_scalar(t, where, rp_f64(NO_WAY)); }

/* (.., L) moved n states on, `fill` before */
static rp_tensor *moved(rp_tensor *t, int64_t n, rp_scalar fill) { return rp_constant_pad_nd(t, RP_DIMS(n, -n), fill); }

/* ---- the recursion: a library op (kernel/library.h), and the linear one that is its derivative and that of itself */

static rp_status ctc_sizes(const rp__call *call, unsigned tables, rp__meta *out) {
    const rp_tensor *x = call->in[0], *skips = call->in[tables], *lengths = call->in[tables + 1];
    const rp_dtype dtype = (rp_dtype)x->dtype;
    if (dtype != RP_F32 && dtype != RP_F64) return rp__call_refuse_dtype(call, dtype);
    bool fits = x->ndim == 3 && skips->ndim == 2 && lengths->ndim == 1 &&
                rp__dim_is(RP__DIM_EQ, x->size[1], skips->size[0]) &&
                rp__dim_is(RP__DIM_EQ, x->size[2], skips->size[1]) &&
                rp__dim_is(RP__DIM_EQ, x->size[1], lengths->size[0]) && rp__dim_is(RP__DIM_LT, 0, x->size[0]);
    if (fits && tables == 2) fits = call->in[1]->ndim == 3 && rp__same_size(x, call->in[1]);
    if (!fits) return rp__op_error(call, RP_ERROR_SHAPE, "operands of these sizes do not fit each other");
    if (skips->dtype != RP_BOOL || lengths->dtype != RP_I64 || (tables == 2 && call->in[1]->dtype != x->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "operands of other types");
    rp__meta_like(out, x, dtype);
    return RP_OK;
}

rp_status rp__infer_ctc_reach(const rp__call *call, rp__meta *out) { return ctc_sizes(call, 1, out); }
rp_status rp__infer_ctc_carry(const rp__call *call, rp__meta *out) { return ctc_sizes(call, 2, out); }

static rp_status ctc_run(const rp__call *call, rp__library_op op, rp__library_call *library) {
    rp__operand o[5] = {rp__operand_of(call->out[0])};
    for (unsigned k = 0; k < call->n_in; k++) {
        rp_tensor *t = rp__run_contiguous(call->in[k], (rp_dtype)call->in[k]->dtype);
        if (rp__tensor_is_error(t)) return rp_error_status();
        o[1 + k] = rp__operand_of(t);
    }
    return rp__run_library_op(call, op, o, 1 + call->n_in, library);
}

rp_status rp__run_ctc_reach(const rp__call *call) {
    return ctc_run(call, RP__LIB_CTC_REACH, &(rp__library_call){.back = false});
}
rp_status rp__run_ctc_carry(const rp__call *call) {
    return ctc_run(call, RP__LIB_CTC_CARRY, &(rp__library_call){.back = rp__attr_bool(call, 0)});
}

/* (n, N, 1): are the times first, first + 1, ... before the ends of the sequences? */
static rp_tensor *lasts(rp_tensor *lengths, int64_t first, rp_dim n) {
    rp_tensor *time = rp_unsqueeze(rp__count_beside(lengths, n), 1);
    return rp_unsqueeze(rp_lt(time, rp_add_scalar(lengths, rp_i64(-first))), 2);
}

rp_status rp__vjp_ctc_reach(const rp__vjp *g) {
    const rp__call *call = g->call;
    rp_tensor *skips = call->in[1], *lengths = call->in[2], *reach = call->out[0];
    const rp_dim *size = reach->size;
    rp_tensor *carried = rp_ctc_carry(g->grad_out[0], reach, skips, lengths, true);
    /* A score counts while its sequence lasts; of time 0 those of the states with which a sequence may begin. */
    rp_tensor *time = rp_unsqueeze(rp_unsqueeze(rp__count_beside(reach, size[0]), 1), 1);
    rp_tensor *begins =
        rp_logical_and(rp_eq_scalar(time, rp_i64(0)), rp_lt_scalar(rp__count_beside(reach, size[2]), rp_i64(2)));
    rp_tensor *later = rp_logical_and(rp_gt_scalar(time, rp_i64(0)), lasts(lengths, 0, size[0]));
    g->grad_in[0] = rp_where(rp_logical_or(begins, later), carried, rp_zeros_like(carried));
    return rp__tensor_is_error(g->grad_in[0]) ? rp_error_status() : RP_OK;
}

/* carry(x) is linear in x. In reach: a way's share W of the three into a state follows their logarithms, dW_k = W_k (d_k - sum of W d). */
rp_status rp__vjp_ctc_carry(const rp__vjp *g) {
    const rp__call *call = g->call;
    const bool back = rp__attr_bool(call, 0);
    rp_tensor *reach = call->in[1], *skips = call->in[2], *lengths = call->in[3];
    rp_tensor *carried = rp_ctc_carry(g->grad_out[0], reach, skips, lengths, !back);
    if (g->needed[0]) g->grad_in[0] = carried;
    if (!g->needed[1]) return rp__tensor_is_error(carried) ? rp_error_status() : RP_OK;
    const rp_dim before = rp__dim_apply(RP__DIM_SUB, reach->size[0], 1);
    rp_tensor *on = back ? carried : call->out[0], *against = back ? call->out[0] : carried;
    rp_tensor *from = rp_narrow(reach, 0, 0, before), *had = rp_narrow(on, 0, 0, before), *state, *no_skip, *share,
              *sum;
    state = rp__count_beside(reach, reach->size[2]);
    no_skip = rp_logical_or(rp_logical_not(skips), rp_lt_scalar(state, rp_i64(2)));
    rp_tensor *way[3] = {from, moved(from, 1, rp_f64(NO_WAY)), low(moved(from, 2, rp_f64(NO_WAY)), no_skip)};
    rp_tensor *part[3] = {had, moved(had, 1, rp_i64(0)), moved(had, 2, rp_i64(0))};
    share = rp_softmax(rp_stack(way, 3, 0), 0);
    rp_tensor *parts = rp_stack(part, 3, 0);
    sum = rp_sum(rp_mul(share, parts), RP_DIMS(0), true);
    rp_tensor *slope = rp_mul(rp_mul(share, rp_sub(parts, sum)), rp_narrow(against, 0, 1, before));
    slope = rp_where(lasts(lengths, 1, before), slope, rp_zeros_like(slope));
    if (rp__tensor_is_error(slope)) return rp_error_status();
    rp_tensor *total = rp_select(slope, 0, 0);
    for (int64_t k = 1; k < 3; k++) total = rp_add(total, moved(rp_select(slope, 0, k), -k, rp_i64(0)));
    g->grad_in[1] = rp_constant_pad_nd(total, RP_DIMS(0, 0, 0, 0, 0, 1), rp_i64(0)); /* the last time leads nowhere */
    return rp__tensor_is_error(g->grad_in[1]) ? rp_error_status() : RP_OK;
}

/* ---- the loss */

/* log(sum of e ** part) */
static rp_tensor *log_sum(rp_tensor *const *part, size_t n) {
    rp_tensor *most = part[0], *sum = NULL;
    for (size_t k = 1; k < n; k++) most = rp_maximum(most, part[k]);
    most = rp_detach(most); /* its slope cancels */
    for (size_t k = 0; k < n; k++) {
        rp_tensor *one = rp_exp(rp_sub(part[k], most));
        sum = sum ? rp_add(sum, one) : one;
    }
    return rp_add(rp_log(sum), most);
}

typedef struct sequences {
    rp_tensor *log_probs;                    /* (T, N, C) in the compute type */
    rp_tensor *targets;                      /* (N, S) int64, blank behind the end */
    rp_tensor *input_length, *target_length; /* (N) int64 */
    int64_t t, n, s;
} sequences;

static rp_status lengths(const rp__call *call, unsigned k, int64_t n, rp_tensor **out) {
    rp_tensor *t = call->in[k];
    if (t->dtype != RP_I64 && t->dtype != RP_I32)
        return rp__op_error(call, RP_ERROR_DTYPE, "input_lengths and target_lengths must be integral");
    if (!rp__dim_is(RP__DIM_EQ, rp__tensor_numel(t), n) || t->ndim > 1)
        return rp__op_error(call, RP_ERROR_SHAPE, "%s must have one number for each of %lld sequences",
                            k == 2 ? "input_lengths" : "target_lengths", (long long)n);
    t = t->ndim == 0 ? rp_unsqueeze(t, 0) : t;
    *out = rp_to_dtype(t, RP_I64);
    return rp__tensor_is_error(*out) ? rp_error_status() : RP_OK;
}

static rp_status read(const rp__call *call, sequences *q) {
    rp_tensor *x = call->in[0], *targets = call->in[1];
    const int64_t blank = rp__attr_int(call, 0);
    if (x->dtype != RP_F32 && x->dtype != RP_F64) return rp__call_refuse_dtype(call, (rp_dtype)x->dtype);
    if (targets->dtype != RP_I64 && targets->dtype != RP_I32)
        return rp__op_error(call, RP_ERROR_DTYPE, "targets must be int32 or int64, not %s",
                            rp__dtype_title((rp_dtype)targets->dtype));
    if (x->ndim != 2 && x->ndim != 3)
        return rp__op_error(call, RP_ERROR_SHAPE, "log_probs must have size (T, N, C) or (T, C)");
    const bool one = x->ndim == 2;
    q->t = rp__dim_value(x->size[0]);
    q->n = one ? 1 : rp__dim_value(x->size[1]);
    const int64_t classes = rp__dim_value(x->size[x->ndim - 1]);
    if (q->t == 0 || classes == 0) return rp__op_error(call, RP_ERROR_SHAPE, "log_probs tensor must not be empty");
    if (blank < 0 || blank >= classes)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "blank must be in label range");
    if (targets->ndim != 1 && targets->ndim != 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "targets must have size (N, S) or be one behind the other");
    RP_TRY(lengths(call, 2, q->n, &q->input_length));
    RP_TRY(lengths(call, 3, q->n, &q->target_length));
    q->log_probs = rp_clamp(one ? rp_unsqueeze(x, 1) : x, rp_f64(NO_WAY), rp_none());
    q->s = rp__dim_value(targets->size[targets->ndim - 1]);
    if (targets->ndim == 2 && rp__dim_value(targets->size[0]) != q->n)
        return rp__op_error(call, RP_ERROR_SHAPE, "targets has %lld sequences, log_probs %lld",
                            (long long)rp__dim_hint(targets->size[0]), (long long)q->n);
    rp_tensor *place = rp__count_beside(x, q->s), *length = rp_unsqueeze(q->target_length, 1);
    targets = rp_to_dtype(targets, RP_I64);
    if (targets->ndim == 1) { /* each begins where the one before ends; a row holds them all */
        rp_tensor *begin = rp_unsqueeze(rp_sub(rp_cumsum(q->target_length, 0), q->target_length), 1);
        rp_tensor *at = rp_clamp(rp_add(begin, place), rp_none(), rp_i64(q->s > 0 ? q->s - 1 : 0));
        const int64_t size[2] = {q->n, q->s};
        targets = rp_gather(rp_expand(rp_unsqueeze(targets, 0), size, 2), 1, rp_expand(at, size, 2));
    }
    q->targets = rp_masked_fill_scalar(targets, rp_ge(place, length), rp_i64(blank));
    return rp__tensor_is_error(q->targets) || rp__tensor_is_error(q->log_probs) ? rp_error_status() : RP_OK;
}

/* Labels (N, 2 S + 1): blanks, the targets between them. */
static rp_tensor *labels_of(const sequences *q, int64_t blank) {
    rp_tensor *between = rp_fill(q->targets, rp_i64(blank));
    rp_tensor *pair[2] = {rp_unsqueeze(between, 2), rp_unsqueeze(q->targets, 2)};
    rp_tensor *row[2] = {rp_reshape(rp_cat(pair, 2, 2), RP_DIMS(q->n, 2 * q->s)),
                         rp_unsqueeze(rp_fill(q->target_length, rp_i64(blank)), 1)};
    return rp_cat(row, 2, 1);
}

rp_status rp__expand_ctc_loss(const rp__call *call) {
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    int64_t reduction;
    sequences q = {.n = 0};
    RP_TRY(rp__loss_reduction(call, 1, &reduction));
    RP_TRY(read(call, &q));
    const int64_t states = 2 * q.s + 1, size[3] = {q.t, q.n, states};
    rp_tensor *label = labels_of(&q, rp__attr_int(call, 0)), *state = rp__count_beside(q.log_probs, states);
    rp_tensor *score = rp_gather(q.log_probs, 2, rp_expand(rp_unsqueeze(label, 0), size, 3)); /* (T, N, L) */
    /* From two states before, over a blank: unless the labels are the same. */
    rp_tensor *same = rp_logical_or(rp_eq(label, moved(label, 2, rp_i64(-1))), rp_lt_scalar(state, rp_i64(2)));
    rp_tensor *reach = rp_select(rp_ctc_reach(score, rp_logical_not(same), q.input_length), 0, -1);
    rp_tensor *last = rp_mul_scalar(rp_unsqueeze(q.target_length, 1), rp_i64(2));
    rp_tensor *before = rp_clamp(rp_add_scalar(last, rp_i64(-1)), rp_i64(0), rp_none());
    rp_tensor *no_target = rp_eq_scalar(q.target_length, rp_i64(0)),
              *no_input = rp_eq_scalar(q.input_length, rp_i64(0));
    rp_tensor *end[2] = {rp_squeeze(rp_gather(reach, 1, last), 1),
                         low(rp_squeeze(rp_gather(reach, 1, before), 1), no_target)};
    rp_tensor *loss = rp_neg(log_sum(end, 2));
    /* Without a time there is one way, of no label. */
    loss = rp_masked_fill_scalar(loss, rp_logical_and(no_input, no_target), rp_i64(0));
    loss = rp_masked_fill_scalar(loss, rp_logical_and(no_input, rp_logical_not(no_target)), rp_f64(-NO_WAY));
    rp_tensor *impossible = rp_gt_scalar(loss, rp_f64(NO_WAY_AT_ALL));
    /* The gradient is that of probabilities that sum to 1: each log-probability has its probability more. The sum itself is 0. */
    rp_tensor *probability = rp_exp(q.log_probs), *time = rp_unsqueeze(rp__count_beside(q.log_probs, q.t), 1);
    rp_tensor *over = rp_unsqueeze(rp_ge(time, q.input_length), 2); /* (T, N, 1) */
    rp_tensor *share = rp_masked_fill_scalar(rp_sub(probability, rp_detach(probability)), over, rp_i64(0));
    loss = rp_add(loss, rp_sum(share, RP_DIMS(0, 2)));
    loss = rp_masked_fill_scalar(loss, impossible, rp__attr_bool(call, 2) ? rp_i64(0) : rp_f64(INFINITY));
    if (reduction == RP__LOSS_MEAN) /* a label */
        loss = rp_div(loss, rp_to_dtype(rp_clamp(q.target_length, rp_i64(1), rp_none()), dtype));
    if (reduction == RP__LOSS_NONE && call->in[0]->ndim == 2) loss = rp_squeeze(loss, 0);
    return rp__loss_give(call, loss, reduction, dtype);
}
