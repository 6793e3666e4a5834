/* Convolutions on CUDA: forward, input gradient and weight gradient by one text a template: "simt" (conv.cuh), and "mma", tensor cores
 * for 16-bit floats and, where the program lets float32 round to tf32, for these, whose operands conv_mma.cuh reads in vectors where they allow it
 * and conv.cuh one by one elsewhere. Here: which tile,
 * which way operands are read and into how many shares the inner index is split, all functions of sizes, strides, dtype and kind of
 * device. */
#include <math.h>
#include <string.h>

#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/matmul.h"
#include "kernel/cuda/tensor_map.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Facts of a text: dtype in the low bits, then these; the words that follow from bit 32 on. */
enum {
    SLICED = 7, /* f32 by fma, conv.cuh: TILE is a row of `sliced` */
    KIND = 8,
    SPATIAL = 10,
    BIAS = 12,
    TILE = 13,  /* a row of `shapes` */
    SPLIT = 17, /* its logarithm */
    MMA = 19,
    WIDE,    /* 64-bit offsets */
    A_ALONG, /* of the operand without windows: read along the inner index; B: with windows */
    CLASSES,
    B_ALONG,
    OUT_WIDE,
    SAME,
    OUT_ROWS,
    LONG,
    LONGER,
    DIRECT,
    VECTORS,               /* conv_mma.cuh, which with conv_few.cuh and conv_patch.cuh has OUT_WIDE */
    PARTS,                 /* sums of shares stay in memory (conv_shares.c), of weight gradients */
    EVEN = PARTS,          /* of others: f32 is rounded half to even, as bulk copies do */
    WEIGHT_EVEN = CLASSES, /* the same of weight gradients */
    ROWS = TILE,           /* of DIRECT */
    MASKS = OUT_WIDE,      /* conv.cuh alone */
    NEAR = DIRECT,         /* conv_mma.cuh alone: RP_MASKS */
    FEW = LONG,            /* of MMA: conv_few.cuh; then TILE is a row of `few_tiles` */
    WHOLE = LONGER,        /* and rows of the picture are whole vectors */
    PAIRS = SAME,          /* and neighbours of the inner index lie in pairs */
    A_ONE = LONGER,        /* of VECTORS: weights of f32 come one by one */
    POINT = SLICED         /* and the window is the pixel itself: RP_POINT */
};

/* tm rows by tn columns; threads, of fma so many of them side by side, of tensor cores warps above each other. */
struct tile {
    uint16_t tm, tn, threads, tx, wm,
        rate; /* of f32: percents of the rate of fma. What a thread reads of shared memory in 16 bytes takes four clocks of a
                 multiprocessor, 32 threads' fma a quarter of one: 8 x 8 results a thread are as much of either */
    uint16_t slices; /* groups of threads, of which each takes FMA_SLICE of each step of the inner index */
};
static const struct tile shapes[] = {
    {128, 128, 256, 16, 0, 78, 1}, {128, 64, 128, 8, 0, 75, 1}, {64, 128, 128, 16, 0, 75, 1},
    {32, 128, 64, 16, 0, 68, 1},   {64, 64, 128, 16, 0, 56, 1}, {64, 32, 128, 8, 0, 40, 1},
    {32, 64, 128, 16, 0, 40, 1},   {32, 32, 128, 8, 0, 25, 1},  {8, 128, 128, 32, 0, 24, 1},
    {8, 64, 64, 16, 0, 24, 1}, /* fma */
    {128, 128, 256, 0, 2, 0, 1},   {64, 128, 256, 0, 2, 0, 1},  {64, 64, 256, 0, 2, 0, 1},
    {32, 128, 256, 0, 2, 0, 1},    {32, 64, 256, 0, 2, 0, 1},   {16, 128, 256, 0, 1, 0, 1}, /* tensor cores */
};
/* Where a result has few tiles: large pieces for each of many threads. */
static const struct tile sliced[] = {
    {64, 64, 256, 8, 0, 76, 4},   {32, 64, 256, 8, 0, 74, 8},   {64, 32, 256, 4, 0, 74, 8},
    {32, 64, 128, 8, 0, 74, 4},   {64, 32, 128, 4, 0, 74, 4},   {32, 32, 256, 8, 0, 50, 8},
    {16, 128, 128, 16, 0, 70, 4}, {16, 128, 256, 16, 0, 70, 8}, {8, 128, 128, 32, 0, 45, 4},
};
enum { N_SLICED = sizeof sliced / sizeof *sliced, FMA_SLICE = 4 };
enum { FIRST_MMA = 10, N_TILES = sizeof shapes / sizeof *shapes, MMA_TK = 32, TF32_TK = 16, FMA_TK = 16, STAGES = 3 };
/* Shares of the inner index are made of so many elements. */
enum { MMA_UNIT = MMA_TK, MMA_CHUNK = 64, FMA_UNIT = FMA_TK, DIRECT_ROWS = 4 };

/* Tiles of conv_mma.cuh: warps above each other, steps of the inner index, stages, blocks that a multiprocessor holds; and the rate that the
 * tensor cores reach in such a tile where there are enough of them, in percent of the best one without warpgroups (an H200). Of the last ones
 * warpgroups make products: wm of them are above each other. */
static const struct vector_tile {
    uint16_t tm, tn, wm, tk, stages, resident, rate;
} vector_tiles[] = {
    {128, 256, 2, 64, 3, 1, 100}, {128, 128, 2, 64, 3, 2, 100}, {64, 256, 2, 32, 4, 2, 85},
    {64, 128, 2, 64, 3, 2, 90},   {64, 64, 2, 64, 4, 2, 60},    {32, 256, 1, 32, 4, 2, 60},
    {32, 128, 1, 32, 4, 3, 45},   {32, 64, 2, 64, 4, 3, 40},    {16, 256, 1, 32, 4, 2, 40},
    {16, 128, 1, 32, 4, 3, 30},   {128, 256, 2, 64, 4, 1, 250}, {128, 128, 2, 64, 3, 2, 210},
    {64, 256, 1, 64, 5, 1, 180},  {64, 128, 1, 64, 4, 2, 170},  {128, 192, 2, 64, 5, 1, 240},
    {64, 128, 1, 64, 3, 3, 175},
};
enum {
    N_VECTOR_TILES = sizeof vector_tiles / sizeof *vector_tiles,
    FIRST_GROUP_TILE = 10,
    EVEN_TILE = 14, /* of vectors along the inner index alone: its columns are no power of two */
    SHORT_TILE,     /* of one step, and as much shared memory */
    VECTOR_TAPS = 128,
    PIXELS = 512 /* found at once by a weight gradient */
};

/* Tiles of conv_few.cuh: rows, and of their 256 columns those along the last dim, the same ones of all rows. */
static const struct few_tile {
    uint16_t tm, tw;
} few_tiles[] = {{16, 8},  {16, 16},  {16, 32}, {16, 256}, {32, 8},  {32, 16},
                 {32, 32}, {32, 256}, {64, 8},  {64, 16},  {64, 32}, {64, 256}};
enum { FEW_TILES = sizeof few_tiles / sizeof *few_tiles, FEW_COLUMNS = 256, FEW_CHANNELS = 8, FEW_RESIDENT = 2 };

static bool bit(uint64_t facts, unsigned at) { return facts >> at & 1; }
static rp_dtype dtype_of(uint64_t facts) { return (rp_dtype)(facts & 0x7f); }
static const struct tile *tile_at(uint64_t facts) {
    return bit(facts, DIRECT)   ? &shapes[0]
           : bit(facts, SLICED) ? &sliced[facts >> TILE & 15]
                                : &shapes[facts >> TILE & 15];
}

/* float32 on tensor cores. */
static bool is_tf32(uint64_t facts) { return bit(facts, MMA) && dtype_of(facts) == RP_F32; }
static unsigned depth_of(uint64_t facts) {
    if (bit(facts, SLICED)) return tile_at(facts)->slices * FMA_SLICE;
    return is_tf32(facts) ? TF32_TK : bit(facts, MMA) ? MMA_TK : dtype_of(facts) == RP_F64 ? FMA_TK / 2 : FMA_TK;
}
/* f32 and f64 go straight into shared memory, far ahead of their use; others wait in registers for a step. */
static bool is_async(uint64_t facts) { return dtype_of(facts) == RP_F32 || dtype_of(facts) == RP_F64; }
/* Of slices as many as fit where their sums go through shared memory: what a block reads is far away. */
static unsigned stages_of(uint64_t facts) {
    enum { MOST = 8, PADS = 8 };
    if (!bit(facts, SLICED)) return is_async(facts) ? STAGES : 2;
    const struct tile *t = tile_at(facts);
    const unsigned sums = t->slices * t->tm * (t->tn + 4u), fit = sums / (depth_of(facts) * (t->tm + t->tn + PADS));
    return fit < STAGES ? STAGES : fit > MOST ? MOST : fit;
}

/* Bytes of conv.cuh's `room`: tiles with their padding, or the rows of results that leave at once. */
static uint32_t room_of(uint64_t facts) {
    const struct tile *t = tile_at(facts);
    const unsigned k = depth_of(facts),
                   bytes = (unsigned)rp__dtype_bytes(bit(facts, MMA) || dtype_of(facts) == RP_F64 ? dtype_of(facts)
                                                                                                  : RP_F32),
                   pad = 16 / bytes;
    const unsigned a = !bit(facts, MMA) ? k * (t->tm + pad) : bit(facts, A_ALONG) ? t->tm * (k + pad) : k * (t->tm + 8);
    const unsigned b = !bit(facts, MMA) ? k * (t->tn + pad) : bit(facts, B_ALONG) ? t->tn * (k + pad) : k * (t->tn + 8);
    const unsigned rows = bit(facts, MMA)      ? 16u * t->wm
                          : bit(facts, SLICED) ? (unsigned)t->tm * t->slices
                                               : t->threads / t->tx,
                   tiled = stages_of(facts) * (a + b) * bytes, out = rows * (t->tn + 4) * (bytes == 8 ? 8 : 4);
    return tiled > out ? tiled : out;
}

static bool is_few(uint64_t facts) {
    return bit(facts, MMA) && bit(facts, FEW) && !bit(facts, VECTORS) && !rp__conv_is_patch(facts);
}
static bool takes_lanes(uint64_t facts) {
    return (bit(facts, VECTORS) || is_few(facts) || rp__conv_is_patch(facts)) && bit(facts, OUT_WIDE);
}
static const struct vector_tile *vector_tile_at(uint64_t facts) { return &vector_tiles[facts >> TILE & 15]; }
static bool is_group(uint64_t facts) { return bit(facts, VECTORS) && (facts >> TILE & 15) >= FIRST_GROUP_TILE; }
/* Of f32 for warpgroups one tile is multiplied, one stored, and one may still be read. */
static unsigned vector_stages(uint64_t facts) {
    return is_group(facts) && is_tf32(facts) ? 3 : vector_tile_at(facts)->stages;
}
static unsigned tiles_of(uint64_t facts) { return (facts >> TILE & 15) == SHORT_TILE ? 1 : vector_stages(facts); }

