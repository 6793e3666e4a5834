/* Derivatives of loss.c. */
#include "ops/grad.h"
#include "ops/private.h"

/* Per row: loss = log_total - (x[target] - high), 0 where the target is ignored; high = max x and log_total = log sum exp(x -
   high) are results too: a second derivative sends gradients through them. p = softmax(x). */
rp_status rp__vjp_cross_entropy_rows(const rp__vjp *g) {
    if (!g->needed[0]) return RP_OK;
    rp_tensor *x = rp__wide(g->call->in[0]), *target = g->call->in[1];
    rp_tensor *high = rp_unsqueeze(g->call->out[1], -1), *log_total = rp_unsqueeze(g->call->out[2], -1);
    rp_tensor *p = rp_exp(rp_sub(rp_sub(x, high), log_total));
    rp_tensor *dx = NULL;
    if (g->grad_out[0]) {
        rp_tensor *classes = target->dtype == RP_U8 ? rp_to_dtype(target, RP_I64) : target; /* for ignore_index */
        rp_tensor *ignored = rp_eq_scalar(classes, rp_i64(rp__attr_int(g->call, 0)));
        rp_tensor *grad = rp_where(ignored, rp__zero_like(g->grad_out[0]), g->grad_out[0]);
        rp_tensor *hit = rp_eq(rp_unsqueeze(target, -1), rp__count_beside(x, x->size[x->ndim - 1]));
        dx = rp_mul(rp_unsqueeze(grad, -1), rp_sub(p, rp_to_dtype(hit, (rp_dtype)p->dtype)));
    }
    rp_tensor *to_high = g->grad_out[1], *to_log = g->grad_out[2];
    if (to_log) {
        rp_tensor *part = rp_mul(rp_unsqueeze(to_log, -1), p);
        dx = dx ? rp_add(dx, part) : part;
        to_high = to_high ? rp_sub(to_high, to_log) : rp_neg(to_log);
    }
    if (to_high) { /* to the largest logits in equal shares */
        rp_tensor *largest = rp_eq(x, high);
        rp_tensor *share = rp_div(rp_unsqueeze(to_high, -1), rp_sum(largest, RP_DIMS(-1), true));
        rp_tensor *part = rp_mul(share, largest);
        dx = dx ? rp_add(dx, part) : part;
    }
    g->grad_in[0] = dx;
    return RP_OK;
}
