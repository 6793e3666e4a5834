/* See text.h. */
#include "doors/xla/text.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "doors/lower.h"

#define HLO(e) ((rp__hlo *)(e))
#define NONE RP__EMIT_NONE
#define LINE(e, ...) rp__text_add(&HLO(e)->body, __VA_ARGS__)

void rp__hlo_begin(rp__hlo *h, const rp_ir *ir) {
    memset(h, 0, sizeof *h);
    rp__put_begin(&h->emitter, &rp__hlo_ops, ir);
    h->emitter.writes = true;
}

void rp__hlo_end(rp__hlo *h) {
    rp__put_end(&h->emitter);
    rp__text_free(&h->args);
    rp__text_free(&h->body);
}

static void type_text(rp__text *t, const rp__put_type *type) {
    rp__text_puts(t, "tensor<");
    for (unsigned d = 0; d < type->ndim; d++) rp__text_add(t, "%lldx", (long long)type->size[d]);
    rp__text_add(t, "%s>", rp__dtypes[type->dtype].hlo);
}

static void put_type(rp__emitter *e, rp__put_val v) { type_text(&HLO(e)->body, &e->types[v]); }

static void known_sizes(rp__emitter *e, const rp__put_type *t) {
    for (unsigned d = 0; d < t->ndim; d++)
        if (rp__dim_is_symbol(t->size[d])) rp__put_lacks(e, "sizes must be known");
}

rp__put_val rp__hlo_arg(rp__hlo *h, const rp__put_type *type, int alias) {
    known_sizes(&h->emitter, type);
    const rp__put_val v = rp__put_new(&h->emitter, type);
    if (v == NONE) return v;
    rp__text_add(&h->args, "%s%%%u: ", h->n_args++ ? ", " : "", v);
    type_text(&h->args, type);
    if (alias >= 0) rp__text_add(&h->args, " {tf.aliasing_output = %d : i32}", alias);
    return v;
}

bool rp__hlo_module(rp__hlo *h, const rp__put_val *results, unsigned n, rp__text *out) {
    memset(out, 0, sizeof *out);
    rp__text_add(out, "module @graph {\n  func.func public @main(%s) -> (", h->args.data ? h->args.data : "");
    for (unsigned k = 0; k < n; k++) {
        if (k) rp__text_puts(out, ", ");
        type_text(out, &h->emitter.types[results[k]]);
    }
    rp__text_add(out, ") {\n%s    return ", h->body.data ? h->body.data : "");
    for (unsigned k = 0; k < n; k++) rp__text_add(out, "%s%%%u", k ? ", " : "", results[k]);
    rp__text_puts(out, n ? " : " : "");
    for (unsigned k = 0; k < n; k++) {
        if (k) rp__text_puts(out, ", ");
        type_text(out, &h->emitter.types[results[k]]);
    }
    rp__text_puts(out, "\n  }\n}\n");
    if (!out->failed && !h->args.failed && !h->body.failed) return true;
    rp__text_free(out);
    return false;
}

/* "%5 = stablehlo.NAME" */
static void begin(rp__emitter *e, rp__put_val out, const char *name) {
    known_sizes(e, &e->types[out]);
    LINE(e, "    %%%u = %s%s", out, strchr(name, '.') ? "" : "stablehlo.", name);
}

/* " : (types of operands) -> type" */
static void signature(rp__emitter *e, rp__put_val out, const rp__put_val *in, unsigned n) {
    LINE(e, " : (");
    for (unsigned k = 0; k < n; k++) {
        if (k) LINE(e, ", ");
        put_type(e, in[k]);
    }
    LINE(e, ") -> ");
    put_type(e, out);
    LINE(e, "\n");
}

static void list(rp__emitter *e, const int64_t *values, unsigned n) {
    LINE(e, "[");
    for (unsigned k = 0; k < n; k++) LINE(e, "%s%lld", k ? ", " : "", (long long)values[k]);
    LINE(e, "]");
}

/* ---- constants */

static void number(rp__emitter *e, rp_dtype dtype, const void *at) {
    uint64_t bits = 0;
    memcpy(&bits, at, rp__dtype_bytes(dtype));
    if (rp__dtype_is_float(dtype))
        LINE(e, "0x%0*llX", (int)(2 * rp__dtype_bytes(dtype)), (unsigned long long)bits);
    else if (dtype == RP_BOOL)
        LINE(e, "%s", bits ? "true" : "false");
    else
        LINE(e, "%lld", (long long)rp__scalar_i64(rp__scalar_load(dtype, at)));
}

