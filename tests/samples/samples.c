/* See samples.h: the rows, the text of samples, their values. */
#include "samples/samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES(...) ROW(__VA_ARGS__, )
#define ROW(name, ...) {.op = #name, .text = __VA_ARGS__},
static const sample_row rows[] = {
#include "sample_rows.inc"
};
enum { ROWS = sizeof rows / sizeof *rows };

static sample **all;
static size_t n_all;

/* ---- text */

static rp_dtype short_name(const char *text) {
    static const char *const names[SAMPLE_TYPES] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool"};
    for (int i = 0; i < SAMPLE_TYPES; i++)
        if (strcmp(names[i], text) == 0) return ref_types[i];
    fail_msg("'%s' is no type of a sample", text);
    return RP_DTYPE_NONE;
}

/* "*f:f64(n,4)" or "none"; to the first letter behind it. */
const char *sample_parse_tensor(const char *p, sample_tensor *t) {
    const char *begin = p;
    *t = (sample_tensor){.n_dim = -1, .kind = '-'};
    if (strncmp(p, "none", 4) == 0) return p + 4;
    for (; *p == '*' || *p == '!'; p++) t->constant = true, t->written |= *p == '*';
    t->kind = *p++;
    char *end;
    if (t->kind == 'i') {
        t->below = strtoll(p, &end, 10), p = end;
        t->dtype = RP_I64;
    }
    if (t->kind == 'b') t->dtype = RP_BOOL;
    if (t->kind == 'd') t->dtype = RP_I64, t->constant = true;
    if (*p == ':') {
        char name[8] = "";
        size_t n = strcspn(p + 1, "(");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p + 1);
        t->dtype = short_name(name);
        p += 1 + n;
    }
    if (!strchr("fpgquwtsbidm", t->kind) || *p != '(') fail_msg("no tensor of a sample: '%s'", begin);
    for (p++; *p != ')'; p += *p == ',') {
        if (*p == 'n') {
            t->n_dim = t->ndim;
            t->size[t->ndim++] = -1;
            p++;
        } else {
            t->size[t->ndim++] = strtoll(p, &end, 10);
            if (end == p) fail_msg("no size at '%s' of '%s'", p, begin);
            p = end;
        }
    }
    return p + 1;
}

/* The end of an argument: the first blank outside brackets. */
static const char *argument_end(const char *p) {
    for (int depth = 0; *p && (depth || *p != ' '); p++)
        depth += *p == '[' || *p == '(', depth -= *p == ']' || *p == ')';
    return p;
}

static const char *operand(sample *s, const char *p) {
    if (s->n_args == SAMPLE_IN) fail_msg("%s: '%s' has too many tensors", s->op->name, s->text);
    p = sample_parse_tensor(p, &s->in[s->n_in]);
    if (s->in[s->n_in].kind != '-') s->place[s->n_in++] = s->n_args;
    s->n_args++;
    return p;
}

/* Tensors of "[f(2) f(3)]". */
static uint8_t list_length(const char *p) {
    uint8_t n = 0;
    for (p = p ? p + 1 : "]"; *p != ']'; p += *p == ' ') {
        for (int depth = 0; depth || (*p != ' ' && *p != ']'); p++) depth += *p == '(', depth -= *p == ')';
        n++;
    }
    return n;
}

