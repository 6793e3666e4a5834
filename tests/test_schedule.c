/* Learning rates and momenta against torch.optim.lr_scheduler (tests/data/golden/training/schedules.txt, momenta.txt and
   plateau.txt, written by scripts/golden_training.py, which has the same cases); schedules, clipping and averages in recorded steps, which
   must give the bits of eager ones, on the CPU and on the emulator of CUDA. */
/* ctest: labels=cuda timeout=300 cost=10 */
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

enum { RATES = 48, STEPS = 8 };
#define BASE 0.05

static bool have_cuda;

static double falling(void *ctx, int64_t t) {
    (void)ctx;
    return 1 / (1 + (double)t);
}

static rp_schedule *combined(bool chained, rp_schedule **parts, size_t n, const int64_t *milestones) {
    rp_schedule *s = chained ? rp_schedule_chained(parts, n) : rp_schedule_sequential(parts, n, milestones);
    for (size_t i = 0; i < n; i++) rp_schedule_release(parts[i]);
    return s;
}

static rp_schedule *schedule_named(const char *name) {
#define CASE(text, make)                                                                                               \
    if (strcmp(name, text) == 0) return make
    CASE("constant", rp_schedule_constant(0.25, 7));
    CASE("linear", rp_schedule_linear(0.1, 0.9, 11));
    CASE("step", rp_schedule_step(5, 0.7));
    const int64_t milestones[] = {3, 9, 9, 20};
    CASE("multistep", rp_schedule_multistep(milestones, 4, 0.3));
    CASE("exponential", rp_schedule_exponential(0.93));
    CASE("polynomial", rp_schedule_polynomial(30, 1.7));
    CASE("cosine", rp_schedule_cosine(20, 0.004));
    CASE("restarts", rp_schedule_cosine_restarts(7, 1, 0.002));
    CASE("restarts_grow", rp_schedule_cosine_restarts(3, 2, 0));
    CASE("restarts_triple", rp_schedule_cosine_restarts(2, 3, 0.01));
    CASE("one_cycle", rp_schedule_one_cycle(0.4, RATES, NULL));
    CASE("one_cycle_linear",
         rp_schedule_one_cycle(0.4, RATES,
                               RP_OPTIONS(rp_one_cycle_options, .pct_start = 0.4, .linear = true, .div_factor = 10,
                                          .final_div_factor = 50, .base_momentum = 0.3, .max_momentum = 0.7)));
    CASE("one_cycle_three",
         rp_schedule_one_cycle(0.4, RATES, RP_OPTIONS(rp_one_cycle_options, .pct_start = 0.25, .three_phase = true)));
    CASE("cyclic", rp_schedule_cyclic(0.01, 0.2, 5, RP_OPTIONS(rp_cyclic_options, .step_size_down = 3)));
    CASE("cyclic_halves", rp_schedule_cyclic(0.01, 0.2, 4,
                                             RP_OPTIONS(rp_cyclic_options, .mode = RP_CYCLIC_TRIANGULAR2,
                                                        .base_momentum = 0.5, .max_momentum = 0.99)));
    CASE("cyclic_range",
         rp_schedule_cyclic(0.01, 0.2, 6, RP_OPTIONS(rp_cyclic_options, .mode = RP_CYCLIC_EXP_RANGE, .gamma = 0.95)));
    CASE("lambda", rp_schedule_lambda(falling, NULL));
    CASE("warmup_cosine", combined(false, (rp_schedule *[]){rp_schedule_linear(0.1, 1, 6), rp_schedule_cosine(30, 0)},
                                   2, (int64_t[]){6}));
    CASE("three_parts", combined(false,
                                 (rp_schedule *[]){rp_schedule_constant(0.1, 5), rp_schedule_exponential(0.9),
                                                   rp_schedule_step(4, 0.5)},
                                 3, (int64_t[]){5, 17}));
    CASE("chained", combined(true,
                             (rp_schedule *[]){rp_schedule_constant(0.1, 5), rp_schedule_exponential(0.9),
                                               rp_schedule_step(6, 0.5)},
                             3, NULL));
    fail_msg("no case is named %s", name);
    return NULL;
}

