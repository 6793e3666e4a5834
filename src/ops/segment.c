/* Segments: elements along a dim are sent to the place of their part, which is found among the ends of all parts; what belongs to none
   goes to a place behind the last, which is left out. */
#include <math.h>
#include <string.h>

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

typedef enum reduction { SUM, MEAN, MAX, MIN, PROD, REDUCTIONS } reduction;
static const char *const names[] = {"sum", "mean", "max", "min", "prod"};
static const char *const scatters[] = {"sum", "sum", "amax", "amin", "prod"};

static double neutral(reduction r) {
    return r == MAX ? (double)-INFINITY : r == MIN ? (double)INFINITY : r == PROD ? 1 : 0;
}

/* Parts (..., n) as elements of data see them: dims of size 1 behind axis. */
static rp_tensor *beside(rp_tensor *parts, unsigned ndim) {
    for (unsigned d = parts->ndim; d < ndim && !rp__tensor_is_error(parts); d++) parts = rp_unsqueeze(parts, -1);
    return parts;
}

/* The part of each place along axis, (..., size); the number of parts for those in none. */
static rp_tensor *parts_of_places(rp_tensor *begins, rp_tensor *ends, rp_dim size) {
    if (rp__tensor_is_error(ends) || rp__tensor_is_error(begins)) return rp__tensor_error();
    const unsigned axis = ends->ndim - 1u;
    rp_dim all[RP_MAX_DIMS];
    memcpy(all, ends->size, axis * sizeof *all);
    all[axis] = size;
    rp_tensor *place = rp_contiguous(rp_expand(rp__count_beside(ends, size), all, ends->ndim));
    rp_tensor *part =
        rp_searchsorted(rp_contiguous(ends), place, RP_OPTIONS(rp_searchsorted_options, .right = RP_TRUE));
    rp_tensor *before = rp_lt(place, rp_narrow(begins, axis, 0, 1));
    return rp_masked_fill_scalar(part, before, rp__scalar_dim(ends->size[axis]));
}

/* The elements of data put together, each part's along axis at its place. */
static rp_tensor *put(rp_tensor *into, unsigned axis, rp_tensor *part, rp_tensor *data, const char *how, bool with) {
    return rp_scatter_reduce(into, axis, part, data, how,
                             RP_OPTIONS(rp_scatter_reduce_options, .include_self = with ? RP_TRUE : RP_FALSE));
}

/* The same, of largest and smallest and of products: elements that are NaN are left out and joined behind, so that gradients are those of
   the definition. All of a largest or smallest one is theirs, in equal shares; of a product each has that of all others. */
static rp_tensor *put_apart(rp_tensor *into, unsigned axis, rp_tensor *part, rp_tensor *data, reduction r) {
    rp_tensor *nan = rp_isnan(data), *none = rp_expand(rp__zero_like(into), into->size, into->ndim);
    /* a place that is reached has no part of what was there before in the largest or smallest */
    rp_tensor *y = put(into, axis, part, rp_masked_fill_scalar(data, nan, rp_f64(neutral(r))), scatters[r], r == PROD);
    rp_tensor *nans = put(none, axis, part, rp_to_dtype(nan, (rp_dtype)data->dtype), "sum", true);
    rp_tensor *sum = put(none, axis, part, rp_masked_fill_scalar(data, rp_logical_not(nan), rp_i64(0)), "sum", true);
    rp_tensor *has = rp_gt_scalar(nans, rp_i64(0)), *one = rp_fill(rp__zero_like(into), rp_i64(1));
    if (r != PROD) return rp_where(has, rp_div(sum, rp_clamp(nans, rp_i64(1), rp_none())), y);
    y = rp_mul(y, rp_where(has, sum, one));
    return rp_mul(y, rp_where(rp_gt_scalar(nans, rp_i64(1)), sum, one)); /* of two each other's factor */
}

