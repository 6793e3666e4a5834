/* Scans along one dim: rows kernels in which every element depends on those before it. A derivative runs the other way. */
#include <math.h>

#include "ops/formula.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* Integers and bools add up in int64. */
rp_status rp__infer_cumsum(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    rp_dtype in = (rp_dtype)t->dtype, asked = call->attrs[1].v.dtype;
    rp_dtype dtype = asked != RP_DTYPE_NONE ? asked : rp__dtype_is_float(in) ? in : RP_I64;
    unsigned dim;
    if (!rp__dtype_is_valid(dtype)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)dtype);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &dim));
    rp__meta_like(out, t, dtype);
    return RP_OK;
}

/* The dim that is walked. A 0-d tensor is a row of one. */
static void set_row(rp__lower *lw, bool reversed) {
    const rp__call *call = rp__lw_call(lw);
    unsigned dim, ndim = call->in[0]->ndim;
    if (ndim > 0 && rp__call_dim(call, rp__attr_int(call, 0), ndim, &dim) == RP_OK) rp__lw_inner(lw, 1u << dim);
    if (reversed) rp__lw_reverse(lw);
}

/* Elements are converted to the result's type first, as PyTorch does with dtype=. */
static rp__val elements(rp__lower *lw, bool reversed) {
    set_row(lw, reversed);
    return rp__lw_in_as(lw, 0, rp__lw_out_dtype(lw, 0));
}
static void cumulate(rp__lower *lw, rp__scan_kind kind, bool reversed) {
    rp__lw_out(lw, 0, rp__lw_scan(lw, kind, elements(lw, reversed)));
}
void rp__lower_cumsum(rp__lower *lw) { cumulate(lw, RP__SCAN_SUM, false); }
/* In float64, as prod of reduce.c. */
void rp__lower_cumprod(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_out_dtype(lw, 0));
    const rp__val a = elements(lw, false), wide = compute == RP_F32 ? rp__lw_cast(lw, a, RP_F64) : a;
    rp__lw_out(lw, 0, rp__lw_cast(lw, rp__lw_scan(lw, RP__SCAN_PROD, wide), compute));
}

rp_status rp__infer_cumsum_reversed(const rp__call *call, rp__meta *out) {
    unsigned dim;
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), call->in[0]->ndim, &dim));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}
void rp__lower_cumsum_reversed(rp__lower *lw) { cumulate(lw, RP__SCAN_SUM, true); }

rp_status rp__infer_logcumsumexp(const rp__call *call, rp__meta *out) { return rp__infer_cumsum_reversed(call, out); }
void rp__lower_logcumsumexp(rp__lower *lw) { cumulate(lw, RP__SCAN_LOGADDEXP, false); }

/* ---- cummax, cummin */

rp_status rp__infer_cummax(const rp__call *call, rp__meta *out) {
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), call->in[0]->ndim, &dim));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    rp__meta_like(&out[1], call->in[0], RP_I64);
    return RP_OK;
}

/* The place is the last one at which an element was the largest up to there. */
static void lower_extreme(rp__lower *lw, rp__scan_kind kind) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dtype in = rp__lw_in_dtype(lw, 0);
    unsigned dim = 0;
    set_row(lw, false);
    const bool row = rp__lw_structural_value(lw, call->in[0]->ndim > 0);
    if (row && rp__call_dim(call, rp__attr_int(call, 0), call->in[0]->ndim, &dim) != RP_OK) return;
    const rp__val start = rp__lw_const_i(lw, RP_I64, 0), index = row ? rp__lw_dim_index(lw, dim) : start;
    const rp__val x = in == RP_BOOL ? rp__lw_cast(lw, rp__lw_in(lw, 0), RP_U8) : rp__lw_in(lw, 0);
    const rp__val value = rp__lw_scan(lw, kind, x);
    rp__val is = EQ(x, value);
    if (rp__dtype_is_float(in)) is = OR(is, PRIM(ISNAN, x));
    rp__lw_out(lw, 0, value);
    rp__lw_out(lw, 1, rp__lw_scan(lw, RP__SCAN_MAX, WHERE(is, index, start)));
}
void rp__lower_cummax(rp__lower *lw) { lower_extreme(lw, RP__SCAN_MAX); }
void rp__lower_cummin(rp__lower *lw) { lower_extreme(lw, RP__SCAN_MIN); }

