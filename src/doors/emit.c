/* Emitters (emit.h): values and their types, and what holds for every language: the types of results, steps that change nothing,
   failures. Writes nothing itself. */
#include "doors/emit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

void rp__put_begin(rp__emitter *e, const rp__put_ops *ops, const rp_ir *ir) {
    memset(e, 0, sizeof *e);
    e->ops = ops;
    e->ir = ir;
}

void rp__put_end(rp__emitter *e) {
    rp__free(e->types);
    e->types = NULL;
    e->n_values = e->capacity = 0;
}

static void fail(rp__emitter *e, rp_status status) {
    if (e->failed) return;
    e->failed = true;
    e->status = status;
}

void rp__put_oom(rp__emitter *e) {
    if (!e->failed) (void)snprintf(e->why, sizeof e->why, "out of memory");
    fail(e, RP_ERROR_OUT_OF_MEMORY);
}

void rp__put_lacks(rp__emitter *e, const char *format, ...) {
    if (e->failed) return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(e->why, sizeof e->why, format, args);
    va_end(args);
    fail(e, RP_ERROR_UNAVAILABLE);
}

void rp__put_within(rp__emitter *e, const char *what) {
    char why[sizeof e->why];
    memcpy(why, e->why, sizeof why);
    (void)snprintf(e->why, sizeof e->why, "%s: %.200s", what, why);
}

rp__put_val rp__put_new(rp__emitter *e, const rp__put_type *type) {
    if (e->failed) return RP__EMIT_NONE;
    if (!RP__GROW(&e->types, &e->capacity, e->n_values + 1)) {
        rp__put_oom(e);
        return RP__EMIT_NONE;
    }
    e->types[e->n_values] = *type;
    return (rp__put_val)e->n_values++;
}

int64_t rp__put_numel(const rp__emitter *e, rp__put_val v) {
    const rp__put_type *t = &e->types[v];
    int64_t n = 1;
    for (unsigned d = 0; d < t->ndim; d++) {
        if (rp__dim_is_symbol(t->size[d]) || !rp__mul_i64(n, t->size[d], &n)) return -1;
    }
    return n;
}

bool rp__put_same_sizes(const rp__put_type *a, const rp_dim *size, unsigned ndim) {
    bool same = a->ndim == ndim;
    for (unsigned d = 0; same && d < ndim; d++) same = rp__dim_same_word(a->size[d], size[d]);
    return same;
}

rp__put_type rp__put_type_from(rp_dtype dtype, const rp_dim *size, unsigned ndim) {
    rp__put_type t = {.dtype = dtype, .ndim = (uint8_t)ndim};
    memcpy(t.size, size, ndim * sizeof *size);
    return t;
}

/* The value of a new operation of the language; RP__EMIT_NONE where it lacks it, or an operand failed. */
static rp__put_val begin(rp__emitter *e, bool has, const char *what, const rp__put_type *type, rp__put_val a,
                         rp__put_val b) {
    (void)b;
    if (e->failed || a == RP__EMIT_NONE) return RP__EMIT_NONE;
    if (!has) rp__put_lacks(e, "there is no %s", what);
    return rp__put_new(e, type);
}
#define HAS(op) (e->ops->op != NULL), #op

rp__put_val rp__put_scalar(rp__emitter *e, rp_dtype dtype, rp_scalar value) {
    const rp__put_type t = {.dtype = dtype};
    rp__put_val out = begin(e, HAS(scalar), &t, 0, 0);
    if (out != RP__EMIT_NONE) e->ops->scalar(e, out, value);
    return out;
}

rp__put_val rp__put_table(rp__emitter *e, const rp__put_type *type, const void *data, size_t bytes) {
    rp__put_val out = begin(e, HAS(table), type, 0, 0);
    if (out != RP__EMIT_NONE) e->ops->table(e, out, data, bytes);
    return out;
}

rp__put_val rp__put_iota(rp__emitter *e, rp_dim n) {
    const rp__put_type t = rp__put_type_from(RP_I64, &n, 1);
    rp__put_val out = begin(e, HAS(iota), &t, 0, 0);
    if (out != RP__EMIT_NONE) e->ops->iota(e, out);
    return out;
}

