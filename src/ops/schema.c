/* Parser of op schemas ("add(Tensor self, Tensor other) -> Tensor"; the grammar is in ops.h). Called by genops at build time
   for the rows of the table and by rp_op_register for user ops. It must need nothing but rp__fail, so that genops can link it
   alone. */
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

typedef struct cursor {
    const char *text, *at;
} cursor;

static rp_status fail_at(const cursor *c, const char *what) {
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op schema: %s at column %d, near '%.24s', of '%.200s'", what,
                    (int)(c->at - c->text) + 1, c->at, c->text);
}

static void skip_space(cursor *c) {
    while (*c->at == ' ' || *c->at == '\t' || *c->at == '\n') c->at++;
}

static bool take(cursor *c, const char *token) {
    skip_space(c);
    size_t n = strlen(token);
    if (strncmp(c->at, token, n) != 0) return false;
    c->at += n;
    return true;
}

static bool is_letter(char ch) { return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_'; }
static bool is_digit(char ch) { return ch >= '0' && ch <= '9'; }

/* An identifier into out; false when there is none or it does not fit. */
static bool take_name(cursor *c, char *out, size_t bytes) {
    skip_space(c);
    size_t n = 0;
    if (!is_letter(*c->at)) return false;
    while (is_letter(c->at[n]) || is_digit(c->at[n])) n++;
    if (n >= bytes) return false;
    memcpy(out, c->at, n);
    out[n] = 0;
    c->at += n;
    return true;
}

/* A word of the language, as a whole: "int" does not match in "integer". */
static bool take_word(cursor *c, const char *word) {
    skip_space(c);
    size_t n = strlen(word);
    if (strncmp(c->at, word, n) != 0 || is_letter(c->at[n]) || is_digit(c->at[n])) return false;
    c->at += n;
    return true;
}

/* "(a)" or "(a!)" after Tensor. */
static rp_status take_alias(cursor *c, char *alias, bool *written) {
    *alias = 0;
    *written = false;
    if (*c->at != '(') return RP_OK;
    if (c->at[1] < 'a' || c->at[1] > 'z') return fail_at(c, "an alias set must be one lower-case letter");
    *alias = c->at[1];
    c->at += 2;
    if (*c->at == '!') {
        *written = true;
        c->at++;
    }
    if (*c->at != ')') return fail_at(c, "expected ')' after an alias set");
    c->at++;
    return RP_OK;
}

/* "[]", "[2]", "[]?", "?" behind the type of an attribute. */
static rp_status take_list(cursor *c, rp__param *p, rp_attr_kind list) {
    if (*c->at == '[' && list != RP_ATTR_NONE) {
        c->at++;
        if (is_digit(*c->at)) {
            unsigned n = 0;
            for (; is_digit(*c->at) && n < 100; c->at++) n = 10 * n + (unsigned)(*c->at - '0');
            if (n == 0 || n > sizeof p->default_ints / sizeof *p->default_ints)
                return fail_at(c, "a list of a fixed size has 1 to 4 entries");
            p->fixed = (uint8_t)n;
        }
        if (*c->at != ']') return fail_at(c, "expected ']'");
        c->at++;
        p->attr_kind = list;
    }
    if (*c->at == '?') {
        c->at++;
        p->optional = true;
        if (p->attr_kind == RP_ATTR_FLOAT || p->attr_kind == RP_ATTR_BOOL) {
            p->type = p->attr_kind == RP_ATTR_FLOAT ? RP__TYPE_FLOAT : RP__TYPE_BOOL;
            p->attr_kind = RP_ATTR_SCALAR;
        }
    }
    return RP_OK;
}

static rp_status take_type(cursor *c, rp__param *p) {
    static const struct {
        const char *word;
        rp_attr_kind kind, list; /* RP_ATTR_NONE: there is no list of these */
        rp__param_type type;
    } types[] = {
        {"int", RP_ATTR_INT, RP_ATTR_INTS, RP__TYPE_PLAIN},
        {"SymInt", RP_ATTR_INT, RP_ATTR_INTS, RP__TYPE_PLAIN},
        {"float", RP_ATTR_FLOAT, RP_ATTR_FLOATS, RP__TYPE_PLAIN},
        {"bool", RP_ATTR_BOOL, RP_ATTR_NONE, RP__TYPE_PLAIN},
        {"Scalar", RP_ATTR_SCALAR, RP_ATTR_NONE, RP__TYPE_PLAIN},
        {"ScalarType", RP_ATTR_DTYPE, RP_ATTR_NONE, RP__TYPE_PLAIN},
        {"dtype", RP_ATTR_DTYPE, RP_ATTR_NONE, RP__TYPE_PLAIN},
        {"str", RP_ATTR_STRING, RP_ATTR_NONE, RP__TYPE_PLAIN},
        {"Generator", RP_ATTR_GENERATOR, RP_ATTR_NONE, RP__TYPE_PLAIN},
        {"Layout", RP_ATTR_INT, RP_ATTR_NONE, RP__TYPE_LAYOUT},
        {"Device", RP_ATTR_INT, RP_ATTR_NONE, RP__TYPE_DEVICE},
        {"MemoryFormat", RP_ATTR_INT, RP_ATTR_NONE, RP__TYPE_MEMORY_FORMAT},
    };
    p->kind = RP__PARAM_ATTR;
    if (take_word(c, "Tensor")) {
        p->kind = RP__PARAM_TENSOR;
        RP_TRY(take_alias(c, &p->alias, &p->written));
        p->aliased = p->alias != 0 && !p->written;
        p->optional = *c->at == '?';
        if (p->optional) {
            p->kind = RP__PARAM_OPTIONAL_TENSOR;
            c->at++;
        }
        if (strncmp(c->at, "[]", 2) == 0) {
            p->kind = RP__PARAM_TENSORS;
            c->at += 2;
        }
        return RP_OK;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!take_word(c, types[i].word)) continue;
        p->attr_kind = (uint8_t)types[i].kind;
        p->symbolic = strcmp(types[i].word, "SymInt") == 0;
        p->type = (uint8_t)types[i].type;
        RP_TRY(take_list(c, p, types[i].list));
        if (types[i].kind == RP_ATTR_GENERATOR && !p->optional)
            return fail_at(c, "a Generator is always optional: 'Generator?'");
        if (types[i].type != RP__TYPE_PLAIN && !p->optional) return fail_at(c, "this type is always optional: add '?'");
        if (strcmp(types[i].word, "dtype") == 0) p->optional = true;
        return RP_OK;
    }
    return fail_at(c, "unknown type");
}

