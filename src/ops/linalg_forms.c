/* Linear algebra as programs see it: batches broadcast, vectors, options and names, over the rows of linalg.c. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

static rp_status need_matrix(const rp__call *call, unsigned k) {
    const rp_tensor *t = call->in[k];
    if (t->ndim >= 2) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE, "The input tensor must have at least 2 dimensions, but it has %u",
                        t->ndim);
}

static rp_dim size_of(const rp_tensor *t, unsigned from_end) { return t->size[t->ndim - from_end]; }

static double epsilon_of(const rp_tensor *t) { return t->dtype == RP_F32 ? FLT_EPSILON : DBL_EPSILON; }

/* a and b in one batch. */
static rp_status one_batch(rp_tensor **a, rp_tensor **b) {
    rp_dim size[RP_MAX_DIMS];
    size_t n = 0;
    RP_TRY(rp__broadcast((*a)->size, (*a)->ndim - 2u, (*b)->size, (*b)->ndim - 2u, size, &n));
    for (unsigned s = 0; s < 2; s++) {
        rp_tensor **t = s ? b : a;
        if (n + 2 > RP_MAX_DIMS) return rp__fail(RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
        size[n] = size_of(*t, 2);
        size[n + 1] = size_of(*t, 1);
        *t = rp_expand(*t, size, n + 2);
        if (rp__tensor_is_error(*t)) return rp_error_status();
    }
    return RP_OK;
}

/* Is operand 1 a batch of vectors? */
static bool has_vectors(const rp_tensor *a, const rp_tensor *b) {
    bool same = b->ndim + 1u == a->ndim;
    for (unsigned d = 0; same && d < b->ndim; d++) same = rp__dim_is(RP__DIM_EQ, a->size[d], b->size[d]);
    return same || b->ndim == 1;
}

static rp_tensor *identity_beside(const rp_tensor *a) {
    rp_tensor *place = rp__count_beside(a, size_of(a, 1));
    rp_tensor *one = rp_to_dtype(rp_eq(rp_unsqueeze(place, 1), place), (rp_dtype)a->dtype);
    return rp_expand(one, a->size, a->ndim);
}

rp_status rp__expand_linalg_cholesky(const rp__call *call) {
    RP_TRY(need_matrix(call, 0));
    return rp__give(call, rp_cholesky_factor(call->in[0], rp__attr_bool(call, 0), true, NULL));
}

rp_status rp__expand_linalg_cholesky_ex(const rp__call *call) {
    RP_TRY(need_matrix(call, 0));
    return rp__give(call,
                    rp_cholesky_factor(call->in[0], rp__attr_bool(call, 0), rp__attr_bool(call, 1), &call->out[1]));
}

static rp_status square(const rp__call *call, unsigned k) {
    RP_TRY(need_matrix(call, k));
    const rp_tensor *a = call->in[k];
    if (rp__dim_is(RP__DIM_EQ, size_of(a, 1), size_of(a, 2))) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE,
                        "A must be batches of square matrices, but they are %lld by %lld matrices",
                        (long long)rp__dim_hint(size_of(a, 2)), (long long)rp__dim_hint(size_of(a, 1)));
}

enum { REFUSE, MOVE, DIVIDE }; /* singular matrices in solve_square */

/* Operands 0 and 1; info: NULL, or what says which element of the factors is zero. */
static rp_status solved(const rp__call *call, bool left, int64_t singular, rp_tensor **info) {
    rp_tensor *a = call->in[0], *b = call->in[1];
    RP_TRY(square(call, 0));
    const bool vectors = has_vectors(a, b);
    if (vectors && !left)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Vector broadcasting of the left hand side is not supported for left=False");
    if (vectors) b = rp_unsqueeze(b, -1);
    if (rp__tensor_is_error(b)) return rp_error_status();
    if (b->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "B must have at least 1 dimension");
    if (!left) {
        a = rp_transpose(a, -2, -1);
        b = rp_transpose(b, -2, -1);
    }
    RP_TRY(one_batch(&a, &b));
    rp_tensor *x = rp_solve_square(a, b, singular, info);
    if (!left) x = rp_transpose(x, -2, -1);
    return rp__give(call, vectors ? rp_squeeze(x, -1) : x);
}
rp_status rp__expand_linalg_solve(const rp__call *call) { return solved(call, rp__attr_bool(call, 0), REFUSE, NULL); }
rp_status rp__expand_linalg_solve_ex(const rp__call *call) {
    return solved(call, rp__attr_bool(call, 0), rp__attr_bool(call, 1) ? REFUSE : DIVIDE, &call->out[1]);
}

