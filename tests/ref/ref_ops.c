/* The reference of each op: a loop over doubles, with arguments of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/ref.h"

/* ---- shapes and values */

typedef struct shape {
    int ndim;
    int64_t size[RP_MAX_DIMS];
} shape;

static const shape shapes[] = {
    {2, {3, 4}},    {0, {0}},          {1, {1}},
    {1, {17}},      {1, {0}},          {3, {2, 0, 3}},
    {3, {2, 3, 5}}, {4, {2, 1, 3, 4}}, {16, {1, 2, 1, 1, 2, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 2}},
    {2, {37, 41}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static uint32_t noise(int64_t i, unsigned salt) {
    uint32_t h = (uint32_t)i * 2654435761u + salt * 40503u + 12345u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    h *= 3266489917u;
    return h ^ h >> 16;
}

/* Small integers for integers; floats in (-3, 3) with a grid of 1/64, so that 16-bit types hold them. */
static double sample(rp_dtype d, int64_t i, unsigned salt) {
    uint32_t r = noise(i, salt);
    switch (d) {
    case RP_BOOL: return r & 1;
    case RP_U8: return r % 11;
    case RP_I32:
    case RP_I64: return (double)(r % 13) - 6;
    default: return ref_round(d, ((double)(r % 384) - 192) / 64 + (d == RP_BF16 ? 0 : 1.0 / 512));
    }
}

/* The dim along which an expanded input repeats: the first of more than one element. -1: none. */
static int repeated_dim(const ref_value *r) {
    for (int d = 0; d < r->ndim; d++) {
        if (r->size[d] > 1) return d;
    }
    return -1;
}

static int64_t stride_of(const ref_value *r, int dim) {
    int64_t s = 1;
    for (int d = r->ndim - 1; d > dim; d--) s *= r->size[d];
    return s;
}

/* Makes values repeat where the layout says so. */
static void settle(const ref_case *c, ref_value *r) {
    int d = c->layout == REF_EXPANDED ? repeated_dim(r) : -1;
    if (d < 0) return;
    int64_t inner = stride_of(r, d);
    for (int64_t i = 0; i < r->n; i++) r->v[i] = r->v[i - i / inner % r->size[d] * inner];
}

static ref_value *input(ref_case *c, rp_dtype d, const int64_t *size, int ndim) {
    ref_value *r = &c->in[c->n_in];
    *r = ref_new(d, size, ndim);
    for (int64_t i = 0; i < r->n; i++) r->v[i] = sample(d, i, (unsigned)c->n_in + 1);
    settle(c, r);
    c->n_in++;
    return r;
}

static ref_value *output(ref_case *c, rp_dtype d, const int64_t *size, int ndim) {
    c->out[c->n_out] = ref_new(d, size, ndim);
    return &c->out[c->n_out++];
}

static void with_mag(ref_value *r) {
    ref_value m = ref_new(RP_F64, r->size, r->ndim);
    r->mag = m.v;
}

static void add_attr(ref_case *c, rp_attr a) { c->attrs[c->n_attrs++] = a; }
static void add_int(ref_case *c, int64_t i) { add_attr(c, (rp_attr){.kind = RP_ATTR_INT, .v.i = i}); }
static void add_float(ref_case *c, double f) { add_attr(c, (rp_attr){.kind = RP_ATTR_FLOAT, .v.f = f}); }
static void add_bool(ref_case *c, bool b) { add_attr(c, (rp_attr){.kind = RP_ATTR_BOOL, .v.b = b}); }
static void add_dtype(ref_case *c, rp_dtype d) { add_attr(c, (rp_attr){.kind = RP_ATTR_DTYPE, .v.dtype = d}); }
static void add_scalar(ref_case *c, rp_scalar s) { add_attr(c, (rp_attr){.kind = RP_ATTR_SCALAR, .v.scalar = s}); }
static void add_ints(ref_case *c, const int64_t *v, size_t n) {
    ref_value held =
        ref_new(RP_I64, (const int64_t[]){(int64_t)n}, 1); /* memory of the case; int64 and double have one size */
    if (n) memcpy(held.v, v, n * sizeof *v);
    add_attr(c, (rp_attr){.kind = RP_ATTR_INTS, .n = n, .v.ints = (const int64_t *)(const void *)held.v});
}
static double number(rp_scalar s) {
    return s.kind == RP_SCALAR_F64 ? s.v.f : s.kind == RP_SCALAR_BOOL ? s.v.b : (double)s.v.i;
}

/* Coordinates. */
static void unravel(const ref_value *r, int64_t i, int64_t *at) {
    for (int d = r->ndim - 1; d >= 0; d--) {
        at[d] = i % r->size[d];
        i /= r->size[d];
    }
}
static int64_t ravel(const ref_value *r, const int64_t *at) {
    int64_t i = 0;
    for (int d = 0; d < r->ndim; d++) i = i * r->size[d] + at[d];
    return i;
}
/* Element of r that is broadcast to coordinates `at` of rank n. */
static double broadcast_at(const ref_value *r, const int64_t *at, int n) {
    int64_t own[RP_MAX_DIMS];
    for (int d = 0; d < r->ndim; d++) own[d] = r->size[d] == 1 ? 0 : at[d + n - r->ndim];
    return r->v[ravel(r, own)];
}
static int broadcast_size(const ref_value *a, const ref_value *b, int64_t *out) {
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int d = 0; d < n; d++) {
        int da = d - n + a->ndim, db = d - n + b->ndim;
        int64_t x = da < 0 ? 1 : a->size[da], y = db < 0 ? 1 : b->size[db];
        out[d] = x == 1 ? y : x;
    }
    return n;
}

/* ---- pointwise */

enum {
    INPLACE = 1,
    TO_FLOAT = 2,
    NO_BOOL = 4,
    BOOL_RESULT = 8,
    FLOAT_ONLY = 16,
    EXACT = 32,
    ALPHA = 64,
    POSITIVE = 128,
    DIVIDES = 256
};
static const rp_dtype all_types[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL};
enum { TYPES = 8 };

static rp_dtype float_of(rp_dtype d) { return ref_is_float(d) ? d : RP_F32; }
static void finish(ref_case *c, const ref_op *op, rp_dtype computed) {
    c->exact = (op->flags & (EXACT | BOOL_RESULT)) || !ref_is_float(computed);
    c->ulps = 4;
}
/* Can a result of type `from` be written into `to`? */
static bool castable(rp_dtype from, rp_dtype to) {
    return !(ref_is_float(from) && !ref_is_float(to)) && !(from != RP_BOOL && to == RP_BOOL);
}

static bool unary(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES || ((op->flags & NO_BOOL) && d == RP_BOOL) || ((op->flags & FLOAT_ONLY) && !ref_is_float(d)))
        return false;
    rp_dtype type = op->flags & TO_FLOAT ? float_of(d) : d;
    if ((op->flags & INPLACE) && !castable(type, d)) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim);
    if (op->flags & POSITIVE) {
        for (int64_t i = 0; i < x->n; i++) x->v[i] = fabs(x->v[i]);
    }
    if (variant == 3 && ref_is_float(d) && c->layout != REF_EXPANDED) { /* values that formulas forget */
        const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1, -1};
        for (size_t i = 0; i < sizeof special / sizeof *special; i++) x->v[i] = special[i];
    }
    ref_value *y = output(c, op->flags & BOOL_RESULT ? RP_BOOL : type, x->size, x->ndim);
    for (int64_t i = 0; i < x->n; i++) y->v[i] = ref_round(y->dtype, op->f1(ref_round(type, x->v[i])));
    finish(c, op, type);
    return true;
}

