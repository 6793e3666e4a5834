/* Convolutions of any rank as layers, and small layers of one op. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/options.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- convolutions */

static rp_status conv_read(rp_conv_layer *l, const int64_t *kernel, size_t spatial, const rp_conv_options *given) {
    rp_conv_options *o = &l->options;
    RP_TRY(rp__options_read("convolution layer", given, sizeof *o, o));
    o->struct_size = sizeof *o;
    if (spatial < 1 || spatial > 3 || !kernel)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "convolution layer: a kernel has 1 to 3 dims");
    l->spatial = (unsigned)spatial;
    if (o->groups == 0) o->groups = 1;
    for (size_t d = 0; d < spatial; d++) {
        if (o->stride[d] == 0) o->stride[d] = 1;
        if (o->dilation[d] == 0) o->dilation[d] = 1;
        RP_TRY(rp__layer_positive("convolution layer", "kernel", kernel[d]));
        RP_TRY(rp__layer_positive("convolution layer", "stride", o->stride[d]));
        RP_TRY(rp__layer_positive("convolution layer", "dilation", o->dilation[d]));
        if (o->padding[d] < 0 || o->output_padding[d] < 0 || (o->same && (o->padding[d] || o->stride[d] != 1)))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "convolution layer: paddings are 0 or more; `same` has none of its own, and stride 1");
        if (kernel[d] > INT32_MAX || o->stride[d] > INT32_MAX || o->padding[d] > INT32_MAX ||
            o->dilation[d] > INT32_MAX || o->output_padding[d] > INT32_MAX)
            return rp__fail(RP_ERROR_SHAPE, "convolution layer: kernel, stride, paddings and dilation are at most %d",
                            INT32_MAX);
    }
    if ((unsigned)o->padding_mode > RP_PADDING_CIRCULAR)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "convolution layer: there is no padding mode %d",
                        (int)o->padding_mode);
    if (l->transposed && (o->same || o->padding_mode != RP_PADDING_ZEROS))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "convolution layer: a transposed one is padded by zeros");
    return RP_OK;
}

static rp_status conv_fill(rp_conv_layer *l, int64_t in, int64_t out, const int64_t *kernel, size_t spatial,
                           const rp_conv_options *given) {
    RP_TRY(conv_read(l, kernel, spatial, given));
    const int64_t groups = l->options.groups;
    RP_TRY(rp__layer_positive("convolution layer", "in_channels", in));
    RP_TRY(rp__layer_positive("convolution layer", "out_channels", out));
    RP_TRY(rp__layer_positive("convolution layer", "groups", groups));
    if (in % groups || out % groups)
        return rp__fail(RP_ERROR_SHAPE,
                        "convolution layer: %lld groups do not divide %lld input and %lld output channels",
                        (long long)groups, (long long)in, (long long)out);
    int64_t size[5] = {l->transposed ? in : out, (l->transposed ? out : in) / groups};
    double fan = (double)size[1];
    for (size_t d = 0; d < spatial; d++) {
        size[2 + d] = kernel[d];
        fan *= (double)kernel[d];
    }
    l->weight = rp__parameter_new(size, spatial + 2, RP_DTYPE_NONE);
    if (!l->weight) return rp_error_status();
    RP_TRY(rp_init_kaiming_uniform(l->weight, sqrt(5.0)));
    if (l->options.no_bias) return RP_OK;
    l->bias = rp__parameter_new(&out, 1, RP_DTYPE_NONE);
    return l->bias ? rp_init_uniform(l->bias, -1 / sqrt(fan), 1 / sqrt(fan)) : rp_error_status();
}

static rp_status conv_add(rp_module *m, const char *name, rp_conv_layer *l, bool transposed, int64_t in, int64_t out,
                          const int64_t *kernel, size_t spatial, const rp_conv_options *options) {
    RP_TRY(rp__layer_need(l, "convolution layer"));
    memset(l, 0, sizeof *l);
    l->transposed = transposed;
    const rp_status status = conv_fill(l, in, out, kernel, spatial, options);
    if (status == RP_OK) return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
    return status;
}

rp_status rp_conv_add_at(const char *site, rp_module *m, const char *name, rp_conv_layer *l, int64_t in_channels,
                         int64_t out_channels, const int64_t *kernel, size_t spatial, const rp_conv_options *options) {
    RP__CALLED_FROM(site);
    return conv_add(m, name, l, false, in_channels, out_channels, kernel, spatial, options);
}

