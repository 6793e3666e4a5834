/* Pointwise ops: type and shape rules and lowerings. An op with several operands calculates in their promoted type, a unary
   function of an integer in float32. bool arithmetic is logic: add is or, mul is and, as in PyTorch. */
#include <math.h>
#include <string.h>

#include "ops/formula.h"
#include "ops/infer.h"
#include "ops/rules.h"

/* ---- type and shape rules */

rp_status rp__infer_binary(const rp__call *call, rp__meta *out) {
    out->dtype = rp__call_promote(call, 0, 2, -1);
    return rp__call_broadcast(call, 0, 1, out);
}

rp_status rp__infer_binary_float(const rp__call *call, rp__meta *out) {
    out->dtype = rp__float_or_default(rp__call_promote(call, 0, 2, -1));
    return rp__call_broadcast(call, 0, 1, out);
}

static rp_status check_alpha(const rp__call *call, rp_dtype result) {
    rp_scalar alpha = rp__call_attr(call, 0)->v.scalar;
    rp_scalar_kind kind = alpha.kind;
    if (kind == RP_SCALAR_BOOL && result != RP_BOOL)
        return rp__op_error(call, RP_ERROR_DTYPE, "Boolean alpha only supported for Boolean results.");
    if (rp__scalar_is_float(alpha) && !rp__dtype_is_float(result))
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "For integral input tensors, argument alpha must not be a floating point number.");
    rp_dtype compute = (rp_dtype)rp__dtypes[result].compute; /* alpha enters the sum in this type */
    if (!rp__scalar_fits(alpha, compute))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow",
                            rp_dtype_name(compute));
    return RP_OK;
}

rp_status rp__infer_add(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_binary(call, out));
    return check_alpha(call, out->dtype);
}

rp_status rp__infer_sub(const rp__call *call, rp__meta *out) {
    bool a = call->in[0]->dtype == RP_BOOL,
         b = call->op->scalar_operand ? call->attrs[0].v.scalar.kind == RP_SCALAR_BOOL : call->in[1]->dtype == RP_BOOL;
    if (a && b)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
                            "`logical_xor()` operator instead.");
    if (a || b)
        return rp__op_error(
            call, RP_ERROR_DTYPE,
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a "
            "mask, use the `~` or `logical_not()` operator instead.");
    return rp__infer_add(call, out);
}

static rp_status infer_with_number(const rp__call *call, rp__meta *out) {
    rp__meta_like(out, call->in[0], rp__call_promote(call, 0, 1, 0));
    return RP_OK;
}

rp_status rp__infer_pow_scalar(const rp__call *call, rp__meta *out) {
    RP_TRY(infer_with_number(call, out));
    rp_scalar e = call->attrs[0].v.scalar;
    if (rp__dtype_is_float(out->dtype)) return RP_OK;
    if (!rp__scalar_is_float(e) && e.kind != RP_SCALAR_BOOL && rp__dim_is(RP__DIM_LT, e.v.i, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Integers to negative integer powers are not allowed.");
    if (!rp__scalar_fits(e, out->dtype))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow",
                            rp_dtype_name(out->dtype));
    return RP_OK;
}

rp_status rp__infer_unary(const rp__call *call, rp__meta *out) {
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

rp_status rp__infer_unary_float(const rp__call *call, rp__meta *out) {
    rp__meta_like(out, call->in[0], rp__float_or_default((rp_dtype)call->in[0]->dtype));
    return RP_OK;
}

rp_status rp__infer_float_only(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    return rp__infer_unary(call, out);
}

rp_status rp__infer_neg(const rp__call *call, rp__meta *out) {
    if (call->in[0]->dtype == RP_BOOL)
        return rp__op_error(
            call, RP_ERROR_DTYPE,
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, "
            "use the `~` or `logical_not()` operator instead.");
    return rp__infer_unary(call, out);
}

rp_status rp__infer_relu(const rp__call *call, rp__meta *out) {
    if (call->in[0]->dtype == RP_BOOL)
        return rp__op_error(call, RP_ERROR_DTYPE, "Boolean inputs not supported for relu");
    return rp__infer_unary(call, out);
}

rp_status rp__infer_abs(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__call_need_number(call, (rp_dtype)call->in[0]->dtype));
    return rp__infer_unary(call, out);
}

rp_status rp__infer_compare(const rp__call *call, rp__meta *out) {
    out->dtype = RP_BOOL;
    return rp__call_broadcast(call, 0, 1, out);
}

rp_status rp__infer_to_bool(const rp__call *call, rp__meta *out) {
    rp__meta_like(out, call->in[0], RP_BOOL);
    return RP_OK;
}

rp_status rp__infer_to_dtype(const rp__call *call, rp__meta *out) {
    rp_dtype to = call->attrs[0].v.dtype;
    if (!rp__dtype_is_valid(to)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)to);
    rp__meta_like(out, call->in[0], to);
    return RP_OK;
}

