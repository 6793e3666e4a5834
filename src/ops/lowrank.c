/* Singular values of what is nearly of low rank, by products with few random columns (Halko, Martinsson and Tropp, 2009). */
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* A x, or its transpose's. */
static rp_tensor *times(rp_tensor *a, rp_tensor *x, bool turned) {
    return rp_matmul(turned ? rp_transpose(a, -1, -2) : a, x);
}

/* Columns that span nearly what those of A do: each turn brings the larger singular values forward. */
static rp_tensor *basis(rp_tensor *a, int64_t q, int64_t turns) {
    if (rp__tensor_is_error(a)) return a;
    const rp_device device = a->device;
    rp_tensor *random = rp_randn(RP_DIMS(a->size[a->ndim - 1], q),
                                 RP_OPTIONS(rp_randn_options, .dtype = (rp_dtype)a->dtype, .device = &device));
    rp_tensor *columns = rp_linalg_qr(times(a, random, false));
    for (int64_t k = 0; k < turns && !rp__tensor_is_error(columns); k++) {
        columns = rp_linalg_qr(times(a, columns, true));
        columns = rp_linalg_qr(times(a, columns, false));
    }
    return columns;
}

static rp_status low_rank(const rp__call *call, rp_tensor *a, int64_t q, int64_t turns) {
    if (rp__tensor_is_error(a)) return rp_error_status();
    const bool wide = rp__dim_is(RP__DIM_LT, a->size[a->ndim - 2], a->size[a->ndim - 1]);
    if (wide) a = rp_transpose(a, -1, -2);
    rp_tensor *columns = basis(a, q, turns), *values = NULL, *right = NULL;
    rp_tensor *left = rp_linalg_svd(times(columns, a, true), false, NULL, &values, &right);
    left = rp_matmul(columns, left);
    right = rp_transpose(right, -1, -2);
    call->out[0] = wide ? right : left;
    call->out[1] = values;
    call->out[2] = wide ? left : right;
    for (unsigned k = 0; k < 3; k++)
        if (rp__tensor_is_error(call->out[k])) return rp_error_status();
    return RP_OK;
}

/* So many that no further one adds a digit: what asks for more would only never end. */
enum { MOST_TURNS = 1 << 16 };

static rp_status check(const rp__call *call, int64_t turns) {
    const rp_tensor *a = call->in[0];
    const rp_dtype d = (rp_dtype)a->dtype;
    if (d != RP_F32 && d != RP_F64) return rp__call_refuse_dtype(call, d);
    if (a->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "expects a matrix or a batch of them");
    if (turns > MOST_TURNS)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "niter=%lld is more than %d", (long long)turns,
                            MOST_TURNS);
    return RP_OK;
}

/* The smaller one of a matrix's sizes, and of q: there are no more singular values. */
static int64_t at_most(const rp_tensor *a, int64_t q) {
    for (unsigned d = 1; d < 3; d++)
        if (rp__dim_is(RP__DIM_LT, a->size[a->ndim - d], q)) q = rp__dim_value(a->size[a->ndim - d]);
    return q;
}

static rp_status refuse_count(const rp__call *call, int64_t q) {
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "a matrix has not %lld singular values (q)", (long long)q);
}

rp_status rp__expand_svd_lowrank(const rp__call *call) {
    rp_tensor *a = call->in[0], *mean = call->in[1];
    const int64_t q = rp__attr_is_none(&call->attrs[0]) ? 6 : call->attrs[0].v.i;
    const int64_t turns = rp__attr_is_none(&call->attrs[1]) ? 2 : call->attrs[1].v.i;
    RP_TRY(check(call, turns));
    if (q < 0) return refuse_count(call, q);
    if (mean) a = rp_sub(a, rp_broadcast_to(mean, a->size, a->ndim));
    return low_rank(call, a, at_most(call->in[0], q), turns);
}

rp_status rp__expand_pca_lowrank(const rp__call *call) {
    rp_tensor *a = call->in[0];
    const int64_t turns = rp__attr_int(call, 2);
    RP_TRY(check(call, turns));
    const int64_t q = rp__attr_is_none(&call->attrs[0]) ? at_most(a, 6) : call->attrs[0].v.i;
    if (q < 0 || at_most(a, q) < q) return refuse_count(call, q);
    if (turns < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "niter is a number of turns, not %lld", (long long)turns);
    if (rp__attr_bool(call, 1)) a = rp_sub(a, rp_mean(a, RP_DIMS(-2), true));
    return low_rank(call, a, q, turns);
}
