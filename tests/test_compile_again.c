/* Compiled functions called again in ways that the first call did not show: a third size of a dim, empty tensors, the same tensor
   twice, a call that fails. Every result and gradient is compared, bit for bit, with the function run eagerly, on every backend
   that compiles. */
/* ctest: labels=compile timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "support/trace_help.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 3 };

static rp_compiled *compiled(rp_body *body, const char *name, const char *backend) {
    rp_compiled *f = rp_compile((rp_fn){body, NULL, 0, name},
                                RP_OPTIONS(rp_compile_options, .backend = backend, .fullgraph = true));
    assert_ok();
    return f;
}

static rp_tensor *total(rp_tensor *t) { return rp_sum(t, RP_NO_DIMS, false, RP_DTYPE_NONE); }

/* Calls the function and what stands for it with the same values; compares results, strides and gradients. */
static void check_call(rp_body *body, rp_compiled *f, size_t ndim, const int64_t *size, bool grad) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *got[2][2];
    for (int k = 0; k < 2; k++) {
        rp_tensor *x = filled_with(0.4, ndim, size);
        if (grad) assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        if (k)
            assert_int_equal(rp_call(f, &x, 1, &got[k][0], 1), RP_OK);
        else
            body(NULL, &x, 1, &got[k][0], 1);
        assert_ok();
        if (!grad) continue;
        assert_int_equal(rp_backward(total(rp_mul(got[k][0], got[k][0])), NULL, NULL), RP_OK);
        got[k][1] = rp_grad_of(x);
        assert_non_null(got[k][1]);
    }
    assert_same(got[1][0], got[0][0]);
    for (size_t d = 0; d < rp_ndim(got[0][0]); d++)
        assert_int_equal(rp_stride(got[1][0], (int64_t)d), rp_stride(got[0][0], (int64_t)d));
    if (grad) assert_same(got[1][1], got[0][1]);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* Nothing gave up on the way: the values would be right then, too. */
static void assert_compiled(rp_compiled *f) {
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_at(f, i, &e), RP_OK);
        if (strcmp(e.kind, "skip") == 0 || strcmp(e.kind, "break") == 0)
            fail_msg("%s %s: %s", e.kind, e.reason, e.message);
    }
}

/* ---- sizes */

static rp_status halve_on_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                              rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                              size_t n_attrs) {
    (void)ctx, (void)n_in, (void)n_out, (void)out_tensors, (void)attrs, (void)n_attrs;
    for (int64_t i = 0; i < rp_numel(in_tensors[0]); i++) ((float *)out[0])[i] = 0.5f * ((const float *)in[0])[i];
    return RP_OK;
}

/* A derivative that reads a size as a number: only a guard keeps the graph right. */
static rp_status halve_backward(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in, size_t n_in,
                                rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs, rp_tensor **grad_in) {
    (void)ctx, (void)n_out, (void)n_in, (void)out, (void)attrs, (void)n_attrs;
    grad_in[0] = rp_mul_scalar(grad_out[0], rp_f64((double)rp_size(in[0], 0)));
    return RP_OK;
}

