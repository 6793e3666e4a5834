/* The tape: accumulation, retain_graph, create_graph, grad modes, versions and views, long chains, threads, allocation
   failure. What programs hang into it (hooks, custom functions, checkpoints) is in test_autograd_hooks.c. */
/* ctest: labels=threads timeout=300 cost=10 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "support/slow.h"
#include "support/tape.h"

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
    assert_int_equal(rp_set_requires_grad(rp_arange(rp_i64(0), rp_i64(3)), true), RP_ERROR_DTYPE);
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
    rp_tensor *g = NULL, *loss = sum(rp_mul(rp_add(rp_ones_like(y), y), y));
    ok(rp_grad(&loss, 1, &x, 1, NULL, NULL, &g));
    EQUAL(g, exp(1) * (1 + 2 * exp(1)), exp(2) * (1 + 2 * exp(2)));
}

/* One array may be the list of gradients of outputs, or of outputs, and that of results; results may be more than they are. */
static void grad_over_its_lists(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *y = LEAF(3, 5), *product = rp_mul(x, y);
    rp_tensor *list[2] = {VEC(10, 100), NULL}, *leaves[] = {x, y};
    ok(rp_grad(&product, 1, leaves, 2, list, RP_OPTIONS(rp_backward_options, .retain_graph = true), list));
    EQUAL(list[0], 30, 500);
    EQUAL(list[1], 10, 200);
    rp_tensor *both[3] = {product, rp_exp(x), NULL}, *seeds[] = {VEC(1, 1), VEC(0, 0)};
    ok(rp_grad(both, 2, leaves, 2, seeds, RP_OPTIONS(rp_backward_options, .retain_graph = true), both));
    EQUAL(both[0], 3, 5);
    EQUAL(both[1], 1, 2);
    rp_tensor *shifted[3] = {NULL, VEC(2, 2), NULL};
    ok(rp_grad(&product, 1, leaves, 2, shifted + 1, NULL, shifted));
    EQUAL(shifted[0], 6, 10);
    EQUAL(shifted[1], 2, 4);
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
    rp_tensor *x = leaf(rp_to_dtype(VEC(1, 2, 3), RP_F32)), *s = leaf(rp_sum(VEC(2)));
    x = leaf(rp_detach(x));
    s = leaf(rp_detach(s));
    rp_tensor *y = rp_mul(rp_to_dtype(x, RP_F64), s);
    ok(rp_backward(sum(y), NULL, NULL));
    assert_int_equal(rp_dtype_of(rp_grad_of(x)), RP_F32);
    EQUAL(rp_grad_of(s), 6);
    rp_tensor *e = leaf(rp_zeros(RP_DIMS(0, 3), RP_OPTIONS(rp_zeros_options, .dtype = RP_F64)));
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
    y = sum(rp_clamp(x, rp_i64(-1), rp_i64(2)));
    ok(rp_grad(&y, 1, &x, 1, NULL, NULL, &g));
    EQUAL(g, 0, 1, 0);
    y = sum(rp_clamp_tensor(a, b));
    ok(rp_grad(&y, 1, (rp_tensor *[]){a, b}, 2, NULL, NULL, gs));
    EQUAL(gs[0], 0.5, 0, 1);
    EQUAL(gs[1], 0.5, 1, 0);
    rp_tensor *three[] = {LEAF(0, 1, 2, 3, 1), LEAF(0, 0, 0, 0, 1), LEAF(2, 2, 2, 2, 1)}, *slopes[3];
    y = sum(rp_clamp_tensor(three[0], three[1], three[2]));
    ok(rp_grad(&y, 1, three, 3, NULL, NULL, slopes));
    EQUAL(slopes[0], 0.5, 1, 0.5, 0, 1);
    EQUAL(slopes[1], 0.5, 0, 0, 0, 0);
    EQUAL(slopes[2], 0, 0, 0.5, 1, 0);
    /* and of NaN, and bounds that are equal or the other way round */
    rp_tensor *hard[] = {LEAF(NAN, -1, 0, 0, 0, 0, 0, -1, 1), LEAF(0, 0, 0, NAN, NAN, 1, 0, 0, 0),
                         LEAF(-1, NAN, NAN, -1, 1, -1, 0, 0, 0)};
    y = sum(rp_clamp_tensor(hard[0], hard[1], hard[2]));
    ok(rp_grad(&y, 1, hard, 3, NULL, NULL, slopes));
    EQUAL(slopes[0], 1, 0, 1, 0, 1, 0, 1, 0, 0);
    EQUAL(slopes[1], 0, 0, 0, 0, 0, 0, 0, 1, 0);
    EQUAL(slopes[2], 1, 0, 0, 0, 0, 1, 0, 0, 1);
    y = sum(rp_fmax(a, b));
    ok(rp_grad(&y, 1, (rp_tensor *[]){a, b}, 2, NULL, NULL, gs));
    EQUAL(gs[0], 0.5, 0, 1);
    EQUAL(gs[1], 0.5, 1, 0);
    y = sum(rp_fmin(a, b));
    ok(rp_grad(&y, 1, (rp_tensor *[]){a, b}, 2, NULL, NULL, gs));
    EQUAL(gs[0], 0.5, 1, 0);
    EQUAL(gs[1], 0.5, 0, 1);
    rp_tensor *small = LEAF(0, 1e-170, -1e-200);
    y = sum(rp_sinc(small));
    ok(rp_grad(&y, 1, &small, 1, NULL, NULL, &g));
    EQUAL(g, 0, 0, 0);
}