static void parse(sample *s) {
    const rp__schema *schema = &s->op->schema;
    const char *given[RP__MAX_PARAMS] = {NULL};
    unsigned at = 0, attr = 0;
    for (const char *p = s->text; *p;) {
        size_t name = strcspn(p, "=[( ");
        if (p[name] == '=') {
            for (at = 0; at < schema->n_params; at++)
                if (strlen(schema->params[at].name) == name && strncmp(schema->params[at].name, p, name) == 0) break;
            p += name + 1;
        }
        if (at >= schema->n_params) fail_msg("%s: no parameter for '%s' in '%s'", s->op->name, p, s->text);
        given[at++] = p;
        p = argument_end(p);
        while (*p == ' ') p++;
    }
    bool has_n = false;
    int last = -1;
    for (unsigned i = 0; i < schema->n_params; i++) {
        if (schema->params[i].kind != RP__PARAM_TENSORS) continue;
        s->list[i] = list_length(given[i]);
        s->apart = s->apart || (last >= 0 && s->list[last] != s->list[i]);
        last = (int)i;
    }
    for (unsigned i = 0; i < schema->n_params; i++) {
        const rp__param *param = &schema->params[i];
        const char *p = given[i];
        if (param->kind == RP__PARAM_ATTR) {
            if (p) (void)snprintf(s->word[attr], sizeof *s->word, "%.*s", (int)(argument_end(p) - p), p);
            for (const char *c = s->word[attr]; *c && param->attr_kind != RP_ATTR_STRING; c++)
                s->sized =
                    s->sized || (*c == 'n' && (c == s->word[attr] || c[-1] == ',' || c[-1] == '[') && c[1] != 'o');
            attr++;
        } else if (param->kind == RP__PARAM_TENSORS) {
            for (p = p ? p + 1 : "]"; *p != ']'; p += *p == ' ') p = operand(s, p);
            if (s->apart && (int)i != last) (void)operand(s, "none"); /* ends the list: rp_op_call */
        } else {
            if (!p && param->kind == RP__PARAM_TENSOR) fail_msg("%s: no %s in '%s'", s->op->name, param->name, s->text);
            (void)operand(s, p ? p : "none");
        }
    }
    for (int k = 0; k < s->n_in; k++) has_n = has_n || s->in[k].n_dim >= 0;
    if (s->sized && !has_n) { /* no operand */
        (void)sample_parse_tensor("!f(n)", &s->in[s->n_in]);
        s->place[s->n_in++] = -1;
    }
    if (s->op->flags & RP_OP_INPLACE && s->op->functional[0]) s->in[0].written = true;
}

/* ---- the list */

static sample *add(const rp__op *op, const sample_row *row, unsigned number) {
    static size_t room;
    if (n_all == room) all = realloc(all, (room = room ? 2 * room : 256) * sizeof(sample *));
    sample *s = calloc(1, sizeof *s);
    if (!all || !s) abort();
    *s = (sample){.op = op, .row = row, .number = number, .whole_road = number == 0};
    return all[n_all++] = s;
}

static void add_row(const sample_row *row) {
    const rp__op *op = rp__op_find(row->op);
    if (!op) fail_msg("tests/samples: there is no op %s", row->op);
    if (sample_of(row->op)) fail_msg("tests/samples: %s has two lines", row->op);
    unsigned number = 0;
    for (const char *p = row->text; p; number++) {
        while (*p == ' ') p++;
        bool whole = *p == '+';
        p += whole;
        const char *end = strchr(p, ';');
        sample *s = add(op, row, number);
        s->whole_road = number == 0 || whole;
        if (snprintf(s->text, sizeof s->text, "%.*s", (int)(end ? end - p : (ptrdiff_t)strlen(p)), p) >=
            (int)sizeof s->text)
            fail_msg("%s: a sample of more than %zu letters", row->op, sizeof s->text);
        while (*s->text && s->text[strlen(s->text) - 1] == ' ') s->text[strlen(s->text) - 1] = 0;
        parse(s);
        p = end ? end + 1 : NULL;
    }
}

/* The form of `base` that `op` is: in place, or with a number as its second operand. */
static void derive(const rp__op *op, const sample *base, const char *number) {
    sample *s = add(op, base->row, base->number);
    const char *first = argument_end(base->text), *rest = *first ? argument_end(first + 1) : first;
    if (!number) number = "", rest = "", first = base->text + strlen(base->text);
    if (snprintf(s->text, sizeof s->text, "%.*s%s%s%s", (int)(first - base->text), base->text, *number ? " " : "",
                 number, rest) >= (int)sizeof s->text)
        fail_msg("%s: a sample of more than %zu letters", op->name, sizeof s->text);
    parse(s);
}

