/* Derivatives of reduce.c: reductions give their gradient back along the dims that they took away. */
#include "ops/grad.h"

#include <reprise_ops.h>

/* The dims that a reduction with attribute 0 `dim` took away, rising. */
static size_t reduced_dims(const rp__vjp *g, size_t *dims) {
    const rp_attr *attr = &g->call->attrs[0];
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
    bool keepdim = rp__attr_bool(g->call, 1);
    if (keepdim || n == g->in_meta[0].ndim) return t; /* 0-d broadcasts as it is */
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
