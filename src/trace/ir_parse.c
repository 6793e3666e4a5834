/* Reads the text form of docs/ir.md. The text may be hostile: every number is bounded, memory is proportional to the text,
   nesting is limited, and what is returned is closed SSA with operands and attributes that fit the schemas, so that printing,
   hashing, copying and the checker are safe on it. Whether types and shapes fit is the checker's question. */
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "trace/ir.h"

enum { MAX_NESTING = 32, MAX_EXPRESSION_DEPTH = 32, MAX_SYMBOLS = 4096, MAX_RESULTS = 4096 };

typedef enum token_kind {
    TOKEN_END,
    TOKEN_NAME,
    TOKEN_VALUE,
    TOKEN_NUMBER,
    TOKEN_STRING,
    TOKEN_PUNCTUATION
} token_kind;
typedef struct token {
    token_kind kind;
    const char *begin;
    size_t length;
    uint64_t value; /* TOKEN_VALUE */
    unsigned line, column;
} token;

typedef struct name {      /* of a printed value number */
    uint32_t value, block; /* value + 1, 0: none */
} name;

typedef struct parser {
    const char *at, *end;
    const char *line_begin;
    unsigned line;
    size_t bytes;
    token next;
    rp_ir *ir;
    name *names;
    size_t names_capacity;
    uint32_t blocks, block; /* blocks begun; the one being read */
    locale_t c_locale;
    rp_status status;
} parser;

static bool fail_at(parser *p, const token *t, const char *format, ...) RP__PRINTF(3, 4);
static bool fail_at(parser *p, const token *t, const char *format, ...) {
    char text[256];
    va_list args;
    if (p->status == RP_OK && rp_error_status() == RP_ERROR_OUT_OF_MEMORY) {
        p->status = RP_ERROR_OUT_OF_MEMORY; /* a size could not be made: not the text's fault */
    } else if (p->status == RP_OK) {
        va_start(args, format);
        (void)vsnprintf(text, sizeof text, format, args);
        va_end(args);
        (void)rp_error_take(); /* what a size reported, without a place; the thread's earlier error is put aside */
        p->status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph text, line %u, column %u: %s", t->line, t->column, text);
    }
    return false;
}

static bool fail_memory(parser *p) {
    if (p->status == RP_OK) p->status = RP__OOM("graph text");
    return false;
}

/* ---- tokens */

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

static bool advance(parser *p) {
    while (p->at < p->end && (isspace((unsigned char)*p->at) || *p->at == '#')) {
        if (*p->at == '#') { /* a comment up to the end of the line */
            while (p->at < p->end && *p->at != '\n') p->at++;
            continue;
        }
        if (*p->at == '\n') {
            p->line++;
            p->line_begin = p->at + 1;
        }
        p->at++;
    }
    token *t = &p->next;
    *t = (token){.begin = p->at, .line = p->line, .column = (unsigned)(p->at - p->line_begin) + 1};
    if (p->at == p->end) return true;
    char c = *p->at;
    if (c == '%') {
        const char *s = p->at + 1;
        t->kind = TOKEN_VALUE;
        if (s == p->end || !isdigit((unsigned char)*s)) return fail_at(p, t, "'%%' without the number of a value");
        for (; s < p->end && isdigit((unsigned char)*s); s++) {
            t->value = t->value * 10 + (uint64_t)(*s - '0');
            if (t->value > p->bytes) /* a definition takes more than one character */
                return fail_at(p, t, "the number of the value is larger than the text allows");
        }
        p->at = s;
    } else if (c == '"') {
        const char *s = p->at + 1;
        t->kind = TOKEN_STRING;
        while (s < p->end && *s != '"' && *s != '\n') s += *s == '\\' && s + 1 < p->end ? 2 : 1;
        if (s >= p->end || *s != '"') return fail_at(p, t, "a string without an end");
        p->at = s + 1;
    } else if (isdigit((unsigned char)c)) {
        const char *s = p->at;
        t->kind = TOKEN_NUMBER;
        while (s < p->end &&
               (is_name(*s) || ((*s == '-' || *s == '+') && (s[-1] == 'e' || s[-1] == 'E') && p->at[1] != 'x')))
            s++;
        p->at = s;
    } else if (isalpha((unsigned char)c) || c == '_') {
        const char *s = p->at;
        t->kind = TOKEN_NAME;
        while (s < p->end && is_name(*s)) s++;
        p->at = s;
    } else {
        t->kind = TOKEN_PUNCTUATION;
        p->at++;
        if (p->at < p->end && *p->at == '=' && strchr("<>=!", c)) p->at++;
    }
    t->length = (size_t)(p->at - t->begin);
    return true;
}

static bool is(const parser *p, const char *text) {
    return p->next.kind != TOKEN_STRING && p->next.length == strlen(text) &&
           memcmp(p->next.begin, text, p->next.length) == 0;
}

static bool accept(parser *p, const char *text) {
    return p->status == RP_OK && is(p, text) && advance(p) && p->status == RP_OK;
}

static bool expect(parser *p, const char *text) {
    if (p->status != RP_OK) return false;
    if (!is(p, text))
        return fail_at(p, &p->next, "'%s' was expected instead of '%.*s'", text,
                       (int)(p->next.length < 40 ? p->next.length : 40), p->next.begin);
    return advance(p);
}

