/* Build-time program: reads the op table and writes what is derived from it, so that no fact about an op is written twice:
     INCLUDE_DIR/reprise_ops.h  public prototypes and call-site macros
     GEN_DIR/ops_private.inc    the same of private ops (src/ops/private.h)
     GEN_DIR/ops_rules.inc      declarations of all rules that rows use (src/ops/rules.h)
     GEN_DIR/uses/FILE.calls    of a source of the library: prototypes and macros of the ops that it names
     GEN_DIR/uses/FILE.rules    of a source of src/ops: declarations of the rules that it names
     GEN_DIR/ops_table.inc      the rows of the table with parsed schemas (src/ops/table.c)
     GEN_DIR/ops_calls.inc      definitions of the public functions (src/ops/calls.c)
   A file whose text stays the same is not touched, so that a new row compiles again what names it and nothing else.

   The table is src/ops/FAMILY.def, a family a file; src/ops/ops.h says what a row may say. Rules are found by name: the program
   reads the definitions in src/ops/FAMILY.c. A row whose rule is missing, or a rule that no row uses, ends the build.

   It links schema.c and nothing else of the library. usage: genops INCLUDE_DIR GEN_DIR SRC_DIR (TABLE.def | SOURCE)..., with all
   tables, sources and headers below SRC_DIR that name rules or ops. */
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

enum { MAX_ROWS = 2048, MAX_RULES = 8192, MAX_SOURCES = 1024, TEXT = 1024 };

typedef struct row {
    const char *file;
    unsigned line; /* where it is written */
    const char *name, *schema_text, *lowering, *rule, *prim, *infer, *vjp, *functional, *doc, *format;
    uint32_t saves, flags;
    bool inplace_form, scalar_form, scatter_form; /* .forms */
    const char *inverse;                          /* of a view and its SCATTER form: the other one */
    const char *scalar_schema; /* of the Scalar form, where its arguments differ in more than the one */
    uint32_t scalar_saves;
    unsigned scalar_operand; /* of a Scalar form: the operand that its first attribute stands for */
    rp__schema schema;
} row;

static row rows[MAX_ROWS];
static size_t ROWS;

/* A definition of a rule in a source: "infer", "add" of rp__infer_add. */
typedef struct rule {
    const char *kind, *name, *file;
    bool used;
} rule;
static rule rules[MAX_RULES];
static size_t n_rules;

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

static void die_row(const row *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%u: %s: ", r->file, r->line, r->name ? r->name : "a row");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* Text that lives as long as the program. */
static const char *keep(const char *text, size_t n) {
    char *copy = malloc(n + 1);
    if (!copy) die("out of memory", text);
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

static const char *keep_format(const char *format, ...) {
    char text[4 * TEXT];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text) die("a text is too long", format);
    return keep(text, (size_t)n);
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) die("cannot read", path);
    size_t room = 1 << 16, n = 0;
    char *text = malloc(room);
    for (size_t got; text && (got = fread(text + n, 1, room - n - 1, f)) > 0;) {
        n += got;
        if (room - n < 2) text = realloc(text, room *= 2);
    }
    if (!text || ferror(f) || fclose(f)) die("cannot read", path);
    text[n] = 0;
    return text;
}

/* Words that a parameter may not have in C or C++, and names that the generated code uses itself. */
static void check_name(const char *name, const row *r) {
    static const char *const taken[] = {
        "alignas",   "alignof",     "and",    "asm",      "auto",     "bool",       "break",     "case",
        "catch",     "char",        "class",  "const",    "continue", "default",    "delete",    "do",
        "double",    "else",        "enum",   "explicit", "export",   "extern",     "false",     "float",
        "for",       "friend",      "goto",   "if",       "inline",   "int",        "long",      "mutable",
        "namespace", "new",         "not",    "operator", "or",       "private",    "protected", "public",
        "register",  "restrict",    "return", "short",    "signed",   "sizeof",     "static",    "struct",
        "switch",    "template",    "this",   "throw",    "true",     "try",        "typedef",   "typename",
        "union",     "unsigned",    "using",  "virtual",  "void",     "volatile",   "while",     "xor",
        "site",      "call",        "in",     "out",      "attrs",    "list_begin", "errno",     "stdin",
        "stdout",    "stderr",      "unix",   "linux",    "I",        "NULL",       "options",   "given",
        "fits",      "struct_size",
    };
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        if (strcmp(taken[i], name) == 0) die_row(r, "'%s' cannot be a parameter name", name);
    }
}

/* ---- reading rows: RP_OP(name, "schema", LOWERING, .field = value, ..., "doc") */

typedef struct cursor {
    const char *file, *at;
    unsigned line;
} cursor;

static void skip(cursor *c) {
    for (;;) {
        if (*c->at == '\n') c->line++;
        if (isspace((unsigned char)*c->at)) {
            c->at++;
        } else if (c->at[0] == '/' && c->at[1] == '*') {
            const char *end = strstr(c->at + 2, "*/");
            if (!end) die("a comment does not end", c->file);
            for (; c->at < end; c->at++) c->line += *c->at == '\n';
            c->at += 2;
        } else {
            return;
        }
    }
}

static void expect(cursor *c, const row *r, char what) {
    skip(c);
    if (*c->at != what) die_row(r, "expected '%c' before '%.20s'", what, c->at);
    c->at++;
}

static bool accept(cursor *c, char what) {
    skip(c);
    if (*c->at != what) return false;
    c->at++;
    return true;
}

static const char *word(cursor *c, const row *r) {
    skip(c);
    size_t n = 0;
    while (isalnum((unsigned char)c->at[n]) || c->at[n] == '_') n++;
    if (n == 0) die_row(r, "expected a word before '%.20s'", c->at);
    const char *text = keep(c->at, n);
    c->at += n;
    return text;
}

/* One string of adjacent literals, with the escapes as they are written. */
static const char *string(cursor *c, const row *r) {
    char text[4 * TEXT];
    size_t n = 0;
    do {
        expect(c, r, '"');
        for (; *c->at && *c->at != '"'; c->at++) {
            if (*c->at == '\n' || n + 3 > sizeof text) die_row(r, "a string does not end");
            if (*c->at == '\\') text[n++] = *c->at++;
            text[n++] = *c->at;
        }
        expect(c, r, '"');
        skip(c);
    } while (*c->at == '"');
    return keep(text, n);
}

