/* Layers that are ops, sequences of layers, embeddings with options and bags, the whole transformer: names, defaults, modes, gradients
   against the same calls written out, and what is refused. */
/* ctest: timeout=120 labels=numbers */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "support/check.h"

static rp_scope scope;
static int begin(void **state) {
    (void)state;
    rp_manual_seed(3);
    scope = rp_scope_begin();
    return rp_failed();
}
static int end(void **state) {
    (void)state;
    (void)rp_error_take();
    return rp_scope_end(scope, NULL, 0) != RP_OK;
}

static void same(rp_tensor *a, rp_tensor *b, const char *what) {
    if (rp_failed()) fail_msg("%s: %s", what, rp_error_message());
    if (!rp_item(rp_equal(a, b)).v.b) fail_msg("%s differs", what);
}

/* Calls as text against the functions. */
static void calls(void **state) {
    (void)state;
    rp_tensor *x = rp_randn(RP_DIMS(2, 4, 6, 6)), *y = rp_randn(RP_DIMS(2, 4, 6, 6));
    rp_op_layer l;
#define CALL(text, ...)                                                                                                \
    do {                                                                                                               \
        OK(rp_op_layer_init(&l, text));                                                                                \
        same(rp_op_layer_forward(&l, RP_TENSORS(x)), __VA_ARGS__, text);                                               \
    } while (0)
    CALL("gelu", rp_gelu(x));
    CALL("gelu(approximate='tanh')", rp_gelu(x, RP_OPTIONS(rp_gelu_options, .approximate = "tanh")));
    CALL("leaky_relu(0.2)", rp_leaky_relu(x, rp_f64(0.2)));
    CALL("max_pool2d(2)", rp_max_pool2d(x, RP_DIMS(2, 2)));
    CALL(" max_pool2d ( [3, 2], stride = (2,1), padding=[1,0] ) ",
         rp_max_pool2d(x, RP_DIMS(3, 2), RP_DIMS(2, 1), RP_DIMS(1, 0)));
    CALL("adaptive_avg_pool2d([3,1])", rp_adaptive_avg_pool2d(x, RP_DIMS(3, 1)));
    CALL("pad([1,2,0,1], mode='reflect')", rp_pad(x, RP_DIMS(1, 2, 0, 1), "reflect", rp_none()));
    CALL("pad([1,1], value=-1.5)", rp_constant_pad_nd(x, RP_DIMS(1, 1), rp_f64(-1.5)));
    CALL("pixel_shuffle(2)", rp_pixel_shuffle(x, 2));
    CALL("softmax(dim=-1)", rp_softmax(x, -1));
    CALL("softmax(1, dtype=float64)", rp_softmax(x, 1, RP_F64));
    CALL("flatten(1)", rp_flatten(x, 1, -1));
    CALL("clamp(None, 0.5)", rp_clamp(x, rp_none(), rp_f64(0.5)));
    CALL("interpolate(None, [2, 1.5], 'bilinear', align_corners=False)",
         (rp_interpolate)(x, NULL, 0, (double[]){2, 1.5}, 2, "bilinear", RP_FALSE, RP_UNSET, false));
#undef CALL
    OK(rp_op_layer_init(&l, "smooth_l1_loss(beta=0.5)"));
    same(rp_op_layer_forward(&l, RP_TENSORS(x, y)), rp_smooth_l1_loss(x, y, 1, 0.5), "smooth_l1_loss");
    OK(rp_op_layer_init(&l, "cosine_similarity(dim=2)"));
    same(rp_op_layer_forward(&l, RP_TENSORS(x, y)), rp_cosine_similarity(x, y, 2), "cosine_similarity");
    OK(rp_op_layer_init(&l, "topk(2)"));
    same(rp_op_layer_forward(&l, RP_TENSORS(x)), rp_topk(x, 2, -1, true, true, NULL), "topk");

    static const char *const wrong[] = {NULL,
                                        "",
                                        "no_such_op",
                                        "gelu(",
                                        "gelu()x",
                                        "gelu('tanh')",
                                        "softmax",
                                        "softmax(dim=0, dim=1)",
                                        "max_pool2d(2, size=3)",
                                        "max_pool2d(2 3)",
                                        "pad([1.5])",
                                        "softmax(0, dtype=float77)",
                                        "pad([1], mode='refl)",
                                        "softmax(99999999999999999999)",
                                        "clamp(min=,)"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (rp_op_layer_init(&l, wrong[i]) != RP_ERROR_INVALID_ARGUMENT) fail_msg("\"%s\" is taken", wrong[i]);
        (void)rp_error_take();
        assert_true(rp_is_error(rp_op_layer_forward(&l, RP_TENSORS(x))));
        (void)rp_error_take();
    }
}

