/* Line functions that the library carries compiled: everyday ops use them, on every instruction set they give the bits of the
   interpreter, for lengths around vectors, turns and chunks, and whether stores pass the caches by or not.
   ctest: labels=numbers,threads timeout=600 cost=60 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <reprise.h>
#include <reprise_nn.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kernel/cpu/jit.h"
#include "support/slow.h"

static rp_tensor *x, *y, *w, *b; /* (rows, n) twice, (n) twice */
static const char *line_missing;
static int long_walks;

enum { REDUCTIONS = 6, WIDE_OPS = 24, OPS = 45 };
static rp_tensor *column(rp_tensor *t) { return rp_narrow(t, -1, 0, 1); }
static rp_tensor *cube(rp_tensor *t) { /* of an even number of rows two halves */
    const int64_t rows = rp_size(t, 0), halves = rows % 2 ? 1 : 2;
    return rp_view(t, RP_DIMS(halves, rows / halves, rp_size(t, 1)));
}
static rp_tensor *run_op(int op) {
    const int64_t n = rp_size(x, 1);
    switch (op) {
    /* reductions, of f64 too */
    case 0: return rp_sum(x, RP_DIMS(-1));
    case 1: return rp_mean(x, RP_DIMS(-1));
    case 2: return rp_amax(x, RP_DIMS(-1), false);
    case 3: return rp_amin(x, RP_DIMS(-1), false);
    case 4: return rp_prod(x, -1, false);
    case 5: return rp_linalg_vector_norm(x, rp_f64(2), RP_DIMS(-1), false);
    case 6: return rp_softmax(x, -1);
    case 7: return rp_add(x, y);
    case 8: return rp_mul(x, y);
    case 9: return rp_relu(x);
    case 10: return rp_gelu(x);
    case 11: return rp_mul_scalar(x, rp_f64(2));
    case 12: return rp_clone(x);
    case 13:
        return rp_add(x, rp_select(rp_select(y, 0, 0), 0, 0)); /* an operand that stands still */
    /* operands that run on or stand still along a row, and go elsewhere from row to row */
    case 14: return rp_mul(x, column(y));
    case 15: return rp_add(column(x), w);
    case 16: return rp_mul(x, w);
    case 17: return rp_add(rp_narrow(x, 1, n / 3, n - n / 3), rp_narrow(y, 1, 0, n - n / 3)); /* rows with gaps */
    case 18: return rp_add(rp_narrow(cube(x), 0, 0, 1), cube(y));
    case 19: return rp_add(rp_transpose(cube(x), 0, 1), rp_transpose(column(rp_narrow(cube(y), 0, 0, 1)), 0, 1));
    case 20: return rp_mul(rp_transpose(column(rp_narrow(cube(x), 1, 0, 1)), 0, 1), rp_transpose(cube(y), 0, 1));
    case 21: return rp_log_softmax(x, -1);
    case 22: return rp_layer_norm(x, RP_DIMS(n), w, b, 1e-5);
    case 23: return rp_layer_norm(x, RP_DIMS(n), NULL, NULL, 1e-5);
    case 24: return rp_relu6(x);
    case 25: return rp_hardtanh(x, rp_f64(-1), rp_f64(1));
    case 26: return rp_hardsigmoid(x);
    case 27: return rp_hardswish(x);
    case 28: return rp_leaky_relu(x, rp_f64(0.01));
    case 29: return rp_clamp(x, rp_f64(-1), rp_f64(1));
    case 30: return rp_clamp(x, rp_f64(-1), rp_none());
    case 31: return rp_clamp(x, rp_none(), rp_f64(1));
    case 32: return rp_abs(x);
    case 33: return rp_neg(x);
    case 34: return rp_sign(x);
    case 35: return rp_square(x);
    case 36: return rp_sqrt(x);
    case 37: return rp_round(x);
    case 38: return rp_floor(x);
    case 39: return rp_ceil(x);
    case 40: return rp_trunc(x);
    case 41: return rp_maximum(x, column(y));
    case 42: return rp_minimum(x, y);
    case 43: return rp_silu(x);
    case 44: return rp_div(x, y);
    default: return NULL;
    }
}

