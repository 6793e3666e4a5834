/* The tape: accumulation, retain_graph, create_graph, hooks, grad modes, views and in-place ops, version errors, custom
   functions, recomputation, long chains, threads, and what happens when memory runs out. Behaviour is PyTorch's. */
/* ctest: labels=threads timeout=300 cost=13 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <reprise.h>

#include "autograd/tape.h"
#include "core/alloc.h"

/* ---------------------------------------------------------------- helpers */

static rp_tensor *vec(size_t n, const double *values) { return rp_from_data(values, RP_DIMS((int64_t)n), RP_F64); }
#define VEC(...) vec(sizeof((const double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})
#define LEAF(...) leaf(VEC(__VA_ARGS__))
static rp_tensor *leaf(rp_tensor *t) {
    assert_int_equal(rp_set_requires_grad(t, true), RP_OK);
    return t;
}
static rp_tensor *sum(rp_tensor *t) { return rp_sum(t, RP_NO_DIMS, false, RP_DTYPE_NONE); }
static rp_tensor *add(rp_tensor *a, rp_tensor *b) { return rp_add(a, b, rp_i64(1)); }

static void ok(rp_status status) {
    if (status == RP_OK && !rp_failed()) return;
    char text[1024];
    snprintf(text, sizeof text, "status %d: %s", (int)status, rp_error_message());
    (void)rp_error_take();
    fail_msg("%s", text);
}

static void equal_at(const char *site, rp_tensor *t, size_t n, const double *want) {
    double have[64];
    if (!t || rp_is_error(t)) fail_msg("%s: no tensor: %s", site, rp_error_message());
    if (rp_numel(t) != (int64_t)n) fail_msg("%s: %lld elements instead of %zu", site, (long long)rp_numel(t), n);
    ok(rp_to_host(t, have, n * sizeof *have));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(have[i] - want[i]) <= 1e-12 * (1 + fabs(want[i]))))
            fail_msg("%s: element %zu is %.17g, not %.17g", site, i, have[i], want[i]);
}
#define EQUAL(t, ...)                                                                                                  \
    equal_at(RP_HERE, (t), sizeof((const double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})

/* The call failed with this code, and the message has this text. */
static void failed_at(const char *site, rp_status code, const char *text) {
    char message[1024];
    snprintf(message, sizeof message, "%s", rp_error_message());
    rp_status have = rp_error_take();
    if (have != code) fail_msg("%s: status %d instead of %d: %s", site, (int)have, (int)code, message);
    if (!strstr(message, text)) fail_msg("%s: '%s' is not in '%s'", site, text, message);
}
#define FAILED(code, text) failed_at(RP_HERE, (code), (text))
/* "file:line" of the next line. */
#define NEXT_LINE(name)                                                                                                \
    char name[48];                                                                                                     \
    snprintf(name, sizeof name, "test_autograd.c:%d", __LINE__ + 1)

static rp_scope scope;
static int setup(void **state) {
    (void)state;
    (void)rp_error_take();
    rp_set_grad_enabled(true);
    scope = rp_scope_begin();
    return 0;
}
static int teardown(void **state) {
    (void)state;
    return rp_scope_end(scope, NULL, 0) == RP_OK && !rp_failed() ? 0 : -1;
}

#define RETAIN RP_OPTIONS(rp_backward_options, .retain_graph = true)
#define CREATE RP_OPTIONS(rp_backward_options, .create_graph = true)

/* ---------------------------------------------------------------- leaves and accumulation */

static void leaves_and_results(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *plain = VEC(3, 4);
    rp_tensor *y = rp_mul(x, plain);
    assert_true(rp_is_leaf(x) && rp_is_leaf(plain) && !rp_is_leaf(y));
    assert_true(rp_requires_grad(x) && !rp_requires_grad(plain) && rp_requires_grad(y));
    assert_false(rp_requires_grad(rp_gt(y, plain)));
    assert_int_equal(rp_set_requires_grad(y, false), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "only leaves");
    ok(rp_set_requires_grad(y, true));
    assert_int_equal(rp_set_requires_grad(rp_arange(rp_i64(0), rp_i64(3), rp_i64(1), RP_I64), true), RP_ERROR_DTYPE);
    FAILED(RP_ERROR_DTYPE, "int64");
    ok(rp_backward(sum(y), NULL, NULL));
    EQUAL(rp_grad_of(x), 3, 4);
    assert_null(rp_grad_of(plain));
    assert_null(rp_grad_of(y));
    ok(rp_set_requires_grad(x, false));
    assert_false(rp_requires_grad(rp_mul(x, x)));
}

/* zeros_like and ones_like take size, type and device of their model, not its history. */
static void likes_have_no_history(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *y = rp_exp(x), *zero = rp_zeros_like(y), *one = rp_ones_like(x);
    assert_false(rp_requires_grad(zero) || rp_requires_grad(one));
    assert_true(rp_is_leaf(zero));
    rp_set_requires_grad(zero, true); /* it is a leaf like any other */
    ok(rp_set_grad(x, one));          /* no cycle: teardown looks for what is left */
    rp_tensor *g = NULL, *loss = sum(rp_mul(rp_add(rp_ones_like(y), y, rp_i64(1)), y));
    ok(rp_grad(&loss, 1, &x, 1, NULL, NULL, &g));
    EQUAL(g, exp(1) * (1 + 2 * exp(1)), exp(2) * (1 + 2 * exp(2)));
}

static void gradients_add_up(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2);
    ok(rp_backward(sum(add(rp_mul(x, x), x)), NULL, NULL));
    EQUAL(rp_grad_of(x), 3, 5);
    rp_tensor *first = rp_grad_of(x);
    ok(rp_backward(sum(rp_mul(x, x)), NULL, NULL));
    EQUAL(rp_grad_of(x), 5, 9);
    assert_ptr_equal(first, rp_grad_of(x)); /* in place without create_graph */
    ok(rp_set_grad(x, NULL));
    assert_null(rp_grad_of(x));
    ok(rp_backward(x, VEC(7, 8), NULL)); /* a leaf as root: the seed is the caller's, so it is copied */
    EQUAL(rp_grad_of(x), 7, 8);
    assert_int_equal(rp_set_grad(x, VEC(1)), RP_ERROR_SHAPE);
    FAILED(RP_ERROR_SHAPE, "rp_set_grad");
    assert_int_equal(rp_set_grad(x, x), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "its own");
}

