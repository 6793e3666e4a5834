/* Views: other sizes and strides over the same memory. A rule says what the sizes are and which dims come from which (rp__view);
   what follows from that is here as well: strides and offset, and the SCATTER forms, which write a view into a copy of the whole.
   Rules are written over rp_dim, so that they hold for symbolic sizes. */
#include "ops/view.h"

#include "ops/private.h"
#include <string.h>

#include "ops/format.h"
#include "ops/infer.h"
#include "ops/rules.h"

static bool equal(rp_dim a, rp_dim b) { return rp__dim_same_word(a, b) || rp__dim_is(RP__DIM_EQ, a, b); }
static rp_dim times(rp_dim a, rp_dim b) { return rp__dim_apply(RP__DIM_MUL, a, b); }

/* ---- maps */

/* Dim d of the result is dim p of in[0], whole. */
static void take_dim(const rp_tensor *t, rp__view *out, unsigned d, unsigned p) {
    out->size[d] = t->size[p];
    out->from[d][0] = (int8_t)p;
}
static void take_all(const rp_tensor *t, rp__view *out) {
    out->ndim = t->ndim;
    for (unsigned d = 0; d < t->ndim; d++) take_dim(t, out, d, d);
}

rp_status rp__call_view_map(const rp__call *call, rp__view *out) {
    const rp__op *op = call->op->lowering == RP__VIEW ? call->op : call->op->inverse;
    out->folds = false;
    for (unsigned d = 0; d < RP_MAX_DIMS; d++) {
        out->from[d][0] = out->from[d][1] = -1;
        out->step[d] = 1;
        out->start[d] = 0;
    }
    return op->rule.view(call, out);
}

bool rp__view_is_part(const rp__view *v, const rp_dim *size, unsigned ndim) {
    uint32_t walked = 0;
    if (v->folds) return false;
    for (unsigned d = 0; d < v->ndim; d++) {
        const int p = v->from[d][0];
        if (p < 0) continue;
        if (v->from[d][1] >= 0 || v->step[d] != 1 || walked >> p & 1u || !rp__dim_same_word(v->size[d], size[p]))
            return true;
        walked |= 1u << p;
    }
    for (unsigned p = 0; p < ndim; p++)
        if (!rp__dim_same_word(v->start[p], 0) || (!(walked >> p & 1u) && !rp__dim_same_word(size[p], 1))) return true;
    return false;
}

bool rp__view_repeats(const rp__view *v) {
    for (unsigned d = 0; !v->folds && d < v->ndim; d++)
        if (v->from[d][0] < 0 && !rp__dim_same_word(v->size[d], 1)) return true;
    return false;
}

bool rp__view_overlaps(const rp__view *v) {
    for (unsigned d = 0; d < v->ndim; d++)
        for (unsigned k = d + 1; v->from[d][0] >= 0 && k < v->ndim; k++)
            if (v->from[k][0] == v->from[d][0] && rp__dim_is(RP__DIM_LT, v->step[d], v->size[k])) return true;
    return false;
}

bool rp__view_order(const rp__view *v, int64_t *dims) {
    unsigned n = 0;
    bool moved = false;
    int last = -1;
    if (v->folds) return false;
    for (unsigned d = 0; d < v->ndim; d++) {
        if (v->from[d][0] < 0) dims[n++] = d;
        moved = moved || (v->from[d][0] >= 0 && v->from[d][0] < last);
        if (v->from[d][0] >= 0) last = v->from[d][0];
    }
    for (int p = 0; p < RP_MAX_DIMS; p++)
        for (unsigned d = 0; d < v->ndim; d++)
            if (v->from[d][0] == p) dims[n++] = d;
    return moved;
}

/* Sizes beside one of 0 may be any, and their products with strides need not fit: no element lies anywhere. Nor is the stride of
   a dim of one element ever used. */
static bool product_fits(rp_dim a, rp_dim b, int64_t *out) {
    if (rp__dim_is_symbol(a) || rp__dim_is_symbol(b)) {
        *out = times(a, b);
        return true;
    }
    return rp__mul_i64(a, b, out) && *out < RP__REACH_LIMIT;
}

