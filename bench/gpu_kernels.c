/* Single kernels over families of shapes: reads works (bench/gpu_works.txt) and prints WORK<TAB>period us<TAB>GB/s or TFLOP/s of what has
 * to be moved or calculated<TAB>period under RP_NUMBERS_FAST, or WORK<TAB>reason. bench/gpu_kernels.py measures the same works with PyTorch and prints both.
 *   gpu_kernels FILE [FIRST [COUNT]]: only COUNT works from the FIRST on, which is 0.
 *   gpu_kernels --tile N FILE: products by the Nth tile of the table in src/kernel/cuda/product.c, from 1 on, by which its clocks are measured.
 *   gpu_kernels --conv-tile N[,N] FILE: convolutions by the Nth tile of src/kernel/cuda/conv.c, from 17 on of conv_bulk.c, from 33 on of conv_patch.c,
 *     alike (conv_parts.h), quickly; of several, rows begin with N.
 *   gpu_kernels --cudnn 0 FILE: convolutions by our own kernels alone; --cudnn 1: by cuDNN, wherever it has one. Rows then end with whose they
 *     were: by these its rates in src/kernel/cuda/conv_dnn.c are measured.
 *   gpu_kernels --cpu FILE: on the CPU, the fastest call of each work (bench/cpu_kernels.py); FILE may be -, then each is answered at once.
 * With one thread that is time of the processor, which what else the machine does changes less.
 *   gpu_kernels --groups FILE: the same with the grouped C of loop kernels (src/kernel/cpu/emit_c.c) and without it, where the interpreter does what
 *     line functions leave: WORK<TAB>period us<TAB>period without<TAB>how many times as long. Ends with the geometric mean. */
#include "kernel/cpu/program.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/matmul.h"
#include "measure.h"

#include <math.h>
#include <reprise_nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 10 };
static double seconds = 0.15; /* a work */

struct work {
    char kind[24], type[8], name[200];
    rp_dtype dtype;
    int64_t n[MOST];
    rp_tensor *params[2];
    double bytes, flops;
    size_t n_out;
    rp_optimizer *adam;
    bool cudnn;
};

static rp_tensor *of(const struct work *w, const int64_t *size, size_t n) {
    return rp_to_dtype(rp_randn(size, n), w->dtype);
}

/* The same sizes, channels innermost. */
static rp_tensor *channels_last(rp_tensor *x) {
    return rp_permute(rp_contiguous(rp_permute(x, RP_DIMS(0, 2, 3, 1))), RP_DIMS(0, 3, 1, 2));
}

/* Spatial dims of a kind of works; where the numbers of its kernel stand: kernel, step, padding, groups. */
static int spatial_of(const char *kind) { return !strcmp(kind, "conv1d") ? 1 : !strcmp(kind, "conv3d") ? 3 : 2; }

static rp_tensor *conv(const struct work *w, rp_tensor *x, rp_tensor *weight) {
    if (spatial_of(w->kind) == 1)
        return rp_conv1d(x, weight, NULL, RP_DIMS(w->n[5]), RP_DIMS(w->n[6]), RP_DIMS(1), w->n[7]);
    if (spatial_of(w->kind) == 3)
        return rp_conv3d(x, weight, NULL, RP_DIMS(w->n[7], w->n[7], w->n[7]), RP_DIMS(w->n[8], w->n[8], w->n[8]),
                         RP_DIMS(1, 1, 1), 1);
    const int64_t step[2] = {w->n[6], w->n[6]}, padding[2] = {w->n[7], w->n[7]};
    return rp_conv2d(x, weight, NULL, step, 2, padding, 2, RP_DIMS(1, 1), w->n[8]);
}

/* Of a kind ending in "grad": gradients of what it is the gradient of, by all its inputs but the last, the tangent. */
static bool is_gradient(const struct work *w) {
    const size_t n = strlen(w->kind);
    return n > 4 && !strcmp(w->kind + n - 4, "grad");
}

