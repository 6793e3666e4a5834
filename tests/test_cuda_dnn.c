/* Convolutions by cuDNN on the CUDA device: against the CPU, with the same bits eagerly, compiled and captured; which ones are its, and what
   becomes of them without it. The emulated library's list begins with engines that are not to be taken, each of which leaves wrong
   results. Cases that need a process in which nothing was opened yet are children of this one.
   ctest: labels=cuda timeout=600 cost=20 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>

#include "core/alloc.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/libcudnn.h"
#include "support/cuda.h"
#include "tensor/tensor.h"

#define OK(call) check((call), __LINE__)
static void check(rp_status status, int line) {
    if (status != RP_OK) fail_msg("line %d: %s", line, rp_error_message());
}

/* ---- works */

typedef struct shape {
    rp_dtype dtype;
    uint8_t spatial, last, groups; /* last: channels innermost, of x, of w */
    uint8_t batch, in, out;
    uint8_t size[3], window[3], step[3], padding[3], dilation[3];
} shape;

static const shape shapes[] = {
    {RP_F32, 2, 0, 1, 2, 6, 8, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {RP_F32, 2, 3, 1, 2, 4, 6, {8, 8}, {3, 3}, {2, 1}, {1, 0}, {1, 2}},
    {RP_F32, 2, 1, 2, 2, 4, 6, {6, 5}, {3, 2}, {1, 2}, {2, 1}, {1, 1}}, /* x and w each another way */
    {RP_F32, 1, 0, 1, 3, 5, 4, {20}, {5}, {2}, {2}, {2}},
    {RP_F32, 3, 0, 1, 1, 3, 4, {5, 4, 6}, {2, 3, 2}, {1, 2, 1}, {1, 1, 0}, {1, 1, 2}},
    {RP_F32, 2, 0, 1, 1, 3, 4, {5, 5}, {1, 1}, {1, 1}, {0, 0}, {1, 1}}, /* a window that lies either way */
    {RP_F32, 2, 3, 4, 2, 4, 4, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, /* a channel a group */
    {RP_F16, 2, 3, 4, 2, 16, 8, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {RP_BF16, 2, 0, 6, 2, 6, 6, {8, 9}, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {RP_F16, 3, 3, 1, 2, 8, 8, {4, 4, 4}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
    {RP_BF16, 1, 0, 1, 2, 8, 8, {33}, {3}, {1}, {1}, {1}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static rp_tensor *turned(rp_tensor *t, unsigned spatial) {
    int64_t to[5] = {0}, back[5] = {0};
    for (unsigned k = 0; k < spatial; k++) to[1 + k] = 2 + k, back[2 + k] = 1 + k;
    to[1 + spatial] = 1;
    back[1] = 1 + spatial;
    return rp_permute(rp_contiguous(rp_permute(t, to, spatial + 2)), back, spatial + 2);
}

static int64_t place(const shape *s, unsigned k) {
    return (s->size[k] + 2 * s->padding[k] - s->dilation[k] * (s->window[k] - 1) - 1) / s->step[k] + 1;
}

/* x, w and the tangent of the result: small whole numbers, of which sums are exact in any order. */
static void fill(const shape *s, rp_device device, rp_tensor **in) {
    const unsigned n = s->spatial + 2u;
    int64_t size[3][5] = {{s->batch, s->in}, {s->out, s->in / s->groups}, {s->batch, s->out}};
    for (unsigned k = 0; k < s->spatial; k++)
        size[0][2 + k] = s->size[k], size[1][2 + k] = s->window[k], size[2][2 + k] = place(s, k);
    const rp_device cpu = rp_cpu();
    OK(rp_manual_seed(11));
    for (unsigned k = 0; k < 3; k++) {
        in[k] = rp_to_dtype(
            rp_sub_scalar(rp_randint(0, 7, size[k], n, RP_OPTIONS(rp_randint_options, .device = &cpu)), rp_i64(3)),
            s->dtype);
        if (s->last >> (k & 1) & 1) in[k] = turned(in[k], s->spatial);
        in[k] = rp_to_device(in[k], device, false);
        if (k < 2) OK(rp_set_requires_grad(in[k], true));
    }
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

static rp_tensor *conv(const shape *s, rp_tensor *x, rp_tensor *w) {
    int64_t step[3], padding[3], dilation[3];
    for (unsigned k = 0; k < 3; k++) step[k] = s->step[k], padding[k] = s->padding[k], dilation[k] = s->dilation[k];
    if (s->spatial == 1) return rp_conv1d(x, w, NULL, step, 1, padding, 1, dilation, 1, s->groups);
    if (s->spatial == 2) return rp_conv2d(x, w, NULL, step, 2, padding, 2, dilation, 2, s->groups);
    return rp_conv3d(x, w, NULL, step, 3, padding, 3, dilation, 3, s->groups);
}

/* The result and both gradients, with something behind the result that a kernel of ours would take in. */
static void work(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const shape *s = *(const shape *const *)ctx;
    (void)n_in, (void)n_out;
    rp_tensor *y = conv(s, in[0], in[1]);
    out[0] = rp_relu(y);
    rp_grad(&y, 1, in, 2, &in[2], NULL, &out[1]);
}

static void same(rp_tensor *a, rp_tensor *b, const char *what, int n) {
    if (rp_failed()) fail_msg("%s", rp_error_message());
    const size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    unsigned char *x = malloc(bytes), *y = malloc(bytes);
    assert_int_equal(rp_numel(a), rp_numel(b));
    OK(rp_to_host(a, x, bytes));
    OK(rp_to_host(b, y, bytes));
    if (memcmp(x, y, bytes)) fail_msg("%s, shape %d: not the same bits", what, n);
    free(x);
    free(y);
}

/* Within the type's tolerance; exact where every engine adds up plainly. */
static void near(rp_tensor *got, rp_tensor *want, const char *what, int n) {
    if (!test_cuda_is_real()) {
        same(got, want, what, n);
        return;
    }
    const double slack = rp_dtype_of(want) == RP_F32 ? 1e-5 : rp_dtype_of(want) == RP_F16 ? 2e-3 : 2e-2;
    rp_tensor *a = rp_to_dtype(rp_to_device(got, rp_cpu(), false), RP_F64), *b = rp_to_dtype(want, RP_F64);
    rp_tensor *most = rp_amax(rp_abs(rp_sub(a, b))), *of = rp_amax(rp_abs(b));
    double d = 0, m = 0;
    OK(rp_to_host(most, &d, sizeof d));
    OK(rp_to_host(of, &m, sizeof m));
    if (!(d <= slack * m)) fail_msg("%s, shape %d: %g of %g", what, n, d, m);
}

static bool names_cudnn(rp_compiled *f) {
    rp_explain_entry e;
    bool named = false;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        OK(rp_explain_get(f, k, &e));
        named = named || strstr(e.message, "cudnnConvolution");
    }
    return named;
}

/* Compiled and captured it gives the same bits. Is what is compiled cuDNN's? */
static bool played(rp_body *body, const shape *s, rp_tensor *const *in, rp_tensor *const *want, size_t n_out, int n) {
    rp_tensor *got[3];
    rp_compiled *f = rp_compile((rp_fn){body, &s, sizeof s, "played"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (int call = 0; call < 4; call++) {
        OK(rp_call(f, in, 3, got, n_out));
        for (size_t k = 0; k < n_out; k++) same(got[k], want[k], "compiled", n);
    }
    const bool named = names_cudnn(f);
    rp_compiled_release(f);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, rp_cuda(0), NULL));
    body(&s, in, 3, got, n_out);
    OK(rp_graph_end(g));
    for (int replay = 0; replay < 2; replay++) {
        OK(rp_graph_replay(g));
        for (size_t k = 0; k < n_out; k++) same(got[k], want[k], "captured", n);
    }
    rp_graph_release(g);
    return named;
}

/* Eager, compiled and captured, with the same bits, which are the CPU's. */
static void test_works(void **state) {
    (void)state;
    static const char *const whats[3] = {"result", "input gradient", "weight gradient"};
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    for (int n = 0; n < SHAPES; n++) {
        const shape *s = &shapes[n];
        rp_scope scope = rp_scope_begin();
        rp_tensor *on_cpu[3], *in[3], *want[3], *got[3], *again[3];
        fill(s, rp_cpu(), on_cpu);
        fill(s, rp_cuda(0), in);
        work(&s, on_cpu, 3, want, 3);
        work(&s, in, 3, got, 3);
        for (int k = 0; k < 3; k++) near(got[k], want[k], whats[k], n);
        if (!played(work, s, in, got, 3, n)) fail_msg("shape %d is not cuDNN's", n);
        rp__cuda_dnn_use = RP__DNN_NEVER; /* ours, of which nothing else is compared with here */
        work(&s, in, 3, again, 3);
        rp__cuda_dnn_use = RP__DNN_ALWAYS;
        for (int k = 0; k < 3; k++) near(again[k], want[k], "ours", n);
        rp_scope_end(scope, NULL, 0);
    }
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
}

/* What is not a number, and infinities, reach what they are a part of. */
static void test_not_finite(void **state) {
    (void)state;
    const shape *s = &shapes[0];
    rp_scope scope = rp_scope_begin();
    static const float specials[] = {NAN, INFINITY};
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    for (int k = 0; k < 2; k++) {
        rp_tensor *in[3], *on_cpu[3];
        fill(s, rp_cpu(), on_cpu);
        rp_tensor *special = rp_to_device(rp_from_data(&specials[k], RP_DIMS(1), RP_F32), rp_cpu(), false);
        const bool grad = rp_set_grad_enabled(false);
        rp_copy_(rp_view(rp_slice(rp_view(on_cpu[0], RP_DIMS(-1)), 0, 100, 101, 1), RP_DIMS(1)), special);
        rp_tensor *want = conv(s, on_cpu[0], on_cpu[1]);
        in[0] = rp_to_device(on_cpu[0], rp_cuda(0), false);
        in[1] = rp_to_device(on_cpu[1], rp_cuda(0), false);
        rp_tensor *got = rp_to_device(conv(s, in[0], in[1]), rp_cpu(), false);
        rp_set_grad_enabled(grad);
        if (rp_failed()) fail_msg("%s", rp_error_message());
        const int64_t n = rp_numel(want);
        float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
        OK(rp_to_host(want, a, (size_t)n * sizeof *a));
        OK(rp_to_host(got, b, (size_t)n * sizeof *b));
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(a[i])) assert_false(isfinite(b[i]));
        free(a);
        free(b);
    }
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
    rp_scope_end(scope, NULL, 0);
}

/* ---- whose a convolution is */

struct large {
    rp_dtype dtype;
    bool last;
    int64_t n, in, side, out, window, step, groups;
};

enum { FORWARD, INPUT, WEIGHT };

/* The row that takes it is cuDNN's? And which operands are to be copied. */
static bool takes_turned(unsigned kind, rp_dtype dtype, bool last, int64_t n, int64_t in, int64_t side, int64_t out,
                         int64_t window, int64_t step, int64_t groups, uintptr_t base, rp__turned *turned) {
    const int64_t padding = window / 2, places = (side + 2 * padding - window) / step + 1;
    const int64_t size[3][4] = {{n, out, places, places}, {n, in, side, side}, {out, in / groups, window, window}};
    static const unsigned order[3][3] = {{0, 1, 2}, {1, 0, 2}, {2, 0, 1}};
    rp__operand o[3];
    rp__library_call call = {.op = "test", .conv = {.spatial = 2, .groups = groups}};
    memset(o, 0, sizeof o);
    for (unsigned d = 0; d < 2; d++)
        call.conv.stride[d] = step, call.conv.padding[d] = padding, call.conv.dilation[d] = 1;
    for (unsigned k = 0; k < 3; k++) {
        const int64_t *of = size[order[kind][k]];
        o[k].dtype = dtype;
        o[k].ndim = 4;
        o[k].base = (void *)base;
        memcpy(o[k].size, of, 4 * sizeof *of);
        int64_t stride = 1;
        for (unsigned d = 4; d-- > 0; stride *= of[d]) o[k].stride[d] = stride;
        if (last) rp__channels_innermost(&o[k], o[k].stride);
    }
    const rp__problem p = {
        rp__device_get(rp_cuda(0)), RP__LIB_CONV_FORWARD + kind, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
    size_t workspace;
    *turned = (rp__turned){0};
    OK(p.device->ops->library->turned(p.device, p.op, o, 3, &call, turned));
    return rp__template_pick(rp__cuda_templates, RP__CUDA_TEMPLATES, &p, SIZE_MAX, RP__ORDER_ELSEWHERE, &workspace) ==
           &rp__cuda_dnn_row.row;
}

/* Whatever way operands lie. */
static bool takes(unsigned kind, rp_dtype dtype, bool last, int64_t n, int64_t in, int64_t side, int64_t out,
                  int64_t window, int64_t step, int64_t groups, uintptr_t base) {
    rp__turned turned;
    const bool is = takes_turned(kind, dtype, last, n, in, side, out, window, step, groups, base, &turned);
    for (int k = 0; k < 4; k++)
        assert_int_equal(
            takes_turned(kind, dtype, k % 2, n, in, side, out, window, step, groups, base + 2 * (k / 2u), &turned), is);
    return is;
}

static void test_whose(void **state) {
    (void)state;
    /* small ones, and what follows a result in its kernel, stay ours */
    assert_false(takes(WEIGHT, RP_F16, true, 1, 16, 8, 16, 3, 1, 1, 0));
    assert_false(takes(FORWARD, RP_F16, true, 64, 64, 56, 64, 3, 1, 1, 0));
    assert_true(takes(WEIGHT, RP_BF16, true, 64, 128, 28, 128, 3, 1, 1, 0));
    assert_true(takes(WEIGHT, RP_BF16, false, 32, 256, 14, 512, 3, 2, 1, 0));
    assert_true(takes(WEIGHT, RP_F16, true, 8, 256, 14, 256, 3, 1, 1, 0));
    assert_false(takes(WEIGHT, RP_F16, true, 64, 3, 224, 64, 7, 2, 1, 0));
    assert_false(takes(WEIGHT, RP_F32, false, 4, 512, 7, 512, 3, 1, 1, 0));
    assert_false(takes(WEIGHT, RP_F64, true, 64, 128, 28, 128, 3, 1, 1, 0));
    /* groups: of some channels, and of one, where there is more to compute than to turn */
    assert_true(takes(WEIGHT, RP_F16, true, 64, 512, 14, 512, 3, 1, 32, 0));
    assert_true(takes(WEIGHT, RP_F16, false, 64, 512, 14, 512, 3, 1, 32, 0));
    assert_true(takes(WEIGHT, RP_F16, true, 64, 1024, 14, 1024, 3, 1, 32, 0));
    assert_false(takes(WEIGHT, RP_F16, true, 64, 256, 28, 256, 3, 1, 32, 0));
    assert_false(takes(WEIGHT, RP_F16, true, 64, 128, 56, 128, 3, 1, 32, 0));
    assert_true(takes(WEIGHT, RP_BF16, true, 32, 96, 56, 96, 7, 1, 96, 0));
    assert_false(takes(WEIGHT, RP_BF16, false, 32, 96, 56, 96, 3, 1, 96, 0));
    assert_false(takes(WEIGHT, RP_F32, true, 32, 96, 56, 96, 7, 1, 96, 0));
    /* f32 by transforms, where what they save is more than what they move */
    assert_true(takes(WEIGHT, RP_F32, false, 32, 256, 14, 256, 3, 1, 1, 0));
    assert_true(takes(WEIGHT, RP_F32, true, 32, 512, 7, 512, 3, 1, 1, 0));
    assert_false(takes(WEIGHT, RP_F32, false, 32, 64, 56, 64, 3, 1, 1, 0));
    assert_false(takes(WEIGHT, RP_F32, false, 32, 256, 14, 256, 3, 2, 1, 0));
    assert_false(takes(WEIGHT, RP_F32, false, 32, 256, 14, 256, 1, 1, 1, 0));
    assert_false(takes(FORWARD, RP_F32, false, 32, 256, 14, 256, 3, 1, 1, 0));
    assert_false(takes(INPUT, RP_F32, false, 32, 256, 14, 256, 3, 1, 1, 0));
    /* forced: what it cannot do all the same */
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    assert_true(takes(FORWARD, RP_F32, false, 1, 4, 8, 4, 3, 1, 1, 0));
    assert_true(takes(FORWARD, RP_F32, false, 1, 4, 8, 4, 3, 1, 1, 4096));
    assert_true(takes(FORWARD, RP_F32, false, 1, 4, 8, 4, 3, 1, 1, 4100));
    assert_false(takes(FORWARD, RP_F64, false, 1, 4, 8, 4, 3, 1, 1, 0));
    assert_false(takes(FORWARD, RP_F32, false, 0, 4, 8, 4, 3, 1, 1, 0));
    assert_false(takes(INPUT, RP_F32, false, INT64_C(1) << 24, 4, 8, 4, 3, 1, 1, 0));
    rp__cuda_dnn_use = RP__DNN_NEVER;
    assert_false(takes(WEIGHT, RP_BF16, true, 64, 128, 28, 128, 3, 1, 1, 0));
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
    /* what is turned: all that lie otherwise, or at other addresses */
    rp__turned turned;
    assert_true(takes_turned(WEIGHT, RP_BF16, true, 64, 128, 28, 128, 3, 1, 1, 0, &turned));
    assert_int_equal(turned.channels | turned.rows, 0);
    assert_true(takes_turned(WEIGHT, RP_BF16, false, 64, 128, 28, 128, 3, 1, 1, 0, &turned));
    assert_int_equal(turned.channels, 7);
    assert_true(takes_turned(WEIGHT, RP_F32, false, 32, 256, 14, 256, 3, 1, 1, 0, &turned));
    assert_int_equal(turned.channels | turned.rows, 0);
    assert_true(takes_turned(WEIGHT, RP_F32, true, 32, 256, 14, 256, 3, 1, 1, 0, &turned));
    assert_int_equal(turned.rows, 7);
    assert_true(takes_turned(WEIGHT, RP_F32, false, 32, 256, 14, 256, 3, 1, 1, 4, &turned));
    assert_int_equal(turned.rows, 7);
}

/* More problems than plans are kept: each is cuDNN's, before and after it made room for others. */
static void test_many(void **state) {
    (void)state;
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    rp__cuda_dnn_plans = 3;
    for (int round = 0; round < 2; round++)
        for (int64_t n = 1; n <= 8; n++) assert_true(takes(FORWARD, RP_F32, false, n, 4, 8, 4, 3, 1, 1, 0));
    rp__cuda_dnn_plans = 0;
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
}

/* Gradients have the same bits for a tangent that lies any way: by rows, channels innermost, expanded, between others, and at an odd address. */
static void gradients(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const shape *s = *(const shape *const *)ctx;
    const bool grad = rp_set_grad_enabled(true);
    (void)n_in, (void)n_out;
    rp_tensor *y = conv(s, in[0], in[1]);
    rp_grad(&y, 1, in, 2, &in[2], NULL, out);
    rp_set_grad_enabled(grad);
}

static rp_tensor *lying(rp_tensor *t, int way) {
    rp_tensor *room, *pair[2] = {t, rp_neg(t)}, *row[2];
    switch (way) {
    case 1: return turned(t, 2);
    case 2: /* each other element of the last dim */ room = rp_stack(pair, 2, -1); return rp_select(room, -1, 0);
    case 3: /* behind one element */
        row[1] = rp_view(t, RP_DIMS(-1));
        row[0] = rp_slice(row[1], 0, 0, 1, 1);
        room = rp_cat(row, 2, 0);
        return rp_view(rp_slice(room, 0, 1, rp_numel(room), 1),
                       RP_DIMS(rp_size(t, 0), rp_size(t, 1), rp_size(t, 2), rp_size(t, 3)));
    default: return t;
    }
}

static void test_lying(void **state) {
    (void)state;
    static const shape cases[] = {
        {RP_F32, 2, 0, 1, 2, 6, 8, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
        {RP_F16, 2, 0, 2, 2, 16, 16, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
        {RP_BF16, 2, 3, 8, 2, 8, 8, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    };
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++) {
        const shape *s = &cases[n];
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[3], *want[2], *got[2];
        fill(s, rp_cuda(0), in);
        OK(rp_set_default_device(rp_cuda(0)));
        OK(rp_manual_seed(5));
        for (int k = 0; k < 2; k++) /* sums in another order have other bits */
            in[k] = rp_to_dtype(
                rp_randn(RP_DIMS(rp_size(in[k], 0), rp_size(in[k], 1), rp_size(in[k], 2), rp_size(in[k], 3))),
                s->dtype);
        rp_tensor *tangent = rp_to_dtype(
            rp_randn(RP_DIMS(rp_size(in[2], 0), rp_size(in[2], 1), rp_size(in[2], 2), rp_size(in[2], 3))), s->dtype);
        for (int k = 0; k < 2; k++) OK(rp_set_requires_grad(in[k], true));
        for (int way = 0; way < 5; way++) {
            const bool expanded = way == 4;
            rp_tensor *one = rp_view(rp_slice(rp_view(tangent, RP_DIMS(-1)), 0, 0, 1, 1), RP_DIMS(1, 1, 1, 1)),
                      *wide = rp_expand(one, RP_DIMS(rp_size(tangent, 0), rp_size(tangent, 1), rp_size(tangent, 2),
                                                     rp_size(tangent, 3)));
            if (way == 0 || expanded) {
                in[2] = expanded ? rp_contiguous(wide) : tangent;
                gradients(&s, in, 3, want, 2);
            }
            in[2] = expanded ? wide : lying(tangent, way);
            gradients(&s, in, 3, got, 2);
            for (int k = 0; k < 2; k++) same(got[k], want[k], "eager", 10 * (int)n + way);
            (void)played(gradients, s, in, want, 2, 10 * (int)n + way);
        }
        OK(rp_set_default_device(rp_cpu()));
        rp_scope_end(scope, NULL, 0);
    }
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
}

/* In the tangent of a weight gradient: what is not a number, an infinity, and a finite number that transforms may bring to one. They stay in the
   rows of their channel, and the first two are not lost. */
static void test_not_finite_tangent(void **state) {
    (void)state;
    static const float specials[] = {NAN, INFINITY, 1e37f};
    const shape *s = &shapes[0];
    rp_scope scope = rp_scope_begin();
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    for (int k = 0; k < 3; k++) {
        rp_tensor *in[3], *want[2], *got[2];
        fill(s, rp_cpu(), in);
        rp_copy_(rp_view(rp_slice(rp_view(in[2], RP_DIMS(-1)), 0, 100, 101, 1), RP_DIMS(1)),
                 rp_from_data(&specials[k], RP_DIMS(1), RP_F32));
        gradients(&s, in, 3, want, 2);
        for (int i = 0; i < 3; i++) in[i] = rp_to_device(rp_detach(in[i]), rp_cuda(0), false);
        for (int i = 0; i < 2; i++) OK(rp_set_requires_grad(in[i], true));
        gradients(&s, in, 3, got, 2);
        if (rp_failed()) fail_msg("%s", rp_error_message());
        const int64_t n = rp_numel(want[1]), row = n / s->out;
        const int64_t own = 100 / (place(s, 0) * place(s, 1)) % s->out;
        float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
        OK(rp_to_host(want[1], a, (size_t)n * sizeof *a));
        OK(rp_to_host(got[1], b, (size_t)n * sizeof *b));
        for (int64_t i = 0; i < n; i++) {
            if (!isfinite(a[i])) assert_false(isfinite(b[i]));
            if (i / row != own) assert_true(fabsf(a[i] - b[i]) <= 1e-3f * (1 + fabsf(a[i])));
        }
        free(a);
        free(b);
    }
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
    rp_scope_end(scope, NULL, 0);
}

/* Large ones of each family on a GPU: cuDNN's eagerly and compiled with the same bits, and beside ours. */
static void weight_gradient(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct large *l = ctx;
    const bool grad = rp_set_grad_enabled(true);
    (void)n_in, (void)n_out;
    rp_tensor *y = rp_conv2d(in[0], in[1], NULL, RP_DIMS(l->step, l->step), RP_DIMS(l->window / 2, l->window / 2),
                             RP_DIMS(1, 1), l->groups);
    rp_grad(&y, 1, &in[1], 1, &in[2], NULL, out);
    rp_set_grad_enabled(grad);
}

static double largest(rp_tensor *t) {
    float most = 0;
    OK(rp_to_host(rp_amax(rp_abs(rp_to_dtype(t, RP_F32))), &most, sizeof most));
    return (double)most;
}

static void test_large(void **state) {
    static const struct large cases[] = {
        {RP_F32, false, 32, 256, 14, 256, 3, 1, 1},  {RP_F32, true, 32, 512, 7, 512, 3, 1, 1},
        {RP_F32, false, 32, 64, 28, 128, 3, 1, 1},   {RP_F16, true, 64, 64, 56, 64, 3, 1, 1},
        {RP_BF16, false, 64, 128, 28, 128, 3, 1, 1}, {RP_F16, true, 32, 256, 14, 512, 3, 2, 1},
        {RP_F16, true, 64, 512, 14, 512, 3, 1, 32},  {RP_F16, true, 64, 256, 28, 256, 3, 1, 32},
        {RP_BF16, true, 32, 96, 56, 96, 7, 1, 96},   {RP_F16, true, 64, 144, 56, 144, 3, 1, 144},
    };
    (void)state;
    if (!test_cuda_is_real() || !rp__libcudnn_get()) skip();
    OK(rp_set_default_device(rp_cuda(0)));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct large l = cases[k];
        const int64_t places = (l.side + l.window / 2 * 2 - l.window) / l.step + 1;
        rp_scope scope = rp_scope_begin();
        OK(rp_manual_seed(7));
        rp_tensor *in[3] = {rp_randn(RP_DIMS(l.n, l.in, l.side, l.side)),
                            rp_randn(RP_DIMS(l.out, l.in / l.groups, l.window, l.window)),
                            rp_randn(RP_DIMS(l.n, l.out, places, places))},
                  *ours, *got, *again;
        for (int i = 0; i < 3; i++) {
            in[i] = rp_to_dtype(in[i], l.dtype);
            if (l.last) in[i] = turned(in[i], 2);
        }
        OK(rp_set_requires_grad(in[1], true));
        rp__cuda_dnn_use = RP__DNN_NEVER;
        weight_gradient(&l, in, 3, &ours, 1);
        rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
        weight_gradient(&l, in, 3, &got, 1);
        rp_tensor *other[3] = {in[0], in[1], l.last ? rp_contiguous(in[2]) : turned(in[2], 2)};
        weight_gradient(&l, other, 3, &again, 1);
        same(again, got, "another way of lying", (int)k);
        rp_compiled *f = rp_compile((rp_fn){weight_gradient, &l, sizeof l, "weight gradient"},
                                    RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        for (int call = 0; call < 3; call++) {
            OK(rp_call(f, in, 3, &again, 1));
            same(again, got, "compiled", (int)k);
        }
        /* Of f32 beside the sum of absolute products, which bounds what roundings do: tiles of 4 x 4 places multiply it by some tens. Of others
           results are rounded: one of their last digits. */
        rp_tensor *absolute[3] = {rp_abs(in[0]), in[1], rp_abs(in[2])}, *sums;
        rp__cuda_dnn_use = RP__DNN_NEVER;
        weight_gradient(&l, absolute, 3, &sums, 1);
        rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
        const bool named = names_cudnn(f), f32 = l.dtype == RP_F32;
        const double part = largest(rp_sub(rp_to_dtype(got, RP_F32), rp_to_dtype(ours, RP_F32))) /
                            largest(f32 ? sums : ours),
                     slack = f32                 ? 4e-6
                             : l.dtype == RP_F16 ? 2e-3
                                                 : 1.6e-2;
        print_message("case %zu: %s, %.2e of the largest %s beside ours\n", k, named ? "cuDNN" : "ours", part,
                      f32 ? "sum of absolute products" : "value");
        assert_true(part <= slack);
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
    }
    OK(rp_set_default_device(rp_cpu()));
}

/* ---- threads */

static void *run_thread(void *arg) {
    rp_scope scope = rp_scope_begin();
    rp_tensor **in = arg, *out[3];
    const shape *s = &shapes[0];
    rp_stream *stream = rp_stream_new(rp_cuda(0));
    rp_set_current_stream(stream);
    bool fine = true;
    for (int k = 0; k < 8 && fine; k++) {
        work(&s, in, 3, out, 3);
        for (int i = 0; i < 3; i++) {
            rp_tensor *equal = rp_equal(out[i], in[3 + i]);
            bool is = false;
            fine = fine && rp_to_host(equal, &is, sizeof is) == RP_OK && is;
        }
    }
    (void)rp_stream_synchronize(stream);
    rp_stream_release(stream);
    fine = fine && !rp_failed();
    rp_scope_end(scope, NULL, 0);
    return fine ? arg : NULL;
}

static void test_threads(void **state) {
    (void)state;
    const shape *s = &shapes[0];
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[6];
    pthread_t threads[2];
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    fill(s, rp_cuda(0), in);
    work(&s, in, 3, in + 3, 3);
    OK(rp_synchronize(rp_cuda(0)));
    for (int k = 0; k < 2; k++) assert_int_equal(pthread_create(&threads[k], NULL, run_thread, in), 0);
    for (int k = 0; k < 2; k++) {
        void *fine = NULL;
        assert_int_equal(pthread_join(threads[k], &fine), 0);
        assert_non_null(fine);
    }
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
    rp_scope_end(scope, NULL, 0);
}

/* Every allocation of a first call fails once: a status, no leak, and the call then works. */
static void test_no_memory(void **state) {
    (void)state;
    const shape *s = &shapes[3];
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[3];
    fill(s, rp_cuda(0), in);
    const bool grad = rp_set_grad_enabled(false);
    for (uint64_t n = 1; n <= 120; n++) {
        rp_scope inner = rp_scope_begin();
        rp__alloc_fail_at(n);
        (void)conv(s, in[0], in[1]);
        rp__alloc_fail_at(0);
        if (rp_failed()) assert_int_equal(rp_error_status(), RP_ERROR_OUT_OF_MEMORY);
        rp_error_take();
        rp_scope_end(inner, NULL, 0);
    }
    (void)conv(s, in[0], in[1]);
    if (rp_failed()) fail_msg("%s", rp_error_message());
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY;
}

/* ---- other libraries, in processes of their own */

typedef struct other {
    const char *variable, *value, *report; /* what the library's report says */
    rp_status status;                      /* of a convolution that is to be cuDNN's */
    const char *error;
} other;

/* Memory that is not there is an error, and nothing is remembered of it. */
static int run_no_memory(const char *call) {
    const shape *s = &shapes[0];
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[3];
    fill(s, rp_cuda(0), in);
    if (setenv("CUDASIM_CUDNN_NO_MEMORY", call, 1)) return 2;
    (void)conv(s, in[0], in[1]);
    const rp_status status = rp_error_status();
    printf("%s: %s\n", call, rp_error_message());
    rp_error_take();
    if (status != RP_ERROR_OUT_OF_MEMORY) return 3;
    if (unsetenv("CUDASIM_CUDNN_NO_MEMORY")) return 2;
    (void)conv(s, in[0], in[1]);
    if (rp_failed()) return 4;
    rp_scope_end(scope, NULL, 0);
    return takes(FORWARD, RP_F32, false, 1, 4, 8, 4, 3, 1, 1, 0) ? 0 : 5;
}

static int run_other(const other *o) {
    if (strcmp(o->variable, "CUDASIM_CUDNN_NO_MEMORY") == 0) return run_no_memory(o->value);
    char report[8192] = "";
    const shape *s = &shapes[0];
    if (setenv(o->variable, o->value, 1)) return 2;
    rp__cuda_dnn_use = RP__DNN_ALWAYS;
    rp_scope scope = rp_scope_begin();
    rp_tensor *on_cpu[3], *in[3];
    fill(s, rp_cpu(), on_cpu);
    fill(s, rp_cuda(0), in);
    rp_tensor *got = conv(s, in[0], in[1]);
    const rp_status status = rp_error_status();
    rp__libcudnn_report(report, sizeof report);
    if (status != o->status || !strstr(report, o->report) || (status && !strstr(rp_error_message(), o->error))) {
        printf("%s=%s: status %d, %s\n%s\n", o->variable, o->value, (int)status, rp_error_message(), report);
        return 3;
    }
    rp_error_take();
    if (status == RP_OK) {
        bool is = false;
        rp_tensor *equal = rp_equal(rp_to_device(got, rp_cpu(), false), conv(s, on_cpu[0], on_cpu[1]));
        if (rp_to_host(equal, &is, sizeof is) != RP_OK || !is) return 4;
    }
    rp_scope_end(scope, NULL, 0);
    rp__cuda_dnn_use = RP__DNN_BY_FAMILY; /* what would have transforms is ours without them */
    if (status == RP_OK && takes(WEIGHT, RP_F32, false, 32, 256, 14, 256, 3, 1, 1, 0)) return 5;
    rp__turned like_ours; /* where cuDNN has nothing our rows have the copies that they want: not that of the result */
    if (strcmp(o->variable, "CUDASIM_CUDNN_NONE") == 0 &&
        (takes_turned(WEIGHT, RP_BF16, false, 32, 256, 14, 512, 3, 2, 1, 0, &like_ours) || like_ours.channels != 6))
        return 7;
    return rp_failed() ? 6 : 0;
}

static void test_others(void **state) {
    (void)state;
    char no_symbols[1024], folder[] = "/tmp/reprise_dnn_XXXXXX", half[64], part[64], whole[1024];
    if (test_cuda_is_real()) skip();
    assert_non_null(mkdtemp(folder));
    snprintf(half, sizeof half, "%s/libcudnn.so.9", folder);
    snprintf(part, sizeof part, "%s/libcudnn_graph.so.9", folder);
    snprintf(whole, sizeof whole, "%s/libcudnn.so.9", getenv("REPRISE_CUDASIM_DIR"));
    assert_int_equal(symlink(whole, half), 0);
    FILE *file = fopen(part, "w"); /* no library: cuDNN would end the process */
    assert_non_null(file);
    fclose(file);
    snprintf(no_symbols, sizeof no_symbols, "%s/libcublasLt.so.13", getenv("REPRISE_CUDASIM_DIR"));
    const other others[] = {
        {"REPRISE_CUDNN", "0", "switched off", RP_OK, ""},
        {"REPRISE_LIBCUDNN", "/nowhere/libcudnn.so.9", "not found", RP_OK, ""},
        {"REPRISE_LIBCUDNN", no_symbols, "has no function cudnn", RP_OK, ""},
        {"REPRISE_LIBCUDNN", half, "not whole, so not used: libcudnn_graph.so.9", RP_OK, ""},
        {"CUDASIM_MEMORY", "0x10000000", "libcudnn.so.9", RP_OK, ""},
        {"CUDASIM_CUDNN_NO_MEMORY", "cudnnCreate", "", RP_OK, ""},
        {"CUDASIM_CUDNN_NO_MEMORY", "cudnnBackendFinalize", "", RP_OK, ""},
        {"CUDASIM_CUDNN_NO_MEMORY", "cudnnBackendGetAttribute", "", RP_OK, ""},
        {"CUDASIM_CUDNN_VERSION", "8907", "of version 8907, and not of 9", RP_OK, ""},
        {"CUDASIM_CUDNN_VERSION", "100000", "and not of 9", RP_OK, ""},
        {"CUDASIM_CUDNN_NONE", "1", "libcudnn.so.9", RP_OK, ""},
        {"CUDASIM_CUDNN_PLAIN", "1", "libcudnn.so.9", RP_OK, ""},
        {"CUDASIM_CUDNN_FAIL", "cudnnCreate", "libcudnn.so.9", RP_OK, ""},
        {"CUDASIM_CUDNN_FAIL", "cudnnBackendSetAttribute", "libcudnn.so.9", RP_OK, ""},
        {"CUDASIM_CUDNN_FAIL", "cudnnBackendFinalize", "libcudnn.so.9", RP_OK, ""},
        {"CUDASIM_CUDNN_FAIL", "cudnnBackendGetAttribute", "libcudnn.so.9", RP_OK, ""},
        {"CUDASIM_CUDNN_FAIL", "cudnnBackendCreateDescriptor", "libcudnn.so.9", RP_ERROR_OUT_OF_MEMORY,
         "cudnnBackendCreateDescriptor was to fail"},
        {"CUDASIM_CUDNN_FAIL", "cudnnBackendExecute", "libcudnn.so.9", RP_ERROR_DRIVER,
         "CUDNN_STATUS_EXECUTION_FAILED: cudnnBackendExecute was to fail"},
    };
    for (unsigned k = 0; k < sizeof others / sizeof *others; k++) {
        fflush(stdout);
        const pid_t child = fork();
        int status = 0;
        assert_true(child >= 0);
        if (child == 0) {
            const int result = run_other(&others[k]);
            fflush(stdout);
            _exit(result);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            fail_msg("%s=%s: the child ended with %d", others[k].variable, others[k].value, status);
    }
    (void)unlink(half);
    (void)unlink(part);
    (void)rmdir(folder);
}

static void test_doctor(void **state) {
    (void)state;
    char text[16384];
    (void)rp_doctor(text, sizeof text);
    if (!rp__libcudnn_get()) skip();
    assert_non_null(strstr(text, "convolutions by reprise, some of their weight gradients by cudnn"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_others), /* before anything is opened here */
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_works),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_not_finite_tangent),
        cmocka_unit_test(test_whose),      cmocka_unit_test(test_many),
        cmocka_unit_test(test_lying),      cmocka_unit_test(test_large),
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_doctor),
    };
    if (!test_cuda_choose()) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
