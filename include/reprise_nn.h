/* reprise_nn.h - layers, modules, initialisers, losses and optimizers, on top of reprise.h.
 *
 * A layer is a plain struct of parameters. rp_x_layer_init makes one by itself: its parameters are retained, and
 * rp_x_layer_release gives them back. rp_x_add makes one as a child of a module, which then owns its parameters and
 * lists them by name, with their mode. Names, defaults and initial distributions are PyTorch's.
 */
#ifndef REPRISE_NN_H
#define REPRISE_NN_H

#include "reprise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- initialisers (torch.nn.init): without a gradient,
   in place */

RP_CALL rp_status rp_init_uniform(rp_tensor *t, double low, double high); /* low <= high */
RP_CALL rp_status rp_init_normal(rp_tensor *t, double mean, double std);  /* std >= 0 */
RP_CALL rp_status rp_init_constant(rp_tensor *t, double value);
/* Uniform in +-sqrt(6 / ((1 + a^2) fan_in)), fan_in = elements of t[0] (mode fan_in, leaky_relu with slope a). */
RP_CALL rp_status rp_init_kaiming_uniform(rp_tensor *t, double a);
/* What "fan" is: of fan-in, elements of t[0]; of fan-out, those of t[:, 0]. */
typedef enum rp_fan { RP_FAN_IN = 0, RP_FAN_OUT = 1 } rp_fan;
/* Normal with deviation sqrt(2 / fan) (nonlinearity relu). */
RP_CALL rp_status rp_init_kaiming_normal(rp_tensor *t, rp_fan fan);
/* torch.nn.init.calculate_gain: "linear", "sigmoid", the names of convolutions: 1; "tanh": 5/3; "relu": sqrt(2); "leaky_relu":
   sqrt(2 / (1 + param^2)), whose slope PyTorch takes for 0.01 where none is given; "selu": 3/4. Another name: 0 and an error. */
RP_CALL double rp_init_gain(const char *nonlinearity, double param);
typedef struct rp_kaiming_options { /* zero is PyTorch's default */
    size_t struct_size;
    double a; /* slope of a leaky_relu */
    rp_fan fan;
    const char *nonlinearity;       /* of rp_init_gain; NULL: "leaky_relu" */
    struct rp_generator *generator; /* NULL: the default one of t's device */
} rp_kaiming_options;
/* Uniform in +-gain sqrt(3 / fan); normal with deviation gain / sqrt(fan). */
RP_CALL rp_status rp_init_kaiming_uniform_with(rp_tensor *t, const rp_kaiming_options *options);
RP_CALL rp_status rp_init_kaiming_normal_with(rp_tensor *t, const rp_kaiming_options *options);
/* Uniform in +-gain sqrt(6 / (fan-in + fan-out)); normal with deviation gain sqrt(2 / (fan-in + fan-out)). */
RP_CALL rp_status rp_init_xavier_uniform(rp_tensor *t, double gain);
RP_CALL rp_status rp_init_xavier_normal(rp_tensor *t, double gain);
/* Normal within [low, high]; PyTorch's defaults: 0, 1, -2, 2. */
RP_CALL rp_status rp_init_trunc_normal(rp_tensor *t, double mean, double std, double low, double high);
/* t as (t[0], all else): orthonormal rows or columns, whichever are fewer, times gain. Worked out on the host. */
RP_CALL rp_status rp_init_orthogonal(rp_tensor *t, double gain);

/* ---------------------------------------------------------------- modules (torch.nn.Module)

   A module is a named tree over the program's own structs: parameters, buffers (tensors that belong to the state and
   are not trained), children, and a mode (training at first). It knows where in the program's structs each tensor's
   handle lies, so a struct that was registered stays where it is, as long as the module lives. Dotted names of the
   whole are those of PyTorch's state_dict. A tree is used by one thread at a time; functions may be called through
   rp_call in several. */

typedef struct rp_module rp_module;

/* A root. Never NULL: on failure a module on which every call fails. name is copied; NULL is "". */
RP_CALL rp_module *rp_module_new(const char *name);
/* A root with all below it, and its references to their tensors; NULL is ignored. Functions of rp_compile_module are
   released before. */
RP_API void rp_module_release(rp_module *m);
/* A new child, owned by m, borrowed; m's mode is its own. name: not empty, without a dot, of no other child,
   parameter or buffer of m. */
RP_CALL rp_module *rp_module_child(rp_module *m, const char *name);
/* *place is a tensor (or NULL: absent, as a layer without a bias has it) of the program's struct; m retains it. */
RP_CALL rp_status rp_module_add_parameter(rp_module *m, const char *name,
                                          rp_tensor **place); /* a leaf of floating type */
/* persistent: is it part of the state? */
RP_CALL rp_status rp_module_add_buffer(rp_module *m, const char *name, rp_tensor **place, bool persistent);

/* Of m and all below it. Compiled functions that call layers of m keep a specialisation a mode. */
RP_CALL rp_status rp_module_set_training(rp_module *m, bool training); /* train(), eval() */
RP_API bool rp_module_training(const rp_module *m);                    /* NULL: true */
RP_CALL rp_status rp_module_set_requires_grad(rp_module *m, bool requires_grad);
/* Parameters and buffers of floating type become other tensors of that dtype (gradients too), in their places; what
   holds the old ones, as optimizers do, is made afterwards. All or, on failure, none. */
RP_CALL rp_status rp_module_to_dtype(rp_module *m, rp_dtype dtype);
/* The same, of all parameters and buffers: they become tensors of that device. */
RP_CALL rp_status rp_module_to_device(rp_module *m, rp_device device);

typedef struct rp_named_tensor {
    const char *name; /* dotted, from the module that was asked */
    rp_tensor *tensor;
} rp_named_tensor;
/* Lists of m and all below it, in order of registration: borrowed, until something is registered, moved to a dtype
   or device, or released. *n is their length. NULL and 0 on failure. A tensor with two names is once among parameters and buffers,
   and twice in the state. */
RP_CALL rp_tensor *const *rp_module_parameters(rp_module *m, size_t *n);
RP_CALL const rp_named_tensor *rp_module_named_parameters(rp_module *m, size_t *n);
RP_CALL const rp_named_tensor *rp_module_named_buffers(rp_module *m,
                                                       size_t *n); /* also those that are not persistent */
RP_CALL const rp_named_tensor *rp_module_state(rp_module *m,
                                               size_t *n); /* state_dict: parameters, persistent buffers */
/* Calls visit for all below m, then for m (Module.apply); path: dotted, "" for m. Another status than RP_OK ends it. */
typedef rp_status rp_module_visit(void *ctx, rp_module *m, const char *path);
RP_CALL rp_status rp_module_apply(rp_module *m, rp_module_visit *visit, void *ctx);
/* A table: names, sizes, types, parameters, bytes. NUL-terminated, cut at `bytes`; returns the length that it needs
   without the NUL. */
RP_CALL size_t rp_module_summary(rp_module *m, char *buf, size_t bytes);
/* The same of a forward, as torchinfo has it: a row a module with the sizes of what went in and came out at its first call, its own
   parameters and how often it was called ("-" and 0: it was not; only layers and rp_module_call are calls), then totals. fn is m's
   forward, with n_out results, 64 at most; it runs once on in[], as by rp_module_call, but in evaluation mode and without gradients.
   Arguments are borrowed, results given back, modes and hooks as before. On failure, of fn too, and within a function that is
   recorded: an error, 0 and an empty text. */
RP_CALL size_t rp_module_summary_with(rp_module *m, rp_fn fn, rp_tensor *const *in, size_t n_in, size_t n_out,
                                      char *buf, size_t bytes);

