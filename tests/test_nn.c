/* Layers, initial values, losses, and the optimizers against a plain loop of the algorithms in PyTorch's
   documentation. */
/* ctest: timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <reprise.h>
#include <reprise_ir.h>
#include <reprise_nn.h>

#include "core/alloc.h"
#include "support/in_scope.h"

/* ---------------------------------------------------------------- helpers */

static void ok(rp_status status) {
    if (status == RP_OK && !rp_failed()) return;
    char text[1024];
    snprintf(text, sizeof text, "status %d: %s", (int)status, rp_error_message());
    (void)rp_error_take();
    fail_msg("%s", text);
}

static void host(rp_tensor *t, float *out) { ok(rp_to_host(t, out, (size_t)rp_numel(t) * sizeof *out)); }

/* ---------------------------------------------------------------- layers */

static void spread(rp_tensor *t, double *low, double *high, double *mean, double *deviation) {
    static float v[200000];
    int64_t n = rp_numel(t);
    assert_true(n <= 200000);
    host(t, v);
    double s = 0, q = 0;
    *low = *high = v[0];
    for (int64_t i = 0; i < n; i++) {
        *low = fmin(*low, v[i]);
        *high = fmax(*high, v[i]);
        s += v[i];
        q += (double)v[i] * v[i];
    }
    *mean = s / (double)n;
    *deviation = sqrt(q / (double)n - *mean * *mean);
}

static void uniform_in(rp_tensor *t, double bound) {
    double low, high, mean, deviation;
    spread(t, &low, &high, &mean, &deviation);
    assert_true(low >= -bound && high <= bound);
    assert_true(low < -0.9 * bound && high > 0.9 * bound);
    assert_true(fabs(mean) < 0.05 * bound && fabs(deviation - bound / sqrt(3)) < 0.05 * bound);
}

/* Moments of the normal distribution within two deviations; rows or columns whose products are the identity. */
static void truncated_and_orthogonal(void **state) {
    (void)state;
    double low, high, mean, deviation;
    ok(rp_manual_seed(2));
    rp_tensor *t = rp_zeros(RP_DIMS(300, 200));
    ok(rp_init_trunc_normal(t, 1, 0.5, 0, 2));
    spread(t, &low, &high, &mean, &deviation);
    assert_true(low >= 0 && high <= 2 && low < 0.02 && high > 1.98);
    assert_true(fabs(mean - 1) < 0.01 && fabs(deviation - 0.5 * 0.8796) < 0.01);
    ok(rp_init_trunc_normal(t, 0, 1, 1, 3)); /* to one side */
    spread(t, &low, &high, &mean, &deviation);
    assert_true(low >= 1 && high <= 3 && fabs(mean - 1.5100) < 0.01);
    static const int64_t sizes[][3] = {{8, 5, 2}, {4, 6, 2}, {7, 7, 1}, {3, 1, 1}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t rows = sizes[k][0], rest = sizes[k][1] * sizes[k][2], few = rows < rest ? rows : rest;
        rp_tensor *q = rp_zeros(RP_DIMS(rows, sizes[k][1], sizes[k][2]), RP_OPTIONS(rp_zeros_options, .dtype = RP_F64));
        ok(rp_init_orthogonal(q, 3));
        q = rp_reshape(q, RP_DIMS(rows, rest));
        rp_tensor *other = rp_transpose(q, 0, 1), *product = rows < rest ? rp_matmul(q, other) : rp_matmul(other, q);
        double values[64];
        ok(rp_to_host(product, values, (size_t)(few * few) * sizeof *values));
        for (int64_t i = 0; i < few * few; i++) assert_true(fabs(values[i] - (i % (few + 1) ? 0 : 9)) < 1e-13);
    }
    assert_int_equal(rp_init_orthogonal(rp_zeros(RP_DIMS(3)), 1), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "2 or more dims");
    assert_int_equal(rp_init_trunc_normal(t, 0, 1, 2, 2), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "low < high");
}

