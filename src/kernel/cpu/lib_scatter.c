/* scatter on the CPU: src[i] is combined into out[..., index[i], ...] in rising order of i along dim, so the result does not depend on
   threads. An index out of range goes to the device's error record and its element is skipped. An item is a line along dim; a
   slice walks dim outermost where lines lie side by side, so that they share cache lines, and else line by line. */
#include <string.h>

#include "core/dtype.h"
#include "core/half.h"
#include "device/error_record.h"
#include "kernel/cpu/lib.h"
#include "kernel/cpu/tiles.h"

enum { OUT, INDEX, SRC, ERRORS, TAG, LENGTH, BOUND, OUT_DIM, INDEX_DIM, SRC_DIM, DIMS, WORDS };
/* then extent and strides of out, index, src for each other dim */

/* b combined into a: a sum, the last value, a product, the larger or the smaller; of several NaNs and a number it is NaN. */
#define AS_IS(x) (x)
#define TRUTH(x) ((uint8_t)((x) != 0))
#define SET(a, b) (b)
#define ADD_FLOAT(a, b) ((a) + (b))
#define MUL_FLOAT(a, b) ((a) * (b))
#define MAX_FLOAT(a, b) ((a) != (a) || (a) > (b) ? (a) : (b))
#define MIN_FLOAT(a, b) ((a) != (a) || (a) < (b) ? (a) : (b))
#define ADD_WHOLE(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define MUL_WHOLE(a, b) ((int64_t)((uint64_t)(a) * (uint64_t)(b)))
#define MAX_WHOLE(a, b) ((a) > (b) ? (a) : (b))
#define MIN_WHOLE(a, b) ((a) < (b) ? (a) : (b))
#define OR(a, b) ((a) | (b))
#define AND(a, b) ((a) & (b))

/* n neighbours of one index, as rows of an embedding's gradient are: vectors do what COMBINE does. false: there are none for it. */
static bool combine_row(rp_dtype dtype, rp__scatter kind, void *out, const void *src, int64_t n) {
    enum { PART = 256, SHORT = 8 };
    static const uint8_t kinds[RP__SCATTERS] = {[RP__SCATTER_ADD] = RP__REDUCE_SUM,
                                                [RP__SCATTER_MUL] = RP__REDUCE_PROD,
                                                [RP__SCATTER_MAX] = RP__REDUCE_MAX,
                                                [RP__SCATTER_MIN] = RP__REDUCE_MIN};
    if (n < SHORT) return false;
    if (kind == RP__SCATTER_SET) {
        memcpy(out, src, (size_t)n * (size_t)rp__dtypes[dtype].bytes);
        return true;
    }
    const rp__tiles *tiles = rp__tiles_current();
    const bool half = rp__dtype_is_half(dtype);
    if (!half && rp__narrow_kind(dtype)) return false;
    rp__tile_fn *fn = dtype == RP_BOOL ? NULL : tiles->reduce_block[kinds[kind]][rp__tile_type(half ? RP_F32 : dtype)];
    if (!fn) return false;
    if (!half) {
        fn(&(rp__tile_call){.d = out, .a = src, .as = 1, .n = n});
        return true;
    }
    const unsigned convert = rp__narrow_kind(dtype) - 1;
    uint16_t *to = out;
    const uint16_t *from = src;
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t m = n - i < PART ? n - i : PART;
        float x[PART + 16], y[PART + 16]; /* routines write whole vectors */
        tiles->load[convert](&(rp__tile_call){.d = x, .a = to + i, .n = m});
        tiles->load[convert](&(rp__tile_call){.d = y, .a = from + i, .n = m});
        fn(&(rp__tile_call){.d = x, .a = y, .as = 1, .n = m});
        tiles->store_narrow[convert](&(rp__tile_call){.d = to + i, .a = x, .as = 1, .n = m});
    }
    return true;
}

/* Is a line along dim nearer together than its neighbours? Then a slice goes line by line. */
static bool goes_along(const int64_t *v) {
    if (!v[DIMS]) return true;
    const int64_t own = v[INDEX_DIM], beside = v[WORDS + 4 * (v[DIMS] - 1) + 2];
    return v[LENGTH] > 1 && (own < 0 ? -own : own) < (beside < 0 ? -beside : beside);
}

