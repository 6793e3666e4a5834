/* Random ops. Bits come from Philox by element number (device/generator.h); here is how bits become numbers. The conversions
   are exact in the arithmetic that they use, so that all devices agree. */
#include "ops/execute.h"

#include <float.h>

#include "ops/library_ops.h"
#include "ops/private.h"

#include "ops/infer.h"
#include "ops/rules.h"

enum { RAND_GENERATOR = 1, RANDINT_GENERATOR = 3, DROPOUT_GENERATOR = 2 }; /* attribute numbers */

/* Clears all but the upper `bits` of a 32-bit word and scales to [0, 1): (w >> (32 - bits)) * 2^-bits, exact in f32. */
static rp__val unit_f32(rp__lower *lw, rp__val word, unsigned bits) {
    rp__val high =
        rp__lw_2(lw, RP__AND, word, rp__lw_const_i(lw, RP_I64, INT64_C(0xffffffff) & -(INT64_C(1) << (32 - bits))));
    return rp__lw_2(lw, RP__MUL, rp__lw_cast(lw, high, RP_F32), rp__lw_const(lw, RP_F32, 0x1p-32));
}

/* (u >> 11) * 2^-53 of a 64-bit word that comes as a signed number: the upper half of the range is negative. */
static rp__val unit_f64(rp__lower *lw, rp__val word) {
    rp__val high = rp__lw_cast(lw, rp__lw_2(lw, RP__AND, word, rp__lw_const_i(lw, RP_I64, -2048)), RP_F64);
    rp__val scaled = rp__lw_2(lw, RP__MUL, high, rp__lw_const(lw, RP_F64, 0x1p-64));
    rp__val zero = rp__lw_const(lw, RP_F64, 0.0);
    rp__val negative = rp__lw_2(lw, RP__LT, scaled, zero);
    rp__val wrap = rp__lw_3(lw, RP__WHERE, negative, rp__lw_const(lw, RP_F64, 1.0), zero);
    return rp__lw_2(lw, RP__ADD, scaled, wrap);
}

/* As many bits as the significand has, so that 1 is never reached. */
static rp__val unit(rp__lower *lw, rp_dtype dtype, unsigned generator) {
    if (dtype == RP_F64) return unit_f64(lw, rp__lw_random(lw, generator, RP__PHILOX64, RP_I64));
    return unit_f32(lw, rp__lw_random(lw, generator, RP__PHILOX, RP_I64), rp__dtypes[dtype].digits);
}

void rp__lower_rand(rp__lower *lw) { rp__lw_out(lw, 0, unit(lw, rp__lw_out_dtype(lw, 0), RAND_GENERATOR)); }

void rp__lower_randn(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_out_dtype(lw, 0));
    rp__lw_out(lw, 0, rp__lw_random(lw, RAND_GENERATOR, RP__PHILOX_NORMAL, compute));
}

/* ---- randint: high half of the product of a random word and the number of values */

static int64_t values_of(const rp__call *call) { return rp__attr_int(call, 1) - rp__attr_int(call, 0); }
static rp_scalar count_value(const rp__call *call) { return rp_i64(values_of(call)); }
static rp_scalar count_high(const rp__call *call) { return rp_i64(values_of(call) >> 32); }

static rp_scalar count_low_high(const rp__call *call) { return rp_i64(values_of(call) >> 16 & 0xffff); }
static rp_scalar count_low_low(const rp__call *call) { return rp_i64(values_of(call) & 0xffff); }

static rp__val shift_right(rp__lower *lw, rp__val a, unsigned bits) {
    return rp__lw_2(lw, RP__FLOORDIV, a, rp__lw_const_i(lw, RP_I64, INT64_C(1) << bits));
}
static rp__val low_word(rp__lower *lw, rp__val a) {
    return rp__lw_2(lw, RP__AND, a, rp__lw_const_i(lw, RP_I64, INT64_C(0xffffffff)));
}

