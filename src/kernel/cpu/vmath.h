/* vmath.h: Reprise's one table of vector math functions, f32 and f64, with the bits of the numbers contract.
 *
 * Called by the CPU tile interpreter (compiled once an ISA) and by emitted C, into which this text is pasted after vec.h.
 * Each rp__v_NAME_f32/f64 maps full vectors; its error bound in ulp stands in docs/developers/vmath.md and is asserted by
 * tests/test_vmath.c. Only IEEE add, subtract, multiply, divide, square root, comparisons, integer operations and, where
 * written, fma occur, in one fixed order: so every ISA, width, compiler and optimisation level gives the same bits.
 * A branch is taken by whole vectors, so each side gives a lane that both can see the same bits. NaN results are quiet;
 * their sign and payload are not part of the contract.
 * Must not include anything besides vec.h (nor call libm), nor be compiled with contraction or -ffast-math.
 *
 * Coefficients: scripts/vmath_coeffs.py (Remez). Methods are named at each function. */
#ifndef RP_KERNEL_CPU_VMATH_H
#define RP_KERNEL_CPU_VMATH_H

#ifndef RP_KERNEL_CPU_VEC_H
#include "vec.h"
#endif

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* Adding these to |x| < 2^22 (2^51) leaves rint(x) in the low bits: 1.5 * 2^23 and 1.5 * 2^52. */
#define RP__MAGIC_F32 0x1.8p23f
#define RP__MAGIC_F64 0x1.8p52

/* Second forms for vectors that have a rare lane: kept out of line, so that the first stays short. */
#define RP__VMATH_RARE static __attribute__((unused, noinline, cold))

/* Applies an f64 function to the halves of an f32 vector: the result is correct but for one rounding. */
#define RP__VMATH_HALVES(name)                                                                                         \
    RP__VMATH_FN rp__vf32 rp__v_##name##_f32(rp__vf32 x) {                                                             \
        return rp__v_f32_f64(rp__v_##name##_f64(rp__v_lo_f64_f32(x)), rp__v_##name##_f64(rp__v_hi_f64_f32(x)));        \
    }
#define RP__VMATH_HALVES2(name)                                                                                        \
    RP__VMATH_FN rp__vf32 rp__v_##name##_f32(rp__vf32 x, rp__vf32 y) {                                                 \
        return rp__v_f32_f64(rp__v_##name##_f64(rp__v_lo_f64_f32(x), rp__v_lo_f64_f32(y)),                             \
                             rp__v_##name##_f64(rp__v_hi_f64_f32(x), rp__v_hi_f64_f32(y)));                            \
    }

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

/* To whole numbers: -0.3 gives -0, larger values and infinities pass. The machine's where it has one instruction for it. */
#if defined(__AVX__) && RP_VEC_BYTES == 32
#define RP__VMATH_ROUND(name, mode)                                                                                    \
    RP__VMATH_FN rp__vf32 rp__v_##name##_f32(rp__vf32 x) { return __builtin_ia32_roundps256(x, 8 | (mode)); }          \
    RP__VMATH_FN rp__vf64 rp__v_##name##_f64(rp__vf64 x) { return __builtin_ia32_roundpd256(x, 8 | (mode)); }
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
#define RP__VMATH_ROUND(name, mode)                                                                                    \
    RP__VMATH_FN rp__vf32 rp__v_##name##_f32(rp__vf32 x) {                                                             \
        return __builtin_ia32_rndscaleps_mask(x, 8 | (mode), x, -1, 4);                                                \
    }                                                                                                                  \
    RP__VMATH_FN rp__vf64 rp__v_##name##_f64(rp__vf64 x) {                                                             \
        return __builtin_ia32_rndscalepd_mask(x, 8 | (mode), x, -1, 4);                                                \
    }
#endif
#ifdef RP__VMATH_ROUND
RP__VMATH_ROUND(rint, 0)
RP__VMATH_ROUND(floor, 1)
RP__VMATH_ROUND(ceil, 2)
RP__VMATH_ROUND(trunc, 3)
#else
/* Ties to even: 2^23 (2^52) pushes the fraction out. NaN passes too. */
RP__VMATH_FN rp__vf32 rp__v_rint_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_abs_f32(x);
    return rp__v_sel_f32(a < 0x1p23f, rp__v_copysign_f32((a + 0x1p23f) - 0x1p23f, x), x);
}
RP__VMATH_FN rp__vf64 rp__v_rint_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_abs_f64(x);
    return rp__v_sel_f64(a < 0x1p52, rp__v_copysign_f64((a + 0x1p52) - 0x1p52, x), x);
}
/* The rounded value corrected by one where it went the wrong way; the sign of x restores zeros. */
RP__VMATH_FN rp__vf32 rp__v_floor_f32(rp__vf32 x) {
    rp__vf32 r = rp__v_rint_f32(x);
    return rp__v_copysign_f32(r - (rp__vf32)((r > x) & (rp__vi32)rp__v_splat_f32(1.0f)), x);
}
RP__VMATH_FN rp__vf64 rp__v_floor_f64(rp__vf64 x) {
    rp__vf64 r = rp__v_rint_f64(x);
    return rp__v_copysign_f64(r - (rp__vf64)((r > x) & (rp__vi64)rp__v_splat_f64(1.0)), x);
}
RP__VMATH_FN rp__vf32 rp__v_ceil_f32(rp__vf32 x) {
    rp__vf32 r = rp__v_rint_f32(x);
    return rp__v_copysign_f32(r + (rp__vf32)((r < x) & (rp__vi32)rp__v_splat_f32(1.0f)), x);
}
RP__VMATH_FN rp__vf64 rp__v_ceil_f64(rp__vf64 x) {
    rp__vf64 r = rp__v_rint_f64(x);
    return rp__v_copysign_f64(r + (rp__vf64)((r < x) & (rp__vi64)rp__v_splat_f64(1.0)), x);
}
RP__VMATH_FN rp__vf32 rp__v_trunc_f32(rp__vf32 x) { return rp__v_copysign_f32(rp__v_floor_f32(rp__v_abs_f32(x)), x); }
RP__VMATH_FN rp__vf64 rp__v_trunc_f64(rp__vf64 x) { return rp__v_copysign_f64(rp__v_floor_f64(rp__v_abs_f64(x)), x); }
#endif

/* 1 / sqrt(x): both steps correctly rounded. */
RP__VMATH_FN rp__vf32 rp__v_rsqrt_f32(rp__vf32 x) { return 1.0f / rp__v_sqrt_f32(x); }
RP__VMATH_FN rp__vf64 rp__v_rsqrt_f64(rp__vf64 x) { return 1.0 / rp__v_sqrt_f64(x); }

/* ---- exponentials ------------------------------------------------------------------------------------------------
 * Cody-Waite: x = n ln2 + r, |r| <= ln2 / 2, with ln2 = hi + lo and x - n hi exact; e^r = 1 + r + r^2 Q(r).
 * f32 adds n to the exponent of e^r; vectors with a lane near overflow or underflow or a NaN take a second form, which
 * gives the other lanes the same bits. That form and f64 apply the factor 2^n as 2^a 2^b, a + b = n, so that results
 * underflow gradually and overflow late. Both biased exponents come from the low bits of t, whose magic number contains
 * twice the bias. */

#define RP__LN2_HI_F32 0x1.62e43p-1f
#define RP__LN2_LO_F32 -0x1.05c61p-29f
#define RP__LN2_HI_F64 0x1.62e42fefa38p-1
#define RP__LN2_LO_F64 0x1.ef35793c7673p-45

/* p 2^n, where t = n + RP__MAGIC + 2 bias. */
RP__VEC_FN rp__vf32 rp__v_scale_f32(rp__vf32 p, rp__vf32 t) {
    rp__vu32 i = (rp__vu32)t, a = i >> 1;
    return p * (rp__vf32)(a << 23) * (rp__vf32)((i - a) << 23);
}
RP__VEC_FN rp__vf64 rp__v_scale_f64(rp__vf64 p, rp__vf64 t) {
    rp__vu64 i = (rp__vu64)t, a = i >> 1;
    return p * (rp__vf64)(a << 52) * (rp__vf64)((i - a) << 52);
}
/* p 2^n for a normal result: t = n + RP__MAGIC. */
RP__VEC_FN rp__vf32 rp__v_shift_f32(rp__vf32 p, rp__vf32 t) { return (rp__vf32)((rp__vu32)p + ((rp__vu32)t << 23)); }
/* p 2^n for a normal result: t = n + RP__MAGIC. */
RP__VEC_FN rp__vf64 rp__v_shift_f64(rp__vf64 p, rp__vf64 t) { return (rp__vf64)((rp__vu64)p + ((rp__vu64)t << 52)); }
/* Horner's step p x + c; two and three of them. */
RP__VEC_FN rp__vf32 rp__v_step_f32(rp__vf32 p, rp__vf32 x, float c) { return rp__v_fma_f32(p, x, rp__v_splat_f32(c)); }
RP__VEC_FN rp__vf64 rp__v_step_f64(rp__vf64 p, rp__vf64 x, double c) { return rp__v_fma_f64(p, x, rp__v_splat_f64(c)); }
RP__VEC_FN rp__vf64 rp__v_step2_f64(rp__vf64 p, rp__vf64 x, double c, double d) {
    return rp__v_step_f64(rp__v_step_f64(p, x, c), x, d);
}
RP__VEC_FN rp__vf64 rp__v_step3_f64(rp__vf64 p, rp__vf64 x, double c, double d, double e) {
    return rp__v_step_f64(rp__v_step2_f64(p, x, c, d), x, e);
}

/* x - n ln2 for n = rint(x / ln2), |n| < 2^21; *t = n + magic. */
RP__VEC_FN rp__vf32 rp__v_ln2_f32(rp__vf32 x, float magic, rp__vf32 *t) {
    *t = rp__v_step_f32(x, rp__v_splat_f32(0x1.715476p+0f), magic);
    rp__vf32 n = *t - magic, r = rp__v_fma_f32(n, rp__v_splat_f32(-RP__LN2_HI_F32), x);
    return rp__v_fma_f32(n, rp__v_splat_f32(-RP__LN2_LO_F32), r);
}
/* Q(c r) of e^r = 1 + r + r^2 Q(r), z = r^2; c is 1, -1 or 2. In pairs, which shortens the longest chain. */
RP__VEC_FN rp__vf32 rp__v_expq_f32(rp__vf32 r, rp__vf32 z, float c) {
    rp__vf32 p = rp__v_step_f32(r, rp__v_splat_f32(c * c * c * 0x1.123d5cp-7f), c * c * 0x1.55585ap-5f);
    p = rp__v_fma_f32(z, rp__v_splat_f32(c * c * c * c * 0x1.6ab6ccp-10f), p);
    return rp__v_fma_f32(p, z, rp__v_step_f32(r, rp__v_splat_f32(c * 0x1.55548cp-3f), 0x1.fffffcp-2f));
}
RP__VMATH_FN rp__vf64 rp__v_expq_f64(rp__vf64 r) {
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.add018bfcd6e8p-26), r, 0x1.28af1781d23d1p-22, 0x1.71defd6bb4821p-19);
    p = rp__v_step3_f64(p, r, 0x1.a0199868292f3p-16, 0x1.a01a013849c06p-13, 0x1.6c16c184bc227p-10);
    p = rp__v_step3_f64(p, r, 0x1.1111111125a84p-7, 0x1.55555555505f3p-5, 0x1.55555555555p-3);
    return rp__v_step_f64(p, r, 0x1.000000000000ap-1);
}

/* The same to 2^-39, for what f32 is made of. */
RP__VEC_FN rp__vf64 rp__v_expq_short_f64(rp__vf64 r) {
    rp__vf64 p = rp__v_step3_f64(rp__v_splat_f64(0x1.9e883aa16916dp-16), r, 0x1.a186049d215b3p-13,
                                 0x1.6c18d5587ed28p-10, 0x1.1110a1fb2a74ep-7);
    return rp__v_step3_f64(p, r, 0x1.5555541c7cb68p-5, 0x1.5555557e0a1abp-3, 0x1.000000005ea95p-1);
}

/* e^x before scaling. */
RP__VEC_FN rp__vf32 rp__v_expr_f32(rp__vf32 x, float magic, rp__vf32 *t) {
    rp__vf32 r = rp__v_ln2_f32(x, magic, t);
    return rp__v_step_f32(rp__v_step_f32(rp__v_expq_f32(r, r * r, 1.0f), r, 1.0f), r, 1.0f);
}
RP__VMATH_RARE rp__vf32 rp__v_exp_far_f32(rp__vf32 x) {
    x = rp__v_greater_f32(rp__v_splat_f32(-104.0f), rp__v_lesser_f32(rp__v_splat_f32(89.0f), x)); /* keeps NaN */
    rp__vf32 t, p = rp__v_expr_f32(x, RP__MAGIC_F32 + 254, &t);
    return rp__v_scale_f32(p, t);
}
/* For |x| < 87. */
RP__VEC_FN rp__vf32 rp__v_exp_mid_f32(rp__vf32 x) {
    rp__vf32 t, p = rp__v_expr_f32(x, RP__MAGIC_F32, &t);
    return rp__v_shift_f32(p, t);
}
RP__VMATH_FN rp__vf32 rp__v_exp_f32(rp__vf32 x) {
    if (__builtin_expect(!rp__v_all_i32(rp__v_abs_f32(x) < 87.0f), 0)) return rp__v_exp_far_f32(x);
    return rp__v_exp_mid_f32(x);
}
/* For |x| < 87: 2^n, with e^-x = 2^n e^-r, and r. */
RP__VEC_FN rp__vf32 rp__v_expneg_f32(rp__vf32 x, rp__vf32 *r) {
    const float magic = RP__MAGIC_F32 + 127;
    rp__vf32 t = rp__v_step_f32(x, rp__v_splat_f32(-0x1.715476p+0f), magic), n = t - magic;
    *r = rp__v_fma_f32(n, rp__v_splat_f32(RP__LN2_HI_F32), x);
    *r = rp__v_fma_f32(n, rp__v_splat_f32(RP__LN2_LO_F32), *r);
    return (rp__vf32)((rp__vu32)t << 23);
}
/* x - n ln2 for n = rint(x / ln2); *t = n + magic. */
RP__VEC_FN rp__vf64 rp__v_ln2_f64(rp__vf64 x, double magic, rp__vf64 *t) {
    *t = rp__v_step_f64(x, rp__v_splat_f64(0x1.71547652b82fep+0), magic);
    rp__vf64 n = *t - magic, r = rp__v_fma_f64(n, rp__v_splat_f64(-RP__LN2_HI_F64), x);
    return rp__v_fma_f64(n, rp__v_splat_f64(-RP__LN2_LO_F64), r);
}
/* e^x before scaling. */
RP__VEC_FN rp__vf64 rp__v_expr_f64(rp__vf64 x, double magic, rp__vf64 *t) {
    rp__vf64 r = rp__v_ln2_f64(x, magic, t);
    return rp__v_fma_f64(r * r, rp__v_expq_f64(r), r) + 1.0;
}
/* e^x / 2^k of |x| < 200, and to 2^-38. */
RP__VEC_FN rp__vf64 rp__v_exp_short_f64(rp__vf64 x, int k) {
    rp__vf64 t = rp__v_step_f64(x, rp__v_splat_f64(0x1.71547652b82fep+0), RP__MAGIC_F64);
    rp__vf64 r = rp__v_fma_f64(t - RP__MAGIC_F64, rp__v_splat_f64(-0x1.62e42fefa39efp-1), x);
    return rp__v_shift_f64(rp__v_step_f64(rp__v_step_f64(rp__v_expq_short_f64(r), r, 1.0), r, 1.0), t - (double)k);
}
/* 2^k e^x; |k| <= 1 (sinh and cosh take e^x / 2 where e^x overflows). */
RP__VMATH_RARE rp__vf64 rp__v_exp2k_far_f64(rp__vf64 x, int k) {
    x = rp__v_greater_f64(rp__v_splat_f64(-746.0), rp__v_lesser_f64(rp__v_splat_f64(711.0), x));
    rp__vf64 t, p = rp__v_expr_f64(x, RP__MAGIC_F64 + 2046, &t);
    return rp__v_scale_f64(p, t + (double)k);
}
RP__VEC_FN rp__vf64 rp__v_exp2k_f64(rp__vf64 x, int k) {
    if (__builtin_expect(!rp__v_all_i64(rp__v_abs_f64(x) < 707.0), 0)) return rp__v_exp2k_far_f64(x, k);
    rp__vf64 t, p = rp__v_expr_f64(x, RP__MAGIC_F64, &t);
    return rp__v_shift_f64(p, t + (double)k);
}
RP__VMATH_FN rp__vf64 rp__v_exp_f64(rp__vf64 x) { return rp__v_exp2k_f64(x, 0); }