rp_status rp__expand_linalg_solve_triangular(const rp__call *call) {
    rp_tensor *a = call->in[0], *b = call->in[1];
    RP_TRY(square(call, 0));
    RP_TRY(need_matrix(call, 1));
    RP_TRY(one_batch(&a, &b));
    return rp__give(call,
                    rp_solve_triangle(a, b, rp__attr_bool(call, 0), rp__attr_bool(call, 1), rp__attr_bool(call, 2)));
}

rp_status rp__expand_linalg_inv(const rp__call *call) {
    RP_TRY(square(call, 0));
    return rp__give(call, rp_solve_square(call->in[0], identity_beside(call->in[0]), REFUSE, NULL));
}

rp_status rp__expand_linalg_inv_ex(const rp__call *call) {
    RP_TRY(square(call, 0));
    return rp__give(call, rp_solve_square(call->in[0], identity_beside(call->in[0]),
                                          rp__attr_bool(call, 0) ? REFUSE : DIVIDE, &call->out[1]));
}

/* ---- LU */

static rp_status factored(const rp__call *call, bool check, rp_tensor **lu, rp_tensor **pivots, rp_tensor **info) {
    RP_TRY(need_matrix(call, 0));
    if (!rp__attr_bool(call, 0))
        return rp__op_error(call, RP_ERROR_UNAVAILABLE,
                            "pivot must be true: on a CPU PyTorch has no LU without it either");
    *lu = rp_lu_factors(call->in[0], check, pivots, info);
    return rp__tensor_is_error(*lu) ? rp_error_status() : RP_OK;
}
rp_status rp__expand_linalg_lu_factor_ex(const rp__call *call) {
    return factored(call, rp__attr_bool(call, 1), &call->out[0], &call->out[1], &call->out[2]);
}
rp_status rp__expand_linalg_lu_factor(const rp__call *call) {
    return factored(call, true, &call->out[0], &call->out[1], NULL);
}

/* Ones where place i of the order has its row, by columns: what A is multiplied by to have its rows so, or (back) to have them back. */
static rp_tensor *permutation(rp_tensor *order, rp_dtype dtype, bool back) {
    if (rp__tensor_is_error(order)) return order;
    rp_tensor *place = rp__count_beside(order, size_of(order, 1));
    rp_tensor *one =
        back ? rp_eq(rp_unsqueeze(place, 1), rp_unsqueeze(order, -2)) : rp_eq(rp_unsqueeze(order, -1), place);
    return rp_to_dtype(one, dtype);
}
static rp_tensor *order_of(rp_tensor *pivots, rp_dim rows) { return rp_pivots_order(rp_unsqueeze(pivots, -1), rows); }

/* L (m, k) with ones on its diagonal, and U (k, n) */
static rp_tensor *lower_of(rp_tensor *lu, rp_dim k) {
    rp_tensor *l = rp_tril(rp_narrow(lu, -1, 0, k), -1);
    if (rp__tensor_is_error(l)) return l;
    rp_tensor *row = rp_unsqueeze(rp__count_beside(l, size_of(l, 2)), 1), *column = rp__count_beside(l, k);
    return rp_add(l, rp_to_dtype(rp_eq(row, column), (rp_dtype)l->dtype));
}
static rp_tensor *upper_of(rp_tensor *lu, rp_dim k) { return rp_triu(rp_narrow(lu, -2, 0, k), 0); }

