/* Joining and indexing: cat, gather, embedding, scatter_add, topk, sort, nonzero. Indices are checked by the kernels, which clamp and
   write the device's error record; what sizes alone decide is checked here. */
#include <reprise_ops.h>
#include <string.h>

#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/library_ops.h"
#include "ops/rules.h"

/* ---- cat */

/* PyTorch's old rule: one-dimensional empty tensors join anything. */
static bool skipped(const rp_tensor *t) { return t->ndim == 1 && rp__dim_is(RP__DIM_EQ, t->size[0], 0); }

rp_status rp__infer_cat(const rp__call *call, rp__meta *out) {
    const rp_tensor *first = NULL;
    if (call->n_in == 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "torch.cat(): expected a non-empty list of Tensors");
    rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (t->ndim == 0)
            return rp__op_error(call, RP_ERROR_SHAPE, "zero-dimensional tensor (at position %u) cannot be concatenated",
                                k);
        dtype = rp__promote(dtype, (rp_dtype)t->dtype);
        if (!first && !skipped(t)) first = t;
    }
    if (!first) {
        rp__meta_like(out, call->in[0], dtype);
        return RP_OK;
    }
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), first->ndim, &dim));
    rp__meta_like(out, first, dtype);
    rp_dim total = 0;
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (skipped(t)) continue;
        if (t->ndim != first->ndim)
            return rp__op_error(call, RP_ERROR_SHAPE, "Tensors must have same number of dimensions: got %u and %u",
                                first->ndim, t->ndim);
        for (unsigned d = 0; d < t->ndim; d++) {
            if (d != dim && !rp__dim_is(RP__DIM_EQ, t->size[d], first->size[d]))
                return rp__op_error(
                    call, RP_ERROR_SHAPE,
                    "Sizes of tensors must match except in dimension %u. Expected size %lld but got size %lld for "
                    "tensor number %u in the list.",
                    dim, (long long)rp__dim_hint(first->size[d]), (long long)rp__dim_hint(t->size[d]), k);
        }
        total = rp__dim_apply(RP__DIM_ADD, total, t->size[dim]);
    }
    out->size[dim] = total;
    return RP_OK;
}

/* Has a compiler had it stored there already? */
static bool lies_in(const rp_tensor *t, const rp_tensor *part) {
    bool same = t->storage == part->storage && t->dtype == part->dtype && rp__dim_same_word(t->offset, part->offset);
    for (unsigned d = 0; d < t->ndim && same; d++) same = rp__dim_same_word(t->stride[d], part->stride[d]);
    return same;
}

static rp_status copy_parts(const rp__call *call, unsigned dim) {
    rp_tensor *out = call->out[0];
    rp_dim offset = out->offset;
    for (uint32_t k = 0; k < call->n_in; k++) {
        rp_tensor *t = call->in[k];
        if (skipped(t)) continue;
        rp_tensor *part = rp__tensor_view(out, t->size, out->stride, t->ndim, offset);
        if (rp__tensor_is_error(part)) return rp_error_status();
        if (!lies_in(t, part)) RP_TRY(rp__run_copy(part, t));
        offset += t->size[dim] * out->stride[dim];
    }
    return RP_OK;
}

/* One copy into a slice of the output for each tensor, all of them in one launch where the device can. */
rp_status rp__run_cat(const rp__call *call) {
    rp_tensor *out = call->out[0];
    unsigned dim;
    if (rp__dim_same_word(rp__tensor_numel(out), 0)) return RP_OK; /* of empty 1-d tensors alone dim may be any */
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), out->ndim, &dim));
    rp__device *d = rp__device_get(out->device);
    if (!d) return rp_error_status();
    rp__loop_parts parts;
    rp__loop_parts_begin(&parts, d, rp__current_stream(d));
    return rp__loop_parts_end(&parts, copy_parts(call, dim));
}

/* ---- gather and embedding: a load at a computed offset */

static rp_status need_index(const rp__call *call, unsigned k, bool any_if_empty) {
    rp_dtype d = (rp_dtype)call->in[k]->dtype;
    if (d == RP_I64 || d == RP_I32) return RP_OK;
    if (any_if_empty && rp__dim_is(RP__DIM_EQ, rp__tensor_numel(call->in[k]), 0)) return RP_OK;
    return rp__op_error(call, RP_ERROR_DTYPE, "Expected dtype int32/int64 for index, but got %s", rp__dtype_title(d));
}

static rp_dim size_along(const rp_tensor *t, unsigned dim) { return t->ndim ? t->size[dim] : 1; }