/* IN(0) | OUT(1) | CROSS, INPLACE | SCALAR, ...: words joined by |, each by its bits. */
static uint32_t bits(cursor *c, const row *r, uint32_t (*bit)(const char *word, unsigned long k)) {
    uint32_t all = 0;
    do {
        const char *name = word(c, r);
        unsigned long k = 0;
        if (accept(c, '(')) {
            char *end;
            skip(c);
            k = strtoul(c->at, &end, 10);
            if (end == c->at || k > 14) die_row(r, "expected a number from 0 to 14 before '%.20s'", c->at);
            c->at = end;
            expect(c, r, ')');
        }
        uint32_t one = bit(name, k);
        if (!one) die_row(r, "no field takes '%s' here", name);
        all |= one;
    } while (accept(c, '|'));
    return all;
}

static uint32_t save_bit(const char *name, unsigned long k) {
    if (strcmp(name, "IN") == 0) return RP__SAVE_IN(k);
    if (strcmp(name, "OUT") == 0) return RP__SAVE_OUT(k);
    return strcmp(name, "CROSS") == 0 ? RP__SAVE_CROSS : 0;
}

static uint32_t flag_bit(const char *name, unsigned long k) {
    (void)k;
    if (strcmp(name, "RANDOM") == 0) return RP_OP_RANDOM;
    if (strcmp(name, "SYNC") == 0) return RP_OP_SYNC;
    if (strcmp(name, "NONDETERMINISTIC") == 0) return RP_OP_NONDETERMINISTIC;
    if (strcmp(name, "PRIVATE") == 0) return RP__OP_PRIVATE;
    if (strcmp(name, "LAUNCHED") == 0) return RP__OP_LAUNCHED;
    return strcmp(name, "DATA_SIZE") == 0 ? RP__OP_DATA_SIZE : 0;
}

enum { FORM_INPLACE = 1, FORM_SCALAR = 2, FORM_SCATTER = 4 };
static uint32_t form_bit(const char *name, unsigned long k) {
    (void)k;
    return strcmp(name, "INPLACE") == 0   ? FORM_INPLACE
           : strcmp(name, "SCALAR") == 0  ? FORM_SCALAR
           : strcmp(name, "SCATTER") == 0 ? FORM_SCATTER
                                          : 0;
}

static void read_field(cursor *c, row *r) {
    const char *field = word(c, r);
    expect(c, r, '=');
    if (strcmp(field, "rule") == 0)
        r->rule = word(c, r);
    else if (strcmp(field, "prim") == 0) {
        r->prim = word(c, r);
        r->rule = "prim";
    } else if (strcmp(field, "infer") == 0)
        r->infer = word(c, r);
    else if (strcmp(field, "vjp") == 0)
        r->vjp = word(c, r);
    else if (strcmp(field, "format") == 0)
        r->format = word(c, r);
    else if (strcmp(field, "saves") == 0)
        r->saves = bits(c, r, save_bit);
    else if (strcmp(field, "scalar_saves") == 0)
        r->scalar_saves = bits(c, r, save_bit);
    else if (strcmp(field, "flags") == 0)
        r->flags = bits(c, r, flag_bit);
    else if (strcmp(field, "scalar") == 0)
        r->scalar_schema = string(c, r);
    else if (strcmp(field, "forms") == 0) {
        uint32_t forms = bits(c, r, form_bit);
        r->inplace_form = forms & FORM_INPLACE;
        r->scalar_form = forms & FORM_SCALAR;
        r->scatter_form = forms & FORM_SCATTER;
    } else
        die_row(r, "a row has no field '%s'", field);
}

static row *new_row(void) {
    if (ROWS == MAX_ROWS) die("too many rows", rows[ROWS - 1].name);
    return &rows[ROWS++];
}

static void read_table(const char *path) {
    cursor c = {path, read_file(path), 1};
    for (skip(&c); *c.at; skip(&c)) {
        row *r = new_row();
        r->file = path;
        r->line = c.line;
        if (strcmp(word(&c, r), "RP_OP") != 0) die_row(r, "a table holds RP_OP(...) and comments");
        expect(&c, r, '(');
        r->name = word(&c, r);
        expect(&c, r, ',');
        r->schema_text = string(&c, r);
        expect(&c, r, ',');
        r->lowering = word(&c, r);
        while (accept(&c, ',')) {
            skip(&c);
            if (r->doc) die_row(r, "the description comes last");
            if (accept(&c, '.'))
                read_field(&c, r);
            else
                r->doc = string(&c, r);
        }
        expect(&c, r, ')');
        if (!r->doc || !*r->doc) die_row(r, "the description is missing");
    }
}

/* ---- reading rules: definitions at the start of a line, with the parameters as every rule names them */

static void read_rules(const char *path, char *text) {
    static const char *const kinds[][2] = {
        {"infer", "(const rp__call *call, rp__meta *out)"},
        {"lower", "(rp__lower *lw)"},
        {"view", "(const rp__call *call, rp__view *out)"},
        {"run", "(const rp__call *call)"},
        {"expand", "(const rp__call *call)"},
        {"product", "(const rp__call *call, rp__product *p)"},
        {"vjp", "(const rp__vjp *g)"},
    };
    /* Definitions that a macro makes of its first argument: RP__SLOPE(name, ...) is rp__vjp_name. */
    static const char *const macros[][2] = {
        {"RP__SLOPE(", "vjp"},          {"RP__GRAD(", "vjp"},         {"RP__SLOPE_WITH(", "vjp"},
        {"RP__GRAD_WITH(", "vjp"},      {"RP__UNARY_WITH(", "lower"}, {"RP__SLOPES(", "vjp"},
        {"RP__UNARY(", "lower"},        {"RP__UNARY_SAME(", "lower"}, {"RP__BINARY(", "lower"},
        {"RP__BINARY_FLOAT(", "lower"}, {"RP__EXPAND(", "expand"}};
    for (char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        const char *at = strncmp(line, "void rp__", 9) == 0         ? line + 9
                         : strncmp(line, "rp_status rp__", 14) == 0 ? line + 14
                                                                    : NULL;
        for (size_t k = 0; k < sizeof macros / sizeof *macros; k++) {
            size_t n = strlen(macros[k][0]);
            if (strncmp(line, macros[k][0], n) != 0) continue;
            if (n_rules == MAX_RULES) die("too many rules", path);
            rules[n_rules++] = (rule){macros[k][1], keep(line + n, strcspn(line + n, ",")), path, false};
        }
        if (!at) continue;
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            size_t n = strlen(kinds[k][0]), m = n + 1, p = strlen(kinds[k][1]);
            if (strncmp(at, kinds[k][0], n) != 0 || at[n] != '_') continue;
            while (isalnum((unsigned char)at[m]) || at[m] == '_') m++;
            if (strncmp(at + m, kinds[k][1], p) != 0 || strncmp(at + m + p, " {", 2) != 0) continue;
            if (n_rules == MAX_RULES) die("too many rules", path);
            rules[n_rules++] = (rule){kinds[k][0], keep(at + n + 1, m - n - 1), path, false};
        }
    }
}