static void shared_gradients_are_not_written(void **state) {
    (void)state;
    /* add hands one gradient to both inputs: neither .grad may be the other's memory. */
    rp_tensor *a = LEAF(1, 2), *b = LEAF(3, 4);
    rp_tensor *seed = VEC(1, 1);
    ok(rp_backward(add(a, b), seed, NULL));
    assert_ptr_not_equal(rp_grad_of(a), rp_grad_of(b));
    assert_ptr_not_equal(rp_data(rp_grad_of(a)), rp_data(rp_grad_of(b)));
    assert_ptr_not_equal(rp_data(rp_grad_of(a)), rp_data(seed));
    ok(rp_backward(add(a, b), seed, NULL));
    EQUAL(rp_grad_of(a), 2, 2);
    EQUAL(rp_grad_of(b), 2, 2);
    EQUAL(seed, 1, 1);
}

static void gradient_layout_is_the_leafs(void **state) {
    (void)state;
    rp_tensor *base = rp_from_data((const double[]){1, 2, 3, 4, 5, 6}, RP_DIMS(3, 2), RP_F64);
    rp_tensor *x = leaf(rp_detach(rp_transpose(base, 0, 1))); /* (2, 3) with strides (1, 2) */
    ok(rp_backward(sum(rp_mul(x, x)), NULL, NULL));
    assert_int_equal(rp_stride(rp_grad_of(x), 0), 1);
    assert_int_equal(rp_stride(rp_grad_of(x), 1), 2);
    double have[6];
    ok(rp_to_host(rp_grad_of(x), have, sizeof have));
    assert_memory_equal(have, ((const double[]){2, 6, 10, 4, 8, 12}), sizeof have);
}

static void broadcast_dtypes_and_empty(void **state) {
    (void)state;
    rp_tensor *x = leaf(rp_to_dtype(VEC(1, 2, 3), RP_F32)), *s = leaf(rp_sum(VEC(2), RP_NO_DIMS, false, RP_DTYPE_NONE));
    x = leaf(rp_detach(x));
    s = leaf(rp_detach(s));
    rp_tensor *y = rp_mul(rp_to_dtype(x, RP_F64), s);
    ok(rp_backward(sum(y), NULL, NULL));
    assert_int_equal(rp_dtype_of(rp_grad_of(x)), RP_F32);
    EQUAL(rp_grad_of(s), 6);
    rp_tensor *e = leaf(rp_zeros(RP_DIMS(0, 3), RP_F64));
    ok(rp_backward(sum(rp_mul(rp_sin(e), e)), NULL, NULL));
    assert_int_equal(rp_numel(rp_grad_of(e)), 0);
    assert_int_equal(rp_size(rp_grad_of(e), 1), 3);
    rp_tensor *half = leaf(rp_detach(rp_to_dtype(VEC(0.5, -1), RP_BF16)));
    ok(rp_backward(sum(rp_to_dtype(rp_gelu(half), RP_F32)), NULL, NULL));
    assert_int_equal(rp_dtype_of(rp_grad_of(half)), RP_BF16);
}

/* ---------------------------------------------------------------- slopes where PyTorch has chosen one */

static void kinks(void **state) {
    (void)state;
    rp_tensor *x = LEAF(-1, 0, 2);
    rp_tensor *g;
    rp_tensor *y = sum(rp_relu(x));
    ok(rp_grad(&y, 1, &x, 1, NULL, NULL, &g));
    EQUAL(g, 0, 0, 1);
    y = sum(rp_abs(x));
    ok(rp_grad(&y, 1, &x, 1, NULL, NULL, &g));
    EQUAL(g, -1, 0, 1);
    rp_tensor *a = LEAF(1, 2, 3), *b = LEAF(1, 3, 2), *gs[2];
    y = sum(rp_maximum(a, b));
    ok(rp_grad(&y, 1, (rp_tensor *[]){a, b}, 2, NULL, NULL, gs));
    EQUAL(gs[0], 0.5, 0, 1);
    EQUAL(gs[1], 0.5, 1, 0);
    y = sum(rp_minimum(a, b));
    ok(rp_grad(&y, 1, (rp_tensor *[]){a, b}, 2, NULL, NULL, gs));
    EQUAL(gs[0], 0.5, 1, 0);
    EQUAL(gs[1], 0.5, 0, 1);
    rp_tensor *t = LEAF(3, 1, 3, 3);
    y = rp_amax(t, RP_NO_DIMS, false);
    ok(rp_grad(&y, 1, &t, 1, NULL, NULL, &g));
    EQUAL(g, 1.0 / 3, 0, 1.0 / 3, 1.0 / 3);
    y = sum(rp_sign(x));
    ok(rp_grad(&y, 1, &x, 1, NULL, NULL, &g));
    EQUAL(g, 0, 0, 0);
    y = sum(rp_pow_scalar(x, rp_i64(0)));
    ok(rp_grad(&y, 1, &x, 1, NULL, NULL, &g));
    EQUAL(g, 0, 0, 0);
}

/* ---------------------------------------------------------------- graphs that are freed, kept, made */

static void second_backward(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2);
    NEXT_LINE(line);
    rp_tensor *y = sum(rp_mul(x, x));
    ok(rp_backward(y, NULL, RETAIN));
    ok(rp_backward(y, NULL, NULL));
    EQUAL(rp_grad_of(x), 4, 8);
    assert_int_equal(rp_backward(y, NULL, NULL), RP_ERROR_STATE);
    assert_non_null(strstr(rp_error_message(), line));
    FAILED(RP_ERROR_STATE, "a second time");
    /* Nothing saved: nothing freed (PyTorch). */
    rp_tensor *z = sum(add(x, x));
    ok(rp_backward(z, NULL, NULL));
    ok(rp_backward(z, NULL, NULL));
}

static void roots_are_checked(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2);
    assert_int_equal(rp_backward(rp_mul(x, x), NULL, NULL), RP_ERROR_SHAPE);
    FAILED(RP_ERROR_SHAPE, "one element");
    assert_int_equal(rp_backward(rp_mul(x, x), VEC(1, 2, 3), NULL), RP_ERROR_SHAPE);
    FAILED(RP_ERROR_SHAPE, "float64 (3)");
    assert_int_equal(rp_backward(sum(VEC(1)), NULL, NULL), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "does not require a gradient");
    rp_tensor *bad = rp_mul(x, VEC(1, 2, 3));
    assert_true(rp_is_error(bad));
    (void)rp_error_take();
    assert_int_not_equal(rp_backward(bad, NULL, NULL), RP_OK);
    (void)rp_error_take();
}

