/* Histograms: elements beyond the edges are counted in a bin of their own, which is left out. */
#include <math.h>

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* The least and the largest of halves are not looked for. */
static rp_status need_values(const rp__call *call, bool looks) {
    const rp_dtype d = (rp_dtype)call->in[0]->dtype;
    return looks && d != RP_F32 && d != RP_F64 ? rp__call_refuse_dtype(call, d) : rp__call_need_float(call, d);
}

static rp_status check_bins(const rp__call *call, int64_t bins) {
    if (bins < 1)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "bins must be > 0, but got %lld", (long long)bins);
    if (bins >= RP__REACH_LIMIT) return rp__op_error(call, RP_ERROR_SHAPE, "%lld bins are too many", (long long)bins);
    return RP_OK;
}

static rp_status check_range(const rp__call *call, const rp_attr *range, size_t dims) {
    if (range->v.floats && range->n != 2 * dims)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "range should have %zu elements, but got %zu", 2 * dims,
                            range->n);
    for (size_t k = 0; range->v.floats && k < 2 * dims; k += 2) {
        const double low = range->v.floats[k], high = range->v.floats[k + 1];
        if (!(low <= high) || isinf(low) || isinf(high))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "range of [%g, %g] is not finite or not in order", low,
                                high);
    }
    return RP_OK;
}

static rp_status check_edges(const rp__call *call, const rp_tensor *edges) {
    if (edges->dtype != call->in[0]->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "input tensor and bins tensor should have the same dtype");
    if (edges->ndim != 1 || rp__dim_is(RP__DIM_LT, edges->size[0], 2))
        return rp__op_error(call, RP_ERROR_SHAPE, "bins tensor should have one dimension and 2 elements or more");
    return RP_OK;
}

/* Edges of equal bins over range, or, NULL, from the least to the largest of x. */
static rp_tensor *equal_edges(rp_tensor *x, int64_t bins, const double *range) {
    rp_tensor *low, *high;
    if (rp__tensor_is_error(x)) return x;
    if (range) {
        low = rp__number_beside(x, rp_f64(range[0]), (rp_dtype)x->dtype);
        high = rp__number_beside(x, rp_f64(range[1]), (rp_dtype)x->dtype);
    } else if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(x), 0)) {
        low = rp__number_beside(x, rp_i64(0), (rp_dtype)x->dtype);
        high = rp__number_beside(x, rp_i64(1), (rp_dtype)x->dtype);
    } else {
        low = rp_min(x);
        high = rp_max(x);
    }
    /* One value has a bin around it. */
    rp_tensor *half = rp_mul_scalar(rp_to_dtype(rp_eq(low, high), (rp_dtype)x->dtype), rp_f64(0.5));
    low = rp_sub(low, half);
    high = rp_add(high, half);
    rp_tensor *step = rp_div_scalar(rp_sub(high, low), rp_i64(bins)), *place = rp__count_beside(x, bins + 1);
    rp_tensor *left = rp_add_scalar(rp_neg(place), rp_i64(bins)); /* the second half from the end, as linspace */
    return rp_where(rp_lt_scalar(place, rp_i64((bins + 1) / 2)), rp_add(low, rp_mul(step, place)),
                    rp_sub(high, rp_mul(step, left)));
}

/* Which bin each element of x lies in, and whether it does (*inside). */
static rp_tensor *places(rp_tensor *x, rp_tensor *edges, rp_tensor **inside) {
    if (rp__tensor_is_error(edges)) return edges;
    const rp_dim last = rp__dim_apply(RP__DIM_SUB, edges->size[0], 2);
    rp_tensor *at = rp_searchsorted(edges, rp_contiguous(x), RP_OPTIONS(rp_searchsorted_options, .right = RP_TRUE));
    *inside = rp_logical_and(rp_ge(x, rp_select(edges, 0, 0)), rp_le(x, rp_select(edges, 0, -1)));
    return rp_clamp(rp_sub_scalar(at, rp_i64(1)), rp_none(), rp_i64(last));
}

static rp_status check_weight(const rp__call *call, const rp_tensor *weight, unsigned dims) {
    const rp_tensor *x = call->in[0];
    if (!weight) return RP_OK;
    if (weight->dtype != x->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "input tensor and weight tensor should have the same dtype");
    bool good = weight->ndim == dims;
    for (unsigned d = 0; good && d < dims; d++) good = rp__dim_is(RP__DIM_EQ, weight->size[d], x->size[d]);
    return good ? RP_OK : rp__op_error(call, RP_ERROR_SHAPE, "weight tensor should have the shape of the input");
}

/* Elements at `at` of `bins` boxes, those that are not inside left out. */
static rp_tensor *counted(rp_tensor *at, rp_tensor *inside, rp_dim bins, const rp_tensor *x, rp_tensor *weight) {
    at = rp_where(inside, at, rp_fill(rp__zero_like(at), rp_i64(bins)));
    if (rp__tensor_is_error(at)) return at;
    const rp_dim all = rp__dim_apply(RP__DIM_ADD, bins, 1);
    rp_tensor *zero = rp__zero_like(x), *each;
    each = weight ? rp_detach(rp_reshape(weight, RP_DIMS(-1))) : rp_expand(rp_fill(zero, rp_i64(1)), at->size, 1);
    return rp_narrow(rp_scatter_add(rp_clone(rp_expand(zero, &all, 1)), 0, at, each), 0, 0, bins);
}

