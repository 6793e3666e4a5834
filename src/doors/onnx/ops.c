/* The operations of an emitter as ONNX operators. Element types that runtimes commonly lack an operator for go through a wider one:
   u8 arithmetic in int32 and back, comparisons of bool in int32. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "doors/lower.h"
#include "doors/onnx/onnx.h"
#include "kernel/loop.h"

#define ONNX(e) ((rp__onnx *)(e))
#define NONE RP__EMIT_NONE

static void op(rp__emitter *e, const char *type, rp__put_val out, rp__put_val a, rp__put_val b, rp__put_val c) {
    const rp__put_val in[] = {a, b, c};
    rp__onnx_node(ONNX(e), type, in, 3, &out, 1, NULL);
}

static void op_int(rp__emitter *e, const char *type, rp__put_val out, rp__put_val a, rp__put_val b, const char *name,
                   int64_t value) {
    const rp__put_val in[] = {a, b};
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_int(&attrs, name, value);
    rp__onnx_node(ONNX(e), type, in, 2, &out, 1, &attrs);
}

/* ---- constants */

static void constant(rp__emitter *e, rp__put_val out, const void *data, size_t bytes) {
    rp__onnx_constant(ONNX(e), out, data, bytes);
}

static void scalar(rp__emitter *e, rp__put_val out, rp_scalar value) {
    uint64_t bytes = 0;
    const rp_dtype dtype = e->types[out].dtype;
    rp__scalar_store(value, dtype, &bytes);
    constant(e, out, &bytes, rp__dtype_bytes(dtype));
}

static void table(rp__emitter *e, rp__put_val out, const void *data, size_t bytes) { constant(e, out, data, bytes); }

static void iota(rp__emitter *e, rp__put_val out) {
    enum { SHORT = 1024 };
    const rp_dim n = e->types[out].size[0];
    if (!rp__dim_is_symbol(n) && n <= SHORT) {
        int64_t numbers[SHORT];
        for (int64_t k = 0; k < n; k++) numbers[k] = k;
        constant(e, out, numbers, (size_t)n * sizeof *numbers);
        return;
    }
    const rp__put_type t = {.dtype = RP_I64};
    rp__put_val end;
    if (rp__dim_is_symbol(n)) {
        const rp__put_val size = rp__onnx_sizes(ONNX(e), &n, 1);
        end = rp__put_new(e, &t);
        op(e, "Squeeze", end, size, NONE, NONE);
    } else {
        end = rp__put_int(e, RP_I64, n);
    }
    op(e, "Range", out, rp__put_int(e, RP_I64, 0), end, rp__put_int(e, RP_I64, 1));
}

/* ---- elements */

static const char *const direct[RP__PRIM_COUNT] = {
    [RP__ADD] = "Add",     [RP__SUB] = "Sub",        [RP__MUL] = "Mul",     [RP__DIV] = "Div",
    [RP__POW] = "Pow",     [RP__MAX] = "Max",        [RP__MIN] = "Min",     [RP__NEG] = "Neg",
    [RP__ABS] = "Abs",     [RP__SIGN] = "Sign",      [RP__SQRT] = "Sqrt",   [RP__RECIP] = "Reciprocal",
    [RP__EXP] = "Exp",     [RP__LOG] = "Log",        [RP__SIN] = "Sin",     [RP__COS] = "Cos",
    [RP__TANH] = "Tanh",   [RP__ERF] = "Erf",        [RP__FLOOR] = "Floor", [RP__CEIL] = "Ceil",
    [RP__RINT] = "Round",  [RP__TAN] = "Tan",        [RP__ASIN] = "Asin",   [RP__ACOS] = "Acos",
    [RP__ATAN] = "Atan",   [RP__SINH] = "Sinh",      [RP__COSH] = "Cosh",   [RP__ASINH] = "Asinh",
    [RP__ACOSH] = "Acosh", [RP__ATANH] = "Atanh",    [RP__ISNAN] = "IsNaN", [RP__EQ] = "Equal",
    [RP__LT] = "Less",     [RP__LE] = "LessOrEqual", [RP__WHERE] = "Where", [RP__SIGMOID] = "Sigmoid",
};

