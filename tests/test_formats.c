/* How results lie in memory: strides of PyTorch (tests/data/golden/strides.txt, scripts/golden_strides.py), eagerly and compiled;
   formats that are asked for; writes, views and gradients over such memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "support/check.h"
#include "support/golden.h"

static int begin(void **state) {
    (void)state;
    return rp_failed();
}

enum { OPERANDS = 3, ROOM = 8192 };
typedef struct layout {
    size_t ndim;
    int64_t size[RP_MAX_DIMS], stride[RP_MAX_DIMS];
} layout;

static layout read_layout(const char *text) {
    layout l = {0};
    for (; *text != ':'; l.ndim++) {
        char *end;
        l.size[l.ndim] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    for (size_t d = 0; d < l.ndim; d++) {
        char *end;
        l.stride[d] = strtoll(text + 1, &end, 10);
        text = end;
    }
    return l;
}

static float numbers[ROOM];
static rp_tensor *lying(const layout *l) {
    return rp_from_blob(numbers, l->size, l->ndim, l->stride, RP_F32, rp_cpu(), NULL, NULL);
}

static rp_tensor *apply(const char *op, rp_tensor *const *x) {
#define IS(text) (strcmp(op, text) == 0)
    if (IS("sin")) return rp_sin(x[0]);
    if (IS("clone")) return rp_clone(x[0]);
    if (IS("to_dtype")) return rp_to_dtype(x[0], RP_F64);
    if (IS("add_scalar")) return rp_add_scalar(x[0], rp_i64(2));
    if (IS("zeros_like")) return rp_zeros_like(x[0]);
    if (IS("contiguous")) return rp_contiguous(x[0]);
    if (IS("sum")) return rp_sum(x[0], RP_DIMS(0), true);
    if (IS("amax")) return rp_amax(x[0], RP_DIMS(-1), true);
    if (IS("mean")) return rp_mean(x[0], RP_DIMS(1), true);
    if (IS("softmax")) return rp_softmax(x[0], -1);
    if (IS("max_pool2d")) return rp_max_pool2d(x[0], RP_DIMS(2), RP_DIMS(1));
    if (IS("avg_pool2d")) return rp_avg_pool2d(x[0], RP_DIMS(2), RP_DIMS(1));
    if (IS("batch_norm")) return rp_batch_norm(x[0], NULL, NULL, NULL, NULL, true);
    if (IS("batch_norm_eval")) {
        const int64_t channels = rp_size(x[0], 1);
        return rp_batch_norm(x[0], NULL, NULL, rp_zeros(&channels, 1), rp_ones(&channels, 1), false);
    }
    if (IS("pad")) return rp_constant_pad_nd(x[0], RP_DIMS(1, 2), rp_f64(0));
    if (IS("channels_last"))
        return rp_contiguous(x[0], RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
    if (IS("clone_channels_last"))
        return rp_clone(x[0], RP_OPTIONS(rp_clone_options, .memory_format = RP_CHANNELS_LAST));
    if (IS("to_dtype_channels_last"))
        return rp_to_dtype(x[0], RP_F64, RP_OPTIONS(rp_to_dtype_options, .memory_format = RP_CHANNELS_LAST));
    if (IS("to_dtype_contiguous")) /* of the type that it has */
        return rp_to_dtype(x[0], RP_F32, RP_OPTIONS(rp_to_dtype_options, .memory_format = RP_CONTIGUOUS_FORMAT));
    if (IS("conv2d")) return rp_conv2d(x[0], x[1]);
    if (IS("add")) return rp_add(x[0], x[1]);
    if (IS("mul")) return rp_mul(x[0], x[1]);
    if (IS("where")) return rp_where(rp_gt_scalar(x[0], rp_f64(0.5)), x[1], x[2]);
    if (IS("cat")) return rp_cat(x, 2, 1);
    if (IS("copy")) return rp_copy(x[0], x[1]);
    if (IS("slice_scatter")) return rp_slice_scatter(x[0], x[1], 0, 0, rp_size(x[1], 0), 1);
    fail_msg("no op %s", op);
    return NULL;
}

