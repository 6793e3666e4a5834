/* Products and convolutions as nodes of a kernel: what is computed of each element of their result is the same launch, on every
   device, with the bits of one op after the other; products that another library serves stay by themselves, and explain says why. */
/* ctest: labels=cuda timeout=900 cost=160 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "device/device.h"
#include "kernel/contract.h"
#include "kernel/cpu/dots.h"
#include "kernel/cpu/lib_onednn.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/matmul.h"
#include "kernel/loop.h"
#include "kernel/product.h"
#include "support/cuda.h"

static bool have_cuda;

static void ok(void) {
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

static rp_tensor *filled(int seed, rp_dtype dtype, const int64_t *size, size_t n_dims) {
    int64_t n = 1;
    for (size_t d = 0; d < n_dims; d++) n *= size[d];
    float *data = malloc((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = (float)((i * 7919 + seed * 104729) % 2003 - 1001) / 911.0f;
    rp_tensor *t = rp_to_dtype(rp_from_data(data, size, n_dims, RP_F32), dtype);
    free(data);
    return t;
}
#define FILLED(seed, dtype, ...)                                                                                       \
    filled(seed, dtype, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void assert_same(rp_tensor *a, rp_tensor *b, const char *what) {
    ok();
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_int_equal(rp_numel(a), rp_numel(b));
    assert_int_equal(rp_dtype_of(a), rp_dtype_of(b));
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    rp_to_host(a, x, bytes);
    rp_to_host(b, y, bytes);
    ok();
    if (memcmp(x, y, bytes) != 0) fail_msg("%s: bits differ", what);
    free(x);
    free(y);
}

/* Launches of the compiled function; with `reason` the count of that reason among edges that were not fused. */
static int64_t count(rp_compiled *f, const char *kind, const char *reason) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, kind) == 0 && (!reason || strcmp(e.reason, reason) == 0)) n += e.count;
    }
    return n;
}
static int64_t launches(rp_compiled *f) { return count(f, "kernel", NULL) + count(f, "library", NULL); }

enum { ANY = -1 };
/* body over these arguments: eager and compiled have the same bits, at each of three calls, in so many launches. Returns the
   compiled function. */
static rp_compiled *compiled(const char *what, rp_body *body, const void *ctx, size_t ctx_bytes, rp_tensor *const *in,
                             size_t n_in, size_t n_out, int64_t expected) {
    rp_tensor *want[4] = {0}, *got[4] = {0};
    const rp_fn fn = {.body = body, .ctx = (void *)(uintptr_t)ctx, .ctx_bytes = ctx_bytes, .name = what};
    body(fn.ctx, in, n_in, want, n_out);
    ok();
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (unsigned turn = 0; turn < 3; turn++) {
        rp_scope scope = rp_scope_begin();
        rp_call(f, in, n_in, got, n_out);
        ok();
        for (size_t k = 0; k < n_out; k++) assert_same(want[k], got[k], what);
        rp_scope_end(scope, NULL, 0);
    }
    if (expected != ANY && launches(f) != expected) {
        for (size_t k = 0; k < rp_explain_count(f); k++) {
            rp_explain_entry e;
            (void)rp_explain_get(f, k, &e);
            print_message("%s [%s] %s (%lld)\n", e.kind, e.reason, e.message, (long long)e.count);
        }
        fail_msg("%s: %lld launches", what, (long long)launches(f));
    }
    return f;
}
static void check(const char *what, rp_body *body, const void *ctx, size_t ctx_bytes, rp_tensor *const *in, size_t n_in,
                  size_t n_out, int64_t expected) {
    rp_compiled_release(compiled(what, body, ctx, ctx_bytes, in, n_in, n_out, expected));
    ok();
}

/* ---- functions; ctx is the number of the case */

static void linear_gelu(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    out[0] = rp_gelu(rp_linear(in[0], in[1], n_in > 2 ? in[2] : NULL));
}
static void linear_residual(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(rp_linear(in[0], in[1], in[2]), in[3]);
    out[1] = rp_mul(out[0], in[4]);
}
/* The norm's rows are a launch of their own. */
static void linear_norm(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *y = rp_add(rp_linear(in[0], in[1], in[2]), in[3]);
    out[0] = rp_layer_norm(y, RP_DIMS(33), in[2], in[4], 1e-5);
}
static void conv_block(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int *shape = ctx; /* stride, padding, dilation, groups */
    (void)n_in, (void)n_out;
    const int64_t stride[2] = {shape[0], shape[0]}, padding[2] = {shape[1], shape[1]},
                  dilation[2] = {shape[2], shape[2]};
    rp_tensor *y = rp_conv2d(in[0], in[1], NULL, stride, 2, padding, 2, dilation, 2, shape[3]);
    out[0] = rp_relu(rp_add(rp_add(rp_mul(y, in[2]), in[3]), in[4]));
}

/* Convolutions of 16-bit floats on a GPU read operands with their channels innermost: those that come from outside are copied, what one makes
   for the next is stored so, and the result lies as it did. */
static void conv_pair(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *y = rp_relu(rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)));
    out[0] = rp_relu(rp_add(rp_conv2d(y, in[2], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)), y));
}

/* Windows of one dim and of three, and pictures without a batch: their order of dims has no name, or another one. */
static void conv_ranks(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_conv1d(in[0], in[1], NULL, RP_DIMS(1), RP_DIMS(1)));
    out[1] = rp_relu(rp_conv2d(in[2], in[3], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)));
    out[2] = rp_relu(rp_conv3d(in[4], in[5], NULL, RP_DIMS(1, 1, 1), RP_DIMS(1, 1, 1)));
}

static void test_layout(void **state) {
    (void)state;
    for (int cuda = 0; cuda <= (have_cuda ? 1 : 0); cuda++) {
        rp_scope scope = rp_scope_begin();
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        for (int t = 0; t < 2; t++) {
            const rp_dtype d = t ? RP_BF16 : RP_F16;
            /* on a CPU small enough for our own kernels where oneDNN is there */
            rp_tensor *in[] = {FILLED(1, d, cuda ? 8 : 2, 16, 8, 8), FILLED(2, d, 32, 16, 3, 3),
                               FILLED(3, d, 32, 32, 3, 3)};
            check("two convolutions", conv_pair, NULL, 0, in, 3, 1, cuda ? 5 : 2);
            rp_tensor *ranks[] = {FILLED(4, d, 8, 16, 512),     FILLED(5, d, 32, 16, 3),
                                  FILLED(6, d, 16, 32, 32),     FILLED(7, d, 32, 16, 3, 3),
                                  FILLED(8, d, 2, 16, 8, 8, 8), FILLED(9, d, 32, 16, 3, 3, 3)};
            rp_compiled_release(compiled("convolutions of other ranks", conv_ranks, NULL, 0, ranks, 6, 3, ANY));
        }
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* What follows a convolution of 16-bit floats takes eight neighbours at once, along channels or along places, where accesses allow it. */
static void conv_rest(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int *shape = ctx; /* stride, padding, groups; does a second result leave? */
    (void)n_in, (void)n_out;
    rp_tensor *y = rp_conv2d(in[0], in[1], NULL, RP_DIMS(shape[0], shape[0]), RP_DIMS(shape[1], shape[1]),
                             RP_DIMS(1, 1), shape[2]);
    rp_tensor *z = rp_add(rp_add(rp_mul(y, in[2]), in[3]), in[4]);
    out[0] = rp_relu(z);
    if (shape[3]) out[1] = rp_to_dtype(rp_mul(z, in[5]), RP_F32);
}
/* The same values with channels innermost, or (2) with a gap that leaves no vector aligned. */
static rp_tensor *laid_out(rp_tensor *t, int how) {
    int64_t size[4];
    for (int d = 0; d < 4; d++) size[d] = rp_size(t, d);
    if (how == 0) return t;
    if (how == 1) return rp_permute(rp_contiguous(rp_permute(t, RP_DIMS(0, 2, 3, 1))), RP_DIMS(0, 3, 1, 2));
    rp_tensor *room = rp_zeros(RP_DIMS(size[0], size[1], size[2], size[3] + 1),
                               RP_OPTIONS(rp_zeros_options, .dtype = rp_dtype_of(t)));
    rp_tensor *view = rp_slice(room, 3, 1, size[3] + 1, 1);
    (void)rp_copy_(view, t);
    return view;
}

/* A network whose pictures go by channels from the first convolution to the means behind the last one: a pool, shortcuts, a value that two
   convolutions read, statistics over places; and ends of that family: a result, and what a view reads. */
static void conv_family(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *stem = rp_relu(rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)));
    rp_tensor *pooled = rp_max_pool2d(stem, RP_DIMS(3, 3), RP_DIMS(2, 2), RP_DIMS(1, 1));
    rp_tensor *y = rp_conv2d(pooled, in[2], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1));
    rp_tensor *mean = rp_mean(y, RP_DIMS(0, 2, 3), true), *off = rp_sub(y, mean),
              *square = rp_mean(rp_mul(off, off), RP_DIMS(0, 2, 3), true);
    y = rp_relu(rp_add(rp_mul(off, rp_rsqrt(rp_add_scalar(square, rp_f64(1e-5)))), pooled));
    rp_tensor *wide = rp_conv2d(y, in[3], NULL, RP_DIMS(2, 2), RP_DIMS(1, 1)),
              *shortcut = rp_conv2d(y, in[4], NULL, RP_DIMS(2, 2));
    rp_tensor *end = rp_relu(rp_add(wide, shortcut));
    out[0] = rp_mean(end, RP_DIMS(-2, -1));
    out[1] = rp_mul_scalar(end, rp_f64(0.5));
    out[2] = rp_flatten(rp_neg(shortcut), 1, -1);
}
/* The same, and its gradients. */
static void conv_family_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *with[5], *made[3], *seed[3];
    (void)n_out;
    for (size_t k = 0; k < n_in; k++) {
        with[k] = rp_detach(in[k]);
        rp_set_requires_grad(with[k], true);
    }
    conv_family(ctx, with, n_in, made, 3);
    for (int k = 0; k < 3; k++) seed[k] = rp_cos(rp_detach(made[k]));
    rp_grad(made, 3, (rp_tensor *[]){with[0], with[1], with[2], with[3]}, 4, seed, NULL, out);
}

/* Families go on through cats and parts of them: what expands into two, a part that a convolution reads, one that a view reads, one of an odd place. */
static void conv_cats(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int *by_view = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *x = rp_relu(rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)));
    rp_tensor *both[] = {rp_relu(rp_conv2d(x, in[2], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1))),
                         rp_relu(rp_conv2d(x, in[4], NULL))};
    rp_tensor *all = rp_cat(both, 2, 1), *low = rp_slice(all, 1, 0, 32, 1), *high = rp_slice(all, 1, 29, 93, 1);
    rp_tensor *y = rp_conv2d(low, in[2], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1));
    out[0] = rp_mean(rp_relu(rp_add(y, low)), RP_DIMS(-2, -1));
    out[1] = *by_view ? rp_flatten(rp_slice(all, 1, 3, 7, 2), 1, -1) : rp_mean(all, RP_DIMS(0, 2, 3));
    out[2] = rp_mean(rp_mul(rp_conv2d(rp_slice(high, 1, 0, 32, 1), in[2], NULL),
                            rp_slice(rp_slice(y, 2, 2, INT64_MAX, 1), 3, 1, 7, 1)),
                     RP_DIMS(-1));
}
static void conv_cats_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *with[5], *made[3], *seed[3];
    (void)n_out;
    for (size_t k = 0; k < n_in; k++) with[k] = rp_detach(in[k]), (void)rp_set_requires_grad(with[k], true);
    conv_cats(ctx, with, n_in, made, 3);
    for (int k = 0; k < 3; k++) seed[k] = rp_cos(rp_detach(made[k]));
    rp_grad(made, 3, (rp_tensor *[]){with[0], with[1], with[2], with[4]}, 4, seed, NULL, out);
}

