/* What planes share of a pool, its gradient or an image at other places (kernel/cpu/interp_planes.c) changes no bit: the walk across
   gives the same, whatever sizes, layout, type and instruction set, with one thread and with several.
   ctest: labels=numbers timeout=300 cost=30 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "kernel/cpu/program.h"
#include "kernel/cpu/tiles.h"
#include "kernel/loop.h"
#include "support/slow.h"

enum { MOST = 2 };
static const char *const isas[] = {"baseline", "avx2", "avx512"};

/* Results of op `op` of x (N, C, H, W); false: there is no such op. */
static bool run_op(int op, rp_tensor *x, rp_tensor *out[MOST]) {
    const int64_t h = rp_size(x, 2), w = rp_size(x, 3);
    out[1] = NULL;
    switch (op) {
    case 0:
        out[0] = rp_max_pool2d_with_indices(x, RP_DIMS(3, 3), RP_DIMS(2, 2), RP_DIMS(1, 1), RP_DIMS(1), false, &out[1]);
        break;
    case 1:
        out[0] = rp_max_pool2d_with_indices(x, RP_DIMS(2, 3), RP_DIMS(2, 3), RP_DIMS(0), RP_DIMS(2, 1), true, &out[1]);
        break;
    case 2: out[0] = rp_max_pool2d(x, RP_DIMS(5, 5), RP_DIMS(1, 1), RP_DIMS(2, 2), RP_DIMS(1), false); break;
    case 3: out[0] = rp_avg_pool2d(x, RP_DIMS(3, 2), RP_DIMS(2, 1), RP_DIMS(1, 1), false, true, INT64_MIN); break;
    case 4: out[0] = rp_avg_pool2d(x, RP_DIMS(3, 3), RP_DIMS(2, 2), RP_DIMS(1, 1), true, false, INT64_MIN); break;
    case 5: out[0] = rp_avg_pool2d(x, RP_DIMS(2, 2), RP_DIMS(3, 3), RP_DIMS(0), false, true, 7); break;
    case 6: out[0] = rp_adaptive_avg_pool2d(x, RP_DIMS(5, 4)); break;
    case 7: out[0] = rp_adaptive_max_pool2d(x, RP_DIMS(4, 7), &out[1]); break;
    case 8: out[0] = rp_adaptive_avg_pool2d(x, RP_DIMS(h * 2, w + 3)); break;
    case 9: out[0] = rp_lp_pool2d(rp_abs(x), 2, RP_DIMS(3, 3), RP_DIMS(2, 2), false); break;
    case 10: out[0] = rp_interpolate(x, RP_DIMS(h + 7, w * 2), NULL, 0, "nearest", RP_UNSET, RP_UNSET, false); break;
    case 11: out[0] = rp_interpolate(x, RP_DIMS(h * 2, w + 5), NULL, 0, "bilinear", RP_UNSET, RP_UNSET, false); break;
    case 12: out[0] = rp_interpolate(x, RP_DIMS(h - 3, w * 2), NULL, 0, "bicubic", RP_TRUE, RP_UNSET, false); break;
    case 13: out[0] = rp_im2col(x, RP_DIMS(3, 2), RP_DIMS(1, 2), RP_DIMS(1, 0), RP_DIMS(2, 1)); break;
    case 14:
        out[0] = rp_max_pool3d(rp_unsqueeze(x, 0), RP_DIMS(2, 2, 2), RP_DIMS(1, 2, 2), RP_DIMS(0), RP_DIMS(1), false);
        break;
    case 15: out[0] = rp_max_pool1d(rp_flatten(x, 2, 3), RP_DIMS(4), RP_DIMS(3), RP_DIMS(2), RP_DIMS(1), false); break;
    case 16: /* a window of more elements than lanes */
        out[0] = rp_max_pool2d(x, RP_DIMS(7, 7), RP_DIMS(1, 1), RP_DIMS(3, 3), RP_DIMS(1), false);
        break;
    case 17: out[0] = rp_adaptive_avg_pool2d(x, RP_DIMS(4, 7)); break;
    case 18: out[0] = rp_adaptive_max_pool2d(x, RP_DIMS(6, 2), &out[1]); break;
    case 19: /* a window of many elements, a tile of many points */
        out[0] = rp_avg_pool2d(x, RP_DIMS(9, 8), RP_DIMS(1, 1), RP_DIMS(4, 4), false, false, INT64_MIN);
        break;
    case 20: out[0] = rp_avg_pool1d(rp_flatten(x, 2, 3), RP_DIMS(60), RP_DIMS(1), RP_DIMS(30), false, true); break;
    case 21: /* none of it outside */
        out[0] =
            rp_avg_pool2d(x, RP_DIMS(h < 9 ? h : 9, w < 9 ? w : 9), RP_DIMS(1, 1), RP_DIMS(0), false, false, INT64_MIN);
        break;
    case 22: out[0] = rp_max_pool2d(x, RP_DIMS(2, 2), RP_DIMS(2, 2), RP_DIMS(0), RP_DIMS(1), false); break;
    case 23: /* four windows of an element, in the tree's order */
        out[0] = rp_max_pool2d(x, RP_DIMS(4, 4), RP_DIMS(2, 2), RP_DIMS(2, 2), RP_DIMS(1), false);
        break;
    /* pools of one dim, whose points lie side by side or some steps apart, at the edges outside */
    case 24: out[0] = rp_max_pool1d(rp_flatten(x, 2, 3), RP_DIMS(5), RP_DIMS(1), RP_DIMS(0), RP_DIMS(1), false); break;
    case 25: out[0] = rp_max_pool1d(rp_flatten(x, 2, 3), RP_DIMS(3), RP_DIMS(2), RP_DIMS(1), RP_DIMS(2), true); break;
    case 26: out[0] = rp_avg_pool1d(rp_flatten(x, 2, 3), RP_DIMS(3), RP_DIMS(2), RP_DIMS(1), false, false); break;
    case 27: out[0] = rp_avg_pool1d(rp_flatten(x, 2, 3), RP_DIMS(2), RP_DIMS(1), RP_DIMS(0), false, true); break;
    /* windows of more elements than lanes: side by side, one of all, and of any places */
    case 28: out[0] = rp_adaptive_avg_pool2d(x, RP_DIMS(h % 2 ? 1 : 2, w % 2 ? 1 : 2)); break;
    case 29: out[0] = rp_adaptive_max_pool2d(x, RP_DIMS(1, 1), &out[1]); break;
    case 30: out[0] = rp_adaptive_max_pool2d(x, RP_DIMS(h % 2 ? 2 : 5, 2), &out[1]); break;
    case 31: out[0] = rp_adaptive_avg_pool2d(x, RP_DIMS(1, w % 3 ? 3 : 5)); break;
    case 32: out[0] = rp_adaptive_avg_pool2d(x, RP_DIMS(h + 3, w % 2 ? w - 1 : 2 * w + 1)); break;
    case 33: out[0] = rp_amax(x, RP_DIMS(2, 3), false); break;
    case 34: /* eight windows of an element, */
        out[0] = rp_max_pool3d(rp_unsqueeze(rp_transpose(x, 0, 1), 0), RP_DIMS(3, 3, 3), RP_DIMS(2, 2, 2),
                               RP_DIMS(1, 1, 1), RP_DIMS(1), false);
        break;
    case 35: /* and 27, many of which have it as their largest */
        out[0] = rp_max_pool3d(rp_unsqueeze(rp_transpose(x, 0, 1), 0), RP_DIMS(3, 3, 3), RP_DIMS(1, 1, 1),
                               RP_DIMS(1, 1, 1), RP_DIMS(1), false);
        break;
    default: return false;
    }
    return true;
}