static rp_status unpacked(const rp__call *call, rp_tensor *lu, rp_tensor *pivots, bool data, bool order) {
    const rp_dim m = size_of(lu, 2), n = size_of(lu, 1), k = rp__dim_is(RP__DIM_LT, m, n) ? m : n;
    const rp__meta none = {.dtype = (rp_dtype)lu->dtype, .device = lu->device, .ndim = 1};
    call->out[0] = order ? permutation(order_of(pivots, m), (rp_dtype)lu->dtype, true) : rp__zeros_of(&none);
    call->out[1] = data ? lower_of(lu, k) : rp__zeros_of(&none);
    call->out[2] = data ? upper_of(lu, k) : rp__zeros_of(&none);
    for (unsigned i = 0; i < 3; i++)
        if (rp__tensor_is_error(call->out[i])) return rp_error_status();
    return RP_OK;
}
rp_status rp__expand_linalg_lu(const rp__call *call) {
    rp_tensor *lu, *pivots;
    RP_TRY(factored(call, false, &lu, &pivots, NULL));
    return unpacked(call, lu, pivots, true, true);
}

static rp_status check_pivots(const rp__call *call, const rp_tensor *a, const rp_tensor *pivots, rp_dim k) {
    bool fits = pivots->ndim + 1u == a->ndim && rp__dim_is(RP__DIM_EQ, pivots->size[pivots->ndim - 1], k);
    if (pivots->dtype != RP_I32)
        return rp__op_error(call, RP_ERROR_DTYPE, "pivots should be a Tensor of scalar type torch.int32. Got %s",
                            rp__dtype_title((rp_dtype)pivots->dtype));
    for (unsigned d = 0; fits && d + 1u < pivots->ndim; d++) fits = rp__dim_is(RP__DIM_EQ, pivots->size[d], a->size[d]);
    return fits ? RP_OK
                : rp__op_error(call, RP_ERROR_SHAPE, "pivots should have the matrices' batch and one number a row");
}

rp_status rp__expand_lu_unpack(const rp__call *call) {
    rp_tensor *lu = call->in[0];
    RP_TRY(need_matrix(call, 0));
    const rp_dim m = size_of(lu, 2), n = size_of(lu, 1);
    if (lu->dtype != RP_F32 && lu->dtype != RP_F64) return rp__call_refuse_dtype(call, (rp_dtype)lu->dtype);
    RP_TRY(check_pivots(call, lu, call->in[1], rp__dim_is(RP__DIM_LT, m, n) ? m : n));
    return unpacked(call, lu, call->in[1], rp__attr_bool(call, 0), rp__attr_bool(call, 1));
}

/* A = P L U; its transpose is U^T L^T P^T, and X A = B is A^T X^T = B^T. */
rp_status rp__expand_linalg_lu_solve(const rp__call *call) {
    rp_tensor *lu = call->in[0], *b = call->in[2], *wide;
    const bool left = rp__attr_bool(call, 0), turned = rp__attr_bool(call, 1) == left;
    RP_TRY(square(call, 0));
    RP_TRY(need_matrix(call, 2));
    RP_TRY(check_pivots(call, lu, call->in[1], size_of(lu, 1)));
    rp_tensor *rows = permutation(order_of(call->in[1], size_of(lu, 1)), (rp_dtype)lu->dtype, turned);
    if (!left) b = rp_transpose(b, -2, -1);
    wide = lu;
    RP_TRY(one_batch(&wide, &b));
    rp_tensor *other = rp_transpose(wide, -2, -1), *x;
    if (!turned) {
        x = rp_solve_triangle(wide, rp_matmul(rows, b), false, true, true);
        x = rp_solve_triangle(wide, x, true, true, false);
    } else {
        x = rp_solve_triangle(other, b, false, true, false);
        x = rp_matmul(rows, rp_solve_triangle(other, x, true, true, true));
    }
    return rp__give(call, left ? x : rp_transpose(x, -2, -1));
}

/* ---- L D L^T, of symmetric matrices */

