/* Graphs: text form both ways, the checker, equality and difference, symbolic sizes, hostile text. */
#include "support/trace_help.h"

#include "core/alloc.h"
#include "trace/ir_run.h"
#include "trace/symbols.h"

static char *text_of(const rp_ir *ir) {
    size_t n = rp_ir_text(ir, NULL, 0);
    char *text = malloc(n + 1);
    assert_non_null(text);
    assert_int_equal(rp_ir_text(ir, text, n + 1), n);
    return text;
}

static rp_ir *parse(const char *text) {
    rp_ir *ir = rp_ir_parse(text, strlen(text));
    assert_ok();
    return ir;
}

/* Everything that the text form has. Printing what was read gives this text again. */
static const char *const whole =
    "graph \"all \\\"of\\\" it\" with {\n"
    "  symbol s0 = 8 of size(0, 0)\n"
    "  symbol s1 = 3 of stride(1, 1)\n"
    "  symbol s2 = 5\n"
    "  guard s0 != 1\n"
    "  guard s2 < s0*4\n"
    "} (%0: f32[s0, 4] shared grad, %1: f32[2, 2] strides(s1, 1) offset(3) shared, %2: i64[]) {\n"
    "  %3: f32[4] grad = captured 0 @\"net.c:3\"\n"
    "  %4: f32[3] = const [1.0, -inf, nan(0x7fc00001)]\n"
    "  %5: b8[2] = const [true, false]\n"
    "  %6: f32[s0, 4] = add(%0, %3) {alpha = 2} @\"net.c:4\"\n"
    "  %7: f32[s0*4] alias(%6) = view(%6) {size = [s0*4]}\n"
    "  %8: f32[s0*4] alias(%6) = mul_(%7, %7)\n"
    "  %9: f32[s0, 4] = mul_scalar(%6) {other = 0.1}\n"
    "  %10: f32[s0, 8] = cat([%9, %6]) {dim = 1}\n"
    "  %11: f32[s0, 2] strides(8, 2) offset(1) alias(%10) = slice(%10) {dim = 1, start = 1, end = 5, step = 2}\n"
    "  %12: f32[] = sum(%11) {dim = [], keepdim = false}\n"
    "  %13: b8[] = gt(%12, %12)\n"
    "  %14: f32[floordiv(s0, 3) + 2] = rand() {size = [floordiv(s0, 3) + 2], generator = generator(0), dtype = f32} "
    "random(0, floordiv(floordiv(s0, 3) + 5, 4))\n"
    "  %15: f32[s0, 4], %16: b8[s0, 4] = native_dropout(%6) {p = 0.25, train = none} random(7, s0)\n"
    "  %22: f32[] = cond(%13, %12) {\n"
    "    then(%17: f32[]) {\n"
    "      %18: f32[] = exp(%17)\n"
    "      return %18\n"
    "    }\n"
    "    else(%19: f32[]) {\n"
    "      %21: f32[] = checkpoint(%19) random(1, 2) {\n"
    "        body(%20: f32[]) {\n"
    "          return %20\n"
    "        }\n"
    "      }\n"
    "      return %21\n"
    "    }\n"
    "  }\n";

