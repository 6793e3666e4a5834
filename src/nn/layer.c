/* Layers: structs of parameters with PyTorch's initial values, alone or as children of a module, and the op that each stands for. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/options.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

rp_tensor *rp__parameter_new(const int64_t *size, size_t ndim, rp_dtype dtype) {
    rp_scope scope = rp__scope_begin();
    if (!scope.id) return NULL;
    rp_tensor *t = rp_empty(size, ndim, RP_OPTIONS(rp_empty_options, .dtype = dtype == RP_DTYPE_NONE ? RP_F32 : dtype));
    bool ok = !rp__tensor_is_error(t) && rp_set_requires_grad(t, true) == RP_OK;
    if (ok) rp_retain(t);
    rp__scope_end(scope, NULL, 0);
    return ok ? t : NULL;
}

rp_tensor *rp__buffer_new(const int64_t *size, size_t ndim, rp_dtype dtype, double value) {
    rp_scope scope = rp__scope_begin();
    if (!scope.id) return NULL;
    const rp_scalar number = rp__dtype_is_float(dtype) ? rp_f64(value) : rp_i64((int64_t)value);
    rp_tensor *t = rp_full(size, ndim, number, RP_OPTIONS(rp_full_options, .dtype = dtype));
    if (rp__tensor_is_error(t))
        t = NULL;
    else
        rp_retain(t);
    rp__scope_end(scope, NULL, 0);
    return t;
}

void rp__parameter_release(rp_tensor **t) {
    if (*t) rp_release(*t);
    *t = NULL;
}

rp_status rp__layer_need(const void *layer, const char *what) {
    return layer ? RP_OK : rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the layer is NULL", what);
}

rp_tensor *rp__no_layer(const char *site, const char *what) {
    rp__site_frame outer = rp__site_push(site, "layer_forward");
    (void)rp__layer_need(NULL, what);
    rp__site_pop(outer);
    return rp__tensor_error();
}

rp_status rp__layer_positive(const char *layer, const char *what, int64_t value) {
    if (value > 0) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: %s must be positive, not %lld", layer, what, (long long)value);
}

rp_status rp__layer_probability(const char *layer, double p) {
    if (p >= 0 && p <= 1) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the probability must be from 0 to 1, not %g", layer, p);
}

/* ---------------------------------------------------------------- linear */

static rp_status linear_fill(rp_linear_layer *l, int64_t in_features, int64_t out_features, bool bias, rp_dtype dtype) {
    RP_TRY(rp__layer_positive("linear layer", "in_features", in_features));
    RP_TRY(rp__layer_positive("linear layer", "out_features", out_features));
    l->weight = rp__parameter_new(RP_DIMS(out_features, in_features), dtype);
    if (!l->weight) return rp_error_status();
    RP_TRY(rp_init_kaiming_uniform(l->weight, sqrt(5.0)));
    if (!bias) return RP_OK;
    l->bias = rp__parameter_new(RP_DIMS(out_features), dtype);
    if (!l->bias) return rp_error_status();
    double bound = 1.0 / sqrt((double)in_features);
    return rp_init_uniform(l->bias, -bound, bound);
}

rp_status rp_linear_layer_init_at(const char *site, rp_linear_layer *l, int64_t in_features, int64_t out_features,
                                  bool bias, rp_dtype dtype) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "linear layer"));
    memset(l, 0, sizeof *l);
    rp_status status = linear_fill(l, in_features, out_features, bias, dtype);
    if (status != RP_OK) rp_linear_layer_release(l);
    return status;
}

void rp_linear_layer_release(rp_linear_layer *l) {
    if (!l) return;
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
}

rp_tensor *rp_linear_layer_forward_at(const char *site, const rp_linear_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "linear layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(l->module, &x, 1, rp_linear_at(site, x, l->weight, l->bias));
}

rp_status rp_linear_add_at(const char *site, rp_module *m, const char *name, rp_linear_layer *l, int64_t in_features,
                           int64_t out_features, bool bias) {
    RP__CALLED_FROM(site);
    RP_TRY(rp_linear_layer_init(l, in_features, out_features, bias, RP_DTYPE_NONE));
    return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
}

