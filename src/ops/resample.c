/* Images and volumes at other places. interpolate goes dim by dim, each an INDEXED kernel that gathers a few places of its operand with
   their weights; so is its gradient, which gathers from the results that a place had a part in. The rest are compositions of views,
   gathers and pointwise ops. */
#include "ops/grad.h"

#include "ops/execute.h"
#include "ops/format.h"
#include "ops/infer.h"
#include "ops/library_ops.h"
#include "ops/norm.h"
#include "ops/private.h"
#include "ops/rules.h"
#include "ops/view.h"

#include <math.h>
#include <string.h>

static rp_status done(const rp__call *call, rp_tensor *out) {
    call->out[0] = out;
    return rp__tensor_is_error(out) ? rp_error_status() : RP_OK;
}
static rp_tensor *to_type(rp_tensor *t, const rp_tensor *like) {
    return rp__tensor_is_error(t) || t->dtype == like->dtype ? t : rp_to_dtype(t, (rp_dtype)like->dtype);
}

/* ---- one dim */

typedef enum resample_mode { NEAREST, NEAREST_EXACT, LINEAR, CUBIC } resample_mode;
enum { TAPS = 4 };
static const unsigned taps_of[] = {1, 1, 2, 4};

typedef struct resampling {
    unsigned dim;
    resample_mode mode;
    bool align;
    rp_dim from, to; /* places of what is read forward, and of the result */
} resampling;

/* Attributes: dim, size, mode, align_corners, step. back: size is that of what was read, operand 0 the gradient. */
static rp_status resampling_of(const rp__call *call, bool back, resampling *r) {
    const rp_tensor *t = call->in[0];
    const int64_t mode = rp__attr_int(call, 2);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &r->dim));
    if (mode < NEAREST || mode > CUBIC || t->ndim == 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "there is no mode %lld", (long long)mode);
    r->mode = (resample_mode)mode;
    r->align = rp__attr_bool(call, 3);
    const rp_dim own = t->size[r->dim], other = rp__attr_int(call, 1);
    r->from = back ? other : own;
    r->to = back ? own : other;
    if (rp__dim_is(RP__DIM_LT, r->from, 1) || rp__dim_is(RP__DIM_LT, r->to, 1))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Input and output sizes should be greater than 0, but got %lld and %lld",
                            (long long)rp__dim_hint(r->from), (long long)rp__dim_hint(r->to));
    return rp__call_need_float(call, (rp_dtype)t->dtype);
}

/* From a place of the result to the next, in places of what is read. */
static double step_of(const rp__call *call, bool back) {
    resampling r;
    const double given = rp__attr_float(call, 4);
    if (resampling_of(call, back, &r) != RP_OK) return 1;
    if (r.align && r.mode > NEAREST_EXACT)
        return rp__dim_number(r.to) > 1 ? (double)(r.from - 1) / (double)(r.to - 1) : 0;
    if (given > 0) return given;
    const bool wide = call->in[0]->dtype == RP_F64;
    return wide ? (double)r.from / (double)r.to : (double)((float)r.from / (float)r.to);
}
static rp_scalar step_forward(const rp__call *call) { return rp_f64(step_of(call, false)); }
static rp_scalar step_back(const rp__call *call) { return rp_f64(step_of(call, true)); }
/* Results from one place of the operand to the next. */
static rp_scalar inverse_step(const rp__call *call) {
    const double step = step_of(call, true);
    return rp_f64(step > 0 ? 1 / step : 0);
}

static rp__val two(rp__lower *lw, rp__prim op, rp__val a, rp__val b) { return rp__lw_2(lw, op, a, b); }
static rp__val number(rp__lower *lw, rp_dtype t, double v) { return rp__lw_const(lw, t, v); }
static rp__val within(rp__lower *lw, rp__val x, rp__val low, rp__val high) {
    return two(lw, RP__MIN, two(lw, RP__MAX, x, low), high);
}

/* a + x (b + x (c + x d)) */
static rp__val cubic(rp__lower *lw, rp_dtype t, rp__val x, const double c[4]) {
    rp__val y = number(lw, t, c[3]);
    for (int k = 2; k >= 0; k--) y = two(lw, RP__ADD, two(lw, RP__MUL, y, x), number(lw, t, c[k]));
    return y;
}

/* What result i (i64) reads: the places and, but for the nearest, their weights in type t. */
static void taps(rp__lower *lw, const resampling *r, rp__val i, rp__val step, rp_dtype t, rp__val place[TAPS],
                 rp__val weight[TAPS]) {
    const rp__val zero = rp__lw_const_i(lw, RP_I64, 0), one = rp__lw_const_i(lw, RP_I64, 1);
    const rp__val last = two(lw, RP__SUB, rp__lw_size(lw, r->from), one);
    rp__val x = rp__lw_cast(lw, i, t);
    const bool halves = r->mode != NEAREST && !(r->align && r->mode > NEAREST_EXACT);
    if (halves) x = two(lw, RP__ADD, x, number(lw, t, 0.5));
    x = two(lw, RP__MUL, x, step);
    if (halves && r->mode > NEAREST_EXACT) x = two(lw, RP__SUB, x, number(lw, t, 0.5));
    if (r->mode == LINEAR && halves) x = two(lw, RP__MAX, x, number(lw, t, 0));
    rp__val low = rp__lw_1(lw, RP__FLOOR, x);
    if (r->mode <= NEAREST_EXACT) {
        /* No place is below 0, and who divides the work sees it. The last one may be no number of type t. */
        low = two(lw, RP__MAX, low, number(lw, t, 0));
        place[0] = two(lw, RP__MIN, rp__lw_cast(lw, low, RP_I64), last);
        return;
    }
    rp__val at = two(lw, RP__MIN, rp__lw_cast(lw, low, RP_I64), last);
    rp__val f = within(lw, two(lw, RP__SUB, x, rp__lw_cast(lw, at, t)), number(lw, t, 0), number(lw, t, 1));
    rp__val rest = two(lw, RP__SUB, number(lw, t, 1), f);
    if (r->mode == LINEAR) {
        place[0] = at;
        place[1] = two(lw, RP__MIN, two(lw, RP__ADD, at, one), last);
        weight[0] = rest;
        weight[1] = f;
        return;
    }
    /* Cubic convolution with a = -3/4 (Keys 1981): of distances up to 1, and up to 2. */
    static const double near[4] = {1, 0, -2.25, 1.25}, far[4] = {3, -6, 3.75, -0.75};
    for (int k = 0; k < 4; k++)
        place[k] = within(lw, two(lw, RP__ADD, at, rp__lw_const_i(lw, RP_I64, k - 1)), zero, last);
    weight[0] = cubic(lw, t, two(lw, RP__ADD, f, number(lw, t, 1)), far);
    weight[1] = cubic(lw, t, f, near);
    weight[2] = cubic(lw, t, rest, near);
    weight[3] = cubic(lw, t, two(lw, RP__ADD, rest, number(lw, t, 1)), far);
}

static rp_dtype weights_type(const rp__lower *lw) {
    return rp__lw_compute(rp__lw_in_dtype(lw, 0)) == RP_F64 ? RP_F64 : RP_F32;
}

rp_status rp__infer_resample(const rp__call *call, rp__meta *out) {
    resampling r;
    RP_TRY(resampling_of(call, false, &r));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    out->size[r.dim] = r.to;
    return RP_OK;
}