rp_status rp__infer_where(const rp__call *call, rp__meta *out) {
    rp_dtype c = (rp_dtype)call->in[0]->dtype;
    if (c != RP_BOOL && c != RP_U8)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "where expected condition to be a boolean tensor, but got a tensor with dtype %s",
                            rp__dtype_title(c));
    out->dtype = rp__call_promote(call, 1, 2, -1);
    RP_TRY(rp__meta_broadcast(call->in[1], call->in[2], out));
    rp__meta values = *out;
    size_t n = 0;
    RP_TRY(rp__broadcast(call->in[0]->size, call->in[0]->ndim, values.size, values.ndim, out->size, &n));
    out->ndim = (uint8_t)n;
    return RP_OK;
}

/* ---- arithmetic */

/* self + sign * alpha * other */
static void lower_add(rp__lower *lw, rp__prim op) {
    rp_dtype type = rp__lw_promoted(lw, 2, -1), compute = rp__lw_compute(type);
    rp__val a = rp__lw_in_as(lw, 0, type), b = rp__lw_in_as(lw, 1, type);
    bool scaled = !rp__lw_attr_is_one(lw, 0);
    if (type == RP_BOOL) {
        if (scaled) b = rp__lw_2(lw, RP__AND, b, rp__lw_attr(lw, 0, RP_BOOL));
        rp__lw_out(lw, 0, rp__lw_2(lw, RP__OR, a, b));
        return;
    }
    if (scaled && rp__dtype_is_float(compute)) { /* rounded once, as PyTorch does */
        rp__val alpha = rp__lw_attr(lw, 0, compute);
        rp__lw_out(lw, 0, rp__lw_3(lw, RP__FMA, b, op == RP__SUB ? rp__lw_1(lw, RP__NEG, alpha) : alpha, a));
        return;
    }
    if (scaled) b = rp__lw_2(lw, RP__MUL, b, rp__lw_attr(lw, 0, compute));
    rp__lw_out(lw, 0, rp__lw_2(lw, op, a, b));
}

void rp__lower_add(rp__lower *lw) { lower_add(lw, RP__ADD); }
void rp__lower_sub(rp__lower *lw) { lower_add(lw, RP__SUB); }

static void lower_binary(rp__lower *lw, rp__prim op, rp__prim bool_op) {
    rp_dtype type = rp__lw_promoted(lw, 2, -1);
    rp__val a = rp__lw_in_as(lw, 0, type), b = rp__lw_in_as(lw, 1, type);
    rp__lw_out(lw, 0, rp__lw_2(lw, type == RP_BOOL ? bool_op : op, a, b));
}

void rp__lower_mul(rp__lower *lw) { lower_binary(lw, RP__MUL, RP__AND); }
void rp__lower_maximum(rp__lower *lw) { lower_binary(lw, RP__MAX, RP__OR); }
void rp__lower_minimum(rp__lower *lw) { lower_binary(lw, RP__MIN, RP__AND); }

void rp__lower_div(rp__lower *lw) {
    rp_dtype type = rp__float_or_default(rp__lw_promoted(lw, 2, -1));
    rp__val a = rp__lw_in_as(lw, 0, type), b = rp__lw_in_as(lw, 1, type);
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__DIV, a, b));
}

/* x ** e for a whole e >= 0 by squaring: exact and wrapping for integers. */
static rp__val whole_power(rp__lower *lw, rp__val x, rp_dtype compute, uint64_t e) {
    rp__val result = rp__lw_const_i(lw, compute, 1);
    bool any = false;
    for (; e; e >>= 1) {
        if (e & 1) {
            result = any ? rp__lw_2(lw, RP__MUL, result, x) : x;
            any = true;
        }
        if (e > 1) x = rp__lw_2(lw, RP__MUL, x, x);
    }
    return result;
}

/* Exponents for which PyTorch has a formula of its own; anything else goes to POW. */
enum { POW_GENERAL, POW_ZERO, POW_ONE, POW_SQUARE, POW_CUBE, POW_SQRT, POW_RSQRT, POW_RECIP, POW_RECIP_SQUARE };

