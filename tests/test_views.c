/* Views whose rows say nothing but their rule: what is derived of the map (memory, gradient, writes through the view, graphs) against
   the same done by hand, eagerly and compiled; parts of a dim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "support/check.h"

static int begin(void **state) {
    (void)state;
    return rp_failed();
}

typedef rp_tensor *make_view(rp_tensor *x);
static rp_tensor *whole(rp_tensor *x) { return x; }
static rp_tensor *diagonal(rp_tensor *x) { return rp_diagonal(x, 1, 0, 2); }
static rp_tensor *below_diagonal(rp_tensor *x) { return rp_diagonal(x, -1, -1, 0); }
static rp_tensor *windows(rp_tensor *x) { return rp_unfold(x, 1, 2, 3); }
static rp_tensor *close_windows(rp_tensor *x) { return rp_unfold(x, 1, 3, 1); }
static rp_tensor *moved(rp_tensor *x) { return rp_movedim(x, RP_DIMS(0), RP_DIMS(-1)); }
static rp_tensor *narrowed(rp_tensor *x) { return rp_narrow(x, 1, 1, 3); }
static rp_tensor *squeezed(rp_tensor *x) { return rp_squeeze_dims(rp_slice(x, 2, 1, 2, 1), RP_DIMS(1, 2)); }
static rp_tensor *split_off(rp_tensor *x) {
    rp_tensor *out[3];
    rp_split(x, 2, 1, out, 3);
    return out[1];
}
static rp_tensor *taken_out(rp_tensor *x) {
    rp_tensor *out[4];
    rp_unbind(x, -1, out, 4);
    return out[2];
}
static rp_tensor *of_views(rp_tensor *x) { return rp_diagonal(rp_unfold(rp_transpose(x, 0, 1), 0, 2, 2), 0, 0, 3); }
static rp_tensor *folded(rp_tensor *x) { return rp_flatten(rp_unflatten(rp_select(x, 2, 1), 0, RP_DIMS(1, 3)), 1, 2); }

static const struct {
    const char *name;
    make_view *of;
    bool overlaps;
} views[] = {
    {"whole", whole, false},         {"diagonal", diagonal, false},          {"below_diagonal", below_diagonal, false},
    {"windows", windows, false},     {"close_windows", close_windows, true}, {"moved", moved, false},
    {"narrowed", narrowed, false},   {"squeezed", squeezed, false},          {"split_off", split_off, false},
    {"taken_out", taken_out, false}, {"of_views", of_views, false},          {"folded", folded, false}};
enum { VIEWS = sizeof views / sizeof *views, ROWS = 3, COLUMNS = 5, PLANES = 4 };

static rp_tensor *input(unsigned salt) {
    float v[ROWS * COLUMNS * PLANES];
    for (unsigned i = 0; i < ROWS * COLUMNS * PLANES; i++) v[i] = (float)((i * 7 + salt * 5) % 23) / 8 - 1;
    return rp_from_data(v, RP_DIMS(ROWS, COLUMNS, PLANES), RP_F32);
}

static void equal(rp_tensor *a, rp_tensor *b, const char *name, const char *what) {
    char x[4096], y[4096];
    if (rp_failed()) fail_msg("%s: %s: %s", name, what, rp_error_message());
    assert_int_equal(rp_ndim(a), rp_ndim(b));
    for (size_t d = 0; d < rp_ndim(a); d++) {
        if (rp_size(a, (int64_t)d) != rp_size(b, (int64_t)d)) fail_msg("%s: %s: sizes differ", name, what);
        if (rp_stride(a, (int64_t)d) != rp_stride(b, (int64_t)d)) fail_msg("%s: %s: strides differ", name, what);
    }
    size_t bytes = (size_t)rp_numel(a) * 4;
    assert_int_equal(rp_to_host(a, x, bytes), RP_OK);
    assert_int_equal(rp_to_host(b, y, bytes), RP_OK);
    if (memcmp(x, y, bytes) != 0) fail_msg("%s: %s: values differ", name, what);
}

/* ctx: which view. in: x, which carries a gradient, and a factor of the view's size. */
static void reads(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *v = views[*(unsigned *)ctx].of(rp_sin(in[0]));
    out[0] = rp_mul(rp_mul(v, v), in[1]);
}
static void writes(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *x = rp_sin(in[0]), *v = views[*(unsigned *)ctx].of(x);
    rp_mul_(v, in[1]);
    out[0] = rp_exp(x);
    out[1] = rp_mul(v, v);
}
static void writes_argument(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *v = views[*(unsigned *)ctx].of(in[0]);
    rp_add_(v, in[1]);
    out[0] = rp_cos(in[0]);
}