void rp__lower_resample(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    const rp_dtype type = weights_type(lw);
    resampling r;
    rp_dim stride[RP_MAX_DIMS];
    rp__val place[TAPS], weight[TAPS], y = 0;
    if (resampling_of(call, false, &r) != RP_OK) return;
    (void)rp__lw_structural_value(lw, r.mode * 2 + r.align);
    rp__lw_space(lw, call->out[0]->size, t->ndim, 0);
    memcpy(stride, t->stride, t->ndim * sizeof *stride);
    stride[r.dim] = 0;
    taps(lw, &r, rp__lw_dim_index(lw, r.dim), rp__lw_scalar_fn(lw, step_forward, type), type, place, weight);
    const uint16_t access = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    const rp__val along = rp__lw_size(lw, t->stride[r.dim]);
    for (unsigned k = 0; k < taps_of[r.mode]; k++) {
        rp__val x = rp__lw_load(lw, access, two(lw, RP__MUL, place[k], along), RP__NO_VAL);
        if (r.mode > NEAREST_EXACT) x = two(lw, RP__MUL, x, weight[k]);
        y = k ? two(lw, RP__ADD, y, x) : x;
    }
    rp__lw_out(lw, 0, y);
}

/* ---- the nearest place along the last dims at once: what several passes would copy is read where it lies */

enum { MOST_NEAREST = 3 };

/* Dim k of those. Attributes: size, mode, step. */
static bool nearest_along(const rp__call *call, unsigned k, resampling *r) {
    const rp_attr *a = call->attrs;
    const rp_tensor *t = call->in[0];
    if (a[0].n < 1 || a[0].n > MOST_NEAREST || a[2].n != a[0].n || a[0].n > t->ndim) return false;
    if (a[1].v.i != NEAREST && a[1].v.i != NEAREST_EXACT) return false;
    *r = (resampling){.dim = (unsigned)(t->ndim - a[0].n + k), .mode = a[1].v.i == NEAREST ? NEAREST : NEAREST_EXACT};
    r->from = t->size[r->dim];
    r->to = a[0].v.ints[k];
    return true;
}
static rp_scalar nearest_step(const rp__call *call, unsigned k) {
    resampling r;
    if (!nearest_along(call, k, &r)) return rp_f64(1);
    const double given = call->attrs[2].v.floats[k];
    if (given > 0) return rp_f64(given);
    return rp_f64(call->in[0]->dtype == RP_F64 ? (double)r.from / (double)r.to : (double)((float)r.from / (float)r.to));
}
static rp_scalar nearest_first(const rp__call *call) { return nearest_step(call, 0); }
static rp_scalar nearest_second(const rp__call *call) { return nearest_step(call, 1); }
static rp_scalar nearest_third(const rp__call *call) { return nearest_step(call, 2); }

rp_status rp__infer_resample_nearest(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    resampling r;
    if (t->dtype != RP_U8) RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
    rp__meta_like(out, t, (rp_dtype)t->dtype);
    for (unsigned k = 0; k < call->attrs[0].n || k == 0; k++) {
        if (!nearest_along(call, k, &r) || rp__dim_is(RP__DIM_LT, r.from, 1) || rp__dim_is(RP__DIM_LT, r.to, 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "there are no such places");
        out->size[r.dim] = r.to;
    }
    return RP_OK;
}

void rp__lower_resample_nearest(rp__lower *lw) {
    static rp_scalar (*const steps[MOST_NEAREST])(const rp__call *call) = {nearest_first, nearest_second,
                                                                           nearest_third};
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    const rp_dtype type = weights_type(lw);
    const unsigned n = (unsigned)call->attrs[0].n;
    resampling r;
    rp_dim stride[RP_MAX_DIMS];
    rp__val place[TAPS], weight[TAPS], offset = 0;
    (void)rp__lw_structural_value(lw, (int64_t)n * 2 + (call->attrs[1].v.i == NEAREST));
    rp__lw_space(lw, call->out[0]->size, t->ndim, 0);
    memcpy(stride, t->stride, t->ndim * sizeof *stride);
    for (unsigned k = 0; k < n; k++) {
        if (!nearest_along(call, k, &r)) return;
        stride[r.dim] = 0;
        taps(lw, &r, rp__lw_dim_index(lw, r.dim), rp__lw_scalar_fn(lw, steps[k], type), type, place, weight);
        const rp__val by = two(lw, RP__MUL, place[0], rp__lw_size(lw, t->stride[r.dim]));
        offset = k ? two(lw, RP__ADD, offset, by) : by;
    }
    rp__lw_out(lw, 0, rp__lw_load(lw, rp__lw_access(lw, false, 0, stride, RP__ELEMENTS), offset, RP__NO_VAL));
}

rp_status rp__infer_resample_input(const rp__call *call, rp__meta *out) {
    resampling r;
    RP_TRY(resampling_of(call, true, &r));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    out->size[r.dim] = r.from;
    return RP_OK;
}

/* Places before and behind that have a part in a result, in all. */
static double width_of(const resampling *r) {
    static const double width[] = {[NEAREST] = 1, [NEAREST_EXACT] = 1, [LINEAR] = 2.5, [CUBIC] = 4.5};
    return width[r->mode];
}

/* Is each place the nearest of as many results, 1 / step, a power of two of them? Then coordinates are exact, and these are its own; but for
   results that their type does not hold with a half. */
static bool repeats(const resampling *r, rp_dtype type, double step) {
    const int64_t n = r->to / r->from, most = INT64_C(1) << (type == RP_F64 ? 52 : 23);
    return r->mode <= NEAREST_EXACT && rp__dim_number(r->to) <= most && r->to % r->from == 0 && (n & (n - 1)) == 0 &&
           step * (double)n == 1.0;
}

/* Place j is read by results whose coordinate is close to it: as many in a row as `reach` says, from those of the places before on. */
void rp__lower_resample_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    const rp_dtype type = weights_type(lw);
    resampling r;
    rp_dim size[RP_MAX_DIMS], stride[RP_MAX_DIMS];
    rp__val place[TAPS], weight[TAPS], total = 0, any = 0;
    if (resampling_of(call, true, &r) != RP_OK) return;
    const double step = step_of(call, true);
    const bool own = repeats(&r, type, step);
    (void)rp__lw_structural_value(lw, r.mode * 4 + r.align * 2 + own);
    const double wanted = own ? (double)(r.to / r.from) : step > 0 ? ceil(width_of(&r) / step) + 5 : (double)r.to;
    const rp_dim reach = wanted < (double)r.to ? (rp_dim)wanted : r.to;
    memcpy(size, call->out[0]->size, t->ndim * sizeof *size);
    size[t->ndim] = reach;
    rp__lw_space(lw, size, t->ndim + 1u, 1u << t->ndim);
    memcpy(stride, t->stride, t->ndim * sizeof *stride);
    if (own) {
        stride[r.dim] = t->stride[r.dim] * reach;
        stride[t->ndim] = t->stride[r.dim];
        const uint16_t results = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
        rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_load(lw, results, RP__NO_VAL, RP__NO_VAL)));
        return;
    }
    stride[r.dim] = stride[t->ndim] = 0;
    const rp__val j = rp__lw_dim_index(lw, r.dim), half = number(lw, type, 1.5);
    const rp__val before = number(lw, type, r.mode <= NEAREST_EXACT ? 0 : r.mode == LINEAR ? 1 : 2);
    rp__val first =
        two(lw, RP__MUL, two(lw, RP__SUB, rp__lw_cast(lw, j, type), before), rp__lw_scalar_fn(lw, inverse_step, type));
    first = rp__lw_cast(lw, rp__lw_1(lw, RP__FLOOR, two(lw, RP__SUB, first, half)), RP_I64);
    first = within(lw, first, rp__lw_const_i(lw, RP_I64, 0), rp__lw_size(lw, r.to - reach));
    const rp__val i = two(lw, RP__ADD, first, rp__lw_dim_index(lw, t->ndim));
    taps(lw, &r, i, rp__lw_scalar_fn(lw, step_back, type), type, place, weight);
    const uint16_t access = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    const rp__val zero = number(lw, type, 0);
    rp__val grad = rp__lw_load(lw, access, two(lw, RP__MUL, i, rp__lw_size(lw, t->stride[r.dim])), RP__NO_VAL);
    for (unsigned k = 0; k < taps_of[r.mode]; k++) {
        rp__val is = two(lw, RP__EQ, place[k], j);
        any = k ? two(lw, RP__OR, any, is) : is;
        if (r.mode <= NEAREST_EXACT) continue;
        rp__val w = rp__lw_3(lw, RP__WHERE, is, weight[k], zero);
        total = k ? two(lw, RP__ADD, total, w) : w;
    }
    if (r.mode > NEAREST_EXACT) grad = two(lw, RP__MUL, grad, total);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_3(lw, RP__WHERE, any, grad, zero)));
}

