/* Layers against PyTorch's: names and sizes of their state, results, and the gradients of inputs and parameters, in float64. Values are a
   formula of element and tensor, the same here and in scripts/golden_layers.py, which writes tests/data/layers.txt. */
/* ctest: timeout=120 labels=numbers */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <reprise.h>
#include <reprise_nn.h>

#include "support/in_scope.h"

/* ---------------------------------------------------------------- values */

static double value(int64_t i, int64_t tensor) { return 0.5 * sin(1 + 0.37 * (double)i + 1.7 * (double)tensor); }

enum { MOST = 4096, INPUTS = 4, RESULTS = 4, MOST_LINES = 128 };
static double room[MOST];
static rp_tensor *inputs[INPUTS];
static size_t n_inputs;

static int64_t filled(const int64_t *size, size_t ndim, int64_t tensor) {
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= size[d];
    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++) room[i] = value(i, tensor);
    return n;
}

/* The next input of floats: tensor 100, 101, .. */
static rp_tensor *input_of(const int64_t *size, size_t ndim) {
    assert_true(n_inputs < INPUTS);
    (void)filled(size, ndim, 100 + (int64_t)n_inputs);
    rp_tensor *t = rp_from_data(room, size, ndim, RP_F64);
    OK(rp_set_requires_grad(t, true));
    return inputs[n_inputs++] = t;
}
#define X(...) input_of((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* A mask of bools: where value(i, 200) > 0.3; of floats: value(i, 201). */
static rp_tensor *mask_of(const int64_t *size, size_t ndim, bool bools) {
    const int64_t n = filled(size, ndim, bools ? 200 : 201);
    rp_tensor *t = rp_from_data(room, size, ndim, RP_F64);
    assert_true(n > 0);
    return bools ? rp_gt_scalar(t, rp_f64(0.3)) : t;
}
#define MASK(...)                                                                                                      \
    mask_of((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t), true)
#define BIAS(...)                                                                                                      \
    mask_of((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t), false)

/* ---------------------------------------------------------------- what PyTorch gives */

typedef struct line {
    char kind[8], name[64]; /* state, out, grad, after */
    int ndim;
    int64_t size[RP_MAX_DIMS], n;
    double *values; /* of all but state */
} line;
typedef struct expected {
    char name[64];
    line lines[MOST_LINES];
    size_t n;
} expected;

static char *text; /* the file */

static bool expected_read(const char *name, expected *e) {
    char *saved = NULL, *copy = strdup(text);
    bool mine = false, found = false;
    memset(e, 0, sizeof *e);
    for (char *l = strtok_r(copy, "\n", &saved); l; l = strtok_r(NULL, "\n", &saved)) {
        char *at = NULL, *word = strtok_r(l, " ", &at);
        if (!word) continue;
        if (strcmp(word, "case") == 0) {
            mine = strcmp(strtok_r(NULL, " ", &at), name) == 0;
            found = found || mine;
            continue;
        }
        if (!mine) continue;
        assert_true(e->n < MOST_LINES);
        line *to = &e->lines[e->n++];
        snprintf(to->kind, sizeof to->kind, "%s", word);
        snprintf(to->name, sizeof to->name, "%s", strtok_r(NULL, " ", &at));
        to->ndim = atoi(strtok_r(NULL, " ", &at));
        to->n = 1;
        for (int d = 0; d < to->ndim; d++) to->n *= to->size[d] = atoll(strtok_r(NULL, " ", &at));
        if (strcmp(word, "state") == 0) continue;
        to->values = calloc((size_t)to->n + 1, sizeof *to->values);
        for (int64_t i = 0; i < to->n; i++) to->values[i] = strtod(strtok_r(NULL, " ", &at), NULL);
    }
    free(copy);
    return found;
}

static void expected_free(expected *e) {
    for (size_t i = 0; i < e->n; i++) free(e->lines[i].values);
}

static void compare(const char *what, rp_tensor *t, const line *l) {
    if (rp_is_error(t)) fail_msg("%s %s: %s", what, l->name, rp_error_message());
    assert_int_equal(rp_ndim(t), l->ndim);
    for (int d = 0; d < l->ndim; d++) assert_int_equal(rp_size(t, d), l->size[d]);
    assert_true(l->n <= MOST && rp_dtype_of(t) == RP_F64);
    OK(rp_to_host(t, room, (size_t)l->n * sizeof *room));
    double largest = 1e-3;
    for (int64_t i = 0; i < l->n; i++) largest = fmax(largest, fabs(l->values[i]));
    for (int64_t i = 0; i < l->n; i++) {
        if (isnan(room[i]) && isnan(l->values[i])) continue;
        if (!(fabs(room[i] - l->values[i]) <= 1e-10 * largest))
            fail_msg("%s %s: element %lld is %.17g, expected %.17g", what, l->name, (long long)i, room[i],
                     l->values[i]);
    }
}

/* ---------------------------------------------------------------- a case */

static rp_module *module;
static expected want;

/* The layer is a child "l" of the module: its state is named and sized as PyTorch's, and gets its values. */
static void begin(const char *name) {
    size_t n, states = 0;
    n_inputs = 0;
    if (!expected_read(name, &want)) fail_msg("%s is not in tests/data/layers.txt: run scripts/golden_layers.py", name);
    OK(rp_module_to_dtype(module, RP_F64));
    const rp_named_tensor *state = rp_module_state(module, &n);
    for (size_t k = 0; k < want.n; k++) {
        const line *l = &want.lines[k];
        if (strcmp(l->kind, "state") != 0) continue;
        rp_tensor *t = NULL;
        for (size_t i = 0; i < n; i++)
            if (strcmp(state[i].name + 2, l->name) == 0) t = state[i].tensor; /* without "l." */
        if (!t) fail_msg("%s has no %s", name, l->name);
        if (rp_ndim(t) != (size_t)l->ndim) fail_msg("%s: %s has another rank", name, l->name);
        for (int d = 0; d < l->ndim; d++) assert_int_equal(rp_size(t, d), l->size[d]);
        states++;
        if (rp_dtype_of(t) != RP_F64) continue;
        (void)filled(l->size, (size_t)l->ndim, (int64_t)k);
        if (strstr(l->name, "var"))
            for (int64_t i = 0; i < l->n; i++) room[i] = 1 + room[i];
        const bool grad = rp_set_grad_enabled(false);
        (void)rp_copy_(t, rp_from_data(room, l->size, (size_t)l->ndim, RP_F64));
        (void)rp_set_grad_enabled(grad);
    }
    if (n != states) fail_msg("%s has %zu tensors in its state, not %zu", name, n, states);
}

