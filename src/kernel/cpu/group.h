/* group.h: the primitives of the loop form on a group of RP_VEC_F32 elements, for emitted C: pasted after vec.h and vmath.h.
 *
 * A group is one vector of 32-bit lanes (f32, i32; u8 as 0..255 in i32 lanes; bool as a mask of 0 and -1) or two of 64-bit
 * lanes (f64, i64). g_PRIM_TYPE(...) computes what the tile routine of the same primitive computes, bit for bit
 * (tests/test_numbers.c). g_load and g_store know how each type lies in memory; s is a step of 1 or 0 elements. */
#ifndef RP_KERNEL_CPU_GROUP_H
#define RP_KERNEL_CPU_GROUP_H

#ifndef RP_KERNEL_CPU_VMATH_H
#include "vmath.h"
#endif

#define G_FN static inline __attribute__((always_inline, unused))
enum { G_N = RP_VEC_F32, G_H = RP_VEC_F64 };

typedef rp__vf32 g_f32;
typedef rp__vi32 g_i32;
typedef rp__vi32 g_u8;
typedef rp__vi32 g_bool;
typedef struct g_f64 {
    rp__vf64 lo, hi;
} g_f64;
typedef struct g_i64 {
    rp__vi64 lo, hi;
} g_i64;

/* floor(x / y) as PyTorch computes it: from fmod, so that the quotient of near-integers is not off by one. */
#define RP__FLOOR_DIVIDE(t, T)                                                                                         \
    RP__VMATH_FN rp__v##t rp__v_floor_divide_##t(rp__v##t x, rp__v##t y) {                                             \
        rp__v##t mod = rp__v_fmod_##t(x, y), div = (x - mod) / y;                                                      \
        div = rp__v_sel_##t((mod != 0) & ((y < 0) ^ (mod < 0)), div - 1, div);                                         \
        rp__v##t fl = rp__v_floor_##t(div), plain = x / y;                                                             \
        fl = rp__v_sel_##t(div - fl > (T)0.5, fl + 1, fl);                                                             \
        fl = rp__v_sel_##t(div != 0, fl, rp__v_copysign_##t((rp__v##t){0}, plain));                                    \
        return rp__v_sel_##t(y == 0, plain, fl);                                                                       \
    }
RP__FLOOR_DIVIDE(f32, float)
RP__FLOOR_DIVIDE(f64, double)

/* Greatest common divisor, lane by lane: Euclid on magnitudes. */
#define RP__GCD(t, V, T, U)                                                                                            \
    RP__VMATH_FN V rp__v_gcd_##t(V x, V y) {                                                                           \
        for (unsigned i = 0; i < sizeof x / sizeof(T); i++) {                                                          \
            U a = x[i] < 0 ? -(U)x[i] : (U)x[i], b = y[i] < 0 ? -(U)y[i] : (U)y[i];                                    \
            while (b) {                                                                                                \
                const U r = a % b;                                                                                     \
                a = b;                                                                                                 \
                b = r;                                                                                                 \
            }                                                                                                          \
            x[i] = (T)a;                                                                                               \
        }                                                                                                              \
        return x;                                                                                                      \
    }
RP__GCD(i32, rp__vi32, int32_t, uint32_t)
RP__GCD(i64, rp__vi64, int64_t, uint64_t)

/* ---- memory ---- */
G_FN g_f32 g_load_f32(const char *p, int64_t i, int64_t s) { return rp__v_load_f32(p + i * s * 4); }
G_FN g_i32 g_load_i32(const char *p, int64_t i, int64_t s) { return rp__v_load_i32(p + i * s * 4); }
G_FN g_f64 g_load_f64(const char *p, int64_t i, int64_t s) {
    return (g_f64){rp__v_load_f64(p + i * s * 8), rp__v_load_f64(p + (i + G_H) * s * 8)};
}
G_FN g_i64 g_load_i64(const char *p, int64_t i, int64_t s) {
    return (g_i64){rp__v_load_i64(p + i * s * 8), rp__v_load_i64(p + (i + G_H) * s * 8)};
}
G_FN g_u8 g_load_u8(const char *p, int64_t i, int64_t s) { return rp__v_load_i32_u8(p + i * s); }
G_FN g_bool g_load_bool(const char *p, int64_t i, int64_t s) { return g_load_u8(p, i, s) != 0; } /* any byte but 0 */
G_FN void g_store_f32(char *p, int64_t i, g_f32 x) { rp__v_store_f32(p + i * 4, x); }
G_FN void g_store_i32(char *p, int64_t i, g_i32 x) { rp__v_store_i32(p + i * 4, x); }
G_FN void g_store_f64(char *p, int64_t i, g_f64 x) {
    rp__v_store_f64(p + i * 8, x.lo);
    rp__v_store_f64(p + (i + G_H) * 8, x.hi);
}
G_FN void g_store_i64(char *p, int64_t i, g_i64 x) {
    rp__v_store_i64(p + i * 8, x.lo);
    rp__v_store_i64(p + (i + G_H) * 8, x.hi);
}
G_FN void g_store_u8(char *p, int64_t i, g_u8 x) { rp__v_store_u8_i32(p + i, x); }
G_FN void g_store_bool(char *p, int64_t i, g_bool x) { g_store_u8(p, i, x & 1); }