static rp__put_val number(rp__emitter *e, rp__put_val like, double value) {
    return rp__put_number(e, rp__put_dtype(e, like), value);
}
static void bits(rp__emitter *e, rp__put_val out, rp__prim prim, const rp__put_val *in) {
    const bool logic = rp__put_dtype(e, in[0]) == RP_BOOL;
    if (!logic && ONNX(e)->opset < 18) {
        rp__put_lacks(e, "opset %d has no operators of bits", ONNX(e)->opset);
        return;
    }
    switch (prim) {
    case RP__AND: op(e, logic ? "And" : "BitwiseAnd", out, in[0], in[1], NONE); break;
    case RP__OR: op(e, logic ? "Or" : "BitwiseOr", out, in[0], in[1], NONE); break;
    case RP__XOR: op(e, logic ? "Xor" : "BitwiseXor", out, in[0], in[1], NONE); break;
    default: op(e, logic ? "Not" : "BitwiseNot", out, in[0], NONE, NONE); break;
    }
}

static bool is_bits(rp__prim prim) { return prim == RP__AND || prim == RP__OR || prim == RP__XOR || prim == RP__NOT; }
static bool is_comparison(rp__prim prim) {
    return prim == RP__EQ || prim == RP__NE || prim == RP__LT || prim == RP__LE;
}

static bool prim_op(rp__emitter *e, rp__put_val out, rp__prim prim, const rp__put_val *in, unsigned n);

/* Through a wider type and back. */
static bool widened(rp__emitter *e, rp__put_val out, rp__prim prim, const rp__put_val *in, unsigned n) {
    const rp_dtype dtype = rp__put_dtype(e, in[0]);
    if (prim == RP__WHERE || prim == RP__CAST || is_bits(prim) || (dtype == RP_BOOL && prim == RP__EQ)) return false;
    if (dtype != RP_U8 && dtype != RP_BOOL) return false;
    rp__put_val wide[3] = {NONE, NONE, NONE};
    for (unsigned k = 0; k < n; k++) wide[k] = rp__put_cast(e, in[k], RP_I32);
    if (is_comparison(prim)) return prim_op(e, out, prim, wide, n);
    const rp__put_val v = rp__put_prim(e, prim, RP_I32, wide[0], wide[1], wide[2]);
    if (!e->failed) op_int(e, "Cast", out, v, NONE, "to", rp__dtypes[e->types[out].dtype].onnx);
    return true;
}

static bool prim_op(rp__emitter *e, rp__put_val out, rp__prim prim, const rp__put_val *in, unsigned n) {
    const rp__put_val a = in[0], b = n > 1 ? in[1] : NONE, c = n > 2 ? in[2] : NONE;
    if (e->failed) return true;
    if (prim == RP__NE) return false;
    if (widened(e, out, prim, in, n)) return true;
    if (direct[prim]) {
        op(e, direct[prim], out, a, b, c);
        return true;
    }
    if (is_bits(prim)) {
        bits(e, out, prim, in);
        return true;
    }
    switch (prim) {
    case RP__FMOD: op_int(e, "Mod", out, a, b, "fmod", 1); return true;
    case RP__REMAINDER: /* of integers, with the sign of the divisor */
        if (rp__dtype_is_float(rp__put_dtype(e, a))) return false;
        op_int(e, "Mod", out, a, b, "fmod", 0);
        return true;
    case RP__CAST: op_int(e, "Cast", out, a, NONE, "to", rp__dtypes[e->types[out].dtype].onnx); return true;
    default: return false;
    }
}

static void cast(rp__emitter *e, rp__put_val out, rp__put_val a) {
    op_int(e, "Cast", out, a, NONE, "to", rp__dtypes[e->types[out].dtype].onnx);
}

