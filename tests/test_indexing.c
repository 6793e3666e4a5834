/* Reading and writing by tensors of indices, beyond the samples: indices out of range, several values for one place, writes through
   views and from the memory that is written, masks whose results have no size before they ran, strides given by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "support/each_device.h"

#define REFUSED(code, text, ...)                                                                                       \
    do {                                                                                                               \
        (void)(__VA_ARGS__);                                                                                           \
        FAILED(code, text);                                                                                            \
    } while (0)
#define NUMBERS(size, ...) rp_from_data((const float[]){__VA_ARGS__}, size, RP_F32)
#define WHOLE(size, ...) rp_from_data((const int64_t[]){__VA_ARGS__}, size, RP_I64)

static void has(rp_tensor *t, const float *want, size_t n) {
    float got[64];
    if (rp_failed()) fail_msg("%s", rp_error_message());
    assert_int_equal(rp_numel(t), n);
    OK(rp_to_host(rp_dtype_of(t) == RP_F32 ? t : rp_to_dtype(t, RP_F32), got, n * sizeof *got));
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("element %zu is %g, not %g", i, (double)got[i], (double)want[i]);
}
#define HAS(t, ...) has(t, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float))

static rp_tensor *count(int64_t rows, int64_t columns) {
    rp_tensor *t =
        rp_arange(rp_i64(0), rp_i64(rows * columns), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32));
    return rp_view(t, RP_DIMS(rows, columns));
}

/* ---- out of range */

static void refuses(rp_tensor *t, const char *op, const char *index) {
    (void)rp_synchronize(device);
    (void)t;
    if (!rp_failed()) fail_msg("%s took an index out of range", op);
    assert_int_equal(rp_error_status(), RP_ERROR_INDEX);
    assert_non_null(strstr(rp_error_message(), op));
    assert_non_null(strstr(rp_error_message(), index));
    assert_non_null(strstr(rp_error_message(), "test_indexing.c"));
    (void)rp_error_take();
}

static void out_of_range(void **state) {
    (void)state;
    rp_tensor *x = count(3, 4), *row = rp_view(x, RP_DIMS(12)), *ones = rp_ones(RP_DIMS(1, 4));
    rp_tensor *far = WHOLE(RP_DIMS(1), 3), *back = WHOLE(RP_DIMS(1), -1), *beyond = WHOLE(RP_DIMS(1), -4);
    refuses(rp_index_select(x, 0, far), "index_select", "3");
    refuses(rp_index_select(x, 0, back), "index_select", "-1");
    refuses(rp_index(x, &far, 1), "index", "3");
    refuses(rp_index(x, &beyond, 1), "index", "-4");
    refuses(rp_take(x, WHOLE(RP_DIMS(1), 12)), "take: ", "12");
    refuses(rp_index_put(x, &far, 1, ones), "index_put: ", "3");
    refuses(rp_index_add(x, 0, far, ones), "index_add: ", "3"); /* the op called, not what it is made of */
    refuses(rp_index_copy(x, 0, back, ones), "index_copy: ", "-1");
    refuses(rp_scatter(row, 0, WHOLE(RP_DIMS(2), 1, 12), rp_ones(RP_DIMS(2))), "scatter: ", "12");
    refuses(rp_cross_entropy(x, WHOLE(RP_DIMS(3), 1, 4, 0)), "cross_entropy: ", "4");
    refuses(rp_one_hot(WHOLE(RP_DIMS(2), 1, 5), 5), "one_hot", "5");
    refuses(rp_masked_scatter(row, rp_gt_scalar(row, rp_i64(7)), rp_ones(RP_DIMS(3))), "index", "3");
    /* those that count from the end where PyTorch does */
    HAS(rp_index(x, &back, 1), 8, 9, 10, 11);
    HAS(rp_take(x, back), 11);
    HAS(rp_index_fill_scalar(x, 1, back, rp_i64(7)), 0, 1, 2, 7, 4, 5, 6, 7, 8, 9, 10, 7);
    REFUSED(RP_ERROR_DTYPE, "long, int, byte or bool", rp_index(x, &ones, 1));
    REFUSED(RP_ERROR_INDEX, "too many indices", rp_index(x, RP_TENSORS(far, far, far)));
    REFUSED(RP_ERROR_SHAPE, "cannot be broadcast to indexing result", rp_index_put(x, &far, 1, rp_ones(RP_DIMS(2, 4))));
    REFUSED(RP_ERROR_DTYPE, "source and destination dtypes match", rp_index_put(x, &far, 1, far));
    REFUSED(RP_ERROR_INDEX, "does not match the shape",
            rp_index(row, RP_TENSORS(rp_ones(RP_DIMS(3), RP_OPTIONS(rp_ones_options, .dtype = RP_BOOL)))));
    REFUSED(RP_ERROR_SHAPE, "Number of indices (1)", rp_index_add(x, 0, far, rp_ones(RP_DIMS(2, 4))));
}

/* ---- one place, several values */

static void in_order(void **state) {
    (void)state;
    const bool before = rp_set_deterministic(true);
    enum { N = 3000 };
    int64_t at[N];
    float value[N], last[5] = {0};
    for (unsigned i = 0; i < N; i++) {
        at[i] = i * 7 % 5;
        value[i] = (float)i;
        last[at[i]] = value[i];
    }
    rp_tensor *index = rp_from_data(at, RP_DIMS(N), RP_I64), *values = rp_from_data(value, RP_DIMS(N), RP_F32);
    rp_tensor *zeros = rp_zeros(RP_DIMS(5));
    has(rp_scatter(zeros, 0, index, values), last, 5);
    has(rp_index_put(zeros, &index, 1, values), last, 5);
    has(rp_index_copy(zeros, 0, index, values), last, 5);
    has(rp_scatter_reduce(zeros, 0, index, values, "amax"), last, 5);
    rp_tensor *sum = rp_index_put(zeros, &index, 1, values, true);
    same(sum, rp_index_put(zeros, &index, 1, values, true));
    (void)rp_set_deterministic(before);
}