static rp_status take_i64(cursor *c, int64_t *out) {
    skip_space(c);
    char *end = NULL;
    errno = 0;
    long long v = strtoll(c->at, &end, 10);
    if (end == c->at || errno != 0) return fail_at(c, "expected an integer");
    *out = v;
    c->at = end;
    return RP_OK;
}

static rp_status take_f64(cursor *c, double *out) {
    skip_space(c);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* a program's locale may want a decimal comma */
    if (!plain) return rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: reading an op schema");
    char *end = NULL;
    double v = strtod_l(c->at, &end, plain);
    freelocale(plain);
    if (end == c->at) return fail_at(c, "expected a number");
    *out = v;
    c->at = end;
    return RP_OK;
}

static rp_status take_bool(cursor *c, bool *out) {
    if (take_word(c, "True"))
        *out = true;
    else if (take_word(c, "False"))
        *out = false;
    else
        return fail_at(c, "expected True or False");
    return RP_OK;
}

/* A number is an integer unless it has a point, an exponent, or is inf or nan. */
static rp_status take_scalar(cursor *c, rp_scalar *out) {
    skip_space(c);
    if (*c->at == 'T' || *c->at == 'F') {
        out->kind = RP_SCALAR_BOOL;
        return take_bool(c, &out->v.b);
    }
    size_t n = strspn(c->at, "+-0123456789");
    if (n > 0 && c->at[n] != '.' && c->at[n] != 'e' && c->at[n] != 'i' && c->at[n] != 'n') {
        out->kind = RP_SCALAR_I64;
        return take_i64(c, &out->v.i);
    }
    out->kind = RP_SCALAR_F64;
    return take_f64(c, &out->v.f);
}

