/* Attention on the CPU: from operands to the words of attention.h; the place of its random numbers, and which weights they keep. */
#include "kernel/cpu/attention.h"

#include <string.h>

#include "core/dtype.h"
#include "device/generator.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/lib.h"
#include "kernel/cpu/tiles.h"

static const rp__attention_isa *current(void) { return RP__ISA_TABLE(rp__attention); }
static int kind_of(const uint64_t *words) {
    return words[RP__ATTENTION_DOTS]              ? RP__ATTENTION_IN_DOTS
           : words[RP__ATTENTION_DTYPE] == RP_F64 ? RP__ATTENTION_IN_F64
                                                  : RP__ATTENTION_IN_F32;
}
static void run_forward(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    current()->forward[kind_of(words)](kernel, words, begin, end);
}
static void run_backward(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    current()->backward[kind_of(words)](kernel, words, begin, end);
}
static rp__kernel forward_kernel = {
    .kind = RP__KERNEL_CPU, .name = "attention", .key = {1, 0x617474656e74}, .cpu = run_forward};
static rp__kernel backward_kernel = {
    .kind = RP__KERNEL_CPU, .name = "attention_backward", .key = {2, 0x617474656e74}, .cpu = run_backward};

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Word `which` and its strides: (b, h, row, feature) as the operand's dims `order` give them. */
static void put(const rp__operand *o, unsigned which, const unsigned *order, uint32_t access, rp__launch_buffer *buffer,
                rp__launch *out) {
    if (!o->base) return;
    rp__operand_slot(o, which, access, buffer, out);
    for (unsigned i = 0; i < 4 && i < o->ndim; i++)
        buffer->words[RP__ATTENTION_STRIDES + 4 * which + i] = (uint64_t)o->stride[order[i]];
}
static const unsigned heads_first[4] = {0, 1, 2, 3}, rows_first[4] = {0, 2, 1, 3};

static rp_status put_problem(const rp__operand *q, const rp__operand *k, const rp__operand *v, const rp__operand *mask,
                             const rp__operand *place, const rp__library_call *call, rp__launch_buffer *buffer,
                             rp__launch *out) {
    if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4 || k->size[1] < 1 || q->size[1] % k->size[1])
        return rp__fail(RP_ERROR_INTERNAL, "%s: operands of attention do not fit", call->op);
    uint64_t *w = buffer->words;
    put(q, RP__ATTENTION_Q, heads_first, RP__READ, buffer, out);
    put(k, RP__ATTENTION_K, heads_first, RP__READ, buffer, out);
    put(v, RP__ATTENTION_V, heads_first, RP__READ, buffer, out);
    put(mask, RP__ATTENTION_MASK, heads_first, RP__READ, buffer, out);
    if (place->base) rp__operand_slot(place, RP__ATTENTION_PLACE, RP__READ, buffer, out);
    w[RP__ATTENTION_BATCH] = (uint64_t)q->size[0], w[RP__ATTENTION_HEADS] = (uint64_t)q->size[1];
    w[RP__ATTENTION_GROUP] = (uint64_t)(q->size[1] / k->size[1]);
    w[RP__ATTENTION_ROWS] = (uint64_t)q->size[2], w[RP__ATTENTION_KEYS] = (uint64_t)k->size[2];
    w[RP__ATTENTION_FEATURES] = (uint64_t)q->size[3], w[RP__ATTENTION_VALUES] = (uint64_t)v->size[3];
    w[RP__ATTENTION_DTYPE] = (uint64_t)q->dtype;
    w[RP__ATTENTION_MASK_KIND] = !mask->base              ? RP__ATTENTION_NO_MASK
                                 : mask->dtype == RP_BOOL ? RP__ATTENTION_BOOL
                                 : mask->dtype == RP_F32  ? RP__ATTENTION_F32
                                                          : RP__ATTENTION_SAME;
    w[RP__ATTENTION_CAUSAL] = call->attention.causal;
    w[RP__ATTENTION_SCALE] = bits_of(call->attention.scale);
    w[RP__ATTENTION_KEEP] = bits_of(1 - call->attention.dropout);
    /* What a block holds fits the scratch of a thread (gemm.h), and mostly the second-level cache. */
    const int64_t most = q->size[3] > v->size[3] ? q->size[3] : v->size[3];
    w[RP__ATTENTION_BLOCK_ROWS] = (most <= 64 ? 96 : most <= 128 ? 48 : 32) / (q->dtype == RP_F64 ? 2 : 1);
    w[RP__ATTENTION_BLOCK_KEYS] = (most <= 128 ? 64 : 32) / (q->dtype == RP_F64 ? 2 : 1);
    if (rp__cpu_dots(q->dtype) && most <= 256) {
        w[RP__ATTENTION_DOTS] = 1;
        w[RP__ATTENTION_BLOCK_ROWS] = most <= 128 ? 128 : 64;
        w[RP__ATTENTION_BLOCK_KEYS] = most <= 128 ? 128 : 64;
    }
    out->n_words = RP__ATTENTION_WORDS;
    return RP_OK;
}

rp_status rp__cpu_attention_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                 const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op, (void)n;
    const rp__operand *y = &o[0], *q = &o[2], *k = &o[3], *v = &o[4];
    uint64_t *w = buffer->words;
    memset(w, 0, RP__ATTENTION_WORDS * sizeof *w);
    if (rp__operand_numel(&o[1]) == 0) return RP_OK;
    put(y, RP__ATTENTION_OUT, rows_first, RP__WRITE, buffer, out);
    put(&o[1], RP__ATTENTION_LSE, heads_first, RP__WRITE, buffer, out);
    RP_TRY(put_problem(q, k, v, &o[5], &o[6], call, buffer, out));
    const int64_t block = (int64_t)w[RP__ATTENTION_BLOCK_ROWS], rows = q->size[2];
    out->items = q->size[0] * q->size[1] * ((rows + block - 1) / block);
    out->grain = rp__cpu_grain(out->items, (double)(rows < block ? rows : block) * (double)(k->size[2] + 1) *
                                               (double)(q->size[3] + v->size[3] + 16) / 8);
    out->kernel = &forward_kernel;
    return RP_OK;
}