/* ---- written memory */

static void in_place(void **state) {
    (void)state;
    /* a cache of keys, written at some of its places through a transposed view; its address stays */
    rp_tensor *cache = rp_zeros(RP_DIMS(4, 3));
    const void *memory = rp_data(cache);
    rp_tensor *places = WHOLE(RP_DIMS(2), 3, 1), *row = NUMBERS(RP_DIMS(2), 5, 6);
    const uint64_t version = rp_version(cache);
    (void)rp_index_put_(rp_transpose(cache, 0, 1), RP_TENSORS(NULL, places), row);
    HAS(cache, 0, 0, 0, 6, 6, 6, 0, 0, 0, 5, 5, 5);
    assert_true(rp_version(cache) > version);
    assert_ptr_equal(rp_data(cache), memory);
    (void)rp_index_copy_(cache, 0, places, count(2, 3));
    HAS(cache, 0, 0, 0, 3, 4, 5, 0, 0, 0, 0, 1, 2);
    /* values from the memory that is written: as they were before */
    (void)rp_index_copy_(cache, 0, WHOLE(RP_DIMS(4), 1, 2, 3, 0), cache);
    HAS(cache, 0, 1, 2, 0, 0, 0, 3, 4, 5, 0, 0, 0);
    /* dims that do not fold: written back as a whole */
    rp_tensor *deep = rp_zeros(RP_DIMS(2, 3, 2));
    rp_tensor *turned = rp_permute(deep, RP_DIMS(2, 0, 1));
    (void)rp_index_put_(turned, RP_TENSORS(WHOLE(RP_DIMS(1), 1), WHOLE(RP_DIMS(1), 0)), NUMBERS(RP_DIMS(3), 1, 2, 3));
    HAS(deep, 0, 1, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0);
    (void)rp_put_(rp_transpose(cache, 0, 1), WHOLE(RP_DIMS(2), 1, -1), NUMBERS(RP_DIMS(2), 8, 9));
    HAS(cache, 0, 1, 2, 8, 0, 0, 3, 4, 5, 0, 0, 9);
    (void)rp_masked_scatter_(cache, rp_eq_scalar(cache, rp_i64(0)), count(3, 4));
    HAS(cache, 0, 1, 2, 8, 1, 2, 3, 4, 5, 3, 4, 9);
    rp_tensor *leaf = rp_zeros(RP_DIMS(3));
    (void)rp_set_requires_grad(leaf, true);
    REFUSED(RP_ERROR_STATE, "leaf", rp_index_fill_scalar_(leaf, 0, WHOLE(RP_DIMS(1), 0), rp_i64(1)));
}

/* The gradient of what is written through a view of an intermediate, and of what it held before. */
static void gradients_of_writes(void **state) {
    (void)state;
    rp_tensor *x = count(3, 4), *v = NUMBERS(RP_DIMS(2), 3, 4), *grad[2];
    (void)rp_set_requires_grad(x, true);
    (void)rp_set_requires_grad(v, true);
    rp_tensor *y = rp_mul_scalar(x, rp_i64(2));
    (void)rp_index_put_(rp_select(y, 1, 2), RP_TENSORS(WHOLE(RP_DIMS(2), 2, 0)), v);
    OK(rp_grad(RP_TENSORS(rp_sum(rp_mul(y, count(3, 4)))), RP_TENSORS(x, v), NULL, NULL, grad));
    HAS(grad[0], 0, 2, 0, 6, 8, 10, 12, 14, 16, 18, 0, 22);
    HAS(grad[1], 10, 2);
    rp_tensor *z = rp_mul_scalar(x, rp_i64(1));
    (void)rp_index_add_(z, 1, WHOLE(RP_DIMS(2), 0, 0), rp_expand(rp_unsqueeze(v, 0), RP_DIMS(3, 2)));
    OK(rp_grad(RP_TENSORS(rp_sum(rp_mul(z, z))), RP_TENSORS(v), NULL, NULL, grad));
    HAS(grad[0], 2 * (7 + 11 + 15), 2 * (7 + 11 + 15));
}

/* ---- masks */

static void positive(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *mask = rp_gt_scalar(in[0], rp_i64(0));
    out[0] = rp_mul_scalar(rp_masked_select(in[0], mask), rp_i64(3));
    out[1] = rp_index_put(in[0], &mask, 1, rp_zeros(RP_NO_DIMS));
}

/* A slice that the index names several times is filled once: so the number's gradient counts it once. */
static void gradient_of_a_filling_number(void **state) {
    (void)state;
    rp_tensor *x = rp_zeros(RP_DIMS(3, 5)), *value = rp_full(RP_NO_DIMS, rp_f64(2));
    rp_tensor *index = rp_from_data((int64_t[]){1, 2, 2, -3, 4}, RP_DIMS(5), RP_I64), *grads[2];
    rp_set_requires_grad(x, true);
    rp_set_requires_grad(value, true);
    for (int here = 0; here < 2; here++) {
        rp_tensor *y = here ? rp_index_fill_(rp_clone(x, NULL), 1, index, value) : rp_index_fill(x, -1, index, value);
        rp_tensor *sum = rp_sum(rp_mul_scalar(y, rp_f64(0.5)));
        assert_float_equal(rp_item_f64(sum), 9, 0); /* 3 rows, 3 places */
        assert_int_equal(rp_grad(&sum, 1, (rp_tensor *[]){x, value}, 2, NULL, NULL, grads), RP_OK);
        assert_float_equal(rp_item_f64(grads[1]), 4.5, 0);
        assert_float_equal(rp_item_f64(rp_sum(grads[0])), 3, 0);
    }
    assert_false(rp_failed());
}

