/* count_bins on the CPU (library.h). An item is a part of the elements, whose counts are added to those of all by atomic additions, which come to
   the same in any order. */
#include <string.h>

#include "core/dtype.h"
#include "kernel/cpu/lib.h"

enum { OUT, IN, ALL, BINS, LOW, HIGH, WORDS };
enum { PART = 1 << 14, OWN = 1024 };

#define AS_IS(x) (x)
#define RUN(name, T, REAL, COUNT, LOAD)                                                                                \
    static void run_##name(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {                  \
        (void)kernel;                                                                                                  \
        COUNT *out = (COUNT *)(uintptr_t)w[OUT], own[OWN];                                                             \
        const T *x = (const T *)(uintptr_t)w[IN];                                                                      \
        const int64_t bins = (int64_t)w[BINS], all = (int64_t)w[ALL];                                                  \
        const int64_t last = end * PART < all ? end * PART : all;                                                      \
        double range[2];                                                                                               \
        memcpy(range, w + LOW, sizeof range);                                                                          \
        const REAL low = (REAL)range[0], high = (REAL)range[1], parts = (REAL)bins;                                    \
        if (bins <= OWN) memset(own, 0, (size_t)bins * sizeof *own);                                                   \
        for (int64_t i = begin * PART; i < last; i++) {                                                                \
            const REAL v = (REAL)LOAD(x[i]);                                                                           \
            if (!(low <= v && v <= high)) continue;                                                                    \
            const REAL part = (v - low) * parts / (high - low);                                                        \
            const int64_t at = part >= parts ? bins - 1 : part > 0 ? (int64_t)part : 0;                                \
            if (bins <= OWN)                                                                                           \
                own[at]++;                                                                                             \
            else                                                                                                       \
                (void)__atomic_fetch_add(&out[at], 1, __ATOMIC_RELAXED);                                               \
        }                                                                                                              \
        for (int64_t i = 0; bins <= OWN && i < bins; i++)                                                              \
            if (own[i]) (void)__atomic_fetch_add(&out[i], own[i], __ATOMIC_RELAXED);                                   \
    }
#define KERNEL(dtype, text, wide)                                                                                      \
    { .kind = RP__KERNEL_CPU, .name = "count_bins_" #text, .key = {dtype, 0x636f756e74 + (wide)}, .cpu = run_##text }
#define KERNELS(dtype, text) [dtype] = {KERNEL(dtype, text##_i32, 0), KERNEL(dtype, text##_i64, 1)}
#define RUNS(name, T, REAL, LOAD)                                                                                      \
    RUN(name##_i32, T, REAL, int32_t, LOAD)                                                                            \
    RUN(name##_i64, T, REAL, int64_t, LOAD)
RUNS(f32, float, float, AS_IS)
RUNS(f64, double, double, AS_IS)
RUNS(f16, uint16_t, float, rp__f16_to_f32)
RUNS(bf16, uint16_t, float, rp__bf16_to_f32)
static rp__kernel kernels[RP__DTYPE_COUNT][2] = {KERNELS(RP_F32, f32), KERNELS(RP_F64, f64), KERNELS(RP_F16, f16),
                                                 KERNELS(RP_BF16, bf16)};

rp_status rp__cpu_count_bins_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                  const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op, (void)n;
    uint64_t *w = buffer->words;
    if (o[1].size[0] == 0 || o[0].size[0] == 0) return RP_OK;
    rp__operand_slot(&o[0], OUT, RP__READ | RP__WRITE, buffer, out);
    rp__operand_slot(&o[1], IN, RP__READ, buffer, out);
    w[ALL] = (uint64_t)o[1].size[0], w[BINS] = (uint64_t)o[0].size[0];
    memcpy(w + LOW, call->range, sizeof call->range);
    out->n_words = WORDS;
    out->items = (o[1].size[0] + PART - 1) / PART;
    out->grain = rp__cpu_grain(out->items, 6.0 * PART);
    out->kernel = &kernels[o[1].dtype][o[0].dtype == RP_I64];
    return RP_OK;
}