static void test_round_trip(void **state) {
    (void)state;
    char text[4096];
    snprintf(text, sizeof text, "%s%s", whole,
             "  %29: f32[] = while(%22, %12) max_iter(9) {\n"
             "    cond(%23: f32[], %24: f32[]) {\n"
             "      %25: b8[] = lt(%23, %24)\n"
             "      return %25\n"
             "    }\n"
             "    body(%26: f32[], %27: f32[]) {\n"
             "      %28: f32[] = add(%26, %27) {alpha = 1}\n"
             "      return %28\n"
             "    }\n"
             "  }\n"
             "  assign(%0, %15) @\"net.c:9\"\n"
             "  return %29, none, %0\n"
             "}\n");
    rp_ir *ir = parse(text);
    char *printed = text_of(ir);
    assert_string_equal(printed, text);
    assert_int_equal(rp_ir_check(ir), RP_OK);
    rp_ir *again = parse(printed);
    assert_true(rp_ir_equal(ir, again));
    rp__hash a, b;
    assert_int_equal(rp__ir_hash(ir, &a), RP_OK);
    assert_int_equal(rp__ir_hash(again, &b), RP_OK);
    assert_true(rp__hash_equal(a, b));
    /* numbers of values and call sites are not part of what a graph is; everything else is */
    rp_ir *renamed = parse("graph \"x\" (%7: f32[2]) {\n %3: f32[2] = add(%7, %7) @\"a.c:1\"\n return %3\n}");
    rp_ir *same = parse("graph \"y\" (%0: f32[2]) { %1: f32[2] = add(%0, %0) {alpha = 1} # a comment\n return %1 }");
    rp_ir *other = parse("graph \"y\" (%0: f32[2]) { %1: f32[2] = add(%0, %0) {alpha = 1.0} return %1 }");
    assert_true(rp_ir_equal(renamed, same));
    assert_false(rp_ir_equal(same, other)); /* 1 and 1.0 are different numbers */
    rp__text t = {0};
    rp__ir_diff(same, other, &t);
    assert_non_null(strstr(t.data, "node 0: add(%0, %0) {alpha = 1.0}"));
    rp__text_free(&t);
    rp_ir_release(renamed);
    rp_ir_release(same);
    rp_ir_release(other);
    rp_ir_release(again);
    rp_ir_release(ir);
    free(printed);
    assert_ok();
}

/* A text, and what its error must say. */
static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "line 1, column 1: 'graph' was expected"},
        {"graph", "a string was expected"},
        {"graph \"a", "a string without an end"},
        {"graph \"a\" (%0: f31[2]) { return }", "column 16: an element type"},
        {"graph \"a\" (%0: f32[-2]) { return }", "negative size"},
        {"graph \"a\" (%0: f32[2]\n%0: f32[2]) { return }", "line 2, column 1: ',' was expected"},
        {"graph \"a\" (%0: f32[2], %0: f32[2]) { return }", "%0 is defined twice"},
        {"graph \"a\" () { return %1 }", "%1 is not defined"},
        {"graph \"a\" () { return %99999999999999999999 }", "larger than the text allows"},
        {"graph \"a\" (%0: f32[s0]) { return }", "a size was expected"},
        {"graph \"a\" (%0: f32[9223372036854775808]) { return }", "does not fit"},
        {"graph \"a\" (%0: f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]) { return }", "more than 16 dimensions"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = frobnicate(%0) return }", "there is no op 'frobnicate'"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2], %2: f32[2] = add(%0, %0) return }", "add gives 1 results, not 2"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = add(%0) return }", "',' was expected"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = add(%0, none) return }", "may not be none"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = mul_scalar(%0) return }", "attribute 'other' is missing"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = mul_scalar(%0) {} return }", "missing"},
        {"graph \"a\" () { %0: f32[2] = zeros() {size = [2], pin_memory = 255} return }",
         "pin_memory is true, false or none"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = mul_scalar(%0) {other = nan(0x7fc00001)} return }",
         "64 bits of a NaN"},
        {"graph \"a\" () { %1: f32[2] = const [1.0] return }", "1 elements for a constant of 2"},
        {"graph \"a\" () { %1: f32[1] = const [nan(0x3f800000)] return }", "not the bits of a NaN"},
        {"graph \"a\" () { %1: u8[1] = const [256] return }", "does not fit the element type"},
        {"graph \"a\" () { %1: f32[] = captured 1 return }", "numbered from 0"},
        {"graph \"a\" () { captured 0 return }", "captured gives 1 results, not 0"},
        {"graph \"a\" (%0: f32[2]) { assign(%0) return }", "assign: another number of operands"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = assign(%0, %0) return }", "assign gives 0 results, not 1"},
        {"graph \"a\" (%0: f32[2]) { assign(%0, none) return }", "an operand of assign may not be none"},
        {"graph \"a\" () { cond() { then() { return } else() { return } } return }", "cond: the predicate is missing"},
        {"graph \"a\" () { %1: f32[] = while() max_iter(1) { return }", "while: more results than operands"},
        {"graph \"a\" () { checkpoint() { then() { return } } return }", "'body' was expected"},
        {"graph \"a\" (%0: f32[2]) { function(%0) { forward(%1: f32[2]) { return } backward(%2: f32[2]) { return } } "
         "return }",
         "the block gives 0 results, its node 1"},
        {"graph \"a\" (%0: f32[]) { return %0 } x", "text after the end"},
        {"graph \"a\" (%0: f32[]) { ", "ends inside a block"},
        {"graph \"a\" (%0: b8[], %1: f32[]) { %2: f32[] = cond(%0, %1) { then(%3: f32[]) { return %1 } else(%4: f32[]) { return %4 } } return %2 }",
         "%1 belongs to another block"},
        {"graph \"a\" (%0: b8[], %1: f32[]) { %2: f32[] = cond(%0, %1) { then() { return } else() { return } } return %2 }",
         "takes 0 arguments, its node passes 1"},
        {"graph \"a\" with { symbol s1 = 3 } () { return }", "'s0' was expected"},
        {"graph \"a\" with { symbol s0 = 3 guard s0 = 3 } () { return }", "was expected"},
        {"graph \"a\" (%0: f32[floordiv(1, 0)]) { return }", "division by zero"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp_ir *ir = rp_ir_parse(cases[i].text, strlen(cases[i].text));
        assert_int_equal(rp_error_status(), RP_ERROR_INVALID_ARGUMENT);
        if (!strstr(rp_error_message(), cases[i].says))
            fail_msg("%s\ngave: %s\nnot:  %s", cases[i].text, rp_error_message(), cases[i].says);
        rp_error_take();
        assert_int_equal(rp_ir_check(ir), RP_ERROR_INVALID_ARGUMENT);
        rp_error_take();
        rp_ir_release(ir);
    }
    /* an older error of the thread is kept */
    (void)rp_size(NULL, 0);
    rp_ir *fine = rp_ir_parse("graph \"a\" () { return }", 23);
    assert_true(rp_failed());
    rp_error_take();
    assert_int_equal(rp_ir_check(fine), RP_OK);
    rp_ir_release(fine);
}