static void masks(void **state) {
    (void)state;
    rp_tensor *x = NUMBERS(RP_DIMS(2, 3), 1, -2, 3, -4, 5, -6), *out[2];
    rp_compiled *f = rp_compile((rp_fn){positive, NULL, 0, "positive"}, NULL);
    for (unsigned pass = 0; pass < 3; pass++) {
        OK(rp_call(f, &x, 1, out, 2));
        HAS(out[0], 3, 9, 15);
        HAS(out[1], 0, -2, 0, -4, 0, -6);
    }
    rp_tensor *other = rp_neg(x);
    OK(rp_call(f, &other, 1, out, 2));
    HAS(out[0], 6, 12, 18);
    rp_tensor *rows = rp_from_data((const bool[]){false, true}, RP_DIMS(2), RP_BOOL);
    rp_tensor *columns = rp_from_data((const bool[]){true, false, true}, RP_DIMS(3), RP_BOOL);
    HAS(rp_index(x, &rows, 1), -4, 5, -6);
    HAS(rp_index(x, RP_TENSORS(NULL, columns)), 1, 3, -4, -6);
    HAS(rp_index(x, RP_TENSORS(rows, WHOLE(RP_DIMS(1), 2))), -6);
    HAS(rp_index_put(x, &rows, 1, rp_ones(RP_DIMS(3))), 1, -2, 3, 1, 1, 1);
    HAS(rp_index_put(x, &rows, 1, rp_ones(RP_NO_DIMS), true), 1, -2, 3, -3, 6, -5);
    rp_compiled_release(f);
}

/* ---- strides by hand */

static void strides(void **state) {
    (void)state;
    rp_tensor *x = count(3, 4), *grad;
    rp_tensor *inner = rp_slice(rp_view(x, RP_DIMS(12)), 0, 2, 11, 1);
    rp_tensor *v = rp_as_strided(inner, RP_DIMS(2, 3), RP_DIMS(1, 2));
    HAS(v, 2, 4, 6, 3, 5, 7);
    assert_int_equal(rp_stride(v, 0), 1);
    assert_int_equal(rp_stride(v, 1), 2);
    HAS(rp_as_strided(inner, RP_DIMS(2), RP_DIMS(4), 3), 3, 7); /* counted from the start of the memory */
    HAS(rp_as_strided(rp_transpose(x, 0, 1), RP_DIMS(2, 2), RP_DIMS(0, 5)), 0, 5, 0, 5);
    (void)rp_fill_(rp_as_strided(x, RP_DIMS(3), RP_DIMS(5)), rp_i64(-1));
    HAS(x, -1, 1, 2, 3, 4, -1, 6, 7, 8, 9, -1, 11);
    rp_tensor *leaf = rp_detach(count(1, 5));
    (void)rp_set_requires_grad(leaf, true);
    rp_tensor *windows = rp_as_strided(leaf, RP_DIMS(3, 3), RP_DIMS(1, 1));
    OK(rp_grad(RP_TENSORS(rp_sum(windows)), RP_TENSORS(leaf), NULL, NULL, &grad));
    HAS(grad, 1, 2, 3, 2, 1);
    REFUSED(RP_ERROR_SHAPE, "reach outside", rp_as_strided(inner, RP_DIMS(3), RP_DIMS(5)));
    REFUSED(RP_ERROR_SHAPE, "reach outside", rp_as_strided(inner, RP_DIMS(2), RP_DIMS(1), 0));
    REFUSED(RP_ERROR_UNAVAILABLE, "side by side", rp_as_strided(rp_slice(x, 1, 0, 2, 1), RP_DIMS(2), RP_DIMS(1)));
    REFUSED(RP_ERROR_INVALID_ARGUMENT, "negative", rp_as_strided(x, RP_DIMS(2), RP_DIMS(-1)));
}

/* Places counted from the end of a dim, and a dim where there is none. */
static void places_along(void **state) {
    (void)state;
    const int64_t places[] = {-1, 0, 2, -3};
    rp_tensor *index = rp_from_data(places, RP_DIMS(2, 2), RP_I64);
    HAS(rp_take_along_dim(count(2, 3), index, 1), 2, 0, 5, 3);
    refuses(rp_take_along_dim(count(2, 3), WHOLE(RP_DIMS(1, 1), -4), 1), "gather", "-4");
    rp_tensor *number = rp_reshape(count(1, 1), NULL, 0);
    HAS(rp_roll(number, RP_DIMS(1), NULL, 0), 0);
    REFUSED(RP_ERROR_SHAPE, "no dimensions", rp_roll(number, RP_DIMS(1), RP_DIMS(0)));
}

/* More dims that repeat than an expansion has room for. */
static void many_dims(void **state) {
    (void)state;
    int64_t size[RP_MAX_DIMS], times[RP_MAX_DIMS];
    for (unsigned d = 0; d < RP_MAX_DIMS; d++) size[d] = 1, times[d] = 1 + (d == 3 || d == 15);
    size[3] = size[15] = 2;
    rp_tensor *t = rp_repeat(rp_view(count(2, 2), size, RP_MAX_DIMS), times, RP_MAX_DIMS);
    assert_int_equal(rp_size(t, 3), 4);
    HAS(t, 0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3);
}

/* ---- rows in order */