/* The rule rp__KIND_NAME; NULL: no source defines it. */
static rule *find_rule(const char *kind, const char *name) {
    for (size_t i = 0; i < n_rules; i++) {
        if (strcmp(rules[i].kind, kind) == 0 && strcmp(rules[i].name, name) == 0) return &rules[i];
    }
    return NULL;
}

/* What a row uses: the rule that it names, else the one of its own name. "NULL": none, which only `optional` allows. */
static const char *use_rule(const row *r, const char *kind, const char *named, const char *own, bool optional) {
    const char *name = named ? named : own;
    if (named && strcmp(named, "NONE") == 0) {
        if (find_rule(kind, own)) die_row(r, "says .%s = NONE, and rp__%s_%s is defined", kind, kind, own);
        return "NULL";
    }
    rule *found = find_rule(kind, name);
    if (!found && optional && !named) return "NULL";
    if (!found)
        die_row(r, "src/ops defines no rp__%s_%s; a row without names another (.%s = NAME%s)", kind, name,
                strcmp(kind, "infer") == 0 || strcmp(kind, "vjp") == 0 ? kind : "rule",
                strcmp(kind, "vjp") == 0 ? ", or NONE: not differentiable" : "");
    found->used = true;
    return keep_format("rp__%s_%s", kind, name);
}

static const struct {
    const char *word, *lowering, *member, *type;
    bool infers, differentiates; /* has a type and shape rule, a derivative */
} kinds_of_lowering[] = {
    {"POINTWISE", "RP__POINTWISE", "lower", "rp__lower_fn", true, true},
    {"ROWS", "RP__ROWS", "lower", "rp__lower_fn", true, true},
    {"INDEXED", "RP__INDEXED", "lower", "rp__lower_fn", true, true},
    {"VIEW", "RP__VIEW", "view", "rp__view_fn", false, true},
    {"LIBRARY", "RP__LIBRARY", "run", "rp__run_fn", true, true},
    {"HOST", "RP__HOST", "run", "rp__run_fn", true, true},
    {"PRODUCT", "RP__PRODUCT", "product", "rp__product_fn", true, true},
    {"COMPOSITE", "RP__COMPOSITE", "expand", "rp__expand_fn", false, false},
};

static unsigned lowering_of(const row *r) {
    for (unsigned i = 0; i < sizeof kinds_of_lowering / sizeof *kinds_of_lowering; i++) {
        if (strcmp(kinds_of_lowering[i].word, r->lowering) == 0) return i;
    }
    die_row(r, "'%s' is no lowering", r->lowering);
    return 0;
}

/* The rules of a row, and what follows from its schema. */
static void complete(row *r) {
    if (rp__schema_parse(r->schema_text, &r->schema) != RP_OK) exit(1);
    if (strcmp(r->schema.name, r->name) != 0) die_row(r, "the schema has another name");
    if (r->schema.n_params == 0) die_row(r, "an op needs a parameter (its macro passes at least one argument)");
    for (unsigned k = 0; k < r->schema.n_params; k++) check_name(r->schema.params[k].name, r);
    for (const row *o = rows; o < r; o++) {
        if (strcmp(o->name, r->name) == 0) die_row(r, "there is a row of this name in %s", o->file);
    }
    bool writes = false;
    for (unsigned k = 0; k < r->schema.n_params; k++) writes = writes || r->schema.params[k].written;
    unsigned k = lowering_of(r);
    const char *member = kinds_of_lowering[k].member, *own = r->name;
    if (*r->functional || r->scalar_operand || r->inverse) return; /* a derived row has its rules */
    const bool view = strcmp(member, "view") == 0;
    if (r->scatter_form && !view) die_row(r, "only a view has a SCATTER form");
    if (writes) r->flags |= RP_OP_INPLACE;
    if (view) {
        r->flags |= RP_OP_VIEW;
        if (!r->vjp && !find_rule("vjp", own)) r->vjp = "any_view";
    }
    r->rule = use_rule(r, member, r->rule, own, false);
    if (!kinds_of_lowering[k].infers && r->infer) die_row(r, "%s ops have no type and shape rule", r->lowering);
    r->infer = kinds_of_lowering[k].infers ? use_rule(r, "infer", r->infer, own, false) : "NULL";
    if (!kinds_of_lowering[k].differentiates && r->vjp) die_row(r, "%s ops have no derivative", r->lowering);
    r->vjp = kinds_of_lowering[k].differentiates ? use_rule(r, "vjp", r->vjp, own, writes) : "NULL";
}

static void check_unused(void) {
    bool failed = false;
    for (size_t i = 0; i < n_rules; i++) {
        if (rules[i].used) continue;
        fprintf(stderr, "%s: no row uses rp__%s_%s\n", rules[i].file, rules[i].kind, rules[i].name);
        failed = true;
    }
    if (failed) exit(1);
}

/* ---- files that are written */

typedef struct output {
    FILE *f;
    char *text, path[4096];
    size_t bytes;
} output;
static output out_;

static FILE *create(const char *dir, const char *file) {
    if (snprintf(out_.path, sizeof out_.path, "%s/%s", dir, file) >= (int)sizeof out_.path) die("path too long", dir);
    out_.f = open_memstream(&out_.text, &out_.bytes);
    if (!out_.f) die("out of memory", file);
    return out_.f;
}

