/* Attention, made of products, a row kernel between them, and views. f16 and bf16 are calculated in f32 from the first product to
   the last, and rounded once. */
#include "ops/grad.h"

#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

#include <math.h>

static rp_status check(const rp__call *call) {
    const rp_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2], *mask = call->in[3];
    if (q->dtype != k->dtype || q->dtype != v->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "Expected query, key, and value to have the same dtype, but got query.dtype: %s key.dtype: "
                            "%s and value.dtype: %s instead.",
                            rp_dtype_name((rp_dtype)q->dtype), rp_dtype_name((rp_dtype)k->dtype),
                            rp_dtype_name((rp_dtype)v->dtype));
    RP_TRY(rp__call_need_float(call, (rp_dtype)q->dtype));
    if (q->ndim < 2 || k->ndim < 2 || v->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected query, key, and value to all be at least 2 dimensional, but got query.dim: %u "
                            "key.dim: %u and value.dim: %u instead.",
                            q->ndim, k->ndim, v->ndim);
    if (!(rp__attr_float(call, 0) >= 0 && rp__attr_float(call, 0) <= 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "dropout probability has to be between 0 and 1, but got %g", rp__attr_float(call, 0));
    if (!mask) return RP_OK;
    if (rp__attr_bool(call, 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "Explicit attn_mask should not be set when is_causal=True");
    if (mask->dtype != RP_BOOL && mask->dtype != RP_F32 && mask->dtype != q->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
                            "attn_mask.dtype: %s and query.dtype: %s instead.",
                            rp_dtype_name((rp_dtype)mask->dtype), rp_dtype_name((rp_dtype)q->dtype));
    return RP_OK;
}

/* enable_gqa: do the heads of k and v, dim -3, divide those of q? */
static rp_status check_heads(const rp__call *call) {
    const rp_tensor *q = call->in[0];
    for (unsigned i = 0; i < 3; i++) {
        const rp_tensor *t = call->in[i];
        if (t->ndim < 3)
            return rp__op_error(call, RP_ERROR_SHAPE, "enable_gqa needs heads in dim -3, but got a %u-dimensional %s",
                                t->ndim,
                                i == 0   ? "query"
                                : i == 1 ? "key"
                                         : "value");
        if (i == 0) continue;
        const rp_dim heads = q->size[q->ndim - 3], its = t->size[t->ndim - 3];
        if (rp__dim_is(RP__DIM_LT, its, 1) || !rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MOD, heads, its), 0))
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "Number of heads in key and value must divide the number of heads in query");
    }
    return RP_OK;
}

/* a b over the last two dims. grouped: each head of b serves as many neighbouring ones of a as there are to one. */
static rp_tensor *product(const char *site, rp_tensor *a, rp_tensor *b, bool grouped) {
    if (rp__tensor_is_error(a) || rp__tensor_is_error(b)) return rp__tensor_error();
    if (grouped) {
        const rp_dim heads = b->size[b->ndim - 3], each = rp__dim_apply(RP__DIM_FLOORDIV, a->size[a->ndim - 3], heads),
                     groups[2] = {heads, each};
        if (!rp__dim_is(RP__DIM_EQ, each, 1)) {
            a = rp_unflatten_at(site, a, -3, groups, 2);
            return rp_flatten_at(site, rp_matmul_at(site, a, rp_unsqueeze_at(site, b, -3)), -4, -3);
        }
    }
    return rp_matmul_at(site, a, b);
}

/* Scores that the mask leaves, -infinity for others. */
static rp_tensor *masked(const char *site, rp_tensor *scores, rp_tensor *keep) {
    return rp_masked_fill_scalar_at(site, scores, rp_logical_not_at(site, keep), rp_f64(-INFINITY));
}

rp_status rp__expand_scaled_dot_product_attention(const rp__call *call) {
    const char *site = call->site;
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    const double p = rp__attr_float(call, 0);
    const bool grouped = rp__attr_bool(call, 3);
    RP_TRY(check(call));
    if (grouped) RP_TRY(check_heads(call));
    rp_tensor *q = rp__wide(call->in[0]), *k = rp__wide(call->in[1]), *v = rp__wide(call->in[2]), *mask = call->in[3];
    const int64_t features = rp__dim_value(q->size[q->ndim - 1]); /* of a size of the trace its value */
    double scale = 1 / sqrt((double)(features > 0 ? features : 1));
    if (!rp__attr_is_none(&call->attrs[2])) scale = rp__scalar_f64(call->attrs[2].v.scalar);

    rp_tensor *scores = product(site, q, rp_transpose_at(site, k, -2, -1), grouped);
    scores = rp_mul_scalar_at(site, scores, rp_f64(scale));
    if (rp__tensor_is_error(scores)) return rp_error_status();
    rp_tensor *nothing = NULL; /* rows of which the mask leaves nothing: zeros, without a gradient */
    if (rp__attr_bool(call, 1)) {
        rp_tensor *row = rp_unsqueeze(rp__count_beside(q, scores->size[scores->ndim - 2]), 1);
        scores = masked(site, scores, rp_le(rp__count_beside(q, scores->size[scores->ndim - 1]), row));
    } else if (mask) {
        rp_tensor *all =
            mask->dtype == RP_BOOL ? masked(site, scores, mask) : rp_add_at(site, scores, rp__wide(mask), NULL);
        if (rp__tensor_is_error(all)) return rp_error_status();
        if (all->ndim != scores->ndim || !rp__same_size(all, scores)) {
            char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
            return rp__op_error(call, RP_ERROR_SHAPE, "attn_mask of shape %s does not broadcast to the scores' %s",
                                rp__shape_text(mask->size, mask->ndim, a),
                                rp__shape_text(scores->size, scores->ndim, b));
        }
        scores = all;
        if (!rp__dim_is(RP__DIM_EQ, scores->size[scores->ndim - 1], 0)) {
            nothing = rp_eq_scalar(rp_amax(scores, RP_DIMS(-1), true), rp_f64(-INFINITY));
            scores = rp_masked_fill_scalar(scores, nothing, rp_f64(0));
        }
    }
    rp_tensor *weights = rp_softmax_at(site, scores, -1, RP_DTYPE_NONE);
    if (nothing) weights = rp_masked_fill_scalar(weights, nothing, rp_f64(0));
    if (p > 0) weights = rp_dropout_at(site, weights, p, true, NULL);
    rp_tensor *out = product(site, weights, v, grouped);
    if (!rp__tensor_is_error(out) && out->dtype != dtype) out = rp_to_dtype_at(site, out, dtype, NULL);
    call->out[0] = out;
    return rp__tensor_is_error(out) ? rp_error_status() : RP_OK;
}
