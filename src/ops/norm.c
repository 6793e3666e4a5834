/* Softmax and normalisation: rows kernels with several phases over one row. */
#include <float.h>

#include "ops/infer.h"

#include "ops/private.h"

#include "ops/norm.h"
#include "ops/rules.h"

/* ---- softmax along one dim */

rp_status rp__infer_softmax(const rp__call *call, rp__meta *out) {
    unsigned dim;
    rp_dtype asked = call->attrs[1].v.dtype, dtype = asked ? asked : (rp_dtype)call->in[0]->dtype;
    if (!rp__dtype_is_valid(dtype)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)dtype);
    if (!rp__dtype_is_float(dtype) && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(call->in[0]), 0))
        return rp__call_refuse_dtype(call, dtype); /* PyTorch looks at the type of what it computes */
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), call->in[0]->ndim, &dim));
    rp__meta_like(out, call->in[0], dtype);
    return RP_OK;
}

/* x - max of its row, the exponentials of that, and their sum. A 0-d tensor is a row of one. */
static bool shifted(rp__lower *lw, rp__val *x, rp__val *e, rp__val *total) {
    const rp__call *call = rp__lw_call(lw);
    unsigned dim, ndim = call->in[0]->ndim;
    if (!rp__dtype_is_float(rp__lw_out_dtype(lw, 0))) { /* without elements, of which no type is refused */
        rp__lw_out(lw, 0, rp__lw_in(lw, 0));
        return false;
    }
    if (ndim > 0 && rp__call_dim(call, rp__attr_int(call, 0), ndim, &dim) == RP_OK) rp__lw_inner(lw, 1u << dim);
    rp__val in = rp__lw_in_as(lw, 0, rp__lw_out_dtype(lw, 0));
    *x = rp__lw_2(lw, RP__SUB, in, rp__lw_reduce(lw, RP__REDUCE_MAX, in));
    *e = rp__lw_1(lw, RP__EXP, *x);
    *total = rp__lw_reduce(lw, RP__REDUCE_SUM, *e);
    return true;
}

void rp__lower_softmax(rp__lower *lw) {
    rp__val x, e, total;
    if (!shifted(lw, &x, &e, &total)) return;
    /* One division a row instead of one an element: total is at least 1 (the largest element adds exp(0)), or NaN. */
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__MUL, e, rp__lw_1(lw, RP__RECIP, total)));
}

void rp__lower_log_softmax(rp__lower *lw) {
    rp__val x, e, total;
    if (!shifted(lw, &x, &e, &total)) return;
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__SUB, x, rp__lw_1(lw, RP__LOG, total)));
}

/* ---- layer norm over the last dims, of normalized_shape */

static rp_status check_affine(const rp__call *call, const rp_tensor *t, const char *what, const int64_t *shape,
                              size_t n) {
    if (!t) return RP_OK;
    bool same = t->ndim == n;
    for (size_t d = 0; same && d < n; d++) same = rp__dim_is(RP__DIM_EQ, t->size[d], shape[d]);
    if (same) return rp__call_need_float(call, (rp_dtype)t->dtype);
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    return rp__op_error(
        call, RP_ERROR_SHAPE,
        "Expected %s to be of same shape as normalized_shape, but got %s of shape %s and normalized_shape = %s", what,
        what, rp__shape_text(t->size, t->ndim, a), rp__shape_text(shape, n, b));
}

static rp_status check_shape(const rp__call *call, const int64_t *shape, size_t n) {
    const rp_tensor *t = call->in[0];
    if (n == 0)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = []");
    RP_TRY(check_affine(call, call->in[1], "weight", shape, n));
    RP_TRY(check_affine(call, call->in[2], "bias", shape, n));
    bool fits = t->ndim >= n;
    for (size_t d = 0; fits && d < n; d++) fits = rp__dim_is(RP__DIM_EQ, t->size[t->ndim - n + d], shape[d]);
    if (!fits) {
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Given normalized_shape=%s, expected input with shape [*, normalized_shape], but got input of size %s",
            rp__shape_text(shape, n, a), rp__shape_text(t->size, t->ndim, b));
    }
    return RP_OK;
}

