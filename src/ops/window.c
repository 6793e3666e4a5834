/* Windows, calculated in float64. */
#include <math.h>

#include "ops/formula.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

static rp_dtype asked(const rp__call *call) {
    for (uint32_t k = 0; k < call->n_attrs; k++)
        if (call->attrs[k].kind == RP_ATTR_DTYPE && call->attrs[k].v.dtype != RP_DTYPE_NONE)
            return call->attrs[k].v.dtype;
    return RP_F32;
}

rp_status rp__infer_window(const rp__call *call, rp__meta *out) {
    const int64_t length = rp__attr_int(call, 0);
    out->dtype = asked(call);
    if (!rp__dtype_is_valid(out->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)out->dtype);
    if (!rp__dtype_is_float(out->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "expects floating point dtypes, got: %s",
                            rp__dtype_title(out->dtype));
    if (length < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "requires non-negative window_length, got window_length=%lld", (long long)length);
    if (length >= RP__REACH_LIMIT) return rp__op_error(call, RP_ERROR_SHAPE, "the window is too long");
    out->ndim = 1;
    out->size[0] = length;
    return RP_OK;
}

/* 2 pi over the length of a period; a window of one number is its middle. */
static bool single(const rp__call *call) { return rp__attr_int(call, 0) == 1; }
static double period(const rp__call *call) {
    return (double)(rp__attr_int(call, 0) - (rp__attr_bool(call, 1) ? 0 : 1));
}
static rp_scalar step(const rp__call *call) { return rp_f64(single(call) ? 0 : 2 / period(call)); }
static rp_scalar start(const rp__call *call) { return rp_f64(single(call) ? 1 : 0); }

/* From 0 to 2 along a period. */
static rp__val place(rp__lower *lw) {
    const rp__val i = rp__lw_cast(lw, rp__lw_linear_index(lw), RP_F64);
    return ADD(MUL(i, rp__lw_scalar_fn(lw, step, RP_F64)), rp__lw_scalar_fn(lw, start, RP_F64));
}
static rp__val wave(rp__lower *lw, double times) {
    const rp_dtype compute = RP_F64;
    return PRIM(COS, MUL(place(lw), NUM(M_PI * times)));
}

/* a - b cos(t) + c cos(2 t) - d cos(3 t) */
static void cosines(rp__lower *lw, rp__val a, rp__val b, double c, double d) {
    const rp_dtype compute = RP_F64;
    rp__val value = SUB(a, MUL(b, wave(lw, 1)));
    if (c != 0) value = ADD(value, MUL(NUM(c), wave(lw, 2)));
    if (d != 0) value = SUB(value, MUL(NUM(d), wave(lw, 3)));
    rp__lw_out(lw, 0, value);
}
static rp__val number(rp__lower *lw, double value) { return rp__lw_const(lw, RP_F64, value); }

void rp__lower_hann_window(rp__lower *lw) { cosines(lw, number(lw, 0.5), number(lw, 0.5), 0, 0); }
void rp__lower_blackman_window(rp__lower *lw) { cosines(lw, number(lw, 0.42), number(lw, 0.5), 0.08, 0); }
/* Nuttall, Some windows with very good sidelobe behavior (1981): four terms. One number is 1, as their sum is. */
void rp__lower_nuttall_window(rp__lower *lw) {
    cosines(lw, number(lw, 0.3635819), number(lw, 0.4891775), 0.1365995, 0.0106411);
}
/* alpha and beta are free, and one number is 1 for all of them. */
static rp_scalar alpha(const rp__call *call) { return rp_f64(single(call) ? 1 : rp__attr_float(call, 2)); }
static rp_scalar beta(const rp__call *call) { return rp_f64(single(call) ? 0 : rp__attr_float(call, 3)); }
void rp__lower_hamming_window(rp__lower *lw) {
    cosines(lw, rp__lw_scalar_fn(lw, alpha, RP_F64), rp__lw_scalar_fn(lw, beta, RP_F64), 0, 0);
}
void rp__lower_bartlett_window(rp__lower *lw) {
    const rp_dtype compute = RP_F64;
    rp__lw_out(lw, 0, SUB(NUM(1), ABS(SUB(place(lw), NUM(1)))));
}

static rp_scalar cosine_step(const rp__call *call) {
    const int64_t n = rp__attr_int(call, 0);
    return rp_f64(M_PI / (double)(n + (rp__attr_bool(call, 1) && n > 1 ? 1 : 0)));
}
void rp__lower_cosine_window(rp__lower *lw) {
    const rp_dtype compute = RP_F64;
    const rp__val i = rp__lw_cast(lw, rp__lw_linear_index(lw), RP_F64);
    rp__lw_out(lw, 0, PRIM(SIN, MUL(ADD(i, NUM(0.5)), rp__lw_scalar_fn(lw, cosine_step, RP_F64))));
}

/* How far each place is from the middle, or from a center that is given, in units of a width. */
static rp_scalar middle(const rp__call *call) { return rp_f64(single(call) ? 0 : period(call) / 2); }
static rp_scalar center(const rp__call *call) {
    return rp__attr_is_none(&call->attrs[2]) ? middle(call) : rp_f64(rp__scalar_f64(call->attrs[2].v.scalar));
}
static rp_scalar narrowness(const rp__call *call) { return rp_f64(1 / (rp__attr_float(call, 2) * M_SQRT2)); }
static rp_scalar decay(const rp__call *call) { return rp_f64(1 / rp__attr_float(call, 3)); }
static rp__val away(rp__lower *lw, rp_scalar (*from)(const rp__call *), rp_scalar (*per)(const rp__call *)) {
    const rp__val i = rp__lw_cast(lw, rp__lw_linear_index(lw), RP_F64);
    return MUL(SUB(i, rp__lw_scalar_fn(lw, from, RP_F64)), rp__lw_scalar_fn(lw, per, RP_F64));
}
void rp__lower_gaussian_window(rp__lower *lw) {
    const rp__val k = away(lw, middle, narrowness);
    rp__lw_out(lw, 0, EXP(NEG(MUL(k, k))));
}
void rp__lower_exponential_window(rp__lower *lw) { rp__lw_out(lw, 0, EXP(NEG(ABS(away(lw, center, decay))))); }

rp_status rp__infer_exponential_window(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_window(call, out));
    if (!(rp__attr_float(call, 3) > 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Tau must be positive, got: %g instead.",
                            rp__attr_float(call, 3));
    if (!rp__attr_bool(call, 1) && !rp__attr_is_none(&call->attrs[2]))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Center must be None for symmetric windows");
    return RP_OK;
}

rp_status rp__infer_gaussian_window(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_window(call, out));
    if (rp__attr_float(call, 2) > 0) return RP_OK;
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Standard deviation must be positive, got: %g instead.",
                        rp__attr_float(call, 2));
}

