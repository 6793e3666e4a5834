/* Memory and kernels of the program's own in graphs: wrapped memory that is declared stable. On the CPU, then on CUDA (the
   emulator, or a GPU with REPRISE_TEST_CUDA=real). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <reprise.h>

#include "support/cuda.h"

static rp_device device;

#define OK(expression)                                                                                                 \
    do {                                                                                                               \
        rp_status ok_status = (expression);                                                                            \
        if (ok_status != RP_OK) fail_msg("%s: %s", #expression, rp_error_message());                                   \
    } while (0)
#define FAILS(code, fragment, expression)                                                                              \
    do {                                                                                                               \
        assert_int_equal((expression), (code));                                                                        \
        if (!strstr(rp_error_message(), (fragment))) fail_msg("\"%s\" is not in: %s", (fragment), rp_error_message()); \
        assert_int_equal(rp_error_take(), (code));                                                                     \
    } while (0)

static int begin(void **state) {
    (void)state;
    (void)rp_set_default_device(device);
    (void)rp_manual_seed(11);
    return rp_failed();
}
static int end(void **state) {
    (void)state;
    (void)rp_synchronize(device);
    if (rp_failed()) fprintf(stderr, "left behind: %s\n", rp_error_message());
    return rp_error_take() != RP_OK;
}

static void same(rp_tensor *a, rp_tensor *b) { /* bit for bit */
    if (rp_failed()) fail_msg("%s", rp_error_message());
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_int_equal(rp_numel(a), rp_numel(b));
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    OK(rp_to_host(a, x, bytes));
    OK(rp_to_host(b, y, bytes));
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

/* Times that `kind` with `reason` happened; 0: there is no such entry. */
static int64_t fact(rp_compiled *f, const char *kind, const char *reason) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        OK(rp_explain_at(f, k, &e));
        if (strcmp(e.kind, kind) == 0 && strcmp(e.reason, reason) == 0) n += e.count;
    }
    return n;
}

/* ---- wrapped memory ---- */

static int deleted;
static void release_owner(void *owner) {
    deleted++;
    rp_release(owner);
}

/* The same values in memory that the library does not know. */
static rp_tensor *wrapped(rp_tensor *t) {
    const int64_t size[] = {rp_size(t, 0), rp_size(t, 1)};
    return rp_from_blob(rp_data(t), size, NULL, 2, RP_F32, device, release_owner, rp_retain(t));
}

static void squares(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_sin(in[0]), in[0]);
}

static void check_call(rp_compiled *f, rp_tensor *x) { /* forward and backward as eager */
    rp_tensor *out, *eager, *g, *expected, *y = rp_detach(x);
    OK(rp_set_requires_grad(x, true));
    OK(rp_set_requires_grad(y, true));
    OK(rp_call(f, &x, 1, &out, 1));
    squares(NULL, &y, 1, &eager, 1);
    same(out, eager);
    rp_tensor *up = rp_full(RP_DIMS(8, 64), rp_f64(0.75), RP_F32);
    OK(rp_grad(&out, 1, &x, 1, &up, NULL, &g));
    OK(rp_grad(&eager, 1, &y, 1, &up, NULL, &expected));
    same(g, expected);
}

static void stable_arguments_are_read_in_place(void **state) { /* of a graphed callable, forward and backward */
    (void)state;
    rp_tensor *sample = rp_rand(RP_DIMS(8, 64), RP_F32, NULL);
    OK(rp_set_requires_grad(sample, true));
    rp_graphed_callable c = {.fn = {squares, NULL, 0, "squares"}, .args = &sample, .n_args = 1, .n_out = 1};
    rp_compiled *f;
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    deleted = 0;
    for (int k = 0; k < 3; k++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = wrapped(rp_rand(RP_DIMS(8, 64), RP_F32, NULL));
        OK(rp_declare_stable(x));
        check_call(f, x);
        OK(rp_scope_end(scope, NULL, 0));
        assert_int_equal(deleted, k); /* the graph reads the last one, and keeps it */
    }
    assert_int_equal(fact(f, "copy", "foreign-memory"), 0);
    assert_true(fact(f, "patch", "moved-input") > 0);
    check_call(f, wrapped(rp_rand(RP_DIMS(8, 64), RP_F32, NULL)));
    assert_int_equal(deleted, 3);
    assert_int_equal(fact(f, "copy", "foreign-memory"), 1);
    rp_compiled_release(f);
}

static void stable_arguments_move_programs(void **state) { /* on CUDA a graph of a program copies what is not stable */
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){squares, NULL, 0, "squares"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .wait = true));
    for (int k = 0; k < 6; k++) {
        rp_tensor *x = rp_rand(RP_DIMS(8, 64), RP_F32, NULL);
        if (k > 1) {
            x = wrapped(x);
            OK(rp_declare_stable(x));
        }
        check_call(f, x);
    }
    assert_int_equal(fact(f, "copy", "foreign-memory"), 0);
    assert_true(fact(f, "patch", "moved-input") > 0);
    rp_compiled_release(f);
}

static void stable_is_said_of_memory(void **state) {
    (void)state;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "declare_stable", rp_declare_stable(NULL));
    rp_tensor *own = rp_rand(RP_DIMS(8, 64), RP_F32, NULL);
    OK(rp_declare_stable(own)); /* it is anyway */
    rp_tensor *sample = rp_rand(RP_DIMS(8, 64), RP_F32, NULL), *out;
    rp_graphed_callable c = {.fn = {squares, NULL, 0, "squares"}, .args = &sample, .n_args = 1, .n_out = 1};
    rp_compiled *f;
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    rp_tensor *x = wrapped(own), *view = rp_view(x, RP_DIMS(8, 64));
    OK(rp_declare_stable(view)); /* of what it shares with x */
    OK(rp_call(f, &x, 1, &out, 1));
    assert_int_equal(fact(f, "copy", "foreign-memory"), 0);
    rp_compiled_release(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stable_arguments_are_read_in_place, begin, end),
        cmocka_unit_test_setup_teardown(stable_arguments_move_programs, begin, end),
        cmocka_unit_test_setup_teardown(stable_is_said_of_memory, begin, end),
    };
    device = rp_cpu();
    int failed = cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
    if (!test_cuda_choose()) return failed + test_cuda_is_real(); /* it has said why */
    device = rp_cuda(0);
    return failed + cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
