/* Autocast: PyTorch's lists by the types of results, casts as ops, nests, casts of parameters that are kept, recorded
   functions, checkpoints; and the scaling of losses, whose skipped steps are decided on the device: recorded steps
   must give the bits of eager ones. On the CPU and on the emulator of CUDA. */
/* ctest: labels=cuda timeout=300 cost=16 */
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

static bool have_cuda;

static rp_device_type device(void) { return rp_default_device().type; }

static rp_tensor *wave(double start, const int64_t *size, size_t ndim) {
    float v[512];
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= size[d];
    assert_true(n <= 512);
    for (int64_t i = 0; i < n; i++) v[i] = (float)sin(start + 0.7 * (double)i);
    return rp_from_data(v, size, ndim, RP_F32);
}
#define WAVE(start, ...) wave((start), RP_DIMS(__VA_ARGS__))

static void same_bits(rp_tensor *a, rp_tensor *b, const char *what, int t) {
    char x[4096], y[4096];
    assert_int_equal(rp_dtype_of(a), rp_dtype_of(b));
    assert_int_equal(rp_numel(a), rp_numel(b));
    const size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_true(bytes <= sizeof x);
    rp_to_host(a, x, bytes);
    rp_to_host(b, y, bytes);
    FINE();
    if (memcmp(x, y, bytes) != 0) fail_msg("%s differs at step %d", what, t);
}

/* What torch.autocast(bfloat16) makes of float32 and of bfloat16 operands, on a CPU and on CUDA. */
static void lists(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    const bool cuda = device() == RP_DEVICE_CUDA;
    const rp_dtype low = RP_BF16, high = RP_F32;
    rp_tensor *x = WAVE(0, 4, 4), *y = WAVE(1, 4, 4), *h = rp_to_dtype(x, low), *d = rp_to_dtype(x, RP_F64);
    rp_tensor *image = WAVE(2, 1, 2, 5, 5), *kernel = WAVE(3, 3, 2, 3, 3);
    rp_tensor *classes = rp_from_data((int64_t[]){0, 1, 2, 3}, RP_DIMS(4), RP_I64);
    assert_int_equal(rp_set_autocast(device(), low), RP_DTYPE_NONE);
#define TYPE(expression, want)                                                                                         \
    do {                                                                                                               \
        rp_tensor *r = (expression);                                                                                   \
        FINE();                                                                                                        \
        if (rp_dtype_of(r) != (want))                                                                                  \
            fail_msg("%s is %s, not %s", #expression, rp_dtype_name(rp_dtype_of(r)), rp_dtype_name(want));             \
    } while (0)
    TYPE(rp_matmul(x, y), low);
    TYPE(rp_matmul(x, h), low);
    TYPE(rp_matmul(d, d), RP_F64);
    TYPE(rp_linear(x, y), low);
    TYPE(rp_conv2d(image, kernel), low);
    TYPE(rp_add(x, y), high);
    TYPE(rp_add(h, h), low);
    TYPE(rp_relu(h), low);
    TYPE(rp_softmax(h, 1), cuda ? high : low);
    TYPE(rp_softmax(h, 1, RP_BF16), low);
    TYPE(rp_exp(h), cuda ? high : low);
    TYPE(rp_sum(h), cuda ? high : low);
    TYPE(rp_mean(h), low);
    TYPE(rp_prod(h), high);
    TYPE(rp_cross_entropy(h, classes), high);
    TYPE(rp_layer_norm(h, RP_DIMS(4)), cuda ? high : low);
    TYPE(rp_cat(RP_TENSORS(x, h), 0), high);
    TYPE(rp_cat(RP_TENSORS(h, h), 0), low);
    TYPE(rp_atan2(x, h), high);
    TYPE(rp_prelu(x, rp_select(y, 0, 0)), low);
    TYPE(rp_log(h), cuda ? high : low);
    TYPE(rp_linalg_vector_norm(h), cuda ? high : low);
    TYPE(rp_cumsum(h, 0), cuda ? high : low);
    TYPE(rp_pow_scalar(h, rp_f64(2)), cuda ? high : low);
    rp_tensor *low_image = rp_to_dtype(image, low), *grid = rp_to_dtype(WAVE(4, 1, 2, 2, 2), low);
    TYPE(rp_grid_sampler(low_image, grid, 0, 0, false), cuda ? low : high);
    TYPE(rp_interpolate(low_image, RP_DIMS(3, 3)), cuda ? high : low);
    TYPE(rp_rms_norm(h, RP_DIMS(4), NULL), cuda ? high : low);
    rp_tensor *signal = WAVE(9, 2, 12);
    TYPE(rp_stft(signal, 4), high);
    TYPE(rp_stft(rp_to_dtype(signal, low), 4), high);
    TYPE(rp_istft(rp_stft(signal, 4), 4), high);
    TYPE(rp_softmin(h, 1), cuda ? high : low);
    TYPE(rp_linear_cross_entropy(h, y, classes), high);
    TYPE(rp_conv1d(WAVE(5, 1, 2, 6), WAVE(6, 3, 2, 2)), low);
    TYPE(rp_conv3d(WAVE(7, 1, 1, 3, 3, 3), WAVE(8, 1, 1, 2, 2, 2)), low);
    TYPE(rp_conv_transpose1d(WAVE(5, 1, 2, 6), WAVE(6, 2, 3, 2)), low);
    TYPE(rp_addmm_(rp_clone(h), x, y), low); /* the form in place: self keeps its type */
    TYPE(rp_linear(rp_relu(rp_linear(x, y)), x), low);
    rp_backward(rp_sum(rp_set_requires_grad(y, true) == RP_OK ? rp_matmul(x, y) : y), NULL, NULL);
    TYPE(rp_grad_of(y), high);
    rp_set_grad(y, NULL);
    assert_int_equal(rp_set_autocast(device(), RP_DTYPE_NONE), low);
    TYPE(rp_matmul(x, y), high);
    (void)rp_set_autocast(device(), RP_I32);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "float16, bfloat16");
    assert_int_equal(rp_autocast_dtype(device()), RP_DTYPE_NONE);
    rp_scope_end(scope, NULL, 0);
}