/* Size pairs: equal, broadcast both ways, 0-d with dimensioned, empty, rank 16. */
static const shape pairs[][2] = {
    {{2, {3, 4}}, {2, {3, 4}}},
    {{2, {3, 1}}, {2, {1, 4}}},
    {{0, {0}}, {2, {2, 3}}},
    {{2, {2, 3}}, {0, {0}}},
    {{1, {4}}, {2, {3, 4}}},
    {{0, {0}}, {0, {0}}},
    {{2, {0, 3}}, {2, {1, 3}}},
    {{3, {2, 3, 1}}, {2, {1, 5}}},
    {{16, {1, 2, 1, 1, 2, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 2}}, {1, {2}}},
    {{2, {33, 65}}, {1, {65}}},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

/* Variants: every pair of sizes with equal dtypes, then every second dtype with three pairs of sizes. */
static bool binary(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    rp_dtype other = d;
    const shape *p;
    if (variant < PAIRS) {
        p = pairs[variant];
    } else {
        static const int mixed[] = {0, 2, 3};
        variant -= PAIRS;
        if (variant >= TYPES * 3) return false;
        other = all_types[variant / 3];
        p = pairs[mixed[variant % 3]];
    }
    ref_value *a = input(c, d, p[0].size, p[0].ndim), *b = input(c, other, p[1].size, p[1].ndim);
    int64_t size[RP_MAX_DIMS];
    int n = broadcast_size(a, b, size);
    const ref_value *both[] = {a, b};
    rp_dtype type = ref_result_type(both, 2, -1);
    if (op->flags & TO_FLOAT) type = float_of(type);
    bool same = n == a->ndim && memcmp(size, a->size, (size_t)n * sizeof *size) == 0;
    bool refused = (op->flags & NO_BOOL) && (d == RP_BOOL || other == RP_BOOL);
    if (((op->flags & INPLACE) && (!same || !castable(type, d) || (c->layout == REF_EXPANDED))) || refused) {
        c->passed_over = true; /* an error: tested by message; this variant is passed over */
        return true;
    }
    double alpha = 1;
    if (op->flags & ALPHA) {
        alpha = type == RP_BOOL ? variant % 2 : ref_is_float(type) && variant % 2 ? 0.5 : variant % 3 + 1;
        add_scalar(c, type == RP_BOOL      ? rp_bool(alpha != 0)
                      : ref_is_float(type) ? rp_f64(alpha)
                                           : rp_i64((int64_t)alpha));
    }
    rp_dtype result = op->flags & BOOL_RESULT ? RP_BOOL : op->flags & INPLACE ? d : type;
    ref_value *y = output(c, result, size, n);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        double u = ref_round(type, broadcast_at(a, at, n)), v = ref_round(type, broadcast_at(b, at, n));
        double r = op->f2(u, type == RP_BOOL ? (alpha != 0) * v : alpha * v);
        if (type == RP_BOOL && !(op->flags & BOOL_RESULT)) r = r != 0;
        y->v[i] = ref_round(result, r);
        y->mag[i] = op->flags & ALPHA ? fabs(u) + fabs(alpha * v) : fabs(r);
    }
    finish(c, op, type);
    return true;
}

static const rp_scalar_kind scalar_kinds[] = {RP_SCALAR_I64, RP_SCALAR_F64, RP_SCALAR_BOOL};

/* Variants: shapes x kinds of number. */
static bool with_scalar(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES * 3) return false;
    const shape *s = &shapes[variant / 3];
    rp_scalar_kind kind = scalar_kinds[variant % 3];
    rp_scalar k = kind == RP_SCALAR_I64 ? rp_i64(3) : kind == RP_SCALAR_F64 ? rp_f64(1.5) : rp_bool(true);
    ref_value *x = input(c, d, s->size, s->ndim);
    const ref_value *one[] = {x};
    rp_dtype type = ref_result_type(one, 1, kind);
    if (op->flags & TO_FLOAT) type = float_of(type);
    if ((op->flags & INPLACE) && (!castable(type, d) || c->layout == REF_EXPANDED)) {
        c->passed_over = true;
        return true;
    }
    add_scalar(c, k);
    ref_value *y = output(c, op->flags & BOOL_RESULT ? RP_BOOL : op->flags & INPLACE ? d : type, x->size, x->ndim);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) {
        double u = ref_round(type, x->v[i]), r = op->f2(u, number(k));
        y->v[i] = ref_round(y->dtype, r);
        y->mag[i] = fabs(u) + fabs(number(k)) + fabs(r);
    }
    finish(c, op, type);
    return true;
}

static bool div_size_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t divisors[] = {1, 3, 4096};
    if (variant >= SHAPES * 3) return false;
    const shape *s = &shapes[variant / 3];
    int64_t k = divisors[variant % 3];
    ref_value *x = input(c, d, s->size, s->ndim);
    rp_dtype type = float_of(d);
    add_int(c, k);
    ref_value *y = output(c, type, x->size, x->ndim);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(type, ref_round(type, x->v[i]) / (double)k);
    finish(c, op, type);
    return true;
}

static bool is_class_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t size[][3] = {{40, 1}, {3, 4, 1}, {1}, {0, 1}}, classes[] = {7, 0, 300};
    static const int ndim[] = {2, 3, 1, 2};
    if (variant >= 12) return false;
    int n = ndim[variant / 3];
    rp_dtype type = ref_is_float(d) || d == RP_BOOL ? RP_I64 : d;
    ref_value *x = input(c, type, size[variant / 3], n);
    int64_t count = classes[variant % 3], out[3];
    memcpy(out, size[variant / 3], sizeof out);
    out[n - 1] = count;
    add_int(c, count);
    ref_value *y = output(c, RP_BOOL, out, n);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = x->v[i / count] == (double)(i % count);
    (void)op;
    c->exact = true;
    return true;
}

static bool power(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const double exponents[] = {0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 5};
    if (variant >= 20) return false;
    double e = exponents[variant / 2];
    const shape *s = &shapes[variant % 2 ? 6 : 0];
    bool whole = e == floor(e) && variant / 2 != 6 && variant / 2 != 9;
    rp_scalar k = whole ? rp_i64((int64_t)e) : rp_f64(e);
    ref_value *x = input(c, d, s->size, s->ndim);
    const ref_value *one[] = {x};
    rp_dtype type = ref_result_type(one, 1, k.kind);
    if (!ref_is_float(type) && e < 0) {
        c->passed_over = true;
        return true;
    }
    add_scalar(c, k);
    ref_value *y = output(c, type, x->size, x->ndim);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(type, pow(ref_round(type, x->v[i]), e));
    finish(c, op, type);
    c->ulps = 8;
    return true;
}

static bool where_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= 3 * TYPES) return false;
    rp_dtype other = all_types[variant / 3];
    static const int64_t size[] = {2, 3, 4};
    ref_value *cond =
        input(c, variant % 2 ? RP_U8 : RP_BOOL, variant % 3 == 1 ? size + 1 : size, variant % 3 == 1 ? 2 : 3);
    ref_value *a = input(c, d, size, variant % 3 == 2 ? 0 : 3), *b = input(c, other, size + 2, 1);
    const ref_value *both[] = {a, b};
    rp_dtype type = ref_result_type(both, 2, -1);
    ref_value *y = output(c, type, size, 3);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        y->v[i] = ref_round(type, broadcast_at(cond, at, 3) != 0 ? broadcast_at(a, at, 3) : broadcast_at(b, at, 3));
    }
    (void)op;
    c->exact = true;
    return true;
}

static bool convert(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= TYPES * SHAPES) return false;
    const shape *s = &shapes[variant / TYPES];
    rp_dtype to = all_types[variant % TYPES];
    ref_value *x = input(c, d, s->size, s->ndim);
    add_dtype(c, to);
    ref_value *y = output(c, to, x->size, x->ndim);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(to, x->v[i]);
    (void)op;
    c->exact = true;
    return true;
}