rp_status rp_conv_transpose_add_at(const char *site, rp_module *m, const char *name, rp_conv_layer *l,
                                   int64_t in_channels, int64_t out_channels, const int64_t *kernel, size_t spatial,
                                   const rp_conv_options *options) {
    RP__CALLED_FROM(site);
    return conv_add(m, name, l, true, in_channels, out_channels, kernel, spatial, options);
}

/* x with what padding_mode puts around it; what `same` cannot share evenly stands behind. */
static rp_tensor *around(const rp_conv_layer *l, rp_tensor *x) {
    static const char *const names[] = {"constant", "reflect", "replicate", "circular"};
    const rp_conv_options *o = &l->options;
    int64_t pad[6];
    for (unsigned d = 0; d < l->spatial; d++) {
        const int64_t total = o->same ? o->dilation[d] * (rp_size(l->weight, 2 + (int64_t)d) - 1) : 2 * o->padding[d];
        pad[2 * (l->spatial - 1 - d)] = total / 2;
        pad[2 * (l->spatial - 1 - d) + 1] = total - total / 2;
    }
    return rp_pad(x, pad, 2 * (size_t)l->spatial, names[o->padding_mode], rp_none());
}

/* rest: what transposed ones add behind. */
static rp_tensor *conv_forward(const rp_conv_layer *l, rp_tensor *x, const int64_t *rest) {
    static const int64_t none[3] = {0, 0, 0};
    const rp_conv_options *o = &l->options;
    const size_t s = l->spatial;
    if (l->transposed) {
#define TRANSPOSED x, l->weight, l->bias, o->stride, s, o->padding, s, rest, s, o->groups, o->dilation, s
        return s == 1   ? rp_conv_transpose1d(TRANSPOSED)
               : s == 2 ? rp_conv_transpose2d(TRANSPOSED)
                        : rp_conv_transpose3d(TRANSPOSED);
#undef TRANSPOSED
    }
    const bool padded = o->padding_mode != RP_PADDING_ZEROS;
    if (o->same && !padded) {
#define SAME x, l->weight, l->bias, o->stride, s, "same", o->dilation, s, o->groups
        return s == 1 ? rp_conv1d_padding(SAME) : s == 2 ? rp_conv2d_padding(SAME) : rp_conv3d_padding(SAME);
#undef SAME
    }
    if (padded) x = around(l, x);
#define PLAIN x, l->weight, l->bias, o->stride, s, padded ? none : o->padding, s, o->dilation, s, o->groups
    return s == 1 ? rp_conv1d(PLAIN) : s == 2 ? rp_conv2d(PLAIN) : rp_conv3d(PLAIN);
#undef PLAIN
}

/* The spatial sizes among n sizes of a result, of which all may be given; NULL: neither. */
static const int64_t *spatial_sizes(const char *layer, const rp_tensor *x, unsigned spatial, const int64_t *size,
                                    size_t n) {
    if (size && n == spatial) return size;
    if (size && n == x->ndim && n > spatial) return size + (n - spatial);
    (void)rp__fail(RP_ERROR_SHAPE, "%s: output_size must have %u or %u elements (got %zu)", layer, spatial, x->ndim, n);
    return NULL;
}

/* Places that n windows reach, `stride` apart, less 2 padding: (n - 1) stride + window - 2 padding, of numbers below 2^62 but for n. */
static rp_status reach_of(const char *layer, int64_t n, int64_t stride, int64_t window, int64_t padding, int64_t *out) {
    if (!__builtin_mul_overflow(n - 1, stride, out) && !__builtin_add_overflow(*out, window - 2 * padding, out) &&
        *out < INT64_MAX / 2)
        return RP_OK;
    return rp__fail(RP_ERROR_SHAPE, "%s: a size does not fit into 64 bits", layer);
}

/* output_padding, so that the result has these sizes. */
static rp_status rest_of(const rp_conv_layer *l, rp_tensor *x, const int64_t *size, size_t n, int64_t rest[3]) {
    const rp_conv_options *o = &l->options;
    RP_TRY(rp__tensor_check(x, "convolution layer: the input"));
    if (!l->transposed || (x->ndim != l->spatial + 1 && x->ndim != l->spatial + 2))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "convolution layer: %s",
                        l->transposed ? "the input has not the rank of the layer"
                                      : "output_size is of transposed ones");
    if (!(size = spatial_sizes("convolution layer", x, l->spatial, size, n))) return rp_error_status();
    for (unsigned d = 0; d < l->spatial; d++) {
        const int64_t in = rp_size(x, (int64_t)(x->ndim - l->spatial + d)), kernel = rp_size(l->weight, 2 + (int64_t)d);
        int64_t least;
        RP_TRY(
            reach_of("convolution layer", in, o->stride[d], o->dilation[d] * (kernel - 1) + 1, o->padding[d], &least));
        if (size[d] < least || size[d] > least + o->stride[d] - 1)
            return rp__fail(RP_ERROR_SHAPE,
                            "convolution layer: output_size %lld of spatial dim %u is not from %lld to %lld",
                            (long long)size[d], d, (long long)least, (long long)(least + o->stride[d] - 1));
        rest[d] = size[d] - least;
    }
    return RP_OK;
}

