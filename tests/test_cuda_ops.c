/* Every op of the table on the CUDA device: the sweeps of tests/ref and tests/samples, random and optimizer ops
   against the CPU, gradients of each family, errors that kernels find. On the emulator, where every kernel costs a
   run of the C compiler, each op meets few types and layouts; REPRISE_TEST_CUDA=real runs the whole sweep, in parts
   with REPRISE_TEST_SHARD (ref/sweep.h), of which the first runs the other tests too.
   ctest: labels=cuda timeout=1500 cost=75 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise_nn.h>

#include "ops/optim.h"
#include "ops/private.h"
#include "samples/samples.h"
#include "support/cuda.h"
#include "support/slow.h"

static void assert_clean(int line) {
    if (rp_failed()) fail_msg("line %d: %s: %s", line, rp_status_name(rp_error_status()), rp_error_message());
}
#define OK() assert_clean(__LINE__)

/* ---- the sweep ---- */

static bool is_library(const char *name) {
    static const char *const all[] = {"matmul",     "bmm",         "linear", "conv2d",
                                      "conv_input", "conv_weight", "topk",   "scatter_add"};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (strcmp(all[k], name) == 0) return true;
    return false;
}

static unsigned name_number(const char *name) {
    unsigned h = 7;
    for (; *name; name++) h = h * 31 + (unsigned char)*name;
    return h;
}

/* What the emulator runs: f32 in row-major order over the first cases of the op (all of them where a kernel serves
   every size): the first and one of two others, or a third of all where sanitizers make everything slow; one case a layout, and the first
   case of int32 and of two more types. What is taken differs from op to op. */
static bool emulated(const ref_op *op, rp_dtype dtype, const ref_case *c, int variant) {
    unsigned h = name_number(op->name);
    rp_dtype others[2] = {ref_types[1 + h % 7], ref_types[1 + (h / 7 + 1 + h) % 7]};
    if (dtype == RP_F32)
        return c->layout == REF_CONTIGUOUS
                   ? variant < (is_library(op->name) ? 12 : 6) / (SLOW_BUILD ? 3 : 1) &&
                         (variant == 0 || SLOW_BUILD ||
                          test_cuda_takes((unsigned)variant + test_cuda_draws(h, ((unsigned)variant + 1) / 2, 2), 2))
                   : variant == 0 && (unsigned)c->layout == 1 + h % (REF_LAYOUTS - 1);
    bool first = c->layout == REF_CONTIGUOUS && variant == 0;
    return first && (dtype == others[0] || dtype == others[1] || dtype == RP_I32); /* some ops take integers alone */
}

static void test_sweep(void **state) {
    (void)state;
    int cases = ref_sweep(rp_cuda(0), test_cuda_is_real() ? NULL : emulated);
    printf("%d cases\n", cases);
    OK();
}

/* The same choice among samples. */
static bool emulated_sample(const sample *s, rp_dtype dtype, ref_layout layout) {
    unsigned h = name_number(s->op->name);
    if (dtype == RP_F32)
        return layout == REF_CONTIGUOUS || (s->number == 0 && (unsigned)layout == 1 + h % (REF_LAYOUTS - 1));
    return layout == REF_CONTIGUOUS && s->number == 0 &&
           (dtype == ref_types[1 + h % 7] || dtype == ref_types[1 + (h / 7 + 1 + h) % 7]);
}

/* Where places are written more than once, the last value stands, as on the CPU: only the deterministic form says so. */
static void test_sweep_of_samples(void **state) {
    (void)state;
    const bool before = rp_set_deterministic(true);
    int calls = sample_sweep(rp_cuda(0), test_cuda_is_real() ? NULL : emulated_sample);
    (void)rp_set_deterministic(before);
    printf("%d calls\n", calls);
    OK();
}

/* ---- against the CPU ---- */

static double value(rp_tensor *t, int64_t i) {
    return rp_item_f64(rp_select(rp_reshape(rp_to_dtype(t, RP_F64), RP_DIMS(-1)), 0, i));
}

