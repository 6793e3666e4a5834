/* Functions of two and three numbers: type rules and lowerings of binary.def, in the promoted type of the operands. */
#include <math.h>
#include <string.h>

#include "ops/formula.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* ---- type and shape rules */

static rp_status infer_unless(const rp__call *call, rp__meta *out, bool refuse_float, bool refuse_bool) {
    RP_TRY(rp__infer_binary(call, out));
    if ((refuse_float && rp__dtype_is_float(out->dtype)) || (refuse_bool && out->dtype == RP_BOOL))
        return rp__call_refuse_dtype(call, out->dtype);
    return RP_OK;
}
rp_status rp__infer_binary_number(const rp__call *call, rp__meta *out) { return infer_unless(call, out, false, true); }
rp_status rp__infer_binary_int(const rp__call *call, rp__meta *out) { return infer_unless(call, out, true, false); }
rp_status rp__infer_binary_integer(const rp__call *call, rp__meta *out) { return infer_unless(call, out, true, true); }
rp_status rp__infer_both_float(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_binary(call, out));
    return rp__call_need_float(call, out->dtype);
}

/* Negative exponents of integers are the business of the lowering: PyTorch looks at numbers, not at tensors. */
rp_status rp__infer_pow(const rp__call *call, rp__meta *out) { return rp__infer_binary_number(call, out); }

rp_status rp__infer_heaviside(const rp__call *call, rp__meta *out) {
    if (call->in[0]->dtype != call->in[1]->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "heaviside is not yet implemented for tensors with different dtypes.");
    return rp__infer_binary(call, out);
}

/* The common size of all operands. */
static rp_status broadcast_all(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__meta_broadcast(call->in[0], call->in[1], out));
    for (unsigned k = 2; k < call->n_in; k++) {
        const rp__meta so_far = *out;
        size_t n = 0;
        RP_TRY(rp__broadcast(call->in[k]->size, call->in[k]->ndim, so_far.size, so_far.ndim, out->size, &n));
        out->ndim = (uint8_t)n;
    }
    return RP_OK;
}

static rp_status same_dtypes(const rp__call *call) {
    for (unsigned k = 1; k < call->n_in; k++) {
        if (call->in[k]->dtype != call->in[0]->dtype)
            return rp__op_error(call, RP_ERROR_DTYPE, "expected dtype %s for `%s`, but got dtype %s",
                                rp__dtype_title((rp_dtype)call->in[0]->dtype), call->op->schema.params[k].name,
                                rp__dtype_title((rp_dtype)call->in[k]->dtype));
    }
    return RP_OK;
}
rp_status rp__infer_lerp(const rp__call *call, rp__meta *out) {
    RP_TRY(same_dtypes(call));
    out->dtype = (rp_dtype)call->in[0]->dtype;
    RP_TRY(rp__call_need_float(call, out->dtype));
    return broadcast_all(call, out);
}
rp_status rp__infer_lerp_scalar(const rp__call *call, rp__meta *out) { return rp__infer_lerp(call, out); }

rp_status rp__infer_addcmul(const rp__call *call, rp__meta *out) {
    out->dtype = rp__call_promote(call, 0, 3, -1);
    RP_TRY(rp__call_need_number(call, out->dtype));
    return broadcast_all(call, out);
}
rp_status rp__infer_addcdiv(const rp__call *call, rp__meta *out) {
    if (!rp__dtype_is_float(rp__call_promote(call, 1, 2, -1)))
        return rp__op_error(
            call, RP_ERROR_DTYPE,
            "Integer division with addcdiv is no longer supported, and in a future release addcdiv will "
            "perform a true division of tensor1 and tensor2.");
    return rp__infer_addcmul(call, out);
}

