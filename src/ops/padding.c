/* Padding by modes: dims that go on with what the operand has. One kernel for all dims reads each element at the place that its own is a
   copy of; the gradient adds up what became of each element, which a few places of the result may be. Long edges of one element are
   joined as views. Derivatives are in resample_grad.c. */
#include <string.h>

#include "ops/format.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

typedef enum pad_mode { PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR } pad_mode;

static rp_dim apply(rp__dim_op op, rp_dim a, rp_dim b) { return rp__dim_apply(op, a, b); }
static rp__val two(rp__lower *lw, rp__prim op, rp__val a, rp__val b) { return rp__lw_2(lw, op, a, b); }

/* Places before and behind along dim d of `ndim`; pairs are given from the last dim on, and none is negative. */
typedef struct pads {
    int64_t before, behind;
} pads;
static pads pads_of(const rp_attr *pad, unsigned ndim, unsigned d) {
    const size_t k = ndim - 1u - d;
    return k < pad->n / 2 ? (pads){pad->v.ints[2 * k], pad->v.ints[2 * k + 1]} : (pads){0, 0};
}
static bool is_padded(pads p) { return p.before > 0 || p.behind > 0; }

/* Results that an element of dim d may have become, of n elements. */
static int64_t copies_of(pad_mode mode, pads p, rp_dim n) {
    if (!is_padded(p)) return 1;
    if (mode != PAD_REPLICATE) return 3;
    return 1 + (rp__dim_is(RP__DIM_EQ, n, 1) ? p.before + p.behind : p.before > p.behind ? p.before : p.behind);
}

/* Attributes `first`: pad, and the mode behind it, of an operand of that size; size: of the result. */
static rp_status check_pads(const rp__call *call, unsigned first, const rp_dim *from, size_t ndim, rp_dim *size) {
    const rp_attr *pad = &call->attrs[first];
    const int64_t mode = rp__attr_int(call, first + 1);
    if (mode < PAD_REFLECT || mode > PAD_CIRCULAR || pad->n % 2 || pad->n / 2 > ndim)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%zu places of mode %lld do not pad %zu dims", pad->n,
                            (long long)mode, ndim);
    for (unsigned d = 0; d < ndim; d++) {
        const pads p = pads_of(pad, (unsigned)ndim, d);
        const rp_dim room = mode == PAD_REFLECT ? apply(RP__DIM_SUB, from[d], 1) : from[d];
        const int64_t most = p.before > p.behind ? p.before : p.behind;
        size[d] = from[d];
        if (!is_padded(p) && p.before == 0 && p.behind == 0) continue;
        if (p.before < 0 || p.behind < 0 || most > INT32_MAX || rp__dim_is(RP__DIM_LT, from[d], 1) ||
            (mode != PAD_REPLICATE && rp__dim_is(RP__DIM_LT, room, most)))
            return rp__op_error(call, RP_ERROR_SHAPE, "dim %u cannot be padded by %lld and %lld places", d,
                                (long long)p.before, (long long)p.behind);
        size[d] = apply(RP__DIM_ADD, from[d], p.before + p.behind);
    }
    return RP_OK;
}

rp_status rp__infer_pad_edges(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    rp__meta_like(out, t, (rp_dtype)t->dtype);
    return check_pads(call, 0, t->size, t->ndim, out->size);
}

/* The place along a dim of n elements that place i of the result is a copy of. */
static rp__val copied_from(rp__lower *lw, pad_mode mode, rp__val i, int64_t before, rp_dim n) {
    const rp__val zero = rp__lw_const_i(lw, RP_I64, 0), at = two(lw, RP__SUB, i, rp__lw_size(lw, before));
    if (mode == PAD_CIRCULAR) {
        const rp__val size = rp__lw_size(lw, n), below = two(lw, RP__ADD, at, size), above = two(lw, RP__SUB, at, size);
        return rp__lw_3(lw, RP__WHERE, two(lw, RP__LT, at, zero), below,
                        rp__lw_3(lw, RP__WHERE, two(lw, RP__LT, at, size), at, above));
    }
    const rp__val end = rp__lw_size(lw, apply(RP__DIM_SUB, n, 1));
    if (mode == PAD_REPLICATE) return two(lw, RP__MIN, two(lw, RP__MAX, at, zero), end);
    return two(lw, RP__SUB, end, rp__lw_1(lw, RP__ABS, two(lw, RP__SUB, end, rp__lw_1(lw, RP__ABS, at))));
}