/* ---------------------------------------------------------------- layer norm */

rp_status rp__layer_shape(const char *layer, const int64_t *shape, size_t n, int64_t *own, size_t *n_own) {
    if (n == 0 || n > RP_MAX_DIMS || !shape)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: normalized_shape must have 1 to %d dimensions", layer,
                        RP_MAX_DIMS);
    memcpy(own, shape, n * sizeof *shape);
    *n_own = n;
    return RP_OK;
}

rp_status rp__affine_new(rp_tensor **weight, rp_tensor **bias, const int64_t *size, size_t n, rp_dtype dtype) {
    *weight = rp__parameter_new(size, n, dtype);
    if (*weight && bias) *bias = rp__parameter_new(size, n, dtype);
    if (!*weight || (bias && !*bias)) return rp_error_status();
    RP_TRY(rp_init_constant(*weight, 1.0));
    return bias ? rp_init_constant(*bias, 0.0) : RP_OK;
}

rp_status rp_layer_norm_layer_init_at(const char *site, rp_layer_norm_layer *l, const int64_t *normalized_shape,
                                      size_t n_dims, double eps, bool elementwise_affine, rp_dtype dtype) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "layer norm layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__layer_shape("layer norm layer", normalized_shape, n_dims, l->normalized_shape, &l->n_dims));
    l->eps = eps;
    rp_status status =
        elementwise_affine ? rp__affine_new(&l->weight, &l->bias, normalized_shape, n_dims, dtype) : RP_OK;
    if (status != RP_OK) rp_layer_norm_layer_release(l);
    return status;
}

void rp_layer_norm_layer_release(rp_layer_norm_layer *l) {
    if (!l) return;
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
}

rp_tensor *rp_layer_norm_layer_forward_at(const char *site, const rp_layer_norm_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "layer norm layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(
        l->module, &x, 1, rp_layer_norm_at(site, x, l->normalized_shape, l->n_dims, l->weight, l->bias, l->eps, true));
}

rp_status rp_layer_norm_add_with_at(const char *site, rp_module *m, const char *name, rp_layer_norm_layer *l,
                                    const int64_t *normalized_shape, size_t n_dims,
                                    const rp_layer_norm_options *options) {
    RP__CALLED_FROM(site);
    rp_layer_norm_options o;
    RP_TRY(rp__layer_need(l, "layer norm layer"));
    *l = (rp_layer_norm_layer){0};
    RP_TRY(rp__options_read("layer norm layer", options, sizeof o, &o));
    RP_TRY(
        rp_layer_norm_layer_init(l, normalized_shape, n_dims, rp__option_or(o.eps, 1e-5), !o.no_affine, RP_DTYPE_NONE));
    if (o.no_bias) rp__parameter_release(&l->bias);
    return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
}

rp_status rp_layer_norm_add_at(const char *site, rp_module *m, const char *name, rp_layer_norm_layer *l,
                               const int64_t *normalized_shape, size_t n_dims, double eps, bool elementwise_affine) {
    RP__CALLED_FROM(site);
    RP_TRY(rp_layer_norm_layer_init(l, normalized_shape, n_dims, eps, elementwise_affine, RP_DTYPE_NONE));
    return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
}

/* ---------------------------------------------------------------- batch norm */

static rp_status batch_norm_fill(rp_batch_norm_layer *l, int64_t n, const rp_batch_norm_options *o) {
    rp_dtype dtype = o->dtype == RP_DTYPE_NONE ? RP_F32 : o->dtype;
    RP_TRY(rp__layer_positive("batch norm layer", "num_features", n));
    l->eps = rp__option_or(o->eps, 1e-5);
    l->momentum = rp__option_or(o->momentum, 0.1);
    l->cumulative = o->cumulative;
    if (!o->no_affine) RP_TRY(rp__affine_new(&l->weight, &l->bias, RP_DIMS(n), dtype));
    if (o->no_running_stats) return RP_OK;
    l->running_mean = rp__buffer_new(RP_DIMS(n), dtype, 0);
    l->running_var = rp__buffer_new(RP_DIMS(n), dtype, 1);
    l->num_batches_tracked = rp__buffer_new(RP_NO_DIMS, RP_I64, 0);
    return l->running_mean && l->running_var && l->num_batches_tracked ? RP_OK : rp_error_status();
}