#define RUN(name, T, LOAD, STORE, COMBINE, DTYPE, KIND)                                                                \
    static void along_##name(const uint64_t *w, int64_t *at, int64_t lines) {                                          \
        const int64_t *v = (const int64_t *)w, nd = v[DIMS], bound = v[BOUND], length = v[LENGTH];                     \
        const int64_t out_step = v[OUT_DIM], index_step = v[INDEX_DIM], src_step = v[SRC_DIM];                         \
        for (; lines > 0; lines--) {                                                                                   \
            T *o = (T *)(uintptr_t)w[OUT];                                                                             \
            const int64_t *index = (const int64_t *)(uintptr_t)w[INDEX];                                               \
            const T *src = (const T *)(uintptr_t)w[SRC];                                                               \
            for (int64_t d = 0; d < nd; d++) {                                                                         \
                const int64_t *dim = v + WORDS + 4 * d;                                                                \
                o += at[d] * dim[1], index += at[d] * dim[2], src += at[d] * dim[3];                                   \
            }                                                                                                          \
            for (int64_t i = 0; i < length; i++, index += index_step, src += src_step) {                               \
                const int64_t k = *index;                                                                              \
                if (RP__UNLIKELY(k < 0 || k >= bound)) {                                                               \
                    rp__error_record_put((rp__error_record *)(uintptr_t)w[ERRORS], w[TAG], k, bound);                  \
                    continue;                                                                                          \
                }                                                                                                      \
                T *p = o + k * out_step;                                                                               \
                *p = (T)STORE(COMBINE(LOAD(*p), LOAD(*src)));                                                          \
            }                                                                                                          \
            for (int64_t d = nd - 1; d >= 0 && ++at[d] == v[WORDS + 4 * d]; d--) at[d] = 0;                            \
        }                                                                                                              \
    }                                                                                                                  \
    static void run_##name(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {                  \
        (void)kernel;                                                                                                  \
        const int64_t *v = (const int64_t *)w, nd = v[DIMS], bound = v[BOUND];                                         \
        const int64_t *inner = nd ? v + WORDS + 4 * (nd - 1) : (const int64_t[]){1, 0, 0, 0};                          \
        int64_t start[RP_MAX_DIMS] = {0}, rest = begin;                                                                \
        for (int64_t d = nd - 1; d >= 0; d--) {                                                                        \
            start[d] = rest % v[WORDS + 4 * d];                                                                        \
            rest /= v[WORDS + 4 * d];                                                                                  \
        }                                                                                                              \
        if (goes_along(v)) {                                                                                           \
            along_##name(w, start, end - begin);                                                                       \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < v[LENGTH]; i++) {                                                                      \
            int64_t at[RP_MAX_DIMS];                                                                                   \
            for (int64_t d = 0; d < nd; d++) at[d] = start[d];                                                         \
            for (int64_t line = begin; line < end;) {                                                                  \
                T *o = (T *)(uintptr_t)w[OUT];                                                                         \
                const int64_t *index = (const int64_t *)(uintptr_t)w[INDEX] + i * v[INDEX_DIM];                        \
                const T *src = (const T *)(uintptr_t)w[SRC] + i * v[SRC_DIM];                                          \
                for (int64_t d = 0; d < nd; d++) {                                                                     \
                    const int64_t *dim = v + WORDS + 4 * d;                                                            \
                    o += at[d] * dim[1], index += at[d] * dim[2], src += at[d] * dim[3];                               \
                }                                                                                                      \
                const int64_t here = nd ? inner[0] - at[nd - 1] : 1, run = here < end - line ? here : end - line;      \
                const bool row = inner[1] == 1 && inner[2] == 0 && inner[3] == 1 && *index >= 0 && *index < bound &&   \
                                 combine_row(DTYPE, KIND, o + *index * v[OUT_DIM], src, run);                          \
                for (int64_t j = row ? run : 0; j < run; j++, o += inner[1], index += inner[2], src += inner[3]) {     \
                    const int64_t k = *index;                                                                          \
                    if (RP__UNLIKELY(k < 0 || k >= bound)) {                                                           \
                        rp__error_record_put((rp__error_record *)(uintptr_t)w[ERRORS], w[TAG], k, bound);              \
                        continue;                                                                                      \
                    }                                                                                                  \
                    T *p = o + k * v[OUT_DIM];                                                                         \
                    *p = (T)STORE(COMBINE(LOAD(*p), LOAD(*src)));                                                      \
                }                                                                                                      \
                line += run;                                                                                           \
                if (nd) at[nd - 1] = 0;                                                                                \
                for (int64_t d = nd - 2; d >= 0 && ++at[d] == v[WORDS + 4 * d]; d--) at[d] = 0;                        \
            }                                                                                                          \
        }                                                                                                              \
    }
