/* Call sites: whatever public call fails says the line that it was written on, also what fails later, in a backward or inside a
   function that the library calls; the functions without a site say none. test_ops.c and others hold the ops. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_io.h>

#include "support/check.h"

static int begin(void **state) {
    (void)state;
    return rp_failed();
}

static void said(const char *call, const char *line) {
    if (!rp_failed()) fail_msg("%s did not fail", call);
    if (!strstr(rp_error_message(), line)) fail_msg("%s: \"%s\" is not in: %s", call, line, rp_error_message());
    (void)rp_error_take();
}
/* The call fails and names this line. */
#define SAYS(...)                                                                                                      \
    do {                                                                                                               \
        (void)(__VA_ARGS__);                                                                                           \
        said(#__VA_ARGS__, RP_HERE);                                                                                   \
    } while (0)
#define SAYS_VOID(call) SAYS((call, 0))

static const rp_device nowhere = {RP_DEVICE_CUDA, 77};

static void test_tensors(void **state) {
    (void)state;
    rp_tensor *x = rp_zeros(RP_DIMS(2, 3)), *n = rp_full(RP_DIMS(1), rp_f64((double)NAN));
    float room[6];
    char text[8];
    SAYS(rp_set_default_device(nowhere));
    SAYS(rp_synchronize(nowhere));
    SAYS(rp_scope_end((rp_scope){UINT64_C(1) << 40}, NULL, 0));
    SAYS_VOID(rp_release(x)); /* its scope's */
    SAYS(rp_ndim(NULL));
    SAYS(rp_size(x, 2));
    SAYS(rp_stride(x, -3));
    SAYS(rp_numel(NULL));
    rp_tensor *parts[4];
    SAYS(rp_split(x, 0, 0, parts, 4));
    SAYS(rp_split_with_sizes(x, RP_DIMS(1, 3), 0, parts));
    SAYS(rp_chunk(x, 0, 0, parts, 4));
    SAYS(rp_unbind(x, 1, parts, 2));
    SAYS(rp_tensor_split(x, 0, 0, parts, 4));
    SAYS(rp_broadcast_tensors(RP_TENSORS(x, NULL), parts));
    SAYS(rp_meshgrid(RP_TENSORS(x), "ij", parts));
    SAYS(rp_dtype_of(NULL));
    SAYS_VOID(rp_device_of(NULL));
    SAYS(rp_is_contiguous(NULL));
    SAYS(rp_is_contiguous_format(x, RP_PRESERVE_FORMAT));
    SAYS(rp_version(NULL));
    SAYS(rp_data(NULL));
    SAYS(rp_from_data(room, RP_DIMS(-1), RP_F32));
    SAYS(rp_from_blob(room, RP_DIMS(2), NULL, RP_DTYPE_NONE, rp_cpu(), NULL, NULL));
    SAYS(rp_declare_stable(NULL));
    SAYS(rp_to_host(x, room, 5));
    SAYS_VOID(rp_item(x));
    SAYS(rp_item_f64(x));
    SAYS(rp_item_i64(n));
    SAYS(rp_format(NULL, text, sizeof text));
    SAYS(rp_to_dlpack(NULL));
    SAYS(rp_from_dlpack(NULL));
    SAYS(rp_from_dlpack_unversioned(NULL));
    SAYS(rp_set_num_threads(0));
    SAYS(rp_memory_stats_get(rp_cpu(), NULL));
    SAYS(rp_memory_stats_reset_peak(nowhere));
    SAYS(rp_empty_cache(nowhere));
}

static void nothing(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)out, (void)n_out;
}

