/* Reductions over dims: rows kernels whose inner dims are the reduced ones. */
#include <math.h>

#include "ops/formula.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* sum and mean share (int[] dim, bool keepdim, dtype dtype); amax has no dtype. */

static rp_status infer_reduction(const rp__call *call, rp_dtype dtype, rp__meta *out) {
    uint32_t mask;
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    bool keepdim = rp__attr_bool(call, call->attrs[1].kind == RP_ATTR_BOOL ? 1 : 2); /* var has its correction first */
    rp__meta_reduced(call, mask, keepdim, dtype, out);
    return RP_OK;
}

/* Integers and bools sum in int64. */
rp_status rp__infer_sum(const rp__call *call, rp__meta *out) {
    rp_dtype in = (rp_dtype)call->in[0]->dtype, asked = call->attrs[2].v.dtype;
    rp_dtype dtype = asked != RP_DTYPE_NONE ? asked : rp__dtype_is_float(in) ? in : RP_I64;
    if (!rp__dtype_is_valid(dtype)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)dtype);
    return infer_reduction(call, dtype, out);
}

rp_status rp__infer_mean(const rp__call *call, rp__meta *out) {
    rp_dtype asked = call->attrs[2].v.dtype, dtype = asked != RP_DTYPE_NONE ? asked : (rp_dtype)call->in[0]->dtype;
    if (!rp__dtype_is_valid(dtype)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)dtype);
    if (!rp__dtype_is_float(dtype))
        return rp__op_error(
            call, RP_ERROR_DTYPE,
            "mean(): could not infer output dtype. %s dtype must be either a floating point or complex dtype. "
            "Got: %s",
            asked != RP_DTYPE_NONE ? "Optional" : "Input", rp__dtype_title(dtype));
    return infer_reduction(call, dtype, out);
}

rp_status rp__infer_amax(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    uint32_t mask;
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(t), 0)) {
        if (call->attrs[0].n == 0)
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
                "with the 'dim' argument.",
                call->op->name);
        for (unsigned d = 0; d < t->ndim; d++) {
            if (mask >> d & 1u && rp__dim_is(RP__DIM_EQ, t->size[d], 0))
                return rp__op_error(call, RP_ERROR_INDEX, "%s(): Expected reduction dim %u to have non-zero size.",
                                    call->op->name, d);
        }
    }
    return infer_reduction(call, (rp_dtype)t->dtype, out);
}

static void set_inner(rp__lower *lw) {
    uint32_t mask;
    if (rp__call_dim_mask(rp__lw_call(lw), 0, &mask) == RP_OK) /* the shape rule has accepted it */
        rp__lw_inner(lw, mask);
}

/* Elements are converted to the result's type first, as PyTorch does with dtype=. */
static rp__val sum(rp__lower *lw) {
    set_inner(lw);
    return rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_in_as(lw, 0, rp__lw_out_dtype(lw, 0)));
}

void rp__lower_sum(rp__lower *lw) { rp__lw_out_row(lw, 0, sum(lw)); }

void rp__lower_mean(rp__lower *lw) {
    rp__val total = sum(lw);
    rp__lw_out_row(lw, 0,
                   rp__lw_2(lw, RP__DIV, total, rp__lw_inner_extent(lw, rp__lw_compute(rp__lw_out_dtype(lw, 0)))));
}

void rp__lower_amax(rp__lower *lw) {
    set_inner(lw);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_MAX, rp__lw_in(lw, 0)));
}

void rp__lower_prod(rp__lower *lw) {
    set_inner(lw);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_PROD, rp__lw_in_as(lw, 0, rp__lw_out_dtype(lw, 0))));
}

