/* Factories. Their tensors live on the thread's default device, those of _like forms beside their model. */
#include "ops/private.h"
#include <math.h>

#include "ops/execute.h"
#include "ops/format.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"

/* Attributes `size` and `dtype` of a factory become a meta. */
static rp_status factory(const rp__call *call, const rp_attr *size, rp_dtype dtype, rp__meta *out) {
    char text[RP__SHAPE_TEXT];
    if (!rp__dtype_is_valid(dtype)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)dtype);
    if (size->n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions, not %zu", RP_MAX_DIMS, size->n);
    if (size->n && !size->v.ints) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "size is NULL");
    out->dtype = dtype;
    out->ndim = (uint8_t)size->n;
    for (size_t d = 0; d < size->n; d++) {
        if (!rp__dim_is_symbol(size->v.ints[d]) && size->v.ints[d] < 0)
            return rp__op_error(call, RP_ERROR_SHAPE, "Trying to create tensor with negative dimension %lld: %s",
                                (long long)size->v.ints[d], rp__shape_text(size->v.ints, size->n, text));
        out->size[d] = size->v.ints[d];
    }
    return RP_OK;
}

/* The dtype that a factory is given, else `otherwise`. */
static rp_dtype asked(const rp__call *call, rp_dtype otherwise) {
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        if (call->attrs[k].kind == RP_ATTR_DTYPE && call->attrs[k].v.dtype != RP_DTYPE_NONE)
            return call->attrs[k].v.dtype;
    }
    return otherwise;
}

rp_status rp__infer_factory(const rp__call *call, rp__meta *out) {
    return factory(call, &call->attrs[0], asked(call, RP_F32), out);
}

rp_status rp__infer_random_factory(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_factory(call, out));
    return rp__call_need_float(call, out->dtype);
}

/* The type of a number where no dtype is given: PyTorch's default types. */
static rp_dtype own_dtype(rp_scalar s) {
    return rp__scalar_is_float(s) ? RP_F32 : s.kind == RP_SCALAR_BOOL ? RP_BOOL : RP_I64;
}

rp_status rp__infer_full(const rp__call *call, rp__meta *out) {
    RP_TRY(factory(call, &call->attrs[0], asked(call, own_dtype(call->attrs[1].v.scalar)), out));
    if (!rp__scalar_fits(call->attrs[1].v.scalar, out->dtype))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow",
                            rp_dtype_name(out->dtype));
    return RP_OK;
}

/* The first two attributes as the bounds of random integers of that type. */
rp_status rp__call_check_range(const rp__call *call, rp_dtype dtype) {
    /* Their difference is a number of the kernel: a size of the trace is taken at its value. */
    int64_t low = rp__dim_value(rp__attr_int(call, 0)), high = rp__dim_value(rp__attr_int(call, 1));
    if (low >= high)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "random_ expects 'from' to be less than 'to', but got from=%lld >= to=%lld", (long long)low,
                            (long long)high);
    if (high >= 0 && low < high - INT64_MAX)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "the range from %lld to %lld has more than 2^63 - 1 values", (long long)low,
                            (long long)high);
    if (!rp__scalar_fits(rp_i64(low), dtype) || (!rp__dtypes[dtype].reach && low < 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "from is out of bounds for %s", rp_dtype_name(dtype));
    if (!rp__scalar_fits(rp_i64(high - 1), dtype))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "to - 1 is out of bounds for %s", rp_dtype_name(dtype));
    return RP_OK;
}

rp_status rp__infer_randint(const rp__call *call, rp__meta *out) {
    RP_TRY(factory(call, &call->attrs[2], asked(call, RP_I64), out));
    return rp__call_check_range(call, out->dtype);
}

