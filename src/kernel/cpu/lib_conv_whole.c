/* Convolutions of integers on the CPU, and their transposes: lines of places of the result, one after the other, whose sums wrap as those of
   PyTorch do. Plain loops: correct for any geometry, in no hurry. Words are those of lib_conv.c. */
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/lib.h"

enum { LINE = 256 }; /* places of a line that are summed at once */

/* One side of a convolution, as words have it: extents and strides (image, channel, three of places). */
typedef struct side {
    const int64_t *extent, *stride;
} side;

typedef struct problem {
    const int64_t *v;
    bool forward;               /* else INPUT */
    side to, from;              /* the result, and what is read beside the weight */
    int64_t groups, rows, deep; /* channels of a group of the result, and of what is read */
    const int64_t *w_stride;    /* of a row of the weight, of a channel that is read; then as words have them */
    int64_t row_stride, deep_stride, group_stride;
} problem;

static problem problem_of(const uint64_t *words, bool forward) {
    const int64_t *v = (const int64_t *)words, *w = v + RP__CONV_W_STRIDES;
    const side x = {v + RP__CONV_XS, v + RP__CONV_X_STRIDES}, y = {v + RP__CONV_YS, v + RP__CONV_Y_STRIDES};
    const int64_t C = v[RP__CONV_C], O = v[RP__CONV_O];
    return (problem){.v = v,
                     .forward = forward,
                     .to = forward ? y : x,
                     .from = forward ? x : y,
                     .groups = v[RP__CONV_GROUPS],
                     .rows = forward ? O : C,
                     .deep = forward ? C : O,
                     .w_stride = w,
                     .row_stride = w[forward ? 0 : 1],
                     .deep_stride = w[forward ? 1 : 0],
                     .group_stride = O * w[0]};
}

/* The place that tap r of dim d reads for place p of the result; false: none. */
static bool place_of(const problem *c, unsigned d, int64_t p, int64_t r, int64_t *out) {
    const int64_t stride = c->v[RP__CONV_STRIDE + d], padding = c->v[RP__CONV_PADDING + d];
    const int64_t reach = r * c->v[RP__CONV_DILATION + d];
    int64_t at = c->forward ? p * stride - padding + reach : p + padding - reach;
    if (!c->forward && at % stride) return false;
    if (!c->forward) at /= stride;
    *out = at;
    return at >= 0 && at < c->from.extent[d];
}

/* What of places [begin, end) of a line reads places within: p = first, first + *step, ..., of which the first reads *at, and each next one
   *by further. */
static int64_t places_of(const problem *c, int64_t r, int64_t begin, int64_t end, int64_t *step, int64_t *at,
                         int64_t *by) {
    const int64_t stride = c->v[RP__CONV_STRIDE + 2];
    int64_t p = begin;
    *step = c->forward ? 1 : stride, *by = c->forward ? stride : 1;
    while (p < end && !place_of(c, 2, p, r, at)) p++;
    return p;
}