static bool copy_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= TYPES * 3 || ((op->flags & INPLACE) && c->layout == REF_EXPANDED)) return false;
    rp_dtype from = all_types[variant % TYPES];
    static const int64_t size[] = {3, 4, 5};
    ref_value *self = input(c, d, size, 3), *src = input(c, from, size + variant / TYPES, 3 - variant / TYPES);
    ref_value *y = output(c, d, self->size, self->ndim);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        y->v[i] = ref_round(d, broadcast_at(src, at, 3));
    }
    c->exact = true;
    return true;
}

static bool fill_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim);
    rp_scalar k = variant % 2 ? rp_f64(2.75) : rp_i64(7);
    add_scalar(c, k);
    ref_value *y = output(c, d, x->size, x->ndim);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, number(k));
    (void)op;
    c->exact = true;
    return true;
}

/* ---- factories */

static bool factory(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES) return false;
    bool full = strcmp(op->name, "full") == 0;
    double value = full ? 5.5 : op->flags;
    add_ints(c, shapes[variant].size, (size_t)shapes[variant].ndim);
    if (full) add_scalar(c, rp_f64(value));
    add_dtype(c, d);
    ref_value *y = output(c, d, shapes[variant].size, shapes[variant].ndim);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, value);
    c->exact = true;
    return true;
}

static bool like(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim);
    ref_value *y = output(c, d, x->size, x->ndim);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = op->flags;
    c->exact = true;
    return true;
}

static bool arange_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const double ranges[][3] = {{0, 5, 1}, {2, 9, 3}, {5, -3, -2}, {0, 0, 1}, {0, 1, 0.125}, {3.5, 60, 1}};
    if (variant >= 6 || d == RP_BOOL) return false;
    const double *r = ranges[variant];
    c->passed_over =
        (d == RP_U8 && r[1] < r[0]) || (!ref_is_float(d) && variant >= 4); /* negative, or a fraction of a step */
    for (int k = 0; k < 3; k++) add_scalar(c, variant < 4 ? rp_i64((int64_t)r[k]) : rp_f64(r[k]));
    add_dtype(c, d);
    int64_t n = (int64_t)ceil((r[1] - r[0]) / r[2]);
    ref_value *y = output(c, d, &n, 1);
    for (int64_t i = 0; i < n; i++) y->v[i] = ref_round(d, r[0] + (double)i * r[2]);
    (void)op;
    c->exact = true;
    return true;
}

/* ---- reductions */

enum { SUM, MEAN, AMAX };

static bool reduction(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, n_dims;
        int64_t dims[3];
        bool keep;
    } cases[] = {{0, 0, {0}, false},   {0, 1, {0}, false}, {0, 1, {-1}, true},       {6, 2, {0, 2}, false},
                 {6, 2, {2, 1}, true}, {1, 0, {0}, false}, {1, 1, {-1}, true},       {3, 1, {0}, false},
                 {5, 1, {1}, false},   {5, 1, {0}, false}, {8, 3, {1, 9, -1}, true}, {9, 1, {0}, false},
                 {9, 1, {1}, false},   {9, 0, {0}, true},  {7, 2, {1, 3}, false}};
    if (variant >= (int)(sizeof cases / sizeof *cases) || (op->flags == MEAN && !ref_is_float(d))) return false;
    const shape *s = &shapes[cases[variant].shape];
    ref_value *x = input(c, d, s->size, s->ndim);
    uint32_t mask = 0;
    for (int k = 0; k < cases[variant].n_dims; k++)
        mask |= 1u << (cases[variant].dims[k] < 0 ? cases[variant].dims[k] + (s->ndim ? s->ndim : 1)
                                                  : cases[variant].dims[k]);
    if (cases[variant].n_dims == 0) mask = 0xffff;
    int64_t kept[RP_MAX_DIMS], size[RP_MAX_DIMS], rows = 1;
    int n = 0;
    for (int k = 0; k < s->ndim; k++) {
        bool reduced = mask >> k & 1u;
        kept[k] = reduced ? 1 : s->size[k];
        rows *= reduced ? s->size[k] : 1;
        if (!reduced || cases[variant].keep) size[n++] = kept[k];
    }
    if (op->flags == AMAX && rows == 0) {
        c->passed_over = true;
        return true;
    }
    add_ints(c, cases[variant].dims, (size_t)cases[variant].n_dims);
    add_bool(c, cases[variant].keep);
    rp_dtype type = op->flags == AMAX ? d : op->flags == SUM && !ref_is_float(d) ? RP_I64 : d;
    if (op->flags != AMAX) add_dtype(c, RP_DTYPE_NONE);
    ref_value grid = ref_new(RP_F64, kept, s->ndim), *y = output(c, type, size, n);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = op->flags == AMAX ? -INFINITY : 0;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(x, i, at);
        for (int k = 0; k < s->ndim; k++) at[k] = kept[k] == 1 ? 0 : at[k];
        int64_t o = ravel(&grid, at);
        y->v[o] = op->flags == AMAX ? fmax(y->v[o], x->v[i]) : y->v[o] + x->v[i];
        y->mag[o] += op->flags == AMAX ? 0 : fabs(x->v[i]);
    }
    for (int64_t i = 0; i < y->n; i++) {
        if (op->flags == MEAN) {
            y->v[i] = rows ? y->v[i] / (double)rows : NAN;
            y->mag[i] /= (double)rows;
        }
        y->v[i] = ref_round(type, y->v[i]);
    }
    c->exact = op->flags == AMAX || !ref_is_float(d);
    c->ulps = 8;
    return true;
}

static bool softmax_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{0, 1}, {0, 0}, {1, -1}, {3, 0}, {5, 1}, {5, 0},
                                   {6, 1}, {8, 9}, {9, -1}, {9, 0}, {2, 0}};
    if (variant >= 11 || !ref_is_float(d)) return false;
    const shape *s = &shapes[cases[variant][0]];
    int dim = cases[variant][1] < 0 ? cases[variant][1] + (s->ndim ? s->ndim : 1) : cases[variant][1];
    ref_value *x = input(c, d, s->size, s->ndim);
    add_int(c, cases[variant][1]);
    ref_value *y = output(c, d, x->size, x->ndim);
    with_mag(y);
    int64_t inner = s->ndim ? stride_of(x, dim) : 1, row = s->ndim ? s->size[dim] : 1;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t first = i - i / inner % row * inner;
        double high = -INFINITY, total = 0;
        for (int64_t k = 0; k < row; k++) high = fmax(high, x->v[first + k * inner]);
        for (int64_t k = 0; k < row; k++) total += exp(x->v[first + k * inner] - high);
        double z = x->v[i] - high;
        y->v[i] = ref_round(d, op->flags ? z - log(total) : exp(z) / total);
        y->mag[i] = op->flags ? fabs(z) + fabs(log(total)) + 1 : 4 * y->v[i];
    }
    c->ulps = 8;
    return true;
}