static void scalar(rp__emitter *e, rp__put_val out, rp_scalar value) {
    uint64_t bytes = 0;
    const rp_dtype dtype = e->types[out].dtype;
    rp__scalar_store(value, dtype, &bytes);
    begin(e, out, "constant");
    LINE(e, " dense<");
    number(e, dtype, &bytes);
    LINE(e, "> : ");
    put_type(e, out);
    LINE(e, "\n");
}

static void table(rp__emitter *e, rp__put_val out, const void *data, size_t bytes) {
    const rp__put_type t = e->types[out];
    const size_t each = rp__dtype_bytes(t.dtype), n = bytes / each;
    const char *at = data;
    begin(e, out, "constant");
    LINE(e, " dense<");
    if (n == 1) {
        number(e, t.dtype, data);
    } else if (n > 1 && t.ndim > 1) { /* nested lists are for one dim only */
        LINE(e, "\"0x");
        static const char digits[] = "0123456789ABCDEF";
        for (size_t k = 0; k < bytes && t.dtype != RP_BOOL; k++) {
            const char pair[2] = {digits[(unsigned char)at[k] >> 4], digits[(unsigned char)at[k] & 15]};
            rp__text_write(&HLO(e)->body, pair, 2);
        }
        LINE(e, "\"");
        if (t.dtype == RP_BOOL) rp__put_lacks(e, "a constant of bools of several dims");
    } else if (n > 1) {
        LINE(e, "[");
        for (size_t k = 0; k < n; k++) {
            if (k) LINE(e, ", ");
            number(e, t.dtype, at + k * each);
        }
        LINE(e, "]");
    }
    LINE(e, "> : ");
    put_type(e, out);
    LINE(e, "\n");
}

static void iota(rp__emitter *e, rp__put_val out) {
    begin(e, out, "iota");
    LINE(e, " dim = 0 : ");
    put_type(e, out);
    LINE(e, "\n");
}

/* ---- elements */

static const char *const direct[RP__PRIM_COUNT] = {
    [RP__ADD] = "add",
    [RP__SUB] = "subtract",
    [RP__MUL] = "multiply",
    [RP__DIV] = "divide",
    [RP__POW] = "power",
    [RP__MAX] = "maximum",
    [RP__MIN] = "minimum",
    [RP__ATAN2] = "atan2",
    [RP__NEG] = "negate",
    [RP__ABS] = "abs",
    [RP__SIGN] = "sign",
    [RP__SQRT] = "sqrt",
    [RP__RSQRT] = "rsqrt",
    [RP__EXP] = "exponential",
    [RP__EXPM1] = "exponential_minus_one",
    [RP__LOG] = "log",
    [RP__LOG1P] = "log_plus_one",
    [RP__SIN] = "sine",
    [RP__COS] = "cosine",
    [RP__TANH] = "tanh",
    [RP__SIGMOID] = "logistic",
    [RP__FLOOR] = "floor",
    [RP__CEIL] = "ceil",
    [RP__RINT] = "round_nearest_even",
    [RP__FMOD] = "remainder",
    [RP__AND] = "and",
    [RP__OR] = "or",
    [RP__XOR] = "xor",
    [RP__NOT] = "not",
    [RP__TAN] = "tan",
    [RP__ERF] = "chlo.erf",
    [RP__ERFC] = "chlo.erfc",
    [RP__ERFINV] = "chlo.erf_inv",
    [RP__LGAMMA] = "chlo.lgamma",
    [RP__DIGAMMA] = "chlo.digamma",
    [RP__ASIN] = "chlo.asin",
    [RP__ACOS] = "chlo.acos",
    [RP__ATAN] = "chlo.atan",
    [RP__SINH] = "chlo.sinh",
    [RP__COSH] = "chlo.cosh",
    [RP__ASINH] = "chlo.asinh",
    [RP__ACOSH] = "chlo.acosh",
    [RP__ATANH] = "chlo.atanh",
    [RP__NEXTAFTER] = "chlo.next_after",
    [RP__ZETA] = "chlo.zeta",
};

static rp__put_val widen(rp__emitter *e, rp__put_val v, const rp__put_type *t) {
    return rp__put_expand(e, v, t->size, t->ndim);
}

static void compare(rp__emitter *e, rp__put_val out, const char *how, rp__put_val a, rp__put_val b) {
    const rp_dtype dtype = rp__put_dtype(e, a);
    const bool natural = dtype == RP_BOOL || dtype == RP_U8;
    if (e->failed) return;
    begin(e, out, "compare");
    LINE(e, " %s, %%%u, %%%u, %s", how, a, b, rp__dtype_is_float(dtype) ? "FLOAT" : natural ? "UNSIGNED" : "SIGNED");
    const rp__put_val in[] = {a, b};
    signature(e, out, in, 2);
}