rp_status rp__run_empty(const rp__call *call) {
    rp__meta meta;
    RP_TRY(rp__op_infer(call, &meta));
    rp__device *d = rp__device_get(meta.device);
    if (!d) return rp_error_status();
    call->out[0] = rp__tensor_of_meta(d, &meta);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

void rp__lower_full(rp__lower *lw) {
    const rp_dtype dtype = rp__lw_out_dtype(lw, 0);
    rp__lw_out(lw, 0, rp__lw_attr(lw, 1, rp__dtype_wraps(dtype) ? RP_I64 : rp__lw_compute(dtype)));
}

/* ---- composites */

static rp_status expand_full(const rp__call *call, int64_t value) {
    const rp_attr *size = &call->attrs[0];
    call->out[0] = rp_full_at(call->site, size->v.ints, size->n, rp_i64(value),
                              RP_OPTIONS(rp_full_options, .dtype = asked(call, RP_F32)));
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_zeros(const rp__call *call) { return expand_full(call, 0); }
rp_status rp__expand_ones(const rp__call *call) { return expand_full(call, 1); }

/* Only size, dtype and device of the model count: the result is no function of its values, and has no history. */
static rp_status expand_like(const rp__call *call, int64_t value) {
    bool grad = rp__grad_switch(false);
    rp_dtype dtype = asked(call, (rp_dtype)call->in[0]->dtype);
    call->out[0] = rp_fill_at(call->site, call->in[0], rp_i64(value));
    if (dtype != (rp_dtype)call->in[0]->dtype) call->out[0] = rp_to_dtype_at(call->site, call->out[0], dtype, NULL);
    const rp_attr *format = &call->attrs[call->n_attrs - 1]; /* the schemas' last */
    if (!rp__attr_is_none(format) && format->v.i != RP_PRESERVE_FORMAT)
        call->out[0] =
            rp_contiguous_at(call->site, call->out[0],
                             RP_OPTIONS(rp_contiguous_options, .memory_format = (rp_memory_format)format->v.i));
    (void)rp__grad_switch(grad);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_zeros_like(const rp__call *call) { return expand_like(call, 0); }
rp_status rp__expand_ones_like(const rp__call *call) { return expand_like(call, 1); }

/* ---- arange */

/* A whole number, or a size of the trace. */
static rp_dim size_of(rp_scalar s) { return rp__scalar_is_size(s) ? s.v.i : rp__scalar_i64(s); }

/* Number of elements between sizes of the trace: an expression, with a guard of which is larger. The step is the number that it is. */
static rp_status arange_of_sizes(const rp__call *call, rp_dtype dtype, rp__meta *out) {
    const uint64_t failures = rp__error_count();
    const rp_dim start = size_of(call->attrs[0].v.scalar), end = size_of(call->attrs[1].v.scalar);
    const int64_t step = rp__scalar_i64(call->attrs[2].v.scalar);
    const rp_dim low = step > 0 ? start : end, high = step > 0 ? end : start;
    if (step == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "step must be nonzero");
    if (step == INT64_MIN || !rp__dim_is(RP__DIM_LE, low, high))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "upper bound and lower bound inconsistent with step sign");
    const int64_t by = step > 0 ? step : -step;
    out->dtype = dtype;
    out->ndim = 1;
    out->size[0] = rp__dim_apply(RP__DIM_SUB, high, low);
    if (by > 1) out->size[0] = rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_ADD, out->size[0], by - 1), by);
    return rp__status_since(failures);
}

/* Number of elements: ceil((end - start) / step), in integers when all three are (exact), else in f64. */
rp_status rp__infer_arange(const rp__call *call, rp__meta *out) {
    rp_scalar start = call->attrs[0].v.scalar, end = call->attrs[1].v.scalar, step = call->attrs[2].v.scalar;
    bool whole = !rp__scalar_is_float(start) && !rp__scalar_is_float(end) && !rp__scalar_is_float(step);
    rp_dtype dtype = asked(call, whole ? RP_I64 : RP_F32);
    if (!rp__dtype_is_valid(dtype) || dtype == RP_BOOL) return rp__call_refuse_dtype(call, dtype);
    if (whole && (rp__scalar_is_symbol(start) || rp__scalar_is_symbol(end))) return arange_of_sizes(call, dtype, out);
    double a = rp__scalar_f64(start), b = rp__scalar_f64(end), s = rp__scalar_f64(step);
    if (s == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "step must be nonzero");
    if (!isfinite(a) || !isfinite(b) || isnan(s))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "unsupported range: %g -> %g", a, b);
    if (s > 0 ? b < a : b > a)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "upper bound and lower bound inconsistent with step sign");
    int64_t n;
    if (whole) {
        int64_t distance, by = rp__scalar_i64(step);
        if (__builtin_sub_overflow(rp__scalar_i64(end), rp__scalar_i64(start), &distance) || by == INT64_MIN)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "invalid size, possible overflow?");
        n = distance / by + (distance % by != 0);
    } else {
        double length = ceil((b - a) / s);
        if (!(length >= 0 && length < 0x1p62))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "invalid size, possible overflow?");
        n = (int64_t)length;
    }
    out->dtype = dtype;
    out->ndim = 1;
    out->size[0] = n;
    return RP_OK;
}

/* Integer results count in i64 with start and step truncated, floating ones in f64, as PyTorch's CPU kernel accumulates. */
void rp__lower_arange(rp__lower *lw) {
    rp_dtype type = rp__dtype_is_float(rp__lw_out_dtype(lw, 0)) ? RP_F64 : RP_I64;
    rp__val i = rp__lw_cast(lw, rp__lw_linear_index(lw), type);
    rp__val scaled = rp__lw_2(lw, RP__MUL, i, rp__lw_attr(lw, 2, type));
    rp__lw_out(lw, 0, rp__lw_2(lw, RP__ADD, rp__lw_attr(lw, 0, type), scaled));
}
