/* ctest: labels=threads timeout=300 cost=5 */
/* Graphed callables on the CPU device, by PyTorch's numbered behaviours (docs/deviations.md): M.. of make_graphed_callables,
   R8 of recomputation; then the same on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). test_graphs.c has raw
   graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "support/graphs.h"

/* A leaf of its own over the same values. */
static rp_tensor *leaf(rp_tensor *values) {
    rp_tensor *x = rp_detach(values);
    OK(rp_set_requires_grad(x, true));
    return x;
}

/* ---- graphed callables ---- */

typedef struct mlp {
    rp_tensor *w1, *b1, *w2, *b2;
} mlp;

static rp_tensor *parameter(rp_tensor *t) {
    rp_tensor *p = rp_retain(rp_detach(rp_mul_scalar(rp_add_scalar(t, rp_f64(-0.5)), rp_f64(0.6))));
    OK(rp_set_requires_grad(p, true));
    return p;
}
static void mlp_make(mlp *m) {
    OK(rp_manual_seed(3));
    m->w1 = parameter(rp_rand(RP_DIMS(64, 10)));
    m->b1 = parameter(rp_rand(RP_DIMS(64)));
    m->w2 = parameter(rp_rand(RP_DIMS(10, 64)));
    m->b2 = parameter(rp_rand(RP_DIMS(10)));
}
static void mlp_free(mlp *m) {
    rp_release(m->w1);
    rp_release(m->b1);
    rp_release(m->w2);
    rp_release(m->b2);
}
static void mlp_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    mlp *m = ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_linear(rp_relu(rp_linear(in[0], m->w1, m->b1)), m->w2, m->b2);
}

static rp_compiled *graph_mlp(mlp *m, rp_tensor *x) {
    rp_compiled *f;
    rp_graphed_callable c = {
        .fn = {mlp_body, m, sizeof *m, "mlp"}, .args = &x, .n_args = 1, .params = &m->w1, .n_params = 4, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    return f;
}

static void
test_graphed_training(void **state) { /* M16, M29-M34, M40, M42, M54: equal to eager, bit for bit, step by step */
    (void)state;
    mlp a, b;
    mlp_make(&a);
    mlp_make(&b);
    rp_tensor *sample = rp_rand(RP_DIMS(8, 10));
    rp_compiled *f = graph_mlp(&a, sample);
    assert_null(rp_grad_of(a.w1)); /* M16: nothing accumulated by warm-up or capture */
    for (int step = 0; step < 5; step++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_rand(RP_DIMS(8, 10)), *out, *eager;
        OK(rp_call(f, &x, 1, &out, 1));
        mlp_body(&b, &x, 1, &eager, 1);
        same(out, eager);
        OK(rp_backward(rp_sum(rp_mul(out, out)), NULL, NULL));
        OK(rp_backward(rp_sum(rp_mul(eager, eager)), NULL, NULL));
        same(rp_grad_of(a.w1), rp_grad_of(b.w1)); /* also the second micro-batch, which adds (M42) */
        same(rp_grad_of(a.b2), rp_grad_of(b.b2));
        if (step % 2) {
            bool grad = rp_set_grad_enabled(false);
            rp_tensor *pa[] = {a.w1, a.b1, a.w2, a.b2}, *pb[] = {b.w1, b.b1, b.w2, b.b2};
            for (int k = 0; k < 4; k++) {
                rp_sub_(pa[k], rp_grad_of(pa[k]), RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.01)));
                rp_sub_(pb[k], rp_grad_of(pb[k]), RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.01)));
                OK(rp_set_grad(pa[k], NULL));
                OK(rp_set_grad(pb[k], NULL));
            }
            (void)rp_set_grad_enabled(grad);
        }
        OK(rp_scope_end(scope, NULL, 0));
    }
    bool grad = rp_set_grad_enabled(false); /* M36 */
    rp_tensor *out;
    OK(rp_call(f, &sample, 1, &out, 1));
    assert_false(rp_requires_grad(out));
    (void)rp_set_grad_enabled(grad);
    rp_compiled_release(f);
    mlp_free(&a);
    mlp_free(&b);
}

static void test_graphed_errors(void **state) { /* M27, M28, M31, M33, M34: upstream is silent */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *x = rp_rand(RP_DIMS(4, 10)), *out, *again;
    rp_compiled *f = graph_mlp(&m, x);
    rp_tensor *wide = rp_rand(RP_DIMS(4, 11)),
              *ints = rp_zeros(RP_DIMS(4, 10), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64));
    FAILS(RP_ERROR_GUARD, "argument 0 is float32 (4, 11)", rp_call(f, &wide, 1, &out, 1));
    FAILS(RP_ERROR_GUARD, "int64", rp_call(f, &ints, 1, &out, 1));
    FAILS(RP_ERROR_GUARD, "called with 0 arguments", rp_call(f, NULL, 0, &out, 1));
    OK(rp_call(f, &x, 1, &out, 1));
    OK(rp_call(f, &x, 1, &again, 1));
    assert_true(rp_is_error(rp_sin(out))); /* overwritten by the second call */
    assert_int_equal(rp_error_status(), RP_ERROR_STALE);
    (void)rp_error_take();
    OK(rp_backward(rp_sum(again), NULL, NULL));
    OK(rp_call(f, &x, 1, &out, 1));
    rp_tensor *loss = rp_sum(out);
    OK(rp_backward(loss, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)));
    FAILS(RP_ERROR_STATE, "second backward", rp_backward(loss, NULL, NULL));
    OK(rp_call(f, &x, 1, &out, 1));
    FAILS(RP_ERROR_STATE, "differentiated once",
          rp_backward(rp_sum(out), NULL, RP_OPTIONS(rp_backward_options, .create_graph = true)));
    rp_compiled_release(f);
    mlp_free(&m);
}

