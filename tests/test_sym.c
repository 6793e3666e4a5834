/* Sizes that a function reads as symbols (rp_sym_*): one specialisation for all of them, with eager's bits; plain numbers
   outside of a trace; a clear error for whatever may not be a symbol, and for words that outlived their trace. */
/* ctest: labels=compile timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>

#include "support/trace_help.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

typedef rp_tensor *sample(int64_t n); /* the argument of size n */

static rp_tensor *tokens(int64_t n) { return filled(0.1, 3, (int64_t)2, n, (int64_t)12); }
static rp_tensor *vector(int64_t n) { return filled(0.2, 1, 3 * n); }

/* Called with many sizes, each twice: two specialisations in all, the first of numbers; results and gradients are eager's. */
static void check(rp_body *body, const char *name, sample *make, bool grad) {
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){body, NULL, 0, name}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int64_t n = 3; n < 40; n += 1 + n / 7) {
        for (int turn = 0; turn < 2; turn++) {
            rp_tensor *x[2] = {make(n), make(n)}, *y[2];
            for (int k = 0; k < 2 && grad; k++) rp_set_requires_grad(x[k], true);
            if (rp_call(f, &x[0], 1, &y[0], 1) != RP_OK) fail_msg("%s, size %d: %s", name, (int)n, rp_error_message());
            body(NULL, &x[1], 1, &y[1], 1);
            assert_same(y[0], y[1]);
            for (int k = 0; k < 2 && grad; k++)
                assert_int_equal(rp_backward(rp_sum(rp_mul(y[k], y[k])), NULL, NULL), RP_OK);
            if (grad) assert_same(rp_grad_of(x[0]), rp_grad_of(x[1]));
        }
    }
    if (explain_total(f, "specialisation", NULL) != 2)
        fail_msg("%s: %d specialisations", name, (int)explain_total(f, "specialisation", NULL));
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

BODY(attention) { /* (B, T, 12) with 3 heads of 4 */
    UNUSED;
    rp_tensor *x = in[0];
    int64_t b = rp_sym_size(x, 0), t = rp_sym_size(x, -2);
    rp_tensor *h = rp_transpose(rp_view(x, RP_DIMS(b, t, 3, 4)), 1, 2);
    rp_tensor *a = rp_softmax(rp_matmul(h, rp_transpose(h, -2, -1)), -1);
    out[0] = rp_reshape(rp_transpose(rp_matmul(a, h), 1, 2), RP_DIMS(b, t, rp_sym_mul(3, 4)));
}
BODY(folded) {
    UNUSED;
    rp_tensor *flat = rp_flatten(rp_sin(in[0]), 0, 1);
    out[0] = rp_unflatten(rp_mul_scalar(flat, rp_f64(2)), 0, RP_DIMS(rp_sym_size(in[0], 0), rp_sym_size(in[0], 1)));
}
BODY(padded) { /* zeros to twice the length and one more, behind */
    UNUSED;
    int64_t t = rp_sym_size(in[0], 1);
    rp_tensor *zeros = rp_zeros(RP_DIMS(2, rp_sym_add(t, 1), 12)), *list[] = {in[0], zeros};
    out[0] = rp_cat(list, 2, 1);
}
BODY(last_ones) {
    UNUSED;
    int64_t n = rp_sym_size(in[0], 0);
    out[0] = rp_slice(in[0], 0, rp_sym_sub(n, 3), n, 1);
}
BODY(half) {
    UNUSED;
    int64_t n = rp_sym_numel(in[0]), third = rp_sym_floordiv(n, 3);
    rp_tensor *rows = rp_view(in[0], RP_DIMS(third, 3));
    out[0] = rp_add(rows, rp_expand(rp_full(RP_DIMS(1, 3), rp_f64(0.5)), RP_DIMS(third, 3)));
}
BODY(middle) {
    UNUSED;
    out[0] = rp_select(rp_exp(in[0]), 0, rp_sym_sub(rp_sym_size(in[0], 0), 1));
}
BODY(largest) {
    UNUSED;
    out[0] = rp_topk(in[0], rp_sym_floordiv(rp_sym_size(in[0], 0), 3), 0, true, true, NULL);
}
BODY(normed) {
    UNUSED;
    out[0] = rp_layer_norm(in[0], RP_DIMS(rp_sym_size(in[0], 1), 12), NULL, NULL, 1e-5);
}
BODY(bounded) { /* at most 100, at least 2: of these sizes never */
    UNUSED;
    int64_t t = rp_sym_min(rp_sym_max(rp_sym_size(in[0], 1), 2), 100);
    out[0] = rp_mul_scalar(rp_slice(in[0], 1, 0, t, 1), rp_f64(3));
}

