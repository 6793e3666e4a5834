/* 2-d convolution and its gradients: geometry checks with PyTorch's messages, then library ops. An input without batch dim is a
   batch of one. */
#include <string.h>

#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/rules.h"

/* Two values from an int[] of one or two. */
static rp_status pair(const rp__call *call, unsigned attr, const char *name, int64_t out[2]) {
    const rp_attr *a = &call->attrs[attr];
    char text[RP__SHAPE_TEXT];
    if (a->n != 1 && a->n != 2)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "expected %s to be a single integer value or a list of 2 values to match the convolution dimensions, but "
            "got %s=%s",
            name, name, a->n <= RP_MAX_DIMS ? rp__shape_text(a->v.ints, a->n, text) : "a longer list");
    out[0] = rp__dim_value(a->v.ints[0]); /* of a size of the trace its value: it is part of the kernel's choice */
    out[1] = rp__dim_value(a->v.ints[a->n - 1]);
    return RP_OK;
}

/* Attributes stride, padding, dilation, groups from `first` on. */
static rp_status geometry(const rp__call *call, unsigned first, rp__conv_geometry *g) {
    memset(g, 0, sizeof *g);
    g->spatial = 2;
    RP_TRY(pair(call, first, "stride", g->stride));
    RP_TRY(pair(call, first + 1, "padding", g->padding));
    RP_TRY(pair(call, first + 2, "dilation", g->dilation));
    g->groups = rp__dim_value(rp__attr_int(call, first + 3));
    for (unsigned d = 0; d < 2; d++) {
        if (g->padding[d] < 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "negative padding is not supported");
        if (g->stride[d] <= 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "non-positive stride is not supported");
        if (g->stride[d] > INT32_MAX || g->padding[d] > INT32_MAX || g->dilation[d] > INT32_MAX)
            return rp__op_error(call, RP_ERROR_SHAPE, "stride, padding and dilation are at most %d", INT32_MAX);
        if (g->dilation[d] <= 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "dilation should be greater than zero, but got (%lld, %lld)", (long long)g->dilation[0],
                                (long long)g->dilation[1]);
    }
    if (g->groups <= 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "non-positive groups is not supported");
    return RP_OK;
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

/* What the three ops have in common: an input size (rank 3 or 4), a weight size (rank 4), and the output's size from them. */
static rp_status conv_size(const rp__call *call, const rp__conv_geometry *g, const rp_dim *in, size_t n,
                           const rp_dim *w, size_t wn, rp_dim *out) {
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    if (wn != 4)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected 4-dimensional weight for 2-dimensional convolution, but got weight of size %s",
                            rp__shape_text(w, wn, a));
    if (n != 3 && n != 4)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: %s",
                            rp__shape_text(in, n, a));
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
    const rp_dim *chw = in + (n - 3);
    rp_dim channels = apply(RP__DIM_MUL, w[1], g->groups);
    if (!rp__dim_is(RP__DIM_EQ, chw[0], channels))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Given groups=%lld, weight of size %s, expected input %s to have %lld channels, but got %lld channels instead",
            (long long)g->groups, rp__shape_text(w, wn, a), rp__shape_text(in, n, b), (long long)rp__dim_hint(channels),
            (long long)rp__dim_hint(chw[0]));
    if (n == 4) out[0] = in[0];
    out += n - 3;
    out[0] = w[0];
    for (unsigned d = 0; d < 2; d++) {
        if (rp__dim_is(RP__DIM_LT, w[2 + d], 1))
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "kernel size should be greater than zero, but got kernel_height: %lld kernel_width: %lld",
                (long long)rp__dim_hint(w[2]), (long long)rp__dim_hint(w[3]));
        out[1 + d] = output_size(chw[1 + d], w[2 + d], g, d);
        if (rp__dim_is(RP__DIM_LT, out[1 + d], 1))
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "Calculated padded input size per channel: (%lld x %lld). Kernel size: (%lld x %lld). Kernel size can't "
                "be greater than actual input size",
                sum_text(rp__dim_hint(chw[1]), 2, g->padding[0]), sum_text(rp__dim_hint(chw[2]), 2, g->padding[1]),
                sum_text(1, rp__dim_hint(w[2]) - 1, g->dilation[0]),
                sum_text(1, rp__dim_hint(w[3]) - 1, g->dilation[1]));
    }
    return RP_OK;
}

