/* Products, convolutions, pools and library ops for emitters: one row an op. A row that cannot say the call, or finds that the
   language lacks an operation which the op's loops do without, leaves it to those. */
#include <string.h>

#include "compile/rewrite.h"
#include "core/alloc.h"
#include "doors/lower.h"

typedef struct row_call {
    rp__emitter *e;
    const rp__ir_node *n;
    const rp__put_val *in;
    rp__put_val *out;
} row_call;

static const rp__meta *meta_of(const row_call *r, unsigned k) { return &r->e->ir->values[r->n->out[k]].meta; }
static const rp__meta *in_meta(const row_call *r, unsigned k) { return &r->e->ir->values[r->n->in[k]].meta; }
static bool has(const row_call *r, unsigned k) { return k < r->n->n_in && r->in[k] != RP__EMIT_NONE; }
static int64_t attr_int(const row_call *r, unsigned k) { return r->n->attrs[k].v.i; }
static int64_t attr_at(const row_call *r, unsigned k, unsigned i) {
    const rp_attr *a = &r->n->attrs[k];
    return a->v.ints[a->n == 1 ? 0 : i];
}

static bool numbers(const rp_dim *size, unsigned ndim) {
    for (unsigned d = 0; d < ndim; d++)
        if (rp__dim_is_symbol(size[d])) return false;
    return true;
}

/* Operand k in the type in which products of it are added up. */
static rp__put_val operand(const row_call *r, unsigned k) {
    const rp_dtype dtype = rp__put_dtype(r->e, r->in[k]);
    const rp_dtype to = dtype == RP_U8 || dtype == RP_BOOL ? RP_I64 : (rp_dtype)rp__dtypes[dtype].compute;
    return rp__put_cast(r->e, r->in[k], to);
}

static void give(const row_call *r, unsigned k, rp__put_val v) {
    const rp__meta *m = meta_of(r, k);
    v = rp__put_cast(r->e, v, m->dtype);
    r->out[k] = rp__put_reshape(r->e, v, m->size, m->ndim);
}

static int64_t wrapped(int64_t dim, unsigned ndim) { return dim < 0 ? dim + (int64_t)(ndim ? ndim : 1) : dim; }

/* ---- products */

static bool row_bmm(const row_call *r) {
    if (meta_of(r, 0)->dtype == RP_BOOL) return false;
    give(r, 0, rp__put_matmul(r->e, operand(r, 0), operand(r, 1)));
    return true;
}

static bool row_linear(const row_call *r) {
    rp__emitter *e = r->e;
    const rp__meta *x = in_meta(r, 0), *w = in_meta(r, 1);
    if (meta_of(r, 0)->dtype == RP_BOOL) return false;
    static const int64_t turned[] = {1, 0};
    const rp_dim k = w->size[w->ndim - 1], n = w->ndim == 1 ? 1 : w->size[0];
    rp_dim rows = 1;
    for (unsigned d = 0; d + 1 < x->ndim; d++) rows = rp__dim_apply(RP__DIM_MUL, rows, x->size[d]);
    const rp_dim a_size[] = {rows, k}, b_size[] = {n, k};
    const rp__put_val a = rp__put_reshape(e, operand(r, 0), a_size, 2),
                      b = rp__put_permute(e, rp__put_reshape(e, operand(r, 1), b_size, 2), turned);
    rp__put_val y = rp__put_matmul(e, a, b);
    if (has(r, 2)) y = RP__EMIT2(e, ADD, y, operand(r, 2));
    give(r, 0, y);
    return true;
}

static bool geometry(const row_call *r, unsigned first, unsigned spatial, rp__put_conv *g) {
    memset(g, 0, sizeof *g);
    g->spatial = (uint8_t)spatial;
    for (unsigned d = 0; d < spatial; d++) {
        g->stride[d] = attr_at(r, first, d);
        g->before[d] = g->after[d] = attr_at(r, first + 1, d);
        g->dilation[d] = attr_at(r, first + 2, d);
    }
    g->groups = attr_int(r, first + 3);
    return rp__dtype_is_float(meta_of(r, 0)->dtype);
}