static void test_graphed_validation(void **state) { /* M3, M9, M14, M15 */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_compiled *f;
    rp_tensor *x = rp_rand(RP_DIMS(4, 10)), *wide = rp_expand(rp_rand(RP_DIMS(1, 10)), RP_DIMS(4, 10));
    rp_graphed_callable c = {
        .fn = {mlp_body, &m, sizeof m, "mlp"}, .args = &wide, .n_args = 1, .params = &m.w1, .n_params = 4, .n_out = 1};
    FAILS(RP_ERROR_INVALID_ARGUMENT, "expanded", rp_make_graphed_callables(&c, 1, NULL, &f));
    rp_tensor *two[] = {x, rp_view(x, RP_DIMS(40))};
    c.args = two;
    c.n_args = 2;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "shares memory", rp_make_graphed_callables(&c, 1, NULL, &f));
    two[1] = rp_from_blob((float *)rp_data(x) + 39, RP_DIMS(40), NULL, RP_F32, rp_default_device(), NULL, NULL);
    FAILS(RP_ERROR_INVALID_ARGUMENT, "shares memory with argument", rp_make_graphed_callables(&c, 1, NULL, &f));
    c.n_args = 1;
    two[0] = rp_from_blob(rp_data(m.w1), RP_DIMS(4, 10), NULL, RP_F32, rp_default_device(), NULL, NULL);
    FAILS(RP_ERROR_INVALID_ARGUMENT, "shares memory with parameter", rp_make_graphed_callables(&c, 1, NULL, &f));
    two[0] = x;
    c.n_args = 2;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "no callable", rp_make_graphed_callables(NULL, 0, NULL, &f));
    rp_tensor *unused = rp_rand(RP_DIMS(3));
    OK(rp_set_requires_grad(unused, true));
    rp_tensor *more[] = {x, unused};
    c.args = more;
    FAILS(RP_ERROR_STATE, "argument 1 (float32 (3), from ",
          rp_make_graphed_callables(&c, 1, NULL, &f)); /* M15: unused, and not allowed */
    OK(rp_make_graphed_callables(&c, 1, RP_OPTIONS(rp_graphed_options, .allow_unused_input = true), &f));
    rp_tensor *out;
    OK(rp_call(f, more, 2, &out, 1));
    OK(rp_backward(rp_sum(out), NULL, NULL));
    assert_null(rp_grad_of(unused));
    rp_compiled_release(f);
    mlp_free(&m);
}

static void half_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *y = rp_dropout(in[0], 0.5, true);
    out[0] = rp_tanh(y);
    out[1] = in[0]; /* a result that is an argument */
}

static void test_graphed_several(void **state) { /* M2, M20-M23, M50, R4: two in one pool; dropout equals eager's */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *x = rp_rand(RP_DIMS(6, 10)), *y = rp_rand(RP_DIMS(6, 10));
    OK(rp_set_requires_grad(y, true));
    rp_graphed_callable c[2] = {
        {.fn = {mlp_body, &m, sizeof m, "mlp"}, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 4, .n_out = 1},
        {.fn = {half_body, NULL, 0, "half"}, .args = &y, .n_args = 1, .n_out = 2}};
    rp_compiled *f[2];
    OK(rp_make_graphed_callables(c, 2, NULL, f));
    OK(rp_manual_seed(11));
    rp_tensor *h, *out[2], *eager[2], *eh;
    OK(rp_call(f[0], &x, 1, &h, 1));
    OK(rp_call(f[1], &h, 1, out, 2));
    OK(rp_backward(rp_sum(out[0]), NULL, NULL));
    rp_tensor *w = rp_clone(rp_grad_of(m.w1));
    OK(rp_set_grad(m.w1, NULL));
    OK(rp_manual_seed(11));
    mlp_body(&m, &x, 1, &eh, 1);
    half_body(NULL, &eh, 1, eager, 2);
    same(out[0], eager[0]);
    same(out[1], eh);
    OK(rp_backward(rp_sum(eager[0]), NULL, NULL));
    same(w, rp_grad_of(m.w1));
    OK(rp_graphed_set_training(f[1], true)); /* M45: another mode runs eagerly */
    OK(rp_call(f[1], &y, 1, out, 2));
    OK(rp_graphed_set_training(f[1], false));
    rp_compiled_release(f[0]);
    rp_compiled_release(f[1]);
    mlp_free(&m);
}

static void half_weights(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    mlp *m = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_tanh(rp_matmul(in[0], rp_transpose(m->w1, 0, 1)));
}

