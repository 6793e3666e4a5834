/* Searching, counting and sets. What is data beside its order (unique, bincount) sorts, scatters and counts with the ops for these;
   searchsorted is a loop whose steps halve the rest of a row. */
#include "ops/library_ops.h"
#include "ops/private.h"

#include <math.h>
#include <string.h>

#include "ops/execute.h"
#include "ops/formula.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"

static bool is_index(const rp_tensor *t) { return t->dtype == RP_I64 || t->dtype == RP_I32; }
static bool is_empty(const rp_tensor *t) { return rp__dim_is(RP__DIM_EQ, rp__tensor_numel(t), 0); }
static rp_tensor *row_of(const rp__call *call, rp_tensor *t) { return rp_reshape_at(call->site, t, RP_DIMS(-1)); }
static rp_tensor *as(const rp__call *call, rp_tensor *t, rp_dtype dtype) {
    return rp__tensor_is_error(t) || (rp_dtype)t->dtype == dtype ? t : rp_to_dtype_at(call->site, t, dtype, NULL);
}
static rp_tensor *zeros(const rp_tensor *beside, rp_dtype dtype, const rp_dim *size, unsigned ndim) {
    rp__meta meta = {.dtype = dtype, .device = beside->device, .ndim = (uint8_t)ndim};
    for (unsigned d = 0; d < ndim; d++) meta.size[d] = size[d];
    return rp__zeros_of(&meta);
}
static rp_tensor *none_of(const rp_tensor *beside) { return zeros(beside, RP_I64, (const rp_dim[]){0}, 1); }

/* ---- repeat_interleave */