/* The module at a dotted path below m, borrowed ("layer1.0.conv1"; "" is m): Module.get_submodule. On failure a module on which
   every call fails. */
RP_CALL rp_module *rp_module_find(rp_module *m, const char *path);

/* Hooks of a module's forward (Module.register_forward_pre_hook, register_forward_hook), called in the order in which they were
   registered: what goes in before it, what goes in and comes out behind it. A hook may put other tensors into in[] before, into
   out[] behind. The forward is that of the layer (its tensors in the order of the call, NULL for those that were not given; masks
   are none of them), or rp_module_call. A hook that is registered or removed by one of them counts from the next call on. In a
   function of rp_compile_module hooks are part of what is recorded, and other hooks are another recording; in graphs and
   graphed callables they run while it is captured. Return an id, 0 on failure. */
typedef void rp_module_pre_hook(void *ctx, rp_module *m, rp_tensor **in, size_t n_in);
typedef void rp_module_hook(void *ctx, rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
RP_CALL uint64_t rp_module_register_forward_pre_hook(rp_module *m, rp_module_pre_hook *hook, void *ctx);
RP_CALL uint64_t rp_module_register_forward_hook(rp_module *m, rp_module_hook *hook, void *ctx);
RP_CALL rp_status rp_module_remove_hook(rp_module *m, uint64_t id);
/* The forward of a module of the program's own (Module.__call__): fn.body with m's hooks around it. 64 arguments at most. */
RP_CALL rp_status rp_module_call(rp_module *m, rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                 size_t n_out);

/* rp_compile of a function that reads m: its tensors, modes and hooks are compared at every call, besides fn.ctx_bytes bytes
   at fn.ctx. Nothing can be registered below m's root afterwards. */
RP_CALL rp_compiled *rp_compile_module(rp_module *m, rp_fn fn, const rp_compile_options *options);

/* ---------------------------------------------------------------- layers */

typedef struct rp_linear_layer { /* torch.nn.Linear */
    rp_tensor *weight;           /* (out_features, in_features), kaiming_uniform(a = sqrt 5) */
    rp_tensor *bias;             /* (out_features), uniform in +-1/sqrt(in_features); NULL: none */
    const rp_module *module;     /* whose hooks it has; NULL: none */
} rp_linear_layer;
/* On failure the struct holds no tensors, and the status says why. dtype RP_DTYPE_NONE: float32. */
RP_CALL rp_status rp_linear_layer_init(rp_linear_layer *l, int64_t in_features, int64_t out_features, bool bias,
                                       rp_dtype dtype);
RP_API void rp_linear_layer_release(rp_linear_layer *l);
RP_CALL rp_tensor *rp_linear_layer_forward(const rp_linear_layer *l, rp_tensor *x);
/* As a child of m (its dtype float32: rp_module_to_dtype changes the whole). So are the other rp_x_add; on failure m
   is as before. */
RP_CALL rp_status rp_linear_add(rp_module *m, const char *name, rp_linear_layer *l, int64_t in_features,
                                int64_t out_features, bool bias);

typedef struct rp_embedding_layer { /* torch.nn.Embedding */
    rp_tensor *weight;              /* (num_embeddings, embedding_dim), standard normal */
    int64_t padding_idx;            /* the row that gets no gradient; -1: none */
    double max_norm, norm_type;     /* rows that are looked up are shortened to that norm in place; 0: not */
    bool scale_grad_by_freq;
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_embedding_layer;
RP_CALL rp_status rp_embedding_layer_init(rp_embedding_layer *l, int64_t num_embeddings, int64_t embedding_dim,
                                          rp_dtype dtype);
RP_API void rp_embedding_layer_release(rp_embedding_layer *l);
RP_CALL rp_tensor *rp_embedding_layer_forward(const rp_embedding_layer *l, rp_tensor *indices);
RP_CALL rp_status rp_embedding_add(rp_module *m, const char *name, rp_embedding_layer *l, int64_t num_embeddings,
                                   int64_t embedding_dim);
typedef struct rp_embedding_layer_options { /* zero is torch.nn.Embedding's default */
    size_t struct_size;
    rp_scalar padding_idx;   /* rp_i64(k), below 0 from the end: row k is zeros and gets no gradient */
    double max_norm;         /* 0: none */
    double norm_type;        /* 0: 2 */
    bool scale_grad_by_freq; /* gradients divided by how often the index is there */
} rp_embedding_layer_options;
RP_CALL rp_status rp_embedding_add_with(rp_module *m, const char *name, rp_embedding_layer *l, int64_t num_embeddings,
                                        int64_t embedding_dim, const rp_embedding_layer_options *options);

typedef struct rp_layer_norm_layer { /* torch.nn.LayerNorm */
    rp_tensor *weight, *bias;        /* normalized_shape, ones and zeros; NULL without elementwise_affine */
    int64_t normalized_shape[RP_MAX_DIMS];
    size_t n_dims;
    double eps;
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_layer_norm_layer;
RP_CALL rp_status rp_layer_norm_layer_init(rp_layer_norm_layer *l, const int64_t *normalized_shape, size_t n_dims,
                                           double eps, bool elementwise_affine, rp_dtype dtype);
RP_API void rp_layer_norm_layer_release(rp_layer_norm_layer *l);
RP_CALL rp_tensor *rp_layer_norm_layer_forward(const rp_layer_norm_layer *l, rp_tensor *x);
RP_CALL rp_status rp_layer_norm_add(rp_module *m, const char *name, rp_layer_norm_layer *l,
                                    const int64_t *normalized_shape, size_t n_dims, double eps,
                                    bool elementwise_affine);
typedef struct rp_layer_norm_options { /* zero is torch.nn.LayerNorm's default */
    size_t struct_size;
    double eps;              /* 0: 1e-5; negative: 0 */
    bool no_affine, no_bias; /* elementwise_affine=False; bias=False: a weight alone */
} rp_layer_norm_options;
RP_CALL rp_status rp_layer_norm_add_with(rp_module *m, const char *name, rp_layer_norm_layer *l,
                                         const int64_t *normalized_shape, size_t n_dims,
                                         const rp_layer_norm_options *options);

typedef struct rp_batch_norm_options { /* zero is torch.nn.BatchNorm2d's default */
    size_t struct_size;
    double eps;      /* 0: 1e-5; negative: 0 */
    double momentum; /* 0: 0.1; negative: 0 */
    bool no_affine, no_running_stats;
    rp_dtype dtype;  /* RP_DTYPE_NONE: float32 */
    bool cumulative; /* momentum=None: running statistics are the means of those of all batches; momentum is unused */
} rp_batch_norm_options;
typedef struct rp_batch_norm_layer {       /* torch.nn.BatchNorm1d, 2d, 3d: channels are dim 1 */
    rp_tensor *weight, *bias;              /* (num_features), ones and zeros; NULL with no_affine */
    rp_tensor *running_mean, *running_var; /* (num_features), zeros and ones; NULL with no_running_stats */
    rp_tensor *num_batches_tracked;        /* 0-d int64: calls in training so far */
    double eps, momentum;
    const rp_module *module; /* whose mode it has; NULL: training, unless evaluating */
    bool evaluating;         /* of a layer without a module */
    bool cumulative;
} rp_batch_norm_layer;
RP_CALL rp_status rp_batch_norm_layer_init(rp_batch_norm_layer *l, int64_t num_features,
                                           const rp_batch_norm_options *options);
RP_API void rp_batch_norm_layer_release(rp_batch_norm_layer *l);
RP_CALL rp_tensor *rp_batch_norm_layer_forward(const rp_batch_norm_layer *l, rp_tensor *x); /* 2-D or more */
RP_CALL rp_status rp_batch_norm_add(rp_module *m, const char *name, rp_batch_norm_layer *l, int64_t num_features,
                                    const rp_batch_norm_options *options);

typedef struct rp_dropout_layer { /* torch.nn.Dropout */
    double p;
    const rp_module *module; /* NULL: training */
} rp_dropout_layer;
RP_CALL rp_tensor *rp_dropout_layer_forward(const rp_dropout_layer *l, rp_tensor *x);
RP_CALL rp_status rp_dropout_add(rp_module *m, const char *name, rp_dropout_layer *l, double p); /* 0 <= p <= 1 */

/* One kernel by height and width; rp_conv_add has all dims, padding='same' and padding modes, rp_conv_transpose_add what grows. */
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
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_conv2d_layer;
RP_CALL rp_status rp_conv2d_layer_init(rp_conv2d_layer *l, int64_t in_channels, int64_t out_channels,
                                       int64_t kernel_height, int64_t kernel_width, const rp_conv2d_options *options);
RP_API void rp_conv2d_layer_release(rp_conv2d_layer *l);
RP_CALL rp_tensor *rp_conv2d_layer_forward(const rp_conv2d_layer *l, rp_tensor *x);
RP_CALL rp_status rp_conv2d_add(rp_module *m, const char *name, rp_conv2d_layer *l, int64_t in_channels,
                                int64_t out_channels, int64_t kernel_height, int64_t kernel_width,
                                const rp_conv2d_options *options);

/* Layers from here on are children of a module only: their mode is the module's. A struct stays where it is, as long as the module
   lives. Options NULL: all defaults. */

typedef struct rp_rms_norm_layer { /* torch.nn.RMSNorm */
    rp_tensor *weight;             /* normalized_shape, ones; NULL without elementwise_affine */
    int64_t normalized_shape[RP_MAX_DIMS];
    size_t n_dims;
    double eps;              /* 0: that of the type in which it is computed; negative: 0 */
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_rms_norm_layer;
RP_CALL rp_tensor *rp_rms_norm_layer_forward(const rp_rms_norm_layer *l, rp_tensor *x);
RP_CALL rp_status rp_rms_norm_add(rp_module *m, const char *name, rp_rms_norm_layer *l, const int64_t *normalized_shape,
                                  size_t n_dims, double eps, bool elementwise_affine);

typedef struct rp_group_norm_layer { /* torch.nn.GroupNorm */
    rp_tensor *weight, *bias;        /* (num_channels), ones and zeros; NULL without affine */
    int64_t num_groups;
    double eps;
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_group_norm_layer;
RP_CALL rp_tensor *rp_group_norm_layer_forward(const rp_group_norm_layer *l, rp_tensor *x); /* (N, C, ...) */
RP_CALL rp_status rp_group_norm_add(rp_module *m, const char *name, rp_group_norm_layer *l, int64_t num_groups,
                                    int64_t num_channels, double eps, bool affine);

typedef struct rp_instance_norm_options { /* zero is torch.nn.InstanceNorm2d's default */
    size_t struct_size;
    double eps;      /* 0: 1e-5; negative: 0 */
    double momentum; /* 0: 0.1; negative: 0 */
    bool affine, track_running_stats;
    int spatial; /* 1, 2 or 3: InstanceNorm1d, 2d or 3d, which takes (C, ...) without a batch, too; 0: any, (C, L) of two dims */
} rp_instance_norm_options;
typedef struct rp_instance_norm_layer {    /* torch.nn.InstanceNorm1d, 2d, 3d */
    rp_tensor *weight, *bias;              /* (num_features), ones and zeros; NULL without affine */
    rp_tensor *running_mean, *running_var; /* (num_features), zeros and ones; NULL without track_running_stats */
    rp_tensor *num_batches_tracked;        /* 0-d int64, which stays 0 as PyTorch's does */
    double eps, momentum;
    int spatial;
    const rp_module *module;
} rp_instance_norm_layer;
RP_CALL rp_tensor *rp_instance_norm_layer_forward(const rp_instance_norm_layer *l, rp_tensor *x); /* (N, C, ...) */
RP_CALL rp_status rp_instance_norm_add(rp_module *m, const char *name, rp_instance_norm_layer *l, int64_t num_features,
                                       const rp_instance_norm_options *options);

typedef struct rp_multihead_attention_options { /* zero is torch.nn.MultiheadAttention's default */
    size_t struct_size;
    int64_t kdim, vdim; /* features of keys and values; 0: embed_dim */
    double dropout;     /* of the weights, in training */
    bool no_bias, add_bias_kv, add_zero_attn;
    bool batch_first; /* (N, L, E), else (L, N, E); a sequence alone is (L, E) */
} rp_multihead_attention_options;
typedef struct rp_multihead_attention_layer {                 /* torch.nn.MultiheadAttention */
    rp_tensor *in_proj_weight;                                /* (3 E, E), where keys and values have E features */
    rp_tensor *q_proj_weight, *k_proj_weight, *v_proj_weight; /* (E, E), (E, kdim), (E, vdim), else */
    rp_tensor *in_proj_bias;                                  /* (3 E), zeros; NULL: none */
    rp_tensor *bias_k, *bias_v;                               /* (1, 1, E); NULL without add_bias_kv */
    rp_linear_layer out_proj;                                 /* its bias zeros */
    int64_t embed_dim, num_heads;
    double dropout;
    bool add_zero_attn, batch_first;
    const rp_module *module;
} rp_multihead_attention_layer;
typedef struct
    rp_attention_masks { /* zero: everything is seen. A mask is bool, true where nothing may be seen, or added to the scores */
    size_t struct_size;
    rp_tensor *attn_mask;        /* (L, S) or (N heads, L, S) */
    rp_tensor *key_padding_mask; /* (N, S), of a sequence alone (S) */
    bool is_causal;              /* each place sees those up to itself; with attn_mask only said, as in PyTorch */
    bool head_weights;           /* weights of each head, (N, heads, L, S), not their mean (N, L, S) */
} rp_attention_masks;
/* weights NULL: not wanted. A row of which nothing is seen gives zeros, but NaN where weights are wanted, as in PyTorch. */
RP_CALL rp_tensor *rp_multihead_attention_layer_forward(const rp_multihead_attention_layer *l, rp_tensor *query,
                                                        rp_tensor *key, rp_tensor *value,
                                                        const rp_attention_masks *masks, rp_tensor **weights);
RP_CALL rp_status rp_multihead_attention_add(rp_module *m, const char *name, rp_multihead_attention_layer *l,
                                             int64_t embed_dim, int64_t num_heads,
                                             const rp_multihead_attention_options *options);

typedef enum rp_transformer_activation { RP_TRANSFORMER_RELU = 0, RP_TRANSFORMER_GELU = 1 } rp_transformer_activation;
typedef struct
    rp_transformer_options { /* zero is the default of torch.nn.TransformerEncoderLayer and TransformerDecoderLayer */
    size_t struct_size;
    int64_t dim_feedforward; /* 0: 2048 */
    double dropout;          /* 0: 0.1; negative: 0 */
    rp_transformer_activation activation;
    double layer_norm_eps; /* 0: 1e-5; negative: 0 */
    bool batch_first, norm_first, no_bias;
} rp_transformer_options;
typedef struct rp_transformer_layer { /* torch.nn.TransformerEncoderLayer, TransformerDecoderLayer */
    rp_multihead_attention_layer self_attn, multihead_attn; /* the second of a decoder's layer, as norm3 */
    rp_linear_layer linear1, linear2;
    rp_layer_norm_layer norm1, norm2, norm3;
    double dropout;
    rp_transformer_activation activation;
    bool norm_first, decodes;
    const rp_module *module;
} rp_transformer_layer;
RP_CALL rp_tensor *rp_transformer_encoder_layer_forward(const rp_transformer_layer *l, rp_tensor *src,
                                                        const rp_attention_masks *masks);
RP_CALL rp_status rp_transformer_encoder_layer_add(rp_module *m, const char *name, rp_transformer_layer *l,
                                                   int64_t d_model, int64_t nhead,
                                                   const rp_transformer_options *options);
RP_CALL rp_tensor *rp_transformer_decoder_layer_forward(const rp_transformer_layer *l, rp_tensor *tgt,
                                                        rp_tensor *memory, const rp_attention_masks *tgt_masks,
                                                        const rp_attention_masks *memory_masks);
RP_CALL rp_status rp_transformer_decoder_layer_add(rp_module *m, const char *name, rp_transformer_layer *l,
                                                   int64_t d_model, int64_t nhead,
                                                   const rp_transformer_options *options);
typedef struct rp_transformer_stack { /* torch.nn.TransformerEncoder, TransformerDecoder */
    rp_transformer_layer *layers;     /* num_layers, of the program; equal at first, as PyTorch's copies are */
    size_t num_layers;
    rp_layer_norm_layer norm; /* without weight: none */
    const rp_module *module;  /* whose hooks it has; NULL: none */
} rp_transformer_stack;
RP_CALL rp_tensor *rp_transformer_encoder_forward(const rp_transformer_stack *s, rp_tensor *src,
                                                  const rp_attention_masks *masks);
RP_CALL rp_status rp_transformer_encoder_add(rp_module *m, const char *name, rp_transformer_stack *s,
                                             rp_transformer_layer *layers, size_t num_layers, int64_t d_model,
                                             int64_t nhead, bool norm, const rp_transformer_options *options);
RP_CALL rp_tensor *rp_transformer_decoder_forward(const rp_transformer_stack *s, rp_tensor *tgt, rp_tensor *memory,
                                                  const rp_attention_masks *tgt_masks,
                                                  const rp_attention_masks *memory_masks);
RP_CALL rp_status rp_transformer_decoder_add(rp_module *m, const char *name, rp_transformer_stack *s,
                                             rp_transformer_layer *layers, size_t num_layers, int64_t d_model,
                                             int64_t nhead, bool norm, const rp_transformer_options *options);

typedef enum rp_recurrent_kind { RP_RNN_TANH = 0, RP_RNN_RELU = 1, RP_GRU = 2, RP_LSTM = 3 } rp_recurrent_kind;
enum { RP_RECURRENT_MAX_PARAMETERS = 160 };
typedef struct rp_recurrent_options { /* zero is the default of torch.nn.RNN, GRU and LSTM */
    size_t struct_size;
    int64_t num_layers; /* 0: 1 */
    bool no_bias, batch_first, bidirectional;
    double dropout;    /* between layers, in training */
    int64_t proj_size; /* of LSTM: features of the projected state; 0: it is not projected */
} rp_recurrent_options;
typedef struct rp_recurrent_layer { /* torch.nn.RNN, GRU, LSTM */
    rp_recurrent_kind kind;
    /* weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_hr_l0 (those that there are), then _reverse, then _l1, ...;
       all uniform in +-1/sqrt(hidden_size) */
    rp_tensor *parameters[RP_RECURRENT_MAX_PARAMETERS];
    size_t n_parameters;
    int64_t input_size, hidden_size, num_layers, proj_size;
    double dropout;
    bool bias, batch_first, bidirectional;
    const rp_module *module;
} rp_recurrent_layer;
RP_CALL rp_status rp_recurrent_add(rp_module *m, const char *name, rp_recurrent_layer *l, rp_recurrent_kind kind,
                                   int64_t input_size, int64_t hidden_size, const rp_recurrent_options *options);
/* x: (L, N, input_size), batch_first (N, L, input_size), a sequence alone (L, input_size). States before and behind, hx and hy, and of
   LSTM cells, cx and cy: (layers directions, N, .), of a sequence alone without N. NULL: zeros, not wanted. */
RP_CALL rp_tensor *rp_recurrent_forward(const rp_recurrent_layer *l, rp_tensor *x, rp_tensor *hx, rp_tensor *cx,
                                        rp_tensor **hy, rp_tensor **cy);
/* Of packed sequences (rp_pack_padded_sequence). */
RP_CALL rp_tensor *rp_recurrent_forward_packed(const rp_recurrent_layer *l, rp_tensor *data, rp_tensor *batch_sizes,
                                               rp_tensor *hx, rp_tensor *cx, rp_tensor **hy, rp_tensor **cy);

/* torch.nn.utils.rnn: sequences of any order of lengths (enforce_sorted=False). Tensors of the scope, as all results are. */
typedef struct rp_packed_sequence {
    rp_tensor *data, *batch_sizes; /* as rp_pack_padded_sequence gives them, the longest sequence first */
    rp_tensor *sorted_indices, *unsorted_indices; /* which sequence is the k-th packed; where the k-th sequence is;
                                                     NULL: they are sorted already */
} rp_packed_sequence;
/* x: (L, N, ...), batch_first (N, L, ...); lengths: (N) int64, 1 to L each. */
RP_CALL rp_status rp_packed_sequence_make(rp_packed_sequence *p, rp_tensor *x, rp_tensor *lengths, bool batch_first);
/* Padded again to total_length (0: the longest), in the order of before; *lengths: (N) int64. */
RP_CALL rp_tensor *rp_packed_sequence_pad(const rp_packed_sequence *p, bool batch_first, double padding_value,
                                          int64_t total_length, rp_tensor **lengths);
/* States are in the order of before. y: the data of the sequence that comes out, whose other tensors are p's. */
RP_CALL rp_tensor *rp_recurrent_forward_sequence(const rp_recurrent_layer *l, const rp_packed_sequence *p,
                                                 rp_tensor *hx, rp_tensor *cx, rp_tensor **hy, rp_tensor **cy);
/* n sequences (L_k, ...) as one tensor (L, n, ...), batch_first (n, L, ...). */
RP_CALL rp_tensor *rp_pad_sequence(rp_tensor *const *sequences, size_t n, bool batch_first, double padding_value);

typedef struct rp_recurrent_cell { /* torch.nn.RNNCell, GRUCell, LSTMCell */
    rp_recurrent_kind kind;
    rp_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* uniform in +-1/sqrt(hidden_size) */
    int64_t hidden_size;
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_recurrent_cell;
RP_CALL rp_status rp_recurrent_cell_add(rp_module *m, const char *name, rp_recurrent_cell *l, rp_recurrent_kind kind,
                                        int64_t input_size, int64_t hidden_size, bool bias);
/* x: (N, input_size) or (input_size). hx, cx NULL: zeros. Returns the next state; *cy: the next cell, of LSTM. */
RP_CALL rp_tensor *rp_recurrent_cell_forward(const rp_recurrent_cell *l, rp_tensor *x, rp_tensor *hx, rp_tensor *cx,
                                             rp_tensor **cy);

typedef enum rp_padding_mode {
    RP_PADDING_ZEROS = 0,
    RP_PADDING_REFLECT = 1,
    RP_PADDING_REPLICATE = 2,
    RP_PADDING_CIRCULAR = 3
} rp_padding_mode;
typedef struct
    rp_conv_options { /* zero is the default of torch.nn.Conv1d and its like; the first entries are of the first places */
    size_t struct_size;
    int64_t stride[3]; /* 0: 1 */
    int64_t padding[3];
    int64_t output_padding[3]; /* of transposed ones */
    int64_t dilation[3];       /* 0: 1 */
    int64_t groups;            /* 0: 1 */
    bool no_bias;
    bool same; /* padding='same': as many places come out as go in */
    rp_padding_mode padding_mode;
} rp_conv_options;
typedef struct rp_conv_layer { /* torch.nn.Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d */
    rp_tensor
        *weight;     /* (out, in / groups, kernel), of transposed ones (in, out / groups, kernel); as rp_conv2d_layer */
    rp_tensor *bias; /* (out); NULL: none */
    unsigned spatial;
    bool transposed;
    rp_conv_options options; /* with zeros replaced by what they stand for */
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_conv_layer;
/* kernel: `spatial` numbers, 1 to 3. */
RP_CALL rp_status rp_conv_add(rp_module *m, const char *name, rp_conv_layer *l, int64_t in_channels,
                              int64_t out_channels, const int64_t *kernel, size_t spatial,
                              const rp_conv_options *options);
RP_CALL rp_status rp_conv_transpose_add(rp_module *m, const char *name, rp_conv_layer *l, int64_t in_channels,
                                        int64_t out_channels, const int64_t *kernel, size_t spatial,
                                        const rp_conv_options *options);
RP_CALL rp_tensor *rp_conv_layer_forward(const rp_conv_layer *l, rp_tensor *x);
/* Of a transposed one: the result has these sizes (the spatial ones, or all), whose rest stands for output_padding. */
RP_CALL rp_tensor *rp_conv_transpose_forward(const rp_conv_layer *l, rp_tensor *x, const int64_t *output_size,
                                             size_t n_dims);

typedef struct rp_max_unpool_layer { /* torch.nn.MaxUnpool1d, 2d, 3d */
    int64_t kernel[3], stride[3], padding[3];
    unsigned spatial;
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_max_unpool_layer;
/* kernel, stride, padding: `spatial` numbers, 1 to 3; stride NULL: kernel; padding NULL: 0. */
RP_CALL rp_status rp_max_unpool_add(rp_module *m, const char *name, rp_max_unpool_layer *l, const int64_t *kernel,
                                    const int64_t *stride, const int64_t *padding, size_t spatial);
/* output_size: the spatial sizes, or all, which lie within a stride of what kernel and stride give; NULL: those. */
RP_CALL rp_tensor *rp_max_unpool_forward(const rp_max_unpool_layer *l, rp_tensor *x, rp_tensor *indices,
                                         const int64_t *output_size, size_t n_dims);

/* Of a layer of rp_dropout_add: torch.nn.Dropout1d, 2d, 3d; AlphaDropout; FeatureAlphaDropout. */
RP_CALL rp_tensor *rp_channel_dropout_forward(const rp_dropout_layer *l, rp_tensor *x);
RP_CALL rp_tensor *rp_alpha_dropout_forward(const rp_dropout_layer *l, rp_tensor *x);
RP_CALL rp_tensor *rp_channel_alpha_dropout_forward(const rp_dropout_layer *l, rp_tensor *x);

typedef struct rp_prelu_layer { /* torch.nn.PReLU */
    rp_tensor *weight;          /* (num_parameters) */
    const rp_module *module;    /* whose hooks it has; NULL: none */
} rp_prelu_layer;
RP_CALL rp_status rp_prelu_add(rp_module *m, const char *name, rp_prelu_layer *l, int64_t num_parameters, double value);
RP_CALL rp_tensor *rp_prelu_layer_forward(const rp_prelu_layer *l, rp_tensor *x);

typedef struct rp_bilinear_layer { /* torch.nn.Bilinear */
    rp_tensor *weight;             /* (out, in1, in2), uniform in +-1/sqrt(in1), as the bias */
    rp_tensor *bias;               /* (out); NULL: none */
    const rp_module *module;       /* whose hooks it has; NULL: none */
} rp_bilinear_layer;
RP_CALL rp_status rp_bilinear_add(rp_module *m, const char *name, rp_bilinear_layer *l, int64_t in1_features,
                                  int64_t in2_features, int64_t out_features, bool bias);
RP_CALL rp_tensor *rp_bilinear_layer_forward(const rp_bilinear_layer *l, rp_tensor *x1, rp_tensor *x2);

typedef enum rp_bag_mode { RP_BAG_MEAN = 0, RP_BAG_SUM = 1, RP_BAG_MAX = 2 } rp_bag_mode;
typedef struct rp_embedding_bag_layer_options { /* zero is torch.nn.EmbeddingBag's default */
    size_t struct_size;
    rp_bag_mode mode;
    rp_scalar padding_idx; /* as of rp_embedding_layer_options; it does not count in its bag */
    double max_norm;       /* 0: none */
    double norm_type;      /* 0: 2 */
    bool scale_grad_by_freq, include_last_offset;
} rp_embedding_bag_layer_options;
typedef struct rp_embedding_bag_layer { /* torch.nn.EmbeddingBag */
    rp_tensor *weight;                  /* (num_embeddings, embedding_dim), standard normal */
    rp_bag_mode mode;
    int64_t padding_idx;
    double max_norm, norm_type;
    bool scale_grad_by_freq, include_last_offset;
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_embedding_bag_layer;
RP_CALL rp_status rp_embedding_bag_add(rp_module *m, const char *name, rp_embedding_bag_layer *l,
                                       int64_t num_embeddings, int64_t embedding_dim,
                                       const rp_embedding_bag_layer_options *options);
/* indices: (bags, n), offsets NULL; or (n), with where each bag begins. per_sample_weights: NULL, or of indices' size
   (mode sum). */
RP_CALL rp_tensor *rp_embedding_bag_layer_forward(const rp_embedding_bag_layer *l, rp_tensor *indices,
                                                  rp_tensor *offsets, rp_tensor *per_sample_weights);

typedef struct rp_transformer { /* torch.nn.Transformer; matrices are xavier_uniform */
    rp_transformer_stack encoder, decoder;
    const rp_module *module; /* whose hooks it has; NULL: none */
} rp_transformer;
/* encoder and decoder: arrays of the program, of that many layers (PyTorch's default: 6 each). */
RP_CALL rp_status rp_transformer_add(rp_module *m, const char *name, rp_transformer *t, rp_transformer_layer *encoder,
                                     size_t n_encoder, rp_transformer_layer *decoder, size_t n_decoder, int64_t d_model,
                                     int64_t nhead, const rp_transformer_options *options);
RP_CALL rp_tensor *rp_transformer_forward(const rp_transformer *t, rp_tensor *src, rp_tensor *tgt,
                                          const rp_attention_masks *src_masks, const rp_attention_masks *tgt_masks,
                                          const rp_attention_masks *memory_masks);

/* A layer without parameters is an op of the table and its arguments, written as a call: "gelu", "max_pool2d(2)",
   "pad([1, 1], mode='reflect')", "interpolate(scale_factor=[2, 2])", "cross_entropy(label_smoothing=0.1)". Activations,
   pools, paddings, Upsample, PixelShuffle, Fold and Unfold, Flatten, losses of torch.nn are such layers. Arguments are
   those of the op's schema without its tensors, in order or by name; one number stands for a list of fixed length. As in
   torch.nn, reduction is 'none', 'mean' or 'sum', sizes of adaptive pools may be None (the input's), windows of im2col and
   col2im have dilation 1, padding 0 and stride 1, and "identity" is a layer that does nothing.
   `train` and `training`, unless given, are the mode of the layer's module. */
typedef struct rp_op_layer {
    const char *op; /* the row's name */
    rp_attr attrs[16];
    size_t n_attrs;
    int mode;       /* which of them is the mode; -1: none */
    int from_input; /* which of them is a list with sizes that the input has; -1: none */
    const rp_module *module;
    int64_t ints[32];
    double floats[8];
    char text[160];
} rp_op_layer;
RP_CALL rp_status rp_op_layer_init(rp_op_layer *l, const char *call); /* the struct stays where it is */
RP_CALL rp_status rp_op_layer_add(rp_module *m, const char *name, rp_op_layer *l, const char *call);
/* The op's (first) result. rp_op_layer_forward(&l, RP_TENSORS(x, y)). */
RP_CALL rp_tensor *rp_op_layer_forward(const rp_op_layer *l, rp_tensor *const *in, size_t n_in);

/* torch.nn.Sequential. The sequence owns its layers, whose names are "0", "1", ..., and goes with m. A list or a
   dictionary of modules is a child with children: rp_module_child, and layers added to it by number or name. */
typedef struct rp_sequential rp_sequential;
typedef rp_tensor *rp_forward_fn(const void *layer, rp_tensor *x);
/* Never NULL: on failure one on which every call fails. */
RP_CALL rp_sequential *rp_sequential_add(rp_module *m, const char *name);
RP_CALL rp_module *rp_sequential_module(rp_sequential *s); /* its own, borrowed */
RP_API size_t rp_sequential_count(const rp_sequential *s);
/* The next layer: by the rp_x_add of that name, */
RP_CALL rp_status rp_sequential_linear(rp_sequential *s, int64_t in_features, int64_t out_features, bool bias);
RP_CALL rp_status rp_sequential_conv(rp_sequential *s, int64_t in_channels, int64_t out_channels, const int64_t *kernel,
                                     size_t spatial, const rp_conv_options *options);
RP_CALL rp_status rp_sequential_conv_transpose(rp_sequential *s, int64_t in_channels, int64_t out_channels,
                                               const int64_t *kernel, size_t spatial, const rp_conv_options *options);
RP_CALL rp_status rp_sequential_batch_norm(rp_sequential *s, int64_t num_features,
                                           const rp_batch_norm_options *options);
RP_CALL rp_status rp_sequential_layer_norm(rp_sequential *s, const int64_t *normalized_shape, size_t n_dims, double eps,
                                           bool elementwise_affine);
RP_CALL rp_status rp_sequential_group_norm(rp_sequential *s, int64_t num_groups, int64_t num_channels, double eps,
                                           bool affine);
RP_CALL rp_status rp_sequential_embedding(rp_sequential *s, int64_t num_embeddings, int64_t embedding_dim);
RP_CALL rp_status rp_sequential_prelu(rp_sequential *s, int64_t num_parameters, double value);
RP_CALL rp_status rp_sequential_op(rp_sequential *s, const char *call); /* an op: rp_op_layer */
/* or of the program: forward(layer, x); what it has of parameters is registered in the program's own way, below
   rp_sequential_module if they belong to the sequence. */
RP_CALL rp_status rp_sequential_function(rp_sequential *s, rp_forward_fn *forward, const void *layer);
RP_CALL rp_tensor *rp_sequential_forward(const rp_sequential *s, rp_tensor *x);

/* ---------------------------------------------------------------- optimizers (torch.optim)

   All state is made at construction: moments in the parameter's dtype, step count and learning rate as 0-d float32
   tensors on its device, so that a step can be recorded and played back. A step is one launch for all parameters that
   have always been stepped together. Parameters whose .grad is NULL are passed over, as PyTorch does; in a trace that
   is a guard. */

typedef struct rp_optimizer rp_optimizer;

typedef struct rp_adam_options { /* of rp_adam and rp_adamw */
    size_t struct_size;
    double beta1;        /* 0: 0.9; negative: 0 */
    double beta2;        /* 0: 0.999; negative: 0 */
    double eps;          /* 0: 1e-8; negative: 0 */
    double weight_decay; /* Adam: added to the gradient. AdamW: shrinks the parameter; 0: 0.01; negative: 0 */
    bool maximize;
    bool amsgrad;
} rp_adam_options;
typedef struct rp_sgd_options {
    size_t struct_size;
    double momentum, dampening, weight_decay;
    bool nesterov; /* needs momentum and no dampening */
    bool maximize;
} rp_sgd_options;
typedef struct rp_rmsprop_options {
    size_t struct_size;
    double alpha; /* 0: 0.99; negative: 0 */
    double eps;   /* 0: 1e-8; negative: 0 */
    double weight_decay, momentum;
    bool centered, maximize;
} rp_rmsprop_options;
typedef struct rp_adagrad_options { /* PyTorch's learning rate is 1e-2 */
    size_t struct_size;
    double lr_decay, weight_decay, initial_accumulator_value;
    double eps; /* 0: 1e-10; negative: 0 */
    bool maximize;
} rp_adagrad_options;
typedef struct rp_adadelta_options { /* PyTorch's learning rate is 1 */
    size_t struct_size;
    double rho; /* 0: 0.9; negative: 0 */
    double eps; /* 0: 1e-6; negative: 0 */
    double weight_decay;
    bool maximize;
} rp_adadelta_options;
typedef struct rp_adamax_options {
    size_t struct_size;
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-8; negative: 0 */
    double weight_decay;
    bool maximize;
} rp_adamax_options;
typedef struct rp_nadam_options {
    size_t struct_size;
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-8; negative: 0 */
    double weight_decay;
    double momentum_decay; /* 0: 4e-3; negative: 0 */
    bool decoupled_weight_decay, maximize;
} rp_nadam_options;
typedef struct rp_radam_options {
    size_t struct_size;
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-8; negative: 0 */
    double weight_decay;
    bool decoupled_weight_decay, maximize;
} rp_radam_options;
typedef struct
    rp_lion_options { /* Chen et al., 2023: moves by the sign of a mean of gradients; the decay shrinks the parameter */
    size_t struct_size;
    double beta1, beta2; /* 0: 0.9, 0.99; negative: 0 */
    double weight_decay;
    bool maximize;
} rp_lion_options;
typedef struct rp_lamb_options { /* You et al., 2019: Adam's update, as long as its parameter is by norm */
    size_t struct_size;
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-6; negative: 0 */
    double weight_decay;      /* 0: 0.01; negative: 0 */
    bool always_adapt;        /* also without a decay */
    bool trust_clip;          /* never longer than the update itself */
    bool maximize;
} rp_lamb_options;

/* Never NULL: on failure (no parameters, a learning rate below 0) an optimizer without groups, on which every call
   fails. params are retained. options NULL: defaults. */
RP_CALL rp_optimizer *rp_adam(rp_tensor *const *params, size_t n, double lr, const rp_adam_options *options);
RP_CALL rp_optimizer *rp_adamw(rp_tensor *const *params, size_t n, double lr, const rp_adam_options *options);
RP_CALL rp_optimizer *rp_sgd(rp_tensor *const *params, size_t n, double lr, const rp_sgd_options *options);
RP_CALL rp_optimizer *rp_rmsprop(rp_tensor *const *params, size_t n, double lr, const rp_rmsprop_options *options);
RP_CALL rp_optimizer *rp_adagrad(rp_tensor *const *params, size_t n, double lr, const rp_adagrad_options *options);
RP_CALL rp_optimizer *rp_adadelta(rp_tensor *const *params, size_t n, double lr, const rp_adadelta_options *options);
RP_CALL rp_optimizer *rp_adamax(rp_tensor *const *params, size_t n, double lr, const rp_adamax_options *options);
RP_CALL rp_optimizer *rp_nadam(rp_tensor *const *params, size_t n, double lr, const rp_nadam_options *options);
RP_CALL rp_optimizer *rp_radam(rp_tensor *const *params, size_t n, double lr, const rp_radam_options *options);
RP_CALL rp_optimizer *rp_lion(rp_tensor *const *params, size_t n, double lr, const rp_lion_options *options);
RP_CALL rp_optimizer *rp_lamb(rp_tensor *const *params, size_t n, double lr, const rp_lamb_options *options);
/* Of all parameters of a module. */
RP_CALL rp_optimizer *rp_adam_module(rp_module *m, double lr, const rp_adam_options *options);
RP_CALL rp_optimizer *rp_adamw_module(rp_module *m, double lr, const rp_adam_options *options);
RP_CALL rp_optimizer *rp_sgd_module(rp_module *m, double lr, const rp_sgd_options *options);
RP_CALL rp_optimizer *rp_rmsprop_module(rp_module *m, double lr, const rp_rmsprop_options *options);
RP_CALL rp_optimizer *rp_adagrad_module(rp_module *m, double lr, const rp_adagrad_options *options);
RP_CALL rp_optimizer *rp_adadelta_module(rp_module *m, double lr, const rp_adadelta_options *options);
RP_CALL rp_optimizer *rp_adamax_module(rp_module *m, double lr, const rp_adamax_options *options);
RP_CALL rp_optimizer *rp_nadam_module(rp_module *m, double lr, const rp_nadam_options *options);
RP_CALL rp_optimizer *rp_radam_module(rp_module *m, double lr, const rp_radam_options *options);
RP_CALL rp_optimizer *rp_lion_module(rp_module *m, double lr, const rp_lion_options *options);
RP_CALL rp_optimizer *rp_lamb_module(rp_module *m, double lr, const rp_lamb_options *options);
RP_API void rp_optimizer_release(rp_optimizer *opt); /* NULL is ignored */
/* One more group with its own options, for an optimizer of that kind (add_param_group); rp_adam_add_group is AdamW's,
   too. */
RP_CALL rp_status rp_adam_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                    const rp_adam_options *options);
RP_CALL rp_status rp_sgd_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                   const rp_sgd_options *options);
RP_CALL rp_status rp_rmsprop_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                       const rp_rmsprop_options *options);
RP_CALL rp_status rp_adagrad_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                       const rp_adagrad_options *options);
RP_CALL rp_status rp_adadelta_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                        const rp_adadelta_options *options);
RP_CALL rp_status rp_adamax_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                      const rp_adamax_options *options);
RP_CALL rp_status rp_nadam_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                     const rp_nadam_options *options);
RP_CALL rp_status rp_radam_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                     const rp_radam_options *options);
RP_CALL rp_status rp_lion_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                    const rp_lion_options *options);
RP_CALL rp_status rp_lamb_add_group(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                                    const rp_lamb_options *options);