static void
test_graphed_shared_parameters(void **state) { /* one parameter of several callables: its gradients add up */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *x = rp_rand(RP_DIMS(6, 10)), *h, *out;
    rp_fn first = {mlp_body, &m, sizeof m, "mlp"}, second = {half_weights, &m, sizeof m, "weights"};
    rp_graphed_callable c[3] = {
        {.fn = first, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 4, .n_out = 1},
        {.fn = second, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 1, .n_out = 1},
        {.fn = second, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 1, .n_out = 1},
    };
    rp_compiled *f[3];
    OK(rp_make_graphed_callables(c, 3, NULL, f));
    rp_tensor *sums[2], *grads[2];
    for (int graphed = 0; graphed < 2; graphed++) {
        if (graphed) {
            OK(rp_call(f[0], &x, 1, &h, 1));
            OK(rp_call(f[1], &x, 1, &out, 1));
        } else {
            first.body(&m, &x, 1, &h, 1);
            second.body(&m, &x, 1, &out, 1);
        }
        rp_tensor *sum = rp_sum(h);
        sum = rp_add(sum, rp_sum(out));
        OK(rp_backward(sum, NULL, NULL));
        sums[graphed] = sum;
        grads[graphed] = rp_clone(rp_grad_of(m.w1));
        for (int k = 0; k < 4; k++) OK(rp_set_grad((&m.w1)[k], NULL));
    }
    same(sums[0], sums[1]);
    same(grads[0], grads[1]);
    for (int k = 0; k < 3; k++) rp_compiled_release(f[k]);
    mlp_free(&m);
}

typedef struct scaling {
    rp_tensor *w;
    float k;
} scaling;
static void scaling_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    scaling *p = ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul_scalar(rp_mul(in[0], p->w), rp_f64((double)p->k));
}

static void test_graphed_ctx(void **state) { /* 1.12, M33: what the graph holds of ctx may not change behind it */
    (void)state;
    scaling p;
    memset(&p, 0, sizeof p);
    p.w = rp_ones(RP_DIMS(2));
    p.k = 2;
    rp_tensor *x = rp_full(RP_DIMS(2), rp_f64(3)), *out;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {scaling_body, &p, sizeof p, "scaling"}, .args = &x, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_call(f, &x, 1, &out, 1));
    assert_float_equal(rp_item_f64(rp_amax(out, RP_NO_DIMS, false)), 6, 0);
    p.k = 5;
    FAILS(RP_ERROR_GUARD, "scaling: byte", rp_call(f, &x, 1, &out, 1));
    assert_true(rp_is_error(out));
    OK(rp_graphed_set_training(f, true)); /* the other mode runs the function: it reads ctx itself */
    OK(rp_call(f, &x, 1, &out, 1));
    assert_float_equal(rp_item_f64(rp_amax(out, RP_NO_DIMS, false)), 15, 0);
    OK(rp_graphed_set_training(f, false));
    p.k = 2;
    rp_tensor *w = p.w;
    p.w = rp_full(RP_DIMS(2), rp_f64(100));
    FAILS(RP_ERROR_GUARD, "is not what it was at capture", rp_call(f, &x, 1, &out, 1));
    p.w = w;
    rp_fill_(w, rp_f64(4)); /* in place is seen */
    OK(rp_call(f, &x, 1, &out, 1));
    assert_float_equal(rp_item_f64(rp_amax(out, RP_NO_DIMS, false)), 24, 0);
    rp_compiled_release(f);
    c.fn.ctx = NULL;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "ctx", rp_make_graphed_callables(&c, 1, NULL, &f));
}

/* ctx: a tensor that the function reaches by itself */
static void times_captured(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_mul(in[0], *(rp_tensor **)ctx);
}

static void test_graphed_stale_place(void **state) { /* T29, M34: the message names the call that made what is gone */
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(4)), *first, *second;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {square_body, NULL, 0, "square"}, .args = &x, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_call_at("train.c:11", f, &x, 1, &first, 1));
    rp_tensor *part = rp_view_at("train.c:12", first, RP_DIMS(2, 2));
    OK(rp_call_at("train.c:21", f, &x, 1, &second, 1));
    FAILS(RP_ERROR_STALE, "made by rp_call at train.c:11", (rp_sin(first), rp_error_status()));
    FAILS(RP_ERROR_STALE, "rp_call at train.c:11", (rp_sin(part), rp_error_status())); /* a view: the call too */
    same(second, rp_mul(x, x));
    rp_compiled *squares = rp_compile((rp_fn){square_body, NULL, 0, "squares"}, NULL);
    rp_tensor *out, *now = second;
    for (int i = 0; i < 4; i++) { /* traced, compared, and as a program */
        FAILS(RP_ERROR_STALE, "squares: argument 0", rp_call(squares, &first, 1, &out, 1));
        OK(rp_call(squares, &now, 1, &out, 1));
        same(out, rp_mul(now, now));
        first = now;
        OK(rp_call(f, &x, 1, &now, 1));
    }
    rp_compiled_release(squares);
    rp_compiled *times = rp_compile((rp_fn){times_captured, &now, 0, "times"}, NULL);
    for (int i = 0; i < 3; i++) {
        OK(rp_call(times, &x, 1, &out, 1));
        same(out, rp_mul(x, now));
    }
    OK(rp_call(f, &x, 1, &second, 1));
    FAILS(RP_ERROR_STALE, "times: captured tensor 0", rp_call(times, &x, 1, &out, 1));
    rp_compiled_release(times);
    rp_tensor *wide = rp_rand(RP_DIMS(5));
    FAILS(RP_ERROR_GUARD, "train.c:31", rp_call_at("train.c:31", f, &wide, 1, &second, 1));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "train.c:32", rp_call_at("train.c:32", f, NULL, 1, &second, 1));
    rp_compiled_release(f);
}

static void busy_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *a = rp_exp(rp_sin(in[0]));
    out[0] = rp_tanh(rp_mul(a, rp_sigmoid(rp_mul(in[0], a))));
}

