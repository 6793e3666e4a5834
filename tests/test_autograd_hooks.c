/* What programs hang into the tape: hooks, retained gradients, custom functions, checkpoints. */
/* ctest: labels=threads timeout=300 cost=3 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "autograd/tape.h"
#include "support/tape.h"

/* ---------------------------------------------------------------- hooks */

typedef struct log {
    rp_tensor *on;
    uint64_t id[4];
    char calls[32];
    double factor;
} hook_log;

static rp_tensor *hook_scale(void *ctx, rp_tensor *grad) {
    hook_log *l = ctx;
    strcat(l->calls, "s");
    return rp_mul_scalar(grad, rp_f64(l->factor));
}
static rp_tensor *hook_see(void *ctx, rp_tensor *grad) {
    hook_log *l = ctx;
    strcat(l->calls, "v");
    assert_true(rp_numel(grad) > 0);
    return NULL;
}
static rp_tensor *hook_remove_next(void *ctx, rp_tensor *grad) {
    hook_log *l = ctx;
    (void)grad;
    strcat(l->calls, "r");
    if (l->id[1]) ok(rp_remove_hook(l->on, l->id[1]));
    l->id[1] = 0;
    return NULL;
}
static rp_tensor *hook_bad(void *ctx, rp_tensor *grad) {
    (void)ctx;
    return rp_sum(grad);
}

enum { hook_fails_line = __LINE__ + 3 };
static rp_tensor *hook_fails(void *ctx, rp_tensor *grad) {
    (void)ctx;
    return rp_view(grad, RP_DIMS(7, 7));
}

static void hooks(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *g;
    hook_log l = {.factor = 10}, m = {.factor = 3};
    rp_tensor *h = rp_mul(x, x);
    assert_int_not_equal(rp_register_hook(h, hook_scale, &m), 0);
    assert_int_not_equal(rp_register_hook(h, hook_see, &m), 0);
    l.id[0] = rp_register_hook(x, hook_scale, &l);
    assert_int_not_equal(rp_register_hook(x, hook_see, &l), 0);
    rp_tensor *y = sum(h);
    ok(rp_backward(y, NULL, RETAIN));
    EQUAL(rp_grad_of(x), 60, 120);
    assert_string_equal(m.calls, "sv");
    assert_string_equal(l.calls, "sv");
    ok(rp_remove_hook(x, l.id[0]));
    assert_int_equal(rp_remove_hook(x, l.id[0]), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "has no hook");
    ok(rp_grad(&y, 1, &x, 1, NULL, RETAIN, &g)); /* hooks run for rp_grad too */
    EQUAL(g, 6, 12);
    assert_string_equal(l.calls, "svv");
    ok(rp_grad(&y, 1, &h, 1, NULL, NULL, &g));
    EQUAL(g, 3, 3);
    assert_int_equal(rp_register_hook(VEC(1), hook_see, &l), 0);
    FAILED(RP_ERROR_STATE, "requires a gradient");
    /* Removed while they run. */
    rp_tensor *z = LEAF(1);
    hook_log r = {.on = z, .factor = 5};
    r.id[0] = rp_register_hook(z, hook_remove_next, &r);
    r.id[1] = rp_register_hook(z, hook_scale, &r);
    ok(rp_backward(sum(z), NULL, NULL));
    assert_string_equal(r.calls, "r");
    EQUAL(rp_grad_of(z), 1);
    ok(rp_backward(sum(z), NULL, NULL));
    assert_string_equal(r.calls, "rr");
    /* A gradient of another size. */
    rp_tensor *t = LEAF(1, 2);
    char line[64];
    snprintf(line, sizeof line, "%s:%d", tape_file(__FILE__), __LINE__ + 1);
    rp_register_hook(t, hook_bad, NULL);
    assert_int_equal(rp_backward(sum(rp_mul(t, t)), NULL, NULL), RP_ERROR_SHAPE);
    assert_non_null(strstr(rp_error_message(), line)); /* where the hook comes from, not where the leaf was made */
    FAILED(RP_ERROR_SHAPE, "a hook returned");
    assert_null(rp_grad_of(t));
    rp_tensor *q = LEAF(1, 2);
    rp_register_hook(q, hook_fails, NULL);
    snprintf(line, sizeof line, "%s:%d", tape_file(__FILE__), hook_fails_line);
    assert_int_equal(rp_backward(sum(rp_mul(q, q)), NULL, NULL), RP_ERROR_SHAPE);
    assert_non_null(strstr(rp_error_message(), line)); /* an op in the hook has its own line */
    rp_error_take();
    /* On the value before an in-place op. */
    rp_tensor *v = LEAF(1), *before = rp_mul_scalar(v, rp_i64(2));
    hook_log b = {.factor = 100};
    b.id[0] = rp_register_hook(before, hook_scale, &b);
    rp_mul_scalar_(before, rp_i64(3));
    ok(rp_backward(before, NULL, RETAIN));
    EQUAL(rp_grad_of(v), 600);
    ok(rp_remove_hook(before, b.id[0]));
    ok(rp_backward(before, NULL, NULL));
    EQUAL(rp_grad_of(v), 606);
}

