/* Distances and what is divided by a norm. */
#include <math.h>

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

static rp_status give(const rp__call *call, rp_tensor *t, rp_dtype dtype) {
    if (!rp__tensor_is_error(t) && (rp_dtype)t->dtype != dtype) t = rp_to_dtype(t, dtype);
    call->out[0] = t;
    return rp__tensor_is_error(t) ? rp_error_status() : RP_OK;
}

/* Of one type, float32 or float64, and a norm that there is. */
static rp_status check(const rp__call *call, double p) {
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_dtype d = (rp_dtype)call->in[k]->dtype;
        if (d != RP_F32 && d != RP_F64) return rp__call_refuse_dtype(call, d);
        if (d != (rp_dtype)call->in[0]->dtype)
            return rp__op_error(call, RP_ERROR_DTYPE, "rows must have the same dtype");
    }
    if (!(p >= 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s only supports non-negative p values", call->op->name);
    return RP_OK;
}

static rp_tensor *norm_of_last(rp_tensor *t, double p) {
    if (rp__tensor_is_error(t)) return t;
    if (rp__dim_is(RP__DIM_EQ, t->size[t->ndim - 1], 0)) return rp_sum(t, RP_DIMS(-1)); /* no coordinates: 0 of any p */
    return rp_linalg_vector_norm(t, rp_f64(p), RP_DIMS(-1));
}

/* |a - b| of |a|^2 - 2 a b + |b|^2, in which small distances have few digits; 0 has gradient 0. */
static rp_tensor *by_product(rp_tensor *a, rp_tensor *b) {
    rp_tensor *square_a = rp_sum(rp_square(a), RP_DIMS(-1), true), *square_b = rp_sum(rp_square(b), RP_DIMS(-1), true);
    rp_tensor *left[3] = {rp_mul_scalar(a, rp_i64(-2)), square_a, rp_ones_like(square_a)};
    rp_tensor *right[3] = {b, rp_ones_like(square_b), square_b};
    rp_tensor *square = rp_matmul(rp_cat(left, 3, -1), rp_transpose(rp_cat(right, 3, -1), -2, -1));
    rp_tensor *none = rp_le_scalar(square, rp_i64(0));
    return rp_masked_fill_scalar(rp_sqrt(rp_masked_fill_scalar(square, none, rp_i64(1))), none, rp_i64(0));
}

rp_status rp__expand_cdist(const rp__call *call) {
    enum { IF_LARGE, ALWAYS, NEVER, LARGE = 25 };
    rp_tensor *a = call->in[0], *b = call->in[1];
    const double p = rp__attr_float(call, 0);
    const int64_t mode = rp__attr_is_none(&call->attrs[1]) ? IF_LARGE : rp__attr_int(call, 1);
    RP_TRY(check(call, p));
    if (mode < IF_LARGE || mode > NEVER)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "possible modes: 0, 1, 2, but was: %lld", (long long)mode);
    if (a->ndim < 2 || b->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "cdist only supports at least 2D tensors, got: %uD and %uD", a->ndim,
                            b->ndim);
    const rp_dim rows_a = a->size[a->ndim - 2], rows_b = b->size[b->ndim - 2];
    if (!rp__dim_is(RP__DIM_EQ, a->size[a->ndim - 1], b->size[b->ndim - 1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "X1 and X2 must have the same number of columns. X1: %lld X2: %lld",
                            (long long)rp__dim_hint(a->size[a->ndim - 1]),
                            (long long)rp__dim_hint(b->size[b->ndim - 1]));
    if (p == 2 && mode != NEVER && !rp__dim_is(RP__DIM_EQ, a->size[a->ndim - 1], 0) &&
        (mode == ALWAYS || rp__dim_is(RP__DIM_LT, LARGE, rows_a) || rp__dim_is(RP__DIM_LT, LARGE, rows_b)))
        return give(call, by_product(a, b), (rp_dtype)a->dtype);
    return give(call, norm_of_last(rp_sub(rp_unsqueeze(a, -2), rp_unsqueeze(b, -3)), p), (rp_dtype)a->dtype);
}

/* Pair number k of n rows is (i, j), i < j: before i stand first(i) = i (2 n - i - 1) / 2 pairs. The root of that equation, as a
   float64, is a step away at most, which integers decide. */
static rp_tensor *first(rp_tensor *i, rp_dim n) {
    rp_tensor *twice =
        rp_add_scalar(rp_neg(i), rp__scalar_dim(rp__dim_apply(RP__DIM_SUB, rp__dim_apply(RP__DIM_MUL, n, 2), 1)));
    return rp_bitwise_right_shift_scalar(rp_mul(i, twice), rp_i64(1));
}

rp_status rp__expand_pdist(const rp__call *call) {
    rp_tensor *x = call->in[0];
    RP_TRY(check(call, rp__attr_float(call, 0)));
    if (x->ndim != 2) return rp__op_error(call, RP_ERROR_SHAPE, "pdist only supports 2D tensors, got: %uD", x->ndim);
    const rp_dim n = x->size[0];
    if (rp__dim_is(RP__DIM_LT, n, 2)) /* no pairs */
        return give(call, norm_of_last(rp_slice(x, 0, 0, 0, 1), rp__attr_float(call, 0)), (rp_dtype)x->dtype);
    const rp_dim pairs =
        rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_MUL, n, rp__dim_apply(RP__DIM_SUB, n, 1)), 2);
    const rp_scalar edge = rp__scalar_dim(rp__dim_apply(RP__DIM_SUB, rp__dim_apply(RP__DIM_MUL, n, 2), 1));
    rp_tensor *k = rp__count_beside(x, pairs);
    rp_tensor *side = rp_mul_scalar(rp_ones_like(rp_to_dtype(k, RP_F64)), edge);
    rp_tensor *root = rp_sqrt(rp_sub(rp_mul(side, side), rp_mul_scalar(rp_to_dtype(k, RP_F64), rp_i64(8))));
    rp_tensor *i = rp_to_dtype(rp_floor(rp_mul_scalar(rp_sub(side, root), rp_f64(0.5))), RP_I64);
    i = rp_sub(i, rp_to_dtype(rp_gt(first(i, n), k), RP_I64));
    i = rp_add(i, rp_to_dtype(rp_le(first(rp_add_scalar(i, rp_i64(1)), n), k), RP_I64));
    rp_tensor *j = rp_add_scalar(rp_add(rp_sub(k, first(i, n)), i), rp_i64(1));
    return give(call, norm_of_last(rp_sub(rp_embedding(x, i), rp_embedding(x, j)), rp__attr_float(call, 0)),
                (rp_dtype)x->dtype);
}