/* M50: the callables of one making in another order than they were captured in. What they would overwrite is an error. */
static void test_graphed_order(void **state) {
    (void)state;
    enum { N = 3 };
    rp_compiled *f[N];
    rp_tensor *sample[N], *x[N], *out[N], *eager[N], *want[N];
    rp_graphed_callable c[N];
    for (int i = 0; i < N; i++) {
        sample[i] = leaf(rp_rand(RP_DIMS(50, 40)));
        c[i] = (rp_graphed_callable){.fn = {busy_body, NULL, 0, "busy"}, .args = &sample[i], .n_args = 1, .n_out = 1};
    }
    OK(rp_make_graphed_callables(c, N, NULL, f));
    static const int orders[][2 * N] = {/* forwards, then backwards */
                                        {0, 1, 2, 2, 1, 0}, {0, 1, 2, 0, 1, 2}, {0, 1, 2, 1, 2, 0},
                                        {2, 1, 0, 0, 1, 2}, {1, 0, 2, 2, 1, 0}, {0, 1, 2, 2, 1, 0}};
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        int refused = 0;
        for (int at = 0; at < N; at++) {
            int i = orders[k][at];
            x[i] = leaf(rp_rand(RP_DIMS(50, 40)));
            eager[i] = leaf(rp_clone(rp_detach(x[i])));
            OK(rp_call(f[i], &x[i], 1, &out[i], 1));
            busy_body(NULL, &eager[i], 1, &want[i], 1);
        }
        for (int at = N; at < 2 * N; at++) {
            int i = orders[k][at];
            OK(rp_backward(rp_sum(want[i]), NULL, NULL));
            rp_tensor *loss = rp_sum(out[i]);
            if (!rp_is_error(loss)) { /* not overwritten: the values are right */
                same(out[i], want[i]);
                if (rp_backward(loss, NULL, NULL) == RP_OK) {
                    same(rp_grad_of(x[i]), rp_grad_of(eager[i]));
                    continue;
                }
            }
            refused++;
            assert_int_equal(rp_error_take(), RP_ERROR_STALE);
        }
        bool legal = orders[k][0] == 0 && orders[k][1] == 1 && orders[k][N] == 2 && orders[k][N + 1] == 1;
        assert_int_equal(refused == 0, legal);
    }
    for (int i = 0; i < N; i++) rp_compiled_release(f[i]);
}

/* M51: separate calls on one pool. Forwards in order, backwards in reverse, and then in another order: nothing is overwritten. */
static void test_graphed_one_pool(void **state) {
    (void)state;
    enum { N = 3 };
    for (int given = 0; given < 2; given++) { /* a pool of its own, or that of a raw graph */
        rp_graph *raw = rp_graph_new();
        OK(rp_graph_begin(raw, device, NULL));
        OK(rp_graph_end(raw));
        rp_pool *pool = given ? rp_graph_pool(raw) : rp_pool_new(device);
        rp_compiled *f[N];
        uint64_t held = 0;
        for (int round = 0; round < 4; round++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *sample[N], *x[N], *eager[N], *out[N], *want[N];
            for (int i = 0; i < N; i++) {
                sample[i] = rp_rand(RP_DIMS(50, 40));
                OK(rp_set_requires_grad(sample[i], true));
                rp_graphed_callable c = {
                    .fn = {busy_body, NULL, 0, "busy"}, .args = &sample[i], .n_args = 1, .n_out = 1};
                OK(rp_make_graphed_callables(&c, 1, RP_OPTIONS(rp_graphed_options, .pool = pool), &f[i]));
            }
            for (int order = 0; order < 2; order++) {
                for (int i = 0; i < N; i++) {
                    x[i] = rp_rand(RP_DIMS(50, 40));
                    eager[i] = rp_clone(x[i]);
                    OK(rp_set_requires_grad(x[i], true));
                    OK(rp_set_requires_grad(eager[i], true));
                }
                for (int k = 0; k < N; k++) {
                    int i = order ? N - 1 - k : k;
                    OK(rp_call(f[i], &x[i], 1, &out[i], 1));
                    busy_body(NULL, &eager[i], 1, &want[i], 1);
                }
                for (int k = 0; k < N; k++) {
                    int i = order ? (k + 1) % N : N - 1 - k;
                    OK(rp_backward(rp_sum(out[i]), NULL, NULL));
                    OK(rp_backward(rp_sum(want[i]), NULL, NULL));
                }
                for (int i = 0; i < N; i++) {
                    same(out[i], want[i]);
                    same(rp_grad_of(x[i]), rp_grad_of(eager[i]));
                    for (int j = 0; j < i; j++) assert_ptr_not_equal(rp_data(out[i]), rp_data(out[j]));
                }
            }
            for (int i = 0; i < N; i++) rp_compiled_release(f[i]);
            OK(rp_scope_end(scope, NULL, 0));
            OK(rp_synchronize(device));
            rp_memory_stats stats = {.struct_size = sizeof stats};
            OK(rp_memory_stats_get(device, &stats));
            if (round == 1) held = stats.in_private_pools;
            if (round > 1) assert_true(stats.in_private_pools <= held); /* the next round takes the same memory */
        }
        if (!given) rp_pool_release(pool);
        rp_graph_release(raw);
    }
}

/* ---- R8: recomputation draws again what the forward drew */