static void retained_gradients(void **state) {
    (void)state;
    rp_tensor *x = LEAF(1, 2), *h = rp_mul(x, x);
    ok(rp_retain_grad(h));
    ok(rp_retain_grad(h));
    ok(rp_retain_grad(x));
    rp_tensor *y = sum(rp_mul_scalar(h, rp_i64(4)));
    ok(rp_backward(y, NULL, RETAIN));
    EQUAL(rp_grad_of(h), 4, 4);
    ok(rp_backward(y, NULL, NULL));
    EQUAL(rp_grad_of(h), 8, 8);
    /* It is the handle that keeps it: after an in-place op the new value's. */
    rp_tensor *k = rp_mul_scalar(x, rp_i64(1));
    ok(rp_retain_grad(k));
    rp_mul_scalar_(k, rp_i64(2));
    ok(rp_backward(sum(rp_mul_scalar(k, rp_i64(5))), NULL, NULL));
    EQUAL(rp_grad_of(k), 5, 5);
    assert_int_equal(rp_retain_grad(VEC(1)), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "does not require");
    /* The handle is gone before the gradient comes. */
    rp_scope inner = rp_scope_begin();
    rp_tensor *gone = rp_mul_scalar(x, rp_i64(1));
    ok(rp_retain_grad(gone));
    rp_tensor *s = sum(gone);
    ok(rp_scope_end(inner, &s, 1));
    ok(rp_backward(s, NULL, NULL));
}

/* ---------------------------------------------------------------- custom functions */

static int forward_runs;
static void cube_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    assert_true(n_in == 2 && n_out == 2 && !rp_grad_enabled());
    forward_runs++;
    out[0] = rp_mul(rp_mul(in[0], in[0]), in[0]);
    out[1] = in[1]; /* handed through */
}
static rp_status cube_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                               size_t n_out, rp_tensor **grad_in, size_t n_in) {
    assert_true(n_saved == 4 && n_out == 2 && n_in == 2);
    *(int *)ctx += 1;
    /* 3 x^2 by x and by the saved result: x^3 * 3 / x. */
    grad_in[0] = rp_mul(grad_out[0], rp_mul_scalar(rp_div(saved[2], saved[0]), rp_i64(3)));
    grad_in[1] = grad_out[1];
    return RP_OK;
}

static void custom_functions(void **state) {
    (void)state;
    int backward_runs = 0;
    rp_function f = {.struct_size = sizeof f,
                     .forward = {cube_body, NULL, 0, "cube"},
                     .backward = cube_backward,
                     .backward_ctx = &backward_runs,
                     .save_outputs = true};
    rp_tensor *x = LEAF(2, 3), *other = VEC(1), *out[2], *g1, *g2;
    ok(rp_function_apply(&f, RP_TENSORS(x, other), out, 2));
    assert_true(rp_requires_grad(out[0]) && !rp_is_leaf(out[0]));
    assert_ptr_not_equal(out[1], other);
    EQUAL(out[0], 8, 27);
    ok(rp_backward(sum(out[0]), NULL, RETAIN));
    EQUAL(rp_grad_of(x), 12, 27);
    rp_tensor *y = sum(out[0]);
    ok(rp_grad(&y, 1, &x, 1, NULL, CREATE, &g1)); /* the backward's own ops are differentiated */
    rp_tensor *s = sum(g1);
    ok(rp_grad(&s, 1, &x, 1, NULL, NULL, &g2));
    EQUAL(g2, 12, 18);
    assert_int_equal(backward_runs, 3); /* once more for the saved result's own history */
    /* Without a gradient: the forward alone. */
    forward_runs = 0;
    rp_set_grad_enabled(false);
    ok(rp_function_apply(&f, RP_TENSORS(x, other), out, 2));
    rp_set_grad_enabled(true);
    assert_true(forward_runs == 1 && !rp_requires_grad(out[0]));
    f.backward = NULL;
    assert_int_equal(rp_function_apply(&f, RP_TENSORS(x, other), out, 2), RP_ERROR_INVALID_ARGUMENT);
    assert_true(rp_is_error(out[0]));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "cube");
}

static rp_status wrong_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                                size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)saved, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = rp_cat(RP_TENSORS(grad_out[0], grad_out[0]), 0);
    return RP_OK;
}
static void twice_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_i64(2));
}
static void custom_gradients_must_fit(void **state) {
    (void)state;
    rp_function f = {.struct_size = sizeof f, .forward = {twice_body, NULL, 0, "twice"}, .backward = wrong_backward};
    rp_tensor *x = LEAF(2, 3), *out;
    ok(rp_function_apply(&f, &x, 1, &out, 1));
    assert_int_equal(rp_backward(sum(out), NULL, NULL), RP_ERROR_SHAPE);
    FAILED(RP_ERROR_SHAPE, "twice returned a gradient of size (4) for an input of size (2)");
}