static rp_tensor *normed(const struct work *w, rp_tensor *const *in) {
    rp_tensor *x = in[0];
    if (!strncmp(w->kind, "layernorm", 9)) return rp_layer_norm(x, RP_DIMS(w->n[1]), in[1], in[2], 1e-5);
    if (!strncmp(w->kind, "rmsnorm", 7)) return rp_rms_norm(x, RP_DIMS(w->n[1]), in[1], rp_f64(1e-5));
    if (!strncmp(w->kind, "channelnorm", 11)) { /* over dim 1, as a layer norm of pixels is written */
        rp_tensor *d = rp_sub(x, rp_mean(x, RP_DIMS(1), true, NULL));
        return rp_mul(d, rp_rsqrt(rp_mean(rp_mul(d, d), RP_DIMS(1), true, NULL)));
    }
    return rp_softmax(x, !strncmp(w->kind, "softmax1", 8) ? 1 : -1);
}

/* Batch, channels, height, width, kernel, step, padding, channels_last; of an adaptive one the size of its result, 0, 0, channels_last. */
static bool is_pool(const struct work *w) { return strstr(w->kind, "pool"); }
static rp_tensor *pooled(const struct work *w, rp_tensor *x) {
    const int64_t kernel[2] = {w->n[4], w->n[4]}, step[2] = {w->n[5], w->n[5]}, padding[2] = {w->n[6], w->n[6]};
    if (!strncmp(w->kind, "maxpool", 7)) return rp_max_pool2d(x, kernel, 2, step, 2, padding, 2);
    if (!strncmp(w->kind, "avgpool", 7)) return rp_avg_pool2d(x, kernel, 2, step, 2, padding, 2);
    return rp_adaptive_avg_pool2d(x, kernel, 2);
}
static int64_t pooled_side(const struct work *w, int64_t side) {
    return w->n[5] ? (side + 2 * w->n[6] - w->n[4]) / w->n[5] + 1 : w->n[4];
}

/* Batch, heads, heads of keys, queries, keys, features, causal. */
static rp_tensor *attention(const struct work *w, rp_tensor *const *in) {
    return rp_scaled_dot_product_attention(
        in[0], in[1], in[2], NULL, 0, w->n[6],
        RP_OPTIONS(rp_scaled_dot_product_attention_options, .enable_gqa = w->n[1] != w->n[2] ? RP_TRUE : RP_UNSET));
}