/* Every recorded launch of this test is one that a line function of the library serves. */
static rp_status look(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    (void)self;
    bool found = false;
    const rp__cpu_loop *loop = l->kernel->payload;
    for (int i = 0; i < RP__PLAN_COUNT; i++) found = found || atomic_load(&loop->line[i]);
    if ((l->words[0] & 0xff) == RP__WALK_LONG) { /* its rows are contiguous */
        found = rp__line_long_fits(loop, l->words);
        long_walks++;
    }
    if (found == rp__line_table_off) line_missing = l->op;
    return s->device->ops->launch(s->device, s, l);
}

static bool same_bytes(rp_tensor *a, rp_tensor *c) {
    return !memcmp(rp_data(a), rp_data(c), (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a)));
}
/* Which of two NaN their product is, a compiler chooses. */
static bool same(rp_tensor *a, rp_tensor *c) {
    if (same_bytes(a, c)) return true;
    rp_tensor *none[] = {rp_isnan(a), rp_isnan(c)}, *zero = rp_zeros_like(a, NULL);
    return same_bytes(none[0], none[1]) && same_bytes(rp_where(none[0], zero, a), rp_where(none[1], zero, c));
}

static void compare(rp_dtype dtype, int64_t rows, int64_t n, bool special) {
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    rp_scope scope = rp_scope_begin();
    const int64_t size[] = {rows, n};
    rp_manual_seed((uint64_t)(rows + n));
    rp_tensor *wide = rp_mul_scalar(rp_randn(size, 2), rp_f64(special ? 60 : 3)); /* far exponentials */
    if (special && n > 3) { /* what compares like no number, or like another one */
        rp_fill_(rp_select(wide, 1, 1), rp_f64(NAN));
        rp_fill_(rp_select(wide, 1, 2), rp_f64(-0.0));
        rp_fill_(rp_select(wide, 1, 3), rp_f64(INFINITY));
    }
    x = rp_to_dtype(wide, dtype);
    y = rp_to_dtype(rp_randn(size, 2), dtype);
    w = rp_to_dtype(rp_randn(size + 1, 1), dtype);
    b = rp_to_dtype(rp_randn(size + 1, 1), dtype);
    assert_false(rp_failed());
    for (int op = 0; op < (dtype == RP_F64 ? REDUCTIONS : OPS); op++) {
        rp_tensor *want = NULL;
        for (int how = 0; how < 3; how++) { /* the interpreter, line functions, their stores past the caches */
            rp__line_table_off = how == 0;
            rp__line_stream_bytes = how == 2 ? 0 : INT64_MAX;
            for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
                if (!rp__tiles_named(isas[k])) continue;
                rp__tiles twin =
                    *rp__tiles_named(isas[k]); /* a kernel of another table, so that the next is made anew */
                rp__tiles_set(&twin);
                run_op(op);
                rp__tiles_set(rp__tiles_named(isas[k]));
                rp__launch_recorder recorder = {.record = look};
                rp__launch_recorder *old = rp__launch_recorder_set(&recorder);
                rp_tensor *got = run_op(op);
                rp__launch_recorder_set(old);
                if (rp_failed())
                    fail_msg("op %d, %lld x %lld: %s", op, (long long)rows, (long long)n, rp_error_message());
                /* Narrow vectors beside wider ones have the first of these alone, and none of f16. */
                if (k == 0 && how && (dtype == RP_F16 || op >= WIDE_OPS) && rp__tiles_named("avx2"))
                    line_missing = NULL;
                if (line_missing) fail_msg("%s: %s", line_missing, how ? "no line function" : "not the interpreter");
                if (!want) want = got;
                if (!same(want, got))
                    fail_msg("op %d, %lld x %lld, way %d on %s: other bits", op, (long long)rows, (long long)n, how,
                             isas[k]);
                got = run_op(op); /* nobody records it: a tiny one has no record */
                if (!same(want, got))
                    fail_msg("op %d, %lld x %lld, way %d on %s, unrecorded: other bits", op, (long long)rows,
                             (long long)n, how, isas[k]);
            }
        }
    }
    rp_scope_end(scope, NULL, 0);
}