static void test_one_specialisation(void **state) {
    (void)state;
    for (int grad = 0; grad < 2; grad++) {
        check(attention, "attention", tokens, grad);
        check(folded, "folded", tokens, grad);
        check(padded, "padded", tokens, grad);
        check(last_ones, "last ones", vector, grad);
        check(half, "half", vector, grad);
        check(middle, "middle", vector, grad);
        check(largest, "largest", vector, grad);
        check(normed, "normed", tokens, grad);
        check(bounded, "bounded", tokens, grad);
    }
}

/* ---- Scalars that are sizes */

BODY(scaled) { /* as a factor, a divisor, alpha, an addend */
    UNUSED;
    rp_tensor *x = in[0];
    const int64_t n = rp_sym_size(x, 0), half = rp_sym_floordiv(n, 2);
    rp_tensor *y = rp_div_scalar(rp_mul_scalar(rp_sin(x), rp_i64(n)), rp_i64(rp_sym_add(half, 1)));
    y = rp_add(y, x, RP_OPTIONS(rp_add_options, .alpha = rp_i64(n)));
    y = rp_sub(y, x, RP_OPTIONS(rp_sub_options, .alpha = rp_i64(half)));
    out[0] = rp_add_scalar(y, rp_i64(rp_sym_sub(half, n)));
}
BODY(limited) { /* limits and comparisons */
    UNUSED;
    rp_tensor *x = rp_mul_scalar(in[0], rp_i64(16));
    const int64_t n = rp_sym_size(x, 0);
    rp_tensor *y = rp_clamp(x, rp_i64(rp_sym_sub(0, n)), rp_i64(n));
    out[0] = rp_where(rp_lt_scalar(y, rp_i64(rp_sym_floordiv(n, 2))), y, rp_mul_scalar(y, rp_i64(rp_sym_mod(n, 4))));
}
BODY(counted) { /* tensors as long as a size, and filled with one */
    UNUSED;
    const int64_t n = rp_sym_size(in[0], 0);
    rp_tensor *up = rp_arange(rp_i64(0), rp_i64(n), rp_i64(1)), *down = rp_arange(rp_i64(n), rp_i64(0), rp_i64(-1));
    rp_tensor *odd = rp_arange(rp_i64(1), rp_i64(rp_sym_mul(n, 2)), rp_i64(2));
    rp_tensor *all = rp_full(RP_DIMS(n), rp_i64(n));
    rp_tensor *sum = rp_sub(rp_add(rp_mul(up, down), odd), rp_fill(up, rp_i64(rp_sym_add(n, 1))));
    out[0] = rp_mul(in[0], rp_div(sum, all));
}
BODY(causal) { /* a mask of (T, T), made inside */
    UNUSED;
    rp_tensor *x = in[0];
    const int64_t t = rp_sym_size(x, 1);
    rp_tensor *scores = rp_div_scalar(rp_matmul(x, rp_transpose(x, 1, 2)), rp_i64(t));
    rp_tensor *row = rp_unsqueeze(rp_arange(rp_i64(0), rp_i64(t), rp_i64(1)), 1);
    rp_tensor *low = rp_full(NULL, 0, rp_f64(-1e30), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
    rp_tensor *seen = rp_ge(row, rp_arange(rp_i64(0), rp_i64(t), rp_i64(1)));
    out[0] = rp_matmul(rp_softmax(rp_where(seen, scores, low), -1), x);
}
BODY(statistics) { /* derivatives that divide by a number of elements; a fill of an integer type keeps its bits */
    UNUSED;
    rp_tensor *x = in[0], *v = rp_var(x, RP_DIMS(1)), *m = rp_mean(rp_mul(x, x), RP_DIMS(0, 1));
    rp_var_options by = {.struct_size = sizeof by, .correction = rp_i64(rp_sym_floordiv(rp_sym_size(x, 1), 2))};
    out[0] = rp_add(rp_add(rp_unsqueeze(v, 1), m), rp_unsqueeze(rp_var(rp_sin(x), RP_DIMS(1), &by), 1));
}
/* ---- images: scales and places calculated of sizes */

static rp_tensor *image(int64_t n) { return filled(0.3, 4, (int64_t)1, (int64_t)2, n + 2, n + 5); }

static rp_tensor *by_factors(rp_tensor *x, double high, double wide, const char *mode, rp_tristate again, bool smooth) {
    const double factors[] = {high, wide};
    const rp_tristate align = strncmp(mode, "bi", 2) == 0 ? RP_FALSE : RP_UNSET;
    return (rp_interpolate)(x, NULL, 0, factors, 2, mode, align, again, smooth);
}
static rp_tensor *to_size(rp_tensor *x, int64_t high, int64_t wide, const char *mode, bool smooth) {
    const int64_t size[] = {high, wide};
    return (rp_interpolate)(x, size, 2, NULL, 0, mode, RP_TRUE, RP_UNSET, smooth);
}

BODY(enlarged) { /* by factors of few bits */
    UNUSED;
    rp_tensor *x = by_factors(in[0], 1.5, 2.25, "bilinear", RP_UNSET, false);
    out[0] = by_factors(x, 0.5, 0.75, "nearest-exact", RP_UNSET, false);
}
BODY(sized) { /* by sizes */
    UNUSED;
    const int64_t h = rp_sym_size(in[0], 2), w = rp_sym_size(in[0], 3);
    rp_tensor *x = to_size(in[0], rp_sym_mul(h, 2), rp_sym_floordiv(w, 2), "bicubic", false);
    out[0] = by_factors(x, 2, 2, "bilinear", RP_TRUE, false);
}
BODY(smoothed) { /* antialiased: by factors and by sizes, to fewer places and to more */
    UNUSED;
    const int64_t h = rp_sym_size(in[0], 2), w = rp_sym_size(in[0], 3);
    rp_tensor *x = by_factors(in[0], 0.5, 1.5, "bilinear", RP_FALSE, true);
    rp_tensor *y = to_size(in[0], rp_sym_floordiv(h, 2), rp_sym_add(w, 3), "bicubic", true);
    out[0] = rp_add(rp_sum(x, RP_DIMS(3)), rp_sum(y, RP_DIMS(3)));
}
BODY(sampled) { /* places from -1 to 1 */
    UNUSED;
    const int64_t h = rp_sym_size(in[0], 2), w = rp_sym_size(in[0], 3);
    rp_tensor *theta = rp_reshape(rp_arange(rp_f64(-0.4), rp_f64(0.75), rp_f64(0.2)), RP_DIMS(1, 2, 3));
    rp_tensor *grid = rp_affine_grid_generator(theta, RP_DIMS(1, 2, rp_sym_add(h, 1), w), false);
    rp_tensor *wide =
        rp_mul_scalar(rp_affine_grid_generator(theta, RP_DIMS(1, 2, rp_sym_add(h, 1), w), true), rp_f64(5));
    out[0] = rp_add(rp_grid_sampler(in[0], grid, 0, 1, true),
                    rp_add(rp_grid_sampler(in[0], wide, 0, 2, false), rp_grid_sampler(in[0], wide, 1, 2, true)));
}
BODY(within) { /* places of other types, limited by a size */
    UNUSED;
    const int64_t t = rp_sym_size(in[0], 1), last = rp_sym_sub(t, 1);
    rp_tensor *place = rp_mul_scalar(rp_arange(rp_i64(0), rp_i64(t), rp_i64(1)), rp_i64(2));
    rp_tensor *at = rp_clamp(place, rp_none(), rp_i64(last));
    rp_tensor *low = rp_clamp(rp_to_dtype(place, RP_I32), rp_i64(rp_sym_floordiv(t, 2)), rp_i64(last));
    out[0] = rp_add(rp_index_select(in[0], 1, at), rp_index_select(in[0], 1, rp_to_dtype(low, RP_I64)));
}

static void test_images(void **state) {
    (void)state;
    for (int grad = 0; grad < 2; grad++) {
        check(enlarged, "enlarged", image, grad);
        check(sized, "sized", image, grad);
        check(smoothed, "smoothed", image, grad);
        check(sampled, "sampled", image, grad);
        check(within, "within", tokens, grad);
    }
}

/* ---- the order of dims of results is one of the symbols: the size that made them says nothing */

/* Each of these sizes is the one that makes the graph for all of them; how results lie is what eager execution finds. */
static void in_any_order(rp_body *body, const char *name, sample *make) {
    static const int64_t sizes[] = {1, 2, 3, 4, 8, 9, 64};
    enum { N = sizeof sizes / sizeof *sizes };
    int64_t first = 0;
    for (size_t second = 0; second < N; second++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = rp_compile((rp_fn){body, NULL, 0, name}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
        for (size_t k = 0; k < N + 2; k++) {
            const int64_t n = k == 0 ? 5 : k == 1 ? sizes[second] : sizes[k - 2];
            rp_tensor *x = make(n), *got, *want;
            if (rp_call(f, &x, 1, &got, 1) != RP_OK) fail_msg("%s, size %d: %s", name, (int)n, rp_error_message());
            body(NULL, &x, 1, &want, 1);
            assert_same(got, want);
            for (int64_t d = 0; d < (int64_t)rp_ndim(want); d++)
                if (rp_size(want, d) > 1 && rp_stride(got, d) != rp_stride(want, d))
                    fail_msg("%s made for size %d, size %d: stride %d is %d, eagerly %d", name, (int)sizes[second],
                             (int)n, (int)d, (int)rp_stride(got, d), (int)rp_stride(want, d));
        }
        const int64_t made = explain_total(f, "specialisation", NULL);
        if (second == 0) first = made;
        if (made != first || made > 3)
            fail_msg("%s: made for size %d there are %d specialisations, for size %d %d", name, (int)sizes[second],
                     (int)made, (int)sizes[0], (int)first);
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
        assert_ok();
    }
}

static rp_tensor *rows_of_8(int64_t n) { return filled(0.1, 2, n, (int64_t)8); }
static rp_tensor *columns_of_8(int64_t n) { return filled(0.1, 2, (int64_t)8, n); }
static rp_tensor *cube(int64_t n) { return filled(0.1, 3, n, (int64_t)4, n); }
static rp_tensor *pixels(int64_t n) { return filled(0.1, 4, (int64_t)2, (int64_t)3, n, n); }
static rp_tensor *batch(int64_t n) { return filled(0.1, 4, n, (int64_t)3, (int64_t)4, (int64_t)5); }
static rp_tensor *turned(int64_t n) { return rp_transpose(columns_of_8(n), 0, 1); }
static rp_tensor *pixels_last(int64_t n) {
    return rp_contiguous(pixels(n), RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
}
static rp_tensor *batch_last(int64_t n) {
    return rp_contiguous(batch(n), RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
}

BODY(turned_negated) {
    UNUSED;
    out[0] = rp_neg(rp_transpose(in[0], 0, 1));
}
BODY(turned_beside) {
    UNUSED;
    rp_tensor *t = rp_transpose(in[0], 0, 1);
    out[0] = rp_add(rp_sin(t), rp_mean(t, RP_DIMS(0)));
}
BODY(permuted) {
    UNUSED;
    out[0] = rp_exp(rp_permute(in[0], RP_DIMS(2, 0, 1)));
}
BODY(permuted_other) {
    UNUSED;
    rp_tensor *p = rp_permute(in[0], RP_DIMS(1, 2, 0));
    out[0] = rp_mul(rp_clone(p, NULL), rp_sum(p, RP_DIMS(1), true));
}
BODY(longer) { /* strides of sums */
    UNUSED;
    rp_tensor *p = rp_constant_pad_nd(in[0], RP_DIMS(1, 1), rp_f64(0));
    out[0] = rp_sin(rp_transpose(p, 0, 1));
}
BODY(made_last) {
    UNUSED;
    rp_tensor *x = rp_contiguous(in[0], RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
    out[0] = rp_relu(rp_sub(x, rp_mean(x, RP_DIMS(2, 3), true)));
}
BODY(as_it_lies) {
    UNUSED;
    out[0] = rp_sigmoid(in[0]);
}
BODY(pooled) {
    UNUSED;
    out[0] = rp_cos(rp_adaptive_avg_pool2d(in[0], RP_DIMS(1, 1)));
}
BODY(written) {
    UNUSED;
    rp_tensor *x = rp_permute(rp_sin(in[0]), RP_DIMS(1, 0));
    rp_add_(rp_narrow(x, 0, 0, 1), rp_full(RP_DIMS(1), rp_f64(0.5)));
    out[0] = rp_neg(x);
}

static void test_order_of_dims(void **state) {
    (void)state;
    in_any_order(turned_negated, "turned", rows_of_8);
    in_any_order(turned_negated, "turned columns", columns_of_8);
    in_any_order(turned_beside, "beside", rows_of_8);
    in_any_order(turned_beside, "beside columns", columns_of_8);
    in_any_order(permuted, "permuted", cube);
    in_any_order(permuted_other, "permuted other", cube);
    in_any_order(longer, "longer", rows_of_8);
    in_any_order(longer, "longer columns", columns_of_8);
    in_any_order(made_last, "last of pixels", pixels);
    in_any_order(made_last, "last of a batch", batch);
    in_any_order(as_it_lies, "turned argument", turned);
    in_any_order(as_it_lies, "pixels last", pixels_last);
    in_any_order(as_it_lies, "batch last", batch_last);
    in_any_order(pooled, "pooled", pixels_last);
    in_any_order(pooled, "pooled batch", batch);
    in_any_order(written, "written", rows_of_8);
    in_any_order(written, "written columns", columns_of_8);
}

static void test_scalars(void **state) {
    (void)state;
    for (int grad = 0; grad < 2; grad++) {
        check(scaled, "scaled", vector, grad);
        check(limited, "limited", vector, grad);
        check(counted, "counted", vector, grad);
        check(causal, "causal", tokens, grad);
        check(statistics, "statistics", tokens, grad);
    }
}

/* ---- Scalars that are calculated of sizes */

static rp_tensor *columns(int64_t n) { return filled(0.1, 3, (int64_t)2, (int64_t)5, n); }
static rp_scalar size_at(const rp_tensor *x, int64_t dim) { return rp_i64(rp_sym_size(x, dim)); }
static rp_scalar root_part(const rp_tensor *x) { return rp_num_div(rp_f64(1), rp_num_sqrt(size_at(x, -1))); }

BODY(by_hand) { /* attention over heads whose length is a size */
    UNUSED;
    rp_tensor *x = in[0], *scores = rp_mul_scalar(rp_matmul(x, rp_transpose(x, 1, 2)), root_part(x));
    out[0] = rp_matmul(rp_softmax(scores, -1), x);
}
BODY(by_default) { /* the same by the op, whose scale is its own; and by one that is given */
    UNUSED;
    rp_tensor *x = in[0];
    const rp_scalar half = rp_num_mul(rp_f64(0.5), root_part(x));
    rp_tensor *a = rp_scaled_dot_product_attention(x, x, x, NULL, 0, false);
    rp_tensor *b = rp_scaled_dot_product_attention(x, x, x, NULL, 0, true,
                                                   RP_OPTIONS(rp_scaled_dot_product_attention_options, .scale = half));
    out[0] = rp_add(a, b);
}
BODY(calculated) { /* factors, divisors, exponents, limits, alpha, and the derivatives that calculate with them */
    UNUSED;
    rp_tensor *x = in[0];
    const rp_scalar n = size_at(x, 2), m = rp_num_pow(n, rp_f64(-0.25)), up = rp_num_pow(n, rp_i64(2));
    rp_tensor *y = rp_div_scalar(rp_pow_scalar(rp_exp(x), m), rp_num_add(m, n));
    y = rp_add(y, x, RP_OPTIONS(rp_add_options, .alpha = rp_num_sub(rp_f64(1), m)));
    y = rp_clamp(y, rp_num_sub(rp_i64(0), rp_num_sqrt(n)), rp_num_div(up, n));
    rp_var_options by = {.struct_size = sizeof by, .correction = rp_num_div(n, rp_i64(4))};
    out[0] = rp_add(y, rp_unsqueeze(rp_var(x, RP_DIMS(2), &by), 2));
}
BODY(counted_on) { /* types by the number's: whole of whole numbers, else a float */
    UNUSED;
    rp_tensor *x = in[0], *ones = rp_full(RP_DIMS(2, 5, rp_sym_size(x, 2)), rp_num_mul(size_at(x, 2), rp_bool(true)));
    rp_tensor *part = rp_mul_scalar(ones, rp_num_div(size_at(x, 2), rp_i64(2)));
    out[0] = rp_dtype_of(ones) == RP_I64 && rp_dtype_of(part) == RP_F32 ? rp_mul(x, part) : x;
}
BODY(long_one) { /* more steps than an expression keeps: right, of each size by itself */
    UNUSED;
    rp_scalar f = root_part(in[0]);
    for (int k = 0; k < 30; k++) f = rp_num_mul(f, rp_f64(1.01));
    out[0] = rp_mul_scalar(in[0], f);
}

static void test_numbers_of_sizes(void **state) {
    (void)state;
    for (int grad = 0; grad < 2; grad++) {
        check(by_hand, "attention by hand", columns, grad);
        check(by_default, "attention", columns, grad);
        check(calculated, "calculated", columns, grad);
        check(counted_on, "counted on", columns, grad);
    }
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){long_one, NULL, 0, "long"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int64_t n = 3; n < 7; n++) {
        rp_tensor *x = columns(n), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        long_one(NULL, &x, 1, &want, 1);
        assert_same(got, want);
    }
    assert_int_equal(explain_total(f, "specialisation", NULL), 4);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* In text it is num(..), with what it is calculated of. */
static void test_numbers_as_text(void **state) {
    (void)state;
    static const char text[] = "graph \"f\" with { symbol s0 = 6 of size(0, 0) } (%0: f32[s0]) {\n"
                               "  %1: f32[s0] = mul_scalar(%0) {other = num(div(1.0, sqrt(float(s0*2 - 1))))}\n"
                               "  %2: f32[s0] = pow_scalar(%1) {exponent = num(pow(float(s0), -0.5))}\n"
                               "  return %2\n}\n";
    static const char *const wrong[] = {"num(1.0)", "num(float(s0))",        "num(div(1.0))", "num(sqrt(float(s1)))",
                                        "num(s0)",  "num(add(1, float(s0)))"};
    rp_scope scope = rp_scope_begin();
    rp_ir *ir = rp_ir_parse(text, sizeof text - 1), *again;
    assert_ok();
    char buf[2048];
    const size_t n = rp_ir_text(ir, buf, sizeof buf);
    assert_true(n < sizeof buf && strstr(buf, "num(div(1.0, sqrt(float(s0*2 - 1))))") &&
                strstr(buf, "num(pow(float(s0), -0.5))"));
    again = rp_ir_parse(buf, n);
    assert_true(rp_ir_equal(ir, again));
    rp_tensor *x = filled(0.1, 1, 5), *y;
    assert_int_equal(rp_ir_run(again, &x, 1, &y, 1), RP_OK);
    const rp_scalar third = rp_num_div(rp_i64(1), rp_num_sqrt(rp_i64(9)));
    assert_true(third.kind == RP_SCALAR_F64 && third.v.f == 1.0 / 3.0);
    assert_same(y, rp_pow_scalar(rp_mul_scalar(x, third), rp_num_pow(rp_i64(5), rp_f64(-0.5))));
    rp_ir_release(ir);
    rp_ir_release(again);
    assert_ok();
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        (void)snprintf(buf, sizeof buf,
                       "graph \"f\" with { symbol s0 = 6 of size(0, 0) } (%%0: f32[s0]) {\n"
                       "  %%1: f32[s0] = mul_scalar(%%0) {other = %s}\n  return %%1\n}\n",
                       wrong[k]);
        rp_ir_release(rp_ir_parse(buf, strlen(buf)));
        if (!rp_failed()) fail_msg("%s was taken", wrong[k]);
        (void)rp_error_take();
    }
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* In text a size is sym(..), and comes back as what it was; whole powers are guarded by their exponent's sign alone. */
static void test_scalars_as_text(void **state) {
    (void)state;
    static const char text[] = "graph \"f\" with { symbol s0 = 6 of size(0, 0) } (%0: f32[s0]) {\n"
                               "  %1: f32[s0] = mul_scalar(%0) {other = sym(s0*2 - 1)}\n"
                               "  %2: i64[s0 + 1] = arange() {start = -1, end = sym(s0), step = 1, dtype = i64}\n"
                               "  %3: f32[s0] = pow_scalar(%1) {exponent = sym(s0)}\n"
                               "  return %1, %2, %3\n}\n";
    rp_scope scope = rp_scope_begin();
    rp_ir *ir = rp_ir_parse(text, sizeof text - 1), *again;
    assert_ok();
    char buf[2048];
    const size_t n = rp_ir_text(ir, buf, sizeof buf);
    assert_true(n < sizeof buf && strstr(buf, "sym(") && strstr(buf, "end = sym(s0)"));
    again = rp_ir_parse(buf, n);
    assert_true(rp_ir_equal(ir, again));
    rp_tensor *x = filled(0.1, 1, 4), *y[3];
    assert_int_equal(rp_ir_run(again, &x, 1, y, 3), RP_OK);
    assert_same(y[0], rp_mul_scalar(x, rp_i64(7)));
    assert_same(y[1], rp_arange(rp_i64(-1), rp_i64(4), rp_i64(1)));
    assert_same(y[2], rp_pow_scalar(y[0], rp_i64(4)));
    rp_ir_release(ir);
    rp_ir_release(again);
    assert_ok();
    /* numbers that look like words are numbers where there is no trace */
    rp_tensor *far = rp_full(RP_DIMS(1), rp_i64(INT64_MIN + 3));
    int64_t value = 0;
    assert_int_equal(rp_to_host(far, &value, sizeof value), RP_OK);
    assert_true(value == INT64_MIN + 3);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* ---- questions */

BODY(branches) {
    UNUSED;
    int64_t n = rp_sym_size(in[0], 0);
    bool even = rp_sym_eq(rp_sym_mod(n, 2), 0), few = rp_sym_lt(n, 20), some = rp_sym_le(6, n);
    rp_tensor *x = even ? rp_sin(in[0]) : rp_cos(in[0]);
    if (few) x = rp_neg(x);
    out[0] = some ? rp_exp(x) : x;
}

static void test_questions_are_guards(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f =
        rp_compile((rp_fn){branches, NULL, 0, "branches"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int64_t n = 2; n < 40; n++) {
        rp_tensor *x = filled(0.3, 1, n), *got, *want;
        for (int k = 0; k < 2; k++) {
            assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
            branches(NULL, &x, 1, &want, 1);
            assert_same(got, want);
        }
    }
    /* three answers twice, one of numbers */
    assert_true(explain_total(f, "specialisation", NULL) <= 8);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

BODY(fixed) {
    UNUSED;
    int64_t n = rp_sym_guard_int(rp_sym_size(in[0], 0));
    out[0] = rp_mul_scalar(in[0], rp_i64(n));
}

static void test_numbers_are_fixed(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){fixed, NULL, 0, "fixed"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int64_t n = 2; n < 6; n++) {
        rp_tensor *x = filled(0.3, 1, n), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        fixed(NULL, &x, 1, &want, 1);
        assert_same(got, want);
    }
    assert_int_equal(explain_total(f, "specialisation", NULL), 4);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* Padding by modes has pads that are numbers: a symbol among them is fixed. */
BODY(mirrored) {
    UNUSED;
    const int64_t n = rp_sym_size(in[0], 0), behind = rp_sym_sub(n, 3);
    out[0] = rp_pad(in[0], RP_DIMS(rp_sym_sub(n, 1), behind), "reflect", rp_none());
    out[1] = rp_pad(in[0], RP_DIMS(behind, n), "replicate", rp_none());
    out[2] = rp_pad(in[0], RP_DIMS(0, behind), "circular", rp_none());
}

static void test_pads_are_fixed(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f =
        rp_compile((rp_fn){mirrored, NULL, 0, "mirrored"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int64_t n = 2; n < 8; n++) {
        rp_tensor *x = filled(0.3, 2, n, n), *got[3], *want[3];
        assert_int_equal(rp_call(f, &x, 1, got, 3), RP_OK);
        mirrored(NULL, &x, 1, want, 3);
        for (int k = 0; k < 3; k++) assert_same(got[k], want[k]);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* ---- outside of a trace */

static void expect(rp_status status, const char *words) {
    assert_true(rp_failed());
    if (rp_error_status() != status || !strstr(rp_error_message(), words))
        fail_msg("%s, expected %s: %s", rp_status_name(rp_error_status()), rp_status_name(status), rp_error_message());
    (void)rp_error_take();
}

static void test_eager_numbers(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.1, 3, 2, 5, 12);
    assert_int_equal(rp_sym_size(x, -2), 5);
    assert_int_equal(rp_sym_numel(x), 120);
    assert_int_equal(rp_sym_add(3, 4), 7);
    assert_int_equal(rp_sym_sub(3, 4), -1);
    assert_int_equal(rp_sym_mul(3, 4), 12);
    assert_int_equal(rp_sym_floordiv(14, 4), 3);
    assert_int_equal(rp_sym_mod(14, 4), 2);
    assert_int_equal(rp_sym_max(3, 4), 4);
    assert_int_equal(rp_sym_min(-3, 4), -3);
    assert_int_equal(rp_sym_max(-3, -4), -3);
    assert_true(rp_sym_eq(3, 3) && !rp_sym_eq(3, 4) && rp_sym_lt(3, 4) && !rp_sym_lt(4, 4) && rp_sym_le(4, 4));
    assert_int_equal(rp_sym_guard_int(9), 9);
    assert_int_equal(rp_num_add(rp_i64(3), rp_bool(true)).v.i, 4);
    assert_int_equal(rp_num_sub(rp_i64(3), rp_i64(5)).v.i, -2);
    assert_int_equal(rp_num_mul(rp_i64(3), rp_i64(5)).v.i, 15);
    assert_int_equal(rp_num_pow(rp_i64(-3), rp_i64(3)).v.i, -27);
    assert_true(rp_num_div(rp_i64(6), rp_i64(3)).kind == RP_SCALAR_F64 && rp_num_div(rp_i64(6), rp_i64(3)).v.f == 2);
    assert_true(rp_num_pow(rp_i64(2), rp_i64(-1)).v.f == 0.5 && rp_num_sqrt(rp_f64(2.25)).v.f == 1.5);
    assert_true(rp_num_add(rp_i64(1), rp_f64(0.5)).v.f == 1.5);
    assert_ok();
    rp_num_mul(rp_i64(INT64_C(1) << 40), rp_i64(INT64_C(1) << 40));
    expect(RP_ERROR_SHAPE, "overflows");
    rp_num_sqrt(rp_none());
    expect(RP_ERROR_INVALID_ARGUMENT, "rp_num_sqrt: an operand is no number");
    assert_int_equal(rp_sym_size(x, 3), -1);
    expect(RP_ERROR_INDEX, "Dimension out of range");
    assert_int_equal(rp_sym_mul(INT64_C(1) << 40, INT64_C(1) << 40), 0);
    expect(RP_ERROR_SHAPE, "overflows");
    assert_int_equal(rp_sym_floordiv(4, 0), 0);
    expect(RP_ERROR_INVALID_ARGUMENT, "rp_sym_floordiv: 4 by 0");
    assert_int_equal(rp_sym_mod(-4, 3), 0);
    expect(RP_ERROR_INVALID_ARGUMENT, "rp_sym_mod: -4 by 3");
    rp_scope_end(scope, NULL, 0);
}

static int64_t leaked; /* a word of a trace */
static rp_scalar leaked_number;

BODY(leaks) {
    UNUSED;
    leaked = rp_sym_size(in[0], 0);
    leaked_number = rp_num_sqrt(rp_i64(leaked));
    out[0] = rp_mul_scalar(in[0], rp_f64(2));
}
BODY(uses_leaked) {
    UNUSED;
    out[0] = rp_add(in[0], rp_full(RP_DIMS(leaked), rp_f64(1)));
}

/* Leaves a word of a trace that has ended. */
static void leak(void) {
    rp_compiled *f = rp_compile((rp_fn){leaks, NULL, 0, "leaks"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int64_t n = 4; n < 7; n++) {
        rp_tensor *x = filled(0.1, 1, n), *y;
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    }
    rp_compiled_release(f);
    assert_true(leaked < -(INT64_C(1) << 62));
}

static void test_words_of_another_trace(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    leak();
    rp_tensor *x = filled(0.1, 1, 6);
    rp_view(x, RP_DIMS(leaked));
    expect(RP_ERROR_INDEX, "the symbolic sizes of a trace are for its own calls only");
    rp_slice(x, 0, 0, leaked, 1);
    expect(RP_ERROR_INDEX, "the symbolic sizes of a trace are for its own calls only");
    rp_sym_add(leaked, 1);
    expect(RP_ERROR_STATE, "rp_sym_add: a symbolic size of another trace");
    assert_false(rp_sym_lt(3, leaked));
    expect(RP_ERROR_STATE, "rp_sym_lt: a symbolic size of another trace");
    rp_sym_guard_int(leaked);
    expect(RP_ERROR_STATE, "rp_sym_guard_int: a symbolic size of another trace");
    rp_num_add(leaked_number, rp_i64(1));
    expect(RP_ERROR_STATE, "rp_num_add: a number of sizes of another trace");
    rp_mul_scalar(x, leaked_number);
    expect(RP_ERROR_STATE, "of another trace, or of one that has ended");
    /* in another trace with symbols of its own, which has a word of the same number */
    rp_compiled *f = rp_compile((rp_fn){uses_leaked, NULL, 0, "uses"}, NULL);
    int64_t word = leaked;
    leaked = 4;
    rp_tensor *four = filled(0.1, 1, 4), *five = filled(0.1, 1, 5), *y;
    assert_int_equal(rp_call(f, &four, 1, &y, 1), RP_OK);
    leaked = word;
    assert_int_not_equal(rp_call(f, &five, 1, &y, 1), RP_OK);
    expect(RP_ERROR_INDEX, "the symbolic sizes of a trace are for its own calls only");
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

/* ---- where a number is needed */

static int misuse;
BODY(misuses) {
    UNUSED;
    rp_tensor *x = in[0];
    int64_t n = rp_sym_size(x, 1);
    switch (misuse) {
    case 0: out[0] = rp_softmax(x, n); break;
    case 1: out[0] = rp_sum(x, RP_DIMS(n)); break;
    case 2: out[0] = rp_slice(x, n, 0, 1, 1); break;
    case 3: out[0] = rp_transpose(x, 0, n); break;
    default: out[0] = rp_unsqueeze(x, n); break;
    }
}

static void test_where_a_number_is_needed(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    for (misuse = 0; misuse < 5; misuse++) {
        rp_compiled *f =
            rp_compile((rp_fn){misuses, NULL, 0, "misuses"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
        rp_tensor *first = filled(0.1, 3, 3, 1, 2), *second = filled(0.1, 3, 3, 2, 2), *y, *want;
        assert_int_equal(rp_call(f, &first, 1, &y, 1), RP_OK);
        assert_int_equal(rp_call(f, &second, 1, &y, 1), RP_ERROR_GRAPH_BREAK);
        (void)rp_error_take();
        misuses(NULL, &second, 1, &want, 1); /* the call ran with numbers, and is right */
        assert_same(y, want);
        bool told = false;
        for (size_t k = 0; k < rp_explain_count(f); k++) {
            rp_explain_entry e;
            assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
            told =
                told || (strcmp(e.kind, "break") == 0 && strstr(e.message, "is a symbolic size, and must be a number"));
        }
        if (!told) fail_msg("misuse %d is not told", misuse);
        rp_compiled_release(f);
    }
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_specialisation),
        cmocka_unit_test(test_questions_are_guards),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_order_of_dims),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_scalars_as_text),
        cmocka_unit_test(test_numbers_of_sizes),
        cmocka_unit_test(test_numbers_as_text),
        cmocka_unit_test(test_numbers_are_fixed),
        cmocka_unit_test(test_pads_are_fixed),
        cmocka_unit_test(test_eager_numbers),
        cmocka_unit_test(test_words_of_another_trace),
        cmocka_unit_test(test_where_a_number_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
