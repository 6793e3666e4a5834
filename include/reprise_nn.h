/* reprise_nn.h - layers, initialisers, losses and optimizers, on top of reprise.h.
 *
 * A layer is a plain struct of parameters: no registration, no base class. The program lists its parameters itself.
 * Parameters made here are retained: *_release gives them back. Names, defaults and initial distributions are PyTorch's.
 */
#ifndef REPRISE_NN_H
#define REPRISE_NN_H

#include "reprise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- initialisers (torch.nn.init): without a gradient, in place */

RP_CALL rp_status rp_init_uniform(rp_tensor *t, double low, double high); /* low <= high */
RP_CALL rp_status rp_init_normal(rp_tensor *t, double mean, double std);  /* std >= 0 */
RP_CALL rp_status rp_init_constant(rp_tensor *t, double value);
/* Uniform in +-sqrt(6 / ((1 + a^2) fan_in)), fan_in = elements of t[0] (mode fan_in, leaky_relu with slope a). */
RP_CALL rp_status rp_init_kaiming_uniform(rp_tensor *t, double a);

/* ---------------------------------------------------------------- layers */

typedef struct rp_linear_layer { /* torch.nn.Linear */
    rp_tensor *weight;           /* (out_features, in_features), kaiming_uniform(a = sqrt 5) */
    rp_tensor *bias;             /* (out_features), uniform in +-1/sqrt(in_features); NULL: none */
} rp_linear_layer;
/* On failure the struct holds no tensors, and the status says why. dtype RP_DTYPE_NONE: float32. */
RP_CALL rp_status rp_linear_layer_init(rp_linear_layer *l, int64_t in_features, int64_t out_features, bool bias,
                                       rp_dtype dtype);
RP_API void rp_linear_layer_release(rp_linear_layer *l);
RP_CALL rp_tensor *rp_linear_layer_forward(const rp_linear_layer *l, rp_tensor *x);

typedef struct rp_embedding_layer { /* torch.nn.Embedding */
    rp_tensor *weight;              /* (num_embeddings, embedding_dim), standard normal */
} rp_embedding_layer;
RP_CALL rp_status rp_embedding_layer_init(rp_embedding_layer *l, int64_t num_embeddings, int64_t embedding_dim,
                                          rp_dtype dtype);
RP_API void rp_embedding_layer_release(rp_embedding_layer *l);
RP_CALL rp_tensor *rp_embedding_layer_forward(const rp_embedding_layer *l, rp_tensor *indices);

typedef struct rp_layer_norm_layer { /* torch.nn.LayerNorm */
    rp_tensor *weight, *bias;        /* normalized_shape, ones and zeros; NULL without elementwise_affine */
    int64_t normalized_shape[RP_MAX_DIMS];
    size_t n_dims;
    double eps;
} rp_layer_norm_layer;
RP_CALL rp_status rp_layer_norm_layer_init(rp_layer_norm_layer *l, const int64_t *normalized_shape, size_t n_dims,
                                           double eps, bool elementwise_affine, rp_dtype dtype);
RP_API void rp_layer_norm_layer_release(rp_layer_norm_layer *l);
RP_CALL rp_tensor *rp_layer_norm_layer_forward(const rp_layer_norm_layer *l, rp_tensor *x);

typedef struct rp_conv2d_options { /* zero is torch.nn.Conv2d's default */
    size_t struct_size;
    int64_t stride[2]; /* 0: 1 */
    int64_t padding[2];
    int64_t dilation[2]; /* 0: 1 */
    int64_t groups;      /* 0: 1 */
    bool no_bias;
    rp_dtype dtype; /* RP_DTYPE_NONE: float32 */
} rp_conv2d_options;
typedef struct rp_conv2d_layer { /* torch.nn.Conv2d */
    rp_tensor *weight;           /* (out_channels, in_channels / groups, kernel height, kernel width) */
    rp_tensor *bias;             /* (out_channels); NULL: none */
    int64_t stride[2], padding[2], dilation[2], groups;
} rp_conv2d_layer;
RP_CALL rp_status rp_conv2d_layer_init(rp_conv2d_layer *l, int64_t in_channels, int64_t out_channels,
                                       int64_t kernel_height, int64_t kernel_width, const rp_conv2d_options *options);