/* 2^x: r = x - n is exact; 2^r = 1 + r Q(r). */
RP__VEC_FN rp__vf32 rp__v_exp2r_f32(rp__vf32 x, float magic, rp__vf32 *t) {
    *t = x + magic;
    rp__vf32 r = x - (*t - magic);
    rp__vf32 p = rp__v_step_f32(rp__v_splat_f32(0x1.177d38p-13f), r, 0x1.5ef5p-10f);
    p = rp__v_step_f32(p, r, 0x1.3b6838p-7f);
    p = rp__v_step_f32(p, r, 0x1.c6af9ep-5f);
    p = rp__v_step_f32(p, r, 0x1.ebfb94p-3f);
    p = rp__v_step_f32(p, r, 0x1.62e43p-1f);
    return rp__v_step_f32(p, r, 1.0f);
}
RP__VMATH_RARE rp__vf32 rp__v_exp2_far_f32(rp__vf32 x) {
    x = rp__v_greater_f32(rp__v_splat_f32(-151.0f), rp__v_lesser_f32(rp__v_splat_f32(129.0f), x));
    rp__vf32 t, p = rp__v_exp2r_f32(x, RP__MAGIC_F32 + 254, &t);
    return rp__v_scale_f32(p, t);
}
RP__VMATH_FN rp__vf32 rp__v_exp2_f32(rp__vf32 x) {
    if (__builtin_expect(!rp__v_all_i32(rp__v_abs_f32(x) < 126.0f), 0)) return rp__v_exp2_far_f32(x);
    rp__vf32 t, p = rp__v_exp2r_f32(x, RP__MAGIC_F32, &t);
    return rp__v_shift_f32(p, t);
}
RP__VEC_FN rp__vf64 rp__v_exp2q_f64(rp__vf64 r) {
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.f5b18eb3ca2cp-35), r, 0x1.ed0d942a6ceb5p-32, 0x1.e3395588508dap-28);
    p = rp__v_step3_f64(p, r, 0x1.b522ca1ae014bp-24, 0x1.62c091491eeb4p-20, 0x1.ffcbfd79ecb7ap-17);
    p = rp__v_step3_f64(p, r, 0x1.430912dce3389p-13, 0x1.5d87fe786af9dp-10, 0x1.3b2ab6fbaada8p-7);
    return rp__v_step3_f64(p, r, 0x1.c6b08d704a1fap-5, 0x1.ebfbdff82c574p-3, 0x1.62e42fefa39efp-1);
}
/* 2^r */
RP__VEC_FN rp__vf64 rp__v_exp2p_f64(rp__vf64 r) { return rp__v_fma_f64(rp__v_exp2q_f64(r), r, rp__v_splat_f64(1.0)); }
RP__VMATH_RARE rp__vf64 rp__v_exp2_far_f64(rp__vf64 x) {
    const double magic = RP__MAGIC_F64 + 2046;
    x = rp__v_greater_f64(rp__v_splat_f64(-1076.0), rp__v_lesser_f64(rp__v_splat_f64(1025.0), x));
    rp__vf64 t = x + magic;
    return rp__v_scale_f64(rp__v_exp2p_f64(x - (t - magic)), t);
}
RP__VMATH_FN rp__vf64 rp__v_exp2_f64(rp__vf64 x) {
    if (__builtin_expect(!rp__v_all_i64(rp__v_abs_f64(x) < 1022.0), 0)) return rp__v_exp2_far_f64(x);
    rp__vf64 t = x + RP__MAGIC_F64;
    return rp__v_shift_f64(rp__v_exp2p_f64(x - (t - RP__MAGIC_F64)), t);
}

/* e^x - 1 = s e + (s - 1), e = e^r - 1, s = 2^n. The rounding error of e and of r is carried in a low part, and s / 2 is
 * used so that n = 1024 does not overflow early. */
RP__VMATH_FN rp__vf32 rp__v_expm1_f32(rp__vf32 x) {
    rp__vf32 y = rp__v_greater_f32(rp__v_splat_f32(-18.0f), rp__v_lesser_f32(rp__v_splat_f32(89.0f), x));
    rp__vf32 t = rp__v_step_f32(y, rp__v_splat_f32(0x1.715476p+0f), RP__MAGIC_F32), n = t - RP__MAGIC_F32;
    rp__vf32 nlo = rp__v_splat_f32(-RP__LN2_LO_F32), a = rp__v_fma_f32(n, rp__v_splat_f32(-RP__LN2_HI_F32), y);
    rp__vf32 r = rp__v_fma_f32(n, nlo, a), c = rp__v_fma_f32(n, nlo, a - r);
    rp__vf32 z = r * r, q = z * rp__v_expq_f32(r, z, 1.0f);
    rp__vf32 e = r + q, l = (r - e) + q + c;
    rp__vf32 s = (rp__vf32)(((rp__vu32)t + 126) << 23);
    rp__vf32 v = rp__v_fma_f32(s, l, rp__v_fma_f32(s, e, s - 0.5f)) * 2.0f;
    return rp__v_sel_f32(rp__v_abs_f32(x) < 0x1p-25f, x, v);
}
/* e^x - 1 as result + *lo, for tanh. */
RP__VEC_FN rp__vf64 rp__v_expm1_pair_f64(rp__vf64 x, rp__vf64 *lo) {
    rp__vf64 y = rp__v_greater_f64(rp__v_splat_f64(-38.0), rp__v_lesser_f64(rp__v_splat_f64(710.0), x));
    rp__vf64 t = rp__v_step_f64(y, rp__v_splat_f64(0x1.71547652b82fep+0), RP__MAGIC_F64), n = t - RP__MAGIC_F64;
    rp__vf64 nlo = rp__v_splat_f64(-RP__LN2_LO_F64), a = rp__v_fma_f64(n, rp__v_splat_f64(-RP__LN2_HI_F64), y);
    rp__vf64 r = rp__v_fma_f64(n, nlo, a), c = rp__v_fma_f64(n, nlo, a - r);
    rp__vf64 q = r * r * rp__v_expq_f64(r);
    rp__vf64 e = r + q, l = (r - e) + q + c;
    rp__vf64 s = (rp__vf64)(((rp__vu64)t + 1022) << 52);
    rp__vf64 u = s - 0.5, v = s * e, w = u + v, d = w - u;
    *lo = rp__v_fma_f64(s, l, (u - (w - d)) + (v - d)) * 2.0;
    return w * 2.0;
}
RP__VMATH_FN rp__vf64 rp__v_expm1_f64(rp__vf64 x) {
    rp__vf64 lo, v = rp__v_expm1_pair_f64(x, &lo);
    lo = (rp__vf64)((rp__vi64)lo & (rp__v_abs_f64(v) < __builtin_inf())); /* not inf - inf */
    return rp__v_sel_f64(rp__v_abs_f64(x) < 0x1p-54, x, v + lo);
}

/* f32: 1 / (1 + e^-x) for -16.25 < x < 87: 1 + e^-x = (1 + s) + s (e^r - 1), s = 2^n, 1 + s exact where s > 1. */
RP__VEC_FN rp__vf32 rp__v_sigmoid_mid_f32(rp__vf32 x) {
    rp__vf32 r, s = rp__v_expneg_f32(x, &r), z = r * r;
    return 1.0f / rp__v_fma_f32(s, rp__v_fma_f32(rp__v_expq_f32(r, z, -1.0f), z, -r), 1.0f + s);
}
/* Below, e^x - e^2x. */
RP__VMATH_RARE rp__vf32 rp__v_sigmoid_far_f32(rp__vf32 x) {
    rp__vf32 y = rp__v_greater_f32(rp__v_splat_f32(-17.0f), rp__v_lesser_f32(rp__v_splat_f32(87.0f), x));
    rp__vf32 e = rp__v_exp_far_f32(rp__v_lesser_f32(rp__v_splat_f32(0.0f), x));
    return rp__v_sel_f32(x <= -16.25f, rp__v_fma_f32(-e, e, e), rp__v_sigmoid_mid_f32(y));
}
RP__VMATH_FN rp__vf32 rp__v_sigmoid_f32(rp__vf32 x) {
    if (__builtin_expect(!rp__v_all_i32((x > -16.25f) & (x < 87.0f)), 0)) return rp__v_sigmoid_far_f32(x);
    return rp__v_sigmoid_mid_f32(x);
}
/* f64: 1 / (1 + e^-x), with e^-|x| so that neither side overflows and small results underflow gradually. What rounding
 * 1 + e lost is put back; 1 / d is y or 1 - y. */
RP__VMATH_FN rp__vf64 rp__v_sigmoid_f64(rp__vf64 x) {
    rp__vf64 e = rp__v_exp_f64(rp__v_neg_f64(rp__v_abs_f64(x))), one = rp__v_splat_f64(1.0);
    rp__vi64 neg = x < 0.0;
    rp__vf64 d = 1.0 + e, y = rp__v_sel_f64(neg, e, one) / d;
    return y - y * ((1.0 - d) + e) * rp__v_sel_f64(neg, 1.0 - y, y);
}

/* f32: x + x^3 P(x^2) below 1; above, 1 - 2 / (e^2x + 1), its denominator as in the sigmoid, e^2x = 2^n e^2r. */
RP__VMATH_FN rp__vf32 rp__v_tanh_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_lesser_f32(rp__v_splat_f32(9.5f), rp__v_abs_f32(x)), z = a * a;
    rp__vf32 p = rp__v_step_f32(rp__v_splat_f32(-0x1.77ce64p-12f), z, 0x1.2da07p-9f);
    p = rp__v_step_f32(p, z, -0x1.046004p-7f);
    p = rp__v_step_f32(p, z, 0x1.6009a8p-6f);
    p = rp__v_step_f32(p, z, -0x1.b9623ap-5f);
    p = rp__v_step_f32(p, z, 0x1.110be4p-3f);
    p = rp__v_step_f32(p, z, -0x1.55553cp-2f);
    p = rp__v_fma_f32(a * z, p, a);
    const float magic = RP__MAGIC_F32 + 127;
    rp__vf32 t = rp__v_step_f32(a, rp__v_splat_f32(0x1.715476p+1f), magic), n = t - magic;
    rp__vf32 r = rp__v_fma_f32(n, rp__v_splat_f32(-0.5f * RP__LN2_HI_F32), a);
    r = rp__v_fma_f32(n, rp__v_splat_f32(-0.5f * RP__LN2_LO_F32), r);
    z = r * r;
    rp__vf32 e = rp__v_fma_f32(rp__v_expq_f32(r, z, 2.0f), z, 0.5f * r), s = (rp__vf32)((rp__vu32)t << 23);
    rp__vf32 d = rp__v_fma_f32(s, e, rp__v_step_f32(s, rp__v_splat_f32(0.25f), 0.25f)); /* a quarter of it */
    rp__vf32 big = 1.0f - 0.5f / d;
    return rp__v_copysign_f32(rp__v_sel_f32(a >= 1.0f, big, p), x);
}
/* e^2x - 1 over e^2x + 1, the low parts of both to first order. */
RP__VMATH_FN rp__vf64 rp__v_tanh_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_lesser_f64(rp__v_splat_f64(22.0), rp__v_abs_f64(x));
    rp__vf64 lo, t = rp__v_expm1_pair_f64(a + a, &lo);
    rp__vf64 d = t + 2.0, b = d - 2.0, dl = (2.0 - (d - b)) + (t - b);
    rp__vf64 i = 1.0 / d, y = t * i;
    y = rp__v_fma_f64(rp__v_fma_f64(rp__v_neg_f64(y), d, t) + rp__v_fma_f64(rp__v_neg_f64(y), dl + lo, lo), i, y);
    return rp__v_copysign_f64(rp__v_sel_f64(a < 0x1p-28, a, y), x);
}

/* ---- logarithms --------------------------------------------------------------------------------------------------
 * f32: x = 2^k (1 + f), 1 + f in [2/3, 4/3); log(1 + f) = f - f^2 / 2 + f^3 P(f).
 * f64: x = 2^k m, m in [sqrt(1/2), sqrt 2); f = m - 1, s = f / (2 + f);
 * log m = log((1 + s) / (1 - s)) = 2 s + s R(s^2) = f - (f^2 / 2 - s (f^2 / 2 + R)): the last form keeps f exact. */

/* k ln2 + log(1 + f) + c for minus_k = -k 2^23, c below half an ulp of f: a = k hi + f rounded, what that lost (exact), c
 * and k lo, then the series. hi is below ln2, so that the signs of a zero f agree. */