/* Of conv_mma.cuh: elements of a step of a tile, which is as many bytes of either type. */
static unsigned vector_depth(uint64_t facts, const struct vector_tile *t) {
    return is_tf32(facts) ? t->tk / 2u : t->tk;
}

static uint32_t vector_room(uint64_t facts) {
    const struct vector_tile *t = vector_tile_at(facts);
    if (is_group(facts)) /* and the spots of columns, taps or pixels, with offsets of 4 bytes, and results */
        return tiles_of(facts) * (t->tm + t->tn) * t->tk * 2u + t->tn * 32u +
               ((facts >> KIND & 3) == 2 ? PIXELS * 20u + 512 : VECTOR_TAPS * 20u);
    const unsigned k = vector_depth(facts, t), bytes = (unsigned)rp__dtype_bytes(dtype_of(facts)), pad = 16 / bytes;
    const unsigned a = bit(facts, A_ALONG) ? t->tm * (k + pad) : k * (t->tm + 8u);
    const unsigned b = bit(facts, B_ALONG) ? t->tn * (k + pad) : k * (t->tn + 8u);
    const unsigned rows = 16u * t->wm, tiled = t->stages * (a + b) * bytes,
                   out = (bit(facts, OUT_ROWS) ? t->tn * (rows + 4u) : rows * (t->tn + 4u)) * 4u;
    return tiled > out ? tiled : out;
}

/* Elements of the inner index of which shares are made. */
static unsigned unit_of(uint64_t facts) {
    return bit(facts, MMA) ? MMA_UNIT : bit(facts, SLICED) ? depth_of(facts) : FMA_UNIT;
}

/* What both texts ask for, and what they have in common. */
static void common_macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = dtype_of(facts);
    const unsigned split = 1u << (facts >> SPLIT & 3);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_KIND %u\n#define RP_SPATIAL %u\n#define RP_BIAS %u\n#define RP_REST %u\n",
                 (unsigned)(facts >> KIND & 3), (unsigned)(facts >> SPATIAL & 3), (unsigned)bit(facts, BIAS),
                 (unsigned)(facts >> 32));
    rp__text_add(out, "#define RP_INDEX %s\n#define RP_SPLIT %u\n#define RP_A_ALONG %d\n#define RP_B_ALONG %d\n",
                 bit(facts, WIDE) ? "rp_i64" : "rp_i32", split, bit(facts, A_ALONG), bit(facts, B_ALONG));
    rp__text_add(out, "#define RP_SAME %d\n#define RP_OUT_ROWS %d\n#define RP_PARTS %d\n#define RP_UNIT %d\n",
                 bit(facts, SAME), bit(facts, OUT_ROWS), bit(facts, PARTS) && (facts >> KIND & 3) == 2, unit_of(facts));
    rp__text_add(out, "#define RP_EVEN %d\n", bit(facts, (facts >> KIND & 3) == 2 ? WEIGHT_EVEN : EVEN));
    rp__text_add(out, "#define RP_OUT_WIDE %d\n#define RP_CLASSES %d\n", takes_lanes(facts),
                 bit(facts, CLASSES) && (facts >> KIND & 3) != 2);
    rp__text_add(out, "#define RP_MAPS %u\n", rp__conv_is_bulk(facts) ? rp__conv_bulk_tile_of(facts).maps : 0);
    rp__text_add(out, "#define RP_TF32 %d\n#define RP_CHUNK %d\n", is_tf32(facts),
                 is_tf32(facts)    ? RP__CONV_ROUNDED_CHUNK
                 : bit(facts, MMA) ? MMA_CHUNK
                                   : 1);
    if (bit(facts, MMA))
        rp__text_add(out, "#define RP_MMA_STEP(d, a, b) rp_mma_%s_%s(d, a, b)\n",
                     is_tf32(facts) ? "m16n8k8" : "m16n8k16", is_tf32(facts) ? "tf32" : rp__dtypes[dtype].short_name);
    if (split > 1)
        rp__text_add(
            out,
            "#define RP_CLUSTER __cluster_dims__(%u, 1, 1)\n#define RP_CLUSTER_READ(p, r, n) rp_cluster_read_%s(p, r, n)\n",
            split, dtype == RP_F64 ? "f64" : "f32");
    else
        rp__text_puts(out, "#define RP_CLUSTER\n");
    rp__text_write(out, rp__embed_conv_common_cuh, rp__embed_conv_common_cuh_len);
}

/* Behind the macros of the tile. */
static void add_tile(uint64_t facts, rp__text *out) {
    rp__text_write(out, rp__embed_mma_cuh, rp__embed_mma_cuh_len);
    if (!is_group(facts)) rp__text_write(out, rp__embed_conv_tile_cuh, rp__embed_conv_tile_cuh_len);
}

/* nvrtc.c looks for the names of instructions of warpgroups. */
static void group_macros(uint64_t facts, unsigned columns, bool own, rp__text *out) {
    rp__text_add(
        out,
        "#define RP_WG_STEP rp_wgmma_n%u_%s%s\n#define RP_WG_DESC rp_wgmma_desc\n#define RP_WG_FENCE rp_wgmma_fence\n"
        "#define RP_WG_COMMIT rp_wgmma_commit\n#define RP_WG_WAIT rp_wgmma_wait\n#define RP_WG_HOLD rp_wgmma_hold\n",
        columns, is_tf32(facts) ? "tf32" : rp__dtypes[dtype_of(facts)].short_name, own ? "_ra" : "");
}

static void vector_macros(uint64_t facts, rp__text *out) {
    const struct vector_tile *t = vector_tile_at(facts);
    common_macros(facts, out);
    rp__text_add(out, "#define RP_TM %d\n#define RP_TN %d\n#define RP_TK %d\n#define RP_WM %d\n#define RP_STAGES %d\n",
                 t->tm, t->tn, vector_depth(facts, t), t->wm, vector_stages(facts));
    rp__text_add(out, "#define RP_THREADS 256\n#define RP_RESIDENT %d\n#define RP_TAPS %d\n#define RP_TILES %u\n",
                 t->resident, VECTOR_TAPS, tiles_of(facts));
    rp__text_add(out, "#define RP_A_ONE %d\n", bit(facts, A_ONE));
    rp__text_add(out, "#define RP_WG %d\n#define RP_MASKS %d\n#define RP_POINT %d\n", is_group(facts), bit(facts, NEAR),
                 bit(facts, POINT));
    if (is_group(facts)) group_macros(facts, t->tn * t->wm / 2u, false, out);
    add_tile(facts, out);
    rp__text_write(out, rp__embed_conv_leave_cuh, rp__embed_conv_leave_cuh_len);
}

static void bulk_macros(uint64_t facts, rp__text *out) {
    const rp__conv_bulk_tile t = rp__conv_bulk_tile_of(facts);
    common_macros(facts, out);
    rp__text_add(out, "#define RP_TM %u\n#define RP_TN %u\n#define RP_TK %u\n#define RP_WM %u\n#define RP_STAGES %u\n",
                 t.tm, t.tn, 128u / (unsigned)rp__dtype_bytes(dtype_of(facts)), t.wm, t.stages);
    rp__text_add(
        out, "#define RP_RESIDENT %u\n#define RP_TILES %u\n#define RP_WG 1\n#define RP_BESIDE\n#define RP_POINT %d\n",
        t.resident, t.stages, bit(facts, POINT));
    group_macros(facts, t.tn * t.wm / 2, is_tf32(facts) && !bit(facts, A_ALONG), out);
    rp__text_write(out, rp__embed_conv_leave_cuh, rp__embed_conv_leave_cuh_len);
}
static void bulk_weight_macros(uint64_t facts, rp__text *out) {
    const rp__conv_bulk_tile t = rp__conv_bulk_tile_of(facts);
    common_macros(facts, out);
    rp__text_add(out, "#define RP_TM %u\n#define RP_TN %u\n#define RP_TK 32\n#define RP_WM %u\n#define RP_STAGES %u\n",
                 t.tm, t.tn, t.wm, t.stages);
    rp__text_add(out, "#define RP_RESIDENT %u\n#define RP_TILES %u\n#define RP_WG 0\n#define RP_BESIDE\n", t.resident,
                 t.stages);
    rp__text_puts(out, "/* rp_wgmma_: of sm_90a */\n");
    rp__text_write(out, rp__embed_conv_panels_cuh, rp__embed_conv_panels_cuh_len);
    rp__text_write(out, rp__embed_conv_leave_cuh, rp__embed_conv_leave_cuh_len);
}

static void few_macros(uint64_t facts, rp__text *out) {
    const struct few_tile *t = &few_tiles[facts >> TILE & 15];
    common_macros(facts, out);
    rp__text_add(out, "#define RP_TM %d\n#define RP_TW %d\n#define RP_ROWS_WHOLE %d\n#define RP_PAIRS %d\n", t->tm,
                 t->tw, bit(facts, WHOLE), bit(facts, PAIRS));
}

static void macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = dtype_of(facts);
    const struct tile *tile = tile_at(facts);
    common_macros(facts, out);
    rp__text_add(out, "#define RP_TM %u\n#define RP_TN %u\n#define RP_TK %u\n#define RP_TX %u\n#define RP_WM %u\n",
                 tile->tm, tile->tn, depth_of(facts), tile->tx, tile->wm);
    rp__text_add(out, "#define RP_MMA %d\n#define RP_ASYNC %d\n#define RP_MASKS %d\n", bit(facts, MMA), is_async(facts),
                 bit(facts, MASKS));
    if (is_async(facts))
        rp__text_add(out, "#define RP_COPY(to, from, ok) rp_cp_async_%u_zfill(to, from, (ok) ? %u : 0)\n",
                     (unsigned)rp__dtype_bytes(dtype), (unsigned)rp__dtype_bytes(dtype));
    const unsigned results =
        tile->tm * tile->tn / tile->threads * (dtype == RP_F64 ? 2u : tile->slices); /* a thread's, in registers */
    /* several blocks hide each other's loads; where registers have no room for sums of blocks, memory has. Threads of 8 x 8 results that a
       multiprocessor holds: with wide offsets, or places and sums of groups, they need more registers. */
    const unsigned threads = bit(facts, WIDE) ? 256 : bit(facts, LONGER) || !bit(facts, MASKS) ? 384 : 512;
    const unsigned resident = bit(facts, DIRECT)     ? 3
                              : bit(facts, MMA)      ? (tile->tm * tile->tn <= 64 * 128 ? 2 : 1)
                              : results > 64         ? 1
                              : bit(facts, SLICED)   ? (bit(facts, WIDE) ? 256u : 512u) / tile->threads
                              : dtype == RP_F64      ? 2
                              : tile->threads == 64  ? (bit(facts, WIDE) ? 4 : 6)
                              : tile->threads == 256 ? (bit(facts, WIDE) ? 1 : 2)
                              : results == 64        ? threads / 128
                              : bit(facts, LONG)     ? (bit(facts, WIDE) ? 2 : 3)
                                                     : 4;
    rp__text_add(out, "#define RP_STAGES %u\n#define RP_DIRECT %d\n#define RP_RESIDENT %u\n#define RP_THREADS %u\n",
                 stages_of(facts), bit(facts, DIRECT), resident, bit(facts, DIRECT) ? 256u : tile->threads);
    rp__text_add(out, "#define RP_ASIDE %s\n", !bit(facts, MMA) && results >= 64 ? "volatile" : "");
    rp__text_add(out, "#define RP_LONG %d\n#define RP_LONGER %d\n#define RP_SLICES %d\n", bit(facts, LONG),
                 bit(facts, LONGER), tile->slices);
    if (tile->slices > 1) rp__text_write(out, rp__embed_slices_cuh, rp__embed_slices_cuh_len);
    if (bit(facts, DIRECT)) rp__text_add(out, "#define RP_ROWS %d\n", (int)(facts >> ROWS & 15));
    if (bit(facts, MMA)) add_tile(facts, out);
}

