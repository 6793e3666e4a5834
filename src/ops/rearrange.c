/* The same elements in other places. Most are views and joins; flip and the triangles have a kernel of their own. */
#include "ops/private.h"

#include "ops/format.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"

/* The result of an op that is no view: a copy, should it lie in self's memory after all. */
static rp_status give_own(const rp__call *call, rp_tensor *t) {
    const bool shared = !rp__tensor_is_error(t) && t->storage == call->in[0]->storage;
    return rp__give(call, shared ? rp_clone_at(call->site, t, NULL) : t);
}

static rp_dim times(rp_dim a, rp_dim b) { return rp__dim_apply(RP__DIM_MUL, a, b); }

/* ---- joined */

static rp_status any_tensor(const rp__call *call) {
    if (call->n_in > 0) return RP_OK;
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects a non-empty TensorList");
}

rp_status rp__expand_stack(const rp__call *call) {
    rp_tensor *in[RP__MAX_IN];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    unsigned dim;
    RP_TRY(any_tensor(call));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), call->in[0]->ndim + 1u, &dim));
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (!rp__same_size(call->in[0], t))
            return rp__op_error(
                call, RP_ERROR_SHAPE, "expects each tensor to be equal size, but got %s at entry 0 and %s at entry %u",
                rp__shape_text(call->in[0]->size, call->in[0]->ndim, a), rp__shape_text(t->size, t->ndim, b), k);
        in[k] = rp_unsqueeze_at(call->site, call->in[k], dim);
    }
    return rp__give(call, rp_cat_at(call->site, in, call->n_in, dim));
}

/* With at least `ndim` dims: new ones in front; of a row that becomes a stack, behind as well. */
static rp_tensor *at_least(const rp__call *call, rp_tensor *t, unsigned ndim) {
    for (unsigned d = t->ndim; d < ndim && !rp__tensor_is_error(t); d++)
        t = rp_unsqueeze_at(call->site, t, d < 2 ? 0 : (int64_t)d);
    return t;
}

static rp_status join(const rp__call *call, unsigned ndim, unsigned dim) {
    rp_tensor *in[RP__MAX_IN];
    for (uint32_t k = 0; k < call->n_in; k++) in[k] = at_least(call, call->in[k], ndim);
    return rp__give(call, rp_cat_at(call->site, in, call->n_in, dim));
}

rp_status rp__expand_hstack(const rp__call *call) {
    RP_TRY(any_tensor(call));
    return join(call, 1, call->in[0]->ndim > 1);
}
rp_status rp__expand_vstack(const rp__call *call) {
    RP_TRY(any_tensor(call));
    return join(call, 2, 0);
}
rp_status rp__expand_dstack(const rp__call *call) {
    RP_TRY(any_tensor(call));
    return join(call, 3, 2);
}
rp_status rp__expand_column_stack(const rp__call *call) {
    rp_tensor *in[RP__MAX_IN];
    RP_TRY(any_tensor(call));
    for (uint32_t k = 0; k < call->n_in; k++) {
        rp_tensor *t = call->in[k];
        in[k] = t->ndim > 1 ? t : rp_reshape_at(call->site, t, (const int64_t[]){rp__tensor_numel(t), 1}, 2);
    }
    return rp__give(call, rp_cat_at(call->site, in, call->n_in, 1));
}

/* ---- turned */

static rp_status flipped(const rp__call *call, uint32_t *mask) {
    *mask = 0;
    return call->attrs[0].n ? rp__call_dim_mask(call, 0, mask) : RP_OK;
}

