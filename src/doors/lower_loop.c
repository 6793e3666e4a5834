/* Loop ops for emitters: runs the op's lowering into a sink that builds a DAG and remembers what each access and scalar stands for,
   and then writes the DAG's nodes. See lower.h. */
#include <string.h>

#include "compile/rewrite.h"
#include "core/alloc.h"
#include "doors/lower.h"
#include "ops/lower.h"
#include "ops/optim.h"

typedef enum access_kind { OPERAND, PLACED, LINEAR, DIM, NUMBERS, RESULT } access_kind;
typedef struct access {
    access_kind kind;
    unsigned operand;           /* OPERAND, PLACED: input; DIM: the dim; RESULT: output */
    bool front;                 /* OPERAND: its dims are the first of the space */
    rp_dim stride[RP_MAX_DIMS]; /* PLACED, NUMBERS: elements a dim of the space */
    unsigned window, n_windows; /* of loop.windows */
} access;

typedef struct loop {
    rp__lower_sink sink; /* first */
    rp__emitter *e;
    const rp__put_val *in;
    rp__dag *dag;
    unsigned ndim;
    rp_dim size[RP_MAX_DIMS];
    uint32_t inner;
    bool reversed, failed;
    access accesses[RP__DAG_MAX_ACCESSES];
    unsigned n_accesses;
    rp__lw_window windows[RP__DAG_WINDOWS];
    unsigned n_windows;
    rp_scalar scalars[RP__DAG_MAX_SCALARS];
    rp_dim sizes[RP__DAG_MAX_SCALARS]; /* of scalars that are one and symbols; else 0 */
    unsigned n_scalars;
} loop;

/* ---- the sink */

static uint16_t add(loop *l, rp__access_kind kind, rp_dtype dtype, unsigned windows, access a) {
    if (l->n_accesses == RP__DAG_MAX_ACCESSES) {
        rp__put_lacks(l->e, "the op has too many operands");
        l->failed = true;
        return 0;
    }
    l->accesses[l->n_accesses++] = a;
    return rp__dag_access_windows(l->sink.builder, kind, dtype, RP__ELEMENTS, windows);
}

static rp__val sink_in(rp__lower_sink *s, const rp__call *call, unsigned k, bool front) {
    loop *l = (loop *)s;
    for (unsigned i = 0; i < l->n_accesses; i++) {
        const access *a = &l->accesses[i];
        if (a->kind == OPERAND && a->operand == k && a->front == front)
            return rp__dag_load(s->builder, (uint16_t)i, RP__NO_VAL, RP__NO_VAL);
    }
    const uint16_t at = add(l, RP__ACCESS_READ, (rp_dtype)call->in[k]->dtype, 0,
                            (access){.kind = OPERAND, .operand = k, .front = front});
    return rp__dag_load(s->builder, at, RP__NO_VAL, RP__NO_VAL);
}

static void sink_out(rp__lower_sink *s, const rp__call *call, unsigned k, rp__val v) {
    loop *l = (loop *)s;
    const uint16_t at =
        add(l, RP__ACCESS_WRITE, (rp_dtype)call->out[k]->dtype, 0, (access){.kind = RESULT, .operand = k});
    rp__dag_store(s->builder, at, v);
}

static rp__val sink_reduce(rp__lower_sink *s, const rp__call *call, rp__reduce_kind kind, rp__val a) {
    (void)call;
    return rp__dag_reduce(s->builder, kind, a, RP__ALONG_ROW);
}
static rp__val sink_scan(rp__lower_sink *s, const rp__call *call, rp__scan_kind kind, rp__val a) {
    (void)call;
    return rp__dag_scan(s->builder, kind, a, RP__ALONG_ROW);
}
static rp__val sink_contract(rp__lower_sink *s, const rp__call *call, rp__val a, rp__val b, unsigned order) {
    (void)call;
    return rp__dag_contract(s->builder, a, b, RP__ALONG_ROW, order);
}
static void sink_join(rp__lower_sink *s, const rp__call *call, unsigned dim) { (void)s, (void)call, (void)dim; }
static void sink_reverse(rp__lower_sink *s, const rp__call *call) {
    (void)call;
    ((loop *)s)->reversed = true;
}

