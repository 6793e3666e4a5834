/* Vision transformers (Dosovitskiy et al., arXiv 2010.11929), as timm's VisionTransformer and torchvision's build them:
 * names of their state_dict, a class token in front, layer norm before each half of a block, exact gelu.
 *
 * The struct stays where it is from vit_init to vit_release: its module knows where its tensors lie.
 */
#ifndef MODELS_VIT_H
#define MODELS_VIT_H

#include <reprise.h>
#include <reprise_nn.h>

struct vit_options {  /* zero fields: ViT-B/16 for images of 224 x 224 and 1000 classes */
    int64_t side;     /* of the images in pixels, a multiple of patch; 0: 224 */
    int64_t patch;    /* 0: 16 */
    int64_t channels; /* 0: 3 */
    int64_t hidden;   /* 0: 768 */
    int64_t layers;   /* 0: 12; at most VIT_MAX_LAYERS */
    int64_t heads;    /* 0: 12; divides hidden */
    int64_t inner;    /* width inside a block; 0: 4 hidden */
    int64_t classes;  /* 0: 1000 */
    bool torchvision; /* names of torchvision.models.vit_b_16 instead of timm's vit_base_patch16_224 */
};

enum { VIT_MAX_LAYERS = 48 };

struct vit_layer {
    rp_layer_norm_layer norm1, norm2;
    rp_tensor *qkv_weight, *qkv_bias; /* (3 hidden, hidden), (3 hidden): queries, keys, values */
    rp_linear_layer projection, fc1, fc2;
};

struct vit {
    rp_module *module;
    int64_t heads, hidden;
    rp_tensor *class_token, *positions; /* (1, 1, hidden), (1, patches + 1, hidden) */
    rp_conv2d_layer patches;
    struct vit_layer layers[VIT_MAX_LAYERS];
    size_t n_layers;
    rp_layer_norm_layer norm;
    rp_linear_layer head;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status vit_init(struct vit *v, const struct vit_options *options);
void vit_release(struct vit *v);
rp_tensor *vit_forward(const struct vit *v, rp_tensor *x); /* (batch, channels, side, side) to (batch, classes) */
/* The same as a function to compile; ctx: the struct vit. */
void vit_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