/* ---- what is left of a row: `bytes` bytes, fewer than 32 elements of `size` have, into a buffer that has room for 32 (in) or out of one, by
   parts of a vector's elements; bytes of a group that are not there become 0. What reads a buffer as vectors waits for no part of a part where the
   machine stores whole ones. Sizes that have no masks are few or slow anyway: once, so that compilers have less to do. ---- */
#if defined(__AVX512BW__) && defined(__AVX512VL__) && RP_VEC_BYTES == 64
typedef char g_part64 __attribute__((vector_size(64), may_alias));
typedef char g_part32 __attribute__((vector_size(32), may_alias));
typedef char g_part16 __attribute__((vector_size(16), may_alias));
#define G_PART(bits, bytes, M)                                                                                         \
    G_FN void g_in_##bytes(char *to, const char *from, int64_t n) {                                                    \
        const M mask = (M)(n < bytes ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0));                                         \
        *(g_part##bytes *)(void *)to =                                                                                 \
            __builtin_ia32_loaddquqi##bits##_mask((const void *)from, (g_part##bytes){0}, mask);                       \
    }                                                                                                                  \
    G_FN void g_out_##bytes(char *to, const char *from, int64_t n) {                                                   \
        const M mask = (M)(n < bytes ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0));                                         \
        __builtin_ia32_storedquqi##bits##_mask((void *)to, *(const g_part##bytes *)(const void *)from, mask);          \
    }
G_PART(512, 64, uint64_t)
G_PART(256, 32, uint32_t)
G_PART(128, 16, uint16_t)
#define G_SOME(way)                                                                                                    \
    G_FN void g_##way(char *to, const char *from, int64_t bytes, const int size) {                                     \
        if (size == 1)                                                                                                 \
            for (int64_t at = 0; at < bytes; at += 16) g_##way##_16(to + at, from + at, bytes - at);                   \
        else if (size == 2)                                                                                            \
            for (int64_t at = 0; at < bytes; at += 32) g_##way##_32(to + at, from + at, bytes - at);                   \
        else if (size == 4)                                                                                            \
            for (int64_t at = 0; at < bytes; at += 64) g_##way##_64(to + at, from + at, bytes - at);                   \
        else                                                                                                           \
            for (int64_t at = 0; at < bytes; at += 128) {                                                              \
                g_##way##_64(to + at, from + at, bytes - at);                                                          \
                g_##way##_64(to + at + 64, from + at + 64, bytes - at < 64 ? 0 : bytes - at - 64);                     \
            }                                                                                                          \
    }
G_SOME(in)
G_SOME(out)
#else
/* Powers of two, so that none is a call; behind them zeros up to a whole vector. */
static __attribute__((noinline, unused)) void g_some(char *to, const char *from, int64_t bytes, int64_t zeros) {
    for (int64_t at = 0; at + 64 <= bytes; at += 64, to += 64, from += 64) __builtin_memcpy(to, from, 64);
#define G_BIT(bit)                                                                                                     \
    if (bytes & bit) __builtin_memcpy(to, from, bit), to += bit, from += bit
    G_BIT(32);
    G_BIT(16);
    G_BIT(8);
    G_BIT(4);
    G_BIT(2);
    G_BIT(1);
#undef G_BIT
    for (int64_t k = 0; k < zeros; k++) to[k] = 0;
}
#if defined(__AVX2__) && RP_VEC_BYTES == 32
typedef int g_part32 __attribute__((vector_size(32), may_alias));
G_FN g_part32 g_there(int64_t n) { return (g_part32){0, 4, 8, 12, 16, 20, 24, 28} < (int)n; }
#endif
G_FN void g_in(char *to, const char *from, int64_t bytes, const int size) {
#if defined(__AVX2__) && RP_VEC_BYTES == 32
    for (int64_t at = 0; size >= 4 && (at < bytes || at % (8 * size)); at += 32)
        *(g_part32 *)(void *)(to + at) = __builtin_ia32_maskloadd256((const void *)(from + at), g_there(bytes - at));
    if (size >= 4) return;
#endif
    g_some(to, from, bytes, -bytes & (G_N * size - 1));
}
G_FN void g_out(char *to, const char *from, int64_t bytes, const int size) {
#if defined(__AVX2__) && RP_VEC_BYTES == 32
    for (int64_t at = 0; size >= 4 && at < bytes; at += 32)
        __builtin_ia32_maskstored256((void *)(to + at), g_there(bytes - at),
                                     *(const g_part32 *)(const void *)(from + at));
    if (size >= 4) return;
#endif
    (void)size;
    g_some(to, from, bytes, 0);
}
#endif

