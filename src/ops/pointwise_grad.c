/* Derivatives of pointwise.c and of the functional forms of inplace.c. At kinks they are PyTorch's: relu and abs have slope 0
   at 0, clamp at its limits, equal operands of maximum and minimum take half each. */
#include "ops/grad.h"
#include "ops/private.h"

#include <math.h>
#include <string.h>

static int64_t scalar_int(rp_scalar s) { return s.kind == RP_SCALAR_BOOL ? (int64_t)s.v.b : s.v.i; }

/* Factors and exponents of floating tensors: where 64 bits do not hold the result, a float does. */
static rp_scalar scalar_negated(rp_scalar s) {
    if (s.kind == RP_SCALAR_F64) return rp_f64(-s.v.f);
    if (rp__scalar_is_symbol(s)) return rp__num_apply(RP__NUM_SUB, rp_i64(0), s);
    return scalar_int(s) == INT64_MIN ? rp_f64(0x1p63) : rp_i64(-scalar_int(s));
}

static rp_scalar scalar_less_one(rp_scalar s) {
    if (s.kind == RP_SCALAR_F64) return rp_f64(s.v.f - 1.0);
    if (rp__scalar_is_symbol(s)) return rp__num_apply(RP__NUM_SUB, s, rp_i64(1));
    return scalar_int(s) == INT64_MIN ? rp_f64(-0x1p63) : rp_i64(scalar_int(s) - 1);
}

static bool scalar_is(rp_scalar s, int64_t value) {
    if (rp__scalar_is_size(s)) return rp__dim_is(RP__DIM_EQ, s.v.i, value);
    return s.kind == RP_SCALAR_F64 ? s.v.f == (double)value : scalar_int(s) == value;
}

/* A number calculated of sizes is not asked: to multiply by it is exact where it is 1. */
static bool is_one(rp_scalar s) { return s.kind != RP_SCALAR_SYM_F64 && scalar_is(s, 1); }

rp_status rp__vjp_zero(const rp__vjp *g) {
    for (uint32_t k = 0; k < g->call->n_in; k++)
        if (g->needed[k]) g->grad_in[k] = rp__zeros_of(&g->in_meta[k]);
    return RP_OK;
}

rp_status rp__vjp_clone(const rp__vjp *g) {
    g->grad_in[0] = g->grad_out[0];
    return RP_OK;
}

rp_status rp__vjp_to_dtype(const rp__vjp *g) { return rp__vjp_clone(g); } /* rp__grad_run converts back */

rp_status rp__vjp_add_scalar(const rp__vjp *g) { return rp__vjp_clone(g); }
rp_status rp__vjp_sub_scalar(const rp__vjp *g) { return rp__vjp_clone(g); }

rp_status rp__vjp_add(const rp__vjp *g) {
    rp_scalar alpha = g->call->attrs[0].v.scalar;
    g->grad_in[0] = g->grad_out[0];
    if (g->needed[1]) g->grad_in[1] = is_one(alpha) ? g->grad_out[0] : rp_mul_scalar(g->grad_out[0], alpha);
    return RP_OK;
}

rp_status rp__vjp_sub(const rp__vjp *g) {
    rp_scalar alpha = g->call->attrs[0].v.scalar;
    g->grad_in[0] = g->grad_out[0];
    if (g->needed[1])
        g->grad_in[1] = is_one(alpha) ? rp_neg(g->grad_out[0]) : rp_mul_scalar(g->grad_out[0], scalar_negated(alpha));
    return RP_OK;
}

rp_status rp__vjp_mul(const rp__vjp *g) {
    if (g->needed[0]) g->grad_in[0] = rp_mul(g->grad_out[0], g->call->in[1]);
    if (g->needed[1]) g->grad_in[1] = rp_mul(g->grad_out[0], g->call->in[0]);
    return RP_OK;
}

rp_status rp__vjp_div(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0], *other = g->call->in[1];
    if (g->needed[0]) g->grad_in[0] = rp_div(grad, other);
    if (g->needed[1]) {
        rp_tensor *wide = rp__wide(other);
        rp_tensor *ratio = rp_div(rp_div(rp__wide(g->call->in[0]), wide), wide);
        g->grad_in[1] = rp_mul(rp_neg(grad), ratio);
    }
    return RP_OK;
}

rp_status rp__vjp_mul_scalar(const rp__vjp *g) {
    g->grad_in[0] = rp_mul_scalar(g->grad_out[0], g->call->attrs[0].v.scalar);
    return RP_OK;
}

rp_status rp__vjp_div_scalar(const rp__vjp *g) {
    g->grad_in[0] = rp_div_scalar(g->grad_out[0], g->call->attrs[0].v.scalar);
    return RP_OK;
}

