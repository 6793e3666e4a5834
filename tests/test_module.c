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

/* Statistics move in training and stay in evaluation; a compiled function keeps a specialisation a mode, also one of rp_compile that
   calls layers of a module. */
static void modes_of(bool whole) {
    struct net net;
    rp_module *m = net_new(&net);
    rp_fn fn = {body, &net, 0, "net"};
    rp_compiled *f = whole ? rp_compile_module(m, fn, NULL) : rp_compile(fn, NULL);
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
    if (whole) {
        OK(rp_module_to_dtype(m, RP_F64)); /* other tensors: another specialisation */
        rp_tensor *wide = rp_to_dtype(x, RP_F64);
        OK(rp_module_set_training(m, false));
        OK(rp_call(f, &wide, 1, &out, 1));
        assert_int_equal(rp_dtype_of(out), RP_F64);
        same(out, forward(&net, wide));
    }
    rp_compiled_release(f);
    rp_module_release(m);
}
/* A body that switches modes and back goes by the modes at entry. */
struct moded {
    rp_module *m;
    rp_dropout_layer drop;
};
static void in_both_modes(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct moded *of = ctx;
    (void)n_in, (void)n_out;
    traced++;
    rp_tensor *trained = rp_dropout_layer_forward(&of->drop, in[0]);
    OK(rp_module_set_training(of->m, false));
    out[0] = rp_sub(trained, rp_dropout_layer_forward(&of->drop, in[0]));
    OK(rp_module_set_training(of->m, true));
}
static void modes_inside(void) {
    struct moded of = {.m = rp_module_new("moded")};
    OK(rp_dropout_add(of.m, "drop", &of.drop, 0.5));
    rp_tensor *x = rp_ones(RP_DIMS(64)), *out = NULL;
    rp_compiled *f = rp_compile((rp_fn){in_both_modes, &of, 0, "in_both_modes"}, NULL);
    const unsigned before = traced;
    for (int i = 0; i < 12; i++) {
        OK(rp_call(f, &x, 1, &out, 1));
        assert_int_equal(rp_item_i64(rp_all(rp_eq_scalar(rp_abs(out), rp_f64(1)))), 1); /* 0 or 2, less 1 */
    }
    assert_in_range(traced - before, 1, 3);
    assert_true(rp_module_training(of.m));
    rp_compiled_release(f);
    rp_module_release(of.m);
}

static void modes(void **state) {
    (void)state;
    modes_of(true);
    modes_of(false);
    modes_inside();
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

/* ---------------------------------------------------------------- summaries of a forward */

static void failing(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_linear_layer_forward(ctx, in[0]);
}

static void giving_nothing(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)n_out;
    out[0] = NULL;
}

static void summing(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    char text[64] = "x";
    out[0] = in[0];
    assert_true(rp_module_summary_with(ctx, (rp_fn){body, NULL, 0, "f"}, in, 1, 1, text, sizeof text) == 0);
    assert_string_equal(text, "");
    refused("within a function that is recorded");
}

static bool has_row(const char *text, const char *name, const char *in, const char *out, long parameters, int calls) {
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char start[64], end[64];
        snprintf(start, sizeof start, "%s  ", name);
        snprintf(end, sizeof end, " %ld %6d\n", parameters, calls);
        const char *stop = strchr(line, '\n'), *i = strstr(line, in), *o = i ? strstr(i + strlen(in), out) : NULL;
        if (strncmp(line, start, strlen(start)) == 0 && o && o < stop &&
            strncmp(stop + 1 - strlen(end), end, strlen(end)) == 0)
            return true;
    }
    return false;
}

