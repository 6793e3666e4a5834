/* Optimizers against torch.optim (tests/data/golden/training/optimizers.txt, written by scripts/golden_training.py,
   which has the same cases), and what a recording must replay rightly: every rule, more parameters than one call of
   an op takes, the first step of SGD's buffers under dampening. One by one and eager are the reference; compiled and
   captured whole steps must equal them bit for bit, on the CPU and on the emulator of CUDA. */
/* ctest: labels=cuda timeout=300 cost=20 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "support/check.h"
#include "support/cuda.h"
#include "support/golden.h"

enum { STEPS = 10, SIZE = 3 };

static bool have_cuda;

typedef struct model {
    size_t n;
    rp_tensor **p;
    rp_optimizer *opt;
} model;

/* ---- the cases, by the names that scripts/golden_training.py gives them */

#define LR 0.0625
#define MAKE(name, kind, ...)                                                                                          \
    static rp_optimizer *make_##name(rp_tensor *const *p, size_t n) { return rp_##kind(p, n, LR, __VA_ARGS__); }
#define OPT(kind, ...) RP_OPTIONS(rp_##kind##_options, __VA_ARGS__)
#define CASES(X)                                                                                                       \
    X(sgd, sgd, NULL)                                                                                                  \
    X(sgd_decay_maximize, sgd, OPT(sgd, .weight_decay = 0.1, .maximize = true))                                        \
    X(sgd_momentum, sgd, OPT(sgd, .momentum = 0.9))                                                                    \
    X(sgd_dampening, sgd, OPT(sgd, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1))                            \
    X(sgd_nesterov, sgd, OPT(sgd, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1, .maximize = true))           \
    X(adam, adam, NULL)                                                                                                \
    X(adam_decay_maximize, adam,                                                                                       \
      OPT(adam, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1, .maximize = true))                      \
    X(adam_amsgrad, adam, OPT(adam, .amsgrad = true, .weight_decay = 0.1))                                             \
    X(adamw, adamw, NULL)                                                                                              \
    X(adamw_amsgrad, adamw,                                                                                            \
      OPT(adam, .beta1 = 0.5, .beta2 = 0.9, .weight_decay = 0.2, .amsgrad = true, .maximize = true))                   \
    X(rmsprop, rmsprop, NULL)                                                                                          \
    X(rmsprop_momentum, rmsprop,                                                                                       \
      OPT(rmsprop, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum = 0.7, .maximize = true))                 \
    X(rmsprop_centered, rmsprop, OPT(rmsprop, .centered = true))                                                       \
    X(rmsprop_all, rmsprop, OPT(rmsprop, .momentum = 0.5, .centered = true, .weight_decay = 0.1))                      \
    X(adagrad, adagrad, NULL)                                                                                          \
    X(adagrad_all, adagrad,                                                                                            \
      OPT(adagrad, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5, .eps = 1e-3,                \
          .maximize = true))                                                                                           \
    X(adadelta, adadelta, NULL)                                                                                        \
    X(adadelta_all, adadelta, OPT(adadelta, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1, .maximize = true))           \
    X(adamax, adamax, NULL)                                                                                            \
    X(adamax_all, adamax, OPT(adamax, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1, .maximize = true)) \
    X(nadam, nadam, NULL)                                                                                              \
    X(nadam_all, nadam,                                                                                                \
      OPT(nadam, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum_decay = 0.02,                 \
          .maximize = true))                                                                                           \
    X(nadam_decoupled, nadam, OPT(nadam, .weight_decay = 0.1, .decoupled_weight_decay = true))                         \
    X(radam, radam, NULL)                                                                                              \
    X(radam_all, radam, OPT(radam, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1, .maximize = true))    \
    X(radam_decoupled, radam,                                                                                          \
      OPT(radam, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .decoupled_weight_decay = true))                    \
    X(lion, lion, NULL)                                                                                                \
    X(lion_all, lion, OPT(lion, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1, .maximize = true))                    \
    X(lamb, lamb, NULL)                                                                                                \
    X(lamb_plain, lamb, OPT(lamb, .weight_decay = -1))                                                                 \
    X(lamb_all, lamb,                                                                                                  \
      OPT(lamb, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = -1, .trust_clip = true,                       \
          .always_adapt = true))                                                                                       \
    /* not in the file */                                                                                              \
    X(sgd_undampened, sgd, OPT(sgd, .momentum = 0.9, .dampening = -0.5))
CASES(MAKE)

typedef struct rule {
    const char *name;
    rp_optimizer *(*make)(rp_tensor *const *p, size_t n);
} rule;
#define RULE(name, ...) {#name, make_##name},
static const rule rules[] = {CASES(RULE)};
enum { RULES = sizeof rules / sizeof *rules };

