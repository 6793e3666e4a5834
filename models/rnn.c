/* See rnn.h. */
#include "rnn.h"

#include <reprise_ops.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static rp_status parameter_add(rp_module *m, const char *name, size_t layer, rp_tensor **place, const int64_t *size,
                               size_t ndim, double bound) {
    char full[32];
    snprintf(full, sizeof full, "%s_l%zu", name, layer);
    *place = rp_empty(size, ndim);
    rp_status status = rp_init_uniform(*place, -bound, bound);
    if (!status) status = rp_set_requires_grad(*place, true);
    return status ? status : rp_module_add_parameter(m, full, place);
}

rp_status rnn_cell_add(rp_module *m, struct rnn_cell *c, size_t layer, int64_t in, int64_t hidden, int64_t gates) {
    const double bound = 1 / sqrt((double)hidden);
    rp_scope scope = rp_scope_begin();
    rp_status status = parameter_add(m, "weight_ih", layer, &c->weight_ih, RP_DIMS(gates * hidden, in), bound);
    if (!status) status = parameter_add(m, "weight_hh", layer, &c->weight_hh, RP_DIMS(gates * hidden, hidden), bound);
    if (!status) status = parameter_add(m, "bias_ih", layer, &c->bias_ih, RP_DIMS(gates * hidden), bound);
    if (!status) status = parameter_add(m, "bias_hh", layer, &c->bias_hh, RP_DIMS(gates * hidden), bound);
    rp_status ended = rp_scope_end(scope, NULL, 0);
    return status ? status : ended;
}

rp_status rnn_init(struct rnn *r, const struct rnn_options *options) {
    const struct rnn_options none = {0}, *o = options ? options : &none;
    memset(r, 0, sizeof *r);
    const int64_t hidden = o->hidden ? o->hidden : 32, layers = o->layers ? o->layers : 1;
    if (hidden < 1 || layers < 1 || layers > RNN_MAX_LAYERS) return RP_ERROR_INVALID_ARGUMENT;
    r->n_layers = (size_t)layers;
    r->module = rp_module_new("rnn");
    rp_module *m = rp_module_child(r->module, "rnn");
    rp_status status = RP_OK;
    int64_t in = o->in ? o->in : 64;
    for (size_t i = 0; i < r->n_layers && !status; i++, in = hidden)
        status = rnn_cell_add(m, &r->cells[i], i, in, hidden, 1);
    if (!status) status = rp_linear_add(r->module, "fc", &r->fc, hidden, o->out ? o->out : 10, true);
    if (status) rnn_release(r);
    return status;
}

void rnn_release(struct rnn *r) {
    rp_module_release(r->module);
    memset(r, 0, sizeof *r);
}

size_t rnn_parameters(const struct rnn_cell *cells, size_t layers, rp_tensor **out) {
    for (size_t i = 0; i < layers; i++) {
        out[4 * i] = cells[i].weight_ih;
        out[4 * i + 1] = cells[i].weight_hh;
        out[4 * i + 2] = cells[i].bias_ih;
        out[4 * i + 3] = cells[i].bias_hh;
    }
    return 4 * layers;
}

rp_tensor *rnn_zeros(const struct rnn_cell *cells, size_t layers, int64_t batch) {
    const rp_tensor *w = cells[0].weight_hh;
    return rp_zeros(RP_DIMS((int64_t)layers, batch, rp_size(w, 1)),
                    RP_OPTIONS(rp_zeros_options, .dtype = rp_dtype_of(w)));
}

rp_tensor *rnn_forward(const struct rnn *r, rp_tensor *x) {
    const bool single = rp_ndim(x) == 2;
    if (single) x = rp_unsqueeze(x, 1);
    rp_tensor *params[4 * RNN_MAX_LAYERS], *last = NULL;
    const size_t n = rnn_parameters(r->cells, r->n_layers, params);
    rp_rnn_tanh(x, rnn_zeros(r->cells, r->n_layers, rp_sym_size(x, 1)), params, n, true, (int64_t)r->n_layers, 0, false,
                false, false, &last);
    x = rp_select(last, 0, -1); /* (batch, hidden), of the last layer */
    return rp_linear_layer_forward(&r->fc, single ? rp_squeeze(x, 0) : x);
}

void rnn_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rnn_forward(ctx, in[0]);
}
