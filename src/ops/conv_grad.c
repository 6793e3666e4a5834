/* Derivatives of conv.c. The three convolutions (output, input, weight) are the partial derivatives of one trilinear form, so
   each one's derivative is made of the other two. Attributes 1-4 of the backward forms are 0-3 of the forward one. */
#include "ops/grad.h"
#include "ops/private.h"

typedef struct geometry {
    const rp_attr *stride, *padding, *dilation;
    int64_t groups;
} geometry;

static geometry geometry_of(const rp__call *call, unsigned first) {
    const rp_attr *a = call->attrs + first;
    return (geometry){a, a + 1, a + 2, a[3].v.i};
}

static rp_tensor *forward(rp_tensor *input, rp_tensor *weight, const geometry *c) {
#define GEOMETRY                                                                                                       \
    c->stride->v.ints, c->stride->n, c->padding->v.ints, c->padding->n, c->dilation->v.ints, c->dilation->n, c->groups
    switch (weight->ndim) {
    case 3: return rp_conv1d(input, weight, NULL, GEOMETRY);
    case 4: return rp_conv2d(input, weight, NULL, GEOMETRY);
    default: return rp_conv3d(input, weight, NULL, GEOMETRY);
    }
}

static rp_tensor *to_input(rp_tensor *grad, rp_tensor *weight, const rp__meta *input, const geometry *c) {
    return rp_conv_input(grad, weight, input->size, input->ndim, GEOMETRY);
}

static rp_tensor *to_weight(rp_tensor *grad, rp_tensor *input, const rp__meta *weight, const geometry *c) {
    return rp_conv_weight(grad, input, weight->size, weight->ndim, GEOMETRY);
}

rp_status rp__vjp_conv2d(const rp__vjp *g) {
    geometry c = geometry_of(g->call, 0);
    rp_tensor *grad = g->grad_out[0];
    if (g->needed[0]) g->grad_in[0] = to_input(grad, g->call->in[1], &g->in_meta[0], &c);
    if (g->needed[1]) g->grad_in[1] = to_weight(grad, g->call->in[0], &g->in_meta[1], &c);
    if (g->needed[2]) { /* all dims but that of the channels */
        const unsigned spatial = g->in_meta[1].ndim - 2u, channel = grad->ndim - spatial - 1;
        int64_t dims[RP_MAX_DIMS];
        unsigned n = 0;
        for (unsigned d = 0; d < grad->ndim; d++)
            if (d != channel) dims[n++] = d;
        g->grad_in[2] = rp_sum(grad, dims, n);
    }
    return RP_OK;
}

rp_status rp__vjp_conv_input(const rp__vjp *g) {
    geometry c = geometry_of(g->call, 1);
    rp_tensor *grad = g->grad_out[0]; /* of the input's size */
    if (g->needed[0]) g->grad_in[0] = forward(grad, g->call->in[1], &c);
    if (g->needed[1]) g->grad_in[1] = to_weight(g->call->in[0], grad, &g->in_meta[1], &c);
    return RP_OK;
}

rp_status rp__vjp_conv_weight(const rp__vjp *g) {
    geometry c = geometry_of(g->call, 1);
    rp_tensor *grad = g->grad_out[0]; /* of the weight's size */
    if (g->needed[0]) g->grad_in[0] = forward(g->call->in[1], grad, &c);
    if (g->needed[1]) g->grad_in[1] = to_input(g->call->in[0], grad, &g->in_meta[1], &c);
    return RP_OK;
}
