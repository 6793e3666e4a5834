/* Element types: the table, PyTorch's promotion, numbers in and out of memory, and the 16-bit float formats. */
#include "core/dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/half.h"

const rp__dtype_info rp__dtypes[RP__DTYPE_COUNT] = {
    [RP_DTYPE_NONE] = {.name = "none", .short_name = "none", .title = "None", .cuda = ""},
#define RP_DTYPE(suffix, name_, short_name_, category_, c_type, ...)                                                   \
    [RP_##suffix] = {.name = name_,                                                                                    \
                     .short_name = short_name_,                                                                        \
                     .category = RP__CATEGORY_##category_,                                                             \
                     .bytes = sizeof(c_type),                                                                          \
                     __VA_ARGS__},
#include "core/dtype.def"
#undef RP_DTYPE
};

const char *rp_dtype_name(rp_dtype dtype) { return rp__dtype_is_valid(dtype) ? rp__dtypes[dtype].name : "none"; }
size_t rp_dtype_size(rp_dtype dtype) { return rp__dtype_is_valid(dtype) ? rp__dtypes[dtype].bytes : 0; }

rp_scalar(rp_i64)(int64_t value) { return (rp_scalar){.kind = RP_SCALAR_I64, .v.i = value}; }
rp_scalar rp_f64(double value) { return (rp_scalar){.kind = RP_SCALAR_F64, .v.f = value}; }
rp_scalar rp__scalar_dim(rp_dim d) {
    return (rp_scalar){.kind = rp__dim_is_symbol(d) ? RP_SCALAR_SYM : RP_SCALAR_I64, .v.i = d};
}
rp_scalar rp__scalar_value(rp_scalar s) {
    if (s.kind == RP_SCALAR_SYM_F64) {
        const rp__dim_hooks *hooks = rp__dim_installed();
        return rp_f64(hooks ? hooks->specialise_number(s.v.i) : 0);
    }
    return rp__scalar_is_size(s) ? (rp_scalar){.kind = RP_SCALAR_I64, .v.i = rp__dim_value(s.v.i)} : s;
}

double rp__num_f64(rp__num_op op, double a, double b) {
    switch (op) {
    case RP__NUM_ADD: return a + b;
    case RP__NUM_SUB: return a - b;
    case RP__NUM_MUL: return a * b;
    case RP__NUM_DIV: return a / b;
    case RP__NUM_POW: return pow(a, b);
    case RP__NUM_SQRT: return sqrt(a);
    }
    return 0;
}

bool rp__num_known(rp_scalar s) {
    const rp__dim_hooks *hooks = rp__dim_installed();
    switch (s.kind) {
    case RP_SCALAR_NONE: return false;
    case RP_SCALAR_F64:
    case RP_SCALAR_BOOL: return true;
    case RP_SCALAR_I64:
    case RP_SCALAR_SYM: return rp__dim_known(s.v.i);
    case RP_SCALAR_SYM_F64: return hooks && hooks->number_known(s.v.i);
    }
    return false;
}

enum { MAX_POWER = 62 }; /* of whole numbers, beyond which a power is a float: 2 to it is the last that fits */

static rp_dim whole_power(rp_dim base, int64_t n) {
    rp_dim power = 1;
    while (n-- > 0) power = rp__dim_apply(RP__DIM_MUL, power, base);
    return power;
}

rp_scalar rp__num_apply(rp__num_op op, rp_scalar a, rp_scalar b) {
    static const rp__dim_op whole_op[] = {RP__DIM_ADD, RP__DIM_SUB, RP__DIM_MUL};
    if (op == RP__NUM_SQRT) b = rp_i64(0);
    if (!rp__scalar_is_float(a) && !rp__scalar_is_float(b)) {
        const rp_dim x = a.kind == RP_SCALAR_BOOL ? a.v.b : a.v.i, y = b.kind == RP_SCALAR_BOOL ? b.v.b : b.v.i;
        if (op <= RP__NUM_MUL) return rp__scalar_dim(rp__dim_apply(whole_op[op], x, y));
        if (op == RP__NUM_POW && !rp__dim_is_symbol(y) && rp__dim_number(y) >= 0 && rp__dim_number(y) <= MAX_POWER)
            return rp__scalar_dim(whole_power(x, rp__dim_number(y)));
    }
    const rp__dim_hooks *hooks = rp__dim_installed();
    if (hooks && (rp__scalar_is_symbol(a) || rp__scalar_is_symbol(b))) return hooks->number(op, a, b);
    return rp_f64(rp__num_f64(op, rp__scalar_f64(a), rp__scalar_f64(b)));
}
rp_scalar rp_none(void) { return (rp_scalar){.kind = RP_SCALAR_NONE, .v.i = 0}; }
rp_scalar rp_bool(bool value) {
    rp_scalar s = {.kind = RP_SCALAR_BOOL, .v.i = 0};
    s.v.b = value;
    return s;
}

