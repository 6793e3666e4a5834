/* Plain driver of the graph parser's fuzzer: graphs with bytes, tokens and lines changed, dropped and doubled, from fixed
   seeds; and a node of any op with operands and attributes at random, some of them left out, which is checked and run. */
/* ctest: timeout=120 */
#include "support/fuzz_ir_parse.h"
#include "support/trace_help.h"
#include "trace/ir_run.h"

static const char *const seeds[] = {
    "graph \"a\" with {\n symbol s0 = 8 of size(0, 0)\n symbol s1 = 3\n guard s0 != 1\n guard s1 <= floordiv(s0*s1 + 4, 3)\n}\n"
    " (%0: f32[s0, 4] grad, %1: i64[]) {\n %2: f32[4] = captured 0 @\"n.c:3\"\n %3: f32[3] = const [1.0, -inf, nan(0x7fc00001)]\n"
    " %4: f32[s0, 4] = add(%0, %2) {alpha = 2}\n %5: f32[s0*4] alias(%4) = view(%4) {size = [s0*4]}\n"
    " %6: f32[s0*4] alias(%4) = mul_(%5, %5)\n %7: f32[s0, 8] = cat([%4, %0]) {dim = 1}\n"
    " %8: f32[s0, 2] strides(8, 2) offset(1) alias(%7) = slice(%7) {dim = 1, start = none, end = 5, step = 2}\n"
    " %9: f32[s0, 4], %10: b8[s0, 4] = native_dropout(%4) {p = 0.25, generator = generator(1)} random(7, max(s0, s1))\n return %8, none\n}\n",
    "graph \"b\" (%0: b8[], %1: f32[2]) {\n %4: f32[2] = cond(%0, %1) {\n then(%2: f32[2]) { return %2 }\n else(%3: f32[2]) {\n"
    " %6: f32[2] = checkpoint(%3) random(0, 1) { body(%5: f32[2]) { %7: f32[2] = exp(%5) return %7 } }\n return %6 }\n }\n"
    " %20: f32[2] = while(%4, %1) max_iter(3) { cond(%8: f32[2], %9: f32[2]) { %11: b8[] = const [true] return %11 }\n"
    " body(%12: f32[2], %13: f32[2]) { %14: f32[2] = add(%12, %13) return %14 } }\n assign(%1, %20)\n return %20\n}",
    "graph \"c\" (%0: f32[1, 3, 4, 2] grad, %1: i64[4]) {\n"
    " %2: f32[1, 1, 2, 1] grad = conv2d(%0, %0, none) {stride = [2, 1], padding = [1, 0], dilation = [1, 1], groups = 1} @\"c.c:1\"\n"
    " %3: f32[] grad = mean(%2) {dim = [], keepdim = false, dtype = none}\n"
    " %4: f32[1, 3, 4, 1], %5: i64[1, 3, 4, 1] = topk(%0) {k = 1, dim = -1, largest = true, sorted = true}\n"
    " %6: f32[3, 2] = full() {size = [3, 2], value = nan, dtype = f32}\n"
    " %7: f32[4, 2] = embedding(%6, %1)\n %8: f32[4] strides(2) alias(%7) = select(%7) {dim = 1, index = 0}\n"
    " %9: f32[2, 3] strides(1, 2) alias(%6) = permute(%6) {dims = [1, 0]}\n return %2, %3, %5, %8, %9\n}",
};
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

static void test_mutations(void **state) {
    (void)state;
    size_t parsed = 0, total = 0;
    static char text[4096];
    for (size_t s = 0; s < sizeof seeds / sizeof *seeds; s++) {
        assert_int_equal(rp_fuzz_ir_parse((const uint8_t *)seeds[s], strlen(seeds[s])), 1);
        random_state = UINT64_C(88172645463325252) + s;
        for (int round = 0; round < 20000; round++) {
            size_t n = strlen(seeds[s]);
            memcpy(text, seeds[s], n);
            for (uint64_t k = 1 + draw(4); k > 0; k--) n = mutate(text, n, sizeof text);
            parsed += (size_t)rp_fuzz_ir_parse((const uint8_t *)text, n);
            total++;
        }
    }
    assert_true(parsed > total / 50); /* the mutations are not all nonsense */
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
    random_state = UINT64_C(1181783497276652981);
    for (int round = 0; round < 40000; round++) {
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
    if (parsed < 8000 || ran < 1000) fail_msg("%zu graphs were read, %zu ran", parsed, ran);
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
    return cmocka_run_group_tests(tests, NULL, NULL);
}
