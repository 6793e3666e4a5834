/* A classifier of texts: Embedding, torch.nn.LSTM (batch first), and a linear layer on what it holds after the last
 * token. Names: embedding.weight, lstm.weight_ih_l0, ..., fc.weight, fc.bias; initial values are PyTorch's.
 *
 * The struct stays where it is from lstm_init to lstm_release: its module knows where its tensors lie.
 */
#ifndef MODELS_LSTM_H
#define MODELS_LSTM_H

#include "rnn.h"

struct lstm_options {   /* zero fields: as in the comments */
    int64_t vocabulary; /* 10000 */
    int64_t width;      /* of an embedding; 128 */
    int64_t hidden;     /* 256 */
    int64_t layers;     /* 2; at most RNN_MAX_LAYERS */
    int64_t classes;    /* 2 */
};

struct lstm {
    rp_module *module;
    rp_embedding_layer embedding;
    struct rnn_cell cells[RNN_MAX_LAYERS]; /* gates: input, forget, cell, output */
    size_t n_layers;
    int64_t hidden;
    rp_linear_layer fc;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status lstm_init(struct lstm *l, const struct lstm_options *options);
void lstm_release(struct lstm *l);
rp_tensor *lstm_forward(const struct lstm *l,
                        rp_tensor *ids); /* (batch, tokens) int64, one token or more; gives (batch, classes) */
/* The same as a function to compile; ctx: the struct lstm. */
void lstm_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
