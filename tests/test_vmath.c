/* test_vmath.c: the CPU's vector math (src/kernel/cpu/vec.h, vmath.h) against libm in long double, and its bits across
 * instruction sets, vector widths and compilers.
 *
 * Built together with vmath_isa.c, compiled once for each of: baseline with RP_VEC_BYTES=16, "wide" (baseline flags,
 * RP_VEC_BYTES=64), and on x86-64 avx2 and avx512 with their flags (VMATH_X86 defined here then).
 *
 *     test_vmath                      the tests (seconds)
 *     test_vmath --exhaustive [NAME]  every f32 input of the one-operand functions (minutes each), every conversion
 *     test_vmath --hashes             the hashes that vmath_hashes.h holds
 *     test_vmath --times              nanoseconds an element, for docs/developers/vmath.md
 *
 * ctest: labels=numbers timeout=300 cost=45 */
#include "vmath_isa.h"

#include "support/slow.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- samples ------------------------------------------------------------------------------------------------------ */

#define N32 (1u << 20)
#define N64 (1u << 18)
/* Values against libm beside the edges and at them, where sanitizers make everything slow; where they check each access, at edges alone. */
enum { FEWER = SLOW_BUILD ? 16 : 1, FEWER_EDGES = SLOW_BUILD ? 5 : 1 };

