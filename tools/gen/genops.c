/* Build-time program: reads the op table (ops.def is compiled in) and writes what is derived from it, so that no fact about an
   op is written twice:
     INCLUDE_DIR/reprise_ops.h  public prototypes and call-site macros
     GEN_DIR/ops_rules.inc      declarations of all rules that rows name (src/ops/rules.h)
     GEN_DIR/ops_table.inc      the rows of the table with parsed schemas (src/ops/table.c)
     GEN_DIR/ops_calls.inc      definitions of the public functions (src/ops/calls.c)
   It links schema.c and nothing else of the library. usage: genops INCLUDE_DIR GEN_DIR */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

typedef struct row {
    const char *name, *schema_text, *lowering, *rule, *infer, *vjp, *functional, *doc;
    uint32_t saves, flags;
    rp__schema schema;
} row;

static row rows[] = {
#define RP_OP(name_, schema_, lowering_, rule_, infer_, vjp_, functional_, saves_, flags_, doc_)                       \
    {.name = #name_,                                                                                                   \
     .schema_text = schema_,                                                                                           \
     .lowering = #lowering_,                                                                                           \
     .rule = #rule_,                                                                                                   \
     .infer = #infer_,                                                                                                 \
     .vjp = #vjp_,                                                                                                     \
     .functional = functional_,                                                                                        \
     .saves = saves_,                                                                                                  \
     .flags = flags_,                                                                                                  \
     .doc = doc_},
#include "ops/ops.def"
#undef RP_OP
};
enum { ROWS = sizeof rows / sizeof *rows };

/* The only function of the library that schema.c calls. */
rp_status rp__fail(rp_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("genops: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return status;
}

static void die(const char *what, const char *which) {
    fprintf(stderr, "genops: %s: %s\n", what, which);
    exit(1);
}

/* Words that a parameter may not have in C or C++, and names that the generated code uses itself. */
static void check_name(const char *name, const char *op) {
    static const char *const taken[] = {
        "alignas", "alignof",  "and",       "asm",      "auto",     "bool",      "break",      "case",     "catch",
        "char",    "class",    "const",     "continue", "default",  "delete",    "do",         "double",   "else",
        "enum",    "explicit", "export",    "extern",   "false",    "float",     "for",        "friend",   "goto",
        "if",      "inline",   "int",       "long",     "mutable",  "namespace", "new",        "not",      "operator",
        "or",      "private",  "protected", "public",   "register", "restrict",  "return",     "short",    "signed",
        "sizeof",  "static",   "struct",    "switch",   "template", "this",      "throw",      "true",     "try",
        "typedef", "typename", "union",     "unsigned", "using",    "virtual",   "void",       "volatile", "while",
        "xor",     "site",     "call",      "in",       "out",      "attrs",     "list_begin", "errno",    "stdin",
        "stdout",  "stderr",   "unix",      "linux",    "I",        "NULL",
    };
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        if (strcmp(taken[i], name) == 0) {
            fprintf(stderr, "genops: '%s' cannot be a parameter name of %s\n", name, op);
            exit(1);
        }
    }
}

static FILE *create(const char *dir, const char *file) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path) die("path too long", dir);
    FILE *f = fopen(path, "w");
    if (!f) die("cannot write", path);
    return f;
}

static void finish(FILE *f, const char *file) {
    if (ferror(f) | fclose(f)) die("cannot write", file);
}

static bool is_rule(const char *rule) { return strcmp(rule, "NULL") != 0; }

/* ---- public prototypes */

static void write_param(FILE *f, const rp__param *p) {
    switch ((rp__param_kind)p->kind) {
    case RP__PARAM_TENSOR:
    case RP__PARAM_OPTIONAL_TENSOR: fprintf(f, ", rp_tensor *%s", p->name); return;
    case RP__PARAM_TENSORS: fprintf(f, ", rp_tensor *const *%s, size_t n_%s", p->name, p->name); return;
    case RP__PARAM_ATTR: break;
    }
    switch ((rp_attr_kind)p->attr_kind) {
    case RP_ATTR_INT: fprintf(f, ", int64_t %s", p->name); break;
    case RP_ATTR_FLOAT: fprintf(f, ", double %s", p->name); break;
    case RP_ATTR_BOOL: fprintf(f, ", bool %s", p->name); break;
    case RP_ATTR_SCALAR: fprintf(f, ", rp_scalar %s", p->name); break;
    case RP_ATTR_DTYPE: fprintf(f, ", rp_dtype %s", p->name); break;
    case RP_ATTR_INTS: fprintf(f, ", const int64_t *%s, size_t n_%s", p->name, p->name); break;
    case RP_ATTR_GENERATOR: fprintf(f, ", rp_generator *%s", p->name); break;
    case RP_ATTR_STRING: fprintf(f, ", const char *%s", p->name); break;
    }
}