static void drop_inner(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    rp_tensor *h = rp_sin(rp_dropout(in[0], 0.5, true));
    out[0] = rp_mul(
        h, rp_dropout(h, 0.25, true,
                      RP_OPTIONS(rp_dropout_options, .generator = ctx))); /* ctx: a generator, or the default one */
}
static void drop_nested(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    rp_tensor *h = rp_dropout(in[0], 0.5, true), *deep;
    rp_checkpoint(((rp_fn){drop_inner, ctx, 0, "inner"}), &h, 1, &deep, 1);
    out[0] = rp_exp(rp_dropout(deep, 0.5, true));
}
typedef struct dropped {
    rp_body *body; /* checkpointed */
    rp_generator *generator;
    bool plain; /* without checkpoint: what the checkpoint must equal */
} dropped;
static void drop_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const dropped *d = ctx;
    rp_tensor *before = rp_mul(in[0], rp_dropout(in[0], 0.5, true)), *h;
    if (d->plain)
        d->body(d->generator, &before, n_in, &h, n_out);
    else
        rp_checkpoint(((rp_fn){d->body, d->generator, 0, "drop"}), &before, 1, &h, 1);
    out[0] = rp_mul(h, rp_dropout(h, 0.5, true));
}

typedef struct drawn { /* what a step gives, and where the generator is after it */
    rp_tensor *out, *grad, *next;
} drawn;
static void drawn_same(drawn a, drawn b) {
    same(a.out, b.out);
    same(a.grad, b.grad);
    same(a.next, b.next);
}
static void drop_seed(dropped *d, uint64_t seed) {
    OK(rp_manual_seed(seed));
    OK(rp_generator_seed(d->generator, seed + 100));
}

static drawn drop_eager(dropped *d, rp_tensor *values, uint64_t seed) {
    rp_tensor *x = leaf(values);
    drawn r;
    drop_seed(d, seed);
    drop_body(d, &x, 1, &r.out, 1);
    rp_tensor *loss = rp_sum(r.out);
    OK(rp_grad(&loss, 1, &x, 1, NULL, NULL, &r.grad));
    r.next = rp_rand(RP_DIMS(5));
    return r;
}

static void drop_whole(dropped *d, rp_tensor *values, drawn want[3]) { /* forward and backward in one capture */
    rp_tensor *x = leaf(values);
    drawn r;
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    drop_body(d, &x, 1, &r.out, 1);
    rp_tensor *loss = rp_sum(r.out);
    OK(rp_grad(&loss, 1, &x, 1, NULL, NULL, &r.grad));
    OK(rp_graph_end(g));
    for (uint64_t k = 0; k < 3; k++) {
        drop_seed(d, k);
        OK(rp_graph_replay(g));
        r.next = rp_rand(RP_DIMS(5));
        drawn_same(r, want[k]);
    }
    rp_graph_release(g);
}

/* The forward in one capture or in none, the backward in another or in none. */
static void drop_parts(dropped *d, rp_tensor *values, drawn want[3], bool forward, bool backward) {
    rp_tensor *x = leaf(values);
    drawn r;
    rp_graph *f = rp_graph_new(), *b = rp_graph_new();
    /* one stream for all: a backward runs where its forward ran (M43), which must not be the default stream in a capture */
    rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(s));
    drop_seed(d, 0);
    if (forward) OK(rp_graph_begin(f, device, RP_OPTIONS(rp_graph_options, .stream = s)));
    drop_body(d, &x, 1, &r.out, 1);
    rp_tensor *loss = rp_sum(r.out);
    if (forward) OK(rp_graph_end(f));
    rp_pool *pool = forward ? rp_graph_pool(f) : NULL;
    if (backward) OK(rp_graph_begin(b, device, RP_OPTIONS(rp_graph_options, .stream = s, .pool = pool)));
    if (forward && !backward) OK(rp_graph_replay(f));
    OK(rp_grad(&loss, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true), &r.grad));
    if (!backward) {
        r.next = rp_rand(RP_DIMS(5));
        drawn_same(r, want[0]);
    }
    if (backward) {
        OK(rp_graph_end(b));
        for (uint64_t k = 0; k < (forward ? 3 : 1); k++) {
            drop_seed(d, k);
            if (forward) OK(rp_graph_replay(f));
            for (int again = 0; again < 2; again++)
                OK(rp_graph_replay(b)); /* as often as asked: it draws nothing new */
            same(r.out, want[k].out);
            same(r.grad, want[k].grad);
            if (forward) same(rp_rand(RP_DIMS(5)), want[k].next);
        }
    }
    if (forward && backward) { /* the backward's graph holds where the forward's finds its state */
        drop_seed(d, 1);
        OK(rp_graph_replay(f));
        rp_graph_release(f);
        f = NULL;
        OK(rp_graph_replay(b));
        same(r.grad, want[1].grad);
    }
    rp_graph_release(f);
    rp_graph_release(b);
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(before));
    rp_stream_release(s);
}

