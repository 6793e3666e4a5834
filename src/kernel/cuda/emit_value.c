/* The CUDA C of one node, load or store of a DAG (emit_parts.h). Every intrinsic and math function it writes is one of the
 * prelude or of support.cuh; nothing here knows which kernel is being written beyond where its elements lie. */
#include "kernel/cuda/emit_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernel/cuda/text_kernel.h"

/* ---- names ---- */

const char *rp__emit_type(unsigned dtype) { return rp__dtypes[dtype].cuda; }

static bool is_narrow(const rp__emitter *e, rp__val v) {
    return v < RP__CUDA_RANGED && (e->c->narrow[v / 64] >> (v % 64) & 1);
}
static bool is_sure(const rp__emitter *e, rp__val v) {
    return v < RP__CUDA_RANGED && (e->c->sure[v / 64] >> (v % 64) & 1);
}

const char *rp__emit_value_type(const rp__emitter *e, rp__val v) {
    return is_narrow(e, v) ? "rp_i32" : rp__emit_type(e->dag->nodes[v].dtype);
}

const char *rp__emit_suffix(unsigned dtype) { return dtype == RP_F64 ? "f64" : "f32"; }
const char *rp__emit_index_type(const rp__emitter *e) { return e->c->wide ? "rp_i64" : "rp_i32"; }

bool rp__emit_is_rows(const rp__cuda_class *c) {
    return c->template_ != RP__CUDA_POINTWISE && c->template_ != RP__CUDA_TILE && c->template_ != RP__CUDA_MANY;
}

/* A value written as an operand; literals are written out. At most 64 bytes. */
const char *rp__emit_value(const rp__emitter *e, rp__val v, char buf[64]) {
    const rp__node *n = &e->dag->nodes[v];
    if (n->op == RP__CONST) {
        if (n->dtype == RP_F32) {
            float f = (float)n->imm.f;
            uint32_t bits;
            memcpy(&bits, &f, sizeof bits);
            (void)snprintf(buf, 64, "rp_bits_f32(0x%08" PRIx32 "u)", bits);
        } else if (n->dtype == RP_F64) {
            uint64_t bits;
            memcpy(&bits, &n->imm.f, sizeof bits);
            (void)snprintf(buf, 64, "rp_bits_f64(0x%016" PRIx64 "ull)", bits);
        } else if (n->imm.i == INT64_MIN) {
            (void)snprintf(buf, 64, "(-9223372036854775807ll - 1ll)");
        } else {
            (void)snprintf(buf, 64, "((%s)%" PRId64 "ll)", rp__emit_value_type(e, v), n->imm.i);
        }
        return buf;
    }
    if (e->level[v] != RP__LEVEL_ELEMENT)
        (void)snprintf(buf, 64, "r%u%s", v, e->columns > 1 && e->level[v] == RP__LEVEL_ROW ? "[j]" : "");
    else
        (void)snprintf(buf, 64, "v%u%s", v, e->array[v] ? e->at : "");
    return buf;
}

/* ---- parameter words ---- */

uint32_t rp__emit_extra_word(const rp__emitter *e, unsigned which) {
    if (e->c->template_ == RP__CUDA_MANY) return e->dag->n_scalars + which;
    return e->words.end + which;
}

static uint32_t scalar_word(const rp__emitter *e, unsigned scalar) {
    return e->c->template_ == RP__CUDA_MANY ? scalar : e->words.scalar + scalar;
}

uint32_t rp__emit_stride_word(const rp__emitter *e, unsigned access, unsigned dim) {
    return e->words.stride + access * e->n_dims + dim;
}

static void add_scalar(const rp__emitter *e, rp__val v) {
    const unsigned dtype = e->dag->nodes[v].dtype;
    uint32_t w = scalar_word(e, e->dag->nodes[v].access);
    if (dtype == RP_F32)
        rp__text_add(e->out, "rp_bits_f32((rp_u32)p.w[%u])", w);
    else if (dtype == RP_F64)
        rp__text_add(e->out, "rp_bits_f64(p.w[%u])", w);
    else
        rp__text_add(e->out, "(%s)p.w[%u]", rp__emit_value_type(e, v), w);
}

/* ---- operations ---- */