/* What reads well and is wrong all the same. */
static void test_checker(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"graph \"a\" (%0: f32[2], %1: f32[3]) { %2: f32[2] = add(%0, %1) return }", "add"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[3] = add(%0, %0) return }", "the rule gives"},
        {"graph \"a\" (%0: f32[2]) { %1: i64[2] = add(%0, %0) return }", "the rule gives"},
        {"graph \"a\" (%0: f32[2, 3]) { %1: f32[3, 2] = permute(%0) {dims = [1, 0]} return }",
         "memory is not that of its rule"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = add_(%0, %0) return }", "not its operand"},
        {"graph \"a\" (%0: f32[2], %1: f32[2]) { %2: f32[2] = matmul(%0, %1) return }",
         "not an op that a graph can hold"},
        {"graph \"a\" (%0: f32[2]) { %1: f32[2] = exp(%0) assign(%1, %0) return }", "neither an argument nor captured"},
        {"graph \"a\" (%0: f32[2], %1: f32[3]) { assign(%0, %1) return }", "assign of another type"},
        {"graph \"a\" (%0: f32[], %1: f32[]) { %2: f32[] = cond(%0, %1) { then(%3: f32[]) { return %3 } else(%4: f32[]) { return %4 } } return }",
         "predicate is not bool"},
        {"graph \"a\" (%0: b8[], %1: f32[]) { %2: i64[] = cond(%0, %1) { then(%3: f32[]) { return %3 } else(%4: f32[]) { return %4 } } return }",
         "block result of another type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp_ir *ir = parse(cases[i].text);
        assert_int_not_equal(rp_ir_check(ir), RP_OK);
        if (!strstr(rp_error_message(), cases[i].says))
            fail_msg("%s\ngave: %s\nnot:  %s", cases[i].text, rp_error_message(), cases[i].says);
        rp_error_take();
        /* running it fails cleanly, too */
        rp_tensor *out;
        assert_int_not_equal(rp_ir_run(ir, NULL, 0, &out, 0), RP_OK);
        rp_error_take();
        rp_ir_release(ir);
    }
}