static void test_layout_families(void **state) {
    (void)state;
    for (int cuda = 0; cuda <= (have_cuda ? 1 : 0); cuda++) {
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        static const rp_dtype dtypes[] = {RP_F16, RP_F32, RP_F32};
        for (int t = 0; t < (cuda ? 3 : 2); t++) {
            const rp_dtype d = dtypes[t];
            assert_int_equal(rp_set_float32_conv_precision(t == 2 ? "tf32" : "highest"), RP_OK);
            for (int last = 0; last < 2; last++) { /* the network's own memory format */
                if (cuda && !test_cuda_takes((unsigned)(t + last), 2)) continue;
                rp_scope scope = rp_scope_begin();
                rp_tensor *in[] = {laid_out(FILLED(1, d, 2, 3, 8, 8), last), FILLED(2, d, 32, 3, 3, 3),
                                   FILLED(3, d, 32, 32, 3, 3), FILLED(4, d, 64, 32, 3, 3), FILLED(5, d, 64, 32, 1, 1)};
                check("a family of pictures", conv_family, NULL, 0, in, 5, 3, ANY);
                check("a family of pictures and gradients", conv_family_step, NULL, 0, in, 5, 4, ANY);
                for (int by_view = 0; by_view < 2; by_view++) {
                    check("cats of pictures", conv_cats, &by_view, sizeof by_view, in, 5, 3, ANY);
                    check("cats of pictures and gradients", conv_cats_step, &by_view, sizeof by_view, in, 5, 4, ANY);
                }
                rp_scope_end(scope, NULL, 0);
            }
        }
    }
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* What a forward saves for its backward alone lies as both like it, and so does a result of free strides; the other one does not. */
static void conv_pair_results(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    conv_pair(ctx, in, n_in, &out[0], 1);
    out[1] = rp_mul_scalar(out[0], rp_f64(2));
    (void)n_out;
}
static void pair_gradients(rp_compiled *f, rp_tensor *const *given, rp_tensor **grad) {
    rp_tensor *in[3], *y;
    for (int k = 0; k < 3; k++) in[k] = rp_detach(given[k]), (void)rp_set_requires_grad(in[k], true);
    if (f)
        rp_call(f, in, 3, &y, 1);
    else
        conv_pair(NULL, in, 3, &y, 1);
    rp_tensor *seed = rp_cos(rp_detach(y));
    rp_grad(&y, 1, in, 3, &seed, NULL, grad);
    ok();
}
/* A free result that a backward reads through a view stays as it is. */
static void squares(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mean(rp_mul(in[0], in[0]), RP_DIMS(2, 3));
}
static rp_status squares_back(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                              size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)n_saved, (void)n_out, (void)n_in;
    const int64_t n = rp_size(saved[0], 0), c = rp_size(saved[0], 1), h = rp_size(saved[0], 2),
                  w = rp_size(saved[0], 3);
    rp_tensor *each = rp_contiguous(rp_expand(rp_unsqueeze(grad_out[0], 2), RP_DIMS(n, c, h)));
    rp_tensor *y = rp_mul(rp_view(saved[0], RP_DIMS(n, c * h, w)), rp_view(each, RP_DIMS(n, c * h, 1)));
    grad_in[0] = rp_view(y, RP_DIMS(n, c, h, w));
    return rp_failed() ? RP_ERROR_INTERNAL : RP_OK;
}
static void conv_squares(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const rp_function f = {
        .struct_size = sizeof f, .forward = {.body = squares, .name = "squares"}, .backward = squares_back};
    (void)n_out;
    conv_pair(ctx, in, n_in, &out[0], 1);
    rp_function_apply(&f, &out[0], 1, &out[1], 1);
}
static void check_viewed(void) {
    rp_compiled *f = rp_compile((rp_fn){.body = conv_squares, .name = "squares"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true,
                                           .free_strides = (const size_t[]){0}, .n_free_strides = 1));
    rp_tensor *given[] = {FILLED(1, RP_F16, 8, 16, 8, 8), FILLED(2, RP_F16, 32, 16, 3, 3),
                          FILLED(3, RP_F16, 32, 32, 3, 3)};
    rp_tensor *grad[2][3];
    for (int turn = 0; turn < 4; turn++) {
        rp_tensor *in[3], *out[2];
        for (int k = 0; k < 3; k++) in[k] = rp_detach(given[k]), (void)rp_set_requires_grad(in[k], true);
        if (turn)
            rp_call(f, in, 3, out, 2);
        else
            conv_squares(NULL, in, 3, out, 2);
        rp_tensor *seed[] = {rp_cos(rp_detach(out[0])), rp_cos(rp_detach(out[1]))};
        rp_grad(out, 2, in, 3, seed, NULL, grad[turn > 0]);
        ok();
        for (int k = 0; k < 3 && turn; k++) assert_same(grad[0][k], grad[1][k], "a free result that is read by a view");
    }
    rp_compiled_release(f);
}
static void test_layout_across(void **state) {
    (void)state;
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    check_viewed();
    for (int b = 8; b <= 16; b += 8) { /* sizes as values, then as symbols */
        static rp_compiled *pair, *free;
        if (b == 8) {
            pair = rp_compile((rp_fn){.body = conv_pair, .name = "pair"},
                              RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
            free = rp_compile((rp_fn){.body = conv_pair_results, .name = "results"},
                              RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true,
                                         .free_strides = (const size_t[]){0, 7}, .n_free_strides = 2));
        }
        for (int turn = 0; turn < 2; turn++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *in[] = {FILLED(1, RP_F16, b, 16, 8, 8), FILLED(2, RP_F16, 32, 16, 3, 3),
                               FILLED(3, RP_F16, 32, 32, 3, 3)},
                      *want[3], *got[3];
            pair_gradients(NULL, in, want);
            pair_gradients(pair, in, got);
            for (int k = 0; k < 3; k++) assert_same(want[k], got[k], "gradients of two convolutions");
            conv_pair_results(NULL, in, 3, want, 2);
            rp_call(free, in, 3, got, 2);
            ok();
            for (int k = 0; k < 2; k++) assert_same(want[k], got[k], "a result of free strides");
            if (turn == 1) assert_int_equal(rp_stride(got[0], 1), 1); /* a trace gives what ran eagerly */
            assert_int_equal(rp_stride(got[1], 1), 64);
            rp_scope_end(scope, NULL, 0);
        }
        if (b == 8) assert_int_equal(launches(pair), 13); /* one more where what is saved lies by rows */
        if (b == 16) rp_compiled_release(pair), rp_compiled_release(free);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Pictures go by channels through depthwise convolutions, too, and what follows these, or a window of one place, takes channels at once: a norm by
   running statistics, whose root is found once a channel, a gate an image, a residual. */
typedef struct inverted {
    int window, step, gate;
} inverted;
static rp_tensor *normed(rp_tensor *x, rp_tensor *channels) { /* rows: mean, variance, scale, offset */
    rp_tensor *of[4];
    for (int k = 0; k < 4; k++) of[k] = rp_reshape(rp_select(channels, 0, k), RP_DIMS(-1, 1, 1));
    rp_tensor *wide = rp_to_dtype(x, RP_F32), *off = rp_sub(wide, rp_to_dtype(of[0], RP_F32)),
              *root = rp_rsqrt(rp_add_scalar(rp_abs(rp_to_dtype(of[1], RP_F32)), rp_f64(1e-3)));
    return rp_to_dtype(rp_add(rp_mul(rp_mul(off, root), of[2]), of[3]), rp_dtype_of(x));
}
static void conv_inverted(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const inverted *o = ctx;
    const int64_t around = o->window / 2;
    (void)n_in, (void)n_out;
    rp_tensor *x = rp_relu(rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)));
    rp_tensor *y = rp_silu(normed(rp_conv2d(x, in[2], NULL), in[3]));
    rp_tensor *z = rp_conv2d(y, in[4], NULL, RP_DIMS(o->step, o->step), RP_DIMS(around, around), RP_DIMS(1, 1),
                             (int)(rp_size(in[4], 0) / rp_size(in[4], 1)));
    z = rp_silu(normed(z, in[3]));
    if (o->gate) z = rp_mul(z, rp_sigmoid(rp_mean(z, RP_DIMS(2, 3), true)));
    z = rp_conv2d(z, in[5], in[6]);
    out[0] = rp_mean(o->step == 1 ? rp_add(z, x) : rp_mul(z, rp_mean(z, RP_DIMS(2, 3), true)), RP_DIMS(2, 3));
}
static void conv_inverted_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_out;
    rp_tensor *wrt[7], *y;
    for (size_t k = 0; k < n_in; k++) wrt[k] = rp_detach(in[k]), (void)rp_set_requires_grad(wrt[k], true);
    conv_inverted(ctx, wrt, n_in, &y, 1);
    rp_tensor *seed = rp_cos(rp_detach(y));
    rp_grad(&y, 1, (rp_tensor *[]){wrt[0], wrt[2], wrt[4], wrt[5]}, 4, &seed, NULL, out);
}
/* A window of one place whose stride nobody sees in the result, which has one place along that dim, where the picture has more. */
static void conv_unseen_stride(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int64_t *step = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_conv2d(in[0], in[1], NULL, RP_DIMS(step[0], step[1])));
}
static void test_unseen_stride(void **state) {
    (void)state;
    static const struct {
        int64_t n, h, w, step[2];
        int last;
    } kinds[] = {{2, 2, 16, {2, 1}, 1}, {2, 8, 2, {1, 2}, 1}, {1, 8, 2, {1, 2}, 0}, {1, 2, 8, {3, 1}, 0}};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    for (unsigned k = 0; k < 4; k++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[] = {laid_out(FILLED(1, RP_F16, kinds[k].n, 64, kinds[k].h, kinds[k].w), kinds[k].last),
                           FILLED(2, RP_F16, 64, 64, 1, 1)};
        check("a stride that is not seen", conv_unseen_stride, kinds[k].step, sizeof kinds[k].step, in, 2, 1, ANY);
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}
static void test_layout_depthwise(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F16, RP_BF16, RP_F32, RP_F32};
    static const inverted kinds[] = {{3, 1, 0}, {3, 2, 1}, {5, 1, 1}, {7, 2, 0}, {3, 1, 0}, {3, 2, 1}};
    static const int64_t each[] = {1, 1, 1, 1, 4, 16}; /* channels of a group */
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    for (unsigned t = 0; t < 4; t++) {
        assert_int_equal(rp_set_float32_conv_precision(t == 3 ? "tf32" : "highest"), RP_OK);
        for (unsigned k = 0; k < 6; k++) {
            const int64_t wide = k == 2 ? 42 : 48; /* channels that make no vectors of eight, too */
            if (!test_cuda_takes(t * 6 + k, 3)) continue;
            rp_scope scope = rp_scope_begin();
            inverted o = kinds[k];
            rp_tensor *in[] = {FILLED(1, dtypes[t], k == 3 ? 1 : 2, 3, 12, 13),
                               FILLED(2, dtypes[t], 16, 3, 3, 3),
                               FILLED(3, dtypes[t], wide, 16, 1, 1),
                               FILLED(4, dtypes[t], 4, wide),
                               FILLED(5, dtypes[t], wide, each[k], o.window, o.window),
                               FILLED(6, dtypes[t], 16, wide, 1, 1),
                               FILLED(7, dtypes[t], 16)};
            check("an inverted bottleneck", conv_inverted, &o, sizeof o, in, 7, 1, ANY);
            if (k < 2 || k > 3) check("its gradients", conv_inverted_step, &o, sizeof o, in, 7, 4, ANY);
            rp_scope_end(scope, NULL, 0);
        }
    }
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* What leaves as it is made and is read with its channels innermost is turned by a kernel of its own, once it is large. */
static void conv_two_ways(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_conv2d(in[0], in[1], NULL));
    out[1] = rp_conv2d(out[0], in[2], NULL, RP_DIMS(4, 4));
}
static bool tells(rp_compiled *f, const char *reason) {
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        if (rp_explain_get(f, k, &e) == RP_OK && strcmp(e.reason, reason) == 0) return true;
    }
    return false;
}
static void test_stored_two_ways(void **state) {
    (void)state;
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    for (int large = 0; large < 2; large++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[] = {FILLED(1, RP_F16, large ? 8 : 1, 16, 64, 64), FILLED(2, RP_F16, 32, 16, 1, 1),
                           laid_out(FILLED(3, RP_F16, 32, 32, 3, 3), 1)};
        rp_compiled *f = compiled("a result in two orders", conv_two_ways, NULL, 0, in, 3, 2, ANY);
        assert_int_equal(tells(f, "stored-two-ways"), large);
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

static void test_everyday(void **state) {
    (void)state;
    for (int cuda = 0; cuda <= (have_cuda ? 1 : 0); cuda++) {
        rp_scope scope = rp_scope_begin();
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
        for (unsigned t = 0; t < 4; t++) {
            const rp_dtype d = dtypes[t];
            rp_tensor *x = FILLED(1, d, 3, 17, 70), *w = FILLED(2, d, 33, 70), *b = FILLED(3, d, 33);
            rp_tensor *gelu[] = {x, w, b};
            check("linear+gelu", linear_gelu, NULL, 0, gelu, 3, 1, 1);
            rp_tensor *residual[] = {x, w, b, FILLED(4, d, 3, 17, 33), FILLED(5, d, 17, 33)};
            check("linear+bias+residual", linear_residual, NULL, 0, residual, 5, 2, 1);
            rp_tensor *norm[] = {x, w, b, FILLED(4, d, 3, 17, 33), FILLED(5, d, 33)};
            check("linear+bias+residual+layer_norm", linear_norm, NULL, 0, norm, 5, 1, 2);
            static int shapes[][4] = {{1, 1, 1, 1}, {2, 0, 1, 1}, {2, 3, 2, 2}, {1, 0, 1, 4}};
            for (unsigned s = 0; s < 4; s++) {
                const int64_t out = (9 + 2 * shapes[s][1] - shapes[s][2] * 2 - 1) / shapes[s][0] + 1;
                rp_tensor *conv[] = {FILLED(6, d, 2, 4, 9, 9), FILLED(7, d, 8, 4 / shapes[s][3], 3, 3),
                                     FILLED(8, d, 8, 1, 1), FILLED(9, d, 8, 1, 1), FILLED(10, d, 2, 8, out, out)};
                check("conv+scale+bias+add+relu", conv_block, shapes[s], sizeof shapes[s], conv, 5, 1, 1);
            }
            static int groups[] = {2, 1, 1, 3};
            rp_tensor *few[] = {FILLED(6, d, 2, 12, 9, 7), FILLED(7, d, 12, 4, 3, 3), FILLED(8, d, 12, 1, 1),
                                FILLED(9, d, 12, 1, 1), FILLED(10, d, 2, 12, 5, 4)};
            check("groups of channels", conv_block, groups, sizeof groups, few, 5, 1, 1);
        }
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* A result of no dims is reduced over nothing, and is a reduction all the same: where all is one element the two could share a space. */
static void of_one(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *dot = rp_squeeze_dims(rp_matmul(in[0], in[1]));
    out[0] = rp_mean(dot);
    out[1] = rp_amax(rp_neg(dot));
}
static void test_reduced_over_nothing(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {FILLED(1, RP_F32, 1, 1), FILLED(2, RP_F32, 1, 1)};
    check("a dot product, its mean and its largest element", of_one, NULL, 0, in, 2, 2, 2);
    rp_scope_end(scope, NULL, 0);
}

/* The rows of a product are cut by what reads them; a result that lies by columns; operands with gaps; one row, one column. */
static void reshaped(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(rp_matmul(in[0], in[1]), in[2]);
}
static void turned(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_neg(rp_transpose(rp_matmul(in[0], in[1]), 0, 1));
    out[0] = rp_mul(out[0], in[2]);
}
static void batched(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_tanh(rp_add(rp_matmul(in[0], in[1]), in[2]));
    out[1] = rp_gt(out[0], in[3]);
}
static void dropped(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_where(rp_gt(rp_matmul(in[0], in[1]), in[3]), rp_gather(in[2], 1, in[4]), in[3]);
}

static void test_spaces(void **state) {
    (void)state;
    for (int cuda = 0; cuda <= (have_cuda ? 1 : 0); cuda++) {
        rp_scope scope = rp_scope_begin();
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        check("a residual over time", reshaped, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 3, 5, 40), FILLED(2, RP_F32, 40, 9), FILLED(3, RP_F32, 5, 9)}, 3, 1, 1);
        check("a residual by batch", reshaped, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 3, 130, 300), FILLED(2, RP_F32, 300, 72), FILLED(3, RP_F32, 3, 1, 72)},
              3, 1, 1);
        check("one column", reshaped, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 77, 40), FILLED(2, RP_F32, 40, 1), FILLED(3, RP_F32, 77, 1)}, 3, 1, 1);
        check("one row", reshaped, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 1, 40), FILLED(2, RP_F32, 40, 77), FILLED(3, RP_F32, 77)}, 3, 1, 1);
        check("one term", reshaped, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 6, 1), FILLED(2, RP_F32, 1, 7), FILLED(3, RP_F32, 7)}, 3, 1, 1);
        check("one number", reshaped, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 1, 1), FILLED(2, RP_F32, 1, 1), FILLED(3, RP_F32, 1)}, 3, 1, 1);
        check("a vector", linear_gelu, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 40), FILLED(2, RP_F32, 33, 40), FILLED(3, RP_F32, 33)}, 3, 1, 1);
        check("a weight of one row", linear_gelu, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 3, 7, 40), FILLED(2, RP_F32, 40)}, 2, 1, 1);
        static const int apart[4] = {1, 1, 1, 4}, plain[4] = {1, 1, 1, 1};
        check("a channel a group", conv_block, apart, sizeof apart,
              (rp_tensor *[]){FILLED(1, RP_F32, 2, 4, 9, 9), FILLED(2, RP_F32, 4, 1, 3, 3), FILLED(3, RP_F32, 4, 1, 1),
                              FILLED(4, RP_F32, 4, 1, 1), FILLED(5, RP_F32, 2, 4, 9, 9)},
              5, 1, 1);
        check("no batch", conv_block, plain, sizeof plain,
              (rp_tensor *[]){FILLED(1, RP_F32, 4, 9, 9), FILLED(2, RP_F32, 5, 4, 3, 3), FILLED(3, RP_F32, 5, 1, 1),
                              FILLED(4, RP_F32, 1, 9), FILLED(5, RP_F32, 5, 9, 9)},
              5, 1, 1);
        check("one place", conv_block, (const int[]){1, 0, 1, 1}, 4 * sizeof(int),
              (rp_tensor *[]){FILLED(1, RP_F32, 3, 4, 3, 3), FILLED(2, RP_F32, 5, 4, 3, 3), FILLED(3, RP_F32, 5, 1, 1),
                              FILLED(4, RP_F32, 5, 1, 1), FILLED(5, RP_F32, 3, 5, 1, 1)},
              5, 1, 1);
        check("one tap", conv_block, (const int[]){2, 0, 1, 1}, 4 * sizeof(int),
              (rp_tensor *[]){FILLED(1, RP_F32, 3, 4, 7, 7), FILLED(2, RP_F32, 5, 4, 1, 1), FILLED(3, RP_F32, 5, 1, 1),
                              FILLED(4, RP_F32, 5, 1, 1), FILLED(5, RP_F32, 3, 5, 4, 4)},
              5, 1, 1);
        check("one channel, one image", conv_block, plain, sizeof plain,
              (rp_tensor *[]){FILLED(1, RP_F32, 1, 1, 7, 7), FILLED(2, RP_F32, 1, 1, 3, 3), FILLED(3, RP_F32, 1, 1, 1),
                              FILLED(4, RP_F32, 1, 1, 1), FILLED(5, RP_F32, 1, 1, 7, 7)},
              5, 1, 1);
        check("a result by columns", turned, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 33, 20), FILLED(2, RP_F32, 20, 70), FILLED(3, RP_F32, 70, 33)}, 3, 1,
              1);
        check("operands with gaps", reshaped, NULL, 0,
              (rp_tensor *[]){rp_slice(FILLED(1, RP_F32, 40, 30), 0, 1, 39, 2),
                              rp_transpose(FILLED(2, RP_F32, 50, 30), 0, 1),
                              rp_slice(FILLED(3, RP_F32, 19, 100), 1, 0, 100, 2)},
              3, 1, 1);
        check("a batch", batched, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 2, 3, 11, 20), FILLED(2, RP_F32, 2, 3, 20, 13),
                              FILLED(3, RP_F32, 3, 11, 13), FILLED(4, RP_F32, 13)},
              4, 2, 1);
        check("long sums", reshaped, NULL, 0, /* with gaps: no library takes them */
              (rp_tensor *[]){rp_slice(FILLED(1, RP_F64, 5, 9000), 1, 0, 9000, 2), FILLED(2, RP_F64, 4500, 7),
                              FILLED(3, RP_F64, 5, 7)},
              3, 1, 1);
        rp_tensor *index = rp_to_dtype(rp_zeros(RP_DIMS(6, 7)), RP_I64);
        check("a gather beside it", dropped, NULL, 0,
              (rp_tensor *[]){FILLED(1, RP_F32, 6, 9), FILLED(2, RP_F32, 9, 7), FILLED(3, RP_F32, 6, 4),
                              FILLED(4, RP_F32, 7), index},
              5, 1, 1);
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Values that an order or a fused rounding would show: NaN, infinities, -0, ties. */
static void relu_of_product(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *y = rp_matmul(in[0], in[1]);
    out[0] = rp_relu(y);
    out[1] = rp_mul(y, in[2]);
    out[2] = y;
}
static void test_numbers(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F16, RP_BF16};
    const float odd[12] = {0.0f,  -0.0f,  1.0f, -1.0f, (float)INFINITY, (float)-INFINITY, (float)NAN, 65504.0f,
                           1e-8f, -1e-8f, 3.0f, -7.0f};
    for (int cuda = 0; cuda <= (have_cuda ? 1 : 0); cuda++) {
        rp_scope scope = rp_scope_begin();
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        for (unsigned t = 0; t < 3; t++) {
            rp_tensor *a = rp_to_dtype(rp_from_data(odd, RP_DIMS(12, 1), RP_F32), dtypes[t]);
            rp_tensor *b = rp_to_dtype(rp_from_data(odd, RP_DIMS(1, 12), RP_F32), dtypes[t]);
            check("odd numbers", relu_of_product, NULL, 0, (rp_tensor *[]){a, b, FILLED(2, dtypes[t], 12)}, 3, 3, 1);
        }
        /* integers add up in wider words, wrapped to their own width before anything follows; on a CPU they stay by themselves */
        static const rp_dtype integers[] = {RP_U8, RP_I8, RP_I16, RP_I32, RP_I64};
        for (unsigned t = 0; t < sizeof integers / sizeof *integers; t++) {
            float large[96];
            for (int i = 0; i < 96; i++)
                large[i] = (float)(integers[t] == RP_U8 ? (i * 37) % 251 : (i * 37) % 251 - 125);
            rp_tensor *a = rp_to_dtype(rp_from_data(large, RP_DIMS(12, 8), RP_F32), integers[t]);
            rp_tensor *b = rp_to_dtype(rp_from_data(large, RP_DIMS(8, 12), RP_F32), integers[t]);
            check("integers", relu_of_product, NULL, 0,
                  (rp_tensor *[]){a, b, rp_reshape(rp_slice(b, 0, 0, 1, 1), RP_DIMS(12))}, 3, 3, cuda ? 1 : 2);
        }
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Gradients of convolutions are products too: what follows them joins. */
static void conv_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int *shape = ctx;
    (void)n_in, (void)n_out;
    const int64_t stride[2] = {shape[0], shape[0]}, padding[2] = {shape[1], shape[1]},
                  dilation[2] = {shape[2], shape[2]};
    rp_tensor *x = rp_detach(in[0]), *w = rp_detach(in[1]), *grad[2] = {NULL, NULL};
    rp_set_requires_grad(x, true);
    rp_set_requires_grad(w, true);
    rp_tensor *y = rp_conv2d(x, w, NULL, stride, 2, padding, 2, dilation, 2, shape[3]);
    rp_grad(&y, 1, (rp_tensor *[]){x, w}, 2, &in[2], NULL, grad);
    out[0] = rp_mul(grad[0], in[3]);
    out[1] = rp_sub(in[1], rp_mul(grad[1], in[4]));
}
static void test_gradients(void **state) {
    (void)state;
    static const int shapes[][5] = {{1, 1, 1, 1, 8}, {2, 1, 1, 1, 8}, {3, 2, 2, 1, 8}, {2, 0, 1, 4, 8},
                                    {1, 1, 1, 2, 8}, {1, 1, 1, 4, 4}, {2, 1, 1, 1, 1}};
    for (int cuda = 0; cuda <= (have_cuda ? 1 : 0); cuda++) {
        rp_scope scope = rp_scope_begin();
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t out = (10 + 2 * shapes[s][1] - shapes[s][2] * 2 - 1) / shapes[s][0] + 1;
            rp_tensor *in[] = {FILLED(1, RP_F32, 3, 4, 10, 10), FILLED(2, RP_F32, shapes[s][4], 4 / shapes[s][3], 3, 3),
                               FILLED(3, RP_F32, 3, shapes[s][4], out, out), FILLED(4, RP_F32, 4, 1, 10),
                               FILLED(5, RP_F32, shapes[s][4], 1, 1, 3)};
            check("gradients", conv_step, shapes[s], sizeof shapes[s], in, 5, 2, 2);
        }
        rp_scope_end(scope, NULL, 0);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Many groups of few channels: what follows has a row a group where places lie side by side, and a row a place where groups do. */
static void test_many_groups(void **state) {
    (void)state;
    /* stride, padding, dilation, groups; channels, rows of the result, height, width, kernel */
    static const int shapes[][9] = {{1, 1, 1, 24, 24, 24, 9, 7, 3},   {2, 1, 1, 19, 19, 19, 15, 13, 3},
                                    {1, 2, 1, 16, 16, 48, 8, 40, 5},  {3, 1, 2, 16, 32, 16, 17, 16, 3},
                                    {1, 0, 1, 20, 20, 20, 1, 300, 1}, {5, 2, 1, 17, 17, 17, 21, 22, 3}};
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64};
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s], reach = e[2] * (e[8] - 1) + 1;
        const int64_t high = (e[6] + 2 * e[1] - reach) / e[0] + 1, wide = (e[7] + 2 * e[1] - reach) / e[0] + 1;
        for (int how = 0; how < 3; how++)
            for (unsigned t = 0; t < 3; t++) {
                const rp_dtype d = dtypes[t];
                rp_scope scope = rp_scope_begin();
                rp_tensor *x = laid_out(FILLED(1, d, 2, e[4], e[6], e[7]), how),
                          *w = FILLED(2, d, e[5], e[4] / e[3], e[8], e[8]);
                check("many groups", conv_block, e, 4 * sizeof *e,
                      (rp_tensor *[]){x, w, FILLED(3, d, e[5], 1, 1), FILLED(4, d, 1, wide),
                                      laid_out(FILLED(5, d, 2, e[5], high, wide), how)},
                      5, 1, 1);
                check("gradients of many groups", conv_step, e, 4 * sizeof *e,
                      (rp_tensor *[]){x, w, laid_out(FILLED(6, d, 2, e[5], high, wide), how),
                                      FILLED(7, d, e[4], 1, e[7]), FILLED(8, d, e[5], 1, 1, e[8])},
                      5, 2, ANY);
                rp_scope_end(scope, NULL, 0);
            }
    }
}
/* Vectors of channels or of places, elements as they lie or from a box: the same bits wherever channels lie. */
static void test_channels_of_results(void **state) {
    (void)state;
    /* stride, padding, dilation, groups; channels, rows of the result, height, width, kernel */
    static const int shapes[][9] = {
        {1, 1, 1, 1, 5, 24, 9, 13, 3},    {2, 1, 1, 1, 8, 33, 15, 13, 3},    {1, 2, 1, 2, 8, 40, 30, 31, 5},
        {3, 1, 2, 1, 16, 200, 17, 16, 3}, {1, 0, 1, 1, 20, 17, 1, 300, 1},   {2, 0, 1, 1, 40, 16, 14, 14, 2},
        {2, 0, 1, 1, 20, 24, 11, 13, 1},  {2, 1, 1, 1, 224, 512, 25, 25, 4}, {2, 2, 2, 1, 320, 256, 9, 9, 3},
        {1, 0, 1, 1, 20, 24, 5, 5, 5},    {3, 0, 1, 1, 136, 40, 3, 3, 3}};
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64};
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s], reach = e[2] * (e[8] - 1) + 1;
        const int64_t high = (e[6] + 2 * e[1] - reach) / e[0] + 1, wide = (e[7] + 2 * e[1] - reach) / e[0] + 1;
        const bool large = e[4] > 200; /* of phases without room for their places: the gradient, once a layout */
        for (unsigned t = 0; t < (large ? 1 : 3); t++) {
            const rp_dtype d = dtypes[t];
            rp_scope scope = rp_scope_begin();
            rp_tensor *want = NULL, *w = FILLED(2, d, e[5], e[4] / e[3], e[8], e[8]);
            for (int how = 0; how < (large ? 2 : 3); how++) {
                rp_tensor *x = laid_out(FILLED(1, d, 2, e[4], e[6], e[7]), how),
                          *g = laid_out(FILLED(6, d, 2, e[5], high, wide), how);
                if (large) {
                    rp_tensor *out[2][2],
                        *in[5] = {x, w, g, FILLED(7, d, e[4], 1, e[7]), FILLED(8, d, e[5], 1, 1, e[8])};
                    for (unsigned k = 0; k < 2; k++) {
                        for (unsigned i = 0; i < 5 && k; i++) in[i] = rp_to_dtype(in[i], RP_F64);
                        conv_step((void *)(uintptr_t)e, in, 5, out[k], 2);
                    }
                    rp_tensor *off = rp_abs(rp_sub(rp_to_dtype(out[0][0], RP_F64), out[1][0]));
                    ok();
                    assert_true(rp_item_f64(rp_amax(off, NULL, 0)) < 1e-3);
                    continue;
                }
                rp_tensor *y = rp_contiguous(rp_conv2d(x, how == 1 ? laid_out(w, 1) : w, NULL, RP_DIMS(e[0], e[0]),
                                                       RP_DIMS(e[1], e[1]), RP_DIMS(e[2], e[2]), e[3]));
                if (want && !rp__onednn_available())
                    assert_same(want, y, "channels of results"); /* which has ways of its own */
                want = y;
                check("channels of results", conv_block, e, 4 * sizeof *e,
                      (rp_tensor *[]){x, w, FILLED(3, d, e[5], 1, 1), FILLED(4, d, 1, wide),
                                      laid_out(FILLED(5, d, 2, e[5], high, wide), how)},
                      5, 1, ANY);
                check("gradients of channels of results", conv_step, e, 4 * sizeof *e,
                      (rp_tensor *[]){x, w, g, FILLED(7, d, e[4], 1, e[7]), FILLED(8, d, e[5], 1, 1, e[8])}, 5, 2, ANY);
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
}
/* A window that covers the picture, as a classifier's first layer behind a pool, is a product: the bits are the same however its operands lie. */
static void test_covered(void **state) {
    (void)state;
    static const int shapes[][7] = {{3, 20, 5, 5, 24, 1, 0}, {2, 72, 3, 7, 40, 2, 1}, {1, 16, 1, 4, 16, 1, 0}};
    static const rp_dtype dtypes[] = {RP_F16, RP_F32, RP_F32, RP_F64};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    for (unsigned t = 0; t < 4; t++) {
        assert_int_equal(rp_set_float32_conv_precision(t == 2 ? "tf32" : "highest"), RP_OK);
        for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int *e = shapes[s], geometry[4] = {e[5], 0, 1, 1};
            const rp_dtype d = dtypes[t];
            rp_scope scope = rp_scope_begin();
            rp_tensor *want[3] = {NULL};
            for (int how = 0; how < 9; how++) {
                if (!test_cuda_takes(t + s + (unsigned)how, 2)) continue;
                rp_tensor *in[] = {laid_out(FILLED(1, d, e[0], e[1], e[2], e[3]), how % 3),
                                   laid_out(FILLED(2, d, e[4], e[1], e[2], e[3]), how / 3), FILLED(3, d, e[4], 1, 1),
                                   FILLED(4, d, e[4], 1, 1), FILLED(5, d, e[0], e[4], 1, 1)},
                          *made[3];
                conv_block((void *)(uintptr_t)geometry, in, 5, made, 1);
                rp_tensor *step[] = {in[0], in[1], in[4], FILLED(7, d, e[1], 1, e[3]), FILLED(8, d, e[4], 1, 1, e[3])};
                conv_step((void *)(uintptr_t)geometry, step, 5, made + 1, 2);
                ok();
                for (int k = 0; k < 3; k++) {
                    made[k] = rp_contiguous(made[k]);
                    if (want[k]) assert_same(want[k], made[k], "a window that covers the picture");
                    want[k] = made[k];
                }
                if (!test_cuda_takes(t * 9 + (unsigned)how, 5)) continue;
                check("a window that covers the picture", conv_block, geometry, sizeof geometry, in, 5, 1, ANY);
                check("its gradients", conv_step, geometry, sizeof geometry, step, 5, 2, ANY);
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}
/* Pictures of one place along a dim, whose strides nobody sees, under windows that leave them. */
static void test_one_place(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {8, 1}, {1, 8}};
    static const int around[4] = {1, 1, 1, 1};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    for (unsigned t = 0; t < 2; t++) {
        assert_int_equal(rp_set_float32_conv_precision(t ? "tf32" : "highest"), RP_OK);
        for (unsigned s = 0; s < 3; s++) {
            const rp_dtype d = t ? RP_F32 : RP_F16;
            const int64_t high = shapes[s][0], wide = shapes[s][1];
            rp_scope scope = rp_scope_begin();
            rp_tensor *last = rp_permute(FILLED(1, d, 4, high * wide, 32),
                                         RP_DIMS(0, 2, 1)); /* channels innermost, but for a dim of stride 1 */
            rp_tensor *in[] = {wide == 1 ? rp_unsqueeze(last, 3) : rp_unsqueeze(last, 2), FILLED(2, d, 32, 32, 3, 3),
                               FILLED(3, d, 32, 1, 1), FILLED(4, d, 32, 1, 1), FILLED(5, d, 4, 32, high, wide)};
            if (s == 0) in[0] = FILLED(1, d, 4, 32, 1, 1);
            check("a picture of one place", conv_block, around, sizeof around, in, 5, 1, ANY);
            rp_tensor *step[] = {in[0], in[1], in[4], FILLED(7, d, 32, 1, wide), FILLED(8, d, 32, 1, 1, 3)};
            check("its gradients", conv_step, around, sizeof around, step, 5, 2, ANY);
            rp_scope_end(scope, NULL, 0);
        }
    }
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Input gradients of strided convolutions: classes of places, of which those with taps are cut into shares, and the others are zeros. */
static void test_strided_shares(void **state) {
    (void)state;
    /* images, channels, height, width, out, kernel, stride, padding */
    static const int shapes[][8] = {
        {2, 64, 9, 8, 1024, 1, 2, 0}, {2, 72, 8, 9, 512, 3, 2, 1}, {1, 64, 7, 10, 1024, 2, 3, 0}};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    for (unsigned t = 0; t < 4; t++) {
        const rp_dtype d = t % 2 ? RP_F32 : RP_F16;
        assert_int_equal(rp_set_float32_conv_precision(t % 2 ? "tf32" : "highest"), RP_OK);
        for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int *e = shapes[s], geometry[4] = {e[6], e[7], 1, 1};
            const int64_t high = (e[2] + 2 * e[7] - e[5]) / e[6] + 1, wide = (e[3] + 2 * e[7] - e[5]) / e[6] + 1;
            rp_scope scope = rp_scope_begin();
            rp_tensor *in[] = {laid_out(FILLED(1, d, e[0], e[1], e[2], e[3]), t / 2),
                               laid_out(FILLED(2, d, e[4], e[1], e[5], e[5]), t / 2),
                               laid_out(FILLED(6, d, e[0], e[4], high, wide), t / 2), FILLED(7, d, e[1], 1, e[3]),
                               FILLED(8, d, e[4], 1, 1, e[5])},
                      *made[2][2];
            conv_step((void *)(uintptr_t)geometry, in, 5, made[0], 2);
            for (unsigned i = 0; i < 5; i++) in[i] = rp_to_device(rp_to_dtype(in[i], RP_F64), rp_cpu(), false);
            conv_step((void *)(uintptr_t)geometry, in, 5, made[1], 2);
            rp_tensor *off = rp_abs(rp_sub(rp_to_device(rp_to_dtype(made[0][0], RP_F64), rp_cpu(), false), made[1][0]));
            ok();
            assert_true(rp_item_f64(rp_amax(off, NULL, 0)) < 2e-3 * rp_item_f64(rp_amax(rp_abs(made[1][0]), NULL, 0)));
            rp_scope_end(scope, NULL, 0);
        }
    }
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}
static void test_neighbours(void **state) {
    (void)state;
    /* images, channels, height, width, out, kernel, then conv_rest's */
    static const int shapes[][10] = {
        {2, 64, 16, 16, 64, 3, 1, 1, 1, 0},  {3, 64, 9, 7, 64, 3, 1, 1, 1, 1},    {2, 128, 8, 8, 128, 3, 2, 1, 1, 1},
        {1, 64, 24, 24, 200, 1, 1, 0, 1, 0}, {2, 32, 12, 10, 24, 3, 1, 1, 1, 1},  {2, 32, 8, 8, 32, 3, 1, 1, 2, 0},
        {1, 16, 9, 9, 12, 3, 1, 0, 1, 1},    {1, 512, 7, 7, 64, 3, 1, 1, 1, 0},   {2, 3, 32, 32, 64, 7, 2, 3, 1, 1},
        {2, 1, 18, 20, 24, 5, 1, 2, 1, 0},   {1, 4, 22, 22, 40, 3, 1, 1, 1, 0},   {1, 128, 16, 32, 128, 3, 1, 1, 1, 0},
        {1, 64, 32, 24, 64, 3, 1, 1, 1, 1},  {1, 128, 16, 24, 136, 1, 1, 0, 1, 1}};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp__device *const cuda = rp_current_stream(rp_cuda(0))->device;
    const int multiprocessors = cuda->multiprocessors;
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s];
        cuda->multiprocessors = s % 3 == 2 ? multiprocessors : 1; /* few want large tiles, many small ones and shares */
        const int64_t high = (e[2] + 2 * e[7] - e[5]) / e[6] + 1, wide = (e[3] + 2 * e[7] - e[5]) / e[6] + 1;
        for (int how = 0; how < 6; how++) { /* of the input, and of what is added */
            if (!test_cuda_takes(s + (unsigned)how, 5)) continue;
            rp_scope scope = rp_scope_begin();
            const rp_dtype d = s % 2 ? RP_BF16 : RP_F16;
            rp_tensor *in[] = {laid_out(FILLED(1, d, e[0], e[1], e[2], e[3]), how % 2),
                               laid_out(FILLED(2, d, e[4], e[1] / e[8], e[5], e[5]), how % 2),
                               FILLED(3, how % 2 ? RP_F32 : d, e[4], 1, 1),
                               FILLED(4, d, e[4], 1, 1),
                               laid_out(FILLED(5, how == 5 ? RP_F32 : d, e[0], e[4], high, wide), how / 2),
                               laid_out(FILLED(6, d, e[0], 1, high, wide), 0)};
            check("what follows a convolution", conv_rest, &e[6], 4 * sizeof(int), in, 6, 1u + (e[9] != 0), ANY);
            rp_scope_end(scope, NULL, 0);
        }
    }
    cuda->multiprocessors = multiprocessors;
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* A function that is no one graph. */
static void in_segments(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *y = rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1));
    if (rp_item_i64(rp_all(rp_eq(y, y)))) y = rp_relu(y);
    out[0] = y;
}
static void one_conv(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)));
}
/* Gradients of x and w under a setting of their own. */
static void gradients_of(rp_compiled *f, rp_tensor *const *given, bool forward, bool backward, rp_tensor **grad) {
    rp_tensor *in[2] = {rp_detach(given[0]), rp_detach(given[1])}, *y;
    for (int k = 0; k < 2; k++) rp_set_requires_grad(in[k], true);
    rp_set_float32_conv_allow_tf32(forward);
    if (f)
        rp_call(f, in, 2, &y, 1);
    else
        one_conv(NULL, in, 2, &y, 1);
    rp_set_float32_conv_allow_tf32(backward);
    rp_tensor *ones = rp_div_scalar(rp_ones_like(y, NULL), rp_f64(3));
    rp_grad(&y, 1, in, 2, &ones, NULL, grad);
    rp_set_float32_conv_allow_tf32(false);
}
/* Segments and backwards go by the setting as it is when they run, as eagerly. */
static void check_settings(rp_tensor *const *in) {
    rp_compiled *pieces = rp_compile((rp_fn){.body = in_segments, .name = "pieces"},
                                     RP_OPTIONS(rp_compile_options, .backend = "fused")),
                *whole = rp_compile((rp_fn){.body = one_conv, .name = "whole"},
                                    RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (int turn = 0; turn < 6; turn++) {
        rp_tensor *eager, *got, *want[2], *grad[2];
        rp_set_float32_conv_allow_tf32(turn % 2);
        in_segments(NULL, in, 2, &eager, 1);
        rp_call(pieces, in, 2, &got, 1);
        rp_set_float32_conv_allow_tf32(false);
        if (!rp_item_i64(rp_all(rp_eq(eager, got)))) fail_msg("turn %d: segments differ from eager", turn);
        gradients_of(NULL, in, turn % 3 > 0, turn % 3 > 1, want);
        gradients_of(whole, in, turn % 3 > 0, turn % 3 > 1, grad);
        for (int k = 0; k < 2; k++)
            if (!rp_item_i64(rp_all(rp_eq(want[k], grad[k]))))
                fail_msg("turn %d: gradient %d differs from eager", turn, k);
    }
    if (rp_failed()) fail_msg("%s", rp_error_message());
    rp_compiled_release(pieces);
    rp_compiled_release(whole);
}

/* Every tile and every layout give the same bits, forward and of the input's gradient; what is not finite, too great for tf32 or NaN by its last
 * bits alone is what it is to all of them. */
static void check_tiles(void) {
    enum { N = 2, C = 64, O = 72, SIDE = 9, MOST = 16, PATCHES = 8 }; /* conv.c's tiles, conv_patch.c's */
    static float x[N * C * SIDE * SIDE];
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < N * C * SIDE * SIDE; i++) x[i] = (float)(i * 7919 % 2003 - 1001) / 911.0f;
        const uint32_t rare[] = {0x7f800001u, 0xff800000u, 0x7f7ff001u, 0x7fffffffu};
        for (unsigned k = 0; turn && k < 4; k++) memcpy(&x[(k / 2 * C + k) * SIDE * SIDE + k * 21], &rare[k], 4);
        rp_tensor *in = rp_from_data(x, (int64_t[]){N, C, SIDE, SIDE}, 4, RP_F32), *w = FILLED(12, RP_F32, O, C, 3, 3),
                  *g = FILLED(13, RP_F32, N, O, SIDE, SIDE), *want[2] = {NULL, NULL};
        for (int how = 0; how < 4; how++) {
            for (unsigned tile = 0; tile <= MOST + PATCHES; tile++) {
                if (!test_cuda_takes((unsigned)how * 17 + tile, 6) && (how || tile)) continue;
                rp__cuda_conv_tile = tile <= MOST ? tile : tile - MOST + 32;
                rp_tensor *leaf = rp_detach(laid_out(in, how % 2)), *weight = laid_out(w, how / 2), *got[2];
                rp_set_requires_grad(leaf, true);
                got[0] = rp_conv2d(leaf, weight, NULL, RP_DIMS(1, 1), RP_DIMS(1, 1));
                rp_tensor *grad_y = laid_out(g, how % 2), *y = got[0];
                rp_grad(&y, 1, &leaf, 1, &grad_y, NULL, &got[1]);
                got[0] = rp_detach(got[0]);
                ok();
                for (int k = 0; k < 2; k++) {
                    if (!want[k]) {
                        want[k] = got[k];
                        continue;
                    }
                    rp_tensor *same =
                        rp_logical_or(rp_eq(want[k], got[k]), rp_logical_and(rp_isnan(want[k]), rp_isnan(got[k])));
                    if (!rp_item_i64(rp_all(same)))
                        fail_msg("turn %d, layout %d, tile %u: %d differs", turn, how, tile, k);
                }
            }
        }
        rp__cuda_conv_tile = 0;
        if (turn) {
            assert_int_equal(rp_item_i64(rp_any(rp_isnan(want[0]))), 1);
            assert_int_equal(rp_item_i64(rp_any(rp_isinf(want[0]))), 1);
        }
    }
}