static const rule *rule_named(const char *name) {
    for (int i = 0; i < RULES; i++)
        if (strcmp(rules[i].name, name) == 0) return &rules[i];
    fail_msg("no case is named %s", name);
    return NULL;
}

/* ---- against PyTorch */

enum { GOLDEN_PARAMS = 3, GOLDEN_NUMBERS = 12 };
static const int64_t golden_size[GOLDEN_PARAMS][2] = {{5, 0}, {2, 3}, {0, 0}};
static const size_t golden_ndim[GOLDEN_PARAMS] = {1, 2, 0};
static const int golden_count[GOLDEN_PARAMS] = {5, 6, 1};

static rp_tensor *golden_tensor(int k, int step, rp_dtype dtype) {
    double v[GOLDEN_NUMBERS];
    for (int i = 0; i < golden_count[k]; i++)
        v[i] = step ? ((k * 13 + i * 29 + step * 41) % 89 - 44) / 37.0 : ((k * 31 + i * 17) % 97 - 48) / 53.0;
    return rp_to_dtype(rp_from_data(v, golden_size[k], golden_ndim[k], RP_F64), dtype);
}

/* One case: its lines of the file, which follow one another. */
static void golden_step(rp_tensor **p, rp_optimizer *opt, bool lamb, int t, rp_dtype dtype) {
    for (int k = 0; k < GOLDEN_PARAMS; k++)
        rp_set_grad(p[k], k == 1 && t == 2 && !lamb ? NULL : golden_tensor(k, t, dtype));
    rp_optimizer_step(opt);
    FINE();
}

static void compare_golden(const char *name, int t, rp_tensor *const *p, char *numbers, double tolerance) {
    for (int k = 0; k < GOLDEN_PARAMS; k++) {
        double have[GOLDEN_NUMBERS];
        rp_to_host(rp_to_dtype(p[k], RP_F64), have, (size_t)golden_count[k] * sizeof *have);
        for (int i = 0; i < golden_count[k]; i++) {
            double want = strtod(numbers, &numbers);
            if (!(fabs(have[i] - want) <= tolerance * (1 + fabs(want))))
                fail_msg("%s, step %d: parameter %d, element %d is %.17g, not %.17g", name, t, k, i, have[i], want);
        }
    }
}

/* cycled: under a schedule that cycles momenta; rates are float32, in PyTorch float64. */
static int run_golden(rp_dtype dtype, double tolerance, bool cycled) {
    char line[1024], name[64], now[64] = "";
    FILE *f = golden_open(cycled ? "training/cycled.txt" : "training/optimizers.txt");
    rp_schedule *s = rp_schedule_one_cycle(
        0.25, 7, RP_OPTIONS(rp_one_cycle_options, .pct_start = 0.5, .base_momentum = 0.6, .max_momentum = 0.9));
    rp_tensor *p[GOLDEN_PARAMS] = {NULL};
    rp_optimizer *opt = NULL;
    int lines = 0;
    for (; fgets(line, sizeof line, f); lines++) {
        int t, at;
        assert_int_equal(sscanf(line, "%63s %d%n", name, &t, &at), 2);
        rp_scope scope = rp_scope_begin();
        if (t == 1) {
            rp_optimizer_release(opt);
            memcpy(now, name, sizeof now);
            for (int k = 0; k < GOLDEN_PARAMS; k++) {
                if (p[k]) rp_release(p[k]);
                p[k] = rp_retain(golden_tensor(k, 0, dtype));
                rp_set_requires_grad(p[k], true);
            }
            opt = rule_named(name)->make(p, GOLDEN_PARAMS);
            if (cycled) rp_optimizer_set_schedule(opt, s);
        }
        assert_string_equal(name, now);
        golden_step(p, opt, strncmp(name, "lamb", 4) == 0, t, dtype);
        if (cycled) rp_optimizer_schedule_step(opt);
        /* NAdam's product is a float32, also in PyTorch, where it is multiplied by a double */
        compare_golden(name, t, p, line + at, dtype == RP_F64 && strncmp(name, "nadam", 5) == 0 ? 3e-7 : tolerance);
        rp_scope_end(scope, NULL, 0);
    }
    rp_optimizer_release(opt);
    rp_schedule_release(s);
    for (int k = 0; k < GOLDEN_PARAMS; k++) {
        rp_set_grad(p[k], NULL);
        rp_release(p[k]);
    }
    (void)fclose(f);
    return lines;
}

static void as_pytorch(void **state) {
    (void)state;
    assert_true(run_golden(RP_F64, 1e-13, false) > 200);
    assert_true(run_golden(RP_F32, 2e-6, false) > 200);
}

