/* Training through rp_compile with the fused backend: whole steps (forward, backward, optimizer) as one program, compiled
   forwards with an eager loop around, changed sizes, released memory, failing allocations. Eager is the reference, bit for
   bit. */
/* ctest: timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "core/alloc.h"
#include "support/cuda.h"

enum { BATCH = 16, IN = 10, HIDDEN = 64, OUT = 10, PARAMS = 4 };

static bool have_cuda;

typedef struct net {
    rp_tensor *p[PARAMS]; /* w1 (HIDDEN, IN), b1 (HIDDEN), w2 (OUT, HIDDEN), b2 (OUT) */
    rp_optimizer *opt;
} net;

static void ok(void) {
    if (!rp_failed()) return;
    char text[1024];
    snprintf(text, sizeof text, "%s", rp_error_message());
    (void)rp_error_take();
    fail_msg("%s", text);
}

static rp_tensor *filled(int seed, const int64_t *size, size_t ndim) {
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= size[d];
    float *data = malloc((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = (float)((i * 7919 + seed * 104729) % 2003 - 1001) / 3001.0f;
    rp_tensor *t = rp_from_data(data, size, ndim, RP_F32);
    free(data);
    return t;
}

static rp_tensor *classes(int seed, int64_t n) {
    int64_t data[64];
    for (int64_t i = 0; i < n; i++) data[i] = (i * 31 + seed * 7) % OUT;
    return rp_from_data(data, &n, 1, RP_I64);
}

static void net_init(net *m) {
    static const int64_t sizes[PARAMS][2] = {{HIDDEN, IN}, {HIDDEN, 1}, {OUT, HIDDEN}, {OUT, 1}};
    for (int k = 0; k < PARAMS; k++) {
        m->p[k] = rp_retain(filled(k + 1, sizes[k], k % 2 ? 1 : 2));
        rp_set_requires_grad(m->p[k], true);
    }
    m->opt = rp_adam(m->p, PARAMS, 0.01, NULL);
    ok();
}
static void net_free(net *m) {
    rp_optimizer_release(m->opt);
    for (int k = 0; k < PARAMS; k++) {
        rp_set_grad(m->p[k], NULL);
        rp_release(m->p[k]);
    }
}

static rp_tensor *forward(const net *m, rp_tensor *x) {
    rp_tensor *h = rp_relu(rp_linear(x, m->p[0], m->p[1]));
    return rp_linear(h, m->p[2], m->p[3]);
}

static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    net *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *loss = rp_cross_entropy(forward(m, in[0]), in[1]);
    rp_optimizer_zero_grad(m->opt, true);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(m->opt);
    rp_optimizer_zero_grad(m->opt, true);
    out[0] = rp_detach(loss);
}

static void model(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = forward(ctx, in[0]);
}

static void assert_same(rp_tensor *a, rp_tensor *b, const char *what, int at) {
    static float x[8192], y[8192];
    assert_int_equal(rp_numel(a), rp_numel(b));
    size_t bytes = (size_t)rp_numel(a) * sizeof *x;
    assert_true(bytes <= sizeof x);
    rp_to_host(a, x, bytes);
    rp_to_host(b, y, bytes);
    ok();
    for (size_t k = 0; k < bytes / sizeof *x; k++) {
        if (memcmp(&x[k], &y[k], sizeof *x) != 0) {
            fail_msg("%s, step %d: element %zu is %a, not %a", what, at, k, (double)y[k], (double)x[k]);
        }
    }
}

static void print_explain(rp_compiled *f) {
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        if (rp_explain_get(f, k, &e) == RP_OK) {
            print_message("%s [%s] %s (%lld)\n", e.kind, e.reason, e.message, (long long)e.count);
        }
    }
}

static int64_t count_of(rp_compiled *f, const char *kind) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        if (rp_explain_get(f, k, &e) == RP_OK && strcmp(e.kind, kind) == 0) n += e.count;
    }
    return n;
}