/* They are the ops that a program would write. */
static void casts_are_ops(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    for (int half = 0; half < 2; half++) {
        const rp_dtype low = half ? RP_F16 : RP_BF16;
        rp_tensor *x = WAVE(0, 3, 4), *w = WAVE(1, 5, 4), *b = WAVE(2, 5), *v = rp_clone(w), *grads[2];
        rp_set_requires_grad(w, true);
        rp_set_requires_grad(v, true);
        rp_set_autocast(device(), low);
        rp_tensor *y = rp_linear(x, w, b);
        rp_tensor *loss = rp_sum(rp_to_dtype(y, RP_F32));
        rp_set_autocast(device(), RP_DTYPE_NONE);
        rp_tensor *z = rp_linear(rp_to_dtype(x, low), rp_to_dtype(v, low), rp_to_dtype(b, low));
        same_bits(y, z, "a product", half);
        rp_grad(&loss, 1, &w, 1, NULL, NULL, &grads[0]);
        rp_tensor *other = rp_sum(rp_to_dtype(z, RP_F32));
        rp_grad(&other, 1, &v, 1, NULL, NULL, &grads[1]);
        same_bits(grads[0], grads[1], "a gradient", half);
    }
    rp_scope_end(scope, NULL, 0);
}

static void nests(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = WAVE(0, 4, 4);
    rp_dtype outer = rp_set_autocast(device(), RP_BF16);
    {
        rp_dtype inner = rp_set_autocast(device(), RP_DTYPE_NONE);
        assert_int_equal(rp_dtype_of(rp_matmul(x, x)), RP_F32);
        {
            rp_dtype innermost = rp_set_autocast(device(), RP_F16);
            assert_int_equal(rp_dtype_of(rp_matmul(x, x)), RP_F16);
            rp_set_autocast(device(), innermost);
        }
        assert_int_equal(rp_dtype_of(rp_matmul(x, x)), RP_F32);
        rp_set_autocast(device(), inner);
    }
    assert_int_equal(rp_dtype_of(rp_matmul(x, x)), RP_BF16);
    rp_set_autocast(device(), outer);
    assert_int_equal(rp_dtype_of(rp_matmul(x, x)), RP_F32);
    FINE();
    rp_scope_end(scope, NULL, 0);
}