RP_CALL rp_status rp_optimizer_step(rp_optimizer *opt);
/* set_to_none: .grad becomes NULL; else its elements become 0. */
RP_CALL rp_status rp_optimizer_zero_grad(rp_optimizer *opt, bool set_to_none);

RP_API size_t rp_optimizer_group_count(const rp_optimizer *opt);
RP_CALL size_t rp_optimizer_param_count(const rp_optimizer *opt, size_t group);
RP_CALL rp_status rp_optimizer_set_lr(rp_optimizer *opt, size_t group, double lr); /* in place: recorded steps see it */
RP_CALL rp_tensor *rp_optimizer_lr(rp_optimizer *opt, size_t group);               /* the 0-d tensor, borrowed */
/* State of parameter `index` of a group, borrowed, by PyTorch's name: "step", "exp_avg", "exp_avg_sq",
   "max_exp_avg_sq" (Adam), "momentum_buffer" (SGD, RMSprop), "square_avg", "grad_avg" (RMSprop, Adadelta),
   "acc_delta", "sum" (Adagrad), "exp_inf" (Adamax), "mu_product" (NAdam). NULL and an error when there is no such
   state. To restore a state, write into it with rp_copy_. */
RP_CALL rp_tensor *rp_optimizer_state(rp_optimizer *opt, size_t group, size_t index, const char *name);