RP__VEC_FN rp__vf32 rp__v_logsum_f32(rp__vf32 f, rp__vf32 c, rp__vf32 minus_k) {
    rp__vf32 p = rp__v_step_f32(rp__v_splat_f32(-0x1.07bca2p-3f), f, 0x1.1e753cp-3f);
    p = rp__v_step_f32(p, f, -0x1.f333bep-4f);
    p = rp__v_step_f32(p, f, 0x1.1ed3e8p-3f);
    p = rp__v_step_f32(p, f, -0x1.559c82p-3f);
    p = rp__v_step_f32(p, f, 0x1.99d06p-3f);
    p = rp__v_step_f32(p, f, -0x1.fffef8p-3f);
    p = rp__v_step_f32(p, f, 0x1.555506p-2f);
    p = rp__v_step_f32(p, f, -0.5f);
    rp__vf32 a = rp__v_fma_f32(minus_k, rp__v_splat_f32(-0x1.62e42ep-24f), f);
    rp__vf32 lost = (f - rp__v_fma_f32(minus_k, rp__v_splat_f32(0x1.62e42ep-24f), a)) + c;
    lost = rp__v_fma_f32(minus_k, rp__v_splat_f32(-0x1.efa39ep-48f), lost);
    return a + rp__v_fma_f32(p, f * f, lost);
}
/* -k 2^23 for the bits of x. */
RP__VEC_FN rp__vi32 rp__v_logk_f32(rp__vf32 x) {
    return (rp__vi32)((0x3f2aaaab + 0x7fffff - (rp__vu32)x) & 0xff800000);
}
/* log x - shift ln2 / 2^23 for normal finite x > 0. */
RP__VEC_FN rp__vf32 rp__v_lognormal_f32(rp__vf32 x, rp__vf32 shift) {
    rp__vi32 k = rp__v_logk_f32(x);
    return rp__v_logsum_f32((rp__vf32)((rp__vu32)x + (rp__vu32)k) - 1.0f, rp__v_splat_f32(-0.0f),
                            rp__v_f32_i32(k) + shift);
}
/* a b = *lo + result. */
RP__VEC_FN rp__vf64 rp__v_mul2_f64(rp__vf64 a, rp__vf64 b, rp__vf64 *lo) {
    rp__vf64 p = a * b;
    *lo = rp__v_fma_f64(a, b, rp__v_neg_f64(p));
    return p;
}
/* Is every lane in [2^-126, inf)? One signed comparison of the bits, moved to the bottom of the range. */
RP__VEC_FN int rp__v_lognear_f32(rp__vf32 x) {
    return rp__v_all_i32((rp__vi32)((rp__vu32)x + 0x7f800000) < (int32_t)(0x7f000000 - 0x80000000));
}
/* k and m; k as a float from the exponent bits (subnormals are scaled first). */
RP__VEC_FN rp__vf64 rp__v_frexp_f64(rp__vf64 x, rp__vf64 *k) {
    rp__vi64 sub = x < 0x1p-1022;
    rp__vu64 u = (rp__vu64)rp__v_sel_f64(sub, x * 0x1p54, x) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
    *k = (rp__vf64)(u >> 52 | 0x4330000000000000) -
         rp__v_sel_f64(sub, rp__v_splat_f64(0x1p52 + 1023 + 54), rp__v_splat_f64(0x1p52 + 1023));
    return (rp__vf64)((u & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
}
/* Logarithms outside (0, inf): -inf at zeros, NaN below, +inf and NaN themselves. */
RP__VEC_FN rp__vf32 rp__v_logfix_f32(rp__vf32 x, rp__vf32 y) {
    rp__vf32 low = rp__v_sel_f32(x == 0.0f, rp__v_splat_f32(-__builtin_inff()), rp__v_splat_f32(__builtin_nanf("")));
    return rp__v_sel_f32((x > 0.0f) & (x < __builtin_inff()), y, rp__v_sel_f32(x <= 0.0f, low, x));
}
RP__VEC_FN rp__vf64 rp__v_logfix_f64(rp__vf64 x, rp__vf64 y) {
    rp__vf64 low = rp__v_sel_f64(x == 0.0, rp__v_splat_f64(-__builtin_inf()), rp__v_splat_f64(__builtin_nan("")));
    return rp__v_sel_f64((x > 0.0) & (x < __builtin_inf()), y, rp__v_sel_f64(x <= 0.0, low, x));
}
RP__VEC_FN rp__vf64 rp__v_logr_f64(rp__vf64 z) {
    rp__vf64 p = rp__v_step2_f64(rp__v_splat_f64(0x1.2f0452a4f61d4p-3), z, 0x1.39a1dae523681p-3, 0x1.74663d6938785p-3);
    p = rp__v_step3_f64(p, z, 0x1.c71c52124744fp-3, 0x1.24924941e3564p-2, 0x1.999999997ff02p-2);
    return z * rp__v_step_f64(p, z, 0x1.5555555555592p-1);
}
/* k ln2 + log(1 + f) + c, where |c| is a correction far below one ulp of f. */
RP__VEC_FN rp__vf64 rp__v_logsum_f64(rp__vf64 f, rp__vf64 k, rp__vf64 c) {
    rp__vf64 s = f / (f + 2.0), h = 0.5 * f * f;
    rp__vf64 r = rp__v_logr_f64(s * s);
    c = rp__v_fma_f64(s, h + r, rp__v_fma_f64(k, rp__v_splat_f64(RP__LN2_LO_F64), c));
    return rp__v_fma_f64(k, rp__v_splat_f64(RP__LN2_HI_F64), f - (h - c));
}
RP__VMATH_RARE rp__vf32 rp__v_log_far_f32(rp__vf32 x) {
    rp__vi32 sub = x < 0x1p-126f;
    rp__vf32 shift = (rp__vf32)(sub & (rp__vi32)rp__v_splat_f32(24.0f * 0x1p23f));
    return rp__v_logfix_f32(x, rp__v_lognormal_f32(rp__v_sel_f32(sub, x * 0x1p24f, x), shift));
}
RP__VMATH_FN rp__vf32 rp__v_log_f32(rp__vf32 x) {
    if (__builtin_expect(!rp__v_lognear_f32(x), 0)) return rp__v_log_far_f32(x);
    return rp__v_lognormal_f32(x, (rp__vf32){0});
}
RP__VMATH_FN rp__vf64 rp__v_log_f64(rp__vf64 x) {
    rp__vf64 k, m = rp__v_frexp_f64(x, &k);
    return rp__v_logfix_f64(x, rp__v_logsum_f64(m - 1.0, k, (rp__vf64){0}));
}
/* f32: u = 1 + x rounded gives k; f = 2^-k x - (1 - 2^-k), with 4 2^-k to keep away from 2^-128, and what it lost, over 1 + f
 * to first order. Other u than (0, inf) and their values are those of the logarithm. */
RP__VEC_FN rp__vf32 rp__v_log1pnormal_f32(rp__vf32 x, rp__vf32 u) {
    rp__vi32 k = rp__v_logk_f32(u);
    rp__vf32 v = (rp__vf32)((rp__vu32)x + (rp__vu32)k);
    rp__vf32 g = rp__v_step_f32((rp__vf32)((rp__vu32)k + 0x40800000), rp__v_splat_f32(-0.25f), 1.0f), f = v - g;
    return rp__v_logsum_f32(f, (v - (f + g)) * (1.0f - f), rp__v_f32_i32(k));
}
RP__VMATH_RARE rp__vf32 rp__v_log1p_far_f32(rp__vf32 x, rp__vf32 u) {
    return rp__v_logfix_f32(u, rp__v_log1pnormal_f32(x, u));
}
RP__VMATH_FN rp__vf32 rp__v_log1p_f32(rp__vf32 x) {
    rp__vf32 u = 1.0f + x;
    if (__builtin_expect(!rp__v_lognear_f32(u), 0)) return rp__v_log1p_far_f32(x, u);
    return rp__v_log1pnormal_f32(x, u);
}
/* f64: log(1 + x) = log u + c / u, where u = 1 + x rounded and c what was lost. */
RP__VMATH_FN rp__vf64 rp__v_log1p_f64(rp__vf64 x) {
    rp__vf64 u = 1.0 + x, k, m = rp__v_frexp_f64(u, &k);
    rp__vf64 c = rp__v_sel_f64(x < 1.0, x - (u - 1.0), 1.0 - (u - x)) / u;
    rp__vf64 y = rp__v_logfix_f64(u, rp__v_logsum_f64(m - 1.0, k, c));
    return rp__v_sel_f64(rp__v_abs_f64(x) < 0x1p-54, x, y);
}
/* log2: log m / ln2 with 1 / ln2 = hi + lo, then + k. */
RP__VEC_FN rp__vf64 rp__v_log2_raw_f64(rp__vf64 x) {
    rp__vf64 k, f = rp__v_frexp_f64(x, &k) - 1.0;
    rp__vf64 s = f / (f + 2.0), h = 0.5 * f * f;
    rp__vf64 d = s * (h + rp__v_logr_f64(s * s));
    /* f - h as hi + lo; hi / ln2 exactly */
    rp__vf64 hi = f - h, lo = ((f - hi) - h) + d, b, a = rp__v_mul2_f64(hi, rp__v_splat_f64(0x1.71547652b82fep+0), &b);
    b = rp__v_fma_f64(lo, rp__v_splat_f64(0x1.71547652b82fep+0), b);
    b = rp__v_fma_f64(hi + lo, rp__v_splat_f64(0x1.777d0ffda0d24p-56), b);
    rp__vf64 w = k + a;
    return w + (((k - w) + a) + b);
}
RP__VMATH_FN rp__vf64 rp__v_log2_f64(rp__vf64 x) { return rp__v_logfix_f64(x, rp__v_log2_raw_f64(x)); }

/* f32: k times the unit and f P(f), in f64; unit: log 2 of the base. */
#define RP__VMATH_LOGARITHM(name, unit)                                                                                \
    RP__VEC_FN rp__vf32 rp__v_##name##normal_f32(rp__vf32 x, rp__vf32 shift) {                                         \
        rp__vi32 k = rp__v_logk_f32(x);                                                                                \
        rp__vf32 f = (rp__vf32)((rp__vu32)x + (rp__vu32)k) - 1.0f, minus_k = rp__v_f32_i32(k) + shift;                 \
        rp__vf64 u = rp__v_splat_f64(-0x1p-23 * (unit)), f0 = rp__v_lo_f64_f32(f), f1 = rp__v_hi_f64_f32(f);           \
        return rp__v_f32_f64(rp__v_fma_f64(rp__v_lo_f64_f32(minus_k), u, f0 * rp__v_##name##p_f64(f0)),                \
                             rp__v_fma_f64(rp__v_hi_f64_f32(minus_k), u, f1 * rp__v_##name##p_f64(f1)));               \
    }                                                                                                                  \
    RP__VMATH_RARE rp__vf32 rp__v_##name##_far_f32(rp__vf32 x) {                                                       \
        rp__vi32 sub = x < 0x1p-126f;                                                                                  \
        rp__vf32 shift = (rp__vf32)(sub & (rp__vi32)rp__v_splat_f32(24.0f * 0x1p23f));                                 \
        return rp__v_logfix_f32(x, rp__v_##name##normal_f32(rp__v_sel_f32(sub, x * 0x1p24f, x), shift));               \
    }                                                                                                                  \
    RP__VMATH_FN rp__vf32 rp__v_##name##_f32(rp__vf32 x) {                                                             \
        if (__builtin_expect(!rp__v_lognear_f32(x), 0)) return rp__v_##name##_far_f32(x);                              \
        return rp__v_##name##normal_f32(x, (rp__vf32){0});                                                             \
    }
RP__VEC_FN rp__vf64 rp__v_log2p_f64(rp__vf64 f) {
    rp__vf64 p = rp__v_step_f64(rp__v_splat_f64(-0x1.3466905bdcc17p-3), f, 0x1.43320bbf14485p-3);
    p = rp__v_step3_f64(p, f, -0x1.c99f5f9f51e33p-4, 0x1.f9bf5a3a7b364p-4, -0x1.28fd589973609p-3);
    p = rp__v_step3_f64(p, f, 0x1.49872e80a1a8p-3, -0x1.71426bcee781ap-3, 0x1.a60ad2ed229ebp-3);
    p = rp__v_step3_f64(p, f, -0x1.ec710a4ab6374p-3, 0x1.2776e345ee5b2p-2, -0x1.715475c3bbe11p-2);
    return rp__v_step3_f64(p, f, 0x1.ec709d8d555aep-2, -0x1.71547652ee591p-1, 0x1.71547652bc28dp+0);
}
RP__VMATH_LOGARITHM(log2, 1.0)

/* ---- sine, cosine, tangent ---------------------------------------------------------------------------------------
 * x = n pi/2 + r, |r| <= pi/4, by Cody-Waite for |x| < 2^20 (pi/2 in three parts, n times the first two exact) and by
 * Payne-Hanek in integers, lane by lane, beyond. Large f32 values, and the tangent, take f64 halves. */

/* Product of the 64-bit a and b, upper half, from 32-bit parts: no 128-bit type on every target. */
RP__VEC_FN uint64_t rp__v_mulhi_u64(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t m = ah * bl + (al * bl >> 32), l = al * bh + (uint32_t)m;
    return ah * bh + (m >> 32) + (l >> 32);
}
/* Payne-Hanek for one |x| >= 2^20 (or infinity, NaN: NaN): returns n mod 4, *hi + *lo = r to about 70 bits.
 * x = m 2^e; the bits of 2/pi whose products with m are multiples of 4 are skipped, the next 192 are used:
 * two integer bits and 190 of fraction, of which at most 62 cancel. */
static __attribute__((unused, noinline)) int rp__v_payne_hanek(double x, double *hi, double *lo) {
    static const uint64_t two_over_pi[] = {
        0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561, 0xb7246e3a424dd2e0,
        0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4,
        0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
        0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d,
    };
    union {
        double f;
        uint64_t u;
    } b = {x};
    int e = (int)(b.u >> 52 & 0x7ff) - 1075;
    if (e == 0x7ff - 1075) {
        *hi = *lo = __builtin_nan("");
        return 0;
    }
    uint64_t m = (b.u & 0xfffffffffffff) | 0x10000000000000, w[4], p0, p1, p2;
    int at = e - 2 + 64; /* first bit used, in a string with one zero word before two_over_pi */
    for (int i = 0; i < 4; i++) w[i] = at / 64 + i ? two_over_pi[at / 64 + i - 1] : 0;
    if (at % 64) {
        for (int i = 0; i < 3; i++) w[i] = w[i] << at % 64 | w[i + 1] >> (64 - at % 64);
    }
    p0 = m * w[2];
    p1 = m * w[1] + rp__v_mulhi_u64(m, w[2]);
    p2 = m * w[0] + rp__v_mulhi_u64(m, w[1]) + (p1 < m * w[1]);
    int n = (int)(p2 >> 62), neg = (int)(p2 >> 61 & 1);
    n += neg;
    p2 &= 0x3fffffffffffffff;
    if (neg) { /* fraction - 1, as a magnitude */
        p0 = ~p0 + 1;
        p1 = ~p1 + (p0 == 0);
        p2 = (~p2 + (p0 == 0 && p1 == 0)) & 0x3fffffffffffffff;
    }
    int shift = -62; /* the value of p2's unit */
    if (!p2) {
        p2 = p1;
        p1 = p0;
        p0 = 0;
        shift -= 64;
    }
    int z = __builtin_clzll(p2 | 1);
    if (z) {
        p2 = p2 << z | p1 >> (64 - z);
        p1 = p1 << z | p0 >> (64 - z);
    }
    shift -= z;
    union {
        uint64_t u;
        double f;
    } unit = {(uint64_t)(1023 + shift) << 52};
    double f1 = (double)(p2 & ~(uint64_t)0x7ff) * unit.f;
    double f2 = (double)((p2 << 53 | p1 >> 11) >> 1) * (unit.f * 0x1p-52);
    if (neg != (int)(b.u >> 63)) {
        f1 = -f1;
        f2 = -f2;
    }
    /* (f1 + f2) (pi/2), the leading product exact by splitting off 26 bits (Dekker) */
    b.f = f1;
    b.u &= ~(uint64_t)0x7ffffff;
    double fh = b.f, fl = f1 - fh;
    double a = f1 * 0x1.921fb54442d18p+0;
    double err = ((fh * 0x1.921fb5p+0 - a) + fh * 0x1.110b46p-26 + fl * 0x1.921fb5p+0) + fl * 0x1.110b46p-26;
    err += f1 * 0x1.1a62633145c07p-54 + f2 * 0x1.921fb54442d18p+0;
    *hi = a + err;
    *lo = (a - *hi) + err;
    return (x < 0 ? -n : n) & 3;
}

/* n mod 4 in the low bits of the result, r = *hi + *lo. */
RP__VMATH_FN rp__vi64 rp__v_pio2_f64(rp__vf64 x, rp__vf64 *hi, rp__vf64 *lo) {
    rp__vf64 t = rp__v_step_f64(x, rp__v_splat_f64(0x1.45f306dc9c883p-1), RP__MAGIC_F64), n = t - RP__MAGIC_F64;
    rp__vf64 a = rp__v_fma_f64(n, rp__v_splat_f64(-0x1.921fb544p+0), x), b = n * 0x1.0b4611a6p-34;
    rp__vf64 r = a - b, v = r - a;
    rp__vf64 e = rp__v_fma_f64(n, rp__v_splat_f64(-0x1.3198a2e037073p-69), (a - (r - v)) - (b + v));
    rp__vi64 q = (rp__vi64)t;
    *hi = r + e;
    *lo = (r - *hi) + e;
    rp__vi64 slow = ~(rp__v_abs_f64(x) < 0x1p20);
    if (__builtin_expect(rp__v_any_i64(slow), 0)) {
        for (size_t i = 0; i < RP_VEC_F64; i++) {
            double h, l;
            if (!slow[i]) continue;
            q[i] = rp__v_payne_hanek(x[i], &h, &l);
            (*hi)[i] = h;
            (*lo)[i] = l;
        }
    }
    return q;
}
/* The same for values that were f32: r to f64's precision in one part. */
RP__VMATH_FN rp__vi64 rp__v_pio2_short_f64(rp__vf64 x, rp__vf64 *r) {
    rp__vf64 t = rp__v_step_f64(x, rp__v_splat_f64(0x1.45f306dc9c883p-1), RP__MAGIC_F64), n = t - RP__MAGIC_F64;
    rp__vi64 q = (rp__vi64)t;
    *r = rp__v_fma_f64(n, rp__v_splat_f64(-0x1.921fb544p+0), x);
    *r = rp__v_fma_f64(n, rp__v_splat_f64(-0x1.0b4611a626331p-34), *r);
    rp__vi64 slow = ~(rp__v_abs_f64(x) < 0x1p20);
    if (__builtin_expect(rp__v_any_i64(slow), 0)) {
        for (size_t i = 0; i < RP_VEC_F64; i++) {
            double h, l;
            if (!slow[i]) continue;
            q[i] = rp__v_payne_hanek(x[i], &h, &l);
            (*r)[i] = h;
        }
    }
    return q;
}
/* sin r and cos r for |r| <= pi/4, r = r + lo; *low is what the last addition lost (tan uses it). */
RP__VEC_FN rp__vf64 rp__v_sink_f64(rp__vf64 r, rp__vf64 lo, rp__vf64 *low) {
    rp__vf64 z = r * r;
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.5d8b760b8cf9cp-33), z, -0x1.ae5e4bda31086p-26, 0x1.71de35557c41dp-19);
    p = rp__v_step3_f64(p, z, -0x1.a01a019be95fbp-13, 0x1.111111110f731p-7, -0x1.5555555555548p-3);
    rp__vf64 t = rp__v_fma_f64(r * z, p, lo * rp__v_step_f64(z, rp__v_splat_f64(-0.5), 1.0)), s = r + t;
    *low = (r - s) + t;
    return s;
}
RP__VEC_FN rp__vf64 rp__v_cosk_f64(rp__vf64 r, rp__vf64 lo, rp__vf64 *low) {
    rp__vf64 z = r * r, h = 0.5 * z, w = 1.0 - h;
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(-0x1.8fa65e9962e4fp-37), z, 0x1.1ee9db8e1be4dp-29, -0x1.27e4f7f140d63p-22);
    p = rp__v_step3_f64(p, z, 0x1.a01a019c8ed03p-16, -0x1.6c16c16c15013p-10, 0x1.555555555554bp-5);
    rp__vf64 t = rp__v_fma_f64(z * z, p, rp__v_fma_f64(rp__v_neg_f64(r), lo, (1.0 - w) - h)), c = w + t;
    *low = (w - c) + t;
    return c;
}
RP__VEC_FN rp__vf64 rp__v_sink_short_f64(rp__vf64 r) {
    rp__vf64 z = r * r;
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(-0x1.99439d24ca295p-13), z, 0x1.11073a4d5444bp-7, -0x1.5555452553987p-3);
    return r * rp__v_step_f64(p, z, 1.0);
}
RP__VEC_FN rp__vf64 rp__v_cosk_short_f64(rp__vf64 r) {
    rp__vf64 z = r * r;
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.99164a32adfb1p-16), z, -0x1.6c07f00155868p-10, 0x1.55553c75201ap-5);
    return rp__v_step2_f64(p, z, -0x1.ffffffcb79b03p-2, 1.0);
}
/* Of s = sin r and c = cos r the sine in quadrant q (the cosine is the sine in quadrant q + 1, s and c exchanged there). */
RP__VEC_FN rp__vf64 rp__v_quadrant_f64(rp__vi64 q, rp__vf64 s, rp__vf64 c) {
    rp__vf64 v = rp__v_sel_f64((q & 1) != 0, c, s);
    return (rp__vf64)((rp__vu64)v ^ ((rp__vu64)(q & 2) << 62));
}
RP__VMATH_FN void rp__v_sincos_f64(rp__vf64 x, rp__vf64 *sine, rp__vf64 *cosine) {
    rp__vf64 r, lo;
    rp__vi64 q = rp__v_pio2_f64(x, &r, &lo);
    rp__vf64 low, s = rp__v_sink_f64(r, lo, &low), c = rp__v_cosk_f64(r, lo, &low);
    *sine = rp__v_sel_f64(rp__v_abs_f64(x) < 0x1p-27, x, rp__v_quadrant_f64(q, s, c));
    *cosine = rp__v_quadrant_f64(q + 1, s, c);
}
RP__VMATH_FN rp__vf64 rp__v_sin_f64(rp__vf64 x) {
    rp__vf64 s, c;
    rp__v_sincos_f64(x, &s, &c);
    return s;
}
RP__VMATH_FN rp__vf64 rp__v_cos_f64(rp__vf64 x) {
    rp__vf64 s, c;
    rp__v_sincos_f64(x, &s, &c);
    return c;
}
RP__VMATH_FN rp__vf64 rp__v_tan_f64(rp__vf64 x) {
    rp__vf64 r, lo;
    rp__vi64 q = rp__v_pio2_f64(x, &r, &lo);
    rp__vf64 sl, cl, s = rp__v_sink_f64(r, lo, &sl), c = rp__v_cosk_f64(r, lo, &cl);
    rp__vi64 odd = (q & 1) != 0;
    rp__vf64 n = rp__v_sel_f64(odd, c, s), nl = rp__v_sel_f64(odd, cl, sl);
    rp__vf64 d = rp__v_sel_f64(odd, rp__v_neg_f64(s), c), dl = rp__v_sel_f64(odd, rp__v_neg_f64(sl), cl);
    rp__vf64 i = 1.0 / d, y = n * i;
    y = rp__v_fma_f64(rp__v_fma_f64(rp__v_neg_f64(y), d, n) + rp__v_fma_f64(rp__v_neg_f64(y), dl, nl), i, y);
    return rp__v_sel_f64(rp__v_abs_f64(x) < 0x1p-27, x, y);
}