static const char *const math_name[RP__NODE_COUNT] = {
#define RP_MATH1(prim, f, cost) [RP__##prim] = #f,
#define RP_MATH2(prim, f, cost) [RP__##prim] = #f,
#include "kernel/prims.def"
    [RP__MAX] = "max",
    [RP__MIN] = "min",
    [RP__ABS] = "fabs",
    [RP__ERFP1] = "erfp1",
};

/* Of what relax.h allows to be so. */
static const char *approximate_name(unsigned op) {
    switch (op) {
    case RP__DIV: return "div";
    case RP__RECIP: return "recip";
    case RP__RSQRT: return "rsqrt";
    case RP__EXP: return "exp";
    case RP__TANH: return "tanh";
    case RP__SIGMOID: return "sigmoid";
    default: return NULL;
    }
}

static const char *infix(unsigned op) {
    switch (op) {
    case RP__ADD: return "+";
    case RP__SUB: return "-";
    case RP__MUL: return "*";
    case RP__DIV: return "/";
    case RP__EQ: return "==";
    case RP__NE: return "!=";
    case RP__LT: return "<";
    case RP__LE: return "<=";
    case RP__AND: return "&";
    case RP__OR: return "|";
    case RP__XOR: return "^";
    default: return NULL;
    }
}

/* narrow: to 64 bits of which 32 are enough. */
static void add_cast(const rp__emitter *e, unsigned from, unsigned to, bool narrow, const char *a) {
    bool from_float = from == RP_F32 || from == RP_F64;
    if (to == RP_BOOL)
        rp__text_add(e->out, "(rp_u8)(%s != 0)", a);
    else if (from_float && (to == RP_I32 || to == RP_I64))
        rp__text_add(e->out, "rp_cvt_%s_to_%s(%s)", rp__emit_suffix(from), to == RP_I32 || narrow ? "i32" : "i64", a);
    else if (from_float && to == RP_U8)
        rp__text_add(e->out, "(rp_u8)rp_cvt_%s_to_i64(%s)", rp__emit_suffix(from), a);
    else
        rp__text_add(e->out, "(%s)%s", narrow ? "rp_i32" : rp__emit_type(to), a);
}

static void add_philox(const rp__emitter *e, const rp__node *n, const char *a) {
    uint32_t w = e->words.draw + 3 * (uint32_t)n->imm.i;
    const char *kind = n->op == RP__PHILOX     ? "word"
                       : n->op == RP__PHILOX64 ? "word64"
                       : n->dtype == RP_F64    ? "normal_f64"
                                               : "normal_f32";
    rp__text_add(e->out, "rp_random_%s(p.w[%u], p.w[%u], p.w[%u], %s)", kind, w, w + 1, w + 2, a);
}

/* Operand x of node v. What 32 bits hold is widened where the result may not be. */
static const char *operand(const rp__emitter *e, rp__val v, rp__val x, char buf[80]) {
    if (e->dag->nodes[v].dtype != RP_I64 || is_narrow(e, v) || !is_narrow(e, x)) return rp__emit_value(e, x, buf);
    char own[64];
    (void)snprintf(buf, 80, "(rp_i64)%s", rp__emit_value(e, x, own));
    return buf;
}

/* The right-hand side of an arithmetic node. guard, or NULL: whether the thread has an element; one that has none computes
   with zeros, and what it meets is no error. */