/* A signed integer inside the range of sizes: words below it are symbols. */
static bool integer(parser *p, int64_t *out) {
    bool negative = accept(p, "-");
    if (p->status != RP_OK) return false;
    const token *t = &p->next;
    uint64_t value = 0;
    if (t->kind != TOKEN_NUMBER) return fail_at(p, t, "an integer was expected");
    for (size_t i = 0; i < t->length; i++) {
        if (!isdigit((unsigned char)t->begin[i]))
            return fail_at(p, t, "'%.*s' is not an integer", (int)(t->length < 40 ? t->length : 40), t->begin);
        if (value > (UINT64_MAX - 9) / 10) return fail_at(p, t, "the integer does not fit 64 bits");
        value = value * 10 + (uint64_t)(t->begin[i] - '0');
    }
    if (value > (negative ? (uint64_t)1 << 62 : (uint64_t)INT64_MAX)) return fail_at(p, t, "the integer does not fit");
    *out = negative ? -(int64_t)value : (int64_t)value;
    return advance(p);
}

static bool number32(parser *p, uint32_t limit, uint32_t *out) {
    token t = p->next;
    int64_t value;
    if (!integer(p, &value)) return false;
    if (value < 0 || value > limit) return fail_at(p, &t, "the number is not in 0..%u", limit);
    *out = (uint32_t)value;
    return true;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static char *string(parser *p) {
    if (p->status != RP_OK) return NULL;
    token t = p->next;
    if (t.kind != TOKEN_STRING) {
        (void)fail_at(p, &t, "a string was expected");
        return NULL;
    }
    char *out = RP__NEW(&p->ir->arena, char, t.length);
    if (!out) {
        (void)fail_memory(p);
        return NULL;
    }
    size_t n = 0;
    for (const char *s = t.begin + 1; s < t.begin + t.length - 1; s++) {
        if (*s != '\\') {
            out[n++] = *s;
        } else if (s[1] == 'x') {
            int high = t.begin + t.length - 1 - s < 4 ? -1 : hex_digit(s[2]), low = high < 0 ? -1 : hex_digit(s[3]);
            if (low < 0) {
                (void)fail_at(p, &t, "a bad \\x in a string");
                return NULL;
            }
            out[n++] = (char)(high * 16 + low);
            s += 3;
        } else {
            out[n++] = *++s;
        }
    }
    if (memchr(out, 0, n)) {
        (void)fail_at(p, &t, "a zero byte in a string");
        return NULL;
    }
    return advance(p) ? out : NULL;
}

/* ---- sizes */

static bool expression(parser *p, unsigned depth, rp_dim *out);

static bool factor(parser *p, unsigned depth, rp_dim *out) {
    static const struct {
        const char *name;
        rp__dim_op op;
    } functions[] = {{"floordiv", RP__DIM_FLOORDIV}, {"mod", RP__DIM_MOD}, {"max", RP__DIM_MAX}, {"min", RP__DIM_MIN}};
    token t = p->next;
    if (p->status != RP_OK) return false;
    if (depth > MAX_EXPRESSION_DEPTH)
        return fail_at(p, &t, "the expression nests deeper than %d", MAX_EXPRESSION_DEPTH);
    if (t.kind == TOKEN_NUMBER || is(p, "-")) return integer(p, out);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        rp_dim a, b;
        if (!accept(p, functions[i].name)) continue;
        if (!expect(p, "(") || !expression(p, depth + 1, &a) || !expect(p, ",") || !expression(p, depth + 1, &b) ||
            !expect(p, ")"))
            return false;
        if (!rp__dim_is_symbol(a) && !rp__dim_is_symbol(b) && rp__dim_same_word(b, 0) &&
            (functions[i].op == RP__DIM_FLOORDIV || functions[i].op == RP__DIM_MOD))
            return fail_at(p, &t, "a division by zero");
        *out = rp__dim_apply(functions[i].op, a, b);
        return !rp_failed() || fail_at(p, &t, "the size does not fit");
    }
    if (t.kind == TOKEN_NAME && t.begin[0] == 's') {
        uint64_t index = 0;
        size_t i = 1;
        for (; i < t.length && isdigit((unsigned char)t.begin[i]) && index <= MAX_SYMBOLS; i++)
            index = index * 10 + (uint64_t)(t.begin[i] - '0');
        if (t.length > 1 && i == t.length && index < rp__symbols_count(p->ir->symbols)) {
            *out = rp__symbols_word(p->ir->symbols, (size_t)index);
            return advance(p);
        }
    }
    return fail_at(p, &t, "a size was expected: a number or a symbol of the graph");
}

static bool product(parser *p, unsigned depth, rp_dim *out) {
    if (!factor(p, depth, out)) return false;
    while (p->status == RP_OK && is(p, "*")) {
        token t = p->next;
        rp_dim b;
        if (!advance(p) || !factor(p, depth, &b)) return false;
        *out = rp__dim_apply(RP__DIM_MUL, *out, b);
        if (rp_failed()) return fail_at(p, &t, "the size does not fit");
    }
    return p->status == RP_OK;
}

static bool expression(parser *p, unsigned depth, rp_dim *out) {
    token first = p->next;
    bool negative = false;
    if (is(p, "-")) { /* "-3" is a number, "-s0*2" a negated product */
        const char *s = p->at;
        negative = s < p->end && !isdigit((unsigned char)*s);
        if (negative && !advance(p)) return false;
    }
    if (!product(p, depth, out)) return false;
    if (negative) *out = rp__dim_apply(RP__DIM_SUB, 0, *out);
    while (p->status == RP_OK && (is(p, "+") || is(p, "-"))) {
        rp__dim_op op = is(p, "+") ? RP__DIM_ADD : RP__DIM_SUB;
        rp_dim b;
        if (!advance(p) || !product(p, depth, &b)) return false;
        *out = rp__dim_apply(op, *out, b);
    }
    if (p->status == RP_OK && rp_failed()) return fail_at(p, &first, "the size does not fit");
    return p->status == RP_OK;
}

