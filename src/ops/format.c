/* How results lie in memory: which order of dims a result has follows from the strides of the operands, as in PyTorch. Pointwise ops
   have that of TensorIterator; a row of another family says so (.format), or its results are row-major. */
#include <string.h>

#include "ops/format.h"

#include "ops/private.h"

#include "ops/rules.h"

/* Sizes that are symbols are asked as little as can be: an order holds for all of them, also where one is 1 and eager execution finds
   another, which differs in strides that nothing uses. */
static bool is_one(rp_dim d) { return rp__dim_same_word(d, 1); }
static bool is_zero(rp_dim d) { return rp__dim_same_word(d, 0); }

static rp__dim_order with(rp__dim_order o, unsigned k, unsigned d) { return o | (rp__dim_order)d << 4 * k; }
static unsigned dim_at(rp__dim_order o, unsigned k) { return (unsigned)(o >> 4 * k & 15); }

void rp__order_strides(const rp_dim *size, unsigned ndim, rp__dim_order order, rp_dim *stride) {
    if (RP__LIKELY(order == RP__ROW_MAJOR)) {
        rp__contiguous_strides(size, ndim, stride);
        return;
    }
    rp_dim run = 1;
    for (unsigned k = 0; k < ndim; k++) {
        const unsigned d = dim_at(order, k);
        stride[d] = run;
        if (!rp__dim_same_word(size[d], 0)) run = rp__dim_apply(RP__DIM_MUL, run, size[d]);
    }
}

rp_tensor *rp__tensor_of_meta(rp__device *d, const rp__meta *meta) {
    rp_tensor *t = rp__tensor_empty(d, meta->dtype, meta->size, meta->ndim);
    if (RP__UNLIKELY(meta->order != RP__ROW_MAJOR) && !rp__tensor_is_error(t))
        rp__order_strides(t->size, t->ndim, meta->order, t->stride);
    return t;
}

/* Words alone: no question is asked. */
static bool is_row_major(const rp_tensor *t) {
    rp_dim stride[RP_MAX_DIMS];
    rp__contiguous_strides(t->size, t->ndim, stride);
    return memcmp(stride, t->stride, t->ndim * sizeof *stride) == 0;
}

/* The order of a format; channels_last of images, channels_last_3d of volumes. */
static rp__dim_order format_order(int64_t format) {
    static const unsigned images[] = {1, 3, 2, 0}, volumes[] = {1, 4, 3, 2, 0};
    rp__dim_order o = RP__ROW_MAJOR;
    if (format == RP_CHANNELS_LAST)
        for (unsigned k = 0; k < 4; k++) o = with(o, k, images[k]);
    if (format == RP_CHANNELS_LAST_3D)
        for (unsigned k = 0; k < 5; k++) o = with(o, k, volumes[k]);
    return o;
}

/* Is every element where it is in this order, those dims aside that have one element? */
static bool lies_in(const rp_tensor *t, rp__dim_order order) {
    rp_dim expected = 1;
    for (unsigned k = 0; k < t->ndim; k++) {
        const unsigned d = order == RP__ROW_MAJOR ? t->ndim - 1u - k : dim_at(order, k);
        if (is_one(t->size[d])) continue;
        if (!rp__dim_same_word(t->stride[d], expected)) return false;
        expected = rp__dim_apply(RP__DIM_MUL, expected, t->size[d]);
    }
    return true;
}

bool rp__tensor_has_format(const rp_tensor *t, int64_t format) {
    if (format == RP_CHANNELS_LAST || format == RP_CHANNELS_LAST_3D) {
        for (unsigned d = 0; d < t->ndim; d++)
            if (is_zero(t->size[d])) return t->ndim == (format == RP_CHANNELS_LAST ? 4 : 5);
        return t->ndim == (format == RP_CHANNELS_LAST ? 4 : 5) && lies_in(t, format_order(format));
    }
    return rp__tensor_contiguous(t);
}

/* The format that strides suggest (suggest_memory_format): row-major where they say both. */
static rp__dim_order suggested(const rp_tensor *t) {
    if ((t->ndim != 4 && t->ndim != 5) || is_row_major(t) || is_zero(t->stride[1])) return RP__ROW_MAJOR;
    const rp__dim_order order = format_order(t->ndim == 4 ? RP_CHANNELS_LAST : RP_CHANNELS_LAST_3D);
    rp_dim least = 0;
    for (unsigned k = 0; k < t->ndim; k++) {
        const unsigned d = dim_at(order, k);
        if (is_zero(t->size[d]) || rp__dim_before(t->stride[d], least)) return RP__ROW_MAJOR;
        if (d == 0 && rp__dim_same_word(least, t->stride[1])) return RP__ROW_MAJOR;
        least = t->stride[d];
        if (!is_one(t->size[d])) least = rp__dim_apply(RP__DIM_MUL, least, t->size[d]);
    }
    return order;
}