/* ---- the slopes of logcumsumexp: weights of either sign, each by its logarithm */

rp_status rp__infer_exp_scan(const rp__call *call, rp__meta *out) { return rp__infer_cumsum_reversed(call, out); }
void rp__lower_exp_scan(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    set_row(lw, rp__lw_structural_value(lw, rp__attr_bool(rp__lw_call(lw), 1)));
    const rp__val w = rp__lw_in(lw, 0), of = rp__lw_in(lw, 1), at = rp__lw_in(lw, 2);
    const rp__val zero = NUM(0), none = NUM(-INFINITY);
    const rp__val up = rp__lw_scan(lw, RP__SCAN_LOGADDEXP, WHERE(LT(zero, w), ADD(LOG(w), of), none));
    const rp__val down = rp__lw_scan(lw, RP__SCAN_LOGADDEXP, WHERE(LT(w, zero), ADD(LOG(NEG(w)), of), none));
    rp__lw_out(lw, 0, SUB(EXP(ADD(up, at)), EXP(ADD(down, at))));
}

/* ---- differences and areas */

/* All elements along dim but the last, and all but the first. */
static rp_tensor *but_last(rp_tensor *t, unsigned dim) {
    return rp_slice(t, dim, 0, rp__dim_apply(RP__DIM_MAX, rp__dim_apply(RP__DIM_SUB, t->size[dim], 1), 0), 1);
}
static rp_tensor *but_first(rp_tensor *t, unsigned dim) { return rp_slice(t, dim, 1, t->size[dim], 1); }

rp_status rp__expand_diff(const rp__call *call) {
    rp_tensor *x = call->in[0], *parts[3];
    const int64_t times = rp__attr_int(call, 0);
    unsigned dim, n = 0;
    if (x->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "diff expects input to be at least one-dimensional");
    if (times < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "order must be non-negative but got %lld",
                            (long long)times);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), x->ndim, &dim));
    if (times == 0) return rp__give(call, rp_clone(x)); /* nothing is joined either */
    if (call->in[1]) parts[n++] = call->in[1];
    parts[n++] = x;
    if (call->in[2]) parts[n++] = call->in[2];
    if (n > 1) x = rp_cat(parts, n, dim);
    for (int64_t k = 0; k < times && !rp__tensor_is_error(x); k++) {
        if (rp__dim_is(RP__DIM_EQ, x->size[dim], 0)) break; /* it stays empty */
        rp_tensor *before = but_last(x, dim), *behind = but_first(x, dim);
        x = x->dtype == RP_BOOL ? rp_logical_xor(behind, before) : rp_sub(behind, before);
    }
    return rp__give(call, x);
}

/* Neighbours of y added up along dim, each times their distance. NULL: an area without points. */
static rp_status areas(const rp__call *call, bool by_x, bool each, unsigned *dim, rp_tensor **sums) {
    rp_tensor *y = call->in[0], *x = by_x ? call->in[1] : NULL;
    const int64_t given = rp__attr_int(call, by_x ? 0 : 1);
    if (y->ndim == 0)
        return rp__op_error(call, RP_ERROR_INDEX, "Dimension specified as %lld but tensor has no dimensions",
                            (long long)given);
    RP_TRY(rp__call_dim(call, given, y->ndim, dim));
    if (!each && rp__dim_is(RP__DIM_EQ, y->size[*dim], 0)) return RP_OK;
    if (y->dtype == RP_BOOL || (x && x->dtype == RP_BOOL))
        return rp__op_error(call, RP_ERROR_DTYPE, "received a bool input for `x` or `y`, but bool is not supported");
    rp_tensor *both = rp_add(but_last(y, *dim), but_first(y, *dim));
    if (!x) {
        const rp_scalar dx = call->attrs[0].v.scalar;
        *sums = rp_mul_scalar(both, rp_f64(rp__scalar_f64(dx) / 2));
        return RP_OK;
    }
    rp_dim size[RP_MAX_DIMS];
    if (x->ndim == 1 && !rp__dim_is(RP__DIM_EQ, x->size[0], y->size[*dim]))
        return rp__op_error(call, RP_ERROR_SHAPE, "There must be one `x` value for each sample point");
    const unsigned lead = x->ndim < y->ndim ? y->ndim - x->ndim : 0;
    for (unsigned d = 0; d < y->ndim; d++)
        size[d] = x->ndim == 1 ? (d == *dim ? x->size[0] : 1) : d < lead ? 1 : x->size[d - lead];
    if (lead > 0) x = rp_view(x, size, y->ndim);
    if (*dim >= x->ndim) return rp__op_error(call, RP_ERROR_SHAPE, "x has no dim %u", *dim);
    *sums = rp_div_scalar(rp_mul(both, rp_sub(but_first(x, *dim), but_last(x, *dim))), rp_i64(2));
    return RP_OK;
}

