/* vec.h: vectors of RP_VEC_BYTES bytes (16, 32 or 64; default 16) as GNU vector extensions, for gcc >= 12 and clang.
 *
 * Owns the types rp__vf32 ... rp__vu16h, masks, selection, min/max, loads and stores, conversions. Users: the CPU tile
 * interpreter (one file compiled once an ISA), vmath.h, and emitted C, into which this text is pasted; so it includes
 * nothing but <stdint.h> and <stddef.h>, names no libm function, and needs no immintrin.h.
 * Every function gives the same bits on every ISA, width, compiler and optimisation level (NaN sign and payload aside),
 * given -ffp-contract=off -fno-math-errno -fno-trapping-math; builtins of a target are used only where their result is
 * defined bit for bit and equal to the portable form beside them. Must never depend on -ffast-math. */
#ifndef RP_KERNEL_CPU_VEC_H
#define RP_KERNEL_CPU_VEC_H

#include <stddef.h>
#include <stdint.h>

#ifndef RP_VEC_BYTES
#define RP_VEC_BYTES 16
#endif
#if RP_VEC_BYTES != 16 && RP_VEC_BYTES != 32 && RP_VEC_BYTES != 64
#error "RP_VEC_BYTES must be 16, 32 or 64"
#endif
#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0)
#error "vec.h needs strict IEEE arithmetic: no -ffast-math, no x87"
#endif

/* Vectors wider than the target's registers are legal (tests use them) and need -Wno-psabi with gcc. */

#define RP_VEC_F32 (RP_VEC_BYTES / 4) /* lanes of 32 bits */
#define RP_VEC_F64 (RP_VEC_BYTES / 8) /* lanes of 64 bits */

/* Functions of vec.h are a few instructions: always inline. Those of vmath.h are left to the compiler. */
#define RP__VEC_FN static inline __attribute__((always_inline, unused))
#define RP__VMATH_FN static inline __attribute__((unused))

typedef float rp__vf32 __attribute__((vector_size(RP_VEC_BYTES)));
typedef double rp__vf64 __attribute__((vector_size(RP_VEC_BYTES)));
typedef int32_t rp__vi32 __attribute__((vector_size(RP_VEC_BYTES)));
typedef int64_t rp__vi64 __attribute__((vector_size(RP_VEC_BYTES)));
typedef uint32_t rp__vu32 __attribute__((vector_size(RP_VEC_BYTES)));
typedef uint64_t rp__vu64 __attribute__((vector_size(RP_VEC_BYTES)));
/* Half-width companions: as many lanes as rp__vf64 (f32h, i32h) or rp__vf32 (u16h). */
typedef float rp__vf32h __attribute__((vector_size(RP_VEC_BYTES / 2)));
typedef int32_t rp__vi32h __attribute__((vector_size(RP_VEC_BYTES / 2)));
typedef uint16_t rp__vu16h __attribute__((vector_size(RP_VEC_BYTES / 2)));
typedef uint8_t rp__vu8q __attribute__((vector_size(RP_VEC_BYTES / 4)));

/* The same in memory: any alignment, any declared type. */
typedef rp__vf32 rp__vf32u __attribute__((aligned(1), may_alias));
typedef rp__vf64 rp__vf64u __attribute__((aligned(1), may_alias));
typedef rp__vi32 rp__vi32u __attribute__((aligned(1), may_alias));
typedef rp__vi64 rp__vi64u __attribute__((aligned(1), may_alias));
typedef rp__vu32 rp__vu32u __attribute__((aligned(1), may_alias));
typedef rp__vu64 rp__vu64u __attribute__((aligned(1), may_alias));
typedef rp__vu16h rp__vu16hu __attribute__((aligned(1), may_alias));
typedef rp__vu8q rp__vu8qu __attribute__((aligned(1), may_alias));

/* ---- splat, load, store ---------------------------------------------------------------------------------------- */

/* x - 0 keeps -0, and compilers fold it away. */
RP__VEC_FN rp__vf32 rp__v_splat_f32(float x) { return x - (rp__vf32){0}; }
RP__VEC_FN rp__vf64 rp__v_splat_f64(double x) { return x - (rp__vf64){0}; }
RP__VEC_FN rp__vi32 rp__v_splat_i32(int32_t x) { return x - (rp__vi32){0}; }
RP__VEC_FN rp__vi64 rp__v_splat_i64(int64_t x) { return x - (rp__vi64){0}; }
RP__VEC_FN rp__vu32 rp__v_splat_u32(uint32_t x) { return x - (rp__vu32){0}; }
RP__VEC_FN rp__vu64 rp__v_splat_u64(uint64_t x) { return x - (rp__vu64){0}; }