BODY(halve) {
    UNUSED;
    (void)rp_op_call("again_test_halve", in, 1, NULL, 0, out, 1);
}
BODY(mean) {
    UNUSED;
    out[0] = rp_mean(rp_mul(in[0], in[0]), RP_NO_DIMS, false, RP_DTYPE_NONE);
}
BODY(variance) {
    UNUSED;
    rp_tensor *c = rp_sub(in[0], rp_mean(in[0], RP_DIMS(0), true, RP_DTYPE_NONE), rp_i64(1));
    out[0] = rp_mean(rp_mul(c, c), RP_DIMS(0), false, RP_DTYPE_NONE);
}
BODY(mse) {
    UNUSED;
    out[0] = rp_mse_loss(in[0], rp_zeros_like(in[0]), 1);
}
BODY(classes) {
    UNUSED;
    rp_tensor *target = rp_to_dtype(rp_zeros_like(rp_select(in[0], 1, 0)), RP_I64);
    out[0] = rp_cross_entropy(in[0], target, 1, -100);
}
BODY(joined) {
    UNUSED;
    out[0] = rp_cat((rp_tensor *const[]){in[0], rp_sin(in[0])}, 2, 0);
}
BODY(joined_across) {
    UNUSED;
    out[0] = rp_cat((rp_tensor *const[]){rp_exp(in[0]), in[0]}, 2, 1);
}
BODY(softmax) {
    UNUSED;
    out[0] = rp_softmax(rp_sin(in[0]), 0);
}
BODY(column_sum) {
    UNUSED;
    out[0] = rp_sum(rp_exp(in[0]), RP_DIMS(0), false, RP_DTYPE_NONE);
}
BODY(tail) { /* n - 1 columns: none for n = 1 */
    UNUSED;
    out[0] = rp_sin(rp_slice(in[0], 1, 1, INT64_MIN, 1));
}

static const struct {
    const char *name;
    rp_body *body;
} sized[] = {{"halve", halve},   {"mean", mean},     {"variance", variance},           {"mse", mse},
             {"classes", classes}, {"joined", joined}, {"joined_across", joined_across}, {"softmax", softmax},
             {"column_sum", column_sum}};

/* Each size is taken twice by then, so that a wrong graph cannot hide behind the call that made it. */
static void test_many_sizes(void **state) {
    (void)state;
    static const int64_t rows[] = {4, 4, 8, 8, 16, 5, 1, 2, 1, 7};
    assert_int_equal(rp_op_register(RP_OPTIONS(rp_op_descriptor, .schema = "again_test_halve(Tensor self) -> Tensor",
                                               .doc = "0.5 self", .cpu = halve_on_cpu, .backward = halve_backward)),
                     RP_OK);
    for (size_t c = 0; c < sizeof sized / sizeof *sized; c++) {
        for (int b = 0; b < BACKENDS; b++) {
            for (int which = 0; which < 3; which++) { /* rows change, columns change, both do */
                rp_compiled *f = compiled(sized[c].body, sized[c].name, backends[b]);
                for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                    check_call(sized[c].body, f, 2,
                               (const int64_t[]){which == 1 ? 3 : rows[i], which == 0 ? 3 : rows[i]}, true);
                assert_compiled(f);
                rp_compiled_release(f);
            }
        }
    }
}

static void test_empty(void **state) {
    (void)state;
    static const int64_t n[] = {3, 3, 5, 5, 0, 0, 7, 0};
    static const struct {
        const char *name;
        rp_body *body;
    } empty[] = {{"softmax", softmax}, {"column_sum", column_sum}, {"joined", joined}};
    for (size_t c = 0; c < sizeof empty / sizeof *empty; c++) {
        for (int b = 0; b < BACKENDS; b++) {
            for (int from_empty = 0; from_empty < 2; from_empty++) {
                rp_compiled *f = compiled(empty[c].body, empty[c].name, backends[b]);
                if (from_empty) check_call(empty[c].body, f, 2, (const int64_t[]){2, 0}, true);
                for (size_t i = 0; i < sizeof n / sizeof *n; i++)
                    check_call(empty[c].body, f, 2, (const int64_t[]){2, n[i]}, true);
                assert_compiled(f);
                rp_compiled_release(f);
            }
        }
    }
    for (int b = 0; b < BACKENDS; b++) { /* a size that follows from a symbol becomes 0 */
        rp_compiled *f = compiled(tail, "tail", backends[b]);
        for (int64_t columns = 5; columns > 0; columns--)
            for (int again = 0; again < 2; again++)
                check_call(tail, f, 2, (const int64_t[]){3, columns}, true);
        assert_compiled(f);
        rp_compiled_release(f);
    }
}

/* ---- arguments that are, or overlap, each other or what the function reaches by itself */

