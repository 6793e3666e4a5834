/* Reductions over dims: rows kernels whose inner dims are the reduced ones. */
#include <math.h>
#include <string.h>

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

/* Without elements: which dims are taken away must be said, and they must have some. */
static rp_status need_elements(const rp__call *call) {
    if (!rp__dim_is(RP__DIM_EQ, rp__tensor_numel(call->in[0]), 0)) return RP_OK;
    return rp__op_error(
        call, RP_ERROR_SHAPE,
        "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
        "with the 'dim' argument.",
        call->op->name);
}
static rp_status need_along(const rp__call *call, uint32_t mask) {
    const rp_tensor *t = call->in[0];
    for (unsigned d = 0; d < t->ndim; d++) {
        if (mask >> d & 1u && rp__dim_is(RP__DIM_EQ, t->size[d], 0))
            return rp__op_error(call, RP_ERROR_INDEX, "%s(): Expected reduction dim %u to have non-zero size.",
                                call->op->name, d);
    }
    return RP_OK;
}

rp_status rp__infer_amax(const rp__call *call, rp__meta *out) {
    uint32_t mask;
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    RP_TRY(call->attrs[0].n == 0 ? need_elements(call) : need_along(call, mask));
    return infer_reduction(call, (rp_dtype)call->in[0]->dtype, out);
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

/* Factors of float32 in float64: partial products leave the range of float32 long before they leave that of float64, and what is
   below it costs a processor a hundred times as much an operation. */
static rp__val product(rp__lower *lw, rp__val a, rp_dtype compute) {
    const rp_dtype wide = compute == RP_F32 ? RP_F64 : compute;
    return rp__lw_cast(lw, rp__lw_reduce(lw, RP__REDUCE_PROD, rp__lw_cast(lw, a, wide)), compute);
}

void rp__lower_prod(rp__lower *lw) {
    const rp_dtype out = rp__lw_out_dtype(lw, 0);
    set_inner(lw);
    rp__lw_out_row(lw, 0, product(lw, rp__lw_in_as(lw, 0, out), rp__lw_compute(out)));
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
    rp__val others = product(lw, safe, compute);
    rp__val zeros = rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_cast(lw, is_zero, RP_I64));
    rp__val only = rp__lw_2(lw, RP__EQ, zeros, rp__lw_const_i(lw, RP_I64, 1));
    rp__val none = rp__lw_2(lw, RP__EQ, zeros, rp__lw_const_i(lw, RP_I64, 0));
    rp__val at_zero = rp__lw_3(lw, RP__WHERE, only, others, zero);
    rp__val elsewhere = rp__lw_3(lw, RP__WHERE, none, rp__lw_2(lw, RP__DIV, others, safe), zero);
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
static rp__val variance(rp__lower *lw, rp__val *mean) {
    rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    set_inner(lw);
    rp__val n = rp__lw_inner_extent(lw, compute), x = rp__lw_in(lw, 0);
    *mean = rp__lw_2(lw, RP__DIV, rp__lw_reduce(lw, RP__REDUCE_SUM, x), n);
    rp__val centred = rp__lw_2(lw, RP__SUB, x, *mean);
    rp__val squares = rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_2(lw, RP__MUL, centred, centred));
    rp__val freedom = rp__lw_2(lw, RP__SUB, n, rp__lw_scalar_fn(lw, correction, compute));
    freedom = rp__lw_2(lw, RP__MAX, freedom, rp__lw_const_i(lw, compute, 0));
    return rp__lw_2(lw, RP__DIV, squares, freedom);
}
void rp__lower_var(rp__lower *lw) {
    rp__val mean;
    rp__lw_out_row(lw, 0, variance(lw, &mean));
}
void rp__lower_std(rp__lower *lw) {
    rp__val mean;
    rp__lw_out_row(lw, 0, PRIM(SQRT, variance(lw, &mean)));
}

rp_status rp__infer_argmax(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    uint32_t mask;
    if (t->dtype == RP_BOOL)
        return rp__op_error(call, RP_ERROR_DTYPE, "%s(): does not support bool input", call->op->name);
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    RP_TRY(need_along(call, mask));
    return infer_reduction(call, RP_I64, out);
}