/* ", rp_tensor *self, ...": everything after the site, or "(rp_tensor *self, ...)" without it. */
static void write_params(FILE *f, const row *r, bool site) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *t = open_memstream(&text, &bytes);
    if (!t) die("out of memory", r->name);
    for (unsigned i = 0; i < r->schema.n_params; i++) write_param(t, &r->schema.params[i]);
    for (unsigned k = 1; k < r->schema.n_outs; k++) fprintf(t, ", rp_tensor **out%u", k);
    finish(t, r->name);
    fprintf(f, "(%s%s)", site ? "const char *site" : "", site ? text : text + 2);
    free(text);
}

static const char *result_type(const row *r) { return r->schema.n_outs ? "rp_tensor *" : "rp_status "; }

static void write_header(const char *dir) {
    FILE *f = create(dir, "reprise_ops.h");
    fputs(
        "/* Generated from src/ops/ops.def: the ops. Included by reprise.h.\n"
        "   A parameter that the schema gives a default is passed all the same; NULL stands for an absent Tensor? or Generator?,\n"
        "   INT64_MIN for None of int?, RP_DTYPE_NONE for dtype none. The first result is returned, further ones go through the\n"
        "   trailing pointers (NULL: not wanted). */\n"
        "#ifndef REPRISE_OPS_H\n#define REPRISE_OPS_H\n\n#include \"reprise.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n",
        f);
    for (size_t i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        fprintf(f, "\n/* %s\n   %s */\n", r->doc, r->schema_text);
        fprintf(f, "RP_API %srp_%s_at", result_type(r), r->name);
        write_params(f, r, true);
        fprintf(f, ";\nRP_API %srp_%s", result_type(r), r->name);
        write_params(f, r, false);
        fprintf(f, ";\n#define rp_%s(...) rp_%s_at(RP_HERE, __VA_ARGS__)\n", r->name, r->name);
    }
    fputs("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n", f);
    finish(f, "reprise_ops.h");
}

/* ---- rules */

static void write_rule(FILE *f, const char *type, const char *rule, const char **seen, size_t *n_seen) {
    if (!is_rule(rule)) return;
    for (size_t i = 0; i < *n_seen; i++) {
        if (strcmp(seen[i], rule) == 0) return;
    }
    seen[(*n_seen)++] = rule;
    fprintf(f, "%s %s;\n", type, rule);
}

/* Which member of rp__op.rule a lowering uses, and the type of the function. */
static void rule_of(const row *r, const char **member, const char **type) {
    static const char *const kinds[][3] = {
        {"RP__POINTWISE", "lower", "rp__lower_fn"},   {"RP__ROWS", "lower", "rp__lower_fn"},
        {"RP__INDEXED", "lower", "rp__lower_fn"},     {"RP__VIEW", "view", "rp__view_fn"},
        {"RP__LIBRARY", "run", "rp__run_fn"},         {"RP__HOST", "run", "rp__run_fn"},
        {"RP__COMPOSITE", "expand", "rp__expand_fn"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i][0], r->lowering) == 0) {
            *member = kinds[i][1];
            *type = kinds[i][2];
            return;
        }
    }
    die("unknown lowering", r->schema_text);
}

static void write_rules(const char *dir) {
    FILE *f = create(dir, "ops_rules.inc");
    const char *seen[3 * ROWS], *member, *type;
    size_t n_seen = 0;
    fputs("/* Generated: every rule that a row of ops.def names. */\n", f);
    for (size_t i = 0; i < ROWS; i++) {
        rule_of(&rows[i], &member, &type);
        write_rule(f, type, rows[i].rule, seen, &n_seen);
        write_rule(f, "rp__infer_fn", rows[i].infer, seen, &n_seen);
        write_rule(f, "rp__vjp_fn", rows[i].vjp, seen, &n_seen);
    }
    finish(f, "ops_rules.inc");
}

/* ---- table */

static void write_i64(FILE *f, int64_t v) {
    if (v == INT64_MIN)
        fputs("INT64_MIN", f);
    else
        fprintf(f, "INT64_C(%" PRId64 ")", v);
}

