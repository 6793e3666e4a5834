/* Shared pieces of type and shape rules (infer.h). */
#include "ops/infer.h"

#include <string.h>

const char *rp__dtype_title(rp_dtype d) { return (unsigned)d < RP__DTYPE_COUNT ? rp__dtypes[d].title : "unknown"; }

void rp__meta_like(rp__meta *out, const rp_tensor *t, rp_dtype dtype) {
    out->dtype = dtype;
    out->ndim = t->ndim;
    for (unsigned d = 0; d < t->ndim; d++) out->size[d] = t->size[d];
}

rp_status rp__meta_broadcast(const rp_tensor *a, const rp_tensor *b, rp__meta *out) {
    if (RP__LIKELY(a->ndim == b->ndim)) {
        unsigned d = 0;
        for (; d < a->ndim && rp__dim_same_word(a->size[d], b->size[d]); d++) out->size[d] = a->size[d];
        if (RP__LIKELY(d == a->ndim)) {
            out->ndim = a->ndim;
            return RP_OK;
        }
    }
    size_t n = 0;
    RP_TRY(rp__broadcast(a->size, a->ndim, b->size, b->ndim, out->size, &n));
    out->ndim = (uint8_t)n;
    return RP_OK;
}

rp_status rp__call_broadcast(const rp__call *call, unsigned a, unsigned b, rp__meta *out) {
    if (!call->op->scalar_operand) return rp__meta_broadcast(call->in[a], call->in[b], out);
    rp__meta_like(out, call->in[a], out->dtype);
    return RP_OK;
}

rp_dtype rp__call_promote(const rp__call *call, unsigned first, unsigned n, int attr) {
    if (call->op->scalar_operand && attr < 0) {
        n--;
        attr = 0;
    }
    if (n == 2 && attr < 0 && call->in[first]->dtype == call->in[first + 1]->dtype)
        return (rp_dtype)call->in[first]->dtype;
    rp__promotion p = {RP_DTYPE_NONE, RP_DTYPE_NONE, RP_DTYPE_NONE};
    for (unsigned k = first; k < first + n; k++)
        rp__promote_tensor(&p, (rp_dtype)call->in[k]->dtype, call->in[k]->ndim);
    if (attr >= 0) rp__promote_scalar(&p, call->attrs[attr].v.scalar.kind);
    return rp__promotion_result(&p);
}

bool rp__same_size(const rp_tensor *a, const rp_tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (unsigned d = 0; d < a->ndim; d++) {
        if (!rp__dim_same_word(a->size[d], b->size[d]) && !rp__dim_is(RP__DIM_EQ, a->size[d], b->size[d])) return false;
    }
    return true;
}

rp_status rp__call_dim(const rp__call *call, int64_t dim, size_t ndim, unsigned *out) {
    int64_t n = ndim ? (int64_t)ndim : 1;
    if (dim < -n || dim >= n)
        return rp__op_error(call, RP_ERROR_INDEX,
                            "Dimension out of range (expected to be in range of [%lld, %lld], but got %lld)",
                            -(long long)n, (long long)n - 1, (long long)dim);
    *out = (unsigned)(dim < 0 ? dim + n : dim);
    return RP_OK;
}

rp_status rp__call_dim_mask(const rp__call *call, unsigned attr, uint32_t *mask) {
    const rp_attr *given = &call->attrs[attr], *a = given;
    const rp_attr one = {
        .kind = RP_ATTR_INTS, .n = given->kind == RP_ATTR_INT && !rp__attr_is_none(given), .v.ints = &given->v.i};
    if (given->kind == RP_ATTR_INT) a = &one;
    unsigned ndim = call->in[0]->ndim;
    *mask = a->n ? 0 : (1u << ndim) - 1u;
    for (size_t i = 0; i < a->n; i++) {
        unsigned d = 0;
        RP_TRY(rp__call_dim(call, a->v.ints[i], ndim, &d));
        if (*mask >> d & 1u)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "dim %u appears multiple times in the list of dims",
                                d);
        *mask |= 1u << d;
    }
    *mask &= (1u << ndim) - 1u; /* rank 0 takes dim 0, which it does not have */
    return RP_OK;
}

