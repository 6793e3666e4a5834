/* Writing at places along one dim: scatter and the forms of it whose index is one for whole slices. Each is one of the kernels that
   combine (index.c), over values and indices that repeat without memory. */
#include "kernel/library.h"
#include "ops/private.h"

#include <math.h>
#include <string.h>

#include "ops/execute.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"

static bool in_place(const rp__call *call) { return call->op->flags & RP_OP_INPLACE; }

/* One of the kernels, in place if the call is. */
static rp_tensor *combine(const rp__call *call, rp__scatter kind, rp_tensor *self, int64_t dim, rp_tensor *index,
                          rp_tensor *src) {
    const char *site = call->site;
    const bool here = in_place(call);
    switch (kind) {
    case RP__SCATTER_ADD:
        return here ? rp_scatter_add__at(site, self, dim, index, src) : rp_scatter_add_at(site, self, dim, index, src);
    case RP__SCATTER_MUL:
        return here ? rp_scatter_mul__at(site, self, dim, index, src) : rp_scatter_mul_at(site, self, dim, index, src);
    case RP__SCATTER_MAX:
        return here ? rp_scatter_max__at(site, self, dim, index, src) : rp_scatter_max_at(site, self, dim, index, src);
    case RP__SCATTER_MIN:
        return here ? rp_scatter_min__at(site, self, dim, index, src) : rp_scatter_min_at(site, self, dim, index, src);
    default:
        return here ? rp_scatter_set__at(site, self, dim, index, src) : rp_scatter_set_at(site, self, dim, index, src);
    }
}

/* A number in t's type and device, of the size of `like` by repetition. */
static rp_tensor *repeated(const rp__call *call, const rp_tensor *t, rp_scalar value, const rp_tensor *like) {
    const rp__meta one = {.dtype = (rp_dtype)t->dtype, .device = t->device};
    rp_tensor *number = rp_fill_at(call->site, rp__zeros_of(&one), value);
    return rp_expand_at(call->site, number, like->size, like->ndim, NULL);
}

/* ---- scatter */

static rp_status scatter_kind(const rp__call *call, unsigned attr, rp__scatter *kind) {
    const char *reduce = call->attrs[attr].v.string;
    *kind = RP__SCATTER_SET;
    if (!reduce) return RP_OK;
    if (strcmp(reduce, "add") == 0)
        *kind = RP__SCATTER_ADD;
    else if (strcmp(reduce, "multiply") == 0)
        *kind = RP__SCATTER_MUL;
    else
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "reduce argument must be either add or multiply.");
    return RP_OK;
}

static rp_status expand_scatter(const rp__call *call) {
    rp__scatter kind;
    RP_TRY(scatter_kind(call, 1, &kind));
    return rp__give(call, combine(call, kind, call->in[0], rp__attr_int(call, 0), call->in[1], call->in[2]));
}
rp_status rp__expand_scatter(const rp__call *call) { return expand_scatter(call); }
rp_status rp__expand_scatter_(const rp__call *call) { return expand_scatter(call); }

static rp_status expand_scatter_scalar(const rp__call *call) {
    rp__scatter kind;
    RP_TRY(scatter_kind(call, 2, &kind));
    rp_tensor *value = repeated(call, call->in[0], call->attrs[1].v.scalar, call->in[1]);
    return rp__give(call, combine(call, kind, call->in[0], rp__attr_int(call, 0), call->in[1], value));
}
rp_status rp__expand_scatter_scalar(const rp__call *call) { return expand_scatter_scalar(call); }
rp_status rp__expand_scatter_scalar_(const rp__call *call) { return expand_scatter_scalar(call); }

/* ---- scatter_reduce */

/* What changes nothing: where self stays out, it is this that src is reduced into. */
static rp_scalar neutral(rp_dtype dtype, rp__scatter kind) {
    const bool low = kind == RP__SCATTER_MAX;
    if (kind == RP__SCATTER_ADD) return rp_i64(0);
    if (kind == RP__SCATTER_MUL) return rp_i64(1);
    if (rp__dtype_is_float(dtype)) return rp_f64(low ? -INFINITY : INFINITY);
    return dtype == RP_BOOL ? rp_bool(!low) : rp_i64(low ? rp__dtype_least(dtype) : rp__dtype_most(dtype));
}