static void drop_graphed(dropped *d, rp_tensor *values, drawn want[3]) {
    rp_tensor *x = leaf(values);
    rp_compiled *f;
    rp_tensor *sample = rp_rand(RP_DIMS(6, 7));
    OK(rp_set_requires_grad(sample, true));
    rp_graphed_callable c = {.fn = {drop_body, d, sizeof *d, "drop"}, .args = &sample, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    for (uint64_t k = 0; k < 3; k++) {
        drawn r;
        drop_seed(d, k);
        OK(rp_call(f, &x, 1, &r.out, 1));
        rp_tensor *loss = rp_sum(r.out);
        OK(rp_grad(&loss, 1, &x, 1, NULL, NULL, &r.grad));
        r.next = rp_rand(RP_DIMS(5));
        drawn_same(r, want[k]);
    }
    rp_compiled_release(f);
}

static void test_checkpoint_random(void **state) { /* R8 */
    (void)state;
    rp_body *const bodies[] = {drop_inner, drop_nested};
    for (int k = 0; k < 4; k++) {
        rp_generator *own = k % 2 ? rp_generator_new(device, 5) : rp_default_generator(device);
        dropped d;
        memset(&d, 0, sizeof d);
        d.body = bodies[k / 2];
        d.generator = own;
        rp_tensor *x = rp_add_scalar(rp_rand(RP_DIMS(6, 7)), rp_f64(0.5));
        drawn want[3];
        d.plain = true;
        for (uint64_t seed = 0; seed < 3; seed++) want[seed] = drop_eager(&d, x, seed);
        d.plain = false;
        for (uint64_t seed = 0; seed < 3; seed++) drawn_same(drop_eager(&d, x, seed), want[seed]);
        drop_whole(&d, x, want);
        drop_graphed(&d, x, want);
        drop_parts(&d, x, want, true, true);
        drop_parts(&d, x, want, false, true);
        drop_parts(&d, x, want, true, false);
        if (k % 2) rp_generator_release(own);
    }
}

/* Eager backwards of a captured forward: each is of the last replay, also for what a checkpoint has recomputed before. */
static size_t checkpoint_runs;
static void counted_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    checkpoint_runs++;
    drop_inner(ctx, in, n_in, out, n_out);
}
static void test_checkpoint_replayed(void **state) {
    (void)state;
    for (int nested = 0; nested < 2; nested++) {
        dropped d;
        memset(&d, 0, sizeof d);
        d.body = nested ? drop_nested : counted_body;
        d.generator = rp_default_generator(device);
        rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
        OK(rp_synchronize(device));
        OK(rp_set_current_stream(s));
        rp_tensor *values = rp_add_scalar(rp_rand(RP_DIMS(6, 7)), rp_f64(0.5)), *x = leaf(values), *y, *grad;
        drawn want[3];
        for (uint64_t k = 0; k < 3; k++) want[k] = drop_eager(&d, values, k);
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .stream = s)));
        drop_body(&d, &x, 1, &y, 1);
        rp_tensor *loss = rp_sum(y);
        OK(rp_graph_end(g));
        const rp_backward_options *keep = RP_OPTIONS(rp_backward_options, .retain_graph = true);
        checkpoint_runs = 0;
        for (uint64_t k = 0; k < 3; k++) {
            drop_seed(&d, k);
            OK(rp_graph_replay(g));
            same(y, want[k].out);
            for (int twice = 0; twice < 2; twice++) {
                OK(rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
                same(grad, want[k].grad);
            }
        }
        if (!nested)
            assert_int_equal(checkpoint_runs, 3); /* once a replay: a second backward finds what the first has made */
        /* a backward that is captured recomputes in its graph, whatever lies there */
        rp_graph *b = rp_graph_new();
        OK(rp_graph_begin(b, device, RP_OPTIONS(rp_graph_options, .stream = s, .pool = rp_graph_pool(g))));
        OK(rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
        OK(rp_graph_end(b));
        for (uint64_t k = 0; k < 3; k++) {
            drop_seed(&d, k);
            OK(rp_graph_replay(g));
            OK(rp_graph_replay(b));
            same(grad, want[k].grad);
        }
        /* and one that is eager again does not take what only the graph makes */
        drop_seed(&d, 1);
        OK(rp_graph_replay(g));
        OK(rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
        same(grad, want[1].grad);
        /* what was saved outside and is overwritten is an error */
        bool on = rp_set_grad_enabled(false);
        (void)rp_mul_scalar_(x, rp_f64(2));
        (void)rp_set_grad_enabled(on);
        OK(rp_graph_replay(g));
        FAILS(RP_ERROR_VERSION, "mul_", rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
        rp_graph_release(g);
        rp_graph_release(b);
        OK(rp_synchronize(device));
        OK(rp_set_current_stream(before));
        rp_stream_release(s);
    }
}

static void cut_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    out[0] = rp_detach(rp_mul(in[0], *(rp_tensor **)ctx)); /* no gradient reaches the parameter */
}

static void
test_graphed_no_gradient(void **state) { /* M25: no output requires a gradient, so there is no backward graph */
    (void)state;
    rp_tensor *w = leaf(rp_rand(RP_DIMS(5))), *x = rp_rand(RP_DIMS(5)), *out;
    rp_graphed_callable c[2] = {
        {.fn = {cut_body, &w, sizeof w, "cut"}, .args = &x, .n_args = 1, .params = &w, .n_params = 1, .n_out = 1},
        {.fn = {square_body, NULL, 0, "square"}, .args = &x, .n_args = 1, .n_out = 1}}; /* without parameters */
    for (int k = 0; k < 2; k++) {
        rp_compiled *f;
        OK(rp_make_graphed_callables(&c[k], 1, NULL, &f));
        OK(rp_call(f, &x, 1, &out, 1));
        same(out, rp_mul(x, k ? x : rp_detach(w)));
        assert_false(rp_requires_grad(out));
        FAILS(RP_ERROR_STATE, "does not require a gradient", rp_backward(rp_sum(out), NULL, NULL));
        rp_tensor *both = rp_sum(rp_mul(out, w)); /* gradients of others pass by */
        OK(rp_set_grad(w, NULL));
        OK(rp_backward(both, NULL, NULL));
        same(rp_grad_of(w), out);
        rp_compiled_release(f);
    }
}

static void two_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_exp(in[0]);
    out[1] = rp_sin(in[0]);
}