static rp_tensor *leaf(unsigned salt) {
    rp_tensor *x = input(salt);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    return x;
}
static rp_tensor *factor_of(unsigned k) {
    rp_tensor *v = views[k].of(input(0));
    return rp_add_scalar(rp_cos(v), rp_f64(1.5));
}

/* Values and gradients of `body`, called plainly and compiled, the second call of which is the one that was built. */
static void compare(rp_body *body, unsigned k, size_t n_out) {
    rp_compiled *f = rp_compile((rp_fn){body, &k, sizeof k, views[k].name},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (unsigned call = 0; call < 2; call++) {
        rp_tensor *factor = factor_of(k), *x[2] = {leaf(call), leaf(call)}, *out[2][2], *grad[2];
        body(&k, (rp_tensor *[]){x[0], factor}, 2, out[0], n_out);
        rp_call(f, (rp_tensor *[]){x[1], factor}, 2, out[1], n_out);
        for (unsigned way = 0; way < 2; way++) {
            rp_tensor *sum = rp_sum(out[way][0]);
            for (size_t i = 1; i < n_out; i++) sum = rp_add(sum, rp_sum(out[way][i]));
            rp_backward(sum, NULL, NULL);
            grad[way] = rp_grad_of(x[way]);
        }
        for (size_t i = 0; i < n_out; i++) equal(out[0][i], out[1][i], views[k].name, "result");
        equal(grad[0], grad[1], views[k].name, "gradient");
    }
    rp_compiled_release(f);
}

static void compiled_as_eager(void **state) {
    (void)state;
    for (unsigned k = 0; k < VIEWS; k++) {
        compare(reads, k, 1);
        if (!views[k].overlaps) compare(writes, k, 2);
    }
}

/* A write through the view of an argument reaches the argument, and nothing beside the view. */
static void arguments(void **state) {
    (void)state;
    for (unsigned k = 0; k < VIEWS; k++) {
        if (views[k].overlaps) continue;
        rp_compiled *f = rp_compile((rp_fn){writes_argument, &k, sizeof k, views[k].name}, NULL);
        for (unsigned call = 0; call < 3; call++) {
            rp_tensor *x[2] = {input(call), input(call)}, *by = factor_of(k), *out[2];
            writes_argument(&k, (rp_tensor *[]){x[0], by}, 2, &out[0], 1);
            rp_call(f, (rp_tensor *[]){x[1], by}, 2, &out[1], 1);
            equal(x[0], x[1], views[k].name, "argument");
            equal(out[0], out[1], views[k].name, "result");
            rp_tensor *moved_by = rp_sub(x[0], input(call));
            double all = rp_item_f64(rp_sum(moved_by)), part = rp_item_f64(rp_sum(by));
            assert_true(all - part < 1e-4 && part - all < 1e-4);
        }
        rp_compiled_release(f);
    }
}

/* Windows that reach into each other: a write through them is the op's own affair, and the gradient of an element is the sum of its
   places. */
static void overlapping(void **state) {
    (void)state;
    unsigned k = 4;
    rp_compiled *f = rp_compile((rp_fn){writes_argument, &k, sizeof k, "overlapping"}, NULL);
    rp_tensor *x = input(0), *y = input(0), *by = factor_of(k), *out[2];
    rp_call(f, (rp_tensor *[]){x, by}, 2, &out[0], 1);
    writes_argument(&k, (rp_tensor *[]){y, by}, 2, &out[1], 1);
    equal(x, y, "close_windows", "argument");
    equal(out[0], out[1], "close_windows", "result");
    rp_compiled_release(f);

    x = leaf(1);
    rp_backward(rp_sum(rp_unfold(x, 1, 3, 1)), NULL, NULL);
    float g[ROWS * COLUMNS * PLANES];
    assert_int_equal(rp_to_host(rp_grad_of(x), g, sizeof g), RP_OK);
    static const float counts[COLUMNS] = {1, 2, 3, 2, 1};
    for (unsigned i = 0; i < ROWS * COLUMNS * PLANES; i++) assert_true(g[i] == counts[i / PLANES % COLUMNS]);
}

/* Windows side by side, that fill a dim or do not: those that do are put side by side, with the signs of zeros, and the others as any windows. */
static void side_by_side(void **state) {
    (void)state;
    static const int64_t size[] = {4, 6, 10};
    for (int64_t dim = 0; dim < 3; dim++) {
        for (int64_t width = 1; width <= size[dim]; width++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *x = rp_randn(size, 3), *grad = NULL;
            rp_set_requires_grad(x, true);
            rp_tensor *y = rp_unfold(x, dim, width, width), *half = rp_randn_like(y);
            rp_tensor *back = rp_where(rp_gt_scalar(half, rp_i64(0)), half, rp_neg(rp_zeros_like(y)));
            rp_grad(&y, 1, &x, 1, &back, NULL, &grad);
            rp_tensor *want = size[dim] % width
                                  ? rp_unfold_backward(back, size, 3, dim, width, width)
                                  : rp_flatten(rp_movedim(back, RP_DIMS(-1), RP_DIMS(dim + 1)), dim, dim + 1);
            want = rp_contiguous(want, NULL);
            grad = rp_contiguous(grad, NULL);
            assert_false(rp_failed());
            assert_memory_equal(rp_data(grad), rp_data(want), 4 * 6 * 10 * sizeof(float));
            rp_scope_end(scope, NULL, 0);
        }
    }
    enum { ROWS_OF = 6, COLUMNS_OF = 10, H = 3, W = 5, AT = ROWS_OF * COLUMNS_OF };
    float in[2 * AT], got[2 * AT];
    for (int k = 0; k < 2 * AT; k++) in[k] = k % 7 ? (float)k : -0.0f;
    rp_tensor *columns = rp_from_data(in, RP_DIMS(1, 2 * H * W, AT / (H * W)), RP_F32);
    rp_tensor *image =
        rp_col2im(columns, RP_DIMS(ROWS_OF, COLUMNS_OF), RP_DIMS(H, W), RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(H, W));
    assert_int_equal(rp_to_host(image, got, sizeof got), RP_OK);
    for (int k = 0; k < 2 * AT; k++) {
        const int c = k / AT, i = k / COLUMNS_OF % ROWS_OF, j = k % COLUMNS_OF;
        const int window = i / H * (COLUMNS_OF / W) + j / W, element = (c * H + i % H) * W + j % W;
        const float want = 0 + in[element * (AT / (H * W)) + window];
        assert_memory_equal(&got[k], &want, sizeof want);
    }
}

/* Strides, as PyTorch gives them. */
static void strides(void **state) {
    (void)state;
    rp_tensor *x = input(0);
    const struct {
        rp_tensor *t;
        size_t n;
        int64_t size[4], stride[4];
    } cases[] = {{rp_diagonal(x, 1, 0, 2), 2, {5, 3}, {4, 21}},
                 {rp_diagonal(x, 7, 0, 2), 2, {5, 0}, {4, 21}},
                 {rp_unfold(x, 1, 2, 3), 4, {3, 2, 4, 2}, {20, 12, 1, 4}},
                 {rp_movedim(x, RP_DIMS(0, 1), RP_DIMS(1, 0)), 3, {5, 3, 4}, {4, 20, 1}},
                 {rp_expand(rp_select(x, 0, 0), RP_DIMS(1, 5, 4)), 3, {1, 5, 4}, {20, 4, 1}},
                 {rp_slice(x, 1, 4, 5, 2), 3, {3, 1, 4}, {20, 8, 1}},
                 {rp_unfold(rp_full(RP_NO_DIMS, rp_f64(1)), 0, 1, 1), 1, {1}, {1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(rp_ndim(cases[i].t), cases[i].n);
        for (size_t d = 0; d < cases[i].n; d++) {
            assert_int_equal(rp_size(cases[i].t, (int64_t)d), cases[i].size[d]);
            assert_int_equal(rp_stride(cases[i].t, (int64_t)d), cases[i].stride[d]);
        }
    }
    assert_false(rp_failed());
}

static void parts(void **state) {
    (void)state;
    rp_tensor *x = input(0), *out[8];
    assert_int_equal(rp_split(x, 2, 1, out, 8), 3);
    assert_int_equal(rp_size(out[2], 1), 1);
    assert_null(out[3]);
    assert_int_equal(rp_chunk(x, 4, 1, out, 4), 3); /* of two: five makes three */
    assert_int_equal(rp_size(out[0], 1), 2);
    assert_int_equal(rp_chunk(x, 3, -1, out, 3), 2);
    assert_int_equal(rp_split_with_sizes(x, RP_DIMS(1, 0, 4), 1, out), 3);
    assert_int_equal(rp_size(out[2], 1), 4);
    equal(rp_cat(out, 3, 1), x, "split_with_sizes", "together");
    assert_int_equal(rp_unbind(x, 0, out, 8), ROWS);
    equal(out[1], rp_select(x, 0, 1), "unbind", "part");
    assert_int_equal(rp_tensor_split(x, 3, 1, out, 8), 3); /* five: 2, 2, 1 */
    assert_int_equal(rp_size(out[1], 1), 2);
    assert_int_equal(rp_size(out[2], 1), 1);
    equal(rp_cat(out, 3, 1), x, "tensor_split", "together");
    assert_int_equal(rp_tensor_split(x, 7, 1, out, 8), 7);
    assert_int_equal(rp_size(out[6], 1), 0);
    rp_tensor *none = rp_zeros(RP_DIMS(2, 0));
    assert_int_equal(rp_split(none, 0, 1, out, 8), 1);
    assert_int_equal(rp_chunk(none, 3, 1, out, 8), 3);
    assert_int_equal(rp_unbind(none, 1, out, 0), 0);
    assert_false(rp_failed());

    assert_int_equal(rp_unbind(x, 1, out, 4), 0); /* five */
    assert_true(rp_is_error(out[3]));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_split(x, 0, 1, out, 8), 0);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_split_with_sizes(x, RP_DIMS(1, 3), 1, out), 0);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_chunk(rp_full(RP_NO_DIMS, rp_f64(1)), 2, 0, out, 8), 0);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
}