static void test_gradients_and_functions(void **state) {
    (void)state;
    rp_tensor *x = rp_zeros(RP_DIMS(2, 3)), *i = rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)),
              *out = NULL;
    rp_backward_options unset = {0};
    rp_fn none = {NULL, NULL, 0, NULL}, idle = {nothing, NULL, 0, "idle"};
    rp_compiled *f = NULL;
    rp_explain_entry entry;
    SAYS(rp_set_requires_grad(i, true));
    SAYS(rp_requires_grad(NULL));
    SAYS(rp_is_leaf(NULL));
    SAYS(rp_grad_of(NULL));
    SAYS(rp_set_grad(x, i));
    SAYS(rp_retain_grad(NULL));
    SAYS(rp_backward(x, NULL, NULL));
    SAYS(rp_backward(x, NULL, &unset));
    SAYS(rp_grad(&x, 1, &x, 1, NULL, NULL, &out));
    SAYS(rp_register_hook(x, NULL, NULL));
    SAYS(rp_remove_hook(x, 5));
    SAYS(rp_compile(none, NULL));
    SAYS(rp_compile(idle, RP_OPTIONS(rp_compile_options, .backend = "no such")));
    SAYS(rp_plain(none));
    SAYS(rp_call(NULL, &x, 1, &out, 1));
    SAYS(rp_call_named(NULL, NULL, &x, 1, &out, 1));
    SAYS(rp_guard_bytes(NULL, 4));
    SAYS(rp_make_graphed_callables(NULL, 1, NULL, &f));
    SAYS(rp_graphed_set_training(NULL, true));
    SAYS(rp_cond(x, idle, idle, &x, 1, &out, 1));
    SAYS(rp_while(none, idle, &x, 1, 0, &out));
    SAYS(rp_checkpoint(none, &x, 1, &out, 1));
    SAYS(rp_function_apply(NULL, &x, 1, &out, 1));
    SAYS(rp_trace(none, &x, 1, 1));
    SAYS(rp_ir_parse("graph", 5));
    SAYS(rp_ir_check(NULL));
    SAYS(rp_ir_run(NULL, &x, 1, &out, 1));
    SAYS(rp_register_backend(NULL));
    SAYS(rp_explain_count(NULL));
    SAYS(rp_explain_get(NULL, 0, &entry));
    SAYS(rp_op_call("no such op", &x, 1, NULL, 0, &out, 1));
    SAYS(rp_op_register(NULL));
    SAYS(rp_op_info_get(100000, NULL));
}

static void test_streams_and_graphs(void **state) {
    (void)state;
    uint64_t seed;
    rp_tensor *x = rp_zeros(RP_DIMS(1));
    rp_event *e = rp_event_new(rp_cpu(), false);
    rp_graph *g = rp_graph_new();
    SAYS(rp_default_generator(nowhere));
    SAYS(rp_generator_new(nowhere, 1));
    SAYS(rp_generator_seed(NULL, 1));
    SAYS(rp_generator_get(NULL, &seed, &seed));
    SAYS(rp_generator_set(NULL, 1, 2));
    SAYS(rp_stream_new(nowhere));
    SAYS(rp_stream_wrap(nowhere, NULL));
    SAYS(rp_current_stream(nowhere));
    SAYS(rp_set_current_stream(NULL));
    SAYS(rp_stream_synchronize(NULL));
    SAYS(rp_stream_query(NULL));
    SAYS(rp_event_new(nowhere, false));
    SAYS(rp_event_record(NULL, NULL));
    SAYS(rp_event_synchronize(NULL));
    SAYS(rp_event_query(NULL));
    SAYS(rp_event_elapsed_ms(e, e));
    SAYS(rp_stream_wait_event(NULL, e));
    SAYS(rp_stream_wait_stream(NULL, NULL));
    SAYS(rp_graph_begin(g, nowhere, NULL));
    SAYS(rp_graph_end(g));
    SAYS(rp_graph_instantiate(g));
    SAYS(rp_graph_replay(g));
    SAYS(rp_graph_reset(NULL));
    SAYS(rp_graph_repoint(g, x, x));
    SAYS(rp_graph_pool(NULL));
    SAYS(rp_pool_new(nowhere));
    SAYS(rp_launch("k", NULL, 1, 1, NULL, 0));
    OK(rp_graph_begin(g, rp_cpu(), NULL));
    SAYS(rp_manual_seed(4));
    SAYS(rp_item_f64(x));
    SAYS(rp_graph_end(g));
    rp_graph_release(g);
    rp_event_release(e);
}