static rp_tensor *reduce_into(const rp__call *call, rp_tensor *self, int64_t dim, rp_tensor *index, rp_tensor *src,
                              const char *reduce, bool include_self) {
    static const struct {
        const char *name;
        rp__scatter kind;
    } kinds[] = {{"sum", RP__SCATTER_ADD},
                 {"mean", RP__SCATTER_ADD},
                 {"prod", RP__SCATTER_MUL},
                 {"amax", RP__SCATTER_MAX},
                 {"amin", RP__SCATTER_MIN}};
    const rp_dtype dtype = (rp_dtype)self->dtype;
    unsigned k = 0;
    while (k < 5 && (!reduce || strcmp(reduce, kinds[k].name) != 0)) k++;
    if (k == 5) {
        (void)rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                           "reduce argument must be either sum, prod, mean, amax or amin, got %s",
                           reduce ? reduce : "None");
        return rp__tensor_error();
    }
    const bool mean = k == 1;
    if (mean && dtype == RP_BOOL) {
        (void)rp__call_refuse_dtype(call, dtype);
        return rp__tensor_error();
    }
    rp_tensor *into = self;
    if (!include_self) {
        rp_tensor *start = repeated(call, self, neutral(dtype, kinds[k].kind), index);
        into = combine(call, RP__SCATTER_SET, self, dim, index, start);
    }
    rp_tensor *out = combine(call, kinds[k].kind, into, dim, index, src);
    if (!mean || rp__tensor_is_error(out)) return out;
    /* how many were added up; places that nothing went to are one, self's own */
    rp_tensor *count = rp_scatter_add_at(call->site, repeated(call, self, rp_i64(include_self), self), dim, index,
                                         repeated(call, self, rp_i64(1), index));
    if (!include_self) count = rp_clamp_at(call->site, count, rp_i64(1), rp_none());
    if (in_place(call))
        return rp__dtype_is_float(dtype) ? rp_div__at(call->site, out, count)
                                         : rp_floor_divide__at(call->site, out, count);
    return rp__dtype_is_float(dtype) ? rp_div_at(call->site, out, count) : rp_floor_divide_at(call->site, out, count);
}

static rp_status expand_scatter_reduce(const rp__call *call) {
    return rp__give(call, reduce_into(call, call->in[0], rp__attr_int(call, 0), call->in[1], call->in[2],
                                      call->attrs[1].v.string, rp__attr_bool(call, 2)));
}
rp_status rp__expand_scatter_reduce(const rp__call *call) { return expand_scatter_reduce(call); }
rp_status rp__expand_scatter_reduce_(const rp__call *call) { return expand_scatter_reduce(call); }

/* ---- slices: one index for all their elements */

/* The dim, and the index over the slices of a tensor of `size`: a vector along dim that the others repeat. */
static rp_status index_of_slices(const rp__call *call, const rp_tensor *self, rp_tensor *index, unsigned *dim,
                                 rp_tensor **out) {
    rp_dim lone[RP_MAX_DIMS], size[RP_MAX_DIMS];
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, dim));
    if (index->ndim > 1)
        return rp__op_error(call, RP_ERROR_SHAPE, "Index should have dimension 1 or 0 (got %u)", index->ndim);
    if (index->dtype != RP_I64 && index->dtype != RP_I32)
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected dtype int32/int64 for index but got: %s",
                            rp__dtype_title((rp_dtype)index->dtype));
    if (self->ndim == 0) {
        *out = rp_view_at(call->site, index, RP_DIMS(rp__tensor_numel(index)));
        return rp__tensor_is_error(*out) ? rp_error_status() : RP_OK;
    }
    for (unsigned d = 0; d < self->ndim; d++) {
        lone[d] = d == *dim ? rp__tensor_numel(index) : 1;
        size[d] = d == *dim ? lone[d] : self->size[d];
    }
    if (index->dtype != RP_I64) index = rp_to_dtype_at(call->site, index, RP_I64, NULL); /* before it repeats */
    *out = rp_expand_at(call->site, rp_view_at(call->site, index, lone, self->ndim), size, self->ndim, NULL);
    return rp__tensor_is_error(*out) ? rp_error_status() : RP_OK;
}