enum { FAR_STEP = 1 << 20 }; /* from here on a product with a stride may not fit */

static rp_dim stride_of(const rp_tensor *t, const rp__view *v, unsigned d) {
    const int p = v->from[d][0], q = v->from[d][1];
    rp_dim stride, by;
    if (p < 0) { /* a new dim lies outside of the next one, as PyTorch has it; repetitions lie in one place */
        if (!rp__dim_same_word(v->size[d], 1)) return 0;
        if (d + 1u >= v->ndim) return 1;
        return product_fits(v->size[d + 1], v->stride[d + 1], &by) ? by : 1;
    }
    stride = t->stride[p];
    if (q >= 0) stride = rp__dim_apply(RP__DIM_ADD, stride, t->stride[q]);
    if (v->step[d] == 1) return stride;
    /* By number and by symbol alike: a trace for one size serves others. */
    if (v->step[d] >= FAR_STEP && rp__dim_is(RP__DIM_LT, v->size[d], 2)) return stride;
    return product_fits(stride, v->step[d], &by) ? by : stride;
}

rp_status rp__call_view_place(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    out->offset = t->offset;
    if (out->folds) {
        if (rp__view_strides(t, out->size, out->ndim, out->stride)) return RP_OK;
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two contiguous subspaces). Use .reshape(...) instead.");
    }
    for (unsigned d = out->ndim; d-- > 0;) out->stride[d] = stride_of(t, out, d);
    for (unsigned p = 0; p < t->ndim; p++) {
        rp_dim by;
        if (!rp__dim_same_word(out->start[p], 0) && product_fits(out->start[p], t->stride[p], &by))
            out->offset = rp__dim_apply(RP__DIM_ADD, out->offset, by);
    }
    return RP_OK;
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
        if (rp__dim_same_word(size[d], -1)) {
            if (open >= 0) return rp__op_error(call, RP_ERROR_SHAPE, "only one dimension can be inferred");
            open = (int)d;
        } else if (!rp__dim_is_symbol(size[d]) && rp__dim_number(size[d]) < 0) {
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
    out->ndim = (uint8_t)n;
    out->folds = true;
    return RP_OK;
}

rp_status rp__expand_reshape(const rp__call *call) {
    rp_dim size[RP_MAX_DIMS], stride[RP_MAX_DIMS];
    size_t n = 0;
    RP_TRY(resolve_size(call, size, &n));
    rp_tensor *t = call->in[0];
    if (!rp__view_strides(t, size, n, stride)) t = rp__row_major_copy(t);
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
            if (rp__dim_same_word(size[n], -1)) {
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

rp_status rp__expand_narrow(const rp__call *call) {
    const rp_tensor *t = call->in[0];
    rp_dim start = rp__attr_int(call, 1), length = rp__attr_int(call, 2);
    unsigned dim;
    if (t->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "narrow() cannot be applied to a 0-dim tensor.");
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &dim));
    const rp_dim size = t->size[dim];
    if (rp__dim_is(RP__DIM_LT, length, 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "narrow(): length must be non-negative.");
    if (rp__dim_is(RP__DIM_LT, size, start) || rp__dim_is(RP__DIM_LT, rp__dim_apply(RP__DIM_ADD, start, size), 0))
        return rp__op_error(
            call, RP_ERROR_INDEX, "start out of range (expected to be in range of [-%lld, %lld], but got %lld)",
            (long long)rp__dim_hint(size), (long long)rp__dim_hint(size), (long long)rp__dim_hint(start));
    if (rp__dim_is(RP__DIM_LT, start, 0)) start = rp__dim_apply(RP__DIM_ADD, start, size);
    if (rp__dim_is(RP__DIM_LT, rp__dim_apply(RP__DIM_SUB, size, length), start))
        return rp__op_error(call, RP_ERROR_INDEX, "start (%lld) + length (%lld) exceeds dimension size (%lld).",
                            (long long)rp__dim_hint(start), (long long)rp__dim_hint(length),
                            (long long)rp__dim_hint(size));
    call->out[0] = rp_slice_at(call->site, call->in[0], dim, start, rp__dim_apply(RP__DIM_ADD, start, length), 1);
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
        take_dim(t, out, i, d);
    }
    out->ndim = t->ndim;
    return RP_OK;
}

