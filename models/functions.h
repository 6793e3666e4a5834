/* The smallest models: functions of numbers, without parameters. */
#ifndef MODELS_FUNCTIONS_H
#define MODELS_FUNCTIONS_H

#include <reprise.h>

/* in: x; out: sin(2x) */
void simple_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* in: x, y; out: cos(x) + sin(y) */
void trig_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* in: x; out: softmax(layer_norm(gelu(x))), each of rows */
void rows_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
