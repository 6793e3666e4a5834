/* RP_NUMBERS_FAST: how far results go from eager's, what explain says of it, what stays as it is; and the rewriting of a
   kernel's DAG (kernel/relax.h). On the CPU, then on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). */
/* ctest: labels=compile timeout=300 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <reprise.h>

#include "kernel/relax.h"
#include "support/each_device.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static rp_compiled *compiled(rp_body *body, rp_numbers numbers) {
    rp_compiled *f =
        rp_compile((rp_fn){body, NULL, 0, "f"}, RP_OPTIONS(rp_compile_options, .fullgraph = true, .numbers = numbers));
    if (rp_failed()) fail_msg("%s", rp_error_message());
    return f;
}

/* A first call runs op by op, with eager's bits: what is compiled runs from the second on. */
static void call(rp_compiled *f, rp_tensor **in, size_t n_in, rp_tensor **out, size_t n_out) {
    for (int k = 0; k < 2; k++)
        if (rp_call(f, in, n_in, out, n_out) != RP_OK) fail_msg("%s", rp_error_message());
}

static int64_t told(rp_compiled *f, const char *reason) {
    int64_t total = 0;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        OK(rp_explain_get(f, i, &e));
        if (strcmp(e.kind, "numbers") == 0 && (!reason || strcmp(e.reason, reason) == 0)) total += e.count;
    }
    return total;
}

/* ---- functions: what their kernels may do otherwise */

BODY(activations) {
    UNUSED;
    rp_tensor *x = in[0];
    rp_tensor *h = rp_add(rp_mul(rp_sigmoid(x), x), in[1]);
    h = rp_sub(rp_mul(h, in[1]), rp_tanh(x));
    out[0] = rp_add(h, rp_div(rp_exp(rp_mul_scalar(x, rp_f64(0.25))), rp_add_scalar(rp_mul(x, x), rp_f64(1))));
}
BODY(normalised) {
    UNUSED;
    rp_tensor *x = rp_add(in[0], in[1]), *mean = rp_mean(x, RP_DIMS(-1), true);
    rp_tensor *off = rp_sub(x, mean), *variance = rp_mean(rp_mul(off, off), RP_DIMS(-1), true);
    out[0] = rp_mul(rp_mul(off, rp_rsqrt(rp_add_scalar(variance, rp_f64(1e-5)))), in[1]);
    out[0] = rp_add(out[0], in[0]);
}
BODY(weights) {
    UNUSED;
    rp_tensor *e = rp_exp(rp_add(rp_mul(in[0], in[1]), in[1]));
    out[0] = rp_div(e, rp_sum(e, RP_DIMS(-1), true));
}
BODY(chain) {
    UNUSED;
    rp_tensor *h = in[0];
    for (int k = 0; k < 6; k++) h = rp_add(rp_mul(h, in[1]), in[0]);
    out[0] = h;
}

/* The largest distance of a from b, relatively to |b| + floor. */
static double distance(rp_tensor *a, rp_tensor *b, double floor) {
    rp_tensor *x = rp_to_dtype(rp_detach(a), RP_F64), *y = rp_to_dtype(rp_detach(b), RP_F64);
    rp_tensor *off = rp_div(rp_abs(rp_sub(x, y)), rp_add_scalar(rp_abs(y), rp_f64(floor)));
    const double d = rp_item_f64(rp_amax(off, RP_NO_DIMS, false));
    if (rp_failed()) fail_msg("%s", rp_error_message());
    return d;
}
static rp_tensor *wide(rp_body *body, rp_tensor *const *in) { /* what the function is in float64 */
    rp_tensor *x[2] = {rp_to_dtype(in[0], RP_F64), rp_to_dtype(in[1], RP_F64)}, *out;
    body(NULL, x, 2, &out, 1);
    return out;
}

