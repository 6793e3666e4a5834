/* ResNet and ResNeXt for images (He et al., arXiv 1512.03385; Xie et al., arXiv 1611.05431), as torchvision builds
 * them: names of its state_dict, its initial values, stride in the 3x3 convolution of a bottleneck.
 *
 * The struct stays where it is from resnet_init to resnet_release: its module knows where its tensors lie.
 */
#ifndef MODELS_RESNET_H
#define MODELS_RESNET_H

#include <reprise.h>
#include <reprise_nn.h>

struct resnet_options { /* zero fields: ResNet-18 for 1000 classes */
    const char *depth;  /* "resnet18", 34, 50, 101, 152, "resnext50_32x4d", "resnext101_32x8d"; NULL: "resnet18" */
    int64_t classes;    /* 0: 1000 */
    int64_t channels;   /* of the images; 0: 3 */
    int64_t width;      /* channels after the first convolution; 0: 64 */
};

enum { RESNET_MAX_BLOCKS = 50 }; /* of ResNet-152 */

struct resnet_block {
    rp_conv2d_layer conv[3], downsample;
    rp_batch_norm_layer bn[3], downsample_bn;
    int n_convs;   /* 2: basic; 3: bottleneck */
    bool projects; /* the shortcut goes through downsample */
};

struct resnet {
    rp_module *module; /* training mode at first: rp_module_set_training */
    rp_conv2d_layer conv1;
    rp_batch_norm_layer bn1;
    struct resnet_block blocks[RESNET_MAX_BLOCKS];
    size_t n_blocks;
    rp_linear_layer fc;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status resnet_init(struct resnet *r, const struct resnet_options *options);
void resnet_release(struct resnet *r);
/* x: (batch, channels, height, width), height and width 33 or more for five halvings that keep a pixel; gives (batch,
   classes). */
rp_tensor *resnet_forward(const struct resnet *r, rp_tensor *x);
/* The same as a function to compile; ctx: the struct resnet. in: x; out: logits. */
void resnet_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