/* Few numbers, so that the largest is there twice; some are none. */
static void fill(float *data, int64_t n, unsigned seed) {
    static const float some[] = {-0.0f, 0.0f, 1.5f, -2.0f, 3.25f, -INFINITY, INFINITY, NAN};
    for (int64_t k = 0; k < n; k++) {
        seed = seed * 1664525u + 1013904223u;
        data[k] = seed >> 24 < 10 ? some[seed >> 21 & 7] : (float)((int)(seed >> 16 & 63) - 32) / 8;
    }
}
static rp_tensor *numbers(const int64_t size[4], rp_dtype dtype, int layout, unsigned seed) {
    int64_t whole[4];
    memcpy(whole, size, sizeof whole);
    if (layout == 2) whole[3] += 3;
    const int64_t n = whole[0] * whole[1] * whole[2] * whole[3];
    float *data = malloc((size_t)n * sizeof *data);
    assert_non_null(data);
    fill(data, n, seed);
    rp_tensor *x = rp_to_dtype(rp_from_data(data, whole, 4, RP_F32), dtype);
    free(data);
    if (layout == 1) return rp_contiguous(x, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
    return layout == 2 ? rp_narrow(x, 3, 2, size[3]) : x;
}
/* Results and the gradient; how many there are. */
static int results(int op, const int64_t size[4], rp_dtype dtype, int layout, rp_tensor *got[MOST + 1]) {
    rp_tensor *x = numbers(size, dtype, layout, 1), *grad = NULL;
    rp_set_requires_grad(x, true);
    if (!run_op(op, x, got)) return 0;
    int64_t out[8];
    const size_t ndim = (size_t)rp_ndim(got[0]);
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= out[d] = rp_size(got[0], (int64_t)d);
    float *data = malloc((size_t)n * sizeof *data);
    assert_non_null(data);
    fill(data, n, 2);
    rp_tensor *back = rp_to_dtype(rp_from_data(data, out, ndim, RP_F32), dtype);
    free(data);
    rp_grad(got, 1, &x, 1, &back, NULL, &grad);
    got[got[1] ? 2 : 1] = grad;
    return got[1] && got[1] != grad ? 3 : 2;
}
static bool same_bytes(rp_tensor *x, rp_tensor *y) {
    x = rp_contiguous(x, NULL);
    y = rp_contiguous(y, NULL);
    return rp_numel(x) == rp_numel(y) &&
           !memcmp(rp_data(x), rp_data(y), (size_t)rp_numel(x) * rp_dtype_size(rp_dtype_of(x)));
}
/* Which of two NaN a sum of both is, a compiler chooses. */
static bool same(rp_tensor *a, rp_tensor *b) {
    if (rp_dtype_of(a) == RP_I64) return same_bytes(a, b);
    rp_tensor *none[] = {rp_isnan(a), rp_isnan(b)}, *zero = rp_zeros_like(a, NULL);
    return same_bytes(none[0], none[1]) && same_bytes(rp_where(none[0], zero, a), rp_where(none[1], zero, b));
}

/* All cases, or some of them where sanitizers make everything slow, of each op others. */
static bool takes(int k) { return !SLOW_BUILD || test_takes_all() || k % (RACES_ONLY ? 8 : 4) == 0; }

static void compare(rp_dtype dtype) {
    static const int64_t sizes[][4] = {{3, 5, 17, 19}, {2, 16, 12, 14}, {1, 70, 9, 8},
                                       {6, 3, 8, 8},   {1, 2, 40, 33},  {2, 4, 31, 31}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int layout = 0; layout < 3; layout++) {
            for (int op = 0;; op++) {
                if (!takes((int)s * 3 + layout + op * 5 + (int)dtype)) continue;
                rp_scope scope = rp_scope_begin();
                rp_tensor *want[MOST + 1] = {NULL}, *got[MOST + 1] = {NULL};
                rp__tiles_set(rp__tiles_named("baseline"));
                rp__interp_planes_off = true;
                const int n = results(op, sizes[s], dtype, layout, want);
                rp__interp_planes_off = false;
                for (size_t k = 0; n && k < sizeof isas / sizeof *isas; k++) {
                    if (!rp__tiles_named(isas[k])) continue;
                    rp__tiles_set(rp__tiles_named(isas[k]));
                    assert_int_equal(results(op, sizes[s], dtype, layout, got), n);
                    if (rp_failed()) fail_msg("op %d, sizes %zu: %s", op, s, rp_error_message());
                    for (int i = 0; i < n; i++) {
                        if (!same(want[i], got[i]))
                            fail_msg("op %d, sizes %zu, layout %d, result %d on %s: other bits", op, s, layout, i,
                                     isas[k]);
                    }
                }
                rp_scope_end(scope, NULL, 0);
                if (!n) break;
            }
        }
    }
    rp__tiles_set(NULL);
}
/* Compiled, a pool of the largest has no place, so that its only phase is plain. */
static void pool_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *both[MOST];
    (void)n_in, (void)n_out;
    run_op(*(const int *)ctx, in[0], both);
    out[0] = both[0];
}
static void largest_alone(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_BF16, RP_F16};
    static const int64_t sizes[][4] = {{3, 5, 17, 19}, {6, 3, 8, 8}, {2, 4, 31, 31}};
    for (int k = 0; k < 36; k++) {
        const rp_dtype dtype = dtypes[k / 9];
        const int64_t *size = sizes[k / 3 % 3];
        for (int op = 0; op < 28; op++) {
            if (op != 2 && op != 15 && op != 22 && op != 24 && op != 25) continue;
            if (!takes(k + op)) continue;
            rp_scope scope = rp_scope_begin();
            rp_tensor *x = numbers(size, dtype, k % 3, 5), *want[MOST], *got = NULL;
            rp__interp_planes_off = true;
            run_op(op, x, want);
            rp__interp_planes_off = false;
            rp_compiled *c = rp_compile((rp_fn){pool_body, &op, sizeof op, "pool"}, NULL);
            for (int call = 0; call < 3; call++) assert_int_equal(rp_call(c, &x, 1, &got, 1), RP_OK);
            if (!same(want[0], got)) fail_msg("op %d of %s, sizes %d: other bits", op, rp_dtype_name(dtype), k);
            rp_compiled_release(c);
            rp_scope_end(scope, NULL, 0);
        }
    }
}
/* Rows of one value but for the place that a number names, which is outside of some: a routine fills them. */
static void choice_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int what = *(const int *)ctx;
    (void)n_in, (void)n_out;
    if (what == 0) {
        rp_tensor *loss = rp_nll_loss(in[0], in[1], NULL, 0, 2);
        rp_grad(&loss, 1, in, 1, &in[2], NULL, out);
        return;
    }
    rp_tensor *number = rp_unsqueeze(in[1], 1), *at = rp_arange(rp_i64(0), rp_i64(rp_size(in[0], 1)), rp_i64(1), NULL);
    if (what == 2) at = rp_sub(rp_full(RP_NO_DIMS, rp_i64(7), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), at);
    rp_tensor *equal = rp_eq(at, number);
    if (what < 3)
        out[0] = rp_where(equal, rp_unsqueeze(in[2], 1), rp_neg(rp_unsqueeze(in[2], 1)));
    else
        out[0] = rp_to_dtype(equal, rp_dtype_of(in[0]));
}
static void choices(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_BF16, RP_I64};
    static const int64_t sizes[][2] = {{360, 32}, {300, 9}, {7, 100}, {3, 50000}, {2, 64}};
    (void)state;
    for (int k = 0; k < 20 * 4; k++) {
        int what = k / 20;
        const int64_t *size = sizes[k / 4 % 5];
        if (!what && dtypes[k % 4] == RP_I64) continue; /* no loss */
        if (!takes(k + k / 4)) continue;
        rp_scope scope = rp_scope_begin();
        int64_t *index = calloc((size_t)size[0], sizeof *index);
        assert_non_null(index);
        for (int64_t i = 0; i < size[0]; i++) index[i] = what ? i * 7 % (size[1] + 4) - 2 : i * 7 % size[1];
        index[size[0] / 2] = 2;
        rp_tensor *in[] = {rp_rand(size, 2, RP_OPTIONS(rp_rand_options, .dtype = RP_F32)),
                           rp_from_data(index, size, 1, RP_I64), rp_mul_scalar(rp_rand(size, 1, NULL), rp_f64(100))},
                  *want = NULL, *got = NULL;
        free(index);
        in[0] = rp_to_dtype(in[0], dtypes[k % 4]);
        in[2] = rp_to_dtype(in[2], dtypes[k % 4]);
        if (!what) rp_set_requires_grad(in[0], true);
        for (int on = 0; on < 2; on++) {
            rp__interp_planes_off = !on;
            rp_compiled *c = rp_compile((rp_fn){choice_body, &what, sizeof what, "choice"}, NULL);
            for (int call = 0; call < 3; call++)
                if (rp_call(c, in, 3, on ? &got : &want, 1)) fail_msg("choice %d, %d: %s", what, k, rp_error_message());
            rp_compiled_release(c);
        }
        if (!same_bytes(want, got)) fail_msg("choice %d, %d: other bits", what, k);
        rp_scope_end(scope, NULL, 0);
    }
}
/* What a walk of this thread repeats for its tiles is nothing to what comes next: a step over many tensors that the interpreter takes. */
static void weighted_columns(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sum(rp_mul(rp_mul(in[1], in[0]), rp_sin(in[0])), RP_DIMS(0));
}
static void many_after_columns(void **state) {
    (void)state;
    const int threads = rp_num_threads();
    assert_int_equal(rp_set_num_threads(1), RP_OK); /* so that it is one thread */
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {rp_rand(RP_DIMS(200, 32)), rp_rand(RP_DIMS(32))}, *sums = NULL, *p[2];
    rp_compiled *f = rp_compile((rp_fn){weighted_columns, NULL, 0, "columns"}, NULL);
    for (int k = 0; k < 2; k++) {
        p[k] = rp_ones(RP_DIMS(40), RP_OPTIONS(rp_ones_options, .dtype = RP_F64));
        rp_set_requires_grad(p[k], true);
        rp_set_grad(p[k], rp_ones(RP_DIMS(40), RP_OPTIONS(rp_ones_options, .dtype = RP_F64)));
    }
    rp_optimizer *sgd = rp_sgd(p, 2, 0.5, NULL);
    for (int step = 1; step <= 3; step++) {
        double got[40];
        assert_int_equal(rp_call(f, in, 2, &sums, 1), RP_OK);
        assert_int_equal(rp_optimizer_step(sgd), RP_OK);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(rp_to_host(p[k], got, sizeof got), RP_OK);
            for (int i = 0; i < 40; i++) assert_true(got[i] == 1 - 0.5 * step);
        }
    }
    rp_optimizer_release(sgd);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(rp_set_num_threads(threads), RP_OK);
}
static void same_bits_f32(void **state) {
    (void)state;
    const uint64_t before = rp__interp_planes_taken;
    compare(RP_F32);
    assert_true(rp__interp_planes_taken - before > 200); /* else nothing was compared */
}
static void same_bits_f64(void **state) {
    (void)state;
    compare(RP_F64);
}
static void same_bits_bf16(void **state) {
    (void)state;
    compare(RP_BF16);
}
static void same_bits_f16(void **state) {
    (void)state;
    compare(RP_F16);
}