static void initial_values(void **state) {
    (void)state;
    double low, high, mean, deviation;
    ok(rp_manual_seed(1));
    rp_linear_layer linear;
    ok(rp_linear_layer_init(&linear, 400, 300, true, RP_DTYPE_NONE));
    assert_true(rp_size(linear.weight, 0) == 300 && rp_size(linear.weight, 1) == 400 && rp_numel(linear.bias) == 300);
    assert_true(rp_is_leaf(linear.weight) && rp_requires_grad(linear.weight) && rp_requires_grad(linear.bias));
    uniform_in(linear.weight, 1 / sqrt(400));
    uniform_in(linear.bias, 1 / sqrt(400));
    rp_linear_layer_release(&linear);
    assert_null(linear.weight);
    rp_embedding_layer embedding;
    ok(rp_embedding_layer_init(&embedding, 500, 200, RP_F32));
    spread(embedding.weight, &low, &high, &mean, &deviation);
    assert_true(fabs(mean) < 0.02 && fabs(deviation - 1) < 0.02 && high > 3);
    rp_embedding_layer_release(&embedding);
    rp_conv2d_layer conv;
    ok(rp_conv2d_layer_init(&conv, 8, 64, 3, 5, RP_OPTIONS(rp_conv2d_options, .groups = 2, .padding = {1, 2})));
    assert_true(rp_size(conv.weight, 1) == 4 && rp_size(conv.weight, 3) == 5 && conv.stride[0] == 1 &&
                conv.padding[1] == 2);
    uniform_in(conv.weight, 1 / sqrt(4 * 15));
    rp_conv2d_layer_release(&conv);
    rp_layer_norm_layer norm;
    ok(rp_layer_norm_layer_init(&norm, RP_DIMS(3, 4), 1e-5, true, RP_F32));
    spread(norm.weight, &low, &high, &mean, &deviation);
    assert_true(low == 1 && high == 1);
    spread(norm.bias, &low, &high, &mean, &deviation);
    assert_true(low == 0 && high == 0);
    rp_layer_norm_layer_release(&norm);
    /* Same seed, same parameters. */
    float first[6], second[6];
    for (int i = 0; i < 2; i++) {
        ok(rp_manual_seed(9));
        ok(rp_linear_layer_init(&linear, 2, 3, false, RP_F32));
        assert_null(linear.bias);
        host(linear.weight, i ? second : first);
        rp_linear_layer_release(&linear);
    }
    assert_memory_equal(first, second, sizeof first);
    assert_int_equal(rp_linear_layer_init(&linear, 0, 3, true, RP_F32), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "in_features");
    assert_int_equal(rp_conv2d_layer_init(&conv, 3, 4, 1, 1, RP_OPTIONS(rp_conv2d_options, .groups = 2)),
                     RP_ERROR_SHAPE);
    FAILED(RP_ERROR_SHAPE, "groups");
    rp_tensor *flat = rp_zeros(RP_DIMS(3));
    assert_int_equal(rp_init_kaiming_uniform(flat, 0), RP_ERROR_SHAPE);
    FAILED(RP_ERROR_SHAPE, "fan-in");
}