int64_t rp__conv_common(int64_t step, int64_t dilation) {
    while (dilation) {
        const int64_t left = step % dilation;
        step = dilation, dilation = left;
    }
    return step;
}

rp__conv_extent rp__conv_extents(rp__library_op op, const rp__operand *y, const rp__operand *x, const rp__operand *w,
                                 const rp__conv_geometry *conv) {
    rp__conv_extent e = {.kind = op == RP__LIB_CONV_FORWARD ? 0
                                 : op == RP__LIB_CONV_INPUT ? 1
                                                            : 2,
                         .spatial = conv->spatial,
                         .groups = conv->groups,
                         .batch = x->size[0],
                         .in = 1,
                         .points = 1,
                         .taps = 1};
    e.cg = e.groups ? x->size[1] / e.groups : 0;
    e.og = e.groups ? w->size[0] / e.groups : 0;
    for (unsigned k = 0; k < e.spatial; k++) {
        e.in *= x->size[2 + k];
        e.points *= y->size[2 + k];
        e.taps *= w->size[2 + k];
    }
    e.m = e.kind == 1 ? e.cg : e.og;
    e.n = e.kind == 0 ? e.batch * e.points : e.kind == 1 ? e.batch * e.in : e.cg * e.taps;
    e.k = e.kind == 0 ? e.cg * e.taps : e.kind == 1 ? e.og * e.taps : e.batch * e.points;
    e.classes = e.busy = 1, e.class_n = e.n, e.class_taps = e.taps;
    if (e.kind == 1 && e.m && e.n) { /* places that a step apart have taps in common, which are a period apart */
        e.class_n = e.batch, e.class_taps = 1;
        for (unsigned d = 0; d < e.spatial; d++) {
            const int64_t step = conv->stride[d], in = x->size[2 + d];
            const int64_t common = rp__conv_common(step, conv->dilation[d]);
            e.strided = e.strided || step > 1;
            const int64_t classes = step < in ? step : in;
            e.classes *= classes;
            e.busy *= classes < w->size[2 + d] ? classes : w->size[2 + d];
            e.class_n *= (in + step - 1) / step;
            e.class_taps *= (w->size[2 + d] + step / common - 1) / (step / common);
        }
    }
    e.class_k = e.kind == 2 ? e.k : e.k / (e.taps ? e.taps : 1) * e.class_taps;
    return e;
}

/* y, x and w of a problem. */
rp__conv_extent rp__conv_sort(const rp__problem *p, const rp__operand **sorted) {
    static const unsigned order[3][3] = {{0, 1, 2}, {1, 0, 2}, {1, 2, 0}};
    for (unsigned k = 0; k < 3; k++) sorted[k] = &p->o[order[p->op - RP__LIB_CONV_FORWARD][k]];
    return rp__conv_extents(p->op, sorted[0], sorted[1], sorted[2], &p->call->conv);
}

/* Do places, or offsets on their way to one, need 64 bits? */
bool rp__conv_is_wide(const rp__operand *const *o, const rp__conv_geometry *conv) {
    const int64_t limit = INT32_MAX / 4;
    for (unsigned t = 0; t < 3; t++) {
        int64_t reach = 0;
        for (unsigned d = 0; d < o[t]->ndim; d++) {
            int64_t size = o[t]->size[d], stride = o[t]->stride[d] < 0 ? -o[t]->stride[d] : o[t]->stride[d];
            if (d >= 2) { /* a window may begin before its operand, and end behind it */
                if (conv->padding[d - 2] > limit || conv->padding[d - 2] < -limit || conv->dilation[d - 2] > 1000 ||
                    conv->stride[d - 2] > 1000)
                    return true;
                size += 2 * (conv->padding[d - 2] < 0 ? -conv->padding[d - 2] : conv->padding[d - 2]);
            }
            if (size > limit || (stride && size > limit / stride)) return true;
            reach += size * stride;
            if (reach > limit) return true;
        }
    }
    return false;
}

/* Elements of 16 bytes: of a 16-bit float or of f32. */
static int64_t vector_of(const rp__operand *o) { return 16 / (int64_t)rp__dtype_bytes(o->dtype); }

/* May as many neighbours along a dim of stride 1 be read at once, wherever the others stand? */
static bool is_aligned(const rp__operand *o, unsigned along) {
    if ((uintptr_t)o->base % 16 || o->stride[along] != 1 || !rp__dtype_is_float(o->dtype) || o->dtype == RP_F64)
        return false;
    for (unsigned d = 0; d < o->ndim; d++)
        if (d != along && o->size[d] > 1 && o->stride[d] % vector_of(o)) return false;
    return true;
}

/* Are the spatial dims one run of elements? */
static bool is_dense(const rp__operand *o) {
    int64_t stride = 1;
    for (unsigned d = o->ndim; d-- > 2; stride *= o->size[d])
        if (o->size[d] > 1 && o->stride[d] != stride) return false;
    return true;
}

static bool neighbours(const rp__operand *o, unsigned d) { return o->size[d] > 1 && o->stride[d] == 1; }

/* How conv.cuh reads the operands: along what is contiguous in memory. a: without windows, b: with them. */
static uint64_t readings(const rp__conv_extent *e, const rp__operand *a, const rp__operand *b, bool mma) {
    if (e->kind == 2) return (uint64_t)!neighbours(a, 1) << A_ALONG | (uint64_t)!neighbours(b, 1) << B_ALONG;
    /* with tensor cores the channel runs fastest along the inner index, else the window does */
    const unsigned a_inner = e->kind == 1 ? 0 : 1, a_row = 1 - a_inner; /* channel dims of w */
    const int64_t row = e->m > 1 ? a->stride[a_row] : INT64_MAX,
                  inner = mma ? a->stride[a_inner] : a->stride[a->ndim - 1];
    const bool along = row < 0 || (inner >= 0 && inner <= row);
    const int64_t step = a->dtype == RP_F32 ? TF32_TK : MMA_TK;
    return (uint64_t)along << A_ALONG | (uint64_t)(mma && (e->kind == 0 ? e->cg : e->og) % step == 0) << SAME |
           (uint64_t)(mma && neighbours(b, 1)) << B_ALONG;
}

/* All places of an image as one dim of stride 1, of which so many neighbours are read or written at once. */
static bool is_flat(const rp__operand *o, int64_t points, int64_t each) {
    if (points % each || !is_dense(o)) return false;
    rp__operand flat = *o;
    flat.ndim = 3;
    flat.size[2] = points;
    flat.stride[2] = 1;
    return is_aligned(&flat, 2);
}

/* Is the window one place, which is the pixel's? A stride along a dim with one result is not known: there are as many places as results. */
static bool is_pixel(const rp__conv_extent *e, const rp__conv_geometry *conv) {
    bool is = e->taps == 1 && e->in == e->points;
    for (unsigned k = 0; k < e->spatial; k++) is = is && conv->stride[k] == 1 && conv->padding[k] == 0;
    return is;
}

/* How results leave: along rows, eight at once. result: with memory, or NULL where something else is done with the sums, with `eight` at once;
 * b: the operand with windows. */
static void results(const rp__conv_extent *e, const rp__operand *result, const rp__operand *b, rp__neighbours eight,
                    uint64_t *facts) {
    if (result) {
        const unsigned row = e->kind == 2 ? 0 : 1;
        const bool rows = neighbours(result, row);
        *facts |= (uint64_t)rows << OUT_ROWS;
        if (rows           ? e->m % 8 == 0 && is_aligned(result, row)
            : e->kind == 2 ? e->cg % 8 == 0 && is_aligned(result, 1)
                           : !e->strided && is_flat(result, e->kind == 0 ? e->points : e->in, 8))
            *facts |= UINT64_C(1) << OUT_WIDE;
    } else if (eight == RP__NEIGHBOURS_ROWS || (eight == RP__NEIGHBOURS_COLUMNS && !e->strided)) {
        *facts |= UINT64_C(1) << OUT_WIDE | (uint64_t)(eight == RP__NEIGHBOURS_ROWS) << OUT_ROWS;
    } else {
        *facts |= (uint64_t)(e->kind != 2 && neighbours(b, 1)) << OUT_ROWS;
    }
}

/* Can conv_mma.cuh read the operands, and how? groups: of f32, with the inner index fastest in both, warpgroups multiply. */
static bool reads_vectors(const rp__conv_extent *e, const rp__operand *a, const rp__operand *b,
                          const rp__operand *result, rp__neighbours eight, const rp__conv_geometry *conv, bool groups,
                          uint64_t *facts) {
    uint64_t f = UINT64_C(1) << VECTORS;
    const int64_t each = vector_of(a);
    if (e->kind == 2) {
        if (e->og % each || e->cg % each || !is_aligned(a, 1) || !is_aligned(b, 1)) return false;
    } else {
        const unsigned inner = e->kind == 0 ? 1 : 0, row = 1 - inner;
        const int64_t channels = e->kind == 0 ? e->cg : e->og;
        if (channels % each || e->taps > VECTOR_TAPS) return false;
        if (is_aligned(a, inner)) {
            f |= UINT64_C(1) << A_ALONG;
        } else if (e->m % each || !is_aligned(a, row) ||
                   (groups && e->kind == 1 && a->dtype == RP_F32 && is_aligned(b, 1))) {
            if (a->dtype != RP_F32) return false;
            /* rows of an input gradient are nearer to each other */
            f |= UINT64_C(1) << A_ONE | (uint64_t)(e->kind == 0) << A_ALONG;
        }
        if (is_aligned(b, 1))
            f |= UINT64_C(1) << B_ALONG;
        else if (!is_pixel(e, conv) || !is_flat(b, e->points, each))
            return false;
    }
    results(e, result, b, eight, &f);
    *facts |= f;
    return true;
}

