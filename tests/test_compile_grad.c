/* Gradients that cross the border of a compiled function: derivatives of derivatives that the function takes itself, leaves that
   it makes, what it does with grad mode off, custom functions, one tensor as several of its results. Every result and gradient is compared, bit for bit, with the function run
   eagerly, on every backend that compiles. */
/* ctest: labels=compile timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <reprise.h>

#include "support/trace_help.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 3, OUT = 2 };

static rp_tensor *total(rp_tensor *t) { return rp_sum(t, RP_NO_DIMS, false, RP_DTYPE_NONE); }

static rp_tensor *derivative(rp_tensor *of, rp_tensor *by) {
    rp_tensor *sum = total(of), *g = NULL;
    assert_int_equal(rp_grad(&sum, 1, &by, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &g), RP_OK);
    return g;
}

/* ---- derivatives inside, and the derivative of the whole outside */

BODY(cube) { /* saved arguments */
    UNUSED;
    out[0] = derivative(rp_mul(in[0], rp_mul(in[0], in[0])), in[0]);
    out[1] = NULL;
}
BODY(by_intermediate) { /* saved results, and a tensor in the middle */
    UNUSED;
    rp_tensor *h = rp_sin(in[0]), *g = derivative(rp_tanh(rp_exp(h)), h);
    out[0] = rp_mul(g, h);
    out[1] = h;
}
BODY(rows) { /* saved statistics of row kernels */
    UNUSED;
    rp_tensor *h = rp_softmax(rp_layer_norm(in[0], RP_DIMS(4), NULL, NULL, 1e-5), -1);
    rp_tensor *g = derivative(rp_mul(h, h), in[0]);
    out[0] = total(rp_mul(g, g));
    out[1] = rp_log_softmax(g, 0);
}
BODY(thrice) { /* a third derivative is taken outside */
    UNUSED;
    rp_tensor *g = derivative(rp_exp(rp_mul(in[0], in[0])), in[0]);
    out[0] = derivative(rp_mul(g, g), in[0]);
    out[1] = NULL;
}
BODY(product) { /* a penalty on the gradient of a layer */
    UNUSED;
    rp_tensor *w = rp_slice(in[0], 0, 0, 2, 1), *h = rp_matmul(rp_relu(in[0]), rp_transpose(w, 0, 1));
    rp_tensor *g = derivative(rp_mul(h, h), w);
    out[0] = rp_add(total(rp_mul(g, g)), total(h), rp_i64(1));
    out[1] = NULL;
}
BODY(cut) { /* without create_graph the derivative is a constant of the backward outside */
    UNUSED;
    rp_tensor *sum = total(rp_exp(in[0])), *g = NULL;
    assert_int_equal(rp_grad(&sum, 1, in, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true), &g), RP_OK);
    out[0] = rp_mul(g, in[0]);
    out[1] = rp_detach(sum);
}

BODY(largest) { /* an index that was saved has no history */
    UNUSED;
    rp_tensor *index = NULL, *values = rp_topk(in[0], 2, -1, true, true, &index);
    out[0] = derivative(values, in[0]);
    out[1] = rp_mul(derivative(rp_mul(values, values), in[0]), in[0]);
}

/* ---- leaves that the function makes */

BODY(leaf_for_itself) { /* used inside alone: its gradient is a value like any other */
    UNUSED;
    rp_tensor *leaf = rp_detach(in[0]);
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    rp_tensor *g = derivative(rp_mul(rp_mul(leaf, leaf), in[0]), leaf);
    out[0] = rp_mul(g, in[0]);
    out[1] = rp_detach(leaf);
}
BODY(leaf_behind_result) {
    UNUSED;
    rp_tensor *leaf = rp_clone(rp_detach(in[0]));
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    out[0] = rp_sin(in[0]);
    out[1] = rp_mul(leaf, leaf);
}
BODY(leaf_given) {
    UNUSED;
    out[1] = rp_ones_like(in[0]);
    assert_int_equal(rp_set_requires_grad(out[1], true), RP_OK);
    out[0] = rp_mul(out[1], in[0]);
}