/* torch.optim.LBFGS: steps of several evaluations, decided on the host; no part of a recorded step. */
typedef struct rp_lbfgs rp_lbfgs;
typedef struct rp_lbfgs_options { /* zero is PyTorch's default */
    size_t struct_size;
    int64_t max_iter;        /* 0: 20 */
    int64_t max_eval;        /* 0: 5/4 of max_iter */
    int64_t history_size;    /* 0: 100 */
    double tolerance_grad;   /* 0: 1e-7; negative: 0 */
    double tolerance_change; /* 0: 1e-9; negative: 0 */
    bool strong_wolfe;       /* line_search_fn="strong_wolfe"; else steps of length lr */
    bool maximize;
} rp_lbfgs_options;
/* Makes gradients anew and returns the loss: zero_grad, forward, backward. Called with grad mode on. */
typedef rp_tensor *rp_lbfgs_closure(void *ctx);
/* Parameters of one type on one device. Never NULL: on failure one on which every call fails. PyTorch's lr is 1. */
RP_CALL rp_lbfgs *rp_lbfgs_new(rp_tensor *const *params, size_t n, double lr, const rp_lbfgs_options *options);
RP_API void rp_lbfgs_release(rp_lbfgs *l);                                           /* NULL is ignored */
RP_CALL rp_tensor *rp_lbfgs_step(rp_lbfgs *l, rp_lbfgs_closure *closure, void *ctx); /* the loss before */