/* What is left out of a node has the value of the schema, lists too; empty lists are lists. */
static void test_defaults(void **state) {
    (void)state;
#define GRAPH(node) "graph \"a\" (%0: f32[1, 3, 4, 2]) { %1: " node " return %1 }"
    static const struct {
        const char *left_out, *whole;
    } cases[] = {
        {GRAPH("f32[1, 1, 1, 1] = conv2d(%0, %0, none)"),
         GRAPH(
             "f32[1, 1, 1, 1] = conv2d(%0, %0, none) {stride = [1, 1], padding = [0, 0], dilation = [1, 1], groups = 1}")},
        {GRAPH("f32[1, 1, 3, 1] = conv2d(%0, %0, none) {padding = [1, 0]}"),
         GRAPH(
             "f32[1, 1, 3, 1] = conv2d(%0, %0, none) {stride = [1, 1], padding = [1, 0], dilation = [1, 1], groups = 1}")},
        {GRAPH("f32[] = mean(%0)"), GRAPH("f32[] = mean(%0) {dim = none, keepdim = false, dtype = none}")},
        {GRAPH("f32[1, 1, 1, 1] = sum(%0) {keepdim = true}"),
         GRAPH("f32[1, 1, 1, 1] = sum(%0) {dim = none, keepdim = true, dtype = none}")},
        {GRAPH("i64[] = full() {size = [], fill_value = 2}"),
         GRAPH("i64[] = full() {size = [], fill_value = 2, dtype = none}")},
        {GRAPH("f32[1, 3, 4, 2] = add(%0, %0) {}"), GRAPH("f32[1, 3, 4, 2] = add(%0, %0) {alpha = 1}")},
    };
#undef GRAPH
    rp_scope scope = rp_scope_begin();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rp_tensor *x = filled(0.4, 4, 1, 3, 4, 2), *y[2];
        rp_ir *ir[] = {parse(cases[k].left_out), parse(cases[k].whole)};
        for (int i = 0; i < 2; i++) {
            OK(rp_ir_check(ir[i]));
            OK(rp_ir_run(ir[i], &x, 1, &y[i], 1));
        }
        assert_true(rp_ir_equal(ir[0], ir[1]));
        assert_same(y[0], y[1]);
        rp_ir_release(ir[0]);
        rp_ir_release(ir[1]);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static void test_run(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_ir *ir = parse("graph \"f\" with { symbol s0 = 2 of size(0, 0) guard s0 < 9 } (%0: f32[s0, 3], %1: f32[3]) {\n"
                      "  %2: f32[s0, 3] = add(%0, %1) {alpha = 2}\n"
                      "  %3: f32[s0*3] alias(%2) = view(%2) {size = [s0*3]}\n"
                      "  %4: f32[s0*3] alias(%2) = mul_scalar_(%3) {other = 3}\n"
                      "  %5: f32[2] = const [0.5, 1e-30]\n"
                      "  return %2, %5, %0\n}");
    for (int64_t rows = 1; rows < 6; rows++) {
        rp_tensor *in[] = {filled(0.2, 2, rows, (int64_t)3), filled(1, 1, 3)}, *out[3];
        assert_int_equal(rp_ir_run(ir, in, 2, out, 3), RP_OK);
        assert_same(out[0],
                    rp_mul_scalar(rp_add(in[0], in[1], RP_OPTIONS(rp_add_options, .alpha = rp_i64(2))), rp_i64(3)));
        const float constant[] = {0.5f, 1e-30f};
        assert_same(out[1], rp_from_data(constant, RP_DIMS(2), RP_F32));
        assert_ptr_equal(out[2], in[0]);
    }
    rp_tensor *big[] = {filled(0, 2, 9, 3), filled(1, 1, 3)}, *out[3];
    assert_int_equal(rp_ir_run(ir, big, 2, out, 3), RP_ERROR_GUARD);
    assert_non_null(strstr(rp_error_message(), "in[0].size(0) < 9"));
    rp_error_take();
    rp_tensor *flat[] = {filled(0, 1, 9), filled(1, 1, 3)};
    assert_int_equal(rp_ir_run(ir, flat, 2, out, 3), RP_ERROR_SHAPE);
    rp_error_take();
    rp_ir_release(ir);
    ir = parse("graph \"f\" () { %0: f32[2] = captured 0 return %0 }");
    assert_int_equal(rp_ir_run(ir, NULL, 0, out, 1), RP_ERROR_STATE); /* a parsed graph holds no tensors */
    rp_error_take();
    rp_ir_release(ir);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- symbols */

static void test_symbols(void **state) {
    (void)state;
    rp__symbols_install();
    rp__symbols *s = rp__symbols_new();
    assert_non_null(s);
    rp__symbol a = {.input = 0, .dim = 0, .hint = 6}, b = {.input = 1, .dim = 1, .hint = 4};
    rp_dim x = rp__symbols_add(s, &a), y = rp__symbols_add(s, &b);
    rp__symbols *outer = rp__symbols_enter(s);
    assert_true(rp__dim_is_symbol(x));
    /* one word an expression, whatever the way to it */
    rp_dim sum = rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_MUL, x, y), rp__dim_apply(RP__DIM_MUL, y, 3));
    rp_dim same = rp__dim_apply(RP__DIM_MUL, y, rp__dim_apply(RP__DIM_ADD, 3, x));
    assert_int_equal(sum, same);
    assert_int_equal(rp__dim_hint(sum), 36);
    assert_int_equal(rp__dim_apply(RP__DIM_SUB, sum, same), 0);
    assert_int_equal(rp__dim_apply(RP__DIM_SUB, rp__dim_apply(RP__DIM_ADD, x, y), y), x);
    /* what always holds, or never, needs no guard */
    assert_true(rp__dim_is(RP__DIM_LE, 0, x));
    assert_false(rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_ADD, x, 1), x));
    assert_true(rp__dim_is(RP__DIM_LT, x, rp__dim_apply(RP__DIM_ADD, x, 1)));
    assert_int_equal(rp__dim_apply(RP__DIM_MAX, x, rp__dim_apply(RP__DIM_ADD, x, y)), rp__dim_apply(RP__DIM_ADD, x, y));
    assert_int_equal(rp__symbols_guard_count(s), 0);
    /* an exact quotient, whose divisor is guarded against zero */
    assert_int_equal(rp__dim_apply(RP__DIM_FLOORDIV, sum, y), rp__dim_apply(RP__DIM_ADD, x, 3));
    assert_int_equal(rp__dim_apply(RP__DIM_MOD, sum, y), 0);
    assert_int_equal(rp__symbols_guard_count(s), 1);
    /* decided by the hint, once */
    assert_false(rp__dim_is(RP__DIM_EQ, x, y));
    assert_false(rp__dim_is(RP__DIM_EQ, x, y));
    assert_false(rp__dim_is(RP__DIM_LE, x, y)); /* recorded as y < x */
    assert_int_equal(rp__symbols_guard_count(s), 3);
    rp__text t = {0};
    rp__symbols_guard_text(s, rp__symbols_guard_at(s, 1), true, &t);
    assert_string_equal(t.data, "in[0].size(0) != in[1].size(1)");
    rp__text_free(&t);
    t = (rp__text){0};
    rp__symbols_guard_text(s, rp__symbols_guard_at(s, 2), false, &t);
    assert_string_equal(t.data, "s1 < s0");
    rp__text_free(&t);
    size_t failed;
    assert_true(rp__symbols_hold(s, (const int64_t[]){9, 2}, &failed));
    assert_false(rp__symbols_hold(s, (const int64_t[]){9, 0}, &failed));
    assert_int_equal(failed, 0);
    assert_false(rp__symbols_hold(s, (const int64_t[]){3, 5}, &failed));
    assert_int_equal(failed, 2);
    int64_t value;
    assert_true(rp__symbols_value(s, sum, (const int64_t[]){10, 7}, &value));
    assert_int_equal(value, 91);
    assert_false(rp__symbols_value(s, sum, (const int64_t[]){INT64_C(1) << 61, 7}, &value)); /* overflow */
    /* divisors are known of the symbols, and come before their multiples; numbers are compared */
    const size_t guards = rp__symbols_guard_count(s);
    const rp_dim both = rp__dim_apply(RP__DIM_ADD, x, y), wider = rp__dim_apply(RP__DIM_MUL, sum, both);
    assert_true(rp__dim_divides(sum, wider));
    assert_true(rp__dim_divides(both, wider));
    assert_true(rp__dim_divides(y, sum));
    assert_false(rp__dim_divides(x, sum));
    assert_false(rp__dim_divides(sum, y));
    assert_false(rp__dim_divides(0, x));
    assert_true(rp__dim_divides(3, 12));
    assert_false(rp__dim_divides(5, 12));
    assert_true(rp__dim_before(y, sum));
    assert_false(rp__dim_before(sum, y));
    assert_true(rp__dim_before(1, x));
    assert_false(rp__dim_before(wider, both));
    assert_true(rp__dim_before(5, 12));
    assert_int_equal(rp__symbols_guard_count(s), guards);
    assert_false(rp__dim_before(x, y)); /* they do not tell: 6 and 4, guarded */
    assert_int_equal(rp__symbols_guard_count(s), guards + 1);
    assert_int_equal(rp__dim_apply(RP__DIM_FLOORDIV, wider, both), sum);
    /* reading the value specialises */
    assert_int_equal(rp__dim_value(y), 4);
    assert_false(rp__symbols_hold(s, (const int64_t[]){9, 2}, &failed));
    /* longer than an expression may be: values of this call, guarded; never wrong */
    rp_dim power = x;
    for (int i = 0; i < 22; i++) power = rp__dim_apply(RP__DIM_MUL, power, i < 4 ? x : y);
    rp_dim hint = rp__dim_hint(power);
    assert_true(rp__symbols_value(s, power, (const int64_t[]){6, 4}, &value));
    assert_int_equal(value, hint);
    assert_ok();
    (void)rp__symbols_enter(outer);
    rp__symbols_release(s);
}