rp_status rp__infer_prod_others(const rp__call *call, rp__meta *out) {
    uint32_t mask;
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

/* prod / x; where there are zeros, the product of the others at the only one and 0 elsewhere. */
void rp__lower_prod_others(rp__lower *lw) {
    set_inner(lw);
    rp__val x = rp__lw_in(lw, 0);
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__val zero = rp__lw_const_i(lw, compute, 0), is_zero = rp__lw_2(lw, RP__EQ, x, zero);
    rp__val safe = rp__lw_3(lw, RP__WHERE, is_zero, rp__lw_const_i(lw, compute, 1), x);
    rp__val product = rp__lw_reduce(lw, RP__REDUCE_PROD, safe);
    rp__val zeros = rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_cast(lw, is_zero, RP_I64));
    rp__val only = rp__lw_2(lw, RP__EQ, zeros, rp__lw_const_i(lw, RP_I64, 1));
    rp__val none = rp__lw_2(lw, RP__EQ, zeros, rp__lw_const_i(lw, RP_I64, 0));
    rp__val at_zero = rp__lw_3(lw, RP__WHERE, only, product, zero);
    rp__val elsewhere = rp__lw_3(lw, RP__WHERE, none, rp__lw_2(lw, RP__DIV, product, safe), zero);
    rp__lw_out(lw, 0, rp__lw_3(lw, RP__WHERE, is_zero, at_zero, elsewhere));
}

/* dim=[] compares each element with 0, where other reductions take it for all dims. */
static bool over_nothing(const rp__call *call) { return !rp__attr_is_none(&call->attrs[0]) && call->attrs[0].n == 0; }

/* uint8 stays, as in PyTorch. */
rp_status rp__infer_any(const rp__call *call, rp__meta *out) {
    rp_dtype dtype = call->in[0]->dtype == RP_U8 ? RP_U8 : RP_BOOL;
    if (!over_nothing(call)) return infer_reduction(call, dtype, out);
    rp__meta_like(out, call->in[0], dtype);
    return RP_OK;
}

static void lower_logical(rp__lower *lw, rp__reduce_kind kind) {
    const rp__call *call = rp__lw_call(lw);
    if (over_nothing(call))
        rp__lw_inner(lw, 0);
    else
        set_inner(lw);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, kind, rp__lw_in_as(lw, 0, RP_BOOL)));
}

void rp__lower_any(rp__lower *lw) { lower_logical(lw, RP__REDUCE_ANY); }
void rp__lower_all(rp__lower *lw) { lower_logical(lw, RP__REDUCE_ALL); }

rp_status rp__infer_var(const rp__call *call, rp__meta *out) {
    rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    if (!rp__dtype_is_float(dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "std and var only support floating point and complex dtypes");
    return infer_reduction(call, dtype, out);
}

static rp_scalar correction(const rp__call *call) {
    return rp__attr_is_none(&call->attrs[1]) ? rp_i64(1) : call->attrs[1].v.scalar;
}

/* Two passes: a large mean costs no digits. */
static rp__val variance(rp__lower *lw) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    set_inner(lw);
    rp__val n = rp__lw_inner_extent(lw, compute), x = rp__lw_in(lw, 0);
    rp__val mean = rp__lw_2(lw, RP__DIV, rp__lw_reduce(lw, RP__REDUCE_SUM, x), n);
    rp__val centred = rp__lw_2(lw, RP__SUB, x, mean);
    rp__val squares = rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_2(lw, RP__MUL, centred, centred));
    rp__val freedom = rp__lw_2(lw, RP__SUB, n, rp__lw_scalar_fn(lw, correction, compute));
    freedom = rp__lw_2(lw, RP__MAX, freedom, rp__lw_const_i(lw, compute, 0));
    return rp__lw_2(lw, RP__DIV, squares, freedom);
}
void rp__lower_var(rp__lower *lw) { rp__lw_out_row(lw, 0, variance(lw)); }
void rp__lower_std(rp__lower *lw) { rp__lw_out_row(lw, 0, PRIM(SQRT, variance(lw))); }