rp_status rp__infer_masked_fill(const rp__call *call, rp__meta *out) {
    if (call->in[1]->dtype != RP_BOOL)
        return rp__op_error(call, RP_ERROR_DTYPE, "masked_fill only supports boolean masks, but got mask with dtype %s",
                            rp__dtype_title((rp_dtype)call->in[1]->dtype));
    if (call->n_in > 2 && call->in[2]->ndim > 0)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "masked_fill only supports a 0-dimensional value tensor, but got tensor with %u dimension(s).",
            call->in[2]->ndim);
    out->dtype = (rp_dtype)call->in[0]->dtype;
    if (call->n_in == 2 && !rp__scalar_fits(call->attrs[0].v.scalar, (rp_dtype)rp__dtypes[out->dtype].compute))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow",
                            rp_dtype_name(out->dtype));
    return broadcast_all(call, out);
}

/* ---- division */

static rp__val zero_of(rp__lower *lw, rp_dtype compute) { return rp__lw_const_i(lw, compute, 0); }

/* Towards 0 from downwards: what is left lies between 0 and the divisor, and is moved where the dividend's sign differs. */
static rp__val left_by_trunc(rp__lower *lw, rp__val a, rp__val b, rp_dtype compute) {
    if (rp__dtype_is_float(compute)) return PRIM(FMOD, a, b);
    const rp__val zero = zero_of(lw, compute), r = rp__lw_2(lw, RP__REMAINDER, a, b);
    return WHERE(AND(NE(r, zero), NE(LT(a, zero), LT(r, zero))), SUB(r, b), r);
}
RP__BINARY(fmod, left_by_trunc(lw, a, b, compute))
RP__BINARY(remainder, rp__lw_2(lw, RP__REMAINDER, a, b))
RP__BINARY(floor_divide, rp__lw_2(lw, RP__FLOORDIV, a, b))

enum { TRUE_DIVISION, FLOOR, TRUNC };
static int64_t rounding_mode(const rp__call *call) {
    const char *mode = rp__call_attr(call, 0)->v.string;
    return !mode || !*mode              ? TRUE_DIVISION
           : strcmp(mode, "floor") == 0 ? FLOOR
           : strcmp(mode, "trunc") == 0 ? TRUNC
                                        : -1;
}
rp_status rp__infer_div_mode(const rp__call *call, rp__meta *out) {
    const int64_t mode = rounding_mode(call);
    if (mode < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '%s'",
                            rp__call_attr(call, 0)->v.string);
    return mode == TRUE_DIVISION ? rp__infer_binary_float(call, out) : rp__infer_binary_number(call, out);
}
void rp__lower_div_mode(rp__lower *lw) {
    const int64_t mode = rp__lw_structural_value(lw, rounding_mode(rp__lw_call(lw)));
    rp_dtype type = rp__lw_promoted(lw, 2, -1);
    if (mode == TRUE_DIVISION) type = rp__lw_float(type);
    const rp_dtype compute = rp__lw_compute(type);
    const rp__val a = rp__lw_in_as(lw, 0, type), b = rp__lw_in_as(lw, 1, type);
    rp__val y = mode == FLOOR ? rp__lw_2(lw, RP__FLOORDIV, a, b) : a;
    if (mode != FLOOR && rp__dtype_is_float(compute)) {
        y = DIV(a, b);
        if (mode == TRUNC) y = PRIM(TRUNC, y);
    } else if (mode == TRUNC) { /* downwards, and one up where something is left of a negative quotient */
        const rp__val zero = zero_of(lw, compute), q = rp__lw_2(lw, RP__FLOORDIV, a, b);
        const rp__val left = NE(rp__lw_2(lw, RP__REMAINDER, a, b), zero);
        y = WHERE(AND(left, NE(LT(a, zero), LT(b, zero))), ADD(q, rp__lw_const_i(lw, compute, 1)), q);
    }
    rp__lw_out(lw, 0, y);
}

/* ---- powers */