static bool prim_op(rp__emitter *e, rp__put_val out, rp__prim prim, const rp__put_val *given, unsigned n) {
    const rp__put_type t = e->types[out];
    const rp_dtype dtype = rp__put_dtype(e, given[0]);
    rp__put_val in[3] = {NONE, NONE, NONE};
    if (prim == RP__SHR && dtype == RP_U8) return false;
    if (!direct[prim] && prim != RP__EQ && prim != RP__NE && prim != RP__LT && prim != RP__LE && prim != RP__WHERE &&
        prim != RP__CAST && prim != RP__SHL && prim != RP__SHR)
        return false;
    for (unsigned k = 0; k < n; k++) in[k] = widen(e, given[k], &t);
    if (e->failed) return true;
    const char *name = direct[prim];
    switch (prim) {
    case RP__EQ: compare(e, out, "EQ", in[0], in[1]); return true;
    case RP__NE: compare(e, out, "NE", in[0], in[1]); return true;
    case RP__LT: compare(e, out, "LT", in[0], in[1]); return true;
    case RP__LE: compare(e, out, "LE", in[0], in[1]); return true;
    case RP__WHERE:
        begin(e, out, "select");
        LINE(e, " %%%u, %%%u, %%%u : ", in[0], in[1], in[2]);
        put_type(e, in[0]);
        LINE(e, ", ");
        put_type(e, out);
        LINE(e, "\n");
        return true;
    case RP__CAST: {
        rp__put_val from = in[0]; /* a negative number becomes u8 modulo 256 */
        if (t.dtype == RP_U8 && rp__dtype_is_float(dtype)) from = rp__put_cast(e, from, RP_I64);
        begin(e, out, "convert");
        LINE(e, " %%%u", from);
        signature(e, out, &from, 1);
        return true;
    }
    case RP__SHL:
    case RP__SHR: { /* modulo the width */
        const int64_t width = (int64_t)rp__dtype_bytes(dtype) * 8 - 1;
        in[1] = widen(e, RP__EMIT2(e, AND, in[1], rp__put_int(e, dtype, width)), &t);
        name = prim == RP__SHL ? "shift_left" : "shift_right_arithmetic";
        break;
    }
    case RP__ABS:
    case RP__SIGN:
        if (dtype == RP_U8) {
            in[1] = prim == RP__ABS ? in[0] : widen(e, rp__put_int(e, dtype, 1), &t);
            name = prim == RP__ABS ? "maximum" : "minimum";
            n = 2;
        }
        break;
    default: break;
    }
    if (e->failed) return true;
    begin(e, out, name);
    for (unsigned k = 0; k < n; k++) LINE(e, "%s %%%u", k ? "," : "", in[k]);
    if (strncmp(name, "chlo.", 5) == 0) {
        if (n == 1) {
            LINE(e, " : ");
            put_type(e, in[0]);
            LINE(e, " -> ");
            put_type(e, out);
            LINE(e, "\n");
        } else {
            LINE(e, " : ");
            put_type(e, in[0]);
            LINE(e, ", ");
            put_type(e, in[1]);
            LINE(e, " -> ");
            put_type(e, out);
            LINE(e, "\n");
        }
    } else {
        LINE(e, " : ");
        put_type(e, out);
        LINE(e, "\n");
    }
    return true;
}

static void cast(rp__emitter *e, rp__put_val out, rp__put_val a) { (void)prim_op(e, out, RP__CAST, &a, 1); }

/* ---- reductions */

static const char *combiner(rp__reduce_kind kind, rp_dtype dtype) {
    switch (kind) {
    case RP__REDUCE_SUM: return "add";
    case RP__REDUCE_PROD: return "multiply";
    case RP__REDUCE_MAX: return dtype == RP_BOOL ? "or" : "maximum";
    case RP__REDUCE_MIN: return dtype == RP_BOOL ? "and" : "minimum";
    case RP__REDUCE_ANY: return "or";
    default: return "and";
    }
}

static rp__put_val identity(rp__emitter *e, rp__reduce_kind kind, rp_dtype dtype) {
    const bool real = rp__dtype_is_float(dtype), max = kind == RP__REDUCE_MAX;
    switch (kind) {
    case RP__REDUCE_SUM: return rp__put_int(e, dtype, 0);
    case RP__REDUCE_PROD: return rp__put_int(e, dtype, 1);
    case RP__REDUCE_ANY: return rp__put_int(e, dtype, 0);
    case RP__REDUCE_ALL: return rp__put_int(e, dtype, 1);
    default: break;
    }
    if (real) return rp__put_number(e, dtype, max ? -INFINITY : INFINITY);
    if (dtype == RP_BOOL) return rp__put_int(e, dtype, !max);
    if (dtype == RP_U8) return rp__put_int(e, dtype, max ? 0 : 255);
    return rp__put_int(e, dtype, dtype == RP_I32 ? (max ? INT32_MIN : INT32_MAX) : (max ? INT64_MIN : INT64_MAX));
}

