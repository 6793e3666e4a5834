/* Views: other sizes and strides over the same memory. Rules are written over rp_dim, so that they hold for symbolic sizes.
   Also the functional forms of writing through a slice or select. */
#include "ops/view.h"

#include "ops/private.h"
#include <string.h>

#include "ops/infer.h"
#include "ops/rules.h"

static void same_geometry(const rp_tensor *t, rp__view *out) {
    out->ndim = t->ndim;
    memcpy(out->size, t->size, t->ndim * sizeof *t->size);
    memcpy(out->stride, t->stride, t->ndim * sizeof *t->stride);
    out->offset = t->offset;
}

static bool equal(rp_dim a, rp_dim b) { return a == b || rp__dim_is(RP__DIM_EQ, a, b); }
static rp_dim times(rp_dim a, rp_dim b) { return rp__dim_apply(RP__DIM_MUL, a, b); }

/* Sizes beside one of 0 may be any, and their products with strides need not fit: no element lies anywhere. */
static bool has_none(const rp_tensor *t) {
    for (unsigned d = 0; d < t->ndim; d++)
        if (t->size[d] == 0) return true;
    return false;
}

static rp_dim offset_of(const rp_tensor *t, unsigned dim, rp_dim index) {
    const rp_dim stride = t->stride[dim];
    int64_t by;
    bool numbers = !rp__dim_is_symbol(index) && !rp__dim_is_symbol(stride) && !rp__dim_is_symbol(t->offset);
    if (numbers && has_none(t) && (!rp__mul_i64(index, stride, &by) || !rp__add_i64(t->offset, by, &by)))
        return t->offset;
    return rp__dim_apply(RP__DIM_ADD, t->offset, times(index, stride));
}

/* ---- view and reshape */

/* Walks runs of dims that lie in memory as one (PyTorch's computeStride). */
bool rp__view_strides(const rp_tensor *t, const rp_dim *size, size_t n, rp_dim *stride) {
    rp_dim numel = rp__tensor_numel(t);
    if (equal(numel, 0)) {
        bool same = n == t->ndim;
        for (size_t d = 0; same && d < n; d++) same = equal(size[d], t->size[d]);
        if (same)
            memcpy(stride, t->stride, n * sizeof *stride);
        else
            rp__contiguous_strides(size, n, stride);
        return true;
    }
    if (t->ndim == 0) {
        for (size_t d = 0; d < n; d++) stride[d] = 1;
        return true;
    }
    int vd = (int)n - 1;
    rp_dim base = t->stride[t->ndim - 1], run = 1, filled = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        run = times(run, t->size[d]);
        if (d > 0 && (equal(t->size[d - 1], 1) || equal(t->stride[d - 1], times(run, base)))) continue;
        while (vd >= 0 && (rp__dim_is(RP__DIM_LT, filled, run) || equal(size[vd], 1))) {
            stride[vd] = times(filled, base);
            filled = times(filled, size[vd]);
            vd--;
        }
        if (!equal(filled, run)) return false;
        if (d > 0) {
            base = t->stride[d - 1];
            run = filled = 1;
        }
    }
    return vd < 0;
}

/* The size that a view asks for, its -1 resolved. */
static rp_status resolve_size(const rp__call *call, rp_dim *size, size_t *ndim) {
    const rp_tensor *t = call->in[0];
    const rp_attr *a = &call->attrs[0];
    char text[RP__SHAPE_TEXT];
    if (a->n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions, not %zu", RP_MAX_DIMS, a->n);
    if (a->n && !a->v.ints) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "size is NULL");
    rp_dim numel = rp__tensor_numel(t), known = 1;
    int open = -1;
    for (size_t d = 0; d < a->n; d++) {
        size[d] = a->v.ints[d];
        if (size[d] == -1) {
            if (open >= 0) return rp__op_error(call, RP_ERROR_SHAPE, "only one dimension can be inferred");
            open = (int)d;
        } else if (!rp__dim_is_symbol(size[d]) && size[d] < 0) {
            return rp__op_error(call, RP_ERROR_SHAPE, "invalid shape dimension %lld", (long long)size[d]);
        } else {
            rp_dim next = 0;
            if (!rp__dim_is_symbol(size[d]) && !rp__dim_is_symbol(known)) {
                if (!rp__mul_i64(known, size[d], &next))
                    return rp__op_error(call, RP_ERROR_SHAPE, "shape '%s' is too large",
                                        rp__shape_text(a->v.ints, a->n, text));
            } else {
                next = times(known, size[d]);
            }
            known = next;
        }
    }
    *ndim = a->n;
    if (open >= 0) {
        if (equal(known, 0)) {
            if (equal(numel, 0))
                return rp__op_error(
                    call, RP_ERROR_SHAPE,
                    "cannot reshape tensor of 0 elements into shape %s because the unspecified dimension size -1 "
                    "can be any value and is ambiguous",
                    rp__shape_text(a->v.ints, a->n, text));
        } else if (equal(rp__dim_apply(RP__DIM_MOD, numel, known), 0)) {
            size[open] = rp__dim_apply(RP__DIM_FLOORDIV, numel, known);
            return RP_OK;
        }
    } else if (equal(known, numel)) {
        return RP_OK;
    }
    return rp__op_error(call, RP_ERROR_SHAPE, "shape '%s' is invalid for input of size %lld",
                        rp__shape_text(a->v.ints, a->n, text), (long long)rp__dim_hint(numel));
}

