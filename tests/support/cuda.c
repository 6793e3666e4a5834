/* See cuda.h. */
#include "support/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <reprise.h>

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

bool test_cuda_choose(void) {
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
           use("REPRISE_LIBCUBLASLT", folder, "libcublasLt.so.13");
}
