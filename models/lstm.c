/* See lstm.h. */
#include "lstm.h"

#include <reprise_ops.h>

#include <string.h>

static int64_t given_or(int64_t value, int64_t otherwise) { return value ? value : otherwise; }

rp_status lstm_init(struct lstm *l, const struct lstm_options *options) {
    const struct lstm_options none = {0}, *o = options ? options : &none;
    memset(l, 0, sizeof *l);
    const int64_t layers = given_or(o->layers, 2), width = given_or(o->width, 128);
    l->hidden = given_or(o->hidden, 256);
    if (l->hidden < 1 || layers < 1 || layers > RNN_MAX_LAYERS) return RP_ERROR_INVALID_ARGUMENT;
    l->n_layers = (size_t)layers;
    l->module = rp_module_new("lstm");
    rp_status status = rp_embedding_add(l->module, "embedding", &l->embedding, given_or(o->vocabulary, 10000), width);
    rp_module *m = rp_module_child(l->module, "lstm");
    for (size_t i = 0; i < l->n_layers && !status; i++)
        status = rnn_cell_add(m, &l->cells[i], i, i ? l->hidden : width, l->hidden, 4);
    if (!status) status = rp_linear_add(l->module, "fc", &l->fc, l->hidden, given_or(o->classes, 2), true);
    if (status) lstm_release(l);
    return status;
}

void lstm_release(struct lstm *l) {
    rp_module_release(l->module);
    memset(l, 0, sizeof *l);
}

rp_tensor *lstm_forward(const struct lstm *l, rp_tensor *ids) {
    rp_tensor *x = rp_embedding_layer_forward(&l->embedding, ids); /* (batch, tokens, width) */
    rp_tensor *params[4 * RNN_MAX_LAYERS], *last = NULL, *cells = NULL;
    const size_t n = rnn_parameters(l->cells, l->n_layers, params);
    rp_tensor *zeros = rnn_zeros(l->cells, l->n_layers, rp_sym_size(x, 0));
    rp_lstm(x, RP_TENSORS(zeros, zeros), params, n, true, (int64_t)l->n_layers, 0, false, false, true, &last, &cells);
    return rp_linear_layer_forward(&l->fc, rp_select(last, 0, -1)); /* of the last layer */
}

void lstm_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = lstm_forward(ctx, in[0]);
}
