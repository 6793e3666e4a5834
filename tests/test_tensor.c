/* Tensors: making them, looking at them, copying out, text as PyTorch's, misuse, and allocation failures on every path. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "tensor/tensor.h"

static rp_tensor *floats(const float *values, const int64_t *size, size_t ndim) {
    rp_tensor *t = rp_from_data(values, size, ndim, RP_F32);
    assert_false(rp_is_error(t));
    return t;
}

static void accessors_answer(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    float x[] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
    rp_tensor *t = floats(x, RP_DIMS(2, 3));
    assert_int_equal(rp_ndim(t), 2);
    assert_int_equal(rp_numel(t), 6);
    assert_int_equal(rp_size(t, -1), 3);
    assert_int_equal(rp_stride(t, 0), 3);
    assert_int_equal(rp_dtype_of(t), RP_F32);
    assert_int_equal(rp_device_of(t).type, RP_DEVICE_CPU);
    assert_true(rp_is_contiguous(t));
    assert_int_equal(rp_version(t), 0);
    rp__storage_written(t->storage, "add_", "x.c:1");
    assert_int_equal(rp_version(t), 1);
    assert_int_equal(rp_to_host(t, y, sizeof y), RP_OK);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal((rp_size)(t, 2), -1); /* without a site */
    assert_string_equal(rp_error_message(),
                        "size: Dimension out of range (expected to be in range of [-2, 1], but got 2)");
    rp_error_take();
    rp_tensor *zero = rp_from_data(&(int64_t){-7}, RP_NO_DIMS, RP_I64);
    assert_int_equal(rp_item_i64(zero), -7);
    assert_int_equal(rp_item(zero).kind, RP_SCALAR_I64);
    assert_int_equal(rp_size(zero, 0), -1);
    rp_error_take();
    (rp_item)(t);
    assert_string_equal(rp_error_message(), "item: a Tensor with 6 elements cannot be converted to Scalar");
    rp_error_take();
    static const double whole[] = {2.75, -2.75, -0x1p63}, none[] = {INFINITY, -INFINITY, NAN, 0x1p63, 1e300};
    for (size_t k = 0; k < sizeof whole / sizeof *whole; k++)
        assert_int_equal(rp_item_i64(rp_from_data(&whole[k], RP_NO_DIMS, RP_F64)), (int64_t)whole[k]);
    assert_false(rp_failed());
    for (size_t k = 0; k < sizeof none / sizeof *none; k++) {
        assert_int_equal(rp_item_i64(rp_from_data(&none[k], RP_NO_DIMS, RP_F64)), 0);
        assert_non_null(strstr(rp_error_message(), "is not an integer of 64 bits"));
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    }
    assert_int_equal(rp_to_host(t, y, 3), RP_ERROR_SHAPE);
    rp_error_take();
    rp_tensor *empty = rp_from_data(NULL, RP_DIMS(3, 0), RP_F64);
    assert_false(rp_is_error(empty));
    assert_int_equal(rp_numel(empty), 0);
    assert_null(rp_data(empty));
    assert_int_equal(rp_to_host(empty, NULL, 0), RP_OK);
    rp_scope_end(scope, NULL, 0);
}

static void views_share_and_gather(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    float x[24], y[24];
    for (int i = 0; i < 24; i++) x[i] = (float)i;
    rp_tensor *t = floats(x, RP_DIMS(2, 3, 4));
    rp_dim size[] = {4, 2, 3}, stride[] = {1, 12, 4};
    rp_tensor *v = rp__tensor_view(t, size, stride, 3, 0); /* permute(2, 0, 1) */
    assert_false(rp_is_contiguous(v));
    assert_int_equal(rp_to_host(v, y, sizeof y), RP_OK);
    for (int a = 0, n = 0; a < 4; a++) {
        for (int b = 0; b < 2; b++) {
            for (int c = 0; c < 3; c++) assert_true(y[n++] == (float)(a + 12 * b + 4 * c));
        }
    }
    rp_dim rows[] = {2, 2, 4}, row_stride[] = {12, 4, 1};
    rp_tensor *narrow = rp__tensor_view(t, rows, row_stride, 3, 4);
    float z[16];
    assert_int_equal(rp_to_host(narrow, z, sizeof z), RP_OK);
    assert_true(z[0] == 4 && z[7] == 11 && z[8] == 16 && z[15] == 23);
    int64_t begin, end;
    rp__tensor_byte_range(narrow, &begin, &end);
    assert_true(begin == 16 && end == 96);
    rp_dim expanded[] = {3, 1, 2}, expand_stride[] = {0, 5, 1};
    rp_tensor *e = rp__tensor_view(t, expanded, expand_stride, 3, 22);
    assert_true(rp__tensor_overlaps_itself(e) && !rp__tensor_overlaps_itself(v));
    assert_int_equal(rp_to_host(e, z, 24), RP_OK);
    assert_true(z[0] == 22 && z[1] == 23 && z[4] == 22);
    rp_dim ones[] = {1, 24, 1}, odd[] = {99, 1, 7};
    assert_true(rp_is_contiguous(rp__tensor_view(t, ones, odd, 3, 0)));
    assert_int_equal(t->storage->refs, 5);
    rp_scope_end(scope, NULL, 0);
}

