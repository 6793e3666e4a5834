/* The arena planner: buffers alive at the same time never overlap, memory is reused, the arena is no larger than it must be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
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
    assert_int_equal(rp__plan(b, 10, NULL, 0, &arena, NULL), RP_OK);
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
    assert_int_equal(rp__plan(b, 5, NULL, 0, &arena, NULL), RP_OK);
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
        assert_int_equal(rp__plan(b, 60, NULL, 0, &arena, NULL), RP_OK);
        check(b, 60, arena);
        assert_true(arena >= peak && arena <= peak + peak / 2);
    }
}

/* Memory that is free from some position on costs nothing, is not overrun, and holds one buffer at a time. */
static void spaces_before_the_arena(void **state) {
    (void)state;
    const rp__plan_space spaces[] = {{.bytes = 5000, .last = 2}, {.bytes = 1000, .last = 4}};
    rp__plan_buffer b[] = {
        {.bytes = 4096, .first = 2, .last = 3},  /* too early for the first */
        {.bytes = 4000, .first = 3, .last = 4},  /* in the first */
        {.bytes = 904, .first = 4, .last = 5},   /* behind it, in what is left: 5000 - 4096 */
        {.bytes = 905, .first = 4, .last = 4},   /* one byte too many for that, too early for the second */
        {.bytes = 1000, .first = 5, .last = 6},  /* in the second */
        {.bytes = 1000, .first = 6, .last = 7},  /* the first is larger than needed, but the second is taken */
        {.bytes = 6000, .first = 9, .last = 9}}; /* too large for either */
    enum { N = sizeof b / sizeof *b };
    int64_t arena;
    assert_int_equal(rp__plan(b, N, spaces, 2, &arena, NULL), RP_OK);
    const uint32_t expected[N] = {RP__PLAN_ARENA, 0, 0, RP__PLAN_ARENA, 1, 0, RP__PLAN_ARENA};
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(b[i].space, expected[i]);
        if (b[i].space == RP__PLAN_ARENA) {
            assert_true(b[i].offset + b[i].bytes <= arena);
        } else {
            assert_true(b[i].first > spaces[b[i].space].last);
            assert_true(b[i].offset >= 0 && b[i].offset + b[i].bytes <= spaces[b[i].space].bytes);
        }
        for (unsigned j = 0; j < i; j++) {
            bool together = b[i].first <= b[j].last && b[j].first <= b[i].last && b[i].space == b[j].space;
            assert_false(together && b[i].offset < b[j].offset + b[j].bytes && b[j].offset < b[i].offset + b[i].bytes);
        }
    }
    assert_int_equal(arena, 6144);
    assert_int_equal(rp__plan(b, N, NULL, 0, &arena, NULL), RP_OK);
    assert_int_equal(arena, 4096 + 4096);
}

/* The rule, tried out: of all gaps in all memory that costs nothing the smallest, else of those in the arena. */
static int64_t best_gap(const rp__plan_buffer *b, const uint32_t *placed, size_t n, const rp__plan_buffer *x,
                        uint32_t space, int64_t bytes, int64_t limit, int64_t *gap) {
    int64_t at = -1;
    for (size_t c = 0; c <= n; c++) { /* a gap begins at 0 or behind a buffer */
        int64_t begin = 0, end = limit;
        const rp__plan_buffer *before = c < n ? &b[placed[c]] : NULL;
        if (before && (before->space != space || before->first > x->last || x->first > before->last)) continue;
        if (before)
            begin = before->offset + (before->bytes + RP__PLAN_ALIGNMENT - 1) / RP__PLAN_ALIGNMENT * RP__PLAN_ALIGNMENT;
        bool inside = false;
        for (size_t j = 0; j < n; j++) {
            const rp__plan_buffer *o = &b[placed[j]];
            if (o->space != space || o->first > x->last || x->first > o->last || o->bytes == 0) continue;
            int64_t behind = o->offset + (o->bytes + RP__PLAN_ALIGNMENT - 1) / RP__PLAN_ALIGNMENT * RP__PLAN_ALIGNMENT;
            inside = inside || (o->offset <= begin && begin < behind);
            if (o->offset > begin && o->offset < end) end = o->offset;
        }
        if (inside || end - begin < bytes) continue;
        if (end - begin < *gap || (end - begin == *gap && at > begin)) {
            *gap = end - begin;
            at = begin;
        }
    }
    return at;
}

enum { TRIED = 70, TRIED_SPACES = 9 };