RP__VEC_FN rp__vf32 rp__v_load_f32(const void *p) { return *(const rp__vf32u *)p; }
RP__VEC_FN rp__vf64 rp__v_load_f64(const void *p) { return *(const rp__vf64u *)p; }
RP__VEC_FN rp__vi32 rp__v_load_i32(const void *p) { return *(const rp__vi32u *)p; }
RP__VEC_FN rp__vi64 rp__v_load_i64(const void *p) { return *(const rp__vi64u *)p; }
RP__VEC_FN rp__vu32 rp__v_load_u32(const void *p) { return *(const rp__vu32u *)p; }
RP__VEC_FN rp__vu64 rp__v_load_u64(const void *p) { return *(const rp__vu64u *)p; }
RP__VEC_FN rp__vu16h rp__v_load_u16h(const void *p) { return *(const rp__vu16hu *)p; }
RP__VEC_FN void rp__v_store_f32(void *p, rp__vf32 x) { *(rp__vf32u *)p = x; }
RP__VEC_FN void rp__v_store_f64(void *p, rp__vf64 x) { *(rp__vf64u *)p = x; }
RP__VEC_FN void rp__v_store_i32(void *p, rp__vi32 x) { *(rp__vi32u *)p = x; }
RP__VEC_FN void rp__v_store_i64(void *p, rp__vi64 x) { *(rp__vi64u *)p = x; }
RP__VEC_FN void rp__v_store_u32(void *p, rp__vu32 x) { *(rp__vu32u *)p = x; }
RP__VEC_FN void rp__v_store_u64(void *p, rp__vu64 x) { *(rp__vu64u *)p = x; }
RP__VEC_FN void rp__v_store_u16h(void *p, rp__vu16h x) { *(rp__vu16hu *)p = x; }

/* ---- select: m is -1 or 0 in each lane, as a comparison gives it ------------------------------------------------ */

RP__VEC_FN rp__vi32 rp__v_sel_i32(rp__vi32 m, rp__vi32 a, rp__vi32 b) { return (m & a) | (~m & b); }
RP__VEC_FN rp__vi64 rp__v_sel_i64(rp__vi64 m, rp__vi64 a, rp__vi64 b) { return (m & a) | (~m & b); }
RP__VEC_FN rp__vu32 rp__v_sel_u32(rp__vi32 m, rp__vu32 a, rp__vu32 b) {
    return (rp__vu32)rp__v_sel_i32(m, (rp__vi32)a, (rp__vi32)b);
}
RP__VEC_FN rp__vu64 rp__v_sel_u64(rp__vi64 m, rp__vu64 a, rp__vu64 b) {
    return (rp__vu64)rp__v_sel_i64(m, (rp__vi64)a, (rp__vi64)b);
}
RP__VEC_FN rp__vf32 rp__v_sel_f32(rp__vi32 m, rp__vf32 a, rp__vf32 b) {
#if RP_VEC_BYTES == 32 && defined(__AVX__) && !defined(__clang__)
    return __builtin_ia32_blendvps256(b, a, (rp__vf32)m);
#else
    return (rp__vf32)rp__v_sel_i32(m, (rp__vi32)a, (rp__vi32)b);
#endif
}
RP__VEC_FN rp__vf64 rp__v_sel_f64(rp__vi64 m, rp__vf64 a, rp__vf64 b) {
#if RP_VEC_BYTES == 32 && defined(__AVX__) && !defined(__clang__)
    return __builtin_ia32_blendvpd256(b, a, (rp__vf64)m);
#else
    return (rp__vf64)rp__v_sel_i64(m, (rp__vi64)a, (rp__vi64)b);
#endif
}

