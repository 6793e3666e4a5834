/* The CUDA C emitter: one kernel of text from a DAG and a class (emit.h). Called by loops.c and by `reprise dump`.
 * It must not call the driver, and every intrinsic it writes is a function of the prelude.
 *
 * Shape of the text: per-element values live in arrays or loop variables v<node>, row values in scalars r<node>; `at` says how
 * an element index is written in the loop that is being emitted. */
#include "kernel/cuda/emit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct emitter {
    const rp__dag *dag;
    const rp__cuda_class *c;
    rp__text *out;
    uint32_t n_dims;
    rp__space_layout words;
    const char *at; /* index into a value array: "[e]" */
    uint8_t *level; /* per node: LEVEL_* */
    uint8_t *place; /* per node: the phase whose loop computes it */
    bool *array;    /* per node: kept from one phase to a later one */
    bool recompute; /* looped templates keep nothing between phases */
} emitter;

enum { LEVEL_UNIFORM, LEVEL_ROW, LEVEL_ELEMENT };

/* Up to 1024 elements a warp holds the row; longer rows take as many threads as leave 16 elements or fewer each, so that blocks
 * stay small in registers and enough of them fit a multiprocessor. */
int rp__cuda_row_threads(int64_t r) {
    int t = 1;
    if (r > 2048) return 256;
    if (r > 1024) return 128;
    while (t < 32 && t < (r + 3) / 4) t *= 2;
    return t;
}

uint32_t rp__cuda_word_count(const rp__dag *dag, const rp__cuda_class *c, uint32_t n_groups) {
    if (c->template_ == RP__CUDA_MANY) return dag->n_scalars + RP__CUDA_EXTRA_WORDS + n_groups * (2u + dag->n_accesses);
    rp__space_layout words;
    rp__space_layout_of(dag, c->n_outer, c->n_inner, 0, &words);
    return words.end + RP__CUDA_EXTRA_WORDS;
}

/* ---- names ---- */

static const char *type_text(unsigned dtype) {
    switch ((rp_dtype)dtype) {
    case RP_F32: return "float";
    case RP_F64: return "double";
    case RP_I32: return "rp_i32";
    case RP_I64: return "rp_i64";
    case RP_F16:
    case RP_BF16: return "rp_u16";
    default: return "rp_u8";
    }
}

static const char *suffix_text(unsigned dtype) { return dtype == RP_F64 ? "f64" : "f32"; }
static const char *index_text(const emitter *e) { return e->c->wide ? "rp_i64" : "rp_i32"; }

static bool is_row_template(const rp__cuda_class *c) {
    return c->template_ != RP__CUDA_POINTWISE && c->template_ != RP__CUDA_MANY;
}

/* A value written as an operand; literals are written out. At most 64 bytes. */
static const char *value_text(const emitter *e, rp__val v, char buf[64]) {
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
            (void)snprintf(buf, 64, "((%s)%" PRId64 "ll)", type_text(n->dtype), n->imm.i);
        }
        return buf;
    }
    if (e->level[v] != LEVEL_ELEMENT)
        (void)snprintf(buf, 64, "r%u", v);
    else
        (void)snprintf(buf, 64, "v%u%s", v, e->array[v] ? e->at : "");
    return buf;
}

/* ---- parameter words ---- */

static uint32_t extra_word(const emitter *e, unsigned which) {
    if (e->c->template_ == RP__CUDA_MANY) return e->dag->n_scalars + which;
    return e->words.end + which;
}

static uint32_t scalar_word(const emitter *e, unsigned scalar) {
    return e->c->template_ == RP__CUDA_MANY ? scalar : e->words.scalar + scalar;
}

static uint32_t stride_word(const emitter *e, unsigned access, unsigned dim) {
    return e->words.stride + access * e->n_dims + dim;
}

static void add_scalar(const emitter *e, unsigned scalar, unsigned dtype) {
    uint32_t w = scalar_word(e, scalar);
    if (dtype == RP_F32)
        rp__text_add(e->out, "rp_bits_f32((rp_u32)p.w[%u])", w);
    else if (dtype == RP_F64)
        rp__text_add(e->out, "rp_bits_f64(p.w[%u])", w);
    else
        rp__text_add(e->out, "(%s)p.w[%u]", type_text(dtype), w);
}

/* ---- operations ---- */

