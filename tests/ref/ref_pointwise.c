/* Reference of pointwise ops, casts, copies and factories. */
#include "ref/ref_case.h"

static rp_dtype float_of(rp_dtype d) { return ref_is_float(d) ? d : RP_F32; }
static void finish(ref_case *c, const ref_op *op, rp_dtype computed) {
    c->exact = (op->flags & (EXACT | BOOL_RESULT)) || !ref_is_float(computed);
    c->ulps = op->flags & NEAR ? 8 : 4;
}
/* Can a result of type `from` be written into `to`? */
static bool castable(rp_dtype from, rp_dtype to) {
    return !(ref_is_float(from) && !ref_is_float(to)) && !(from != RP_BOOL && to == RP_BOOL);
}

static bool unary(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES || ((op->flags & NO_BOOL) && d == RP_BOOL) ||
        ((op->flags & FLOAT_ONLY) && !ref_is_float(d)) || ((op->flags & INT_ONLY) && ref_is_float(d)) ||
        ((op->flags & NO_U8) && d == RP_U8))
        return false;
    rp_dtype type = op->flags & TO_FLOAT ? float_of(d) : d;
    rp_dtype result = op->flags & BOOL_RESULT ? RP_BOOL : type;
    if ((op->flags & INPLACE) && !castable(result, d)) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim);
    if (op->flags & POSITIVE) {
        for (int64_t i = 0; i < x->n; i++) x->v[i] = fabs(x->v[i]);
    }
    if (variant == 3 && ref_is_float(d) && c->layout != REF_EXPANDED) { /* values that formulas forget */
        const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1, -1};
        for (size_t i = 0; i < sizeof special / sizeof *special; i++) x->v[i] = special[i];
    }
    ref_value *y = output(c, op->flags & INPLACE ? d : result, x->size, x->ndim);
    if (op->flags & NEAR) with_mag(y);
    for (int64_t i = 0; i < x->n; i++) {
        y->v[i] = ref_round(y->dtype, op->f1(ref_round(type, x->v[i])));
        if (op->flags & NEAR) y->mag[i] = fmax(1, fabs(y->v[i]));
    }
    finish(c, op, type);
    return true;
}

/* Does a binary op refuse operands of this type? */
static bool refuses(const ref_op *op, rp_dtype type, bool same) {
    return ((op->flags & NO_BOOL) && type == RP_BOOL) || ((op->flags & FLOAT_ONLY) && !ref_is_float(type)) ||
           ((op->flags & INT_ONLY) && ref_is_float(type)) || ((op->flags & SAME) && !same);
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
    bool same = n == a->ndim && memcmp(size, a->size, (size_t)n * sizeof *size) == 0;
    bool refused =
        op->flags & ALPHA ? (op->flags & NO_BOOL) && (d == RP_BOOL || other == RP_BOOL) : refuses(op, type, d == other);
    if (op->flags & TO_FLOAT) type = float_of(type);
    if (op->flags & TO_F64) type = RP_F64;
    if (op->flags & DIVIDES && !ref_is_float(type)) {
        for (int64_t i = 0; i < b->n; i++) b->v[i] = b->v[i] != 0 ? b->v[i] : b->dtype == RP_BOOL ? 1 : 3;
    }
    if (op->flags & POWER && !ref_is_float(type)) { /* results that a double holds; narrow types wrap them */
        for (int64_t i = 0; i < a->n; i++) a->v[i] = fmod(a->v[i], 8);
        for (int64_t i = 0; i < b->n; i++) b->v[i] = fmod(b->v[i], 8);
    }
    rp_dtype result = op->flags & BOOL_RESULT ? RP_BOOL : type;
    if (((op->flags & INPLACE) && (!same || !castable(result, d) || (c->layout == REF_EXPANDED))) || refused) {
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
    if (op->flags & INPLACE) result = d;
    ref_value *y = output(c, result, size, n);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        double u = ref_round(type, broadcast_at(a, at, n)), v = ref_round(type, broadcast_at(b, at, n));
        double r = op->f2(u, type == RP_BOOL ? (alpha != 0) * v : alpha * v);
        if (!ref_is_float(type) && isinf(r)) r = 0; /* 0 ** -1 of integers */
        if (type == RP_BOOL && !(op->flags & BOOL_RESULT)) r = r != 0;
        y->v[i] = ref_round(result, r);
        y->mag[i] = op->flags & ALPHA ? fabs(u) + fabs(alpha * v) : op->flags & NEAR ? fmax(1, fabs(r)) : fabs(r);
    }
    finish(c, op, type);
    return true;
}

