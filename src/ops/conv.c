/* Convolutions of 1 to 3 spatial dims, and their gradients: geometry checks with PyTorch's messages, then library ops. An input
   without batch dim is a batch of one. Transposed convolutions are gradients with respect to the input, called by themselves. */
#include <stdio.h>
#include <string.h>

#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/library_ops.h"
#include "ops/norm.h"
#include "ops/private.h"
#include "ops/product.h"
#include "ops/rules.h"

enum { MOST = 3 };

/* A value a dim from an int[] of one or as many. */
static rp_status each_dim(const rp__call *call, unsigned attr, const char *name, unsigned spatial, int64_t *out) {
    const rp_attr *a = &call->attrs[attr];
    char text[RP__SHAPE_TEXT];
    if (a->n != 1 && a->n != spatial)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "expected %s to be a single integer value or a list of %u values to match the convolution dimensions, but "
            "got %s=%s",
            name, spatial, name, a->n <= RP_MAX_DIMS ? rp__shape_text(a->v.ints, a->n, text) : "a longer list");
    /* Of a size of the trace its value: it is part of the kernel's choice. */
    for (unsigned d = 0; d < spatial; d++) out[d] = rp__dim_value(a->v.ints[a->n == 1 ? 0 : d]);
    return RP_OK;
}

/* Attributes stride, padding, dilation, groups from `first` on, of that many spatial dims. */
static rp_status geometry(const rp__call *call, unsigned first, unsigned spatial, rp__conv_geometry *g) {
    char text[RP__SHAPE_TEXT];
    memset(g, 0, sizeof *g);
    g->spatial = (uint8_t)spatial;
    RP_TRY(each_dim(call, first, "stride", spatial, g->stride));
    RP_TRY(each_dim(call, first + 1, "padding", spatial, g->padding));
    RP_TRY(each_dim(call, first + 2, "dilation", spatial, g->dilation));
    g->groups = rp__dim_value(rp__attr_int(call, first + 3));
    for (unsigned d = 0; d < spatial; d++) {
        if (g->padding[d] < 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "negative padding is not supported");
        if (g->stride[d] <= 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "non-positive stride is not supported");
        if (g->stride[d] > INT32_MAX || g->padding[d] > INT32_MAX || g->dilation[d] > INT32_MAX)
            return rp__op_error(call, RP_ERROR_SHAPE, "stride, padding and dilation are at most %d", INT32_MAX);
        if (g->dilation[d] <= 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "dilation should be greater than zero, but got %s",
                                rp__shape_text(g->dilation, spatial, text));
    }
    if (g->groups <= 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "non-positive groups is not supported");
    return RP_OK;
}

/* Spatial dims of conv1d, conv2d, conv3d and what is made of them: those of their int[] of strides. */
static unsigned spatial_of(const rp__call *call) { return call->op->schema.params[3].fixed; }
/* Of their gradients: those of the weight. */
static rp_status spatial_of_weight(const rp__call *call, size_t weight_dims, unsigned *spatial) {
    *spatial = (unsigned)weight_dims - 2;
    if (weight_dims >= 3 && weight_dims <= MOST + 2) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE, "a weight has 3 to %d dimensions, not %zu", MOST + 2, weight_dims);
}

/* a + b c for a message; what does not fit is the largest number. */
static long long sum_text(int64_t a, int64_t b, int64_t c) {
    int64_t product, sum;
    return __builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum) ? INT64_MAX : sum;
}

static rp_dim apply(rp__dim_op op, rp_dim a, rp_dim b) { return rp__dim_apply(op, a, b); }

/* Output size along one spatial dim. */
static rp_dim output_size(rp_dim in, rp_dim kernel, const rp__conv_geometry *g, unsigned d) {
    rp_dim padded = apply(RP__DIM_ADD, in, apply(RP__DIM_MUL, g->padding[d], 2));
    rp_dim reach = apply(RP__DIM_ADD, apply(RP__DIM_MUL, apply(RP__DIM_SUB, kernel, 1), g->dilation[d]), 1);
    return apply(RP__DIM_ADD, apply(RP__DIM_FLOORDIV, apply(RP__DIM_SUB, padded, reach), g->stride[d]), 1);
}

