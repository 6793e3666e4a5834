/* ctest: timeout=300 cost=5 */
/* What lies around captures and graphed callables: eager results that still live, parameters that nobody named, arguments that
   the function writes, wherever these lie. On the CPU, then on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "support/graphs.h"

/* ---- eager results that still live ---- */

typedef struct net {
    rp_tensor *weight, *bias;
} net;

static void net_make(net *n) {
    rp_manual_seed(11);
    n->weight = rp_mul_scalar(rp_randn(RP_DIMS(3, 5)), rp_f64(0.4));
    n->bias = rp_zeros(RP_DIMS(3));
    OK(rp_set_requires_grad(n->weight, true));
    OK(rp_set_requires_grad(n->bias, true));
}

static rp_tensor *net_out(const net *n, rp_tensor *x) { return rp_tanh(rp_linear(x, n->weight, n->bias)); }

static void net_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = net_out(ctx, in[0]);
}

static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }
static rp_tensor *rows(double by) {
    rp_tensor *t = rp_arange(rp_i64(0), rp_i64(20), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32));
    return rp_reshape(rp_sin(rp_mul_scalar(t, rp_f64(by))), RP_DIMS(4, 5));
}

static rp_status graph(rp_fn fn, rp_tensor *const *args, size_t n_args, rp_tensor *const *params, size_t n_params,
                       rp_compiled **f) {
    rp_graphed_callable c = {
        .fn = fn, .args = args, .n_args = n_args, .params = params, .n_params = n_params, .n_out = 1};
    return rp_make_graphed_callables(&c, 1, NULL, f);
}

static void
test_result_lives(void **state) { /* a result on the default stream that still holds the tape of the parameters */
    (void)state;
    net n, twin;
    net_make(&n);
    net_make(&twin);
    rp_tensor *x = rows(1.3), *y, *kept = net_out(&n, x), *with_graph = net_out(&n, x);
    OK(rp_backward(total(with_graph), NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)));
    OK(rp_set_grad(n.weight, NULL));
    OK(rp_set_grad(n.bias, NULL));
    rp_compiled *f, *again;
    OK(graph((rp_fn){net_body, &n, sizeof n, "net"}, &x, 1, &n.weight, 2, &f));
    OK(rp_call(f, &x, 1, &y, 1));
    same(y, kept);
    OK(graph((rp_fn){net_body, &n, sizeof n, "net"}, &x, 1, &n.weight, 2, &again)); /* y holds the tape, too */
    OK(rp_backward(total(y), NULL, NULL));
    OK(rp_backward(total(net_out(&twin, x)), NULL, NULL));
    same(rp_grad_of(n.weight), rp_grad_of(twin.weight));
    OK(rp_call(again, &x, 1, &y, 1));
    OK(rp_backward(total(y), NULL, NULL));
    OK(rp_backward(total(kept), NULL, NULL)); /* the eager result is as good as it was */
    for (int k = 0; k < 2; k++) OK(rp_backward(total(net_out(&twin, x)), NULL, NULL));
    same(rp_grad_of(n.weight), rp_grad_of(twin.weight));
    same(rp_grad_of(n.bias), rp_grad_of(twin.bias));
    rp_compiled_release(again);
    rp_compiled_release(f);
}