/* source has an index for each of its slices, and they have the size of self's. A vector stands for a number along dim 0. */
static rp_status check_source(const rp__call *call, const rp_tensor *self, const rp_tensor *index, rp_tensor **source) {
    rp_tensor *src = *source;
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    if (self->dtype != src->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "self and source expected to have the same dtype, but got %s and %s",
                            rp__dtype_title((rp_dtype)self->dtype), rp__dtype_title((rp_dtype)src->dtype));
    bool fits = (self->ndim ? self->ndim : 1) == (src->ndim ? src->ndim : 1);
    for (unsigned d = 0; fits && d < self->ndim; d++)
        fits = d == dim || rp__dim_is(RP__DIM_EQ, self->size[d], src->size[d]);
    if (!fits)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "source's size must be self's but along dim: got %s for self and %s for source",
                            rp__shape_text(self->size, self->ndim, a), rp__shape_text(src->size, src->ndim, b));
    if (!rp__dim_is(RP__DIM_EQ, rp__tensor_numel(index), src->ndim ? src->size[dim] : 1))
        return rp__op_error(call, RP_ERROR_SHAPE, "Number of indices (%lld) should be equal to source.size(dim) (%lld)",
                            (long long)rp__dim_hint(rp__tensor_numel(index)),
                            (long long)rp__dim_hint(src->ndim ? src->size[dim] : 1));
    return RP_OK;
}

static rp_status of_slices(const rp__call *call, rp__scatter kind, rp_tensor *source) {
    rp_tensor *self = call->in[0], *index;
    unsigned dim;
    RP_TRY(check_source(call, self, call->in[1], &source));
    RP_TRY(index_of_slices(call, self, call->in[1], &dim, &index));
    return rp__give(call, combine(call, kind, self, dim, index, source));
}

static rp_status expand_index_add(const rp__call *call) {
    const rp_scalar alpha = call->attrs[1].v.scalar;
    rp_tensor *source = call->in[2];
    if (!rp__dtype_is_float((rp_dtype)source->dtype) && rp__scalar_is_float(alpha))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "For integral input tensors, argument alpha must not be a floating point number.");
    if (source->dtype == call->in[0]->dtype && !rp__scalar_is_one(alpha))
        source = rp_to_dtype_at(call->site, rp_mul_scalar_at(call->site, source, alpha), (rp_dtype)source->dtype, NULL);
    return rp__tensor_is_error(source) ? rp_error_status() : of_slices(call, RP__SCATTER_ADD, source);
}
rp_status rp__expand_index_add(const rp__call *call) { return expand_index_add(call); }
rp_status rp__expand_index_add_(const rp__call *call) { return expand_index_add(call); }

rp_status rp__expand_index_copy(const rp__call *call) { return of_slices(call, RP__SCATTER_SET, call->in[2]); }
rp_status rp__expand_index_copy_(const rp__call *call) { return of_slices(call, RP__SCATTER_SET, call->in[2]); }

rp_status rp__expand_index_reduce(const rp__call *call) {
    rp_tensor *self = call->in[0], *source = call->in[2], *index;
    const char *reduce = call->attrs[1].v.string;
    unsigned dim;
    if (!reduce || strcmp(reduce, "sum") == 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "reduce argument must be either prod, mean, amax or amin, got %s",
                            reduce ? reduce : "None");
    if (self->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    RP_TRY(check_source(call, self, call->in[1], &source));
    RP_TRY(index_of_slices(call, self, call->in[1], &dim, &index));
    return rp__give(call, reduce_into(call, self, dim, index, source, reduce, rp__attr_bool(call, 2)));
}

/* Indices may count from the end here. */
static rp_status fill_slices(const rp__call *call, rp_tensor *value) {
    rp_tensor *self = call->in[0], *given = call->in[1], *index;
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    const rp_dim size = self->ndim ? self->size[dim] : 1;
    if (given->dtype != RP_I64) return rp__op_error(call, RP_ERROR_DTYPE, "Expected dtype int64 for index.");
    if (rp__dim_is(RP__DIM_EQ, size, 0) && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(given), 0))
        return rp__op_error(call, RP_ERROR_INDEX, "index out of range: the indexed dimension has size 0");
    given = rp_index_place_at(call->site, &given, 1, &size, 1);
    if (rp__tensor_is_error(given)) return rp_error_status();
    RP_TRY(index_of_slices(call, self, given, &dim, &index));
    value = rp_expand_at(call->site, value, index->size, index->ndim, NULL);
    return rp__give(call, combine(call, RP__SCATTER_SET, self, dim, index, value));
}