BODY(product) {
    UNUSED;
    out[0] = rp_mul(rp_sin(in[0]), in[1]);
}

enum { APART, TWINS, OVERLAP, LAYOUTS };

static void pair(int layout, bool grad, rp_tensor **leaf, rp_tensor **in) {
    leaf[0] = filled(0.3, 1, 6);
    leaf[1] = filled(0.8, 1, 6);
    for (int k = 0; k < 2 && grad; k++) assert_int_equal(rp_set_requires_grad(leaf[k], true), RP_OK);
    in[0] = leaf[0];
    in[1] = layout == TWINS ? leaf[0] : leaf[1];
    if (layout != OVERLAP) return;
    in[0] = rp_slice(leaf[0], 0, 0, 4, 1);
    in[1] = rp_slice(leaf[0], 0, 2, 6, 1);
}

static void check_pair(rp_compiled *f, int layout, bool grad) {
    rp_tensor *leaf[2][2], *in[2], *got[2];
    for (int k = 0; k < 2; k++) {
        pair(layout, grad, leaf[k], in);
        if (k)
            assert_int_equal(rp_call(f, in, 2, &got[k], 1), RP_OK);
        else
            product(NULL, in, 2, &got[k], 1);
        assert_ok();
        if (grad) assert_int_equal(rp_backward(total(rp_mul(got[k], got[k])), NULL, NULL), RP_OK);
    }
    assert_same(got[1], got[0]);
    for (int k = 0; k < 2 && grad; k++) {
        rp_tensor *want = rp_grad_of(leaf[0][k]), *have = rp_grad_of(leaf[1][k]);
        assert_true(!want == !have);
        if (want) assert_same(have, want);
    }
}

static void test_shared_arguments(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        for (int first = 0; first < LAYOUTS; first++) {
            for (int then = 0; then < LAYOUTS; then++) {
                for (int grad = 0; grad < 2; grad++) {
                    rp_scope scope = rp_scope_begin();
                    rp_compiled *f = compiled(product, "product", backends[b]);
                    for (int call = 0; call < 2; call++) check_pair(f, first, grad);
                    for (int call = 0; call < 3; call++) check_pair(f, then, grad);
                    check_pair(f, first, grad);
                    assert_compiled(f);
                    rp_compiled_release(f);
                    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
                }
            }
        }
    }
}

static rp_tensor *global;
BODY(with_global) {
    UNUSED;
    out[0] = rp_sub(rp_mul(in[0], global), rp_sin(in[0]), rp_i64(1));
}

/* The argument of a call may be the tensor that the function also reads by itself; that of the next one is another. */
static void test_argument_from_outside(void **state) {
    (void)state;
    static const int calls[][5] = {{1, 1, 0, 0, 1}, {1, 0, 0, 1, 0}, {0, 1, 1, 0, 1}, {0, 0, 1, 1, 0}, {2, 2, 0, 1, 2}};
    for (int b = 0; b < BACKENDS; b++) {
        for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
            rp_scope scope = rp_scope_begin();
            rp_compiled *f = compiled(with_global, "global", backends[b]);
            global = filled(0.7, 1, 4);
            rp_tensor *other = filled(0.2, 1, 4), *got, *want;
            rp_tensor *from[] = {other, global, rp_view(global, RP_DIMS(4))};
            for (int call = 0; call < 5; call++) {
                assert_int_equal(rp_call(f, &from[calls[c][call]], 1, &got, 1), RP_OK);
                with_global(NULL, &from[calls[c][call]], 1, &want, 1);
                assert_same(got, want);
            }
            assert_compiled(f);
            rp_compiled_release(f);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
    }
}

/* One failure must not make the next tests fail. */
static int clean(void **state) {
    (void)state;
    rp_error_take();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_many_sizes, clean),
        cmocka_unit_test_teardown(test_empty, clean),
        cmocka_unit_test_teardown(test_shared_arguments, clean),
        cmocka_unit_test_teardown(test_argument_from_outside, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