static void reduce(rp__emitter *e, rp__put_val out, rp__reduce_kind kind, rp__put_val a, uint32_t mask) {
    const rp__put_type t = e->types[a];
    const rp__put_val first = identity(e, kind, t.dtype);
    rp__put_type less = {.dtype = t.dtype};
    int64_t dims[RP_MAX_DIMS] = {0};
    unsigned n = 0;
    for (unsigned d = 0; d < t.ndim; d++) {
        if (mask >> d & 1u)
            dims[n++] = d;
        else
            less.size[less.ndim++] = t.size[d];
    }
    const rp__put_val flat = rp__put_new(e, &less);
    if (flat == NONE) return;
    begin(e, flat, "reduce");
    LINE(e, "(%%%u init: %%%u) applies stablehlo.%s across dimensions = ", a, first, combiner(kind, t.dtype));
    list(e, dims, n);
    const rp__put_val in[] = {a, first};
    signature(e, flat, in, 2);
    begin(e, out, "reshape");
    LINE(e, " %%%u", flat);
    signature(e, out, &flat, 1);
}

/* A window that is combined, of all dims. */
static void windows(rp__emitter *e, rp__put_val out, rp__reduce_kind kind, rp__put_val a, const int64_t *size,
                    const int64_t *stride, const int64_t *dilation, const int64_t (*pad)[2]) {
    const rp__put_type t = e->types[a], one = {.dtype = t.dtype};
    const rp__put_val first = identity(e, kind, t.dtype);
    const unsigned n = t.ndim, x = HLO(e)->n_named++;
    if (e->failed) return;
    LINE(e, "    %%%u = \"stablehlo.reduce_window\"(%%%u, %%%u) <{padding = dense<[", out, a, first);
    for (unsigned d = 0; d < n; d++)
        LINE(e, "%s[%lld, %lld]", d ? ", " : "", (long long)pad[d][0], (long long)pad[d][1]);
    LINE(e, "]> : tensor<%ux2xi64>", n);
    static const char *const names[] = {"window_dilations", "window_dimensions", "window_strides"};
    const int64_t *const values[] = {dilation, size, stride};
    for (unsigned k = 0; k < 3; k++) {
        LINE(e, ", %s = array<i64: ", names[k]);
        for (unsigned d = 0; d < n; d++) LINE(e, "%s%lld", d ? ", " : "", (long long)values[k][d]);
        LINE(e, ">");
    }
    LINE(e, "}> ({\n    ^bb0(%%x%u: ", x);
    type_text(&HLO(e)->body, &one);
    LINE(e, ", %%y%u: ", x);
    type_text(&HLO(e)->body, &one);
    LINE(e, "):\n      %%z%u = stablehlo.%s %%x%u, %%y%u : ", x, combiner(kind, t.dtype), x, x);
    type_text(&HLO(e)->body, &one);
    LINE(e, "\n      stablehlo.return %%z%u : ", x);
    type_text(&HLO(e)->body, &one);
    LINE(e, "\n    })");
    const rp__put_val in[] = {a, first};
    signature(e, out, in, 2);
}

static bool scan(rp__emitter *e, rp__put_val out, rp__scan_kind kind, rp__put_val a, unsigned dim, bool reversed) {
    const rp__put_type t = e->types[a];
    int64_t size[RP_MAX_DIMS], one[RP_MAX_DIMS], pad[RP_MAX_DIMS][2];
    static const rp__reduce_kind as[] = {[RP__SCAN_SUM] = RP__REDUCE_SUM,
                                         [RP__SCAN_PROD] = RP__REDUCE_PROD,
                                         [RP__SCAN_MAX] = RP__REDUCE_MAX,
                                         [RP__SCAN_MIN] = RP__REDUCE_MIN};
    if (kind == RP__SCAN_LOGADDEXP) return false;
    for (unsigned d = 0; d < t.ndim; d++) {
        const int64_t far = d == dim ? t.size[d] - 1 : 0;
        size[d] = far + 1;
        one[d] = 1;
        pad[d][0] = reversed ? 0 : far;
        pad[d][1] = reversed ? far : 0;
    }
    windows(e, out, as[kind], a, size, one, one, (const int64_t(*)[2])pad);
    return true;
}