/* ---- grad mode off for a while */

BODY(constant_inside) { /* also when the call runs again under the tape, for another choice of results */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_mul(rp_exp(in[0]), in[0]);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(rp_mul(c, in[0]), in[0]);
    out[1] = rp_add(c, rp_sin(in[0]), rp_i64(1));
}
BODY(written_part) { /* the values change, the history does not */
    UNUSED;
    rp_tensor *h = rp_sin(in[0]);
    bool old = rp_set_grad_enabled(false);
    rp_fill_(rp_slice(h, 0, 0, 2, 1), rp_f64(2));
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul_scalar(h, rp_f64(3));
    out[1] = NULL;
}
BODY(written_for_nobody) { /* what carries no gradient is written as ever */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_mul(in[0], in[0]);
    rp_mul_scalar_(c, rp_f64(2));
    (void)rp_set_grad_enabled(old);
    out[0] = rp_add_(c, rp_exp(in[0]), rp_i64(1));
    out[1] = NULL;
}

/* ---- custom functions: their own backward counts, whatever the forward is made of */

BODY(square) {
    UNUSED;
    out[0] = rp_mul(in[0], in[0]);
}
BODY(long_square) {
    UNUSED;
    out[0] = rp_mul(rp_exp(rp_mul_scalar(in[0], rp_f64(0))), rp_mul(in[0], in[0]));
}
static rp_status thrice_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                                 size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = rp_mul(grad_out[0], rp_mul_scalar(saved[0], rp_f64(3)));
    return RP_OK;
}
static rp_tensor *custom(rp_body *body, rp_tensor *x) {
    rp_function f = {{body, NULL, 0, "custom"}, thrice_backward, NULL, false};
    rp_tensor *y = NULL;
    (void)rp_function_apply(&f, &x, 1, &y, 1);
    return y;
}
BODY(custom_alone) {
    UNUSED;
    out[0] = custom(square, in[0]);
    out[1] = NULL;
}
BODY(custom_between) {
    UNUSED;
    out[0] = rp_mul(custom(long_square, rp_sin(in[0])), in[0]);
    out[1] = custom(square, out[0]);
}
BODY(custom_in_checkpoint) {
    UNUSED;
    assert_int_equal(rp_checkpoint((rp_fn){custom_alone, NULL, 0, "inner"}, in, 1, out, 1), RP_OK);
    out[1] = NULL;
}
BODY(custom_inside) { /* its backward runs in the function: part of the graph */
    UNUSED;
    rp_tensor *leaf = rp_detach(in[0]), *g = NULL;
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    rp_tensor *sum = total(custom(square, leaf));
    assert_int_equal(rp_grad(&sum, 1, &leaf, 1, NULL, NULL, &g), RP_OK);
    bool old = rp_set_grad_enabled(false);
    out[0] = rp_mul(g, in[0]);
    (void)rp_set_grad_enabled(old);
    out[1] = NULL;
}

/* ---- one tensor, several results */

BODY(repeated) {
    UNUSED;
    out[0] = rp_sin(in[0]);
    out[1] = out[0];
}

typedef struct seen {
    rp_tensor *out[OUT], *grad;
    bool needs[OUT];
} seen;

/* mask: for which results a gradient comes in */
static void call(rp_compiled *f, rp_status want, int mask, seen *s) {
    rp_tensor *x = filled(0.3, 2, 4, 4), *seeds[OUT], *roots[OUT], *g = NULL;
    size_t n = 0;
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_int_equal(rp_call(f, &x, 1, s->out, OUT), want);
    (void)rp_error_take();
    for (int k = 0; k < OUT; k++) {
        s->needs[k] = s->out[k] && rp_requires_grad(s->out[k]);
        if (!s->needs[k] || !(mask >> k & 1) || (k && s->out[k] == s->out[0])) continue;
        roots[n] = s->out[k];
        seeds[n++] = rp_add_scalar(rp_cos(rp_detach(s->out[k])), rp_f64(k));
    }
    s->grad = NULL;
    if (!n) return;
    assert_int_equal(rp_grad(roots, n, &x, 1, seeds,
                             RP_OPTIONS(rp_backward_options, .retain_graph = true, .allow_unused = true), &g),
                     RP_OK);
    s->grad = g;
}