static rp__val sink_scalar(rp__lower_sink *s, const rp__call *call, const rp__lower_scalar *from, rp_dtype compute) {
    loop *l = (loop *)s;
    if (l->n_scalars == RP__DAG_MAX_SCALARS) {
        rp__put_lacks(l->e, "the op has too many numbers");
        l->failed = true;
        return RP__NO_VAL;
    }
    rp_scalar value = rp_i64(1);
    rp_dim size = 0;
    if (from->kind == RP__SCALAR_INNER_EXTENT) {
        rp_dim extent = 1;
        for (unsigned d = 0; d < l->ndim; d++)
            if (l->inner >> d & 1u) extent = rp__dim_apply(RP__DIM_MUL, extent, l->size[d]);
        size = extent;
    } else if (from->kind == RP__SCALAR_SIZE) {
        size = from->size;
    } else if (from->kind == RP__SCALAR_ATTR && call->attrs[from->attr].kind == RP_ATTR_SCALAR &&
               rp__scalar_is_symbol(call->attrs[from->attr].v.scalar)) {
        rp__put_lacks(l->e, "the op calculates with a size that is not known");
        l->failed = true;
    } else {
        value = rp__lower_scalar_value(from, call);
    }
    if (from->kind == RP__SCALAR_INNER_EXTENT || from->kind == RP__SCALAR_SIZE) {
        if (rp__dim_is_symbol(size)) {
            rp__put_lacks(l->e, "the op calculates with a size that is not known");
            l->failed = true;
        } else {
            value = rp_i64(size);
        }
    }
    l->scalars[l->n_scalars] = value;
    l->sizes[l->n_scalars++] = size;
    return rp__dag_scalar_value(s->builder, rp__dag_scalar(s->builder), compute);
}

static rp__val sink_iota(rp__lower_sink *s, const rp__call *call, rp__lower_iota kind, unsigned dim) {
    (void)call;
    const uint16_t at = add((loop *)s, RP__ACCESS_IOTA, RP_I64, 0,
                            (access){.kind = kind == RP__IOTA_DIM ? DIM : LINEAR, .operand = dim});
    return rp__dag_iota(s->builder, at);
}

static unsigned sink_draw(rp__lower_sink *s, const rp__call *call, unsigned generator_attr, bool wide) {
    (void)call, (void)generator_attr, (void)wide;
    rp__put_lacks(((loop *)s)->e, "it draws random numbers");
    ((loop *)s)->failed = true;
    return 0;
}

static void sink_inner(rp__lower_sink *s, const rp__call *call, uint32_t mask) {
    (void)call;
    ((loop *)s)->inner = mask;
}

static void sink_space(rp__lower_sink *s, const rp__call *call, const rp_dim *size, size_t ndim, uint32_t inner_mask) {
    loop *l = (loop *)s;
    (void)call;
    l->ndim = (unsigned)ndim;
    memcpy(l->size, size, ndim * sizeof *size);
    l->inner = inner_mask;
}

static uint16_t sink_access(rp__lower_sink *s, const rp__call *call, bool out, unsigned k, const rp_dim *stride,
                            rp__axes axes) {
    loop *l = (loop *)s;
    (void)axes;
    if (out) {
        rp__put_lacks(l->e, "it writes its result by places");
        l->failed = true;
    }
    access a = {.kind = PLACED, .operand = k};
    memcpy(a.stride, stride, l->ndim * sizeof *stride);
    return add(l, RP__ACCESS_READ, (rp_dtype)call->in[k]->dtype, 0, a);
}

