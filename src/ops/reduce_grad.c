/* Derivatives of reduce.c: reductions give their gradient back along the dims that they took away. */
#include <math.h>

#include "ops/grad.h"
#include "ops/private.h"

/* A norm has its order before the dims, a variance its correction behind them. */
static bool has_order(const rp__call *call) { return call->attrs[0].kind == RP_ATTR_SCALAR; }
static const rp_attr *dims_attr(const rp__call *call) {
    static const rp_attr all = {.kind = RP_ATTR_INTS};
    return call->n_attrs == 0 ? &all : &call->attrs[has_order(call)];
}
static bool keeps_dims(const rp__call *call) {
    if (call->n_attrs == 0) return false;
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
    g->grad_in[0] = rp_div_scalar(expand_to_input(g, g->grad_out[0]), rp_i64(count));
    return RP_OK;
}

/* grad where an element is the value that was found, shared evenly among those that are. */
static rp_tensor *share(const rp__vjp *g, rp_tensor *grad, rp_tensor *value) {
    size_t dims[RP_MAX_DIMS + 1], n = reduced_dims(g, dims);
    int64_t over[RP_MAX_DIMS];
    for (size_t i = 0; i < n; i++) over[i] = (int64_t)dims[i];
    rp_tensor *mask = rp_eq(g->call->in[0], restore_dims(g, value));
    return rp_div(rp_mul(restore_dims(g, grad), mask), rp_sum(mask, over, n, true));
}
rp_status rp__vjp_amax(const rp__vjp *g) {
    g->grad_in[0] = share(g, g->grad_out[0], g->call->out[0]);
    return RP_OK;
}
rp_status rp__vjp_aminmax(const rp__vjp *g) {
    for (unsigned k = 0; k < 2; k++) {
        if (!g->grad_out[k]) continue;
        rp_tensor *part = share(g, g->grad_out[k], g->call->out[k]);
        g->grad_in[0] = g->grad_in[0] ? rp_add(g->grad_in[0], part) : part;
    }
    return RP_OK;
}

/* grad at the place that was found along dim, 0 elsewhere. */
rp_status rp__vjp_max_dim(const rp__vjp *g) {
    const rp__meta *in = &g->in_meta[0];
    if (!g->grad_out[0]) return RP_OK;
    g->grad_in[0] = g->grad_out[0];
    if (in->ndim == 0) return RP_OK;
    const size_t dim = rp__attr_dim(rp__attr_int(g->call, 0), in->ndim);
    rp_dim size[RP_MAX_DIMS];
    for (size_t d = 0; d < in->ndim; d++) size[d] = d == dim ? in->size[d] : 1;
    rp_tensor *grad = restore_dims(g, g->grad_out[0]), *place = restore_dims(g, g->call->out[1]);
    rp_tensor *numbers = rp_view(rp__count_beside(grad, in->size[dim]), size, in->ndim);
    g->grad_in[0] = rp_where(rp_eq(numbers, place), grad, rp__zero_like(grad));
    return RP_OK;
}

rp_status rp__vjp_prod(const rp__vjp *g) {
    rp_tensor *slope = rp_prod_others(rp__wide(g->call->in[0]), rp__attr_int(g->call, 0));
    g->grad_in[0] = rp_mul(restore_dims(g, g->grad_out[0]), slope);
    return RP_OK;
}

/* A tensor and how it changes, both from the start on along a dim: x + e dx of which e squared is nothing. */
typedef struct dual {
    rp_tensor *x, *dx;
} dual;
static dual dual_mul(dual a, dual b) { return (dual){rp_mul(a.x, b.x), rp_add(rp_mul(a.dx, b.x), rp_mul(a.x, b.dx))}; }
static dual dual_slice(dual a, int64_t dim, int64_t start, int64_t end) {
    return (dual){rp_slice(a.x, dim, start, end), rp_slice(a.dx, dim, start, end)};
}
static dual dual_cat(dual a, dual b, int64_t dim) {
    rp_tensor *x[] = {a.x, b.x}, *dx[] = {a.dx, b.dx};
    return (dual){rp_cat(x, 2, dim), rp_cat(dx, 2, dim)};
}

