/* Derivatives of resample.c and padding.c: each of two is that of the other. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_resample(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    const size_t dim = rp__attr_dim(a[0].v.i, g->in_meta[0].ndim);
    g->grad_in[0] = rp_resample_input(g->grad_out[0], a[0].v.i, g->in_meta[0].size[dim], a[2].v.i, a[3].v.b, a[4].v.f);
    return RP_OK;
}

rp_status rp__vjp_resample_input(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    const size_t dim = rp__attr_dim(a[0].v.i, g->in_meta[0].ndim);
    g->grad_in[0] = rp_resample(g->grad_out[0], a[0].v.i, g->in_meta[0].size[dim], a[2].v.i, a[3].v.b, a[4].v.f);
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
