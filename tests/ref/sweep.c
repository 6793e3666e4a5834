/* See sweep.h. */
#include "ref/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const rp_dtype ref_types[REF_TYPES] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL, RP_I8, RP_I16};

/* ---- elements of host memory */

static uint16_t half_bits(double v, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, e;
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    uint16_t all = (uint16_t)(((1 << exponent_bits) - 1) << fraction_bits);
    if (isnan(v)) return (uint16_t)(sign | all | 1 << (fraction_bits - 1));
    if (isinf(v)) return sign | all;
    if (v == 0) return sign;
    double m = frexp(fabs(v), &e); /* m in [0.5, 1) */
    int biased = e - 1 + bias;
    if (biased <= 0) return (uint16_t)(sign | (uint16_t)ldexp(fabs(v), bias - 1 + fraction_bits));
    return (uint16_t)(sign | (uint16_t)(biased << fraction_bits) |
                      (uint16_t)(ldexp(m, fraction_bits + 1) - ldexp(1, fraction_bits)));
}

static double half_value(uint16_t h, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, e = h >> fraction_bits & ((1 << exponent_bits) - 1),
        f = h & ((1 << fraction_bits) - 1);
    double v = e == (1 << exponent_bits) - 1 ? (f ? (double)NAN : (double)INFINITY)
               : e == 0                      ? ldexp(f, 1 - bias - fraction_bits)
                                             : ldexp(f + (1 << fraction_bits), e - bias - fraction_bits);
    return h & 0x8000 ? -v : v;
}

static void put(void *base, int64_t i, rp_dtype d, double v) {
    switch (d) {
    case RP_F32: ((float *)base)[i] = (float)v; break;
    case RP_F64: ((double *)base)[i] = v; break;
    case RP_F16: ((uint16_t *)base)[i] = half_bits(v, 5, 10); break;
    case RP_BF16: ((uint16_t *)base)[i] = half_bits(v, 8, 7); break;
    case RP_I32: ((int32_t *)base)[i] = (int32_t)v; break;
    case RP_I64: ((int64_t *)base)[i] = (int64_t)v; break;
    case RP_I8: ((int8_t *)base)[i] = (int8_t)v; break;
    case RP_I16: ((int16_t *)base)[i] = (int16_t)v; break;
    default: ((uint8_t *)base)[i] = (uint8_t)v; break;
    }
}

static double get(const void *base, int64_t i, rp_dtype d) {
    switch (d) {
    case RP_F32: return ((const float *)base)[i];
    case RP_F64: return ((const double *)base)[i];
    case RP_F16: return half_value(((const uint16_t *)base)[i], 5, 10);
    case RP_BF16: return half_value(((const uint16_t *)base)[i], 8, 7);
    case RP_I32: return ((const int32_t *)base)[i];
    case RP_I64: return (double)((const int64_t *)base)[i];
    case RP_I8: return ((const int8_t *)base)[i];
    case RP_I16: return ((const int16_t *)base)[i];
    default: return ((const uint8_t *)base)[i];
    }
}

rp_tensor *ref_from_values(rp_dtype d, const double *v, int64_t n, const int64_t *size, int ndim) {
    void *data = calloc((size_t)n + 1, 8);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++) put(data, i, d, v[i]);
    rp_tensor *t = rp_from_data(data, size, (size_t)ndim, d);
    free(data);
    return t;
}

/* ---- layouts, made with view ops so that they exist on every device */

static int64_t numel(const int64_t *size, int ndim) {
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= size[d];
    return n;
}

/* Memory in reversed order of dims. */
static rp_tensor *transposed(const ref_value *r) {
    int64_t size[RP_MAX_DIMS], order[RP_MAX_DIMS];
    double *v = calloc((size_t)r->n + 1, sizeof *v);
    for (int d = 0; d < r->ndim; d++) {
        size[d] = r->size[r->ndim - 1 - d];
        order[d] = r->ndim - 1 - d;
    }
    for (int64_t i = 0; i < r->n; i++) {
        int64_t rest = i, to = 0, scale = 1, at[RP_MAX_DIMS];
        for (int d = r->ndim - 1; d >= 0; d--) {
            at[d] = rest % r->size[d];
            rest /= r->size[d];
        }
        for (int d = 0; d < r->ndim; d++) {
            to += at[d] * scale;
            scale *= r->size[d];
        }
        v[to] = r->v[i];
    }
    rp_tensor *t = rp_permute(ref_from_values(r->dtype, v, r->n, size, r->ndim), order, (size_t)r->ndim);
    free(v);
    return t;
}