/* ---- masks ---- */
G_FN rp__vi64 g_mask_lo(g_bool m) { return rp__v_lo_i64_i32(m); }
G_FN rp__vi64 g_mask_hi(g_bool m) { return rp__v_hi_i64_i32(m); }
/* Lanes below n. */
G_FN g_bool g_first(int64_t n) {
    rp__vi32 lane;
    for (int i = 0; i < G_N; i++) lane[i] = i;
    return lane < (int32_t)n;
}
G_FN g_f32 g_where_f32(g_bool m, g_f32 x, g_f32 y) { return rp__v_sel_f32(m, x, y); }
G_FN g_i32 g_where_i32(g_bool m, g_i32 x, g_i32 y) { return rp__v_sel_i32(m, x, y); }
G_FN g_u8 g_where_u8(g_bool m, g_u8 x, g_u8 y) { return rp__v_sel_i32(m, x, y); }
G_FN g_bool g_where_bool(g_bool m, g_bool x, g_bool y) { return rp__v_sel_i32(m, x, y); }
G_FN g_f64 g_where_f64(g_bool m, g_f64 x, g_f64 y) {
    return (g_f64){rp__v_sel_f64(g_mask_lo(m), x.lo, y.lo), rp__v_sel_f64(g_mask_hi(m), x.hi, y.hi)};
}
G_FN g_f32 g_fma_f32(g_f32 x, g_f32 y, g_f32 z) { return rp__v_fma_f32(x, y, z); }
G_FN g_f64 g_fma_f64(g_f64 x, g_f64 y, g_f64 z) {
    return (g_f64){rp__v_fma_f64(x.lo, y.lo, z.lo), rp__v_fma_f64(x.hi, y.hi, z.hi)};
}
G_FN g_i64 g_where_i64(g_bool m, g_i64 x, g_i64 y) {
    return (g_i64){rp__v_sel_i64(g_mask_lo(m), x.lo, y.lo), rp__v_sel_i64(g_mask_hi(m), x.hi, y.hi)};
}

/* ---- arithmetic: G_1 and G_2 make a primitive of floats from an expression on vectors ---- */
#define G_1(name, F32, F64)                                                                                            \
    G_FN g_f32 g_##name##_f32(g_f32 x) { return F32; }                                                                 \
    G_FN rp__vf64 g_##name##_half(rp__vf64 x) { return F64; }                                                          \
    G_FN g_f64 g_##name##_f64(g_f64 x) { return (g_f64){g_##name##_half(x.lo), g_##name##_half(x.hi)}; }
#define G_2(name, F32, F64)                                                                                            \
    G_FN g_f32 g_##name##_f32(g_f32 x, g_f32 y) { return F32; }                                                        \
    G_FN rp__vf64 g_##name##_half(rp__vf64 x, rp__vf64 y) { return F64; }                                              \
    G_FN g_f64 g_##name##_f64(g_f64 x, g_f64 y) {                                                                      \
        return (g_f64){g_##name##_half(x.lo, y.lo), g_##name##_half(x.hi, y.hi)};                                      \
    }
#define G_V1(name) G_1(name, rp__v_##name##_f32(x), rp__v_##name##_f64(x))
#define G_V2(name) G_2(name, rp__v_##name##_f32(x, y), rp__v_##name##_f64(x, y))
#ifndef RP_PASTED /* emitted C has these as lines of their own */
#define RP_MATH1(prim, f, cost) G_V1(f)
#define RP_MATH2(prim, f, cost) G_V2(f)
#include "kernel/prims.def"
#endif
G_2(add, x + y, x + y)
G_2(sub, x - y, x - y)
G_2(mul, x *y, x *y)
G_2(div, x / y, x / y)
G_2(floordiv, rp__v_floor_divide_f32(x, y), rp__v_floor_divide_f64(x, y))
G_V2(remainder)
G_V2(max)
G_V2(min)
G_V1(neg)
G_V1(abs)
G_1(sign, (g_f32)((x > 0) & (g_i32)rp__v_splat_f32(1)) - (g_f32)((x < 0) & (g_i32)rp__v_splat_f32(1)),
    (rp__vf64)((x > 0) & (rp__vi64)rp__v_splat_f64(1)) - (rp__vf64)((x < 0) & (rp__vi64)rp__v_splat_f64(1)))
G_V1(rsqrt)
G_1(recip, 1 / x, 1 / x)
G_1(erfp1, rp__v_erf_f32(x) + 1, rp__v_erf_f64(x) + 1)
G_V1(sigmoid)
G_FN g_bool g_isnan_f32(g_f32 x) { return x != x; }
G_FN g_bool g_isnan_f64(g_f64 x) { return rp__v_i32_i64(x.lo != x.lo, x.hi != x.hi); }