/* layer_norm and native_layer_norm over the last dims; with weight and bias, one of them, none. */
static bool layer_norm_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{0, 1}, {0, 2}, {6, 1}, {6, 2}, {9, 1}, {7, 2}, {5, 1}, {3, 1}};
    if (variant >= 24 || !ref_is_float(d)) return false;
    const shape *s = &shapes[cases[variant / 3][0]];
    int n = cases[variant / 3][1], affine = variant % 3;
    const int64_t *tail = s->size + s->ndim - n;
    ref_value *x = input(c, d, s->size, s->ndim);
    ref_value *w = input(c, d, tail, n), *b = input(c, d, tail, n);
    c->absent[1] = affine == 0;
    c->absent[2] = affine != 2;
    if (op->flags)
        add_int(c, n);
    else
        add_ints(c, tail, (size_t)n);
    double eps = 1e-5;
    add_float(c, eps);
    int64_t row = w->n, rows = row ? x->n / row : 0, kept[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim; k++) kept[k] = k < s->ndim - n ? s->size[k] : 1;
    rp_dtype wide = d == RP_F64 ? RP_F64 : RP_F32;
    ref_value *y = output(c, d, x->size, x->ndim), *mean = NULL, *rstd = NULL;
    with_mag(y);
    if (op->flags) {
        mean = output(c, wide, kept, s->ndim);
        rstd = output(c, wide, kept, s->ndim);
        with_mag(mean);
        for (int64_t r = 0; r < mean->n; r++) mean->v[r] = rstd->v[r] = NAN;
    }
    for (int64_t r = 0; r < rows; r++) {
        double m = 0, v = 0, a = 0;
        for (int64_t k = 0; k < row; k++) {
            m += x->v[r * row + k] / (double)row;
            a += fabs(x->v[r * row + k]) / (double)row;
        }
        for (int64_t k = 0; k < row; k++) v += (x->v[r * row + k] - m) * (x->v[r * row + k] - m) / (double)row;
        double f = 1 / sqrt(v + eps);
        for (int64_t k = 0; k < row; k++) {
            double z = (x->v[r * row + k] - m) * f;
            double wk = c->absent[1] ? 1 : w->v[k], bk = c->absent[2] ? 0 : b->v[k];
            y->v[r * row + k] = ref_round(d, z * wk + bk);
            y->mag[r * row + k] = (fabs(x->v[r * row + k]) + a) * f * fabs(wk) + fabs(bk);
        }
        if (mean) {
            mean->v[r] = m;
            mean->mag[r] = a;
            rstd->v[r] = f;
        }
    }
    c->ulps = 16;
    /* A row whose elements are equal has variance 0 and 1/std 316: rounding errors of the mean show; not of interest. */
    if (c->layout == REF_EXPANDED) c->passed_over = true;
    return true;
}

static bool cross_entropy_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    bool rows_only = op->flags;
    if (variant >= (rows_only ? 3 : 12) || !ref_is_float(d)) return false;
    static const int64_t sizes[][2] = {{4, 7}, {1, 3}, {33, 100}};
    int which = variant % 4 == 3 ? 0 : variant % 4, reduction = rows_only ? 0 : variant / 4;
    bool single = !rows_only && variant % 4 == 3;
    const int64_t *size = sizes[which];
    int64_t classes = size[1], n = single ? 1 : size[0], ignore = 2;
    ref_value *x = input(c, d, single ? size + 1 : size, single ? 1 : 2);
    ref_value *t = input(c, RP_I64, size, single ? 0 : 1);
    for (int64_t i = 0; i < n; i++) t->v[i] = (double)(noise(i, 9) % (unsigned)classes);
    settle(c, t);
    if (!rows_only) add_int(c, reduction);
    add_int(c, ignore);
    rp_dtype wide = d == RP_F64 ? RP_F64 : RP_F32;
    ref_value loss = ref_new(RP_F64, &n, 1), high_of = ref_new(RP_F64, &n, 1),
              lse = ref_new(RP_F64, &n, 1);
    double total = 0, kept = 0, mag = 0;
    for (int64_t i = 0; i < n; i++) {
        double high = -INFINITY, sum = 0;
        for (int64_t k = 0; k < classes; k++) high = fmax(high, x->v[i * classes + k]);
        for (int64_t k = 0; k < classes; k++) sum += exp(x->v[i * classes + k] - high);
        high_of.v[i] = high;
        lse.v[i] = high + log(sum);
        bool ignored = t->v[i] == (double)ignore;
        loss.v[i] = ignored ? 0 : lse.v[i] - x->v[i * classes + (int64_t)t->v[i]];
        total += loss.v[i];
        kept += !ignored;
        mag += ignored ? 0 : fabs(lse.v[i]) + 4;
    }
    ref_value *y = output(c, rows_only ? wide : d, &n, reduction || single ? 0 : 1);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) {
        y->v[i] = ref_round(y->dtype, reduction == 0 ? loss.v[i] : reduction == 1 ? total / kept : total);
        y->mag[i] = reduction == 0 ? fabs(lse.v[i]) + 4 : reduction == 1 ? mag / kept : mag;
    }
    if (rows_only) {
        ref_value *high = output(c, wide, &n, 1), *l = output(c, wide, &n, 1);
        with_mag(l);
        for (int64_t i = 0; i < n; i++) {
            high->v[i] = high_of.v[i];
            l->v[i] = lse.v[i] - high_of.v[i];
            l->mag[i] = fabs(l->v[i]) + 4;
        }
    }
    c->ulps = 8;
    return true;
}

/* ---- views: coordinates of the result name an element of the input */

static void take(ref_case *c, const int64_t *size, int ndim,
                 int64_t (*from)(const ref_value *x, const int64_t *at, const int64_t *arg), const int64_t *arg) {
    ref_value *y = output(c, c->in[0].dtype, size, ndim);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        y->v[i] = c->in[0].v[from ? from(&c->in[0], at, arg) : i];
    }
    c->exact = true;
}

static bool same_order(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, n;
        int64_t size[4], result[4];
    } cases[] = {{6, 2, {6, 5}, {6, 5}}, {6, 2, {-1, 5}, {6, 5}}, {6, 4, {2, 3, 1, 5}, {2, 3, 1, 5}},
                 {1, 2, {1, 1}, {1, 1}}, {2, 0, {0}, {0}},        {5, 2, {0, 7}, {0, 7}},
                 {8, 2, {4, 6}, {4, 6}}, {3, 1, {-1}, {17}},      {6, 3, {2, 3, 5}, {2, 3, 5}}};
    if (variant >= 9) return false;
    const shape *s = &shapes[cases[variant].shape];
    input(c, d, s->size, s->ndim);
    /* view needs memory in order; reshape copies where it is not */
    if (op->flags && (c->layout != REF_CONTIGUOUS && c->layout != REF_OFFSET)) {
        c->passed_over = true;
        return true;
    }
    add_ints(c, cases[variant].size, (size_t)cases[variant].n);
    take(c, cases[variant].result, cases[variant].n, NULL, NULL);
    return true;
}

static int64_t from_permute(const ref_value *x, const int64_t *at, const int64_t *order) {
    int64_t own[RP_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) own[order[d]] = at[d];
    return ravel(x, own);
}

static bool permute_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t orders[][4] = {{1, 0}, {2, 0, 1}, {0, 1, 2}, {3, 1, 2, 0}, {0}};
    static const int which[] = {0, 6, 6, 7, 1};
    if (variant >= 5) return false;
    const shape *s = &shapes[which[variant]];
    ref_value *x = input(c, d, s->size, s->ndim);
    int64_t size[RP_MAX_DIMS], given[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim; k++) {
        size[k] = x->size[orders[variant][k]];
        given[k] = k % 2 ? orders[variant][k] - s->ndim : orders[variant][k];
    }
    add_ints(c, given, (size_t)s->ndim);
    take(c, size, s->ndim, from_permute, orders[variant]);
    (void)op;
    return true;
}

static bool transpose_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][3] = {{0, 0, 1}, {6, -1, 0}, {6, 1, 1}, {8, 1, 15}, {1, 0, -1}};
    if (variant >= 5) return false;
    const shape *s = &shapes[cases[variant][0]];
    ref_value *x = input(c, d, s->size, s->ndim);
    int64_t order[RP_MAX_DIMS], size[RP_MAX_DIMS];
    int a = cases[variant][1] < 0 ? cases[variant][1] + s->ndim : cases[variant][1];
    int b = cases[variant][2] < 0 ? cases[variant][2] + s->ndim : cases[variant][2];
    for (int k = 0; k < s->ndim; k++) order[k] = k == a ? b : k == b ? a : k;
    for (int k = 0; k < s->ndim; k++) size[k] = x->size[order[k]];
    add_int(c, cases[variant][1]);
    add_int(c, cases[variant][2]);
    take(c, size, s->ndim, from_permute, order);
    (void)op;
    return true;
}

