/* Values by their order along a dim, made of sort (topk) and gather: the place of a value is found without a derivative, and the value
   gathered there. Comparisons of whole tensors. */
#include <math.h>
#include <string.h>

#include "ops/formula.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* in[0], of rank 0 as a row of one, and the dim that attribute k names, which must have elements. */
static rp_status begin(const rp__call *call, unsigned k, rp_tensor **x, int64_t *dim) {
    unsigned at;
    *x = call->in[0];
    RP_TRY(rp__call_dim(call, rp__attr_int(call, k), (*x)->ndim, &at));
    *dim = at;
    if ((*x)->ndim == 0) *x = rp_unsqueeze(*x, 0);
    if (rp__dim_is(RP__DIM_EQ, (*x)->size[at], 0))
        return rp__op_error(call, RP_ERROR_INDEX, "%s(): Expected reduction dim %u to have non-zero size.",
                            call->op->name, at);
    return RP_OK;
}

/* The values at these places, of which there is one along dim. */
static rp_status take(const rp__call *call, rp_tensor *x, int64_t dim, rp_tensor *place, bool keepdim) {
    rp_tensor *values = rp_gather(x, dim, place);
    if (!keepdim || call->in[0]->ndim == 0) {
        values = rp_squeeze(values, dim);
        place = rp_squeeze(place, dim);
    }
    call->out[1] = place;
    return rp__give(call, values);
}

rp_status rp__expand_kthvalue(const rp__call *call) {
    rp_tensor *x, *places;
    int64_t dim;
    const rp_dim k = rp__attr_int(call, 0);
    RP_TRY(begin(call, 1, &x, &dim));
    if (rp__dim_is(RP__DIM_LT, k, 1) || rp__dim_is(RP__DIM_LT, x->size[dim], k))
        return rp__op_error(call, RP_ERROR_INDEX, "kthvalue(): selected number k out of range for dimension %lld",
                            (long long)dim);
    if (x->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    (void)rp_topk(rp_detach(x), k, dim, false, true, &places);
    return take(call, x, dim, rp_slice(places, dim, rp__dim_apply(RP__DIM_SUB, k, 1), k), rp__attr_bool(call, 2));
}

/* ---- median: of n in order that at (n - 1) / 2. NaNs stand behind the rest: the first one, if there is any, or not counted */

static rp_tensor *median_place(rp_tensor *x, int64_t dim, bool ignore_nan) {
    const rp_dim n = x->size[dim], last = rp__dim_apply(RP__DIM_SUB, n, 1),
                 middle = rp__dim_apply(RP__DIM_FLOORDIV, last, 2);
    rp_tensor *order = rp_argsort(rp_detach(x), dim);
    if (!rp__dtype_is_float((rp_dtype)x->dtype))
        return rp_slice(order, dim, middle, rp__dim_apply(RP__DIM_ADD, middle, 1));
    rp_tensor *nans = rp_sum(rp_isnan(x), &dim, 1, true), *rest = rp_add_scalar(rp_neg(nans), rp_i64(n)), *rank;
    if (ignore_nan)
        rank = rp_clamp(rp_bitwise_right_shift_scalar(rp_sub_scalar(rest, rp_i64(1)), rp_i64(1)), rp_i64(0), rp_none());
    else
        rank = rp_where(rp_gt_scalar(nans, rp_i64(0)), rest, rp_fill(rest, rp_i64(middle)));
    return rp_gather(order, dim, rank);
}

static rp_status median_dim(const rp__call *call, bool ignore_nan) {
    rp_tensor *x;
    int64_t dim;
    RP_TRY(begin(call, 0, &x, &dim));
    if (x->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    return take(call, x, dim, median_place(x, dim, ignore_nan), rp__attr_bool(call, 1));
}
rp_status rp__expand_median_dim(const rp__call *call) { return median_dim(call, false); }
rp_status rp__expand_nanmedian_dim(const rp__call *call) { return median_dim(call, true); }

static rp_status median(const rp__call *call, bool ignore_nan) {
    rp_tensor *self = call->in[0], *x = rp_flatten(self);
    const rp_dtype dtype = (rp_dtype)self->dtype;
    if (dtype == RP_BOOL) return rp__call_refuse_dtype(call, dtype);
    if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(self), 0)) {
        if (rp__dtype_is_float(dtype)) return rp__give(call, rp_fill(rp_sum(self), rp_f64(NAN)));
        return rp__op_error(call, RP_ERROR_SHAPE, "%s() of no elements", call->op->name);
    }
    return rp__give(call, rp_squeeze(rp_gather_shared(x, 0, median_place(x, 0, ignore_nan)), 0));
}
rp_status rp__expand_median(const rp__call *call) { return median(call, false); }
rp_status rp__expand_nanmedian(const rp__call *call) { return median(call, true); }

