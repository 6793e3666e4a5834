/* See lstm.h. */
#include "lstm.h"

#include <reprise_ops.h>

#include <stdlib.h>
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

/* (batch, tokens, ...) to (batch, tokens, hidden); the last token's alone, (batch, hidden), where nobody needs the
   others. */
static rp_tensor *layer_forward(const struct lstm *l, const struct rnn_cell *cell, rp_tensor *x, bool last_alone) {
    const size_t tokens = (size_t)rp_size(x, 1);
    const int64_t n = l->hidden;
    rp_tensor *inputs = rp_linear(x, cell->weight_ih, cell->bias_ih), *h = NULL, *c = NULL; /* both zero at first */
    rp_tensor **rows = rp_is_error(x) ? NULL : calloc(tokens + 1, sizeof *rows);
    if (!rows) return rp_tanh(NULL); /* an error tensor */
    for (size_t t = 0; t < tokens; t++) {
        rp_tensor *sum = rp_select(inputs, 1, (int64_t)t); /* (batch, 4 hidden) */
        sum = rp_add(sum, h ? rp_linear(h, cell->weight_hh, cell->bias_hh) : cell->bias_hh);
        rp_tensor *input = rp_sigmoid(rp_narrow(sum, 1, 0, n)), *forget = rp_sigmoid(rp_narrow(sum, 1, n, n));
        rp_tensor *value = rp_tanh(rp_narrow(sum, 1, 2 * n, n)), *output = rp_sigmoid(rp_narrow(sum, 1, 3 * n, n));
        rp_tensor *added = rp_mul(input, value);
        c = c ? rp_add(rp_mul(forget, c), added) : added;
        h = rp_mul(output, rp_tanh(c));
        if (!last_alone) rows[t] = rp_unsqueeze(h, 1);
    }
    if (!last_alone) h = rp_cat(rows, tokens, 1);
    free(rows);
    return h;
}

rp_tensor *lstm_forward(const struct lstm *l, rp_tensor *ids) {
    rp_tensor *x = rp_embedding_layer_forward(&l->embedding, ids);
    for (size_t i = 0; i < l->n_layers; i++) x = layer_forward(l, &l->cells[i], x, i + 1 == l->n_layers);
    return rp_linear_layer_forward(&l->fc, x);
}

void lstm_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = lstm_forward(ctx, in[0]);
}
