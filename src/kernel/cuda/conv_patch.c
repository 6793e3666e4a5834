/* Forward convolutions of f32 rounded to tf32 whose weights lie as they are made (conv_patch.cuh), a part of conv.c's row "mma": which of them,
 * in which tiles, and what that takes. The bits are those of the row's other texts. */
#include <string.h>

#include "core/dtype.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/matmul.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Facts: dtype in the low bits, then these. SPATIAL, BIAS, SPLIT, MMA, DIRECT, OUT_WIDE and OUT_ROWS are where conv.c has them; MMA and DIRECT without
 * VECTORS are these texts. */
enum {
    WINDOW_X = 7, /* less one; three bits */
    SPATIAL = 10,
    BIAS = 12,
    TILE = 13, /* a row of `tiles` */
    SPLIT = 17,
    MMA = 19,
    WINDOW_Y, /* less one; three bits */
    B_ALONG = 23,
    OUT_WIDE,
    STAGES_LOW, /* the logarithm of their number, and its other bit */
    OUT_ROWS,
    JUMP, /* less one; two bits */
    DIRECT = 29,
    VECTORS,
    STAGES_HIGH
};

/* Rows, and of 64 columns those along the last dim. */
static const struct tile {
    uint8_t tm, tw;
} tiles[] = {{32, 8}, {32, 16}, {32, 32}, {32, 64}, {64, 8}, {64, 16}, {64, 32}, {64, 64}};
enum {
    N_TILES = sizeof tiles / sizeof *tiles,
    COLUMNS = 64,
    VECTOR = 16, /* bytes */
    MOST_WINDOW = 8,
    MOST_JUMP = 4,
    MOST_STAGES = 8,
    MOST_DOWN = 65535,    /* blocks of a grid */
    TWO_ROOM = 113 << 10, /* bytes of a block, where a multiprocessor holds two */
    FIRST_FORCED = 32     /* of rp__cuda_conv_tile, these tiles come behind so many */
};

static bool bit(uint64_t facts, unsigned at) { return facts >> at & 1; }
static unsigned field(uint64_t facts, unsigned at, unsigned bits) {
    return (unsigned)(facts >> at) & ((1u << bits) - 1);
}
static int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool rp__conv_is_patch(uint64_t facts) { return bit(facts, MMA) && bit(facts, DIRECT) && !bit(facts, VECTORS); }

static unsigned stages_of(uint64_t facts) { return 1u << (bit(facts, STAGES_LOW) + 2u * bit(facts, STAGES_HIGH)); }

/* Bytes of a step in shared memory. */
static uint32_t stage_bytes(uint64_t facts) {
    const struct tile *t = &tiles[field(facts, TILE, 4)];
    const uint32_t wx = field(facts, WINDOW_X, 3) + 1, wy = field(facts, WINDOW_Y, 3) + 1,
                   jump = field(facts, JUMP, 2) + 1, high = (COLUMNS / t->tw - 1u) * jump + wy,
                   places = high * ((t->tw - 1u) * jump + wx);
    const uint32_t a = t->tm * (RP__CONV_ROUNDED_CHUNK * wx * wy + 4),
                   b = bit(facts, B_ALONG) ? places * (RP__CONV_ROUNDED_CHUNK + 4)
                                           : RP__CONV_ROUNDED_CHUNK * ((places + 23) / 32 * 32 + 8);
    return (a + b) * 4;
}

static uint32_t room_of(uint64_t facts) {
    const struct tile *t = &tiles[field(facts, TILE, 4)];
    const uint32_t tiled = stages_of(facts) * stage_bytes(facts), rows = COLUMNS * (t->tm + 4u) * 4,
                   columns = t->tm * (COLUMNS + 4u) * 4, out = bit(facts, OUT_ROWS) ? rows : columns;
    return tiled > out ? tiled : out;
}

void rp__conv_patch_macros(uint64_t facts, rp__text *out) {
    const struct tile *t = &tiles[field(facts, TILE, 4)];
    const unsigned split = 1u << field(facts, SPLIT, 2);
    rp__text_kernel_dtype(RP_F32, out);
    rp__text_add(out, "#define RP_KIND 0\n#define RP_SPATIAL %u\n#define RP_BIAS %d\n#define RP_REST %u\n",
                 field(facts, SPATIAL, 2), bit(facts, BIAS), (unsigned)(facts >> 32));
    rp__text_add(out, "#define RP_INDEX rp_i32\n#define RP_SPLIT %u\n#define RP_PARTS 0\n#define RP_CLASSES 0\n",
                 split);
    rp__text_add(
        out,
        "#define RP_B_ALONG %d\n#define RP_OUT_WIDE %d\n#define RP_OUT_ROWS %d\n#define RP_TF32 1\n#define RP_EVEN 1\n",
        bit(facts, B_ALONG), bit(facts, OUT_WIDE), bit(facts, OUT_ROWS));
    rp__text_add(out,
                 "#define RP_TM %u\n#define RP_TN %d\n#define RP_TW %u\n#define RP_WM %u\n#define RP_THREADS 256\n",
                 t->tm, COLUMNS, t->tw, t->tm / 16u);
    rp__text_add(out, "#define RP_CHUNK %d\n#define RP_STAGES %u\n#define RP_RESIDENT %d\n", RP__CONV_ROUNDED_CHUNK,
                 stages_of(facts), room_of(facts) <= TWO_ROOM ? 2 : 1);
    rp__text_add(out, "#define RP_WINDOW_Y %u\n#define RP_WINDOW_X %u\n#define RP_JUMP %u\n",
                 field(facts, WINDOW_Y, 3) + 1, field(facts, WINDOW_X, 3) + 1, field(facts, JUMP, 2) + 1);
    rp__text_puts(out, "#define RP_TK RP_CHUNK\n#define RP_MMA_STEP(d, a, b) rp_mma_m16n8k8_tf32(d, a, b)\n");
    if (split > 1)
        rp__text_add(out,
                     "#define RP_CLUSTER __cluster_dims__(%u, 1, 1)\n"
                     "#define RP_CLUSTER_READ(p, r, n) rp_cluster_read_f32(p, r, n)\n",
                     split);
    else
        rp__text_puts(out, "#define RP_CLUSTER\n");
    rp__text_write(out, rp__embed_conv_common_cuh, rp__embed_conv_common_cuh_len);
    rp__text_write(out, rp__embed_mma_cuh, rp__embed_mma_cuh_len);
}

