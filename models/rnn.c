/* See rnn.h. */
#include "rnn.h"

#include <reprise_ops.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* All steps of one layer, (steps, ..., hidden); the last one alone, (..., hidden), where nobody needs the others. */
static rp_tensor *layer_forward(const struct rnn_cell *c, rp_tensor *x, bool last_alone) {
    const size_t steps = (size_t)rp_size(x, 0);
    rp_tensor *inputs = rp_linear(x, c->weight_ih, c->bias_ih), *h = NULL; /* the inputs' part of all steps at once */
    rp_tensor **rows = rp_is_error(x) ? NULL : calloc(steps + 1, sizeof *rows);
    if (!rows) return rp_tanh(NULL); /* an error tensor */
    for (size_t t = 0; t < steps; t++) {
        rp_tensor *part = rp_select(inputs, 0, (int64_t)t);                                 /* (..., hidden) */
        h = rp_tanh(rp_add(part, h ? rp_linear(h, c->weight_hh, c->bias_hh) : c->bias_hh)); /* h is zero at first */
        if (!last_alone) rows[t] = rp_unsqueeze(h, 0);
    }
    if (!last_alone) h = rp_cat(rows, steps, 0);
    free(rows);
    return h;
}

rp_tensor *rnn_forward(const struct rnn *r, rp_tensor *x) {
    for (size_t i = 0; i < r->n_layers; i++) x = layer_forward(&r->cells[i], x, i + 1 == r->n_layers);
    return rp_linear_layer_forward(&r->fc, x);
}

void rnn_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rnn_forward(ctx, in[0]);
}
