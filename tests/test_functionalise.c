/* Functionalise and simplify on graphs as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compile/passes.h"
#include "support/passes.h"

static void functional(const char *before, const char *after) {
    rp_ir *ir = test_parse(before), *out = NULL;
    (void)rp__functionalise(ir, &out);
    test_no_error();
    test_expect_graph(out, after);
    rp_ir_release(out);
    rp_ir_release(ir);
}

static void simple(const char *before, const char *after) {
    rp_ir *ir = test_parse(before), *out = NULL;
    (void)rp__simplify(ir, true, &out);
    test_no_error();
    test_expect_graph(out, after);
    rp_ir_release(out);
    rp_ir_release(ir);
}

static void refused(const char *before, rp_status status) {
    rp_ir *ir = test_parse(before), *out = NULL;
    assert_int_equal(rp__functionalise(ir, &out), status);
    assert_null(out);
    assert_int_equal(rp_error_take(), status);
    rp_ir_release(ir);
}

/* A fresh tensor written in place: its later readers read the new value, and nothing is assigned. */
static void in_place(void **state) {
    (void)state;
    functional("graph \"f\" (%0: f32[2, 3]) {\n"
               "  %1: f32[2, 3] = exp(%0)\n"
               "  %2: f32[2, 3] alias(%1) = mul_(%1, %0)\n"
               "  %3: f32[2, 3] = sin(%1)\n"
               "  return %3, %2\n"
               "}\n",
               "graph \"f\" (%0: f32[2, 3]) {\n"
               "  %1: f32[2, 3] = exp(%0)\n"
               "  %2: f32[2, 3] = mul(%1, %0)\n"
               "  %3: f32[2, 3] = sin(%2)\n"
               "  return %3, %2\n"
               "}\n");
}

/* A write through a view becomes a scatter into its base; an older view of the base is derived again. */
static void through_views(void **state) {
    (void)state;
    functional("graph \"f\" (%0: f32[4, 3]) {\n"
               "  %1: f32[4, 3] = exp(%0)\n"
               "  %2: f32[3, 4] strides(1, 3) alias(%1) = permute(%1) {dims = [1, 0]}\n"
               "  %3: f32[4] strides(3) offset(1) alias(%1) = select(%2) {dim = 0, index = 1}\n"
               "  %4: f32[4] strides(3) offset(1) alias(%1) = fill_(%3) {value = 2.0}\n"
               "  %5: f32[3, 4] = neg(%2)\n"
               "  return %5, %1\n"
               "}\n",
               "graph \"f\" (%0: f32[4, 3]) {\n"
               "  %1: f32[4, 3] = exp(%0)\n"
               "  %2: f32[3, 4] strides(1, 3) alias(%1) = permute(%1) {dims = [1, 0]}\n"
               "  %3: f32[4] strides(3) offset(1) alias(%1) = select(%2) {dim = 0, index = 1}\n"
               "  %4: f32[4] = fill(%3) {value = 2.0}\n"
               "  %5: f32[3, 4] strides(1, 3) = select_scatter(%2, %4) {dim = 0, index = 1}\n"
               "  %6: f32[4, 3] alias(%5) = permute(%5) {dims = [1, 0]}\n"
               "  %7: f32[3, 4] = neg(%5)\n"
               "  return %7, %6\n"
               "}\n");
}

/* Arguments get their new value by one ASSIGN at the end; a result that shares their memory is a view of the argument. */
static void arguments(void **state) {
    (void)state;
    functional("graph \"f\" (%0: f32[4], %1: f32[4]) {\n"
               "  %2: f32[4] alias(%0) = add_(%0, %1) {alpha = 1}\n"
               "  %3: f32[2] alias(%0) = slice(%0) {dim = 0, start = 0, end = 2, step = 1}\n"
               "  %4: f32[2] alias(%0) = mul_scalar_(%3) {other = 2.0}\n"
               "  %5: f32[4] = exp(%0)\n"
               "  return %5, %3\n"
               "}\n",
               "graph \"f\" (%0: f32[4], %1: f32[4]) {\n"
               "  %2: f32[4] = add(%0, %1) {alpha = 1}\n"
               "  %3: f32[2] alias(%2) = slice(%2) {dim = 0, start = 0, end = 2, step = 1}\n"
               "  %4: f32[2] = mul_scalar(%3) {other = 2.0}\n"
               "  %5: f32[4] = slice_scatter(%2, %4) {dim = 0, start = 0, end = 2, step = 1}\n"
               "  %6: f32[4] = exp(%5)\n"
               "  assign(%0, %5)\n"
               "  %7: f32[2] alias(%0) = slice(%0) {dim = 0, start = 0, end = 2, step = 1}\n"
               "  return %6, %7\n"
               "}\n");
}