rp_status rp__view_transpose(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    unsigned a, b;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &a));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), t->ndim, &b));
    take_all(t, out);
    if (t->ndim > 0) {
        take_dim(t, out, a, b);
        take_dim(t, out, b, a);
    }
    return RP_OK;
}

rp_status rp__expand_movedim(const rp__call *call) {
    const rp_tensor *t = call->in[0];
    const rp_attr *source = &call->attrs[0], *destination = &call->attrs[1];
    int64_t order[RP_MAX_DIMS];
    uint32_t from = 0, to = 0;
    if (source->n != destination->n)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "movedim: Invalid source or destination dims: source (%zu dims) should contain the same "
                            "number of dims as destination (%zu dims)",
                            source->n, destination->n);
    for (size_t k = 0; k < source->n; k++) {
        unsigned s, d;
        RP_TRY(rp__call_dim(call, source->v.ints[k], t->ndim, &s));
        RP_TRY(rp__call_dim(call, destination->v.ints[k], t->ndim, &d));
        if (from >> s & 1u || to >> d & 1u)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "movedim: repeated dim in `%s`",
                                from >> s & 1u ? "source" : "destination");
        from |= 1u << s;
        to |= 1u << d;
        order[d] = s;
    }
    for (unsigned d = 0, s = 0; d < t->ndim; d++) { /* the others, in their order */
        if (to >> d & 1u) continue;
        while (from >> s & 1u) s++;
        order[d] = s++;
    }
    call->out[0] = t->ndim ? rp_permute_at(call->site, call->in[0], order, t->ndim)
                           : rp_permute_at(call->site, call->in[0], NULL, 0);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
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
        bool negative = !rp__dim_is_symbol(want) && rp__dim_number(want) < 0;
        if (d < lead) {
            if (negative)
                return rp__op_error(
                    call, RP_ERROR_SHAPE,
                    "The expanded size of the tensor (%lld) isn't allowed in a leading, non-existing dimension %zu",
                    (long long)want, d);
            out->size[d] = want;
            continue;
        }
        rp_dim have = t->size[d - lead];
        take_dim(t, out, (unsigned)d, (unsigned)(d - lead));
        if (!rp__dim_same_word(want, -1)) out->size[d] = want;
        if (rp__dim_same_word(want, -1) || equal(have, want)) continue;
        if (negative || !equal(have, 1))
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "The expanded size of the tensor (%lld) must match the existing size (%lld) at non-singleton "
                "dimension %zu.  Target sizes: %s.  Tensor sizes: %s",
                (long long)want, (long long)rp__dim_hint(have), d, rp__shape_text(size->v.ints, size->n, a),
                rp__shape_text(t->size, t->ndim, b));
        out->from[d][0] = -1;
    }
    out->ndim = (uint8_t)size->n;
    return RP_OK;
}

rp_status rp__view_unsqueeze(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    unsigned at;
    if (t->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim + 1u, &at));
    for (unsigned p = 0; p < t->ndim; p++) take_dim(t, out, p + (p >= at), p);
    out->size[at] = 1;
    out->ndim = (uint8_t)(t->ndim + 1);
    return RP_OK;
}

/* Without those dims of `mask` that have one element. */
static rp_status squeeze(const rp_tensor *t, uint32_t mask, rp__view *out) {
    out->ndim = 0;
    for (unsigned p = 0; p < t->ndim; p++)
        if (!(mask >> p & 1u) || !equal(t->size[p], 1)) take_dim(t, out, out->ndim++, p);
    return RP_OK;
}

rp_status rp__view_squeeze(const rp__call *call, rp__view *out) {
    unsigned at;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), call->in[0]->ndim, &at));
    return squeeze(call->in[0], 1u << at, out);
}