/* ---- mode: of the runs of equal values in order the first of the longest ones */

rp_status rp__expand_mode(const rp__call *call) {
    rp_tensor *x, *places, *ignored;
    int64_t dim;
    rp_dim size[RP_MAX_DIMS];
    RP_TRY(begin(call, 0, &x, &dim));
    const rp_dim n = x->size[dim], last = rp__dim_apply(RP__DIM_SUB, n, 1);
    rp_tensor *order = rp_sort(rp_detach(x), dim, false, NULL, &places);
    for (unsigned d = 0; d < x->ndim; d++) size[d] = d == dim ? n : 1;
    rp_tensor *number = rp_view(rp__count_beside(x, n), size, x->ndim);
    rp_tensor *begins = rp_ne(rp_slice(order, dim, 1, n), rp_slice(order, dim, 0, last));
    rp_tensor *at = rp_where(begins, rp_slice(number, dim, 1, n), rp__zero_like(number));
    rp_tensor *parts[2] = {rp_fill(rp_slice(places, dim, 0, 1), rp_i64(0)), at};
    rp_tensor *length = rp_sub(number, rp_cummax(rp_cat(parts, 2, dim), dim, &ignored)); /* up to here */
    return take(call, x, dim, rp_gather(places, dim, rp_argmax(length, dim, true)), rp__attr_bool(call, 1));
}

/* ---- quantiles */