static bool has(rp_compiled *f, const char *kind, const char *start) {
    bool found = false;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        found = found || (rp_explain_get(f, k, &e) == RP_OK && strcmp(e.kind, kind) == 0 &&
                          strncmp(e.message, start, strlen(start)) == 0);
    }
    return found;
}

/* How far a step moves the first weight: what is read before it must not be read behind it. */
static void movement(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    net *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *loss = rp_cross_entropy(forward(m, in[0]), in[1]);
    rp_optimizer_zero_grad(m->opt, true);
    rp_backward(loss, NULL, NULL);
    const bool grad = rp_set_grad_enabled(false);
    rp_tensor *before = rp_to_dtype(m->p[0], RP_F64);
    rp_optimizer_step(m->opt);
    rp_tensor *moved = rp_sub(rp_to_dtype(m->p[0], RP_F64), before);
    out[0] = rp_to_dtype(rp_sum(rp_mul(moved, moved)), RP_F32);
    (void)rp_set_grad_enabled(grad);
    rp_optimizer_zero_grad(m->opt, true);
}

static void whole_step(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net eager, compiled;
    net_init(&eager);
    net_init(&compiled);
    rp_fn fn = {step, &compiled, sizeof compiled, "step"};
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (int k = 0; k < 20; k++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *in[2] = {filled(100 + k, (const int64_t[]){BATCH, IN}, 2), classes(k, BATCH)}, *a = NULL, *b = NULL;
        step(&eager, in, 2, &a, 1);
        rp_call(f, in, 2, &b, 1);
        ok();
        assert_same(a, b, "loss", k);
        for (int p = 0; p < PARAMS; p++) {
            assert_same(eager.p[p], compiled.p[p], "parameter", k);
            assert_null(rp_grad_of(compiled.p[p]));
        }
        rp_scope_end(inner, NULL, 0);
    }
    if (count_of(f, "skip") > 0 || count_of(f, "kernel") == 0) {
        print_explain(f);
        fail_msg("the step did not become one program");
    }
    if (getenv("REPRISE_TEST_EXPLAIN")) print_explain(f);
    /* kernels: the count of targets; the loss with the gradient of the logits; the mean with the step counter; two bias
       gradients; the gradient of the hidden rows with the mask of relu; on a CPU the first product with its relu. libraries: the
       other products, three of each layer but the gradient of the input; Adam. A GPU's library makes one launch of the two products of
       the forward, and one of the product that the hidden rows' gradient is, with its mask. */
    bool chain = rp_default_device().type == RP_DEVICE_CUDA;
    assert_int_equal(count_of(f, "kernel"), chain ? 5 : 7);
    assert_int_equal(count_of(f, "library"), chain ? 5 : 4);
    assert_true(has(f, "kernel", "cross_entropy_rows+sub+sub+exp+full+where+arange+eq+to_dtype+sub+mul:"));
    assert_true(chain ? has(f, "library", "linear+relu+eq_scalar+linear:")
                      : has(f, "kernel", "linear+relu+eq_scalar:"));
    rp_compiled_release(f);
    net_free(&eager);
    net_free(&compiled);
    rp_scope_end(scope, NULL, 0);
    ok();
}