static int64_t from_expand(const ref_value *x, const int64_t *at, const int64_t *rank) {
    int64_t own[RP_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) own[d] = x->size[d] == 1 ? 0 : at[d + *rank - x->ndim];
    return ravel(x, own);
}

static bool expand_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int n_in;
        int64_t in[3];
        int n;
        int64_t size[4], result[4];
    } cases[] = {{2, {3, 1}, 2, {3, 4}, {3, 4}},   {2, {3, 1}, 3, {2, -1, 4}, {2, 3, 4}},
                 {0, {0}, 2, {2, 2}, {2, 2}},      {1, {1}, 1, {0}, {0}},
                 {2, {3, 1}, 2, {-1, -1}, {3, 1}}, {3, {1, 2, 1}, 4, {5, 4, 2, 3}, {5, 4, 2, 3}}};
    if (variant >= 6) return false;
    input(c, d, cases[variant].in, cases[variant].n_in);
    add_ints(c, cases[variant].size, (size_t)cases[variant].n);
    int64_t rank = cases[variant].n;
    take(c, cases[variant].result, cases[variant].n, from_expand, &rank);
    (void)op;
    return true;
}

static int64_t from_slice(const ref_value *x, const int64_t *at, const int64_t *arg) /* dim, start, step */
{
    int64_t own[RP_MAX_DIMS];
    memcpy(own, at, sizeof own);
    own[arg[0]] = arg[1] + at[arg[0]] * arg[2];
    return ravel(x, own);
}

/* dim, start, end, step as given; start and length as Python's slice.indices gives them */
static const struct slice_case {
    int shape;
    int64_t dim, start, end, step, first, length;
} slices[] = {
    {0, 0, 1, 3, 1, 1, 2},         {0, -1, INT64_MIN, INT64_MIN, 2, 0, 2},
    {0, 1, -3, -1, 1, 1, 2},       {0, 1, 2, 1, 1, 2, 0},
    {6, 2, 1, 100, 3, 1, 2},       {6, 1, -100, 2, 1, 0, 2},
    {3, 0, 5, INT64_MAX, 7, 5, 2}, {5, 0, 0, 1, 1, 0, 1},
    {9, 0, 3, 30, 4, 3, 7},
};

static bool slice_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= (int)(sizeof slices / sizeof *slices)) return false;
    const struct slice_case *k = &slices[variant];
    const shape *s = &shapes[k->shape];
    int dim = (int)(k->dim < 0 ? k->dim + s->ndim : k->dim);
    int64_t part[RP_MAX_DIMS], arg[] = {dim, k->first, k->step};
    memcpy(part, s->size, sizeof part);
    part[dim] = k->length;
    ref_value *x = input(c, d, s->size, s->ndim), *src = op->flags ? input(c, d, part, s->ndim) : NULL;
    add_int(c, k->dim);
    add_int(c, k->start);
    add_int(c, k->end);
    add_int(c, k->step);
    if (!src) {
        take(c, part, s->ndim, from_slice, arg);
        return true;
    }
    ref_value *y = output(c, d, x->size, x->ndim); /* slice_scatter */
    memcpy(y->v, x->v, (size_t)x->n * sizeof *x->v);
    for (int64_t i = 0; i < src->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(src, i, at);
        y->v[from_slice(y, at, arg)] = src->v[i];
    }
    c->exact = true;
    return true;
}

static int64_t from_select(const ref_value *x, const int64_t *at, const int64_t *arg) /* dim, index */
{
    int64_t own[RP_MAX_DIMS];
    for (int d = 0, k = 0; d < x->ndim; d++) own[d] = d == arg[0] ? arg[1] : at[k++];
    return ravel(x, own);
}

static bool select_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][3] = {{0, 0, 1}, {0, -1, -1}, {6, 1, 2}, {3, 0, -17}, {8, 9, 1}, {9, 0, 36}};
    if (variant >= 6) return false;
    const shape *s = &shapes[cases[variant][0]];
    int64_t dim = cases[variant][1] < 0 ? cases[variant][1] + s->ndim : cases[variant][1], size[RP_MAX_DIMS];
    int64_t index = cases[variant][2] < 0 ? cases[variant][2] + s->size[dim] : cases[variant][2], arg[] = {dim, index};
    for (int k = 0, n = 0; k < s->ndim; k++) {
        if (k != dim) size[n++] = s->size[k];
    }
    ref_value *x = input(c, d, s->size, s->ndim), *src = op->flags ? input(c, d, size, s->ndim - 1) : NULL;
    add_int(c, cases[variant][1]);
    add_int(c, cases[variant][2]);
    if (!src) {
        take(c, size, s->ndim - 1, from_select, arg);
        return true;
    }
    ref_value *y = output(c, d, x->size, x->ndim); /* select_scatter */
    memcpy(y->v, x->v, (size_t)x->n * sizeof *x->v);
    for (int64_t i = 0; i < src->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(src, i, at);
        y->v[from_select(y, at, arg)] = src->v[i];
    }
    c->exact = true;
    return true;
}

static bool squeeze_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{7, 1}, {7, 0}, {1, 0}, {2, -1}, {6, -3}};
    if (variant >= 5) return false;
    const shape *s = &shapes[cases[variant][0]];
    int rank = op->flags ? s->ndim + 1 : s->ndim ? s->ndim : 1;
    int dim = cases[variant][1] < 0 ? cases[variant][1] + rank : cases[variant][1], n = 0;
    int64_t size[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim + (op->flags ? 1 : 0); k++) {
        if (op->flags)
            size[n++] = k == dim ? 1 : s->size[k - (k > dim)];
        else if (k != dim || s->size[k] != 1)
            size[n++] = s->size[k];
    }
    input(c, d, s->size, s->ndim);
    add_int(c, cases[variant][1]);
    take(c, size, n, NULL, NULL);
    return true;
}

static bool identity(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES) return false;
    input(c, d, shapes[variant].size, shapes[variant].ndim);
    take(c, shapes[variant].size, shapes[variant].ndim, NULL, NULL);
    (void)op;
    return true;
}

/* ---- joining and indexing */

static bool cat_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= 3 + TYPES) return false;
    static const int64_t parts[3][3] = {{2, 3, 2}, {2, 1, 2}, {2, 4, 2}};
    rp_dtype other = variant < 3 ? d : all_types[variant - 3];
    int dim = variant == 1 ? 0 : 1;
    int64_t size[3] = {2, 8, 2};
    if (dim == 0) size[0] = 6, size[1] = 3;
    rp_dtype type = ref_promote(d, other);
    if (variant == 2) { /* an old empty tensor takes no part */
        static const int64_t none[] = {0};
        input(c, d, none, 1);
    }
    for (int k = 0; k < 3; k++) input(c, k == 1 ? other : d, parts[dim == 0 ? 0 : k], 3);
    add_int(c, variant % 2 ? dim : dim - 3);
    ref_value *y = output(c, type, size, 3);
    int64_t offset = 0;
    for (int k = variant == 2; k < c->n_in; k++) {
        const ref_value *x = &c->in[k];
        for (int64_t i = 0; i < x->n; i++) {
            int64_t at[RP_MAX_DIMS];
            unravel(x, i, at);
            at[dim] += offset;
            y->v[ravel(y, at)] = ref_round(type, x->v[i]);
        }
        offset += x->size[dim];
    }
    (void)op;
    c->exact = true;
    return true;
}

/* index into a dim of n entries */
static ref_value *index_input(ref_case *c, rp_dtype d, const int64_t *size, int ndim, int64_t n) {
    ref_value *r = input(c, d, size, ndim);
    for (int64_t i = 0; i < r->n; i++) r->v[i] = (double)(noise(i, 77) % (unsigned)n);
    settle(c, r);
    return r;
}

