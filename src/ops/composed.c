/* Ops as calls of rows of other families. */
#include <math.h>
#include <string.h>

#include "ops/private.h"

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"

/* ---- numbers in the place of tensors */

rp_tensor *rp__number_beside(const rp_tensor *t, rp_scalar value, rp_dtype dtype) {
    const rp__meta one = {.dtype = dtype, .device = t->device};
    return rp_fill(rp__zeros_of(&one), value);
}

rp_status rp__expand_rsub(const rp__call *call) {
    return rp__give(call, rp_sub_at(call->site, call->in[1], call->in[0],
                                    RP_OPTIONS(rp_sub_options, .alpha = call->attrs[0].v.scalar)));
}

rp_status rp__expand_rsub_scalar(const rp__call *call) {
    rp_tensor *other = rp__number_beside(call->in[0], call->attrs[0].v.scalar, rp__call_promote(call, 0, 1, 0));
    return rp__give(
        call, rp_sub_at(call->site, other, call->in[0], RP_OPTIONS(rp_sub_options, .alpha = call->attrs[1].v.scalar)));
}

rp_status rp__expand_scalar_pow(const rp__call *call) {
    rp_tensor *base = rp__number_beside(call->in[0], call->attrs[0].v.scalar, rp__call_promote(call, 0, 1, 0));
    return rp__give(call, rp_pow_at(call->site, base, call->in[0]));
}

rp_status rp__expand_where_scalar(const rp__call *call) {
    enum { BOOLS, INTS, FLOATS } most = BOOLS;
    for (unsigned k = 0; k < 2; k++) {
        const rp_scalar s = call->attrs[k].v.scalar;
        if (rp__scalar_is_float(s)) most = FLOATS;
        if ((s.kind == RP_SCALAR_I64 || rp__scalar_is_size(s)) && most == BOOLS) most = INTS;
    }
    const rp_dtype dtype = most == FLOATS ? RP_F32 : most == INTS ? RP_I64 : RP_BOOL;
    rp_tensor *part[2];
    for (unsigned k = 0; k < 2; k++) part[k] = rp__number_beside(call->in[0], call->attrs[k].v.scalar, dtype);
    return rp__give(call, rp_where_at(call->site, call->in[0], part[0], part[1]));
}

static rp_status where_number(const rp__call *call, bool when) {
    rp_tensor *number = rp__number_beside(call->in[1], call->attrs[0].v.scalar, rp__call_promote(call, 1, 1, 0));
    return rp__give(call,
                    rp_where_at(call->site, call->in[0], when ? number : call->in[1], when ? call->in[1] : number));
}
rp_status rp__expand_where_scalar_self(const rp__call *call) { return where_number(call, true); }
rp_status rp__expand_where_scalar_other(const rp__call *call) { return where_number(call, false); }

/* ---- types and sizes */

rp_status rp__expand_type_as(const rp__call *call) {
    return rp__give(call, rp_to_dtype_at(call->site, call->in[0], (rp_dtype)call->in[1]->dtype, NULL));
}

rp_status rp__expand_sum_to_size(const rp__call *call) {
    rp_tensor *t = call->in[0];
    const rp_attr *size = &call->attrs[0];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    bool fits = size->n <= t->ndim, same = size->n == t->ndim;
    for (size_t d = 0; fits && d < size->n; d++) {
        const rp_dim to = size->v.ints[d], from = t->size[t->ndim - size->n + d];
        const bool equal = rp__dim_is(RP__DIM_EQ, to, from);
        fits = equal || rp__dim_is(RP__DIM_EQ, to, 1);
        same = same && equal;
    }
    if (!fits)
        return rp__op_error(call, RP_ERROR_SHAPE, "sums of {%s} have no size {%s}", rp__shape_text(t->size, t->ndim, b),
                            rp__shape_text(size->v.ints, size->n, a));
    if (size->n == 0) return rp__give(call, rp_sum(t)); /* integers become int64, as in any sum of all */
    return rp__give(call, same ? rp__tensor_enter_scope(t) : rp__sum_to_size(t, size->v.ints, size->n));
}

/* ---- weights with a norm */

static rp_tensor *norm_of_rest(const rp__call *call, rp_tensor *v, double p, int64_t dim) {
    int64_t rest[RP_MAX_DIMS];
    unsigned at, n = 0;
    if (dim == -1) return rp_linalg_vector_norm(v, rp_f64(p));
    if (rp__call_dim(call, dim, v->ndim, &at) != RP_OK) return rp__tensor_error();
    for (unsigned d = 0; d < v->ndim; d++)
        if (d != at) rest[n++] = d;
    if (n == 0) return rp_linalg_vector_norm(rp_unsqueeze(v, -1), rp_f64(p), RP_DIMS(-1));
    return rp_linalg_vector_norm(v, rp_f64(p), rest, n, true);
}

