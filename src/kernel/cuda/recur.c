/* Host side of recur.cuh: how a layer is shared out among threads and blocks, and its launch record. */
#include "kernel/cuda/recur.h"

#include <string.h>

#include "core/dtype.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"
#include "tensor/tensor.h"

/* THREADS of a block have HELD registers of weights each, 128 KB in all, beside as many for what else they do. A portable cluster is of 8 blocks.
 * WAVES of clusters, one after the other, are the most that is sooner than products of all sequences, a step each: the weights of a wave are
 * multiplied by ROWS sequences at once, so that reading these is what it waits for. */
enum { THREADS = 512, HELD = 64, BLOCKS = 8, ROWS = 4, WAVES = 4, SHARED_BYTES = 48 * 1024 };

typedef struct plan {
    unsigned gates, sums, each, lanes, threads, blocks; /* see recur.cuh */
} plan;

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* As few lanes as hold a unit's weights, then as few blocks as hold all units. The order of a sum follows from cell, direction and units alone. */
static bool make_plan(const rp__device *d, unsigned cell, bool back, rp_dtype dtype, int64_t units, plan *p) {
    const int64_t held = dtype == RP_F64 ? HELD / 2 : HELD, element = (int64_t)rp__dtype_bytes(dtype);
    p->gates = rp__cell_gates(cell);
    p->sums = back ? 1 : p->gates;
    if (units < 1 || units > THREADS * BLOCKS || (dtype != RP_F32 && dtype != RP_F64)) return false;
    const int64_t length = back ? p->gates * units : units;
    for (int64_t lanes = 1; lanes <= 32; lanes *= 2) {
        const int64_t each = up((length + lanes - 1) / lanes, 4);
        if (each * p->sums > held) continue;
        if (2 * ROWS * lanes * each * element > SHARED_BYTES) return false;
        for (int64_t blocks = 1; blocks <= (d->clusters ? BLOCKS : 1); blocks *= 2) {
            const int64_t threads = up((units + blocks - 1) / blocks * lanes, 32);
            if (threads > THREADS) continue;
            p->each = (unsigned)each, p->lanes = (unsigned)lanes;
            p->threads = (unsigned)threads, p->blocks = (unsigned)blocks;
            return true;
        }
    }
    return false;
}

/* Clusters that run side by side. */
static int64_t room_of(const rp__device *d, const plan *p) {
    const int64_t room =
        d->multiprocessors * (int64_t)(THREADS / p->threads > 8 ? 8 : THREADS / p->threads) / p->blocks;
    return room > 1 ? room : 1;
}

int64_t rp__cuda_recurs(rp__device *d, rp__recurrent_cell cell, rp_dtype dtype, int64_t units) {
    plan p, back;
    if (!make_plan(d, cell, false, dtype, units, &p) || !make_plan(d, cell, true, dtype, units, &back)) return 0;
    const int64_t room = room_of(d, &p), back_room = room_of(d, &back);
    return (room < back_room ? room : back_room) * ROWS * WAVES;
}

/* Words of recur.cuh. */
#define WORDS(DO)                                                                                                      \
    DO(STATES)                                                                                                         \
    DO(LAST)                                                                                                           \
    DO(CELLS)                                                                                                          \
    DO(LAST_CELL)                                                                                                      \
    DO(KEPT)                                                                                                           \
    DO(X)                                                                                                              \
    DO(W)                                                                                                              \
    DO(B)                                                                                                              \
    DO(H)                                                                                                              \
    DO(C)                                                                                                              \
    DO(DX)                                                                                                             \
    DO(DY)                                                                                                             \
    DO(DH)                                                                                                             \
    DO(DC) DO(GRAD) DO(GRAD_LAST) DO(GRAD_CELL) DO(STEPS) DO(SEQUENCES) DO(UNITS) DO(REVERSE) DO(X_STEP) DO(X_ROW)
#define WORD(name) W_##name,
enum { WORDS(WORD) N_WORDS };
#define WORD_NAME(name) #name,
static const char *const word_names[N_WORDS] = {WORDS(WORD_NAME)};

enum {
    CELL = 8,
    BACK = 10,
    VECTOR = 11,
    ROW_COUNT = 12,
    SUMS = 16,
    LANES = 20,
    BLOCK_COUNT = 28,
    EACH = 32,
    WARPS = 40
};

