/* Norms of channels within an image, made of layer norm, batch norm and pools over other views of the input. */
#include "ops/grad.h"

#include "ops/format.h"
#include "ops/infer.h"
#include "ops/norm.h"
#include "ops/private.h"
#include "ops/rules.h"

static rp_status done(const rp__call *call, rp_tensor *out) {
    call->out[0] = out;
    return rp__tensor_is_error(out) ? rp_error_status() : RP_OK;
}

/* In the type of the call's first operand, and channels_last if that is. */
static rp_tensor *as_input(const rp__call *call, rp_tensor *y) {
    const rp_tensor *x = call->in[0];
    if (rp__tensor_is_error(y)) return y;
    if (y->dtype != x->dtype) y = rp_to_dtype(y, (rp_dtype)x->dtype);
    if (!rp__channels_last(x)) return y;
    return rp_contiguous(
        y, RP_OPTIONS(rp_contiguous_options, .memory_format = x->ndim == 4 ? RP_CHANNELS_LAST : RP_CHANNELS_LAST_3D));
}

/* ---- group norm: a layer norm over (channels of a group, places) */

static rp_status check_vector(const rp__call *call, unsigned k, const char *what) {
    const rp_tensor *x = call->in[0], *t = call->in[k];
    if (!t || (t->ndim == 1 && rp__dim_is(RP__DIM_EQ, t->size[0], x->size[1]))) return RP_OK;
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    return rp__op_error(call, RP_ERROR_SHAPE,
                        "Expected %s to be a vector of size equal to the number of channels in input, but got %s of "
                        "shape %s and input of shape %s",
                        what, what, rp__shape_text(t->size, t->ndim, a), rp__shape_text(x->size, x->ndim, b));
}

rp_status rp__expand_group_norm(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const int64_t groups = rp__attr_int(call, 0);
    const unsigned n = x->ndim;
    rp_dim size[RP_MAX_DIMS];
    char text[RP__SHAPE_TEXT];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (groups <= 0)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Expected num groups to be greater than 0, got %lld",
                            (long long)groups);
    if (n < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected at least 2 dimensions for input tensor but received %u", n);
    if (n == RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "the input has at most %d dimensions", RP_MAX_DIMS - 1);
    if (rp__dim_is(RP__DIM_EQ, x->size[1], 0))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected number of channels to be greater than 0, got 0");
    if (!rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MOD, x->size[1], groups), 0))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            "%s and num_groups=%lld",
            rp__shape_text(x->size, n, text), (long long)groups);
    RP_TRY(check_vector(call, 1, "weight"));
    RP_TRY(check_vector(call, 2, "bias"));
    for (unsigned d = 2; d < n; d++) {
        if (rp__dim_is(RP__DIM_EQ, x->size[d], 0))
            return rp__op_error(call, RP_ERROR_SHAPE, "Expected HxW to be greater than 0, got 0");
        size[d + 1] = x->size[d];
    }
    size[0] = x->size[0];
    size[1] = groups;
    size[2] = rp__dim_apply(RP__DIM_FLOORDIV, x->size[1], groups);
    /* In the wider type: rounded once, at the end. */
    rp_tensor *y = rp_unflatten(rp__wide(x), 1, size + 1, 2);
    y = rp_native_layer_norm(y, size + 2, n - 1, NULL, NULL, rp__attr_float(call, 1), NULL, NULL);
    y = rp_flatten(y, 1, 2);
    if (call->in[1]) y = rp_mul(y, rp__per_channel(rp__wide(call->in[1]), n));
    if (call->in[2]) y = rp_add(y, rp__per_channel(rp__wide(call->in[2]), n));
    return done(call, as_input(call, y));
}

/* ---- instance norm: a batch norm over one image of N * C channels */

/* (C) for each of `images`: (images * C). */
static rp_tensor *repeated(rp_tensor *t, rp_dim images) {
    if (!t) return NULL;
    const rp_dim size[2] = {images, t->size[0]};
    const int64_t flat = -1;
    return rp_reshape(rp_expand(t, size, 2), &flat, 1);
}