/* Is any lane of the mask set? Is every one? Used to skip rare slow paths. */
RP__VEC_FN int rp__v_any_i64(rp__vi64 m) {
#if defined(__SSE2__) && RP_VEC_BYTES == 16
    return __builtin_ia32_movmskpd((rp__vf64)m) != 0;
#elif defined(__AVX__) && RP_VEC_BYTES == 32
    return __builtin_ia32_movmskpd256((rp__vf64)m) != 0;
#elif defined(__AVX512DQ__) && RP_VEC_BYTES == 64
    typedef long long wide __attribute__((vector_size(64)));
    return __builtin_ia32_cvtq2mask512((wide)m) != 0;
#else
    int64_t any = 0;
    for (size_t i = 0; i < RP_VEC_F64; i++) any |= m[i];
    return any != 0;
#endif
}
RP__VEC_FN int rp__v_all_i64(rp__vi64 m) {
#if defined(__SSE2__) && RP_VEC_BYTES == 16
    return __builtin_ia32_movmskpd((rp__vf64)m) == 3;
#elif defined(__AVX__) && RP_VEC_BYTES == 32
    return __builtin_ia32_movmskpd256((rp__vf64)m) == 0xf;
#elif defined(__AVX512DQ__) && RP_VEC_BYTES == 64
    typedef long long wide __attribute__((vector_size(64)));
    return (unsigned char)__builtin_ia32_cvtq2mask512((wide)m) == 0xff;
#else
    return !rp__v_any_i64(~m);
#endif
}
RP__VEC_FN int rp__v_all_i32(rp__vi32 m) {
#if defined(__SSE2__) && RP_VEC_BYTES == 16
    return __builtin_ia32_movmskps((rp__vf32)m) == 0xf;
#elif defined(__AVX__) && RP_VEC_BYTES == 32
    return __builtin_ia32_movmskps256((rp__vf32)m) == 0xff;
#elif defined(__AVX512DQ__) && RP_VEC_BYTES == 64
    return (unsigned short)__builtin_ia32_cvtd2mask512(m) == 0xffff;
#else
    return !rp__v_any_i64((rp__vi64)~m);
#endif
}

/* ---- sign, min, max --------------------------------------------------------------------------------------------- */

RP__VEC_FN rp__vf32 rp__v_abs_f32(rp__vf32 x) { return (rp__vf32)((rp__vi32)x & 0x7fffffff); }
RP__VEC_FN rp__vf64 rp__v_abs_f64(rp__vf64 x) { return (rp__vf64)((rp__vi64)x & INT64_MAX); }
RP__VEC_FN rp__vf32 rp__v_neg_f32(rp__vf32 x) { return (rp__vf32)((rp__vi32)x ^ INT32_MIN); }
RP__VEC_FN rp__vf64 rp__v_neg_f64(rp__vf64 x) { return (rp__vf64)((rp__vi64)x ^ INT64_MIN); }
/* |x| with the sign bit of s, NaNs included. */
RP__VEC_FN rp__vf32 rp__v_copysign_f32(rp__vf32 x, rp__vf32 s) {
    return (rp__vf32)(((rp__vi32)x & 0x7fffffff) | ((rp__vi32)s & INT32_MIN));
}
RP__VEC_FN rp__vf64 rp__v_copysign_f64(rp__vf64 x, rp__vf64 s) {
    return (rp__vf64)(((rp__vi64)x & INT64_MAX) | ((rp__vi64)s & INT64_MIN));
}

/* a < b ? a : b and a > b ? a : b, so b if either is NaN or both are zeros: exactly what MINPS and MAXPS do. */
#if defined(__SSE2__) && RP_VEC_BYTES == 16
#define RP__VEC_LT(t, a, b) __builtin_ia32_min##t(a, b)
#define RP__VEC_GT(t, a, b) __builtin_ia32_max##t(a, b)
#elif defined(__AVX__) && RP_VEC_BYTES == 32
#define RP__VEC_LT(t, a, b) __builtin_ia32_min##t##256(a, b)
#define RP__VEC_GT(t, a, b) __builtin_ia32_max##t##256(a, b)
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64 && defined(__clang__)
#define RP__VEC_LT(t, a, b) __builtin_ia32_min##t##512(a, b, 4)
#define RP__VEC_GT(t, a, b) __builtin_ia32_max##t##512(a, b, 4)
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
#define RP__VEC_LT(t, a, b) __builtin_ia32_min##t##512_mask(a, b, a, -1, 4)
#define RP__VEC_GT(t, a, b) __builtin_ia32_max##t##512_mask(a, b, a, -1, 4)
#endif
#ifdef RP__VEC_LT
RP__VEC_FN rp__vf32 rp__v_lesser_f32(rp__vf32 a, rp__vf32 b) { return RP__VEC_LT(ps, a, b); }
RP__VEC_FN rp__vf32 rp__v_greater_f32(rp__vf32 a, rp__vf32 b) { return RP__VEC_GT(ps, a, b); }
RP__VEC_FN rp__vf64 rp__v_lesser_f64(rp__vf64 a, rp__vf64 b) { return RP__VEC_LT(pd, a, b); }
RP__VEC_FN rp__vf64 rp__v_greater_f64(rp__vf64 a, rp__vf64 b) { return RP__VEC_GT(pd, a, b); }
#else
RP__VEC_FN rp__vf32 rp__v_lesser_f32(rp__vf32 a, rp__vf32 b) { return rp__v_sel_f32(a < b, a, b); }
RP__VEC_FN rp__vf32 rp__v_greater_f32(rp__vf32 a, rp__vf32 b) { return rp__v_sel_f32(a > b, a, b); }
RP__VEC_FN rp__vf64 rp__v_lesser_f64(rp__vf64 a, rp__vf64 b) { return rp__v_sel_f64(a < b, a, b); }
RP__VEC_FN rp__vf64 rp__v_greater_f64(rp__vf64 a, rp__vf64 b) { return rp__v_sel_f64(a > b, a, b); }
#endif

