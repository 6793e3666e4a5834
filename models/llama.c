/* See llama.h. */
#include "llama.h"
#include "scoped.h"

#include <reprise_ops.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t given_or(int64_t value, int64_t otherwise) { return value ? value : otherwise; }

/* ---------------------------------------------------------------- parameters */

static rp_status linear_add(rp_module *m, const char *name, rp_linear_layer *l, int64_t in, int64_t out) {
    rp_status status = rp_linear_add(m, name, l, in, out, false);
    return status ? status : rp_init_normal(l->weight, 0, 0.02);
}

static rp_status norm_add(rp_module *m, const char *name, rp_tensor **weight, int64_t hidden) {
    *weight = rp_ones(RP_DIMS(hidden));
    rp_status status = rp_set_requires_grad(*weight, true);
    return status ? status : rp_module_add_parameter(rp_module_child(m, name), "weight", weight);
}

static rp_status layer_add(rp_module *m, const struct llama *l, struct llama_layer *y, int64_t inner) {
    const int64_t kv = l->hidden / l->heads * l->kv_heads;
    rp_module *attention = rp_module_child(m, "self_attn"), *mlp = rp_module_child(m, "mlp");
    rp_status status = linear_add(attention, "q_proj", &y->query, l->hidden, l->hidden);
    if (!status) status = linear_add(attention, "k_proj", &y->key, l->hidden, kv);
    if (!status) status = linear_add(attention, "v_proj", &y->value, l->hidden, kv);
    if (!status) status = linear_add(attention, "o_proj", &y->output, l->hidden, l->hidden);
    if (!status) status = linear_add(mlp, "gate_proj", &y->gate, l->hidden, inner);
    if (!status) status = linear_add(mlp, "up_proj", &y->up, l->hidden, inner);
    if (!status) status = linear_add(mlp, "down_proj", &y->down, inner, l->hidden);
    if (!status) status = norm_add(m, "input_layernorm", &y->norm1, l->hidden);
    return status ? status : norm_add(m, "post_attention_layernorm", &y->norm2, l->hidden);
}

/* Angle i of place p: p / theta^(2i / width), for both halves of a head. */
static rp_status rotations(struct llama *l, int64_t positions, int64_t width, double theta) {
    double *table = malloc((size_t)(2 * positions * width + 1) * sizeof *table), *sines = table + positions * width;
    if (!table) return RP_ERROR_OUT_OF_MEMORY;
    for (int64_t p = 0; p < positions; p++) {
        for (int64_t i = 0; i < width; i++) {
            const double angle = (double)p * pow(theta, -2.0 * (double)(i % (width / 2)) / (double)width);
            table[p * width + i] = cos(angle);
            sines[p * width + i] = sin(angle);
        }
    }
    l->cosines = rp_retain(rp_from_data(table, RP_DIMS(positions, width), RP_F64));
    l->sines = rp_retain(rp_from_data(sines, RP_DIMS(positions, width), RP_F64));
    free(table);
    return rp_failed() ? rp_error_status() : RP_OK;
}

static rp_status fill(struct llama *l, const struct llama_options *o) {
    const int64_t vocabulary = given_or(o->vocabulary, 49152);
    rp_module *m = rp_module_child(l->module, "model");
    rp_status status = rp_embedding_add(m, "embed_tokens", &l->words, vocabulary, l->hidden);
    if (!status) status = rp_init_normal(l->words.weight, 0, 0.02);
    rp_module *layers = rp_module_child(m, "layers");
    for (size_t i = 0; i < l->n_layers && !status; i++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        status = layer_add(rp_module_child(layers, name), l, &l->layers[i], given_or(o->intermediate, 1536));
    }
    if (!status) status = norm_add(m, "norm", &l->norm, l->hidden);
    if (status) return status;
    if (o->untied) {
        l->head = rp_empty(RP_DIMS(vocabulary, l->hidden));
        status = rp_init_normal(l->head, 0, 0.02);
        if (!status) status = rp_set_requires_grad(l->head, true);
    }
    rp_module *head = rp_module_child(l->module, "lm_head");
    if (!status) status = rp_module_add_parameter(head, "weight", o->untied ? &l->head : &l->words.weight);
    if (status) return status;
    return rotations(l, given_or(o->positions, 2048), l->hidden / l->heads, o->theta > 0 ? o->theta : 10000);
}