static const char *math_name(unsigned op) {
    switch (op) {
    case RP__POW: return "pow";
    case RP__MAX: return "max";
    case RP__MIN: return "min";
    case RP__ATAN2: return "atan2";
    case RP__ABS: return "fabs";
    case RP__SQRT: return "sqrt";
    case RP__EXP: return "exp";
    case RP__EXPM1: return "expm1";
    case RP__LOG: return "log";
    case RP__LOG1P: return "log1p";
    case RP__SIN: return "sin";
    case RP__COS: return "cos";
    case RP__TANH: return "tanh";
    case RP__ERF: return "erf";
    case RP__FLOOR: return "floor";
    case RP__CEIL: return "ceil";
    case RP__TRUNC: return "trunc";
    case RP__RINT: return "rint";
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

static void add_cast(const emitter *e, unsigned from, unsigned to, const char *a) {
    bool from_float = from == RP_F32 || from == RP_F64;
    if (to == RP_BOOL)
        rp__text_add(e->out, "(rp_u8)(%s != 0)", a);
    else if (from_float && (to == RP_I32 || to == RP_I64))
        rp__text_add(e->out, "rp_cvt_%s_to_%s(%s)", suffix_text(from), to == RP_I32 ? "i32" : "i64", a);
    else if (from_float && to == RP_U8)
        rp__text_add(e->out, "(rp_u8)rp_cvt_%s_to_i64(%s)", suffix_text(from), a);
    else
        rp__text_add(e->out, "(%s)%s", type_text(to), a);
}

static void add_philox(const emitter *e, const rp__node *n, const char *a) {
    uint32_t w = e->words.draw + 3 * (uint32_t)n->imm.i;
    const char *kind = n->op == RP__PHILOX     ? "word"
                       : n->op == RP__PHILOX64 ? "word64"
                       : n->dtype == RP_F64    ? "normal_f64"
                                               : "normal_f32";
    rp__text_add(e->out, "rp_random_%s(p.w[%u], p.w[%u], p.w[%u], %s)", kind, w, w + 1, w + 2, a);
}

/* The right-hand side of an arithmetic node. */
static void add_operation(const emitter *e, const rp__node *n) {
    char ta[64], tb[64], tc[64];
    const char *a = n->a != RP__NO_VAL ? value_text(e, n->a, ta) : "";
    const char *b = n->b != RP__NO_VAL ? value_text(e, n->b, tb) : "";
    const char *c = n->c != RP__NO_VAL ? value_text(e, n->c, tc) : "";
    unsigned from = n->a != RP__NO_VAL ? e->dag->nodes[n->a].dtype : n->dtype;
    bool real = n->dtype == RP_F32 || n->dtype == RP_F64;
    const char *type = type_text(n->dtype);
    const char *sign = infix(n->op);
    if (sign) { /* small integers wrap at their own width */
        rp__text_add(e->out, "(%s)(%s %s %s)", type, a, sign, b);
        return;
    }
    const char *math = math_name(n->op);
    if (math && real) {
        rp__text_add(e->out, "rp_%s_%s(%s%s%s)", math, suffix_text(n->dtype), a, b[0] ? ", " : "", b);
        return;
    }
    switch (n->op) {
    case RP__FLOORDIV:
    case RP__REMAINDER:
        if (real)
            rp__text_add(e->out, "rp_%s_%s(%s, %s)", n->op == RP__FLOORDIV ? "floordiv" : "remainder",
                         suffix_text(n->dtype), a, b);
        else
            rp__text_add(e->out, "(%s)rp_%s_i64(p.w[%u], p.w[%u], %s, %s)", type,
                         n->op == RP__FLOORDIV ? "floordiv" : "remainder", e->words.error, e->words.error + 1, a, b);
        break;
    case RP__MAX: rp__text_add(e->out, "(%s > %s ? %s : %s)", a, b, a, b); break;
    case RP__MIN: rp__text_add(e->out, "(%s < %s ? %s : %s)", a, b, a, b); break;
    case RP__NEG: rp__text_add(e->out, "(%s)-%s", type, a); break;
    case RP__ABS: rp__text_add(e->out, "(%s)(%s < 0 ? -%s : %s)", type, a, a, a); break;
    case RP__SIGN:
        if (real)
            rp__text_add(e->out, "(%s)((%s > 0) - (%s < 0) + (%s != %s ? %s : 0))", type, a, a, a, a, a);
        else
            rp__text_add(e->out, "(%s)((%s > 0) - (%s < 0))", type, a, a);
        break;
    case RP__RSQRT: rp__text_add(e->out, "((%s)1 / rp_sqrt_%s(%s))", type, suffix_text(n->dtype), a); break;
    case RP__RECIP: rp__text_add(e->out, "((%s)1 / %s)", type, a); break;
    case RP__SIGMOID:
        rp__text_add(e->out, "((%s)1 / ((%s)1 + rp_exp_%s(-%s)))", type, type, suffix_text(n->dtype), a);
        break;
    case RP__ISNAN: rp__text_add(e->out, "(rp_u8)(%s != %s)", a, a); break;
    case RP__NOT:
        rp__text_add(e->out, n->dtype == RP_BOOL ? "(rp_u8)!%s" : "(%s)~%s", n->dtype == RP_BOOL ? a : type, a);
        break;
    case RP__WHERE: rp__text_add(e->out, "(%s ? %s : %s)", a, b, c); break;
    case RP__CAST: add_cast(e, from, n->dtype, a); break;
    case RP__ROUND:
        if (n->imm.i == RP_F16)
            rp__text_add(e->out, "rp_cvt_f16_to_f32(rp_cvt_f32_to_f16(%s))", a);
        else
            rp__text_add(e->out, "rp_cvt_bf16_to_f32(rp_cvt_f32_to_bf16(%s))", a);
        break;
    case RP__CHECK_INDEX: {
        uint32_t w = e->words.error;
        rp__text_add(e->out, "rp_check_index(p.w[%u], p.w[%u], %s, %s, %d)", w, w + 1, a, b, (int)n->imm.i);
        break;
    }
    default: add_philox(e, n, a); break;
    }
}

/* ---- memory ---- */

/* Element offset of access `a` in the loop being emitted, without an offset node. */
static void add_offset(const emitter *e, unsigned a) {
    uint64_t bit = UINT64_C(1) << a;
    if (e->c->template_ == RP__CUDA_MANY) {
        rp__text_puts(e->out, e->dag->accesses[a].row ? "0" : "x");
        return;
    }
    if (!is_row_template(e->c)) {
        rp__text_add(e->out, "o%u", a);
        if (e->c->unit & bit)
            rp__text_puts(e->out, " + j");
        else if (!(e->c->broadcast & bit) && e->c->vector > 1)
            rp__text_add(e->out, " + j * (%s)p.w[%u]", index_text(e), stride_word(e, a, e->n_dims - 1));
        return;
    }
    rp__text_add(e->out, "o%u", a);
    if (e->c->broadcast & bit || e->c->n_inner == 0) return;
    if (e->c->n_inner == 1) {
        if (e->c->unit & bit)
            rp__text_puts(e->out, " + i");
        else
            rp__text_add(e->out, " + i * (%s)p.w[%u]", index_text(e), stride_word(e, a, e->c->n_outer));
        return;
    }
    for (unsigned d = 0; d < e->c->n_inner; d++)
        rp__text_add(e->out, " + i%u * (%s)p.w[%u]", d, index_text(e), stride_word(e, a, e->c->n_outer + d));
}

static void add_converted_load(const emitter *e, unsigned access, const char *raw) {
    switch (e->dag->accesses[access].dtype) {
    case RP_F16: rp__text_add(e->out, "rp_cvt_f16_to_f32(%s)", raw); break;
    case RP_BF16: rp__text_add(e->out, "rp_cvt_bf16_to_f32(%s)", raw); break;
    case RP_BOOL: rp__text_add(e->out, "(rp_u8)(%s != 0)", raw); break;
    default: rp__text_puts(e->out, raw); break;
    }
}

/* Is this load read as whole vectors before the loop over elements? */
static bool in_vectors(const emitter *e, const rp__node *n) {
    return n->op == RP__LOAD && n->a == RP__NO_VAL && n->b == RP__NO_VAL && (e->c->unit >> n->access & 1) &&
           e->c->vector > 1 &&
           (e->c->template_ == RP__CUDA_POINTWISE || e->c->template_ == RP__CUDA_MANY ||
            e->c->template_ == RP__CUDA_ROW || e->c->template_ == RP__CUDA_ROW_LOOP ||
            e->c->template_ == RP__CUDA_PARTIAL_ROW);
}

static void add_load(const emitter *e, const rp__node *n, const char *guard) {
    char t[64];
    rp__text_add(e->out, "%s x0 = 0; ", type_text(e->dag->accesses[n->access].dtype));
    if (n->b != RP__NO_VAL && guard)
        rp__text_add(e->out, "if (%s && %s) ", guard, value_text(e, n->b, t));
    else if (n->b != RP__NO_VAL)
        rp__text_add(e->out, "if (%s) ", value_text(e, n->b, t));
    else if (guard)
        rp__text_add(e->out, "if (%s) ", guard);
    rp__text_add(e->out, "x0 = a%u[", n->access);
    add_offset(e, n->access);
    if (n->a != RP__NO_VAL) rp__text_add(e->out, " + %s", value_text(e, n->a, t));
    rp__text_puts(e->out, "]; ");
    rp__text_puts(e->out, "y = ");
    add_converted_load(e, n->access, "x0");
    rp__text_puts(e->out, ";");
}

static void add_iota(const emitter *e, unsigned a) {
    rp__text_add(e->out, "(rp_i64)p.w[%u] + (rp_i64)(", e->words.address + a);
    add_offset(e, a);
    rp__text_puts(e->out, ")");
}

/* One per-element or row node. Element nodes are declared here unless they are arrays. */
static void add_node(const emitter *e, rp__val v, const char *guard) {
    const rp__node *n = &e->dag->nodes[v];
    char t[64];
    bool element = e->level[v] == LEVEL_ELEMENT;
    if (n->op == RP__CONST || n->op == RP__REDUCE) return;
    if (element && in_vectors(e, n)) {
        if (!e->array[v]) {
            char raw[96];
            (void)snprintf(raw, sizeof raw, "l%u%s", v, e->at);
            rp__text_add(e->out, "        const %s v%u = ", type_text(n->dtype), v);
            add_converted_load(e, n->access, raw);
            rp__text_puts(e->out, ";\n");
        }
        return;
    }
    rp__text_puts(e->out, "        ");
    if (n->op == RP__LOAD) {
        if (!(element && e->array[v])) rp__text_add(e->out, "%s %s; ", type_text(n->dtype), value_text(e, v, t));
        rp__text_add(e->out, "{ %s y; ", type_text(n->dtype));
        add_load(e, n, element ? guard : NULL);
        rp__text_add(e->out, " %s = y; }\n", value_text(e, v, t));
        return;
    }
    if (!(element && e->array[v])) rp__text_add(e->out, "const %s ", type_text(n->dtype));
    rp__text_add(e->out, "%s = ", value_text(e, v, t));
    if (n->op == RP__SCALAR)
        add_scalar(e, n->access, n->dtype);
    else if (n->op == RP__IOTA)
        add_iota(e, n->access);
    else
        add_operation(e, n);
    rp__text_puts(e->out, ";\n");
}

/* A value in the storage type of an access. */
static void add_stored(const emitter *e, unsigned access, rp__val v) {
    char t[64];
    const char *a = value_text(e, v, t);
    unsigned from = e->dag->nodes[v].dtype, to = e->dag->accesses[access].dtype;
    if (to == RP_F16 || to == RP_BF16) {
        if (from != RP_F32)
            rp__text_add(e->out, "rp_cvt_f32_to_%s((float)%s)", to == RP_F16 ? "f16" : "bf16", a);
        else
            rp__text_add(e->out, "rp_cvt_f32_to_%s(%s)", to == RP_F16 ? "f16" : "bf16", a);
    } else if (from == to) {
        rp__text_puts(e->out, a);
    } else {
        add_cast(e, from, to, a);
    }
}

static void add_store(const emitter *e, const rp__store *s, const char *guard) {
    char t[64];
    unsigned dtype = e->dag->accesses[s->access].dtype;
    rp__text_puts(e->out, "        ");
    if (guard || s->predicate != RP__NO_VAL) {
        rp__text_add(e->out, "if (%s%s", guard ? guard : "", guard && s->predicate != RP__NO_VAL ? " && " : "");
        if (s->predicate != RP__NO_VAL) rp__text_puts(e->out, value_text(e, s->predicate, t));
        rp__text_puts(e->out, ") ");
    }
    if (s->mode == RP__STORE_ADD) {
        static const char *const names[] = {[RP_F32] = "f32",   [RP_F64] = "f64", [RP_F16] = "f16",
                                            [RP_BF16] = "bf16", [RP_I32] = "i32", [RP_I64] = "i64"};
        const char *name = dtype < sizeof names / sizeof *names && names[dtype] ? names[dtype] : "i32";
        rp__text_add(e->out, "rp_atomic_add_%s(a%u + ", name, s->access);
    } else {
        rp__text_add(e->out, "a%u[", s->access);
    }
    add_offset(e, s->access);
    if (s->offset != RP__NO_VAL) rp__text_add(e->out, " + %s", value_text(e, s->offset, t));
    rp__text_puts(e->out, s->mode == RP__STORE_ADD ? ", " : "] = ");
    add_stored(e, s->access, s->value);
    rp__text_puts(e->out, s->mode == RP__STORE_ADD ? ");\n" : ";\n");
}

/* ---- analysis ---- */

static void raise_level(const emitter *e, uint8_t *level, rp__val v) {
    if (v != RP__NO_VAL && e->level[v] > *level) *level = e->level[v];
}

/* Levels: a load whose strides are 0 along the inner dims is a row value whatever the DAG says. */
static void find_levels(emitter *e) {
    bool rows = is_row_template(e->c);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        uint8_t level = LEVEL_UNIFORM;
        raise_level(e, &level, n->a);
        raise_level(e, &level, n->b);
        raise_level(e, &level, n->c);
        if (n->op == RP__REDUCE)
            level = LEVEL_ROW;
        else if (n->op == RP__LOAD || n->op == RP__IOTA) {
            uint8_t own = LEVEL_ELEMENT;
            if (rows && (e->c->n_inner == 0 || (e->c->broadcast >> n->access & 1))) own = LEVEL_ROW;
            if (level < own) level = own;
        }
        e->level[k] = level;
    }
}

static void want(const emitter *e, rp__val v, unsigned phase) {
    if (v != RP__NO_VAL && e->level[v] == LEVEL_ELEMENT && phase < e->place[v]) e->place[v] = (uint8_t)phase;
}

static void keep(const emitter *e, rp__val v, unsigned phase) {
    if (v != RP__NO_VAL && e->level[v] == LEVEL_ELEMENT && phase > e->place[v]) e->array[v] = true;
}

static bool uses(const rp__node *n) { return n->op < RP__PRIM_COUNT || n->op == RP__LOAD || n->op == RP__REDUCE; }

/* The phase whose loop an element node is computed in: the earliest that needs it. Stores run in the last phase, so that a row
 * that is overwritten has been read. */
static void find_places(emitter *e) {
    const rp__dag *d = e->dag;
    unsigned last = d->n_phases - 1u;
    memset(e->place, 0xff, d->n_nodes);
    for (unsigned k = 0; k < d->n_stores; k++) {
        want(e, d->stores[k].value, last);
        want(e, d->stores[k].offset, last);
        want(e, d->stores[k].predicate, last);
    }
    for (unsigned k = d->n_nodes; k-- > 0;) {
        const rp__node *n = &d->nodes[k];
        unsigned phase = n->op == RP__REDUCE ? n->phase - 1u : e->place[k];
        if (!uses(n) || phase == 0xff) continue;
        want(e, n->a, phase);
        want(e, n->b, phase);
        want(e, n->c, phase);
    }
    memset(e->array, 0, d->n_nodes * sizeof *e->array);
    if (e->recompute || e->c->template_ == RP__CUDA_POINTWISE || e->c->template_ == RP__CUDA_MANY) return;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        unsigned phase = n->op == RP__REDUCE ? n->phase - 1u : e->place[k];
        if (!uses(n) || phase == 0xff) continue;
        keep(e, n->a, phase);
        keep(e, n->b, phase);
        keep(e, n->c, phase);
    }
    for (unsigned k = 0; k < d->n_stores; k++) {
        keep(e, d->stores[k].value, last);
        keep(e, d->stores[k].offset, last);
        keep(e, d->stores[k].predicate, last);
    }
}