/* any_one: strides of dims of one element do not count. */
static bool has(rp_tensor *t, const layout *want, bool any_one) {
    bool same = !rp_failed() && rp_ndim(t) == want->ndim;
    for (size_t d = 0; same && d < want->ndim; d++)
        same = rp_size(t, (int64_t)d) == want->size[d] &&
               (rp_stride(t, (int64_t)d) == want->stride[d] || (any_one && want->size[d] == 1));
    return same;
}

typedef struct golden {
    char text[256];
    const char *op;
    layout in[OPERANDS], out;
    size_t n_in;
} golden;

static bool next(FILE *f, golden *g) {
    char line[256], *at;
    if (!fgets(line, sizeof line, f)) return false;
    memcpy(g->text, line, sizeof line);
    g->op = strtok_r(g->text, " \n", &at);
    g->n_in = 0;
    for (const char *word = strtok_r(NULL, " \n", &at); strcmp(word, "=") != 0; word = strtok_r(NULL, " \n", &at))
        g->in[g->n_in++] = read_layout(word);
    g->out = read_layout(strtok_r(NULL, " \n", &at));
    return true;
}

static void run(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = apply(*(const char **)ctx, in);
}

static void sweep(unsigned compiled_every) {
    FILE *f = golden_open("strides.txt");
    golden g;
    unsigned lines = 0, wrong = 0;
    for (unsigned i = 0; i < ROOM; i++) numbers[i] = (float)(i % 29) / 16;
    while (next(f, &g)) {
        lines++;
        if (compiled_every && lines % compiled_every) continue;
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[OPERANDS] = {0}, *out = NULL;
        for (size_t k = 0; k < g.n_in; k++) in[k] = lying(&g.in[k]);
        if (compiled_every) {
            rp_compiled *c = rp_compile((rp_fn){run, &g.op, sizeof g.op, "strides"}, NULL);
            for (unsigned call = 0; call < 2; call++) rp_call(c, in, g.n_in, &out, 1);
            if (!has(out, &g.out, true)) out = NULL;
            if (out) rp_retain(out);
            rp_compiled_release(c);
            if (out) rp_release(out);
        } else {
            out = apply(g.op, in);
            if (!has(out, &g.out, false)) out = NULL;
        }
        if (!out) {
            wrong++;
            print_error("line %u, %s: other strides%s%s\n", lines, g.op, rp_failed() ? ": " : "",
                        rp_failed() ? rp_error_message() : "");
            (void)rp_error_take();
        }
        rp_scope_end(scope, NULL, 0);
    }
    (void)fclose(f);
    assert_int_equal(wrong, 0);
    assert_true(lines > 1000);
}

static void eager(void **state) {
    (void)state;
    sweep(0);
}
static void compiled(void **state) {
    (void)state;
    sweep(7);
}

static rp_tensor *image(bool last) {
    rp_tensor *x = rp_reshape(rp_sin(rp_arange(rp_f64(0), rp_f64(120))), RP_DIMS(2, 3, 4, 5));
    return last ? rp_contiguous(x, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST)) : x;
}

static void formats(void **state) {
    (void)state;
    rp_tensor *x = image(false), *y = image(true);
    assert_true(rp_is_contiguous(x) && !rp_is_contiguous_format(x, RP_CHANNELS_LAST));
    assert_true(!rp_is_contiguous(y) && rp_is_contiguous_format(y, RP_CHANNELS_LAST));
    assert_false(rp_is_contiguous_format(y, RP_CHANNELS_LAST_3D));
    assert_ptr_equal(rp_data(rp_contiguous(x)), rp_data(x));
    assert_ptr_equal(rp_data(rp_contiguous(y, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST))),
                     rp_data(y));
    assert_true(rp_is_contiguous(rp_clone(y, RP_OPTIONS(rp_clone_options, .memory_format = RP_CONTIGUOUS_FORMAT))));
    rp_tensor *volume =
        rp_empty(RP_DIMS(2, 3, 4, 5, 6), RP_OPTIONS(rp_empty_options, .memory_format = RP_CHANNELS_LAST_3D));
    assert_int_equal(rp_stride(volume, 1), 1);
    assert_int_equal(rp_stride(volume, 4), 3);
    assert_true(rp_is_contiguous_format(rp_relu(volume), RP_CHANNELS_LAST_3D));
    rp_tensor *ones = rp_ones_like(x, RP_OPTIONS(rp_ones_like_options, .memory_format = RP_CHANNELS_LAST));
    assert_true(rp_is_contiguous_format(ones, RP_CHANNELS_LAST));
    rp_tensor *plain = rp_ones_like(y, RP_OPTIONS(rp_ones_like_options, .memory_format = RP_CONTIGUOUS_FORMAT));
    assert_true(rp_is_contiguous(plain));
    assert_true(rp_is_contiguous_format(rp_empty(RP_DIMS(0, 3, 4, 5)), RP_CHANNELS_LAST));
    assert_false(rp_failed());

    rp_contiguous(rp_select(x, 0, 0), RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    rp_contiguous(x, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_PRESERVE_FORMAT));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
}