/* Several tensors in one size, and grids; the gradient of a vector adds up over the dims that it does not walk. */
static void grids(void **state) {
    (void)state;
    rp_tensor *a = rp_arange(rp_i64(0), rp_i64(3), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32));
    rp_tensor *b = rp_arange(rp_i64(10), rp_i64(12), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
              *out[2];
    assert_int_equal(rp_set_requires_grad(a, true), RP_OK);
    assert_int_equal(rp_meshgrid(RP_TENSORS(a, b), "ij", out), RP_OK);
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < 2; j++) {
            assert_float_equal(rp_item_f64(rp_select(rp_select(out[0], 0, i), 0, j)), (double)i, 0);
            assert_float_equal(rp_item_f64(rp_select(rp_select(out[1], 0, i), 0, j)), (double)(10 + j), 0);
        }
    assert_int_equal(rp_backward(rp_sum(rp_mul(out[0], out[1])), NULL, NULL), RP_OK);
    assert_float_equal(rp_item_f64(rp_select(rp_grad_of(a), 0, 1)), 21, 0);
    assert_int_equal(rp_meshgrid(RP_TENSORS(a, b), "xy", out), RP_OK);
    assert_int_equal(rp_size(out[1], 0), 2);
    assert_int_equal(rp_size(out[1], 1), 3);
    assert_float_equal(rp_item_f64(rp_select(rp_select(out[1], 0, 1), 0, 2)), 11, 0);
    assert_int_equal(rp_broadcast_tensors(RP_TENSORS(rp_unsqueeze(a, 1), b), out), RP_OK);
    assert_int_equal(rp_size(out[0], 1), 2);
    assert_int_equal(rp_size(out[1], 0), 3);
    assert_false(rp_failed());
    assert_int_equal(rp_broadcast_tensors(RP_TENSORS(a, b), out), RP_ERROR_SHAPE);
    assert_true(rp_is_error(out[0]));
    (void)rp_error_take();
    assert_int_equal(rp_meshgrid(RP_TENSORS(a), "xyz", out), RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
}