static void layers_are_their_ops(void **state) {
    (void)state;
    rp_tensor *x = rp_randn(RP_DIMS(5, 4));
    float have[64], want[64];
    rp_layer_norm_layer norm;
    ok(rp_layer_norm_layer_init(&norm, RP_DIMS(4), 1e-3, true, RP_F32));
    ok(rp_init_uniform(norm.weight, 0.5, 2));
    host(rp_layer_norm_layer_forward(&norm, x), have);
    host(rp_layer_norm(x, RP_DIMS(4), norm.weight, norm.bias, 1e-3), want);
    assert_memory_equal(have, want, 20 * sizeof *have);
    rp_layer_norm_layer_release(&norm);
    rp_embedding_layer embedding;
    ok(rp_embedding_layer_init(&embedding, 7, 3, RP_F32));
    rp_tensor *indices = rp_from_data((const int64_t[]){6, 0, 6}, RP_DIMS(3), RP_I64);
    host(rp_embedding_layer_forward(&embedding, indices), have);
    host(rp_embedding(embedding.weight, indices), want);
    assert_memory_equal(have, want, 9 * sizeof *have);
    rp_embedding_layer_release(&embedding);
    rp_linear_layer linear;
    ok(rp_linear_layer_init(&linear, 4, 3, true, RP_F32));
    host(rp_linear_layer_forward(&linear, x), have);
    host(rp_linear(x, linear.weight, linear.bias), want);
    assert_memory_equal(have, want, 15 * sizeof *have);
    /* An error inside names the line of the layer's call. */
    char line[48];
    snprintf(line, sizeof line, "test_nn.c:%d", __LINE__ + 1);
    rp_tensor *bad = rp_linear_layer_forward(&linear, rp_zeros(RP_DIMS(2, 5)));
    assert_true(rp_is_error(bad));
    assert_non_null(strstr(rp_error_message(), line));
    (void)rp_error_take();
    rp_linear_layer_release(&linear);
    rp_conv2d_layer conv;
    ok(rp_conv2d_layer_init(&conv, 2, 3, 2, 2, RP_OPTIONS(rp_conv2d_options, .stride = {2, 1})));
    rp_tensor *image = rp_randn(RP_DIMS(1, 2, 4, 3));
    rp_tensor *y = rp_conv2d_layer_forward(&conv, image);
    assert_true(rp_size(y, 1) == 3 && rp_size(y, 2) == 2 && rp_size(y, 3) == 2);
    host(y, have);
    host(rp_conv2d(image, conv.weight, conv.bias, RP_DIMS(2, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 1), want);
    assert_memory_equal(have, want, 12 * sizeof *have);
    rp_conv2d_layer_release(&conv);
}

static void mean_squared_error(void **state) {
    (void)state;
    rp_tensor *a = rp_from_data((const float[]){1, 2, 4}, RP_DIMS(3), RP_F32);
    rp_tensor *b = rp_from_data((const float[]){0, 4, 4}, RP_DIMS(3), RP_F32);
    float v[3];
    ok(rp_set_requires_grad(a, true));
    rp_tensor *loss = rp_mse_loss(a, b, 1);
    assert_true(fabs(rp_item_f64(loss) - 5.0 / 3) < 1e-6);
    ok(rp_backward(loss, NULL, NULL));
    host(rp_grad_of(a), v);
    for (int i = 0; i < 3; i++) assert_true(fabs(v[i] - (double[]){2.0 / 3, -4.0 / 3, 0}[i]) < 1e-6);
    assert_true(rp_item_f64(rp_mse_loss(a, b, 2)) == 5);
    host(rp_mse_loss(a, b, 0), v);
    assert_true(v[0] == 1 && v[1] == 4 && v[2] == 0);
    assert_true(rp_is_error(rp_mse_loss(a, b, 3)));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "reduction");
}

/* ---------------------------------------------------------------- optimizers */

enum { SIZE = 5, STEPS = 7 };

/* The gradient of step t for element i of parameter k: any function will do. */
static double gradient(int k, int t, int i) { return sin(1.7 * k + 0.9 * t + 0.6 * i) * (1 + 0.5 * i); }

static void give_gradient(rp_tensor *p, int k, int t) {
    float g[SIZE];
    for (int i = 0; i < SIZE; i++) g[i] = (float)gradient(k, t, i);
    ok(rp_set_grad(p, rp_from_data(g, RP_DIMS(SIZE), RP_F32)));
}