#define G_COMPARE(name, OP)                                                                                            \
    G_FN g_bool g_##name##_f32(g_f32 x, g_f32 y) { return x OP y; }                                                    \
    G_FN g_bool g_##name##_i32(g_i32 x, g_i32 y) { return x OP y; }                                                    \
    G_FN g_bool g_##name##_u8(g_u8 x, g_u8 y) { return x OP y; }                                                       \
    G_FN g_bool g_##name##_bool(g_bool x, g_bool y) { return (x & 1) OP(y & 1); }                                      \
    G_FN g_bool g_##name##_f64(g_f64 x, g_f64 y) { return rp__v_i32_i64(x.lo OP y.lo, x.hi OP y.hi); }                 \
    G_FN g_bool g_##name##_i64(g_i64 x, g_i64 y) { return rp__v_i32_i64(x.lo OP y.lo, x.hi OP y.hi); }
G_COMPARE(eq, ==)
G_COMPARE(ne, !=)
G_COMPARE(lt, <)
G_COMPARE(le, <=)

/* Integers wrap: arithmetic on the unsigned twin. */
#define G_INT1(name, X32, X64, U8)                                                                                     \
    G_FN g_i32 g_##name##_i32(g_i32 x) { return X32; }                                                                 \
    G_FN rp__vi64 g_##name##_ihalf(rp__vi64 x) { return X64; }                                                         \
    G_FN g_i64 g_##name##_i64(g_i64 x) { return (g_i64){g_##name##_ihalf(x.lo), g_##name##_ihalf(x.hi)}; }             \
    G_FN g_u8 g_##name##_u8(g_u8 x) { return U8; }
#define G_INT2(name, X32, X64, U8)                                                                                     \
    G_FN g_i32 g_##name##_i32(g_i32 x, g_i32 y) { return X32; }                                                        \
    G_FN rp__vi64 g_##name##_ihalf(rp__vi64 x, rp__vi64 y) { return X64; }                                             \
    G_FN g_i64 g_##name##_i64(g_i64 x, g_i64 y) {                                                                      \
        return (g_i64){g_##name##_ihalf(x.lo, y.lo), g_##name##_ihalf(x.hi, y.hi)};                                    \
    }                                                                                                                  \
    G_FN g_u8 g_##name##_u8(g_u8 x, g_u8 y) { return U8; }
#define G_WRAP(name, OP)                                                                                               \
    G_INT2(name, (g_i32)((rp__vu32)x OP(rp__vu32) y), (rp__vi64)((rp__vu64)x OP(rp__vu64) y),                          \
           (g_i32)((rp__vu32)x OP(rp__vu32) y) & 255)
G_WRAP(add, +)
G_WRAP(sub, -)
G_WRAP(mul, *)
G_INT2(and, x &y, x &y, x &y)
G_INT2(or, x | y, x | y, x | y)
G_INT2(xor, x ^ y, x ^ y, x ^ y)
G_INT2(shl, (g_i32)((rp__vu32)x << ((rp__vu32)y & 31)), (rp__vi64)((rp__vu64)x << ((rp__vu64)y & 63)),
       (x << (y & 7)) & 255)
G_INT2(shr, x >> (y & 31), x >> (y & 63), x >> (y & 7))
G_INT2(gcd, rp__v_gcd_i32(x, y), rp__v_gcd_i64(x, y), rp__v_gcd_i32(x, y))
G_INT2(max, rp__v_max_i32(x, y), rp__v_max_i64(x, y), rp__v_max_i32(x, y))
G_INT2(min, rp__v_min_i32(x, y), rp__v_min_i64(x, y), rp__v_min_i32(x, y))
G_INT1(neg, (g_i32)(-(rp__vu32)x), (rp__vi64)(-(rp__vu64)x), (g_i32)(-(rp__vu32)x) & 255)
G_INT1(abs, rp__v_sel_i32(x < 0, (g_i32)(-(rp__vu32)x), x), rp__v_sel_i64(x < 0, (rp__vi64)(-(rp__vu64)x), x), x)
G_INT1(sign, (x < 0) - (x > 0), (x < 0) - (x > 0), (x != 0) & 1)
G_INT1(not, ~x, ~x, ~x & 255)
G_FN g_bool g_and_bool(g_bool x, g_bool y) { return x & y; }
G_FN g_bool g_or_bool(g_bool x, g_bool y) { return x | y; }
G_FN g_bool g_xor_bool(g_bool x, g_bool y) { return x ^ y; }
G_FN g_bool g_not_bool(g_bool x) { return ~x; }