static uint16_t sink_windows(rp__lower_sink *s, const rp__call *call, int k, const rp_dim *stride,
                             const rp__lw_window *windows, unsigned n, rp__axes axes) {
    loop *l = (loop *)s;
    (void)axes;
    if (l->n_windows + n > RP__DAG_WINDOWS) {
        rp__put_lacks(l->e, "the op has too many windows");
        l->failed = true;
        return 0;
    }
    access a = {
        .kind = k < 0 ? NUMBERS : PLACED, .operand = k < 0 ? 0 : (unsigned)k, .window = l->n_windows, .n_windows = n};
    memcpy(a.stride, stride, l->ndim * sizeof *stride);
    memcpy(&l->windows[l->n_windows], windows, n * sizeof *windows);
    l->n_windows += n;
    return add(l, k < 0 ? RP__ACCESS_IOTA : RP__ACCESS_READ, k < 0 ? RP_I64 : (rp_dtype)call->in[k]->dtype, n, a);
}

/* ---- writing */

rp__put_val rp__lower_index(rp__emitter *e, rp_dim extent, unsigned d, unsigned ndim) {
    rp_dim size[RP_MAX_DIMS];
    for (unsigned k = 0; k < ndim; k++) size[k] = k == d ? extent : 1;
    return rp__put_reshape(e, rp__put_iota(e, extent), size, ndim);
}

rp__put_val rp__lower_at(rp__emitter *e, rp__put_val a, rp__put_val index) {
    if (e->failed) return RP__EMIT_NONE;
    rp_dim n = 1;
    for (unsigned d = 0; d < e->types[a].ndim; d++) n = rp__dim_apply(RP__DIM_MUL, n, e->types[a].size[d]);
    return rp__put_take(e, rp__put_reshape(e, a, &n, 1), index, 0);
}

static rp__put_val plus(rp__emitter *e, rp__put_val a, rp__put_val b) {
    return a == RP__EMIT_NONE ? b : b == RP__EMIT_NONE ? a : RP__EMIT2(e, ADD, a, b);
}

static rp__put_val times(rp__emitter *e, rp__put_val a, rp_dim factor) {
    if (rp__dim_is_symbol(factor)) {
        rp__put_lacks(e, "places depend on a size that is not known");
        return RP__EMIT_NONE;
    }
    return rp__dim_same_word(factor, 1) ? a : RP__EMIT2(e, MUL, a, rp__put_int(e, RP_I64, factor));
}

/* The sum of index * factor over the dims of the space; RP__EMIT_NONE: 0. */
static rp__put_val walk(loop *l, const rp_dim *factor) {
    rp__put_val sum = RP__EMIT_NONE;
    for (unsigned d = 0; d < l->ndim && !l->e->failed; d++) {
        if (rp__dim_same_word(factor[d], 0) || rp__dim_same_word(l->size[d], 1)) continue;
        sum = plus(l->e, sum, times(l->e, rp__lower_index(l->e, l->size[d], d, l->ndim), factor[d]));
    }
    return sum;
}

/* Place in window w, and whether it is one: *inside RP__EMIT_NONE: always. */
static rp__put_val place(loop *l, const rp__lw_window *w, rp__put_val *inside) {
    rp__emitter *e = l->e;
    if (rp__dim_is_symbol(w->size) || rp__dim_is_symbol(w->pad) || rp__dim_is_symbol(w->divisor)) {
        rp__put_lacks(e, "windows of a size that is not known");
        return RP__EMIT_NONE;
    }
    rp__put_val at = walk(l, w->factor), good = RP__EMIT_NONE;
    const rp__put_val zero = rp__put_int(e, RP_I64, 0);
    if (at == RP__EMIT_NONE) at = zero;
    if (!rp__dim_same_word(w->pad, 0)) at = RP__EMIT2(e, SUB, at, rp__put_int(e, RP_I64, w->pad));
    if (!rp__dim_same_word(w->divisor, 1)) {
        const rp__put_val divisor = rp__put_int(e, RP_I64, w->divisor);
        good = RP__EMIT_IS(e, EQ, RP__EMIT2(e, REMAINDER, at, divisor), zero);
        at = RP__EMIT2(e, FLOORDIV, at, divisor);
    }
    const rp__put_val in =
        RP__EMIT2(e, AND, RP__EMIT_IS(e, LE, zero, at), RP__EMIT_IS(e, LT, at, rp__put_int(e, RP_I64, w->size)));
    *inside = good == RP__EMIT_NONE ? in : RP__EMIT2(e, AND, good, in);
    return at;
}