static void add_operation(const rp__emitter *e, rp__val v, const char *guard) {
    char ta[80], tb[80], tc[64];
    const rp__node *n = &e->dag->nodes[v];
    const bool narrow = is_narrow(e, v);
    const char *a = n->a != RP__NO_VAL ? operand(e, v, n->a, ta) : "";
    const char *b = n->b != RP__NO_VAL ? operand(e, v, n->b, tb) : "";
    const char *c = n->c != RP__NO_VAL ? rp__emit_value(e, n->c, tc) : "";
    unsigned from = n->a != RP__NO_VAL ? e->dag->nodes[n->a].dtype : n->dtype;
    bool real = n->dtype == RP_F32 || n->dtype == RP_F64;
    const char *type = rp__emit_value_type(e, v);
    const char *about = n->imm.i == 1 && n->dtype == RP_F32 ? approximate_name(n->op) : NULL;
    if (about) {
        rp__text_add(e->out, "rp_%s_approx_f32(%s%s%s)", about, a, b[0] ? ", " : "", b);
        return;
    }
    const char *sign = infix(n->op);
    if (sign) { /* small integers wrap at their own width */
        rp__text_add(e->out, "(%s)(%s %s %s)", type, a, sign, b);
        return;
    }
    const char *math = math_name[n->op];
    if (math && real) {
        rp__text_add(e->out, "rp_%s_%s(%s%s%s)", math, rp__emit_suffix(n->dtype), a, b[0] ? ", " : "", b);
        return;
    }
    switch (n->op) {
    case RP__FLOORDIV:
    case RP__REMAINDER:
        if (real)
            rp__text_add(e->out, "rp_%s_%s(%s, %s)", n->op == RP__FLOORDIV ? "floordiv" : "remainder",
                         rp__emit_suffix(n->dtype), a, b);
        else if (narrow && e->level[n->b] == RP__LEVEL_UNIFORM)
            rp__text_add(e->out, "(rp_i32)((rp_u32)%s %c (rp_u32)%s)", a, n->op == RP__FLOORDIV ? '/' : '%', b);
        else if (narrow) /* an element that is not there may be anything */
            rp__text_add(e->out, "(%s ? (rp_i32)((rp_u32)%s %c (rp_u32)%s) : 0)", guard ? guard : "1", a,
                         n->op == RP__FLOORDIV ? '/' : '%', b);
        else
            rp__text_add(e->out, "(%s%s(%s)rp_%s_i64(p.w[%u], p.w[%u], %s, %s)%s)", guard ? guard : "",
                         guard ? " ? " : "", type, n->op == RP__FLOORDIV ? "floordiv" : "remainder", e->words.error,
                         e->words.error + 1, a, b, guard ? " : 0" : "");
        break;
    case RP__MAX: rp__text_add(e->out, "(%s > %s ? %s : %s)", a, b, a, b); break;
    case RP__MIN: rp__text_add(e->out, "(%s < %s ? %s : %s)", a, b, a, b); break;
    case RP__NEG:
        if (n->dtype == RP_I32)
            rp__text_add(e->out, "rp_neg_i32(%s)", a);
        else
            rp__text_add(e->out, "(%s)-%s", type, a);
        break;
    case RP__ABS: rp__text_add(e->out, "(%s)(%s < 0 ? -%s : %s)", type, a, a, a); break;
    case RP__SIGN:
        if (real)
            rp__text_add(e->out, "(%s)((%s > 0) - (%s < 0) + (%s != %s ? %s : 0))", type, a, a, a, a, a);
        else
            rp__text_add(e->out, "(%s)((%s > 0) - (%s < 0))", type, a, a);
        break;
    case RP__RSQRT: rp__text_add(e->out, "((%s)1 / rp_sqrt_%s(%s))", type, rp__emit_suffix(n->dtype), a); break;
    case RP__RECIP: rp__text_add(e->out, "((%s)1 / %s)", type, a); break;
    case RP__SIGMOID:
        rp__text_add(e->out, "((%s)1 / ((%s)1 + rp_exp_%s(-%s)))", type, type, rp__emit_suffix(n->dtype), a);
        break;
    case RP__ISNAN: rp__text_add(e->out, "(rp_u8)(%s != %s)", a, a); break;
    case RP__NOT:
        rp__text_add(e->out, n->dtype == RP_BOOL ? "(rp_u8)!%s" : "(%s)~%s", n->dtype == RP_BOOL ? a : type, a);
        break;
    case RP__SHL:
    case RP__SHR:
    case RP__GCD:
        rp__text_add(e->out, "rp_%s_%s(%s, %s)",
                     n->op == RP__GCD   ? "gcd"
                     : n->op == RP__SHL ? "shl"
                                        : "shr",
                     n->dtype == RP_I64   ? "i64"
                     : n->dtype == RP_I32 ? "i32"
                                          : "u8",
                     a, b);
        break;
    case RP__FMA: rp__text_add(e->out, "rp_fma_%s(%s, %s, %s)", rp__emit_suffix(n->dtype), a, b, c); break;
    case RP__WHERE: rp__text_add(e->out, "(%s ? %s : %s)", a, b, c); break;
    case RP__CAST: add_cast(e, from, n->dtype, narrow, a); break;
    case RP__ROUND:
        if (n->dtype == RP_F32)
            rp__text_add(e->out, "rp_round_f32_to_%s(%s)", rp__dtypes[n->imm.i].short_name, a);
        else
            rp__text_add(e->out, "(%s)(%s)%s", type, rp__emit_type((unsigned)n->imm.i), a);
        break;
    case RP__CHECK_INDEX: {
        uint32_t w = e->words.error;
        if (is_sure(e, v))
            rp__text_add(e->out, "(%s)%s", type, a);
        else
            rp__text_add(e->out, "(%s%s(%s)rp_check_index(p.w[%u], p.w[%u], %s, %s, %d)%s)", guard ? guard : "",
                         guard ? " ? " : "", type, w, w + 1, a, b, (int)n->imm.i, guard ? " : 0" : "");
        break;
    }
    default: add_philox(e, n, a); break;
    }
}

