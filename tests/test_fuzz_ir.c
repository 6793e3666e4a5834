/* Plain driver of the graph parser's fuzzer: graphs of tests/data/fuzz/ir with bytes, tokens and lines changed, dropped and doubled;
   and a node of any op with operands and attributes at random, some of them left out, which is checked and run. */
/* ctest: timeout=120 */
#include <dirent.h>

#include "support/fuzz.h"
#include "support/fuzz_ir_parse.h"
#include "support/trace_help.h"
#include "trace/ir_run.h"

enum { MAX_TEXTS = 256, TEXT_BYTES = 4096 };
static char *texts[MAX_TEXTS];
static size_t n_texts;

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* What tests/data/fuzz/ir holds: where mutations start, and what has broken the parser before. */
static int read_texts(void **state) {
    (void)state;
    const char *data = getenv("REPRISE_TEST_DATA");
    char folder[2048];
    (void)snprintf(folder, sizeof folder, "%s/fuzz/ir", data ? data : "tests/data");
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    char *names[MAX_TEXTS];
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.' && n_texts < MAX_TEXTS) names[n_texts++] = strdup(e->d_name);
    closedir(dir);
    qsort(names, n_texts, sizeof *names, by_name); /* the same order everywhere */
    for (size_t k = 0; k < n_texts; k++) {
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[k]);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        texts[k] = calloc(1, TEXT_BYTES);
        assert_non_null(texts[k]);
        assert_true(fread(texts[k], 1, TEXT_BYTES - 1, f) > 0 && feof(f));
        fclose(f);
        free(names[k]);
    }
    return n_texts > 1 ? 0 : -1;
}

static int free_texts(void **state) {
    (void)state;
    while (n_texts) free(texts[--n_texts]);
    return 0;
}
static const char *const tokens[] = {"%0",     "%1",        "%2",     "(",    ")",      "{",
                                     "}",      "[",         "]",      ",",    "=",      ":",
                                     "s0",     "s1",        "*",      "+",    "-",      "none",
                                     "return", "alias(%0)", "grad",   "0",    "-1",     "9223372036854775807",
                                     "max",    "mod",       "random", "cond", "while",  "const",
                                     "nan",    "1e400",     "@\"\"",  "f32[", "cuda:7", "strides("};

static uint64_t random_state;
static uint64_t draw(uint64_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static size_t mutate(char *text, size_t n, size_t capacity) {
    size_t at = n ? draw(n) : 0, length = 1 + draw(12);
    switch (draw(6)) {
    case 0: /* a byte */
        if (n) text[at] = (char)(draw(4) ? ' ' + (char)draw(95) : (char)draw(256));
        return n;
    case 1: /* a hole */
        length = at + length > n ? n - at : length;
        memmove(text + at, text + at + length, n - at - length);
        return n - length;
    case 2: { /* a token */
        const char *token = tokens[draw(sizeof tokens / sizeof *tokens)];
        length = strlen(token);
        if (n + length > capacity) return n;
        memmove(text + at + length, text + at, n - at);
        memcpy(text + at, token, length);
        return n + length;
    }
    case 3: { /* a piece from elsewhere */
        size_t from = n ? draw(n) : 0;
        length = from + length > n ? n - from : length;
        if (n + length > capacity) return n;
        char piece[16];
        memcpy(piece, text + from, length);
        memmove(text + at + length, text + at, n - at);
        memcpy(text + at, piece, length);
        return n + length;
    }
    case 4: { /* attributes or a list, whole, or all but one entry */
        size_t begin = at;
        while (begin < n && text[begin] != '{' && text[begin] != '[') begin++;
        char close = begin < n && text[begin] == '{' ? '}' : ']';
        size_t end = begin;
        while (end < n && text[end] != close && text[end] != '\n') end++;
        if (end == n || text[end] != close) return n;
        if (draw(2))
            begin++; /* stays, empty */
        else
            end++;
        if (draw(3) == 0)
            for (size_t i = begin; i < end; i++)
                if (text[i] == ',') end = i + 1;
        memmove(text + begin, text + end, n - end);
        return n - (end - begin);
    }
    default: /* a number */
        for (size_t i = at; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                text[i] = (char)('0' + draw(10));
                break;
            }
        }
        return n;
    }
}