rp_status rp__expand_linalg_ldl_factor(const rp__call *call) {
    RP_TRY(square(call, 0));
    call->out[0] = rp_linalg_ldl_factor_ex(
        call->in[0], RP_OPTIONS(rp_linalg_ldl_factor_ex_options, .check_errors = RP_TRUE), &call->out[1], NULL);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_linalg_ldl_solve(const rp__call *call) {
    rp_tensor *ld = call->in[0], *b = call->in[2], *pivots = call->in[1];
    rp_dim size[RP_MAX_DIMS];
    RP_TRY(square(call, 0));
    RP_TRY(need_matrix(call, 2));
    RP_TRY(check_pivots(call, ld, pivots, size_of(ld, 1)));
    RP_TRY(one_batch(&ld, &b));
    for (unsigned d = 0; d + 1u < ld->ndim; d++) size[d] = ld->size[d];
    return rp__give(call, rp_ldl_solution(ld, b, rp_expand(pivots, size, ld->ndim - 1u)));
}

/* ---- products of reflections 1 - tau v v^T: 1 - V T V^T, T^-1 with 1 / tau on its diagonal and V^T V above, so that T is D (1 + S D)^-1
   with S what stands above in V^T V and D the diagonal of tau */

static rp_status reflected(const rp__call *call, rp_tensor *vectors, rp_tensor *tau, rp_tensor *c, bool transpose,
                           rp_tensor **out) {
    const rp_dim k = tau->size[tau->ndim - 1];
    rp_tensor *v = lower_of(vectors, k), *turned = rp_transpose(v, -2, -1), *scale = rp_unsqueeze(tau, -2);
    rp_tensor *between = rp_mul(rp_triu(rp_matmul(turned, v), 1), scale);
    if (rp__tensor_is_error(between)) return rp_error_status();
    rp_tensor *x = rp_matmul(turned, c), *batched = rp_add(between, identity_beside(between));
    if (rp__tensor_is_error(x) || rp__tensor_is_error(batched)) return rp_error_status();
    if (transpose) x = rp_mul(x, rp_transpose(scale, -2, -1));
    RP_TRY(one_batch(&batched, &x));
    x = transpose ? rp_solve_triangle(rp_transpose(batched, -2, -1), x, false, true, true)
                  : rp_mul(rp_solve_triangle(batched, x, true, true, true), rp_transpose(scale, -2, -1));
    *out = rp_sub(c, rp_matmul(v, x));
    (void)call;
    return rp__tensor_is_error(*out) ? rp_error_status() : RP_OK;
}

static rp_status check_reflections(const rp__call *call, const rp_tensor *v, const rp_tensor *tau) {
    bool fits = tau->ndim + 1u == v->ndim;
    for (unsigned d = 1; fits && d < 3; d++) fits = !rp__dim_is(RP__DIM_LT, size_of(v, d), tau->size[tau->ndim - 1]);
    for (unsigned d = 0; fits && d + 2u < v->ndim; d++) fits = rp__dim_is(RP__DIM_EQ, tau->size[d], v->size[d]);
    if (!fits)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "tau must have the batch of the matrices and at most as many elements as they have rows and columns");
    if (tau->dtype != v->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "tau dtype %s does not match input dtype %s",
                            rp__dtype_title((rp_dtype)tau->dtype), rp__dtype_title((rp_dtype)v->dtype));
    return v->dtype == RP_F32 || v->dtype == RP_F64 ? RP_OK : rp__call_refuse_dtype(call, (rp_dtype)v->dtype);
}

rp_status rp__expand_linalg_householder_product(const rp__call *call) {
    rp_tensor *v = call->in[0], *q;
    RP_TRY(need_matrix(call, 0));
    if (rp__dim_is(RP__DIM_LT, size_of(v, 2), size_of(v, 1)))
        return rp__op_error(call, RP_ERROR_SHAPE, "input.shape[-2] must be greater than or equal to input.shape[-1]");
    RP_TRY(check_reflections(call, v, call->in[1]));
    rp_tensor *row = rp_unsqueeze(rp__count_beside(v, size_of(v, 2)), 1);
    rp_tensor *one = rp_to_dtype(rp_eq(row, rp__count_beside(v, size_of(v, 1))), (rp_dtype)v->dtype);
    RP_TRY(reflected(call, v, call->in[1], rp_expand(one, v->size, v->ndim), false, &q));
    return rp__give(call, q);
}