/* u * n for 32-bit u and n as (high, low) words: n in halves of 16 bits, so that no product exceeds 48 bits. */
static void wide_product(rp__lower *lw, rp__val u, rp__val n_high, rp__val n_low, rp__val *high, rp__val *low) {
    rp__val t1 = rp__lw_2(lw, RP__MUL, u, n_high), t0 = rp__lw_2(lw, RP__MUL, u, n_low);
    rp__val scale = rp__lw_const_i(lw, RP_I64, 1 << 16);
    *high = shift_right(lw, rp__lw_2(lw, RP__ADD, t1, shift_right(lw, t0, 16)), 16);
    rp__val t1_low = rp__lw_2(lw, RP__MUL, rp__lw_2(lw, RP__AND, t1, rp__lw_const_i(lw, RP_I64, 0xffff)), scale);
    *low = low_word(lw, rp__lw_2(lw, RP__ADD, t1_low, t0));
}

/* from and to are the first two attributes. */
static void whole_numbers(rp__lower *lw, unsigned generator) {
    rp__val r;
    if (!rp__lw_structural_value(lw, values_of(rp__lw_call(lw)) > INT64_C(1) << 31)) {
        rp__val word = rp__lw_random(lw, generator, RP__PHILOX, RP_I64);
        r = shift_right(lw, rp__lw_2(lw, RP__MUL, word, rp__lw_scalar_fn(lw, count_value, RP_I64)), 32);
    } else { /* 64 x 64 bits in words: the number of values is below 2^63 */
        rp__val u = rp__lw_random(lw, generator, RP__PHILOX64, RP_I64);
        rp__val u0 = low_word(lw, u), u1 = low_word(lw, shift_right(lw, u, 32));
        rp__val n1 = rp__lw_scalar_fn(lw, count_high, RP_I64);
        rp__val n0h = rp__lw_scalar_fn(lw, count_low_high, RP_I64), n0l = rp__lw_scalar_fn(lw, count_low_low, RP_I64);
        rp__val h10, l10, h00, l00;
        wide_product(lw, u1, n0h, n0l, &h10, &l10);
        wide_product(lw, u0, n0h, n0l, &h00, &l00);
        rp__val m01 = rp__lw_2(lw, RP__MUL, u0, n1);
        rp__val carry = rp__lw_2(lw, RP__ADD, rp__lw_2(lw, RP__ADD, low_word(lw, m01), l10), h00);
        r = rp__lw_2(lw, RP__ADD, rp__lw_2(lw, RP__MUL, u1, n1), shift_right(lw, m01, 32));
        r = rp__lw_2(lw, RP__ADD, rp__lw_2(lw, RP__ADD, r, h10), shift_right(lw, carry, 32));
    }
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__ADD, r, rp__lw_attr(lw, 0, RP_I64)));
}

void rp__lower_randint(rp__lower *lw) { whole_numbers(lw, RANDINT_GENERATOR); }

/* ---- dropout */

static rp_status check_probability(const rp__call *call, double p) {
    if (p >= 0 && p <= 1) return RP_OK;
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "dropout probability has to be between 0 and 1, but got %g",
                        p);
}