rp_status llama_init(struct llama *l, const struct llama_options *options) {
    const struct llama_options none = {0}, *o = options ? options : &none;
    memset(l, 0, sizeof *l);
    const int64_t layers = given_or(o->layers, 30);
    l->hidden = given_or(o->hidden, 576);
    l->heads = given_or(o->heads, 9);
    l->kv_heads = given_or(o->kv_heads, 3);
    l->eps = o->eps > 0 ? o->eps : 1e-5;
    if (layers < 1 || layers > LLAMA_MAX_LAYERS || l->heads < 1 || l->kv_heads < 1 || l->heads % l->kv_heads ||
        l->hidden % (2 * l->heads))
        return RP_ERROR_INVALID_ARGUMENT;
    l->n_layers = (size_t)layers;
    l->module = rp_module_new("llama");
    rp_scope scope = rp_scope_begin();
    rp_status status = fill(l, o), ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    if (status) llama_release(l);
    return status;
}

void llama_release(struct llama *l) {
    rp_release(l->cosines);
    rp_release(l->sines);
    rp_module_release(l->module);
    memset(l, 0, sizeof *l);
}

/* ---------------------------------------------------------------- forward */

static rp_tensor *norm(const struct llama *l, rp_tensor *x, rp_tensor *weight) {
    return rp_rms_norm(x, RP_DIMS(l->hidden), weight, rp_f64(l->eps));
}

struct rotation {
    rp_tensor *cosines, *sines; /* (tokens, width) of the parameters' type */
};

/* x: (batch, heads, tokens, width): each pair (i, i + width / 2) turned by its angle. */
static rp_tensor *rotated(rp_tensor *x, const struct rotation *r) {
    const int64_t half = rp_size(x, 3) / 2;
    rp_tensor *turned = rp_cat(RP_TENSORS(rp_neg(rp_narrow(x, 3, half, half)), rp_narrow(x, 3, 0, half)), 3);
    return rp_add(rp_mul(x, r->cosines), rp_mul(turned, r->sines));
}

static rp_tensor *layer_forward(const struct llama *l, size_t i, rp_tensor *x, const struct rotation *r,
                                const struct kv_cache *cache) {
    const struct llama_layer *y = &l->layers[i];
    rp_tensor *h = norm(l, x, y->norm1);
    rp_tensor *q = rotated(attention_split(rp_linear_layer_forward(&y->query, h), l->heads), r);
    rp_tensor *k = rotated(attention_split(rp_linear_layer_forward(&y->key, h), l->kv_heads), r);
    rp_tensor *v = attention_split(rp_linear_layer_forward(&y->value, h), l->kv_heads);
    x = rp_add(x, rp_linear_layer_forward(&y->output, attention_join(attention_causal(q, k, v, cache, i, NULL))));
    h = norm(l, x, y->norm2);
    h = rp_mul(rp_silu(rp_linear_layer_forward(&y->gate, h)), rp_linear_layer_forward(&y->up, h));
    return rp_add(x, rp_linear_layer_forward(&y->down, h));
}

/* Rows of a table for these tokens, of the type of x. */
static rp_tensor *rows_of(rp_tensor *table, rp_tensor *ids, const struct kv_cache *cache, rp_tensor *x) {
    rp_tensor *rows = cache ? rp_embedding(table, kv_cache_places(cache, rp_size(ids, 1)))
                            : rp_slice(table, 0, 0, rp_sym_size(ids, 1), 1);
    return rp_to_dtype(rows, rp_dtype_of(x));
}

rp_tensor *llama_forward(const struct llama *l, rp_tensor *ids, const struct kv_cache *cache) {
    rp_tensor *x = rp_embedding_layer_forward(&l->words, ids);
    const struct rotation r = {rows_of(l->cosines, ids, cache, x), rows_of(l->sines, ids, cache, x)};
    for (size_t i = 0; i < l->n_layers; i++) {
        rp_scope scope = rp_scope_begin();
        x = scope_keep(scope, layer_forward(l, i, x, &r, cache));
    }
    return rp_linear(norm(l, x, l->norm), l->head ? l->head : l->words.weight);
}

void llama_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = llama_forward(ctx, in[0], NULL);
}

static rp_tensor *logits(void *model, rp_tensor *ids, const struct kv_cache *cache) {
    return llama_forward(model, ids, cache);
}

rp_status llama_decoder(struct llama *l, struct decoder *d, int64_t batch, int64_t room) {
    memset(d, 0, sizeof *d);
    if (room > rp_size(l->cosines, 0)) return RP_ERROR_INVALID_ARGUMENT;
    d->logits = logits;
    d->model = l;
    rp_status status = kv_cache_init(&d->cache, l->n_layers, batch, l->kv_heads, room, l->hidden / l->heads,
                                     rp_dtype_of(l->words.weight));
    return status ? status : decoder_init(d);
}
