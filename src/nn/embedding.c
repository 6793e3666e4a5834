/* Lookups as layers: embeddings with their options, and bags of them. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/options.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <string.h>

/* The rows that indices name, shortened in place first where that is asked for: no part of the derivative. */
static rp_status shorten(rp_tensor *weight, rp_tensor *indices, double max_norm, double norm_type) {
    if (max_norm <= 0) return RP_OK;
    const bool grad = rp_set_grad_enabled(false);
    const rp_tensor *done = rp_embedding_renorm_(weight, indices, max_norm, norm_type);
    (void)rp_set_grad_enabled(grad);
    return rp__tensor_is_error(done) ? rp_error_status() : RP_OK;
}

/* padding_idx of n rows from 0 on, or -1: none is given. */
static rp_status padding_of(const char *layer, rp_scalar given, int64_t n, int64_t *out) {
    *out = -1;
    if (given.kind == RP_SCALAR_NONE) return RP_OK;
    if (given.kind != RP_SCALAR_I64 || given.v.i < -n || given.v.i >= n)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: Padding_idx must be within num_embeddings, %lld", layer,
                        (long long)n);
    *out = given.v.i < 0 ? given.v.i + n : given.v.i;
    return RP_OK;
}

static rp_status clear_row(rp_tensor *weight, int64_t row) {
    if (row < 0) return RP_OK;
    const bool grad = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    const rp_tensor *done = scope.id ? rp_fill_(rp_select(weight, 0, row), rp_i64(0)) : rp__tensor_error();
    const rp_status status = rp__tensor_is_error(done) ? rp_error_status() : RP_OK;
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad);
    return status;
}

/* ---------------------------------------------------------------- embedding */

rp_status rp_embedding_layer_init_at(const char *site, rp_embedding_layer *l, int64_t num_embeddings,
                                     int64_t embedding_dim, rp_dtype dtype) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "embedding layer"));
    *l = (rp_embedding_layer){.padding_idx = -1};
    RP_TRY(rp__layer_positive("embedding layer", "num_embeddings", num_embeddings));
    RP_TRY(rp__layer_positive("embedding layer", "embedding_dim", embedding_dim));
    l->weight = rp__parameter_new(RP_DIMS(num_embeddings, embedding_dim), dtype);
    rp_status status = l->weight ? rp_init_normal(l->weight, 0.0, 1.0) : rp_error_status();
    if (status != RP_OK) rp_embedding_layer_release(l);
    return status;
}

void rp_embedding_layer_release(rp_embedding_layer *l) {
    if (l) rp__parameter_release(&l->weight);
}

rp_tensor *rp_embedding_layer_forward_at(const char *site, const rp_embedding_layer *l, rp_tensor *indices) {
    if (!l) return rp__no_layer(site, "embedding layer");
    rp__hooks_before(l->module, &indices, 1);
    if (l->max_norm > 0) {
        rp__site_frame frame = rp__site_push(site, "embedding");
        rp_scope scope = rp__scope_begin();
        const bool good = scope.id && shorten(l->weight, indices, l->max_norm, l->norm_type) == RP_OK;
        rp__scope_end(scope, NULL, 0);
        rp__site_pop(frame);
        if (!good) return rp__tensor_error();
    }
    return rp__hooks_result(l->module, &indices, 1,
                            rp_embedding_at(site, l->weight, indices, l->padding_idx, l->scale_grad_by_freq, false));
}

rp_status rp_embedding_add_at(const char *site, rp_module *m, const char *name, rp_embedding_layer *l,
                              int64_t num_embeddings, int64_t embedding_dim) {
    return rp_embedding_add_with_at(site, m, name, l, num_embeddings, embedding_dim, NULL);
}