static void pool(rp__emitter *e, rp__put_val out, rp__reduce_kind kind, rp__put_val a, const int64_t *kernel,
                 const rp__put_conv *g) {
    const unsigned n = e->types[a].ndim, lead = n - g->spatial;
    int64_t size[RP_MAX_DIMS], stride[RP_MAX_DIMS], dilation[RP_MAX_DIMS], pad[RP_MAX_DIMS][2];
    for (unsigned d = 0; d < n; d++) {
        const bool place = d >= lead;
        size[d] = place ? kernel[d - lead] : 1;
        stride[d] = place ? g->stride[d - lead] : 1;
        dilation[d] = place ? g->dilation[d - lead] : 1;
        pad[d][0] = place ? g->before[d - lead] : 0;
        pad[d][1] = place ? g->after[d - lead] : 0;
    }
    windows(e, out, kind, a, size, stride, dilation, (const int64_t(*)[2])pad);
}

/* ---- arrangement */

static void reshape(rp__emitter *e, rp__put_val out, rp__put_val a) {
    begin(e, out, "reshape");
    LINE(e, " %%%u", a);
    signature(e, out, &a, 1);
}

static void permute(rp__emitter *e, rp__put_val out, rp__put_val a, const int64_t *dims) {
    begin(e, out, "transpose");
    LINE(e, " %%%u, dims = ", a);
    list(e, dims, e->types[a].ndim);
    signature(e, out, &a, 1);
}

static void expand(rp__emitter *e, rp__put_val out, rp__put_val a) {
    int64_t dims[RP_MAX_DIMS] = {0};
    for (unsigned d = 0; d < e->types[a].ndim; d++) dims[d] = d;
    begin(e, out, "broadcast_in_dim");
    LINE(e, " %%%u, dims = ", a);
    list(e, dims, e->types[a].ndim);
    signature(e, out, &a, 1);
}

static void slice(rp__emitter *e, rp__put_val out, rp__put_val a, const rp_dim *start, const int64_t *step) {
    const rp__put_type t = e->types[out];
    begin(e, out, "slice");
    LINE(e, " %%%u [", a);
    for (unsigned d = 0; d < t.ndim; d++) {
        if (rp__dim_is_symbol(start[d])) rp__put_lacks(e, "sizes must be known");
        const long long first = (long long)start[d], n = (long long)t.size[d];
        LINE(e, "%s%lld:%lld:%lld", d ? ", " : "", first, n ? first + (n - 1) * (long long)step[d] + 1 : first,
             (long long)step[d]);
    }
    LINE(e, "]");
    signature(e, out, &a, 1);
}

static void flip(rp__emitter *e, rp__put_val out, rp__put_val a, uint32_t mask) {
    int64_t dims[RP_MAX_DIMS] = {0};
    unsigned n = 0;
    for (unsigned d = 0; d < e->types[a].ndim; d++)
        if (mask >> d & 1u) dims[n++] = d;
    begin(e, out, "reverse");
    LINE(e, " %%%u, dims = ", a);
    list(e, dims, n);
    LINE(e, " : ");
    put_type(e, out);
    LINE(e, "\n");
}

static void pad(rp__emitter *e, rp__put_val out, rp__put_val a, const int64_t *before, const int64_t *after,
                rp__put_val value) {
    const int64_t none[RP_MAX_DIMS] = {0};
    const unsigned n = e->types[a].ndim;
    begin(e, out, "pad");
    LINE(e, " %%%u, %%%u, low = ", a, value);
    list(e, before, n);
    LINE(e, ", high = ");
    list(e, after, n);
    LINE(e, ", interior = ");
    list(e, none, n);
    const rp__put_val in[] = {a, value};
    signature(e, out, in, 2);
}

static void cat(rp__emitter *e, rp__put_val out, const rp__put_val *in, unsigned n, unsigned dim) {
    begin(e, out, "concatenate");
    for (unsigned k = 0; k < n; k++) LINE(e, "%s %%%u", k ? "," : "", in[k]);
    LINE(e, ", dim = %u", dim);
    signature(e, out, in, n);
}