/* The dim, or that of all elements in a row, which self becomes. */
static rp_status dim_or_row(const rp__call *call, const rp_attr *attr, rp_tensor **self, unsigned *dim) {
    *dim = 0;
    if (rp__attr_is_none(attr) || (*self)->ndim == 0)
        *self = row_of(call, *self);
    else
        RP_TRY(rp__call_dim(call, attr->v.i, (*self)->ndim, dim));
    return rp__tensor_is_error(*self) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_repeat_interleave(const rp__call *call) {
    rp_tensor *self = call->in[0], *t;
    const rp_dim repeats = rp__attr_int(call, 0);
    rp_dim wide[RP_MAX_DIMS], whole[RP_MAX_DIMS];
    unsigned dim;
    if (rp__dim_is(RP__DIM_LT, repeats, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "repeats can not be negative");
    RP_TRY(dim_or_row(call, &call->attrs[1], &self, &dim));
    const unsigned n = self->ndim;
    if (n == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor of %d dimensions cannot be repeated", RP_MAX_DIMS);
    for (unsigned d = 0; d < n; d++) {
        wide[d + (d > dim)] = whole[d] = self->size[d];
        if (d != dim) continue;
        wide[d + 1] = repeats;
        whole[d] = rp__dim_apply(RP__DIM_MUL, self->size[d], repeats);
    }
    const rp_attr *given = &call->attrs[2];
    if (!rp__attr_is_none(given) && !rp__dim_is(RP__DIM_EQ, given->v.i, whole[dim]))
        return rp__op_error(call, RP_ERROR_SHAPE, "output_size is %lld, and the result has %lld elements along dim",
                            (long long)rp__dim_hint(given->v.i), (long long)rp__dim_hint(whole[dim]));
    t = rp_expand_at(call->site, rp_unsqueeze_at(call->site, self, dim + 1), wide, n + 1, NULL);
    t = rp_reshape_at(call->site, t, whole, n);
    const bool shared = !rp__tensor_is_error(t) && t->storage == call->in[0]->storage;
    return rp__give(call, shared ? rp_clone_at(call->site, t, NULL) : t);
}

/* Place k of the result has the element whose repeats end behind k. An output_size that is not their sum makes each place one
   that self does not have. */
rp_status rp__expand_repeat_interleave_tensor(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    rp_tensor *self = call->in[0], *repeats = call->in[1];
    const rp_attr *given = &call->attrs[1];
    const char *site = call->site;
    unsigned dim;
    if (repeats->ndim > 1) return rp__op_error(call, RP_ERROR_SHAPE, "repeats must be 0-dim or 1-dim tensor");
    if (!is_index(repeats)) return rp__op_error(call, RP_ERROR_DTYPE, "repeats has to be Long or Int tensor");
    RP_TRY(dim_or_row(call, &call->attrs[0], &self, &dim));
    const rp_dim size = self->size[dim], n = rp__tensor_numel(repeats);
    if (!rp__dim_is(RP__DIM_EQ, n, size) && !rp__dim_is(RP__DIM_EQ, n, 1))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "repeats must have the same size as input along dim, but got repeats.size(0) = %lld and "
                            "input.size(%u) = %lld",
                            (long long)rp__dim_hint(n), dim, (long long)rp__dim_hint(size));
    repeats = rp_expand_at(site, as(call, row_of(call, repeats), RP_I64), &size, 1, NULL);
    rp_tensor *sum = rp_sum_at(site, repeats, NULL, 0, false, NULL);
    rp_dim total = rp__attr_is_none(given) ? 0 : given->v.i;
    if (rp__attr_is_none(given)) {
        const bool negative = !is_empty(repeats) && rp_item_i64_at(site, rp_amin_at(site, repeats, NULL, 0, false)) < 0;
        total = rp_item_i64_at(site, sum);
        RP_TRY(rp__status_since(failures));
        if (negative) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "repeats can not be negative");
    }
    if (rp__dim_is(RP__DIM_LT, total, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "output_size can not be negative");
    rp_tensor *ends = rp_cumsum_at(site, repeats, 0, NULL), *place = rp__count_beside(self, total);
    rp_tensor *index = rp_search_rows_at(site, ends, place, NULL, false, true);
    rp_tensor *wrong = as(call, rp_ne_scalar_at(site, sum, rp_i64(total)), RP_I64);
    index = rp_add_at(site, index, rp_mul_scalar_at(site, wrong, rp_i64(INT32_MAX)), NULL);
    return rp__give(call, rp_index_select_at(site, self, dim, index));
}

/* ---- searchsorted */

rp_status rp__expand_searchsorted(const rp__call *call) {
    const bool right = rp__attr_bool(call, 1);
    const char *side = call->attrs[2].v.string;
    if (side && strcmp(side, "left") != 0 && strcmp(side, "right") != 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "side can only be 'left' or 'right' but got %s", side);
    if (side && right && strcmp(side, "left") == 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "side and right can't be set to opposites, got side of left while right was True");
    return rp__give(call, rp_search_rows_at(call->site, call->in[0], call->in[1], call->in[2], rp__attr_bool(call, 0),
                                            right || (side && strcmp(side, "right") == 0)));
}

rp_status rp__expand_bucketize(const rp__call *call) {
    if (call->in[1]->ndim != 1)
        return rp__op_error(call, RP_ERROR_SHAPE, "boundaries tensor must be 1 dimension, but got dim(%u)",
                            call->in[1]->ndim);
    return rp__give(call, rp_search_rows_at(call->site, call->in[1], call->in[0], NULL, rp__attr_bool(call, 0),
                                            rp__attr_bool(call, 1)));
}

rp_status rp__infer_search_rows(const rp__call *call, rp__meta *out) {
    const rp_tensor *rows = call->in[0], *t = call->in[1], *sorter = call->in[2];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    bool fits = rows->ndim > 0 && (rows->ndim == 1 || rows->ndim == t->ndim);
    for (unsigned d = 0; fits && rows->ndim > 1 && d + 1 < rows->ndim; d++)
        fits = rp__dim_is(RP__DIM_EQ, rows->size[d], t->size[d]);
    if (!fits)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and "
            "input value tensor must match, but we got boundaries tensor %s and input value tensor %s",
            rp__shape_text(rows->size, rows->ndim, a), rp__shape_text(t->size, t->ndim, b));
    if (rows->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    if (sorter && sorter->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_DTYPE, "sorter must be a tensor of long dtype but got dtype %s",
                            rp__dtype_title((rp_dtype)sorter->dtype));
    if (sorter && !rp__same_size(sorter, rows))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "boundary and sorter must have the same size, but got boundary tensor %s "
                            "and got sorter tensor %s",
                            rp__shape_text(rows->size, rows->ndim, a), rp__shape_text(sorter->size, sorter->ndim, b));
    rp__meta_like(out, t, rp__attr_bool(call, 0) ? RP_I32 : RP_I64);
    return RP_OK;
}

/* The number of steps is one of few, so that rows of other lengths share a kernel: those that reach behind a row stay where they are. */
void rp__lower_search_rows(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *rows = call->in[0], *t = call->in[1], *sorter = call->in[2];
    const rp_dtype compute = rp__lw_compute(rp__call_promote(call, 0, 2, -1));
    const unsigned last = rows->ndim - 1u;
    const rp_dim n = rows->size[last];
    rp_dim stride[RP_MAX_DIMS] = {0}, by[RP_MAX_DIMS] = {0};
    unsigned steps = 8;
    while (steps < 56 && !rp__dim_is(RP__DIM_LT, n, INT64_C(1) << steps)) steps += 8;
    steps = (unsigned)rp__lw_structural_value(lw, steps);
    const bool right = rp__lw_structural_value(lw, rp__attr_bool(call, 1));
    rp__lw_space(lw, t->size, t->ndim, 0);
    for (unsigned d = 0; d < last; d++) {
        stride[d] = rows->stride[d];
        by[d] = sorter ? sorter->stride[d] : 0;
    }
    const rp__val x = rp__lw_cast(lw, rp__lw_in_front(lw, 1), compute);
    const uint16_t from = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    const uint16_t order = sorter ? rp__lw_access(lw, false, 2, by, RP__ELEMENTS) : 0;
    const rp__val length = rp__lw_size(lw, n), step_of_row = rp__lw_size(lw, rows->stride[last]);
    const rp__val step_of_order = rp__lw_size(lw, sorter ? sorter->stride[last] : 0);
    const rp__val one = rp__lw_const_i(lw, RP_I64, 1);
    const rp__val bound = rp__lw_2(lw, RP__MAX, length, one);
    rp__val low = rp__lw_const_i(lw, RP_I64, 0); /* so many elements come before x */
    for (unsigned k = steps; k-- > 0;) {
        const rp__val next = rp__lw_2(lw, RP__ADD, low, rp__lw_const_i(lw, RP_I64, INT64_C(1) << k));
        const rp__val inside = rp__lw_2(lw, RP__LE, next, length);
        rp__val place = rp__lw_2(lw, RP__SUB, next, one);
        if (sorter) {
            place = rp__lw_load(lw, order, rp__lw_2(lw, RP__MUL, place, step_of_order), inside);
            place = rp__lw_check_index(lw, place, bound, false);
        }
        const rp__val y =
            rp__lw_cast(lw, rp__lw_load(lw, from, rp__lw_2(lw, RP__MUL, place, step_of_row), inside), compute);
        const rp__val stop = right ? rp__lw_2(lw, RP__LT, x, y) : rp__lw_2(lw, RP__LE, x, y);
        low = rp__lw_3(lw, RP__WHERE, rp__lw_2(lw, RP__AND, inside, rp__lw_1(lw, RP__NOT, stop)), next, low);
    }
    rp__lw_out(lw, 0, low);
}

/* ---- isin */

rp_status rp__expand_isin(const rp__call *call) {
    rp_tensor *x = call->in[0], *of = call->in[1];
    const char *site = call->site;
    if (x->dtype == RP_BOOL || of->dtype == RP_BOOL)
        return rp__op_error(call, RP_ERROR_DTYPE, "Unsupported input type encountered for isin(): Bool");
    const rp_dtype dtype = rp__call_promote(call, 0, 2, -1);
    rp_tensor *found;
    if (is_empty(of)) {
        found = zeros(x, RP_BOOL, x->size, x->ndim);
    } else {
        rp_tensor *ordered = rp_sort_at(site, as(call, row_of(call, of), dtype), 0, false, NULL, NULL);
        x = as(call, x, dtype);
        rp_tensor *place = rp_search_rows_at(site, ordered, x, NULL, false, false);
        if (rp__tensor_is_error(ordered) || rp__tensor_is_error(place)) return rp_error_status();
        const rp_dim last = rp__dim_apply(RP__DIM_SUB, ordered->size[0], 1);
        place = rp_clamp_at(site, place, rp_none(), rp_i64(last)); /* behind all: compared with the last */
        found = rp_eq_at(site, rp_index_load_at(site, ordered, &place, 1), x);
    }
    return rp__give(call, rp__attr_bool(call, 1) ? rp_logical_not_at(site, found) : found);
}

/* ---- unique */

/* Values in order, which stood at `from`: one of each run, what each element is, how many. */
static rp_status runs(const rp__call *call, rp_tensor *ordered, rp_tensor *from, int64_t dim, bool inverse,
                      bool counts) {
    const char *site = call->site;
    rp_tensor *which = NULL, *count = NULL;
    rp_tensor *values = rp_unique_consecutive_at(site, ordered, true, true, dim, &which, &count);
    if (rp__tensor_is_error(values)) return rp_error_status();
    call->out[0] = values;
    call->out[1] = inverse ? rp_scatter_set_at(site, from, 0, from, which) : none_of(ordered);
    call->out[2] = counts ? count : none_of(ordered);
    return rp__tensor_is_error(call->out[1]) || rp__tensor_is_error(call->out[2]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_unique(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    rp_tensor *self = call->in[0], *from;
    const bool inverse = rp__attr_bool(call, 1);
    if (rp__tensor_is_error(self)) return rp_error_status();
    if (is_empty(self)) {
        call->out[0] = rp_clone_at(call->site, row_of(call, self), NULL);
        call->out[1] = inverse ? zeros(self, RP_I64, self->size, self->ndim) : none_of(self);
        call->out[2] = none_of(self);
        return rp__status_since(failures);
    }
    rp_tensor *ordered = rp_sort_at(call->site, row_of(call, self), 0, false, NULL, &from);
    if (rp__tensor_is_error(ordered)) return rp_error_status();
    RP_TRY(runs(call, ordered, from, INT64_MIN, inverse, rp__attr_bool(call, 2)));
    if (inverse) call->out[1] = rp_view_at(call->site, call->out[1], self->size, self->ndim);
    return rp__tensor_is_error(call->out[1]) ? rp_error_status() : RP_OK;
}

/* Slices in order: by their last element, then, equal ones as they were, by the one before, ... */
rp_status rp__expand_unique_dim(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    const char *site = call->site;
    rp_tensor *self = call->in[0], *from;
    unsigned dim;
    if (rp__tensor_is_error(self)) return rp_error_status();
    if (self->ndim == 0) self = row_of(call, self);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    const rp_dim size = self->size[dim];
    if (is_empty(self)) {
        if (!rp__dim_is(RP__DIM_EQ, size, 0))
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
        call->out[0] = rp_clone_at(site, self, NULL);
        call->out[1] = none_of(self);
        call->out[2] = none_of(self);
        return rp__status_since(failures);
    }
    rp_tensor *rows = rp_reshape_at(site, rp_movedim_at(site, self, RP_DIMS((int64_t)dim), RP_DIMS(0)),
                                    (const rp_dim[]){size, -1}, 2);
    if (rp__tensor_is_error(rows)) return rp_error_status();
    from = rp__count_beside(self, size);
    for (int64_t k = rp__dim_value(rows->size[1]); k-- > 0;) {
        rp_tensor *column = rp_index_select_at(site, rp_select_at(site, rows, 1, k), 0, from);
        from = rp_index_select_at(site, from, 0, rp_argsort_at(site, column, 0, false, NULL));
        if (rp__tensor_is_error(from)) return rp_error_status();
    }
    return runs(call, rp_index_select_at(site, self, dim, from), from, dim, true,
                true); /* as PyTorch: whatever is asked for */
}

/* ---- bincount, histc */

rp_status rp__expand_bincount(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    rp_tensor *self = call->in[0], *weights = call->in[1];
    const char *site = call->site;
    rp_dim n = rp__attr_int(call, 0);
    const rp_dtype dtype = (rp_dtype)self->dtype;
    if (rp__dtype_is_float(dtype) || dtype == RP_BOOL) return rp__call_refuse_dtype(call, dtype);
    if (rp__dim_is(RP__DIM_LT, n, 0)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "minlength should be >= 0");
    if (self->ndim != 1)
        return rp__op_error(call, RP_ERROR_SHAPE, "bincount only supports 1-d non-negative integral inputs.");
    if (weights && !rp__same_size(self, weights))
        return rp__op_error(call, RP_ERROR_SHAPE, "weights should be 1-d and have the same length as input");
    if (!is_empty(self)) {
        const int64_t least = rp_item_i64_at(site, rp_amin_at(site, self, NULL, 0, false));
        const int64_t most = rp_item_i64_at(site, rp_amax_at(site, self, NULL, 0, false));
        RP_TRY(rp__status_since(failures));
        if (least < 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "bincount only supports 1-d non-negative integral inputs.");
        if (most >= RP__REACH_LIMIT) return rp__op_error(call, RP_ERROR_SHAPE, "the result has too many elements");
        if (rp__dim_is(RP__DIM_LE, n, most)) n = most + 1;
    }
    rp_dtype sums = RP_I64;
    if (weights) sums = weights->dtype == RP_F32 ? RP_F32 : RP_F64;
    rp_tensor *one = rp_add_scalar_at(site, zeros(self, sums, NULL, 0), rp_i64(1), rp_i64(1));
    weights = weights ? as(call, weights, sums) : rp_expand_at(site, one, self->size, 1, NULL);
    return rp__give(call, rp_scatter_add_at(site, zeros(self, sums, &n, 1), 0, as(call, self, RP_I64), weights));
}

rp_status rp__infer_histc_counts(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[0];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    /* of 32 bits, which are added in one step, where all are not more than these hold */
    rp__meta_like(out, x, rp__dim_is(RP__DIM_LE, rp__tensor_numel(x), INT32_MAX) ? RP_I32 : RP_I64);
    out->ndim = 1;
    out->size[0] = rp__attr_int(call, 2);
    return RP_OK;
}
rp_status rp__run_histc_counts(const rp__call *call) {
    rp_tensor *x = rp__run_contiguous(call->in[0], (rp_dtype)call->in[0]->dtype);
    if (rp__tensor_is_error(x)) return rp_error_status();
    RP_TRY(rp__run_fill(call->out[0], rp_i64(0)));
    rp__operand operands[2] = {rp__operand_of(call->out[0]), rp__operand_of(x)};
    operands[1].ndim = 1;
    operands[1].size[0] = rp__tensor_numel(x);
    operands[1].stride[0] = 1;
    rp__library_call library = {.range = {rp__attr_float(call, 0), rp__attr_float(call, 1)}};
    return rp__run_library_op(call, RP__LIB_COUNT_BINS, operands, 2, &library);
}
rp_status rp__expand_histc(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    const char *site = call->site;
    const int64_t bins = rp__attr_int(call, 0);
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    double low = rp__scalar_f64(call->attrs[1].v.scalar), high = rp__scalar_f64(call->attrs[2].v.scalar);
    RP_TRY(rp__call_need_float(call, dtype));
    if (bins <= 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "bins must be > 0, but got %lld", (long long)bins);
    if (bins >= RP__REACH_LIMIT) return rp__op_error(call, RP_ERROR_SHAPE, "the result has too many elements");
    rp_tensor *x = row_of(call, rp_detach_at(site, call->in[0]));
    if (rp__tensor_is_error(x)) return rp_error_status();
    if (low == high && !is_empty(x)) {
        low = rp_item_f64_at(site, rp_amin_at(site, x, NULL, 0, false));
        high = rp_item_f64_at(site, rp_amax_at(site, x, NULL, 0, false));
        RP_TRY(rp__status_since(failures));
    }
    if (low == high) low -= 1, high += 1;
    if (!isfinite(low) || !isfinite(high))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "range of [%g, %g] is not finite", low, high);
    if (low > high) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "max must be larger than min");
    return rp__give(call, as(call, rp_histc_counts_at(site, x, low, high, bins), dtype));
}

/* ---- nonzero_static: the number of what is not zero before an element is its row; what has none goes to a row behind the last */

rp_status rp__expand_nonzero_static(const rp__call *call) {
    rp_tensor *self = call->in[0];
    const char *site = call->site;
    const rp_dim size = rp__attr_int(call, 0);
    const int64_t fill = rp__attr_int(call, 1);
    if (rp__dim_is(RP__DIM_LT, size, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "nonzero_static: 'size' must be an non-negative integer");
    const rp_dim shape[2] = {size, self->ndim}, more = rp__dim_apply(RP__DIM_ADD, size, 1);
    if (self->ndim == 0) return rp__give(call, zeros(self, RP_I64, shape, 2));
    rp_tensor *at = zeros(self, RP_I64, &more, 1);
    at = rp_fill_at(site, at, rp_i64(-1));
    if (!is_empty(self)) {
        rp_tensor *set = rp_ne_scalar_at(site, row_of(call, rp_detach_at(site, self)), rp_i64(0));
        rp_tensor *number = rp_sub_scalar_at(site, rp_cumsum_at(site, set, 0, NULL), rp_i64(1), rp_i64(1));
        number = rp_clamp_at(site, number, rp_none(), rp_i64(size));
        number = rp_masked_fill_scalar_at(site, number, rp_logical_not_at(site, set), rp_i64(size));
        at = rp_scatter_set_at(site, at, 0, number, rp__count_beside(self, rp__tensor_numel(self)));
    }
    at = rp_slice_at(site, at, 0, 0, size, 1);
    rp_tensor *missing = rp_lt_scalar_at(site, at, rp_i64(0)), *columns[RP_MAX_DIMS];
    for (unsigned d = self->ndim; d-- > 0;) {
        const rp_dim extent = self->size[d];
        rp_tensor *here = is_empty(self) ? at : rp_remainder_scalar_at(site, at, rp_i64(extent));
        if (!is_empty(self)) at = rp_floor_divide_scalar_at(site, at, rp_i64(extent));
        columns[d] = rp_masked_fill_scalar_at(site, here, missing, rp_i64(fill));
    }
    return rp__give(call, rp_stack_at(site, columns, self->ndim, 1));
}

/* ---- embedding_bag: elements that do not count go to a bag behind the last */

/* The largest of each bag's rows, of equal ones the first, which alone has the gradient; an empty bag has the zeros behind the rows.
   bag: whose each of n rows is; size: of the result. */
static rp_tensor *largest_of_bags(rp_tensor *weight, rp_tensor *rows, rp_tensor *bag, rp_dim n, const rp_dim size[2]) {
    const rp_dim each[2] = {n, size[1]}, lone[2] = {1, size[1]};
    const rp_dtype dtype = (rp_dtype)weight->dtype;
    rp_tensor *place = rp_expand(rp_unsqueeze(bag, 1), each, 2, NULL), *values = rp_detach(rows);
    rp_tensor *best = rp_scatter_reduce(zeros(weight, dtype, size, 2), 0, place, values, "amax",
                                        RP_OPTIONS(rp_scatter_reduce_options, .include_self = RP_FALSE));
    rp_tensor *is = rp_logical_or(rp_eq(values, rp_gather(best, 0, place, NULL)), rp_isnan(values));
    rp_tensor *number = rp_expand(rp_unsqueeze(rp__count_beside(weight, n), 1), each, 2, NULL);
    number = rp_masked_fill_scalar(number, rp_logical_not(is), rp__scalar_dim(n));
    rp_tensor *first = rp_fill(zeros(weight, RP_I64, size, 2), rp__scalar_dim(n));
    first = rp_scatter_reduce(first, 0, place, number, "amin", NULL);
    return rp_gather(rp_cat(RP_TENSORS(rows, zeros(weight, dtype, lone, 2)), 0), 0, first, NULL);
}

rp_status rp__expand_embedding_bag(const rp__call *call) {
    rp_tensor *weight = call->in[0], *indices = call->in[1], *offsets = call->in[2], *sample = call->in[3], *bag;
    const char *site = call->site;
    const int64_t mode = rp__attr_int(call, 1);
    const bool with_last = rp__attr_bool(call, 3);
    rp_dim bags;
    if (rp__attr_bool(call, 2)) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "sparse is not supported yet");
    if (mode < 0 || mode > 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "mode has to be sum (0), mean (1) or max (2)");
    if (rp__attr_bool(call, 0) && mode == 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "does not support scaling the gradient by the frequency in max mode");
    if (weight->ndim != 2) return rp__op_error(call, RP_ERROR_SHAPE, "'weight' must be 2-D");
    RP_TRY(rp__call_need_float(call, (rp_dtype)weight->dtype));
    if (!is_index(indices))
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected dtype int32/int64 for indices, but got %s",
                            rp__dtype_title((rp_dtype)indices->dtype));
    if (indices->ndim != (offsets ? 1 : 2))
        return rp__op_error(call, RP_ERROR_SHAPE, "indices have one dim with offsets and two without, not %u",
                            indices->ndim);
    if (offsets && (offsets->ndim != 1 || !is_index(offsets)))
        return rp__op_error(call, RP_ERROR_SHAPE, "offsets has to be a 1D tensor of integers");
    if (sample && mode != 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "per_sample_weights only supported with mode='sum'");
    if (sample && (!rp__same_size(sample, indices) || sample->dtype != weight->dtype))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expected per_sample_weights to have indices' size and weight's dtype");
    const rp_dim n = rp__tensor_numel(indices), width = weight->size[1];
    rp_tensor *number = rp__count_beside(weight, n), *flat = as(call, row_of(call, indices), RP_I64);
    if (offsets) {
        bags = with_last ? rp__dim_apply(RP__DIM_SUB, offsets->size[0], 1) : offsets->size[0];
        if (rp__dim_is(RP__DIM_LT, bags, 0))
            return rp__op_error(call, RP_ERROR_SHAPE, "include_last_offset: number of offsets should be at least 1");
        /* As many bags have begun, the first of them number 0; one that is empty and the last begins behind all elements. */
        const rp_dim behind = rp__dim_apply(RP__DIM_ADD, n, 1);
        rp_tensor *begins = rp_clamp_at(site, as(call, offsets, RP_I64), rp_i64(0), rp_i64(n));
        rp_tensor *one = rp_add_scalar_at(site, zeros(weight, RP_I64, NULL, 0), rp_i64(1), rp_i64(1));
        bag = rp_index_add_at(site, zeros(weight, RP_I64, &behind, 1), 0, begins,
                              rp_expand_at(site, one, offsets->size, 1, NULL), NULL);
        bag = rp_sub_scalar_at(site, rp_slice_at(site, rp_cumsum_at(site, bag, 0, NULL), 0, 0, n, 1), rp_i64(1),
                               rp_i64(1));
    } else {
        bags = indices->size[0];
        bag = is_empty(indices) ? number : rp_floor_divide_scalar_at(site, number, rp_i64(indices->size[1]));
    }
    if (!rp__attr_is_none(&call->attrs[4])) {
        rp_dim pad = call->attrs[4].v.i;
        if (rp__dim_is(RP__DIM_LT, pad, 0)) pad = rp__dim_apply(RP__DIM_ADD, pad, weight->size[0]);
        bag = rp_masked_fill_scalar_at(site, bag, rp_eq_scalar_at(site, flat, rp_i64(pad)), rp_i64(bags));
    }
    rp_tensor *rows = rp_embedding_at(site, weight, flat, -1, rp__attr_bool(call, 0), false);
    const rp_dim size[2] = {rp__dim_apply(RP__DIM_ADD, bags, 1), width};
    rp_tensor *out;
    if (mode == 2) {
        out = largest_of_bags(weight, rows, bag, n, size);
    } else {
        rows = rp__tensor_is_error(rows) ? rows : rp__wide(rows);
        if (sample) rows = rp_mul_at(site, rows, rp_unsqueeze_at(site, row_of(call, sample), 1));
        if (rp__tensor_is_error(rows)) return rp_error_status();
        out = rp_index_add_at(site, zeros(weight, (rp_dtype)rows->dtype, size, 2), 0, bag, rows, NULL);
        if (mode == 1) {
            rp_tensor *one =
                rp_add_scalar_at(site, zeros(weight, (rp_dtype)rows->dtype, NULL, 0), rp_i64(1), rp_i64(1));
            rp_tensor *count = rp_index_add_at(site, zeros(weight, (rp_dtype)rows->dtype, size, 1), 0, bag,
                                               rp_expand_at(site, one, &n, 1, NULL), NULL);
            count = rp_clamp_at(site, count, rp_i64(1), rp_none());
            out = rp_div_at(site, out, rp_unsqueeze_at(site, count, 1));
        }
        out = as(call, out, (rp_dtype)weight->dtype);
    }
    return rp__give(call, rp_slice_at(site, out, 0, 0, bags, 1));
}