/* ---- reductions */

static rp__put_val ints(rp__emitter *e, const int64_t *values, unsigned n) {
    const rp__put_type t = {.dtype = RP_I64, .ndim = 1, .size = {n}};
    return rp__put_table(e, &t, values, n * sizeof *values);
}

/* Axes are an input of sums since opset 13, and of the others since 18. */
static void reduction(rp__emitter *e, const char *type, rp__put_val out, rp__put_val a, uint32_t mask) {
    int64_t axes[RP_MAX_DIMS];
    unsigned n = 0;
    for (unsigned d = 0; d < e->types[a].ndim; d++)
        if (mask >> d & 1u) axes[n++] = d;
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_int(&attrs, "keepdims", 1);
    const bool input = ONNX(e)->opset >= 18 || strcmp(type, "ReduceSum") == 0;
    if (!input) rp__onnx_attr_ints(&attrs, "axes", axes, n);
    const rp__put_val in[] = {a, input ? ints(e, axes, n) : NONE};
    rp__onnx_node(ONNX(e), type, in, 2, &out, 1, &attrs);
}

/* How many of a mask are true, of the sizes of `out`. */
static rp__put_val count(rp__emitter *e, rp__put_val out, rp__put_val mask, uint32_t dims) {
    if (e->failed) return NONE;
    rp__put_type t = e->types[out];
    t.dtype = RP_I64;
    const rp__put_val n = rp__put_new(e, &t);
    reduction(e, "ReduceSum", n, rp__put_cast(e, mask, RP_I64), dims);
    return n;
}

static void any_or_all(rp__emitter *e, rp__put_val out, bool all, rp__put_val a, uint32_t mask) {
    const rp__put_val looked = all ? RP__EMIT1(e, NOT, a) : a, n = count(e, out, looked, mask),
                      zero = rp__put_int(e, RP_I64, 0);
    if (all)
        op(e, "Equal", out, n, zero, NONE);
    else
        op(e, "Less", out, zero, n, NONE);
}

static void reduce(rp__emitter *e, rp__put_val out, rp__reduce_kind kind, rp__put_val a, uint32_t mask) {
    const rp_dtype dtype = rp__put_dtype(e, a);
    if (kind == RP__REDUCE_ANY || kind == RP__REDUCE_ALL || dtype == RP_BOOL) {
        any_or_all(e, out, kind == RP__REDUCE_ALL || kind == RP__REDUCE_MIN, a, mask);
        return;
    }
    if (kind == RP__REDUCE_SUM || kind == RP__REDUCE_PROD) {
        reduction(e, kind == RP__REDUCE_SUM ? "ReduceSum" : "ReduceProd", out, a, mask);
        return;
    }
    const char *type = kind == RP__REDUCE_MAX ? "ReduceMax" : "ReduceMin";
    if (!rp__dtype_is_float(dtype)) {
        reduction(e, type, out, a, mask);
        return;
    }
    /* Runtimes differ in what becomes of NaN: one of them makes the result NaN. */
    const rp__put_type t = e->types[out];
    const rp__put_val best = rp__put_new(e, &t), nan = rp__put_prim(e, RP__ISNAN, RP_BOOL, a, NONE, NONE),
                      n = count(e, out, nan, mask);
    reduction(e, type, best, a, mask);
    op(e, "Where", out, RP__EMIT_IS(e, EQ, n, rp__put_int(e, RP_I64, 0)), best, number(e, a, NAN));
}

static bool scan(rp__emitter *e, rp__put_val out, rp__scan_kind kind, rp__put_val a, unsigned dim, bool reversed) {
    if (kind != RP__SCAN_SUM) return false;
    op_int(e, "CumSum", out, a, rp__put_int(e, RP_I64, dim), "reverse", reversed);
    return true;
}

/* ---- arrangement */