/* At NaN, and beyond where there is a result, PyTorch's kernels give these. */
static void slopes_of_nan(void **state) {
    (void)state;
    rp_tensor *x = LEAF(NAN), *g;
    rp_tensor *flat[] = {rp_hardtanh(x),
                         rp_relu6(x),
                         rp_hardshrink(x),
                         rp_softshrink(x),
                         rp_hardsigmoid(x),
                         rp_logit(x, rp_f64(0.25)),
                         rp_clamp(x, rp_i64(-1), rp_i64(1))};
    for (size_t k = 0; k < sizeof flat / sizeof *flat; k++) {
        rp_tensor *y = sum(flat[k]);
        ok(rp_grad(&y, 1, &x, 1, NULL, NULL, &g));
        EQUAL(g, 0);
    }
    rp_tensor *y = sum(rp_hardswish(x));
    ok(rp_grad(&y, 1, &x, 1, NULL, NULL, &g));
    assert_true(isnan(rp_item_f64(g)));
    rp_tensor *below = LEAF(-1.25);
    y = sum(rp_acosh(below));
    ok(rp_grad(&y, 1, &below, 1, NULL, NULL, &g));
    EQUAL(g, 1 / 0.75);
    rp_tensor *least = LEAF(0x1p-1074); /* half of it is 0 */
    y = sum(rp_special_i1(least));
    ok(rp_grad(&y, 1, &least, 1, NULL, NULL, &g));
    EQUAL(g, 0.5);
    rp_tensor *zero = LEAF(-0.0); /* and 0 is 0: the pole's side is that of 0 */
    y = sum(rp_mvlgamma(zero, 2));
    ok(rp_grad(&y, 1, &zero, 1, NULL, NULL, &g));
    assert_true(rp_item_f64(g) == -INFINITY);
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
    ok(rp_grad((rp_tensor *[]){y, z}, 2, (rp_tensor *[]){x, h, x}, 3, (rp_tensor *[]){NULL, rp_sum(VEC(10))}, RETAIN,
               g));
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
    /* A product of which three factors are zero: the third derivative is the first that is not. */
    rp_tensor *f = LEAF(0, 5, 0, 0), *v = VEC(1, 10, 100, 1000);
    y = rp_prod(f);
    for (int order = 0; order < 3; order++) {
        ok(rp_grad(&y, 1, &f, 1, NULL, CREATE, &g1));
        if (order < 2) EQUAL(g1, 0, 0, 0, 0);
        y = sum(rp_mul(g1, v));
    }
    EQUAL(g1, 5 * 2 * 100 * 1000., 0, 5 * 2 * 1000., 5 * 2 * 100.);
    for (int zeros = 0; zeros < 3; zeros++) { /* second derivatives beside none, one and two zeros */
        const double p = zeros > 0 ? 0 : 3, q = zeros > 1 ? 0 : 5;
        f = LEAF(p, q, 2), v = VEC(1, 10, 100);
        y = rp_prod(f, 0);
        ok(rp_grad(&y, 1, &f, 1, NULL, CREATE, &g1));
        EQUAL(g1, q * 2, p * 2, p * q);
        y = sum(rp_mul(g1, v));
        ok(rp_grad(&y, 1, &f, 1, NULL, NULL, &g2));
        EQUAL(g2, 10 * 2 + 100 * q, 2 + 100 * p, q + 10 * p);
    }
    /* Partial products leave the range of float32, the whole does not. */
    f = LEAF(0x1p100, 0x1p-120, 0x1p100, 0x1p-80);
    y = rp_prod(f);
    EQUAL(y, 1);
    ok(rp_grad(&y, 1, &f, 1, NULL, NULL, &g1));
    EQUAL(g1, 0x1p-100, 0x1p120, 0x1p-100, 0x1p80);
    EQUAL(rp_cumprod(VEC(0x1p100, 0x1p100, 0x1p-120, 0x1p-80), 0), 0x1p100, INFINITY, 0x1p80, 1);
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
    rp_sub_(x, VEC(1, 1));
    rp_set_grad_enabled(true);
    EQUAL(x, 0, 1);
    assert_true(rp_is_leaf(x));
    rp_tensor *bad = rp_sub_(x, VEC(1, 1));
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
    rp_add_(y, w);
    ok(rp_backward(sum(y), NULL, NULL));
    EQUAL(rp_grad_of(x), 6, 8);
    EQUAL(rp_grad_of(w), 3, 5);
    /* A plain tensor that receives a result becomes one. */
    rp_tensor *buffer = rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .dtype = RP_F64));
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
    rp_tensor *plain = rp_ones(RP_DIMS(2, 3), RP_OPTIONS(rp_ones_options, .dtype = RP_F64));
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