static void searches(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 3, 5, 17, 255, 256, 300};
    float row[300];
    for (unsigned i = 0; i < 300; i++) row[i] = (float)(i * i % 7 / 6 + i / 2); /* rising, with equal ones */
    for (unsigned k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const int64_t n = lengths[k];
        float ask[64], left[64], right[64];
        for (unsigned i = 0; i < 64; i++) {
            ask[i] = i == 63 ? NAN : (float)i * (float)n / 100 - 3;
            left[i] = right[i] = (float)n;
            for (int64_t j = n; j-- > 0;) {
                if (row[j] >= ask[i]) left[i] = (float)j;
                if (row[j] > ask[i]) right[i] = (float)j;
            }
        }
        rp_tensor *rows = rp_from_data(row, RP_DIMS(n), RP_F32), *x = rp_from_data(ask, RP_DIMS(64), RP_F32);
        has(rp_searchsorted(rows, x), left, 64);
        has(rp_searchsorted(rows, x, RP_OPTIONS(rp_searchsorted_options, .right = RP_TRUE)), right, 64);
        has(rp_bucketize(x, rows), left, 64);
        rp_tensor *back = rp_flip(rows, RP_DIMS(0)),
                  *sorter = rp_argsort(back, 0, false, RP_OPTIONS(rp_argsort_options, .stable = RP_TRUE));
        has(rp_searchsorted(back, x, RP_OPTIONS(rp_searchsorted_options, .sorter = sorter)), left, 64);
    }
    rp_tensor *rows = rp_unsqueeze(NUMBERS(RP_DIMS(3), 1, 3, 5), 0);
    rp_tensor *two = rp_cat(RP_TENSORS(rows, rp_mul_scalar(rows, rp_i64(2))), 0);
    HAS(rp_searchsorted(two, NUMBERS(RP_DIMS(2, 2), 3, 6, 3, 6)), 1, 3, 1, 1);
    REFUSED(RP_ERROR_SHAPE, "boundaries tensor", rp_searchsorted(two, NUMBERS(RP_DIMS(2), 3, 6)));
    REFUSED(RP_ERROR_INVALID_ARGUMENT, "opposites",
            rp_searchsorted(two, two, RP_OPTIONS(rp_searchsorted_options, .right = RP_TRUE, .side = "left")));
}

/* ---- draws: their ranges and, roughly, their means */

static double mean_of(rp_tensor *t) { return rp_item_f64(rp_mean(rp_to_dtype(t, RP_F64))); }
static double least_of(rp_tensor *t) { return rp_item_f64(rp_to_dtype(rp_amin(t), RP_F64)); }
static double most_of(rp_tensor *t) { return rp_item_f64(rp_to_dtype(rp_amax(t), RP_F64)); }

static void draws(void **state) {
    (void)state;
    rp_tensor *x = rp_zeros(RP_DIMS(50, 80)), *p = rp_fill(x, rp_f64(0.25)), *again;
    rp_tensor *u = rp_uniform(x, 2, 6), *e = rp_exponential(x, 4), *b = rp_bernoulli(p);
    assert_true(least_of(u) >= 2 && most_of(u) < 6 && fabs(mean_of(u) - 4) < 0.1);
    assert_true(fabs(mean_of(rp_normal(x, 3, 0.5)) - 3) < 0.05);
    assert_true(least_of(e) > 0 && fabs(mean_of(e) - 0.25) < 0.02);
    assert_true(fabs(mean_of(b) - 0.25) < 0.04 && fabs(mean_of(rp_bernoulli_p(x, 0.75)) - 0.75) < 0.04);
    rp_tensor *whole = rp_randint_like(x, -3, 4, RP_OPTIONS(rp_randint_like_options, .dtype = RP_I8));
    assert_true(least_of(whole) == -3 && most_of(whole) == 3 && rp_dtype_of(whole) == RP_I8);
    rp_tensor *order = rp_randperm(100);
    same(rp_sort(order, 0, false, NULL, NULL), rp_arange(rp_i64(0), rp_i64(100), rp_i64(1)));
    assert_true(rp_item_i64(rp_sum(rp_to_dtype(rp_eq(order, rp_arange(rp_i64(0), rp_i64(100), rp_i64(1))), RP_I64))) <
                20);
    /* in place: the numbers of the functional form */
    OK(rp_manual_seed(3));
    again = rp_uniform(x, -1, 1);
    OK(rp_manual_seed(3));
    (void)rp_uniform_(x, -1, 1);
    same(x, again);
    OK(rp_manual_seed(3));
    again = rp_rand(RP_DIMS(50, 80));
    OK(rp_manual_seed(3));
    same(rp_rand_like(p), again);
    REFUSED(RP_ERROR_INVALID_ARGUMENT, "from=2 > to=1", rp_uniform_(x, 2, 1));
    REFUSED(RP_ERROR_INVALID_ARGUMENT, "std", rp_normal_(x, 0, -1));
    REFUSED(RP_ERROR_INVALID_ARGUMENT, "[0, 1]", rp_bernoulli_p_(x, 1.5));
    REFUSED(RP_ERROR_DTYPE, "not defined", rp_uniform(order));
    (void)rp_item_f64(rp_sum(rp_bernoulli(rp_fill(x, rp_f64(1.5)))));
    FAILED(RP_ERROR_INDEX, "bernoulli");
}

/* Whole rows of a table: lengths around vectors and tiles, tables that do not lie row by row, in both widths; a bad index among many. */
static void rows_of_a_table(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 31, 32, 100, 2049};
    static float got[50 * 2049];
    int64_t places[50];
    for (int i = 0; i < 50; i++) places[i] = i * 7 % 19;
    rp_tensor *index = rp_from_data(places, RP_DIMS(50), RP_I64);
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
        const int64_t n = columns[c];
        for (int how = 0; how < 4; how++) {
            rp_tensor *table = rp_remainder_scalar(count(19, n), rp_i64(251)); /* exact in 16 bits */
            if (how == 1) table = rp_to_dtype(table, RP_BF16);
            if (how == 2) table = rp_permute(rp_contiguous(rp_permute(table, RP_DIMS(1, 0))), RP_DIMS(1, 0));
            rp_tensor *const twice[] = {table, table};
            if (how == 3) table = rp_slice(rp_cat(twice, 2, 1), 1, n, 2 * n, 1);
            for (int op = 0; op < 2; op++) {
                rp_tensor *t = op ? rp_index_select(table, 0, index) : rp_embedding(table, index);
                if (how == 1) t = rp_to_dtype(t, RP_F32);
                OK(rp_to_host(t, got, (size_t)(50 * n) * sizeof *got));
                for (int64_t i = 0; i < 50 * n; i++) assert_true(got[i] == (float)((places[i / n] * n + i % n) % 251));
            }
        }
    }
    places[33] = 19;
    refuses(rp_embedding(count(19, 64), rp_from_data(places, RP_DIMS(50), RP_I64)), "embedding", "19");
}

