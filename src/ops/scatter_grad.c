/* Derivatives of scatter.c. src may be larger than index, whose elements are the first along each dim: the rest has no gradient. */
#include "ops/grad.h"
#include "ops/private.h"

/* The elements of src that are scattered, for an index of one dim or more. */
static rp_tensor *scattered(rp_tensor *src, const rp_tensor *index) {
    if (src->ndim == 0 || index->ndim == 0) return rp_reshape(src, index->size, index->ndim);
    for (size_t d = 0; d < index->ndim && !rp__tensor_is_error(src); d++)
        if (!rp__dim_is(RP__DIM_EQ, src->size[d], index->size[d]))
            src = rp_slice(src, (int64_t)d, 0, index->size[d], 1);
    return src;
}

rp_status rp__vjp_scatter_set(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0], *index = g->call->in[1];
    const int64_t dim = rp__attr_int(g->call, 0);
    if (g->needed[0]) g->grad_in[0] = rp_scatter_scalar(grad, dim, index, rp_i64(0), NULL);
    if (g->needed[2]) g->grad_in[2] = rp__fill_up(rp_gather(grad, dim, index), &g->in_meta[2]);
    return RP_OK;
}

/* A largest value shares its gradient with its equals. */
rp_status rp__vjp_scatter_best(const rp__vjp *g) {
    rp_tensor *const *in = g->call->in, *best = g->call->out[0], *index = in[1];
    const int64_t dim = rp__attr_int(g->call, 0);
    const rp_dtype dtype = g->in_meta[0].dtype;
    rp_tensor *src = scattered(in[2], index);
    rp_tensor *self_is = rp_to_dtype(rp_eq(in[0], best), dtype);
    rp_tensor *src_is = rp_to_dtype(rp_eq(src, rp_gather(best, dim, index)), dtype);
    rp_tensor *share = rp_div(g->grad_out[0], rp_scatter_add(self_is, dim, index, src_is));
    if (g->needed[0]) g->grad_in[0] = rp_mul(self_is, share);
    if (g->needed[2]) g->grad_in[2] = rp__fill_up(rp_mul(src_is, rp_gather(share, dim, index)), &g->in_meta[2]);
    return RP_OK;
}

/* The product of all other factors: the product divided by the factor, or, of a factor that is zero, the product with it as one. */
rp_status rp__vjp_scatter_mul(const rp__vjp *g) {
    rp_tensor *const *in = g->call->in, *grad = g->grad_out[0], *self = in[0], *index = in[1];
    const int64_t dim = rp__attr_int(g->call, 0);
    const rp_dtype dtype = g->in_meta[0].dtype;
    rp_tensor *src = scattered(in[2], index);
    const rp_scalar one = rp_i64(1), none = rp_i64(0);
    if (g->needed[0]) {
        rp_tensor *factor = rp_masked_fill_scalar(self, rp_eq_scalar(self, none), one);
        rp_tensor *product = rp_scatter_mul(factor, dim, index, src);
        g->grad_in[0] = rp_div(rp_mul(grad, product), factor);
    }
    if (g->needed[2]) {
        rp_tensor *zero = rp_eq_scalar(src, none);
        rp_tensor *zeros = rp_scatter_add(rp__zeros_of(&g->in_meta[0]), dim, index, rp_to_dtype(zero, dtype));
        rp_tensor *only = rp_logical_and(zero, rp_eq_scalar(rp_gather(zeros, dim, index), one));
        rp_tensor *without = rp_scatter_mul(self, dim, index, rp_masked_fill_scalar(src, only, one));
        rp_tensor *through =
            rp_div(rp_gather(rp_mul(grad, g->call->out[0]), dim, index), rp_masked_fill_scalar(src, zero, one));
        rp_tensor *of_src = rp_where(only, rp_gather(rp_mul(grad, without), dim, index), through);
        g->grad_in[2] = rp__fill_up(of_src, &g->in_meta[2]);
    }
    return RP_OK;
}