rp_status rp_batch_norm_layer_init_at(const char *site, rp_batch_norm_layer *l, int64_t num_features,
                                      const rp_batch_norm_options *options) {
    RP__CALLED_FROM(site);
    rp_batch_norm_options o;
    RP_TRY(rp__layer_need(l, "batch norm layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__options_read("batch norm layer", options, sizeof o, &o));
    rp_status status = batch_norm_fill(l, num_features, &o);
    if (status != RP_OK) rp_batch_norm_layer_release(l);
    return status;
}

void rp_batch_norm_layer_release(rp_batch_norm_layer *l) {
    if (!l) return;
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
    rp__parameter_release(&l->running_mean);
    rp__parameter_release(&l->running_var);
    rp__parameter_release(&l->num_batches_tracked);
}

/* running = (1 - 1/n) running + 1/n batch, where n counts the batch: on the device, as the count is. */
static void cumulate(rp_tensor *running, rp_tensor *batch, rp_tensor *factor) {
    (void)rp_mul_(running, rp_rsub_scalar(factor, rp_i64(1)));
    (void)rp_add_(running, rp_mul(batch, factor));
}

/* mean, var: of this batch, of a cumulative layer; else NULL. */
static rp_status count_batch(const rp_batch_norm_layer *l, rp_tensor *mean, rp_tensor *var) {
    const uint64_t failures = rp__error_count();
    const bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    (void)rp_add_scalar_(l->num_batches_tracked, rp_i64(1));
    if (mean) {
        rp_tensor *factor = rp_reciprocal(rp_to_dtype(l->num_batches_tracked, RP_F64));
        cumulate(l->running_mean, mean, factor);
        cumulate(l->running_var, var, factor);
    }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return rp__status_since(failures);
}

static rp_tensor *batch_norm_forward(const rp_batch_norm_layer *l, rp_tensor *x) {
    const bool training = l->module ? rp_module_training(l->module) : !l->evaluating;
    const bool cumulative = training && l->cumulative && l->num_batches_tracked;
    rp_tensor *mean = cumulative ? rp_zeros_like(l->running_mean) : l->running_mean;
    rp_tensor *var = cumulative ? rp_zeros_like(l->running_var) : l->running_var;
    rp_tensor *y = rp_batch_norm(x, l->weight, l->bias, mean, var, training || !l->running_mean,
                                 cumulative ? 1 : l->momentum, l->eps, true);
    if (!training || !l->num_batches_tracked || rp__tensor_is_error(y)) return y; /* what is refused does not count */
    return count_batch(l, cumulative ? mean : NULL, var) == RP_OK ? y : rp__tensor_error();
}

rp_tensor *rp_batch_norm_layer_forward_at(const char *site, const rp_batch_norm_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "batch norm layer");
    rp__site_frame frame = rp__site_push(site, "batch_norm");
    rp_scope scope = rp__scope_begin();
    rp__hooks_before(l->module, &x, 1);
    rp_tensor *y = scope.id ? rp__hooks_result(l->module, &x, 1, batch_norm_forward(l, x)) : rp__tensor_error();
    rp__scope_end(scope, &y, 1);
    rp__site_pop(frame);
    return y;
}

rp_status rp_batch_norm_add_at(const char *site, rp_module *m, const char *name, rp_batch_norm_layer *l,
                               int64_t num_features, const rp_batch_norm_options *options) {
    RP__CALLED_FROM(site);
    RP_TRY(rp_batch_norm_layer_init(l, num_features, options));
    return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false},
                           {"running_mean", &l->running_mean, true}, {"running_var", &l->running_var, true},
                           {"num_batches_tracked", &l->num_batches_tracked, true});
}

