/* Matrix products and convolutions on the CPU, compiled once an instruction set (RP_ISA, RP_VEC_BYTES); gemm.h has the
   contract. Called through the launches that lib_matmul.c and lib_conv.c bind. Its sums contract to fma where
   the instruction set has it (cmake/library.cmake); no order depends on the width. */
#include "kernel/cpu/gemm.h"

#include <string.h>

#include "core/dtype.h"
#include "kernel/cpu/dots.h"
#include "kernel/cpu/vec.h"

/* Rows of the register block: accumulators, two vectors of b, one of a and one product must fit the registers. */
#if RP_VEC_BYTES == 64 || defined(__aarch64__)
#define MICRO_ROWS 12
#else
#define MICRO_ROWS 6
#endif
#define GEMM_MAX_NR (2 * RP_VEC_BYTES / 4) /* columns of a panel of 4-byte elements */
#define SLIM (16 / GEMM_BYTES)             /* columns that need no padding */
#define WIDE (RP_VEC_BYTES == 64 ? 2 : 4)  /* panels that a lone row takes at once: within a tile */
#define WEIGHT_BYTES RP__GEMM_WEIGHT_BYTES
#define NEAR_BYTES (16 << 20) /* of b, to be in some cache from call to call */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#include "kernel/cpu/isa/conv_plan.h"

#define GEMM_BYTES 4
#define ACC f32
#define T float
#define V rp__vf32
#define VU rp__vf32u
#define L RP_VEC_F32
#include "kernel/cpu/isa/gemm_core.h"
#define ACC u32
#define T uint32_t
#define V rp__vu32
#define VU rp__vu32u
#include "kernel/cpu/isa/gemm_core.h"
#undef GEMM_BYTES
#undef L
#define GEMM_BYTES 8
#define ACC f64
#define T double
#define V rp__vf64
#define VU rp__vf64u
#define L RP_VEC_F64
#include "kernel/cpu/isa/gemm_core.h"
#define ACC u64
#define T uint64_t
#define V rp__vu64
#define VU rp__vu64u
#include "kernel/cpu/isa/gemm_core.h"
#undef GEMM_BYTES
#undef L

/* ---- runs of elements between storage and accumulator ---------------------------------------------------------------- */