rp_status rp__expand_segment_reduce(const rp__call *call) {
    rp_tensor *data = call->in[0], *lengths = call->in[1], *offsets = call->in[3], *by = lengths ? lengths : offsets;
    const rp_attr *initial = &call->attrs[3];
    const char *name = call->attrs[0].v.string;
    const bool given = !rp__attr_is_none(initial);
    reduction r = SUM;
    unsigned axis;
    while (r < REDUCTIONS && strcmp(names[r], name) != 0) r++;
    if (r == REDUCTIONS)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "reduce argument must be one of sum, mean, max, min and prod, got %s", name);
    if (call->in[2] || !by || (lengths && offsets))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects either lengths or offsets");
    RP_TRY(rp__call_need_float(call, (rp_dtype)data->dtype));
    if (data->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "expects data of at least one dim");
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), data->ndim, &axis));
    if (by->dtype != RP_I64 && by->dtype != RP_I32) return rp__call_refuse_dtype(call, (rp_dtype)by->dtype);
    bool good = by->ndim == axis + 1u;
    for (unsigned d = 0; good && d < axis; d++) good = rp__dim_is(RP__DIM_EQ, by->size[d], data->size[d]);
    if (!good || (!lengths && rp__dim_is(RP__DIM_LT, by->size[axis], 1)))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expects %s of one dim more than there are before axis, which have the sizes of data",
                            lengths ? "lengths" : "offsets");
    by = rp_to_dtype(by, RP_I64);
    if (rp__tensor_is_error(by)) return rp_error_status();
    rp_tensor *ends = lengths ? rp_cumsum(by, axis) : rp_slice(by, axis, 1, INT64_MAX, 1), *begins;
    begins = lengths ? rp_sub(ends, by) : rp_slice(by, axis, 0, -1, 1);
    if (rp__tensor_is_error(begins) || rp__tensor_is_error(ends)) return rp_error_status();
    const rp_dim parts = ends->size[axis];
    rp_dim size[RP_MAX_DIMS];
    memcpy(size, data->size, data->ndim * sizeof *size);
    size[axis] = rp__dim_apply(RP__DIM_ADD, parts, 1);
    rp_tensor *wide = rp__wide(data);
    rp_scalar start = rp_f64(neutral(r));
    if (given && (r == SUM || r == MEAN || r == PROD)) start = initial->v.scalar;
    rp_tensor *into = rp_clone(rp_expand(rp_fill(rp__zero_like(wide), start), size, data->ndim)), *y = into;
    if (!rp__dim_is(RP__DIM_EQ, parts, 0) && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(data), 0)) {
        rp_tensor *part = beside(parts_of_places(begins, ends, data->size[axis]), data->ndim);
        part = rp_expand(part, data->size, data->ndim);
        y = r == SUM || r == MEAN ? put(into, axis, part, wide, scatters[r], true)
                                  : put_apart(into, axis, part, wide, r);
    } else { /* of no element, but with a gradient of none */
        y = rp_sub(into, rp_sum(wide, RP_DIMS(axis), true));
    }
    y = rp_narrow(y, axis, 0, parts);
    if (given && (r == MAX || r == MIN)) { /* all of the gradient is data's where they are equal */
        const rp_scalar bound = initial->v.scalar;
        rp_tensor *beyond = r == MAX ? rp_ge_scalar(y, bound) : rp_le_scalar(y, bound);
        y = rp_masked_fill_scalar(y, rp_logical_not(rp_logical_or(beyond, rp_isnan(y))), bound);
    }
    if (r == MEAN) {
        rp_tensor *count = beside(rp_sub(ends, begins), data->ndim), *none = rp_eq_scalar(count, rp_i64(0));
        y = rp_div(y, rp_masked_fill_scalar(count, none, rp_i64(1)));
        if (!given) y = rp_masked_fill_scalar(y, none, rp_f64(NAN));
    }
    if (rp__tensor_is_error(y)) return rp_error_status();
    return rp__give(call, (rp_dtype)y->dtype == (rp_dtype)data->dtype ? rp_contiguous(y)
                                                                      : rp_to_dtype(y, (rp_dtype)data->dtype));
}