/* Results and the gradients of the sum of their elements times value(i, 300 + result). */
static void finish(rp_tensor **out, size_t n_out) {
    rp_tensor *loss = NULL;
    size_t at = 0, n;
    for (size_t k = 0; k < want.n; k++) {
        if (strcmp(want.lines[k].kind, "out") != 0) continue;
        assert_true(at < n_out);
        compare("result", out[at], &want.lines[k]);
        const line *l = &want.lines[k];
        (void)filled(l->size, (size_t)l->ndim, 300 + (int64_t)at);
        rp_tensor *part = rp_sum(rp_mul(out[at], rp_from_data(room, l->size, (size_t)l->ndim, RP_F64)));
        loss = loss ? rp_add(loss, part) : part;
        at++;
    }
    assert_int_equal(at, n_out);
    OK(rp_backward(loss, NULL, NULL));
    const rp_named_tensor *state = rp_module_state(module, &n);
    for (size_t k = 0; k < want.n; k++) {
        const line *l = &want.lines[k];
        rp_tensor *t = NULL;
        if (l->name[0] == '#') t = inputs[atoi(l->name + 1)];
        for (size_t i = 0; i < n; i++)
            if (strcmp(state[i].name + 2, l->name) == 0) t = state[i].tensor;
        if (strcmp(l->kind, "grad") == 0) {
            if (!rp_grad_of(t)) fail_msg("%s has no gradient", l->name);
            compare("gradient of", rp_grad_of(t), l);
        } else if (strcmp(l->kind, "after") == 0) {
            compare("afterwards", t, l);
        }
    }
}