rp_status rp__view_squeeze_dims(const rp__call *call, rp__view *out) {
    uint32_t mask = UINT32_MAX;
    if (!rp__attr_is_none(&call->attrs[0])) {
        if (call->attrs[0].n == 0)
            mask = 0;
        else
            RP_TRY(rp__call_dim_mask(call, 0, &mask));
    }
    return squeeze(call->in[0], mask, out);
}

rp_status rp__view_detach(const rp__call *call, rp__view *out) {
    take_all(call->in[0], out);
    return RP_OK;
}

/* ---- parts */

rp_status rp__view_slice(const rp__call *call, rp__view *out) {
    rp__range r;
    RP_TRY(rp__call_range(call, 0, &r));
    take_all(call->in[0], out);
    out->size[r.dim] = r.length;
    out->step[r.dim] = r.step;
    out->start[r.dim] = r.start;
    return RP_OK;
}

rp_status rp__view_select(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    unsigned at;
    rp_dim index;
    RP_TRY(rp__call_index(call, rp__attr_int(call, 0), rp__attr_int(call, 1), &at, &index));
    out->start[at] = index;
    out->ndim = (uint8_t)(t->ndim - 1);
    for (unsigned d = 0; d < out->ndim; d++) take_dim(t, out, d, d + (d >= at));
    return RP_OK;
}

rp_status rp__view_diagonal(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    const int64_t offset = rp__attr_int(call, 0);
    unsigned a, b;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), t->ndim, &a));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 2), t->ndim, &b));
    if (a == b)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "diagonal dimensions cannot be identical %lld, %lld",
                            (long long)rp__attr_int(call, 1), (long long)rp__attr_int(call, 2));
    const unsigned later = offset < 0 ? a : b; /* which of the two begins behind its first element */
    rp_dim length[2] = {t->size[a], t->size[b]}, by = offset < 0 ? -offset : offset;
    const rp_dim room = t->size[later];
    const bool none = offset < -RP__REACH_LIMIT || offset > RP__REACH_LIMIT || !rp__dim_is(RP__DIM_LT, by, room);
    length[later == b] = none ? 0 : rp__dim_apply(RP__DIM_SUB, room, by);
    out->ndim = 0;
    for (unsigned p = 0; p < t->ndim; p++)
        if (p != a && p != b) take_dim(t, out, out->ndim++, p);
    const unsigned d = out->ndim++;
    out->size[d] = rp__dim_is(RP__DIM_LT, length[0], length[1]) ? length[0] : length[1];
    out->from[d][0] = (int8_t)a;
    out->from[d][1] = (int8_t)b;
    if (!none && !equal(out->size[d], 0)) out->start[later] = by;
    return RP_OK;
}

static rp_dim window_count(rp_dim room, int64_t size, int64_t step) {
    return rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_SUB, room, size), step), 1);
}

rp_status rp__view_unfold(const rp__call *call, rp__view *out) {
    const rp_tensor *t = call->in[0];
    const int64_t size = rp__attr_int(call, 1), step = rp__attr_int(call, 2);
    unsigned at;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &at));
    const rp_dim room = t->ndim ? t->size[at] : 1;
    if (size < 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "size is %lld but must be >= 0", (long long)size);
    if (rp__dim_is(RP__DIM_LT, room, size))
        return rp__op_error(call, RP_ERROR_SHAPE, "maximum size for tensor at dimension %u is %lld but size is %lld",
                            at, (long long)rp__dim_hint(room), (long long)size);
    if (step <= 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "step is %lld but must be > 0", (long long)step);
    if (t->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    take_all(t, out);
    const unsigned last = out->ndim++;
    out->size[last] = size;
    if (t->ndim == 0) return RP_OK; /* one window, which walks nothing */
    out->from[last][0] = (int8_t)at;
    out->size[at] = window_count(room, size, step);
    out->step[at] = step;
    return RP_OK;
}