/* Marks in `needed` what the loop of `phase` computes when nothing is kept. */
static void find_needed(const emitter *e, unsigned phase, bool *needed) {
    const rp__dag *d = e->dag;
    memset(needed, 0, d->n_nodes * sizeof *needed);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        if (n->op == RP__REDUCE && n->phase == phase + 1u) needed[n->a] = true;
    }
    if (phase + 1u == d->n_phases)
        for (unsigned k = 0; k < d->n_stores; k++) {
            const rp__store *s = &d->stores[k];
            if (s->row) continue;
            needed[s->value] = true;
            if (s->offset != RP__NO_VAL) needed[s->offset] = true;
            if (s->predicate != RP__NO_VAL) needed[s->predicate] = true;
        }
    for (unsigned k = d->n_nodes; k-- > 0;) {
        const rp__node *n = &d->nodes[k];
        if (!needed[k] || !uses(n) || n->op == RP__REDUCE) continue;
        if (n->a != RP__NO_VAL) needed[n->a] = true;
        if (n->b != RP__NO_VAL) needed[n->b] = true;
        if (n->c != RP__NO_VAL) needed[n->c] = true;
    }
}

/* ---- pieces of text ---- */

static bool stores_elements(const rp__dag *d) {
    for (unsigned k = 0; k < d->n_stores; k++)
        if (!d->stores[k].row) return true;
    return false;
}

static void add_signature(const emitter *e, const char *name, uint32_t n_words, unsigned threads) {
    rp__text_add(e->out, "typedef struct { rp_u64 w[%u]; } rp_words_%s;\n", n_words, name);
    rp__text_add(e->out, "extern \"C\" __global__ void __launch_bounds__(%u) %s(const rp_words_%s p)\n{\n", threads,
                 name, name);
}

static void add_bases(const emitter *e) {
    for (unsigned a = 0; a < e->dag->n_accesses; a++) {
        const rp__access *x = &e->dag->accesses[a];
        if (x->kind == RP__ACCESS_IOTA) continue;
        rp__text_add(e->out, "    %s%s *a%u = (%s%s *)p.w[%u];\n", x->kind == RP__ACCESS_READ ? "const " : "",
                     type_text(x->dtype), a, x->kind == RP__ACCESS_READ ? "const " : "", type_text(x->dtype),
                     e->words.address + a);
    }
}

static void add_uniform_nodes(const emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->level[k] == LEVEL_UNIFORM) add_node(e, (rp__val)k, NULL);
}

static void add_row_nodes(const emitter *e, unsigned phase) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->level[k] == LEVEL_ROW && e->dag->nodes[k].phase == phase) add_node(e, (rp__val)k, NULL);
}

/* Splits the number `from` into indices over dims [first, first + n): <prefix>0.. ; the outermost gets what is left. */
static void add_indices(const emitter *e, const char *from, const char *prefix, unsigned first, unsigned n) {
    const char *type = e->c->wide ? "rp_u64" : "rp_u32", *index = index_text(e);
    rp__text_add(e->out, "    %s %sr = (%s)%s;\n", type, prefix, type, from);
    for (unsigned d = n; d-- > 0;) {
        if (d == 0) {
            rp__text_add(e->out, "    const %s %s0 = (%s)%sr;\n", index, prefix, index, prefix);
            break;
        }
        uint32_t w = e->words.extent + first + d;
        rp__text_add(e->out, "    const %s %s%u = (%s)(%sr %% (%s)p.w[%u]);\n", index, prefix, d, index, prefix, type,
                     w);
        rp__text_add(e->out, "    %sr /= (%s)p.w[%u];\n", prefix, type, w);
    }
}

static void add_access_offsets(const emitter *e, const char *prefix, unsigned first, unsigned n) {
    for (unsigned a = 0; a < e->dag->n_accesses; a++) {
        rp__text_add(e->out, "    const %s o%u = 0", index_text(e), a);
        for (unsigned d = 0; d < n; d++)
            rp__text_add(e->out, " + %s%u * (%s)p.w[%u]", prefix, d, index_text(e), stride_word(e, a, first + d));
        rp__text_puts(e->out, ";\n");
    }
}

static void add_array_declarations(const emitter *e, const char *size) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (e->level[k] != LEVEL_ELEMENT || n->op == RP__CONST) continue;
        if (e->array[k]) rp__text_add(e->out, "    %s v%u[%s];\n", type_text(n->dtype), k, size);
    }
}

/* ---- reductions ---- */

static void add_identity(const emitter *e, const rp__node *n) {
    switch ((rp__reduce_kind)n->imm.i) {
    case RP__REDUCE_SUM:
    case RP__REDUCE_ANY: rp__text_puts(e->out, "0"); break;
    case RP__REDUCE_PROD:
    case RP__REDUCE_ALL: rp__text_puts(e->out, "1"); break;
    default: {
        bool max = n->imm.i == RP__REDUCE_MAX;
        switch ((rp_dtype)n->dtype) {
        case RP_F32: rp__text_add(e->out, "rp_bits_f32(0x%sf800000u)", max ? "f" : "7"); break;
        case RP_F64: rp__text_add(e->out, "rp_bits_f64(0x%sff0000000000000ull)", max ? "f" : "7"); break;
        case RP_I32: rp__text_puts(e->out, max ? "(-2147483647 - 1)" : "2147483647"); break;
        case RP_I64: rp__text_puts(e->out, max ? "(-9223372036854775807ll - 1ll)" : "9223372036854775807ll"); break;
        case RP_U8: rp__text_puts(e->out, max ? "0" : "255"); break;
        default: rp__text_puts(e->out, max ? "0" : "1"); break;
        }
    }
    }
}

