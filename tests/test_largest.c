/* Where in a row its largest value stands (kernel/cpu/interp_largest.c), sums and extremes of columns of very few rows, and diagonals: beside
   plain loops, for sizes around those of vectors and tiles, in any layout, of every type and instruction set; ties, NaN and
   infinities included.
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
#include <sys/mman.h>
#include <unistd.h>

#include <reprise.h>

#include "kernel/cpu/tiles.h"

enum { MOST = 60000 };
static const char *const isas[] = {"baseline", "avx2", "avx512"};
static double values[MOST];
static int64_t places[MOST];
static unsigned seed;

static unsigned draw(unsigned n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}
/* rows * len values, few different ones; kind 1: with NaN; 2: infinities alone in some rows. */
static rp_tensor *make(int64_t rows, int64_t len, rp_dtype dtype, int kind) {
    for (int64_t i = 0; i < rows * len; i++) {
        values[i] = draw(9);
        if (kind == 1 && draw(40) == 0) values[i] = NAN;
        if (kind == 2 && i / len % 3 == 0) values[i] = -INFINITY;
    }
    return rp_to_dtype(rp_from_data(values, (int64_t[]){rows, len}, 2, RP_F64), dtype);
}
/* Along dim 1 of x (rows, len); largest: else the least. */
static void check_place(rp_tensor *x, int64_t rows, int64_t len, bool largest, int dim) {
    rp_tensor *value = NULL, *place = NULL;
    if (largest) {
        value = rp_max_dim(x, dim, false, &place);
        assert_true(rp_item_f64(rp_all(rp_eq(place, rp_argmax(x, dim, false)))) == 1);
    } else {
        value = rp_min_dim(x, dim, false, &place);
        assert_true(rp_item_f64(rp_all(rp_eq(place, rp_argmin(x, dim, false)))) == 1);
    }
    static double got[MOST];
    assert_int_equal(rp_to_host(place, places, (size_t)rows * 8), RP_OK);
    assert_int_equal(rp_to_host(rp_to_dtype(value, RP_F64), got, (size_t)rows * 8), RP_OK);
    for (int64_t r = 0; r < rows; r++) {
        const double *v = values + r * len;
        int64_t at = 0;
        for (int64_t k = 1; k < len && !isnan(v[at]); k++)
            if (isnan(v[k]) || (largest ? v[k] > v[at] : v[k] < v[at])) at = k;
        if (places[r] != at) fail_msg("row %d of %d: place %d, not %d", (int)r, (int)len, (int)places[r], (int)at);
        assert_true(got[r] == v[at] || (isnan(got[r]) && isnan(v[at])));
    }
}
static void each_isa(void (*check)(void)) {
    for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
        const rp__tiles *tiles = rp__tiles_named(isas[k]);
        if (!tiles) continue;
        rp__tiles_set(tiles);
        check();
    }
    rp__tiles_set(NULL);
}

static void places_check(void) {
    static const int64_t sizes[][2] = {{1, 1},     {1, 700}, {3, 5},     {4, 900},   {7, 8300},  {33, 7},
                                       {70, 8},    {40, 17}, {100, 33},  {300, 2},   {129, 16},  {64, 100},
                                       {17, 1000}, {500, 1}, {2, 12000}, {1000, 31}, {20, 1500}, {2000, 12}};
    static const rp_dtype types[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_I16};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            const int64_t rows = sizes[k][0], len = sizes[k][1];
            const int kind = types[t] == RP_F32 || types[t] == RP_F64 || types[t] == RP_F16 || types[t] == RP_BF16
                                 ? (int)((k + t) % 3)
                                 : 0;
            const rp_scope scope = rp_scope_begin();
            rp_tensor *x = make(rows, len, types[t], kind);
            rp_tensor *turned = rp_contiguous(rp_transpose(x, 0, 1));
            check_place(x, rows, len, k % 2, 1);
            check_place(rp_transpose(turned, 0, 1), rows, len, (k + t) % 2, -1); /* rows lie side by side */
            check_place(turned, rows, len, true, 0);
            rp_tensor *wide[2] = {x, x}; /* every other element */
            rp_tensor *apart = rp_reshape(rp_stack(wide, 2, 2), (int64_t[]){rows, 2 * len}, 2);
            check_place(rp_slice(apart, 1, 0, 2 * len, 2), rows, len, false, 1);
            assert_int_equal(rp_error_status(), RP_OK);
            rp_scope_end(scope, NULL, 0);
        }
    }
}
static void places_of_the_largest(void **state) {
    (void)state;
    each_isa(places_check);
}