static const rp_scalar_kind scalar_kinds[] = {RP_SCALAR_I64, RP_SCALAR_F64, RP_SCALAR_BOOL};

/* Variants: shapes x kinds of number. */
bool ref_with_scalar(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES * 3) return false;
    const shape *s = &shapes[variant / 3];
    rp_scalar_kind kind = scalar_kinds[variant % 3];
    rp_scalar k = kind == RP_SCALAR_I64 ? rp_i64(3) : kind == RP_SCALAR_F64 ? rp_f64(1.5) : rp_bool(true);
    ref_value *x = input(c, d, s->size, s->ndim);
    const ref_value *one[] = {x};
    rp_dtype type = ref_result_type(one, 1, kind);
    const rp_dtype number_type = type;
    if (op->flags & TO_FLOAT) type = float_of(type);
    rp_dtype result = op->flags & BOOL_RESULT ? RP_BOOL : type;
    bool refused = op->flags & ALPHA ? (op->flags & NO_BOOL) && (d == RP_BOOL || kind == RP_SCALAR_BOOL)
                                     : refuses(op, number_type, true);
    if (refused || ((op->flags & INPLACE) && (!castable(result, d) || c->layout == REF_EXPANDED))) {
        c->passed_over = true;
        return true;
    }
    add_scalar(c, k);
    double alpha = (op->flags & ALPHA) && type != RP_BOOL && variant % 2 ? 2 : 1;
    if (alpha != 1) add_scalar(c, rp_i64((int64_t)alpha));
    ref_value *y = output(c, op->flags & INPLACE ? d : result, x->size, x->ndim);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) {
        double u = ref_round(type, x->v[i]), r = op->f2(u, alpha * number(k));
        y->v[i] = ref_round(y->dtype, r);
        y->mag[i] = fabs(u) + fabs(alpha * number(k)) + fabs(r);
    }
    finish(c, op, type);
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
    if ((!ref_is_float(type) && e < 0) ||
        ((op->flags & INPLACE) && (!castable(type, d) || c->layout == REF_EXPANDED))) {
        c->passed_over = true;
        return true;
    }
    add_scalar(c, k);
    ref_value *y = output(c, op->flags & INPLACE ? d : type, x->size, x->ndim);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(y->dtype, pow(ref_round(type, x->v[i]), e));
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

static double f_sign(double x) { return (x > 0) - (x < 0); }
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