static void lengths(rp_dtype dtype) {
    static const int64_t n[] = {8, 31, 32, 33, 48, 64, 95, 1000, 1024, 8192, 8193, 20000};
    for (size_t i = RACES_ONLY && dtype == RP_F32; i < sizeof n / sizeof *n; i += RACES_ONLY ? 3 : 1) {
        /* Lines are rows': shared_rows has many of them. */
        compare(dtype, (n[i] > 8000 ? 17 : 40) / (SLOW_BUILD ? 5 : 1), n[i], i % 2);
    }
}
static void same_bits_f32(void **state) {
    (void)state;
    lengths(RP_F32);
}
static void same_bits_bf16(void **state) {
    (void)state;
    lengths(RP_BF16);
}

/* Gradients of operations of few instructions. */
static void slopes(void **state) {
    (void)state;
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F16};
    for (int k = 0; k < 9; k++) {
        const int64_t size[] = {3, k / 3 == 0 ? 5 : k / 3 == 1 ? 257 : 4100};
        for (int op = 9; op < OPS; op++) {
            if (op != 9 && (op < 24 || op > 40)) continue;
            rp_scope scope = rp_scope_begin();
            rp_manual_seed((uint64_t)k);
            x = rp_to_dtype(rp_randn(size, 2), dtypes[k % 3]);
            rp_fill_(rp_select(x, 1, 1), rp_f64(NAN));
            rp_fill_(rp_select(x, 1, 2), rp_f64(1)); /* where slopes change */
            rp_fill_(rp_select(x, 1, 3), rp_f64(-0.0));
            rp_tensor *back = rp_to_dtype(rp_randn(size, 2), dtypes[k % 3]), *want = NULL;
            rp_set_requires_grad(x, true);
            for (int how = 0; how < 2; how++) {
                rp__line_table_off = how == 0;
                for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
                    if (!rp__tiles_named(isas[i])) continue;
                    rp__tiles twin = *rp__tiles_named(isas[i]);
                    rp_set_grad_enabled(true);
                    rp_tensor *slope[2], *value;
                    for (int turn = 0; turn < 2; turn++) { /* the first has kernels made anew */
                        rp__tiles_set(turn ? rp__tiles_named(isas[i]) : &twin);
                        value = run_op(op);
                        assert_int_equal(rp_grad(&value, 1, &x, 1, &back, NULL, &slope[turn]), RP_OK);
                    }
                    rp_set_grad_enabled(false);
                    if (!want) want = slope[1];
                    if (!same(want, slope[1]))
                        fail_msg("gradient of op %d of %s, way %d on %s: other bits", op, rp_dtype_name(dtypes[k % 3]),
                                 how, isas[i]);
                }
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
}
static void same_bits_f16(void **state) {
    (void)state;
    lengths(RP_F16);
}
static void same_bits_f64(void **state) {
    (void)state;
    lengths(RP_F64);
}

static void tiny(void **state) {
    (void)state;
    static const int64_t n[] = {1, 3, 8, 16, 31, 40, 100, 2048, 2049};
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F16};
    for (size_t i = 0; i < 3 * (sizeof n / sizeof *n); i++) compare(dtypes[i % 3], 1, n[i / 3], false);
}
/* What is left of a row behind its last whole turn: all there can be, and nothing beside it is written. */
static void leftovers(void **state) {
    enum { TURN = 32, BEFORE = 3, BEHIND = 40 };
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    (void)state;
    for (int64_t n = 1; n <= 2 * TURN; n += SLOW_BUILD ? 5 : 1) {
        const rp_dtype dtype = dtypes[n % 4];
        compare(dtype, 3, n + n % 3 * TURN, false);
        for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
            if (!rp__tiles_named(isas[k])) continue;
            rp_scope scope = rp_scope_begin();
            rp__tiles_set(rp__tiles_named(isas[k]));
            rp_tensor *all = rp_to_dtype(rp_randn(RP_DIMS(5, BEFORE + n + BEHIND)), dtype), *was = rp_clone(all);
            rp_tensor *part = rp_narrow(all, 1, BEFORE, n);
            rp_add_(part, rp_add_scalar(rp_square(part), rp_f64(1)), NULL);
            assert_false(rp_failed());
            assert_true(same(rp_contiguous(rp_narrow(all, 1, 0, BEFORE)), rp_contiguous(rp_narrow(was, 1, 0, BEFORE))));
            assert_true(same(rp_contiguous(rp_narrow(all, 1, BEFORE + n, BEHIND)),
                             rp_contiguous(rp_narrow(was, 1, BEFORE + n, BEHIND))));
            assert_false(same(rp_contiguous(part), rp_contiguous(rp_narrow(was, 1, BEFORE, n))));
            rp_scope_end(scope, NULL, 0);
        }
    }
}
/* Stretches that threads share, none of which begins with its first row. */
static void shared_rows(void **state) {
    (void)state;
    for (int threads = SLOW_BUILD ? 3 : 1; threads < 4; threads++) {
        rp_set_num_threads(threads);
        compare(RP_F32, 1002, 257, false);
        compare(RP_BF16, 2, 70001, false);
    }
}
/* Few long rows: chunk functions, over threads. */
static void long_rows(void **state) {
    (void)state;
    for (int threads = 1; threads < 3; threads++) {
        rp_set_num_threads(threads);
        long_walks = 0;
        compare(RP_F32, 3, 40001, false);
        compare(RP_F32, 2, 65536, true);
        compare(RP_BF16, 2, 33000, true);
        assert_true(long_walks > 0);
    }
}

