/* Text builder. Grows by doubling; after one failed allocation it stays failed, so that callers check once. */
#include "core/text.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

/* Room for n more bytes and the NUL. */
static bool reserve(rp__text *t, size_t n) {
    size_t needed;
    if (t->failed) return false;
    if (__builtin_add_overflow(t->length, n, &needed) || needed == SIZE_MAX ||
        !RP__GROW(&t->data, &t->capacity, needed + 1)) {
        t->failed = true;
        return false;
    }
    return true;
}

void rp__text_write(rp__text *t, const char *bytes, size_t n) {
    if (!reserve(t, n)) return;
    if (n) memcpy(t->data + t->length, bytes, n);
    t->length += n;
    t->data[t->length] = 0;
}

void rp__text_puts(rp__text *t, const char *s) { rp__text_write(t, s, strlen(s)); }

size_t rp__text_point(char *number, size_t n) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        const bool of_number = strchr("0123456789+-e", number[i]) != NULL;
        if (of_number || to == 0 || number[to - 1] != '.') number[to++] = of_number ? number[i] : '.';
    }
    return to;
}

const char *rp__text_read_number(const char *text, double *out) {
    char *end;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return text;
    *out = strtod_l(text, &end, plain);
    freelocale(plain);
    return end;
}

void rp__text_number(rp__text *out, double f) {
    char buf[40];
    if (isnan(f)) {
        uint64_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (bits == UINT64_C(0x7ff8000000000000))
            rp__text_puts(out, "nan");
        else
            rp__text_add(out, "nan(0x%016llx)", (unsigned long long)bits);
    } else if (isinf(f)) {
        rp__text_puts(out, f < 0 ? "-inf" : "inf");
    } else {
        int length = snprintf(buf, sizeof buf, "%.17g", f);
        for (int precision = 1; precision < 17; precision++) { /* the shortest that reads back */
            char shorter[40];
            double back = 0;
            (void)snprintf(shorter, sizeof shorter, "%.*g", precision, f);
            if (sscanf(shorter, "%lf", &back) == 1 && back == f) {
                length = snprintf(buf, sizeof buf, "%s", shorter);
                break;
            }
        }
        const size_t n = rp__text_point(buf, (size_t)length);
        rp__text_write(out, buf, n);
        if (!memchr(buf, '.', n) && !memchr(buf, 'e', n)) rp__text_puts(out, ".0");
    }
}

void rp__text_add(rp__text *t, const char *format, ...) {
    char small[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n < 0) {
        t->failed = true;
        return;
    }
    if ((size_t)n < sizeof small) {
        rp__text_write(t, small, (size_t)n);
        return;
    }
    if (!reserve(t, (size_t)n)) return;
    va_start(args, format);
    vsnprintf(t->data + t->length, (size_t)n + 1, format, args);
    va_end(args);
    t->length += (size_t)n;
}

void rp__text_free(rp__text *t) {
    rp__free(t->data);
    *t = (rp__text){0};
}

void rp__printable(char *out, size_t bytes, const char *text) {
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p && n + 5 <= bytes; p++) {
        const bool c1 = *p == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0;
        if (*p >= 0x20 && *p != 0x7F && !c1)
            out[n++] = (char)*p;
        else
            n += (size_t)snprintf(out + n, bytes - n, "\\x%02X", *p);
    }
    out[n] = 0;
}
