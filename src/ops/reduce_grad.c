/* Derivatives of reduce.c: reductions give their gradient back along the dims that they took away. */
#include <math.h>

#include "ops/grad.h"
#include "ops/private.h"

/* A norm has its order before the dims, a variance its correction behind them. */
static bool has_order(const rp__call *call) { return call->attrs[0].kind == RP_ATTR_SCALAR; }
static const rp_attr *dims_attr(const rp__call *call) { return &call->attrs[has_order(call)]; }
static bool keeps_dims(const rp__call *call) {
    return rp__attr_bool(call, call->attrs[1].kind == RP_ATTR_BOOL ? 1 : 2);
}

/* The dims that a reduction with attribute 0 `dim` took away, rising. */
static size_t reduced_dims(const rp__vjp *g, size_t *dims) {
    const rp_attr *given = dims_attr(g->call), *attr = given;
    const rp_attr one = {
        .kind = RP_ATTR_INTS, .n = given->kind == RP_ATTR_INT && !rp__attr_is_none(given), .v.ints = &given->v.i};
    if (given->kind == RP_ATTR_INT) attr = &one;
    size_t ndim = g->in_meta[0].ndim, n = 0;
    bool take[RP_MAX_DIMS] = {false};
    for (size_t i = 0; i < attr->n; i++) take[rp__attr_dim(attr->v.ints[i], ndim)] = true;
    for (size_t d = 0; d < ndim; d++)
        if (attr->n == 0 || take[d]) dims[n++] = d;
    return n;
}

/* t of the reduction's output size, with the dims that keepdim=False dropped back as size 1. */
static rp_tensor *restore_dims(const rp__vjp *g, rp_tensor *t) {
    size_t dims[RP_MAX_DIMS + 1], n = reduced_dims(g, dims);
    if (keeps_dims(g->call) || n == g->in_meta[0].ndim) return t; /* 0-d broadcasts as it is */
    for (size_t i = 0; i < n; i++) t = rp_unsqueeze(t, (int64_t)dims[i]);
    return t;
}

static rp_tensor *expand_to_input(const rp__vjp *g, rp_tensor *t) {
    t = restore_dims(g, t);
    return g->in_meta[0].ndim > 0 ? rp_expand(t, g->in_meta[0].size, g->in_meta[0].ndim) : t;
}

rp_status rp__vjp_sum(const rp__vjp *g) {
    g->grad_in[0] = expand_to_input(g, g->grad_out[0]);
    return RP_OK;
}

rp_status rp__vjp_mean(const rp__vjp *g) {
    size_t dims[RP_MAX_DIMS + 1], n = reduced_dims(g, dims);
    rp_dim count = 1;
    for (size_t i = 0; i < n; i++) count = rp__dim_apply(RP__DIM_MUL, count, g->in_meta[0].size[dims[i]]);
    /* Divided last, as PyTorch does: the gradient has memory of its own, where that of sum is an expanded view. */
    g->grad_in[0] = rp_div_size(expand_to_input(g, g->grad_out[0]), count);
    return RP_OK;
}

rp_status rp__vjp_amax(const rp__vjp *g) {
    size_t dims[RP_MAX_DIMS + 1], n = reduced_dims(g, dims);
    int64_t over[RP_MAX_DIMS];
    for (size_t i = 0; i < n; i++) over[i] = (int64_t)dims[i];
    rp_tensor *self = g->call->in[0];
    rp_tensor *mask = rp_eq(self, restore_dims(g, g->call->out[0]));
    rp_tensor *count = rp_sum(mask, over, n, true);
    g->grad_in[0] = rp_div(rp_mul(restore_dims(g, g->grad_out[0]), mask), count);
    return RP_OK;
}

/* prod / x; where there are zeros, the product of the others at the only one and 0 elsewhere. */
rp_status rp__vjp_prod(const rp__vjp *g) {
    rp_tensor *x = rp__wide(g->call->in[0]), *zero = rp__zero_like(x);
    int64_t dim = rp__attr_int(g->call, 0);
    bool all = rp__attr_is_none(&g->call->attrs[0]);
    rp_tensor *is_zero = rp_eq_scalar(x, rp_i64(0)), *safe = rp_where(is_zero, rp_fill(zero, rp_i64(1)), x);
    rp_tensor *others = rp_prod(safe, dim, true), *zeros = rp_sum(is_zero, &dim, all ? 0 : 1, true);
    rp_tensor *at_zero = rp_where(rp_eq_scalar(zeros, rp_i64(1)), others, zero);
    rp_tensor *elsewhere = rp_where(rp_eq_scalar(zeros, rp_i64(0)), rp_div(others, safe), zero);
    g->grad_in[0] = rp_mul(restore_dims(g, g->grad_out[0]), rp_where(is_zero, at_zero, elsewhere));
    return RP_OK;
}