/* Loads at computed places, some of them outside, are the same by vectors and one by one, whatever the count and the distance of elements. */
static rp_tensor *by_places(int op, rp_tensor *x, rp_tensor *grid, rp_tensor *index) {
    switch (op) {
    case 0: return rp_grid_sampler(x, grid, 0, 0, false);
    case 1: return rp_grid_sampler(x, grid, 1, 1, true);
    case 2: return rp_gather(x, 2, index, false);
    case 3: return rp_gather(x, 3, rp_remainder_scalar(index, rp_i64(rp_size(x, 3))), false);
    default: return rp_take(x, index);
    }
}
static void places_by_vectors(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_BF16};
    static const int64_t sizes[][4] = {{2, 3, 9, 11}, {1, 5, 16, 7}, {3, 2, 5, 40}};
    for (int k = 0; k < 27; k++) {
        const int64_t *size = sizes[k / 9];
        rp_scope scope = rp_scope_begin();
        rp_manual_seed((uint64_t)k);
        rp_tensor *x = numbers(size, dtypes[k % 3], k / 3 % 3, 7);
        rp_tensor *grid = rp_to_dtype(rp_randn(RP_DIMS(size[0], 13, 9, 2)), dtypes[k % 3]);
        rp_tensor *index = rp_randint(0, size[2], RP_DIMS(size[0], size[1], 5, size[3]));
        for (int op = 0; op < 5; op++) {
            rp_tensor *want = NULL;
            if (!takes(k + op)) continue;
            for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
                if (!rp__tiles_named(isas[i])) continue;
                rp__tiles_set(rp__tiles_named(isas[i]));
                rp_tensor *got = by_places(op, x, grid, index);
                if (rp_failed()) fail_msg("op %d: %s", op, rp_error_message());
                if (!want) want = got;
                if (!same(want, got)) fail_msg("op %d, sizes %d, on %s: other bits", op, k, isas[i]);
            }
        }
        rp_scope_end(scope, NULL, 0);
    }
    rp__tiles_set(NULL);
}

