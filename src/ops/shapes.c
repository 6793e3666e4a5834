/* Other sizes, joins and powers, as calls of rows of other families; the bytes of a tensor as another type. */
#include <math.h>
#include <string.h>

#include "ops/private.h"

#include "ops/execute.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"

/* ---- one tensor with other dims */

static rp_status same(const rp__call *call) { return rp__give(call, rp__tensor_enter_scope(call->in[0])); }

rp_status rp__expand_t(const rp__call *call) {
    const unsigned ndim = call->in[0]->ndim;
    if (ndim > 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "expects a tensor with <= 2 dimensions, but self is %uD", ndim);
    return ndim < 2 ? same(call) : rp__give(call, rp_transpose(call->in[0], 0, 1));
}

rp_status rp__expand_ravel(const rp__call *call) { return rp__give(call, rp_reshape(call->in[0], RP_DIMS(-1))); }

rp_status rp__expand_broadcast_to(const rp__call *call) {
    return rp__give(call, rp_expand(call->in[0], call->attrs[0].v.ints, call->attrs[0].n));
}

static rp_status at_least(const rp__call *call, unsigned ndim) {
    rp_tensor *t = call->in[0];
    if (t->ndim >= ndim) return same(call);
    while (!rp__tensor_is_error(t) && t->ndim < ndim) t = rp_unsqueeze(t, t->ndim == 2 ? 2 : 0);
    return rp__give(call, t);
}
rp_status rp__expand_atleast_1d(const rp__call *call) { return at_least(call, 1); }
rp_status rp__expand_atleast_2d(const rp__call *call) { return at_least(call, 2); }
rp_status rp__expand_atleast_3d(const rp__call *call) { return at_least(call, 3); }

rp_status rp__expand_diagflat(const rp__call *call) {
    return rp__give(call, rp_diag(rp_reshape(call->in[0], RP_DIMS(-1)), rp__attr_int(call, 0)));
}

rp_status rp__expand_argwhere(const rp__call *call) { return rp__give(call, rp_nonzero(call->in[0])); }

/* ---- joins */

/* Each matrix is a stripe as wide as all together. */
rp_status rp__expand_block_diag(const rp__call *call) {
    rp_tensor *in[RP__MAX_IN];
    rp_dim before = 0, all = 0;
    if (call->n_in == 0) return rp__give(call, rp_zeros(RP_DIMS(1, 0)));
    for (uint32_t k = 0; k < call->n_in; k++) {
        if (call->in[k]->ndim > 2)
            return rp__op_error(call, RP_ERROR_SHAPE, "Input tensors must have 2 or fewer dimensions. Input %u has %u",
                                k, call->in[k]->ndim);
        in[k] = rp_atleast_2d(call->in[k]);
        if (rp__tensor_is_error(in[k])) return rp_error_status();
        all = rp__dim_apply(RP__DIM_ADD, all, in[k]->size[1]);
    }
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_dim width = in[k]->size[1], upto = rp__dim_apply(RP__DIM_ADD, before, width);
        in[k] = rp_constant_pad_nd(in[k], RP_DIMS(before, rp__dim_apply(RP__DIM_SUB, all, upto)), rp_i64(0));
        before = upto;
    }
    return rp__give(call, rp_cat(in, call->n_in, 0));
}