static rp_status quantile(const rp__call *call, rp_tensor *q, bool ignore_nan) {
    static const char *const ways[] = {"linear", "lower", "higher", "midpoint", "nearest"};
    enum { LINEAR, LOWER, HIGHER, MIDPOINT, NEAREST, WAYS };
    rp_tensor *x = call->in[0];
    const unsigned first = call->n_attrs - 3; /* dim, keepdim, interpolation: behind a number q */
    const bool all = rp__attr_is_none(&call->attrs[first]), keepdim = rp__attr_bool(call, first + 1);
    const char *name = call->attrs[first + 2].v.string;
    const rp_dtype dtype = (rp_dtype)x->dtype;
    unsigned way = 0, dim = 0;
    while (way < WAYS && strcmp(ways[way], name) != 0) way++;
    if (way == WAYS)
        return rp__op_error(
            call, RP_ERROR_INVALID_ARGUMENT,
            "quantile() interpolation must be one of linear, lower, higher, midpoint or nearest, but got %s", name);
    if (dtype != RP_F32 && dtype != RP_F64)
        return rp__op_error(call, RP_ERROR_DTYPE, "quantile() input tensor must be either float or double dtype");
    if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(x), 0))
        return rp__op_error(call, RP_ERROR_SHAPE, "quantile() input tensor must be non-empty");
    if (!all) RP_TRY(rp__call_dim(call, rp__attr_int(call, first), x->ndim, &dim));
    if (!q) {
        const double one = rp__attr_float(call, 0);
        if (!(one >= 0 && one <= 1))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "quantile() q must be in the range [0, 1] but got %g",
                                one);
        q = rp_fill(rp__zero_like(x), rp_f64(one));
    }
    if (q->ndim > 1) return rp__op_error(call, RP_ERROR_SHAPE, "quantile() q must be a scalar or 1D tensor");
    if ((rp_dtype)q->dtype != dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "quantile() q tensor must be same dtype as the input tensor");

    /* Rows last, in order; NaNs stand at their ends. */
    const bool single = q->ndim == 0;
    const int64_t end = -1, from = dim;
    rp_tensor *rows = all || x->ndim == 0 ? rp_flatten(x) : rp_movedim(x, &from, 1, &end, 1), *places;
    rows = rp_sort(rows, -1, false, NULL, &places);
    const rp_dim n = rows->ndim ? rows->size[rows->ndim - 1] : 1, last = rp__dim_apply(RP__DIM_SUB, n, 1);
    if (single) q = rp_unsqueeze(q, 0);
    q = rp_to_dtype(q, RP_F64); /* ranks are float64, as PyTorch's: 0.2f of six is above the second */
    rp_tensor *rank;
    if (ignore_nan) {
        rp_tensor *there = rp_sum(rp_logical_not(rp_isnan(rows)), &end, 1, true);
        rank = rp_mul(q, rp_to_dtype(rp_sub_scalar(there, rp_i64(1)), RP_F64));
        rank = rp_where(rp_lt_scalar(rank, rp_i64(0)), rp__zero_like(rank), rank); /* of nothing but NaNs */
    } else {
        rp_tensor *nan = rp_isnan(rp_slice(rows, -1, last, n));
        rank = rp_where(nan, rp_fill(rp__zero_like(q), rp_i64(last)), rp_mul_scalar(q, rp_i64(last)));
    }
    if (way == LOWER) rank = rp_floor(rank);
    if (way == HIGHER) rank = rp_ceil(rank);
    if (way == NEAREST) rank = rp_round(rank);
    rp_tensor *below = rp_to_dtype(rank, RP_I64), *y = rp_gather(rows, -1, below);
    if (way == LINEAR || way == MIDPOINT) {
        rp_tensor *above = rp_gather(rows, -1, rp_to_dtype(rp_ceil(rank), RP_I64));
        y = way == MIDPOINT ? rp_lerp_scalar(y, above, rp_f64(0.5))
                            : rp_lerp(y, above, rp_to_dtype(rp_sub(rank, rp_to_dtype(below, RP_F64)), dtype));
    }
    const int64_t start = 0;
    y = single ? rp_squeeze(y, -1) : rp_movedim(y, &end, 1, &start, 1);
    if (keepdim && !all && x->ndim > 0) y = rp_unsqueeze(y, (int64_t)dim + !single);
    for (unsigned d = 0; keepdim && all && d < x->ndim; d++) y = rp_unsqueeze(y, -1);
    return rp__give(call, y);
}
rp_status rp__expand_quantile(const rp__call *call) { return quantile(call, call->in[1], false); }
rp_status rp__expand_quantile_scalar(const rp__call *call) { return quantile(call, NULL, false); }
rp_status rp__expand_nanquantile(const rp__call *call) { return quantile(call, call->in[1], true); }
rp_status rp__expand_nanquantile_scalar(const rp__call *call) { return quantile(call, NULL, true); }

rp_status rp__expand_msort(const rp__call *call) {
    rp_tensor *places;
    return rp__give(call, rp_sort(call->in[0], 0, false, NULL, &places));
}

/* ---- unique_consecutive: an element, or a part along dim, begins a run if it differs from the one before */

