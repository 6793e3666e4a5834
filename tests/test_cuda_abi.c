/* The binary interface that our CUDA declarations describe. The static assertions hold our headers to cuda_abi.def whenever
 * this file is compiled; its one test compiles cuda_abi_nvidia.c where a CUDA toolkit is installed, which holds NVIDIA's
 * headers to the same list and every line of the symbol tables to NVIDIA's prototype. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <unistd.h>

#include "device/cuda/cuda_api.h"
#include "kernel/cuda/cublaslt_api.h"
#include "kernel/cuda/cudnn_api.h"

#define ABI_DRIVER
#define ABI_NVRTC
#define ABI_CUBLASLT
#define ABI_CUDNN
#define ABI_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type);
#define ABI_OFFSET(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), "offset of " #type "." #field);
#define ABI_VALUE(name, value) _Static_assert((long long)(name) == (value), "value of " #name);
#include "cuda_abi.def"

/* Compiles cuda_abi_nvidia.c with the system's compiler against the toolkit's headers: the two sets of declarations
 * share names and cannot meet in one file, and the build itself must need no CUDA header. */
static void test_nvidia_headers(void **state) {
    (void)state;
    const char *home = getenv("CUDA_HOME");
    char include[1024], header[1200], source[1024], command[8192];
    snprintf(include, sizeof include, "%s/include", home && *home ? home : "/usr/local/cuda");
    snprintf(header, sizeof header, "%s/cublasLt.h", include);
    if (access(header, R_OK) != 0) {
        print_message("skipped: no CUDA toolkit headers in %s\n", include);
        skip();
    }
    const char *data = getenv("REPRISE_TEST_DATA"); /* tests/data of the source tree */
    assert_non_null(data);
    snprintf(source, sizeof source, "%s/..", data);
    snprintf(command, sizeof command, "cc -std=c11 -fsyntax-only -I'%s' -I'%s/../src' -I'%s' '%s/cuda_abi_nvidia.c'",
             include, source, source, source);
    if (system("cc --version >/dev/null 2>&1") != 0) {
        print_message("skipped: no C compiler\n");
        skip();
    }
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nvidia_headers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
