/* The tree of what nodes touch finds what comparing each slot with each finds, also where memory of others is under several storages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compile/touched.h"
#include "tensor/tensor.h"

enum { STORAGES = 6, BYTES = 96, SLOTS = 400 };

static uint32_t state = 1;
static uint32_t any(uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

/* Three of ours, one of them without memory yet, and three of others over the same bytes. */
static rp__storage *storages(void) {
    static char ours[2][BYTES], others[2 * BYTES];
    static rp__storage s[STORAGES];
    memset(s, 0, sizeof s);
    for (unsigned k = 0; k < STORAGES; k++) s[k].bytes = BYTES;
    s[0].data = ours[0];
    s[1].data = ours[1];
    s[3].data = others;
    s[4].data = others + BYTES / 2;
    s[5].data = ours[1] + BYTES / 2;
    for (unsigned k = 3; k < STORAGES; k++) s[k].foreign = true;
    return s;
}

static rp__slot any_slot(rp__storage *s, uint32_t longest) {
    const int64_t begin = any(BYTES), bytes = 1 + any(longest);
    return (rp__slot){.access = any(3) ? RP__READ : RP__WRITE,
                      .storage = &s[any(STORAGES)],
                      .begin = begin,
                      .end = begin + bytes < BYTES ? begin + bytes : BYTES};
}

static bool mark(void *ctx, uint32_t node) {
    ((bool *)ctx)[node] = true;
    return true;
}
static bool stop(void *ctx, uint32_t node) {
    (void)node;
    ++*(int *)ctx;
    return false;
}

static void finds_all(void **unused) {
    (void)unused;
    for (unsigned round = 0; round < 20; round++) {
        rp__storage *s = storages();
        rp__touched t = {0};
        rp__slot slots[SLOTS];
        for (uint32_t k = 0; k < SLOTS; k++) {
            bool found[SLOTS] = {false}, meets = false;
            int stopped = 0;
            slots[k] = any_slot(s, round % 2 ? 4 : BYTES);
            assert_true(rp__touched_each(&t, &slots[k], mark, found));
            for (uint32_t i = 0; i < k; i++) {
                assert_int_equal(found[i], rp__slots_meet(&slots[i], &slots[k]));
                meets = meets || found[i];
            }
            assert_int_equal(rp__touched_each(&t, &slots[k], stop, &stopped), !meets);
            assert_int_equal(stopped, meets);
            assert_int_equal(rp__touched_add(&t, &slots[k], k), RP_OK);
        }
        rp__touched_free(&t);
    }
}

/* As a program uses it: a node waits for what it finds, and a write stands for all that it covers. */
static void keeps_order(void **unused) {
    (void)unused;
    static bool before[SLOTS][SLOTS]; /* [k][i]: k waits for i, perhaps through others */
    for (unsigned round = 0; round < 20; round++) {
        rp__storage *s = storages();
        rp__touched reads = {0}, writes = {0};
        rp__slot slots[SLOTS];
        for (uint32_t k = 0; k < SLOTS; k++) {
            bool found[SLOTS] = {false};
            slots[k] = any_slot(s, round % 2 ? 4 : BYTES);
            const bool write = slots[k].access & RP__WRITE;
            memset(before[k], 0, sizeof before[k]);
            (void)rp__touched_each(&writes, &slots[k], mark, found);
            if (write) (void)rp__touched_each(&reads, &slots[k], mark, found);
            for (uint32_t i = 0; i < k; i++) {
                if (!found[i]) continue;
                assert_true(rp__slots_meet(&slots[i], &slots[k]));
                for (uint32_t j = 0; j < i; j++) before[k][j] = before[k][j] || before[i][j];
                before[k][i] = true;
            }
            for (uint32_t i = 0; i < k; i++)
                if ((write || (slots[i].access & RP__WRITE)) && rp__slots_meet(&slots[i], &slots[k]))
                    assert_true(before[k][i]);
            if (write) {
                rp__touched_drop(&reads, &slots[k]);
                rp__touched_drop(&writes, &slots[k]);
            }
            assert_int_equal(rp__touched_add(write ? &writes : &reads, &slots[k], k), RP_OK);
        }
        rp__touched_free(&reads);
        rp__touched_free(&writes);
    }
}

/* A weight that all read, and a line of buffers: what is found does not grow with what lies elsewhere. */
static void finds_only_those(void **unused) {
    (void)unused;
    enum { N = 200000 };
    rp__storage *s = storages();
    rp__touched reads = {0}, writes = {0};
    for (uint32_t k = 0; k < N; k++) {
        const rp__slot weight = {.access = RP__READ, .storage = &s[0], .begin = 0, .end = 64},
                       in = {.access = RP__READ,
                             .storage = &s[2],
                             .begin = 64 * (int64_t)k,
                             .end = 64 * (int64_t)k + 64},
                       out = {.access = RP__WRITE, .storage = &s[2], .begin = in.end, .end = in.end + 64};
        bool found[1] = {false};
        assert_true(rp__touched_each(&writes, &weight, mark, found));
        int n = 0;
        assert_int_equal(rp__touched_each(&writes, &in, stop, &n), k == 0);
        assert_true(rp__touched_each(&reads, &out, stop, &n) && rp__touched_each(&writes, &out, stop, &n));
        assert_int_equal(rp__touched_add(&reads, &weight, k), RP_OK);
        assert_int_equal(rp__touched_add(&reads, &in, k), RP_OK);
        rp__touched_drop(&reads, &out);
        rp__touched_drop(&writes, &out);
        assert_int_equal(rp__touched_add(&writes, &out, k), RP_OK);
    }
    rp__touched_free(&reads);
    rp__touched_free(&writes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_all), cmocka_unit_test(keeps_order),
                                       cmocka_unit_test(finds_only_those)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