/* The same by a mask: the gradient of value counts each slice once, however often index names it. */
static rp_status fill_masked(const rp__call *call, rp_tensor *value) {
    rp_tensor *self = call->in[0];
    rp__meta named = {.dtype = RP_BOOL, .device = self->device, .ndim = 1, .size = {1}};
    rp_dim along[RP_MAX_DIMS];
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    if (self->ndim) named.size[0] = self->size[dim];
    rp_tensor *mask = rp_index_fill_scalar(rp__zeros_of(&named), 0, call->in[1], rp_bool(true));
    for (unsigned d = 0; d < self->ndim; d++) along[d] = d == dim ? self->size[d] : 1;
    mask = rp_view(mask, along, self->ndim);
    return rp__give(call, in_place(call) ? rp_masked_fill_(self, mask, value) : rp_masked_fill(self, mask, value));
}

static rp_status expand_index_fill(const rp__call *call) {
    rp_tensor *value = call->in[2];
    if (value->ndim > 0)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "only supports a 0-dimensional value tensor, but got tensor with %u "
                            "dimension(s).",
                            value->ndim);
    value = rp_to_dtype_at(call->site, value, (rp_dtype)call->in[0]->dtype, NULL);
    if (rp__tensor_is_error(value)) return rp_error_status();
    return rp_requires_grad(value) ? fill_masked(call, value) : fill_slices(call, value);
}
rp_status rp__expand_index_fill(const rp__call *call) { return expand_index_fill(call); }
rp_status rp__expand_index_fill_(const rp__call *call) { return expand_index_fill(call); }

static rp_status expand_index_fill_scalar(const rp__call *call) {
    const rp_tensor none = {.ndim = 0};
    return fill_slices(call, repeated(call, call->in[0], call->attrs[1].v.scalar, &none));
}
rp_status rp__expand_index_fill_scalar(const rp__call *call) { return expand_index_fill_scalar(call); }
rp_status rp__expand_index_fill_scalar_(const rp__call *call) { return expand_index_fill_scalar(call); }

/* ---- fill_diagonal_ */

rp_status rp__expand_fill_diagonal_(const rp__call *call) {
    rp_tensor *self = call->in[0];
    const rp_scalar value = call->attrs[0].v.scalar;
    if (self->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "dimensions must larger than 1");
    for (unsigned d = 1; self->ndim > 2 && d < self->ndim; d++)
        if (!rp__dim_is(RP__DIM_EQ, self->size[d], self->size[0]))
            return rp__op_error(call, RP_ERROR_SHAPE, "all dimensions of input must be of equal length");
    rp_tensor *t = rp_diagonal_at(call->site, self, 0, 0, 1);
    for (unsigned d = 2; d < self->ndim; d++) t = rp_diagonal_at(call->site, t, 0, 0, -1);
    t = rp_fill__at(call->site, t, value);
    if (self->ndim == 2 && rp__attr_bool(call, 1)) {
        const int64_t rows = rp__dim_value(self->size[0]), columns = rp__dim_value(self->size[1]);
        for (int64_t r = columns + 1; r < rows && !rp__tensor_is_error(t); r += columns + 1) {
            rp_tensor *below = rp_slice_at(call->site, self, 0, r, rows, 1);
            t = rp_fill__at(call->site, rp_diagonal_at(call->site, below, 0, 0, 1), value);
        }
    }
    return rp__give(call, rp__tensor_is_error(t) ? t : rp__tensor_enter_scope(self));
}