static void grad_leaves_grad_alone(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *w = LEAF(3, 4), *unused = LEAF(5), *g[4];
    rp_tensor *h = rp_mul(x, w), *y = sum(rp_mul(h, h)), *z = sum(x);
    ok(rp_grad((rp_tensor *[]){y, z}, 2, (rp_tensor *[]){x, h, x}, 3,
               (rp_tensor *[]){NULL, rp_sum(VEC(10), RP_NO_DIMS, false, RP_DTYPE_NONE)}, RETAIN, g));
    EQUAL(g[0], 2 * 1 * 9 + 10, 2 * 2 * 16 + 10);
    EQUAL(g[1], 6, 16);
    EQUAL(g[2], 28, 74);
    assert_null(rp_grad_of(x));
    assert_null(rp_grad_of(w));
    assert_int_equal(rp_grad(&y, 1, (rp_tensor *[]){x, unused}, 2, NULL, RETAIN, g), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "input 1 was not used");
    ok(rp_grad(&y, 1, (rp_tensor *[]){unused, x}, 2, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true), g));
    assert_null(g[0]);
    EQUAL(g[1], 18, 64);
    rp_tensor *plain = VEC(1, 2);
    assert_int_equal(rp_grad(&z, 1, &plain, 1, NULL, NULL, g), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "input 0 does not require");
    ok(rp_grad(&z, 1, &z, 1, NULL, RETAIN, g)); /* an output as input */
    EQUAL(g[0], 1);
}

static void grad_computes_only_what_is_asked(void **state) {
    (void)state;
    /* The branch to w has been made unusable: its saved value was overwritten. Asking for x alone does not touch it. */
    rp_tensor *x = LEAF(1, 2), *w = LEAF(3, 4), *g;
    rp_tensor *other = rp_mul_scalar(w, rp_i64(1));
    rp_tensor *dead = rp_mul(other, other);
    rp_add_scalar_(other, rp_i64(1));
    rp_tensor *y = sum(add(dead, rp_mul(x, x)));
    ok(rp_grad(&y, 1, &x, 1, NULL, RETAIN, &g));
    EQUAL(g, 2, 4);
    assert_int_equal(rp_grad(&y, 1, &w, 1, NULL, NULL, &g), RP_ERROR_VERSION);
    FAILED(RP_ERROR_VERSION, "add_scalar_");
}

static void higher_derivatives(void **state) {
    (void)state;
    rp_tensor *x = LEAF(0.5, 2), *g1, *g2, *g3;
    rp_tensor *y = sum(rp_sin(x));
    ok(rp_grad(&y, 1, &x, 1, NULL, CREATE, &g1));
    rp_tensor *s = sum(g1);
    ok(rp_grad(&s, 1, &x, 1, NULL, CREATE, &g2));
    EQUAL(g2, -sin(0.5), -sin(2));
    s = sum(g2);
    ok(rp_grad(&s, 1, &x, 1, NULL, NULL, &g3));
    EQUAL(g3, -cos(0.5), -cos(2));
    assert_false(rp_requires_grad(g3));
    /* Gradient penalty: .grad of a penalty on a gradient; create_graph into .grad accumulates out of place. */
    rp_tensor *w = LEAF(3);
    ok(rp_backward(sum(rp_pow_scalar(w, rp_i64(3))), NULL, CREATE));
    rp_tensor *first = rp_grad_of(w);
    assert_true(rp_requires_grad(first));
    EQUAL(first, 27);
    rp_tensor *penalty = sum(rp_mul(first, first)); /* 9 w^4, slope 36 w^3 */
    rp_retain(first);
    ok(rp_backward(penalty, NULL, CREATE));
    EQUAL(first, 27);
    EQUAL(rp_grad_of(w), 27 + 2 * 27 * 18);
    rp_release(first);
    ok(rp_set_grad(w, NULL)); /* w -> .grad -> tape -> w would keep all alive */
}

/* ---------------------------------------------------------------- grad modes, detach */

static void modes(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2);
    assert_true(rp_set_grad_enabled(false));
    assert_false(rp_grad_enabled());
    rp_tensor *y = rp_mul(x, x);
    assert_false(rp_set_grad_enabled(true));
    assert_false(rp_requires_grad(y));
    rp_tensor *d = rp_detach(rp_mul(x, x));
    assert_true(rp_is_leaf(d) && !rp_requires_grad(d));
    ok(rp_backward(sum(rp_mul(x, d)), NULL, NULL));
    EQUAL(rp_grad_of(x), 1, 4);
    /* Leaves are changed in place with grad mode off only. */
    rp_set_grad_enabled(false);
    rp_sub_(x, VEC(1, 1), rp_i64(1));
    rp_set_grad_enabled(true);
    EQUAL(x, 0, 1);
    assert_true(rp_is_leaf(x));
    rp_tensor *bad = rp_sub_(x, VEC(1, 1), rp_i64(1));
    assert_true(rp_is_error(bad));
    FAILED(RP_ERROR_STATE, "a leaf that requires a gradient");
    bad = rp_fill_(rp_select(x, 0, 0), rp_i64(0));
    assert_true(rp_is_error(bad));
    FAILED(RP_ERROR_STATE, "a view of a leaf");
    EQUAL(x, 0, 1);
}

/* ---------------------------------------------------------------- in place */

static void inplace_on_results(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *w = LEAF(3, 4);
    rp_tensor *y = rp_mul_scalar(x, rp_i64(2));
    rp_mul_(y, w); /* 2 x w */
    rp_add_(y, w, rp_i64(1));
    ok(rp_backward(sum(y), NULL, NULL));
    EQUAL(rp_grad_of(x), 6, 8);
    EQUAL(rp_grad_of(w), 3, 5);
    /* A plain tensor that receives a result becomes one. */
    rp_tensor *buffer = rp_zeros(RP_DIMS(2), RP_F64);
    rp_copy_(buffer, rp_mul(x, w));
    assert_false(rp_is_leaf(buffer));
    ok(rp_set_grad(x, NULL));
    ok(rp_backward(sum(buffer), NULL, NULL));
    EQUAL(rp_grad_of(x), 3, 4);
}

static void version_errors_name_the_line(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2);
    rp_tensor *h = rp_mul_scalar(x, rp_i64(1));
    NEXT_LINE(used);
    rp_tensor *y = rp_mul(h, h);
    NEXT_LINE(written);
    rp_add_scalar_(h, rp_i64(1));
    assert_int_equal(rp_backward(sum(y), NULL, NULL), RP_ERROR_VERSION);
    const char *message = rp_error_message();
    assert_non_null(strstr(message, used));
    assert_non_null(strstr(message, written));
    assert_non_null(strstr(message, "version 1, expected version 0"));
    FAILED(RP_ERROR_VERSION, "`add_scalar_`");
    /* A saved result. */
    rp_tensor *e = rp_exp(x);
    rp_mul_scalar_(e, rp_i64(2));
    assert_int_equal(rp_backward(sum(e), NULL, NULL), RP_ERROR_VERSION);
    FAILED(RP_ERROR_VERSION, "its result");
    /* Through a view, through a detached handle, and by itself. */
    h = rp_mul_scalar(x, rp_i64(1));
    y = rp_mul(h, h);
    rp_fill_(rp_detach(h), rp_i64(0));
    assert_int_equal(rp_backward(sum(y), NULL, NULL), RP_ERROR_VERSION);
    FAILED(RP_ERROR_VERSION, "`fill_`");
    h = rp_mul_scalar(x, rp_i64(1));
    rp_mul_(h, h);
    assert_int_equal(rp_backward(sum(h), NULL, NULL), RP_ERROR_VERSION);
    FAILED(RP_ERROR_VERSION, "`mul_`");
    /* A leaf that an optimizer changed after its use. */
    y = rp_mul(x, x);
    rp_set_grad_enabled(false);
    rp_add_scalar_(x, rp_i64(1));
    rp_set_grad_enabled(true);
    assert_int_equal(rp_backward(sum(y), NULL, NULL), RP_ERROR_VERSION);
    FAILED(RP_ERROR_VERSION, "`add_scalar_`");
}

