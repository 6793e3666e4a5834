/* The derivative of batch_norm.c: as layer norm's along other dims; the statistics that it returns have gradients, too. */
#include "ops/grad.h"
#include "ops/private.h"

rp_status rp__vjp_batch_norm_train(const rp__vjp *g) {
    const rp__meta *in = &g->in_meta[0];
    int64_t dims[RP_MAX_DIMS];
    size_t n = 0;
    rp_dim count = 1;
    for (size_t d = 0; d < in->ndim; d++) {
        if (d == 1) continue;
        dims[n++] = (int64_t)d;
        count = rp__dim_apply(RP__DIM_MUL, count, in->size[d]);
    }
    rp_tensor *x = rp__wide(g->call->in[0]), *weight = g->call->in[1];
    /* mean, 1/std and the gradients of the three statistics, (C) as (C, 1, ..) */
    rp_tensor *stat[] = {g->call->out[1], g->call->out[2], g->grad_out[1], g->grad_out[2], g->grad_out[3]};
    for (size_t k = 0; k < sizeof stat / sizeof *stat; k++)
        for (size_t d = 2; d < in->ndim && stat[k]; d++) stat[k] = rp_unsqueeze(stat[k], (int64_t)d - 1);
    rp_tensor *rstd = stat[1], *grad = g->grad_out[0] ? rp__wide(g->grad_out[0]) : NULL;
    rp_tensor *centred = rp_sub(x, stat[0]), *unit = rp_mul(centred, rstd), *dx = NULL;
    if (g->needed[0] && grad) {
        rp_tensor *scaled = weight ? rp_mul(grad, rp__wide(weight)) : grad;
        rp_tensor *along_one = rp_mean(scaled, dims, n, true);
        rp_tensor *along_unit = rp_mean(rp_mul(scaled, unit), dims, n, true);
        rp_tensor *rest = rp_sub(rp_sub(scaled, along_one), rp_mul(unit, along_unit));
        dx = rp_mul(rest, rstd);
    }
    rp_tensor *part[3] = {NULL};
    if (g->needed[0]) {
        if (stat[2]) part[0] = rp_expand(rp_div_scalar(stat[2], rp_i64(count)), in->size, in->ndim);
        if (stat[3]) part[1] = rp_neg(rp_mul(unit, rp_div_scalar(rp_mul(stat[3], rp_mul(rstd, rstd)), rp_i64(count))));
        if (stat[4]) {
            rp_tensor *twice = rp_mul_scalar(stat[4], rp_i64(2));
            part[2] = rp_mul(centred, rp_div_scalar(twice, rp_i64(rp__dim_apply(RP__DIM_SUB, count, 1))));
        }
    }
    for (size_t k = 0; k < 3; k++)
        if (part[k]) dx = dx ? rp_add(dx, part[k]) : part[k];
    g->grad_in[0] = dx;
    if (grad && g->needed[1]) g->grad_in[1] = rp_mul(grad, unit); /* rp__grad_run sums to the weight's size */
    if (grad && g->needed[2]) g->grad_in[2] = grad;
    return RP_OK;
}