/* float16 alone has no formula for roots in PyTorch: there pow(-inf, 0.5) is inf, where a square root is NaN. */
static int64_t power_class(double e, rp_dtype type) {
    if (fabs(e) == 0.5 && type == RP_F16) return POW_GENERAL;
    return e == 0     ? POW_ZERO
           : e == 1   ? POW_ONE
           : e == 2   ? POW_SQUARE
           : e == 3   ? POW_CUBE
           : e == 0.5 ? POW_SQRT
           : e == -.5 ? POW_RSQRT
           : e == -1  ? POW_RECIP
           : e == -2  ? POW_RECIP_SQUARE
                      : POW_GENERAL;
}

void rp__lower_pow_scalar(rp__lower *lw) {
    rp_dtype type = rp__lw_promoted(lw, 1, 0), compute = rp__lw_compute(type);
    rp_scalar e = rp__lw_call(lw)->attrs[0].v.scalar;
    rp__val x = rp__lw_in_as(lw, 0, type), y = x;
    if (type == RP_BOOL) { /* x ** True is x, x ** False is True */
        y = rp__lw_2(lw, RP__OR, x, rp__lw_1(lw, RP__NOT, rp__lw_attr(lw, 0, RP_BOOL)));
    } else if (!rp__dtype_is_float(type)) {
        y = whole_power(lw, x, compute, (uint64_t)rp__lw_structural_value(lw, rp__scalar_i64(e)));
    } else {
        switch (rp__lw_structural_value(lw, power_class(rp__scalar_f64(e), type))) {
        case POW_ZERO: y = rp__lw_const(lw, compute, 1.0); break;
        case POW_ONE: break;
        case POW_SQUARE: y = rp__lw_2(lw, RP__MUL, x, x); break;
        case POW_CUBE: y = rp__lw_2(lw, RP__MUL, rp__lw_2(lw, RP__MUL, x, x), x); break;
        case POW_SQRT: y = rp__lw_1(lw, RP__SQRT, x); break;
        case POW_RSQRT: y = rp__lw_1(lw, RP__RSQRT, x); break;
        case POW_RECIP: y = rp__lw_1(lw, RP__RECIP, x); break;
        case POW_RECIP_SQUARE: y = rp__lw_1(lw, RP__RECIP, rp__lw_2(lw, RP__MUL, x, x)); break;
        default: y = rp__lw_2(lw, RP__POW, x, rp__lw_attr(lw, 0, compute)); break;
        }
    }
    rp__lw_out(lw, 0, y);
}

/* ---- unary */

/* A row with .prim. */
void rp__lower_prim(rp__lower *lw) {
    const rp__op *op = rp__lw_call(lw)->op;
    const unsigned n = op->schema.n_tensor_params + (op->scalar_operand != 0);
    const rp_dtype type = rp__float_or_default(rp__lw_promoted(lw, n, -1));
    rp__val v[3];
    for (unsigned k = 0; k < n; k++) v[k] = rp__lw_in_as(lw, k, type);
    rp__lw_out(lw, 0, rp__lw_prim(lw, (rp__prim)op->prim, v, n));
}

void rp__lower_neg(rp__lower *lw) { rp__lw_out(lw, 0, rp__lw_1(lw, RP__NEG, rp__lw_in(lw, 0))); }
void rp__lower_abs(rp__lower *lw) { rp__lw_out(lw, 0, rp__lw_1(lw, RP__ABS, rp__lw_in(lw, 0))); }

/* NaN has sign 0, True has sign True. */
void rp__lower_sign(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__val x = rp__lw_in(lw, 0);
    if (compute != RP_BOOL) {
        rp__val zero = rp__lw_const_i(lw, compute, 0), one = rp__lw_const_i(lw, compute, 1);
        rp__val negative = compute == RP_U8 ? zero : rp__lw_const_i(lw, compute, -1);
        rp__val below = rp__lw_3(lw, RP__WHERE, rp__lw_2(lw, RP__LT, x, zero), negative, zero);
        x = rp__lw_3(lw, RP__WHERE, rp__lw_2(lw, RP__LT, zero, x), one, below);
    }
    rp__lw_out(lw, 0, x);
}

void rp__lower_relu(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__MAX, rp__lw_in(lw, 0), rp__lw_const_i(lw, compute, 0)));
}

static bool is_tanh(const rp__call *call) {
    const char *text = call->attrs[0].v.string;
    return text && strcmp(text, "tanh") == 0;
}