/* size NULL: by the layer's own output_padding. */
static rp_tensor *forward(const char *site, const rp_conv_layer *l, rp_tensor *x, bool sized, const int64_t *size,
                          size_t n) {
    if (!l) return rp__no_layer(site, "convolution layer");
    rp__site_frame frame = rp__site_push(site, "conv");
    rp_scope scope = rp__scope_begin();
    rp__hooks_before(l->module, &x, 1);
    rp_tensor *y = rp__tensor_error();
    int64_t rest[3] = {l->options.output_padding[0], l->options.output_padding[1], l->options.output_padding[2]};
    if (scope.id && (!sized || rest_of(l, x, size, n, rest) == RP_OK)) y = conv_forward(l, x, rest);
    y = rp__hooks_result(l->module, &x, 1, y);
    rp__scope_end(scope, &y, 1);
    rp__site_pop(frame);
    return y;
}

rp_tensor *rp_conv_layer_forward_at(const char *site, const rp_conv_layer *l, rp_tensor *x) {
    return forward(site, l, x, false, NULL, 0);
}

rp_tensor *rp_conv_transpose_forward_at(const char *site, const rp_conv_layer *l, rp_tensor *x,
                                        const int64_t *output_size, size_t n_dims) {
    return forward(site, l, x, true, output_size, n_dims);
}

/* ---------------------------------------------------------------- unpooling */

rp_status rp_max_unpool_add_at(const char *site, rp_module *m, const char *name, rp_max_unpool_layer *l,
                               const int64_t *kernel, const int64_t *stride, const int64_t *padding, size_t spatial) {
    RP__CALLED_FROM(site);
    static const char what[] = "max unpool layer";
    RP_TRY(rp__layer_need(l, what));
    *l = (rp_max_unpool_layer){.spatial = 0};
    if (spatial < 1 || spatial > 3 || !kernel)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a kernel has 1 to 3 dims", what);
    l->spatial = (unsigned)spatial;
    for (size_t d = 0; d < spatial; d++) {
        l->kernel[d] = kernel[d];
        l->stride[d] = stride ? stride[d] : kernel[d];
        l->padding[d] = padding ? padding[d] : 0;
        RP_TRY(rp__layer_positive(what, "kernel", l->kernel[d]));
        RP_TRY(rp__layer_positive(what, "stride", l->stride[d]));
        if (l->padding[d] < 0) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a padding is 0 or more", what);
        if (l->kernel[d] > INT32_MAX || l->stride[d] > INT32_MAX || l->padding[d] > INT32_MAX)
            return rp__fail(RP_ERROR_SHAPE, "%s: kernel, stride and padding are at most %d", what, INT32_MAX);
    }
    return rp__module_adopt_layer(m, name, NULL, 0, &l->module);
}

static rp_tensor *unpool(const rp_max_unpool_layer *l, rp_tensor *x, rp_tensor *indices, const int64_t *given,
                         size_t n) {
    static const char what[] = "max unpool layer";
    int64_t size[3];
    if (rp__tensor_check(x, "max unpool layer: the input") != RP_OK) return rp__tensor_error();
    if (x->ndim < l->spatial + 1) {
        (void)rp__fail(RP_ERROR_SHAPE, "%s: the input has %u dims, not %u or %u", what, x->ndim, l->spatial + 1,
                       l->spatial + 2);
        return rp__tensor_error();
    }
    if (given && !(given = spatial_sizes(what, x, l->spatial, given, n))) return rp__tensor_error();
    for (unsigned d = 0; d < l->spatial; d++) {
        const int64_t in = rp_size(x, (int64_t)(x->ndim - l->spatial + d));
        if (reach_of(what, in, l->stride[d], l->kernel[d], l->padding[d], &size[d]) != RP_OK) return rp__tensor_error();
        if (given && (given[d] <= size[d] - l->stride[d] || given[d] >= size[d] + l->stride[d])) {
            (void)rp__fail(RP_ERROR_SHAPE, "%s: output_size %lld of spatial dim %u is not between %lld and %lld", what,
                           (long long)given[d], d, (long long)(size[d] - l->stride[d]),
                           (long long)(size[d] + l->stride[d]));
            return rp__tensor_error();
        }
        if (given) size[d] = given[d];
    }
    const size_t s = l->spatial;
    return s == 1   ? rp_max_unpool1d(x, indices, size, s)
           : s == 2 ? rp_max_unpool2d(x, indices, size, s)
                    : rp_max_unpool3d(x, indices, size, s, l->stride, s, l->padding, s);
}