static void write_default(FILE *f, const rp__param *p) {
    const rp_attr *a = &p->value;
    fprintf(f, ".value = {.kind = (rp_attr_kind)%d, .n = %zu, ", (int)a->kind, a->n);
    switch (a->kind) {
    case RP_ATTR_INT:
        fputs(".v.i = ", f);
        write_i64(f, a->v.i);
        break;
    case RP_ATTR_FLOAT: fprintf(f, ".v.f = %a", a->v.f); break;
    case RP_ATTR_BOOL: fprintf(f, ".v.b = %d", a->v.b); break;
    case RP_ATTR_DTYPE: fprintf(f, ".v.dtype = (rp_dtype)%d", (int)a->v.dtype); break;
    case RP_ATTR_SCALAR:
        if (a->v.scalar.kind == RP_SCALAR_F64)
            fprintf(f, ".v.scalar = {.kind = RP_SCALAR_F64, .v.f = %a}", a->v.scalar.v.f);
        else if (a->v.scalar.kind == RP_SCALAR_BOOL)
            fprintf(f, ".v.scalar = {.kind = RP_SCALAR_BOOL, .v.b = %d}", a->v.scalar.v.b);
        else {
            fputs(".v.scalar = {.kind = RP_SCALAR_I64, .v.i = ", f);
            write_i64(f, a->v.scalar.v.i);
            fputs("}", f);
        }
        break;
    case RP_ATTR_INTS: fputs(".v.ints = NULL", f); break;
    case RP_ATTR_GENERATOR: fputs(".v.generator = NULL", f); break;
    case RP_ATTR_STRING: fputs(".v.string = NULL", f); break;
    }
    fputs("}", f);
}

static void write_schema(FILE *f, const rp__schema *s) {
    fprintf(f,
            "{.name = \"%s\", .n_params = %u, .n_tensor_params = %u, .n_attrs = %u, .n_outs = %u,\n      .params = {",
            s->name, s->n_params, s->n_tensor_params, s->n_attrs, s->n_outs);
    for (unsigned i = 0; i < s->n_params; i++) {
        const rp__param *p = &s->params[i];
        fprintf(
            f,
            "{.name = \"%s\", .kind = %u, .attr_kind = %u, .optional_int = %d, .symbolic = %d, .written = %d, .aliased = %d, .alias = %d, ",
            p->name, p->kind, p->attr_kind, p->optional_int, p->symbolic, p->written, p->aliased, p->alias);
        fprintf(f, ".has_default = %d, ", p->has_default);
        if (p->value.kind == RP_ATTR_INTS && p->value.n > 0) {
            fputs(".default_ints = {", f);
            for (size_t k = 0; k < p->value.n; k++) {
                write_i64(f, p->default_ints[k]);
                fputs(", ", f);
            }
            fputs("}, ", f);
        }
        write_default(f, p);
        fputs("},\n                 ", f);
    }
    fputs("},\n      .out_alias = {", f);
    for (unsigned k = 0; k < RP__MAX_OUTS; k++) fprintf(f, "%d, ", s->out_alias[k]);
    fputs("}, .out_written = {", f);
    for (unsigned k = 0; k < RP__MAX_OUTS; k++) fprintf(f, "%d, ", s->out_written[k]);
    fputs("}}", f);
}

static void write_table(const char *dir) {
    FILE *f = create(dir, "ops_table.inc");
    fputs("/* Generated: initialisers of the op table, in the order of ops.def. */\n", f);
    for (size_t i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        const char *member, *type;
        rule_of(r, &member, &type);
        fprintf(
            f,
            "{.name = \"%s\", .schema_text = \"%s\",\n .doc = \"%s\",\n .lowering = %s, .rule = {.%s = %s}, .infer = %s, .vjp = %s,\n",
            r->name, r->schema_text, r->doc, r->lowering, member, r->rule, r->infer, r->vjp);
        fprintf(f, " .functional = \"%s\", ", r->functional);
        if (*r->functional) fprintf(f, ".functional_op = &rp__ops[RP__OP_%s], ", r->functional);
        fprintf(f, ".saves = %uu, .flags = %uu, .index = %zu,\n .schema = ", (unsigned)r->saves, (unsigned)r->flags, i);
        write_schema(f, &r->schema);
        fputs("},\n", f);
    }
    finish(f, "ops_table.inc");
}

/* ---- definitions: each packs an rp__call on the stack and dispatches it */

static void write_attr(FILE *f, const rp__param *p) {
    static const char *const kinds[] = {"INT", "FLOAT", "BOOL", "SCALAR", "DTYPE", "INTS", "GENERATOR", "STRING"};
    static const char *const members[] = {"i", "f", "b", "scalar", "dtype", "ints", "generator", "string"};
    fprintf(f, "{.kind = RP_ATTR_%s, .v.%s = %s", kinds[p->attr_kind], members[p->attr_kind], p->name);
    if (p->attr_kind == RP_ATTR_INTS) fprintf(f, ", .n = n_%s", p->name);
    fputs("},\n                              ", f);
}

