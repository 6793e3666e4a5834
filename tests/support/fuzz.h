/* Which seeds a fuzzer runs. A seed is one case, and gives the same one on every machine.
     REPRISE_FUZZ_SEED=s      only that one
     REPRISE_FUZZ_SEEDS=n     so many, instead of the test's own number
     REPRISE_FUZZ_FIRST=s     from that one on instead of from 1 (`make fuzz`: another place each time)
     REPRISE_FUZZ_SECONDS=t   and then on until t seconds have passed
   The number does not depend on time unless REPRISE_FUZZ_SECONDS says so: a test runs the same cases everywhere. */
#ifndef RP_TESTS_FUZZ_H
#define RP_TESTS_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <reprise.h>

typedef struct fuzz_seeds {
    uint64_t next, end; /* [next, end) */
    bool single;
    struct timespec until;
    uint64_t ran;
} fuzz_seeds;

static inline uint64_t fuzz_number(const char *variable, uint64_t absent) {
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : absent;
}

static inline fuzz_seeds fuzz_begin(uint64_t n) {
    fuzz_seeds f = {.next = fuzz_number("REPRISE_FUZZ_FIRST", 1)};
    f.end = f.next + fuzz_number("REPRISE_FUZZ_SEEDS", n);
    const char *one = getenv("REPRISE_FUZZ_SEED");
    if (one && *one) {
        f.next = strtoull(one, NULL, 10), f.end = f.next + 1;
        f.single = true;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &f.until);
    f.until.tv_sec += (time_t)fuzz_number("REPRISE_FUZZ_SECONDS", 0);
    return f;
}

static inline bool fuzz_next(fuzz_seeds *f, uint64_t *seed) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    bool time_left = now.tv_sec < f->until.tv_sec || (now.tv_sec == f->until.tv_sec && now.tv_nsec < f->until.tv_nsec);
    if (f->next >= f->end && (f->single || !time_left)) return false;
    *seed = f->next++;
    f->ran++;
    return true;
}

/* The same bits; a NaN's sign and payload are not part of the contract (docs/developers/vmath.md). */
static inline bool fuzz_same(rp_dtype d, const void *x, const void *y, size_t bytes) {
    if (memcmp(x, y, bytes) == 0) return true;
    const size_t size = rp_dtype_size(d);
    for (size_t i = 0; i < bytes; i += size) {
        uint64_t a = 0, b = 0, infinity;
        memcpy(&a, (const char *)x + i, size);
        memcpy(&b, (const char *)y + i, size);
        if (a == b) continue;
        if (d == RP_F32)
            infinity = UINT64_C(0x7f800000);
        else if (d == RP_F64)
            infinity = UINT64_C(0x7ff0000000000000);
        else if (d == RP_F16 || d == RP_BF16)
            infinity = d == RP_F16 ? 0x7c00 : 0x7f80;
        else
            return false;
        const uint64_t magnitude = (UINT64_C(1) << (8 * size - 1)) - 1;
        if ((a & magnitude) <= infinity || (b & magnitude) <= infinity) return false;
    }
    return true;
}

#endif