/* A backward that only returns a status: the sticky error says whose it was. */
static rp_status silent_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                                 size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)saved, (void)n_saved, (void)grad_out, (void)n_out, (void)grad_in, (void)n_in;
    return RP_ERROR_IO;
}
static rp_status silent_op_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                               rp_tensor *const *in_t, rp_tensor *const *out_t, const rp_attr *attrs, size_t n_attrs) {
    (void)ctx, (void)in, (void)n_in, (void)out, (void)n_out, (void)in_t, (void)out_t, (void)attrs, (void)n_attrs;
    return RP_OK;
}
static rp_status silent_op_backward(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in,
                                    size_t n_in, rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs,
                                    rp_tensor **grad_in) {
    (void)ctx, (void)grad_out, (void)n_out, (void)in, (void)n_in, (void)out, (void)attrs, (void)n_attrs, (void)grad_in;
    return RP_ERROR_UNAVAILABLE;
}
static void statuses_without_an_error(void **state) {
    (void)state;
    rp_function f = {.struct_size = sizeof f, .forward = {twice_body, NULL, 0, "quiet"}, .backward = silent_backward};
    rp_tensor *x = LEAF(2), *out;
    ok(rp_function_apply(&f, &x, 1, &out, 1));
    assert_int_equal(rp_backward(out, NULL, NULL), RP_ERROR_IO);
    FAILED(RP_ERROR_IO, "the backward of custom function `quiet` returned RP_ERROR_IO");
    ok(rp_op_register(RP_OPTIONS(rp_op_descriptor, .schema = "quiet_op(Tensor a) -> Tensor", .cpu = silent_op_cpu,
                                 .backward = silent_op_backward)));
    ok(rp_op_call("quiet_op", &x, 1, NULL, 0, &out, 1));
    assert_int_equal(rp_backward(out, NULL, NULL), RP_ERROR_UNAVAILABLE);
    FAILED(RP_ERROR_UNAVAILABLE, "the backward of op `quiet_op` returned RP_ERROR_UNAVAILABLE");
}

/* Factors and exponents at the end of 64 bits: less one, and negated, they are floats. */
static void numbers_at_the_end(void **state) {
    (void)state;
    rp_tensor *a = LEAF(1), *b = LEAF(2);
    ok(rp_backward(sum(rp_sub(a, b, RP_OPTIONS(rp_sub_options, .alpha = rp_i64(INT64_MIN)))), NULL, NULL));
    EQUAL(rp_grad_of(b), 0x1p63);
    rp_tensor *x = LEAF(2, 1);
    ok(rp_backward(sum(rp_pow_scalar(x, rp_i64(INT64_MIN))), NULL, NULL));
    EQUAL(rp_grad_of(x), 0, -0x1p63);
}

/* ---------------------------------------------------------------- recomputation */

typedef struct block {
    rp_tensor *w;
    int runs;
} block;

static void block_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    block *b = ctx;
    b->runs++;
    rp_tensor *h = rp_tanh(rp_mul(in[0], b->w));
    h = rp_dropout(rp_mul(h, h), 0.5, true);
    out[0] = rp_mul(rp_exp(h), rp_sin(rp_add(h, in[0])));
}

static void nest_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *first = rp_sin(rp_mul(in[0], in[0])), *middle;
    ok(rp__checkpoint_run(NULL, (rp_fn){block_body, ctx, 0, "block"}, NULL, &first, n_in, &middle, 1));
    out[0] = rp_mul(middle, first);
    (void)n_out;
}

static void run_block(rp_body *body, bool checkpoint, block *b, rp_tensor *x, rp_tensor **gx, rp_tensor **gw,
                      rp_tensor **ggx) {
    rp_tensor *out, *g[2];
    ok(rp_manual_seed(3));
    b->runs = 0;
    if (checkpoint)
        ok(rp__checkpoint_run(NULL, (rp_fn){body, b, sizeof *b, "block"}, NULL, &x, 1, &out, 1));
    else
        body(b, &x, 1, &out, 1);
    rp_tensor *next = rp_rand(
        RP_DIMS(1),
        RP_OPTIONS(rp_rand_options, .dtype = RP_F64)); /* the generator goes on from here, also after a recomputation */
    rp_tensor *y = sum(rp_mul(out, next));
    ok(rp_grad(&y, 1, (rp_tensor *[]){x, b->w}, 2, NULL, CREATE, g));
    *gx = g[0];
    *gw = g[1];
    rp_tensor *s = sum(add(rp_mul(g[0], g[0]), g[1]));
    ok(rp_grad(&s, 1, &x, 1, NULL, NULL, ggx));
    *ggx = rp_mul(*ggx, rp_rand(RP_DIMS(1), RP_OPTIONS(rp_rand_options, .dtype = RP_F64)));
}

