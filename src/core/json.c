/* See json.h. What is used of Jansson's ABI (2.10 and later) is declared here. */
#include "core/json.h"

#include "core/dynlib.h"
#include "core/text.h"

enum { REJECT_DUPLICATES = 1, MAX_DEPTH = 64 };
enum type { OBJECT, ARRAY, STRING, INTEGER, REAL, TRUE, FALSE, NONE };

struct rp__json { /* json_t */
    int type;
    volatile size_t references;
};

typedef struct fault { /* json_error_t */
    int line, column, position;
    char source[80], text[160];
} fault;

#define FUNCTIONS(F)                                                                                                   \
    F(rp__json *, json_loadb, (const char *, size_t, size_t, fault *))                                                 \
    F(void, json_delete, (rp__json *))                                                                                 \
    F(size_t, json_object_size, (const rp__json *))                                                                    \
    F(rp__json *, json_object_get, (const rp__json *, const char *))                                                   \
    F(void *, json_object_iter, (rp__json *))                                                                          \
    F(void *, json_object_iter_next, (rp__json *, void *))                                                             \
    F(const char *, json_object_iter_key, (void *))                                                                    \
    F(rp__json *, json_object_iter_value, (void *))                                                                    \
    F(size_t, json_array_size, (const rp__json *))                                                                     \
    F(rp__json *, json_array_get, (const rp__json *, size_t))                                                          \
    F(long long, json_integer_value, (const rp__json *))                                                               \
    F(const char *, json_string_value, (const rp__json *))

typedef struct jansson {
#define F(ret, name, args) ret(*name) args;
    FUNCTIONS(F)
#undef F
} jansson;

static jansson j;
static rp__dynlib library = RP__DYNLIB_INIT;

static const rp__dynlib_symbol symbols[] = {
#define F(ret, name, args) {#name, offsetof(jansson, name), false},
    FUNCTIONS(F)
#undef F
};
static const char *const sonames[] = {"libjansson.so.4", NULL};
static const rp__dynlib_spec spec = {.title = "Jansson",
                                     .variable = "REPRISE_LIBJANSSON",
                                     .sonames = sonames,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof *symbols};

size_t rp__json_report(char *text, size_t size) {
    (void)rp__dynlib_open(&library, &spec, &j);
    return rp__dynlib_report(&library, &spec, text, size);
}

/* Jansson descends on the stack, which a thread may have little of. */
static bool too_deep(const char *text, size_t n) {
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') {
            for (i++; i < n && text[i] != '"'; i++)
                if (text[i] == '\\') i++;
        } else if (text[i] == '{' || text[i] == '[') {
            if (++depth > MAX_DEPTH) return true;
        } else if ((text[i] == '}' || text[i] == ']') && depth) {
            depth--;
        }
    }
    return false;
}

rp__json *rp__json_parse(const char *text, size_t bytes, const char *what) {
    if (!rp__dynlib_open(&library, &spec, &j)) {
        char reasons[512];
        rp__dynlib_report(&library, &spec, reasons, sizeof reasons);
        (void)rp__fail(RP_ERROR_UNAVAILABLE, "%s is JSON, which is read by Jansson (package libjansson4): %s", what,
                       reasons);
        return NULL;
    }
    if (too_deep(text, bytes)) {
        (void)rp__fail(RP_ERROR_IO, "%s is nested deeper than %d", what, MAX_DEPTH);
        return NULL;
    }
    fault why = {0};
    rp__json *document = j.json_loadb(text, bytes, REJECT_DUPLICATES, &why);
    if (!document) {
        char printable[3 * sizeof why.text];
        rp__printable(printable, sizeof printable, why.text);
        (void)rp__fail(RP_ERROR_IO, "%s is not JSON: line %d, byte %d: %s", what, why.line, why.position, printable);
    }
    return document;
}

void rp__json_free(rp__json *document) {
    if (document && --document->references == 0) j.json_delete(document);
}

bool rp__json_is_object(const rp__json *v) { return v && v->type == OBJECT; }

size_t rp__json_count(const rp__json *v) { return rp__json_is_object(v) ? j.json_object_size(v) : 0; }

rp__json *rp__json_member(const rp__json *v, const char *name) {
    return rp__json_is_object(v) ? j.json_object_get(v, name) : NULL;
}

bool rp__json_next(rp__json *v, void **at, const char **name, rp__json **value) {
    if (!rp__json_is_object(v)) return false;
    *at = *at ? j.json_object_iter_next(v, *at) : j.json_object_iter(v);
    if (!*at) return false;
    *name = j.json_object_iter_key(*at);
    *value = j.json_object_iter_value(*at);
    return true;
}

bool rp__json_array(const rp__json *v, size_t *n) {
    bool is = v && v->type == ARRAY;
    *n = is ? j.json_array_size(v) : 0;
    return is;
}

rp__json *rp__json_item(const rp__json *v, size_t i) { return v && v->type == ARRAY ? j.json_array_get(v, i) : NULL; }

bool rp__json_integer(const rp__json *v, int64_t *out) {
    if (!v || v->type != INTEGER) return false;
    *out = j.json_integer_value(v);
    return true;
}

const char *rp__json_string(const rp__json *v) { return v && v->type == STRING ? j.json_string_value(v) : NULL; }

bool rp__json_bool(const rp__json *v, bool *out) {
    if (!v || (v->type != TRUE && v->type != FALSE)) return false;
    *out = v->type == TRUE;
    return true;
}

bool rp__json_is_null(const rp__json *v) { return v && v->type == NONE; }