/* Norms, their gradients, op by op and compiled: also of rows in stretches, where weights stand still for a while, or a channel lies in many
   places of a batch. */
static int in_rows, apart_rows;
static rp_status look_at_norm(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    (void)self;
    const rp__cpu_loop *loop = l->kernel->payload;
    const rp__walk walk = (rp__walk)(l->words[0] & 0xff);
    const rp__program *p = loop->programs[RP__PLAN_RECOMPUTE];
    if (p && (walk == RP__WALK_ALONG || walk == RP__WALK_LONG)) {
        const unsigned n_outer = (unsigned)(l->words[0] >> 8 & 0xff),
                       dims = n_outer + (unsigned)(l->words[0] >> 16 & 0xff);
        const int64_t *extent = (const int64_t *)(l->words + 1 + p->n_accesses);
        rp__line_pieces pieces;
        rp__line line;
        if (atomic_load(&loop->line[RP__PLAN_RECOMPUTE]) &&
            rp__line_apart(p, n_outer, dims, extent, extent + dims, &pieces, &line)) {
            in_rows++;
            apart_rows += line.apart != 0;
        }
    }
    return s->device->ops->launch(s->device, s, l);
}
enum {
    NORM_IN = 6,
    NORM_OUT = 4
}; /* x, weight, bias, running mean and variance, gradient; result, gradients of the first three */
typedef struct norm_call {
    int op;
    bool slopes;
} norm_call;
static rp_tensor *norm_of(int op, rp_tensor *const *in) {
    switch (op) {
    case 0: return rp_group_norm(in[0], 2, in[1], in[2]);
    case 1: return rp_batch_norm(in[0], in[1], in[2], in[3], in[4], true);
    case 2: return rp_batch_norm(in[0], in[1], in[2], in[3], in[4], false);
    case 3: return rp_instance_norm(in[0], in[1], in[2], NULL, NULL, true, 0.1, 1e-5, true);
    case 4:
        return rp_layer_norm(in[0], RP_DIMS(rp_size(in[0], 3)),
                             rp_select(rp_select(rp_select(in[5], 0, 0), 0, 0), 0, 0), NULL, 1e-5);
    case 5: return rp_normalize(in[0], 2, -1, 1e-12);
    default: return rp_softmax(in[0], -1);
    }
}
static void norm_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const norm_call *c = ctx;
    (void)n_in, (void)n_out;
    out[0] = norm_of(c->op, in);
    if (c->slopes)
        assert_int_equal(rp_grad(out, 1, in, 3, in + 5, RP_OPTIONS(rp_backward_options, .allow_unused = true), out + 1),
                         RP_OK);
}
static void norms_of(rp_dtype dtype, int64_t n, int64_t h, int64_t w_, int layout) {
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    rp_scope scope = rp_scope_begin();
    rp_manual_seed((uint64_t)(n + h + w_));
    rp_tensor *in[NORM_IN];
    for (int i = 0; i < NORM_IN; i++) {
        rp_tensor *t = i % 5 ? rp_rand(RP_DIMS(6)) : rp_randn(RP_DIMS(n, 6, h, w_ + 2 * (layout == 1)));
        in[i] = rp_to_dtype(t, dtype);
        if (i % 5 == 0 && layout == 1) in[i] = rp_narrow(in[i], 3, 1, w_); /* a border around each row */
        if (i % 5 == 0 && layout == 2)
            in[i] = rp_contiguous(in[i], RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
    }
    for (norm_call c = {0, false}; c.op < 7; c.op += c.slopes, c.slopes = !c.slopes) {
        rp_tensor *want[NORM_OUT] = {NULL};
        for (int how = 0; how < 3; how++) { /* the interpreter, line functions, those of a compiled function */
            rp__line_table_off = how == 0;
            for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
                if (!rp__tiles_named(isas[k])) continue;
                for (int i = 0; i < 3; i++) rp_set_requires_grad(in[i], c.slopes);
                rp_set_grad_enabled(c.slopes);
                rp__tiles twin = *rp__tiles_named(isas[k]);
                rp__tiles_set(&twin);
                norm_body(&c, in, NORM_IN, (rp_tensor *[NORM_OUT]){NULL}, NORM_OUT);
                rp__tiles_set(rp__tiles_named(isas[k]));
                rp_tensor *got[NORM_OUT] = {NULL};
                if (how < 2) {
                    rp__launch_recorder recorder = {.record = look_at_norm};
                    rp__launch_recorder *old = rp__launch_recorder_set(&recorder);
                    norm_body(&c, in, NORM_IN, got, NORM_OUT);
                    rp__launch_recorder_set(old);
                } else {
                    rp_compiled *f = rp_compile((rp_fn){norm_body, &c, sizeof c, "norm"}, NULL);
                    for (int call = 0; call < 3; call++)
                        assert_int_equal(rp_call(f, in, NORM_IN, got, NORM_OUT), RP_OK);
                    rp_compiled_release(f);
                }
                rp_set_grad_enabled(false);
                if (rp_failed()) fail_msg("norm %d: %s", c.op, rp_error_message());
                for (int i = 0; i < NORM_OUT; i++) {
                    if (got[i]) got[i] = rp_contiguous(rp_detach(got[i]));
                    if (!want[i]) want[i] = got[i];
                    if (got[i] && memcmp(rp_data(want[i]), rp_data(got[i]),
                                         (size_t)rp_numel(got[i]) * rp_dtype_size(rp_dtype_of(got[i]))))
                        fail_msg("norm %d of (%lld, 6, %lld, %lld) %s, layout %d, result %d, way %d on %s: other bits",
                                 c.op, (long long)n, (long long)h, (long long)w_, rp_dtype_name(dtype), layout, i, how,
                                 isas[k]);
                }
            }
        }
    }
    rp_scope_end(scope, NULL, 0);
}
static void norms(void **state) {
    (void)state;
    static const int64_t h[] = {1, 3, 5, 16, 50, 80}, w_[] = {7, 3, 33, 64, 67, 67};
    in_rows = apart_rows = 0;
    for (int threads = 1; threads < 3; threads++) {
        rp_set_num_threads(threads);
        for (int i = threads - 1; i < 18; i += RACES_ONLY ? 8 : SLOW_BUILD ? 4 : 1) {
            /* each size with one thread and with two, in one layout or the other */
            if (!SLOW_BUILD && !test_takes_all() && (i + i / 6) % 2 != threads - 1) continue;
            norms_of((i + i / 12) % 2 ? RP_BF16 : RP_F32, i % 4 == 1 ? 1 : 20, h[i % 6], w_[i % 6], i / 6);
        }
    }
    if (rp__tiles_named("avx2")) assert_true(in_rows > 0 && apart_rows > 0);
    in_rows = apart_rows = 0;
    for (int i = 1; i < 18 && !RACES_ONLY; i += SLOW_BUILD ? 7 : 3)
        norms_of(RP_F16, i % 4 == 1 ? 1 : 20, h[i % 6], w_[i % 6], i / 6);
    if (rp__tiles_named("avx2") && !RACES_ONLY) assert_true(in_rows > 0 && apart_rows > 0);
}