/* Every second element of the last dim, from the second on. */
static rp_tensor *sliced(const ref_value *r) {
    if (r->ndim == 0) return ref_from_values(r->dtype, r->v, r->n, r->size, 0);
    int64_t size[RP_MAX_DIMS], last = r->ndim - 1;
    memcpy(size, r->size, sizeof size);
    size[last] = 2 * r->size[last] + 1;
    int64_t n = numel(size, r->ndim);
    double *v = calloc((size_t)n + 1, sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = 1;
    for (int64_t i = 0; i < r->n; i++) v[i / r->size[last] * size[last] + 1 + 2 * (i % r->size[last])] = r->v[i];
    rp_tensor *t = rp_slice(ref_from_values(r->dtype, v, n, size, r->ndim), last, 1, INT64_MIN, 2);
    free(v);
    return t;
}

/* The first dim of more than one element has stride 0. */
static rp_tensor *expanded(const ref_value *r) {
    int dim = 0;
    while (dim < r->ndim && r->size[dim] <= 1) dim++;
    if (dim == r->ndim) return ref_from_values(r->dtype, r->v, r->n, r->size, r->ndim);
    int64_t size[RP_MAX_DIMS], inner = numel(r->size + dim + 1, r->ndim - dim - 1), outer = numel(r->size, dim);
    memcpy(size, r->size, sizeof size);
    size[dim] = 1;
    double *v = calloc((size_t)(outer * inner) + 1, sizeof *v);
    for (int64_t o = 0; o < outer; o++)
        memcpy(v + o * inner, r->v + o * r->size[dim] * inner, (size_t)inner * sizeof *v);
    rp_tensor *t = rp_expand(ref_from_values(r->dtype, v, outer * inner, size, r->ndim), r->size, (size_t)r->ndim);
    free(v);
    return t;
}

/* Row-major, but from the fourth element of its memory on. */
static rp_tensor *offset(const ref_value *r) {
    double *v = calloc((size_t)r->n + 3, sizeof *v);
    memcpy(v + 3, r->v, (size_t)r->n * sizeof *v);
    rp_tensor *t = ref_from_values(r->dtype, v, r->n + 3, (const int64_t[]){r->n + 3}, 1);
    free(v);
    return rp_view(rp_slice(t, 0, 3, INT64_MIN, 1), r->size, (size_t)r->ndim);
}

rp_tensor *ref_tensor(const ref_value *r, ref_layout layout) {
    switch (layout) {
    case REF_TRANSPOSED: return transposed(r);
    case REF_SLICED: return sliced(r);
    case REF_EXPANDED: return expanded(r);
    case REF_OFFSET: return offset(r);
    default: return ref_from_values(r->dtype, r->v, r->n, r->size, r->ndim);
    }
}

/* ---- comparison */

static double epsilon(rp_dtype d) {
    return d == RP_F64 ? 0x1p-52 : d == RP_F16 ? 0x1p-10 : d == RP_BF16 ? 0x1p-7 : 0x1p-23;
}

static bool close_to(double got, double want, double mag, rp_dtype d, const ref_case *c) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (got == want) return true;
    if (c->exact || isinf(want) || isinf(got)) return isinf(want) && !c->exact && fabs(got) > 1e30 && got * want > 0;
    double compute = c->narrow ? epsilon(d) : d == RP_F64 ? 0x1p-52 : 0x1p-23;
    /* the op's own error, one rounding to the stored type, and its smallest steps */
    double bound = c->ulps * compute * fmax(mag, fabs(want)) + epsilon(d) * fabs(want);
    if (c->factors) bound += epsilon(d) / 2 * mag;
    return fabs(got - want) <= bound + (d == RP_F16 ? 0x1p-24 : 1e-38);
}