void rp__meta_reduced(const rp__call *call, uint32_t mask, bool keepdim, rp_dtype dtype, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    out->dtype = dtype;
    out->ndim = 0;
    for (unsigned d = 0; d < t->ndim; d++) {
        bool reduced = mask >> d & 1u;
        if (!reduced || keepdim) out->size[out->ndim++] = reduced ? 1 : t->size[d];
    }
}

rp_status rp__give(const rp__call *call, rp_tensor *t) {
    call->out[0] = t;
    return rp__tensor_is_error(t) ? rp_error_status() : RP_OK;
}

rp_status rp__call_refuse_dtype(const rp__call *call, rp_dtype d) {
    return rp__op_error(call, RP_ERROR_DTYPE, "\"%s\" is not defined for '%s'", call->op->name, rp__dtype_title(d));
}

rp_status rp__call_need_number(const rp__call *call, rp_dtype d) {
    return d == RP_BOOL ? rp__call_refuse_dtype(call, d) : RP_OK;
}

rp_status rp__call_need_float(const rp__call *call, rp_dtype d) {
    return rp__dtype_is_float(d) ? RP_OK : rp__call_refuse_dtype(call, d);
}

static rp_dim clamp(rp_dim x, rp_dim low, rp_dim high) {
    if (rp__dim_is(RP__DIM_LT, x, low)) return low;
    return rp__dim_is(RP__DIM_LT, high, x) ? high : x;
}

/* An index that may count from the end; a word of the trace is asked for its sign, not compared. */
static rp_dim from_start(rp_dim index, rp_dim size) {
    return rp__dim_is(RP__DIM_LT, index, 0) ? rp__dim_apply(RP__DIM_ADD, size, index) : index;
}

rp_status rp__call_range(const rp__call *call, unsigned first, rp__range *out) {
    const rp_tensor *t = call->in[0];
    int64_t start = rp__attr_int(call, first + 1), end = rp__attr_int(call, first + 2),
            step = rp__dim_value(rp__attr_int(call, first + 3)); /* strides are made of it */
    if (t->ndim == 0)
        return rp__op_error(call, RP_ERROR_SHAPE, "%s() cannot be applied to a 0-dim tensor.", call->op->name);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, first), t->ndim, &out->dim));
    if (step <= 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "slice step must be positive");
    rp_dim size = t->size[out->dim];
    rp_dim from = start == INT64_MIN ? 0 : from_start(start, size);
    rp_dim to = end == INT64_MIN ? size : from_start(end, size);
    from = clamp(from, 0, size);
    to = end == INT64_MIN ? size : clamp(to, from, size);
    rp_dim length = rp__dim_apply(RP__DIM_SUB, to, from);
    if (step > 1) /* ceil(length / step), without an overflow for the largest steps */
        length = rp__dim_is(RP__DIM_EQ, length, 0)
                     ? 0
                     : rp__dim_apply(RP__DIM_ADD,
                                     rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_SUB, length, 1), step), 1);
    out->start = from;
    out->length = length;
    out->step = step;
    return RP_OK;
}

rp_status rp__call_index(const rp__call *call, int64_t dim, int64_t index, unsigned *out_dim, rp_dim *out_index) {
    const rp_tensor *t = call->in[0];
    char shape[RP__SHAPE_TEXT];
    if (t->ndim == 0)
        return rp__op_error(call, RP_ERROR_SHAPE, "%s() cannot be applied to a 0-dim tensor.", call->op->name);
    RP_TRY(rp__call_dim(call, dim, t->ndim, out_dim));
    rp_dim size = t->size[*out_dim];
    rp_dim wrapped = from_start(index, size);
    if (rp__dim_is(RP__DIM_LT, wrapped, 0) || !rp__dim_is(RP__DIM_LT, wrapped, size))
        return rp__op_error(call, RP_ERROR_INDEX, "%s(): index %lld out of range for tensor of size %s at dimension %u",
                            call->op->name, (long long)index, rp__shape_text(t->size, t->ndim, shape), *out_dim);
    *out_index = wrapped;
    return RP_OK;
}