/* ---- casts ---- */
G_FN g_i64 g_cast_i32_i64(g_i32 x) { return (g_i64){rp__v_lo_i64_i32(x), rp__v_hi_i64_i32(x)}; }
G_FN g_i32 g_cast_i64_i32(g_i64 x) { return rp__v_i32_i64(x.lo, x.hi); }
G_FN g_f64 g_cast_f32_f64(g_f32 x) { return (g_f64){rp__v_lo_f64_f32(x), rp__v_hi_f64_f32(x)}; }
G_FN g_f32 g_cast_f64_f32(g_f64 x) { return rp__v_f32_f64(x.lo, x.hi); }
G_FN g_f64 g_cast_i64_f64(g_i64 x) { return (g_f64){rp__v_f64_i64(x.lo), rp__v_f64_i64(x.hi)}; }
G_FN g_f32 g_cast_i64_f32(g_i64 x) { /* one rounding */
    rp__vf32h lo = __builtin_convertvector(x.lo, rp__vf32h), hi = __builtin_convertvector(x.hi, rp__vf32h);
    return RP__VEC_CAT(lo, hi);
}
G_FN g_f32 g_cast_i32_f32(g_i32 x) { return rp__v_f32_i32(x); }
G_FN g_f64 g_cast_i32_f64(g_i32 x) { return g_cast_i64_f64(g_cast_i32_i64(x)); }
G_FN g_i32 g_cast_f32_i32(g_f32 x) {
    return rp__v_sel_i32(x >= 0x1p31f, rp__v_splat_i32(INT32_MAX), rp__v_i32_f32(x)) & (x == x);
}
G_FN rp__vi64 g_i64_half(rp__vf64 x) {
    return rp__v_sel_i64(x >= 0x1p63, rp__v_splat_i64(INT64_MAX), rp__v_i64_f64(x)) & (x == x);
}
G_FN g_i64 g_cast_f64_i64(g_f64 x) { return (g_i64){g_i64_half(x.lo), g_i64_half(x.hi)}; }
G_FN g_i64 g_cast_f32_i64(g_f32 x) { return g_cast_f64_i64(g_cast_f32_f64(x)); }
G_FN rp__vi64 g_i32_half(rp__vf64 x) {
    rp__vi64 r = rp__v_i64_f64((rp__vf64)((rp__vi64)x & (rp__v_abs_f64(x) < 0x1p31)));
    r = rp__v_sel_i64(x >= 0x1p31, rp__v_splat_i64(INT32_MAX), r);
    return rp__v_sel_i64(x <= -0x1p31, rp__v_splat_i64(INT32_MIN), r);
}
G_FN g_i32 g_cast_f64_i32(g_f64 x) { return rp__v_i32_i64(g_i32_half(x.lo), g_i32_half(x.hi)); }
G_FN g_u8 g_cast_i32_u8(g_i32 x) { return x & 255; }
G_FN g_u8 g_cast_i64_u8(g_i64 x) { return g_cast_i64_i32(x) & 255; }
G_FN g_u8 g_cast_f32_u8(g_f32 x) { return g_cast_i64_u8(g_cast_f32_i64(x)); }
G_FN g_u8 g_cast_f64_u8(g_f64 x) { return g_cast_i64_u8(g_cast_f64_i64(x)); }
G_FN g_i32 g_cast_u8_i32(g_u8 x) { return x; }
G_FN g_i64 g_cast_u8_i64(g_u8 x) { return g_cast_i32_i64(x); }
G_FN g_f32 g_cast_u8_f32(g_u8 x) { return rp__v_f32_i32(x); }
G_FN g_f64 g_cast_u8_f64(g_u8 x) { return g_cast_i32_f64(x); }
G_FN g_u8 g_cast_bool_u8(g_bool x) { return x & 1; }
G_FN g_i32 g_cast_bool_i32(g_bool x) { return x & 1; }
G_FN g_i64 g_cast_bool_i64(g_bool x) { return g_cast_i32_i64(x & 1); }
G_FN g_f32 g_cast_bool_f32(g_bool x) { return (g_f32)(x & (g_i32)rp__v_splat_f32(1)); }
G_FN g_f64 g_cast_bool_f64(g_bool x) { return g_cast_i32_f64(x & 1); }
G_FN g_bool g_cast_f32_bool(g_f32 x) { return ~(x == 0); }
G_FN g_bool g_cast_i32_bool(g_i32 x) { return x != 0; }
G_FN g_bool g_cast_u8_bool(g_u8 x) { return x != 0; }
G_FN g_bool g_cast_f64_bool(g_f64 x) { return ~rp__v_i32_i64(x.lo == 0, x.hi == 0); }
G_FN g_bool g_cast_i64_bool(g_i64 x) { return rp__v_i32_i64(x.lo != 0, x.hi != 0); }
G_FN g_f32 g_round_f16(g_f32 x) { return rp__v_f32_f16(rp__v_f16_f32(x)); }
G_FN g_f32 g_round_bf16(g_f32 x) { return rp__v_round_bf16(x); }
G_FN g_i32 g_round_i8(g_i32 x) { return (g_i32)((rp__vu32)x << 24) >> 24; }
G_FN g_i32 g_round_i16(g_i32 x) { return (g_i32)((rp__vu32)x << 16) >> 16; }