void rp__lower_pad_edges(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    const pad_mode mode = (pad_mode)rp__attr_int(call, 1);
    rp_dim stride[RP_MAX_DIMS];
    rp__val offset = RP__NO_VAL;
    uint32_t padded = 0;
    for (unsigned d = 0; d < t->ndim; d++) padded |= (uint32_t)is_padded(pads_of(&call->attrs[0], t->ndim, d)) << d;
    (void)rp__lw_structural_value(lw, (int64_t)padded << 2 | mode);
    rp__lw_space(lw, call->out[0]->size, t->ndim, 0);
    for (unsigned d = 0; d < t->ndim; d++) {
        stride[d] = padded >> d & 1 ? 0 : t->stride[d];
        if (!(padded >> d & 1)) continue;
        const int64_t before = pads_of(&call->attrs[0], t->ndim, d).before;
        const rp__val at = copied_from(lw, mode, rp__lw_dim_index(lw, d), before, t->size[d]);
        const rp__val part = two(lw, RP__MUL, at, rp__lw_size(lw, t->stride[d]));
        offset = offset == RP__NO_VAL ? part : two(lw, RP__ADD, offset, part);
    }
    rp__lw_out(lw, 0, rp__lw_load(lw, rp__lw_access(lw, false, 0, stride, RP__ELEMENTS), offset, RP__NO_VAL));
}

/* ---- the gradient, in one kernel where an element became at most MOST results */

enum { MOST = 16 };

rp_status rp__infer_pad_edges_input(const rp__call *call, rp__meta *out) {
    const rp_attr *size = &call->attrs[0];
    const rp_tensor *grad = call->in[0];
    rp_dim padded[RP_MAX_DIMS];
    int64_t all = 1;
    RP_TRY(rp__call_need_float(call, (rp_dtype)grad->dtype));
    if (size->n != grad->ndim)
        return rp__op_error(call, RP_ERROR_SHAPE, "a gradient that does not belong to an input of that size");
    RP_TRY(check_pads(call, 1, size->v.ints, size->n, padded));
    for (unsigned d = 0; d < grad->ndim; d++) {
        if (!rp__dim_is(RP__DIM_EQ, padded[d], grad->size[d]))
            return rp__op_error(call, RP_ERROR_SHAPE, "a gradient that does not belong to an input of that size");
        const int64_t own =
            copies_of((pad_mode)rp__attr_int(call, 2), pads_of(&call->attrs[1], grad->ndim, d), size->v.ints[d]);
        if (own > MOST || (all *= own) > MOST)
            return rp__op_error(call, RP_ERROR_SHAPE, "an element became more than %d results", MOST);
    }
    rp__meta_like(out, grad, (rp_dtype)grad->dtype);
    memcpy(out->size, size->v.ints, size->n * sizeof *out->size);
    return RP_OK;
}

typedef struct copies {
    int64_t n;
    rp__val at[MOST], is[MOST]; /* RP__NO_VAL: always */
} copies;

