/* Derivatives of pool.c. Those of the gradients are what was read forward again. */
#include "ops/grad.h"
#include "ops/private.h"

/* Lists of the pool's attributes with a value for each of its spatial dims. */
typedef struct lists {
    unsigned spatial;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
} lists;
static void list_read(const rp_attr *a, unsigned n, int64_t *out) {
    for (unsigned d = 0; d < n; d++) out[d] = a->v.ints[a->n == 1 ? 0 : d];
}
static lists lists_of(const rp__vjp *g, bool dilates) {
    const rp_attr *a = g->call->attrs;
    lists l = {.spatial = g->call->op->schema.params[1].fixed};
    list_read(&a[0], l.spatial, l.kernel);
    list_read(&a[a[1].n ? 1 : 0], l.spatial, l.stride);
    list_read(&a[2], l.spatial, l.padding);
    if (dilates) list_read(&a[3], l.spatial, l.dilation);
    return l;
}

rp_status rp__vjp_max_pool2d_with_indices(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    const lists l = lists_of(g, true);
    if (g->grad_out[0])
        g->grad_in[0] =
            rp_max_pool_input(g->grad_out[0], g->call->out[1], g->in_meta[0].size, g->in_meta[0].ndim, l.kernel,
                              l.spatial, l.stride, l.spatial, l.padding, l.spatial, l.dilation, l.spatial, a[4].v.b);
    return RP_OK;
}

/* Each output takes back what lies at its index among the last dims, of those sizes. */
static rp_tensor *taken_back(const rp__vjp *g, unsigned spatial) {
    const unsigned first = g->in_meta[0].ndim - spatial;
    rp_tensor *planes = rp_flatten(g->grad_out[0], (int64_t)first, -1);
    rp_tensor *indices = rp_flatten(g->call->in[1], (int64_t)first, -1);
    return rp_reshape(rp_gather(planes, -1, indices), g->in_meta[0].size, g->in_meta[0].ndim);
}

rp_status rp__vjp_max_pool_input(const rp__vjp *g) {
    g->grad_in[0] = taken_back(g, (unsigned)g->call->attrs[1].n);
    return RP_OK;
}

rp_status rp__vjp_avg_pool2d(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
    const lists l = lists_of(g, false);
    g->grad_in[0] = rp_avg_pool_input(g->grad_out[0], g->in_meta[0].size, g->in_meta[0].ndim, l.kernel, l.spatial,
                                      l.stride, l.spatial, l.padding, l.spatial, a[3].v.b, a[4].v.b, a[5].v.i);
    return RP_OK;
}

rp_status rp__vjp_avg_pool_input(const rp__vjp *g) {
    const rp_attr *a = g->call->attrs;
#define INTS(k) a[k].v.ints, a[k].n
    if (a[1].n == 3)
        g->grad_in[0] = rp_avg_pool3d(g->grad_out[0], INTS(1), INTS(2), INTS(3), a[4].v.b, a[5].v.b, a[6].v.i);
    else
        g->grad_in[0] = rp_avg_pool2d(g->grad_out[0], INTS(1), INTS(2), INTS(3), a[4].v.b, a[5].v.b, a[6].v.i);
#undef INTS
    return RP_OK;
}

rp_status rp__vjp_adaptive_avg_pool2d(const rp__vjp *g) {
    g->grad_in[0] = rp_adaptive_avg_pool_input(g->grad_out[0], g->in_meta[0].size, g->in_meta[0].ndim,
                                               g->call->op->schema.params[1].fixed);
    return RP_OK;
}

rp_status rp__vjp_adaptive_avg_pool_input(const rp__vjp *g) {
    const int64_t spatial = rp__attr_int(g->call, 1);
    const rp_dim *places = g->in_meta[0].size + (g->in_meta[0].ndim - spatial);
    g->grad_in[0] = spatial == 3 ? rp_adaptive_avg_pool3d(g->grad_out[0], places, 3)
                                 : rp_adaptive_avg_pool2d(g->grad_out[0], places, 2);
    return RP_OK;
}

rp_status rp__vjp_adaptive_max_pool2d(const rp__vjp *g) {
    if (g->grad_out[0])
        g->grad_in[0] = rp_adaptive_max_pool_input(g->grad_out[0], g->call->out[1], g->in_meta[0].size,
                                                   g->in_meta[0].ndim, g->call->op->schema.params[1].fixed);
    return RP_OK;
}

rp_status rp__vjp_adaptive_max_pool_input(const rp__vjp *g) {
    g->grad_in[0] = taken_back(g, (unsigned)rp__attr_int(g->call, 1));
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