static void derive_scalar(const rp__op *op, const sample *base) {
    static const char *const numbers[] = {"0.75", "3", "true"}, *const whole[] = {"3", "5", "true"};
    for (unsigned k = 0; k < 3; k++) {
        derive(op, base,
               base->in[0].kind == 'i' ? whole[k] : numbers[k]); /* what begins with integers may take no others */
        all[n_all - 1]->number = k;
        all[n_all - 1]->whole_road = k == 0;
    }
}

static void collect(void) {
    for (size_t i = 0; i < ROWS; i++) add_row(&rows[i]);
    /* Scalar forms first: those may be in place, too. */
    for (int inplace = 0; inplace < 2; inplace++) {
        const size_t before = n_all;
        for (size_t k = 0; k < rp__op_builtin_count(); k++) {
            const rp__op *op = rp__op_table_at(k);
            size_t length = strlen(op->name);
            char base[64] = "";
            if (inplace && op->functional_op)
                (void)snprintf(base, sizeof base, "%s", op->functional);
            else if (!inplace && op->scalar_operand && !op->functional_op && length > 7)
                (void)snprintf(base, sizeof base, "%.*s", (int)length - 7, op->name);
            if (!*base || sample_of(op->name)) continue;
            for (size_t i = 0; i < before; i++) {
                if (strcmp(all[i]->op->name, base) != 0) continue;
                if (inplace)
                    derive(op, all[i], NULL);
                else if (all[i]->number == 0)
                    derive_scalar(op, all[i]);
            }
        }
    }
}

size_t sample_count(void) {
    if (!n_all) collect();
    return n_all;
}

const sample *sample_at(size_t index) { return index < sample_count() ? all[index] : NULL; }

const sample *sample_of(const char *op) {
    for (size_t i = 0; i < (n_all ? n_all : 0); i++)
        if (strcmp(all[i]->op->name, op) == 0) return all[i];
    return NULL;
}

/* ---- values */

bool sample_is_random(const sample *s) {
    return s->op->flags & RP_OP_RANDOM || s->row->flags & (SAMPLE_UNWRITTEN | SAMPLE_RANDOM);
}

bool sample_is_value(const sample_tensor *t) {
    return !t->constant && t->kind != 'b' && t->kind != 'i' && (t->dtype == RP_DTYPE_NONE || ref_is_float(t->dtype));
}

rp_dtype sample_dtype(const sample_tensor *t, rp_dtype swept) { return t->dtype == RP_DTYPE_NONE ? swept : t->dtype; }

/* Of 256 elements no two have the same; of the next 256 others. */
static unsigned draw(int64_t i, unsigned salt) {
    unsigned v = ((unsigned)i + salt * 53) & 255;
    v = v * 109 & 255;
    v ^= v >> 4;
    v = (v * 77 + (salt + (unsigned)(i >> 8)) * 31) & 255;
    return v ^ v >> 3;
}

/* Floats are multiples of 1/128 with at most 8 bits, so that every float type holds them, and none lies on a kink (0, 1/2, 1). */
static double float_value(char kind, unsigned v, int64_t i) {
    static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1, -1, 0.5, -0.5, 4096, -4096};
    switch (kind) {
    case 'p': return (64 + v * 191 / 255) / 128.0;
    case 'g': return (160 + v) / 128.0;
    case 'q': return (2 * ((v >> 2) + 32) + 1) / 256.0;
    case 'u': return (2 * (double)(v * 13 / 16) - 207) / 256;
    case 'w': return (2 * (double)v - 255) / 8;
    case 't': return ((int)(v % 5) - 2) / 2.0;
    case 's':
        if (i < (int64_t)(sizeof special / sizeof *special)) return special[i];
        return (2 * (double)v - 255) / 128;
    default: return (2 * (double)v - 255) / 128;
    }
}