/* What element i of n became. */
static copies copies_at(rp__lower *lw, pad_mode mode, rp__val i, pads p, rp_dim n) {
    copies c = {.n = copies_of(mode, p, n)};
    const rp__val before = rp__lw_size(lw, p.before), last = rp__lw_size(lw, apply(RP__DIM_SUB, n, 1));
    const rp__val one = rp__lw_const_i(lw, RP_I64, 1), zero = rp__lw_const_i(lw, RP_I64, 0);
    const rp__val own = two(lw, RP__ADD, i, before), behind = rp__lw_size(lw, p.behind);
    if (mode == PAD_REPLICATE) { /* a run of them, which the edges are longer ones of */
        const rp__val first = rp__lw_3(lw, RP__WHERE, two(lw, RP__EQ, i, zero), zero, own);
        const rp__val end = rp__lw_3(lw, RP__WHERE, two(lw, RP__EQ, i, last), two(lw, RP__ADD, own, behind), own);
        for (int64_t k = 0; k < c.n; k++) {
            c.at[k] = two(lw, RP__ADD, first, rp__lw_const_i(lw, RP_I64, k));
            c.is[k] = k == 0 ? RP__NO_VAL : two(lw, RP__LE, c.at[k], end);
        }
        return c;
    }
    const rp__val left = two(lw, RP__SUB, last, i); /* elements behind it */
    c.at[0] = own;
    c.is[0] = RP__NO_VAL;
    if (mode == PAD_REFLECT) {
        c.at[1] = two(lw, RP__SUB, before, i);
        c.is[1] = two(lw, RP__AND, two(lw, RP__LE, one, i), two(lw, RP__LE, i, before));
        c.at[2] = two(lw, RP__ADD, two(lw, RP__ADD, before, last), left);
        c.is[2] = two(lw, RP__AND, two(lw, RP__LE, one, left), two(lw, RP__LE, left, behind));
    } else {
        const rp__val size = rp__lw_size(lw, n);
        c.at[1] = two(lw, RP__SUB, own, size);
        c.is[1] = two(lw, RP__LT, left, before);
        c.at[2] = two(lw, RP__ADD, own, size);
        c.is[2] = two(lw, RP__LT, i, behind);
    }
    return c;
}

void rp__lower_pad_edges_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *grad = call->in[0], *out = call->out[0];
    const pad_mode mode = (pad_mode)rp__attr_int(call, 2);
    rp_dim stride[RP_MAX_DIMS];
    rp__val at[MOST] = {RP__NO_VAL}, is[MOST] = {RP__NO_VAL}, total = RP__NO_VAL;
    int64_t n = 1, key = mode;
    for (unsigned d = 0; d < out->ndim; d++) {
        const int64_t own = copies_of(mode, pads_of(&call->attrs[1], out->ndim, d), out->size[d]);
        if (own > 1) key = (key * RP_MAX_DIMS + d) * (MOST + 1) + own;
    }
    (void)rp__lw_structural_value(lw, key);
    rp__lw_space(lw, out->size, out->ndim, 0);
    for (unsigned d = 0; d < out->ndim; d++) {
        const pads p = pads_of(&call->attrs[1], out->ndim, d);
        stride[d] = is_padded(p) ? 0 : grad->stride[d];
        if (!is_padded(p)) continue;
        const copies c = copies_at(lw, mode, rp__lw_dim_index(lw, d), p, out->size[d]);
        const rp__val step = rp__lw_size(lw, grad->stride[d]);
        for (int64_t k = c.n * n; k-- > 0;) { /* from the last, whose places nothing else is made of any more */
            const int64_t before = k / c.n, own = k % c.n;
            const rp__val part = two(lw, RP__MUL, c.at[own], step), is_before = is[before];
            at[k] = at[before] == RP__NO_VAL ? part : two(lw, RP__ADD, at[before], part);
            is[k] = c.is[own] == RP__NO_VAL   ? is_before
                    : is_before == RP__NO_VAL ? c.is[own]
                                              : two(lw, RP__AND, is_before, c.is[own]);
        }
        n *= c.n;
    }
    const uint16_t access = rp__lw_access(lw, false, 0, stride, RP__ELEMENTS);
    for (int64_t k = 0; k < n; k++) {
        const rp__val x = rp__lw_load(lw, access, at[k], is[k]);
        total = k ? two(lw, RP__ADD, total, x) : x;
    }
    rp__lw_out(lw, 0, total);
}

