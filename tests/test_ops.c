/* The op sweep: the ops that have a reference in tests/ref against it, over element types and memory layouts
   (on the CPU; test_cuda_ops.c: on CUDA); error messages; in-place rules; overlap; random and optimizer ops; calls by
   name; user ops.
   ctest: labels=numbers timeout=300 cost=20 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"
#include "ops/optim.h"
#include "ops/private.h"
#include "ref/sweep.h"

static void test_sweep_cpu(void **state) {
    (void)state;
    (void)ref_sweep(rp_cpu(), NULL);
}

/* A reference without a row fails; rows without expected values do in test_samples.c. */
static void test_references_are_of_rows(void **state) {
    (void)state;
    for (size_t i = 0; ref_at(i); i++)
        if (!rp__op_find(ref_at(i)->name)) fail_msg("tests/ref: there is no op %s", ref_at(i)->name);
}

/* ---- errors: the op, the text, the line */

static void expect_error(int line, rp_tensor *result, rp_status status, const char *fragment) {
    if (!rp_is_error(result) || rp_error_status() != status || !strstr(rp_error_message(), fragment) ||
        !strstr(rp_error_message(), "test_ops.c:"))
        fail_msg("line %d: expected %s '%s', got %s '%s'", line, rp_status_name(status), fragment,
                 rp_status_name(rp_error_status()), rp_error_message());
    (void)rp_error_take();
}
#define EXPECT(result, status, fragment) expect_error(__LINE__, (result), (status), (fragment))

static rp_tensor *z(rp_dtype d, const int64_t *size, size_t ndim) {
    return rp_full(size, ndim, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = d));
}
#define Z(d, ...) z((d), RP_DIMS(__VA_ARGS__))
static rp_tensor *scalar_of(rp_dtype d) { return z(d, RP_NO_DIMS); }