/* S: elements; T: sums, unsigned and as wide at least. A line of the result: its sums begin with the bias. */
#define LINES(name, S, T)                                                                                              \
    static void lines_##name(const problem *c, int64_t begin, int64_t end) {                                           \
        const int64_t *v = c->v, *ws = v + RP__CONV_WS, *to = c->to.extent;                                            \
        const S *source = (const S *)(uintptr_t)v[c->forward ? RP__CONV_X : RP__CONV_Y];                               \
        const S *weight = (const S *)(uintptr_t)v[RP__CONV_W], *bias = (const S *)(uintptr_t)v[RP__CONV_BIAS];         \
        S *result = (S *)(uintptr_t)v[c->forward ? RP__CONV_Y : RP__CONV_X];                                           \
        T sum[LINE];                                                                                                   \
        for (int64_t item = begin; item < end; item++) {                                                               \
            const int64_t p1 = item % to[1], p0 = item / to[1] % to[0], channel = item / to[1] / to[0];                \
            const int64_t all = c->groups * c->rows, image = channel / all, row = channel % all;                       \
            const int64_t group = row / c->rows;                                                                       \
            const S *w = weight + group * c->group_stride + row % c->rows * c->row_stride;                             \
            const S *from = source + image * c->from.stride[0] + group * c->deep * c->from.stride[1];                  \
            S *out = result + image * c->to.stride[0] + row * c->to.stride[1] + p0 * c->to.stride[2] +                 \
                     p1 * c->to.stride[3];                                                                             \
            const T first = bias ? (T)bias[row * v[RP__CONV_BIAS_STRIDE]] : 0;                                         \
            for (int64_t low = 0; low < to[2]; low += LINE) {                                                          \
                const int64_t high = low + LINE < to[2] ? low + LINE : to[2];                                          \
                for (int64_t p = low; p < high; p++) sum[p - low] = first;                                             \
                for (int64_t tap = 0; tap < ws[0] * ws[1] * ws[2]; tap++) {                                            \
                    const int64_t r[3] = {tap / ws[2] / ws[1], tap / ws[2] % ws[1], tap % ws[2]};                      \
                    int64_t at[3], step, by;                                                                           \
                    if (!place_of(c, 0, p0, r[0], &at[0]) || !place_of(c, 1, p1, r[1], &at[1])) continue;              \
                    const int64_t p = places_of(c, r[2], low, high, &step, &at[2], &by);                               \
                    if (p == high) continue;                                                                           \
                    const int64_t left = (c->from.extent[2] - 1 - at[2]) / by, most = (high - 1 - p) / step;           \
                    const int64_t n = left < most ? left : most, move = by * c->from.stride[4];                        \
                    const S *x =                                                                                       \
                        from + at[0] * c->from.stride[2] + at[1] * c->from.stride[3] + at[2] * c->from.stride[4];      \
                    const S *f = w + r[0] * c->w_stride[2] + r[1] * c->w_stride[3] + r[2] * c->w_stride[4];            \
                    for (int64_t k = 0; k < c->deep; k++) {                                                            \
                        const T factor = (T)f[k * c->deep_stride];                                                     \
                        const S *line = x + k * c->from.stride[1];                                                     \
                        for (int64_t i = 0; i <= n; i++) sum[p - low + i * step] += factor * (T)line[i * move];        \
                    }                                                                                                  \
                }                                                                                                      \
                for (int64_t p = low; p < high; p++) out[p * c->to.stride[4]] = (S)sum[p - low];                       \
            }                                                                                                          \
        }                                                                                                              \
    }
LINES(u8, uint8_t, uint32_t)
LINES(i8, int8_t, uint32_t)
LINES(i16, int16_t, uint32_t)
LINES(i32, int32_t, uint32_t)
LINES(i64, int64_t, uint64_t)

static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end);
#define KERNEL(input, dtype, text)                                                                                     \
    [dtype] = {.kind = RP__KERNEL_CPU, .name = text, .key = {(input) << 8 | (dtype), 0x77636f6e76}, .cpu = run}
#define KERNELS(input, text)                                                                                           \
    [input] = {KERNEL(input, RP_U8, text "_u8"), KERNEL(input, RP_I8, text "_i8"), KERNEL(input, RP_I16, text "_i16"), \
               KERNEL(input, RP_I32, text "_i32"), KERNEL(input, RP_I64, text "_i64")}
static rp__kernel kernels[2][RP__DTYPE_COUNT] = {KERNELS(0, "conv_forward"), KERNELS(1, "conv_input")};
static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    static void (*const lines[RP__DTYPE_COUNT])(const problem *c, int64_t begin, int64_t end) = {
        [RP_U8] = lines_u8, [RP_I8] = lines_i8, [RP_I16] = lines_i16, [RP_I32] = lines_i32, [RP_I64] = lines_i64};
    const problem c = problem_of(words, kernel->key.lo >> 8 == 0);
    lines[kernel->key.lo & 0xff](&c, begin, end);
}

rp_status rp__cpu_conv_whole_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                  const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d;
    const bool forward = op == RP__LIB_CONV_FORWARD;
    if (!forward && op != RP__LIB_CONV_INPUT)
        return rp__fail(RP_ERROR_INTERNAL, "%s: integers have no gradient", call->op);
    RP_TRY(rp__cpu_conv_words(op, o, n, call, 0, buffer, out));
    const int64_t numel = rp__operand_numel(&o[0]);
    if (numel == 0) return RP_OK;
    const problem c = problem_of(buffer->words, forward);
    const double products = (double)rp__operand_numel(&o[2]) / (double)(c.rows * c.groups) * (double)c.to.extent[2];
    out->kernel = &kernels[!forward][o[0].dtype];
    out->items = numel / c.to.extent[2];
    out->grain = rp__cpu_grain(out->items, products + 100);
    return RP_OK;
}