/* combine(a, b) as an expression. */
static void add_combine(const emitter *e, const rp__node *n, const char *a, const char *b) {
    bool real = n->dtype == RP_F32 || n->dtype == RP_F64;
    const char *type = type_text(n->dtype);
    switch ((rp__reduce_kind)n->imm.i) {
    case RP__REDUCE_SUM: rp__text_add(e->out, "(%s)(%s + %s)", type, a, b); break;
    case RP__REDUCE_PROD: rp__text_add(e->out, "(%s)(%s * %s)", type, a, b); break;
    case RP__REDUCE_ANY: rp__text_add(e->out, "(%s)((%s != 0) | (%s != 0))", type, a, b); break;
    case RP__REDUCE_ALL: rp__text_add(e->out, "(%s)((%s != 0) & (%s != 0))", type, a, b); break;
    default: {
        const char *name = n->imm.i == RP__REDUCE_MAX ? "max" : "min";
        if (real)
            rp__text_add(e->out, "rp_%s_%s(%s, %s)", name, suffix_text(n->dtype), a, b);
        else
            rp__text_add(e->out, "(%s %s %s ? %s : %s)", a, n->imm.i == RP__REDUCE_MAX ? ">" : "<", b, a, b);
    }
    }
}

static const char *shuffle_text(unsigned dtype) {
    switch (dtype) {
    case RP_F32: return "f32";
    case RP_F64: return "f64";
    case RP_I64: return "i64";
    default: return "i32";
    }
}

/* s<k> = the four lanes of a thread's group, then the tree over `threads` threads t of a row. Every thread gets the result. */
static void add_tree(const emitter *e, unsigned k, unsigned threads, const char *shared) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = type_text(n->dtype);
    char a[48], b[48];
    rp__text_add(e->out, "    %s s%u;\n    { const %s lo = ", type, k, type);
    (void)snprintf(a, sizeof a, "c%u[0]", k);
    (void)snprintf(b, sizeof b, "c%u[2]", k);
    add_combine(e, n, a, b);
    rp__text_add(e->out, ", hi = ");
    (void)snprintf(a, sizeof a, "c%u[1]", k);
    (void)snprintf(b, sizeof b, "c%u[3]", k);
    add_combine(e, n, a, b);
    rp__text_add(e->out, "; s%u = ", k);
    add_combine(e, n, "lo", "hi");
    rp__text_puts(e->out, "; }\n");
    if (threads > 32) {
        rp__text_add(e->out, "    %s[t] = s%u; rp_barrier();\n    { %s q[%u];\n", shared, k, type, threads / 32);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) q[m] = %s[m * 32 + (t & 31)];\n",
                     threads / 32, shared);
        for (unsigned half = threads / 64; half > 0; half /= 2) {
            rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) q[m] = ", half);
            (void)snprintf(b, sizeof b, "q[m + %u]", half);
            add_combine(e, n, "q[m]", b);
            rp__text_puts(e->out, ";\n");
        }
        rp__text_add(e->out, "    s%u = q[0]; }\n", k);
    }
    for (unsigned mask = (threads > 32 ? 32 : threads) / 2; mask > 0; mask /= 2) {
        rp__text_add(e->out, "    { const %s other = (%s)rp_shfl_xor_%s(s%u, %u, 32); s%u = ", type, type,
                     shuffle_text(n->dtype), k, mask, k);
        (void)snprintf(a, sizeof a, "s%u", k);
        add_combine(e, n, a, "other");
        rp__text_puts(e->out, "; }\n");
    }
}

static bool reduces_in(const emitter *e, unsigned k, unsigned phase) {
    return e->dag->nodes[k].op == RP__REDUCE && e->dag->nodes[k].phase == phase + 1u;
}

static void add_accumulators(const emitter *e, unsigned phase, unsigned lanes) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (reduces_in(e, k, phase)) {
            rp__text_add(e->out, "    %s c%u[%u]; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) c%u[m] = ",
                         type_text(e->dag->nodes[k].dtype), k, lanes, lanes, k);
            add_identity(e, &e->dag->nodes[k]);
            rp__text_puts(e->out, ";\n");
        }
}

static void add_accumulation(const emitter *e, unsigned phase, const char *lane, const char *guard) {
    char t[64], c[64];
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (reduces_in(e, k, phase)) {
            const rp__node *n = &e->dag->nodes[k];
            (void)snprintf(c, sizeof c, "c%u[%s]", k, lane);
            rp__text_puts(e->out, "        ");
            if (guard) rp__text_add(e->out, "if (%s) ", guard);
            rp__text_add(e->out, "%s = ", c);
            add_combine(e, n, c, value_text(e, n->a, t));
            rp__text_puts(e->out, ";\n");
        }
}

/* ---- templates ---- */

static void add_vector_types(const emitter *e, unsigned width) {
    static const unsigned dtypes[] = {RP_F32, RP_F64, RP_F16, RP_I32, RP_I64, RP_U8};
    for (unsigned k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        unsigned bytes = (unsigned)rp__dtype_bytes((rp_dtype)dtypes[k]) * width;
        const char *type = type_text(dtypes[k]);
        rp__text_add(e->out, "#ifndef RP_VEC_%s_%u\n#define RP_VEC_%s_%u\n", type, width, type, width);
        rp__text_add(e->out, "typedef struct __align__(%u) { %s e[%u]; } rp_vec_%s_%u;\n#endif\n",
                     bytes > 16 ? 16 : bytes, type, width, type, width);
    }
}

/* Loads of whole vectors, all issued before anything is computed: l<node>[count]. `index` is the element offset of vector u. */
static void add_vector_loads(const emitter *e, const bool *needed, int phase, unsigned count, unsigned vector,
                             const char *index_of_u, const char *guard) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (e->level[k] != LEVEL_ELEMENT || !in_vectors(e, n) || (needed && !needed[k]) ||
            (!needed && phase >= 0 && e->place[k] != phase))
            continue;
        const char *type = type_text(e->dag->accesses[n->access].dtype);
        rp__text_add(e->out, "    %s l%u[%u];\n    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", type, k,
                     count * vector, count);
        rp__text_add(e->out, "        rp_vec_%s_%u x; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x.e[j] = 0;\n",
                     type, vector, vector);
        rp__text_add(e->out, "        if (%s) x = *(const rp_vec_%s_%u *)(a%u + (%s));\n", guard, type, vector,
                     n->access, index_of_u);
        rp__text_add(e->out,
                     "        _Pragma(\"unroll\") for (int j = 0; j < %u; j++) l%u[u * %u + j] = x.e[j];\n    }\n",
                     vector, k, vector);
        if (e->array[k]) {
            char raw[64];
            (void)snprintf(raw, sizeof raw, "l%u[e]", k);
            rp__text_add(e->out, "    _Pragma(\"unroll\") for (int e = 0; e < %u; e++) v%u[e] = ", count * vector, k);
            add_converted_load(e, n->access, raw);
            rp__text_puts(e->out, ";\n");
        }
    }
}

/* A store whose access takes whole vectors gathers its lanes in w<store> first. */
static bool vector_store(const emitter *e, const rp__store *s) {
    return s->mode == RP__STORE_SET && s->offset == RP__NO_VAL && s->predicate == RP__NO_VAL &&
           (e->c->unit >> s->access & 1) && e->c->vector > 1;
}

static void emit_pointwise_body(const emitter *e, const char *guard, bool many) {
    const rp__dag *d = e->dag;
    unsigned vector = e->c->vector;
    for (unsigned k = 0; k < d->n_stores; k++)
        if (vector_store(e, &d->stores[k]))
            rp__text_add(e->out, "    rp_vec_%s_%u w%u;\n", type_text(d->accesses[d->stores[k].access].dtype), vector,
                         k);
    rp__text_add(e->out,
                 "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n        const int e = u * %u + j; (void)e;\n",
                 vector, vector);
    if (many) rp__text_puts(e->out, "        const rp_i64 x = g + j;\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (e->level[k] == LEVEL_ELEMENT) add_node(e, (rp__val)k, guard);
    for (unsigned k = 0; k < d->n_stores; k++) {
        if (vector_store(e, &d->stores[k])) {
            rp__text_add(e->out, "        w%u.e[j] = ", k);
            add_stored(e, d->stores[k].access, d->stores[k].value);
            rp__text_puts(e->out, ";\n");
        } else {
            add_store(e, &d->stores[k], guard);
        }
    }
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < d->n_stores; k++)
        if (vector_store(e, &d->stores[k])) {
            unsigned a = d->stores[k].access;
            char offset[32];
            (void)snprintf(offset, sizeof offset, "o%u", a);
            rp__text_add(e->out, "    if (%s) *(rp_vec_%s_%u *)(a%u + %s) = w%u;\n", guard,
                         type_text(d->accesses[a].dtype), vector, a, many ? "g" : offset, k);
        }
}

