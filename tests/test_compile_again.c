/* Compiled functions called again in ways that the first call did not show: a third size of a dim, empty tensors, the same
   tensor twice, a call that fails, hooks, gradients of some results or of gradients. Every result and gradient is compared,
   bit for bit, with the function run eagerly, on every backend that compiles. */
/* ctest: labels=compile timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "core/alloc.h"
#include "support/trace_help.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 3 };

static rp_compiled *compiled(rp_body *body, const char *name, const char *backend) {
    rp_compiled *f =
        rp_compile((rp_fn){body, NULL, 0, name}, RP_OPTIONS(rp_compile_options, .backend = backend, .fullgraph = true));
    assert_ok();
    return f;
}

static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }

/* Calls the function and what stands for it with the same values; compares results, strides and gradients. */
static void check_call(rp_body *body, rp_compiled *f, size_t ndim, const int64_t *size, bool grad) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *got[2][2];
    for (int k = 0; k < 2; k++) {
        rp_tensor *x = filled_with(0.4, ndim, size);
        if (grad) assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        if (k)
            OK(rp_call(f, &x, 1, &got[k][0], 1));
        else
            body(NULL, &x, 1, &got[k][0], 1);
        assert_ok();
        if (!grad) continue;
        OK(rp_backward(total(rp_mul(got[k][0], got[k][0])), NULL, NULL));
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
        assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
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
    out[0] = rp_mean(rp_mul(in[0], in[0]));
}
BODY(variance) {
    UNUSED;
    rp_tensor *c = rp_sub(in[0], rp_mean(in[0], RP_DIMS(0), true));
    out[0] = rp_mean(rp_mul(c, c), RP_DIMS(0));
}
BODY(mse) {
    UNUSED;
    out[0] = rp_mse_loss(in[0], rp_zeros_like(in[0]), 1);
}
BODY(classes) {
    UNUSED;
    rp_tensor *target = rp_to_dtype(rp_zeros_like(rp_select(in[0], 1, 0)), RP_I64);
    out[0] = rp_cross_entropy(in[0], target);
}
BODY(joined) {
    UNUSED;
    out[0] = rp_cat(((rp_tensor *const[]){in[0], rp_sin(in[0])}), 2, 0);
}
BODY(joined_across) {
    UNUSED;
    out[0] = rp_cat(((rp_tensor *const[]){rp_exp(in[0]), in[0]}), 2, 1);
}
BODY(softmax) {
    UNUSED;
    out[0] = rp_softmax(rp_sin(in[0]), 0);
}
BODY(column_sum) {
    UNUSED;
    out[0] = rp_sum(rp_exp(in[0]), RP_DIMS(0));
}
BODY(tail) { /* n - 1 columns: none for n = 1 */
    UNUSED;
    out[0] = rp_sin(rp_slice(in[0], 1, 1, INT64_MIN, 1));
}

static const struct {
    const char *name;
    rp_body *body;
} sized[] = {{"halve", halve},          {"mean", mean},     {"variance", variance},           {"mse", mse},
             {"classes", classes},      {"joined", joined}, {"joined_across", joined_across}, {"softmax", softmax},
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
            for (int again = 0; again < 2; again++) check_call(tail, f, 2, (const int64_t[]){3, columns}, true);
        assert_compiled(f);
        rp_compiled_release(f);
    }
}

/* ---- arguments that are, or overlap, each other or what the function reaches by itself */

BODY(product) {
    UNUSED;
    out[0] = rp_mul(rp_sin(in[0]), in[1]);
}

enum { APART, TWINS, OVERLAP, FURTHER, LAYOUTS };

static void pair(int layout, bool grad, rp_tensor **leaf, rp_tensor **in) {
    leaf[0] = filled(0.3, 1, 6);
    leaf[1] = filled(0.8, 1, 6);
    for (int k = 0; k < 2 && grad; k++) assert_int_equal(rp_set_requires_grad(leaf[k], true), RP_OK);
    in[0] = leaf[0];
    in[1] = layout == TWINS ? leaf[0] : leaf[1];
    if (layout < OVERLAP) return;
    in[0] = rp_slice(leaf[0], 0, 0, 3, 1);
    in[1] = rp_slice(leaf[0], 0, layout - OVERLAP + 1, layout - OVERLAP + 4, 1);
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
    out[0] = rp_sub(rp_mul(in[0], global), rp_sin(in[0]));
}