static rp_tensor *parameter(int k) {
    float v[SIZE];
    for (int i = 0; i < SIZE; i++) v[i] = (float)(cos(k + i) * 2);
    rp_tensor *p = rp_from_data(v, RP_DIMS(SIZE), RP_F32);
    ok(rp_set_requires_grad(p, true));
    return p;
}

typedef struct adam_state {
    double p[SIZE], m[SIZE], v[SIZE];
    int step;
} adam_state;

static void adam_start(adam_state *s, int k) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < SIZE; i++) s->p[i] = (float)(cos(k + i) * 2);
}

static void adam_reference(adam_state *s, int k, int t, double lr, double b1, double b2, double eps, double decay,
                           bool decoupled, bool maximize) {
    s->step++;
    for (int i = 0; i < SIZE; i++) {
        double g = (float)gradient(k, t, i) * (maximize ? -1 : 1);
        if (decoupled)
            s->p[i] -= lr * decay * s->p[i];
        else
            g += decay * s->p[i];
        s->m[i] = b1 * s->m[i] + (1 - b1) * g;
        s->v[i] = b2 * s->v[i] + (1 - b2) * g * g;
        double mhat = s->m[i] / (1 - pow(b1, s->step)), vhat = s->v[i] / (1 - pow(b2, s->step));
        s->p[i] -= lr * mhat / (sqrt(vhat) + eps);
    }
}

static void near(rp_tensor *t, const double *want, const char *what) {
    float have[SIZE];
    host(t, have);
    for (int i = 0; i < SIZE; i++)
        if (!(fabs(have[i] - want[i]) <= 4e-6 * (1 + fabs(want[i])))) /* float32 against double, a few steps */
            fail_msg("%s: element %d is %.9g, not %.9g", what, i, have[i], want[i]);
}

static void adam_variant(bool decoupled, bool maximize, double decay, double b1, double b2, double eps) {
    rp_tensor *p[2] = {parameter(0), parameter(1)};
    adam_state s[2];
    rp_adam_options o = {
        .struct_size = sizeof o, .beta1 = b1, .beta2 = b2, .eps = eps, .weight_decay = decay, .maximize = maximize};
    rp_optimizer *opt = (decoupled ? rp_adamw : rp_adam)(p, 2, 0.01, &o);
    ok(rp_error_status());
    for (int k = 0; k < 2; k++) adam_start(&s[k], k);
    for (int t = 0; t < STEPS; t++) {
        double lr = t < 4 ? 0.01 : 0.003;
        if (t == 4) ok(rp_optimizer_set_lr(opt, 0, 0.003));
        for (int k = 0; k < 2; k++) {
            give_gradient(p[k], k, t);
            adam_reference(&s[k], k, t, lr, b1 ? b1 : 0.9, b2 ? b2 : 0.999, eps ? eps : 1e-8,
                           decay       ? (decay < 0 ? 0 : decay)
                           : decoupled ? 0.01
                                       : 0,
                           decoupled, maximize);
        }
        ok(rp_optimizer_step(opt));
        for (int k = 0; k < 2; k++) near(p[k], s[k].p, decoupled ? "adamw" : "adam");
    }
    near(rp_optimizer_state(opt, 0, 1, "exp_avg"), s[1].m, "exp_avg");
    near(rp_optimizer_state(opt, 0, 1, "exp_avg_sq"), s[1].v, "exp_avg_sq");
    assert_true(rp_item_f64(rp_optimizer_state(opt, 0, 0, "step")) == STEPS);
    assert_true(rp_is_leaf(p[0]) && rp_requires_grad(p[0]));
    rp_optimizer_release(opt);
}

static void adam(void **state) {
    (void)state;
    adam_variant(false, false, 0, 0, 0, 0);
    adam_variant(false, true, 0.1, 0.8, 0.95, 1e-3);
    adam_variant(true, false, 0, 0, 0, 0);
    adam_variant(true, true, 0.2, 0.5, 0.9, 1e-4);
    adam_variant(true, false, -1, 0, 0, 0);
}

