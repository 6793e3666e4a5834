/* Files of numpy, versions 1.0 to 3.0 of the format. The header is a Python dict of three entries; this reads that and no other Python.
   A file says what it holds in the form that numpy writes, and its size is that of its elements to the byte. */
#include "ops/private.h"
#include <reprise_io.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/text.h"
#include "io/dataset.h"
#include "io/file.h"
#include "tensor/tensor.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are copied as they are");
enum {
    MAGIC = 6,
    PREFIX = 10,
    HEADER_LIMIT = 10000
}; /* magic, version, length of the header; numpy reads no longer ones */
static const char magic[] = "\x93NUMPY";

struct header {
    rp_dtype dtype;
    bool fortran;
    int64_t size[RP_MAX_DIMS];
    size_t ndim;
};

/* ---------------------------------------------------------------- the header */

static void blanks(const char **p) { *p += strspn(*p, " "); }

static bool skip(const char **p, char c) {
    blanks(p);
    if (**p != c) return false;
    ++*p;
    return true;
}

/* 'text', without escapes. */
static bool string(const char **p, char *out, size_t bytes) {
    blanks(p);
    const char quote = **p;
    if (quote != '\'' && quote != '"') return false;
    const char *end = strchr(++*p, quote);
    if (!end || (size_t)(end - *p) >= bytes || memchr(*p, '\\', (size_t)(end - *p))) return false;
    memcpy(out, *p, (size_t)(end - *p));
    out[end - *p] = 0;
    *p = end + 1;
    return true;
}

static bool word(const char **p, const char *name) {
    blanks(p);
    const size_t n = strlen(name);
    if (strncmp(*p, name, n) != 0) return false;
    *p += n;
    return true;
}

/* (), (3,), (3, 4) */
static bool shape(const char **p, struct header *h, const char **why) {
    h->ndim = 0;
    if (!skip(p, '(')) return false;
    while (!skip(p, ')')) {
        char *end;
        blanks(p);
        if (**p < '0' || **p > '9') return false;
        errno = 0;
        const long long n = strtoll(*p, &end, 10);
        if (errno) {
            *why = "a size of its shape is too large";
            return false;
        }
        if (h->ndim == RP_MAX_DIMS) {
            *why = "its shape has more dimensions than Reprise has";
            return false;
        }
        h->size[h->ndim++] = n;
        *p = end;
        if (!skip(p, ',') && (h->ndim == 1 || (blanks(p), **p != ')'))) return false;
    }
    return true;
}

static const char foreign[] = "its header is not one that numpy writes";

/* `descr` has room for the type's name, for the message. */
static bool parse_header(const char *text, struct header *h, char descr[16], const char **why) {
    const char *p = text;
    bool typed = false, order = false, sizes = false;
    char key[16];
    *why = foreign;
    if (!skip(&p, '{')) return false;
    while (!skip(&p, '}')) {
        if (!string(&p, key, sizeof key) || !skip(&p, ':')) return false;
        if (!strcmp(key, "descr") && !typed) {
            typed = true;
            if (!string(&p, descr, 16)) return false;
            h->dtype = RP_DTYPE_NONE;
            for (unsigned d = 1; d < RP__DTYPE_COUNT; d++)
                if (*descr && !strcmp(rp__dtypes[d].npy, descr)) h->dtype = (rp_dtype)d;
            if (h->dtype == RP_DTYPE_NONE) {
                *why = *descr == '>' ? "its elements are big-endian"
                                     : "its elements are of a type that Reprise does not have";
                return false;
            }
        } else if (!strcmp(key, "fortran_order") && !order) {
            order = true;
            h->fortran = word(&p, "True");
            if (!h->fortran && !word(&p, "False")) return false;
        } else if (!strcmp(key, "shape") && !sizes) {
            sizes = true;
            if (!shape(&p, h, why)) return false;
        } else {
            return false;
        }
        if (!skip(&p, ',') && (blanks(&p), *p != '}')) return false;
    }
    blanks(&p);
    return typed && order && sizes && *p == '\n' && !p[1];
}

/* ---------------------------------------------------------------- reading */