/* The argument of a call may be the tensor that the function also reads by itself; that of the next one is another. */
static void test_argument_from_outside(void **state) {
    (void)state;
    static const int calls[][5] = {{1, 1, 0, 0, 1}, {1, 0, 0, 1, 0}, {0, 1, 1, 0, 1}, {0, 0, 1, 1, 0},
                                   {2, 2, 0, 1, 2}, {3, 3, 4, 3, 4}, {3, 4, 4, 0, 3}};
    for (int b = 0; b < BACKENDS; b++) {
        for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
            rp_scope scope = rp_scope_begin();
            rp_compiled *f = compiled(with_global, "global", backends[b]);
            global = filled(0.7, 1, 4);
            rp_tensor *other = filled(0.2, 1, 4), *got, *want;
            rp_tensor *both = filled(0.1, 1, 9); /* with the global in it, in some calls */
            if (calls[c][0] > 2) global = rp_slice(both, 0, 2, 6, 1);
            rp_tensor *from[] = {other, global, rp_view(global, RP_DIMS(4)), rp_slice(both, 0, 0, 4, 1),
                                 rp_slice(both, 0, 5, 9, 1)};
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

/* ---- a call that fails is one call that fails */

BODY(largest) {
    UNUSED;
    out[0] = rp_amax(rp_sin(in[0]), RP_DIMS(0), false);
}
static bool broken;
BODY(sometimes) {
    UNUSED;
    out[0] = rp_exp(broken ? rp_slice(in[0], 5, 0, 1, 1) : in[0]);
}

static void test_failing_call(void **state) {
    (void)state;
    static const int64_t rows[] = {3, 3, 5, 5, 0, 6, 6, 0, 0, 7, 3};
    for (int b = 0; b < BACKENDS; b++) {
        rp_compiled *f = compiled(largest, "largest", backends[b]);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            if (rows[i]) {
                check_call(largest, f, 2, (const int64_t[]){rows[i], 2}, true);
                continue;
            }
            rp_tensor *x = rp_zeros(RP_DIMS(0, 2)), *y;
            assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_INDEX);
            assert_non_null(strstr(rp_error_message(), "amax"));
            assert_true(rp_is_error(y));
            rp_error_take();
        }
        assert_compiled(f);
        rp_compiled_release(f);

        f = compiled(sometimes, "sometimes", backends[b]); /* while the second call is compared with the first */
        check_call(sometimes, f, 1, (const int64_t[]){4}, true);
        rp_tensor *x = rp_zeros(RP_DIMS(4)), *y;
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        broken = true;
        assert_int_not_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_non_null(strstr(rp_error_message(), "slice"));
        rp_error_take();
        broken = false;
        for (int call = 0; call < 3; call++) check_call(sometimes, f, 1, (const int64_t[]){4}, true);
        assert_compiled(f);
        rp_compiled_release(f);
    }
}

/* ---- gradients of some results, and gradients of gradients */

static rp_tensor *scale;
BODY(three) { /* the derivative of the second is infinite at 0; the third draws */
    UNUSED;
    out[0] = total(rp_mul(rp_sin(in[0]), scale));
    out[1] = rp_sqrt(rp_mul(in[0], in[0]));
    out[2] = rp_dropout(rp_mul(rp_exp(in[0]), rp_tanh(in[0])), 0.5, true);
}
BODY(three_by_size) {
    UNUSED;
    rp_tensor *h = rp_softmax(in[0], 0);
    out[0] = total(rp_mul(h, rp_sin(in[0])));
    out[1] = rp_sqrt(rp_mul(in[0], in[0]));
    out[2] = rp_mean(rp_mul(in[0], h), RP_DIMS(0));
}