/* Memory that is only read may be shared in any way; parts of one tensor without a common element may be written. */
static void shared_memory(void **state) {
    (void)state;
    functional(
        "graph \"f\" (%0: f32[4] shared, %1: f32[4] shared, %2: f32[3, 4] strides(0, 1), %3: f32[4, 3] strides(1, 4)) {\n"
        "  %4: f32[4] = mul(%0, %1)\n"
        "  %5: f32[3, 4] = add(%4, %2) {alpha = 1}\n"
        "  %6: f32[4, 3] strides(1, 4) alias(%3) = relu_(%3)\n"
        "  return %5\n"
        "}\n",
        "graph \"f\" (%0: f32[4] shared, %1: f32[4] shared, %2: f32[3, 4] strides(0, 1), %3: f32[4, 3] strides(1, 4)) {\n"
        "  %4: f32[4] = mul(%0, %1)\n"
        "  %5: f32[3, 4] = add(%4, %2) {alpha = 1}\n"
        "  %6: f32[4, 3] strides(1, 4) = relu(%3)\n"
        "  assign(%3, %6)\n"
        "  return %5\n"
        "}\n");
    functional("graph \"f\" (%0: f32[4]) {\n"
               "  %1: f32[4] offset(4) alias(%0) = captured 0\n"
               "  %2: f32[4] offset(4) alias(%0) = mul_(%1, %0)\n"
               "  return\n"
               "}\n",
               "graph \"f\" (%0: f32[4]) {\n"
               "  %1: f32[4] offset(4) = captured 0\n"
               "  %2: f32[4] = mul(%1, %0)\n"
               "  assign(%1, %2)\n"
               "  return\n"
               "}\n");
}

/* A write gives its base a history: a view that is a result has it, too. */
static void histories(void **state) {
    (void)state;
    functional("graph \"f\" (%0: f32[4], %1: f32[3] grad) {\n"
               "  %2: f32[4] = exp(%0)\n"
               "  %3: f32[3] alias(%2) = slice(%2) {dim = 0, start = 0, end = 3, step = 1}\n"
               "  %4: f32[3] alias(%2) grad = add_(%3, %1) {alpha = 1}\n"
               "  return %4\n"
               "}\n",
               "graph \"f\" (%0: f32[4], %1: f32[3] grad) {\n"
               "  %2: f32[4] = exp(%0)\n"
               "  %3: f32[3] alias(%2) = slice(%2) {dim = 0, start = 0, end = 3, step = 1}\n"
               "  %4: f32[3] grad = add(%3, %1) {alpha = 1}\n"
               "  %5: f32[4] grad = slice_scatter(%2, %4) {dim = 0, start = 0, end = 3, step = 1}\n"
               "  %6: f32[3] alias(%5) grad = slice(%5) {dim = 0, start = 0, end = 3, step = 1}\n"
               "  return %6\n"
               "}\n");
}

/* Two arguments swapped: each is read before either is written. */
static void swap(void **state) {
    (void)state;
    functional("graph \"f\" (%0: f32[4], %1: f32[4]) {\n"
               "  %2: f32[4] = clone(%0)\n"
               "  %3: f32[4] alias(%0) = copy_(%0, %1)\n"
               "  %4: f32[4] alias(%1) = copy_(%1, %2)\n"
               "  return %4\n"
               "}\n",
               "graph \"f\" (%0: f32[4], %1: f32[4]) {\n"
               "  %2: f32[4] = clone(%0)\n"
               "  %3: f32[4] = copy(%0, %1) {non_blocking = false}\n"
               "  %4: f32[4] = copy(%1, %2) {non_blocking = false}\n"
               "  assign(%0, %3)\n"
               "  assign(%1, %4)\n"
               "  return %1\n"
               "}\n");
}

/* Promotion: the functional op gives float32, the written tensor stays float16. */
static void converted(void **state) {
    (void)state;
    functional("graph \"f\" (%0: f16[4], %1: f32[4]) {\n"
               "  %2: f16[4] alias(%0) = add_(%0, %1) {alpha = 1}\n"
               "  return %2\n"
               "}\n",
               "graph \"f\" (%0: f16[4], %1: f32[4]) {\n"
               "  %2: f32[4] = add(%0, %1) {alpha = 1}\n"
               "  %3: f16[4] = to_dtype(%2) {dtype = f16, non_blocking = false, copy = false}\n"
               "  assign(%0, %3)\n"
               "  return %0\n"
               "}\n");
}