/* Rows that are put together whole outgrow a scratch, and few of them go by themselves where long rows would go by chunks. */
static void wide_norms(void **state) {
    (void)state;
    in_rows = apart_rows = 0;
    for (int threads = SLOW_BUILD ? 2 : 1; threads < 3; threads++) {
        rp_set_num_threads(threads);
        norms_of(RP_F32, 1, 130, 131, 2);
        if (RACES_ONLY) continue;
        norms_of(RP_BF16, 9, 90, 101, 2);
        norms_of(RP_F32, 9, 96, 64, 2);
    }
    if (rp__tiles_named("avx2")) assert_true(in_rows > 0 && apart_rows > 0);
}

/* Losses of classes, whose rows read one logit at a computed place and, for their gradient, know where along them an element is: eager
   and compiled, served by line functions, with classes that are ignored, and one that no row has. */
static int loss_lines, loss_rows;
static rp_status look_at_loss(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    (void)self;
    const rp__cpu_loop *loop = l->kernel->payload;
    if (loop->programs[RP__PLAN_RECOMPUTE] && strstr(l->op, "cross_entropy_rows")) {
        loss_rows++;
        loss_lines += (l->words[0] & 0xff) == RP__WALK_ALONG && atomic_load(&loop->line[RP__PLAN_RECOMPUTE]) != NULL;
    }
    return s->device->ops->launch(s->device, s, l);
}
static void loss_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const bool *slopes = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_cross_entropy(in[0], in[1], NULL, 1, 3, 0);
    if (*slopes) assert_int_equal(rp_grad(out, 1, in, 1, in + 2, NULL, out + 1), RP_OK);
}
static void losses_of(rp_dtype dtype, int64_t rows, int64_t classes, bool outside) {
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    rp_scope scope = rp_scope_begin();
    rp_manual_seed((uint64_t)(rows + classes));
    rp_tensor *in[] = {rp_to_dtype(rp_mul_scalar(rp_randn(RP_DIMS(rows, classes)), rp_f64(4)), dtype),
                       rp_randint(0, classes, RP_DIMS(rows)), rp_to_dtype(rp_randn(NULL, 0), dtype)};
    if (outside) rp_fill_(rp_select(in[1], 0, rows - 1), rp_i64(classes));
    for (int form = 0; form < 2; form++) {
        bool slopes = form;
        rp_tensor *want[2] = {NULL};
        for (int how = 0; how < 4; how++) { /* the interpreter, line functions, compiled functions by either */
            rp__line_table_off = how == 0 || how == 2;
            for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
                if (!rp__tiles_named(isas[k])) continue;
                rp_set_requires_grad(in[0], slopes);
                rp_set_grad_enabled(slopes);
                rp__tiles twin = *rp__tiles_named(isas[k]);
                rp__tiles_set(&twin);
                rp_tensor *got[2] = {NULL};
                loss_body(&slopes, in, 3, got, 2);
                rp__tiles_set(rp__tiles_named(isas[k]));
                (void)rp_synchronize(rp_cpu());
                (void)rp_error_take();
                if (how < 2) {
                    rp__launch_recorder recorder = {.record = look_at_loss};
                    rp__launch_recorder *old = how ? rp__launch_recorder_set(&recorder) : NULL;
                    loss_body(&slopes, in, 3, got, 2);
                    if (how) rp__launch_recorder_set(old);
                } else {
                    rp_compiled *f = rp_compile((rp_fn){loss_body, &slopes, sizeof slopes, "loss"}, NULL);
                    for (int call = 0; call < 3; call++) {
                        (void)rp_call(f, in, 3, got, 1 + slopes);
                        if (call < 2) (void)rp_synchronize(rp_cpu()), (void)rp_error_take();
                    }
                    rp_compiled_release(f);
                }
                rp_set_grad_enabled(false);
                if (rp_synchronize(rp_cpu()) != (outside ? RP_ERROR_INDEX : RP_OK))
                    fail_msg("%lld classes, way %d on %s: %s", (long long)classes, how, isas[k], rp_error_message());
                if (outside) assert_non_null(strstr(rp_error_message(), "is out of bounds"));
                (void)rp_error_take();
                for (int i = 0; i <= slopes && !outside; i++) {
                    got[i] = rp_contiguous(rp_detach(got[i]));
                    if (!want[i]) want[i] = got[i];
                    if (!same(want[i], got[i]))
                        fail_msg("%lld x %lld of %s, result %d, way %d on %s: other bits", (long long)rows,
                                 (long long)classes, rp_dtype_name(dtype), i, how, isas[k]);
                }
            }
        }
    }
    rp_scope_end(scope, NULL, 0);
}
static void losses(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F16};
    static const int64_t classes[] = {10, 32, 33, 100, 257, 1000, 9000};
    loss_lines = loss_rows = 0;
    for (int i = 0; i < 3 * 7; i += SLOW_BUILD ? 5 : 1)
        losses_of(dtypes[i % 3], 5 + 60 * (i % 2), classes[i / 3], false);
    losses_of(RP_F32, 40, 100, true);
    assert_true(loss_rows > 0);
    if (rp__tiles_named("avx2")) assert_true(loss_lines > 0);
}