/* Gradients of the results in `mask`, one backward for all of them, or one each. */
static void check_some(rp_body *body, rp_compiled *f, int64_t n, int mask, bool together) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *grad[2][3], *out[3];
    for (int k = 0; k < 2; k++) {
        rp_tensor *x = filled_with(0.4, 1, &n);
        rp_mul_scalar_(rp_slice(x, 0, 0, 1, 1), rp_f64(0));
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        assert_int_equal(rp_manual_seed(3), RP_OK);
        if (k)
            assert_int_equal(rp_call(f, &x, 1, out, 3), RP_OK);
        else
            body(NULL, &x, 1, out, 3);
        rp_tensor *after = rp_rand(RP_DIMS(1)), *sum = after;
        for (int r = 0; r < 3; r++) {
            if (!(mask >> r & 1)) continue;
            rp_tensor *part = total(rp_mul(out[r], out[r]));
            sum = rp_add(sum, part);
            if (!together)
                assert_int_equal(rp_backward(part, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)), RP_OK);
        }
        if (together) assert_int_equal(rp_backward(sum, NULL, NULL), RP_OK);
        grad[k][0] = rp_grad_of(x);
        grad[k][1] = rp_grad_of(scale) ? rp_clone(rp_grad_of(scale)) : NULL;
        assert_int_equal(rp_set_grad(scale, NULL), RP_OK);
        grad[k][2] = rp_rand(RP_DIMS(2)); /* the generator goes on as ever */
    }
    for (int g = 0; g < 3; g++) {
        assert_true(!grad[0][g] == !grad[1][g]);
        if (grad[0][g]) assert_same(grad[1][g], grad[0][g]);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

static void test_some_results(void **state) {
    (void)state;
    static const int masks[] = {1, 1, 1, 1, 7, 7, 2, 1, 5, 6, 4, 4, 3, 1, 7};
    scale = rp_retain(rp_full(RP_DIMS(1), rp_f64(1.5)));
    assert_int_equal(rp_set_requires_grad(scale, true), RP_OK);
    for (int b = 0; b < BACKENDS; b++) {
        for (int together = 0; together < 2; together++) {
            rp_compiled *f = compiled(three, "three", backends[b]);
            for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) check_some(three, f, 5, masks[i], together);
            assert_compiled(f);
            rp_compiled_release(f);
            f = compiled(three_by_size, "three", backends[b]);
            for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
                for (int64_t n = 3; n < 6; n++) check_some(three_by_size, f, n, masks[i], together);
            assert_compiled(f);
            rp_compiled_release(f);
        }
    }
    rp_release(scale);
}

/* d/dx and d/dscale of |g|^2 with g = d out / dx, x made from a leaf, and one argument from the other */
BODY(curved) {
    UNUSED;
    out[0] = rp_dropout(rp_mul(rp_sin(rp_mul(in[0], in[1])), scale), 0.25, true);
    out[1] = total(rp_mul(rp_exp(in[0]), in[1]));
}
static void second_derivative(rp_compiled *f, rp_tensor **grads) {
    rp_tensor *leaf = filled(0.3, 1, 4), *out[2], *g[3], *squares = NULL;
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    rp_tensor *in[2] = {rp_mul_scalar(leaf, rp_f64(1.5)), NULL};
    in[1] = rp_tanh(in[0]);
    assert_int_equal(rp_manual_seed(8), RP_OK);
    if (f)
        assert_int_equal(rp_call(f, in, 2, out, 2), RP_OK);
    else
        curved(NULL, in, 2, out, 2);
    rp_tensor *sum = rp_add(total(rp_mul(out[0], out[0])), out[1]), *to[] = {in[0], leaf, scale};
    assert_int_equal(rp_grad(&sum, 1, to, 3, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), g), RP_OK);
    for (int k = 0; k < 3; k++) {
        rp_tensor *part = total(rp_mul(g[k], g[k]));
        squares = squares ? rp_add(squares, part) : part;
        grads[k] = rp_detach(g[k]);
    }
    assert_int_equal(rp_grad(&squares, 1, to + 1, 2, NULL, NULL, grads + 3), RP_OK);
    grads[5] = rp_rand(RP_DIMS(2)); /* the generator goes on as ever */
    assert_ok();
}