/* Rows that go on in the kernel that reads them: scaled by a number a row and one a column, behind a second table, in two types. */
static void rows_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_embedding(in[0], in[1]), *b = rp_index_select(in[2], 0, rp_remainder_scalar(in[1], rp_i64(5)));
    out[0] = rp_add(rp_mul(a, in[3]), rp_mul(b, in[4]));
    out[1] = rp_gt(a, b);
}
static void rows_go_on(void **state) {
    (void)state;
    static const int64_t columns[] = {3, 40, 257, 2100};
    int64_t places[300];
    for (int i = 0; i < 300; i++) places[i] = i * 7 % 19;
    rp_compiled *f = rp_compile((rp_fn){rows_body, NULL, 0, "rows"}, NULL);
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
        for (int narrow = 0; narrow < 2; narrow++) {
            const int64_t n = columns[c], rows = n > 1000 ? 20 : 300;
            const rp_dtype dtype = narrow ? RP_BF16 : RP_F32;
            rp_tensor *const in[] = {
                rp_to_dtype(rp_randn(RP_DIMS(19, n)), dtype), rp_from_data(places, RP_DIMS(rows), RP_I64),
                rp_to_dtype(rp_randn(RP_DIMS(5, n)), dtype), rp_to_dtype(rp_randn(RP_DIMS(rows, 1)), dtype),
                rp_to_dtype(rp_randn(RP_DIMS(n)), dtype)};
            rp_tensor *got[2], *want[2];
            OK(rp_call(f, in, 5, got, 2));
            rows_body(NULL, in, 5, want, 2);
            for (int k = 0; k < 2; k++) assert_true(rp_equal(got[k], want[k]));
        }
    }
    rp_compiled_release(f);
}

/* ---- what only moves memory: rows forwards, backwards, by indices and with borders, of any length and type */

enum { OUTSIDE = -1 };
typedef int64_t place_fn(int64_t row, int64_t column, const int64_t *size); /* of the source, of `size`; or OUTSIDE */
static int64_t mirrored(int64_t r, int64_t c, const int64_t *size) { return r * size[1] + size[1] - 1 - c; }
static int64_t turned(int64_t r, int64_t c, const int64_t *size) {
    return (size[0] - 1 - r) * size[1] + size[1] - 1 - c;
}
static int64_t chosen(int64_t r, int64_t c, int64_t n) { return (r * 7 + c * 5 + 3) % n; }
static int64_t by_column(int64_t r, int64_t c, const int64_t *size) { return r * size[1] + chosen(r, c, size[1]); }
static int64_t by_row(int64_t r, int64_t c, const int64_t *size) { return chosen(r, c, size[0]) * size[1] + c; }
static int64_t columns(int64_t r, int64_t c, const int64_t *size) { return r * size[1] + chosen(0, c, size[1]); }
static int64_t anywhere(int64_t r, int64_t c, const int64_t *size) { return chosen(r, c, size[0] * size[1]); }
static int64_t padded(int64_t r, int64_t c, const int64_t *size) { /* by 3, 2, -1 and 1 */
    r += 1;
    c -= 3;
    return r >= size[0] || c < 0 || c >= size[1] ? OUTSIDE : r * size[1] + c;
}
static int64_t within(int64_t at, int64_t n, char mode) {
    if (mode == 'c') return (at + n) % n;
    if (mode == 'r') return at < 0 ? -at : at >= n ? 2 * (n - 1) - at : at;
    return at < 0 ? 0 : at >= n ? n - 1 : at;
}
static int64_t around(int64_t r, int64_t c, const int64_t *size, char mode) { /* by 2, 1, 1 and 2 */
    return within(r - 1, size[0], mode) * size[1] + within(c - 2, size[1], mode);
}
static int64_t reflected(int64_t r, int64_t c, const int64_t *size) { return around(r, c, size, 'r'); }
static int64_t extended(int64_t r, int64_t c, const int64_t *size) { return around(r, c, size, 'e'); }
static int64_t circular(int64_t r, int64_t c, const int64_t *size) { return around(r, c, size, 'c'); }

static int64_t lower(int64_t r, int64_t c, const int64_t *size) { return c - r <= 2 ? r * size[1] + c : OUTSIDE; }
static int64_t upper(int64_t r, int64_t c, const int64_t *size) { return c - r >= -1 ? r * size[1] + c : OUTSIDE; }
static int64_t whole(int64_t r, int64_t c, const int64_t *size) { return r * size[1] + c; }

/* Matrices below each other, each with a row of the source on a diagonal: two above the main one, or one below it. */
static int64_t above(int64_t r, int64_t c, const int64_t *size) {
    const int64_t side = size[1] + 2, at = r % side;
    return c == at + 2 ? r / side * size[1] + at : OUTSIDE;
}
static int64_t below(int64_t r, int64_t c, const int64_t *size) {
    const int64_t side = size[1] + 1, at = r % side;
    return at == c + 1 ? r / side * size[1] + c : OUTSIDE;
}