/* name: that of the golden. type: the layer's struct, `l` points to it. add: it becomes child "l" of m. The rest fills out[]. */
#define CASE(name, type, add, ...)                                                                                     \
    static void name(void **state) {                                                                                   \
        type layer, *l = &layer;                                                                                       \
        rp_module *m = module = rp_module_new("");                                                                     \
        rp_tensor *out[RESULTS] = {NULL};                                                                              \
        (void)state;                                                                                                   \
        OK(add);                                                                                                       \
        begin(#name);                                                                                                  \
        __VA_ARGS__;                                                                                                   \
        size_t n = 0;                                                                                                  \
        while (n < RESULTS && out[n]) n++;                                                                             \
        finish(out, n);                                                                                                \
    }
#define EVAL OK(rp_module_set_training(m, false))

CASE(rms_norm, rp_rms_norm_layer, rp_rms_norm_add(m, "l", l, RP_DIMS(3, 4), 0, true),
     out[0] = rp_rms_norm_layer_forward(l, X(2, 3, 4)))
CASE(rms_norm_plain, rp_rms_norm_layer, rp_rms_norm_add(m, "l", l, RP_DIMS(4), 0.1, false),
     out[0] = rp_rms_norm_layer_forward(l, X(2, 3, 4)))
CASE(group_norm, rp_group_norm_layer, rp_group_norm_add(m, "l", l, 2, 6, 1e-5, true),
     out[0] = rp_group_norm_layer_forward(l, X(2, 6, 3)))
CASE(instance_norm, rp_instance_norm_layer, rp_instance_norm_add(m, "l", l, 3, NULL),
     out[0] = rp_instance_norm_layer_forward(l, X(2, 3, 5)))
static const rp_instance_norm_options tracked = {
    .struct_size = sizeof tracked, .affine = true, .track_running_stats = true, .momentum = 0.3, .eps = 0.01};
CASE(instance_norm_tracked, rp_instance_norm_layer, rp_instance_norm_add(m, "l", l, 3, &tracked),
     out[0] = rp_instance_norm_layer_forward(l, X(2, 3, 2, 4)))
CASE(instance_norm_eval, rp_instance_norm_layer, rp_instance_norm_add(m, "l", l, 3, &tracked), EVAL;
     out[0] = rp_instance_norm_layer_forward(l, X(2, 3, 2, 4)))

/* ---- attention */

#define HEADS rp_multihead_attention_layer
#define HEADS_OF(...)                                                                                                  \
    (&(const rp_multihead_attention_options){.struct_size = sizeof(rp_multihead_attention_options), __VA_ARGS__})
#define MASKS(...) (&(const rp_attention_masks){.struct_size = sizeof(rp_attention_masks), __VA_ARGS__})
CASE(heads_self, HEADS, rp_multihead_attention_add(m, "l", l, 6, 2, NULL), rp_tensor *x = X(3, 2, 6);
     out[0] = rp_multihead_attention_layer_forward(l, x, x, x, NULL, &out[1]))
CASE(heads_masked, HEADS, rp_multihead_attention_add(m, "l", l, 6, 2, HEADS_OF(.batch_first = true)),
     rp_tensor *q = X(2, 3, 6), *k = X(2, 4, 6);
     out[0] = rp_multihead_attention_layer_forward(l, q, k, k,
                                                   MASKS(.attn_mask = BIAS(4, 3, 4), .key_padding_mask = MASK(2, 4)),
                                                   NULL))
CASE(heads_sizes, HEADS, rp_multihead_attention_add(m, "l", l, 4, 2, HEADS_OF(.kdim = 3, .vdim = 5, .no_bias = true)),
     rp_tensor *q = X(3, 2, 4), *k = X(4, 2, 3), *v = X(4, 2, 5);
     out[0] = rp_multihead_attention_layer_forward(l, q, k, v, MASKS(.attn_mask = MASK(3, 4), .head_weights = true),
                                                   &out[1]))
CASE(heads_more, HEADS,
     rp_multihead_attention_add(m, "l", l, 4, 2, HEADS_OF(.add_bias_kv = true, .add_zero_attn = true)),
     rp_tensor *q = X(3, 2, 4), *k = X(4, 2, 4), *v = X(4, 2, 4);
     out[0] = rp_multihead_attention_layer_forward(l, q, k, v,
                                                   MASKS(.attn_mask = BIAS(3, 4), .key_padding_mask = MASK(2, 4)),
                                                   NULL))
CASE(heads_alone, HEADS, rp_multihead_attention_add(m, "l", l, 4, 1, NULL), rp_tensor *x = X(3, 4);
     out[0] = rp_multihead_attention_layer_forward(l, x, x, x, MASKS(.is_causal = true), NULL))
CASE(heads_causal, HEADS, rp_multihead_attention_add(m, "l", l, 4, 2, NULL), rp_tensor *x = X(3, 2, 4);
     out[0] = rp_multihead_attention_layer_forward(l, x, x, x, MASKS(.is_causal = true, .head_weights = true), &out[1]))

#define LAYER rp_transformer_layer
#define SMALL .dim_feedforward = 5, .dropout = -1
#define LAYER_OF(...) (&(const rp_transformer_options){.struct_size = sizeof(rp_transformer_options), __VA_ARGS__})
CASE(encoder_layer, LAYER,
     rp_transformer_encoder_layer_add(m, "l", l, 4, 2, LAYER_OF(.dim_feedforward = 6, .dropout = -1)),
     out[0] = rp_transformer_encoder_layer_forward(l, X(3, 2, 4), MASKS(.key_padding_mask = MASK(2, 3))))
CASE(encoder_layer_first, LAYER,
     rp_transformer_encoder_layer_add(m, "l", l, 4, 2,
                                      LAYER_OF(SMALL, .activation = RP_TRANSFORMER_GELU, .norm_first = true,
                                               .batch_first = true, .no_bias = true)),
     out[0] = rp_transformer_encoder_layer_forward(l, X(2, 3, 4), MASKS(.attn_mask = BIAS(3, 3))))
CASE(decoder_layer, LAYER,
     rp_transformer_decoder_layer_add(m, "l", l, 4, 2, LAYER_OF(SMALL, .layer_norm_eps = 0.01, .batch_first = true)),
     rp_tensor *tgt = X(2, 3, 4);
     out[0] = rp_transformer_decoder_layer_forward(l, tgt, X(2, 5, 4), MASKS(.is_causal = true),
                                                   MASKS(.key_padding_mask = MASK(2, 5))))
typedef struct stack {
    rp_transformer_stack stack;
    rp_transformer_layer layers[2];
} stack;
CASE(encoder, stack,
     rp_transformer_encoder_add(m, "l", &l->stack, l->layers, 2, 4, 2, true, LAYER_OF(SMALL, .norm_first = true)),
     out[0] = rp_transformer_encoder_forward(&l->stack, X(3, 2, 4), NULL))
CASE(decoder, stack,
     rp_transformer_decoder_add(m, "l", &l->stack, l->layers, 2, 4, 1, false, LAYER_OF(SMALL, .batch_first = true)),
     rp_tensor *tgt = X(2, 3, 4);
     out[0] = rp_transformer_decoder_forward(&l->stack, tgt, X(2, 2, 4), MASKS(.attn_mask = BIAS(3, 3)), NULL))

/* ---- recurrent networks */

#define RECURRENT rp_recurrent_layer
#define RECURRENT_OF(...) (&(const rp_recurrent_options){.struct_size = sizeof(rp_recurrent_options), __VA_ARGS__})
CASE(rnn, RECURRENT, rp_recurrent_add(m, "l", l, RP_RNN_TANH, 2, 3, NULL),
     out[0] = rp_recurrent_forward(l, X(3, 2, 2), NULL, NULL, &out[1], NULL))
CASE(rnn_relu, RECURRENT,
     rp_recurrent_add(m, "l", l, RP_RNN_RELU, 2, 3, RECURRENT_OF(.no_bias = true, .num_layers = 2)),
     rp_tensor *x = X(3, 2, 2);
     out[0] = rp_recurrent_forward(l, x, X(2, 2, 3), NULL, &out[1], NULL))
CASE(gru, RECURRENT,
     rp_recurrent_add(m, "l", l, RP_GRU, 2, 3,
                      RECURRENT_OF(.batch_first = true, .bidirectional = true, .num_layers = 2)),
     out[0] = rp_recurrent_forward(l, X(2, 4, 2), NULL, NULL, &out[1], NULL))
CASE(lstm, RECURRENT, rp_recurrent_add(m, "l", l, RP_LSTM, 2, 3, RECURRENT_OF(.proj_size = 2, .bidirectional = true)),
     rp_tensor *x = X(3, 2, 2), *h = X(2, 2, 2), *c = X(2, 2, 3);
     out[0] = rp_recurrent_forward(l, x, h, c, &out[1], &out[2]))
CASE(lstm_alone, RECURRENT, rp_recurrent_add(m, "l", l, RP_LSTM, 2, 3, NULL),
     out[0] = rp_recurrent_forward(l, X(3, 2), NULL, NULL, &out[1], &out[2]))
static rp_tensor *batch_sizes(void) { return rp_from_data((const int64_t[]){3, 2, 2, 1}, RP_DIMS(4), RP_I64); }
CASE(lstm_packed, RECURRENT, rp_recurrent_add(m, "l", l, RP_LSTM, 2, 3, RECURRENT_OF(.bidirectional = true)),
     out[0] = rp_recurrent_forward_packed(l, X(8, 2), batch_sizes(), NULL, NULL, &out[1], &out[2]))
CASE(rnn_cell, rp_recurrent_cell, rp_recurrent_cell_add(m, "l", l, RP_RNN_RELU, 2, 3, true), rp_tensor *x = X(2, 2);
     out[0] = rp_recurrent_cell_forward(l, x, X(2, 3), NULL, NULL))
CASE(gru_cell, rp_recurrent_cell, rp_recurrent_cell_add(m, "l", l, RP_GRU, 2, 3, false),
     out[0] = rp_recurrent_cell_forward(l, X(2), NULL, NULL, NULL))
CASE(lstm_cell, rp_recurrent_cell, rp_recurrent_cell_add(m, "l", l, RP_LSTM, 2, 3, true), rp_tensor *x = X(2, 2),
     *h = X(2, 3);
     out[0] = rp_recurrent_cell_forward(l, x, h, X(2, 3), &out[1]))

/* ---- convolutions and small layers */

#define CONV rp_conv_layer
#define KERNEL(...) (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)
#define CONV_OF(...) (&(const rp_conv_options){.struct_size = sizeof(rp_conv_options), __VA_ARGS__})
CASE(conv1d, CONV, rp_conv_add(m, "l", l, 2, 3, KERNEL(3), NULL), out[0] = rp_conv_layer_forward(l, X(2, 2, 7)))
CASE(conv2d_reflect, CONV,
     rp_conv_add(m, "l", l, 2, 4, KERNEL(3, 2),
                 CONV_OF(.padding = {2, 1}, .stride = {1, 2}, .groups = 2, .padding_mode = RP_PADDING_REFLECT)),
     out[0] = rp_conv_layer_forward(l, X(1, 2, 5, 6)))
CASE(conv2d_same, CONV,
     rp_conv_add(m, "l", l, 2, 3, KERNEL(4, 3),
                 CONV_OF(.same = true, .dilation = {1, 2}, .padding_mode = RP_PADDING_CIRCULAR)),
     out[0] = rp_conv_layer_forward(l, X(1, 2, 5, 6)))
CASE(conv1d_same, CONV, rp_conv_add(m, "l", l, 2, 3, KERNEL(4), CONV_OF(.same = true)),
     out[0] = rp_conv_layer_forward(l, X(2, 2, 5)))
CASE(conv3d, CONV,
     rp_conv_add(m, "l", l, 2, 2, KERNEL(2, 3, 2),
                 CONV_OF(.padding = {1, 0, 1}, .no_bias = true, .padding_mode = RP_PADDING_REPLICATE)),
     out[0] = rp_conv_layer_forward(l, X(1, 2, 3, 4, 3)))
CASE(conv_transpose1d, CONV,
     rp_conv_transpose_add(m, "l", l, 2, 4, KERNEL(3),
                           CONV_OF(.stride = {2}, .padding = {1}, .output_padding = {1}, .groups = 2)),
     out[0] = rp_conv_layer_forward(l, X(1, 2, 4)))
CASE(conv_transpose3d, CONV, rp_conv_transpose_add(m, "l", l, 2, 3, KERNEL(2, 1, 2), CONV_OF(.dilation = {2, 1, 1})),
     out[0] = rp_conv_layer_forward(l, X(1, 2, 2, 3, 2)))
CASE(prelu, rp_prelu_layer, rp_prelu_add(m, "l", l, 3, 0.25), out[0] = rp_prelu_layer_forward(l, X(2, 3, 4)))
CASE(bilinear, rp_bilinear_layer, rp_bilinear_add(m, "l", l, 2, 3, 4, true), rp_tensor *x = X(5, 2);
     out[0] = rp_bilinear_layer_forward(l, x, X(5, 3)))

/* ---- what torch.nn has beside the ops */

static const rp_batch_norm_options cumulative = {.struct_size = sizeof cumulative, .cumulative = true};
CASE(batch_norm_cumulative, rp_batch_norm_layer, rp_batch_norm_add(m, "l", l, 3, &cumulative),
     out[0] = rp_batch_norm_layer_forward(l, X(4, 3));
     out[1] = rp_batch_norm_layer_forward(l, X(3, 3)); out[2] = rp_batch_norm_layer_forward(l, X(5, 3)))
static const rp_layer_norm_options no_bias = {.struct_size = sizeof no_bias, .no_bias = true};
CASE(layer_norm_no_bias, rp_layer_norm_layer, rp_layer_norm_add_with(m, "l", l, RP_DIMS(3, 4), &no_bias),
     out[0] = rp_layer_norm_layer_forward(l, X(2, 3, 4)))
CASE(instance_norm_alone, rp_instance_norm_layer, rp_instance_norm_add(m, "l", l, 3, &tracked),
     out[0] = rp_instance_norm_layer_forward(l, X(3, 5)))
static const rp_instance_norm_options of_planes = {.struct_size = sizeof of_planes, .affine = true, .spatial = 2};
CASE(instance_norm_alone2, rp_instance_norm_layer, rp_instance_norm_add(m, "l", l, 3, &of_planes),
     out[0] = rp_instance_norm_layer_forward(l, X(3, 2, 4)))
CASE(conv_transpose_sized, CONV,
     rp_conv_transpose_add(m, "l", l, 2, 3, KERNEL(3, 3), CONV_OF(.stride = {2, 2}, .padding = {1, 1})),
     out[0] = rp_conv_transpose_forward(l, X(1, 2, 4, 4), RP_DIMS(8, 7)))
#define UNPOOL(stride, ...)                                                                                            \
    rp_tensor *at, *pooled = rp_max_pool2d_with_indices(X(__VA_ARGS__), l->kernel, 2, stride, 2, RP_DIMS(0, 0),        \
                                                        RP_DIMS(1, 1), false, &at)
CASE(unpool, rp_max_unpool_layer, rp_max_unpool_add(m, "l", l, (const int64_t[]){2, 3}, NULL, NULL, 2),
     UNPOOL(l->kernel, 1, 2, 4, 6);
     out[0] = rp_max_unpool_forward(l, pooled, at, NULL, 0))
CASE(unpool_sized, rp_max_unpool_layer,
     rp_max_unpool_add(m, "l", l, (const int64_t[]){2, 2}, (const int64_t[]){2, 2}, (const int64_t[]){0, 0}, 2),
     UNPOOL(l->stride, 1, 2, 5, 5);
     out[0] = rp_max_unpool_forward(l, pooled, at, RP_DIMS(1, 2, 5, 5)))
CASE(adaptive_none, rp_op_layer, rp_op_layer_add(m, "l", l, "adaptive_avg_pool2d([None, 2])"),
     out[0] = rp_op_layer_forward(l, RP_TENSORS(X(1, 2, 3, 4))))
CASE(loss_by_name, rp_op_layer, rp_op_layer_add(m, "l", l, "mse_loss(reduction='sum')"), rp_tensor *x = X(2, 3);
     out[0] = rp_op_layer_forward(l, RP_TENSORS(x, X(2, 3))))
CASE(unfold_layer, rp_op_layer, rp_op_layer_add(m, "l", l, "im2col(2)"),
     out[0] = rp_op_layer_forward(l, RP_TENSORS(X(1, 2, 3, 4))))
CASE(fold_layer, rp_op_layer, rp_op_layer_add(m, "l", l, "col2im([3, 4], 2)"),
     out[0] = rp_op_layer_forward(l, RP_TENSORS(X(1, 8, 6))))
CASE(identity, rp_op_layer, rp_op_layer_add(m, "l", l, "identity"),
     out[0] = rp_op_layer_forward(l, RP_TENSORS(X(2, 3))))

static rp_tensor *lengths_of(int64_t a, int64_t b, int64_t c) {
    return rp_from_data((const int64_t[]){a, b, c}, RP_DIMS(3), RP_I64);
}
static rp_tensor *in_sequence(rp_recurrent_layer *l, rp_tensor *x, rp_tensor *lengths, rp_tensor *h, rp_tensor *c,
                              rp_tensor **out) {
    rp_packed_sequence p;
    rp_tensor *again;
    OK(rp_packed_sequence_make(&p, x, lengths, l->batch_first));
    p.data = rp_recurrent_forward_sequence(l, &p, h, c, &out[0], &out[1]);
    rp_tensor *y = rp_packed_sequence_pad(&p, l->batch_first, -0.5, 5, &again);
    assert_true(rp_item_i64(rp_all(rp_eq(again, lengths))));
    return y;
}
CASE(lstm_sequence, RECURRENT, rp_recurrent_add(m, "l", l, RP_LSTM, 2, 3, RECURRENT_OF(.bidirectional = true)),
     rp_tensor *x = X(4, 3, 2), *h = X(2, 3, 3), *c = X(2, 3, 3);
     out[0] = in_sequence(l, x, lengths_of(2, 4, 1), h, c, out + 1))
CASE(lstm_sequence_first, RECURRENT, rp_recurrent_add(m, "l", l, RP_LSTM, 2, 3, RECURRENT_OF(.batch_first = true)),
     out[0] = in_sequence(l, X(3, 3, 2), lengths_of(1, 3, 3), NULL, NULL, out + 1))
CASE(padded, rp_op_layer, rp_op_layer_add(m, "l", l, "identity"), rp_tensor *x = X(2, 3), *y = X(4, 3);
     out[0] = rp_pad_sequence(RP_TENSORS(x, y, X(1, 3)), true, 0.25))

/* ---------------------------------------------------------------- beyond the goldens */

/* What these layers refuse. */
static void refusals(void **state) {
    (void)state;
    rp_module *m = module = rp_module_new("");
    rp_conv_layer conv, transposed;
    rp_max_unpool_layer unpool;
    rp_op_layer op;
    rp_instance_norm_layer norm;
    rp_packed_sequence p;
    rp_tensor *x = rp_zeros(RP_DIMS(1, 2, 4, 4));
#define REFUSED(action)                                                                                                \
    do {                                                                                                               \
        (void)(action);                                                                                                \
        if (!rp_failed()) fail_msg("%s: no error", #action);                                                           \
        rp_error_take();                                                                                               \
    } while (0)
    OK(rp_conv_add(m, "a", &conv, 2, 3, KERNEL(3, 3), NULL));
    OK(rp_conv_transpose_add(m, "b", &transposed, 2, 3, KERNEL(3, 3), CONV_OF(.stride = {2, 2})));
    OK(rp_max_unpool_add(m, "c", &unpool, (const int64_t[]){2}, NULL, NULL, 1));
    REFUSED(rp_conv_transpose_forward(&conv, x, RP_DIMS(4, 4)));
    REFUSED(rp_conv_transpose_forward(&transposed, x, RP_DIMS(9, 11)));
    REFUSED(rp_conv_transpose_forward(&transposed, x, RP_DIMS(9)));
    REFUSED(rp_conv_transpose_forward(&transposed, x, NULL, 0));
    REFUSED(rp_conv_transpose_forward(NULL, x, RP_DIMS(9, 9)));
    REFUSED(rp_max_unpool_forward(&unpool, x, rp_zeros(RP_DIMS(1, 2, 4, 4)), NULL, 0)); /* indices of floats */
    REFUSED(rp_max_unpool_forward(&unpool, rp_zeros(RP_DIMS(3)), rp_zeros(RP_DIMS(3)), NULL, 0));
    REFUSED(rp_max_unpool_forward(&unpool, rp_zeros(RP_DIMS(1, 3)),
                                  rp_zeros(RP_DIMS(1, 3), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)), RP_DIMS(8)));
    REFUSED(rp_max_unpool_add(m, "d", &unpool, NULL, NULL, NULL, 2));
    /* sizes that do not fit: nothing overflows on the way */
    REFUSED(rp_max_unpool_add(m, "d", &unpool, (const int64_t[]){INT64_MAX}, NULL, NULL, 1));
    REFUSED(rp_max_unpool_add(m, "d", &unpool, (const int64_t[]){2}, (const int64_t[]){INT64_MAX}, NULL, 1));
    REFUSED(rp_max_unpool_add(m, "d", &unpool, (const int64_t[]){2}, NULL, (const int64_t[]){INT64_MAX}, 1));
    REFUSED(rp_conv_transpose_add(m, "d", &transposed, 2, 3, KERNEL(3, 3), CONV_OF(.stride = {INT64_MAX, 1})));
    REFUSED(rp_conv_transpose_add(m, "d", &transposed, 2, 3, KERNEL(3, 3), CONV_OF(.output_padding = {INT64_MAX, 1})));
    OK(rp_max_unpool_add(m, "f", &unpool, (const int64_t[]){2}, (const int64_t[]){INT32_MAX}, NULL, 1));
    x = rp_expand(rp_zeros(RP_DIMS(1, 1)), RP_DIMS(1, INT64_C(1) << 40));
    REFUSED(rp_max_unpool_forward(&unpool, x, x, NULL, 0));
    OK(rp_conv_transpose_add(m, "g", &conv, 1, 1, KERNEL(3), CONV_OF(.stride = {INT32_MAX})));
    REFUSED(rp_conv_transpose_forward(&conv, x, RP_DIMS(9)));
    REFUSED(rp_op_layer_init(&op, "mse_loss(reduction='most')"));
    REFUSED(rp_op_layer_init(&op, "max_pool2d([None, 2])"));
    REFUSED(rp_op_layer_init(&op, "im2col()"));
    REFUSED(rp_op_layer_init(&op, "identity(1)"));
    OK(rp_op_layer_init(&op, " identity () "));
    OK(rp_op_layer_init(&op, "identity"));
    REFUSED(rp_op_layer_forward(&op, RP_TENSORS(x, x)));
    OK(rp_op_layer_init(&op, "adaptive_avg_pool2d([None, 2])"));
    REFUSED(rp_op_layer_forward(&op, RP_TENSORS(NULL)));
    REFUSED(rp_op_layer_forward(&op, RP_TENSORS(rp_zeros(RP_DIMS(3)))));
    OK(rp_instance_norm_add(m, "e", &norm, 2, &of_planes));
    REFUSED(rp_instance_norm_layer_forward(&norm, rp_zeros(RP_DIMS(2, 2))));
    REFUSED(rp_packed_sequence_make(NULL, x, lengths_of(1, 1, 1), false));
    REFUSED(rp_packed_sequence_make(&p, rp_zeros(RP_DIMS(3, 3, 2)), lengths_of(0, 1, 1), false));
    REFUSED(rp_packed_sequence_make(&p, rp_zeros(RP_DIMS(3, 3, 2)), lengths_of(4, 1, 1), false));
    REFUSED(rp_packed_sequence_pad(NULL, false, 0, 0, NULL));
    REFUSED(rp_pad_sequence(NULL, 1, false, 0));
    REFUSED(rp_pad_sequence(RP_TENSORS(lengths_of(1, 2, 3), rp_slice(lengths_of(1, 2, 3), 0, 0, 2, 1)), false, 1e300));
    rp_layer_norm_layer rows;
    memset(&rows, 0xaa, sizeof rows); /* holds no tensors behind a failure */
    REFUSED(rp_layer_norm_add_with(m, "h", &rows, RP_DIMS(4), &(const rp_layer_norm_options){.struct_size = 9999}));
    assert_null(rows.weight);
    REFUSED(rp_pad_sequence(RP_TENSORS(rp_zeros(RP_NO_DIMS)), false, 0));
    REFUSED(rp_pad_sequence(RP_TENSORS(rp_zeros(RP_DIMS(2, 3)), rp_zeros(RP_DIMS(2, 4))), false, 0));
}

/* A cumulative batch norm counts on the device: eager, compiled and again, the same bits. */
static void normalise(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_batch_norm_layer_forward(ctx, in[0]);
}
static void cumulative_is_compiled(void **state) {
    (void)state;
    float mean[2][3], var[2][3], y[2][12];
    module = rp_module_new("");
    rp_batch_norm_layer l;
    OK(rp_batch_norm_add(module, "l", &l, 3, &cumulative));
    for (int k = 0; k < 2; k++) {
        OK(rp_manual_seed(5));
        (void)rp_fill_(l.num_batches_tracked, rp_i64(0));
        rp_compiled *f = rp_compile_module(module, (rp_fn){.body = normalise, .ctx = &l, .name = "normalise"},
                                           RP_OPTIONS(rp_compile_options, .backend = k ? "fused" : "eager"));
        rp_tensor *out = NULL;
        for (int i = 0; i < 4; i++) {
            rp_tensor *x = rp_randn(RP_DIMS(4, 3));
            OK(rp_call(f, &x, 1, &out, 1));
        }
        OK(rp_to_host(out, y[k], sizeof y[k]));
        OK(rp_to_host(l.running_mean, mean[k], sizeof mean[k]));
        OK(rp_to_host(l.running_var, var[k], sizeof var[k]));
        rp_compiled_release(f);
    }
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_memory_equal(mean[0], mean[1], sizeof mean[0]);
    assert_memory_equal(var[0], var[1], sizeof var[0]);
}

/* torch.nn.init: gains, bounds and deviations of either fan, and a generator that alone is drawn from. */
static void kaiming(void **state) {
    (void)state;
    assert_true(rp_init_gain("conv_transpose2d", 0) == 1 && rp_init_gain("tanh", 0) == 5.0 / 3);
    assert_true(rp_init_gain("leaky_relu", 0.2) == sqrt(2 / 1.04) && rp_init_gain("selu", 0) == 0.75);
    assert_true(rp_init_gain("gelu", 0) == 0 && rp_failed());
    rp_error_take();
    static float a[2][100 * 900];
    rp_tensor *t = rp_zeros(RP_DIMS(100, 900));
    const rp_kaiming_options o = {.struct_size = sizeof o, .fan = RP_FAN_OUT, .nonlinearity = "tanh"};
    OK(rp_init_kaiming_uniform_with(t, &o));
    OK(rp_to_host(t, a[0], sizeof a[0]));
    const double bound = 5.0 / 3 * sqrt(3.0 / 100);
    double most = 0, sum = 0;
    for (int i = 0; i < 90000; i++) most = fmax(most, fabs(a[0][i]));
    assert_true(most <= bound * (1 + 1e-6) && most > 0.999 * bound);
    for (int k = 0; k < 2; k++) {
        rp_generator *g = rp_generator_new(rp_cpu(), 77);
        uint64_t before[2], after[2];
        OK(rp_generator_get(rp_default_generator(rp_cpu()), &before[0], &before[1]));
        OK(rp_init_kaiming_normal_with(t, RP_OPTIONS(rp_kaiming_options, .a = 0.5, .generator = g)));
        OK(rp_generator_get(rp_default_generator(rp_cpu()), &after[0], &after[1]));
        assert_memory_equal(before, after, sizeof before);
        OK(rp_to_host(t, a[k], sizeof a[k]));
        rp_generator_release(g);
    }
    assert_memory_equal(a[0], a[1], sizeof a[0]);
    for (int i = 0; i < 90000; i++) sum += (double)a[0][i] * a[0][i];
    assert_true(fabs(sqrt(sum / 90000) / (sqrt(2 / 1.25) / 30) - 1) < 0.02);
    REFUSED(rp_init_kaiming_uniform_with(t, RP_OPTIONS(rp_kaiming_options, .nonlinearity = "none")));
    REFUSED(rp_init_kaiming_uniform_with(t, RP_OPTIONS(rp_kaiming_options, .fan = (rp_fan)7)));
    REFUSED(rp_init_kaiming_normal_with(rp_zeros(RP_DIMS(4)), NULL));
    /* a slope without bound leaves nothing; what is no number is no slope */
    t = rp_ones(RP_DIMS(3, 2));
    for (int k = 0; k < 2; k++) {
        (void)rp_fill_(t, rp_i64(1));
        OK((k ? rp_init_kaiming_normal_with
              : rp_init_kaiming_uniform_with)(t, RP_OPTIONS(rp_kaiming_options, .a = INFINITY)));
        assert_true(rp_item(rp_all(rp_eq_scalar(t, rp_i64(0)))).v.b);
    }
    REFUSED(rp_init_kaiming_normal_with(t, RP_OPTIONS(rp_kaiming_options, .a = NAN)));
}

static void alike(rp_tensor *a, rp_tensor *b) { assert_true(!rp_failed() && rp_item(rp_all(rp_eq(a, b))).v.b); }

/* Sequences that were sorted before have no indices, as rp_pack_padded_sequence leaves it. */
static void sorted_sequences(void **state) {
    (void)state;
    module = rp_module_new("");
    rp_recurrent_layer l;
    OK(rp_recurrent_add(module, "l", &l, RP_GRU, 3, 2, NULL));
    rp_tensor *x = rp_rand(RP_DIMS(4, 3, 3)), *hx = rp_rand(RP_DIMS(1, 3, 2)), *hy[2], *again[2];
    rp_packed_sequence p = {0}, made;
    p.data = rp_pack_padded_sequence(x, lengths_of(4, 3, 1), false, &p.batch_sizes);
    OK(rp_packed_sequence_make(&made, x, lengths_of(4, 3, 1), false));
    alike(rp_recurrent_forward_sequence(&l, &p, hx, NULL, &hy[0], NULL),
          rp_recurrent_forward_sequence(&l, &made, hx, NULL, &hy[1], NULL));
    alike(hy[0], hy[1]);
    alike(rp_packed_sequence_pad(&p, false, 7, 0, &again[0]), rp_packed_sequence_pad(&made, false, 7, 0, &again[1]));
    alike(again[0], again[1]);
}

/* Dropouts of channels take all of a channel or nothing, and none in evaluation; alpha dropout keeps mean and variance. */
static void noise(void **state) {
    (void)state;
    static float x[64 * 64], y[64 * 64];
    rp_dropout_layer drop;
    module = rp_module_new("");
    OK(rp_dropout_add(module, "d", &drop, 0.5));
    OK(rp_to_host(rp_channel_dropout_forward(&drop, rp_ones(RP_DIMS(8, 8, 4, 16))), y, sizeof y));
    int kept = 0;
    for (int c = 0; c < 64; c++) {
        for (int i = 1; i < 64; i++) assert_true(y[c * 64 + i] == y[c * 64]);
        assert_true(y[c * 64] == 0 || y[c * 64] == 2);
        kept += y[c * 64] == 2;
    }
    assert_true(kept > 12 && kept < 52);
    rp_tensor *t = rp_randn(RP_DIMS(64, 64));
    for (int channels = 0; channels < 2; channels++) {
        double mean = 0, square = 0;
        OK(rp_to_host(channels ? rp_channel_alpha_dropout_forward(&drop, t) : rp_alpha_dropout_forward(&drop, t), y,
                      sizeof y));
        for (int i = 0; i < 64 * 64; i++) mean += y[i] / 4096.0, square += (double)y[i] * y[i] / 4096;
        assert_true(fabs(mean) < 0.1 && fabs(square - mean * mean - 1) < 0.2);
    }
    OK(rp_module_set_training(module, false));
    OK(rp_to_host(t, x, sizeof x));
    OK(rp_to_host(rp_alpha_dropout_forward(&drop, t), y, sizeof y));
    assert_memory_equal(x, y, sizeof x);
}

/* Layers of a stack begin equal, dropout draws in training alone, and a failure leaves the module as it was. */
static void stacks(void **state) {
    (void)state;
    stack s;
    size_t n;
    float a[64], b[64];
    module = rp_module_new("");
    OK(rp_transformer_encoder_add(module, "e", &s.stack, s.layers, 2, 4, 2, false,
                                  LAYER_OF(.dim_feedforward = 5, .dropout = 0.5)));
    OK(rp_to_host(s.layers[0].linear1.weight, a, 20 * sizeof *a));
    OK(rp_to_host(s.layers[1].linear1.weight, b, 20 * sizeof *b));
    assert_memory_equal(a, b, 20 * sizeof *a);
    rp_tensor *x = rp_ones(RP_DIMS(3, 2, 4));
    for (int training = 1; training >= 0; training--) {
        OK(rp_module_set_training(module, training));
        OK(rp_to_host(rp_transformer_encoder_forward(&s.stack, x, NULL), a, 24 * sizeof *a));
        OK(rp_to_host(rp_transformer_encoder_forward(&s.stack, x, NULL), b, 24 * sizeof *b));
        assert_true((memcmp(a, b, 24 * sizeof *a) == 0) == !training);
    }
    const size_t before = (rp_module_state(module, &n), n);
    rp_transformer_layer one;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "divisible", rp_transformer_encoder_layer_add(module, "f", &one, 5, 2, NULL));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "probability",
          rp_transformer_decoder_layer_add(module, "f", &one, 4, 2, LAYER_OF(.dropout = 2)));
    assert_true(rp_module_state(module, &n) && n == before && !one.linear1.weight);
    OK(rp_transformer_decoder_layer_add(module, "f", &one, 4, 2, NULL)); /* the name is free */
    (void)rp_transformer_encoder_layer_forward(&one, x, NULL);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "transformer encoder layer");
    (void)rp_multihead_attention_layer_forward(&one.self_attn, x, x, rp_ones(RP_DIMS(3, 4)), NULL, NULL);
    FAILED(RP_ERROR_SHAPE, "value has 2");
    (void)rp_multihead_attention_layer_forward(&one.self_attn, x, x, x, MASKS(.attn_mask = rp_ones(RP_DIMS(3))), NULL);
    FAILED(RP_ERROR_SHAPE, "attn_mask has 2 or 3 dims");
}