/* "2 x 3" */
static const char *sizes_text(const long long *size, unsigned n, char *text, size_t bytes) {
    size_t at = 0;
    for (unsigned d = 0; d < n && at < bytes; d++) {
        const int more = snprintf(text + at, bytes - at, "%s%lld", d ? " x " : "", size[d]);
        at += more > 0 ? (size_t)more : 0;
    }
    return text;
}

/* Channels and groups of a weight with w[0] rows; c: the number of channels of an input of size in. */
static rp_status conv_channels(const rp__call *call, const rp__conv_geometry *g, const rp_dim *in, size_t n, rp_dim c,
                               const rp_dim *w, size_t wn, rp_dim channels) {
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    if (rp__dim_is(RP__DIM_LT, w[0], g->groups))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Given groups=%lld, expected weight to be at least %lld at dimension 0, but got weight of size %s instead",
            (long long)g->groups, (long long)g->groups, rp__shape_text(w, wn, a));
    if (!rp__dim_is(RP__DIM_EQ, apply(RP__DIM_MOD, w[0], g->groups), 0))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Given groups=%lld, expected weight to be divisible by %lld at dimension 0, but got weight of size %s instead",
            (long long)g->groups, (long long)g->groups, rp__shape_text(w, wn, a));
    if (rp__dim_is(RP__DIM_EQ, c, channels)) return RP_OK;
    return rp__op_error(
        call, RP_ERROR_SHAPE,
        "Given groups=%lld, weight of size %s, expected input %s to have %lld channels, but got %lld channels instead",
        (long long)g->groups, rp__shape_text(w, wn, a), rp__shape_text(in, n, b), (long long)rp__dim_hint(channels),
        (long long)rp__dim_hint(c));
}

/* An input (N, C, places), or (C, places), and a weight (O, C / groups, window). */
static rp_status conv_ranks(const rp__call *call, const rp__conv_geometry *g, const rp_dim *in, size_t n,
                            const rp_dim *w, size_t wn) {
    const unsigned s = g->spatial;
    char text[RP__SHAPE_TEXT], kernel[96];
    long long hint[MOST];
    if (wn != s + 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected %u-dimensional weight for %u-dimensional convolution, but got weight of size %s",
                            s + 2, s, rp__shape_text(w, wn, text));
    if (n != s + 1 && n != s + 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected %uD (unbatched) or %uD (batched) input to %s, but got input of size: %s", s + 1,
                            s + 2, call->op->name, rp__shape_text(in, n, text));
    bool positive = true;
    for (unsigned d = 0; d < s; d++) {
        positive = positive && !rp__dim_is(RP__DIM_LT, w[2 + d], 1);
        hint[d] = (long long)rp__dim_hint(w[2 + d]);
    }
    if (positive) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE, "kernel size should be greater than zero, but got kernel size: (%s)",
                        sizes_text(hint, s, kernel, sizeof kernel));
}

/* What the ops have in common: sizes of an input and a weight, and the output's size from them. */
static rp_status conv_size(const rp__call *call, const rp__conv_geometry *g, const rp_dim *in, size_t n,
                           const rp_dim *w, size_t wn, rp_dim *out) {
    const unsigned s = g->spatial;
    char a[96], b[96];
    RP_TRY(conv_ranks(call, g, in, n, w, wn));
    const rp_dim *places = in + (n - s);
    RP_TRY(conv_channels(call, g, in, n, places[-1], w, wn, apply(RP__DIM_MUL, w[1], g->groups)));
    if (n == s + 2u) out[0] = in[0];
    out += n - s;
    out[-1] = w[0];
    bool fits = true;
    long long padded[MOST], kernel[MOST];
    for (unsigned d = 0; d < s; d++) {
        out[d] = output_size(places[d], w[2 + d], g, d);
        fits = fits && !rp__dim_is(RP__DIM_LT, out[d], 1);
        padded[d] = sum_text(rp__dim_hint(places[d]), 2, g->padding[d]);
        kernel[d] = sum_text(1, rp__dim_hint(w[2 + d]) - 1, g->dilation[d]);
    }
    if (fits) return RP_OK;
    return rp__op_error(
        call, RP_ERROR_SHAPE,
        "Calculated padded input size per channel: (%s). Kernel size: (%s). Kernel size can't be greater "
        "than actual input size",
        sizes_text(padded, s, a, sizeof a), sizes_text(kernel, s, b, sizeof b));
}