rp_status rp__expand_unique_consecutive(const rp__call *call) {
    rp_tensor *self = call->in[0], *x = self;
    const bool all = rp__attr_is_none(&call->attrs[2]) || (x->ndim == 1 && rp__attr_int(call, 2) == 0);
    const bool inverse = !all || rp__attr_bool(call, 0), counts = !all || rp__attr_bool(call, 1);
    unsigned dim = 0;
    if (!all) {
        if (x->ndim == 0)
            return rp__op_error(call, RP_ERROR_INDEX, "Dimension specified as %lld but tensor has no dimensions",
                                (long long)rp__attr_int(call, 2));
        RP_TRY(rp__call_dim(call, rp__attr_int(call, 2), x->ndim, &dim));
        for (unsigned d = 0; d < x->ndim; d++)
            if (d != dim && rp__dim_is(RP__DIM_EQ, x->size[d], 0))
                return rp__op_error(
                    call, RP_ERROR_SHAPE,
                    "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
        x = rp_transpose(x, 0, dim);
    } else {
        x = rp_flatten(x);
    }
    const rp_dim n = x->ndim ? x->size[0] : 0;
    const int64_t rest = 1;
    rp_tensor *differs =
        rp_ne(rp_slice(x, 0, 1, n), rp_slice(x, 0, 0, rp__dim_apply(RP__DIM_MAX, rp__dim_apply(RP__DIM_SUB, n, 1), 0)));
    if (x->ndim > 1) differs = rp_any(rp_flatten(differs, 1), &rest, 1);
    rp_tensor *count = rp__count_beside(x, n);
    rp_tensor *parts[2] = {rp_eq_scalar(rp_slice(count, 0, 0, 1), rp_i64(0)), differs};
    rp_tensor *begins = rp_cat(parts, 2, 0), *places = rp_flatten(rp_nonzero(begins)),
              *none = rp_slice(places, 0, 0, 0);
    rp_tensor *index = places;
    if (!all && !rp__tensor_is_error(places)) {
        rp_dim size[RP_MAX_DIMS];
        for (unsigned d = 0; d < self->ndim; d++) size[d] = d == dim ? places->size[0] : 1;
        index = rp_view(places, size, self->ndim);
        for (unsigned d = 0; d < self->ndim; d++) size[d] = d == dim ? places->size[0] : self->size[d];
        index = rp_expand(index, size, self->ndim);
    }
    call->out[1] = inverse ? rp_sub_scalar(rp_cumsum(begins, 0), rp_i64(1)) : none;
    if (inverse && all) call->out[1] = rp_reshape(call->out[1], self->size, self->ndim);
    rp_tensor *ends[2] = {rp_slice(places, 0, 1, places->ndim ? places->size[0] : 0),
                          rp_fill(rp_slice(count, 0, 0, 1), rp_i64(n))};
    call->out[2] = counts ? rp_sub(rp_cat(ends, 2, 0), places) : none;
    if (rp__tensor_is_error(call->out[1]) || rp__tensor_is_error(call->out[2])) return rp_error_status();
    return rp__give(call, rp_gather(all ? x : self, all ? 0 : (int64_t)dim, index));
}

/* ---- comparisons */

rp_status rp__infer_isclose(const rp__call *call, rp__meta *out) {
    const rp_dtype a = (rp_dtype)call->in[0]->dtype, b = (rp_dtype)call->in[1]->dtype;
    static const char *const names[2] = {"rtol", "atol"};
    if (a != b)
        return rp__op_error(call, RP_ERROR_DTYPE, "%s did not match %s", rp__dtype_title(a), rp__dtype_title(b));
    for (unsigned k = 0; k < 2; k++) {
        if (!(rp__attr_float(call, k) >= 0))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s must be greater than or equal to zero, but got %g",
                                names[k], rp__attr_float(call, k));
    }
    out->dtype = RP_BOOL;
    return rp__meta_broadcast(call->in[0], call->in[1], out);
}

/* Without tolerances integers are compared as they are, else as float32. An infinite difference is never small. */
void rp__lower_isclose(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dtype in = rp__lw_in_dtype(lw, 0), type = rp__float_or_default(in), compute = rp__lw_compute(type);
    const bool floats = rp__dtype_is_float(in);
    const bool nan = rp__lw_structural_value(lw, floats && rp__attr_bool(call, 2));
    const bool exact = rp__lw_structural_value(lw, rp__attr_float(call, 0) == 0 && rp__attr_float(call, 1) == 0);
    const rp__val a = rp__lw_in(lw, 0), b = rp__lw_in(lw, 1);
    rp__val close = EQ(a, b);
    if (nan) close = OR(close, AND(PRIM(ISNAN, a), PRIM(ISNAN, b)));
    if (!exact) {
        const rp__val x = floats ? a : rp__lw_cast(lw, a, compute), y = floats ? b : rp__lw_cast(lw, b, compute);
        const rp__val apart = ABS(SUB(x, y)), allowed = ADD(ATTR(1), ABS(MUL(ATTR(0), y)));
        close = OR(close, AND(NE(apart, NUM(INFINITY)), LE(apart, allowed)));
    }
    rp__lw_out(lw, 0, close);
}

rp_status rp__expand_allclose(const rp__call *call) {
    return rp__give(call, rp_all(rp_isclose(call->in[0], call->in[1], rp__attr_float(call, 0), rp__attr_float(call, 1),
                                            rp__attr_bool(call, 2))));
}

rp_status rp__expand_equal(const rp__call *call) {
    const rp__meta no = {.dtype = RP_BOOL, .device = call->in[0]->device};
    if (!rp__same_size(call->in[0], call->in[1])) return rp__give(call, rp__zeros_of(&no));
    return rp__give(call, rp_all(rp_eq(call->in[0], call->in[1])));
}