size_t rp__cpu_attention_workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                   const rp__library_call *call) {
    (void)d, (void)n, (void)call;
    if (op != RP__LIB_ATTENTION_KEYS) return 0;
    const rp__operand *k = &o[5], *v = &o[6];
    return (size_t)(k->size[0] * k->size[1] * rp__attention_sums(k->size[2]) *
                    (rp__attention_padded(k->size[3]) + rp__attention_padded(v->size[3]))) *
           (k->dtype == RP_F64 ? sizeof(double) : sizeof(float));
}

/* All three gradients at once: QUERIES is nothing. */
rp_status rp__cpu_attention_backward_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                          const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__operand *q = &o[4], *k = &o[5], *v = &o[6];
    uint64_t *w = buffer->words;
    if (op == RP__LIB_ATTENTION_QUERIES) return RP_OK;
    memset(w, 0, RP__ATTENTION_WORDS * sizeof *w);
    for (unsigned i = 0; i < 3; i++) put(&o[i], RP__ATTENTION_DQ + i, rows_first, RP__WRITE, buffer, out);
    put(&o[3], RP__ATTENTION_GRAD, rows_first, RP__READ, buffer, out);
    put(&o[7], RP__ATTENTION_LSE, heads_first, RP__READ, buffer, out);
    put(&o[8], RP__ATTENTION_DELTA, heads_first, RP__READ, buffer, out);
    RP_TRY(put_problem(q, k, v, &o[9], &o[10], call, buffer, out));
    RP_TRY(rp__workspace_slot(call, rp__cpu_attention_workspace(d, op, o, n, call), RP__ATTENTION_SUMS, buffer, out));
    out->items = k->size[0] * k->size[1];
    out->grain = rp__cpu_grain(out->items, (double)(q->size[1] / k->size[1]) * (double)q->size[2] *
                                               (double)(k->size[2] + 1) * (double)(q->size[3] + v->size[3] + 16) / 3);
    if (out->items) out->kernel = &backward_kernel;
    return RP_OK;
}

/* ---- random numbers */

enum { PLACE_OUT, PLACE_STATE, PLACE_SEED, PLACE_INNER, PLACE_WORDS };

static void run_place(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    (void)kernel, (void)begin, (void)end;
    const uint64_t *state = (const uint64_t *)(uintptr_t)w[PLACE_STATE];
    uint64_t *out = (uint64_t *)(uintptr_t)w[PLACE_OUT];
    out[0] = state ? state[0] : w[PLACE_SEED];
    out[1] = (state ? state[1] : 0) + w[PLACE_INNER];
}
static rp__kernel place_kernel = {
    .kind = RP__KERNEL_CPU, .name = "attention_place", .key = {3, 0x617474656e74}, .cpu = run_place};

rp_status rp__cpu_attention_place_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                       const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op, (void)n;
    uint64_t *w = buffer->words;
    rp__operand_slot(&o[0], PLACE_OUT, RP__WRITE, buffer, out);
    w[PLACE_STATE] = (uint64_t)(uintptr_t)call->draw.state, w[PLACE_SEED] = call->draw.seed;
    w[PLACE_INNER] = call->draw.inner;
    out->n_words = PLACE_WORDS;
    out->draw = PLACE_STATE;
    out->n_draws = 1;
    out->items = out->grain = 1;
    out->kernel = &place_kernel;
    return RP_OK;
}

enum { KEEP_OUT, KEEP_PLACE, KEEP_N, KEEP_PROBABILITY, KEEP_WORDS };

/* An item: the four weights of a counter. */
static void run_keep(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    (void)kernel;
    const uint64_t *place = (const uint64_t *)(uintptr_t)w[KEEP_PLACE];
    uint8_t *out = (uint8_t *)(uintptr_t)w[KEEP_OUT];
    double stays;
    memcpy(&stays, &w[KEEP_PROBABILITY], sizeof stays);
    const float keep = (float)stays;
    for (int64_t i = begin; i < end; i++) {
        uint32_t word[4];
        rp__philox(place[0], place[1] + (uint64_t)i, word);
        for (int64_t k = 0; k < 4 && 4 * i + k < (int64_t)w[KEEP_N]; k++)
            out[4 * i + k] = (float)(word[k] >> 8) * 0x1p-24f < keep;
    }
}
static rp__kernel keep_kernel = {
    .kind = RP__KERNEL_CPU, .name = "attention_keep", .key = {4, 0x617474656e74}, .cpu = run_keep};

rp_status rp__cpu_attention_keep_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                      const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op, (void)n;
    uint64_t *w = buffer->words;
    const int64_t numbers = rp__operand_numel(&o[0]);
    if (numbers == 0) return RP_OK;
    rp__operand_slot(&o[0], KEEP_OUT, RP__WRITE, buffer, out);
    rp__operand_slot(&o[1], KEEP_PLACE, RP__READ, buffer, out);
    w[KEEP_N] = (uint64_t)numbers;
    w[KEEP_PROBABILITY] = bits_of(1 - call->attention.dropout);
    out->n_words = KEEP_WORDS;
    out->items = (numbers + 3) / 4;
    out->grain = rp__cpu_grain(out->items, 60);
    out->kernel = &keep_kernel;
    return RP_OK;
}