static void seed_from(uint64_t seed) {
    random_state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    (void)draw(2);
}

static void test_mutations(void **state) {
    (void)state;
    size_t parsed = 0;
    static char text[TEXT_BYTES];
    for (size_t k = 0; k < n_texts; k++) (void)rp_fuzz_ir_parse((const uint8_t *)texts[k], strlen(texts[k]));
    fuzz_seeds f = fuzz_begin(60000);
    for (uint64_t seed; fuzz_next(&f, &seed);) {
        const char *from = texts[seed % n_texts];
        size_t n = strlen(from);
        memcpy(text, from, n);
        seed_from(seed);
        for (uint64_t k = 1 + draw(4); k > 0; k--) n = mutate(text, n, sizeof text);
        parsed += (size_t)rp_fuzz_ir_parse((const uint8_t *)text, n);
    }
    if (f.ran > 1000) assert_true(parsed > f.ran / 50); /* the mutations are not all nonsense */
    print_message("%llu texts, %zu were graphs\n", (unsigned long long)f.ran, parsed);
}

/* ---- one node of any op, with attributes as they come */

/* The arguments of such a graph; operands are drawn from them. */
static const struct {
    const char *type;
    rp_dtype dtype;
    size_t ndim;
    int64_t size[4];
} arguments[] = {
    {"f32[1, 3, 4, 2]", RP_F32, 4, {1, 3, 4, 2}},
    {"i64[4]", RP_I64, 1, {4}},
    {"b8[1, 3, 4, 2]", RP_BOOL, 4, {1, 3, 4, 2}},
    {"f32[]", RP_F32, 0, {0}},
    {"f32[4, 4]", RP_F32, 2, {4, 4}},
    {"f16[4, 4]", RP_F16, 2, {4, 4}},
    {"i64[]", RP_I64, 0, {0}},
    {"f32[3, 3, 1, 1]", RP_F32, 4, {3, 3, 1, 1}},
};
enum { ARGUMENTS = sizeof arguments / sizeof *arguments };

static void any_int(rp__text *t) {
    static const char *const values[] = {
        "0", "1", "2", "3", "4", "-1", "-2", "16", "1000000", "4611686018427387904", "-4611686018427387904"};
    rp__text_puts(t, values[draw(4) ? draw(6) : draw(sizeof values / sizeof *values)]);
}
static void any_ints(rp__text *t) {
    rp__text_puts(t, "[");
    for (uint64_t k = 0, n = draw(4) ? draw(5) : draw(20); k < n; k++) {
        if (k) rp__text_puts(t, ", ");
        any_int(t);
    }
    rp__text_puts(t, "]");
}
static void any_value(rp__text *t, unsigned kind) {
    static const char *const numbers[] = {
        "0", "1", "-1", "0.5", "2.5", "inf", "-inf", "nan", "1e300", "true", "9223372036854775807"};
    static const char *const types[] = {"f32", "f64", "f16", "i64", "i32", "b8", "u8", "none"};
    static const char *const others[] = {"none", "true", "[]", "\"s\"", "1.5", "generator(3)", "s0", "%0", "{}", "f32"};
    if (draw(12) == 0) {
        rp__text_puts(t, others[draw(sizeof others / sizeof *others)]);
        return;
    }
    switch ((rp_attr_kind)kind) {
    case RP_ATTR_INT: any_int(t); break;
    case RP_ATTR_INTS: any_ints(t); break;
    case RP_ATTR_FLOAT:
    case RP_ATTR_SCALAR: rp__text_puts(t, numbers[draw(sizeof numbers / sizeof *numbers)]); break;
    case RP_ATTR_BOOL: rp__text_puts(t, draw(2) ? "true" : "false"); break;
    case RP_ATTR_DTYPE: rp__text_puts(t, types[draw(sizeof types / sizeof *types)]); break;
    case RP_ATTR_GENERATOR: rp__text_puts(t, draw(2) ? "none" : "generator(1)"); break;
    case RP_ATTR_STRING: rp__text_puts(t, draw(2) ? "none" : "\"sum\""); break;
    }
}