/* Rows that are one row, and ranges of rows that are: nothing moves from row to row. */
static void expanded_check(void) {
    static const int64_t sizes[][3] = {{200, 1, 3}, {20, 1, 17}, {1000, 1, 40}, {5, 70, 9}, {33, 33, 2}, {3, 300, 33}};
    static const rp_dtype types[] = {RP_F32, RP_F64, RP_BF16, RP_I64, RP_U8};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            const int64_t a = sizes[k][1] == 1 ? 1 : sizes[k][0], b = sizes[k][1] == 1 ? sizes[k][0] : sizes[k][1],
                          len = sizes[k][2];
            const rp_scope scope = rp_scope_begin();
            rp_tensor *x = rp_unsqueeze(make(a, len, types[t], 0), 1);
            for (int64_t r = a * b; r-- > 0;) memmove(values + r * len, values + r / b * len, (size_t)len * 8);
            rp_tensor *wide = rp_expand(x, RP_DIMS(a, b, len));
            for (int most = 0; most < 2; most++) {
                rp_tensor *place = most ? rp_argmax(wide, 2, false) : rp_argmin(wide, 2, false);
                assert_int_equal(rp_to_host(place, places, (size_t)(a * b) * 8), RP_OK);
                for (int64_t r = 0; r < a * b; r++) {
                    const double *v = values + r * len;
                    int64_t at = 0;
                    for (int64_t i = 1; i < len; i++)
                        if (most ? v[i] > v[at] : v[i] < v[at]) at = i;
                    if (places[r] != at)
                        fail_msg("row %d of %d x %d: place %d, not %d", (int)r, (int)b, (int)len, (int)places[r],
                                 (int)at);
                }
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
}
static void rows_that_are_one(void **state) {
    (void)state;
    each_isa(expanded_check);
}

/* Memory from outside that ends where nothing may be read. */
static void ends_check(void) {
    static const int64_t sizes[][2] = {{16, 40}, {8, 36}, {8, 44}, {16, 33}, {5, 3}, {900, 1}};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(mprotect(memory + page, page, PROT_NONE), 0);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t rows = sizes[k][0], len = sizes[k][1];
        float *x = (float *)(void *)(memory + page) - rows * len;
        for (int64_t i = 0; i < rows * len; i++) x[i] = (float)draw(50);
        const rp_scope scope = rp_scope_begin();
        rp_tensor *t = rp_from_blob(x, (int64_t[]){rows, len}, 2, NULL, RP_F32, rp_cpu(), NULL, NULL);
        for (int dim = 0; dim < 2; dim++) {
            const int64_t many = dim ? rows : len, each = dim ? len : rows, step = dim ? 1 : len;
            assert_int_equal(rp_to_host(rp_argmax(t, dim, false), places, (size_t)many * 8), RP_OK);
            for (int64_t r = 0; r < many; r++) {
                const float *v = x + (dim ? r * len : r);
                int64_t at = 0;
                for (int64_t i = 1; i < each; i++)
                    if (v[i * step] > v[at * step]) at = i;
                assert_int_equal(places[r], at);
            }
        }
        rp_scope_end(scope, NULL, 0);
    }
    munmap(memory, 2 * page);
}
static void memory_that_ends(void **state) {
    (void)state;
    each_isa(ends_check);
}