static void cycled_momenta(void **state) {
    (void)state;
    assert_true(run_golden(RP_F64, 5e-7, true) > 100);
    assert_true(run_golden(RP_F32, 5e-6, true) > 100);
}

/* ---- L-BFGS */

typedef struct valley {
    rp_tensor *p[2];
    double sign;
    int calls;
} valley;

/* (1 - x)^2 + 10 (y - x^2)^2 + (z - x y)^2 */
static rp_tensor *valley_loss(void *ctx) {
    valley *v = ctx;
    v->calls++;
    for (int k = 0; k < 2; k++) rp_set_grad(v->p[k], NULL);
    rp_tensor *x = rp_select(v->p[0], 0, 0), *y = rp_select(v->p[0], 0, 1);
    rp_tensor *a = rp_add_scalar(rp_neg(x), rp_i64(1)), *b = rp_sub(y, rp_mul(x, x)),
              *c = rp_sub(v->p[1], rp_mul(x, y));
    rp_tensor *loss = rp_add(rp_add(rp_mul(a, a), rp_mul_scalar(rp_mul(b, b), rp_i64(10))), rp_mul(c, c));
    loss = rp_mul_scalar(loss, rp_f64(v->sign));
    rp_backward(loss, NULL, NULL);
    return loss;
}

static void lbfgs_is_pytorchs(void **state) {
    (void)state;
    char line[512], name[32];
    FILE *f = golden_open("training/lbfgs.txt");
    rp_scope scope = rp_scope_begin();
    valley v = {.sign = 1};
    rp_lbfgs *l = NULL;
    int t, evaluations, lines = 0;
    double want[4];
    for (; fgets(line, sizeof line, f); lines++) {
        assert_int_equal(
            sscanf(line, "%31s %d %d %lf %lf %lf %lf", name, &t, &evaluations, &want[0], &want[1], &want[2], &want[3]),
            7);
        if (t == 0) {
            const bool plain = strcmp(name, "plain") == 0, is_short = strcmp(name, "short") == 0,
                       maximize = strcmp(name, "maximize") == 0;
            v.p[0] = rp_from_data((double[]){-1.2, 1}, RP_DIMS(2), RP_F64);
            v.p[1] = rp_from_data((double[]){0.5}, RP_NO_DIMS, RP_F64);
            v.sign = maximize ? -1 : 1;
            v.calls = 0;
            for (int k = 0; k < 2; k++) rp_set_requires_grad(v.p[k], true);
            rp_lbfgs_release(l);
            l = rp_lbfgs_new(v.p, 2,
                             plain      ? 0.01
                             : is_short ? 0.8
                             : maximize ? 0.5
                                        : 1,
                             RP_OPTIONS(rp_lbfgs_options,
                                        .max_iter = plain      ? 6
                                                    : is_short ? 5
                                                    : maximize ? 4
                                                               : 8,
                                        .history_size = is_short   ? 3
                                                        : maximize ? 2
                                                                   : 0,
                                        .strong_wolfe = !plain, .maximize = maximize));
        }
        double have[4] = {rp_item_f64(rp_lbfgs_step(l, valley_loss, &v))};
        rp_to_host(v.p[0], &have[1], 16);
        rp_to_host(v.p[1], &have[3], 8);
        FINE();
        assert_int_equal(v.calls, evaluations);
        for (int k = 0; k < 4; k++)
            if (!(fabs(have[k] - want[k]) <= 1e-7 * (1 + fabs(want[k]))))
                fail_msg("%s, step %d: number %d is %.17g, not %.17g", name, t, k, have[k], want[k]);
    }
    assert_int_equal(lines, 16);
    (void)fclose(f);
    (void)rp_lbfgs_step(l, NULL, NULL);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    rp_lbfgs_release(l);
    l = rp_lbfgs_new(NULL, 0, 1, NULL);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    (void)rp_lbfgs_step(l, valley_loss, &v);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    for (int k = 0; k < 2; k++) rp_set_grad(v.p[k], NULL);
    rp_scope_end(scope, NULL, 0);
}

/* ---- recorded steps */

static void model_init(model *m, size_t n, const rule *r) {
    m->n = n;
    m->p = calloc(n, sizeof *m->p);
    for (size_t k = 0; k < n; k++) {
        float values[SIZE];
        for (int i = 0; i < SIZE; i++) values[i] = (float)((int)(k * 31 + (size_t)i * 17) % 97 - 48) / 53.0f;
        m->p[k] = rp_retain(rp_from_data(values, RP_DIMS(SIZE), RP_F32));
        rp_set_requires_grad(m->p[k], true);
    }
    m->opt = r ? r->make(m->p, n) : NULL;
    FINE();
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
        FINE();
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
    FINE();
}

