/* Factories of numbers in a row and of matrices. */
#include "ops/private.h"

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"

static rp_dtype asked(const rp__call *call, rp_dtype otherwise) {
    for (uint32_t k = 0; k < call->n_attrs; k++)
        if (call->attrs[k].kind == RP_ATTR_DTYPE && call->attrs[k].v.dtype != RP_DTYPE_NONE)
            return call->attrs[k].v.dtype;
    return otherwise;
}

/* ---- linspace, logspace */

rp_status rp__infer_steps(const rp__call *call, rp__meta *out) {
    const rp_dtype dtype = asked(call, RP_F32);
    const int64_t steps = rp__attr_int(call, 2);
    if (!rp__dtype_is_valid(dtype) || dtype == RP_BOOL) return rp__call_refuse_dtype(call, dtype);
    if (steps < 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "number of steps must be non-negative");
    for (unsigned k = 0; k < 2; k++)
        if (!rp__dtype_is_float(dtype) && !rp__scalar_fits(call->attrs[k].v.scalar, dtype))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "value cannot be converted to type %s without overflow", rp_dtype_name(dtype));
    out->dtype = dtype;
    out->ndim = 1;
    out->size[0] = steps;
    return RP_OK;
}

static bool whole(const rp__call *call) { return !rp__dtype_is_float(asked(call, RP_F32)); }
static double first_of(const rp__call *call) {
    const rp_scalar s = rp__scalar_value(call->attrs[0].v.scalar);
    return whole(call) ? (double)rp__scalar_i64(s) : rp__scalar_f64(s);
}
static double last_of(const rp__call *call) {
    const rp_scalar s = rp__scalar_value(call->attrs[1].v.scalar);
    return whole(call) ? (double)rp__scalar_i64(s) : rp__scalar_f64(s);
}
static rp_scalar first_value(const rp__call *call) { return rp_f64(first_of(call)); }
static rp_scalar last_value(const rp__call *call) { return rp_f64(last_of(call)); }
static rp_scalar step_value(const rp__call *call) {
    const int64_t steps = rp__attr_int(call, 2);
    return rp_f64(steps > 1 ? (last_of(call) - first_of(call)) / (double)(steps - 1) : 0);
}
static rp_scalar half_value(const rp__call *call) { return rp_i64(rp__attr_int(call, 2) / 2); }
static rp_scalar last_index(const rp__call *call) { return rp_i64(rp__attr_int(call, 2) - 1); }

/* The first half is counted from the start, the second from the end, so that both are met. One number is the start. */
static rp__val evenly(rp__lower *lw) {
    const rp__val i = rp__lw_linear_index(lw), step = rp__lw_scalar_fn(lw, step_value, RP_F64);
    const rp__val one = rp__lw_const_i(lw, RP_I64, 1);
    const rp__val half = rp__lw_scalar_fn(lw, half_value, RP_I64), last = rp__lw_scalar_fn(lw, last_index, RP_I64);
    const rp__val up = rp__lw_2(lw, RP__ADD, rp__lw_scalar_fn(lw, first_value, RP_F64),
                                rp__lw_2(lw, RP__MUL, rp__lw_cast(lw, i, RP_F64), step));
    const rp__val left = rp__lw_cast(lw, rp__lw_2(lw, RP__SUB, last, i), RP_F64);
    const rp__val down =
        rp__lw_2(lw, RP__SUB, rp__lw_scalar_fn(lw, last_value, RP_F64), rp__lw_2(lw, RP__MUL, left, step));
    const rp__val early = rp__lw_2(lw, RP__OR, rp__lw_2(lw, RP__LT, i, half), rp__lw_2(lw, RP__LT, last, one));
    return rp__lw_3(lw, RP__WHERE, early, up, down);
}

static void put(rp__lower *lw, rp__val v) {
    rp__lw_out(lw, 0, rp__dtype_is_float(rp__lw_out_dtype(lw, 0)) ? v : rp__lw_cast(lw, v, RP_I64));
}

void rp__lower_linspace(rp__lower *lw) { put(lw, evenly(lw)); }
void rp__lower_logspace(rp__lower *lw) {
    const rp__val base = rp__lw_attr(lw, 3, RP_F64);
    put(lw, rp__lw_2(lw, RP__POW, base, evenly(lw)));
}

/* ---- eye */