/* A view may be made a leaf. A view of it has the leaf's history until the memory is written through what both lie in: from
   then on it has that of the base, which has none. It goes on requiring a gradient and passes none on (PyTorch). */
static void written_behind_a_leaf(void **state) {
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        rp_tensor *base = VEC(0.5, 1, 2), *g = NULL;
        rp_tensor *part = leaf(whole ? rp_view(base, RP_DIMS(3)) : rp_slice(base, 0, 0, 2, 1));
        rp_tensor *v = rp_unsqueeze(part, 0), *before = rp_mul_scalar(v, rp_i64(3));
        rp_tanh_(base);
        assert_true(rp_requires_grad(v) && !rp_is_leaf(v));
        ok(rp_backward(sum(v), NULL, NULL));
        ok(rp_backward(v, rp_ones_like(v), NULL));
        assert_null(rp_grad_of(part));
        rp_tensor *y = sum(rp_mul(v, v));
        ok(rp_grad(&y, 1, &part, 1, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true), &g));
        assert_null(g);
        ok(rp_backward(sum(before), NULL, NULL)); /* was made of v as it was */
        if (whole)
            EQUAL(rp_grad_of(part), 3, 3, 3);
        else
            EQUAL(rp_grad_of(part), 3, 3);
        rp_tensor *fresh = rp_unsqueeze(part, 0); /* of the leaf as it is */
        ok(rp_set_grad(part, NULL));
        ok(rp_backward(sum(fresh), NULL, NULL));
        if (whole)
            EQUAL(rp_grad_of(part), 1, 1, 1);
        else
            EQUAL(rp_grad_of(part), 1, 1);
    }
    /* A detached tensor is no such base: what is written through it leaves the history alone. */
    rp_tensor *other = VEC(0.5, 1), *part = leaf(rp_detach(other)), *v = rp_unsqueeze(part, 0);
    rp_tanh_(other);
    ok(rp_backward(sum(v), NULL, NULL));
    EQUAL(rp_grad_of(part), 1, 1);
}