rp_status rp__expand_norm_except_dim(const rp__call *call) {
    return rp__give(call, norm_of_rest(call, call->in[0], (double)rp__attr_int(call, 0), rp__attr_int(call, 1)));
}

rp_status rp__expand_weight_norm(const rp__call *call) {
    rp_tensor *v = call->in[0], *g = call->in[1];
    const rp_dtype dtype = (rp_dtype)v->dtype;
    RP_TRY(rp__call_need_float(call, dtype));
    rp_tensor *ratio = rp_div(rp__wide(g), norm_of_rest(call, rp__wide(v), 2, rp__attr_int(call, 0)));
    rp_tensor *y = rp_mul(rp__wide(v), ratio);
    return rp__give(call, rp__tensor_is_error(y) || (rp_dtype)y->dtype == dtype ? y : rp_to_dtype(y, dtype));
}

/* ---- choices */

/* Of indices of r dims those are kept that rise, in row-major order: as many as there are. */
rp_status rp__expand_combinations(const rp__call *call) {
    const rp_tensor *x = call->in[0];
    const int64_t r = rp__attr_int(call, 0);
    const bool again = rp__attr_bool(call, 1);
    if (x->ndim != 1) return rp__op_error(call, RP_ERROR_SHAPE, "elements are chosen of one dim, not of %u", x->ndim);
    if (r < 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%lld elements cannot be chosen", (long long)r);
    if (r > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_UNAVAILABLE, "at most %d elements are chosen at once, not %lld", RP_MAX_DIMS,
                            (long long)r);
    if (r == 0) return rp__give(call, rp_slice(call->in[0], 0, 0, 0, 1));
    const int64_t n = rp__dim_value(x->size[0]);
    double all = 1;
    int64_t count = n || !again ? 1 : 0; /* n (n - 1) .. (n - r + 1) / r!, every quotient on the way a whole number */
    for (int64_t k = 0; k < r; k++) all *= (double)n;
    if (all >= (double)RP__REACH_LIMIT) return rp__op_error(call, RP_ERROR_SHAPE, "the result has too many elements");
    for (int64_t k = 1; k <= r; k++) {
        const int64_t left = again ? n + k - 1 : n - k + 1;
        count = left > 0 ? count * left / k : 0;
    }
    rp_tensor *mask = NULL, *before = NULL;
    for (int64_t k = 0; k < r; k++) {
        int64_t size[RP_MAX_DIMS];
        for (int64_t d = 0; d < r; d++) size[d] = d == k ? n : 1;
        rp_tensor *place = rp_view(rp__count_beside(x, n), size, (size_t)r);
        if (before) {
            rp_tensor *rises = again ? rp_le(before, place) : rp_lt(before, place);
            mask = mask ? rp_logical_and(mask, rises) : rises;
        }
        before = place;
    }
    if (!mask) return rp__give(call, rp_clone(rp_unsqueeze(call->in[0], 1)));
    rp_tensor *index = rp_nonzero_static(mask, RP_OPTIONS(rp_nonzero_static_options, .size = rp_i64(count)));
    return rp__give(call, rp_view(rp_index_select(call->in[0], 0, rp_reshape(index, RP_DIMS(-1))), RP_DIMS(count, r)));
}

/* ---- softmax */

rp_status rp__expand_softmin(const rp__call *call) {
    return rp__give(call,
                    rp_softmax_at(call->site, rp_neg(call->in[0]), rp__attr_int(call, 0), call->attrs[1].v.dtype));
}

/* Rows that have nothing are given something, so that no NaN comes into being, in the gradient either. */
rp_status rp__expand_safe_softmax(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const int64_t dim = rp__attr_int(call, 0);
    RP_TRY(rp__call_dim(call, dim, x->ndim, &(unsigned){0}));
    rp_tensor *nothing =
        x->ndim ? rp_all(rp_eq_scalar(x, rp_f64(-INFINITY)), RP_DIMS(dim), true) : rp_eq_scalar(x, rp_f64(-INFINITY));
    rp_tensor *y = rp_softmax_at(call->site, rp_masked_fill_scalar(x, nothing, rp_i64(0)), dim, call->attrs[1].v.dtype);
    return rp__give(call, rp_masked_fill_scalar(y, nothing, rp_i64(0)));
}

/* ---- indices and parts */

rp_status rp__expand_isreal(const rp__call *call) {
    return rp__give(call, rp_ones_like(call->in[0], RP_OPTIONS(rp_ones_like_options, .dtype = RP_BOOL)));
}

rp_status rp__expand_unravel_index(const rp__call *call) {
    rp_tensor *at = call->in[0], *index[RP_MAX_DIMS];
    const rp_attr *shape = &call->attrs[0];
    rp_dim behind = 1;
    if (at->dtype == RP_BOOL || rp__dtype_is_float((rp_dtype)at->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "%s are no places", rp__dtype_title((rp_dtype)at->dtype));
    if (shape->n == 0 || shape->n > RP_MAX_DIMS || at->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a shape has 1 to %d dims, not %zu", RP_MAX_DIMS, shape->n);
    const bool empty = rp__dim_is(RP__DIM_EQ, rp__tensor_numel(at), 0);
    if (at->dtype != RP_I64) at = rp_to_dtype(at, RP_I64);
    for (size_t d = shape->n; d-- > 0;) {
        const rp_dim n = shape->v.ints[d];
        if (rp__dim_is(RP__DIM_LT, n, empty ? 0 : 1))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                empty ? "a size of shape is below 0" : "a shape without elements has no place");
        index[d] =
            empty ? at : rp_remainder_scalar(rp_floor_divide_scalar(at, rp__scalar_dim(behind)), rp__scalar_dim(n));
        if (d > 0) behind = rp__dim_apply(RP__DIM_MUL, behind, n); /* the product of all need not fit */
    }
    return rp__give(call, rp_stack(index, shape->n, -1));
}

rp_status rp__expand_chunk_cat(const rp__call *call) {
    const int64_t parts = rp__attr_int(call, 1);
    rp_tensor *out[RP__MAX_IN];
    unsigned dim;
    if (call->n_in == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "there is no tensor");
    const rp_tensor *first = call->in[0];
    if (parts < 1 || parts >= RP__REACH_LIMIT)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects a number of chunks, got num_chunks=%lld",
                            (long long)parts);
    if (first->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "expects tensors with dims");
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), first->ndim, &dim));
    if (dim + 2 > RP_MAX_DIMS) return rp__op_error(call, RP_ERROR_SHAPE, "chunks of dim %u have too many dims", dim);
    for (uint32_t k = 0; k < call->n_in; k++) {
        rp_tensor *t = call->in[k];
        rp_dim size[RP_MAX_DIMS];
        if (t->dtype != first->dtype) return rp__op_error(call, RP_ERROR_DTYPE, "tensors are of several types");
        bool good = t->ndim > dim && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(t), 0);
        for (unsigned d = 0; good && d < dim; d++) good = rp__dim_is(RP__DIM_EQ, t->size[d], first->size[d]);
        if (!good)
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "expects tensors that are not empty, with dim %u and the same sizes before it", dim);
        /* as many more places of `dim` as make the parts equal, then what lies behind in a row */
        const rp_dim n = call->in[k]->size[dim];
        const rp_dim each = rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_ADD, n, parts - 1), parts);
        const rp_dim lacks = rp__dim_apply(RP__DIM_SUB, rp__dim_apply(RP__DIM_MUL, each, parts), n);
        if (!rp__dim_is(RP__DIM_EQ, lacks, 0)) {
            memcpy(size, t->size, t->ndim * sizeof *size);
            size[dim] = lacks;
            rp_tensor *more[2] = {t, rp_expand(rp__zero_like(t), size, t->ndim)};
            t = rp_cat(more, 2, dim);
        }
        memcpy(size, first->size, dim * sizeof *size);
        size[dim] = parts;
        size[dim + 1] = -1;
        out[k] = rp_reshape(t, size, dim + 2u);
    }
    return rp__give(call, rp_cat(out, call->n_in, (int64_t)dim + 1));
}

