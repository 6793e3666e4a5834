/* weighted_scatter on the CPU (library.h). An item is a plane, which is added to along the places of grad, so that the result does not
   depend on threads. */
#include "core/dtype.h"
#include "kernel/cpu/lib.h"

enum { OUT, GRAD, INDEX, WEIGHT, CHANNELS, PLACES, TAPS, SIZE, STRIDES, WORDS = STRIDES + 12 };

#define AS_IS(x) (x)
#define RUN(name, TO, FROM, PLACE, LOAD)                                                                               \
    static void run_##name(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {                  \
        (void)kernel;                                                                                                  \
        const int64_t *v = (const int64_t *)w, *out = v + STRIDES, *from = out + 3, *at = from + 3, *by = at + 3;      \
        for (int64_t plane = begin; plane < end; plane++) {                                                            \
            const int64_t n = plane / v[CHANNELS], c = plane % v[CHANNELS];                                            \
            TO *y = (TO *)(uintptr_t)w[OUT] + n * out[0] + c * out[1];                                                 \
            const FROM *grad = (const FROM *)(uintptr_t)w[GRAD] + n * from[0] + c * from[1];                           \
            const PLACE *index = (const PLACE *)(uintptr_t)w[INDEX] + n * at[0];                                       \
            const TO *weight = (const TO *)(uintptr_t)w[WEIGHT] + n * by[0];                                           \
            for (int64_t p = 0; p < v[PLACES]; p++) {                                                                  \
                const TO x = (TO)LOAD(grad[p * from[2]]);                                                              \
                for (int64_t k = 0; k < v[TAPS]; k++) {                                                                \
                    const int64_t i = index[k * at[1] + p * at[2]];                                                    \
                    if (i >= 0 && i < v[SIZE]) y[i * out[2]] += x * weight[k * by[1] + p * by[2]];                     \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
#define RUNS(name, FROM, LOAD)                                                                                         \
    RUN(name##_f32_i32, float, FROM, int32_t, LOAD)                                                                    \
    RUN(name##_f32_i64, float, FROM, int64_t, LOAD)                                                                    \
    RUN(name##_f64_i32, double, FROM, int32_t, LOAD)                                                                   \
    RUN(name##_f64_i64, double, FROM, int64_t, LOAD)
RUNS(f32, float, AS_IS)
RUNS(f64, double, AS_IS)
RUNS(f16, uint16_t, rp__f16_to_f32)
RUNS(bf16, uint16_t, rp__bf16_to_f32)
#define KERNEL(dtype, text, wide, place, index)                                                                        \
    {                                                                                                                  \
        .kind = RP__KERNEL_CPU, .name = "weighted_scatter_" #text "_" #wide "_" #index,                                \
        .key = {dtype, 0x7765696768746564 + ((uint64_t)(place) << 40)}, .cpu = run_##text##_##wide##_##index           \
    }
#define KERNELS(dtype, text)                                                                                           \
    [dtype] = {KERNEL(dtype, text, f32, 0, i32), KERNEL(dtype, text, f32, 1, i64), KERNEL(dtype, text, f64, 2, i32),   \
               KERNEL(dtype, text, f64, 3, i64)}
static rp__kernel kernels[RP__DTYPE_COUNT][4] = {KERNELS(RP_F32, f32), KERNELS(RP_F64, f64), KERNELS(RP_F16, f16),
                                                 KERNELS(RP_BF16, bf16)};

rp_status rp__cpu_weighted_scatter_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                        const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op, (void)call;
    uint64_t *w = buffer->words;
    if (rp__operand_numel(&o[0]) == 0 || rp__operand_numel(&o[1]) == 0 || o[2].size[1] == 0) return RP_OK;
    for (unsigned k = 0; k < n; k++) {
        rp__operand_slot(&o[k], k, k ? RP__READ : RP__READ | RP__WRITE, buffer, out);
        for (unsigned i = 0; i < 3; i++) w[STRIDES + 3 * k + i] = (uint64_t)o[k].stride[i];
    }
    w[CHANNELS] = (uint64_t)o[1].size[1], w[PLACES] = (uint64_t)o[1].size[2];
    w[TAPS] = (uint64_t)o[2].size[1], w[SIZE] = (uint64_t)o[0].size[2];
    out->n_words = WORDS;
    out->items = o[1].size[0] * o[1].size[1];
    out->grain = rp__cpu_grain(out->items, 3.0 * (double)(o[1].size[2] * o[2].size[1]));
    out->kernel = &kernels[o[1].dtype][(o[0].dtype == RP_F64) * 2 + (o[2].dtype == RP_I64)];
    return RP_OK;
}