/* f32: pi/2 in three parts for |x| <= 2^14: x - n p1 is exact, n p2 too (p2 has 10 bits), so lo begins with exactly what
 * rounding hi lost. a = |x|; larger |x| in f64. */
struct rp__v_pio2 {
    rp__vf32 hi, lo; /* r = hi + lo, |r| <= pi/4 */
    rp__vi32 q;      /* n, in its low bits */
};
RP__VMATH_RARE struct rp__v_pio2 rp__v_pio2_far_f32(rp__vf32 a) {
    rp__vf64 r0, r1;
    rp__vi64 q0 = rp__v_pio2_short_f64(rp__v_lo_f64_f32(a), &r0), q1 = rp__v_pio2_short_f64(rp__v_hi_f64_f32(a), &r1);
    struct rp__v_pio2 v;
    v.q = rp__v_i32_i64(q0, q1);
    v.hi = rp__v_f32_f64(r0, r1);
    v.lo = rp__v_f32_f64(r0 - rp__v_lo_f64_f32(v.hi), r1 - rp__v_hi_f64_f32(v.hi));
    return v;
}
RP__VEC_FN struct rp__v_pio2 rp__v_pio2_f32(rp__vf32 a) {
    rp__vf32 t = rp__v_step_f32(a, rp__v_splat_f32(0x1.45f306p-1f), RP__MAGIC_F32), n = t - RP__MAGIC_F32;
    rp__vf32 r = rp__v_fma_f32(n, rp__v_splat_f32(-0x1.921fb6p+0f), a), p2 = rp__v_splat_f32(0x1.778p-25f);
    struct rp__v_pio2 v;
    v.q = (rp__vi32)t;
    v.hi = rp__v_fma_f32(n, p2, r);
    v.lo = rp__v_fma_f32(n, p2, r - v.hi);
    v.lo = rp__v_fma_f32(n, rp__v_splat_f32(-0x1.68c234p-39f), v.lo);
    rp__vi32 near = a <= 0x1p14f;
    if (__builtin_expect(!rp__v_all_i32(near), 0)) {
        struct rp__v_pio2 w = rp__v_pio2_far_f32(a);
        v.q = rp__v_sel_i32(near, v.q, w.q);
        v.hi = rp__v_sel_f32(near, v.hi, w.hi);
        v.lo = rp__v_sel_f32(near, v.lo, w.lo);
    }
    return v;
}
/* sin (r + lo) and cos (r + lo), z = r^2 rounded; the cosine also puts back half of what z lost. */
RP__VEC_FN rp__vf32 rp__v_sinr_f32(rp__vf32 r, rp__vf32 lo, rp__vf32 z) {
    rp__vf32 p = rp__v_step_f32(rp__v_splat_f32(-0x1.9953f4p-13f), z, 0x1.110778p-7f);
    p = rp__v_step_f32(p, z, -0x1.555546p-3f);
    return r + rp__v_fma_f32(r * z, p, lo);
}
RP__VEC_FN rp__vf32 rp__v_cosr_f32(rp__vf32 r, rp__vf32 lo, rp__vf32 z) {
    rp__vf32 p = rp__v_step_f32(rp__v_splat_f32(0x1.99e90cp-16f), z, -0x1.6c0c2ap-10f);
    p = rp__v_step_f32(p, z, 0x1.55554ap-5f);
    p = rp__v_step_f32(p, z, -0.5f);
    rp__vf32 c = rp__v_fma_f32(rp__v_fma_f32(r, r, -z), rp__v_splat_f32(-0.5f), -(r * lo));
    return 1.0f + rp__v_fma_f32(p, z, c);
}
/* s and c are exchanged where q is odd; q's second bit and that of x are the sign. */
RP__VEC_FN rp__vf32 rp__v_quadrant_f32(rp__vi32 q, rp__vf32 s, rp__vf32 c, rp__vi32 x) {
    rp__vf32 v = rp__v_sel_f32((rp__vi32)((rp__vu32)q << 31) < 0, c, s);
    return (rp__vf32)((rp__vi32)v ^ (((rp__vi32)((rp__vu32)q << 30) ^ x) & INT32_MIN));
}
RP__VMATH_FN void rp__v_sincos_f32(rp__vf32 x, rp__vf32 *sine, rp__vf32 *cosine) {
    struct rp__v_pio2 v = rp__v_pio2_f32(rp__v_abs_f32(x));
    rp__vf32 z = v.hi * v.hi, s = rp__v_sinr_f32(v.hi, v.lo, z), c = rp__v_cosr_f32(v.hi, v.lo, z);
    *sine = rp__v_quadrant_f32(v.q, s, c, (rp__vi32)x);
    *cosine = rp__v_quadrant_f32(v.q + 1, s, c, (rp__vi32){0});
}
RP__VMATH_FN rp__vf32 rp__v_sin_f32(rp__vf32 x) {
    rp__vf32 s, c;
    rp__v_sincos_f32(x, &s, &c);
    return s;
}
RP__VMATH_FN rp__vf32 rp__v_cos_f32(rp__vf32 x) {
    rp__vf32 s, c;
    rp__v_sincos_f32(x, &s, &c);
    return c;
}
/* 1 / (the f64 vectors a and b side by side) to about 2^-47, where 1 / a is no subnormal f32: f32's and a step of Newton's. */
RP__VEC_FN void rp__v_invert_f64(rp__vf64 *a, rp__vf64 *b) {
    rp__vf32 i = 1.0f / rp__v_f32_f64(*a, *b);
    rp__vf64 x = rp__v_lo_f64_f32(i), y = rp__v_hi_f64_f32(i);
    *a = rp__v_fma_f64(rp__v_step_f64(rp__v_neg_f64(x), *a, 1.0), x, x);
    *b = rp__v_fma_f64(rp__v_step_f64(rp__v_neg_f64(y), *b, 1.0), y, y);
}
/* Sine and cosine of values that were f32. */
RP__VEC_FN rp__vf64 rp__v_sincos_short_f64(rp__vf64 x, rp__vf64 *cosine) {
    rp__vf64 r;
    rp__vi64 q = rp__v_pio2_short_f64(x, &r);
    rp__vf64 s = rp__v_sink_short_f64(r), c = rp__v_cosk_short_f64(r);
    *cosine = rp__v_quadrant_f64(q + 1, s, c);
    return rp__v_quadrant_f64(q, s, c);
}
RP__VMATH_FN rp__vf32 rp__v_tan_f32(rp__vf32 x) {
    rp__vf64 c, d, s = rp__v_sincos_short_f64(rp__v_lo_f64_f32(x), &c),
                   t = rp__v_sincos_short_f64(rp__v_hi_f64_f32(x), &d);
    rp__v_invert_f64(&c, &d);
    return rp__v_f32_f64(s * c, t * d);
}

/* ---- error function ----------------------------------------------------------------------------------------------
 * f32: x + x P(x^2) below 1; above, 1 - e^-v, v = x + x G(x) = -log(erfc x). */
#define RP__EACH _Pragma("GCC unroll 2") for (int k = 0; k < n; k++)
#define RP__EACH_STEP(p, x, c) RP__EACH p[k] = rp__v_step_f32(p[k], x[k], c)
/* Of n (1 or 2) vectors side by side: each is one long chain of operations, which two make up for. */
RP__VEC_FN void rp__v_erf_n_f32(const rp__vf32 *x, rp__vf32 *out, int n) {
    rp__vf32 a[2], z[2], p[2], g[2], r[2], s[2], y[2], q[2];
    RP__EACH {
        a[k] = rp__v_lesser_f32(rp__v_splat_f32(4.0f), rp__v_abs_f32(x[k]));
        z[k] = a[k] * a[k];
        g[k] = rp__v_splat_f32(-0x1.b9c3b2p-13f);
        p[k] = rp__v_splat_f32(0x1.4771fcp-14f);
    }
    RP__EACH_STEP(g, a, 0x1.a1b9e8p-9f);
    RP__EACH_STEP(p, z, -0x1.a3515ep-11f);
    RP__EACH_STEP(g, a, -0x1.75885ap-6f);
    RP__EACH_STEP(p, z, 0x1.53f224p-8f);
    RP__EACH_STEP(g, a, 0x1.ae8e84p-4f);
    RP__EACH_STEP(p, z, -0x1.b7f71ap-6f);
    RP__EACH_STEP(g, a, 0x1.458baep-1f);
    RP__EACH_STEP(p, z, 0x1.ce2ce6p-4f);
    RP__EACH_STEP(g, a, 0x1.072092p-3f);
    RP__EACH_STEP(p, z, -0x1.81273ep-2f);
    RP__EACH g[k] = rp__v_fma_f32(a[k], g[k], a[k]);
    RP__EACH_STEP(p, z, 0x1.06eba8p-3f);
    RP__EACH p[k] = rp__v_fma_f32(a[k], p[k], a[k]);
    RP__EACH s[k] = rp__v_expneg_f32(g[k], &r[k]);
    RP__EACH y[k] = r[k] * r[k];
    RP__EACH q[k] = rp__v_expq_f32(r[k], y[k], -1.0f);
    RP__EACH q[k] = rp__v_fma_f32(q[k], y[k], -r[k]);
    RP__EACH q[k] = rp__v_fma_f32(-s[k], q[k], 1.0f - s[k]);
    /* both forms are positive */
    RP__EACH out[k] = (rp__vf32)((rp__vi32)rp__v_sel_f32(a[k] >= 1.0f, q[k], p[k]) | ((rp__vi32)x[k] & INT32_MIN));
}
#ifdef RP__VEC_FMA_OF_PARTS
RP__VMATH_FN
#else
RP__VEC_FN
#endif
rp__vf32 rp__v_erf_f32(rp__vf32 x) {
    rp__vf32 y;
    rp__v_erf_n_f32(&x, &y, 1);
    return y;
}
/* erf of |x| < 0.85. */
RP__VEC_FN rp__vf64 rp__v_erf_small_f64(rp__vf64 x) {
    rp__vf64 z = x * x;
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.34a5934f630a1p-28), z, -0x1.604480459f12dp-26, 0x1.bc27e271f85d1p-25);
    p = rp__v_step3_f64(p, z, -0x1.b6972b69ca90fp-23, 0x1.c17ff93d9131cp-20, -0x1.f54275517efd3p-17);
    p = rp__v_step3_f64(p, z, 0x1.f9a776fa74339p-14, -0x1.c02dcffbf643p-11, 0x1.565bcd81a6656p-8);
    p = rp__v_step3_f64(p, z, -0x1.b82ce314b96fep-6, 0x1.ce2f21a048423p-4, -0x1.812746b037a3ep-2);
    return rp__v_fma_f64(x, rp__v_step_f64(p, z, 0x1.06eba8214db69p-3), x);
}
/* erfc of 0.468 <= a <= 27.5: e^(-a^2) P(t) / (1 + 2 a), t = (a - 4) / (a + 4) (Shepherd and Laframboise). The parts lost
 * from a^2, P and 1 + 2 a go into the exponent; P is 1.13 to 1.29, so its inverse there is about 0.83. */