/* The other device, where the tests run on the CPU: what becomes one launch is the device's own answer. */
static void whole_step_on_a_gpu(void **state) {
    if (!have_cuda || rp_default_device().type == RP_DEVICE_CUDA) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    whole_step(state);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

static void movements_are_seen(void **state) {
    (void)state;
    for (int cuda = 0; cuda <= have_cuda; cuda++) {
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        rp_scope scope = rp_scope_begin();
        net m;
        net_init(&m);
        rp_compiled *f = rp_compile((rp_fn){movement, &m, sizeof m, "movement"},
                                    RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        for (int i = 0; i < 3; i++) {
            rp_tensor *in[2] = {filled(i, RP_DIMS(5, IN)), classes(i, 5)}, *out;
            rp_call(f, in, 2, &out, 1);
            ok();
            float moved;
            rp_to_host(out, &moved, sizeof moved);
            const double each = (double)moved / (HIDDEN * IN); /* Adam moves by the learning rate or less */
            if (!(each > 1e-6 && each < 2e-4)) fail_msg("device %d, step %d moves by %g", cuda, i, (double)moved);
        }
        rp_compiled_release(f);
        net_free(&m);
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    ok();
}

static void step_of_means(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    net *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_layer_norm(rp_linear(in[0], m->p[0], m->p[1]), RP_DIMS(HIDDEN), NULL, NULL, 1e-5);
    rp_tensor *loss = rp_cross_entropy(rp_linear(h, m->p[2], m->p[3]), in[1]);
    loss = rp_add(loss, rp_mean(rp_mul(h, h)));
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(m->opt);
    rp_optimizer_zero_grad(m->opt, true);
    out[0] = rp_detach(loss);
}

static void step_with_dropout(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    net *m = ctx;
    (void)n_in, (void)n_out;
    (void)rp_rand(RP_DIMS(5)); /* nobody reads it; its numbers are gone all the same */
    rp_tensor *h = rp_dropout(rp_relu(rp_linear(in[0], m->p[0], m->p[1])), 0.25, true);
    rp_tensor *loss = rp_cross_entropy(rp_linear(h, m->p[2], m->p[3]), in[1]);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(m->opt);
    rp_optimizer_zero_grad(m->opt, true);
    out[0] = rp_detach(loss);
    (void)rp_rand(RP_DIMS(3));
}

/* The mask is a part of the products' kernels; the generator goes on from where eager execution leaves
   it. */
static void dropout(void **state) {
    (void)state;
    enum { STEPS = 6 };
    rp_scope scope = rp_scope_begin();
    rp_tensor *losses[STEPS], *after = NULL;
    for (int run = 0; run < 2; run++) {
        net m;
        net_init(&m);
        rp_fn fn = {step_with_dropout, &m, sizeof m, "dropout"};
        rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        (void)rp_manual_seed(7);
        for (int k = 0; k < STEPS; k++) {
            rp_tensor *in[2] = {filled(k, (const int64_t[]){BATCH, IN}, 2), classes(k, BATCH)}, *loss = NULL;
            if (run == 0) {
                step_with_dropout(&m, in, 2, &losses[k], 1);
            } else {
                rp_call(f, in, 2, &loss, 1);
                ok();
                assert_same(losses[k], loss, "loss", k);
            }
        }
        rp_tensor *next = rp_rand(RP_DIMS(16));
        if (run == 0) {
            after = next;
        } else {
            assert_same(after, next, "numbers drawn afterwards", 0);
            if (getenv("REPRISE_TEST_EXPLAIN")) print_explain(f);
            assert_true(has(f, "kernel", "linear+relu+rand+lt_scalar+mul+mul_scalar+eq_scalar:"));
            assert_true(has(f, "kernel", "linear+mul+mul_scalar+full+where:"));
            assert_int_equal(count_of(f, "kernel"), 7);
        }
        rp_compiled_release(f);
        net_free(&m);
    }
    rp_scope_end(scope, NULL, 0);
    ok();
}

/* Means and their gradients divide by sizes: a size that changed is a symbol from then on, and one specialisation serves all. */
static void sizes_are_symbols(void **state) {
    (void)state;
    static const int64_t batches[] = {16, 16, 24, 8, 1, 40, 24};
    rp_scope scope = rp_scope_begin();
    net eager, compiled;
    net_init(&eager);
    net_init(&compiled);
    rp_fn fn = {step_of_means, &compiled, sizeof compiled, "means"};
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (int k = 0; k < (int)(sizeof batches / sizeof *batches); k++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *a = NULL, *b = NULL;
        rp_tensor *in[2] = {filled(100 + k, (const int64_t[]){batches[k], IN}, 2), classes(k, batches[k])};
        step_of_means(&eager, in, 2, &a, 1);
        rp_call(f, in, 2, &b, 1);
        ok();
        assert_same(a, b, "loss", k);
        for (int p = 0; p < PARAMS; p++) assert_same(eager.p[p], compiled.p[p], "parameter", k);
        rp_scope_end(inner, NULL, 0);
    }
    if (count_of(f, "specialisation") != 2 || count_of(f, "skip") > 0) {
        print_explain(f);
        fail_msg("%d specialisations", (int)count_of(f, "specialisation"));
    }
    rp_compiled_release(f);
    net_free(&eager);
    net_free(&compiled);
    rp_scope_end(scope, NULL, 0);
    ok();
}

/* The function is compiled, loss and optimizer are eager; batches of several sizes. */
static void compiled_forward(void **state) {
    (void)state;
    static const int64_t batches[] = {16, 16, 16, 7, 7, 12, 16, 3, 12, 7};
    rp_scope scope = rp_scope_begin();
    net eager, compiled;
    net_init(&eager);
    net_init(&compiled);
    rp_fn fn = {model, &compiled, sizeof compiled, "model"};
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int k = 0; k < 10; k++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *x = filled(200 + k, (const int64_t[]){batches[k], IN}, 2), *t = classes(k, batches[k]), *a = NULL,
                  *b = NULL;
        model(&eager, &x, 1, &a, 1);
        rp_call(f, &x, 1, &b, 1);
        ok();
        assert_same(a, b, "result", k);
        rp_tensor *both[2] = {a, b};
        net *nets[2] = {&eager, &compiled};
        for (int i = 0; i < 2; i++) {
            rp_backward(rp_cross_entropy(both[i], t), NULL, NULL);
            ok();
        }
        for (int p = 0; p < PARAMS; p++) assert_same(rp_grad_of(eager.p[p]), rp_grad_of(compiled.p[p]), "gradient", k);
        for (int i = 0; i < 2; i++) {
            rp_optimizer_step(nets[i]->opt);
            rp_optimizer_zero_grad(nets[i]->opt, true);
        }
        ok();
        rp_scope_end(inner, NULL, 0);
    }
    assert_int_equal(count_of(f, "skip"), 0);
    assert_true(count_of(f, "specialisation") <= 2); /* one of fixed sizes, one for the rest */
    rp_compiled_release(f);
    net_free(&eager);
    net_free(&compiled);
    rp_scope_end(scope, NULL, 0);
}

/* A result that the caller still holds is never overwritten by a later call; a saved one that was written is an error. */
static void results_are_kept(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net m;
    net_init(&m);
    rp_fn fn = {model, &m, sizeof m, "model"};
    rp_compiled *f = rp_compile(fn, NULL);
    rp_tensor *held[8], *expected[8];
    for (int k = 0; k < 8; k++) {
        rp_tensor *x = filled(k, (const int64_t[]){4, IN}, 2);
        model(&m, &x, 1, &expected[k], 1);
        rp_call(f, &x, 1, &held[k], 1);
    }
    ok();
    for (int k = 0; k < 8; k++) assert_same(expected[k], held[k], "held result", k);
    assert_true(count_of(f, "patch") >=
                7); /* every result but the first lies in fresh memory, every argument is another */
    /* a parameter that changes between forward and backward */
    rp_tensor *x = filled(9, (const int64_t[]){4, IN}, 2), *y = NULL;
    rp_call(f, &x, 1, &y, 1);
    rp_tensor *loss = rp_sum(y);
    bool mode = rp_set_grad_enabled(false);
    rp_mul_scalar_(m.p[2], rp_f64(2));
    rp_set_grad_enabled(mode);
    assert_int_equal(rp_backward(loss, NULL, NULL), RP_ERROR_VERSION);
    (void)rp_error_take();
    /* twice without retain_graph */
    rp_call(f, &x, 1, &y, 1);
    loss = rp_sum(y);
    assert_int_equal(rp_backward(loss, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)), RP_OK);
    assert_int_equal(rp_backward(loss, NULL, NULL), RP_OK);
    assert_int_equal(rp_backward(loss, NULL, NULL), RP_ERROR_STATE);
    (void)rp_error_take();
    /* the tape outlives the compiled function */
    rp_call(f, &x, 1, &y, 1);
    rp_compiled_release(f);
    assert_int_equal(rp_backward(rp_sum(y), NULL, NULL), RP_OK);
    net_free(&m);
    rp_scope_end(scope, NULL, 0);
}

enum { DEEP = 6, WIDE = 64, ROWS = 48 };

/* Each layer saves its rows and needs as much again while it runs backward. */
static void deep(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor **w = ctx, *h = in[0];
    (void)n_in, (void)n_out;
    for (int k = 0; k < DEEP; k++) h = rp_add(h, rp_tanh(rp_linear(h, w[k], NULL)));
    out[0] = h;
}

static int64_t memory_of(rp_compiled *f, const char *start) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        bool is = rp_explain_get(f, k, &e) == RP_OK && strcmp(e.kind, "memory") == 0;
        if (is && strncmp(e.message, start, strlen(start)) == 0) n += e.count;
    }
    return n;
}