rp_status rp__infer_argmax(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    uint32_t mask;
    if (t->dtype == RP_BOOL)
        return rp__op_error(call, RP_ERROR_DTYPE, "%s(): does not support bool input", call->op->name);
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    for (unsigned d = 0; d < t->ndim; d++) {
        if (mask >> d & 1u && rp__dim_is(RP__DIM_EQ, t->size[d], 0))
            return rp__op_error(call, RP_ERROR_INDEX, "%s(): Expected reduction dim %u to have non-zero size.",
                                call->op->name, d);
    }
    return infer_reduction(call, RP_I64, out);
}

/* The least number at which the largest (smallest) value stands. */
static void lower_place(rp__lower *lw, rp__reduce_kind kind) {
    const rp__call *call = rp__lw_call(lw);
    unsigned dim = 0, ndim = call->in[0]->ndim;
    set_inner(lw);
    bool single = rp__lw_structural_value(lw, !rp__attr_is_none(&call->attrs[0]) && ndim > 0);
    if (single && rp__call_dim(call, rp__attr_int(call, 0), ndim, &dim) != RP_OK) return;
    rp__val index = single ? rp__lw_dim_index(lw, dim) : rp__lw_linear_index(lw);
    rp__val x = rp__lw_in(lw, 0);
    rp__val is = rp__lw_2(lw, RP__EQ, x, rp__lw_reduce(lw, kind, x));
    if (rp__dtype_is_float(rp__lw_in_dtype(lw, 0))) is = rp__lw_2(lw, RP__OR, is, rp__lw_1(lw, RP__ISNAN, x));
    rp__val place = rp__lw_3(lw, RP__WHERE, is, index, rp__lw_const_i(lw, RP_I64, INT64_MAX));
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_MIN, place));
}
void rp__lower_argmax(rp__lower *lw) { lower_place(lw, RP__REDUCE_MAX); }
void rp__lower_argmin(rp__lower *lw) { lower_place(lw, RP__REDUCE_MIN); }

void rp__lower_amin(rp__lower *lw) {
    set_inner(lw);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_MIN, rp__lw_in(lw, 0)));
}

void rp__lower_nansum(rp__lower *lw) {
    const rp_dtype type = rp__lw_out_dtype(lw, 0), in = rp__lw_in_dtype(lw, 0);
    set_inner(lw);
    const rp__val x = rp__lw_in_as(lw, 0, type), zero = rp__lw_const_i(lw, rp__lw_compute(type), 0);
    const rp__val y = rp__dtype_is_float(in) ? WHERE(PRIM(ISNAN, rp__lw_in(lw, 0)), zero, x) : x;
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, y));
}

rp_status rp__expand_nanmean(const rp__call *call) {
    const rp_attr *dims = &call->attrs[0];
    const bool keepdim = rp__attr_bool(call, 1);
    const rp_dtype in = (rp_dtype)call->in[0]->dtype, asked = call->attrs[2].v.dtype;
    if (!rp__dtype_is_float(in))
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "nanmean(): expected input to have floating point or complex dtype but got %s",
                            rp__dtype_title(in));
    rp_tensor *there = rp_logical_not_at(call->site, rp_isnan_at(call->site, call->in[0]));
    rp_tensor *count = rp_sum_at(call->site, there, dims->v.ints, dims->n, keepdim, NULL);
    rp_tensor *sum = rp_nansum_at(call->site, call->in[0], dims->v.ints, dims->n, keepdim,
                                  RP_OPTIONS(rp_nansum_options, .dtype = asked));
    call->out[0] = rp_div_at(call->site, sum, count);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__infer_count_nonzero(const rp__call *call, rp__meta *out) {
    uint32_t mask;
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    rp__meta_reduced(call, mask, false, RP_I64, out);
    return RP_OK;
}
void rp__lower_count_nonzero(rp__lower *lw) {
    set_inner(lw);
    const rp__val there = rp__lw_cast(lw, rp__lw_in_as(lw, 0, RP_BOOL), RP_I64);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, there));
}