static void take(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val index, unsigned dim) {
    const rp__put_type t = e->types[a];
    const unsigned n = e->types[index].ndim;
    int64_t offset[RP_MAX_DIMS] = {0}, one[1] = {(int64_t)dim};
    unsigned k = 0;
    for (unsigned d = 0; d < t.ndim; d++)
        if (d != dim) offset[k++] = d < dim ? d : d - 1 + n;
    LINE(e, "    %%%u = \"stablehlo.gather\"(%%%u, %%%u) <{dimension_numbers = #stablehlo.gather<offset_dims = ", out,
         a, index);
    list(e, offset, k);
    LINE(e, ", collapsed_slice_dims = ");
    list(e, one, 1);
    LINE(e, ", start_index_map = ");
    list(e, one, 1);
    LINE(e, ", index_vector_dim = %u>, indices_are_sorted = false, slice_sizes = array<i64: ", n);
    for (unsigned d = 0; d < t.ndim; d++) LINE(e, "%s%lld", d ? ", " : "", d == dim ? 1LL : (long long)t.size[d]);
    LINE(e, ">}>");
    const rp__put_val in[] = {a, index};
    signature(e, out, in, 2);
}

/* Each element by the whole index of its place. */
static void scatter(rp__emitter *e, rp__put_val out, rp__scatter kind, rp__put_val a, rp__put_val index,
                    rp__put_val src, unsigned dim) {
    static const char *const names[RP__SCATTERS] = {[RP__SCATTER_ADD] = "add",
                                                    [RP__SCATTER_MUL] = "multiply",
                                                    [RP__SCATTER_MAX] = "maximum",
                                                    [RP__SCATTER_MIN] = "minimum"};
    const rp__put_type t = e->types[index], one = {.dtype = rp__put_dtype(e, a)};
    rp__put_val column[RP_MAX_DIMS];
    rp_dim size[RP_MAX_DIMS];
    int64_t all[RP_MAX_DIMS];
    if (t.ndim + 1u > RP_MAX_DIMS) {
        rp__put_lacks(e, "a scatter of too many dims");
        return;
    }
    memcpy(size, t.size, t.ndim * sizeof *size);
    size[t.ndim] = 1;
    for (unsigned d = 0; d < t.ndim; d++) {
        rp_dim along[RP_MAX_DIMS];
        for (unsigned k = 0; k < t.ndim; k++) along[k] = k == d ? t.size[d] : 1;
        const rp__put_val at =
            d == dim ? index
                     : rp__put_expand(e, rp__put_reshape(e, rp__put_iota(e, t.size[d]), along, t.ndim), t.size, t.ndim);
        column[d] = rp__put_reshape(e, at, size, t.ndim + 1u);
        all[d] = d;
    }
    const rp__put_val places = rp__put_cat(e, column, t.ndim, t.ndim);
    const unsigned x = HLO(e)->n_named++;
    if (e->failed) return;
    LINE(e,
         "    %%%u = \"stablehlo.scatter\"(%%%u, %%%u, %%%u) <{indices_are_sorted = false, scatter_dimension_numbers = "
         "#stablehlo.scatter<inserted_window_dims = ",
         out, a, places, src);
    list(e, all, t.ndim);
    LINE(e, ", scatter_dims_to_operand_dims = ");
    list(e, all, t.ndim);
    LINE(e, ", index_vector_dim = %u>, unique_indices = false}> ({\n    ^bb0(%%x%u: ", t.ndim, x);
    type_text(&HLO(e)->body, &one);
    LINE(e, ", %%y%u: ", x);
    type_text(&HLO(e)->body, &one);
    LINE(e, "):\n");
    if (names[kind]) {
        LINE(e, "      %%z%u = stablehlo.%s %%x%u, %%y%u : ", x, names[kind], x, x);
        type_text(&HLO(e)->body, &one);
        LINE(e, "\n");
    }
    LINE(e, "      stablehlo.return %%%c%u : ", names[kind] ? 'z' : 'y', x);
    type_text(&HLO(e)->body, &one);
    LINE(e, "\n    })");
    const rp__put_val in[] = {a, places, src};
    signature(e, out, in, 3);
}

/* ---- products */

static void matmul(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val b) {
    const unsigned n = e->types[a].ndim;
    int64_t batch[RP_MAX_DIMS];
    for (unsigned d = 0; d + 2 < n; d++) batch[d] = d;
    begin(e, out, "dot_general");
    LINE(e, " %%%u, %%%u", a, b);
    if (n > 2) {
        LINE(e, ", batching_dims = ");
        list(e, batch, n - 2);
        LINE(e, " x ");
        list(e, batch, n - 2);
    }
    LINE(e, ", contracting_dims = [%u] x [%u]", n - 1, n - 2);
    if (!HLO(e)->tf32) LINE(e, ", precision = [HIGHEST, HIGHEST]");
    const rp__put_val in[] = {a, b};
    signature(e, out, in, 2);
}

