/* Values of the reference: memory, rounding to element types, promotion, Philox. */
#include "ref/ref.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory of one case */

static void **blocks;
static size_t n_blocks, capacity;

static void *keep(size_t bytes) {
    if (n_blocks == capacity) {
        capacity = capacity ? 2 * capacity : 64;
        blocks = realloc(blocks, capacity * sizeof *blocks);
    }
    void *p = calloc(1, bytes ? bytes : 1);
    if (!blocks || !p) abort();
    return blocks[n_blocks++] = p;
}

void ref_reset(void) {
    for (size_t i = 0; i < n_blocks; i++) free(blocks[i]);
    free(blocks);
    blocks = NULL;
    n_blocks = capacity = 0;
}

ref_value ref_new(rp_dtype dtype, const int64_t *size, int ndim) {
    ref_value r = {.dtype = dtype, .ndim = ndim, .n = 1};
    assert(ndim <= RP_MAX_DIMS);
    for (int d = 0; d < ndim; d++) {
        r.size[d] = size[d];
        r.n *= size[d];
    }
    r.v = keep((size_t)r.n * sizeof *r.v);
    return r;
}

/* ---- element types */

bool ref_is_float(rp_dtype d) { return d == RP_F32 || d == RP_F64 || d == RP_F16 || d == RP_BF16; }

/* To `digits` binary digits, ties to even, with the smallest exponent and the largest finite value of the format. */
static double round_to(double x, int digits, int min_exponent, double max) {
    if (x == 0 || isnan(x) || isinf(x)) return x;
    int e;
    (void)frexp(x, &e);
    if (e < min_exponent) e = min_exponent;
    double y = ldexp(nearbyint(ldexp(x, digits - e)), e - digits);
    return fabs(y) > max ? copysign(INFINITY, x) : y;
}

double ref_round(rp_dtype dtype, double x) {
    switch (dtype) {
    case RP_F64: return x;
    case RP_F32: return (double)(float)x;
    case RP_F16: return round_to((double)(float)x, 11, -13, 65504.0);
    case RP_BF16: return round_to((double)(float)x, 8, -125, 0x1.fep127);
    case RP_I64: return trunc(x);
    case RP_I32: return (double)(int32_t)(uint32_t)(uint64_t)(int64_t)trunc(x);
    case RP_I16: return (double)(int16_t)(uint16_t)(uint64_t)(int64_t)trunc(x);
    case RP_I8: return (double)(int8_t)(uint8_t)(uint64_t)(int64_t)trunc(x);
    case RP_U8: return (double)(uint8_t)(uint64_t)(int64_t)trunc(x);
    case RP_BOOL: return x != 0;
    default: abort();
    }
}

static int category(rp_dtype d) { return ref_is_float(d) ? 2 : d == RP_BOOL ? 0 : 1; }

/* torch.promote_types. Of integers the wider one, but uint8 with int8 needs int16. */
rp_dtype ref_promote(rp_dtype a, rp_dtype b) {
    if (a == b) return a;
    if (category(a) != category(b)) return category(a) > category(b) ? a : b;
    if (category(a) == 2)
        return a == RP_F64 || b == RP_F64 ? RP_F64
                                          : RP_F32; /* two different ones: float16 with bfloat16 is float32 too */
    static const rp_dtype by_width[] = {RP_I64, RP_I32, RP_I16};
    for (int k = 0; k < 3; k++)
        if (a == by_width[k] || b == by_width[k]) return by_width[k];
    return RP_I16;
}

/* Of the highest category among dimensioned tensors, 0-d tensors and numbers, the first kind that reaches it decides. */
rp_dtype ref_result_type(const ref_value *const *v, int n, int scalar) {
    rp_dtype dim = RP_DTYPE_NONE, zero = RP_DTYPE_NONE, number = RP_DTYPE_NONE;
    for (int i = 0; i < n; i++) {
        rp_dtype *slot = v[i]->ndim ? &dim : &zero;
        *slot = *slot == RP_DTYPE_NONE ? v[i]->dtype : ref_promote(*slot, v[i]->dtype);
    }
    if (scalar >= 0) number = scalar == RP_SCALAR_F64 ? RP_F32 : scalar == RP_SCALAR_I64 ? RP_I64 : RP_BOOL;
    rp_dtype result = dim;
    if (zero != RP_DTYPE_NONE && (result == RP_DTYPE_NONE || category(zero) > category(result))) result = zero;
    if (number != RP_DTYPE_NONE && (result == RP_DTYPE_NONE || category(number) > category(result))) result = number;
    return result;
}

/* ---- Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11) */

void ref_philox(uint64_t seed, uint64_t counter, uint32_t out[4]) {
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c[0], p1 = UINT64_C(0xCD9E8D57) * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k[1],
                            (uint32_t)p0};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}