/* ---------------------------------------------------------------- schedules (torch.optim.lr_scheduler)

   A learning rate as a pure function of a step, from 0: PyTorch's closed forms. Given to an optimizer, the count of
   steps is a tensor beside its learning rate: a recorded step goes on with it, and files keep it. */

typedef struct rp_schedule rp_schedule;

/* Never NULL: on failure a schedule that no call takes. base: the group's learning rate when it gets the schedule. */
RP_CALL rp_schedule *rp_schedule_constant(double factor,
                                          int64_t total_iters); /* factor * base, base from total_iters on */
RP_CALL rp_schedule *rp_schedule_linear(double start_factor, double end_factor, int64_t total_iters);
RP_CALL rp_schedule *rp_schedule_step(int64_t step_size, double gamma);
RP_CALL rp_schedule *rp_schedule_multistep(const int64_t *milestones, size_t n, double gamma); /* n <= 64 */
RP_CALL rp_schedule *rp_schedule_exponential(double gamma);
RP_CALL rp_schedule *rp_schedule_polynomial(int64_t total_iters, double exponent);
RP_CALL rp_schedule *rp_schedule_cosine(int64_t t_max, double eta_min);
RP_CALL rp_schedule *rp_schedule_cosine_restarts(int64_t t_0, int64_t t_mult, double eta_min);