/* p = 0, evaluation and empty inputs draw nothing; nor does p = 1, which is 0 * self. */
rp_status rp__expand_dropout(const rp__call *call) {
    rp_tensor *t = call->in[0];
    double p = rp__attr_float(call, 0);
    RP_TRY(check_probability(call, p));
    if (!rp__attr_bool(call, 1) || p == 0 || rp__dim_is(RP__DIM_EQ, rp__tensor_numel(t), 0))
        call->out[0] = rp_view_at(call->site, t, t->size, t->ndim);
    else if (p == 1)
        call->out[0] = rp_mul_scalar_at(call->site, t, rp_bool(false)); /* 0 in its own type */
    else
        call->out[0] =
            rp_native_dropout_at(call->site, t, p, RP_TRUE,
                                 RP_OPTIONS(rp_native_dropout_options, .generator = call->attrs[2].v.generator), NULL);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__infer_native_dropout(const rp__call *call, rp__meta *out) {
    RP_TRY(check_probability(call, rp__attr_float(call, 0)));
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    rp__meta_like(&out[1], call->in[0], RP_BOOL);
    return RP_OK;
}

/* All, where it is not training. */
double rp__dropout_keeps(const rp_attr *attrs) {
    const rp_scalar train = attrs[1].v.scalar;
    return train.kind == RP_SCALAR_BOOL && !train.v.b ? 1 : 1 - attrs[0].v.f;
}
static rp_scalar keep_probability(const rp__call *call) { return rp_f64(rp__dropout_keeps(call->attrs)); }
static rp_scalar keep_scale(const rp__call *call) {
    double keep = rp__dropout_keeps(call->attrs);
    return rp_f64(keep == 0 ? 0 : 1 / keep);
}

/* keep with probability 1 - p (a uniform f32 below it); self * keep * scale */
void rp__lower_native_dropout(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__val u = unit_f32(lw, rp__lw_random(lw, DROPOUT_GENERATOR, RP__PHILOX, RP_I64), 24);
    rp__val keep = rp__lw_2(lw, RP__LT, u, rp__lw_scalar_fn(lw, keep_probability, RP_F32));
    rp__val kept = rp__lw_2(lw, RP__MUL, rp__lw_in(lw, 0), rp__lw_cast(lw, keep, compute));
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__MUL, kept, rp__lw_scalar_fn(lw, keep_scale, compute)));
    rp__lw_out(lw, 1, keep);
}

/* ---- multinomial */

rp_status rp__infer_multinomial(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    rp_dim n = rp__attr_int(call, 0);
    if (!rp__dtype_is_float((rp_dtype)t->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "multinomial only supports floating-point dtypes for input, got: %s",
                            rp__dtype_title((rp_dtype)t->dtype));
    if (t->ndim != 1 && t->ndim != 2) return rp__op_error(call, RP_ERROR_SHAPE, "prob_dist must be 1 or 2 dim");
    if (!rp__dim_is(RP__DIM_LT, 0, n))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "cannot sample n_sample <= 0 samples");
    rp_dim categories = t->size[t->ndim - 1];
    if (!rp__attr_bool(call, 1) && rp__dim_is(RP__DIM_LT, categories, n))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
    if (rp__dim_is(RP__DIM_LT, INT64_C(1) << 24, categories))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "number of categories cannot exceed 2^24");
    if (rp__dim_is(RP__DIM_EQ, categories, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "cannot sample from 0 categories");
    rp__meta_like(out, t, RP_I64);
    out->size[out->ndim - 1] = n;
    return RP_OK;
}

/* A sample uses one 64-bit word, two a counter, rows after rows. */
enum { SAMPLES_A_COUNTER = 2 };

rp_status rp__run_multinomial(const rp__call *call) {
    rp_dtype in = (rp_dtype)call->in[0]->dtype;
    rp_tensor *weights = rp__run_contiguous(call->in[0], in == RP_F64 ? RP_F64 : RP_F32), *out = call->out[0];
    if (rp__tensor_is_error(weights)) return rp_error_status();
    rp__device *d = rp__device_get(out->device);
    if (!d) return rp_error_status();
    rp__library_call library = {.replacement = rp__attr_bool(call, 1)};
    uint64_t samples = (uint64_t)rp__tensor_numel(out), per = SAMPLES_A_COUNTER;
    RP_TRY(rp__reserve_draw(call, 2, d, rp__current_stream(d), samples / per + (samples % per != 0), &library.draw));
    if (rp__dim_same_word(rp__tensor_numel(out), 0)) return RP_OK;
    rp__operand o[2] = {rp__operand_of(out), rp__operand_of(weights)};
    for (unsigned k = 0; k < 2 && out->ndim == 1; k++) {
        o[k].ndim = 2;
        o[k].size[1] = o[k].size[0];
        o[k].stride[1] = o[k].stride[0];
        o[k].size[0] = 1;
        o[k].stride[0] = o[k].size[1];
    }
    return rp__run_library_op(call, RP__LIB_MULTINOMIAL, o, 2, &library);
}

/* ---- counters, without running: the lowering of a loop op is asked with a sink that keeps nothing */