/* ---- reductions: sum and prod of f32, f64, i64; max and min of numbers; any and all of bools ---- */
#define g_red_sum_f32 g_add_f32
#define g_red_sum_f64 g_add_f64
#define g_red_sum_i64 g_add_i64
#define g_red_prod_f32 g_mul_f32
#define g_red_prod_f64 g_mul_f64
#define g_red_prod_i64 g_mul_i64
#define g_red_max_f32 g_max_f32
#define g_red_max_f64 g_max_f64
#define g_red_max_i32 g_max_i32
#define g_red_max_i64 g_max_i64
#define g_red_max_u8 g_max_u8
#define g_red_min_f32 g_min_f32
#define g_red_min_f64 g_min_f64
#define g_red_min_i32 g_min_i32
#define g_red_min_i64 g_min_i64
#define g_red_min_u8 g_min_u8
#define g_red_any_bool g_or_bool
#define g_red_all_bool g_and_bool

/* ---- for line functions: narrow storage, single elements, the end of a chunk ---- */
G_FN g_f32 g_load_f16(const char *p, int64_t i, int64_t s) { return rp__v_f32_f16(rp__v_load_u16h(p + i * s * 2)); }
G_FN g_f32 g_load_bf16(const char *p, int64_t i, int64_t s) { return rp__v_f32_bf16(rp__v_load_u16h(p + i * s * 2)); }
G_FN void g_store_f16(char *p, int64_t i, g_f32 x) { rp__v_store_u16h(p + i * 2, rp__v_f16_f32(x)); }
G_FN void g_store_bf16(char *p, int64_t i, g_f32 x) { rp__v_store_u16h(p + i * 2, rp__v_bf16_f32(x)); }
G_FN g_i32 g_load_i8(const char *p, int64_t i, int64_t s) { return g_round_i8(g_load_u8(p, i, s)); }
G_FN g_i32 g_load_i16(const char *p, int64_t i, int64_t s) {
    return g_round_i16((g_i32)rp__v_u32_u16(rp__v_load_u16h(p + i * s * 2)));
}
G_FN void g_store_i8(char *p, int64_t i, g_i32 x) { g_store_u8(p, i, x); }
G_FN rp__vu16h g_low_i16(g_i32 x) { return rp__v_u16_u32((rp__vu32)x & 0xffff); } /* which saturates */
G_FN void g_store_i16(char *p, int64_t i, g_i32 x) { rp__v_store_u16h(p + i * 2, g_low_i16(x)); }

/* Exponentials of 32 elements: one test for the usual range, |x| < 87, so that the vectors' chains overlap and share constants.
 * Without their signs floats compare as integers do, NaNs above all. */
G_FN void g_exp_turn(const g_f32 *x, g_f32 *y) {
    enum { K = 32 / G_N };
    g_i32 far = (g_i32)rp__v_abs_f32(x[0]);
#pragma GCC unroll 8
    for (int k = 1; k < K; k++) far = rp__v_max_i32(far, (g_i32)rp__v_abs_f32(x[k]));
    if (__builtin_expect(!rp__v_all_i32(far < 0x42ae0000), 0)) {
#pragma GCC unroll 8
        for (int k = 0; k < K; k++) y[k] = rp__v_exp_far_f32(x[k]); /* the same bits where |x| is small */
    } else {
#pragma GCC unroll 8
        for (int k = 0; k < K; k++) y[k] = rp__v_exp_mid_f32(x[k]);
    }
}
/* Error functions of 32 elements, two vectors at a time. */
G_FN void g_erf_turn(const g_f32 *x, g_f32 *y) {
    enum { K = 32 / G_N };
#ifdef RP__VEC_FMA_OF_PARTS
    for (int k = 0; k < K; k++) y[k] = rp__v_erf_f32(x[k]);
#else
#pragma GCC unroll 8
    for (int k = 0; k < K; k += 2) rp__v_erf_n_f32(x + k, y + k, 2);
#endif
}

/* One value in all lanes, from the low bytes of a pattern; from memory; the first lane to memory. */
G_FN g_f32 g_bits_f32(uint64_t u) { return (g_f32)rp__v_splat_i32((int32_t)u); }
G_FN g_i32 g_bits_i32(uint64_t u) { return rp__v_splat_i32((int32_t)u); }
G_FN g_u8 g_bits_u8(uint64_t u) { return rp__v_splat_i32((int32_t)u & 255); }
G_FN g_bool g_bits_bool(uint64_t u) { return rp__v_splat_i32(-((u & 255) != 0)); }
G_FN g_i64 g_bits_i64(uint64_t u) { return (g_i64){rp__v_splat_i64((int64_t)u), rp__v_splat_i64((int64_t)u)}; }
G_FN g_f64 g_bits_f64(uint64_t u) {
    return (g_f64){(rp__vf64)rp__v_splat_i64((int64_t)u), (rp__vf64)rp__v_splat_i64((int64_t)u)};
}
#define G_ONE(name, type, bytes)                                                                                       \
    G_FN g_##type g_one_##name(const char *p) {                                                                        \
        uint64_t u = 0;                                                                                                \
        __builtin_memcpy(&u, p, bytes);                                                                                \
        return g_bits_##type(u);                                                                                       \
    }
