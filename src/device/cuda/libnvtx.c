/* Names and symbols of NVTX for dynlib.c, and the ranges of the public interface: libnvtx3interop is CUDA 13's, libnvToolsExt that
   of before. Override: REPRISE_LIBNVTX names a file. */
#include "libnvtx.h"

#include <reprise.h>

#include "core/dynlib.h"

enum { REQUIRED = 0, OPTIONAL = 1 };

static rp__libnvtx table;
static rp__dynlib library = RP__DYNLIB_INIT;

static const rp__dynlib_symbol symbols[] = {
#define RP__NVTX_FN(need, name, symbol, ret, args) {#symbol, offsetof(rp__libnvtx, name), need},
#include "libnvtx.def"
#undef RP__NVTX_FN
};

static const char *const sonames[] = {"libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1",
                                      "libnvToolsExt.so", NULL};

static const rp__dynlib_spec spec = {.title = "NVTX",
                                     .variable = "REPRISE_LIBNVTX",
                                     .sonames = sonames,
                                     .folders = NULL,
                                     .in_toolkit = true,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof symbols[0]};

const rp__libnvtx *rp__libnvtx_get(void) { return rp__dynlib_open(&library, &spec, &table) ? &table : NULL; }

size_t rp__libnvtx_report(char *text, size_t size) { return rp__dynlib_report(&library, &spec, text, size); }

int rp_range_push(const char *name) {
    const rp__libnvtx *nvtx = rp__libnvtx_get();
    return nvtx ? nvtx->nvtxRangePushA(name ? name : "") : -1;
}

int rp_range_pop(void) {
    const rp__libnvtx *nvtx = rp__libnvtx_get();
    return nvtx ? nvtx->nvtxRangePop() : -1;
}
