/* Derivatives of the attention kernels. With s = scale, P = exp(s q k^T + mask - logsumexp), and M what dropout multiplies by (0 or 1 / (1 - p)):

     output = (P * M) v      D = P * ((grad v^T) * M - delta)      dq = s D k,  dk = s D^T q,  dv = (P * M)^T grad

   Written so, the backward depends on logsumexp and delta as on operands, and second derivatives go on through the forward's: the
   gradient of logsumexp only lessens delta. Heads are grouped as (B, heads of keys, queries' heads of each, ...). */
#include "ops/grad.h"
#include "ops/private.h"

#include <math.h>

typedef struct weights {
    rp_tensor *q, *k, *v, *grad; /* (B, Hk, g, L or S, .) with g = 1 of k and v; float32 */
    rp_tensor *p, *kept;         /* P, and P * M */
    rp_tensor *scale_of;         /* M; NULL: 1 */
    rp_tensor *slope;            /* (grad v^T) * M - delta */
    rp_tensor *d;                /* D */
} weights;

static rp_tensor *swapped(rp_tensor *t) { return rp_transpose(t, 1, 2); } /* (B, L, H, E) and (B, H, L, E) */
static rp_tensor *turned(rp_tensor *t) { return rp_transpose(t, -2, -1); }

static rp_tensor *grouped(rp_tensor *t, rp_dim heads) {
    if (rp__tensor_is_error(t)) return t;
    const rp_dim size[2] = {heads, rp__dim_apply(RP__DIM_FLOORDIV, t->size[1], heads)};
    return rp_unflatten(t, 1, size, 2);
}
static rp_tensor *ungrouped(rp_tensor *t) { return rp_flatten(t, 1, 2); }
static rp_tensor *alone(rp_tensor *t) { return rp_unsqueeze(t, 2); }
static rp_tensor *of_group(rp_tensor *t) { return rp_sum(t, RP_DIMS(2)); }

/* in: q, k, v, mask, place; attributes are dropout_p, is_causal, scale. */
static rp_status weights_of(const rp__call *call, rp_tensor *const *in, rp_tensor *grad, rp_tensor *lse,
                            rp_tensor *delta, weights *w) {
    rp_tensor *q = in[0], *k = in[1], *v = in[2], *mask = in[3], *place = in[4];
    const rp_dim heads = k->size[1];
    const double p = rp__attr_float(call, 0);
    w->q = grouped(rp__wide(q), heads);
    w->k = alone(rp__wide(k));
    w->v = alone(rp__wide(v));
    w->grad = grouped(swapped(rp__wide(grad)), heads);
    rp_tensor *scores = rp_mul_scalar(rp_matmul(w->q, turned(w->k)), call->attrs[2].v.scalar);
    rp_tensor *keep = NULL;
    if (rp__attr_bool(call, 1))
        keep = rp_le(rp__count_beside(q, k->size[2]), rp_unsqueeze(rp__count_beside(q, q->size[2]), 1));
    if (keep) scores = rp_masked_fill_scalar(scores, rp_logical_not(keep), rp_f64(-INFINITY));
    if (mask && mask->dtype == RP_BOOL)
        scores = rp_masked_fill_scalar(scores, rp_logical_not(grouped(mask, heads)), rp_f64(-INFINITY));
    else if (mask)
        scores = rp_add(scores, rp__wide(grouped(mask, heads)));
    /* a row that sees nothing has weights of 0 */
    lse = rp_masked_fill_scalar(lse, rp_eq_scalar(lse, rp_f64(-INFINITY)), rp_f64(0));
    w->p = rp_exp(rp_sub(scores, rp_unsqueeze(grouped(lse, heads), -1)));
    w->scale_of = NULL;
    if (place)
        w->scale_of = rp_mul_scalar(
            rp_to_dtype(grouped(rp_attention_keep(place, q, k, p), heads), (rp_dtype)w->q->dtype), rp_f64(1 / (1 - p)));
    w->kept = w->scale_of ? rp_mul(w->p, w->scale_of) : w->p;
    w->slope = rp_matmul(w->grad, turned(w->v));
    if (w->scale_of) w->slope = rp_mul(w->slope, w->scale_of);
    w->slope = rp_sub(w->slope, rp_unsqueeze(grouped(delta, heads), -1));
    w->d = rp_mul(w->p, w->slope);
    return rp__tensor_is_error(w->d) ? rp_error_status() : RP_OK;
}