RP_API void rp_conv2d_layer_release(rp_conv2d_layer *l);
RP_CALL rp_tensor *rp_conv2d_layer_forward(const rp_conv2d_layer *l, rp_tensor *x);

/* ---------------------------------------------------------------- losses (rp_cross_entropy is an op) */

/* Mean ("reduction" 1), sum (2) or elements (0) of (input - target)^2 (torch.nn.functional.mse_loss). */
RP_CALL rp_tensor *rp_mse_loss(rp_tensor *input, rp_tensor *target, int64_t reduction);

/* ---------------------------------------------------------------- optimizers (torch.optim)

   All state is made at construction: moments in the parameter's dtype, step count and learning rate as 0-d float32 tensors on
   its device, so that a step can be recorded and played back. A step is one launch for all parameters that have always been
   stepped together. Parameters whose .grad is NULL are passed over, as PyTorch does; in a trace that is a guard. */

typedef struct rp_optimizer rp_optimizer;

typedef struct rp_adam_options { /* of rp_adam and rp_adamw */
    size_t struct_size;
    double beta1;        /* 0: 0.9; negative: 0 */
    double beta2;        /* 0: 0.999; negative: 0 */
    double eps;          /* 0: 1e-8; negative: 0 */
    double weight_decay; /* Adam: added to the gradient. AdamW: shrinks the parameter; 0: 0.01; negative: 0 */
    bool maximize;
} rp_adam_options;
typedef struct rp_sgd_options {
    size_t struct_size;
    double momentum, dampening, weight_decay;
    bool nesterov; /* needs momentum and no dampening */
    bool maximize;
} rp_sgd_options;

/* Never NULL: on failure (no parameters, a learning rate below 0) an optimizer without groups, on which every call fails.
   params are retained. options NULL: defaults. */
RP_CALL rp_optimizer *rp_adam(rp_tensor *const *params, size_t n, double lr, const rp_adam_options *options);
RP_CALL rp_optimizer *rp_adamw(rp_tensor *const *params, size_t n, double lr, const rp_adam_options *options);
RP_CALL rp_optimizer *rp_sgd(rp_tensor *const *params, size_t n, double lr, const rp_sgd_options *options);
RP_API void rp_optimizer_release(rp_optimizer *opt); /* NULL is ignored */
/* One more group with its own options, for an optimizer of that kind (add_param_group). */
RP_CALL rp_status rp_adam_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                    const rp_adam_options *options);
RP_CALL rp_status rp_sgd_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                   const rp_sgd_options *options);

RP_CALL rp_status rp_optimizer_step(rp_optimizer *opt);
/* set_to_none: .grad becomes NULL; else its elements become 0. */
RP_CALL rp_status rp_optimizer_zero_grad(rp_optimizer *opt, bool set_to_none);

RP_API size_t rp_optimizer_group_count(const rp_optimizer *opt);
RP_CALL rp_status rp_optimizer_set_lr(rp_optimizer *opt, size_t group, double lr); /* in place: recorded steps see it */
RP_CALL rp_tensor *rp_optimizer_lr(rp_optimizer *opt, size_t group);               /* the 0-d tensor, borrowed */
/* State of parameter `index` of a group, borrowed: "step", "exp_avg", "exp_avg_sq" (Adam), "momentum_buffer" (SGD with
   momentum). NULL and an error when there is no such state. To restore a state, write into it with rp_copy_. */
RP_CALL rp_tensor *rp_optimizer_state(rp_optimizer *opt, size_t group, size_t index, const char *name);

#ifdef __cplusplus
}
#endif

#include "reprise_nn_calls.h"

#endif