/* A parameter is cast once, until it is written; each use has its own way back to the parameter. */
static void parameters_are_cast_once(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = WAVE(0, 2, 4), *w = WAVE(1, 4, 4), *sums[3];
    rp_set_requires_grad(w, true);
    rp_set_autocast(device(), RP_BF16);
    for (int t = 0; t < 3; t++) {
        rp_tensor *y = rp_linear(rp_linear(x, w), w);
        rp_backward(rp_sum(y), NULL, NULL);
        FINE();
        sums[t] = rp_clone(rp_grad_of(w));
    }
    /* three times the same gradient */
    same_bits(rp_add(sums[0], sums[0]), sums[1], "the second sum", 1);
    same_bits(rp_add(sums[1], sums[0]), sums[2], "the third sum", 2);
    rp_set_grad_enabled(false);
    rp_fill_(w, rp_f64(0));
    rp_set_grad_enabled(true);
    rp_tensor *y = rp_linear(x, w);
    assert_true(rp_item_f64(rp_sum(rp_abs(y))) == 0);
    rp_set_autocast(device(), RP_DTYPE_NONE);
    rp_set_grad(w, NULL);
    FINE();
    rp_scope_end(scope, NULL, 0);
}

/* ---- recorded functions */

typedef struct net {
    rp_tensor *w, *b, *v;
    bool inside; /* the function switches */
} net;

static void net_init(net *m, bool inside) {
    m->w = rp_retain(WAVE(1, 8, 4));
    m->b = rp_retain(WAVE(2, 8));
    m->v = rp_retain(WAVE(3, 3, 8));
    m->inside = inside;
    rp_set_requires_grad(m->w, true);
    rp_set_requires_grad(m->b, true);
    rp_set_requires_grad(m->v, true);
}

static void net_free(net *m) {
    rp_tensor *all[] = {m->w, m->b, m->v};
    for (int k = 0; k < 3; k++) {
        rp_set_grad(all[k], NULL);
        rp_release(all[k]);
    }
}

/* v is used twice: its gradients are added up in float32, whether its cast is kept, traced or captured. */
static rp_tensor *net_run(const net *m, rp_tensor *x) {
    rp_tensor *h = rp_relu(rp_linear(x, m->w, m->b));
    return rp_add(rp_linear(h, m->v), rp_linear(rp_tanh(h), m->v));
}

static void forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *m = ctx;
    (void)n_in, (void)n_out;
    rp_dtype old = m->inside ? rp_set_autocast(device(), RP_F16) : RP_DTYPE_NONE;
    out[0] = net_run(m, in[0]);
    if (m->inside) rp_set_autocast(device(), old);
}

static void recorded_functions(void **state) {
    (void)state;
    static const char *const backends[] = {"fused", "cudagraphs", "aot_eager"};
    for (int b = 0; b < 6; b++) {
        rp_scope all = rp_scope_begin();
        net m;
        net_init(&m, b >= 3);
        rp_compiled *f = rp_compile((rp_fn){forward, &m, sizeof m, "forward"},
                                    RP_OPTIONS(rp_compile_options, .backend = backends[b % 3], .fullgraph = true));
        for (int t = 0; t < 6; t++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *x = WAVE(t, 2, 4), *y, *z, *params[] = {m.w, m.b, m.v}, *g[2][3];
            rp_dtype old = t % 2 ? rp_set_autocast(device(), RP_BF16) : RP_DTYPE_NONE;
            forward(&m, &x, 1, &y, 1);
            FINE();
            assert_int_equal(rp_call(f, &x, 1, &z, 1), RP_OK);
            if (t % 2) rp_set_autocast(device(), old);
            assert_int_equal(rp_dtype_of(y), m.inside ? RP_F16 : t % 2 ? RP_BF16 : RP_F32);
            same_bits(y, z, backends[b % 3], t);
            rp_tensor *sums[] = {rp_sum(rp_to_dtype(y, RP_F32)), rp_sum(rp_to_dtype(z, RP_F32))};
            for (int k = 0; k < 2; k++) rp_grad(&sums[k], 1, params, 3, NULL, NULL, g[k]);
            for (int k = 0; k < 3; k++) same_bits(g[0][k], g[1][k], "a gradient", t);
            rp_scope_end(scope, NULL, 0);
        }
        rp_compiled_release(f);
        net_free(&m);
        rp_scope_end(all, NULL, 0);
    }
}

static void leaves_on(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(in[0], in[0]);
    rp_set_autocast(device(), RP_BF16);
    out[0] = rp_matmul(out[0], in[0]);
}
static void leaves_off(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(in[0], in[0]);
    rp_set_autocast(device(), RP_DTYPE_NONE);
}
static void in_a_branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_fn fn = {leaves_on, NULL, 0, "leaves_on"};
    (void)ctx, (void)n_in, (void)n_out;
    rp_cond(rp_gt_scalar(rp_sum(in[0]), rp_i64(0)), fn, fn, in, 1, out, 1);
    out[0] = rp_add(out[0], rp_matmul(in[0], in[0]));
}