static void count_calls(void *ctx) { ++*(int *)ctx; }

static void blobs_are_wrapped(void **state) {
    (void)state;
    int calls = 0;
    float x[] = {1, 2, 3, 4, 5, 6}, y[4];
    const int64_t size[] = {2, 2}, stride[] = {1, 4}, negative[] = {-1, 4};
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = rp_from_blob(x, size, 2, stride, RP_F32, rp_cpu(), count_calls, &calls);
    assert_ptr_equal(rp_data(t), x);
    assert_int_equal(t->storage->bytes, 24);
    assert_true(t->storage->foreign);
    assert_int_equal(rp_to_host(t, y, sizeof y), RP_OK);
    assert_true(y[0] == 1 && y[1] == 5 && y[2] == 2 && y[3] == 6);
    assert_true(rp_is_error(rp_from_blob((char *)x + 1, size, 2, NULL, RP_F32, rp_cpu(), count_calls, &calls)));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(calls, 1);
    calls = 0;
    rp_tensor *v = rp_retain(rp__tensor_view(t, size, stride, 2, 0));
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(calls, 0);
    rp_release(v);
    assert_int_equal(calls, 1);
    assert_true(rp_is_error(rp_from_blob(x, size, 2, negative, RP_F32, rp_cpu(), count_calls, &calls)));
    assert_int_equal(calls, 2); /* on failure too */
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    assert_true(rp_is_error(rp_from_blob(NULL, size, 2, NULL, RP_F32, rp_cpu(), NULL, NULL)));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
}

/* A stride that is never stepped along says nothing, whatever it is; what is computed with it must not overflow, at which a
   sanitizer looks. */
static void strides_that_say_nothing(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    float x[] = {1, 2, 3}, y[3];
    static const int64_t hostile[] = {INT64_MAX, INT64_MAX / 2, INT64_C(0x5555555555555555), INT64_C(1) << 62};
    for (size_t k = 0; k < sizeof hostile / sizeof *hostile; k++) {
        int64_t far = hostile[k];
        rp_tensor *t = rp_from_blob(x, RP_DIMS(1, 3, 1), (int64_t[]){far, 1, far}, RP_F32, rp_cpu(), NULL, NULL);
        assert_false(rp_failed());
        assert_int_equal(rp_stride(t, 0), 3);
        assert_int_equal(rp_stride(t, 2), 1);
        assert_int_equal(rp_to_host(rp_unsqueeze(rp_add_scalar(t, rp_i64(1)), 0), y, sizeof y), RP_OK);
        assert_true(y[0] == 2 && y[1] == 3 && y[2] == 4);
        rp_tensor *none =
            rp_from_blob(x, RP_DIMS(0, 2, far, 3), (int64_t[]){far, far, far, far}, RP_F32, rp_cpu(), NULL, NULL);
        assert_false(rp_failed());
        for (int64_t d = 0; d < 4; d++) assert_true(rp_stride(none, d) <= RP__REACH_LIMIT);
        rp_tensor *end = rp_select(rp_select(none, 2, far - 1), 2, 2); /* a place that nothing is at */
        assert_int_equal(rp_numel(rp_clone(end)), 0);
        assert_int_equal(rp_numel(rp_sin(rp_unsqueeze(end, 0))), 0);
        assert_false(rp_failed());
        assert_true(rp_is_error(rp_from_blob(x, RP_DIMS(3), &far, RP_F32, rp_cpu(), NULL, NULL)));
        assert_non_null(strstr(rp_error_message(), "from_blob: sizes (3) and strides ("));
        assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    }
    rp_scope_end(scope, NULL, 0);
}

static void bad_sizes_are_refused(void **state) {
    (void)state;
    float x[1] = {0};
    assert_true(rp_is_error(rp_from_data(x, RP_DIMS(-1), RP_F32)));
    assert_non_null(strstr(rp_error_message(), "from_data: Trying to create tensor with negative dimension -1"));
    assert_non_null(strstr(rp_error_message(), "test_tensor.c:"));
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    assert_true(rp_is_error(rp_from_data(x, RP_DIMS(INT64_C(1) << 31, INT64_C(1) << 31, 4), RP_F32)));
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    assert_true(rp_is_error(rp_from_data(x, RP_DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), RP_F32)));
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    assert_true(rp_is_error(rp_from_data(x, RP_DIMS(1), (rp_dtype)42)));
    assert_int_equal(rp_error_take(), RP_ERROR_DTYPE);
    assert_true(rp_is_error(rp_from_data(NULL, RP_DIMS(1), RP_F32)));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    assert_true(rp_is_error(rp_from_data(x, RP_DIMS(INT64_C(1) << 58), RP_F32)));
    assert_int_equal(rp_error_status(), RP_ERROR_OUT_OF_MEMORY);
    assert_non_null(strstr(rp_error_message(), "tried to allocate 1.00 EiB on cpu"));
    rp_error_take();
}