static void results_are_near(void **state) {
    (void)state;
    static rp_body *const bodies[] = {activations, normalised, weights, chain};
    static const struct {
        rp_dtype dtype;
        double bound; /* of the distance from float64 */
    } types[] = {{RP_F32, 1e-5}, {RP_F64, 1e-13}, {RP_F16, 4e-3}, {RP_BF16, 3e-2}};
    static const int64_t sizes[][2] = {{3, 5}, {16, 256}, {9, 1000}};
    for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++) {
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            rp_compiled *fast = compiled(bodies[b], RP_NUMBERS_FAST), *again = compiled(bodies[b], RP_NUMBERS_FAST),
                        *plain = compiled(bodies[b], RP_NUMBERS_DEFAULT);
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                rp_tensor *x[2], *got, *second, *eager, *kept;
                for (int k = 0; k < 2; k++)
                    x[k] = rp_to_dtype(rp_sub_scalar(rp_mul_scalar(rp_rand(sizes[s], 2), rp_f64(4)), rp_f64(2)),
                                       types[t].dtype);
                call(fast, x, 2, &got, 1);
                call(again, x, 2, &second, 1);
                call(plain, x, 2, &kept, 1);
                bodies[b](NULL, x, 2, &eager, 1);
                same(kept, eager);
                same(second, got);
                const double d = distance(got, wide(bodies[b], x), 0.1);
                if (!(d <= types[t].bound)) fail_msg("function %zu, type %zu, size %zu: off by %g", b, t, s, d);
                OK(rp_call(fast, x, 2, &second, 1));
                same(second, got);
            }
            assert_true(told(fast, NULL) > 0);
            assert_int_equal(told(plain, NULL), 0);
            rp_compiled_release(fast);
            rp_compiled_release(again);
            rp_compiled_release(plain);
        }
    }
}

static void explain_lists_freedoms(void **state) {
    (void)state;
    rp_compiled *f = compiled(activations, RP_NUMBERS_FAST), *w = compiled(weights, RP_NUMBERS_FAST),
                *h = compiled(chain, RP_NUMBERS_FAST);
    rp_tensor *x[2] = {rp_rand(RP_DIMS(8, 64)), rp_rand(RP_DIMS(8, 64))}, *y;
    call(f, x, 2, &y, 1);
    call(w, x, 2, &y, 1);
    for (int k = 0; k < 2; k++) x[k] = rp_to_dtype(x[k], RP_F16);
    call(h, x, 2, &y, 1);
    const bool cuda = device.type == RP_DEVICE_CUDA;
    assert_int_equal(told(f, "fast-functions") > 0, cuda);
    assert_int_equal(told(f, "fast-unrounded"), 0);
    assert_true(told(w, "fast-quotient") >= 1);
    assert_true(told(h, "fast-unrounded") >= 11); /* all but the last of twelve */
    if (cuda) assert_int_equal(told(h, "fast-fma"), 6);
    rp_compiled_release(f);
    rp_compiled_release(w);
    rp_compiled_release(h);
}

/* What float16 loses between ops stays. */
static void values_between_ops_are_wide(void **state) {
    (void)state;
    rp_compiled *fast = compiled(chain, RP_NUMBERS_FAST);
    rp_tensor *x[2] = {rp_to_dtype(rp_rand(RP_DIMS(40, 50)), RP_F16), rp_to_dtype(rp_rand(RP_DIMS(40, 50)), RP_F16)};
    rp_tensor *got, *eager, *truth = wide(chain, x);
    call(fast, x, 2, &got, 1);
    chain(NULL, x, 2, &eager, 1);
    assert_true(distance(got, truth, 0) <= 0.000489); /* half of the last place: one rounding */
    assert_true(distance(eager, truth, 0) > 0.000489);
    rp_compiled_release(fast);
}