RP__VEC_FN rp__vf64 rp__v_erfc_big_f64(rp__vf64 a) {
    rp__vf64 b = a + a, d = 1.0 + b, v = d - b, dl = (b - (d - v)) + (1.0 - v);
    rp__vf64 f = a + 4.0, i = 1.0 / (f * d), t = (a - 4.0) * (i * d);
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.cdce223be134p-30), t, -0x1.4c7c18d77b9f8p-27, -0x1.2c714a8f6374ap-26);
    p = rp__v_step3_f64(p, t, 0x1.bbc1af5e8ac14p-24, 0x1.3e80509c8f133p-24, -0x1.b801ebe7de9fbp-21);
    p = rp__v_step3_f64(p, t, 0x1.3bc66fa53f856p-22, 0x1.7ef58a7e8e26cp-18, -0x1.788d4ed660dddp-17);
    p = rp__v_step3_f64(p, t, -0x1.9954eb9fa9bf6p-16, 0x1.3be0680e57815p-13, -0x1.a1df446699b49p-13);
    p = rp__v_step3_f64(p, t, -0x1.8d4a9c016530dp-11, 0x1.49c672a9a30dbp-8, -0x1.096238830981ep-6);
    p = rp__v_step3_f64(p, t, 0x1.3079edf61f379p-5, -0x1.0fb06dfe52629p-4, 0x1.7fee004e14c1fp-4);
    p = rp__v_step3_f64(p, t, -0x1.9ddb23c3e8ba7p-4, 0x1.16ecefcfa52b4p-4, 0x1.f7f5df66fd729p-7);
    rp__vf64 u = rp__v_step_f64(p, t, -0x1.1df1ad154a28ep-3) * t, pl;
    p = u + 0x1.3ba5916e9fd7fp+0;
    pl = ((0x1.3ba5916e9fd7fp+0 - p) + u) - 0x1.a54f94b17660ap-55;
    i = f * i; /* 1 / d */
    rp__vf64 q = p * i;
    q = rp__v_fma_f64(rp__v_fma_f64(rp__v_neg_f64(q), d, p), i, q);
    rp__vf64 zl, z = rp__v_mul2_f64(a, a, &zl), r = rp__v_ln2_f64(rp__v_neg_f64(z), RP__MAGIC_F64 + 2046, &t);
    r = r - rp__v_fma_f64(rp__v_fma_f64(dl, q, rp__v_neg_f64(pl)), rp__v_splat_f64(0.83), zl);
    return rp__v_scale_f64(rp__v_fma_f64(q, rp__v_fma_f64(r * r, rp__v_expq_f64(r), r), q), t);
}
/* Below 0.8 from erf: the subtraction is exact for erf >= 1/2. */
RP__VMATH_FN rp__vf64 rp__v_erfc_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_lesser_f64(rp__v_splat_f64(27.5), rp__v_abs_f64(x));
    rp__vf64 big = rp__v_erfc_big_f64(rp__v_greater_f64(rp__v_splat_f64(0.8), a));
    big = rp__v_sel_f64(x < 0.0, 2.0 - big, big);
    return rp__v_sel_f64(a < 0.8, 1.0 - rp__v_erf_small_f64(x), big);
}
/* f32, in f64: e^(-a^2) P(t), t = (a - 2.5) / (a + 2.5); i = 1 / (a + 2.5), and a <= 11. */
RP__VEC_FN rp__vf64 rp__v_erfc_short_f64(rp__vf64 a, rp__vf64 i) {
    rp__vf64 t = (a - 2.5) * i;
    rp__vf64 p = rp__v_step_f64(rp__v_splat_f64(0x1.24ef00ae5ec1ep-22), t, 0x1.bf27a0b0e1e6cp-18);
    p = rp__v_step3_f64(p, t, 0x1.029dc15583e58p-16, -0x1.21fa7b0db3b4ap-15, -0x1.0adabd95b398p-13);
    p = rp__v_step3_f64(p, t, 0x1.dfbff85247fbdp-13, 0x1.cb022ccce6ddfp-11, -0x1.5a5a6f3613c76p-9);
    p = rp__v_step3_f64(p, t, -0x1.05ba34c564a82p-8, 0x1.470ba75ec14a8p-5, -0x1.001154b662a75p-3);
    p = rp__v_step3_f64(p, t, 0x1.01c11a6dcfbb9p-2, -0x1.7ca88deaeba74p-2, 0x1.afbb3f3b7e6e8p-3);
    return p * rp__v_exp_short_f64(rp__v_neg_f64(a * a), 0);
}
RP__VMATH_FN rp__vf32 rp__v_erfc_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_lesser_f32(rp__v_splat_f32(11.0f), rp__v_abs_f32(x));
    rp__vf64 a0 = rp__v_lo_f64_f32(a), a1 = rp__v_hi_f64_f32(a), i0 = a0 + 2.5, i1 = a1 + 2.5;
    rp__v_invert_f64(&i0, &i1);
    a0 = rp__v_erfc_short_f64(a0, i0);
    a1 = rp__v_erfc_short_f64(a1, i1);
    return rp__v_f32_f64(rp__v_sel_f64(rp__v_lo_f64_f32(x) < 0.0, 2.0 - a0, a0),
                         rp__v_sel_f64(rp__v_hi_f64_f32(x) < 0.0, 2.0 - a1, a1));
}
/* As f32: above 0.85, 1 - e^-v, v = x + x G(x). */
RP__VMATH_FN rp__vf64 rp__v_erf_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_lesser_f64(rp__v_splat_f64(6.0), rp__v_abs_f64(x));
    rp__vf64 p = rp__v_step3_f64(rp__v_splat_f64(0x1.8152c5c71ca64p-43), a, -0x1.33704f8f85843p-37,
                                 0x1.cc0ff476217dbp-33, -0x1.ad5f869d354c3p-29);
    p = rp__v_step3_f64(p, a, 0x1.18353fdfc99ffp-25, -0x1.0f663842d0ac4p-22, 0x1.932c2b690ece5p-20);
    p = rp__v_step3_f64(p, a, -0x1.d221d927412bbp-18, 0x1.a1a7e312cb38p-16, -0x1.1736931c26d7bp-14);
    p = rp__v_step3_f64(p, a, 0x1.e23e38ef2782ap-14, -0x1.f2505fb1c8edbp-16, -0x1.1bbbf2cead03p-11);
    p = rp__v_step3_f64(p, a, 0x1.b3baa65330c94p-10, -0x1.9068520929db7p-13, -0x1.3985203a8235dp-6);
    p = rp__v_step3_f64(p, a, 0x1.a4f7068a03f77p-4, 0x1.45f2fae671302p-1, 0x1.06ebac0db1a84p-3);
    rp__vf64 t, v = rp__v_expr_f64(rp__v_neg_f64(rp__v_fma_f64(a, p, a)), RP__MAGIC_F64 + 1023, &t);
    rp__vf64 big = 1.0 - v * (rp__vf64)((rp__vu64)t << 52);
    return rp__v_copysign_f64(rp__v_sel_f64(a < 0.85, rp__v_erf_small_f64(a), big), x);
}

/* ---- power -------------------------------------------------------------------------------------------------------
 * x^y = 2^(y log2 |x|) with log2 |x| as hi + lo to about 2^-65 (double-double with Dekker's products), then signs and
 * special values of C's Annex F. f32 takes both from shorter polynomials in f64. */

/* 2^(hi + lo) with the special values of pow(x, y); the exponent is replaced where |x| is 0 or infinite, y infinite. */
RP__VEC_FN rp__vf64 rp__v_powexp_f64(rp__vf64 x, rp__vf64 y, rp__vf64 hi, rp__vf64 lo) {
    const double magic = RP__MAGIC_F64 + 2046, inf = __builtin_inf();
    rp__vf64 a = rp__v_abs_f64(x), b = rp__v_abs_f64(y);
    rp__vi64 edge = (a == 0.0) | (a == inf) | (b == inf);
    /* sign of log2 |x| times the sign of y: +-2000 stands for overflow and underflow */
    rp__vf64 way = rp__v_copysign_f64(rp__v_splat_f64(2000.0), (rp__vf64)((rp__vi64)(a - 1.0) ^ (rp__vi64)y));
    hi = rp__v_sel_f64(edge, way, hi);
    hi = rp__v_greater_f64(rp__v_splat_f64(-2000.0), rp__v_lesser_f64(rp__v_splat_f64(2000.0), hi));
    lo = (rp__vf64)((rp__vi64)lo & (rp__v_abs_f64(hi) < 2000.0));
    rp__vf64 t = hi + magic;
    rp__vf64 r = (hi - (t - magic)) + lo;
    rp__vf64 v = rp__v_scale_f64(rp__v_exp2p_f64(r), t);
    rp__vf64 half = 0.5 * y;
    rp__vi64 whole = rp__v_rint_f64(y) == y;
    rp__vi64 odd = whole & (b < 0x1p53) & (rp__v_rint_f64(half) != half);
    v = (rp__vf64)((rp__vi64)v ^ ((rp__vi64)x & odd & INT64_MIN));
    v = rp__v_sel_f64((x < 0.0) & (a < inf) & ~whole, rp__v_splat_f64(__builtin_nan("")), v);
    v = rp__v_sel_f64((x != x) | (y != y), x + y, v);
    return rp__v_sel_f64((x == 1.0) | (y == 0.0) | ((a == 1.0) & (b == inf)), rp__v_splat_f64(1.0), v);
}
RP__VMATH_FN rp__vf64 rp__v_pow_f64(rp__vf64 x, rp__vf64 y) {
    rp__vf64 k, m = rp__v_frexp_f64(rp__v_abs_f64(x), &k);
    rp__vf64 f = m - 1.0, g = m + 1.0, gb = g - m, gl = (m - (g - gb)) + (1.0 - gb);
    /* s = f / g as s + sl */
    rp__vf64 i = 1.0 / g, s = f * i;
    rp__vf64 sl = rp__v_fma_f64(rp__v_neg_f64(s), gl, rp__v_fma_f64(rp__v_neg_f64(s), g, f)) * i;
    /* z = s^2 as z + zl; 1 + z / 3 + z^2 P(z) as q + ql */
    rp__vf64 zl, z = rp__v_mul2_f64(s, s, &zl);
    zl = rp__v_fma_f64(s + s, sl, zl);
    rp__vf64 p = rp__v_step2_f64(rp__v_splat_f64(0x1.eac64a5818e99p-5), z, 0x1.de3d61d8b4d29p-5, 0x1.11206f7bad568p-4);
    p = rp__v_step3_f64(p, z, 0x1.3b1364c7ba9abp-4, 0x1.745d18295a67dp-4, 0x1.c71c71c5968bdp-4);
    p = rp__v_step2_f64(p, z, 0x1.2492492492f51p-3, 0x1.9999999999996p-3) * z * z;
    rp__vf64 ul, u = rp__v_mul2_f64(z, rp__v_splat_f64(0x1.5555555555555p-2), &ul);
    ul = rp__v_fma_f64(z, rp__v_splat_f64(0x1.5555555555555p-56), ul);
    ul = rp__v_fma_f64(zl, rp__v_splat_f64(0x1.5555555555555p-2), ul);
    rp__vf64 w = u + p, wl = ((u - w) + p) + ul;
    rp__vf64 q = 1.0 + w, ql = ((1.0 - q) + w) + wl;
    /* log2 m = (2 / ln2) s q, then k and the product with y */
    rp__vf64 al, a = rp__v_mul2_f64(s, rp__v_splat_f64(0x1.71547652b82fep+1), &al);
    al = rp__v_fma_f64(s, rp__v_splat_f64(0x1.777d0ffda0d24p-55), al);
    al = rp__v_fma_f64(sl, rp__v_splat_f64(0x1.71547652b82fep+1), al);
    rp__vf64 ll, l = rp__v_mul2_f64(a, q, &ll);
    ll = rp__v_fma_f64(a, ql, rp__v_fma_f64(al, q, ll));
    rp__vf64 h = k + l, hl = ((k - h) + l) + ll;
    rp__vf64 el, e = rp__v_mul2_f64(y, h, &el);
    return rp__v_powexp_f64(x, y, e, rp__v_fma_f64(y, hl, el));
}
/* a^y of values that were f32, a > 0; what f32 does not hold ends beyond 2^300. */
RP__VEC_FN rp__vf64 rp__v_pow_short_f64(rp__vf64 a, rp__vf64 y) {
    rp__vu64 u = (rp__vu64)a + (0x3ff0000000000000 - 0x3fe5555555555555); /* a = 2^k (1 + f), 1 + f in [2/3, 4/3) */
    rp__vf64 k = (rp__vf64)(u >> 52 | 0x4330000000000000) - (0x1p52 + 1023);
    rp__vf64 f = (rp__vf64)((u & 0xfffffffffffff) + 0x3fe5555555555555) - 1.0;
    rp__vf64 p = rp__v_step_f64(rp__v_splat_f64(0x1.14feb908cbb7fp-3), f, -0x1.1e4cf2885796fp-3);
    p = rp__v_step3_f64(p, f, 0x1.5b21bb1aba57bp-4, -0x1.7b194a801d42bp-4, 0x1.cc09b3c1ca3bep-4);
    p = rp__v_step3_f64(p, f, -0x1.f110faefd609cp-4, 0x1.0c6b8e174be8cp-3, -0x1.27531273bcc5ep-3);
    p = rp__v_step3_f64(p, f, 0x1.484ce86897159p-3, -0x1.7155ac41eec55p-3, 0x1.a6175875291f7p-3);
    p = rp__v_step3_f64(p, f, -0x1.ec70983759761p-3, 0x1.2776c51d24579p-2, -0x1.7154765868f92p-2);
    p = rp__v_step3_f64(p, f, 0x1.ec709dc39127bp-2, -0x1.71547652b67cep-1, 0x1.71547652b8309p+0);
    rp__vf64 e = rp__v_fma_f64(f, p, k) * y;
    e = rp__v_greater_f64(rp__v_splat_f64(-300.0), rp__v_lesser_f64(rp__v_splat_f64(300.0), e));
    rp__vf64 t = e + RP__MAGIC_F64, r = e - (t - RP__MAGIC_F64);
    p = rp__v_step_f64(rp__v_splat_f64(0x1.66c17c1ba62bbp-20), r, 0x1.00e5d9e934bfbp-16);
    p = rp__v_step3_f64(p, r, 0x1.4308362a05745p-13, 0x1.5d873e4c23ebep-10, 0x1.3b2ab55cde4d7p-7);
    p = rp__v_step3_f64(p, r, 0x1.c6b08dd39ffd5p-5, 0x1.ebfbdffb703bcp-3, 0x1.62e42fef89a08p-1);
    return rp__v_shift_f64(rp__v_step_f64(p, r, 1.0), t);
}
RP__VMATH_RARE rp__vf32 rp__v_pow_far_f32(rp__vf32 x, rp__vf32 y, rp__vf32 v) {
    const float inf = __builtin_inff();
    rp__vf32 a = rp__v_abs_f32(x), b = rp__v_abs_f32(y), half = 0.5f * y;
    rp__vi32 edge = (a == 0.0f) | (a == inf) | (b == inf);
    rp__vi32 down = ((rp__vi32)(a - 1.0f) ^ (rp__vi32)y) < 0; /* the sign of log |x| is not that of y */
    v = rp__v_sel_f32(edge, rp__v_sel_f32(down, (rp__vf32){0}, rp__v_splat_f32(inf)), v);
    rp__vi32 whole = rp__v_rint_f32(y) == y, odd = whole & (b < 0x1p24f) & (rp__v_rint_f32(half) != half);
    v = (rp__vf32)((rp__vi32)v ^ ((rp__vi32)x & odd & INT32_MIN));
    v = rp__v_sel_f32((x < 0.0f) & (a < inf) & ~whole, rp__v_splat_f32(__builtin_nanf("")), v);
    v = rp__v_sel_f32((x != x) | (y != y), x + y, v);
    return rp__v_sel_f32((x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (b == inf)), rp__v_splat_f32(1.0f), v);
}
RP__VMATH_FN rp__vf32 rp__v_pow_f32(rp__vf32 x, rp__vf32 y) {
    const float inf = __builtin_inff();
    rp__vf32 a = rp__v_abs_f32(x);
    rp__vf32 v = rp__v_f32_f64(rp__v_pow_short_f64(rp__v_lo_f64_f32(a), rp__v_lo_f64_f32(y)),
                               rp__v_pow_short_f64(rp__v_hi_f64_f32(a), rp__v_hi_f64_f32(y)));
    rp__vi32 plain = (x > 0.0f) & (x < inf) & (rp__v_abs_f32(y) < inf);
    if (__builtin_expect(!rp__v_all_i32(plain), 0)) return rp__v_pow_far_f32(x, y, v);
    return v;
}