/* PyTorch's minimum and maximum: NaN if either is NaN; of two zeros the second operand. */
RP__VEC_FN rp__vf32 rp__v_min_f32(rp__vf32 a, rp__vf32 b) { return rp__v_sel_f32(a != a, a, rp__v_lesser_f32(a, b)); }
RP__VEC_FN rp__vf32 rp__v_max_f32(rp__vf32 a, rp__vf32 b) { return rp__v_sel_f32(a != a, a, rp__v_greater_f32(a, b)); }
RP__VEC_FN rp__vf64 rp__v_min_f64(rp__vf64 a, rp__vf64 b) { return rp__v_sel_f64(a != a, a, rp__v_lesser_f64(a, b)); }
RP__VEC_FN rp__vf64 rp__v_max_f64(rp__vf64 a, rp__vf64 b) { return rp__v_sel_f64(a != a, a, rp__v_greater_f64(a, b)); }
RP__VEC_FN rp__vi32 rp__v_min_i32(rp__vi32 a, rp__vi32 b) { return rp__v_sel_i32(a < b, a, b); }
RP__VEC_FN rp__vi32 rp__v_max_i32(rp__vi32 a, rp__vi32 b) {
#if RP_VEC_BYTES == 32 && defined(__AVX2__) && !defined(__clang__)
    return __builtin_ia32_pmaxsd256(a, b); /* clang knows it by the comparison */
#elif RP_VEC_BYTES == 64 && defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_pmaxsd512_mask(a, b, a, -1);
#else
    return rp__v_sel_i32(a > b, a, b);
#endif
}
RP__VEC_FN rp__vi64 rp__v_min_i64(rp__vi64 a, rp__vi64 b) { return rp__v_sel_i64(a < b, a, b); }
RP__VEC_FN rp__vi64 rp__v_max_i64(rp__vi64 a, rp__vi64 b) { return rp__v_sel_i64(a > b, a, b); }

/* ---- square root: correctly rounded by the hardware (by the compiler's sqrt elsewhere) --------------------------- */

RP__VEC_FN rp__vf32 rp__v_sqrt_f32(rp__vf32 x) {
#if defined(__SSE2__) && RP_VEC_BYTES == 16
    return __builtin_ia32_sqrtps(x);
#elif defined(__AVX__) && RP_VEC_BYTES == 32
    return __builtin_ia32_sqrtps256(x);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64 && defined(__clang__)
    return __builtin_ia32_sqrtps512(x, 4);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
    return __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
#else
    for (size_t i = 0; i < RP_VEC_F32; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
#endif
}
RP__VEC_FN rp__vf64 rp__v_sqrt_f64(rp__vf64 x) {
#if defined(__SSE2__) && RP_VEC_BYTES == 16
    return __builtin_ia32_sqrtpd(x);
#elif defined(__AVX__) && RP_VEC_BYTES == 32
    return __builtin_ia32_sqrtpd256(x);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64 && defined(__clang__)
    return __builtin_ia32_sqrtpd512(x, 4);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
    return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4);
#else
    for (size_t i = 0; i < RP_VEC_F64; i++) x[i] = __builtin_sqrt(x[i]);
    return x;
#endif
}

/* ---- halves and conversions -------------------------------------------------------------------------------------- */

#if RP_VEC_BYTES == 16
#define RP__VEC_LO(x) __builtin_shufflevector(x, x, 0, 1)
#define RP__VEC_HI(x) __builtin_shufflevector(x, x, 2, 3)
#define RP__VEC_CAT(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3)
#elif RP_VEC_BYTES == 32
#define RP__VEC_LO(x) __builtin_shufflevector(x, x, 0, 1, 2, 3)
#define RP__VEC_HI(x) __builtin_shufflevector(x, x, 4, 5, 6, 7)
#define RP__VEC_CAT(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7)
#else
#define RP__VEC_LO(x) __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
#define RP__VEC_HI(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)
#define RP__VEC_CAT(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#endif

