/* The matrix unit (dots.h): whether it is here, and the multiplication of packed operands. Compiled for x86-64 alone. */
#include "kernel/cpu/dots.h"

#include <stdatomic.h>

#include "core/env.h"

static _Atomic int wanted = -1; /* rp__dots_set */
void rp__dots_set(int w) { atomic_store(&wanted, w); }

#if defined(__x86_64__) && defined(__linux__) && !defined(__ILP32__)
#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Registers of the unit are part of a thread's state only for processes that ask (Linux 5.16, arch_prctl(2)). */
static bool permitted(void) {
#ifdef SYS_arch_prctl
    enum { REQUEST_COMPONENT = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_COMPONENT, TILE_DATA) == 0;
#else
    return false;
#endif
}
static bool found(void) {
    enum { BF16 = 1 << 22, TILES = 1 << 24 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d & BF16) && (d & TILES) && permitted();
}
bool rp__dots_here(void) {
    static _Atomic int here = -1, named = -1; /* found() gives the same to all who ask */
    const int w = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (w == 0) return false;
    int n = atomic_load_explicit(&named, memory_order_relaxed), h = atomic_load_explicit(&here, memory_order_relaxed);
    if (n < 0) atomic_store(&named, n = rp__env("REPRISE_CPU") != NULL);
    if (n && w < 0) return false;
    if (h < 0) atomic_store(&here, h = found());
    return h;
}

#define UNIT __attribute__((target("amx-tile,amx-bf16")))

typedef struct shape { /* of all registers: the operand of ldtilecfg */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shape;
UNIT void rp__dots_begin(int64_t rows, bool one) {
    shape s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        s.row_bytes[i] = one && i != 4 && i != 5 ? 4 : 64;
        s.rows[i] = (uint8_t)(i < 6 && rows < RP__DOTS_ROWS ? rows : RP__DOTS_ROWS);
    }
    _tile_loadconfig(&s);
}
UNIT void rp__dots_end(void) { _tile_release(); }

/* The lines of a few steps later: the machine follows fewer streams than a block has rows. */
static inline void fetch(const rp__dots_call *d, const uint16_t *a, int rows) {
    enum { AHEAD = 8 * RP__DOTS_STEP };
    if (!d->far) return;
    for (int i = 0; i < rows; i++) __builtin_prefetch(a + i * d->am + AHEAD, 0, 2);
}

/* Registers: 0 to 3 sums, 4 and 5 rows of a, 6 and 7 columns of b. */
UNIT static void two_by_two(const rp__dots_call *d, const uint16_t *a, float *c) {
    const int64_t am = 2 * d->am, ldc = 4 * d->ldc, below = d->ldc * RP__DOTS_ROWS;
    if (d->first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, ldc);
        _tile_loadd(1, c + 16, ldc);
        _tile_loadd(2, c + below, ldc);
        _tile_loadd(3, c + below + 16, ldc);
    }
    const uint32_t *b = d->pairs;
    for (int64_t k = 0; k < d->steps; k++, a += RP__DOTS_STEP, b += RP__DOTS_STEP / 2 * RP__DOTS_STRIP) {
        _tile_loadd(6, b, 4 * RP__DOTS_STRIP);
        _tile_loadd(7, b + 16, 4 * RP__DOTS_STRIP);
        fetch(d, a, 2 * RP__DOTS_ROWS);
        _tile_loadd(4, a, am);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + RP__DOTS_ROWS * d->am, am);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ldc);
    _tile_stored(1, c + 16, ldc);
    _tile_stored(2, c + below, ldc);
    _tile_stored(3, c + below + 16, ldc);
}
UNIT static void one_by_two(const rp__dots_call *d, const uint16_t *a, float *c) {
    const int64_t am = 2 * d->am, ldc = 4 * d->ldc;
    if (d->first) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, c, ldc);
        _tile_loadd(1, c + 16, ldc);
    }
    const uint32_t *b = d->pairs;
    for (int64_t k = 0; k < d->steps; k++, a += RP__DOTS_STEP, b += RP__DOTS_STEP / 2 * RP__DOTS_STRIP) {
        _tile_loadd(4, a, am);
        _tile_loadd(6, b, 4 * RP__DOTS_STRIP);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 16, 4 * RP__DOTS_STRIP);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c, ldc);
    _tile_stored(1, c + 16, ldc);
}
UNIT static inline void two_by_one(const rp__dots_call *d, const uint16_t *a, float *c, const int strip) {
    const int64_t am = 2 * d->am, ldc = 4 * d->ldc, below = d->ldc * RP__DOTS_ROWS;
    if (d->first) {
        _tile_zero(0);
        _tile_zero(2);
    } else {
        _tile_loadd(0, c, ldc);
        _tile_loadd(2, c + below, ldc);
    }
    const uint32_t *b = d->pairs;
    for (int64_t k = 0; k < d->steps; k++, a += RP__DOTS_STEP, b += RP__DOTS_STEP / 2 * strip) {
        fetch(d, a, 2 * RP__DOTS_ROWS);
        _tile_loadd(6, b, 4 * strip);
        _tile_loadd(4, a, am);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + RP__DOTS_ROWS * d->am, am);
        _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stored(0, c, ldc);
    _tile_stored(2, c + below, ldc);
}
UNIT static inline void one_by_one(const rp__dots_call *d, const uint16_t *a, float *c, const int strip) {
    const int64_t am = 2 * d->am, ldc = 4 * d->ldc;
    if (d->first)
        _tile_zero(0);
    else
        _tile_loadd(0, c, ldc);
    const uint32_t *b = d->pairs;
    for (int64_t k = 0; k < d->steps; k++, a += RP__DOTS_STEP, b += RP__DOTS_STEP / 2 * strip) {
        _tile_loadd(4, a, am);
        _tile_loadd(6, b, 4 * strip);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, c, ldc);
}

void rp__dots_run(const rp__dots_call *d) {
    for (int64_t i = 0; i < d->rows; i += 2) {
        const uint16_t *a = d->a + i * RP__DOTS_ROWS * d->am;
        float *c = d->c + i * RP__DOTS_ROWS * d->ldc;
        const bool two = i + 1 < d->rows;
        if (d->columns == 2)
            (two ? two_by_two : one_by_two)(d, a, c);
        else if (d->one)
            two ? two_by_one(d, a, c, 1) : one_by_one(d, a, c, 1);
        else
            two ? two_by_one(d, a, c, RP__DOTS_STRIP) : one_by_one(d, a, c, RP__DOTS_STRIP);
    }
}
#else
bool rp__dots_here(void) { return false; }
void rp__dots_begin(int64_t rows, bool one) { (void)rows, (void)one; }
void rp__dots_end(void) {}
void rp__dots_run(const rp__dots_call *d) { (void)d; }
#endif