/* op(operands) {attributes}; some attributes are left out, whether they have a default or not, or all with the braces. */
static void any_call(const rp__op *op, rp__text *t) {
    bool first = true, braces = draw(8) != 0;
    rp__text_add(t, "%s(", op->name);
    for (unsigned i = 0; i < op->schema.n_params; i++) {
        const rp__param *p = &op->schema.params[i];
        if (p->kind == RP__PARAM_ATTR) continue;
        rp__text_puts(t, first ? "" : ", ");
        first = false;
        if (p->kind == RP__PARAM_TENSORS) {
            rp__text_puts(t, "[");
            for (uint64_t k = 0, n = draw(4); k < n; k++)
                rp__text_add(t, "%s%%%d", k ? ", " : "", (int)draw(ARGUMENTS));
            rp__text_puts(t, "]");
        } else if (p->kind == RP__PARAM_OPTIONAL_TENSOR && draw(2)) {
            rp__text_puts(t, "none");
        } else { /* one type for most operands, so that many calls are sound */
            rp__text_add(t, "%%%d", (int)(draw(3) ? 0 : draw(ARGUMENTS)));
        }
    }
    rp__text_puts(t, ")");
    if (!braces) return;
    rp__text_puts(t, " {");
    first = true;
    for (unsigned i = 0; i < op->schema.n_params; i++) {
        const rp__param *p = &op->schema.params[i];
        if (p->kind != RP__PARAM_ATTR || draw(p->has_default ? 3 : 12) == 0) continue;
        rp__text_add(t, "%s%s = ", first ? "" : ", ", p->name);
        any_value(t, p->attr_kind);
        first = false;
    }
    rp__text_puts(t, "}");
}

static void one_node(const char *results, const char *call, rp__text *t) {
    rp__text_puts(t, "graph \"one\" (");
    for (int k = 0; k < ARGUMENTS; k++) rp__text_add(t, "%s%%%d: %s", k ? ", " : "", k, arguments[k].type);
    rp__text_add(t, ") {\n  %s = %s\n  return %%%d\n}\n", results, call, ARGUMENTS);
}

/* What the results of the only node of ir are by its op's rule; false where the rule refuses. */
static bool result_types(const rp_ir *ir, rp_tensor *const *args, rp__text *t) {
    const rp__ir_node *n = &ir->nodes[ir->body.nodes[0]];
    rp_tensor *in[RP__MAX_IN] = {NULL}, *out[RP__MAX_OUTS] = {NULL};
    rp__meta meta[RP__MAX_OUTS];
    rp__view view = {0};
    rp__call call;
    if (n->kind != RP__IR_OP || n->op->lowering == RP__COMPOSITE) return false;
    bool is_view = n->op->lowering == RP__VIEW;
    if (!is_view && !n->op->infer) return false;
    for (uint32_t k = 0; k < n->n_in; k++)
        in[k] = n->in[k] == RP__IR_NONE ? NULL : args[ir->values[n->in[k]].out_index];
    rp__ir_call(n, in, out, &call);
    memset(meta, 0, sizeof meta);
    rp_status status = is_view ? rp__op_view(&call, &meta[0], &view) : rp__op_infer(&call, meta);
    (void)rp_error_take();
    if (status != RP_OK) return false;
    for (uint32_t k = 0; k < n->n_out; k++) {
        char size[RP__SHAPE_TEXT];
        uint32_t w = 0;
        rp__shape_text(meta[k].size, meta[k].ndim, size);
        while (w < n->n_in && !(n->op->schema.out_written[k] && rp__ir_writes(n, w))) w++;
        if (w < n->n_in) rp__ir_meta_of(in[w], &meta[k]);
        if (w < n->n_in) rp__shape_text(meta[k].size, meta[k].ndim, size);
        rp__text_add(t, "%s%%%u: %s[%.*s]", k ? ", " : "", ARGUMENTS + k, rp__dtypes[meta[k].dtype].short_name,
                     (int)strlen(size) - 2, size + 1);
        if (w < n->n_in) rp__text_add(t, " alias(%%%u)", n->in[w]);
        if (!is_view) continue;
        rp__shape_text(view.stride, view.ndim, size);
        if (view.ndim) rp__text_add(t, " strides%s", size);
        rp__text_add(t, " offset(%lld) alias(%%%u)", (long long)view.offset, n->in[0]);
    }
    return true;
}