/* Is a row of the weights one run: channels, with all their taps side by side? */
static bool is_run(const rp__operand *w, int64_t taps) {
    int64_t stride = 1;
    for (unsigned d = w->ndim; d-- > 2; stride *= w->size[d])
        if (w->size[d] > 1 && w->stride[d] != stride) return false;
    return (uintptr_t)w->base % VECTOR == 0 && w->stride[1] == taps &&
           (w->size[0] <= 1 || w->stride[0] * (int64_t)rp__dtype_bytes(w->dtype) % VECTOR == 0);
}

/* What a tile takes in us (an H200: gpu_kernels --conv-tile 33 to 40): what begins and ends a kernel; steps, whose taps are read out of shared memory
 * again and again, so that blocks that a multiprocessor holds at once do not hide each other's; and what begins and ends a block whose place
 * another had. */
static double time_of(const rp__conv_extent *e, const rp__device *d, uint64_t facts, int64_t columns, int64_t steps) {
    static const double ENDS = 7, SHARES = 0.8, AGAIN = 4.5, STEP[2] = {0.7, 1}, TAP[2] = {0.29, 0.44};
    const struct tile *t = &tiles[field(facts, TILE, 4)];
    const unsigned high = t->tm / 64u, split = field(facts, SPLIT, 2);
    const int64_t blocks = (columns * over(e->m, t->tm) * e->groups) << split, room = rp__cuda_in_clusters(d, split),
                  held = room_of(facts) <= TWO_ROOM ? 2 : 1, turns = over(blocks, room * held),
                  each = turns > 1 ? held : over(blocks, room);
    return ENDS + (split ? SHARES : 0) + (double)(turns - 1) * AGAIN +
           (double)(turns * each * steps) * (STEP[high] + TAP[high] * (double)e->taps);
}

bool rp__conv_patch_plan(const rp__conv_extent *e, const rp__operand *w, const rp__conv_geometry *conv,
                         const rp__operand *y, bool along, const rp__device *d, unsigned split, unsigned only,
                         rp__conv_patch *out) {
    const int64_t chunk = RP__CONV_ROUNDED_CHUNK;
    const int64_t out_high = e->spatial == 2 ? y->size[2] : 1, out_wide = y->size[e->spatial + 1];
    const unsigned last = e->spatial + 1;
    if (e->kind != 0 || e->spatial > 2 || e->cg == 0 || e->cg % chunk || w->dtype != RP_F32) return false;
    for (unsigned k = 0; k < e->spatial; k++)
        if (conv->dilation[k] != 1 || conv->stride[k] != conv->stride[0] || conv->stride[k] > MOST_JUMP ||
            w->size[2 + k] > MOST_WINDOW)
            return false;
    if (!is_run(w, e->taps)) return false;
    const int64_t steps = over(e->cg / chunk, INT64_C(1) << split);
    const uint64_t common = (uint64_t)RP_F32 | (uint64_t)(w->size[last] - 1) << WINDOW_X |
                            (uint64_t)e->spatial << SPATIAL | (uint64_t)split << SPLIT | UINT64_C(1) << MMA |
                            (uint64_t)(e->spatial == 2 ? w->size[2] - 1 : 0) << WINDOW_Y | (uint64_t)along << B_ALONG |
                            (uint64_t)(conv->stride[0] - 1) << JUMP | UINT64_C(1) << DIRECT;
    bool any = false;
    for (unsigned k = 0; k < N_TILES; k++) {
        const struct tile *t = &tiles[k];
        if (e->spatial == 1 && t->tw != COLUMNS) continue;
        if (only && only != k + 1) continue;
        uint64_t facts = common | (uint64_t)k << TILE;
        const uint32_t stage = stage_bytes(facts);
        const size_t two = steps > 1 ? 2 * (size_t)stage : stage,
                     most = two <= TWO_ROOM && d->shared_limit > TWO_ROOM ? TWO_ROOM : d->shared_limit;
        unsigned stages = 0; /* their logarithm */
        while (2 << stages <= MOST_STAGES && 1 << stages < steps && (size_t)stage << (stages + 1) <= most) stages++;
        facts |= (uint64_t)(stages & 1) << STAGES_LOW | (uint64_t)(stages >> 1) << STAGES_HIGH;
        if (room_of(facts) > d->shared_limit) continue;
        const int64_t columns = e->batch * over(out_high, COLUMNS / t->tw) * over(out_wide, t->tw);
        if (columns << split > INT32_MAX || over(e->m, t->tm) > MOST_DOWN) continue;
        const double time = time_of(e, d, facts, columns, steps);
        if (any && time >= out->us) continue;
        any = true;
        *out = (rp__conv_patch){.facts = facts, .us = time, .columns = columns << split, .rows = over(e->m, t->tm)};
    }
    return any;
}

uint32_t rp__conv_patch_leaves(rp__conv_patch *p, bool bias, bool rows, bool eight) {
    p->facts |= (uint64_t)bias << BIAS | (uint64_t)rows << OUT_ROWS | (uint64_t)eight << OUT_WIDE;
    return room_of(p->facts);
}