/* Of a strided input gradient of which classes have no taps, what there is to add up: the others, as columns of one problem. */
static rp__conv_extent busy_of(const rp__conv_extent *e) {
    rp__conv_extent b = *e;
    if (e->busy == e->classes) return b;
    b.strided = false;
    b.classes = b.busy = 1;
    b.n = b.class_n = e->class_n * e->busy;
    b.taps = e->class_taps;
    b.k = e->class_k;
    return b;
}

/* Tiles of so many columns. */
static int64_t columns_of(const rp__conv_extent *e, unsigned tn) { return (e->class_n + tn - 1) / tn * e->classes; }

/* Most bytes of shared memory that a tile without warpgroups takes, however its operands lie (vector_room), with the spots: of columns their
 * spot and result, of kind 2 two batches of pixels, of 32 bytes each with an offset where a place has 64 bits in three dims. */
static unsigned most_room(const rp__conv_extent *e, const struct vector_tile *t, bool wide) {
    enum { TAPS = 12 * 1024, PIXELS_HELD = 512 };
    const unsigned spot = wide ? 32 : 16, column = wide ? 64 : 32,
                   spots = e->kind == 2 ? PIXELS_HELD * (spot + 8) + 32 * spot : TAPS;
    unsigned tiles = 0;
    for (unsigned k = 0; k < 2; k++) {
        const unsigned rows = k ? t->tn : t->tm, along = rows * (t->tk + 8u), across = t->tk * (rows + 8u);
        tiles += t->stages * (along > across ? along : across) * 2u;
    }
    return tiles + column * t->tn + spots;
}

unsigned rp__cuda_conv_tile;
enum { FIRST_PATCH = 32 }; /* behind it, of which, tiles of conv_patch.c */

/* Elements of the inner index of which shares are made on tensor cores (RP_UNIT_OF of conv_common.cuh), and the longest of `shares` shares. */
static int64_t share_of(int64_t k, int64_t shares, int64_t unit) {
    return ((k + unit - 1) / unit + shares - 1) / shares * unit;
}
static int64_t mma_unit_of(const rp__conv_extent *e, rp_dtype dtype) {
    const int64_t channels = e->kind == 0 ? e->cg : e->og, chunk = dtype == RP_F32 ? RP__CONV_ROUNDED_CHUNK : MMA_CHUNK;
    return e->kind == 2                                 ? MMA_UNIT
           : channels % chunk == 0                      ? (dtype == RP_F32 ? chunk * e->taps : chunk)
           : channels % (dtype == RP_F32 ? 8 : 16) == 0 ? channels
                                                        : MMA_UNIT;
}

/* What tf32 takes in a tile and so many shares, by the rates that those tiles have of it (an H200: gpu_kernels --conv-tile N over the works of
 * tf32 of bench/gpu_works.txt): what passes through shared memory bounds them, so large tiles are ahead. One by itself waits for its loads. */
static double rounded_time(const rp__conv_extent *e, const rp__device *d, unsigned tile, int64_t shares) {
    static const uint8_t rates[N_VECTOR_TILES] = {100, 89, 70, 72, 55, 52, 45, 33, 32, 27, 148, 97, 97, 89, 133, 89};
    enum { BEGIN = 80, SHARES = 45 };
    const struct vector_tile *t = &vector_tiles[tile];
    const int64_t blocks = (e->m + t->tm - 1) / t->tm * columns_of(e, t->tn) * e->groups * shares;
    const unsigned split = shares > 4 ? 3 : shares > 2 ? 2 : shares > 1;
    const int room = rp__cuda_in_clusters(d, split);
    const double each = (double)((blocks + room - 1) / room),
                 share = (double)(shares > 1 ? share_of(e->k, shares, mma_unit_of(e, RP_F32)) : e->k / e->classes),
                 inner = share + BEGIN + SHARES * split;
    return (each < t->resident ? each + 0.4 * (t->resident - 1) : each) * t->tm * t->tn / rates[tile] * inner;
}

/* us that a weight gradient in tf32 takes in a tile of warpgroups and so many parts (an H200: gpu_kernels --conv-tile N over works `convw tf32`):
 * what a multiprocessor reads bounds a step of 32, of one block and of as many as it holds. */
static double turned_time(const rp__conv_extent *e, const rp__device *d, unsigned tile, int64_t parts) {
    static const struct { double alone, all; } us[] = {{1.75, 1.75}, {1.37, 2.4}, {1.42, 1.42}, {0.95, 1.5}};
    static const double ENDS = 14, SUMS = 3e6; /* us; bytes/us of what parts leave and another launch reads */
    enum { STEP = 32 };
    const struct vector_tile *t = &vector_tiles[tile];
    const int64_t blocks = (e->m + t->tm - 1) / t->tm * columns_of(e, t->tn) * e->groups * parts,
                  room = (int64_t)t->resident * d->multiprocessors, rest = blocks % room,
                  steps = ((e->k + parts - 1) / parts + STEP - 1) / STEP;
    const double rounds = (double)(blocks / room) * us[tile - FIRST_GROUP_TILE].all +
                          (rest > d->multiprocessors ? us[tile - FIRST_GROUP_TILE].all
                           : rest                    ? us[tile - FIRST_GROUP_TILE].alone
                                                     : 0);
    return ENDS + (double)steps * rounds + 8 * (double)e->m * (double)e->groups * (double)e->n * (double)parts / SUMS;
}
enum { TURNED_TILES = 4 };
_Static_assert(FIRST_GROUP_TILE + TURNED_TILES <= EVEN_TILE, "tiles that turned_time knows");

int64_t rp__conv_turned_parts(const rp__conv_extent *e, const rp__device *d, int64_t most) {
    enum { LEAST_COLUMNS = 128, ROUNDS = 4, EACH = 4 };
    int64_t best = 0;
    double least = 0;
    if (d->arch != 90 || e->n < LEAST_COLUMNS || e->og % EACH || e->cg % EACH) return 0;
    for (unsigned k = FIRST_GROUP_TILE; k < FIRST_GROUP_TILE + TURNED_TILES; k++) {
        const struct vector_tile *t = &vector_tiles[k];
        const int64_t tiles = (e->m + t->tm - 1) / t->tm * columns_of(e, t->tn) * e->groups;
        for (int64_t blocks = d->multiprocessors; blocks <= ROUNDS * (int64_t)d->multiprocessors;
             blocks += d->multiprocessors) {
            const int64_t fit = blocks / tiles < most ? blocks / tiles : most;
            const double time = fit > 1 ? turned_time(e, d, k, fit) : 0;
            if (fit > 1 && (best == 0 || time < least)) best = fit, least = time;
        }
    }
    return best;
}

/* Shares, as a power of two, with which tiles of vectors take least time, and that. */
static unsigned vector_split_of(const rp__conv_extent *e, const rp__device *d, double *least_time) {
    enum { LEAST = 128, EACH = 4 };
    const int64_t units = share_of(e->k, 1, mma_unit_of(e, RP_F32)) / mma_unit_of(e, RP_F32);
    const bool groups = d->arch == 90 && e->kind != 2 && e->taps <= VECTOR_TAPS &&
                        (e->kind == 0 ? e->cg : e->og) % EACH == 0; /* where operands lie as they should */
    unsigned split = 0;
    double best = 0;
    for (unsigned s = 0; s <= 3 && (s == 0 || (e->class_k >= (int64_t)LEAST << s && units >= INT64_C(1) << s)); s++) {
        double least = 0;
        for (unsigned k = 0; k < (groups ? SHORT_TILE : FIRST_GROUP_TILE); k++) {
            if (k < FIRST_GROUP_TILE && most_room(e, &vector_tiles[k], false) > d->shared_limit) continue;
            const double time = rounded_time(e, d, k, INT64_C(1) << s);
            if (least == 0 || time < least) least = time;
        }
        if (s == 0 || least < 0.95 * best) split = s, best = least;
    }
    *least_time = best;
    return split;
}

/* What a copy takes, in us and bytes/us (an H200). */
static const double COPY_US = 2.5, COPY_RATE = 2e6;

/* Shares, as a power of two, of a convolution rounded to tf32 that takes `us` in `split` shares in other tiles, without the copy of its weights.
 * patch: does conv_patch.cuh take less time with weights as they are made? Functions of sizes and the kind of device alone. */
static unsigned patch_split_of(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                               const rp__device *d, unsigned split, double us, bool *patch) {
    *patch = false;
    if (e->kind != 0 || e->taps == 1 || !d->clusters) return split;
    rp__operand made = *o[2];
    int64_t stride = 1;
    for (unsigned k = made.ndim; k-- > 0; stride *= made.size[k]) made.stride[k] = stride;
    made.base = NULL;
    double least = us + COPY_US + 8 * (double)stride / COPY_RATE;
    unsigned best = split;
    for (unsigned s = 0; s <= 3 && INT64_C(1) << s <= e->cg / RP__CONV_ROUNDED_CHUNK; s++) {
        rp__conv_patch of;
        if (!rp__conv_patch_plan(e, &made, conv, o[0], true, d, s, 0, &of) || of.us >= least) continue;
        best = s, least = of.us, *patch = true;
    }
    return best;
}

static unsigned rounded_split_of(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                                 const rp__device *d, bool *patch) {
    static const double US = 1.6e-4, ENDS = 7; /* of a unit of rounded_time; what begins and ends a kernel */
    double us;
    *patch = false;
    unsigned split = rp__conv_bulk_split(e, d, RP_F32, &us);
    if (split == UINT32_MAX) {
        const rp__conv_extent busy = busy_of(e);
        if (busy.strided) return 0; /* classes share K already */
        split = vector_split_of(&busy, d, &us);
        us = ENDS + us * US;
    }
    return patch_split_of(e, o, conv, d, split, us, patch);
}

/* What a tile of 16-bit floats takes of a multiprocessor before its first product and behind its last one, in us: where its columns lie, and what
 * its threads store; a block by itself waits for both. Of an H200, by windows of one place with 16 to 96 channels (`gpu_kernels --conv-tile`). */
static const double STEP = 1.28e-4; /* us of a product of all of a tile, at rate 1 */
static double ends_of(unsigned tile) {
    static const double BLOCK = 0.45, COLUMN = 2.2e-3, RESULT = 1.6e-5, ALONE = 1.7, GROUPS = 1.15, SHORT = 0.83;
    const struct vector_tile *t = &vector_tiles[tile];
    return (BLOCK + COLUMN * t->tn + RESULT * t->tm * t->tn) * (t->resident == 1 ? ALONE : 1) *
           (tile >= FIRST_GROUP_TILE ? GROUPS : 1) * (tile == SHORT_TILE ? SHORT : 1);
}