#define RUNS(name, T, DTYPE, LOAD, STORE, ADD, MUL, MAX, MIN)                                                          \
    RUN(name##_add, T, LOAD, STORE, ADD, DTYPE, RP__SCATTER_ADD)                                                       \
    RUN(name##_set, T, AS_IS, AS_IS, SET, DTYPE, RP__SCATTER_SET)                                                      \
    RUN(name##_mul, T, LOAD, STORE, MUL, DTYPE, RP__SCATTER_MUL)                                                       \
    RUN(name##_max, T, LOAD, STORE, MAX, DTYPE, RP__SCATTER_MAX)                                                       \
    RUN(name##_min, T, LOAD, STORE, MIN, DTYPE, RP__SCATTER_MIN)
#define FLOATS(name, T, DTYPE, LOAD, STORE)                                                                            \
    RUNS(name, T, DTYPE, LOAD, STORE, ADD_FLOAT, MUL_FLOAT, MAX_FLOAT, MIN_FLOAT)
#define WHOLES(name, T, DTYPE) RUNS(name, T, DTYPE, AS_IS, AS_IS, ADD_WHOLE, MUL_WHOLE, MAX_WHOLE, MIN_WHOLE)
FLOATS(f32, float, RP_F32, AS_IS, AS_IS)
FLOATS(f64, double, RP_F64, AS_IS, AS_IS)
FLOATS(f16, uint16_t, RP_F16, rp__f32_of_half, rp__half_of_f32)
FLOATS(bf16, uint16_t, RP_BF16, rp__f32_of_brain, rp__brain_of_f32)
WHOLES(i32, int32_t, RP_I32)
WHOLES(i8, int8_t, RP_I8)
WHOLES(i16, int16_t, RP_I16)
WHOLES(i64, int64_t, RP_I64)
WHOLES(u8, uint8_t, RP_U8)
RUNS(truth, uint8_t, RP_BOOL, TRUTH, AS_IS, OR, AND, OR, AND)
#define KERNEL(dtype, text, does, KIND)                                                                                \
    [dtype][RP__SCATTER_##KIND] = {.kind = RP__KERNEL_CPU,                                                             \
                                   .name = "scatter_" #does "_" #text,                                                 \
                                   .key = {dtype, 0x736361747465 + ((uint64_t)RP__SCATTER_##KIND << 48)},              \
                                   .cpu = run_##text##_##does}
#define KERNELS(dtype, text)                                                                                           \
    KERNEL(dtype, text, add, ADD), KERNEL(dtype, text, set, SET), KERNEL(dtype, text, mul, MUL),                       \
        KERNEL(dtype, text, max, MAX), KERNEL(dtype, text, min, MIN)
static rp__kernel kernels[RP__DTYPE_COUNT][RP__SCATTERS] = {
    KERNELS(RP_F32, f32), KERNELS(RP_F64, f64), KERNELS(RP_F16, f16),    KERNELS(RP_BF16, bf16), KERNELS(RP_I32, i32),
    KERNELS(RP_I64, i64), KERNELS(RP_U8, u8),   KERNELS(RP_BOOL, truth), KERNELS(RP_I8, i8),     KERNELS(RP_I16, i16),
};

rp_status rp__cpu_scatter_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                               const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op, (void)n;
    const rp__operand *y = &o[0], *index = &o[1], *src = &o[2];
    const unsigned nd = index->ndim, dim = (unsigned)call->dim;
    const int64_t numel = rp__operand_numel(index);
    if (numel == 0) return RP_OK;
    uint64_t *w = buffer->words;
    rp__operand walked = *src; /* src may be larger than index; only the part of index's size is read */
    for (unsigned i = 0; i < nd; i++) walked.size[i] = index->size[i];
    rp__operand_slot(y, OUT, RP__READ | RP__WRITE, buffer, out);
    rp__operand_slot(index, INDEX, RP__READ, buffer, out);
    rp__operand_slot(&walked, SRC, RP__READ, buffer, out);
    w[ERRORS] = (uint64_t)(uintptr_t)d->errors, w[TAG] = rp__error_tag(call->op, call->site);
    w[LENGTH] = (uint64_t)index->size[dim], w[BOUND] = (uint64_t)y->size[dim];
    w[OUT_DIM] = (uint64_t)y->stride[dim], w[INDEX_DIM] = (uint64_t)index->stride[dim];
    w[SRC_DIM] = (uint64_t)src->stride[dim];
    uint64_t *at = w + WORDS;
    for (unsigned i = 0; i < nd; i++) {
        if (i == dim) continue;
        *at++ = (uint64_t)index->size[i], *at++ = (uint64_t)y->stride[i], *at++ = (uint64_t)index->stride[i];
        *at++ = (uint64_t)src->stride[i];
    }
    w[DIMS] = nd - 1;
    out->n_words = (uint32_t)(at - w);
    out->items = numel / index->size[dim];
    out->grain = rp__cpu_grain(out->items, 3.0 * (double)index->size[dim]);
    out->kernel = &kernels[y->dtype][call->scatter];
    return RP_OK;
}