/* ---- sums of few places that are given with their weights */

static rp_status taps_fit(const rp__call *call, const rp_tensor *t) {
    const rp_tensor *index = call->in[1], *weight = call->in[2];
    bool fits =
        t->ndim == 3 && index->ndim == 3 && weight->ndim == 3 && rp__dtype_is_float((rp_dtype)t->dtype) &&
        (index->dtype == RP_I32 || index->dtype == RP_I64) && (weight->dtype == RP_F32 || weight->dtype == RP_F64) &&
        rp__dim_is(RP__DIM_EQ, index->size[0], t->size[0]) && !rp__dim_is(RP__DIM_LT, RP__MAX_TAPS, index->size[1]);
    for (unsigned d = 0; fits && d < 3; d++) fits = rp__dim_is(RP__DIM_EQ, index->size[d], weight->size[d]);
    return fits ? RP_OK
                : rp__op_error(call, RP_ERROR_SHAPE, "index and weight must be (N, K, P) of %s's N, K at most %d",
                               call->op->name, (int)RP__MAX_TAPS);
}

rp_status rp__infer_weighted_gather(const rp__call *call, rp__meta *out) {
    RP_TRY(taps_fit(call, call->in[0]));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    out->size[2] = call->in[1]->size[2];
    return RP_OK;
}

void rp__lower_weighted_gather(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *self = call->in[0], *index = call->in[1], *weight = call->in[2];
    const rp_dtype type = rp__lw_in_dtype(lw, 2);
    const int64_t taps = rp__lw_structural_value(lw, rp__dim_value(index->size[1]));
    const rp_dim of_self[3] = {self->stride[0], self->stride[1], 0},
                 of_index[3] = {index->stride[0], 0, index->stride[2]},
                 of_weight[3] = {weight->stride[0], 0, weight->stride[2]};
    rp__lw_space(lw, call->out[0]->size, 3, 0);
    const uint16_t from = rp__lw_access(lw, false, 0, of_self, RP__ELEMENTS),
                   places = rp__lw_access(lw, false, 1, of_index, RP__ELEMENTS),
                   weights = rp__lw_access(lw, false, 2, of_weight, RP__ELEMENTS);
    const rp__val zero = rp__lw_const_i(lw, RP_I64, 0), along = rp__lw_size(lw, self->stride[2]);
    const rp__val last = two(lw, RP__SUB, rp__lw_size(lw, self->size[2]), rp__lw_const_i(lw, RP_I64, 1));
    const rp__val next = rp__lw_size(lw, index->stride[1]), next_weight = rp__lw_size(lw, weight->stride[1]);
    rp__val y = number(lw, type, 0);
    for (int64_t k = 0; k < taps; k++) {
        const rp__val tap = rp__lw_const_i(lw, RP_I64, k);
        rp__val i = rp__lw_load(lw, places, two(lw, RP__MUL, next, tap), RP__NO_VAL);
        i = rp__lw_cast(lw, i, RP_I64);
        const rp__val inside = two(lw, RP__LE, zero, i);
        const rp__val at = two(lw, RP__MUL, within(lw, i, zero, last), along);
        rp__val x = rp__lw_cast(lw, rp__lw_load(lw, from, at, inside), type);
        x = two(lw, RP__MUL, x, rp__lw_load(lw, weights, two(lw, RP__MUL, next_weight, tap), RP__NO_VAL));
        y = k ? two(lw, RP__ADD, y, x) : x;
    }
    rp__lw_out(lw, 0, y);
}

rp_status rp__infer_weighted_scatter(const rp__call *call, rp__meta *out) {
    const rp_tensor *grad = call->in[0];
    RP_TRY(taps_fit(call, grad));
    if (!rp__dim_is(RP__DIM_EQ, grad->size[2], call->in[1]->size[2]))
        return rp__op_error(call, RP_ERROR_SHAPE, "grad must have the places of index");
    rp__meta_like(out, grad, (rp_dtype)call->in[2]->dtype);
    out->size[2] = rp__attr_int(call, 0);
    return RP_OK;
}

rp_status rp__run_weighted_scatter(const rp__call *call) {
    RP_TRY(rp__run_fill(call->out[0], rp_i64(0)));
    rp__operand operands[4] = {rp__operand_of(call->out[0])};
    for (unsigned k = 0; k < 3; k++) operands[1 + k] = rp__operand_of(call->in[k]);
    rp__library_call library = {0};
    return rp__run_library_op(call, RP__LIB_WEIGHTED_SCATTER, operands, 4, &library);
}

/* ---- weighted means of few places: antialiased, where the filter's reach grows as places become fewer, and of uint8 */

static rp_tensor *plus(rp_tensor *t, double v) { return rp_add_scalar(t, rp_f64(v)); }
static rp_tensor *times(rp_tensor *t, double v) { return rp_mul_scalar(t, rp_f64(v)); }

/* Numbers calculated of sizes, which stay symbols where sizes are. */
static rp_scalar num(rp__num_op op, rp_scalar a, rp_scalar b) { return rp__num_apply(op, a, b); }
static rp_scalar less_one(rp_dim n) { return rp__scalar_dim(rp__dim_apply(RP__DIM_SUB, n, 1)); }
/* ceil(k a / b) */
static rp_dim ceil_of(int64_t k, rp_dim a, rp_dim b) {
    const rp_dim up = rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_MUL, a, k), rp__dim_apply(RP__DIM_SUB, b, 1));
    return rp__dim_apply(RP__DIM_FLOORDIV, up, b);
}

/* At distance x: a triangle, or cubic convolution with that a (Keys 1981). */
static rp_tensor *filtered(rp_tensor *x, resample_mode mode, double a) {
    rp_tensor *d = rp_abs(x);
    if (mode == LINEAR) return rp_relu(plus(rp_neg(d), 1));
    rp_tensor *near = plus(rp_mul(rp_mul(plus(times(d, a + 2), -(a + 3)), d), d), 1);
    rp_tensor *far = times(plus(rp_mul(plus(rp_mul(plus(d, -5), d), 8), d), -4), a);
    return rp_where(rp_lt_scalar(d, rp_i64(1)), near, rp_where(rp_lt_scalar(d, rp_i64(2)), far, rp__zero_like(d)));
}