/* Sizes of operands that broadcast. Of two sizes one is the number 1 or both are one word. */
static void broadcast(rp__emitter *e, const rp__put_val *in, unsigned n, rp__put_type *t) {
    t->ndim = 0;
    for (unsigned k = 0; k < n; k++)
        if (e->types[in[k]].ndim > t->ndim) t->ndim = e->types[in[k]].ndim;
    for (unsigned d = 0; d < t->ndim; d++) t->size[d] = 1;
    for (unsigned k = 0; k < n; k++) {
        const rp__put_type *a = &e->types[in[k]];
        const unsigned lead = (unsigned)(t->ndim - a->ndim);
        for (unsigned d = 0; d < a->ndim; d++)
            if (rp__dim_same_word(t->size[lead + d], 1)) t->size[lead + d] = a->size[d];
    }
}

rp__put_val rp__put_prim(rp__emitter *e, rp__prim op, rp_dtype dtype, rp__put_val a, rp__put_val b, rp__put_val c) {
    const rp__put_val in[3] = {a, b, c};
    const unsigned n = c != RP__EMIT_NONE ? 3 : b != RP__EMIT_NONE ? 2 : 1;
    rp__put_type t = {.dtype = dtype};
    if (e->failed || a == RP__EMIT_NONE) return RP__EMIT_NONE;
    broadcast(e, in, n, &t);
    rp__put_val out = begin(e, HAS(prim), &t, a, b);
    if (out != RP__EMIT_NONE && !e->ops->prim(e, out, op, in, n)) out = rp__put_steps(e, op, a, b);
    return e->failed ? RP__EMIT_NONE : out;
}

rp__put_val rp__put_cast(rp__emitter *e, rp__put_val a, rp_dtype to) {
    if (e->failed || rp__put_dtype(e, a) == to) return a;
    rp__put_type t = e->types[a];
    t.dtype = to;
    rp__put_val out = begin(e, HAS(cast), &t, a, 0);
    if (out != RP__EMIT_NONE) e->ops->cast(e, out, a);
    return out;
}

rp__put_val rp__put_reduce(rp__emitter *e, rp__reduce_kind kind, rp__put_val a, uint32_t mask) {
    if (e->failed || mask == 0) return a;
    rp__put_type t = e->types[a];
    for (unsigned d = 0; d < t.ndim; d++)
        if (mask >> d & 1u) t.size[d] = 1;
    rp__put_val out = begin(e, HAS(reduce), &t, a, 0);
    if (out != RP__EMIT_NONE) e->ops->reduce(e, out, kind, a, mask);
    return out;
}

rp__put_val rp__put_scan(rp__emitter *e, rp__scan_kind kind, rp__put_val a, unsigned dim, bool reversed) {
    if (e->failed) return a;
    const rp__put_type t = e->types[a];
    if (rp__dim_same_word(t.size[dim], 0) || rp__dim_same_word(t.size[dim], 1)) return a;
    rp__put_val out = begin(e, HAS(scan), &t, a, 0);
    if (out != RP__EMIT_NONE && !e->ops->scan(e, out, kind, a, dim, reversed))
        out = rp__put_scan_steps(e, kind, a, dim, reversed);
    return e->failed ? RP__EMIT_NONE : out;
}

void rp__put_repeat(rp__emitter *e, const rp__put_loop *loop, const rp__put_val *first, rp__put_val *out) {
    if (!e->ops->repeat) rp__put_lacks(e, "there is no loop");
    for (unsigned k = 0; k < loop->n && !e->failed; k++) {
        const rp__put_type t = e->types[first[k]];
        out[k] = rp__put_new(e, &t);
    }
    if (!e->failed) e->ops->repeat(e, loop, first, out);
}

rp__put_val rp__put_reshape(rp__emitter *e, rp__put_val a, const rp_dim *size, unsigned ndim) {
    if (e->failed || rp__put_same_sizes(&e->types[a], size, ndim)) return a;
    const rp__put_type t = rp__put_type_from(e->types[a].dtype, size, ndim);
    rp__put_val out = begin(e, HAS(reshape), &t, a, 0);
    if (out != RP__EMIT_NONE) e->ops->reshape(e, out, a);
    return out;
}