static int64_t value_at(int64_t place) { return place == OUTSIDE ? 9 : place % 127; }
static void moved(const char *name, rp_tensor *t, place_fn *place, const int64_t *size) {
    if (rp_failed()) fail_msg("%s: %s", name, rp_error_message());
    const unsigned ndim = (unsigned)rp_ndim(t);
    const int64_t rows = rp_size(t, ndim - 2), n = rp_size(t, ndim - 1);
    float *got = malloc((size_t)(rows * n) * sizeof *got);
    OK(rp_to_host(rp_to_dtype(t, RP_F32), got, (size_t)(rows * n) * sizeof *got));
    for (int64_t k = 0; k < rows * n; k++) {
        const int64_t want = value_at(place(k / n, k % n, size));
        if (got[k] != (float)want)
            fail_msg("%s of %s, %lld x %lld: element %lld is %g, not %lld", name, rp_dtype_name(rp_dtype_of(t)),
                     (long long)size[0], (long long)size[1], (long long)k, (double)got[k], (long long)want);
    }
    free(got);
}
static rp_tensor *indices(const int64_t *size, int64_t below, bool one_row, bool from_end, rp_dtype dtype) {
    const int64_t rows = one_row ? 1 : size[0];
    int64_t *v = malloc((size_t)(rows * size[1]) * sizeof *v);
    for (int64_t k = 0; k < rows * size[1]; k++) {
        v[k] = chosen(k / size[1], k % size[1], below);
        if (from_end && k % 3 == 0) v[k] -= below;
    }
    rp_tensor *t = rp_from_data(v, RP_DIMS(rows, size[1]), RP_I64);
    free(v);
    t = rp_to_dtype(t, dtype);
    return one_row ? rp_view(t, RP_DIMS(size[1])) : t;
}
static void moves_of(rp_dtype dtype, const int64_t *size) {
    const int64_t n = size[0] * size[1];
    rp_tensor *x = rp_remainder_scalar(rp_arange(rp_i64(0), rp_i64(n), rp_i64(1)), rp_i64(127));
    x = rp_to_dtype(rp_view(x, size, 2), dtype);
    rp_tensor *deep = rp_view(x, RP_DIMS(1, 1, size[0], size[1]));
    moved("flip", rp_flip(x, RP_DIMS(1)), mirrored, size);
    moved("flip of both", rp_flip(x, RP_DIMS(0, 1)), turned, size);
    moved("gather", rp_gather(x, 1, indices(size, size[1], false, false, RP_I64)), by_column, size);
    moved("gather of rows", rp_gather(x, 0, indices(size, size[0], false, false, RP_I64)), by_row, size);
    moved("gather of columns apart",
          rp_gather(rp_slice(rp_repeat_interleave(x, 2, 1), 1, 0, 2 * size[1], 2), 1,
                    indices(size, size[1], false, false, RP_I64)),
          by_column, size);
    moved("index_select", rp_index_select(x, 1, indices(size, size[1], true, false, RP_I64)), columns, size);
    moved("index_select by i32", rp_index_select(x, 1, indices(size, size[1], true, false, RP_I32)), columns, size);
    moved("take", rp_take(x, indices(size, n, false, true, RP_I64)), anywhere, size);
    moved("constant pad", rp_constant_pad_nd(x, RP_DIMS(3, 2, -1, 1), rp_f64(9)), padded, size);
    rp_tensor *less = rp_add_scalar(x, rp_i64(-9)); /* with nine where there is nothing */
    moved("tril", rp_add_scalar(rp_tril(less, 2), rp_i64(9)), lower, size);
    moved("triu", rp_add_scalar(rp_triu(less, -1), rp_i64(9)), upper, size);
    moved("tril of all", rp_tril(x, INT64_MAX), whole, size);
    moved("triu of all", rp_triu(x, -(INT64_C(1) << 62)), whole, size);
    if (size[1] < 100) {
        rp_tensor *on = rp_view(rp_diag_embed(less, 2, -2, -1), RP_DIMS(-1, size[1] + 2));
        moved("diag_embed", rp_add_scalar(on, rp_i64(9)), above, size);
        on = rp_view(rp_diag_embed(less, 1, -1, -2), RP_DIMS(-1, size[1] + 1));
        moved("diag_embed of turned dims", rp_add_scalar(on, rp_i64(9)), below, size);
        on = rp_view(rp_diag_embed(less, -1, -2, -1), RP_DIMS(-1, size[1] + 1));
        moved("diag_embed below", rp_add_scalar(on, rp_i64(9)), below, size);
    }
    moved("reflect", rp_pad(deep, RP_DIMS(2, 1, 1, 2), "reflect", rp_none()), reflected, size);
    moved("replicate", rp_pad(deep, RP_DIMS(2, 1, 1, 2), "replicate", rp_none()), extended, size);
    moved("circular", rp_pad(deep, RP_DIMS(2, 1, 1, 2), "circular", rp_none()), circular, size);
}
static void moves(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{3, 5}, {7, 33}, {300, 37}, {3, 8300}};
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64, RP_U8, RP_I16, RP_I64};
    for (unsigned d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (unsigned k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            if (k > 1 && (device.type != rp_cpu().type || rp_dtype_size(dtypes[d]) == 8)) continue;
            rp_scope s = rp_scope_begin();
            moves_of(dtypes[d], sizes[k]);
            rp_scope_end(s, NULL, 0);
        }
    }
}
/* One wrong index among many is told, and the others are used. */
/* A diagonal that is written, and the gradients of what is read part by part, where no loop makes the parts: eagerly and compiled. */
static void parts_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_roll(rp_roll(in[0], RP_DIMS(3, -2), RP_DIMS(1, 2)), RP_DIMS(5), NULL, 0);
    out[0] = rp_diag_embed(in[1], 1, -2, -1);
    out[1] = rp_diagonal_scatter(in[2], in[3], 0, 0, 1);
    out[2] = rp_diagonal_scatter(rp_full_like(in[2], rp_f64(-0.5), NULL), in[3], 0, 1, 0);
    OK(rp_grad(&x, 1, in, 1, in + 4, NULL, &out[3]));
}
static void parts(void **state) {
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){parts_body, NULL, 0, "parts"}, NULL);
    for (int k = 0; k < 4; k++) {
        const rp_dtype dtype = k % 2 ? RP_BF16 : RP_F32;
        const int64_t n = k < 2 ? 7 : 40;
        rp_tensor *const in[] = {rp_to_dtype(rp_randn(RP_DIMS(3, 5, n)), dtype),
                                 rp_to_dtype(rp_randn(RP_DIMS(3, n)), dtype),
                                 rp_to_dtype(rp_randn(RP_DIMS(n, n)), dtype), rp_to_dtype(rp_randn(RP_DIMS(n)), dtype),
                                 rp_mul_scalar(rp_to_dtype(rp_randint(0, 2, RP_DIMS(3, 5, n)), dtype), rp_f64(-1))};
        rp_tensor *got[4], *want[4];
        rp_set_requires_grad(in[0], true);
        OK(rp_call(f, in, 5, got, 4));
        parts_body(NULL, in, 5, want, 4);
        for (int i = 0; i < 4; i++) {
            assert_true(rp_equal(got[i], want[i]));
            assert_true(rp_equal(rp_signbit(got[i]), rp_signbit(want[i])));
        }
    }
    rp_compiled_release(f);
}

