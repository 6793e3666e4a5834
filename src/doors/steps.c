/* Primitives that a language lacks, of those that it has: the same for all emitters. */
#include <math.h>

#include "doors/emit.h"

typedef rp__put_val val;

static val number(rp__emitter *e, val like, double value) { return rp__put_number(e, rp__put_dtype(e, like), value); }
static val is_negative(rp__emitter *e, val a) { return RP__EMIT_IS(e, LT, a, number(e, a, 0)); }
static val is_zero(rp__emitter *e, val a) { return RP__EMIT_IS(e, EQ, a, number(e, a, 0)); }

/* near 0 by 2 t / (1 - t), t = tanh(a / 2), which does not cancel */
static val expm1_of(rp__emitter *e, val a) {
    const val one = number(e, a, 1), t = RP__EMIT1(e, TANH, RP__EMIT2(e, MUL, a, number(e, a, 0.5))),
              near = RP__EMIT2(e, DIV, RP__EMIT2(e, ADD, t, t), RP__EMIT2(e, SUB, one, t)),
              far = RP__EMIT2(e, SUB, RP__EMIT1(e, EXP, a), one);
    return rp__put_where(e, RP__EMIT_IS(e, LT, RP__EMIT1(e, ABS, a), one), near, far);
}

/* log(u) a / (u - 1) with u = 1 + a as it is rounded; a itself where u is 1, log(u) where a is beyond the rounding */
static val log1p_of(rp__emitter *e, val a) {
    const val one = number(e, a, 1), u = RP__EMIT2(e, ADD, a, one), less = RP__EMIT2(e, SUB, u, one),
              log = RP__EMIT1(e, LOG, u), none = RP__EMIT_IS(e, EQ, u, one),
              near = RP__EMIT2(e, MUL, log, RP__EMIT2(e, DIV, a, rp__put_where(e, none, one, less))),
              wide = RP__EMIT_IS(e, LT, number(e, a, 1e6), a);
    return rp__put_where(e, none, a, rp__put_where(e, wide, log, near));
}

/* -0 counts as negative */
static val has_minus(rp__emitter *e, val a) {
    const val below = is_negative(e, RP__EMIT2(e, DIV, number(e, a, 1), a));
    return RP__EMIT2(e, OR, is_negative(e, a), RP__EMIT2(e, AND, is_zero(e, a), below));
}

static val copysign_of(rp__emitter *e, val a, val b) {
    const val size = RP__EMIT1(e, ABS, a);
    return rp__put_where(e, has_minus(e, b), RP__EMIT1(e, NEG, size), size);
}

static val atan2_of(rp__emitter *e, val y, val x) {
    const double pi = 3.14159265358979323846;
    const val base = RP__EMIT1(e, ATAN, RP__EMIT2(e, DIV, y, x)), turn = copysign_of(e, number(e, x, pi), y),
              up = copysign_of(e, number(e, x, pi / 2), y),
              left = rp__put_where(e, is_negative(e, x), RP__EMIT2(e, ADD, base, turn), base),
              none = rp__put_where(e, has_minus(e, x), turn, y);
    return rp__put_where(e, is_zero(e, x), rp__put_where(e, is_zero(e, y), none, up), left);
}

static val hypot_of(rp__emitter *e, val a, val b) {
    const val x = RP__EMIT1(e, ABS, a), y = RP__EMIT1(e, ABS, b), one = number(e, a, 1),
              large = RP__EMIT2(e, MAX, x, y), by = rp__put_where(e, is_zero(e, large), one, large),
              r = RP__EMIT2(e, DIV, RP__EMIT2(e, MIN, x, y), by),
              root = RP__EMIT1(e, SQRT, RP__EMIT2(e, ADD, one, RP__EMIT2(e, MUL, r, r)));
    return rp__put_where(e, RP__EMIT_IS(e, EQ, large, number(e, a, INFINITY)), large, RP__EMIT2(e, MUL, large, root));
}

static val remainder_of(rp__emitter *e, val a, val b) {
    const val rest = RP__EMIT2(e, FMOD, a, b), none = is_zero(e, rest),
              other = RP__EMIT2(e, XOR, is_negative(e, rest), is_negative(e, b));
    return rp__put_where(e, RP__EMIT2(e, AND, RP__EMIT1(e, NOT, none), other), RP__EMIT2(e, ADD, rest, b), rest);
}

static val floordiv_of(rp__emitter *e, val a, val b) {
    const val exact = RP__EMIT2(e, SUB, a, RP__EMIT2(e, REMAINDER, a, b)), whole = RP__EMIT2(e, DIV, exact, b);
    if (!rp__dtype_is_float(rp__put_dtype(e, a))) return whole;
    return rp__put_where(e, is_zero(e, b), RP__EMIT2(e, DIV, a, b), RP__EMIT1(e, RINT, whole));
}

/* Powers of two by the exponent, modulo the width. */
static val power_of_two(rp__emitter *e, val b) {
    const rp_dtype dtype = rp__put_dtype(e, b);
    const val by = RP__EMIT2(e, AND, b, rp__put_int(e, dtype, (int64_t)rp__dtype_bytes(dtype) * 8 - 1));
    return RP__EMIT2(e, POW, rp__put_int(e, dtype, 2), by);
}

rp__put_val rp__put_steps(rp__emitter *e, rp__prim op, rp__put_val a, rp__put_val b) {
    switch (op) {
    case RP__NE: {
        const val same = RP__EMIT_IS(e, EQ, a, b);
        return RP__EMIT1(e, NOT, same);
    }
    case RP__ISNAN: return RP__EMIT_IS(e, NE, a, a);
    case RP__RECIP: return RP__EMIT2(e, DIV, number(e, a, 1), a);
    case RP__RSQRT: return RP__EMIT1(e, RECIP, RP__EMIT1(e, SQRT, a));
    case RP__TRUNC: return rp__put_where(e, is_negative(e, a), RP__EMIT1(e, CEIL, a), RP__EMIT1(e, FLOOR, a));
    case RP__EXPM1: return expm1_of(e, a);
    case RP__LOG1P: return log1p_of(e, a);
    case RP__EXP2: return RP__EMIT2(e, POW, number(e, a, 2), a);
    case RP__LOG2: return RP__EMIT2(e, MUL, RP__EMIT1(e, LOG, a), number(e, a, 1.44269504088896340736));
    case RP__LOG10: return RP__EMIT2(e, MUL, RP__EMIT1(e, LOG, a), number(e, a, 0.43429448190325182765));
    case RP__ERFC: return RP__EMIT2(e, SUB, number(e, a, 1), RP__EMIT1(e, ERF, a));
    case RP__ATAN2: return atan2_of(e, a, b);
    case RP__COPYSIGN: return copysign_of(e, a, b);
    case RP__HYPOT: return hypot_of(e, a, b);
    case RP__REMAINDER: return remainder_of(e, a, b);
    case RP__FLOORDIV: return floordiv_of(e, a, b);
    case RP__SHL: return RP__EMIT2(e, MUL, a, power_of_two(e, b));
    case RP__SHR: return RP__EMIT2(e, FLOORDIV, a, power_of_two(e, b));
    default: return rp__put_special(e, op, a, b);
    }
}