/* A line of a file: its name and rates. */
static bool next_line(FILE *f, char *name, double *rates) {
    char line[4096];
    if (!fgets(line, sizeof line, f)) return false;
    char *at = strchr(line, ' ');
    assert_non_null(at);
    *at++ = 0;
    strcpy(name, line);
    for (int t = 0; t < RATES; t++) rates[t] = strtod(at, &at);
    return true;
}

static void rate_is(const char *name, int t, double have, double want, double tolerance) {
    if (!(fabs(have - want) <= tolerance * (0.001 + fabs(want))))
        fail_msg("%s, step %d: the rate is %.17g, not %.17g", name, t, have, want);
}

static void rates_are_pytorchs(void **state) {
    (void)state;
    char name[64] = "";
    double want[RATES], have[RATES];
    FILE *f = golden_open("training/schedules.txt");
    int cases = 0;
    for (; next_line(f, name, want); cases++) {
        rp_scope scope = rp_scope_begin();
        rp_schedule *s = schedule_named(name);
        FINE();
        rp_tensor *steps = rp_arange(rp_i64(0), rp_i64(RATES), rp_i64(1));
        rp_to_host(rp_schedule_rate(s, steps, BASE), have, sizeof have);
        FINE();
        for (int t = 0; t < RATES; t++) rate_is(name, t, have[t], want[t], 1e-12);
        /* through an optimizer, which has them in float32 */
        rp_tensor *p = rp_zeros(RP_DIMS(1));
        rp_optimizer *opt = rp_sgd(&p, 1, BASE, RP_OPTIONS(rp_sgd_options, .momentum = 0.5));
        rp_optimizer_set_schedule(opt, s);
        rp_schedule_release(s);
        for (int t = 0; t < RATES; t++) {
            rate_is(name, t, rp_item_f64(rp_optimizer_lr(opt, 0)), want[t], 1e-7);
            rp_optimizer_schedule_step(opt);
            FINE();
        }
        rp_optimizer_release(opt);
        rp_scope_end(scope, NULL, 0);
    }
    (void)fclose(f);
    assert_int_equal(cases, 20);
}

static void momenta_are_pytorchs(void **state) {
    (void)state;
    char name[64] = "";
    double want[RATES], have[RATES];
    FILE *f = golden_open("training/momenta.txt");
    int cases = 0;
    for (; next_line(f, name, want); cases++) {
        rp_scope scope = rp_scope_begin();
        rp_schedule *s = schedule_named(name);
        rp_tensor *steps = rp_arange(rp_i64(0), rp_i64(RATES), rp_i64(1)), *p = rp_zeros(RP_DIMS(1));
        rp_to_host(rp_schedule_momentum(s, steps, 0.5), have, sizeof have);
        FINE();
        for (int t = 0; t < RATES; t++) rate_is(name, t, have[t], want[t], 1e-12);
        rp_optimizer *opt = rp_sgd(&p, 1, BASE, RP_OPTIONS(rp_sgd_options, .momentum = 0.5));
        assert_null(rp_optimizer_momentum(opt, 0));
        rp_optimizer_set_schedule(opt, s);
        for (int t = 0; t < RATES; t++) {
            rate_is(name, t, rp_item_f64(rp_optimizer_momentum(opt, 0)), want[t], 1e-12);
            rp_optimizer_schedule_step(opt);
        }
        /* behind a part that cycles none, which leaves the optimizer's own */
        rp_schedule *late = combined(false, (rp_schedule *[]){rp_schedule_constant(0.1, 4), s}, 2, (int64_t[]){4});
        rp_to_host(rp_schedule_momentum(late, steps, 0.5), have, sizeof have);
        for (int t = 0; t < RATES; t++) rate_is(name, t, have[t], t < 4 ? 0.5 : want[t - 4], 1e-12);
        rp_schedule_release(late);
        rp_optimizer_set_schedule(opt, NULL);
        assert_null(rp_optimizer_momentum(opt, 0));
        FINE();
        rp_optimizer_release(opt);
        rp_scope_end(scope, NULL, 0);
    }
    (void)fclose(f);
    assert_int_equal(cases, 6);
}