/* index against sizes: of the same rank, not larger than `limit` but along dim (or also there). */
static rp_status check_index_size(const rp__call *call, const rp_tensor *index, const rp_tensor *limit, unsigned dim,
                                  bool also_dim, const char *name) {
    unsigned a = index->ndim ? index->ndim : 1, b = limit->ndim ? limit->ndim : 1;
    char ta[RP__SHAPE_TEXT], tb[RP__SHAPE_TEXT];
    if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(index), 0)) return RP_OK;
    if (a != b)
        return rp__op_error(call, RP_ERROR_SHAPE, "Index tensor must have the same number of dimensions as %s tensor",
                            also_dim ? "src" : "input");
    for (unsigned d = 0; d < a; d++) { /* 0-d: one element along dim 0 */
        if ((d != dim || also_dim) && rp__dim_is(RP__DIM_LT, size_along(limit, d), size_along(index, d)))
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "Size does not match at dimension %u expected index %s to be no larger than %s %s%s", d,
                                rp__shape_text(index->size, index->ndim, ta), name,
                                rp__shape_text(limit->size, limit->ndim, tb),
                                also_dim ? "" : " apart from dimension dim");
    }
    return RP_OK;
}

/* No index fits into a dim of size 0. */
static rp_status check_not_empty(const rp__call *call, rp_dim size, const rp_tensor *index) {
    if (rp__dim_is(RP__DIM_EQ, size, 0) && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(index), 0))
        return rp__op_error(call, RP_ERROR_INDEX, "index out of range: the indexed dimension has size 0");
    return RP_OK;
}

rp_status rp__infer_gather(const rp__call *call, rp__meta *out) {
    const rp_tensor *self = call->in[0], *index = call->in[1];
    unsigned dim;
    if (rp__attr_bool(call, 1)) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "sparse_grad is not supported yet");
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    RP_TRY(need_index(call, 1, true));
    RP_TRY(check_index_size(call, index, self, dim, false, "self"));
    RP_TRY(check_not_empty(call, size_along(self, dim), index));
    rp__meta_like(out, index, (rp_dtype)self->dtype);
    return RP_OK;
}

void rp__lower_gather(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *self = call->in[0], *index = call->in[1];
    unsigned dim;
    if (rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim) != RP_OK) return;
    rp__lw_space(lw, index->size, index->ndim, 0);
    rp_dim stride[RP_MAX_DIMS];
    for (unsigned d = 0; d < index->ndim; d++) stride[d] = d == dim || d >= self->ndim ? 0 : self->stride[d];
    rp__val i = rp__lw_cast(lw, rp__lw_in_front(lw, 1), RP_I64);
    uint16_t from = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    i = rp__lw_check_index(lw, i, rp__lw_size(lw, size_along(self, dim)), false);
    rp__val offset = rp__lw_2(lw, RP__MUL, i, rp__lw_size(lw, self->ndim ? self->stride[dim] : 1));
    rp__lw_out(lw, 0, rp__lw_load(lw, from, offset, RP__NO_VAL));
}

rp_status rp__infer_embedding(const rp__call *call, rp__meta *out) {
    const rp_tensor *weight = call->in[0], *index = call->in[1];
    if (rp__attr_bool(call, 2)) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "sparse is not supported yet");
    if (weight->ndim != 2) return rp__op_error(call, RP_ERROR_SHAPE, "'weight' must be 2-D");
    RP_TRY(need_index(call, 1, false));
    if (index->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    RP_TRY(check_not_empty(call, weight->size[0], index));
    rp__meta_like(out, index, (rp_dtype)weight->dtype);
    out->size[out->ndim++] = weight->size[1];
    return RP_OK;
}

void rp__lower_embedding(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *weight = call->in[0], *index = call->in[1], *out = call->out[0];
    rp__lw_space(lw, out->size, out->ndim, 0);
    rp_dim column[RP_MAX_DIMS] = {0};
    column[index->ndim] = weight->stride[1];
    rp__val i = rp__lw_cast(lw, rp__lw_in_front(lw, 1), RP_I64);
    uint16_t from = rp__lw_access(lw, false, 0, column, RP__ELEMENTS);
    i = rp__lw_check_index(lw, i, rp__lw_size(lw, weight->size[0]), false);
    rp__val offset = rp__lw_2(lw, RP__MUL, i, rp__lw_size(lw, weight->stride[0]));
    rp__lw_out(lw, 0, rp__lw_load(lw, from, offset, RP__NO_VAL));
}

/* ---- scatter_add and embedding_backward: sums at computed places, in index order */

rp_status rp__infer_scatter_add(const rp__call *call, rp__meta *out) {
    const rp_tensor *self = call->in[0], *index = call->in[1], *src = call->in[2];
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    RP_TRY(need_index(call, 1, true));
    if (self->dtype != src->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "scatter(): Expected self.dtype to be equal to src.dtype");
    RP_TRY(check_index_size(call, index, self, dim, false, "self"));
    RP_TRY(check_index_size(call, index, src, dim, true, "src"));
    RP_TRY(check_not_empty(call, size_along(self, dim), index));
    rp__meta_like(out, self, (rp_dtype)self->dtype);
    return RP_OK;
}