/* One specialisation for rows of any number: maps hold symbols. */
static void dynamic(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_sin(in[0]);
    rp_add_(rp_unfold(x, 0, 2, 3), rp_full(RP_DIMS(1), rp_f64(0.5)));
    rp_mul_(rp_narrow(x, 0, 1, 2), rp_full(RP_DIMS(1), rp_f64(3)));
    rp_neg_(rp_diagonal(x, 0, 0, 1));
    out[0] = rp_exp(rp_movedim(x, RP_DIMS(0), RP_DIMS(1)));
}

static void sizes(void **state) {
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){dynamic, NULL, 0, "dynamic"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    static const int64_t rows[] = {7, 11, 9, 23};
    for (size_t i = 0; i < 4; i++) {
        rp_tensor *x = rp_rand(RP_DIMS(rows[i], 4), NULL), *want, *got;
        dynamic(NULL, &x, 1, &want, 1);
        rp_call(f, &x, 1, &got, 1);
        if (rp_failed()) fail_msg("%s", rp_error_message());
        char a[512], b[512];
        size_t bytes = (size_t)rp_numel(want) * 4;
        assert_int_equal(rp_to_host(want, a, bytes), RP_OK);
        assert_int_equal(rp_to_host(got, b, bytes), RP_OK);
        assert_memory_equal(a, b, bytes);
    }
    rp_compiled_release(f);
}