bool rp__channels_last(const rp_tensor *t) { return suggested(t) != RP__ROW_MAJOR; }

rp_tensor *rp__row_major_copy(rp_tensor *t) {
    return rp_clone(t, RP_OPTIONS(rp_clone_options, .memory_format = RP_CONTIGUOUS_FORMAT));
}
rp_tensor *rp__row_major(rp_tensor *t) { return rp__tensor_contiguous(t) ? t : rp__row_major_copy(t); }

rp_status rp__expand_contiguous(const rp__call *call) {
    rp_tensor *t = call->in[0];
    int64_t format = call->attrs[0].v.i;
    if (rp__attr_is_none(&call->attrs[0])) format = RP_CONTIGUOUS_FORMAT;
    if (format == RP_PRESERVE_FORMAT)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "preserve memory format is unsupported by the contiguous operator");
    call->out[0] =
        rp__tensor_has_format(t, format)
            ? rp__tensor_enter_scope(t)
            : rp_clone_at(call->site, t, RP_OPTIONS(rp_clone_options, .memory_format = (rp_memory_format)format));
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

bool rp_is_contiguous_format_at(const char *site, const rp_tensor *t, rp_memory_format format) {
    RP__CALLED_FROM(site);
    if (rp__tensor_check(t, "the tensor to ask") != RP_OK) return false;
    if (format != RP_CONTIGUOUS_FORMAT && format != RP_CHANNELS_LAST && format != RP_CHANNELS_LAST_3D) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "is_contiguous: no format to ask for: %d", (int)format);
        return false;
    }
    return rp__tensor_has_format(t, format);
}

/* ---- TensorIterator */

/* Operand t along dim d of a result to whose sizes it broadcasts. */
static rp_dim stride_along(const rp_tensor *t, const rp__meta *out, unsigned d) {
    const int own = (int)d - (int)(out->ndim - t->ndim);
    if (own < 0 || (is_one(t->size[own]) && !is_one(out->size[d]))) return 0;
    return t->stride[own];
}

/* Should dim a, which lies inside of b, lie outside? The first operand that tells decides: > 0 yes, < 0 no, 0 none does. */
static int compare(const rp__call *call, const rp__meta *out, unsigned a, unsigned b) {
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (!t || t->ndim == 0) continue;
        const rp_dim i = stride_along(t, out, a), j = stride_along(t, out, b);
        if (is_zero(i) || is_zero(j)) continue;
        if (rp__dim_before(i, j)) return -1;
        if (rp__dim_before(j, i)) return 1;
        if (rp__dim_before(out->size[b], out->size[a])) return 1;
    }
    return 0;
}

static bool same_size(const rp_tensor *t, const rp__meta *out) {
    bool same = t->ndim == out->ndim;
    for (unsigned d = 0; same && d < t->ndim; d++) same = rp__dim_same_word(t->size[d], out->size[d]);
    return same;
}

static rp__dim_order iterated(const rp__call *call, const rp__meta *out) {
    bool plain = true, alike = call->op->scalar_operand == 0;
    for (uint32_t k = 0; k < call->n_in; k++) plain = plain && (!call->in[k] || is_row_major(call->in[k]));
    if (RP__LIKELY(plain) || out->ndim < 2) return RP__ROW_MAJOR;
    bool row_major = true, channels_last = true;
    for (uint32_t k = 0; k < call->n_in && alike; k++) {
        const rp_tensor *t = call->in[k];
        if (!t) continue;
        alike = same_size(t, out);
        row_major = alike && row_major && lies_in(t, RP__ROW_MAJOR);
        channels_last = alike && channels_last && rp__tensor_has_format(t, RP_CHANNELS_LAST);
    }
    if (alike && row_major) return RP__ROW_MAJOR;
    if (alike && channels_last) return format_order(RP_CHANNELS_LAST);
    unsigned order[RP_MAX_DIMS];
    for (unsigned k = 0; k < out->ndim; k++) order[k] = out->ndim - 1u - k;
    for (unsigned i = 1; i < out->ndim; i++) { /* insertion, as undecided comparisons are passed over */
        unsigned at = i;
        for (unsigned k = i; k-- > 0;) {
            const int c = compare(call, out, order[k], order[at]);
            if (c < 0) break;
            if (c == 0) continue;
            const unsigned d = order[k];
            order[k] = order[at];
            order[at] = d;
            at = k;
        }
    }
    rp__dim_order o = RP__ROW_MAJOR;
    bool falling = true;
    for (unsigned k = 0; k < out->ndim; k++) {
        falling = falling && order[k] == out->ndim - 1u - k;
        o = with(o, k, order[k]);
    }
    return falling ? RP__ROW_MAJOR : o;
}