rp_status rp__infer_flip(const rp__call *call, rp__meta *out) {
    uint32_t mask;
    RP_TRY(flipped(call, &mask));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

void rp__lower_flip(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    uint32_t mask;
    rp_dim stride[RP_MAX_DIMS] = {0};
    if (flipped(call, &mask) != RP_OK) return; /* the shape rule has accepted it */
    mask = (uint32_t)rp__lw_structural_value(lw, mask);
    rp__lw_space(lw, t->size, t->ndim, 0);
    for (unsigned d = 0; d < t->ndim; d++) stride[d] = mask >> d & 1u ? 0 : t->stride[d];
    const uint16_t from = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    rp__val offset = RP__NO_VAL;
    for (unsigned d = 0; d < t->ndim; d++) {
        if (!(mask >> d & 1u)) continue;
        rp__val last = rp__lw_2(lw, RP__SUB, rp__lw_size(lw, t->size[d]), rp__lw_const_i(lw, RP_I64, 1));
        rp__val place = rp__lw_2(lw, RP__SUB, last, rp__lw_dim_index(lw, d));
        rp__val by = rp__lw_2(lw, RP__MUL, place, rp__lw_size(lw, t->stride[d]));
        offset = offset == RP__NO_VAL ? by : rp__lw_2(lw, RP__ADD, offset, by);
    }
    rp__lw_out(lw, 0, rp__lw_load(lw, from, offset, RP__NO_VAL));
}

static rp_status flip_one(const rp__call *call, unsigned dim) {
    if (call->in[0]->ndim <= dim) return rp__op_error(call, RP_ERROR_SHAPE, "Input must be >= %u-d.", dim + 1);
    return rp__give(call, rp_flip_at(call->site, call->in[0], RP_DIMS((int64_t)dim)));
}
rp_status rp__expand_fliplr(const rp__call *call) { return flip_one(call, 1); }
rp_status rp__expand_flipud(const rp__call *call) { return flip_one(call, 0); }

/* Along one dim: the last `shift` elements, then the others. */
static rp_tensor *roll_dim(const rp__call *call, rp_tensor *t, rp_dim shift, unsigned dim) {
    const rp_dim size = t->size[dim];
    if (rp__dim_is(RP__DIM_EQ, size, 0)) return t;
    const rp_dim by =
        rp__dim_apply(RP__DIM_MOD, rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_MOD, shift, size), size), size);
    if (rp__dim_is(RP__DIM_EQ, by, 0)) return t;
    const rp_dim cut = rp__dim_apply(RP__DIM_SUB, size, by);
    rp_tensor *parts[2] = {rp_slice_at(call->site, t, dim, cut, size, 1), rp_slice_at(call->site, t, dim, 0, cut, 1)};
    return rp_cat_at(call->site, parts, 2, dim);
}

rp_status rp__expand_roll(const rp__call *call) {
    const rp_attr *shifts = &call->attrs[0], *dims = &call->attrs[1];
    rp_tensor *t = call->in[0], *self = t;
    if (shifts->n == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "`shifts` required");
    if (dims->n != shifts->n && (dims->n > 0 || shifts->n != 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "shifts and dimensions must align. shifts: %zu, dims:%zu",
                            shifts->n, dims->n);
    if (dims->n == 0 && t->ndim > 0) {
        t = roll_dim(call, rp_reshape_at(call->site, t, RP_DIMS(-1)), shifts->v.ints[0], 0);
        t = rp_view_at(call->site, t, self->size, self->ndim);
    }
    if (dims->n > 0 && self->ndim == 0)
        return rp__op_error(call, RP_ERROR_SHAPE, "Dimension specified as %lld but tensor has no dimensions",
                            (long long)dims->v.ints[0]);
    for (size_t k = 0; k < dims->n && !rp__tensor_is_error(t); k++) {
        unsigned dim;
        RP_TRY(rp__call_dim(call, dims->v.ints[k], t->ndim, &dim));
        t = roll_dim(call, t, shifts->v.ints[k], dim);
    }
    return give_own(call, t);
}

rp_status rp__expand_rot90(const rp__call *call) {
    const rp_attr *dims = &call->attrs[1];
    rp_tensor *t = call->in[0];
    const int64_t k = (rp__attr_int(call, 0) % 4 + 4) % 4;
    unsigned a, b;
    if (dims->n != 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expected total rotation dims == 2, but got dims = %zu",
                            dims->n);
    if (t->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "expected total dims >= 2, but got total dims = %u", t->ndim);
    RP_TRY(rp__call_dim(call, dims->v.ints[0], t->ndim, &a));
    RP_TRY(rp__call_dim(call, dims->v.ints[1], t->ndim, &b));
    if (a == b)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "expected rotation dims to be different, but got dim0 = %lld and dim1 = %lld",
                            (long long)dims->v.ints[0], (long long)dims->v.ints[1]);
    const int64_t both[2] = {a, b};
    if (k == 0) return rp__give(call, rp_clone_at(call->site, t, NULL));
    if (k == 2) return rp__give(call, rp_flip_at(call->site, t, both, 2));
    return rp__give(call, rp_transpose_at(call->site, rp_flip_at(call->site, t, &both[k == 1], 1), a, b));
}

/* ---- repeated */

/* Along dims with more than one repeat, expanded over a new dim in front of each; should these be more dims than a tensor has, one
   after the other, with those before it and those from it on folded. */