static rp_status take_dtype(cursor *c, rp_dtype *out) {
    static const struct {
        const char *name;
        rp_dtype dtype;
    } names[] = {
        {"none", RP_DTYPE_NONE},
        {"None", RP_DTYPE_NONE},
#define RP_DTYPE(suffix, name, ...) {name, RP_##suffix},
#include "core/dtype.def"
#undef RP_DTYPE
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (take_word(c, names[i].name)) {
            *out = names[i].dtype;
            return RP_OK;
        }
    }
    return fail_at(c, "expected a dtype name or none");
}

static rp_status take_ints(cursor *c, rp__param *p) {
    p->value.n = 0;
    if (p->optional && take_word(c, "None")) return RP_OK;
    if (p->fixed && !take(c, "[")) { /* int[2] padding=0 */
        int64_t all;
        RP_TRY(take_i64(c, &all));
        for (; p->value.n < p->fixed; p->value.n++) p->default_ints[p->value.n] = all;
        return RP_OK;
    }
    if (!p->fixed && !take(c, "[")) return fail_at(c, "expected '['");
    if (take(c, "]")) {
        p->empty_list = true;
        return RP_OK;
    }
    do {
        if (p->value.n == sizeof p->default_ints / sizeof *p->default_ints)
            return fail_at(c, "a default list holds at most 4 integers");
        RP_TRY(take_i64(c, &p->default_ints[p->value.n++]));
    } while (take(c, ","));
    return take(c, "]") ? RP_OK : fail_at(c, "expected ']'");
}

/* "none" or 'none': kept in the parameter. */
static rp_status take_text(cursor *c, rp__param *p) {
    skip_space(c);
    char quote = *c->at;
    size_t n = quote == '"' || quote == '\'' ? strcspn(c->at + 1, quote == '"' ? "\"" : "'") : 0;
    if (n == 0 || n >= sizeof p->default_text || c->at[n + 1] != quote)
        return fail_at(c, "expected None or a short text in quotes");
    memcpy(p->default_text, c->at + 1, n);
    c->at += n + 2;
    return RP_OK;
}

static rp_status take_default(cursor *c, rp__param *p) {
    if (p->kind == RP__PARAM_OPTIONAL_TENSOR)
        return take_word(c, "None") ? RP_OK : fail_at(c, "the default of a Tensor? is None");
    if (p->kind != RP__PARAM_ATTR) return fail_at(c, "a tensor has no default");
    if (p->optional && p->attr_kind != RP_ATTR_DTYPE && p->attr_kind != RP_ATTR_INTS && take_word(c, "None")) {
        p->value = rp__param_none(p);
        return RP_OK;
    }
    if (p->type != RP__TYPE_PLAIN && p->attr_kind == RP_ATTR_INT)
        return fail_at(c, "the only default of this type is None");
    switch ((rp_attr_kind)p->attr_kind) {
    case RP_ATTR_INT: return take_i64(c, &p->value.v.i);
    case RP_ATTR_FLOAT: return take_f64(c, &p->value.v.f);
    case RP_ATTR_BOOL: return take_bool(c, &p->value.v.b);
    case RP_ATTR_SCALAR: return take_scalar(c, &p->value.v.scalar);
    case RP_ATTR_DTYPE: return take_dtype(c, &p->value.v.dtype);
    case RP_ATTR_INTS: return take_ints(c, p);
    case RP_ATTR_STRING:
        if (take_word(c, "None")) return RP_OK;
        return take_text(c, p);
    default: return take_word(c, "None") ? RP_OK : fail_at(c, "the only default of this type is None");
    }
}

static rp_status take_param(cursor *c, rp__schema *out, bool keyword) {
    if (out->n_params == RP__MAX_PARAMS) return fail_at(c, "more than 16 parameters");
    rp__param *p = &out->params[out->n_params];
    RP_TRY(take_type(c, p));
    if (!take_name(c, p->name, sizeof p->name)) return fail_at(c, "expected a parameter name of at most 31 letters");
    for (unsigned i = 0; i < out->n_params; i++) {
        if (strcmp(out->params[i].name, p->name) == 0) return fail_at(c, "a second parameter of the same name");
    }
    p->value.kind = (rp_attr_kind)p->attr_kind;
    p->keyword = keyword;
    if (take(c, "=")) {
        p->has_default = true;
        RP_TRY(take_default(c, p));
    }
    if (keyword && p->kind == RP__PARAM_ATTR && !p->has_default &&
        p->optional) { /* Generator? generator, given by name */
        p->has_default = true;
        p->value = rp__param_none(p);
    }
    out->n_params++;
    out->typed = out->typed || p->type != RP__TYPE_PLAIN;
    if (p->kind == RP__PARAM_ATTR)
        out->n_attrs++;
    else
        out->n_tensor_params++;
    return RP_OK;
}

