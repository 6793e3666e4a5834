/* Attention: one kernel (flash_attention, a library op) over batches of heads; where that does not serve, products, a row kernel between
   them, and views. f16 and bf16 are calculated in f32 from the first product to the last, and rounded once. */
#include "ops/grad.h"

#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/library_ops.h"
#include "ops/private.h"

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

static rp_status composed(const rp__call *call, rp_scalar scale) {
    const char *site = call->site;
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    const double p = rp__attr_float(call, 0);
    const bool grouped = rp__attr_bool(call, 3);
    rp_tensor *q = rp__wide(call->in[0]), *k = rp__wide(call->in[1]), *v = rp__wide(call->in[2]), *mask = call->in[3];

    rp_tensor *scores = product(site, q, rp_transpose_at(site, k, -2, -1), grouped);
    scores = rp_mul_scalar_at(site, scores, scale);
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

/* ---- one kernel */

/* Features of a head, at the most: tiles of keys and queries lie in shared memory. */
static rp_dim most_features(rp_dtype dtype) { return dtype == RP_F64 ? 128 : 256; }

/* Size of dim i of t as if it had nd dims: 1 before its own. */
static rp_dim size_as(const rp_tensor *t, unsigned nd, unsigned i) {
    return i + t->ndim < nd ? 1 : t->size[i + t->ndim - nd];
}

typedef struct batch { /* what the operands are broadcast to, but for their last two dims */
    unsigned ndim;     /* with them */
    bool grouped;      /* heads of keys and values, dim -3, divide those of queries */
    rp_dim size[RP_MAX_DIMS];
} batch;

static bool widen(rp_dim *size, rp_dim by) {
    if (rp__dim_is(RP__DIM_EQ, by, 1)) return true;
    if (rp__dim_is(RP__DIM_EQ, *size, 1)) *size = by;
    return rp__dim_is(RP__DIM_EQ, *size, by);
}

/* False: the kernel does not serve the call, or there is an error in it that the other form names. */
static bool flash_serves(const rp__call *call, batch *b) {
    const rp_tensor *const *in = (const rp_tensor *const *)call->in, *mask = in[3];
    const double p = rp__attr_float(call, 0);
    if (p >= 1) return false;
    b->ndim = 2;
    b->grouped = rp__attr_bool(call, 3);
    for (unsigned k = 0; k < 3; k++) {
        if (in[k]->ndim > b->ndim) b->ndim = in[k]->ndim;
        for (unsigned i = 0; i < in[k]->ndim; i++)
            if (rp__dim_is(RP__DIM_EQ, in[k]->size[i], 0)) return false;
    }
    const rp_dim *q = in[0]->size + in[0]->ndim - 2, *key = in[1]->size + in[1]->ndim - 2,
                 *value = in[2]->size + in[2]->ndim - 2;
    if (!rp__dim_is(RP__DIM_EQ, q[1], key[1]) || !rp__dim_is(RP__DIM_EQ, key[0], value[0])) return false;
    const rp_dim most = most_features((rp_dtype)in[0]->dtype);
    if (rp__dim_is(RP__DIM_LT, most, q[1]) || rp__dim_is(RP__DIM_LT, most, value[1])) return false;
    bool scores = true; /* does the batch of the values not widen that of the scores? */
    for (unsigned i = 0; i + 2 < b->ndim; i++) {
        b->size[i] = size_as(in[0], b->ndim, i);
        if (b->grouped && i + 3 == b->ndim) {
            if (!rp__dim_is(RP__DIM_EQ, size_as(in[1], b->ndim, i), size_as(in[2], b->ndim, i))) return false;
            continue;
        }
        if (!widen(&b->size[i], size_as(in[1], b->ndim, i))) return false;
        const rp_dim value_size = size_as(in[2], b->ndim, i);
        scores = scores && (rp__dim_is(RP__DIM_EQ, value_size, 1) || rp__dim_is(RP__DIM_EQ, b->size[i], value_size));
        if (!widen(&b->size[i], value_size)) return false;
    }
    /* Masks and random numbers are those of the scores. */
    if (!scores && (mask || p > 0)) return false;
    if (!mask) return true;
    if (mask->ndim > b->ndim) return false;
    for (unsigned i = 0; i < b->ndim; i++) {
        const rp_dim has = size_as(mask, b->ndim, i), of = i + 2 < b->ndim    ? b->size[i]
                                                           : i + 2 == b->ndim ? q[0]
                                                                              : key[0];
        if (!rp__dim_is(RP__DIM_EQ, has, 1) && !rp__dim_is(RP__DIM_EQ, has, of)) return false;
    }
    return true;
}

/* t (..., M, N) as (B, H, M, N): heads are dim -3 of four dims and of groups, else every row of the batch has one. heads: in the place
   of that dim's size; 0: as it is in the batch. */
static rp_tensor *as_heads(const char *site, const batch *b, rp_tensor *t, rp_dim heads, rp_dim m, rp_dim n) {
    rp_dim size[RP_MAX_DIMS];
    const unsigned nd = b->ndim;
    bool same = t->ndim == nd;
    for (unsigned i = 0; i + 2 < nd; i++) size[i] = b->size[i];
    if (heads) size[nd - 3] = heads;
    size[nd - 2] = m, size[nd - 1] = n;
    for (unsigned i = 0; same && i < nd; i++) same = rp__dim_is(RP__DIM_EQ, size[i], t->size[i]);
    if (!same) t = rp_expand_at(site, t, size, nd, NULL);
    if (nd == 4) return t;
    if (nd == 2) return rp_unsqueeze_at(site, rp_unsqueeze_at(site, t, 0), 0);
    if (b->grouped) return nd == 3 ? rp_unsqueeze_at(site, t, 0) : rp_flatten_at(site, t, 0, (int64_t)nd - 4);
    return rp_unsqueeze_at(site, nd == 3 ? t : rp_flatten_at(site, t, 0, (int64_t)nd - 3), 1);
}

static rp_status flash(const rp__call *call, const batch *b, rp_scalar scale) {
    const char *site = call->site;
    rp_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2], *mask = call->in[3], *place = NULL;
    const double p = rp__attr_float(call, 0);
    const unsigned nd = b->ndim;
    const rp_dim rows = q->size[q->ndim - 2], keys = k->size[k->ndim - 2], features = q->size[q->ndim - 1],
                 values = v->size[v->ndim - 1], heads = b->grouped ? k->size[k->ndim - 3] : 0;
    if (mask) mask = as_heads(site, b, mask, 0, rows, keys);
    q = as_heads(site, b, q, 0, rows, features);
    k = as_heads(site, b, k, heads, keys, features);
    v = as_heads(site, b, v, heads, keys, values);
    if (p > 0) place = rp_attention_place_at(site, q, k, NULL);
    rp_tensor *out = rp_flash_attention_at(site, q, k, v, mask, place, p, rp__attr_bool(call, 1), scale, NULL);
    out = rp_transpose_at(site, out, 1, 2); /* (B, H, L, V) */
    if (rp__tensor_is_error(out)) return rp_error_status();
    if (nd == 2) out = rp_squeeze_at(site, rp_squeeze_at(site, out, 0), 0);
    if (nd == 3) out = rp_squeeze_at(site, out, b->grouped ? 0 : 1);
    if (nd > 4 && !b->grouped) out = rp_squeeze_at(site, out, 1);
    if (nd > 4) out = rp_unflatten_at(site, out, 0, b->size, b->grouped ? nd - 3 : nd - 2);
    call->out[0] = out;
    return rp__tensor_is_error(out) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_scaled_dot_product_attention(const rp__call *call) {
    batch b;
    RP_TRY(check(call));
    if (rp__attr_bool(call, 3)) RP_TRY(check_heads(call));
    const rp_tensor *q = call->in[0];
    const rp_scalar features = rp__scalar_dim(rp__dim_apply(RP__DIM_MAX, q->size[q->ndim - 1], 1));
    const rp_scalar scale = rp__attr_is_none(&call->attrs[2])
                                ? rp__num_apply(RP__NUM_DIV, rp_f64(1), rp__num_apply(RP__NUM_SQRT, features, features))
                                : call->attrs[2].v.scalar;
    return flash_serves(call, &b) ? flash(call, &b, scale) : composed(call, scale);
}

/* ---- the library op */

static bool same_size(const rp_tensor *a, unsigned i, const rp_tensor *b, unsigned k) {
    return rp__dim_is(RP__DIM_EQ, a->size[i], b->size[k]);
}

/* in: q, k, v, mask, place */
static rp_status check_flash(const rp__call *call, rp_tensor *const *in) {
    const rp_tensor *q = in[0], *k = in[1], *v = in[2], *mask = in[3], *place = in[4];
    const rp_dtype dtype = (rp_dtype)q->dtype;
    const double p = rp__attr_float(call, 0);
    RP_TRY(rp__call_need_float(call, dtype));
    if (k->dtype != q->dtype || v->dtype != q->dtype ||
        (mask && mask->dtype != RP_BOOL && mask->dtype != RP_F32 && mask->dtype != q->dtype) ||
        (place && place->dtype != RP_I64))
        return rp__op_error(call, RP_ERROR_DTYPE, "operands of other types");
    bool fits = q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && same_size(q, 0, k, 0) && same_size(q, 0, v, 0) &&
                same_size(k, 1, v, 1) && same_size(k, 2, v, 2) && same_size(q, 3, k, 3) &&
                rp__dim_is(RP__DIM_LT, 0, k->size[1]) &&
                rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MOD, q->size[1], k->size[1]), 0);
    if (fits && mask)
        fits = mask->ndim == 4 && same_size(mask, 0, q, 0) && same_size(mask, 1, q, 1) && same_size(mask, 2, q, 2) &&
               same_size(mask, 3, k, 2);
    if (fits && place) fits = place->ndim == 1 && rp__dim_is(RP__DIM_EQ, place->size[0], 2);
    if (!fits || rp__dim_is(RP__DIM_LT, most_features(dtype), q->size[3]) ||
        rp__dim_is(RP__DIM_LT, most_features(dtype), v->size[3]))
        return rp__op_error(call, RP_ERROR_SHAPE, "operands of these sizes do not fit each other");
    if (!(p >= 0 && p < 1) || (p > 0) != (place != NULL))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "dropout of %g %s a place", p, place ? "with" : "without");
    return RP_OK;
}