/* Output k: the least number at which the largest (smallest) value stands; behind that value, where k is not 0. */
static void lower_place(rp__lower *lw, rp__reduce_kind kind, unsigned k) {
    const rp__call *call = rp__lw_call(lw);
    unsigned dim = 0, ndim = call->in[0]->ndim;
    set_inner(lw);
    bool single = rp__lw_structural_value(lw, !rp__attr_is_none(&call->attrs[0]) && ndim > 0);
    if (single && rp__call_dim(call, rp__attr_int(call, 0), ndim, &dim) != RP_OK) return;
    rp__val index = single ? rp__lw_dim_index(lw, dim) : rp__lw_linear_index(lw);
    rp__val x = rp__lw_in(lw, 0), value = rp__lw_reduce(lw, kind, x);
    rp__val is = rp__lw_2(lw, RP__EQ, x, value);
    if (k > 0) rp__lw_out_row(lw, 0, value);
    if (rp__dtype_is_float(rp__lw_in_dtype(lw, 0))) is = rp__lw_2(lw, RP__OR, is, rp__lw_1(lw, RP__ISNAN, x));
    rp__val place = rp__lw_3(lw, RP__WHERE, is, index, rp__lw_const_i(lw, RP_I64, INT64_MAX));
    rp__lw_out_row(lw, k, rp__lw_reduce(lw, RP__REDUCE_MIN, place));
}
void rp__lower_argmax(rp__lower *lw) { lower_place(lw, RP__REDUCE_MAX, 0); }
void rp__lower_argmin(rp__lower *lw) { lower_place(lw, RP__REDUCE_MIN, 0); }

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

/* ---- max and min: of all elements, or along a dim with the places where they stand */

rp_status rp__infer_max(const rp__call *call, rp__meta *out) {
    RP_TRY(need_elements(call));
    rp__meta_reduced(call, ~UINT32_C(0), false, (rp_dtype)call->in[0]->dtype, out);
    return RP_OK;
}
static void lower_all(rp__lower *lw, rp__reduce_kind kind) {
    rp__lw_inner(lw, (UINT32_C(1) << rp__lw_call(lw)->in[0]->ndim) - 1);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, kind, rp__lw_in(lw, 0)));
}
void rp__lower_max(rp__lower *lw) { lower_all(lw, RP__REDUCE_MAX); }
void rp__lower_min(rp__lower *lw) { lower_all(lw, RP__REDUCE_MIN); }

rp_status rp__infer_max_dim(const rp__call *call, rp__meta *out) {
    uint32_t mask;
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    RP_TRY(need_along(call, mask));
    RP_TRY(infer_reduction(call, (rp_dtype)call->in[0]->dtype, &out[0]));
    return infer_reduction(call, RP_I64, &out[1]);
}
void rp__lower_max_dim(rp__lower *lw) { lower_place(lw, RP__REDUCE_MAX, 1); }
void rp__lower_min_dim(rp__lower *lw) { lower_place(lw, RP__REDUCE_MIN, 1); }

rp_status rp__infer_aminmax(const rp__call *call, rp__meta *out) {
    uint32_t mask;
    RP_TRY(rp__call_dim_mask(call, 0, &mask));
    RP_TRY(rp__attr_is_none(&call->attrs[0]) ? need_elements(call) : need_along(call, mask));
    RP_TRY(infer_reduction(call, (rp_dtype)call->in[0]->dtype, &out[0]));
    return infer_reduction(call, (rp_dtype)call->in[0]->dtype, &out[1]);
}
void rp__lower_aminmax(rp__lower *lw) {
    set_inner(lw);
    rp__val x = rp__lw_in(lw, 0);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_MIN, x));
    rp__lw_out_row(lw, 1, rp__lw_reduce(lw, RP__REDUCE_MAX, x));
}

rp_status rp__infer_var_mean(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_var(call, &out[0]));
    return rp__infer_var(call, &out[1]);
}
void rp__lower_var_mean(rp__lower *lw) {
    rp__val mean, var = variance(lw, &mean);
    rp__lw_out_row(lw, 0, var);
    rp__lw_out_row(lw, 1, mean);
}
void rp__lower_std_mean(rp__lower *lw) {
    rp__val mean, var = variance(lw, &mean);
    rp__lw_out_row(lw, 0, PRIM(SQRT, var));
    rp__lw_out_row(lw, 1, mean);
}

