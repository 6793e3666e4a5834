/* A torch.nn.RNN with a linear layer on what it holds after the last step. Names: rnn.weight_ih_l0, ..., fc.weight,
 * fc.bias; initial values are PyTorch's.
 *
 * The struct stays where it is from rnn_init to rnn_release: its module knows where its tensors lie.
 */
#ifndef MODELS_RNN_H
#define MODELS_RNN_H

#include <reprise.h>
#include <reprise_nn.h>

struct rnn_options {                 /* zero fields: RNN(64, 32), Linear(32, 10) */
    int64_t in, hidden, layers, out; /* layers: at most RNN_MAX_LAYERS; 0: 1 */
};

enum { RNN_MAX_LAYERS = 8 };

struct rnn_cell {
    rp_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
};

struct rnn {
    rp_module *module;
    struct rnn_cell cells[RNN_MAX_LAYERS];
    size_t n_layers;
    rp_linear_layer fc;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status rnn_init(struct rnn *r, const struct rnn_options *options);
void rnn_release(struct rnn *r);
/* x: (steps, in) or (steps, batch, in); gives (out) or (batch, out). */
rp_tensor *rnn_forward(const struct rnn *r, rp_tensor *x);
/* The same as a function to compile; ctx: the struct rnn. */
void rnn_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

/* For other recurrent models: the four parameters of layer `layer`, of `gates` times `hidden` rows each, uniform in
   +-1/sqrt(hidden). */
rp_status rnn_cell_add(rp_module *m, struct rnn_cell *c, size_t layer, int64_t in, int64_t hidden, int64_t gates);
/* Those of all layers in the order of the ops, 4 a layer, into out; returns how many. */
size_t rnn_parameters(const struct rnn_cell *cells, size_t layers, rp_tensor **out);
/* What they hold at first: (layers, batch, hidden). */
rp_tensor *rnn_zeros(const struct rnn_cell *cells, size_t layers, int64_t batch);

#endif