/* The lower or upper lanes of an f32 vector, exactly; and back, rounded to nearest even. i32 <-> i64: sign extension of halves; truncation
   (wraps). Some compilers convert half a vector in two parts, or lane by lane. */
#if defined(__AVX512F__) && RP_VEC_BYTES == 64 && !defined(__clang__)
#define RP__VEC_WIDEN(h) __builtin_ia32_cvtps2pd512_mask(h, (rp__vf64){0}, -1, 4)
#define RP__VEC_NARROW(x) __builtin_ia32_cvtpd2ps512_mask(x, (rp__vf32h){0}, -1, 4)
#define RP__VEC_EXTEND(h)                                                                                              \
    (rp__vi64) __builtin_ia32_pmovsxdq512_mask(h, (long long __attribute__((vector_size(64)))){0}, -1)
#elif defined(__AVX2__) && RP_VEC_BYTES == 32 && !defined(__clang__)
#define RP__VEC_WIDEN(h) __builtin_ia32_cvtps2pd256(h)
#define RP__VEC_NARROW(x) __builtin_ia32_cvtpd2ps256(x)
#define RP__VEC_EXTEND(h) (rp__vi64) __builtin_ia32_pmovsxdq256(h)
#else
#define RP__VEC_WIDEN(h) __builtin_convertvector(h, rp__vf64)
#define RP__VEC_NARROW(x) __builtin_convertvector(x, rp__vf32h)
#define RP__VEC_EXTEND(h) __builtin_convertvector(h, rp__vi64)
#endif
RP__VEC_FN rp__vf64 rp__v_lo_f64_f32(rp__vf32 x) { return RP__VEC_WIDEN(RP__VEC_LO(x)); }
RP__VEC_FN rp__vf64 rp__v_hi_f64_f32(rp__vf32 x) {
#if defined(__SSE2__) && RP_VEC_BYTES == 16 && !defined(__clang__)
    return __builtin_ia32_cvtps2pd(__builtin_shufflevector(x, x, 2, 3, 2, 3)); /* gcc 12 converts these lanes singly */
#else
    return RP__VEC_WIDEN(RP__VEC_HI(x));
#endif
}
RP__VEC_FN rp__vf32 rp__v_f32_f64(rp__vf64 lo, rp__vf64 hi) {
    rp__vf32h a = RP__VEC_NARROW(lo), b = RP__VEC_NARROW(hi);
    return RP__VEC_CAT(a, b);
}
RP__VEC_FN rp__vi64 rp__v_lo_i64_i32(rp__vi32 x) { return RP__VEC_EXTEND(RP__VEC_LO(x)); }
RP__VEC_FN rp__vi64 rp__v_hi_i64_i32(rp__vi32 x) { return RP__VEC_EXTEND(RP__VEC_HI(x)); }
RP__VEC_FN rp__vi32 rp__v_i32_i64(rp__vi64 lo, rp__vi64 hi) {
#if defined(__AVX512F__) && RP_VEC_BYTES == 64
    return __builtin_shufflevector((rp__vi32)lo, (rp__vi32)hi, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                   30);
#elif defined(__AVX2__) && RP_VEC_BYTES == 32
    return __builtin_shufflevector((rp__vi32)lo, (rp__vi32)hi, 0, 2, 4, 6, 8, 10, 12, 14);
#else
    rp__vi32h a = __builtin_convertvector(lo, rp__vi32h), b = __builtin_convertvector(hi, rp__vi32h);
    return RP__VEC_CAT(a, b);
#endif
}

/* Integer to floating point, rounded to nearest even. */
RP__VEC_FN rp__vf32 rp__v_f32_i32(rp__vi32 x) { return __builtin_convertvector(x, rp__vf32); }
RP__VEC_FN rp__vf64 rp__v_f64_i64(rp__vi64 x) { return __builtin_convertvector(x, rp__vf64); }

/* Floating point to integer, towards zero; NaN and what does not fit give the smallest integer, as x86 does (C leaves it
 * undefined, so those lanes are replaced before the conversion). */
RP__VEC_FN rp__vi32 rp__v_i32_f32(rp__vf32 x) {
    rp__vi32 in = rp__v_abs_f32(x) < 0x1p31f;
    rp__vi32 r = __builtin_convertvector((rp__vf32)((rp__vi32)x & in), rp__vi32);
    return r | (~in & INT32_MIN);
}
RP__VEC_FN rp__vi64 rp__v_i64_f64(rp__vf64 x) {
    rp__vi64 in = rp__v_abs_f64(x) < 0x1p63;
    rp__vi64 r = __builtin_convertvector((rp__vf64)((rp__vi64)x & in), rp__vi64);
    return r | (~in & INT64_MIN);
}