static void test_second_derivative(void **state) {
    (void)state;
    scale = rp_retain(rp_full(RP_DIMS(4), rp_f64(1.25)));
    assert_int_equal(rp_set_requires_grad(scale, true), RP_OK);
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = compiled(curved, "curved", backends[b]);
        rp_tensor *want[6], *got[6];
        second_derivative(NULL, want);
        for (int call = 0; call < 4; call++) {
            second_derivative(f, got);
            for (int k = 0; k < 6; k++) {
                float x[4], y[4]; /* sums of second derivatives may be taken in another order */
                size_t bytes = (size_t)rp_numel(want[k]) * sizeof *x;
                assert_int_equal(rp_to_host(want[k], x, bytes), RP_OK);
                assert_int_equal(rp_to_host(got[k], y, bytes), RP_OK);
                for (size_t i = 0; i < bytes / sizeof *x; i++)
                    if (!(fabsf(x[i] - y[i]) <= 1e-5f * (1 + fabsf(x[i])))) fail_msg("%d: %g, not %g", k, y[i], x[i]);
            }
        }
        assert_compiled(f);
        /* what the call read must still be there */
        rp_tensor *in[2] = {filled(0.1, 1, 4), filled(0.2, 1, 4)}, *out[2], *g;
        assert_int_equal(rp_set_requires_grad(in[1], true), RP_OK);
        assert_int_equal(rp_call(f, in, 2, out, 2), RP_OK);
        assert_int_equal(rp_call(f, in, 2, out, 2), RP_OK);
        rp_add_scalar_(in[0], rp_i64(1));
        assert_int_equal(rp_grad(&out[1], 1, &in[1], 1, NULL, NULL, &g), RP_ERROR_VERSION);
        assert_non_null(strstr(rp_error_message(), "add_scalar_"));
        rp_error_take();
        rp_compiled_release(f);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
    rp_release(scale);
}

/* ---- writes through views of what carries a gradient: one graph, bit for bit, down to the signs of zeros */

BODY(filled_part) {
    UNUSED;
    rp_tensor *a = rp_zeros_like(in[0]);
    rp_copy_(a, in[0]);
    rp_fill_(rp_slice(a, 0, 0, 1, 1), rp_f64(0));
    out[0] = rp_mul(a, a);
}
BODY(scaled_part) {
    UNUSED;
    rp_tensor *a = rp_mul_scalar(rp_relu(rp_sin(in[0])), rp_f64(2));
    rp_mul_scalar_(rp_select(rp_slice(a, 0, 1, 3, 1), 1, 1), rp_f64(-0.5));
    rp_add_(rp_slice(a, 1, 0, 4, 2), rp_exp(rp_slice(in[0], 1, 0, 4, 2)),
            RP_OPTIONS(rp_add_options, .alpha = rp_i64(2)));
    out[0] = rp_mul(rp_relu(a), a);
}
BODY(copied_part) {
    UNUSED;
    rp_tensor *a = rp_mul_scalar(in[0], rp_f64(3)), *row = rp_select(a, 0, 0), *sum = rp_exp(row);
    rp_copy_(rp_select(a, 0, 2), sum);
    rp_tanh_(rp_select(a, 0, 1));
    out[0] = rp_add(rp_cos(a), rp_select(a, 0, 2));
}

static void test_written_parts(void **state) {
    (void)state;
    static rp_body *const bodies[] = {filled_part, scaled_part, copied_part};
    for (size_t c = 0; c < sizeof bodies / sizeof *bodies; c++) {
        for (int b = 0; b < BACKENDS; b++) {
            rp_compiled *f = compiled(bodies[c], "part", backends[b]);
            for (int64_t rows = 3; rows < 6; rows++)
                for (int again = 0; again < 2; again++) check_call(bodies[c], f, 2, (const int64_t[]){rows, 4}, true);
            assert_compiled(f);
            rp_compiled_release(f);
        }
    }
}

/* ---- hooks */