/* ---- hyperbolic sine and cosine: E = e^|x| / 2, E -+ 1 / (4 E); an odd polynomial for the sine below 1 --------------- */

RP__VMATH_FN rp__vf64 rp__v_sinh_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_abs_f64(x), z = a * a, e = rp__v_exp2k_f64(a, -1);
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.d27eab782f5b4p-48), z, 0x1.a6661a44c05f3p-41, 0x1.61314c562f561p-33);
    p = rp__v_step3_f64(p, z, 0x1.ae644123cd848p-26, 0x1.71de3a68cf7cdp-19, 0x1.a01a01a00736p-13);
    p = rp__v_step2_f64(p, z, 0x1.111111111119bp-7, 0x1.5555555555555p-3);
    return rp__v_copysign_f64(rp__v_sel_f64(a < 1.0, a + a * (z * p), e - 0.25 / e), x);
}
/* f32: e = e^a / 2, i = 1 / e. */
RP__VEC_FN rp__vf64 rp__v_sinh_short_f64(rp__vf64 a, rp__vf64 e, rp__vf64 i) {
    rp__vf64 z = a * a;
    rp__vf64 p = rp__v_step_f64(rp__v_splat_f64(0x1.b68b4bc1eb1dfp-26), z, 0x1.71cc701d763c1p-19);
    p = rp__v_step3_f64(p, z, 0x1.a01a24bf20416p-13, 0x1.111110f2ea05cp-7, 0x1.5555555576cc7p-3);
    return rp__v_sel_f64(a < 1.0, a * rp__v_step_f64(p, z, 1.0), e - 0.25 * i);
}
RP__VMATH_FN rp__vf32 rp__v_sinh_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_lesser_f32(rp__v_splat_f32(100.0f), rp__v_abs_f32(x));
    rp__vf64 a0 = rp__v_lo_f64_f32(a), a1 = rp__v_hi_f64_f32(a);
    rp__vf64 e0 = rp__v_exp_short_f64(a0, 1), e1 = rp__v_exp_short_f64(a1, 1), i0 = e0, i1 = e1;
    rp__v_invert_f64(&i0, &i1);
    return rp__v_copysign_f32(rp__v_f32_f64(rp__v_sinh_short_f64(a0, e0, i0), rp__v_sinh_short_f64(a1, e1, i1)), x);
}
RP__VMATH_FN rp__vf64 rp__v_cosh_f64(rp__vf64 x) {
    rp__vf64 e = rp__v_exp2k_f64(rp__v_abs_f64(x), -1);
    return e + 0.25 / e;
}
RP__VMATH_FN rp__vf32 rp__v_cosh_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_lesser_f32(rp__v_splat_f32(100.0f), rp__v_abs_f32(x));
    rp__vf64 e0 = rp__v_exp_short_f64(rp__v_lo_f64_f32(a), 1), e1 = rp__v_exp_short_f64(rp__v_hi_f64_f32(a), 1);
    rp__vf64 i0 = e0, i1 = e1;
    rp__v_invert_f64(&i0, &i1);
    return rp__v_f32_f64(e0 + 0.25 * i0, e1 + 0.25 * i1);
}

/* ---- inverse trigonometry ----------------------------------------------------------------------------------------- */

/* atan(n / d) for n, d >= 0: n / d, (n - d) / (n + d) or -d / n, whichever lies within tan(pi/8), from 0, pi/4 or pi/2. */
RP__VEC_FN rp__vf64 rp__v_atan_ratio_f64(rp__vf64 n, rp__vf64 d) {
    rp__vi64 steep = n > d * 0x1.3504f333f9de6p+1, mid = (n > d * 0x1.a827999fcef32p-2) & ~steep;
    rp__vf64 top = rp__v_sel_f64(steep, rp__v_neg_f64(d), rp__v_sel_f64(mid, n - d, n));
    rp__vf64 low = rp__v_sel_f64(steep, n, rp__v_sel_f64(mid, n + d, d)), t = top / low, z = t * t;
    /* what n - d and n + d lost */
    rp__vf64 v = top - n, w = low - n, tl = (n - (top - v)) - (d + v), ll = (n - (low - w)) + (d - w);
    tl = (rp__vf64)((rp__vi64)((tl - t * ll) / low) & mid);
    rp__vf64 p = rp__v_step2_f64(rp__v_splat_f64(-0x1.2ad466d1d9585p-7), z, 0x1.9edb3cd66d2fp-6, -0x1.3aeef5ca45bdbp-5);
    p = rp__v_step3_f64(p, z, 0x1.7c8de87f2a41fp-5, -0x1.ada132cb56d12p-5, 0x1.e1b5ec6e8f033p-5);
    p = rp__v_step3_f64(p, z, -0x1.110f55641a655p-4, 0x1.3b1398fd8c39bp-4, -0x1.745d16616e41fp-4);
    p = rp__v_step3_f64(p, z, 0x1.c71c71c1b942ap-4, -0x1.2492492488b68p-3, 0x1.9999999999888p-3);
    p = t * (z * rp__v_step_f64(p, z, -0x1.5555555555555p-2));
    rp__vf64 hi = (rp__vf64)((steep & (rp__vi64)rp__v_splat_f64(0x1.921fb54442d18p+0)) |
                             (mid & (rp__vi64)rp__v_splat_f64(0x1.921fb54442d18p-1)));
    return hi + (t + rp__v_fma_f64(hi, rp__v_splat_f64(0x1.678afae35cdd1p-55), p + tl));
}
RP__VMATH_FN rp__vf64 rp__v_atan_f64(rp__vf64 x) {
    return rp__v_copysign_f64(rp__v_atan_ratio_f64(rp__v_abs_f64(x), rp__v_splat_f64(1.0)), x);
}
/* f32: of the smaller over the larger, t <= 1, from 0 or from pi/2. */
RP__VEC_FN rp__vf32 rp__v_atan_of_f32(rp__vf32 t, rp__vi32 steep) {
    rp__vf32 z = t * t;
    rp__vf32 p = rp__v_step_f32(z, rp__v_splat_f32(-0x1.d35cd4p-10f), 0x1.6425c8p-7f);
    p = rp__v_step_f32(p, z, -0x1.fd7e9p-6f);
    p = rp__v_step_f32(p, z, 0x1.da2a28p-5f);
    p = rp__v_step_f32(p, z, -0x1.58091ep-4f);
    p = rp__v_step_f32(p, z, 0x1.c08c4ep-4f);
    p = rp__v_step_f32(p, z, -0x1.242086p-3f);
    p = rp__v_step_f32(p, z, 0x1.9991e4p-3f);
    p = rp__v_step_f32(p, z, -0x1.55553ep-2f);
    p = rp__v_fma_f32(t * z, p, t);
    return rp__v_sel_f32(steep, 0x1.921fb6p+0f - (p + 0x1.777a5cp-25f), p);
}
RP__VMATH_FN rp__vf32 rp__v_atan_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_abs_f32(x), one = rp__v_splat_f32(1.0f);
    rp__vi32 steep = a > 1.0f;
    return rp__v_copysign_f32(rp__v_atan_of_f32(rp__v_sel_f32(steep, one, a) / rp__v_sel_f32(steep, a, one), steep), x);
}
/* Large operands are scaled so that n + d stays finite; 0 / 0 counts as 0 / 1, inf / inf as 1 / 1. */
RP__VMATH_FN rp__vf64 rp__v_atan2_f64(rp__vf64 y, rp__vf64 x) {
    const double inf = __builtin_inf();
    rp__vf64 n = rp__v_abs_f64(y), d = rp__v_abs_f64(x), one = rp__v_splat_f64(1.0);
    rp__vf64 scale = rp__v_sel_f64((n > 0x1p1000) | (d > 0x1p1000), rp__v_splat_f64(0x1p-20), one);
    rp__vi64 both = (n == inf) & (d == inf);
    rp__vf64 a = rp__v_sel_f64(both, one, n * scale);
    rp__vf64 b = rp__v_sel_f64(both | ((n == 0.0) & (d == 0.0)), one, d * scale);
    rp__vf64 r = rp__v_atan_ratio_f64(a, b);
    r = rp__v_sel_f64((rp__vi64)x < 0, 0x1.921fb54442d18p+1 - (r - 0x1.1a62633145c07p-53), r);
    r = rp__v_sel_f64((x != x) | (y != y), x + y, r);
    return rp__v_copysign_f64(r, y);
}
RP__VMATH_FN rp__vf32 rp__v_atan2_f32(rp__vf32 y, rp__vf32 x) {
    rp__vf32 n = rp__v_abs_f32(y), d = rp__v_abs_f32(x);
    rp__vi32 steep = n > d;
    rp__vf32 less = rp__v_sel_f32(steep, d, n), more = rp__v_sel_f32(steep, n, d), t = less / more;
    t = rp__v_sel_f32(more == 0.0f, less, rp__v_sel_f32(less == __builtin_inff(), rp__v_splat_f32(1.0f), t));
    rp__vf32 r = rp__v_atan_of_f32(t, steep);
    r = rp__v_sel_f32((rp__vi32)x < 0, 0x1.921fb6p+1f - (r + 0x1.777a5cp-24f), r);
    return rp__v_copysign_f32(rp__v_sel_f32((x != x) | (y != y), x + y, r), y);
}

/* asin and acos above 1/2 by asin a = pi/2 - 2 asin s, s = sqrt((1 - a) / 2), s kept as f + c. */
RP__VEC_FN rp__vf64 rp__v_asin_parts_f64(rp__vf64 a, rp__vi64 small, rp__vf64 *f, rp__vf64 *c) {
    rp__vf64 z = rp__v_sel_f64(small, a * a, 0.5 - 0.5 * a);
    rp__vf64 s = rp__v_sel_f64(small, a, rp__v_sqrt_f64(z));
    rp__vf64 p = rp__v_step2_f64(rp__v_splat_f64(0x1.134f34b4e258ap-5), z, -0x1.ab56a29d45156p-6, 0x1.95dd1056b257fp-6);
    p = rp__v_step3_f64(p, z, 0x1.7360a229b6af4p-11, 0x1.47bacd28519c7p-7, 0x1.36d401915a10fp-7);
    p = rp__v_step3_f64(p, z, 0x1.7ba19b113a0f9p-7, 0x1.c98128f04c58bp-7, 0x1.1c4f82ba21a61p-6);
    p = rp__v_step3_f64(p, z, 0x1.6e8b9b169486cp-6, 0x1.f1c71ca6f43dp-6, 0x1.6db6db6d4c2c3p-5);
    p = rp__v_step2_f64(p, z, 0x1.33333333339eap-4, 0x1.5555555555553p-3);
    /* what the root lost, by 1 / s within an eighth, from the bits */
    *f = s;
    *c = rp__v_fma_f64(rp__v_neg_f64(s), s, z) * (0.5 * (rp__vf64)(0x7fde5f73aabb2400 - (rp__vu64)s));
    return s * (z * p);
}
RP__VMATH_FN rp__vf64 rp__v_asin_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_abs_f64(x), f, c;
    rp__vi64 small = a <= 0.5;
    rp__vf64 p = rp__v_asin_parts_f64(a, small, &f, &c);
    rp__vf64 h = 0x1.921fb54442d18p+0 - 2.0 * f, lost = (0x1.921fb54442d18p+0 - h) - 2.0 * f;
    rp__vf64 big = h + ((lost + 0x1.1a62633145c07p-54) - 2.0 * (c + p));
    return rp__v_copysign_f64(rp__v_sel_f64(small, a + p, big), x);
}
/* f32: (asin s) / s - 1 of the same s. */
RP__VEC_FN rp__vf32 rp__v_asin_parts_f32(rp__vf32 a, rp__vi32 small, rp__vf32 *s) {
    rp__vf32 z = rp__v_sel_f32(small, a * a, 0.5f - 0.5f * a);
    *s = rp__v_sel_f32(small, a, rp__v_sqrt_f32(z));
    rp__vf32 p = rp__v_step_f32(z, rp__v_splat_f32(0x1.595d0ap-5f), 0x1.8c3dcep-6f);
    p = rp__v_step_f32(p, z, 0x1.747bbep-5f);
    p = rp__v_step_f32(p, z, 0x1.330204p-4f);
    p = rp__v_step_f32(p, z, 0x1.5555c8p-3f);
    return z * p;
}
RP__VMATH_FN rp__vf32 rp__v_asin_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_abs_f32(x), s;
    rp__vi32 small = a <= 0.5f;
    rp__vf32 p = rp__v_asin_parts_f32(a, small, &s);
    rp__vf32 big = (0x1.921fb6p+0f - (s + s)) - rp__v_fma_f32(s + s, p, rp__v_splat_f32(0x1.777a5cp-25f));
    return rp__v_copysign_f32(rp__v_sel_f32(small, rp__v_fma_f32(s, p, s), big), x);
}
RP__VMATH_FN rp__vf64 rp__v_acos_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_abs_f64(x), f, c;
    rp__vi64 small = a <= 0.5;
    rp__vf64 p = rp__v_asin_parts_f64(a, small, &f, &c);
    rp__vf64 mid = 0x1.921fb54442d18p+0 - (x - (0x1.1a62633145c07p-54 - rp__v_copysign_f64(p, x)));
    rp__vf64 pos = 2.0 * f + 2.0 * (c + p);
    rp__vf64 h = 0x1.921fb54442d18p+1 - 2.0 * f, lost = (0x1.921fb54442d18p+1 - h) - 2.0 * f;
    rp__vf64 neg = h + ((lost + 0x1.1a62633145c07p-53) - 2.0 * (c + p));
    return rp__v_sel_f64(small, mid, rp__v_sel_f64(x < 0.0, neg, pos));
}
RP__VMATH_FN rp__vf32 rp__v_acos_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_abs_f32(x), s;
    rp__vi32 small = a <= 0.5f;
    rp__vf32 p = rp__v_asin_parts_f32(a, small, &s), r = rp__v_fma_f32(s, p, s);
    rp__vf32 mid = 0x1.921fb6p+0f - (x + rp__v_fma_f32(x, p, rp__v_splat_f32(0x1.777a5cp-25f)));
    rp__vf32 neg = 0x1.921fb6p+1f - (r + r + 0x1.777a5cp-24f);
    return rp__v_sel_f32(small, mid, rp__v_sel_f32(x < 0.0f, neg, r + r));
}