/* Sixteen-bit integers widened to 32-bit lanes, and 32-bit lanes below 65536 narrowed. gcc 12 converts halves of wide vectors
 * singly and masks what cannot be there. */
RP__VEC_FN rp__vu32 rp__v_u32_u16(rp__vu16h x) {
#if defined(__AVX2__) && RP_VEC_BYTES == 32 && !defined(__clang__)
    return (rp__vu32)__builtin_ia32_pmovzxwd256((int16_t __attribute__((vector_size(16))))x);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64 && !defined(__clang__)
    return (rp__vu32)__builtin_ia32_pmovzxwd512_mask((int16_t __attribute__((vector_size(32))))x, (rp__vi32){0}, -1);
#else
    return __builtin_convertvector(x, rp__vu32);
#endif
}
RP__VEC_FN rp__vu16h rp__v_u16_u32(rp__vu32 x) {
#if defined(__AVX2__) && RP_VEC_BYTES == 32 && !defined(__clang__)
    typedef long long wide __attribute__((vector_size(32)));
    typedef int32_t half __attribute__((vector_size(16)));
    return (rp__vu16h)__builtin_ia32_packusdw128((half)__builtin_ia32_extract128i256((wide)x, 0),
                                                 (half)__builtin_ia32_extract128i256((wide)x, 1));
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64 && !defined(__clang__)
    return (rp__vu16h)__builtin_ia32_pmovdw512_mask((rp__vi32)x, (int16_t __attribute__((vector_size(32)))){0}, -1);
#else
    return __builtin_convertvector(x, rp__vu16h);
#endif
}

/* Bytes of memory, one a 32-bit lane: 0 to 255, and back their lowest ones. Some compilers take lanes one by one for a conversion. */
RP__VEC_FN rp__vi32 rp__v_load_i32_u8(const void *p) {
#if defined(__AVX2__) && RP_VEC_BYTES == 32 && !defined(__clang__)
    typedef long long pair __attribute__((vector_size(16)));
    typedef long long word __attribute__((aligned(1), may_alias));
    return __builtin_ia32_pmovzxbd256((char __attribute__((vector_size(16))))(pair){*(const word *)p, 0});
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64 && !defined(__clang__)
    typedef char bytes __attribute__((vector_size(16)));
    return __builtin_ia32_pmovzxbd512_mask((bytes) * (const rp__vu8qu *)p, (rp__vi32){0}, -1);
#else
    return __builtin_convertvector(*(const rp__vu8qu *)p, rp__vi32);
#endif
}
RP__VEC_FN void rp__v_store_u8_i32(void *p, rp__vi32 x) {
#if defined(__AVX2__) && RP_VEC_BYTES == 32 && !defined(__clang__)
    typedef uint8_t bytes __attribute__((vector_size(32)));
    const bytes y = (bytes)x;
    *(rp__vu8qu *)p = __builtin_shufflevector(y, y, 0, 4, 8, 12, 16, 20, 24, 28);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64 && !defined(__clang__)
    typedef char bytes __attribute__((vector_size(16)));
    *(rp__vu8qu *)p = (rp__vu8q)__builtin_ia32_pmovdb512_mask(x, (bytes){0}, -1);
#else
    *(rp__vu8qu *)p = __builtin_convertvector(x, rp__vu8q);
#endif
}

/* bf16 is the upper half of an f32. Widening keeps every bit; narrowing rounds to nearest even, and a NaN keeps its upper
 * payload and becomes quiet. */
RP__VEC_FN rp__vf32 rp__v_f32_bf16(rp__vu16h h) { return (rp__vf32)(rp__v_u32_u16(h) << 16); }
RP__VEC_FN rp__vu32 rp__v_bf16_bits(rp__vf32 x) { /* in the upper halves; what is below is left over */
    rp__vu32 u = (rp__vu32)x;
    rp__vu32 r = u + 0x7fff + (u >> 16 & 1);
    return (rp__vu32)rp__v_sel_f32(x != x, (rp__vf32)(u | 0x400000), (rp__vf32)r);
}
RP__VEC_FN rp__vu16h rp__v_bf16_f32(rp__vf32 x) { return rp__v_u16_u32(rp__v_bf16_bits(x) >> 16); }
RP__VEC_FN rp__vf32 rp__v_round_bf16(rp__vf32 x) { return (rp__vf32)(rp__v_bf16_bits(x) & 0xffff0000); }