/* What a function leaves on or off is so behind each call, whether its host code ran or not. */
static void left_as_it_is(void **state) {
    (void)state;
    static const char *const backends[] = {"fused", "cudagraphs", "aot_eager"};
    static rp_body *const bodies[] = {leaves_on, leaves_off, in_a_branch};
    for (int k = 0; k < 9; k++) {
        rp_scope all = rp_scope_begin();
        rp_fn fn = {bodies[k / 3], NULL, 0, "leaves"};
        rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[k % 3]));
        for (int t = 0; t < 8; t++) {
            rp_tensor *x = WAVE(t, 2 + t / 4, 2 + t / 4), *y[2];
            rp_dtype left[2];
            rp_set_requires_grad(x, t % 4 == 3);
            for (int i = 0; i < 2; i++) {
                rp_set_autocast(device(), k / 3 == 1 ? RP_BF16 : RP_DTYPE_NONE);
                if (i)
                    assert_int_equal(rp_call(f, &x, 1, &y[i], 1), RP_OK);
                else
                    fn.body(NULL, &x, 1, &y[i], 1);
                left[i] = rp_autocast_dtype(device());
                rp_set_autocast(device(), RP_DTYPE_NONE);
            }
            FINE();
            assert_int_equal(left[0], k / 3 == 1 ? RP_DTYPE_NONE : RP_BF16);
            assert_int_equal(left[1], left[0]);
            same_bits(y[0], y[1], backends[k % 3], t);
        }
        rp_compiled_release(f);
        rp_scope_end(all, NULL, 0);
    }
}

static void checkpoints(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net m;
    net_init(&m, false);
    rp_tensor *x = WAVE(0, 2, 4), *y[2], *params[] = {m.w, m.b, m.v}, *g[2][3];
    rp_set_autocast(device(), RP_BF16);
    forward(&m, &x, 1, &y[0], 1);
    rp_checkpoint((rp_fn){forward, &m, 0, "forward"}, &x, 1, &y[1], 1);
    FINE();
    rp_set_autocast(device(), RP_DTYPE_NONE);
    for (int k = 0; k < 2; k++) {
        rp_tensor *sum = rp_sum(rp_to_dtype(y[k], RP_F32));
        rp_grad(&sum, 1, params, 3, NULL, NULL, g[k]);
    }
    same_bits(y[0], y[1], "a checkpoint", 0);
    for (int k = 0; k < 3; k++) same_bits(g[0][k], g[1][k], "a gradient", k);
    net_free(&m);
    rp_scope_end(scope, NULL, 0);
}

/* ---- scaled steps */

typedef struct trainer {
    net m;
    rp_tensor *p[3];
    rp_optimizer *opt;
    rp_grad_scaler *scaler;
} trainer;

static void trainer_init(trainer *a, int kind) {
    net_init(&a->m, false);
    a->p[0] = a->m.w;
    a->p[1] = a->m.b;
    a->p[2] = a->m.v;
    a->opt = kind == 0   ? rp_adamw(a->p, 3, 0.01, NULL)
             : kind == 1 ? rp_sgd(a->p, 3, 0.01, RP_OPTIONS(rp_sgd_options, .momentum = 0.9, .dampening = 0.5))
             : kind == 2 ? rp_nadam(a->p, 3, 0.01, NULL)
                         : rp_lamb(a->p, 3, 0.01, NULL);
    a->scaler = rp_grad_scaler_new(RP_OPTIONS(rp_grad_scaler_options, .init_scale = 1024, .growth_interval = 2));
    FINE();
}

static void trainer_free(trainer *a) {
    rp_grad_scaler_release(a->scaler);
    rp_optimizer_release(a->opt);
    net_free(&a->m);
}

