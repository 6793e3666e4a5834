/* Generators: Philox against published and independent values, seeds, reservations, and what a capture accounts for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/allocator.h"
#include "device/capture.h"
#include "device/generator.h"

/* Salmon et al., written again from the paper: multiply, swap, xor. */
static void reference(uint64_t seed, uint64_t counter, uint32_t x[4]) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    for (int round = 0; round < 10; round++) {
        uint64_t left = UINT64_C(0xD2511F53) * c[0], right = UINT64_C(0xCD9E8D57) * c[2];
        uint32_t next[4] = {(uint32_t)(right >> 32) ^ c[1] ^ key[0], (uint32_t)right,
                            (uint32_t)(left >> 32) ^ c[3] ^ key[1], (uint32_t)left};
        for (int i = 0; i < 4; i++) c[i] = next[i];
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) x[i] = c[i];
}

static void philox_is_philox(void **state) {
    (void)state;
    uint32_t x[4], y[4];
    rp__philox(0, 0, x); /* Random123's kat_vectors: philox4x32 10, all zero */
    assert_true(x[0] == 0x6627e8d5u && x[1] == 0xe169c58du && x[2] == 0xbc57ac4cu && x[3] == 0x9b00dbd8u);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t seed = rp__hash_mix(i, 1), counter = rp__hash_mix(i, 2);
        rp__philox(seed, counter, x);
        reference(seed, counter, y);
        for (int k = 0; k < 4; k++) assert_int_equal(x[k], y[k]);
    }
}

static void generators_hold_seed_and_offset(void **state) {
    (void)state;
    uint64_t seed, offset;
    rp_generator *g = rp_generator_new(rp_cpu(), 7);
    rp__random_draw draw;
    rp_stream *s = rp_current_stream(rp_cpu());
    assert_int_equal(rp__random_reserve(g, s, 5, &draw), RP_OK);
    assert_true(!draw.state && draw.seed == 7 && draw.inner == 0);
    assert_int_equal(rp__random_reserve(g, s, 2, &draw), RP_OK);
    assert_int_equal(draw.inner, 5);
    rp_generator_get(g, &seed, &offset);
    assert_true(seed == 7 && offset == 7);
    rp_generator_set(g, 9, 100);
    rp__random_reserve(g, s, 1, &draw);
    assert_true(draw.seed == 9 && draw.inner == 100);
    rp_generator_seed(g, 3);
    rp_generator_get(g, &seed, &offset);
    assert_true(seed == 3 && offset == 0);
    rp_generator_release(g);

    rp_generator *d = rp_default_generator(rp_cpu());
    assert_ptr_equal(d, rp_default_generator(rp_cpu()));
    assert_int_equal(rp_manual_seed(42), RP_OK);
    rp_generator_get(d, &seed, &offset);
    assert_true(seed == 42 && offset == 0);
    rp_generator_release(d); /* borrowed: ignored */
    assert_int_equal(rp_generator_get(d, &seed, NULL), RP_OK);

    assert_int_equal(rp_generator_seed(NULL, 1), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    rp_generator *none = rp_generator_new((rp_device){RP_DEVICE_CPU, 3}, 1);
    assert_int_equal(rp_error_take(), RP_ERROR_DEVICE);
    assert_int_equal(rp_generator_seed(none, 1), RP_ERROR_INVALID_ARGUMENT);
    rp_generator_release(none);
    rp_error_take();
}

static void captures_account_for_their_draws(void **state) {
    (void)state;
    rp_generator *g = rp_generator_new(rp_cpu(), 11), *h = rp_generator_new(rp_cpu(), 12);
    rp_stream *s = rp_stream_new(rp_cpu());
    rp_pool *pool = rp_pool_new(rp_cpu());
    rp__random_draw draw;
    uint64_t offset;
    assert_int_equal(rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL), RP_OK);
    assert_int_equal(rp__random_reserve(g, s, 4, &draw), RP_OK);
    const uint64_t *state_of_g = draw.state;
    assert_non_null(state_of_g);
    assert_int_equal(draw.inner, 0);
    rp__random_reserve(h, s, 1, &draw);
    assert_ptr_not_equal(draw.state, state_of_g);
    rp__random_reserve(g, s, 6, &draw);
    assert_ptr_equal(draw.state, state_of_g);
    assert_int_equal(draw.inner, 4);
    rp_generator_get(g, NULL, &offset);
    assert_int_equal(offset, 0); /* replays advance it */
    rp__devgraph *graph;
    rp__capture_random *random;
    size_t n;
    assert_int_equal(rp__capture_end(s, &graph, &random, &n), RP_OK);
    assert_int_equal(n, 2);
    assert_true(random[0].generator == g && random[0].used == 10 && random[1].generator == h && random[1].used == 1);
    rp__cpu_device.ops->graph_free(graph);
    rp__capture_random_free(random, n);
    rp_pool_release(pool);
    rp_stream_release(s);
    rp_generator_release(g);
    rp_generator_release(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_is_philox),
        cmocka_unit_test(generators_hold_seed_and_offset),
        cmocka_unit_test(captures_account_for_their_draws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