/* A sequence names its layers by number, follows the mode, and gives the results and gradients of the calls written out. */
static rp_tensor *twice(const void *layer, rp_tensor *x) {
    (void)layer;
    return rp_mul_scalar(x, rp_f64(2));
}
static void sequence(void **state) {
    (void)state;
    rp_module *m = rp_module_new("net");
    rp_sequential *s = rp_sequential_add(m, "features");
    OK(rp_sequential_conv(s, 2, 4, RP_DIMS(3, 3), RP_OPTIONS(rp_conv_options, .padding = {1, 1})));
    OK(rp_sequential_batch_norm(s, 4, NULL));
    OK(rp_sequential_op(s, "relu"));
    OK(rp_sequential_op(s, "max_pool2d(2)"));
    OK(rp_sequential_op(s, "flatten(1)"));
    OK(rp_sequential_op(s, "dropout(0.5)"));
    OK(rp_sequential_linear(s, 16, 3, false));
    OK(rp_sequential_function(s, twice, NULL));
    assert_int_equal(rp_sequential_count(s), 8);
    size_t n;
    static const char *const names[] = {"features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias",
                                        "features.6.weight"};
    const rp_named_tensor *p = rp_module_named_parameters(m, &n);
    assert_int_equal(n, 5);
    for (size_t i = 0; i < n; i++) assert_string_equal(p[i].name, names[i]);

    rp_tensor *x = rp_randn(RP_DIMS(3, 2, 4, 4)), *w[5], *got[5], *want[5];
    for (size_t i = 0; i < 5; i++) w[i] = p[i].tensor;
    OK(rp_module_set_training(m, false));
    rp_tensor *h = rp_conv2d(x, w[0], w[1], RP_DIMS(1, 1), RP_DIMS(1, 1), RP_DIMS(1, 1), 1);
    h = rp_batch_norm(h, w[2], w[3], rp_zeros(RP_DIMS(4)), rp_ones(RP_DIMS(4)), false, 0.1, 1e-5);
    h = twice(NULL, rp_linear(rp_flatten(rp_max_pool2d(rp_relu(h), RP_DIMS(2, 2)), 1, -1), w[4], NULL));
    rp_tensor *y = rp_sequential_forward(s, x);
    same(y, h, "a sequence");
    rp_tensor *sums[2] = {rp_sum(rp_sin(y)), rp_sum(rp_sin(h))};
    OK(rp_grad(&sums[0], 1, w, 5, NULL, NULL, got));
    OK(rp_grad(&sums[1], 1, w, 5, NULL, NULL, want));
    for (size_t i = 0; i < 5; i++) same(got[i], want[i], names[i]);
    same(rp_sequential_forward(s, x), y, "evaluating, which drops nothing");
    OK(rp_module_set_training(m, true));
    assert_false(rp_item(rp_equal(rp_sequential_forward(s, x), rp_sequential_forward(s, x))).v.b);

    assert_int_equal(rp_sequential_linear(s, 0, 3, false), RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
    assert_int_equal(rp_sequential_op(s, "max_pool2d"), RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
    assert_int_equal(rp_sequential_count(s), 8);
    rp_sequential *bad = rp_sequential_add(m, "features");
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_sequential_op(bad, "relu"), RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
    rp_module_release(m);
}

static rp_tensor *ids(const int64_t *values, int64_t n) { return rp_from_data(values, RP_DIMS(n), RP_I64); }

/* A padded row is zeros and stays so; rows that were looked up are shortened; gradients by frequency are means. */
static void embeddings(void **state) {
    (void)state;
    rp_module *m = rp_module_new("net");
    rp_embedding_layer e;
    OK(rp_embedding_add_with(m, "e", &e, 5, 4,
                             RP_OPTIONS(rp_embedding_layer_options, .padding_idx = rp_i64(-4), .max_norm = 0.5,
                                        .scale_grad_by_freq = true)));
    assert_int_equal(e.padding_idx, 1);
    rp_tensor *before = rp_clone(rp_detach(e.weight));
    rp_tensor *index = ids((int64_t[]){0, 2, 2, 1, 2}, 5), *y = rp_embedding_layer_forward(&e, index);
    rp_tensor *norms = rp_linalg_vector_norm(rp_detach(e.weight), rp_f64(2), RP_DIMS(1));
    assert_true(rp_item_f64(rp_select(norms, 0, 0)) <= 0.5 + 1e-6 && rp_item_f64(rp_select(norms, 0, 2)) <= 0.5 + 1e-6);
    assert_true(rp_item_f64(rp_select(norms, 0, 1)) == 0);
    same(rp_slice(rp_detach(e.weight), 0, 3, 5, 1), rp_slice(before, 0, 3, 5, 1), "rows that nobody looked up");
    OK(rp_backward(rp_sum(y), NULL, NULL));
    static const double want[] = {1, 0, 1, 0, 0};
    for (int64_t i = 0; i < 5; i++)
        assert_float_equal(rp_item_f64(rp_select(rp_select(rp_grad_of(e.weight), 0, i), 0, 0)), want[i], 1e-6);

    rp_embedding_bag_layer b;
    OK(rp_embedding_bag_add(m, "b", &b, 5, 3,
                            RP_OPTIONS(rp_embedding_bag_layer_options, .mode = RP_BAG_SUM, .padding_idx = rp_i64(0))));
    rp_tensor *offsets = ids((int64_t[]){0, 2}, 2), *flat = ids((int64_t[]){1, 0, 2, 3}, 4);
    rp_tensor *bags = rp_embedding_bag_layer_forward(&b, flat, offsets, NULL);
    same(rp_select(bags, 0, 0), rp_select(b.weight, 0, 1), "a bag without its padding");
    same(rp_select(bags, 0, 1), rp_add(rp_select(b.weight, 0, 2), rp_select(b.weight, 0, 3)), "a bag");
    rp_embedding_bag_layer mean;
    OK(rp_embedding_bag_add(m, "mean", &mean, 5, 3, NULL));
    rp_tensor *of_all = rp_mean(rp_embedding(mean.weight, flat, -1, false, false), RP_DIMS(0), true);
    rp_tensor *bag = rp_embedding_bag_layer_forward(&mean, rp_view(flat, RP_DIMS(1, 4)), NULL, NULL);
    assert_true(rp_item(rp_allclose(bag, of_all)).v.b);
    assert_int_equal(
        rp_embedding_add_with(m, "f", &e, 5, 4, RP_OPTIONS(rp_embedding_layer_options, .padding_idx = rp_i64(5))),
        RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
    rp_module_release(m);
}

/* Encoder and decoder are those of their own calls. */
static void transformers(void **state) {
    (void)state;
    rp_module *m = rp_module_new("net");
    rp_transformer t;
    rp_transformer_layer encoder[2], decoder[1];
    OK(rp_transformer_add(m, "t", &t, encoder, 2, decoder, 1, 8, 2,
                          RP_OPTIONS(rp_transformer_options, .dim_feedforward = 16, .dropout = -1)));
    size_t n;
    const rp_named_tensor *p = rp_module_named_parameters(m, &n);
    assert_int_equal(n, 2 * 12 + 2 + 18 + 2);
    assert_string_equal(p[0].name, "t.encoder.layers.0.self_attn.in_proj_weight");
    assert_string_equal(p[n - 1].name, "t.decoder.norm.bias");
    assert_false(rp_item(rp_equal(encoder[0].linear1.weight, encoder[1].linear1.weight)).v.b); /* drawn anew, each */
    rp_tensor *src = rp_randn(RP_DIMS(5, 2, 8)), *tgt = rp_randn(RP_DIMS(3, 2, 8));
    const rp_attention_masks causal = {.struct_size = sizeof causal, .is_causal = true};
    same(rp_transformer_forward(&t, src, tgt, NULL, &causal, NULL),
         rp_transformer_decoder_forward(&t.decoder, tgt, rp_transformer_encoder_forward(&t.encoder, src, NULL), &causal,
                                        NULL),
         "the transformer");
    rp_module_release(m);
    m = rp_module_new("net");
    assert_int_equal(rp_transformer_add(m, "t", &t, encoder, 2, decoder, 1, 9, 2, NULL), RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
    (void)rp_module_named_parameters(m, &n);
    assert_int_equal(n, 0);
    rp_module_release(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls, begin, end),
        cmocka_unit_test_setup_teardown(sequence, begin, end),
        cmocka_unit_test_setup_teardown(embeddings, begin, end),
        cmocka_unit_test_setup_teardown(transformers, begin, end),
    };
    return cmocka_run_group_tests_name("sequential", tests, NULL, NULL);
}