static void scaled_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const trainer *a = ctx;
    (void)n_in, (void)n_out;
    rp_dtype old = rp_set_autocast(device(), RP_F16);
    rp_tensor *y = net_run(&a->m, in[0]);
    rp_tensor *loss = rp_mse_loss(rp_to_dtype(y, RP_F32), rp_zeros_like(rp_to_dtype(y, RP_F32)), 1);
    rp_set_autocast(device(), old);
    rp_backward(rp_grad_scaler_scale(a->scaler, loss), NULL, NULL);
    rp_grad_scaler_unscale(a->scaler, a->opt);
    rp_clip_grad_norm(a->p, 3, 0.5, 2);
    rp_grad_scaler_step(a->scaler, a->opt);
    rp_grad_scaler_update(a->scaler);
    rp_optimizer_zero_grad(a->opt, true);
    out[0] = rp_detach(loss);
}

enum { STEPS = 8, SPOILT = 3 };

static void scaled(int kind, const char *backend) {
    /* torch.amp.GradScaler of scale 1024, interval 2, whose fourth step meets an infinity */
    static const double scales[STEPS] = {1024, 2048, 2048, 1024, 1024, 2048, 2048, 4096};
    static const int counts[STEPS] = {1, 2, 3, 3, 4, 5, 6, 7};
    rp_scope all = rp_scope_begin();
    trainer eager, compiled;
    trainer_init(&eager, kind);
    trainer_init(&compiled, kind);
    rp_compiled *f = rp_compile((rp_fn){scaled_step, &compiled, sizeof compiled, "step"},
                                RP_OPTIONS(rp_compile_options, .backend = backend, .fullgraph = true));
    for (int t = 0; t < STEPS; t++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = WAVE(t, 2, 4), *loss, *before[3];
        if (t == SPOILT) x = rp_mul_scalar(x, rp_f64(1e30));
        for (int k = 0; k < 3; k++) before[k] = rp_clone(rp_detach(eager.p[k]));
        scaled_step(&eager, &x, 1, &loss, 1);
        FINE();
        assert_int_equal(rp_call(f, &x, 1, &loss, 1), RP_OK);
        for (int k = 0; k < 3; k++) {
            same_bits(eager.p[k], compiled.p[k], "a parameter", t);
            if (t == SPOILT) same_bits(eager.p[k], before[k], "a parameter of a step that was not taken", t);
        }
        assert_true(rp_item_f64(rp_grad_scaler_state(eager.scaler, "scale")) == scales[t]);
        same_bits(rp_grad_scaler_state(eager.scaler, "growth_tracker"),
                  rp_grad_scaler_state(compiled.scaler, "growth_tracker"), "the count", t);
        assert_true(rp_item_f64(rp_grad_scaler_state(compiled.scaler, "scale")) == scales[t]);
        assert_true(rp_item_f64(rp_optimizer_state(compiled.opt, 0, 0, "step")) == counts[t]);
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);
    trainer_free(&eager);
    trainer_free(&compiled);
    rp_scope_end(all, NULL, 0);
}

static void scaled_steps(void **state) {
    (void)state;
    static const char *const backends[] = {"fused", "cudagraphs", "aot_eager"};
    for (int kind = 0; kind < 4; kind++)
        for (int b = 0; b < 3; b++) scaled(kind, backends[b]);
}

/* A scaled step changes a parameter as one without a scale does, where the scale is a power of two. */
static void scales_cancel(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    trainer a, b;
    trainer_init(&a, 0);
    trainer_init(&b, 0);
    for (int t = 0; t < 4; t++) {
        rp_tensor *x = WAVE(t, 2, 4);
        rp_backward(rp_grad_scaler_scale(a.scaler, rp_sum(rp_sin(net_run(&a.m, x)))), NULL, NULL);
        rp_grad_scaler_step(a.scaler, a.opt);
        rp_grad_scaler_update(a.scaler);
        rp_backward(rp_sum(rp_sin(net_run(&b.m, x))), NULL, NULL);
        rp_optimizer_step(b.opt);
        rp_optimizer_zero_grad(a.opt, true);
        rp_optimizer_zero_grad(b.opt, true);
        FINE();
        for (int k = 0; k < 3; k++) same_bits(a.p[k], b.p[k], "a parameter", t);
    }
    /* what is called out of order */
    assert_int_equal(rp_grad_scaler_update(a.scaler), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "no gradients");
    assert_int_equal(rp_grad_scaler_unscale(a.scaler, a.opt), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "no parameter has a gradient");
    rp_backward(rp_sum(net_run(&a.m, WAVE(0, 2, 4))), NULL, NULL);
    OK(rp_grad_scaler_unscale(a.scaler, a.opt));
    assert_int_equal(rp_grad_scaler_unscale(a.scaler, a.opt), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "since the last update");
    OK(rp_grad_scaler_step(a.scaler, a.opt));
    assert_int_equal(rp_grad_scaler_step(a.scaler, a.opt), RP_ERROR_STATE);
    FAILED(RP_ERROR_STATE, "since the last update");
    OK(rp_grad_scaler_update(a.scaler));
    (void)rp_grad_scaler_new(RP_OPTIONS(rp_grad_scaler_options, .growth_factor = 0.5));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "growth");
    (void)rp_grad_scaler_state(a.scaler, "none");
    FAILED(RP_ERROR_INVALID_ARGUMENT, "no state");
    trainer_free(&a);
    trainer_free(&b);
    rp_scope_end(scope, NULL, 0);
}

