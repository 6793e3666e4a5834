/* The emulator's side of src/kernel/cuda/prelude.cuh: the same functions and types as plain C over runtime.h. nvrtc.c
 * puts this text in the place of the lines between rp-prelude begin and rp-prelude end and compiles the result with the
 * system's C compiler. The list of names and their meaning is in prelude.cuh. Names in cudasim_ and rp__ are not for
 * kernels. */
typedef signed char rp_i8;
typedef unsigned char rp_u8;
typedef short rp_i16;
typedef unsigned short rp_u16;
typedef int rp_i32;
typedef unsigned int rp_u32;
typedef long long rp_i64;
typedef unsigned long long rp_u64;
#define RP__ALIGN(n) __attribute__((aligned(n)))
typedef struct RP__ALIGN(8) rp_f32x2 {
    float x, y;
} rp_f32x2;
typedef struct RP__ALIGN(16) rp_f32x4 {
    float x, y, z, w;
} rp_f32x4;
typedef struct RP__ALIGN(16) rp_f64x2 {
    double x, y;
} rp_f64x2;
typedef struct RP__ALIGN(16) rp_i32x4 {
    int x, y, z, w;
} rp_i32x4;
typedef struct RP__ALIGN(8) rp_u32x2 {
    unsigned int x, y;
} rp_u32x2;
typedef struct RP__ALIGN(16) rp_u32x4 {
    unsigned int x, y, z, w;
} rp_u32x4;
typedef struct RP__ALIGN(16) rp_i64x2 {
    long long x, y;
} rp_i64x2;
typedef struct RP__ALIGN(16) rp_u64x2 {
    unsigned long long x, y;
} rp_u64x2;
#define rp_warp_size 32

struct cudasim_runtime *cudasim_runtime;
#define cudasim_rt cudasim_runtime
#define RP_FN static inline __attribute__((always_inline, unused))

/* CUDA's words. __shared__ is rewritten by nvrtc.c, which knows the kernel that a variable stands in. */
#define __global__
#define __device__
#define __constant__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (cudasim_rt->self->thread_idx)
#define blockIdx (cudasim_rt->self->block_idx)
#define blockDim (cudasim_rt->self->block_dim)
#define gridDim (cudasim_rt->self->grid_dim)
#define bool _Bool
#define true 1
#define false 0

extern float expf(float);
extern double exp(double);
extern float exp2f(float);
extern double exp2(double);
extern float expm1f(float);
extern double expm1(double);
extern float logf(float);
extern double log(double);
extern float log2f(float);
extern double log2(double);
extern float log10f(float);
extern double log10(double);
extern float log1pf(float);
extern double log1p(double);
extern float sinf(float);
extern double sin(double);
extern float cosf(float);
extern double cos(double);
extern float tanf(float);
extern double tan(double);
extern float asinf(float);
extern double asin(double);
extern float acosf(float);
extern double acos(double);
extern float atanf(float);
extern double atan(double);
extern float sinhf(float);
extern double sinh(double);
extern float coshf(float);
extern double cosh(double);
extern float tanhf(float);
extern double tanh(double);
extern float asinhf(float);
extern double asinh(double);
extern float acoshf(float);
extern double acosh(double);
extern float atanhf(float);
extern double atanh(double);
extern float erff(float);
extern double erf(double);
extern float erfcf(float);
extern double erfc(double);
extern float lgammaf(float);
extern double lgamma(double);
extern float tgammaf(float);
extern double tgamma(double);
extern float sqrtf(float);
extern double sqrt(double);
extern float cbrtf(float);
extern double cbrt(double);
extern float floorf(float);
extern double floor(double);
extern float ceilf(float);
extern double ceil(double);
extern float truncf(float);
extern double trunc(double);
extern float rintf(float);
extern double rint(double);
extern float roundf(float);
extern double round(double);
extern float fabsf(float);
extern double fabs(double);
extern float powf(float, float);
extern double pow(double, double);
extern float fmodf(float, float);
extern double fmod(double, double);
extern float atan2f(float, float);
extern double atan2(double, double);
extern float hypotf(float, float);
extern double hypot(double, double);
extern float copysignf(float, float);
extern double copysign(double, double);
extern float fminf(float, float);
extern double fmin(double, double);
extern float fmaf(float, float, float);
extern double fma(double, double, double);
extern float fmaxf(float, float);
extern double fmax(double, double);
extern void sincosf(float, float *, float *);
extern void sincos(double, double *, double *);

/* ---- Block and warp ---- */

enum {
    RP__SYNC = 1,
    RP__BALLOT,
    RP__SHFL_XOR,
    RP__SHFL_DOWN,
    RP__SHFL_UP,
    RP__SHFL_IDX,
    RP__MMA_TF32,
    RP__MMA_F16,
    RP__MMA_BF16,
    RP__MMA_I8,
    RP__LDMATRIX,
    RP__WGMMA_A
};

RP_FN void rp_barrier(void) { cudasim_rt->barrier(0); }
#define rp_barrier() cudasim_rt->barrier(__LINE__)
RP_FN void rp_warp_sync(void) { cudasim_rt->exchange(RP__SYNC, &cudasim_rt, 0); }
RP_FN rp_u32 rp_lane(void) { return cudasim_rt->self->lane; }
RP_FN rp_u32 rp__vote(int pred, rp_u32 *lanes) {
    unsigned char mine = pred != 0;
    const struct cudasim_exchange *e = cudasim_rt->exchange(RP__BALLOT, &mine, 1);
    rp_u32 votes = 0;
    for (int i = 0; i < CUDASIM_WARP; i++) {
        votes |= (e->lanes >> i & 1) && e->slot[i][0] ? 1u << i : 0;
    }
    *lanes = e->lanes;
    return votes;
}
RP_FN rp_u32 rp_ballot(int pred) {
    rp_u32 lanes;
    return rp__vote(pred, &lanes);
}
RP_FN int rp_any(int pred) {
    rp_u32 lanes;
    return rp__vote(pred, &lanes) != 0;
}
RP_FN int rp_all(int pred) {
    rp_u32 lanes;
    rp_u32 votes = rp__vote(pred, &lanes);
    return votes == lanes;
}

/* The lane that PTX's shfl reads, -1: the value stays. `width` is a power of two up to 32. */
RP_FN int rp__source(int kind, int lane, int b, int width) {
    int low = lane & ~(width - 1), high = low | (width - 1), from;
    switch (kind) {
    case RP__SHFL_XOR: from = lane ^ b; return from <= high ? from : -1;
    case RP__SHFL_DOWN: from = lane + b; return from <= high ? from : -1;
    case RP__SHFL_UP: from = lane - b; return from >= low ? from : -1;
    default: return low | (b & (width - 1));
    }
}
#define RP__SHUFFLE(name, kind, type, argument)                                                                        \
    RP_FN type name(type v, argument b, int width) {                                                                   \
        int lane = (int)cudasim_rt->self->lane;                                                                        \
        const struct cudasim_exchange *e = cudasim_rt->exchange(kind, &v, sizeof v);                                   \
        int from = rp__source(kind, lane, (int)b, width);                                                              \
        if (from >= 0) {                                                                                               \
            __builtin_memcpy(&v, e->slot[from], sizeof v); /* poison when there is no such lane */                     \
        }                                                                                                              \
        return v;                                                                                                      \
    }