static void test_told_once(void **state) { /* the log names each such leaf, in the first capture that meets it */
    (void)state;
    net n;
    net_make(&n);
    rp_tensor *x = rows(1.1), *kept = net_out(&n, x);
    FILE *log = tmpfile();
    int before = dup(STDERR_FILENO);
    assert_non_null(log);
    assert_true(before >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    for (int k = 0; k < 2; k++) {
        rp_compiled *f;
        rp_status status = graph((rp_fn){net_body, &n, sizeof n, "net"}, &x, 1, &n.weight, 2, &f);
        rp_compiled_release(f);
        if (status != RP_OK) k = 2;
    }
    (void)fflush(stderr);
    (void)dup2(before, STDERR_FILENO);
    (void)close(before);
    rewind(log);
    char line[1024];
    int weights = 0, biases = 0;
    while (fgets(line, sizeof line, log)) {
        if (!strstr(line, "holds the tape of the leaf")) continue;
        assert_non_null(strstr(line, "test_graphed_around.c:"));
        weights += strstr(line, "(3, 5)") != NULL;
        biases += strstr(line, "(3) ") != NULL;
    }
    (void)fclose(log);
    if (rp_failed()) fail_msg("%s", rp_error_message());
    assert_int_equal(weights, 1);
    assert_int_equal(biases, 1);
    assert_true(rp_requires_grad(kept));
}

static rp_tensor *step(const net *n, rp_optimizer *o, rp_tensor *x, rp_tensor *t) {
    rp_tensor *loss = rp_mse_loss(net_out(n, x), t, 1);
    OK(rp_backward(loss, NULL, NULL));
    OK(rp_optimizer_step(o));
    return loss;
}

static void test_step_captured(void **state) { /* a whole training step, while the losses of eager steps are kept */
    (void)state;
    net n, twin;
    net_make(&n);
    net_make(&twin);
    rp_optimizer *o = rp_sgd(&n.weight, 2, 0.1, NULL), *p = rp_sgd(&twin.weight, 2, 0.1, NULL);
    rp_tensor *x = rows(0.7), *t = rp_full(RP_DIMS(4, 3), rp_f64(0.25)), *kept[3], *loss, *want;
    for (int k = 0; k < 3; k++) {
        OK(rp_optimizer_zero_grad(o, true));
        OK(rp_optimizer_zero_grad(p, true));
        kept[k] = step(&n, o, x, t);
        (void)step(&twin, p, x, t);
    }
    OK(rp_optimizer_zero_grad(o, true));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    loss = step(&n, o, x, t);
    OK(rp_graph_end(g));
    for (int k = 0; k < 3; k++) {
        rp_tensor *data = rows(0.2 + k);
        (void)rp_copy_(x, data);
        OK(rp_graph_replay(g));
        OK(rp_optimizer_zero_grad(p, true));
        want = step(&twin, p, data, t);
        same(loss, want);
        same(n.weight, twin.weight);
        same(n.bias, twin.bias);
    }
    assert_true(rp_item_f64(kept[0]) > rp_item_f64(kept[2]));
    rp_graph_release(g);
    rp_optimizer_release(o);
    rp_optimizer_release(p);
}

static void
test_inner_result(void **state) { /* rp_grad stops at a result from before the capture: nothing of it runs */
    (void)state;
    net n;
    net_make(&n);
    rp_tensor *h = net_out(&n, rows(0.9)), *got, *want;
    rp_tensor *eager = total(rp_mul(h, rp_sin(h)));
    OK(rp_grad(&eager, 1, &h, 1, NULL, NULL, &want));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *loss = total(rp_mul(h, rp_sin(h)));
    OK(rp_grad(&loss, 1, &h, 1, NULL, NULL, &got));
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    same(got, want);
    rp_graph_release(g);
    OK(rp_backward(total(h), NULL, NULL)); /* what it saved is still there */
    assert_non_null(rp_grad_of(n.weight));
}

static void test_outside_derivative(void **state) { /* a derivative that would run outside: named, with its line */
    (void)state;
    net n;
    net_make(&n);
    rp_tensor *x = rows(0.5);
    const char *line;
    rp_tensor *h = (line = RP_HERE, rp_linear(x, n.weight, n.bias));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *loss = total(rp_tanh(h));
    assert_int_equal(rp_backward(loss, NULL, NULL), RP_ERROR_CAPTURE);
    assert_non_null(strstr(rp_error_message(), "`linear`"));
    assert_non_null(strstr(rp_error_message(), strrchr(line, ':')));
    FAILS(RP_ERROR_CAPTURE, "compute it inside the capture, or cut it off with rp_detach", rp_error_status());
    (void)rp_graph_end(g);
    (void)rp_error_take();
    rp_graph_release(g);
    OK(rp_backward(total(rp_tanh(h)), NULL, NULL)); /* eagerly it may */
    assert_non_null(rp_grad_of(n.weight));
}

/* ---- parameters that nobody named ---- */

static void scaled_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    net *n = ctx; /* the weight in a view, the bias in a custom place of the tape */
    out[0] = rp_matmul(in[0], rp_transpose(n->weight, 0, 1));
    bool grad = rp_set_grad_enabled(false);
    out[0] = rp_add(out[0], n->bias);
    (void)rp_set_grad_enabled(grad);
}

