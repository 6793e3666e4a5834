/* The arena planner: buffers alive at the same time never overlap, memory is reused, the arena is no larger than it must be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "compile/program.h"

static void check(const rp__plan_buffer *b, size_t n, int64_t arena) {
    for (size_t i = 0; i < n; i++) {
        assert_true(b[i].offset >= 0 && b[i].offset + b[i].bytes <= arena);
        assert_int_equal(b[i].offset % RP__PLAN_ALIGNMENT, 0);
        for (size_t j = 0; j < i; j++) {
            bool together = b[i].first <= b[j].last && b[j].first <= b[i].last;
            bool overlap = b[i].offset < b[j].offset + b[j].bytes && b[j].offset < b[i].offset + b[i].bytes;
            assert_false(together && overlap);
        }
    }
}

static void chain_uses_two(void **state) {
    (void)state;
    rp__plan_buffer b[10];
    memset(b, 0, sizeof b);
    for (unsigned k = 0; k < 10; k++) b[k] = (rp__plan_buffer){.bytes = 1000, .first = k, .last = k + 1};
    int64_t arena;
    assert_int_equal(rp__plan(b, 10, &arena), RP_OK);
    check(b, 10, arena);
    assert_int_equal(arena, 2 * 1024);
}

static void small_ones_fill_gaps(void **state) {
    (void)state;
    rp__plan_buffer b[] = {{.bytes = 4096, .first = 0, .last = 1},
                           {.bytes = 4096, .first = 1, .last = 2},
                           {.bytes = 256, .first = 2, .last = 3},
                           {.bytes = 512, .first = 3, .last = 3},
                           {.bytes = 0, .first = 0, .last = 3}};
    int64_t arena;
    assert_int_equal(rp__plan(b, 5, &arena), RP_OK);
    check(b, 5, arena);
    assert_int_equal(arena, 8192);
}

static void random_lifetimes(void **state) {
    (void)state;
    uint64_t s = 12345;
    for (unsigned round = 0; round < 50; round++) {
        rp__plan_buffer b[60];
        int64_t alive[80] = {0}, peak = 0, arena;
        for (unsigned k = 0; k < 60; k++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            uint32_t first = (uint32_t)(s >> 40) % 60, length = (uint32_t)(s >> 50) % 8;
            b[k] = (rp__plan_buffer){.bytes = 1 + (int64_t)((s >> 20) % 20000), .first = first, .last = first + length};
            for (uint32_t t = first; t <= first + length; t++) {
                alive[t] += (b[k].bytes + RP__PLAN_ALIGNMENT - 1) / RP__PLAN_ALIGNMENT * RP__PLAN_ALIGNMENT;
                if (alive[t] > peak) peak = alive[t];
            }
        }
        assert_int_equal(rp__plan(b, 60, &arena), RP_OK);
        check(b, 60, arena);
        assert_true(arena >= peak && arena <= peak + peak / 2);
    }
}

static void nothing(void **state) {
    (void)state;
    int64_t arena = 7;
    assert_int_equal(rp__plan(NULL, 0, &arena), RP_OK);
    assert_int_equal(arena, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chain_uses_two), cmocka_unit_test(small_ones_fill_gaps),
                                       cmocka_unit_test(random_lifetimes), cmocka_unit_test(nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
