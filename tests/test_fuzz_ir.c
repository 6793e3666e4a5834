/* Plain driver of the graph parser's fuzzer: graphs with bytes, tokens and lines changed, dropped and doubled, from fixed
   seeds. */
/* ctest: timeout=120 */
#include "support/fuzz_ir_parse.h"
#include "support/trace_help.h"

static const char *const seeds[] = {
    "graph \"a\" with {\n symbol s0 = 8 of size(0, 0)\n symbol s1 = 3\n guard s0 != 1\n guard s1 <= floordiv(s0*s1 + 4, 3)\n}\n"
    " (%0: f32[s0, 4] grad, %1: i64[]) {\n %2: f32[4] = captured 0 @\"n.c:3\"\n %3: f32[3] = const [1.0, -inf, nan(0x7fc00001)]\n"
    " %4: f32[s0, 4] = add(%0, %2) {alpha = 2}\n %5: f32[s0*4] alias(%4) = view(%4) {size = [s0*4]}\n"
    " %6: f32[s0*4] alias(%4) = mul_(%5, %5)\n %7: f32[s0, 8] = cat([%4, %0]) {dim = 1}\n"
    " %8: f32[s0, 2] strides(8, 2) offset(1) alias(%7) = slice(%7) {dim = 1, start = none, end = 5, step = 2}\n"
    " %9: f32[s0, 4], %10: b8[s0, 4] = native_dropout(%4) {p = 0.25, train = none, generator = generator(1)} random(7, max(s0, s1))\n return %8, none\n}\n",
    "graph \"b\" (%0: b8[], %1: f32[2]) {\n %4: f32[2] = cond(%0, %1) {\n then(%2: f32[2]) { return %2 }\n else(%3: f32[2]) {\n"
    " %6: f32[2] = checkpoint(%3) random(0, 1) { body(%5: f32[2]) { %7: f32[2] = exp(%5) return %7 } }\n return %6 }\n }\n"
    " %20: f32[2] = while(%4, %1) max_iter(3) { cond(%8: f32[2], %9: f32[2]) { %11: b8[] = const [true] return %11 }\n"
    " body(%12: f32[2], %13: f32[2]) { %14: f32[2] = add(%12, %13) return %14 } }\n assign(%1, %20)\n return %20\n}",
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
    switch (draw(5)) {
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutations), cmocka_unit_test(test_depth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