/* At least eps, with the gradient of t itself. */
static rp_tensor *at_least(rp_tensor *t, rp_scalar eps) {
    return rp_where(rp_lt_scalar(t, eps), rp_add_scalar(rp_sub(t, rp_detach(t)), eps), t);
}

rp_status rp__expand_cosine_similarity(const rp__call *call) {
    const rp_dtype dtype = rp__call_promote(call, 0, 2, -1);
    const rp_scalar eps = rp_f64(rp__attr_float(call, 1));
    const int64_t dim = rp__attr_int(call, 0);
    rp__meta both;
    unsigned place;
    if (!rp__dtype_is_float(dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "expected common dtype to be floating point, yet common dtype is %s",
                            rp__dtype_title(dtype));
    RP_TRY(rp__meta_broadcast(call->in[0], call->in[1], &both));
    RP_TRY(rp__call_dim(call, dim, both.ndim, &place));
    rp_tensor *part[2];
    for (unsigned k = 0; k < 2; k++) {
        rp_tensor *x = call->in[k];
        const rp_dtype compute = (rp_dtype)rp__dtypes[dtype].compute;
        if (x->dtype != compute) x = rp_to_dtype(x, compute);
        x = rp_expand(x, both.size, both.ndim);
        part[k] = rp_div(x, at_least(rp_linalg_vector_norm(x, rp_i64(2), &dim, 1, true), eps));
    }
    return give(call, rp_sum(rp_mul(part[0], part[1]), &dim, 1), dtype);
}

rp_status rp__expand_normalize(const rp__call *call) {
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    const int64_t dim = rp__attr_int(call, 1);
    RP_TRY(rp__call_need_float(call, dtype));
    rp_tensor *x = rp__wide(call->in[0]);
    rp_tensor *norm = rp_linalg_vector_norm(x, rp_f64(rp__attr_float(call, 0)), &dim, 1, true);
    return give(call, rp_div(x, rp_clamp(norm, rp_f64(rp__attr_float(call, 2)), rp_none())), dtype);
}