typedef struct rp_one_cycle_options {
    size_t struct_size;
    double pct_start;        /* 0: 0.3 */
    double div_factor;       /* 0: 25 */
    double final_div_factor; /* 0: 1e4 */
    bool linear;             /* else by a cosine */
    bool three_phase;
    bool keep_momentum;                 /* cycle_momentum=False */
    double base_momentum, max_momentum; /* 0: 0.85, 0.95; negative: 0 */
} rp_one_cycle_options;
/* Rates of its own, whatever base is; the last one stays. The momentum (beta1, where there is one) runs the other way, from
   max_momentum to base_momentum and back; for optimizers without one: keep_momentum. */
RP_CALL rp_schedule *rp_schedule_one_cycle(double max_lr, int64_t total_steps, const rp_one_cycle_options *options);

typedef enum rp_cyclic_mode {
    RP_CYCLIC_TRIANGULAR = 0,
    RP_CYCLIC_TRIANGULAR2 = 1,
    RP_CYCLIC_EXP_RANGE = 2
} rp_cyclic_mode;
typedef struct rp_cyclic_options {
    size_t struct_size;
    int64_t step_size_down; /* 0: as many as up */
    rp_cyclic_mode mode;
    double gamma;                       /* 0: 1 */
    bool keep_momentum;                 /* cycle_momentum=False */
    double base_momentum, max_momentum; /* 0: 0.8, 0.9; negative: 0. The momentum runs against the rate */
} rp_cyclic_options;
RP_CALL rp_schedule *rp_schedule_cyclic(double base_lr, double max_lr, int64_t step_size_up,
                                        const rp_cyclic_options *options);