G_ONE(f32, f32, 4)
G_ONE(f64, f64, 8)
G_ONE(i32, i32, 4)
G_ONE(i64, i64, 8)
G_ONE(u8, u8, 1)
G_ONE(bool, bool, 1)
#define G_PUT(name, type, bytes)                                                                                       \
    G_FN void g_put_##name(char *p, g_##type x) {                                                                      \
        char all[RP_VEC_BYTES * 2];                                                                                    \
        g_store_##name(all, 0, x);                                                                                     \
        __builtin_memcpy(p, all, bytes);                                                                               \
    }
G_PUT(f32, f32, 4)
G_PUT(f64, f64, 8)
G_PUT(i32, i32, 4)
G_PUT(i64, i64, 8)
G_PUT(u8, u8, 1)
G_PUT(bool, bool, 1)
G_PUT(f16, f32, 2)
G_PUT(bf16, f32, 2)
G_PUT(i8, i32, 1)
G_PUT(i16, i32, 2)
/* The first lane; numbers from `first` on. */
G_FN int64_t g_get_i64(g_i64 x) { return x.lo[0]; }
G_FN int g_get_bool(g_bool x) { return x[0] != 0; }
G_FN g_i64 g_count_i64(int64_t first) {
    rp__vi64 lane;
    for (int i = 0; i < G_N / 2; i++) lane[i] = i;
    return (g_i64){lane + first, lane + (first + G_N / 2)};
}
#define G_ONE_NARROW(name, type, bytes)                                                                                \
    G_FN g_##type g_one_##name(const char *p) {                                                                        \
        char all[RP_VEC_BYTES];                                                                                        \
        for (int i = 0; i < G_N; i++) __builtin_memcpy(all + (bytes)*i, p, bytes);                                     \
        return g_load_##name(all, 0, 1);                                                                               \
    }
G_ONE_NARROW(f16, f32, 2)
G_ONE_NARROW(bf16, f32, 2)
G_ONE_NARROW(i8, i32, 1)
G_ONE_NARROW(i16, i32, 2)

/* The 32 lanes of a chunk become one value in all lanes: lane j with j + 16, then j + 8, 4, 2, 1. G_TURN brings lane j + s to
   j. */
#define G_TURN2(x, s) __builtin_shufflevector(x, x, (s)&1, (1 + (s)) & 1)
#define G_TURN4(x, s) __builtin_shufflevector(x, x, (s)&3, (1 + (s)) & 3, (2 + (s)) & 3, (3 + (s)) & 3)
#define G_TURN8(x, s)                                                                                                  \
    __builtin_shufflevector(x, x, (s)&7, (1 + (s)) & 7, (2 + (s)) & 7, (3 + (s)) & 7, (4 + (s)) & 7, (5 + (s)) & 7,    \
                            (6 + (s)) & 7, (7 + (s)) & 7)
#if RP_VEC_BYTES == 16
#define G_TREE(op, a) op(op(op(a[0], a[4]), op(a[2], a[6])), op(op(a[1], a[5]), op(a[3], a[7])))
#define G_FOLD_1(op, T, x) x = op(x, G_TURN4(x, 2)), x = op(x, G_TURN4(x, 1))
#define G_FOLD_2(op, T, x) x = op(x, ((T){x.hi, x.hi})), x = op(x, ((T){G_TURN2(x.lo, 1), x.hi}))
#elif RP_VEC_BYTES == 32
#define G_TREE(op, a) op(op(a[0], a[2]), op(a[1], a[3]))
#define G_FOLD_1(op, T, x) x = op(x, G_TURN8(x, 4)), x = op(x, G_TURN8(x, 2)), x = op(x, G_TURN8(x, 1))
#define G_FOLD_2(op, T, x)                                                                                             \
    x = op(x, ((T){x.hi, x.hi})), x = op(x, ((T){G_TURN4(x.lo, 2), x.hi})), x = op(x, ((T){G_TURN4(x.lo, 1), x.hi}))
#else
#define G_TREE(op, a) op(a[0], a[1])
#define G_TURN16(x, s)                                                                                                 \
    __builtin_shufflevector(x, x, (s)&15, (1 + (s)) & 15, (2 + (s)) & 15, (3 + (s)) & 15, (4 + (s)) & 15,              \
                            (5 + (s)) & 15, (6 + (s)) & 15, (7 + (s)) & 15, (8 + (s)) & 15, (9 + (s)) & 15,            \
                            (10 + (s)) & 15, (11 + (s)) & 15, (12 + (s)) & 15, (13 + (s)) & 15, (14 + (s)) & 15,       \
                            (15 + (s)) & 15)
#define G_FOLD_1(op, T, x)                                                                                             \
    x = op(x, G_TURN16(x, 8)), x = op(x, G_TURN16(x, 4)), x = op(x, G_TURN16(x, 2)), x = op(x, G_TURN16(x, 1))