static rp_status backward_of(rp_tensor *y, bool retain) {
    rp_tensor *loss = rp_sum(rp_mul(y, y));
    return rp_backward(loss, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = retain));
}

static void assert_gradients(rp_tensor **eager, rp_tensor **compiled, const char *what) {
    for (int k = 0; k < DEEP; k++) {
        assert_non_null(rp_grad_of(compiled[k]));
        assert_same(rp_grad_of(eager[k]), rp_grad_of(compiled[k]), what, k);
    }
}

/* The bytes that a first call and its backward took at the most. */
static int64_t peak_of(rp_tensor **w, rp_tensor *x, bool retain) {
    rp_memory_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    rp_scope scope = rp_scope_begin();
    rp_fn fn = {deep, w, DEEP * sizeof *w, "deep"};
    rp_compiled *f = rp_compile(fn, NULL);
    rp_tensor *y = NULL;
    assert_int_equal(rp_memory_stats_reset_peak(rp_default_device()), RP_OK);
    assert_int_equal(rp_memory_stats_get(rp_default_device(), &before), RP_OK);
    rp_call(f, &x, 1, &y, 1);
    assert_int_equal(backward_of(y, retain), RP_OK);
    assert_int_equal(rp_memory_stats_get(rp_default_device(), &after), RP_OK);
    for (int k = 0; k < DEEP; k++) rp_set_grad(w[k], NULL);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    ok();
    return (int64_t)(after.allocated_peak - before.allocated);
}