/* The factor of base at a step. Reads the step on the host: outside of recorded steps. */
typedef double rp_schedule_fn(void *ctx, int64_t step);
RP_CALL rp_schedule *rp_schedule_lambda(rp_schedule_fn *fn, void *ctx);
/* Part i + 1 begins at milestones[i], n - 1 of them, and counts from there. Parts are copied, 64 at most. */
RP_CALL rp_schedule *rp_schedule_sequential(rp_schedule *const *parts, size_t n, const int64_t *milestones);
/* The product of factors: of schedules that are multiples of base. */
RP_CALL rp_schedule *rp_schedule_chained(rp_schedule *const *parts, size_t n);
RP_API void rp_schedule_release(rp_schedule *s); /* optimizers have copies; NULL is ignored */
/* The rates at steps (a tensor of any size) as float64. */
RP_CALL rp_tensor *rp_schedule_rate(const rp_schedule *s, rp_tensor *step, double base_lr);
/* The momenta, likewise: `own`, the optimizer's, where the schedule cycles none. */
RP_CALL rp_tensor *rp_schedule_momentum(const rp_schedule *s, rp_tensor *step, double own);

/* For all groups, from step 0, whose rate they get at once. NULL: none any more. rp_optimizer_set_lr holds until the
   next step of the schedule. */
