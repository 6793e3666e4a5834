/* vmath_isa.h: the list of vector math functions under test, and the table that each build of vmath_isa.c exports.
 * Used by test_vmath.c and vmath_isa.c alone. A row: name, reference (long double), bound in ulp for f32 and f64; a negative
 * bound is one in units of the last place of max(1, |result|), for functions with zeros where no formula is exact. */
#ifndef TESTS_VMATH_ISA_H
#define TESTS_VMATH_ISA_H

#include <stddef.h>

#define VMATH_UNARY(X)                                                                                                 \
    X(exp, expl, 1.0, 1.0)                                                                                             \
    X(exp2, exp2l, 1.0, 1.1)                                                                                           \
    X(expm1, expm1l, 1.5, 1.2)                                                                                         \
    X(log, logl, 0.9, 0.9)                                                                                             \
    X(log2, log2l, 0.501, 0.8)                                                                                         \
    X(log1p, log1pl, 1.0, 0.9)                                                                                         \
    X(sin, sinl, 1.0, 0.8)                                                                                             \
    X(cos, cosl, 1.0, 0.8)                                                                                             \
    X(tan, tanl, 0.7, 1.4)                                                                                             \
    X(sincos_s, sinl, 1.0, 0.8)                                                                                        \
    X(sincos_c, cosl, 1.0, 0.8)                                                                                        \
    X(tanh, tanhl, 1.0, 1.5)                                                                                           \
    X(sigmoid, ref_sigmoid, 2.0, 2.0)                                                                                  \
    X(erf, erfl, 1.0, 1.0)                                                                                             \
    X(erfc, erfcl, 0.501, 2.0)                                                                                         \
    X(sinh, sinhl, 0.501, 1.8)                                                                                         \
    X(cosh, coshl, 0.501, 1.5)                                                                                         \
    X(asin, asinl, 2.1, 0.8)                                                                                           \
    X(acos, acosl, 1.5, 0.9)                                                                                           \
    X(atan, atanl, 1.5, 1.2)                                                                                           \
    X(sqrt, sqrtl, 0.501, 0.501)                                                                                       \
    X(rsqrt, ref_rsqrt, 1.5, 1.5)                                                                                      \
    X(floor, floorl, 0, 0)                                                                                             \
    X(ceil, ceill, 0, 0)                                                                                               \
    X(trunc, truncl, 0, 0)                                                                                             \
    X(rint, rintl, 0, 0)                                                                                               \
    X(log10, log10l, 0.501, 1.5)                                                                                       \
    X(asinh, asinhl, 2.0, 2)                                                                                           \
    X(acosh, acoshl, 2.0, 2)                                                                                           \
    X(atanh, atanhl, 2.0, 2)                                                                                           \
    X(erfinv, ref_erfinv, 3.0, 3)                                                                                      \
    X(lgamma, lgammal, -0.6, -20)                                                                                      \
    X(digamma, ref_digamma, -0.6, -40)

#define VMATH_BINARY(X)                                                                                                \
    X(pow, powl, 0.501, 1.5)                                                                                           \
    X(atan2, atan2l, 2.0, 1.5)                                                                                         \
    X(fmod, fmodl, 0, 0)                                                                                               \
    X(remainder, ref_remainder, 0.501, 0.501)                                                                          \
    X(hypot, hypotl, 0.501, 2)                                                                                         \
    X(zeta, ref_zeta, 0.501, 50)                                                                                       \
    X(nextafter, ref_nextafter, 0, 0)                                                                                  \
    X(copysign, copysignl, 0, 0)                                                                                       \
    X(min, ref_min, 0, 0)                                                                                              \
    X(max, ref_max, 0, 0)

/* Conversions, in and out by name: i32 and f32 have 4 bytes an element, i64 and f64 8, f16 and bf16 2. */
#define VMATH_CONVERT(X)                                                                                               \
    X(f32, f16)                                                                                                        \
    X(f16, f32)                                                                                                        \
    X(f32, bf16)                                                                                                       \
    X(bf16, f32)                                                                                                       \
    X(f32, i32)                                                                                                        \
    X(i32, f32)                                                                                                        \
    X(f64, i64)                                                                                                        \
    X(i64, f64)                                                                                                        \
    X(f64, f32)                                                                                                        \
    X(f32, f64)                                                                                                        \
    X(i64, i32)                                                                                                        \
    X(i32, i64)

/* n is a multiple of 16; y is NULL but for two-operand functions; fma's factors are x and y, its addends y + n. */
typedef void vmath_fn(const void *x, const void *y, void *out, size_t n);

enum vmath_id {
#define X(name, ref, b32, b64) VMATH_##name##_f32, VMATH_##name##_f64,
    VMATH_UNARY(X) VMATH_BINARY(X)
#undef X
#define X(from, to) VMATH_##from##_to_##to,
        VMATH_CONVERT(X)
#undef X
            VMATH_fma,
    VMATH_COUNT
};

extern vmath_fn *const vmath_table_baseline[VMATH_COUNT]; /* 16-byte vectors */
extern vmath_fn *const vmath_table_wide[VMATH_COUNT];     /* 64-byte vectors without the registers: portable paths */
#ifdef VMATH_X86
extern vmath_fn *const vmath_table_avx2[VMATH_COUNT];
extern vmath_fn *const vmath_table_avx512[VMATH_COUNT];
#endif

#endif /* TESTS_VMATH_ISA_H */