/* ---- made of other ops */

/* The vector norm over these dims; ord of no kind: 2. */
static rp_tensor *vector_norm(const rp__call *call, rp_scalar ord, const int64_t *dims, size_t n, bool keepdim,
                              rp_dtype dtype) {
    if (ord.kind == RP_SCALAR_NONE) ord = rp_i64(2);
    return rp_linalg_vector_norm(call->in[0], ord, dims, n, keepdim,
                                 RP_OPTIONS(rp_linalg_vector_norm_options, .dtype = dtype));
}

rp_status rp__expand_norm(const rp__call *call) {
    const rp_attr *a = call->attrs;
    return rp__give(call, vector_norm(call, a[0].v.scalar, a[1].v.ints, a[1].n, rp__attr_bool(call, 2), a[3].v.dtype));
}

/* Checks of a matrix norm; the two dims. */
static rp_status matrix_dims(const rp__call *call, const int64_t *dims, size_t n, unsigned at[2]) {
    const rp_tensor *t = call->in[0];
    if (!rp__dtype_is_float((rp_dtype)t->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "linalg.matrix_norm: Expected a floating point or complex tensor as input. Got %s",
                            rp__dtype_title((rp_dtype)t->dtype));
    if (t->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "linalg.matrix_norm: The input tensor must have at least 2 dimensions.");
    if (n != 2) return rp__op_error(call, RP_ERROR_SHAPE, "linalg.matrix_norm: dim must be a 2-tuple");
    for (unsigned k = 0; k < 2; k++) RP_TRY(rp__call_dim(call, dims[k], t->ndim, &at[k]));
    if (at[0] == at[1])
        return rp__op_error(call, RP_ERROR_SHAPE, "linalg.matrix_norm: dims must be different. Got (%u, %u)", at[0],
                            at[1]);
    return RP_OK;
}

/* Of the matrices in the dims `at`: (..., k), falling. */
static rp_tensor *singular_values(const rp__call *call, const unsigned at[2], rp_dtype dtype) {
    rp_tensor *x = call->in[0];
    const int64_t from[2] = {at[0], at[1]}, to[2] = {-2, -1};
    if (dtype != RP_DTYPE_NONE && dtype != (rp_dtype)x->dtype) x = rp_to_dtype(x, dtype);
    return rp_linalg_svdvals(rp_movedim(x, from, 2, to, 2));
}
/* One number a matrix; keepdim: both dims are there again. */
static rp_status give_of_matrix(const rp__call *call, rp_tensor *y, const unsigned at[2], bool keepdim) {
    if (keepdim) {
        y = rp_unsqueeze(y, at[0] < at[1] ? at[0] : at[1]);
        y = rp_unsqueeze(y, at[0] < at[1] ? at[1] : at[0]);
    }
    return rp__give(call, y);
}

/* Sums along one dim, then their largest or smallest along the other; of order 2 the largest or smallest singular value. */
static rp_status matrix_norm(const rp__call *call, rp_scalar ord, const int64_t *dims, size_t n, bool keepdim,
                             rp_dtype dtype) {
    const double p = rp__scalar_f64(ord), size = fabs(p);
    unsigned at[2];
    RP_TRY(matrix_dims(call, dims, n, at));
    if (size == 2) {
        rp_tensor *values = singular_values(call, at, dtype);
        return give_of_matrix(call, p > 0 ? rp_amax(values, RP_DIMS(-1)) : rp_amin(values, RP_DIMS(-1)), at, keepdim);
    }
    if (size != 1 && !isinf(size))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "linalg.matrix_norm: Order %g not supported.", p);
    const int64_t along = at[isinf(size)], across = at[!isinf(size)];
    rp_tensor *sums = vector_norm(call, rp_i64(1), &along, 1, true, dtype);
    const bool none = rp__dim_is(RP__DIM_EQ, call->in[0]->size[across], 0); /* no norm is below 0 */
    rp_tensor *most = p < 0  ? rp_amin(sums, &across, 1, true)
                      : none ? rp_sum(sums, &across, 1, true)
                             : rp_amax(sums, &across, 1, true);
    const int64_t kept[2] = {along, across};
    if (!keepdim) most = rp_squeeze_dims(most, kept, 2);
    return rp__give(call, most);
}
static rp_status matrix_norm_str(const rp__call *call, const char *ord, const int64_t *dims, size_t n, bool keepdim,
                                 rp_dtype dtype) {
    unsigned at[2];
    RP_TRY(matrix_dims(call, dims, n, at));
    if (strcmp(ord, "nuc") == 0)
        return give_of_matrix(call, rp_sum(singular_values(call, at, dtype), RP_DIMS(-1)), at, keepdim);
    if (strcmp(ord, "fro") != 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "linalg.matrix_norm: Order %s not supported.", ord);
    return rp__give(call, vector_norm(call, rp_i64(2), dims, n, keepdim, dtype));
}
rp_status rp__expand_linalg_matrix_norm(const rp__call *call) {
    const rp_attr *a = call->attrs;
    return matrix_norm(call, a[0].v.scalar, a[1].v.ints, a[1].n, rp__attr_bool(call, 2), a[3].v.dtype);
}
rp_status rp__expand_linalg_matrix_norm_str(const rp__call *call) {
    const rp_attr *a = call->attrs;
    return matrix_norm_str(call, a[0].v.string, a[1].v.ints, a[1].n, rp__attr_bool(call, 2), a[3].v.dtype);
}