/* The backward in two halves, over an intermediate: the first does not run what made it, and frees nothing of it. */
static void halves_of_a_backward(void **state) {
    (void)state;
    rp_tensor *x = LEAF(2, 3), *w = LEAF(5, 7), *g[2];
    rp_tensor *h = rp_mul(x, w), *y = sum(rp_mul(h, h));
    ok(rp_grad(&y, 1, &h, 1, NULL, NULL, g));
    EQUAL(g[0], 20, 42);
    ok(rp_backward(h, g[0], NULL));
    EQUAL(rp_grad_of(x), 100, 294);
    EQUAL(rp_grad_of(w), 40, 126);
    assert_int_equal(rp_backward(h, g[0], NULL), RP_ERROR_STATE); /* this one ran it */
    FAILED(RP_ERROR_STATE, "a second time");
    /* What lies between two inputs runs, and is freed; what makes the last of them is not. */
    rp_tensor *a = rp_mul(x, w), *b = rp_mul(a, a);
    y = sum(rp_mul(b, b));
    ok(rp_grad(&y, 1, (rp_tensor *[]){b, a}, 2, NULL, NULL, g));
    EQUAL(g[1], 4 * 1000, 4 * 9261);
    assert_int_equal(rp_backward(b, g[0], NULL), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "a second time");
    ok(rp_set_grad(x, NULL));
    ok(rp_backward(a, g[1], NULL));
    EQUAL(rp_grad_of(x), 20000, 4 * 9261 * 7);
    ok(rp_set_grad(x, NULL));
    ok(rp_set_grad(w, NULL));
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
    rp_tensor *plain = rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .dtype = RP_F64));
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
    for (int round = 0; round < 12; round++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *x = LEAF(2), *buffer = rp_ones(RP_DIMS(5), RP_OPTIONS(rp_ones_options, .dtype = RP_F64));
        for (int64_t i = 1; i < 5; i++)
            rp_copy_(rp_select(buffer, 0, i), rp_mul(rp_clone(rp_select(buffer, 0, i - 1)), rp_select(x, 0, 0)));
        ok(rp_backward(rp_select(buffer, 0, 4), NULL, NULL));
        EQUAL(rp_grad_of(x), 32);
        rp_tensor *self = rp_mul_scalar(x, rp_i64(1)), *z = rp_mul(self, self);
        rp_add_(self, z);                                          /* self now comes from z, which saved self */
        rp_mul_(rp_select(buffer, 0, 0), rp_select(buffer, 0, 1)); /* version error if asked, no leak */
        ok(rp_scope_end(inner, NULL, 0));
        if (round < 4) before = rp__alloc_live(); /* kernels and calls that repeat are kept by then */
    }
    assert_int_equal(rp__alloc_live(), before);
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

static void million_nodes(void **state) {
    (void)state;
    const int64_t slower = SLOW_BUILD ? 20 : 1; /* and larger frames */
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
        TEST(grad_over_its_lists),
        TEST(shared_gradients_are_not_written),
        TEST(gradient_layout_is_the_leafs),
        TEST(broadcast_dtypes_and_empty),
        TEST(kinks),
        TEST(slopes_of_nan),
        TEST(second_backward),
        TEST(roots_are_checked),
        TEST(grad_leaves_grad_alone),
        TEST(grad_computes_only_what_is_asked),
        TEST(higher_derivatives),
        TEST(modes),
        TEST(inplace_on_results),
        TEST(version_errors_name_the_line),
        TEST(writes_through_views),
        TEST(written_behind_a_leaf),
        TEST(halves_of_a_backward),
        TEST(views_made_without_a_tape),
        TEST(no_cycles_are_left),
        TEST(million_nodes),
        TEST(backward_on_the_forwards_stream),
        TEST(ops_without_a_derivative),
        TEST(two_threads),
        TEST(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
