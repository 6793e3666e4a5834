/* See npy.h. The header is a Python dict of three entries; this reads that and no other Python. */
#include "npy.h"

#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are copied as they are");
enum { PREFIX = 10, LIMIT_MIB = 4096 }; /* magic, version, length of the header */
static const char magic[] = "\x93NUMPY";

static const struct {
    const char *descr;
    rp_dtype dtype;
} types[] = {
#define RP_DTYPE(suffix, name, short_name, title, bytes, category, compute, digits, reach, code, npy, cuda, c_type)    \
    {npy, RP_##suffix},
#include "core/dtype.def"
#undef RP_DTYPE
};
enum { N_TYPES = sizeof types / sizeof *types };

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
static bool shape(const char **p, struct header *h, char *why, size_t why_bytes) {
    h->ndim = 0;
    if (!skip(p, '(')) return false;
    while (!skip(p, ')')) {
        char *end;
        blanks(p);
        if (**p < '0' || **p > '9') return false;
        errno = 0;
        const long long n = strtoll(*p, &end, 10);
        if (errno) {
            snprintf(why, why_bytes, "a size of its shape is too large");
            return false;
        }
        if (h->ndim == RP_MAX_DIMS) {
            snprintf(why, why_bytes, "its shape has more than %d sizes", RP_MAX_DIMS);
            return false;
        }
        h->size[h->ndim++] = n;
        *p = end;
        if (!skip(p, ',') && (h->ndim == 1 || (blanks(p), **p != ')'))) return false;
    }
    return true;
}

static bool parse_header(const char *text, struct header *h, char *why, size_t why_bytes) {
    const char *p = text;
    bool descr = false, order = false, sizes = false;
    char key[16], value[16];
    snprintf(why, why_bytes, "its header is not one that numpy writes");
    if (!skip(&p, '{')) return false;
    while (!skip(&p, '}')) {
        if (!string(&p, key, sizeof key) || !skip(&p, ':')) return false;
        if (!strcmp(key, "descr") && !descr) {
            descr = true;
            if (!string(&p, value, sizeof value)) return false;
            h->dtype = RP_DTYPE_NONE;
            for (size_t i = 0; i < N_TYPES; i++) {
                if (*value && !strcmp(types[i].descr, value)) h->dtype = types[i].dtype;
            }
            if (h->dtype == RP_DTYPE_NONE) {
                snprintf(why, why_bytes,
                         *value == '>' ? "its elements are big-endian (%s)"
                                       : "it holds elements of type %s, which is not read",
                         value);
                return false;
            }
        } else if (!strcmp(key, "fortran_order") && !order) {
            order = true;
            h->fortran = word(&p, "True");
            if (!h->fortran && !word(&p, "False")) return false;
        } else if (!strcmp(key, "shape") && !sizes) {
            sizes = true;
            if (!shape(&p, h, why, why_bytes)) return false;
        } else {
            return false;
        }
        if (!skip(&p, ',') && (blanks(&p), *p != '}')) return false;
    }
    blanks(&p);
    return descr && order && sizes && *p == '\n' && !p[1];
}

/* ---------------------------------------------------------------- elements */

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

static rp_tensor *make_tensor(const struct header *h, const char *data, size_t bytes, char *why, size_t why_bytes) {
    const size_t element = rp_dtype_size(h->dtype);
    size_t count = 1;
    bool empty = false;
    for (size_t d = 0; d < h->ndim; d++) empty = empty || !h->size[d];
    for (size_t d = 0; d < h->ndim && !empty; d++) {
        if (__builtin_mul_overflow(count, (size_t)h->size[d], &count)) {
            snprintf(why, why_bytes, "its sizes are too large");
            return NULL;
        }
    }
    size_t needed;
    if (empty) count = 0;
    if (__builtin_mul_overflow(count, element, &needed) || needed != bytes) {
        snprintf(why, why_bytes, "its shape needs %zu elements of %zu bytes, and it has %zu bytes of them", count,
                 element, bytes);
        return NULL;
    }
    if (h->dtype == RP_BOOL) {
        for (size_t i = 0; i < bytes; i++) {
            if ((unsigned char)data[i] <= 1) continue;
            snprintf(why, why_bytes, "it has a bool that is neither 0 nor 1");
            return NULL;
        }
    }
    char *ordered = h->fortran && h->ndim > 1 && count ? malloc(bytes) : NULL;
    if (h->fortran && h->ndim > 1 && count && !ordered) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    if (ordered) reorder(ordered, data, h, count, element);
    rp_tensor *t = rp_from_data(ordered ? ordered : data, h->size, h->ndim, h->dtype);
    free(ordered);
    if (!rp_is_error(t)) return t;
    snprintf(why, why_bytes, "%s", rp_error_message());
    rp_error_take();
    return NULL;
}

rp_tensor *cli_npy_read(const char *path, char *why, size_t why_bytes) {
    size_t n;
    char *data = cli_read(path, (size_t)LIMIT_MIB << 20, &n, why, why_bytes);
    if (!data) return NULL;
    rp_tensor *t = NULL;
    const unsigned char *u = (const unsigned char *)data;
    const size_t length = n >= PREFIX ? u[8] | (size_t)u[9] << 8 : 0;
    struct header h;
    if (n < PREFIX || memcmp(data, magic, 6) != 0) {
        snprintf(why, why_bytes, "it is no file of numpy");
    } else if (u[6] != 1 || u[7] != 0) {
        snprintf(why, why_bytes, "it has version %d.%d of the format; 1.0 is read", u[6], u[7]);
    } else if (length > n - PREFIX) {
        snprintf(why, why_bytes, "it ends within its header");
    } else {
        char *header = strndup(data + PREFIX, length); /* ends at a NUL, which no header has */
        if (!header) {
            snprintf(why, why_bytes, "out of memory");
        } else if (strlen(header) != length) {
            snprintf(why, why_bytes, "its header is not one that numpy writes");
        } else if (parse_header(header, &h, why, why_bytes)) {
            t = make_tensor(&h, data + PREFIX + length, n - PREFIX - length, why, why_bytes);
        }
        free(header);
    }
    free(data);
    return t;
}

/* ---------------------------------------------------------------- writing */

static bool write_all(int fd, const void *data, size_t bytes) {
    const char *p = data;
    while (bytes) {
        const ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

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
    memcpy(out, magic, 6);
    out[6] = 1, out[7] = 0;
    out[8] = (char)(length & 255), out[9] = (char)(length >> 8);
    memcpy(out + PREFIX, text, (size_t)n);
    out[all - 1] = '\n';
    return all;
}

bool cli_npy_write(const char *path, rp_tensor *t, char *why, size_t why_bytes) {
    const char *descr = NULL;
    char header[1024], real[PATH_MAX], temporary[PATH_MAX + 32];
    if (rp_dtype_of(t) == RP_BF16) t = rp_to_dtype(t, RP_F32);
    for (size_t i = 0; i < N_TYPES; i++) {
        if (types[i].dtype == rp_dtype_of(t) && *types[i].descr) descr = types[i].descr;
    }
    const size_t bytes = rp_failed() ? 0 : (size_t)rp_numel(t) * rp_dtype_size(rp_dtype_of(t));
    const size_t length = descr && !rp_failed() ? make_header(header, sizeof header, t, descr) : 0;
    char *data = malloc(bytes + 1);
    if (!data || !length || rp_to_host(t, data, bytes)) {
        snprintf(why, why_bytes, "%s", rp_failed() ? rp_error_message() : "out of memory");
        rp_error_take();
        free(data);
        return false;
    }
    /* A rename would put a file in the place of a device or pipe, and of a link. */
    struct stat st;
    if (!realpath(path, real)) snprintf(real, sizeof real, "%s", path);
    if (stat(real, &st) == 0 && !S_ISREG(st.st_mode)) {
        snprintf(why, why_bytes, "it is no regular file");
        free(data);
        return false;
    }
    snprintf(temporary, sizeof temporary, "%s.XXXXXX.tmp", real);
    int fd = mkostemps(temporary, 4, O_CLOEXEC);
    const mode_t mask = umask(0);
    umask(mask);
    bool ok = fd >= 0 && fchmod(fd, 0666 & ~mask) == 0 && write_all(fd, header, length) && write_all(fd, data, bytes);
    int fault = ok ? 0 : errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        fault = errno;
    }
    if (ok && rename(temporary, real) != 0) {
        ok = false;
        fault = errno;
    }
    if (!ok) {
        if (fd >= 0) unlink(temporary);
        snprintf(why, why_bytes, "%s", strerror(fault));
    }
    free(data);
    return ok;
}