/* The products of the others and how they change: the two halves of a row are multiplied with each other, and what an element of
   that shorter row has of others is, times one of the two, what the other has. Products and sums alone: zeros are nothing special,
   and all further derivatives are right. */
static dual dual_others(dual a, int64_t dim) {
    const int64_t n = rp__dim_value(a.x->size[dim]), half = (n + 1) / 2; /* how often it halves is the graph */
    if (n == 0) return a;
    if (n == 1) return (dual){rp_fill(a.x, rp_i64(1)), rp_fill(a.dx, rp_i64(0))};
    dual low = dual_slice(a, dim, 0, half), high = dual_slice(a, dim, half, n);
    if (n % 2) {
        dual one = dual_slice(a, dim, 0, 1);
        high = dual_cat(high, (dual){rp_fill(one.x, rp_i64(1)), rp_fill(one.dx, rp_i64(0))}, dim);
    }
    dual rest = dual_others(dual_mul(low, high), dim);
    return dual_cat(dual_mul(rest, high), dual_slice(dual_mul(rest, low), dim, 0, n - half), dim);
}

/* The second derivatives of a product are symmetric: how the slopes change along grad_out is the gradient. */
rp_status rp__vjp_prod_others(const rp__vjp *g) {
    dual at = {g->call->in[0], g->grad_out[0]};
    const rp_tensor *x = at.x;
    if (rp__attr_is_none(&g->call->attrs[0]) || x->ndim == 0) {
        at = (dual){rp_flatten(at.x), rp_flatten(at.dx)};
        g->grad_in[0] = rp_reshape(dual_others(at, 0).dx, x->size, x->ndim);
    } else {
        g->grad_in[0] = dual_others(at, (int64_t)rp__attr_dim(rp__attr_int(g->call, 0), x->ndim)).dx;
    }
    return RP_OK;
}

/* What the gradients of the variance and, if there is one, of the mean give. */
static rp_status vjp_variance(const rp__vjp *g, rp_tensor *grad, rp_tensor *of_mean) {
    size_t dims[RP_MAX_DIMS + 1], n = reduced_dims(g, dims);
    int64_t over[RP_MAX_DIMS];
    rp_dim count = 1;
    for (size_t i = 0; i < n; i++) {
        over[i] = (int64_t)dims[i];
        count = rp__dim_apply(RP__DIM_MUL, count, g->in_meta[0].size[dims[i]]);
    }
    if (of_mean) g->grad_in[0] = rp_div_scalar(expand_to_input(g, of_mean), rp_i64(count));
    if (!grad) return RP_OK;
    const rp_attr *given = &g->call->attrs[1];
    rp_scalar c = rp__attr_is_none(given) ? rp_i64(1) : given->v.scalar;
    rp_tensor *x = rp__wide(g->call->in[0]);
    rp_tensor *twice = rp_mul_scalar(rp_sub(x, rp_mean(x, over, n, true)), rp_i64(2));
    rp_scalar freedom = rp__num_apply(RP__NUM_SUB, rp__scalar_dim(count), c);
    rp_tensor *slope = rp_div_scalar(twice, freedom);
    rp_tensor *part = rp_mul(restore_dims(g, grad), slope);
    g->grad_in[0] = of_mean ? rp_add(g->grad_in[0], part) : part;
    return RP_OK;
}
rp_status rp__vjp_var(const rp__vjp *g) { return vjp_variance(g, g->grad_out[0], NULL); }
/* Of rows without variance it is 0. */
static rp_tensor *of_square(const rp__vjp *g) {
    if (!g->grad_out[0]) return NULL;
    rp_tensor *y = rp__wide(g->call->out[0]), *part = rp_div(g->grad_out[0], rp_mul_scalar(y, rp_i64(2)));
    return rp_where(rp_eq_scalar(y, rp_i64(0)), rp__zero_like(part), part);
}
rp_status rp__vjp_std(const rp__vjp *g) { return vjp_variance(g, of_square(g), NULL); }
rp_status rp__vjp_var_mean(const rp__vjp *g) { return vjp_variance(g, g->grad_out[0], g->grad_out[1]); }
rp_status rp__vjp_std_mean(const rp__vjp *g) { return vjp_variance(g, of_square(g), g->grad_out[1]); }

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