static void test_attributes(void **state) {
    (void)state;
    size_t parsed = 0, ran = 0;
    fuzz_seeds f = fuzz_begin(40000);
    for (uint64_t seed; fuzz_next(&f, &seed);) {
        seed_from(seed);
        const rp__op *op = rp__op_table_at(draw(rp__op_table_count()));
        rp__text call = {0}, text = {0}, types = {0}, whole = {0};
        any_call(op, &call);
        for (unsigned k = 0; k < op->schema.n_outs; k++)
            rp__text_add(&types, "%s%%%u: f32[]", k ? ", " : "", ARGUMENTS + k);
        one_node(types.data ? types.data : "", call.data, &text);
        rp__text_free(&types);
        (void)rp_fuzz_ir_parse((const uint8_t *)text.data, strlen(text.data));
        rp_ir *ir = rp_ir_parse(text.data, strlen(text.data));
        rp_scope scope = rp_scope_begin();
        rp_tensor *args[ARGUMENTS], *out = NULL;
        for (int k = 0; k < ARGUMENTS; k++) args[k] = rp_ones(arguments[k].size, arguments[k].ndim, arguments[k].dtype);
        bool fine = !rp_failed(), typed = fine && op->schema.n_outs > 0 && result_types(ir, args, &types);
        (void)rp_error_take();
        parsed += fine;
        if (fine) { /* wrong types: refused by the checker, or by chance right */
            (void)rp_ir_run(ir, args, ARGUMENTS, &out, 1);
            (void)rp_error_take();
        }
        if (typed && types.data) {
            one_node(types.data, call.data, &whole);
            if (rp_fuzz_ir_parse((const uint8_t *)whole.data, strlen(whole.data))) {
                rp_ir *sound = rp_ir_parse(whole.data, strlen(whole.data));
                int64_t numel = rp__numel(sound->values[sound->body.results[0]].meta.size,
                                          sound->values[sound->body.results[0]].meta.ndim);
                (void)rp_error_take();
                if (numel >= 0 && numel < 1 << 16) ran += rp_ir_run(sound, args, ARGUMENTS, &out, 1) == RP_OK;
                (void)rp_error_take();
                rp_ir_release(sound);
            }
        }
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        rp_ir_release(ir);
        rp__text_free(&call);
        rp__text_free(&text);
        rp__text_free(&types);
        rp__text_free(&whole);
    }
    if (f.ran > 1000 && (parsed < f.ran / 5 || ran < f.ran / 40))
        fail_msg("%zu graphs were read, %zu ran", parsed, ran);
}

static void test_depth(void **state) {
    (void)state;
    /* nesting of everything that nests */
    static const char *const opens[] = {"floordiv(", "[", "%0: f32[", "(", "cond(%0) { then() {", "- ", "\"\\"};
    enum { TIMES = 100000 };
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        size_t length = strlen(opens[i]);
        static const char head[] = "graph \"a\" (%0: b8[";
        char *text = malloc(sizeof head + length * TIMES);
        assert_non_null(text);
        memcpy(text, head, sizeof head);
        for (size_t k = 0; k < TIMES; k++) memcpy(text + sizeof head - 1 + k * length, opens[i], length);
        assert_int_equal(rp_fuzz_ir_parse((const uint8_t *)text, sizeof head - 1 + length * TIMES), 0);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutations), cmocka_unit_test(test_attributes),
                                       cmocka_unit_test(test_depth)};
    return cmocka_run_group_tests(tests, read_texts, free_texts);
}