/* '[' or '(' dims ']' or ')' */
static bool dim_list(parser *p, const char *open, const char *close, rp_dim *out, size_t limit, size_t *n) {
    *n = 0;
    if (!expect(p, open)) return false;
    while (!is(p, close)) {
        if (*n == limit) return fail_at(p, &p->next, "more than %zu dimensions", limit);
        if ((*n > 0 && !expect(p, ",")) || !expression(p, 0, &out[*n])) return false;
        ++*n;
    }
    return expect(p, close);
}

/* ---- values */

static bool dtype_of(const token *t, rp_dtype *out) {
    for (int d = 1; d < RP__DTYPE_COUNT; d++) {
        const char *s = rp__dtypes[d].short_name;
        if (strlen(s) == t->length && memcmp(s, t->begin, t->length) == 0) {
            *out = (rp_dtype)d;
            return true;
        }
    }
    return false;
}

static bool use(parser *p, rp__ir_value *out) {
    token t = p->next;
    *out = RP__IR_NONE;
    if (accept(p, "none")) return true;
    if (p->status != RP_OK) return false;
    if (t.kind != TOKEN_VALUE) return fail_at(p, &t, "a value (%%n) or none was expected");
    const name *n = t.value < p->names_capacity ? &p->names[t.value] : NULL;
    if (!n || n->value == 0)
        return fail_at(p, &t, "%%%llu is not defined before this use", (unsigned long long)t.value);
    if (n->block != p->block)
        return fail_at(p, &t, "%%%llu belongs to another block: pass it as an argument", (unsigned long long)t.value);
    *out = n->value - 1;
    return advance(p);
}

typedef struct definition {
    token at; /* TOKEN_VALUE */
    rp__ir_value_info info;
    rp__ir_value alias;
    bool has_strides;
} definition;

static bool type(parser *p, definition *d) {
    rp__ir_value_info *info = &d->info;
    token t = p->next;
    size_t n;
    if (t.kind != TOKEN_NAME || !dtype_of(&t, &info->meta.dtype)) return fail_at(p, &t, "an element type was expected");
    if (!advance(p) || !dim_list(p, "[", "]", info->meta.size, RP_MAX_DIMS, &n)) return false;
    info->meta.ndim = (uint8_t)n;
    for (size_t i = 0; i < n; i++) {
        if (!rp__dim_is_symbol(info->meta.size[i]) && rp__dim_number(info->meta.size[i]) < 0)
            return fail_at(p, &t, "a negative size");
    }
    if (is(p, "cpu") || is(p, "cuda")) {
        uint32_t index;
        info->meta.device.type = is(p, "cpu") ? RP_DEVICE_CPU : RP_DEVICE_CUDA;
        if (!advance(p) || !expect(p, ":") || !number32(p, INT16_MAX, &index)) return false;
        info->meta.device.index = (int32_t)index;
    }
    if (accept(p, "strides")) {
        size_t strides;
        if (!dim_list(p, "(", ")", info->stride, RP_MAX_DIMS, &strides)) return false;
        if (strides != n) return fail_at(p, &t, "%zu strides for %zu dimensions", strides, n);
        d->has_strides = true;
    }
    if (accept(p, "offset") && (!expect(p, "(") || !expression(p, 0, &info->offset) || !expect(p, ")"))) return false;
    d->alias = RP__IR_NONE;
    if (accept(p, "alias") && (!expect(p, "(") || !use(p, &d->alias) || !expect(p, ")"))) return false;
    info->shared = accept(p, "shared");
    info->requires_grad = accept(p, "grad");
    return p->status == RP_OK;
}

static bool define(parser *p, definition *d) {
    memset(d, 0, sizeof *d);
    d->at = p->next;
    if (d->at.kind != TOKEN_VALUE) return fail_at(p, &d->at, "a value (%%n) was expected");
    return advance(p) && expect(p, ":") && type(p, d);
}

/* Enters a value that was added to the graph under its printed number. */
static bool enter(parser *p, const definition *d, rp__ir_value v) {
    if (v == RP__IR_NONE) return fail_memory(p);
    rp__ir_value_info *info = &p->ir->values[v];
    if (d->has_strides) memcpy(info->stride, d->info.stride, sizeof info->stride);
    info->offset = d->info.offset;
    info->shared = d->info.shared;
    info->requires_grad = d->info.requires_grad;
    if (d->alias != RP__IR_NONE) info->storage = p->ir->values[d->alias].storage;
    size_t capacity = p->names_capacity;
    if (d->at.value >= capacity) {
        if (!RP__GROW(&p->names, &p->names_capacity, (size_t)d->at.value + 1)) return fail_memory(p);
        memset(p->names + capacity, 0, (p->names_capacity - capacity) * sizeof *p->names);
    }
    if (p->names[d->at.value].value)
        return fail_at(p, &d->at, "%%%llu is defined twice", (unsigned long long)d->at.value);
    p->names[d->at.value] = (name){v + 1, p->block};
    return true;
}

static bool arguments(parser *p, rp__ir_block *block) {
    if (!expect(p, "(")) return false;
    while (!is(p, ")")) {
        definition d;
        if ((block->n_args && !expect(p, ",")) || !define(p, &d) ||
            !enter(p, &d, rp__ir_add_arg(p->ir, block, &d.info.meta, NULL)))
            return false;
    }
    return expect(p, ")");
}

/* ---- attributes */

