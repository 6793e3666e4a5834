/* rp_call_named: names of arguments, fixed by the first call of a callable that succeeds and compared at every later one. Knows
   nothing of what is called: the call itself is rp_call's. */
#include <string.h>

#include "compile/callable.h"
#include "core/alloc.h"
#include "tensor/tensor.h"

typedef struct rp__argument_names {
    size_t n;
    const char *list[]; /* n; their text follows */
} argument_names;

/* Does `name` begin with the path `group`? Equal names do as well. */
static bool lies_in(const char *name, const char *group) {
    size_t n = strlen(group);
    return strncmp(name, group, n) == 0 && (name[n] == '.' || name[n] == 0);
}

static bool well_formed(const char *name) {
    size_t n = strlen(name);
    return n && name[0] != '.' && name[n - 1] != '.' && !strstr(name, "..");
}

static rp_status make(const rp_compiled *f, const char *const *names, size_t n, argument_names **out) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (!names[i]) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: argument %zu has no name", f->name, i);
        if (!well_formed(names[i]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: `%s` is not a name: its dotted parts are not empty",
                            f->name, names[i]);
        for (size_t k = 0; k < i; k++) {
            if (strcmp(names[i], names[k]) == 0)
                return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: arguments %zu and %zu are both named `%s`", f->name, k,
                                i, names[i]);
            if (lies_in(names[i], names[k]) || lies_in(names[k], names[i]))
                return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: `%s` and `%s`: one is a tensor and holds the other",
                                f->name, names[k], names[i]);
        }
        bytes += strlen(names[i]) + 1;
    }
    argument_names *made = rp__alloc(sizeof *made + n * sizeof *made->list + bytes);
    if (!made) return RP__OOM("names of arguments");
    made->n = n;
    char *text = (char *)(made->list + n);
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(names[i]) + 1;
        made->list[i] = memcpy(text, names[i], length);
        text += length;
    }
    *out = made;
    return RP_OK;
}

static size_t place_of(const char *const *list, size_t n, const char *name) {
    size_t i = 0;
    while (i < n && (!list[i] || strcmp(list[i], name) != 0)) i++;
    return i;
}

static rp_status compare(const rp_compiled *f, const argument_names *known, const char *const *names, size_t n) {
    for (size_t i = 0; i < n && i < known->n; i++) {
        if (!names[i]) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: argument %zu has no name", f->name, i);
        if (RP__LIKELY(strcmp(names[i], known->list[i]) == 0)) continue;
        size_t before = place_of(known->list, known->n, names[i]);
        if (before == known->n)
            return rp__fail(RP_ERROR_GUARD,
                            "%s: argument %zu is named `%s`; the first call had `%s` there, and no `%s`", f->name, i,
                            names[i], known->list[i], names[i]);
        return rp__fail(RP_ERROR_GUARD,
                        "%s: argument %zu is named `%s`; the first call had `%s` there, and `%s` at %zu", f->name, i,
                        names[i], known->list[i], names[i], before);
    }
    if (n < known->n)
        return rp__fail(RP_ERROR_GUARD, "%s: %zu arguments; the first call had %zu: `%s` is missing", f->name, n,
                        known->n, known->list[n]);
    if (n > known->n)
        return rp__fail(RP_ERROR_GUARD, "%s: %zu arguments; the first call had %zu, and no `%s`", f->name, n, known->n,
                        names[known->n] ? names[known->n] : "");
    return RP_OK;
}

/* *made: names that this call may fix; NULL when they are known. */
static rp_status check(rp_compiled *f, const char *const *names, size_t n, argument_names **made) {
    if (!f || (n && !names)) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "an argument is NULL");
    if (!rp__callable_is_live(f)) return rp__callable_refuse(f, "call_named");
    const argument_names *known = atomic_load_explicit(&f->names, memory_order_acquire);
    return RP__LIKELY(known != NULL) ? compare(f, known, names, n) : make(f, names, n, made);
}

rp_status rp_call_named_at(const char *site, rp_compiled *f, const char *const *names, rp_tensor *const *in,
                           size_t n_in, rp_tensor **out, size_t n_out) {
    argument_names *made = NULL, *none = NULL;
    RP__LISTS_APART(in, n_in, out, n_out, rp_call_named_at(site, f, names, apart, n_in, out, n_out));
    rp__site_frame outer = rp__site_push(site, "call_named");
    rp_status status = check(f, names, n_in, &made);
    rp__site_pop(outer);
    if (status != RP_OK) {
        for (size_t k = 0; out && k < n_out; k++) out[k] = rp__tensor_error();
        return status;
    }
    status = rp_call_at(site, f, in, n_in, out, n_out);
    /* Of two first calls at once one fixes the names. */
    if (made && (status != RP_OK || !atomic_compare_exchange_strong(&f->names, &none, made))) rp__free(made);
    return status;
}