static bool is_empty(const rp_tensor *t) { return rp__dim_is(RP__DIM_EQ, t->size[0], 0); }

/* Integers on a CPU alone, as in PyTorch, which for those of less than 64 bits has neither dilation nor transposes; it looks at the type
   when there are elements. */
static rp_status same_type(const rp__call *call, const rp_tensor *a, const rp_tensor *b, const char *what) {
    if (a->dtype != b->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "Input type (%s) and %s type (%s) should be the same",
                            rp_dtype_name((rp_dtype)a->dtype), what, rp_dtype_name((rp_dtype)b->dtype));
    if (a->device.type != RP_DEVICE_CPU) return rp__call_need_float(call, (rp_dtype)a->dtype);
    return is_empty(a) ? RP_OK : rp__call_need_number(call, (rp_dtype)a->dtype);
}

static rp_status need_wide(const rp__call *call, const rp_tensor *x) {
    return x->dtype == RP_I64 || is_empty(x) ? RP_OK : rp__call_need_float(call, (rp_dtype)x->dtype);
}

static rp_status check_bias(const rp__call *call, const rp_tensor *bias, rp_dim channels) {
    const rp_tensor *x = call->in[0], *w = call->in[1];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    if (!bias) return RP_OK;
    RP_TRY(same_type(call, x, bias, "bias"));
    if (bias->ndim == 1 && rp__dim_is(RP__DIM_EQ, bias->size[0], channels)) return RP_OK;
    return rp__op_error(
        call, RP_ERROR_SHAPE,
        "Given weight of size %s, expected bias to be 1-dimensional with %lld elements, but got bias of size %s "
        "instead",
        rp__shape_text(w->size, w->ndim, a), (long long)rp__dim_hint(channels),
        rp__shape_text(bias->size, bias->ndim, b));
}

rp_status rp__infer_conv2d(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[0], *w = call->in[1];
    rp__conv_geometry g;
    RP_TRY(geometry(call, 0, spatial_of(call), &g));
    RP_TRY(conv_size(call, &g, x->size, x->ndim, w->size, w->ndim, out->size));
    RP_TRY(same_type(call, x, w, "weight"));
    RP_TRY(check_bias(call, call->in[2], w->size[0]));
    for (unsigned d = 0; d < g.spatial; d++)
        if (g.dilation[d] != 1) RP_TRY(need_wide(call, x));
    out->dtype = (rp_dtype)x->dtype;
    out->ndim = x->ndim;
    return RP_OK;
}

/* The gradient that comes in must have the size that the forward op gives. */
static rp_status check_grad(const rp__call *call, const rp__conv_geometry *g, const rp_dim *in, size_t n,
                            const rp_dim *w, size_t wn) {
    const rp_tensor *grad = call->in[0];
    rp_dim size[RP_MAX_DIMS];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    RP_TRY(conv_size(call, g, in, n, w, wn, size));
    bool same = grad->ndim == n;
    for (size_t d = 0; same && d < n; d++) same = rp__dim_is(RP__DIM_EQ, grad->size[d], size[d]);
    if (same) return same_type(call, grad, call->in[1], "second operand");
    return rp__op_error(call, RP_ERROR_SHAPE, "Expected grad of size %s, but got %s", rp__shape_text(size, n, a),
                        rp__shape_text(grad->size, grad->ndim, b));
}

static rp_status sizes_attr(const rp__call *call, rp__meta *out) {
    const rp_attr *a = &call->attrs[0];
    if (a->n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    out->dtype = (rp_dtype)call->in[0]->dtype;
    out->ndim = (uint8_t)a->n;
    for (size_t d = 0; d < a->n; d++) out->size[d] = a->v.ints[d];
    return RP_OK;
}

rp_status rp__infer_conv_input(const rp__call *call, rp__meta *out) {
    const rp_tensor *w = call->in[1];
    rp__conv_geometry g;
    unsigned spatial;
    RP_TRY(spatial_of_weight(call, w->ndim, &spatial));
    RP_TRY(geometry(call, 1, spatial, &g));
    RP_TRY(sizes_attr(call, out));
    return check_grad(call, &g, out->size, out->ndim, w->size, w->ndim);
}

rp_status rp__infer_conv_weight(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[1];
    rp__conv_geometry g;
    unsigned spatial;
    RP_TRY(spatial_of_weight(call, call->attrs[0].n, &spatial));
    RP_TRY(geometry(call, 1, spatial, &g));
    RP_TRY(sizes_attr(call, out));
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype)); /* integers have no gradient */
    return check_grad(call, &g, x->size, x->ndim, out->size, out->ndim);
}