static void one_is_wrong(void **state) {
    (void)state;
    const int64_t size[2] = {40, 37};
    rp_tensor *x = count(40, 37), *right = indices(size, 37, false, false, RP_I64);
    rp_tensor *wrong = rp_masked_fill_scalar(
        right, rp_eq_scalar(rp_view(rp_arange(rp_i64(0), rp_i64(1480), rp_i64(1)), size, 2), rp_i64(777)), rp_i64(37));
    OK(rp_synchronize(device));
    rp_tensor *got = rp_gather(x, 1, wrong);
    refuses(got, "gather", "37");
    rp_tensor *row = rp_view(wrong, RP_DIMS(1480));
    refuses(rp_index_select(x, 1, rp_slice(row, 0, 760, 790)), "index_select", "37");
}

/* A line along dim is combined in rising order, whether lines lie one behind the other or side by side. */
static void lines_of_scatters(void **state) {
    (void)state;
    static const char *const reductions[] = {"sum", "prod", "amax", "amin", "mean"};
    const bool cpu = device.type == rp_cpu().type;
    const int64_t size[2] = {37, 61};
    rp_tensor *x = rp_randn(RP_DIMS(37, 40)), *src = rp_randn(size, 2);
    if (!cpu) x = rp_round(rp_mul_scalar(x, rp_f64(4))), src = rp_round(rp_mul_scalar(src, rp_f64(2))); /* exact */
    rp_tensor *index = indices(size, 40, false, false, RP_I64);
    rp_tensor *across[3] = {rp_contiguous(rp_t(x)), rp_contiguous(rp_t(index)), rp_contiguous(rp_t(src))};
    same(rp_scatter_add(x, 1, index, src), rp_contiguous(rp_t(rp_scatter_add(across[0], 0, across[1], across[2]))));
    same(rp_scatter_add(rp_view(x, RP_DIMS(-1)), 0, rp_view(index, RP_DIMS(-1)), rp_view(src, RP_DIMS(-1))),
         rp_view(rp_scatter_add(rp_view(x, RP_DIMS(1, -1)), 1, rp_view(index, RP_DIMS(1, -1)),
                                rp_view(src, RP_DIMS(1, -1))),
                 RP_DIMS(-1)));
    for (unsigned k = 0; k < sizeof reductions / sizeof *reductions && cpu; k++) {
        rp_tensor *a = rp_scatter_reduce(x, 1, index, src, reductions[k]);
        rp_tensor *b = rp_scatter_reduce(across[0], 0, across[1], across[2], reductions[k]);
        same(a, rp_contiguous(rp_t(b)));
    }
    rp_tensor *wrong = rp_masked_fill_scalar(index, rp_eq_scalar(index, rp_i64(39)), rp_i64(40));
    refuses(rp_scatter_add(x, 1, wrong, src), "scatter_add", "40");
}

/* Parts of a few bytes a row, of rows that lie apart: what is joined is what was taken apart. */
static void narrow_parts(void **state) {
    (void)state;
    enum { ROWS = 37, COLUMNS = 80 };
    static const rp_dtype types[] = {RP_U8, RP_F16, RP_F32, RP_F64};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        static char want[ROWS * COLUMNS * 8], got[sizeof want];
        const size_t bytes = ROWS * COLUMNS * rp_dtype_size(types[k]);
        rp_tensor *all = rp_to_dtype(rp_remainder_scalar(count(ROWS, COLUMNS), rp_f64(251)), types[k]);
        OK(rp_to_host(all, want, bytes));
        for (int64_t n = 1; n < COLUMNS; n++) {
            rp_tensor *part[2] = {rp_narrow(all, 1, 0, n), rp_narrow(all, 1, n, COLUMNS - n)};
            rp_tensor *both = rp_cat(part, 2, 1), *apart = rp_contiguous(part[0]);
            OK(rp_to_host(both, got, bytes));
            assert_memory_equal(want, got, bytes);
            both = rp_cat(((rp_tensor *const[]){apart, part[1]}), 2, 1);
            OK(rp_to_host(both, got, bytes));
            assert_memory_equal(want, got, bytes);
        }
    }
}

static void sized(rp_tensor *t, size_t ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t size[3] = {a, b, c};
    assert_int_equal(rp_ndim(t), ndim);
    for (size_t d = 0; d < ndim; d++) assert_int_equal(rp_size(t, (int64_t)d), size[d]);
}

