/* What the tests of raw graphs and of graphed callables share. */
#ifndef RP_TESTS_GRAPHS_H
#define RP_TESTS_GRAPHS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <reprise.h>

#include "support/each_device.h"

static inline void values(rp_tensor *t, float *to, size_t n) {
    OK(rp_to_host(rp_to_dtype(t, RP_F32), to, n * sizeof *to));
}

static inline void square_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul(in[0], in[0]);
}

static inline uint64_t pool_bytes(void) {
    rp_memory_stats stats = {.struct_size = sizeof stats};
    OK(rp_synchronize(device));
    OK(rp_memory_stats_get(device, &stats));
    return stats.in_private_pools;
}

#endif
