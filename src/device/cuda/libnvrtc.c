/* Names and symbols of NVRTC for dynlib.c. Override: REPRISE_LIBNVRTC names a file. */
#include "libnvrtc.h"

#include "core/dynlib.h"

enum { REQUIRED = 0, OPTIONAL = 1 };

static rp__libnvrtc table;
static rp__dynlib library = RP__DYNLIB_INIT;

static const rp__dynlib_symbol symbols[] = {
#define RP__NVRTC_FN(need, name, symbol, ret, args) {#symbol, offsetof(rp__libnvrtc, name), need},
#include "libnvrtc.def"
#undef RP__NVRTC_FN
};

static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", NULL};

static const rp__dynlib_spec spec = {.title = "NVRTC",
                                     .variable = "REPRISE_LIBNVRTC",
                                     .sonames = sonames,
                                     .folders = NULL,
                                     .in_toolkit = true,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof symbols[0]};

const rp__libnvrtc *rp__libnvrtc_get(void) { return rp__dynlib_open(&library, &spec, &table) ? &table : NULL; }

const char *rp__libnvrtc_file(void) { return rp__dynlib_file(&library); }

size_t rp__libnvrtc_report(char *text, size_t size) { return rp__dynlib_report(&library, &spec, text, size); }
