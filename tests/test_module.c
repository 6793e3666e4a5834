/* Modules: names, lists, modes, dtypes, what compiled functions of a module see, and errors. */
/* ctest: timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <reprise.h>
#include <reprise_nn.h>

#include "core/alloc.h"
#include "support/in_scope.h"

/* The last call failed, for this reason. */
static void refused(const char *text) {
    if (!rp_failed() || !strstr(rp_error_message(), text)) fail_msg("\"%s\" is not in: %s", text, rp_error_message());
    (void)rp_error_take();
}

/* Equal to the bit, and of one shape and type. */
static void same(rp_tensor *a, rp_tensor *b) {
    static char x[4096], y[4096];
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_true(rp_dtype_of(a) == rp_dtype_of(b) && rp_numel(a) == rp_numel(b) && bytes <= sizeof x);
    OK(rp_to_host(a, x, bytes));
    OK(rp_to_host(b, y, bytes));
    assert_memory_equal(x, y, bytes);
}

/* ---------------------------------------------------------------- a network with everything in it */

struct block {
    rp_conv2d_layer conv;
    rp_batch_norm_layer bn;
};
struct net {
    struct block block[2];
    rp_dropout_layer drop;
    rp_linear_layer fc;
    rp_tensor *scale, *mask, *absent;
};

static rp_module *net_new(struct net *net) {
    memset(net, 0, sizeof *net);
    rp_module *m = rp_module_new("net");
    rp_module *blocks = rp_module_child(m, "blocks");
    for (int i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        rp_module *b = rp_module_child(blocks, name);
        const rp_conv2d_options conv = {.struct_size = sizeof conv, .padding = {1, 1}, .no_bias = i == 1};
        OK(rp_conv2d_add(b, "conv", &net->block[i].conv, i ? 4 : 3, 4, 3, 3, &conv));
        OK(rp_batch_norm_add(b, "bn", &net->block[i].bn, 4, NULL));
    }
    OK(rp_dropout_add(m, "drop", &net->drop, 0.5));
    OK(rp_linear_add(m, "fc", &net->fc, 4, 5, true));
    net->scale = rp_full(RP_NO_DIMS, rp_f64(2));
    OK(rp_set_requires_grad(net->scale, true));
    OK(rp_module_add_parameter(m, "scale", &net->scale));
    net->mask = rp_ones(RP_DIMS(4));
    OK(rp_module_add_buffer(m, "mask", &net->mask, false));
    OK(rp_module_add_parameter(m, "absent", &net->absent));
    return m;
}

static rp_tensor *forward(struct net *net, rp_tensor *x) { /* (B, 3, H, W) to (B, 5) */
    for (int i = 0; i < 2; i++)
        x = rp_relu(rp_batch_norm_layer_forward(&net->block[i].bn, rp_conv2d_layer_forward(&net->block[i].conv, x)));
    x = rp_mul(rp_mean(x, RP_DIMS(2, 3)), net->mask);
    x = rp_dropout_layer_forward(&net->drop, x);
    return rp_mul(rp_linear_layer_forward(&net->fc, x), net->scale);
}

static unsigned traced;
static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    traced++;
    out[0] = forward(ctx, in[0]);
}

static void names_are_of_state_dict(void **state) {
    (void)state;
    struct net net;
    rp_module *m = net_new(&net);
    static const char *const expected[] = {"absent",
                                           "scale",
                                           "blocks.0.conv.weight",
                                           "blocks.0.conv.bias",
                                           "blocks.0.bn.weight",
                                           "blocks.0.bn.bias",
                                           "blocks.0.bn.running_mean",
                                           "blocks.0.bn.running_var",
                                           "blocks.0.bn.num_batches_tracked",
                                           "blocks.1.conv.weight",
                                           "blocks.1.bn.weight",
                                           "blocks.1.bn.bias",
                                           "blocks.1.bn.running_mean",
                                           "blocks.1.bn.running_var",
                                           "blocks.1.bn.num_batches_tracked",
                                           "fc.weight",
                                           "fc.bias"};
    size_t n;
    const rp_named_tensor *all = rp_module_state(m, &n);
    assert_int_equal(n, sizeof expected / sizeof *expected - 1);
    for (size_t i = 0; i < n; i++) assert_string_equal(all[i].name, expected[i + 1]);
    assert_ptr_equal(all[0].tensor, net.scale);
    size_t np, nb;
    rp_tensor *const *p = rp_module_parameters(m, &np);
    assert_int_equal(np, 10);
    assert_ptr_equal(p[9], net.fc.bias);
    assert_string_equal(rp_module_named_parameters(m, &np)[9].name, "fc.bias");
    const rp_named_tensor *buffers = rp_module_named_buffers(m, &nb);
    assert_int_equal(nb, 7);
    assert_string_equal(buffers[0].name, "mask");
    char text[4096];
    assert_true(rp_module_summary(m, text, sizeof text) == strlen(text));
    assert_non_null(strstr(text, "blocks.1.bn.running_var"));
    assert_non_null(strstr(text, "(4, 3, 3, 3)"));
    assert_non_null(strstr(text, "298 parameters, 298 of them trained"));
    OK(rp_module_set_requires_grad(m, false));
    assert_false(rp_requires_grad(net.fc.weight));
    rp_module_summary(m, text, sizeof text);
    assert_non_null(strstr(text, "298 parameters, 0 of them trained"));
    rp_module_release(m);
}

