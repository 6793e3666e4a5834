/* GPT-2 (Radford et al., 2019), as Hugging Face's GPT2LMHeadModel builds it: names of its state_dict, matrices as (in,
 * out), layer norm before each half of a block, gelu by its tanh formula, the head's matrix that of the embedding.
 *
 * The struct stays where it is from gpt2_init to gpt2_release: its module knows where its tensors lie.
 */
#ifndef MODELS_GPT2_H
#define MODELS_GPT2_H

#include "attention.h"

struct gpt2_options {   /* zero fields: the smallest of the four, of 124 million parameters */
    int64_t vocabulary; /* 0: 50257 */
    int64_t hidden;     /* 0: 768 */
    int64_t layers;     /* 0: 12; at most GPT2_MAX_LAYERS */
    int64_t heads;      /* 0: 12; divides hidden */
    int64_t positions;  /* 0: 1024: tokens of the longest text */
    double dropout;     /* 0: 0.1; negative: 0 */
};

enum { GPT2_MAX_LAYERS = 48 };

struct gpt2_linear {
    rp_tensor *weight, *bias; /* (in, out), (out) */
};

struct gpt2_layer {
    rp_layer_norm_layer norm1, norm2;
    struct gpt2_linear attention, projection, inner, outer;
};

struct gpt2 {
    rp_module *module; /* training mode at first: rp_module_set_training */
    int64_t heads, hidden;
    rp_dropout_layer dropout;
    rp_embedding_layer words, positions;
    struct gpt2_layer layers[GPT2_MAX_LAYERS];
    size_t n_layers;
    rp_layer_norm_layer norm;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status gpt2_init(struct gpt2 *g, const struct gpt2_options *options);
void gpt2_release(struct gpt2 *g);
/* ids: (batch, tokens) int64. cache NULL: a text from its beginning; else the tokens behind those in the cache, which
   the caller advances afterwards. Gives (batch, tokens, vocabulary). */
rp_tensor *gpt2_forward(const struct gpt2 *g, rp_tensor *ids, const struct kv_cache *cache);
/* As a function to compile, without a cache; ctx: the struct gpt2. */
void gpt2_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* What generates with it, for `batch` texts of at most `room` tokens each; the caller sets temperature and top, and
   releases it. */
rp_status gpt2_decoder(struct gpt2 *g, struct decoder *d, int64_t batch, int64_t room);

#endif