static rp_tensor *repeat(const rp__call *call, rp_tensor *t, const rp_dim *times_of, unsigned ndim) {
    rp_dim size[RP_MAX_DIMS], apart[RP_MAX_DIMS], wide[RP_MAX_DIMS], whole[RP_MAX_DIMS];
    bool more[RP_MAX_DIMS];
    unsigned n = ndim, at = 0;
    for (unsigned d = 0; d < ndim; d++) {
        size[d] = d + t->ndim < ndim ? 1 : t->size[d + t->ndim - ndim];
        more[d] = !rp__dim_is(RP__DIM_EQ, times_of[d], 1);
        n += more[d];
    }
    if (n == ndim) return t->ndim < ndim ? rp_view_at(call->site, t, size, ndim) : t;
    if (n > RP_MAX_DIMS) {
        for (unsigned d = 0; d < ndim; d++) {
            if (!more[d]) continue;
            const rp_dim before = rp__numel(size, d), from = rp__numel(size + d, ndim - d);
            t = rp_reshape_at(call->site, t, (const rp_dim[]){before, 1, from}, 3);
            t = rp_expand_at(call->site, t, (const rp_dim[]){before, times_of[d], from}, 3, NULL);
            size[d] = times(size[d], times_of[d]);
            t = rp_reshape_at(call->site, t, size, ndim);
        }
        return t;
    }
    for (unsigned d = 0; d < ndim; d++) {
        if (more[d]) {
            apart[at] = 1;
            wide[at++] = times_of[d];
        }
        apart[at] = wide[at] = size[d];
        at++;
        whole[d] = times(size[d], times_of[d]);
    }
    t = rp_expand_at(call->site, rp_reshape_at(call->site, t, apart, n), wide, n, NULL);
    return rp_reshape_at(call->site, t, whole, ndim);
}

static rp_status check_repeats(const rp__call *call, const rp_attr *repeats) {
    char text[RP__SHAPE_TEXT];
    if (repeats->n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions, not %zu", RP_MAX_DIMS,
                            repeats->n);
    for (size_t d = 0; d < repeats->n; d++)
        if (rp__dim_is(RP__DIM_LT, repeats->v.ints[d], 0))
            return rp__op_error(call, RP_ERROR_SHAPE, "a dimension cannot be repeated %lld times: %s",
                                (long long)rp__dim_hint(repeats->v.ints[d]),
                                rp__shape_text(repeats->v.ints, repeats->n, text));
    return RP_OK;
}

/* A result with more elements than strides can tell apart. */
static rp_status check_repeated(const rp__call *call, const rp_dim *times_of, unsigned ndim) {
    const rp_tensor *t = call->in[0];
    int64_t n = 1;
    for (unsigned d = 0; d < ndim; d++) {
        const rp_dim size = d + t->ndim < ndim ? 1 : t->size[d + t->ndim - ndim];
        if (rp__dim_is_symbol(size) || rp__dim_is_symbol(times_of[d])) return RP_OK;
        if (rp__dim_same_word(size, 0) || rp__dim_same_word(times_of[d], 0)) return RP_OK;
        if (!rp__mul_i64(n, size, &n) || !rp__mul_i64(n, times_of[d], &n) || n >= RP__REACH_LIMIT)
            return rp__op_error(call, RP_ERROR_SHAPE, "the result has too many elements");
    }
    return RP_OK;
}

rp_status rp__expand_repeat(const rp__call *call) {
    const rp_attr *repeats = &call->attrs[0];
    if (repeats->n < call->in[0]->ndim)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
    RP_TRY(check_repeats(call, repeats));
    RP_TRY(check_repeated(call, repeats->v.ints, (unsigned)repeats->n));
    return give_own(call, repeat(call, call->in[0], repeats->v.ints, (unsigned)repeats->n));
}

rp_status rp__expand_tile(const rp__call *call) {
    const rp_attr *dims = &call->attrs[0];
    const unsigned ndim = call->in[0]->ndim > dims->n ? call->in[0]->ndim : (unsigned)dims->n;
    rp_dim of[RP_MAX_DIMS];
    RP_TRY(check_repeats(call, dims));
    for (unsigned d = 0; d < ndim; d++) of[d] = d + dims->n < ndim ? 1 : dims->v.ints[d + dims->n - ndim];
    RP_TRY(check_repeated(call, of, ndim));
    return give_own(call, repeat(call, call->in[0], of, ndim));
}

