/* What integers of a DAG can be over a space, for texts that compute places (emit.h, rp__cuda_class.narrow and .sure). Scalars, sizes
 * and strides are known when a launch is bound; what is loaded is not, but its index is checked and its place often clamped. Bits never
 * depend on it: a value that fits 32 bits is the same in 32. */
#include <math.h>

#include "core/dtype.h"
#include "kernel/cuda/ranges.h"

/* All that a value may be, or NaN; ends are exact up to EXACT, beyond it the range is open. */
typedef struct range {
    double low, high;
} range;

static const double EXACT = 9007199254740992.0; /* 2^53 */

static range all(void) { return (range){-INFINITY, INFINITY}; }

static range between(double low, double high) {
    if (!(low >= -EXACT)) low = -INFINITY; /* a NaN, too */
    if (!(high <= EXACT)) high = INFINITY;
    return (range){low, high};
}

static range either(range a, range b) { return (range){fmin(a.low, b.low), fmax(a.high, b.high)}; }

static range product(range a, range b) {
    const double p[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
    range r = {p[0], p[0]};
    for (int k = 0; k < 4; k++) {
        if (p[k] != p[k]) return all(); /* 0 times an open end */
        r.low = fmin(r.low, p[k]);
        r.high = fmax(r.high, p[k]);
    }
    return between(r.low, r.high);
}

static range of_type(unsigned dtype) {
    switch (dtype) {
    case RP_BOOL: return (range){0, 1};
    case RP_U8: return (range){0, UINT8_MAX};
    case RP_I32: return (range){INT32_MIN, INT32_MAX};
    default: return all();
    }
}

static bool fits(range r) { return r.low >= INT32_MIN && r.high <= INT32_MAX; }

static range of_scalar(rp_scalar s, unsigned dtype) {
    float f;
    double d;
    int64_t i;
    switch (dtype) {
    case RP_F32: rp__scalar_store(s, RP_F32, &f); return between(f, f);
    case RP_F64: rp__scalar_store(s, RP_F64, &d); return between(d, d);
    case RP_I64: rp__scalar_store(s, RP_I64, &i); return between((double)i, (double)i);
    default: return of_type(dtype);
    }
}

static range of_iota(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned access) {
    const double first = (double)a[access].iota_base;
    double low = 0, high = 0;
    unsigned window = 0;
    for (unsigned d = 0; d < rp__space_dims(s); d++) {
        const double reach = (double)(s->extent[d] - 1) * (double)a[access].stride[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    for (unsigned k = 0; k < access; k++) window += dag->accesses[k].windows;
    const unsigned end = window + dag->accesses[access].windows;
    if (window == end) return between(first + low, first + high);
    for (; window < end; window++) {
        const double reach = (double)(s->windows[window].size - 1) * (double)s->windows[window].stride;
        *(reach < 0 ? &low : &high) += reach;
    }
    return either(between(first + low, first + high), (range){0, 0}); /* 0 outside */
}

/* Division as of numbers without a sign: what places and sizes take. */
static bool is_plain(range a, range b) { return a.low >= 0 && b.low > 0 && a.high <= INT32_MAX && b.high <= INT32_MAX; }

static range of_operation(const rp__node *n, range a, range b, range c) {
    switch (n->op) {
    case RP__ADD: return between(a.low + b.low, a.high + b.high);
    case RP__SUB: return between(a.low - b.high, a.high - b.low);
    case RP__MUL: return product(a, b);
    case RP__MAX: return (range){fmax(a.low, b.low), fmax(a.high, b.high)};
    case RP__MIN: return (range){fmin(a.low, b.low), fmin(a.high, b.high)};
    case RP__NEG: return (range){-a.high, -a.low};
    case RP__ABS: return (range){a.low > 0 ? a.low : a.high < 0 ? -a.high : 0, fmax(-a.low, a.high)};
    case RP__WHERE: return either(b, c);
    case RP__FLOORDIV: /* 0 where a thread has no element */
        return is_plain(a, b) ? (range){0, floor(a.high / b.low)} : of_type(n->dtype);
    case RP__REMAINDER: return is_plain(a, b) ? (range){0, fmin(a.high, b.high - 1)} : of_type(n->dtype);
    case RP__CHECK_INDEX: return (range){0, b.high > 0 ? b.high - 1 : 0};
    default: return of_type(n->dtype);
    }
}

/* Of what is rounded to float32 or float64. */
static range rounded(range r) {
    return between(r.low - fabs(r.low) * 0x1p-20 - 0x1p-100, r.high + fabs(r.high) * 0x1p-20 + 0x1p-100);
}

/* Floats come in as bounds of a cast, and as places times a step. */
static range of_float(const rp__node *n, range a, range b, range c) {
    switch (n->op) {
    case RP__MAX:
    case RP__MIN:
    case RP__WHERE: return of_operation(n, a, b, c);
    case RP__ADD:
    case RP__SUB:
    case RP__MUL: return rounded(of_operation(n, a, b, c));
    case RP__FLOOR: return between(floor(a.low), floor(a.high));
    default: return all();
    }
}

/* What exceeds 64 bits comes round at the other end. */
static bool may_wrap(unsigned op) {
    return op == RP__ADD || op == RP__SUB || op == RP__MUL || op == RP__NEG || op == RP__ABS;
}

static bool is_float(unsigned dtype) { return dtype == RP_F32 || dtype == RP_F64; }

static range of_cast(unsigned from, unsigned to, range a) {
    if (to == RP_BOOL) return of_type(to); /* is it other than 0? */
    if (rp__dtype_is_half((rp_dtype)to) || rp__dtype_is_half((rp_dtype)from) || to == RP_I8 || to == RP_I16)
        return all();
    if (is_float(to)) return to == from || to == RP_F64 ? a : rounded(a);
    return is_float(from) ? between(fmin(trunc(a.low), 0), fmax(trunc(a.high), 0)) : a; /* NaN gives 0 */
}

/* Does an element at a computed place lie less than 2^31 elements behind the base, whatever the indices? */
static bool is_near(const rp__space *s, const rp__space_access *a, range place) {
    double low = place.low, high = place.high;
    for (unsigned d = 0; d < rp__space_dims(s); d++) {
        const double reach = (double)(s->extent[d] - 1) * (double)a->stride[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    return low >= 0 && high <= INT32_MAX;
}

static void set(uint64_t *mask, unsigned k) { mask[k / 64] |= UINT64_C(1) << (k % 64); }

void rp__cuda_find_ranges(const rp__dag *dag, const rp__space *s, const rp__space_access *a, rp__cuda_class *c) {
    range r[RP__CUDA_RANGED];
    const unsigned n_nodes = dag->n_nodes < RP__CUDA_RANGED ? dag->n_nodes : RP__CUDA_RANGED;
    for (unsigned d = 0; d < rp__space_dims(s); d++)
        if (s->extent[d] < 1) return;
    for (unsigned k = 0; k < n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        const range x = n->a != RP__NO_VAL ? r[n->a] : all(), y = n->b != RP__NO_VAL ? r[n->b] : all(),
                    z = n->c != RP__NO_VAL ? r[n->c] : all();
        switch (n->op) {
        case RP__CONST:
            r[k] = is_float(n->dtype) ? between(n->imm.f, n->imm.f) : between((double)n->imm.i, (double)n->imm.i);
            break;
        case RP__SCALAR: r[k] = of_scalar(s->scalars[n->access], n->dtype); break;
        case RP__IOTA: r[k] = of_iota(dag, s, a, n->access); break;
        case RP__CAST: r[k] = of_cast(dag->nodes[n->a].dtype, n->dtype, x); break;
        default: r[k] = is_float(n->dtype) ? of_float(n, x, y, z) : of_operation(n, x, y, z);
        }
        if (n->op == RP__LOAD && n->a != RP__NO_VAL && is_near(s, &a[n->access], x)) set(c->sure, k);
        if (is_float(n->dtype)) continue;
        if (n->dtype != RP_I64) { /* wraps at its own width */
            const range own = of_type(n->dtype);
            if (r[k].low < own.low || r[k].high > own.high) r[k] = own;
            continue;
        }
        if (may_wrap(n->op) && !(r[k].low >= -EXACT && r[k].high <= EXACT)) r[k] = all();
        if (n->op == RP__CHECK_INDEX && x.low >= 0 && x.high < y.low) {
            set(c->sure, k);
            r[k] = x;
        }
        const bool made = n->op < RP__PRIM_COUNT || n->op == RP__CONST || n->op == RP__SCALAR || n->op == RP__IOTA;
        if (made && fits(r[k])) set(c->narrow, k);
    }
}