/* The smallest type that holds both, of the higher category alone where they differ. */
rp_dtype rp__promote(rp_dtype a, rp_dtype b) {
    if (a == b || b == RP_DTYPE_NONE) return a;
    if (a == RP_DTYPE_NONE) return b;
    const unsigned ca = rp__dtypes[a].category, cb = rp__dtypes[b].category;
    if (ca != cb) return ca > cb ? a : b;
    rp_dtype best = RP_DTYPE_NONE;
    for (unsigned k = 1; k < RP__DTYPE_COUNT; k++) {
        const rp_dtype d = (rp_dtype)k;
        if (rp__dtypes[d].category == ca && rp__dtype_holds(d, a) && rp__dtype_holds(d, b) &&
            (best == RP_DTYPE_NONE || rp__dtypes[d].bytes < rp__dtypes[best].bytes))
            best = d;
    }
    return best;
}

void rp__promote_tensor(rp__promotion *p, rp_dtype dtype, size_t ndim) {
    rp_dtype *weight = ndim ? &p->dim : &p->zero;
    *weight = rp__promote(*weight, dtype);
}

void rp__promote_scalar(rp__promotion *p, rp_scalar_kind kind) {
    rp_dtype own = kind == RP_SCALAR_F64 || kind == RP_SCALAR_SYM_F64 ? RP_F32
                   : kind == RP_SCALAR_BOOL                           ? RP_BOOL
                                                                      : RP_I64;
    p->scalar = rp__promote(p->scalar, own);
}

/* torch's combine_categories: the heavier operand decides unless the lighter one has a higher category. */
static rp_dtype combine(rp_dtype heavy, rp_dtype light) {
    if (heavy == RP_DTYPE_NONE || light == RP_DTYPE_NONE) return heavy == RP_DTYPE_NONE ? light : heavy;
    return rp__dtypes[light].category > rp__dtypes[heavy].category ? rp__promote(heavy, light) : heavy;
}

rp_dtype rp__promotion_result(const rp__promotion *p) { return combine(p->dim, combine(p->zero, p->scalar)); }

double rp__scalar_f64(rp_scalar s) {
    s = rp__scalar_value(s);
    return s.kind == RP_SCALAR_F64 ? s.v.f : s.kind == RP_SCALAR_I64 ? (double)s.v.i : (double)s.v.b;
}

static int64_t truncate_f64(double f) {
    if (isnan(f)) return 0;
    if (f >= 0x1p63) return INT64_MAX;
    return f <= -0x1p63 ? INT64_MIN : (int64_t)f;
}

int64_t rp__scalar_i64(rp_scalar s) {
    s = rp__scalar_value(s);
    return s.kind == RP_SCALAR_F64 ? truncate_f64(s.v.f) : s.kind == RP_SCALAR_I64 ? s.v.i : (int64_t)s.v.b;
}

/* The largest finite value of a float dtype. */
static double float_max(rp_dtype d) {
    const int digits = rp__dtypes[d].digits, exponent = 1 << (rp__dtypes[d].reach - 1);
    return ldexp(1 - ldexp(1, -digits), exponent);
}

/* Of a symbol: a guard of its range, so that it stays one. */
static bool size_fits(rp_dim size, rp_dtype d) {
    const double high = rp__dtype_is_float(d) ? float_max(d) : ldexp(1, rp__dtypes[d].digits) - 1;
    const int64_t most = high < 0x1p62 ? (int64_t)high : INT64_C(1) << 62;
    return rp__dim_is(RP__DIM_LE, size, most) && rp__dim_is(RP__DIM_LE, -most, size);
}