static void a_tensor_with_two_names(void **state) {
    (void)state;
    rp_module *m = rp_module_new("tied");
    rp_embedding_layer e;
    rp_linear_layer head;
    OK(rp_embedding_add(m, "wte", &e, 7, 4));
    OK(rp_linear_layer_init(&head, 4, 7, false, RP_DTYPE_NONE));
    rp_linear_layer_release(&head);
    head.weight = e.weight;
    rp_module *child = rp_module_child(m, "head");
    OK(rp_module_add_parameter(child, "weight", &head.weight));
    size_t n;
    rp_module_parameters(m, &n);
    assert_int_equal(n, 1);
    rp_module_state(m, &n);
    assert_int_equal(n, 2);
    rp_tensor *grad = rp_ones(RP_DIMS(7, 4));
    OK(rp_set_grad(e.weight, grad));
    OK(rp_module_to_dtype(child, RP_F64)); /* one tensor, wherever it has a name */
    assert_true(e.weight == head.weight && rp_dtype_of(e.weight) == RP_F64 && rp_requires_grad(e.weight));
    assert_true(rp_is_leaf(e.weight) && rp_dtype_of(rp_grad_of(e.weight)) == RP_F64);
    rp_module_release(m);
}

static rp_status note(void *ctx, rp_module *m, const char *path) {
    (void)m;
    char *text = ctx;
    size_t n = strlen(text);
    snprintf(text + n, 256 - n, "%s;", path);
    return RP_OK;
}
static rp_status stop(void *ctx, rp_module *m, const char *path) {
    (void)ctx, (void)m, (void)path;
    return RP_ERROR_STATE;
}

static void children_before_parents(void **state) {
    (void)state;
    struct net net;
    rp_module *m = net_new(&net);
    char text[256] = "";
    OK(rp_module_apply(m, note, text));
    assert_string_equal(text, "blocks.0.conv;blocks.0.bn;blocks.0;blocks.1.conv;blocks.1.bn;blocks.1;blocks;drop;fc;;");
    assert_int_equal(rp_module_apply(m, stop, NULL), RP_ERROR_STATE);
    rp_module_release(m);
}

