/* See functions.h. */
#include "functions.h"

#include <reprise_ops.h>

void simple_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sin(rp_mul_scalar(in[0], rp_i64(2)));
}

void trig_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(rp_cos(in[0]), rp_sin(in[1]));
}

void rows_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_layer_norm(rp_gelu(in[0]), RP_DIMS(rp_sym_size(in[0], -1)), NULL, NULL, 1e-5), -1);
}