/* A backward that runs once takes what was saved for it as memory of its own, behind the last reader; one that may run again
   leaves it as it is. */
static void saved_memory_is_donated(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *w[2][DEEP], *x = filled(50, (const int64_t[]){ROWS, WIDE}, 2), *y[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < DEEP; k++) {
            w[i][k] = filled(60 + k, (const int64_t[]){WIDE, WIDE}, 2);
            rp_set_requires_grad(w[i][k], true);
        }
    }
    rp_fn fn = {deep, w[1], sizeof w[1], "deep"};
    rp_compiled *f = rp_compile(fn, NULL);
    deep(w[0], &x, 1, &y[0], 1);
    rp_call(f, &x, 1, &y[1], 1);
    for (int i = 0; i < 2; i++) assert_int_equal(backward_of(y[i], true), RP_OK);
    assert_gradients(w[0], w[1], "gradient with the graph retained");
    assert_int_equal(memory_of(f, "donated"), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(backward_of(y[i], false), RP_OK);
    assert_gradients(w[0], w[1], "gradient of a second backward");
    assert_int_equal(backward_of(y[1], false), RP_ERROR_STATE);
    (void)rp_error_take();
    rp_compiled_release(f);
    /* two forwards before their backwards: what is saved lies elsewhere each time */
    f = rp_compile(fn, NULL);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < DEEP; k++) rp_set_grad(w[i][k], NULL);
    }
    for (int round = 0; round < 3; round++) {
        rp_tensor *late[2][2] = {{NULL}};
        for (int j = 0; j < 2; j++) {
            rp_tensor *more = filled(70 + j + round, (const int64_t[]){ROWS, WIDE}, 2);
            deep(w[0], &more, 1, &late[0][j], 1);
            rp_call(f, &more, 1, &late[1][j], 1);
        }
        for (int j = 0; j < 2; j++) {
            for (int i = 0; i < 2; i++) assert_int_equal(backward_of(late[i][j], false), RP_OK);
        }
        assert_gradients(w[0], w[1], "gradients of two calls");
    }
    int64_t arena = memory_of(f, "arena"), donated = memory_of(f, "donated");
    assert_true(donated >= (int64_t)(ROWS * WIDE * sizeof(float)) && arena > 0);
    rp_compiled_release(f);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < DEEP; k++) rp_set_grad(w[i][k], NULL);
    }
    int64_t kept = peak_of(w[1], x, true), given = peak_of(w[1], x, false);
    if (given + donated > kept) fail_msg("%lld bytes instead of %lld", (long long)given, (long long)kept);
    rp_scope_end(scope, NULL, 0);
    ok();
}