/* With a batch dim of 1 where there is none. */
static rp__put_val batched(rp__emitter *e, rp__put_val v, unsigned spatial) {
    if (e->failed || e->types[v].ndim != spatial + 1) return v;
    const rp__put_type t = e->types[v];
    rp_dim size[RP_MAX_DIMS] = {1};
    memcpy(size + 1, t.size, t.ndim * sizeof *size);
    return rp__put_reshape(e, v, size, t.ndim + 1u);
}
static rp__put_type batched_type(const rp__meta *m, rp_dtype dtype, unsigned spatial) {
    rp__put_type t = {.dtype = dtype};
    if (m->ndim == spatial + 1) t.size[t.ndim++] = 1;
    memcpy(t.size + t.ndim, m->size, m->ndim * sizeof *m->size);
    t.ndim = (uint8_t)(t.ndim + m->ndim);
    return t;
}

static bool row_conv(const row_call *r) {
    rp__emitter *e = r->e;
    const unsigned spatial = in_meta(r, 1)->ndim - 2u;
    rp__put_conv g;
    if (!geometry(r, 0, spatial, &g)) return false;
    const rp__put_val x = batched(e, operand(r, 0), spatial);
    const rp__put_type t = batched_type(meta_of(r, 0), rp__put_dtype(e, x), spatial);
    rp__put_val y = rp__put_conv_of(e, false, x, operand(r, 1), &g, &t);
    if (has(r, 2)) {
        rp_dim size[RP_MAX_DIMS];
        for (unsigned d = 0; d < spatial + 2; d++) size[d] = d == 1 ? t.size[1] : 1;
        y = RP__EMIT2(e, ADD, y, rp__put_reshape(e, operand(r, 2), size, spatial + 2));
    }
    give(r, 0, y);
    return true;
}

static bool row_conv_input(const row_call *r) {
    rp__emitter *e = r->e;
    const rp__meta *w = in_meta(r, 1), *grad = in_meta(r, 0), *m = meta_of(r, 0);
    const unsigned spatial = w->ndim - 2u;
    rp__put_conv g;
    if (!geometry(r, 1, spatial, &g) || !numbers(m->size, m->ndim) || !numbers(grad->size, grad->ndim)) return false;
    const rp__put_val y = batched(e, operand(r, 0), spatial);
    const rp__put_type t = batched_type(m, rp__put_dtype(e, y), spatial);
    for (unsigned d = 0; d < spatial; d++) {
        const int64_t reach = g.dilation[d] * (w->size[2 + d] - 1) + 1;
        g.after[d] = (grad->size[grad->ndim - spatial + d] - 1) * g.stride[d] + reach - g.before[d] - t.size[2 + d];
    }
    give(r, 0, rp__put_conv_of(e, true, y, operand(r, 1), &g, &t));
    return true;
}

/* (N, G C, *) as (C, G N, *), and (N, G O, *) as (G O, N, *): the product over images is a convolution with the gradient as its
   weight, whose steps are the other's dilation. */