static void writes_through_views(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2, 3), *w = LEAF(5), *g[2];
    rp_tensor *base = rp_mul_scalar(x, rp_i64(2));
    rp_tensor *early = rp_slice(base, 0, 0, 2, 1);
    rp_mul_(rp_select(base, 0, 1), rp_select(w, 0, 0)); /* base = (2 x0, 2 x1 w, 2 x2) */
    rp_tensor *y = sum(rp_mul(base, base));
    ok(rp_grad(&y, 1, (rp_tensor *[]){x, w}, 2, NULL, RETAIN, g));
    EQUAL(g[0], 8, 8 * 2 * 25, 24);
    EQUAL(g[1], 8 * 4 * 5);
    /* The view made before the write has the history after it. */
    y = sum(early);
    ok(rp_grad(&y, 1, (rp_tensor *[]){x, w}, 2, NULL, RETAIN, g));
    EQUAL(g[0], 2, 10, 0);
    EQUAL(g[1], 4);
    /* A view of a plain tensor: the whole takes part afterwards. */
    rp_tensor *plain = rp_ones(RP_DIMS(2, 3), RP_F64);
    rp_tensor *row = rp_select(plain, 0, 1);
    assert_false(rp_requires_grad(plain));
    rp_mul_(row, x);
    assert_true(rp_requires_grad(plain) && rp_requires_grad(row) && !rp_is_leaf(row));
    y = sum(rp_mul(plain, plain));
    ok(rp_grad(&y, 1, &x, 1, NULL, RETAIN, g));
    EQUAL(g[0], 2, 4, 6);
    y = sum(row);
    ok(rp_grad(&y, 1, &x, 1, NULL, RETAIN, g));
    EQUAL(g[0], 1, 1, 1);
    /* Overwritten elements pass nothing on. */
    base = rp_mul(x, x);
    rp_fill_(rp_slice(base, 0, 1, 3, 1), rp_i64(7));
    y = sum(base);
    ok(rp_grad(&y, 1, &x, 1, NULL, NULL, g));
    EQUAL(g[0], 2, 0, 0);
}

static void views_made_without_a_tape(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *base = rp_mul_scalar(x, rp_i64(1));
    rp_set_grad_enabled(false);
    rp_tensor *view = rp_select(base, 0, 0);
    rp_set_grad_enabled(true);
    rp_tensor *bad = rp_mul_(view, rp_select(x, 0, 1));
    assert_true(rp_is_error(bad));
    FAILED(RP_ERROR_STATE, "grad mode off");
    rp_tensor *inside = rp_unsqueeze(view, 0);
    bad = rp_mul_(inside, x);
    assert_true(rp_is_error(bad));
    (void)rp_error_take();
    /* Writing what needs no gradient is allowed. */
    rp_tensor *plain = rp_zeros(RP_DIMS(2), RP_F64);
    rp_set_grad_enabled(false);
    view = rp_select(plain, 0, 0);
    rp_set_grad_enabled(true);
    rp_fill_(view, rp_i64(3));
    EQUAL(plain, 3, 0);
}

static void no_cycles_are_left(void **state) {
    (void)state;
    /* Products of elements of one buffer, written back into it: every node saves what the buffer later owns. */
    uint64_t before = rp__alloc_live();
    for (int round = 0; round < 3; round++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *x = LEAF(2), *buffer = rp_ones(RP_DIMS(5), RP_F64);
        for (int64_t i = 1; i < 5; i++)
            rp_copy_(rp_select(buffer, 0, i), rp_mul(rp_clone(rp_select(buffer, 0, i - 1)), rp_select(x, 0, 0)));
        ok(rp_backward(rp_select(buffer, 0, 4), NULL, NULL));
        EQUAL(rp_grad_of(x), 32);
        rp_tensor *self = rp_mul_scalar(x, rp_i64(1)), *z = rp_mul(self, self);
        rp_add_(self, z, rp_i64(1));                               /* self now comes from z, which saved self */
        rp_mul_(rp_select(buffer, 0, 0), rp_select(buffer, 0, 1)); /* version error if asked, no leak */
        ok(rp_scope_end(inner, NULL, 0));
        if (round == 0) before = rp__alloc_live();
    }
    assert_int_equal(rp__alloc_live(), before);
}

/* ---------------------------------------------------------------- hooks */

typedef struct log {
    rp_tensor *on;
    uint64_t id[4];
    char calls[32];
    double factor;
} hook_log;

static rp_tensor *hook_scale(void *ctx, rp_tensor *grad) {
    hook_log *l = ctx;
    strcat(l->calls, "s");
    return rp_mul_scalar(grad, rp_f64(l->factor));
}
static rp_tensor *hook_see(void *ctx, rp_tensor *grad) {
    hook_log *l = ctx;
    strcat(l->calls, "v");
    assert_true(rp_numel(grad) > 0);
    return NULL;
}
static rp_tensor *hook_remove_next(void *ctx, rp_tensor *grad) {
    hook_log *l = ctx;
    (void)grad;
    strcat(l->calls, "r");
    if (l->id[1]) ok(rp_remove_hook(l->on, l->id[1]));
    l->id[1] = 0;
    return NULL;
}
static rp_tensor *hook_bad(void *ctx, rp_tensor *grad) {
    (void)ctx;
    return rp_sum(grad, RP_NO_DIMS, false, RP_DTYPE_NONE);
}

enum { hook_fails_line = __LINE__ + 3 };
static rp_tensor *hook_fails(void *ctx, rp_tensor *grad) {
    (void)ctx;
    return rp_view(grad, RP_DIMS(7, 7));
}