rp__put_val rp__put_permute(rp__emitter *e, rp__put_val a, const int64_t *dims) {
    if (e->failed) return a;
    const rp__put_type from = e->types[a];
    rp__put_type t = from;
    bool same = true;
    for (unsigned d = 0; d < t.ndim; d++) {
        t.size[d] = from.size[dims[d]];
        same = same && dims[d] == (int64_t)d;
    }
    if (same) return a;
    rp__put_val out = begin(e, HAS(permute), &t, a, 0);
    if (out != RP__EMIT_NONE) e->ops->permute(e, out, a, dims);
    return out;
}

rp__put_val rp__put_expand(rp__emitter *e, rp__put_val a, const rp_dim *size, unsigned ndim) {
    if (e->failed) return a;
    const rp__put_type from = e->types[a];
    if (from.ndim < ndim) {
        rp_dim whole[RP_MAX_DIMS];
        for (unsigned d = 0; d < ndim; d++) whole[d] = d < ndim - from.ndim ? 1 : from.size[d - (ndim - from.ndim)];
        a = rp__put_reshape(e, a, whole, ndim);
    }
    if (e->failed || rp__put_same_sizes(&e->types[a], size, ndim)) return a;
    const rp__put_type t = rp__put_type_from(from.dtype, size, ndim);
    rp__put_val out = begin(e, HAS(expand), &t, a, 0);
    if (out != RP__EMIT_NONE) e->ops->expand(e, out, a);
    return out;
}

rp__put_val rp__put_slice(rp__emitter *e, rp__put_val a, const rp_dim *start, const rp_dim *size, const int64_t *step) {
    if (e->failed) return a;
    const rp__put_type from = e->types[a];
    bool whole = rp__put_same_sizes(&from, size, from.ndim);
    for (unsigned d = 0; d < from.ndim; d++) whole = whole && rp__dim_same_word(start[d], 0);
    if (whole) return a;
    const rp__put_type t = rp__put_type_from(from.dtype, size, from.ndim);
    rp__put_val out = begin(e, HAS(slice), &t, a, 0);
    if (out != RP__EMIT_NONE) e->ops->slice(e, out, a, start, step);
    return out;
}

rp__put_val rp__put_flip(rp__emitter *e, rp__put_val a, uint32_t mask) {
    if (e->failed || mask == 0) return a;
    const rp__put_type t = e->types[a];
    rp__put_val out = begin(e, HAS(flip), &t, a, 0);
    if (out != RP__EMIT_NONE) e->ops->flip(e, out, a, mask);
    return out;
}

rp__put_val rp__put_pad(rp__emitter *e, rp__put_val a, const int64_t *before, const int64_t *after, rp__put_val value) {
    if (e->failed) return a;
    rp__put_type t = e->types[a];
    rp_dim start[RP_MAX_DIMS] = {0}, size[RP_MAX_DIMS] = {0};
    int64_t step[RP_MAX_DIMS] = {0}, low[RP_MAX_DIMS] = {0}, high[RP_MAX_DIMS] = {0};
    bool pads = false;
    for (unsigned d = 0; d < t.ndim; d++) { /* what is cut off first */
        if (rp__dim_is_symbol(t.size[d])) {
            if (before[d] == 0 && after[d] == 0) {
                start[d] = 0, size[d] = t.size[d], step[d] = 1, low[d] = high[d] = 0;
                continue;
            }
            rp__put_lacks(e, "a dim of unknown size is padded");
            return RP__EMIT_NONE;
        }
        const int64_t cut_before = before[d] < 0 ? -before[d] : 0, cut_after = after[d] < 0 ? -after[d] : 0;
        low[d] = before[d] > 0 ? before[d] : 0;
        high[d] = after[d] > 0 ? after[d] : 0;
        start[d] = cut_before;
        size[d] = t.size[d] - cut_before - cut_after;
        step[d] = 1;
        pads = pads || low[d] || high[d];
    }
    a = rp__put_slice(e, a, start, size, step);
    if (e->failed || !pads) return a;
    for (unsigned d = 0; d < t.ndim; d++)
        if (low[d] || high[d]) size[d] = size[d] + low[d] + high[d];
    memcpy(t.size, size, sizeof size);
    rp__put_val out = begin(e, HAS(pad), &t, a, value);
    if (out != RP__EMIT_NONE) e->ops->pad(e, out, a, low, high, value);
    return out;
}