/* A row of which nothing is seen is 0 and has no gradient, in forward order, compiled or not. */
static void attend(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_scaled_dot_product_attention(in[0], in[1], in[2], in[3]);
}
static void nothing_is_seen(void **state) {
    (void)state;
    const bool keep[6] = {true, true, false, false, true, false};
    float y[2][6], grad[2][6];
    rp_tensor *in[4] = {rp_randn(RP_DIMS(3, 2)), rp_randn(RP_DIMS(2, 2)), rp_randn(RP_DIMS(2, 2)),
                        rp_from_data(keep, RP_DIMS(3, 2), RP_BOOL)};
    OK(rp_set_requires_grad(in[0], true));
    for (int k = 0; k < 2; k++) {
        rp_compiled *f = rp_compile((rp_fn){.body = attend, .name = "attend"},
                                    RP_OPTIONS(rp_compile_options, .backend = k ? "fused" : "eager"));
        rp_tensor *out;
        OK(rp_call(f, in, 4, &out, 1));
        OK(rp_to_host(out, y[k], sizeof y[k]));
        OK(rp_backward(rp_sum(rp_mul(out, out)), NULL, NULL));
        OK(rp_to_host(rp_grad_of(in[0]), grad[k], sizeof grad[k]));
        OK(rp_set_grad(in[0], NULL));
        rp_compiled_release(f);
    }
    for (int i = 0; i < 6; i++) assert_true(isfinite(y[0][i]) && isfinite(grad[0][i]));
    assert_true(y[0][2] == 0 && y[0][3] == 0 && grad[0][2] == 0 && grad[0][3] == 0);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_memory_equal(grad[0], grad[1], sizeof grad[0]);
}