static void reshape(rp__emitter *e, rp__put_val out, rp__put_val a) {
    const rp__put_type t = e->types[out];
    int64_t size[RP_MAX_DIMS];
    unsigned unknown = 0;
    bool empty = false;
    for (unsigned d = 0; d < t.ndim; d++) {
        const bool symbol = rp__dim_is_symbol(t.size[d]);
        size[d] = symbol ? -1 : t.size[d];
        unknown += symbol;
        empty = empty || rp__dim_same_word(t.size[d], 0);
    }
    /* A single unknown size follows from the others. */
    const rp__put_val to =
        unknown == 0 || (unknown == 1 && !empty) ? ints(e, size, t.ndim) : rp__onnx_sizes(ONNX(e), t.size, t.ndim);
    op_int(e, "Reshape", out, a, to, "allowzero", unknown == 0);
}

static void permute(rp__emitter *e, rp__put_val out, rp__put_val a, const int64_t *dims) {
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_ints(&attrs, "perm", dims, e->types[a].ndim);
    rp__onnx_node(ONNX(e), "Transpose", &a, 1, &out, 1, &attrs);
}

static void expand(rp__emitter *e, rp__put_val out, rp__put_val a) {
    const rp__put_type t = e->types[out];
    for (unsigned d = 0; d < t.ndim; d++) {
        if (!rp__dim_same_word(t.size[d], 0)) continue;
        rp__onnx_constant(ONNX(e), out, "", 0); /* runtimes keep a 1 where a size of 0 is asked for */
        return;
    }
    op(e, "Expand", out, a, rp__onnx_sizes(ONNX(e), t.size, t.ndim), NONE);
}

static void slice(rp__emitter *e, rp__put_val out, rp__put_val a, const rp_dim *start, const int64_t *step) {
    const rp__put_type t = e->types[out], from = e->types[a];
    rp_dim first[RP_MAX_DIMS], end[RP_MAX_DIMS];
    int64_t axes[RP_MAX_DIMS], by[RP_MAX_DIMS];
    unsigned n = 0;
    for (unsigned d = 0; d < t.ndim; d++) {
        if (rp__dim_same_word(start[d], 0) && rp__dim_same_word(t.size[d], from.size[d])) continue;
        first[n] = start[d];
        const rp_dim last = rp__dim_apply(RP__DIM_MUL, rp__dim_apply(RP__DIM_SUB, t.size[d], 1), step[d]);
        end[n] = rp__dim_same_word(t.size[d], 0)
                     ? start[d]
                     : rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_ADD, start[d], last), 1);
        axes[n] = d;
        by[n++] = step[d];
    }
    if (e->failed) return;
    const rp__put_val in[] = {a, rp__onnx_sizes(ONNX(e), first, n), rp__onnx_sizes(ONNX(e), end, n), ints(e, axes, n),
                              ints(e, by, n)};
    rp__onnx_node(ONNX(e), "Slice", in, 5, &out, 1, NULL);
}

static void flip(rp__emitter *e, rp__put_val out, rp__put_val a, uint32_t mask) {
    int64_t first[RP_MAX_DIMS], end[RP_MAX_DIMS], axes[RP_MAX_DIMS], by[RP_MAX_DIMS];
    unsigned n = 0;
    for (unsigned d = 0; d < e->types[a].ndim; d++) {
        if (!(mask >> d & 1u)) continue;
        first[n] = -1;
        end[n] = INT64_MIN;
        axes[n] = d;
        by[n++] = -1;
    }
    const rp__put_val in[] = {a, ints(e, first, n), ints(e, end, n), ints(e, axes, n), ints(e, by, n)};
    rp__onnx_node(ONNX(e), "Slice", in, 5, &out, 1, NULL);
}

static void pad(rp__emitter *e, rp__put_val out, rp__put_val a, const int64_t *before, const int64_t *after,
                rp__put_val value) {
    const unsigned n = e->types[a].ndim;
    int64_t pads[2 * RP_MAX_DIMS];
    memcpy(pads, before, n * sizeof *pads);
    memcpy(pads + n, after, n * sizeof *pads);
    op(e, "Pad", out, a, ints(e, pads, 2 * n), value);
}

