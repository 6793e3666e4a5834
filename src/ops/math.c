/* Functions of one number: type rules and lowerings of math.def. Most are primitives (.prim); an integer is calculated with in
   float32, unless the function takes integers to integers. */
#include <math.h>
#include <string.h>

#include "ops/formula.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

rp_status rp__infer_number(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__call_need_number(call, (rp_dtype)call->in[0]->dtype));
    return rp__infer_unary(call, out);
}

rp_status rp__infer_unary_int(const rp__call *call, rp__meta *out) {
    const rp_dtype d = (rp_dtype)call->in[0]->dtype;
    return rp__dtype_is_float(d) ? rp__call_refuse_dtype(call, d) : rp__infer_unary(call, out);
}

RP__UNARY(sinc, WHERE(EQ(x, NUM(0)), NUM(1), DIV(PRIM(SIN, MUL(x, NUM(M_PI))), MUL(x, NUM(M_PI)))))
RP__UNARY(deg2rad, MUL(x, NUM(M_PI / 180)))
RP__UNARY(rad2deg, MUL(x, NUM(180 / M_PI)))

/* ---- to integers */

/* Integers are what they are. */
static rp__val rounded(rp__lower *lw, rp__prim op, rp__val x, rp_dtype compute) {
    return rp__dtype_is_float(compute) ? rp__lw_1(lw, op, x) : x;
}
RP__UNARY_SAME(ceil, rounded(lw, RP__CEIL, x, compute))
RP__UNARY_SAME(floor, rounded(lw, RP__FLOOR, x, compute))
RP__UNARY_SAME(trunc, rounded(lw, RP__TRUNC, x, compute))
RP__UNARY(frac, SUB(x, PRIM(TRUNC, x)))

rp_status rp__infer_round(const rp__call *call, rp__meta *out) {
    const rp_dtype d = (rp_dtype)call->in[0]->dtype;
    if (rp__attr_int(call, 0) != 0) RP_TRY(rp__call_need_float(call, d));
    return rp__infer_number(call, out);
}
static rp_scalar ten_to_decimals(const rp__call *call) { return rp_f64(pow(10, fabs((double)rp__attr_int(call, 0)))); }
static rp__val round_to(rp__lower *lw, rp__val x, rp_dtype compute) {
    const int64_t decimals = rp__attr_int(rp__lw_call(lw), 0);
    const int64_t way = rp__lw_structural_value(lw, (decimals > 0) - (decimals < 0));
    if (way == 0) return rounded(lw, RP__RINT, x, compute);
    const rp__val ten = rp__lw_scalar_fn(lw, ten_to_decimals, compute);
    return way > 0 ? DIV(PRIM(RINT, MUL(x, ten)), ten) : MUL(PRIM(RINT, DIV(x, ten)), ten);
}
RP__UNARY_SAME(round, round_to(lw, x, compute))

/* ---- parts of a number */

RP__UNARY(angle, WHERE(PRIM(ISNAN, x), x, WHERE(LT(x, NUM(0)), NUM(M_PI), NUM(0))))

rp_status rp__infer_frexp(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    rp__meta_like(&out[1], call->in[0], RP_I32);
    return RP_OK;
}

/* The size is brought to [1, 2) by powers of two, each half as large an exponent as the one before: every product is exact. What is
   below the least normal number becomes one first. */
void rp__lower_frexp(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const bool wide = compute == RP_F64;
    const int first = wide ? 512 : 64, digits = wide ? 53 : 24;
    const double least = wide ? 0x1p-1022 : 0x1p-126;
    const rp__val x = rp__lw_in(lw, 0), all = ABS(x), none = rp__lw_const_i(lw, RP_I32, 0);
    const rp__val ordinary = AND(LT(NUM(0), all), LT(all, NUM(INFINITY))), tiny = LT(all, NUM(least));
    rp__val size = WHERE(tiny, MUL(all, NUM(ldexp(1, digits))), all);
    rp__val exponent = WHERE(tiny, rp__lw_const_i(lw, RP_I32, 1 - digits), rp__lw_const_i(lw, RP_I32, 1));
    for (int k = first; k > 0; k /= 2) {
        const rp__val large = LE(NUM(ldexp(1, k)), size), small = LT(size, NUM(ldexp(1, 1 - k)));
        const rp__val by = rp__lw_const_i(lw, RP_I32, k);
        size = WHERE(large, MUL(size, NUM(ldexp(1, -k))), WHERE(small, MUL(size, NUM(ldexp(1, k))), size));
        exponent = WHERE(large, ADD(exponent, by), WHERE(small, SUB(exponent, by), exponent));
    }
    rp__lw_out(lw, 0, WHERE(ordinary, PRIM(COPYSIGN, MUL(size, NUM(0.5)), x), x));
    rp__lw_out(lw, 1, WHERE(ordinary, exponent, none));
}