/* f16 to f32, exact; a signalling NaN becomes quiet, as F16C does. The exponent is rebased by an integer add; subnormals
 * get the implicit bit of 2^-14 and lose it again in a subtraction that is exact. */
RP__VEC_FN rp__vf32 rp__v_f32_f16(rp__vu16h h) {
#if defined(__F16C__) && RP_VEC_BYTES == 32
    return __builtin_ia32_vcvtph2ps256((int16_t __attribute__((vector_size(16))))h);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
    return __builtin_ia32_vcvtph2ps512_mask((int16_t __attribute__((vector_size(32))))h, (rp__vf32){0}, -1, 4);
#endif
    rp__vu32 u = rp__v_u32_u16(h);
    rp__vi32 a = (rp__vi32)((u & 0x7fff) << 13), e = a & 0x0f800000;
    rp__vi32 r = a + ((127 - 15) << 23);
    rp__vi32 sub = (rp__vi32)((rp__vf32)(r + (1 << 23)) - 0x1p-14f);
    r += (e == 0x0f800000) & ((128 - 16) << 23);
    r |= (a > 0x0f800000) & 0x400000;
    r = rp__v_sel_i32(e == 0, sub, r);
    return (rp__vf32)((rp__vu32)r | (u & 0x8000) << 16);
}
/* f32 to f16, nearest even; overflow to infinity, gradual underflow, NaN quiet with its upper payload. Adding 0.5, whose
 * unit in the last place is f16's smallest subnormal, rounds the subnormal results. */
RP__VEC_FN rp__vu16h rp__v_f16_f32(rp__vf32 x) {
#if defined(__F16C__) && RP_VEC_BYTES == 32
    return (rp__vu16h)__builtin_ia32_vcvtps2ph256(x, 0);
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
    return (rp__vu16h)__builtin_ia32_vcvtps2ph512_mask(x, 0, (int16_t __attribute__((vector_size(32)))){0}, -1);
#endif
    rp__vu32 u = (rp__vu32)x;
    rp__vi32 a = (rp__vi32)u & 0x7fffffff;
    rp__vi32 odd = a >> 13 & 1;
    rp__vi32 r = (rp__vi32)((rp__vu32)a + (uint32_t)(0xfff - (112 << 23)) + (rp__vu32)odd) >> 13;
    rp__vi32 sub = (rp__vi32)((rp__vf32)a + 0.5f) - 0x3f000000;
    r = rp__v_sel_i32(a < 0x38800000, sub, r);
    r = rp__v_sel_i32(a >= 0x477ff000, rp__v_splat_i32(0x7c00), r);
    r = rp__v_sel_i32(a > 0x7f800000, (a >> 13 & 0x3ff) | 0x7e00, r);
    return rp__v_u16_u32((rp__vu32)r | (u >> 16 & 0x8000));
}

/* ---- fused multiply-add: a b + c rounded once ----------------------------------------------------------------------
 * The hardware's where it has one. Elsewhere from f64, where a b is exact: the sum, rounded twice, is wrong only if its
 * first rounding lies halfway between two floats, or the result is subnormal. Vectors with such a lane take a sum
 * rounded to odd, whose second rounding is right everywhere (Boldo and Melquiond). NaN sign and payload aside, the bits
 * are the same. Compilers must not contract: a fused operation stands only where this function is called. */