static bool gather_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int n, dim;
        int64_t self[3], index[3];
    } cases[] = {{2, 0, {3, 4}, {5, 4}}, {2, 1, {3, 4}, {2, 6}}, {3, -2, {2, 3, 4}, {2, 7, 3}},
                 {1, 0, {9}, {4}},       {0, 0, {0}, {0}},       {2, 0, {3, 4}, {0, 4}}};
    if (variant >= 6) return false;
    int n = cases[variant].n, dim = cases[variant].dim < 0 ? cases[variant].dim + n : cases[variant].dim;
    ref_value *x = input(c, d, cases[variant].self, n);
    ref_value *index = index_input(c, variant % 2 ? RP_I32 : RP_I64, cases[variant].index, n, n ? x->size[dim] : 1);
    add_int(c, cases[variant].dim);
    ref_value *y = output(c, d, index->size, n);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        at[dim] = (int64_t)index->v[i];
        y->v[i] = x->v[n ? ravel(x, at) : 0];
    }
    (void)op;
    c->exact = true;
    return true;
}

static bool embedding_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t weight[] = {7, 5}, index_size[] = {3, 4};
    if (variant >= 6) return false;
    int n = variant / 2;
    ref_value *w = input(c, d, weight, 2);
    ref_value *index = index_input(c, variant % 2 ? RP_I32 : RP_I64, index_size, n, 7);
    int64_t size[] = {3, 4, 5};
    size[n] = 5;
    ref_value *y = output(c, d, size, n + 1);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = w->v[(int64_t)index->v[i / 5] * 5 + i % 5];
    (void)op;
    c->exact = true;
    return true;
}

static bool embedding_backward_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t grad_size[] = {40, 5}, out_size[] = {7, 5};
    if (variant >= 2 || !ref_is_float(d)) return false;
    ref_value *g = input(c, d, grad_size, 2), *index = index_input(c, variant ? RP_I32 : RP_I64, grad_size, 1, 7);
    add_int(c, 7);
    ref_value *y = output(c, d, out_size, 2);
    with_mag(y);
    for (int64_t i = 0; i < g->n; i++) {
        y->v[(int64_t)index->v[i / 5] * 5 + i % 5] += g->v[i];
        y->mag[(int64_t)index->v[i / 5] * 5 + i % 5] += fabs(g->v[i]);
    }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    (void)op;
    c->ulps = 8; /* 40 rows on 7 places */
    c->narrow = true;
    return true;
}

static bool scatter_add_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int n, dim;
        int64_t self[2], index[2], src[2];
    } cases[] = {{2, 0, {3, 4}, {5, 4}, {5, 4}},
                 {2, 1, {3, 4}, {2, 6}, {3, 7}},
                 {1, -1, {5}, {20}, {20}},
                 {0, 0, {0}, {0}, {0}},
                 {2, 0, {3, 4}, {0, 4}, {1, 4}}};
    if (variant >= 5 || d == RP_BOOL) return false;
    int n = cases[variant].n, dim = cases[variant].dim < 0 ? cases[variant].dim + n : cases[variant].dim;
    ref_value *x = input(c, d, cases[variant].self, n);
    ref_value *index = index_input(c, RP_I64, cases[variant].index, n, n ? x->size[dim] : 1);
    ref_value *src = input(c, d, cases[variant].src, n);
    add_int(c, cases[variant].dim);
    ref_value *y = output(c, d, x->size, n);
    with_mag(y);
    for (int64_t i = 0; i < x->n; i++) {
        y->v[i] = x->v[i];
        y->mag[i] = fabs(x->v[i]);
    }
    for (int64_t i = 0; i < index->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(index, i, at);
        double add = src->v[n ? ravel(src, at) : 0];
        at[dim] = (int64_t)index->v[i];
        int64_t o = n ? ravel(y, at) : 0;
        y->v[o] += add;
        y->mag[o] += fabs(add);
    }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    (void)op;
    c->exact = !ref_is_float(d);
    c->ulps = 10;
    c->narrow = true;
    return true;
}

/* Ties: the lower index comes first. */
static bool topk_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, dim, k;
        bool largest;
    } cases[] = {{0, -1, 2, true},  {0, 0, 3, false}, {6, 1, 1, true}, {9, 1, 10, true},
                 {9, 0, 37, false}, {1, 0, 1, true},  {3, 0, 0, true}};
    if (variant >= 7 || d == RP_BOOL) return false;
    const shape *s = &shapes[cases[variant].shape];
    int dim = cases[variant].dim < 0 ? cases[variant].dim + s->ndim : cases[variant].dim, k = cases[variant].k;
    ref_value *x = input(c, d, s->size, s->ndim);
    add_int(c, k);
    add_int(c, cases[variant].dim);
    add_bool(c, cases[variant].largest);
    add_bool(c, true);
    int64_t size[RP_MAX_DIMS], inner = s->ndim ? stride_of(x, dim) : 1, row = s->ndim ? s->size[dim] : 1;
    memcpy(size, s->size, sizeof size);
    if (s->ndim) size[dim] = k;
    ref_value *values = output(c, d, size, s->ndim), *indices = output(c, RP_I64, size, s->ndim);
    for (int64_t first = 0; first < x->n && values->n; first++) {
        if (first / inner % row) continue;
        uint8_t taken[64] = {0};
        for (int i = 0; i < k; i++) {
            int64_t best = -1;
            for (int64_t e = 0; e < row; e++) {
                if (taken[e]) continue;
                double u = x->v[first + e * inner], v = best < 0 ? 0 : x->v[first + best * inner];
                if (best < 0 || (cases[variant].largest ? u > v : u < v)) best = e;
            }
            taken[best] = 1;
            int64_t o = first / inner / row * inner * k + first % inner + i * inner;
            values->v[o] = x->v[first + best * inner];
            indices->v[o] = (double)best;
        }
    }
    (void)op;
    c->exact = true;
    return true;
}

static bool nonzero_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim);
    for (int64_t i = 0; i < x->n; i++) x->v[i] = noise(i, 5) % 3 == 0 ? 0 : x->v[i];
    settle(c, x);
    int64_t size[] = {0, x->ndim};
    for (int64_t i = 0; i < x->n; i++) size[0] += x->v[i] != 0;
    ref_value *y = output(c, RP_I64, size, 2);
    for (int64_t i = 0, o = 0; i < x->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(x, i, at);
        for (int k = 0; k < x->ndim && x->v[i] != 0; k++) y->v[o++] = (double)at[k];
    }
    (void)op;
    c->exact = true;
    return true;
}

/* ---- matrices */

/* out (rows, n) += sum over k; batch by batch */
static void product(const double *a, const double *b, ref_value *y, int64_t offset, int64_t m, int64_t k, int64_t n,
                    bool b_transposed) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, mag = 0;
            for (int64_t l = 0; l < k; l++) {
                double term = a[i * k + l] * (b_transposed ? b[j * k + l] : b[l * n + j]);
                sum += term;
                mag += fabs(term);
            }
            y->v[offset + i * n + j] = sum;
            y->mag[offset + i * n + j] = mag;
        }
    }
}