/* (grad; input_size, dim, size, step) */
static rp_status check_windows(const rp__call *call, unsigned *at) {
    const rp_attr *size = &call->attrs[0];
    const rp_tensor *grad = call->in[0];
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), size->n, at));
    const int64_t width = rp__attr_int(call, 2), step = rp__attr_int(call, 3);
    bool good = size->n > 0 && grad->ndim == size->n + 1 && width >= 0 && step > 0 && equal(grad->size[size->n], width);
    good = good && !rp__dim_is(RP__DIM_LT, size->v.ints[*at], width);
    for (unsigned d = 0; good && d < size->n; d++)
        good = equal(grad->size[d], d == *at ? window_count(size->v.ints[d], width, step) : size->v.ints[d]);
    if (!good)
        return rp__op_error(call, RP_ERROR_SHAPE, "the windows do not belong to a tensor of %zu dimensions", size->n);
    return RP_OK;
}

rp_status rp__infer_unfold_backward(const rp__call *call, rp__meta *out) {
    unsigned at;
    RP_TRY(check_windows(call, &at));
    out->dtype = (rp_dtype)call->in[0]->dtype;
    out->ndim = (uint8_t)call->attrs[0].n;
    memcpy(out->size, call->attrs[0].v.ints, call->attrs[0].n * sizeof *out->size);
    return RP_OK;
}

/* A row of the kernel has the windows that an element lies in: as its element k, of window (place - k) / step. */
void rp__lower_unfold_backward(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *grad = call->in[0];
    const unsigned n = call->out[0]->ndim;
    rp_dim size[RP_MAX_DIMS + 1], stride[RP_MAX_DIMS] = {0};
    unsigned at;
    if (check_windows(call, &at) != RP_OK) return;
    memcpy(size, call->out[0]->size, n * sizeof *size);
    size[n] = grad->size[n];
    rp__lw_space(lw, size, n + 1, 1u << n);
    memcpy(stride, grad->stride, (n + 1) * sizeof *stride);
    stride[at] = 0;
    rp__lw_window w = {.size = grad->size[at], .stride = grad->stride[at], .divisor = rp__attr_int(call, 3)};
    w.factor[at] = 1;
    w.factor[n] = -1;
    const uint16_t access = rp__lw_windows(lw, 0, stride, &w, 1, RP__ELEMENTS);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_load(lw, access, RP__NO_VAL, RP__NO_VAL)));
}

/* ---- SCATTER forms: out = self, but src where the view lies */

rp_status rp__infer_scatter(const rp__call *call, rp__meta *out) {
    const rp_tensor *self = call->in[0], *src = call->in[1];
    rp__view part;
    RP_TRY(rp__call_view_map(call, &part));
    bool same = src->ndim == part.ndim;
    for (unsigned d = 0; same && d < part.ndim; d++) same = equal(src->size[d], part.size[d]);
    if (!same) {
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expected src to have a size equal to the slice of self. src size = %s, slice size = %s",
                            rp__shape_text(src->size, src->ndim, a), rp__shape_text(part.size, part.ndim, b));
    }
    rp__meta_like(out, self, (rp_dtype)self->dtype);
    return RP_OK;
}

typedef struct scatter {
    rp__lower *lw;
    const rp__view *part;
    uint32_t stepped;            /* dims of src with a step other than 1: structural */
    rp__val inside;              /* is the element one of src's? RP__NO_VAL: as far as is known, each is */
    rp__val number[RP_MAX_DIMS]; /* along the dims of src */
    bool known[RP_MAX_DIMS];
} scatter;

static void require(scatter *s, rp__val condition) {
    s->inside = s->inside == RP__NO_VAL ? condition : rp__lw_2(s->lw, RP__AND, s->inside, condition);
}