typedef struct few_places {
    rp_dim n; /* of each result */
    rp_tensor *place, *inside,
        *weight; /* (results, n): i64, within the operand or not; bool; f64, which add up to 1, outside 0 */
} few_places;

/* From a place of the result to the next, in places of what is read; *shrinks: more than one. */
static rp_scalar step_between(rp_dim from, rp_dim to, bool align, double step, bool *shrinks) {
    *shrinks = step > 1;
    if (!align && step > 0) return rp_f64(step);
    /* from / to, of the last places if these are aligned */
    const rp_dim ends = align ? 1 : 0, before = rp__dim_apply(RP__DIM_SUB, from, ends),
                 after = rp__dim_apply(RP__DIM_SUB, to, ends);
    const bool some = !align || rp__dim_is(RP__DIM_LT, 1, to);
    *shrinks = some && rp__dim_is(RP__DIM_LT, after, before);
    return some ? num(RP__NUM_DIV, rp__scalar_dim(before), rp__scalar_dim(after)) : rp_f64(0);
}

static rp_tensor *places_along(const rp_tensor *x, rp_dim n, double shift, rp_scalar step) {
    return rp_mul_scalar(plus(rp_to_dtype(rp__count_beside(x, n), RP_F64), shift), step);
}

/* Antialiased. A place outside of the filter is not looked at. */
static few_places smoothing(const rp_tensor *x, unsigned dim, rp_dim to, resample_mode mode, bool align, double step) {
    const rp_dim from = x->size[dim];
    const int64_t radius = mode == LINEAR ? 1 : 2;
    rp_dim reached = radius; /* places to either side */
    bool shrinks;
    const rp_scalar scale = step_between(from, to, align, step, &shrinks);
    if (shrinks && (align || step <= 0)) {
        const rp_dim ends = align ? 1 : 0;
        reached = ceil_of(radius, rp__dim_apply(RP__DIM_SUB, from, ends), rp__dim_apply(RP__DIM_SUB, to, ends));
    } else if (shrinks) {
        const double places = ceil((double)radius * step);
        reached = places < 0x1p52 ? (rp_dim)places : from;
    }
    const rp_scalar stretch = shrinks ? scale : rp_f64(1), reach = num(RP__NUM_MUL, rp_f64((double)radius), stretch);
    const rp_dim most = rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_MUL, reached, 2), 1);
    few_places f = {.n = rp__dim_apply(RP__DIM_MIN, most, from)};
    rp_tensor *center = places_along(x, to, 0.5, scale);
    const rp_scalar half = rp_f64(0.5), low = num(RP__NUM_SUB, half, reach), high = num(RP__NUM_ADD, half, reach);
    rp_tensor *first = rp_clamp(rp_to_dtype(rp_add_scalar(center, low), RP_I64), rp_i64(0));
    rp_tensor *end = rp_unsqueeze(rp_to_dtype(rp_add_scalar(center, high), RP_I64), 1);
    f.place = rp_add(rp_unsqueeze(first, 1), rp__count_beside(x, f.n));
    f.inside = rp_logical_and(rp_lt(f.place, end), rp_lt_scalar(f.place, rp_i64(from)));
    rp_tensor *away = plus(rp_sub(rp_to_dtype(f.place, RP_F64), rp_unsqueeze(center, 1)), 0.5);
    rp_tensor *weight = filtered(rp_div_scalar(away, stretch), mode, -0.5);
    weight = rp_where(f.inside, weight, rp__zero_like(weight));
    f.weight = rp_div(weight, rp_sum(weight, RP_DIMS(1), true));
    return f;
}

/* Of as many places as the filter has; those beyond an edge are the edge, whose weight is their sum. */
static few_places between(const rp_tensor *x, unsigned dim, rp_dim to, resample_mode mode, bool align, double step) {
    const rp_dim from = x->size[dim];
    const int64_t radius = mode == LINEAR ? 1 : 2;
    bool shrinks;
    const rp_scalar scale = step_between(from, to, align, step, &shrinks);
    few_places f = {.n = 2 * radius};
    rp_tensor *center = places_along(x, to, align ? 0 : 0.5, scale);
    rp_tensor *first = rp_to_dtype(rp_floor(plus(center, (align ? 1 : 0.5) - (double)radius)), RP_I64);
    rp_tensor *order = rp__count_beside(x, f.n);
    f.place = rp_add(rp_unsqueeze(first, 1), order);
    rp_tensor *away = plus(rp_sub(rp_to_dtype(f.place, RP_F64), rp_unsqueeze(center, 1)), align ? 0 : 0.5);
    rp_tensor *weight = filtered(away, mode, -0.75);
    weight = rp_div(weight, rp_sum(weight, RP_DIMS(1), true));
    f.inside = rp_logical_and(rp_gt_scalar(f.place, rp_i64(0)), rp_lt_scalar(f.place, rp_i64(from)));
    f.inside = rp_logical_or(f.inside, rp_eq_scalar(order, rp_i64(0)));
    rp_tensor *at = rp_clamp(f.place, rp_i64(0), less_one(from));
    rp_tensor *same = rp_eq(rp_unsqueeze(at, 2), rp_unsqueeze(at, 1)); /* (results, n, n) */
    rp_tensor *zero = rp__zero_like(weight);
    weight = rp_sum(rp_where(same, rp_unsqueeze(weight, 1), zero), RP_DIMS(2));
    f.weight = rp_where(f.inside, weight, zero);
    return f;
}

/* x at those places of a dim, which are a dim more behind it. */
static rp_tensor *picked(rp_tensor *x, unsigned dim, rp_dim to, const few_places *f) {
    rp_tensor *at = rp_reshape(rp_clamp(f->place, rp_i64(0), less_one(x->size[dim])), RP_DIMS(-1));
    return rp_unflatten(rp_index_select(x, dim, at), dim, RP_DIMS(to, f->n));
}
/* (results, n) beside what was picked. */
static rp_tensor *beside_picked(rp_tensor *t, const rp_tensor *x, unsigned dim) {
    for (unsigned d = dim + 1u; d < x->ndim; d++) t = rp_unsqueeze(t, -1);
    return t;
}

/* Along one dim, antialiased. */
static rp_tensor *smoothed(rp_tensor *x, unsigned dim, rp_dim to, resample_mode mode, bool align, double step) {
    if (rp__tensor_is_error(x)) return x;
    const few_places f = smoothing(x, dim, to, mode, align, step);
    rp_tensor *weight = beside_picked(rp_to_dtype(f.weight, (rp_dtype)x->dtype), x, dim);
    rp_tensor *read = rp_where(beside_picked(f.inside, x, dim), picked(x, dim, to, &f), rp__zero_like(x));
    return rp_sum(rp_mul(read, weight), RP_DIMS((int64_t)dim + 1));
}

/* Along one dim of uint8, as PyTorch does on a CPU: weights are numbers of 16 bits, in units of the least power of two with which all
   are (2^-22 at least), sums are exact, and each dim's results are rounded to bytes. All of that in f64, which holds it. */