static double int_value(char kind, unsigned v, bool sign) {
    int n = (int)v;
    switch (kind) {
    case 'p': return n % 9 + 1;
    case 'g': return n % 9 + 2;
    case 'q': return n % 2;
    case 'u': return n % 3 - sign;
    case 'w': return n % 41 - 20 * sign;
    case 't': return n % 3 - sign;
    default: return n % 13 - 6 * sign;
    }
}

ref_value sample_values(const sample_tensor *t, rp_dtype swept, int64_t n, unsigned salt) {
    rp_dtype d = sample_dtype(t, swept);
    int64_t size[RP_MAX_DIMS];
    for (int k = 0; k < t->ndim; k++) size[k] = t->size[k] < 0 ? n : t->size[k];
    ref_value r = ref_new(d, size, t->ndim);
    const int64_t columns = r.ndim > 1 ? r.size[r.ndim - 1] : 1, high = r.ndim > 1 ? r.size[r.ndim - 2] : 1;
    for (int64_t i = 0; i < r.n; i++) {
        unsigned v = draw(i, salt);
        if (t->kind == 'm') { /* the same of (i, k) and (k, i), and more on the diagonal than beside it */
            const int64_t row = i / columns % high, column = i % columns, low = row < column ? row : column;
            v = draw(i / (high * columns) * 40 + low * 8 + row + column, salt);
            r.v[i] = ref_is_float(d) ? (row == column ? 4 + (double)(v % 16) / 8 : ((int)(v % 9) - 4) / 8.0) : v & 1;
            continue;
        }
        r.v[i] = t->kind == 'i'    ? (double)(v % (uint64_t)t->below)
                 : t->kind == 'd'  ? (double)(r.n - i)
                 : d == RP_BOOL    ? v >> 3 & 1
                 : ref_is_float(d) ? float_value(t->kind, v, i)
                                   : int_value(t->kind, v, d != RP_U8);
    }
    return r;
}

void sample_make(const sample *s, rp_dtype swept, int64_t n, unsigned variant, rp_tensor **in) {
    for (int k = 0; k < s->n_in; k++) {
        ref_value r = sample_values(&s->in[k], swept, n, variant * 31 + (unsigned)k);
        in[k] = ref_from_values(r.dtype, r.v, r.n, r.size, r.ndim);
    }
    ref_reset();
}

/* ---- attributes */

static int64_t number(const char *text, const char **end, int64_t n) {
    if (*text == 'n') {
        *end = text + 1;
        return n;
    }
    char *stop;
    int64_t v = strtoll(text, &stop, 10);
    if (stop == text) fail_msg("'%s' is no number of a sample", text);
    *end = stop;
    return v;
}

static rp_scalar scalar(const char *text, int64_t n) {
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return rp_bool(*text == 't');
    if (strpbrk(text, ".e") || strcmp(text + (*text == '-'), "inf") == 0) return rp_f64(strtod(text, NULL));
    return rp_i64(number(text, &text, n));
}

static rp_dtype named(const char *text) {
    for (int i = 0; i < SAMPLE_TYPES; i++)
        if (strcmp(rp_dtype_name(ref_types[i]), text) == 0) return ref_types[i];
    fail_msg("'%s' is no dtype of a sample", text);
    return RP_DTYPE_NONE;
}

