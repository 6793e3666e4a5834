/* Tensors of indices. What reads is one lowering: a load whose offset is made of their values, each checked on the way. What writes at
   several of them counts the elements that they name (index_place) and scatters. Masks are the indices of what is true in them. */
#include "ops/private.h"

#include "ops/execute.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/rules.h"
#include "ops/view.h"

static bool is_empty(const rp_tensor *t) { return rp__dim_is(RP__DIM_EQ, rp__tensor_numel(t), 0); }
static bool is_index(const rp_tensor *t) { return t->dtype == RP_I64 || t->dtype == RP_I32; }

/* ---- where elements come from */

enum { MOST_INDICES = 14 }; /* which the derivative can ask for */

/* The result's dims: those of the index tensors, broadcast, are [at, at + n_block); each other one is a dim of self. */
typedef struct places {
    unsigned ndim, at, n_block, first, count; /* the first indexed dim of self, and how many are */
    bool together;                            /* they are neighbours */
    int from[RP_MAX_DIMS];                    /* -1: of the block */
    rp_dim size[RP_MAX_DIMS];
} places;

static rp_status places_of(const rp__call *call, const rp_tensor *self, rp_tensor *const *index, unsigned n,
                           places *p) {
    rp_dim block[RP_MAX_DIMS], wider[RP_MAX_DIMS];
    size_t n_block = 0;
    unsigned last = 0;
    *p = (places){.first = RP_MAX_DIMS};
    if (n > self->ndim)
        return rp__op_error(call, RP_ERROR_INDEX, "too many indices for tensor of dimension %u (got %u)", self->ndim,
                            n);
    for (unsigned k = 0; k < n; k++) {
        if (!index[k]) continue;
        RP_TRY(rp__broadcast(block, n_block, index[k]->size, index[k]->ndim, wider, &n_block));
        for (size_t d = 0; d < n_block; d++) block[d] = wider[d];
        if (p->count++ == 0) p->first = k;
        last = k;
    }
    if (p->count == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "at least one index must be provided");
    p->together = last - p->first + 1 == p->count;
    p->at = p->together ? p->first : 0;
    p->n_block = (unsigned)n_block;
    p->ndim = self->ndim - p->count + p->n_block;
    if (p->ndim > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    bool any = true;
    for (unsigned d = 0; d < n_block; d++) any = any && !rp__dim_is(RP__DIM_EQ, block[d], 0);
    unsigned out = 0;
    for (unsigned d = 0; d < self->ndim || out == p->at; d++) {
        if (out == p->at)
            for (unsigned i = 0; i < n_block; i++, out++) p->size[out] = block[i], p->from[out] = -1;
        if (d >= self->ndim) break;
        if (d < n && index[d]) {
            if (any && rp__dim_is(RP__DIM_EQ, self->size[d], 0))
                return rp__op_error(call, RP_ERROR_INDEX, "index is out of bounds for dimension with size 0");
            continue;
        }
        p->size[out] = self->size[d];
        p->from[out++] = (int)d;
    }
    return RP_OK;
}

rp_status rp__infer_index_load(const rp__call *call, rp__meta *out) {
    places p;
    if (call->n_in > MOST_INDICES + 1)
        return rp__op_error(call, RP_ERROR_UNAVAILABLE, "more than %d indices are not supported", MOST_INDICES);
    for (uint32_t k = 1; k < call->n_in; k++)
        if (call->in[k] && !is_index(call->in[k]))
            return rp__op_error(call, RP_ERROR_DTYPE, "Expected dtype int32/int64 for index, but got %s",
                                rp__dtype_title((rp_dtype)call->in[k]->dtype));
    RP_TRY(places_of(call, call->in[0], call->in + 1, call->n_in - 1, &p));
    out->dtype = (rp_dtype)call->in[0]->dtype;
    out->ndim = (uint8_t)p.ndim;
    for (unsigned d = 0; d < p.ndim; d++) out->size[d] = p.size[d];
    return RP_OK;
}

/* `index` along dim `d` of self as part of an offset. */
static rp__val place_along(rp__lower *lw, rp__val index, const rp_tensor *self, unsigned d, bool wrap, rp__val offset) {
    const bool scalar = self->ndim == 0;
    index = rp__lw_check_index(lw, rp__lw_cast(lw, index, RP_I64), rp__lw_size(lw, scalar ? 1 : self->size[d]), wrap);
    rp__val by = rp__lw_2(lw, RP__MUL, index, rp__lw_size(lw, scalar ? 1 : self->stride[d]));
    return offset == RP__NO_VAL ? by : rp__lw_2(lw, RP__ADD, offset, by);
}

void rp__lower_index_load(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *self = call->in[0];
    places p;
    rp_dim stride[RP_MAX_DIMS] = {0};
    if (places_of(call, self, call->in + 1, call->n_in - 1, &p) != RP_OK) return; /* the shape rule has accepted it */
    rp__lw_space(lw, p.size, p.ndim, 0);
    for (unsigned d = 0; d < p.ndim; d++) stride[d] = p.from[d] < 0 ? 0 : self->stride[p.from[d]];
    const uint16_t from = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    rp__val offset = RP__NO_VAL;
    for (unsigned k = 1; k < call->n_in; k++) {
        const rp_tensor *index = call->in[k];
        rp__val v;
        if (!index) continue;
        if (p.count == 1 && p.at == 0) { /* may be the value of a producing op */
            v = rp__lw_in_front(lw, k);
        } else {
            rp_dim walk[RP_MAX_DIMS] = {0};
            const unsigned first = p.at + p.n_block - index->ndim;
            for (unsigned d = 0; d < index->ndim; d++)
                walk[first + d] = rp__dim_is(RP__DIM_EQ, index->size[d], 1) ? 0 : index->stride[d];
            v = rp__lw_load(lw, rp__lw_access(lw, false, k, walk, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
        }
        offset = place_along(lw, v, self, k - 1, true, offset);
    }
    rp__lw_out(lw, 0, rp__lw_load(lw, from, offset, RP__NO_VAL));
}

rp_status rp__infer_index_select(const rp__call *call, rp__meta *out) {
    const rp_tensor *self = call->in[0], *index = call->in[1];
    unsigned dim;
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    if (index->ndim > 1) return rp__op_error(call, RP_ERROR_SHAPE, "Index is supposed to be a vector");
    if (!is_index(index))
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected dtype int32/int64 for index, but got %s",
                            rp__dtype_title((rp_dtype)index->dtype));
    const rp_dim n = rp__tensor_numel(index);
    rp__meta_like(out, self, (rp_dtype)self->dtype);
    if (self->ndim == 0) {
        if (!rp__dim_is(RP__DIM_EQ, n, 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "Index to scalar can have only 1 value, got %lld value(s)",
                                (long long)rp__dim_hint(n));
        return RP_OK;
    }
    if (rp__dim_is(RP__DIM_EQ, self->size[dim], 0) && !rp__dim_is(RP__DIM_EQ, n, 0))
        return rp__op_error(call, RP_ERROR_INDEX, "index out of range: the indexed dimension has size 0");
    out->size[dim] = n;
    return RP_OK;
}

void rp__lower_index_select(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *self = call->in[0], *index = call->in[1], *out = call->out[0];
    rp_dim stride[RP_MAX_DIMS] = {0}, walk[RP_MAX_DIMS] = {0};
    unsigned dim;
    if (rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim) != RP_OK) return;
    rp__lw_space(lw, out->size, out->ndim, 0);
    for (unsigned d = 0; d < self->ndim; d++) stride[d] = d == dim ? 0 : self->stride[d];
    if (index->ndim && self->ndim) walk[dim] = index->stride[0];
    const uint16_t from = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    rp__val v = rp__lw_load(lw, rp__lw_access(lw, false, 1, walk, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
    rp__lw_out(lw, 0, rp__lw_load(lw, from, place_along(lw, v, self, dim, false, RP__NO_VAL), RP__NO_VAL));
}

/* ---- index */

/* A mask for the dims of self from `first` on. */
static rp_status check_mask(const rp__call *call, const rp_tensor *self, const rp_tensor *mask, unsigned first) {
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    if (first + mask->ndim > self->ndim)
        return rp__op_error(call, RP_ERROR_INDEX, "too many indices for tensor of dimension %u (got %u)", self->ndim,
                            first + mask->ndim);
    for (unsigned d = 0; d < mask->ndim; d++)
        if (!rp__dim_is(RP__DIM_EQ, mask->size[d], self->size[first + d]))
            return rp__op_error(call, RP_ERROR_INDEX,
                                "The shape of the mask %s at index %u does not match the shape of the indexed tensor "
                                "%s at index %u",
                                rp__shape_text(mask->size, mask->ndim, a), d, rp__shape_text(self->size, self->ndim, b),
                                first + d);
    return RP_OK;
}

static rp_status check_values(const rp__call *call, const rp_tensor *self, const rp_tensor *values) {
    if (values->dtype == self->dtype) return RP_OK;
    return rp__op_error(call, RP_ERROR_DTYPE,
                        "Index put requires the source and destination dtypes match, got %s for the destination and "
                        "%s for the source.",
                        rp__dtype_title((rp_dtype)self->dtype), rp__dtype_title((rp_dtype)values->dtype));
}

/* Indices of a call as integers: a mask becomes one for each of its dims, of what is true; for one without dims self gets a dim of
   one place. */
static rp_status plain_indices(const rp__call *call, rp_tensor **whole, rp_tensor *const *given, unsigned n,
                               rp_tensor **index, unsigned *n_index) {
    const rp_tensor *self = *whole;
    *n_index = 0;
    for (unsigned k = 0; k < n; k++) {
        rp_tensor *t = given[k];
        const bool mask = t && (t->dtype == RP_BOOL || t->dtype == RP_U8);
        if (t && !mask && !is_index(t))
            return rp__op_error(call, RP_ERROR_DTYPE,
                                "tensors used as indices must be long, int, byte or bool tensors");
        if (!mask) {
            if (*n_index == self->ndim)
                return rp__op_error(call, RP_ERROR_INDEX, "too many indices for tensor of dimension %u (got %u)",
                                    self->ndim, *n_index + 1);
            index[(*n_index)++] = t;
            continue;
        }
        if (t->ndim == 0) {
            t = rp_unsqueeze_at(call->site, t, 0);
            self = *whole = rp_unsqueeze_at(call->site, *whole, *n_index);
            if (rp__tensor_is_error(t) || rp__tensor_is_error(self)) return rp_error_status();
        }
        RP_TRY(check_mask(call, self, t, *n_index));
        rp_tensor *true_at = rp_nonzero_at(call->site, t);
        for (unsigned d = 0; d < t->ndim; d++) index[(*n_index)++] = rp_select_at(call->site, true_at, 1, d);
        if (rp__tensor_is_error(true_at)) return rp_error_status();
    }
    return RP_OK;
}

rp_status rp__expand_index(const rp__call *call) {
    rp_tensor *index[RP_MAX_DIMS], *self = call->in[0];
    unsigned n;
    RP_TRY(plain_indices(call, &self, call->in + 1, call->n_in - 1, index, &n));
    return rp__give(call, rp_index_load_at(call->site, self, index, n));
}

/* ---- index_put: a scatter along one dim, into which the indexed dims of self are folded */

rp_status rp__infer_index_place(const rp__call *call, rp__meta *out) {
    rp_dim wider[RP_MAX_DIMS];
    size_t n = 0;
    if (call->n_in == 0 || call->attrs[0].n != call->n_in)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expected a size for each of one or more indices");
    for (uint32_t k = 0; k < call->n_in; k++) {
        if (!is_index(call->in[k])) return rp__call_refuse_dtype(call, (rp_dtype)call->in[k]->dtype);
        RP_TRY(rp__broadcast(out->size, n, call->in[k]->size, call->in[k]->ndim, wider, &n));
        for (size_t d = 0; d < n; d++) out->size[d] = wider[d];
    }
    out->ndim = (uint8_t)n;
    out->dtype = RP_I64;
    return RP_OK;
}

void rp__lower_index_place(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_attr *sizes = &call->attrs[0];
    rp__val place = RP__NO_VAL;
    (void)rp__lw_structural_value(lw, call->n_in);
    for (unsigned k = 0; k < call->n_in; k++) {
        const rp__val size = rp__lw_size(lw, sizes->v.ints[k]);
        const rp__val index = rp__lw_check_index(lw, rp__lw_cast(lw, rp__lw_in(lw, k), RP_I64), size, true);
        place = place == RP__NO_VAL ? index : rp__lw_2(lw, RP__ADD, rp__lw_2(lw, RP__MUL, place, size), index);
    }
    rp__lw_out(lw, 0, place);
}

typedef struct
    folded { /* what is scattered: into a tensor with these dims, which self has in another order and unfolded */
    unsigned ndim, dim, whole_ndim;
    rp_dim size[RP_MAX_DIMS], whole[RP_MAX_DIMS]; /* folded; unfolded */
    int64_t order[RP_MAX_DIMS], back[RP_MAX_DIMS];
    bool moved;
    rp_tensor *index, *values;
} folded;

static rp_status fold(const rp__call *call, const rp_tensor *self, rp_tensor *const *index, unsigned n,
                      rp_tensor *values, folded *f) {
    places p;
    rp_tensor *given[RP_MAX_DIMS];
    rp_dim sizes[RP_MAX_DIMS];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    unsigned count = 0, at = 0;
    RP_TRY(places_of(call, self, index, n, &p));
    RP_TRY(check_values(call, self, values));
    bool fits = values->ndim <= p.ndim;
    for (unsigned d = 0; fits && d < values->ndim; d++)
        fits = rp__dim_is(RP__DIM_EQ, values->size[d], 1) ||
               rp__dim_is(RP__DIM_EQ, values->size[d], p.size[d + p.ndim - values->ndim]);
    if (!fits)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "shape mismatch: value tensor of shape %s cannot be broadcast to indexing result of shape %s",
            rp__shape_text(values->size, values->ndim, a), rp__shape_text(p.size, p.ndim, b));
    f->moved = !p.together;
    f->dim = p.at;
    f->ndim = self->ndim - p.count + 1;
    f->whole_ndim = self->ndim;
    for (unsigned pass = 0; pass < 2; pass++) /* indexed dims, then the others; together they keep their places */
        for (unsigned d = 0; d < self->ndim; d++) {
            const bool indexed = d < n && index[d];
            if (p.together ? pass == 0 : indexed == (pass == 0)) f->order[at++] = d;
        }
    for (unsigned d = 0; d < self->ndim; d++) {
        f->back[f->order[d]] = d;
        f->whole[d] = self->size[f->order[d]];
    }
    for (unsigned d = 0; d < n; d++)
        if (index[d]) given[count] = index[d], sizes[count++] = self->size[d];
    for (unsigned d = 0; d < f->ndim; d++)
        f->size[d] = d < f->dim    ? f->whole[d]
                     : d == f->dim ? rp__numel(f->whole + d, p.count)
                                   : f->whole[d + p.count - 1];
    /* what is written: as many along the folded dim as the index tensors have elements */
    rp_dim part[RP_MAX_DIMS], lone[RP_MAX_DIMS];
    for (unsigned d = 0; d < f->ndim; d++) {
        part[d] = d == f->dim ? rp__numel(p.size + p.at, p.n_block) : f->size[d];
        lone[d] = d == f->dim ? part[d] : 1;
    }
    rp_tensor *place = rp_index_place_at(call->site, given, count, sizes, count);
    f->index = rp_expand_at(call->site, rp_reshape_at(call->site, place, lone, f->ndim), part, f->ndim, NULL);
    f->values = rp_reshape_at(call->site, rp_expand_at(call->site, values, p.size, p.ndim, NULL), part, f->ndim);
    return rp__tensor_is_error(f->index) || rp__tensor_is_error(f->values) ? rp_error_status() : RP_OK;
}

static rp_tensor *put_at(const rp__call *call, rp_tensor *self, rp_tensor *const *index, unsigned n, rp_tensor *values,
                         bool add) {
    folded f;
    if (fold(call, self, index, n, values, &f) != RP_OK) return rp__tensor_error();
    rp_tensor *t = f.moved ? rp_permute_at(call->site, self, f.order, f.whole_ndim) : self;
    t = rp_reshape_at(call->site, t, f.size, f.ndim);
    t = add ? rp_scatter_add_at(call->site, t, f.dim, f.index, f.values)
            : rp_scatter_set_at(call->site, t, f.dim, f.index, f.values);
    t = rp_view_at(call->site, t, f.whole, f.whole_ndim);
    return f.moved ? rp_permute_at(call->site, t, f.back, f.whole_ndim) : t;
}

/* Through a view where there is one with the folded dims, so that only what is named is touched. */
static rp_tensor *put_in(const rp__call *call, rp_tensor *self, rp_tensor *const *index, unsigned n, rp_tensor *values,
                         bool add) {
    folded f;
    rp_dim stride[RP_MAX_DIMS];
    if (fold(call, self, index, n, values, &f) != RP_OK) return rp__tensor_error();
    rp_tensor *t = f.moved ? rp_permute_at(call->site, self, f.order, f.whole_ndim) : self;
    if (rp__tensor_is_error(t)) return t;
    if (!rp__view_strides(t, f.size, f.ndim, stride))
        return rp_copy__at(call->site, self, put_at(call, self, index, n, values, add), false);
    if (f.ndim != f.whole_ndim) t = rp_view_at(call->site, t, f.size, f.ndim);
    t = add ? rp_scatter_add__at(call->site, t, f.dim, f.index, f.values)
            : rp_scatter_set__at(call->site, t, f.dim, f.index, f.values);
    return rp__tensor_is_error(t) ? t : rp__tensor_enter_scope(self);
}

/* One value where a mask of the first dims is true: nobody has to know how often that is. */
static rp_status expand_masked_put(const rp__call *call, bool in_place) {
    rp_tensor *self = call->in[0], *mask = call->in[1], *value = call->in[2];
    rp_dim size[RP_MAX_DIMS];
    RP_TRY(check_mask(call, self, mask, 0));
    RP_TRY(check_values(call, self, value));
    for (unsigned d = 0; d < self->ndim; d++) size[d] = d < mask->ndim ? mask->size[d] : 1;
    rp_tensor *t = rp_where_at(call->site, rp_reshape_at(call->site, mask, size, self->ndim), value, self);
    return rp__give(call, in_place ? rp_copy__at(call->site, self, t, false) : t);
}

static rp_status expand_index_put(const rp__call *call, bool in_place) {
    rp_tensor *index[RP_MAX_DIMS], *values = call->in[call->n_in - 1];
    const bool add = rp__attr_bool(call, 0);
    unsigned n;
    if (call->n_in == 3 && call->in[1] && call->in[1]->dtype == RP_BOOL && values->ndim == 0 && !add)
        return expand_masked_put(call, in_place);
    rp_tensor *const given = call->in[0];
    rp_tensor *self = given;
    RP_TRY(plain_indices(call, &self, call->in + 1, call->n_in - 2, index, &n));
    rp_tensor *t = (in_place ? put_in : put_at)(call, self, index, n, values, add);
    if (self != given && !rp__tensor_is_error(t))
        t = in_place ? rp__tensor_enter_scope(given) : rp_view_at(call->site, t, given->size, given->ndim);
    return rp__give(call, t);
}
rp_status rp__expand_index_put(const rp__call *call) { return expand_index_put(call, false); }
rp_status rp__expand_index_put_(const rp__call *call) { return expand_index_put(call, true); }

/* ---- indices that count only where a mask is true: elsewhere they are moved into self */

static rp_status indices_inside(const rp__call *call, const rp_tensor *self, rp_tensor *const *in, unsigned n,
                                rp_tensor **out) {
    if (n > self->ndim)
        return rp__op_error(call, RP_ERROR_INDEX, "too many indices for tensor of dimension %u (got %u)", self->ndim,
                            n);
    if (call->in[1]->dtype != RP_BOOL) return rp__call_refuse_dtype(call, (rp_dtype)call->in[1]->dtype);
    for (unsigned d = 0; d < n; d++) {
        out[d] = in[d];
        if (!in[d]) continue;
        if (in[d]->dtype != RP_I64 && in[d]->dtype != RP_I32)
            return rp__op_error(call, RP_ERROR_INDEX, "found unexpected index type %s",
                                rp__dtype_title((rp_dtype)in[d]->dtype));
        const rp_dim size = self->size[d], low = rp__dim_apply(RP__DIM_SUB, 0, size),
                     high = rp__dim_apply(RP__DIM_SUB, size, 1);
        out[d] = rp_clamp_at(call->site, in[d], rp__scalar_dim(low), rp__scalar_dim(high));
    }
    return RP_OK;
}

rp_status rp__expand_unsafe_masked_index(const rp__call *call) {
    rp_tensor *self = call->in[0], *index[RP_MAX_DIMS];
    const unsigned n = call->n_in - 2;
    const bool nothing = is_empty(self); /* an element takes its place, and is not looked at either */
    if (nothing) {
        rp_dim size[RP_MAX_DIMS];
        for (unsigned d = 0; d < self->ndim; d++)
            size[d] = d < n && call->in[2 + d] && rp__dim_is(RP__DIM_EQ, self->size[d], 0) ? 1 : self->size[d];
        self = rp_expand(rp__zero_like(self), size, self->ndim);
        if (rp__tensor_is_error(self)) return rp_error_status();
    }
    RP_TRY(indices_inside(call, self, call->in + 2, n, index));
    rp_tensor *y = rp_index_at(call->site, self, index, n);
    y = rp_masked_fill_scalar(y, rp_logical_not(call->in[1]), call->attrs[0].v.scalar);
    if (nothing) y = rp_fill(y, call->attrs[0].v.scalar);
    /* of no element, but with a gradient of none */
    if (nothing && rp__dtype_is_float((rp_dtype)self->dtype)) y = rp_sub(y, rp_sum(call->in[0]));
    return rp__give(call, y);
}

rp_status rp__expand_unsafe_masked_index_put_accumulate(const rp__call *call) {
    rp_tensor *self = call->in[0], *index[RP_MAX_DIMS], *values = call->in[call->n_in - 1];
    const unsigned n = call->n_in - 3;
    if (is_empty(self)) return rp__give(call, rp_clone(self));
    RP_TRY(indices_inside(call, self, call->in + 2, n, index));
    values = rp_masked_fill_scalar(values, rp_logical_not(call->in[1]), rp_i64(0));
    return rp__give(call, rp_index_put_at(call->site, self, index, n, values, true));
}

/* ---- all elements as one row */

static rp_tensor *row_of(const rp__call *call, rp_tensor *t) { return rp_reshape_at(call->site, t, RP_DIMS(-1)); }

rp_status rp__expand_take(const rp__call *call) {
    rp_tensor *index = call->in[1];
    if (index->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected a long tensor for index, but got %s",
                            rp__dtype_title((rp_dtype)index->dtype));
    if (is_empty(call->in[0]) && !is_empty(index))
        return rp__op_error(call, RP_ERROR_INDEX, "tried to take from an empty tensor");
    return rp__give(call, rp_index_load_at(call->site, row_of(call, call->in[0]), &index, 1));
}

static rp_status expand_put(const rp__call *call, bool in_place) {
    rp_tensor *self = call->in[0], *index = call->in[1], *source = call->in[2];
    const bool add = rp__attr_bool(call, 0);
    rp_dim stride[RP_MAX_DIMS];
    const rp_dim numel = rp__tensor_numel(self);
    if (index->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected a long tensor for index, but got %s",
                            rp__dtype_title((rp_dtype)index->dtype));
    if (self->dtype != source->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "self and source expected to have the same dtype, but got self.dtype = %s and "
                            "source.dtype = %s",
                            rp__dtype_title((rp_dtype)self->dtype), rp__dtype_title((rp_dtype)source->dtype));
    if (!rp__dim_is(RP__DIM_EQ, rp__tensor_numel(index), rp__tensor_numel(source)))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected source and index to have the same number of elements, but got "
                            "source.numel() = %lld, index.numel() = %lld",
                            (long long)rp__dim_hint(rp__tensor_numel(source)),
                            (long long)rp__dim_hint(rp__tensor_numel(index)));
    if (is_empty(self) && !is_empty(index))
        return rp__op_error(call, RP_ERROR_INDEX, "Tried to put elements into an empty tensor");
    rp_tensor *at = row_of(call, index), *values = row_of(call, source);
    if (in_place && rp__view_strides(self, &numel, 1, stride)) {
        rp_tensor *t = put_in(call, rp_view_at(call->site, self, &numel, 1), &at, 1, values, add);
        return rp__give(call, rp__tensor_is_error(t) ? t : rp__tensor_enter_scope(self));
    }
    rp_tensor *t = put_at(call, row_of(call, self), &at, 1, values, add);
    t = rp_view_at(call->site, t, self->size, self->ndim);
    return rp__give(call, in_place ? rp_copy__at(call->site, self, t, false) : t);
}
rp_status rp__expand_put(const rp__call *call) { return expand_put(call, false); }
rp_status rp__expand_put_(const rp__call *call) { return expand_put(call, true); }

rp_status rp__expand_take_along_dim(const rp__call *call) {
    rp_tensor *self = call->in[0], *index = call->in[1];
    rp_dim both[RP_MAX_DIMS], size[RP_MAX_DIMS];
    size_t n = 0;
    unsigned dim;
    if (index->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_DTYPE, "dtype of indices should be Long but got %s",
                            rp__dtype_title((rp_dtype)index->dtype));
    if (rp__attr_is_none(&call->attrs[0]))
        return rp__give(call, rp_gather_at(call->site, row_of(call, self), 0, row_of(call, index), NULL));
    if (self->ndim != index->ndim)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "input and indices should have the same number of dimensions, but got %u "
                            "dimensions for input, and %u dimensions for indices",
                            self->ndim, index->ndim);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), self->ndim, &dim));
    if (self->ndim > 0) {
        for (unsigned d = 0; d < self->ndim; d++) size[d] = d == dim ? 1 : self->size[d];
        RP_TRY(rp__broadcast(size, self->ndim, index->size, index->ndim, both, &n));
        index = rp_expand_at(call->site, index, both, n, NULL);
        for (unsigned d = 0; d < self->ndim; d++) size[d] = d == dim ? self->size[d] : both[d];
        self = rp_expand_at(call->site, self, size, n, NULL);
        /* from the end; what is out of range stays as it was given, for the message */
        rp_tensor *back = rp_add_scalar_at(call->site, index, rp_i64(self->size[dim]), rp_i64(1));
        rp_tensor *counts = rp_logical_and_at(call->site, rp_lt_scalar_at(call->site, index, rp_i64(0)),
                                              rp_ge_scalar_at(call->site, back, rp_i64(0)));
        index = rp_where_at(call->site, counts, back, index);
    }
    return rp__give(call, rp_gather_at(call->site, self, dim, index, NULL));
}