/* "(0x...)": the bits of a NaN. */
static bool bits(parser *p, uint64_t *out) {
    if (!expect(p, "(")) return false;
    token t = p->next;
    *out = 0;
    if (t.kind != TOKEN_NUMBER || t.length < 3 || t.length > 18 || t.begin[0] != '0' || t.begin[1] != 'x')
        return fail_at(p, &t, "bits as 0x... were expected");
    for (size_t i = 2; i < t.length; i++) {
        int digit = hex_digit(t.begin[i]);
        if (digit < 0) return fail_at(p, &t, "bits as 0x... were expected");
        *out = *out << 4 | (uint64_t)digit;
    }
    if (*out == 0) return fail_at(p, &t, "these are not the bits of a NaN");
    return advance(p) && expect(p, ")");
}

/* An integer, a real number, true or false. *nan_bits: the bits when they were given, else 0. */
static bool scalar(parser *p, rp_scalar *out, uint64_t *nan_bits) {
    *nan_bits = 0;
    if (p->status != RP_OK) return false;
    if (is(p, "true") || is(p, "false")) {
        *out = (rp_scalar){.kind = RP_SCALAR_BOOL, .v.b = is(p, "true")};
        return advance(p);
    }
    if (accept(p, "nan")) {
        uint64_t word = UINT64_C(0x7ff8000000000000);
        if (is(p, "(")) {
            if (!bits(p, nan_bits)) return false;
            word = *nan_bits;
        }
        out->kind = RP_SCALAR_F64;
        memcpy(&out->v.f, &word, sizeof word);
        return p->status == RP_OK;
    }
    bool negative = accept(p, "-");
    token t = p->next;
    char buf[400], *rest;
    if (p->status != RP_OK) return false;
    if (is(p, "inf")) {
        *out = (rp_scalar){.kind = RP_SCALAR_F64, .v.f = negative ? -HUGE_VAL : HUGE_VAL};
        return advance(p);
    }
    if (t.kind != TOKEN_NUMBER || t.length >= sizeof buf) return fail_at(p, &t, "a number was expected");
    memcpy(buf, t.begin, t.length);
    buf[t.length] = '\0';
    if (strspn(buf, "0123456789") == t.length) {
        errno = 0;
        unsigned long long value = strtoull(buf, NULL, 10);
        if (errno || value > (unsigned long long)INT64_MAX + negative)
            return fail_at(p, &t, "the integer does not fit 64 bits");
        *out = (rp_scalar){.kind = RP_SCALAR_I64, .v.i = (int64_t)(negative ? 0u - value : value)};
        return advance(p);
    }
    if (strspn(buf, "0123456789.eE+-") != t.length) return fail_at(p, &t, "a number was expected");
    double value = strtod_l(buf, &rest, p->c_locale);
    if (*rest) return fail_at(p, &t, "a number was expected");
    *out = (rp_scalar){.kind = RP_SCALAR_F64, .v.f = negative ? -value : value};
    return advance(p);
}

static const struct {
    const char *name;
    rp__num_op op;
} num_ops[] = {{"add", RP__NUM_ADD}, {"sub", RP__NUM_SUB}, {"mul", RP__NUM_MUL},
               {"div", RP__NUM_DIV}, {"pow", RP__NUM_POW}, {"sqrt", RP__NUM_SQRT}};

/* A number calculated of sizes: num := NUMBER | float(size) | sqrt(num) | add(num, num) ... */
static bool number_of_sizes(parser *p, unsigned depth, rp_scalar *out) {
    const token t = p->next;
    if (p->status != RP_OK) return false;
    if (depth > MAX_EXPRESSION_DEPTH)
        return fail_at(p, &t, "the expression nests deeper than %d", MAX_EXPRESSION_DEPTH);
    if (accept(p, "float")) {
        rp_dim size;
        if (!expect(p, "(") || !expression(p, depth + 1, &size)) return false;
        *out = rp__scalar_dim(size);
        return expect(p, ")");
    }
    for (size_t i = 0; i < sizeof num_ops / sizeof *num_ops; i++) {
        rp_scalar a, b = rp_i64(0);
        if (!accept(p, num_ops[i].name)) continue;
        if (!expect(p, "(") || !number_of_sizes(p, depth + 1, &a)) return false;
        if (num_ops[i].op != RP__NUM_SQRT && (!expect(p, ",") || !number_of_sizes(p, depth + 1, &b))) return false;
        if (!rp__scalar_is_symbol(a) && !rp__scalar_is_symbol(b))
            *out = rp_f64(rp__num_f64(num_ops[i].op, rp__scalar_f64(a), rp__scalar_f64(b)));
        else /* of whole numbers a float, too: that is what this text says */
            *out = rp__dim_installed()->number(num_ops[i].op, a, b);
        return !rp_failed() ? expect(p, ")") : fail_at(p, &t, "the number does not fit");
    }
    uint64_t nan_bits;
    if (!scalar(p, out, &nan_bits)) return false;
    return out->kind == RP_SCALAR_F64 || fail_at(p, &t, "a number calculated of sizes was expected");
}

enum { MAX_GENERATORS = 64 };

/* A number of an attribute: bits that are given are those of a NaN of 64 bits. */
static bool number(parser *p, rp_scalar *out) {
    uint64_t nan_bits;
    token t = p->next;
    if (!scalar(p, out, &nan_bits)) return false;
    return !nan_bits || isnan(out->v.f) || fail_at(p, &t, "these are not the 64 bits of a NaN");
}