/* What stands still is dear, kept from phase to phase and read by something else that stands still. */
static void run_kept(rp_tensor *x, rp_tensor *to) {
    enum { PLANES = 8, POINTS = 40, ROW = 40, PLANE = POINTS + ROW };
    rp__dag_builder *b = rp__dag_new();
    const uint16_t in = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
    const uint16_t number = rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS);
    const uint16_t out = rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, RP__ALONG_ROWS);
    const rp__val at = rp__dag_iota(b, number), v = rp__dag_load(b, in, at, RP__NO_VAL);
    const rp__val e = rp__dag_op(b, RP__SIN, rp__dag_cast(b, at, RP_F32), RP__NO_VAL, RP__NO_VAL);
    const rp__val square = rp__dag_op(b, RP__MUL, e, e, RP__NO_VAL);
    const rp__val sum = rp__dag_reduce(
        b, RP__REDUCE_SUM, rp__dag_op(b, RP__MUL, v, rp__dag_op(b, RP__NEG, e, RP__NO_VAL, RP__NO_VAL), RP__NO_VAL),
        RP__ALONG_ROW);
    const rp__val less = rp__dag_op(b, RP__SUB, v, sum, RP__NO_VAL);
    rp__dag_store(b, out,
                  rp__dag_reduce(b, RP__REDUCE_SUM, rp__dag_op(b, RP__MUL, less, square, RP__NO_VAL), RP__ALONG_ROW));
    rp__dag *dag = rp__dag_finish(b);
    assert_non_null(dag);
    rp__space_access a[] = {{.stride = {PLANE, 0, 0}}, {.stride = {0, 1, 1}}, {.stride = {POINTS, 1, 0}}};
    for (int k = 0; k < 3; k += 2) {
        rp_tensor *t = k ? to : x;
        a[k].base = t->storage->data;
        a[k].storage = t->storage;
        a[k].end = rp_numel(t) * 4;
    }
    rp__space space = {
        .dims = {2, 1}, .extent = {PLANES, POINTS, ROW}, .n_accesses = 3, .accesses = a, .op = "test", .site = ""};
    rp__space_collapse(dag, &space, a);
    rp__device *cpu = rp__device_get(rp_device_of(x));
    assert_int_equal(rp__loop_launch(cpu, rp__current_stream(cpu), dag, &space), RP_OK);
    rp__dag_release(dag);
}
static void kept_values_stand_still(void **state) {
    (void)state;
    float data[8 * 80];
    fill(data, 8 * 80, 3);
    for (int k = 0; k < 8 * 80; k++) data[k] = isfinite(data[k]) ? data[k] : 1;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_from_data(data, RP_DIMS(8 * 80), RP_F32), *want = rp_zeros(RP_DIMS(8 * 40)),
              *got = rp_zeros(RP_DIMS(8 * 40));
    rp__interp_planes_off = true;
    run_kept(x, want);
    rp__interp_planes_off = false;
    const uint64_t before = rp__interp_planes_taken;
    run_kept(x, got);
    assert_true(rp__interp_planes_taken > before);
    assert_true(same_bytes(want, got));
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(largest_alone),     cmocka_unit_test(same_bits_f32), cmocka_unit_test(same_bits_f64),
        cmocka_unit_test(same_bits_bf16),    cmocka_unit_test(same_bits_f16), cmocka_unit_test(kept_values_stand_still),
        cmocka_unit_test(places_by_vectors), cmocka_unit_test(choices),       cmocka_unit_test(many_after_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