static rp_status expand_areas(const rp__call *call, bool by_x, bool each) {
    rp_tensor *sums = NULL;
    unsigned dim = 0;
    RP_TRY(areas(call, by_x, each, &dim, &sums));
    const int64_t over = dim;
    if (!each && !sums) { /* zeros of y's type */
        rp_tensor *y = call->in[0];
        return rp__give(call, rp_sum(y, &over, 1, false, RP_OPTIONS(rp_sum_options, .dtype = (rp_dtype)y->dtype)));
    }
    return rp__give(call, each ? rp_cumsum(sums, over) : rp_sum(sums, &over, 1));
}
rp_status rp__expand_trapezoid(const rp__call *call) { return expand_areas(call, false, false); }
rp_status rp__expand_trapezoid_x(const rp__call *call) { return expand_areas(call, true, false); }
rp_status rp__expand_cumulative_trapezoid(const rp__call *call) { return expand_areas(call, false, true); }
rp_status rp__expand_cumulative_trapezoid_x(const rp__call *call) { return expand_areas(call, true, true); }

/* ---- slopes */

/* Elements from `from` on along dim; below 0: from the end. `count` of them. */
static rp_tensor *part_of(rp_tensor *t, unsigned dim, int64_t from, rp_dim count) {
    if (rp__tensor_is_error(t)) return t;
    const rp_dim start = from < 0 ? rp__dim_apply(RP__DIM_ADD, t->size[dim], from) : from;
    return rp_slice(t, dim, start, rp__dim_apply(RP__DIM_ADD, start, count), 1);
}

/* Of points that are `step` apart. */
static rp_tensor *even_slopes(rp_tensor *x, unsigned dim, int64_t edge, rp_scalar step) {
    static const double weights[3] = {-1.5, 2, -0.5};
    if (rp__tensor_is_error(x)) return x;
    const rp_dim within = rp__dim_apply(RP__DIM_SUB, x->size[dim], 2);
    rp_tensor *rise = rp_sub(part_of(x, dim, 2, within), part_of(x, dim, 0, within)), *parts[3];
    parts[1] = rp_div_scalar(rise, rp__num_apply(RP__NUM_MUL, step, rp_f64(2)));
    for (int last = 0; last < 2; last++) {
        rp_tensor *end[3];
        for (int k = 0; k <= edge; k++) end[k] = part_of(x, dim, last ? -1 - k : k, 1);
        if (edge == 1) {
            rise = last ? rp_sub(end[0], end[1]) : rp_sub(end[1], end[0]);
        } else {
            for (int k = 0; k < 3; k++) end[k] = rp_mul_scalar(end[k], rp_f64(last ? -weights[k] : weights[k]));
            rise = rp_add(rp_add(end[0], end[1]), end[2]);
        }
        parts[2 * last] = rp_div_scalar(rise, step);
    }
    return rp_cat(parts, 3, dim);
}