static void test_layers_of_modules(void **state) {
    (void)state;
    rp_module *m = rp_module_new("");
    rp_tensor *x = rp_zeros(RP_DIMS(2, 3));
    rp_rms_norm_layer rms;
    rp_group_norm_layer group;
    rp_instance_norm_layer instance;
    rp_multihead_attention_layer heads;
    rp_transformer_layer layer;
    rp_transformer_stack stack;
    rp_recurrent_layer recurrent;
    rp_recurrent_cell cell;
    rp_conv_layer conv;
    rp_prelu_layer prelu;
    rp_bilinear_layer bilinear;
    SAYS(rp_conv_add(m, "a", &conv, 2, 3, (const int64_t[]){0}, 1, NULL));
    SAYS(rp_conv_transpose_add(m, "a", &conv, 2, 3, (const int64_t[]){2, 2, 2, 2}, 4, NULL));
    SAYS(rp_conv_layer_forward(NULL, x));
    SAYS(rp_channel_dropout_forward(NULL, x));
    SAYS(rp_alpha_dropout_forward(NULL, x));
    SAYS(rp_channel_alpha_dropout_forward(NULL, x));
    SAYS(rp_prelu_add(m, "a", &prelu, 0, 0.25));
    SAYS(rp_prelu_layer_forward(NULL, x));
    SAYS(rp_bilinear_add(m, "a", &bilinear, 2, 0, 3, true));
    SAYS(rp_bilinear_layer_forward(NULL, x, x));
    SAYS(rp_recurrent_add(m, "a", &recurrent, RP_GRU, 2, 3, RP_OPTIONS(rp_recurrent_options, .proj_size = 2)));
    SAYS(rp_recurrent_forward(NULL, x, NULL, NULL, NULL, NULL));
    SAYS(rp_recurrent_cell_add(m, "a", &cell, RP_GRU, 2, 0, true));
    SAYS(rp_recurrent_cell_forward(NULL, x, NULL, NULL, NULL));
    OK(rp_recurrent_add(m, "recurrent", &recurrent, RP_LSTM, 2, 3, NULL));
    SAYS(rp_recurrent_forward_packed(&recurrent, x, NULL, NULL, NULL, NULL, NULL));
    SAYS(rp_recurrent_forward(&recurrent, x, x, NULL, NULL, NULL));
    SAYS(rp_rms_norm_add(m, "a", &rms, NULL, 1, 0, true));
    SAYS(rp_rms_norm_layer_forward(NULL, x));
    SAYS(rp_group_norm_add(m, "a", &group, 2, 3, 0, true));
    SAYS(rp_group_norm_layer_forward(NULL, x));
    SAYS(rp_instance_norm_add(m, "a", &instance, 0, NULL));
    SAYS(rp_instance_norm_layer_forward(NULL, x));
    SAYS(rp_multihead_attention_add(m, "a", &heads, 3, 2, NULL));
    SAYS(rp_multihead_attention_layer_forward(NULL, x, x, x, NULL, NULL));
    OK(rp_multihead_attention_add(m, "heads", &heads, 4, 2, NULL));
    SAYS(rp_multihead_attention_layer_forward(&heads, x, x, x, NULL, NULL)); /* an op inside fails */
    SAYS(rp_transformer_encoder_layer_add(m, "a", &layer, 3, 2, NULL));
    SAYS(rp_transformer_decoder_layer_add(m, "a", &layer, 3, 2, NULL));
    SAYS(rp_transformer_encoder_layer_forward(NULL, x, NULL));
    SAYS(rp_transformer_decoder_layer_forward(NULL, x, x, NULL, NULL));
    SAYS(rp_transformer_encoder_add(m, "a", &stack, &layer, 1, 3, 2, true, NULL));
    SAYS(rp_transformer_decoder_add(m, "a", &stack, NULL, 1, 4, 2, true, NULL));
    SAYS(rp_transformer_encoder_forward(NULL, x, NULL));
    SAYS(rp_transformer_decoder_forward(NULL, x, x, NULL, NULL));
    rp_module_release(m);
}