static rp_tensor *resampled_bytes(rp_tensor *x, unsigned dim, rp_dim to, resample_mode mode, bool smooths, bool align,
                                  double step) {
    enum { FINEST = 22, WEIGHT_BITS = 15 };
    if (rp__tensor_is_error(x)) return x;
    const few_places f = (smooths ? smoothing : between)(x, dim, to, mode, align, step);
    rp_tensor *powers = rp__count_beside(x, FINEST);
    powers = rp_bitwise_left_shift(rp_full_like(powers, rp_i64(2), NULL), powers); /* 2 to 2^22 */
    powers = rp_to_dtype(powers, RP_F64);
    rp_tensor *largest = plus(rp_mul(powers, rp_amax(f.weight, RP_NO_DIMS)), 0.5);
    rp_tensor *units = rp_where(rp_lt_scalar(largest, rp_i64(1 << WEIGHT_BITS)), powers, rp__zero_like(powers));
    units = rp_clamp(rp_amax(units, RP_NO_DIMS), rp_i64(1));
    rp_tensor *weight = rp_mul(f.weight, units);
    weight = rp_trunc(rp_add(weight, times(rp_sign(weight), 0.5))); /* to the nearest, halves away from 0 */
    rp_tensor *sum = rp_mul(rp_to_dtype(picked(x, dim, to, &f), RP_F64), beside_picked(weight, x, dim));
    sum = rp_sum(sum, RP_DIMS((int64_t)dim + 1));
    return rp_to_dtype(rp_clamp(rp_floor(plus(rp_div(sum, units), 0.5)), rp_i64(0), rp_i64(UINT8_MAX)), RP_U8);
}

/* ---- interpolate */

typedef struct named_mode {
    const char *name;
    resample_mode mode;
    unsigned spatial; /* 0: any */
    bool aligns;
} named_mode;
static const named_mode modes[] = {{"nearest", NEAREST, 0, false}, {"nearest-exact", NEAREST_EXACT, 0, false},
                                   {"linear", LINEAR, 1, true},    {"bilinear", LINEAR, 2, true},
                                   {"trilinear", LINEAR, 3, true}, {"bicubic", CUBIC, 2, true},
                                   {"area", NEAREST, 0, false}};
enum { AREA = sizeof modes / sizeof *modes - 1 };

/* floor(size * factor) in float64. A symbol stays one by a factor of few bits, whose products are exact; by another it is fixed. */
static bool scaled(rp_dim size, double factor, rp_dim *out) {
    enum { FEW = 1 << 20 };
    int64_t parts = 1;
    while (factor * (double)parts != floor(factor * (double)parts) && parts < FEW) parts *= 2;
    const double whole = factor * (double)parts;
    if (rp__dim_is_symbol(size) && whole >= 1 && whole < FEW && whole == floor(whole) &&
        rp__dim_is(RP__DIM_LT, size, INT64_C(1) << 33)) {
        *out = rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_MUL, size, (int64_t)whole), parts);
        return true;
    }
    const double places = (double)rp__dim_value(size) * factor;
    *out = places >= 0 && places < 0x1p53 ? (rp_dim)floor(places) : 0;
    return places >= 0 && places < 0x1p53;
}

rp_status rp__expand_interpolate(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const rp_attr *size = &call->attrs[0], *scale = &call->attrs[1];
    const char *name = call->attrs[2].v.string;
    const bool has_align = !rp__attr_is_none(&call->attrs[3]), align = has_align && call->attrs[3].v.scalar.v.b;
    const bool again = !rp__attr_is_none(&call->attrs[4]) && call->attrs[4].v.scalar.v.b;
    const bool sized = size->v.ints != NULL;
    unsigned which = 0;
    while (which <= AREA && strcmp(modes[which].name, name) != 0) which++;
    if (which > AREA || x->ndim < 3 || x->ndim > 5)
        return rp__op_error(
            call, RP_ERROR_INVALID_ARGUMENT,
            "Only 3D, 4D and 5D input Tensors supported (got %uD) for the modes: nearest | linear | bilinear | "
            "bicubic | trilinear | area | nearest-exact (got %s)",
            x->ndim, name);
    const named_mode *m = &modes[which];
    const unsigned s = x->ndim - 2u;
    if (m->spatial && m->spatial != s)
        return rp__op_error(call, RP_ERROR_SHAPE, "Got %uD input, but %s mode needs %uD input", x->ndim, name,
                            m->spatial + 2);
    if (has_align && !m->aligns)
        return rp__op_error(
            call, RP_ERROR_INVALID_ARGUMENT,
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | "
            "trilinear");
    const bool smooths = rp__attr_bool(call, 5);
    if (smooths && (s != 2 || m->spatial != 2))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor");
    if (sized && scale->n)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "only one of size or scale_factor should be defined");
    if (!sized && !scale->n)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "either size or scale_factor should be defined");
    const size_t given = sized ? size->n : scale->n;
    if (given != 1 && given != s)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Input and output must have the same number of spatial dimensions, but got %u and %zu", s,
                            given);
    rp_dim to[3];
    double step[3] = {0, 0, 0};
    for (unsigned d = 0; d < s; d++) {
        if (sized) {
            to[d] = size->v.ints[given == 1 ? 0 : d];
        } else {
            const double factor = scale->v.floats[given == 1 ? 0 : d];
            if (!scaled(x->size[2 + d], factor, &to[d]))
                return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "a scale factor must be positive, not %g", factor);
            /* Nearest of images on a CPU: of as many results or twice as many, places go by these numbers, as in PyTorch. */
            const bool by_sizes = s == 2 && m->mode == NEAREST && which != AREA && factor > 1 && factor < 3 &&
                                  factor != 2 && x->device.type == RP_DEVICE_CPU &&
                                  (rp__dim_is(RP__DIM_EQ, to[d], x->size[2 + d]) ||
                                   rp__dim_is(RP__DIM_EQ, to[d], rp__dim_apply(RP__DIM_MUL, x->size[2 + d], 2)));
            step[d] = again || by_sizes ? 0 : 1 / factor;
        }
        if (rp__dim_is(RP__DIM_LT, to[d], 1) || rp__dim_is(RP__DIM_LT, x->size[2 + d], 1))
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "Input and output sizes should be greater than 0, but got %lld and %lld",
                                (long long)rp__dim_hint(x->size[2 + d]), (long long)rp__dim_hint(to[d]));
    }
    if (which == AREA) {
        switch (s) {
        case 1: return done(call, rp_adaptive_avg_pool1d_at(call->site, x, to, 1));
        case 2: return done(call, rp_adaptive_avg_pool2d_at(call->site, x, to, 2));
        default: return done(call, rp_adaptive_avg_pool3d_at(call->site, x, to, 3));
        }
    }
    const bool bytes = x->dtype == RP_U8 && (m->mode <= NEAREST_EXACT || s == 2);
    if (!bytes) RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (m->mode <= NEAREST_EXACT) return done(call, rp_resample_nearest_at(call->site, x, to, s, m->mode, step, s));
    rp_tensor *y = s > 1 && !bytes ? rp__wide(x) : x;
    for (unsigned d = s; d-- > 0;) {
        /* A dim of that size is left alone; by a factor that antialiasing does not look at, others than bytes shift it a little. */
        if ((smooths || bytes || step[d] == 0) && rp__dim_is(RP__DIM_EQ, to[d], x->size[2 + d])) continue;
        if (bytes)
            y = resampled_bytes(y, d + 2, to[d], m->mode, smooths, align, step[d]);
        else
            y = smooths ? smoothed(y, d + 2, to[d], m->mode, align, step[d])
                        : rp_resample_at(call->site, y, (int64_t)d + 2, to[d], m->mode, align, step[d]);
    }
    return done(call, y == x ? rp_clone_at(call->site, x, NULL) : to_type(y, x));
}