/* Parameters without a gradient are passed over, and their step count with them. */
static void parameters_without_a_gradient(void **state) {
    (void)state;
    enum { N = 4 };
    static const bool given[STEPS][N] = {{1, 1, 1, 1}, {1, 0, 1, 0}, {0, 0, 0, 0}, {1, 1, 1, 0},
                                         {0, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 1, 0}};
    rp_tensor *p[N];
    adam_state s[N];
    for (int k = 0; k < N; k++) {
        p[k] = parameter(k);
        adam_start(&s[k], k);
    }
    rp_optimizer *opt = rp_adam(p, N, 0.05, NULL);
    for (int t = 0; t < STEPS; t++) {
        for (int k = 0; k < N; k++) {
            if (given[t][k]) {
                give_gradient(p[k], k, t);
                adam_reference(&s[k], k, t, 0.05, 0.9, 0.999, 1e-8, 0, false, false);
            } else {
                ok(rp_set_grad(p[k], NULL));
            }
        }
        ok(rp_optimizer_step(opt));
        for (int k = 0; k < N; k++) {
            near(p[k], s[k].p, "adam with gaps");
            assert_true(rp_item_f64(rp_optimizer_state(opt, 0, (size_t)k, "step")) == s[k].step);
        }
    }
    rp_optimizer_release(opt);
}

typedef struct sgd_variant {
    double momentum, dampening, decay;
    bool nesterov, maximize;
} sgd_variant;

static void sgd(void **state) {
    (void)state;
    static const sgd_variant variants[] = {
        {0, 0, 0, false, false},     {0, 0, 0.1, false, true},      {0.9, 0, 0, false, false},
        {0.9, 0, 0.05, true, false}, {0.8, 0.3, 0.1, false, false}, {0.7, 0.5, 0, false, true},
    };
    for (size_t n = 0; n < sizeof variants / sizeof *variants; n++) {
        const sgd_variant *o = &variants[n];
        rp_tensor *p[2] = {parameter(0), parameter(1)};
        double w[2][SIZE], buffer[2][SIZE] = {{0}};
        bool begun[2] = {false, false};
        rp_optimizer *opt =
            rp_sgd(p, 2, 0.1,
                   RP_OPTIONS(rp_sgd_options, .momentum = o->momentum, .dampening = o->dampening,
                              .weight_decay = o->decay, .nesterov = o->nesterov, .maximize = o->maximize));
        ok(rp_error_status());
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < SIZE; i++) w[k][i] = (float)(cos(k + i) * 2);
        for (int t = 0; t < STEPS; t++) {
            for (int k = 0; k < 2; k++) {
                if (k == 1 && t < 2) continue; /* joins later: its first step has no buffer yet */
                give_gradient(p[k], k, t);
                for (int i = 0; i < SIZE; i++) {
                    double g = (float)gradient(k, t, i) * (o->maximize ? -1 : 1) + o->decay * w[k][i];
                    if (o->momentum != 0) {
                        buffer[k][i] = begun[k] ? o->momentum * buffer[k][i] + (1 - o->dampening) * g : g;
                        g = o->nesterov ? g + o->momentum * buffer[k][i] : buffer[k][i];
                    }
                    w[k][i] -= 0.1 * g;
                }
                begun[k] = true;
            }
            ok(rp_optimizer_step(opt));
            for (int k = 0; k < 2; k++) near(p[k], w[k], "sgd");
        }
        if (o->momentum != 0) near(rp_optimizer_state(opt, 0, 0, "momentum_buffer"), buffer[0], "momentum_buffer");
        rp_optimizer_release(opt);
    }
}