rp_status rp__vjp_pow_scalar(const rp__vjp *g) {
    rp_scalar e = g->call->attrs[0].v.scalar;
    const bool calculated = e.kind == RP_SCALAR_SYM_F64; /* of sizes: it may be 0 for some, which is not asked */
    if (!calculated && scalar_is(e, 0)) return rp__vjp_zero(g);
    rp_tensor *slope = rp_mul_scalar(rp_pow_scalar(rp__wide(g->call->in[0]), scalar_less_one(e)), e);
    if (calculated) {
        rp_tensor *exponent = rp_add_scalar(rp_to_dtype(rp__zero_like(slope), RP_F64), e);
        slope = rp_where(rp_eq_scalar(exponent, rp_i64(0)), rp__zero_like(slope), slope);
    }
    g->grad_in[0] = rp_mul(g->grad_out[0], slope);
    return RP_OK;
}

/* `lost`: where the operand was the smaller (larger) one. NaN loses nowhere, so it passes the gradient on to both. */
static rp_tensor *extremum_part(const rp__vjp *g, rp_tensor *equal, rp_tensor *lost) {
    rp_tensor *grad = g->grad_out[0];
    rp_tensor *half = rp_mul_scalar(grad, rp_f64(0.5));
    return rp_where(equal, half, rp_where(lost, rp__zero_like(grad), grad));
}

rp_status rp__extremum_grad(const rp__vjp *g, unsigned other, bool maximum) {
    rp_tensor *a = g->call->in[0], *b = g->call->in[other];
    rp_tensor *equal = rp_eq(a, b);
    if (g->needed[0]) g->grad_in[0] = extremum_part(g, equal, maximum ? rp_lt(a, b) : rp_gt(a, b));
    if (g->needed[other]) g->grad_in[other] = extremum_part(g, equal, maximum ? rp_gt(a, b) : rp_lt(a, b));
    return RP_OK;
}

rp_status rp__vjp_maximum(const rp__vjp *g) { return rp__extremum_grad(g, 1, true); }
rp_status rp__vjp_minimum(const rp__vjp *g) { return rp__extremum_grad(g, 1, false); }

rp_status rp__vjp_neg(const rp__vjp *g) {
    g->grad_in[0] = rp_neg(g->grad_out[0]);
    return RP_OK;
}

rp_status rp__vjp_sin(const rp__vjp *g) {
    g->grad_in[0] = rp_mul(g->grad_out[0], rp_cos(rp__wide(g->call->in[0])));
    return RP_OK;
}

rp_status rp__vjp_cos(const rp__vjp *g) {
    g->grad_in[0] = rp_neg(rp_mul(g->grad_out[0], rp_sin(rp__wide(g->call->in[0]))));
    return RP_OK;
}

rp_status rp__vjp_exp(const rp__vjp *g) {
    g->grad_in[0] = rp_mul(g->grad_out[0], g->call->out[0]);
    return RP_OK;
}

rp_status rp__vjp_log(const rp__vjp *g) {
    g->grad_in[0] = rp_div(g->grad_out[0], g->call->in[0]);
    return RP_OK;
}

rp_status rp__vjp_sqrt(const rp__vjp *g) {
    g->grad_in[0] = rp_div(g->grad_out[0], rp_mul_scalar(g->call->out[0], rp_i64(2))); /* doubling is exact */
    return RP_OK;
}

rp_status rp__vjp_rsqrt(const rp__vjp *g) {
    rp_tensor *out = rp__wide(g->call->out[0]);
    rp_tensor *cube = rp_mul(out, rp_mul(out, out));
    g->grad_in[0] = rp_mul(g->grad_out[0], rp_mul_scalar(cube, rp_f64(-0.5)));
    return RP_OK;
}

rp_status rp__vjp_tanh(const rp__vjp *g) {
    rp_tensor *out = rp__wide(g->call->out[0]);
    g->grad_in[0] = rp_mul(g->grad_out[0], rp_add_scalar(rp_neg(rp_mul(out, out)), rp_i64(1)));
    return RP_OK;
}

rp_status rp__vjp_sigmoid(const rp__vjp *g) {
    rp_tensor *out = rp__wide(g->call->out[0]);
    g->grad_in[0] = rp_mul(rp_mul(g->grad_out[0], rp_add_scalar(rp_neg(out), rp_i64(1))), out);
    return RP_OK;
}

rp_status rp__vjp_erf(const rp__vjp *g) {
    rp_tensor *x = rp__wide(g->call->in[0]);
    rp_tensor *bell = rp_exp(rp_neg(rp_mul(x, x)));
    g->grad_in[0] = rp_mul(g->grad_out[0], rp_mul_scalar(bell, rp_f64(M_2_SQRTPI)));
    return RP_OK;
}