static void many(const rule *r, size_t n, int steps) {
    model single, eager, compiled;
    rp_scope all = rp_scope_begin();
    model_init(&single, n, NULL);
    model_init(&eager, n, r);
    model_init(&compiled, n, r);
    rp_optimizer **each = calloc(n, sizeof *each);
    for (size_t k = 0; k < n; k++) each[k] = r->make(&single.p[k], 1);
    rp_compiled *f =
        rp_compile((rp_fn){whole_step, &compiled, 0, "step"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int t = 0; t < steps; t++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = input(t), *out;
        one_by_one(&single, each, x);
        whole_step(&eager, &x, 1, &out, 1);
        FINE();
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
    const rule *adam = rule_named("adam"), *sgd = rule_named("sgd_dampening");
    many(adam, 1000, 4);
    many(sgd, 1000, 4);
    static const size_t edges[] = {126, 127, 128, 254, 255, 256};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        many(adam, edges[i], 2);
        many(sgd, edges[i], 2);
    }
}

static void recorded_is_eager(void **state) {
    (void)state;
    static const char *const backends[] = {"fused", "cudagraphs", "aot_eager"};
    for (int i = 0; i < RULES; i++) {
        const rule *r = &rules[i];
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
                FINE();
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

/* A group that is added when steps are recorded already is stepped, and its gradients are cleared, from then on. */
static void zero_grad_alone(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_optimizer_zero_grad(((const model *)ctx)->opt, false);
    out[0] = rp_clone(in[0]);
}
static void groups_behind_a_recording(void **state) {
    (void)state;
    static const char *const backends[] = {"fused", "cudagraphs", "aot_eager"};
    for (size_t b = 0; b < sizeof backends / sizeof *backends; b++) {
        model both[2];
        rp_compiled *step[2], *zero[2];
        rp_scope all = rp_scope_begin();
        for (int k = 0; k < 2; k++) {
            rp_fn steps = {whole_step, &both[k], 0, "step"}, zeroes = {zero_grad_alone, &both[k], 0, "zero"};
            model_init(&both[k], 3, NULL);
            both[k].opt = rp_adam(both[k].p, 2, LR, NULL);
            step[k] = k ? rp_compile(steps, RP_OPTIONS(rp_compile_options, .backend = backends[b])) : rp_plain(steps);
            zero[k] = k ? rp_compile(zeroes, RP_OPTIONS(rp_compile_options, .backend = backends[b])) : rp_plain(zeroes);
        }
        for (int t = 0; t < STEPS; t++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *x = input(t), *out, *ones = rp_ones(RP_DIMS(SIZE));
            for (int k = 0; k < 2; k++) {
                if (t == 4) rp_adam_add_group(both[k].opt, &both[k].p[2], 1, LR / 2, NULL);
                assert_int_equal(rp_call(step[k], &x, 1, &out, 1), RP_OK);
                for (int i = 0; i < 3; i++) rp_set_grad(both[k].p[i], rp_clone(ones));
                assert_int_equal(rp_call(zero[k], &x, 1, &out, 1), RP_OK);
                for (int i = 0; i < 3; i++)
                    assert_true(rp_item_f64(rp_sum(rp_grad_of(both[k].p[i]))) == (i == 2 && t < 4 ? SIZE : 0));
                FINE();
            }
            same(&both[0], &both[1], backends[b], t);
            rp_scope_end(scope, NULL, 0);
        }
        for (int k = 0; k < 2; k++) {
            rp_compiled_release(step[k]);
            rp_compiled_release(zero[k]);
            model_free(&both[k]);
        }
        rp_scope_end(all, NULL, 0);
    }
}

/* The very first step is captured; its replays are all the steps that ever run. */
static void captured_first_step(void **state) {
    (void)state;
    for (int i = 0; i < RULES; i++) {
        const rule *r = &rules[i];
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
            FINE();
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
    size_t n = test_cuda_is_real() ? 1000 : 300; /* beyond two calls of the op */
    many(rule_named("adam"), n, 3);
    many(rule_named("sgd_dampening"), n, 3);
    captured_first_step(state);
    assert_true(run_golden(RP_F32, 2e-6, false) > 200);
    assert_true(run_golden(RP_F32, 5e-6, true) > 100);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_pytorch),          cmocka_unit_test(cycled_momenta),
        cmocka_unit_test(lbfgs_is_pytorchs),   cmocka_unit_test(a_thousand_parameters),
        cmocka_unit_test(recorded_is_eager),   cmocka_unit_test(groups_behind_a_recording),
        cmocka_unit_test(captured_first_step), cmocka_unit_test(on_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