/* Steps, batch, features, units: one layer from zeros; the last state is no result. */
static bool is_recurrent(const struct work *w) {
    return !strncmp(w->kind, "lstm", 4) || !strncmp(w->kind, "gru", 3) || !strncmp(w->kind, "rnn", 3);
}
static rp_tensor *recurrent(const struct work *w, rp_tensor *const *in) {
    rp_tensor *zero = rp_full(RP_DIMS(1, w->n[1], w->n[3]), rp_f64(0), RP_OPTIONS(rp_full_options, .dtype = w->dtype));
    rp_tensor *const start[2] = {zero, zero};
    if (w->kind[0] == 'l') return rp_lstm(in[0], start, 2, in + 1, 4, true, 1, 0, is_gradient(w), false, false);
    if (w->kind[0] == 'g') return rp_gru(in[0], zero, in + 1, 4, true, 1, 0, is_gradient(w), false, false);
    return rp_rnn_tanh(in[0], zero, in + 1, 4, true, 1, 0, is_gradient(w), false, false);
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct work *w = ctx;
    const char *k = w->kind;
    rp_tensor *x = in[0];
    if (is_gradient(w)) {
        rp_tensor *y = is_pool(w) ? pooled(w, x) : is_recurrent(w) ? recurrent(w, in) : normed(w, in);
        rp_grad(&y, 1, in, n_in - 1, &in[n_in - 1], NULL, out);
        return;
    }
    (void)n_out;
    if (!strcmp(k, "sum")) out[0] = rp_sum(x);
    if (!strcmp(k, "rowsum")) out[0] = rp_sum(x, RP_DIMS(1), false, NULL);
    if (!strcmp(k, "colsum")) out[0] = rp_sum(x, RP_DIMS(0), false, NULL);
    if (!strcmp(k, "mean023")) out[0] = rp_mean(x, RP_DIMS(0, 2, 3), false, NULL);
    if (!strcmp(k, "softmax") || !strcmp(k, "softmax1") || strstr(k, "norm")) out[0] = normed(w, in);
    if (!strcmp(k, "logsoftmax")) out[0] = rp_log_softmax(x, -1);
    if (!strcmp(k, "transpose")) out[0] = rp_contiguous(rp_permute(x, RP_DIMS(1, 0)));
    if (!strcmp(k, "nhwc")) out[0] = rp_contiguous(rp_permute(x, RP_DIMS(0, 2, 3, 1)));
    if (!strcmp(k, "permute")) out[0] = rp_contiguous(rp_permute(x, w->n + 1, (size_t)w->n[0]));
    if (!strcmp(k, "addt")) out[0] = rp_add(rp_permute(x, RP_DIMS(1, 0)), in[1]);
    if (!strcmp(k, "cat")) out[0] = rp_cat(in, n_in, 1);
    if (!strcmp(k, "chain")) {
        for (int64_t i = 0; i < w->n[0]; i++) x = i % 2 ? rp_sin(x) : rp_mul_scalar(x, rp_f64(1.01));
        out[0] = x;
    }
    if (!strcmp(k, "matmul") || !strcmp(k, "bmm")) out[0] = rp_matmul(x, in[1]);
    if (!strcmp(k, "linear")) out[0] = rp_linear(x, in[1], in[2]);
    if (!strcmp(k, "lineargelu")) out[0] = rp_gelu(rp_linear(x, in[1], in[2]));
    if (!strcmp(k, "embedding")) out[0] = rp_embedding(x, in[1]);
    if (!strcmp(k, "pick")) out[0] = rp_index_select(x, 0, in[1]);
    if (!strcmp(k, "cumsum")) out[0] = rp_cumsum(x, w->n[2]);
    if (!strcmp(k, "logcumsumexp")) out[0] = rp_logcumsumexp(x, w->n[2]);
    if (!strcmp(k, "argmax")) out[0] = rp_argmax(x, w->n[2], false);
    if (is_pool(w)) out[0] = pooled(w, x);
    if (is_recurrent(w)) out[0] = recurrent(w, in);
    if (!strcmp(k, "adam")) {
        rp_optimizer_step(w->adam);
        out[0] = x;
    }
    if (!strcmp(k, "conv") || spatial_of(k) != 2) out[0] = conv(w, x, in[1]);
    if (!strcmp(k, "convres")) out[0] = rp_relu(rp_add(rp_add(rp_mul(conv(w, x, in[1]), in[3]), in[4]), in[2]));
    if (!strcmp(k, "attention")) out[0] = attention(w, in);
    if (!strcmp(k, "attentiong") || !strcmp(k, "attentiond")) {
        rp_tensor *y = attention(w, in);
        rp_grad(&y, 1, in, 3, &in[3], NULL, out);
    }
    if (!strcmp(k, "convx") || !strcmp(k, "convw")) {
        rp_tensor *y = conv(w, x, in[1]), *const wrt = in[k[4] == 'w'];
        rp_grad(&y, 1, &wrt, 1, &in[2], NULL, out);
    }
}