/* ---- triangles */

static rp_status infer_triangle(const rp__call *call, rp__meta *out) {
    if (call->in[0]->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "input tensor must have at least 2 dimensions");
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}
rp_status rp__infer_tril(const rp__call *call, rp__meta *out) { return infer_triangle(call, out); }
rp_status rp__infer_triu(const rp__call *call, rp__meta *out) { return infer_triangle(call, out); }

/* The diagonal that an element lies on is its column less its row. */
static void lower_triangle(rp__lower *lw, bool lower) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    rp__lw_space(lw, t->size, t->ndim, 0);
    rp__val x = rp__lw_in_front(lw, 0), k = rp__lw_attr(lw, 0, RP_I64);
    rp__val column = rp__lw_dim_index(lw, t->ndim - 1u), row = rp__lw_dim_index(lw, t->ndim - 2u);
    rp__val on = rp__lw_2(lw, RP__SUB, column, row);
    rp__val in = lower ? rp__lw_2(lw, RP__LE, on, k) : rp__lw_2(lw, RP__LE, k, on);
    rp__lw_out(lw, 0, rp__lw_3(lw, RP__WHERE, in, x, rp__lw_const_i(lw, compute, 0)));
}
void rp__lower_tril(rp__lower *lw) { lower_triangle(lw, true); }
void rp__lower_triu(rp__lower *lw) { lower_triangle(lw, false); }

/* ---- diagonals */

rp_status rp__expand_diag_embed(const rp__call *call) {
    rp_tensor *t = call->in[0];
    const int64_t offset = rp__attr_int(call, 0);
    unsigned a, b;
    if (t->ndim == 0 || t->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "expected a tensor of 1 to %d dimensions", RP_MAX_DIMS - 1);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 1), t->ndim + 1u, &a));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 2), t->ndim + 1u, &b));
    if (a == b)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "diagonal dimensions cannot be identical %lld, %lld",
                            (long long)rp__attr_int(call, 1), (long long)rp__attr_int(call, 2));
    if (offset < -RP__REACH_LIMIT || offset > RP__REACH_LIMIT)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "offset is out of range: %lld", (long long)offset);
    rp__meta whole = {.dtype = (rp_dtype)t->dtype, .device = t->device, .ndim = (uint8_t)(t->ndim + 1)};
    const rp_dim side = rp__dim_apply(RP__DIM_ADD, t->size[t->ndim - 1], offset < 0 ? -offset : offset);
    for (unsigned d = 0, from = 0; d < whole.ndim; d++) whole.size[d] = d == a || d == b ? side : t->size[from++];
    return rp__give(call, rp_diagonal_scatter_at(call->site, rp__zeros_expanded(&whole), t, offset, a, b));
}

rp_status rp__expand_diag(const rp__call *call) {
    rp_tensor *t = call->in[0];
    const int64_t k = rp__attr_int(call, 0);
    if (t->ndim == 1) return rp__give(call, rp_diag_embed_at(call->site, t, k, -2, -1));
    if (t->ndim == 2) return rp__give(call, rp_clone_at(call->site, rp_diagonal_at(call->site, t, k, 0, 1), NULL));
    return rp__op_error(call, RP_ERROR_SHAPE, "Supports 1D or 2D tensors. Got %uD", t->ndim);
}

rp_status rp__expand_matrix_trace(const rp__call *call) {
    if (call->in[0]->ndim != 2) return rp__op_error(call, RP_ERROR_SHAPE, "expected a matrix");
    if (call->in[0]->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    return rp__give(call,
                    rp_sum_at(call->site, rp_diagonal_at(call->site, call->in[0], 0, 0, 1), NULL, 0, false, NULL));
}

/* ---- dims folded into others */

static rp_status check_factor(const rp__call *call, int64_t r) {
    if (r <= 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expects a positive factor, but got %lld", (long long)r);
    if (call->in[0]->ndim < 3 || call->in[0]->ndim + 2 > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "expects input to have at least 3 dimensions, but got input with %u",
                            call->in[0]->ndim);
    return RP_OK;
}
static bool divides(rp_dim by, rp_dim size) { return rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MOD, size, by), 0); }
static rp_dim part(rp_dim size, rp_dim by) { return rp__dim_apply(RP__DIM_FLOORDIV, size, by); }

