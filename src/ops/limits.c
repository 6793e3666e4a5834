/* What is held between limits: type rule and lowering of limits.def. Limits are the operands 1 and 2 of the row or, where it has none, the
   attributes 0 and 1. */
#include "ops/formula.h"
#include "ops/infer.h"
#include "ops/rules.h"

static bool has_tensors(const rp__call *call) { return call->op->schema.n_tensor_params > 1; }
static bool is_given(const rp__call *call, unsigned k) {
    return has_tensors(call) ? call->in[k + 1] != NULL : !rp__attr_is_none(&call->attrs[k]);
}

/* Is the number one of the integer type's? */
static bool holds(rp_dtype d, int64_t number) { return d == RP_I64 || rp__scalar_fits(rp_f64((double)number), d); }

/* Numbers as limits of that type: floats must fit, an integer may lie beyond where it limits nothing. */
static rp_status check_numbers(const rp__call *call, rp_dtype d) {
    RP_TRY(rp__call_need_number(call, d));
    for (unsigned k = 0; k < 2; k++) {
        const rp_scalar given = call->attrs[k].v.scalar;
        if (!is_given(call, k)) continue;
        if (rp__dtype_is_float(d)) {
            if (rp__scalar_fits(given, d)) continue;
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "value cannot be converted to type %s without overflow", rp_dtype_name(d));
        }
        if (given.kind == RP_SCALAR_SYM && rp__dim_is(RP__DIM_LE, 0, given.v.i) && rp__scalar_fits(given, d)) continue;
        const int64_t limit = rp__scalar_i64(given);
        if (holds(d, limit) || (limit < 0) == (k == 0)) continue;
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "Clamp %s value %lld is outside the representable range of %s", k ? "max" : "min",
                            (long long)limit, rp__dtype_title(d));
    }
    return RP_OK;
}

rp_status rp__infer_limits(const rp__call *call, rp__meta *out) {
    rp__promotion p = {RP_DTYPE_NONE, RP_DTYPE_NONE, RP_DTYPE_NONE};
    unsigned n = 0;
    rp__promote_tensor(&p, (rp_dtype)call->in[0]->dtype, call->in[0]->ndim);
    rp__meta_like(out, call->in[0], RP_DTYPE_NONE);
    for (unsigned k = 0; k < 2; k++) {
        if (!is_given(call, k)) continue;
        n++;
        if (!has_tensors(call)) {
            rp__promote_scalar(&p, call->attrs[k].v.scalar.kind);
            continue;
        }
        const rp_tensor *t = call->in[k + 1];
        const rp__meta so_far = *out;
        size_t ndim = 0;
        rp__promote_tensor(&p, (rp_dtype)t->dtype, t->ndim);
        RP_TRY(rp__broadcast(t->size, t->ndim, so_far.size, so_far.ndim, out->size, &ndim));
        out->ndim = (uint8_t)ndim;
    }
    if (!n) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "At least one of 'min' or 'max' must not be None");
    out->dtype = rp__promotion_result(&p);
    if (has_tensors(call)) return n < 2 ? RP_OK : rp__call_need_number(call, out->dtype);
    return check_numbers(call, out->dtype);
}

rp_status rp__infer_hardtanh(const rp__call *call, rp__meta *out) {
    const rp_dtype d = (rp_dtype)call->in[0]->dtype;
    if (d == RP_BOOL) return rp__op_error(call, RP_ERROR_DTYPE, "Bool inputs not supported for hardtanh");
    if (rp__scalar_f64(call->attrs[0].v.scalar) > rp__scalar_f64(call->attrs[1].v.scalar))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "min_val cannot be greater than max_val");
    rp__meta_like(out, call->in[0], d);
    return check_numbers(call, d);
}

/* A limit beyond what self's integers can be limits nothing: the type's own. */
static rp_scalar integer_limit(const rp__call *call, unsigned k) {
    const rp_dtype d = call->in[0]->dtype == RP_BOOL ? RP_I64 : (rp_dtype)call->in[0]->dtype;
    int64_t limit = rp__scalar_i64(call->attrs[k].v.scalar);
    if (!holds(d, limit)) limit = k ? INT64_MAX : INT64_MIN;
    while (!holds(d, limit)) limit /= 2; /* to 2^m - 1 or -2^m; of an unsigned type to 0 */
    return rp_i64(limit);
}
static rp_scalar integer_min(const rp__call *call) { return integer_limit(call, 0); }
static rp_scalar integer_max(const rp__call *call) { return integer_limit(call, 1); }

/* Between numbers in place the result has self's type, which is the promoted one: others are refused. */
void rp__lower_limits(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dtype type = has_tensors(call) ? rp__lw_promoted(lw, 3, -1) : rp__lw_out_dtype(lw, 0);
    rp__val x = rp__lw_in_as(lw, 0, type);
    for (unsigned k = 0; k < 2; k++) {
        if (!is_given(call, k)) continue;
        const rp__val limit = has_tensors(call) ? rp__lw_in_as(lw, k + 1, type)
                              : rp__dtype_is_float(type)
                                  ? rp__lw_number(lw, k, type)
                                  : rp__lw_scalar_fn(lw, k ? integer_max : integer_min, rp__lw_compute(type));
        x = type == RP_BOOL ? k ? AND(x, limit) : OR(x, limit) : k ? MIN(x, limit) : MAX(x, limit);
    }
    rp__lw_out(lw, 0, x);
}