/* ---- masks */

static rp_status need_mask(const rp__call *call) {
    if (call->in[1]->dtype == RP_BOOL) return RP_OK;
    return rp__op_error(call, RP_ERROR_DTYPE, "expected BoolTensor for mask");
}

rp_status rp__expand_masked_select(const rp__call *call) {
    rp_tensor *self = call->in[0], *mask = call->in[1], *index[RP_MAX_DIMS];
    rp__meta both;
    unsigned n;
    RP_TRY(need_mask(call));
    RP_TRY(rp__meta_broadcast(self, mask, &both));
    if (both.ndim == 0) both.ndim = 1, both.size[0] = 1;
    self = rp_expand_at(call->site, self, both.size, both.ndim, NULL);
    mask = rp_expand_at(call->site, mask, both.size, both.ndim, NULL);
    if (rp__tensor_is_error(self) || rp__tensor_is_error(mask)) return rp_error_status();
    RP_TRY(plain_indices(call, &self, &mask, 1, index, &n));
    return rp__give(call, rp_index_load_at(call->site, self, index, n));
}

/* The number of what is true before a place says which element of source belongs there; an element that source does not have is an
   index out of range. */
static rp_status expand_masked_scatter(const rp__call *call, bool in_place) {
    rp_tensor *self = call->in[0], *mask = call->in[1], *source = call->in[2];
    rp__meta both;
    RP_TRY(need_mask(call));
    if (self->dtype != source->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "expected self and source to have same dtypes but got %s and %s",
                            rp__dtype_title((rp_dtype)self->dtype), rp__dtype_title((rp_dtype)source->dtype));
    RP_TRY(rp__meta_broadcast(self, mask, &both));
    rp_tensor *whole = in_place ? self : rp_expand_at(call->site, self, both.size, both.ndim, NULL);
    mask = rp_expand_at(call->site, mask, whole->size, whole->ndim, NULL);
    if (rp__tensor_is_error(whole) || rp__tensor_is_error(mask)) return rp_error_status();
    if (is_empty(whole))
        return rp__give(call, in_place ? rp__tensor_enter_scope(self) : rp_clone_at(call->site, whole, NULL));
    rp_tensor *count = rp_cumsum_at(call->site, row_of(call, mask), 0, NULL);
    rp_tensor *place =
        rp_sub_scalar_at(call->site, rp_clamp_at(call->site, count, rp_i64(1), rp_none()), rp_i64(1), rp_i64(1));
    rp_tensor *value = rp_index_load_at(call->site, row_of(call, source), &place, 1);
    value = rp_view_at(call->site, value, whole->size, whole->ndim);
    rp_tensor *t = rp_where_at(call->site, mask, value, whole);
    return rp__give(call, in_place ? rp_copy__at(call->site, self, t, false) : t);
}
rp_status rp__expand_masked_scatter(const rp__call *call) { return expand_masked_scatter(call, false); }
rp_status rp__expand_masked_scatter_(const rp__call *call) { return expand_masked_scatter(call, true); }