static size_t inputs(struct work *w, rp_tensor **in) {
    const char *k = w->kind;
    const int64_t *n = w->n;
    const double size = (double)rp_dtype_size(w->dtype);
    size_t count = 1;
    if (!strcmp(k, "permute")) {
        double all = 1;
        for (int64_t i = 0; i < n[0]; i++) all *= (double)n[1 + n[0] + i];
        in[0] = of(w, n + 1 + n[0], (size_t)n[0]);
        w->bytes = 2 * all * size;
    } else if (!strcmp(k, "addt")) {
        in[0] = of(w, RP_DIMS(n[0], n[1]));
        in[1] = of(w, RP_DIMS(n[1], n[0]));
        count = 2;
        w->bytes = 3.0 * (double)(n[0] * n[1]) * size;
    } else if (!strncmp(k, "softmax1", 8) || !strncmp(k, "channelnorm", 11)) {
        in[0] = of(w, RP_DIMS(n[0], n[1], n[2]));
        w->bytes = 2.0 * (double)(n[0] * n[1] * n[2]) * size;
        if (is_gradient(w)) in[count++] = of(w, RP_DIMS(n[0], n[1], n[2]));
    } else if (!strcmp(k, "sum")) {
        in[0] = of(w, RP_DIMS(n[0]));
        w->bytes = (double)n[0] * size;
    } else if (!strcmp(k, "cat")) {
        for (count = 0; (int64_t)count < n[0]; count++) in[count] = of(w, RP_DIMS(n[1], n[2]));
        w->bytes = 2.0 * (double)(n[0] * n[1] * n[2]) * size;
    } else if (!strcmp(k, "chain")) {
        in[0] = of(w, RP_DIMS(n[1], n[2]));
        w->bytes = 2.0 * (double)(n[1] * n[2]) * size;
    } else if (!strcmp(k, "mean023") || !strcmp(k, "nhwc")) {
        in[0] = of(w, RP_DIMS(n[0], n[1], n[2], n[3]));
        w->bytes = (k[0] == 'n' ? 2.0 : 1.0) * (double)(n[0] * n[1] * n[2] * n[3]) * size;
    } else if (!strncmp(k, "linear", 6) || !strcmp(k, "bmm")) { /* m, k, n; batch, m, k, n */
        const bool batch = k[0] == 'b';
        in[0] = batch ? of(w, RP_DIMS(n[0], n[1], n[2])) : of(w, RP_DIMS(n[0], n[1]));
        in[1] = batch ? of(w, RP_DIMS(n[0], n[2], n[3])) : of(w, RP_DIMS(n[2], n[1]));
        if (!batch) in[2] = of(w, RP_DIMS(n[2]));
        count = batch ? 2 : 3;
        w->flops = 2.0 * (double)(n[0] * n[1]) * (double)n[2] * (batch ? (double)n[3] : 1);
    } else if (!strcmp(k, "embedding") || !strcmp(k, "pick")) { /* rows and columns of the table, indices */
        in[0] = of(w, RP_DIMS(n[0], n[1]));
        in[1] = rp_randint(0, n[0], RP_DIMS(n[2]));
        count = 2;
        w->bytes = 2.0 * (double)(n[2] * n[1]) * size;
    } else if (is_pool(w)) {
        const int64_t h = pooled_side(w, n[2]), v = pooled_side(w, n[3]);
        in[0] = of(w, RP_DIMS(n[0], n[1], n[2], n[3]));
        if (is_gradient(w)) in[count++] = of(w, RP_DIMS(n[0], n[1], h, v));
        for (size_t i = 0; i < count && n[7]; i++) in[i] = channels_last(in[i]);
        w->bytes = (double)(n[0] * n[1]) * (double)(n[2] * n[3] + h * v) * size * (is_gradient(w) ? 2 : 1);
    } else if (is_recurrent(w)) {
        const int64_t rows = n[3] * (k[0] == 'l' ? 4 : k[0] == 'g' ? 3 : 1);
        rp_tensor *scale =
            rp_full(RP_DIMS(1), rp_f64(1 / sqrt((double)n[3])), RP_OPTIONS(rp_full_options, .dtype = w->dtype));
        in[0] = of(w, RP_DIMS(n[0], n[1], n[2]));
        in[1] = rp_mul(of(w, RP_DIMS(rows, n[2])), scale);
        in[2] = rp_mul(of(w, RP_DIMS(rows, n[3])), scale);
        for (count = 3; count < 5; count++) in[count] = rp_mul(of(w, RP_DIMS(rows)), scale);
        if (is_gradient(w)) in[count++] = of(w, RP_DIMS(n[0], n[1], n[3]));
        w->flops = (is_gradient(w) ? 6.0 : 2.0) * (double)(n[0] * n[1]) * (double)rows * (double)(n[2] + n[3]);
    } else if (!strcmp(k, "adam")) {
        in[0] = of(w, RP_DIMS(n[0]));
        rp_set_requires_grad(in[0], true);
        rp_set_grad(in[0], of(w, RP_DIMS(n[0])));
        w->adam = rp_adam(in, 1, 1e-3, NULL);
        w->bytes = 7.0 * (double)n[0] * size;
    } else if (!strcmp(k, "matmul")) {
        in[0] = of(w, RP_DIMS(n[0], n[1]));
        in[1] = of(w, RP_DIMS(n[1], n[2]));
        count = 2;
        w->flops = 2.0 * (double)(n[0] * n[1]) * (double)n[2];
    } else if (!strncmp(k, "attention", 9)) {
        for (int i = 0; i < 4; i++) in[i] = of(w, RP_DIMS(n[0], n[i % 3 ? 2 : 1], n[i % 3 ? 4 : 3], n[5]));
        for (int i = 0; i < 3 && k[9]; i++) rp_set_requires_grad(in[i], true);
        count = k[9] ? 4 : 3;
        w->flops = (k[9] ? 14.0 : 4.0) * (double)(n[0] * n[1] * n[3]) * (double)(n[4] * n[5]) / (n[6] ? 2 : 1);
    } else if (!strcmp(k, "conv1d")) {
        in[0] = of(w, RP_DIMS(n[0], n[1], n[2]));
        in[1] = of(w, RP_DIMS(n[3], n[1] / n[7], n[4]));
        count = 2;
        w->flops = 2.0 * (double)(n[0] * n[3] * ((n[2] + 2 * n[6] - n[4]) / n[5] + 1)) * (double)(n[1] / n[7] * n[4]);
    } else if (!strcmp(k, "conv3d")) {
        double places = 1;
        for (int i = 2; i < 5; i++) places *= (double)((n[i] + 2 * n[8] - n[6]) / n[7] + 1);
        in[0] = of(w, RP_DIMS(n[0], n[1], n[2], n[3], n[4]));
        in[1] = of(w, RP_DIMS(n[5], n[1], n[6], n[6], n[6]));
        count = 2;
        w->flops = 2.0 * (double)(n[0] * n[5]) * places * (double)(n[1] * n[6] * n[6] * n[6]);
    } else if (!strncmp(k, "conv", 4)) {
        const int64_t h = (n[2] + 2 * n[7] - n[5]) / n[6] + 1, v = (n[3] + 2 * n[7] - n[5]) / n[6] + 1;
        in[0] = of(w, RP_DIMS(n[0], n[1], n[2], n[3]));
        in[1] = of(w, RP_DIMS(n[4], n[1] / n[8], n[5], n[5]));
        in[2] = of(w, RP_DIMS(n[0], n[4], h, v));
        for (int i = 0; i < 3 && n[9]; i++) in[i] = channels_last(in[i]);
        const bool residual = !strcmp(k, "convres"); /* as a block of a residual net ends */
        for (int i = 0; i < 2 && k[4] && !residual; i++) rp_set_requires_grad(in[i], i == (k[4] == 'w'));
        for (int i = 3; i < 5; i++) in[i] = of(w, RP_DIMS(n[4], 1, 1));
        count = residual ? 5 : k[4] ? 3 : 2;
        w->flops = 2.0 * (double)(n[0] * n[4] * h * v) * (double)(n[1] / n[8] * n[5] * n[5]);
    } else {
        in[0] = of(w, RP_DIMS(n[0], n[1]));
        if (!strncmp(k, "layernorm", 9)) in[count++] = of(w, RP_DIMS(n[1]));
        if (strstr(k, "norm")) in[count++] = of(w, RP_DIMS(n[1]));
        if (is_gradient(w)) in[count++] = of(w, RP_DIMS(n[0], n[1]));
        const bool reduces = strstr(k, "rowsum") || strstr(k, "colsum") || !strcmp(k, "argmax");
        w->bytes = (is_gradient(w) ? 3.0 : reduces ? 1.0 : 2.0) * (double)(n[0] * n[1]) * size;
    }
    w->n_out = is_gradient(w) ? count - 1 : 1;
    for (size_t i = 0; i < w->n_out && is_gradient(w); i++) rp_set_requires_grad(in[i], true);
    return count;
}