static void hooks(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *g;
    hook_log l = {.factor = 10}, m = {.factor = 3};
    rp_tensor *h = rp_mul(x, x);
    assert_int_not_equal(rp_register_hook(h, hook_scale, &m), 0);
    assert_int_not_equal(rp_register_hook(h, hook_see, &m), 0);
    l.id[0] = rp_register_hook(x, hook_scale, &l);
    assert_int_not_equal(rp_register_hook(x, hook_see, &l), 0);
    rp_tensor *y = sum(h);
    ok(rp_backward(y, NULL, RETAIN));
    EQUAL(rp_grad_of(x), 60, 120);
    assert_string_equal(m.calls, "sv");
    assert_string_equal(l.calls, "sv");
    ok(rp_remove_hook(x, l.id[0]));
    assert_int_equal(rp_remove_hook(x, l.id[0]), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "has no hook");
    ok(rp_grad(&y, 1, &x, 1, NULL, RETAIN, &g)); /* hooks run for rp_grad too */
    EQUAL(g, 6, 12);
    assert_string_equal(l.calls, "svv");
    ok(rp_grad(&y, 1, &h, 1, NULL, NULL, &g));
    EQUAL(g, 3, 3);
    assert_int_equal(rp_register_hook(VEC(1), hook_see, &l), 0);
    FAILED(RP_ERROR_STATE, "requires a gradient");
    /* Removed while they run. */
    rp_tensor *z = LEAF(1);
    hook_log r = {.on = z, .factor = 5};
    r.id[0] = rp_register_hook(z, hook_remove_next, &r);
    r.id[1] = rp_register_hook(z, hook_scale, &r);
    ok(rp_backward(sum(z), NULL, NULL));
    assert_string_equal(r.calls, "r");
    EQUAL(rp_grad_of(z), 1);
    ok(rp_backward(sum(z), NULL, NULL));
    assert_string_equal(r.calls, "rr");
    /* A gradient of another size. */
    rp_tensor *t = LEAF(1, 2);
    char line[64];
    snprintf(line, sizeof line, "test_autograd.c:%d", __LINE__ + 1);
    rp_register_hook(t, hook_bad, NULL);
    assert_int_equal(rp_backward(sum(rp_mul(t, t)), NULL, NULL), RP_ERROR_SHAPE);
    assert_non_null(strstr(rp_error_message(), line)); /* where the hook comes from, not where the leaf was made */
    FAILED(RP_ERROR_SHAPE, "a hook returned");
    assert_null(rp_grad_of(t));
    rp_tensor *q = LEAF(1, 2);
    rp_register_hook(q, hook_fails, NULL);
    snprintf(line, sizeof line, "test_autograd.c:%d", hook_fails_line);
    assert_int_equal(rp_backward(sum(rp_mul(q, q)), NULL, NULL), RP_ERROR_SHAPE);
    assert_non_null(strstr(rp_error_message(), line)); /* an op in the hook has its own line */
    rp_error_take();
    /* On the value before an in-place op. */
    rp_tensor *v = LEAF(1), *before = rp_mul_scalar(v, rp_i64(2));
    hook_log b = {.factor = 100};
    b.id[0] = rp_register_hook(before, hook_scale, &b);
    rp_mul_scalar_(before, rp_i64(3));
    ok(rp_backward(before, NULL, RETAIN));
    EQUAL(rp_grad_of(v), 600);
    ok(rp_remove_hook(before, b.id[0]));
    ok(rp_backward(before, NULL, NULL));
    EQUAL(rp_grad_of(v), 606);
}

static void retained_gradients(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *h = rp_mul(x, x);
    ok(rp_retain_grad(h));
    ok(rp_retain_grad(h));
    ok(rp_retain_grad(x));
    rp_tensor *y = sum(rp_mul_scalar(h, rp_i64(4)));
    ok(rp_backward(y, NULL, RETAIN));
    EQUAL(rp_grad_of(h), 4, 4);
    ok(rp_backward(y, NULL, NULL));
    EQUAL(rp_grad_of(h), 8, 8);
    /* It is the handle that keeps it: after an in-place op the new value's. */
    rp_tensor *k = rp_mul_scalar(x, rp_i64(1));
    ok(rp_retain_grad(k));
    rp_mul_scalar_(k, rp_i64(2));
    ok(rp_backward(sum(rp_mul_scalar(k, rp_i64(5))), NULL, NULL));
    EQUAL(rp_grad_of(k), 5, 5);
    assert_int_equal(rp_retain_grad(VEC(1)), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "does not require");
    /* The handle is gone before the gradient comes. */
    rp_scope inner = rp_scope_begin();
    rp_tensor *gone = rp_mul_scalar(x, rp_i64(1));
    ok(rp_retain_grad(gone));
    rp_tensor *s = sum(gone);
    ok(rp_scope_end(inner, &s, 1));
    ok(rp_backward(s, NULL, NULL));
}

/* ---------------------------------------------------------------- custom functions */

static int forward_runs;
static void cube_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    assert_true(n_in == 2 && n_out == 2 && !rp_grad_enabled());
    forward_runs++;
    out[0] = rp_mul(rp_mul(in[0], in[0]), in[0]);
    out[1] = in[1]; /* handed through */
}
static rp_status cube_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                               size_t n_out, rp_tensor **grad_in, size_t n_in) {
    assert_true(n_saved == 4 && n_out == 2 && n_in == 2);
    *(int *)ctx += 1;
    /* 3 x^2 by x and by the saved result: x^3 * 3 / x. */
    grad_in[0] = rp_mul(grad_out[0], rp_mul_scalar(rp_div(saved[2], saved[0]), rp_i64(3)));
    grad_in[1] = grad_out[1];
    return RP_OK;
}

static void custom_functions(void **state) {
    (void)state;
    int backward_runs = 0;
    rp_function f = {.forward = {cube_body, NULL, 0, "cube"},
                     .backward = cube_backward,
                     .backward_ctx = &backward_runs,
                     .save_outputs = true};
    rp_tensor *x = LEAF(2, 3), *other = VEC(1), *out[2], *g1, *g2;
    ok(rp_function_apply(&f, RP_TENSORS(x, other), out, 2));
    assert_true(rp_requires_grad(out[0]) && !rp_is_leaf(out[0]));
    assert_ptr_not_equal(out[1], other);
    EQUAL(out[0], 8, 27);
    ok(rp_backward(sum(out[0]), NULL, RETAIN));
    EQUAL(rp_grad_of(x), 12, 27);
    rp_tensor *y = sum(out[0]);
    ok(rp_grad(&y, 1, &x, 1, NULL, CREATE, &g1)); /* the backward's own ops are differentiated */
    rp_tensor *s = sum(g1);
    ok(rp_grad(&s, 1, &x, 1, NULL, NULL, &g2));
    EQUAL(g2, 12, 18);
    assert_int_equal(backward_runs, 3); /* once more for the saved result's own history */
    /* Without a gradient: the forward alone. */
    forward_runs = 0;
    rp_set_grad_enabled(false);
    ok(rp_function_apply(&f, RP_TENSORS(x, other), out, 2));
    rp_set_grad_enabled(true);
    assert_true(forward_runs == 1 && !rp_requires_grad(out[0]));
    f.backward = NULL;
    assert_int_equal(rp_function_apply(&f, RP_TENSORS(x, other), out, 2), RP_ERROR_INVALID_ARGUMENT);
    assert_true(rp_is_error(out[0]));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "cube");
}