static void same(rp_tensor *a, rp_tensor *b) {
    double x[8], y[8];
    size_t bytes = (size_t)rp_numel(a) * sizeof *x;
    ok(rp_to_host(a, x, bytes));
    ok(rp_to_host(b, y, bytes));
    assert_memory_equal(x, y, bytes);
}

static void recomputation(void **state) {
    (void)state;
    rp_tensor *x = LEAF(0.1, -0.4, 0.7, 1.1), *w = LEAF(0.3, 0.8, -1.2, 0.5), *want[3], *have[3];
    block b = {.w = w};
    run_block(block_body, false, &b, x, &want[0], &want[1], &want[2]);
    assert_int_equal(b.runs, 1);
    run_block(block_body, true, &b, x, &have[0], &have[1], &have[2]);
    assert_int_equal(b.runs, 2);
    for (int i = 0; i < 3; i++) same(want[i], have[i]);
    run_block(nest_body, false, &b, x, &want[0], &want[1], &want[2]);
    run_block(nest_body, true, &b, x, &have[0], &have[1], &have[2]);
    for (int i = 0; i < 3; i++) same(want[i], have[i]);
    /* An argument that was changed meanwhile is found out. */
    rp_tensor *in = rp_mul_scalar(x, rp_i64(1)), *out;
    ok(rp__checkpoint_run(NULL, (rp_fn){block_body, &b, sizeof b, "block"}, NULL, &in, 1, &out, 1));
    rp_add_scalar_(in, rp_i64(1));
    assert_int_equal(rp_backward(sum(out), NULL, NULL), RP_ERROR_VERSION);
    FAILED(RP_ERROR_VERSION, "add_scalar_");
}

static void wavering_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    int *runs = ctx;
    rp_tensor *h = rp_sin(rp_mul_scalar(in[0], rp_i64(2)));
    out[0] = ++*runs > 1 ? rp_mul(h, h) : h;
}
static void recomputation_must_repeat(void **state) {
    (void)state;
    int runs = 0;
    rp_tensor *x = LEAF(1), *out;
    ok(rp__checkpoint_run(NULL, (rp_fn){wavering_body, &runs, sizeof runs, "wavering"}, NULL, &x, 1, &out, 1));
    assert_int_equal(rp_backward(out, NULL, NULL), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "must do the same both times");
}

typedef struct reader { /* reads `other` from outside; `count` is its own to write */
    rp_tensor *other, *count;
} reader;
static void reader_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const reader *r = ctx;
    (void)n_in, (void)n_out;
    bool grad = rp_set_grad_enabled(false);
    rp_add_scalar_(r->count, rp_i64(1));
    rp_set_grad_enabled(grad);
    rp_tensor *made = rp_mul_scalar(in[0], rp_i64(3));
    rp_sin_(made);
    out[0] = rp_mul(rp_tanh(rp_add(rp_view(r->other, RP_DIMS(2)), made)), r->count);
}
static void reader_around(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    ok(rp__checkpoint_run(NULL, (rp_fn){reader_body, ctx, sizeof(reader), "reader"}, NULL, in, n_in, out, n_out));
    out[0] = rp_sin(out[0]);
}

/* The second run would read the new value: the gradient of another function. */
static void recomputation_reads_what_was(void **state) {
    (void)state;
    for (int nested = 0; nested < 2; nested++) {
        rp_fn fn = {nested ? reader_around : reader_body, NULL, sizeof(reader), "reader"};
        rp_tensor *x = LEAF(0.5, 2), *w = LEAF(1, 2), *out;
        reader r = {rp_mul_scalar(w, rp_i64(2)), VEC(1)};
        fn.ctx = &r;
        ok(rp__checkpoint_run(NULL, fn, NULL, &x, 1, &out, 1));
        ok(rp_backward(sum(out), NULL, NULL));
        ok(rp__checkpoint_run(NULL, fn, NULL, &x, 1, &out, 1));
        rp_mul_scalar_(r.other, rp_i64(2));
        assert_int_equal(rp_backward(sum(out), NULL, NULL), RP_ERROR_VERSION);
        FAILED(RP_ERROR_VERSION, "must run again for a gradient, but a tensor that it reads from outside");
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(hooks),
        TEST(retained_gradients),
        TEST(custom_functions),
        TEST(custom_gradients_must_fit),
        TEST(statuses_without_an_error),
        TEST(numbers_at_the_end),
        TEST(recomputation),
        TEST(recomputation_must_repeat),
        TEST(recomputation_reads_what_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