rp__dim_order rp__strides_order(const rp_dim *size, const rp_dim *stride, unsigned ndim) {
    uint32_t left = (1u << ndim) - 1u;
    rp_dim run = 1;
    rp__dim_order order = RP__ROW_MAJOR;
    bool falling = true;
    for (unsigned k = 0; k < ndim; k++) {
        int found = -1;
        for (unsigned d = ndim; d-- > 0;) {
            if (!(left >> d & 1u) || !rp__dim_same_word(stride[d], run)) continue;
            const bool one = is_one(size[d]);
            if (one || found < 0) found = (int)d;
            if (one) break;
        }
        if (found < 0) return RP__ROW_MAJOR;
        left &= ~(1u << found);
        falling = falling && (unsigned)found == ndim - 1u - k;
        order = with(order, k, (unsigned)found);
        run = rp__dim_apply(RP__DIM_MUL, run, size[found]);
    }
    return falling ? RP__ROW_MAJOR : order;
}

/* ---- the rule */

/* The memory format that the call asks for; INT64_MIN: none. */
static int64_t asked(const rp__call *call) {
    const rp__schema *s = &call->op->schema;
    for (unsigned i = 0, at = 0; s->typed && i < s->n_params; i++) {
        if (s->params[i].kind != RP__PARAM_ATTR) continue;
        if (s->params[i].type == RP__TYPE_MEMORY_FORMAT && at < call->n_attrs && !rp__attr_is_none(&call->attrs[at]) &&
            call->attrs[at].v.i != RP_PRESERVE_FORMAT)
            return call->attrs[at].v.i;
        at++;
    }
    return INT64_MIN;
}

/* What operand t suggests for a result, which may have fewer dims than a weight: of one image without a batch the channels lie innermost,
   as in PyTorch, whose volumes without a batch are row-major. */
static rp__dim_order suggested_for(const rp_tensor *t, const rp__meta *out) {
    const rp__dim_order order = suggested(t);
    if (order == RP__ROW_MAJOR || t->ndim == out->ndim) return order;
    return t->ndim == 4 && out->ndim == 3 ? with(with(with(RP__ROW_MAJOR, 0, 0), 1, 2), 2, 1) : RP__ROW_MAJOR;
}

static rp_status order_of(const rp__call *call, const rp__meta *out, rp__dim_order *order) {
    const int64_t format = asked(call);
    *order = RP__ROW_MAJOR;
    if (RP__UNLIKELY(format != INT64_MIN)) {
        const unsigned rank = format == RP_CHANNELS_LAST ? 4 : format == RP_CHANNELS_LAST_3D ? 5 : out->ndim;
        if (format < RP_CONTIGUOUS_FORMAT || format > RP_CHANNELS_LAST_3D)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "memory_format: no such format: %lld",
                                (long long)format);
        if (out->ndim != rank)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "required rank %u tensor to use channels_last%s format", rank, rank == 5 ? "_3d" : "");
        *order = format_order(format);
        return RP_OK;
    }
    const bool pointwise = call->op->lowering == RP__POINTWISE;
    switch ((rp__format)call->op->format) {
    case RP__FORMAT_FAMILY:
        if (pointwise && call->n_in > 0) *order = iterated(call, out);
        break;
    case RP__FORMAT_LIKE: {
        rp__call first = *call;
        first.n_in = 1;
        if (is_row_major(call->in[0])) break;
        *order = rp__strides_order(call->in[0]->size, call->in[0]->stride, call->in[0]->ndim);
        if (*order == RP__ROW_MAJOR) *order = iterated(&first, out);
        break;
    }
    case RP__FORMAT_FIRST:
        if (call->in[0]->ndim == out->ndim) *order = suggested(call->in[0]);
        break;
    case RP__FORMAT_ANY:
        for (uint32_t k = 0; k < 2 && *order == RP__ROW_MAJOR; k++) *order = suggested_for(call->in[k], out);
        break;
    case RP__FORMAT_ALL:
        for (uint32_t k = 0; k < call->n_in; k++) {
            const rp__dim_order one = call->in[k]->ndim == out->ndim ? suggested(call->in[k]) : RP__ROW_MAJOR;
            if (k > 0 && one != *order) {
                *order = RP__ROW_MAJOR;
                break;
            }
            *order = one;
        }
        break;
    }
    return RP_OK;
}

rp_status rp__call_format(const rp__call *call, rp__meta *out) {
    for (uint32_t k = 0; k < call->n_out; k++) {
        if (call->op->schema.out_written[k]) continue;
        RP_TRY(order_of(call, &out[k], &out[k].order));
        /* Of several results those of the first one's rank have its order. */
        if (out[k].ndim != out[0].ndim) out[k].order = RP__ROW_MAJOR;
    }
    return RP_OK;
}