/* A 0-d operand as a row of one; sizes of the walked part. */
static rp__operand part_of(const rp_tensor *t, const rp_tensor *index) {
    rp__operand o = rp__operand_of(t);
    if (o.ndim == 0) {
        o.ndim = 1;
        o.size[0] = o.stride[0] = 1;
    }
    for (unsigned d = 0; index && d < index->ndim; d++) o.size[d] = index->size[d];
    return o;
}

static bool share_memory(const rp_tensor *a, const rp_tensor *b) {
    int64_t a0, a1, b0, b1;
    if (a->storage != b->storage) return false;
    rp__tensor_byte_range(a, &a0, &a1);
    rp__tensor_byte_range(b, &b0, &b1);
    return a0 < b1 && b0 < a1;
}

/* In place self is out; a compiler may have had self stored there (cats.c). */
static rp_status run_scatter(const rp__call *call, rp__scatter kind) {
    rp_tensor *out = call->out[0], *index = call->in[1], *src = call->in[2];
    if (index->dtype != RP_I64) index = rp__run_contiguous(index, RP_I64); /* else it may repeat by stride 0 */
    if (rp__tensor_is_error(index)) return rp_error_status();
    if (!lies_in(call->in[0], out)) RP_TRY(rp__run_copy(out, call->in[0]));
    if (rp__dim_same_word(rp__tensor_numel(index), 0)) return RP_OK;
    if (share_memory(src, out)) { /* in place, with values from self: as they were */
        src = rp__tensor_empty(rp__device_get(src->device), (rp_dtype)src->dtype, src->size, src->ndim);
        if (rp__tensor_is_error(src)) return rp_error_status();
        RP_TRY(rp__run_copy(src, call->in[2]));
    }
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), out->ndim, &dim));
    rp__operand operands[3] = {part_of(out, NULL), part_of(index, NULL), part_of(src, index)};
    rp__library_call library = {.dim = dim, .scatter = kind};
    return rp__run_library_op(call, RP__LIB_SCATTER, operands, 3, &library);
}
rp_status rp__run_scatter_add(const rp__call *call) { return run_scatter(call, RP__SCATTER_ADD); }
rp_status rp__run_scatter_set(const rp__call *call) { return run_scatter(call, RP__SCATTER_SET); }
rp_status rp__run_scatter_mul(const rp__call *call) { return run_scatter(call, RP__SCATTER_MUL); }
rp_status rp__run_scatter_max(const rp__call *call) { return run_scatter(call, RP__SCATTER_MAX); }
rp_status rp__run_scatter_min(const rp__call *call) { return run_scatter(call, RP__SCATTER_MIN); }

rp_status rp__infer_embedding_backward(const rp__call *call, rp__meta *out) {
    const rp_tensor *grad = call->in[0], *index = call->in[1];
    int64_t rows = rp__attr_int(call, 0);
    RP_TRY(need_index(call, 1, false));
    bool fits = grad->ndim == index->ndim + 1u;
    for (unsigned d = 0; fits && d < index->ndim; d++) fits = rp__dim_is(RP__DIM_EQ, grad->size[d], index->size[d]);
    if (!fits)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected grad to have the size of indices and one dimension more");
    if (!rp__dim_is_symbol(rows) && rows < 0) return rp__op_error(call, RP_ERROR_SHAPE, "num_weights is negative");
    RP_TRY(check_not_empty(call, rows, index));
    out->dtype = (rp_dtype)grad->dtype;
    out->ndim = 2;
    out->size[0] = rows;
    out->size[1] = grad->size[grad->ndim - 1];
    return RP_OK;
}

/* scatter_add along dim 0 of (n, D) rows, whose index repeats along D by stride 0. */
rp_status rp__run_embedding_backward(const rp__call *call) {
    rp_tensor *grad = rp__run_contiguous(call->in[0], (rp_dtype)call->in[0]->dtype);
    rp_tensor *index = rp__run_contiguous(call->in[1], RP_I64);
    if (rp__tensor_is_error(grad) || rp__tensor_is_error(index)) return rp_error_status();
    rp_tensor *out = call->out[0];
    RP_TRY(rp__run_fill(out, rp_i64(0)));
    int64_t n = rp__tensor_numel(index), width = out->size[1];
    if (n == 0 || width == 0) return RP_OK;
    rp__operand operands[3] = {rp__operand_of(out), rp__operand_of(index), rp__operand_of(grad)};
    for (unsigned k = 1; k < 3; k++) {
        operands[k].ndim = 2;
        operands[k].size[0] = n;
        operands[k].size[1] = width;
        operands[k].stride[0] = k == 1 ? 1 : width;
        operands[k].stride[1] = k == 1 ? 0 : 1;
    }
    rp__library_call library = {.dim = 0};
    return rp__run_library_op(call, RP__LIB_SCATTER, operands, 3, &library);
}