static void penalty_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    net *n = ctx; /* a leaf of its own, to differentiate inside */
    rp_tensor *x = rp_detach(in[0]), *slope;
    (void)rp_set_requires_grad(x, true);
    rp_tensor *y = total(net_out(n, x));
    (void)rp_grad(&y, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &slope);
    out[0] = rp_mul(slope, slope);
}

static void test_forgotten(void **state) {
    (void)state;
    net n;
    net_make(&n);
    rp_tensor *fresh, *x = rows(0.4), *y;
    const char *line = (fresh = rp_zeros(RP_DIMS(3)), RP_HERE);
    OK(rp_set_requires_grad(fresh, true));
    n.bias = fresh;
    rp_compiled *f;
    rp_fn fn = {net_body, &n, sizeof n, "careless"};
    for (int warm = -1; warm < 2; warm++) { /* also where the capture is the first run */
        rp_graphed_callable c = {.fn = fn, .args = &x, .n_args = 1, .params = &n.weight, .n_params = 1, .n_out = 1};
        rp_graphed_options options = {.struct_size = sizeof options, .warmup = warm};
        assert_int_equal(rp_make_graphed_callables(&c, 1, &options, &f), RP_ERROR_INVALID_ARGUMENT);
        static const char *const told[] = {"careless", "float32 (3)", "`zeros`", ".params"};
        for (int k = 0; k < 4; k++) assert_non_null(strstr(rp_error_message(), told[k]));
        assert_non_null(strstr(rp_error_message(), line)); /* where it was made */
        (void)rp_error_take();
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_STATE);
        (void)rp_error_take();
        rp_compiled_release(f);
        assert_false(rp_is_capturing(device));
    }
    assert_null(rp_grad_of(n.weight));
    OK(graph(fn, &x, 1, &n.weight, 2, &f));
    rp_compiled_release(f);
    OK(graph((rp_fn){scaled_body, &n, sizeof n, "scaled"}, &x, 1, &n.weight, 1,
             &f)); /* the bias has no gradient there */
    rp_compiled_release(f);
    /* a parameter that is computed: what it is made of is behind it */
    rp_tensor *log_weight = rp_full(RP_DIMS(3, 5), rp_f64(-1));
    OK(rp_set_requires_grad(log_weight, true));
    n.weight = rp_exp(log_weight);
    OK(graph(fn, &x, 1, &n.weight, 2, &f));
    OK(rp_call(f, &x, 1, &y, 1));
    OK(rp_backward(total(y), NULL, NULL));
    assert_non_null(rp_grad_of(log_weight));
    rp_compiled_release(f);
}

static void test_leaf_inside(void **state) {
    (void)state;
    net n, twin;
    net_make(&n);
    net_make(&twin);
    rp_tensor *x = rows(0.6), *y, *want;
    rp_compiled *f;
    OK(graph((rp_fn){penalty_body, &n, sizeof n, "penalty"}, &x, 1, &n.weight, 2, &f));
    OK(rp_call(f, &x, 1, &y, 1));
    penalty_body(&twin, &x, 1, &want, 1);
    same(y, want);
    OK(rp_backward(total(y), NULL, NULL));
    OK(rp_backward(total(want), NULL, NULL));
    same(rp_grad_of(n.weight), rp_grad_of(twin.weight));
    rp_compiled_release(f);
}

/* ---- arguments that the function writes ---- */

static void writing_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    net *n = ctx;
    (void)rp_add_(in[0], in[1]);
    (void)rp_mul_scalar_(rp_select(in[0], 0, 1), rp_f64(-2)); /* a part, through a view */
    out[0] = rp_mul(rp_matmul(in[0], rp_transpose(n->weight, 0, 1)), n->bias);
}

