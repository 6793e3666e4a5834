/* Derivatives of pool.c. Those of the gradients are what was read forward again. */
#include <string.h>

#include "ops/grad.h"

#define INTS(k) a[k].v.ints, a[k].n

rp_status rp__vjp_max_pool2d_with_indices(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    if (g->grad_out[0])
        g->grad_in[0] = rp_max_pool2d_input(g->grad_out[0], g->call->out[1], g->in_meta[0].size, g->in_meta[0].ndim,
                                            INTS(0), INTS(1), INTS(2), INTS(3), a[4].v.b);
    return RP_OK;
}

/* Each output takes back what lies at its index. */
rp_status rp__vjp_max_pool2d_input(const rp__vjp *g) {
    const rp__meta *grad = &g->in_meta[0], *in = &g->out_meta[0];
    const unsigned n = grad->ndim;
    rp_dim from[RP_MAX_DIMS], to[RP_MAX_DIMS];
    memcpy(from, in->size, (n - 2) * sizeof *from);
    memcpy(to, grad->size, (n - 2) * sizeof *to);
    from[n - 2] = rp__dim_apply(RP__DIM_MUL, in->size[n - 2], in->size[n - 1]);
    to[n - 2] = rp__dim_apply(RP__DIM_MUL, grad->size[n - 2], grad->size[n - 1]);
    rp_tensor *planes = rp_reshape(g->grad_out[0], from, n - 1), *indices = rp_reshape(g->call->in[1], to, n - 1);
    g->grad_in[0] = rp_reshape(rp_gather(planes, -1, indices), grad->size, n);
    return RP_OK;
}

rp_status rp__vjp_avg_pool2d(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    g->grad_in[0] = rp_avg_pool2d_input(g->grad_out[0], g->in_meta[0].size, g->in_meta[0].ndim, INTS(0), INTS(1),
                                        INTS(2), a[3].v.b, a[4].v.b, a[5].v.i);
    return RP_OK;
}

rp_status rp__vjp_avg_pool2d_input(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    g->grad_in[0] = rp_avg_pool2d(g->grad_out[0], INTS(1), INTS(2), INTS(3), a[4].v.b, a[5].v.b, a[6].v.i);
    return RP_OK;
}

/* What was padded is cut off, what was cut off is zero. */
rp_status rp__vjp_constant_pad_nd(const rp__vjp *g) {
    const rp_attr *pad = &g->call->attrs[0];
    int64_t back[2 * RP_MAX_DIMS];
    for (size_t k = 0; k < pad->n; k++) back[k] = -pad->v.ints[k];
    g->grad_in[0] = rp_constant_pad_nd(g->grad_out[0], back, pad->n, rp_i64(0));
    return RP_OK;
}