static void cat(rp__emitter *e, rp__put_val out, const rp__put_val *in, unsigned n, unsigned dim) {
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_int(&attrs, "axis", dim);
    rp__onnx_node(ONNX(e), "Concat", in, n, &out, 1, &attrs);
}

static void take(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val index, unsigned dim) {
    op_int(e, "Gather", out, a, index, "axis", dim);
}

static void gather(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val index, unsigned dim) {
    op_int(e, "GatherElements", out, a, index, "axis", dim);
}

static void scatter(rp__emitter *e, rp__put_val out, rp__scatter kind, rp__put_val a, rp__put_val index,
                    rp__put_val src, unsigned dim) {
    static const char *const names[RP__SCATTERS] = {[RP__SCATTER_ADD] = "add",
                                                    [RP__SCATTER_SET] = "none",
                                                    [RP__SCATTER_MUL] = "mul",
                                                    [RP__SCATTER_MAX] = "max",
                                                    [RP__SCATTER_MIN] = "min"};
    if (ONNX(e)->opset < 18 && (kind == RP__SCATTER_MAX || kind == RP__SCATTER_MIN)) {
        rp__put_lacks(e, "opset %d has no scatter of the %s", ONNX(e)->opset, names[kind]);
        return;
    }
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_int(&attrs, "axis", dim);
    rp__onnx_attr_string(&attrs, "reduction", names[kind]);
    const rp__put_val in[] = {a, index, src};
    rp__onnx_node(ONNX(e), "ScatterElements", in, 3, &out, 1, &attrs);
}

/* ---- products, convolutions, pools */

static void matmul(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val b) { op(e, "MatMul", out, a, b, NONE); }

static void window_attrs(rp__onnx_attrs *attrs, const rp__put_conv *g) {
    int64_t pads[6];
    for (unsigned d = 0; d < g->spatial; d++) {
        pads[d] = g->before[d];
        pads[g->spatial + d] = g->after[d] > 0 ? g->after[d] : 0;
    }
    rp__onnx_attr_ints(attrs, "pads", pads, 2u * g->spatial);
    rp__onnx_attr_ints(attrs, "strides", g->stride, g->spatial);
}

static void conv_with(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, rp__put_val bias,
                      const rp__put_conv *g) {
    rp__onnx_attrs attrs = {{0}};
    window_attrs(&attrs, g);
    rp__onnx_attr_ints(&attrs, "dilations", g->dilation, g->spatial);
    rp__onnx_attr_int(&attrs, "group", g->groups);
    const rp__put_val in[] = {x, w, bias};
    rp__onnx_node(ONNX(e), "Conv", in, 3, &out, 1, &attrs);
}

static void conv(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, const rp__put_conv *g) {
    conv_with(e, out, x, w, NONE, g);
}

static void conv_transpose(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, const rp__put_conv *g) {
    rp__onnx_attrs attrs = {{0}};
    int64_t more[3];
    window_attrs(&attrs, g);
    for (unsigned d = 0; d < g->spatial; d++) more[d] = g->after[d] < 0 ? -g->after[d] : 0;
    rp__onnx_attr_ints(&attrs, "output_padding", more, g->spatial);
    rp__onnx_attr_ints(&attrs, "dilations", g->dilation, g->spatial);
    rp__onnx_attr_int(&attrs, "group", g->groups);
    const rp__put_val in[] = {x, w};
    rp__onnx_node(ONNX(e), "ConvTranspose", in, 2, &out, 1, &attrs);
}