static void set_meta(rp__meta *out, rp_dtype dtype, unsigned ndim, rp_dim a, rp_dim b, rp_dim c, rp_dim d) {
    out->dtype = dtype;
    out->ndim = (uint8_t)ndim;
    out->size[0] = a, out->size[1] = b, out->size[2] = c, out->size[3] = d;
}

rp_status rp__infer_flash_attention(const rp__call *call, rp__meta *out) {
    RP_TRY(check_flash(call, call->in));
    const rp_tensor *q = call->in[0], *v = call->in[2];
    set_meta(&out[0], (rp_dtype)q->dtype, 4, q->size[0], q->size[2], q->size[1], v->size[3]);
    set_meta(&out[1], q->dtype == RP_F64 ? RP_F64 : RP_F32, 3, q->size[0], q->size[1], q->size[2], 1);
    return RP_OK;
}

rp_status rp__infer_flash_attention_backward(const rp__call *call, rp__meta *out) {
    RP_TRY(check_flash(call, call->in + 1));
    const rp_tensor *grad = call->in[0], *q = call->in[1], *k = call->in[2], *v = call->in[3], *lse = call->in[6],
                    *delta = call->in[7];
    const rp_dtype dtype = (rp_dtype)q->dtype;
    bool fits = grad->ndim == 4 && same_size(grad, 0, q, 0) && same_size(grad, 1, q, 2) && same_size(grad, 2, q, 1) &&
                same_size(grad, 3, v, 3) && lse->ndim == 3 && delta->ndim == 3;
    for (unsigned i = 0; fits && i < 3; i++) fits = same_size(lse, i, q, i) && same_size(delta, i, q, i);
    if (!fits) return rp__op_error(call, RP_ERROR_SHAPE, "operands of these sizes do not fit each other");
    if ((rp_dtype)grad->dtype != dtype || !rp__dtype_is_float((rp_dtype)lse->dtype) ||
        !rp__dtype_is_float((rp_dtype)delta->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "operands of other types");
    set_meta(&out[0], dtype, 4, q->size[0], q->size[2], q->size[1], q->size[3]);
    set_meta(&out[1], dtype, 4, k->size[0], k->size[2], k->size[1], k->size[3]);
    set_meta(&out[2], dtype, 4, v->size[0], v->size[2], v->size[1], v->size[3]);
    return RP_OK;
}

static rp__operand operand_or_none(const rp_tensor *t) { return t ? rp__operand_of(t) : (rp__operand){.base = NULL}; }

static struct rp__attention attention_of(const rp__call *call) {
    return (struct rp__attention){.scale = rp__scalar_f64(call->attrs[2].v.scalar),
                                  .causal = rp__attr_bool(call, 1),
                                  .dropout = rp__attr_float(call, 0)};
}

/* The two numbers of a place, one behind the other; absent if it is. */
static rp_status place_of(rp_tensor *place, rp__operand *out) {
    if (place) place = rp__run_contiguous(place, RP_I64);
    *out = operand_or_none(place);
    return place && rp__tensor_is_error(place) ? rp_error_status() : RP_OK;
}

rp_status rp__run_flash_attention(const rp__call *call) {
    rp__operand o[7] = {rp__operand_of(call->out[0]), rp__operand_of(call->out[1])};
    for (unsigned i = 0; i < 4; i++) o[2 + i] = operand_or_none(call->in[i]);
    RP_TRY(place_of(call->in[4], &o[6]));
    rp__library_call library = {.attention = attention_of(call)};
    return rp__run_library_op(call, RP__LIB_ATTENTION, o, 7, &library);
}

rp_status rp__run_flash_attention_backward(const rp__call *call) {
    rp_tensor *const *in = call->in;
    const rp_dtype sums = (rp_dtype)in[1]->dtype == RP_F64 ? RP_F64 : RP_F32;
    rp_tensor *lse = (rp_dtype)in[6]->dtype == sums ? in[6] : rp__run_contiguous(in[6], sums),
              *delta = (rp_dtype)in[7]->dtype == sums ? in[7] : rp__run_contiguous(in[7], sums);
    if (rp__tensor_is_error(lse) || rp__tensor_is_error(delta)) return rp_error_status();
    rp__operand o[11] = {rp__operand_of(call->out[0]), rp__operand_of(call->out[1]), rp__operand_of(call->out[2]),
                         rp__operand_of(in[0]),        rp__operand_of(in[1]),        rp__operand_of(in[2]),
                         rp__operand_of(in[3]),        rp__operand_of(lse),          rp__operand_of(delta),
                         operand_or_none(in[4])};
    RP_TRY(place_of(in[5], &o[10]));
    rp__library_call keys = {.attention = attention_of(call)}, queries = keys;
    RP_TRY(rp__run_library_op(call, RP__LIB_ATTENTION_KEYS, o, 11, &keys));
    return rp__run_library_op(call, RP__LIB_ATTENTION_QUERIES, o, 11, &queries);
}

/* ---- random numbers of the weights: element (b, h, i, j) of (B, H, L, S) in row-major order, as dropout of the weights draws them */

rp_dim rp__attention_weights(const rp__call *call) {
    const rp_tensor *q = call->in[0], *k = call->in[1];
    const rp_dim rows = rp__dim_apply(RP__DIM_MUL, rp__dim_apply(RP__DIM_MUL, q->size[0], q->size[1]), q->size[2]);
    return rp__dim_apply(RP__DIM_MUL, rows, k->size[2]);
}

rp_status rp__infer_attention_place(const rp__call *call, rp__meta *out) {
    if (call->in[0]->ndim != 4 || call->in[1]->ndim != 4)
        return rp__op_error(call, RP_ERROR_SHAPE, "operands need four dims");
    set_meta(out, RP_I64, 1, 2, 1, 1, 1);
    return RP_OK;
}

rp_status rp__run_attention_place(const rp__call *call) {
    rp__device *d = rp__device_get(call->out[0]->device);
    if (!d) return rp_error_status();
    rp__library_call library = {.op = NULL};
    const uint64_t n = (uint64_t)rp__attention_weights(call);
    RP_TRY(rp__reserve_draw(call, 0, d, rp__current_stream(d), n / 4 + (n % 4 != 0), &library.draw));
    const rp__operand o = rp__operand_of(call->out[0]);
    return rp__run_library_op(call, RP__LIB_ATTENTION_PLACE, &o, 1, &library);
}

rp_status rp__infer_attention_keep(const rp__call *call, rp__meta *out) {
    const rp_tensor *place = call->in[0], *q = call->in[1], *k = call->in[2];
    if (q->ndim != 4 || k->ndim != 4 || place->ndim != 1 || !rp__dim_is(RP__DIM_EQ, place->size[0], 2) ||
        place->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_SHAPE, "operands need four dims, and a place two int64");
    set_meta(out, RP_BOOL, 4, q->size[0], q->size[1], q->size[2], k->size[2]);
    return RP_OK;
}

rp_status rp__run_attention_keep(const rp__call *call) {
    rp__operand o[2] = {rp__operand_of(call->out[0])};
    RP_TRY(place_of(call->in[0], &o[1]));
    rp__library_call library = {.attention = {.dropout = rp__attr_float(call, 0)}};
    return rp__run_library_op(call, RP__LIB_ATTENTION_KEEP, o, 2, &library);
}