static bool matmul_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int na, nb, n;
        int64_t a[4], b[4], out[4];
    } cases[] = {{2, 2, 2, {3, 4}, {4, 5}, {3, 5}},
                 {3, 3, 3, {2, 3, 4}, {2, 4, 5}, {2, 3, 5}},
                 {2, 2, 2, {33, 70}, {70, 17}, {33, 17}},
                 {2, 2, 2, {3, 0}, {0, 5}, {3, 5}},
                 {2, 2, 2, {0, 4}, {4, 5}, {0, 5}},
                 {1, 1, 0, {7}, {7}, {0}},
                 {1, 2, 1, {4}, {4, 5}, {5}},
                 {2, 1, 1, {3, 4}, {4}, {3}},
                 {3, 2, 3, {2, 3, 4}, {4, 5}, {2, 3, 5}},
                 {4, 3, 4, {2, 1, 3, 4}, {5, 4, 2}, {2, 5, 3, 2}},
                 {1, 3, 2, {4}, {2, 4, 5}, {2, 5}},
                 {2, 3, 3, {3, 4}, {2, 4, 5}, {2, 3, 5}}};
    int last = op->flags ? 5 : 12; /* bmm: equal ranks and batch sizes */
    if (variant >= last || d == RP_BOOL || !ref_is_float(d)) return false;
    int na = cases[variant].na, nb = cases[variant].nb, n = cases[variant].n;
    ref_value *a = input(c, d, cases[variant].a, na), *b = input(c, d, cases[variant].b, nb);
    int64_t m = na == 1 ? 1 : a->size[na - 2], k = a->size[na - 1], w = nb == 1 ? 1 : b->size[nb - 1];
    ref_value *y = output(c, d, cases[variant].out, n);
    with_mag(y);
    int lead = n - (na > 1) - (nb > 1);
    int64_t batches = 1;
    for (int x = 0; x < lead; x++) batches *= y->size[x];
    for (int64_t i = 0; i < batches; i++) {
        int64_t ia = 0, ib = 0, rest = i, at[RP_MAX_DIMS];
        for (int x = lead - 1; x >= 0; x--) {
            at[x] = rest % y->size[x];
            rest /= y->size[x];
        }
        for (int x = 0; x < na - 2; x++) ia = ia * a->size[x] + (a->size[x] == 1 ? 0 : at[x + lead - (na - 2)]);
        for (int x = 0; x < nb - 2; x++) ib = ib * b->size[x] + (b->size[x] == 1 ? 0 : at[x + lead - (nb - 2)]);
        product(a->v + ia * m * k, b->v + ib * k * w, y, i * m * w, m, k, w, false);
    }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    c->ulps = 16;
    return true;
}

static bool linear_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t x_size[][3] = {{3, 4}, {4}, {2, 3, 4}, {0, 4}, {9, 33}};
    static const int ranks[] = {2, 1, 3, 2, 2};
    if (variant >= 10 || !ref_is_float(d)) return false;
    int which = variant / 2, n = ranks[which];
    int64_t k = x_size[which][n - 1], w_size[] = {5, k}, size[RP_MAX_DIMS];
    ref_value *x = input(c, d, x_size[which], n), *w = input(c, d, w_size, 2), *b = input(c, d, w_size, 1);
    c->absent[2] = variant % 2;
    memcpy(size, x_size[which], (size_t)n * sizeof *size);
    size[n - 1] = 5;
    ref_value *y = output(c, d, size, n);
    with_mag(y);
    product(x->v, w->v, y, 0, y->n / 5, k, 5, true);
    for (int64_t i = 0; i < y->n; i++) {
        double bias = c->absent[2] ? 0 : b->v[i % 5];
        y->v[i] = ref_round(d, y->v[i] + bias);
        y->mag[i] += fabs(bias);
    }
    (void)op;
    c->ulps = 16;
    return true;
}

enum { CONV_FORWARD, CONV_INPUT, CONV_WEIGHT };

static bool conv_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int64_t x[4], w[4], stride[2], padding[2], dilation[2], groups;
    } cases[] = {{{2, 3, 6, 7}, {4, 3, 3, 3}, {1, 1}, {0, 0}, {1, 1}, 1},
                 {{1, 4, 8, 8}, {6, 2, 3, 2}, {2, 1}, {1, 2}, {1, 2}, 2},
                 {{2, 3, 5, 5}, {3, 1, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 3},
                 {{0, 2, 4, 4}, {2, 2, 2, 2}, {1, 1}, {0, 0}, {1, 1}, 1},
                 {{1, 1, 3, 3}, {1, 1, 3, 3}, {1, 1}, {2, 2}, {1, 1}, 1}};
    if (variant >= 10 || !ref_is_float(d)) return false;
    int which = variant / 2;
    bool option = variant % 2; /* forward: with bias; all: no batch dim where the batch is one */
    const int64_t *x = cases[which].x, *w = cases[which].w, *st = cases[which].stride, *pad = cases[which].padding;
    const int64_t *dil = cases[which].dilation, groups = cases[which].groups;
    int64_t o[4] = {x[0], w[0], 0, 0};
    for (int k = 0; k < 2; k++) o[2 + k] = (x[2 + k] + 2 * pad[k] - dil[k] * (w[2 + k] - 1) - 1) / st[k] + 1;
    int skip = option && x[0] == 1;
    ref_value *xin = NULL, *win = NULL, *g = NULL, *bias = NULL, *y;
    if (op->flags == CONV_FORWARD) {
        xin = input(c, d, x + skip, 4 - skip);
        win = input(c, d, w, 4);
        bias = input(c, d, w, 1);
        c->absent[2] = !option;
    } else {
        g = input(c, d, o + skip, 4 - skip);
        if (op->flags == CONV_INPUT)
            win = input(c, d, w, 4);
        else
            xin = input(c, d, x + skip, 4 - skip);
        if (op->flags == CONV_INPUT)
            add_ints(c, x + skip, (size_t)(4 - skip));
        else
            add_ints(c, w, 4);
    }
    add_ints(c, st, 2);
    add_ints(c, pad, 2);
    add_ints(c, dil, 2);
    add_int(c, groups);
    y = op->flags == CONV_FORWARD ? output(c, d, o + skip, 4 - skip)
        : op->flags == CONV_INPUT ? output(c, d, x + skip, 4 - skip)
                                  : output(c, d, w, 4);
    with_mag(y);
    int64_t per_group = o[1] / groups;
    for (int64_t n = 0; n < o[0]; n++)
        for (int64_t oc = 0; oc < o[1]; oc++)
            for (int64_t oy = 0; oy < o[2]; oy++)
                for (int64_t ox = 0; ox < o[3]; ox++) {
                    int64_t io = ((n * o[1] + oc) * o[2] + oy) * o[3] + ox;
                    for (int64_t ic = 0; ic < w[1]; ic++)
                        for (int64_t ky = 0; ky < w[2]; ky++)
                            for (int64_t kx = 0; kx < w[3]; kx++) {
                                int64_t iy = oy * st[0] - pad[0] + ky * dil[0], ix = ox * st[1] - pad[1] + kx * dil[1];
                                if (iy < 0 || iy >= x[2] || ix < 0 || ix >= x[3]) continue;
                                int64_t channel = oc / per_group * w[1] + ic;
                                int64_t ixx = ((n * x[1] + channel) * x[2] + iy) * x[3] + ix;
                                int64_t iw = ((oc * w[1] + ic) * w[2] + ky) * w[3] + kx;
                                int64_t to = op->flags == CONV_FORWARD ? io : op->flags == CONV_INPUT ? ixx : iw;
                                double term = op->flags == CONV_FORWARD ? xin->v[ixx] * win->v[iw]
                                              : op->flags == CONV_INPUT ? g->v[io] * win->v[iw]
                                                                        : g->v[io] * xin->v[ixx];
                                y->v[to] += term;
                                y->mag[to] += fabs(term);
                            }
                    if (bias && !c->absent[2]) {
                        y->v[io] += bias->v[oc];
                        y->mag[io] += fabs(bias->v[oc]);
                    }
                }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    c->ulps = 16;
    return true;
}

/* ---- functions of one and two numbers */

