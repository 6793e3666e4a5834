/* Programs of tests that run on the CPU, then on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). */
#ifndef RP_TESTS_EACH_DEVICE_H
#define RP_TESTS_EACH_DEVICE_H

#include <stdio.h>
#include <stdlib.h>

#include "support/check.h"
#include "support/cuda.h"

static rp_device device; /* of the tests that run */

static inline int begin(void **state) {
    (void)state;
    (void)rp_set_default_device(device);
    (void)rp_manual_seed(7);
    return rp_failed();
}
static inline int end(void **state) {
    (void)state;
    (void)rp_synchronize(device);
    if (rp_failed()) fprintf(stderr, "left behind: %s\n", rp_error_message());
    return rp_error_take() != RP_OK;
}

static inline void same(rp_tensor *a, rp_tensor *b) { /* bit for bit */
    if (rp_failed()) fail_msg("%s", rp_error_message());
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_int_equal(rp_numel(a), rp_numel(b));
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    OK(rp_to_host(a, x, bytes));
    OK(rp_to_host(b, y, bytes));
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

/* Within rounding of sums that were taken in another order. */
static inline void near(rp_tensor *a, rp_tensor *b) {
    rp_tensor *off = rp_abs(rp_sub(rp_detach(a), rp_detach(b)));
    rp_tensor *bound = rp_mul_scalar(rp_add_scalar(rp_abs(rp_detach(b)), rp_f64(1e-3)), rp_f64(1e-5));
    assert_true(rp_item_f64(rp_amax(rp_sub(off, bound), RP_NO_DIMS, false)) < 0);
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

/* The end of main: the tests on each device, and the exit code. */
#define RUN_ON_EACH_DEVICE(tests)                                                                                      \
    do {                                                                                                               \
        device = rp_cpu();                                                                                             \
        int each_failed = cmocka_run_group_tests_name("cpu", tests, NULL, NULL);                                       \
        if (!test_cuda_choose()) return each_failed + test_cuda_is_real(); /* it has said why */                       \
        device = rp_cuda(0);                                                                                           \
        return each_failed + cmocka_run_group_tests_name("cuda", tests, NULL, NULL);                                   \
    } while (0)

#endif