static void plateaus_are_pytorchs(void **state) {
    (void)state;
    char name[64] = "";
    double want[RATES];
    FILE *f = golden_open("training/plateau.txt");
    int cases = 0;
    for (; next_line(f, name, want); cases++) {
        rp_scope scope = rp_scope_begin();
        rp_plateau p;
        rp_plateau_init(&p, strcmp(name, "plateau") == 0 ? NULL
                            : strcmp(name, "plateau_max") == 0
                                ? RP_OPTIONS(rp_plateau_options, .max = true, .factor = 0.5, .patience = 2,
                                             .threshold = 0.05, .cooldown = 2)
                                : RP_OPTIONS(rp_plateau_options, .factor = 0.3, .patience = 1, .threshold = 0.1,
                                             .absolute = true, .min_lr = 0.002));
        rp_tensor *w = rp_zeros(RP_DIMS(1));
        rp_optimizer *opt = rp_sgd(&w, 1, BASE, NULL);
        for (int t = 0; t < RATES; t++) {
            rate_is(name, t, rp_item_f64(rp_optimizer_lr(opt, 0)), want[t], 1e-6);
            rp_plateau_step(&p, opt, 2 + (t * 37) % 23 / 23.0 - 0.01 * t);
            FINE();
        }
        rp_optimizer_release(opt);
        rp_scope_end(scope, NULL, 0);
    }
    (void)fclose(f);
    assert_int_equal(cases, 3);
}

static void wrong_schedules(void **state) {
    (void)state;
    rp_schedule *cosine = rp_schedule_cosine(10, 0.1), *fine = rp_schedule_step(3, 0.5);
    rp_schedule *failed = rp_schedule_step(0, 0.5);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "step size");
    (void)rp_schedule_constant(2, 3);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "factor");
    (void)rp_schedule_one_cycle(1, 2, NULL);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "too few steps");
    (void)rp_schedule_chained(&cosine, 1);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "no factor");
    (void)rp_schedule_sequential((rp_schedule *[]){fine, fine, fine}, 3, (int64_t[]){5, 4});
    FAILED(RP_ERROR_INVALID_ARGUMENT, "must grow");
    (void)rp_schedule_sequential((rp_schedule *[]){fine, failed}, 2, (int64_t[]){5});
    FAILED(RP_ERROR_STATE, "could not be made");
    rp_tensor *p = rp_zeros(RP_DIMS(1));
    rp_optimizer *opt = rp_sgd(&p, 1, BASE, NULL);
    assert_int_equal(rp_optimizer_set_schedule(opt, failed), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "could not be made");
    assert_int_equal(rp_optimizer_schedule_step(opt), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "no schedule");
    rp_schedule *cycle = rp_schedule_one_cycle(0.4, 20, NULL);
    (void)rp_optimizer_set_schedule(opt, cycle);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "which this sgd has not");
    rp_optimizer_release(opt);
    opt = rp_adagrad(&p, 1, BASE, NULL);
    (void)rp_optimizer_set_schedule(opt, cycle);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "which this adagrad has not");
    (void)rp_schedule_one_cycle(0.4, 20, RP_OPTIONS(rp_one_cycle_options, .max_momentum = 1));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "below 1");
    rp_schedule *kept = rp_schedule_one_cycle(0.4, 20, RP_OPTIONS(rp_one_cycle_options, .keep_momentum = true));
    assert_int_equal(rp_optimizer_set_schedule(opt, kept), RP_OK);
    assert_null(rp_optimizer_momentum(opt, 0));
    rp_schedule_release(kept);
    rp_schedule_release(cycle);
    rp_optimizer_release(opt);
    rp_schedule_release(cosine);
    rp_schedule_release(fine);
}

/* ---- recorded steps */

enum { PARAMS = 4 };
typedef struct model {
    rp_tensor *p[PARAMS];
    rp_optimizer *opt;
    rp_average *mean, *ema;
    double max_norm;
} model;