static rp_status wrong_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                                size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)saved, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = rp_cat(RP_TENSORS(grad_out[0], grad_out[0]), 0);
    return RP_OK;
}
static void twice_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_i64(2));
}
static void custom_gradients_must_fit(void **state) {
    (void)state;
    rp_function f = {.forward = {twice_body, NULL, 0, "twice"}, .backward = wrong_backward};
    rp_tensor *x = LEAF(2, 3), *out;
    ok(rp_function_apply(&f, &x, 1, &out, 1));
    assert_int_equal(rp_backward(sum(out), NULL, NULL), RP_ERROR_SHAPE);
    FAILED(RP_ERROR_SHAPE, "twice returned a gradient of size (4) for an input of size (2)");
}

/* A backward that only returns a status: the sticky error says whose it was. */
static rp_status silent_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                                 size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)saved, (void)n_saved, (void)grad_out, (void)n_out, (void)grad_in, (void)n_in;
    return RP_ERROR_IO;
}
static rp_status silent_op_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                               rp_tensor *const *in_t, rp_tensor *const *out_t, const rp_attr *attrs, size_t n_attrs) {
    (void)ctx, (void)in, (void)n_in, (void)out, (void)n_out, (void)in_t, (void)out_t, (void)attrs, (void)n_attrs;
    return RP_OK;
}
static rp_status silent_op_backward(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in,
                                    size_t n_in, rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs,
                                    rp_tensor **grad_in) {
    (void)ctx, (void)grad_out, (void)n_out, (void)in, (void)n_in, (void)out, (void)attrs, (void)n_attrs, (void)grad_in;
    return RP_ERROR_UNAVAILABLE;
}
static void statuses_without_an_error(void **state) {
    (void)state;
    rp_function f = {.forward = {twice_body, NULL, 0, "quiet"}, .backward = silent_backward};
    rp_tensor *x = LEAF(2), *out;
    ok(rp_function_apply(&f, &x, 1, &out, 1));
    assert_int_equal(rp_backward(out, NULL, NULL), RP_ERROR_IO);
    FAILED(RP_ERROR_IO, "the backward of custom function `quiet` returned RP_ERROR_IO");
    ok(rp_op_register(RP_OPTIONS(rp_op_descriptor, .schema = "quiet_op(Tensor a) -> Tensor", .cpu = silent_op_cpu,
                                 .backward = silent_op_backward)));
    ok(rp_op_call("quiet_op", &x, 1, NULL, 0, &out, 1));
    assert_int_equal(rp_backward(out, NULL, NULL), RP_ERROR_UNAVAILABLE);
    FAILED(RP_ERROR_UNAVAILABLE, "the backward of op `quiet_op` returned RP_ERROR_UNAVAILABLE");
}

/* Factors and exponents at the end of 64 bits: less one, and negated, they are floats. */
static void numbers_at_the_end(void **state) {
    (void)state;
    rp_tensor *a = LEAF(1), *b = LEAF(2);
    ok(rp_backward(sum(rp_sub(a, b, rp_i64(INT64_MIN))), NULL, NULL));
    EQUAL(rp_grad_of(b), 0x1p63);
    rp_tensor *x = LEAF(2, 1);
    ok(rp_backward(sum(rp_pow_scalar(x, rp_i64(INT64_MIN))), NULL, NULL));
    EQUAL(rp_grad_of(x), 0, -0x1p63);
}

/* ---------------------------------------------------------------- recomputation */

typedef struct block {
    rp_tensor *w;
    int runs;
} block;

static void block_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    block *b = ctx;
    b->runs++;
    rp_tensor *h = rp_tanh(rp_mul(in[0], b->w));
    h = rp_dropout(rp_mul(h, h), 0.5, true, NULL);
    out[0] = rp_mul(rp_exp(h), rp_sin(rp_add(h, in[0], rp_i64(1))));
}

static void nest_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *first = rp_sin(rp_mul(in[0], in[0])), *middle;
    ok(rp__checkpoint_run(NULL, (rp_fn){block_body, ctx, 0, "block"}, NULL, &first, n_in, &middle, 1));
    out[0] = rp_mul(middle, first);
    (void)n_out;
}

static void run_block(rp_body *body, bool checkpoint, block *b, rp_tensor *x, rp_tensor **gx, rp_tensor **gw,
                      rp_tensor **ggx) {
    rp_tensor *out, *g[2];
    ok(rp_manual_seed(3));
    b->runs = 0;
    if (checkpoint)
        ok(rp__checkpoint_run(NULL, (rp_fn){body, b, sizeof *b, "block"}, NULL, &x, 1, &out, 1));
    else
        body(b, &x, 1, &out, 1);
    rp_tensor *next =
        rp_rand(RP_DIMS(1), RP_F64, NULL); /* the generator goes on from here, also after a recomputation */
    rp_tensor *y = sum(rp_mul(out, next));
    ok(rp_grad(&y, 1, (rp_tensor *[]){x, b->w}, 2, NULL, CREATE, g));
    *gx = g[0];
    *gw = g[1];
    rp_tensor *s = sum(add(rp_mul(g[0], g[0]), g[1]));
    ok(rp_grad(&s, 1, &x, 1, NULL, NULL, ggx));
    *ggx = rp_mul(*ggx, rp_rand(RP_DIMS(1), RP_F64, NULL));
}

static void same(rp_tensor *a, rp_tensor *b) {
    double x[8], y[8];
    size_t bytes = (size_t)rp_numel(a) * sizeof *x;
    ok(rp_to_host(a, x, bytes));
    ok(rp_to_host(b, y, bytes));
    assert_memory_equal(x, y, bytes);
}

static void recomputation(void **state) {
    (void)state;
    rp_tensor *x = LEAF(0.1, -0.4, 0.7, 1.1), *w = LEAF(0.3, 0.8, -1.2, 0.5), *want[3], *have[3];
    block b = {.w = w};
    run_block(block_body, false, &b, x, &want[0], &want[1], &want[2]);
    assert_int_equal(b.runs, 1);
    run_block(block_body, true, &b, x, &have[0], &have[1], &have[2]);
    assert_int_equal(b.runs, 2);
    for (int i = 0; i < 3; i++) same(want[i], have[i]);
    run_block(nest_body, false, &b, x, &want[0], &want[1], &want[2]);
    run_block(nest_body, true, &b, x, &have[0], &have[1], &have[2]);
    for (int i = 0; i < 3; i++) same(want[i], have[i]);
    /* An argument that was changed meanwhile is found out. */
    rp_tensor *in = rp_mul_scalar(x, rp_i64(1)), *out;
    ok(rp__checkpoint_run(NULL, (rp_fn){block_body, &b, sizeof b, "block"}, NULL, &in, 1, &out, 1));
    rp_add_scalar_(in, rp_i64(1));
    assert_int_equal(rp_backward(sum(out), NULL, NULL), RP_ERROR_VERSION);
    FAILED(RP_ERROR_VERSION, "add_scalar_");
}