/* Halves: whole vectors, the rest through a padded one. */
#define HALF_RUNS(name)                                                                                                \
    static void widen_##name(float *dst, const uint16_t *src, int64_t n) {                                             \
        int64_t i = 0;                                                                                                 \
        for (; i + RP_VEC_F32 <= n; i += RP_VEC_F32)                                                                   \
            rp__v_store_f32(dst + i, rp__v_f32_##name(rp__v_load_u16h(src + i)));                                      \
        if (i < n) {                                                                                                   \
            uint16_t s[RP_VEC_F32] = {0};                                                                              \
            float d[RP_VEC_F32];                                                                                       \
            memcpy(s, src + i, (size_t)(n - i) * sizeof *s);                                                           \
            rp__v_store_f32(d, rp__v_f32_##name(rp__v_load_u16h(s)));                                                  \
            memcpy(dst + i, d, (size_t)(n - i) * sizeof *d);                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void narrow_##name(uint16_t *dst, const float *src, int64_t n) {                                            \
        int64_t i = 0;                                                                                                 \
        for (; i + RP_VEC_F32 <= n; i += RP_VEC_F32)                                                                   \
            rp__v_store_u16h(dst + i, rp__v_##name##_f32(rp__v_load_f32(src + i)));                                    \
        if (i < n) {                                                                                                   \
            float s[RP_VEC_F32] = {0};                                                                                 \
            uint16_t d[RP_VEC_F32];                                                                                    \
            memcpy(s, src + i, (size_t)(n - i) * sizeof *s);                                                           \
            rp__v_store_u16h(d, rp__v_##name##_f32(rp__v_load_f32(s)));                                                \
            memcpy(dst + i, d, (size_t)(n - i) * sizeof *d);                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static inline float load_##name(uint16_t x) { return rp__v_f32_##name((rp__vu16h){x})[0]; }                        \
    static inline uint16_t store_##name(float x) { return rp__v_##name##_f32((rp__vf32){x})[0]; }
HALF_RUNS(f16)
HALF_RUNS(bf16)
/* Integers of less than 32 bits: sums wrap in 32, and what is stored is the lower part. */
#define INT_RUNS(name, T)                                                                                              \
    static void widen_##name(uint32_t *dst, const T *src, int64_t n) {                                                 \
        for (int64_t i = 0; i < n; i++) dst[i] = (uint32_t)src[i];                                                     \
    }                                                                                                                  \
    static void narrow_##name(T *dst, const uint32_t *src, int64_t n) {                                                \
        for (int64_t i = 0; i < n; i++) dst[i] = (T)src[i];                                                            \
    }
INT_RUNS(u8, uint8_t)
INT_RUNS(i8, int8_t)
INT_RUNS(i16, int16_t)
#define COPY_RUN(dst, src, n) memcpy((dst), (src), (size_t)(n) * sizeof *(dst))
/* Runs of a row of an image are short: no call, and the last vector ends where they do. */
static inline void copy_f32(float *restrict dst, const float *restrict src, int64_t n) {
    typedef float quad __attribute__((vector_size(16)));
    typedef quad quad_u __attribute__((aligned(1), may_alias));
    int64_t i = 0;
    for (; i + RP_VEC_F32 <= n; i += RP_VEC_F32) rp__v_store_f32(dst + i, rp__v_load_f32(src + i));
    if (i == n) return;
    if (n >= RP_VEC_F32) {
        rp__v_store_f32(dst + n - RP_VEC_F32, rp__v_load_f32(src + n - RP_VEC_F32));
        return;
    }
    for (; i + 4 <= n; i += 4) *(quad_u *)(dst + i) = *(const quad_u *)(src + i);
    if (n >= 4) {
        *(quad_u *)(dst + n - 4) = *(const quad_u *)(src + n - 4);
        return;
    }
    for (; i < n; i++) dst[i] = src[i];
}

/* Products of bf16 by the matrix unit (DOTS in gemm_tile.h): the block of K where both operands are lines, twice as many where those of a
   are read in place; a row of a, in elements; pairs of a strip for a step of K; room for them. */
#define A2(name) name##_u32
#define DOTS_DEPTH 512
#define DOTS_ROW (DOTS_DEPTH + 32)
#define DOTS_PAIRS (RP__DOTS_STEP / 2 * RP__DOTS_STRIP)
#define DOTS_ROOM (2 * DOTS_PAIRS * RP__GEMM_STREAM_TILE_N / RP__DOTS_STRIP)

#define S f32
#define V rp__vf32
#define LOAD_VECTOR(p) A(load)(p)
#define FLOATING 1
#define ST float
#define ACC f32
#define T float
#define L RP_VEC_F32
#define SAME 1
#define LOAD(x) (x)
#define STORE(x) (x)
#define WIDEN copy_f32
#define NARROW copy_f32
#define GEMM_BYTES 4
#include "kernel/cpu/isa/gemm_tile.h"
#define S f64
#define V rp__vf64
#define LOAD_VECTOR(p) A(load)(p)
#define FLOATING 1
#define ST double
#define ACC f64
#define T double
#define L RP_VEC_F64
#define SAME 1
#define LOAD(x) (x)
#define STORE(x) (x)
#define WIDEN COPY_RUN
#define NARROW COPY_RUN
#define GEMM_BYTES 8
#include "kernel/cpu/isa/gemm_tile.h"
#define S f16
#define V rp__vf32
#define LOAD_VECTOR(p) rp__v_f32_f16(rp__v_load_u16h(p))
#define JOINED rp__v_f32_f16
#define FLOATING 1
#define ST uint16_t
#define ACC f32
#define T float
#define L RP_VEC_F32
#define SAME 0
#define LOAD load_f16
#define STORE store_f16
#define WIDEN widen_f16
#define NARROW narrow_f16
#define GEMM_BYTES 4
#include "kernel/cpu/isa/gemm_tile.h"
#define S bf16
#define V rp__vf32
#define LOAD_VECTOR(p) rp__v_f32_bf16(rp__v_load_u16h(p))
#define JOINED rp__v_f32_bf16
#define FLOATING 1
#define ST uint16_t
#define ACC f32
#define T float
#define L RP_VEC_F32
#define SAME 0
#define LOAD load_bf16
#define STORE store_bf16
#define WIDEN widen_bf16
#define NARROW narrow_bf16
#if RP_VEC_BYTES == 64
#define DOTS
#endif
#define GEMM_BYTES 4
#include "kernel/cpu/isa/gemm_tile.h"
#define S i32
#define V rp__vu32
#define LOAD_VECTOR(p) A(load)(p)
#define FLOATING 0
#define ST uint32_t
#define ACC u32
#define T uint32_t
#define L RP_VEC_F32
#define SAME 1
#define LOAD(x) (x)
#define STORE(x) (x)
#define WIDEN COPY_RUN
#define NARROW COPY_RUN
#define GEMM_BYTES 4
#include "kernel/cpu/isa/gemm_tile.h"
#define S i64
#define V rp__vu64
#define LOAD_VECTOR(p) A(load)(p)
#define FLOATING 0
#define ST uint64_t
#define ACC u64
#define T uint64_t
#define L RP_VEC_F64
#define SAME 1
#define LOAD(x) (x)
#define STORE(x) (x)
#define WIDEN COPY_RUN
#define NARROW COPY_RUN
#define GEMM_BYTES 8
#include "kernel/cpu/isa/gemm_tile.h"
#define S u8
#define V rp__vu32
#define FLOATING 0
#define ST uint8_t
#define ACC u32
#define T uint32_t
#define L RP_VEC_F32
#define SAME 0
#define LOAD(x) ((uint32_t)(x))
#define STORE(x) ((uint8_t)(x))
#define WIDEN widen_u8
#define NARROW narrow_u8
#define GEMM_BYTES 4
#include "kernel/cpu/isa/gemm_tile.h"
#define S i8
#define V rp__vu32
#define FLOATING 0
#define ST int8_t
#define ACC u32
#define T uint32_t
#define L RP_VEC_F32
#define SAME 0
#define LOAD(x) ((uint32_t)(x))
#define STORE(x) ((int8_t)(x))
#define WIDEN widen_i8
#define NARROW narrow_i8
#define GEMM_BYTES 4
#include "kernel/cpu/isa/gemm_tile.h"
#define S i16
#define V rp__vu32
#define FLOATING 0
#define ST int16_t
#define ACC u32
#define T uint32_t
#define L RP_VEC_F32
#define SAME 0
#define LOAD(x) ((uint32_t)(x))
#define STORE(x) ((int16_t)(x))
#define WIDEN widen_i16
#define NARROW narrow_i16
#define GEMM_BYTES 4
#include "kernel/cpu/isa/gemm_tile.h"

#define TABLE2(isa) rp__gemm_##isa
#define TABLE1(isa) TABLE2(isa)
#define TEXT2(isa) #isa
#define TEXT1(isa) TEXT2(isa)
#define CONVS(kind)                                                                                                    \
    {                                                                                                                  \
        [RP_F32] = conv_##kind##_f32, [RP_F64] = conv_##kind##_f64, [RP_F16] = conv_##kind##_f16,                      \
        [RP_BF16] = conv_##kind##_bf16                                                                                 \
    }
const rp__gemm TABLE1(RP_ISA) = {
    .name = TEXT1(RP_ISA),
    .panel = GEMM_MAX_NR,
    .matmul = {[RP_F32] = matmul_f32,
               [RP_F64] = matmul_f64,
               [RP_F16] = matmul_f16,
               [RP_BF16] = matmul_bf16,
               [RP_I32] = matmul_i32,
               [RP_I64] = matmul_i64,
               [RP_U8] = matmul_u8,
               [RP_I8] = matmul_i8,
               [RP_I16] = matmul_i16},
    .conv = {[RP__CONV_FORWARD] = CONVS(forward), [RP__CONV_INPUT] = CONVS(input), [RP__CONV_WEIGHT] = CONVS(weight)},
};