/* Every other element of a dim that the calls make shorter, down to nothing: strides are those of eager execution. */
static void every_other(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_neg(rp_slice(in[0], 1, 1, -1, 2));
    out[1] = rp_slice(in[0], 1, 0, INT64_MIN, 2);
}
static void steps_over_few(void **state) {
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){every_other, NULL, 0, "every other"}, NULL);
    static const int64_t columns[] = {7, 9, 2, 1, 3, 0, 1, 5};
    for (size_t i = 0; i < 8; i++) {
        rp_tensor *x = rp_transpose(rp_rand(RP_DIMS(columns[i], 4, 3), NULL), 0, 1), *want[2], *got[2];
        every_other(NULL, &x, 1, want, 2);
        rp_call(f, &x, 1, got, 2);
        if (rp_failed()) fail_msg("%lld columns: %s", (long long)columns[i], rp_error_message());
        for (int k = 0; k < 2; k++)
            for (int64_t d = 0; d < 3; d++) {
                assert_int_equal(rp_size(got[k], d), rp_size(want[k], d));
                if (rp_size(want[k], d) > 1) assert_int_equal(rp_stride(got[k], d), rp_stride(want[k], d));
            }
    }
    rp_compiled_release(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(compiled_as_eager, begin),
        cmocka_unit_test_setup(arguments, begin),
        cmocka_unit_test_setup(overlapping, begin),
        cmocka_unit_test_setup(side_by_side, begin),
        cmocka_unit_test_setup(strides, begin),
        cmocka_unit_test_setup(parts, begin),
        cmocka_unit_test_setup(grids, begin),
        cmocka_unit_test_setup(sizes, begin),
        cmocka_unit_test_setup(steps_over_few, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