static void finish(FILE *f, const char *file) {
    if (ferror(f) | fclose(f)) die("out of memory", file);
}

/* Writes the file unless it has this text. */
static void publish(FILE *f) {
    finish(f, out_.path);
    FILE *old = fopen(out_.path, "rb");
    bool same = old != NULL;
    for (size_t i = 0; same && i < out_.bytes; i++) same = getc(old) == (unsigned char)out_.text[i];
    same = same && getc(old) == EOF;
    if (old) (void)fclose(old);
    if (!same) {
        FILE *new = fopen(out_.path, "wb");
        if (!new || fwrite(out_.text, 1, out_.bytes, new) != out_.bytes || fclose(new)) die("cannot write", out_.path);
    }
    free(out_.text);
}

/* ---- public prototypes */

static bool has_options(const row *r) {
    for (unsigned i = 0; i < r->schema.n_params; i++) {
        if (r->schema.params[i].keyword) return true;
    }
    return false;
}

/* The struct of an op's options; a form in place has that of the op that it is made from. */
static const char *options_of(const row *r) { return *r->functional ? r->functional : r->name; }

static bool is_list(const rp__param *p) {
    return p->kind == RP__PARAM_TENSORS ||
           (p->kind == RP__PARAM_ATTR && (p->attr_kind == RP_ATTR_INTS || p->attr_kind == RP_ATTR_FLOATS));
}

/* The C type of a parameter; among options one that has a value for "not given". */
static const char *c_type(const rp__param *p, bool option) {
    switch ((rp__param_kind)p->kind) {
    case RP__PARAM_TENSOR:
    case RP__PARAM_OPTIONAL_TENSOR: return "rp_tensor *";
    case RP__PARAM_TENSORS: return "rp_tensor *const *";
    case RP__PARAM_ATTR: break;
    }
    switch ((rp__param_type)p->type) {
    case RP__TYPE_FLOAT: return "rp_scalar ";
    case RP__TYPE_BOOL: return "rp_tristate ";
    case RP__TYPE_LAYOUT: return "rp_layout ";
    case RP__TYPE_DEVICE: return "const rp_device *";
    case RP__TYPE_MEMORY_FORMAT: return "rp_memory_format ";
    case RP__TYPE_PLAIN: break;
    }
    switch ((rp_attr_kind)p->attr_kind) {
    case RP_ATTR_INT: return option ? "rp_scalar " : "int64_t ";
    case RP_ATTR_FLOAT: return option ? "rp_scalar " : "double ";
    case RP_ATTR_BOOL: return option ? "rp_tristate " : "bool ";
    case RP_ATTR_SCALAR: return "rp_scalar ";
    case RP_ATTR_DTYPE: return "rp_dtype ";
    case RP_ATTR_INTS: return "const int64_t *";
    case RP_ATTR_FLOATS: return "const double *";
    case RP_ATTR_GENERATOR: return "rp_generator *";
    case RP_ATTR_STRING: return "const char *";
    case RP_ATTR_NONE: break;
    }
    return "";
}

static void write_param(FILE *f, const rp__param *p) {
    fprintf(f, ", %s%s", c_type(p, false), p->name);
    if (is_list(p)) fprintf(f, ", size_t n_%s", p->name);
}

static void write_options(FILE *f, const row *r) {
    if (!has_options(r) || *r->functional) return;
    fprintf(f, "typedef struct rp_%s_options {\n    size_t struct_size;\n", r->name);
    for (unsigned i = 0; i < r->schema.n_params; i++) {
        const rp__param *p = &r->schema.params[i];
        if (!p->keyword) continue;
        fprintf(f, "    %s%s;\n", c_type(p, true), p->name);
        if (is_list(p)) fprintf(f, "    size_t n_%s;\n", p->name);
    }
    fprintf(f, "} rp_%s_options;\n", r->name);
}

/* ", rp_tensor *self, ...": everything after the site, or "(rp_tensor *self, ...)" without it. */
static void write_params(FILE *f, const row *r, bool site) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *t = open_memstream(&text, &bytes);
    if (!t) die("out of memory", r->name);
    for (unsigned i = 0; i < r->schema.n_params; i++) {
        if (!r->schema.params[i].keyword) write_param(t, &r->schema.params[i]);
    }
    if (has_options(r)) fprintf(t, ", const rp_%s_options *options", options_of(r));
    for (unsigned k = 1; k < r->schema.n_outs; k++) fprintf(t, ", rp_tensor **out%u", k);
    finish(t, r->name);
    fprintf(f, "(%s%s)", site ? "const char *site" : "", site ? text : text + 2);
    free(text);
}

static const char *result_type(const row *r) { return r->schema.n_outs ? "rp_tensor *" : "rp_status "; }

/* What stands for parameter p where a call leaves it out; NULL: it cannot be left out. */
static const char *left_out(const rp__param *p) {
    if (!p->has_default) return NULL;
    const rp_attr value = rp__param_default(p), *a = &value;
    if (p->kind == RP__PARAM_OPTIONAL_TENSOR) return "NULL";
    switch ((rp__param_type)p->type) {
    case RP__TYPE_BOOL:
        return a->v.scalar.kind == RP_SCALAR_NONE ? "RP_UNSET" : a->v.scalar.v.b ? "RP_TRUE" : "RP_FALSE";
    case RP__TYPE_LAYOUT: return "RP_LAYOUT_NONE";
    case RP__TYPE_DEVICE: return "NULL";
    case RP__TYPE_MEMORY_FORMAT: return "RP_FORMAT_NONE";
    case RP__TYPE_FLOAT:
    case RP__TYPE_PLAIN: break;
    }
    switch ((rp_attr_kind)p->attr_kind) {
    case RP_ATTR_INT: return a->v.i == INT64_MIN ? "INT64_MIN" : keep_format("%" PRId64, a->v.i);
    case RP_ATTR_FLOAT: return keep_format("%.17g", a->v.f);
    case RP_ATTR_BOOL: return a->v.b ? "true" : "false";
    case RP_ATTR_DTYPE: return keep_format("(rp_dtype)%d", (int)a->v.dtype);
    case RP_ATTR_SCALAR:
        if (a->v.scalar.kind == RP_SCALAR_NONE) return "rp_none()";
        if (a->v.scalar.kind == RP_SCALAR_I64) return keep_format("rp_i64(%" PRId64 ")", a->v.scalar.v.i);
        if (a->v.scalar.kind == RP_SCALAR_F64) return keep_format("rp_f64(%.17g)", a->v.scalar.v.f);
        return a->v.scalar.v.b ? "rp_bool(true)" : "rp_bool(false)";
    case RP_ATTR_INTS: {
        if (a->n == 0) return "RP_NO_DIMS";
        const char *list = "";
        for (size_t i = 0; i < a->n; i++) list = keep_format("%s%s%" PRId64, list, i ? ", " : "", p->default_ints[i]);
        return keep_format("RP_DIMS(%s)", list);
    }
    case RP_ATTR_STRING: return a->v.string ? keep_format("\"%s\"", a->v.string) : "NULL";
    case RP_ATTR_GENERATOR: return "NULL";
    case RP_ATTR_FLOATS: return p->optional ? "NULL, 0" : NULL;
    case RP_ATTR_NONE: break;
    }
    return NULL;
}

