/* Lists of tensors at the border: one array as arguments and results of a call; errors of missing entries name the function. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <reprise.h>

#include "core/alloc.h"
#include "support/trace_help.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

BODY(sine) {
    UNUSED;
    out[0] = rp_sin(in[0]);
}
BODY(swap) { /* out[0] is written before in[0] is read */
    UNUSED;
    out[0] = rp_neg(in[1]);
    out[1] = rp_exp(in[0]);
}
BODY(positive) {
    UNUSED;
    out[0] = rp_gt_scalar(rp_sum(in[0]), rp_f64(-100));
}
static rp_status sine_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                               size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = rp_mul(grad_out[0], rp_cos(saved[0]));
    return RP_OK;
}

static const rp_fn one = {sine, NULL, 0, "sine"}, two = {swap, NULL, 0, "swap"};

static rp_tensor *input(void) {
    rp_tensor *x = filled(0.25, 1, 3);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    return x;
}

static void test_one_array(void **state) {
    (void)state;
    rp_tensor *x = input(), *h = x, *want = rp_sin(x);
    assert_int_equal(
        rp_cond(rp_ones(RP_NO_DIMS, RP_OPTIONS(rp_ones_options, .dtype = RP_BOOL)), one, one, &h, 1, &h, 1), RP_OK);
    assert_same(h, want);
    assert_int_equal(rp_checkpoint(one, &h, 1, &h, 1), RP_OK);
    assert_same(h, want = rp_sin(want));
    assert_int_equal(rp_while((rp_fn){positive, NULL, 0, "positive"}, one, &h, 1, 2, &h), RP_OK);
    assert_same(h, want = rp_sin(rp_sin(want)));
    rp_function custom = {sizeof custom, one, sine_backward, NULL, false};
    assert_int_equal(rp_function_apply(&custom, &h, 1, &h, 1), RP_OK);
    assert_same(h, want = rp_sin(want));
    assert_int_equal(rp_op_call("sin", &h, 1, NULL, 0, &h, 1), RP_OK);
    assert_same(h, want = rp_sin(want));
    rp_ir *ir = rp_trace(one, &x, 1, 1);
    assert_int_equal(rp_ir_run(ir, &h, 1, &h, 1), RP_OK);
    assert_same(h, want = rp_sin(want));
    rp_ir_release(ir);

    rp_tensor *ones = rp_ones(RP_DIMS(3)), *g[2] = {x, want};
    assert_int_equal(rp_grad(&want, 1, g, 1, &ones, RP_OPTIONS(rp_backward_options, .retain_graph = true), g), RP_OK);
    g[1] = x;
    assert_int_equal(rp_grad(&h, 1, g + 1, 1, &ones, NULL, g + 1), RP_OK);
    assert_same(g[1], g[0]);
}

static void test_compiled(void **state) {
    (void)state;
    rp_compiled *f[] = {rp_plain(two), rp_compile(two, NULL),
                        rp_compile(two, RP_OPTIONS(rp_compile_options, .backend = "eager"))};
    for (int k = 0; k < 3; k++) {
        for (int call = 0; call < 3; call++) {
            rp_tensor *both[3] = {input(), filled(0.5, 1, 3), NULL};
            rp_tensor *a = both[0], *b = both[1];
            assert_int_equal(rp_call(f[k], both, 2, both, 2), RP_OK);
            assert_same(both[0], rp_neg(b));
            assert_same(both[1], rp_exp(a));
            rp_tensor *shifted[3] = {a, b, NULL}; /* the lists overlap in part */
            static const char *const names[] = {"a", "b"};
            assert_int_equal(rp_call_named(f[k], names, shifted, 2, shifted + 1, 2), RP_OK);
            assert_same(shifted[1], rp_neg(b));
            assert_same(shifted[2], rp_exp(a));
        }
        rp_tensor *both[2] = {input(), input()};
        (void)rp__alloc_fail_at(1); /* the copy */
        assert_int_equal(rp_call(f[k], both, 2, both, 2), RP_ERROR_OUT_OF_MEMORY);
        assert_true(rp_is_error(both[0]) && rp_is_error(both[1]));
        (void)rp__alloc_fail_at(0);
        (void)rp_error_take();
        both[0] = input(), both[1] = input();
        assert_int_equal(rp_call(f[k], both, 2, both, 2), RP_OK);
        rp_compiled_release(f[k]);
    }
}

#define NAMES(text, call)                                                                                              \
    do {                                                                                                               \
        (void)(call);                                                                                                  \
        if (!strstr(rp_error_message(), text)) fail_msg("'%s' is not in '%s'", text, rp_error_message());              \
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);                                                  \
    } while (0)

static void test_errors_name_the_function(void **state) {
    (void)state;
    rp_tensor *none = NULL, *out = NULL;
    NAMES("ndim: the tensor is NULL", rp_ndim(NULL));
    NAMES("size: the tensor is NULL", rp_size(NULL, 0));
    NAMES("numel: the tensor is NULL", rp_numel(NULL));
    NAMES("data: the tensor is NULL", rp_data(NULL));
    NAMES("rp_set_requires_grad: the tensor is NULL", rp_set_requires_grad(NULL, true));
    NAMES("rp_grad_of: the tensor is NULL", rp_grad_of(NULL));
    NAMES("rp_register_hook: the tensor is NULL", rp_register_hook(NULL, NULL, NULL));
    NAMES("rp_backward: the root is NULL", rp_backward(NULL, NULL, NULL));
    NAMES("rp_cond: the predicate is NULL", rp_cond(NULL, one, one, NULL, 0, &out, 1));
    NAMES("rp_cond: an argument is NULL",
          rp_cond(rp_ones(RP_NO_DIMS, RP_OPTIONS(rp_ones_options, .dtype = RP_BOOL)), one, one, &none, 1, &out, 1));
    rp_compiled *f = rp_compile(one, NULL);
    NAMES("sine: argument 0 is NULL", rp_call(f, &none, 1, &out, 1));
    NAMES("rp_call: the function or a list", rp_call(NULL, &none, 1, &out, 1));
    rp_compiled_release(f);
    assert_null(rp_ir_retain(NULL));
    rp_ir_release(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_one_array, take_error),
        cmocka_unit_test_teardown(test_compiled, take_error),
        cmocka_unit_test_teardown(test_errors_name_the_function, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