static void
test_graphed_missing_gradient(void **state) { /* M39: what no gradient reaches counts as zeros, at every call */
    (void)state;
    rp_tensor *sample = leaf(rp_rand(RP_DIMS(7))), *out[2];
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {two_body, NULL, 0, "two"}, .args = &sample, .n_args = 1, .n_out = 2};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    for (int used = 3; used >= 1; used--) { /* both first, so that something is left in the static gradients */
        rp_tensor *x = leaf(rp_rand(RP_DIMS(7))), *want = rp_zeros(RP_DIMS(7));
        OK(rp_call(f, &x, 1, out, 2));
        rp_tensor *loss = rp_zeros(RP_NO_DIMS);
        for (int k = 0; k < 2; k++)
            if (used >> k & 1) loss = rp_add(loss, rp_sum(out[k]));
        if (used & 1) want = rp_add(want, rp_exp(x));
        if (used & 2) want = rp_add(want, rp_cos(x));
        OK(rp_backward(loss, NULL, NULL));
        same(rp_grad_of(x), rp_detach(want));
    }
    rp_compiled_release(f);
}

static void test_graphed_stream(void **state) { /* M43: the backward runs on the stream of the call */
    (void)state;
    rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
    rp_tensor *sample = leaf(rp_rand(RP_DIMS(2000))), *x = leaf(rp_rand(RP_DIMS(2000)));
    rp_tensor *y = leaf(rp_clone(rp_detach(x))), *out, *want;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {busy_body, NULL, 0, "busy"}, .args = &sample, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(s));
    OK(rp_call(f, &x, 1, &out, 1));
    OK(rp_set_current_stream(before));
    rp__edge edge;
    OK(rp__tape_edge_of(out, &edge));
    assert_ptr_equal(edge.node->stream, s);
    rp__tape_node_release(edge.node);
    rp_event *e = rp_event_new(device, false); /* what comes next reads the output here */
    OK(rp_event_record(e, s));
    OK(rp_stream_wait_event(before, e));
    OK(rp_backward(rp_sum(out), NULL, NULL)); /* which orders the streams itself */
    busy_body(NULL, &y, 1, &want, 1);
    OK(rp_backward(rp_sum(want), NULL, NULL));
    same(rp_grad_of(x), rp_grad_of(y));
    assert_ptr_equal(rp_current_stream(device), before);
    rp_event_release(e);
    rp_compiled_release(f);
    rp_stream_release(s);
}

static void test_graphed_eager_between(void **state) { /* M52: eager work has other memory */
    (void)state;
    rp_tensor *sample[2], *x = leaf(rp_rand(RP_DIMS(50, 40))), *y = leaf(rp_clone(rp_detach(x)));
    rp_compiled *f[2];
    rp_graphed_callable c[2];
    for (int k = 0; k < 2; k++) {
        sample[k] = leaf(rp_rand(RP_DIMS(50, 40)));
        c[k] = (rp_graphed_callable){.fn = {busy_body, NULL, 0, "busy"}, .args = &sample[k], .n_args = 1, .n_out = 1};
    }
    OK(rp_make_graphed_callables(c, 2, NULL, f));
    rp_tensor *filled[3][20], *h, *out, *eh, *want;
    for (int round = 0; round < 3; round++) { /* before the first, between the two, before the backward */
        if (round == 1) OK(rp_call(f[0], &x, 1, &h, 1));
        if (round == 2) {
            rp_tensor *between = rp_sin(h);
            OK(rp_call(f[1], &between, 1, &out, 1));
        }
        for (int k = 0; k < 20; k++) filled[round][k] = rp_full(RP_DIMS(50, 40), rp_f64(round * 20 + k));
    }
    OK(rp_backward(rp_sum(out), NULL, NULL));
    busy_body(NULL, &y, 1, &eh, 1);
    eh = rp_sin(eh);
    busy_body(NULL, &eh, 1, &want, 1);
    OK(rp_backward(rp_sum(want), NULL, NULL));
    same(out, want);
    same(rp_grad_of(x), rp_grad_of(y));
    for (int round = 0; round < 3; round++)
        for (int k = 0; k < 20; k++) same(filled[round][k], rp_full(RP_DIMS(50, 40), rp_f64(round * 20 + k)));
    rp_compiled_release(f[0]);
    rp_compiled_release(f[1]);
}

static void test_graphed_pool_life(void **state) { /* M53: the pool goes with the last graph and the last tensor */
    (void)state;
    uint64_t before = pool_bytes();
    rp_tensor *x = rp_rand(RP_DIMS(700)), *out;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {square_body, NULL, 0, "square"}, .args = &x, .n_args = 1, .n_out = 1};
    rp_scope scope = rp_scope_begin();
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_call(f, &x, 1, &out, 1));
    rp_retain(out);
    OK(rp_scope_end(scope, NULL, 0));
    uint64_t with = pool_bytes();
    assert_true(with > before);
    rp_compiled_release(f);
    assert_int_equal(pool_bytes(), with);
    for (int k = 0; k < 20; k++) (void)rp_full(RP_DIMS(700), rp_f64(9));
    same(out, rp_mul(x, x)); /* nobody else gets its memory */
    rp_release(out);
    assert_int_equal(pool_bytes(), before);
}

static void test_graphed_version(void **state) { /* an argument changed between forward and backward */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *sample = rp_rand(RP_DIMS(4, 10)), *x = rp_rand(RP_DIMS(4, 10)), *out;
    rp_compiled *f = graph_mlp(&m, sample);
    OK(rp_call(f, &x, 1, &out, 1));
    rp_mul_scalar_(x, rp_f64(2));
    FAILS(RP_ERROR_VERSION, "modified in place after the call", rp_backward(rp_sum(out), NULL, NULL));
    rp_compiled_release(f);
    mlp_free(&m);
}

