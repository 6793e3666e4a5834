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
#include <time.h>

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

#endif