/* Reductions of columns have the bits of those of rows: x^T copied, on every instruction set. */
static rp_tensor *reduced(rp_tensor *t, int op, int64_t dim) {
    switch (op) {
    case 0: return rp_sum(t, RP_DIMS(dim));
    case 1: return rp_amax(t, RP_DIMS(dim), false);
    case 2: return rp_amin(t, RP_DIMS(dim), false);
    default: return rp_dtype_of(t) == RP_I64 ? rp_sum(t, RP_DIMS(dim), true) : rp_mean(t, RP_DIMS(dim), true);
    }
}
enum { SPARSER = SLOW_BUILD ? 5 : 1 }; /* fewer sizes of each type where sanitizers make everything slow */

static void columns(void **state) {
    (void)state;
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I64};
    static const int64_t rows[] = {1, 31, 33, 256, 300, 8193}, wide[] = {3, 16, 33, 130, 777};
    for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
        if (!rp__tiles_named(isas[k])) continue;
        rp__tiles twin = *rp__tiles_named(isas[k]);
        rp__tiles_set(&twin);
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            for (size_t i = d % SPARSER; i < 30; i += SPARSER) {
                const int64_t n = rows[i / 5], m = wide[i % 5];
                rp_scope scope = rp_scope_begin();
                rp_tensor *t = rp_to_dtype(rp_mul_scalar(rp_randn(RP_DIMS(n, m + 2)), rp_f64(9)), dtypes[d]);
                t = i % 2 ? rp_narrow(t, 1, 1, m) : rp_narrow(rp_view(t, RP_DIMS(-1)), 0, 0, n * m);
                if (i % 2 == 0) t = rp_view(t, RP_DIMS(n, m));
                rp_tensor *turned = rp_contiguous(rp_transpose(t, 0, 1));
                for (int op = 0; op < 4; op++) {
                    rp_tensor *got = reduced(t, op, 0), *want = reduced(turned, op, 1);
                    assert_false(rp_failed());
                    if (memcmp(rp_data(got), rp_data(want), (size_t)rp_numel(got) * rp_dtype_size(rp_dtype_of(got))))
                        fail_msg("op %d of %s, %lld x %lld on %s: other bits", op, rp_dtype_name(dtypes[d]),
                                 (long long)n, (long long)m, isas[k]);
                }
                rp_scope_end(scope, NULL, 0);
            }
        }
        rp__tiles_set(NULL);
    }
}

