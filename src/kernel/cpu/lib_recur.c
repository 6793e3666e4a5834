/* Recurrent layers along a sequence on the CPU (library.h); an item is a sequence. Here a step is sooner as a product of all sequences and
   one loop, which networks are made of on this device; this is the same in one launch, as the kernel on CUDA does it. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "kernel/cpu/lib.h"

enum {
    STATES,
    LAST,
    CELLS,
    LAST_CELL,
    KEPT,
    X,
    W,
    B,
    HIDDEN,
    C,
    DX,
    DY,
    DH,
    DC,
    GRAD,
    GRAD_LAST,
    GRAD_CELL,
    STEPS,
    SEQUENCES,
    UNITS,
    CELL,
    REVERSE,
    X_STEP,
    X_ROW,
    WORDS
};

#define AT(type, word) ((type *)(uintptr_t)w[word])
#define KERNELS(suffix, REAL, EXP, TANH)                                                                               \
    static void forward_##suffix(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {            \
        (void)kernel;                                                                                                  \
        const int64_t steps = (int64_t)w[STEPS], rows = (int64_t)w[SEQUENCES], H = (int64_t)w[UNITS];                  \
        const int64_t cell = (int64_t)w[CELL], gates = rp__cell_gates((unsigned)cell), reverse = (int64_t)w[REVERSE];  \
        const REAL *weights = AT(REAL, W), *bias = AT(REAL, B);                                                        \
        for (int64_t n = begin; n < end; n++) {                                                                        \
            const int64_t first = (reverse ? steps : 0) * rows * H + n * H;                                            \
            const REAL *h0 = AT(REAL, HIDDEN), *c0 = AT(REAL, C); /* NULL: zeros */                                    \
            for (int64_t u = 0; u < H; u++) AT(REAL, STATES)[first + u] = h0 ? h0[n * H + u] : 0;                      \
            for (int64_t u = 0; u < H && cell == RP__CELL_LSTM; u++)                                                   \
                AT(REAL, CELLS)[first + u] = c0 ? c0[n * H + u] : 0;                                                   \
            for (int64_t step = 0; step < steps; step++) {                                                             \
                const int64_t t = reverse ? steps - 1 - step : step, after = ((t + 1 - reverse) * rows + n) * H,       \
                              before = ((t + reverse) * rows + n) * H;                                                 \
                const REAL *x = AT(REAL, X) + t * (int64_t)w[X_STEP] + n * (int64_t)w[X_ROW],                          \
                           *h = AT(REAL, STATES) + before;                                                             \
                REAL *to = AT(REAL, STATES) + after, *kept = AT(REAL, KEPT) + (t * rows + n) * 4 * H;                  \
                for (int64_t u = 0; u < H; u++) {                                                                      \
                    REAL sum[4] = {0, 0, 0, 0};                                                                        \
                    for (int64_t g = 0; g < gates; g++) {                                                              \
                        const REAL *row = weights + (g * H + u) * H;                                                   \
                        for (int64_t k = 0; k < H; k++) sum[g] += row[k] * h[k];                                       \
                        if (bias) sum[g] += bias[g * H + u];                                                           \
                    }                                                                                                  \
                    if (cell == RP__CELL_TANH) {                                                                       \
                        to[u] = TANH(x[u] + sum[0]);                                                                   \
                    } else if (cell == RP__CELL_RELU) {                                                                \
                        const REAL y = x[u] + sum[0];                                                                  \
                        to[u] = y != y || y > 0 ? y : 0;                                                               \
                    } else if (cell == RP__CELL_GRU) {                                                                 \
                        const REAL r = 1 / (1 + EXP(-(x[u] + sum[0]))), z = 1 / (1 + EXP(-(x[H + u] + sum[1])));       \
                        const REAL fresh = TANH(x[2 * H + u] + r * sum[2]);                                            \
                        kept[u] = r, kept[H + u] = z, kept[2 * H + u] = fresh, kept[3 * H + u] = sum[2];               \
                        to[u] = fresh + z * (h[u] - fresh);                                                            \
                    } else {                                                                                           \
                        const REAL i = 1 / (1 + EXP(-(x[u] + sum[0]))), f = 1 / (1 + EXP(-(x[H + u] + sum[1])));       \
                        const REAL g = TANH(x[2 * H + u] + sum[2]), o = 1 / (1 + EXP(-(x[3 * H + u] + sum[3])));       \
                        const REAL c = f * AT(REAL, CELLS)[before + u] + i * g;                                        \
                        kept[u] = i, kept[H + u] = f, kept[2 * H + u] = g, kept[3 * H + u] = o;                        \
                        AT(REAL, CELLS)[after + u] = c;                                                                \
                        to[u] = o * TANH(c);                                                                           \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            const int64_t end_at = ((reverse ? 0 : steps) * rows + n) * H;                                             \
            memcpy(AT(REAL, LAST) + n * H, AT(REAL, STATES) + end_at, (size_t)H * sizeof(REAL));                       \
            if (cell == RP__CELL_LSTM)                                                                                 \
                memcpy(AT(REAL, LAST_CELL) + n * H, AT(REAL, CELLS) + end_at, (size_t)H * sizeof(REAL));               \
        }                                                                                                              \
    }                                                                                                                  \
    static void back_##suffix(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {               \
        (void)kernel;                                                                                                  \
        const int64_t steps = (int64_t)w[STEPS], rows = (int64_t)w[SEQUENCES], H = (int64_t)w[UNITS];                  \
        const int64_t cell = (int64_t)w[CELL], gates = rp__cell_gates((unsigned)cell), reverse = (int64_t)w[REVERSE];  \
        const REAL *weights = AT(REAL, W), *states = AT(REAL, STATES), *grad = AT(REAL, GRAD);                         \
        for (int64_t n = begin; n < end; n++) {                                                                        \
            REAL *dh = AT(REAL, DH) + n * H,                                                                           \
                 *dc = cell == RP__CELL_LSTM ? AT(REAL, DC) + n * H : NULL; /* of the state under way */               \
            for (int64_t u = 0; u < H; u++) {                                                                          \
                dh[u] = AT(REAL, GRAD_LAST) ? AT(REAL, GRAD_LAST)[n * H + u] : 0;                                      \
                if (dc) dc[u] = AT(REAL, GRAD_CELL) ? AT(REAL, GRAD_CELL)[n * H + u] : 0;                              \
            }                                                                                                          \
            for (int64_t step = 0; step < steps; step++) {                                                             \
                const int64_t t = reverse ? step : steps - 1 - step, after = ((t + 1 - reverse) * rows + n) * H,       \
                              before = ((t + reverse) * rows + n) * H;                                                 \
                const REAL *kept = AT(REAL, KEPT) + (t * rows + n) * 4 * H;                                            \
                REAL *dx = AT(REAL, DX) + (t * rows + n) * gates * H,                                                  \
                     *dy = cell == RP__CELL_GRU ? AT(REAL, DY) + (t * rows + n) * gates * H : dx;                      \
                for (int64_t u = 0; u < H; u++) {                                                                      \
                    const REAL d = dh[u] + (grad ? grad[after + u] : 0), y = states[after + u];                        \
                    dh[u] = 0;                                                                                         \
                    if (cell == RP__CELL_TANH) {                                                                       \
                        dx[u] = d * (1 - y * y);                                                                       \
                    } else if (cell == RP__CELL_RELU) {                                                                \
                        dx[u] = y <= 0 ? 0 : d;                                                                        \
                    } else if (cell == RP__CELL_GRU) {                                                                 \
                        const REAL r = kept[u], z = kept[H + u], fresh = kept[2 * H + u];                              \
                        dx[2 * H + u] = d * (1 - z) * (1 - fresh * fresh);                                             \
                        dx[H + u] = d * (states[before + u] - fresh) * (z * (1 - z));                                  \
                        dx[u] = dx[2 * H + u] * kept[3 * H + u] * (r * (1 - r));                                       \
                        dy[u] = dx[u], dy[H + u] = dx[H + u], dy[2 * H + u] = dx[2 * H + u] * r;                       \
                        dh[u] = d * z;                                                                                 \
                    } else {                                                                                           \
                        const REAL i = kept[u], f = kept[H + u], g = kept[2 * H + u], o = kept[3 * H + u];             \
                        const REAL had = AT(REAL, CELLS)[before + u], c = TANH(AT(REAL, CELLS)[after + u]),            \
                                   e = dc[u] + d * o * (1 - c * c);                                                    \
                        dx[u] = e * g * (i * (1 - i)), dx[H + u] = e * had * (f * (1 - f));                            \
                        dx[2 * H + u] = e * i * (1 - g * g), dx[3 * H + u] = d * c * (o * (1 - o));                    \
                        dc[u] = e * f;                                                                                 \
                    }                                                                                                  \
                }                                                                                                      \
                for (int64_t k = 0; k < gates * H; k++)                                                                \
                    for (int64_t u = 0; u < H; u++) dh[u] += dy[k] * weights[k * H + u];                               \
            }                                                                                                          \
            const int64_t first = ((reverse ? steps : 0) * rows + n) * H;                                              \
            for (int64_t u = 0; u < H && grad; u++) dh[u] += grad[first + u];                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static rp__kernel kernel_forward_##suffix = {.kind = RP__KERNEL_CPU,                                               \
                                                 .name = "recur_" #suffix,                                             \
                                                 .key = {sizeof(REAL), 0x726563757266},                                \
                                                 .cpu = forward_##suffix};                                             \
    static rp__kernel kernel_back_##suffix = {.kind = RP__KERNEL_CPU,                                                  \
                                              .name = "recur_back_" #suffix,                                           \
                                              .key = {sizeof(REAL), 0x726563757262},                                   \
                                              .cpu = back_##suffix};
KERNELS(f32, float, expf, tanhf)
KERNELS(f64, double, exp, tanh)

rp_status rp__cpu_recur_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                             const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    static const uint8_t forward[10] = {STATES, LAST, CELLS, LAST_CELL, KEPT, X, W, B, HIDDEN, C},
                         backward[11] = {DX, DY, DH, DC, GRAD, GRAD_LAST, GRAD_CELL, STATES, CELLS, KEPT, W};
    const bool back = op == RP__LIB_RECUR_BACK;
    const rp__operand *x = back ? &o[0] : &o[5], *last = back ? &o[2] : &o[1];
    uint64_t *w = buffer->words;
    (void)d;
    if (rp__operand_numel(last) == 0) return RP_OK;
    memset(w, 0, WORDS * sizeof *w);
    for (size_t k = 0; k < n; k++)
        if (o[k].base)
            rp__operand_slot(&o[k], back ? backward[k] : forward[k], k < (back ? 4u : 5u) ? RP__WRITE : RP__READ,
                             buffer, out);
    w[STEPS] = (uint64_t)x->size[0], w[SEQUENCES] = (uint64_t)last->size[0], w[UNITS] = (uint64_t)last->size[1];
    w[CELL] = call->recurrence.cell, w[REVERSE] = call->recurrence.reverse;
    w[X_STEP] = (uint64_t)x->stride[0], w[X_ROW] = (uint64_t)x->stride[1];
    out->n_words = WORDS;
    out->items = last->size[0];
    out->grain = rp__cpu_grain(out->items, (double)rp__operand_numel(x) / (double)out->items * (double)last->size[1]);
    if (x->dtype == RP_F64)
        out->kernel = back ? &kernel_back_f64 : &kernel_forward_f64;
    else
        out->kernel = back ? &kernel_back_f32 : &kernel_forward_f32;
    return RP_OK;
}