/* ---- fmod, remainder: exact ---------------------------------------------------------------------------------------- */

/* Long division of one lane in integers, eleven quotient bits a step. */
static __attribute__((unused, noinline)) double rp__v_fmod_lane(double x, double y) {
    union {
        double f;
        uint64_t u;
    } a = {x}, b = {y};
    uint64_t sign = a.u & 0x8000000000000000, ax = a.u ^ sign, ay = b.u & 0x7fffffffffffffff;
    if (ay == 0 || ay > 0x7ff0000000000000 || ax >= 0x7ff0000000000000) return __builtin_nan("");
    if (ax < ay) return x;
    int ex = (int)(ax >> 52), ey = (int)(ay >> 52);
    uint64_t r = ax & 0xfffffffffffff, m = ay & 0xfffffffffffff;
    if (ex)
        r |= 0x10000000000000; /* subnormals: no implicit bit, and the exponent of the first binade */
    else
        ex = 1;
    if (ey)
        m |= 0x10000000000000;
    else
        ey = 1;
    r %= m;
    for (int n = ex - ey; n > 0 && r; n -= 11) r = (r << (n < 11 ? n : 11)) % m;
    b.u = ey > 52 ? (uint64_t)(ey - 52) << 52 : (uint64_t)1 << (ey - 1); /* 2^(ey - 1075) */
    a.f = (double)(int64_t)r * b.f;
    a.u |= sign;
    return a.f;
}
/* C's fmod and torch.fmod: the sign of x. Of a quotient below 2^52 the whole part is at most one too large, since the division may
 * round up, and then what is left is exact, with fma. */
RP__VMATH_FN rp__vf64 rp__v_fmod_f64(rp__vf64 x, rp__vf64 y) {
    rp__vf64 a = rp__v_abs_f64(x), b = rp__v_abs_f64(y), q = a / b;
    rp__vi64 slow = ~((q < 0x1p52) & (b < __builtin_inf()));
    rp__vf64 r = rp__v_fma_f64(rp__v_neg_f64(rp__v_floor_f64(q)), b, a);
    r = rp__v_copysign_f64(rp__v_sel_f64(r < 0.0, r + b, r), x);
    if (__builtin_expect(rp__v_any_i64(slow), 0)) {
        for (size_t i = 0; i < RP_VEC_F64; i++) {
            if (slow[i]) r[i] = rp__v_fmod_lane(x[i], y[i]);
        }
    }
    return r;
}
/* Values that were f32: with a quotient below 2^28 the product q y is exact without it. */
RP__VEC_FN rp__vf64 rp__v_fmod_short_f64(rp__vf64 x, rp__vf64 y) {
    rp__vf64 a = rp__v_abs_f64(x), b = rp__v_abs_f64(y), q = a / b;
    rp__vi64 slow = ~((q < 0x1p28) & (b < __builtin_inf()));
    rp__vf64 r = a - rp__v_floor_f64(q) * b;
    r = rp__v_copysign_f64(rp__v_sel_f64(r < 0.0, r + b, r), x);
    if (__builtin_expect(rp__v_any_i64(slow), 0)) {
        for (size_t i = 0; i < RP_VEC_F64; i++) {
            if (slow[i]) r[i] = rp__v_fmod_lane(x[i], y[i]);
        }
    }
    return r;
}
RP__VMATH_FN rp__vf32 rp__v_fmod_f32(rp__vf32 x, rp__vf32 y) {
    return rp__v_f32_f64(rp__v_fmod_short_f64(rp__v_lo_f64_f32(x), rp__v_lo_f64_f32(y)),
                         rp__v_fmod_short_f64(rp__v_hi_f64_f32(x), rp__v_hi_f64_f32(y)));
}
/* torch.remainder (Python's %): the sign of y. Adding y rounds once, as PyTorch does. */
RP__VMATH_FN rp__vf32 rp__v_remainder_f32(rp__vf32 x, rp__vf32 y) {
    rp__vf32 r = rp__v_fmod_f32(x, y);
    return rp__v_sel_f32((r != 0.0f) & ((r < 0.0f) ^ (y < 0.0f)), r + y, r);
}
RP__VMATH_FN rp__vf64 rp__v_remainder_f64(rp__vf64 x, rp__vf64 y) {
    rp__vf64 r = rp__v_fmod_f64(x, y);
    return rp__v_sel_f64((r != 0.0) & ((r < 0.0) ^ (y < 0.0)), r + y, r);
}

/* ---- inverse hyperbolic functions: logarithms of what their inverses' formulas give -------------------------------- */

/* log1p(a + a^2 / (1 + sqrt(1 + a^2))); log a + ln2 where a^2 is far from 1 or overflows. */
RP__VMATH_FN rp__vf64 rp__v_asinh_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_abs_f64(x), z = a * a;
    rp__vi64 large = a > 0x1p28;
    rp__vf64 near = rp__v_log1p_f64(a + z / (1.0 + rp__v_sqrt_f64(1.0 + z)));
    return rp__v_copysign_f64(rp__v_sel_f64(large, rp__v_log_f64(a) + 0x1.62e42fefa39efp-1, near), x);
}
RP__VMATH_FN rp__vf32 rp__v_asinh_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_abs_f32(x), z = a * a;
    rp__vf32 near = rp__v_log1p_f32(a + z / (1.0f + rp__v_sqrt_f32(1.0f + z)));
    rp__vf32 far = rp__v_log_f32(a) + 0x1.62e43p-1f;
    return rp__v_copysign_f32(rp__v_sel_f32(a > 0x1p13f, far, near), x);
}
/* log1p(t + sqrt(2 t + t^2)), t = x - 1. */
RP__VMATH_FN rp__vf64 rp__v_acosh_f64(rp__vf64 x) {
    rp__vf64 t = x - 1.0;
    rp__vi64 large = x > 0x1p28;
    rp__vf64 near = rp__v_log1p_f64(t + rp__v_sqrt_f64(2.0 * t + t * t));
    near = rp__v_sel_f64(large, rp__v_log_f64(x) + 0x1.62e42fefa39efp-1, near);
    return rp__v_sel_f64(x < 1.0, rp__v_splat_f64(__builtin_nan("")), near);
}
RP__VMATH_FN rp__vf32 rp__v_acosh_f32(rp__vf32 x) {
    rp__vf32 t = x - 1.0f, near = rp__v_log1p_f32(t + rp__v_sqrt_f32(rp__v_fma_f32(t, t, t + t)));
    near = rp__v_sel_f32(x > 0x1p13f, rp__v_log_f32(x) + 0x1.62e43p-1f, near);
    return rp__v_sel_f32(x < 1.0f, rp__v_splat_f32(__builtin_nanf("")), near);
}
/* log1p(2 a / (1 - a)) / 2. */
RP__VMATH_FN rp__vf64 rp__v_atanh_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_abs_f64(x);
    rp__vf64 y = 0.5 * rp__v_log1p_f64((a + a) / (1.0 - a));
    return rp__v_copysign_f64(rp__v_sel_f64(a < 0x1p-60, a, rp__v_sel_f64(a > 1.0, (a - a) / (a - a), y)), x);
}
RP__VMATH_FN rp__vf32 rp__v_atanh_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_abs_f32(x), y = 0.5f * rp__v_log1p_f32((a + a) / (1.0f - a));
    return rp__v_copysign_f32(rp__v_sel_f32(a < 0x1p-24f, a, rp__v_sel_f32(a > 1.0f, (a - a) / (a - a), y)), x);
}

/* log x / ln 10, the product with the head of log x exact. */
RP__VMATH_FN rp__vf64 rp__v_log10_f64(rp__vf64 x) {
    rp__vf64 lo, y = rp__v_log2_raw_f64(x), hi = rp__v_mul2_f64(y, rp__v_splat_f64(0x1.34413509f79ffp-2), &lo);
    return rp__v_logfix_f64(x, hi + rp__v_fma_f64(y, rp__v_splat_f64(-0x1.9dc1da994fd21p-59), lo));
}
RP__VEC_FN rp__vf64 rp__v_log10p_f64(rp__vf64 f) {
    rp__vf64 p = rp__v_step_f64(rp__v_splat_f64(-0x1.7359f39e6ab98p-5), f, 0x1.852a88ccd1bb5p-5);
    p = rp__v_step3_f64(p, f, -0x1.138427a963031p-5, 0x1.307d857649d93p-5, -0x1.659c7474214c5p-5);
    p = rp__v_step3_f64(p, f, 0x1.8cca938b6247bp-5, -0x1.bca1f8136ee62p-5, 0x1.fc3085f588256p-5);
    p = rp__v_step3_f64(p, f, -0x1.287ab78e09d12p-4, 0x1.63c64bd6f58eep-4, -0x1.bcb7b0a642565p-4);
    return rp__v_step3_f64(p, f, 0x1.287a7616443e1p-3, -0x1.bcb7b152af883p-3, 0x1.bcb7b15273196p-2);
}
RP__VMATH_LOGARITHM(log10, 0x1.34413509f79ffp-2)

/* sqrt(a^2 + b^2); infinite where one of them is, whatever the other. Squares that would leave the range: of scaled operands. */
RP__VMATH_RARE rp__vf64 rp__v_hypot_far_f64(rp__vf64 a, rp__vf64 b, rp__vf64 m) {
    const double inf = __builtin_inf();
    rp__vf64 by = rp__v_sel_f64(m < 0x1p500, rp__v_splat_f64(0x1p600), rp__v_splat_f64(0x1p-600));
    by = rp__v_sel_f64((m < 0x1p500) & (m > 0x1p-450), rp__v_splat_f64(1.0), by);
    rp__vf64 x = a * by, y = b * by, s = rp__v_sqrt_f64(rp__v_fma_f64(x, x, y * y)) / by;
    s = rp__v_sel_f64((a != a) | (b != b), a + b, s);
    return rp__v_sel_f64((a == inf) | (b == inf), rp__v_splat_f64(inf), s);
}
RP__VMATH_FN rp__vf64 rp__v_hypot_f64(rp__vf64 x, rp__vf64 y) {
    rp__vf64 a = rp__v_abs_f64(x), b = rp__v_abs_f64(y), m = rp__v_greater_f64(a, b);
    rp__vi64 near = (a < 0x1p500) & (b < 0x1p500) & (m > 0x1p-450);
    if (__builtin_expect(!rp__v_all_i64(near), 0)) return rp__v_hypot_far_f64(a, b, m);
    return rp__v_sqrt_f64(rp__v_fma_f64(a, a, b * b));
}
/* Squares of f32 are exact in f64, and neither overflow nor underflow. */
RP__VEC_FN rp__vf64 rp__v_hypot_short_f64(rp__vf64 x, rp__vf64 y) { return rp__v_sqrt_f64(x * x + y * y); }
RP__VMATH_FN rp__vf32 rp__v_hypot_f32(rp__vf32 x, rp__vf32 y) {
    const float inf = __builtin_inff();
    rp__vf32 s = rp__v_f32_f64(rp__v_hypot_short_f64(rp__v_lo_f64_f32(x), rp__v_lo_f64_f32(y)),
                               rp__v_hypot_short_f64(rp__v_hi_f64_f32(x), rp__v_hi_f64_f32(y)));
    return rp__v_sel_f32((rp__v_abs_f32(x) == inf) | (rp__v_abs_f32(y) == inf), rp__v_splat_f32(inf), s);
}

/* The bits of a number count up away from zero. */
RP__VMATH_FN rp__vf32 rp__v_nextafter_f32(rp__vf32 x, rp__vf32 y) {
    rp__vi32 away = (x < y) ^ (x < 0.0f), step = (away & 1) | (~away & -1);
    rp__vf32 r = rp__v_sel_f32(x == 0.0f, rp__v_copysign_f32(rp__v_splat_f32(0x1p-149f), y),
                               (rp__vf32)((rp__vu32)x + (rp__vu32)step));
    return rp__v_sel_f32((x != x) | (y != y), x + y, rp__v_sel_f32(x == y, y, r));
}
RP__VMATH_FN rp__vf64 rp__v_nextafter_f64(rp__vf64 x, rp__vf64 y) {
    rp__vi64 away = (x < y) ^ (x < 0.0), step = (away & 1) | (~away & -1);
    rp__vf64 r = rp__v_sel_f64(x == 0.0, rp__v_copysign_f64(rp__v_splat_f64(0x1p-1074), y),
                               (rp__vf64)((rp__vu64)x + (rp__vu64)step));
    return rp__v_sel_f64((x != x) | (y != y), x + y, rp__v_sel_f64(x == y, y, r));
}

/* ---- inverse error function: x times a polynomial in w = -log(1 - x^2), from w = 5 on in its square root ------------- */

