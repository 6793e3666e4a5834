/* rp_call_named: count, names and places of arguments are those of the first call, for plain, compiled and graphed callables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <reprise.h>

#include "core/alloc.h"
#include "support/check.h"

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

static int calls;
static void difference(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    calls++;
    out[0] = rp_sub(in[0], in[1]);
}

static rp_compiled *make(int kind, rp_tensor *const *in) {
    rp_fn fn = {difference, NULL, 0, "difference"};
    rp_graphed_callable c = {.fn = fn, .args = in, .n_args = 2, .n_out = 1};
    rp_compiled *f = NULL;
    if (kind == 0) return rp_plain(fn);
    if (kind == 1) return rp_compile(fn, NULL);
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    return f;
}

static void names_are_those_of_the_first_call(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[] = {rp_full(RP_DIMS(3), rp_f64(5)), rp_full(RP_DIMS(3), rp_f64(2)), NULL}, *out;
        rp_tensor *odd[] = {in[0], rp_full(RP_DIMS(7), rp_f64(2))};
        rp_compiled *f = make(kind, in);
        in[2] = in[0];
        /* a call that fails fixes nothing */
        assert_int_not_equal(rp_call_named(f, NAMES("x", "y"), odd, 2, &out, 1), RP_OK);
        assert_true(rp_is_error(out));
        rp_error_take();
        for (int k = 0; k < 3; k++) {
            char second[] = "batch.tokens"; /* compared by text */
            out = NULL;
            OK(rp_call_named(f, NAMES("weight", second), in, 2, &out, 1));
            assert_true(rp_item_f64(rp_select(out, 0, 1)) == 3);
        }
        OK(rp_call(f, in, 2, &out, 1)); /* without names nothing is checked */
        int before = calls;
        FAILS(RP_ERROR_GUARD, "`tokens`; the first call had `batch.tokens` there, and no `tokens`",
              rp_call_named(f, NAMES("weight", "tokens"), in, 2, &out, 1));
        assert_true(rp_is_error(out));
        FAILS(RP_ERROR_GUARD,
              "argument 0 is named `batch.tokens`; the first call had `weight` there, and `batch.tokens` at 1",
              rp_call_named(f, NAMES("batch.tokens", "weight"), in, 2, &out, 1));
        FAILS(RP_ERROR_GUARD, "`batch.tokens` is missing", rp_call_named(f, NAMES("weight"), in, 1, &out, 1));
        FAILS(RP_ERROR_GUARD, "no `mask`", rp_call_named(f, NAMES("weight", "batch.tokens", "mask"), in, 3, &out, 1));
        FAILS(RP_ERROR_GUARD, "test_named.c:", rp_call_named(f, NAMES("weight"), in, 1, &out, 1));
        assert_int_equal(calls, before);
        OK(rp_call_named(f, NAMES("weight", "batch.tokens"), in, 2, &out, 1));
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

static void names_are_paths(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {rp_ones(RP_DIMS(3)), rp_ones(RP_DIMS(3))}, *out;
    rp_compiled *f = make(0, in);
    static const char *const bad[][2] = {{"a", "a"}, {"a", "a.b"}, {"a.b.c", "a.b"}};
    static const char *const odd[] = {"", ".a", "a.", "a..b"};
    for (int k = 0; k < 3; k++) FAILS(RP_ERROR_INVALID_ARGUMENT, bad[k][0], rp_call_named(f, bad[k], in, 2, &out, 1));
    for (int k = 0; k < 4; k++)
        FAILS(RP_ERROR_INVALID_ARGUMENT, "not a name", rp_call_named(f, NAMES("x", odd[k]), in, 2, &out, 1));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "has no name", rp_call_named(f, NAMES("x", NULL), in, 2, &out, 1));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "NULL", rp_call_named(f, NULL, in, 2, &out, 1));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "NULL", rp_call_named(NULL, NAMES("x", "y"), in, 2, &out, 1));
    rp__alloc_fail_at(1);
    FAILS(RP_ERROR_OUT_OF_MEMORY, "names of arguments", rp_call_named(f, NAMES("x", "y"), in, 2, &out, 1));
    rp__alloc_fail_at(0);
    OK(rp_call_named(f, NAMES("a.b", "a.bc"), in, 2, &out, 1)); /* neither holds the other */
    FAILS(RP_ERROR_INVALID_ARGUMENT, "has no name", rp_call_named(f, NAMES("a.b", NULL), in, 2, &out, 1));
    rp_compiled_release(f);
    OK(rp_scope_end(scope, NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_those_of_the_first_call),
        cmocka_unit_test(names_are_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
