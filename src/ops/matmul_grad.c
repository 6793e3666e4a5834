/* Derivatives of matmul.c: products with transposed factors, matmul itself is a composite over bmm; of dot. */
#include "ops/grad.h"

#include "ops/private.h"

/* Sums of one product each, of a vector and a number or of two vectors, which no tile of a matrix fits. A sum begins with +0. */
static rp_tensor *products(rp_tensor *a, rp_tensor *b) { return rp_add_scalar(rp_mul(a, b), rp_i64(0)); }
/* A symbol is not asked whether it is 1: the product gives the same. */
static rp_tensor *product(rp_tensor *a, rp_tensor *b) {
    const bool one = !rp__tensor_is_error(a) && a->dtype != RP_BOOL && rp__dim_same_word(a->size[a->ndim - 1], 1);
    return one ? products(a, b) : rp_bmm(a, b);
}

rp_status rp__vjp_bmm(const rp__vjp *g) {
    if (g->needed[0]) g->grad_in[0] = product(g->grad_out[0], rp_transpose(g->call->in[1], -2, -1));
    if (g->needed[1]) g->grad_in[1] = product(rp_transpose(g->call->in[0], -2, -1), g->grad_out[0]);
    return RP_OK;
}

rp_status rp__vjp_dot(const rp__vjp *g) {
    if (g->needed[0]) g->grad_in[0] = rp_mul(g->grad_out[0], g->call->in[1]);
    if (g->needed[1]) g->grad_in[1] = rp_mul(g->grad_out[0], g->call->in[0]);
    return RP_OK;
}

/* t (..., K) as (M, K). */
static rp_tensor *rows_of(rp_tensor *t) {
    rp_dim size[2] = {1, t->ndim > 0 ? t->size[t->ndim - 1] : 1};
    for (size_t d = 0; d + 1 < t->ndim; d++) size[0] = rp__dim_apply(RP__DIM_MUL, size[0], t->size[d]);
    return t->ndim == 2 ? t : rp_reshape(t, size, 2);
}

rp_status rp__vjp_linear(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0]; /* (..., N) */
    if (g->in_meta[1].ndim == 1) {    /* (...): each factor scaled by it, weight summed over the rows */
        grad = rp_unsqueeze(grad, -1);
        if (g->needed[0]) g->grad_in[0] = rp_mul(grad, g->call->in[1]);
        if (g->needed[1])
            g->grad_in[1] = rp_squeeze(product(rp_transpose(rows_of(g->call->in[0]), 0, 1), rows_of(grad)), 1);
        return RP_OK;
    }
    if (g->needed[0] && rp__dim_same_word(g->in_meta[1].size[0], 1)) /* one feature: (..., 1) times (1, K) */
        g->grad_in[0] = products(grad, g->call->in[1]);
    else if (g->needed[0])
        g->grad_in[0] = rp_linear(grad, rp_transpose(g->call->in[1], 0, 1), NULL);
    if (g->needed[1]) g->grad_in[1] = product(rp_transpose(rows_of(grad), 0, 1), rows_of(g->call->in[0]));
    if (g->call->n_in > 2 && g->needed[2]) g->grad_in[2] = grad; /* summed by rp__grad_run */
    return RP_OK;
}