static void summary_of_a_forward(void **state) {
    (void)state;
    struct net net;
    rp_module *m = net_new(&net);
    char text[8192], again[8192];
    float before[4], after[4];
    rp_tensor *x = rp_rand(RP_DIMS(2, 3, 8, 6)), *y = NULL;
    const rp_fn fn = {body, &net, 0, "net"};
    OK(rp_module_set_training(rp_module_find(m, "fc"), false));
    OK(rp_to_host(net.block[0].bn.running_mean, before, sizeof before));
    size_t n = rp_module_summary_with(m, fn, &x, 1, 1, text, sizeof text);
    assert_true(n > 0 && n == strlen(text) && !rp_failed());
    assert_true(has_row(text, "net", "(2, 3, 8, 6)", "(2, 5)", 1, 1));
    assert_true(has_row(text, "blocks", "-", "-", 0, 0));
    assert_true(has_row(text, "blocks.0.conv", "(2, 3, 8, 6)", "(2, 4, 8, 6)", 112, 1));
    assert_true(has_row(text, "blocks.1.bn", "(2, 4, 8, 6)", "(2, 4, 8, 6)", 8, 1));
    assert_true(has_row(text, "fc", "(2, 4)", "(2, 5)", 25, 1));
    assert_non_null(strstr(text, "298 parameters, 298 of them trained"));
    /* four times (2, 4, 8, 6), (2, 4) and twice (2, 5) in float32 */
    assert_non_null(strstr(text, "6256 bytes come out of modules"));
    /* as before: modes, buffers, and what is cut off */
    assert_true(rp_module_training(m) && !rp_module_training(rp_module_find(m, "fc")));
    OK(rp_to_host(net.block[0].bn.running_mean, after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(rp_item_i64(net.block[0].bn.num_batches_tracked), 0);
    assert_true(rp_grad_enabled());
    assert_true(rp_module_summary_with(m, fn, &x, 1, 1, again, 20) == n);
    assert_true(strlen(again) == 19 && strncmp(again, text, 19) == 0);
    assert_true(rp_module_summary_with(m, fn, &x, 1, 1, NULL, 0) == n);
    /* a function that is compiled stays as it is; one that is being recorded has no summary */
    rp_compiled *f = rp_compile_module(m, fn, NULL);
    for (int i = 0; i < 3; i++) OK(rp_call(f, &x, 1, &y, 1));
    const unsigned recorded = traced;
    assert_true(rp_module_summary_with(m, fn, &x, 1, 1, NULL, 0) == n);
    assert_int_equal(traced, recorded + 1);
    OK(rp_call(f, &x, 1, &y, 1));
    assert_int_equal(traced, recorded + 1);
    rp_compiled_release(f);
    f = rp_compile((rp_fn){summing, m, 0, "summing"}, NULL);
    OK(rp_call(f, &x, 1, &y, 1));
    rp_compiled_release(f);
    /* what fails */
    strcpy(text, "x");
    assert_int_equal(rp_module_summary_with(m, (rp_fn){failing, &net.fc, 0, "f"}, &x, 1, 1, text, sizeof text), 0);
    assert_string_equal(text, "");
    refused("linear");
    assert_true(rp_module_training(m) && !rp_module_training(rp_module_find(m, "fc")));
    assert_int_equal(rp_module_summary_with(m, (rp_fn){giving_nothing, NULL, 0, "g"}, &x, 1, 1, text, sizeof text), 0);
    refused("NULL");
    assert_int_equal(rp_module_summary_with(m, (rp_fn){0}, &x, 1, 1, text, sizeof text), 0);
    refused("has no body");
    assert_int_equal(rp_module_summary_with(m, fn, &x, 1, 65, text, sizeof text), 0);
    refused("64 results at most");
    assert_int_equal(rp_module_summary_with(NULL, fn, &x, 1, 1, text, sizeof text), 0);
    refused("module");
    bool done = false;
    for (uint64_t k = 1; !done; k++) {
        rp__alloc_fail_at(k);
        done = rp_module_summary_with(m, fn, &x, 1, 1, NULL, 0) == n;
        rp__alloc_fail_at(0);
        if (!done) assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
        assert_true(rp_module_training(m) && !rp_module_training(rp_module_find(m, "fc")));
    }
    rp_module_release(m);
}

/* ---------------------------------------------------------------- hooks */

/* Writes what is called, in order, and what goes in and out, to `text`. */
struct diary {
    char text[256];
    rp_module *m;
    uint64_t id; /* of a hook that takes itself away */
};
struct note {
    struct diary *diary;
    const char *letter;
    double factor; /* of what goes in or out; 1: it stays */
    bool once;
};

static void write_down(const struct note *n) {
    strcat(n->diary->text, n->letter);
    if (n->once) OK(rp_module_remove_hook(n->diary->m, n->diary->id));
}
static void before(void *ctx, rp_module *m, rp_tensor **in, size_t n_in) {
    const struct note *n = ctx;
    assert_ptr_equal(m, n->diary->m);
    assert_int_equal(n_in, 1);
    if (n->factor != 1) in[0] = rp_mul_scalar(in[0], rp_f64(n->factor));
    write_down(n);
}
static void behind(void *ctx, rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct note *n = ctx;
    assert_true(m == n->diary->m && n_in == 1 && n_out == 1 && in[0] && out[0]);
    if (n->factor != 1) out[0] = rp_mul_scalar(out[0], rp_f64(n->factor));
    write_down(n);
}

static void hooks_in_their_order(void **state) {
    (void)state;
    struct net net;
    rp_module *m = net_new(&net);
    struct diary diary = {.m = rp_module_find(m, "fc")};
    rp_tensor *x = rp_rand(RP_DIMS(2, 4));
    struct note a = {&diary, "a", 1, false}, b = {&diary, "b", 2, false}, c = {&diary, "c", 1, true},
                d = {&diary, "d", 3, false}, e = {&diary, "e", 1, false};
    const uint64_t first = rp_module_register_forward_hook(diary.m, behind, &d);
    assert_true(first != 0);
    assert_true(rp_module_register_forward_pre_hook(diary.m, before, &a) != 0);
    assert_true(rp_module_register_forward_pre_hook(diary.m, before, &b) != 0);
    diary.id = rp_module_register_forward_hook(diary.m, behind, &c);
    assert_true(rp_module_register_forward_hook(diary.m, behind, &e) != first);
    rp_tensor *expected = rp_mul_scalar(rp_linear(rp_mul_scalar(x, rp_f64(2)), net.fc.weight, net.fc.bias), rp_f64(3));
    same(rp_linear_layer_forward(&net.fc, x), expected);
    assert_string_equal(diary.text, "abdce"); /* e was there when the round began that c leaves */
    *diary.text = 0;
    same(rp_linear_layer_forward(&net.fc, x), expected);
    assert_string_equal(diary.text, "abde");
    (void)rp_module_remove_hook(diary.m, diary.id);
    refused("has no hook");
    OK(rp_module_remove_hook(diary.m, first));
    *diary.text = 0;
    (void)rp_linear_layer_forward(&net.fc, x);
    assert_string_equal(diary.text, "abe");
    rp_module_release(m);
}

/* A recording holds the hooks that it met; others are another recording. */
static void hooks_of_compiled(bool whole) {
    struct net net;
    rp_module *m = net_new(&net);
    OK(rp_module_set_training(m, false));
    rp_fn fn = {body, &net, 0, "net"};
    rp_compiled *f = whole ? rp_compile_module(m, fn, NULL) : rp_compile(fn, NULL);
    struct diary diary = {.m = rp_module_find(m, "fc")};
    struct note twice = {&diary, "x", 2, false};
    rp_tensor *x = rp_rand(RP_DIMS(1, 3, 4, 4)), *plain, *hooked = NULL, *y = NULL;
    body(&net, &x, 1, &plain, 1);
    for (int i = 0; i < 3; i++) {
        OK(rp_call(f, &x, 1, &y, 1));
        same(y, plain);
    }
    const uint64_t id = rp_module_register_forward_hook(diary.m, behind, &twice);
    body(&net, &x, 1, &hooked, 1);
    for (int i = 0; i < 3; i++) {
        OK(rp_call(f, &x, 1, &y, 1));
        same(y, hooked);
    }
    assert_true(strlen(diary.text) < 4); /* replays do not call it */
    OK(rp_module_remove_hook(diary.m, id));
    OK(rp_call(f, &x, 1, &y, 1));
    same(y, plain);
    rp_compiled_release(f);
    rp_module_release(m);
}
static void hooks_of_compiled_functions(void **state) {
    (void)state;
    hooks_of_compiled(true);
    hooks_of_compiled(false);
}

static void count_in(void *ctx, rp_module *m, rp_tensor **in, size_t n_in) {
    (void)m;
    for (size_t k = 0; k < n_in; k++) ((size_t *)ctx)[0] += in[k] != NULL;
}
static void count_out(void *ctx, rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)m, (void)in, (void)n_in;
    for (size_t k = 0; k < n_out; k++) ((size_t *)ctx)[1] += out[k] != NULL;
}

/* Every layer of the library, all in one module. */
struct every {
    rp_linear_layer linear;
    rp_embedding_layer embedding;
    rp_embedding_bag_layer bag;
    rp_layer_norm_layer layer_norm;
    rp_rms_norm_layer rms_norm;
    rp_batch_norm_layer batch_norm;
    rp_group_norm_layer group_norm;
    rp_instance_norm_layer instance_norm;
    rp_dropout_layer dropout[4];
    rp_conv2d_layer conv2d;
    rp_conv_layer conv;
    rp_prelu_layer prelu;
    rp_bilinear_layer bilinear;
    rp_multihead_attention_layer heads;
    rp_recurrent_layer lstm;
    rp_recurrent_cell gru;
    rp_transformer_layer encoder[1], decoder[1];
    rp_transformer transformer;
    rp_op_layer op;
    rp_sequential *row;
};

static rp_module *every_new(struct every *e) {
    rp_module *m = rp_module_new("all");
    const rp_transformer_options narrow = {.struct_size = sizeof narrow, .dim_feedforward = 8};
    OK(rp_linear_add(m, "linear", &e->linear, 4, 2, true));
    OK(rp_embedding_add(m, "embedding", &e->embedding, 3, 4));
    OK(rp_embedding_bag_add(m, "bag", &e->bag, 3, 4, NULL));
    OK(rp_layer_norm_add(m, "layer_norm", &e->layer_norm, RP_DIMS(4), 1e-5, true));
    OK(rp_rms_norm_add(m, "rms_norm", &e->rms_norm, RP_DIMS(4), 0, true));
    OK(rp_batch_norm_add(m, "batch_norm", &e->batch_norm, 4, NULL));
    OK(rp_group_norm_add(m, "group_norm", &e->group_norm, 2, 4, 1e-5, true));
    OK(rp_instance_norm_add(m, "instance_norm", &e->instance_norm, 4,
                            RP_OPTIONS(rp_instance_norm_options, .affine = true, .track_running_stats = true)));
    for (int i = 0; i < 4; i++)
        OK(rp_dropout_add(m, (const char *const[]){"dropout", "channels", "alpha", "features"}[i], &e->dropout[i],
                          0.5));
    OK(rp_conv2d_add(m, "conv2d", &e->conv2d, 4, 2, 3, 3, NULL));
    OK(rp_conv_add(m, "conv", &e->conv, 4, 2, RP_DIMS(3, 3), NULL));
    OK(rp_prelu_add(m, "prelu", &e->prelu, 1, 0.25));
    OK(rp_bilinear_add(m, "bilinear", &e->bilinear, 4, 4, 2, true));
    OK(rp_multihead_attention_add(m, "heads", &e->heads, 4, 2, NULL));
    OK(rp_recurrent_add(m, "lstm", &e->lstm, RP_LSTM, 4, 3, NULL));
    OK(rp_recurrent_cell_add(m, "gru", &e->gru, RP_GRU, 4, 3, true));
    OK(rp_transformer_add(m, "transformer", &e->transformer, e->encoder, 1, e->decoder, 1, 4, 2, &narrow));
    OK(rp_op_layer_add(m, "op", &e->op, "mse_loss"));
    e->row = rp_sequential_add(m, "row");
    OK(rp_sequential_linear(e->row, 4, 4, true));
    OK(rp_sequential_op(e->row, "relu"));
    return m;
}

/* Every layer of the library asks for the hooks of its module: how many tensors they see. */
static void hooks_of_every_layer(void **state) {
    (void)state;
    struct every e;
    rp_module *m = every_new(&e);
    size_t seen[2];
    rp_tensor *x = rp_rand(RP_DIMS(2, 4)), *image = rp_rand(RP_DIMS(2, 4, 3, 3)), *text = rp_rand(RP_DIMS(3, 2, 4)),
              *more, *cell;
    rp_tensor *ids = rp_zeros(RP_DIMS(2, 3), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64));
#define HOOKED(name, in, out, call)                                                                                    \
    do {                                                                                                               \
        seen[0] = seen[1] = 0;                                                                                         \
        assert_true(rp_module_register_forward_pre_hook(rp_module_find(m, name), count_in, seen) != 0);                \
        assert_true(rp_module_register_forward_hook(rp_module_find(m, name), count_out, seen) != 0);                   \
        (void)(call);                                                                                                  \
        if (rp_failed() || seen[0] != (in) || seen[1] != (out))                                                        \
            fail_msg("%s: %zu in, %zu out: %s", name, seen[0], seen[1], rp_failed() ? rp_error_message() : "");        \
    } while (0)
    HOOKED("linear", 1, 1, rp_linear_layer_forward(&e.linear, x));
    HOOKED("embedding", 1, 1, rp_embedding_layer_forward(&e.embedding, ids));
    HOOKED("bag", 1, 1, rp_embedding_bag_layer_forward(&e.bag, ids, NULL, NULL));
    HOOKED("layer_norm", 1, 1, rp_layer_norm_layer_forward(&e.layer_norm, x));
    HOOKED("rms_norm", 1, 1, rp_rms_norm_layer_forward(&e.rms_norm, x));
    HOOKED("batch_norm", 1, 1, rp_batch_norm_layer_forward(&e.batch_norm, x));
    HOOKED("group_norm", 1, 1, rp_group_norm_layer_forward(&e.group_norm, image));
    HOOKED("instance_norm", 1, 1, rp_instance_norm_layer_forward(&e.instance_norm, image));
    HOOKED("dropout", 1, 1, rp_dropout_layer_forward(&e.dropout[0], x));
    HOOKED("channels", 1, 1, rp_channel_dropout_forward(&e.dropout[1], image));
    HOOKED("alpha", 1, 1, rp_alpha_dropout_forward(&e.dropout[2], x));
    HOOKED("features", 1, 1, rp_channel_alpha_dropout_forward(&e.dropout[3], image));
    HOOKED("conv2d", 1, 1, rp_conv2d_layer_forward(&e.conv2d, image));
    HOOKED("conv", 1, 1, rp_conv_layer_forward(&e.conv, image));
    HOOKED("prelu", 1, 1, rp_prelu_layer_forward(&e.prelu, x));
    HOOKED("bilinear", 2, 1, rp_bilinear_layer_forward(&e.bilinear, x, x));
    HOOKED("heads", 3, 2, rp_multihead_attention_layer_forward(&e.heads, text, text, text, NULL, &more));
    HOOKED("lstm", 1, 3, rp_recurrent_forward(&e.lstm, text, NULL, NULL, &more, &cell));
    HOOKED("gru", 1, 1, rp_recurrent_cell_forward(&e.gru, x, NULL, NULL, NULL));
    HOOKED("transformer", 2, 1, rp_transformer_forward(&e.transformer, text, text, NULL, NULL, NULL));
    HOOKED("transformer.encoder", 1, 1, rp_transformer_encoder_forward(&e.transformer.encoder, text, NULL));
    HOOKED("transformer.encoder.layers.0", 1, 1, rp_transformer_encoder_layer_forward(&e.encoder[0], text, NULL));
    HOOKED("transformer.decoder", 2, 1, rp_transformer_decoder_forward(&e.transformer.decoder, text, text, NULL, NULL));
    HOOKED("transformer.decoder.layers.0", 2, 1,
           rp_transformer_decoder_layer_forward(&e.decoder[0], text, text, NULL, NULL));
    HOOKED("op", 2, 1, rp_op_layer_forward(&e.op, RP_TENSORS(x, x)));
    HOOKED("row", 1, 1, rp_sequential_forward(e.row, x));
    /* with those of the sequence around it */
    HOOKED("row.1", 2, 2, rp_sequential_forward(e.row, x));
    struct net net;
    rp_module *own = net_new(&net);
    size_t hooked[2] = {0};
    assert_true(rp_module_register_forward_hook(own, count_out, hooked) != 0);
    rp_tensor *small = rp_rand(RP_DIMS(1, 3, 4, 4));
    OK(rp_module_call(own, (rp_fn){body, &net, 0, "net"}, &small, 1, &more, 1));
    assert_int_equal(hooked[1], 1);
    rp_module_release(own);
    (void)rp_module_register_forward_hook(m, NULL, NULL);
    refused("the hook is NULL");
    (void)rp_module_find(m, "transformer.encoder.layers.7");
    refused("has no module `transformer.encoder.layers.7`");
    (void)rp_module_register_forward_pre_hook(rp_module_find(m, NULL), count_in, seen);
    refused("has no module `NULL`");
    (void)rp_module_call(own, (rp_fn){body, &net, 0, "net"}, &small, 1, &more, 1);
    refused("module");
    (void)rp_module_call(m, (rp_fn){NULL, NULL, 0, NULL}, &small, 1, &more, 1);
    refused("no body");
    rp_module_release(m);
}

