/* See cnn.h. */
#include "cnn.h"

#include <reprise_ops.h>

#include <string.h>

rp_status cnn_init(struct cnn *c, const struct cnn_options *options) {
    const struct cnn_options none = {0}, *o = options ? options : &none;
    memset(c, 0, sizeof *c);
    const int64_t side = o->side ? o->side : 28, width = o->width ? o->width : 32;
    const int64_t left = ((side - 2) / 2 - 2) / 2; /* of the side, behind both convolutions and pools */
    if (side < 10) return RP_ERROR_INVALID_ARGUMENT;
    c->module = rp_module_new("cnn");
    rp_status status = rp_conv2d_add(c->module, "conv1", &c->conv1, o->channels ? o->channels : 1, width, 3, 3, NULL);
    if (!status) status = rp_conv2d_add(c->module, "conv2", &c->conv2, width, 2 * width, 3, 3, NULL);
    if (!status)
        status = rp_linear_add(c->module, "fc", &c->fc, 2 * width * left * left, o->classes ? o->classes : 10, true);
    if (status) cnn_release(c);
    return status;
}

void cnn_release(struct cnn *c) {
    rp_module_release(c->module);
    memset(c, 0, sizeof *c);
}

static rp_tensor *stage(const rp_conv2d_layer *conv, rp_tensor *x) {
    return rp_max_pool2d(rp_relu(rp_conv2d_layer_forward(conv, x)), RP_DIMS(2, 2));
}

rp_tensor *cnn_forward(const struct cnn *c, rp_tensor *x) {
    x = stage(&c->conv2, stage(&c->conv1, x)); /* (batch, 64, 5, 5) */
    return rp_linear_layer_forward(&c->fc, rp_flatten(x, 1, -1));
}

void cnn_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = cnn_forward(ctx, in[0]);
}