static rp_status same_type(const rp__call *call, const rp_tensor *a, const rp_tensor *b, const char *what) {
    if (a->dtype == b->dtype && rp__dtype_is_float((rp_dtype)a->dtype)) return RP_OK;
    if (a->dtype != b->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "Input type (%s) and %s type (%s) should be the same",
                            rp_dtype_name((rp_dtype)a->dtype), what, rp_dtype_name((rp_dtype)b->dtype));
    return rp__call_need_float(call, (rp_dtype)a->dtype);
}

rp_status rp__infer_conv2d(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    rp__conv_geometry g;
    RP_TRY(geometry(call, 0, &g));
    RP_TRY(conv_size(call, &g, x->size, x->ndim, w->size, w->ndim, out->size));
    RP_TRY(same_type(call, x, w, "weight"));
    if (bias) {
        RP_TRY(same_type(call, x, bias, "bias"));
        if (bias->ndim != 1 || !rp__dim_is(RP__DIM_EQ, bias->size[0], w->size[0])) {
            char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "Given weight of size %s, expected bias to be 1-dimensional with %lld elements, but got bias of size %s "
                "instead",
                rp__shape_text(w->size, 4, a), (long long)rp__dim_hint(w->size[0]),
                rp__shape_text(bias->size, bias->ndim, b));
        }
    }
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

rp_status rp__infer_conv2d_input(const rp__call *call, rp__meta *out) {
    const rp_tensor *w = call->in[1];
    rp__conv_geometry g;
    RP_TRY(geometry(call, 1, &g));
    RP_TRY(sizes_attr(call, out));
    return check_grad(call, &g, out->size, out->ndim, w->size, w->ndim);
}

rp_status rp__infer_conv2d_weight(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[1];
    rp__conv_geometry g;
    RP_TRY(geometry(call, 1, &g));
    RP_TRY(sizes_attr(call, out));
    return check_grad(call, &g, x->size, x->ndim, out->size, out->ndim);
}

/* NCHW operand; without batch dim a batch of one. */
static rp__operand image(const rp_tensor *t) {
    rp__operand o = rp__operand_of(t);
    if (o.ndim == 3) {
        memmove(o.size + 1, o.size, 3 * sizeof *o.size);
        memmove(o.stride + 1, o.stride, 3 * sizeof *o.stride);
        o.size[0] = 1;
        o.stride[0] = 0;
        o.ndim = 4;
    }
    return o;
}

rp_status rp__product_conv2d(const rp__call *call, rp__product *p) {
    p->op = RP__LIB_CONV_FORWARD;
    p->n = call->in[2] ? 4 : 3;
    p->o[0] = image(call->out[0]);
    p->o[1] = image(call->in[0]);
    p->o[2] = rp__operand_of(call->in[1]);
    if (call->in[2]) p->o[3] = rp__operand_of(call->in[2]);
    p->in[2] = 1;
    p->in[3] = 2;
    p->added = call->out[0]->ndim == 3;
    return geometry(call, 0, &p->conv);
}

rp_status rp__product_conv2d_input(const rp__call *call, rp__product *p) {
    p->op = RP__LIB_CONV_INPUT;
    p->n = 3;
    p->o[0] = image(call->out[0]);
    p->o[1] = image(call->in[0]);
    p->o[2] = rp__operand_of(call->in[1]);
    p->in[2] = 1;
    p->added = call->out[0]->ndim == 3;
    return geometry(call, 1, &p->conv);
}

rp_status rp__product_conv2d_weight(const rp__call *call, rp__product *p) {
    p->op = RP__LIB_CONV_WEIGHT;
    p->n = 3;
    p->o[0] = rp__operand_of(call->out[0]);
    p->o[1] = image(call->in[0]);
    p->o[2] = image(call->in[1]);
    p->in[2] = 1;
    return geometry(call, 1, &p->conv);
}