rp_tensor *rp_max_unpool_forward_at(const char *site, const rp_max_unpool_layer *l, rp_tensor *x, rp_tensor *indices,
                                    const int64_t *output_size, size_t n_dims) {
    if (!l) return rp__no_layer(site, "max unpool layer");
    rp__site_frame frame = rp__site_push(site, "max_unpool");
    rp_scope scope = rp__scope_begin();
    rp_tensor *in[] = {x, indices};
    rp__hooks_before(l->module, in, 2);
    rp_tensor *y = scope.id ? unpool(l, in[0], in[1], output_size, n_dims) : rp__tensor_error();
    y = rp__hooks_result(l->module, in, 2, y);
    rp__scope_end(scope, &y, 1);
    rp__site_pop(frame);
    return y;
}

/* ---------------------------------------------------------------- dropouts */

rp_tensor *rp_channel_dropout_forward_at(const char *site, const rp_dropout_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "dropout layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(l->module, &x, 1, rp_feature_dropout_at(site, x, l->p, rp_module_training(l->module)));
}

rp_tensor *rp_alpha_dropout_forward_at(const char *site, const rp_dropout_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "dropout layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(l->module, &x, 1, rp_alpha_dropout_at(site, x, l->p, rp_module_training(l->module)));
}

rp_tensor *rp_channel_alpha_dropout_forward_at(const char *site, const rp_dropout_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "dropout layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(l->module, &x, 1,
                            rp_feature_alpha_dropout_at(site, x, l->p, rp_module_training(l->module)));
}

/* ---------------------------------------------------------------- prelu, bilinear */

rp_status rp_prelu_add_at(const char *site, rp_module *m, const char *name, rp_prelu_layer *l, int64_t num_parameters,
                          double value) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "prelu layer"));
    *l = (rp_prelu_layer){.weight = NULL};
    RP_TRY(rp__layer_positive("prelu layer", "num_parameters", num_parameters));
    l->weight = rp__parameter_new(&num_parameters, 1, RP_DTYPE_NONE);
    const rp_status status = l->weight ? rp_init_constant(l->weight, value) : rp_error_status();
    if (status == RP_OK) return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false});
    rp__parameter_release(&l->weight);
    return status;
}

rp_tensor *rp_prelu_layer_forward_at(const char *site, const rp_prelu_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "prelu layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(l->module, &x, 1, rp_prelu_at(site, x, l->weight));
}

static rp_status bilinear_fill(rp_bilinear_layer *l, int64_t in1, int64_t in2, int64_t out, bool bias) {
    RP_TRY(rp__layer_positive("bilinear layer", "in1_features", in1));
    RP_TRY(rp__layer_positive("bilinear layer", "in2_features", in2));
    RP_TRY(rp__layer_positive("bilinear layer", "out_features", out));
    const double bound = 1.0 / sqrt((double)in1);
    l->weight = rp__parameter_new(RP_DIMS(out, in1, in2), RP_DTYPE_NONE);
    if (!l->weight) return rp_error_status();
    RP_TRY(rp_init_uniform(l->weight, -bound, bound));
    if (!bias) return RP_OK;
    l->bias = rp__parameter_new(RP_DIMS(out), RP_DTYPE_NONE);
    return l->bias ? rp_init_uniform(l->bias, -bound, bound) : rp_error_status();
}

rp_status rp_bilinear_add_at(const char *site, rp_module *m, const char *name, rp_bilinear_layer *l,
                             int64_t in1_features, int64_t in2_features, int64_t out_features, bool bias) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "bilinear layer"));
    *l = (rp_bilinear_layer){.weight = NULL};
    const rp_status status = bilinear_fill(l, in1_features, in2_features, out_features, bias);
    if (status == RP_OK) return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
    return status;
}

rp_tensor *rp_bilinear_layer_forward_at(const char *site, const rp_bilinear_layer *l, rp_tensor *x1, rp_tensor *x2) {
    if (!l) return rp__no_layer(site, "bilinear layer");
    rp_tensor *in[] = {x1, x2};
    rp__hooks_before(l->module, in, 2);
    return rp__hooks_result(l->module, in, 2, rp_bilinear_at(site, in[0], in[1], l->weight, l->bias));
}