rp_status rp_embedding_add_with_at(const char *site, rp_module *m, const char *name, rp_embedding_layer *l,
                                   int64_t num_embeddings, int64_t embedding_dim,
                                   const rp_embedding_layer_options *options) {
    RP__CALLED_FROM(site);
    rp_embedding_layer_options o;
    int64_t padding = -1;
    RP_TRY(rp__layer_need(l, "embedding layer"));
    *l = (rp_embedding_layer){.padding_idx = -1};
    RP_TRY(rp__options_read("embedding layer", options, sizeof o, &o));
    if (o.padding_idx.kind != RP_SCALAR_NONE)
        RP_TRY(padding_of("embedding layer", o.padding_idx, num_embeddings, &padding));
    RP_TRY(rp_embedding_layer_init(l, num_embeddings, embedding_dim, RP_DTYPE_NONE));
    l->padding_idx = padding;
    l->max_norm = o.max_norm;
    l->norm_type = rp__option_or(o.norm_type, 2);
    l->scale_grad_by_freq = o.scale_grad_by_freq;
    const rp_status status = clear_row(l->weight, padding);
    if (status == RP_OK) return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false});
    rp_embedding_layer_release(l);
    return status;
}

/* ---------------------------------------------------------------- bags */

rp_status rp_embedding_bag_add_at(const char *site, rp_module *m, const char *name, rp_embedding_bag_layer *l,
                                  int64_t num_embeddings, int64_t embedding_dim,
                                  const rp_embedding_bag_layer_options *options) {
    RP__CALLED_FROM(site);
    rp_embedding_bag_layer_options o;
    rp_embedding_layer rows;
    RP_TRY(rp__layer_need(l, "embedding bag layer"));
    *l = (rp_embedding_bag_layer){.padding_idx = -1};
    RP_TRY(rp__options_read("embedding bag layer", options, sizeof o, &o));
    if (o.mode != RP_BAG_MEAN && o.mode != RP_BAG_SUM && o.mode != RP_BAG_MAX)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "embedding bag layer: there is no mode %d", (int)o.mode);
    int64_t padding = -1;
    RP_TRY(padding_of("embedding bag layer", o.padding_idx, num_embeddings, &padding));
    RP_TRY(rp_embedding_layer_init(&rows, num_embeddings, embedding_dim, RP_DTYPE_NONE));
    l->weight = rows.weight;
    l->mode = o.mode;
    l->padding_idx = padding;
    l->max_norm = o.max_norm;
    l->norm_type = rp__option_or(o.norm_type, 2);
    l->scale_grad_by_freq = o.scale_grad_by_freq;
    l->include_last_offset = o.include_last_offset;
    const rp_status status = clear_row(l->weight, padding);
    if (status == RP_OK) return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false});
    rp__parameter_release(&l->weight);
    return status;
}

rp_tensor *rp_embedding_bag_layer_forward_at(const char *site, const rp_embedding_bag_layer *l, rp_tensor *indices,
                                             rp_tensor *offsets, rp_tensor *per_sample_weights) {
    static const int64_t modes[] = {[RP_BAG_SUM] = 0, [RP_BAG_MEAN] = 1, [RP_BAG_MAX] = 2};
    if (!l) return rp__no_layer(site, "embedding bag layer");
    rp__site_frame frame = rp__site_push(site, "embedding_bag");
    rp_scope scope = rp__scope_begin();
    rp_tensor *out = rp__tensor_error(), *in[] = {indices, offsets, per_sample_weights};
    rp__hooks_before(l->module, in, 3);
    if (scope.id && shorten(l->weight, in[0], l->max_norm, l->norm_type) == RP_OK)
        out = rp_embedding_bag(l->weight, in[0], in[1], l->scale_grad_by_freq, modes[l->mode], false, in[2],
                               l->include_last_offset, l->padding_idx < 0 ? INT64_MIN : l->padding_idx);
    out = rp__hooks_result(l->module, in, 3, out);
    rp__scope_end(scope, &out, 1);
    rp__site_pop(frame);
    return out;
}