/* psi for x > 0 and its reflection; the inverse of erf by Newton's steps. */
static double psi(double x) {
    if (x == 0) return copysign(INFINITY, -x);
    if (x < 0) return x == floor(x) ? NAN : psi(1 - x) - M_PI / tan(M_PI * (x - rint(x)));
    long double sum = 0, z;
    long double w = x;
    for (; w < 30; w++) sum += 1 / w;
    z = 1 / (w * w);
    return (double)(logl(w) - 0.5L / w - z * (1 / 12.0L - z * (1 / 120.0L - z * (1 / 252.0L - z / 240))) - sum);
}
static double inverse_erf(double y) {
    const double a = fabs(y);
    if (!(a < 1)) return a == 1 ? copysign(INFINITY, y) : NAN;
    double x = a > 0.5 ? sqrt(-log1p(-a)) : a * 0.886226925452758;
    for (int k = 0; k < 60; k++) x -= (a > 0.5 ? (1 - a) - erfc(x) : erf(x) - a) * 0.886226925452758 * exp(x * x);
    return copysign(x, y);
}
static double divisor(double x, double y) { /* the greatest common one */
    double a = fabs(x), b = fabs(y);
    while (b != 0) {
        const double r = fmod(a, b);
        a = b;
        b = r;
    }
    return a;
}
static double python_mod(double x, double y) {
    const double r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static double python_floor(double x, double y) {
    if (y == 0) return x / y;
    const double r = fmod(x, y), q = (x - r) / y - (r != 0 && (y < 0) != (r < 0));
    return q == 0 ? copysign(0, x / y) : floor(q) + (q - floor(q) > 0.5);
}
#define BITS(op) ((double)((int64_t)x op(int64_t) y))

#define BINARY(op, range, flags_, value)                                                                               \
    static double of_##op(double x, double y) { return value; }
#include "ref/binary.def"
#undef BINARY

/* The next number of the type in the direction of y: the first step, from small ones, that does not round back. */
static bool nextafter_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= PAIRS || !ref_is_float(d) || (op->flags & INPLACE && variant > 0)) return false;
    ref_value *a = input(c, d, pairs[variant][0].size, pairs[variant][0].ndim);
    ref_value *b = input(c, d, pairs[variant][1].size, pairs[variant][1].ndim);
    int64_t size[RP_MAX_DIMS];
    int n = broadcast_size(a, b, size);
    if (a->n > 4) a->v[0] = 0, a->v[1] = 1, a->v[2] = -2, a->v[3] = 0x1p-14;
    settle(c, a);
    c->passed_over = (op->flags & INPLACE) && c->layout == REF_EXPANDED;
    ref_value *y = output(c, d, size, n);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        const double from = broadcast_at(a, at, n), to = broadcast_at(b, at, n);
        double next = d == RP_F64 ? nextafter(from, to) : from;
        for (double step = 0x1p-150; next == from && from != to; step *= 2)
            next = ref_round(d, from + (to > from ? step : -step) * 1.001);
        y->v[i] = next;
    }
    c->exact = true;
    return true;
}

/* self (2, 3, 4) with a row and an element: lerp, addcmul, addcdiv. */
static bool ternary(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t size[] = {2, 3, 4};
    const bool lerp = op->name[0] == 'l', divides = strncmp(op->name, "addcdiv", 7) == 0,
               number_last = strstr(op->name, "scalar");
    if (variant >= 6 || d == RP_BOOL || ((lerp || divides) && !ref_is_float(d))) return false;
    if ((op->flags & INPLACE) && c->layout == REF_EXPANDED) return false;
    ref_value *a = input(c, d, size, 3), *b = input(c, d, size + variant % 3, 3 - variant % 3), *w = NULL;
    double k = variant % 2 ? 0.25 : 0.75;
    if (!number_last) w = input(c, d, size + 2, variant % 2 ? 1 : 0);
    if (lerp && number_last) add_scalar(c, rp_f64(k));
    const double value = variant % 2 ? 2 : 1;
    if (!lerp) add_scalar(c, rp_i64((int64_t)value));
    ref_value *y = output(c, d, size, 3);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        const double s = a->v[i], t = broadcast_at(b, at, 3), u = w ? broadcast_at(w, at, 3) : k;
        const double part = lerp ? u * (t - s) : divides ? value * t / u : value * t * u;
        y->v[i] = ref_round(d, s + part);
        y->mag[i] = fabs(s) + fabs(part) + (lerp ? fabs(u) * (fabs(t) + fabs(s)) : 0);
    }
    finish(c, op, d);
    return true;
}

static bool masked_fill_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t size[] = {2, 3, 4};
    if (variant >= 4 || ((op->flags & INPLACE) && c->layout == REF_EXPANDED)) return false;
    ref_value *a = input(c, d, size, 3), *mask = input(c, RP_BOOL, size + variant % 3, 3 - variant % 3), *w = NULL;
    const rp_scalar k = d == RP_BOOL ? rp_bool(true) : variant % 2 ? rp_i64(3) : rp_f64(2.75);
    if (strstr(op->name, "scalar"))
        add_scalar(c, k);
    else
        w = input(c, all_types[variant * 2 % TYPES], size, 0);
    ref_value *y = output(c, d, size, 3);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        y->v[i] = broadcast_at(mask, at, 3) != 0 ? ref_round(d, w ? w->v[0] : number(k)) : a->v[i];
    }
    c->exact = true;
    return true;
}