/* ---- sampling by a grid */

typedef struct sampler {
    unsigned spatial;
    int64_t padding; /* 0 zeros, 1 border, 2 reflection */
    bool align;
    rp_dim size[3];
    rp_tensor *flat; /* (N, C, places) */
    rp_dim index[3]; /* (N, C, places of the grid) */
    const rp_tensor *grid;
} sampler;

/* Back into [low, high] from both ends, as often as it takes. */
static rp_tensor *reflected(rp_tensor *x, double low, rp_scalar high) {
    const rp_scalar span = num(RP__NUM_SUB, high, rp_f64(low));
    rp_tensor *far = rp_abs(plus(x, -low));
    rp_tensor *turns = rp_detach(rp_floor(rp_mul_scalar(far, num(RP__NUM_DIV, rp_f64(1), span))));
    rp_tensor *extra = rp_sub(far, rp_mul_scalar(turns, span));
    rp_tensor *even = rp_eq_scalar(rp_remainder_scalar(turns, rp_f64(2)), rp_f64(0));
    return rp_where(even, plus(extra, low), rp_add_scalar(rp_neg(extra), high));
}

/* A coordinate in places, put where the padding says. */
static rp_tensor *padded(const sampler *s, rp_tensor *x, unsigned d) {
    const rp_dim n = s->size[d];
    if (s->padding == 2 && s->align)
        x = rp__dim_is(RP__DIM_LT, 1, n) ? reflected(x, 0, less_one(n)) : times(x, 0);
    else if (s->padding == 2)
        x = reflected(x, -0.5, num(RP__NUM_SUB, rp__scalar_dim(n), rp_f64(0.5)));
    return s->padding ? rp_clamp(x, rp_f64(0), less_one(n)) : x;
}

/* Whole places (as floats) as numbers of elements (N, places of the grid); *inside: which there are. */
static rp_tensor *numbered(const sampler *s, rp_tensor *const *place, rp_tensor **inside) {
    rp_tensor *at = NULL;
    *inside = NULL;
    for (unsigned d = 0; d < s->spatial; d++) {
        const rp_scalar last = less_one(s->size[d]);
        rp_tensor *p = rp_detach(place[d]);
        rp_tensor *in = rp_logical_and(rp_ge_scalar(p, rp_f64(0)), rp_le_scalar(p, last));
        rp_tensor *i = rp_to_dtype(rp_clamp(p, rp_f64(0), last), RP_I64);
        *inside = *inside ? rp_logical_and(*inside, in) : in;
        at = at ? rp_add(rp_mul_scalar(at, rp__scalar_dim(s->size[d])), i) : i;
    }
    return at;
}

/* (N, places of the grid) beside (N, C, places). */
static rp_tensor *beside(rp_tensor *w) { return rp_unsqueeze(rp_flatten(w, 1, -1), 1); }

/* Elements at whole places, 0 outside. */
static rp_tensor *sample_nearest(const sampler *s, rp_tensor *const *place) {
    rp_tensor *inside, *at = numbered(s, place, &inside);
    rp_tensor *x = rp_gather(s->flat, 2, rp_expand(beside(at), s->index, 3));
    return rp_masked_fill_scalar(x, beside(rp_logical_not(inside)), rp_i64(0));
}

/* What a result is made of. */
typedef struct tap_list {
    unsigned n;
    rp_tensor *index[RP__MAX_TAPS], *weight[RP__MAX_TAPS];
} tap_list;

static void add_tap(const sampler *s, tap_list *taps, rp_tensor *const *place, rp_tensor *weight) {
    const bool few = rp__dim_is(RP__DIM_LE, s->flat->size[2], INT32_MAX);
    rp_tensor *inside, *at = numbered(s, place, &inside);
    at = rp_masked_fill_scalar(at, rp_logical_not(inside), rp_i64(-1));
    taps->index[taps->n] = beside(few ? rp_to_dtype(at, RP_I32) : at);
    taps->weight[taps->n++] = beside(weight);
}

static rp_tensor *summed(const sampler *s, const tap_list *taps) {
    return rp_weighted_gather(s->flat, rp_cat(taps->index, taps->n, 1), rp_cat(taps->weight, taps->n, 1));
}

static rp_tensor *sample_linear(const sampler *s, rp_tensor *const *x) {
    rp_tensor *low[3], *part[3];
    tap_list taps = {.n = 0};
    for (unsigned d = 0; d < s->spatial; d++) {
        low[d] = rp_detach(rp_floor(x[d]));
        part[d] = rp_sub(x[d], low[d]);
    }
    for (unsigned corner = 0; corner < 1u << s->spatial; corner++) {
        rp_tensor *place[3], *weight = NULL;
        for (unsigned d = 0; d < s->spatial; d++) {
            const bool high = corner >> (s->spatial - 1 - d) & 1u;
            place[d] = high ? plus(low[d], 1) : low[d];
            rp_tensor *w = high ? part[d] : plus(rp_neg(part[d]), 1);
            weight = weight ? rp_mul(weight, w) : w;
        }
        add_tap(s, &taps, place, weight);
    }
    return summed(s, &taps);
}

static rp_tensor *cubic_weight(rp_tensor *f, int k) {
    static const double near[4] = {1, 0, -2.25, 1.25}, far[4] = {3, -6, 3.75, -0.75};
    const double *c = k == 1 || k == 2 ? near : far;
    rp_tensor *x = k == 0 ? plus(f, 1) : k == 1 ? f : k == 2 ? plus(rp_neg(f), 1) : plus(rp_neg(f), 2);
    rp_tensor *y = plus(times(x, c[3]), c[2]);
    return plus(rp_mul(plus(rp_mul(y, x), c[1]), x), c[0]);
}

/* Four places along each dim: those of a picture at once, pictures of a volume one after the other. */
static rp_tensor *sample_cubic(const sampler *s, rp_tensor *const *x) {
    rp_tensor *at[3][4], *weight[3][4], *y = NULL;
    for (unsigned d = 0; d < s->spatial; d++) {
        rp_tensor *low = rp_detach(rp_floor(x[d])), *part = rp_sub(x[d], low);
        for (int k = 0; k < 4; k++) {
            at[d][k] = padded(s, plus(low, k - 1), d);
            weight[d][k] = cubic_weight(part, k);
        }
    }
    const unsigned first = s->spatial - 2, pictures = first ? 4 : 1;
    for (unsigned n = 0; n < pictures; n++) {
        tap_list taps = {.n = 0};
        for (unsigned k = 0; k < 16; k++) {
            rp_tensor *const row = at[first][k / 4], *const column = at[first + 1][k % 4];
            add_tap(s, &taps, (rp_tensor *[]){first ? at[0][n] : row, first ? row : column, column},
                    rp_mul(weight[first][k / 4], weight[first + 1][k % 4]));
        }
        rp_tensor *v = first ? rp_mul(summed(s, &taps), beside(weight[0][n])) : summed(s, &taps);
        y = y ? rp_add(y, v) : v;
    }
    return y;
}