static bool row_conv_weight(const row_call *r) {
    rp__emitter *e = r->e;
    const rp__meta *m = meta_of(r, 0);
    const unsigned spatial = m->ndim - 2u;
    rp__put_conv g;
    if (!geometry(r, 1, spatial, &g)) return false;
    const rp__put_val grad = batched(e, operand(r, 0), spatial), x = batched(e, operand(r, 1), spatial);
    if (e->failed) return true;
    const rp__put_type gt = e->types[grad], xt = e->types[x];
    if (!numbers(gt.size, gt.ndim) || !numbers(xt.size, xt.ndim) || spatial + 3 > RP_MAX_DIMS) return false;
    const int64_t groups = g.groups, batch = xt.size[0], c = xt.size[1] / groups, o = gt.size[1] / groups;
    rp_dim split[RP_MAX_DIMS], joined[RP_MAX_DIMS];
    int64_t order[RP_MAX_DIMS];
    split[0] = batch, split[1] = groups, split[2] = c;
    joined[0] = c, joined[1] = groups * batch;
    order[0] = 2, order[1] = 1, order[2] = 0;
    for (unsigned d = 0; d < spatial; d++) split[3 + d] = joined[2 + d] = xt.size[2 + d], order[3 + d] = 3 + (int64_t)d;
    rp__put_val a = rp__put_reshape(e, x, split, spatial + 3);
    a = rp__put_reshape(e, rp__put_permute(e, a, order), joined, spatial + 2);
    split[2] = o;
    joined[0] = groups * o, joined[1] = batch;
    order[0] = 1, order[1] = 2, order[2] = 0;
    for (unsigned d = 0; d < spatial; d++) split[3 + d] = joined[2 + d] = gt.size[2 + d];
    rp__put_val b = rp__put_reshape(e, grad, split, spatial + 3);
    b = rp__put_reshape(e, rp__put_permute(e, b, order), joined, spatial + 2);
    rp__put_conv turned = g;
    rp__put_type t = {.dtype = rp__put_dtype(e, a), .ndim = (uint8_t)(spatial + 2), .size = {c, groups * o}};
    rp_dim start[RP_MAX_DIMS] = {0}, size[RP_MAX_DIMS] = {c, groups * o};
    int64_t step[RP_MAX_DIMS] = {1, 1};
    for (unsigned d = 0; d < spatial; d++) {
        turned.stride[d] = g.dilation[d];
        turned.dilation[d] = g.stride[d];
        const int64_t reach = g.stride[d] * (gt.size[2 + d] - 1) + 1;
        t.size[2 + d] = (xt.size[2 + d] + 2 * g.before[d] - reach) / g.dilation[d] + 1;
        size[2 + d] = m->size[2 + d];
        step[2 + d] = 1;
    }
    rp__put_val y = rp__put_conv_of(e, false, a, b, &turned, &t);
    y = rp__put_slice(e, y, start, size, step);
    int64_t back[RP_MAX_DIMS] = {1, 0};
    for (unsigned d = 2; d < spatial + 2; d++) back[d] = d;
    give(r, 0, rp__put_permute(e, y, back));
    return true;
}

/* ---- pools */

static bool windows(const row_call *r, bool dilated, int64_t *kernel, rp__put_conv *g) {
    const rp__meta *x = in_meta(r, 0), *y = meta_of(r, 0);
    const unsigned spatial = r->n->op->schema.params[1].fixed;
    if (!numbers(x->size, x->ndim) || !numbers(y->size, y->ndim)) return false;
    memset(g, 0, sizeof *g);
    g->spatial = (uint8_t)spatial;
    g->groups = 1;
    for (unsigned d = 0; d < spatial; d++) {
        kernel[d] = attr_at(r, 0, d);
        g->stride[d] = r->n->attrs[1].n ? attr_at(r, 1, d) : kernel[d];
        g->before[d] = attr_at(r, 2, d);
        g->dilation[d] = dilated ? attr_at(r, 3, d) : 1;
        const int64_t places = y->size[y->ndim - spatial + d], in = x->size[x->ndim - spatial + d],
                      reach = (places - 1) * g->stride[d] + g->dilation[d] * (kernel[d] - 1) + 1;
        g->after[d] = reach > in + g->before[d] ? reach - in - g->before[d] : 0;
    }
    return true;
}

static bool row_max_pool(const row_call *r) {
    int64_t kernel[3];
    rp__put_conv g;
    if (!r->e->ops->pool || rp__lower_is_read(r->e->ir, r->n->out[1]) || !windows(r, true, kernel, &g)) return false;
    const rp__put_val x = batched(r->e, operand(r, 0), g.spatial);
    const rp__put_type t = batched_type(meta_of(r, 0), rp__put_dtype(r->e, x), g.spatial);
    give(r, 0, rp__put_pool(r->e, RP__REDUCE_MAX, x, kernel, &g, &t));
    const rp__meta *m = meta_of(r, 1); /* nobody reads it */
    r->out[1] = rp__put_expand(r->e, rp__put_int(r->e, m->dtype, 0), m->size, m->ndim);
    return true;
}

