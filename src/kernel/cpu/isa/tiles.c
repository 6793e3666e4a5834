/* Tile routines, compiled once an instruction set (RP_ISA, RP_VEC_BYTES): see tiles.h for the contract. A new primitive gets
   its routine and its table entry here, its C text in emit_c.c. Nothing here may depend on the width for its bits. */
#include <math.h>
#include <string.h>

#include "kernel/cpu/group.h"
#include "kernel/cpu/vec.h"
#include "kernel/cpu/vmath.h"

#include "kernel/cpu/tiles.h"
#if defined(__AVX512F__) && RP_VEC_BYTES == 64
#include <immintrin.h> /* loads at places, which nothing else says */
#endif

typedef uint8_t vu8 __attribute__((vector_size(RP_VEC_BYTES)));
typedef int8_t vs8 __attribute__((vector_size(RP_VEC_BYTES)));
typedef vu8 vu8u __attribute__((aligned(1), may_alias));
/* One byte for each lane of a 64-bit vector: bools beside floats. */
typedef uint8_t vb64 __attribute__((vector_size(RP_VEC_F64)));
typedef vb64 vb64u __attribute__((aligned(1), may_alias));

#define L_f32 RP_VEC_F32
#define L_f64 RP_VEC_F64
#define L_i32 RP_VEC_F32
#define L_i64 RP_VEC_F64
#define L_u8 RP_VEC_BYTES
#define V_f32 rp__vf32
#define V_f64 rp__vf64
#define V_i32 rp__vi32
#define V_i64 rp__vi64
#define V_u8 vu8
#define T_f32 float
#define T_f64 double
#define T_i32 int32_t
#define T_i64 int64_t
#define T_u8 uint8_t
RP__VEC_FN vu8 rp__v_load_u8(const void *p) { return *(const vu8u *)p; }
RP__VEC_FN void rp__v_store_u8(void *p, vu8 x) { *(vu8u *)p = x; }
RP__VEC_FN vu8 rp__v_splat_u8(uint8_t x) { return x - (vu8){0}; }
/* Bytes 0 or 1 to a mask and back. */
RP__VEC_FN rp__vi32 mask_load32(const uint8_t *p) { return -rp__v_load_i32_u8(p); }
RP__VEC_FN rp__vi64 mask_load64(const uint8_t *p) {
#if defined(__AVX512F__) && RP_VEC_BYTES == 64 && !defined(__clang__) /* as rp__v_load_i32_u8 */
    return -(rp__vi64)_mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(const void *)p));
#elif defined(__AVX2__) && RP_VEC_BYTES == 32 && !defined(__clang__)
    typedef long long pair __attribute__((vector_size(16)));
    typedef int word __attribute__((aligned(1), may_alias));
    return -(rp__vi64)__builtin_ia32_pmovzxbq256(
        (char __attribute__((vector_size(16))))(pair){*(const word *)(const void *)p, 0});
#else
    return -__builtin_convertvector(*(const vb64u *)p, rp__vi64);
#endif
}
RP__VEC_FN void mask_store32(uint8_t *p, rp__vi32 m) { rp__v_store_u8_i32(p, m & 1); }
RP__VEC_FN void mask_store64(uint8_t *p, rp__vi64 m) { *(vb64u *)p = __builtin_convertvector(m & 1, vb64); }
#define MASK_f32 32
#define MASK_f64 64
#define MASK_i32 32
#define MASK_i64 64
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* ---- arithmetic: macros over (name, type, expression in x, y) ------------------------------------------------------- */

#define UNARY(name, t, EXPR)                                                                                           \
    static void name##_##t(const rp__tile_call *c) {                                                                   \
        T_##t *d = c->d;                                                                                               \
        const T_##t *a = c->a;                                                                                         \
        const int64_t n = c->n, as = c->as;                                                                            \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            V_##t x = rp__v_load_##t(a + i * as);                                                                      \
            rp__v_store_##t(d + i, EXPR);                                                                              \
        }                                                                                                              \
    }
#define BINARY(name, t, EXPR)                                                                                          \
    static void name##_##t(const rp__tile_call *c) {                                                                   \
        T_##t *d = c->d;                                                                                               \
        const T_##t *a = c->a, *b = c->b;                                                                              \
        const int64_t n = c->n, as = c->as, bs = c->bs;                                                                \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            V_##t x = rp__v_load_##t(a + i * as), y = rp__v_load_##t(b + i * bs);                                      \
            rp__v_store_##t(d + i, EXPR);                                                                              \
        }                                                                                                              \
    }
#define COMPARE(name, t, EXPR)                                                                                         \
    static void name##_##t(const rp__tile_call *c) {                                                                   \
        uint8_t *d = c->d;                                                                                             \
        const T_##t *a = c->a, *b = c->b;                                                                              \
        const int64_t n = c->n, as = c->as, bs = c->bs;                                                                \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            V_##t x = rp__v_load_##t(a + i * as), y = rp__v_load_##t(b + i * bs);                                      \
            JOIN(mask_store, MASK_##t)(d + i, EXPR);                                                                   \
        }                                                                                                              \
    }