/* Sums are means times the elements of a window, of an input with zeros around it. */
static void pool(rp__emitter *e, rp__put_val out, rp__reduce_kind kind, rp__put_val a, const int64_t *kernel,
                 const rp__put_conv *given) {
    rp__put_conv g = *given;
    rp__onnx_attrs attrs = {{0}};
    if (kind == RP__REDUCE_MAX) {
        window_attrs(&attrs, &g);
        rp__onnx_attr_ints(&attrs, "dilations", g.dilation, g.spatial);
        rp__onnx_attr_ints(&attrs, "kernel_shape", kernel, g.spatial);
        rp__onnx_node(ONNX(e), "MaxPool", &a, 1, &out, 1, &attrs);
        return;
    }
    int64_t before[RP_MAX_DIMS] = {0}, after[RP_MAX_DIMS] = {0}, elements = 1;
    for (unsigned d = 0; d < g.spatial; d++) {
        before[2 + d] = g.before[d];
        after[2 + d] = g.after[d];
        g.before[d] = g.after[d] = 0;
        elements *= kernel[d];
    }
    a = rp__put_pad(e, a, before, after, number(e, a, 0));
    const rp__put_type t = e->types[out];
    const rp__put_val mean = rp__put_new(e, &t);
    window_attrs(&attrs, &g);
    rp__onnx_attr_ints(&attrs, "kernel_shape", kernel, g.spatial);
    rp__onnx_node(ONNX(e), "AveragePool", &a, 1, &mean, 1, &attrs);
    op(e, "Mul", out, mean, number(e, a, (double)elements), NONE);
}

static void topk(rp__emitter *e, rp__put_val values, rp__put_val indices, rp__put_val a, int64_t k, unsigned dim,
                 bool largest) {
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_int(&attrs, "axis", dim);
    rp__onnx_attr_int(&attrs, "largest", largest);
    const rp__put_val in[] = {a, ints(e, &k, 1)}, out[] = {values, indices};
    rp__onnx_node(ONNX(e), "TopK", in, 2, out, 2, &attrs);
}

static void softmax(rp__emitter *e, rp__put_val out, rp__put_val a) { op_int(e, "Softmax", out, a, NONE, "axis", -1); }

/* ---- regions */

/* A block as an attribute. */
static void inner(rp__emitter *e, const rp__ir_block *b, const rp__put_val *args, rp__put_val *results,
                  rp__onnx_attrs *attrs, const char *name) {
    rp__onnx_outer outer;
    rp__onnx_inner_begin(ONNX(e), &outer);
    (void)rp__lower_block(e, b, args, results);
    for (uint32_t k = 0; k < b->n_results && !e->failed; k++) rp__onnx_inner_output(ONNX(e), results[k]);
    rp__onnx_inner_end(ONNX(e), &outer, attrs, name);
}

static void choose(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, const rp__put_val *out) {
    rp__put_val *results = rp__alloc((n->n_out + 1u) * sizeof *results);
    rp__onnx_attrs attrs = {{0}};
    if (!results) rp__put_oom(e);
    if (ONNX(e)->flat) rp__put_lacks(e, "it takes no branches");
    const rp__put_val pred = rp__lower_single(e, in[0]);
    for (unsigned which = 0; which < 2 && !e->failed; which++)
        inner(e, &n->regions[which], in + 1, results, &attrs, which == 0 ? "then_branch" : "else_branch");
    rp__onnx_node(ONNX(e), "If", &pred, 1, out, n->n_out, &attrs);
    rp__free(results);
}