rp_status rp__expand_layer_norm(const rp__call *call) {
    const int64_t *shape = call->attrs[0].v.ints;
    size_t n = call->attrs[0].n;
    RP_TRY(check_shape(call, shape, n));
    call->out[0] = rp_native_layer_norm_at(call->site, call->in[0], shape, n, call->in[1], call->in[2],
                                           rp__attr_float(call, 1), NULL, NULL);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

/* Normalised values in the input's type; mean and 1/std of each row in its compute type, with size 1 along the row. */
rp_status rp__infer_native_layer_norm(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    size_t n = call->attrs[0].n;
    RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
    RP_TRY(check_shape(call, call->attrs[0].v.ints, n));
    rp__meta_like(&out[0], t, (rp_dtype)t->dtype);
    uint32_t mask = ((1u << n) - 1u) << (t->ndim - n);
    rp__meta_reduced(call, mask, true, (rp_dtype)rp__dtypes[t->dtype].compute, &out[1]);
    rp__meta_reduced(call, mask, true, (rp_dtype)rp__dtypes[t->dtype].compute, &out[2]);
    return RP_OK;
}

/* Two passes: the variance is that of x - mean, so that a large mean costs no digits. */
rp__lw_norm rp__lw_normalise(rp__lower *lw, unsigned eps) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__lw_norm n = {.extent = rp__lw_inner_extent(lw, compute)};
    rp__val x = rp__lw_in(lw, 0);
    n.mean = rp__lw_2(lw, RP__DIV, rp__lw_reduce(lw, RP__REDUCE_SUM, x), n.extent);
    rp__val centred = rp__lw_2(lw, RP__SUB, x, n.mean);
    n.squares = rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_2(lw, RP__MUL, centred, centred));
    rp__val variance = rp__lw_2(lw, RP__DIV, n.squares, n.extent);
    n.rstd = rp__lw_1(lw, RP__RSQRT, rp__lw_2(lw, RP__ADD, variance, rp__lw_attr(lw, eps, compute)));
    n.y = rp__lw_2(lw, RP__MUL, centred, n.rstd);
    if (rp__lw_has(lw, 1)) n.y = rp__lw_2(lw, RP__MUL, n.y, rp__lw_cast(lw, rp__lw_in(lw, 1), compute));
    if (rp__lw_has(lw, 2)) n.y = rp__lw_2(lw, RP__ADD, n.y, rp__lw_cast(lw, rp__lw_in(lw, 2), compute));
    return n;
}

void rp__lower_native_layer_norm(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    unsigned n = (unsigned)call->attrs[0].n;
    rp__lw_inner(lw, ((1u << n) - 1u) << (call->in[0]->ndim - n));
    const rp__lw_norm norm = rp__lw_normalise(lw, 1);
    rp__lw_out(lw, 0, norm.y);
    rp__lw_out_row(lw, 1, norm.mean);
    rp__lw_out_row(lw, 2, norm.rstd);
}

/* ---- rms norm: the same without a mean */

static uint32_t last_dims(const rp__call *call) {
    const size_t n = call->attrs[0].n;
    return ((1u << n) - 1u) << (call->in[0]->ndim - n);
}

static rp_status check_rms(const rp__call *call) {
    const rp_tensor *t = call->in[0], *weight = call->in[1];
    const rp_attr *shape = &call->attrs[0];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
    if (shape->n == 0)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = []");
    RP_TRY(check_affine(call, weight, "weight", shape->v.ints, shape->n));
    bool fits = t->ndim >= shape->n;
    for (size_t d = 0; fits && d < shape->n; d++)
        fits = rp__dim_is(RP__DIM_EQ, t->size[t->ndim - shape->n + d], shape->v.ints[d]);
    if (fits) return RP_OK;
    return rp__op_error(
        call, RP_ERROR_SHAPE,
        "Given normalized_shape=%s, expected input with shape [*, normalized_shape], but got input of size %s",
        rp__shape_text(shape->v.ints, shape->n, a), rp__shape_text(t->size, t->ndim, b));
}

rp_status rp__expand_rms_norm(const rp__call *call) {
    const rp_attr *shape = &call->attrs[0];
    RP_TRY(check_rms(call));
    const bool wide = call->in[0]->dtype == RP_F64;
    const double eps = rp__attr_is_none(&call->attrs[1]) ? (wide ? DBL_EPSILON : (double)FLT_EPSILON)
                                                         : rp__scalar_f64(call->attrs[1].v.scalar);
    call->out[0] = rp_rms_norm_rows_at(call->site, call->in[0], shape->v.ints, shape->n, call->in[1], eps, NULL);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__infer_rms_norm_rows(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    RP_TRY(check_rms(call));
    rp__meta_like(&out[0], t, (rp_dtype)t->dtype);
    rp__meta_reduced(call, last_dims(call), true, (rp_dtype)rp__dtypes[t->dtype].compute, &out[1]);
    return RP_OK;
}

void rp__lower_rms_norm_rows(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__lw_inner(lw, last_dims(rp__lw_call(lw)));
    rp__val x = rp__lw_in(lw, 0);
    rp__val squares = rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_2(lw, RP__MUL, x, x));
    rp__val mean = rp__lw_2(lw, RP__DIV, squares, rp__lw_inner_extent(lw, compute));
    rp__val rstd = rp__lw_1(lw, RP__RSQRT, rp__lw_2(lw, RP__ADD, mean, rp__lw_attr(lw, 1, compute)));
    rp__val y = rp__lw_2(lw, RP__MUL, x, rstd);
    if (rp__lw_has(lw, 1)) y = rp__lw_2(lw, RP__MUL, y, rp__lw_cast(lw, rp__lw_in(lw, 1), compute));
    rp__lw_out(lw, 0, y);
    rp__lw_out_row(lw, 1, rstd);
}