/* gap: distances of neighbours along dim, one less than x has points. */
static rp_tensor *uneven_slopes(rp_tensor *x, unsigned dim, int64_t edge, rp_tensor *gap) {
    if (rp__tensor_is_error(x)) return x;
    const rp_dim within = rp__dim_apply(RP__DIM_SUB, x->size[dim], 2);
    rp_tensor *a = part_of(gap, dim, 0, within), *b = part_of(gap, dim, 1, within), *both = rp_add(a, b), *parts[3];
    rp_tensor *term[3] = {rp_neg(rp_div(b, rp_mul(a, both))), rp_div(rp_sub(b, a), rp_mul(a, b)),
                          rp_div(a, rp_mul(b, both))};
    for (int k = 0; k < 3; k++) term[k] = rp_mul(term[k], part_of(x, dim, k, within));
    parts[1] = rp_add(rp_add(term[0], term[1]), term[2]);
    for (int last = 0; last < 2; last++) {
        rp_tensor *near = part_of(gap, dim, last ? -1 : 0, 1), *end[3], *slope;
        for (int k = 0; k <= edge; k++) end[k] = part_of(x, dim, last ? -1 - k : k, 1);
        if (edge == 1) {
            slope = rp_div(rp_sub(end[1], end[0]), near);
        } else {
            rp_tensor *far = part_of(gap, dim, last ? -2 : 1, 1), *reach = rp_add(near, far);
            slope = rp_sub(rp_mul(rp_div(reach, rp_mul(near, far)), end[1]),
                           rp_mul(rp_div(rp_add(near, reach), rp_mul(near, reach)), end[0]));
            slope = rp_sub(slope, rp_mul(rp_div(near, rp_mul(far, reach)), end[2]));
        }
        parts[2 * last] = last ? rp_neg(slope) : slope;
    }
    return rp_cat(parts, 3, dim);
}

static rp_status expand_gradient(const rp__call *call, bool by_x) {
    rp_tensor *x = call->in[0], *at = by_x ? call->in[1] : NULL;
    const rp_attr *given = &call->attrs[by_x ? 0 : 1], *spacing = &call->attrs[0];
    const int64_t edge = rp__attr_int(call, by_x ? 1 : 2);
    const rp_dtype dtype = (rp_dtype)x->dtype;
    unsigned dim = 0;
    if (dtype == RP_BOOL || dtype == RP_U8) return rp__call_refuse_dtype(call, dtype);
    if (edge != 1 && edge != 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "only supports edge_order=1 and edge_order=2.");
    if (x->ndim == 0 || (rp__attr_is_none(given) && x->ndim != 1))
        return rp__op_error(call, RP_ERROR_SHAPE, "of %u dims one has to be named, in a call for each", x->ndim);
    if (!rp__attr_is_none(given)) RP_TRY(rp__call_dim(call, given->v.i, x->ndim, &dim));
    if (rp__dim_is(RP__DIM_LE, x->size[dim], edge))
        return rp__op_error(call, RP_ERROR_SHAPE, "expected each dimension size to be at least edge_order+1");
    if (!by_x) {
        const rp_scalar step = rp__attr_is_none(spacing) ? rp_i64(1) : spacing->v.scalar;
        rp_tensor *y = even_slopes(rp__wide(x), dim, edge, step);
        return rp__give(call, rp__dtype_is_half(dtype) && !rp__tensor_is_error(y) ? rp_to_dtype(y, dtype) : y);
    }
    rp_dim size[RP_MAX_DIMS];
    if (at->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    if (at->ndim != 1 || !rp__dim_is(RP__DIM_EQ, at->size[0], x->size[dim]))
        return rp__op_error(call, RP_ERROR_SHAPE, "expects one coordinate for each element along dim %u", dim);
    for (unsigned d = 0; d < x->ndim; d++) size[d] = d == dim ? rp__dim_apply(RP__DIM_SUB, x->size[dim], 1) : 1;
    rp__promotion p = {RP_DTYPE_NONE, RP_DTYPE_NONE, RP_DTYPE_NONE};
    rp__promote_tensor(&p, dtype, x->ndim);
    rp__promote_tensor(&p, rp__float_or_default((rp_dtype)at->dtype), 1);
    const rp_dtype to = rp__promotion_result(&p), compute = rp__lw_compute(to);
    /* whole numbers are subtracted as such: large ones that differ little are the same float */
    at = rp_to_dtype(at, rp__dtype_is_float((rp_dtype)at->dtype) ? compute : RP_I64);
    x = rp_to_dtype(x, rp__dtype_is_float(dtype) ? compute : RP_I64);
    rp_tensor *gap = rp_to_dtype(rp_view(rp_diff(at), size, x->ndim), compute);
    return rp__give(call, rp_to_dtype(uneven_slopes(x, dim, edge, gap), to));
}
rp_status rp__expand_gradient(const rp__call *call) { return expand_gradient(call, false); }
rp_status rp__expand_gradient_x(const rp__call *call) { return expand_gradient(call, true); }