/* The loads of all of a thread's vectors are issued before anything is computed, so that they are in flight together; only a
 * one-dim space has a cheap address for that. */
static bool loads_early(const emitter *e) { return e->n_dims == 1 && e->c->vector > 1; }

/* A thread takes vectors blockIdx * 256 * unroll + u * 256 + threadIdx, u < unroll. */
static void emit_pointwise(const emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    unsigned vector = e->c->vector, unroll = e->c->unroll;
    const char *index = index_text(e);
    add_vector_types(e, vector);
    add_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    add_bases(e);
    add_uniform_nodes(e);
    rp__text_add(e->out, "    const %s points = (%s)p.w[%u];\n", index, index, extra_word(e, RP__CUDA_WORD_POINTS));
    rp__text_add(e->out, "    const %s first = ((%s)blockIdx.x * %u + (%s)threadIdx.x) * %u;\n", index, index,
                 RP__CUDA_BLOCK * unroll, index, vector);
    char at[64];
    bool early = loads_early(e);
    if (early) {
        (void)snprintf(at, sizeof at, "first + (%s)u * %u", index, RP__CUDA_BLOCK * vector);
        char guard[96];
        (void)snprintf(guard, sizeof guard, "%s < points", at);
        add_vector_loads(e, NULL, -1, unroll, vector, at, guard);
    }
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", unroll);
    rp__text_add(e->out, "    const %s g = first + (%s)u * %u;\n    const int ok = g < points;\n", index, index,
                 RP__CUDA_BLOCK * vector);
    add_indices(e, "g", "d", 0, e->n_dims);
    add_access_offsets(e, "d", 0, e->n_dims);
    if (!early && vector > 1) {
        for (unsigned k = 0; k < d->n_nodes; k++) {
            const rp__node *n = &d->nodes[k];
            if (e->level[k] != LEVEL_ELEMENT || !in_vectors(e, n)) continue;
            const char *type = type_text(d->accesses[n->access].dtype);
            rp__text_add(e->out,
                         "    rp_vec_%s_%u x%u; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x%u.e[j] = 0;\n", type,
                         vector, k, vector, k);
            rp__text_add(e->out, "    if (ok) x%u = *(const rp_vec_%s_%u *)(a%u + o%u);\n    const %s *l%u = x%u.e;\n",
                         k, type, vector, n->access, n->access, type, k, k);
        }
    }
    emit_pointwise_body(e, "ok", false);
    rp__text_puts(e->out, "    }\n}\n");
}

/* Groups of equal problems: a block finds its group by binary search over first-block words. */
static void emit_many(const emitter *e, const char *name, uint32_t n_groups) {
    const rp__dag *d = e->dag;
    unsigned vector = e->c->vector, unroll = e->c->unroll, stride = 2u + d->n_accesses;
    uint32_t table = d->n_scalars + RP__CUDA_EXTRA_WORDS;
    add_vector_types(e, vector);
    add_signature(e, name, rp__cuda_word_count(d, e->c, n_groups), RP__CUDA_BLOCK);
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    add_uniform_nodes(e);
    rp__text_add(
        e->out,
        "    int lo = 0, hi = (int)p.w[%u] - 1;\n"
        "    while (lo < hi) { const int mid = (lo + hi + 1) / 2; if (p.w[%u + %u * mid] <= (rp_u64)blockIdx.x) lo = mid; else hi = mid - 1; }\n",
        extra_word(e, RP__CUDA_WORD_POINTS), table + 1, stride);
    rp__text_add(e->out, "    const int w = %u + lo * %u;\n    const rp_i64 points = (rp_i64)p.w[w];\n", table, stride);
    for (unsigned a = 0; a < d->n_accesses; a++) {
        const rp__access *x = &d->accesses[a];
        if (x->kind != RP__ACCESS_IOTA)
            rp__text_add(e->out, "    %s%s *a%u = (%s%s *)p.w[w + %u];\n", x->kind == RP__ACCESS_READ ? "const " : "",
                         type_text(x->dtype), a, x->kind == RP__ACCESS_READ ? "const " : "", type_text(x->dtype),
                         2 + a);
    }
    rp__text_add(
        e->out,
        "    const rp_i64 first = (((rp_i64)blockIdx.x - (rp_i64)p.w[w + 1]) * %u + (rp_i64)threadIdx.x) * %u;\n",
        RP__CUDA_BLOCK * unroll, vector);
    char at[64], guard[96];
    (void)snprintf(at, sizeof at, "first + (rp_i64)u * %u", RP__CUDA_BLOCK * vector);
    (void)snprintf(guard, sizeof guard, "%s < points", at);
    if (vector > 1) add_vector_loads(e, NULL, -1, unroll, vector, at, guard);
    rp__text_add(
        e->out,
        "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n    const rp_i64 g = %s;\n    const int ok = g < points;\n",
        unroll, at);
    emit_pointwise_body(e, "ok", true);
    rp__text_puts(e->out, "    }\n}\n");
}

/* Row number -> indices and offsets; `row` is clamped so that idle threads read valid memory, `live` says whether they store. */
static void add_row_start(const emitter *e) {
    rp__text_add(e->out, "    const int live = row_ < rows;\n    const %s row = live ? row_ : rows - 1; (void)row;\n",
                 index_text(e));
    if (e->c->n_outer > 0) {
        add_indices(e, "row", "d", 0, e->c->n_outer);
        add_access_offsets(e, "d", 0, e->c->n_outer);
    } else {
        for (unsigned a = 0; a < e->dag->n_accesses; a++)
            rp__text_add(e->out, "    const %s o%u = 0;\n", index_text(e), a);
    }
}

static void add_inner_extent(const emitter *e) {
    rp__text_add(e->out, "    const %s R = 1", index_text(e));
    for (unsigned d = 0; d < e->c->n_inner; d++)
        rp__text_add(e->out, " * (%s)p.w[%u]", index_text(e), e->words.extent + e->c->n_outer + d);
    rp__text_puts(e->out, ";\n");
}

static void add_inner_indices(const emitter *e) {
    if (e->c->n_inner > 1) add_indices(e, "i", "i", e->c->n_outer, e->c->n_inner);
}

static void add_element_nodes(const emitter *e, unsigned phase, const bool *needed, const char *guard) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->level[k] == LEVEL_ELEMENT && (needed ? needed[k] : e->place[k] == phase)) add_node(e, (rp__val)k, guard);
}

static void add_element_stores(const emitter *e, const char *guard) {
    for (unsigned k = 0; k < e->dag->n_stores; k++)
        if (!e->dag->stores[k].row) add_store(e, &e->dag->stores[k], guard);
}

static void add_row_stores(const emitter *e, const char *guard) {
    for (unsigned k = 0; k < e->dag->n_stores; k++)
        if (e->dag->stores[k].row) add_store(e, &e->dag->stores[k], guard);
}