static rp_status vjp_variance(const rp__vjp *g, rp_tensor *grad) {
    size_t dims[RP_MAX_DIMS + 1], n = reduced_dims(g, dims);
    int64_t over[RP_MAX_DIMS];
    rp_dim count = 1;
    for (size_t i = 0; i < n; i++) {
        over[i] = (int64_t)dims[i];
        count = rp__dim_apply(RP__DIM_MUL, count, g->in_meta[0].size[dims[i]]);
    }
    const rp_attr *given = &g->call->attrs[1];
    rp_scalar c = rp__attr_is_none(given) ? rp_i64(1) : given->v.scalar;
    rp_tensor *x = rp__wide(g->call->in[0]);
    rp_tensor *twice = rp_mul_scalar(rp_sub(x, rp_mean(x, over, n, true)), rp_i64(2));
    rp_tensor *slope = c.kind == RP_SCALAR_I64
                           ? rp_div_size(twice, rp__dim_apply(RP__DIM_SUB, count, c.v.i))
                           : rp_div_scalar(twice, rp_f64((double)rp__dim_value(count) - rp__scalar_f64(c)));
    g->grad_in[0] = rp_mul(restore_dims(g, grad), slope);
    return RP_OK;
}
rp_status rp__vjp_var(const rp__vjp *g) { return vjp_variance(g, g->grad_out[0]); }
/* Of rows without variance it is 0. */
rp_status rp__vjp_std(const rp__vjp *g) {
    rp_tensor *y = rp__wide(g->call->out[0]), *part = rp_div(g->grad_out[0], rp_mul_scalar(y, rp_i64(2)));
    return vjp_variance(g, rp_where(rp_eq_scalar(y, rp_i64(0)), rp__zero_like(part), part));
}

rp_status rp__vjp_nansum(const rp__vjp *g) {
    rp_tensor *grad = expand_to_input(g, g->grad_out[0]);
    g->grad_in[0] = rp_where(rp_isnan(g->call->in[0]), rp__zero_like(grad), grad);
    return RP_OK;
}

rp_status rp__vjp_logsumexp(const rp__vjp *g) {
    rp_tensor *share = rp_exp(rp_sub(rp__wide(g->call->in[0]), restore_dims(g, rp__wide(g->call->out[0]))));
    g->grad_in[0] = rp_mul(restore_dims(g, g->grad_out[0]), share);
    return RP_OK;
}

/* Where |x| is the result, shared among ties, of inf and -inf; else sign(x) |x / y| ** (p - 1), 0 where y is 0. */
rp_status rp__vjp_linalg_vector_norm(const rp__vjp *g) {
    const double p = rp__scalar_f64(g->call->attrs[0].v.scalar);
    rp_tensor *x = rp__wide(g->call->in[0]), *y = restore_dims(g, rp__wide(g->call->out[0]));
    rp_tensor *grad = restore_dims(g, g->grad_out[0]), *size = rp_abs(x), *zero = rp__zero_like(x);
    if (p == 0) return rp__vjp_zero(g);
    rp_tensor *slope = rp_sign(x);
    if (isinf(p)) {
        size_t dims[RP_MAX_DIMS + 1], n = reduced_dims(g, dims);
        int64_t over[RP_MAX_DIMS];
        for (size_t i = 0; i < n; i++) over[i] = (int64_t)dims[i];
        rp_tensor *is = rp_eq(size, y);
        slope = rp_where(is, rp_div(slope, rp_sum(is, over, n, true)), zero);
    } else if (p == 2) {
        slope = rp_where(rp_eq_scalar(y, rp_i64(0)), zero, rp_div(x, y));
    } else if (p != 1) {
        rp_tensor *part = rp_mul(slope, rp_pow_scalar(rp_div(size, y), rp_f64(p - 1)));
        slope = rp_where(rp_logical_or(rp_eq_scalar(y, rp_i64(0)), rp_eq_scalar(x, rp_i64(0))), zero, part);
    }
    g->grad_in[0] = rp_mul(grad, slope);
    return RP_OK;
}