static void misuse_is_an_error_not_a_crash(void **state) {
    (void)state;
    float x = 1;
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = rp_from_data_at("made.c:5", &x, RP_DIMS(1), RP_F32);
    rp_release(t);
    assert_non_null(strstr(rp_error_message(), "released more often than retained"));
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    assert_int_equal(rp_numel(t), 1);
    rp_scope_end(scope, NULL, 0);
    (void)(rp_item)(t); /* without a site */
    assert_string_equal(rp_error_message(),
                        "item: the tensor was released already: a tensor made by from_data at made.c:5");
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    rp_release(t);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    assert_true(rp_is_error(rp_retain(t)));
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    assert_int_equal(rp_ndim(NULL), 0);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);

    rp_tensor *error = rp__tensor_error();
    assert_true(rp_is_error(error) && !rp_is_error(NULL));
    assert_int_equal(rp_ndim(error), 0);
    assert_int_equal(rp_numel(error), 0);
    assert_null(rp_data(error));
    assert_int_equal(rp_dtype_of(error), RP_DTYPE_NONE);
    rp_release(error);
    rp_release(NULL);
    assert_ptr_equal(rp_retain(error), error);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT); /* a failure that was taken is told again */
    assert_int_not_equal(rp_to_host(error, &x, 4), RP_OK);
    rp_error_take();
}

static void replays_make_outputs_stale(void **state) {
    (void)state;
    static _Atomic uint64_t generation = 3;
    float x = 1, y;
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = rp_from_data_at("g.c:9", &x, RP_DIMS(1), RP_F32);
    t->storage->generation = &generation;
    t->storage->stamp = 3;
    assert_int_equal(rp_to_host(t, &y, 4), RP_OK);
    atomic_store(&generation, 4);
    assert_int_equal(rp_to_host(t, &y, 4), RP_ERROR_STALE);
    assert_non_null(strstr(rp_error_message(), "made by from_data at g.c:9"));
    rp_error_take();
    rp_scope_end(scope, NULL, 0);
}

/* ---- text */

static void check_text(rp_tensor *t, const char *want) {
    char buf[8192];
    size_t n = rp_format(t, buf, sizeof buf);
    assert_string_equal(buf, want);
    assert_int_equal(n, strlen(want));
}