static void model_init(model *m, const rp_schedule *s) {
    for (int k = 0; k < PARAMS; k++) {
        float v[6];
        for (int i = 0; i < 6; i++) v[i] = (float)((k * 31 + i * 17) % 97 - 48) / 53.0f;
        m->p[k] = rp_retain(rp_from_data(v, RP_DIMS(k + 1), RP_F32));
        rp_set_requires_grad(m->p[k], true);
    }
    m->opt = rp_adam(m->p, PARAMS, BASE, NULL);
    if (s) rp_optimizer_set_schedule(m->opt, s);
    m->mean = rp_average_new(m->p, PARAMS, RP_AVERAGE_EQUAL);
    m->ema = rp_average_new(m->p, PARAMS, 0.75);
    m->max_norm = 0.5;
    FINE();
}

static void model_free(model *m) {
    rp_average_release(m->mean);
    rp_average_release(m->ema);
    rp_optimizer_release(m->opt);
    for (int k = 0; k < PARAMS; k++) {
        rp_set_grad(m->p[k], NULL);
        rp_release(m->p[k]);
    }
}

static rp_tensor *loss_of(const model *m, rp_tensor *x) {
    rp_tensor *y = rp_mul(rp_cat(m->p, PARAMS, 0), x);
    return rp_sum(rp_mul(rp_sin(y), y));
}

static void whole_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const model *m = ctx;
    (void)n_in, (void)n_out;
    rp_backward(loss_of(m, in[0]), NULL, NULL);
    out[0] = rp_clip_grad_norm(m->p, PARAMS, m->max_norm, 2);
    rp_clip_grad_value(m->p, PARAMS, 0.25);
    rp_optimizer_step(m->opt);
    rp_optimizer_schedule_step(m->opt);
    rp_optimizer_zero_grad(m->opt, true);
    rp_average_update(m->mean);
    rp_average_update(m->ema);
}

static void same_tensor(rp_tensor *a, rp_tensor *b, const char *what, int t) {
    char x[64], y[64];
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_true(bytes <= sizeof x);
    rp_to_host(a, x, bytes);
    rp_to_host(b, y, bytes);
    FINE();
    if (memcmp(x, y, bytes) != 0) fail_msg("%s differs at step %d", what, t);
}

static void same(const model *a, const model *b, int t) {
    for (int k = 0; k < PARAMS; k++) {
        same_tensor(a->p[k], b->p[k], "a parameter", t);
        same_tensor(rp_average_tensor(a->mean, (size_t)k), rp_average_tensor(b->mean, (size_t)k), "a mean", t);
        same_tensor(rp_average_tensor(a->ema, (size_t)k), rp_average_tensor(b->ema, (size_t)k), "an average", t);
    }
    same_tensor(rp_optimizer_lr(a->opt, 0), rp_optimizer_lr(b->opt, 0), "the rate", t);
}

static void recorded(const char *name, const char *backend) {
    model eager, compiled;
    rp_scope all = rp_scope_begin();
    rp_schedule *s = schedule_named(name);
    model_init(&eager, s);
    model_init(&compiled, s);
    rp_schedule_release(s);
    rp_compiled *f = rp_compile((rp_fn){whole_step, &compiled, sizeof compiled, "step"},
                                RP_OPTIONS(rp_compile_options, .backend = backend, .fullgraph = true));
    for (int t = 0; t < STEPS; t++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_full(RP_DIMS(1), rp_f64(0.5 + 0.125 * t)), *norm[2];
        whole_step(&eager, &x, 1, &norm[0], 1);
        FINE();
        assert_int_equal(rp_call(f, &x, 1, &norm[1], 1), RP_OK);
        same(&eager, &compiled, t);
        same_tensor(norm[0], norm[1], "the norm", t);
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);
    model_free(&eager);
    model_free(&compiled);
    rp_scope_end(all, NULL, 0);
}