/* Of all windows of an access. */
static rp__put_val inside(loop *l, const access *a) {
    rp__put_val all = RP__EMIT_NONE;
    for (unsigned w = 0; w < a->n_windows; w++) {
        rp__put_val in;
        (void)place(l, &l->windows[a->window + w], &in);
        all = all == RP__EMIT_NONE ? in : RP__EMIT2(l->e, AND, all, in);
    }
    return all;
}

/* Elements from the operand's first; *in: where it counts. Never NONE, unless something failed. */
static rp__put_val places(loop *l, const access *a, rp__put_val *in) {
    rp__put_val at = walk(l, a->stride);
    *in = RP__EMIT_NONE;
    for (unsigned w = 0; w < a->n_windows && !l->e->failed; w++) {
        rp__put_val good;
        const rp__lw_window *window = &l->windows[a->window + w];
        const rp__put_val p = place(l, window, &good);
        if (!rp__dim_same_word(window->stride, 0)) at = plus(l->e, at, times(l->e, p, window->stride));
        *in = *in == RP__EMIT_NONE ? good : RP__EMIT2(l->e, AND, *in, good);
    }
    return at == RP__EMIT_NONE ? rp__put_int(l->e, RP_I64, 0) : at;
}

/* A value as one of the space's rank: sizes 1 in front of it, or behind. */
static rp__put_val ranked(loop *l, rp__put_val v, bool front) {
    const rp__put_type t = l->e->types[v];
    if (t.ndim == 0 || t.ndim >= l->ndim) return v;
    rp_dim size[RP_MAX_DIMS];
    const unsigned lead = front ? 0 : l->ndim - t.ndim;
    for (unsigned d = 0; d < l->ndim; d++) size[d] = d >= lead && d < lead + t.ndim ? t.size[d - lead] : 1;
    return rp__put_reshape(l->e, v, size, l->ndim);
}

static rp__put_val compute(rp__emitter *e, rp__put_val v) {
    return rp__put_cast(e, v, (rp_dtype)rp__dtypes[rp__put_dtype(e, v)].compute);
}

static rp__put_val zero_of(rp__emitter *e, rp_dtype dtype) { return rp__put_int(e, dtype, 0); }

static rp__put_val load(loop *l, const access *a, rp__put_val offset, rp__put_val predicate) {
    rp__emitter *e = l->e;
    const rp__put_val whole = l->in[a->operand];
    if (a->kind == OPERAND) {
        rp__put_val v = compute(e, ranked(l, whole, a->front));
        return predicate == RP__EMIT_NONE ? v : rp__put_where(e, predicate, v, zero_of(e, rp__put_dtype(e, v)));
    }
    rp__put_val in, at = plus(e, places(l, a, &in), offset);
    if (predicate != RP__EMIT_NONE) in = in == RP__EMIT_NONE ? predicate : RP__EMIT2(e, AND, in, predicate);
    if (in != RP__EMIT_NONE) at = rp__put_where(e, in, at, rp__put_int(e, RP_I64, 0));
    rp__put_val v;
    if (rp__put_numel(e, whole) == 0) { /* nothing is read of it */
        v = rp__put_cast(e, zero_of(e, rp__put_dtype(e, whole)), rp__put_dtype(e, whole));
        const rp__put_type t = e->types[at];
        v = rp__put_expand(e, v, t.size, t.ndim);
    } else {
        v = rp__lower_at(e, whole, at);
    }
    v = compute(e, v);
    return in == RP__EMIT_NONE ? v : rp__put_where(e, in, v, zero_of(e, rp__put_dtype(e, v)));
}