rp_status rp__expand_general_cosine_window(const rp__call *call) {
    const rp_attr *a = &call->attrs[1];
    const int64_t n = rp__attr_int(call, 0);
    rp__meta meta = {0};
    RP_TRY(rp__infer_window(call, &meta));
    if (a->n == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Coefficients cannot be empty");
    rp_tensor *i = rp_arange(rp_i64(0), rp_i64(n), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F64));
    const double turn = n > 1 ? 2 * M_PI / (double)(n - (call->attrs[2].v.b ? 0 : 1)) : 0;
    rp_tensor *y = rp_fill(i, rp_f64(n == 1 ? 1 : a->v.floats[0]));
    for (size_t k = 1; n > 1 && k < a->n; k++)
        y = rp_add(y, rp_mul_scalar(rp_cos(rp_mul_scalar(i, rp_f64(turn * (double)k))),
                                    rp_f64(k % 2 ? -a->v.floats[k] : a->v.floats[k])));
    return rp__give(call, meta.dtype == RP_F64 ? y : rp_to_dtype(y, meta.dtype));
}

/* Of scaled Bessel functions, so that none overflows. */
rp_status rp__expand_kaiser_window(const rp__call *call) {
    rp__meta meta = {0};
    RP_TRY(rp__infer_window(call, &meta));
    const int64_t n = rp__attr_int(call, 0), all = n + (rp__attr_bool(call, 1) && n > 1 ? 1 : 0);
    const double size = fabs(rp__attr_float(call, 2));
    if (n == 1) return rp__give(call, rp_ones(RP_DIMS(1), RP_OPTIONS(rp_ones_options, .dtype = meta.dtype)));
    rp_tensor *t = rp_linspace(rp_i64(-1), rp_i64(1), all, RP_OPTIONS(rp_linspace_options, .dtype = RP_F64));
    t = rp_narrow(t, 0, 0, n);
    rp_tensor *root = rp_sqrt(rp_add_scalar(rp_neg(rp_mul(t, t)), rp_i64(1))), *x = rp_mul_scalar(root, rp_f64(size));
    rp_tensor *most = rp_special_i0e(rp_fill(rp__zero_like(t), rp_f64(size)));
    rp_tensor *y = rp_mul(rp_div(rp_special_i0e(x), most), rp_exp(rp_sub_scalar(x, rp_f64(size))));
    return rp__give(call, meta.dtype == RP_F64 ? y : rp_to_dtype(y, meta.dtype));
}