static bool attribute(parser *p, const rp__param *param, rp_attr *a) {
    token t = p->next;
    rp_scalar s;
    a->kind = (rp_attr_kind)param->attr_kind;
    if (param->optional && accept(p, "none")) {
        *a = rp__param_none(param);
        return true;
    }
    switch (a->kind) {
    case RP_ATTR_INT: return expression(p, 0, &a->v.i);
    case RP_ATTR_FLOAT:
        if (!number(p, &s)) return false;
        if (s.kind == RP_SCALAR_BOOL) return fail_at(p, &t, "%s is a number", param->name);
        a->v.f = rp__scalar_f64(s);
        return true;
    case RP_ATTR_BOOL:
        if (!number(p, &s)) return false;
        if (s.kind != RP_SCALAR_BOOL) return fail_at(p, &t, "%s is true or false", param->name);
        a->v.b = s.v.b;
        return true;
    case RP_ATTR_SCALAR: {
        rp_dim size;
        if (param->type == RP__TYPE_BOOL) {
            if (!number(p, &a->v.scalar)) return false;
            return a->v.scalar.kind == RP_SCALAR_BOOL || fail_at(p, &t, "%s is true, false or none", param->name);
        }
        if (accept(p, "num")) {
            if (!expect(p, "(") || !number_of_sizes(p, 0, &a->v.scalar)) return false;
            if (a->v.scalar.kind != RP_SCALAR_SYM_F64)
                return fail_at(p, &t, "a number calculated of symbols of the graph was expected");
            return expect(p, ")");
        }
        if (!accept(p, "sym")) return number(p, &a->v.scalar);
        if (!expect(p, "(") || !expression(p, 0, &size)) return false;
        a->v.scalar = rp__scalar_dim(size);
        return expect(p, ")");
    }
    case RP_ATTR_DTYPE:
        a->v.dtype = RP_DTYPE_NONE;
        if (accept(p, "none")) return true;
        if (!dtype_of(&p->next, &a->v.dtype)) return fail_at(p, &t, "an element type was expected");
        return advance(p);
    case RP_ATTR_INTS: {
        /* Bounded by the text: an element takes a character. */
        int64_t *ints = NULL;
        size_t n = 0, capacity = 0;
        bool ok = expect(p, "[");
        while (ok && !is(p, "]")) {
            ok = (n == 0 || expect(p, ",")) && (RP__GROW(&ints, &capacity, n + 1) || fail_memory(p)) &&
                 expression(p, 0, &ints[n]);
            n += ok;
        }
        if (ok) {
            int64_t *kept =
                rp__arena_copy(&p->ir->arena, ints ? ints : (const int64_t[]){0}, (n ? n : 1) * sizeof *kept);
            a->v.ints = kept;
            a->n = n;
            ok = kept || fail_memory(p);
        }
        rp__free(ints);
        return ok && expect(p, "]");
    }
    case RP_ATTR_FLOATS: {
        double *floats = NULL;
        size_t n = 0, capacity = 0;
        bool ok = expect(p, "[");
        while (ok && !is(p, "]")) {
            ok = (n == 0 || expect(p, ",")) && (RP__GROW(&floats, &capacity, n + 1) || fail_memory(p)) && number(p, &s);
            if (ok) floats[n++] = rp__scalar_f64(s);
        }
        if (ok) {
            a->v.floats =
                rp__arena_copy(&p->ir->arena, floats ? floats : (const double[]){0}, (n ? n : 1) * sizeof *floats);
            a->n = n;
            ok = a->v.floats || fail_memory(p);
        }
        rp__free(floats);
        return ok && expect(p, "]");
    }
    case RP_ATTR_NONE: return false;
    case RP_ATTR_GENERATOR: {
        uint32_t k;
        a->v.generator = NULL;
        if (accept(p, "none")) return true;
        if (!expect(p, "generator") || !expect(p, "(") || !number32(p, MAX_GENERATORS - 1, &k) || !expect(p, ")"))
            return false;
        while (p->ir->n_generators <= k) {
            rp_generator *g = RP__GROW(&p->ir->generators, &p->ir->generators_capacity, p->ir->n_generators + 1)
                                  ? rp_generator_new(rp_cpu(), 0)
                                  : NULL;
            if (!g || rp_failed()) return fail_memory(p);
            p->ir->generators[p->ir->n_generators++] = g;
        }
        a->v.generator = p->ir->generators[k];
        return true;
    }
    case RP_ATTR_STRING:
        a->v.string = NULL;
        if (accept(p, "none")) return true;
        a->v.string = string(p);
        return a->v.string != NULL;
    }
    return false;
}

static bool attributes(parser *p, const rp__op *op, rp_attr *attrs, uint32_t *n) {
    *n = 0;
    uint32_t given = 0; /* bit k: attribute k, in whatever order they are written */
    if (op->schema.n_attrs && accept(p, "{")) {
        while (!is(p, "}")) {
            unsigned i = 0, k = 0;
            for (; i < op->schema.n_params &&
                   !(op->schema.params[i].kind == RP__PARAM_ATTR && is(p, op->schema.params[i].name));
                 i++)
                k += op->schema.params[i].kind == RP__PARAM_ATTR;
            if (i == op->schema.n_params || given >> k & 1u)
                return fail_at(p, &p->next,
                               i == op->schema.n_params ? "%s has no such attribute"
                                                        : "%s: an attribute is given twice",
                               op->name);
            if (!advance(p) || !expect(p, "=") || !attribute(p, &op->schema.params[i], &attrs[k])) return false;
            given |= 1u << k;
            if (!is(p, "}") && !expect(p, ",")) return false;
        }
        if (!expect(p, "}")) return false;
    }
    for (unsigned i = 0; i < op->schema.n_params; i++) {
        const rp__param *param = &op->schema.params[i];
        if (param->kind != RP__PARAM_ATTR) continue;
        if (p->status != RP_OK) return false;
        if (!(given >> *n & 1u)) {
            if (!param->has_default)
                return fail_at(p, &p->next, "%s: attribute '%s' is missing", op->name, param->name);
            attrs[*n] = rp__param_default(param);
        }
        ++*n;
    }
    return true;
}

