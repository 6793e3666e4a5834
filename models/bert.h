/* BERT (Devlin et al., arXiv 1810.04805), as Hugging Face's BertModel and BertForMaskedLM build it: names of their
 * state_dict (of BertModel without the prefix "bert."), their initial values, tanh pooler, exact gelu.
 *
 * The struct stays where it is from bert_init to bert_release: its module knows where its tensors lie.
 */
#ifndef MODELS_BERT_H
#define MODELS_BERT_H

#include <reprise.h>
#include <reprise_nn.h>

struct bert_options {     /* zero fields: bert-base-uncased */
    int64_t vocabulary;   /* 0: 30522 */
    int64_t hidden;       /* 0: 768 */
    int64_t layers;       /* 0: 12; at most BERT_MAX_LAYERS */
    int64_t heads;        /* 0: 12; divides hidden */
    int64_t intermediate; /* 0: 3072 */
    int64_t positions;    /* 0: 512: tokens of the longest text */
    double dropout;       /* 0: 0.1; negative: 0 */
    bool masked_lm;       /* with the head that predicts tokens, whose matrix is that of the embedding */
};

enum { BERT_MAX_LAYERS = 48 };

struct bert_layer {
    rp_linear_layer query, key, value, attention_output, intermediate, output;
    rp_layer_norm_layer attention_norm, output_norm;
};

struct bert {
    rp_module *module; /* training mode at first: rp_module_set_training */
    int64_t heads, hidden;
    rp_dropout_layer dropout;
    rp_embedding_layer words, positions, types;
    rp_layer_norm_layer embeddings_norm;
    struct bert_layer layers[BERT_MAX_LAYERS];
    size_t n_layers;
    rp_linear_layer pooler;
    bool masked_lm;
    rp_linear_layer transform; /* of the head, as what follows */
    rp_layer_norm_layer transform_norm;
    rp_tensor *bias;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status bert_init(struct bert *b, const struct bert_options *options);
void bert_release(struct bert *b);
/* ids, types: (batch, tokens) int64; types NULL: zeros. mask: (batch, tokens), of the float type of the parameters, 1
   for tokens and 0 for padding; NULL: all are tokens. Gives the last hidden states, (batch, tokens, hidden). */
rp_tensor *bert_forward(const struct bert *b, rp_tensor *ids, rp_tensor *types, rp_tensor *mask);
rp_tensor *bert_pool(const struct bert *b, rp_tensor *hidden);   /* of the first token: (batch, hidden) */
rp_tensor *bert_logits(const struct bert *b, rp_tensor *hidden); /* (batch, tokens, vocabulary), with masked_lm */
/* As a function to compile; ctx: the struct bert. in: ids[, types[, mask]]; out: logits with masked_lm, else last
   hidden states, then the pooled ones where n_out is 2. */
void bert_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
