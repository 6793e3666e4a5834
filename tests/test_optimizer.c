/* Optimizer steps that a recording must replay rightly: more parameters than one call of an op takes, and the first step of SGD's
   buffers under dampening. One by one and eager are the reference; compiled and captured whole steps must equal them bit for bit,
   on the CPU and on the emulator of CUDA. */
/* ctest: labels=cuda timeout=300 cost=12 */
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

#include "support/cuda.h"

enum { STEPS = 10, SIZE = 3 };

static bool have_cuda;

static void ok_at(int line) {
    if (!rp_failed()) return;
    char text[1024];
    (void)snprintf(text, sizeof text, "line %d: %s", line, rp_error_message());
    (void)rp_error_take();
    fail_msg("%s", text);
}
#define OK() ok_at(__LINE__)

typedef struct model {
    size_t n;
    rp_tensor **p;
    rp_optimizer *opt;
} model;

typedef struct rule {
    bool adam;
    double momentum, dampening, decay;
    bool nesterov;
} rule;

static rp_optimizer *optimizer_of(const rule *r, rp_tensor *const *p, size_t n) {
    return r->adam ? rp_adam(p, n, 0.05, RP_OPTIONS(rp_adam_options, .weight_decay = r->decay))
                   : rp_sgd(p, n, 0.05,
                            RP_OPTIONS(rp_sgd_options, .momentum = r->momentum, .dampening = r->dampening,
                                       .weight_decay = r->decay, .nesterov = r->nesterov));
}

static void model_init(model *m, size_t n, const rule *r) {
    m->n = n;
    m->p = calloc(n, sizeof *m->p);
    for (size_t k = 0; k < n; k++) {
        float values[SIZE];
        for (int i = 0; i < SIZE; i++) values[i] = (float)((int)(k * 31 + (size_t)i * 17) % 97 - 48) / 53.0f;
        m->p[k] = rp_retain(rp_from_data(values, RP_DIMS(SIZE), RP_F32));
        rp_set_requires_grad(m->p[k], true);
    }
    m->opt = r ? optimizer_of(r, m->p, n) : NULL;
    OK();
}

static void model_free(model *m) {
    rp_optimizer_release(m->opt);
    for (size_t k = 0; k < m->n; k++) {
        rp_set_grad(m->p[k], NULL);
        rp_release(m->p[k]);
    }
    free(m->p);
}

/* loss = sum over parameters of (p * x)^2 / 2, scaled by k: every parameter has a gradient of its own. */
static rp_tensor *loss_of(const model *m, rp_tensor *x) {
    rp_tensor *all = rp_cat(m->p, m->n > 500 ? 500 : m->n, 0);
    if (m->n > 500) all = rp_cat(RP_TENSORS(all, rp_cat(m->p + 500, m->n - 500, 0)), 0);
    rp_tensor *y = rp_mul(all, rp_select(x, 0, 0));
    return rp_sum(rp_mul(y, y));
}

static void whole_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const model *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *loss = loss_of(m, in[0]);
    rp_optimizer_zero_grad(m->opt, true);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(m->opt);
    rp_optimizer_zero_grad(m->opt, true);
    out[0] = rp_detach(loss);
}

static rp_tensor *input(int t) { return rp_full(RP_DIMS(1), rp_f64(0.5 + 0.125 * t)); }

static void same(const model *a, const model *b, const char *what, int t) {
    for (size_t k = 0; k < a->n; k++) {
        float x[SIZE], y[SIZE];
        rp_to_host(a->p[k], x, sizeof x);
        rp_to_host(b->p[k], y, sizeof y);
        OK();
        if (memcmp(x, y, sizeof x) != 0)
            fail_msg("%s, step %d: parameter %zu is %a, not %a", what, t, k, (double)y[0], (double)x[0]);
    }
}

/* Every parameter by an optimizer of its own: what one op a parameter computes. */
static void one_by_one(const model *m, rp_optimizer **each, rp_tensor *x) {
    rp_tensor *loss = loss_of(m, x);
    for (size_t k = 0; k < m->n; k++) rp_set_grad(m->p[k], NULL);
    rp_backward(loss, NULL, NULL);
    for (size_t k = 0; k < m->n; k++) rp_optimizer_step(each[k]);
    OK();
}

