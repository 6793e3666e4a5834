/* Attention for emitters: what the kernels of ops/attention.c compute, as products with rows between them. Queries' heads that share
   a head of keys lie one behind the other, so a product takes them as rows of one matrix: (B, H, L, .) is (B, Hk, g L, .), and a sum
   over such rows is a sum over the group. Weights that dropout thins are left to the library, whose random numbers they take. */
#include <math.h>

#include "doors/lower.h"

typedef rp__put_val val;

typedef struct attention {
    rp__emitter *e;
    val q, k, v; /* (B, Hk, g L, E), (B, Hk, S, E), (B, Hk, S, V), in the type in which products are added up */
    val mask;    /* (B, H, L, S); RP__EMIT_NONE: none */
    rp_dtype dtype;
    rp_dim batch, heads, key_heads, rows, keys, features, values;
    bool causal;
    double scale;
} attention;

static val wide(rp__emitter *e, val v) { return rp__put_cast(e, v, (rp_dtype)rp__dtypes[rp__put_dtype(e, v)].compute); }

static val sized(rp__emitter *e, val v, rp_dim a, rp_dim b, rp_dim c, rp_dim d) {
    const rp_dim size[] = {a, b, c, d};
    return rp__put_reshape(e, v, size, 4);
}

static rp_dim group_rows(const attention *a) {
    if (rp__dim_same_word(a->heads, a->key_heads)) return a->rows;
    return rp__dim_apply(RP__DIM_MUL, rp__dim_apply(RP__DIM_FLOORDIV, a->heads, a->key_heads), a->rows);
}
static val by_group(const attention *a, val v, rp_dim last) {
    return sized(a->e, v, a->batch, a->key_heads, group_rows(a), last);
}
static val by_head(const attention *a, val v, rp_dim last) { return sized(a->e, v, a->batch, a->heads, a->rows, last); }

static val swapped(rp__emitter *e, val v, bool last) {
    static const int64_t middle[] = {0, 2, 1, 3}, ends[] = {0, 1, 3, 2};
    return rp__put_permute(e, v, last ? ends : middle);
}
static val turned(const attention *a, val v) { return swapped(a->e, v, true); }
/* (B, H, L, E) as (B, L, H, E), and back */
static val exchanged(rp__emitter *e, val v) { return swapped(e, v, false); }

static val zeros(rp__emitter *e, rp_dtype dtype, const rp_dim *size, unsigned ndim, double value) {
    return rp__put_expand(e, rp__put_number(e, dtype, value), size, ndim);
}

/* in: q, k, v, mask, place. False: the library's. */
static bool begin(attention *a, rp__emitter *e, const rp__ir_node *n, unsigned first, const val *in) {
    const rp__put_type *q = &e->types[in[first]], *k = &e->types[in[first + 1]], *v = &e->types[in[first + 2]];
    if (in[first + 4] != RP__EMIT_NONE) {
        rp__put_lacks(e, "its weights drop out by the library's random numbers");
        return false;
    }
    if (rp__scalar_is_symbol(n->attrs[2].v.scalar)) {
        rp__put_lacks(e, "its scale is calculated of a size that is not known");
        return false;
    }
    *a = (attention){.e = e,
                     .mask = in[first + 3],
                     .dtype = (rp_dtype)rp__dtypes[q->dtype].compute,
                     .batch = q->size[0],
                     .heads = q->size[1],
                     .key_heads = k->size[1],
                     .rows = q->size[2],
                     .keys = k->size[2],
                     .features = q->size[3],
                     .values = v->size[3],
                     .causal = n->attrs[1].v.b,
                     .scale = rp__scalar_f64(n->attrs[2].v.scalar)};
    a->q = by_group(a, wide(e, in[first]), a->features);
    a->k = wide(e, in[first + 1]);
    a->v = wide(e, in[first + 2]);
    return !e->failed;
}

/* Which scores the row may see; RP__EMIT_NONE: all, or a mask of numbers says it. */
static val seen(const attention *a) {
    rp__emitter *e = a->e;
    if (a->causal) return RP__EMIT_IS(e, LE, rp__lower_index(e, a->keys, 1, 2), rp__lower_index(e, a->rows, 0, 2));
    return a->mask != RP__EMIT_NONE && rp__put_dtype(e, a->mask) == RP_BOOL ? a->mask : RP__EMIT_NONE;
}

/* (B, H, L, S) */
static val scores(const attention *a) {
    rp__emitter *e = a->e;
    const val all = rp__put_matmul(e, a->q, turned(a, a->k)), may = seen(a);
    val s = by_head(a, RP__EMIT2(e, MUL, all, rp__put_number(e, a->dtype, a->scale)), a->keys);
    if (may != RP__EMIT_NONE) return rp__put_where(e, may, s, rp__put_number(e, a->dtype, -INFINITY));
    return a->mask == RP__EMIT_NONE ? s : RP__EMIT2(e, ADD, s, rp__put_cast(e, a->mask, a->dtype));
}

