/* Two convolutions with pools and a linear layer, for images of 28 x 28: Conv2d(1, 32, 3), ReLU, MaxPool2d(2),
 * Conv2d(32, 64, 3), ReLU, MaxPool2d(2), Linear(64 * 5 * 5, 10). Names: conv1, conv2, fc.
 *
 * The struct stays where it is from cnn_init to cnn_release: its module knows where its tensors lie.
 */
#ifndef MODELS_CNN_H
#define MODELS_CNN_H

#include <reprise.h>
#include <reprise_nn.h>

struct cnn_options {  /* zero fields: for the digits of MNIST */
    int64_t channels; /* of the images; 0: 1 */
    int64_t side;     /* of the images, in pixels, 10 or more; 0: 28 */
    int64_t width;    /* channels after the first convolution, half of those after the second; 0: 32 */
    int64_t classes;  /* 0: 10 */
};

struct cnn {
    rp_module *module;
    rp_conv2d_layer conv1, conv2;
    rp_linear_layer fc;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status cnn_init(struct cnn *c, const struct cnn_options *options);
void cnn_release(struct cnn *c);
rp_tensor *cnn_forward(const struct cnn *c, rp_tensor *x); /* (batch, channels, side, side) to (batch, classes) */
/* The same as a function to compile; ctx: the struct cnn. */
void cnn_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