/* The condition before the first turn is calculated outside, that of the others at the end of the turn before. */
static void repeat(rp__emitter *e, const rp__put_loop *loop, const rp__put_val *first, const rp__put_val *out) {
    const rp__put_type number = {.dtype = RP_I64}, truth = {.dtype = RP_BOOL};
    if (ONNX(e)->flat) {
        rp__put_lacks(e, "it takes no loops");
        return;
    }
    rp__put_val *given = rp__alloc((3u * loop->n + 2u) * sizeof *given);
    if (!given) {
        rp__put_oom(e);
        return;
    }
    rp__put_val *state = given + loop->n + 2, *next = state + loop->n;
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_outer outer;
    given[0] = loop->most > 0 ? rp__put_int(e, RP_I64, loop->most) : NONE;
    given[1] = loop->go(e, loop->ctx, first);
    memcpy(given + 2, first, loop->n * sizeof *given);
    rp__onnx_inner_begin(ONNX(e), &outer);
    (void)rp__onnx_inner_input(ONNX(e), &number);
    (void)rp__onnx_inner_input(ONNX(e), &truth);
    for (unsigned k = 0; k < loop->n && !e->failed; k++) {
        const rp__put_type t = e->types[first[k]];
        state[k] = rp__onnx_inner_input(ONNX(e), &t);
    }
    if (!e->failed) loop->turn(e, loop->ctx, state, next);
    if (!e->failed) rp__onnx_inner_output(ONNX(e), loop->go(e, loop->ctx, next));
    for (unsigned k = 0; k < loop->n && !e->failed; k++) rp__onnx_inner_output(ONNX(e), next[k]);
    rp__onnx_inner_end(ONNX(e), &outer, &attrs, "body");
    rp__onnx_node(ONNX(e), "Loop", given, loop->n + 2, out, loop->n, &attrs);
    rp__free(given);
}

/* ---- whole ops */

typedef struct whole {
    rp__onnx *o;
    rp__emitter *e;
    const rp__ir_node *n;
    const rp__put_val *in;
    rp__put_val *out;
} whole;

static rp__put_val result(const whole *w, unsigned k) {
    const rp__meta *m = &w->e->ir->values[w->n->out[k]].meta;
    const rp__put_type t = rp__put_type_from(m->dtype, m->size, m->ndim);
    return w->out[k] = rp__put_new(w->e, &t);
}
static rp_dtype out_dtype(const whole *w) { return w->e->ir->values[w->n->out[0]].meta.dtype; }
/* What runtimes have kernels for. */
static bool is_plain_float(const whole *w) {
    const rp_dtype d = out_dtype(w);
    return (d == RP_F32 || d == RP_F64) && rp__put_dtype(w->e, w->in[0]) == d;
}

static bool whole_unary(const whole *w, const char *type) {
    if (!is_plain_float(w)) return false;
    op(w->e, type, result(w, 0), w->in[0], NONE, NONE);
    return true;
}
static bool whole_relu(const whole *w) { return whole_unary(w, "Relu"); }

static bool whole_gelu(const whole *w) {
    if (!is_plain_float(w) || out_dtype(w) != RP_F32 || w->o->opset < 20) return false;
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_string(&attrs, "approximate", w->n->attrs[0].v.string);
    const rp__put_val out = result(w, 0);
    rp__onnx_node(w->o, "Gelu", w->in, 1, &out, 1, &attrs);
    return true;
}

static bool by_axis(const whole *w, const char *type) {
    if (!is_plain_float(w) || w->e->types[w->in[0]].ndim == 0) return false;
    op_int(w->e, type, result(w, 0), w->in[0], NONE, "axis", w->n->attrs[0].v.i);
    return true;
}
static bool whole_softmax(const whole *w) { return by_axis(w, "Softmax"); }
static bool whole_log_softmax(const whole *w) { return by_axis(w, "LogSoftmax"); }

static bool whole_layer_norm(const whole *w) {
    const unsigned n = (unsigned)w->n->attrs[0].n;
    if (!is_plain_float(w) || w->in[1] == NONE || n == 0) return false;
    for (unsigned k = 1; k < 3; k++)
        if (rp__lower_is_read(w->e->ir, w->n->out[k])) return false;
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_int(&attrs, "axis", -(int64_t)n);
    rp__onnx_attr_float(&attrs, "epsilon", w->n->attrs[1].v.f);
    const rp__put_val out = result(w, 0);
    rp__onnx_node(w->o, "LayerNormalization", w->in, 3, &out, 1, &attrs);
    for (unsigned k = 1; k < 3; k++) { /* nobody reads them */
        const rp__meta *m = &w->e->ir->values[w->n->out[k]].meta;
        w->out[k] = rp__put_expand(w->e, rp__put_int(w->e, m->dtype, 0), m->size, m->ndim);
    }
    return true;
}