/* ---- nodes */

static bool random_range(parser *p, rp_dim *offset, rp_dim *count) {
    *offset = *count = 0;
    return !accept(p, "random") ||
           (expect(p, "(") && expression(p, 0, offset) && expect(p, ",") && expression(p, 0, count) && expect(p, ")"));
}

static bool site(parser *p, const char **out) {
    *out = NULL;
    if (!accept(p, "@")) return p->status == RP_OK;
    *out = string(p);
    return *out != NULL;
}

static bool operand(parser *p, rp__ir_value *in, uint32_t *n_in) {
    if (*n_in == RP__MAX_IN) return fail_at(p, &p->next, "more than %d operands", RP__MAX_IN);
    return use(p, &in[(*n_in)++]);
}

static bool operands(parser *p, const rp__op *op, rp__ir_value *in, uint32_t *n_in, uint32_t *list_begin) {
    unsigned tensor = 0;
    *n_in = 0;
    if (!expect(p, "(")) return false;
    for (unsigned i = 0; i < op->schema.n_params; i++) {
        const rp__param *param = &op->schema.params[i];
        if (param->kind == RP__PARAM_ATTR) continue;
        if (tensor && !expect(p, ",")) return false;
        list_begin[tensor++] = *n_in;
        if (param->kind == RP__PARAM_TENSORS) {
            uint32_t first = *n_in;
            if (!expect(p, "[")) return false;
            while (!is(p, "]")) {
                if ((*n_in > first && !expect(p, ",")) || !operand(p, in, n_in)) return false;
                if (in[*n_in - 1] == RP__IR_NONE && !param->optional)
                    return fail_at(p, &p->next, "%s: none in a list", op->name);
            }
            if (!advance(p)) return false;
        } else {
            token t = p->next;
            if (!operand(p, in, n_in)) return false;
            if (in[*n_in - 1] == RP__IR_NONE && param->kind == RP__PARAM_TENSOR)
                return fail_at(p, &t, "%s: '%s' may not be none", op->name, param->name);
        }
    }
    for (unsigned i = tensor; i <= RP__MAX_PARAMS; i++) list_begin[i] = *n_in;
    return expect(p, ")");
}

static bool constant(parser *p, const definition *d, void **data, size_t *bytes) {
    size_t element = rp__dtype_bytes(d->info.meta.dtype), n = 0, capacity = 0;
    int64_t numel = 1;
    char *buf = NULL;
    token t = p->next;
    *data = NULL;
    for (unsigned i = 0; i < d->info.meta.ndim; i++) {
        if (rp__dim_is_symbol(d->info.meta.size[i]) || !rp__mul_i64(numel, d->info.meta.size[i], &numel))
            return fail_at(p, &t, "a constant has fixed sizes");
    }
    bool ok = expect(p, "[");
    while (ok && !is(p, "]")) {
        rp_scalar s;
        uint64_t nan_bits;
        token e = p->next;
        ok = (n == 0 || expect(p, ",")) && scalar(p, &s, &nan_bits) &&
             (rp__grow(&buf, &capacity, (n + 1) * element, 1) || fail_memory(p));
        if (!ok) break;
        const rp_dtype dtype = d->info.meta.dtype;
        if (nan_bits) {
            memcpy(buf + n * element, &nan_bits, element);
            rp_scalar stored = rp__scalar_load(dtype, buf + n * element);
            ok = (stored.kind == RP_SCALAR_F64 && isnan(stored.v.f)) ||
                 fail_at(p, &e, "these are not the bits of a NaN");
        } else if (rp__dtype_is_float(dtype) || rp__scalar_fits(s, dtype)) {
            rp__scalar_store(s, dtype, buf + n * element);
        } else {
            ok = fail_at(p, &e, "the number does not fit the element type");
        }
        n++;
    }
    if (ok && (int64_t)n != numel) ok = fail_at(p, &t, "%zu elements for a constant of %lld", n, (long long)numel);
    if (ok && !expect(p, "]")) ok = false;
    if (!ok) {
        rp__free(buf);
        return false;
    }
    *data = buf;
    *bytes = n * element;
    return true;
}

static bool block_body(parser *p, rp__ir_block *block, unsigned depth);

static bool region(parser *p, uint32_t node, uint32_t r, const char *word, unsigned depth) {
    uint32_t outer = p->block;
    rp__ir_block *block = &p->ir->nodes[node].regions[r];
    p->block = ++p->blocks;
    bool ok =
        expect(p, word) && arguments(p, block) && expect(p, "{") && block_body(p, block, depth + 1) && expect(p, "}");
    p->block = outer;
    return ok;
}

/* (%a, %b) behind a kind of node that has a name of its own, and its attributes. */
static bool fields(parser *p, const rp__ir_form *form, rp__ir_value *in, uint32_t *n_in, rp_attr *attrs,
                   uint32_t *n_attrs) {
    *n_in = 0;
    *n_attrs = form->n_attrs;
    if (!expect(p, "(")) return false;
    while (!is(p, ")")) {
        token t = p->next;
        if ((*n_in && !expect(p, ",")) || !operand(p, in, n_in)) return false;
        if (in[*n_in - 1] == RP__IR_NONE) return fail_at(p, &t, "an operand of %s may not be none", form->name);
    }
    if (!advance(p)) return false;
    for (uint32_t k = 0; k < form->n_attrs; k++) {
        attrs[k].kind = RP_ATTR_INT;
        if ((k == 0 || is(p, form->attr[k])) &&
            (!expect(p, form->attr[k]) || !expect(p, "(") || !integer(p, &attrs[k].v.i) || !expect(p, ")")))
            return false;
    }
    return true;
}

