/* See bert.h. */
#include "bert.h"
#include "attention.h"
#include "scoped.h"

#include <reprise_ops.h>

#include <stdio.h>
#include <string.h>

static int64_t given_or(int64_t value, int64_t otherwise) { return value ? value : otherwise; }

/* ---------------------------------------------------------------- parameters */

static rp_status linear_add(rp_module *m, const char *name, rp_linear_layer *l, int64_t in, int64_t out) {
    rp_status status = rp_linear_add(m, name, l, in, out, true);
    if (!status) status = rp_init_normal(l->weight, 0, 0.02);
    return status ? status : rp_init_constant(l->bias, 0);
}

static rp_status embedding_add(rp_module *m, const char *name, rp_embedding_layer *l, int64_t n, int64_t hidden) {
    rp_status status = rp_embedding_add(m, name, l, n, hidden);
    return status ? status : rp_init_normal(l->weight, 0, 0.02);
}

static rp_status norm_add(rp_module *m, rp_layer_norm_layer *l, int64_t hidden) {
    return rp_layer_norm_add(m, "LayerNorm", l, RP_DIMS(hidden), 1e-12, true);
}

static rp_status layer_add(rp_module *m, struct bert_layer *l, int64_t hidden, int64_t intermediate) {
    rp_module *attention = rp_module_child(m, "attention"), *self = rp_module_child(attention, "self");
    rp_status status = linear_add(self, "query", &l->query, hidden, hidden);
    if (!status) status = linear_add(self, "key", &l->key, hidden, hidden);
    if (!status) status = linear_add(self, "value", &l->value, hidden, hidden);
    rp_module *output = rp_module_child(attention, "output");
    if (!status) status = linear_add(output, "dense", &l->attention_output, hidden, hidden);
    if (!status) status = norm_add(output, &l->attention_norm, hidden);
    if (!status)
        status = linear_add(rp_module_child(m, "intermediate"), "dense", &l->intermediate, hidden, intermediate);
    output = rp_module_child(m, "output");
    if (!status) status = linear_add(output, "dense", &l->output, intermediate, hidden);
    return status ? status : norm_add(output, &l->output_norm, hidden);
}

static rp_status body_add(rp_module *m, struct bert *b, const struct bert_options *o) {
    const int64_t hidden = b->hidden;
    rp_module *embeddings = rp_module_child(m, "embeddings");
    rp_status status = embedding_add(embeddings, "word_embeddings", &b->words, given_or(o->vocabulary, 30522), hidden);
    if (!status) status = rp_init_constant(rp_select(rp_detach(b->words.weight), 0, 0), 0); /* of padding */
    if (!status)
        status = embedding_add(embeddings, "position_embeddings", &b->positions, given_or(o->positions, 512), hidden);
    if (!status) status = embedding_add(embeddings, "token_type_embeddings", &b->types, 2, hidden);
    if (!status) status = norm_add(embeddings, &b->embeddings_norm, hidden);
    rp_module *layers = rp_module_child(rp_module_child(m, "encoder"), "layer");
    for (size_t i = 0; i < b->n_layers && !status; i++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        status = layer_add(rp_module_child(layers, name), &b->layers[i], hidden, given_or(o->intermediate, 3072));
    }
    if (status || b->masked_lm) return status;
    return linear_add(rp_module_child(m, "pooler"), "dense", &b->pooler, hidden, hidden);
}

static rp_status head_add(rp_module *m, struct bert *b) {
    rp_module *predictions = rp_module_child(rp_module_child(m, "cls"), "predictions");
    rp_scope scope = rp_scope_begin();
    b->bias = rp_zeros(RP_DIMS(rp_size(b->words.weight, 0)));
    rp_status status = rp_set_requires_grad(b->bias, true);
    if (!status) status = rp_module_add_parameter(predictions, "bias", &b->bias);
    rp_status ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    rp_module *transform = rp_module_child(predictions, "transform");
    if (!status) status = linear_add(transform, "dense", &b->transform, b->hidden, b->hidden);
    if (!status) status = norm_add(transform, &b->transform_norm, b->hidden);
    rp_module *decoder = rp_module_child(predictions, "decoder");
    if (!status) status = rp_module_add_parameter(decoder, "weight", &b->words.weight);
    return status ? status : rp_module_add_parameter(decoder, "bias", &b->bias);
}