rp_status rp__infer_eye(const rp__call *call, rp__meta *out) {
    const rp_dim n = rp__attr_int(call, 0), m = rp__attr_is_none(&call->attrs[1]) ? n : rp__attr_int(call, 1);
    out->dtype = asked(call, RP_F32);
    if (!rp__dtype_is_valid(out->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)out->dtype);
    if (rp__dim_is(RP__DIM_LT, n, 0) || rp__dim_is(RP__DIM_LT, m, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "n and m must be greater or equal to 0, got %lld and %lld",
                            (long long)rp__dim_hint(n), (long long)rp__dim_hint(m));
    out->ndim = 2;
    out->size[0] = n;
    out->size[1] = m;
    return RP_OK;
}

void rp__lower_eye(rp__lower *lw) {
    rp__lw_space(lw, rp__lw_call(lw)->out[0]->size, 2, 0);
    rp__val on = rp__lw_2(lw, RP__EQ, rp__lw_dim_index(lw, 0), rp__lw_dim_index(lw, 1));
    rp__lw_out(lw, 0, rp__lw_cast(lw, on, rp__lw_compute(rp__lw_out_dtype(lw, 0))));
}

/* ---- beside a model: its values do not count, and the result has no history */

static rp_status finish(const rp__call *call, rp_tensor *t) {
    call->out[0] = t;
    return rp__tensor_is_error(t) ? rp_error_status() : RP_OK;
}

/* self in the type that is asked for. */
static rp_tensor *model_of(const rp__call *call) {
    const rp_dtype dtype = asked(call, (rp_dtype)call->in[0]->dtype);
    rp_tensor *t = rp_detach_at(call->site, call->in[0]);
    return rp__tensor_is_error(t) || (rp_dtype)t->dtype == dtype ? t : rp_to_dtype_at(call->site, t, dtype, NULL);
}

/* In the memory format that is asked for: the last attribute. */
static rp_status finish_like(const rp__call *call, rp_tensor *t) {
    const rp_attr *format = &call->attrs[call->n_attrs - 1];
    if (!rp__tensor_is_error(t) && !rp__attr_is_none(format) && format->v.i != RP_PRESERVE_FORMAT)
        t = rp_contiguous_at(call->site, t,
                             RP_OPTIONS(rp_contiguous_options, .memory_format = (rp_memory_format)format->v.i));
    return finish(call, t);
}

rp_status rp__expand_full_like(const rp__call *call) {
    rp_tensor *model = model_of(call);
    return finish_like(call, rp_fill_at(call->site, model, call->attrs[0].v.scalar));
}
rp_status rp__expand_rand_like(const rp__call *call) {
    return finish_like(call, rp_uniform_at(call->site, model_of(call), 0, 1,
                                           RP_OPTIONS(rp_uniform_options, .generator = call->attrs[0].v.generator)));
}
rp_status rp__expand_randn_like(const rp__call *call) {
    return finish_like(call, rp_normal_at(call->site, model_of(call), 0, 1,
                                          RP_OPTIONS(rp_normal_options, .generator = call->attrs[0].v.generator)));
}
rp_status rp__expand_randint_like(const rp__call *call) {
    return finish_like(call, rp_random_at(call->site, model_of(call), rp__attr_int(call, 0), rp__attr_int(call, 1),
                                          RP_OPTIONS(rp_random_options, .generator = call->attrs[2].v.generator)));
}

static rp_status new_of(const rp__call *call, rp_scalar value) {
    const rp_attr *size = &call->attrs[0];
    const rp__meta one = {.dtype = asked(call, (rp_dtype)call->in[0]->dtype), .device = call->in[0]->device};
    if (!rp__dtype_is_valid(one.dtype)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)one.dtype);
    if (size->n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions, not %zu", RP_MAX_DIMS, size->n);
    for (size_t d = 0; d < size->n; d++)
        if (rp__dim_is(RP__DIM_LT, size->v.ints[d], 0))
            return rp__op_error(call, RP_ERROR_SHAPE, "Trying to create tensor with negative dimension %lld",
                                (long long)rp__dim_hint(size->v.ints[d]));
    rp_tensor *number = rp_fill_at(call->site, rp__zeros_of(&one), value);
    rp_tensor *t = rp_expand_at(call->site, number, size->v.ints, size->n, NULL);
    return finish(call, rp_contiguous_at(call->site, t, NULL));
}
rp_status rp__expand_new_full(const rp__call *call) { return new_of(call, call->attrs[1].v.scalar); }
rp_status rp__expand_new_zeros(const rp__call *call) { return new_of(call, rp_i64(0)); }
rp_status rp__expand_new_ones(const rp__call *call) { return new_of(call, rp_i64(1)); }

/* Where no memory format says otherwise, as self lies: strides that only a copy finds are those of its zeros. */
rp_status rp__expand_empty_like(const rp__call *call) {
    rp_tensor *self = call->in[0];
    const rp_attr *format = &call->attrs[call->n_attrs - 1];
    const bool preserves = rp__attr_is_none(format) || format->v.i == RP_PRESERVE_FORMAT;
    if (preserves && !rp__tensor_contiguous(self)) return rp__expand_zeros_like(call);
    return finish(
        call,
        rp_empty_at(call->site, self->size, self->ndim,
                    RP_OPTIONS(rp_empty_options, .dtype = asked(call, (rp_dtype)self->dtype), .device = &self->device,
                               .memory_format = preserves ? RP_CONTIGUOUS_FORMAT : (rp_memory_format)format->v.i)));
}

rp_status rp__expand_new_empty(const rp__call *call) {
    const rp_tensor *self = call->in[0];
    return finish(call, rp_empty_at(call->site, call->attrs[0].v.ints, call->attrs[0].n,
                                    RP_OPTIONS(rp_empty_options, .dtype = asked(call, (rp_dtype)self->dtype),
                                               .device = &self->device)));
}

rp_status rp__expand_scalar_tensor(const rp__call *call) {
    return finish(call, rp_full_at(call->site, NULL, 0, call->attrs[0].v.scalar,
                                   RP_OPTIONS(rp_full_options, .dtype = asked(call, RP_F32))));
}

/* ---- tril_indices, triu_indices: where the triangle of a matrix of ones is not zero */

/* Row r has the columns up to r + k, or from there on: the rows whose part is neither empty nor whole are a trapezoid. */
static int64_t in_triangle(int64_t rows, int64_t columns, int64_t k, bool lower) {
    const int64_t first = k >= 0 ? 0 : -k < rows ? -k : rows; /* first row that reaches column 0 */
    const int64_t reach = columns - 1 - k, whole = reach < first ? first : reach < rows ? reach : rows;
    const int64_t n = whole - first;
    int64_t below = (rows - whole) * columns;
    if (n > 0) below += n * (first + k + 1) + n * (n - 1) / 2;
    const int64_t count = lower ? below : rows * columns - below;
    if (lower) return count;
    /* the diagonal itself counts on both sides */
    const int64_t from = first, to = columns - k < from ? from : columns - k < rows ? columns - k : rows;
    return count + (to - from);
}

static rp_status triangle(const rp__call *call, bool lower) {
    const int64_t rows = rp__attr_int(call, 0), columns = rp__attr_int(call, 1), k = rp__attr_int(call, 2);
    const rp_dtype dtype = asked(call, RP_I64);
    if (rows < 0 || columns < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "row and col must be non-negative, got %lld and %lld",
                            (long long)rows, (long long)columns);
    int64_t all;
    if (!rp__mul_i64(rows, columns, &all) || all >= RP__REACH_LIMIT || k < -RP__REACH_LIMIT || k > RP__REACH_LIMIT)
        return rp__op_error(call, RP_ERROR_SHAPE, "the matrix has too many elements");
    if (dtype != RP_I64 && dtype != RP_I32) return rp__call_refuse_dtype(call, dtype);
    rp_tensor *ones = rp_ones_at(call->site, (const int64_t[]){rows, columns}, 2, NULL);
    rp_tensor *part = lower ? rp_tril_at(call->site, ones, k) : rp_triu_at(call->site, ones, k);
    rp_tensor *at = rp_nonzero_static_at(
        call->site, part, RP_OPTIONS(rp_nonzero_static_options, .size = rp_i64(in_triangle(rows, columns, k, lower))));
    at = rp_contiguous_at(call->site, rp_transpose_at(call->site, at, 0, 1), NULL);
    return finish(call, dtype == RP_I64 ? at : rp_to_dtype_at(call->site, at, dtype, NULL));
}
rp_status rp__expand_tril_indices(const rp__call *call) { return triangle(call, true); }
rp_status rp__expand_triu_indices(const rp__call *call) { return triangle(call, false); }