/* Two callables in a pool that is given, with recomputed dropout: made, called, differentiated, released. */
static rp_status make_and_step(rp_tensor *x) {
    rp_status status = RP_OK;
    rp_scope scope = rp_scope_begin();
    rp_pool *pool = rp_pool_new(device);
    rp_compiled *f[2] = {NULL, NULL};
    dropped d;
    memset(&d, 0, sizeof d);
    d.body = drop_inner;
    rp_tensor *a = rp_detach(x), *b = rp_clone(x), *h, *out;
    if (!rp_failed()) status = rp_set_requires_grad(b, true);
    rp_graphed_callable c[2] = {{.fn = {square_body, NULL, 0, "square"}, .args = &a, .n_args = 1, .n_out = 1},
                                {.fn = {drop_body, &d, sizeof d, "drop"}, .args = &b, .n_args = 1, .n_out = 1}};
    if (!rp_failed())
        status = rp_make_graphed_callables(c, 2, RP_OPTIONS(rp_graphed_options, .pool = pool, .warmup = 1), f);
    if (!rp_failed()) status = rp_call(f[0], &a, 1, &h, 1);
    if (!rp_failed()) {
        rp_tensor *in = rp_clone(rp_detach(h));
        if (!rp_failed()) (void)rp_set_requires_grad(in, true);
        if (!rp_failed()) (void)rp_call(f[1], &in, 1, &out, 1);
        if (!rp_failed()) (void)rp_backward(rp_sum(out), NULL, NULL);
    }
    for (int k = 0; k < 2; k++) rp_compiled_release(f[k]);
    rp_pool_release(pool);
    (void)rp_scope_end(scope, NULL, 0);
    (void)status;
    return rp_error_take();
}

/* What a call left on the tape outlives the callable, and its messages still name the function. */
static void test_graphed_released_early(void **state) {
    (void)state;
    mlp m;
    mlp_make(&m);
    char name[] = "a function with a name of its own, longer than that of a handle";
    rp_tensor *x = rp_rand(RP_DIMS(8, 10)), *out;
    rp_compiled *f;
    rp_graphed_callable c = {
        .fn = {mlp_body, &m, sizeof m, name}, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 4, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_call(f, &x, 1, &out, 1));
    rp_compiled_release(f);
    memset(name, '-', sizeof name - 1);
    rp_tensor *loss = rp_sum(out);
    OK(rp_backward(loss, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)));
    assert_non_null(rp_grad_of(m.w1));
    assert_int_not_equal(rp_backward(loss, NULL, NULL), RP_OK);
    assert_non_null(strstr(rp_error_message(), "a function with a name of its own, longer than that of a handle"));
    rp_error_take();
    mlp_free(&m);
}

static void test_graphed_out_of_memory(void **state) { /* the n-th allocation fails: an error, nothing left behind */
    (void)state;
    if (device.type != RP_DEVICE_CPU) return; /* drivers allocate by themselves: test_cuda_faults.c */
    rp_stream *before = rp_current_stream(device);
    rp_tensor *x = rp_rand(RP_DIMS(6, 7));
    for (int warm = 0; warm < 2; warm++) assert_int_equal(make_and_step(x), RP_OK);
    uint64_t live = rp__alloc_live();
    bool done = false;
    for (uint64_t n = 1; !done; n += n < 200 ? 1 : 7) {
        uint64_t from = rp__alloc_fail_at(n);
        rp_status status = make_and_step(x);
        uint64_t to = rp__alloc_fail_at(0);
        done = to - from < n;
        if (status != RP_OK && (done || status != RP_ERROR_OUT_OF_MEMORY))
            fail_msg("allocation %llu: status %d", (unsigned long long)n, (int)status);
        assert_ptr_equal(rp_current_stream(device), before);
        assert_false(rp_is_capturing(device));
    }
    assert_int_equal(make_and_step(x), RP_OK);
    assert_in_range(rp__alloc_live(), 0, live + 8); /* caches may have lost an entry, or found room for one */
}

static void test_no_leak(void **state) { /* 100 captures */
    (void)state;
    uint64_t before = 0;
    for (int k = 0; k < 100; k++) {
        rp_scope scope = rp_scope_begin();
        mlp m;
        mlp_make(&m);
        rp_tensor *x = rp_rand(RP_DIMS(4, 10)), *out;
        rp_compiled *f = graph_mlp(&m, x);
        OK(rp_call(f, &x, 1, &out, 1));
        rp_compiled_release(f);
        mlp_free(&m);
        OK(rp_scope_end(scope, NULL, 0));
        OK(rp_synchronize(device));
        rp_memory_stats stats = {.struct_size = sizeof stats};
        OK(rp_memory_stats_get(device, &stats));
        if (k == 20) before = stats.reserved + rp__alloc_live();
        if (k > 20) assert_true(stats.reserved + rp__alloc_live() <= before + 64);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_graphed_training, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_errors, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_validation, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_several, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_shared_parameters, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_ctx, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_stale_place, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_order, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_one_pool, begin, end),
        cmocka_unit_test_setup_teardown(test_checkpoint_random, begin, end),
        cmocka_unit_test_setup_teardown(test_checkpoint_replayed, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_no_gradient, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_missing_gradient, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_stream, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_eager_between, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_pool_life, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_version, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_released_early, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_out_of_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_no_leak, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