/* A value that may be smaller along dims, as large as the space along those of the mask. */
static rp__put_val spread(loop *l, rp__put_val v, uint32_t mask) {
    if (l->e->failed) return v;
    const rp__put_type t = l->e->types[v];
    rp_dim size[RP_MAX_DIMS];
    for (unsigned d = 0; d < l->ndim; d++) {
        const rp_dim own = t.ndim == 0 ? 1 : t.size[d];
        size[d] = mask >> d & 1u ? l->size[d] : own;
    }
    return rp__put_expand(l->e, v, size, l->ndim);
}

static rp__put_val scan(loop *l, rp__scan_kind kind, rp__put_val v) {
    if (l->inner == 0 || (l->inner & (l->inner - 1)) != 0) {
        rp__put_lacks(l->e, "a scan over several dims");
        return RP__EMIT_NONE;
    }
    return rp__put_scan(l->e, kind, spread(l, v, l->inner), (unsigned)__builtin_ctz(l->inner), l->reversed);
}

static rp__put_val iota(loop *l, const access *a) {
    rp__emitter *e = l->e;
    if (a->kind == DIM) return rp__lower_index(e, l->size[a->operand], a->operand, l->ndim);
    if (a->kind == NUMBERS) {
        rp__put_val in, at = places(l, a, &in);
        return in == RP__EMIT_NONE ? at : rp__put_where(e, in, at, rp__put_int(e, RP_I64, 0));
    }
    rp_dim n = 1;
    for (unsigned d = 0; d < l->ndim; d++) n = rp__dim_apply(RP__DIM_MUL, n, l->size[d]);
    return rp__put_reshape(e, rp__put_iota(e, n), l->size, l->ndim);
}

/* f32 to the nearest number of 16 bits, i32 wrapped to 8 or 16. */
static rp__put_val rounded(rp__emitter *e, rp__put_val v, rp_dtype to) {
    const rp_dtype from = rp__put_dtype(e, v);
    return rp__put_cast(e, rp__put_cast(e, v, to), from);
}

static rp__put_val write_node(loop *l, const rp__node *n, const rp__put_val *made) {
    rp__emitter *e = l->e;
    const rp__put_val a = n->a == RP__NO_VAL ? RP__EMIT_NONE : made[n->a],
                      b = n->b == RP__NO_VAL ? RP__EMIT_NONE : made[n->b],
                      c = n->c == RP__NO_VAL ? RP__EMIT_NONE : made[n->c];
    switch (n->op) {
    case RP__LOAD: return load(l, &l->accesses[n->access], a, b);
    case RP__IOTA: return iota(l, &l->accesses[n->access]);
    case RP__INSIDE: {
        rp__put_val in = inside(l, &l->accesses[n->access]);
        return in == RP__EMIT_NONE ? rp__put_int(e, RP_BOOL, 1) : in;
    }
    case RP__CONST: {
        const bool f = rp__dtype_is_float((rp_dtype)n->dtype);
        return f ? rp__put_number(e, (rp_dtype)n->dtype, n->imm.f) : rp__put_int(e, (rp_dtype)n->dtype, n->imm.i);
    }
    case RP__SCALAR: return rp__put_scalar(e, (rp_dtype)n->dtype, l->scalars[n->access]);
    case RP__REDUCE: {
        rp__put_val v = spread(l, a, l->inner);
        if ((n->imm.i == RP__REDUCE_SUM || n->imm.i == RP__REDUCE_PROD)) v = rp__put_cast(e, v, (rp_dtype)n->dtype);
        return rp__put_reduce(e, (rp__reduce_kind)n->imm.i, v, l->inner);
    }
    case RP__SCAN: return scan(l, (rp__scan_kind)n->imm.i, rp__put_cast(e, a, (rp_dtype)n->dtype));
    case RP__CONTRACT: rp__put_lacks(e, "a product within a loop"); return RP__EMIT_NONE;
    case RP__CAST: return rp__put_prim(e, RP__CAST, (rp_dtype)n->dtype, a, RP__EMIT_NONE, RP__EMIT_NONE);
    case RP__ROUND: return rounded(e, a, (rp_dtype)n->imm.i);
    case RP__CHECK_INDEX: /* the engine's own indexing refuses what is outside */
        if (n->imm.i != 1) return a;
        return rp__put_where(e, RP__EMIT_IS(e, LT, a, rp__put_int(e, RP_I64, 0)), RP__EMIT2(e, ADD, a, b), a);
    case RP__PHILOX:
    case RP__PHILOX64:
    case RP__PHILOX_NORMAL: rp__put_lacks(e, "it draws random numbers"); return RP__EMIT_NONE;
    case RP__ERFP1: /* twice the normal distribution */
        return RP__EMIT2(e, ADD, rp__put_number(e, (rp_dtype)n->dtype, 1), RP__EMIT1(e, ERF, a));
    case RP__FMA: return RP__EMIT2(e, ADD, RP__EMIT2(e, MUL, a, b), c);
    default: return rp__put_prim(e, (rp__prim)n->op, (rp_dtype)n->dtype, a, b, c);
    }
}

