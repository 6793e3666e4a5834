/* See cuda.h. */
#include "support/cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <reprise.h>

#include "support/slow.h"

bool test_cuda_is_real(void) {
    const char *which = getenv("REPRISE_TEST_CUDA");
    return which && strcmp(which, "real") == 0;
}

static bool use(const char *variable, const char *folder, const char *file) {
    char path[1024];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    if (n < 0 || (size_t)n >= sizeof path || access(path, R_OK) != 0) {
        printf("no emulator: %s/%s is missing\n", folder, file);
        return false;
    }
    return setenv(variable, path, 1) == 0;
}

bool test_device_choose(void) {
    const char *which = getenv("REPRISE_TEST_CUDA");
    if (!which || !*which) return true;
    return test_cuda_choose() && rp_set_default_device(rp_cuda(0)) == RP_OK;
}

bool test_cuda_choose(void) {
    const char *filter = getenv("REPRISE_TEST_FILTER");
    if (filter && *filter) cmocka_set_test_filter(filter);
    if (test_cuda_is_real()) {
        if (rp_device_count(RP_DEVICE_CUDA) > 0) return true;
        printf("REPRISE_TEST_CUDA=real, and there is no CUDA device\n");
        return false;
    }
    const char *folder = getenv("REPRISE_CUDASIM_DIR");
    if (!folder || !*folder) {
        printf("REPRISE_CUDASIM_DIR does not name the folder of the emulator\n");
        return false;
    }
    return use("REPRISE_LIBCUDA", folder, "libcuda.so.1") && use("REPRISE_LIBNVRTC", folder, "libnvrtc.so.13") &&
           use("REPRISE_LIBCUBLASLT", folder, "libcublasLt.so.13") && use("REPRISE_LIBCUDNN", folder, "libcudnn.so.9");
}

bool test_cuda_takes(unsigned k, unsigned n) {
    return test_cuda_is_real() || test_takes_all() || k % (SLOW_BUILD ? 3 * n : n) == 0;
}

unsigned test_cuda_draws(unsigned a, unsigned b, unsigned n) {
    uint32_t h = (uint32_t)a * UINT32_C(0x9e3779b1) + UINT32_C(0x7f4a7c15);
    h = (h ^ h >> 15 ^ (uint32_t)b) * UINT32_C(0x85ebca6b);
    h = (h ^ h >> 13) * UINT32_C(0xc2b2ae35);
    return (h >> 16) % n;
}