#define FLOAT_OPS(t, I, U, SIGNBIT)                                                                                    \
    BINARY(add, t, x + y)                                                                                              \
    BINARY(sub, t, x - y)                                                                                              \
    BINARY(mul, t, x *y)                                                                                               \
    BINARY(div, t, x / y)                                                                                              \
    BINARY(remainder, t, rp__v_remainder_##t(x, y))                                                                    \
    BINARY(floordiv, t, rp__v_floor_divide_##t(x, y))                                                                  \
    BINARY(max, t, rp__v_max_##t(x, y))                                                                                \
    BINARY(min, t, rp__v_min_##t(x, y))                                                                                \
    UNARY(neg, t, rp__v_neg_##t(x))                                                                                    \
    UNARY(abs, t, rp__v_abs_##t(x))                                                                                    \
    UNARY(sign, t, (V_##t)((x > 0) & (I)rp__v_splat_##t(1)) - (V_##t)((x < 0) & (I)rp__v_splat_##t(1)))                \
    UNARY(rsqrt, t, rp__v_rsqrt_##t(x))                                                                                \
    UNARY(recip, t, 1 / x)                                                                                             \
    UNARY(erfp1, t, rp__v_erf_##t(x) + 1)                                                                              \
    UNARY(sigmoid, t, rp__v_sigmoid_##t(x))                                                                            \
    static void isnan_##t(const rp__tile_call *c) {                                                                    \
        uint8_t *d = c->d;                                                                                             \
        const T_##t *a = c->a;                                                                                         \
        const int64_t n = c->n, as = c->as;                                                                            \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            V_##t x = rp__v_load_##t(a + i * as);                                                                      \
            JOIN(mask_store, MASK_##t)(d + i, x != x);                                                                 \
        }                                                                                                              \
    }

FLOAT_OPS(f32, rp__vi32, rp__vu32, INT32_MIN)
FLOAT_OPS(f64, rp__vi64, rp__vu64, INT64_MIN)
#define RP_MATH1(prim, f, cost) UNARY(f, f32, rp__v_##f##_f32(x)) UNARY(f, f64, rp__v_##f##_f64(x))
#define RP_MATH2(prim, f, cost) BINARY(f, f32, rp__v_##f##_f32(x, y)) BINARY(f, f64, rp__v_##f##_f64(x, y))
#include "kernel/prims.def"

RP__GCD(u8, vu8, uint8_t, uint8_t)
/* Integers wrap: arithmetic on the unsigned twin. */
#define INT_OPS(t, U)                                                                                                  \
    BINARY(add, t, (V_##t)((U)x + (U)y))                                                                               \
    BINARY(sub, t, (V_##t)((U)x - (U)y))                                                                               \
    BINARY(mul, t, (V_##t)((U)x * (U)y))                                                                               \
    BINARY(and, t, x &y)                                                                                               \
    BINARY(or, t, x | y)                                                                                               \
    BINARY(xor, t, x ^ y)                                                                                              \
    BINARY(shl, t, (V_##t)((U)x << ((U)y & (8 * sizeof(T_##t) - 1))))                                                  \
    BINARY(shr, t, x >> (y & (T_##t)(8 * sizeof(T_##t) - 1)))                                                          \
    BINARY(gcd, t, rp__v_gcd_##t(x, y))                                                                                \
    UNARY(neg, t, (V_##t)(-(U)x))                                                                                      \
    UNARY(not, t, ~x)
INT_OPS(i32, rp__vu32)
INT_OPS(i64, rp__vu64)
INT_OPS(u8, vu8)
#define SIGNED_OPS(t, U)                                                                                               \
    BINARY(max, t, rp__v_max_##t(x, y))                                                                                \
    BINARY(min, t, rp__v_min_##t(x, y))                                                                                \
    UNARY(abs, t, rp__v_sel_##t(x < 0, (V_##t)(-(U)x), x))                                                             \
    UNARY(sign, t, (x < 0) - (x > 0))
SIGNED_OPS(i32, rp__vu32)
SIGNED_OPS(i64, rp__vu64)
RP__VEC_FN vu8 rp__v_sel_u8(vs8 m, vu8 x, vu8 y) { return ((vu8)m & x) | (~(vu8)m & y); }
RP__VEC_FN vu8 rp__v_max_u8(vu8 x, vu8 y) { return rp__v_sel_u8(x > y, x, y); }
RP__VEC_FN vu8 rp__v_min_u8(vu8 x, vu8 y) { return rp__v_sel_u8(x < y, x, y); }
BINARY(max, u8, rp__v_max_u8(x, y))
BINARY(min, u8, rp__v_min_u8(x, y))
UNARY(abs, u8, x)
UNARY(sign, u8, (vu8)(x != 0) & 1)
static void not_bool(const rp__tile_call *c) {
    uint8_t *d = c->d;
    const uint8_t *a = c->a;
    const int64_t n = c->n, as = c->as;
    for (int64_t i = 0; i < n; i += L_u8) rp__v_store_u8(d + i, rp__v_load_u8(a + i * as) ^ 1);
}

#define COMPARES(t)                                                                                                    \
    COMPARE(eq, t, x == y)                                                                                             \
    COMPARE(ne, t, x != y)                                                                                             \
    COMPARE(lt, t, x < y)                                                                                              \
    COMPARE(le, t, x <= y)
COMPARES(f32)
COMPARES(f64)
COMPARES(i32)
COMPARES(i64)
BINARY(eq, u8, (vu8)(x == y) & 1)
BINARY(ne, u8, (vu8)(x != y) & 1)
BINARY(lt, u8, (vu8)(x < y) & 1)
BINARY(le, u8, (vu8)(x <= y) & 1)

#define WHERE(t)                                                                                                       \
    static void where_##t(const rp__tile_call *c) {                                                                    \
        T_##t *d = c->d;                                                                                               \
        const uint8_t *m = c->a;                                                                                       \
        const T_##t *a = c->b, *b = c->c;                                                                              \
        const int64_t n = c->n, ms = c->as, as = c->bs, bs = c->cs;                                                    \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            V_##t x = rp__v_load_##t(a + i * as), y = rp__v_load_##t(b + i * bs);                                      \
            rp__v_store_##t(d + i, rp__v_sel_##t(JOIN(mask_load, MASK_##t)(m + i * ms), x, y));                        \
        }                                                                                                              \
    }
WHERE(f32)
WHERE(f64)
WHERE(i32)
WHERE(i64)
#define FMA(t)                                                                                                         \
    static void fma_##t(const rp__tile_call *c) {                                                                      \
        T_##t *d = c->d;                                                                                               \
        const T_##t *a = c->a, *b = c->b, *e = c->c;                                                                   \
        const int64_t n = c->n, as = c->as, bs = c->bs, es = c->cs;                                                    \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            V_##t x = rp__v_load_##t(a + i * as), y = rp__v_load_##t(b + i * bs), z = rp__v_load_##t(e + i * es);      \
            rp__v_store_##t(d + i, rp__v_fma_##t(x, y, z));                                                            \
        }                                                                                                              \
    }
FMA(f32)
FMA(f64)
static void where_u8(const rp__tile_call *c) {
    uint8_t *d = c->d;
    const uint8_t *m = c->a, *a = c->b, *b = c->c;
    const int64_t n = c->n, ms = c->as, as = c->bs, bs = c->cs;
    for (int64_t i = 0; i < n; i += L_u8) {
        vu8 mask = -rp__v_load_u8(m + i * ms), x = rp__v_load_u8(a + i * as), y = rp__v_load_u8(b + i * bs);
        rp__v_store_u8(d + i, (mask & x) | (~mask & y));
    }
}

/* Integer division: exactly n elements, because a zero divisor is reported. */
#define INT_DIVIDE(t)                                                                                                  \
    static void floordiv_part_##t(const rp__tile_call *c, int64_t begin, int64_t end) {                                \
        T_##t *d = c->d;                                                                                               \
        const T_##t *a = c->a, *b = c->b;                                                                              \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            T_##t x = a[i * c->as], y = b[i * c->bs];                                                                  \
            if (y == 0) {                                                                                              \
                rp__error_record_put_division(c->env->errors, c->env->tag);                                            \
                d[i] = 0;                                                                                              \
            } else if (y == (T_##t) - 1 && (T_##t) - 1 < 0) {                                                          \
                d[i] = (T_##t)(0 - (uint64_t)x);                                                                       \
            } else {                                                                                                   \
                T_##t q = (T_##t)(x / y);                                                                              \
                d[i] = (T_##t)(q - (q * y != x && ((x < 0) != (y < 0))));                                              \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void remainder_part_##t(const rp__tile_call *c, int64_t begin, int64_t end) {                               \
        T_##t *d = c->d;                                                                                               \
        const T_##t *a = c->a, *b = c->b;                                                                              \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            T_##t x = a[i * c->as], y = b[i * c->bs];                                                                  \
            if (y == 0) {                                                                                              \
                rp__error_record_put_division(c->env->errors, c->env->tag);                                            \
                d[i] = 0;                                                                                              \
            } else if (y == (T_##t) - 1 && (T_##t) - 1 < 0) {                                                          \
                d[i] = 0;                                                                                              \
            } else {                                                                                                   \
                T_##t r = (T_##t)(x % y);                                                                              \
                d[i] = (T_##t)(r + (r != 0 && ((r < 0) != (y < 0)) ? y : 0));                                          \
            }                                                                                                          \
        }                                                                                                              \
    }
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits"
#endif
INT_DIVIDE(i32)
INT_DIVIDE(i64)
INT_DIVIDE(u8)
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#define DIVIDE_EACH(name, t)                                                                                           \
    static void name##_##t(const rp__tile_call *c) { name##_part_##t(c, 0, c->n); }
DIVIDE_EACH(floordiv, i64)
DIVIDE_EACH(remainder, i64)
DIVIDE_EACH(floordiv, u8)
DIVIDE_EACH(remainder, u8)
/* The quotient towards the floor, of y != 0. In f64, where it is as far from a whole number that it is not as 1 / y, which is more than rounding moves
   it. -2^31 / -1 wraps. */
RP__VEC_FN rp__vi32 floor_quotient(rp__vi32 x, rp__vi32 y) {
    const rp__vf64 lo = __builtin_convertvector(RP__VEC_LO(x), rp__vf64) /
                        __builtin_convertvector(RP__VEC_LO(y), rp__vf64),
                   hi = __builtin_convertvector(RP__VEC_HI(x), rp__vf64) /
                        __builtin_convertvector(RP__VEC_HI(y), rp__vf64);
    return rp__v_i32_i64((rp__vi64)(rp__v_floor_f64(lo) + RP__MAGIC_F64),
                         (rp__vi64)(rp__v_floor_f64(hi) + RP__MAGIC_F64));
}
#define DIVIDE_I32(name, EXPR)                                                                                         \
    static void name##_i32(const rp__tile_call *c) {                                                                   \
        int32_t *d = c->d;                                                                                             \
        const int32_t *a = c->a, *b = c->b;                                                                            \
        const int64_t n = c->n, as = c->as, bs = c->bs, full = n - n % L_i32;                                          \
        for (int64_t i = 0; i < full; i += L_i32) {                                                                    \
            const rp__vi32 x = rp__v_load_i32(a + i * as), y = rp__v_load_i32(b + i * bs);                             \
            if (RP__LIKELY(rp__v_all_i32(y != 0)))                                                                     \
                rp__v_store_i32(d + i, EXPR);                                                                          \
            else                                                                                                       \
                name##_part_i32(c, i, i + L_i32);                                                                      \
        }                                                                                                              \
        name##_part_i32(c, full, n);                                                                                   \
    }
DIVIDE_I32(floordiv, floor_quotient(x, y))
DIVIDE_I32(remainder, (rp__vi32)((rp__vu32)x - (rp__vu32)floor_quotient(x, y) * (rp__vu32)y))

static void check_index(const rp__tile_call *c) {
    int64_t *d = c->d;
    const int64_t *a = c->a, *b = c->b;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t index = a[i * c->as], bound = b[i * c->bs], at = index;
        if (c->imm && at < 0) at += bound;
        if (at < 0 || at >= bound) {
            rp__error_record_put(c->env->errors, c->env->tag, index, bound);
            at = 0;
        }
        d[i] = at;
    }
}

/* ---- casts ---------------------------------------------------------------------------------------------------------- */

static inline int64_t i64_of_f64(double x) {
    if (x >= 0x1p63) return INT64_MAX;
    if (x < -0x1p63) return INT64_MIN;
    return x == x ? (int64_t)x : 0;
}
static inline int32_t i32_of_f64(double x) {
    if (x >= 0x1p31) return INT32_MAX;
    if (x <= -0x1p31) return INT32_MIN;
    return x == x ? (int32_t)x : 0;
}
#define CAST(from, to, F, D, EXPR)                                                                                     \
    static void cast_##from##_##to(const rp__tile_call *c) {                                                           \
        D *restrict d = c->d;                                                                                          \
        const F *restrict a = c->a;                                                                                    \
        const int64_t n = c->n;                                                                                        \
        if (c->as) {                                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                F x = a[i];                                                                                            \
                d[i] = (D)(EXPR);                                                                                      \
            }                                                                                                          \
        } else {                                                                                                       \
            F x = a[0];                                                                                                \
            D y = (D)(EXPR);                                                                                           \
            for (int64_t i = 0; i < n; i++) d[i] = y;                                                                  \
        }                                                                                                              \
    }
CAST(f32, f64, float, double, x)
CAST(f32, i64, float, int64_t, i64_of_f64((double)x))
CAST(f32, u8, float, uint8_t, (uint64_t)i64_of_f64((double)x))
CAST(f32, bool, float, uint8_t, !(x == 0))
CAST(f64, f32, double, float, x)
CAST(f64, i32, double, int32_t, i32_of_f64(x))
CAST(f64, i64, double, int64_t, i64_of_f64(x))
CAST(f64, u8, double, uint8_t, (uint64_t)i64_of_f64(x))
CAST(f64, bool, double, uint8_t, !(x == 0))
CAST(i32, f32, int32_t, float, x)
CAST(i32, f64, int32_t, double, x)
CAST(i32, i64, int32_t, int64_t, x)
CAST(i32, u8, int32_t, uint8_t, x)
CAST(i32, bool, int32_t, uint8_t, x != 0)
CAST(i64, f32, int64_t, float, x)
CAST(i64, f64, int64_t, double, x)
CAST(i64, i32, int64_t, int32_t, (uint64_t)x)
CAST(i64, u8, int64_t, uint8_t, (uint64_t)x)
CAST(i64, bool, int64_t, uint8_t, x != 0)
CAST(u8, f32, uint8_t, float, x)
CAST(u8, f64, uint8_t, double, x)
CAST(u8, i32, uint8_t, int32_t, x)
CAST(u8, i64, uint8_t, int64_t, x)
CAST(u8, bool, uint8_t, uint8_t, x != 0)
CAST(u8, u8, uint8_t, uint8_t, x)
static void cast_f32_i32(const rp__tile_call *c) {
    int32_t *d = c->d;
    const float *a = c->a;
    const int64_t n = c->n, as = c->as;
    for (int64_t i = 0; i < n; i += L_f32) {
        rp__vf32 x = rp__v_load_f32(a + i * as);
        rp__vi32 r = rp__v_sel_i32(x >= 0x1p31f, rp__v_splat_i32(INT32_MAX), rp__v_i32_f32(x));
        rp__v_store_i32(d + i, r & (x == x));
    }
}
UNARY(round_f16, f32, rp__v_f32_f16(rp__v_f16_f32(x)))
UNARY(round_bf16, f32, rp__v_round_bf16(x))
UNARY(round_i8, i32, (rp__vi32)((rp__vu32)x << 24) >> 24)
UNARY(round_i16, i32, (rp__vi32)((rp__vu32)x << 16) >> 16)

/* ---- memory --------------------------------------------------------------------------------------------------------- */

#define HALF(kind)                                                                                                     \
    static void load_##kind(const rp__tile_call *c) {                                                                  \
        float *d = c->d;                                                                                               \
        const uint16_t *a = c->a;                                                                                      \
        const int64_t n = c->n, full = n / L_f32 * L_f32;                                                              \
        int64_t i = 0;                                                                                                 \
        for (; i < full; i += L_f32) rp__v_store_f32(d + i, rp__v_f32_##kind(rp__v_load_u16h(a + i)));                 \
        if (i < n) {                                                                                                   \
            uint16_t tail[L_f32] = {0};                                                                                \
            memcpy(tail, a + i, (size_t)(n - i) * 2);                                                                  \
            rp__v_store_f32(d + i, rp__v_f32_##kind(rp__v_load_u16h(tail)));                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void store_##kind(const rp__tile_call *c) {                                                                 \
        uint16_t *d = c->d;                                                                                            \
        const float *a = c->a;                                                                                         \
        const int64_t n = c->n, as = c->as, full = n / L_f32 * L_f32;                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i < full; i += L_f32) rp__v_store_u16h(d + i, rp__v_##kind##_f32(rp__v_load_f32(a + i * as)));          \
        if (i < n) {                                                                                                   \
            uint16_t tail[L_f32];                                                                                      \
            rp__v_store_u16h(tail, rp__v_##kind##_f32(rp__v_load_f32(a + i * as)));                                    \
            memcpy(d + i, tail, (size_t)(n - i) * 2);                                                                  \
        }                                                                                                              \
    }
HALF(f16)
HALF(bf16)
#define NARROW_INT(kind, T)                                                                                            \
    static void load_##kind(const rp__tile_call *c) {                                                                  \
        int32_t *d = c->d;                                                                                             \
        const T *a = c->a;                                                                                             \
        for (int64_t i = 0, n = c->n; i < n; i++) d[i] = a[i];                                                         \
    }                                                                                                                  \
    static void store_##kind(const rp__tile_call *c) {                                                                 \
        T *d = c->d;                                                                                                   \
        const int32_t *a = c->a;                                                                                       \
        for (int64_t i = 0, n = c->n, as = c->as; i < n; i++) d[i] = (T)a[i * as];                                     \
    }
NARROW_INT(i8, int8_t)
NARROW_INT(i16, int16_t)
static void load_bool(const rp__tile_call *c) {
    uint8_t *d = c->d;
    const uint8_t *a = c->a;
    const int64_t n = c->n, full = n - n % L_u8;
    int64_t i = 0;
    for (; i < full; i += L_u8) rp__v_store_u8(d + i, (vu8)(rp__v_load_u8(a + i) != 0) & 1);
    for (; i < n; i++) d[i] = a[i] != 0;
}

#define STRIDED(bits)                                                                                                  \
    static void gather_##bits(const rp__tile_call *c) {                                                                \
        uint##bits##_t *d = c->d;                                                                                      \
        const uint##bits##_t *a = c->a;                                                                                \
        const int64_t n = c->n, s = c->imm;                                                                            \
        if (s == 2) { /* every other place of a window, backwards: vectors for the compiler */                         \
            for (int64_t i = 0; i < n; i++) d[i] = a[i * 2];                                                           \
        } else if (s == -1) {                                                                                          \
            for (int64_t i = 0; i < n; i++) d[i] = a[-i];                                                              \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) d[i] = a[i * s];                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void scatter_##bits(const rp__tile_call *c) {                                                               \
        uint##bits##_t *d = c->d;                                                                                      \
        const uint##bits##_t *a = c->a;                                                                                \
        const int64_t n = c->n, s = c->imm, as = c->as;                                                                \
        for (int64_t i = 0; i < n; i++) d[i * s] = a[i * as];                                                          \
    }
STRIDED(8)
STRIDED(16)
STRIDED(32)
STRIDED(64)

#if defined(__AVX512F__) && RP_VEC_BYTES == 64
/* Eight places at a time. */
static inline __m512i places_of(const rp__tile_call *c, int64_t i) {
    const __m512i step = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(c->imm));
    const __m512i at = _mm512_loadu_si512((const int64_t *)c->b + i);
    return _mm512_add_epi64(at, _mm512_add_epi64(step, _mm512_set1_epi64(i * c->imm)));
}
static inline __mmask8 wanted_of(const rp__tile_call *c, int64_t i) {
    if (!c->c) return 0xff;
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)((const uint8_t *)c->c + i));
    return (__mmask8)_mm_test_epi8_mask(bytes, bytes);
}
static void load_at_32(const rp__tile_call *c) {
    for (int64_t i = 0; i < c->n; i += 8) {
        const __m256i x =
            _mm512_mask_i64gather_epi32(_mm256_setzero_si256(), wanted_of(c, i), places_of(c, i), c->a, 4);
        _mm256_storeu_si256((__m256i *)(void *)((uint32_t *)c->d + i), x);
    }
}
static void load_at_64(const rp__tile_call *c) {
    for (int64_t i = 0; i < c->n; i += 8) {
        const __m512i x =
            _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), wanted_of(c, i), places_of(c, i), c->a, 8);
        _mm512_storeu_si512((uint64_t *)c->d + i, x);
    }
}
#define LOAD_AT_32 load_at_32
#define LOAD_AT_64 load_at_64
#else
#define LOAD_AT_32 NULL
#define LOAD_AT_64 NULL
#endif

/* Blocks in registers; what is left over at both ends an element at a time. TURN has rows in r[0..B) and makes them columns. Rows further
   on are asked for: each is another line, and no hardware prefetcher sees so many streams. */
#define TRANSPOSE(bits, B, BYTES, TURN)                                                                                \
    static void transpose_##bits(const rp__tile_call *c) {                                                             \
        typedef uint##bits##_t block __attribute__((vector_size(BYTES)));                                              \
        typedef block blocku __attribute__((aligned(1), may_alias));                                                   \
        uint##bits##_t *d = c->d;                                                                                      \
        const uint##bits##_t *a = c->a;                                                                                \
        const int64_t n = c->n, positions = c->bs, to = c->as, stride = c->imm;                                        \
        int64_t i = 0;                                                                                                 \
        for (; i + (B) <= n; i += (B)) {                                                                               \
            for (int k = 0; k < (B) && i + 2 * (B) <= n; k++) __builtin_prefetch(a + (i + (B) + k) * stride);          \
            int64_t q = 0;                                                                                             \
            for (; q + (B) <= positions; q += (B)) {                                                                   \
                block r[B], x[B];                                                                                      \
                for (int k = 0; k < (B); k++) r[k] = *(const blocku *)(const void *)(a + (i + k) * stride + q);        \
                TURN;                                                                                                  \
                for (int k = 0; k < (B); k++) *(blocku *)(void *)(d + (q + k) * to + i) = r[k];                        \
            }                                                                                                          \
            for (; q < positions; q++) {                                                                               \
                for (int k = 0; k < (B); k++) d[q * to + i + k] = a[(i + k) * stride + q];                             \
            }                                                                                                          \
        }                                                                                                              \
        for (; i < n; i++) {                                                                                           \
            for (int64_t q = 0; q < positions; q++) d[q * to + i] = a[i * stride + q];                                 \
        }                                                                                                              \
    }
/* One step: x takes pairs of r at a distance of D rows, their lanes mixed by MIX_LO and MIX_HI (of r[k] and r[k + D]). */
#define STEP(r, x, B, D, LO, HI)                                                                                       \
    for (int k = 0; k < (B); k++) {                                                                                    \
        if (k & (D)) continue;                                                                                         \
        x[k] = __builtin_shufflevector(r[k], r[k + (D)], LO);                                                          \
        x[k + (D)] = __builtin_shufflevector(r[k], r[k + (D)], HI);                                                    \
    }
#define LIST(...) __VA_ARGS__
/* Rows one, two and four apart trade lanes one, two and four apart, which is a transpose when all have. */
#define TURN_16                                                                                                        \
    STEP(r, x, 8, 1, LIST(0, 8, 2, 10, 4, 12, 6, 14), LIST(1, 9, 3, 11, 5, 13, 7, 15))                                 \
    STEP(x, r, 8, 2, LIST(0, 1, 8, 9, 4, 5, 12, 13), LIST(2, 3, 10, 11, 6, 7, 14, 15))                                 \
    STEP(r, x, 8, 4, LIST(0, 1, 2, 3, 8, 9, 10, 11), LIST(4, 5, 6, 7, 12, 13, 14, 15))                                 \
    for (int k = 0; k < 8; k++) r[k] = x[k]
#define TURN_4                                                                                                         \
    STEP(r, x, 4, 1, LIST(0, 4, 2, 6), LIST(1, 5, 3, 7))                                                               \
    STEP(x, r, 4, 2, LIST(0, 1, 4, 5), LIST(2, 3, 6, 7))
#define TURN_1 (void)x
TRANSPOSE(8, 1, 1, TURN_1)
TRANSPOSE(16, 8, 16, TURN_16)
#if RP_VEC_BYTES >= 32
TRANSPOSE(32, 8, 32, TURN_16)
TRANSPOSE(64, 4, 32, TURN_4)
#else
TRANSPOSE(32, 4, 16, TURN_4)
TRANSPOSE(64, 1, 8, TURN_1)
#endif

/* ---- reductions ----------------------------------------------------------------------------------------------------- */

#define REDUCE(name, t, IDENTITY, OP)                                                                                  \
    static void row_##name##_##t(const rp__tile_call *c) {                                                             \
        enum { K = RP__LANES / L_##t > 0 ? RP__LANES / L_##t : 1 };                                                    \
        T_##t *acc = c->d;                                                                                             \
        const T_##t *a = c->a;                                                                                         \
        const int64_t n = c->n, as = c->as, full = n / RP__LANES * RP__LANES;                                          \
        V_##t x[K];                                                                                                    \
        for (int k = 0; k < K; k++) x[k] = rp__v_load_##t(acc + k * L_##t);                                            \
        for (int64_t i = 0; i < full; i += RP__LANES) {                                                                \
            for (int k = 0; k < K; k++) x[k] = OP(x[k], rp__v_load_##t(a + (i + k * L_##t) * as));                     \
        }                                                                                                              \
        if (full < n) {                                                                                                \
            T_##t tail[RP__LANES];                                                                                     \
            for (int k = 0; k < RP__LANES; k++) tail[k] = full + k < n ? a[(full + k) * as] : (T_##t)(IDENTITY);       \
            for (int k = 0; k < K; k++) x[k] = OP(x[k], rp__v_load_##t(tail + k * L_##t));                             \
        }                                                                                                              \
        for (int k = 0; k < K; k++) rp__v_store_##t(acc + k * L_##t, x[k]);                                            \
    }                                                                                                                  \
    static void block_##name##_##t(const rp__tile_call *c) {                                                           \
        T_##t *d = c->d;                                                                                               \
        const T_##t *a = c->a;                                                                                         \
        const int64_t n = c->n, as = c->as, full = n / L_##t * L_##t;                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i < full; i += L_##t) rp__v_store_##t(d + i, OP(rp__v_load_##t(d + i), rp__v_load_##t(a + i * as)));    \
        if (i < n) {                                                                                                   \
            T_##t x[L_##t], y[L_##t];                                                                                  \
            for (int64_t k = 0; k < (int64_t)L_##t; k++) {                                                             \
                x[k] = i + k < n ? d[i + k] : (T_##t)(IDENTITY);                                                       \
                y[k] = i + k < n ? a[(i + k) * as] : (T_##t)(IDENTITY);                                                \
            }                                                                                                          \
            rp__v_store_##t(x, OP(rp__v_load_##t(x), rp__v_load_##t(y)));                                              \
            memcpy(d + i, x, (size_t)(n - i) * sizeof *d);                                                             \
        }                                                                                                              \
    }
#define OP_ADD(x, y) ((x) + (y))
#define OP_MUL(x, y) ((x) * (y))
#define OP_ADD_I64(x, y) ((rp__vi64)((rp__vu64)(x) + (rp__vu64)(y)))
#define OP_MUL_I64(x, y) ((rp__vi64)((rp__vu64)(x) * (rp__vu64)(y)))
REDUCE(sum, f32, 0, OP_ADD)
REDUCE(sum, f64, 0, OP_ADD)
REDUCE(sum, i64, 0, OP_ADD_I64)
REDUCE(prod, f32, 1, OP_MUL)
REDUCE(prod, f64, 1, OP_MUL)
REDUCE(prod, i64, 1, OP_MUL_I64)
REDUCE(max, f32, -INFINITY, rp__v_max_f32)
REDUCE(max, f64, -(double)INFINITY, rp__v_max_f64)
REDUCE(max, i32, INT32_MIN, rp__v_max_i32)
REDUCE(max, i64, INT64_MIN, rp__v_max_i64)
REDUCE(min, f32, INFINITY, rp__v_min_f32)
REDUCE(min, f64, (double)INFINITY, rp__v_min_f64)
REDUCE(min, i32, INT32_MAX, rp__v_min_i32)
REDUCE(min, i64, INT64_MAX, rp__v_min_i64)

/* Rows of n columns: row r is added to lane r % RP__LANES of each column. GROUPED rows of one lane at once, in rising order, so that its
   sums are loaded and stored once for all of them, and each row is read from left to right, as prefetchers like it (measured with
   2048 x 2048 f32 against sums that stay in registers and rows that jump: a third of the time). Behind the last whole vector lie
   elements of the next lane, which are written as they were, and of the next row, up to `end`. LOADER: of elements of ST.
   Whole columns of few rows: their lanes in the order in which the halving tree needs them, so that no more than a sum a level waits for
   its partner, and none of 32 lanes goes through memory. Rows jump, so that the next columns of each are fetched beside. */
enum { TREE_LEVELS = 5, FEW_ROWS = 4 };
static const uint8_t tree_lane[RP__LANES] = {0, 16, 8, 24, 4, 20, 12, 28, 2, 18, 10, 26, 6, 22, 14, 30,
                                             1, 17, 9, 25, 5, 21, 13, 29, 3, 19, 11, 27, 7, 23, 15, 31};
RP__VEC_FN void fetch_line(const void *from, size_t bytes) {
    _Pragma("GCC unroll 4") for (size_t k = 0; k < bytes; k += 64) __builtin_prefetch((const char *)from + k);
}
#define COLUMNS(name, suffix, t, ST, LOADER, IDENTITY, OP)                                                             \
    RP__VEC_FN void columns_of_##name##_##suffix(const int G, const rp__columns_call *c, int64_t r, const ST *end) {   \
        const ST *const a = (const ST *)c->a + r * c->row;                                                             \
        T_##t *const d = (T_##t *)c->d + r % RP__LANES * c->lane;                                                      \
        const int64_t next = RP__LANES * c->row;                                                                       \
        int64_t i = 0;                                                                                                 \
        for (; i + 2 * (int64_t)L_##t <= c->n; i += 2 * L_##t) {                                                       \
            V_##t x = rp__v_load_##t(d + i), y = rp__v_load_##t(d + i + L_##t);                                        \
            for (int g = 0; g < G; g++) {                                                                              \
                x = OP(x, LOADER(a + g * next + i));                                                                   \
                y = OP(y, LOADER(a + g * next + i + L_##t));                                                           \
            }                                                                                                          \
            rp__v_store_##t(d + i, x);                                                                                 \
            rp__v_store_##t(d + i + L_##t, y);                                                                         \
        }                                                                                                              \
        for (; i < c->n; i += L_##t) {                                                                                 \
            const int64_t left = c->n - i;                                                                             \
            V_##t x = rp__v_load_##t(d + i);                                                                           \
            const V_##t old = x;                                                                                       \
            for (int g = 0; g < G; g++) {                                                                              \
                const ST *from = a + g * next + i;                                                                     \
                ST some[L_##t] = {0};                                                                                  \
                if (left < L_##t && end - from < L_##t) from = memcpy(some, from, (size_t)left * sizeof *some);        \
                x = OP(x, LOADER(from));                                                                               \
            }                                                                                                          \
            if (left < L_##t) {                                                                                        \
                V_##t at = {0};                                                                                        \
                for (int k = 0; k < (int)L_##t; k++) at[k] = (T_##t)k;                                                 \
                x = rp__v_sel_##t(at < (T_##t)left, x, old);                                                           \
            }                                                                                                          \
            rp__v_store_##t(d + i, x);                                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    static void columns_few_##name##_##suffix(int64_t rows, const rp__columns_call *c, int64_t r, const ST *end) {     \
        switch (rows) {                                                                                                \
        case 0: break;                                                                                                 \
        case 1: columns_of_##name##_##suffix(1, c, r, end); break;                                                     \
        case 2: columns_of_##name##_##suffix(2, c, r, end); break;                                                     \
        case 3: columns_of_##name##_##suffix(3, c, r, end); break;                                                     \
        default: columns_of_##name##_##suffix(4, c, r, end);                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void columns_##name##_##suffix(const rp__columns_call *c) {                                                 \
        enum { GROUPED = 4 };                                                                                          \
        const ST *const end = (const ST *)c->a + (c->rows - 1) * c->row + c->n;                                        \
        rp__columns_call wide = *c;                                                                                    \
        int lanes = RP__LANES;                                                                                         \
        int64_t r = 0;                                                                                                 \
        if (c->row == c->n && c->lane == c->n) { /* all lanes are one line, in memory as well */                       \
            wide.n *= RP__LANES;                                                                                       \
            lanes = 1;                                                                                                 \
        }                                                                                                              \
        for (; r + GROUPED * RP__LANES <= c->rows; r += GROUPED * RP__LANES) {                                         \
            for (int lane = 0; lane < lanes; lane++) columns_of_##name##_##suffix(GROUPED, &wide, r + lane, end);      \
        }                                                                                                              \
        const int64_t left = c->rows - r;                                                                              \
        for (int64_t lane = 0; lanes > 1 && lane < RP__LANES && lane < left; lane++)                                   \
            columns_few_##name##_##suffix((left - lane + RP__LANES - 1) / RP__LANES, &wide, r + lane, end);            \
        if (lanes > 1) return;                                                                                         \
        columns_few_##name##_##suffix(left / RP__LANES, &wide, r, end);                                                \
        wide.n = left % RP__LANES * c->n; /* the first lanes of a line */                                              \
        columns_of_##name##_##suffix(1, &wide, c->rows - left % RP__LANES, end);                                       \
    }                                                                                                                  \
    /* Four vectors of columns from i on, or one, of which `left` elements count. */                                   \
    RP__VEC_FN void columns_whole_##name##_##suffix(const bool four, const rp__columns_call *c, int64_t i,             \
                                                    int64_t left, const ST *end) {                                     \
        V_##t open[TREE_LEVELS][4], x, y, z, w;                                                                        \
        bool is[TREE_LEVELS], there = false;                                                                           \
        for (unsigned k = 0; k < RP__LANES; k++) {                                                                     \
            const int64_t lane = tree_lane[k], next = RP__LANES * c->row;                                              \
            const ST *from = (const ST *)c->a + i + lane * c->row;                                                     \
            there = lane < c->rows;                                                                                    \
            x = y = z = w = rp__v_splat_##t(IDENTITY);                                                                 \
            for (int64_t r = lane; r < c->rows; r += RP__LANES, from += next) {                                        \
                ST some[L_##t] = {0};                                                                                  \
                const ST *at = from;                                                                                   \
                if (left < (int64_t)L_##t && end - from < (int64_t)L_##t)                                              \
                    at = memcpy(some, from, (size_t)left * sizeof *some);                                              \
                x = OP(x, LOADER(at));                                                                                 \
                if (!four) continue;                                                                                   \
                fetch_line(at + 4 * L_##t, 4 * L_##t * sizeof *at);                                                    \
                y = OP(y, LOADER(at + L_##t));                                                                         \
                z = OP(z, LOADER(at + 2 * L_##t));                                                                     \
                w = OP(w, LOADER(at + 3 * L_##t));                                                                     \
            }                                                                                                          \
            unsigned level = 0;                                                                                        \
            for (; k >> level & 1u; level++) {                                                                         \
                const V_##t *const o = open[level];                                                                    \
                x = there ? OP(o[0], x) : o[0];                                                                        \
                if (four) {                                                                                            \
                    y = there ? OP(o[1], y) : o[1];                                                                    \
                    z = there ? OP(o[2], z) : o[2];                                                                    \
                    w = there ? OP(o[3], w) : o[3];                                                                    \
                }                                                                                                      \
                there = is[level];                                                                                     \
            }                                                                                                          \
            if (level == TREE_LEVELS) break;                                                                           \
            open[level][0] = x;                                                                                        \
            if (four) {                                                                                                \
                open[level][1] = y;                                                                                    \
                open[level][2] = z;                                                                                    \
                open[level][3] = w;                                                                                    \
            }                                                                                                          \
            is[level] = there;                                                                                         \
        }                                                                                                              \
        T_##t *const d = (T_##t *)c->d + i;                                                                            \
        if (left < (int64_t)L_##t) {                                                                                   \
            memcpy(d, &x, (size_t)left * sizeof *d);                                                                   \
            return;                                                                                                    \
        }                                                                                                              \
        rp__v_store_##t(d, x);                                                                                         \
        if (!four) return;                                                                                             \
        rp__v_store_##t(d + L_##t, y);                                                                                 \
        rp__v_store_##t(d + 2 * L_##t, z);                                                                             \
        rp__v_store_##t(d + 3 * L_##t, w);                                                                             \
    }                                                                                                                  \
    /* Of so few rows that each is a lane: what the tree leaves of it, without asking which lanes are there. */        \
    RP__VEC_FN V_##t columns_lanes_##name##_##suffix(const int R, const ST *from, int64_t row) {                       \
        V_##t x[FEW_ROWS];                                                                                             \
        for (int r = 0; r < R; r++) x[r] = OP(rp__v_splat_##t(IDENTITY), LOADER(from + r * row));                      \
        for (int half = FEW_ROWS / 2; half > 0; half /= 2) {                                                           \
            for (int r = half; r < R && r < 2 * half; r++) x[r - half] = OP(x[r - half], x[r]);                        \
        }                                                                                                              \
        return x[0];                                                                                                   \
    }                                                                                                                  \
    RP__VEC_FN void columns_by_lanes_##name##_##suffix(const int R, const rp__columns_call *c) {                       \
        T_##t *const d = c->d;                                                                                         \
        const ST *const a = c->a;                                                                                      \
        int64_t i = 0;                                                                                                 \
        for (; i + (int64_t)L_##t <= c->n; i += L_##t)                                                                 \
            rp__v_store_##t(d + i, columns_lanes_##name##_##suffix(R, a + i, c->row));                                 \
        if (i == c->n) return;                                                                                         \
        ST some[FEW_ROWS][L_##t] = {{0}};                                                                              \
        for (int r = 0; r < R; r++) memcpy(some[r], a + r * c->row + i, (size_t)(c->n - i) * sizeof *a);               \
        const V_##t x = columns_lanes_##name##_##suffix(R, some[0], L_##t);                                            \
        memcpy(d + i, &x, (size_t)(c->n - i) * sizeof *d);                                                             \
    }                                                                                                                  \
    static void whole_##name##_##suffix(const rp__columns_call *c) {                                                   \
        const ST *const a = c->a, *const end = a + (c->rows - 1) * c->row + c->n;                                      \
        int64_t i = 0;                                                                                                 \
        switch (c->rows) {                                                                                             \
        case 1: columns_by_lanes_##name##_##suffix(1, c); return;                                                      \
        case 2: columns_by_lanes_##name##_##suffix(2, c); return;                                                      \
        case 3: columns_by_lanes_##name##_##suffix(3, c); return;                                                      \
        case 4: columns_by_lanes_##name##_##suffix(4, c); return;                                                      \
        default: break;                                                                                                \
        }                                                                                                              \
        for (int64_t r = 0; r < c->rows; r++) fetch_line(a + r * c->row, 4 * L_##t * sizeof *a);                       \
        for (; i + 4 * (int64_t)L_##t <= c->n; i += 4 * (int64_t)L_##t)                                                \
            columns_whole_##name##_##suffix(true, c, i, L_##t, end);                                                   \
        for (; i + (int64_t)L_##t <= c->n; i += L_##t) columns_whole_##name##_##suffix(false, c, i, L_##t, end);       \
        if (i < c->n) columns_whole_##name##_##suffix(false, c, i, c->n - i, end);                                     \
    }
#define FROM_F16(p) rp__v_f32_f16(rp__v_load_u16h(p))
#define FROM_BF16(p) rp__v_f32_bf16(rp__v_load_u16h(p))
/* As many narrow integers as a vector of 32-bit ones has lanes. */
typedef int8_t vs8q __attribute__((vector_size(RP_VEC_BYTES / 4)));
typedef int16_t vs16h __attribute__((vector_size(RP_VEC_BYTES / 2)));
typedef vs8q vs8qu __attribute__((aligned(1), may_alias));
typedef vs16h vs16hu __attribute__((aligned(1), may_alias));
RP__VEC_FN rp__vi32 load_i32_s8(const int8_t *p) {
    return __builtin_convertvector(*(const vs8qu *)(const void *)p, rp__vi32);
}
RP__VEC_FN rp__vi32 load_i32_s16(const int16_t *p) {
    return __builtin_convertvector(*(const vs16hu *)(const void *)p, rp__vi32);
}
#define FROM_I8(p) load_i32_s8(p)
#define FROM_I16(p) load_i32_s16(p)
#define COLUMNS_F32(name, IDENTITY, OP)                                                                                \
    COLUMNS(name, f32, f32, float, rp__v_load_f32, IDENTITY, OP)                                                       \
    COLUMNS(name, f16, f32, uint16_t, FROM_F16, IDENTITY, OP)                                                          \
    COLUMNS(name, bf16, f32, uint16_t, FROM_BF16, IDENTITY, OP)
COLUMNS_F32(sum, 0, OP_ADD)
COLUMNS_F32(max, -INFINITY, rp__v_max_f32)
COLUMNS_F32(min, INFINITY, rp__v_min_f32)
COLUMNS_F32(prod, 1, OP_MUL)
COLUMNS(sum, f64, f64, double, rp__v_load_f64, 0, OP_ADD)
COLUMNS(max, f64, f64, double, rp__v_load_f64, -(double)INFINITY, rp__v_max_f64)
COLUMNS(min, f64, f64, double, rp__v_load_f64, (double)INFINITY, rp__v_min_f64)
COLUMNS(prod, f64, f64, double, rp__v_load_f64, 1, OP_MUL)
COLUMNS(sum, i64, i64, int64_t, rp__v_load_i64, 0, OP_ADD_I64)
#define COLUMNS_ORDER(suffix, t, ST, LOADER, LEAST, MOST)                                                              \
    COLUMNS(max, suffix, t, ST, LOADER, LEAST, rp__v_max_##t)                                                          \
    COLUMNS(min, suffix, t, ST, LOADER, MOST, rp__v_min_##t)
COLUMNS_ORDER(i8, i32, int8_t, FROM_I8, INT32_MIN, INT32_MAX)
COLUMNS_ORDER(i16, i32, int16_t, FROM_I16, INT32_MIN, INT32_MAX)
COLUMNS_ORDER(i32, i32, int32_t, rp__v_load_i32, INT32_MIN, INT32_MAX)
COLUMNS_ORDER(i64, i64, int64_t, rp__v_load_i64, INT64_MIN, INT64_MAX)
COLUMNS_ORDER(u8, u8, uint8_t, rp__v_load_u8, 0, 255)

/* Are n keys `wanted`? */
RP__VEC_FN rp__vi64 keys_f64(const int64_t *key, int64_t wanted) {
    return rp__v_load_i64(key) == rp__v_splat_i64(wanted);
}
RP__VEC_FN rp__vi32 keys_f32(const int64_t *key, int64_t wanted) {
    return rp__v_i32_i64(keys_f64(key, wanted), keys_f64(key + L_i64, wanted));
}
enum { SIDE = 4 };
enum { AS_IT_IS, KEYED, DIVIDED, MULTIPLIED };
/* The rows of a window: each is combined with the identity, as a lane begins with it, then the lanes. `how` is one of the above. */
#define WINDOW(name, suffix, t, I, ST, LOADER, IDENTITY, OP)                                                           \
    RP__VEC_FN V_##t window_row_##name##_##suffix(const rp__window_call *c, int64_t r, int64_t i, size_t left,         \
                                                  int how) {                                                           \
        const ST *from = (const ST *)c->a[r] + i;                                                                      \
        ST some[L_##t] = {0};                                                                                          \
        if (left < L_##t) from = memcpy(some, from, left * sizeof *some);                                              \
        V_##t y = LOADER(from);                                                                                        \
        if (how == DIVIDED) y = y / rp__v_splat_##t(((const T_##t *)c->over)[r]);                                      \
        if (how == MULTIPLIED) y = y * rp__v_splat_##t(((const T_##t *)c->over)[r]);                                   \
        if (how == KEYED) {                                                                                            \
            const int64_t *key = c->key[r] + i;                                                                        \
            int64_t few[L_##t] = {0};                                                                                  \
            if (left < L_##t) key = memcpy(few, key, left * sizeof *few);                                              \
            y = (V_##t)((I)y & keys_##t(key, c->wanted));                                                              \
        }                                                                                                              \
        return OP(rp__v_splat_##t(IDENTITY), y);                                                                       \
    }                                                                                                                  \
    RP__VEC_FN V_##t window_some_##name##_##suffix(const rp__window_call *c, const rp__window_tree *w, int64_t i,      \
                                                   size_t left, int how) {                                             \
        V_##t x[RP__LANES];                                                                                            \
        x[0] = rp__v_splat_##t(IDENTITY);                                                                              \
        for (int64_t k = 0; k < w->n; k++) x[k] = window_row_##name##_##suffix(c, w->row[k], i, left, how);            \
        for (int64_t k = w->n; k < w->n + w->more; k++)                                                                \
            x[w->onto[k]] = OP(x[w->onto[k]], window_row_##name##_##suffix(c, w->row[k], i, left, how));               \
        for (int64_t k = 0; k < w->pairs; k++) x[w->to[k]] = OP(x[w->to[k]], x[w->from[k]]);                           \
        return x[w->first];                                                                                            \
    }                                                                                                                  \
    /* SIDE vectors side by side, so that the sums of one need not wait for those of another. */                       \
    RP__VEC_FN void window_side_##name##_##suffix(const rp__window_call *c, const rp__window_tree *w, int64_t i,       \
                                                  int how) {                                                           \
        V_##t x[RP__LANES][SIDE];                                                                                      \
        for (int64_t k = 0; k < w->n; k++) {                                                                           \
            for (int v = 0; v < SIDE; v++)                                                                             \
                x[k][v] = window_row_##name##_##suffix(c, w->row[k], i + v * (int64_t)L_##t, L_##t, how);              \
        }                                                                                                              \
        for (int64_t k = w->n; k < w->n + w->more; k++) {                                                              \
            V_##t *const to = x[w->onto[k]];                                                                           \
            for (int v = 0; v < SIDE; v++)                                                                             \
                to[v] = OP(to[v], window_row_##name##_##suffix(c, w->row[k], i + v * (int64_t)L_##t, L_##t, how));     \
        }                                                                                                              \
        for (int64_t k = 0; k < w->pairs; k++) {                                                                       \
            V_##t *const to = x[w->to[k]], *const from = x[w->from[k]];                                                \
            for (int v = 0; v < SIDE; v++) to[v] = OP(to[v], from[v]);                                                 \
        }                                                                                                              \
        for (int v = 0; v < SIDE; v++) rp__v_store_##t((T_##t *)c->d + i + v * (int64_t)L_##t, x[w->first][v]);        \
    }                                                                                                                  \
    RP__VEC_FN void window_all_##name##_##suffix(const rp__window_call *c, int how) {                                  \
        T_##t *const d = (T_##t *)c->d;                                                                                \
        int64_t i = 0;                                                                                                 \
        for (; c->tree->n && i + SIDE * (int64_t)L_##t <= c->n; i += SIDE * (int64_t)L_##t)                            \
            window_side_##name##_##suffix(c, c->tree, i, how);                                                         \
        for (; i + (int64_t)L_##t <= c->n; i += L_##t)                                                                 \
            rp__v_store_##t(d + i, window_some_##name##_##suffix(c, c->tree, i, L_##t, how));                          \
        if (i == c->n) return;                                                                                         \
        T_##t last[L_##t];                                                                                             \
        rp__v_store_##t(last, window_some_##name##_##suffix(c, c->tree, i, (size_t)(c->n - i), how));                  \
        memcpy(d + i, last, (size_t)(c->n - i) * sizeof *d);                                                           \
    }                                                                                                                  \
    static void window_##name##_##suffix(const rp__window_call *c) {                                                   \
        if (c->key)                                                                                                    \
            window_all_##name##_##suffix(c, KEYED);                                                                    \
        else if (c->over && c->times)                                                                                  \
            window_all_##name##_##suffix(c, MULTIPLIED);                                                               \
        else if (c->over)                                                                                              \
            window_all_##name##_##suffix(c, DIVIDED);                                                                  \
        else                                                                                                           \
            window_all_##name##_##suffix(c, AS_IT_IS);                                                                 \
    }
#define WINDOW_F32(name, IDENTITY, OP)                                                                                 \
    WINDOW(name, f32, f32, rp__vi32, float, rp__v_load_f32, IDENTITY, OP)                                              \
    WINDOW(name, f16, f32, rp__vi32, uint16_t, FROM_F16, IDENTITY, OP)                                                 \
    WINDOW(name, bf16, f32, rp__vi32, uint16_t, FROM_BF16, IDENTITY, OP)
WINDOW_F32(sum, 0, OP_ADD)
WINDOW_F32(max, -INFINITY, rp__v_max_f32)
WINDOW(sum, f64, f64, rp__vi64, double, rp__v_load_f64, 0, OP_ADD)
WINDOW(max, f64, f64, rp__vi64, double, rp__v_load_f64, (double)-INFINITY, rp__v_max_f64)

/* The usual numbers of rows are constants. Columns behind the last whole vector come from memory of our own. */
#define WEIGH(suffix, ST, LOADER)                                                                                      \
    RP__VEC_FN void weigh_rows_##suffix(const rp__weigh_call *c, const int64_t rows) {                                 \
        const ST *const *const a = (const ST *const *)(const void *)c->a;                                              \
        int64_t i = 0;                                                                                                 \
        for (; i + (int64_t)L_f32 <= c->n; i += L_f32) {                                                               \
            rp__vf32 x = LOADER(a[0] + i) * rp__v_splat_f32(c->weight[0]);                                             \
            for (int64_t k = 1; k < rows; k++) x = x + LOADER(a[k] + i) * rp__v_splat_f32(c->weight[k]);               \
            rp__v_store_f32(c->d + i, x);                                                                              \
        }                                                                                                              \
        if (i == c->n) return;                                                                                         \
        const size_t left = (size_t)(c->n - i);                                                                        \
        rp__vf32 x = rp__v_splat_f32(0);                                                                               \
        for (int64_t k = 0; k < rows; k++) {                                                                           \
            ST some[L_f32] = {0};                                                                                      \
            memcpy(some, a[k] + i, left * sizeof *some);                                                               \
            const rp__vf32 y = LOADER(some) * rp__v_splat_f32(c->weight[k]);                                           \
            x = k ? x + y : y;                                                                                         \
        }                                                                                                              \
        memcpy(c->d + i, &x, left * sizeof *c->d);                                                                     \
    }                                                                                                                  \
    static void weigh_##suffix(const rp__weigh_call *c) {                                                              \
        switch (c->rows) {                                                                                             \
        case 2: weigh_rows_##suffix(c, 2); break;                                                                      \
        case 4: weigh_rows_##suffix(c, 4); break;                                                                      \
        default: weigh_rows_##suffix(c, c->rows);                                                                      \
        }                                                                                                              \
    }
WEIGH(f32, float, rp__v_load_f32)
WEIGH(f16, uint16_t, FROM_F16)
WEIGH(bf16, uint16_t, FROM_BF16)

RP__VEC_FN void place_out_f64(int64_t *d, rp__vi64 x) {
    rp__v_store_i64(d, rp__v_sel_i64(x == rp__v_splat_i64(INT32_MAX), rp__v_splat_i64(INT64_MAX), x));
}
RP__VEC_FN void place_out_f32(int64_t *d, rp__vi32 x) {
    place_out_f64(d, rp__v_lo_i64_i32(x));
    place_out_f64(d + L_i64, rp__v_hi_i64_i32(x));
}
#define PLACE(suffix, t, i_, ST, LOADER)                                                                               \
    RP__VEC_FN V_##i_ place_some_##suffix(const rp__place_call *c, int64_t i, size_t left) {                           \
        T_##t most[L_##t] = {0};                                                                                       \
        const T_##t *m = (const T_##t *)c->largest + i;                                                                \
        if (left < L_##t) m = memcpy(most, m, left * sizeof *most);                                                    \
        const V_##t largest = rp__v_load_##t(m);                                                                       \
        V_##i_ least = rp__v_splat_##i_(INT32_MAX);                                                                    \
        for (int64_t r = 0; r < c->rows; r++) {                                                                        \
            const ST *from = (const ST *)c->a[r];                                                                      \
            ST some[L_##t] = {0};                                                                                      \
            if (!from) continue;                                                                                       \
            from += i;                                                                                                 \
            if (left < L_##t) from = memcpy(some, from, left * sizeof *some);                                          \
            const V_##t x = LOADER(from);                                                                              \
            const V_##i_ number = rp__v_splat_##i_(c->number[r]), none = x != x, is = x == largest;                    \
            const V_##i_ at = (number & is) | (~number & none) | (rp__v_splat_##i_(INT32_MAX) & ~(is | none));         \
            least = rp__v_min_##i_(least, at);                                                                         \
        }                                                                                                              \
        return least;                                                                                                  \
    }                                                                                                                  \
    static void place_##suffix(const rp__place_call *c) {                                                              \
        int64_t i = 0, last[L_##t];                                                                                    \
        for (; i + (int64_t)L_##t <= c->n; i += L_##t) place_out_##t(c->d + i, place_some_##suffix(c, i, L_##t));      \
        if (i == c->n) return;                                                                                         \
        place_out_##t(last, place_some_##suffix(c, i, (size_t)(c->n - i)));                                            \
        memcpy(c->d + i, last, (size_t)(c->n - i) * sizeof *last);                                                     \
    }
PLACE(f32, f32, i32, float, rp__v_load_f32)
PLACE(f16, f32, i32, uint16_t, FROM_F16)
PLACE(bf16, f32, i32, uint16_t, FROM_BF16)
PLACE(f64, f64, i64, double, rp__v_load_f64)

/* Bytes: a vector may be wider than the lanes; maximum, minimum, or, and do not depend on order. */
#define REDUCE_U8(name, IDENTITY, EXPR)                                                                                \
    static void block_##name##_u8(const rp__tile_call *c) {                                                            \
        uint8_t *d = c->d;                                                                                             \
        const uint8_t *a = c->a;                                                                                       \
        const int64_t n = c->n, as = c->as, full = n / L_u8 * L_u8;                                                    \
        int64_t i = 0;                                                                                                 \
        for (; i < full; i += L_u8) {                                                                                  \
            vu8 x = rp__v_load_u8(d + i), y = rp__v_load_u8(a + i * as);                                               \
            rp__v_store_u8(d + i, EXPR);                                                                               \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            uint8_t left[L_u8] = {0}, more[L_u8] = {0};                                                                \
            memcpy(left, d + i, (size_t)(n - i));                                                                      \
            memcpy(more, a + i * as, as ? (size_t)(n - i) : L_u8);                                                     \
            vu8 x = rp__v_load_u8(left), y = rp__v_load_u8(more);                                                      \
            rp__v_store_u8(left, EXPR);                                                                                \
            memcpy(d + i, left, (size_t)(n - i));                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void row_##name##_u8(const rp__tile_call *c) {                                                              \
        const uint8_t *a = c->a;                                                                                       \
        const int64_t n = c->n, as = c->as, full = n / L_u8 * L_u8;                                                    \
        uint8_t lanes[L_u8 > RP__LANES ? L_u8 : RP__LANES];                                                            \
        vu8 x = rp__v_splat_u8(IDENTITY);                                                                              \
        for (int64_t i = 0; i < full; i += L_u8) {                                                                     \
            const vu8 y = rp__v_load_u8(a + i * as);                                                                   \
            x = EXPR;                                                                                                  \
        }                                                                                                              \
        if (full < n) {                                                                                                \
            memset(lanes, IDENTITY, sizeof lanes);                                                                     \
            memcpy(lanes, a + full * as, (size_t)(n - full)); /* a value that repeats fills a block */                 \
            const vu8 y = rp__v_load_u8(lanes);                                                                        \
            x = EXPR;                                                                                                  \
        }                                                                                                              \
        memset(lanes, IDENTITY, sizeof lanes);                                                                         \
        rp__v_store_u8(lanes, x);                                                                                      \
        rp__tile_call part = {.d = c->d, .as = 1, .n = RP__LANES};                                                     \
        for (int64_t k = 0; k < (int64_t)sizeof lanes; k += RP__LANES) {                                               \
            part.a = lanes + k;                                                                                        \
            block_##name##_u8(&part);                                                                                  \
        }                                                                                                              \
    }
REDUCE_U8(max, 0, rp__v_max_u8(x, y))
REDUCE_U8(min, 255, rp__v_min_u8(x, y))
REDUCE_U8(any, 0, x | y)
REDUCE_U8(all, 1, x &y)

/* Rows of integers of which the order does not matter: vectors of what lies in memory, as wide as that is. The last one ends with the row;
   what it has again changes nothing. */
typedef int16_t vs16 __attribute__((vector_size(RP_VEC_BYTES)));
typedef vs8 vs8u __attribute__((aligned(1), may_alias));
typedef vs16 vs16u __attribute__((aligned(1), may_alias));
RP__VEC_FN vs8 rp__v_load_s8(const void *p) { return *(const vs8u *)p; }
RP__VEC_FN vs16 rp__v_load_s16(const void *p) { return *(const vs16u *)p; }
#define WHOLE_ROW(name, suffix, V, ST, t, LOADER, OP, ONE)                                                             \
    static void row_whole_##name##_##suffix(void *d, const void *from, int64_t n) {                                    \
        enum { L = RP_VEC_BYTES / sizeof(ST) };                                                                        \
        const ST *const a = from;                                                                                      \
        ST one = a[0], lanes[L];                                                                                       \
        if (n < L) {                                                                                                   \
            for (int64_t i = 0; i < n; i++) one = ONE(one, a[i]);                                                      \
        } else {                                                                                                       \
            V x = LOADER(a + n - L), y = x, z = x, w = x;                                                              \
            int64_t i = 0;                                                                                             \
            for (; i + 4 * L <= n; i += 4 * L) {                                                                       \
                x = OP(x, LOADER(a + i));                                                                              \
                y = OP(y, LOADER(a + i + L));                                                                          \
                z = OP(z, LOADER(a + i + 2 * L));                                                                      \
                w = OP(w, LOADER(a + i + 3 * L));                                                                      \
            }                                                                                                          \
            for (; i + L <= n; i += L) x = OP(x, LOADER(a + i));                                                       \
            x = OP(OP(x, y), OP(z, w));                                                                                \
            memcpy(lanes, &x, sizeof x);                                                                               \
            for (int half = L / 2; half > 0; half /= 2) {                                                              \
                for (int k = 0; k < half; k++) lanes[k] = ONE(lanes[k], lanes[k + half]);                              \
            }                                                                                                          \
            one = lanes[0];                                                                                            \
        }                                                                                                              \
        *(T_##t *)d = (T_##t)FINAL_##name(one);                                                                        \
    }
#define GREATER(x, y) ((x) > (y) ? (x) : (y))
#define LESSER(x, y) ((x) < (y) ? (x) : (y))
#define FINAL_max(x) (x)
#define FINAL_min(x) (x)
#define FINAL_any(x) ((x) != 0)
#define FINAL_all(x) ((x) != 0)
#define CHOSEN(m, x, y) (((__typeof__(x))(m) & (x)) | (~(__typeof__(x))(m) & (y)))
#define GREATER_ALL(x, y) CHOSEN((x) > (y), x, y)
#define LESSER_ALL(x, y) CHOSEN((x) < (y), x, y)
#define WHOLE_ROWS(suffix, V, ST, t, LOADER)                                                                           \
    WHOLE_ROW(max, suffix, V, ST, t, LOADER, GREATER_ALL, GREATER)                                                     \
    WHOLE_ROW(min, suffix, V, ST, t, LOADER, LESSER_ALL, LESSER)
#define VOR(x, y) ((x) | (y))
#define EITHER(x, y) ((uint8_t)((x) | (y)))
#define BOTH(x, y) ((uint8_t)((x) != 0 && (y) != 0))
WHOLE_ROWS(i8, vs8, int8_t, i32, rp__v_load_s8)
WHOLE_ROWS(i16, vs16, int16_t, i32, rp__v_load_s16)
WHOLE_ROWS(i32, rp__vi32, int32_t, i32, rp__v_load_i32)
WHOLE_ROWS(i64, rp__vi64, int64_t, i64, rp__v_load_i64)
WHOLE_ROWS(u8, vu8, uint8_t, u8, rp__v_load_u8)
/* Bytes that are not 0, of memory that need not hold 1. */
WHOLE_ROW(any, bool, vu8, uint8_t, u8, rp__v_load_u8, VOR, EITHER)
WHOLE_ROW(all, bool, vu8, uint8_t, u8, rp__v_load_u8, LESSER_ALL, BOTH)

/* The lanes of a chunk: j with j + 16, then 8, ... 1. Scalar operations of the same definition as the vector ones. */
#define FINISH(name, t, V, EXPR)                                                                                       \
    static void finish_##name##_##t(const rp__tile_call *c) {                                                          \
        enum { K = RP__LANES / L_##t > 0 ? RP__LANES / L_##t : 1, L = L_##t < RP__LANES ? L_##t : RP__LANES };         \
        T_##t v[RP__LANES];                                                                                            \
        V_##t w[K];                                                                                                    \
        if ((int)L_##t <= RP__LANES) {                                                                                 \
            for (int k = 0; k < K; k++) w[k] = rp__v_load_##t((const T_##t *)c->a + k * L);                            \
            for (int s = K / 2; s > 0; s /= 2) {                                                                       \
                for (int k = 0; k < s; k++) w[k] = V(w[k], w[k + s]);                                                  \
            }                                                                                                          \
            rp__v_store_##t(v, w[0]);                                                                                  \
        } else {                                                                                                       \
            memcpy(v, c->a, sizeof v);                                                                                 \
        }                                                                                                              \
        for (int s = L / 2; s > 0; s /= 2) {                                                                           \
            for (int j = 0; j < s; j++) {                                                                              \
                T_##t x = v[j], y = v[j + s];                                                                          \
                v[j] = (T_##t)(EXPR);                                                                                  \
            }                                                                                                          \
        }                                                                                                              \
        *(T_##t *)c->d = v[0];                                                                                         \
    }
#define VAND(x, y) ((x) & (y))
#define FINISH_ORDER(t, MAXIMUM, MINIMUM)                                                                              \
    FINISH(max, t, MAXIMUM, x != x ? x : x > y ? x : y)                                                                \
    FINISH(min, t, MINIMUM, x != x ? x : x < y ? x : y)
FINISH_ORDER(f32, rp__v_max_f32, rp__v_min_f32)
FINISH_ORDER(f64, rp__v_max_f64, rp__v_min_f64)
FINISH_ORDER(i32, rp__v_max_i32, rp__v_min_i32)
FINISH_ORDER(i64, rp__v_max_i64, rp__v_min_i64)
FINISH_ORDER(u8, rp__v_max_u8, rp__v_min_u8)
FINISH(sum, f32, OP_ADD, x + y)
FINISH(sum, f64, OP_ADD, x + y)
FINISH(sum, i64, OP_ADD_I64, (uint64_t)x + (uint64_t)y)
FINISH(prod, f32, OP_MUL, x *y)
FINISH(prod, f64, OP_MUL, x *y)
FINISH(prod, i64, OP_MUL_I64, (uint64_t)x *(uint64_t)y)
FINISH(any, u8, VOR, x | y)
FINISH(all, u8, VAND, x &y)

/* ---- random numbers: Philox4x32-10 ----------------------------------------------------------------------------------- */

enum { BATCH = 32 }; /* counters at once: the inner loops below become vector code */
static void philox_batch(uint64_t seed, const uint64_t *counter, uint32_t out[4][BATCH]) {
    uint32_t c0[BATCH], c1[BATCH], c2[BATCH], c3[BATCH];
    for (int i = 0; i < BATCH; i++) {
        c0[i] = (uint32_t)counter[i];
        c1[i] = (uint32_t)(counter[i] >> 32);
        c2[i] = c3[i] = 0;
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int r = 0; r < 10; r++) {
        for (int i = 0; i < BATCH; i++) {
            uint64_t p0 = (uint64_t)c0[i] * 0xD2511F53u, p1 = (uint64_t)c2[i] * 0xCD9E8D57u;
            uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
            c0[i] = n0;
            c2[i] = n2;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out[0], c0, sizeof c0);
    memcpy(out[1], c1, sizeof c1);
    memcpy(out[2], c2, sizeof c2);
    memcpy(out[3], c3, sizeof c3);
}
/* Element numbers a[0..n) in pieces whose counters are consecutive or not: each piece of up to BATCH counters covers
   `elements` numbers; word(k) of element e is out[...]. per = elements a counter (4 or 2). */
typedef struct draw {
    uint64_t seed, first; /* counter of element 0 */
} draw;
static draw draw_of(const rp__tile_call *c) {
    const uint64_t *w = c->env->draws + 3 * c->imm;
    const uint64_t *state = (const uint64_t *)(uintptr_t)w[0];
    return (draw){state ? state[0] : w[1], (state ? state[1] : 0) + w[2]};
}
/* Fills out with the words of the distinct counters of a[i..), as many elements as fit; returns how many. where[k]: column of
   element i + k. */
static int64_t philox_piece(const rp__tile_call *c, draw r, int64_t i, uint64_t per, uint32_t out[4][BATCH],
                            uint8_t *where) {
    const int64_t *a = c->a;
    uint64_t counters[BATCH];
    int used = 0;
    int64_t k = 0;
    for (; i + k < c->n && k < 4 * BATCH; k++) {
        uint64_t at = r.first + (uint64_t)a[(i + k) * c->as] / per;
        if (!used || counters[used - 1] != at) {
            if (used == BATCH) break;
            counters[used++] = at;
        }
        where[k] = (uint8_t)(used - 1);
    }
    for (int j = used; j < BATCH; j++) counters[j] = 0;
    philox_batch(r.seed, counters, out);
    return k;
}
static void philox32(const rp__tile_call *c) {
    int64_t *d = c->d;
    const int64_t *a = c->a;
    draw r = draw_of(c);
    uint32_t out[4][BATCH];
    uint8_t where[4 * BATCH];
    for (int64_t i = 0; i < c->n;) {
        int64_t k = philox_piece(c, r, i, 4, out, where);
        for (int64_t j = 0; j < k; j++) d[i + j] = out[a[(i + j) * c->as] & 3][where[j]];
        i += k;
    }
}
static void philox64(const rp__tile_call *c) {
    int64_t *d = c->d;
    const int64_t *a = c->a;
    draw r = draw_of(c);
    uint32_t out[4][BATCH];
    uint8_t where[4 * BATCH];
    for (int64_t i = 0; i < c->n;) {
        int64_t k = philox_piece(c, r, i, 2, out, where);
        for (int64_t j = 0; j < k; j++) {
            int w = (int)(a[(i + j) * c->as] & 1) * 2;
            d[i + j] = (int64_t)((uint64_t)out[w][where[j]] << 32 | out[w + 1][where[j]]);
        }
        i += k;
    }
}
/* Box-Muller in f64 on the two word pairs of each counter; z[w] is the normal of word w. */
static void normals(uint32_t out[4][BATCH], double z[4][BATCH]) {
    for (int pair = 0; pair < 4; pair += 2) {
        for (int i = 0; i < BATCH; i += (int)L_f64) {
            rp__vf64 u1, u2, s, co;
            for (int k = 0; k < (int)L_f64; k++) {
                u1[k] = ((double)out[pair][i + k] + 1.0) * 0x1p-32;
                u2[k] = (double)out[pair + 1][i + k] * 0x1p-32;
            }
            rp__vf64 radius = rp__v_sqrt_f64(-2.0 * rp__v_log_f64(u1));
            rp__v_sincos_f64(u2 * 0x1.921fb54442d18p+2, &s, &co);
            rp__v_store_f64(&z[pair][i], radius * co);
            rp__v_store_f64(&z[pair + 1][i], radius * s);
        }
    }
}
#define NORMAL(t)                                                                                                      \
    static void normal_##t(const rp__tile_call *c) {                                                                   \
        T_##t *d = c->d;                                                                                               \
        const int64_t *a = c->a;                                                                                       \
        draw r = draw_of(c);                                                                                           \
        uint32_t out[4][BATCH];                                                                                        \
        double z[4][BATCH];                                                                                            \
        uint8_t where[4 * BATCH];                                                                                      \
        for (int64_t i = 0; i < c->n;) {                                                                               \
            int64_t k = philox_piece(c, r, i, 4, out, where);                                                          \
            normals(out, z);                                                                                           \
            for (int64_t j = 0; j < k; j++) d[i + j] = (T_##t)z[a[(i + j) * c->as] & 3][where[j]];                     \
            i += k;                                                                                                    \
        }                                                                                                              \
    }
NORMAL(f32)
NORMAL(f64)

/* ---- scans ---------------------------------------------------------------------------------------------------------- */

/* Blocks know nothing of each other before their ends: several at once, since each is a chain that waits for its last result. Then what
   is before each, by vectors. */
enum { SCAN_BLOCKS = 8 };
#define SCAN_BLOCK_ENDS(pos, OP)                                                                                       \
    if (pos) {                                                                                                         \
        state[1] = (pos) % RP__CHUNK == RP__SCAN_BLOCK ? state[0] : OP(state[1], state[0]);                            \
        if ((pos) % RP__CHUNK == 0) state[2] = (pos) == RP__CHUNK ? state[1] : OP(state[2], state[1]);                 \
        state[3] = (pos) < RP__CHUNK ? state[1] : (pos) % RP__CHUNK == 0 ? state[2] : OP(state[2], state[1]);          \
    }
#define SCAN(name, t, OP, VEC_OP)                                                                                      \
    static void blocks_##name##_##t(T_##t *d, T_##t *state, const T_##t *a, int64_t pos) {                             \
        T_##t run[SCAN_BLOCKS];                                                                                        \
        for (int b = 0; b < SCAN_BLOCKS; b++) d[b * RP__SCAN_BLOCK] = run[b] = a[b * RP__SCAN_BLOCK];                  \
        for (int k = 1; k < RP__SCAN_BLOCK; k++) {                                                                     \
            for (int b = 0; b < SCAN_BLOCKS; b++) {                                                                    \
                const T_##t x = a[b * RP__SCAN_BLOCK + k];                                                             \
                d[b * RP__SCAN_BLOCK + k] = run[b] = OP(run[b], x);                                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (int b = 0; b < SCAN_BLOCKS; b++, pos += RP__SCAN_BLOCK, d += RP__SCAN_BLOCK) {                            \
            SCAN_BLOCK_ENDS(pos, OP)                                                                                   \
            state[0] = run[b];                                                                                         \
            if (!pos) continue;                                                                                        \
            const V_##t before = rp__v_splat_##t(state[3]);                                                            \
            for (int k = 0; k < RP__SCAN_BLOCK; k += (int)L_##t)                                                       \
                rp__v_store_##t(d + k, VEC_OP(before, rp__v_load_##t(d + k)));                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static void scan_##name##_##t(const rp__scan_call *c) {                                                            \
        T_##t *d = c->d, *state = c->state;                                                                            \
        const T_##t *a = c->a;                                                                                         \
        for (int64_t i = 0; i < c->n;) {                                                                               \
            const int64_t pos = c->pos + i, at = pos % RP__SCAN_BLOCK;                                                 \
            const int64_t left = RP__SCAN_BLOCK - at, n = c->n - i < left ? c->n - i : left;                           \
            if (at == 0 && c->as && c->n - i >= SCAN_BLOCKS * RP__SCAN_BLOCK) {                                        \
                blocks_##name##_##t(d + i, state, a + i, pos);                                                         \
                i += SCAN_BLOCKS * RP__SCAN_BLOCK;                                                                     \
                continue;                                                                                              \
            }                                                                                                          \
            if (at == 0) {                                                                                             \
                SCAN_BLOCK_ENDS(pos, OP)                                                                               \
            }                                                                                                          \
            T_##t run = state[0], before = state[3];                                                                   \
            for (int64_t k = 0; k < n; k++) {                                                                          \
                const T_##t x = a[(i + k) * c->as];                                                                    \
                run = at + k ? OP(run, x) : x;                                                                         \
                d[i + k] = pos < RP__SCAN_BLOCK ? run : OP(before, run);                                               \
            }                                                                                                          \
            state[0] = run;                                                                                            \
            i += n;                                                                                                    \
        }                                                                                                              \
    }
#define ONE_ADD_I64(x, y) ((int64_t)((uint64_t)(x) + (uint64_t)(y)))
#define ONE_MUL_I64(x, y) ((int64_t)((uint64_t)(x) * (uint64_t)(y)))
#define ONE_MAX(x, y) ((x) > (y) ? (x) : (y))
#define ONE_MIN(x, y) ((x) < (y) ? (x) : (y))
#define ONE_MAX_f32(x, y) (rp__v_max_f32(rp__v_splat_f32(x), rp__v_splat_f32(y))[0])
#define ONE_MAX_f64(x, y) (rp__v_max_f64(rp__v_splat_f64(x), rp__v_splat_f64(y))[0])
#define ONE_MIN_f32(x, y) (rp__v_min_f32(rp__v_splat_f32(x), rp__v_splat_f32(y))[0])
#define ONE_MIN_f64(x, y) (rp__v_min_f64(rp__v_splat_f64(x), rp__v_splat_f64(y))[0])
/* log(exp(x) + exp(y)): the larger and what the smaller adds; of two equal ones (both infinite, above all) no difference is taken. */
#define LOGADDEXP(t)                                                                                                   \
    RP__VEC_FN V_##t logaddexp_##t(V_##t x, V_##t y) {                                                                 \
        const V_##t high = rp__v_max_##t(x, y), low = rp__v_min_##t(x, y), less = low - high;                          \
        const V_##t sum = high + rp__v_log1p_##t(rp__v_exp_##t(less));                                                 \
        const V_##t twice = high + rp__v_splat_##t((T_##t)0.6931471805599453);                                         \
        return rp__v_sel_##t(x == y, twice, sum);                                                                      \
    }
LOGADDEXP(f32)
LOGADDEXP(f64)
#define ONE_LOGADDEXP_f32(x, y) (logaddexp_f32(rp__v_splat_f32(x), rp__v_splat_f32(y))[0])
#define ONE_LOGADDEXP_f64(x, y) (logaddexp_f64(rp__v_splat_f64(x), rp__v_splat_f64(y))[0])
SCAN(sum, f32, OP_ADD, OP_ADD)
SCAN(sum, f64, OP_ADD, OP_ADD)
SCAN(sum, i64, ONE_ADD_I64, OP_ADD_I64)
SCAN(prod, f32, OP_MUL, OP_MUL)
SCAN(prod, f64, OP_MUL, OP_MUL)
SCAN(prod, i64, ONE_MUL_I64, OP_MUL_I64)
SCAN(max, f32, ONE_MAX_f32, rp__v_max_f32)
SCAN(max, f64, ONE_MAX_f64, rp__v_max_f64)
SCAN(max, i32, ONE_MAX, rp__v_max_i32)
SCAN(max, i64, ONE_MAX, rp__v_max_i64)
SCAN(max, u8, ONE_MAX, rp__v_max_u8)
SCAN(min, f32, ONE_MIN_f32, rp__v_min_f32)
SCAN(min, f64, ONE_MIN_f64, rp__v_min_f64)
SCAN(min, i32, ONE_MIN, rp__v_min_i32)
SCAN(min, i64, ONE_MIN, rp__v_min_i64)
SCAN(min, u8, ONE_MIN, rp__v_min_u8)
SCAN(logaddexp, f32, ONE_LOGADDEXP_f32, logaddexp_f32)
SCAN(logaddexp, f64, ONE_LOGADDEXP_f64, logaddexp_f64)
#define BLOCK(name, t)                                                                                                 \
    static void block_##name##_##t(const rp__tile_call *c) {                                                           \
        T_##t *d = c->d;                                                                                               \
        const T_##t *a = c->a;                                                                                         \
        const int64_t n = c->n, as = c->as;                                                                            \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            T_##t x[L_##t], y[L_##t];                                                                                  \
            const int64_t m = n - i < (int64_t)L_##t ? n - i : (int64_t)L_##t;                                         \
            for (int64_t k = 0; k < (int64_t)L_##t; k++) {                                                             \
                x[k] = k < m ? d[i + k] : 0;                                                                           \
                y[k] = k < m ? a[(i + k) * as] : 0;                                                                    \
            }                                                                                                          \
            rp__v_store_##t(x, name##_##t(rp__v_load_##t(x), rp__v_load_##t(y)));                                      \
            memcpy(d + i, x, (size_t)m * sizeof *d);                                                                   \
        }                                                                                                              \
    }
BLOCK(logaddexp, f32)
BLOCK(logaddexp, f64)

/* ---- the first of the largest ---------------------------------------------------------------------------------------- */

#define NAN_OR(x, y) (((x) == (y)) | ((x) != (x)))
#define IS(x, y) ((x) == (y))
#define NONE_i32(m) rp__v_all_i32(~(m))
#define NONE_i64(m) (!rp__v_any_i64(m))
#define FIRST(t, I, IT, MOST, EQUAL)                                                                                   \
    static void first_##t(const rp__first_call *c) {                                                                   \
        IT *best = c->best;                                                                                            \
        const T_##t *a = c->a, *largest = c->largest;                                                                  \
        for (int64_t i = 0; i < c->n; i += L_##t) {                                                                    \
            const V_##t y = rp__v_load_##t(largest + i);                                                               \
            V_##I at = rp__v_splat_##I(MOST);                                                                          \
            for (int64_t p = c->positions; p-- > 0;) {                                                                 \
                const V_##t x = rp__v_load_##t(a + p * c->step + i);                                                   \
                at = rp__v_sel_##I(EQUAL(x, y), rp__v_splat_##I((IT)(c->number + p)), at);                             \
            }                                                                                                          \
            rp__v_store_##I(best + i, rp__v_min_##I(rp__v_load_##I(best + i), at));                                    \
        }                                                                                                              \
    }                                                                                                                  \
    static int64_t find_##t(const void *from, const void *largest, int64_t n) {                                        \
        const T_##t *a = from;                                                                                         \
        const V_##t y = rp__v_splat_##t(*(const T_##t *)largest);                                                      \
        for (int64_t i = 0; i < n; i += L_##t) {                                                                       \
            const V_##t x = rp__v_load_##t(a + i);                                                                     \
            const V_##I is = EQUAL(x, y);                                                                              \
            if (NONE_##I(is)) continue;                                                                                \
            for (int64_t k = 0; k < (int64_t)L_##t && i + k < n; k++) {                                                \
                if (is[k]) return i + k;                                                                               \
            }                                                                                                          \
        }                                                                                                              \
        return -1;                                                                                                     \
    }
FIRST(f32, i32, int32_t, INT32_MAX, NAN_OR)
FIRST(f64, i64, int64_t, INT64_MAX, NAN_OR)
FIRST(i32, i32, int32_t, INT32_MAX, IS)
FIRST(i64, i64, int64_t, INT64_MAX, IS)
#define FIRSTS(f)                                                                                                      \
    { [RP__TILE_F32] = f##_f32, [RP__TILE_F64] = f##_f64, [RP__TILE_I32] = f##_i32, [RP__TILE_I64] = f##_i64 }

/* ---- the table ------------------------------------------------------------------------------------------------------ */

#define FLOATS(f)                                                                                                      \
    { [RP__TILE_F32] = f##_f32, [RP__TILE_F64] = f##_f64 }
#define NUMBERS(f)                                                                                                     \
    {                                                                                                                  \
        [RP__TILE_F32] = f##_f32, [RP__TILE_F64] = f##_f64, [RP__TILE_I32] = f##_i32, [RP__TILE_I64] = f##_i64,        \
        [RP__TILE_U8] = f##_u8                                                                                         \
    }
#define ALL(f)                                                                                                         \
    {                                                                                                                  \
        [RP__TILE_F32] = f##_f32, [RP__TILE_F64] = f##_f64, [RP__TILE_I32] = f##_i32, [RP__TILE_I64] = f##_i64,        \
        [RP__TILE_U8] = f##_u8, [RP__TILE_BOOL] = f##_u8                                                               \
    }
#define INTS(f)                                                                                                        \
    { [RP__TILE_I32] = f##_i32, [RP__TILE_I64] = f##_i64, [RP__TILE_U8] = f##_u8, [RP__TILE_BOOL] = f##_u8 }

#define SUMS(f)                                                                                                        \
    { [RP__TILE_F32] = f##_f32, [RP__TILE_F64] = f##_f64, [RP__TILE_I64] = f##_i64 }
#define REDUCTIONS(f)                                                                                                  \
    {                                                                                                                  \
        [RP__REDUCE_SUM] = SUMS(f##_sum), [RP__REDUCE_PROD] = SUMS(f##_prod), [RP__REDUCE_MAX] = NUMBERS(f##_max),     \
        [RP__REDUCE_MIN] = NUMBERS(f##_min), [RP__REDUCE_ANY] = {[RP__TILE_BOOL] = f##_any_u8}, [RP__REDUCE_ALL] = {   \
            [RP__TILE_BOOL] = f##_all_u8                                                                               \
        }                                                                                                              \
    }

#define WHOLE_ROW_OF(name)                                                                                             \
    {                                                                                                                  \
        [RP__TILE_I32] =                                                                                               \
            {row_whole_##name##_i32, [RP__LOAD_I8] = row_whole_##name##_i8, [RP__LOAD_I16] = row_whole_##name##_i16},  \
        [RP__TILE_I64] = {row_whole_##name##_i64}, [RP__TILE_U8] = {                                                   \
            row_whole_##name##_u8                                                                                      \
        }                                                                                                              \
    }
#define COLUMNS_OF(f)                                                                                                  \
    {                                                                                                                  \
        [RP__TILE_F32] = {f##_f32, f##_f16, f##_bf16}, [RP__TILE_F64] = { f##_f64 }                                    \
    }
#define ORDERED_COLUMNS_OF(f)                                                                                          \
    {                                                                                                                  \
        [RP__TILE_F32] = {f##_f32, f##_f16, f##_bf16}, [RP__TILE_F64] = {f##_f64},                                     \
        [RP__TILE_I32] = {f##_i32, [RP__LOAD_I8] = f##_i8, [RP__LOAD_I16] = f##_i16}, [RP__TILE_I64] = {f##_i64},      \
        [RP__TILE_U8] = {                                                                                              \
            f##_u8                                                                                                     \
        }                                                                                                              \
    }
#define ALL_COLUMNS(f)                                                                                                 \
    {                                                                                                                  \
        [RP__REDUCE_SUM] = {[RP__TILE_F32] = {f##_sum_f32, f##_sum_f16, f##_sum_bf16},                                 \
                            [RP__TILE_F64] = {f##_sum_f64},                                                            \
                            [RP__TILE_I64] = {f##_sum_i64}},                                                           \
        [RP__REDUCE_MAX] = ORDERED_COLUMNS_OF(f##_max), [RP__REDUCE_MIN] = ORDERED_COLUMNS_OF(f##_min),                \
        [RP__REDUCE_PROD] = COLUMNS_OF(f##_prod)                                                                       \
    }

#define SCANS(f)                                                                                                       \
    {                                                                                                                  \
        [RP__SCAN_SUM] = SUMS(f##_sum), [RP__SCAN_PROD] = SUMS(f##_prod), [RP__SCAN_MAX] = NUMBERS(f##_max),           \
        [RP__SCAN_MIN] = NUMBERS(f##_min), [RP__SCAN_LOGADDEXP] = FLOATS(f##_logaddexp)                                \
    }

const rp__tiles
    JOIN(rp__tiles_, RP_ISA) =
        {
            .name = RP_STRINGIZE(RP_ISA),
            .vec_bytes = RP_VEC_BYTES,
            .op =
                {
#define RP_MATH1(prim, f, cost) [RP__##prim] = FLOATS(f),
#define RP_MATH2(prim, f, cost) [RP__##prim] = FLOATS(f),
#include "kernel/prims.def"
                    [RP__ADD] = NUMBERS(add),
                    [RP__SUB] = NUMBERS(sub),
                    [RP__MUL] = NUMBERS(mul),
                    [RP__DIV] = FLOATS(div),
                    [RP__FLOORDIV] = NUMBERS(floordiv),
                    [RP__REMAINDER] = NUMBERS(remainder),
                    [RP__MAX] = NUMBERS(max),
                    [RP__MIN] = NUMBERS(min),
                    [RP__NEG] = NUMBERS(neg),
                    [RP__ABS] = NUMBERS(abs),
                    [RP__SIGN] = NUMBERS(sign),
                    [RP__RSQRT] = FLOATS(rsqrt),
                    [RP__RECIP] = FLOATS(recip),
                    [RP__ERFP1] = FLOATS(erfp1),
                    [RP__SIGMOID] = FLOATS(sigmoid),
                    [RP__ISNAN] = FLOATS(isnan),
                    [RP__EQ] = ALL(eq),
                    [RP__NE] = ALL(ne),
                    [RP__LT] = ALL(lt),
                    [RP__LE] = ALL(le),
                    [RP__AND] = INTS(and),
                    [RP__OR] = INTS(or),
                    [RP__XOR] = INTS(xor),
                    [RP__SHL] = INTS(shl),
                    [RP__SHR] = INTS(shr),
                    [RP__GCD] = INTS(gcd),
                    [RP__NOT] = {[RP__TILE_I32] = not_i32,
                                 [RP__TILE_I64] = not_i64,
                                 [RP__TILE_U8] = not_u8,
                                 [RP__TILE_BOOL] = not_bool},
                    [RP__WHERE] = ALL(where),
                    [RP__FMA] = FLOATS(fma),
                    [RP__CHECK_INDEX] = {[RP__TILE_I64] = check_index},
                    [RP__PHILOX] = {[RP__TILE_I64] = philox32},
                    [RP__PHILOX64] = {[RP__TILE_I64] = philox64},
                    [RP__PHILOX_NORMAL] = FLOATS(normal),
                },
            .cast =
                {
                    [RP__TILE_F32] = {NULL, cast_f32_f64, cast_f32_i32, cast_f32_i64, cast_f32_u8, cast_f32_bool},
                    [RP__TILE_F64] = {cast_f64_f32, NULL, cast_f64_i32, cast_f64_i64, cast_f64_u8, cast_f64_bool},
                    [RP__TILE_I32] = {cast_i32_f32, cast_i32_f64, NULL, cast_i32_i64, cast_i32_u8, cast_i32_bool},
                    [RP__TILE_I64] = {cast_i64_f32, cast_i64_f64, cast_i64_i32, NULL, cast_i64_u8, cast_i64_bool},
                    [RP__TILE_U8] = {cast_u8_f32, cast_u8_f64, cast_u8_i32, cast_u8_i64, NULL, cast_u8_bool},
                    [RP__TILE_BOOL] = {cast_u8_f32, cast_u8_f64, cast_u8_i32, cast_u8_i64, cast_u8_u8, NULL},
                },
            .round = {round_f16_f32, round_bf16_f32, round_i8_i32, round_i16_i32},
            .load = {load_f16, load_bf16, load_i8, load_i16, load_bool},
            .store_narrow = {store_f16, store_bf16, store_i8, store_i16},
            .gather = {gather_8, gather_16, gather_32, gather_64},
            .load_at = {NULL, NULL, LOAD_AT_32, LOAD_AT_64},
            .transpose = {transpose_8, transpose_16, transpose_32, transpose_64},
            .scatter = {scatter_8, scatter_16, scatter_32, scatter_64},
            .reduce_row = REDUCTIONS(row),
            .finish_row = REDUCTIONS(finish),
            .reduce_block = REDUCTIONS(block),
            .whole_row = {[RP__REDUCE_MAX] = WHOLE_ROW_OF(max),
                          [RP__REDUCE_MIN] = WHOLE_ROW_OF(min),
                          [RP__REDUCE_ANY] = {[RP__TILE_BOOL] = {[RP__LOAD_BOOL] = row_whole_any_bool}},
                          [RP__REDUCE_ALL] = {[RP__TILE_BOOL] = {[RP__LOAD_BOOL] = row_whole_all_bool}}},
            .reduce_columns = ALL_COLUMNS(columns),
            .whole_columns = ALL_COLUMNS(whole),
            .weigh = {weigh_f32, weigh_f16, weigh_bf16},
            .reduce_window = {[RP__REDUCE_SUM] = {[RP__TILE_F32] = {window_sum_f32, window_sum_f16, window_sum_bf16},
                                                  [RP__TILE_F64] = {window_sum_f64}},
                              [RP__REDUCE_MAX] = {[RP__TILE_F32] = {window_max_f32, window_max_f16, window_max_bf16},
                                                  [RP__TILE_F64] = {window_max_f64}}},
            .first = FIRSTS(first),
            .find = FIRSTS(find),
            .place = {[RP__TILE_F32] = {place_f32, place_f16, place_bf16}, [RP__TILE_F64] = {place_f64}},
            .scan = SCANS(scan),
            .scan_block = SCANS(block),
};
