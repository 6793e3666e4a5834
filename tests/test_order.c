/* Rows in order (kernel/cpu/lib_topk.c), short lines that are turned (interp_copies.c), whole numbers that are divided (tiles.c) and images that are
   sampled at places which all channels share, or resized where channels lie last (interp_still.c): beside plain loops, for sizes around those where the way changes, of every
   type and instruction set; ties, NaN, both zeros and the ends of the integers included.
   ctest: labels=numbers timeout=300 */
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

#include "kernel/cpu/tiles.h"

enum { MOST = 20000 };
static double values[MOST];
static int64_t places[MOST], want[MOST];
static unsigned seed;

static unsigned draw(unsigned n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}
static void each_isa(void (*check)(void)) {
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
        const rp__tiles *tiles = rp__tiles_named(isas[k]);
        if (!tiles) continue;
        rp__tiles_set(tiles);
        check();
    }
    rp__tiles_set(NULL);
}
static void bytes_of(rp_tensor *t, void *to, int64_t n) {
    assert_int_equal(rp_numel(t), n);
    assert_int_equal(rp_to_host(t, to, (size_t)n * rp_dtype_size(rp_dtype_of(t))), RP_OK);
}

/* ---- order */

/* Is a before b? NaN is the largest of all. */
static bool before(int64_t a, int64_t b, bool largest) {
    const double x = values[a], y = values[b];
    const bool more = isnan(x) ? !isnan(y) : x > y, less = isnan(y) ? !isnan(x) : x < y;
    return more || less ? largest == more : a < b;
}
static bool descending;
static int compare(const void *a, const void *b) {
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    return i == j ? 0 : before(i, j, descending) ? -1 : 1;
}
static void check_order(rp_dtype dtype, int64_t n, int64_t k, int kind, bool largest) {
    const bool real = dtype != RP_I64 && dtype != RP_U8 && dtype != RP_I16;
    const rp_scope scope = rp_scope_begin();
    for (int64_t i = 0; i < n; i++) {
        values[i] = kind == 0 ? (double)draw(7) : kind == 1 ? (double)draw(1u << 20) : 5;
        if (real && kind == 1) values[i] = (values[i] - 300000) * 1e-3;
        if (!real && dtype != RP_U8) values[i] -= 3;
        if (real && kind != 2 && draw(20) == 0) values[i] = draw(2) ? NAN : draw(2) ? -0.0 : INFINITY;
    }
    if (dtype == RP_I64 && kind == 1) values[n / 2] = 0x1p62, values[0] = -0x1p62; /* digits of all 64 bits */
    rp_tensor *x = rp_to_dtype(rp_from_data(values, (int64_t[]){n}, 1, RP_F64), dtype), *at = NULL;
    bytes_of(rp_to_dtype(x, RP_F64), values, n);                   /* as the type has them */
    if (k % 2) x = rp_select(rp_stack(RP_TENSORS(x, x), 1), 1, 1); /* elements apart */
    rp_tensor *y = k == n ? rp_sort(x, 0, largest, NULL, &at) : rp_topk(x, k, 0, largest, true, &at);
    static double got[MOST];
    bytes_of(at, places, k);
    bytes_of(rp_to_dtype(y, RP_F64), got, k);
    for (int64_t i = 0; i < n; i++) want[i] = i;
    descending = largest;
    qsort(want, (size_t)n, sizeof *want, compare);
    for (int64_t i = 0; i < k; i++) {
        if (places[i] != want[i])
            fail_msg("%s, %d of %d, kind %d: place %d is %d, not %d", rp_dtype_name(dtype), (int)k, (int)n, kind,
                     (int)i, (int)places[i], (int)want[i]);
        const double v = values[want[i]];
        assert_true(got[i] == v || (isnan(got[i]) && isnan(v)));
    }
    rp_scope_end(scope, NULL, 0);
}
static void rows_in_order(void **state) {
    (void)state;
    static const rp_dtype types[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I64, RP_I16, RP_U8};
    static const int64_t sizes[] = {1, 2, 15, 17, 47, 48, 49, 97, 500, 2047, 2048, 5001};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int kind = 0; kind < 3; kind++) {
                const int64_t n = sizes[s], some[] = {n, 1, 63, 64, 65, 66, n / 2, n - 1};
                for (size_t k = 0; k < sizeof some / sizeof *some; k++)
                    if (some[k] > 0 && some[k] <= n) check_order(types[t], n, some[k], kind, (k + s) % 2);
            }
}
static void middle_of_rows(void **state) {
    (void)state;
    for (int64_t n = 1; n < 400; n += 37) {
        const rp_scope scope = rp_scope_begin();
        for (int64_t i = 0; i < n; i++) values[i] = (double)draw(50) - 20;
        rp_tensor *x = rp_from_data(values, (int64_t[]){n}, 1, RP_F64);
        const double middle = rp_item_f64(rp_median(x)),
                     third = rp_item_f64(rp_kthvalue(x, (n + 2) / 3, 0, false, NULL));
        for (int64_t i = 0; i < n; i++) want[i] = i;
        descending = false;
        qsort(want, (size_t)n, sizeof *want, compare);
        assert_true(middle == values[want[(n - 1) / 2]]);
        assert_true(third == values[want[(n + 2) / 3 - 1]]);
        rp_scope_end(scope, NULL, 0);
    }
}