/* ---- memory ---- */

bool rp__emit_is_still(const rp__emitter *e, unsigned access) {
    if (e->dag->accesses[access].windows) return false;
    bool points = (e->c->template_ == RP__CUDA_MANY && e->n_dims == 1) ||
                  (e->c->template_ == RP__CUDA_POINTWISE && e->n_dims == 1);
    return points && (e->c->broadcast >> access & 1) && e->dag->accesses[access].kind == RP__ACCESS_READ;
}

bool rp__emit_moves(const rp__emitter *e, unsigned access, unsigned dim) {
    return dim >= RP__CUDA_STILL_DIMS || !(e->c->still[dim] >> access & 1);
}

/* Element offset of access `a` in the loop being emitted, without an offset node. */
static void add_offset(const rp__emitter *e, unsigned a) {
    uint64_t bit = UINT64_C(1) << a;
    if (rp__emit_is_still(e, a)) {
        rp__text_puts(e->out, "0");
        return;
    }
    if (e->c->template_ == RP__CUDA_MANY && e->n_dims == 1) {
        rp__text_puts(e->out, (e->c->broadcast & bit) ? "0" : "x");
        return;
    }
    if (!rp__emit_is_rows(e->c)) {
        rp__text_add(e->out, "o%u", a);
        if (e->c->unit & bit)
            rp__text_puts(e->out, " + j");
        else if (!(e->c->broadcast & bit) && e->c->vector > 1)
            rp__text_add(e->out, " + j * (%s)p.w[%u]", rp__emit_index_type(e), rp__emit_stride_word(e, a, e->along));
        return;
    }
    rp__text_add(e->out, "o%u", a);
    if (e->columns > 1)
        rp__text_add(e->out, " + j * (%s)p.w[%u]", rp__emit_index_type(e),
                     rp__emit_stride_word(e, a, e->c->n_outer - 1u));
    if ((e->c->broadcast | e->c->unmoved) & bit || e->c->n_inner == 0) return;
    if (e->c->n_inner == 1) {
        if (((e->c->unit & bit) && e->columns == 1 && e->c->template_ != RP__CUDA_SHORT) || (e->c->line & bit))
            rp__text_puts(e->out, " + i");
        else
            rp__text_add(e->out, " + i * (%s)p.w[%u]", rp__emit_index_type(e),
                         rp__emit_stride_word(e, a, e->c->n_outer));
        return;
    }
    if (e->c->line & bit) {
        rp__text_puts(e->out, " + i");
        return;
    }
    for (unsigned d = 0; d < e->c->n_inner; d++)
        if (rp__emit_moves(e, a, e->c->n_outer + d))
            rp__text_add(e->out, " + i%u * (%s)p.w[%u]", d, rp__emit_index_type(e),
                         rp__emit_stride_word(e, a, e->c->n_outer + d));
}

void rp__emit_converted(const rp__emitter *e, unsigned access, const char *raw) {
    const unsigned dtype = e->dag->accesses[access].dtype;
    if (rp__emit_is_half(dtype))
        rp__text_add(e->out, "rp_cvt_%s_to_f32(%s)", rp__dtypes[dtype].short_name, raw);
    else if (dtype == RP_BOOL)
        rp__text_add(e->out, "(rp_u8)(%s != 0)", raw);
    else
        rp__text_puts(e->out, raw);
}

/* Is this load read as whole vectors before the loop over elements? */
bool rp__emit_in_vectors(const rp__emitter *e, const rp__node *n) {
    return n->op == RP__LOAD && (n->a == RP__NO_VAL || (e->c->gathered >> n->access & 1)) && n->b == RP__NO_VAL &&
           (e->c->unit >> n->access & 1) && e->c->vector > 1;
}

