/* Derivatives of view.c: the way back through a view, and the scatters that put a part into a whole. */
#include "ops/grad.h"

#include "ops/private.h"

rp_status rp__vjp_view(const rp__vjp *g) {
    g->grad_in[0] = rp_reshape(g->grad_out[0], g->in_meta[0].size, g->in_meta[0].ndim);
    return RP_OK;
}

rp_status rp__vjp_permute(const rp__vjp *g) {
    const rp_attr *dims = &g->call->attrs[0];
    int64_t back[RP_MAX_DIMS];
    for (size_t k = 0; k < dims->n; k++) back[rp__attr_dim(dims->v.ints[k], dims->n)] = (int64_t)k;
    g->grad_in[0] = rp_permute(g->grad_out[0], back, dims->n);
    return RP_OK;
}

rp_status rp__vjp_transpose(const rp__vjp *g) {
    g->grad_in[0] = rp_transpose(g->grad_out[0], rp__attr_int(g->call, 0), rp__attr_int(g->call, 1));
    return RP_OK;
}

rp_status rp__vjp_expand(const rp__vjp *g) {
    g->grad_in[0] = g->grad_out[0]; /* summed by rp__grad_run */
    return RP_OK;
}

rp_status rp__vjp_slice(const rp__vjp *g) {
    const rp__call *c = g->call;
    g->grad_in[0] = rp_slice_scatter(rp__zeros_expanded(&g->in_meta[0]), g->grad_out[0], rp__attr_int(c, 0),
                                     rp__attr_int(c, 1), rp__attr_int(c, 2), rp__attr_int(c, 3));
    return RP_OK;
}

rp_status rp__vjp_select(const rp__vjp *g) {
    g->grad_in[0] = rp_select_scatter(rp__zeros_expanded(&g->in_meta[0]), g->grad_out[0], rp__attr_int(g->call, 0),
                                      rp__attr_int(g->call, 1));
    return RP_OK;
}

rp_status rp__vjp_unsqueeze(const rp__vjp *g) {
    g->grad_in[0] = rp_squeeze(g->grad_out[0], rp__attr_int(g->call, 0));
    return RP_OK;
}

rp_status rp__vjp_squeeze(const rp__vjp *g) {
    const rp__meta *in = &g->in_meta[0];
    size_t dim = rp__attr_dim(rp__attr_int(g->call, 0), in->ndim);
    bool removed = g->grad_out[0]->ndim < in->ndim;
    g->grad_in[0] = removed ? rp_unsqueeze(g->grad_out[0], (int64_t)dim) : g->grad_out[0];
    return RP_OK;
}

rp_status rp__vjp_slice_scatter(const rp__vjp *g) {
    const rp__call *c = g->call;
    int64_t dim = rp__attr_int(c, 0), start = rp__attr_int(c, 1), end = rp__attr_int(c, 2), step = rp__attr_int(c, 3);
    if (g->needed[0])
        g->grad_in[0] = rp_slice_scatter(g->grad_out[0], rp__zeros_expanded(&g->in_meta[1]), dim, start, end, step);
    if (g->needed[1]) g->grad_in[1] = rp_slice(g->grad_out[0], dim, start, end, step);
    return RP_OK;
}

rp_status rp__vjp_select_scatter(const rp__vjp *g) {
    int64_t dim = rp__attr_int(g->call, 0), index = rp__attr_int(g->call, 1);
    if (g->needed[0]) g->grad_in[0] = rp_select_scatter(g->grad_out[0], rp__zeros_expanded(&g->in_meta[1]), dim, index);
    if (g->needed[1]) g->grad_in[1] = rp_select(g->grad_out[0], dim, index);
    return RP_OK;
}