/* The tile that takes least time: each multiprocessor computes its share of tiles, several at once as far as they fit. */
static unsigned vector_tile_of(const rp__conv_extent *e, const rp__device *d, int64_t split, bool wide, bool along,
                               bool tf32, bool groups) {
    enum { SMALL = 64 }; /* columns that leave tiles of warpgroups mostly empty */
    unsigned best = 0, clusters = 0;
    double least = 0;
    while (e->kind != 2 && INT64_C(1) << clusters < split) clusters++; /* of kind 2 most shares are in memory */
    const int64_t room = rp__cuda_in_clusters(d, clusters);
    for (unsigned k = 0; k < (groups ? N_VECTOR_TILES : FIRST_GROUP_TILE); k++) {
        const struct vector_tile *t = &vector_tiles[k];
        if (wide && t->tn > 128) continue; /* spots of columns have 48 KB */
        if (k < FIRST_GROUP_TILE && most_room(e, t, wide) > d->shared_limit) continue;
        if ((k == EVEN_TILE && (!along || e->kind == 2)) || (k == SHORT_TILE && e->k > (tf32 ? t->tk / 2 : t->tk)))
            continue;
        const int64_t blocks = (e->m + t->tm - 1) / t->tm * columns_of(e, t->tn) * e->groups * split;
        const double each = (double)((blocks + room - 1) / room), inner = (double)(e->k / (split * e->classes));
        /* one by itself waits for its loads */
        if (rp__cuda_conv_tile == k + 1) return k;
        const bool turned = tf32 && e->kind == 2 && groups && e->n > SMALL;
        if (turned && (k < FIRST_GROUP_TILE || k >= FIRST_GROUP_TILE + TURNED_TILES)) continue;
        const double time =
            turned ? turned_time(e, d, k, split)
            : tf32 ? rounded_time(e, d, k, split)
                   : (each < t->resident ? each + 0.4 : each) * (t->tm * t->tn * inner / t->rate * STEP + ends_of(k));
        if (least == 0 || time < least) best = k, least = time;
    }
    return best;
}

/* Shares, as a power of two, with which warpgroups take least time. */
static unsigned group_split_of(const rp__conv_extent *e, const rp__device *d, int64_t least, int64_t unit) {
    const int64_t units = (e->k + unit - 1) / unit;
    unsigned split = 0;
    double best = 0;
    for (unsigned s = 0; s <= 3 && (s == 0 || (e->k >= least << s && units >= INT64_C(1) << s)); s++) {
        double least_time = 0;
        for (unsigned k = FIRST_GROUP_TILE; k <= EVEN_TILE; k++) {
            const struct vector_tile *t = &vector_tiles[k];
            const int64_t blocks = ((e->m + t->tm - 1) / t->tm * ((e->n + t->tn - 1) / t->tn) * e->groups) << s;
            const int room = rp__cuda_in_clusters(d, s);
            const double each = (double)((blocks + room - 1) / room),
                         inner = (double)share_of(e->k, INT64_C(1) << s, unit) + 160 + 60 * s;
            const double time = (each < t->resident ? each + 0.4 : each) * t->tm * t->tn / t->rate * inner;
            if (least_time == 0 || time < least_time) least_time = time;
        }
        if (s == 0 || least_time < 0.95 * best) split = s, best = least_time;
    }
    return split;
}

static int64_t blocks_of(const rp__conv_extent *e, const struct tile *t) {
    return (e->m + t->tm - 1) / t->tm * columns_of(e, t->tn) * e->groups;
}

/* Bytes of shared memory that conv.cuh's spots take at most. */
enum { SPOTS = 40 * 1024 };

/* Of f32 the tile that takes least time: each multiprocessor computes its share of tiles, several at once as far as they fit; few threads wait
 * for their loads. */
static unsigned float_tile_of(const rp__conv_extent *e, const rp__device *d, int64_t split) {
    unsigned best = FIRST_MMA;
    double least = 0;
    for (unsigned k = 0; k < FIRST_MMA; k++) {
        const struct tile *t = &shapes[k];
        if (room_of((uint64_t)RP_F32 | (uint64_t)k << TILE) + SPOTS > d->shared_limit) continue;
        const double each = (double)((blocks_of(e, t) * split + d->multiprocessors - 1) / d->multiprocessors),
                     idle = each * t->threads < 256 ? (256 - each * t->threads) / 320 : 0,
                     time = each * (1 + idle) * t->tm * t->tn / t->rate;
        if (best == FIRST_MMA || time < least) best = k, least = time;
    }
    return best < FIRST_MMA ? best : FIRST_MMA - 1;
}

/* The largest tile that wastes no half of itself and gives every multiprocessor one; else the one with most blocks. */
static unsigned tile_of(const rp__conv_extent *e, const rp__device *d, rp_dtype dtype, bool mma, bool wide,
                        int64_t split) {
    unsigned best = N_TILES;
    for (unsigned k = mma ? FIRST_MMA : 0; k < (mma ? N_TILES : FIRST_MMA); k++) {
        const struct tile *t = &shapes[k];
        const int64_t least = mma ? 16 : 8;
        if (!mma && (dtype == RP_F64 ? t->tm * t->tn / t->threads > 32 : t->tm * t->tn > 128 * 64))
            continue; /* what registers hold */
        if (t->tm * t->tn > 128 * 64 && (wide || e->spatial == 3))
            continue; /* 48 KB of shared memory, with the spots */
        if (t->tm == least ? e->m > 16 : e->m <= t->tm / 2) continue;
        if (t->tn > 64 && e->n <= 64 && !(mma && t->tm == least)) continue;
        if (best == N_TILES || blocks_of(e, t) > blocks_of(e, &shapes[best])) best = k;
        if (blocks_of(e, t) * split >= d->multiprocessors) break;
    }
    return best;
}

/* Shares of the inner index, as a power of two: as many as leave enough of it and blocks enough, counted in tiles of a fixed size, so that
 * the order depends on sizes and the kind of device alone. */
static unsigned split_of(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                         const rp__device *d, bool mma, bool *patch) {
    const bool tf32 = mma && o[0]->dtype == RP_F32;
    *patch = false;
    const int64_t least = mma ? 256 : 128, unit = mma ? mma_unit_of(e, o[0]->dtype) : FMA_UNIT,
                  blocks = (e->m + 63) / 64 * columns_of(e, 64) * e->groups, k = e->class_k;
    unsigned split = 0;
    if (!d->clusters) return 0;
    double us;
    if (tf32 && e->kind == 2 && rp__conv_bulk_turns(e, d)) return rp__conv_bulk_cut(e, d).split;
    const unsigned bulk = mma && !tf32 ? rp__conv_bulk_split(e, d, o[0]->dtype, &us) : UINT32_MAX;
    if (tf32) return rounded_split_of(e, o, conv, d, patch);
    if (bulk != UINT32_MAX) return bulk;
    if (mma && e->strided) return 0; /* classes share K already */
    if (mma && d->arch == 90 && e->m >= 64 && e->kind != 2) return group_split_of(e, d, least, unit);
    if (!mma && blocks >= d->multiprocessors / 4) { /* no multiprocessor idle while others have a tile more */
        const int64_t tiles = (e->m + 63) / 64 * columns_of(e, 128) * e->groups;
        double least_time = 0;
        for (unsigned s = 0; s <= 3 && (s == 0 || k >= least << s); s++) {
            const int64_t each = ((tiles << s) + d->multiprocessors - 1) / d->multiprocessors;
            const double time = (each == 1 ? 1.4 : (double)each) / (1 << s) * (1 + 0.05 * s); /* float_tile_of */
            if (s == 0 || time < least_time) split = s, least_time = time;
        }
        return split;
    }
    while (split < 3 && (blocks << (split + 1)) <= 2 * (int64_t)d->multiprocessors && k >= least << (split + 1) &&
           k >= unit << (split + 1))
        split++;
    return split;
}

/* Clocks of a convolution of f32 by this tile: of a multiprocessor's turns, and of what begins and ends a block. `threads` that it holds. */
static double float_clocks(const rp__conv_extent *e, const rp__device *d, const struct tile *t, unsigned split) {
    enum { BEGIN = 2500, SHARES = 800, EACH = 1500, LANES = 128 };
    const int64_t blocks = blocks_of(e, t) << split, unit = t->slices > 1 ? t->slices * FMA_SLICE : FMA_UNIT,
                  share = share_of(e->class_k, INT64_C(1) << split, unit);
    const int room = rp__cuda_in_clusters(d, split);
    const double each = (double)((blocks + room - 1) / room),
                 idle = each * t->threads < 256 ? (256 - each * t->threads) / 320 : 0, results = (double)t->tm * t->tn,
                 ends = results * t->slices / 16 + EACH;
    return BEGIN + (split ? SHARES : 0) +
           each * ((1 + idle) * results * (double)share / (LANES * 0.01 * t->rate) + ends);
}

/* f32: the sliced tile and the logarithm of shares of least time, where that is less than whole tiles take; N_SLICED: there is none. Of sizes
 * and the kind of device, since bits depend on both. */
static unsigned sliced_tile_of(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                               const rp__device *d, unsigned *split) {
    unsigned best = N_SLICED;
    bool patch;
    const unsigned whole = split_of(e, o, conv, d, false, &patch);
    double least = 0.9 * float_clocks(e, d, &shapes[float_tile_of(e, d, INT64_C(1) << whole)], whole);
    *split = whole;
    if (d->arch < 90 || !d->clusters || e->kind == 2) return best;
    if (rp__cuda_conv_tile) least = HUGE_VAL;
    for (unsigned k = 0; k < N_SLICED; k++) {
        const uint64_t facts = (uint64_t)RP_F32 | UINT64_C(1) << SLICED | (uint64_t)k << TILE;
        if (room_of(facts) + SPOTS > d->shared_limit || (rp__cuda_conv_tile && rp__cuda_conv_tile != k + 1)) continue;
        for (unsigned s = 0; s <= 3 && (s == 0 || e->class_k >= INT64_C(64) << s); s++) {
            const double clocks = float_clocks(e, d, &sliced[k], s);
            if (clocks < least) best = k, *split = s, least = clocks;
        }
    }
    return best;
}

/* Results of few rows, a thread a place: tiles, of tensor cores too where vectors do not fit, would read as much and compute rows that are
 * not there. Of long sums places have to fill the device. Groups of 16-bit floats share steps of the tensor cores instead (conv_groups.c). */