/* The elements that each window's mean is of, in the way of PyTorch: a window ends at the padding's end. */
static rp__put_val counts(const row_call *r, const rp__put_conv *g, const int64_t *kernel, bool padding, int64_t given,
                          rp_dtype dtype) {
    rp__emitter *e = r->e;
    const rp__meta *x = in_meta(r, 0), *y = meta_of(r, 0);
    if (given != INT64_MIN) return rp__put_int(e, dtype, given);
    rp__put_val all = RP__EMIT_NONE;
    for (unsigned d = 0; d < g->spatial; d++) {
        const int64_t places = y->size[y->ndim - g->spatial + d], in = x->size[x->ndim - g->spatial + d];
        double *count = rp__calloc((size_t)places + 1, sizeof *count);
        if (!count) {
            rp__put_oom(e);
            return RP__EMIT_NONE;
        }
        for (int64_t p = 0; p < places; p++) {
            int64_t begin = p * g->stride[d] - g->before[d], end = begin + kernel[d];
            if (end > in + g->before[d]) end = in + g->before[d];
            if (!padding) {
                if (begin < 0) begin = 0;
                if (end > in) end = in;
            }
            count[p] = (double)(end - begin);
        }
        const rp__put_type t = {.dtype = RP_F64, .ndim = 1, .size = {places}};
        rp__put_val c = rp__put_cast(e, rp__put_table(e, &t, count, (size_t)places * sizeof *count), dtype);
        rp__free(count);
        rp_dim size[RP_MAX_DIMS];
        for (unsigned k = 0; k < g->spatial; k++) size[k] = k == d ? places : 1;
        c = rp__put_reshape(e, c, size, g->spatial);
        all = all == RP__EMIT_NONE ? c : RP__EMIT2(e, MUL, all, c);
    }
    return all;
}

static bool row_avg_pool(const row_call *r) {
    int64_t kernel[3];
    rp__put_conv g;
    if (!r->e->ops->pool || !windows(r, false, kernel, &g)) return false;
    const rp__put_val x = batched(r->e, operand(r, 0), g.spatial);
    const rp_dtype dtype = rp__put_dtype(r->e, x);
    const rp__put_type t = batched_type(meta_of(r, 0), dtype, g.spatial);
    const rp__put_val sum = rp__put_pool(r->e, RP__REDUCE_SUM, x, kernel, &g, &t),
                      n = counts(r, &g, kernel, r->n->attrs[4].v.b, r->n->attrs[5].v.i, dtype);
    give(r, 0, RP__EMIT2(r->e, DIV, sum, n));
    return true;
}

/* A single place a plane: the mean of the plane. */
static bool row_adaptive_avg_pool(const row_call *r) {
    const rp__meta *x = in_meta(r, 0), *y = meta_of(r, 0);
    const unsigned spatial = (unsigned)r->n->attrs[0].n;
    uint32_t mask = 0;
    rp_dim n = 1;
    for (unsigned d = x->ndim - spatial; d < x->ndim; d++) {
        mask |= 1u << d;
        n = rp__dim_apply(RP__DIM_MUL, n, x->size[d]);
        if (!rp__dim_same_word(y->size[d], 1)) return false;
    }
    if (rp__dim_is_symbol(n)) return false;
    const rp__put_val v = operand(r, 0);
    give(r, 0,
         RP__EMIT2(r->e, DIV, rp__put_reduce(r->e, RP__REDUCE_SUM, v, mask),
                   rp__put_int(r->e, rp__put_dtype(r->e, v), n)));
    return true;
}

/* What a plane's places were given, added up at the indices. */
static bool row_max_pool_input(const row_call *r) {
    rp__emitter *e = r->e;
    const rp__meta *m = meta_of(r, 0), *grad = in_meta(r, 0);
    const unsigned spatial = (unsigned)r->n->attrs[1].n, lead = m->ndim - spatial;
    if (!e->ops->scatter || !numbers(m->size, m->ndim) || !numbers(grad->size, grad->ndim)) return false;
    rp_dim planes = 1, whole = 1, places = 1;
    for (unsigned d = 0; d < m->ndim; d++) {
        if (d < lead) planes *= m->size[d];
        if (d >= lead) whole *= m->size[d], places *= grad->size[d];
    }
    const rp_dim to[] = {planes, whole}, from[] = {planes, places};
    const rp__put_val src = rp__put_reshape(e, operand(r, 0), from, 2), index = rp__put_reshape(e, r->in[1], from, 2),
                      zeros = rp__put_expand(e, rp__put_int(e, rp__put_dtype(e, src), 0), to, 2);
    give(r, 0, rp__put_scatter(e, RP__SCATTER_ADD, zeros, index, src, 1));
    return true;
}

/* ---- rearrangement and places */