static rp_status one_dim(const rp__call *call, rp_tensor *edges, rp_tensor *weight, bool density) {
    rp_tensor *x = rp_detach(rp_reshape(call->in[0], RP_DIMS(-1))), *inside = NULL, *at = places(x, edges, &inside);
    if (rp__tensor_is_error(at)) return rp_error_status();
    RP_TRY(check_weight(call, weight, call->in[0]->ndim));
    rp_tensor *hist = counted(at, inside, rp__dim_apply(RP__DIM_SUB, edges->size[0], 1), x, weight);
    call->out[1] = edges;
    return rp__give(call, density ? rp_div(rp_div(hist, rp_sum(hist)), rp_diff(edges)) : rp_clone(hist));
}

rp_status rp__expand_histogram(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const int64_t bins = rp__attr_int(call, 0);
    const rp_attr *range = &call->attrs[1];
    RP_TRY(need_values(call, !range->v.floats && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(x), 0)));
    RP_TRY(check_bins(call, bins));
    RP_TRY(check_range(call, range, 1));
    return one_dim(call, equal_edges(rp_detach(x), bins, range->v.floats), call->in[1], rp__attr_bool(call, 2));
}

rp_status rp__expand_histogram_bins(const rp__call *call) {
    RP_TRY(need_values(call, false));
    RP_TRY(check_edges(call, call->in[1]));
    return one_dim(call, rp_clone(rp_detach(call->in[1])), call->in[2], rp__attr_bool(call, 0));
}

/* ---- of several dims: boxes in row-major order */

static rp_status boxes(const rp__call *call, rp_tensor *columns, rp_tensor *const *edges, unsigned dims,
                       rp_tensor *weight, bool density) {
    rp_dim size[RP_MAX_DIMS], all = 1;
    rp_tensor *at = NULL, *inside = NULL;
    RP_TRY(check_weight(call, weight, call->in[0]->ndim - 1u));
    for (unsigned d = 0; d < dims; d++) {
        rp_tensor *in = NULL, *place = places(rp_select(columns, 1, d), edges[d], &in);
        if (rp__tensor_is_error(place)) return rp_error_status();
        size[d] = rp__dim_apply(RP__DIM_SUB, edges[d]->size[0], 1);
        all = rp__dim_apply(RP__DIM_MUL, all, size[d]);
        at = at ? rp_add(rp_mul_scalar(at, rp__scalar_dim(size[d])), place) : place;
        inside = inside ? rp_logical_and(inside, in) : in;
    }
    rp_tensor *hist = rp_view(counted(at, inside, all, columns, weight), size, dims);
    if (density) hist = rp_div(hist, rp_sum(hist));
    for (unsigned d = 0; density && d < dims; d++) {
        rp_dim along[RP_MAX_DIMS];
        for (unsigned k = 0; k < dims; k++) along[k] = k == d ? size[d] : 1;
        hist = rp_div(hist, rp_view(rp_diff(edges[d]), along, dims));
    }
    return rp__give(call, density ? hist : rp_clone(hist));
}

/* Rows of all but the last dim, whose size is *dims. */
static rp_status columns_of(const rp__call *call, rp_tensor **columns, unsigned *dims) {
    rp_tensor *x = call->in[0];
    if (x->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "input tensor should have at least 2 dimensions, but got %u",
                            x->ndim);
    const int64_t n = rp__dim_value(x->size[x->ndim - 1]);
    if (n < 1 || n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a histogram has 1 to %d dims, not %lld", RP_MAX_DIMS, (long long)n);
    *dims = (unsigned)n;
    *columns = rp_detach(rp_flatten(x, 0, -2));
    return rp__tensor_is_error(*columns) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_histogramdd(const rp__call *call) {
    const rp_attr *bins = &call->attrs[0], *range = &call->attrs[1];
    rp_tensor *columns, *edges[RP_MAX_DIMS];
    unsigned dims;
    int64_t all = 1;
    RP_TRY(need_values(call, false));
    RP_TRY(columns_of(call, &columns, &dims));
    RP_TRY(need_values(call, !range->v.floats && !rp__dim_is(RP__DIM_EQ, columns->size[0], 0)));
    if (bins->n != dims && bins->n != 1)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "number of bins should be one or the size of the last dim, %u, but got %zu", dims, bins->n);
    RP_TRY(check_range(call, range, dims));
    for (unsigned d = 0; d < dims; d++) {
        const int64_t n = bins->v.ints[bins->n == 1 ? 0 : d];
        RP_TRY(check_bins(call, n));
        if (!rp__mul_i64(all, n, &all) || all >= RP__REACH_LIMIT)
            return rp__op_error(call, RP_ERROR_SHAPE, "the result has too many elements");
        edges[d] = equal_edges(rp_select(columns, 1, d), n, range->v.floats ? range->v.floats + 2 * d : NULL);
    }
    RP_TRY(boxes(call, columns, edges, dims, call->in[1], rp__attr_bool(call, 2)));
    call->out[1] = rp_cat(edges, dims, 0);
    return rp__tensor_is_error(call->out[1]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_histogramdd_bins(const rp__call *call) {
    rp_tensor *columns, *edges[RP_MAX_DIMS];
    unsigned dims;
    RP_TRY(need_values(call, false));
    RP_TRY(columns_of(call, &columns, &dims));
    if (call->n_in != dims + 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "expected a tensor of edges for each of %u dims, but got %u", dims, call->n_in - 2);
    for (unsigned d = 0; d < dims; d++) {
        RP_TRY(check_edges(call, call->in[1 + d]));
        edges[d] = rp_detach(call->in[1 + d]);
    }
    return boxes(call, columns, edges, dims, call->in[1 + dims], rp__attr_bool(call, 0));
}