/* (N, C, places) operand; without batch dim a batch of one. */
static rp__operand image(const rp_tensor *t, unsigned spatial) {
    rp__operand o = rp__operand_of(t);
    if (o.ndim == spatial + 1) {
        memmove(o.size + 1, o.size, o.ndim * sizeof *o.size);
        memmove(o.stride + 1, o.stride, o.ndim * sizeof *o.stride);
        o.size[0] = 1;
        o.stride[0] = 0;
        o.ndim++;
    }
    return o;
}

rp_status rp__product_conv2d(const rp__call *call, rp__product *p) {
    const unsigned s = spatial_of(call);
    p->op = RP__LIB_CONV_FORWARD;
    p->n = call->in[2] ? 4 : 3;
    p->o[0] = image(call->out[0], s);
    p->o[1] = image(call->in[0], s);
    p->o[2] = rp__operand_of(call->in[1]);
    if (call->in[2]) p->o[3] = rp__operand_of(call->in[2]);
    p->in[2] = 1;
    p->in[3] = 2;
    p->added = call->out[0]->ndim == s + 1;
    return geometry(call, 0, s, &p->conv);
}

rp_status rp__product_conv_input(const rp__call *call, rp__product *p) {
    const unsigned s = call->in[1]->ndim - 2u;
    p->op = RP__LIB_CONV_INPUT;
    p->n = 3;
    p->o[0] = image(call->out[0], s);
    p->o[1] = image(call->in[0], s);
    p->o[2] = rp__operand_of(call->in[1]);
    p->in[2] = 1;
    p->added = call->out[0]->ndim == s + 1;
    return geometry(call, 1, s, &p->conv);
}

rp_status rp__product_conv_weight(const rp__call *call, rp__product *p) {
    const unsigned s = call->out[0]->ndim - 2u;
    p->op = RP__LIB_CONV_WEIGHT;
    p->n = 3;
    p->o[0] = rp__operand_of(call->out[0]);
    p->o[1] = image(call->in[0], s);
    p->o[2] = image(call->in[1], s);
    p->in[2] = 1;
    return geometry(call, 1, s, &p->conv);
}

/* ---- padding by name */