rp_status rp__expand_grid_sampler(const rp__call *call) {
    rp_tensor *input = call->in[0], *grid = call->in[1];
    const int64_t mode = rp__attr_int(call, 0);
    sampler s = {
        .spatial = input->ndim - 2u, .padding = rp__attr_int(call, 1), .align = rp__attr_bool(call, 2), .grid = grid};
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    RP_TRY(rp__call_need_float(call, (rp_dtype)input->dtype));
    if (grid->dtype != input->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "expected input and grid to have same dtype, but input has %s and grid has %s",
                            rp_dtype_name((rp_dtype)input->dtype), rp_dtype_name((rp_dtype)grid->dtype));
    bool good = (input->ndim == 4 || input->ndim == 5) && grid->ndim == input->ndim &&
                rp__dim_is(RP__DIM_EQ, grid->size[0], input->size[0]) &&
                rp__dim_is(RP__DIM_EQ, grid->size[grid->ndim - 1], s.spatial);
    for (unsigned d = 2; good && d < input->ndim; d++) good = !rp__dim_is(RP__DIM_LT, input->size[d], 1);
    if (!good)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "expected input (N, C, places) of 4 or 5 dims without empty places and a grid (N, .., rank) of as many, "
            "but got %s and %s",
            rp__shape_text(input->size, input->ndim, a), rp__shape_text(grid->size, grid->ndim, b));
    if (mode < 0 || mode > 2 || s.padding < 0 || s.padding > 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "modes are 0 to 2, not %lld and %lld", (long long)mode,
                            (long long)s.padding);
    rp_tensor *x[3], *wide = rp__wide(grid), *y;
    s.flat = rp_flatten(mode == 2 && s.spatial == 3 ? rp__wide(input) : input, 2, -1); /* sums of sums are wide */
    s.index[0] = input->size[0];
    s.index[1] = input->size[1];
    s.index[2] = 1;
    for (unsigned d = 0; d < s.spatial; d++) {
        s.size[d] = input->size[2 + d];
        s.index[2] = rp__dim_apply(RP__DIM_MUL, s.index[2], grid->size[1 + d]);
        /* The last of a place is its first coordinate. A NaN is outside. */
        rp_tensor *at =
            rp_nan_to_num(rp_select(wide, -1, (int64_t)(s.spatial - 1 - d)), rp_f64(-1e6), rp_f64(1e6), rp_f64(-1e6));
        x[d] = s.align ? rp_mul_scalar(plus(at, 1), num(RP__NUM_DIV, less_one(s.size[d]), rp_i64(2)))
                       : times(plus(rp_mul_scalar(plus(at, 1), rp__scalar_dim(s.size[d])), -1), 0.5);
        if (mode != 2) x[d] = padded(&s, x[d], d);
        if (mode == 1) x[d] = rp_round(x[d]);
    }
    y = mode == 0 ? sample_linear(&s, x) : mode == 1 ? sample_nearest(&s, x) : sample_cubic(&s, x);
    rp_dim size[5] = {input->size[0], input->size[1]};
    for (unsigned d = 0; d < s.spatial; d++) size[2 + d] = grid->size[1 + d];
    return done(call, to_type(rp_view(y, size, input->ndim), input));
}

rp_status rp__expand_affine_grid_generator(const rp__call *call) {
    rp_tensor *theta = call->in[0], *y = NULL;
    const rp_attr *size = &call->attrs[0];
    const bool align = rp__attr_bool(call, 1);
    const unsigned s = size->n == 4 ? 2 : 3;
    char text[RP__SHAPE_TEXT];
    RP_TRY(rp__call_need_float(call, (rp_dtype)theta->dtype));
    if (size->n != 4 && size->n != 5)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "affine_grid_generator needs 4d (spatial) or 5d (volumetric) inputs, not a size of %zu",
                            size->n);
    bool good = theta->ndim == 3 && rp__dim_is(RP__DIM_EQ, theta->size[0], size->v.ints[0]) &&
                rp__dim_is(RP__DIM_EQ, theta->size[1], s) && rp__dim_is(RP__DIM_EQ, theta->size[2], s + 1);
    if (!good)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected a batch of %ux%u affine matrices, but got %s", s, s + 1,
                            rp__shape_text(theta->size, theta->ndim, text));
    rp_tensor *wide = rp__wide(theta);
    rp_dim column[5] = {theta->size[0], 1, 1, 1, 1};
    column[s + 1] = s;
    y = rp_view(rp_reshape(rp_select(wide, 2, s), column, s + 2), column, s + 2);
    for (unsigned d = 0; d < s; d++) { /* x, y, z: of the last place first */
        const unsigned dim = s - 1 - d;
        const rp_dim n = size->v.ints[2 + dim];
        if (rp__dim_is(RP__DIM_LT, n, 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "Expected non-zero, positive output size");
        const bool several = rp__dim_is(RP__DIM_LT, 1, n);
        const rp_scalar ends = several ? num(RP__NUM_DIV, rp_f64(2), less_one(n)) : rp_f64(0);
        rp_tensor *at = rp_to_dtype(rp__count_beside(theta, n), (rp_dtype)wide->dtype);
        at = align ? plus(rp_mul_scalar(at, ends), several ? -1 : 0)
                   : plus(rp_mul_scalar(plus(times(at, 2), 1), num(RP__NUM_DIV, rp_f64(1), rp__scalar_dim(n))), -1);
        rp_dim along[5] = {1, 1, 1, 1, 1};
        along[1 + dim] = n;
        y = rp_add(y, rp_mul(rp_view(at, along, s + 2), rp_reshape(rp_select(wide, 2, d), column, s + 2)));
    }
    return done(call, to_type(y, theta));
}

/* Which of three names attribute k is, -1: none. */
static int64_t one_of(const rp__call *call, unsigned k, const char *const names[3]) {
    for (int64_t i = 0; i < 3; i++)
        if (strcmp(call->attrs[k].v.string, names[i]) == 0) return i;
    return -1;
}
static bool given_true(const rp_attr *a) { return !rp__attr_is_none(a) && a->v.scalar.v.b; }

rp_status rp__expand_grid_sample(const rp__call *call) {
    static const char *const mode_names[3] = {"bilinear", "nearest", "bicubic"};
    static const char *const padding_names[3] = {"zeros", "border", "reflection"};
    const int64_t mode = one_of(call, 0, mode_names), padding = one_of(call, 1, padding_names);
    if (mode < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '%s'",
                            call->attrs[0].v.string);
    if (padding < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "expected padding_mode to be 'zeros', 'border', or 'reflection', but got: '%s'",
                            call->attrs[1].v.string);
    return done(call,
                rp_grid_sampler_at(call->site, call->in[0], call->in[1], mode, padding, given_true(&call->attrs[2])));
}

