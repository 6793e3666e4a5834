/* Functions and scans that a language lacks, of operations that it has: the same for all emitters. Functions of the mathematical library
   go by float64, as the library's own do (kernel/cpu/vmath.h), so that float32 is theirs nearly everywhere. What a choice leaves out may
   be anything: NaN and infinities there are nobody's. */
#include <math.h>
#include <string.h>

#include "doors/lower.h"

typedef rp__put_val val;

static val num(rp__emitter *e, val like, double value) { return rp__put_number(e, rp__put_dtype(e, like), value); }
static val add(rp__emitter *e, val a, val b) { return RP__EMIT2(e, ADD, a, b); }
static val sub(rp__emitter *e, val a, val b) { return RP__EMIT2(e, SUB, a, b); }
static val mul(rp__emitter *e, val a, val b) { return RP__EMIT2(e, MUL, a, b); }
static val over(rp__emitter *e, val a, val b) { return RP__EMIT2(e, DIV, a, b); }
static val neg(rp__emitter *e, val a) { return RP__EMIT1(e, NEG, a); }
static val add_number(rp__emitter *e, val a, double b) { return add(e, a, num(e, a, b)); }
static val mul_number(rp__emitter *e, val a, double b) { return mul(e, a, num(e, a, b)); }
static val from_number(rp__emitter *e, double b, val a) { return sub(e, num(e, a, b), a); }
static val less(rp__emitter *e, val a, double b) { return RP__EMIT_IS(e, LT, a, num(e, a, b)); }
static val more(rp__emitter *e, val a, double b) { return RP__EMIT_IS(e, LT, num(e, a, b), a); }
static val is(rp__emitter *e, val a, double b) { return RP__EMIT_IS(e, EQ, a, num(e, a, b)); }
static val is_whole(rp__emitter *e, val a) { return RP__EMIT_IS(e, EQ, a, RP__EMIT1(e, FLOOR, a)); }
static val pick(rp__emitter *e, val c, val a, val b) { return rp__put_where(e, c, a, b); }
static val pick_number(rp__emitter *e, val c, double a, val b) { return pick(e, c, num(e, b, a), b); }

/* c[0] + c[1] x + ... */
static val polynomial(rp__emitter *e, val x, const double *c, unsigned n) {
    val y = num(e, x, c[--n]);
    while (n-- > 0) y = add_number(e, mul(e, y, x), c[n]);
    return y;
}

/* ---- erfinv: the normal distribution's quantiles, by three ratios of polynomials (M. Wichura, Algorithm AS 241, 1988) */

static val ratio(rp__emitter *e, val x, const double c[2][8]) {
    return over(e, polynomial(e, x, c[0], 8), polynomial(e, x, c[1], 8));
}

