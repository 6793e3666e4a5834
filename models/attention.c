/* See attention.h. */
#include "attention.h"

#include <reprise_ops.h>

#include <stdlib.h>
#include <string.h>

/* Heads of keys and values serve groups of queries. */
static const rp_scaled_dot_product_attention_options grouped = {.struct_size = sizeof grouped, .enable_gqa = RP_TRUE};

rp_tensor *attention_split(rp_tensor *x, int64_t heads) {
    return rp_transpose(rp_unflatten(x, -1, RP_DIMS(heads, -1)), 1, 2);
}

rp_tensor *attention_join(rp_tensor *x) { return rp_flatten(rp_transpose(x, 1, 2), 2, 3); }

static double probability(const rp_dropout_layer *drop) {
    return drop && rp_module_training(drop->module) ? drop->p : 0;
}

rp_tensor *attention(rp_tensor *q, rp_tensor *k, rp_tensor *v, rp_tensor *bias, const rp_dropout_layer *drop) {
    return rp_scaled_dot_product_attention(q, k, v, bias, probability(drop), false, &grouped);
}

/* ---------------------------------------------------------------- the cache */

rp_status kv_cache_init(struct kv_cache *c, size_t layers, int64_t batch, int64_t kv_heads, int64_t room, int64_t width,
                        rp_dtype dtype) {
    memset(c, 0, sizeof *c);
    c->n_layers = layers;
    c->room = room;
    c->keys = calloc(2 * layers + 1, sizeof *c->keys);
    if (!c->keys) return RP_ERROR_OUT_OF_MEMORY;
    c->values = c->keys + layers;
    rp_scope scope = rp_scope_begin();
    for (size_t i = 0; i < 2 * layers; i++)
        c->keys[i] =
            rp_retain(rp_zeros(RP_DIMS(batch, kv_heads, room, width), RP_OPTIONS(rp_zeros_options, .dtype = dtype)));
    c->count = rp_retain(rp_zeros(NULL, 0, RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)));
    rp_status status = rp_failed() ? rp_error_status() : RP_OK, ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    if (status) kv_cache_release(c);
    return status;
}

void kv_cache_release(struct kv_cache *c) {
    for (size_t i = 0; c->keys && i < 2 * c->n_layers; i++) rp_release(c->keys[i]);
    rp_release(c->count);
    free(c->keys);
    memset(c, 0, sizeof *c);
}

rp_status kv_cache_clear(struct kv_cache *c) {
    rp_fill_(c->count, rp_i64(0));
    return rp_failed() ? rp_error_status() : RP_OK;
}

static rp_tensor *numbers(int64_t n) { return rp_arange(rp_i64(0), rp_i64(n)); }

rp_tensor *kv_cache_places(const struct kv_cache *c, int64_t n) { return rp_add(numbers(n), c->count); }

void kv_cache_advance(const struct kv_cache *c, int64_t n) { rp_add_scalar_(c->count, rp_i64(n)); }

/* The buffer with x, (batch, kv heads, n, width), in the places behind those that it has; it is written, too. */
static rp_tensor *put(const struct kv_cache *c, rp_tensor *buffer, rp_tensor *x) {
    const int64_t n = rp_size(x, 2);
    rp_tensor *from = rp_sub(numbers(c->room), c->count); /* (room): which of the new tokens a place gets */
    rp_tensor *is_new = rp_logical_and(rp_ge_scalar(from, rp_i64(0)), rp_lt_scalar(from, rp_i64(n)));
    if (n > 1) {
        from = rp_unsqueeze(rp_clamp(from, rp_i64(0), rp_i64(n - 1)), 1); /* (room, 1) */
        x = rp_gather(x, 2, rp_expand(from, RP_DIMS(rp_size(x, 0), rp_size(x, 1), c->room, rp_size(x, 3))));
    }
    return rp_copy_(buffer, rp_where(rp_unsqueeze(is_new, 1), x, buffer));
}

rp_tensor *attention_causal(rp_tensor *q, rp_tensor *k, rp_tensor *v, const struct kv_cache *cache, size_t layer,
                            const rp_dropout_layer *drop) {
    if (!cache) return rp_scaled_dot_product_attention(q, k, v, NULL, probability(drop), true, &grouped);
    k = put(cache, cache->keys[layer], k);
    v = put(cache, cache->values[layer], v);
    rp_tensor *seen = rp_le(numbers(cache->room), rp_unsqueeze(kv_cache_places(cache, rp_size(q, 2)), 1));
    return rp_scaled_dot_product_attention(q, k, v, seen, probability(drop), false, &grouped);
}

/* ---------------------------------------------------------------- generation */

rp_status decoder_init(struct decoder *d) {
    rp_scope scope = rp_scope_begin();
    d->token =
        rp_retain(rp_zeros(RP_DIMS(rp_size(d->cache.keys[0], 0), 1), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)));
    rp_status status = rp_failed() ? rp_error_status() : RP_OK, ended = rp_scope_end(scope, NULL, 0);
    return status ? status : ended;
}

void decoder_release(struct decoder *d) {
    kv_cache_release(&d->cache);
    rp_release(d->token);
    memset(d, 0, sizeof *d);
}

/* logits: (batch, vocabulary); gives (batch, 1). */
static rp_tensor *choose(const struct decoder *d, rp_tensor *logits) {
    if (!(d->temperature > 0)) return rp_argmax(logits, -1, true);
    rp_tensor *indices = NULL;
    logits = rp_mul_scalar(logits, rp_f64(1 / d->temperature));
    if (d->top > 0) logits = rp_topk(logits, d->top, -1, true, true, &indices);
    rp_tensor *drawn = rp_multinomial(rp_softmax(logits, -1), 1);
    return indices ? rp_gather(indices, -1, drawn) : drawn;
}

static rp_tensor *forward(struct decoder *d, rp_tensor *ids) {
    rp_tensor *logits = d->logits(d->model, ids, &d->cache);
    const int64_t n = rp_size(ids, 1);
    kv_cache_advance(&d->cache, n);
    return rp_copy_(d->token, choose(d, rp_select(logits, 1, n - 1)));
}

rp_status decoder_prompt(struct decoder *d, rp_tensor *ids) {
    rp_status status = kv_cache_clear(&d->cache);
    if (!status) forward(d, ids);
    return rp_failed() ? rp_error_status() : status;
}

void decoder_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct decoder *d = ctx;
    (void)in, (void)n_in, (void)n_out;
    out[0] = rp_clone(forward(d, d->token));
}