/* Dims go together as long as one kernel has them, from the last one on. */
rp_tensor *rp__pad_edges_input(rp_tensor *grad, const rp_dim *size, const rp_attr *pad, int64_t mode) {
    const unsigned ndim = grad->ndim;
    for (size_t from = 0; from < pad->n / 2 && !rp__tensor_is_error(grad);) {
        int64_t some[2 * RP_MAX_DIMS] = {0}, all = 1;
        rp_dim less[RP_MAX_DIMS];
        memcpy(less, grad->size, ndim * sizeof *less);
        for (size_t first = from; from < pad->n / 2; from++) {
            const unsigned d = ndim - 1u - (unsigned)from;
            const int64_t own = copies_of((pad_mode)mode, pads_of(pad, ndim, d), size[d]);
            if (from > first && all * own > MOST) break;
            all *= own;
            some[2 * from] = pad->v.ints[2 * from];
            some[2 * from + 1] = pad->v.ints[2 * from + 1];
            less[d] = size[d];
        }
        grad = rp_pad_edges_input(grad, less, ndim, some, pad->n, mode);
    }
    return grad;
}

/* ---- pad */

static rp_tensor *part(rp_tensor *x, unsigned d, rp_dim from, rp_dim to) { return rp_slice(x, d, from, to); }

/* Dim d without what negative pads cut off, which is cut off first; if nothing is left, what pads is the edge beyond. What a mirror shows may
   be cut off as well: then both pads remain, and the cut is for those that come behind. */
static rp_tensor *cut(rp_tensor *x, unsigned d, pad_mode mode, pads *p) {
    const rp_dim n = x->size[d];
    const pads own = *p, some = {own.before > 0 ? own.before : 0, own.behind > 0 ? own.behind : 0};
    if (own.before >= 0 && own.behind >= 0) return x;
    const rp_dim left = apply(RP__DIM_ADD, n, (own.before < 0 ? own.before : 0) + (own.behind < 0 ? own.behind : 0));
    if (mode == PAD_REFLECT && is_padded(some)) return x;
    *p = some;
    if (mode == PAD_REPLICATE && is_padded(some) && rp__dim_is(RP__DIM_LT, left, 1)) {
        rp_dim all[RP_MAX_DIMS];
        memcpy(all, x->size, x->ndim * sizeof *all);
        all[d] = apply(RP__DIM_ADD, n, own.before + own.behind);
        const rp_dim edge = own.before > 0 ? 0 : apply(RP__DIM_SUB, n, 1);
        *p = (pads){0, 0};
        return rp_expand(part(x, d, edge, apply(RP__DIM_ADD, edge, 1)), all, x->ndim);
    }
    return part(x, d, own.before < 0 ? -own.before : 0, own.behind < 0 ? apply(RP__DIM_ADD, n, own.behind) : n);
}

/* Edges of more than MOST - 1 copies, each a view. */
static rp_tensor *joined_edges(rp_tensor *x, unsigned d, pads p) {
    rp_tensor *parts[3];
    rp_dim size[RP_MAX_DIMS];
    unsigned k = 0;
    memcpy(size, x->size, x->ndim * sizeof *size);
    const rp_dim n = x->size[d];
    size[d] = p.before;
    if (p.before > 0) parts[k++] = rp_expand(part(x, d, 0, 1), size, x->ndim);
    parts[k++] = x;
    size[d] = p.behind;
    if (p.behind > 0) parts[k++] = rp_expand(part(x, d, apply(RP__DIM_SUB, n, 1), n), size, x->ndim);
    return rp_cat(parts, k, d);
}