/* The call-site macro. Trailing arguments with defaults, and results beyond the first, may be left out: how many arguments
   there are says which macro rp_NAME_rest_N adds the others. */
static void write_macro(FILE *f, const row *r) {
    const char *rest[RP__MAX_PARAMS + RP__MAX_OUTS];
    unsigned wide[RP__MAX_PARAMS + RP__MAX_OUTS], n = 0, total = 0, first = 0;
    for (unsigned i = 0; i < r->schema.n_params; i++) {
        const rp__param *p = &r->schema.params[i];
        if (p->keyword) continue;
        rest[n] = left_out(p);
        wide[n++] = is_list(p) ? 2 : 1;
    }
    if (has_options(r)) {
        rest[n] = "NULL";
        wide[n++] = 1;
    }
    for (unsigned k = 1; k < r->schema.n_outs; k++) {
        rest[n] = "NULL";
        wide[n++] = 1;
    }
    for (unsigned i = 0; i < n; i++) {
        total += wide[i];
        if (!rest[i]) first = i + 1;
    }
    if (first == 0) first = 1; /* a macro takes one argument at least */
    if (first >= n) {
        fprintf(f, "#define rp_%s(...) rp_%s_at(RP_HERE, __VA_ARGS__)\n", r->name, r->name);
        return;
    }
    if (total > 40) die_row(r, "more than 40 arguments");
    fprintf(f, "#define rp_%s(...) rp_%s_at(RP_HERE, __VA_ARGS__ RP_REST(rp_%s, __VA_ARGS__))\n", r->name, r->name,
            r->name);
    for (unsigned i = first; i <= n; i++) {
        unsigned given = 0;
        for (unsigned k = 0; k < i; k++) given += wide[k];
        fprintf(f, "#define rp_%s_rest_%u", r->name, given);
        for (unsigned k = i; k < n; k++) fprintf(f, "%s %s", k == i ? " ," : ",", rest[k]);
        fputc('\n', f);
    }
}

static void write_prototypes(FILE *f, const row *r) {
    const char *exported = r->flags & RP__OP_PRIVATE ? "" : "RP_API ";
    fprintf(f, "\n/* %s\n   %s */\n", r->doc, r->schema_text);
    write_options(f, r);
    fprintf(f, "%s%srp_%s_at", exported, result_type(r), r->name);
    write_params(f, r, true);
    fprintf(f, ";\n%s%srp_%s", exported, result_type(r), r->name);
    write_params(f, r, false);
    fputs(";\n", f);
    write_macro(f, r);
}

/* Private ops, for the library itself (src/ops/private.h). */
static void write_private(const char *dir) {
    FILE *f = create(dir, "ops_private.inc");
    fputs("/* Generated: ops that are not exported. */\n", f);
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].flags & RP__OP_PRIVATE) write_prototypes(f, &rows[i]);
    }
    publish(f);
}

static void write_header(const char *dir) {
    FILE *f = create(dir, "reprise_ops.h");
    fputs(
        "/* Generated from the op table: the ops. Included by reprise.h.\n"
        "   The macros add the call site, and may leave out trailing arguments that the schema gives a default. NULL stands for an\n"
        "   absent Tensor? or Generator?, INT64_MIN for None of int?, rp_none() for None of Scalar? and float?, RP_DTYPE_NONE for a\n"
        "   dtype that is not given. What PyTorch takes by keyword is in the options (NULL: all defaults; a field that is zero is not\n"
        "   given). The first result is returned, further ones go through the trailing pointers (NULL, or left out: not wanted). */\n"
        "#ifndef REPRISE_OPS_H\n#define REPRISE_OPS_H\n\n#include \"reprise.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n",
        f);
    for (size_t i = 0; i < ROWS; i++) {
        if (!(rows[i].flags & RP__OP_PRIVATE)) write_prototypes(f, &rows[i]);
    }
    fputs("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n", f);
    publish(f);
}

/* ---- rules */

/* Of the sources, in their order: a rule that no row uses has ended the build. named: of those only, or NULL. */
static void declare_rules(FILE *f, const bool *named) {
    static const char *const types[][2] = {
        {"infer", "rp__infer_fn"},   {"lower", "rp__lower_fn"},     {"view", "rp__view_fn"}, {"run", "rp__run_fn"},
        {"expand", "rp__expand_fn"}, {"product", "rp__product_fn"}, {"vjp", "rp__vjp_fn"}};
    for (size_t i = 0; i < n_rules; i++) {
        if (named && !named[i]) continue;
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            if (strcmp(types[k][0], rules[i].kind) == 0)
                fprintf(f, "%s rp__%s_%s;\n", types[k][1], rules[i].kind, rules[i].name);
        }
    }
}

static void write_rules(const char *dir) {
    FILE *f = create(dir, "ops_rules.inc");
    fputs("/* Generated: every rule that a row of the table uses. */\n", f);
    declare_rules(f, NULL);
    publish(f);
}

/* ---- what each source names: it depends on these ops and rules and no others */

typedef struct source {
    const char *path; /* below SRC_DIR */
    char *text;
} source;
static source sources[MAX_SOURCES];
static size_t n_sources;