struct call {
    rp_compiled *f;
    rp_tensor *in[64];
    size_t n_in, n_out;
};

static rp_status run(void *ctx) {
    struct call *c = ctx;
    rp_tensor *out[MOST] = {0};
    return rp_call(c->f, c->in, c->n_in, out, c->n_out);
}

/* Seconds: of the processor, where one thread does all. */
static double clock_of(bool alone) {
    struct timespec t;
    clock_gettime(alone ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static rp_status fastest(struct call *c, struct cli_times *times) {
    const bool alone = rp_num_threads() == 1;
    const double end = cli_now() + 2 * seconds;
    double least = 1e9;
    do {
        rp_scope scope = rp_scope_begin();
        const double begin = clock_of(alone);
        const rp_status status = run(c);
        const double took = clock_of(alone) - begin;
        rp_scope_end(scope, NULL, 0);
        if (status) return status;
        if (took < least) least = took;
    } while (cli_now() < end);
    times->period_us = 1e6 * least;
    return RP_OK;
}

/* Does a compiled function call cuDNN? */
static bool calls_cudnn(rp_compiled *f) {
    rp_explain_entry entry;
    bool calls = false;
    for (size_t i = 0; i < rp_explain_count(f) && !rp_explain_get(f, i, &entry); i++)
        calls = calls || strstr(entry.message, "cudnn");
    return calls;
}

/* us of the work's calls. */
static rp_status measure_as(struct work *w, struct call *c, rp_device device, rp_numbers numbers, double *us) {
    const bool cpu = device.type == RP_DEVICE_CPU;
    const rp_fn fn = {body, w, sizeof *w, w->kind};
    struct cli_times times = {0};
    c->f = w->adam ? rp_plain(fn)
                   : rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true, .wait = cpu,
                                               .numbers = numbers));
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    for (int i = 0; i < 3 && !status; i++) status = cli_once(run, c);
    if (!status) status = cpu ? fastest(c, &times) : cli_measure(run, c, device, seconds, &times);
    *us = times.period_us;
    if (!w->adam && numbers == RP_NUMBERS_DEFAULT) w->cudnn = calls_cudnn(c->f);
    rp_compiled_release(c->f);
    return status;
}