rp_status rp__infer_logsumexp(const rp__call *call, rp__meta *out) {
    return infer_reduction(call, rp__float_or_default((rp_dtype)call->in[0]->dtype), out);
}
/* Less the largest value first; of rows of infinities nothing is taken away. */
void rp__lower_logsumexp(rp__lower *lw) {
    const rp_dtype type = rp__lw_out_dtype(lw, 0), compute = rp__lw_compute(type);
    set_inner(lw);
    const rp__val x = rp__lw_in_as(lw, 0, type), high = rp__lw_reduce(lw, RP__REDUCE_MAX, x);
    const rp__val less = WHERE(EQ(ABS(high), NUM(INFINITY)), NUM(0), high);
    rp__lw_out_row(lw, 0, ADD(LOG(rp__lw_reduce(lw, RP__REDUCE_SUM, EXP(SUB(x, less)))), less));
}

/* ---- norms: dim, keepdim and dtype stand behind the order */

rp_status rp__infer_linalg_vector_norm(const rp__call *call, rp__meta *out) {
    const rp_dtype in = (rp_dtype)call->in[0]->dtype, asked = call->attrs[3].v.dtype;
    const double order = rp__scalar_f64(call->attrs[0].v.scalar);
    uint32_t mask;
    if (!rp__dtype_is_float(in))
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "linalg.vector_norm: Expected a floating point or complex tensor as input. Got %s",
                            rp__dtype_title(in));
    if (asked != RP_DTYPE_NONE && !(rp__dtype_is_valid(asked) && rp__dtype_is_float(asked)))
        return rp__op_error(call, RP_ERROR_DTYPE, "linalg.vector_norm: dtype should be floating point or complex");
    RP_TRY(rp__call_dim_mask(call, 1, &mask));
    for (unsigned d = 0; (order < 0 || isinf(order)) && d < call->in[0]->ndim; d++) {
        if (mask >> d & 1u && rp__dim_is(RP__DIM_EQ, call->in[0]->size[d], 0))
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "linalg.vector_norm cannot compute the %g norm on an empty tensor because the operation does "
                "not have an identity",
                order);
    }
    rp__meta_reduced(call, mask, rp__attr_bool(call, 2), asked != RP_DTYPE_NONE ? asked : in, out);
    return RP_OK;
}
enum { NORM_OTHER, NORM_0, NORM_1, NORM_2, NORM_MAX, NORM_MIN };
static int64_t norm_kind(const rp__call *call) {
    const double p = rp__scalar_f64(call->attrs[0].v.scalar);
    return p == 0           ? NORM_0
           : p == 1         ? NORM_1
           : p == 2         ? NORM_2
           : p == INFINITY  ? NORM_MAX
           : p == -INFINITY ? NORM_MIN
                            : NORM_OTHER;
}
static rp_scalar inverse_order(const rp__call *call) { return rp_f64(1 / rp__scalar_f64(call->attrs[0].v.scalar)); }
void rp__lower_linalg_vector_norm(rp__lower *lw) {
    const rp_dtype type = rp__lw_out_dtype(lw, 0), compute = rp__lw_compute(type);
    const int64_t kind = rp__lw_structural_value(lw, norm_kind(rp__lw_call(lw)));
    uint32_t mask;
    if (rp__call_dim_mask(rp__lw_call(lw), 1, &mask) == RP_OK) rp__lw_inner(lw, mask);
    const rp__val x = rp__lw_in_as(lw, 0, type), a = ABS(x);
    const rp__reduce_kind how = kind == NORM_MAX ? RP__REDUCE_MAX : kind == NORM_MIN ? RP__REDUCE_MIN : RP__REDUCE_SUM;
    const rp__val part = kind == NORM_0       ? rp__lw_cast(lw, NE(x, NUM(0)), compute)
                         : kind == NORM_2     ? MUL(x, x)
                         : kind == NORM_OTHER ? PRIM(POW, a, ATTR(0))
                                              : a;
    const rp__val all = rp__lw_reduce(lw, how, part);
    rp__lw_out_row(lw, 0,
                   kind == NORM_2       ? PRIM(SQRT, all)
                   : kind == NORM_OTHER ? PRIM(POW, all, rp__lw_scalar_fn(lw, inverse_order, compute))
                                        : all);
}