/* Bulk copies give the bits of other tiles: forward, input and weight gradients, windows that leave the picture, strides with classes that have no taps,
 * dilations, groups, channels that are no whole lines, one to three dims, images that end within a tile; f32 with ties. */
static rp_tensor *last_channels(rp_tensor *t, int spatial) {
    static const int64_t there[3][5] = {{0, 2, 1}, {0, 2, 3, 1}, {0, 2, 3, 4, 1}},
                         back[3][5] = {{0, 2, 1}, {0, 3, 1, 2}, {0, 4, 1, 2, 3}};
    const size_t n = (size_t)spatial + 2;
    return rp_permute(rp_contiguous(rp_permute(t, there[spatial - 1], n)), back[spatial - 1], n);
}
static void test_bulk(void **state) {
    (void)state;
    enum { FIRST = 17, TILES = 14 };
    /* spatial, images, channels, out, size, kernel, stride, padding, dilation, groups */
    static const int
        shapes[][10] = {{2, 3, 64, 80, 9, 3, 1, 1, 1, 1},    {2, 2, 128, 64, 11, 3, 2, 1, 1, 1},
                        {2, 2, 192, 144, 10, 1, 2, 0, 1, 1}, {2, 1, 48, 48, 13, 3, 1, 1, 2, 1},
                        {2, 2, 80, 96, 7, 5, 2, 2, 1, 1},    {2, 2, 128, 128, 8, 3, 1, 0, 1, 2},
                        {1, 2, 64, 64, 40, 7, 2, 3, 1, 1},   {3, 1, 32, 64, 6, 3, 1, 1, 1, 1},
                        {2, 2, 256, 256, 6, 1, 1, 0, 1, 1},  {3, 1, 64, 32, 7, 2, 2, 0, 1, 1},
                        {2, 4, 32, 48, 26, 3, 1, 0, 1, 1}}; /* the last one: weights in parts of two shares */
    static const rp_dtype dtypes[] = {RP_F16, RP_F32, RP_BF16};
    static const char *const names[] = {"convolutions by bulk copies", "input gradients by bulk copies",
                                        "weight gradients by bulk copies"};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    assert_int_equal(rp_set_float32_conv_precision("tf32"), RP_OK);
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s], dims = e[0];
        for (unsigned t = 0; t < 3; t++) {
            /* On the emulator half of these, with a tile each, and weights in parts. */
            const bool parts = t == 1 && s + 1 == sizeof shapes / sizeof *shapes;
            const unsigned turn = s + 9 * t, only = parts ? 3 : turn / 2 % TILES + 1;
            if (!parts && !test_cuda_takes(turn, 2)) continue;
            rp_scope scope = rp_scope_begin();
            int64_t size[3][5] = {{e[1], e[2]}, {e[3], e[2] / e[9]}, {e[1], e[3]}}, stride[3], padding[3], dilation[3];
            for (int d = 0; d < dims; d++) {
                stride[d] = e[6], padding[d] = d ? e[7] : e[7] / 2, dilation[d] = e[8];
                size[0][2 + d] = e[4] + d, size[1][2 + d] = d ? e[5] : (e[5] + 1) / 2;
                size[2][2 + d] = (size[0][2 + d] + 2 * padding[d] - dilation[d] * (size[1][2 + d] - 1) - 1) / e[6] + 1;
            }
            rp_tensor *in[3], *want[3] = {NULL, NULL, NULL};
            for (int k = 0; k < 3; k++) {
                static float data[1 << 17];
                int64_t n = 1;
                for (int d = 0; d < dims + 2; d++) n *= size[k][d];
                assert_in_range(n, 1, (int)(sizeof data / sizeof *data));
                for (int64_t i = 0; i < n; i++) {
                    uint32_t bits;
                    data[i] = (float)((i * 7919 + k * 104729) % 2003 - 1001) / 911.0f;
                    memcpy(&bits, &data[i], sizeof bits);
                    if (i % 5 == 0) bits = (bits & ~0x1fffu) | 0x1000; /* between two tf32 */
                    memcpy(&data[i], &bits, sizeof bits);
                }
                in[k] =
                    last_channels(rp_to_dtype(rp_from_data(data, size[k], (size_t)dims + 2, RP_F32), dtypes[t]), dims);
            }
            const bool weights = dtypes[t] == RP_F32 && e[2] / e[9] % 32 == 0; /* of f32 alone */
            for (unsigned tile = 0; tile <= TILES; tile++) {
                if (tile && tile != only && !test_cuda_takes(1, 2)) continue;
                for (int k = 0; k < (weights ? 3 : 2); k++) {
                    const unsigned before = rp__conv_bulks;
                    rp__cuda_conv_tile =
                        (tile ? FIRST + tile - 1 : 1) + 64 * (s % 3 ? s % 3 + 1 : 0); /* shares: any, 2, 4 */
                    rp_tensor *leaf = rp_detach(in[k == 2]), *got;
                    (void)rp_set_requires_grad(leaf, true);
                    rp_tensor *x = k == 2 ? in[0] : leaf, *w = k == 2 ? leaf : in[1];
                    const size_t n = (size_t)dims;
                    rp_tensor *y = dims == 1   ? rp_conv1d(x, w, NULL, stride, n, padding, n, dilation, n, e[9])
                                   : dims == 2 ? rp_conv2d(x, w, NULL, stride, n, padding, n, dilation, n, e[9])
                                               : rp_conv3d(x, w, NULL, stride, n, padding, n, dilation, n, e[9]);
                    got = rp_detach(y);
                    if (k) rp_grad(&y, 1, &leaf, 1, &in[2], NULL, &got);
                    rp__cuda_conv_tile = 0;
                    ok();
                    if (tile) {
                        assert_same(want[k], got, names[k]);
                        if (rp__conv_bulks != before + 1 + (k > 0))
                            fail_msg("shape %u, type %u, tile %u, %d: no bulk copies", s, t, tile, k);
                    } else {
                        assert_int_equal(rp__conv_bulks, before);
                        want[k] = got;
                    }
                }
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Sums of weights in parts of one share, of two and of four, of operands that bulk copies take and of others, by rows, that they do not. */
static void test_bulk_shares(void **state) {
    (void)state;
    enum { FORCED = 64 };
    /* images, channels, size, out, kernel */
    static const int shapes[][5] = {{4, 32, 18, 48, 3}, {5, 160, 15, 64, 1}};
    const int64_t one[2] = {1, 1}, none[2] = {0, 0};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    assert_int_equal(rp_set_float32_conv_precision("tf32"), RP_OK);
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (unsigned shares = 1; shares <= 3; shares++) {
            const int *e = shapes[s];
            const int64_t out = e[2] - e[4] + 1;
            rp_scope scope = rp_scope_begin();
            rp_tensor *want = NULL;
            for (int rows = 0; rows < 2; rows++) {
                rp_tensor *x = FILLED(1, RP_F32, e[0], e[1], e[2], e[2]),
                          *w = FILLED(2, RP_F32, e[3], e[1], e[4], e[4]), *dy = FILLED(3, RP_F32, e[0], e[3], out, out),
                          *got;
                if (!rows) x = last_channels(x, 2), dy = last_channels(dy, 2);
                (void)rp_set_requires_grad(w, true);
                rp_tensor *y = rp_conv2d(x, w, NULL, one, 2, none, 2, one, 2, 1);
                const unsigned before = rp__conv_bulks;
                rp__cuda_conv_tile = FORCED * shares;
                rp_grad(&y, 1, &w, 1, &dy, NULL, &got);
                rp__cuda_conv_tile = 0;
                ok();
                if (rows)
                    assert_same(want, got, "shares of weights");
                else
                    assert_int_equal(rp__conv_bulks, before + 1);
                want = got;
            }
            rp_scope_end(scope, NULL, 0);
        }
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Padding around a picture without places has results all the same, and a step far beyond the picture is no loop. */
static void test_bulk_ends(void **state) {
    (void)state;
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp_tensor *y = rp_conv1d(rp_zeros(RP_DIMS(1, 64, 0), RP_OPTIONS(rp_zeros_options, .dtype = RP_F16)),
                             FILLED(1, RP_F16, 64, 64, 3), NULL, RP_DIMS(1), RP_DIMS(2));
    ok();
    assert_int_equal(rp_size(y, 2), 2);
    assert_false(rp_item_i64(rp_any(y)));
    rp_tensor *x = FILLED(2, RP_F16, 1, 64, 2, 2);
    (void)rp_set_requires_grad(x, true);
    y = rp_conv2d(x, FILLED(3, RP_F16, 256, 64, 1, 1), NULL, RP_DIMS(INT32_MAX, INT32_MAX));
    rp_tensor *gradient, *seed = rp_ones_like(rp_detach(y));
    rp_grad(&y, 1, &x, 1, &seed, NULL, &gradient);
    ok();
    assert_int_equal(rp_item_i64(rp_count_nonzero(gradient)) > 64, false);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Gradients of convolutions that round have the same bits wherever channels lie: side by side, weights' are turned on their way to warpgroups. */
static void test_rounded_turned(void **state) {
    (void)state;
    /* images, channels, height and width, out, kernel, stride, groups */
    static const int shapes[][7] = {{3, 32, 14, 64, 3, 1, 1},
                                    {2, 128, 15, 128, 1, 1, 1},
                                    {2, 64, 17, 136, 3, 2, 1},
                                    {5, 60, 9, 68, 2, 1, 1},
                                    {2, 64, 12, 192, 3, 1, 2}};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    assert_int_equal(rp_set_float32_conv_precision("tf32"), RP_OK);
    rp__device *const cuda = rp_current_stream(rp_cuda(0))->device;
    const int multiprocessors = cuda->multiprocessors;
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s], step[4] = {e[5], 1, 1, e[6]};
        const int64_t out = (e[2] + 2 - e[4]) / e[5] + 1;
        for (int count = 0; count < 2; count++) { /* of multiprocessors: shares of long sums, and none */
            if (!test_cuda_takes(s + (unsigned)count, 2)) continue;
            cuda->multiprocessors = count ? 1 : multiprocessors;
            rp_scope scope = rp_scope_begin();
            rp_tensor *first[2] = {0}, *made[2];
            for (int last = 0; last < 2; last++) {
                rp_tensor *in[] = {laid_out(FILLED(1, RP_F32, e[0], e[1], e[2], e[2]), last),
                                   laid_out(FILLED(2, RP_F32, e[3], e[1] / e[6], e[4], e[4]), last),
                                   laid_out(FILLED(3, RP_F32, e[0], e[3], out, out), last),
                                   FILLED(4, RP_F32, e[1], 1, 1), FILLED(5, RP_F32, e[3], 1, 1, 1)};
                conv_step((void *)(uintptr_t)step, in, 5, made, 2);
                ok();
                for (int k = 0; k < 2; k++) {
                    if (last)
                        assert_same(first[k], made[k], "gradients that round, in two layouts");
                    else
                        first[k] = made[k];
                }
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
    cuda->multiprocessors = multiprocessors;
    assert_int_equal(rp_set_float32_conv_precision("highest"), RP_OK);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Convolutions of f32 that may round to tf32: what follows them and their gradients joins as ever, results are near and not the same, and a compiled
 * function goes with the setting. */
static void test_rounded(void **state) {
    (void)state;
    /* images, channels, height, width, out, kernel, then conv_rest's */
    static const int shapes[][10] = {{2, 64, 16, 16, 64, 3, 1, 1, 1, 0}, {3, 20, 9, 7, 24, 3, 1, 1, 1, 1},
                                     {1, 256, 7, 7, 64, 3, 1, 1, 1, 0},  {2, 3, 32, 32, 64, 7, 2, 3, 1, 1},
                                     {2, 32, 8, 8, 40, 3, 1, 1, 2, 0},   {1, 128, 16, 24, 136, 1, 1, 0, 1, 1}};
    static const int steps[][5] = {{1, 1, 1, 1, 8}, {2, 1, 1, 1, 40}, {3, 2, 2, 1, 8}, {1, 1, 1, 4, 64}};
    assert_string_equal(rp_float32_conv_precision(), "highest");
    assert_false(rp_float32_conv_allow_tf32());
    assert_int_not_equal(rp_set_float32_conv_precision("medium"), RP_OK);
    assert_non_null(strstr(rp_error_message(), "medium"));
    (void)rp_error_take();
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp__device *const cuda = rp_current_stream(rp_cuda(0))->device;
    const int multiprocessors = cuda->multiprocessors;
    assert_int_equal(rp_set_float32_conv_precision("tf32"), RP_OK);
    assert_string_equal(rp_float32_conv_precision(), "high");
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s];
        cuda->multiprocessors = s % 2 ? 1 : multiprocessors;
        const int64_t high = (e[2] + 2 * e[7] - e[5]) / e[6] + 1, wide = (e[3] + 2 * e[7] - e[5]) / e[6] + 1;
        for (int how = 0; how < 6; how++) {
            if (!test_cuda_takes(s + (unsigned)how, 5)) continue;
            rp_scope scope = rp_scope_begin();
            rp_tensor *in[] = {laid_out(FILLED(1, RP_F32, e[0], e[1], e[2], e[3]), how % 2),
                               laid_out(FILLED(2, RP_F32, e[4], e[1] / e[8], e[5], e[5]), how % 2),
                               FILLED(3, RP_F32, e[4], 1, 1),
                               FILLED(4, how % 2 ? RP_BF16 : RP_F32, e[4], 1, 1),
                               laid_out(FILLED(5, RP_F32, e[0], e[4], high, wide), how / 2),
                               laid_out(FILLED(6, RP_F32, e[0], 1, high, wide), 0)};
            check("what follows a rounded convolution", conv_rest, &e[6], 4 * sizeof(int), in, 6, 1u + (e[9] != 0),
                  ANY);
            rp_scope_end(scope, NULL, 0);
        }
    }
    for (unsigned s = 0; s < sizeof steps / sizeof *steps; s++) {
        const int64_t out = (10 + 2 * steps[s][1] - steps[s][2] * 2 - 1) / steps[s][0] + 1, channels = steps[s][3] * 16;
        for (int last = 0; last < 2; last++) {
            if (!test_cuda_takes(s + (unsigned)last, 2)) continue;
            rp_scope scope = rp_scope_begin();
            rp_tensor *in[] = {laid_out(FILLED(1, RP_F32, 3, channels, 10, 10), last),
                               laid_out(FILLED(2, RP_F32, steps[s][4], 16, 3, 3), last),
                               laid_out(FILLED(3, RP_F32, 3, steps[s][4], out, out), last),
                               FILLED(4, RP_F32, channels, 1, 10), FILLED(5, RP_F32, steps[s][4], 1, 1, 3)};
            check("rounded gradients", conv_step, steps[s], sizeof steps[s], in, 5, 2, ANY);
            rp_scope_end(scope, NULL, 0);
        }
    }
    cuda->multiprocessors = multiprocessors;
    rp_scope scope = rp_scope_begin();
    static int one[] = {1, 1, 1, 1};
    rp_tensor *in[] = {FILLED(6, RP_F32, 2, 16, 9, 9), FILLED(7, RP_F32, 24, 16, 3, 3), FILLED(8, RP_F32, 24, 1, 1),
                       FILLED(9, RP_F32, 24, 1, 1), FILLED(10, RP_F32, 2, 24, 9, 9)};
    rp_compiled *f = rp_compile((rp_fn){.body = conv_block, .ctx = one, .ctx_bytes = sizeof one, .name = "rounded"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    rp_tensor *plain[2], *seen[2], *got;
    for (int turn = 0; turn < 4; turn++) {
        rp_tensor *eager;
        assert_int_equal(rp_set_float32_conv_allow_tf32(turn % 2), turn % 2 == 0);
        plain[turn % 2] = rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1));
        conv_block(one, in, 5, &eager, 1);
        rp_call(f, in, 5, &got, 1);
        if (!rp_item_i64(rp_all(rp_eq(eager, got)))) fail_msg("turn %d: eager and compiled differ", turn);
        seen[turn % 2] = got;
    }
    assert_true(rp_set_float32_conv_allow_tf32(false));
    assert_false(rp_item_i64(rp_all(rp_eq(seen[0], seen[1]))));
    rp_tensor *size = rp_conv2d(rp_abs(in[0]), rp_abs(in[1]), NULL, RP_DIMS(1, 1), RP_DIMS(1, 1)),
              *away = rp_abs(rp_sub(plain[0], plain[1]));
    assert_true(rp_item_i64(rp_all(rp_le(away, rp_mul_scalar(size, rp_f64(1.1e-3))))));
    assert_true(rp_item_i64(rp_any(rp_gt(away, rp_mul_scalar(size, rp_f64(1e-6))))));
    rp_compiled_release(f);
    check_settings(in);
    assert_int_equal(rp_set_float32_conv_precision("tf32"), RP_OK);
    check_tiles();
    assert_true(rp_set_float32_conv_allow_tf32(false));
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* What follows a product, along whose columns eight are taken at once: sums, numbers of a row and of a column, places, another type. */
static void product_rest(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in;
    rp_tensor *y = rp_matmul(in[0], in[1]);
    out[0] = rp_add(rp_mul(rp_add(y, in[2]), in[3]), in[4]);
    if (n_out > 1) out[1] = rp_to_dtype(rp_tril(rp_relu(y), 1), RP_F32);
}

static void test_product_neighbours(void **state) {
    (void)state;
    /* batch, rows, columns, K */
    static const int shapes[][4] = {{1, 64, 64, 64},   {2, 40, 72, 128}, {3, 130, 136, 64}, {1, 16, 256, 512},
                                    {1, 5, 128, 4096}, {1, 70, 24, 96},  {2, 33, 16, 80},   {1, 200, 264, 256},
                                    {1, 1, 512, 300},  {1, 12, 65, 64},  {4, 72, 128, 192}};
    static const rp_dtype dtypes[] = {RP_BF16, RP_F16, RP_F32, RP_I8};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp__device *const cuda = rp_current_stream(rp_cuda(0))->device;
    const int multiprocessors = cuda->multiprocessors;
    for (unsigned s = 0, groups = 0; s < 4 * sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s / 4];
        const rp_dtype d = dtypes[s % 4];
        const bool by_groups = s % 4 < 2 && s / 4 % 4 < 2;
        cuda->multiprocessors = by_groups   ? 132
                                : s / 4 % 2 ? multiprocessors
                                            : 1; /* few want large tiles, no library's */
        for (int how = 0; how < 5; how++) { /* of what is added: dense, turned, a row for all, f32, between vectors */
            /* on the emulator one of each shape and type, all of each type: 6 and 7 are 1 and 2 mod 5 */
            const unsigned turn = 6 * (s / 4) + 7 * (s % 4) + (unsigned)how;
            if (!test_cuda_takes(turn, 5)) continue;
            rp_scope scope = rp_scope_begin();
            rp_tensor *add = how == 1   ? rp_transpose(FILLED(3, d, e[0], e[2], e[1]), 1, 2)
                             : how == 2 ? FILLED(3, d, 1, 1, e[2])
                             : how == 4 ? rp_slice(FILLED(3, d, e[0], e[1], e[2] + 1), 2, 1, INT64_MAX, 1)
                                        : FILLED(3, how == 3 ? RP_F32 : d, e[0], e[1], e[2]);
            rp_tensor *in[] = {FILLED(1, d, e[0], e[1], e[3]), FILLED(2, d, e[0], e[3], e[2]), add,
                               FILLED(4, d, e[1], 1), FILLED(5, d, e[2])};
            rp__cuda_product_tile = by_groups ? 17 + (groups + turn % 5) % 11 : 0; /* as chosen otherwise */
            check("what follows a product", product_rest, NULL, 0, in, 5, 1u + (s / 4 + s + (unsigned)how) % 2, ANY);
            rp_scope_end(scope, NULL, 0);
        }
        groups += by_groups;
    }
    rp__cuda_product_tile = 0;
    cuda->multiprocessors = multiprocessors;
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Results that lie along rows of the first factor, as the gradient of a weight does that is stored by its inputs: the factors change
   places, and the bits stay. */
static void across(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(in[2], rp_transpose(rp_matmul(rp_transpose(in[0], -1, -2), in[1]), -1, -2));
}
static void test_results_across(void **state) {
    (void)state;
    /* batch, rows, columns, K */
    static const int shapes[][4] = {{1, 72, 136, 64}, {2, 40, 72, 128}, {1, 130, 264, 40},
                                    {1, 16, 64, 300}, {1, 33, 17, 50},  {1, 264, 136, 512}};
    static const struct {
        rp_dtype dtype;
        const char *precision;
    } ways[] = {{RP_BF16, "highest"}, {RP_F16, "highest"}, {RP_F32, "highest"},
                {RP_F32, "high"},     {RP_F32, "bf16x3"},  {RP_I8, "highest"}};
    enum { WAYS = sizeof ways / sizeof *ways };
    unsigned turns[WAYS] = {0};
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp__device *const cuda = rp_current_stream(rp_cuda(0))->device;
    const int multiprocessors = cuda->multiprocessors;
    for (unsigned s = 0; s < WAYS * sizeof shapes / sizeof *shapes; s++) {
        const int *e = shapes[s / WAYS];
        const rp_dtype d = ways[s % WAYS].dtype;
        const unsigned before = rp__contract_turns;
        assert_int_equal(rp_set_float32_matmul_precision(ways[s % WAYS].precision), RP_OK);
        rp_scope scope = rp_scope_begin();
        cuda->multiprocessors = s % 2 ? multiprocessors : 132;
        rp_tensor *in[] = {FILLED(1, d, e[0], e[3], e[1]), FILLED(2, d, e[0], e[3], e[2]),
                           FILLED(3, d, e[0], e[2], e[1])};
        check("a result across", across, NULL, 0, in, 3, 1, ANY);
        rp_scope_end(scope, NULL, 0);
        turns[s % WAYS] += rp__contract_turns - before;
    }
    for (unsigned w = 0; w < WAYS; w++) /* the parts of a factor in bf16x3 are added up in an order of its own */
        if ((turns[w] > 0) == (strcmp(ways[w].precision, "bf16x3") == 0)) fail_msg("way %u: %u turns", w, turns[w]);
    assert_int_equal(rp_set_float32_matmul_precision("highest"), RP_OK);
    cuda->multiprocessors = multiprocessors;
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* Factors that the product's own kernel makes: of 0 numbers a column, of 1 a weight in bytes with a scale a row, of 2 another type, of 3 both
   factors, 4 a transposed one, 5 with numbers for all, 6 of an expanded one. */
static void made(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int way = *(const int *)ctx;
    (void)n_in, (void)n_out;
    switch (way) {
    case 0: out[0] = rp_gelu(rp_linear(rp_relu(rp_mul(in[0], in[1])), in[2], in[3])); break;
    case 1: out[0] = rp_linear(in[0], rp_mul(rp_to_dtype(in[1], rp_dtype_of(in[0])), in[2]), NULL); break;
    case 2: out[0] = rp_add(rp_matmul(rp_to_dtype(in[0], rp_dtype_of(in[1])), in[1]), in[2]); break;
    case 3: out[0] = rp_neg(rp_matmul(rp_abs(in[0]), rp_mul(in[1], in[2]))); break;
    case 4: out[0] = rp_matmul(rp_transpose(rp_neg(in[0]), -1, -2), rp_transpose(rp_relu(in[1]), -1, -2)); break;
    case 5: out[0] = rp_matmul(rp_add_scalar(rp_mul_scalar(in[0], rp_f64(0.37)), rp_f64(1.25)), in[1]); break;
    default: out[0] = rp_matmul(rp_expand(rp_neg(in[0]), RP_DIMS(3, 9, 20)), in[1]); break;
    }
}
/* Who reads what is made shows: another reader within the kernel or outside of it, a reduction, more tiles than the work is worth. */
static void not_made(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int way = *(const int *)ctx;
    (void)n_in, (void)n_out;
    rp_tensor *y = way == 2 ? rp_softmax(in[0], -1) : way == 3 ? rp_tanh(in[0]) : rp_relu(in[0]);
    out[0] = rp_linear(y, in[1], NULL);
    if (way == 0) out[0] = rp_add(out[0], y);
    if (way == 1) out[1] = y;
}
/* A product of f32 that reads its first factor, or both, from bf16. */
static void widened(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *a = rp_to_dtype(in[0], RP_F32), *b = rp_to_dtype(in[1], RP_F32);
    out[0] = rp_relu(rp_matmul(a, *(const int *)ctx ? rp_mul(b, in[2]) : b));
}
/* Where the matrix unit multiplies bf16, what makes a factor is a kernel of its own; products of f32 are not the unit's, wherever their
   factors come from. */
static void test_factors_of_a_matrix_unit(void **state) {
    (void)state;
    static const int first = 0, ways[] = {0, 1};
    if (!rp__dots_here()) skip();
    rp_scope scope = rp_scope_begin();
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    rp_compiled *f = compiled("a scaled input", made, &first, sizeof first,
                              (rp_tensor *[]){FILLED(1, RP_BF16, 3, 17, 70), FILLED(2, RP_BF16, 70),
                                              FILLED(3, RP_BF16, 33, 70), FILLED(4, RP_BF16, 33)},
                              4, 1, 2);
    assert_true(count(f, "unfused", "factor-would-repeat") > 0);
    rp_compiled_release(f);
    for (unsigned k = 0; k < 2; k++) {
        check("a widened factor", widened, &ways[k], sizeof ways[k],
              (rp_tensor *[]){FILLED(1, RP_BF16, 9, 70), FILLED(2, RP_F32, 70, 40), FILLED(3, RP_F32, 70, 1)}, 3, 1, 1);
        check("two widened factors", widened, &ways[k], sizeof ways[k],
              (rp_tensor *[]){FILLED(1, RP_BF16, 9, 70), FILLED(2, RP_BF16, 70, 40), FILLED(3, RP_F32, 70, 1)}, 3, 1,
              1);
    }
    check("a factor of another type", made, &(int){2}, sizeof(int),
          (rp_tensor *[]){FILLED(1, RP_F32, 2, 9, 20), FILLED(2, RP_BF16, 2, 20, 13), FILLED(3, RP_BF16, 13)}, 3, 1, 2);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static void test_factors(void **state) {
    (void)state;
    static const int ways[] = {0, 1, 2, 3, 4, 5, 6};
    rp__dots_set(0); /* the matrix unit takes operands from memory */
    for (int cuda = 0; cuda <= (have_cuda ? 1 : 0); cuda++) {
        rp_scope scope = rp_scope_begin();
        assert_int_equal(rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()), RP_OK);
        static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
        for (unsigned t = 0; t < 4; t++) {
            const rp_dtype d = dtypes[t], other = d == RP_F32 ? RP_BF16 : RP_F32;
            check("a scaled input", made, &ways[0], sizeof(int),
                  (rp_tensor *[]){FILLED(1, d, 3, 17, 70), FILLED(2, d, 70), FILLED(3, d, 33, 70), FILLED(4, d, 33)}, 4,
                  1, 1);
            check("a weight of bytes", made, &ways[1], sizeof(int),
                  (rp_tensor *[]){FILLED(1, d, 5, 70),
                                  rp_to_dtype(rp_mul_scalar(FILLED(2, RP_F32, 33, 70), rp_f64(99)), RP_I8),
                                  FILLED(3, d, 33, 1)},
                  3, 1, 1);
            check("a factor of another type", made, &ways[2], sizeof(int),
                  (rp_tensor *[]){FILLED(1, other, 2, 9, 20), FILLED(2, d, 2, 20, 13), FILLED(3, d, 13)}, 3, 1, 1);
            check("both factors", made, &ways[3], sizeof(int),
                  (rp_tensor *[]){FILLED(1, d, 9, 20), FILLED(2, d, 20, 13), FILLED(3, d, 20, 1)}, 3, 1, 1);
            check("transposed factors", made, &ways[4], sizeof(int),
                  (rp_tensor *[]){FILLED(1, d, 2, 20, 9), FILLED(2, d, 2, 13, 20)}, 2, 1, 1);
        }
        check("numbers for all", made, &ways[5], sizeof(int),
              (rp_tensor *[]){FILLED(1, RP_F32, 30, 20), FILLED(2, RP_F32, 20, 3)}, 2, 1, 1);
        check("an expanded factor", made, &ways[6], sizeof(int),
              (rp_tensor *[]){FILLED(1, RP_F32, 9, 20), FILLED(2, RP_F32, 3, 20, 13)}, 2, 1, 1);
        check("long sums", made, &ways[3], sizeof(int),
              (rp_tensor *[]){FILLED(1, RP_F64, 5, 300), FILLED(2, RP_F64, 300, 7), FILLED(3, RP_F64, 7)}, 3, 1, 1);
        check("one row", made, &ways[0], sizeof(int),
              (rp_tensor *[]){FILLED(1, RP_F32, 1, 300), FILLED(2, RP_F32, 300), FILLED(3, RP_F32, 270, 300),
                              FILLED(4, RP_F32, 270)},
              4, 1, 1);
        check("one term", made, &ways[3], sizeof(int),
              (rp_tensor *[]){FILLED(1, RP_F32, 6, 1), FILLED(2, RP_F32, 1, 7), FILLED(3, RP_F32, 7)}, 3, 1, 1);
        check("factors with gaps", made, &ways[3], sizeof(int),
              (rp_tensor *[]){rp_slice(FILLED(1, RP_F32, 40, 30), 0, 1, 39, 2),
                              rp_transpose(FILLED(2, RP_F32, 50, 30), 0, 1), FILLED(3, RP_F32, 50)},
              3, 1, 1);
        static const struct {
            const char *what, *reason;
            int64_t columns;
            size_t n_out;
            int way;
        } apart[] = {{"read by what follows", "iteration-spaces-differ", 40, 1, 0},
                     {"a result, too", "store-would-repeat", 13, 2, 1},
                     {"made of rows", "reduction-would-repeat", 13, 1, 2},
                     {"for many tiles", "factor-would-repeat", 6000, 1, 3}};
        for (unsigned k = 0; k < 4; k++) {
            rp_compiled *f =
                compiled(apart[k].what, not_made, &apart[k].way, sizeof(int),
                         (rp_tensor *[]){FILLED(1, RP_F32, 3, 40), FILLED(2, RP_F32, apart[k].columns, 40)}, 2,
                         apart[k].n_out, 2);
            if (count(f, "unfused", apart[k].reason) == 0) {
                for (size_t i = 0; i < rp_explain_count(f); i++) {
                    rp_explain_entry e;
                    (void)rp_explain_get(f, i, &e);
                    print_message("%s [%s] %s\n", e.kind, e.reason, e.message);
                }
                fail_msg("%s: no %s", apart[k].what, apart[k].reason);
            }
            rp_compiled_release(f);
        }
        rp_scope_end(scope, NULL, 0);
    }
    rp__dots_set(-1);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* A product that another library computes is a launch of its own, and explain says why. */
static void test_elsewhere(void **state) {
    (void)state;
    if (!have_cuda) skip();
    rp_scope scope = rp_scope_begin();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp_tensor *in[] = {FILLED(1, RP_F64, 200, 192), FILLED(2, RP_F64, 128, 192), FILLED(3, RP_F64, 128)};
    rp_compiled *f = compiled("a large product", linear_gelu, NULL, 0, in, 3, 1, 2);
    assert_int_equal(count(f, "unfused", "product-served-elsewhere"), 1);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* The node: one object for equal expressions, its text, and the DAG of what follows. */
static rp__dag *node(rp__contract_form form, rp_dtype dtype, rp_dtype out) {
    rp__dag_builder *b = rp__dag_new();
    const rp__val x = rp__dag_load(b, rp__dag_access(b, RP__ACCESS_READ, dtype, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
    const rp__val w = rp__dag_load(b, rp__dag_access(b, RP__ACCESS_READ, dtype, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
    rp__val y = rp__dag_contract(b, x, w, RP__ALONG_ROW, rp__order_of(form, dtype == RP_F64));
    y = rp__dag_op(b, RP__NEG, y, RP__NO_VAL, RP__NO_VAL);
    rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, out, RP__ALONG_ROWS), y);
    return rp__dag_finish(b);
}
static void test_node(void **state) {
    (void)state;
    rp__dag *one = node(RP__CONTRACT_PRODUCT, RP_F32, RP_F32), *same = node(RP__CONTRACT_PRODUCT, RP_F32, RP_F32),
            *conv = node(RP__CONTRACT_CONV, RP_F32, RP_F32), *wide = node(RP__CONTRACT_PRODUCT, RP_F64, RP_F64);
    assert_non_null(one);
    assert_ptr_equal(one, same);
    assert_ptr_not_equal(one, conv);
    assert_ptr_equal(one->rest, conv->rest); /* what follows is one kernel */
    rp__text t = {0};
    rp__dag_text(one, &t);
    assert_non_null(strstr(t.data, "= contract product %0, %1 over b by 256, 16 [a] phase 1"));
    rp__text_free(&t);
    rp__dag_text(wide, &t);
    assert_non_null(strstr(t.data, "by 128, 16"));
    rp__text_free(&t);
    assert_int_equal(one->rest->n_accesses, 2);
    assert_null(one->rest->rest);
    assert_null(one->before[0]);
    rp__dag_release(one), rp__dag_release(same), rp__dag_release(conv), rp__dag_release(wide);
    /* a factor that is made is a DAG of its own */
    rp__dag_builder *b = rp__dag_new();
    rp__val x = rp__dag_load(b, rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
    const rp__val w = rp__dag_load(b, rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
    const rp__val minus = rp__dag_op(b, RP__NEG, w, RP__NO_VAL, RP__NO_VAL);
    rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, RP__ALONG_ROWS),
                  rp__dag_contract(b, x, minus, RP__ALONG_ROW, rp__order_of(RP__CONTRACT_PRODUCT, 0)));
    rp__dag *makes = rp__dag_finish(b);
    assert_non_null(makes);
    assert_null(makes->before[0]);
    assert_non_null(makes->before[1]);
    assert_int_equal(makes->before[1]->n_accesses, 2);
    assert_int_equal(makes->before_access[1][1], 1);
    rp__dag_text(makes->before[1], &t);
    assert_non_null(strstr(t.data, "neg"));
    rp__text_free(&t);
    rp__dag_release(makes);
    /* a reduction beside it, bools */
    b = rp__dag_new();
    x = rp__dag_load(b, rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
    x = rp__dag_op(b, RP__ADD, rp__dag_contract(b, x, x, RP__ALONG_ROW, rp__order_of(RP__CONTRACT_PRODUCT, 0)),
                   rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW), RP__NO_VAL);
    rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, RP__ALONG_ROWS), x);
    assert_null(rp__dag_finish(b));
    assert_int_equal(rp_error_take(), RP_ERROR_INTERNAL);
    b = rp__dag_new();
    x = rp__dag_load(b, rp__dag_access(b, RP__ACCESS_READ, RP_BOOL, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
    assert_int_equal(rp__dag_contract(b, x, x, RP__ALONG_ROW, 0), RP__NO_VAL);
    assert_null(rp__dag_finish(b));
    assert_int_equal(rp_error_take(), RP_ERROR_INTERNAL);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_node),           cmocka_unit_test(test_reduced_over_nothing),
        cmocka_unit_test(test_layout),         cmocka_unit_test(test_layout_families),
        cmocka_unit_test(test_layout_across),  cmocka_unit_test(test_layout_depthwise),
        cmocka_unit_test(test_unseen_stride),  cmocka_unit_test(test_stored_two_ways),
        cmocka_unit_test(test_everyday),       cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_many_groups),    cmocka_unit_test(test_channels_of_results),
        cmocka_unit_test(test_covered),        cmocka_unit_test(test_strided_shares),
        cmocka_unit_test(test_one_place),      cmocka_unit_test(test_product_neighbours),
        cmocka_unit_test(test_results_across), cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_rounded),        cmocka_unit_test(test_bulk),
        cmocka_unit_test(test_bulk_ends),      cmocka_unit_test(test_bulk_shares),
        cmocka_unit_test(test_rounded_turned), cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_factors),        cmocka_unit_test(test_factors_of_a_matrix_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