static bool is_direct(const rp__conv_extent *e, const rp__device *d, rp_dtype dtype) {
    const bool on_tensor_cores = rp__dtype_is_float(dtype) && rp__dtype_is_narrow(dtype) && d->arch >= 80;
    if (e->kind == 2) return false;
    if (e->m <= 2 && e->class_k <= (int64_t)RP__PRODUCT_BLOCK / (dtype == RP_F64 ? 2 : 1)) return true;
    return (!on_tensor_cores || (e->kind == 1 && e->groups == 1)) && e->m <= DIRECT_ROWS &&
           e->n * e->groups >= 256 * (int64_t)d->multiprocessors;
}
/* f32 on tensor cores, rounded, where the program allows it. Groups of few channels are not worth their tiles. */
static bool is_rounded(const rp__conv_extent *e, rp_dtype dtype, const rp__library_call *call) {
    enum { LEAST = 16 };
    return dtype == RP_F32 && (call->precision == RP__FLOAT32_HIGH || call->precision == RP__FLOAT32_MEDIUM) &&
           (e->groups == 1 || (e->cg >= LEAST && e->og >= LEAST));
}
static bool is_mma(const rp__conv_extent *e, const rp__device *d, rp_dtype dtype, const rp__library_call *call) {
    return !is_direct(e, d, dtype) && d->arch >= 80 &&
           ((rp__dtype_is_float(dtype) && rp__dtype_is_narrow(dtype)) || is_rounded(e, dtype, call));
}

/* Words and slots of the kernel; bias: does it have one? A result without memory has no slot. */
void rp__conv_words(const rp__problem *p, const rp__operand *const *sorted, const rp__conv_extent *e, bool bias,
                    rp__launch_buffer *buffer, rp__launch *out) {
    const rp__operand *o[4] = {sorted[0], sorted[1], sorted[2], bias ? &p->o[3] : NULL};
    const rp__conv_geometry *conv = &p->call->conv;
    uint64_t *words = buffer->words;
    const unsigned written = e->kind; /* which of y, x and w */
    for (unsigned k = 0; k < 4; k++) {
        words[k] = 0;
        if (o[k] && o[k]->base)
            rp__operand_slot(o[k], k, k == written ? RP__WRITE : k == 2 ? RP__READ | RP__AHEAD : RP__READ, buffer, out);
    }
    words[4] = (uint64_t)e->batch;
    words[5] = (uint64_t)o[1]->size[1];
    words[6] = (uint64_t)o[2]->size[0];
    words[7] = (uint64_t)e->groups;
    uint32_t at = 8;
    for (unsigned k = 0; k < e->spatial; k++) {
        const int64_t sizes[6] = {o[1]->size[2 + k], o[0]->size[2 + k], o[2]->size[2 + k],
                                  conv->stride[k],   conv->padding[k],  conv->dilation[k]};
        for (unsigned f = 0; f < 6; f++) words[at++] = (uint64_t)sizes[f];
    }
    /* Where the window leaves a picture of one place, or of none, its stride is one that nobody has looked at: no address may follow from it. */
    const unsigned windowed = is_pixel(e, conv) ? 3 : e->kind == 1 ? 0 : 1;
    for (unsigned t = 0; t < 3; t++)
        for (unsigned k = 0; k < 2 + e->spatial; k++)
            words[at++] = t == windowed && k > 1 && o[t]->size[k] <= 1 ? 0 : (uint64_t)o[t]->stride[k];
    words[at++] = bias ? (uint64_t)o[3]->stride[0] : 0;
    words[at++] = 0; /* rp__launch.ahead */
    out->n_words = at;
}

void rp__conv_part_words(const rp__problem *p, const rp__operand *const *sorted, const rp__conv_extent *e,
                         int64_t parts, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__library_call *call = p->call;
    const int64_t begin = (char *)call->workspace - (char *)call->workspace_storage->data;
    rp__operand nowhere = *sorted[2];
    const rp__operand *all[3] = {sorted[0], sorted[1], &nowhere};
    nowhere.base = NULL;
    rp__conv_words(p, all, e, false, buffer, out);
    buffer->words[3] = (uint64_t)(uintptr_t)call->workspace;
    buffer->words[out->n_words - 2] = (uint64_t)parts;
    buffer->slots[out->n_slots++] = (rp__slot){.word = 3,
                                               .access = RP__WRITE,
                                               .storage = call->workspace_storage,
                                               .buffer = -1,
                                               .begin = begin,
                                               .end = begin + (int64_t)rp__conv_parts_bytes(e, p->o[0].dtype, parts)};
}

bool rp__conv_has_bias(const rp__problem *p) { return p->op == RP__LIB_CONV_FORWARD && p->n > 3 && p->o[3].base; }

/* ---- few channels (conv_few.cuh) */

/* Columns of tiles, and bytes of shared memory, that a tile of this shape takes. */
static void few_size(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                     const struct few_tile *t, bool side_by_side, int64_t *tiles, int64_t *bytes) {
    const unsigned last = e->spatial - 1;
    const int64_t th = FEW_COLUMNS / t->tw, k = (e->k + 15) / 16 * 16;
    int64_t high = 1, down = th; /* of one dim a tile is a line */
    if (e->spatial == 2) {
        high = (th - 1) * conv->stride[0] + (o[2]->size[2] - 1) * conv->dilation[0] + 1;
        down = o[0]->size[2];
    }
    const int64_t wide = (t->tw - 1) * conv->stride[last] + (o[2]->size[2 + last] - 1) * conv->dilation[last] + 1,
                  line = ((wide * (side_by_side ? e->cg : 1) + 7 + 7) / 8) * 8,
                  rows = high * (side_by_side ? 1 : e->cg);
    *tiles = e->batch * ((down + th - 1) / th) * ((o[0]->size[2 + last] + t->tw - 1) / t->tw);
    /* results of a pass: rows or columns side by side */
    const int64_t by_rows = 128 * (t->tm + 4) * 4, by_columns = (int64_t)t->tm * 132 * 4;
    *bytes = (by_rows > by_columns ? by_rows : by_columns) + k * 4 + t->tm * (k + 8) * 2 + 2 * rows * line * 2;
}

/* Are rows of the picture whole aligned vectors? */
static bool has_whole_rows(const rp__operand *x, unsigned spatial, bool side_by_side) {
    const unsigned last = 2 + spatial - 1;
    const int64_t each = side_by_side ? x->size[1] : 1;
    if ((uintptr_t)x->base % 16 || x->size[last] * each % 8 || x->stride[last] != each) return false;
    if (x->size[0] > 1 && x->stride[0] % 8) return false;
    if (!side_by_side && x->size[1] > 1 && x->stride[1] % 8) return false;
    return spatial == 1 || x->size[2] == 1 || x->stride[2] % 8 == 0;
}

/* Do results of a tile of lines leave along rows, and eight at once? */
static void leaving(const rp__conv_extent *e, const rp__operand *const *o, const rp__operand *result,
                    rp__neighbours wanted, bool *rows, bool *eight) {
    const bool lines = o[0]->size[2 + e->spatial - 1] % 8 == 0; /* eight places are of one line */
    *rows = o[1]->stride[1] == 1 && e->cg > 1, *eight = false;
    if (result) {
        *rows = neighbours(result, 1);
        *eight = *rows ? e->m % 8 == 0 && is_aligned(result, 1) : lines && is_flat(result, e->points, 8);
    } else if (wanted == RP__NEIGHBOURS_ROWS || (wanted == RP__NEIGHBOURS_COLUMNS && lines)) {
        *rows = wanted == RP__NEIGHBOURS_ROWS;
        *eight = true;
    }
}

/* Does conv_few.cuh serve a forward convolution, in one share? The tile that leaves least idle, of these the one that sees least twice. */
static bool takes_few(const rp__conv_extent *e, const rp__operand *const *o, const rp__operand *result,
                      const rp__library_call *call, const rp__device *d, rp__launch *out, uint64_t *facts) {
    const rp__conv_geometry *conv = &call->conv;
    const unsigned last = 2 + e->spatial - 1;
    if (e->kind != 0 || e->groups != 1 || e->spatial > 2 || e->cg >= FEW_CHANNELS || e->m < 8) return false;
    for (unsigned k = 0; k < e->spatial; k++)
        if (conv->stride[k] > 64 || conv->dilation[k] > 64) return false;
    unsigned tm = e->m <= 16 ? 16 : e->m <= 32 ? 32 : 64;
    const bool side_by_side = e->cg > 1 && o[1]->stride[1] == 1 && o[1]->stride[last] == e->cg;
    int64_t least = 0, room = 0;
    unsigned best = FEW_TILES;
    for (unsigned k = 0; k < FEW_TILES; k++) {
        const struct few_tile *t = &few_tiles[k];
        int64_t tiles, bytes;
        if (t->tm != tm || (e->spatial == 1 && t->tw != FEW_COLUMNS)) continue;
        few_size(e, o, conv, t, side_by_side, &tiles, &bytes);
        if (bytes > (int64_t)d->shared_limit ||
            (best != FEW_TILES && (tiles > least || (tiles == least && bytes >= room))))
            continue;
        best = k, least = tiles, room = bytes;
    }
    if (best == FEW_TILES || least > INT32_MAX) return false;
    while (tm > few_tiles[0].tm &&
           least * ((e->m + tm - 1) / tm) < d->multiprocessors) { /* fewer rows for more blocks */
        const unsigned tw = few_tiles[best].tw;
        tm /= 2;
        for (best = 0; few_tiles[best].tm != tm || few_tiles[best].tw != tw;) best++;
        few_size(e, o, conv, &few_tiles[best], side_by_side, &least, &room);
    }
    bool rows, eight;
    leaving(e, o, result, call->neighbours, &rows, &eight);
    const int64_t gy = (e->m + tm - 1) / tm, most = FEW_RESIDENT * (int64_t)d->multiprocessors / gy;
    *facts |= UINT64_C(1) << MMA | UINT64_C(1) << FEW | (uint64_t)best << TILE | (uint64_t)side_by_side << B_ALONG |
              (uint64_t)has_whole_rows(o[1], e->spatial, side_by_side) << WHOLE |
              (uint64_t)(side_by_side && e->cg % 2 == 0) << PAIRS | (uint64_t)rows << OUT_ROWS |
              (uint64_t)eight << OUT_WIDE;
    out->shared_bytes = (uint32_t)room;
    out->grid[0] = (uint32_t)(least < most ? least : most > 0 ? most : 1);
    out->grid[1] = (uint32_t)gy;
    return true;
}

/* Does conv_patch.cuh serve, with the weights where they are? small: it is sooner than other tiles (rounded_split_of). */
static bool takes_patch(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                        const rp__device *d, unsigned split, bool small, rp__conv_patch *out) {
    const unsigned forced = rp__cuda_conv_tile % 64, only = forced > FIRST_PATCH ? forced - FIRST_PATCH : 0;
    return (rp__cuda_conv_tile ? only > 0 : small) && o[0]->dtype == RP_F32 && d->clusters &&
           rp__conv_patch_plan(e, o[2], conv, o[0], is_aligned(o[1], 1), d, split, only, out);
}