/* Row-major elements of what lies in Fortran order. */
static void reorder(char *out, const char *in, const struct header *h, size_t count, size_t element) {
    int64_t at[RP_MAX_DIMS] = {0};
    for (size_t i = 0; i < count; i++) {
        size_t from = 0;
        for (size_t d = h->ndim; d-- > 0;) from = from * (size_t)h->size[d] + (size_t)at[d];
        memcpy(out + i * element, in + from * element, element);
        for (size_t d = h->ndim; d-- > 0 && ++at[d] == h->size[d];) at[d] = 0;
    }
}

/* at: in the file, where it is not what it should be. */
static rp_status wrong(const rp__npy_source *from, const void *at, const char *why) {
    char name[512];
    rp__printable(name, sizeof name, from->file->name);
    const uint64_t byte = from->file->data ? (uint64_t)((const uint8_t *)at - from->file->data) : 0;
    return rp__fail(RP_ERROR_IO, "%s: %s: byte %llu: %s", from->call, name, (unsigned long long)byte, why);
}

static void unmap(void *ctx) { rp__file_release(ctx); }

static rp_status in_place(const rp__npy_source *from, const struct header *h, const char *data, rp_tensor **out) {
    if (h->fortran && h->ndim > 1)
        return wrong(from, data, "its elements are in Fortran order, which rp_npy_load puts in order");
    if ((uintptr_t)data % rp_dtype_size(h->dtype))
        return wrong(from, data, "its elements are not aligned, as those that rp_npy_load reads need not be");
    *out = rp_from_blob((void *)(uintptr_t)data, h->size, h->ndim, NULL, h->dtype, rp_cpu(), unmap,
                        rp__file_retain(from->file)); /* which releases it, on failure too */
    return rp__tensor_is_error(*out) ? rp_error_status() : RP_OK;
}

static rp_status elements(const rp__npy_source *from, const struct header *h, const char *data, size_t bytes,
                          rp_tensor **out) {
    const size_t element = rp_dtype_size(h->dtype);
    size_t count = 1, needed = 0;
    bool empty = false, large = false;
    for (size_t d = 0; d < h->ndim; d++) empty = empty || !h->size[d];
    for (size_t d = 0; d < h->ndim && !empty; d++)
        large = large || __builtin_mul_overflow(count, (size_t)h->size[d], &count);
    if (empty) count = 0;
    if (large || __builtin_mul_overflow(count, element, &needed) || needed != bytes) {
        char why[160];
        snprintf(why, sizeof why, "its shape needs %zu elements of %zu bytes, and %zu bytes are there", count, element,
                 bytes);
        return wrong(from, data, large ? "its sizes are too large" : why);
    }
    for (size_t i = 0; h->dtype == RP_BOOL && i < bytes; i++)
        if ((unsigned char)data[i] > 1) return wrong(from, data + i, "it has a bool that is neither 0 nor 1");
    if (from->mapped) return in_place(from, h, data, out);
    char *ordered = h->fortran && h->ndim > 1 && count ? rp__alloc(bytes) : NULL;
    if (h->fortran && h->ndim > 1 && count && !ordered) return RP__OOM(from->call);
    if (ordered) reorder(ordered, data, h, count, element);
    *out = rp_from_data(ordered ? ordered : data, h->size, h->ndim, h->dtype);
    rp__free(ordered);
    return rp__tensor_is_error(*out) ? rp_error_status() : RP_OK;
}

rp_status rp__npy_parse(const rp__npy_source *from, const uint8_t *u, uint64_t bytes, rp_tensor **out) {
    if (bytes < PREFIX || memcmp(u, magic, MAGIC) != 0) return wrong(from, u, "it is no file of numpy");
    if (u[6] < 1 || u[6] > 3 || u[7] != 0)
        return wrong(from, u + MAGIC, "versions 1.0, 2.0 and 3.0 of the format are read, and it has another");
    const size_t prefix = u[6] == 1 ? PREFIX : PREFIX + 2;
    const size_t length = bytes < prefix ? SIZE_MAX
                          : u[6] == 1    ? u[8] | (size_t)u[9] << 8
                                         : u[8] | (size_t)u[9] << 8 | (size_t)u[10] << 16 | (size_t)u[11] << 24;
    if (bytes < prefix || length > bytes - prefix) return wrong(from, u + bytes, "it ends within its header");
    if (length > HEADER_LIMIT || memchr(u + prefix, 0, length)) return wrong(from, u + prefix, foreign);
    char text[HEADER_LIMIT + 1], descr[16] = "", why[160];
    memcpy(text, u + prefix, length);
    text[length] = 0;
    struct header h = {0};
    const char *fault;
    if (parse_header(text, &h, descr, &fault))
        return elements(from, &h, (const char *)u + prefix + length, (size_t)bytes - prefix - length, out);
    snprintf(why, sizeof why, "%s%s%s%s", fault, *descr && fault != foreign ? " (" : "", fault != foreign ? descr : "",
             *descr && fault != foreign ? ")" : "");
    return wrong(from, u + prefix, why);
}

