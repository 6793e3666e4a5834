/* A decoder of Llama's form (Touvron et al., arXiv 2302.13971), as Hugging Face's LlamaForCausalLM builds it: names of
 * its state_dict, root-mean-square norm before each half of a block, rotary positions by halves, key heads that serve a
 * group of query heads, and a gated inner layer (silu).
 *
 * The struct stays where it is from llama_init to llama_release: its module knows where its tensors lie.
 */
#ifndef MODELS_LLAMA_H
#define MODELS_LLAMA_H

#include "attention.h"

struct llama_options {    /* zero fields: a small one of 135 million parameters */
    int64_t vocabulary;   /* 0: 49152 */
    int64_t hidden;       /* 0: 576 */
    int64_t layers;       /* 0: 30; at most LLAMA_MAX_LAYERS */
    int64_t heads;        /* 0: 9; divides hidden into even widths */
    int64_t kv_heads;     /* 0: 3; divides heads */
    int64_t intermediate; /* 0: 1536 */
    int64_t positions;    /* 0: 2048: tokens of the longest text */
    double theta;         /* base of the rotary positions; 0: 10000 */
    double eps;           /* of the norms; 0: 1e-5 */
    bool untied;          /* the head has a matrix of its own, not that of the embedding */
};

enum { LLAMA_MAX_LAYERS = 128 };

struct llama_layer {
    rp_tensor *norm1, *norm2; /* (hidden) */
    rp_linear_layer query, key, value, output, gate, up, down;
};

struct llama {
    rp_module *module;
    int64_t heads, kv_heads, hidden;
    double eps;
    rp_tensor *cosines,
        *sines; /* (positions, width of a head) float64, no part of the state: rounded where they are used */
    rp_embedding_layer words;
    struct llama_layer layers[LLAMA_MAX_LAYERS];
    size_t n_layers;
    rp_tensor *norm, *head; /* (hidden), (vocabulary, hidden); head NULL: the embedding's matrix */
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status llama_init(struct llama *l, const struct llama_options *options);
void llama_release(struct llama *l);
/* ids: (batch, tokens) int64. cache NULL: a text from its beginning; else the tokens behind those in the cache, which
   the caller advances afterwards. Gives (batch, tokens, vocabulary). */
rp_tensor *llama_forward(const struct llama *l, rp_tensor *ids, const struct kv_cache *cache);
/* As a function to compile, without a cache; ctx: the struct llama. */
void llama_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* What generates with it, for `batch` texts of at most `room` tokens each; the caller sets temperature and top, and
   releases it. */
rp_status llama_decoder(struct llama *l, struct decoder *d, int64_t batch, int64_t room);

#endif