static void wavering_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    int *runs = ctx;
    rp_tensor *h = rp_sin(rp_mul_scalar(in[0], rp_i64(2)));
    out[0] = ++*runs > 1 ? rp_mul(h, h) : h;
}
static void recomputation_must_repeat(void **state) {
    (void)state;
    int runs = 0;
    rp_tensor *x = LEAF(1), *out;
    ok(rp__checkpoint_run(NULL, (rp_fn){wavering_body, &runs, sizeof runs, "wavering"}, NULL, &x, 1, &out, 1));
    assert_int_equal(rp_backward(out, NULL, NULL), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "must do the same both times");
}

typedef struct reader { /* reads `other` from outside; `count` is its own to write */
    rp_tensor *other, *count;
} reader;
static void reader_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const reader *r = ctx;
    (void)n_in, (void)n_out;
    bool grad = rp_set_grad_enabled(false);
    rp_add_scalar_(r->count, rp_i64(1));
    rp_set_grad_enabled(grad);
    rp_tensor *made = rp_mul_scalar(in[0], rp_i64(3));
    rp_sin_(made);
    out[0] = rp_mul(rp_tanh(rp_add(rp_view(r->other, RP_DIMS(2)), made, rp_i64(1))), r->count);
}
static void reader_around(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    ok(rp__checkpoint_run(NULL, (rp_fn){reader_body, ctx, sizeof(reader), "reader"}, NULL, in, n_in, out, n_out));
    out[0] = rp_sin(out[0]);
}

/* The second run would read the new value: the gradient of another function. */
static void recomputation_reads_what_was(void **state) {
    (void)state;
    for (int nested = 0; nested < 2; nested++) {
        rp_fn fn = {nested ? reader_around : reader_body, NULL, sizeof(reader), "reader"};
        rp_tensor *x = LEAF(0.5, 2), *w = LEAF(1, 2), *out;
        reader r = {rp_mul_scalar(w, rp_i64(2)), VEC(1)};
        fn.ctx = &r;
        ok(rp__checkpoint_run(NULL, fn, NULL, &x, 1, &out, 1));
        ok(rp_backward(sum(out), NULL, NULL));
        ok(rp__checkpoint_run(NULL, fn, NULL, &x, 1, &out, 1));
        rp_mul_scalar_(r.other, rp_i64(2));
        assert_int_equal(rp_backward(sum(out), NULL, NULL), RP_ERROR_VERSION);
        FAILED(RP_ERROR_VERSION, "must run again for a gradient, but a tensor that it reads from outside");
    }
}

/* ---------------------------------------------------------------- long chains */

/* A chain of n nodes, run backward; the result that keeps it, retained. */
static rp_tensor *chain(int64_t n) {
    rp_scope outer = rp_scope_begin();
    rp_tensor *x = LEAF(1), *y = rp_mul_scalar(x, rp_i64(1));
    for (int64_t i = 0; i < n; i++) {
        rp_scope inner = rp_scope_begin();
        y = i % 2 ? rp_sin(y) : rp_view(y, RP_DIMS(1));
        rp_scope_end(inner, &y, 1);
    }
    ok(rp_backward(y, NULL, RETAIN));
    rp_tensor *g = rp_grad_of(x);
    assert_non_null(g);
    double value;
    ok(rp_to_host(g, &value, sizeof value));
    assert_true(isfinite(value) && value > 0);
    rp_retain(y);
    ok(rp_scope_end(outer, NULL, 0));
    return y;
}

static void *free_chain(void *y) {
    rp_release(y);
    return NULL;
}

static void *build_chain(void *n) {
    rp_release(chain(*(int64_t *)n));
    return NULL;
}

static void in_thread(size_t stack, void *(*run)(void *), void *ctx) {
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, stack), 0);
    assert_int_equal(pthread_create(&thread, &attributes, run, ctx), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}

#ifndef __has_feature
#define __has_feature(name) 0
#endif
static void million_nodes(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || __has_feature(thread_sanitizer) ||                \
    __has_feature(address_sanitizer)
    const int64_t slower = 20; /* and larger frames */
#else
    const int64_t slower = 1;
#endif
    int64_t n = 1000000 / slower;
    const size_t small = (slower > 1 ? 1024 : 256) * 1024;
    rp_memory_stats before = {.struct_size = sizeof before}, after = before;
    ok(rp_memory_stats_get(rp_cpu(), &before));
    in_thread(small, free_chain, chain(n)); /* recursion of any depth would show */
    ok(rp_memory_stats_get(rp_cpu(), &after));
    assert_int_equal(after.live_tensors, before.live_tensors);
    assert_int_equal(after.allocated, before.allocated);
    uint64_t blocks = rp__alloc_live(); /* slabs of handles stay for the next chain */
    in_thread(small, free_chain, chain(n / 2));
    assert_true(rp__alloc_live() < blocks + 100);
    /* Backward runs kernels, which want room of their own on the stack; the chain still needs none. */
    n /= 10;
    in_thread(4 * small, build_chain, &n);
}

/* ---------------------------------------------------------------- streams, ops without a derivative */

static void backward_on_the_forwards_stream(void **state) {
    (void)state;
    rp_stream *main_stream = rp_current_stream(rp_cpu()), *side = rp_stream_new(rp_cpu());
    rp_tensor *x = LEAF(1, 2), *w = LEAF(3, 4);
    for (int round = 0; round < 3; round++) { /* accumulation across streams too */
        rp_tensor *h = rp_mul(x, w);          /* on the main stream */
        rp_event *ready = rp_event_new(rp_cpu(), false);
        ok(rp_event_record(ready, main_stream));
        ok(rp_stream_wait_event(side, ready));
        ok(rp_set_current_stream(side));
        rp_tensor *y = sum(rp_mul(h, h)); /* on the other */
        ok(rp_set_current_stream(main_stream));
        ok(rp_backward(y, NULL, NULL));
        rp_event_release(ready);
        assert_ptr_equal(rp_current_stream(rp_cpu()), main_stream);
    }
    EQUAL(rp_grad_of(x), 3 * 2 * 9, 3 * 2 * 2 * 16);
    EQUAL(rp_grad_of(w), 3 * 2 * 3, 3 * 2 * 4 * 4);
    rp_stream_release(side);
}