/* us with grouped C and without, in turns. */
static rp_status measure_groups(struct work *w, struct call *c, rp_device device, double us[2]) {
    enum { ROUNDS = 3 };
    rp_status status = RP_OK;
    us[0] = us[1] = 1e12;
    for (int k = 0; k < 2 * ROUNDS && !status; k++) {
        double took = 0;
        rp__interp_groups = k % 2 == 0;
        status = measure_as(w, c, device, RP_NUMBERS_DEFAULT, &took);
        if (took < us[k % 2]) us[k % 2] = took;
    }
    rp__interp_groups = true;
    return status;
}

static bool compares_groups;
static double log_ratios; /* of those compared */
static long n_ratios;

/* name, us, rate, and us under RP_NUMBERS_FAST */
static void measure(struct work *w, rp_device device) {
    double us = 0, fast = 0, groups[2];
    struct call c = {0};
    rp_scope scope = rp_scope_begin();
    c.n_in = inputs(w, c.in);
    (void)rp_set_float32_matmul_allow_tf32(!strcmp(w->type, "tf32"));
    (void)rp_set_float32_conv_allow_tf32(!strcmp(w->type, "tf32"));
    const bool attends = !strncmp(w->kind, "attention", 9) && w->kind[9], cpu = device.type == RP_DEVICE_CPU;
    const bool grad =
        rp_set_grad_enabled(is_gradient(w) || !strcmp(w->kind, "convx") || !strcmp(w->kind, "convw") || attends);
    c.n_out = attends ? 3 : w->n_out;
    rp_status status =
        compares_groups ? measure_groups(w, &c, device, groups) : measure_as(w, &c, device, RP_NUMBERS_DEFAULT, &us);
    fast = us;
    if (!status && !w->adam && !compares_groups) status = measure_as(w, &c, device, RP_NUMBERS_FAST, &fast);
    if (status) {
        char reason[300];
        snprintf(reason, sizeof reason, "%s", rp_error_message());
        reason[strcspn(reason, "\n\t")] = 0;
        rp_error_take();
        printf("%s\t%s\n", w->name, reason);
    } else if (compares_groups) {
        printf("%s\t%.3f\t%.3f\t%.2f\n", w->name, groups[0], groups[1], groups[1] / groups[0]);
        log_ratios += log(groups[1] / groups[0]);
        n_ratios++;
    } else {
        const double rate = (w->flops > 0 ? w->flops : w->bytes) / us * 1e-3;
        const char *whose = rp__cuda_dnn_use == RP__DNN_BY_FAMILY ? "" : w->cudnn ? "\tcuDNN" : "\tours";
        printf("%s\t%.3f\t%.1f %s\t%.3f%s\n", w->name, us, w->flops > 0 && !cpu ? rate * 1e-3 : rate,
               !(w->flops > 0) ? "GB/s"
               : cpu           ? "GFLOP/s"
                               : "TFLOP/s",
               fast, whose);
    }
    fflush(stdout);
    rp_set_grad_enabled(grad);
    rp_optimizer_release(w->adam);
    rp_scope_end(scope, NULL, 0);
    rp_empty_cache(device);
}