static const int64_t both[2] = {0, 1};
rp_status rp__expand_linalg_norm(const rp__call *call) {
    const rp_attr *a = call->attrs;
    const rp_scalar ord = a[0].v.scalar;
    const unsigned ndim = call->in[0]->ndim;
    const bool keepdim = rp__attr_bool(call, 2), all = rp__attr_is_none(&a[1]);
    const rp_dtype dtype = a[3].v.dtype;
    if (ord.kind != RP_SCALAR_NONE && all && ndim != 1 && ndim != 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got %uD.",
                            ndim);
    if (ord.kind != RP_SCALAR_NONE && (all ? ndim == 2 : a[1].n == 2))
        return matrix_norm(call, ord, all ? both : a[1].v.ints, 2, keepdim, dtype);
    if (ord.kind != RP_SCALAR_NONE && a[1].n > 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "linalg.norm: If dim is specified, it must be of length 1 or 2. Got %zu", a[1].n);
    return rp__give(call, vector_norm(call, ord, a[1].v.ints, a[1].n, keepdim, dtype));
}
rp_status rp__expand_linalg_norm_str(const rp__call *call) {
    const rp_attr *a = call->attrs;
    const bool all = rp__attr_is_none(&a[1]);
    if (all && call->in[0]->ndim != 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got %uD.",
                            call->in[0]->ndim);
    return matrix_norm_str(call, a[0].v.string, all ? both : a[1].v.ints, all ? 2 : a[1].n, rp__attr_bool(call, 2),
                           a[3].v.dtype);
}

rp_status rp__expand_dist(const rp__call *call) {
    return rp__give(call, rp_norm(rp_sub(call->in[0], call->in[1]), call->attrs[0].v.scalar));
}

rp_status rp__expand_renorm(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const double p = rp__scalar_f64(call->attrs[0].v.scalar), most = rp__scalar_f64(call->attrs[2].v.scalar);
    const rp_dtype in = (rp_dtype)x->dtype;
    int64_t others[RP_MAX_DIMS];
    unsigned dim, n = 0;
    RP_TRY(rp__call_need_float(call, in));
    if (!(p > 0)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "renorm: non-positive-norm not supported");
    if (!(most >= 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "renorm: expected maxnorm to be >= 0 but got %g", most);
    if (x->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "renorm: input needs at least 2 dimensions, got %u dimensions",
                            x->ndim);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), x->ndim, &dim));
    for (unsigned d = 0; d < x->ndim; d++)
        if (d != dim) others[n++] = d;
    const rp_dtype wide = (rp_dtype)rp__dtypes[in].compute;
    rp_tensor *norm = vector_norm(call, call->attrs[0].v.scalar, others, n, true, wide);
    rp_tensor *scale = rp_mul_scalar(rp_reciprocal(rp_add_scalar(norm, rp_f64(1e-7))), rp_f64(most));
    rp_tensor *factor = rp_where(rp_gt_scalar(norm, rp_f64(most)), scale, rp_fill(norm, rp_i64(1)));
    if (wide != in) factor = rp_to_dtype(factor, in);
    return rp__give(call, rp_mul(x, factor));
}