void rp__emit_early_load(const rp__emitter *e, unsigned node, const char *guard) {
    const unsigned access = e->dag->nodes[node].access;
    rp__text_add(e->out, "        x%u[w] = 0; if (%s) x%u[w] = a%u[o%u", node, guard, node, access, access);
    for (unsigned d = 0; d < e->c->n_inner; d++) {
        char i[8] = "i";
        if (e->c->n_inner > 1) (void)snprintf(i, sizeof i, "i%u", d);
        rp__text_add(e->out, " + %s * (%s)p.w[%u]", i, rp__emit_index_type(e),
                     rp__emit_stride_word(e, access, e->c->n_outer + d));
    }
    rp__text_puts(e->out, "];\n");
}

/* q, the place along window k, and here. */
static void add_window_place(const rp__emitter *e, unsigned k, bool element) {
    const char *index = rp__emit_index_type(e);
    const uint32_t w = e->words.window + k * (4 + e->n_dims);
    const bool rows = rp__emit_is_rows(e->c);
    rp__text_add(e->out, "{ const %s t = 0", index);
    for (unsigned d = 0; d < (rows ? e->c->n_outer : e->n_dims); d++)
        rp__text_add(e->out, " + d%u * (%s)p.w[%u]", d, index, w + 4 + d);
    for (unsigned d = 0; rows && element && d < e->c->n_inner; d++) {
        rp__text_puts(e->out, " + i");
        if (e->c->n_inner > 1) rp__text_add(e->out, "%u", d);
        rp__text_add(e->out, " * (%s)p.w[%u]", index, w + 4 + e->c->n_outer + d);
    }
    rp__text_add(e->out, " - (%s)p.w[%u], by = (%s)p.w[%u], q = by == 1 ? t : t / by; here = here && q * by == t; ",
                 index, w + 2, index, w + 3);
}

/* How far an element lies from its row, by the constants of a class. */
static void add_known_steps(const rp__emitter *e, const rp__cuda_window *x, bool element) {
    for (unsigned d = 0; element && d < e->c->n_inner; d++) {
        if (x->inner[d] == 0) continue;
        rp__text_puts(e->out, " + i");
        if (e->c->n_inner > 1) rp__text_add(e->out, "%u", d);
        rp__text_add(e->out, " * (%d)", x->inner[d]);
    }
    rp__text_add(e->out, " - (%d)", x->pad);
}

/* q, the place along window k, and here. */
static void add_known_place(const rp__emitter *e, const rp__cuda_window *x, bool element) {
    const char *index = rp__emit_index_type(e);
    const unsigned by = (unsigned)x->divisor;
    if (by > 1 && x->factor && rp__emit_divided(e, x->outer) == by) {
        rp__text_add(e->out, "{ const %s left = m%u * (%d)", index, x->outer, x->factor);
        add_known_steps(e, x, element);
        rp__text_add(e->out, ", q = h%u_ * (%d) + left / %u; here = here && left %% %u == 0; ", x->outer, x->factor, by,
                     by);
        return;
    }
    rp__text_add(e->out, "{ const %s t = 0", index);
    if (x->factor) rp__text_add(e->out, " + d%u * (%d)", x->outer, x->factor);
    add_known_steps(e, x, element);
    if (by == 1)
        rp__text_puts(e->out, ", q = t; ");
    else
        rp__text_add(e->out, ", q = t / %u; here = here && q * %u == t; ", by, by);
}

/* An access with windows: f is the offset of the place and here, which `guard` (NULL: 1) begins, whether it is inside. element: the
 * loop walks inner dims too. */
static void add_windows(const rp__emitter *e, unsigned access, const char *guard, bool element) {
    const char *index = rp__emit_index_type(e), *u = e->c->wide ? "rp_u64" : "rp_u32";
    unsigned first = 0;
    for (unsigned a = 0; a < access; a++) first += e->dag->accesses[a].windows;
    rp__text_add(e->out, "%s f = ", index);
    add_offset(e, access);
    rp__text_add(e->out, "; int here = %s; ", guard ? guard : "1");
    for (unsigned k = first; k < first + e->dag->accesses[access].windows; k++) {
        const rp__cuda_window *x = &e->c->windows[k];
        const unsigned each = 4 + e->n_dims;
        /* windows that are alike read the same words, so that what they come to is computed once */
        const uint32_t own = e->words.window + k * each,
                       w = e->c->template_ == RP__CUDA_SHORT ? e->words.window + x->like * each : own;
        if (e->c->template_ == RP__CUDA_SHORT && x->known)
            add_known_place(e, x, element);
        else
            add_window_place(e, k, element);
        rp__text_add(e->out, "here = here && (%s)q < (%s)p.w[%u]; f += q * (%s)p.w[%u]; } ", u, u, w, index, own + 1);
    }
}