/* ---- short lines */

static void check_turns(void) {
    static const int64_t sizes[][4] = {/* planes, rows, columns, factor */
                                       {3, 5, 8, 2}, {2, 9, 7, 3}, {5, 3, 9, 4},   {2, 3, 31, 16}, {2, 2, 20, 17},
                                       {1, 1, 8, 2}, {7, 1, 3, 2}, {2, 70, 67, 3}, {1, 40, 129, 2}};
    static const rp_dtype types[] = {RP_F32, RP_F64, RP_BF16, RP_U8, RP_BOOL};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            const int64_t planes = sizes[s][0], h = sizes[s][1], w = sizes[s][2], f = sizes[s][3],
                          n = planes * f * f * h * w;
            const rp_scope scope = rp_scope_begin();
            double *from = malloc((size_t)n * 8), *got = malloc((size_t)n * 8);
            for (int64_t i = 0; i < n; i++) from[i] = types[t] == RP_BOOL ? draw(2) : draw(200);
            rp_tensor *x = rp_to_dtype(rp_from_data(from, (int64_t[]){1, planes * f * f, h, w}, 4, RP_F64), types[t]);
            bytes_of(rp_to_dtype(rp_pixel_shuffle(x, f), RP_F64), got, n);
            for (int64_t i = 0; i < n; i++) {
                const int64_t column = i % (w * f), row = i / (w * f) % (h * f), plane = i / (w * f * h * f);
                const int64_t at = ((plane * f * f + row % f * f + column % f) * h + row / f) * w + column / f;
                if (got[i] != from[at]) fail_msg("%s, factor %d: element %d", rp_dtype_name(types[t]), (int)f, (int)i);
            }
            free(from);
            free(got);
            rp_scope_end(scope, NULL, 0);
        }
}
static void short_lines(void **state) {
    (void)state;
    each_isa(check_turns);
}

/* ---- division */

static void check_pairs(const int32_t *x, const int32_t *y, int64_t n, bool one) {
    const rp_scope scope = rp_scope_begin();
    int32_t *q = malloc((size_t)n * 4), *r = malloc((size_t)n * 4);
    rp_tensor *a = rp_from_data(x, (int64_t[]){n}, 1, RP_I32),
              *b = rp_from_data(y, (int64_t[]){one ? 1 : n}, 1, RP_I32);
    bytes_of(rp_floor_divide(a, b), q, n);
    bytes_of(rp_remainder(a, b), r, n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t v = y[one ? 0 : i];
        const int64_t down = x[i] / v - (x[i] % v != 0 && (x[i] < 0) != (v < 0)), rest = x[i] - down * v;
        if (q[i] != (int32_t)(uint32_t)down || r[i] != rest)
            fail_msg("%d by %d: %d, rest %d", (int)x[i], (int)v, (int)q[i], (int)r[i]);
    }
    free(q);
    free(r);
    rp_scope_end(scope, NULL, 0);
}
static void check_division(void) {
    static const int32_t ends[] = {INT32_MIN,
                                   INT32_MIN + 1,
                                   -0x40000001,
                                   -0x40000000,
                                   -65537,
                                   -46341,
                                   -1000003,
                                   -7,
                                   -3,
                                   -2,
                                   -1,
                                   1,
                                   2,
                                   3,
                                   7,
                                   46341,
                                   65536,
                                   999983,
                                   0x3fffffff,
                                   0x40000001,
                                   INT32_MAX - 1,
                                   INT32_MAX};
    enum { ENDS = sizeof ends / sizeof *ends, LONGEST = 70 };
    static int32_t x[ENDS * ENDS], y[ENDS * ENDS];
    for (int i = 0; i < ENDS * ENDS; i++) x[i] = ends[i / ENDS], y[i] = ends[i % ENDS];
    check_pairs(x, y, ENDS * ENDS, false);
    for (int i = 0; i < ENDS; i++) check_pairs(ends, ends + i, ENDS, true);
    for (int64_t n = 1; n < LONGEST; n++) {
        for (int64_t i = 0; i < n; i++) {
            x[i] = (int32_t)((uint32_t)draw(1u << 16) << 16 | draw(1u << 16)) >> draw(31);
            y[i] = (int32_t)((uint32_t)draw(1u << 16) << 16 | draw(1u << 16)) >> draw(31);
            if (y[i] == 0) y[i] = -5;
        }
        check_pairs(x, y, n, false);
    }
    /* a zero is told wherever it stands, and all else is divided */
    for (int64_t at = 0; at < LONGEST; at += 3) {
        int32_t got[LONGEST];
        for (int64_t i = 0; i < LONGEST; i++) x[i] = (int32_t)(1000 + i), y[i] = i == at ? 0 : -7;
        rp_tensor *q = rp_floor_divide(rp_from_data(x, (int64_t[]){LONGEST}, 1, RP_I32),
                                       rp_from_data(y, (int64_t[]){LONGEST}, 1, RP_I32));
        (void)rp_synchronize(rp_cpu());
        assert_int_not_equal(rp_error_take(), RP_OK);
        bytes_of(q, got, LONGEST);
        for (int64_t i = 0; i < LONGEST; i++) assert_int_equal(got[i], i == at ? 0 : -((1000 + i + 6) / 7));
    }
}
static void whole_numbers_divided(void **state) {
    (void)state;
    each_isa(check_division);
}