rp__put_val rp__put_cat(rp__emitter *e, const rp__put_val *in, unsigned n, unsigned dim) {
    if (e->failed || n == 1) return e->failed ? RP__EMIT_NONE : in[0];
    rp__put_type t = e->types[in[0]];
    for (unsigned k = 1; k < n; k++) t.size[dim] = rp__dim_apply(RP__DIM_ADD, t.size[dim], e->types[in[k]].size[dim]);
    rp__put_val out = begin(e, HAS(cat), &t, in[0], 0);
    if (out != RP__EMIT_NONE) e->ops->cat(e, out, in, n, dim);
    return out;
}

rp__put_val rp__put_take(rp__emitter *e, rp__put_val a, rp__put_val index, unsigned dim) {
    if (e->failed) return RP__EMIT_NONE;
    const rp__put_type from = e->types[a], at = e->types[index];
    rp__put_type t = {.dtype = from.dtype};
    if (from.ndim + at.ndim > RP_MAX_DIMS + 1) {
        rp__put_lacks(e, "an index of too many dims");
        return RP__EMIT_NONE;
    }
    for (unsigned d = 0; d < dim; d++) t.size[t.ndim++] = from.size[d];
    for (unsigned d = 0; d < at.ndim; d++) t.size[t.ndim++] = at.size[d];
    for (unsigned d = dim + 1; d < from.ndim; d++) t.size[t.ndim++] = from.size[d];
    rp__put_val out = begin(e, HAS(take), &t, a, index);
    if (out != RP__EMIT_NONE) e->ops->take(e, out, a, index, dim);
    return out;
}

rp__put_val rp__put_gather(rp__emitter *e, rp__put_val a, rp__put_val index, unsigned dim) {
    if (e->failed) return RP__EMIT_NONE;
    rp__put_type t = e->types[index];
    t.dtype = e->types[a].dtype;
    rp__put_val out = begin(e, HAS(gather), &t, a, index);
    if (out != RP__EMIT_NONE) e->ops->gather(e, out, a, index, dim);
    return out;
}

rp__put_val rp__put_scatter(rp__emitter *e, rp__scatter kind, rp__put_val a, rp__put_val index, rp__put_val src,
                            unsigned dim) {
    if (e->failed) return RP__EMIT_NONE;
    const rp__put_type t = e->types[a];
    rp__put_val out = begin(e, HAS(scatter), &t, a, index);
    if (out != RP__EMIT_NONE) e->ops->scatter(e, out, kind, a, index, src, dim);
    return out;
}

rp__put_val rp__put_matmul(rp__emitter *e, rp__put_val a, rp__put_val b) {
    if (e->failed) return RP__EMIT_NONE;
    rp__put_type t = e->types[a];
    t.size[t.ndim - 1] = e->types[b].size[e->types[b].ndim - 1];
    rp__put_val out = begin(e, HAS(matmul), &t, a, b);
    if (out != RP__EMIT_NONE) e->ops->matmul(e, out, a, b);
    return out;
}

rp__put_val rp__put_conv_of(rp__emitter *e, bool transposed, rp__put_val x, rp__put_val w, const rp__put_conv *g,
                            const rp__put_type *type) {
    rp__put_val out = transposed ? begin(e, HAS(conv_transpose), type, x, w) : begin(e, HAS(conv), type, x, w);
    if (out == RP__EMIT_NONE) return out;
    if (transposed)
        e->ops->conv_transpose(e, out, x, w, g);
    else
        e->ops->conv(e, out, x, w, g);
    return out;
}

rp__put_val rp__put_pool(rp__emitter *e, rp__reduce_kind kind, rp__put_val a, const int64_t *kernel,
                         const rp__put_conv *g, const rp__put_type *type) {
    rp__put_val out = begin(e, HAS(pool), type, a, 0);
    if (out != RP__EMIT_NONE) e->ops->pool(e, out, kind, a, kernel, g);
    return out;
}

void rp__put_topk(rp__emitter *e, rp__put_val a, int64_t k, unsigned dim, bool largest, rp__put_val *values,
                  rp__put_val *indices) {
    *values = *indices = RP__EMIT_NONE;
    if (e->failed) return;
    rp__put_type t = e->types[a];
    t.size[dim] = k;
    *values = begin(e, HAS(topk), &t, a, 0);
    t.dtype = RP_I64;
    *indices = rp__put_new(e, &t);
    if (*indices != RP__EMIT_NONE) e->ops->topk(e, *values, *indices, a, k, dim, largest);
}