/* ---- questions */

static rp__val is_negative(rp__lower *lw, rp__val x, rp_dtype compute) {
    if (!rp__dtype_is_float(compute)) return LT(x, rp__lw_const_i(lw, compute, 0));
    return LT(PRIM(COPYSIGN, NUM(1), x), NUM(0));
}
RP__UNARY_SAME(signbit, is_negative(lw, x, compute))
RP__UNARY(isnan, PRIM(ISNAN, x))
RP__UNARY(isinf, EQ(ABS(x), NUM(INFINITY)))
RP__UNARY(isfinite, LT(ABS(x), NUM(INFINITY)))
RP__UNARY_SAME(bitwise_not, NOT(x))

/* ---- with numbers */

static double largest(rp_dtype d) {
    return d == RP_F64 ? 0x1.fffffffffffffp1023 : d == RP_F32 ? 0x1.fffffep127 : d == RP_F16 ? 65504 : 0x1.fep127;
}
static rp_scalar given_or(const rp__call *call, unsigned k, double other) {
    const rp_attr *a = rp__call_attr(call, k);
    return rp__attr_is_none(a) ? rp_f64(other) : a->v.scalar;
}
static rp_scalar for_nan(const rp__call *call) { return given_or(call, 0, 0); }
static rp_scalar for_inf(const rp__call *call) { return given_or(call, 1, largest((rp_dtype)call->in[0]->dtype)); }
static rp_scalar for_minus(const rp__call *call) { return given_or(call, 2, -largest((rp_dtype)call->in[0]->dtype)); }
static rp__val replace_special(rp__lower *lw, rp__val x, rp_dtype compute) {
    if (!rp__dtype_is_float(compute)) return x;
    rp__val y = WHERE(PRIM(ISNAN, x), rp__lw_scalar_fn(lw, for_nan, compute), x);
    y = WHERE(EQ(x, NUM(INFINITY)), rp__lw_scalar_fn(lw, for_inf, compute), y);
    return WHERE(EQ(x, NUM(-INFINITY)), rp__lw_scalar_fn(lw, for_minus, compute), y);
}
RP__UNARY_SAME(nan_to_num, replace_special(lw, x, compute))

static rp__val between(rp__lower *lw, rp__val x, rp_dtype compute) {
    if (rp__attr_is_none(&rp__lw_call(lw)->attrs[0])) return x;
    const rp__val eps = ATTR(0), high = SUB(NUM(1), eps); /* of an eps above 1/2 they are the wrong way round */
    return WHERE(LT(x, eps), eps, WHERE(LT(high, x), high, x));
}
static rp__val odds(rp__lower *lw, rp__val x, rp_dtype compute) { return LOG(DIV(x, SUB(NUM(1), x))); }
RP__UNARY(logit, odds(lw, between(lw, x, compute), compute))

rp_status rp__infer_polygamma(const rp__call *call, rp__meta *out) {
    if (rp__attr_int(call, 0) < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "polygamma(n, x) does not support negative n.");
    return rp__infer_unary_float(call, out);
}
/* (-1)^(n + 1) n! */
static rp_scalar signed_factorial(const rp__call *call) {
    const double n = (double)rp__attr_int(call, 0);
    return rp_f64((fmod(n, 2) == 0 ? -1 : 1) * tgamma(n + 1));
}
static rp_scalar order(const rp__call *call) { return rp_f64((double)rp__attr_int(call, 0) + 1); }
static rp__val polygamma(rp__lower *lw, rp__val x, rp_dtype compute) {
    if (rp__lw_structural_value(lw, rp__attr_int(rp__lw_call(lw), 0) == 0)) return PRIM(DIGAMMA, x);
    return MUL(rp__lw_scalar_fn(lw, signed_factorial, compute), PRIM(ZETA, rp__lw_scalar_fn(lw, order, compute), x));
}
RP__UNARY(polygamma, polygamma(lw, x, compute))

rp_status rp__expand_square(const rp__call *call) {
    call->out[0] = rp_pow_scalar_at(call->site, call->in[0], rp_i64(2));
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}