int main(int argc, char **argv) {
    rp_device device = rp_cuda(0);
    char *conv_tiles = NULL;
    compares_groups = argc > 1 && !strcmp(argv[1], "--groups");
    if (argc > 1 && (compares_groups || !strcmp(argv[1], "--cpu"))) {
        device = rp_cpu();
        argc--, argv++;
    }
    if (argc > 2 && !strcmp(argv[1], "--tile")) {
        rp__cuda_product_tile = (unsigned)strtoul(argv[2], NULL, 10);
        argc -= 2, argv += 2;
    }
    if (argc > 2 && !strcmp(argv[1], "--conv-tile")) {
        conv_tiles = argv[2];
        seconds = 0.02;
        argc -= 2, argv += 2;
    }
    if (argc > 2 && !strcmp(argv[1], "--cudnn")) {
        rp__cuda_dnn_use = strcmp(argv[2], "0") ? RP__DNN_ALWAYS : RP__DNN_NEVER;
        argc -= 2, argv += 2;
    }
    FILE *file = argc < 2 ? NULL : strcmp(argv[1], "-") ? fopen(argv[1], "r") : stdin;
    if (!file || !rp_device_available(device) || rp_set_default_device(device)) {
        fprintf(stderr, "gpu_kernels: %s\n", file ? "there is no CUDA device" : "names no file of works");
        return 1;
    }
    const long first = argc > 2 ? strtol(argv[2], NULL, 10) : 0, count = argc > 3 ? strtol(argv[3], NULL, 10) : 1000;
    char line[200];
    long number = 0;
    rp_manual_seed(1);
    while (fgets(line, sizeof line, file)) {
        struct work w;
        int used = 0;
        memset(&w, 0, sizeof w);
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#' || sscanf(line, "%23s %7s%n", w.kind, w.type, &used) != 2) continue;
        if (number++ < first || number > first + count) continue;
        snprintf(w.name, sizeof w.name, "%s", line);
        w.dtype = !strcmp(w.type, "f16")    ? RP_F16
                  : !strcmp(w.type, "bf16") ? RP_BF16
                  : !strcmp(w.type, "f64")  ? RP_F64
                                            : RP_F32;
        char *at = line + used;
        for (int i = 0; i < MOST && *at; i++) w.n[i] = strtoll(at, &at, 10);
        char *next = conv_tiles;
        do {
            if (next) {
                rp__cuda_conv_tile = (unsigned)strtoul(next, &next, 10);
                if (strchr(conv_tiles, ',')) printf("%u\t", rp__cuda_conv_tile);
            }
            measure(&w, device);
        } while (next && *next++ == ',');
    }
    fclose(file);
    if (n_ratios) printf("geometric mean of %ld: %.2f\n", n_ratios, exp(log_ratios / (double)n_ratios));
    return rp_failed();
}