rp_status rp__view_view(const rp__call *call, rp__view *out) {
    size_t n = 0;
    RP_TRY(resolve_size(call, out->size, &n));
    if (!rp__view_strides(call->in[0], out->size, n, out->stride))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two contiguous subspaces). Use .reshape(...) instead.");
    out->ndim = (uint8_t)n;
    out->offset = call->in[0]->offset;
    return RP_OK;
}

rp_status rp__expand_reshape(const rp__call *call) {
    rp_dim size[RP_MAX_DIMS], stride[RP_MAX_DIMS];
    size_t n = 0;
    RP_TRY(resolve_size(call, size, &n));
    rp_tensor *t = call->in[0];
    if (!rp__view_strides(t, size, n, stride)) t = rp_clone_at(call->site, t, NULL);
    call->out[0] = rp_view_at(call->site, t, size, n);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_flatten(const rp__call *call) {
    rp_tensor *t = call->in[0];
    unsigned first, last;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &first));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), t->ndim, &last));
    if (last < first)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "flatten() has invalid args: start_dim cannot come after end_dim");
    rp_dim size[RP_MAX_DIMS], folded = 1;
    size_t n = 0;
    for (unsigned d = 0; d < t->ndim; d++) {
        if (d > first && d <= last) continue;
        if (d == first) {
            folded = rp__numel(t->size + first, last - first + 1u);
            size[n++] = folded;
        } else {
            size[n++] = t->size[d];
        }
    }
    if (t->ndim == 0) size[n++] = 1;
    call->out[0] = rp_reshape_at(call->site, t, size, n);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_unflatten(const rp__call *call) {
    rp_tensor *t = call->in[0];
    const rp_attr *sizes = &call->attrs[1];
    char a[RP__SHAPE_TEXT];
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &dim));
    if (sizes->n == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "unflatten: sizes must be non-empty");
    if (t->ndim == 0 || t->ndim - 1 + sizes->n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor of %u dimensions cannot have one as %zu", t->ndim,
                            sizes->n);
    rp_dim size[RP_MAX_DIMS], product = 1;
    size_t n = 0, open = SIZE_MAX;
    for (unsigned d = 0; d < t->ndim; d++) {
        if (d != dim) {
            size[n++] = t->size[d];
            continue;
        }
        for (size_t k = 0; k < sizes->n; k++, n++) {
            size[n] = sizes->v.ints[k];
            if (size[n] == -1) {
                if (open != SIZE_MAX) return rp__op_error(call, RP_ERROR_SHAPE, "only one dimension can be inferred");
                open = n;
            } else {
                product = times(product, size[n]);
            }
        }
    }
    bool fits = open == SIZE_MAX ? equal(product, t->size[dim])
                                 : !equal(product, 0) && equal(rp__dim_apply(RP__DIM_MOD, t->size[dim], product), 0);
    if (!fits)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "unflatten: Provided sizes %s don't multiply up to the size of dim %u (%lld) in the input "
                            "tensor",
                            rp__shape_text(sizes->v.ints, sizes->n, a), dim, (long long)rp__dim_hint(t->size[dim]));
    if (open != SIZE_MAX) size[open] = rp__dim_apply(RP__DIM_FLOORDIV, t->size[dim], product);
    call->out[0] = rp_view_at(call->site, t, size, n);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

/* ---- order of dims */