/* ---- samples: of many channels what each of them gives alone */

static void check_samples(void) {
    static const int64_t sizes[][4] = {{1, 3, 4, 4}, {2, 5, 3, 7}, {3, 4, 16, 16}, {1, 8, 17, 31}, {2, 3, 30, 41}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int mode = 0; mode < 4; mode++) {
            const int64_t n = sizes[s][0], c = sizes[s][1], h = sizes[s][2], w = sizes[s][3];
            const rp_scope scope = rp_scope_begin();
            rp_tensor *x = rp_randn(RP_DIMS(n, c, 6, 9)), *grid = rp_randn(RP_DIMS(n, h, w, 2)), *one[8];
            if (mode == 3) x = rp_to_dtype(x, RP_BF16), grid = rp_to_dtype(grid, RP_BF16);
            rp_tensor *all = rp_grid_sampler(x, grid, 0, mode % 3, mode == 1);
            for (int64_t k = 0; k < c; k++)
                one[k] = rp_grid_sampler(rp_contiguous(rp_slice(x, 1, k, k + 1)), grid, 0, mode % 3, mode == 1);
            rp_tensor *each = rp_cat(one, (size_t)c, 1);
            const size_t bytes = (size_t)rp_numel(all) * rp_dtype_size(rp_dtype_of(all));
            char *got = malloc(bytes), *alone = malloc(bytes);
            assert_int_equal(rp_to_host(all, got, bytes), RP_OK);
            assert_int_equal(rp_to_host(each, alone, bytes), RP_OK);
            assert_memory_equal(got, alone, bytes);
            free(got);
            free(alone);
            rp_scope_end(scope, NULL, 0);
        }
}
static void channels_share_places(void **state) {
    (void)state;
    each_isa(check_samples);
}

/* ---- channels that lie last are rows, each with a place and weights of its own */

static void check_resampled(void) {
    static const int64_t sizes[][4] = {{2, 33, 5, 7}, {1, 64, 3, 4}, {3, 40, 6, 2}, {2, 5, 4, 9}};
    static const char *const modes[] = {"nearest", "bilinear", "bicubic"};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int mode = 0; mode < 6; mode++) {
            const rp_scope scope = rp_scope_begin();
            rp_tensor *x = rp_randn(RP_DIMS(sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3]));
            if (mode > 2) x = rp_to_dtype(x, RP_BF16);
            rp_tensor *last = rp_contiguous(x, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
            rp_tensor *y[2], *in[] = {x, last};
            for (int k = 0; k < 2; k++)
                y[k] = rp_contiguous(rp_interpolate(in[k], RP_DIMS(9, 12), NULL, 0, modes[mode % 3]));
            const size_t bytes = (size_t)rp_numel(y[0]) * rp_dtype_size(rp_dtype_of(y[0]));
            char *got = malloc(bytes), *rows = malloc(bytes);
            assert_int_equal(rp_to_host(y[0], got, bytes), RP_OK);
            assert_int_equal(rp_to_host(y[1], rows, bytes), RP_OK);
            assert_memory_equal(got, rows, bytes);
            free(got);
            free(rows);
            rp_scope_end(scope, NULL, 0);
        }
}
static void channels_that_lie_last(void **state) {
    (void)state;
    each_isa(check_resampled);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_in_order),         cmocka_unit_test(middle_of_rows),
        cmocka_unit_test(short_lines),           cmocka_unit_test(whole_numbers_divided),
        cmocka_unit_test(channels_share_places), cmocka_unit_test(channels_that_lie_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
