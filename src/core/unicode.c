/* See unicode.h. What is used of utf8proc's ABI (2.0 and later) is declared here. */
#include "core/unicode.h"

#include <string.h>

#include "core/alloc.h"
#include "core/dynlib.h"

enum { DECOMPOSE = 1 << 4 }; /* utf8proc_option_t */

/* utf8proc_category_t, in its order */
enum category {
    CN,
    LU,
    LL,
    LT,
    LM,
    LO,
    MN,
    MC,
    ME,
    ND,
    NL,
    NO,
    PC,
    PD,
    PS,
    PE,
    PI,
    PF,
    PO,
    SM,
    SC,
    SK,
    SO,
    ZS,
    ZL,
    ZP,
    CC,
    CF,
    CS,
    CO
};

typedef struct utf8proc {
    int (*category)(int32_t);
    int32_t (*tolower)(int32_t);
    ptrdiff_t (*decompose)(const uint8_t *, ptrdiff_t, int32_t *, ptrdiff_t, int);
} utf8proc;

static utf8proc u;
static rp__dynlib library = RP__DYNLIB_INIT;
static const rp__dynlib_symbol symbols[] = {
    {"utf8proc_category", offsetof(utf8proc, category), false},
    {"utf8proc_tolower", offsetof(utf8proc, tolower), false},
    {"utf8proc_decompose", offsetof(utf8proc, decompose), false},
};
static const char *const sonames[] = {"libutf8proc.so.3", "libutf8proc.so.2", NULL};
static const rp__dynlib_spec spec = {.title = "utf8proc",
                                     .variable = "REPRISE_LIBUTF8PROC",
                                     .sonames = sonames,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof *symbols};

size_t rp__unicode_report(char *text, size_t size) {
    (void)rp__dynlib_open(&library, &spec, &u);
    return rp__dynlib_report(&library, &spec, text, size);
}

rp_status rp__unicode_need(const char *what) {
    if (rp__dynlib_open(&library, &spec, &u)) return RP_OK;
    char reasons[512];
    rp__dynlib_report(&library, &spec, reasons, sizeof reasons);
    return rp__fail(RP_ERROR_UNAVAILABLE,
                    "%s has characters beyond ASCII, which utf8proc knows (package libutf8proc2): %s", what, reasons);
}

uint32_t rp__utf8_read(const char *text, size_t bytes, size_t *length) {
    const uint8_t *p = (const uint8_t *)text;
    *length = 1;
    if (p[0] < 0x80) return p[0];
    const size_t n = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4) return RP__UNICODE_WRONG;
    uint32_t c = p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        /* The second byte says whether the form is the shortest one, no surrogate, and within Unicode. */
        const uint8_t low = i > 1 ? 0x80 : p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
        const uint8_t high = i > 1 ? 0xBF : p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
        if (i >= bytes || p[i] < low || p[i] > high) {
            *length = i;
            return RP__UNICODE_WRONG;
        }
        c = c << 6 | (p[i] & 0x3Fu);
    }
    *length = n;
    return c;
}

size_t rp__utf8_write(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00u >> n & 0xFF) | c);
    return n;
}

rp__kind rp__unicode_kind(uint32_t c) {
    if (c < 0x80) {
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return RP__KIND_LETTER;
        if (c >= '0' && c <= '9') return RP__KIND_NUMBER;
        if (c < 0x20 || c == 0x7F) return RP__KIND_CONTROL;
        return memchr("$+<=>^`|~ ", (int)c, 10) ? RP__KIND_OTHER : RP__KIND_PUNCTUATION;
    }
    switch (u.category((int32_t)c)) {
    case LU:
    case LL:
    case LT:
    case LM:
    case LO: return RP__KIND_LETTER;
    case ND:
    case NL:
    case NO: return RP__KIND_NUMBER;
    case PC:
    case PD:
    case PS:
    case PE:
    case PI:
    case PF:
    case PO: return RP__KIND_PUNCTUATION;
    case MN: return RP__KIND_MARK;
    case CC:
    case CF:
    case CO: return RP__KIND_CONTROL;
    default: return RP__KIND_OTHER;
    }
}

bool rp__unicode_word(uint32_t c) {
    if (c < 0x80) return c == '_' || rp__unicode_kind(c) == RP__KIND_LETTER || rp__unicode_kind(c) == RP__KIND_NUMBER;
    /* Joiners, and symbols that are letters in a circle or square. */
    if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
        (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
        return true;
    const int category = u.category((int32_t)c);
    return (category >= LU && category <= NL) || category == PC;
}

bool rp__unicode_blank(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int rp__unicode_lower(uint32_t c, uint32_t out[2]) {
    out[1] = 0x307;
    if (c < 0x80) {
        out[0] = c >= 'A' && c <= 'Z' ? c | 0x20 : c;
        return 1;
    }
    if (c == 0x130) { /* the one letter whose lower case is two characters whatever is around: i with a dot above */
        out[0] = 'i';
        return 2;
    }
    out[0] = (uint32_t)u.tolower((int32_t)c);
    return 1;
}

rp_status rp__unicode_decompose(const char *text, size_t bytes, uint32_t **out, size_t *n_out) {
    *out = NULL;
    *n_out = 0;
    if (bytes > PTRDIFF_MAX / 64) return RP__OOM("a text");
    const ptrdiff_t n = u.decompose((const uint8_t *)text, (ptrdiff_t)bytes, NULL, 0, DECOMPOSE);
    if (n < 0) return rp__fail(RP_ERROR_INTERNAL, "utf8proc refuses a text: %td", n);
    int32_t *buffer = rp__alloc(((size_t)n + 1) * sizeof *buffer);
    if (!buffer) return RP__OOM("a text");
    if (u.decompose((const uint8_t *)text, (ptrdiff_t)bytes, buffer, n, DECOMPOSE) != n) {
        rp__free(buffer);
        return rp__fail(RP_ERROR_INTERNAL, "utf8proc decomposes a text in two ways");
    }
    *out = (uint32_t *)buffer;
    *n_out = (size_t)n;
    return RP_OK;
}