/* A network over images that stays in the format of its input, with writes in place and views. */
typedef struct net {
    rp_tensor *w, *b;
} net;
static void network(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_conv2d(in[0], n->w, n->b, RP_DIMS(1), RP_DIMS(1));
    h = rp_mul_scalar(rp_relu(rp_batch_norm(h, NULL, NULL, NULL, NULL, true)), rp_f64(0.75));
    rp_add_(h, rp_full(RP_DIMS(1), rp_f64(0.5)));
    rp_mul_(rp_slice(h, 1, 0, 2, 1), rp_full(RP_DIMS(1), rp_f64(2)));
    h = rp_sin(h);
    rp_tensor *two[] = {h, rp_sin(h)}, *both = rp_cat(two, 2, 1);
    out[0] = rp_max_pool2d(both, RP_DIMS(2));
    out[1] = rp_reshape(rp_avg_pool2d(h, RP_DIMS(2)), RP_DIMS(2, -1));
    out[2] = rp_mul(h, rp_sum(h, RP_DIMS(1), true));
}

static void same(rp_tensor *a, rp_tensor *b, const char *what) {
    static char x[ROOM], y[ROOM];
    if (rp_failed()) fail_msg("%s: %s", what, rp_error_message());
    assert_int_equal(rp_ndim(a), rp_ndim(b));
    for (size_t d = 0; d < rp_ndim(a); d++)
        if (rp_stride(a, (int64_t)d) != rp_stride(b, (int64_t)d))
            fail_msg("%s: stride %zu is %lld and %lld", what, d, (long long)rp_stride(a, (int64_t)d),
                     (long long)rp_stride(b, (int64_t)d));
    const size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_true(bytes <= ROOM);
    assert_int_equal(rp_to_host(a, x, bytes), RP_OK);
    assert_int_equal(rp_to_host(b, y, bytes), RP_OK);
    if (memcmp(x, y, bytes) != 0) fail_msg("%s: values differ", what);
}

static void networks(void **state) {
    (void)state;
    for (unsigned last = 0; last < 2; last++) {
        net n = {rp_reshape(rp_cos(rp_arange(rp_f64(0), rp_f64(108))), RP_DIMS(4, 3, 3, 3)),
                 rp_sin(rp_arange(rp_f64(0), rp_f64(4)))};
        rp_compiled *f = rp_compile((rp_fn){network, &n, sizeof n, "images"}, NULL);
        for (unsigned call = 0; call < 3; call++) {
            rp_tensor *x[2] = {image(last), image(last)}, *out[2][3];
            for (unsigned way = 0; way < 2; way++) assert_int_equal(rp_set_requires_grad(x[way], true), RP_OK);
            network(&n, &x[0], 1, out[0], 3);
            rp_call(f, &x[1], 1, out[1], 3);
            if (rp_failed()) fail_msg("%s", rp_error_message());
            assert_true(rp_is_contiguous_format(out[0][0], last ? RP_CHANNELS_LAST : RP_CONTIGUOUS_FORMAT));
            assert_true(rp_is_contiguous_format(out[0][2], last ? RP_CHANNELS_LAST : RP_CONTIGUOUS_FORMAT));
            for (unsigned k = 0; k < 3; k++) same(out[0][k], out[1][k], "result");
            for (unsigned way = 0; way < 2; way++) {
                rp_tensor *sum = rp_add(rp_sum(out[way][0]), rp_add(rp_sum(out[way][1]), rp_sum(out[way][2])));
                rp_backward(sum, NULL, NULL);
            }
            same(rp_grad_of(x[0]), rp_grad_of(x[1]), "gradient");
            assert_true(rp_is_contiguous_format(rp_grad_of(x[0]), last ? RP_CHANNELS_LAST : RP_CONTIGUOUS_FORMAT));
        }
        rp_compiled_release(f);
    }
}