static void test_layers(void **state) {
    (void)state;
    rp_tensor *x = rp_zeros(RP_DIMS(2, 3)), *flat = rp_zeros(RP_DIMS(2));
    rp_linear_layer linear;
    rp_embedding_layer embedding;
    rp_layer_norm_layer norm;
    rp_conv2d_layer conv;
    SAYS(rp_init_uniform(x, 1, 0));
    SAYS(rp_init_uniform(NULL, 0, 1));
    SAYS(rp_init_normal(x, 0, -1));
    SAYS(rp_init_constant(NULL, 0));
    SAYS(rp_init_trunc_normal(x, 0, 1, 2, -2));
    SAYS(rp_init_orthogonal(flat, 1));
    SAYS(rp_init_kaiming_uniform(flat, 0));
    SAYS(rp_linear_layer_init(&linear, -1, 2, true, RP_F32));
    SAYS(rp_linear_layer_init(&linear, 3, INT64_MAX / 4, true, RP_F32)); /* an op inside fails */
    SAYS(rp_embedding_layer_init(&embedding, 0, 2, RP_F32));
    SAYS(rp_layer_norm_layer_init(&norm, NULL, 1, 1e-5, true, RP_F32));
    SAYS(rp_conv2d_layer_init(&conv, 0, 1, 1, 1, NULL));
    SAYS(rp_linear_layer_forward(NULL, x));
    SAYS(rp_embedding_layer_forward(NULL, x));
    SAYS(rp_layer_norm_layer_forward(NULL, x));
    SAYS(rp_conv2d_layer_forward(NULL, x));
    OK(rp_linear_layer_init(&linear, 5, 2, true, RP_F32));
    SAYS(rp_linear_layer_forward(&linear, x));
    SAYS(rp_mse_loss(x, flat, 1));
    SAYS_VOID(rp_optimizer_release(rp_adam(NULL, 0, 0.1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_adamw(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_sgd(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_rmsprop(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_rmsprop_module(NULL, 1, NULL)));
    SAYS(rp_module_to_device(NULL, rp_cpu()));
    SAYS_VOID(rp_optimizer_release(rp_adagrad(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_adagrad_module(NULL, 1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_adadelta(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_adadelta_module(NULL, 1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_adamax(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_adamax_module(NULL, 1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_nadam(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_nadam_module(NULL, 1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_radam(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_radam_module(NULL, 1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_lion(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_lion_module(NULL, 1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_lamb(&x, 1, -1, NULL)));
    SAYS_VOID(rp_optimizer_release(rp_lamb_module(NULL, 1, NULL)));
    rp_optimizer *o = rp_sgd(&linear.weight, 2, 0.1, NULL);
    SAYS(rp_rmsprop_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_adagrad_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_adadelta_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_adamax_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_nadam_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_radam_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_lion_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_lamb_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_adam_add_group(o, &x, 1, 0.1, NULL));
    SAYS(rp_sgd_add_group(o, NULL, 0, 0.1, NULL));
    SAYS(rp_optimizer_set_schedule(NULL, NULL));
    SAYS(rp_optimizer_schedule_step(o));
    SAYS_VOID(rp_schedule_release(rp_schedule_constant(-1, 3)));
    SAYS_VOID(rp_schedule_release(rp_schedule_linear(-1, 1, 3)));
    SAYS_VOID(rp_schedule_release(rp_schedule_step(0, 1)));
    SAYS_VOID(rp_schedule_release(rp_schedule_multistep(NULL, 3, 1)));
    SAYS_VOID(rp_schedule_release(rp_schedule_polynomial(0, 1)));
    SAYS_VOID(rp_schedule_release(rp_schedule_cosine(0, 1)));
    SAYS_VOID(rp_schedule_release(rp_schedule_cosine_restarts(0, 1, 0)));
    SAYS_VOID(rp_schedule_release(rp_schedule_one_cycle(1, 0, NULL)));
    SAYS_VOID(rp_schedule_release(rp_schedule_cyclic(1, 2, 0, NULL)));
    SAYS_VOID(rp_schedule_release(rp_schedule_lambda(NULL, NULL)));
    SAYS_VOID(rp_schedule_release(rp_schedule_sequential(NULL, 0, NULL)));
    SAYS_VOID(rp_schedule_release(rp_schedule_chained(NULL, 0)));
    SAYS(rp_schedule_rate(NULL, x, 1));
    SAYS(rp_plateau_init(NULL, NULL));
    SAYS(rp_plateau_step(NULL, o, 1));
    SAYS(rp_grad_norm(NULL, 1, 2));
    rp_lbfgs *lbfgs;
    SAYS(lbfgs = rp_lbfgs_new(NULL, 0, 1, NULL));
    SAYS(rp_lbfgs_step(lbfgs, NULL, NULL));
    SAYS(rp_clip_grad_norm(NULL, 1, 1, 2));
    SAYS(rp_clip_grad_value(NULL, 1, 1));
    SAYS(rp_set_autocast(RP_DEVICE_CPU, RP_I32));
    rp_grad_scaler *scaler;
    SAYS(scaler = rp_grad_scaler_new(RP_OPTIONS(rp_grad_scaler_options, .init_scale = -1)));
    SAYS(rp_grad_scaler_scale(scaler, x));
    SAYS(rp_grad_scaler_unscale(scaler, o));
    SAYS(rp_grad_scaler_step(scaler, o));
    SAYS(rp_grad_scaler_update(scaler));
    SAYS(rp_grad_scaler_state(scaler, "scale"));
    rp_tensor *out[2];
    SAYS(rp_idx_load("/nonexistent"));
    SAYS(rp_text_load("/nonexistent"));
    SAYS(rp_npy_map("/nonexistent"));
    SAYS(rp_npz_load("/nonexistent", "x"));
    SAYS(rp_npz_save("/nonexistent/x", NULL, 0));
    SAYS(rp_cifar_load(NULL, 0, 10, &out[0], &out[1]));
    rp_loader *loader;
    SAYS(loader = rp_loader_new(NULL, 0, 1, NULL));
    SAYS(rp_loader_next(loader, out, 2));
    SAYS(rp_loader_position(loader, NULL, NULL, NULL));
    SAYS(rp_loader_seek(loader, 0, 0, 0));
    rp_average *average;
    SAYS(average = rp_average_new(&x, 1, 2));
    SAYS(rp_average_update(average));
    SAYS(rp_average_tensor(average, 0));
    SAYS(rp_average_count(average));
    SAYS(rp_average_swap(average));
    SAYS(rp_optimizer_step(NULL));
    SAYS(rp_optimizer_zero_grad(NULL, true));
    SAYS(rp_optimizer_set_lr(o, 3, 0.1));
    SAYS(rp_optimizer_lr(o, 3));
    SAYS(rp_optimizer_state(o, 0, 0, "no such"));
    rp_optimizer_release(o);
    rp_linear_layer_release(&linear);
}

/* ---- what fails later, or inside */

static void test_backward(void **state) {
    (void)state;
    rp_tensor *x = rp_ones(RP_DIMS(3)), *root;
    const char *line;
    OK(rp_set_requires_grad(x, true));
    rp_tensor *y = (line = RP_HERE, rp_exp(x));
    root = rp_sum(y);
    rp_fill_(rp_detach(y), rp_i64(2));
    assert_int_equal(rp_backward(root, NULL, NULL), RP_ERROR_VERSION);
    said("a derivative whose op has a line", line);
    y = (rp_exp)(x); /* as bindings call it */
    root = (rp_sum)(y, RP_NO_DIMS, false, NULL);
    rp_fill_(rp_detach(y), rp_i64(2));
    SAYS(rp_backward(root, NULL, NULL));
    SAYS(rp_grad(&root, 1, &x, 1, NULL, NULL, &y));
}

static const char *inner_line;

static void clash(void) { (void)(inner_line = RP_HERE, rp_add(rp_ones(RP_DIMS(2)), rp_ones(RP_DIMS(3)))); }

static void copies(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    if (ctx) clash();
    out[0] = rp_clone(in[0]);
}
static rp_status clashing(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out, size_t n_out,
                          rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)saved, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = grad_out[0];
    clash();
    return rp_error_status();
}
static rp_tensor *hooked(void *ctx, rp_tensor *grad) {
    (void)ctx;
    clash();
    return grad;
}

static void
test_callbacks(void **state) { /* a function of the program's, called by the library, has lines of its own */
    (void)state;
    rp_tensor *x = rp_ones(RP_DIMS(3)), *y, *root;
    OK(rp_set_requires_grad(x, true));
    rp_function f = {.struct_size = sizeof f, .forward = {copies, NULL, 0, "copies"}, .backward = clashing}, g = f;
    OK(rp_function_apply(&f, &x, 1, &y, 1));
    root = rp_sum(y);
    (void)rp_backward(root, NULL, NULL);
    said("a custom backward", inner_line);
    g.forward.ctx = &g;
    (void)rp_function_apply(&g, &x, 1, &y, 1);
    said("a custom forward", inner_line);
    y = rp_sin(x);
    assert_true(rp_register_hook(y, hooked, NULL) > 0);
    (void)rp_backward(rp_sum(y), NULL, NULL);
    said("a hook", inner_line);
    (void)rp_trace((rp_fn){copies, &g, 0, "copies"}, &x, 1, 1);
    said("a traced function", inner_line);
    rp_compiled *c = NULL;
    rp_graphed_callable callable = {.fn = {copies, &g, 0, "copies"}, .args = &x, .n_args = 1, .n_out = 1};
    (void)rp_make_graphed_callables(&callable, 1, NULL, &c);
    said("a graphed function", inner_line);
    rp_compiled_release(c);
}

static void test_without_site(void **state) { /* bindings: no line, and none that was left behind */
    (void)state;
    rp_tensor *x = rp_ones(RP_DIMS(3));
    SAYS(rp_item_f64(x));
    (void)(rp_item_f64)(x);
    assert_null(strstr(rp_error_message(), " at "));
    (void)rp_error_take();
    assert_int_equal((rp_set_num_threads)(0), RP_ERROR_INVALID_ARGUMENT);
    assert_null(strstr(rp_error_message(), " at "));
    (void)rp_error_take();
    assert_int_equal(rp_set_num_threads_at("there:7", 0), RP_ERROR_INVALID_ARGUMENT);
    said("a site that is given", "there:7");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tensors, begin, take_error),
        cmocka_unit_test_setup_teardown(test_gradients_and_functions, begin, take_error),
        cmocka_unit_test_setup_teardown(test_streams_and_graphs, begin, take_error),
        cmocka_unit_test_setup_teardown(test_layers, begin, take_error),
        cmocka_unit_test_setup_teardown(test_layers_of_modules, begin, take_error),
        cmocka_unit_test_setup_teardown(test_backward, begin, take_error),
        cmocka_unit_test_setup_teardown(test_callbacks, begin, take_error),
        cmocka_unit_test_setup_teardown(test_without_site, begin, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