static uint64_t state;
static uint64_t random_bits(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static double double_of(uint64_t u) {
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static uint32_t bits_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static uint64_t bits_f64(double f) {
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Values at which some function changes its branch, overflows, underflows or is exact; their neighbours are taken too. */
static const double edges[] = {
    0.0,
    0x1p-1074,
    0x1p-1022,
    0x1p-149,
    0x1p-126,
    0x1p-60,
    0x1p-54,
    0x1p-53,
    0x1p-28,
    0x1p-27,
    0x1p-25,
    0x1p-24,
    0x1p-12,
    0.25,
    0.414213562373095,
    0.468,
    0.5,
    0.70710678118654752,
    0.85,
    1.0,
    1.1875,
    1.41421356237309505,
    1.5,
    2.0,
    2.41421356237309505,
    2.5,
    3.0,
    3.919,
    4.0,
    5.863,
    6.0,
    9.01,
    9.5,
    10.0546,
    16.6,
    17.33,
    18.0,
    19.06,
    22.0,
    26.543,
    27.226,
    27.5,
    37.4,
    38.0,
    65504.0,
    65519.99,
    65520.0,
    65536.0,
    87.3365,
    88.0,
    88.72283,
    88.7228391,
    89.0,
    89.4159,
    103.2789,
    103.972,
    104.0,
    126.0,
    127.0,
    128.0,
    129.0,
    149.0,
    150.0,
    151.0,
    708.396,
    709.782712893384,
    710.0,
    710.47586,
    711.0,
    744.44,
    745.133,
    746.0,
    1022.0,
    1023.0,
    1024.0,
    1074.0,
    1075.0,
    1076.0,
    0x1p20,
    0x1p22,
    0x1p23,
    0x1p24,
    0x1p31,
    0x1p32,
    0x1p51,
    0x1p52,
    0x1p53,
    0x1p62,
    0x1p63,
    0x1p64,
    0x1p100,
    0x1p127,
    FLT_MAX,
    0x1p1000,
    0x1p1023,
    DBL_MAX,
    INFINITY,
    NAN,
    1.5707963267948966,
    0.78539816339744831,
    3.1415926535897931,
    4.7123889803846899,
    6.2831853071795862,
    0x1.6ac5b262ca1ffp+849 /* of doubles the nearest to a multiple of pi/2 */,
    0x1.921fb6p+0,
    0x1.2d97c8p+1,
    0x1.5e2144p+76 /* and of floats */,
    65.5,
    1e5,
    1e10,
    1e22,
    1e300,
};
enum { EDGES = sizeof edges / sizeof edges[0] };
#define COMPARED(n) (ADDRESS_CHECKED ? EDGES * 400 : (n)) /* whole vectors of every table */

/* Edges and their neighbours of both signs; then every exponent; then uniform over ranges where functions do their work. */
static float *sample_f32(size_t n, uint64_t seed) {
    float *x = malloc(n * sizeof *x);
    size_t k = 0;
    assert_non_null(x);
    state = seed;
    for (size_t e = 0; e < EDGES; e++) {
        for (int d = -8; d <= 8; d++) {
            uint32_t u = bits_f32((float)edges[e]) + (uint32_t)(edges[e] == 0 && d < 0 ? -d : d);
            x[k++] = float_of(u);
            x[k++] = float_of(u ^ 0x80000000);
        }
    }
    for (; k < n; k++) {
        static const float range[] = {1, 2, 8, 20, 110, 1000};
        uint64_t r = random_bits();
        if (k & 1)
            x[k] = float_of((uint32_t)(r & 0x807fffff) | (uint32_t)(k >> 1 & 255) << 23);
        else
            x[k] = (float)((double)(int64_t)r * 0x1p-63 * (double)range[(k >> 1) % 6]);
    }
    return x;
}
static double *sample_f64(size_t n, uint64_t seed) {
    double *x = malloc(n * sizeof *x);
    size_t k = 0;
    assert_non_null(x);
    state = seed;
    for (size_t e = 0; e < EDGES; e++) {
        for (int d = -8; d <= 8; d++) {
            uint64_t u = bits_f64(edges[e]) + (uint64_t)(edges[e] == 0 && d < 0 ? -d : d);
            x[k++] = double_of(u);
            x[k++] = double_of(u ^ 0x8000000000000000);
        }
    }
    for (; k < n; k++) {
        static const double range[] = {1, 2, 8, 30, 750, 1e5};
        uint64_t r = random_bits();
        if (k & 1)
            x[k] = double_of((r & 0x800fffffffffffff) | (uint64_t)(k >> 1 & 2047) << 52);
        else
            x[k] = (double)(int64_t)r * 0x1p-63 * range[(k >> 1) % 6];
    }
    return x;
}
/* Second operands for x: half of them so that x^y and x / y fall where there is something to see. */
static float *second_f32(const float *x, size_t n, uint64_t seed) {
    float *y = sample_f32(n, seed);
    for (size_t i = EDGES * 34; i < n; i += 2) {
        double l = log2(fabs((double)x[i]));
        uint64_t r = random_bits();
        if (i & 2)
            y[i] = (float)((double)(int64_t)r * 0x1p-63 * (l != 0 && isfinite(l) ? 152 / l : 3));
        else
            y[i] = x[i] * (float)(int32_t)(r >> 40) * 0x1p-22f;
    }
    for (size_t i = 0; i < EDGES * 34; i++) y[i] = y[(i * 2654435761u) % (EDGES * 34)];
    for (size_t i = EDGES * 34 + 1; i < EDGES * 400; i += 2) { /* special with special, and whole exponents */
        y[i] = (float)edges[i * 7 / 2 % EDGES] * (i & 4 ? 1.0f : -1.0f);
        if (i & 8) y[i] = (float)((int)(i >> 4 & 31) - 16) * 0.5f;
    }
    return y;
}
static double *second_f64(const double *x, size_t n, uint64_t seed) {
    double *y = sample_f64(n, seed);
    for (size_t i = EDGES * 34; i < n; i += 2) {
        double l = log2(fabs(x[i]));
        uint64_t r = random_bits();
        if (i & 2)
            y[i] = (double)(int64_t)r * 0x1p-63 * (l != 0 && isfinite(l) ? 1085 / l : 3);
        else
            y[i] = x[i] * (double)(int64_t)(r >> 20) * 0x1p-42;
    }
    for (size_t i = 0; i < EDGES * 34; i++) y[i] = y[(i * 2654435761u) % (EDGES * 34)];
    for (size_t i = EDGES * 34 + 1; i < EDGES * 400; i += 2) {
        y[i] = edges[i * 7 / 2 % EDGES] * (i & 4 ? 1.0 : -1.0);
        if (i & 8) y[i] = (double)((int)(i >> 4 & 31) - 16) * 0.5;
    }
    return y;
}

/* ---- references ---------------------------------------------------------------------------------------------------- */

static long double ref_sigmoid(long double x) { return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-x)); }
static long double ref_rsqrt(long double x) { return 1 / sqrtl(x); }
static long double ref_remainder(long double x, long double y) {
    long double r = fmodl(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static long double ref_min(long double x, long double y) { return isnan(x) ? x : x < y ? x : y; }
static long double ref_max(long double x, long double y) { return isnan(x) ? x : x > y ? x : y; }

/* Newton's steps on erf, in the tail on the complement, whose value at y is exact. */
static long double ref_erfinv(long double y) {
    const long double a = fabsl(y), half_root_pi = 0.88622692545275801364908374167057259L;
    if (!(a < 1)) return a == 1 ? copysignl(INFINITY, y) : (long double)NAN;
    long double x = a > 0.5L ? sqrtl(-log1pl(-a)) : a * half_root_pi; /* in the tail too large, whence the steps fall */
    for (int k = 0; k < 60; k++) {
        const long double step = (a > 0.5L ? (1 - a) - erfcl(x) : erfl(x) - a) * half_root_pi * expl(x * x);
        x -= step;
        if (fabsl(step) < x * 1e-20L) break;
    }
    return copysignl(x, y);
}
static long double ref_digamma(long double x) {
    if (x == 0) return copysignl(INFINITY, -x);
    if (x < 0) {
        const long double r = M_PIl * (x - rintl(x));
        return x == floorl(x) ? (long double)NAN : ref_digamma(1 - x) - M_PIl / tanl(r);
    }
    long double sum = 0;
    for (; x < 40; x++) sum += 1 / x;
    const long double z = 1 / (x * x);
    return logl(x) - 0.5L / x - z * (1 / 12.0L - z * (1 / 120.0L - z * (1 / 252.0L - z * (1 / 240.0L - z / 132)))) -
           sum;
}
/* Thirty terms, where the library has ten, and the rest by Euler and Maclaurin. */
static long double zeta_above(long double s, long double q) {
    long double sum = 0;
    for (int k = 0; k < 30; k++) sum += powl(q + k, -s);
    const long double w = q + 30, b = powl(w, -s), z = 1 / (w * w);
    const long double factor[] = {1 / 12.0L, -1 / 720.0L, 1 / 30240.0L, -1 / 1209600.0L, 1 / 47900160.0L};
    if (b == 0 && s > 1000) return sum;
    long double term = b * s / w, rest = powl(w, 1 - s) / (s - 1) + b / 2;
    for (int k = 0; k < 5; k++) {
        rest += factor[k] * term;
        term *= (s + 2 * k + 1) * (s + 2 * k + 2) * z;
    }
    return sum + rest;
}
static long double ref_zeta(long double s, long double q) {
    if (isnan(s) || isnan(q)) return NAN;
    if (s <= 1) return s == 1 ? INFINITY : NAN;
    if (q > 0) return isinf(q) ? 0 : zeta_above(s, q);
    const long double f = floorl(q), part = q - f;
    if (q == f) return INFINITY;
    if (s != floorl(s)) return NAN;
    const long double ends = zeta_above(s, 1 - part) - zeta_above(s, 1 - part - f);
    return zeta_above(s, part) + (fmodl(s, 2) != 0 ? -ends : ends);
}
static bool wide_reference; /* what "next" means */
static long double ref_nextafter(long double x, long double y) {
    return wide_reference ? (long double)nextafter((double)x, (double)y) : (long double)nextafterf((float)x, (float)y);
}

/* Distance in units of the last place of the reference's binade; 1e9 where a NaN, an infinity or a zero's sign differs.
 * bits: 24 or 53; emin: exponent (frexp) of the smallest normal; max: largest finite. */
static double ulps(double got, long double ref, int bits, int emin, double max, bool absolute) {
    int e;
    if (isnan(ref)) return isnan(got) ? 0 : 1e9;
    if (isnan(got)) return 1e9;
    if (got == 0 && ref == 0) return !signbit(got) == !signbit(ref) ? 0 : 1e9;
    if ((long double)got == ref) return 0;
    long double half_over = (long double)max + ldexpl(0.25L, ilogb(max) + 2 - bits); /* rounds to infinity from here */
    if (isinf(got)) {
        if (isinf(ref) || fabsl(ref) >= half_over) return !signbit(got) == !signbit(ref) ? 0 : 1e9;
        return (double)(fabsl((long double)max + ldexpl(1, ilogb(max) + 1 - bits) - fabsl(ref)) /
                        ldexpl(1, ilogb(max) + 1 - bits)); /* infinity as the next number */
    }
    if (isinf(ref)) return 1e9;
    frexpl(ref, &e);
    if (e < emin) e = emin;
    if (absolute && e < 1) e = 1;
    return (double)(fabsl((long double)got - ref) / ldexpl(1, e - bits));
}
static double ulps_f32(float got, long double ref, double bound) {
    return ulps((double)got, ref, 24, -125, (double)FLT_MAX, bound < 0);
}
static double ulps_f64(double got, long double ref, double bound) {
    return ulps(got, ref, 53, -1021, DBL_MAX, bound < 0);
}

typedef long double ref1(long double);
typedef long double ref2(long double, long double);
static const struct {
    const char *name;
    ref1 *one;
    ref2 *two;
    double bound32, bound64;
} functions[] = {
#define X(name, ref, b32, b64) {#name, ref, NULL, b32, b64},
    VMATH_UNARY(X)
#undef X
#define X(name, ref, b32, b64) {#name, NULL, ref, b32, b64},
        VMATH_BINARY(X)
#undef X
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };
/* Every primitive that a vector function computes is among them: the rest does not compile. */
enum {
#define RP_MATH1(prim, f, cost) LISTED_##f = VMATH_##f##_f32,
#define RP_MATH2(prim, f, cost) LISTED_##f = VMATH_##f##_f32,
#include "kernel/prims.def"
};

/* ---- tables --------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    vmath_fn *const *table;
} tables[] = {
    {"baseline", vmath_table_baseline},
    {"wide", vmath_table_wide},
#ifdef VMATH_X86
    {"avx2", vmath_table_avx2},
    {"avx512", vmath_table_avx512},
#endif
};
enum { TABLES = sizeof tables / sizeof tables[0] };
static int table_runs(size_t t) {
#ifdef VMATH_X86
    if (t == 2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (t == 3)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
    return t < 2;
}

/* A NaN's sign and payload are not part of the contract: one NaN stands for all. */
static void canon_f32(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = isnan(x[i]) ? float_of(0x7fc00000) : x[i];
}
static void canon_f64(double *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = isnan(x[i]) ? double_of(0x7ff8000000000000) : x[i];
}
static uint64_t hash(const void *p, size_t bytes) { /* FNV-1a over words: bytes is a multiple of 4 */
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t w;
        memcpy(&w, (const char *)p + 4 * i, 4);
        h = (h ^ w) * 0x100000001b3;
    }
    return h;
}

static float *x32, *y32, *out32;
static double *x64, *y64, *out64;

static int set_up(void **arg) {
    (void)arg;
    x32 = sample_f32(N32, 1);
    y32 = second_f32(x32, N32, 2);
    x64 = sample_f64(N64, 3);
    y64 = second_f64(x64, N64, 4);
    out32 = malloc(N32 * sizeof *out32);
    out64 = malloc(N64 * sizeof *out64);
    return out32 && out64 ? 0 : -1;
}
static int tear_down(void **arg) {
    (void)arg;
    free(x32);
    free(y32);
    free(out32);
    free(x64);
    free(y64);
    free(out64);
    return 0;
}

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

/* Every function stays within its stated bound; special values, signs of zeros and overflow as libm has them. */
static void test_bounds_f32(void **arg) {
    int bad = 0;
    (void)arg;
    wide_reference = false;
    for (size_t f = 0; f < FUNCTIONS; f++) {
        double worst = 0;
        size_t at = 0;
        vmath_table_baseline[2 * f](x32, y32, out32, COMPARED(N32));
        /* a long double function takes 100 ns and more: all edges, then every second or fourth value */
        for (size_t i = 0; i < COMPARED(N32); i += i < EDGES * 400 ? FEWER_EDGES : (functions[f].two ? 5 : 3) * FEWER) {
            long double x = (long double)x32[i];
            long double ref = functions[f].one ? functions[f].one(x) : functions[f].two(x, (long double)y32[i]);
            double u = ulps_f32(out32[i], ref, functions[f].bound32);
            if (u > worst) {
                worst = u;
                at = i;
            }
        }
        print_message("%-10s f32 %.3f ulp (bound %g)\n", functions[f].name, worst, functions[f].bound32);
        if (worst > fabs(functions[f].bound32)) {
            print_error("%s f32: %.3f ulp at x=%a y=%a: %a\n", functions[f].name, worst, (double)x32[at],
                        (double)y32[at], (double)out32[at]);
            bad++;
        }
    }
    assert_int_equal(bad, 0);
}
static void test_bounds_f64(void **arg) {
    int bad = 0;
    double slack = LDBL_MANT_DIG >= 64 ? 0.01 : 1; /* of the reference itself */
    (void)arg;
    wide_reference = true;
    for (size_t f = 0; f < FUNCTIONS; f++) {
        double worst = 0;
        size_t at = 0;
        vmath_table_baseline[2 * f + 1](x64, y64, out64, COMPARED(N64));
        for (size_t i = 0; i < COMPARED(N64); i += i < EDGES * 400 ? FEWER_EDGES : FEWER) {
            long double x = (long double)x64[i];
            long double ref = functions[f].one ? functions[f].one(x) : functions[f].two(x, (long double)y64[i]);
            double u = ulps_f64(out64[i], ref, functions[f].bound64);
            if (u > worst) {
                worst = u;
                at = i;
            }
        }
        print_message("%-10s f64 %.3f ulp (bound %g)\n", functions[f].name, worst, functions[f].bound64);
        if (worst > fabs(functions[f].bound64) + (functions[f].bound64 != 0 ? slack : 0)) {
            print_error("%s f64: %.3f ulp at x=%a y=%a: %a\n", functions[f].name, worst, x64[at], y64[at], out64[at]);
            bad++;
        }
    }
    assert_int_equal(bad, 0);
}

/* All tables that this processor runs give the same bits, and those of every compiler and machine: the hashes. Where each access is checked
   only values at the edges are taken, and one table gives what another does. */
static const uint64_t hashes[2 * FUNCTIONS] = {
#include "vmath_hashes.h"
};
static bool as_first(size_t t, size_t f) {
    enum { SOME = EDGES * 400 };
    static double first[SOME], other[SOME];
    const size_t bytes = SOME * (f & 1 ? sizeof(double) : sizeof(float));
    const void *x = f & 1 ? (void *)x64 : (void *)x32, *y = f & 1 ? (void *)y64 : (void *)y32;
    void *both[] = {first, other};
    for (int k = 0; k < 2; k++) {
        tables[k ? t : 0].table[f](x, y, both[k], SOME);
        f & 1 ? canon_f64(both[k], SOME) : canon_f32(both[k], SOME);
    }
    if (!memcmp(first, other, bytes)) return true;
    print_error("%s %s %s: not the bits of %s\n", tables[t].name, functions[f / 2].name, f & 1 ? "f64" : "f32",
                tables[0].name);
    return false;
}
static void test_same_bits(void **arg) {
    int bad = 0, others = 0; /* tables to compare with the first one */
    for (size_t t = 1; t < TABLES; t++) others += table_runs(t);
    (void)arg;
    for (size_t t = 0; t < TABLES; t++) {
        if (!table_runs(t)) {
            print_message("%s: not on this processor\n", tables[t].name);
            continue;
        }
        for (size_t f = 0; f < 2 * FUNCTIONS; f++) {
            uint64_t h;
            if (ADDRESS_CHECKED && others) {
                if (t > 0) bad += !as_first(t, f);
                continue;
            }
            if (f & 1) {
                tables[t].table[f](x64, y64, out64, N64);
                canon_f64(out64, N64);
                h = hash(out64, N64 * sizeof *out64);
            } else {
                tables[t].table[f](x32, y32, out32, N32);
                canon_f32(out32, N32);
                h = hash(out32, N32 * sizeof *out32);
            }
            if (h == hashes[f]) continue;
            print_error("%s %s %s: other bits\n", tables[t].name, functions[f / 2].name, f & 1 ? "f64" : "f32");
            bad++;
        }
    }
    assert_int_equal(bad, 0);
}

/* A float of the given number of significant bits and exponent e (the leading bit's value is 2^e). */
static float float_with(unsigned bits, int e) {
    uint64_t r = random_bits();
    double m = (double)((int64_t)(r >> 8 & (((uint64_t)1 << bits) - 1)) | (int64_t)1 << (bits - 1) | 1);
    return (float)ldexp(r & 1 ? -m : m, e - (int)bits + 1);
}
/* a b + c rounded once, in hardware and where it is put together from f64, as libm's fmaf has it. */
static void test_fma(void **arg) {
    enum { KINDS = 8 };
    float *a = malloc(N32 * sizeof *a), *bc = malloc(2 * N32 * sizeof *bc);
    (void)arg;
    assert_true(a && bc);
    state = 5;
    memcpy(a, x32, N32 * sizeof *a);
    memcpy(bc, y32, N32 * sizeof *bc);
    for (size_t i = 0; i < N32; i++) {
        float *b = bc + i, *c = bc + N32 + i;
        *c = x32[(i * 2654435761u + 1) % N32];
        if (i < EDGES * 400) continue; /* special values with special values */
        int e = (int)(random_bits() % 200) - 100, t = (int)(random_bits() % 60) + 1;
        switch (i % KINDS) {
        case 0: /* any bits */
            a[i] = float_of((uint32_t)random_bits());
            *b = float_of((uint32_t)random_bits());
            *c = float_of((uint32_t)random_bits());
            break;
        case 1: /* a product of 25 bits, halfway or nearly, and an addend that decides; or none */
            a[i] = float_with(13, e);
            *b = float_with(12, 3);
            *c = i & 8 ? float_with(24, e - 24 - t) : i & 16 ? 0.0f : float_with(1, e - 22);
            break;
        case 2: /* a sum that is halfway but for the product's last bits */
            a[i] = float_with(24, e);
            *b = float_with(2, -25 - t % 30);
            *c = float_with(24, e);
            break;
        case 3: /* the product cancels, all or nearly */
            a[i] = float_with(24, e);
            *b = float_with(24, 0);
            *c = -(a[i] * *b);
            if (i & 8) *c = float_of(bits_f32(*c) + (uint32_t)(t % 5));
            break;
        case 4: /* subnormal results, and halfway between two */
            a[i] = float_with(1 + (unsigned)t % 24, -80);
            *b = float_with(1 + (unsigned)(t / 3) % 24, -46 - t % 25);
            *c = i & 8 ? 0.0f : float_with(1 + (unsigned)t % 20, -130 - t % 19);
            break;
        case 5: /* about the smallest normal number */
            a[i] = float_with(24, -64);
            *b = float_with(24, -62);
            *c = float_of((uint32_t)(random_bits() & 0x80ffffff));
            break;
        case 6: /* about the largest */
            a[i] = float_with(24, 63);
            *b = float_with(24, 63);
            *c = i & 8 ? FLT_MAX : float_with(24, 127 - t);
            break;
        default: /* small integers: exact, zeros of both signs */
            a[i] = (float)(t % 7 - 3);
            *b = (float)(t % 5 - 2);
            *c = i & 8 ? -(a[i] * *b) : (i & 16 ? -0.0f : 0.0f);
        }
    }
    for (size_t t = 0; t < TABLES; t++) {
        if (!table_runs(t)) continue;
        tables[t].table[VMATH_fma](a, bc, out32, N32);
        for (size_t i = 0; i < N32; i++) {
            float want = fmaf(a[i], bc[i], bc[N32 + i]);
            if (isnan(want) ? !isnan(out32[i]) : bits_f32(out32[i]) != bits_f32(want))
                fail_msg("%s: %a * %a + %a: %a, not %a", tables[t].name, (double)a[i], (double)bc[i],
                         (double)bc[N32 + i], (double)out32[i], (double)want);
        }
    }
    free(a);
    free(bc);
}

/* Plain forms of the conversions, from the formats' definitions. */
static float plain_f32_f16(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    if (e == 31) return float_of(sign | 0x7f800000 | (uint32_t)m << 13 | (m ? 0x400000 : 0));
    float a = ldexpf((float)(e ? m + 1024 : m), (e ? e : 1) - 25);
    return float_of(bits_f32(a) | sign);
}
static uint16_t plain_f16_f32(float x) {
    uint32_t u = bits_f32(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    double a = fabs((double)x);
    int e;
    if (isnan(x)) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (a >= 65520) return (uint16_t)(sign | 0x7c00);
    frexp(a, &e);
    if (e < -13) e = -13;
    int64_t m = (int64_t)rint(ldexp(a, 11 - e)); /* in units of 2^(e - 11); 1024 is the implicit bit */
    return (uint16_t)(sign | (m < 1024 ? m : ((int64_t)(e + 13) << 10) + m));
}
static uint16_t plain_bf16_f32(float x) {
    uint32_t u = bits_f32(x), low = u & 0xffff, top = u >> 16;
    if (isnan(x)) return (uint16_t)(top | 0x40);
    return (uint16_t)(top + (low > 0x8000 || (low == 0x8000 && (top & 1))));
}

/* One block of f32 bit patterns from first: both narrowings on every table. */
static void check_narrow(uint32_t first, const uint32_t *u, size_t n) {
    static uint16_t got[1 << 16];
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = float_of(u ? u[i] : first + (uint32_t)i);
    for (size_t t = 0; t < TABLES; t++) {
        if (!table_runs(t)) continue;
        tables[t].table[VMATH_f32_to_f16](x, NULL, got, n);
        for (size_t i = 0; i < n; i++) {
            if (got[i] != plain_f16_f32(x[i])) fail_msg("%s: f16 of %a: %04x", tables[t].name, (double)x[i], got[i]);
        }
        tables[t].table[VMATH_f32_to_bf16](x, NULL, got, n);
        for (size_t i = 0; i < n; i++) {
            if (got[i] != plain_bf16_f32(x[i])) fail_msg("%s: bf16 of %a: %04x", tables[t].name, (double)x[i], got[i]);
        }
    }
    free(x);
}
/* All 65536 values widen exactly (and narrow back); narrowing at, and one bit off, every value and every midpoint. */
static void test_halves(void **arg) {
    static uint16_t h[1 << 16], back[1 << 16];
    static float wide[1 << 16];
    static uint32_t u[1 << 16];
    (void)arg;
    for (uint32_t i = 0; i < 1 << 16; i++) h[i] = (uint16_t)i;
    for (size_t t = 0; t < TABLES; t++) {
        if (!table_runs(t)) continue;
        tables[t].table[VMATH_f16_to_f32](h, NULL, wide, 1 << 16);
        tables[t].table[VMATH_f32_to_f16](wide, NULL, back, 1 << 16);
        for (uint32_t i = 0; i < 1 << 16; i++) {
            int nan = (i & 0x7fff) > 0x7c00;
            assert_int_equal(bits_f32(wide[i]), bits_f32(plain_f32_f16(h[i])));
            assert_int_equal(back[i], nan ? i | 0x200 : i);
        }
        tables[t].table[VMATH_bf16_to_f32](h, NULL, wide, 1 << 16);
        tables[t].table[VMATH_f32_to_bf16](wide, NULL, back, 1 << 16);
        for (uint32_t i = 0; i < 1 << 16; i++) {
            int nan = (i & 0x7fff) > 0x7f80;
            assert_int_equal(bits_f32(wide[i]), i << 16);
            assert_int_equal(back[i], nan ? i | 0x40 : i);
        }
    }
    for (int d = -2; d <= 2; d++) {
        for (uint32_t i = 0; i < 1 << 16; i++) u[i] = (i << 16 | 0x8000) + (uint32_t)d;
        check_narrow(0, u, 1 << 16);
        for (uint32_t i = 0; i < 1 << 16; i++) { /* midpoints of f16, subnormal ones too */
            float a = plain_f32_f16((uint16_t)i), b = plain_f32_f16((uint16_t)(i + 1));
            u[i] = bits_f32(isfinite(a) && isfinite(b) ? a / 2 + b / 2 : 65520.0f) + (uint32_t)d;
        }
        check_narrow(0, u, 1 << 16);
    }
}

/* Integers: exact where they fit, the smallest integer elsewhere; f64 <-> f32 as the compiler converts. */
static void test_integers(void **arg) {
    (void)arg;
    int32_t *i32 = malloc(N32 * sizeof *i32);
    int64_t *i64 = malloc(N32 * sizeof *i64);
    double *f64 = malloc(N32 * sizeof *f64);
    assert_true(i32 && i64 && f64);
    for (size_t t = 0; t < TABLES; t++) {
        if (!table_runs(t)) continue;
        vmath_fn *const *run = tables[t].table;
        run[VMATH_f32_to_i32](x32, NULL, i32, N32);
        for (size_t i = 0; i < N32; i++)
            assert_int_equal(i32[i], fabsf(x32[i]) < 0x1p31f ? (int32_t)x32[i] : INT32_MIN);
        run[VMATH_f64_to_i64](x64, NULL, i64, N64);
        for (size_t i = 0; i < N64; i++) assert_true(i64[i] == (fabs(x64[i]) < 0x1p63 ? (int64_t)x64[i] : INT64_MIN));
        memcpy(i32, x32, N32 * sizeof *i32);
        run[VMATH_i32_to_f32](i32, NULL, out32, N32);
        for (size_t i = 0; i < N32; i++) assert_true(out32[i] == (float)i32[i]);
        run[VMATH_i32_to_i64](i32, NULL, i64, N32);
        for (size_t i = 0; i < N32; i++) assert_true(i64[i] == i32[i]);
        memcpy(i64, x64, N64 * sizeof *i64);
        run[VMATH_i64_to_f64](i64, NULL, out64, N64);
        for (size_t i = 0; i < N64; i++) assert_true(out64[i] == (double)i64[i]);
        run[VMATH_i64_to_i32](i64, NULL, i32, N64);
        for (size_t i = 0; i < N64; i++) assert_int_equal((uint32_t)i32[i], (uint32_t)((uint64_t)i64[i] & 0xffffffff));
        run[VMATH_f32_to_f64](x32, NULL, f64, N32);
        for (size_t i = 0; i < N32; i++) assert_true(f64[i] == (double)x32[i] || (isnan(x32[i]) && isnan(f64[i])));
        run[VMATH_f64_to_f32](x64, NULL, out32, N64);
        for (size_t i = 0; i < N64; i++) assert_true(out32[i] == (float)x64[i] || (isnan(x64[i]) && isnan(out32[i])));
    }
    free(i32);
    free(i64);
    free(f64);
}

/* ---- exhaustive mode ------------------------------------------------------------------------------------------------- */

#define D1(name, call)                                                                                                 \
    static double d_##name(double x) { return call; }
D1(sigmoid, x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)))
D1(rsqrt, 1 / sqrt(x))
/* libm in double is 2^29 times finer than f32's ulp and several times faster than long double. */
static double (*const doubles[])(double) = {exp,  exp2, expm1, log,       log2,  log1p, sin,   cos,  tan,
                                            sin,  cos,  tanh,  d_sigmoid, erf,   erfc,  sinh,  cosh, asin,
                                            acos, atan, sqrt,  d_rsqrt,   floor, ceil,  trunc, rint};

static int exhaustive(int argc, char **argv) {
    enum { BLOCK = 1 << 16 };
    static float x[BLOCK], first[BLOCK], other[BLOCK];
    int bad = 0;
    for (size_t f = 0; f < sizeof doubles / sizeof doubles[0]; f++) {
        int wanted = argc == 0;
        for (int i = 0; i < argc; i++) wanted |= !strcmp(argv[i], functions[f].name);
        if (!wanted) continue;
        double worst = 0;
        float at = 0;
        unsigned long differ = 0;
        for (uint64_t base = 0; base < (uint64_t)1 << 32; base += BLOCK) {
            for (uint32_t i = 0; i < BLOCK; i++) x[i] = float_of((uint32_t)base + i);
            vmath_table_baseline[2 * f](x, NULL, first, BLOCK);
            for (size_t i = 0; i < BLOCK; i++) {
                double ref = doubles[f]((double)x[i]);
                if (bits_f32((float)ref) == bits_f32(first[i])) {
                    if (worst >= 0.5 || isnan(ref)) continue; /* correctly rounded */
                }
                double u = ulps_f32(first[i], (long double)ref, functions[f].bound32);
                if (u > worst) {
                    worst = u;
                    at = x[i];
                }
            }
            canon_f32(first, BLOCK);
            for (size_t t = 1; t < TABLES; t++) {
                if (!table_runs(t)) continue;
                tables[t].table[2 * f](x, NULL, other, BLOCK);
                canon_f32(other, BLOCK);
                for (size_t i = 0; i < BLOCK; i++) differ += bits_f32(first[i]) != bits_f32(other[i]);
            }
        }
        printf("%-10s f32 %.4f ulp at %a, bound %g; %lu bits differ\n", functions[f].name, worst, (double)at,
               functions[f].bound32, differ);
        fflush(stdout);
        bad |= worst > fabs(functions[f].bound32) || differ;
    }
    return bad;
}
static void test_exhaustive_narrow(void **arg) {
    (void)arg;
    for (uint64_t base = 0; base < (uint64_t)1 << 32; base += 1 << 16) check_narrow((uint32_t)base, NULL, 1 << 16);
}

/* ---- times ---------------------------------------------------------------------------------------------------------- */

/* Nanoseconds an element of one function on ordinary values in an L1-sized array: the least of many runs, since whatever
 * else the machine does only adds. */
static double time_of(vmath_fn *run, int wide) {
    enum { N = 1024, TIMES = 200, RUNS = 15 };
    static float x[N], y[N], z[N];
    static double dx[N], dy[N], dz[N];
    double best = INFINITY;
    for (int i = 0; i < N; i++) {
        dx[i] = x[i] = 0.05f + 0.9f * (float)i / N; /* inside the domain of every function */
        dy[i] = y[i] = 1.5f - x[i];
    }
    for (int r = 0; r < RUNS; r++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (int i = 0; i < TIMES; i++)
            wide ? run((void *)dx, (void *)dy, (void *)dz, N) : run((void *)x, (void *)y, (void *)z, N);
        clock_gettime(CLOCK_MONOTONIC, &end);
        best = fmin(best, (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec));
    }
    return best / ((double)N * TIMES);
}
static void print_times(void) {
    for (size_t f = 0; f < FUNCTIONS; f++) {
        printf("%-10s", functions[f].name);
        for (int wide = 0; wide < 2; wide++) {
            printf("  %s", wide ? "f64" : "f32");
            for (size_t t = 0; t < TABLES; t++) {
                if (table_runs(t) && t != 1)
                    printf(" %s %.2f", tables[t].name, time_of(tables[t].table[2 * f + wide], wide));
            }
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds_f32), cmocka_unit_test(test_bounds_f64), cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_fma),        cmocka_unit_test(test_halves),     cmocka_unit_test(test_integers),
    };
    const struct CMUnitTest narrow[] = {cmocka_unit_test(test_exhaustive_narrow)};
    if (argc > 1 && !strcmp(argv[1], "--exhaustive")) {
        int bad = exhaustive(argc - 2, argv + 2);
        if (argc == 2 || !strcmp(argv[2], "narrow")) bad |= cmocka_run_group_tests(narrow, NULL, NULL);
        return bad;
    }
    if (argc > 1 && !strcmp(argv[1], "--times")) {
        print_times();
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "--hashes")) {
        if (set_up(NULL)) return 1;
        for (size_t f = 0; f < 2 * FUNCTIONS; f++) {
            vmath_table_baseline[f](f & 1 ? (void *)x64 : (void *)x32, f & 1 ? (void *)y64 : (void *)y32,
                                    f & 1 ? (void *)out64 : (void *)out32, f & 1 ? N64 : N32);
            canon_f32(out32, f & 1 ? 0 : N32);
            canon_f64(out64, f & 1 ? N64 : 0);
            printf("0x%016llx, /* %s %s */\n",
                   (unsigned long long)(f & 1 ? hash(out64, N64 * sizeof *out64) : hash(out32, N32 * sizeof *out32)),
                   functions[f / 2].name, f & 1 ? "f64" : "f32");
        }
        return tear_down(NULL);
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