/* ---- topk */

rp_status rp__infer_topk(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    rp_dim k = rp__attr_int(call, 0);
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), t->ndim, &dim));
    RP_TRY(rp__call_need_number(call, (rp_dtype)t->dtype));
    if (rp__dim_is(RP__DIM_LT, k, 0) || rp__dim_is(RP__DIM_LT, size_along(t, dim), k))
        return rp__op_error(call, RP_ERROR_INDEX, "selected index k out of range");
    for (unsigned i = 0; i < 2; i++) {
        rp__meta_like(&out[i], t, i ? RP_I64 : (rp_dtype)t->dtype);
        if (t->ndim) out[i].size[dim] = k;
    }
    return RP_OK;
}

rp_status rp__run_topk(const rp__call *call) {
    const rp_tensor *t = call->in[0];
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), t->ndim, &dim));
    if (rp__dim_same_word(rp__tensor_numel(call->out[0]), 0)) return RP_OK;
    rp__operand operands[3] = {part_of(call->out[0], NULL), part_of(call->out[1], NULL), part_of(t, NULL)};
    rp__library_call library = {
        .k = rp__attr_int(call, 0), .dim = dim, .largest = rp__attr_bool(call, 2), .sorted = rp__attr_bool(call, 3)};
    if (t->ndim == 0 && library.k == 0) /* as PyTorch: a 0-d tensor gives its one element whatever k is */
        library.k = 1;
    return rp__run_library_op(call, RP__LIB_TOPK, operands, 3, &library);
}

/* ---- sort: topk of a whole row, whose ties keep their order */

static rp_tensor *in_order(const rp__call *call, rp_tensor **indices) {
    rp_tensor *t = call->in[0];
    unsigned dim;
    *indices = rp__tensor_error();
    if (rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &dim) != RP_OK) return rp__tensor_error();
    const bool truth = t->dtype == RP_BOOL;
    if (truth) t = rp_to_dtype_at(call->site, t, RP_U8, NULL);
    rp_tensor *values =
        rp_topk_at(call->site, t, size_along(t, dim), (int64_t)dim, rp__attr_bool(call, 1), true, indices);
    return truth ? rp_to_dtype_at(call->site, values, RP_BOOL, NULL) : values;
}

rp_status rp__expand_sort(const rp__call *call) {
    call->out[0] = in_order(call, &call->out[1]);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_argsort(const rp__call *call) {
    (void)in_order(call, &call->out[0]);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

/* ---- nonzero: the size depends on the data */

/* For traces: as many rows as there are elements is the upper bound. */
rp_status rp__infer_nonzero(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    out->dtype = RP_I64;
    out->ndim = 2;
    out->size[0] = rp__tensor_numel(t);
    out->size[1] = t->ndim;
    return RP_OK;
}

rp_status rp__run_nonzero(const rp__call *call) {
    rp__meta bound;
    RP_TRY(rp__op_infer(call, &bound));
    rp__device *d = rp__device_get(bound.device);
    if (!d) return rp_error_status();
    rp_stream *s = rp__current_stream(d);
    rp_tensor *all = rp__tensor_empty(d, RP_I64, bound.size, 2), *count = rp__tensor_empty(d, RP_I64, NULL, 0);
    if (rp__tensor_is_error(all) || rp__tensor_is_error(count)) return rp_error_status();
    int64_t n = 0;
    if (rp__dim_number(bound.size[0]) > 0) {
        rp__operand operands[3] = {rp__operand_of(all), rp__operand_of(count), rp__operand_of(call->in[0])};
        rp__library_call library = {.dim = 0};
        RP_TRY(rp__run_library_op(call, RP__LIB_NONZERO, operands, 3, &library));
        RP_TRY(d->ops->copy_out(d, s, &n, rp__tensor_data(count), sizeof n));
    }
    const rp_dim size[2] = {n, bound.size[1]}, stride[2] = {bound.size[1], 1};
    rp_tensor *out = rp__tensor_empty(d, RP_I64, size, 2);
    rp_tensor *part = rp__tensor_view(all, size, stride, 2, all->offset);
    if (rp__tensor_is_error(out) || rp__tensor_is_error(part)) return rp_error_status();
    RP_TRY(rp__run_copy(out, part));
    call->out[0] = out;
    return RP_OK;
}
