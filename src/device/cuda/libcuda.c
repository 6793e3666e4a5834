/* Names and symbols of the CUDA driver for dynlib.c. Override: REPRISE_LIBCUDA names a file. */
#include "libcuda.h"

#include <stdio.h>

#include "core/dynlib.h"
#include "device/cuda/offline.h"

enum { REQUIRED = 0, OPTIONAL = 1 };

static rp__libcuda table;
static rp__dynlib library = RP__DYNLIB_INIT;

static const rp__dynlib_symbol symbols[] = {
#define RP__CUDA_FN(need, name, symbol, ret, args) {#symbol, offsetof(rp__libcuda, name), need},
#include "libcuda.def"
#undef RP__CUDA_FN
};

static const char *const sonames[] = {"libcuda.so.1", "libcuda.so", NULL};
/* Where the driver is when the loader's cache does not list it: under WSL, and in containers that mount it. */
static const char *const folders[] = {"/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", NULL};

static const rp__dynlib_spec spec = {.title = "CUDA driver",
                                     .variable = "REPRISE_LIBCUDA",
                                     .sonames = sonames,
                                     .folders = folders,
                                     .in_toolkit = false,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof symbols[0]};

const rp__libcuda *rp__libcuda_get(void) {
    const rp__libcuda *offline = rp__cuda_offline();
    if (offline) return offline;
    return rp__dynlib_open(&library, &spec, &table) ? &table : NULL;
}

size_t rp__libcuda_report(char *text, size_t size) {
    if (rp__cuda_offline())
        return (size_t)snprintf(text, size,
                                "CUDA driver: none asked for, REPRISE_CUDA_OFFLINE is set: nothing is computed\n");
    return rp__dynlib_report(&library, &spec, text, size);
}