static void write_call(FILE *f, const row *r) {
    const rp__schema *s = &r->schema;
    unsigned lists = 0;
    for (unsigned i = 0; i < s->n_params; i++) lists += s->params[i].kind == RP__PARAM_TENSORS;

    fprintf(f, "\n%srp_%s_at", result_type(r), r->name);
    write_params(f, r, true);
    fputs("\n{\n", f);

    if (s->n_attrs > 0) {
        fprintf(f, "    const rp_attr attrs[%u] = {", s->n_attrs);
        for (unsigned i = 0; i < s->n_params; i++) {
            if (s->params[i].kind == RP__PARAM_ATTR) write_attr(f, &s->params[i]);
        }
        fputs("};\n", f);
    }
    if (s->n_outs > 0) fprintf(f, "    rp_tensor *out[%u];\n", s->n_outs);

    fprintf(
        f,
        "    rp__call call = {.op = &rp__ops[RP__OP_%s], .site = site, .attrs = %s, .n_attrs = %u, .out = %s, .n_out = %u};\n",
        r->name, s->n_attrs ? "attrs" : "NULL", s->n_attrs, s->n_outs ? "out" : "NULL", s->n_outs);

    if (lists == 0 && s->n_tensor_params > 0) {
        fputs("    rp_tensor *const in[] = {", f);
        for (unsigned i = 0, n = 0; i < s->n_params; i++) {
            if (s->params[i].kind != RP__PARAM_ATTR) fprintf(f, "%s%s", n++ ? ", " : "", s->params[i].name);
        }
        fprintf(f, "};\n    call.in = in;\n    call.n_in = %u;\n", s->n_tensor_params);
        for (unsigned k = 1; k <= s->n_tensor_params; k++) fprintf(f, "    call.list_begin[%u] = %u;\n", k, k);
    } else if (lists > 0) {
        fputs("    rp_tensor *in[RP__MAX_IN];\n    call.in = in;\n    bool fits = true;\n", f);
        for (unsigned i = 0, n = 0; i < s->n_params; i++) {
            const rp__param *p = &s->params[i];
            if (p->kind == RP__PARAM_ATTR) continue;
            if (p->kind == RP__PARAM_TENSORS)
                fprintf(f, "    fits = fits && rp__call_add_list(&call, in, %u, %s, n_%s);\n", n, p->name, p->name);
            else
                fprintf(f, "    fits = fits && rp__call_add_list(&call, in, %u, &%s, 1);\n", n, p->name);
            n++;
        }
        fputs("    rp_status status = fits ? rp__dispatch(&call) : rp__call_too_long(&call);\n", f);
    }
    if (lists == 0)
        fprintf(f, "    %srp__dispatch(&call);\n", s->n_outs ? "(void)" : "rp_status status = ");
    else if (s->n_outs)
        fputs("    (void)status;\n", f);
    for (unsigned k = 1; k < s->n_outs; k++) fprintf(f, "    if (out%u)\n        *out%u = out[%u];\n", k, k, k);
    fputs(s->n_outs ? "    return out[0];\n}\n" : "    return status;\n}\n", f);

    /* The plain function: no call site. */
    fprintf(f, "%s(rp_%s)", result_type(r), r->name);
    write_params(f, r, false);
    fprintf(f, "\n{\n    return rp_%s_at(NULL", r->name);
    for (unsigned i = 0; i < s->n_params; i++) {
        const rp__param *p = &s->params[i];
        fprintf(f, ", %s", p->name);
        if (p->kind == RP__PARAM_TENSORS || (p->kind == RP__PARAM_ATTR && p->attr_kind == RP_ATTR_INTS))
            fprintf(f, ", n_%s", p->name);
    }
    for (unsigned k = 1; k < s->n_outs; k++) fprintf(f, ", out%u", k);
    fputs(");\n}\n", f);
}

static void write_calls(const char *dir) {
    FILE *f = create(dir, "ops_calls.inc");
    fputs("/* Generated: the public functions of reprise_ops.h. */\n", f);
    for (size_t i = 0; i < ROWS; i++) write_call(f, &rows[i]);
    finish(f, "ops_calls.inc");
}

int main(int argc, char **argv) {
    if (argc != 3) die("usage", "genops INCLUDE_DIR GEN_DIR");
    for (size_t i = 0; i < ROWS; i++) {
        row *r = &rows[i];
        if (rp__schema_parse(r->schema_text, &r->schema) != RP_OK) return 1;
        if (strcmp(r->schema.name, r->name) != 0) die("the name of the row and of the schema differ", r->schema_text);
        if (r->schema.n_params == 0) die("an op needs a parameter (its macro passes at least one argument)", r->name);
        for (unsigned k = 0; k < r->schema.n_params; k++) check_name(r->schema.params[k].name, r->name);
        for (size_t k = 0; k < i; k++) {
            if (strcmp(rows[k].name, r->name) == 0) die("two rows of one name", r->name);
        }
    }
    write_header(argv[1]);
    write_rules(argv[2]);
    write_table(argv[2]);
    write_calls(argv[2]);
    return 0;
}