rp_status bert_init(struct bert *b, const struct bert_options *options) {
    const struct bert_options none = {0}, *o = options ? options : &none;
    memset(b, 0, sizeof *b);
    const int64_t layers = given_or(o->layers, 12);
    b->hidden = given_or(o->hidden, 768);
    b->heads = given_or(o->heads, 12);
    b->masked_lm = o->masked_lm;
    if (layers < 1 || layers > BERT_MAX_LAYERS || b->heads < 1 || b->hidden % b->heads)
        return RP_ERROR_INVALID_ARGUMENT;
    b->n_layers = (size_t)layers;
    b->module = rp_module_new("bert");
    rp_scope scope = rp_scope_begin();
    rp_status status = body_add(b->masked_lm ? rp_module_child(b->module, "bert") : b->module, b, o);
    if (!status)
        status = rp_dropout_add(b->module, "dropout", &b->dropout,
                                o->dropout < 0   ? 0
                                : o->dropout > 0 ? o->dropout
                                                 : 0.1);
    if (!status && b->masked_lm) status = head_add(b->module, b);
    rp_status ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    if (status) bert_release(b);
    return status;
}

void bert_release(struct bert *b) {
    rp_module_release(b->module);
    memset(b, 0, sizeof *b);
}

/* ---------------------------------------------------------------- forward */

static rp_tensor *drop(const struct bert *b, rp_tensor *x) { return rp_dropout_layer_forward(&b->dropout, x); }

static rp_tensor *heads_of(const struct bert *b, const rp_linear_layer *l, rp_tensor *x) {
    return attention_split(rp_linear_layer_forward(l, x), b->heads); /* (batch, heads, tokens, hidden / heads) */
}

static rp_tensor *self_attention(const struct bert *b, const struct bert_layer *l, rp_tensor *x, rp_tensor *bias) {
    rp_tensor *q = heads_of(b, &l->query, x), *k = heads_of(b, &l->key, x), *v = heads_of(b, &l->value, x);
    return attention_join(attention(q, k, v, bias, &b->dropout));
}

static rp_tensor *layer_forward(const struct bert *b, const struct bert_layer *l, rp_tensor *x, rp_tensor *bias) {
    rp_tensor *y = drop(b, rp_linear_layer_forward(&l->attention_output, self_attention(b, l, x, bias)));
    x = rp_layer_norm_layer_forward(&l->attention_norm, rp_add(y, x));
    y = rp_gelu(rp_linear_layer_forward(&l->intermediate, x));
    y = drop(b, rp_linear_layer_forward(&l->output, y));
    return rp_layer_norm_layer_forward(&l->output_norm, rp_add(y, x));
}

static double lowest(rp_dtype dtype) {
    return dtype == RP_F16    ? -65504.0
           : dtype == RP_BF16 ? -3.3895313892515355e38
           : dtype == RP_F64  ? -1.7976931348623157e308
                              : -3.4028234663852886e38;
}

rp_tensor *bert_forward(const struct bert *b, rp_tensor *ids, rp_tensor *types, rp_tensor *mask) {
    const int64_t tokens = rp_sym_size(ids, 1);
    rp_tensor *padding = rp_detach(rp_select(b->words.weight, 0, 0)); /* of token 0, which gets no gradient */
    rp_tensor *x = rp_embedding_layer_forward(&b->words, ids);
    x = rp_where(rp_unsqueeze(rp_eq_scalar(ids, rp_i64(0)), -1), padding, x);
    rp_tensor *type = types ? rp_embedding_layer_forward(&b->types, types) : rp_select(b->types.weight, 0, 0);
    x = rp_add(rp_add(x, type), rp_slice(b->positions.weight, 0, 0, tokens, 1));
    x = drop(b, rp_layer_norm_layer_forward(&b->embeddings_norm, x));
    rp_tensor *bias = NULL;
    if (mask) { /* 0 for tokens, the lowest number of the type for padding: (batch, 1, 1, tokens) */
        rp_tensor *hidden = rp_add_scalar(rp_neg(rp_unsqueeze(rp_unsqueeze(mask, 1), 1)), rp_i64(1));
        bias = rp_mul_scalar(hidden, rp_f64(lowest(rp_dtype_of(mask))));
    }
    for (size_t i = 0; i < b->n_layers; i++) {
        rp_scope scope = rp_scope_begin();
        x = scope_keep(scope, layer_forward(b, &b->layers[i], x, bias));
    }
    return x;
}

rp_tensor *bert_pool(const struct bert *b, rp_tensor *hidden) {
    return rp_tanh(rp_linear_layer_forward(&b->pooler, rp_select(hidden, 1, 0)));
}

rp_tensor *bert_logits(const struct bert *b, rp_tensor *hidden) {
    rp_tensor *x =
        rp_layer_norm_layer_forward(&b->transform_norm, rp_gelu(rp_linear_layer_forward(&b->transform, hidden)));
    return rp_linear(x, b->words.weight, b->bias);
}

void bert_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct bert *b = ctx;
    rp_tensor *hidden = bert_forward(b, in[0], n_in > 1 ? in[1] : NULL, n_in > 2 ? in[2] : NULL);
    out[0] = b->masked_lm ? bert_logits(b, hidden) : hidden;
    if (n_out > 1) out[1] = bert_pool(b, hidden);
}