rp_status rp__vjp_flash_attention(const rp__vjp *g) {
    const rp__call *call = g->call;
    rp_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2], *mask = call->in[3], *place = call->in[4];
    rp_tensor *out = call->out[0], *lse = call->out[1];
    rp_tensor *grad = g->grad_out[0] ? g->grad_out[0] : rp__zeros_expanded(&g->out_meta[0]);
    rp_tensor *delta = swapped(rp_sum(rp_mul(rp__wide(grad), rp__wide(out)), RP_DIMS(-1)));
    if (g->grad_out[1]) delta = rp_sub(delta, g->grad_out[1]);
    const double p = rp__attr_float(call, 0);
    const rp_scalar scale = call->attrs[2].v.scalar;
    const bool causal = rp__attr_bool(call, 1);
    if (g->needed[0] || g->needed[1] || g->needed[2]) {
        rp_tensor *dk, *dv,
            *dq = rp_flash_attention_backward(grad, q, k, v, mask, place, lse, delta, p, causal, scale, &dk, &dv);
        g->grad_in[0] = swapped(dq);
        g->grad_in[1] = swapped(dk);
        g->grad_in[2] = swapped(dv);
    }
    if (mask && g->needed[3]) {
        weights w;
        RP_TRY(weights_of(call, call->in, grad, lse, delta, &w));
        g->grad_in[3] = ungrouped(w.d);
    }
    return RP_OK;
}

/* Sum of what is there. */
static rp_tensor *plus(rp_tensor *a, rp_tensor *b) { return !a ? b : !b ? a : rp_add(a, b); }

rp_status rp__vjp_flash_attention_backward(const rp__vjp *g) {
    const rp__call *call = g->call;
    rp_tensor *const *in = call->in;
    weights w;
    RP_TRY(weights_of(call, in + 1, in[0], in[6], in[7], &w));
    const rp_dim heads = in[2]->size[1];
    const rp_scalar scale = call->attrs[2].v.scalar;
    rp_tensor *gq = g->grad_out[0] ? grouped(swapped(rp__wide(g->grad_out[0])), heads) : NULL,
              *gk = g->grad_out[1] ? alone(swapped(rp__wide(g->grad_out[1]))) : NULL,
              *gv = g->grad_out[2] ? alone(swapped(rp__wide(g->grad_out[2]))) : NULL;
    rp_tensor *of_kept = gv ? rp_matmul(w.grad, turned(gv)) : NULL; /* of P * M */
    rp_tensor *of_d = plus(gq ? rp_matmul(gq, turned(w.k)) : NULL, gk ? rp_matmul(w.q, turned(gk)) : NULL);
    if (of_d) of_d = rp_mul_scalar(of_d, scale);
    rp_tensor *of_p = of_kept && w.scale_of ? rp_mul(of_kept, w.scale_of) : of_kept;
    if (of_d) of_p = plus(of_p, rp_mul(of_d, w.slope));
    rp_tensor *of_scores = rp_mul(of_p, w.p);
    rp_tensor *dgrad = gv ? rp_matmul(w.kept, gv) : NULL, *dv = NULL;
    if (of_d) {
        rp_tensor *of_slope = rp_mul(of_d, w.p), *of_product = w.scale_of ? rp_mul(of_slope, w.scale_of) : of_slope;
        dgrad = plus(dgrad, rp_matmul(of_product, w.v));
        dv = rp_matmul(turned(of_product), w.grad);
        g->grad_in[7] = ungrouped(rp_neg(rp_sum(of_slope, RP_DIMS(-1))));
    }
    rp_tensor *dq = plus(gk ? rp_matmul(w.d, gk) : NULL, rp_matmul(of_scores, w.k));
    rp_tensor *dk = plus(gq ? rp_matmul(turned(w.d), gq) : NULL, rp_matmul(turned(of_scores), w.q));
    g->grad_in[0] = swapped(ungrouped(dgrad));
    g->grad_in[1] = ungrouped(rp_mul_scalar(dq, scale));
    g->grad_in[2] = rp_mul_scalar(of_group(dk), scale);
    if (dv) g->grad_in[3] = of_group(dv);
    if (in[4] && g->needed[4]) g->grad_in[4] = ungrouped(of_scores);
    g->grad_in[6] = ungrouped(rp_neg(rp_sum(of_scores, RP_DIMS(-1))));
    return RP_OK;
}