rp_status rp__expand_ormqr(const rp__call *call) {
    rp_tensor *v = call->in[0], *c = call->in[2], *out;
    const bool left = rp__attr_bool(call, 0), transpose = rp__attr_bool(call, 1);
    RP_TRY(need_matrix(call, 0));
    RP_TRY(need_matrix(call, 2));
    RP_TRY(check_reflections(call, v, call->in[1]));
    if (c->dtype != v->dtype) return rp__op_error(call, RP_ERROR_DTYPE, "operands must have the same dtype");
    if (!rp__dim_is(RP__DIM_EQ, size_of(v, 2), size_of(c, left ? 2 : 1)))
        return rp__op_error(call, RP_ERROR_SHAPE, "other.shape[%s] must be equal to input.shape[-2]",
                            left ? "-2" : "-1");
    RP_TRY(reflected(call, v, call->in[1], left ? c : rp_transpose(c, -2, -1), left == transpose, &out));
    return rp__give(call, left ? out : rp_transpose(out, -2, -1));
}

rp_status rp__expand_linalg_det(const rp__call *call) {
    RP_TRY(square(call, 0));
    return rp__give(call, rp_lu_determinant(call->in[0], NULL, NULL));
}

rp_status rp__expand_linalg_slogdet(const rp__call *call) {
    RP_TRY(square(call, 0));
    (void)rp_lu_determinant(call->in[0], &call->out[0], &call->out[1]);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_linalg_qr(const rp__call *call) {
    static const char *const modes[] = {"reduced", "complete", "r"};
    const char *mode = call->attrs[0].v.string;
    RP_TRY(need_matrix(call, 0));
    for (int64_t k = 0; k < 3; k++)
        if (strcmp(mode, modes[k]) == 0) return rp__give(call, rp_qr_factors(call->in[0], k, &call->out[1]));
    return rp__op_error(
        call, RP_ERROR_INVALID_ARGUMENT,
        "qr received unrecognized mode '%s' but expected one of 'reduced' (default), 'r', or 'complete'", mode);
}

static rp_status eigen(const rp__call *call, rp_tensor *a, const char *half, rp_tensor **values, rp_tensor **vectors) {
    const char c = half[0] && !half[1] ? half[0] : 0;
    if (!strchr("LlUu", c) || !c)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Expected UPLO argument to be 'L' or 'U', but got %s",
                            half);
    *values = rp_eigen_pairs(a, c == 'U' || c == 'u', vectors);
    return rp__tensor_is_error(*values) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_linalg_eigh(const rp__call *call) {
    RP_TRY(square(call, 0));
    return eigen(call, call->in[0], call->attrs[0].v.string, &call->out[0], &call->out[1]);
}

rp_status rp__expand_linalg_eigvalsh(const rp__call *call) {
    RP_TRY(square(call, 0));
    return eigen(call, call->in[0], call->attrs[0].v.string, &call->out[0], NULL);
}

/* PyTorch's drivers are those of cuSOLVER. */
static rp_status check_driver(const rp__call *call, unsigned attr) {
    if (rp__attr_is_none(&call->attrs[attr])) return RP_OK;
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                        "keyword argument `driver=` is only supported on CUDA inputs "
                        "with cuSOLVER, which is not used");
}

static rp_tensor *singular_values(rp_tensor *a) {
    rp_tensor *values = rp__tensor_error();
    (void)rp_singular_parts(a, false, &values, NULL);
    return values;
}

rp_status rp__expand_linalg_svd(const rp__call *call) {
    RP_TRY(need_matrix(call, 0));
    RP_TRY(check_driver(call, 1));
    return rp__give(call, rp_singular_parts(call->in[0], rp__attr_bool(call, 0), &call->out[1], &call->out[2]));
}

rp_status rp__expand_linalg_svdvals(const rp__call *call) {
    RP_TRY(need_matrix(call, 0));
    RP_TRY(check_driver(call, 0));
    return rp__give(call, singular_values(call->in[0]));
}