/* Statistics move in training and stay in evaluation; a compiled function keeps a specialisation a mode. */
static void modes(void **state) {
    (void)state;
    struct net net;
    rp_module *m = net_new(&net);
    rp_compiled *f = rp_compile_module(m, (rp_fn){body, &net, 0, "net"}, NULL);
    rp_tensor *x = rp_randn(RP_DIMS(2, 3, 5, 5)), *out = NULL;
    float before[4], after[4];
    OK(rp_module_set_training(m, false));
    OK(rp_to_host(net.block[0].bn.running_mean, before, sizeof before));
    rp_tensor *eager = forward(&net, x);
    for (int i = 0; i < 3; i++) {
        OK(rp_call(f, &x, 1, &out, 1));
        same(out, eager);
    }
    OK(rp_to_host(net.block[0].bn.running_mean, after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(rp_item_i64(net.block[0].bn.num_batches_tracked), 0);
    OK(rp_module_set_training(m, true));
    for (int i = 0; i < 3; i++) OK(rp_call(f, &x, 1, &out, 1));
    assert_int_equal(rp_item_i64(net.block[1].bn.num_batches_tracked), 3);
    OK(rp_to_host(net.block[0].bn.running_mean, after, sizeof after));
    assert_true(memcmp(before, after, sizeof before) != 0);
    unsigned seen = traced;
    OK(rp_module_set_training(m, false)); /* both are there */
    OK(rp_call(f, &x, 1, &out, 1));
    same(out, forward(&net, x));
    OK(rp_module_set_training(m, true));
    OK(rp_call(f, &x, 1, &out, 1));
    assert_int_equal(traced, seen);
    OK(rp_module_to_dtype(m, RP_F64)); /* other tensors: another specialisation */
    rp_tensor *wide = rp_to_dtype(x, RP_F64);
    OK(rp_module_set_training(m, false));
    OK(rp_call(f, &wide, 1, &out, 1));
    assert_int_equal(rp_dtype_of(out), RP_F64);
    same(out, forward(&net, wide));
    rp_compiled_release(f);
    rp_module_release(m);
}

/* A training step over a module: compiled and eager give the same parameters. */
static void trained(bool compiled, float *weight) {
    struct net net;
    OK(rp_manual_seed(11));
    rp_module *m = net_new(&net);
    rp_optimizer *opt = rp_adam_module(m, 1e-2, NULL);
    rp_tensor *x = rp_randn(RP_DIMS(4, 3, 5, 5)), *out = NULL;
    rp_fn fn = {body, &net, 0, "net"};
    rp_compiled *f = compiled ? rp_compile_module(m, fn, NULL) : rp_plain(fn);
    for (int i = 0; i < 4; i++) {
        OK(rp_call(f, &x, 1, &out, 1));
        OK(rp_backward(rp_sum(rp_mul(out, out)), NULL, NULL));
        OK(rp_optimizer_step(opt));
        OK(rp_optimizer_zero_grad(opt, true));
    }
    OK(rp_to_host(net.block[0].conv.weight, weight, 108 * sizeof *weight));
    rp_compiled_release(f);
    rp_optimizer_release(opt);
    rp_module_release(m);
}

static void training_steps(void **state) {
    (void)state;
    float eager[108], compiled[108];
    trained(false, eager);
    trained(true, compiled);
    assert_memory_equal(eager, compiled, sizeof eager);
}

static void errors_name_the_part(void **state) {
    (void)state;
    struct net net;
    rp_module *m = net_new(&net);
    rp_linear_layer again;
    (void)rp_linear_add(m, "fc", &again, 3, 3, true);
    refused("has a `fc` already");
    assert_null(again.weight);
    (void)rp_linear_add(m, "a.b", &again, 3, 3, true);
    refused("no dot");
    (void)rp_linear_add(m, "", &again, 3, 3, true);
    refused("at least one character");
    (void)rp_dropout_add(m, "d", &net.drop, 1.5);
    refused("from 0 to 1");
    (void)rp_module_add_parameter(m, "x", NULL);
    refused("is NULL");
    rp_tensor *whole = rp_arange(rp_i64(0), rp_i64(3), rp_i64(1));
    (void)rp_module_add_parameter(m, "whole", &whole);
    refused("leaf of a floating type");
    rp_module *none = rp_module_child(m, "fc");
    refused("already");
    (void)rp_module_add_buffer(none, "b", &net.mask, true);
    refused("module");
    (void)rp_module_to_dtype(m, RP_I64);
    refused("not a floating type");
    rp_tensor *kept = net.scale;
    net.scale = net.mask;
    size_t n;
    assert_null(rp_module_state(m, &n));
    refused("`scale` is not the tensor that was registered");
    net.scale = kept;
    rp_compiled *f = rp_compile_module(m, (rp_fn){body, &net, 0, "net"}, NULL);
    (void)rp_linear_add(m, "late", &again, 3, 3, true);
    refused("before rp_compile_module");
    rp_compiled_release(f);
    rp_module_release(rp_module_child(m, "late"));
    refused("before rp_compile_module");
    rp_module_release(m);
    (void)rp_module_set_training(m, true);
    refused("module");
    (void)rp_module_set_training(NULL, true);
    refused("module");
    rp_module *parent = rp_module_new(NULL);
    rp_module_release(rp_module_child(parent, "c"));
    refused("goes with its root");
    rp_module_release(parent);
}

/* No memory at one allocation after the other: an error, and nothing stays held. */
static void memory_fails(void **state) {
    (void)state;
    for (uint64_t n = 0, live = 0;; n++) { /* 0: all is there, and caches fill */
        rp_scope inner = rp_scope_begin();
        rp__alloc_fail_at(n);
        rp_module *m = rp_module_new("m");
        rp_linear_layer l;
        size_t count = 0;
        if (rp_linear_add(rp_module_child(m, "c"), "l", &l, 3, 2, true) == RP_OK) (void)rp_module_state(m, &count);
        rp__alloc_fail_at(0);
        bool failed = rp_failed();
        assert_true(!failed || rp_error_take() == RP_ERROR_OUT_OF_MEMORY);
        assert_int_equal(count, failed ? 0 : 2);
        rp_module_release(m);
        OK(rp_scope_end(inner, NULL, 0));
        if (n == 0) live = rp__alloc_live();
        assert_true(rp__alloc_live() <= live + 4); /* a cache may have grown by a step that was cut short */
        if (n > 0 && !failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_are_of_state_dict, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(a_tensor_with_two_names, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(children_before_parents, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(modes, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(training_steps, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(errors_name_the_part, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(memory_fails, scope_setup, scope_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