rp_status rp__expand_instance_norm(const rp__call *call) {
    const uint64_t failures = rp__error_count();
    static const char *const names[] = {"", "weight", "bias", "running_mean", "running_var"};
    rp_tensor *x = call->in[0];
    const unsigned n = x->ndim;
    const double momentum = rp__attr_float(call, 1), eps = rp__attr_float(call, 2);
    char text[RP__SHAPE_TEXT];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    if (n < 2) return rp__op_error(call, RP_ERROR_SHAPE, "expected at least 2D input (got %uD input)", n);
    for (unsigned k = 1; k < 5; k++) {
        const rp_tensor *t = call->in[k];
        if (!t) continue;
        if (t->ndim != 1 || !rp__dim_is(RP__DIM_EQ, t->size[0], x->size[1]))
            return rp__op_error(call, RP_ERROR_SHAPE, "%s should contain %lld elements not %s", names[k],
                                (long long)rp__dim_hint(x->size[1]), rp__shape_text(t->size, t->ndim, text));
        RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
    }
    if (!rp__attr_bool(call, 0)) {
        if (!call->in[3] || !call->in[4])
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "Expected running_mean and running_var to be defined when use_input_stats is false");
        return done(call, rp_batch_norm_at(call->site, x, call->in[1], call->in[2], call->in[3], call->in[4], false,
                                           momentum, eps, true));
    }
    rp_dim size[RP_MAX_DIMS] = {1, rp__dim_apply(RP__DIM_MUL, x->size[0], x->size[1])};
    const rp_dim images[2] = {x->size[0], x->size[1]};
    for (unsigned d = 2; d < n; d++) size[d] = x->size[d];
    rp_tensor *mean = NULL, *var = NULL;
    rp_tensor *y = rp_batch_norm_train(rp_reshape(x, size, n), rp__per_channel(repeated(call->in[1], x->size[0]), n),
                                       rp__per_channel(repeated(call->in[2], x->size[0]), n), eps, &mean, NULL, &var);
    y = rp_reshape(y, x->size, n);
    if (rp__tensor_is_error(y)) return rp_error_status();
    const bool grad = rp__grad_switch(false);
    if (call->in[3]) rp__bring_up_to_date(call->in[3], rp_mean(rp_reshape(mean, images, 2), RP_DIMS(0)), momentum);
    if (call->in[4]) rp__bring_up_to_date(call->in[4], rp_mean(rp_reshape(var, images, 2), RP_DIMS(0)), momentum);
    (void)rp__grad_switch(grad);
    RP_TRY(rp__status_since(failures));
    return done(call, as_input(call, y));
}

/* ---- local response norm: the mean is a pool along the channels, padded by zeros that count */

rp_status rp__expand_local_response_norm(const rp__call *call) {
    rp_tensor *x = call->in[0];
    const int64_t size = rp__attr_int(call, 0);
    const unsigned n = x->ndim;
    const bool whole = x->dtype == RP_I64; /* means of squares are whole numbers, what follows is not */
    if (n < 3)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected 3D or higher dimensionality input (got %u dimensions)", n);
    if (size < 1 || size > INT32_MAX)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "size must lie between 1 and %d, not %lld", INT32_MAX,
                            (long long)size);
    if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(x), 0)) return done(call, rp_clone(x));
    if (!whole) RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    rp_tensor *wide = rp__wide(x), *squares = rp_unsqueeze(rp_flatten(rp_mul(wide, wide), 2, -1), 1); /* (N, 1, C, *) */
    const int64_t pad[4] = {0, 0, size / 2, (size - 1) / 2}, window[2] = {size, 1}, one = 1;
    squares = rp_constant_pad_nd(squares, pad, 4, rp_i64(0));
    rp_tensor *mean = rp_view(rp_avg_pool2d(squares, window, 2, &one, 1), x->size, n);
    rp_tensor *base =
        rp_add_scalar(rp_mul_scalar(mean, rp_f64(rp__attr_float(call, 1))), rp_f64(rp__attr_float(call, 3)));
    rp_tensor *y = rp_div(wide, rp_pow_scalar(base, rp_f64(rp__attr_float(call, 2))));
    return done(call, whole ? y : as_input(call, y));
}