/* Two optimizers and one scaler; the parts of their step, in order. */
typedef struct pair {
    trainer a, b; /* the scaler is a's */
} pair;
typedef struct stretch { /* parts from .. to - 1 */
    const pair *of;
    int from, to;
    bool clips; /* else step unscales */
} stretch;
enum { PARTS = 5 };

static void part_of_step(const pair *p, int part, bool clips, rp_tensor *x) {
    rp_grad_scaler *s = p->a.scaler;
    switch (part) {
    case 0:
        rp_backward(rp_grad_scaler_scale(s, rp_sum(rp_sin(net_run(&p->a.m, x)))), NULL, NULL);
        rp_backward(rp_grad_scaler_scale(s, rp_mean(net_run(&p->b.m, x))), NULL, NULL);
        break;
    case 1:
        if (!clips) break;
        rp_grad_scaler_unscale(s, p->a.opt);
        rp_grad_scaler_unscale(s, p->b.opt);
        break;
    case 2:
        if (clips) rp_clip_grad_norm(p->a.p, 3, 0.5, 2);
        break;
    case 3:
        rp_grad_scaler_step(s, p->a.opt);
        rp_grad_scaler_step(s, p->b.opt);
        break;
    default:
        rp_grad_scaler_update(s);
        rp_optimizer_zero_grad(p->a.opt, true);
        rp_optimizer_zero_grad(p->b.opt, true);
    }
}

static void stretch_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const stretch *s = ctx;
    (void)n_in, (void)out, (void)n_out;
    for (int k = s->from; k < s->to; k++) part_of_step(s->of, k, s->clips, in[0]);
}

/* cuts: bit k, a function begins before part k + 1; compiled: bit k, that function is. */
static void split_step(unsigned cuts, unsigned compiled, bool clips) {
    rp_scope all = rp_scope_begin();
    pair whole, parts;
    trainer_init(&whole.a, 1);
    trainer_init(&whole.b, 0);
    trainer_init(&parts.a, 1);
    trainer_init(&parts.b, 0);
    stretch s[PARTS];
    rp_compiled *f[PARTS];
    int n = 0;
    for (int from = 0, to; from < PARTS; from = to, n++) {
        for (to = from + 1; to < PARTS && !(cuts >> (to - 1) & 1u);) to++;
        s[n] = (stretch){&parts, from, to, clips};
        rp_fn fn = {stretch_body, &s[n], 0, "part"};
        f[n] = compiled >> n & 1u ? rp_compile(fn, RP_OPTIONS(rp_compile_options, .fullgraph = true)) : rp_plain(fn);
    }
    for (int t = 0; t < STEPS; t++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = WAVE(t, 2, 4);
        if (t == SPOILT) x = rp_mul_scalar(x, rp_f64(1e38));
        for (int k = 0; k < PARTS; k++) part_of_step(&whole, k, clips, x);
        FINE();
        for (int k = 0; k < n; k++) OK(rp_call(f[k], &x, 1, NULL, 0));
        for (int k = 0; k < 3; k++) {
            same_bits(whole.a.p[k], parts.a.p[k], "a parameter of the first", t);
            same_bits(whole.b.p[k], parts.b.p[k], "a parameter of the second", t);
        }
        same_bits(rp_grad_scaler_state(whole.a.scaler, "scale"), rp_grad_scaler_state(parts.a.scaler, "scale"),
                  "the scale", t);
        rp_scope_end(scope, NULL, 0);
    }
    /* out of order, in functions that have run often */
    if (cuts == 15 && compiled == 31 && clips) {
        rp_tensor *x = WAVE(0, 2, 4);
        OK(rp_call(f[0], &x, 1, NULL, 0));
        OK(rp_call(f[1], &x, 1, NULL, 0));
        assert_int_equal(rp_call(f[1], &x, 1, NULL, 0), RP_ERROR_STATE);
        FAILED(RP_ERROR_STATE, "since the last update");
        OK(rp_call(f[3], &x, 1, NULL, 0));
        assert_int_equal(rp_call(f[1], &x, 1, NULL, 0), RP_ERROR_STATE);
        FAILED(RP_ERROR_STATE, "rp_grad_scaler_step was called");
        assert_int_equal(rp_call(f[3], &x, 1, NULL, 0), RP_ERROR_STATE);
        FAILED(RP_ERROR_STATE, "since the last update");
        OK(rp_call(f[4], &x, 1, NULL, 0));
        assert_int_equal(rp_call(f[4], &x, 1, NULL, 0), RP_ERROR_STATE);
        FAILED(RP_ERROR_STATE, "no gradients");
    }
    for (int k = 0; k < n; k++) rp_compiled_release(f[k]);
    trainer_free(&whole.a);
    trainer_free(&whole.b);
    trainer_free(&parts.a);
    trainer_free(&parts.b);
    rp_scope_end(all, NULL, 0);
}