void rp__emit_place(const rp__emitter *e, unsigned access) { add_windows(e, access, NULL, true); }

static void add_load(const rp__emitter *e, const rp__node *n, const char *guard, bool element) {
    char t[64];
    rp__text_add(e->out, "%s x0 = 0; ", rp__emit_type(e->dag->accesses[n->access].dtype));
    if (e->dag->accesses[n->access].windows) {
        add_windows(e, n->access, guard, element);
        rp__text_add(e->out, "if (here) x0 = a%u[f]; y = ", n->access);
        rp__emit_converted(e, n->access, "x0");
        rp__text_puts(e->out, ";");
        return;
    }
    if (e->c->staged >> n->access & 1) {
        rp__text_puts(e->out, "x0 = ");
        rp__emit_staged(e, n->access);
        rp__text_puts(e->out, "; y = ");
        rp__emit_converted(e, n->access, "x0");
        rp__text_puts(e->out, ";");
        return;
    }
    if (n->b != RP__NO_VAL && guard)
        rp__text_add(e->out, "if (%s && %s) ", guard, rp__emit_value(e, n->b, t));
    else if (n->b != RP__NO_VAL)
        rp__text_add(e->out, "if (%s) ", rp__emit_value(e, n->b, t));
    else if (guard)
        rp__text_add(e->out, "if (%s) ", guard);
    const bool near = is_sure(e, (rp__val)(n - e->dag->nodes));
    rp__text_add(e->out,
                 n->a == RP__NO_VAL ? "x0 = a%u["
                 : near             ? "x0 = a%u[(rp_u32)("
                                    : "x0 = (a%u + (", /* their sum may be wider */
                 n->access);
    add_offset(e, n->access);
    if (n->a != RP__NO_VAL) rp__text_add(e->out, near ? " + %s)" : "))[%s", rp__emit_value(e, n->a, t));
    rp__text_puts(e->out, "]; ");
    rp__text_puts(e->out, "y = ");
    rp__emit_converted(e, n->access, "x0");
    rp__text_puts(e->out, ";");
}

static void add_iota(const rp__emitter *e, rp__val v) {
    const unsigned a = e->dag->nodes[v].access;
    const char *type = rp__emit_value_type(e, v);
    rp__text_add(e->out, "(%s)p.w[%u] + (%s)(", type, e->words.address + a, type);
    add_offset(e, a);
    rp__text_puts(e->out, ")");
}

/* Whether this thread's value is one of the loop's: `guard` says it of the element. A row that idles reads the memory of
   another, which may have written there already. */
static const char *checked_by(const rp__emitter *e, rp__val v, const char *guard, char buf[64]) {
    if (!rp__emit_is_rows(e->c) || e->level[v] == RP__LEVEL_UNIFORM) return guard;
    (void)snprintf(buf, 64, "live%s%s", guard ? " && " : "", guard ? guard : "");
    return buf;
}