/* A row in registers: element (u, j) of thread t is i = (u * threads + t) * 4 + j. */
static void emit_row(const emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    unsigned threads = e->c->threads, groups = e->c->groups, count = groups * 4;
    unsigned block = threads > RP__CUDA_BLOCK ? threads
                     : threads >= 128         ? threads
                                              : RP__CUDA_BLOCK,
             rows = block / threads;
    const char *index = index_text(e);
    if (e->c->vector > 1) add_vector_types(e, 4);
    add_signature(e, name, rp__cuda_word_count(d, e->c, 0), block);
    if (threads > 32)
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (d->nodes[k].op == RP__REDUCE)
                rp__text_add(e->out, "    __shared__ %s h%u[%u];\n", type_text(d->nodes[k].dtype), k, threads);
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    add_bases(e);
    add_uniform_nodes(e);
    rp__text_add(e->out, "    const %s rows = (%s)p.w[%u];\n", index, index, extra_word(e, RP__CUDA_WORD_POINTS));
    add_inner_extent(e);
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x %% %u;\n    const %s row_ = (%s)blockIdx.x * %u + (%s)(threadIdx.x / %u);\n",
        threads, index, index, rows, index, threads);
    add_row_start(e);
    char size[16], at[96], guard[160];
    (void)snprintf(size, sizeof size, "%u", count);
    add_array_declarations(e, size);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        add_row_nodes(e, phase);
        add_accumulators(e, phase, 4);
        for (unsigned k = 0; k < d->n_nodes; k++) {
            const rp__node *n = &d->nodes[k];
            if (e->level[k] != LEVEL_ELEMENT || !in_vectors(e, n) || e->place[k] != phase) continue;
            const char *type = type_text(d->accesses[n->access].dtype);
            (void)snprintf(at, sizeof at, "(%s)(u * %u + t) * 4", index, threads);
            (void)snprintf(guard, sizeof guard, "%s < R", at);
            rp__text_add(e->out, "    %s l%u[%u];\n    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", type, k,
                         count, groups);
            rp__text_add(e->out, "        rp_vec_%s_4 x; x.e[0] = 0; x.e[1] = 0; x.e[2] = 0; x.e[3] = 0;\n", type);
            rp__text_add(e->out, "        if (%s) x = *(const rp_vec_%s_4 *)(a%u + o%u + %s);\n", guard, type,
                         n->access, n->access, at);
            rp__text_add(
                e->out, "        _Pragma(\"unroll\") for (int j = 0; j < 4; j++) l%u[u * 4 + j] = x.e[j];\n    }\n", k);
            if (e->array[k]) {
                char raw[64];
                (void)snprintf(raw, sizeof raw, "l%u[e]", k);
                rp__text_add(e->out, "    _Pragma(\"unroll\") for (int e = 0; e < %u; e++) v%u[e] = ", count, k);
                add_converted_load(e, n->access, raw);
                rp__text_puts(e->out, ";\n");
            }
        }
        bool last = phase + 1u == d->n_phases;
        bool stores = last && stores_elements(d);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", groups);
        if (stores)
            for (unsigned k = 0; k < d->n_stores; k++)
                if (!d->stores[k].row && vector_store(e, &d->stores[k]))
                    rp__text_add(e->out, "    rp_vec_%s_4 w%u;\n", type_text(d->accesses[d->stores[k].access].dtype),
                                 k);
        rp__text_puts(
            e->out,
            "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n        const int e = u * 4 + j; (void)e;\n");
        rp__text_add(e->out, "        const %s i = (%s)(u * %u + t) * 4 + j; const int in = i < R; (void)in;\n", index,
                     index, threads);
        add_inner_indices(e);
        add_element_nodes(e, phase, NULL, "in");
        add_accumulation(e, phase, "j", "in");
        if (stores)
            for (unsigned k = 0; k < d->n_stores; k++) {
                const rp__store *s = &d->stores[k];
                if (s->row) continue;
                if (vector_store(e, s)) {
                    rp__text_add(e->out, "        w%u.e[j] = ", k);
                    add_stored(e, s->access, s->value);
                    rp__text_puts(e->out, ";\n");
                } else {
                    add_store(e, s, "in && live");
                }
            }
        rp__text_puts(e->out, "    }\n");
        if (stores)
            for (unsigned k = 0; k < d->n_stores; k++) {
                const rp__store *s = &d->stores[k];
                if (!s->row && vector_store(e, s))
                    rp__text_add(
                        e->out,
                        "    if (live && (%s)(u * %u + t) * 4 < R) *(rp_vec_%s_4 *)(a%u + o%u + (%s)(u * %u + t) * 4) = w%u;\n",
                        index, threads, type_text(d->accesses[s->access].dtype), s->access, s->access, index, threads,
                        k);
            }
        rp__text_puts(e->out, "    }\n");
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (reduces_in(e, k, phase)) {
                char shared[16];
                (void)snprintf(shared, sizeof shared, "h%u", k);
                add_tree(e, k, threads, shared);
                rp__text_add(e->out, "    const %s r%u = s%u;\n", type_text(d->nodes[k].dtype), k, k);
            }
    }
    add_row_stores(e, "live && t == 0");
    rp__text_puts(e->out, "}\n");
}

/* Text that runs one chunk of a row in a block of 256 threads; `fold` names what happens to its result. */
static void add_chunk_loop(const emitter *e, unsigned phase, const bool *needed, bool stores) {
    const char *index = index_text(e);
    rp__text_add(e->out, "    for (int u = 0; u < %u; u++) {\n", RP__CUDA_CHUNK / 4 / RP__CUDA_BLOCK);
    rp__text_add(e->out, "    const %s i4 = chunk + (%s)(u * %u + t) * 4;\n", index, index, RP__CUDA_BLOCK);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (e->level[k] != LEVEL_ELEMENT || !in_vectors(e, n) || !needed[k]) continue;
        const char *type = type_text(e->dag->accesses[n->access].dtype);
        rp__text_add(e->out, "    rp_vec_%s_4 x%u; x%u.e[0] = 0; x%u.e[1] = 0; x%u.e[2] = 0; x%u.e[3] = 0;\n", type, k,
                     k, k, k, k);
        rp__text_add(e->out,
                     "    if (i4 < R) x%u = *(const rp_vec_%s_4 *)(a%u + o%u + i4);\n    const %s *l%u = x%u.e;\n", k,
                     type, n->access, n->access, type, k, k);
    }
    rp__text_puts(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n");
    rp__text_add(e->out, "        const %s i = i4 + j; const int in = i < R; (void)in;\n", index);
    add_inner_indices(e);
    add_element_nodes(e, phase, needed, "in");
    add_accumulation(e, phase, "j", "in");
    if (stores) add_element_stores(e, "in");
    rp__text_puts(e->out, "    }\n    }\n");
}

static void emit_row_loop(const emitter *e, const char *name, bool *needed) {
    const rp__dag *d = e->dag;
    const char *index = index_text(e);
    if (e->c->vector > 1) add_vector_types(e, 4);
    add_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (d->nodes[k].op == RP__REDUCE) /* two halves: a chunk may be written while the one before is read */
            rp__text_add(e->out, "    __shared__ %s h%u[2][%u];\n", type_text(d->nodes[k].dtype), k, RP__CUDA_BLOCK);
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    add_bases(e);
    add_uniform_nodes(e);
    rp__text_add(e->out, "    const %s rows = (%s)p.w[%u];\n", index, index, extra_word(e, RP__CUDA_WORD_POINTS));
    add_inner_extent(e);
    rp__text_add(e->out, "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x;\n", index, index);
    add_row_start(e);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        bool last = phase + 1u == d->n_phases;
        add_row_nodes(e, phase);
        find_needed(e, phase, needed);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (reduces_in(e, k, phase)) {
                rp__text_add(e->out, "    %s r%u = ", type_text(d->nodes[k].dtype), k);
                add_identity(e, &d->nodes[k]);
                rp__text_puts(e->out, ";\n");
            }
        if (last && !stores_elements(d)) break;
        rp__text_add(e->out,
                     "    { int turn = 0; (void)turn;\n    for (%s chunk = 0; chunk < R; chunk += %u, turn ^= 1) {\n",
                     index, RP__CUDA_CHUNK);
        add_accumulators(e, phase, 4);
        add_chunk_loop(e, phase, needed, last);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (reduces_in(e, k, phase)) {
                char shared[24], r[24], s[24];
                (void)snprintf(shared, sizeof shared, "h%u[turn]", k);
                (void)snprintf(r, sizeof r, "r%u", k);
                (void)snprintf(s, sizeof s, "s%u", k);
                add_tree(e, k, RP__CUDA_BLOCK, shared);
                rp__text_add(e->out, "    %s = chunk == 0 ? %s : ", r, s);
                add_combine(e, &d->nodes[k], r, s);
                rp__text_puts(e->out, ";\n");
            }
        rp__text_puts(e->out, "    } }\n");
    }
    add_row_stores(e, "live && t == 0");
    rp__text_puts(e->out, "}\n");
}

/* The address of partial result `which` of (chunk, row). */
static void add_partial(const emitter *e, unsigned which, const char *chunk) {
    rp__text_add(e->out,
                 "((rp_u64 *)p.w[%u])[((rp_i64)%u * (rp_i64)p.w[%u] + (rp_i64)%s) * (rp_i64)rows + (rp_i64)row]",
                 extra_word(e, RP__CUDA_WORD_PARTIAL), which, extra_word(e, RP__CUDA_WORD_CHUNKS), chunk);
}

static void add_partial_stores(const emitter *e, const char *guard, const char *chunk) {
    unsigned which = 0;
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (reduces_in(e, k, 0)) {
            unsigned dtype = e->dag->nodes[k].dtype;
            rp__text_add(e->out, "    if (%s) ", guard);
            add_partial(e, which++, chunk);
            if (dtype == RP_F32)
                rp__text_add(e->out, " = (rp_u64)rp_f32_bits(s%u);\n", k);
            else if (dtype == RP_F64)
                rp__text_add(e->out, " = rp_f64_bits(s%u);\n", k);
            else
                rp__text_add(e->out, " = (rp_u64)(rp_i64)s%u;\n", k);
        }
}

static void emit_partial_row(const emitter *e, const char *name, bool *needed) {
    const rp__dag *d = e->dag;
    const char *index = index_text(e);
    if (e->c->vector > 1) add_vector_types(e, 4);
    add_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (d->nodes[k].op == RP__REDUCE)
            rp__text_add(e->out, "    __shared__ %s h%u[%u];\n", type_text(d->nodes[k].dtype), k, RP__CUDA_BLOCK);
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    add_bases(e);
    add_uniform_nodes(e);
    rp__text_add(e->out, "    const %s rows = (%s)p.w[%u];\n", index, index, extra_word(e, RP__CUDA_WORD_POINTS));
    add_inner_extent(e);
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x %% rows, chunk_ = (%s)blockIdx.x / rows;\n",
        index, index, index);
    rp__text_add(e->out, "    const %s chunk = chunk_ * %u;\n", index, RP__CUDA_CHUNK);
    add_row_start(e);
    add_row_nodes(e, 0);
    find_needed(e, 0, needed);
    add_accumulators(e, 0, 4);
    add_chunk_loop(e, 0, needed, false);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (reduces_in(e, k, 0)) {
            char shared[16];
            (void)snprintf(shared, sizeof shared, "h%u", k);
            add_tree(e, k, RP__CUDA_BLOCK, shared);
        }
    add_partial_stores(e, "t == 0", "chunk_");
    rp__text_puts(e->out, "}\n");
}