#define RP__SHUFFLES(T, type)                                                                                          \
    RP__SHUFFLE(rp_shfl_xor_##T, RP__SHFL_XOR, type, int)                                                              \
    RP__SHUFFLE(rp_shfl_down_##T, RP__SHFL_DOWN, type, rp_u32)                                                         \
    RP__SHUFFLE(rp_shfl_up_##T, RP__SHFL_UP, type, rp_u32)                                                             \
    RP__SHUFFLE(rp_shfl_idx_##T, RP__SHFL_IDX, type, int)
RP__SHUFFLES(f32, float)
RP__SHUFFLES(f64, double)
RP__SHUFFLES(i32, rp_i32)
RP__SHUFFLES(u32, rp_u32)
RP__SHUFFLES(i64, rp_i64)
RP__SHUFFLES(u64, rp_u64)

/* ---- Grid ---- */

/* A point where another thread may overtake; the driver draws how many pass before one does. */
RP_FN void rp__race(void) {
    if (--cudasim_rt->race < 0) {
        cudasim_rt->yield();
    }
}
RP_FN void rp_grid_wait(void) { cudasim_rt->grid_wait(); }
RP_FN void rp_launch_dependents(void) { cudasim_rt->launch_dependents(); }
RP_FN void rp_set_conditional(rp_u64 handle, rp_u32 value) { cudasim_rt->set_conditional(handle, value); }
RP_FN rp_u64 rp_clock_ns(void) { return cudasim_rt->clock_ns(); }
RP_FN void rp_threadfence_block(void) { rp__race(); }
RP_FN void rp_threadfence(void) { rp__race(); }
RP_FN void rp_threadfence_system(void) { rp__race(); }
RP_FN rp_u32 rp_ld_acquire_u32(const rp_u32 *p) {
    cudasim_rt->spin();
    return *(const volatile rp_u32 *)p;
}
RP_FN void rp_st_release_u32(rp_u32 *p, rp_u32 v) {
    *(volatile rp_u32 *)p = v;
    rp__race();
}
RP_FN rp_u32 rp_ld_acquire_sys_u32(const rp_u32 *p) {
    cudasim_rt->spin();
    return *(const volatile rp_u32 *)p;
}
RP_FN void rp_st_release_sys_u32(rp_u32 *p, rp_u32 v) {
    *(volatile rp_u32 *)p = v;
    rp__race();
}
RP_FN void rp_spin_pause(void) { cudasim_rt->spin(); }

/* ---- Bits and conversions ---- */

#define RP__BITCAST(name, to, from)                                                                                    \
    RP_FN to name(from v) {                                                                                            \
        to r;                                                                                                          \
        __builtin_memcpy(&r, &v, sizeof r);                                                                            \
        return r;                                                                                                      \
    }
RP__BITCAST(rp_bits_f32, float, rp_u32)
RP__BITCAST(rp_f32_bits, rp_u32, float)
RP__BITCAST(rp_bits_f64, double, rp_u64)
RP__BITCAST(rp_f64_bits, rp_u64, double)
RP_FN rp_i32 rp_neg_i32(rp_i32 x) { return (rp_i32)(0u - (rp_u32)x); }
RP_FN rp_u32 rp_mulhi_u32(rp_u32 a, rp_u32 b) { return (rp_u32)((rp_u64)a * b >> 32); }
RP_FN rp_u64 rp_mulhi_u64(rp_u64 a, rp_u64 b) {
    const rp_u64 low = (rp_u64)(rp_u32)a * (rp_u32)b, left = (a >> 32) * (rp_u32)b + (low >> 32);
    const rp_u64 right = (rp_u32)a * (b >> 32) + (rp_u32)left;
    return (a >> 32) * (b >> 32) + (left >> 32) + (right >> 32);
}
#ifdef __TINYC__ /* without its library: what it calls to convert from and to u64, as gcc does it in line */
static float __floatundisf(rp_u64 v) {
    return (rp_i64)v >= 0 ? (float)(rp_i64)v : (float)(rp_i64)(v >> 1 | (v & 1)) * 2;
}
static double __floatundidf(rp_u64 v) {
    return (rp_i64)v >= 0 ? (double)(rp_i64)v : (double)(rp_i64)(v >> 1 | (v & 1)) * 2;
}
static rp_u64 __fixunssfdi(float x) {
    return x >= 0x1p63f ? (rp_u64)(rp_i64)(x - 0x1p63f) ^ 1ull << 63 : (rp_u64)(rp_i64)x;
}
static rp_u64 __fixunsdfdi(double x) {
    return x >= 0x1p63 ? (rp_u64)(rp_i64)(x - 0x1p63) ^ 1ull << 63 : (rp_u64)(rp_i64)x;
}
/* and gcc's words for bits */
RP_FN int rp__popcount(rp_u64 v) {
    v -= v >> 1 & 0x5555555555555555ull;
    v = (v & 0x3333333333333333ull) + (v >> 2 & 0x3333333333333333ull);
    return (int)(((v + (v >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull >> 56);
}
RP_FN int rp__clz(rp_u64 v) {
    for (int k = 1; k < 64; k *= 2) v |= v >> k;
    return 64 - rp__popcount(v);
}
#define __builtin_popcount(v) rp__popcount(v)
#define __builtin_popcountll(v) rp__popcount(v)
#define __builtin_clz(v) (rp__clz(v) - 32)
#define __builtin_clzll(v) rp__clz(v)
#endif
RP_FN int rp_clz(rp_u32 v) { return v ? __builtin_clz(v) : 32; }
RP_FN int rp_clz_u64(rp_u64 v) { return v ? __builtin_clzll(v) : 64; }
RP_FN int rp_popc(rp_u32 v) { return __builtin_popcount(v); }
RP_FN int rp_popc_u64(rp_u64 v) { return __builtin_popcountll(v); }
RP_FN rp_u32 rp_brev_u32(rp_u32 v) {
    rp_u32 r = 0;
    for (int i = 0; i < 32; i++) {
        r |= (v >> i & 1) << (31 - i);
    }
    return r;
}
RP_FN float rp_cvt_f16_to_f32(rp_u16 h) {
    rp_u32 sign = (rp_u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) {
        return rp_bits_f32(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    }
    if (exponent == 0) { /* mantissa * 2^-24, exact */
        float x = (float)mantissa * 0x1p-24f;
        return sign ? -x : x;
    }
    return rp_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}
RP_FN rp_u16 rp_cvt_f32_to_f16(float x) {
    rp_u32 bits = rp_f32_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0x7fff; /* what cvt.rn.f16.f32 gives for every NaN */
    }
    if (magnitude >= 0x477ff000u) { /* rounds to 65536 or more */
        return (rp_u16)(sign | 0x7c00);
    }
    if (magnitude <
        0x38800000u) { /* below 2^-14: steps of 2^-24; adding 0.5 leaves the rounded count in the low bits */
        return (rp_u16)(sign | (rp_f32_bits(rp_bits_f32(magnitude) + 0.5f) - 0x3f000000u));
    }
    rp_u32 odd = magnitude >> 13 & 1;
    return (rp_u16)(sign | (magnitude - 0x38000000u + 0xfff + odd) >> 13);
}
RP_FN float rp_cvt_bf16_to_f32(rp_u16 h) { return rp_bits_f32((rp_u32)h << 16); }
RP_FN rp_u16 rp_cvt_f32_to_bf16(float x) {
    rp_u32 bits = rp_f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fff; /* what cvt.rn.bf16.f32 gives for every NaN */
    }
    return (rp_u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
RP_FN rp_u32 rp_cvt_f32_to_f16x2(float low, float high) {
    return (rp_u32)rp_cvt_f32_to_f16(high) << 16 | rp_cvt_f32_to_f16(low);
}
RP_FN rp_u32 rp_cvt_f32_to_bf16x2(float low, float high) {
    return (rp_u32)rp_cvt_f32_to_bf16(high) << 16 | rp_cvt_f32_to_bf16(low);
}
RP_FN float rp_cvt_f16x2_to_f32(rp_u32 two, int high) { return rp_cvt_f16_to_f32((rp_u16)(high ? two >> 16 : two)); }
RP_FN float rp_cvt_bf16x2_to_f32(rp_u32 two, int high) { return rp_cvt_bf16_to_f32((rp_u16)(high ? two >> 16 : two)); }
RP_FN float rp_round_f32_to_f16(float x) { return rp_cvt_f16_to_f32(rp_cvt_f32_to_f16(x)); }
RP_FN float rp_round_f32_to_bf16(float x) { return rp_cvt_bf16_to_f32(rp_cvt_f32_to_bf16(x)); }
RP_FN rp_u32 rp_cvt_f32_to_tf32(float x) {
    const rp_u32 bits = rp_f32_bits(x);
    return x == x ? bits + 0x1000u : 0x7fffffffu;
}
RP_FN rp_u32 rp_cvt_f32_to_tf32_even(float x) {
    const rp_u32 bits = rp_f32_bits(x);
    return x == x ? bits + 0xfffu + (bits >> 13 & 1) : 0x7fffffffu;
}
RP_FN rp_i32 rp_cvt_f64_to_i32(double x) {
    return x != x ? 0 : x >= 2147483647.0 ? 0x7fffffff : x <= -2147483648.0 ? (rp_i32)0x80000000u : (rp_i32)x;
}
RP_FN rp_i64 rp_cvt_f64_to_i64(double x) {
    return x != x ? 0 : x >= 0x1p63 ? 0x7fffffffffffffffll : x < -0x1p63 ? (rp_i64)0x8000000000000000ull : (rp_i64)x;
}
RP_FN rp_i32 rp_cvt_f32_to_i32(float x) { return rp_cvt_f64_to_i32((double)x); }
RP_FN rp_i64 rp_cvt_f32_to_i64(float x) { return rp_cvt_f64_to_i64((double)x); }

/* ---- Math ---- */

#define RP__MATH1(name)                                                                                                \
    RP_FN float rp_##name##_f32(float x) { return name##f(x); }                                                        \
    RP_FN double rp_##name##_f64(double x) { return name(x); }
#define RP__MATH2(name)                                                                                                \
    RP_FN float rp_##name##_f32(float x, float y) { return name##f(x, y); }                                            \
    RP_FN double rp_##name##_f64(double x, double y) { return name(x, y); }
RP__MATH1(exp)
RP__MATH1(exp2)
RP__MATH1(expm1)
RP__MATH1(log)
RP__MATH1(log2)
RP__MATH1(log10)
RP__MATH1(log1p)
RP__MATH1(sin)
RP__MATH1(cos)
RP__MATH1(tan)
RP__MATH1(asin)
RP__MATH1(acos)
RP__MATH1(atan)
RP__MATH1(sinh)
RP__MATH1(cosh)
RP__MATH1(tanh)
RP__MATH1(asinh)
RP__MATH1(acosh)
RP__MATH1(atanh)
RP__MATH1(erf)
RP__MATH1(erfc)
/* erf of a guess and Newton's steps, from the complement in the tail. */
RP_FN double rp_erfinv_f64(double y) {
    const double a = y < 0 ? -y : y;
    if (!(a < 1)) return a == 1 ? y / 0.0 : (a - a) / (a - a);
    double x = a * 0.886226925452758;
    if (a > 0.5) x = sqrt(-log1p(-a)); /* too large, whence the steps fall */
    for (int k = 0; k < 60; k++) x -= (a > 0.5 ? (1 - a) - erfc(x) : erf(x) - a) * 0.886226925452758 * exp(x * x);
    return y < 0 ? -x : x;
}
RP_FN float rp_erfinv_f32(float y) { return (float)rp_erfinv_f64(y); }
RP__MATH1(lgamma)
RP__MATH1(tgamma)
RP__MATH1(sqrt)
RP__MATH1(cbrt)
RP__MATH1(floor)
RP__MATH1(ceil)
RP__MATH1(trunc)
RP__MATH1(rint)
RP__MATH1(round)
RP__MATH1(fabs)
RP__MATH2(pow)
RP__MATH2(fmod)
RP__MATH2(atan2)
RP__MATH2(hypot)
RP__MATH2(copysign)
RP__MATH2(fmin)
RP__MATH2(fmax)
RP_FN float rp_rsqrt_f32(float x) { return (float)(1.0 / sqrt((double)x)); }
RP_FN double rp_rsqrt_f64(double x) { return 1.0 / sqrt(x); }
RP_FN float rp_fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
RP_FN double rp_fma_f64(double a, double b, double c) { return fma(a, b, c); }
RP_FN float rp_min_f32(float a, float b) {
    if (a == b) {
        return rp_bits_f32(rp_f32_bits(a) | rp_f32_bits(b)); /* of two zeros the negative one */
    }
    return a != a || a < b ? a : b;
}
RP_FN double rp_min_f64(double a, double b) { return a != a || a < b ? a : b; }
RP_FN float rp_max_f32(float a, float b) {
    if (a == b) {
        return rp_bits_f32(rp_f32_bits(a) & rp_f32_bits(b)); /* of two zeros the positive one */
    }
    return a != a || a > b ? a : b;
}
RP_FN double rp_max_f64(double a, double b) { return a != a || a > b ? a : b; }
RP_FN int rp_isnan_f32(float x) { return x != x; }
RP_FN int rp_isnan_f64(double x) { return x != x; }
RP_FN int rp_isinf_f32(float x) { return (rp_f32_bits(x) & 0x7fffffffu) == 0x7f800000u; }
RP_FN int rp_isinf_f64(double x) { return (rp_f64_bits(x) & 0x7fffffffffffffffull) == 0x7ff0000000000000ull; }
RP_FN int rp_isfinite_f32(float x) { return (rp_f32_bits(x) & 0x7f800000u) != 0x7f800000u; }
RP_FN int rp_isfinite_f64(double x) { return (rp_f64_bits(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }
RP_FN float rp_exp2_approx_f32(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}
RP_FN float rp_recip_approx_f32(float x) { return 1 / x; }
RP_FN float rp_rsqrt_approx_f32(float x) { return (float)(1 / sqrt((double)x)); }
RP_FN float rp_div_approx_f32(float a, float b) { return a / b; }
RP_FN void rp_sincos_f32(float x, float *s, float *c) { sincosf(x, s, c); }
RP_FN void rp_sincos_f64(double x, double *s, double *c) { sincos(x, s, c); }

/* ---- Atomics: one device thread runs at a time, so plain code is atomic; others may run just before. ---- */

RP_FN void rp__aligned(const void *p, unsigned int size) {
    if ((unsigned long)p & (size - 1)) {
        cudasim_rt->misaligned(p, size);
    }
}
#define RP__ATOMIC(name, type, expression)                                                                             \
    RP_FN type name(type *p, type v) {                                                                                 \
        rp__race();                                                                                                    \
        rp__aligned(p, sizeof *p);                                                                                     \
        type old = *p;                                                                                                 \
        *p = (expression);                                                                                             \
        return old;                                                                                                    \
    }
#define RP__ATOMICS(T, type)                                                                                           \
    RP__ATOMIC(rp_atomic_max_##T, type, old > v ? old : v)                                                             \
    RP__ATOMIC(rp_atomic_min_##T, type, old < v ? old : v)
RP__ATOMIC(rp_atomic_add_f32, float, old + v)
RP__ATOMIC(rp_atomic_add_f64, double, old + v)
RP__ATOMIC(rp_atomic_add_i32, rp_i32, (rp_i32)((rp_u32)old + (rp_u32)v))
RP__ATOMIC(rp_atomic_add_u32, rp_u32, old + v)
RP__ATOMIC(rp_atomic_add_i64, rp_i64, (rp_i64)((rp_u64)old + (rp_u64)v))
RP__ATOMIC(rp_atomic_add_u64, rp_u64, old + v)
RP__ATOMIC(rp_atomic_add_f16, rp_u16, rp_cvt_f32_to_f16(rp_cvt_f16_to_f32(old) + rp_cvt_f16_to_f32(v)))
RP__ATOMIC(rp_atomic_add_bf16, rp_u16, rp_cvt_f32_to_bf16(rp_cvt_bf16_to_f32(old) + rp_cvt_bf16_to_f32(v)))
RP__ATOMICS(i32, rp_i32)
RP__ATOMICS(u32, rp_u32)
RP__ATOMICS(i64, rp_i64)
RP__ATOMICS(u64, rp_u64)
RP__ATOMIC(rp_atomic_max_f32, float, rp_max_f32(old, v))
RP__ATOMIC(rp_atomic_min_f32, float, rp_min_f32(old, v))
RP__ATOMIC(rp_atomic_max_f64, double, rp_max_f64(old, v))
RP__ATOMIC(rp_atomic_min_f64, double, rp_min_f64(old, v))
RP__ATOMIC(rp_atomic_exch_u32, rp_u32, v)
RP__ATOMIC(rp_atomic_exch_u64, rp_u64, v)
RP__ATOMIC(rp_atomic_or_u32, rp_u32, old | v)
RP__ATOMIC(rp_atomic_and_u32, rp_u32, old &v)
RP__ATOMIC(rp_atomic_xor_u32, rp_u32, old ^ v)
RP__ATOMIC(rp_atomic_inc_u32, rp_u32, old >= v ? 0 : old + 1)
#define RP__RED(name, type)                                                                                            \
    RP_FN void rp_red_##name(type *p, type v) { (void)rp_atomic_##name(p, v); }
#define RP__REDS(T, type)                                                                                              \
    RP__RED(add_##T, type)                                                                                             \
    RP__RED(max_##T, type)                                                                                             \
    RP__RED(min_##T, type)
RP__REDS(f32, float)
RP__REDS(f64, double)
RP__REDS(i32, rp_i32)
RP__REDS(u32, rp_u32)
RP__REDS(i64, rp_i64)
RP__REDS(u64, rp_u64)
/* The whole word is written, and a NaN in its other half becomes the one that additions give. */
#define RP__RED_HALF(name, most, infinity)                                                                             \
    RP_FN void rp_red_##name(rp_u16 *p, rp_u16 v) {                                                                    \
        rp_u16 *other = (rp_u16 *)((unsigned long)p ^ 2);                                                              \
        if ((*other & most) > infinity) {                                                                              \
            *other = most;                                                                                             \
        }                                                                                                              \
        (void)rp_atomic_##name(p, v);                                                                                  \
    }
RP__RED_HALF(add_f16, 0x7fff, 0x7c00)
RP__RED_HALF(add_bf16, 0x7fff, 0x7f80)
#define RP__CAS(name, type)                                                                                            \
    RP_FN type name(type *p, type compare, type value) {                                                               \
        rp__race();                                                                                                    \
        rp__aligned(p, sizeof *p);                                                                                     \
        type old = *p;                                                                                                 \
        if (old == compare) {                                                                                          \
            *p = value;                                                                                                \
        }                                                                                                              \
        return old;                                                                                                    \
    }
RP__CAS(rp_atomic_cas_u32, rp_u32)
RP__CAS(rp_atomic_cas_u64, rp_u64)

/* ---- Memory ---- */

#define RP__LDNC(T, type)                                                                                              \
    RP_FN type rp_ld_nc_##T(const type *p) {                                                                           \
        rp__aligned(p, sizeof *p);                                                                                     \
        return *p;                                                                                                     \
    }
RP__LDNC(f32, float)
RP__LDNC(f64, double)
RP__LDNC(i32, rp_i32)
RP__LDNC(u32, rp_u32)
RP__LDNC(i64, rp_i64)
RP__LDNC(u64, rp_u64)
RP__LDNC(u16, rp_u16)
RP__LDNC(u8, rp_u8)
#define RP__VECTOR_LD(name, vector, type)                                                                              \
    RP_FN vector name(const type *p) {                                                                                 \
        vector v;                                                                                                      \
        rp__aligned(p, sizeof v);                                                                                      \
        __builtin_memcpy(&v, p, sizeof v);                                                                             \
        return v;                                                                                                      \
    }
#define RP__VECTOR(suffix, vector, type)                                                                               \
    RP__VECTOR_LD(rp_ld_##suffix, vector, type)                                                                        \
    RP_FN void rp_st_##suffix(type *p, vector v) {                                                                     \
        rp__aligned(p, sizeof v);                                                                                      \
        __builtin_memcpy(p, &v, sizeof v);                                                                             \
    }
RP__VECTOR_LD(rp_ld_nc_v4_f32, rp_f32x4, float)
RP__VECTOR_LD(rp_ld_nc_v4_u32, rp_u32x4, rp_u32)
RP__VECTOR_LD(rp_ld_nc_v2_f64, rp_f64x2, double)
RP__VECTOR(v2_f32, rp_f32x2, float)
RP__VECTOR(v4_f32, rp_f32x4, float)
RP__VECTOR(v2_f64, rp_f64x2, double)
RP__VECTOR(v4_i32, rp_i32x4, rp_i32)
RP__VECTOR(v2_u32, rp_u32x2, rp_u32)
RP__VECTOR(v4_u32, rp_u32x4, rp_u32)
RP__VECTOR(v2_i64, rp_i64x2, rp_i64)
RP__VECTOR(v2_u64, rp_u64x2, rp_u64)
RP_FN void rp_st_v8(void *to, const void *from) {
    rp__aligned(to, 16);
    __builtin_memcpy(to, from, 32);
}
RP_FN void rp_prefetch_l2(const void *p) { (void)p; }
RP_FN const void *rp_opaque(const void *p) { return p; }
#define RP__CPASYNC(n)                                                                                                 \
    RP_FN void rp_cp_async_##n(void *shared, const void *global) {                                                     \
        rp__aligned(shared, n);                                                                                        \
        rp__aligned(global, n);                                                                                        \
        cudasim_rt->copy_async(shared, global, n, n);                                                                  \
    }
RP__CPASYNC(4)
RP__CPASYNC(8)
RP__CPASYNC(16)
RP_FN void rp_cp_async_16_zfill(void *shared, const void *global, rp_u32 bytes) {
    rp__aligned(shared, 16);
    rp__aligned(global, 16);
    cudasim_rt->copy_async(shared, global, 16, bytes);
}
RP_FN void rp_cp_async_4_zfill(void *shared, const void *global, rp_u32 bytes) {
    rp__aligned(shared, 4);
    rp__aligned(global, 4);
    cudasim_rt->copy_async(shared, global, 4, bytes);
}
RP_FN void rp_cp_async_8_zfill(void *shared, const void *global, rp_u32 bytes) {
    rp__aligned(shared, 8);
    rp__aligned(global, 8);
    cudasim_rt->copy_async(shared, global, 8, bytes);
}
RP_FN void rp_cp_async_commit(void) { cudasim_rt->copy_async_commit(); }
RP_FN void rp_cp_async_wait(int n) { cudasim_rt->copy_async_wait(n); }

/* ---- Clusters ---- */

RP_FN void rp_cluster_barrier(int n) { cudasim_rt->cluster_barrier((unsigned int)n, __LINE__); }
RP_FN void rp_cluster_done(int n) { cudasim_rt->cluster_barrier((unsigned int)n, __LINE__); }
#define RP__CLUSTER_READ(T, type)                                                                                      \
    RP_FN type rp_cluster_read_##T(const type *p, int rank, int n) {                                                   \
        type v;                                                                                                        \
        cudasim_rt->cluster_read(&v, p, sizeof v, (unsigned int)rank, (unsigned int)n);                                \
        return v;                                                                                                      \
    }
RP__CLUSTER_READ(f32, float)
RP__CLUSTER_READ(f64, double)
RP__CLUSTER_READ(i32, rp_i32)
RP__CLUSTER_READ(i64, rp_i64)
#define RP__CLUSTER_WRITE(T, type)                                                                                     \
    RP_FN void rp_cluster_write_##T(type *p, type v, int rank, int n) {                                                \
        cudasim_rt->cluster_write(p, &v, sizeof v, (unsigned int)rank, (unsigned int)n);                               \
    }
RP__CLUSTER_WRITE(f32, float)
RP__CLUSTER_WRITE(f64, double)
RP_FN rp_f32x4 rp_cluster_read_v4_f32(const float *p, int rank, int n) {
    rp_f32x4 v;
    rp__aligned(p, sizeof v);
    cudasim_rt->cluster_read(&v, p, sizeof v, (unsigned int)rank, (unsigned int)n);
    return v;
}

/* ---- Tensor cores: every lane gives its fragments, then computes its own four results. Fragment layouts are those of
 * PTX: with g = lane / 4 and t = lane % 4, a lane holds d[0..3] at (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1). ---- */

struct rp__fragments {
    rp_u32 a[4], b[2];
};
RP_FN void rp__mma_tf32(float *d, const rp_u32 *a, const rp_u32 *b) {
    struct rp__fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    int lane = (int)cudasim_rt->self->lane;
    const struct cudasim_exchange *e = cudasim_rt->exchange(RP__MMA_TF32, &mine, sizeof mine);
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + (i >= 2 ? 8 : 0), col = lane % 4 * 2 + (i & 1);
        float sum = d[i];
        for (int k = 0; k < 8; k++) {
            struct rp__fragments fa, fb;
            __builtin_memcpy(&fa, e->slot[row % 8 * 4 + k % 4], sizeof fa);
            __builtin_memcpy(&fb, e->slot[col * 4 + k % 4], sizeof fb);
            float x = rp_bits_f32(fa.a[(row >= 8) + 2 * (k >= 4)] & ~0x1fffu), y = rp_bits_f32(fb.b[k >= 4] & ~0x1fffu);
            sum += x * y;
        }
        d[i] = sum;
    }
}
#define RP__MMA16(name, kind, convert)                                                                                 \
    RP_FN void name(float *d, const rp_u32 *a, const rp_u32 *b) {                                                      \
        struct rp__fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};                                          \
        int lane = (int)cudasim_rt->self->lane;                                                                        \
        const struct cudasim_exchange *e = cudasim_rt->exchange(kind, &mine, sizeof mine);                             \
        for (int i = 0; i < 4; i++) {                                                                                  \
            int row = lane / 4 + (i >= 2 ? 8 : 0), col = lane % 4 * 2 + (i & 1);                                       \
            float sum = d[i];                                                                                          \
            for (int k = 0; k < 16; k++) {                                                                             \
                struct rp__fragments fa, fb;                                                                           \
                int half = k >= 8, t = k % 8 / 2, shift = (k & 1) * 16;                                                \
                __builtin_memcpy(&fa, e->slot[row % 8 * 4 + t], sizeof fa);                                            \
                __builtin_memcpy(&fb, e->slot[col * 4 + t], sizeof fb);                                                \
                float x = convert((rp_u16)(fa.a[(row >= 8) + 2 * half] >> shift));                                     \
                float y = convert((rp_u16)(fb.b[half] >> shift));                                                      \
                sum += x * y;                                                                                          \
            }                                                                                                          \
            d[i] = sum;                                                                                                \
        }                                                                                                              \
    }
RP_FN void rp_mma_m16n8k32_i8(rp_i32 *d, const rp_u32 *a, const rp_u32 *b) {
    struct rp__fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    int lane = (int)cudasim_rt->self->lane;
    const struct cudasim_exchange *e = cudasim_rt->exchange(RP__MMA_I8, &mine, sizeof mine);
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + (i >= 2 ? 8 : 0), col = lane % 4 * 2 + (i & 1);
        rp_u32 sum = (rp_u32)d[i];
        for (int k = 0; k < 32; k++) {
            struct rp__fragments fa, fb;
            int half = k >= 16, t = k % 16 / 4, shift = k % 4 * 8;
            __builtin_memcpy(&fa, e->slot[row % 8 * 4 + t], sizeof fa);
            __builtin_memcpy(&fb, e->slot[col * 4 + t], sizeof fb);
            const rp_i8 x = (rp_i8)(rp_u8)(fa.a[(row >= 8) + 2 * half] >> shift),
                        y = (rp_i8)(rp_u8)(fb.b[half] >> shift);
            sum += (rp_u32)(x * y);
        }
        d[i] = (rp_i32)sum;
    }
}
RP_FN void rp_mma_m16n8k8_tf32(float *d, const rp_u32 *a, const rp_u32 *b) { rp__mma_tf32(d, a, b); }
RP__MMA16(rp_mma_m16n8k16_f16, RP__MMA_F16, rp_cvt_f16_to_f32)
RP__MMA16(rp_mma_m16n8k16_bf16, RP__MMA_BF16, rp_cvt_bf16_to_f32)
/* Matrix i of 8 rows of 8 halves has its rows at the addresses of lanes 8i..8i+7; lane l gets row l/4, elements 2(l%4)
 * and the next. */
RP_FN void rp__ldmatrix(rp_u32 *r, const void *row, int n, int trans) {
    rp__aligned(row, 16);
    int lane = (int)cudasim_rt->self->lane;
    const struct cudasim_exchange *e = cudasim_rt->exchange(RP__LDMATRIX, &row, sizeof row);
    for (int i = 0; i < n; i++) {
        rp_u16 v[2];
        for (int j = 0; j < 2; j++) {
            int at_row = trans ? lane % 4 * 2 + j : lane / 4, at_col = trans ? lane / 4 : lane % 4 * 2 + j;
            const rp_u16 *from;
            __builtin_memcpy(&from, e->slot[8 * i + at_row], sizeof from);
            v[j] = from[at_col];
        }
        r[i] = v[0] | (rp_u32)v[1] << 16;
    }
    cudasim_rt->exchange(RP__SYNC, &row, 0); /* the instruction has read before any lane goes on */
}
RP_FN void rp_ldmatrix_x2(rp_u32 *r, const void *row) { rp__ldmatrix(r, row, 2, 0); }
RP_FN void rp_ldmatrix_x4(rp_u32 *r, const void *row) { rp__ldmatrix(r, row, 4, 0); }
RP_FN void rp_ldmatrix_x2_trans(rp_u32 *r, const void *row) { rp__ldmatrix(r, row, 2, 1); }
RP_FN void rp_ldmatrix_x4_trans(rp_u32 *r, const void *row) { rp__ldmatrix(r, row, 4, 1); }
/* The same places the other way round. */
RP_FN void rp__stmatrix(void *row, const rp_u32 *r, int n, int trans) {
    rp__aligned(row, 16);
    int lane = (int)cudasim_rt->self->lane;
    const struct cudasim_exchange *e = cudasim_rt->exchange(RP__LDMATRIX, &row, sizeof row);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 2; j++) {
            int at_row = trans ? lane % 4 * 2 + j : lane / 4, at_col = trans ? lane / 4 : lane % 4 * 2 + j;
            rp_u16 *to;
            __builtin_memcpy(&to, e->slot[8 * i + at_row], sizeof to);
            to[at_col] = (rp_u16)(r[i] >> 16 * j);
        }
    int none = 0;
    cudasim_rt->exchange(RP__SYNC, &none, 0);
}
RP_FN void rp_stmatrix_x4(void *row, const rp_u32 *r) { rp__stmatrix(row, r, 4, 0); }
RP_FN void rp_stmatrix_x4_trans(void *row, const rp_u32 *r) { rp__stmatrix(row, r, 4, 1); }

/* ---- Tensor cores, a warpgroup: an instruction is done when it is given; a thread computes its own accumulators from what shared memory
 * has then. A descriptor counts addresses from the start of dynamic shared memory. ---- */

RP_FN void rp_fence_proxy_async(void) { rp__race(); }
RP_FN void rp_wgmma_fence(void) { /* of the whole warp, as rp_wgmma_wait */
    int none = 0;
    cudasim_rt->exchange(RP__SYNC, &none, 0);
    rp__race();
}
RP_FN void rp_wgmma_commit(void) { rp__race(); }
RP_FN void rp_wgmma_wait(int n) { /* of the whole warp */
    cudasim_rt->exchange(RP__SYNC, &n, 0);
    rp__race();
}
/* A barrier: arrivals that end a phase, arrivals so far (12 bits each), bytes that are still to come (24), and phases. */
RP_FN void rp_mbarrier_init(rp_u64 *p, int arrivals) { *p = (rp_u64)arrivals; }
static void rp__mbarrier_turn(rp_u64 *p, int arrive, int bytes) {
    const rp_u64 arrivals = *p & 0xfff, here = (*p >> 12 & 0xfff) + (rp_u64)arrive,
                 left = ((*p >> 24) + (rp_u64)bytes) & 0xffffff, phases = *p >> 48;
    *p = here == arrivals && left == 0 ? arrivals | (phases + 1) << 48
                                       : arrivals | here << 12 | left << 24 | phases << 48;
    rp__race();
}
RP_FN int rp_elect(void) {
    int none = 0;
    cudasim_rt->exchange(RP__SYNC, &none, 0);
    return cudasim_rt->self->lane == 0;
}
RP_FN void rp_mbarrier_ready(void) { rp__race(); }
RP_FN void rp_mbarrier_arrive(rp_u64 *p) { rp__mbarrier_turn(p, 1, 0); }
RP_FN void rp_mbarrier_expect(rp_u64 *p, int bytes) { rp__mbarrier_turn(p, 1, bytes); }
RP_FN void rp_mbarrier_arrive_copied(rp_u64 *p) {
    cudasim_rt->copy_async_commit();
    cudasim_rt->copy_async_wait(0);
    rp_mbarrier_arrive(p);
}
RP_FN void rp_mbarrier_wait(rp_u64 *p, int parity) {
    while ((int)(*(volatile rp_u64 *)p >> 48 & 1) == parity) {
        cudasim_rt->spin();
    }
}
/* Bulk copies are done when they are asked for. The words of a map are cuTensorMapEncode..'s of memory.c. */
RP_FN void rp_bulk_prefetch(const rp_u64 *map) { (void)map; }
static rp_u32 rp__map_half(const rp_u64 *map, int k) { return (rp_u32)(map[2 + k / 2] >> 32 * (k % 2)); }
static int rp__map_size(const rp_u64 *map, int d) { return (int)rp__map_half(map, d); }
static int rp__map_step(const rp_u64 *map, int d) { return (int)(map[9] >> 8 * d & 0xff); }
/* n elements from `at` on along the first dim, at place `row` of what is copied. */
static void rp__bulk_line(unsigned char *to, const rp_u64 *map, int row, int n, const int *at) {
    const rp_u32 type = (rp_u32)(map[1] & 0xff), bytes = type == 6 || type == 9 ? 2 : 4,
                 rank = (rp_u32)(map[1] >> 8 & 0xff), swizzled = (rp_u32)(map[1] >> 24 & 0xff) == 3;
    const unsigned char *from = (const unsigned char *)map[0];
    int inside = 1;
    for (rp_u32 d = 1; d < rank; d++) {
        inside = inside && at[d] >= 0 && at[d] < rp__map_size(map, (int)d);
        from += (rp_i64)at[d] * ((rp_i64)rp__map_half(map, (int)d + 4) * 16);
    }
    for (int i = 0; i < n; i++) {
        rp_u32 place = ((rp_u32)row * (rp_u32)n + (rp_u32)i) * bytes + (rp_u32)(to - cudasim_rt->self->dynamic_shared),
               v = 0;
        const int c = at[0] + i;
        if (inside && c >= 0 && c < rp__map_size(map, 0)) {
            __builtin_memcpy(&v, from + (rp_i64)c * (rp_i64)bytes, bytes);
        }
        if (type == 11) {
            const float x = rp_bits_f32(v);
            v = x == x ? rp_cvt_f32_to_tf32_even(x) & ~0x1fffu : 0x7fffe000u;
        }
        if (swizzled) {
            place ^= (place >> 7 & 7) << 4;
        }
        __builtin_memcpy(cudasim_rt->self->dynamic_shared + place, &v, bytes);
    }
}
static int rp__bulk_begin(void *to, const rp_u64 *map, int spatial) {
    const rp_u64 at = (rp_u64)((unsigned char *)to - cudasim_rt->self->dynamic_shared);
    if (at % ((map[1] >> 24 & 0xff) == 3 ? 1024 : 128) || (rp_u64)map % 8 || (int)(map[1] >> 8 & 0xff) != spatial + 2) {
        cudasim_rt->misaligned(to, 128);
    }
    return (map[1] & 0xff) == 6 || (map[1] & 0xff) == 9 ? 2 : 4;
}
RP_FN void rp_bulk_tile(void *to, const rp_u64 *map, rp_u64 *barrier, int x, int y, int z) {
    const int bytes = rp__bulk_begin(to, map, 1), nx = (int)(map[10] & 0xffff), ny = (int)(map[10] >> 16 & 0xffff),
              nz = (int)(map[10] >> 32 & 0xffff);
    for (int k = 0; k < nz; k++) {
        for (int j = 0; j < ny; j++) {
            const int at[3] = {x, y + j, z + k};
            rp__bulk_line((unsigned char *)to, map, k * ny + j, nx, at);
        }
    }
    rp__mbarrier_turn(barrier, 0, -(nx * ny * nz * bytes));
}
RP_FN void rp_bulk_pixels(void *to, const rp_u64 *map, rp_u64 *barrier, int spatial, int c, const int *at, int n,
                          const int *tap) {
    const int bytes = rp__bulk_begin(to, map, spatial), channels = (int)(map[1] >> 32 & 0xffff),
              pixels = (int)(map[1] >> 48 & 0xffff);
    int now[3] = {0};
    for (int d = 0; d < spatial; d++) {
        now[d] = at[d];
    }
    for (int p = 0; p < pixels; p++) {
        int place[5] = {c};
        for (int d = 0; d < spatial; d++) { /* the map counts from the innermost dim */
            place[1 + d] = now[spatial - 1 - d] + tap[spatial - 1 - d];
        }
        place[1 + spatial] = n;
        rp__bulk_line((unsigned char *)to, map, p, channels, place);
        int d = spatial - 1;
        for (; d >= 0; d--) {
            const int k = spatial - 1 - d, lower = (rp_i16)(map[7] >> 16 * k), upper = (rp_i16)(map[8] >> 16 * k);
            now[d] += rp__map_step(map, 1 + k);
            if (now[d] < rp__map_size(map, 1 + k) + upper) {
                break;
            }
            now[d] = lower;
        }
        n += d < 0;
    }
    rp__mbarrier_turn(barrier, 0, -(channels * pixels * bytes));
}
RP_FN void rp_registers_give(int n) { (void)n; }
RP_FN void rp_registers_take(int n) { (void)n; }
RP_FN void rp_wgmma_hold(float *d, int n) { (void)d, (void)n; }
RP_FN rp_u64 rp_wgmma_desc(const void *p, rp_u32 leading, rp_u32 stride, int swizzle) {
    const rp_u64 at = (rp_u64)((const unsigned char *)p - cudasim_rt->self->dynamic_shared), mode = swizzle == 128  ? 1
                                                                                                    : swizzle == 64 ? 2
                                                                                                    : swizzle == 32 ? 3
                                                                                                                    : 0;
    if (at % 16 || at >> 18 || (leading | stride) % 16 || (leading | stride) >> 18) {
        cudasim_rt->misaligned(p, 16);
    }
    return at >> 4 | (rp_u64)(leading >> 4) << 16 | (rp_u64)(stride >> 4) << 32 | mode << 62;
}
/* The element of a matrix: of its row (b: column) and of K. */
RP_FN rp_u16 rp__wgmma_at(rp_u64 desc, int across, rp_u32 row, rp_u32 k) {
    const rp_u32 start = (rp_u32)(desc & 0x3fff) << 4, leading = (rp_u32)(desc >> 16 & 0x3fff) << 4,
                 stride = (rp_u32)(desc >> 32 & 0x3fff) << 4, mode = (rp_u32)(desc >> 62), bits = mode ? 4 - mode : 0,
                 pieces = 1u << bits;
    rp_u32 at = start;
    if (across && bits) {
        at += row / 8 % pieces * 16 + row / 8 / pieces * leading + k % 8 * 16 * pieces + k / 8 * stride + row % 8 * 2;
    } else if (across) {
        at += row / 8 * stride + k % 8 * 16 + k / 8 * leading + row % 8 * 2;
    } else {
        at += row % 8 * 16 * pieces + row / 8 * stride + k / 8 * (bits ? 16 : leading) + k % 8 * 2;
    }
    at ^= (at >> 7 & (pieces - 1)) << 4;
    return *(const rp_u16 *)(cudasim_rt->self->dynamic_shared + at);
}
/* own: the thread's four registers of a. */
static void rp__wgmma(float *d, int n, float (*convert)(rp_u16), const rp_u32 *own, rp_u64 a, rp_u64 b, int accumulate,
                      int across_a, int across_b) {
    const rp_u32 lane = cudasim_rt->self->lane, warp = cudasim_rt->self->thread_idx.x / 32 % 4;
    const struct cudasim_exchange *e = cudasim_rt->exchange(RP__WGMMA_A, own ? own : &lane, own ? 16 : 4);
    float x[2][16];
    for (rp_u32 i = 0; i < 2; i++) {
        for (rp_u32 k = 0; k < 16; k++) {
            rp_u32 held[4] = {0};
            if (own) {
                __builtin_memcpy(held, e->slot[lane / 4 * 4 + k % 8 / 2], sizeof held);
            }
            x[i][k] = convert(own ? (rp_u16)(held[i + k / 8 * 2] >> k % 2 * 16)
                                  : rp__wgmma_at(a, across_a, 16 * warp + lane / 4 + 8 * i, k));
        }
    }
    for (int j = 0; j < n / 4; j++) {
        float y[16];
        for (rp_u32 k = 0; k < 16; k++) {
            y[k] = convert(rp__wgmma_at(b, across_b, (rp_u32)(j / 2 * 8 + j % 2) + lane % 4 * 2, k));
        }
        for (int i = 0; i < 2; i++) {
            float sum = accumulate ? d[j / 2 * 4 + i * 2 + j % 2] : 0;
            for (int k = 0; k < 16; k++) {
                sum += x[i][k] * y[k];
            }
            d[j / 2 * 4 + i * 2 + j % 2] = sum;
        }
    }
}
static float rp__wgmma_tf32_at(rp_u64 desc, rp_u32 row, rp_u32 k) { /* a piece of 16 bytes is four floats */
    const rp_u32 low = rp__wgmma_at(desc, 0, row, 2 * k), high = rp__wgmma_at(desc, 0, row, 2 * k + 1);
    return rp_bits_f32((low | high << 16) & ~0x1fffu);
}
static void rp__wgmma_tf32(float *d, int n, const rp_u32 *own, rp_u64 a, rp_u64 b, int accumulate) {
    const rp_u32 lane = cudasim_rt->self->lane, warp = cudasim_rt->self->thread_idx.x / 32 % 4;
    const struct cudasim_exchange *e = cudasim_rt->exchange(RP__WGMMA_A, own ? own : &lane, own ? 16 : 4);
    float x[2][8];
    for (rp_u32 i = 0; i < 2; i++) {
        for (rp_u32 k = 0; k < 8; k++) {
            rp_u32 held[4] = {0};
            if (own) {
                __builtin_memcpy(held, e->slot[lane / 4 * 4 + k % 4], sizeof held);
            }
            x[i][k] = own ? rp_bits_f32(held[i + k / 4 * 2] & ~0x1fffu)
                          : rp__wgmma_tf32_at(a, 16 * warp + lane / 4 + 8 * i, k);
        }
    }
    for (int j = 0; j < n / 4; j++) {
        for (rp_u32 i = 0; i < 2; i++) {
            float *to = &d[j / 2 * 4 + (int)i * 2 + j % 2], sum = accumulate ? *to : 0;
            for (rp_u32 k = 0; k < 8; k++) {
                sum += x[i][k] * rp__wgmma_tf32_at(b, (rp_u32)(j / 2 * 8 + j % 2) + lane % 4 * 2, k);
            }
            *to = sum;
        }
    }
}
static float rp__wgmma_f16(rp_u16 h) { return rp_cvt_f16_to_f32(h); }
static float rp__wgmma_bf16(rp_u16 h) { return rp_cvt_bf16_to_f32(h); }
#define RP__WGMMA(n, type)                                                                                             \
    RP_FN void rp_wgmma_n##n##_##type(float *d, rp_u64 a, rp_u64 b, int accumulate, int across_a, int across_b) {      \
        rp__wgmma(d, n, rp__wgmma_##type, 0, a, b, accumulate, across_a, across_b);                                    \
    }                                                                                                                  \
    RP_FN void rp_wgmma_n##n##_##type##_ra(float *d, const rp_u32 *a, rp_u64 b, int accumulate, int across_b) {        \
        rp__wgmma(d, n, rp__wgmma_##type, a, 0, b, accumulate, 0, across_b);                                           \
    }
#define RP__WGMMAS(n)                                                                                                  \
    RP__WGMMA(n, f16)                                                                                                  \
    RP__WGMMA(n, bf16)
RP__WGMMAS(8)
RP__WGMMAS(16)
RP__WGMMAS(32)
RP__WGMMAS(48)
RP__WGMMAS(64)
RP__WGMMAS(80)
RP__WGMMAS(96)
RP__WGMMAS(128)
RP__WGMMAS(160)
RP__WGMMAS(176)
RP__WGMMAS(192)
RP__WGMMAS(256)
#define RP__WGMMA_TF32(n)                                                                                              \
    RP_FN void rp_wgmma_n##n##_tf32(float *d, rp_u64 a, rp_u64 b, int accumulate) {                                    \
        rp__wgmma_tf32(d, n, 0, a, b, accumulate);                                                                     \
    }                                                                                                                  \
    RP_FN void rp_wgmma_n##n##_tf32_ra(float *d, const rp_u32 *a, rp_u64 b, int accumulate) {                          \
        rp__wgmma_tf32(d, n, a, 0, b, accumulate);                                                                     \
    }
RP__WGMMA_TF32(8)
RP__WGMMA_TF32(32)
RP__WGMMA_TF32(96)
RP__WGMMA_TF32(64)
RP__WGMMA_TF32(128)
RP__WGMMA_TF32(192)
RP__WGMMA_TF32(256)