#define G_FOLD_2(op, T, x)                                                                                             \
    x = op(x, ((T){x.hi, x.hi})), x = op(x, ((T){G_TURN8(x.lo, 4), x.hi})), x = op(x, ((T){G_TURN8(x.lo, 2), x.hi})),  \
    x = op(x, ((T){G_TURN8(x.lo, 1), x.hi}))
#endif
#define G_END(kind, t, FOLD, ALL)                                                                                      \
    G_FN g_##t g_end_##kind##_##t(const g_##t *a) {                                                                    \
        g_##t x = G_TREE(g_red_##kind##_##t, a);                                                                       \
        FOLD(g_red_##kind##_##t, g_##t, x);                                                                            \
        return ALL;                                                                                                    \
    }
#define G_ALL_64(splat)                                                                                                \
    { splat(x.lo[0]), splat(x.lo[0]) }
#define G_END_32(kind, t, splat) G_END(kind, t, G_FOLD_1, splat(x[0]))
#define G_END_64(kind, t, splat) G_END(kind, t, G_FOLD_2, ((g_##t)G_ALL_64(splat)))
G_END_32(sum, f32, rp__v_splat_f32)
G_END_32(prod, f32, rp__v_splat_f32)
G_END_32(max, f32, rp__v_splat_f32)
G_END_32(min, f32, rp__v_splat_f32)
G_END_32(max, i32, rp__v_splat_i32)
G_END_32(min, i32, rp__v_splat_i32)
G_END_32(max, u8, rp__v_splat_i32)
G_END_32(min, u8, rp__v_splat_i32)
G_END_32(any, bool, rp__v_splat_i32)
G_END_32(all, bool, rp__v_splat_i32)
G_END_64(sum, f64, rp__v_splat_f64)
G_END_64(prod, f64, rp__v_splat_f64)
G_END_64(max, f64, rp__v_splat_f64)
G_END_64(min, f64, rp__v_splat_f64)
G_END_64(sum, i64, rp__v_splat_i64)
G_END_64(prod, i64, rp__v_splat_i64)
G_END_64(max, i64, rp__v_splat_i64)
G_END_64(min, i64, rp__v_splat_i64)

/* Stores of full vectors that pass the caches by, where the machine has them. */
#if defined(__clang__) && defined(__SSE2__)
#define G_PAST(p, x) __builtin_nontemporal_store(x, (__typeof__(x) *)(void *)(p))
#elif defined(__SSE2__) && RP_VEC_BYTES == 16
#define G_PAST(p, x) __builtin_ia32_movntps((float *)(void *)(p), (rp__vf32)(x))
#elif defined(__AVX__) && RP_VEC_BYTES == 32
#define G_PAST(p, x) __builtin_ia32_movntps256((float *)(void *)(p), (rp__vf32)(x))
#elif defined(__AVX512F__) && RP_VEC_BYTES == 64
#define G_PAST(p, x) __builtin_ia32_movntps512((float *)(void *)(p), (rp__vf32)(x))
#else
#define G_PAST(p, x) __builtin_memcpy(p, &(x), sizeof(x))
#endif
G_FN void g_past_f32(char *p, int64_t i, g_f32 x) { G_PAST(p + i * 4, x); }
G_FN void g_past_i32(char *p, int64_t i, g_i32 x) { G_PAST(p + i * 4, x); }
G_FN void g_past_f64(char *p, int64_t i, g_f64 x) {
    G_PAST(p + i * 8, x.lo);
    G_PAST(p + (i + G_H) * 8, x.hi);
}
G_FN void g_past_i64(char *p, int64_t i, g_i64 x) {
    G_PAST(p + i * 8, x.lo);
    G_PAST(p + (i + G_H) * 8, x.hi);
}
/* Half a vector: two stores fill a write-combining buffer as well as one. */
G_FN void g_past_half(char *p, rp__vu16h x) {
#if defined(__clang__) && defined(__SSE2__)
    __builtin_nontemporal_store(x, (rp__vu16h *)(void *)p);
#elif defined(__SSE2__) && RP_VEC_BYTES == 32
    __builtin_ia32_movntdq((void *)p, (long long __attribute__((vector_size(16))))x);
#elif defined(__AVX__) && RP_VEC_BYTES == 64
    __builtin_ia32_movntdq256((void *)p, (long long __attribute__((vector_size(32))))x);
#else
    rp__v_store_u16h(p, x);
#endif
}
G_FN void g_past_f16(char *p, int64_t i, g_f32 x) { g_past_half(p + i * 2, rp__v_f16_f32(x)); }
G_FN void g_past_bf16(char *p, int64_t i, g_f32 x) { g_past_half(p + i * 2, rp__v_bf16_f32(x)); }
G_FN void g_past_i16(char *p, int64_t i, g_i32 x) { g_past_half(p + i * 2, g_low_i16(x)); }
#define g_past_i8 g_store_i8
#define g_past_u8 g_store_u8
#define g_past_bool g_store_bool
G_FN void g_past_end(void) {
#if defined(__SSE2__)
    __builtin_ia32_sfence();
#endif
}

#endif
