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

rp_status rp__expand_linalg_solve(const rp__call *call) {
    enum { REFUSE };
    rp_tensor *a = call->in[0], *b = call->in[1];
    const bool left = rp__attr_bool(call, 0);
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
    rp_tensor *x = rp_solve_square(a, b, REFUSE);
    if (!left) x = rp_transpose(x, -2, -1);
    return rp__give(call, vectors ? rp_squeeze(x, -1) : x);
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
    return rp__give(call, rp_solve_square(call->in[0], identity_beside(call->in[0]), 0));
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