static void convolution(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, const char *weight,
                        const rp__put_conv *g, const int64_t *low, const int64_t *high, const int64_t *stride,
                        const int64_t *spread) {
    static const char *const places[] = {"", ", 0", ", 0, 1", ", 0, 1, 2"};
    const char *at = places[g->spatial];
    if (e->failed) return;
    begin(e, out, "convolution");
    LINE(e, "(%%%u, %%%u) dim_numbers = [b, f%s]x[%s%s]->[b, f%s], window = {stride = ", x, w, at, weight, at, at);
    list(e, stride, g->spatial);
    LINE(e, ", pad = [");
    for (unsigned d = 0; d < g->spatial; d++)
        LINE(e, "%s[%lld, %lld]", d ? ", " : "", (long long)low[d], (long long)high[d]);
    LINE(e, "], lhs_dilate = ");
    list(e, spread, g->spatial);
    LINE(e, ", rhs_dilate = ");
    list(e, g->dilation, g->spatial);
    LINE(e, "} {batch_group_count = 1 : i64, feature_group_count = %lld : i64%s}", (long long)g->groups,
         HLO(e)->tf32 ? "" : ", precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]");
    const rp__put_val in[] = {x, w};
    signature(e, out, in, 2);
}

static void conv(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, const rp__put_conv *g) {
    const int64_t one[3] = {1, 1, 1};
    convolution(e, out, x, w, "o, i", g, g->before, g->after, g->stride, one);
}

/* The input with zeros between its elements, by the weight from its ends, whose channels are exchanged within each group. */
static void conv_transpose(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, const rp__put_conv *g) {
    const rp__put_type t = e->types[w];
    const int64_t one[3] = {1, 1, 1}, groups = g->groups;
    int64_t low[3], high[3], order[RP_MAX_DIMS] = {1, 0, 2};
    rp_dim split[RP_MAX_DIMS] = {groups, t.size[0] / groups, t.size[1]},
           joined[RP_MAX_DIMS] = {t.size[0] / groups, groups * t.size[1]};
    uint32_t mask = 0;
    for (unsigned d = 0; d < g->spatial; d++) {
        const int64_t reach = g->dilation[d] * (t.size[2 + d] - 1);
        low[d] = reach - g->before[d];
        high[d] = reach - g->after[d];
        split[3 + d] = joined[2 + d] = t.size[2 + d];
        order[3 + d] = 3 + (int64_t)d;
        mask |= 1u << (2 + d);
    }
    if (groups > 1) {
        w = rp__put_permute(e, rp__put_reshape(e, w, split, g->spatial + 3u), order);
        w = rp__put_reshape(e, w, joined, g->spatial + 2u);
    }
    convolution(e, out, x, rp__put_flip(e, w, mask), "i, o", g, low, high, one, g->stride);
}

static void topk(rp__emitter *e, rp__put_val values, rp__put_val indices, rp__put_val a, int64_t k, unsigned dim,
                 bool largest) {
    const rp__put_type t = e->types[a];
    const rp_dtype dtype = t.dtype;
    int64_t order[RP_MAX_DIMS];
    for (unsigned d = 0; d < t.ndim; d++) order[d] = d;
    order[dim] = t.ndim - 1;
    order[t.ndim - 1] = dim;
    if (!largest && !rp__dtype_is_float(dtype)) {
        rp__put_lacks(e, "the smallest of integers");
        return;
    }
    rp__put_val x = rp__put_permute(e, a, order);
    if (!largest) x = RP__EMIT1(e, NEG, x);
    if (e->failed) return;
    rp__put_type found = e->types[x];
    found.size[t.ndim - 1] = k;
    const rp__put_val v = rp__put_new(e, &found);
    found.dtype = RP_I32;
    const rp__put_val i = rp__put_new(e, &found);
    if (i == NONE) return;
    LINE(e, "    %%%u, %%%u = chlo.top_k(%%%u, k = %lld) : ", v, i, x, (long long)k);
    put_type(e, x);
    LINE(e, " -> (");
    put_type(e, v);
    LINE(e, ", ");
    put_type(e, i);
    LINE(e, ")\n");
    const rp__put_val signed_v = largest ? v : RP__EMIT1(e, NEG, v), wide = rp__put_cast(e, i, RP_I64);
    permute(e, values, signed_v, order);
    permute(e, indices, wide, order);
}

/* ---- regions: blocks see the values around them */

static void types(rp__emitter *e, const rp__put_val *v, unsigned n) {
    for (unsigned k = 0; k < n; k++) {
        if (k) LINE(e, ", ");
        put_type(e, v[k]);
    }
}