static int setup(void **state) {
    module = NULL;
    return scope_setup(state);
}
static int teardown(void **state) {
    expected_free(&want);
    want.n = 0;
    rp_module_release(module);
    return scope_teardown(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(int argc, char **argv) {
    const char *data = getenv("REPRISE_TEST_DATA"); /* tests/data of the source tree */
    char path[4096];
    snprintf(path, sizeof path, "%s/layers.txt", data ? data : "tests/data");
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    static char all[1 << 22];
    const size_t n = fread(all, 1, sizeof all - 1, f);
    fclose(f);
    all[n] = 0;
    text = all;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        TEST(batch_norm_cumulative),
        TEST(layer_norm_no_bias),
        TEST(instance_norm_alone),
        TEST(instance_norm_alone2),
        TEST(conv_transpose_sized),
        TEST(unpool),
        TEST(unpool_sized),
        TEST(adaptive_none),
        TEST(loss_by_name),
        TEST(unfold_layer),
        TEST(fold_layer),
        TEST(identity),
        TEST(lstm_sequence),
        TEST(lstm_sequence_first),
        TEST(padded),
        TEST(refusals),
        TEST(cumulative_is_compiled),
        TEST(kaiming),
        TEST(sorted_sequences),
        TEST(rms_norm),
        TEST(rms_norm_plain),
        TEST(group_norm),
        TEST(instance_norm),
        TEST(instance_norm_tracked),
        TEST(instance_norm_eval),
        TEST(heads_self),
        TEST(heads_masked),
        TEST(heads_sizes),
        TEST(heads_more),
        TEST(heads_alone),
        TEST(heads_causal),
        TEST(encoder_layer),
        TEST(encoder_layer_first),
        TEST(decoder_layer),
        TEST(encoder),
        TEST(decoder),
        TEST(stacks),
        TEST(nothing_is_seen),
        TEST(rnn),
        TEST(rnn_relu),
        TEST(gru),
        TEST(lstm),
        TEST(lstm_alone),
        TEST(lstm_packed),
        TEST(rnn_cell),
        TEST(conv1d),
        TEST(conv2d_reflect),
        TEST(conv2d_same),
        TEST(conv1d_same),
        TEST(conv3d),
        TEST(conv_transpose1d),
        TEST(conv_transpose3d),
        TEST(prelu),
        TEST(bilinear),
        TEST(noise),
        TEST(gru_cell),
        TEST(lstm_cell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