static void groups(void **state) {
    (void)state;
    rp_tensor *a = parameter(0), *b = parameter(1);
    rp_optimizer *opt = rp_sgd(&a, 1, 0.1, NULL);
    ok(rp_sgd_add_group(opt, &b, 1, 0.5, RP_OPTIONS(rp_sgd_options, .weight_decay = 1)));
    assert_int_equal(rp_optimizer_group_count(opt), 2);
    give_gradient(a, 0, 0);
    give_gradient(b, 1, 0);
    double want[2][SIZE];
    for (int i = 0; i < SIZE; i++) {
        want[0][i] = cos(i) * 2 - 0.1 * gradient(0, 0, i);
        want[1][i] = cos(1 + i) * 2 - 0.5 * (gradient(1, 0, i) + cos(1 + i) * 2);
    }
    ok(rp_optimizer_step(opt));
    near(a, want[0], "first group");
    near(b, want[1], "second group");
    assert_true(rp_item_f64(rp_optimizer_lr(opt, 1)) == 0.5);
    assert_int_equal(rp_sgd_add_group(opt, &b, 1, 0.5, NULL), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "in group 1 already");
    assert_int_equal(rp_adam_add_group(opt, &b, 1, 0.5, NULL), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "the optimizer is sgd");
    assert_null(rp_optimizer_state(opt, 0, 0, "exp_avg"));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "exp_avg");
    float zero[SIZE] = {0}, have[SIZE];
    ok(rp_optimizer_zero_grad(opt, false));
    host(rp_grad_of(a), have);
    assert_memory_equal(have, zero, sizeof zero);
    ok(rp_optimizer_zero_grad(opt, true));
    assert_null(rp_grad_of(a));
    assert_null(rp_grad_of(b));
    rp_optimizer_release(opt);
}

static void wrong_parameters(void **state) {
    (void)state;
    rp_tensor *p = parameter(0);
    rp_tensor *result = rp_sin(p), *twice[2] = {p, p};
    struct {
        rp_tensor **params;
        size_t n;
        double lr;
        const char *text;
    } wrong[] = {{&result, 1, 0.1, "not a leaf"}, {twice, 2, 0.1, "the same"}, {&p, 1, -1, "learning rate"}};
    for (size_t i = 0; i < 3; i++) {
        rp_optimizer *opt = rp_adam(wrong[i].params, wrong[i].n, wrong[i].lr, NULL);
        assert_non_null(opt);
        FAILED(RP_ERROR_INVALID_ARGUMENT, wrong[i].text);
        assert_int_equal(rp_optimizer_step(opt), RP_ERROR_STATE);
        (void)rp_error_take();
        rp_optimizer_release(opt);
    }
    rp_optimizer *opt = rp_sgd(&p, 1, 0.1, RP_OPTIONS(rp_sgd_options, .nesterov = true));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "Nesterov");
    rp_optimizer_release(opt);
}

/* ---------------------------------------------------------------- a training run, and one out of memory */

typedef struct mlp {
    rp_linear_layer first, second;
    rp_layer_norm_layer norm;
    rp_optimizer *opt;
} mlp;

static rp_status mlp_make(mlp *m) {
    memset(m, 0, sizeof *m);
    rp_status status = rp_manual_seed(5);
    if (status == RP_OK) status = rp_linear_layer_init(&m->first, 3, 8, true, RP_F32);
    if (status == RP_OK) status = rp_layer_norm_layer_init(&m->norm, RP_DIMS(8), 1e-5, true, RP_F32);
    if (status == RP_OK) status = rp_linear_layer_init(&m->second, 8, 4, true, RP_F32);
    if (status == RP_OK) {
        rp_tensor *params[] = {m->first.weight, m->first.bias,    m->norm.weight,
                               m->norm.bias,    m->second.weight, m->second.bias};
        m->opt = rp_adam(params, 6, 0.05, NULL);
        status = rp_error_status();
    }
    return status;
}

static void mlp_free(mlp *m) {
    rp_linear_layer_release(&m->first);
    rp_layer_norm_layer_release(&m->norm);
    rp_linear_layer_release(&m->second);
    rp_optimizer_release(m->opt);
}

