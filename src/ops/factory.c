/* Factories of numbers in a row and of matrices. */
#include "ops/private.h"

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
