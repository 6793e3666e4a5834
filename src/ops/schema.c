/* Parser of op schemas ("add(Tensor self, Tensor other) -> Tensor"; the grammar is in ops.h). Called by genops at build time
   for the rows of ops.def and by rp_op_register for user ops. It must need nothing but rp__fail, so that genops can link it
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

static rp_status take_type(cursor *c, rp__param *p) {
    p->kind = RP__PARAM_ATTR;
    if (take_word(c, "Tensor")) {
        p->kind = RP__PARAM_TENSOR;
        RP_TRY(take_alias(c, &p->alias, &p->written));
        p->aliased = p->alias != 0 && !p->written;
        if (strncmp(c->at, "[]", 2) == 0) {
            p->kind = RP__PARAM_TENSORS;
            c->at += 2;
        } else if (*c->at == '?') {
            p->kind = RP__PARAM_OPTIONAL_TENSOR;
            c->at++;
        }
        return RP_OK;
    }
    p->symbolic = take_word(c, "SymInt");
    if (p->symbolic || take_word(c, "int")) {
        p->attr_kind = RP_ATTR_INT;
        if (strncmp(c->at, "[]", 2) == 0) {
            p->attr_kind = RP_ATTR_INTS;
            c->at += 2;
        } else if (*c->at == '?') {
            p->optional_int = true;
            c->at++;
        }
        return RP_OK;
    }
    if (take_word(c, "float"))
        p->attr_kind = RP_ATTR_FLOAT;
    else if (take_word(c, "bool"))
        p->attr_kind = RP_ATTR_BOOL;
    else if (take_word(c, "Scalar"))
        p->attr_kind = RP_ATTR_SCALAR;
    else if (take_word(c, "dtype"))
        p->attr_kind = RP_ATTR_DTYPE;
    else if (take_word(c, "str"))
        p->attr_kind = RP_ATTR_STRING;
    else if (take_word(c, "Generator")) {
        p->attr_kind = RP_ATTR_GENERATOR;
        if (*c->at != '?') return fail_at(c, "a Generator is always optional: 'Generator?'");
        c->at++;
    } else
        return fail_at(c, "unknown type");
    return RP_OK;
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
    if (!take(c, "[")) return fail_at(c, "expected '['");
    p->value.n = 0;
    if (take(c, "]")) return RP_OK;
    do {
        if (p->value.n == sizeof p->default_ints / sizeof *p->default_ints)
            return fail_at(c, "a default list holds at most 4 integers");
        RP_TRY(take_i64(c, &p->default_ints[p->value.n++]));
    } while (take(c, ","));
    return take(c, "]") ? RP_OK : fail_at(c, "expected ']'");
}

static rp_status take_default(cursor *c, rp__param *p) {
    if (p->kind == RP__PARAM_OPTIONAL_TENSOR)
        return take_word(c, "None") ? RP_OK : fail_at(c, "the default of a Tensor? is None");
    if (p->kind != RP__PARAM_ATTR) return fail_at(c, "a tensor has no default");
    switch ((rp_attr_kind)p->attr_kind) {
    case RP_ATTR_INT:
        if (p->optional_int && take_word(c, "None")) {
            p->value.v.i = INT64_MIN;
            return RP_OK;
        }
        return take_i64(c, &p->value.v.i);
    case RP_ATTR_FLOAT: return take_f64(c, &p->value.v.f);
    case RP_ATTR_BOOL: return take_bool(c, &p->value.v.b);
    case RP_ATTR_SCALAR: return take_scalar(c, &p->value.v.scalar);
    case RP_ATTR_DTYPE: return take_dtype(c, &p->value.v.dtype);
    case RP_ATTR_INTS: return take_ints(c, p);
    case RP_ATTR_GENERATOR:
    case RP_ATTR_STRING: return take_word(c, "None") ? RP_OK : fail_at(c, "the only default of this type is None");
    }
    return fail_at(c, "unknown type");
}

static rp_status take_param(cursor *c, rp__schema *out) {
    if (out->n_params == RP__MAX_PARAMS) return fail_at(c, "more than 16 parameters");
    rp__param *p = &out->params[out->n_params];
    RP_TRY(take_type(c, p));
    if (!take_name(c, p->name, sizeof p->name)) return fail_at(c, "expected a parameter name of at most 31 letters");
    for (unsigned i = 0; i < out->n_params; i++) {
        if (strcmp(out->params[i].name, p->name) == 0) return fail_at(c, "a second parameter of the same name");
    }
    p->value.kind = (rp_attr_kind)p->attr_kind;
    if (take(c, "=")) {
        p->has_default = true;
        RP_TRY(take_default(c, p));
    }
    out->n_params++;
    if (p->kind == RP__PARAM_ATTR)
        out->n_attrs++;
    else
        out->n_tensor_params++;
    return RP_OK;
}

static rp_status take_result(cursor *c, rp__schema *out) {
    if (out->n_outs == RP__MAX_OUTS) return fail_at(c, "more than 8 results");
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
    return RP_OK;
}

rp_status rp__schema_parse(const char *text, rp__schema *out) {
    memset(out, 0, sizeof *out);
    if (!text) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op schema: the text is NULL");
    cursor c = {text, text};
    if (!take_name(&c, out->name, sizeof out->name)) return fail_at(&c, "expected an op name of at most 47 letters");
    if (!take(&c, "(")) return fail_at(&c, "expected '('");
    if (!take(&c, ")")) {
        do {
            if (take(&c, "*")) continue;
            RP_TRY(take_param(&c, out));
        } while (take(&c, ","));
        if (!take(&c, ")")) return fail_at(&c, "expected ',' or ')'");
    }
    if (!take(&c, "->")) return fail_at(&c, "expected '->'");
    if (take(&c, "(")) {
        if (!take(&c, ")")) {
            do {
                RP_TRY(take_result(&c, out));
            } while (take(&c, ","));
            if (!take(&c, ")")) return fail_at(&c, "expected ',' or ')'");
        }
    } else {
        RP_TRY(take_result(&c, out));
    }
    skip_space(&c);
    return *c.at == 0 ? RP_OK : fail_at(&c, "text after the schema");
}

rp_attr rp__param_default(const rp__param *p) {
    rp_attr value = p->value;
    if (value.kind == RP_ATTR_INTS) value.v.ints = p->default_ints;
    return value;
}