rp_status rp__vjp_abs(const rp__vjp *g) {
    g->grad_in[0] = rp_mul(g->grad_out[0], rp_sign(g->call->in[0]));
    return RP_OK;
}

rp_status rp__vjp_relu(const rp__vjp *g) {
    /* The result is 0, positive or NaN; NaN passes the gradient on. */
    g->grad_in[0] = rp_where(rp_eq_scalar(g->call->out[0], rp_i64(0)), rp__zero_like(g->grad_out[0]), g->grad_out[0]);
    return RP_OK;
}

/* y = x / 2 * (1 + t), t = tanh(u), u = b (x + c x^3): y' = (1 + t) / 2 + x / 2 * (1 - t^2) u' */
static rp_tensor *gelu_tanh_slope(rp_tensor *x) {
    const double b = M_SQRT2 * M_2_SQRTPI * 0.5, c = 0.044715;
    rp_tensor *square = rp_mul(x, x);
    rp_tensor *u = rp_mul_scalar(rp_add(x, rp_mul_scalar(rp_mul(square, x), rp_f64(c))), rp_f64(b));
    rp_tensor *t = rp_tanh(u);
    rp_tensor *du = rp_mul_scalar(rp_add_scalar(rp_mul_scalar(square, rp_f64(3 * c)), rp_i64(1)), rp_f64(b));
    rp_tensor *left = rp_mul_scalar(rp_add_scalar(t, rp_i64(1)), rp_f64(0.5));
    rp_tensor *bell = rp_add_scalar(rp_neg(rp_mul(t, t)), rp_i64(1));
    return rp_add(left, rp_mul(rp_mul(rp_mul_scalar(x, rp_f64(0.5)), bell), du));
}

rp_status rp__vjp_gelu(const rp__vjp *g) {
    if (strcmp(g->call->attrs[0].v.string, "tanh") == 0) {
        g->grad_in[0] = rp_mul(g->grad_out[0], gelu_tanh_slope(rp__wide(g->call->in[0])));
        return RP_OK;
    }
    /* d/dx x P(x) = P(x) + x p(x), with P and p the normal distribution and its density. */
    rp_tensor *x = rp__wide(g->call->in[0]);
    rp_tensor *p = rp_mul_scalar(rp_add_scalar(rp_erf(rp_mul_scalar(x, rp_f64(M_SQRT1_2))), rp_i64(1)), rp_f64(0.5));
    rp_tensor *density = rp_exp(rp_mul_scalar(rp_mul(x, x), rp_f64(-0.5)));
    rp_tensor *tail = rp_mul(x, rp_mul_scalar(density, rp_f64(0.5 * M_2_SQRTPI * M_SQRT1_2)));
    g->grad_in[0] = rp_mul(g->grad_out[0], rp_add(p, tail));
    return RP_OK;
}

rp_status rp__vjp_where(const rp__vjp *g) {
    rp_tensor *condition = g->call->in[0], *grad = g->grad_out[0];
    rp_tensor *zero = rp__zero_like(grad);
    if (g->needed[1]) g->grad_in[1] = rp_where(condition, grad, zero);
    if (g->needed[2]) g->grad_in[2] = rp_where(condition, zero, grad);
    return RP_OK;
}

rp_status rp__vjp_copy(const rp__vjp *g) {
    if (g->needed[0]) g->grad_in[0] = rp__zeros_of(&g->in_meta[0]);
    g->grad_in[1] = g->grad_out[0];
    return RP_OK;
}

RP__SLOPE(silu, rp_mul(rp_sigmoid(x), rp_add_scalar(rp_mul(x, rp_sigmoid(rp_neg(x))), rp_i64(1))))

static rp_tensor *one_where(rp_tensor *condition, rp_tensor *else_) {
    return rp_where(condition, rp_fill(rp__zero_like(else_), rp_i64(1)), else_);
}
/* NaN where x is */
RP__SLOPE_WITH(hardswish, rp_where(rp_le_scalar(x, rp_i64(-3)), rp__zero_like(x), t),
               *t = one_where(rp_ge_scalar(x, rp_i64(3)), rp_add_scalar(rp_div_scalar(x, rp_i64(3)), rp_f64(0.5))))
RP__SLOPE_WITH(softplus, one_where(rp_gt_scalar(t, NUMBER(1)), rp_sigmoid(t)), *t = rp_mul_scalar(x, NUMBER(0)))

RP__SLOPE(expm1, rp_add_scalar(y, rp_i64(1)))