static void recorded_steps_follow(void **state) {
    (void)state;
    static const char *const names[] = {"constant", "linear",   "step",      "multistep", "exponential", "polynomial",
                                        "cosine",   "restarts", "one_cycle", "cyclic",    "three_parts", "chained"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) recorded(names[i], "fused");
    recorded("warmup_cosine", "cudagraphs");
    recorded("restarts_grow", "aot_eager");
}

/* ---- clipping and averages by themselves */

/* Values of torch.nn.utils.clip_grad_norm_ for gradients (3, -4), (12) and a parameter without one. */
static void norms(void **state) {
    (void)state;
    static const struct {
        double order, norm;
    } cases[] = {{2, 13}, {1, 19}, {INFINITY, 12}, {3, 12.2070549538}, {0.5, 51.784609690827}, {0, 2}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int f16 = 0; f16 < 2; f16++) {
            rp_scope scope = rp_scope_begin();
            const float a[] = {3, -4}, b[] = {12};
            rp_tensor *p[3] = {rp_zeros(RP_DIMS(2)), rp_zeros(RP_DIMS(1)), rp_zeros(RP_DIMS(5))};
            rp_tensor *g[2] = {rp_from_data(a, RP_DIMS(2), RP_F32), rp_from_data(b, RP_DIMS(1), RP_F32)};
            for (int k = 0; k < 2; k++) {
                if (f16) p[k] = rp_to_dtype(p[k], RP_F16);
                rp_set_grad(p[k], f16 ? rp_to_dtype(g[k], RP_F16) : g[k]);
            }
            double norm = rp_item_f64(rp_grad_norm(p, 3, cases[c].order)), sum = 0;
            rate_is("norm", (int)c, norm, cases[c].norm, 1e-6);
            rate_is("norm before", (int)c, rp_item_f64(rp_clip_grad_norm(p, 3, 2, cases[c].order)), norm, 0);
            for (int k = 0; k < 2; k++) sum += fabs(rp_item_f64(rp_sum(rp_to_dtype(rp_grad_of(p[k]), RP_F64))));
            rate_is("clipped", (int)c, sum, 13 * 2 / (norm + 1e-6), f16 ? 1e-3 : 1e-6);
            FINE();
            rp_clip_grad_value(p, 3, 0.125);
            rate_is("largest", (int)c, rp_item_f64(rp_grad_norm(p, 3, INFINITY)), 0.125, 0);
            for (int k = 0; k < 2; k++) rp_set_grad(p[k], NULL);
            FINE();
            rp_scope_end(scope, NULL, 0);
        }
    }
    rp_tensor *none = rp_zeros(RP_DIMS(3));
    assert_true(rp_item_f64(rp_clip_grad_norm(&none, 1, 1, 2)) == 0);
    assert_int_equal(rp_clip_grad_value(&none, 1, -1), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "not 0 or larger");
}

static void thousand_norms(void **state) {
    (void)state;
    enum { N = 1300 };
    rp_scope scope = rp_scope_begin();
    rp_tensor **p = calloc(N, sizeof *p);
    for (int k = 0; k < N; k++) {
        p[k] = rp_zeros(RP_DIMS(2));
        rp_set_grad(p[k], rp_full(RP_DIMS(2), rp_f64(0.5)));
    }
    rate_is("norm", 0, rp_item_f64(rp_clip_grad_norm(p, N, 1, 2)), sqrt(2 * N * 0.25), 1e-6);
    rate_is("norm", 1, rp_item_f64(rp_grad_norm(p, N, 2)), 1, 1e-5);
    FINE();
    for (int k = 0; k < N; k++) rp_set_grad(p[k], NULL);
    free(p);
    rp_scope_end(scope, NULL, 0);
}