static rp_status twice_on_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                              rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                              size_t n_attrs) {
    (void)ctx, (void)n_in, (void)n_out, (void)out_tensors, (void)attrs, (void)n_attrs;
    const double *a = in[0];
    double *b = out[0];
    for (int64_t i = 0; i < rp_numel(in_tensors[0]); i++) b[i] = 2 * a[i];
    return RP_OK;
}

static void ops_without_a_derivative(void **state) {
    (void)state;
    ok(rp_op_register(RP_OPTIONS(rp_op_descriptor, .schema = "autograd_test_twice(Tensor self) -> Tensor",
                                 .doc = "2 self", .cpu = twice_on_cpu)));
    rp_tensor *x = LEAF(1, 2), *y;
    ok(rp_op_call("autograd_test_twice", &x, 1, NULL, 0, &y, 1));
    EQUAL(y, 2, 4);
    assert_int_not_equal(rp_backward(sum(y), NULL, NULL), RP_OK); /* asked for, it is an error and not a silent zero */
    FAILED(RP_ERROR_INVALID_ARGUMENT, "`autograd_test_twice`");
    /* Not asked for, it is none. */
    rp_tensor *z = sum(add(rp_mul(x, x), rp_detach(y)));
    ok(rp_backward(z, NULL, NULL));
    EQUAL(rp_grad_of(x), 2, 4);
}

/* ---------------------------------------------------------------- threads */

typedef struct worker {
    rp_tensor *w; /* a leaf that all threads use */
    double value, result;
} worker;

static void *work(void *ctx) {
    worker *k = ctx;
    rp_scope s = rp_scope_begin();
    for (int i = 0; i < 50; i++) {
        rp_tensor *x = leaf(VEC(k->value, 2 * k->value));
        rp_tensor *y = sum(rp_mul(rp_sin(rp_mul(x, k->w)), x));
        if (rp_backward(y, NULL, NULL) != RP_OK) return NULL;
        rp_tensor *g = rp_grad_of(x);
        k->result = rp_item_f64(rp_select(g, 0, 0));
    }
    rp_scope_end(s, NULL, 0);
    return ctx;
}

static void two_threads(void **state) {
    (void)state;
    rp_tensor *w = LEAF(0.5, 0.25);
    worker k[2] = {{.w = w, .value = 1}, {.w = w, .value = 3}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&thread[i], NULL, work, &k[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *result;
        assert_int_equal(pthread_join(thread[i], &result), 0);
        assert_non_null(result);
        assert_true(fabs(k[i].result - (sin(0.5 * k[i].value) + 0.5 * k[i].value * cos(0.5 * k[i].value))) < 1e-12);
    }
    double want = 50 * (cos(0.5) + 9 * cos(1.5));
    double have[2];
    ok(rp_to_host(rp_grad_of(w), have, sizeof have));
    assert_true(fabs(have[0] - want) < 1e-9);
}

/* ---------------------------------------------------------------- out of memory */

static rp_status small_step(rp_tensor *w, rp_tensor *b) {
    rp_scope s = rp_scope_begin();
    rp_status status = rp_error_status();
    if (status != RP_OK) return status; /* without a scope all would stay in the thread's root scope */
    rp_tensor *x = VEC(1, -2), *h = rp_mul_scalar(rp_tanh(add(rp_mul(x, w), b)), rp_i64(2));
    rp_mul_(rp_select(h, 0, 0), rp_select(b, 0, 1));
    rp_tensor *y = sum(rp_mul(h, rp_exp(h))), *g;
    status = rp_grad(&y, 1, &w, 1, NULL, CREATE, &g);
    if (status == RP_OK) status = rp_backward(add(y, sum(rp_mul(g, g))), NULL, NULL);
    if (status == RP_OK && (rp_failed() || !rp_grad_of(w))) status = RP_ERROR_INTERNAL;
    (void)rp_set_grad(w, NULL);
    (void)rp_set_grad(b, NULL);
    rp_scope_end(s, NULL, 0);
    return status;
}

static void every_allocation_fails_once(void **state) {
    (void)state;
    rp_tensor *w = LEAF(0.5, 1.5), *b = LEAF(0.1, 0.2);
    for (int i = 0; i < 3; i++) ok(small_step(w, b)); /* caches fill */
    uint64_t live = rp__alloc_live();
    uint64_t start = rp__alloc_fail_at(0);
    ok(small_step(w, b));
    uint64_t count = rp__alloc_fail_at(0) - start, failures = 0;
    assert_true(count > 20);
    assert_int_equal(rp__alloc_live(), live);
    for (uint64_t n = 1; n <= count; n++) {
        (void)rp__alloc_fail_at(n);
        rp_status status = small_step(w, b);
        (void)rp__alloc_fail_at(0);
        if (rp_failed()) {
            failures++;
            if (rp_error_status() != RP_ERROR_OUT_OF_MEMORY)
                fail_msg("allocation %llu: %s", (unsigned long long)n, rp_error_message());
            (void)rp_error_take();
        } else {
            assert_int_equal(status, RP_OK);
        }
        ok(small_step(w, b));
        if (rp__alloc_live() > live + 4) /* a cache may have grown by a step that was cut short */
            fail_msg("allocation %llu leaks: %llu blocks instead of %llu", (unsigned long long)n,
                     (unsigned long long)rp__alloc_live(), (unsigned long long)live);
    }
    assert_true(failures > count / 2);
    assert_true(rp__alloc_live() <= live + 4);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(leaves_and_results),
        TEST(likes_have_no_history),
        TEST(gradients_add_up),
        TEST(shared_gradients_are_not_written),
        TEST(gradient_layout_is_the_leafs),
        TEST(broadcast_dtypes_and_empty),
        TEST(kinks),
        TEST(second_backward),
        TEST(roots_are_checked),
        TEST(grad_leaves_grad_alone),
        TEST(grad_computes_only_what_is_asked),
        TEST(higher_derivatives),
        TEST(modes),
        TEST(inplace_on_results),
        TEST(version_errors_name_the_line),
        TEST(writes_through_views),
        TEST(views_made_without_a_tape),
        TEST(no_cycles_are_left),
        TEST(hooks),
        TEST(retained_gradients),
        TEST(custom_functions),
        TEST(custom_gradients_must_fit),
        TEST(statuses_without_an_error),
        TEST(numbers_at_the_end),
        TEST(recomputation),
        TEST(recomputation_must_repeat),
        TEST(recomputation_reads_what_was),
        TEST(million_nodes),
        TEST(backward_on_the_forwards_stream),
        TEST(ops_without_a_derivative),
        TEST(two_threads),
        TEST(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