RP_CALL rp_status rp_optimizer_set_schedule(rp_optimizer *opt, const rp_schedule *s);
/* The momentum of a group as its schedule cycles it, 0-d float64, borrowed; NULL: it does not. */
RP_CALL rp_tensor *rp_optimizer_momentum(rp_optimizer *opt, size_t group);
RP_CALL rp_status rp_optimizer_schedule_step(rp_optimizer *opt); /* scheduler.step(): after rp_optimizer_step */

typedef struct rp_plateau_options { /* zero is PyTorch's default */
    size_t struct_size;
    bool max;         /* the larger a metric, the better */
    double factor;    /* 0: 0.1; negative: 0 */
    int64_t patience; /* 0: 10; negative: 0 */
    double threshold; /* 0: 1e-4; negative: 0 */
    bool absolute;    /* the threshold is a difference, not a part of the best */
    int64_t cooldown;
    double min_lr, eps; /* eps 0: 1e-8; negative: 0 */
} rp_plateau_options;
typedef struct
    rp_plateau { /* torch.optim.lr_scheduler.ReduceLROnPlateau: plain data, which a program may keep as it likes */
    rp_plateau_options options;
    double best;
    int64_t bad_epochs, cooldown_left;
} rp_plateau;
RP_CALL rp_status rp_plateau_init(rp_plateau *p, const rp_plateau_options *options);
RP_CALL rp_status rp_plateau_step(rp_plateau *p, rp_optimizer *opt,
                                  double metric); /* may lower the rates of all groups */

/* ---------------------------------------------------------------- gradients and averages, without the host

   Each is one launch for all tensors, besides the norms. */

/* torch.nn.utils.clip_grad_norm_: gradients are scaled so that the norm of all together (order norm_type: 2, 1,
   INFINITY, ...) is max_norm at most. Returns the norm before, 0-d; parameters without a gradient are passed over. */
RP_CALL rp_tensor *rp_clip_grad_norm(rp_tensor *const *params, size_t n, double max_norm, double norm_type);
RP_CALL rp_tensor *rp_grad_norm(rp_tensor *const *params, size_t n, double norm_type); /* the norm alone */
/* torch.nn.utils.clip_grad_value_: elements within +-clip_value. */
RP_CALL rp_status rp_clip_grad_value(rp_tensor *const *params, size_t n, double clip_value);

/* Averages of weights (torch.optim.swa_utils.AveragedModel): exponential with a decay, or of all alike. */
typedef struct rp_average rp_average;
/* Copies of n tensors, in their dtypes. decay: 0 to 1; RP_AVERAGE_EQUAL: the mean of all updates. Never NULL: on
   failure one on which every call fails. */
#define RP_AVERAGE_EQUAL (-1.0)
RP_CALL rp_average *rp_average_new(rp_tensor *const *tensors, size_t n, double decay);
RP_API void rp_average_release(rp_average *a);      /* NULL is ignored */
RP_CALL rp_status rp_average_update(rp_average *a); /* takes the tensors in; the first update copies them */
RP_CALL rp_tensor *rp_average_tensor(const rp_average *a, size_t i); /* borrowed */
RP_CALL rp_tensor *rp_average_count(const rp_average *a);            /* updates so far: 0-d float32, borrowed */
RP_CALL rp_status rp_average_swap(rp_average *a);                    /* exchanges the values of tensors and averages */

/* ---------------------------------------------------------------- scaling of losses (torch.amp.GradScaler), without
   the host

   Whether a step is taken is decided where the gradients lie: rp_set_autocast, scale, backward, unscale, clip, step
   and update are one recorded step, or lie in several functions, compiled or not. A raw graph holds all from unscale, or step, to
   update: its replays tell the host nothing.

       rp_backward(rp_grad_scaler_scale(s, loss), NULL, NULL);
       rp_grad_scaler_unscale(s, opt);               only to clip; step does it otherwise
       rp_clip_grad_norm(params, n, 1, 2);
       rp_grad_scaler_step(s, opt);
       rp_grad_scaler_update(s); */

typedef struct rp_grad_scaler rp_grad_scaler;
typedef struct rp_grad_scaler_options { /* zero is PyTorch's default */
    size_t struct_size;
    double init_scale;       /* 0: 65536 */
    double growth_factor;    /* 0: 2 */
    double backoff_factor;   /* 0: 0.5 */
    int64_t growth_interval; /* 0: 2000 */
} rp_grad_scaler_options;
/* On the default device. Never NULL: on failure one on which every call fails. */
RP_CALL rp_grad_scaler *rp_grad_scaler_new(const rp_grad_scaler_options *options);
RP_API void rp_grad_scaler_release(rp_grad_scaler *s); /* NULL is ignored */
RP_CALL rp_tensor *rp_grad_scaler_scale(rp_grad_scaler *s, rp_tensor *loss);
RP_CALL rp_status rp_grad_scaler_unscale(rp_grad_scaler *s, rp_optimizer *opt); /* once before each update */
RP_CALL rp_status rp_grad_scaler_step(rp_grad_scaler *s,
                                      rp_optimizer *opt); /* nothing changes if a gradient is not finite */
RP_CALL rp_status rp_grad_scaler_update(rp_grad_scaler *s);
/* "scale" (0-d float32), "growth_tracker" (0-d int32: steps since the scale last changed): borrowed. Write into them
   to set them. */
RP_CALL rp_tensor *rp_grad_scaler_state(const rp_grad_scaler *s, const char *name);

#ifdef __cplusplus
}
#endif

#include "reprise_nn_calls.h"

#endif