/* By series: the sum of n! (x + k)^-(n + 1), whose rest is an integral. */
static bool polygamma_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= 3) return false;
    ref_value *x = input(c, d, shapes[0].size, 2);
    for (int64_t i = 0; i < x->n; i++) x->v[i] = d == RP_BOOL ? 1 : fabs(x->v[i]) + 1;
    settle(c, x);
    const rp_dtype type = float_of(d);
    add_int(c, variant);
    ref_value *y = output(c, type, x->size, 2);
    for (int64_t i = 0; i < x->n; i++) {
        const double v = ref_round(type, x->v[i]);
        long double sum = 0;
        const int n = variant;
        for (int k = 0; k < 4000; k++) sum += powl(v + k, -n - 1);
        const long double w = v + 4000;
        if (n) sum += powl(w, -n) / n + powl(w, -n - 1) / 2 + (n + 1) * powl(w, -n - 2) / 12;
        y->v[i] = ref_round(type, n ? (double)((n % 2 ? 1 : -1) * tgammal(n + 1) * sum) : psi(v));
    }
    (void)op;
    c->ulps = 40;
    return true;
}

static bool float_power_number(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= 2) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim);
    add_scalar(c, variant ? rp_i64(3) : rp_f64(2.5));
    ref_value *y = output(c, RP_F64, x->size, x->ndim);
    for (int64_t i = 0; i < x->n; i++) y->v[i] = pow(x->v[i], variant ? 3 : 2.5);
    (void)op;
    c->ulps = 8;
    return true;
}

static bool prelu_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t size[] = {2, 3, 4}, one[] = {1};
    if (variant >= 2 || !ref_is_float(d)) return false;
    ref_value *x = input(c, d, size, 3), *w = input(c, d, variant ? size + 1 : one, 1), *y = output(c, d, size, 3);
    for (int64_t i = 0; i < y->n; i++) {
        const double v = x->v[i];
        y->v[i] = v > 0 ? v : ref_round(d, v * w->v[variant ? i / 4 % 3 : 0]);
    }
    (void)op;
    c->exact = true;
    return true;
}

static bool glu_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t size[] = {3, 4, 6}, half[] = {3, 2, 6};
    if (variant >= 2 || !ref_is_float(d)) return false;
    ref_value *x = input(c, d, size, 3);
    add_int(c, variant ? 1 : -1);
    ref_value *y = variant ? output(c, d, half, 3) : output(c, d, (const int64_t[]){3, 4, 3}, 3);
    for (int64_t i = 0; i < y->n; i++) {
        const int64_t inner = variant ? 12 : 3, row = i / inner * 2 * inner + i % inner;
        y->v[i] = ref_round(d, x->v[row] * ref_round(d, 1 / (1 + exp(-x->v[row + inner]))));
    }
    (void)op;
    c->ulps = 8;
    return true;
}

static bool nan_to_num_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= 2 || ((op->flags & INPLACE) && c->layout == REF_EXPANDED)) return false;
    ref_value *x = input(c, d, shapes[6].size, shapes[6].ndim);
    if (ref_is_float(d)) x->v[0] = NAN, x->v[1] = INFINITY, x->v[2] = -INFINITY;
    settle(c, x);
    const double most = d == RP_F64   ? 0x1.fffffffffffffp1023
                        : d == RP_F32 ? 0x1.fffffep127
                        : d == RP_F16 ? 65504
                                      : 0x1.fep127;
    for (int k = 0; k < 3; k++) add_scalar(c, variant ? rp_f64(k + 1) : rp_none());
    ref_value *y = output(c, d, x->size, x->ndim);
    for (int64_t i = 0; i < x->n; i++) {
        const double v = x->v[i];
        y->v[i] = v != v           ? (variant ? 1 : 0)
                  : v == INFINITY  ? (variant ? 2 : most)
                  : v == -INFINITY ? (variant ? 3 : -most)
                                   : v;
    }
    c->exact = true;
    return true;
}