static void test_out_of_memory(void **state) {
    (void)state;
    char text[4096];
    snprintf(text, sizeof text, "%s  return\n}\n", whole);
    rp_ir_release(parse(text)); /* what stays for good is there */
    uint64_t live = rp__alloc_live();
    bool clean = false;
    for (uint64_t n = 1; !clean; n++) {
        assert_true(n < 100000);
        uint64_t before = rp__alloc_fail_at(n);
        rp_ir *ir = rp_ir_parse(text, strlen(text));
        rp__text t = {0};
        if (!rp_failed()) {
            rp__ir_print(ir, true, &t);
            (void)rp_ir_check(ir);
            (void)rp_ir_equal(ir, ir);
        }
        uint64_t after = rp__alloc_fail_at(0);
        clean = after - before < n;
        if (rp_failed() && (clean || rp_error_status() != RP_ERROR_OUT_OF_MEMORY))
            fail_msg("allocation %llu: %s", (unsigned long long)n, rp_error_message());
        rp_error_take();
        rp__text_free(&t);
        rp_ir_release(ir);
        assert_int_equal(rp__alloc_live(), live);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_round_trip, take_error),    cmocka_unit_test_teardown(test_errors, take_error),
        cmocka_unit_test_teardown(test_checker, take_error),       cmocka_unit_test_teardown(test_defaults, take_error),
        cmocka_unit_test_teardown(test_run, take_error),           cmocka_unit_test_teardown(test_symbols, take_error),
        cmocka_unit_test_teardown(test_out_of_memory, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