/* A mask without dims adds one, of one place or none. */
static void masks_without_dims(void **state) {
    (void)state;
    const bool on = true, off = false;
    rp_tensor *yes = rp_from_data(&on, RP_NO_DIMS, RP_BOOL), *no = rp_from_data(&off, RP_NO_DIMS, RP_BOOL);
    rp_tensor *x = count(2, 3), *turned = WHOLE(RP_DIMS(2), 1, 0), *y = rp_index(x, RP_TENSORS(yes));
    sized(y, 3, 1, 2, 3);
    HAS(y, 0, 1, 2, 3, 4, 5);
    sized(rp_index(x, RP_TENSORS(no)), 3, 0, 2, 3);
    y = rp_index(x, RP_TENSORS(NULL, yes));
    sized(y, 3, 2, 1, 3);
    HAS(y, 0, 1, 2, 3, 4, 5);
    y = rp_index(x, RP_TENSORS(yes, turned));
    sized(y, 2, 2, 3, 0);
    HAS(y, 3, 4, 5, 0, 1, 2);
    y = rp_index(x, RP_TENSORS(turned, yes));
    sized(y, 2, 2, 3, 0);
    HAS(y, 3, 4, 5, 0, 1, 2);
    REFUSED(RP_ERROR_SHAPE, "do not broadcast", rp_index(x, RP_TENSORS(turned, no)));
    HAS(rp_index(rp_sum(x), RP_TENSORS(yes)), 15);
    assert_int_equal(rp_numel(rp_index(rp_sum(x), RP_TENSORS(no))), 0);
    rp_tensor *row = NUMBERS(RP_DIMS(1, 3), 7, 8, 9);
    y = rp_index_put(x, RP_TENSORS(yes, WHOLE(RP_DIMS(1), 1)), row);
    sized(y, 2, 2, 3, 0);
    HAS(y, 0, 1, 2, 7, 8, 9);
    HAS(rp_index_put(x, RP_TENSORS(yes), rp_sum(row)), 24, 24, 24, 24, 24, 24);
    HAS(rp_index_put(x, RP_TENSORS(no), rp_sum(row)), 0, 1, 2, 3, 4, 5);
    y = rp_index_put_(x, RP_TENSORS(NULL, yes), row);
    sized(y, 2, 2, 3, 0);
    HAS(x, 7, 8, 9, 7, 8, 9);
    rp_tensor *leaf = count(2, 3);
    OK(rp_set_requires_grad(leaf, true));
    OK(rp_backward(rp_sum(rp_mul(rp_index(leaf, RP_TENSORS(NULL, yes)), rp_view(count(2, 3), RP_DIMS(2, 1, 3)))), NULL,
                   NULL));
    HAS(rp_grad_of(leaf), 0, 1, 2, 3, 4, 5);
}

/* The gradient of a bag's largest element goes to the first of equal ones; NaN is the largest, and an empty bag is 0. */
static void first_of_a_bag(void **state) {
    (void)state;
    rp_tensor *w = NUMBERS(RP_DIMS(4, 2), 1, 2, 1, 0, 3, 2, NAN, 5);
    OK(rp_set_requires_grad(w, true));
    rp_tensor *y = rp_embedding_bag(w, WHOLE(RP_DIMS(5), 0, 1, 2, 2, 1), WHOLE(RP_DIMS(3), 0, 2, 2), false, 2);
    HAS(y, 1, 2, 0, 0, 3, 2);
    OK(rp_backward(rp_sum(rp_mul(y, NUMBERS(RP_DIMS(3, 2), 1, 2, 3, 4, 5, 6))), NULL, NULL));
    HAS(rp_grad_of(w), 1, 2, 0, 0, 5, 6, 0, 0);
    y = rp_embedding_bag(w, WHOLE(RP_DIMS(3), 0, 3, 2), WHOLE(RP_DIMS(1), 0), false, 2);
    HAS(rp_isnan(y), 1, 0);
}

/* Ranks of float32 are float64: k / 5 of six elements are their neighbours' where k / 5 rounds up, or down. */
static void ranks_of_quantiles(void **state) {
    (void)state;
    rp_tensor *x = rp_mul_scalar(rp_view(count(1, 6), RP_DIMS(6)), rp_i64(10));
    rp_tensor *q = NUMBERS(RP_DIMS(6), 0.0f, 0.2f, 0.4f, 0.6f, 0.8f, 1.0f);
#define QUANTILE(name, way) name(x, q, INT64_MIN, false, RP_OPTIONS(name##_options, .interpolation = way))
    HAS(QUANTILE(rp_quantile, "higher"), 0, 20, 30, 40, 50, 50);
    HAS(QUANTILE(rp_quantile, "lower"), 0, 10, 20, 30, 40, 50);
    HAS(QUANTILE(rp_quantile, "midpoint"), 0, 15, 25, 35, 45, 50);
    HAS(QUANTILE(rp_nanquantile, "higher"), 0, 20, 30, 40, 50, 50);
    x = rp_to_dtype(x, RP_F64), q = rp_div_scalar(rp_to_dtype(rp_view(count(1, 6), RP_DIMS(6)), RP_F64), rp_i64(5));
    HAS(QUANTILE(rp_quantile, "higher"), 0, 10, 20, 30, 40, 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(masks_without_dims, begin, end),
        cmocka_unit_test_setup_teardown(first_of_a_bag, begin, end),
        cmocka_unit_test_setup_teardown(ranks_of_quantiles, begin, end),
        cmocka_unit_test_setup_teardown(out_of_range, begin, end),
        cmocka_unit_test_setup_teardown(in_order, begin, end),
        cmocka_unit_test_setup_teardown(in_place, begin, end),
        cmocka_unit_test_setup_teardown(gradients_of_writes, begin, end),
        cmocka_unit_test_setup_teardown(gradient_of_a_filling_number, begin, end),
        cmocka_unit_test_setup_teardown(masks, begin, end),
        cmocka_unit_test_setup_teardown(strides, begin, end),
        cmocka_unit_test_setup_teardown(places_along, begin, end),
        cmocka_unit_test_setup_teardown(many_dims, begin, end),
        cmocka_unit_test_setup_teardown(searches, begin, end),
        cmocka_unit_test_setup_teardown(draws, begin, end),
        cmocka_unit_test_setup_teardown(rows_of_a_table, begin, end),
        cmocka_unit_test_setup_teardown(rows_go_on, begin, end),
        cmocka_unit_test_setup_teardown(moves, begin, end),
        cmocka_unit_test_setup_teardown(parts, begin, end),
        cmocka_unit_test_setup_teardown(one_is_wrong, begin, end),
        cmocka_unit_test_setup_teardown(lines_of_scatters, begin, end),
        cmocka_unit_test_setup_teardown(narrow_parts, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
