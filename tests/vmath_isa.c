/* vmath_isa.c: array forms of every function of vec.h and vmath.h, compiled once an instruction set with
 * VMATH_ISA and RP_VEC_BYTES defined; exports vmath_table_ISA. test_vmath.c compares the tables. */
#include "vmath_isa.h"

#include "kernel/cpu/vec.h"
#include "kernel/cpu/vmath.h"

static rp__vf32 rp__v_sincos_s_f32(rp__vf32 x) {
    rp__vf32 s, c;
    rp__v_sincos_f32(x, &s, &c);
    return s;
}
static rp__vf32 rp__v_sincos_c_f32(rp__vf32 x) {
    rp__vf32 s, c;
    rp__v_sincos_f32(x, &s, &c);
    return c;
}
static rp__vf64 rp__v_sincos_s_f64(rp__vf64 x) {
    rp__vf64 s, c;
    rp__v_sincos_f64(x, &s, &c);
    return s;
}
static rp__vf64 rp__v_sincos_c_f64(rp__vf64 x) {
    rp__vf64 s, c;
    rp__v_sincos_f64(x, &s, &c);
    return c;
}

#define UNARY(name, type, lanes)                                                                                       \
    static void run_##name##_##type(const void *x, const void *y, void *out, size_t n) {                               \
        const char *a = x;                                                                                             \
        char *o = out;                                                                                                 \
        (void)y;                                                                                                       \
        for (size_t i = 0; i < n / (lanes); i++)                                                                       \
            rp__v_store_##type(o + i * RP_VEC_BYTES, rp__v_##name##_##type(rp__v_load_##type(a + i * RP_VEC_BYTES)));  \
    }
#define BINARY(name, type, lanes)                                                                                      \
    static void run_##name##_##type(const void *x, const void *y, void *out, size_t n) {                               \
        const char *a = x, *b = y;                                                                                     \
        char *o = out;                                                                                                 \
        for (size_t i = 0; i < n / (lanes); i++)                                                                       \
            rp__v_store_##type(o + i * RP_VEC_BYTES, rp__v_##name##_##type(rp__v_load_##type(a + i * RP_VEC_BYTES),    \
                                                                           rp__v_load_##type(b + i * RP_VEC_BYTES)));  \
    }
#define X(name, ref, b32, b64) UNARY(name, f32, RP_VEC_F32) UNARY(name, f64, RP_VEC_F64)
VMATH_UNARY(X)
#undef X
#define X(name, ref, b32, b64) BINARY(name, f32, RP_VEC_F32) BINARY(name, f64, RP_VEC_F64)
VMATH_BINARY(X)
#undef X

static void run_fma(const void *x, const void *y, void *out, size_t n) {
    for (size_t i = 0; i < n; i += RP_VEC_F32) {
        rp__vf32 a = rp__v_load_f32((const float *)x + i), b = rp__v_load_f32((const float *)y + i);
        rp__v_store_f32((float *)out + i, rp__v_fma_f32(a, b, rp__v_load_f32((const float *)y + n + i)));
    }
}

/* One group of vectors a step: from IN_BYTES to OUT_BYTES, elements RP_VEC_F32 or RP_VEC_F64. */
#define CONVERT(from, to, lanes, in_size, out_size, body)                                                              \
    static void run_##from##_to_##to(const void *x, const void *y, void *out, size_t n) {                              \
        (void)y;                                                                                                       \
        for (size_t i = 0; i < n; i += (lanes)) {                                                                      \
            const char *a = (const char *)x + i * (in_size);                                                           \
            char *o = (char *)out + i * (out_size);                                                                    \
            body                                                                                                       \
        }                                                                                                              \
    }
#define V RP_VEC_BYTES
CONVERT(f32, f16, RP_VEC_F32, 4, 2, rp__v_store_u16h(o, rp__v_f16_f32(rp__v_load_f32(a)));)
CONVERT(f16, f32, RP_VEC_F32, 2, 4, rp__v_store_f32(o, rp__v_f32_f16(rp__v_load_u16h(a)));)
CONVERT(f32, bf16, RP_VEC_F32, 4, 2, rp__v_store_u16h(o, rp__v_bf16_f32(rp__v_load_f32(a)));)
CONVERT(bf16, f32, RP_VEC_F32, 2, 4, rp__v_store_f32(o, rp__v_f32_bf16(rp__v_load_u16h(a)));)
CONVERT(f32, i32, RP_VEC_F32, 4, 4, rp__v_store_i32(o, rp__v_i32_f32(rp__v_load_f32(a)));)
CONVERT(i32, f32, RP_VEC_F32, 4, 4, rp__v_store_f32(o, rp__v_f32_i32(rp__v_load_i32(a)));)
CONVERT(f64, i64, RP_VEC_F64, 8, 8, rp__v_store_i64(o, rp__v_i64_f64(rp__v_load_f64(a)));)
CONVERT(i64, f64, RP_VEC_F64, 8, 8, rp__v_store_f64(o, rp__v_f64_i64(rp__v_load_i64(a)));)
CONVERT(f64, f32, RP_VEC_F32, 8, 4, rp__v_store_f32(o, rp__v_f32_f64(rp__v_load_f64(a), rp__v_load_f64(a + V)));)
CONVERT(f32, f64, RP_VEC_F32, 4, 8, rp__vf32 v = rp__v_load_f32(a); rp__v_store_f64(o, rp__v_lo_f64_f32(v));
        rp__v_store_f64(o + V, rp__v_hi_f64_f32(v));)
CONVERT(i64, i32, RP_VEC_F32, 8, 4, rp__v_store_i32(o, rp__v_i32_i64(rp__v_load_i64(a), rp__v_load_i64(a + V)));)
CONVERT(i32, i64, RP_VEC_F32, 4, 8, rp__vi32 v = rp__v_load_i32(a); rp__v_store_i64(o, rp__v_lo_i64_i32(v));
        rp__v_store_i64(o + V, rp__v_hi_i64_i32(v));)

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
vmath_fn *const JOIN(vmath_table_, VMATH_ISA)[VMATH_COUNT] = {
#define X(name, ref, b32, b64) run_##name##_f32, run_##name##_f64,
    VMATH_UNARY(X) VMATH_BINARY(X)
#undef X
#define X(from, to) run_##from##_to_##to,
        VMATH_CONVERT(X)
#undef X
            run_fma,
};