/* The places along dim p that are in the view: its number there along dim d of src, or `only` the one. */
static void scatter_along(scatter *s, unsigned p, int d, int inner) {
    rp__lower *lw = s->lw;
    const rp__view *part = s->part;
    rp__val here = rp__lw_dim_index(lw, p);
    if (d < 0) {
        require(s, rp__lw_2(lw, RP__EQ, here, rp__lw_size(lw, part->start[p])));
        return;
    }
    rp__val from_start = rp__lw_2(lw, RP__SUB, here, rp__lw_size(lw, part->start[p])), number = from_start;
    if (s->known[d]) { /* the other dim of a diagonal */
        require(s, rp__lw_2(lw, RP__EQ, from_start, s->number[d]));
        return;
    }
    require(s, rp__lw_2(lw, RP__LE, rp__lw_const_i(lw, RP_I64, 0), from_start));
    if (s->stepped >> d & 1u) {
        rp__val step = rp__lw_size(lw, part->step[d]);
        number = rp__lw_2(lw, RP__FLOORDIV, from_start, step);
        rp__val rest = rp__lw_2(lw, RP__MUL, number, step);
        if (inner < 0) {
            require(s, rp__lw_2(lw, RP__EQ, rest, from_start));
        } else {
            s->number[inner] = rp__lw_2(lw, RP__SUB, from_start, rest);
            s->known[inner] = true;
            require(s, rp__lw_2(lw, RP__LT, s->number[inner], rp__lw_size(lw, part->size[inner])));
        }
    }
    s->number[d] = number;
    s->known[d] = true;
    require(s, rp__lw_2(lw, RP__LT, number, rp__lw_size(lw, part->size[d])));
}

void rp__lower_scatter(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *src = call->in[1];
    const rp_dtype type = rp__lw_out_dtype(lw, 0);
    rp__view part;
    if (rp__call_view_map(call, &part) != RP_OK) return; /* the shape rule has accepted it */
    scatter s = {.lw = lw, .part = &part, .inside = RP__NO_VAL};
    const rp_dim *whole = call->out[0]->size;
    rp__lw_space(lw, whole, call->out[0]->ndim, 0);
    rp_dim stride[RP_MAX_DIMS] = {0};
    int walks[RP_MAX_DIMS][2]; /* dims of src that come from each dim */
    uint32_t plain = 0;        /* dims of which src has all, in their order */
    for (unsigned p = 0; p < call->out[0]->ndim; p++) {
        unsigned n = 0;
        walks[p][0] = walks[p][1] = -1;
        for (unsigned d = 0; d < part.ndim; d++)
            if (part.from[d][0] == (int)p || part.from[d][1] == (int)p) walks[p][n++] = (int)d;
        const int d = walks[p][0];
        if (n == 1 && part.from[d][1] < 0 && part.step[d] == 1 && rp__dim_same_word(part.start[p], 0) &&
            rp__dim_same_word(part.size[d], whole[p]))
            plain |= 1u << p;
    }
    for (unsigned d = 0; d < part.ndim; d++) s.stepped |= (uint32_t)(part.step[d] != 1) << d;
    const uint64_t kind = (uint64_t)rp__lw_structural_value(lw, (int64_t)((uint64_t)plain << 16 | s.stepped));
    for (unsigned p = 0; p < call->out[0]->ndim; p++) {
        if (kind >> (16 + p) & 1u)
            stride[p] = src->stride[walks[p][0]];
        else
            scatter_along(&s, p, walks[p][0], walks[p][1]);
    }
    const uint16_t access = rp__lw_access(lw, false, 1, stride, RP__ELEMENTS);
    rp__val offset = RP__NO_VAL;
    for (unsigned d = 0; d < part.ndim; d++) {
        if (!s.known[d]) continue;
        rp__val by = rp__lw_2(lw, RP__MUL, s.number[d], rp__lw_size(lw, src->stride[d]));
        offset = offset == RP__NO_VAL ? by : rp__lw_2(lw, RP__ADD, offset, by);
    }
    rp__val value = rp__lw_load(lw, access, offset, s.inside);
    if (rp__lw_in_dtype(lw, 1) != type) value = rp__lw_cast(lw, value, type);
    if (s.inside != RP__NO_VAL) value = rp__lw_3(lw, RP__WHERE, s.inside, value, rp__lw_in(lw, 0));
    rp__lw_out(lw, 0, value);
}
