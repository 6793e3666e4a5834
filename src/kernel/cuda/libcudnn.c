/* Names and symbols of cuDNN for src/core/dynlib.c. Override: REPRISE_LIBCUDNN names a file. */
#include "libcudnn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/dynlib.h"
#include "core/env.h"
#include "core/trust.h"

/* The library is a front that opens these when it is called, and ends the process where one is missing. */
static const char *const parts[] = {"libcudnn_graph.so.9", "libcudnn_heuristic.so.9",
                                    "libcudnn_engines_precompiled.so.9", "libcudnn_engines_runtime_compiled.so.9"};

enum { REQUIRED = 0, OPTIONAL = 1, LEAST_VERSION = 90000, NEXT_ABI = 100000 };

static rp__libcudnn table;
static rp__dynlib library = RP__DYNLIB_INIT;

static const rp__dynlib_symbol symbols[] = {
#define RP__CUDNN_FN(need, name, symbol, ret, args) {#symbol, offsetof(rp__libcudnn, name), need},
#include "libcudnn.def"
#undef RP__CUDNN_FN
};

static const char *const sonames[] = {"libcudnn.so.9", "libcudnn.so", NULL};

static const rp__dynlib_spec spec = {.title = "cuDNN",
                                     .variable = "REPRISE_LIBCUDNN",
                                     .sonames = sonames,
                                     .folders = NULL,
                                     .in_toolkit = true,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof symbols[0]};

static const rp__libcudnn *found; /* written once */

static bool is_forbidden(void) {
    const char *wanted = rp__env("REPRISE_CUDNN");
    return wanted && strcmp(wanted, "0") == 0;
}

static char missing[RP__DYNLIB_PATH + 512]; /* which part, and why; written once */

/* A part beside the library, else where the loader finds it. Both stay open. */
static bool open_part(const char *name, const char *beside) {
    char path[RP__DYNLIB_PATH], why[RP__DYNLIB_PATH + 64] = "";
    const char *slash = strrchr(beside, '/');
    const int n = slash ? snprintf(path, sizeof path, "%.*s/%s", (int)(slash - beside), beside, name) : -1;
    dlerror();
    if (n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0) {
        if (!rp__library_refused(path, why, sizeof why) && dlopen(path, RTLD_LAZY | RTLD_LOCAL)) return true;
    } else if (dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {
        return true;
    }
    const char *text = *why ? why : dlerror();
    snprintf(missing, sizeof missing, "%s of %s: %.400s", name, beside, text ? text : "the loader gave no reason");
    return false;
}

static bool has_parts(void) {
    const char *file = rp__dynlib_file(&library);
    for (unsigned k = 0; k < sizeof parts / sizeof *parts; k++)
        if (!open_part(parts[k], file)) return false;
    return true;
}

static bool is_known(size_t version) { return version >= LEAST_VERSION && version < NEXT_ABI; }

static void look(void) {
    if (!is_forbidden() && rp__dynlib_open(&library, &spec, &table) && has_parts() && is_known(table.cudnnGetVersion()))
        found = &table;
}

const rp__libcudnn *rp__libcudnn_get(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return found;
}

size_t rp__libcudnn_report(char *text, size_t size) {
    const char *file = rp__dynlib_file(&library);
    int n;
    if (is_forbidden())
        n = snprintf(text, size, "cuDNN: switched off by REPRISE_CUDNN=0\n");
    else if (*missing)
        n = snprintf(text, size, "cuDNN: not whole, so not used: %s\n", missing);
    else if (*file && !is_known(table.cudnnGetVersion()))
        n = snprintf(text, size, "cuDNN: %s is of version %zu, and not of 9\n", file, table.cudnnGetVersion());
    else
        return rp__dynlib_report(&library, &spec, text, size);
    return n > 0 ? (size_t)n : 0;
}