rp_status rp__expand_affine_grid(const rp__call *call) {
    const rp_attr *size = &call->attrs[0];
    char text[RP__SHAPE_TEXT];
    for (size_t d = 0; d < size->n; d++) {
        if (rp__dim_is(RP__DIM_LT, size->v.ints[d], 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "Expected non-zero, positive output size. Got %s",
                                rp__shape_text(size->v.ints, size->n, text));
    }
    return done(
        call, rp_affine_grid_generator_at(call->site, call->in[0], size->v.ints, size->n, given_true(&call->attrs[1])));
}

/* ---- windows as columns */

typedef struct columns {
    int64_t kernel[2], dilation[2], padding[2], stride[2];
} columns;

/* Attributes kernel_size, dilation, padding, stride from `first` on. */
static rp_status columns_of(const rp__call *call, unsigned first, columns *c) {
    static const char *const names[] = {"kernel size", "dilation", "padding", "stride"};
    int64_t *const to[4] = {c->kernel, c->dilation, c->padding, c->stride};
    for (unsigned k = 0; k < 4; k++) {
        const rp_attr *a = &call->attrs[first + k];
        if (a->n != 1 && a->n != 2)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "It is expected %s equals to 2, but got size %zu",
                                names[k], a->n);
        for (unsigned d = 0; d < 2; d++) {
            to[k][d] = a->v.ints[a->n == 1 ? 0 : d];
            if (to[k][d] < (k == 2 ? 0 : 1) || to[k][d] > INT32_MAX)
                return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s should be %s zero, but got %lld", names[k],
                                    k == 2 ? "at least" : "greater than", (long long)to[k][d]);
        }
    }
    return RP_OK;
}

/* Windows along a dim of that many places. */
static rp_dim windows_along(const columns *c, unsigned d, rp_dim places) {
    const int64_t reach = c->dilation[d] * (c->kernel[d] - 1) + 1;
    rp_dim room = rp__dim_apply(RP__DIM_ADD, places, 2 * c->padding[d] - reach);
    return rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_FLOORDIV, room, c->stride[d]), 1);
}

rp_status rp__expand_im2col(const rp__call *call) {
    rp_tensor *x = call->in[0];
    columns c;
    char text[RP__SHAPE_TEXT];
    if (x->dtype != RP_BOOL) RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    RP_TRY(columns_of(call, 0, &c));
    const bool alone = x->ndim == 3;
    bool good = alone || x->ndim == 4;
    for (unsigned d = alone ? 0 : 1; good && d < x->ndim; d++) good = !rp__dim_is(RP__DIM_LT, x->size[d], 1);
    for (unsigned d = 0; good && d < 2; d++)
        good = !rp__dim_is(RP__DIM_LT, windows_along(&c, d, x->size[x->ndim - 2 + d]), 1);
    if (!good)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and room for a window, but got: %s",
            rp__shape_text(x->size, x->ndim, text));
    if (alone) x = rp_unsqueeze(x, 0);
    if (c.padding[0] || c.padding[1])
        x = rp_constant_pad_nd(x, RP_DIMS(c.padding[1], c.padding[1], c.padding[0], c.padding[0]), rp_i64(0));
    for (unsigned d = 0; d < 2; d++) { /* (N, C, rows, columns, window) */
        x = rp_unfold(x, (int64_t)d + 2, c.dilation[d] * (c.kernel[d] - 1) + 1, c.stride[d]);
        if (c.dilation[d] > 1) x = rp_slice(x, -1, 0, INT64_MAX, c.dilation[d]);
    }
    x = rp_flatten(rp_flatten(rp_permute(x, RP_DIMS(0, 1, 4, 5, 2, 3)), 4, 5), 1, 3);
    return done(call, alone ? rp_squeeze(x, 0) : x);
}

rp_status rp__expand_col2im(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const rp_attr *places = &call->attrs[0];
    columns c;
    char text[RP__SHAPE_TEXT];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    RP_TRY(columns_of(call, 1, &c));
    const bool alone = x->ndim == 2;
    if (places->n != 2 || (!alone && x->ndim != 3))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected 2D or 3D (batch mode) columns and two output sizes, but got: %s",
                            rp__shape_text(x->size, x->ndim, text));
    const rp_dim *in = x->size + (x->ndim - 2);
    const int64_t window = c.kernel[0] * c.kernel[1];
    const rp_dim n[2] = {windows_along(&c, 0, places->v.ints[0]), windows_along(&c, 1, places->v.ints[1])};
    if (rp__dim_is(RP__DIM_LT, n[0], 1) || rp__dim_is(RP__DIM_LT, n[1], 1) ||
        !rp__dim_is(RP__DIM_EQ, in[1], rp__dim_apply(RP__DIM_MUL, n[0], n[1])) ||
        !rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MOD, in[0], window), 0))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "columns of size %s do not belong to an output of %lld x %lld places and windows of %lld",
                            rp__shape_text(x->size, x->ndim, text), (long long)rp__dim_hint(places->v.ints[0]),
                            (long long)rp__dim_hint(places->v.ints[1]), (long long)window);
    if (alone) x = rp_unsqueeze(x, 0);
    const rp_dim split[3] = {rp__dim_apply(RP__DIM_FLOORDIV, in[0], window), c.kernel[0], c.kernel[1]};
    rp_tensor *y =
        rp_permute(rp_unflatten(rp_unflatten(rp__wide(x), 1, split, 3), -1, n, 2), RP_DIMS(0, 1, 4, 5, 2, 3));
    rp_dim size[5] = {x->size[0], split[0], 0, 0, 0}, padded_places[2];
    for (unsigned d = 0; d < 2; d++) padded_places[d] = rp__dim_apply(RP__DIM_ADD, places->v.ints[d], 2 * c.padding[d]);
    for (unsigned d = 2; d-- > 0;) { /* the window of columns is the last dim, then that of rows */
        const int64_t reach = c.dilation[d] * (c.kernel[d] - 1) + 1;
        if (rp__tensor_is_error(y)) return rp_error_status();
        if (c.dilation[d] > 1) { /* elements of a window as far apart as they were */
            rp_dim wide[RP_MAX_DIMS];
            memcpy(wide, y->size, y->ndim * sizeof *wide);
            wide[y->ndim - 1] = reach;
            rp_tensor *zeros =
                rp_expand(rp_to_dtype(rp_zeros(RP_NO_DIMS, RP_OPTIONS(rp_zeros_options, .device = &y->device)),
                                      (rp_dtype)y->dtype),
                          wide, y->ndim);
            y = rp_slice_scatter(zeros, y, -1, 0, INT64_MAX, c.dilation[d]);
        }
        if (d == 1) { /* (N, C, rows of windows, columns of windows, rows, columns of a window) */
            const rp_dim six[5] = {x->size[0], split[0], n[0], padded_places[1], c.kernel[0]};
            y = rp__windows_back(y, six, 5, 3, reach, c.stride[1]);
        } else {
            memcpy(size + 2, padded_places, sizeof padded_places);
            y = rp__windows_back(y, size, 4, 2, reach, c.stride[0]);
        }
    }
    if (c.padding[0] || c.padding[1])
        y = rp_constant_pad_nd(y, RP_DIMS(-c.padding[1], -c.padding[1], -c.padding[0], -c.padding[0]), rp_i64(0));
    y = to_type(y, x);
    return done(call, alone ? rp_squeeze(y, 0) : y);
}

rp_status rp__expand_fold(const rp__call *call) {
    const rp_attr *a = call->attrs; /* output_size, kernel_size, dilation, padding, stride */
    if (a[0].n != 1 && a[0].n != 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "It is expected output_size equals to 2, but got size %zu",
                            a[0].n);
    const rp_dim both[2] = {a[0].v.ints[0], a[0].v.ints[a[0].n - 1]};
    return done(call, rp_col2im_at(call->site, call->in[0], both, 2, a[1].v.ints, a[1].n, a[2].v.ints, a[2].n,
                                   a[3].v.ints, a[3].n, a[4].v.ints, a[4].n));
}
