/* Derivatives of scan.c. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_cumsum(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0];
    if (g->out_meta[0].dtype != g->in_meta[0].dtype) grad = rp_to_dtype(grad, g->in_meta[0].dtype);
    g->grad_in[0] = rp_cumsum_reversed(grad, rp__attr_int(g->call, 0));
    return RP_OK;
}

rp_status rp__vjp_cumsum_reversed(const rp__vjp *g) {
    g->grad_in[0] = rp_cumsum(g->grad_out[0], rp__attr_int(g->call, 0));
    return RP_OK;
}

/* t moved by n places along dim, `value` where nothing comes from; n > 0: towards the end. */
static rp_tensor *shift(rp_tensor *t, int64_t dim, int64_t n, double value) {
    const int64_t size = rp__dim_value(t->size[dim]), by = n > 0 ? n : -n;
    rp_tensor *kept = n > 0 ? rp_slice(t, dim, 0, size - by) : rp_slice(t, dim, by, size);
    rp_tensor *fresh = rp_fill(rp_slice(t, dim, 0, by), rp_f64(value));
    rp_tensor *parts[2] = {n > 0 ? fresh : kept, n > 0 ? kept : fresh};
    return rp_cat(parts, 2, dim);
}

/* Of element k the sum over i >= k of grad[i] times the product of all elements up to i but k: the product of those before k, times
   what lies behind, which is s[k] = grad[k] + x[k + 1] s[k + 1]. Steps of 1, 2, 4, ... join neighbours: products and sums alone, so
   that all derivatives are right at zeros too, and have the same bits with and without a graph. How many steps there are is the
   graph. */
static rp_tensor *cumprod_slopes(rp_tensor *x, rp_tensor *y, rp_tensor *grad, int64_t dim) {
    const int64_t n = rp__dim_value(x->size[dim]);
    rp_tensor *before = shift(y, dim, 1, 1.0), *factor = shift(x, dim, -1, 0.0), *sum = grad;
    for (int64_t by = 1; by < n; by *= 2) {
        sum = rp_add(sum, rp_mul(factor, shift(sum, dim, -by, 0.0)));
        if (by * 2 < n) factor = rp_mul(factor, shift(factor, dim, -by, 0.0));
    }
    return rp_mul(before, sum);
}

rp_status rp__vjp_cumprod(const rp__vjp *g) {
    rp_tensor *x = g->call->in[0], *y = rp__wide(g->call->out[0]), *grad = rp__wide(g->grad_out[0]);
    const int64_t dim = x->ndim == 0 ? 0 : (int64_t)rp__attr_dim(rp__attr_int(g->call, 0), x->ndim);
    if (x->ndim == 0 || rp__dim_is(RP__DIM_EQ, x->size[dim], 0)) {
        g->grad_in[0] = g->grad_out[0];
        return RP_OK;
    }
    if (x->dtype != y->dtype) x = rp_to_dtype(x, (rp_dtype)y->dtype);
    g->grad_in[0] = cumprod_slopes(x, y, grad, dim);
    return RP_OK;
}

rp_status rp__vjp_cummax(const rp__vjp *g) {
    if (!g->grad_out[0]) return RP_OK;
    rp_tensor *zeros = rp__zeros_of(&g->in_meta[0]);
    g->grad_in[0] = rp_scatter_add(zeros, rp__attr_int(g->call, 0), g->call->out[1], g->grad_out[0]);
    return RP_OK;
}

/* Element k counts in the sums from k on, each time as e ** (x[k] - y[i]). */
rp_status rp__vjp_logcumsumexp(const rp__vjp *g) {
    rp_tensor *x = rp__wide(g->call->in[0]), *y = rp__wide(g->call->out[0]), *grad = rp__wide(g->grad_out[0]);
    g->grad_in[0] = rp_exp_scan(grad, rp_neg(y), x, rp__attr_int(g->call, 0), true);
    return RP_OK;
}

/* Transposed, a sum from k on is a sum up to k, with `of` and `at` exchanged. */
rp_status rp__vjp_exp_scan(const rp__vjp *g) {
    const rp__call *c = g->call;
    rp_tensor *weight = rp_exp_scan(g->grad_out[0], c->in[2], c->in[1], rp__attr_int(c, 0), !rp__attr_bool(c, 1));
    g->grad_in[0] = weight;
    if (g->needed[1]) g->grad_in[1] = rp_mul(c->in[0], weight);
    if (g->needed[2]) g->grad_in[2] = rp_mul(g->grad_out[0], c->out[0]);
    return RP_OK;
}