rp_status rp__expand_linalg_lstsq(const rp__call *call) {
    rp_tensor *a = call->in[0], *b = call->in[1];
    const char *driver = call->attrs[1].v.string;
    RP_TRY(need_matrix(call, 0));
    if (!rp__attr_is_none(&call->attrs[1]) && strcmp(driver, "gelsy") != 0)
        return rp__op_error(call, RP_ERROR_UNAVAILABLE, "driver is 'gelsy', not '%s'", driver);
    const bool vectors = has_vectors(a, b);
    if (vectors) b = rp_unsqueeze(b, -1);
    if (rp__tensor_is_error(b)) return rp_error_status();
    if (b->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "input `b` must have at least 1 dimension");
    if (a->dtype != b->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected input and other to have the same dtype");
    RP_TRY(one_batch(&a, &b));
    const int64_t m = rp__dim_value(size_of(a, 2)), n = rp__dim_value(size_of(a, 1));
    const double rcond = rp__attr_is_none(&call->attrs[0]) ? epsilon_of(a) * (double)(m > n ? m : n)
                                                           : rp__scalar_f64(call->attrs[0].v.scalar);
    rp_tensor *x = rp_least_squares(a, b, rcond, &call->out[2]);
    const rp__meta none = {.dtype = (rp_dtype)a->dtype, .device = a->device, .ndim = 1};
    call->out[1] = rp__zeros_of(&none);
    call->out[3] = rp__zeros_of(&none);
    return rp__give(call, vectors ? rp_squeeze(x, -1) : x);
}

/* atol and rtol of attributes 0 and 1 for singular values of matrices like a. */
static void tolerances(const rp__call *call, const rp_tensor *a, double *atol, double *rtol) {
    const bool given[2] = {!rp__attr_is_none(&call->attrs[0]), !rp__attr_is_none(&call->attrs[1])};
    const int64_t m = rp__dim_value(size_of(a, 2)), n = rp__dim_value(size_of(a, 1));
    *atol = given[0] ? rp__scalar_f64(call->attrs[0].v.scalar) : 0;
    *rtol = given[1]    ? rp__scalar_f64(call->attrs[1].v.scalar)
            : *atol > 0 ? 0
                        : epsilon_of(a) * (double)(m > n ? m : n);
}

rp_status rp__expand_linalg_pinv(const rp__call *call) {
    double atol, rtol;
    RP_TRY(need_matrix(call, 0));
    tolerances(call, call->in[0], &atol, &rtol);
    return rp__give(call, rp_pseudo_inverse(call->in[0], atol, rtol, rp__attr_bool(call, 2)));
}

rp_status rp__expand_linalg_matrix_rank(const rp__call *call) {
    rp_tensor *a = call->in[0], *values;
    double atol, rtol;
    RP_TRY(need_matrix(call, 0));
    tolerances(call, a, &atol, &rtol);
    if (rp__attr_bool(call, 2)) {
        RP_TRY(square(call, 0));
        RP_TRY(eigen(call, rp_detach(a), "L", &values, NULL));
        values = rp_abs(values);
    } else {
        values = singular_values(rp_detach(a));
    }
    if (rp__tensor_is_error(values)) return rp_error_status();
    if (rp__dim_is(RP__DIM_EQ, size_of(values, 1), 0))
        return rp__give(call, rp_to_dtype(rp_sum(values, RP_DIMS(-1)), RP_I64));
    rp_tensor *limit =
        rp_clamp(rp_mul_scalar(rp_amax(values, RP_DIMS(-1), true), rp_f64(rtol)), rp_f64(atol), rp_none());
    return rp__give(call, rp_sum(rp_gt(values, limit), RP_DIMS(-1)));
}

rp_status rp__expand_matrix_exp(const rp__call *call) {
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    RP_TRY(square(call, 0));
    RP_TRY(rp__call_need_float(call, dtype));
    rp_tensor *y = rp_exponential_of(rp__wide(call->in[0]));
    return rp__give(call, rp__tensor_is_error(y) || (rp_dtype)y->dtype == dtype ? y : rp_to_dtype(y, dtype));
}