/* Over all elements, by their numbers in row-major order, whatever the layout. */
static void all_check(void) {
    const rp_scope scope = rp_scope_begin();
    rp_tensor *x = make(31, 37, RP_F32, 0);
    values[500] = 20, values[900] = 20;
    x = rp_to_dtype(rp_from_data(values, (int64_t[]){31, 37}, 2, RP_F64), RP_F32);
    rp_tensor *other = rp_transpose(rp_contiguous(rp_transpose(x, 0, 1)), 0, 1);
    assert_int_equal((int)rp_item_f64(rp_argmax(x)), 500);
    assert_int_equal((int)rp_item_f64(rp_argmax(other)), 500);
    rp_scope_end(scope, NULL, 0);
}
static void of_all_elements(void **state) {
    (void)state;
    each_isa(all_check);
}

/* Columns of one to six rows: each row is a lane of its own, which begins with the identity; lanes 4, 2 and 1 apart are combined. */
static float sum_of(const float *x, int64_t rows, int64_t step) {
    float lane[8] = {0};
    for (int64_t r = 0; r < rows; r++) lane[r] = 0.0f + x[r * step];
    for (int64_t half = 4; half > 0; half /= 2)
        for (int64_t r = half; r < rows && r < 2 * half; r++) lane[r - half] += lane[r];
    return lane[0];
}
static void columns_check(void) {
    static float x[MOST], got[MOST], most[MOST];
    static const int64_t widths[] = {16, 17, 40, 100, 513, 2047, 5000};
    for (int64_t rows = 1; rows <= 6; rows++) {
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
            const int64_t n = widths[k];
            for (int64_t i = 0; i < rows * n; i++) x[i] = i % 11 == 5 ? -0.0f : ((float)draw(2000) - 1000) / 7;
            const rp_scope scope = rp_scope_begin();
            rp_tensor *t = rp_from_data(x, (int64_t[]){rows, n}, 2, RP_F32);
            assert_int_equal(rp_to_host(rp_sum(t, RP_DIMS(0)), got, (size_t)n * 4), RP_OK);
            assert_int_equal(rp_to_host(rp_amax(t, RP_DIMS(0), false), most, (size_t)n * 4), RP_OK);
            for (int64_t i = 0; i < n; i++) {
                const float want = sum_of(x + i, rows, n);
                assert_memory_equal(&got[i], &want, 4);
                float high = x[i];
                for (int64_t r = 1; r < rows; r++) high = x[r * n + i] > high ? x[r * n + i] : high;
                assert_true(most[i] == high);
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
}
static void columns_of_few_rows(void **state) {
    (void)state;
    each_isa(columns_check);
}

static void diagonals(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {512, 12}, {3, 70}, {700, 3}, {33, 20}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (int offset = -2; offset <= 2; offset++) {
            const int64_t rows = sizes[k][0], n = sizes[k][1], side = n + (offset < 0 ? -offset : offset);
            static const rp_dtype types[] = {RP_F32, RP_F64, RP_BF16, RP_U8};
            for (size_t t = 0; t < 4; t++) {
                const rp_scope scope = rp_scope_begin();
                rp_tensor *x = make(rows, n, types[t], 0);
                double *got = malloc((size_t)(rows * side * side) * sizeof *got);
                rp_tensor *y = rp_diag_embed(x, offset, -2, -1);
                assert_int_equal(rp_to_host(rp_to_dtype(y, RP_F64), got, (size_t)(rows * side * side) * 8), RP_OK);
                for (int64_t i = 0; i < rows * side * side; i++) {
                    const int64_t r = i / side / side, a = i / side % side, b = i % side;
                    const double want = b - a == offset ? values[r * n + (offset < 0 ? b : a)] : 0;
                    if (got[i] != want) fail_msg("%d x %d, offset %d: element %d", (int)rows, (int)n, offset, (int)i);
                }
                free(got);
                rp_scope_end(scope, NULL, 0);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_of_the_largest), cmocka_unit_test(rows_that_are_one),
        cmocka_unit_test(memory_that_ends),      cmocka_unit_test(of_all_elements),
        cmocka_unit_test(columns_of_few_rows),   cmocka_unit_test(diagonals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
