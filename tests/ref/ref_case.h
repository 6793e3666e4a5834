/* What the families of the reference (ref_FAMILY.c) share: shapes, values, arguments, coordinates. Nobody else includes it. */
#ifndef RP_TESTS_REF_CASE_H
#define RP_TESTS_REF_CASE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/ref.h"

typedef struct ref_family {
    const ref_op *ops;
    size_t n;
} ref_family;
extern const ref_family ref_pointwise, ref_reduce, ref_view, ref_index, ref_matrix;
bool ref_with_scalar(const ref_op *op, rp_dtype d, int variant,
                     ref_case *c); /* of an op whose second operand is a number */

typedef struct shape {
    int ndim;
    int64_t size[RP_MAX_DIMS];
} shape;

static const shape shapes[] = {
    {2, {3, 4}},    {0, {0}},          {1, {1}},
    {1, {17}},      {1, {0}},          {3, {2, 0, 3}},
    {3, {2, 3, 5}}, {4, {2, 1, 3, 4}}, {16, {1, 2, 1, 1, 2, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 2}},
    {2, {37, 41}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static inline uint32_t noise(int64_t i, unsigned salt) {
    uint32_t h = (uint32_t)i * 2654435761u + salt * 40503u + 12345u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    h *= 3266489917u;
    return h ^ h >> 16;
}

/* Small integers for integers; floats in (-3, 3) with a grid of 1/64, so that 16-bit types hold them. */
static inline double sample(rp_dtype d, int64_t i, unsigned salt) {
    uint32_t r = noise(i, salt);
    switch (d) {
    case RP_BOOL: return r & 1;
    case RP_U8: return r % 11;
    case RP_I8: return (double)(r % 200) - 100; /* products wrap */
    case RP_I16: return (double)(r % 6001) - 3000;
    case RP_I32:
    case RP_I64: return (double)(r % 13) - 6;
    default: return ref_round(d, ((double)(r % 384) - 192) / 64 + (d == RP_BF16 ? 0 : 1.0 / 512));
    }
}

/* The dim along which an expanded input repeats: the first of more than one element. -1: none. */
static inline int repeated_dim(const ref_value *r) {
    for (int d = 0; d < r->ndim; d++) {
        if (r->size[d] > 1) return d;
    }
    return -1;
}

static inline int64_t stride_of(const ref_value *r, int dim) {
    int64_t s = 1;
    for (int d = r->ndim - 1; d > dim; d--) s *= r->size[d];
    return s;
}

/* Makes values repeat where the layout says so. */
static inline void settle(const ref_case *c, ref_value *r) {
    int d = c->layout == REF_EXPANDED ? repeated_dim(r) : -1;
    if (d < 0) return;
    int64_t inner = stride_of(r, d);
    for (int64_t i = 0; i < r->n; i++) r->v[i] = r->v[i - i / inner % r->size[d] * inner];
}

static inline ref_value *input(ref_case *c, rp_dtype d, const int64_t *size, int ndim) {
    ref_value *r = &c->in[c->n_in];
    *r = ref_new(d, size, ndim);
    for (int64_t i = 0; i < r->n; i++) r->v[i] = sample(d, i, (unsigned)c->n_in + 1);
    settle(c, r);
    c->n_in++;
    return r;
}

static inline ref_value *output(ref_case *c, rp_dtype d, const int64_t *size, int ndim) {
    c->out[c->n_out] = ref_new(d, size, ndim);
    return &c->out[c->n_out++];
}

static inline void with_mag(ref_value *r) {
    ref_value m = ref_new(RP_F64, r->size, r->ndim);
    r->mag = m.v;
}

static inline void add_attr(ref_case *c, rp_attr a) { c->attrs[c->n_attrs++] = a; }
static inline void add_int(ref_case *c, int64_t i) { add_attr(c, (rp_attr){.kind = RP_ATTR_INT, .v.i = i}); }
static inline void add_float(ref_case *c, double f) { add_attr(c, (rp_attr){.kind = RP_ATTR_FLOAT, .v.f = f}); }
static inline void add_bool(ref_case *c, bool b) { add_attr(c, (rp_attr){.kind = RP_ATTR_BOOL, .v.b = b}); }
static inline void add_dtype(ref_case *c, rp_dtype d) { add_attr(c, (rp_attr){.kind = RP_ATTR_DTYPE, .v.dtype = d}); }
static inline void add_scalar(ref_case *c, rp_scalar s) {
    add_attr(c, (rp_attr){.kind = RP_ATTR_SCALAR, .v.scalar = s});
}
static inline void add_ints(ref_case *c, const int64_t *v, size_t n) {
    ref_value held =
        ref_new(RP_I64, (const int64_t[]){(int64_t)n}, 1); /* memory of the case; int64 and double have one size */
    if (n) memcpy(held.v, v, n * sizeof *v);
    add_attr(c, (rp_attr){.kind = RP_ATTR_INTS, .n = n, .v.ints = (const int64_t *)(const void *)held.v});
}
static inline double number(rp_scalar s) {
    return s.kind == RP_SCALAR_F64 ? s.v.f : s.kind == RP_SCALAR_BOOL ? s.v.b : (double)s.v.i;
}

/* Coordinates. */
static inline void unravel(const ref_value *r, int64_t i, int64_t *at) {
    for (int d = r->ndim - 1; d >= 0; d--) {
        at[d] = i % r->size[d];
        i /= r->size[d];
    }
}
static inline int64_t ravel(const ref_value *r, const int64_t *at) {
    int64_t i = 0;
    for (int d = 0; d < r->ndim; d++) i = i * r->size[d] + at[d];
    return i;
}
/* Element of r that is broadcast to coordinates `at` of rank n. */
static inline double broadcast_at(const ref_value *r, const int64_t *at, int n) {
    int64_t own[RP_MAX_DIMS];
    for (int d = 0; d < r->ndim; d++) own[d] = r->size[d] == 1 ? 0 : at[d + n - r->ndim];
    return r->v[ravel(r, own)];
}
static inline int broadcast_size(const ref_value *a, const ref_value *b, int64_t *out) {
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int d = 0; d < n; d++) {
        int da = d - n + a->ndim, db = d - n + b->ndim;
        int64_t x = da < 0 ? 1 : a->size[da], y = db < 0 ? 1 : b->size[db];
        out[d] = x == 1 ? y : x;
    }
    return n;
}

enum {
    INPLACE = 1,
    TO_FLOAT = 2,
    NO_BOOL = 4,
    BOOL_RESULT = 8,
    FLOAT_ONLY = 16,
    EXACT = 32,
    ALPHA = 64,
    POSITIVE = 128,
    DIVIDES = 256,
    NEAR = 512, /* absolutely near where it is below 1 */
    NO_U8 = 1024,
    INT_ONLY = 2048,
    TO_F64 = 4096,
    SAME = 8192, /* both operands of one type */
    POWER = 16384
};
static const rp_dtype all_types[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL, RP_I8, RP_I16};
enum { TYPES = 10 };

#endif