/* Has the result an element for each of the space, or one for each row? Sizes 1 do not count, and dims may be joined. */
static bool is_elements(const loop *l, const rp_tensor *out) {
    rp_dim whole = 1, own = 1, row = 1;
    for (unsigned d = 0; d < l->ndim; d++) {
        whole = rp__dim_apply(RP__DIM_MUL, whole, l->size[d]);
        if (!(l->inner >> d & 1u)) row = rp__dim_apply(RP__DIM_MUL, row, l->size[d]);
    }
    for (unsigned d = 0; d < out->ndim; d++) own = rp__dim_apply(RP__DIM_MUL, own, out->size[d]);
    if (!rp__dim_same_word(whole, own)) return false;
    if (!rp__dim_same_word(row, own)) return true;
    /* as many of both: by their dims (an empty result, or rows of one element, which are the same) */
    unsigned k = 0;
    for (unsigned d = 0; d < l->ndim; d++) {
        if (rp__dim_same_word(l->size[d], 1)) continue;
        while (k < out->ndim && rp__dim_same_word(out->size[k], 1)) k++;
        if (k == out->ndim || !rp__dim_same_word(out->size[k++], l->size[d])) return false;
    }
    return true;
}

static rp__put_val result(loop *l, const rp_tensor *out, rp__put_val v) {
    if (l->e->failed) return RP__EMIT_NONE;
    const uint32_t all = l->ndim == 32 ? UINT32_MAX : (1u << l->ndim) - 1u;
    const bool elements = is_elements(l, out);
    v = spread(l, v, elements ? all : all & ~l->inner);
    v = rp__put_cast(l->e, v, (rp_dtype)out->dtype);
    return rp__put_reshape(l->e, v, out->size, out->ndim);
}

static void write_all(loop *l, const rp__call *call, rp__put_val *out) {
    const rp__dag *dag = l->dag;
    rp__put_val *made = rp__alloc((dag->n_nodes + 1u) * sizeof *made);
    if (!made) {
        rp__put_oom(l->e);
        return;
    }
    for (unsigned k = 0; k < dag->n_nodes && !l->e->failed; k++) made[k] = write_node(l, &dag->nodes[k], made);
    for (unsigned k = 0; k < dag->n_stores && !l->e->failed; k++) {
        const unsigned which = l->accesses[dag->stores[k].access].operand;
        out[which] = result(l, call->out[which], made[dag->stores[k].value]);
    }
    rp__free(made);
}