static void parse_attr(const rp__param *p, const char *word, int64_t n, rp_attr *a, int64_t *ints) {
    a->kind = (rp_attr_kind)p->attr_kind;
    switch (a->kind) {
    case RP_ATTR_INT: a->v.i = number(word, &word, n); break;
    case RP_ATTR_FLOAT: a->v.f = strtod(word, NULL); break;
    case RP_ATTR_BOOL: a->v.b = *word == 't'; break;
    case RP_ATTR_SCALAR: a->v.scalar = scalar(word, n); break;
    case RP_ATTR_DTYPE: a->v.dtype = named(word); break;
    case RP_ATTR_STRING: a->v.string = word; break;
    case RP_ATTR_INTS:
        a->v.ints = ints;
        if (*word != '[')
            ints[a->n++] = number(word, &word, n);
        else
            for (word++; *word != ']' && a->n < SAMPLE_INTS; word += *word == ',')
                ints[a->n++] = number(word, &word, n);
        break;
    case RP_ATTR_FLOATS: {
        double *floats = (double *)(void *)ints;
        char *end;
        for (word++; *word != ']'; word = *end == ',' ? end + 1 : end) floats[a->n++] = strtod(word, &end);
        a->v.floats = floats;
        break;
    }
    default: fail_msg("a sample gives a %s", p->name);
    }
}

size_t sample_attrs(const sample *s, int64_t n, rp_attr *attrs, int64_t (*ints)[SAMPLE_INTS]) {
    size_t k = 0;
    for (unsigned i = 0; i < s->op->schema.n_params; i++) {
        const rp__param *p = &s->op->schema.params[i];
        if (p->kind != RP__PARAM_ATTR) continue;
        const char *word = s->word[k];
        rp_attr *a = &attrs[k];
        memset(a, 0, sizeof *a);
        if (strcmp(word, "none") == 0 || (!*word && p->has_default)) {
            *a = *word ? rp__param_none(p) : rp__param_default(p);
            if (a->kind == RP_ATTR_INTS && a->v.ints) { /* the list of this call, which may be spoiled */
                memcpy(ints[k], a->v.ints, a->n * sizeof **ints);
                a->v.ints = ints[k];
            }
        } else {
            if (!*word) fail_msg("%s: no %s in '%s'", s->op->name, p->name, s->text);
            parse_attr(p, word, n, a, ints[k]);
        }
        k++;
    }
    return k;
}

/* ---- calls */

/* Its result is what it writes: not looked at twice. */
static bool returns_written(const sample *s) { return s->op->flags & RP_OP_INPLACE && s->op->schema.n_outs; }

size_t sample_outs(const sample *s) {
    size_t n = s->op->schema.n_outs;
    for (int k = 0; k < s->n_in && !returns_written(s); k++) n += s->in[k].written;
    return n;
}

rp_status sample_call_on(const sample *s, rp_tensor *const *in, rp_tensor **out) {
    rp_attr attrs[SAMPLE_ATTRS];
    int64_t ints[SAMPLE_ATTRS][SAMPLE_INTS], n = SAMPLE_N;
    rp_tensor *args[SAMPLE_IN] = {NULL};
    for (int k = 0; k < s->n_in; k++) {
        if (s->sized && s->in[k].n_dim >= 0) n = rp_size(in[k], s->in[k].n_dim);
        if (s->place[k] >= 0) args[s->place[k]] = in[k];
    }
    size_t n_attrs = sample_attrs(s, n, attrs, ints), n_out = s->op->schema.n_outs;
    rp_status status = rp_op_call(s->op->name, args, (size_t)s->n_args, attrs, n_attrs, out, n_out);
    for (int k = 0; k < s->n_in && !returns_written(s); k++)
        if (s->in[k].written) out[n_out++] = status == RP_OK ? in[k] : out[0];
    if (status == RP_OK && s->row->flags & SAMPLE_UNWRITTEN) (void)rp_fill_(out[0], rp_f64(1.5));
    return status;
}

rp_status sample_call(const sample *s, rp_tensor *const *in, rp_tensor **out) {
    rp_tensor *own[SAMPLE_IN + 1];
    for (int k = 0; k < s->n_in; k++)
        own[k] = !s->in[k].written ? in[k] : rp_clone(s->in[k].constant ? rp_detach(in[k]) : in[k]);
    return sample_call_on(s, own, out);
}