static void once(net *m) {
    rp_scope scope = rp_scope_begin();
    rp_fn fn = {model, m, sizeof *m, "model"};
    rp_compiled *f = rp_compile(fn, NULL);
    rp_tensor *x = filled(1, (const int64_t[]){3, IN}, 2), *y = NULL;
    for (int k = 0; k < 2 && !rp_failed(); k++) {
        if (rp_call(f, &x, 1, &y, 1) == RP_OK) (void)rp_backward(rp_sum(y), NULL, NULL);
    }
    rp_compiled_release(f);
    for (int k = 0; k < PARAMS; k++) rp_set_grad(m->p[k], NULL);
    rp_scope_end(scope, NULL, 0);
}

static void nothing_leaks(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net m;
    net_init(&m);
    for (int k = 0; k < 3; k++) once(&m);
    ok();
    uint64_t before = rp__alloc_live();
    for (int k = 0; k < 200; k++) once(&m);
    ok();
    uint64_t after = rp__alloc_live();
    assert_true(after <= before + 8); /* caches of the thread may have grown */
    net_free(&m);
    rp_scope_end(scope, NULL, 0);
}

/* The n-th allocation fails, for every n: a clean error, nothing lost, and the next run works. */
static void allocations_fail(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net m;
    net_init(&m);
    once(&m);
    once(&m);
    ok();
    uint64_t start = rp__alloc_fail_at(0);
    once(&m);
    uint64_t total = rp__alloc_fail_at(0) - start, failures = 0, live = rp__alloc_live();
    assert_true(total > 100);
    for (uint64_t n = 1; n <= total; n++) {
        (void)rp__alloc_fail_at(n);
        once(&m);
        (void)rp__alloc_fail_at(0);
        if (rp_failed()) {
            failures++;
            assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
        }
    }
    assert_true(failures > total / 4);
    once(&m);
    ok();
    uint64_t left = rp__alloc_live();
    if (left > live + 8) fail_msg("%llu blocks were lost", (unsigned long long)(left - live));
    net_free(&m);
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    if (!test_device_choose()) return 1;
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_step),
        cmocka_unit_test(whole_step_on_a_gpu),
        cmocka_unit_test(movements_are_seen),
        cmocka_unit_test(sizes_are_symbols),
        cmocka_unit_test(dropout),
        cmocka_unit_test(compiled_forward),
        cmocka_unit_test(results_are_kept),
        cmocka_unit_test(nothing_leaks),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(saved_memory_is_donated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
