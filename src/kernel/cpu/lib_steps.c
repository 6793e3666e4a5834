/* Functions and draws of kernel/steps.h on the CPU: elements are items. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "device/generator.h"
#include "kernel/cpu/lib.h"

typedef uint64_t rp_u64;
typedef uint32_t rp_u32;
#define RP_FN static inline
#define rp_philox_at rp__philox_at
#define rp_exp_f64 exp
#define rp_expm1_f64 expm1
#define rp_log_f64 log
#define rp_log1p_f64 log1p
#define rp_sqrt_f64 sqrt
#define rp_cos_f64 cos
#define rp_erfc_f64 erfc
#define rp_fabs_f64 fabs
#define rp_floor_f64 floor
#define rp_trunc_f64 trunc
static inline double rp_bits_f64(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#include "kernel/steps.h"

enum { OUT, A, B, FUNCTION, STATE, SEED, INNER, LEAST, WORDS };

static void run(const uint64_t *w, int64_t begin, int64_t end, bool wide) {
    const uint64_t *state = (const uint64_t *)(uintptr_t)w[STATE];
    const uint64_t seed = state ? state[0] : w[SEED], first = (state ? state[1] : 0) + w[INNER];
    const void *a = (const void *)(uintptr_t)w[A], *b = (const void *)(uintptr_t)w[B];
    void *out = (void *)(uintptr_t)w[OUT];
    const double least = rp_bits_f64(w[LEAST]);
    for (int64_t i = begin; i < end; i++) {
        if (wide)
            ((double *)out)[i] = rp_steps((int)w[FUNCTION], ((const double *)a)[i], ((const double *)b)[i], seed,
                                          first + (uint64_t)i, least);
        else
            ((float *)out)[i] = (float)rp_steps((int)w[FUNCTION], (double)((const float *)a)[i],
                                                (double)((const float *)b)[i], seed, first + (uint64_t)i, least);
    }
}
static void run_f32(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {
    (void)k;
    run(w, begin, end, false);
}
static void run_f64(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {
    (void)k;
    run(w, begin, end, true);
}
static rp__kernel kernel_f32 = {.kind = RP__KERNEL_CPU, .name = "steps_f32", .key = {1, 0x7374657073}, .cpu = run_f32};
static rp__kernel kernel_f64 = {.kind = RP__KERNEL_CPU, .name = "steps_f64", .key = {2, 0x7374657073}, .cpu = run_f64};

rp_status rp__cpu_steps_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                             const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op, (void)n;
    if (o[0].size[0] == 0) return RP_OK;
    for (unsigned k = 0; k < 3; k++) rp__operand_slot(&o[k], k, k ? RP__READ : RP__WRITE, buffer, out);
    uint64_t *w = buffer->words;
    w[FUNCTION] = call->steps;
    w[STATE] = (uint64_t)(uintptr_t)call->draw.state, w[SEED] = call->draw.seed, w[INNER] = call->draw.inner;
    memcpy(&w[LEAST], &call->least, sizeof w[LEAST]);
    out->n_words = WORDS;
    if (call->steps >= RP_STEPS_GAMMA) {
        out->draw = STATE;
        out->n_draws = 1;
    }
    out->items = o[0].size[0];
    out->grain = rp__cpu_grain(out->items, 200);
    out->kernel = o[0].dtype == RP_F64 ? &kernel_f64 : &kernel_f32;
    return RP_OK;
}