/* Whole exponents of integers by squaring, as wide as they are. A negative one gives 0, but of 1 and -1. */
static rp__val integer_power(rp__lower *lw, rp__val a, rp__val b, rp_dtype compute) {
    const rp__val zero = zero_of(lw, compute), one = rp__lw_const_i(lw, compute, 1);
    rp__val result = one, factor = a, left = b;
    for (unsigned k = 0; k < 8u * rp_dtype_size(compute) - (compute != RP_U8); k++) {
        result = WHERE(NE(AND(left, one), zero), MUL(result, factor), result);
        if (k + 2 < 8u * rp_dtype_size(compute)) factor = MUL(factor, factor);
        left = rp__lw_2(lw, RP__SHR, left, one);
    }
    if (compute == RP_U8) return result;
    const rp__val minus = rp__lw_const_i(lw, compute, -1);
    const rp__val of_minus = WHERE(NE(AND(b, one), zero), minus, one);
    const rp__val inverse = WHERE(EQ(a, one), one, WHERE(EQ(a, minus), of_minus, zero));
    return WHERE(LT(b, zero), inverse, result);
}
RP__BINARY(pow, rp__dtype_is_float(compute) ? PRIM(POW, a, b) : integer_power(lw, a, b, compute))

/* ---- choice */

static rp__val beside_nan(rp__lower *lw, rp__prim op, rp__val a, rp__val b, rp_dtype compute) {
    if (compute == RP_BOOL) return rp__lw_2(lw, op == RP__MAX ? RP__OR : RP__AND, a, b);
    const rp__val y = rp__lw_2(lw, op, a, b);
    return rp__dtype_is_float(compute) ? WHERE(PRIM(ISNAN, a), b, WHERE(PRIM(ISNAN, b), a, y)) : y;
}
RP__BINARY(fmax, beside_nan(lw, RP__MAX, a, b, compute))
RP__BINARY(fmin, beside_nan(lw, RP__MIN, a, b, compute))

/* f16 and bf16 have their own neighbours: those of the bits in 16, not in 32. */
static rp__val next_after(rp__lower *lw, rp__val a, rp__val b, rp_dtype type, rp_dtype compute) {
    if (type == RP_F32 || type == RP_F64) return PRIM(NEXTAFTER, a, b);
    /* The last place of a is 1 to 2 times size * 2^-11 (f16): 1.25 times that rounds to the next number, also downwards from a power
       of two, where places are half as wide. Subnormals are `tiny` apart. */
    const double tiny = type == RP_F16 ? 0x1p-24 : 0x1p-133, place = type == RP_F16 ? 0x1p-11 : 0x1p-8;
    const rp__val size = ABS(a), up = LT(a, b), away = NE(up, LT(a, NUM(0))), by = MUL(size, NUM(place * 1.25));
    const rp__val far = MAX(ADD(size, by), ADD(size, NUM(tiny))), near = MIN(SUB(size, by), SUB(size, NUM(tiny)));
    const rp__val moved = PRIM(COPYSIGN, WHERE(away, far, near), WHERE(EQ(a, NUM(0)), b, a));
    const rp__val step = WHERE(EQ(a, NUM(0)), PRIM(COPYSIGN, NUM(tiny), b), moved);
    (void)compute;
    return WHERE(PRIM(ISNAN, ADD(a, b)), ADD(a, b), WHERE(EQ(a, b), b, step));
}
RP__BINARY(nextafter, next_after(lw, a, b, type, compute))

/* ---- bits and logic */

void rp__lower_logical_and(rp__lower *lw) {
    rp__lw_out(lw, 0, AND(rp__lw_in_as(lw, 0, RP_BOOL), rp__lw_in_as(lw, 1, RP_BOOL)));
}
void rp__lower_logical_or(rp__lower *lw) {
    rp__lw_out(lw, 0, OR(rp__lw_in_as(lw, 0, RP_BOOL), rp__lw_in_as(lw, 1, RP_BOOL)));
}
void rp__lower_logical_xor(rp__lower *lw) {
    rp__lw_out(lw, 0, PRIM(XOR, rp__lw_in_as(lw, 0, RP_BOOL), rp__lw_in_as(lw, 1, RP_BOOL)));
}
RP__BINARY(bitwise_and, AND(a, b))
RP__BINARY(bitwise_or, OR(a, b))
RP__BINARY(bitwise_xor, PRIM(XOR, a, b))

