/* Derivatives of index.c: gather and scatter_add are each other's, embedding and embedding_backward too. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_cat(const rp__vjp *g) {
    rp_dim begin = 0;
    for (uint32_t i = 0; i < g->call->n_in; i++) {
        const rp__meta *in = &g->in_meta[i];
        if (in->ndim == 1 &&
            rp__dim_is(RP__DIM_EQ, in->size[0], 0)) { /* an empty 1-d tensor joins anything, along any dim */
            if (g->needed[i]) g->grad_in[i] = rp__zeros_of(in);
            continue;
        }
        size_t dim = rp__attr_dim(rp__attr_int(g->call, 0), g->out_meta[0].ndim);
        rp_dim end = rp__dim_apply(RP__DIM_ADD, begin, in->size[dim]);
        if (g->needed[i]) g->grad_in[i] = rp_slice(g->grad_out[0], (int64_t)dim, begin, end, 1);
        begin = end;
    }
    return RP_OK;
}

rp_status rp__vjp_gather(const rp__vjp *g) {
    g->grad_in[0] =
        rp_scatter_add(rp__zeros_of(&g->in_meta[0]), rp__attr_int(g->call, 0), g->call->in[1], g->grad_out[0]);
    return RP_OK;
}

rp_tensor *rp__fill_up(rp_tensor *grad, const rp__meta *meta) {
    rp__meta whole = *meta;
    if (!rp__tensor_is_error(grad) && grad->ndim < whole.ndim) grad = rp_unsqueeze(grad, 0); /* 0-d: a row of one */
    if (!rp__tensor_is_error(grad) && grad->ndim > whole.ndim) grad = rp_squeeze(grad, 0);
    for (size_t d = whole.ndim; d-- > 0 && !rp__tensor_is_error(grad);) {
        if (rp__dim_is(RP__DIM_EQ, grad->size[d], meta->size[d])) continue;
        for (size_t k = 0; k < whole.ndim; k++) whole.size[k] = k == d ? meta->size[d] : grad->size[k];
        grad = rp_slice_scatter(rp__zeros_expanded(&whole), grad, (int64_t)d, 0, grad->size[d], 1);
    }
    return grad;
}

rp_status rp__vjp_scatter_add(const rp__vjp *g) {
    g->grad_in[0] = g->grad_out[0];
    if (!g->needed[2]) return RP_OK;
    rp_tensor *grad = rp_gather(g->grad_out[0], rp__attr_int(g->call, 0), g->call->in[1]);
    g->grad_in[2] = rp__fill_up(grad, &g->in_meta[2]);
    return RP_OK;
}

/* Rows of padding_idx get nothing; by frequency: the mean over the places of an index, in place of the sum. */
rp_status rp__vjp_embedding(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0], *index = g->call->in[1];
    const int64_t padding = rp__attr_int(g->call, 0);
    const rp_dim rows = g->in_meta[0].size[0];
    if (padding >= 0)
        grad = rp_masked_fill_scalar(grad, rp_unsqueeze(rp_eq_scalar(index, rp_i64(padding)), -1), rp_i64(0));
    if (rp__attr_bool(g->call, 1) && !rp__tensor_is_error(grad)) {
        rp_tensor *one = rp_to_dtype(rp_unsqueeze(rp_ones_like(index), -1), RP_F32);
        rp_tensor *times = rp_embedding(rp_embedding_backward(one, index, rows), index, -1, false, false);
        grad = rp_to_dtype(rp_div(rp__wide(grad), times), (rp_dtype)grad->dtype);
    }
    g->grad_in[0] = rp_embedding_backward(grad, index, rows);
    return RP_OK;
}

rp_status rp__vjp_embedding_backward(const rp__vjp *g) {
    g->grad_in[0] = rp_embedding(g->grad_out[0], g->call->in[1]);
    return RP_OK;
}

/* The places of a row are different ones: stores do, which atomics are dearer than. */
rp_status rp__vjp_topk(const rp__vjp *g) {
    if (!g->grad_out[0]) return RP_OK;
    g->grad_in[0] =
        rp_scatter_set(rp__zeros_of(&g->in_meta[0]), rp__attr_int(g->call, 1), g->call->out[1], g->grad_out[0]);
    return RP_OK;
}