/* The last three dims as the five of `fine`, in the order `moved`, as the three of `whole`. */
static rp_status regrouped(const rp__call *call, const rp_dim fine[5], const int64_t moved[5], const rp_dim whole[3]) {
    rp_tensor *t = call->in[0];
    const unsigned n = t->ndim - 3u;
    rp_dim apart[RP_MAX_DIMS], size[RP_MAX_DIMS];
    int64_t order[RP_MAX_DIMS];
    for (unsigned d = 0; d < n; d++) apart[d] = size[d] = t->size[d], order[d] = d;
    for (unsigned d = 0; d < 5; d++) apart[n + d] = fine[d], order[n + d] = n + moved[d];
    for (unsigned d = 0; d < 3; d++) size[n + d] = whole[d];
    t = rp_permute_at(call->site, rp_reshape_at(call->site, t, apart, n + 5), order, n + 5);
    return give_own(call, rp_reshape_at(call->site, t, size, n + 3));
}

rp_status rp__expand_pixel_shuffle(const rp__call *call) {
    const rp_tensor *t = call->in[0];
    const int64_t r = rp__attr_int(call, 0);
    RP_TRY(check_factor(call, r));
    const unsigned n = t->ndim - 3u;
    const rp_dim c = t->size[n], h = t->size[n + 1], w = t->size[n + 2];
    int64_t square;
    if (!rp__mul_i64(r, r, &square) || !divides(square, c))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
                            "but input.size(-3)=%lld is not divisible by %lld * %lld",
                            (long long)rp__dim_hint(c), (long long)r, (long long)r);
    static const int64_t moved[5] = {0, 3, 1, 4, 2};
    const rp_dim fine[5] = {part(c, square), r, r, h, w}, whole[3] = {part(c, square), times(h, r), times(w, r)};
    return regrouped(call, fine, moved, whole);
}

rp_status rp__expand_pixel_unshuffle(const rp__call *call) {
    const rp_tensor *t = call->in[0];
    const int64_t r = rp__attr_int(call, 0);
    RP_TRY(check_factor(call, r));
    const unsigned n = t->ndim - 3u;
    const rp_dim c = t->size[n], h = t->size[n + 1], w = t->size[n + 2];
    if (!divides(r, h) || !divides(r, w))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expects height and width to be divisible by downscale_factor, but %lld and %lld are not "
                            "both divisible by %lld",
                            (long long)rp__dim_hint(h), (long long)rp__dim_hint(w), (long long)r);
    static const int64_t moved[5] = {0, 2, 4, 1, 3};
    const rp_dim fine[5] = {c, part(h, r), r, part(w, r), r},
                 whole[3] = {times(c, times(r, r)), part(h, r), part(w, r)};
    return regrouped(call, fine, moved, whole);
}

rp_status rp__expand_channel_shuffle(const rp__call *call) {
    rp_tensor *t = call->in[0];
    const rp_dim groups = rp__attr_int(call, 0);
    if (t->ndim < 3 || t->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "expects input with > 2 dims, but got input with %u dims", t->ndim);
    if (!rp__dim_is(RP__DIM_LT, 0, groups))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "Number of groups to divide channels in must be positive. Value of groups:%lld",
                            (long long)rp__dim_hint(groups));
    if (!divides(groups, t->size[1]))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Number of channels must be divisible by groups. Got %lld channels and %lld groups.",
                            (long long)rp__dim_hint(t->size[1]), (long long)rp__dim_hint(groups));
    rp_dim apart[RP_MAX_DIMS];
    apart[0] = t->size[0], apart[1] = groups, apart[2] = part(t->size[1], groups);
    for (unsigned d = 2; d < t->ndim; d++) apart[d + 1] = t->size[d];
    rp_tensor *turned = rp_transpose_at(call->site, rp_reshape_at(call->site, t, apart, t->ndim + 1u), 1, 2);
    return give_own(call, rp_reshape_at(call->site, turned, t->size, t->ndim));
}

/* ---- in the size of another */

rp_status rp__expand_view_as(const rp__call *call) {
    return rp__give(call, rp_view_at(call->site, call->in[0], call->in[1]->size, call->in[1]->ndim));
}
rp_status rp__expand_reshape_as(const rp__call *call) {
    return rp__give(call, rp_reshape_at(call->site, call->in[0], call->in[1]->size, call->in[1]->ndim));
}
rp_status rp__expand_expand_as(const rp__call *call) {
    return rp__give(call, rp_expand_at(call->site, call->in[0], call->in[1]->size, call->in[1]->ndim, NULL));
}