static void test_errors_pointwise(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *f = Z(RP_F32, 3), *i = Z(RP_I64, 3), *b = Z(RP_BOOL, 3), *u = Z(RP_U8, 3);
    EXPECT(rp_add(f, Z(RP_F32, 4)), RP_ERROR_SHAPE,
           "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0");
    EXPECT(rp_add(i, i, RP_OPTIONS(rp_add_options, .alpha = rp_f64(1.5))), RP_ERROR_DTYPE,
           "For integral input tensors, argument alpha must not be a floating point number.");
    EXPECT(rp_add(i, i, RP_OPTIONS(rp_add_options, .alpha = rp_bool(true))), RP_ERROR_DTYPE,
           "Boolean alpha only supported for Boolean results.");
    EXPECT(rp_sub(b, b), RP_ERROR_DTYPE, "with two bool tensors is not supported");
    EXPECT(rp_sub(b, i), RP_ERROR_DTYPE, "with a bool tensor is not supported");
    EXPECT(rp_neg(b), RP_ERROR_DTYPE, "on a bool tensor is not supported");
    EXPECT(rp_abs(b), RP_ERROR_DTYPE, "is not defined for 'Bool'");
    EXPECT(rp_relu(b), RP_ERROR_DTYPE, "Boolean inputs not supported for relu");
    EXPECT(rp_gelu(i), RP_ERROR_DTYPE, "is not defined for 'Long'");
    EXPECT(rp_pow_scalar(i, rp_i64(-1)), RP_ERROR_INVALID_ARGUMENT,
           "Integers to negative integer powers are not allowed.");
    EXPECT(rp_clamp(u, rp_i64(300)), RP_ERROR_INVALID_ARGUMENT,
           "Clamp min value 300 is outside the representable range of Byte");
    EXPECT(rp_clamp(u, rp_i64(-3), rp_i64(-1)), RP_ERROR_INVALID_ARGUMENT, "Clamp max value -1 is outside");
    EXPECT(rp_clamp(Z(RP_F16, 3), rp_none(), rp_f64(1e6)), RP_ERROR_INVALID_ARGUMENT, "without overflow");
    EXPECT(rp_hardtanh(u, rp_i64(300), rp_i64(400)), RP_ERROR_INVALID_ARGUMENT, "Clamp min value 300 is outside");
    EXPECT(rp_hardtanh(u, rp_i64(-5), rp_i64(-1)), RP_ERROR_INVALID_ARGUMENT, "Clamp max value -1 is outside");
    EXPECT(rp_hardtanh(Z(RP_F16, 3), rp_f64(-1e6), rp_f64(1e6)), RP_ERROR_INVALID_ARGUMENT, "without overflow");
    EXPECT(rp_clamp_tensor(f, NULL, NULL), RP_ERROR_INVALID_ARGUMENT,
           "At least one of 'min' or 'max' must not be None");
    EXPECT(rp_clamp_tensor(b, b, b), RP_ERROR_DTYPE, "is not defined for 'Bool'");
    EXPECT(rp_where(f, f, f), RP_ERROR_DTYPE,
           "where expected condition to be a boolean tensor, but got a tensor with dtype Float");
    EXPECT(rp_add_scalar_(i, rp_f64(1.5)), RP_ERROR_DTYPE,
           "result type Float can't be cast to the desired output type Long");
    EXPECT(rp_add_scalar_(b, rp_i64(1)), RP_ERROR_DTYPE,
           "result type Long can't be cast to the desired output type Bool");
    EXPECT(rp_div_(i, i), RP_ERROR_DTYPE, "result type Float can't be cast to the desired output type Long");
    EXPECT(rp_exp_(u), RP_ERROR_DTYPE, "result type Float can't be cast to the desired output type Byte");
    EXPECT(rp_add_(f, Z(RP_F32, 2, 3)), RP_ERROR_SHAPE,
           "output with shape (3) doesn't match the broadcast shape (2, 3)");
    EXPECT(rp_copy_(f, Z(RP_F32, 2, 3)), RP_ERROR_SHAPE,
           "output with shape (3) doesn't match the broadcast shape (2, 3)");
    EXPECT(rp_fill_(u, rp_i64(300)), RP_ERROR_INVALID_ARGUMENT, "without overflow");
    EXPECT(rp_full(RP_DIMS(2), rp_f64(1e6), RP_OPTIONS(rp_full_options, .dtype = RP_F16)), RP_ERROR_INVALID_ARGUMENT,
           "without overflow");
    EXPECT(rp_full(RP_DIMS(-2), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)), RP_ERROR_SHAPE,
           "Trying to create tensor with negative dimension -2");
    EXPECT(rp_arange(rp_i64(0), rp_i64(1), rp_i64(0)), RP_ERROR_INVALID_ARGUMENT, "step must be nonzero");
    EXPECT(rp_arange(rp_i64(1), rp_i64(0)), RP_ERROR_INVALID_ARGUMENT,
           "upper bound and lower bound inconsistent with step sign");
    EXPECT(rp_arange(rp_i64(0), rp_f64(INFINITY), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
           RP_ERROR_INVALID_ARGUMENT, "unsupported range");
    EXPECT(rp_arange(rp_i64(0), rp_i64(2), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_BOOL)), RP_ERROR_DTYPE,
           "is not defined for 'Bool'");
    EXPECT(rp_add(NULL, f), RP_ERROR_INVALID_ARGUMENT, "self");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_errors_reduce(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *f = Z(RP_F32, 2, 3), *i = Z(RP_I64, 2);
    EXPECT(rp_sum(f, RP_DIMS(0, -2)), RP_ERROR_INVALID_ARGUMENT, "dim 0 appears multiple times in the list of dims");
    EXPECT(rp_sum(f, RP_DIMS(2)), RP_ERROR_INDEX,
           "Dimension out of range (expected to be in range of [-2, 1], but got 2)");
    EXPECT(rp_mean(i), RP_ERROR_DTYPE, "Input dtype must be either a floating point or complex dtype. Got: Long");
    EXPECT(rp_mean(f, RP_NO_DIMS, false, RP_OPTIONS(rp_mean_options, .dtype = RP_I64)), RP_ERROR_DTYPE,
           "Optional dtype must be either a floating point");
    EXPECT(rp_amax(Z(RP_F32, 0), RP_NO_DIMS, false), RP_ERROR_SHAPE,
           "Expected reduction dim to be specified for input.numel() == 0");
    EXPECT(rp_amax(Z(RP_F32, 0, 3), RP_DIMS(0), false), RP_ERROR_INDEX,
           "Expected reduction dim 0 to have non-zero size.");
    EXPECT(rp_softmax(i, 0), RP_ERROR_DTYPE, "is not defined for 'Long'");
    EXPECT(rp_softmax(f, 2), RP_ERROR_INDEX, "Dimension out of range");
    EXPECT(rp_layer_norm(f, RP_DIMS(2), NULL, NULL, 1e-5), RP_ERROR_SHAPE,
           "Given normalized_shape=(2), expected input with shape");
    EXPECT(rp_layer_norm(f, RP_NO_DIMS, NULL, NULL, 1e-5), RP_ERROR_SHAPE,
           "Expected normalized_shape to be at least 1-dimensional");
    EXPECT(rp_layer_norm(f, RP_DIMS(3), i, NULL, 1e-5), RP_ERROR_SHAPE,
           "Expected weight to be of same shape as normalized_shape");
    EXPECT(rp_cross_entropy(f, Z(RP_I64, 3)), RP_ERROR_SHAPE,
           "Expected input batch_size (2) to match target batch_size (3).");
    EXPECT(rp_cross_entropy(f, Z(RP_F32, 2)), RP_ERROR_DTYPE,
           "expected target dtype to be Long or Byte, but got Float");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_errors_views(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *f = Z(RP_F32, 2, 3);
    EXPECT(rp_view(f, RP_DIMS(4)), RP_ERROR_SHAPE, "is invalid for input of size 6");
    EXPECT(rp_view(f, RP_DIMS(-1, -1)), RP_ERROR_SHAPE, "only one dimension can be inferred");
    EXPECT(rp_view(f, RP_DIMS(-2, 3)), RP_ERROR_SHAPE, "invalid shape dimension -2");
    EXPECT(rp_view(Z(RP_F32, 0), RP_DIMS(0, -1)), RP_ERROR_SHAPE, "cannot reshape tensor of 0 elements into shape");
    EXPECT(rp_view(rp_transpose(f, 0, 1), RP_DIMS(6)), RP_ERROR_SHAPE,
           "view size is not compatible with input tensor's size and stride");
    EXPECT(rp_permute(f, RP_DIMS(0)), RP_ERROR_SHAPE,
           "number of dimensions in the tensor input does not match the length of the desired ordering");
    EXPECT(rp_permute(f, RP_DIMS(0, 0)), RP_ERROR_INVALID_ARGUMENT, "duplicate dims are not allowed");
    EXPECT(rp_expand(f, RP_DIMS(2, 4)), RP_ERROR_SHAPE,
           "The expanded size of the tensor (4) must match the existing size (3) at non-singleton dimension 1.");
    EXPECT(rp_expand(f, RP_DIMS(3)), RP_ERROR_SHAPE,
           "must be greater or equal to the number of dimensions in the tensor (2)");
    EXPECT(rp_expand(f, RP_DIMS(-1, 2, 3)), RP_ERROR_SHAPE, "isn't allowed in a leading, non-existing dimension 0");
    EXPECT(rp_slice(f, 0, 0, 1, 0), RP_ERROR_INVALID_ARGUMENT, "slice step must be positive");
    EXPECT(rp_slice(scalar_of(RP_F32), 0, 0, 1, 1), RP_ERROR_SHAPE, "cannot be applied to a 0-dim tensor.");
    EXPECT(rp_select(f, 0, 5), RP_ERROR_INDEX, "index 5 out of range for tensor of size (2, 3) at dimension 0");
    EXPECT(rp_slice_scatter(f, Z(RP_F32, 1), 0, 0, 1, 1), RP_ERROR_SHAPE,
           "expected src to have a size equal to the slice of self");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_errors_index(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *f = Z(RP_F32, 2, 3), *i = Z(RP_I64, 2), *none[] = {NULL};
    EXPECT(rp_cat(none, 0, 0), RP_ERROR_INVALID_ARGUMENT, "expected a non-empty list of Tensors");
    EXPECT(rp_cat(RP_TENSORS(f, Z(RP_F32, 3, 4)), 0), RP_ERROR_SHAPE,
           "Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4 for tensor number 1");
    EXPECT(rp_cat(RP_TENSORS(f, i), 0), RP_ERROR_SHAPE, "Tensors must have same number of dimensions: got 2 and 1");
    EXPECT(rp_cat(RP_TENSORS(scalar_of(RP_F32)), 0), RP_ERROR_SHAPE,
           "zero-dimensional tensor (at position 0) cannot be concatenated");
    EXPECT(rp_gather(f, 0, Z(RP_F32, 2, 3)), RP_ERROR_DTYPE, "for index");
    EXPECT(rp_gather(f, 0, i), RP_ERROR_SHAPE, "Index tensor must have the same number of dimensions as input tensor");
    EXPECT(rp_gather(f, 0, Z(RP_I64, 3, 4)), RP_ERROR_SHAPE, "to be no larger than self");
    EXPECT(rp_scatter_add(f, 0, Z(RP_I64, 2, 3), Z(RP_I64, 2, 3)), RP_ERROR_DTYPE,
           "Expected self.dtype to be equal to src.dtype");
    /* 0-d stands for a row of one, also where it is the index or the source */
    EXPECT(rp_scatter_add(scalar_of(RP_F32), 0, scalar_of(RP_I64), Z(RP_F32, 0)), RP_ERROR_SHAPE,
           "to be no larger than src");
    EXPECT(rp_scatter_add(Z(RP_F32, 4), 0, Z(RP_I64, 3), scalar_of(RP_F32)), RP_ERROR_SHAPE,
           "to be no larger than src");
    EXPECT(rp_embedding(i, i), RP_ERROR_SHAPE, "'weight' must be 2-D");
    EXPECT(rp_embedding(f, f), RP_ERROR_DTYPE, "for index");
    EXPECT(rp_topk(f, 4, 1, true, true, NULL), RP_ERROR_INDEX, "selected index k out of range");
    EXPECT(rp_topk(Z(RP_BOOL, 3), 1, 0, true, true, NULL), RP_ERROR_DTYPE, "is not defined for 'Bool'");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_errors_matrices(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *f = Z(RP_F32, 2, 3), *v = Z(RP_F32, 4), *x = Z(RP_F32, 1, 3, 4, 4), *w = Z(RP_F32, 2, 3, 3, 3);
    EXPECT(rp_matmul(f, Z(RP_F32, 4, 5)), RP_ERROR_SHAPE, "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
    EXPECT(rp_matmul(f, v), RP_ERROR_SHAPE, "size mismatch, got input (2), mat (2x3), vec (4)");
    EXPECT(rp_matmul(v, Z(RP_F32, 3)), RP_ERROR_SHAPE, "inconsistent tensor size, expected tensor [4] and src [3]");
    EXPECT(rp_matmul(scalar_of(RP_F32), v), RP_ERROR_SHAPE,
           "both arguments to matmul need to be at least 1D, but they are 0D and 1D");
    EXPECT(rp_matmul(f, Z(RP_F64, 3, 2)), RP_ERROR_DTYPE, "expected m1 and m2 to have the same dtype");
    EXPECT(rp_linear(f, Z(RP_F32, 4, 5), NULL), RP_ERROR_SHAPE,
           "mat1 and mat2 shapes cannot be multiplied (2x3 and 5x4)");
    EXPECT(rp_conv2d(x, Z(RP_F32, 2, 4, 3, 3), NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 1), RP_ERROR_SHAPE,
           "to have 4 channels, but got 3 channels instead");
    EXPECT(rp_conv2d(Z(RP_F32, 1, 3, 2, 2), w, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 1), RP_ERROR_SHAPE,
           "Kernel size can't be greater than actual input size");
    EXPECT(rp_conv2d(x, w, NULL, RP_DIMS(0, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 1), RP_ERROR_INVALID_ARGUMENT,
           "non-positive stride is not supported");
    EXPECT(rp_conv2d(x, w, NULL, RP_DIMS(1, 1), RP_DIMS(-1, 0), RP_DIMS(1, 1), 1), RP_ERROR_INVALID_ARGUMENT,
           "negative padding is not supported");
    EXPECT(rp_conv2d(x, w, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(0, 1), 1), RP_ERROR_INVALID_ARGUMENT,
           "dilation should be greater than zero");
    EXPECT(rp_conv2d(x, w, NULL, RP_DIMS(1, 1, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 1), RP_ERROR_SHAPE,
           "expected stride to be a single integer value or a list of 2 values");
    EXPECT(rp_conv2d(x, w, v, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 1), RP_ERROR_SHAPE,
           "expected bias to be 1-dimensional with 2 elements");
    EXPECT(
        rp_conv2d(Z(RP_F32, 1, 4, 4, 4), Z(RP_F32, 3, 2, 3, 3), NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 2),
        RP_ERROR_SHAPE, "expected weight to be divisible by 2 at dimension 0");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_errors_random(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *p = rp_full(RP_DIMS(2), rp_f64(0.5));
    EXPECT(rp_rand(RP_DIMS(2), RP_OPTIONS(rp_rand_options, .dtype = RP_I64)), RP_ERROR_DTYPE,
           "is not defined for 'Long'");
    EXPECT(rp_randint(5, 5, RP_DIMS(2)), RP_ERROR_INVALID_ARGUMENT, "from=5 >= to=5");
    EXPECT(rp_randint(0, 300, RP_DIMS(2), RP_OPTIONS(rp_randint_options, .dtype = RP_U8)), RP_ERROR_INVALID_ARGUMENT,
           "to - 1 is out of bounds");
    EXPECT(rp_randint(-1, 3, RP_DIMS(2), RP_OPTIONS(rp_randint_options, .dtype = RP_U8)), RP_ERROR_INVALID_ARGUMENT,
           "from is out of bounds");
    EXPECT(rp_dropout(p, 1.5, true), RP_ERROR_INVALID_ARGUMENT,
           "dropout probability has to be between 0 and 1, but got 1.5");
    EXPECT(rp_multinomial(Z(RP_I64, 2), 1, false), RP_ERROR_DTYPE,
           "multinomial only supports floating-point dtypes for input, got: Long");
    EXPECT(rp_multinomial(p, 3, false), RP_ERROR_INVALID_ARGUMENT,
           "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
    EXPECT(rp_multinomial(p, 0, false), RP_ERROR_INVALID_ARGUMENT, "cannot sample n_sample <= 0 samples");
    EXPECT(rp_multinomial(scalar_of(RP_F32), 1, false), RP_ERROR_SHAPE, "prob_dist must be 1 or 2 dim");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* An index that only the kernel sees: found at the next synchronisation, with op and line. */
static void test_errors_from_kernels(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    const int64_t bad[] = {0, 9}, negative[] = {-1, 0};
    rp_tensor *w = Z(RP_F32, 3, 2), *i = rp_from_data(bad, RP_DIMS(2), RP_I64),
              *m = rp_from_data(negative, RP_DIMS(2, 1), RP_I64);
    rp_tensor *results[] = {rp_embedding(w, i), rp_gather(w, 1, m),
                            rp_cross_entropy(w, rp_from_data((const int64_t[]){0, 1, 2}, RP_DIMS(3), RP_I64))};
    static const char *const names[] = {"embedding", "gather", "cross_entropy"};
    for (int k = 0; k < 3; k++) {
        if (k > 0)
            results[k] = k == 1 ? rp_gather(w, 1, m)
                                : rp_cross_entropy(w, rp_from_data((const int64_t[]){0, 1, 2}, RP_DIMS(3), RP_I64));
        else
            results[k] = rp_embedding(w, i);
        assert_false(rp_is_error(results[k]));
        assert_int_equal(rp_synchronize(rp_cpu()), RP_ERROR_INDEX);
        if (!strstr(rp_error_message(), names[k]) || !strstr(rp_error_message(), "test_ops.c:"))
            fail_msg("expected %s: %s", names[k], rp_error_message());
        (void)rp_error_take();
        (void)rp_synchronize(rp_cpu());
        (void)rp_error_take();
    }
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* ---- in place */

static double element(rp_tensor *t, int64_t i) {
    rp_tensor *flat = rp_reshape(rp_to_dtype(t, RP_F64), RP_DIMS(-1));
    return rp_item_f64(rp_select(flat, 0, i));
}

static void test_overlap(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_arange(rp_i64(0), rp_i64(16), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
              *m = rp_view(x, RP_DIMS(4, 4));
    EXPECT(rp_add_(rp_slice(x, 0, 1, INT64_MIN, 1), rp_slice(x, 0, 0, 15, 1)), RP_ERROR_INVALID_ARGUMENT,
           "some elements of the input tensor and the written-to tensor refer to a single memory location");
    EXPECT(rp_copy_(rp_slice(x, 0, 1, INT64_MIN, 1), rp_slice(x, 0, 0, 15, 1)), RP_ERROR_INVALID_ARGUMENT,
           "some elements of the input tensor");
    EXPECT(rp_add_(m, rp_transpose(m, 0, 1)), RP_ERROR_INVALID_ARGUMENT, "some elements of the input tensor");
    rp_tensor *e = rp_expand(Z(RP_F32, 1), RP_DIMS(3));
    EXPECT(rp_add_scalar_(e, rp_i64(1)), RP_ERROR_INVALID_ARGUMENT,
           "more than one element of the written-to tensor refers to a single memory location");
    EXPECT(rp_copy_(e, Z(RP_F32, 3)), RP_ERROR_INVALID_ARGUMENT, "more than one element of the written-to tensor");
    assert_true(element(m, 5) == 5); /* nothing was written */

    rp_add_(m, m); /* the same elements */
    assert_true(element(m, 5) == 10);
    /* parts of rows: PyTorch does not look closer; the result is that of separate memory */
    rp_copy_(rp_slice(m, 1, 1, INT64_MIN, 1), rp_slice(m, 1, 0, 3, 1));
    for (int r = 0; r < 4; r++) {
        for (int c = 0; c < 4; c++) assert_true(element(m, r * 4 + c) == 2 * (r * 4 + (c ? c - 1 : 0)));
    }
    uint64_t version = rp_version(x);
    rp_fill_(rp_select(m, 0, 2), rp_i64(-1)); /* through a view: the storage's version */
    assert_true(rp_version(x) == version + 1);
    assert_true(element(x, 8) == -1 && element(x, 12) == 24);
    rp_fill_(e, rp_i64(4)); /* every element the same: allowed */
    assert_true(element(e, 2) == 4);
    assert_false(rp_failed());
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* ---- random numbers */

static double word_of(uint64_t seed, uint64_t first, int64_t i) {
    uint32_t w[4];
    ref_philox(seed, first + (uint64_t)i / 4, w);
    return w[i % 4];
}

static void test_rand(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_generator *g = rp_generator_new(rp_cpu(), 1234);
    uint64_t seed, at;
    enum { N = 103 };
    for (int t = 0; t < 4; t++) {
        assert_int_equal(rp_generator_get(g, &seed, &at), RP_OK);
        rp_tensor *u = rp_to_dtype(
            rp_rand(RP_DIMS(N), RP_OPTIONS(rp_rand_options, .generator = g, .dtype = ref_types[t])), RP_F64);
        const double *v = rp_data(u);
        assert_non_null(v);
        for (int i = 0; i < N; i++) {
            double want;
            if (ref_types[t] == RP_F64) {
                uint32_t w[4];
                ref_philox(seed, at + (uint64_t)i / 2, w);
                want = ldexp((double)(((uint64_t)w[i % 2 * 2] << 32 | w[i % 2 * 2 + 1]) >> 11), -53);
            } else {
                int bits = ref_types[t] == RP_F32 ? 24 : ref_types[t] == RP_F16 ? 11 : 8;
                want = ldexp(floor(ldexp(word_of(seed, at, i), bits - 32)), -bits);
            }
            if (v[i] != want)
                fail_msg("rand %s element %d: %.17g, expected %.17g", rp_dtype_name(ref_types[t]), i, v[i], want);
        }
        uint64_t after;
        assert_int_equal(rp_generator_get(g, &seed, &after), RP_OK);
        assert_true(after - at == (uint64_t)(ref_types[t] == RP_F64 ? (N + 1) / 2 : (N + 3) / 4));
    }
    /* normals: Box-Muller on pairs of words */
    assert_int_equal(rp_generator_get(g, &seed, &at), RP_OK);
    const double *v = rp_data(rp_randn(RP_DIMS(N), RP_OPTIONS(rp_randn_options, .generator = g, .dtype = RP_F64)));
    const double two_pi = 6.283185307179586476925;
    for (int i = 0; i < N; i++) {
        int64_t pair = i / 2 * 2;
        double radius = sqrt(-2 * log(ldexp(word_of(seed, at, pair) + 1, -32))),
               angle = two_pi * ldexp(word_of(seed, at, pair + 1), -32);
        double want = radius * (i % 2 ? sin(angle) : cos(angle));
        assert_true(fabs(v[i] - want) <= 1e-12 * (1 + fabs(want)));
    }
    rp_generator_release(g);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static uint64_t high_product(uint64_t a, uint64_t b) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = (a0 * b0 >> 32) + (uint32_t)(a1 * b0) + (uint32_t)(a0 * b1);
    return a1 * b1 + (a1 * b0 >> 32) + (a0 * b1 >> 32) + (middle >> 32);
}

static void test_randint(void **state) {
    (void)state;
    static const int64_t ranges[][2] = {{0, 2},
                                        {-5, 12},
                                        {0, INT64_C(1) << 31},
                                        {0, (INT64_C(1) << 31) + 1},
                                        {-7, INT64_C(1) << 40},
                                        {INT64_MIN / 2, INT64_MAX / 2},
                                        {3, INT64_MAX},
                                        {-2, INT64_MAX - 2}, /* 2^63 - 1 values: no more fit into 64 bits with a sign */
                                        {INT64_MIN / 2, -1}};
    rp_scope s = rp_scope_begin();
    rp_generator *g = rp_generator_new(rp_cpu(), 77);
    enum { N = 61 };
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        uint64_t seed, at, n = (uint64_t)(ranges[r][1] - ranges[r][0]);
        bool wide = n > UINT64_C(1) << 31;
        assert_int_equal(rp_generator_get(g, &seed, &at), RP_OK);
        rp_tensor *t =
            rp_randint(ranges[r][0], ranges[r][1], RP_DIMS(N), RP_OPTIONS(rp_randint_options, .generator = g));
        const int64_t *v = rp_data(t);
        if (!v) fail_msg("%s", rp_error_message());
        for (int i = 0; i < N; i++) {
            uint32_t w[4];
            ref_philox(seed, at + (uint64_t)i / (wide ? 2 : 4), w);
            uint64_t u =
                wide ? high_product((uint64_t)w[i % 2 * 2] << 32 | w[i % 2 * 2 + 1], n) : (uint64_t)w[i % 4] * n >> 32;
            int64_t want = (int64_t)((uint64_t)ranges[r][0] + u);
            if (v[i] != want)
                fail_msg("randint range %zu element %d: %lld, expected %lld", r, i, (long long)v[i], (long long)want);
        }
    }
    static const int64_t more[][2] = {{-2, INT64_MAX - 1}, {-1, INT64_MAX}, {INT64_MIN / 2, INT64_MAX / 2 + 1}};
    for (size_t r = 0; r < sizeof more / sizeof *more; r++)
        EXPECT(rp_randint(more[r][0], more[r][1], RP_DIMS(N), RP_OPTIONS(rp_randint_options, .generator = g)),
               RP_ERROR_INVALID_ARGUMENT, "has more than 2^63 - 1 values");
    rp_tensor *u8 = rp_randint(250, 256, RP_DIMS(50), RP_OPTIONS(rp_randint_options, .generator = g, .dtype = RP_U8));
    for (int i = 0; i < 50; i++) assert_true(element(u8, i) >= 250);
    rp_generator_release(g);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Whole channels are kept or not: of a batch, and of one image without. */
static void test_channel_dropouts(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    enum { C = 64, L = 6 };
    const double p = 0.25;
    rp_tensor *y[] = {rp_dropout1d(rp_ones(RP_DIMS(C, L)), p),       rp_dropout1d(rp_ones(RP_DIMS(1, C, L)), p),
                      rp_dropout2d(rp_ones(RP_DIMS(1, C, L)), p),    rp_dropout2d(rp_ones(RP_DIMS(1, C, 2, 3)), p),
                      rp_dropout3d(rp_ones(RP_DIMS(C, 1, 2, 3)), p), rp_dropout3d(rp_ones(RP_DIMS(1, C, 1, 2, 3)), p)};
    for (size_t k = 0; k < sizeof y / sizeof *y; k++) {
        float v[C * L];
        int kept = 0;
        assert_int_equal(rp_to_host(y[k], v, sizeof v), RP_OK);
        for (int c = 0; c < C; c++) {
            const float first = v[c * L];
            kept += first != 0;
            assert_true(first == 0 || fabsf(first - 4.0f / 3) < 1e-6f);
            for (int i = 0; i < L; i++) assert_true(v[c * L + i] == first);
        }
        assert_in_range(kept, 32, 63);
    }
    /* Classes are drawn as often as softmax says; hard ones are whole, and have a gradient. */
    enum { DRAWS = 4000 };
    const float logits[2] = {0, 1};
    rp_tensor *x = rp_expand(rp_from_data(logits, RP_DIMS(2), RP_F32), RP_DIMS(DRAWS, 2)), *leaf = rp_clone(x);
    rp_set_requires_grad(leaf, true);
    rp_tensor *hard = rp_gumbel_softmax(leaf, 0.5, true);
    const double share = rp_item_f64(rp_mean(rp_select(rp_detach(hard), 1, 1)));
    assert_true(fabs(share - 1 / (1 + exp(-1))) < 0.03);
    assert_true(fabs(rp_item_f64(rp_sum(rp_detach(rp_mul(hard, hard)))) - DRAWS) < 1e-2);
    assert_int_equal(rp_backward(rp_sum(rp_select(hard, 1, 1)), NULL, NULL), RP_OK);
    assert_true(rp_item_f64(rp_sum(rp_select(rp_grad_of(leaf), 1, 1))) > 1);
    EXPECT(rp_dropout1d(rp_ones(RP_DIMS(1, 2, 3, 4)), p), RP_ERROR_SHAPE, "Expected 2D or 3D input");
    EXPECT(rp_dropout2d(rp_ones(RP_DIMS(2, 3, 4, 5)), -1), RP_ERROR_INVALID_ARGUMENT, "between 0 and 1");
    EXPECT(rp_grid_sample(rp_ones(RP_DIMS(1, 1, 2, 2)), rp_ones(RP_DIMS(1, 2, 2, 2)), "cubic"),
           RP_ERROR_INVALID_ARGUMENT, "'cubic'");
    EXPECT(rp_grid_sample(rp_ones(RP_DIMS(1, 1, 2, 2)), rp_ones(RP_DIMS(1, 2, 2, 2)), "nearest", "wrap"),
           RP_ERROR_INVALID_ARGUMENT, "'wrap'");
    EXPECT(rp_fold(rp_ones(RP_DIMS(1, 4, 4)), RP_DIMS(3, 3, 3), RP_DIMS(2)), RP_ERROR_INVALID_ARGUMENT, "output_size");
    rp_scope_end(scope, NULL, 0);
}

static void test_dropout(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_generator *g = rp_generator_new(rp_cpu(), 5);
    rp_tensor *x = rp_arange(rp_i64(1), rp_i64(101), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)), *mask;
    uint64_t seed, at, after;
    assert_int_equal(rp_generator_get(g, &seed, &at), RP_OK);
    rp_tensor *y = rp_native_dropout(x, 0.3, RP_UNSET, RP_OPTIONS(rp_native_dropout_options, .generator = g), &mask);
    for (int i = 0; i < 100; i++) {
        bool keep = (float)ldexp(floor(word_of(seed, at, i) / 256), -24) < (float)0.7;
        assert_true(element(mask, i) == keep);
        assert_true(fabs(element(y, i) - (keep ? (i + 1) / 0.7 : 0)) < 1e-4);
    }
    assert_int_equal(rp_generator_get(g, &seed, &at), RP_OK);
    rp_tensor *same[] = {rp_dropout(x, 0.0, true, RP_OPTIONS(rp_dropout_options, .generator = g)),
                         rp_dropout(x, 0.5, false, RP_OPTIONS(rp_dropout_options, .generator = g))},
              *none = rp_dropout(x, 1.0, true, RP_OPTIONS(rp_dropout_options, .generator = g));
    for (int i = 0; i < 100; i += 33) {
        assert_true(element(same[0], i) == i + 1 && element(same[1], i) == i + 1 && element(none, i) == 0);
    }
    assert_int_equal(rp_dtype_of(rp_dropout(Z(RP_I64, 3), 1.0, true)), RP_I64); /* nothing is scaled */
    assert_true(rp_is_error(rp_dropout(Z(RP_I64, 3), 0.5, true, RP_OPTIONS(rp_dropout_options, .generator = g))));
    assert_int_equal(rp_error_take(), RP_ERROR_DTYPE);
    assert_int_equal(rp_generator_get(g, &seed, &after), RP_OK);
    assert_true(after == at); /* none of these draws */
    rp_set_requires_grad(x, true);
    y = rp_native_dropout(x, 0.3, RP_FALSE, NULL, &mask); /* evaluation: all are kept as they are */
    rp_tensor *slope = NULL;
    assert_int_equal(rp_grad(&y, 1, &x, 1, (rp_tensor *[]){rp_ones_like(y)}, NULL, &slope), RP_OK);
    for (int i = 0; i < 100; i++)
        assert_true(element(y, i) == i + 1 && element(mask, i) == 1 && element(slope, i) == 1);
    rp_generator_release(g);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Bins between given edges hold their left one, the last its right one, too; what lies beyond counts nowhere. */
static void test_histogram_between_edges(void **state) {
    (void)state;
    static const float values[] = {-1, 0, 0.5f, 1, 2.5f, 3, 3.5f, NAN}, at[] = {0, 1, 3};
    static const float weights[] = {1, 2, 3, 4, 5, 6, 7, 8};
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_from_data(values, RP_DIMS(8), RP_F32), *edges = rp_from_data(at, RP_DIMS(3), RP_F32),
              *same = NULL;
    rp_tensor *hist = rp_histogram_bins(x, edges, NULL, &same);
    assert_true(element(hist, 0) == 2 && element(hist, 1) == 3);
    assert_true(element(same, 1) == 1 && element(same, 2) == 3);
    rp_tensor *weight = rp_from_data(weights, RP_DIMS(8), RP_F32);
    hist =
        rp_histogram_bins(x, edges, RP_OPTIONS(rp_histogram_bins_options, .weight = weight, .density = RP_TRUE), NULL);
    assert_true(fabs(element(hist, 0) - 0.25) < 1e-6 && fabs(element(hist, 1) - 0.375) < 1e-6); /* 5 and 15 of 20 */
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_multinomial(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_generator *g = rp_generator_new(rp_cpu(), 6);
    const float weights[] = {1, 0, 3, 0, 0, 5};
    rp_tensor *w = rp_from_data(weights, RP_DIMS(2, 3), RP_F32);
    enum { N = 4000 };
    rp_tensor *t = rp_multinomial(w, N, true, RP_OPTIONS(rp_multinomial_options, .generator = g));
    assert_int_equal(rp_size(t, 0), 2);
    const int64_t *v = rp_data(t);
    assert_non_null(v);
    int counts[2][3] = {{0}};
    for (int i = 0; i < 2 * N; i++) {
        assert_true(v[i] >= 0 && v[i] < 3);
        counts[i / N][v[i]]++;
    }
    assert_true(counts[0][1] == 0 && counts[1][0] == 0 && counts[1][1] == 0);
    assert_true(abs(counts[0][0] - N / 4) < 200); /* 7 standard deviations */
    rp_tensor *some = rp_multinomial(rp_from_data(weights, RP_DIMS(3), RP_F32), 2, false,
                                     RP_OPTIONS(rp_multinomial_options, .generator = g));
    v = rp_data(some);
    assert_true(v && v[0] != v[1] && v[0] != 1 && v[1] != 1);
    rp_generator_release(g);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Where each of the ways to an incomplete gamma function is taken, and their ends; by mpmath (50 digits; the last two by quadrature). */
static void test_incomplete_gamma(void **state) {
    (void)state;
    static const double known[][4] = {{0.3, 0.2, 0.657506724269721737, 0.342493275730278263},
                                      {1e-6, 0.5, 0.999999440226111844, 5.59773888155634534e-7},
                                      {3, 50, 1, 2.50930355220105704e-19},
                                      {150, 140, 0.209543623918607066, 0.790456376081392934},
                                      {400, 390, 0.312942863185587836, 0.687057136814412164},
                                      {400, 700, 1, 2.22986266715788762e-35},
                                      {2500.5, 2600, 0.975617963270283686, 0.0243820367297163144},
                                      {1e6, 1003000, 0.9986382593537824085, 0.0013617406462175915},
                                      {1e9, 1e9 + 60000, 0.971108407167651099, 0.028891592832348901},
                                      {0, 2, 1, 0},
                                      {2, 0, 0, 1},
                                      {2, INFINITY, 1, 0},
                                      {INFINITY, 2, 0, 1}};
    enum { N = sizeof known / sizeof *known };
    rp_scope s = rp_scope_begin();
    rp_tensor *t = rp_from_data(&known[0][0], RP_DIMS(N, 4), RP_F64);
    rp_tensor *a = rp_select(t, 1, 0), *x = rp_select(t, 1, 1);
    double below[N], above[N];
    assert_int_equal(rp_to_host(rp_igamma(a, x), below, sizeof below), RP_OK);
    assert_int_equal(rp_to_host(rp_igammac(a, x), above, sizeof above), RP_OK);
    for (int k = 0; k < N; k++) {
        if (!(fabs(below[k] - known[k][2]) <= 4e-14 * known[k][2]))
            fail_msg("igamma(%g, %g) is %.17g", known[k][0], known[k][1], below[k]);
        if (!(fabs(above[k] - known[k][3]) <= 4e-14 * known[k][3]))
            fail_msg("igammac(%g, %g) is %.17g", known[k][0], known[k][1], above[k]);
    }
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* ---- distributions: what is drawn, against their sums */

enum { DRAWS = 20000, BINS = 40 };

/* Of x, which increases with a number that is evenly spread over (0, 1): Kolmogorov and Smirnov's distance, in units of 1 / sqrt(n). */
static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double unevenness(rp_tensor *t) {
    static double v[DRAWS];
    double most = 0;
    assert_int_equal(rp_to_host(rp_to_dtype(t, RP_F64), v, sizeof v), RP_OK);
    qsort(v, DRAWS, sizeof *v, by_size);
    for (int i = 0; i < DRAWS; i++) most = fmax(most, fmax((i + 1.0) / DRAWS - v[i], v[i] - (double)i / DRAWS));
    return most * sqrt(DRAWS);
}
/* Pearson's sum over whole numbers from `first` on, the last bin with what is above: `upto` gives the probability of at most k. Where
   little is expected nothing is asked. */
static double chi_square(rp_tensor *t, double first, double step, double (*upto)(double, double, double), double a,
                         double b, int *freedom) {
    static double v[DRAWS];
    double seen[BINS] = {0}, sum = 0, below = 0;
    assert_int_equal(rp_to_host(rp_to_dtype(t, RP_F64), v, sizeof v), RP_OK);
    for (int i = 0; i < DRAWS; i++) {
        assert_true(v[i] >= 0 && v[i] == floor(v[i]));
        const double at = floor((v[i] - first) / step);
        seen[at < 0 ? 0 : at >= BINS ? BINS - 1 : (int)at]++;
    }
    *freedom = -1;
    for (int k = 0; k < BINS; k++) {
        const double end = k == BINS - 1 ? 1 : upto(first + step * (k + 1) - 1, a, b), want = (end - below) * DRAWS;
        below = end;
        if (want < 5) {
            assert_true(seen[k] < 40);
            continue;
        }
        sum += (seen[k] - want) * (seen[k] - want) / want;
        ++*freedom;
    }
    return sum;
}
static double poisson_upto(double k, double rate, double none) {
    (void)none;
    double sum = 0;
    for (double j = 0; j <= k; j++) sum += exp(j * log(rate) - rate - lgamma(j + 1));
    return sum;
}
static double binomial_upto(double k, double n, double p) {
    double sum = 0;
    for (double j = 0; j <= fmin(k, n); j++)
        sum += exp(lgamma(n + 1) - lgamma(j + 1) - lgamma(n - j + 1) + j * log(p) + (n - j) * log1p(-p));
    return sum;
}
/* Of `freedom` degrees; exceeded by one seed in some thousands. */
static bool likely(double chi, int freedom) { return freedom < 1 || chi < freedom + 4.2 * sqrt(2.0 * freedom) + 6; }

static void test_distributions(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_generator *g = rp_generator_new(rp_cpu(), 2026);
    static const double shapes[] = {0.05, 0.7, 1, 1.5, 12, 3000};
    for (unsigned k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        rp_tensor *shape = rp_full(RP_DIMS(DRAWS), rp_f64(shapes[k]), RP_OPTIONS(rp_full_options, .dtype = RP_F64));
        const double d = unevenness(rp_igamma(shape, rp_standard_gamma(shape, g)));
        if (!(d < 2 && d > 0.2)) fail_msg("gamma draws of shape %g: %g", shapes[k], d); /* 1.95: once in a thousand */
    }
    static const double rates[] = {0.1, 3, 9.9, 10.1, 60, 5000};
    for (unsigned k = 0; k < sizeof rates / sizeof *rates; k++) {
        int freedom;
        const double m = rates[k], step = ceil(6 * sqrt(m) / BINS), first = m < 10 ? 0 : floor(m - step * BINS / 2);
        rp_tensor *rate =
            rp_full(RP_DIMS(DRAWS), rp_f64(m), RP_OPTIONS(rp_full_options, .dtype = k & 1 ? RP_F64 : RP_F32));
        const double chi = chi_square(rp_poisson(rate, g), first, step, poisson_upto, m, 0, &freedom);
        if (!likely(chi, freedom)) fail_msg("Poisson draws of rate %g: %g of %d", m, chi, freedom);
    }
    static const double trials[][2] = {{10, 0.3}, {20, 0.9}, {40, 0.5}, {1000, 0.004}, {1000, 0.3}, {1000, 0.97}};
    for (unsigned k = 0; k < sizeof trials / sizeof *trials; k++) {
        int freedom;
        const double n = trials[k][0], p = trials[k][1], m = n * p, step = ceil(6 * sqrt(m * (1 - p)) / BINS);
        const double first = fmax(0, floor(m - step * BINS / 2));
        rp_tensor *count = rp_full(RP_DIMS(DRAWS), rp_f64(n), RP_OPTIONS(rp_full_options, .dtype = RP_F64));
        rp_tensor *part = rp_full(RP_NO_DIMS, rp_f64(p), RP_OPTIONS(rp_full_options, .dtype = RP_F64));
        const double chi = chi_square(rp_binomial(count, part, g), first, step, binomial_upto, n, p, &freedom);
        if (!likely(chi, freedom)) fail_msg("binomial draws of %g, %g: %g of %d", n, p, chi, freedom);
    }
    /* A part of Dirichlet's is beta-distributed: of shapes 1 and 2 its chance to be below x is 1 - (1 - x)^2. */
    rp_tensor *parts =
        rp_sample_dirichlet(rp_full(RP_DIMS(DRAWS, 3), rp_f64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F64)), g);
    rp_tensor *rest = rp_sub_scalar(rp_select(parts, 1, 1), rp_i64(1));
    const double d = unevenness(rp_neg(rp_sub_scalar(rp_mul(rest, rest), rp_i64(1))));
    assert_true(d < 2 && d > 0.2);
    /* With small shapes nearly all is one part's, in float32 too; no part is 0 or all. */
    rp_tensor *uneven = rp_select(rp_sample_dirichlet(rp_full(RP_DIMS(DRAWS, 2), rp_f64(0.01)), g), 1, 0);
    rp_tensor *halves = rp_mul(rp_gt_scalar(uneven, rp_f64(0.4)), rp_lt_scalar(uneven, rp_f64(0.6)));
    assert_true(rp_item_f64(rp_sum(rp_to_dtype(halves, RP_F64))) < 0.02 * DRAWS);
    assert_true(rp_item_f64(rp_amin(uneven, RP_NO_DIMS, false)) >= 0x1p-126 &&
                rp_item_f64(rp_amax(uneven, RP_NO_DIMS, false)) < 1);
    /* Edges: nothing drawn of nothing, all of a sure thing, NaN of what is no parameter. */
    static const double n[] = {0, 7, 7, 7, NAN, -1}, p[] = {0.5, 0, 1, NAN, 0.5, 0.5}, rate[] = {0, -1, NAN, INFINITY};
    double got[6];
    assert_int_equal(
        rp_to_host(rp_binomial(rp_from_data(n, RP_DIMS(6), RP_F64), rp_from_data(p, RP_DIMS(6), RP_F64), g), got,
                   sizeof got),
        RP_OK);
    assert_true(got[0] == 0 && got[1] == 0 && got[2] == 7 && isnan(got[3]) && isnan(got[4]) && got[5] == 0);
    assert_int_equal(rp_to_host(rp_poisson(rp_from_data(rate, RP_DIMS(4), RP_F64), g), got, 4 * sizeof *got), RP_OK);
    assert_true(got[0] == 0 && isnan(got[1]) && isnan(got[2]) && isinf(got[3]));
    /* The gradient of a draw is its slope; a small shape's draw is no less than the least number. */
    rp_tensor *shape = rp_full(RP_DIMS(4), rp_f64(1e-4)), *y = rp_standard_gamma(shape, g);
    assert_true(rp_item_f64(rp_amin(y, RP_NO_DIMS, false)) >= 0x1p-126);
    shape = rp_full(RP_DIMS(4), rp_f64(2.5), RP_OPTIONS(rp_full_options, .dtype = RP_F64));
    assert_int_equal(rp_set_requires_grad(shape, true), RP_OK);
    y = rp_standard_gamma(shape, g);
    rp_tensor *total = rp_sum(y), *slope = NULL;
    assert_int_equal(rp_grad(&total, 1, &shape, 1, NULL, NULL, &slope), RP_OK);
    double near[4], exact[4];
    /* what the draw's place would be for a shape beside: P(2.5 + h, y + slope h) is P(2.5, y) */
    rp_tensor *moved = rp_igamma(rp_add_scalar(rp_detach(shape), rp_f64(1e-6)),
                                 rp_add(rp_detach(y), rp_mul_scalar(slope, rp_f64(1e-6))));
    assert_int_equal(rp_to_host(moved, near, sizeof near), RP_OK);
    assert_int_equal(rp_to_host(rp_igamma(rp_detach(shape), rp_detach(y)), exact, sizeof exact), RP_OK);
    for (int i = 0; i < 4; i++) assert_true(fabs(near[i] - exact[i]) < 1e-11);
    rp_generator_release(g);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Windows stay in the plane where types round, and whatever the samples; no batch, no windows. */
static void test_fractional_pools(void **state) {
    (void)state;
    enum { N = 261, OUT = 257, K = 2 };
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_to_dtype(rp_arange(rp_i64(0), rp_i64(K * N), rp_i64(1)), RP_BF16), *places;
    static const double hostile[] = {0.9, 5, -3, NAN};
    for (size_t k = 0; k < sizeof hostile / sizeof *hostile; k++) {
        rp_tensor *samples =
            rp_full(RP_DIMS(1, 1, 2), rp_f64(hostile[k]), RP_OPTIONS(rp_full_options, .dtype = RP_BF16));
        rp_tensor *y =
            rp_fractional_max_pool2d(rp_view(x, RP_DIMS(1, 1, K, N)), RP_DIMS(1, K), RP_DIMS(K, OUT), samples, &places);
        rp_tensor *row = rp_mul_scalar(rp_view(rp_arange(rp_i64(0), rp_i64(K), rp_i64(1)), RP_DIMS(K, 1)), rp_i64(N));
        rp_tensor *column = rp_sub(rp_view(places, RP_DIMS(K, OUT)), row);
        assert_int_equal(rp_numel(y), K * OUT);
        assert_true(rp_item_f64(rp_amin(column, RP_NO_DIMS, false)) >= 0 &&
                    rp_item_f64(rp_amax(column, RP_NO_DIMS, false)) < N);
        assert_int_equal(rp_error_status(), RP_OK);
    }
    rp_tensor *none = rp_fractional_max_pool2d(rp_zeros(RP_DIMS(0, 3, 8, 8)), RP_DIMS(2, 2), RP_DIMS(4, 4),
                                               rp_zeros(RP_DIMS(0, 3, 2)), &places);
    assert_true(rp_ndim(none) == 4 && rp_numel(none) == 0 && rp_numel(places) == 0);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* The slope of large shapes is as exact as the function. */
static void test_gamma_slope(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *shape = rp_full(RP_NO_DIMS, rp_f64(1e6)), *at = rp_full(RP_NO_DIMS, rp_f64(1e6)), *slope = NULL;
    assert_int_equal(rp_set_requires_grad(at, true), RP_OK);
    rp_tensor *part = rp_igamma(shape, at);
    assert_int_equal(rp_grad(&part, 1, &at, 1, NULL, NULL, &slope), RP_OK);
    assert_true(fabs(rp_item_f64(slope) - 3.9894225e-4) < 1e-9);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_empty(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *t = rp_empty(RP_DIMS(3, 0, 2), RP_OPTIONS(rp_empty_options, .dtype = RP_F16)),
              *u = rp_empty(RP_DIMS(5, 7), RP_OPTIONS(rp_empty_options, .dtype = RP_I32));
    assert_true(rp_ndim(t) == 3 && rp_numel(t) == 0 && rp_dtype_of(t) == RP_F16);
    assert_true(rp_numel(u) == 35 && rp_is_contiguous(u) && rp_data(u) != NULL);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* ---- optimizer steps against the formulas of torch.optim, in double */

enum { PARAMS = 3, STEPS = 4 };
static const int64_t param_sizes[PARAMS][2] = {{3, 5}, {1, 40}, {7, 2}};

static void param_values(int k, int salt, double *v, int64_t n) {
    for (int64_t i = 0; i < n; i++) v[i] = ref_round(RP_F32, sin((double)(i * 7 + k * 3 + salt)));
}

static void check_values(rp_tensor *t, const double *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double got = element(t, i);
        if (fabs(got - want[i]) > 2e-6 * (1 + fabs(want[i])))
            fail_msg("element %lld is %.9g, expected %.9g", (long long)i, got, want[i]);
    }
}

static rp_status adam_step(rp_tensor **p, size_t n, rp_tensor **g, size_t n_g, rp_tensor **m, rp_tensor **v,
                           rp_tensor *step, rp_tensor *lr, double beta1, double decay, bool decoupled, bool maximize) {
    const double numbers[] = {beta1, 0.99, 1e-3, decay};
    return rp_foreach_update_("adam", p, n, g, n_g, m, n, v, n, NULL, 0, step, lr, NULL, NULL, NULL, numbers, 4,
                              (decay != 0 ? RP__UPDATE_DECAY : 0) | (decoupled ? RP__UPDATE_DECOUPLED : 0) |
                                  (maximize ? RP__UPDATE_MAXIMIZE : 0));
}

static void adam_run(double decay, bool decoupled, bool maximize, bool strided) {
    rp_scope s = rp_scope_begin();
    rp_tensor *p[PARAMS], *g[PARAMS], *m[PARAMS], *v[PARAMS], *lr = rp_full(RP_NO_DIMS, rp_f64(0.125));
    double rp[PARAMS][64], rm[PARAMS][64] = {{0}}, rv[PARAMS][64] = {{0}}, rg[64];
    for (int k = 0; k < PARAMS; k++) {
        int64_t n = param_sizes[k][0] * param_sizes[k][1];
        param_values(k, 0, rp[k], n);
        p[k] = ref_from_values(RP_F32, rp[k], n, param_sizes[k], 2);
        if (strided && k == 0) { /* the same values, stored by columns */
            rp_tensor *columns = rp_clone(rp_transpose(p[k], 0, 1));
            p[k] = rp_transpose(columns, 0, 1);
        }
        m[k] = z(RP_F32, param_sizes[k], 2);
        v[k] = z(RP_F32, param_sizes[k], 2);
    }
    for (int t = 1; t <= STEPS; t++) {
        for (int k = 0; k < PARAMS; k++) {
            int64_t n = param_sizes[k][0] * param_sizes[k][1];
            param_values(k, t * 100, rg, n);
            g[k] = ref_from_values(RP_F32, rg, n, param_sizes[k], 2);
            for (int64_t i = 0; i < n; i++) {
                double gi = maximize ? -rg[i] : rg[i];
                if (decoupled)
                    rp[k][i] *= 1 - 0.125 * decay;
                else
                    gi += decay * rp[k][i];
                rm[k][i] = 0.9 * rm[k][i] + 0.1 * gi;
                rv[k][i] = 0.99 * rv[k][i] + 0.01 * gi * gi;
                rp[k][i] -= 0.125 * (rm[k][i] / (1 - pow(0.9, t))) / (sqrt(rv[k][i] / (1 - pow(0.99, t))) + 1e-3);
            }
        }
        rp_tensor *step = rp_full(RP_NO_DIMS, rp_i64(t), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
        assert_int_equal(adam_step(p, PARAMS, g, PARAMS, m, v, step, lr, 0.9, decay, decoupled, maximize), RP_OK);
    }
    for (int k = 0; k < PARAMS; k++) {
        int64_t n = param_sizes[k][0] * param_sizes[k][1];
        check_values(p[k], rp[k], n);
        check_values(m[k], rm[k], n);
        check_values(v[k], rv[k], n);
        assert_true(rp_version(m[k]) == STEPS);
    }
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_adam(void **state) {
    (void)state;
    adam_run(0, false, false, false);
    adam_run(0.1, false, true, false);
    adam_run(0.1, true, false, true);
    rp_scope s = rp_scope_begin();
    rp_tensor *p = Z(RP_F32, 2), *q = Z(RP_F32, 3), *one = scalar_of(RP_F32);
    assert_int_equal(adam_step(&p, 1, &q, 1, &p, &p, one, one, 0.9, 0, false, false), RP_ERROR_SHAPE);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    assert_int_equal(adam_step(&p, 1, &p, 0, &p, &p, one, one, 0.9, 0, false, false), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(adam_step(&p, 1, &p, 1, &p, &p, one, one, 1.5, 0, false, false), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void sgd_run(double momentum, double dampening, double decay, bool nesterov, bool maximize) {
    rp_scope s = rp_scope_begin();
    enum { N = 33 };
    double w[N], b[N] = {0}, g[N];
    param_values(0, 0, w, N);
    rp_tensor *p = ref_from_values(RP_F32, w, N, (const int64_t[]){N}, 1), *buffer = Z(RP_F32, N),
              *lr = rp_full(RP_NO_DIMS, rp_f64(0.25));
    for (int t = 0; t < STEPS; t++) {
        param_values(1, t, g, N);
        rp_tensor *grad = ref_from_values(RP_F32, g, N, (const int64_t[]){N}, 1);
        for (int i = 0; i < N; i++) {
            double gi = (maximize ? -g[i] : g[i]) + decay * w[i];
            if (momentum != 0) {
                b[i] = t == 0 ? gi : momentum * b[i] + (1 - dampening) * gi;
                gi = nesterov ? gi + momentum * b[i] : b[i];
            }
            w[i] -= 0.25 * gi;
        }
        rp_tensor *step = rp_full(RP_NO_DIMS, rp_i64(t + 1), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
        const double numbers[] = {momentum, dampening, decay};
        const int64_t flags = (momentum != 0 ? RP__UPDATE_MOMENTUM : 0) | (dampening != 0 ? RP__UPDATE_DAMPENED : 0) |
                              (decay != 0 ? RP__UPDATE_DECAY : 0) | (nesterov ? RP__UPDATE_NESTEROV : 0) |
                              (maximize ? RP__UPDATE_MAXIMIZE : 0);
        assert_int_equal(rp_foreach_update_("sgd", &p, 1, &grad, 1, &buffer, momentum != 0, NULL, 0, NULL, 0, step, lr,
                                            NULL, NULL, NULL, numbers, 3, flags),
                         RP_OK);
    }
    check_values(p, w, N);
    if (momentum != 0) check_values(buffer, b, N);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_sgd(void **state) {
    (void)state;
    sgd_run(0, 0, 0, false, false);
    sgd_run(0, 0, 0.1, false, true);
    sgd_run(0.9, 0.5, 0.1, false, false);
    sgd_run(0.9, 0, 0, true, false);
}

/* ---- calls by name, user ops */

static void test_by_name(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(2, 3), rp_f64(2)), *in[] = {x, x}, *out[2];
    assert_int_equal(rp_op_call("add", in, 2, NULL, 0, out, 1), RP_OK); /* alpha has a default */
    assert_true(element(out[0], 0) == 4);
    const rp_attr alpha = {.kind = RP_ATTR_INT, .v.i = 3}; /* an int where a Scalar is meant */
    assert_int_equal(rp_op_call("add", in, 2, &alpha, 1, out, 1), RP_OK);
    assert_true(element(out[0], 0) == 8);
    assert_int_equal(rp_op_call("linear", in, 2, NULL, 0, out, 1), RP_OK); /* bias left out */
    assert_true(element(out[0], 0) == 12);
    assert_int_equal(rp_op_call("no_such_op", in, 2, NULL, 0, out, 1), RP_ERROR_INVALID_ARGUMENT);
    EXPECT(out[0], RP_ERROR_INVALID_ARGUMENT, "no op is named 'no_such_op'");
    assert_int_equal(rp_op_call("add", in, 1, NULL, 0, out, 1), RP_ERROR_INVALID_ARGUMENT);
    EXPECT(out[0], RP_ERROR_INVALID_ARGUMENT, "does not take 1 tensors");
    assert_int_equal(rp_op_call("softmax", in, 1, NULL, 0, out, 1), RP_ERROR_INVALID_ARGUMENT);
    EXPECT(out[0], RP_ERROR_INVALID_ARGUMENT, "'dim' is missing");
    const rp_attr wrong = {.kind = RP_ATTR_FLOAT, .v.f = 1};
    assert_int_equal(rp_op_call("softmax", in, 1, &wrong, 1, out, 1), RP_ERROR_INVALID_ARGUMENT);
    EXPECT(out[0], RP_ERROR_INVALID_ARGUMENT, "another kind");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static rp_status scale_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                           rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                           size_t n_attrs) {
    const float *x = in[0];
    float *y = out[0];
    (void)n_in;
    (void)n_out;
    (void)out_tensors;
    (void)n_attrs;
    if (attrs[0].v.f < 0) return RP_ERROR_INVALID_ARGUMENT;
    for (int64_t i = 0; i < rp_numel(in_tensors[0]); i++) y[i] = x[i] * (float)attrs[0].v.f;
    ++*(int *)ctx;
    return RP_OK;
}

static rp_status scale_backward(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in, size_t n_in,
                                rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs, rp_tensor **grad_in) {
    (void)ctx;
    (void)n_out;
    (void)in;
    (void)n_in;
    (void)out;
    (void)n_attrs;
    grad_in[0] = rp_mul_scalar(grad_out[0], rp_f64(attrs[0].v.f));
    return RP_OK;
}

/* Fails if its context says so. */
static rp_status fails_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                           rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                           size_t n_attrs) {
    (void)in, (void)n_in, (void)out, (void)n_out, (void)in_tensors, (void)out_tensors, (void)attrs, (void)n_attrs;
    return *(const rp_status *)ctx;
}

/* A user's function that fails where no call looks: the next call that waits says so, once. */
static void test_user_failure(void **state) {
    (void)state;
    static rp_status result;
    rp_scope s = rp_scope_begin();
    assert_int_equal(rp_op_register(RP_OPTIONS(rp_op_descriptor, .schema = "test_fails(Tensor self) -> Tensor",
                                               .cpu = fails_cpu, .ctx = &result)),
                     RP_OK);
    rp_tensor *x = rp_full(RP_DIMS(2), rp_f64(1)), *y;
    float got[2];
    rp_graph *g = rp_graph_new();
    result = RP_OK;
    assert_int_equal(rp_graph_begin(g, rp_cpu(), NULL), RP_OK);
    assert_int_equal(rp_op_call("test_fails", &x, 1, NULL, 0, &y, 1), RP_OK);
    assert_int_equal(rp_graph_end(g), RP_OK);
    result = RP_ERROR_IO;
    for (int k = 0; k < 2; k++) { /* replay, then a synchronisation or a read */
        assert_int_equal(rp_graph_replay(g), RP_OK);
        assert_int_equal(k ? rp_to_host(y, got, sizeof got) : rp_synchronize(rp_cpu()), RP_ERROR_IO);
        assert_non_null(strstr(rp_error_message(), "test_fails: the op's CPU function failed at "));
        assert_int_equal(rp_error_take(), RP_ERROR_IO);
        assert_int_equal(rp_synchronize(rp_cpu()), RP_OK);
    }
    rp_graph_release(g);

    rp_stream *own = rp_stream_new(rp_cpu()), *before = rp_current_stream(rp_cpu());
    assert_int_equal(rp_set_current_stream(own), RP_OK);
    assert_int_equal(rp_op_call("test_fails", &x, 1, NULL, 0, &y, 1), RP_OK);
    assert_int_equal(rp_stream_synchronize(own), RP_ERROR_IO);
    assert_non_null(strstr(rp_error_message(), "test_fails: the op's CPU function failed at "));
    assert_int_equal(rp_error_take(), RP_ERROR_IO);
    assert_int_equal(rp_set_current_stream(before), RP_OK);
    rp_stream_release(own);

    assert_int_equal(rp_op_call("test_fails", &x, 1, NULL, 0, &y, 1), RP_ERROR_IO); /* inline: the call itself, once */
    assert_int_equal(rp_error_take(), RP_ERROR_IO);
    assert_int_equal(rp_synchronize(rp_cpu()), RP_OK);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_user_op(void **state) {
    (void)state;
    static int runs;
    rp_scope s = rp_scope_begin();
    size_t before = rp_op_count();
    rp_op_descriptor d = {.struct_size = sizeof d,
                          .schema = "test_scale(Tensor self, float factor=2.5) -> Tensor",
                          .doc = "self * factor",
                          .cpu = scale_cpu,
                          .backward = scale_backward,
                          .ctx = &runs};
    assert_int_equal(rp_op_register(&d), RP_OK);
    assert_true(rp_op_count() == before + 1);
    assert_int_equal(rp_op_register(&d), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    rp_tensor *x = rp_transpose(
                  rp_view(rp_arange(rp_i64(0), rp_i64(6), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
                          RP_DIMS(2, 3)),
                  0, 1),
              *y;
    assert_int_equal(rp_op_call("test_scale", &x, 1, NULL, 0, &y, 1), RP_OK);
    assert_true(runs == 1 && element(y, 1) == 7.5 && rp_size(y, 0) == 3); /* row-major copy of a transposed input */
    const rp_attr bad = {.kind = RP_ATTR_FLOAT, .v.f = -1};
    assert_int_equal(rp_op_call("test_scale", &x, 1, &bad, 1, &y, 1), RP_ERROR_INVALID_ARGUMENT);
    EXPECT(y, RP_ERROR_INVALID_ARGUMENT, "the op's CPU function failed");

    rp_tensor *leaf = rp_full(RP_DIMS(4), rp_f64(1)), *loss;
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    assert_int_equal(rp_op_call("test_scale", &leaf, 1, NULL, 0, &y, 1), RP_OK);
    loss = rp_sum(y);
    assert_int_equal(rp_backward(loss, NULL, NULL), RP_OK);
    assert_non_null(rp_grad_of(leaf));
    assert_true(element(rp_grad_of(leaf), 3) == 2.5);

    static const char *const refused[] = {"x(Tensor(a!) self) -> Tensor(a!)", "x(Tensor self) -> ()", "x(Tensor self",
                                          "x(Thing self) -> Tensor"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        d.schema = refused[i];
        assert_int_equal(rp_op_register(&d), RP_ERROR_INVALID_ARGUMENT);
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    }
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* A failure in one test leaves no sticky error to the next. */
static int clear_error(void **state) {
    (void)state;
    (void)rp_error_take();
    return 0;
}
#define TEST(f) cmocka_unit_test_setup(f, clear_error)

/* ---- what PyTorch takes, and what calls may leave out */

static bool same_bytes(rp_tensor *a, rp_tensor *b) {
    char x[256], y[256];
    size_t n = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    if (rp_failed() || rp_dtype_of(a) != rp_dtype_of(b) || rp_numel(a) != rp_numel(b) || n > sizeof x) return false;
    return rp_to_host(a, x, n) == RP_OK && rp_to_host(b, y, n) == RP_OK && memcmp(x, y, n) == 0;
}

/* A number that meets 16-bit floats in a comparison is rounded to their type first. */
static void test_compare_with_numbers(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    static const rp_dtype types[] = {RP_F16, RP_BF16, RP_F32, RP_F64};
    for (int k = 0; k < 4; k++) {
        rp_tensor *t = rp_full(RP_DIMS(3), rp_f64(0.1), RP_OPTIONS(rp_full_options, .dtype = types[k]));
        assert_true(rp_item_f64(rp_all(rp_eq_scalar(t, rp_f64(0.1)))) == 1);
        assert_true(rp_item_f64(rp_any(rp_ne_scalar(t, rp_f64(0.1)))) == 0);
        assert_true(rp_item_f64(rp_any(rp_lt_scalar(t, rp_f64(0.1)))) == 0);
        assert_true(rp_item_f64(rp_all(rp_ge_scalar(t, rp_f64(0.1)))) == 1);
    }
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Pads that leave nothing are refused, and a call does not fail for what failed before it. */
static void test_pads_by_modes(void **state) {
    (void)state;
    static const char *const modes[] = {"reflect", "replicate", "circular"};
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(2, 5), rp_f64(1));
    for (unsigned k = 0; k < 3; k++) {
        EXPECT(rp_pad(x, RP_DIMS(-3, -3), modes[k], rp_none()), RP_ERROR_SHAPE, "leaves nothing of dimension 1");
        EXPECT(rp_pad(x, RP_DIMS(INT64_MAX, INT64_MAX), modes[k], rp_none()), RP_ERROR_SHAPE, "can be padded by");
        EXPECT(rp_pad(x, RP_DIMS(-(INT64_C(1) << 62), -(INT64_C(1) << 62)), modes[k], rp_none()), RP_ERROR_SHAPE,
               "can be padded by");
        if (k < 2)
            EXPECT(rp_pad(x, RP_DIMS(-3, -2), modes[k], rp_none()), RP_ERROR_SHAPE, "leaves nothing of dimension 1");
    }
    assert_int_equal(rp_size(rp_pad(x, RP_DIMS(-3, -2), "circular", rp_none()), 1), 0);
    (void)rp_view(x, RP_DIMS(3));
    assert_true(rp_failed());
    for (unsigned k = 0; k < 3; k++) assert_false(rp_is_error(rp_pad(x, RP_DIMS(2, 1), modes[k], rp_none())));
    (void)rp_error_take();
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void twice(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(in[0], in[0]);
}

/* An error that nobody has taken is of the call that failed: later ones run. */
static void test_older_errors(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(2, 3, 4), rp_f64(0.5)), *w = rp_full(RP_DIMS(3, 4), rp_f64(0.1)), *last, *taken;
    rp_tensor *v = rp_full(RP_DIMS(3, 3), rp_f64(0.2)), *h = rp_full(RP_DIMS(1, 3, 3), rp_f64(0)), *both[2] = {w, v};
    rp_tensor *mean = rp_zeros(RP_DIMS(3)), *var = rp_ones(RP_DIMS(3));
    rp_tensor *whole = rp_full(RP_DIMS(5), rp_i64(3), RP_OPTIONS(rp_full_options, .dtype = RP_I64));
    rp_tensor *none = rp_full(RP_DIMS(0), rp_i64(3), RP_OPTIONS(rp_full_options, .dtype = RP_I64));
    assert_false(rp_failed());
    (void)rp_view(x, RP_DIMS(5));
    assert_int_equal(rp_error_status(), RP_ERROR_SHAPE);
#define RUNS(...)                                                                                                      \
    if (rp_is_error(__VA_ARGS__)) fail_msg("line %d: an older error is this call's", __LINE__)
    RUNS(rp_rnn_tanh(x, h, both, 2, false, 1, 0, false, false, false, &last));
    RUNS(rp_batch_norm(x, NULL, NULL, mean, var, true, 0.1, 1e-5, true));
    RUNS(rp_instance_norm(x, NULL, NULL, mean, var, true, 0.1, 1e-5, true));
    RUNS(rp_histc(rp_flatten(x), 4, rp_i64(0), rp_i64(0)));
    RUNS(rp_one_hot(whole, -1));
    RUNS(rp_bincount(whole, NULL, 0));
    RUNS(rp_unique(none, true, true, true, &taken, &last));
    RUNS(rp_constant_pad_nd(x, RP_DIMS(1, 1), rp_f64(1)));
    RUNS(rp_dropout(x, 0.5, true));
    RUNS(rp_repeat_interleave_tensor(whole, whole, 0));
#undef RUNS
    assert_int_equal(rp_checkpoint((rp_fn){twice, NULL, 0, "twice"}, &x, 1, &last, 1), RP_OK);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_int_equal(rp_checkpoint((rp_fn){twice, NULL, 0, "twice"}, &x, 1, &last, 1), RP_OK);
    last = rp_sum(last);
    assert_int_equal(rp_backward(last, NULL, NULL), RP_OK);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Convolutions of integers are those of int64, whose lower bits are left: of every type, geometry, place between the operands' and
   beyond a line's 256. PyTorch has neither dilation nor transposes of less than 64 bits, and no integers on CUDA. */
static void test_convolutions_of_integers(void **state) {
    (void)state;
    static const rp_dtype types[] = {RP_I8, RP_U8, RP_I16, RP_I32};
    static const struct {
        int64_t spatial, x[3], w[3], stride[3], padding[3], groups;
    } calls[] = {{1, {600}, {5}, {1}, {2}, 1},
                 {1, {19}, {4}, {3}, {0}, 2},
                 {2, {7, 300}, {3, 2}, {2, 1}, {1, 0}, 2},
                 {2, {4, 5}, {4, 5}, {1, 1}, {3, 4}, 1},
                 {3, {4, 5, 6}, {2, 3, 1}, {1, 2, 3}, {1, 0, 0}, 2}};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        rp_scope s = rp_scope_begin();
        const size_t n = (size_t)calls[c].spatial;
        const int64_t g = calls[c].groups;
        int64_t x_size[5] = {2, 4}, w_size[5] = {6, 4 / g};
        for (size_t d = 0; d < n; d++) x_size[2 + d] = calls[c].x[d], w_size[2 + d] = calls[c].w[d];
        rp_tensor *x = rp_randint(INT64_MIN / 4, INT64_MAX / 4, x_size, n + 2),
                  *w = rp_randint(INT64_MIN / 4, INT64_MAX / 4, w_size, n + 2),
                  *b = rp_randint(INT64_MIN / 4, INT64_MAX / 4, RP_DIMS(6));
#define CONV(k, x, w, b) rp_conv##k##d(x, w, b, calls[c].stride, n, calls[c].padding, n, RP_DIMS(1), g)
#define ANY_CONV(x, w, b) (n == 1 ? CONV(1, x, w, b) : n == 2 ? CONV(2, x, w, b) : CONV(3, x, w, b))
        rp_tensor *wide = ANY_CONV(x, w, b);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            rp_tensor *in = rp_transpose(rp_contiguous(rp_transpose(rp_to_dtype(x, types[t]), 1, -1)), 1, -1);
            rp_tensor *y = ANY_CONV(in, rp_to_dtype(w, types[t]), rp_to_dtype(b, types[t]));
            if (rp_failed()) fail_msg("call %zu, %s: %s", c, rp_dtype_name(types[t]), rp_error_message());
            assert_int_equal(rp_dtype_of(y), types[t]);
            assert_true(rp_item(rp_all(rp_eq(y, rp_to_dtype(wide, types[t])))).v.b);
        }
        assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    }
    rp_scope s = rp_scope_begin();
    rp_tensor *x = Z(RP_I32, 1, 2, 5, 5), *w = Z(RP_I32, 2, 2, 3, 3);
    EXPECT(rp_conv2d(x, w, NULL, RP_DIMS(1), RP_DIMS(0), RP_DIMS(1, 2)), RP_ERROR_DTYPE, "not defined for 'Int'");
    EXPECT(rp_conv_transpose2d(x, w), RP_ERROR_DTYPE, "not defined for 'Int'");
    EXPECT(rp_constant_pad_nd(x, RP_DIMS(1, 0), rp_f64(1e300)), RP_ERROR_INVALID_ARGUMENT, "without overflow");
    EXPECT(rp_pad(Z(RP_U8, 3), RP_DIMS(0, 1), "constant", rp_f64(300)), RP_ERROR_INVALID_ARGUMENT, "without overflow");
    assert_false(rp_is_error(rp_constant_pad_nd(x, RP_DIMS(-1, 0), rp_f64(1e300)))); /* nothing is added */
    EXPECT(rp_conv2d(Z(RP_BOOL, 1, 2, 5, 5), Z(RP_BOOL, 2, 2, 3, 3)), RP_ERROR_DTYPE, "not defined for 'Bool'");
    EXPECT(rp_conv_weight(Z(RP_I64, 1, 2, 3, 3), Z(RP_I64, 1, 2, 5, 5), RP_DIMS(2, 2, 3, 3), RP_DIMS(1), RP_DIMS(0),
                          RP_DIMS(1), 1),
           RP_ERROR_DTYPE, "not defined for 'Long'");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Of images on a CPU as many results as places, or twice as many, go by these numbers whatever the factor is, and so does the gradient; of
   rows, and of the nearest exact place, by the factor. */
static void test_nearest_by_sizes(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    const double by[2] = {1.2, 2.3}, exact[2] = {1, 2.3};
    rp_tensor *x = rp_reshape(rp_to_dtype(rp_arange(rp_i64(0), rp_i64(12)), RP_F32), RP_DIMS(1, 1, 4, 3)), *grad;
    float v[24], want[24];
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    rp_tensor *y = rp_interpolate(x, NULL, 0, by, 2, "nearest", RP_UNSET, RP_UNSET, false), *sum = rp_sum(y);
    assert_int_equal(rp_to_host(y, v, sizeof v), RP_OK);
    for (int i = 0; i < 24; i++) want[i] = (float)(i / 6 * 3 + i % 6 / 2);
    assert_memory_equal(v, want, sizeof v);
    assert_int_equal(rp_grad(&sum, 1, &x, 1, NULL, NULL, &grad), RP_OK);
    assert_int_equal(rp_to_host(grad, v, 12 * sizeof *v), RP_OK);
    for (int i = 0; i < 12; i++) assert_true(v[i] == 2);
    x = rp_reshape(rp_to_dtype(rp_arange(rp_i64(0), rp_i64(3)), RP_U8), RP_DIMS(1, 1, 3));
    uint8_t bytes[6];
    y = rp_interpolate(x, NULL, 0, by + 1, 1, "nearest", RP_UNSET, RP_UNSET, false);
    assert_int_equal(rp_to_host(y, bytes, 6), RP_OK);
    assert_memory_equal(bytes, ((const uint8_t[]){0, 0, 0, 1, 1, 2}), 6);
    y = rp_interpolate(rp_reshape(x, RP_DIMS(1, 1, 1, 3)), NULL, 0, exact, 2, "nearest-exact", RP_UNSET, RP_UNSET,
                       false);
    assert_int_equal(rp_to_host(y, bytes, 6), RP_OK);
    assert_memory_equal(bytes, ((const uint8_t[]){0, 0, 1, 1, 1, 2}), 6);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Coordinates of many results are rounded: an element's gradient is from those that read it, and not from those that would. */
static void test_nearest_of_many(void **state) {
    (void)state;
    enum { FROM = (1 << 22) + 4, TO = 2 * FROM };
    float *v = malloc(TO * sizeof *v);
    unsigned char *read = calloc(FROM, 1);
    assert_true(v && read);
    for (int i = 0; i < FROM; i++) v[i] = (float)i;
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_from_data(v, RP_DIMS(1, 1, FROM), RP_F32), *y, *grad;
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    y = rp_interpolate(x, RP_DIMS(TO), NULL, 0, "nearest-exact", RP_UNSET, RP_UNSET, false);
    assert_int_equal(rp_to_host(y, v, TO * sizeof *v), RP_OK);
    for (int i = 0; i < TO; i++) read[(int)v[i]]++;
    y = rp_sum(y);
    assert_int_equal(rp_grad(&y, 1, &x, 1, NULL, NULL, &grad), RP_OK);
    assert_int_equal(rp_to_host(grad, v, FROM * sizeof *v), RP_OK);
    for (int i = 0; i < FROM; i++)
        if (v[i] != read[i]) fail_msg("element %d: %g, read by %d", i, (double)v[i], read[i]);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    free(v);
    free(read);
}

/* The last element of so many that its place is no float. */
static void test_last_of_many(void **state) {
    (void)state;
    enum { FROM = (1 << 24) + 2 };
    uint16_t *v = calloc(FROM, sizeof *v), got[2];
    assert_non_null(v);
    v[0] = 0x4000;
    v[FROM - 1] = 0x3c00;
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_from_data(v, RP_DIMS(FROM), RP_F16);
    for (int mode = 0; mode < 2; mode++) {
        const double step = FROM;
        rp_tensor *y = rp_resample_nearest_at("here", x, RP_DIMS(2), mode, &step, 1);
        rp_tensor *one = rp_resample_at("here", x, 0, 2, mode, false, step);
        assert_int_equal(rp_to_host(y, got, sizeof got), RP_OK);
        assert_int_equal(got[1], 0x3c00);
        if (mode == 0) assert_int_equal(got[0], 0x4000);
        assert_int_equal(rp_to_host(one, got, sizeof got), RP_OK);
        assert_int_equal(got[1], 0x3c00);
    }
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    free(v);
}

/* self + alpha * other is rounded once. */
static void test_alpha_rounds_once(void **state) {
    (void)state;
    enum { N = 777 };
    static float x[N], y[N], got[N];
    static double u[N], v[N], had[N];
    rp_scope s = rp_scope_begin();
    int apart = 0;
    for (int i = 0; i < N; i++) {
        x[i] = sinf((float)i) * 1.3f;
        y[i] = cosf((float)(7 * i)) * 0.9f;
        u[i] = sin(i);
        v[i] = cos(3 * i);
    }
    for (int sub = 0; sub < 2; sub++) {
        rp_tensor *a = rp_from_data(x, RP_DIMS(N), RP_F32), *b = rp_from_data(y, RP_DIMS(N), RP_F32);
        rp_tensor *r = sub ? rp_sub(a, b, RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.3)))
                           : rp_add(a, b, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.3)));
        assert_int_equal(rp_to_host(r, got, sizeof got), RP_OK);
        for (int i = 0; i < N; i++) {
            const float alpha = sub ? -0.3f : 0.3f, product = alpha * y[i];
            assert_true(got[i] == fmaf(alpha, y[i], x[i]));
            apart += got[i] != x[i] + product;
        }
        a = rp_from_data(u, RP_DIMS(N), RP_F64);
        b = rp_from_data(v, RP_DIMS(N), RP_F64);
        r = sub ? rp_sub(a, b, RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.3)))
                : rp_add(a, b, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.3)));
        assert_int_equal(rp_to_host(r, had, sizeof had), RP_OK);
        for (int i = 0; i < N; i++) assert_true(had[i] == fma(sub ? -0.3 : 0.3, v[i], u[i]));
    }
    assert_true(apart > 0);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_linear_with_a_row_of_weights(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    static const float x[] = {1, 2, 3, 4, 5, 6}, w[] = {0.5, -1, 2};
    rp_tensor *a = rp_from_data(x, RP_DIMS(2, 3), RP_F32), *row = rp_from_data(w, RP_DIMS(3), RP_F32);
    assert_true(same_bytes(rp_linear(a, row), rp_matmul(a, row)));
    rp_tensor *three = rp_transpose(rp_view(a, RP_DIMS(1, 3, 2)), 1, 2); /* dims that do not fold */
    assert_true(same_bytes(rp_linear(three, row), rp_matmul(three, row)));
    rp_tensor *dot = rp_linear(rp_select(a, 0, 1), row);
    assert_true(rp_ndim(dot) == 0 && rp_item_f64(dot) == 4 * 0.5 - 5 + 12);
    rp_set_requires_grad(a, true);
    rp_set_requires_grad(row, true);
    assert_int_equal(rp_backward(rp_sum(rp_linear(a, row)), NULL, NULL), RP_OK);
    float slope[3];
    assert_int_equal(rp_to_host(rp_grad_of(row), slope, sizeof slope), RP_OK);
    assert_true(slope[0] == 5 && slope[1] == 7 && slope[2] == 9);
    assert_true(same_bytes(rp_grad_of(a), rp_clone(rp_expand(row, RP_DIMS(2, 3)))));
    EXPECT(rp_linear(a, row, row), RP_ERROR_SHAPE, "mat2 must be a matrix");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Where there is nothing to compute PyTorch does not look at types and dims. */
static void test_empty_operands(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *ints = rp_zeros(RP_DIMS(3, 0), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64));
    assert_int_equal(rp_dtype_of(rp_softmax(ints, 1)), RP_I64);
    assert_int_equal(rp_dtype_of(rp_log_softmax(rp_ne(ints, ints), 0)), RP_BOOL);
    rp_tensor *none = rp_zeros(RP_DIMS(0)), *pair[] = {none, none};
    assert_true(rp_numel(rp_cat(pair, 2, 1)) == 0);
    rp_tensor *x = rp_ones(RP_DIMS(3, 2)),
              *bytes = rp_zeros(RP_DIMS(0, 2), RP_OPTIONS(rp_zeros_options, .dtype = RP_U8));
    assert_true(rp_size(rp_gather(x, 0, bytes), 0) == 0);
    assert_true(same_bytes(rp_scatter_add(x, 0, bytes, rp_zeros(RP_DIMS(0, 2))), x));
    rp_tensor *left = rp_zeros(RP_DIMS(2, 0), RP_OPTIONS(rp_zeros_options, .dtype = RP_BOOL));
    rp_tensor *product = rp_matmul(left, rp_transpose(left, 0, 1));
    assert_true(rp_dtype_of(product) == RP_BOOL && rp_item_f64(rp_any(product)) == 0);
    assert_true(rp_numel(rp_linear(rp_transpose(left, 0, 1),
                                   rp_ones(RP_DIMS(4, 2), RP_OPTIONS(rp_ones_options, .dtype = RP_BOOL)))) == 0);
    assert_false(rp_failed());
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_left_out_and_options(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    static const float v[] = {1, -2, 3, 4, -5, 6};
    rp_tensor *x = rp_from_data(v, RP_DIMS(2, 3), RP_F32), *values, *places;
    assert_true(same_bytes(rp_sum(x), rp_sum(x, RP_NO_DIMS, false, NULL)));
    assert_true(rp_ndim(rp_sum(x, RP_DIMS(1))) == 1 && rp_ndim(rp_sum(x, RP_DIMS(1), true)) == 2);
    assert_int_equal(rp_dtype_of(rp_sum(x, RP_DIMS(0, 1), false, RP_OPTIONS(rp_sum_options, .dtype = RP_F64))), RP_F64);
    rp_tensor *twice = rp_add(x, x, RP_OPTIONS(rp_add_options, .alpha = rp_i64(1)));
    assert_true(same_bytes(twice, rp_mul_scalar(x, rp_i64(2))) && same_bytes(rp_add(x, x, NULL), twice));
    assert_true(same_bytes(rp_add_scalar(x, rp_i64(3), rp_i64(2)), rp_add_scalar(x, rp_i64(6))));
    values = rp_topk(x, 1, 1, true, true, &places);
    assert_true(same_bytes(values, rp_topk(x, 1)));
    assert_int_equal(rp_dtype_of(rp_full(RP_DIMS(2), rp_i64(1))), RP_I64);
    assert_int_equal(rp_dtype_of(rp_full(RP_DIMS(2), rp_bool(true))), RP_BOOL);
    assert_int_equal(rp_dtype_of(rp_arange(rp_i64(0), rp_f64(2))), RP_F32);
    /* by name: None, defaults, attributes in the schema's order */
    rp_attr clamp[] = {{.kind = RP_ATTR_NONE}, {.kind = RP_ATTR_FLOAT, .v.f = 2}};
    rp_tensor *out = NULL;
    assert_int_equal(rp_op_call("clamp", &x, 1, clamp, 2, &out, 1), RP_OK);
    assert_true(same_bytes(out, rp_clamp(x, rp_none(), rp_f64(2))));
    assert_int_equal(rp_op_call("gelu", &x, 1, (rp_attr[]){{.kind = RP_ATTR_STRING, .v.string = "tanh"}}, 1, &out, 1),
                     RP_OK);
    assert_true(same_bytes(out, rp_gelu(x, RP_OPTIONS(rp_gelu_options, .approximate = "tanh"))));
    assert_false(same_bytes(out, rp_gelu(x)));
    /* what is refused */
    EXPECT(rp_clamp(x), RP_ERROR_INVALID_ARGUMENT, "At least one of 'min' or 'max' must not be None");
    EXPECT(rp_gelu(x, RP_OPTIONS(rp_gelu_options, .approximate = "cubic")), RP_ERROR_INVALID_ARGUMENT,
           "either none or tanh");
    EXPECT(rp_add_scalar(x, rp_none()), RP_ERROR_INVALID_ARGUMENT, "other may not be None");
    EXPECT(rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .pin_memory = RP_TRUE)), RP_ERROR_UNAVAILABLE,
           "page-locked");
    EXPECT(rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .layout = RP_SPARSE_COO)), RP_ERROR_UNAVAILABLE,
           "strided");
    EXPECT(rp_clone(x, RP_OPTIONS(rp_clone_options, .memory_format = RP_CHANNELS_LAST)), RP_ERROR_INVALID_ARGUMENT,
           "required rank 4 tensor to use channels_last format");
    rp_add_options unset = {.alpha = rp_i64(2)};
    EXPECT(rp_add(x, x, &unset), RP_ERROR_INVALID_ARGUMENT, "struct_size of the options is not set");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* A comparison in place cuts the history: its gradient is zero. */
static void test_compare_in_place_has_no_gradient(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(3)), *y;
    rp_set_requires_grad(x, true);
    y = rp_mul_scalar(x, rp_i64(2));
    y = rp_eq_(y, rp_ones(RP_DIMS(3)));
    assert_int_equal(rp_dtype_of(y), RP_F32);
    assert_int_equal(rp_backward(rp_sum(rp_add(y, rp_mul(x, x))), NULL, NULL), RP_OK);
    float slope[3];
    assert_int_equal(rp_to_host(rp_grad_of(x), slope, sizeof slope), RP_OK);
    assert_true(slope[0] == 2 && slope[1] == 2 && slope[2] == 2);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

/* Between the smallest and the largest integer the slope is 1, in whole steps that a difference would not see. */
static void test_slope_of_fake_quantization(void **state) {
    (void)state;
    static const float at[5] = {-9, -0.3f, 0.4f, 1.2f, 9}, expected[5] = {0, 1, 1, 1, 0};
    for (unsigned k = 0; k < 2; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *x = rp_from_data(at, RP_DIMS(5), RP_F32), *scale = rp_full(RP_DIMS(5), rp_f64(0.25)), *y;
        rp_tensor *zero = rp_full(RP_DIMS(5), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_I32));
        rp_set_requires_grad(x, true);
        y = k ? rp_fake_quantize_per_channel_affine(x, scale, zero, 0, -4, 7)
              : rp_fake_quantize_per_tensor_affine(x, 0.25, 1, -4, 7);
        assert_int_equal(rp_backward(rp_sum(y), NULL, NULL), RP_OK);
        float slope[5];
        assert_int_equal(rp_to_host(rp_grad_of(x), slope, sizeof slope), RP_OK);
        for (unsigned i = 0; i < 5; i++) assert_true(slope[i] == expected[i]);
        assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_references_are_of_rows),
        TEST(test_slope_of_fake_quantization),
        TEST(test_compare_with_numbers),
        TEST(test_alpha_rounds_once),
        TEST(test_pads_by_modes),
        TEST(test_older_errors),
        TEST(test_nearest_of_many),
        TEST(test_last_of_many),
        TEST(test_linear_with_a_row_of_weights),
        TEST(test_empty_operands),
        TEST(test_left_out_and_options),
        TEST(test_compare_in_place_has_no_gradient),
        TEST(test_sweep_cpu),
        TEST(test_errors_pointwise),
        TEST(test_errors_reduce),
        TEST(test_errors_views),
        TEST(test_errors_index),
        TEST(test_errors_matrices),
        TEST(test_convolutions_of_integers),
        TEST(test_nearest_by_sizes),
        TEST(test_errors_random),
        TEST(test_errors_from_kernels),
        TEST(test_overlap),
        TEST(test_rand),
        TEST(test_randint),
        TEST(test_dropout),
        TEST(test_channel_dropouts),
        TEST(test_histogram_between_edges),
        TEST(test_multinomial),
        TEST(test_incomplete_gamma),
        TEST(test_distributions),
        TEST(test_fractional_pools),
        TEST(test_gamma_slope),
        TEST(test_empty),
        TEST(test_adam),
        TEST(test_sgd),
        TEST(test_by_name),
        TEST(test_user_op),
        TEST(test_user_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