/* ---- embedding_renorm_: rows that are longer than max_norm become that long, those that indices name */

rp_status rp__expand_embedding_renorm_(const rp__call *call) {
    rp_tensor *self = call->in[0], *indices = call->in[1];
    const double max_norm = rp__attr_float(call, 0);
    if (self->ndim != 2) return rp__op_error(call, RP_ERROR_SHAPE, "'self' must be 2-D");
    RP_TRY(rp__call_need_float(call, (rp_dtype)self->dtype));
    if (!is_index(indices))
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected dtype int32/int64 for indices, but got %s",
                            rp__dtype_title((rp_dtype)indices->dtype));
    rp_tensor *named = rp_index_fill_scalar(zeros(self, RP_BOOL, self->size, 1), 0,
                                            as(call, row_of(call, indices), RP_I64), rp_bool(true));
    rp_tensor *wide = rp__wide(self);
    rp_tensor *norm = rp_linalg_vector_norm(wide, rp_f64(rp__attr_float(call, 1)), RP_DIMS(1));
    rp_tensor *factor = rp_mul_scalar(rp_reciprocal(rp_add_scalar(norm, rp_f64(1e-7))), rp_f64(max_norm));
    rp_tensor *keeps = rp_logical_not(rp_logical_and(named, rp_gt_scalar(norm, rp_f64(max_norm))));
    factor = rp_masked_fill_scalar(factor, keeps, rp_i64(1));
    return rp__give(call, rp_copy__at(call->site, self, rp_mul(wide, rp_unsqueeze(factor, 1)), false));
}