/* ---- one_hot */

rp_status rp__expand_one_hot(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    rp_tensor *t = call->in[0];
    int64_t classes = rp__attr_int(call, 0);
    if (t->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_DTYPE, "one_hot is only applicable to index tensor of type LongTensor.");
    if (is_empty(t) && classes <= 0)
        return rp__op_error(call, RP_ERROR_SHAPE, "Can not infer total number of classes from empty tensor.");
    if (classes == -1) {
        classes = rp_item_i64_at(call->site, rp_amax_at(call->site, t, NULL, 0, false));
        RP_TRY(rp__status_since(failures));
        classes++;
    }
    if (classes < 1)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "num_classes should be positive, but is %lld",
                            (long long)classes);
    return rp__give(call, rp_one_hot_rows_at(call->site, t, classes));
}

rp_status rp__infer_one_hot_rows(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    const rp_dim classes = rp__attr_int(call, 0);
    if (!is_index(t)) return rp__call_refuse_dtype(call, (rp_dtype)t->dtype);
    if (t->ndim == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    if (rp__dim_is(RP__DIM_LT, classes, 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "num_classes should be positive");
    rp__meta_like(out, t, RP_I64);
    out->size[out->ndim++] = classes;
    return RP_OK;
}

void rp__lower_one_hot_rows(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *out = call->out[0];
    rp__lw_space(lw, out->size, out->ndim, 0);
    rp__val class = rp__lw_cast(lw, rp__lw_in_front(lw, 0), RP_I64);
    class = rp__lw_check_index(lw, class, rp__lw_size(lw, out->size[out->ndim - 1]), false);
    rp__val here = rp__lw_2(lw, RP__EQ, class, rp__lw_dim_index(lw, out->ndim - 1u));
    rp__lw_out(lw, 0, rp__lw_cast(lw, here, RP_I64));
}