#if defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_fma)
#define RP__VEC_ELEMENTWISE_FMA
#endif
#endif
#if defined(RP__VEC_ELEMENTWISE_FMA) && (defined(__FMA__) || defined(__AVX512F__) || defined(__FP_FAST_FMAF))
RP__VEC_FN rp__vf32 rp__v_fma_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) { return __builtin_elementwise_fma(a, b, c); }
#elif defined(__FMA__) && RP_VEC_BYTES == 16
RP__VEC_FN rp__vf32 rp__v_fma_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) { return __builtin_ia32_vfmaddps(a, b, c); }
#elif defined(__FMA__) && RP_VEC_BYTES == 32
RP__VEC_FN rp__vf32 rp__v_fma_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) { return __builtin_ia32_vfmaddps256(a, b, c); }
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
RP__VEC_FN rp__vf32 rp__v_fma_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) {
    return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
}
#elif defined(__aarch64__) && RP_VEC_BYTES == 16 && !defined(__clang__)
RP__VEC_FN rp__vf32 rp__v_fma_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) { return __builtin_aarch64_fmav4sf(a, b, c); }
#elif defined(__FMA__) || defined(__AVX512F__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
RP__VEC_FN rp__vf32 rp__v_fma_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) {
    for (size_t i = 0; i < RP_VEC_F32; i++) a[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return a;
}
#else
#define RP__VEC_FMA_OF_PARTS /* dozens of instructions: what is made of many must not be inlined freely */
/* a b + c in f64, rounded to odd: where the two-sum's error e is not zero and the sum even, one step towards e. */
RP__VEC_FN rp__vf64 rp__v_fma_odd_f64(rp__vf64 a, rp__vf64 b, rp__vf64 c) {
    rp__vf64 p = a * b, s = p + c, v = s - p, e = (p - (s - v)) + (c - v);
    rp__vi64 lost = (e < 0.0) | (e > 0.0), step = (((rp__vi64)s ^ (rp__vi64)e) < 0) | 1;
    return (rp__vf64)((rp__vi64)s + (step & lost & (((rp__vi64)s & 1) - 1)));
}
static __attribute__((unused, noinline)) rp__vf32 rp__v_fma_odd_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) {
    return rp__v_f32_f64(rp__v_fma_odd_f64(rp__v_lo_f64_f32(a), rp__v_lo_f64_f32(b), rp__v_lo_f64_f32(c)),
                         rp__v_fma_odd_f64(rp__v_hi_f64_f32(a), rp__v_hi_f64_f32(b), rp__v_hi_f64_f32(c)));
}
RP__VEC_FN rp__vf32 rp__v_fma_f32(rp__vf32 a, rp__vf32 b, rp__vf32 c) {
    rp__vf64 s = rp__v_lo_f64_f32(a) * rp__v_lo_f64_f32(b) + rp__v_lo_f64_f32(c);
    rp__vf64 t = rp__v_hi_f64_f32(a) * rp__v_hi_f64_f32(b) + rp__v_hi_f64_f32(c);
    rp__vi32 low = rp__v_i32_i64((rp__vi64)s, (rp__vi64)t) & 0x1fffffff; /* the bits that f32 lacks */
    rp__vi32 high = rp__v_i32_i64((rp__vi64)((rp__vu64)s >> 32), (rp__vi64)((rp__vu64)t >> 32)) & 0x7fffffff;
    /* sums are 0 or above 2^-300; 0x38100000 begins 2^-126 */
    rp__vi32 easy = (low != 0x10000000) & ((high < 1) | (high > 0x380fffff));
    if (__builtin_expect(!rp__v_all_i32(easy), 0)) return rp__v_fma_odd_f32(a, b, c);
    return rp__v_f32_f64(s, t);
}
#endif

/* f64: the hardware's as well; elsewhere libm's, which is exact, and slow. */
#if defined(RP__VEC_ELEMENTWISE_FMA) && (defined(__FMA__) || defined(__AVX512F__) || defined(__FP_FAST_FMA))
RP__VEC_FN rp__vf64 rp__v_fma_f64(rp__vf64 a, rp__vf64 b, rp__vf64 c) { return __builtin_elementwise_fma(a, b, c); }
#elif defined(__FMA__) && RP_VEC_BYTES == 16
RP__VEC_FN rp__vf64 rp__v_fma_f64(rp__vf64 a, rp__vf64 b, rp__vf64 c) { return __builtin_ia32_vfmaddpd(a, b, c); }
#elif defined(__FMA__) && RP_VEC_BYTES == 32
RP__VEC_FN rp__vf64 rp__v_fma_f64(rp__vf64 a, rp__vf64 b, rp__vf64 c) { return __builtin_ia32_vfmaddpd256(a, b, c); }
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
RP__VEC_FN rp__vf64 rp__v_fma_f64(rp__vf64 a, rp__vf64 b, rp__vf64 c) {
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
}
#elif defined(__aarch64__) && RP_VEC_BYTES == 16 && !defined(__clang__)
RP__VEC_FN rp__vf64 rp__v_fma_f64(rp__vf64 a, rp__vf64 b, rp__vf64 c) { return __builtin_aarch64_fmav2df(a, b, c); }
#else
RP__VEC_FN rp__vf64 rp__v_fma_f64(rp__vf64 a, rp__vf64 b, rp__vf64 c) {
    for (size_t i = 0; i < RP_VEC_F64; i++) a[i] = __builtin_fma(a[i], b[i], c[i]);
    return a;
}
#endif

#endif /* RP_KERNEL_CPU_VEC_H */