rp_status rp__expand_cartesian_prod(const rp__call *call) {
    rp_tensor *in[RP__MAX_IN];
    rp_dim size[RP_MAX_DIMS];
    const uint32_t n = call->n_in;
    if (n == 0 || n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects 1 to %d tensors, not %u", RP_MAX_DIMS, n);
    for (uint32_t k = 0; k < n; k++) {
        const rp_tensor *t = call->in[k];
        if (t->ndim != 1)
            return rp__op_error(call, RP_ERROR_SHAPE, "Expect a 1D vector, but tensor %u has %u dimensions", k,
                                t->ndim);
        if (t->dtype != call->in[0]->dtype)
            return rp__op_error(call, RP_ERROR_DTYPE, "expects all tensors to have the same dtype");
        size[k] = t->size[0];
    }
    if (n == 1) return same(call);
    for (uint32_t k = 0; k < n; k++) {
        rp_dim along[RP_MAX_DIMS];
        for (uint32_t d = 0; d < n; d++) along[d] = d == k ? size[k] : 1;
        in[k] = rp_reshape(rp_expand(rp_view(call->in[k], along, n), size, n), RP_DIMS(-1));
    }
    return rp__give(call, rp_stack(in, n, 1));
}

/* ---- powers, products, bounds */

rp_status rp__expand_linalg_vander(const rp__call *call) {
    rp_tensor *x = call->in[0];
    if (x->ndim == 0) x = rp_unsqueeze(x, 0);
    if (rp__tensor_is_error(x)) return rp_error_status();
    if (x->dtype == RP_BOOL || rp__dtype_is_half((rp_dtype)x->dtype))
        return rp__call_refuse_dtype(call, (rp_dtype)x->dtype);
    const rp_dim n = rp__attr_is_none(&call->attrs[0]) ? x->size[x->ndim - 1u] : call->attrs[0].v.i;
    if (rp__dim_is(RP__DIM_LT, n, 2)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "N must be greater than 1");
    if (x->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    if (!rp__dim_is_symbol(n) && rp__dim_number(n) >= RP__REACH_LIMIT)
        return rp__op_error(call, RP_ERROR_SHAPE, "the result has too many elements");
    rp_dim size[RP_MAX_DIMS];
    for (unsigned d = 0; d < x->ndim; d++) size[d] = x->size[d];
    size[x->ndim] = rp__dim_apply(RP__DIM_SUB, n, 1);
    rp_tensor *column = rp_unsqueeze(x, -1), *parts[2] = {rp_ones_like(column), rp_expand(column, size, x->ndim + 1u)};
    return rp__give(call, rp_cumprod(rp_cat(parts, 2, -1), -1));
}

rp_status rp__expand_linalg_vecdot(const rp__call *call) {
    if (call->in[0]->dtype != call->in[1]->dtype || !rp__dtype_is_float((rp_dtype)call->in[0]->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "expects floating point tensors of one dtype");
    rp_tensor *sum = rp_sum(rp_mul(rp__wide(call->in[0]), rp__wide(call->in[1])), RP_DIMS(rp__attr_int(call, 0)));
    return rp__give(call, rp__tensor_is_error(sum) || sum->dtype == call->in[0]->dtype
                              ? sum
                              : rp_to_dtype(sum, (rp_dtype)call->in[0]->dtype));
}

/* By squares. */
rp_status rp__expand_linalg_matrix_power(const rp__call *call) {
    rp_tensor *square = call->in[0], *product = NULL;
    const unsigned ndim = square->ndim;
    const int64_t n = rp__attr_int(call, 0);
    if (ndim < 2 || rp__dim_is(RP__DIM_NE, square->size[ndim - 1], square->size[ndim - 2]))
        return rp__op_error(call, RP_ERROR_SHAPE, "A must be batches of square matrices");
    if (n == 0) {
        rp_tensor *place = rp__count_beside(square, square->size[ndim - 1]);
        rp_tensor *one = rp_to_dtype(rp_eq(rp_unsqueeze(place, 1), place), (rp_dtype)square->dtype);
        return rp__give(call, rp_clone(rp_expand(one, square->size, ndim)));
    }
    if (n < 0) square = rp_linalg_inv(square);
    for (uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n; left; left >>= 1) {
        if (left & 1) product = product ? rp_matmul(product, square) : square;
        if (left > 1) square = rp_matmul(square, square);
    }
    return rp__give(call, product == call->in[0] ? rp_clone(product) : product);
}

rp_status rp__expand_logdet(const rp__call *call) {
    rp_tensor *log = NULL, *sign = rp_linalg_slogdet(call->in[0], &log);
    if (rp__tensor_is_error(sign)) return rp_error_status();
    return rp__give(call, rp_masked_fill_scalar(log, rp_lt_scalar(sign, rp_i64(0)), rp_f64(NAN)));
}

/* ---- copies of views: NAME_copy is a copy of NAME */

rp_status rp__expand_view_copy(const rp__call *call) {
    char name[sizeof call->op->schema.name];
    const size_t length = strlen(call->op->name) - strlen("_copy");
    memcpy(name, call->op->name, length);
    name[length] = 0;
    const bool folds = strcmp(name, "view") == 0; /* strides need not allow it */
    rp_tensor *t = call->in[0];
    if (!folds && strcmp(name, "alias") != 0) t = rp__grad_call(rp__op_find(name), call, t, NULL);
    t = rp_clone(t, RP_OPTIONS(rp_clone_options, .memory_format = RP_CONTIGUOUS_FORMAT));
    return rp__give(call, folds ? rp_view(t, call->attrs[0].v.ints, call->attrs[0].n) : t);
}

rp_status rp__infer_view_copy_dtype(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    const rp_dtype from = (rp_dtype)t->dtype, to = call->attrs[0].v.dtype;
    if (!rp__dtype_is_valid(to)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)to);
    const int64_t before = (int64_t)rp__dtype_bytes(from), after = (int64_t)rp__dtype_bytes(to);
    rp__meta_like(out, t, to);
    if (before == after) return RP_OK;
    if (t->ndim == 0)
        return rp__op_error(call, RP_ERROR_SHAPE, "self.dim() cannot be 0 to view %s as %s (different element sizes)",
                            rp__dtype_title(from), rp__dtype_title(to));
    rp_dim *last = &out->size[out->ndim - 1];
    if (before > after) {
        *last = rp__dim_apply(RP__DIM_MUL, *last, before / after);
        return RP_OK;
    }
    if (!rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MOD, *last, after / before), 0))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "self.size(-1) must be divisible by %lld to view %s as %s (different element sizes), but "
                            "got %lld",
                            (long long)(after / before), rp__dtype_title(from), rp__dtype_title(to),
                            (long long)rp__dim_hint(*last));
    *last = rp__dim_apply(RP__DIM_FLOORDIV, *last, after / before);
    return RP_OK;
}

/* A row-major tensor as a row of `units`, whole numbers that are no larger than its elements. */
static rp_tensor *as_units(rp_tensor *t, rp_dtype units) {
    const int64_t each = (int64_t)(rp__dtype_bytes((rp_dtype)t->dtype) / rp__dtype_bytes(units));
    const rp_dim n = rp__tensor_numel(t) * each, one = 1;
    return rp__tensor_over(units, &n, &one, 1, t->offset * each, rp__storage_retain(t->storage));
}

rp_status rp__run_view_copy_dtype(const rp__call *call) {
    static const rp_dtype of_bytes[] = {[1] = RP_U8, [2] = RP_I16, [4] = RP_I32, [8] = RP_I64};
    rp_tensor *from = rp__run_contiguous(call->in[0], (rp_dtype)call->in[0]->dtype), *to = call->out[0];
    if (rp__tensor_is_error(from)) return rp_error_status();
    const size_t before = rp__dtype_bytes((rp_dtype)from->dtype), after = rp__dtype_bytes((rp_dtype)to->dtype);
    const rp_dtype units = of_bytes[before < after ? before : after];
    from = as_units(from, units);
    to = as_units(to, units);
    if (rp__tensor_is_error(from) || rp__tensor_is_error(to)) return rp_error_status();
    return rp__run_copy(to, from);
}