typedef struct probe {
    rp__lower_sink sink;
    unsigned words; /* an element, of the one draw */
} probe;

static rp__val probe_in(rp__lower_sink *s, const rp__call *call, unsigned k, bool front) {
    (void)s, (void)call, (void)k, (void)front;
    return 0;
}

static void probe_out(rp__lower_sink *s, const rp__call *call, unsigned k, rp__val v) {
    (void)s, (void)call, (void)k, (void)v;
}

static rp__val probe_scalar(rp__lower_sink *s, const rp__call *call, const rp__lower_scalar *from, rp_dtype compute) {
    (void)s, (void)call, (void)from, (void)compute;
    return 0;
}

static rp__val probe_iota(rp__lower_sink *s, const rp__call *call, rp__lower_iota kind, unsigned dim) {
    (void)s, (void)call, (void)kind, (void)dim;
    return 0;
}

static unsigned probe_draw(rp__lower_sink *s, const rp__call *call, unsigned generator_attr, bool wide) {
    (void)call, (void)generator_attr;
    ((probe *)(void *)s)->words = wide ? 2 : 1;
    return 0;
}

rp_status rp__op_counters(const rp__call *call, rp_dim *out) {
    const uint64_t failures = rp__error_count();
    int64_t per = SAMPLES_A_COUNTER; /* multinomial, no loop either */
    rp_dim numbers = rp__tensor_numel(call->out[0]);
    if (call->op == RP__OP(attention_place)) {
        numbers = rp__attention_weights(call);
        per = 4;
    } else if (call->op->rule.run == rp__run_standard_gamma || call->op->rule.run == rp__run_poisson ||
               call->op->rule.run == rp__run_binomial) {
        per = 1;
    } else if (call->op->lowering == RP__POINTWISE) {
        probe p = {
            .sink = {.in = probe_in, .out = probe_out, .scalar = probe_scalar, .iota = probe_iota, .draw = probe_draw}};
        RP_TRY(rp__lower_into(&p.sink, call));
        per = p.words == 2 ? 2 : 4;
    }
    *out = rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_ADD, numbers, per - 1), per);
    return rp__status_since(failures);
}

/* ---- draws in the size and dtype of a tensor, whose values nobody reads */

/* uniform: from <= to; normal: std >= 0; exponential: lambd > 0. */
rp_status rp__infer_draw(const rp__call *call, rp__meta *out) {
    const rp__op *op = call->op->functional_op ? call->op->functional_op : call->op;
    const unsigned n = call->n_attrs - 1;
    const double a = n > 0 ? rp__attr_float(call, 0) : 0, b = n > 1 ? rp__attr_float(call, 1) : 0;
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    if (op->rule.lower == rp__lower_uniform && !(a <= b && b - a <= DBL_MAX))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "expects to return a [from, to) range, but found from=%g > to=%g", a, b);
    if (op->rule.lower == rp__lower_normal && !(b >= 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects std >= 0.0, but found std %g", b);
    if (op->rule.lower == rp__lower_exponential && !(a > 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects lambda > 0.0, but found lambda=%g", a);
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

static rp_scalar width_of(const rp__call *call) { return rp_f64(rp__attr_float(call, 1) - rp__attr_float(call, 0)); }

void rp__lower_uniform(rp__lower *lw) {
    const rp_dtype dtype = rp__lw_out_dtype(lw, 0), compute = rp__lw_compute(dtype);
    const rp__val scaled = rp__lw_2(lw, RP__MUL, unit(lw, dtype, 2), rp__lw_scalar_fn(lw, width_of, compute));
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__ADD, rp__lw_attr(lw, 0, compute), scaled));
}

void rp__lower_normal(rp__lower *lw) {
    const rp_dtype compute = rp__lw_compute(rp__lw_out_dtype(lw, 0));
    const rp__val z = rp__lw_random(lw, 2, RP__PHILOX_NORMAL, compute);
    const rp__val scaled = rp__lw_2(lw, RP__MUL, z, rp__lw_attr(lw, 1, compute));
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__ADD, rp__lw_attr(lw, 0, compute), scaled));
}