static void names_of(rp__emitter *e, const rp__put_val *v, unsigned n) {
    for (unsigned k = 0; k < n; k++) LINE(e, "%s%%%u", k ? ", " : "", v[k]);
}

static void give_back(rp__emitter *e, const rp__put_val *values, unsigned n) {
    if (e->failed) return;
    LINE(e, "    stablehlo.return ");
    names_of(e, values, n);
    LINE(e, " : ");
    types(e, values, n);
    LINE(e, "\n");
}

/* Block 0 of a case is the first branch. */
static void choose(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, const rp__put_val *out) {
    rp__put_val *results = rp__alloc((n->n_out + 1u) * sizeof *results);
    if (!results) rp__put_oom(e);
    for (unsigned k = 0; k < n->n_out && !e->failed; k++) known_sizes(e, &e->types[out[k]]);
    const rp__put_val pred = rp__lower_single(e, in[0]),
                      which = rp__put_where(e, pred, rp__put_int(e, RP_I32, 0), rp__put_int(e, RP_I32, 1));
    if (!e->failed) {
        LINE(e, "    ");
        names_of(e, out, n->n_out);
        LINE(e, " = \"stablehlo.case\"(%%%u) ({\n", which);
        for (unsigned k = 0; k < 2; k++) {
            (void)rp__lower_block(e, &n->regions[k], in + 1, results);
            give_back(e, results, n->n_out);
            LINE(e, "%s", k == 0 ? "    }, {\n" : "    }) : (");
        }
    }
    if (!e->failed) {
        put_type(e, which);
        LINE(e, ") -> (");
        types(e, out, n->n_out);
        LINE(e, ")\n");
    }
    rp__free(results);
}

/* The head of a loop's block, whose arguments are new values. */
static void block_args(rp__emitter *e, const rp__put_val *first, unsigned n, rp__put_val *args) {
    for (unsigned k = 0; k < n; k++) {
        const rp__put_type t = e->types[first[k]];
        args[k] = rp__put_new(e, &t);
    }
    if (e->failed) return;
    LINE(e, "    ^bb0(");
    for (unsigned k = 0; k < n; k++) {
        LINE(e, "%s%%%u: ", k ? ", " : "", args[k]);
        put_type(e, args[k]);
    }
    LINE(e, "):\n");
}

/* The number of turns is one more value of the state, where it is bounded. */
static void repeat(rp__emitter *e, const rp__put_loop *loop, const rp__put_val *first, const rp__put_val *out) {
    const unsigned n = loop->n, all = n + (loop->most > 0);
    rp__put_val *given = rp__alloc(4u * ((size_t)n + 1) * sizeof *given);
    if (!given) {
        rp__put_oom(e);
        return;
    }
    rp__put_val *gives = given + n + 1, *state = gives + n + 1, *next = state + n + 1;
    memcpy(given, first, n * sizeof *given);
    memcpy(gives, out, n * sizeof *gives);
    for (unsigned k = 0; k < n; k++) known_sizes(e, &e->types[first[k]]);
    if (loop->most > 0) {
        const rp__put_type number = {.dtype = RP_I64};
        given[n] = rp__put_int(e, RP_I64, 0);
        gives[n] = rp__put_new(e, &number);
    }
    if (!e->failed) {
        LINE(e, "    ");
        names_of(e, gives, all);
        LINE(e, " = \"stablehlo.while\"(");
        names_of(e, given, all);
        LINE(e, ") ({\n");
        block_args(e, given, all, state);
    }
    if (!e->failed) {
        next[0] = loop->go(e, loop->ctx, state);
        if (loop->most > 0)
            next[0] = RP__EMIT2(e, AND, next[0], RP__EMIT_IS(e, LT, state[n], rp__put_int(e, RP_I64, loop->most)));
        give_back(e, next, 1);
        LINE(e, "    }, {\n");
        block_args(e, given, all, state);
    }
    if (!e->failed) {
        loop->turn(e, loop->ctx, state, next);
        if (loop->most > 0) next[n] = RP__EMIT2(e, ADD, state[n], rp__put_int(e, RP_I64, 1));
        give_back(e, next, all);
    }
    if (!e->failed) {
        LINE(e, "    }) : (");
        types(e, given, all);
        LINE(e, ") -> (");
        types(e, gives, all);
        LINE(e, ")\n");
    }
    rp__free(given);
}

const rp__put_ops rp__hlo_ops = {.scalar = scalar,
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
                                 .scatter = scatter,
                                 .matmul = matmul,
                                 .conv = conv,
                                 .conv_transpose = conv_transpose,
                                 .pool = pool,
                                 .topk = topk,
                                 .choose = choose,
                                 .repeat = repeat};
