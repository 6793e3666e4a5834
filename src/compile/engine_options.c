/* Options of engines (backend.h): pairs of text, copied from the program's. */
#include <string.h>

#include "compile/backend.h"
#include "core/alloc.h"

void rp__engine_options_free(rp__engine_options *o) {
    for (size_t k = 0; o->text && k < 2 * o->n; k++) rp__free(o->text[k]);
    rp__free(o->text);
    *o = (rp__engine_options){0};
}

rp_status rp__engine_options_copy(const char *const (*pairs)[2], size_t n, rp__engine_options *out) {
    *out = (rp__engine_options){.n = n};
    if (n == 0) return RP_OK;
    if (!pairs) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile: engine_options is NULL");
    out->text = rp__calloc(2 * n, sizeof *out->text);
    bool whole = out->text != NULL;
    for (size_t k = 0; k < 2 * n && whole; k++) {
        const char *word = pairs[k / 2][k % 2];
        if (!word) {
            rp__engine_options_free(out);
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile: a key or value of engine_options is NULL");
        }
        out->text[k] = rp__strdup(word);
        whole = out->text[k] != NULL;
    }
    if (whole) return RP_OK;
    rp__engine_options_free(out);
    return RP__OOM("options of an engine");
}

const char *rp__engine_option(const rp__engine_options *o, const char *key) {
    for (size_t k = 0; o && k < o->n; k++)
        if (strcmp(o->text[2 * k], key) == 0) return o->text[2 * k + 1];
    return NULL;
}
bool rp__engine_switch(const rp__engine_options *o, const char *key) {
    const char *value = rp__engine_option(o, key);
    return value && strcmp(value, "1") == 0;
}
rp_status rp__engine_check_switch(const rp__engine_options *o, const char *engine, const char *key) {
    const char *value = rp__engine_option(o, key);
    if (value && strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "backend \"%s\": %s is 0 or 1, not \"%s\"", engine, key, value);
    return RP_OK;
}