/* The gradient of a largest element looks for it by equality, among values that the same function has made. */
BODY(largest) {
    UNUSED;
    rp_tensor *x = rp_add(rp_mul(in[0], in[1]), in[0]);
    out[0] = rp_amax(rp_mul(rp_add(x, in[1]), x), RP_DIMS(-1), false);
}
static void largest_elements_are_found(void **state) {
    (void)state;
    static const rp_dtype types[] = {RP_F32, RP_F16, RP_BF16};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        rp_compiled *fast = compiled(largest, RP_NUMBERS_FAST), *plain = compiled(largest, RP_NUMBERS_DEFAULT);
        rp_tensor *x[2], *out[2], *grad[2][2];
        for (int k = 0; k < 2; k++) {
            x[k] = rp_detach(rp_to_dtype(rp_rand(RP_DIMS(64, 33)), types[t]));
            OK(rp_set_requires_grad(x[k], true));
        }
        for (int k = 0; k < 4; k++) { /* the last two calls are compiled ones */
            OK(rp_call(k % 2 ? plain : fast, x, 2, &out[k % 2], 1));
            rp_tensor *loss = rp_sum(out[k % 2]);
            OK(rp_grad(&loss, 1, x, 2, NULL, NULL, grad[k % 2]));
        }
        for (int k = 0; k < 2; k++) {
            rp_tensor *fine = rp_all(rp_isfinite(grad[0][k]));
            assert_true(rp_item_i64(fine));
            assert_true(distance(rp_sum(grad[0][k], RP_DIMS(-1), false), rp_sum(grad[1][k], RP_DIMS(-1), false), 0.1) <=
                        (types[t] == RP_F32 ? 1e-5 : 0.1));
        }
        rp_compiled_release(fast);
        rp_compiled_release(plain);
    }
}

/* Rounded products are equal to what memory holds of them. */
BODY(compared) {
    UNUSED;
    rp_tensor *y = rp_mul(in[0], in[1]);
    out[0] = rp_eq(y, in[2]);
    out[1] = rp_floor(y);
}
static void comparisons_see_rounded_values(void **state) {
    (void)state;
    rp_compiled *fast = compiled(compared, RP_NUMBERS_FAST);
    rp_tensor *x[3] = {rp_to_dtype(rp_mul_scalar(rp_rand(RP_DIMS(30, 40)), rp_f64(50)), RP_BF16),
                       rp_to_dtype(rp_rand(RP_DIMS(30, 40)), RP_BF16)};
    rp_tensor *out[2];
    x[2] = rp_mul(x[0], x[1]);
    call(fast, x, 3, out, 2);
    assert_true(rp_item_i64(rp_all(out[0])));
    same(out[1], rp_floor(x[2]));
    rp_compiled_release(fast);
}

static void an_unknown_kind_of_numbers(void **state) {
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){chain, NULL, 0, "f"}, RP_OPTIONS(rp_compile_options, .numbers = (rp_numbers)7));
    (void)f;
    assert_int_equal(rp_error_status(), RP_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(rp_error_message(), "7"));
    (void)rp_error_take();
}

/* ---- DAGs */

static void assert_text(rp__dag *d, const char *want) {
    rp__text t = {0};
    assert_non_null(d);
    rp__dag_text(d, &t);
    assert_string_equal(t.data, want);
    rp__text_free(&t);
    rp__dag_release(d);
}
enum { ALL = (1 << RP__FREE_COUNT) - 1 };

/* a b + a b c: the first product has two readers and stays. */
static void shared_products_stay(void **state) {
    (void)state;
    uint32_t taken[RP__FREE_COUNT] = {0};
    rp__dag_builder *b = rp__dag_new();
    uint16_t at[4];
    for (int k = 0; k < 3; k++) at[k] = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
    at[3] = rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, RP__ELEMENTS);
    rp__val v[3];
    for (int k = 0; k < 3; k++) v[k] = rp__dag_load(b, at[k], RP__NO_VAL, RP__NO_VAL);
    rp__val ab = rp__dag_op(b, RP__MUL, v[0], v[1], RP__NO_VAL), abc = rp__dag_op(b, RP__MUL, ab, v[2], RP__NO_VAL);
    rp__dag_store(b, at[3], rp__dag_op(b, RP__SUB, ab, abc, RP__NO_VAL));
    assert_text(rp__dag_relax(rp__dag_finish(b), 1u << RP__FREE_FMA, taken),
                "access @0 read f32 [a]\naccess @1 read f32 [a]\naccess @2 read f32 [a]\naccess @3 write f32 [a]\n"
                "%0 f32 = load @0 [a] phase 0\n%1 f32 = load @1 [a] phase 0\n%2 f32 = load @2 [a] phase 0\n"
                "%3 f32 = mul %0, %1 [a] phase 0\n%4 f32 = neg %3 [a] phase 0\n"
                "%5 f32 = fma %4, %2, %3 [a] phase 0\nstore @3 %5\n");
    assert_int_equal(taken[RP__FREE_FMA], 1);
}