static void text_is_pytorchs(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    check_text(floats((float[]){1, 2, 3}, RP_DIMS(3)), "tensor([1., 2., 3.])");
    check_text(floats((float[]){1.5f, -2, 1000}, RP_DIMS(3)), "tensor([   1.5000,   -2.0000, 1000.0000])");
    check_text(floats((float[]){0.00001f, 1}, RP_DIMS(2)), "tensor([1.0000e-05, 1.0000e+00])");
    check_text(floats((float[]){1, 100000}, RP_DIMS(2)), "tensor([1.0000e+00, 1.0000e+05])");
    check_text(floats((float[]){0, 0}, RP_DIMS(2)), "tensor([0., 0.])");
    check_text(floats((float[]){NAN, INFINITY, 1}, RP_DIMS(3)), "tensor([nan, inf, 1.])");
    check_text(floats((float[]){-INFINITY, 0.5f}, RP_DIMS(2)), "tensor([  -inf, 0.5000])");
    check_text(floats((float[]){3.25f}, RP_NO_DIMS), "tensor(3.2500)");
    check_text(floats((float[]){1, 2, 3, 4, 5, 6}, RP_DIMS(2, 3)), "tensor([[1., 2., 3.],\n        [4., 5., 6.]])");
    check_text(floats((float[]){1, 2, 3, 4}, RP_DIMS(2, 1, 2)), "tensor([[[1., 2.]],\n\n        [[3., 4.]]])");
    check_text(rp_from_data((int64_t[]){1, -20}, RP_DIMS(2), RP_I64), "tensor([  1, -20])");
    check_text(rp_from_data((int32_t[]){7}, RP_DIMS(1), RP_I32), "tensor([7], dtype=torch.int32)");
    check_text(rp_from_data((uint8_t[]){1, 0}, RP_DIMS(2), RP_BOOL), "tensor([ True, False])");
    check_text(rp_from_data((double[]){1}, RP_DIMS(1), RP_F64), "tensor([1.], dtype=torch.float64)");
    check_text(rp_from_data((uint16_t[]){0x3c00}, RP_DIMS(1), RP_F16), "tensor([1.], dtype=torch.float16)");
    check_text(rp_from_data(NULL, RP_DIMS(0), RP_F32), "tensor([])");
    check_text(rp_from_data(NULL, RP_DIMS(0), RP_I64), "tensor([], dtype=torch.int64)");
    check_text(rp_from_data(NULL, RP_DIMS(2, 0), RP_F32), "tensor([], size=(2, 0))");
    float many[25];
    for (int i = 0; i < 25; i++) many[i] = (float)i;
    check_text(floats(many, RP_DIMS(25)),
               "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.,\n"
               "        14., 15., 16., 17., 18., 19., 20., 21., 22., 23., 24.])");
    static float thousand[1200];
    for (int i = 0; i < 1200; i++) thousand[i] = (float)i;
    check_text(floats(thousand, RP_DIMS(1200)),
               "tensor([0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 1.1970e+03, 1.1980e+03,\n"
               "        1.1990e+03])");
    static int64_t grid[1200];
    for (int i = 0; i < 1200; i++) grid[i] = i;
    check_text(rp_from_data(grid, RP_DIMS(40, 30), RP_I64), "tensor([[   0,    1,    2,  ...,   27,   28,   29],\n"
                                                            "        [  30,   31,   32,  ...,   57,   58,   59],\n"
                                                            "        [  60,   61,   62,  ...,   87,   88,   89],\n"
                                                            "        ...,\n"
                                                            "        [1110, 1111, 1112,  ..., 1137, 1138, 1139],\n"
                                                            "        [1140, 1141, 1142,  ..., 1167, 1168, 1169],\n"
                                                            "        [1170, 1171, 1172,  ..., 1197, 1198, 1199]])");
    rp_tensor *leaf = floats((float[]){1}, RP_DIMS(1));
    leaf->flags |= RP__T_REQUIRES_GRAD;
    check_text(leaf, "tensor([1.], requires_grad=True)");
    char small[8];
    assert_int_equal(rp_format(leaf, small, sizeof small), 32);
    assert_string_equal(small, "tensor(");
    assert_int_equal(rp_format(leaf, NULL, 0), 32);
    rp_scope_end(scope, NULL, 0);
}

/* ---- allocation failures */

static bool scenario(void) { /* true: all went well */
    float x[] = {1, 2, 3, 4}, y[4];
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = rp_from_data(x, RP_DIMS(2, 2), RP_F32);
    rp_dim size[] = {2, 2}, stride[] = {1, 2};
    rp_tensor *v = rp__tensor_view(t, size, stride, 2, 0);
    rp_tensor *kept = rp_from_blob(x, size, 2, NULL, RP_F32, rp_cpu(), NULL, NULL);
    rp_tensor *big = rp__tensor_empty(&rp__cpu_device, RP_F32, (rp_dim[]){300000}, 1);
    bool good = !rp_is_error(t) && !rp_is_error(v) && !rp_is_error(kept) && !rp_is_error(big);
    char buf[256];
    if (good) good = rp_to_host(v, y, sizeof y) == RP_OK && y[1] == 3 && rp_format(v, buf, sizeof buf) > 0;
    if (scope.id)
        rp_scope_end(scope, NULL, 0);
    else
        good = false;
    return good;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    rp_scope outer = rp_scope_begin();
    assert_true(scenario());
    rp_scope_end(outer, NULL, 0);
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        assert_true(n < 200);
        outer = rp_scope_begin();
        uint64_t live = rp__alloc_live();
        rp_memory_stats before = {.struct_size = sizeof before}, after = before;
        rp_memory_stats_get(rp_cpu(), &before);
        rp__alloc_fail_at(n);
        bool good = scenario();
        rp__alloc_fail_at(0);
        bool failed = rp_failed();
        assert_int_equal(good, !failed);
        if (failed) {
            failures++;
            assert_int_equal(rp_error_status(), RP_ERROR_OUT_OF_MEMORY);
        }
        rp_error_take();
        rp_scope_end(outer, NULL, 0);
        rp_memory_stats_get(rp_cpu(), &after);
        assert_int_equal(after.allocated, before.allocated);
        assert_int_equal(after.live_tensors, before.live_tensors);
        assert_true(rp__alloc_live() <= live + 8); /* slabs and lists may have grown; nothing else stays */
        if (good && n > 20) break;
    }
    assert_true(failures >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accessors_answer),           cmocka_unit_test(views_share_and_gather),
        cmocka_unit_test(blobs_are_wrapped),          cmocka_unit_test(strides_that_say_nothing),
        cmocka_unit_test(bad_sizes_are_refused),      cmocka_unit_test(misuse_is_an_error_not_a_crash),
        cmocka_unit_test(replays_make_outputs_stale), cmocka_unit_test(text_is_pytorchs),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