static bool regions(parser *p, uint32_t node, unsigned depth) {
    const rp__ir_form *form = &rp__ir_forms[p->ir->nodes[node].kind];
    if (rp__ir_add_regions(p->ir, node, form->n_regions) != RP_OK) return fail_memory(p);
    for (uint32_t r = 0; r < form->n_regions; r++) {
        token begin = p->next;
        uint32_t n_args, n_results;
        if (!region(p, node, r, form->region[r].name, depth)) return false;
        const rp__ir_block *b = &p->ir->nodes[node].regions[r];
        rp__ir_region_counts(&p->ir->nodes[node], r, &n_args, &n_results);
        if (b->n_args != n_args)
            return fail_at(p, &begin, "the block takes %u arguments, its node passes %u", b->n_args, n_args);
        if (b->n_results != n_results)
            return fail_at(p, &begin, "the block gives %u results, its node %u", b->n_results, n_results);
    }
    return expect(p, "}");
}

static bool op_name(parser *p, uint32_t n_out, const rp__op **op) {
    char text[64];
    token t = p->next;
    if (t.kind != TOKEN_NAME || t.length >= sizeof text) return fail_at(p, &t, "an op was expected");
    memcpy(text, t.begin, t.length);
    text[t.length] = '\0';
    *op = rp__op_find(text);
    if (!*op) return fail_at(p, &t, "there is no op '%s'", text);
    if (n_out != (*op)->schema.n_outs)
        return fail_at(p, &t, "%s gives %u results, not %u", text, (unsigned)(*op)->schema.n_outs, n_out);
    return true;
}

/* What stands behind the results of a node, and its block's entry. */
static bool node(parser *p, rp__ir_block *block, const definition *out, uint32_t n_out, unsigned depth) {
    token t = p->next;
    rp__ir_kind kind = RP__IR_OP;
    for (unsigned k = 0; k < RP__IR_KIND_COUNT; k++)
        if (rp__ir_forms[k].name && is(p, rp__ir_forms[k].name)) kind = (rp__ir_kind)k;
    const rp__ir_form *form = &rp__ir_forms[kind];
    const rp__op *op = NULL;
    rp__ir_value in[RP__MAX_IN];
    uint32_t n_in = 0, n_attrs = 0, index = 0, list_begin[RP__MAX_PARAMS + 1];
    rp_attr attrs[RP__MAX_PARAMS] = {{0}};
    rp_dim offset = 0, count = 0;
    const char *where, *fault;
    void *data = NULL;
    size_t bytes = 0;
    if (form->n_regions && depth >= MAX_NESTING) return fail_at(p, &t, "regions nest deeper than %d", MAX_NESTING);
    if ((!form->name && !op_name(p, n_out, &op)) || !advance(p)) return false;
    if (form->n_out >= 0 && n_out != (uint32_t)form->n_out)
        return fail_at(p, &t, "%s gives %d results, not %u", form->name, form->n_out, n_out);
    bool ok = form->index  ? number32(p, UINT32_MAX, &index)
              : form->data ? constant(p, out, &data, &bytes)
              : op         ? operands(p, op, in, &n_in, list_begin) && attributes(p, op, attrs, &n_attrs)
                           : fields(p, form, in, &n_in, attrs, &n_attrs);
    if (ok && form->index && index != p->ir->n_captured)
        ok = fail_at(p, &t, "captured tensors are numbered from 0 in the order in which they appear");
    if (ok && (fault = rp__ir_counts_fault(kind, n_in, n_out))) ok = fail_at(p, &t, "%s: %s", form->name, fault);
    ok = ok && (!form->random || random_range(p, &offset, &count)) && (!form->n_regions || expect(p, "{")) &&
         site(p, &where);
    uint32_t at = RP__IR_NONE;
    if (ok) {
        at = rp__ir_add_node(p->ir, block, kind, op, in, n_in, op ? list_begin : NULL, attrs, n_attrs, n_out, where);
        ok = at != RP__IR_NONE && (!form->index || rp__ir_set_captured(p->ir, at, NULL) == RP_OK) &&
             (!form->data || rp__ir_set_data(p->ir, at, data, bytes) == RP_OK);
        if (!ok) (void)fail_memory(p);
    }
    rp__free(data);
    if (!ok) return false;
    p->ir->nodes[at].random_offset = offset;
    p->ir->nodes[at].random_count = count;
    if (form->n_regions && !regions(p, at, depth)) return false;
    for (uint32_t k = 0; ok && k < n_out; k++) ok = enter(p, &out[k], rp__ir_set_out(p->ir, at, k, &out[k].info.meta));
    return ok;
}

