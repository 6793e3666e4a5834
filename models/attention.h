/* Attention as the models here share it, and the buffers of a decoder that generates token by token. */
#ifndef MODELS_ATTENTION_H
#define MODELS_ATTENTION_H

#include <reprise.h>
#include <reprise_nn.h>

/* (batch, tokens, heads * width) to (batch, heads, tokens, width), and back. */
rp_tensor *attention_split(rp_tensor *x, int64_t heads);
rp_tensor *attention_join(rp_tensor *x);

/* Scaled dot product attention: softmax(q k^T / sqrt(width) + bias) v. q: (batch, heads, tokens, width), k and v: (batch, kv heads, tokens, width),
   each of their heads serving heads / kv heads of q. bias: as the scores or broadcast to them, (batch, heads, tokens,
   tokens); NULL: none. drop: on the weights; NULL: none. Gives (batch, heads, tokens, width). */
rp_tensor *attention(rp_tensor *q, rp_tensor *k, rp_tensor *v, rp_tensor *bias, const rp_dropout_layer *drop);

/* Keys and values of the tokens so far, in buffers that stay where they are: what reads and writes them can be recorded
   once and played back for every token. */
struct kv_cache {
    size_t n_layers;
    int64_t room;               /* tokens */
    rp_tensor **keys, **values; /* of each layer: (batch, kv heads, room, width) */
    rp_tensor *count;           /* 0-d int64: tokens that are in it */
};

/* On failure nothing is held, and the status says why. */
rp_status kv_cache_init(struct kv_cache *c, size_t layers, int64_t batch, int64_t kv_heads, int64_t room, int64_t width,
                        rp_dtype dtype);
void kv_cache_release(struct kv_cache *c);
rp_status kv_cache_clear(struct kv_cache *c); /* no tokens are in it */
/* Places of n new tokens, (n) int64: count, count + 1, ... */
rp_tensor *kv_cache_places(const struct kv_cache *c, int64_t n);
/* Behind the forward of n tokens. More than there is room for are no error here: the caller counts. */
void kv_cache_advance(const struct kv_cache *c, int64_t n);

/* attention in which a token sees itself and those before it. cache NULL: tokens among themselves; else k and v of the
   new tokens go into layer `layer` of the cache, and all that is in it is seen. */
rp_tensor *attention_causal(rp_tensor *q, rp_tensor *k, rp_tensor *v, const struct kv_cache *cache, size_t layer,
                            const rp_dropout_layer *drop);

/* A language model that generates: its function from ids (batch, tokens) to logits (batch, tokens, vocabulary) through
   its cache. */
struct decoder {
    rp_tensor *(*logits)(void *model, rp_tensor *ids, const struct kv_cache *cache);
    void *model;
    struct kv_cache cache;
    rp_tensor *token;   /* (batch, 1) int64: the next one to go in; a buffer as the cache's */
    double temperature; /* 0: the most probable token; else drawn from softmax(logits / temperature) */
    int64_t top;        /* with a temperature: of so many most probable ones; 0: of all */
};

/* Fills the rest of a decoder whose logits, model, cache, temperature and top are there. */
rp_status decoder_init(struct decoder *d);
void decoder_release(struct decoder *d); /* the cache too */
/* The tokens of a prompt, (batch, tokens) int64, go in at once, into a cleared cache; the next token is in d->token. */
rp_status decoder_prompt(struct decoder *d, rp_tensor *ids);
/* One more token, as a function to compile or capture: ctx: the struct decoder. No arguments; out: the token that
   followed, also in d->token, where the next call reads it. */
void decoder_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