/* ---- linear algebra */

static int64_t product(const rp_dim *size, unsigned n) {
    rp_dim all = 1;
    for (unsigned d = 0; d < n; d++) all = rp__dim_apply(RP__DIM_MUL, all, size[d]);
    return all;
}

rp_status rp__expand_linalg_tensorinv(const rp__call *call) {
    const rp_tensor *a = call->in[0];
    const int64_t ind = rp__attr_int(call, 0);
    if (ind < 1)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "ind=%lld: at least one dim lies before", (long long)ind);
    const unsigned front = ind < a->ndim ? (unsigned)ind : a->ndim, back = a->ndim - front;
    const rp_dim rows = product(a->size, front), columns = product(a->size + front, back);
    if (!rp__dim_is(RP__DIM_EQ, rows, columns))
        return rp__op_error(call, RP_ERROR_SHAPE, "there are not as many elements before ind as behind it");
    rp_dim size[RP_MAX_DIMS];
    memcpy(size, a->size + front, back * sizeof *size);
    memcpy(size + back, a->size, front * sizeof *size);
    rp_tensor *inverse = rp_linalg_inv(rp_reshape(call->in[0], RP_DIMS(rows, columns)));
    return rp__give(call, rp_reshape(inverse, size, a->ndim));
}

rp_status rp__expand_linalg_tensorsolve(const rp__call *call) {
    rp_tensor *a = call->in[0], *b = call->in[1];
    const rp_attr *dims = &call->attrs[0];
    if (dims->v.ints) {
        int64_t end[RP_MAX_DIMS];
        if (dims->n > a->ndim)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "there are more dims than self has");
        for (size_t k = 0; k < dims->n; k++) end[k] = (int64_t)a->ndim - (int64_t)dims->n + (int64_t)k;
        a = rp_movedim(a, dims->v.ints, dims->n, end, dims->n);
    }
    if (rp__tensor_is_error(a)) return rp_error_status();
    const unsigned back = a->ndim > b->ndim ? a->ndim - b->ndim : 0, front = a->ndim - back;
    const rp_dim rows = product(b->size, b->ndim), columns = product(a->size + front, back);
    if (!rp__dim_is(RP__DIM_EQ, rows, columns) || !rp__dim_is(RP__DIM_EQ, product(a->size, front), rows))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "self has not as many elements along the dims of other as along those behind");
    rp_tensor *x = rp_linalg_solve(rp_reshape(a, RP_DIMS(rows, columns)), rp_reshape(b, RP_DIMS(-1)));
    return rp__give(call, rp_reshape(x, a->size + front, back));
}