/* Rows side by side: thread (tx, ty) walks row blockIdx * 32 + tx; it holds the groups ty + down * m of every P lanes, down =
 * min(32, T), m < T / down, four lanes each: the same lanes and the same tree as emit_row. */
static void emit_column(const emitter *e, const char *name, bool *needed, bool partial) {
    const rp__dag *d = e->dag;
    unsigned threads = e->c->threads, down = threads < 32 ? threads : 32, many = threads / down, lanes = many * 4;
    const char *index = index_text(e);
    add_signature(e, name, rp__cuda_word_count(d, e->c, 0), 32 * down);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (d->nodes[k].op == RP__REDUCE)
            rp__text_add(e->out, "    __shared__ %s h%u[%u][33];\n", type_text(d->nodes[k].dtype), k, down);
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    add_bases(e);
    add_uniform_nodes(e);
    rp__text_add(e->out, "    const %s rows = (%s)p.w[%u];\n", index, index, extra_word(e, RP__CUDA_WORD_POINTS));
    add_inner_extent(e);
    rp__text_puts(e->out, "    const int tx = (int)threadIdx.x % 32, ty = (int)threadIdx.x / 32;\n");
    if (partial)
        rp__text_add(
            e->out,
            "    const %s stripes = (rows + 31) / 32, chunk_ = (%s)blockIdx.x / stripes, row_ = ((%s)blockIdx.x %% stripes) * 32 + tx;\n",
            index, index, index);
    else
        rp__text_add(e->out, "    const %s row_ = (%s)blockIdx.x * 32 + tx;\n", index, index);
    add_row_start(e);
    add_row_nodes(e, 0);
    find_needed(e, 0, needed);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (reduces_in(e, k, 0) && !partial) {
            rp__text_add(e->out, "    %s r%u = ", type_text(d->nodes[k].dtype), k);
            add_identity(e, &d->nodes[k]);
            rp__text_puts(e->out, ";\n");
        }
    if (partial)
        rp__text_add(e->out, "    { const %s chunk = chunk_ * %u;\n", index, RP__CUDA_CHUNK);
    else
        rp__text_add(e->out, "    for (%s chunk = 0; chunk < R; chunk += %u) {\n", index, RP__CUDA_CHUNK);
    rp__text_add(e->out, "    const %s end = R - chunk < %u ? R : chunk + %u;\n", index, RP__CUDA_CHUNK,
                 RP__CUDA_CHUNK);
    add_accumulators(e, 0, lanes);
    rp__text_add(e->out, "    for (%s base = chunk; base < end; base += %u) {\n", index, threads * 4);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) {\n", many);
    rp__text_puts(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n");
    rp__text_add(e->out, "        const %s i = base + (m * %u + ty) * 4 + j; const int in = i < end; (void)in;\n",
                 index, down);
    add_inner_indices(e);
    add_element_nodes(e, 0, needed, "in");
    add_accumulation(e, 0, "m * 4 + j", "in");
    rp__text_puts(e->out, "    } } }\n");
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!reduces_in(e, k, 0)) continue;
        const rp__node *n = &d->nodes[k];
        const char *type = type_text(n->dtype);
        char a[48], b[48];
        rp__text_add(e->out, "    { %s q[%u]; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) { const %s lo = ", type,
                     many, many, type);
        (void)snprintf(a, sizeof a, "c%u[m * 4]", k);
        (void)snprintf(b, sizeof b, "c%u[m * 4 + 2]", k);
        add_combine(e, n, a, b);
        rp__text_puts(e->out, ", hi = ");
        (void)snprintf(a, sizeof a, "c%u[m * 4 + 1]", k);
        (void)snprintf(b, sizeof b, "c%u[m * 4 + 3]", k);
        add_combine(e, n, a, b);
        rp__text_puts(e->out, "; q[m] = ");
        add_combine(e, n, "lo", "hi");
        rp__text_puts(e->out, "; }\n");
        for (unsigned half = many / 2; half > 0; half /= 2) {
            (void)snprintf(b, sizeof b, "q[m + %u]", half);
            rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) q[m] = ", half);
            add_combine(e, n, "q[m]", b);
            rp__text_puts(e->out, ";\n");
        }
        rp__text_add(e->out, "    h%u[ty][tx] = q[0]; }\n", k);
    }
    for (unsigned half = down / 2; half > 0; half /= 2) {
        rp__text_add(e->out, "    rp_barrier();\n    if (ty < %u) {\n", half);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (reduces_in(e, k, 0)) {
                char a[48], b[48];
                (void)snprintf(a, sizeof a, "h%u[ty][tx]", k);
                (void)snprintf(b, sizeof b, "h%u[ty + %u][tx]", k, half);
                rp__text_add(e->out, "        %s = ", a);
                add_combine(e, &d->nodes[k], a, b);
                rp__text_puts(e->out, ";\n");
            }
        rp__text_puts(e->out, "    }\n");
    }
    rp__text_puts(e->out, "    rp_barrier();\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (reduces_in(e, k, 0)) {
            char r[24], s[24];
            (void)snprintf(r, sizeof r, "r%u", k);
            (void)snprintf(s, sizeof s, "s%u", k);
            rp__text_add(e->out, "    const %s s%u = h%u[0][tx];\n", type_text(d->nodes[k].dtype), k, k);
            if (!partial) {
                rp__text_add(e->out, "    r%u = chunk == 0 ? s%u : ", k, k);
                add_combine(e, &d->nodes[k], r, s);
                rp__text_puts(e->out, ";\n");
            }
        }
    if (partial)
        add_partial_stores(e, "live && ty == 0", "chunk_");
    else
        rp__text_puts(e->out, "    rp_barrier();\n");
    rp__text_puts(e->out, "    }\n");
    if (!partial) {
        for (unsigned phase = 1; phase < d->n_phases; phase++) add_row_nodes(e, phase);
        add_row_stores(e, "live && ty == 0");
    }
    rp__text_puts(e->out, "}\n");
}

static void emit_finish(const emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const char *index = index_text(e);
    add_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    add_bases(e);
    add_uniform_nodes(e);
    rp__text_add(e->out, "    const %s rows = (%s)p.w[%u];\n", index, index, extra_word(e, RP__CUDA_WORD_POINTS));
    rp__text_add(e->out, "    const rp_i64 chunks = (rp_i64)p.w[%u];\n", extra_word(e, RP__CUDA_WORD_CHUNKS));
    rp__text_add(e->out, "    const %s row_ = (%s)blockIdx.x * %u + (%s)threadIdx.x;\n", index, index, RP__CUDA_BLOCK,
                 index);
    add_row_start(e);
    add_row_nodes(e, 0);
    unsigned which = 0;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!reduces_in(e, k, 0)) continue;
        unsigned dtype = d->nodes[k].dtype;
        char r[24];
        (void)snprintf(r, sizeof r, "r%u", k);
        rp__text_add(e->out,
                     "    %s r%u = 0;\n    for (rp_i64 chunk = 0; chunk < chunks; chunk++) {\n        const %s x = ",
                     type_text(dtype), k, type_text(dtype));
        rp__text_puts(e->out, dtype == RP_F32   ? "rp_bits_f32((rp_u32)"
                              : dtype == RP_F64 ? "rp_bits_f64("
                              : dtype == RP_I64 ? "(rp_i64)("
                                                : "(");
        add_partial(e, which++, "chunk");
        rp__text_puts(e->out, ");\n        ");
        rp__text_add(e->out, "r%u = chunk == 0 ? x : ", k);
        add_combine(e, &d->nodes[k], r, "x");
        rp__text_puts(e->out, ";\n    }\n");
    }
    for (unsigned phase = 1; phase < d->n_phases; phase++) add_row_nodes(e, phase);
    add_row_stores(e, "live");
    rp__text_puts(e->out, "}\n");
}

