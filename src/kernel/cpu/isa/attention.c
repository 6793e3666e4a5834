/* Attention on the CPU, compiled once an instruction set (RP_ISA, RP_VEC_BYTES); attention.h has the contract. Scores are computed as keys x
   queries, so that vectors run along queries: maxima and sums of a softmax never cross lanes, and keys and values are read as they lie,
   an element at a time beside a vector of queries. Lanes behind the last query compute on zeros. Of so few queries that most lanes would, as where
   text is decoded, vectors run along keys and then along features. attention_dots.h: bf16 by the matrix unit. */
#include "kernel/cpu/attention.h"

#include <string.h>

#include "core/dtype.h"
#include "device/generator.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/vec.h"
#include "kernel/cpu/vmath.h"

/* Rows of the register block, beside three vectors of columns, one element, and what the compiler needs. */
#if RP_VEC_BYTES == 64 || defined(__aarch64__)
#define MICRO_ROWS 8
#else
#define MICRO_ROWS 4
#endif
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* The machine's fma where it has one; not its replacement, which takes dozens of instructions. */
#ifdef RP__VEC_FMA_OF_PARTS
#define FMA_f32(a, b, c) ((a) * (b) + (c))
#define FMA_f64(a, b, c) ((a) * (b) + (c))
#else
#define FMA_f32(a, b, c) rp__v_fma_f32(a, b, c)
#define FMA_f64(a, b, c) rp__v_fma_f64(a, b, c)
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define INF ((R)__builtin_inff())

static inline double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline float float_of_half(uint16_t x, rp_dtype dtype) {
    uint16_t half[RP_VEC_F32] = {x};
    const rp__vu16h h = rp__v_load_u16h(half);
    return (dtype == RP_F16 ? rp__v_f32_f16(h) : rp__v_f32_bf16(h))[0];
}
static inline uint16_t half_of_float(float value, rp_dtype dtype) {
    const rp__vf32 x = rp__v_splat_f32(value);
    uint16_t half[RP_VEC_F32];
    rp__v_store_u16h(half, dtype == RP_F16 ? rp__v_f16_f32(x) : rp__v_bf16_f32(x));
    return half[0];
}

/* ---- what both precisions share */

typedef struct operand { /* of one (b, h) */
    const char *base;
    int64_t row, column; /* strides in elements */
} operand;

static const int64_t *strides_of(const uint64_t *w, unsigned which) {
    return (const int64_t *)w + RP__ATTENTION_STRIDES + 4 * which;
}
static operand operand_at(const uint64_t *w, unsigned which, int64_t batch, int64_t head, rp_dtype dtype) {
    const int64_t *s = strides_of(w, which);
    return (operand){(const char *)(uintptr_t)w[which] +
                         (batch * s[0] + head * s[1]) * (int64_t)rp__dtypes[dtype].bytes,
                     s[2], s[3]};
}

typedef struct block {
    const uint64_t *w;
    rp_dtype dtype;
    int64_t number; /* b * H + h */
    operand mask;
    int64_t row, rows, key, keys, ld; /* ld: rows as whole vectors */
} block;

/* Keys that some query of the block sees. */
static int64_t keys_seen(const uint64_t *w, int64_t row, int64_t rows) {
    const int64_t keys = (int64_t)w[RP__ATTENTION_KEYS], last = row + rows;
    return w[RP__ATTENTION_CAUSAL] && last < keys ? last : keys;
}

/* The element type of the mask. */
static rp_dtype mask_type(const uint64_t *w) {
    const uint64_t kind = w[RP__ATTENTION_MASK_KIND];
    return kind == RP__ATTENTION_BOOL ? RP_BOOL : kind == RP__ATTENTION_F32 ? RP_F32 : (rp_dtype)w[RP__ATTENTION_DTYPE];
}
static operand mask_at(const uint64_t *w, int64_t batch, int64_t head) {
    if (w[RP__ATTENTION_MASK_KIND] == RP__ATTENTION_NO_MASK) return (operand){NULL, 0, 0};
    return operand_at(w, RP__ATTENTION_MASK, batch, head, mask_type(w));
}

#define R float
#define BYTES 4
#define S f32
#define V rp__vf32
#define LANES RP_VEC_F32
#define OWN RP_F32
#define VECTOR_OF_HALVES(at, dtype)                                                                                    \
    ((dtype) == RP_F16 ? rp__v_f32_f16(rp__v_load_u16h(at)) : rp__v_f32_bf16(rp__v_load_u16h(at)))
#include "kernel/cpu/isa/attention_core.h"
#define R double
#define BYTES 8
#define S f64
#define V rp__vf64
#define LANES RP_VEC_F64
#define OWN RP_F64
#define VECTOR_OF_HALVES(at, dtype) ((rp__vf64){0}) /* there are none */
#include "kernel/cpu/isa/attention_core.h"

#if defined(__AVX512F__) && RP_VEC_BYTES == 64
#include "kernel/cpu/dots.h"
#include "kernel/cpu/isa/attention_dots.h"
#define DOTS(name) name##_dots
#else
#define DOTS(name) NULL
#endif

#define ISA_NAME_(isa) rp__attention_##isa
#define ISA_NAME(isa) ISA_NAME_(isa)
const rp__attention_isa ISA_NAME(RP_ISA) = {.forward = {forward_f32, forward_f64, DOTS(forward)},
                                            .backward = {backward_f32, backward_f64, DOTS(backward)}};