/* One image without a batch beside a weight whose channels lie last: the weight has a dim more than the result. Its strides, and those
   of the gradient, are those of PyTorch; the values are those of rows. */
static void images_alone(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(2, 9, 30)), *w = rp_rand(RP_DIMS(4, 2, 3, 2)), *y[2], *grad[2];
    for (unsigned i = 0; i < 2; i++) {
        if (i) w = rp_contiguous(w, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
        rp_tensor *in = rp_detach(x);
        OK(rp_set_requires_grad(in, true));
        rp_tensor *out = rp_conv2d(in, w), *sum = rp_sum(rp_mul(out, out));
        OK(rp_grad(&sum, 1, &in, 1, NULL, NULL, &grad[i]));
        y[i] = rp_detach(out);
    }
    assert_true(rp_stride(y[1], 0) == 1 && rp_stride(y[1], 1) == 29 * 4 && rp_stride(y[1], 2) == 4);
    assert_true(rp_stride(grad[1], 0) == 1 && rp_stride(grad[1], 1) == 30 * 2 && rp_stride(grad[1], 2) == 2);
    same(y[0], rp_contiguous(y[1]), "an image alone");
    same(grad[0], rp_contiguous(grad[1]), "an image's gradient");
    rp_tensor *t =
        rp_conv_transpose2d(x, rp_contiguous(rp_rand(RP_DIMS(2, 1, 3, 2)),
                                             RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST)));
    int64_t reach = 0;
    for (int64_t d = 0; d < 3; d++) reach += (rp_size(t, d) - 1) * rp_stride(t, d);
    assert_int_equal(reach + 1, rp_numel(t));
    rp_tensor *volume =
        rp_conv3d(rp_rand(RP_DIMS(2, 4, 5, 6)),
                  rp_contiguous(rp_rand(RP_DIMS(4, 2, 2, 3, 2)),
                                RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST_3D)));
    assert_true(rp_is_contiguous(volume));
}

/* Sizes that change: the order is found again for each specialisation, and holds for all of its sizes. */
static void sized(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_mul(rp_sin(in[0]), in[1]);
    out[0] = rp_add(h, rp_constant_pad_nd(rp_slice(h, 2, 1, INT64_MAX, 1), RP_DIMS(0, 0, 1, 0), rp_f64(1)));
    out[1] = rp_clone(rp_transpose(h, 1, 2));
}

static void sizes(void **state) {
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){sized, NULL, 0, "sized"}, NULL);
    static const int64_t heights[] = {4, 6, 9, 5, 11};
    for (unsigned i = 0; i < 10; i++) {
        const int64_t h = heights[i % 5];
        rp_tensor *x = rp_reshape(rp_cos(rp_arange(rp_f64(0), rp_f64((double)(24 * h)))), RP_DIMS(2, 3, h, 4)),
                  *out[2][2];
        if (i < 5 || i == 8) x = rp_contiguous(x, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
        rp_tensor *in[] = {x, rp_reshape(rp_arange(rp_f64(1), rp_f64(4)), RP_DIMS(3, 1, 1))};
        sized(NULL, in, 2, out[0], 2);
        rp_call(f, in, 2, out[1], 2);
        for (unsigned k = 0; k < 2; k++) same(out[0][k], out[1][k], "result of a size");
    }
    rp_compiled_release(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(formats, begin),  cmocka_unit_test_setup(eager, begin),
        cmocka_unit_test_setup(networks, begin), cmocka_unit_test_setup(sizes, begin),
        cmocka_unit_test_setup(compiled, begin), cmocka_unit_test_setup(images_alone, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