/* An optimizer's step is one launch over all parameters; what follows from the count of steps and the learning rate alone is calculated
   once for each, not for each element. */
static int served, steps_taken;
static rp_status look_at_step(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    (void)self;
    if ((l->words[0] & 0xff) == RP__WALK_MANY) {
        const rp__cpu_loop *loop = l->kernel->payload;
        steps_taken++;
        served += atomic_load(&loop->line[RP__PLAN_ELEMENTS]) != NULL;
    }
    return s->device->ops->launch(s->device, s, l);
}
static void optimizer_steps(void **state) {
    (void)state;
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    const int64_t sizes[] = {1, 37, 64, 5000};
    float want[4][5000], got[5000];
    for (int which = 0; which < 4; which++) {
        for (size_t k = 0, first = 1; k < 2 * (sizeof isas / sizeof *isas); k++) {
            const rp__tiles *tiles = rp__tiles_named(isas[k / 2]);
            if (!tiles) continue;
            rp__line_table_off = k % 2 == 0;
            rp_scope scope = rp_scope_begin();
            rp_tensor *p[4];
            rp_manual_seed(5);
            for (int i = 0; i < 4; i++) {
                p[i] = rp_randn(&sizes[i], 1);
                rp_set_requires_grad(p[i], true);
                rp_set_grad(p[i], rp_randn(&sizes[i], 1));
            }
            rp_optimizer *o = which == 0   ? rp_adam(p, 4, 1e-2, NULL)
                              : which == 1 ? rp_sgd(p, 4, 0.1, RP_OPTIONS(rp_sgd_options, .momentum = 0.9))
                              : which == 2 ? rp_rmsprop(p, 4, 1e-2, NULL)
                                           : rp_adagrad(p, 4, 1e-2, NULL);
            rp__tiles twin = *tiles;
            rp__tiles_set(&twin);
            rp_optimizer_step(o);
            rp__tiles_set(tiles);
            rp__launch_recorder recorder = {.record = look_at_step};
            rp__launch_recorder *old = rp__launch_recorder_set(&recorder);
            served = steps_taken = 0;
            for (int i = 0; i < 3; i++) rp_optimizer_step(o);
            rp__launch_recorder_set(old);
            assert_false(rp_failed());
            assert_true(steps_taken > 0);
            assert_int_equal(served, rp__line_table_off ? 0 : steps_taken);
            for (int i = 0; i < 4; i++) {
                const size_t bytes = (size_t)sizes[i] * sizeof(float);
                assert_int_equal(rp_to_host(p[i], first ? want[i] : got, bytes), RP_OK);
                if (!first && memcmp(want[i], got, bytes))
                    fail_msg("optimizer %d on %s, way %d: other bits", which, isas[k / 2], (int)(k % 2));
            }
            first = 0;
            rp_optimizer_release(o);
            rp_scope_end(scope, NULL, 0);
        }
    }
}

static int restore(void **state) {
    (void)state;
    rp__tiles_set(NULL);
    rp__line_table_off = false;
    rp__line_stream_bytes = 24 << 20;
    return 0;
}

int main(void) {
    setenv("REPRISE_JIT", "0", 1);
    rp_set_grad_enabled(false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(same_bits_f32, restore),   cmocka_unit_test_teardown(same_bits_bf16, restore),
        cmocka_unit_test_teardown(same_bits_f16, restore),   cmocka_unit_test_teardown(same_bits_f64, restore),
        cmocka_unit_test_teardown(slopes, restore),          cmocka_unit_test_teardown(tiny, restore),
        cmocka_unit_test_teardown(shared_rows, restore),     cmocka_unit_test_teardown(long_rows, restore),
        cmocka_unit_test_teardown(leftovers, restore),       cmocka_unit_test_teardown(norms, restore),
        cmocka_unit_test_teardown(columns, restore),         cmocka_unit_test_teardown(wide_norms, restore),
        cmocka_unit_test_teardown(optimizer_steps, restore), cmocka_unit_test_teardown(losses, restore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
