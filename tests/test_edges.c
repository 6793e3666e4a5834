/* Edges that others imply are dropped, those and no others: random graphs beside the plain definition, and long ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compile/edges.h"
#include "core/alloc.h"

enum { NODES = 1400 }; /* more than two blocks of those that are reduced together */

static uint32_t state = 1;
static uint32_t any(uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

/* Up to `most` different nodes before `node`, at most `far` back. */
static uint32_t any_edges(uint32_t node, uint32_t most, uint32_t far, uint32_t *out) {
    const uint32_t room = node < far ? node : far, tries = any(most + 1);
    uint32_t n = 0;
    for (uint32_t k = 0; k < tries && room > 0; k++) {
        const uint32_t from = node - 1 - any(room);
        bool known = false;
        for (uint32_t i = 0; i < n; i++) known = known || out[i] == from;
        if (!known) out[n++] = from;
    }
    return n;
}

static void drops_what_is_implied(void **unused) {
    (void)unused;
    static const struct {
        uint32_t most, far;
    } kinds[] = {{1, NODES}, {2, 3}, {3, 20}, {4, 600}, {3, NODES}, {12, NODES}, {40, 100}};
    enum { KINDS = sizeof kinds / sizeof *kinds, EDGES = 40 };
    static bool behind[NODES][NODES]; /* [k][i]: k is behind i */
    static uint32_t from[NODES][EDGES], n_from[NODES];
    for (unsigned round = 0; round < 2 * KINDS; round++) {
        const uint32_t n = round < KINDS ? NODES : any(NODES);
        rp__edges e = {0};
        memset(behind, 0, sizeof behind);
        for (uint32_t k = 0; k < n; k++) {
            n_from[k] = any_edges(k, kinds[round % KINDS].most, kinds[round % KINDS].far, from[k]);
            assert_int_equal(rp__edges_add(&e, from[k], n_from[k]), RP_OK);
            for (uint32_t i = 0; i < n_from[k]; i++) {
                for (uint32_t j = 0; j < from[k][i]; j++) behind[k][j] = behind[k][j] || behind[from[k][i]][j];
                behind[k][from[k][i]] = true;
            }
        }
        assert_int_equal(e.n_nodes, n);
        assert_int_equal(rp__edges_reduce(&e), RP_OK);
        for (uint32_t k = 0; k < n; k++) {
            uint32_t kept = 0;
            for (uint32_t i = 0; i < n_from[k]; i++) {
                bool implied = false;
                for (uint32_t j = 0; j < n_from[k]; j++) implied = implied || behind[from[k][j]][from[k][i]];
                if (implied) continue;
                assert_true(kept < e.of[k].n);
                assert_int_equal(e.from[e.of[k].first + kept++], from[k][i]);
            }
            assert_int_equal(e.of[k].n, kept);
        }
        rp__edges_free(&e);
    }
}

/* A line whose nodes all read what the first one made, and, on the way back, what those on the way there did: looking at the ways from each
   node anew would take hours. */
static void long_graphs(void **unused) {
    (void)unused;
    enum { N = 200000 };
    rp__edges e = {0};
    for (uint32_t k = 0; k < N; k++) {
        const uint32_t from[3] = {k - 1, N - 1 - k, 0};
        const uint32_t back = k > N / 2 && N - 1 - k > 0, first = k > 1;
        assert_int_equal(rp__edges_add(&e, back || k < 2 ? from : (uint32_t[]){k - 1, 0}, (k > 0) + back + first),
                         RP_OK);
    }
    assert_int_equal(rp__edges_reduce(&e), RP_OK);
    assert_int_equal(e.of[0].n, 0);
    for (uint32_t k = 1; k < N; k++) {
        assert_int_equal(e.of[k].n, 1);
        assert_int_equal(e.from[e.of[k].first], k - 1);
    }
    rp__edges_free(&e);
}

static void without_memory(void **unused) {
    (void)unused;
    const uint32_t from[2] = {0, 1};
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        rp__edges e = {0};
        const uint64_t live = rp__alloc_live(), before = rp__alloc_fail_at(n);
        rp_status status = rp__edges_add(&e, NULL, 0);
        if (status == RP_OK) status = rp__edges_add(&e, from, 1);
        if (status == RP_OK) status = rp__edges_add(&e, from, 2);
        if (status == RP_OK) status = rp__edges_reduce(&e);
        done = rp__alloc_fail_at(0) - before < n;
        assert_int_equal(status, done ? RP_OK : RP_ERROR_OUT_OF_MEMORY);
        if (!done) assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
        if (done) assert_int_equal(e.of[2].n, 1);
        rp__edges_free(&e);
        assert_int_equal(rp__alloc_live(), live);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drops_what_is_implied), cmocka_unit_test(long_graphs),
                                       cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
