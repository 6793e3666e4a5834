/* Names and symbols of cuBLASLt for src/core/dynlib.c. Override: REPRISE_LIBCUBLASLT names a file. */
#include "libcublaslt.h"

#include "core/dynlib.h"

enum { REQUIRED = 0, OPTIONAL = 1 };

static rp__libcublaslt table;
static rp__dynlib library = RP__DYNLIB_INIT;

static const rp__dynlib_symbol symbols[] = {
#define RP__CUBLASLT_FN(need, name, symbol, ret, args) {#symbol, offsetof(rp__libcublaslt, name), need},
#include "libcublaslt.def"
#undef RP__CUBLASLT_FN
};

static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", NULL};

static const rp__dynlib_spec spec = {.title = "cuBLASLt",
                                     .variable = "REPRISE_LIBCUBLASLT",
                                     .sonames = sonames,
                                     .folders = NULL,
                                     .in_toolkit = true,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof symbols[0]};

const rp__libcublaslt *rp__libcublaslt_get(void) { return rp__dynlib_open(&library, &spec, &table) ? &table : NULL; }

size_t rp__libcublaslt_report(char *text, size_t size) { return rp__dynlib_report(&library, &spec, text, size); }
