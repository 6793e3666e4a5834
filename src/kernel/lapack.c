/* Names and symbols of LAPACK for src/core/dynlib.c. */
#include "kernel/lapack.h"

#include "core/dynlib.h"

static rp__lapack table;
static rp__dynlib library = RP__DYNLIB_INIT;

static const rp__dynlib_symbol symbols[] = {
#define F(name, args) {#name, offsetof(rp__lapack, name), false},
    RP__LAPACK_FUNCTIONS(F)
#undef F
};
static const char *const sonames[] = {"liblapack.so.3", "libopenblas.so.0", "liblapack.so", "libopenblas.so", NULL};
static const rp__dynlib_spec spec = {.title = "LAPACK",
                                     .variable = "REPRISE_LIBLAPACK",
                                     .sonames = sonames,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof *symbols};

const rp__lapack *rp__lapack_get(void) { return rp__dynlib_open(&library, &spec, &table) ? &table : NULL; }

size_t rp__lapack_report(char *text, size_t size) {
    (void)rp__lapack_get();
    return rp__dynlib_report(&library, &spec, text, size);
}
