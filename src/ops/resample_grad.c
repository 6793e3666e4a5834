/* Derivatives of resample.c and padding.c: each of two is that of the other. */
#include "kernel/library.h"
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_resample(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    const size_t dim = rp__attr_dim(a[0].v.i, g->in_meta[0].ndim);
    g->grad_in[0] = rp_resample_input(g->grad_out[0], a[0].v.i, g->in_meta[0].size[dim], a[2].v.i, a[3].v.b, a[4].v.f);
    return RP_OK;
}

rp_status rp__vjp_resample_nearest(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    rp_tensor *grad = g->grad_out[0];
    for (size_t k = 0; k < a[0].n; k++) {
        const size_t dim = g->in_meta[0].ndim - a[0].n + k;
        if (a[2].v.floats[k] == 0 && rp__dim_is(RP__DIM_EQ, a[0].v.ints[k], g->in_meta[0].size[dim])) continue;
        grad = rp_resample_input(grad, (int64_t)dim, g->in_meta[0].size[dim], a[1].v.i, false, a[2].v.floats[k]);
    }
    g->grad_in[0] = grad;
    return RP_OK;
}

rp_status rp__vjp_resample_input(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    const size_t dim = rp__attr_dim(a[0].v.i, g->in_meta[0].ndim);
    g->grad_in[0] = rp_resample(g->grad_out[0], a[0].v.i, g->in_meta[0].size[dim], a[2].v.i, a[3].v.b, a[4].v.f);
    return RP_OK;
}

/* Of weights (N, K, P): what grad (N, C, P) and self (N, C, S) at the places have in common, in the weights' type. */
static rp_tensor *common(rp_tensor *grad, rp_tensor *self, rp_tensor *index, rp_dtype type) {
    rp_tensor *sum[RP__MAX_TAPS];
    const unsigned taps = (unsigned)rp__dim_value(index->size[1]);
    const rp_scalar last = rp__scalar_dim(rp__dim_apply(RP__DIM_SUB, self->size[2], 1));
    grad = rp_to_dtype(grad, type);
    for (unsigned k = 0; k < taps; k++) {
        rp_tensor *i = rp_slice(index, 1, k, k + 1, 1);
        rp_tensor *at = rp_expand(rp_to_dtype(rp_clamp(i, rp_i64(0), last), RP_I64), grad->size, 3);
        rp_tensor *x = rp_to_dtype(rp_gather(self, 2, at), type);
        sum[k] =
            rp_masked_fill_scalar(rp_sum(rp_mul(grad, x), RP_DIMS(1), true), rp_lt_scalar(i, rp_i64(0)), rp_i64(0));
    }
    return rp_cat(sum, taps, 1);
}

rp_status rp__vjp_weighted_gather(const rp__vjp *g) {
    rp_tensor *const *in = g->call->in, *grad = g->grad_out[0];
    if (g->needed[0])
        g->grad_in[0] =
            rp_to_dtype(rp_weighted_scatter(grad, in[1], in[2], g->in_meta[0].size[2]), g->in_meta[0].dtype);
    if (g->needed[2]) g->grad_in[2] = common(grad, in[0], in[1], g->in_meta[2].dtype);
    return RP_OK;
}

rp_status rp__vjp_weighted_scatter(const rp__vjp *g) {
    rp_tensor *const *in = g->call->in, *grad = g->grad_out[0];
    if (g->needed[0]) g->grad_in[0] = rp_to_dtype(rp_weighted_gather(grad, in[1], in[2]), g->in_meta[0].dtype);
    if (g->needed[2]) g->grad_in[2] = common(in[0], grad, in[1], g->in_meta[2].dtype);
    return RP_OK;
}

rp_status rp__vjp_pad_edges(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    g->grad_in[0] = rp__pad_edges_input(g->grad_out[0], g->in_meta[0].size, &a[0], a[1].v.i);
    return RP_OK;
}

rp_status rp__vjp_pad_edges_input(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    g->grad_in[0] = rp_pad_edges(g->grad_out[0], a[1].v.ints, a[1].n, a[2].v.i);
    return RP_OK;
}