static rp_status mlp_step(mlp *m, double *loss) {
    rp_scope s = rp_scope_begin();
    if (rp_failed()) return rp_error_status();
    float v[24];
    int64_t classes[8];
    for (int i = 0; i < 24; i++) v[i] = (float)sin(i * 1.3);
    for (int i = 0; i < 8; i++) classes[i] = i % 4;
    rp_tensor *x = rp_from_data(v, RP_DIMS(8, 3), RP_F32), *target = rp_from_data(classes, RP_DIMS(8), RP_I64);
    rp_tensor *h = rp_layer_norm_layer_forward(&m->norm, rp_gelu(rp_linear_layer_forward(&m->first, x)));
    rp_tensor *l = rp_cross_entropy(rp_linear_layer_forward(&m->second, h), target);
    rp_status status = rp_backward(l, NULL, NULL);
    if (status == RP_OK) status = rp_optimizer_step(m->opt);
    if (status == RP_OK) status = rp_optimizer_zero_grad(m->opt, true);
    if (status == RP_OK) *loss = rp_item_f64(l);
    if (status != RP_OK && m->opt) {
        rp_tensor *params[] = {m->first.weight, m->first.bias,    m->norm.weight,
                               m->norm.bias,    m->second.weight, m->second.bias};
        for (int i = 0; i < 6; i++) rp_set_grad(params[i], NULL);
    }
    rp_scope_end(s, NULL, 0);
    return status == RP_OK ? rp_error_status() : status;
}

static void training_lowers_the_loss(void **state) {
    (void)state;
    mlp m;
    double first = 0, last = 0;
    ok(mlp_make(&m));
    ok(mlp_step(&m, &first));
    for (int i = 0; i < 60; i++) ok(mlp_step(&m, &last));
    assert_true(first > 1.0 && last < 0.1 * first);
    mlp_free(&m);
}

static void every_allocation_fails_once(void **state) {
    (void)state;
    mlp m;
    double loss;
    for (int i = 0; i < 3; i++) { /* caches fill */
        ok(mlp_make(&m));
        ok(mlp_step(&m, &loss));
        mlp_free(&m);
    }
    uint64_t live = rp__alloc_live(), start = rp__alloc_fail_at(0);
    ok(mlp_make(&m));
    ok(mlp_step(&m, &loss));
    mlp_free(&m);
    uint64_t count = rp__alloc_fail_at(0) - start, failures = 0;
    assert_true(count > 50);
    for (uint64_t n = 1; n <= count; n++) {
        (void)rp__alloc_fail_at(n);
        rp_status status = mlp_make(&m);
        if (status == RP_OK) status = mlp_step(&m, &loss);
        (void)rp__alloc_fail_at(0);
        if (status != RP_OK) {
            failures++;
            if (status != RP_ERROR_OUT_OF_MEMORY)
                fail_msg("allocation %llu: %s", (unsigned long long)n, rp_error_message());
        }
        (void)rp_error_take();
        mlp_free(&m);
        ok(mlp_make(&m));
        ok(mlp_step(&m, &loss));
        mlp_free(&m);
        if (rp__alloc_live() > live + 8)
            fail_msg("allocation %llu leaks: %llu blocks instead of %llu", (unsigned long long)n,
                     (unsigned long long)rp__alloc_live(), (unsigned long long)live);
    }
    assert_true(failures > count / 2);
}

/* Parameters that were always stepped together have one count. A step without some of them parts them; compiled steps
   see it. */
struct pair {
    rp_tensor *a, *b;
    rp_optimizer *opt;
};

static void pair_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct pair *p = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *y = rp_add(rp_sum(rp_mul(p->a, in[0])), rp_sum(rp_mul(p->b, in[0])));
    rp_tensor *loss = rp_mul(y, y);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(p->opt);
    rp_optimizer_zero_grad(p->opt, true);
    out[0] = rp_detach(loss);
}