/* Does conv_bulk.cuh, or of weight gradients conv_bulk_weight.cuh, serve operands that are as they are? out: NULL, or the tile. */
static bool takes_bulk(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                       rp__device *d, unsigned split, int64_t parts, rp__conv_bulk *out) {
    const rp__conv_cut cut = {split, parts ? parts : 1};
    if (rp__conv_is_wide(o, conv) || !rp__cuda_maps(d)) return false;
    return e->kind == 2 ? o[0]->dtype == RP_F32 && rp__conv_bulk_weight_plan(e, o, conv, d, cut, out)
                        : !parts && rp__conv_bulk_plan(e, o, conv, d, split, out);
}

/* Do the places of all images, in rising order, lie one step apart? */
static bool is_even(const rp__operand *o) {
    const unsigned last = o->ndim - 1u;
    int64_t step = o->stride[last];
    for (unsigned k = last; k >= 2; k--) {
        if (o->size[k] > 1 && o->stride[k] != step) return false;
        step *= o->size[k];
    }
    return o->size[last] > 1 && (o->size[0] == 1 || o->stride[0] == step);
}

/* Is a convolution a product of channels at each place, whose places are numbers in all that is read and written? */
static bool is_point(const rp__problem *p, const rp__conv_extent *e, const rp__operand *windowed,
                     const rp__operand *result) {
    return e->kind != 2 && is_pixel(e, &p->call->conv) && is_even(windowed) &&
           (result ? is_even(result) : p->notes && p->notes->even);
}

/* Words, slots, grid and facts of the kernel; out->grid[0] is 0: there is nothing to compute. parts: so many shares leave their sums in the
 * call's workspace; 0: none. */
static rp_status set_tiles(const rp__problem *p, int64_t parts, rp__launch_buffer *buffer, rp__launch *out,
                           uint64_t *facts) {
    rp__device *const d = p->device;
    const rp__library_call *call = p->call;
    const rp__operand *all[3];
    const rp__conv_extent e = rp__conv_sort(p, all);
    const unsigned kind = e.kind, s = e.spatial;
    const bool bias = rp__conv_has_bias(p);
    if (e.m == 0 || e.n == 0 || e.groups == 0) return RP_OK;
    const uint32_t behind = out->n_words; /* of what follows the product */
    if (parts)
        rp__conv_part_words(p, all, &e, parts, buffer, out);
    else
        rp__conv_words(p, all, &e, bias, buffer, out);
    const rp_dtype dtype = p->o[0].dtype;
    const rp__operand *plain = kind == 2 ? all[0] : all[2], *windowed = kind == 1 ? all[0] : all[1],
                      *result = p->o[0].base && !parts ? &p->o[0] : NULL;
    const int64_t block = (int64_t)RP__PRODUCT_BLOCK / (dtype == RP_F64 ? 2 : 1);
    const bool direct = is_direct(&e, d, dtype), mma = is_mma(&e, d, dtype, call), tf32 = mma && dtype == RP_F32,
               wide = rp__conv_is_wide(all, &call->conv);
    bool small = false; /* enough for conv_patch.cuh */
    /* of parts shares of a cluster, where bulk copies may serve */
    unsigned split =
        !parts || (tf32 && rp__conv_bulk_turns(&e, d)) ? split_of(&e, all, &call->conv, d, mma, &small) : 0;
    const unsigned slices =
        dtype == RP_F32 && !parts && !direct && !mma ? sliced_tile_of(&e, all, &call->conv, d, &split) : N_SLICED;
    const int64_t shares = (parts ? parts : 1) << split;
    int64_t gx, gy;
    out->block[0] = 256;
    *facts = (uint64_t)dtype | (uint64_t)kind << KIND | (uint64_t)s << SPATIAL | (uint64_t)bias << BIAS |
             (uint64_t)wide << WIDE | (uint64_t)(parts > 0) << PARTS | (uint64_t)e.strided << CLASSES;
    if (tf32 && rp__conv_rounds_even(&e)) *facts |= UINT64_C(1) << (kind == 2 ? WEIGHT_EVEN : EVEN);
    const uint64_t unread = *facts;
    const bool warpgroups = d->arch == 90 && !wide;
    rp__conv_patch patch;
    rp__conv_bulk bulk;
    if (direct) {
        *facts |= UINT64_C(1) << DIRECT | (uint64_t)e.m << ROWS;
        gx = columns_of(&e, 256), gy = 1;
    } else if (mma && takes_bulk(&e, all, &call->conv, d, split, parts, &bulk) &&
               rp__conv_bulk_words(p, &e, all, &bulk, behind, buffer, out)) {
        *facts |= bulk.facts;
        if (parts)
            *facts |= UINT64_C(1) << OUT_WIDE;
        else
            results(&e, result, windowed, call->neighbours, facts);
        if (kind != 2) *facts |= (uint64_t)is_point(p, &e, windowed, result) << POINT;
        gx = bulk.columns, gy = bulk.rows;
        out->shared_bytes = bulk.shared_bytes;
        out->block[0] = 256 + 64; /* two warps ask for copies */
        out->ahead = rp__conv_n_words(p) - 1;
    } else if (mma && !wide && !parts && takes_patch(&e, all, &call->conv, d, split, small, &patch)) {
        bool rows, eight;
        leaving(&e, all, result, call->neighbours, &rows, &eight);
        out->shared_bytes = rp__conv_patch_leaves(&patch, bias, rows, eight);
        *facts = patch.facts;
        gx = patch.columns, gy = patch.rows;
        out->ahead = rp__conv_n_words(p) - 1;
    } else if (mma && reads_vectors(&e, plain, windowed, result, call->neighbours, &call->conv, warpgroups, facts)) {
        const bool groups = warpgroups && (!tf32 || kind == 2 ||
                                           (bit(*facts, B_ALONG) && (bit(*facts, A_ONE) || bit(*facts, A_ALONG))));
        const rp__conv_extent busy = tf32 ? busy_of(&e) : e;
        const unsigned tile = vector_tile_of(&busy, d, shares, wide, bit(*facts, B_ALONG), tf32, groups);
        if (tf32 && tile < FIRST_GROUP_TILE) { /* read for other warps */
            *facts = unread;
            (void)reads_vectors(&e, plain, windowed, result, call->neighbours, &call->conv, false, facts);
        }
        *facts |=
            (uint64_t)tile << TILE | (uint64_t)split << SPLIT | UINT64_C(1) << MMA | (uint64_t)(e.taps <= 32) << NEAR;
        const struct vector_tile *t = vector_tile_at(*facts);
        *facts |= (uint64_t)(!parts && is_point(p, &e, windowed, result)) << POINT;
        *facts |= (uint64_t)(kind != 2 && (kind == 0 ? e.cg : e.og) % vector_depth(*facts, t) == 0) << SAME;
        gx = columns_of(&e, t->tn) * shares, gy = (e.m + t->tm - 1) / t->tm;
        out->shared_bytes = vector_room(*facts);
    } else if (mma && !tf32 && !wide && !parts && split == 0 && takes_few(&e, all, result, call, d, out, facts)) {
        gx = out->grid[0], gy = out->grid[1];
    } else {
        const bool in_slices = slices < N_SLICED;
        const unsigned number = in_slices                 ? slices
                                : dtype == RP_F32 && !mma ? float_tile_of(&e, d, shares)
                                                          : tile_of(&e, d, dtype, mma, wide, shares);
        const struct tile *t = in_slices ? &sliced[number] : &shapes[number];
        *facts |=
            (uint64_t)in_slices << SLICED | (uint64_t)number << TILE | (uint64_t)split << SPLIT | (uint64_t)mma << MMA |
            readings(&e, plain, windowed, mma) |
            (uint64_t)(kind != 2 && (result                                    ? neighbours(result, 1)
                                     : call->neighbours != RP__NEIGHBOURS_NONE ? call->neighbours == RP__NEIGHBOURS_ROWS
                                                                               : neighbours(windowed, 1)))
                << OUT_ROWS;
        *facts |= (uint64_t)(e.class_taps <= 32) << MASKS;
        const int64_t share = share_of(e.class_k, shares,
                                       mma         ? MMA_UNIT
                                       : in_slices ? t->slices * FMA_SLICE
                                                   : FMA_UNIT),
                      chain = block * t->slices;
        if (!mma) *facts |= (uint64_t)(share > chain) << LONG | (uint64_t)(share > chain * RP__PRODUCT_GROUP) << LONGER;
        gx = columns_of(&e, t->tn) * shares, gy = (e.m + t->tm - 1) / t->tm;
        out->shared_bytes = room_of(*facts);
        out->ahead = is_async(*facts) && kind != 2 ? rp__conv_n_words(p) - 1 : 0;
        out->block[0] = t->threads;
    }
    if (gx > INT32_MAX || gy > 65535 || e.groups > 65535)
        return rp__fail(RP_ERROR_SHAPE, "%s: this convolution is more than one CUDA launch takes", call->op);
    out->grid[0] = (uint32_t)gx;
    out->grid[1] = (uint32_t)gy;
    out->grid[2] = (uint32_t)e.groups;
    out->block[1] = out->block[2] = 1;
    return RP_OK;
}

rp_status rp__conv_bind(const rp__problem *p, int64_t parts, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "conv"};
    memset(out, 0, sizeof *out);
    out->op = p->call->op;
    out->site = p->call->site;
    RP_TRY(set_tiles(p, parts, buffer, out, &key.facts));
    if (out->grid[0] == 0) return RP_OK;
    if (rp__conv_is_bulk(key.facts)) {
        key.family = "conv_bulk";
        return (key.facts >> KIND & 3) == 2
                   ? rp__text_kernel(p->device, &key, bulk_weight_macros, rp__embed_conv_bulk_weight_cuh,
                                     rp__embed_conv_bulk_weight_cuh_len, &out->kernel)
                   : rp__text_kernel(p->device, &key, bulk_macros, rp__embed_conv_bulk_cuh, rp__embed_conv_bulk_cuh_len,
                                     &out->kernel);
    }
    if (bit(key.facts, VECTORS)) {
        key.family = "conv_mma";
        return rp__text_kernel(p->device, &key, vector_macros, rp__embed_conv_mma_cuh, rp__embed_conv_mma_cuh_len,
                               &out->kernel);
    }
    if (rp__conv_is_patch(key.facts)) {
        key.family = "conv_patch";
        return rp__text_kernel(p->device, &key, rp__conv_patch_macros, rp__embed_conv_patch_cuh,
                               rp__embed_conv_patch_cuh_len, &out->kernel);
    }
    if (is_few(key.facts)) {
        key.family = "conv_few";
        return rp__text_kernel(p->device, &key, few_macros, rp__embed_conv_few_cuh, rp__embed_conv_few_cuh_len,
                               &out->kernel);
    }
    return rp__text_kernel(p->device, &key, macros, rp__embed_conv_cuh, rp__embed_conv_cuh_len, &out->kernel);
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return rp__conv_bind(p, 0, buffer, out);
}

