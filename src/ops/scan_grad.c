/* Derivatives of scan.c. */
#include <string.h>

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

enum { TOGETHER = 8 };
/* s[k] = sum[k] + factor[k] s[k + 1], and behind the last 0. As many neighbours as stand TOGETHER are one first, whose own s is found in the
   same way, and then each of them; what is left over at the end are zeros. So the work is a few times that of one pass, and how many steps there are is
   the graph. */
static rp_tensor *recurrence(rp_tensor *sum, rp_tensor *factor, int64_t dim) {
    const int64_t n = rp__dim_value(sum->size[dim]), each = n < TOGETHER ? n : TOGETHER, over = n % each;
    rp_tensor *s[TOGETHER], *f[TOGETHER], *part[TOGETHER];
    if (over) {
        rp_dim size[RP_MAX_DIMS];
        memcpy(size, sum->size, sum->ndim * sizeof *size);
        size[dim] = each - over;
        rp_tensor *zeros = rp_zeros_like(rp_expand(rp_slice(sum, dim, 0, 1), size, sum->ndim, NULL));
        sum = rp_cat(RP_TENSORS(sum, zeros), dim), factor = rp_cat(RP_TENSORS(factor, zeros), dim);
    }
    const int64_t whole = n + (over ? each - over : 0);
    for (int64_t k = 0; k < each; k++) {
        s[k] = rp_slice(sum, dim, k, whole, each);
        f[k] = rp_slice(factor, dim, k, whole, each);
    }
    rp_tensor *next = NULL;
    if (whole > each) {
        rp_tensor *all = s[each - 1], *through = f[each - 1];
        for (int64_t k = each - 2; k >= 0; k--) {
            all = rp_add(s[k], rp_mul(f[k], all));
            through = rp_mul(f[k], through);
        }
        next = shift(recurrence(all, through, dim), dim, -1, 0.0);
    }
    for (int64_t k = each - 1; k >= 0; k--) {
        part[k] = next ? rp_add(s[k], rp_mul(f[k], next)) : s[k];
        next = part[k];
    }
    rp_tensor *out = rp_flatten(rp_stack(part, (size_t)each, dim + 1), dim, dim + 1);
    return over ? rp_slice(out, dim, 0, n) : out;
}

/* Of element k the sum over i >= k of grad[i] times the product of all elements up to i but k: the product of those before k, times
   what lies behind, which is s[k] = grad[k] + x[k + 1] s[k + 1]. Products and sums alone, so that all derivatives are right at zeros
   too, and have the same bits with and without a graph. */
static rp_tensor *cumprod_slopes(rp_tensor *x, rp_tensor *y, rp_tensor *grad, int64_t dim) {
    return rp_mul(shift(y, dim, 1, 1.0), recurrence(grad, shift(x, dim, -1, 0.0), dim));
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