static void macros(uint64_t facts, rp__text *out) {
    const bool wide = (rp_dtype)(facts & 0xff) == RP_F64;
    const unsigned cell = facts >> CELL & 3;
    const char *suffix = wide ? "f64" : "f32";
    rp__text_add(
        out,
        "#define RP_T %s\n#define RP_DOUBLE %d\n#define RP_CELL %u\n#define RP_GATES %u\n#define RP_BACK %u\n#define RP_VECTOR %u\n"
        "#define RP_ROWS %u\n#define RP_SUMS %u\n#define RP_LANES %u\n#define RP_BLOCKS %u\n#define RP_EACH %u\n#define RP_THREADS %u\n",
        wide ? "double" : "float", wide, cell, rp__cell_gates(cell), (unsigned)(facts >> BACK & 1),
        (unsigned)(facts >> VECTOR & 1), (unsigned)(facts >> ROW_COUNT & 15), (unsigned)(facts >> SUMS & 15),
        (unsigned)(facts >> LANES & 0xff), (unsigned)(facts >> BLOCK_COUNT & 15), (unsigned)(facts >> EACH & 0xff),
        32 * (unsigned)(facts >> WARPS & 0xff));
    rp__text_add(
        out,
        "#define RP_FMA(a, b, c) rp_fma_%s(a, b, c)\n#define RP_EXP(x) rp_exp_%s(x)\n#define RP_TANH(x) rp_tanh_%s(x)\n"
        "#define RP_SHFL(x, mask, width) rp_shfl_xor_%s(x, mask, width)\n"
        "#define RP_CLUSTER_WRITE(p, x, rank, n) rp_cluster_write_%s(p, x, rank, n)\n",
        suffix, suffix, suffix, suffix, suffix);
    for (unsigned k = 0; k < N_WORDS; k++) rp__text_add(out, "#define W_%s %u\n", word_names[k], k);
    rp__text_add(out, "#define RP_N_WORDS %u\n", (unsigned)N_WORDS);
}

rp_status rp__cuda_recur_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                              const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    static const uint8_t forward_words[10] = {W_STATES, W_LAST, W_CELLS, W_LAST_CELL, W_KEPT, W_X, W_W, W_B, W_H, W_C},
                         back_words[11] = {W_DX,        W_DY,     W_DH,    W_DC,   W_GRAD, W_GRAD_LAST,
                                           W_GRAD_CELL, W_STATES, W_CELLS, W_KEPT, W_W};
    const bool back = op == RP__LIB_RECUR_BACK;
    const unsigned cell = call->recurrence.cell;
    const rp__operand *x = back ? &o[0] : &o[5], *last = back ? &o[2] : &o[1], *w = back ? &o[10] : &o[6];
    plan p;
    const int64_t sequences = last->size[0], units = last->size[1];
    if (sequences * units == 0) return RP_OK;
    if (!make_plan(d, cell, back, x->dtype, units, &p) || sequences > INT32_MAX / BLOCKS || x->size[0] > INT32_MAX - 2)
        return rp__fail(RP_ERROR_UNAVAILABLE, "%s: %lld units do not fit a launch", call->op, (long long)units);
    memset(buffer->words, 0, N_WORDS * sizeof *buffer->words);
    for (size_t k = 0; k < n; k++)
        if (o[k].base)
            rp__operand_slot(&o[k], back ? back_words[k] : forward_words[k],
                             k < (back ? 4u : 5u) ? RP__WRITE : RP__READ, buffer, out);
    uint64_t *words = buffer->words;
    words[W_STEPS] = (uint64_t)x->size[0], words[W_SEQUENCES] = (uint64_t)sequences, words[W_UNITS] = (uint64_t)units;
    words[W_REVERSE] = call->recurrence.reverse;
    words[W_X_STEP] = (uint64_t)x->stride[0], words[W_X_ROW] = (uint64_t)x->stride[1];
    out->n_words = N_WORDS;
    int64_t rows = 1;
    while (rows < ROWS && sequences > rows * room_of(d, &p)) rows *= 2;
    const bool vector = !back && units * (int64_t)rp__dtype_bytes(w->dtype) % 16 == 0 && (uintptr_t)w->base % 16 == 0;
    const rp__text_kernel_key key = {
        .family = "recur",
        .facts = (uint64_t)x->dtype | (uint64_t)cell << CELL | (uint64_t)back << BACK | (uint64_t)vector << VECTOR |
                 (uint64_t)rows << ROW_COUNT | (uint64_t)p.sums << SUMS | (uint64_t)p.lanes << LANES |
                 (uint64_t)p.blocks << BLOCK_COUNT | (uint64_t)p.each << EACH | (uint64_t)p.threads / 32 << WARPS};
    out->grid[0] = (uint32_t)((sequences + rows - 1) / rows * p.blocks);
    out->block[0] = p.threads;
    out->grid[1] = out->grid[2] = out->block[1] = out->block[2] = 1;
    out->shared_bytes = (uint32_t)(2 * rows * p.lanes * p.each * (int64_t)rp__dtype_bytes(x->dtype));
    return rp__text_kernel(d, &key, macros, rp__embed_recur_cuh, rp__embed_recur_cuh_len, &out->kernel);
}