/* 'same': as many places come out as go in; what cannot be shared evenly is padded behind, by zeros of their own. */
rp_status rp__expand_conv2d_padding(const rp__call *call) {
    const unsigned s = spatial_of(call);
    const char *padding = call->attrs[1].v.string;
    rp_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    rp__conv_geometry g;
    const int64_t none = 0;
    const rp_attr given[4] = {
        call->attrs[0], {.kind = RP_ATTR_INTS, .n = 1, .v.ints = &none}, call->attrs[2], call->attrs[3]};
    rp__call plain = *call;
    plain.attrs = given;
    RP_TRY(geometry(&plain, 0, s, &g));
    const bool same = strcmp(padding, "same") == 0;
    if (!same && strcmp(padding, "valid") != 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Invalid padding string: '%s'", padding);
    if (same) {
        int64_t behind[2 * MOST] = {0};
        bool even = true;
        RP_TRY(conv_ranks(call, &g, x->size, x->ndim, w->size, w->ndim));
        for (unsigned d = 0; d < s; d++) {
            if (g.stride[d] != 1)
                return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                    "padding='same' is not supported for strided convolutions");
            int64_t total;
            if (__builtin_mul_overflow(rp__dim_value(w->size[2 + d]) - 1, g.dilation[d], &total))
                return rp__op_error(call, RP_ERROR_SHAPE, "a padded size does not fit into 64 bits");
            g.padding[d] = total / 2;
            behind[2 * (s - 1 - d) + 1] = total % 2;
            even = even && total % 2 == 0;
        }
        if (!even) x = rp_constant_pad_nd(x, behind, 2 * s, rp_i64(0));
    }
    switch (s) {
    case 1:
        call->out[0] = rp_conv1d_at(call->site, x, w, bias, g.stride, s, g.padding, s, g.dilation, s, g.groups);
        break;
    case 2:
        call->out[0] = rp_conv2d_at(call->site, x, w, bias, g.stride, s, g.padding, s, g.dilation, s, g.groups);
        break;
    default: call->out[0] = rp_conv3d_at(call->site, x, w, bias, g.stride, s, g.padding, s, g.dilation, s, g.groups);
    }
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

/* ---- transposed */

/* Attributes: stride, padding, output_padding, groups, dilation. The weight is that of the convolution which it transposes: (C, O /
   groups, window). */
rp_status rp__expand_conv_transpose2d(const rp__call *call) {
    const unsigned s = spatial_of(call);
    rp_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    const rp_attr given[4] = {call->attrs[0], call->attrs[1], call->attrs[4], call->attrs[3]};
    rp__call plain = *call;
    plain.attrs = given;
    rp__conv_geometry g;
    int64_t more[MOST], behind[2 * MOST] = {0};
    rp_dim size[RP_MAX_DIMS];
    bool longer = false;
    RP_TRY(geometry(&plain, 0, s, &g));
    RP_TRY(each_dim(call, 2, "output_padding", s, more));
    RP_TRY(conv_ranks(call, &g, x->size, x->ndim, w->size, w->ndim));
    const unsigned first = x->ndim - s;
    RP_TRY(conv_channels(call, &g, x->size, x->ndim, x->size[first - 1], w->size, w->ndim, w->size[0]));
    RP_TRY(same_type(call, x, w, "weight"));
    RP_TRY(need_wide(call, x));
    size[0] = x->size[0];
    size[first - 1] = apply(RP__DIM_MUL, w->size[1], g.groups);
    RP_TRY(check_bias(call, bias, size[first - 1]));
    for (unsigned d = 0; d < s; d++) {
        if (more[d] < 0 || (more[d] >= g.stride[d] && more[d] >= g.dilation[d]))
            return rp__op_error(
                call, RP_ERROR_INVALID_ARGUMENT,
                "output padding must be smaller than either stride or dilation, but got output_padding: "
                "%lld stride: %lld dilation: %lld",
                (long long)more[d], (long long)g.stride[d], (long long)g.dilation[d]);
        /* (in - 1) stride - 2 padding + dilation (window - 1) + more + 1 */
        rp_dim at = apply(RP__DIM_MUL, apply(RP__DIM_SUB, x->size[first + d], 1), g.stride[d]);
        rp_dim reach = apply(RP__DIM_MUL, apply(RP__DIM_SUB, w->size[2 + d], 1), g.dilation[d]);
        size[first + d] =
            apply(RP__DIM_SUB, apply(RP__DIM_ADD, apply(RP__DIM_ADD, at, reach), more[d] + 1), 2 * g.padding[d]);
        /* Of no pictures a result may be of no places, as in PyTorch, which asks where there is something to calculate. */
        const bool small = rp__dim_is(RP__DIM_LT, size[first + d], 1);
        if (small && !(x->ndim == s + 2u && is_empty(x) && rp__dim_is(RP__DIM_EQ, size[first + d], 0))) {
            char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "Given input size per channel: %s. Calculated output size per channel: %s. Output size is "
                "too small",
                rp__shape_text(x->size + first, d + 1, a), rp__shape_text(size + first, d + 1, b));
        }
        /* Where the result reaches as far as another place of the input would, that place is there, and zero. */
        behind[2 * (s - 1 - d) + 1] = more[d] / g.stride[d];
        longer = longer || more[d] >= g.stride[d];
    }
    if (longer) x = rp_constant_pad_nd(x, behind, 2 * s, rp_i64(0));
    rp_tensor *y =
        rp_conv_input_at(call->site, x, w, size, call->in[0]->ndim, g.stride, s, g.padding, s, g.dilation, s, g.groups);
    if (bias) y = rp_add_at(call->site, y, rp__per_channel(bias, s + 2), NULL);
    call->out[0] = y;
    return rp__tensor_is_error(y) ? rp_error_status() : RP_OK;
}