rp_status rp__view_permute(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    const rp_attr *dims = &call->attrs[0];
    uint32_t seen = 0;
    if (dims->n != t->ndim)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "permute: number of dimensions in the tensor input does not match the length of the desired ordering "
            "of dimensions i.e. input.dim() = %u is not equal to len(dims) = %zu",
            t->ndim, dims->n);
    for (unsigned i = 0; i < t->ndim; i++) {
        unsigned d;
        RP_TRY(rp__call_dim(call, dims->v.ints[i], t->ndim, &d));
        if (seen >> d & 1u)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "permute(): duplicate dims are not allowed.");
        seen |= 1u << d;
        out->size[i] = t->size[d];
        out->stride[i] = t->stride[d];
    }
    out->ndim = t->ndim;
    out->offset = t->offset;
    return RP_OK;
}

rp_status rp__view_transpose(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    unsigned a, b;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &a));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), t->ndim, &b));
    same_geometry(t, out);
    if (t->ndim > 0) {
        out->size[a] = t->size[b];
        out->stride[a] = t->stride[b];
        out->size[b] = t->size[a];
        out->stride[b] = t->stride[a];
    }
    return RP_OK;
}

/* ---- repetition and single dims */

rp_status rp__view_expand(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    const rp_attr *size = &call->attrs[0];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    if (size->n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions, not %zu", RP_MAX_DIMS, size->n);
    if (size->n < t->ndim)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "expand: the number of sizes provided (%zu) must be greater or equal to the number of dimensions in "
            "the tensor (%u)",
            size->n, t->ndim);
    size_t lead = size->n - t->ndim;
    for (size_t d = 0; d < size->n; d++) {
        rp_dim want = size->v.ints[d];
        bool negative = !rp__dim_is_symbol(want) && want < 0;
        if (d < lead) {
            if (negative)
                return rp__op_error(
                    call, RP_ERROR_SHAPE,
                    "The expanded size of the tensor (%lld) isn't allowed in a leading, non-existing dimension %zu",
                    (long long)want, d);
            out->size[d] = want;
            out->stride[d] = 0;
            continue;
        }
        rp_dim have = t->size[d - lead];
        out->size[d] = want == -1 ? have : want;
        out->stride[d] = t->stride[d - lead];
        if (want == -1 || equal(have, want)) continue;
        if (negative || !equal(have, 1))
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "The expanded size of the tensor (%lld) must match the existing size (%lld) at non-singleton "
                "dimension %zu.  Target sizes: %s.  Tensor sizes: %s",
                (long long)want, (long long)rp__dim_hint(have), d, rp__shape_text(size->v.ints, size->n, a),
                rp__shape_text(t->size, t->ndim, b));
        out->stride[d] = 0;
    }
    out->ndim = (uint8_t)size->n;
    out->offset = t->offset;
    return RP_OK;
}

rp_status rp__view_unsqueeze(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    unsigned at;
    if (t->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim + 1u, &at));
    for (unsigned d = 0, k = 0; d <= t->ndim; d++) {
        bool fresh = d == at, counts = k < t->ndim && (t->size[k] < RP__REACH_LIMIT || !has_none(t));
        out->size[d] = fresh ? 1 : t->size[k];
        out->stride[d] = !fresh ? t->stride[k] : counts ? times(t->size[k], t->stride[k]) : 1;
        k += !fresh;
    }
    out->ndim = (uint8_t)(t->ndim + 1);
    out->offset = t->offset;
    return RP_OK;
}

rp_status rp__view_squeeze(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    unsigned at;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &at));
    same_geometry(t, out);
    if (t->ndim == 0 || !equal(t->size[at], 1)) return RP_OK;
    out->ndim--;
    for (unsigned d = at; d < out->ndim; d++) {
        out->size[d] = t->size[d + 1];
        out->stride[d] = t->stride[d + 1];
    }
    return RP_OK;
}

rp_status rp__view_detach(const rp__call *call, rp__view *out) {
    same_geometry(call->in[0], out);
    return RP_OK;
}

/* ---- parts */

rp_status rp__view_slice(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    rp__range r;
    RP_TRY(rp__call_range(call, 0, &r));
    same_geometry(t, out);
    out->size[r.dim] = r.length;
    /* A step past the end leaves one element, whose stride is never used: it must not overflow. */
    if (r.step > 1 && !rp__dim_is(RP__DIM_LT, r.length, 2)) out->stride[r.dim] = times(t->stride[r.dim], r.step);
    out->offset = offset_of(t, r.dim, r.start);
    return RP_OK;
}