static rp_status need_square(const rp__call *call, const rp_tensor *a) {
    if (a->ndim >= 2 && rp__dim_is(RP__DIM_EQ, a->size[a->ndim - 1], a->size[a->ndim - 2])) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE, "expects square matrices");
}

rp_status rp__expand_linalg_cond(const rp__call *call) {
    rp_tensor *a = call->in[0];
    const bool given = !rp__attr_is_none(&call->attrs[0]);
    const double p = given ? rp__scalar_f64(call->attrs[0].v.scalar) : 2;
    if (a->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "a matrix has two dims, not %u", a->ndim);
    if (fabs(p) == 2) {
        rp_tensor *s = rp_linalg_svdvals(a), *most = rp_select(s, -1, 0), *least = rp_select(s, -1, -1);
        return rp__give(call, p > 0 ? rp_div(most, least) : rp_div(least, most));
    }
    RP_TRY(need_square(call, a));
    const rp_scalar ord = call->attrs[0].v.scalar;
    rp_tensor *norm = rp_linalg_matrix_norm(a, ord);
    if (rp__tensor_is_error(norm)) return rp_error_status(); /* before the inverse, which a trace has not */
    return rp__give(call, rp_mul(norm, rp_linalg_matrix_norm(rp_linalg_inv(a), ord)));
}

rp_status rp__expand_linalg_cond_str(const rp__call *call) {
    rp_tensor *a = call->in[0];
    const char *ord = call->attrs[0].v.string;
    RP_TRY(need_square(call, a));
    rp_tensor *norm = rp_linalg_matrix_norm_str(a, ord);
    if (rp__tensor_is_error(norm)) return rp_error_status();
    return rp__give(call, rp_mul(norm, rp_linalg_matrix_norm_str(rp_linalg_inv(a), ord)));
}

/* L L^T X = B, or U^T U X = B. */
static rp_tensor *solved(rp_tensor *b, rp_tensor *factor, bool upper) {
    rp_tensor *other = rp_transpose(factor, -2, -1), *lower = upper ? other : factor;
    rp_tensor *y =
        rp_linalg_solve_triangular(lower, b, RP_OPTIONS(rp_linalg_solve_triangular_options, .upper = RP_FALSE));
    return rp_linalg_solve_triangular(upper ? factor : other, y,
                                      RP_OPTIONS(rp_linalg_solve_triangular_options, .upper = RP_TRUE));
}

rp_status rp__expand_cholesky_solve(const rp__call *call) {
    if (call->in[0]->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "a matrix has two dims, not %u", call->in[0]->ndim);
    RP_TRY(need_square(call, call->in[1]));
    return rp__give(call, solved(call->in[0], call->in[1], rp__attr_bool(call, 0)));
}

rp_status rp__expand_cholesky_inverse(const rp__call *call) {
    rp_tensor *factor = call->in[0];
    RP_TRY(need_square(call, factor));
    rp_tensor *place = rp__count_beside(factor, factor->size[factor->ndim - 1u]);
    rp_tensor *one = rp_to_dtype(rp_eq(rp_unsqueeze(place, 1), place), (rp_dtype)factor->dtype);
    return rp__give(call, solved(rp_expand(one, factor->size, factor->ndim), factor, rp__attr_bool(call, 0)));
}
