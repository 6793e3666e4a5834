/* nonzero on the CPU: one walk in logical order that writes the indices of each element that is not zero, and their count. */
#include <string.h>

#include "core/dtype.h"
#include "kernel/cpu/lib.h"

enum { INDICES, COUNT, X, STRIDE_ROW, STRIDE_COLUMN, DIMS, WORDS }; /* then extent and stride of each dim */

static inline bool is_set(const char *p, unsigned bytes, bool floating) {
    uint64_t x = 0;
    switch (bytes) {
    case 1: return *p != 0;
    case 2: {
        uint16_t h;
        memcpy(&h, p, 2);
        x = floating ? (uint64_t)(h & 0x7fff) : h;
        break;
    }
    case 4: {
        uint32_t u;
        memcpy(&u, p, 4);
        x = floating ? u & 0x7fffffff : u;
        break;
    }
    default:
        memcpy(&x, p, 8);
        if (floating) x &= INT64_MAX;
    }
    return x != 0;
}

/* Indices of a row's elements that are not zero, of `nd` dims, from *out on, which moves behind them. Each element is written, and stays if it
   counts: no branch to be foreseen, and what is written in vain lies where a later one may stand, so that there is room. */
static inline __attribute__((always_inline)) int64_t walk_row(const int64_t *v, int64_t nd, const int64_t *at,
                                                              const char *p, int64_t step, unsigned bytes,
                                                              bool floating, int64_t *out, int64_t found) {
    const int64_t run = nd ? v[WORDS + nd - 1] : 1, row = v[STRIDE_ROW], column = v[STRIDE_COLUMN];
    for (int64_t i = 0; i < run; i++, p += step) {
        int64_t *const o = out + found * row;
        for (int64_t d = 0; d + 1 < nd; d++) o[d * column] = at[d];
        if (nd) o[(nd - 1) * column] = i;
        found += is_set(p, bytes, floating);
    }
    return found;
}
static inline __attribute__((always_inline)) void walk(const uint64_t *w, unsigned bytes, bool floating) {
    const int64_t *v = (const int64_t *)w, nd = v[DIMS];
    const int64_t *extent = v + WORDS, *stride = v + WORDS + nd;
    int64_t *out = (int64_t *)(uintptr_t)w[INDICES], found = 0, at[RP_MAX_DIMS] = {0};
    const char *x = (const char *)(uintptr_t)w[X];
    const int64_t step = nd ? stride[nd - 1] * bytes : 0;
    int64_t rows = 1;
    for (int64_t d = 0; d + 1 < nd; d++) rows *= extent[d];
    for (int64_t row = 0; row < rows; row++) {
        const char *p = x;
        for (int64_t d = 0; d + 1 < nd; d++) p += at[d] * stride[d] * bytes;
        switch (nd) {
        case 1: found = walk_row(v, 1, at, p, step, bytes, floating, out, found); break;
        case 2: found = walk_row(v, 2, at, p, step, bytes, floating, out, found); break;
        default: found = walk_row(v, nd, at, p, step, bytes, floating, out, found);
        }
        for (int64_t d = nd - 2; d >= 0 && ++at[d] == extent[d]; d--) at[d] = 0;
    }
    *(int64_t *)(uintptr_t)w[COUNT] = found;
}

static void run(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {
    const rp_dtype dtype = (rp_dtype)k->key.lo;
    const bool floating = rp__dtype_is_float(dtype);
    if (begin >= end) return;
    switch (rp__dtype_bytes(dtype)) {
    case 1: walk(w, 1, false); break;
    case 2: floating ? walk(w, 2, true) : walk(w, 2, false); break;
    case 4: floating ? walk(w, 4, true) : walk(w, 4, false); break;
    default: floating ? walk(w, 8, true) : walk(w, 8, false);
    }
}
static rp__kernel kernels[RP__DTYPE_COUNT] = {
#define RP_DTYPE(suffix, name_, short_name, ...)                                                                       \
    [RP_##suffix] = {                                                                                                  \
        .kind = RP__KERNEL_CPU, .name = "nonzero_" short_name, .key = {RP_##suffix, 0x6e6f6e7a}, .cpu = run},
#include "core/dtype.def"
#undef RP_DTYPE
};

rp_status rp__cpu_nonzero_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                               const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op, (void)n, (void)call;
    const rp__operand *indices = &o[0], *count = &o[1], *x = &o[2];
    uint64_t *w = buffer->words;
    rp__operand_slot(indices, INDICES, RP__WRITE, buffer, out);
    rp__operand_slot(count, COUNT, RP__WRITE, buffer, out);
    rp__operand_slot(x, X, RP__READ, buffer, out);
    w[STRIDE_ROW] = (uint64_t)indices->stride[0], w[STRIDE_COLUMN] = (uint64_t)indices->stride[1];
    w[DIMS] = x->ndim;
    for (unsigned i = 0; i < x->ndim; i++) {
        w[WORDS + i] = (uint64_t)x->size[i];
        w[WORDS + x->ndim + i] = (uint64_t)x->stride[i];
    }
    out->n_words = WORDS + 2u * x->ndim;
    out->items = out->grain = 1;
    out->kernel = &kernels[x->dtype];
    return RP_OK;
}