rp_status rp__expand_pad(const rp__call *call) {
    rp_tensor *x = call->in[0], *y = x;
    const rp_attr *pad = &call->attrs[0];
    const char *name = call->attrs[1].v.string;
    const bool valued = !rp__attr_is_none(&call->attrs[2]);
    char text[RP__SHAPE_TEXT];
    int64_t edges[6];
    pads bounds[RP_MAX_DIMS] = {{0, 0}}; /* cut off in the end */
    bool padded = false;
    if (strcmp(name, "constant") == 0)
        return rp__give(call, rp_constant_pad_nd_at(call->site, x, pad->v.ints, pad->n,
                                                    valued ? call->attrs[2].v.scalar : rp_i64(0)));
    const pad_mode mode = strcmp(name, "reflect") == 0     ? PAD_REFLECT
                          : strcmp(name, "replicate") == 0 ? PAD_REPLICATE
                                                           : PAD_CIRCULAR;
    if (mode == PAD_CIRCULAR && strcmp(name, "circular") != 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Unrecognised padding mode %s", name);
    if (valued)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Padding mode \"%s\" doesn't take in value argument",
                            name);
    if (x->dtype == RP_BOOL && mode != PAD_CIRCULAR) return rp__call_refuse_dtype(call, RP_BOOL);
    const size_t pairs = pad->n / 2;
    if (pad->n % 2 || pairs < 1 || pairs > 3 || (x->ndim != pairs + 1 && x->ndim != pairs + 2))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Padding size %zu is not supported for %uD input tensor.",
                            pad->n, x->ndim);
    for (unsigned d = x->ndim == pairs + 2 ? 1 : 0; d < x->ndim; d++) {
        if (rp__dim_is(RP__DIM_EQ, x->size[d], 0))
            return rp__op_error(call, RP_ERROR_SHAPE, "a tensor without elements cannot be padded by what it has: %s",
                                rp__shape_text(x->size, x->ndim, text));
    }
    for (size_t k = 0; k < pairs; k++) {
        const unsigned d = x->ndim - 1u - (unsigned)k;
        const int64_t sides[2] = {rp__dim_value(pad->v.ints[2 * k]), rp__dim_value(pad->v.ints[2 * k + 1])};
        for (unsigned side = 0; side < 2; side++) {
            const int64_t p = sides[side];
            if (p > RP__REACH_LIMIT || p < -RP__REACH_LIMIT)
                return rp__op_error(call, RP_ERROR_SHAPE, "no dimension can be padded by %lld", (long long)p);
            const rp_dim room = mode == PAD_REFLECT ? apply(RP__DIM_SUB, x->size[d], 1) : x->size[d];
            if (p <= 0 || mode == PAD_REPLICATE || !rp__dim_is(RP__DIM_LT, room, p)) continue;
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                mode == PAD_REFLECT
                    ? "Padding size should be less than the corresponding input dimension, but got: padding %lld at "
                      "dimension %u of input %s"
                    : "Padding value causes wrapping around more than once: %lld at dimension %u of %s",
                (long long)p, d, rp__shape_text(x->size, x->ndim, text));
        }
        if (rp__dim_is(RP__DIM_LT, apply(RP__DIM_ADD, x->size[d], sides[0] + sides[1]), mode == PAD_CIRCULAR ? 0 : 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "padding by %lld and %lld leaves nothing of dimension %u of %s",
                                (long long)sides[0], (long long)sides[1], d, rp__shape_text(x->size, x->ndim, text));
        pads own = {sides[0], sides[1]};
        y = cut(y, d, mode, &own);
        if (rp__tensor_is_error(y)) return rp_error_status();
        if (own.before < 0 || own.behind < 0) {
            bounds[d] = (pads){own.before < 0 ? -own.before : 0, own.behind < 0 ? -own.behind : 0};
            own = (pads){own.before > 0 ? own.before : 0, own.behind > 0 ? own.behind : 0};
        }
        if (copies_of(mode, own, y->size[d]) > MOST) {
            y = joined_edges(y, d, own);
            own = (pads){0, 0};
        }
        if (rp__tensor_is_error(y)) return rp_error_status();
        edges[2 * k] = own.before;
        edges[2 * k + 1] = own.behind;
        padded = padded || is_padded(own);
    }
    if (padded) y = rp_pad_edges_at(call->site, y, edges, 2 * pairs, mode);
    for (unsigned d = 0; d < x->ndim && !rp__tensor_is_error(y); d++)
        if (is_padded(bounds[d])) y = part(y, d, bounds[d].before, apply(RP__DIM_SUB, y->size[d], bounds[d].behind));
    return rp__give(call, y == x ? rp_clone_at(call->site, x, NULL) : y);
}