static rp_tensor *read(const char *call, const char *path, bool mapped) {
    rp_tensor *t = rp__tensor_error();
    rp__file *f = rp__file_map(call, path);
    if (f) (void)rp__npy_parse(&(rp__npy_source){call, f, mapped}, f->data, f->bytes, &t);
    rp__file_release(f);
    return t;
}

rp_tensor *rp_npy_load_at(const char *site, const char *path) {
    RP__CALLED_FROM(site);
    return read("rp_npy_load", path, false);
}

rp_tensor *rp_npy_map_at(const char *site, const char *path) {
    RP__CALLED_FROM(site);
    return read("rp_npy_map", path, true);
}

/* ---------------------------------------------------------------- writing */

/* Magic to header, with blanks so that elements begin at a multiple of 64. */
static size_t make_header(char *out, size_t room, rp_tensor *t, const char *descr) {
    char text[768];
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (size_t d = 0; d < rp_ndim(t); d++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld%s", d ? " " : "", (long long)rp_size(t, (int64_t)d),
                      d + 1 < rp_ndim(t) || rp_ndim(t) == 1 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    const size_t all = ((size_t)n + 1 + PREFIX + 63) / 64 * 64, length = all - PREFIX;
    if (all > room) return 0;
    memset(out, ' ', all);
    memcpy(out, magic, MAGIC);
    out[6] = 1, out[7] = 0;
    out[8] = (char)(length & 255), out[9] = (char)(length >> 8);
    memcpy(out + PREFIX, text, (size_t)n);
    out[all - 1] = '\n';
    return all;
}

rp_status rp__npy_make(const char *call, rp_tensor *t, rp__npy *out) {
    *out = (rp__npy){.data = NULL};
    if (!*rp__dtypes[rp_dtype_of(t)].npy) t = rp_to_dtype(t, (rp_dtype)rp__dtypes[rp_dtype_of(t)].compute);
    RP_TRY(rp__tensor_check(t, call));
    const char *descr = rp__dtypes[rp_dtype_of(t)].npy;
    if (!*descr) return rp__fail(RP_ERROR_DTYPE, "%s: numpy has no %s", call, rp_dtype_name(rp_dtype_of(t)));
    out->bytes = (size_t)rp_numel(t) * rp_dtype_size(rp_dtype_of(t));
    out->header_bytes = make_header(out->header, sizeof out->header, t, descr);
    out->data = rp__alloc(out->bytes + 1);
    if (!out->data) return rp__fail(RP_ERROR_OUT_OF_MEMORY, "%s: out of memory", call);
    rp_status status = rp_to_host(t, out->data, out->bytes);
    if (status == RP_OK) return RP_OK;
    rp__free(out->data);
    out->data = NULL;
    return status;
}

static rp_status save(const char *path, rp_tensor *t) {
    rp__npy npy;
    rp__writer w = {.fd = -1};
    RP_TRY(rp__npy_make("rp_npy_save", t, &npy));
    rp_status status = rp__writer_begin(&w, "rp_npy_save", path);
    if (status == RP_OK) {
        rp__writer_put(&w, npy.header, npy.header_bytes);
        rp__writer_put(&w, npy.data, npy.bytes);
        status = rp__writer_end(&w, true);
    }
    rp__free(npy.data);
    return status;
}

rp_status rp_npy_save_at(const char *site, const char *path, rp_tensor *t) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__tensor_check(t, "rp_npy_save: the tensor"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? save(path, t) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}