static void check(rp_body *body, const char *name, const char *reason) {
    for (int b = 0; b < BACKENDS; b++) {
        for (int full = 0; full < 2; full++) {
            rp_scope scope = rp_scope_begin();
            rp_fn fn = {body, NULL, 0, name};
            rp_compiled *plain = rp_plain(fn),
                        *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = full));
            seen want, got;
            static const int masks[] = {3, 3, 1, 1, 2, 3};
            for (size_t k = 0; k < sizeof masks / sizeof *masks; k++) {
                call(plain, RP_OK, masks[k], &want);
                call(f, reason && full ? RP_ERROR_GRAPH_BREAK : RP_OK, masks[k], &got);
                for (int i = 0; i < OUT; i++) {
                    assert_int_equal(got.needs[i], want.needs[i]);
                    assert_int_equal(!got.out[i], !want.out[i]);
                    if (want.out[i]) assert_same(got.out[i], want.out[i]);
                }
                assert_int_equal(got.out[0] == got.out[1], want.out[0] == want.out[1]);
                assert_int_equal(!got.grad, !want.grad);
                if (want.grad) assert_same(got.grad, want.grad);
            }
            assert_int_equal(explain_total(f, "break", NULL), reason ? 1 : 0);
            if (reason) assert_int_equal(explain_total(f, "break", reason), 1);
            assert_int_equal(explain_total(f, "skip", NULL), 0);
            rp_compiled_release(f);
            rp_compiled_release(plain);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
    }
}

static void test_derivatives_inside(void **state) {
    (void)state;
    check(cube, "cube", NULL);
    check(by_intermediate, "by_intermediate", NULL);
    check(rows, "rows", NULL);
    check(thrice, "thrice", NULL);
    check(product, "product", NULL);
    check(cut, "cut", NULL);
    check(largest, "largest", NULL);
    rp_tensor *x = filled(0.3, 1, 4);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_false(rp_requires_grad(derivative(rp_topk(x, 1, 0, true, true, NULL), x)));
}

static void test_leaves_inside(void **state) {
    (void)state;
    check(leaf_for_itself, "leaf_for_itself", NULL);
    check(leaf_behind_result, "leaf_behind_result", "leaf-inside");
    check(leaf_given, "leaf_given", "leaf-inside");
}

static void test_grad_mode_off(void **state) {
    (void)state;
    check(constant_inside, "constant_inside", NULL);
    check(written_part, "written_part", "written-without-tape");
    check(written_for_nobody, "written_for_nobody", NULL);
}

static void test_custom_functions(void **state) {
    (void)state;
    check(custom_alone, "custom_alone", NULL);
    check(custom_between, "custom_between", NULL);
    check(custom_in_checkpoint, "custom_in_checkpoint", NULL);
    check(custom_inside, "custom_inside", NULL);
}

static void test_repeated_result(void **state) {
    (void)state;
    check(repeated, "repeated", NULL);
    rp_compiled *f = rp_compile((rp_fn){repeated, NULL, 0, "repeated"}, NULL);
    for (int k = 0; k < 3; k++) { /* what is written into one is seen, with its history, in the other */
        rp_tensor *x = filled(0.3, 1, 4), *out[OUT], *g;
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        assert_int_equal(rp_call(f, &x, 1, out, OUT), RP_OK);
        rp_mul_scalar_(out[0], rp_f64(0));
        rp_tensor *sum = total(out[1]);
        assert_int_equal(rp_grad(&sum, 1, &x, 1, NULL, NULL, &g), RP_OK);
        assert_true(rp_item_f64(total(rp_abs(g))) == 0);
    }
    rp_compiled_release(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_derivatives_inside, take_error),
        cmocka_unit_test_teardown(test_leaves_inside, take_error),
        cmocka_unit_test_teardown(test_grad_mode_off, take_error),
        cmocka_unit_test_teardown(test_custom_functions, take_error),
        cmocka_unit_test_teardown(test_repeated_result, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