static void parts_of_a_step(void **state) {
    (void)state;
    for (unsigned cuts = 0; cuts < 16; cuts++)
        for (unsigned compiled = 1; compiled < 32; compiled += 3) split_step(cuts, compiled, compiled % 2 == 1);
    split_step(15, 31, true);
}

/* A scaler and an optimizer in the memory of released ones are others for what was compiled. */
static void released_and_made_again(void **state) {
    (void)state;
    rp_scope all = rp_scope_begin();
    pair p;
    stretch s = {&p, 0, PARTS, true};
    rp_compiled *f =
        rp_compile((rp_fn){stretch_body, &s, 0, "step"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    trainer_init(&p.a, 1);
    trainer_init(&p.b, 0);
    rp_tensor *x = WAVE(0, 2, 4);
    for (int round = 0; round < 3; round++) {
        for (int t = 0; t < 3; t++) OK(rp_call(f, &x, 1, NULL, 0));
        rp_grad_scaler_release(p.a.scaler);
        for (int k = 0; k < 200; k++) rp_grad_scaler_release(rp_grad_scaler_new(NULL)); /* its memory goes round */
        p.a.scaler = rp_grad_scaler_new(RP_OPTIONS(rp_grad_scaler_options, .init_scale = 8, .growth_interval = 1));
        OK(rp_call(f, &x, 1, NULL, 0));
        assert_true(rp_item_f64(rp_grad_scaler_state(p.a.scaler, "scale")) == 16);
        rp_optimizer_release(p.b.opt);
        p.b.opt = rp_sgd(p.b.p, 3, 0.5, NULL);
        rp_tensor *before = rp_clone(rp_detach(p.b.p[1]));
        OK(rp_call(f, &x, 1, NULL, 0));
        assert_true(rp_item_f64(rp_amax(rp_abs(rp_sub(before, rp_detach(p.b.p[1]))))) > 0.01);
    }
    rp_compiled_release(f);
    trainer_free(&p.a);
    trainer_free(&p.b);
    rp_scope_end(all, NULL, 0);
}

static void on_cuda(void **state) {
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    lists(state);
    casts_are_ops(state);
    nests(state);
    parameters_are_cast_once(state);
    recorded_functions(state);
    left_as_it_is(state);
    checkpoints(state);
    scaled(0, "fused");
    scaled(3, "cudagraphs");
    split_step(15, 31, true);
    split_step(5, 2, false);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(lists, take_error),
        cmocka_unit_test_teardown(casts_are_ops, take_error),
        cmocka_unit_test_teardown(nests, take_error),
        cmocka_unit_test_teardown(parameters_are_cast_once, take_error),
        cmocka_unit_test_teardown(recorded_functions, take_error),
        cmocka_unit_test_teardown(left_as_it_is, take_error),
        cmocka_unit_test_teardown(checkpoints, take_error),
        cmocka_unit_test_teardown(scaled_steps, take_error),
        cmocka_unit_test_teardown(scales_cancel, take_error),
        cmocka_unit_test_teardown(parts_of_a_step, take_error),
        cmocka_unit_test_teardown(released_and_made_again, take_error),
        cmocka_unit_test_teardown(on_cuda, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