/* Is the distance of a shift none that the type has? */
static rp__val too_far(rp__lower *lw, rp__val b, rp_dtype compute) {
    const rp__val last = rp__lw_const_i(lw, compute, 8 * (int64_t)rp_dtype_size(compute) - 1);
    return OR(LT(b, zero_of(lw, compute)), LT(last, b));
}
RP__BINARY(bitwise_left_shift, WHERE(too_far(lw, b, compute), zero_of(lw, compute), PRIM(SHL, a, b)))
static rp__val all_sign(rp__lower *lw, rp__val a, rp_dtype compute) {
    const int64_t last = 8 * (int64_t)rp_dtype_size(compute) - (compute == RP_U8 ? 0 : 1);
    return compute == RP_U8 ? zero_of(lw, compute) : PRIM(SHR, a, rp__lw_const_i(lw, compute, last));
}
RP__BINARY(bitwise_right_shift, WHERE(too_far(lw, b, compute), all_sign(lw, a, compute), PRIM(SHR, a, b)))

RP__BINARY(gcd, PRIM(GCD, a, b))
static rp__val lcm(rp__lower *lw, rp__val a, rp__val b, rp_dtype compute) {
    const rp__val zero = zero_of(lw, compute), g = PRIM(GCD, a, b), none = EQ(g, zero);
    const rp__val part = rp__lw_2(lw, RP__FLOORDIV, a, WHERE(none, rp__lw_const_i(lw, compute, 1), g));
    return WHERE(none, zero, ABS(MUL(part, b)));
}
RP__BINARY(lcm, lcm(lw, a, b, compute))

/* ---- logarithms and exponentials */

RP__BINARY_FLOAT(xlogy, WHERE(PRIM(ISNAN, b), b, WHERE(EQ(a, NUM(0)), NUM(0), MUL(a, LOG(b)))))
/* The larger one and what the smaller one adds; of equal infinite ones no difference is taken. */
static rp__val log_sum(rp__lower *lw, rp__val a, rp__val b, rp__val more) {
    const rp_dtype compute = rp__lw_compute(rp__lw_promoted(lw, 2, -1));
    return WHERE(AND(EQ(a, b), EQ(ABS(a), NUM(INFINITY))), a, ADD(MAX(a, b), more));
}
RP__BINARY(logaddexp, log_sum(lw, a, b, LOG1P(EXP(NEG(ABS(SUB(a, b)))))))
RP__BINARY(logaddexp2, log_sum(lw, a, b, MUL(LOG1P(PRIM(EXP2, NEG(ABS(SUB(a, b))))), NUM(M_LOG2E))))

static rp__val step(rp__lower *lw, rp__val a, rp__val b, rp_dtype compute) {
    const rp__val above = rp__lw_cast(lw, compute == RP_BOOL ? a : LT(zero_of(lw, compute), a), compute);
    return WHERE(compute == RP_BOOL ? NOT(a) : EQ(a, zero_of(lw, compute)), b, above);
}
RP__BINARY(heaviside, step(lw, a, b, compute))

/* ---- of three */

/* From the nearer end, so that weights 0 and 1 give the ends themselves. */
static void lower_lerp(rp__lower *lw, rp__val weight, rp_dtype compute) {
    const rp__val a = rp__lw_in(lw, 0), b = rp__lw_in(lw, 1), way = SUB(b, a);
    const rp__val from_b = SUB(b, MUL(way, SUB(NUM(1), weight)));
    rp__lw_out(lw, 0, WHERE(LT(ABS(weight), NUM(0.5)), ADD(a, MUL(weight, way)), from_b));
}
void rp__lower_lerp(rp__lower *lw) { lower_lerp(lw, rp__lw_in(lw, 2), rp__lw_compute(rp__lw_in_dtype(lw, 0))); }
void rp__lower_lerp_scalar(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    lower_lerp(lw, ATTR(0), compute);
}