static rp_status check_weights(const rp__call *call, unsigned k, rp_dim n, const char *name, bool floats) {
    const rp_tensor *w = call->in[k];
    if (!w) return RP_OK;
    if (w->ndim > 1)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "cov(): expected %s to have one or fewer dimensions but got %s with %u dimensions", name,
                            name, w->ndim);
    if (rp__dtype_is_float((rp_dtype)w->dtype) != floats || w->dtype == RP_BOOL)
        return rp__op_error(call, RP_ERROR_DTYPE, "cov(): expected %s to have %s dtype but got %s with %s dtype", name,
                            floats ? "floating point" : "integral", name, rp__dtype_title((rp_dtype)w->dtype));
    if (!rp__dim_is(RP__DIM_EQ, rp__tensor_numel(w), n))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "cov(): expected %s to have the same numel as there are observations in the input but got %lld != %lld",
            name, (long long)rp__dim_hint(rp__tensor_numel(w)), (long long)rp__dim_hint(n));
    return RP_OK;
}

/* Products of what is left of the rows without their means; weighted, each observation by its weight. */
rp_status rp__expand_cov(const rp__call *call) {
    static const int64_t one = 1;
    rp_tensor *x = call->in[0], *frequency = call->in[1], *part = call->in[2], *weight = NULL;
    const int64_t correction = rp__attr_int(call, 0);
    if (x->ndim > 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "cov(): expected input to have two or fewer dimensions but got an input with %u dimensions",
                            x->ndim);
    if (x->dtype == RP_BOOL) return rp__op_error(call, RP_ERROR_DTYPE, "cov(): bool dtype is not supported for input");
    const rp_dim row[2] = {1, rp__tensor_numel(x)};
    if (x->ndim < 2) x = rp_reshape(x, row, 2);
    const rp_dim n = x->size[1];
    RP_TRY(check_weights(call, 1, n, "fweights", false));
    RP_TRY(check_weights(call, 2, n, "aweights", true));
    if (frequency) weight = frequency;
    if (part) weight = weight ? rp_mul(weight, part) : part;
    rp_tensor *sum, *freedom = NULL, *c;
    if (!weight) {
        sum = rp_div_scalar(rp_sum(x, &one, 1, true), rp_i64(n));
    } else {
        rp_tensor *total = rp_sum(weight);
        sum = rp_div(rp_sum(rp_mul(x, weight), &one, 1, true), total);
        rp_tensor *less = part && correction != 0
                              ? rp_mul_scalar(rp_div(rp_sum(rp_mul(weight, part)), total), rp_i64(correction))
                              : NULL;
        freedom = rp_clamp(less ? rp_sub(total, less) : rp_sub_scalar(total, rp_i64(correction)), rp_i64(0), rp_none());
    }
    rp_tensor *rest = rp_sub(x, sum);
    c = rp_matmul(rest, rp_transpose(weight ? rp_mul(rest, weight) : rest, 0, 1));
    c = freedom ? rp_div(c, freedom)
                : rp_div_scalar(c, rp_i64(rp__dim_apply(RP__DIM_MAX, rp__dim_apply(RP__DIM_SUB, n, correction), 0)));
    return rp__give(call, rp_squeeze_dims(c));
}

rp_status rp__expand_corrcoef(const rp__call *call) {
    rp_tensor *x = call->in[0];
    if (x->ndim > 2)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "corrcoef(): expected input to have two or fewer dimensions but got an input with %u dimensions", x->ndim);
    rp_tensor *c = rp_cov(x);
    if (c->ndim == 0) return rp__give(call, rp_div(c, c));
    rp_tensor *deviation = rp_sqrt(rp_diagonal(c));
    c = rp_div(rp_div(c, rp_unsqueeze(deviation, 1)), rp_unsqueeze(deviation, 0));
    return rp__give(call, rp_clamp(c, rp_i64(-1), rp_i64(1)));
}