static void refusals(void **state) {
    (void)state;
    refused("graph \"f\" (%0: f32[1, 3]) {\n"
            "  %1: f32[1, 3] = exp(%0)\n"
            "  %2: f32[4, 3] strides(0, 1) alias(%1) = expand(%1) {size = [4, 3]}\n"
            "  %3: f32[3] alias(%1) = select(%2) {dim = 0, index = 0}\n"
            "  %4: f32[3] alias(%1) = relu_(%3)\n"
            "  return %1\n"
            "}\n",
            RP_ERROR_UNAVAILABLE);
    refused("graph \"f\" (%0: f32[4], %1: f32[4] alias(%0)) {\n"
            "  %2: f32[4] alias(%0) = relu_(%0)\n"
            "  return %1\n"
            "}\n",
            RP_ERROR_UNAVAILABLE);
    refused("graph \"f\" (%0: f32[4], %1: f32[2] offset(3) alias(%0)) {\n" /* one element */
            "  %2: f32[4] alias(%0) = relu_(%0)\n"
            "  return %1\n"
            "}\n",
            RP_ERROR_UNAVAILABLE);
    refused("graph \"f\" (%0: f32[4]) {\n"
            "  %1: f32[4] offset(3) alias(%0) = captured 0\n"
            "  %2: f32[4] offset(3) alias(%0) = mul_(%1, %0)\n"
            "  return\n"
            "}\n",
            RP_ERROR_UNAVAILABLE);
    refused("graph \"f\" (%0: f32[4] shared, %1: f32[4] shared) {\n" /* wrapped memory */
            "  %2: f32[4] alias(%0) = relu_(%0)\n"
            "  return %1\n"
            "}\n",
            RP_ERROR_UNAVAILABLE);
    refused("graph \"f\" (%0: f32[3, 4] strides(0, 1)) {\n" /* rows that are one row, and rows that lie in each other */
            "  %1: f32[4] alias(%0) = select(%0) {dim = 0, index = 0}\n"
            "  %2: f32[4] alias(%0) = relu_(%1)\n"
            "  return %0\n"
            "}\n",
            RP_ERROR_UNAVAILABLE);
    refused("graph \"f\" (%0: f32[3, 4] strides(3, 1)) {\n"
            "  %1: f32[3, 4] strides(3, 1) alias(%0) = relu_(%0)\n"
            "  return %0\n"
            "}\n",
            RP_ERROR_UNAVAILABLE);
}

static void identities(void **state) {
    (void)state;
    simple("graph \"f\" (%0: f32[4], %1: i64[4]) {\n"
           "  %2: f32[4] = mul_scalar(%0) {other = 1.0}\n"
           "  %3: f32[4] = add_scalar(%2) {other = 0.0}\n"
           "  %4: f32[4] = neg(%3)\n"
           "  %5: f32[4] = neg(%4)\n"
           "  %6: f64[4] = to_dtype(%5) {dtype = f64}\n"
           "  %7: f32[4] = to_dtype(%6) {dtype = f32}\n"
           "  %8: f32[4] = exp(%7)\n"
           "  %9: f32[4] = exp(%3)\n"
           "  %10: f32[4] = add(%8, %9) {alpha = 1}\n"
           "  %11: i64[4] = add_scalar(%1) {other = 0}\n"
           "  %12: i64[4] = neg(%11)\n"
           "  %13: f32[4] = sin(%0)\n"
           "  return %10, %12\n"
           "}\n",
           "graph \"f\" (%0: f32[4], %1: i64[4]) {\n"
           "  %2: f32[4] = add_scalar(%0) {other = 0.0, alpha = 1}\n"
           "  %3: f32[4] = exp(%2)\n"
           "  %4: f32[4] = add(%3, %3) {alpha = 1}\n"
           "  %5: i64[4] = neg(%1)\n"
           "  return %4, %5\n"
           "}\n");
}

/* Results keep memory of their own: equal ones stay two, a clone of an argument stays a clone. */
static void results_stay_apart(void **state) {
    (void)state;
    simple("graph \"f\" (%0: f32[4]) {\n"
           "  %1: f32[4] = exp(%0)\n"
           "  %2: f32[4] = exp(%0)\n"
           "  %3: f32[4] = clone(%0)\n"
           "  %4: f32[4] = clone(%0)\n"
           "  %5: f32[4] = sin(%4)\n"
           "  return %1, %2, %3, %5\n"
           "}\n",
           "graph \"f\" (%0: f32[4]) {\n"
           "  %1: f32[4] = exp(%0)\n"
           "  %2: f32[4] = exp(%0)\n"
           "  %3: f32[4] = clone(%0)\n"
           "  %4: f32[4] = sin(%0)\n"
           "  return %1, %2, %3, %4\n"
           "}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_place),   cmocka_unit_test(through_views),      cmocka_unit_test(arguments),
        cmocka_unit_test(swap),       cmocka_unit_test(converted),          cmocka_unit_test(refusals),
        cmocka_unit_test(identities), cmocka_unit_test(results_stay_apart), cmocka_unit_test(shared_memory),
        cmocka_unit_test(histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