void ref_compare(const char *what, rp_tensor *t, const ref_value *want, const ref_case *c) {
    if (rp_failed()) fail_msg("%s: %s", what, rp_error_message());
    bool same = rp_dtype_of(t) == want->dtype && rp_ndim(t) == (size_t)want->ndim;
    for (int d = 0; same && d < want->ndim; d++) same = rp_size(t, d) == want->size[d];
    if (!same)
        fail_msg("%s: dtype %s rank %zu, expected %s rank %d (or a size differs)", what, rp_dtype_name(rp_dtype_of(t)),
                 rp_ndim(t), rp_dtype_name(want->dtype), want->ndim);
    size_t bytes = (size_t)want->n * rp_dtype_size(want->dtype);
    void *data = calloc(bytes + 1, 1);
    if (rp_to_host(t, data, bytes) != RP_OK) fail_msg("%s: %s", what, rp_error_message());
    for (int64_t i = 0; i < want->n; i++) {
        double got = get(data, i, want->dtype), mag = want->mag ? want->mag[i] : fabs(want->v[i]);
        if (!close_to(got, want->v[i], mag, want->dtype, c))
            fail_msg("%s: element %lld is %.17g, expected %.17g (magnitude %g)", what, (long long)i, got, want->v[i],
                     mag);
    }
    free(data);
}

/* ---- the sweep */

static const char *const layout_names[REF_LAYOUTS] = {"contiguous", "transposed", "sliced", "expanded", "offset"};

static void run_case(const ref_op *op, const ref_case *c, const char *what) {
    rp_tensor *in[REF_MAX_IN], *out[REF_MAX_OUT];
    rp_scope scope = rp_scope_begin();
    for (int k = 0; k < c->n_in; k++) in[k] = c->absent[k] ? NULL : ref_tensor(&c->in[k], c->layout);
    uint64_t version = c->n_in ? rp_version(in[0]) : 0;
    bool inplace = op->name[strlen(op->name) - 1] == '_';
    (void)rp_op_call(op->name, in, (size_t)c->n_in, c->attrs, (size_t)c->n_attrs, out, (size_t)c->n_out);
    for (int k = 0; k < c->n_out; k++) ref_compare(what, out[k], &c->out[k], c);
    if (inplace) {
        assert_ptr_equal(out[0], in[0]);
        assert_true(rp_version(in[0]) == version + 1);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

void ref_shard(unsigned *index, unsigned *count) {
    const char *text = getenv("REPRISE_TEST_SHARD");
    *index = 0;
    *count = 1;
    if (!text || !*text) return;
    if (sscanf(text, "%u/%u", index, count) != 2 || *count == 0 || *index >= *count)
        fail_msg("REPRISE_TEST_SHARD=%s is not i/n with i < n", text);
}

/* Parts are cut between types: the kernels of one type are mostly its own. */
static bool is_mine(size_t op, int type) {
    unsigned index, count;
    ref_shard(&index, &count);
    return (op * REF_TYPES + (size_t)type) % count == index;
}

static void sweep_op(size_t at, ref_wants *wants, int *cases) {
    const ref_op *op = ref_at(at);
    char what[160];
    bool inplace = op->name[strlen(op->name) - 1] == '_';
    for (int t = 0; t < REF_TYPES; t++) {
        if (!is_mine(at, t)) continue;
        for (int layout = 0; layout < REF_LAYOUTS; layout++) {
            if (inplace && layout == REF_EXPANDED && strcmp(op->name, "fill_") != 0)
                continue; /* refused; see the in-place test */
            for (int variant = 0;; variant++) {
                ref_case c = {.layout = (ref_layout)layout};
                bool made = op->make(op, ref_types[t], variant, &c);
                if (made && !c.passed_over && (!wants || wants(op, ref_types[t], &c, variant))) {
                    (void)snprintf(what, sizeof what, "%s %s %s case %d", op->name, rp_dtype_name(ref_types[t]),
                                   layout_names[layout], variant);
                    run_case(op, &c, what);
                    (*cases)++;
                }
                ref_reset();
                if (!made) break;
            }
        }
    }
}

int ref_sweep(rp_device device, ref_wants *wants) {
    rp_device before = rp_default_device();
    int total = 0;
    assert_int_equal(rp_set_default_device(device), RP_OK);
    for (size_t i = 0; ref_at(i); i++) {
        int cases = 0;
        unsigned shard, shards;
        ref_shard(&shard, &shards);
        sweep_op(i, wants, &cases);
        if (cases == 0 && shards == 1) fail_msg("%s: no case was made", ref_at(i)->name);
        total += cases;
    }
    assert_int_equal(rp_set_default_device(before), RP_OK);
    return total;
}