rp_status rp__view_select(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    unsigned at;
    rp_dim index;
    RP_TRY(rp__call_index(call, rp__attr_int(call, 0), rp__attr_int(call, 1), &at, &index));
    same_geometry(t, out);
    out->offset = offset_of(t, at, index);
    out->ndim--;
    for (unsigned d = at; d < out->ndim; d++) {
        out->size[d] = t->size[d + 1];
        out->stride[d] = t->stride[d + 1];
    }
    return RP_OK;
}

/* ---- functional forms of writing into a part: out = self, but src inside */

static rp_status infer_scatter(const rp__call *call, const rp_dim *part, unsigned ndim, rp__meta *out) {
    const rp_tensor *self = call->in[0], *src = call->in[1];
    bool same = src->ndim == ndim;
    for (unsigned d = 0; same && d < ndim; d++) same = equal(src->size[d], part[d]);
    if (!same) {
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expected src to have a size equal to the slice of self. src size = %s, slice size = %s",
                            rp__shape_text(src->size, src->ndim, a), rp__shape_text(part, ndim, b));
    }
    rp__meta_like(out, self, (rp_dtype)self->dtype);
    return RP_OK;
}

rp_status rp__infer_slice_scatter(const rp__call *call, rp__meta *out) {
    rp__view part;
    RP_TRY(rp__view_slice(call, &part));
    return infer_scatter(call, part.size, part.ndim, out);
}

rp_status rp__infer_select_scatter(const rp__call *call, rp__meta *out) {
    rp__view part;
    RP_TRY(rp__view_select(call, &part));
    return infer_scatter(call, part.size, part.ndim, out);
}

/* out = inside ? src at offset : self */
static void lower_scatter(rp__lower *lw, uint16_t src, rp__val offset, rp__val inside) {
    rp_dtype type = rp__lw_out_dtype(lw, 0);
    rp__val part = rp__lw_load(lw, src, offset, inside);
    if (rp__lw_in_dtype(lw, 1) != type) part = rp__lw_cast(lw, part, type);
    rp__lw_out(lw, 0, rp__lw_3(lw, RP__WHERE, inside, part, rp__lw_in(lw, 0)));
}

void rp__lower_slice_scatter(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *src = call->in[1];
    rp__range r;
    if (rp__call_range(call, 0, &r) != RP_OK) /* the shape rule has accepted it */
        return;
    rp__lw_space(lw, call->out[0]->size, call->out[0]->ndim, 0);
    rp_dim stride[RP_MAX_DIMS];
    memcpy(stride, src->stride, src->ndim * sizeof *stride);
    stride[r.dim] = 0;
    uint16_t access = rp__lw_access(lw, false, 1, stride, RP__ELEMENTS);
    rp__val zero = rp__lw_const_i(lw, RP_I64, 0);
    rp__val from_start = rp__lw_2(lw, RP__SUB, rp__lw_dim_index(lw, r.dim), rp__lw_size(lw, r.start));
    rp__val number = from_start;
    rp__val inside = rp__lw_2(lw, RP__LE, zero, from_start);
    if (rp__lw_structural_value(lw, r.step != 1)) {
        rp__val step = rp__lw_size(lw, r.step);
        number = rp__lw_2(lw, RP__FLOORDIV, from_start, step);
        inside = rp__lw_2(lw, RP__AND, inside, rp__lw_2(lw, RP__EQ, rp__lw_2(lw, RP__MUL, number, step), from_start));
    }
    inside = rp__lw_2(lw, RP__AND, inside, rp__lw_2(lw, RP__LT, number, rp__lw_size(lw, r.length)));
    lower_scatter(lw, access, rp__lw_2(lw, RP__MUL, number, rp__lw_size(lw, src->stride[r.dim])), inside);
}

void rp__lower_select_scatter(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *src = call->in[1];
    unsigned at;
    rp_dim index;
    if (rp__call_index(call, rp__attr_int(call, 0), rp__attr_int(call, 1), &at, &index) != RP_OK) return;
    rp__lw_space(lw, call->out[0]->size, call->out[0]->ndim, 0);
    rp_dim stride[RP_MAX_DIMS];
    for (unsigned d = 0, k = 0; d < call->out[0]->ndim; d++) stride[d] = d == at ? 0 : src->stride[k++];
    uint16_t access = rp__lw_access(lw, false, 1, stride, RP__ELEMENTS);
    rp__val inside = rp__lw_2(lw, RP__EQ, rp__lw_dim_index(lw, at), rp__lw_size(lw, index));
    lower_scatter(lw, access, RP__NO_VAL, inside);
}