static void lower_addc(rp__lower *lw, rp__prim op) {
    const rp_dtype type = rp__lw_promoted(lw, 3, -1);
    const rp__val self = rp__lw_in_as(lw, 0, type), b = rp__lw_in_as(lw, 2, type);
    rp__val a = rp__lw_in_as(lw, 1, type);
    if (!rp__lw_attr_is_one(lw, 0)) a = MUL(rp__lw_attr(lw, 0, rp__lw_compute(type)), a);
    rp__lw_out(lw, 0, ADD(self, rp__lw_2(lw, op, a, b)));
}
void rp__lower_addcmul(rp__lower *lw) { lower_addc(lw, RP__MUL); }
void rp__lower_addcdiv(rp__lower *lw) { lower_addc(lw, RP__DIV); }

void rp__lower_masked_fill(rp__lower *lw) {
    rp__lw_out(lw, 0, WHERE(rp__lw_in(lw, 1), rp__lw_in_as(lw, 2, rp__lw_in_dtype(lw, 0)), rp__lw_in(lw, 0)));
}
void rp__lower_masked_fill_scalar(rp__lower *lw) {
    rp__lw_out(lw, 0, WHERE(rp__lw_in(lw, 1), rp__lw_number(lw, 0, rp__lw_in_dtype(lw, 0)), rp__lw_in(lw, 0)));
}

/* ---- made of other ops */

rp_status rp__expand_float_power(const rp__call *call) {
    rp_tensor *base = rp_to_dtype_at(call->site, call->in[0], RP_F64, NULL);
    return rp__give(call, rp_pow_at(call->site, base, rp_to_dtype_at(call->site, call->in[1], RP_F64, NULL)));
}
rp_status rp__expand_float_power_scalar(const rp__call *call) {
    rp_tensor *base = rp_to_dtype_at(call->site, call->in[0], RP_F64, NULL);
    return rp__give(call, rp_pow_scalar_at(call->site, base, call->attrs[0].v.scalar));
}
/* The power of a whole number may lie beyond what floats hold where the result does not: for float64 it goes in three steps, the last of which
   takes most of it. All are exact but that one, or what they lose is lost by then. Narrower floats go by float64, which holds enough. */
static rp_tensor *scaled(const char *site, rp_tensor *x, rp_tensor *exponent) {
    const rp_scalar low = rp_f64(-1022), high = rp_f64(1023);
    rp_tensor *last = rp_clamp_at(site, exponent, low, high), *rest = rp_sub_at(site, exponent, last, NULL),
              *middle = rp_clamp_at(site, rest, low, high), *first = rp_sub_at(site, rest, middle, NULL);
    x = rp_mul_at(site, x, rp_exp2_at(site, first));
    x = rp_mul_at(site, x, rp_exp2_at(site, middle));
    return rp_mul_at(site, x, rp_exp2_at(site, last));
}
rp_status rp__expand_ldexp(const rp__call *call) {
    rp_tensor *self = call->in[0], *other = call->in[1];
    if (rp__dtype_is_float((rp_dtype)other->dtype))
        return rp__give(call, rp_mul_at(call->site, self, rp_exp2_at(call->site, other)));
    const rp_dtype type = rp__dtype_is_float((rp_dtype)self->dtype) ? (rp_dtype)self->dtype : RP_F32;
    const double enough = type == RP_F64 ? 2100 : 600; /* any value becomes zero, or none stays finite */
    rp_tensor *x = rp_to_dtype_at(call->site, rp_to_dtype_at(call->site, self, type, NULL), RP_F64, NULL),
              *number =
                  rp_to_dtype_at(call->site, other, RP_I32, NULL), /* the low 32 bits of longer ones, as for PyTorch */
                  *exponent = rp_clamp_at(call->site, rp_to_dtype_at(call->site, number, RP_F64, NULL), rp_f64(-enough),
                                          rp_f64(enough));
    x = type == RP_F64 ? scaled(call->site, x, exponent) : rp_mul_at(call->site, x, rp_exp2_at(call->site, exponent));
    return rp__give(call, rp_to_dtype_at(call->site, x, type, NULL));
}