static void many(const rule *r, size_t n, int steps) {
    model single, eager, compiled;
    rp_scope all = rp_scope_begin();
    model_init(&single, n, NULL);
    model_init(&eager, n, r);
    model_init(&compiled, n, r);
    rp_optimizer **each = calloc(n, sizeof *each);
    for (size_t k = 0; k < n; k++) each[k] = optimizer_of(r, &single.p[k], 1);
    rp_compiled *f =
        rp_compile((rp_fn){whole_step, &compiled, 0, "step"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int t = 0; t < steps; t++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = input(t), *out;
        one_by_one(&single, each, x);
        whole_step(&eager, &x, 1, &out, 1);
        OK();
        assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
        same(&single, &eager, "eager", t);
        same(&single, &compiled, "compiled", t);
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);
    for (size_t k = 0; k < n; k++) rp_optimizer_release(each[k]);
    free(each);
    model_free(&single);
    model_free(&eager);
    model_free(&compiled);
    rp_scope_end(all, NULL, 0);
}

static void a_thousand_parameters(void **state) {
    (void)state;
    const rule adam = {.adam = true, .decay = 0.01}, sgd = {.momentum = 0.9, .dampening = 0.5};
    many(&adam, 1000, 4);
    many(&sgd, 1000, 4);
    static const size_t edges[] = {126, 127, 128, 254, 255, 256};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        many(&adam, edges[i], 2);
        many(&sgd, edges[i], 2);
    }
}

static const rule sgd_rules[] = {{.momentum = 0.9, .dampening = 0.5},
                                 {.momentum = 0.9, .dampening = 0.5, .decay = 0.1},
                                 {.momentum = 0.9, .nesterov = true},
                                 {.momentum = 0.9, .nesterov = true, .decay = 0.1},
                                 {.momentum = 0.9, .dampening = -0.5},
                                 {.momentum = 0.9},
                                 {.momentum = 0}};

static void recorded_sgd_is_eager_sgd(void **state) {
    (void)state;
    static const char *const backends[] = {"fused", "cudagraphs", "aot_eager"};
    for (size_t i = 0; i < sizeof sgd_rules / sizeof *sgd_rules; i++) {
        const rule *r = &sgd_rules[i];
        for (size_t b = 0; b < sizeof backends / sizeof *backends; b++) {
            model eager, compiled;
            rp_scope all = rp_scope_begin();
            model_init(&eager, 3, r);
            model_init(&compiled, 3, r);
            rp_compiled *f = rp_compile((rp_fn){whole_step, &compiled, 0, "step"},
                                        RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = true));
            for (int t = 0; t < STEPS; t++) {
                rp_scope scope = rp_scope_begin();
                rp_tensor *x = input(t), *out;
                whole_step(&eager, &x, 1, &out, 1);
                OK();
                assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
                same(&eager, &compiled, backends[b], t);
                rp_scope_end(scope, NULL, 0);
            }
            rp_compiled_release(f);
            model_free(&eager);
            model_free(&compiled);
            rp_scope_end(all, NULL, 0);
        }
    }
}

/* The very first step is captured; its replays are all the steps that ever run. */
static void captured_first_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sgd_rules / sizeof *sgd_rules; i++) {
        const rule *r = &sgd_rules[i];
        model eager, captured;
        rp_scope all = rp_scope_begin();
        model_init(&eager, 3, r);
        model_init(&captured, 3, r);
        rp_tensor *fixed = input(0), *out;
        rp_graph *g = rp_graph_new();
        rp_device device = rp_device_of(fixed);
        assert_int_equal(rp_graph_begin(g, device, NULL), RP_OK);
        whole_step(&captured, &fixed, 1, &out, 1);
        assert_int_equal(rp_graph_end(g), RP_OK);
        for (int t = 0; t < STEPS; t++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *x = input(t), *loss;
            whole_step(&eager, &x, 1, &loss, 1);
            rp_copy_(fixed, x);
            OK();
            assert_int_equal(rp_graph_replay(g), RP_OK);
            same(&eager, &captured, "captured", t);
            rp_scope_end(scope, NULL, 0);
        }
        rp_graph_release(g);
        model_free(&eager);
        model_free(&captured);
        rp_scope_end(all, NULL, 0);
    }
}

static void on_cuda(void **state) {
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    const rule adam = {.adam = true, .decay = 0.01}, sgd = {.momentum = 0.9, .dampening = 0.5};
    size_t n = test_cuda_is_real() ? 1000 : 300; /* beyond two calls of the op */
    many(&adam, n, 3);
    many(&sgd, n, 3);
    captured_first_step(state);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_parameters),
        cmocka_unit_test(recorded_sgd_is_eager_sgd),
        cmocka_unit_test(captured_first_step),
        cmocka_unit_test(on_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