/* Both as doubles on the host; relative to the larger of 1 and the value. */
static void assert_close(const char *what, rp_tensor *got, rp_tensor *want, double tolerance) {
    OK();
    rp_tensor *wide[2] = {rp_to_dtype(got, RP_F64), rp_to_dtype(want, RP_F64)};
    int64_t n = rp_numel(want);
    assert_int_equal(rp_numel(got), n);
    assert_int_equal(rp_ndim(got), rp_ndim(want));
    assert_int_equal(rp_dtype_of(got), rp_dtype_of(want));
    double *v[2];
    for (int k = 0; k < 2; k++) {
        v[k] = calloc((size_t)n + 1, sizeof **v);
        assert_int_equal(rp_to_host(wide[k], v[k], (size_t)n * sizeof **v), RP_OK);
    }
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(v[0][i] - v[1][i]) <= tolerance * fmax(1, fabs(v[1][i]))))
            fail_msg("%s: element %lld is %.17g, on the CPU %.17g", what, (long long)i, v[0][i], v[1][i]);
    free(v[0]);
    free(v[1]);
}

static void test_random(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    static const rp_dtype types[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    rp_tensor *made[2][20];
    uint64_t at[2][2];
    int n = 0;
    for (int k = 0; k < 2; k++) {
        rp_device d = k ? rp_cuda(0) : rp_cpu();
        assert_int_equal(rp_set_default_device(d), RP_OK);
        rp_generator *g = rp_generator_new(d, 1234);
        n = 0;
        for (int t = 0; t < 4; t++)
            made[k][n++] = rp_rand(RP_DIMS(7, 9), RP_OPTIONS(rp_rand_options, .generator = g, .dtype = types[t]));
        made[k][n++] = rp_randint(-5, 1000, RP_DIMS(41), RP_OPTIONS(rp_randint_options, .generator = g));
        made[k][n++] = rp_randint(0, INT64_C(1) << 40, RP_DIMS(41), RP_OPTIONS(rp_randint_options, .generator = g));
        made[k][n++] = rp_randint(3, 9, RP_DIMS(10), RP_OPTIONS(rp_randint_options, .generator = g, .dtype = RP_U8));
        rp_tensor *x = rp_to_dtype(rp_arange(rp_i64(1), rp_i64(101)), RP_F32), *mask;
        made[k][n++] =
            rp_native_dropout(x, 0.25, RP_UNSET, RP_OPTIONS(rp_native_dropout_options, .generator = g), &mask);
        made[k][n++] = mask;
        made[k][n++] = rp_dropout(x, 0.5, true, RP_OPTIONS(rp_dropout_options, .generator = g));
        const float weights[] = {1, 0, 3, 2, 0, 5};
        rp_tensor *w = rp_from_data(weights, RP_DIMS(2, 3), RP_F32);
        made[k][n++] = rp_multinomial(w, 50, true, RP_OPTIONS(rp_multinomial_options, .generator = g));
        made[k][n++] = rp_multinomial(rp_select(w, 0, 0), 2, false, RP_OPTIONS(rp_multinomial_options, .generator = g));
        rp_tensor *rates = rp_mul_scalar(rp_to_dtype(x, RP_F64), rp_f64(0.37));
        made[k][n++] = rp_poisson(rates, g); /* in float64 a decision is not another one for the last bit */
        made[k][n++] = rp_binomial(rp_to_dtype(x, RP_F64),
                                   rp_full(RP_NO_DIMS, rp_f64(0.4), RP_OPTIONS(rp_full_options, .dtype = RP_F64)), g);
        made[k][n++] = rp_standard_gamma(rates, g);
        made[k][n++] = rp_randn(RP_DIMS(5, 13), RP_OPTIONS(rp_randn_options, .generator = g));
        assert_int_equal(rp_generator_get(g, &at[k][0], &at[k][1]), RP_OK);
        OK();
        rp_generator_release(g);
    }
    assert_int_equal(at[0][1], at[1][1]); /* as many counters on both */
    for (int i = 0; i < n; i++) {
        char what[32];
        (void)snprintf(what, sizeof what, "random op %d", i);
        assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
        /* bits are equal; normals to a few units */
        assert_close(what, made[1][i], made[0][i], i >= n - 2 ? 1e-6 : 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    OK();
}

static rp_tensor *wave(double start, double step, const int64_t *size, size_t ndim, rp_dtype dtype) {
    double v[4096];
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= size[d];
    assert_true(n <= 4096);
    for (int64_t i = 0; i < n; i++) v[i] = ref_round(RP_F32, sin(start + step * (double)i));
    return ref_from_values(dtype, v, n, size, (int)ndim);
}
#define WAVE(start, step, ...) wave((start), (step), RP_DIMS(__VA_ARGS__), RP_F32)

enum { PARAMS = 3 };

static void optimizers(rp_tensor **out) {
    static const int64_t sizes[PARAMS][2] = {{3, 5}, {1, 40}, {7, 2}};
    rp_tensor *p[PARAMS], *g[PARAMS], *m[PARAMS], *v[PARAMS], *lr = rp_full(RP_NO_DIMS, rp_f64(0.125));
    for (int k = 0; k < PARAMS; k++) {
        p[k] = wave(k, 0.7, sizes[k], 2, RP_F32);
        m[k] = rp_zeros(sizes[k], 2);
        v[k] = rp_zeros(sizes[k], 2);
    }
    for (int t = 1; t <= 3; t++) {
        rp_tensor *step = rp_full(RP_NO_DIMS, rp_i64(t), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
        for (int k = 0; k < PARAMS; k++) g[k] = wave(t + 0.1 * k, 0.3, sizes[k], 2, RP_F32);
        const double adam[] = {0.9, 0.99, 1e-3, 0.1}, sgd[] = {0.9, 0, 0.1};
        assert_int_equal(rp_foreach_update_("adam", p, PARAMS, g, PARAMS, m, PARAMS, v, PARAMS, NULL, 0, step, lr, NULL,
                                            NULL, NULL, adam, 4, RP__UPDATE_DECAY | (t > 1 ? RP__UPDATE_DECOUPLED : 0)),
                         RP_OK);
        assert_int_equal(rp_foreach_update_("sgd", p, PARAMS, g, PARAMS, m, PARAMS, NULL, 0, NULL, 0, step, lr, NULL,
                                            NULL, NULL, sgd, 3,
                                            RP__UPDATE_DECAY | RP__UPDATE_MOMENTUM | RP__UPDATE_NESTEROV),
                         RP_OK);
    }
    for (int k = 0; k < PARAMS; k++) {
        out[k] = p[k];
        out[PARAMS + k] = m[k];
        out[2 * PARAMS + k] = v[k];
    }
}

static void test_optimizers(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *cpu[3 * PARAMS], *cuda[3 * PARAMS];
    optimizers(cpu);
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    optimizers(cuda);
    for (int k = 0; k < 3 * PARAMS; k++) assert_close("optimizer", cuda[k], cpu[k], 1e-6);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    OK();
}

/* ---- gradients: a few of each family, first and second order ---- */

typedef struct model {
    const char *name;
    rp_tensor *(*run)(rp_tensor *x, rp_tensor *w);
    bool twice;
} model;

static rp_tensor *m_pointwise(rp_tensor *x, rp_tensor *w) {
    return rp_gelu(rp_div(rp_sub(rp_sin(x), w, RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.5))),
                          rp_add_scalar(rp_exp(w), rp_f64(1))));
}
static rp_tensor *m_choice(rp_tensor *x, rp_tensor *w) {
    return rp_where(rp_gt_scalar(x, rp_f64(0)), rp_maximum(x, w), rp_mul(rp_relu(w), rp_abs(x)));
}
static rp_tensor *m_rows(rp_tensor *x, rp_tensor *w) {
    return rp_layer_norm(rp_softmax(x, -1), RP_DIMS(6), rp_select(w, 0, 0), rp_select(w, 0, 1), 1e-5);
}
static rp_tensor *m_reduce(rp_tensor *x, rp_tensor *w) {
    return rp_add(rp_mean(rp_mul(x, w), RP_DIMS(0)), rp_amax(x, RP_DIMS(0), false),
                  RP_OPTIONS(rp_add_options, .alpha = rp_f64(2)));
}
static rp_tensor *m_views(rp_tensor *x, rp_tensor *w) {
    rp_tensor *t = rp_transpose(rp_view(x, RP_DIMS(2, 2, 6)), 0, 2);
    return rp_mul(rp_slice(t, 0, 1, 6, 2), rp_expand(rp_slice(rp_select(w, 1, 2), 0, 0, 2, 1), RP_DIMS(3, 2, 2)));
}
static rp_tensor *m_matmul(rp_tensor *x, rp_tensor *w) { return rp_tanh(rp_matmul(x, rp_transpose(w, 0, 1))); }
static rp_tensor *m_linear(rp_tensor *x, rp_tensor *w) { return rp_relu(rp_linear(x, w, rp_select(w, 1, 0))); }
static rp_tensor *m_conv(rp_tensor *x, rp_tensor *w) {
    return rp_conv2d(rp_view(x, RP_DIMS(1, 2, 3, 4)), rp_view(w, RP_DIMS(3, 2, 2, 2)), NULL, RP_DIMS(1, 1),
                     RP_DIMS(1, 0), RP_DIMS(1, 1), 1);
}
static rp_tensor *m_index(rp_tensor *x, rp_tensor *w) {
    static const int64_t rows[] = {3, 0, 3, 1}, columns[] = {0, 5, 2, 2, 1, 0, 4, 4};
    rp_tensor *e = rp_embedding(w, rp_from_data(rows, RP_DIMS(4), RP_I64));
    return rp_mul(rp_gather(x, 1, rp_from_data(columns, RP_DIMS(4, 2), RP_I64)), rp_slice(e, 1, 0, 2, 1));
}
static rp_tensor *m_cat(rp_tensor *x, rp_tensor *w) {
    rp_tensor *t = rp_clone(rp_cat(RP_TENSORS(x, w), 1));
    return rp_mul(rp_sin_(t), t);
}
static rp_tensor *m_loss(rp_tensor *x, rp_tensor *w) {
    static const int64_t target[] = {3, 0, 5, 1};
    return rp_cross_entropy(rp_mul(x, w), rp_from_data(target, RP_DIMS(4), RP_I64));
}
static rp_tensor *m_topk(rp_tensor *x, rp_tensor *w) {
    return rp_mul(rp_topk(x, 2, 1, true, true, NULL), rp_slice(w, 1, 0, 2, 1));
}

static const model models[] = {{"pointwise", m_pointwise, true}, {"choice", m_choice, false},
                               {"rows", m_rows, true},           {"reduce", m_reduce, false},
                               {"views", m_views, false},        {"matmul", m_matmul, true},
                               {"linear", m_linear, false},      {"conv", m_conv, true},
                               {"index", m_index, true},         {"cat", m_cat, false},
                               {"loss", m_loss, true},           {"topk", m_topk, false}};

static int gradients(const model *m, rp_tensor **out) {
    rp_tensor *in[2] = {WAVE(0.3, 0.9, 4, 6), WAVE(1.1, 0.4, 4, 6)}, *g[2];
    for (int k = 0; k < 2; k++) assert_int_equal(rp_set_requires_grad(in[k], true), RP_OK);
    rp_tensor *y = m->run(in[0], in[1]);
    rp_tensor *loss = rp_sum(rp_mul(y, y));
    if (rp_failed()) fail_msg("%s: %s", m->name, rp_error_message());
    assert_int_equal(rp_grad(&loss, 1, in, 2, NULL, RP_OPTIONS(rp_backward_options, .create_graph = m->twice), g),
                     RP_OK);
    int n = 0;
    out[n++] = y;
    out[n++] = g[0];
    out[n++] = g[1];
    if (m->twice) {
        rp_tensor *second = rp_sum(rp_mul(g[0], rp_sin(g[1])));
        assert_int_equal(rp_grad(&second, 1, in, 2, NULL, NULL, g), RP_OK);
        out[n++] = g[0];
        out[n++] = g[1];
    }
    return n;
}

static void test_gradients(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *cpu[5], *cuda[5];
        int n = gradients(&models[k], cpu);
        assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
        assert_int_equal(gradients(&models[k], cuda), n);
        for (int i = 0; i < n; i++) assert_close(models[k].name, cuda[i], cpu[i], 2e-5);
        assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
        assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
        OK();
    }
}

/* The gradient of a CPU operand of a CUDA op lies on the CPU. */
static void test_gradients_of_the_cpu(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *factor = rp_full(RP_NO_DIMS, rp_f64(3)), *source = rp_full(RP_DIMS(2), rp_f64(5));
    assert_int_equal(rp_set_requires_grad(factor, true), RP_OK);
    assert_int_equal(rp_set_requires_grad(source, true), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp_tensor *target = rp_zeros(RP_DIMS(2));
    rp_copy_(target, source);
    rp_tensor *loss = rp_sum(rp_mul(target, factor));
    assert_int_equal(rp_backward(loss, NULL, NULL), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    rp_tensor *leaves[2] = {factor, source};
    for (int i = 0; i < 2; i++) {
        rp_tensor *grad = rp_grad_of(leaves[i]);
        assert_int_equal(rp_device_of(grad).type, RP_DEVICE_CPU);
        assert_true(rp_item_f64(rp_amax(grad, RP_NO_DIMS, false)) == (i ? 3 : 10));
    }
    assert_int_equal(rp_backward(rp_mul(factor, factor), NULL, NULL), RP_OK); /* accumulates */
    assert_true(rp_item_f64(rp_grad_of(factor)) == 16);
    rp_optimizer *o = rp_sgd(leaves, 2, 0.5, NULL);
    assert_int_equal(rp_optimizer_step(o), RP_OK);
    assert_true(rp_item_f64(factor) == -5);
    rp_optimizer_release(o);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    OK();
}

/* ---- errors that only kernels see ---- */

static void expect_index(const char *op, int line, rp_tensor *result) {
    char site[64];
    (void)snprintf(site, sizeof site, "test_cuda_ops.c:%d", line);
    if (rp_is_error(result)) fail_msg("%s: refused by the host: %s", op, rp_error_message());
    rp_status status = rp_synchronize(rp_cuda(0));
    if (status != RP_ERROR_INDEX || !strstr(rp_error_message(), op) || !strstr(rp_error_message(), site))
        fail_msg("%s: %s, %s", op, rp_status_name(status), rp_error_message());
    assert_int_equal(rp_error_take(), RP_ERROR_INDEX);
    assert_int_equal(rp_synchronize(rp_cuda(0)), RP_OK); /* once */
}

static void test_errors(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    const int64_t bad[] = {0, 9}, negative[] = {-1, 0, 1};
    rp_tensor *w = WAVE(0, 1, 3, 2), *i = rp_from_data(bad, RP_DIMS(2), RP_I64),
              *m = rp_from_data(negative, RP_DIMS(3, 1), RP_I64);
    expect_index("embedding", __LINE__, rp_embedding(w, i));
    expect_index("gather", __LINE__, rp_gather(w, 1, m));
    expect_index("cross_entropy", __LINE__, rp_cross_entropy(rp_slice(w, 0, 0, 2, 1), i));
    expect_index("scatter_add", __LINE__, rp_scatter_add(w, 0, m, WAVE(0, 1, 3, 1)));
    (void)rp_set_deterministic(true);
    expect_index("scatter_add", __LINE__, rp_scatter_add(w, 0, m, WAVE(0, 1, 3, 1)));
    (void)rp_set_deterministic(false);
    expect_index("embedding_backward", __LINE__, rp_embedding_backward(rp_slice(w, 0, 0, 2, 1), i, 3));
    /* a host copy tells it too */
    rp_tensor *y = rp_embedding(w, i);
    float out[4];
    assert_int_equal(rp_to_host(y, out, sizeof out), RP_ERROR_INDEX);
    assert_int_equal(rp_error_take(), RP_ERROR_INDEX);
    /* nothing else is spoiled */
    assert_true(value(rp_add(w, w), 1) == 2 * value(w, 1));
    /* tensors of two devices do not mix */
    rp_set_default_device(rp_cpu());
    rp_tensor *host = WAVE(0, 1, 3, 2);
    assert_true(rp_is_error(rp_add(w, host)));
    assert_int_equal(rp_error_take(), RP_ERROR_DEVICE);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    OK();
}

/* Sums that collide: the deterministic form gives the same bits twice, and those of the CPU. */
static void test_deterministic(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    bool before = rp_set_deterministic(true);
    rp_tensor *got[3];
    double v[600];
    for (int i = 0; i < 600; i++) v[i] = (double)((i * 37 + 11) % 7);
    for (int k = 0; k < 3; k++) {
        rp_set_default_device(k ? rp_cuda(0) : rp_cpu());
        rp_tensor *index = rp_view(ref_from_values(RP_I64, v, 600, (const int64_t[]){600}, 1), RP_DIMS(300, 2));
        got[k] = rp_scatter_add(rp_zeros(RP_DIMS(7, 2)), 0, index, WAVE(0.1, 0.01, 300, 2));
    }
    for (int i = 0; i < 14; i++) {
        assert_true(value(got[1], i) == value(got[2], i));
        assert_true(value(got[1], i) == value(got[0], i));
    }
    rp_set_default_device(rp_cpu());
    (void)rp_set_deterministic(before);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    OK();
}

/* Additions to elements of 16 bits leave what lies between these as it is, to the bit, whatever it is: NaN with a payload, too. */
static void test_halves_of_others(void **state) {
    static const struct {
        int64_t size[2], stride[2], first;
    } cases[] = {{{5, 1}, {2, 1}, 0}, {{5, 1}, {2, 1}, 1}, {{4, 3}, {5, 1}, 1}, {{4, 2}, {6, 1}, 2},
                 {{4, 2}, {6, 1}, 1}, {{4, 2}, {6, 2}, 0}, {{4, 2}, {5, 1}, 0}, {{3, 4}, {1, 10}, 3},
                 {{3, 4}, {8, 1}, 4}, {{3, 4}, {4, 1}, 5}, {{2, 6}, {1, 2}, 2}, {{6, 2}, {1, 8}, 2}};
    enum { N = 48, MOST = 24 };
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_set_default_device(rp_cuda(0));
    for (unsigned n = 0; n < 2 * (sizeof cases / sizeof *cases); n++) {
        const int64_t *size = cases[n / 2].size, *stride = cases[n / 2].stride, first = cases[n / 2].first;
        const bool brain = n % 2;
        const uint16_t nan = brain ? 0x7f81 : 0x7c01, one = brain ? 0x3f80 : 0x3c00, four = brain ? 0x4080 : 0x4400;
        uint16_t has[N], got[N], src[MOST];
        int64_t index[MOST];
        for (int k = 0; k < N; k++) has[k] = (uint16_t)(k % 3 ? nan + k : 0x8000);
        for (int64_t i = 0; i < size[0]; i++)
            for (int64_t j = 0; j < size[1]; j++) has[first + i * stride[0] + j * stride[1]] = one;
        for (int64_t k = 0; k < 2 * size[0] * size[1]; k++) {
            index[k] = k / size[1] % size[0];
            src[k] = brain ? 0x3fc0 : 0x3e00; /* 1.5, twice */
        }
        const rp_dtype dtype = brain ? RP_BF16 : RP_F16;
        rp_tensor *all = rp_from_data(has, RP_DIMS(N), dtype);
        rp_tensor *x = rp_as_strided(all, size, 2, stride, 2, first);
        (void)rp_scatter_add_(x, 0, rp_from_data(index, RP_DIMS(2 * size[0], size[1]), RP_I64),
                              rp_from_data(src, RP_DIMS(2 * size[0], size[1]), dtype));
        assert_int_equal(rp_to_host(all, got, sizeof got), RP_OK);
        for (int64_t i = 0; i < size[0]; i++)
            for (int64_t j = 0; j < size[1]; j++) has[first + i * stride[0] + j * stride[1]] = four;
        for (int k = 0; k < N; k++)
            if (got[k] != has[k]) fail_msg("case %u, element %d: 0x%04x, not 0x%04x", n, k, got[k], has[k]);
    }
    rp_set_default_device(rp_cpu());
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    OK();
}

/* psi of floats is computed in floats there: as exact near its zero as elsewhere. */
static void test_psi(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *got[2][2];
    float v[200];
    for (int i = 0; i < 200; i++) {
        const uint32_t near = 0x3fbb16c3u + (uint32_t)(i - 50); /* 1.46163214 */
        v[i] = i < 100 ? 0 : (float)(i - 99) * 0.08f;
        if (i < 100) memcpy(&v[i], &near, sizeof near);
    }
    for (int k = 0; k < 2; k++) {
        rp_set_default_device(k ? rp_cuda(0) : rp_cpu());
        rp_tensor *x = rp_from_data(v, (const int64_t[]){200}, 1, RP_F32);
        got[k][0] = rp_digamma(x);
        got[k][1] = rp_polygamma(1, x);
    }
    for (int i = 0; i < 200; i++)
        for (int k = 0; k < 2; k++) {
            const double want = value(got[0][k], i), is = value(got[1][k], i);
            if (!(fabs(is - want) <= 4e-7 * fabs(want)))
                fail_msg("%d of %.9g: %.9g, not %.9g", k, (double)v[i], is, want);
        }
    rp_set_default_device(rp_cpu());
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    OK();
}

/* A failed test leaves nothing to the next. */
static int start(void **state) {
    (void)state;
    (void)rp_error_take();
    (void)rp_set_default_device(rp_cpu());
    (void)rp_set_deterministic(false);
    return 0;
}

/* Images whose channels lie last stay so, called plainly and compiled, with the numbers of the CPU. */
static void layers(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_conv2d(in[0], in[1], NULL, RP_DIMS(1), RP_DIMS(1));
    h = rp_relu(rp_batch_norm(h, NULL, NULL, NULL, NULL, true));
    rp_tensor *both[] = {h, rp_sin(h)};
    h = rp_cat(both, 2, 1);
    out[0] = rp_max_pool2d(rp_constant_pad_nd(h, RP_DIMS(1, 1), rp_f64(0.5)), RP_DIMS(2));
    out[1] = rp_mul(h, rp_sum(h, RP_DIMS(1), true));
}

static void test_formats(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){layers, NULL, 0, "layers"}, NULL);
    rp_tensor *got[4][2];
    for (int k = 0; k < 4; k++) {
        rp_set_default_device(k ? rp_cuda(0) : rp_cpu());
        rp_tensor *x = rp_contiguous(WAVE(0.1, 0.3, 2, 3, 4, 4),
                                     RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
        rp_tensor *in[] = {x, WAVE(0.2, 0.5, 4, 3, 3, 3)};
        if (k < 2)
            layers(NULL, in, 2, got[k], 2);
        else
            rp_call(f, in, 2, got[k], 2);
        OK();
        for (int i = 0; i < 2; i++) {
            assert_true(rp_is_contiguous_format(got[k][i], RP_CHANNELS_LAST));
            assert_close("layers", got[k][i], got[0][i], 1e-4);
        }
    }
    rp_compiled_release(f);
    rp_set_default_device(rp_cpu());
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

int main(void) {
    unsigned shard, shards;
    if (!test_cuda_choose()) return 1;
    ref_shard(&shard, &shards);
    if (shard > 0) cmocka_set_test_filter("test_sweep*");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_sweep, start),
        cmocka_unit_test_setup(test_sweep_of_samples, start),
        cmocka_unit_test_setup(test_random, start),
        cmocka_unit_test_setup(test_optimizers, start),
        cmocka_unit_test_setup(test_gradients, start),
        cmocka_unit_test_setup(test_gradients_of_the_cpu, start),
        cmocka_unit_test_setup(test_errors, start),
        cmocka_unit_test_setup(test_formats, start),
        cmocka_unit_test_setup(test_deterministic, start),
        cmocka_unit_test_setup(test_psi, start),
        cmocka_unit_test_setup(test_halves_of_others, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