static bool row_pad(const row_call *r) {
    const rp__meta *x = in_meta(r, 0);
    const rp_attr *pad = &r->n->attrs[0];
    int64_t before[RP_MAX_DIMS] = {0}, after[RP_MAX_DIMS] = {0};
    for (size_t k = 0; k + 1 < pad->n; k += 2) {
        before[x->ndim - 1 - k / 2] = pad->v.ints[k];
        after[x->ndim - 1 - k / 2] = pad->v.ints[k + 1];
    }
    const rp__put_val value = rp__put_scalar(r->e, x->dtype, r->n->attrs[1].v.scalar);
    give(r, 0, rp__put_pad(r->e, r->in[0], before, after, value));
    return true;
}

static bool row_flip(const row_call *r) {
    uint32_t mask = 0;
    for (size_t k = 0; k < r->n->attrs[0].n; k++) mask |= 1u << wrapped(r->n->attrs[0].v.ints[k], in_meta(r, 0)->ndim);
    if (!r->e->ops->flip || in_meta(r, 0)->ndim == 0) return false;
    give(r, 0, rp__put_flip(r->e, r->in[0], mask));
    return true;
}

static bool row_cat(const row_call *r) {
    const rp__meta *m = meta_of(r, 0);
    rp__put_val *parts = rp__calloc(r->n->n_in + 1u, sizeof *parts);
    unsigned n = 0;
    if (!parts) {
        rp__put_oom(r->e);
        return true;
    }
    for (unsigned k = 0; k < r->n->n_in; k++) {
        const rp__meta *x = in_meta(r, k);
        if (x->ndim == 1 && m->ndim != 1) continue; /* of no elements, whatever the others' rank */
        parts[n++] = rp__put_cast(r->e, r->in[k], m->dtype);
    }
    const int64_t dim = wrapped(attr_int(r, 0), m->ndim);
    if (n > 0) give(r, 0, rp__put_cat(r->e, parts, n, (unsigned)dim));
    rp__free(parts);
    return n > 0;
}

static bool row_take(const row_call *r) { /* index_select */
    const rp__meta *x = in_meta(r, 0);
    if (x->ndim == 0) return false;
    const rp__meta *at = in_meta(r, 1);
    const rp_dim one[] = {1};
    rp__put_val index = rp__put_cast(r->e, r->in[1], RP_I64);
    if (at->ndim == 0) index = rp__put_reshape(r->e, index, one, 1);
    give(r, 0, rp__put_take(r->e, r->in[0], index, (unsigned)wrapped(attr_int(r, 0), x->ndim)));
    return true;
}

static bool row_embedding(const row_call *r) {
    give(r, 0, rp__put_take(r->e, r->in[0], rp__put_cast(r->e, r->in[1], RP_I64), 0));
    return true;
}

static bool row_gather(const row_call *r) {
    const rp__meta *x = in_meta(r, 0), *at = in_meta(r, 1);
    if (!r->e->ops->gather || x->ndim == 0 || at->ndim != x->ndim) return false;
    give(r, 0, rp__put_gather(r->e, r->in[0], r->in[1], (unsigned)wrapped(attr_int(r, 0), x->ndim)));
    return true;
}

static bool scatter(const row_call *r, rp__scatter kind) {
    rp__emitter *e = r->e;
    const rp__meta *x = in_meta(r, 0), *at = in_meta(r, 1);
    if (!e->ops->scatter || x->ndim == 0 || at->ndim != x->ndim) return false;
    rp_dim start[RP_MAX_DIMS] = {0};
    int64_t step[RP_MAX_DIMS];
    for (unsigned d = 0; d < at->ndim; d++) step[d] = 1;
    const rp_dtype dtype = kind == RP__SCATTER_SET ? x->dtype : (rp_dtype)rp__dtypes[x->dtype].compute;
    const rp__put_val src = rp__put_cast(e, rp__put_slice(e, r->in[2], start, at->size, step), dtype);
    give(r, 0,
         rp__put_scatter(e, kind, rp__put_cast(e, r->in[0], dtype), r->in[1], src,
                         (unsigned)wrapped(attr_int(r, 0), x->ndim)));
    return true;
}
static bool row_scatter_add(const row_call *r) { return scatter(r, RP__SCATTER_ADD); }
static bool row_scatter_set(const row_call *r) { return scatter(r, RP__SCATTER_SET); }
static bool row_scatter_mul(const row_call *r) { return scatter(r, RP__SCATTER_MUL); }
static bool row_scatter_max(const row_call *r) { return scatter(r, RP__SCATTER_MAX); }
static bool row_scatter_min(const row_call *r) { return scatter(r, RP__SCATTER_MIN); }