/* ---- as_strided: windows within windows of the elements as they lie in memory. The dim with the largest stride makes windows that are
   as long as the others reach, the next one windows in these, and so on; so gradients and writes are those of unfold. */

/* Dims in the order of their strides, the largest first; equal ones as they are. */
static void by_stride(const int64_t *stride, unsigned n, int64_t *order) {
    for (unsigned k = 0; k < n; k++) {
        unsigned at = k;
        for (; at > 0 && stride[order[at - 1]] < stride[k]; at--) order[at] = order[at - 1];
        order[at] = k;
    }
}

/* self's elements in the order of memory, a row. */
static rp_tensor *in_memory(const rp__call *call) {
    rp_tensor *t = call->in[0];
    int64_t stride[RP_MAX_DIMS], order[RP_MAX_DIMS];
    for (unsigned d = 0; d < t->ndim; d++) stride[d] = rp__dim_value(t->stride[d]);
    by_stride(stride, t->ndim, order);
    if (t->ndim > 1) t = rp_permute_at(call->site, t, order, t->ndim);
    if (!rp__tensor_is_error(t) && !rp__tensor_contiguous(t)) {
        (void)rp__op_error(call, RP_ERROR_UNAVAILABLE,
                           "a tensor whose elements do not lie side by side is "
                           "not supported");
        return rp__tensor_error();
    }
    return rp_view_at(call->site, t, RP_DIMS(-1));
}

rp_status rp__expand_as_strided(const rp__call *call) {
    const rp_attr *size = &call->attrs[0], *stride = &call->attrs[1], *offset = &call->attrs[2];
    const unsigned n = (unsigned)size->n;
    int64_t reach = 1, order[RP_MAX_DIMS], back[RP_MAX_DIMS], sizes[RP_MAX_DIMS], strides[RP_MAX_DIMS];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    bool empty = false;
    if (size->n != stride->n || size->n >= RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "mismatch in length of strides and shape: %zu and %zu", stride->n,
                            size->n);
    for (unsigned d = 0; d < n; d++) { /* windows are of numbers: sizes of the trace are taken at their values */
        sizes[d] = rp__dim_value(size->v.ints[d]);
        strides[d] = rp__dim_value(stride->v.ints[d]);
        empty = empty || sizes[d] == 0;
        int64_t by;
        if (sizes[d] < 0 || strides[d] < 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "sizes and strides must not be negative: %s, %s",
                                rp__shape_text(sizes, d + 1, a), rp__shape_text(strides, d + 1, b));
        if (sizes[d] > 0 && (!rp__mul_i64(sizes[d] - 1, strides[d], &by) || !rp__add_i64(reach, by, &reach)))
            return rp__op_error(call, RP_ERROR_SHAPE, "the last element lies too far away");
    }
    int64_t first = 0, end;
    if (!rp__attr_is_none(offset) &&
        !rp__add_i64(rp__dim_value(offset->v.i), -rp__dim_value(call->in[0]->offset), &first))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "the offset is out of range");
    rp_tensor *t = in_memory(call);
    if (rp__tensor_is_error(t)) return rp_error_status();
    if (empty) return rp__give(call, rp_view_at(call->site, rp_slice_at(call->site, t, 0, 0, 0, 1), sizes, n));
    if (first < 0 || !rp__add_i64(first, reach, &end) || end > rp__dim_value(t->size[0]))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "sizes %s and strides %s, from element %lld of self on, reach outside of its "
                            "%lld elements",
                            rp__shape_text(sizes, n, a), rp__shape_text(strides, n, b), (long long)first,
                            (long long)rp__dim_value(t->size[0]));
    t = rp_slice_at(call->site, t, 0, first, end, 1);
    by_stride(strides, n, order);
    for (unsigned k = 0; k < n; k++) {
        const unsigned d = (unsigned)order[k];
        back[d] = k;
        if (strides[d] == 0) { /* everything behind it stays the same */
            t = rp_unsqueeze_at(call->site, t, k);
            rp_dim wide[RP_MAX_DIMS];
            for (unsigned i = 0; i < k + 2u; i++) wide[i] = i == k ? sizes[d] : -1;
            t = rp_expand_at(call->site, t, wide, k + 2u, NULL);
            continue;
        }
        reach -= (sizes[d] - 1) * strides[d];
        t = rp_unfold_at(call->site, t, k, reach, strides[d]);
    }
    t = rp_select_at(call->site, t, n, 0);
    return rp__give(call, n > 1 ? rp_permute_at(call->site, t, back, n) : t);
}
