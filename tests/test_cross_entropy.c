/* Cross-entropy where its parts are easily lost: large logits, classes of bytes beside an ignore_index that no byte holds. Eagerly
   and compiled, on the CPU and on CUDA.
   ctest: labels=numbers,cuda timeout=300 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>

#include <reprise.h>

#include "support/cuda.h"

static bool have_cuda;

static void no_errors(int line) {
    if (rp_failed()) fail_msg("line %d: %s", line, rp_error_message());
}
#define OK() no_errors(__LINE__)

static void loss_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_cross_entropy(in[0], in[1], NULL, 0, -100);
}

/* Losses of each row and, in `slope`, the gradient of their sum. */
static void losses(bool compiled, rp_tensor *x, rp_tensor *target, float *loss, float *slope) {
    rp_fn fn = {loss_body, NULL, 0, "loss"};
    rp_compiled *f = compiled ? rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused")) : rp_plain(fn);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    rp_tensor *in[2] = {x, target}, *y;
    assert_int_equal(rp_call(f, in, 2, &y, 1), RP_OK);
    assert_int_equal(rp_backward(rp_sum(y), NULL, NULL), RP_OK);
    OK();
    assert_int_equal(rp_to_host(y, loss, (size_t)rp_numel(y) * 4), RP_OK);
    assert_int_equal(rp_to_host(rp_grad_of(x), slope, (size_t)rp_numel(x) * 4), RP_OK);
    rp_compiled_release(f);
    OK();
}

/* The loss of logits (a, a - 1) and class 0 is log(1 + 1 / e) for every a, its gradient -+ 1 / (1 + e). */
static void large(bool compiled) {
    static const float at[] = {0, 100, -100, 1e4f, 1e6f, -1e6f, 4e6f};
    enum { ROWS = sizeof at / sizeof *at };
    float logits[2 * ROWS], loss[ROWS], slope[2 * ROWS];
    int64_t classes[ROWS] = {0};
    for (int i = 0; i < ROWS; i++) logits[2 * i] = at[i], logits[2 * i + 1] = at[i] - 1;
    rp_scope scope = rp_scope_begin();
    losses(compiled, rp_from_data(logits, RP_DIMS(ROWS, 2), RP_F32), rp_from_data(classes, RP_DIMS(ROWS), RP_I64), loss,
           slope);
    for (int i = 0; i < ROWS; i++) {
        const double want = log1p(exp(-1.0)), part = 1 / (1 + exp(1.0));
        if (!(fabs(loss[i] - want) <= 2e-7 && fabs(slope[2 * i] + part) <= 2e-7 &&
              fabs(slope[2 * i + 1] - part) <= 2e-7))
            fail_msg("logits around %g: loss %.9g, gradient %.9g %.9g", (double)at[i], (double)loss[i],
                     (double)slope[2 * i], (double)slope[2 * i + 1]);
    }
    rp_scope_end(scope, NULL, 0);
}

static void equal_logits(bool compiled) {
    float loss[1], slope[2];
    rp_scope scope = rp_scope_begin();
    losses(compiled, rp_full(RP_DIMS(1, 2), rp_f64(1e8)),
           rp_zeros(RP_DIMS(1), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)), loss, slope);
    assert_true(fabs((double)loss[0] - log(2)) <= 1e-7 && slope[0] == -0.5f && slope[1] == 0.5f);
    rp_scope_end(scope, NULL, 0);
}

/* Byte 156 is (uint8_t)-100, and a class like any other; an ignore_index of a byte is seen. */
static void classes_of_bytes(void) {
    enum { C = 200 };
    const uint8_t small[] = {156, 3};
    const int64_t wide[] = {156, 3};
    rp_scope scope = rp_scope_begin();
    for (int64_t reduction = 0; reduction < 3; reduction++) {
        for (int k = 0; k < 2; k++) {
            const int64_t ignore = k ? 156 : -100;
            float slope[2][2 * C];
            double value[2];
            for (int bytes = 0; bytes < 2; bytes++) {
                rp_tensor *x = rp_full(RP_DIMS(2, C), rp_f64(0.5));
                assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
                rp_tensor *target =
                    bytes ? rp_from_data(small, RP_DIMS(2), RP_U8) : rp_from_data(wide, RP_DIMS(2), RP_I64);
                rp_tensor *loss = rp_sum(rp_cross_entropy(x, target, NULL, reduction, ignore));
                assert_int_equal(rp_backward(loss, NULL, NULL), RP_OK);
                value[bytes] = rp_item_f64(loss);
                assert_int_equal(rp_to_host(rp_grad_of(x), slope[bytes], sizeof slope[bytes]), RP_OK);
                OK();
            }
            const double rows = k ? 1 : 2, each = log(C);
            assert_true(fabs(value[0] - (reduction == 1 ? each : rows * each)) < 1e-5);
            assert_true(value[0] == value[1]);
            assert_memory_equal(slope[0], slope[1], sizeof slope[0]);
            assert_true(k ? slope[1][156] == 0 : slope[1][156] < -0.4f);
        }
    }
    rp_scope_end(scope, NULL, 0);
}

static void everything(void) {
    large(false);
    large(true);
    equal_logits(false);
    equal_logits(true);
    classes_of_bytes();
}
static void on_cpu(void **state) {
    (void)state;
    everything();
}
static void on_cuda(void **state) {
    (void)state;
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    everything();
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_cpu), cmocka_unit_test(on_cuda)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