bool rp__scalar_fits(rp_scalar s, rp_dtype d) {
    if (s.kind == RP_SCALAR_BOOL || d == RP_BOOL) return true;
    if (rp__scalar_is_size(s) && d == RP_I64) return true;
    if (s.kind != RP_SCALAR_F64 && (d == RP_F32 || d == RP_F64)) return true; /* what is made of sizes does, too */
    if (s.kind == RP_SCALAR_SYM) return size_fits(s.v.i, d);
    s = rp__scalar_value(s);
    if (rp__dtype_is_float(d)) {
        double f = rp__scalar_f64(s);
        return isnan(f) || isinf(f) || fabs(f) <= float_max(d);
    }
    const int64_t high = rp__dtype_most(d), low = rp__dtype_least(d);
    if (s.kind == RP_SCALAR_F64) {
        double f = s.v.f;
        return f >= -0x1p63 && f < 0x1p63 && (int64_t)floor(f) >= low && (int64_t)ceil(f) <= high;
    }
    return s.v.i >= (low ? low : -high) && s.v.i <= high; /* negative numbers wrap, as in PyTorch */
}

static float scalar_f32(rp_scalar s) { /* one rounding: not through double for integers */
    return s.kind == RP_SCALAR_I64 ? (float)s.v.i : (float)rp__scalar_f64(s);
}

void rp__scalar_store(rp_scalar s, rp_dtype d, void *dst) {
    s = rp__scalar_value(s);
    switch (d) {
    case RP_F32: memcpy(dst, &(float){scalar_f32(s)}, 4); break;
    case RP_F64: memcpy(dst, &(double){rp__scalar_f64(s)}, 8); break;
    case RP_F16: memcpy(dst, &(uint16_t){rp__f32_to_f16(scalar_f32(s))}, 2); break;
    case RP_BF16: memcpy(dst, &(uint16_t){rp__f32_to_bf16(scalar_f32(s))}, 2); break;
    case RP_I8:
    case RP_I16:
    case RP_I32: {
        int64_t i = rp__scalar_i64(s); /* floats saturate in int32, then wrap; integers wrap */
        if (s.kind == RP_SCALAR_F64) i = i > INT32_MAX ? INT32_MAX : i < INT32_MIN ? INT32_MIN : i;
        const uint32_t wide = (uint32_t)(uint64_t)i;
        if (d == RP_I8) memcpy(dst, &(uint8_t){(uint8_t)wide}, 1);
        if (d == RP_I16) memcpy(dst, &(uint16_t){(uint16_t)wide}, 2);
        if (d == RP_I32) memcpy(dst, &wide, 4);
        break;
    }
    case RP_I64: memcpy(dst, &(int64_t){rp__scalar_i64(s)}, 8); break;
    case RP_U8: memcpy(dst, &(uint8_t){(uint8_t)(uint64_t)rp__scalar_i64(s)}, 1); break;
    case RP_BOOL:
        memcpy(dst, &(uint8_t){s.kind == RP_SCALAR_F64 ? s.v.f != 0 : s.kind == RP_SCALAR_I64 ? s.v.i != 0 : s.v.b}, 1);
        break;
    case RP_DTYPE_NONE: break;
    }
}

rp_scalar rp__scalar_load(rp_dtype d, const void *src) {
    union {
        float f32;
        double f64;
        uint16_t u16;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
    } v = {.i64 = 0};
    memcpy(&v, src, rp__dtype_bytes(d));
    switch (d) {
    case RP_F32: return rp_f64((double)v.f32);
    case RP_F64: return rp_f64(v.f64);
    case RP_F16: return rp_f64((double)rp__f16_to_f32(v.u16));
    case RP_BF16: return rp_f64((double)rp__bf16_to_f32(v.u16));
    case RP_I8: return rp_i64(v.i8);
    case RP_I16: return rp_i64(v.i16);
    case RP_I32: return rp_i64(v.i32);
    case RP_I64: return rp_i64(v.i64);
    case RP_U8: return rp_i64(v.u8);
    case RP_BOOL: return rp_bool(v.u8 != 0);
    case RP_DTYPE_NONE: break;
    }
    return rp_i64(0);
}

uint16_t rp__f32_to_f16(float f) { return rp__half_of_f32(f); }
float rp__f16_to_f32(uint16_t h) { return rp__f32_of_half(h); }
uint16_t rp__f32_to_bf16(float f) { return rp__brain_of_f32(f); }
float rp__bf16_to_f32(uint16_t h) { return rp__f32_of_brain(h); }