static int hooks_run;
static rp_tensor *tenfold(void *ctx, rp_tensor *grad) {
    (void)ctx;
    hooks_run++;
    return rp_mul_scalar(grad, rp_i64(10));
}
BODY(hook_inside) {
    UNUSED;
    rp_tensor *h = rp_sin(in[0]);
    assert_int_not_equal(rp_register_hook(h, tenfold, NULL), 0);
    out[0] = rp_mul(h, h);
}
BODY(hook_on_argument) {
    UNUSED;
    assert_int_not_equal(rp_register_hook(in[0], tenfold, NULL), 0);
    out[0] = rp_exp(in[0]);
}
BODY(hook_for_a_while) { /* gone before anybody could ask for a gradient */
    UNUSED;
    uint64_t id = rp_register_hook(in[0], tenfold, NULL);
    assert_int_equal(rp_remove_hook(in[0], id), RP_OK);
    out[0] = rp_exp(in[0]);
}
BODY(hooked_block) {
    UNUSED;
    out[0] = rp_sin(in[0]);
    (void)rp_register_hook(out[0], tenfold, NULL); /* refused where the block is recorded */
}
BODY(hook_in_branch) {
    UNUSED;
    const rp_fn block = {hooked_block, NULL, 0, "block"};
    rp_tensor *on = rp_gt_scalar(total(rp_mul(in[0], in[0])), rp_f64(0));
    assert_int_equal(rp_cond(on, block, block, in, 1, out, 1), RP_OK);
}
BODY(hook_in_checkpoint) {
    UNUSED;
    assert_int_equal(rp_checkpoint((rp_fn){hooked_block, NULL, 0, "block"}, in, 1, out, 1), RP_OK);
}
BODY(hook_and_backward) {
    UNUSED;
    rp_tensor *h = rp_sin(in[0]);
    assert_int_not_equal(rp_register_hook(h, tenfold, NULL), 0);
    assert_int_equal(rp_backward(total(rp_mul(h, h)), NULL, NULL), RP_OK);
    out[0] = rp_detach(h);
}

static double gradient_of_call(rp_compiled *f, rp_status want, bool inside) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(1), rp_f64(0.5)), *y;
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_int_equal(rp_call(f, &x, 1, &y, 1), want);
    rp_error_take();
    if (!inside) assert_int_equal(rp_backward(total(y), NULL, NULL), RP_OK);
    double g = rp_item_f64(rp_grad_of(x));
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    return g;
}

static void test_hooks(void **state) {
    (void)state;
    static const struct {
        rp_body *body;
        const char *reason; /* of the break */
        bool inside;
    } cases[] = {{hook_inside, "hook-registered", false},
                 {hook_on_argument, "hook-registered", false},
                 {hook_for_a_while, NULL, false},
                 {hook_in_branch, "region-not-traceable", false},
                 {hook_in_checkpoint, "hook-registered", false},
                 {hook_and_backward, NULL, true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rp_compiled *plain = rp_plain((rp_fn){cases[c].body, NULL, 0, "hooked"});
        hooks_run = 0;
        double want = gradient_of_call(plain, RP_OK, cases[c].inside);
        assert_int_equal(hooks_run, cases[c].body == hook_for_a_while ? 0 : 1);
        rp_compiled_release(plain);
        for (int b = 0; b < BACKENDS; b++) {
            for (int full = 0; full < 2; full++) {
                rp_compiled *f = rp_compile((rp_fn){cases[c].body, NULL, 0, "hooked"},
                                            RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = full));
                for (int call = 0; call < 4; call++) {
                    hooks_run = 0;
                    rp_status status = full && cases[c].reason ? RP_ERROR_GRAPH_BREAK : RP_OK;
                    assert_true(gradient_of_call(f, status, cases[c].inside) == want);
                    if (cases[c].reason) assert_int_equal(hooks_run, 1);
                }
                assert_int_equal(explain_total(f, "break", NULL), cases[c].reason ? 1 : 0);
                if (cases[c].reason) assert_int_equal(explain_total(f, "break", cases[c].reason), 1);
                rp_compiled_release(f);
            }
        }
    }
}

/* A result that keeps its gradient keeps it at every call. */
BODY(keeps_gradient) {
    UNUSED;
    out[0] = rp_sin(in[0]);
    assert_int_equal(rp_retain_grad(out[0]), RP_OK);
}
static void test_retained(void **state) {
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){keeps_gradient, NULL, 0, "keeps"}, NULL);
    for (int call = 0; call < 4; call++) {
        rp_tensor *x = filled(0.1, 1, 3), *y;
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_int_equal(rp_backward(total(rp_mul(y, y)), NULL, NULL), RP_OK);
        assert_non_null(rp_grad_of(y));
    }
    assert_int_equal(explain_total(f, "break", "hook-registered"), 1);
    rp_compiled_release(f);
}