bool rp__conv_on_tensor_cores(const rp__problem *p) {
    const rp__operand *sorted[3];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    return is_mma(&e, p->device, p->o[0].dtype, p->call);
}

uint32_t rp__conv_n_words(const rp__problem *p) {
    const unsigned spatial = p->call->conv.spatial;
    return 8 + 6 * spatial + 3 * (2 + spatial) + 2;
}

static rp_status bind_tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                            uint64_t *facts) {
    (void)wide; /* places of results are RP_INDEX, whatever follows them */
    return set_tiles(p, 0, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out) {
    if (rp__conv_is_bulk(facts) && (facts >> KIND & 3) == 2)
        rp__text_kernel_source(name, facts, bulk_weight_macros, rp__embed_conv_bulk_weight_cuh,
                               rp__embed_conv_bulk_weight_cuh_len, parts, out);
    else if (rp__conv_is_bulk(facts))
        rp__text_kernel_source(name, facts, bulk_macros, rp__embed_conv_bulk_cuh, rp__embed_conv_bulk_cuh_len, parts,
                               out);
    else if (bit(facts, VECTORS))
        rp__text_kernel_source(name, facts, vector_macros, rp__embed_conv_mma_cuh, rp__embed_conv_mma_cuh_len, parts,
                               out);
    else if (rp__conv_is_patch(facts))
        rp__text_kernel_source(name, facts, rp__conv_patch_macros, rp__embed_conv_patch_cuh,
                               rp__embed_conv_patch_cuh_len, parts, out);
    else if (is_few(facts))
        rp__text_kernel_source(name, facts, few_macros, rp__embed_conv_few_cuh, rp__embed_conv_few_cuh_len, parts, out);
    else
        rp__text_kernel_source(name, facts, macros, rp__embed_conv_cuh, rp__embed_conv_cuh_len, parts, out);
}

static bool serves_mma(const rp__problem *p, size_t *workspace) {
    (void)workspace;
    return rp__conv_on_tensor_cores(p);
}

/* What a convolution takes, in flop/us (an H200): with vectors of both operands, with weights one by one (A_ONE), with elements one by
 * one, which begins later, too. */
static const struct rates {
    double late, single, wide, one, vectors, bulk;
} rates[] = {{5, 60e6, 60e6, 60e6, 350e6, 380e6}, {3, 75e6, 50e6, 120e6, 170e6, 250e6}}; /* 16-bit floats, tf32 */

/* Operands that our rows read faster with their channels innermost: vectors for tensor cores. Bits of `there`: copies of them cost nothing. */
static uint32_t channels_last(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                              const rp__library_call *call, uint32_t there) {
    const rp__problem p = {d, op, o, n, call, RP__ORDER_ELSEWHERE, NULL};
    const rp__operand *sorted[3];
    const rp__conv_extent e = rp__conv_sort(&p, sorted);
    if (e.m == 0 || e.n == 0 || e.k == 0 || e.groups == 0 || !is_mma(&e, d, o[0].dtype, call)) return 0;
    /* the operand without windows and the one with them, as bits know them */
    const unsigned plain = op == RP__LIB_CONV_WEIGHT ? 1 : 2, windowed = 3 - plain;
    const struct rates *rate = &rates[o[0].dtype == RP_F32];
    const double flops = 2 * rp__problem_work(&p);
    uint32_t best = 0, lie = 0; /* lie: with vectors of channels as they are */
    double least = 0;
    for (unsigned k = 1; k < 3; k++)
        if (is_aligned(&o[k], 1) &&
            o[k].size[1] / (k == windowed || op == RP__LIB_CONV_WEIGHT ? e.groups : 1) % vector_of(&o[k]) == 0)
            lie |= 1u << k;
    rp__conv_patch patch; /* weights and places as they are */
    bool small = false;
    if (e.kind == 0 && o[0].dtype == RP_F32) (void)split_of(&e, sorted, &call->conv, d, true, &small);
    if (e.kind == 0 && !rp__conv_is_wide(sorted, &call->conv) &&
        takes_patch(&e, sorted, &call->conv, d, 0, small, &patch))
        return 0;
    for (uint32_t copied = 0; copied <= 6; copied += 2) {
        if (copied & lie) continue;
        rp__operand last[3];
        double time = 0;
        uint64_t facts = 0;
        for (unsigned k = 1; k < 3; k++) {
            last[k] = o[k];
            if (!(copied >> k & 1)) continue;
            last[k].base = NULL;
            rp__channels_innermost(&o[k], last[k].stride);
            if (there >> k & 1) continue;
            double bytes = 2 * (double)rp__dtype_bytes(o[k].dtype);
            for (unsigned i = 0; i < o[k].ndim; i++) bytes *= (double)o[k].size[i];
            time += COPY_US + bytes / COPY_RATE;
        }
        const bool vectors =
            reads_vectors(&e, &last[plain], &last[windowed], NULL, RP__NEIGHBOURS_NONE, &call->conv, false, &facts);
        const rp__operand *lie_so[3] = {sorted[0], sorted[1], sorted[2]};
        for (unsigned k = 1; k < 3; k++) lie_so[sorted[1] == &o[k] ? 1 : sorted[2] == &o[k] ? 2 : 0] = &last[k];
        time += e.kind != 2 && takes_bulk(&e, lie_so, &call->conv, d, 0, 0, NULL) ? flops / rate->bulk
                : !vectors                                                        ? rate->late + flops / rate->single
                : bit(facts, A_ONE) ? flops / (e.kind == 0 ? rate->wide : rate->one)
                                    : flops / rate->vectors;
        /* as fast either way: vectors along pixels, and rows of a weight gradient that come one by one */
        const bool indifferent = time == least && (copied & ~there) == 0 &&
                                 (vectors || (op == RP__LIB_CONV_WEIGHT && copied == 1u << plain));
        if (copied == 0 || time < least || indifferent) best = copied, least = time;
    }
    return best;
}

/* Lines of memory that 32 neighbours so far apart lie in. */
static int64_t lines_of(int64_t apart) {
    enum { MOST = 32 };
    return apart > MOST ? MOST : apart > 1 ? apart : 1;
}

/* Does a copy of the operand take less time than `loads` of 32 elements each, apart as they are, beyond those that are next to each other? */
static bool copy_is_sooner(const rp__device *d, const rp__operand *o, double loads, int64_t lines) {
    enum { CLOCKS_US = 1700 };
    double bytes = 2.0 * (double)rp__dtype_bytes(o->dtype);
    for (unsigned k = 0; k < o->ndim; k++) bytes *= (double)o->size[k];
    return loads / 32 * (double)lines / ((double)d->multiprocessors * CLOCKS_US) > COPY_US + bytes / COPY_RATE;
}

/* Operands that our rows of fma read faster by rows: threads read neighbours along the last dim one by one, of weights along the window or along
 * rows (`readings`). */
static uint32_t by_rows(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                        const rp__library_call *call) {
    enum { TILE_ROWS = 64 };
    const rp__problem p = {d, op, o, n, call, RP__ORDER_ELSEWHERE, NULL};
    const rp__operand *sorted[3], *windowed = &o[1], *weights = &o[2];
    const rp__conv_extent e = rp__conv_sort(&p, sorted);
    const unsigned last = windowed->ndim - 1u;
    uint32_t turned = 0;
    if (e.kind == 2 || e.m == 0 || e.n == 0 || e.k == 0 || e.groups == 0 || is_mma(&e, d, o[0].dtype, call) ||
        is_direct(&e, d, o[0].dtype) || rp__conv_is_depthwise(&p))
        return 0;
    const int64_t step = e.kind == 0 ? call->conv.stride[e.spatial - 1] : 1,
                  lines = lines_of(step * windowed->stride[last]) - lines_of(step), along = weights->stride[last],
                  row = e.m > 1 ? weights->stride[0] : along, taps = lines_of(along < row ? along : row) - 1;
    const double each = (double)e.groups * (double)e.class_k;
    if (windowed->size[last] > 1 && lines > 0 &&
        copy_is_sooner(d, windowed, each * (double)e.n * (double)((e.m + TILE_ROWS - 1) / TILE_ROWS), lines))
        turned |= 1u << 1;
    if (e.kind == 0 && weights->size[last] > 1 && taps > 0 &&
        copy_is_sooner(d, weights, each * (double)e.m * (double)columns_of(&e, TILE_ROWS), taps))
        turned |= 1u << 2;
    return turned;
}

rp_status rp__cuda_conv_turned(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                               const rp__library_call *call, rp__turned *out) {
    bool elsewhere;
    const rp__problem p = {d, op, o, n, call, RP__ORDER_ELSEWHERE, NULL};
    RP_TRY(rp__cuda_dnn_turned(&p, &elsewhere, out));
    if (!elsewhere && rp__conv_is_depthwise(&p)) {
        /* around convolutions by fma, which read rows, it stays as it is */
        if (rp__dtype_is_narrow(o[0].dtype) || (o[0].dtype == RP_F32 && call->precision != RP__FLOAT32_HIGHEST))
            rp__conv_pictures_turned(&p, out);
    } else if (!elsewhere && rp__conv_is_grouped(&p)) {
        rp__conv_pictures_turned(&p, out);
    } else if (!elsewhere) {
        out->channels = channels_last(d, op, o, n, call, out->there);
        out->rows = by_rows(d, op, o, n, call);
    }
    return RP_OK;
}

static rp__order order_mma(const rp__problem *p) {
    return rp__order_with(rp__problem_order(p), p->o[0].dtype == RP_F32 ? RP__FAMILY_TF32 : RP__FAMILY_MMA, 0);
}

static double cost_mma(const rp__problem *p) { return rp__problem_work(p) / 16; }

const rp__cuda_product_row rp__cuda_conv_row = {
    .row = {.name = "simt", .ops = RP__CUDA_CONVOLUTIONS, .follows = true, .order = rp__problem_order, .bind = bind},
    .words = rp__conv_n_words,
    .tiles = bind_tiles,
    .source = source};
const rp__cuda_product_row rp__cuda_conv_mma_row = {.row = {.name = "mma",
                                                            .ops = RP__CUDA_CONVOLUTIONS,
                                                            .follows = true,
                                                            .serves = serves_mma,
                                                            .order = order_mma,
                                                            .cost = cost_mma,
                                                            .bind = bind},
                                                    .words = rp__conv_n_words,
                                                    .tiles = bind_tiles,
                                                    .source = source,
                                                    .takes_lanes = takes_lanes};
