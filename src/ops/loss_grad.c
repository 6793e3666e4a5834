/* Derivatives of the parts of losses. */
#include "ops/grad.h"
#include "ops/private.h"

/* The gradient of rows, 0 where the class is ignored: an index that no class has. */
static rp_tensor *of_counted(const rp__vjp *g, rp_tensor *grad, rp_tensor *target) {
    rp_tensor *classes = target->dtype == RP_U8 ? rp_to_dtype(target, RP_I64) : target; /* for ignore_index */
    return rp_where(rp_eq_scalar(classes, rp_i64(rp__attr_int(g->call, 0))), rp__zero_like(grad), grad);
}

/* Is the place along dim 1 of operand 0 that of the class? */
static rp_tensor *class_mask(const rp__vjp *g, rp_tensor *target) {
    const rp__meta *x = &g->in_meta[0];
    rp_tensor *place = rp__count_beside(target, x->size[1]);
    for (unsigned d = 2; d < x->ndim; d++) place = rp_unsqueeze(place, -1);
    return rp_eq(rp_unsqueeze(target, 1), place);
}

/* Per row: loss = log_total - (x[target] - high), 0 where the target is ignored; high = max x and log_total = log sum exp(x -
   high) are results too: a second derivative sends gradients through them. p = softmax(x). */
rp_status rp__vjp_cross_entropy_rows(const rp__vjp *g) {
    if (!g->needed[0]) return RP_OK;
    rp_tensor *x = rp__wide(g->call->in[0]), *target = g->call->in[1];
    rp_tensor *high = rp_unsqueeze(g->call->out[1], 1), *log_total = rp_unsqueeze(g->call->out[2], 1);
    rp_tensor *p = rp_exp(rp_sub(rp_sub(x, high), log_total));
    rp_tensor *dx = NULL;
    if (g->grad_out[0]) {
        rp_tensor *grad = of_counted(g, g->grad_out[0], target);
        dx = rp_mul(rp_unsqueeze(grad, 1), rp_sub(p, rp_to_dtype(class_mask(g, target), (rp_dtype)p->dtype)));
    }
    rp_tensor *to_high = g->grad_out[1], *to_log = g->grad_out[2];
    if (to_log) {
        rp_tensor *part = rp_mul(rp_unsqueeze(to_log, 1), p);
        dx = dx ? rp_add(dx, part) : part;
        to_high = to_high ? rp_sub(to_high, to_log) : rp_neg(to_log);
    }
    if (to_high) { /* to the largest logits in equal shares */
        rp_tensor *largest = rp_eq(x, high);
        rp_tensor *share = rp_div(rp_unsqueeze(to_high, 1), rp_sum(largest, RP_DIMS(1), true));
        rp_tensor *part = rp_mul(share, largest);
        dx = dx ? rp_add(dx, part) : part;
    }
    g->grad_in[0] = dx;
    return RP_OK;
}

rp_status rp__vjp_class_value(const rp__vjp *g) {
    rp_tensor *target = g->call->in[1], *grad = rp_unsqueeze(of_counted(g, g->grad_out[0], target), 1);
    g->grad_in[0] = rp_where(class_mask(g, target), grad, rp__zero_like(grad));
    return RP_OK;
}

/* Of a, the probability: (a - b) / (a (1 - a)), which goes on where a logarithm was held; of b the logarithms. */
static rp_tensor *held(rp_tensor *t) { return rp_clamp(t, rp_i64(-100), rp_none()); }
RP__SLOPES(binary_cross_entropy_elements,
           rp_mul(grad, rp_div(rp_sub(a, b), rp_clamp(rp_sub(a, rp_mul(a, a)), rp_f64(1e-12), rp_none()))),
           rp_mul(grad, rp_sub(held(rp_log1p(rp_neg(a))), held(rp_log(a)))))