/* A hook of a parameter runs in the backward that the function calls: it is part of the graph, so another one is another
   graph. */
static rp_tensor *weight;
BODY(step) {
    UNUSED;
    rp_set_grad(weight, NULL);
    assert_int_equal(rp_backward(total(rp_mul(in[0], rp_exp(weight))), NULL, NULL), RP_OK);
    out[0] = rp_clone(rp_grad_of(weight));
}
static void test_hook_of_parameter(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_compiled *f = compiled(step, "step", backends[b]);
        weight = rp_zeros(RP_DIMS(1));
        assert_int_equal(rp_set_requires_grad(weight, true), RP_OK);
        rp_tensor *x = rp_ones(RP_DIMS(1)), *y;
        uint64_t id = 0;
        static const double want[] = {1, 1, 1, 10, 10, 10, 1, 1};
        for (int call = 0; call < 8; call++) {
            if (call == 3) id = rp_register_hook(weight, tenfold, NULL);
            if (call == 6) assert_int_equal(rp_remove_hook(weight, id), RP_OK);
            assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
            assert_true(rp_item_f64(y) == want[call]);
        }
        assert_compiled(f);
        rp_set_grad(weight, NULL);
        rp_compiled_release(f);
    }
}

/* ---- the n-th allocation fails */

/* Twins, a hook that comes and goes, a gradient of one result twice, one of all, and one that has a history. */
static rp_status everything(const char *backend) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *w = rp_full(RP_DIMS(3), rp_f64(1.5));
    rp_set_requires_grad(w, true);
    scale = w;
    rp_compiled *f = rp_compile((rp_fn){curved, NULL, 0, "curved"}, RP_OPTIONS(rp_compile_options, .backend = backend));
    for (int call = 0; call < 6 && !rp_failed(); call++) {
        rp_tensor *x = rp_full(RP_DIMS(3), rp_f64(0.4)), *in[2] = {x, x}, *out[2], *g;
        rp_set_requires_grad(x, true);
        if (rp_call(f, in, 2, out, 2) != RP_OK) break;
        rp_tensor *sum = total(out[0]);
        if (call == 4) sum = rp_add(sum, out[1]);
        if (call == 5)
            rp_grad(&sum, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &g);
        else
            rp_backward(sum, NULL, NULL);
    }
    rp_compiled_release(f);
    rp_set_grad(w, NULL);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? rp_error_take() : RP_OK;
}

static void test_out_of_memory(void **state) {
    (void)state;
    static const char *const leaves[] = {"aot_eager", "fused"};
    for (int b = 0; b < 2; b++) {
        for (int warm = 0; warm < 2; warm++) assert_int_equal(everything(leaves[b]), RP_OK);
        uint64_t live = rp__alloc_live();
        bool done = false;
        for (uint64_t n = 1; !done; n += n < 300 ? 1 : 17) {
            uint64_t before = rp__alloc_fail_at(n);
            rp_status status = everything(leaves[b]);
            uint64_t after = rp__alloc_fail_at(0);
            done = after - before < n;
            if (status != RP_OK && (done || status != RP_ERROR_OUT_OF_MEMORY))
                fail_msg("%s, allocation %llu: status %d", leaves[b], (unsigned long long)n, (int)status);
        }
        assert_int_equal(everything(leaves[b]), RP_OK);
        assert_in_range(rp__alloc_live(), 0, live + 8); /* caches may have lost an entry, or found room for one */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_many_sizes, take_error),
        cmocka_unit_test_teardown(test_empty, take_error),
        cmocka_unit_test_teardown(test_shared_arguments, take_error),
        cmocka_unit_test_teardown(test_argument_from_outside, take_error),
        cmocka_unit_test_teardown(test_failing_call, take_error),
        cmocka_unit_test_teardown(test_some_results, take_error),
        cmocka_unit_test_teardown(test_second_derivative, take_error),
        cmocka_unit_test_teardown(test_written_parts, take_error),
        cmocka_unit_test_teardown(test_hooks, take_error),
        cmocka_unit_test_teardown(test_retained, take_error),
        cmocka_unit_test_teardown(test_hook_of_parameter, take_error),
        cmocka_unit_test_teardown(test_out_of_memory, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
