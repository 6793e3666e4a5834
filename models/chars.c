/* See chars.h. */
#include "chars.h"

#include <reprise_ops.h>

#include <string.h>

static int64_t given_or(int64_t value, int64_t otherwise) { return value ? value : otherwise; }

rp_status chars_init(struct chars *c, const struct chars_options *options) {
    const struct chars_options none = {0}, *o = options ? options : &none;
    memset(c, 0, sizeof *c);
    const int64_t vocabulary = given_or(o->vocabulary, 96), context = given_or(o->context, 24);
    const int64_t width = given_or(o->width, 16), hidden = given_or(o->hidden, 256);
    c->module = rp_module_new("chars");
    rp_status status = rp_embedding_add(c->module, "embedding", &c->embedding, vocabulary, width);
    if (!status) status = rp_linear_add(c->module, "first", &c->first, context * width, hidden, true);
    if (!status) status = rp_linear_add(c->module, "second", &c->second, hidden, hidden, true);
    if (!status) status = rp_linear_add(c->module, "third", &c->third, hidden, vocabulary, true);
    const double p = o->dropout < 0 ? 0 : o->dropout > 0 ? o->dropout : 0.1;
    if (!status) status = rp_dropout_add(c->module, "dropout", &c->dropout, p);
    if (status) chars_release(c);
    return status;
}

void chars_release(struct chars *c) {
    rp_module_release(c->module);
    memset(c, 0, sizeof *c);
}

rp_tensor *chars_forward(const struct chars *c, rp_tensor *codes) {
    rp_tensor *x = rp_flatten(rp_embedding_layer_forward(&c->embedding, codes), 1, 2); /* (batch, context * width) */
    x = rp_dropout_layer_forward(&c->dropout, rp_relu(rp_linear_layer_forward(&c->first, x)));
    x = rp_dropout_layer_forward(&c->dropout, rp_relu(rp_linear_layer_forward(&c->second, x)));
    return rp_linear_layer_forward(&c->third, x);
}

void chars_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = chars_forward(ctx, in[0]);
}