static void pair_run(bool compiled, float values[6], double counts[2]) {
    struct pair p = {.a = rp_full(RP_DIMS(3), rp_f64(0.5)), .b = rp_full(RP_DIMS(3), rp_f64(0.25))};
    ok(rp_set_requires_grad(p.a, true));
    ok(rp_set_requires_grad(p.b, true));
    p.opt = rp_adam((rp_tensor *[]){p.a, p.b}, 2, 0.1, NULL);
    rp_tensor *x = rp_full(RP_DIMS(3), rp_f64(1.5)), *out;
    rp_fn fn = {pair_step, &p, sizeof p, "pair"};
    rp_compiled *f = compiled ? rp_compile(fn, NULL) : rp_plain(fn);
    for (int i = 0; i < 8; i++) {
        if (i == 3 || i == 4) { /* without b */
            ok(rp_backward(rp_sum(rp_mul(p.a, x)), NULL, NULL));
            ok(rp_optimizer_step(p.opt));
            ok(rp_optimizer_zero_grad(p.opt, true));
        } else {
            ok(rp_call(f, &x, 1, &out, 1));
        }
    }
    host(p.a, values);
    host(p.b, values + 3);
    for (size_t i = 0; i < 2; i++) counts[i] = rp_item_f64(rp_optimizer_state(p.opt, 0, i, "step"));
    rp_compiled_release(f);
    rp_optimizer_release(p.opt);
}

static void compiled_steps_see_counts_that_part(void **state) {
    (void)state;
    float eager[6], compiled[6];
    double counts[2], compiled_counts[2];
    pair_run(false, eager, counts);
    pair_run(true, compiled, compiled_counts);
    assert_true(counts[0] == 8 && counts[1] == 6);
    assert_memory_equal(counts, compiled_counts, sizeof counts);
    assert_memory_equal(eager, compiled, sizeof eager);
}

/* The loss and the gradient of CTC are as many nodes of a graph for long sequences as for short ones. */
static void ctc_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *loss = rp_ctc_loss(rp_log_softmax(in[0], 2), in[1], in[2], in[3]);
    (void)rp_grad(&loss, 1, &in[0], 1, NULL, NULL, out);
}

static void ctc_is_not_unrolled(void **state) {
    (void)state;
    size_t values[2];
    for (int k = 0; k < 2; k++) {
        const int64_t times = k ? 70 : 3, lengths[] = {times, 2}, target_lengths[] = {2, 1};
        rp_tensor *x = rp_randn(RP_DIMS(times, 2, 4));
        ok(rp_set_requires_grad(x, true));
        rp_tensor *in[] = {x, rp_from_data((const int64_t[]){1, 2, 3, 1}, RP_DIMS(2, 2), RP_I64),
                           rp_from_data(lengths, RP_DIMS(2), RP_I64), rp_from_data(target_lengths, RP_DIMS(2), RP_I64)};
        rp_ir *ir = rp_trace((rp_fn){ctc_step, NULL, 0, "ctc"}, in, 4, 1);
        values[k] = rp_ir_value_count(ir);
        rp_ir_release(ir);
        ok(RP_OK);
    }
    assert_true(values[0] > 10);
    assert_int_equal(values[0], values[1]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scope_setup, scope_teardown)
    const struct CMUnitTest tests[] = {
        TEST(compiled_steps_see_counts_that_part),
        TEST(initial_values),
        TEST(truncated_and_orthogonal),
        TEST(layers_are_their_ops),
        TEST(mean_squared_error),
        TEST(adam),
        TEST(parameters_without_a_gradient),
        TEST(sgd),
        TEST(groups),
        TEST(wrong_parameters),
        TEST(training_lowers_the_loss),
        TEST(ctc_is_not_unrolled),
        TEST(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