/* -log(1 - u) / lambd; u = 0, whose logarithm is 0, as half of the least u above it. */
void rp__lower_exponential(rp__lower *lw) {
    const rp_dtype dtype = rp__lw_out_dtype(lw, 0), compute = rp__lw_compute(dtype);
    const rp__val u = unit(lw, dtype == RP_F64 ? RP_F64 : RP_F32, 1);
    const rp__val least = rp__lw_const(lw, compute, dtype == RP_F64 ? 0x1p-54 : 0x1p-25);
    const rp__val log = rp__lw_1(lw, RP__LOG1P, rp__lw_1(lw, RP__NEG, rp__lw_2(lw, RP__MAX, u, least)));
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__DIV, rp__lw_1(lw, RP__NEG, log), rp__lw_attr(lw, 0, compute)));
}

rp_status rp__infer_random(const rp__call *call, rp__meta *out) {
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    RP_TRY(rp__call_check_range(call, dtype));
    rp__meta_like(out, call->in[0], dtype);
    return RP_OK;
}
void rp__lower_random(rp__lower *lw) { whole_numbers(lw, 2); }

/* A probability is none: an index out of range of 1. */
void rp__lower_bernoulli(rp__lower *lw) {
    const rp_dtype dtype = rp__lw_out_dtype(lw, 0), compute = rp__lw_compute(dtype);
    const rp__val p = rp__lw_in(lw, 0), u = unit(lw, dtype == RP_F64 ? RP_F64 : RP_F32, 0);
    const rp__val good = rp__lw_2(lw, RP__AND, rp__lw_2(lw, RP__LE, rp__lw_const(lw, compute, 0), p),
                                  rp__lw_2(lw, RP__LE, p, rp__lw_const(lw, compute, 1)));
    const rp__val one = rp__lw_const_i(lw, RP_I64, 1);
    const rp__val bad = rp__lw_check_index(lw, rp__lw_cast(lw, rp__lw_1(lw, RP__NOT, good), RP_I64), one, false);
    const rp__val hit = rp__lw_2(lw, RP__AND, rp__lw_2(lw, RP__LT, u, p), rp__lw_2(lw, RP__LT, bad, one));
    rp__lw_out(lw, 0, rp__lw_cast(lw, hit, compute));
}

rp_status rp__infer_bernoulli_p(const rp__call *call, rp__meta *out) {
    const double p = rp__attr_float(call, 0);
    if (!(p >= 0 && p <= 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects p to be in [0, 1], but got p=%g", p);
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}
void rp__lower_bernoulli_p(rp__lower *lw) {
    const rp_dtype dtype = rp__lw_out_dtype(lw, 0), as = dtype == RP_F64 ? RP_F64 : RP_F32;
    const rp__val hit = rp__lw_2(lw, RP__LT, unit(lw, as, 1), rp__lw_attr(lw, 0, as));
    rp__lw_out(lw, 0, rp__lw_cast(lw, hit, rp__lw_compute(dtype)));
}

/* The order of random numbers of 62 bits; equal ones, which hardly occur, stay as they are. */
rp_status rp__expand_randperm(const rp__call *call) {
    const rp_dim n = rp__attr_int(call, 0);
    const rp_dtype asked = call->attrs[2].v.dtype, dtype = asked == RP_DTYPE_NONE ? RP_I64 : asked;
    if (rp__dim_is(RP__DIM_LT, n, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "n must be non-negative, got %lld",
                            (long long)rp__dim_hint(n));
    if (!rp__dtype_is_valid(dtype) || dtype == RP_BOOL) return rp__call_refuse_dtype(call, dtype);
    rp_tensor *keys = rp_randint_at(call->site, 0, INT64_C(1) << 62, &n, 1,
                                    RP_OPTIONS(rp_randint_options, .generator = call->attrs[1].v.generator));
    rp_tensor *order = rp_argsort_at(call->site, keys, 0, false, NULL);
    call->out[0] = dtype == RP_I64 ? order : rp_to_dtype_at(call->site, order, dtype, NULL);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}