enum { OWN, SAMPLE, WRAPPED, STABLE, IMPORTED, TURNED, SHIFTED, STEPPED, PLACES };

/* The same 20 numbers in memory of each kind. */
static rp_tensor *place(int kind, rp_tensor *sample, double by) {
    rp_tensor *t = rows(by), *wide;
    switch (kind) {
    case SAMPLE: return rp_copy_(sample, t);
    case WRAPPED:
    case STABLE:
        wide = rp_from_blob(rp_data(t), RP_DIMS(4, 5), NULL, RP_F32, device, NULL, NULL);
        if (kind == STABLE) OK(rp_declare_stable(wide));
        return wide;
    case IMPORTED: return rp_from_dlpack(rp_to_dlpack(t));
    case TURNED: return rp_transpose(rp_clone(rp_transpose(t, 0, 1)), 0, 1);
    case SHIFTED: /* another alignment than the sample's */
        wide = rp_zeros(RP_DIMS(21));
        return rp_copy_(rp_view(rp_slice(wide, 0, 1, 21, 1), RP_DIMS(4, 5)), t);
    case STEPPED: wide = rp_full(RP_DIMS(4, 10), rp_f64(7)); return rp_copy_(rp_slice(wide, 1, 0, 10, 2), t);
    default: return t;
    }
}

static void test_argument_written(void **state) {
    (void)state;
    net n, twin;
    net_make(&n);
    net_make(&twin);
    (void)rp_fill_(rp_detach(n.bias), rp_f64(0.5));
    (void)rp_fill_(rp_detach(twin.bias), rp_f64(0.5));
    rp_tensor *sample[] = {rows(0.1), rows(0.2)};
    rp_compiled *f;
    OK(graph((rp_fn){writing_body, &n, sizeof n, "writing"}, sample, 2, &n.weight, 2, &f));
    for (int round = 0; round < 2; round++)
        for (int kind = 0; kind < PLACES; kind++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *in[] = {place(kind, sample[0], 0.3 + kind), rows(1.9)}, *eager[] = {rows(0.3 + kind), rows(1.9)};
            rp_tensor *y, *want;
            uint64_t version = rp_version(in[0]);
            OK(rp_call(f, in, 2, &y, 1));
            writing_body(&twin, eager, 2, &want, 1);
            same(in[0], eager[0]);
            same(in[1], eager[1]);
            same(y, want);
            assert_true(rp_version(in[0]) > version); /* a tape outside knows of the write */
            OK(rp_backward(total(y), NULL, NULL));
            OK(rp_backward(total(want), NULL, NULL));
            same(rp_grad_of(n.weight), rp_grad_of(twin.weight));
            same(rp_grad_of(n.bias), rp_grad_of(twin.bias));
            OK(rp_scope_end(scope, NULL, 0));
        }
    OK(rp_graphed_set_training(f, true)); /* runs eagerly: the same */
    rp_tensor *in[] = {place(WRAPPED, NULL, 0.8), rows(1.9)}, *eager[] = {rows(0.8), rows(1.9)}, *y;
    OK(rp_call(f, in, 2, &y, 1));
    writing_body(&twin, eager, 2, &y, 1);
    same(in[0], eager[0]);
    rp_compiled_release(f);
}