static bool row_embedding_backward(const row_call *r) {
    rp__emitter *e = r->e;
    const rp__meta *m = meta_of(r, 0), *at = in_meta(r, 1);
    if (!e->ops->scatter || !numbers(m->size, m->ndim) || !numbers(at->size, at->ndim)) return false;
    rp_dim rows = 1;
    for (unsigned d = 0; d < at->ndim; d++) rows *= at->size[d];
    const rp_dim column[] = {rows, 1}, each[] = {rows, m->size[1]};
    const rp__put_val grad = rp__put_reshape(e, operand(r, 0), each, 2),
                      index =
                          rp__put_expand(e, rp__put_reshape(e, rp__put_cast(e, r->in[1], RP_I64), column, 2), each, 2),
                      zeros = rp__put_expand(e, rp__put_int(e, rp__put_dtype(e, grad), 0), m->size, 2);
    give(r, 0, rp__put_scatter(e, RP__SCATTER_ADD, zeros, index, grad, 0));
    return true;
}

static bool row_topk(const row_call *r) {
    const rp__meta *x = in_meta(r, 0);
    rp__put_val values, indices;
    if (x->ndim == 0 || rp__dim_is_symbol(attr_int(r, 0))) return false;
    rp__put_topk(r->e, r->in[0], attr_int(r, 0), (unsigned)wrapped(attr_int(r, 1), x->ndim), r->n->attrs[2].v.b,
                 &values, &indices);
    give(r, 0, values);
    give(r, 1, indices);
    return true;
}

/* Memory as it is found: zeros are as good. */
static bool row_empty(const row_call *r) {
    const rp__meta *m = meta_of(r, 0);
    give(r, 0, rp__put_expand(r->e, rp__put_int(r->e, m->dtype, 0), m->size, m->ndim));
    return true;
}

static bool row_attention(const row_call *r) { return rp__lower_attention(r->e, r->n, r->in, r->out); }
static bool row_attention_backward(const row_call *r) {
    return rp__lower_attention_backward(r->e, r->n, r->in, r->out);
}

static bool row_recur(const row_call *r) { return rp__lower_recur(r->e, r->n, r->in, r->out); }

static const struct {
    const char *op;
    bool (*run)(const row_call *r); /* false: not this call; nothing was written that anybody reads */
} rows[] = {
    {"bmm", row_bmm},
    {"linear", row_linear},
    {"conv1d", row_conv},
    {"conv2d", row_conv},
    {"conv3d", row_conv},
    {"conv_input", row_conv_input},
    {"conv_weight", row_conv_weight},
    {"max_pool2d_with_indices", row_max_pool},
    {"max_pool3d_with_indices", row_max_pool},
    {"max_pool_input", row_max_pool_input},
    {"avg_pool2d", row_avg_pool},
    {"avg_pool3d", row_avg_pool},
    {"adaptive_avg_pool2d", row_adaptive_avg_pool},
    {"adaptive_avg_pool3d", row_adaptive_avg_pool},
    {"constant_pad_nd", row_pad},
    {"flip", row_flip},
    {"cat", row_cat},
    {"index_select", row_take},
    {"embedding", row_embedding},
    {"gather", row_gather},
    {"scatter_add", row_scatter_add},
    {"scatter_set", row_scatter_set},
    {"scatter_mul", row_scatter_mul},
    {"scatter_max", row_scatter_max},
    {"scatter_min", row_scatter_min},
    {"embedding_backward", row_embedding_backward},
    {"topk", row_topk},
    {"recur", row_recur},
    {"empty", row_empty},
    {"flash_attention", row_attention},
    {"flash_attention_backward", row_attention_backward},
};

bool rp__lower_by_row(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    const row_call r = {e, n, in, out};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (strcmp(rows[k].op, n->op->name) == 0) return rows[k].run(&r) && !e->failed;
    return false;
}