static bool whole_linear(const whole *w) {
    rp__emitter *e = w->e;
    const rp__put_type x = e->types[w->in[0]], weight = e->types[w->in[1]];
    if (!is_plain_float(w) || weight.ndim != 2 || rp__put_dtype(e, w->in[1]) != x.dtype) return false;
    if (w->in[2] != NONE && rp__put_dtype(e, w->in[2]) != x.dtype) return false;
    rp_dim rows = 1;
    for (unsigned d = 0; d + 1 < x.ndim; d++) rows = rp__dim_apply(RP__DIM_MUL, rows, x.size[d]);
    const rp_dim flat[] = {rows, weight.size[1]};
    const rp__put_type t = {.dtype = x.dtype, .ndim = 2, .size = {rows, weight.size[0]}};
    const rp__put_val in[] = {rp__put_reshape(e, w->in[0], flat, 2), w->in[1], w->in[2]}, y = rp__put_new(e, &t);
    rp__onnx_attrs attrs = {{0}};
    rp__onnx_attr_int(&attrs, "transB", 1);
    rp__onnx_node(w->o, "Gemm", in, 3, &y, 1, &attrs);
    const rp__meta *m = &e->ir->values[w->n->out[0]].meta;
    w->out[0] = rp__put_reshape(e, y, m->size, m->ndim);
    return true;
}

static bool whole_conv(const whole *w) {
    rp__emitter *e = w->e;
    const rp__put_type x = e->types[w->in[0]], weight = e->types[w->in[1]];
    const unsigned spatial = weight.ndim - 2u;
    if (!is_plain_float(w) || x.ndim != spatial + 2 || w->in[2] == NONE) return false;
    rp__put_conv g = {.spatial = (uint8_t)spatial, .groups = w->n->attrs[3].v.i};
    for (unsigned d = 0; d < spatial; d++) {
        const rp_attr *a = w->n->attrs;
        g.stride[d] = a[0].v.ints[a[0].n == 1 ? 0 : d];
        g.before[d] = g.after[d] = a[1].v.ints[a[1].n == 1 ? 0 : d];
        g.dilation[d] = a[2].v.ints[a[2].n == 1 ? 0 : d];
    }
    conv_with(e, result(w, 0), w->in[0], w->in[1], w->in[2], &g);
    return true;
}

static const struct {
    const char *op;
    bool (*write)(const whole *w); /* false: not this call */
} wholes[] = {
    {"relu", whole_relu},
    {"gelu", whole_gelu},
    {"softmax", whole_softmax},
    {"log_softmax", whole_log_softmax},
    {"native_layer_norm", whole_layer_norm},
    {"linear", whole_linear},
    {"conv1d", whole_conv},
    {"conv2d", whole_conv},
    {"conv3d", whole_conv},
};

static bool node(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    const whole w = {ONNX(e), e, n, in, out};
    for (size_t k = 0; k < sizeof wholes / sizeof *wholes; k++)
        if (strcmp(wholes[k].op, n->op->name) == 0) return wholes[k].write(&w);
    return false;
}

const rp__put_ops rp__onnx_ops = {.scalar = scalar,
                                  .table = table,
                                  .iota = iota,
                                  .prim = prim_op,
                                  .cast = cast,
                                  .reduce = reduce,
                                  .scan = scan,
                                  .reshape = reshape,
                                  .permute = permute,
                                  .expand = expand,
                                  .slice = slice,
                                  .flip = flip,
                                  .pad = pad,
                                  .cat = cat,
                                  .take = take,
                                  .gather = gather,
                                  .scatter = scatter,
                                  .matmul = matmul,
                                  .conv = conv,
                                  .conv_transpose = conv_transpose,
                                  .pool = pool,
                                  .topk = topk,
                                  .softmax = softmax,
                                  .choose = choose,
                                  .repeat = repeat,
                                  .node = node};