static val is(rp__emitter *e, val v, double number) {
    return RP__EMIT_IS(e, EQ, v, rp__put_number(e, rp__put_dtype(e, v), number));
}
/* v, and `other` where it is `number`: of rows that see nothing, whose weights are 0 */
static val unless(rp__emitter *e, val v, double number, double other) {
    return rp__put_where(e, is(e, v, number), rp__put_number(e, rp__put_dtype(e, v), other), v);
}

/* Weights (B, H, L, S) and logarithms of the sums (B, H, L, 1). */
static val softmax(const attention *a, val s, val *lse) {
    rp__emitter *e = a->e;
    const uint32_t last = 1u << 3;
    const val most = unless(e, rp__put_reduce(e, RP__REDUCE_MAX, s, last), -INFINITY, 0),
              power = RP__EMIT1(e, EXP, RP__EMIT2(e, SUB, s, most)),
              sum = rp__put_reduce(e, RP__REDUCE_SUM, power, last);
    *lse = RP__EMIT2(e, ADD, RP__EMIT1(e, LOG, sum), most);
    return RP__EMIT2(e, DIV, power, unless(e, sum, 0, 1));
}

/* The language's own, where every row sees a key and nobody reads the logarithms. */
static val softmax_alone(const attention *a, val s) {
    const rp__put_type t = a->e->types[s];
    const val out = rp__put_new(a->e, &t);
    if (out != RP__EMIT_NONE) a->e->ops->softmax(a->e, out, s);
    return out;
}

static void give(rp__emitter *e, const rp__ir_node *n, unsigned k, val v, val *out) {
    const rp__meta *m = &e->ir->values[n->out[k]].meta;
    out[k] = rp__put_reshape(e, rp__put_cast(e, v, m->dtype), m->size, m->ndim);
}

static void give_all(rp__emitter *e, const rp__ir_node *n, unsigned k, double value, val *out) {
    const rp__meta *m = &e->ir->values[n->out[k]].meta;
    out[k] = zeros(e, m->dtype, m->size, m->ndim, value);
}

bool rp__lower_attention(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    attention a;
    if (!begin(&a, e, n, 0, in)) return false;
    if (rp__dim_same_word(a.keys, 0)) { /* rows of nothing */
        give_all(e, n, 0, 0, out);
        give_all(e, n, 1, -INFINITY, out);
        return true;
    }
    const bool alone = a.mask == RP__EMIT_NONE && e->ops->softmax && !rp__lower_is_read(e->ir, n->out[1]);
    const val s = scores(&a);
    val lse = RP__EMIT_NONE;
    if (e->failed) return false;
    const val w = alone ? softmax_alone(&a, s) : softmax(&a, s, &lse),
              y = rp__put_matmul(e, by_group(&a, w, a.keys), a.v);
    give(e, n, 0, exchanged(e, by_head(&a, y, a.values)), out);
    if (alone)
        give_all(e, n, 1, 0, out); /* nobody reads it */
    else
        give(e, n, 1, lse, out);
    return true;
}

/* in: grad (B, L, H, V), q, k, v, mask, place, logarithms of the sums and delta (B, H, L); attention_grad.c has the formulas. */
bool rp__lower_attention_backward(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    attention a;
    if (!begin(&a, e, n, 1, in)) return false;
    if (rp__dim_same_word(a.keys, 0)) {
        for (unsigned k = 0; k < 3; k++) give_all(e, n, k, 0, out);
        return true;
    }
    const val grad = by_group(&a, exchanged(e, wide(e, in[0])), a.values),
              lse = by_head(&a, unless(e, rp__put_cast(e, in[6], a.dtype), -INFINITY, 0), 1),
              delta = by_group(&a, rp__put_cast(e, in[7], a.dtype), 1),
              p = by_group(&a, RP__EMIT1(e, EXP, RP__EMIT2(e, SUB, scores(&a), lse)), a.keys),
              slope = RP__EMIT2(e, SUB, rp__put_matmul(e, grad, turned(&a, a.v)), delta),
              d = RP__EMIT2(e, MUL, RP__EMIT2(e, MUL, p, slope), rp__put_number(e, a.dtype, a.scale)),
              dq = by_head(&a, rp__put_matmul(e, d, a.k), a.features), dk = rp__put_matmul(e, turned(&a, d), a.q),
              dv = rp__put_matmul(e, turned(&a, p), grad);
    if (e->failed) return false;
    give(e, n, 0, exchanged(e, dq), out);
    give(e, n, 1, exchanged(e, dk), out);
    give(e, n, 2, exchanged(e, dv), out);
    return true;
}