rp_status rp__infer_gelu(const rp__call *call, rp__meta *out) {
    const char *text = call->attrs[0].v.string;
    if (!text || (strcmp(text, "none") != 0 && !is_tanh(call)))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "approximate argument must be either none or tanh.");
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    return rp__infer_unary(call, out);
}

/* x / 2 * (1 + erf(x / sqrt 2)), or x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) */
void rp__lower_gelu(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__val x = rp__lw_in(lw, 0);
    if (rp__lw_structural_value(lw, is_tanh(rp__lw_call(lw)))) {
        rp__val cube = rp__lw_2(lw, RP__MUL, rp__lw_2(lw, RP__MUL, x, x), x);
        rp__val sum = rp__lw_2(lw, RP__ADD, x, rp__lw_2(lw, RP__MUL, cube, rp__lw_const(lw, compute, 0.044715)));
        rp__val inner = rp__lw_2(lw, RP__MUL, sum, rp__lw_const(lw, compute, 0.79788456080286535588));
        rp__val one = rp__lw_2(lw, RP__ADD, rp__lw_1(lw, RP__TANH, inner), rp__lw_const(lw, compute, 1.0));
        rp__lw_out(lw, 0, rp__lw_2(lw, RP__MUL, rp__lw_2(lw, RP__MUL, x, rp__lw_const(lw, compute, 0.5)), one));
        return;
    }
    rp__val twice =
        rp__lw_1(lw, RP__ERFP1, rp__lw_2(lw, RP__MUL, x, rp__lw_const(lw, compute, 0.70710678118654752440)));
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__MUL, rp__lw_2(lw, RP__MUL, x, rp__lw_const(lw, compute, 0.5)), twice));
}

RP__UNARY(silu, MUL(x, PRIM(SIGMOID, x)))
RP__UNARY(hardswish, DIV(MUL(x, MIN(MAX(ADD(x, NUM(3)), NUM(0)), NUM(6))), NUM(6)))
RP__UNARY_WITH(softplus, WHERE(LT(ATTR(1), t), x, DIV(LOG1P(EXP(t)), beta)), beta = ATTR(0), t = MUL(x, beta))

void rp__lower_logical_not(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__val x = rp__lw_in(lw, 0);
    rp__lw_out(lw, 0,
               compute == RP_BOOL ? rp__lw_1(lw, RP__NOT, x) : rp__lw_2(lw, RP__EQ, x, rp__lw_const_i(lw, compute, 0)));
}

void rp__lower_to_dtype(rp__lower *lw) { rp__lw_out(lw, 0, rp__lw_in_as(lw, 0, rp__lw_out_dtype(lw, 0))); }
void rp__lower_clone(rp__lower *lw) { rp__lw_out(lw, 0, rp__lw_in(lw, 0)); }

/* ---- choice and comparison */

void rp__lower_where(rp__lower *lw) {
    rp_dtype type = rp__lw_out_dtype(lw, 0);
    rp__val a = rp__lw_in_as(lw, 1, type), b = rp__lw_in_as(lw, 2, type);
    rp__lw_out(lw, 0, rp__lw_3(lw, RP__WHERE, rp__lw_in_as(lw, 0, RP_BOOL), a, b));
}

/* A number is rounded to the tensor's type first: 0.1 equals the bfloat16 that is nearest to it. */
static void lower_compare(rp__lower *lw, rp__prim op, bool swapped) {
    rp_dtype type = rp__lw_promoted(lw, 2, -1);
    rp__val a = rp__lw_in_as(lw, 0, type), b = rp__lw_in_as(lw, 1, type);
    if (rp__lw_call(lw)->op->scalar_operand) b = rp__lw_cast(lw, b, type);
    rp__lw_out(lw, 0, swapped ? rp__lw_2(lw, op, b, a) : rp__lw_2(lw, op, a, b));
}

void rp__lower_eq(rp__lower *lw) { lower_compare(lw, RP__EQ, false); }
void rp__lower_ne(rp__lower *lw) { lower_compare(lw, RP__NE, false); }
void rp__lower_lt(rp__lower *lw) { lower_compare(lw, RP__LT, false); }
void rp__lower_le(rp__lower *lw) { lower_compare(lw, RP__LE, false); }
void rp__lower_gt(rp__lower *lw) { lower_compare(lw, RP__LT, true); }
void rp__lower_ge(rp__lower *lw) { lower_compare(lw, RP__LE, true); }