RP__VMATH_RARE rp__vf64 rp__v_erfinv_far_f64(rp__vf64 x, rp__vf64 w, rp__vf64 near) {
    rp__vf64 r = rp__v_sqrt_f64(w), t = r - 3.125, u = r - 5.0625;
    rp__vf64 p = rp__v_step_f64(rp__v_splat_f64(-0x1.fea768f31581p-26), t, 0x1.186067001d5cep-24);
    p = rp__v_step3_f64(p, t, 0x1.c35a6c26f6b83p-24, -0x1.360b855fb22a4p-21, 0x1.a23ec7a275a1cp-21);
    p = rp__v_step3_f64(p, t, 0x1.ef979563c7f9cp-21, -0x1.a6235e03da712p-18, 0x1.7e1f678eb900bp-17);
    p = rp__v_step3_f64(p, t, 0x1.262b62eb7b0a1p-19, -0x1.eda722492e97fp-15, 0x1.1d6dc5f92434p-13);
    p = rp__v_step3_f64(p, t, -0x1.779e1fcfbe4c4p-14, -0x1.58a081c545daep-12, 0x1.4a7a21a4252b6p-10);
    p = rp__v_step3_f64(p, t, -0x1.4a493bb166307p-9, 0x1.f1579baf8758ap-9, -0x1.5b6833321502p-8);
    p = rp__v_step3_f64(p, t, 0x1.cde3e114c75ecp-8, 0x1.00f3b54ba7ec8p+0, 0x1.7aaa3c1430b72p+1);
    rp__vf64 q =
        rp__v_step2_f64(rp__v_splat_f64(0x1.ff43744a41a8ap-36), u, 0x1.98b9b352c46e8p-38, -0x1.aa79568198181p-32);
    q = rp__v_step3_f64(q, u, 0x1.391514adf6c98p-30, -0x1.4caffe58b1e44p-29, 0x1.66168b27e8e77p-28);
    q = rp__v_step3_f64(q, u, -0x1.656b4b81785c2p-27, 0x1.5f79de481af73p-26, -0x1.c1105d2e6582p-25);
    q = rp__v_step3_f64(q, u, 0x1.a3ecfe533d82cp-23, -0x1.dc549ffbe0e78p-21, 0x1.142d76b64de66p-18);
    q = rp__v_step3_f64(q, u, -0x1.2f0bc801693f7p-16, 0x1.2607194a7df24p-14, -0x1.9cacac59eb15ep-13);
    q = rp__v_step3_f64(q, u, -0x1.73d5046ade6ffp-13, 0x1.02a1c126f26fdp+0, 0x1.3a6f678932e7fp+2);
    p = rp__v_sel_f64(w < 16.0, p, q);
    p = rp__v_sel_f64(rp__v_abs_f64(x) == 1.0, x * __builtin_inf(), x * p);
    return rp__v_sel_f64(w < 5.0, near, p);
}
RP__VMATH_FN rp__vf64 rp__v_erfinv_f64(rp__vf64 x) {
    rp__vf64 a = rp__v_abs_f64(x), w = rp__v_neg_f64(rp__v_log_f64((1.0 - a) * (1.0 + a))), t = w - 2.5;
    rp__vf64 p = rp__v_step3_f64(rp__v_splat_f64(0x1.efbafdf8f225bp-63), t, 0x1.7851f1349ebc7p-59,
                                 -0x1.03814c849c125p-55, -0x1.d53e3ba7e734dp-54);
    p = rp__v_step3_f64(p, t, 0x1.13fe7da71f31fp-49, -0x1.c92829db98d3p-49, -0x1.577e96f8e303bp-44);
    p = rp__v_step3_f64(p, t, 0x1.2e624e330498ap-41, 0x1.00c76aa345821p-40, -0x1.11a0894ea072ep-35);
    p = rp__v_step3_f64(p, t, 0x1.07038e45bcfccp-33, 0x1.f2cd2444b52ddp-31, -0x1.752fd117c0677p-27);
    p = rp__v_step3_f64(p, t, 0x1.ccff54364a381p-27, 0x1.01037e0dcbdfbp-21, -0x1.ca9227b23a598p-19);
    p = rp__v_step3_f64(p, t, -0x1.4f47fe6fa3973p-18, 0x1.c9b437ed03a1ap-13, -0x1.4863cdfb62687p-10);
    p = rp__v_step3_f64(p, t, -0x1.11c3c302dfb3cp-8, 0x1.f91e8993f0d17p-3, 0x1.805c5cfcedef5p+0);
    if (__builtin_expect(!rp__v_all_i64(w < 5.0), 0)) return rp__v_erfinv_far_f64(x, w, x * p);
    return x * p;
}
RP__VMATH_RARE rp__vf32 rp__v_erfinv_far_f32(rp__vf32 x, rp__vf32 w, rp__vf32 near) {
    rp__vf32 t = rp__v_sqrt_f32(w) - 3.0f;
    rp__vf32 p = rp__v_step_f32(t, rp__v_splat_f32(0x1.159fe6p-13f), -0x1.4fbb98p-12f);
    p = rp__v_step_f32(p, t, -0x1.5b4edep-14f);
    p = rp__v_step_f32(p, t, 0x1.884dc4p-10f);
    p = rp__v_step_f32(p, t, -0x1.d588acp-9f);
    p = rp__v_step_f32(p, t, 0x1.747b42p-8f);
    p = rp__v_step_f32(p, t, -0x1.f4c246p-8f);
    p = rp__v_step_f32(p, t, 0x1.35821p-7f);
    p = rp__v_step_f32(p, t, 0x1.006dcap+0f);
    p = rp__v_step_f32(p, t, 0x1.6a9efcp+1f);
    p = rp__v_sel_f32(rp__v_abs_f32(x) == 1.0f, x * __builtin_inff(), x * p);
    return rp__v_sel_f32(w < 5.0f, near, p);
}
RP__VMATH_FN rp__vf32 rp__v_erfinv_f32(rp__vf32 x) {
    rp__vf32 a = rp__v_abs_f32(x), w = -rp__v_log_f32((1.0f - a) * (1.0f + a)), t = w - 2.5f;
    rp__vf32 p = rp__v_step_f32(t, rp__v_splat_f32(-0x1.1b3112p-27f), 0x1.e39668p-26f);
    p = rp__v_step_f32(p, t, 0x1.ede988p-22f);
    p = rp__v_step_f32(p, t, -0x1.d8e44ap-19f);
    p = rp__v_step_f32(p, t, -0x1.4bc1acp-18f);
    p = rp__v_step_f32(p, t, 0x1.ca6364p-13f);
    p = rp__v_step_f32(p, t, -0x1.486702p-10f);
    p = rp__v_step_f32(p, t, -0x1.11c9a4p-8f);
    p = rp__v_step_f32(p, t, 0x1.f91e8ap-3f);
    p = rp__v_step_f32(p, t, 0x1.805c5ep+0f);
    if (__builtin_expect(!rp__v_all_i32(w < 5.0f), 0)) return rp__v_erfinv_far_f32(x, w, x * p);
    return x * p;
}

/* ---- gamma ----------------------------------------------------------------------------------------------------------
 * Below 8, x = y + n with y in [1, 2): log gamma x = (y - 1) (y - 2) P(y - 3/2) + log((x - 1) ... (x - n)), or less log x for
 * x < 1. Above, Stirling's series. Below 0 by the reflection log(pi / |sin pi x|) - log gamma(1 - x). */

RP__VEC_FN rp__vf64 rp__v_lgamma_near_f64(rp__vf64 x) {
    rp__vf64 y = x, product = rp__v_splat_f64(1.0);
    for (int k = 0; k < 6; k++) {
        rp__vi64 above = y >= 2.0;
        y = rp__v_sel_f64(above, y - 1.0, y);
        product = rp__v_sel_f64(above, product * y, product);
    }
    rp__vi64 below = y < 1.0;
    product = rp__v_sel_f64(below, y, product);
    rp__vf64 l = rp__v_log_f64(product);
    rp__vf64 one = rp__v_sel_f64(below, y, y - 1.0), two = rp__v_sel_f64(below, y - 1.0, y - 2.0);
    rp__vf64 t = rp__v_sel_f64(below, y - 0.5, y - 1.5);
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(0x1.9858464a84d77p-17), t, -0x1.3717b09ad8fbbp-16, 0x1.b93584a2f1b71p-17);
    p = rp__v_step3_f64(p, t, -0x1.6835d130778b9p-16, 0x1.691b57db5ebafp-15, -0x1.1cfc88c661791p-14);
    p = rp__v_step3_f64(p, t, 0x1.b9de062d4a11ep-14, -0x1.6184033baff8p-13, 0x1.1c7e804c78775p-12);
    p = rp__v_step3_f64(p, t, -0x1.cb5045a89197bp-12, 0x1.750a752779435p-11, -0x1.313e527c62449p-10);
    p = rp__v_step3_f64(p, t, 0x1.f814bad58739bp-10, -0x1.a503537a78254p-9, 0x1.64f0664bfec29p-8);
    p = rp__v_step3_f64(p, t, -0x1.34dbda12855fdp-7, 0x1.133423527f83ep-6, -0x1.007aa83cefa35p-5);
    p = rp__v_step3_f64(p, t, 0x1.01af62a2929bdp-4, -0x1.2aed059bd6085p-3, 0x1.eeb95b094c191p-2);
    return one * two * p + rp__v_sel_f64(below, rp__v_neg_f64(l), l);
}
/* x >= 8 */
RP__VEC_FN rp__vf64 rp__v_lgamma_far_f64(rp__vf64 x) {
    rp__vf64 i = 1.0 / x, z = i * i;
    rp__vf64 p =
        rp__v_step2_f64(rp__v_splat_f64(-0x1.e4286cb0f5398p-6), z, 0x1.a41a41a41a41ap-8, -0x1.f6ab0d9993c7dp-10);
    p = rp__v_step3_f64(p, z, 0x1.b951e2b18ff23p-11, -0x1.3813813813814p-11, 0x1.a01a01a01a01ap-11);
    p = rp__v_step2_f64(p, z, -0x1.6c16c16c16c17p-9, 0x1.5555555555555p-4);
    rp__vf64 l = rp__v_log_f64(x);
    return (x - 0.5) * (l - 1.0) + (0x1.acfe390c97d69p-2 + p * i);
}
/* pi (x - rint x), and its sine's magnitude is that of sin pi x. */
RP__VEC_FN rp__vf64 rp__v_turn_f64(rp__vf64 x) { return 0x1.921fb54442d18p+1 * (x - rp__v_rint_f64(x)); }
RP__VMATH_FN rp__vf64 rp__v_lgamma_f64(rp__vf64 x) {
    const double inf = __builtin_inf();
    rp__vi64 low = x < 0.0;
    rp__vf64 a = rp__v_sel_f64(low, 1.0 - x, x);
    rp__vf64 y = rp__v_sel_f64(a < 8.0, rp__v_lgamma_near_f64(rp__v_lesser_f64(a, rp__v_splat_f64(8.0))),
                               rp__v_lgamma_far_f64(rp__v_greater_f64(a, rp__v_splat_f64(8.0))));
    if (__builtin_expect(rp__v_any_i64(low), 0)) {
        rp__vf64 s = rp__v_abs_f64(rp__v_sin_f64(rp__v_turn_f64(x)));
        /* near 0, where 1 - x is 1, |x| is the sine over pi */
        rp__vf64 z = rp__v_sel_f64(x > -0x1p-30, rp__v_abs_f64(x), s * 0x1.45f306dc9c883p-2);
        rp__vf64 r = rp__v_neg_f64(rp__v_log_f64(z)) - y;
        y = rp__v_sel_f64(low, rp__v_sel_f64(x == rp__v_floor_f64(x), rp__v_splat_f64(inf), r), y);
    }
    y = rp__v_sel_f64(x == 0.0, rp__v_splat_f64(inf), y);
    return rp__v_sel_f64(rp__v_abs_f64(x) == inf, rp__v_splat_f64(inf), rp__v_sel_f64(x != x, x, y));
}
RP__VMATH_HALVES(lgamma)

/* psi(x) = psi(x + n) - 1/x - ... - 1/(x + n - 1), an asymptotic series from 10 on; below 0 by psi(1 - x) - pi / tan(pi x). A
 * pole at 0 has the sign of -x, those below are NaN, as PyTorch has them. */
RP__VMATH_FN rp__vf64 rp__v_digamma_f64(rp__vf64 x) {
    const double inf = __builtin_inf();
    rp__vi64 low = x < 0.0;
    rp__vf64 a = rp__v_sel_f64(low, 1.0 - x, x), over = {0}, under = rp__v_splat_f64(1.0);
    for (int k = 0; k < 10; k++) { /* the sum of 1 / a as a fraction */
        rp__vi64 below = a < 10.0;
        over = rp__v_sel_f64(below, rp__v_fma_f64(over, a, under), over);
        under = rp__v_sel_f64(below, under * a, under);
        a = rp__v_sel_f64(below, a + 1.0, a);
    }
    rp__vf64 sum = over / under;
    rp__vf64 i = 1.0 / a, z = i * i;
    rp__vf64 p = rp__v_step2_f64(rp__v_splat_f64(0x1.5555555555555p-4), z, -0x1.5995995995996p-6, 0x1.f07c1f07c1f08p-8);
    p = rp__v_step3_f64(p, z, -0x1.1111111111111p-8, 0x1.0410410410410p-8, -0x1.1111111111111p-7);
    p = z * (p * z + 0x1.5555555555555p-4);
    rp__vf64 y = ((rp__v_log_f64(a) - 0.5 * i) - p) - sum;
    if (__builtin_expect(rp__v_any_i64(low), 0)) {
        rp__vf64 r = y - 0x1.921fb54442d18p+1 / rp__v_tan_f64(rp__v_turn_f64(x));
        y = rp__v_sel_f64(low, rp__v_sel_f64(x == rp__v_floor_f64(x), rp__v_splat_f64(__builtin_nan("")), r), y);
    }
    y = rp__v_sel_f64(x == inf, x, y);
    return rp__v_sel_f64(x == 0.0, rp__v_copysign_f64(rp__v_splat_f64(inf), rp__v_neg_f64(x)), y);
}
RP__VMATH_HALVES(digamma)

/* Hurwitz' zeta of s > 1 at q > 0: ten terms and the Euler-Maclaurin sum of the others. */
RP__VEC_FN rp__vf64 rp__v_zeta_above_f64(rp__vf64 s, rp__vf64 q) {
    static const double factor[] = {0x1.5555555555555p-4,   -0x1.6c16c16c16c17p-10, 0x1.1566abc011567p-15,
                                    -0x1.bbd779334ef0bp-21, 0x1.66a8f2bf70ebep-26,  -0x1.22805d644267fp-31,
                                    0x1.d6db2c4e09162p-37,  -0x1.7da4e1f79955cp-42}; /* B(2k) / (2k)! */
    rp__vf64 n = rp__v_neg_f64(s), sum = rp__v_pow_f64(q, n), w = q + 10.0;
    for (int k = 1; k < 10; k++) sum = sum + rp__v_pow_f64(q + (double)k, n);
    rp__vf64 b = rp__v_pow_f64(w, n), more = rp__v_sel_f64(b > 0x1p-1000, b * w, rp__v_pow_f64(w, 1.0 - s));
    rp__vf64 rest = more / (s - 1.0) + 0.5 * b, term = b * s / w, z = 1.0 / (w * w);
    for (int k = 0; k < 8; k++) {
        rest = rest + factor[k] * term;
        term = term * (s + (double)(2 * k + 1)) * (s + (double)(2 * k + 2)) * z;
    }
    return sum + rp__v_sel_f64(rest == rest, rest, (rp__vf64){0}); /* of large s what underflowed and what overflowed */
}
/* Below 0, where s must be whole: the terms up to 0 are those of two other sums. */
RP__VMATH_RARE rp__vf64 rp__v_zeta_below_f64(rp__vf64 s, rp__vf64 q) {
    rp__vf64 f = rp__v_floor_f64(q), part = q - f, other = 1.0 - part;
    rp__vf64 half = s * 0.5, odd = (rp__vf64)((half != rp__v_floor_f64(half)) & (rp__vi64)rp__v_splat_f64(-0.0));
    rp__vf64 ends = rp__v_zeta_above_f64(s, other) - rp__v_zeta_above_f64(s, other - f);
    return rp__v_zeta_above_f64(s, part) + (rp__vf64)((rp__vi64)ends ^ (rp__vi64)odd);
}
RP__VMATH_FN rp__vf64 rp__v_zeta_f64(rp__vf64 s, rp__vf64 q) {
    const double inf = __builtin_inf();
    rp__vi64 low = q <= 0.0;
    rp__vf64 y = rp__v_zeta_above_f64(s, q);
    if (__builtin_expect(rp__v_any_i64(low), 0)) {
        rp__vf64 none = rp__v_splat_f64(__builtin_nan(""));
        rp__vf64 r = rp__v_sel_f64(s == rp__v_floor_f64(s), rp__v_zeta_below_f64(s, q), none);
        y = rp__v_sel_f64(low, rp__v_sel_f64(q == rp__v_floor_f64(q), rp__v_splat_f64(inf), r), y);
    }
    y = rp__v_sel_f64(q == inf, (rp__vf64){0}, y);
    y = rp__v_sel_f64(s > 1.0, y, rp__v_sel_f64(s == 1.0, rp__v_splat_f64(inf), rp__v_splat_f64(__builtin_nan(""))));
    return rp__v_sel_f64((s != s) | (q != q), s + q, y);
}
RP__VMATH_HALVES2(zeta)

#endif /* RP_KERNEL_CPU_VMATH_H */