static double f_neg(double x) { return -x; }
static double f_rsqrt(double x) { return 1 / sqrt(x); }
static double f_sigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }
static double f_sign(double x) { return (x > 0) - (x < 0); }
static double f_relu(double x) { return x != x ? x : x > 0 ? x : 0; }
static double f_gelu(double x) { return x * 0.5 * (1 + erf(x / sqrt(2))); }
static double f_not(double x) { return x == 0; }
static double f_id(double x) { return x; }
static double f_add(double x, double y) { return x + y; }
static double f_sub(double x, double y) { return x - y; }
static double f_mul(double x, double y) { return x * y; }
static double f_div(double x, double y) { return x / y; }
static double f_max(double x, double y) { return x != x || y != y ? NAN : x > y ? x : y; }
static double f_min(double x, double y) { return x != x || y != y ? NAN : x < y ? x : y; }
static double f_eq(double x, double y) { return x == y; }
static double f_ne(double x, double y) { return x != y; }
static double f_lt(double x, double y) { return x < y; }
static double f_le(double x, double y) { return x <= y; }
static double f_gt(double x, double y) { return x > y; }
static double f_ge(double x, double y) { return x >= y; }

static const ref_op ops[] = {
    {"add", binary, .f2 = f_add, .flags = ALPHA},
    {"sub", binary, .f2 = f_sub, .flags = ALPHA | NO_BOOL},
    {"mul", binary, .f2 = f_mul},
    {"div", binary, .f2 = f_div, .flags = TO_FLOAT},
    {"maximum", binary, .f2 = f_max, .flags = EXACT},
    {"minimum", binary, .f2 = f_min, .flags = EXACT},
    {"add_scalar", with_scalar, .f2 = f_add},
    {"mul_scalar", with_scalar, .f2 = f_mul},
    {"div_scalar", with_scalar, .f2 = f_div, .flags = TO_FLOAT},
    {"div_size", div_size_op, .flags = TO_FLOAT},
    {"is_class", is_class_op, .flags = 0},
    {"pow_scalar", power, .flags = 0},
    {"neg", unary, .f1 = f_neg, .flags = NO_BOOL | EXACT},
    {"sin", unary, .f1 = sin, .flags = TO_FLOAT},
    {"cos", unary, .f1 = cos, .flags = TO_FLOAT},
    {"exp", unary, .f1 = exp, .flags = TO_FLOAT},
    {"log", unary, .f1 = log, .flags = TO_FLOAT},
    {"sqrt", unary, .f1 = sqrt, .flags = TO_FLOAT},
    {"rsqrt", unary, .f1 = f_rsqrt, .flags = TO_FLOAT | POSITIVE},
    {"tanh", unary, .f1 = tanh, .flags = TO_FLOAT},
    {"sigmoid", unary, .f1 = f_sigmoid, .flags = TO_FLOAT},
    {"erf", unary, .f1 = erf, .flags = TO_FLOAT},
    {"abs", unary, .f1 = fabs, .flags = NO_BOOL | EXACT},
    {"sign", unary, .f1 = f_sign, .flags = EXACT},
    {"relu", unary, .f1 = f_relu, .flags = NO_BOOL | EXACT},
    {"gelu", unary, .f1 = f_gelu, .flags = FLOAT_ONLY | POSITIVE},
    {"where", where_op, .flags = 0},
    {"eq", binary, .f2 = f_eq, .flags = BOOL_RESULT},
    {"ne", binary, .f2 = f_ne, .flags = BOOL_RESULT},
    {"lt", binary, .f2 = f_lt, .flags = BOOL_RESULT},
    {"le", binary, .f2 = f_le, .flags = BOOL_RESULT},
    {"gt", binary, .f2 = f_gt, .flags = BOOL_RESULT},
    {"ge", binary, .f2 = f_ge, .flags = BOOL_RESULT},
    {"eq_scalar", with_scalar, .f2 = f_eq, .flags = BOOL_RESULT},
    {"lt_scalar", with_scalar, .f2 = f_lt, .flags = BOOL_RESULT},
    {"gt_scalar", with_scalar, .f2 = f_gt, .flags = BOOL_RESULT},
    {"logical_not", unary, .f1 = f_not, .flags = BOOL_RESULT},
    {"to_dtype", convert, .flags = 0},
    {"clone", unary, .f1 = f_id, .flags = EXACT},
    {"add_", binary, .f2 = f_add, .flags = ALPHA | INPLACE},
    {"sub_", binary, .f2 = f_sub, .flags = ALPHA | INPLACE | NO_BOOL},
    {"mul_", binary, .f2 = f_mul, .flags = INPLACE},
    {"div_", binary, .f2 = f_div, .flags = INPLACE | TO_FLOAT},
    {"add_scalar_", with_scalar, .f2 = f_add, .flags = INPLACE},
    {"mul_scalar_", with_scalar, .f2 = f_mul, .flags = INPLACE},
    {"neg_", unary, .f1 = f_neg, .flags = INPLACE | NO_BOOL | EXACT},
    {"exp_", unary, .f1 = exp, .flags = INPLACE | TO_FLOAT},
    {"sin_", unary, .f1 = sin, .flags = INPLACE | TO_FLOAT},
    {"tanh_", unary, .f1 = tanh, .flags = INPLACE | TO_FLOAT},
    {"relu_", unary, .f1 = f_relu, .flags = INPLACE | NO_BOOL | EXACT},
    {"copy_", copy_op, .flags = INPLACE},
    {"copy", copy_op, .flags = 0},
    {"fill_", fill_op, .flags = INPLACE},
    {"fill", fill_op, .flags = 0},
    {"full", factory, .flags = 0},
    {"zeros", factory, .flags = 0},
    {"ones", factory, .flags = 1},
    {"zeros_like", like, .flags = 0},
    {"ones_like", like, .flags = 1},
    {"arange", arange_op, .flags = 0},
    {"sum", reduction, .flags = SUM},
    {"mean", reduction, .flags = MEAN},
    {"amax", reduction, .flags = AMAX},
    {"softmax", softmax_op, .flags = 0},
    {"log_softmax", softmax_op, .flags = 1},
    {"layer_norm", layer_norm_op, .flags = 0},
    {"native_layer_norm", layer_norm_op, .flags = 1},
    {"cross_entropy", cross_entropy_op, .flags = 0},
    {"cross_entropy_rows", cross_entropy_op, .flags = 1},
    {"view", same_order, .flags = 1},
    {"reshape", same_order, .flags = 0},
    {"permute", permute_op, .flags = 0},
    {"transpose", transpose_op, .flags = 0},
    {"expand", expand_op, .flags = 0},
    {"slice", slice_op, .flags = 0},
    {"select", select_op, .flags = 0},
    {"unsqueeze", squeeze_op, .flags = 1},
    {"squeeze", squeeze_op, .flags = 0},
    {"detach", identity, .flags = 0},
    {"slice_scatter", slice_op, .flags = 1},
    {"select_scatter", select_op, .flags = 1},
    {"cat", cat_op, .flags = 0},
    {"gather", gather_op, .flags = 0},
    {"embedding", embedding_op, .flags = 0},
    {"embedding_backward", embedding_backward_op, .flags = 0},
    {"scatter_add", scatter_add_op, .flags = 0},
    {"topk", topk_op, .flags = 0},
    {"nonzero", nonzero_op, .flags = 0},
    {"matmul", matmul_op, .flags = 0},
    {"bmm", matmul_op, .flags = 1},
    {"linear", linear_op, .flags = 0},
    {"conv2d", conv_op, .flags = CONV_FORWARD},
    {"conv2d_input", conv_op, .flags = CONV_INPUT},
    {"conv2d_weight", conv_op, .flags = CONV_WEIGHT},
};

const ref_op *ref_at(size_t index) { return index < sizeof ops / sizeof *ops ? &ops[index] : NULL; }

const ref_op *ref_find(const char *name) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (strcmp(ops[i].name, name) == 0) return &ops[i];
    }
    return NULL;
}