/* A quotient by a sum of the row; the exponential stays where functions may not be approximate. */
static void quotients_by_row_values(void **state) {
    (void)state;
    for (int about = 0; about < 2; about++) {
        uint32_t taken[RP__FREE_COUNT] = {0};
        rp__dag_builder *b = rp__dag_new();
        uint16_t from = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
        uint16_t to = rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, RP__ELEMENTS);
        rp__val e = rp__dag_op(b, RP__EXP, rp__dag_load(b, from, RP__NO_VAL, RP__NO_VAL), RP__NO_VAL, RP__NO_VAL);
        rp__val s = rp__dag_reduce(b, RP__REDUCE_SUM, e, RP__ALONG_ROW);
        rp__dag_store(b, to, rp__dag_op(b, RP__DIV, e, s, RP__NO_VAL));
        char want[500];
        const char *word = about ? "approximate " : "";
        (void)snprintf(want, sizeof want,
                       "access @0 read f32 [ab]\naccess @1 write f32 [ab]\n%%0 f32 = load @0 [ab] phase 0\n"
                       "%%1 f32 = %sexp %%0 [ab] phase 0\n%%2 f32 = reduce sum %%1 over b [a] phase 1\n"
                       "%%3 f32 = %srecip %%2 [a] phase 1\n%%4 f32 = mul %%1, %%3 [ab] phase 1\nstore @1 %%4\n",
                       word, word);
        assert_text(rp__dag_relax(rp__dag_finish(b), about ? ALL : 1u << RP__FREE_QUOTIENT, taken), want);
        assert_int_equal(taken[RP__FREE_QUOTIENT], 1);
        assert_int_equal(taken[RP__FREE_FUNCTIONS], about ? 2 : 0);
    }
}

static void nothing_to_gain_is_the_same_kernel(void **state) {
    (void)state;
    uint32_t taken[RP__FREE_COUNT] = {0};
    rp__dag_builder *b = rp__dag_new();
    uint16_t from = rp__dag_access(b, RP__ACCESS_READ, RP_I16, RP__ELEMENTS);
    uint16_t to = rp__dag_access(b, RP__ACCESS_WRITE, RP_I16, RP__ELEMENTS);
    rp__val x = rp__dag_load(b, from, RP__NO_VAL, RP__NO_VAL), y = rp__dag_op(b, RP__MUL, x, x, RP__NO_VAL);
    y = rp__dag_cast(b, rp__dag_op(b, RP__ADD, rp__dag_cast(b, y, RP_I16), x, RP__NO_VAL), RP_I16);
    rp__dag_store(b, to, y);
    rp__dag *d = rp__dag_finish(b), *same_one = rp__dag_relax(rp__dag_retain(d), ALL, taken);
    assert_ptr_equal(d, same_one); /* integers wrap where their ops end */
    for (int f = 0; f < RP__FREE_COUNT; f++) assert_int_equal(taken[f], 0);
    rp__dag_release(d);
    rp__dag_release(same_one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(results_are_near, begin, end),
        cmocka_unit_test_setup_teardown(explain_lists_freedoms, begin, end),
        cmocka_unit_test_setup_teardown(values_between_ops_are_wide, begin, end),
        cmocka_unit_test_setup_teardown(largest_elements_are_found, begin, end),
        cmocka_unit_test_setup_teardown(comparisons_see_rounded_values, begin, end),
        cmocka_unit_test_setup_teardown(an_unknown_kind_of_numbers, begin, end),
        cmocka_unit_test_setup_teardown(shared_products_stay, begin, end),
        cmocka_unit_test_setup_teardown(quotients_by_row_values, begin, end),
        cmocka_unit_test_setup_teardown(nothing_to_gain_is_the_same_kernel, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