static bool threshold_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES || d == RP_BOOL || ((op->flags & INPLACE) && c->layout == REF_EXPANDED)) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim), *y = output(c, d, x->size, x->ndim);
    add_scalar(c, rp_i64(1));
    add_scalar(c, rp_i64(7));
    for (int64_t i = 0; i < x->n; i++) y->v[i] = x->v[i] <= 1 ? 7 : x->v[i];
    c->exact = true;
    return true;
}

static double f_not_bits(double x) { return -x - 1; }
static bool bitwise_not_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES || ref_is_float(d) || ((op->flags & INPLACE) && c->layout == REF_EXPANDED)) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim), *y = output(c, d, x->size, x->ndim);
    for (int64_t i = 0; i < x->n; i++)
        y->v[i] = d == RP_BOOL ? x->v[i] == 0 : d == RP_U8 ? 255 - x->v[i] : f_not_bits(x->v[i]);
    c->exact = true;
    return true;
}

#define UNARY(op, range, flags_, value)                                                                                \
    static double at_##op(double x) { return value; }
#include "ref/unary.def"
#undef UNARY

static const ref_op ops[] = {
#define UNARY(op, range, flags_, value) {#op, unary, .f1 = at_##op, .flags = flags_},
#include "ref/unary.def"
#undef UNARY
#define BINARY(op, range, flags_, value) {#op, binary, .f2 = of_##op, .flags = flags_},
#include "ref/binary.def"
#undef BINARY
    {"nextafter", nextafter_op, .flags = 0},
    {"lerp", ternary, .flags = 0},
    {"lerp_scalar", ternary, .flags = 0},
    {"addcmul", ternary, .flags = 0},
    {"addcdiv", ternary, .flags = 0},
    {"masked_fill", masked_fill_op, .flags = 0},
    {"masked_fill_scalar", masked_fill_op, .flags = 0},
    {"polygamma", polygamma_op, .flags = 0},
    {"float_power_scalar", float_power_number, .flags = 0},
    {"prelu", prelu_op, .flags = 0},
    {"glu", glu_op, .flags = 0},
    {"nan_to_num", nan_to_num_op, .flags = 0},
    {"threshold", threshold_op, .flags = 0},
    {"bitwise_not", bitwise_not_op, .flags = 0},
    {"add", binary, .f2 = f_add, .flags = ALPHA},
    {"sub", binary, .f2 = f_sub, .flags = ALPHA | NO_BOOL},
    {"mul", binary, .f2 = f_mul},
    {"div", binary, .f2 = f_div, .flags = TO_FLOAT},
    {"maximum", binary, .f2 = f_max, .flags = EXACT},
    {"minimum", binary, .f2 = f_min, .flags = EXACT},
    {"pow_scalar", power, .flags = 0},
    {"sign", unary, .f1 = f_sign, .flags = EXACT},
    {"where", where_op, .flags = 0},
    {"eq", binary, .f2 = f_eq, .flags = BOOL_RESULT},
    {"ne", binary, .f2 = f_ne, .flags = BOOL_RESULT},
    {"lt", binary, .f2 = f_lt, .flags = BOOL_RESULT},
    {"le", binary, .f2 = f_le, .flags = BOOL_RESULT},
    {"gt", binary, .f2 = f_gt, .flags = BOOL_RESULT},
    {"ge", binary, .f2 = f_ge, .flags = BOOL_RESULT},
    {"logical_not", unary, .f1 = f_not, .flags = BOOL_RESULT},
    {"to_dtype", convert, .flags = 0},
    {"clone", unary, .f1 = f_id, .flags = EXACT},
    {"copy", copy_op, .flags = 0},
    {"fill", fill_op, .flags = 0},
    {"full", factory, .flags = 0},
    {"zeros", factory, .flags = 0},
    {"ones", factory, .flags = 1},
    {"zeros_like", like, .flags = 0},
    {"ones_like", like, .flags = 1},
    {"arange", arange_op, .flags = 0},
};

const ref_family ref_pointwise = {ops, sizeof ops / sizeof *ops};