/* rp_add, rp_add_at, rp_add_options: `add` of n letters? */
static bool names_row(const char *word, size_t n, const char *name) {
    size_t own = strlen(name);
    if (n < own || strncmp(word, name, own) != 0) return false;
    return n == own || (n == own + 3 && strncmp(word + own, "_at", 3) == 0) ||
           (n == own + 8 && strncmp(word + own, "_options", 8) == 0);
}

static void find_names(const char *text, bool *row_named, bool *rule_named) {
    for (const char *at = text; (at = strpbrk(at, "rR")) != NULL;) {
        size_t n = 0;
        while (isalnum((unsigned char)at[n]) || at[n] == '_') n++;
        bool whole = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (whole && strncmp(at, "rp__", 4) == 0) {
            for (size_t i = 0; i < n_rules; i++) {
                size_t kind = strlen(rules[i].kind), name = strlen(rules[i].name);
                if (n == 5 + kind + name && strncmp(at + 4, rules[i].kind, kind) == 0 && at[4 + kind] == '_' &&
                    strncmp(at + 5 + kind, rules[i].name, name) == 0)
                    rule_named[i] = true;
            }
        } else if (whole && strncmp(at, "rp_", 3) == 0) {
            for (size_t i = 0; i < ROWS; i++) {
                if (names_row(at + 3, n - 3, rows[i].name)) row_named[i] = true;
            }
        }
        at += n ? n : 1;
    }
}

/* Rows whose options those of a named row are. */
static void add_functional(bool *row_named) {
    for (size_t i = 0; i < ROWS; i++) {
        if (!row_named[i] || !*rows[i].functional || !has_options(&rows[i])) continue;
        for (size_t k = 0; k < ROWS; k++) {
            if (strcmp(rows[k].name, rows[i].functional) == 0) row_named[k] = true;
        }
    }
}

static FILE *create_use(const char *dir, const char *path, const char *what) {
    char name[512];
    if (snprintf(name, sizeof name, "uses/%s.%s", path, what) >= (int)sizeof name) die("path too long", path);
    for (char *c = name + 5; *c; c++) *c = *c == '/' ? '_' : *c;
    return create(dir, name);
}

static void write_uses(const char *dir) {
    static bool row_in_headers[MAX_ROWS], row_named[MAX_ROWS], rule_named[MAX_RULES];
    for (size_t i = 0; i < n_sources; i++) { /* any source may include any header */
        if (sources[i].path[strlen(sources[i].path) - 1] == 'h')
            find_names(sources[i].text, row_in_headers, rule_named);
    }
    for (size_t i = 0; i < n_sources; i++) {
        const source *s = &sources[i];
        if (s->path[strlen(s->path) - 1] != 'c') continue;
        memcpy(row_named, row_in_headers, sizeof row_named);
        memset(rule_named, 0, sizeof rule_named);
        find_names(s->text, row_named, rule_named);
        for (size_t k = 0; k < n_rules; k++) /* those that a macro defines are named by their own name alone */
            rule_named[k] = rule_named[k] || strcmp(rules[k].file, s->path) == 0;
        add_functional(row_named);
        FILE *f = create_use(dir, s->path, "calls");
        fprintf(f, "/* Generated: the ops that %s names. */\n", s->path);
        for (size_t k = 0; k < ROWS; k++) {
            if (row_named[k]) write_prototypes(f, &rows[k]);
        }
        publish(f);
        if (strncmp(s->path, "ops/", 4) != 0) continue;
        f = create_use(dir, s->path, "rules");
        fprintf(f, "/* Generated: the rules that %s names. */\n", s->path);
        declare_rules(f, rule_named);
        publish(f);
    }
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
        if (a->v.scalar.kind == RP_SCALAR_NONE)
            fputs(".v.scalar = {.kind = RP_SCALAR_NONE}", f);
        else if (a->v.scalar.kind == RP_SCALAR_F64)
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
    case RP_ATTR_FLOATS:
    case RP_ATTR_NONE: fputs(".v.floats = NULL", f); break;
    }
    fputs("}", f);
}

static void write_schema(FILE *f, const rp__schema *s) {
    fprintf(
        f,
        "{.name = \"%s\", .n_params = %u, .n_tensor_params = %u, .n_attrs = %u, .n_outs = %u, .typed = %d,\n      .params = {",
        s->name, s->n_params, s->n_tensor_params, s->n_attrs, s->n_outs, s->typed);
    for (unsigned i = 0; i < s->n_params; i++) {
        const rp__param *p = &s->params[i];
        fprintf(
            f,
            "{.name = \"%s\", .kind = %u, .attr_kind = %u, .type = %u, .fixed = %u, .symbolic = %d, .optional = %d, .keyword = %d, "
            ".written = %d, .aliased = %d, .alias = %d, ",
            p->name, p->kind, p->attr_kind, p->type, p->fixed, p->symbolic, p->optional, p->keyword, p->written,
            p->aliased, p->alias);
        fprintf(f, ".has_default = %d, .empty_list = %d, .default_text = \"%s\", ", p->has_default, p->empty_list,
                p->default_text);
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
    fputs("/* Generated: the rows of the op table, in the order of the families' files. */\n", f);
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].inverse) fprintf(f, "extern const rp__op rp__row_%s;\n", rows[i].name);
    for (size_t i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        unsigned k = lowering_of(r);
        fprintf(f,
                "\nconst rp__op rp__row_%s =\n{.name = \"%s\", .schema_text = \"%s\",\n .doc = \"%s\",\n"
                " .lowering = %s, .rule = {.%s = %s}, .infer = %s, .vjp = %s,\n",
                r->name, r->name, r->schema_text, r->doc, kinds_of_lowering[k].lowering, kinds_of_lowering[k].member,
                r->rule, r->infer, r->vjp);
        fprintf(f, " .functional = \"%s\", ", r->functional);
        if (*r->functional) fprintf(f, ".functional_op = &rp__row_%s, ", r->functional);
        if (r->prim) fprintf(f, ".prim = RP__%s, ", r->prim);
        if (r->format) fprintf(f, ".format = RP__FORMAT_%s, ", r->format);
        if (r->inverse) fprintf(f, ".inverse = &rp__row_%s, ", r->inverse);
        if (r->scalar_operand) fprintf(f, ".scalar_operand = %u, ", r->scalar_operand);
        fprintf(f, ".saves = %uu, .flags = %uu, .index = %zu,\n .schema = ", (unsigned)r->saves, (unsigned)r->flags, i);
        write_schema(f, &r->schema);
        fputs("};\n", f);
    }
    fputs("\nstatic const rp__op *const builtin[] = {\n", f);
    for (size_t i = 0; i < ROWS; i++) fprintf(f, "    &rp__row_%s,\n", rows[i].name);
    fputs("};\n", f);
    publish(f);
}