/* One tensor of a step of an optimizer, over its elements. */
static bool update_tensor(rp__emitter *e, const rp__call *call, uint32_t i, loop *l, const rp__put_val *in,
                          rp__put_val *written) {
    uint32_t operand[RP__UPDATE_OPERANDS];
    unsigned n;
    *l = (loop){.e = e, .in = in, .n_scalars = RP__UPDATE_SCALARS};
    if (rp__update_of_tensor(call, i, &l->dag, operand, &n, l->scalars) != RP_OK) {
        rp__put_lacks(e, "%s", rp_error_message());
        (void)rp_error_take();
        return false;
    }
    const rp_tensor *self = call->in[operand[0]];
    l->ndim = self->ndim;
    memcpy(l->size, self->size, sizeof l->size);
    for (unsigned k = 0; k < n; k++) l->accesses[k] = (access){.kind = OPERAND, .operand = operand[k]};
    l->n_accesses = n;
    rp__put_val *made = rp__alloc((l->dag->n_nodes + 1u) * sizeof *made);
    if (!made) {
        rp__put_oom(e);
        return false;
    }
    for (unsigned k = 0; k < l->dag->n_nodes && !e->failed; k++) made[k] = write_node(l, &l->dag->nodes[k], made);
    for (unsigned k = 0; k < l->dag->n_stores && !e->failed; k++) {
        const uint32_t which = operand[l->dag->stores[k].access];
        written[which] = result(l, call->in[which], made[l->dag->stores[k].value]);
    }
    rp__free(made);
    return !e->failed;
}

bool rp__lower_update(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *written) {
    rp__lower_call c;
    loop *l = rp__calloc(1, sizeof *l);
    if (!l || rp__lower_call_of(e->ir, n, &c) != RP_OK) {
        rp__free(l);
        rp__put_oom(e);
        return false;
    }
    const uint32_t count = c.call.list_begin[1] - c.call.list_begin[0];
    bool good = true;
    for (uint32_t i = 0; i < count && good; i++) good = update_tensor(e, &c.call, i, l, in, written);
    rp__lower_call_end(&c);
    rp__free(l);
    return good;
}

void rp__lower_loop(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    rp__lower_call c;
    loop *l = rp__calloc(1, sizeof *l);
    if (!l || rp__lower_call_of(e->ir, n, &c) != RP_OK) {
        rp__free(l);
        rp__put_oom(e);
        return;
    }
    *l = (loop){.sink = {.builder = rp__dag_new(),
                         .in = sink_in,
                         .out = sink_out,
                         .reduce = sink_reduce,
                         .scan = sink_scan,
                         .contract = sink_contract,
                         .join = sink_join,
                         .reverse = sink_reverse,
                         .scalar = sink_scalar,
                         .iota = sink_iota,
                         .draw = sink_draw,
                         .inner = sink_inner,
                         .space = sink_space,
                         .access = sink_access,
                         .windows = sink_windows},
                .e = e,
                .in = in};
    const rp_tensor *shape = n->op->lowering == RP__ROWS ? c.call.in[0] : c.call.out[0];
    l->ndim = shape->ndim;
    memcpy(l->size, shape->size, sizeof l->size);
    rp_status status = l->sink.builder ? rp__lower_into(&l->sink, &c.call) : RP_ERROR_OUT_OF_MEMORY;
    if (status != RP_OK || e->failed) {
        rp__dag_abandon(l->sink.builder);
    } else {
        l->dag = rp__dag_finish(l->sink.builder);
        if (l->dag) write_all(l, &c.call, out);
        if (!l->dag) status = rp_error_status();
    }
    if (status != RP_OK && !e->failed) {
        rp__put_lacks(e, "%s", rp_error_message());
        (void)rp_error_take();
    }
    rp__dag_release(l->dag);
    rp__lower_call_end(&c);
    rp__free(l);
}