/* ---------------------------------------------------------------- dropout */

rp_tensor *rp_dropout_layer_forward_at(const char *site, const rp_dropout_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "dropout layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(l->module, &x, 1, rp_dropout_at(site, x, l->p, rp_module_training(l->module), NULL));
}

rp_status rp_dropout_add_at(const char *site, rp_module *m, const char *name, rp_dropout_layer *l, double p) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "dropout layer"));
    *l = (rp_dropout_layer){.p = p};
    RP_TRY(rp__layer_probability("dropout layer", p));
    return rp__module_adopt_layer(m, name, NULL, 0, &l->module);
}

/* ---------------------------------------------------------------- convolution */

static rp_status conv2d_fill(rp_conv2d_layer *l, int64_t in_channels, int64_t out_channels, int64_t height,
                             int64_t width, const rp_conv2d_options *o) {
    RP_TRY(rp__layer_positive("conv2d layer", "in_channels", in_channels));
    RP_TRY(rp__layer_positive("conv2d layer", "out_channels", out_channels));
    RP_TRY(rp__layer_positive("conv2d layer", "kernel height", height));
    RP_TRY(rp__layer_positive("conv2d layer", "kernel width", width));
    l->groups = o->groups ? o->groups : 1;
    RP_TRY(rp__layer_positive("conv2d layer", "groups", l->groups));
    if (in_channels % l->groups || out_channels % l->groups)
        return rp__fail(RP_ERROR_SHAPE, "conv2d layer: %lld groups do not divide %lld input and %lld output channels",
                        (long long)l->groups, (long long)in_channels, (long long)out_channels);
    for (int k = 0; k < 2; k++) {
        l->stride[k] = o->stride[k] ? o->stride[k] : 1;
        l->padding[k] = o->padding[k];
        l->dilation[k] = o->dilation[k] ? o->dilation[k] : 1;
    }
    l->weight = rp__parameter_new(RP_DIMS(out_channels, in_channels / l->groups, height, width), o->dtype);
    if (!l->weight) return rp_error_status();
    RP_TRY(rp_init_kaiming_uniform(l->weight, sqrt(5.0)));
    if (o->no_bias) return RP_OK;
    l->bias = rp__parameter_new(RP_DIMS(out_channels), o->dtype);
    if (!l->bias) return rp_error_status();
    double bound = 1.0 / sqrt((double)(in_channels / l->groups * height * width));
    return rp_init_uniform(l->bias, -bound, bound);
}

rp_status rp_conv2d_layer_init_at(const char *site, rp_conv2d_layer *l, int64_t in_channels, int64_t out_channels,
                                  int64_t kernel_height, int64_t kernel_width, const rp_conv2d_options *options) {
    RP__CALLED_FROM(site);
    rp_conv2d_options o;
    RP_TRY(rp__layer_need(l, "conv2d layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__options_read("conv2d layer", options, sizeof o, &o));
    rp_status status = conv2d_fill(l, in_channels, out_channels, kernel_height, kernel_width, &o);
    if (status != RP_OK) rp_conv2d_layer_release(l);
    return status;
}

void rp_conv2d_layer_release(rp_conv2d_layer *l) {
    if (!l) return;
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
}

rp_tensor *rp_conv2d_layer_forward_at(const char *site, const rp_conv2d_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "conv2d layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(
        l->module, &x, 1,
        rp_conv2d_at(site, x, l->weight, l->bias, l->stride, 2, l->padding, 2, l->dilation, 2, l->groups));
}

rp_status rp_conv2d_add_at(const char *site, rp_module *m, const char *name, rp_conv2d_layer *l, int64_t in_channels,
                           int64_t out_channels, int64_t kernel_height, int64_t kernel_width,
                           const rp_conv2d_options *options) {
    RP__CALLED_FROM(site);
    RP_TRY(rp_conv2d_layer_init(l, in_channels, out_channels, kernel_height, kernel_width, options));
    return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
}