/* ---- definitions: each packs an rp__call on the stack and dispatches it */

/* The attribute of a parameter; of an option that is not given, its default. */
static void write_attr(FILE *f, const rp__param *p) {
    static const char *const kinds[] = {"INT",  "FLOAT",     "BOOL",   "SCALAR", "DTYPE",
                                        "INTS", "GENERATOR", "STRING", "FLOATS"};
    static const char *const members[] = {"i", "f", "b", "scalar", "dtype", "ints", "generator", "string", "floats"};
    static const char *const typed[] = {
        "", "", "rp__attr_tristate", "rp__attr_layout", "rp__attr_device", "rp__attr_format"};
    const char *from = p->keyword ? "given." : "", *name = p->name;
    const rp__param *d = p->keyword && p->has_default ? p : NULL;
    if (p->type >= RP__TYPE_BOOL) {
        fprintf(f, "%s(%s%s)", typed[p->type], from, name);
    } else if (!p->keyword || p->attr_kind >= RP_ATTR_INTS) {
        fprintf(f, "{.kind = RP_ATTR_%s, .v.%s = %s%s", kinds[p->attr_kind], members[p->attr_kind], from, name);
        if (p->keyword && p->attr_kind == RP_ATTR_STRING && d && *d->default_text)
            fprintf(f, " ? given.%s : \"%s\"", name, d->default_text);
        if (is_list(p)) fprintf(f, ", .n = %sn_%s", from, name);
        fputs("}", f);
    } else if (p->attr_kind == RP_ATTR_DTYPE) {
        fprintf(f, "{.kind = RP_ATTR_DTYPE, .v.dtype = given.%s ? given.%s : (rp_dtype)%d}", name, name,
                d ? (int)d->value.v.dtype : 0);
    } else if (p->attr_kind == RP_ATTR_BOOL) {
        fprintf(f, "{.kind = RP_ATTR_BOOL, .v.b = given.%s == RP_UNSET ? %d : given.%s == RP_TRUE}", name,
                d ? d->value.v.b : 0, name);
    } else if (p->attr_kind == RP_ATTR_SCALAR) {
        fprintf(f, "{.kind = RP_ATTR_SCALAR, .v.scalar = given.%s.kind ? given.%s : %s}", name, name,
                d ? left_out(d) : "rp_none()");
    } else {
        fprintf(f, "rp__attr_number(RP_ATTR_%s, given.%s, %s, \"%s\", &wrong)", kinds[p->attr_kind], name,
                d ? p->attr_kind == RP_ATTR_INT ? keep_format("rp_i64(%s)", left_out(d))
                                                : keep_format("rp_f64(%s)", left_out(d))
                  : "rp_none()",
                name);
    }
    fputs(",\n                              ", f);
}

static void write_call(FILE *f, const row *r) {
    const rp__schema *s = &r->schema;
    unsigned lists = 0;
    for (unsigned i = 0; i < s->n_params; i++) lists += s->params[i].kind == RP__PARAM_TENSORS;

    fprintf(f, "\n%srp_%s_at", result_type(r), r->name);
    write_params(f, r, true);
    fputs("\n{\n", f);

    if (has_options(r)) {
        fprintf(f, "    rp_%s_options given;\n", options_of(r));
        fputs("    const char *wrong = rp__options_take(&given, sizeof given, options);\n", f);
        for (unsigned i = 0; i < s->n_params; i++) {
            const rp__param *p = &s->params[i];
            if (p->keyword && p->kind != RP__PARAM_ATTR)
                fprintf(f, "    rp_tensor *%s = given.%s;\n", p->name, p->name);
        }
    }
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
        "    rp__call call = {.op = &rp__row_%s, .site = site, .attrs = %s, .n_attrs = %u, .out = %s, .n_out = %u};\n",
        r->name, s->n_attrs ? "attrs" : "NULL", s->n_attrs, s->n_outs ? "out" : "NULL", s->n_outs);
    if (has_options(r)) {
        fputs(
            "    if (RP__UNLIKELY(wrong != NULL)) {\n        rp_status refused = rp__call_bad_option(&call, wrong);\n",
            f);
        for (unsigned k = 1; k < s->n_outs; k++) fprintf(f, "        if (out%u) *out%u = rp__tensor_error();\n", k, k);
        fputs(s->n_outs ? "        (void)refused;\n        return rp__tensor_error();\n    }\n"
                        : "        return refused;\n    }\n",
              f);
    }

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
        if (p->keyword) continue;
        fprintf(f, ", %s", p->name);
        if (is_list(p)) fprintf(f, ", n_%s", p->name);
    }
    if (has_options(r)) fputs(", options", f);
    for (unsigned k = 1; k < s->n_outs; k++) fprintf(f, ", out%u", k);
    fputs(");\n}\n", f);
}

static void write_calls(const char *dir) {
    FILE *f = create(dir, "ops_calls.inc");
    fputs("/* Generated: the public functions of reprise_ops.h. */\n", f);
    for (size_t i = 0; i < ROWS; i++) fprintf(f, "extern const rp__op rp__row_%s;\n", rows[i].name);
    for (size_t i = 0; i < ROWS; i++) write_call(f, &rows[i]);
    publish(f);
}

/* ---- forms that follow from a row */

static const char *replaced(const row *r, const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at) die_row(r, "a form cannot be derived: no '%s' in '%s'", from, text);
    return keep_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

/* <op>_: over the memory of the first operand. Where the op is a composition, or reads a row more than once, it is calculated apart
   and copied there. */