static bool statement(parser *p, rp__ir_block *block, unsigned depth) {
    definition outs[RP__MAX_OUTS], *many = NULL;
    definition *out = outs;
    uint32_t n_out = 0;
    size_t capacity = 0;
    bool ok = true;
    while (ok && p->next.kind == TOKEN_VALUE) {
        /* Only a node with regions has more results than an op can give. */
        if (n_out >= RP__MAX_OUTS) {
            ok = (n_out < MAX_RESULTS || fail_at(p, &p->next, "more than %d results", MAX_RESULTS)) &&
                 (RP__GROW(&many, &capacity, n_out + 1u) || fail_memory(p));
            if (ok && n_out == RP__MAX_OUTS) memcpy(many, outs, sizeof outs);
            out = many;
        }
        ok = ok && define(p, &out[n_out]);
        n_out += ok;
        if (!ok || !is(p, ",")) break;
        ok = advance(p);
    }
    ok = ok && p->status == RP_OK && (!n_out || expect(p, "=")) && node(p, block, out, n_out, depth);
    rp__free(many);
    return ok && p->status == RP_OK;
}

static bool block_body(parser *p, rp__ir_block *block, unsigned depth) {
    while (p->status == RP_OK && !is(p, "return")) {
        if (p->next.kind == TOKEN_END) return fail_at(p, &p->next, "the text ends inside a block");
        if (!statement(p, block, depth)) return false;
    }
    if (!expect(p, "return")) return false;
    rp__ir_value *results = NULL;
    size_t n = 0, capacity = 0;
    bool ok = true;
    while (ok && !is(p, "}")) {
        ok = (n == 0 || expect(p, ",")) &&
             (n < MAX_RESULTS || fail_at(p, &p->next, "more than %d results", MAX_RESULTS)) &&
             (RP__GROW(&results, &capacity, n + 1) || fail_memory(p)) && use(p, &results[n]);
        n += ok;
    }
    ok =
        ok && p->status == RP_OK && (rp__ir_set_results(p->ir, block, results, (uint32_t)n) == RP_OK || fail_memory(p));
    rp__free(results);
    return ok;
}

/* ---- the whole */

static bool symbols(parser *p) {
    p->ir->symbols = rp__symbols_new();
    if (!p->ir->symbols) return fail_memory(p);
    (void)rp__symbols_enter(p->ir->symbols);
    if (!expect(p, "{")) return false;
    while (accept(p, "symbol")) {
        char expected[24];
        rp__symbol s = {.input = RP__SYMBOL_NO_SOURCE};
        size_t n = rp__symbols_count(p->ir->symbols);
        (void)snprintf(expected, sizeof expected, "s%zu", n);
        if (n == MAX_SYMBOLS) return fail_at(p, &p->next, "more than %d symbols", MAX_SYMBOLS);
        token t;
        if (!expect(p, expected) || !expect(p, "=")) return false;
        t = p->next;
        if (!integer(p, &s.hint)) return false;
        if (s.hint < 0) return fail_at(p, &t, "a negative size");
        if (accept(p, "of")) {
            uint32_t dim;
            s.is_stride = is(p, "stride");
            if (!expect(p, s.is_stride ? "stride" : "size") || !expect(p, "(") || !number32(p, INT32_MAX, &s.input) ||
                !expect(p, ",") || !number32(p, RP_MAX_DIMS - 1, &dim) || !expect(p, ")"))
                return false;
            s.dim = (uint8_t)dim;
        }
        if (rp__dim_same_word(rp__symbols_add(p->ir->symbols, &s), 0)) return fail_memory(p);
    }
    while (accept(p, "guard")) {
        static const char *const relations[] = {
            [RP__DIM_EQ] = "==", [RP__DIM_NE] = "!=", [RP__DIM_LT] = "<", [RP__DIM_LE] = "<="};
        rp_dim a, b;
        unsigned r = 0;
        bool quiet = rp__symbols_quiet(true), ok = expression(p, 0, &a);
        while (ok && r < 4 && !is(p, relations[r])) r++;
        ok =
            ok && (r < 4 || fail_at(p, &p->next, "==, !=, < or <= was expected")) && advance(p) && expression(p, 0, &b);
        (void)rp__symbols_quiet(quiet);
        if (!ok) return false;
        if (rp__symbols_guard_add(p->ir->symbols, (rp__dim_relation)r, a, b) != RP_OK) return fail_memory(p);
    }
    return expect(p, "}");
}

static bool graph(parser *p) {
    char *text;
    if (!advance(p) || !expect(p, "graph") || !(text = string(p))) return false;
    p->ir->name = text;
    if (accept(p, "with") && !symbols(p)) return false;
    p->block = ++p->blocks;
    bool quiet = rp__symbols_quiet(true);
    bool ok = arguments(p, &p->ir->body) && expect(p, "{") && block_body(p, &p->ir->body, 0) && expect(p, "}");
    (void)rp__symbols_quiet(quiet);
    return ok && (p->next.kind == TOKEN_END || fail_at(p, &p->next, "text after the end of the graph"));
}

rp_ir *rp_ir_parse_at(const char *site, const char *text, size_t bytes) {
    RP__CALLED_FROM(site);
    if (!text) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_parse: the text is NULL");
        return rp__ir_failed();
    }
    parser p = {.at = text, .end = text + bytes, .line_begin = text, .line = 1, .bytes = bytes};
    /* Sizes and generators report through the sticky error: start with a clean one, keep an older one. */
    rp__error_state before;
    rp__error_save(&before);
    rp__symbols *outer = rp__symbols_enter(NULL);
    rp__symbols_install();
    p.c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    p.ir = rp__ir_new("");
    if (!p.ir)
        p.status = RP_ERROR_OUT_OF_MEMORY;
    else if (!p.c_locale)
        (void)fail_memory(&p);
    else
        (void)graph(&p);
    if (p.c_locale) freelocale(p.c_locale);
    rp__free(p.names);
    (void)rp__symbols_enter(outer);
    rp__error_restore(&before);
    if (p.status == RP_OK) return p.ir;
    rp__ir_release(p.ir);
    return rp__ir_failed();
}