/* One per-element or row node. Element nodes are declared here unless they are arrays. */
void rp__emit_node(const rp__emitter *e, rp__val v, const char *guard) {
    const rp__node *n = &e->dag->nodes[v];
    const char *type = rp__emit_value_type(e, v);
    char t[64];
    const bool element = e->level[v] == RP__LEVEL_ELEMENT, row = e->level[v] == RP__LEVEL_ROW;
    const bool declared = (element && e->array[v]) || (row && e->columns > 1);
    if (n->op == RP__CONST || n->op == RP__REDUCE) return;
    if (element && rp__emit_in_vectors(e, n)) {
        if (!e->array[v]) {
            const char index[2] = {e->at[1], 0}; /* of "[e]" */
            rp__text_add(e->out, "        const %s v%u = ", rp__emit_type(n->dtype), v);
            rp__emit_loaded(e, v, index);
            rp__text_puts(e->out, ";\n");
        }
        return;
    }
    if (e->early && e->early[v]) {
        char raw[32];
        (void)snprintf(raw, sizeof raw, "x%u[w]", v);
        rp__text_add(e->out, "        const %s v%u = ", rp__emit_type(n->dtype), v);
        rp__emit_converted(e, n->access, raw);
        rp__text_puts(e->out, ";\n");
        return;
    }
    rp__text_puts(e->out, "        ");
    if (n->op == RP__LOAD) {
        if (!declared) rp__text_add(e->out, "%s %s; ", rp__emit_type(n->dtype), rp__emit_value(e, v, t));
        rp__text_add(e->out, "{ %s y; ", rp__emit_type(n->dtype));
        add_load(e, n, element ? guard : NULL, element);
        rp__text_add(e->out, " %s = y; }\n", rp__emit_value(e, v, t));
        return;
    }
    if (n->op == RP__INSIDE || (n->op == RP__IOTA && e->dag->accesses[n->access].windows)) {
        if (!declared) rp__text_add(e->out, "%s %s; ", type, rp__emit_value(e, v, t));
        rp__text_puts(e->out, "{ ");
        add_windows(e, n->access, NULL, element);
        rp__text_add(e->out, "%s = ", rp__emit_value(e, v, t));
        if (n->op == RP__INSIDE)
            rp__text_puts(e->out, "(rp_u8)here; (void)f; }\n");
        else
            rp__text_add(e->out, "here ? (%s)p.w[%u] + (%s)f : 0; }\n", type, e->words.address + n->access, type);
        return;
    }
    if (!declared) rp__text_add(e->out, "const %s ", type);
    rp__text_add(e->out, "%s = ", rp__emit_value(e, v, t));
    if (n->op == RP__SCALAR)
        add_scalar(e, v);
    else if (n->op == RP__IOTA)
        add_iota(e, v);
    else
        add_operation(e, v, checked_by(e, v, element ? guard : NULL, t));
    rp__text_puts(e->out, ";\n");
}

/* A value in the storage type of an access. */
void rp__emit_stored(const rp__emitter *e, unsigned access, rp__val v) {
    char t[64];
    const char *a = rp__emit_value(e, v, t);
    unsigned from = e->dag->nodes[v].dtype, to = e->dag->accesses[access].dtype;
    if (rp__emit_is_half(to)) {
        rp__text_add(e->out, "rp_cvt_f32_to_%s(%s%s)", rp__dtypes[to].short_name, from != RP_F32 ? "(float)" : "", a);
    } else if (from == to) {
        rp__text_puts(e->out, a);
    } else {
        add_cast(e, from, to, false, a);
    }
}

void rp__emit_store(const rp__emitter *e, const rp__store *s, const char *guard) {
    char t[64];
    unsigned dtype = e->dag->accesses[s->access].dtype;
    rp__text_puts(e->out, "        ");
    if (guard || s->predicate != RP__NO_VAL) {
        rp__text_add(e->out, "if (%s%s", guard ? guard : "", guard && s->predicate != RP__NO_VAL ? " && " : "");
        if (s->predicate != RP__NO_VAL) rp__text_puts(e->out, rp__emit_value(e, s->predicate, t));
        rp__text_puts(e->out, ") ");
    }
    if (e->c->staged >> s->access & 1) {
        rp__emit_staged(e, s->access);
        rp__text_puts(e->out, " = ");
        rp__emit_stored(e, s->access, s->value);
        rp__text_puts(e->out, ";\n");
        return;
    }
    if (s->mode == RP__STORE_ADD) {
        const char *name = rp__cuda_atomic((rp_dtype)dtype);
        rp__text_add(e->out, "%s_add_%s(a%u + ", rp__dtype_is_half((rp_dtype)dtype) ? "rp_atomic" : "rp_red",
                     name ? name : "i32", s->access);
    } else {
        rp__text_add(e->out, s->offset != RP__NO_VAL ? "(a%u + (" : "a%u[", s->access);
    }
    add_offset(e, s->access);
    if (s->offset != RP__NO_VAL)
        rp__text_add(e->out, s->mode == RP__STORE_ADD ? " + %s" : "))[%s", rp__emit_value(e, s->offset, t));
    rp__text_puts(e->out, s->mode == RP__STORE_ADD ? ", " : "] = ");
    rp__emit_stored(e, s->access, s->value);
    rp__text_puts(e->out, s->mode == RP__STORE_ADD ? ");\n" : ";\n");
}