static void averages(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *w = rp_zeros(RP_DIMS(3));
    rp_average *mean = rp_average_new(&w, 1, RP_AVERAGE_EQUAL), *ema = rp_average_new(&w, 1, 0.75);
    double want_mean = 0, want_ema = 0;
    for (int t = 1; t <= 5; t++) {
        const double x = t * t * 0.25;
        rp_fill_(w, rp_f64(x));
        rp_average_update(mean);
        rp_average_update(ema);
        want_mean += (x - want_mean) / t;
        want_ema = t == 1 ? x : 0.75 * want_ema + 0.25 * x;
        rate_is("mean", t, rp_item_f64(rp_select(rp_average_tensor(mean, 0), 0, 1)), want_mean, 1e-6);
        rate_is("ema", t, rp_item_f64(rp_select(rp_average_tensor(ema, 0), 0, 2)), want_ema, 1e-6);
        assert_true(rp_item_f64(rp_average_count(ema)) == t);
    }
    rp_average_swap(mean);
    rate_is("weights", 5, rp_item_f64(rp_select(w, 0, 0)), want_mean, 1e-6);
    rp_average_swap(mean);
    assert_true(rp_item_f64(rp_select(w, 0, 0)) == 6.25);
    FINE();
    (void)rp_average_tensor(mean, 1);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "no tensor 1");
    (void)rp_average_new(&w, 1, 1.5);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "decay");
    rp_average_release(mean);
    rp_average_release(ema);
    rp_scope_end(scope, NULL, 0);
}

/* ---- gradients of several small batches, then one step */

typedef struct parts {
    model m;
    int n;
} parts;

static void small_batch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const parts *a = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(loss_of(&a->m, in[0]), rp_f64(1.0 / a->n));
    rp_backward(out[0], NULL, NULL);
    out[0] = rp_detach(out[0]);
}

/* All of them in one recording, too. */
static void large_batch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const parts *a = ctx;
    for (int i = 0; i < a->n; i++) small_batch(ctx, &in[i], 1, out, n_out);
    (void)n_in;
    rp_optimizer_step(a->m.opt);
    rp_optimizer_zero_grad(a->m.opt, true);
}

static void accumulated_gradients(void **state) {
    (void)state;
    rp_scope all = rp_scope_begin();
    parts eager = {.n = 4}, small = {.n = 4}, large = {.n = 4};
    model_init(&eager.m, NULL);
    model_init(&small.m, NULL);
    model_init(&large.m, NULL);
    const rp_compile_options *full = RP_OPTIONS(rp_compile_options, .fullgraph = true);
    rp_compiled *f = rp_compile((rp_fn){small_batch, &small, sizeof small, "small"}, full);
    rp_compiled *g = rp_compile((rp_fn){large_batch, &large, sizeof large, "large"}, full);
    for (int t = 0; t < STEPS; t++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x[4], *out;
        for (int i = 0; i < 4; i++) x[i] = rp_full(RP_DIMS(1), rp_f64(0.5 + 0.125 * t + 0.25 * i));
        large_batch(&eager, x, 4, &out, 1);
        FINE();
        for (int i = 0; i < 4; i++) assert_int_equal(rp_call(f, &x[i], 1, &out, 1), RP_OK);
        rp_optimizer_step(small.m.opt);
        rp_optimizer_zero_grad(small.m.opt, true);
        assert_int_equal(rp_call(g, x, 4, &out, 1), RP_OK);
        FINE();
        for (int k = 0; k < PARAMS; k++) {
            same_tensor(eager.m.p[k], small.m.p[k], "a parameter of small batches", t);
            same_tensor(eager.m.p[k], large.m.p[k], "a parameter of a recorded sum", t);
        }
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);
    rp_compiled_release(g);
    model_free(&eager.m);
    model_free(&small.m);
    model_free(&large.m);
    rp_scope_end(all, NULL, 0);
}

static void on_cuda(void **state) {
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    recorded("warmup_cosine", "fused");
    recorded("restarts_grow", "cudagraphs");
    norms(state);
    averages(state);
    accumulated_gradients(state);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_pytorchs),    cmocka_unit_test(momenta_are_pytorchs),
        cmocka_unit_test(plateaus_are_pytorchs), cmocka_unit_test(wrong_schedules),
        cmocka_unit_test(recorded_steps_follow), cmocka_unit_test(norms),
        cmocka_unit_test(thousand_norms),        cmocka_unit_test(averages),
        cmocka_unit_test(accumulated_gradients), cmocka_unit_test(on_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