static int64_t try_all(rp__plan_buffer *b, const rp__plan_space *spaces, uint32_t n_spaces) {
    uint32_t placed[TRIED];
    bool done[TRIED] = {0};
    int64_t arena = 0;
    for (size_t n = 0; n < TRIED; n++) {
        uint32_t next = TRIED;
        for (uint32_t k = 0; k < TRIED; k++)
            if (!done[k] && (next == TRIED || b[k].bytes > b[next].bytes)) next = k;
        rp__plan_buffer *x = &b[next];
        int64_t gap = INT64_MAX, need = (x->bytes + RP__PLAN_ALIGNMENT - 1) / RP__PLAN_ALIGNMENT * RP__PLAN_ALIGNMENT;
        x->space = RP__PLAN_ARENA;
        for (uint32_t s = 0; s < n_spaces; s++) {
            if (spaces[s].last >= x->first || spaces[s].bytes < x->bytes) continue;
            int64_t at = best_gap(b, placed, n, x, s, x->bytes, spaces[s].bytes, &gap);
            if (at < 0) continue;
            x->space = s;
            x->offset = at;
        }
        if (x->space == RP__PLAN_ARENA) {
            x->offset = best_gap(b, placed, n, x, RP__PLAN_ARENA, need, INT64_MAX / 2, &gap);
            if (x->offset + need > arena) arena = x->offset + need;
        }
        done[next] = true;
        placed[n] = next;
    }
    return arena;
}

static void as_by_trying_all(void **state) {
    (void)state;
    uint64_t s = 99;
    for (unsigned round = 0; round < 200; round++) {
        rp__plan_buffer b[TRIED], expected[TRIED];
        rp__plan_space spaces[TRIED_SPACES];
        uint32_t n_spaces = round % (TRIED_SPACES + 1);
        for (unsigned k = 0; k < TRIED; k++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            uint32_t first = (uint32_t)(s >> 40) % 50, length = (uint32_t)(s >> 50) % (round % 3 ? 6 : 40);
            /* few sizes, so that there are equal gaps */
            b[k] = (rp__plan_buffer){.bytes = 256 * (1 + (int64_t)((s >> 20) % 12)) - (int64_t)(s >> 62),
                                     .first = first,
                                     .last = first + length};
        }
        for (unsigned k = 0; k < n_spaces; k++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            spaces[k] =
                (rp__plan_space){.bytes = 256 * (1 + (int64_t)((s >> 20) % 20)), .last = (uint32_t)(s >> 40) % 40};
        }
        memcpy(expected, b, sizeof b);
        int64_t arena, want = try_all(expected, spaces, n_spaces);
        assert_int_equal(rp__plan(b, TRIED, spaces, n_spaces, &arena, NULL), RP_OK);
        assert_int_equal(arena, want);
        for (unsigned k = 0; k < TRIED; k++) {
            assert_int_equal(b[k].space, expected[k].space);
            assert_int_equal(b[k].offset, expected[k].offset);
        }
    }
}

/* The backward of a deep stack: as many donors as layers, temporaries that live shortly, all of one size. */
static void many_donors(void **state) {
    (void)state;
    enum { LAYERS = 8000, EACH = 4 };
    rp__plan_buffer *b = calloc(LAYERS * EACH, sizeof *b);
    rp__plan_space *spaces = calloc(LAYERS, sizeof *spaces);
    assert_non_null(b);
    assert_non_null(spaces);
    size_t steps[2];
    for (uint32_t layers = LAYERS / 2, i = 0; layers <= LAYERS; layers *= 2, i++) {
        for (uint32_t k = 0; k < layers; k++)
            spaces[k] = (rp__plan_space){.bytes = 4096, .last = (layers - 1 - k) * EACH};
        for (uint32_t k = 0; k < layers * EACH; k++) b[k] = (rp__plan_buffer){.bytes = 4096, .first = k, .last = k + 2};
        int64_t arena;
        assert_int_equal(rp__plan(b, layers * EACH, spaces, layers, &arena, &steps[i]), RP_OK);
        assert_true(arena <= 3 * 4096);
        assert_true(steps[i] < (size_t)layers * EACH * 300);
    }
    assert_true(steps[1] < 3 * steps[0]);
    free(b);
    free(spaces);
}

static void nothing(void **state) {
    (void)state;
    int64_t arena = 7;
    assert_int_equal(rp__plan(NULL, 0, NULL, 0, &arena, NULL), RP_OK);
    assert_int_equal(arena, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chain_uses_two),   cmocka_unit_test(small_ones_fill_gaps),
                                       cmocka_unit_test(random_lifetimes), cmocka_unit_test(spaces_before_the_arena),
                                       cmocka_unit_test(as_by_trying_all), cmocka_unit_test(many_donors),
                                       cmocka_unit_test(nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