static void test_written_apart(void **state) { /* what is written may not be read through another argument */
    (void)state;
    net n;
    net_make(&n);
    rp_tensor *sample[] = {rows(0.1), rows(0.2)}, *y;
    rp_compiled *f;
    OK(graph((rp_fn){writing_body, &n, sizeof n, "writing"}, sample, 2, &n.weight, 2, &f));
    rp_tensor *x = rows(0.3), *before = rp_clone(x);
    FAILS(RP_ERROR_GUARD, "arguments 0 and 1 share memory", rp_call(f, RP_TENSORS(x, x), &y, 1));
    rp_tensor *blob = rp_from_blob(rp_data(x), RP_DIMS(4, 5), NULL, RP_F32, device, NULL, NULL);
    FAILS(RP_ERROR_GUARD, "the function writes argument 0", rp_call(f, RP_TENSORS(blob, x), &y, 1));
    rp_tensor *spread = rp_expand(rp_zeros(RP_DIMS(5)), RP_DIMS(4, 5));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "which is expanded", rp_call(f, RP_TENSORS(spread, x), &y, 1));
    rp_tensor *weights = rp_zeros(RP_DIMS(4, 5));
    rp_compiled_release(f);
    n.weight = rp_slice(weights, 0, 0, 3, 1);
    OK(graph((rp_fn){writing_body, &n, sizeof n, "writing"}, sample, 2, &n.weight, 2, &f));
    FAILS(RP_ERROR_GUARD, "shares memory with what", rp_call(f, RP_TENSORS(weights, x), &y, 1));
    same(x, before);
    /* the place where another argument is put */
    FAILS(RP_ERROR_GUARD, "argument 1 lies in the sample argument 0", rp_call(f, RP_TENSORS(x, sample[0]), &y, 1));
    FAILS(RP_ERROR_GUARD, "pass a copy", rp_call(f, RP_TENSORS(sample[1], sample[0]), &y, 1));
    same(x, before);
    OK(rp_call(f, RP_TENSORS(sample[0], sample[1]), &y, 1));
    rp_compiled_release(f);
}

static void feeding_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_f64(1.5));
    out[0] = rp_add(rp_sin(out[0]), rp_mul(in[0], out[0])); /* reads it again behind the first kernels */
    if (ctx) (void)rp_mul_scalar_(in[0], rp_f64(3));
}

static void
test_result_fed_back(void **state) { /* a result is the next call's argument: its memory is written meanwhile */
    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        rp_tensor *sample = rows(0.1), *got = rows(0.8), *want = rows(0.8);
        rp_compiled *f;
        OK(graph((rp_fn){feeding_body, writes ? sample : NULL, 0, "feeding"}, &sample, 1, NULL, 0, &f));
        for (int k = 0; k < 4; k++) {
            rp_tensor *in = want;
            OK(rp_call(f, &got, 1, &got, 1));
            feeding_body(writes ? sample : NULL, &in, 1, &want, 1);
            same(got, want);
        }
        rp_compiled_release(f);
    }
}

static void history_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_sin(rp_mul_(in[0], ((net *)ctx)->weight));
}

static void
test_written_history(void **state) { /* eagerly the argument would have a tape afterwards: a graph cannot say so */
    (void)state;
    net n;
    net_make(&n);
    rp_tensor *x = rp_ones(RP_DIMS(3, 5));
    rp_compiled *f;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "wrote into argument 0 what has a gradient, by `mul_`",
          graph((rp_fn){history_body, &n, sizeof n, "history"}, &x, 1, &n.weight, 1, &f));
    rp_compiled_release(f);
    bool grad = rp_set_grad_enabled(false);
    rp_tensor *y = rp_ones(RP_DIMS(3, 5));
    OK(rp_set_requires_grad(n.weight, false));
    OK(graph((rp_fn){history_body, &n, sizeof n, "plain"}, &y, 1, &n.weight, 1, &f));
    rp_compiled_release(f);
    (void)rp_set_grad_enabled(grad);
}

int main(void) {
    if (setenv("REPRISE_LOG", "graphs", 1) != 0) return 1; /* read once */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_result_lives, begin, end),
        cmocka_unit_test_setup_teardown(test_told_once, begin, end),
        cmocka_unit_test_setup_teardown(test_step_captured, begin, end),
        cmocka_unit_test_setup_teardown(test_inner_result, begin, end),
        cmocka_unit_test_setup_teardown(test_outside_derivative, begin, end),
        cmocka_unit_test_setup_teardown(test_forgotten, begin, end),
        cmocka_unit_test_setup_teardown(test_leaf_inside, begin, end),
        cmocka_unit_test_setup_teardown(test_argument_written, begin, end),
        cmocka_unit_test_setup_teardown(test_written_apart, begin, end),
        cmocka_unit_test_setup_teardown(test_result_fed_back, begin, end),
        cmocka_unit_test_setup_teardown(test_written_history, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
