/* The recursion of CTC on the CPU (library.h); an item is a sequence. The kernel on CUDA adds up in the same order. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "kernel/cpu/lib.h"

enum { OUT, IN, REACH, SKIPS, LENGTHS, TIMES, SEQUENCES, STATES, BACK, WORDS };

/* For REAL: of state l the ways from l, l - 1 and l - 2, a step before; `weight` gets what each is worth of all three. Returns
   the logarithm of their sum. */
#define KERNELS(suffix, REAL, EXP, LOG)                                                                                \
    static REAL ways_##suffix(const REAL *from, const uint8_t *skips, int64_t l, REAL weight[3]) {                     \
        const REAL a = from[l], b = l > 0 ? from[l - 1] : (REAL)RP__NO_WAY,                                            \
                   c = l > 1 && skips[l] ? from[l - 2] : (REAL)RP__NO_WAY, ab = a > b ? a : b, most = ab > c ? ab : c; \
        weight[0] = EXP(a - most), weight[1] = EXP(b - most), weight[2] = EXP(c - most);                               \
        const REAL sum = weight[0] + weight[1] + weight[2];                                                            \
        for (int k = 0; k < 3; k++) weight[k] /= sum;                                                                  \
        return LOG(sum) + most;                                                                                        \
    }                                                                                                                  \
    static void reach_##suffix(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {                   \
        (void)k;                                                                                                       \
        const int64_t times = (int64_t)w[TIMES], states = (int64_t)w[STATES], step = (int64_t)w[SEQUENCES] * states;   \
        REAL weight[3];                                                                                                \
        for (int64_t n = begin; n < end; n++) {                                                                        \
            REAL *out = (REAL *)(uintptr_t)w[OUT] + n * states;                                                        \
            const REAL *score = (const REAL *)(uintptr_t)w[IN] + n * states;                                           \
            const uint8_t *skips = (const uint8_t *)(uintptr_t)w[SKIPS] + n * states;                                  \
            const int64_t length = ((const int64_t *)(uintptr_t)w[LENGTHS])[n];                                        \
            for (int64_t l = 0; l < states; l++) out[l] = l < 2 ? score[l] : (REAL)RP__NO_WAY;                         \
            for (int64_t t = 1; t < times; t++) {                                                                      \
                const REAL *from = out;                                                                                \
                out += step, score += step;                                                                            \
                if (t < length)                                                                                        \
                    for (int64_t l = 0; l < states; l++) out[l] = ways_##suffix(from, skips, l, weight) + score[l];    \
                else                                                                                                   \
                    memcpy(out, from, (size_t)states * sizeof *out);                                                   \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void carry_##suffix(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {                   \
        (void)k;                                                                                                       \
        const int64_t times = (int64_t)w[TIMES], states = (int64_t)w[STATES], step = (int64_t)w[SEQUENCES] * states;   \
        const bool back = w[BACK] != 0;                                                                                \
        REAL weight[3];                                                                                                \
        for (int64_t n = begin; n < end; n++) {                                                                        \
            REAL *out = (REAL *)(uintptr_t)w[OUT] + n * states;                                                        \
            const REAL *in = (const REAL *)(uintptr_t)w[IN] + n * states,                                              \
                       *reach = (const REAL *)(uintptr_t)w[REACH] + n * states;                                        \
            const uint8_t *skips = (const uint8_t *)(uintptr_t)w[SKIPS] + n * states;                                  \
            const int64_t length = ((const int64_t *)(uintptr_t)w[LENGTHS])[n];                                        \
            for (int64_t t = 0; t < times; t++) memcpy(out + t * step, in + t * step, (size_t)states * sizeof *out);   \
            for (int64_t i = 1; i < times; i++) {                                                                      \
                const int64_t t = back ? times - i : i; /* the ways lead from t - 1 to t */                            \
                REAL *to = out + t * step, *from = to - step;                                                          \
                for (int64_t l = 0; l < states; l++) {                                                                 \
                    if (t < length)                                                                                    \
                        (void)ways_##suffix(reach + (t - 1) * step, skips, l, weight);                                 \
                    else                                                                                               \
                        weight[0] = 1, weight[1] = weight[2] = 0;                                                      \
                    for (int64_t j = 0; j < 3 && j <= l; j++) {                                                        \
                        if (back)                                                                                      \
                            from[l - j] += weight[j] * to[l];                                                          \
                        else                                                                                           \
                            to[l] += weight[j] * from[l - j];                                                          \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static rp__kernel kernel_reach_##suffix = {.kind = RP__KERNEL_CPU,                                                 \
                                               .name = "ctc_reach_" #suffix,                                           \
                                               .key = {sizeof(REAL), 0x6374637265},                                    \
                                               .cpu = reach_##suffix};                                                 \
    static rp__kernel kernel_carry_##suffix = {.kind = RP__KERNEL_CPU,                                                 \
                                               .name = "ctc_carry_" #suffix,                                           \
                                               .key = {sizeof(REAL), 0x6374636361},                                    \
                                               .cpu = carry_##suffix};
KERNELS(f32, float, expf, logf)
KERNELS(f64, double, exp, log)

rp_status rp__cpu_ctc_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                           const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d;
    const bool carries = op == RP__LIB_CTC_CARRY;
    if (rp__operand_numel(&o[0]) == 0) return RP_OK;
    const uint32_t reach[] = {OUT, IN, SKIPS, LENGTHS}, carry[] = {OUT, IN, REACH, SKIPS, LENGTHS};
    for (size_t k = 0; k < n; k++)
        rp__operand_slot(&o[k], carries ? carry[k] : reach[k], k == 0 ? RP__WRITE : RP__READ, buffer, out);
    uint64_t *w = buffer->words;
    if (!carries) w[REACH] = 0;
    w[TIMES] = (uint64_t)o[0].size[0], w[SEQUENCES] = (uint64_t)o[0].size[1], w[STATES] = (uint64_t)o[0].size[2];
    w[BACK] = call->back;
    out->n_words = WORDS;
    out->items = o[0].size[1];
    out->grain = rp__cpu_grain(out->items, 40.0 * (double)(o[0].size[0] * o[0].size[2]));
    if (o[0].dtype == RP_F64)
        out->kernel = carries ? &kernel_carry_f64 : &kernel_reach_f64;
    else
        out->kernel = carries ? &kernel_carry_f32 : &kernel_reach_f32;
    return RP_OK;
}
