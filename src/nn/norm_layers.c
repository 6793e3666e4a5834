/* Norms as layers, beyond those of layer.c. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/options.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <string.h>

/* ---------------------------------------------------------------- rms norm */

rp_status rp_rms_norm_add_at(const char *site, rp_module *m, const char *name, rp_rms_norm_layer *l,
                             const int64_t *normalized_shape, size_t n_dims, double eps, bool elementwise_affine) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "rms norm layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__layer_shape("rms norm layer", normalized_shape, n_dims, l->normalized_shape, &l->n_dims));
    l->eps = eps;
    rp_status status =
        elementwise_affine ? rp__affine_new(&l->weight, NULL, normalized_shape, n_dims, RP_DTYPE_NONE) : RP_OK;
    if (status == RP_OK) return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false});
    rp__parameter_release(&l->weight);
    return status;
}

rp_tensor *rp_rms_norm_layer_forward_at(const char *site, const rp_rms_norm_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "rms norm layer");
    rp__hooks_before(l->module, &x, 1);
    const rp_scalar eps = l->eps > 0 ? rp_f64(l->eps) : l->eps < 0 ? rp_f64(0) : rp_none();
    return rp__hooks_result(l->module, &x, 1, rp_rms_norm_at(site, x, l->normalized_shape, l->n_dims, l->weight, eps));
}

/* ---------------------------------------------------------------- group norm */

rp_status rp_group_norm_add_at(const char *site, rp_module *m, const char *name, rp_group_norm_layer *l,
                               int64_t num_groups, int64_t num_channels, double eps, bool affine) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "group norm layer"));
    *l = (rp_group_norm_layer){.num_groups = num_groups, .eps = eps};
    RP_TRY(rp__layer_positive("group norm layer", "num_groups", num_groups));
    RP_TRY(rp__layer_positive("group norm layer", "num_channels", num_channels));
    if (num_channels % num_groups)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "group norm layer: %lld groups do not divide %lld channels",
                        (long long)num_groups, (long long)num_channels);
    rp_status status = affine ? rp__affine_new(&l->weight, &l->bias, &num_channels, 1, RP_DTYPE_NONE) : RP_OK;
    if (status == RP_OK) return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
    return status;
}

rp_tensor *rp_group_norm_layer_forward_at(const char *site, const rp_group_norm_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "group norm layer");
    rp__hooks_before(l->module, &x, 1);
    return rp__hooks_result(l->module, &x, 1,
                            rp_group_norm_at(site, x, l->num_groups, l->weight, l->bias, l->eps, true));
}

/* ---------------------------------------------------------------- instance norm */

static rp_status instance_norm_fill(rp_instance_norm_layer *l, int64_t n, const rp_instance_norm_options *o) {
    RP_TRY(rp__layer_positive("instance norm layer", "num_features", n));
    l->eps = rp__option_or(o->eps, 1e-5);
    l->momentum = rp__option_or(o->momentum, 0.1);
    if (o->spatial < 0 || o->spatial > 3)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "instance norm layer: there are 1 to 3 spatial dims, not %d",
                        o->spatial);
    l->spatial = o->spatial;
    if (o->affine) RP_TRY(rp__affine_new(&l->weight, &l->bias, &n, 1, RP_DTYPE_NONE));
    if (!o->track_running_stats) return RP_OK;
    l->running_mean = rp__buffer_new(RP_DIMS(n), RP_F32, 0);
    l->running_var = rp__buffer_new(RP_DIMS(n), RP_F32, 1);
    l->num_batches_tracked = rp__buffer_new(RP_NO_DIMS, RP_I64, 0);
    return l->running_mean && l->running_var && l->num_batches_tracked ? RP_OK : rp_error_status();
}

rp_status rp_instance_norm_add_at(const char *site, rp_module *m, const char *name, rp_instance_norm_layer *l,
                                  int64_t num_features, const rp_instance_norm_options *options) {
    RP__CALLED_FROM(site);
    rp_instance_norm_options o;
    RP_TRY(rp__layer_need(l, "instance norm layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__options_read("instance norm layer", options, sizeof o, &o));
    rp_status status = instance_norm_fill(l, num_features, &o);
    if (status == RP_OK)
        return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false},
                               {"running_mean", &l->running_mean, true}, {"running_var", &l->running_var, true},
                               {"num_batches_tracked", &l->num_batches_tracked, true});
    rp__parameter_release(&l->weight);
    rp__parameter_release(&l->bias);
    rp__parameter_release(&l->running_mean);
    rp__parameter_release(&l->running_var);
    rp__parameter_release(&l->num_batches_tracked);
    return status;
}

static rp_tensor *instance_norm_forward(const rp_instance_norm_layer *l, rp_tensor *x) {
    if (rp__tensor_check(x, "instance norm layer: the input") != RP_OK) return rp__tensor_error();
    const bool training = rp_module_training(l->module) || !l->running_mean;
    const unsigned batched = l->spatial ? (unsigned)l->spatial + 2 : x->ndim < 3 ? 3u : (unsigned)x->ndim;
    const bool alone = x->ndim + 1u == batched;
    if ((unsigned)x->ndim != batched && !alone) {
        (void)rp__fail(RP_ERROR_SHAPE, "instance norm layer: expected %uD or %uD input (got %uD input)", batched - 1,
                       batched, x->ndim);
        return rp__tensor_error();
    }
    rp_tensor *y = rp_instance_norm(alone ? rp_unsqueeze(x, 0) : x, l->weight, l->bias, l->running_mean, l->running_var,
                                    training, l->momentum, l->eps, true);
    return alone ? rp_squeeze(y, 0) : y;
}

rp_tensor *rp_instance_norm_layer_forward_at(const char *site, const rp_instance_norm_layer *l, rp_tensor *x) {
    if (!l) return rp__no_layer(site, "instance norm layer");
    rp__site_frame frame = rp__site_push(site, "instance_norm");
    rp_scope scope = rp__scope_begin();
    rp__hooks_before(l->module, &x, 1);
    rp_tensor *y = scope.id ? rp__hooks_result(l->module, &x, 1, instance_norm_forward(l, x)) : rp__tensor_error();
    rp__scope_end(scope, &y, 1);
    rp__site_pop(frame);
    return y;
}
