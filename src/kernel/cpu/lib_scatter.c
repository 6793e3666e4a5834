/* scatter on the CPU: src[i] is combined into out[..., index[i], ...] in rising order of i along dim, so the result does not depend on
   threads. An index out of range goes to the device's error record and its element is skipped. An item is a line along dim; a
   slice walks dim outermost, so that lines side by side share cache lines. */
#include "core/dtype.h"
#include "device/error_record.h"
#include "kernel/cpu/lib.h"

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

#define RUN(name, T, LOAD, STORE, COMBINE)                                                                             \
    static void run_##name(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {                  \
        (void)kernel;                                                                                                  \
        const int64_t *v = (const int64_t *)w, nd = v[DIMS], bound = v[BOUND];                                         \
        const int64_t *inner = nd ? v + WORDS + 4 * (nd - 1) : (const int64_t[]){1, 0, 0, 0};                          \
        int64_t start[RP_MAX_DIMS] = {0}, rest = begin;                                                                \
        for (int64_t d = nd - 1; d >= 0; d--) {                                                                        \
            start[d] = rest % v[WORDS + 4 * d];                                                                        \
            rest /= v[WORDS + 4 * d];                                                                                  \
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
                for (int64_t j = 0; j < run; j++, o += inner[1], index += inner[2], src += inner[3]) {                 \
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
#define RUNS(name, T, LOAD, STORE, ADD, MUL, MAX, MIN)                                                                 \
    RUN(name##_add, T, LOAD, STORE, ADD)                                                                               \
    RUN(name##_set, T, AS_IS, AS_IS, SET)                                                                              \
    RUN(name##_mul, T, LOAD, STORE, MUL)                                                                               \
    RUN(name##_max, T, LOAD, STORE, MAX)                                                                               \
    RUN(name##_min, T, LOAD, STORE, MIN)
#define FLOATS(name, T, LOAD, STORE) RUNS(name, T, LOAD, STORE, ADD_FLOAT, MUL_FLOAT, MAX_FLOAT, MIN_FLOAT)
#define WHOLES(name, T) RUNS(name, T, AS_IS, AS_IS, ADD_WHOLE, MUL_WHOLE, MAX_WHOLE, MIN_WHOLE)
FLOATS(f32, float, AS_IS, AS_IS)
FLOATS(f64, double, AS_IS, AS_IS)
FLOATS(f16, uint16_t, rp__f16_to_f32, rp__f32_to_f16)
FLOATS(bf16, uint16_t, rp__bf16_to_f32, rp__f32_to_bf16)
WHOLES(i32, int32_t)
WHOLES(i8, int8_t)
WHOLES(i16, int16_t)
WHOLES(i64, int64_t)
WHOLES(u8, uint8_t)
RUNS(truth, uint8_t, TRUTH, AS_IS, OR, AND, OR, AND)
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
    (void)op;
    const rp__operand *y = &o[0], *index = &o[1], *src = &o[2];
    const unsigned nd = index->ndim, dim = (unsigned)call->dim;
    if (n < 3 || y->ndim != nd || src->ndim != nd || dim >= nd || index->dtype != RP_I64 || src->dtype != y->dtype ||
        !rp__dtype_is_valid(y->dtype) || call->scatter >= RP__SCATTERS)
        return rp__fail(RP_ERROR_INTERNAL, "%s: operands of scatter do not fit", call->op);
    const int64_t numel = rp__operand_numel(index);
    if (numel == 0) return RP_OK;
    uint64_t *w = buffer->words;
    rp__operand walked = *src; /* src may be larger than index; only the part of index's size is read */
    for (unsigned i = 0; i < nd; i++) walked.size[i] = index->size[i];
    rp__cpu_slot(y, OUT, RP__READ | RP__WRITE, buffer, out);
    rp__cpu_slot(index, INDEX, RP__READ, buffer, out);
    rp__cpu_slot(&walked, SRC, RP__READ, buffer, out);
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