static rp_status take_result(cursor *c, rp__schema *out, bool named) {
    if (out->n_outs == RP__MAX_OUTS) return fail_at(c, "more than 8 results");
    char name[32];
    if (!take_word(c, "Tensor")) return fail_at(c, "a result must be a Tensor");
    char alias;
    bool written;
    RP_TRY(take_alias(c, &alias, &written));
    if (*c->at == '[') return fail_at(c, "a result may not be a list");
    bool known = alias == 0;
    for (unsigned i = 0; i < out->n_params && !known; i++)
        known = out->params[i].kind == RP__PARAM_TENSOR && out->params[i].alias == alias &&
                out->params[i].written == written;
    if (!known) return fail_at(c, "no parameter has this alias set");
    out->out_alias[out->n_outs] = alias;
    out->out_written[out->n_outs] = written;
    out->n_outs++;
    skip_space(c);
    if (named && is_letter(*c->at) && !take_name(c, name, sizeof name))
        return fail_at(c, "expected the name of a result");
    return RP_OK;
}

rp_status rp__schema_parse(const char *text, rp__schema *out) {
    memset(out, 0, sizeof *out);
    if (!text) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op schema: the text is NULL");
    cursor c = {text, text};
    if (!take_name(&c, out->name, sizeof out->name)) return fail_at(&c, "expected an op name of at most 47 letters");
    if (!take(&c, "(")) return fail_at(&c, "expected '('");
    if (!take(&c, ")")) {
        bool keyword = false;
        do {
            if (take(&c, "*"))
                keyword = true;
            else
                RP_TRY(take_param(&c, out, keyword));
        } while (take(&c, ","));
        if (!take(&c, ")")) return fail_at(&c, "expected ',' or ')'");
    }
    if (!take(&c, "->")) return fail_at(&c, "expected '->'");
    if (take(&c, "(")) {
        if (!take(&c, ")")) {
            do {
                RP_TRY(take_result(&c, out, true));
            } while (take(&c, ","));
            if (!take(&c, ")")) return fail_at(&c, "expected ',' or ')'");
        }
    } else {
        RP_TRY(take_result(&c, out, false));
    }
    skip_space(&c);
    return *c.at == 0 ? RP_OK : fail_at(&c, "text after the schema");
}

rp_attr rp__param_default(const rp__param *p) {
    rp_attr value = p->value;
    if (value.kind == RP_ATTR_INTS && (value.n || p->empty_list || !p->optional)) value.v.ints = p->default_ints;
    if (value.kind == RP_ATTR_STRING && *p->default_text) value.v.string = p->default_text;
    return value;
}

rp_attr rp__param_none(const rp__param *p) {
    rp_attr none = {.kind =
                        (rp_attr_kind)p->attr_kind}; /* a Scalar, a dtype, a list, a text or a generator of nothing */
    if (none.kind == RP_ATTR_INT) none.v.i = INT64_MIN;
    return none;
}

bool rp__attr_is_none(const rp_attr *a) {
    switch (a->kind) {
    case RP_ATTR_INT: return a->v.i == INT64_MIN;
    case RP_ATTR_SCALAR: return a->v.scalar.kind == RP_SCALAR_NONE;
    case RP_ATTR_DTYPE: return a->v.dtype == RP_DTYPE_NONE;
    case RP_ATTR_INTS: return !a->v.ints;
    case RP_ATTR_FLOATS: return !a->v.floats;
    case RP_ATTR_GENERATOR: return !a->v.generator;
    case RP_ATTR_STRING: return !a->v.string;
    default: return false;
    }
}