static val erfinv_of(rp__emitter *e, val x) {
    static const double middle[2][8] = {
        {3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727},
        {1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077, 21213.794301586595867,
         39307.895800092710610, 28729.085735721942674, 5226.4952788528545610}};
    static const double side[2][8] = {
        {1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
         1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
        {1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
         1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}};
    static const double end[2][8] = {
        {6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 2.96560571828504891230e-1,
         2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
        {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
         7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}};
    const double root_of_half = 0.70710678118654752440;
    const val a = RP__EMIT1(e, ABS, x), q = mul_number(e, a, 0.5), tail = from_number(e, 0.5, q),
              near = mul(e, q, ratio(e, from_number(e, 0.180625, mul(e, q, q)), middle)),
              r = RP__EMIT1(e, SQRT, neg(e, RP__EMIT1(e, LOG, tail))),
              far = pick(e, more(e, r, 5), ratio(e, add_number(e, r, -5), end), ratio(e, add_number(e, r, -1.6), side));
    val y = mul_number(e, pick(e, more(e, q, 0.425), far, near), root_of_half);
    y = pick_number(e, is(e, a, 1), INFINITY, y);
    y = pick_number(e, more(e, a, 1), NAN, y);
    y = pick(e, less(e, x, 0), neg(e, y), y);
    return pick(e, RP__EMIT1(e, ISNAN, x), x, y);
}

/* ---- gamma: Stirling's series from 8 and 10 on, reached by recurrence; below 0 by reflection */

static const double pi = 3.14159265358979323846;

/* sin(pi x) and cos(pi x) but for a sign that both share */
static val turn_of(rp__emitter *e, val x) { return mul_number(e, sub(e, x, RP__EMIT1(e, RINT, x)), pi); }

static val lgamma_of(rp__emitter *e, val x) {
    static const double series[] = {1.0 / 12,   -1.0 / 360,      1.0 / 1260, -1.0 / 1680,
                                    1.0 / 1188, -691.0 / 360360, 1.0 / 156,  -3617.0 / 122400};
    const double constant = 0.41893853320467274178; /* (log(2 pi) - 1) / 2 */
    const val low = less(e, x, 0), a = pick(e, low, from_number(e, 1, x), x), small = less(e, a, 8);
    val product = a;
    for (int k = 1; k < 8; k++) product = mul(e, product, add_number(e, a, k));
    const val b = pick(e, small, add_number(e, a, 8), a), i = over(e, num(e, b, 1), b),
              rest = mul(e, i, polynomial(e, mul(e, i, i), series, 8)),
              main = mul(e, add_number(e, b, -0.5), add_number(e, RP__EMIT1(e, LOG, b), -1));
    val y = add_number(e, add(e, main, rest), constant);
    y = pick(e, small, sub(e, y, RP__EMIT1(e, LOG, product)), y);
    const val sine = RP__EMIT1(e, ABS, RP__EMIT1(e, SIN, turn_of(e, x))),
              size = pick(e, more(e, x, -0x1p-30), RP__EMIT1(e, ABS, x), mul_number(e, sine, 1 / pi)),
              turned = neg(e, add(e, RP__EMIT1(e, LOG, size), y));
    y = pick(e, low, pick_number(e, is_whole(e, x), INFINITY, turned), y);
    y = pick_number(e, is(e, RP__EMIT1(e, ABS, x), INFINITY), INFINITY, y);
    return pick(e, RP__EMIT1(e, ISNAN, x), x, y);
}

static val digamma_of(rp__emitter *e, val x) {
    static const double series[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12};
    const val low = less(e, x, 0), a = pick(e, low, from_number(e, 1, x), x), small = less(e, a, 10),
              one = num(e, a, 1), b = pick(e, small, add_number(e, a, 10), a), i = over(e, one, b), z = mul(e, i, i);
    val sum = over(e, one, a);
    for (int k = 1; k < 10; k++) sum = add(e, sum, over(e, one, add_number(e, a, k)));
    val y = sub(e, RP__EMIT1(e, LOG, b), mul_number(e, i, 0.5));
    y = sub(e, y, mul(e, z, polynomial(e, z, series, 7)));
    y = pick(e, small, sub(e, y, sum), y);
    const val turn = turn_of(e, x), slope = over(e, RP__EMIT1(e, COS, turn), RP__EMIT1(e, SIN, turn)),
              turned = sub(e, y, mul_number(e, slope, pi));
    y = pick(e, low, pick_number(e, is_whole(e, x), NAN, turned), y);
    y = pick(e, is(e, x, INFINITY), x, y);
    return pick(e, is(e, x, 0), neg(e, over(e, one, x)), y); /* a pole with the sign of -x */
}

/* ---- Hurwitz' zeta: ten terms and the Euler-Maclaurin sum of the others */

static val zeta_above(rp__emitter *e, val s, val q) {
    /* B(2k) / (2k)! */
    static const double factor[] = {1.0 / 12,          -1.0 / 720,
                                    1.0 / 30240,       -1.0 / 1209600,
                                    1.0 / 47900160,    -691.0 / 1307674368000.0,
                                    1.0 / 74724249600, -3617.0 / 10670622842880000.0};
    const val by = neg(e, s), w = add_number(e, q, 10), z = over(e, num(e, w, 1), mul(e, w, w));
    val sum = RP__EMIT2(e, POW, q, by);
    for (int k = 1; k < 10; k++) sum = add(e, sum, RP__EMIT2(e, POW, add_number(e, q, k), by));
    const val b = RP__EMIT2(e, POW, w, by),
              tail = pick(e, more(e, b, 0x1p-1000), mul(e, b, w), RP__EMIT2(e, POW, w, from_number(e, 1, s)));
    val rest = add(e, over(e, tail, add_number(e, s, -1)), mul_number(e, b, 0.5)), term = over(e, mul(e, b, s), w);
    for (int k = 0; k < 8; k++) {
        rest = add(e, rest, mul_number(e, term, factor[k]));
        term = mul(e, mul(e, term, add_number(e, s, 2 * k + 1)), mul(e, add_number(e, s, 2 * k + 2), z));
    }
    return add(e, sum, pick_number(e, RP__EMIT1(e, ISNAN, rest), 0, rest)); /* what underflowed times what overflowed */
}

static val zeta_of(rp__emitter *e, val s, val q) {
    const val floor = RP__EMIT1(e, FLOOR, q), part = sub(e, q, floor), other = from_number(e, 1, part),
              ends = sub(e, zeta_above(e, s, other), zeta_above(e, s, sub(e, other, floor))),
              even = is_whole(e, mul_number(e, s, 0.5)),
              under = add(e, zeta_above(e, s, part), pick(e, even, ends, neg(e, ends))),
              low = RP__EMIT_IS(e, LE, q, num(e, q, 0)),
              turned = pick_number(e, is_whole(e, q), INFINITY, pick(e, is_whole(e, s), under, num(e, under, NAN)));
    val y = pick(e, low, turned, zeta_above(e, s, q));
    y = pick_number(e, is(e, q, INFINITY), 0, y);
    y = pick(e, more(e, s, 1), y, pick(e, is(e, s, 1), num(e, y, INFINITY), num(e, y, NAN)));
    const val both = add(e, s, q);
    return pick(e, RP__EMIT1(e, ISNAN, both), both, y);
}

/* ---- nextafter: |a| and a little more than half a unit of its, rounded (Rump, Zimmermann, Boldo, Melquiond, Computing predecessor and
   successor in rounding to nearest, 2009); small numbers by that of a multiple, the smallest by the unit that they share */

static val nextafter_of(rp__emitter *e, val a, val b) {
    const bool wide = rp__put_dtype(e, a) == RP_F64;
    const double u = wide ? 0x1p-53 : 0x1p-24, phi = u * (1 + 2 * u), unit = wide ? 0x1p-1074 : 0x1p-149,
                 scale = wide ? 0x1p200 : 0x1p64, few = wide ? 0x1p-900 : 0x1p-64, least = wide ? 0x1p-1021 : 0x1p-125,
                 most = wide ? 0x1.fffffffffffffp1023 : 0x1.fffffep127;
    const val size = RP__EMIT1(e, ABS, a), none = is(e, size, 0), small = less(e, size, few),
              up = RP__EMIT_IS(e, LT, a, b), positive = more(e, a, 0),
              out = RP__EMIT1(e, NOT, RP__EMIT2(e, XOR, up, positive)),
              x = pick(e, small, mul_number(e, size, scale), size), step = mul_number(e, x, phi),
              by = pick(e, out, step, neg(e, step)), moved = add(e, x, by),
              least_step = pick(e, out, num(e, size, unit), num(e, size, -unit));
    val y = pick(e, small, mul_number(e, moved, 1 / scale), moved);
    y = pick(e, less(e, size, least), add(e, size, least_step), y);
    y = pick_number(e, is(e, size, INFINITY), most, y);
    y = pick(e, positive, y, neg(e, y));
    y = pick(e, none, pick(e, up, num(e, y, unit), num(e, y, -unit)), y);
    const val both = add(e, a, b);
    y = pick(e, RP__EMIT1(e, ISNAN, both), both, y);
    return pick(e, RP__EMIT_IS(e, EQ, a, b), b, y);
}

/* ---- the greatest common divisor: Euclid's, of all elements at once, until the last is done */

static val some_left(rp__emitter *e, void *ctx, const val *state) {
    (void)ctx;
    const val left = RP__EMIT_IS(e, NE, state[1], num(e, state[1], 0));
    const unsigned ndim = e->failed ? 0 : e->types[left].ndim;
    return rp__lower_single(e, rp__put_reduce(e, RP__REDUCE_ANY, left, (1u << ndim) - 1));
}

static void divide(rp__emitter *e, void *ctx, const val *state, val *next) {
    (void)ctx;
    const val done = is(e, state[1], 0);
    next[0] = pick(e, done, state[0], state[1]);
    next[1] = pick_number(e, done, 0, RP__EMIT2(e, REMAINDER, state[0], pick_number(e, done, 1, state[1])));
}

static val gcd_of(rp__emitter *e, val a, val b) {
    const val both = add(e, a, b); /* for its sizes */
    if (e->failed) return RP__EMIT_NONE;
    const rp__put_type t = e->types[both];
    const val first[] = {rp__put_expand(e, RP__EMIT1(e, ABS, a), t.size, t.ndim),
                         rp__put_expand(e, RP__EMIT1(e, ABS, b), t.size, t.ndim)};
    val out[2];
    const rp__put_loop loop = {.n = 2, .go = some_left, .turn = divide};
    rp__put_repeat(e, &loop, first, out);
    return e->failed ? RP__EMIT_NONE : out[0];
}

/* ---- */

static val by_f64(rp__emitter *e, val (*of)(rp__emitter *, val), val a) {
    const rp_dtype dtype = rp__put_dtype(e, a);
    return rp__put_cast(e, of(e, rp__put_cast(e, a, RP_F64)), dtype);
}

rp__put_val rp__put_special(rp__emitter *e, rp__prim op, rp__put_val a, rp__put_val b) {
    switch (op) {
    case RP__ERFINV: return by_f64(e, erfinv_of, a);
    case RP__LGAMMA: return by_f64(e, lgamma_of, a);
    case RP__DIGAMMA: return by_f64(e, digamma_of, a);
    case RP__ZETA:
        return rp__put_cast(e, zeta_of(e, rp__put_cast(e, a, RP_F64), rp__put_cast(e, b, RP_F64)), rp__put_dtype(e, a));
    case RP__NEXTAFTER: return nextafter_of(e, a, b);
    case RP__GCD: return gcd_of(e, a, b);
    default: rp__put_lacks(e, "it has no form of a step of it"); return RP__EMIT_NONE;
    }
}

/* ---- scans: after the step of s each element has what the 2 s up to it give */

static val logaddexp_of(rp__emitter *e, val a, val b) {
    const val high = RP__EMIT2(e, MAX, a, b), low = RP__EMIT2(e, MIN, a, b),
              sum = add(e, high, RP__EMIT1(e, LOG1P, RP__EMIT1(e, EXP, sub(e, low, high))));
    return pick(e, is(e, RP__EMIT1(e, ABS, high), INFINITY), high, sum);
}

static val combined(rp__emitter *e, rp__scan_kind kind, val a, val b) {
    switch (kind) {
    case RP__SCAN_SUM: return add(e, a, b);
    case RP__SCAN_PROD: return mul(e, a, b);
    case RP__SCAN_MAX: return RP__EMIT2(e, MAX, a, b);
    case RP__SCAN_MIN: return RP__EMIT2(e, MIN, a, b);
    default: return logaddexp_of(e, a, b);
    }
}

/* `size` elements along dim, from `start` on. */
static val along(rp__emitter *e, val a, unsigned dim, int64_t start, int64_t size) {
    if (e->failed) return a;
    const rp__put_type t = e->types[a];
    rp_dim first[RP_MAX_DIMS] = {0}, sizes[RP_MAX_DIMS];
    int64_t step[RP_MAX_DIMS];
    for (unsigned d = 0; d < t.ndim; d++) {
        first[d] = d == dim ? start : 0;
        sizes[d] = d == dim ? size : t.size[d];
        step[d] = 1;
    }
    return rp__put_slice(e, a, first, sizes, step);
}

rp__put_val rp__put_scan_steps(rp__emitter *e, rp__scan_kind kind, rp__put_val a, unsigned dim, bool reversed) {
    const rp_dim n = e->types[a].size[dim];
    if (rp__dim_is_symbol(n)) {
        rp__put_lacks(e, "a scan along a size that is not known");
        return RP__EMIT_NONE;
    }
    for (int64_t s = 1; s < n && !e->failed; s *= 2) {
        const val first = along(e, a, dim, 0, n - s), last = along(e, a, dim, s, n - s),
                  both = combined(e, kind, reversed ? first : last, reversed ? last : first),
                  rest = along(e, a, dim, reversed ? n - s : 0, s);
        const val parts[] = {reversed ? both : rest, reversed ? rest : both};
        a = rp__put_cat(e, parts, 2, dim);
    }
    return a;
}