rp_status rp__cuda_emit(const rp__dag *dag, const rp__cuda_class *c, const char *name, rp__text *out) {
    rp__arena arena = {0};
    emitter e = {.dag = dag, .c = c, .out = out, .n_dims = (uint32_t)c->n_outer + c->n_inner, .at = "[e]"};
    rp__space_layout_of(dag, c->n_outer, c->n_inner, 0, &e.words);
    e.level = RP__NEW(&arena, uint8_t, dag->n_nodes + 1u);
    e.place = RP__NEW(&arena, uint8_t, dag->n_nodes + 1u);
    e.array = RP__NEW(&arena, bool, dag->n_nodes + 1u);
    bool *needed = RP__NEW(&arena, bool, dag->n_nodes + 1u);
    if (!e.level || !e.place || !e.array || !needed) {
        rp__arena_free(&arena);
        return RP__OOM("CUDA source of a kernel");
    }
    e.recompute = c->template_ != RP__CUDA_ROW;
    if (c->template_ == RP__CUDA_ROW_LOOP || c->template_ == RP__CUDA_PARTIAL_ROW ||
        (c->template_ == RP__CUDA_POINTWISE && !loads_early(&e)))
        e.at = "[j]";
    find_levels(&e);
    find_places(&e);
    switch ((rp__cuda_template)c->template_) {
    case RP__CUDA_POINTWISE: emit_pointwise(&e, name); break;
    case RP__CUDA_ROW: emit_row(&e, name); break;
    case RP__CUDA_ROW_LOOP: emit_row_loop(&e, name, needed); break;
    case RP__CUDA_COLUMN: emit_column(&e, name, needed, false); break;
    case RP__CUDA_PARTIAL_ROW: emit_partial_row(&e, name, needed); break;
    case RP__CUDA_PARTIAL_COLUMN: emit_column(&e, name, needed, true); break;
    case RP__CUDA_FINISH: emit_finish(&e, name); break;
    case RP__CUDA_MANY: emit_many(&e, name, c->problems); break;
    }
    rp__arena_free(&arena);
    return out->failed ? RP__OOM("CUDA source of a kernel") : RP_OK;
}

void rp__cuda_emit_support(rp__text *out) {
    rp__text_puts(
        out,
        /* Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC11): Philox4x32-10 */
        "RP_FN void rp_philox(rp_u64 seed, rp_u64 counter, rp_u32 *x)\n"
        "{\n"
        "    rp_u32 k0 = (rp_u32)seed, k1 = (rp_u32)(seed >> 32);\n"
        "    x[0] = (rp_u32)counter; x[1] = (rp_u32)(counter >> 32); x[2] = 0; x[3] = 0;\n"
        "    _Pragma(\"unroll\") for (int round = 0; round < 10; round++) {\n"
        "        const rp_u32 h0 = rp_mulhi_u32(0xD2511F53u, x[0]), l0 = 0xD2511F53u * x[0];\n"
        "        const rp_u32 h1 = rp_mulhi_u32(0xCD9E8D57u, x[2]), l1 = 0xCD9E8D57u * x[2];\n"
        "        x[0] = h1 ^ x[1] ^ k0; x[1] = l1; x[2] = h0 ^ x[3] ^ k1; x[3] = l0;\n"
        "        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;\n"
        "    }\n"
        "}\n"
        /* state: {seed, base} in device memory for captured draws, else null */
        "RP_FN void rp_random_words(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 number, rp_u32 *x)\n"
        "{\n"
        "    const volatile rp_u64 *s = (const volatile rp_u64 *)state;\n"
        "    rp_u64 base = 0;\n"
        "    if (s) { seed = s[0]; base = s[1]; }\n"
        "    rp_philox(seed, base + inner + (rp_u64)number, x);\n"
        "}\n"
        "RP_FN rp_u32 rp_pick(const rp_u32 *x, int k) { return k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3]; }\n"
        "RP_FN rp_i64 rp_random_word(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i)\n"
        "{\n"
        "    rp_u32 x[4];\n"
        "    rp_random_words(state, seed, inner, i >> 2, x);\n"
        "    return (rp_i64)rp_pick(x, (int)(i & 3));\n"
        "}\n"
        "RP_FN rp_i64 rp_random_word64(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i)\n"
        "{\n"
        "    rp_u32 x[4];\n"
        "    rp_random_words(state, seed, inner, i >> 1, x);\n"
        "    return (rp_i64)(i & 1 ? (rp_u64)x[2] << 32 | x[3] : (rp_u64)x[0] << 32 | x[1]);\n"
        "}\n"
        "RP_FN float rp_random_normal_f32(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i)\n"
        "{\n"
        "    rp_u32 x[4];\n"
        "    rp_random_words(state, seed, inner, i >> 2, x);\n"
        "    const rp_u32 a = i & 2 ? x[2] : x[0], b = i & 2 ? x[3] : x[1];\n"
        "    const double u1 = ((double)a + 1.0) * 2.3283064365386963e-10, u2 = (double)b * 2.3283064365386963e-10;\n"
        "    const double m = rp_sqrt_f64(-2.0 * rp_log_f64(u1)), angle = 6.283185307179586 * u2;\n"
        "    return (float)(m * (i & 1 ? rp_sin_f64(angle) : rp_cos_f64(angle)));\n"
        "}\n"
        "RP_FN double rp_random_normal_f64(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i)\n"
        "{\n"
        "    rp_u32 x[4];\n"
        "    rp_random_words(state, seed, inner, i >> 1, x);\n"
        "    const double u1 = ((double)(((rp_u64)x[0] << 32 | x[1]) >> 11) + 1.0) * 1.1102230246251565e-16;\n"
        "    const double u2 = (double)(((rp_u64)x[2] << 32 | x[3]) >> 11) * 1.1102230246251565e-16;\n"
        "    const double m = rp_sqrt_f64(-2.0 * rp_log_f64(u1)), angle = 6.283185307179586 * u2;\n"
        "    return m * (i & 1 ? rp_sin_f64(angle) : rp_cos_f64(angle));\n"
        "}\n"
        /* the record of device/error_record.h: the first error wins */
        "RP_FN void rp_report(rp_u64 record, rp_u64 tag, rp_u64 code, rp_i64 index, rp_i64 bound)\n"
        "{\n"
        "    volatile rp_u64 *r = (volatile rp_u64 *)record;\n"
        "    if (rp_atomic_cas_u64((rp_u64 *)record, 0, 1) == 0) {\n"
        "        r[1] = code; r[2] = tag; r[3] = (rp_u64)index; r[4] = (rp_u64)bound;\n"
        "        rp_threadfence_system();\n"
        "        r[0] = 2;\n"
        "    }\n"
        "}\n"
        "RP_FN float rp_floordiv_f32(float a, float b)\n"
        "{\n"
        "    if (b == 0) return a / b;\n"
        "    float m = rp_fmod_f32(a, b), d = (a - m) / b;\n"
        "    if (m != 0 && (b < 0) != (m < 0)) d -= 1;\n"
        "    if (d == 0) return rp_copysign_f32(0, a / b);\n"
        "    float f = rp_floor_f32(d);\n"
        "    return d - f > 0.5f ? f + 1 : f;\n"
        "}\n"
        "RP_FN double rp_floordiv_f64(double a, double b)\n"
        "{\n"
        "    if (b == 0) return a / b;\n"
        "    double m = rp_fmod_f64(a, b), d = (a - m) / b;\n"
        "    if (m != 0 && (b < 0) != (m < 0)) d -= 1;\n"
        "    if (d == 0) return rp_copysign_f64(0, a / b);\n"
        "    double f = rp_floor_f64(d);\n"
        "    return d - f > 0.5 ? f + 1 : f;\n"
        "}\n"
        "RP_FN rp_i64 rp_floordiv_i64(rp_u64 record, rp_u64 tag, rp_i64 a, rp_i64 b)\n"
        "{\n"
        "    if (b == 0) { rp_report(record, tag, 2, a, 0); return 0; }\n"
        "    if (b == -1) return (rp_i64)(0 - (rp_u64)a);\n"
        "    const rp_i64 q = a / b;\n"
        "    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;\n"
        "}\n"
        "RP_FN float rp_remainder_f32(float a, float b) { float m = rp_fmod_f32(a, b); return m != 0 && (b < 0) != (m < 0) ? m + b : m; }\n"
        "RP_FN double rp_remainder_f64(double a, double b) { double m = rp_fmod_f64(a, b); return m != 0 && (b < 0) != (m < 0) ? m + b : m; }\n"
        "RP_FN rp_i64 rp_remainder_i64(rp_u64 record, rp_u64 tag, rp_i64 a, rp_i64 b)\n"
        "{\n"
        "    if (b == 0) rp_report(record, tag, 2, a, 0);\n"
        "    if (b == 0 || b == -1) return 0;\n"
        "    const rp_i64 m = a % b;\n"
        "    return m != 0 && (b < 0) != (m < 0) ? m + b : m;\n"
        "}\n"
        "RP_FN rp_i64 rp_check_index(rp_u64 record, rp_u64 tag, rp_i64 index, rp_i64 bound, int wrap)\n"
        "{\n"
        "    const rp_i64 at = wrap && index < 0 ? index + bound : index;\n"
        "    if (at >= 0 && at < bound) return at;\n"
        "    rp_report(record, tag, 1, index, bound);\n"
        "    return 0;\n"
        "}\n");
}