static void derive_inplace(size_t from) {
    row *r = new_row();
    const rp__schema *s = &rows[from].schema;
    if (s->params[0].kind != RP__PARAM_TENSOR || s->n_outs != 1)
        die_row(&rows[from], "no form in place can be derived of it");
    *r = rows[from];
    r->functional = rows[from].name;
    r->name = keep_format("%s_", rows[from].name);
    r->schema_text = keep_format("%s%s", r->name, rows[from].schema_text + strlen(rows[from].name));
    r->schema_text = replaced(r, r->schema_text, "(Tensor ", "(Tensor(a!) ");
    r->schema_text = replaced(r, r->schema_text, "-> Tensor", "-> Tensor(a!)");
    r->doc = keep_format("in place: %s", r->doc);
    const bool apart = strcmp(r->lowering, "COMPOSITE") == 0 || strcmp(r->lowering, "ROWS") == 0;
    if (apart) {
        r->lowering = "COMPOSITE";
        r->rule = use_rule(r, "expand", "inplace", r->name, false);
    }
    r->infer = apart ? "NULL" : "rp__infer_inplace";
    r->vjp = "NULL";
    r->saves = 0;
    r->flags = (rows[from].flags & ~(uint32_t)RP_OP_VIEW) | RP_OP_INPLACE;
    find_rule("infer", "inplace")->used = true;
    complete(r);
}

/* <op>_scalar: the last tensor is a number. Rules and lowering are those of the row unless there are others of this name. The
   derivative and what it saves are its own. */
static size_t derive_scalar(size_t from) {
    row *r = new_row();
    const rp__schema *s = &rows[from].schema;
    *r = rows[from];
    r->name = keep_format("%s_scalar", rows[from].name);
    unsigned operand = 0;
    for (unsigned k = 0, t = 0; k < s->n_params; k++) {
        if (s->params[k].kind == RP__PARAM_ATTR) continue;
        if (s->params[k].kind != RP__PARAM_TENSOR)
            die_row(r, "a Scalar form cannot be derived of lists or optional tensors");
        operand = t++;
    }
    if (operand != 1) die_row(r, "a Scalar form is derived of ops with two tensors");
    if (r->scalar_schema) {
        r->schema_text = r->scalar_schema;
    } else {
        r->schema_text = keep_format("%s%s", r->name, rows[from].schema_text + strlen(rows[from].name));
        r->schema_text = replaced(r, r->schema_text, ", Tensor ", ", Scalar ");
    }
    r->doc = keep_format("%s, with a number", r->doc);
    r->scalar_operand = operand;
    r->saves = r->scalar_saves;
    const char *member = kinds_of_lowering[lowering_of(r)].member;
    static const char *const kinds[] = {"infer", "vjp"};
    const char **rule_of_kind[] = {&r->infer, &r->vjp};
    rule *own = find_rule(member, r->name);
    if (own) own->used = true, r->rule = keep_format("rp__%s_%s", member, r->name);
    for (unsigned k = 0; k < 2; k++) {
        own = find_rule(kinds[k], r->name);
        if (own)
            own->used = true, *rule_of_kind[k] = keep_format("rp__%s_%s", kinds[k], r->name);
        else if (k == 1 && strcmp(r->vjp, "NULL") != 0)
            die_row(r, "src/ops defines no rp__vjp_%s", r->name);
    }
    complete(r);
    if (r->schema.params[1].kind != RP__PARAM_ATTR || r->schema.params[1].attr_kind != RP_ATTR_SCALAR)
        die_row(r, "the second parameter must be the Scalar");
    return (size_t)(r - rows);
}

/* <view>_scatter: a copy of self with src in place of the view. All three rules ask the view's. */
static void derive_scatter(size_t from) {
    row *r = new_row();
    *r = rows[from];
    r->inverse = rows[from].name;
    r->name = rows[from].inverse = keep_format("%s_scatter", rows[from].name);
    r->schema_text = keep_format("%s%s", r->name, rows[from].schema_text + strlen(rows[from].name));
    r->schema_text = replaced(r, r->schema_text, "(Tensor(a) self", "(Tensor self, Tensor src");
    r->schema_text = replaced(r, r->schema_text, "-> Tensor(a)", "-> Tensor");
    r->doc = keep_format("a copy of self with src in place of: %s", r->doc);
    r->lowering = "INDEXED";
    r->format = "LIKE";
    r->flags &= ~(uint32_t)RP_OP_VIEW;
    const char **rule_of_kind[] = {&r->infer, &r->rule, &r->vjp};
    static const char *const kinds[] = {"infer", "lower", "vjp"};
    for (unsigned k = 0; k < 3; k++) *rule_of_kind[k] = use_rule(r, kinds[k], "scatter", r->name, false);
    complete(r);
}

static void derive_forms(void) {
    for (size_t i = 0, n = ROWS; i < n; i++) {
        if (rows[i].scatter_form) derive_scatter(i);
        if (rows[i].inplace_form) derive_inplace(i);
        size_t scalar = rows[i].scalar_form ? derive_scalar(i) : 0;
        if (scalar && rows[i].inplace_form) derive_inplace(scalar);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) die("usage", "genops INCLUDE_DIR GEN_DIR SRC_DIR (TABLE.def | SOURCE)...");
    size_t below = strlen(argv[3]) + 1;
    for (int i = 4; i < argc; i++) {
        size_t n = strlen(argv[i]);
        if (n > 4 && strcmp(argv[i] + n - 4, ".def") == 0) {
            read_table(argv[i]);
            continue;
        }
        if (n <= below || strncmp(argv[i], argv[3], below - 1) != 0) die("not below SRC_DIR", argv[i]);
        if (n_sources == MAX_SOURCES) die("too many sources", argv[i]);
        sources[n_sources] = (source){argv[i] + below, read_file(argv[i])};
        if (strncmp(argv[i] + below, "ops/", 4) == 0 && argv[i][n - 1] == 'c')
            read_rules(sources[n_sources].path, sources[n_sources].text);
        n_sources++;
    }
    for (size_t i = 0; i < ROWS; i++) {
        if (!rows[i].functional) rows[i].functional = "";
        complete(&rows[i]);
    }
    derive_forms();
    check_unused();
    write_header(argv[1]);
    write_private(argv[2]);
    write_rules(argv[2]);
    write_table(argv[2]);
    write_calls(argv[2]);
    write_uses(argv[2]);
    return 0;
}
