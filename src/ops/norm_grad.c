/* Derivatives of norm.c: softmax, layer norm and rms norm. Written so that each becomes one row kernel of the compiler. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_softmax(const rp__vjp *g) {
    int64_t dim = rp__attr_int(g->call, 0);
    rp_tensor *out = rp__wide(g->call->out[0]);
    rp_tensor *product = rp_mul(g->grad_out[0], out);
    g->grad_in[0] = rp_sub(product, rp_mul(out, rp_sum(product, &dim, 1, true)));
    return RP_OK;
}

rp_status rp__vjp_log_softmax(const rp__vjp *g) {
    int64_t dim = rp__attr_int(g->call, 0);
    rp_tensor *grad = rp__wide(g->grad_out[0]);
    rp_tensor *total = rp_sum(grad, &dim, 1, true);
    g->grad_in[0] = rp_sub(grad, rp_mul(rp_exp(rp__wide(g->call->out[0])), total));
    return RP_OK;
}

/* The last n dims of operand 0; their elements. */
static rp_dim last_dims(const rp__vjp *g, size_t n, int64_t dims[RP_MAX_DIMS]) {
    const size_t first = g->in_meta[0].ndim - n;
    rp_dim count = 1;
    for (size_t i = 0; i < n; i++) {
        dims[i] = (int64_t)(first + i);
        count = rp__dim_apply(RP__DIM_MUL, count, g->in_meta[0].size[first + i]);
    }
    return count;
}

/* What a gradient of rstd adds to that of x. */
static rp_tensor *of_rstd(rp_tensor *grad, rp_tensor *rstd, rp_tensor *xhat, rp_dim count) {
    return rp_neg(rp_mul(xhat, rp_div_scalar(rp_mul(grad, rp_mul(rstd, rstd)), rp_i64(count))));
}

/* y = xhat weight + bias, xhat = (x - mean) rstd over the last n dims. mean and rstd are results as well: a second derivative
   sends gradients through them. */
rp_status rp__vjp_native_layer_norm(const rp__vjp *g) {
    const size_t n = g->call->attrs[0].n;
    int64_t dims[RP_MAX_DIMS];
    const rp_dim count = last_dims(g, n, dims);
    rp_tensor *x = rp__wide(g->call->in[0]), *weight = g->call->in[1];
    rp_tensor *mean = g->call->out[1], *rstd = g->call->out[2];
    rp_tensor *grad = g->grad_out[0] ? rp__wide(g->grad_out[0]) : NULL;
    rp_tensor *xhat = rp_mul(rp_sub(x, mean), rstd);

    if (g->needed[0]) {
        rp_tensor *dx = NULL;
        if (grad) {
            rp_tensor *scaled = weight ? rp_mul(grad, weight) : grad;
            rp_tensor *along_one = rp_mean(scaled, dims, n, true);
            rp_tensor *along_x = rp_mean(rp_mul(scaled, xhat), dims, n, true);
            rp_tensor *rest = rp_sub(rp_sub(scaled, along_one), rp_mul(xhat, along_x));
            dx = rp_mul(rest, rstd);
        }
        if (g->grad_out[1]) {
            rp_tensor *part = rp_expand(rp_div_scalar(g->grad_out[1], rp_i64(count)), x->size, x->ndim);
            dx = dx ? rp_add(dx, part) : part;
        }
        if (g->grad_out[2]) {
            rp_tensor *part = of_rstd(g->grad_out[2], rstd, xhat, count);
            dx = dx ? rp_add(dx, part) : part;
        }
        g->grad_in[0] = dx;
    }
    if (grad && g->needed[1]) g->grad_in[1] = rp_mul(grad, xhat); /* summed over the rows by rp__grad_run */
    if (grad && g->needed[2]) g->grad_in[2] = grad;
    return RP_OK;
}

/* y = xhat weight, xhat = x rstd; rstd is a result as well. */
rp_status rp__vjp_rms_norm_rows(const rp__vjp *g) {
    const size_t n = g->call->attrs[0].n;
    int64_t dims[RP_MAX_DIMS];
    const rp_dim count = last_dims(g, n, dims);
    rp_tensor *x = rp__wide(g->call->in[0]), *weight = g->call->in[1], *rstd = g->call->out[1];
    rp_tensor *grad = g->grad_out[0] ? rp__wide(g->grad_out[0]) : NULL, *xhat = rp_mul(x, rstd);
    if (g->needed[0]) {
        rp_tensor *dx = NULL;
        if (grad) {
            rp_tensor *scaled = weight ? rp_mul(grad, weight) : grad;
            rp_tensor *along_x = rp_mean(rp_mul(scaled, xhat), dims, n, true);
            dx = rp_mul(rp_sub(scaled, rp_mul(xhat, along_x)), rstd);
        }
        if (g->grad_out[1]) {
            rp_tensor *part = of_rstd(g->grad_out[1], rstd, xhat, count);
            dx = dx ? rp_add(dx, part) : part;
        }
        g->grad_in[0] = dx;
    }
    if (grad && g->needed[1]) g->grad_in[1] = rp_mul(grad, xhat); /* summed over the rows by rp__grad_run */
    return RP_OK;
}
