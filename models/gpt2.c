/* See gpt2.h. */
#include "gpt2.h"
#include "scoped.h"

#include <reprise_ops.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t given_or(int64_t value, int64_t otherwise) { return value ? value : otherwise; }

/* ---------------------------------------------------------------- parameters */

static rp_status linear_add(rp_module *parent, const char *name, struct gpt2_linear *l, int64_t in, int64_t out,
                            double std) {
    rp_module *m = rp_module_child(parent, name);
    l->weight = rp_empty(RP_DIMS(in, out));
    l->bias = rp_zeros(RP_DIMS(out));
    rp_status status = rp_init_normal(l->weight, 0, std);
    if (!status) status = rp_set_requires_grad(l->weight, true);
    if (!status) status = rp_set_requires_grad(l->bias, true);
    if (!status) status = rp_module_add_parameter(m, "weight", &l->weight);
    return status ? status : rp_module_add_parameter(m, "bias", &l->bias);
}

static rp_status norm_add(rp_module *m, const char *name, rp_layer_norm_layer *l, int64_t hidden) {
    return rp_layer_norm_add(m, name, l, RP_DIMS(hidden), 1e-5, true);
}

static rp_status embedding_add(rp_module *m, const char *name, rp_embedding_layer *l, int64_t n, int64_t hidden) {
    rp_status status = rp_embedding_add(m, name, l, n, hidden);
    return status ? status : rp_init_normal(l->weight, 0, 0.02);
}

static rp_status layer_add(rp_module *m, struct gpt2_layer *l, int64_t hidden, size_t layers) {
    const double into_sum =
        0.02 / sqrt(2 * (double)layers); /* of what is added to the residual stream, twice a layer */
    rp_status status = norm_add(m, "ln_1", &l->norm1, hidden);
    rp_module *attention = rp_module_child(m, "attn");
    if (!status) status = linear_add(attention, "c_attn", &l->attention, hidden, 3 * hidden, 0.02);
    if (!status) status = linear_add(attention, "c_proj", &l->projection, hidden, hidden, into_sum);
    if (!status) status = norm_add(m, "ln_2", &l->norm2, hidden);
    rp_module *mlp = rp_module_child(m, "mlp");
    if (!status) status = linear_add(mlp, "c_fc", &l->inner, hidden, 4 * hidden, 0.02);
    return status ? status : linear_add(mlp, "c_proj", &l->outer, 4 * hidden, hidden, into_sum);
}

static rp_status fill(struct gpt2 *g, const struct gpt2_options *o) {
    rp_module *m = rp_module_child(g->module, "transformer");
    rp_status status = embedding_add(m, "wte", &g->words, given_or(o->vocabulary, 50257), g->hidden);
    if (!status) status = embedding_add(m, "wpe", &g->positions, given_or(o->positions, 1024), g->hidden);
    rp_module *layers = rp_module_child(m, "h");
    for (size_t i = 0; i < g->n_layers && !status; i++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        status = layer_add(rp_module_child(layers, name), &g->layers[i], g->hidden, g->n_layers);
    }
    if (!status) status = norm_add(m, "ln_f", &g->norm, g->hidden);
    if (!status) status = rp_module_add_parameter(rp_module_child(g->module, "lm_head"), "weight", &g->words.weight);
    const double p = o->dropout < 0 ? 0 : o->dropout > 0 ? o->dropout : 0.1;
    return status ? status : rp_dropout_add(g->module, "dropout", &g->dropout, p);
}

rp_status gpt2_init(struct gpt2 *g, const struct gpt2_options *options) {
    const struct gpt2_options none = {0}, *o = options ? options : &none;
    memset(g, 0, sizeof *g);
    const int64_t layers = given_or(o->layers, 12);
    g->hidden = given_or(o->hidden, 768);
    g->heads = given_or(o->heads, 12);
    if (layers < 1 || layers > GPT2_MAX_LAYERS || g->heads < 1 || g->hidden % g->heads)
        return RP_ERROR_INVALID_ARGUMENT;
    g->n_layers = (size_t)layers;
    g->module = rp_module_new("gpt2");
    rp_scope scope = rp_scope_begin();
    rp_status status = fill(g, o), ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    if (status) gpt2_release(g);
    return status;
}

void gpt2_release(struct gpt2 *g) {
    rp_module_release(g->module);
    memset(g, 0, sizeof *g);
}

/* ---------------------------------------------------------------- forward */

static rp_tensor *linear(const struct gpt2_linear *l, rp_tensor *x) {
    return rp_linear(x, rp_transpose(l->weight, 0, 1), l->bias);
}

static rp_tensor *layer_forward(const struct gpt2 *g, size_t i, rp_tensor *x, const struct kv_cache *cache) {
    const struct gpt2_layer *l = &g->layers[i];
    rp_tensor *y = linear(&l->attention, rp_layer_norm_layer_forward(&l->norm1, x)), *part[3];
    for (int k = 0; k < 3; k++) part[k] = attention_split(rp_narrow(y, -1, k * g->hidden, g->hidden), g->heads);
    y = attention_join(attention_causal(part[0], part[1], part[2], cache, i, &g->dropout));
    x = rp_add(rp_dropout_layer_forward(&g->dropout, linear(&l->projection, y)), x);
    y = linear(&l->inner, rp_layer_norm_layer_forward(&l->norm2, x));
    y = linear(&l->outer, rp_gelu(y, RP_OPTIONS(rp_gelu_options, .approximate = "tanh")));
    return rp_add(x, rp_dropout_layer_forward(&g->dropout, y));
}

rp_tensor *gpt2_forward(const struct gpt2 *g, rp_tensor *ids, const struct kv_cache *cache) {
    rp_tensor *places = cache ? rp_embedding_layer_forward(&g->positions, kv_cache_places(cache, rp_size(ids, 1)))
                              : rp_slice(g->positions.weight, 0, 0, rp_sym_size(ids, 1), 1);
    rp_tensor *x = rp_add(rp_embedding_layer_forward(&g->words, ids), places);
    x = rp_dropout_layer_forward(&g->dropout, x);
    for (size_t i = 0; i < g->n_layers; i++) {
        rp_scope scope = rp_scope_begin();
        x = scope_keep(scope, layer_forward(g, i, x, cache));
    }
    return rp_linear(rp_layer_norm_layer_forward(&g->norm, x), g->words.weight);
}

void gpt2_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = gpt2_forward(ctx, in[0], NULL);
}

static rp_tensor *logits(void *model, rp_tensor *ids, const struct kv_cache *cache) {
    return gpt2_forward(model, ids, cache);
}

rp_status gpt2_decoder(struct gpt2 *g, struct decoder *d, int64_t batch, int64_t room) {
    memset(d, 0, sizeof *d);
    if (room > rp_size(g->positions.weight, 0)) return RP_ERROR_INVALID_ARGUMENT;
    d->logits = logits;
    d->model = g;
    rp_status status = kv_cache_init(&d->cache, g->n_layers, batch, g->heads, room, g->hidden / g->heads,
                                     rp_dtype_of(g->words.weight));
    return status ? status : decoder_init(d);
}
