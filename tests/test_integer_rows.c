/* Largest and least of integers, any and all: rows and columns of every length, near and far from those of vectors, of every type and
   instruction set, with the bounds of the type among them, are those of a plain loop.
   ctest: labels=numbers timeout=300 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>

#include "kernel/cpu/program.h"
#include "kernel/cpu/tiles.h"
#include "support/slow.h"

static const char *const isas[] = {"baseline", "avx2", "avx512"};
static const rp_dtype dtypes[] = {RP_U8, RP_I8, RP_I16, RP_I32, RP_I64, RP_BOOL};
enum { AMAX, AMIN, ANY, ALL, OPS };

static int64_t get(const char *p, rp_dtype dtype) {
    int8_t a;
    int16_t b;
    int32_t c;
    int64_t d;
    switch (rp_dtype_size(dtype)) {
    case 1: memcpy(&a, p, 1); return dtype == RP_I8 ? a : (uint8_t)a;
    case 2: memcpy(&b, p, 2); return b;
    case 4: memcpy(&c, p, 4); return c;
    default: memcpy(&d, p, 8); return d;
    }
}
/* Mostly what lies in the middle, so that a bound is alone in its row; of bools any byte, with few of one kind. */
static void fill(char *p, int64_t n, rp_dtype dtype, unsigned seed, bool high) {
    const size_t size = rp_dtype_size(dtype);
    for (int64_t k = 0; k < n; k++) {
        seed = seed * 1664525u + 1013904223u;
        const bool seldom = seed >> 20 < 5;
        const uint64_t bit = UINT64_C(1) << (8 * size - 1);
        uint64_t v = (seed >> 16 & 63) - (dtype == RP_U8 ? 0 : 32);
        if (dtype == RP_BOOL)
            v = seldom == high ? 0 : seed >> 27 | 1;
        else if (seldom)
            v = dtype == RP_U8 ? (high ? 255 : 0) : high ? bit - 1 : bit;
        memcpy(p + k * (int64_t)size, &v, size);
    }
}
static int64_t plain(int op, const char *p, rp_dtype dtype, int64_t n, int64_t step) {
    const int64_t size = (int64_t)rp_dtype_size(dtype);
    int64_t most = get(p, dtype), least = most, any = 0, all = 1;
    for (int64_t k = 0; k < n; k++) {
        const int64_t v = get(p + k * step * size, dtype);
        most = v > most ? v : most;
        least = v < least ? v : least;
        any |= v != 0;
        all &= v != 0;
    }
    if (dtype == RP_BOOL) most = any, least = all;
    return op == AMAX ? most : op == AMIN ? least : op == ANY ? any : all;
}
static rp_tensor *run_op(int op, rp_tensor *x, int64_t dim) {
    switch (op) {
    case AMAX: return rp_amax(x, RP_DIMS(dim), false);
    case AMIN: return rp_amin(x, RP_DIMS(dim), false);
    case ANY: return rp_any(x, RP_DIMS(dim), false);
    default: return rp_all(x, RP_DIMS(dim), false);
    }
}

/* x (rows, n): along its rows, or down the columns of its transpose, of every `step`-th element, `first` elements from the start of memory. */
static void compare(rp_dtype dtype, int64_t rows, int64_t n, int64_t step, int64_t first, bool down, unsigned seed) {
    const int64_t size = (int64_t)rp_dtype_size(dtype), line = down ? rows : n * step, all = rows * n * step + first;
    char *data = malloc((size_t)(all * size));
    assert_non_null(data);
    fill(data, all, dtype, seed, seed % 2);
    for (int op = 0; op < OPS; op++) {
        rp_scope scope = rp_scope_begin();
        const int64_t extent[] = {down ? n : rows, down ? rows : n}, stride[] = {line, down ? 1 : step};
        rp_tensor *x = rp_from_blob(data + first * size, extent, 2, stride, dtype, rp_cpu(), NULL, NULL);
        rp_tensor *y = rp_contiguous(run_op(op, x, down ? 0 : 1), NULL);
        if (rp_failed()) fail_msg("op %d of %s: %s", op, rp_dtype_name(dtype), rp_error_message());
        const char *got = rp_data(y);
        assert_int_equal(rp_numel(y), rows);
        for (int64_t r = 0; r < rows; r++) {
            const char *row = data + (first + r * (down ? 1 : line)) * size;
            const int64_t want = plain(op, row, dtype, n, down ? line : step),
                          have = get(got + r * (int64_t)rp_dtype_size(rp_dtype_of(y)), rp_dtype_of(y));
            if (want != have)
                fail_msg("op %d of %s, row %d of %d, %d elements %d apart, down %d: %lld, not %lld", op,
                         rp_dtype_name(dtype), (int)r, (int)rows, (int)n, (int)step, down, (long long)have,
                         (long long)want);
        }
        rp_scope_end(scope, NULL, 0);
    }
    free(data);
}
static void rows_of_integers(void **state) {
    (void)state;
    static const int64_t lengths[] = {1,  2,   4,   5,   31,  32,  33,   63,   64,   65,
                                      97, 127, 129, 255, 257, 515, 2049, 8192, 8193, 40000};
    static const int64_t many[] = {1, 3, 17, 70};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!rp__tiles_named(isas[i])) continue;
        rp__tiles_set(rp__tiles_named(isas[i]));
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l += SLOW_BUILD ? 2 : 1) {
                for (size_t m = 0; m < sizeof many / sizeof *many; m++) {
                    if (many[m] * lengths[l] > 200000) continue;
                    for (int way = 0; way < 4; way++)
                        compare(dtypes[d], many[m], lengths[l], way == 3 ? 2 : 1, way == 1 ? 3 : 0, way == 2,
                                (unsigned)(l * 8 + m + 1));
                }
            }
        }
    }
    rp__tiles_set(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_integers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