/* Wrong sizes, types and arguments that are missing: an error that names an op or a layer and this file's line, and no buffer
   that changed. */
static void layers_refuse_wrong_input(void **state) {
    (void)state;
    struct every e;
    rp_module *m = every_new(&e);
    rp_tensor *whole = rp_zeros(RP_DIMS(2, 4), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)), *more, *cell,
              *scalar = rp_zeros(RP_NO_DIMS), *x = rp_rand(RP_DIMS(2, 4)), *text = rp_rand(RP_DIMS(3, 2, 4));
    rp_tensor *const inputs[] = {
        whole, scalar, rp_rand(RP_DIMS(2, 7)), rp_rand(RP_DIMS(2, 7, 3, 3)), rp_rand(RP_DIMS(2, 2, 2, 2, 2, 2)), NULL};
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        (void)(call);                                                                                                  \
        if (!rp_failed()) fail_msg("%s is taken, input %zu", #call, i);                                                \
        if (!strstr(rp_error_message(), "test_module.c:")) fail_msg("%s: no line: %s", #call, rp_error_message());     \
        (void)rp_error_take();                                                                                         \
    } while (0)
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        rp_tensor *in = inputs[i];
        REFUSED(rp_linear_layer_forward(&e.linear, in));
        REFUSED(rp_layer_norm_layer_forward(&e.layer_norm, in));
        REFUSED(rp_rms_norm_layer_forward(&e.rms_norm, in));
        REFUSED(rp_batch_norm_layer_forward(&e.batch_norm, in));
        REFUSED(rp_group_norm_layer_forward(&e.group_norm, in));
        REFUSED(rp_instance_norm_layer_forward(&e.instance_norm, in));
        REFUSED(rp_conv2d_layer_forward(&e.conv2d, in));
        REFUSED(rp_conv_layer_forward(&e.conv, in));
        REFUSED(rp_bilinear_layer_forward(&e.bilinear, in, x));
        REFUSED(rp_bilinear_layer_forward(&e.bilinear, x, in));
        REFUSED(rp_multihead_attention_layer_forward(&e.heads, in, text, text, NULL, &more));
        REFUSED(rp_multihead_attention_layer_forward(&e.heads, text, text, in, NULL, &more));
        REFUSED(rp_recurrent_forward(&e.lstm, in, NULL, NULL, &more, &cell));
        REFUSED(rp_recurrent_cell_forward(&e.gru, in, NULL, NULL, NULL));
        REFUSED(rp_transformer_forward(&e.transformer, in, text, NULL, NULL, NULL));
        REFUSED(rp_transformer_forward(&e.transformer, text, in, NULL, NULL, NULL));
        REFUSED(rp_sequential_forward(e.row, in));
        if (i == 2) REFUSED(rp_op_layer_forward(&e.op, RP_TENSORS(x, in))); /* others are broadcast, or converted */
        if (in != whole) {
            REFUSED(rp_embedding_layer_forward(&e.embedding, in));
            REFUSED(rp_embedding_bag_layer_forward(&e.bag, in, NULL, NULL));
        }
    }
    assert_true(rp_item_i64(e.batch_norm.num_batches_tracked) == 0);
    assert_true(rp_item(rp_all(rp_eq_scalar(e.batch_norm.running_mean, rp_i64(0)))).v.b);
    rp_module_release(m);
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
        size_t seen[2];
        if (rp_linear_add(rp_module_child(m, "c"), "l", &l, 3, 2, true) == RP_OK &&
            rp_module_register_forward_hook(rp_module_find(m, "c.l"), count_out, seen))
            (void)rp_module_state(m, &count);
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
        cmocka_unit_test_setup_teardown(summary_of_a_forward, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(hooks_in_their_order, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(hooks_of_compiled_functions, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(hooks_of_every_layer, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(layers_refuse_wrong_input, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(memory_fails, scope_setup, scope_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
