/* Matrix products on the CPU: the words of a product and of a convolution, and one table of entries an instruction set, built
   from isa/gemm.c. lib_matmul.c and lib_conv.c fill the words; the entries run tiles of the result.

   Numbers: an element of the result adds up over k in a tree whose shape is K's alone (kernel/product.h): in a block a chain
   from 0, acc = acc + a * b, by fma where the instruction set has it; blocks of a group and groups from left to right. In f32 for f32, f16 and bf16, in f64,
   in wrapping 32-bit integers for i32 and u8, in wrapping 64-bit integers; then + bias, then one rounding to the
   result's type; or, instead of both, the rest of a DAG (kernel/contract.h), run on each tile while it is near. So neither tiles, threads, strides nor packing show in the bits, and of the instruction set only whether it has fma: a
   machine gives one result. Products of bf16 are added up in another order where the
   machine multiplies them by a unit of its own (dots.h). gemm.c is compiled with contraction for that; it multiplies nowhere else. */
#ifndef RP_KERNEL_CPU_GEMM_H
#define RP_KERNEL_CPU_GEMM_H

#include "core/dtype.h"
#include "device/launch.h"
#include "kernel/cpu/line.h"
#include "kernel/loop.h"
#include "kernel/operand.h"
#include "kernel/product.h"

/* Flags of a product. */
enum {
    RP__GEMM_BIAS_N = 1,
    RP__GEMM_BIAS_M = 2,
    RP__GEMM_REST = 4, /* its words follow; no bias, no result */
    /* With a rest: the operand is made, not read, by words that begin where that of its address says: a by rows of m, each along k;
       b by rows of k along n, or by rows of n along k. */
    RP__GEMM_MAKES_A = 8,
    RP__GEMM_MAKES_B = 16,
    RP__GEMM_MAKES_B_ALONG = 32,
    RP__GEMM_TURNED = 64, /* of operands that are made: a is the second factor */
    RP__GEMM_DOTS = 128,  /* by the matrix unit (dots.h), which reads both operands from memory */
    /* Lanes are groups: of WEIGHT (isa/gemm_lanes.h) an item has TILE_N channels of x; of others (isa/gemm_places.h) TILE_N rows of the
       result. What follows has the group as its row and the places as columns (the dims after image and row), or the reverse. */
    RP__CONV_BY_LANES = 256,
    RP__CONV_LANES_ALONG = 512,
    RP__CONV_BY_TAPS =
        1024, /* of WEIGHT: vectors are channels of y (isa/gemm_taps.h); an item has TILE_M of them and TILE_N of x */
    RP__CONV_BY_POINTS =
        2048 /* of others: vectors are channels of the result (isa/gemm_points.h), where there is room */
};

/* out[m, n] = sum over k of a[m, k] b[k, n], for each index of the batch dims. Strides in elements. */
enum {
    RP__GEMM_OUT,
    RP__GEMM_A,
    RP__GEMM_B,
    RP__GEMM_BIAS,
    RP__GEMM_M,
    RP__GEMM_N,
    RP__GEMM_K,
    RP__GEMM_OM,
    RP__GEMM_ON,
    RP__GEMM_AM,
    RP__GEMM_AK,
    RP__GEMM_BK,
    RP__GEMM_BN,
    RP__GEMM_BIAS_STRIDE,
    RP__GEMM_TILE_M, /* an item is a tile: n fastest, then m, then the batch */
    RP__GEMM_TILE_N,
    RP__GEMM_FLAGS,
    RP__GEMM_BATCH, /* number of batch dims, outer first; then for each: extent, strides of out, a, b */
    RP__GEMM_WORDS
};

/* Convolution as a product whose operands are gathered while they are packed. Spatial dims are always three: missing ones lead
   with extent 1. x is the larger side (input or its gradient), y the smaller (output or its gradient), w the weight.
     FORWARD y[n, o, q] = sum over (c, r) of w[o, c, r] x[n, c, q * stride - padding + r * dilation]
     INPUT   x[n, c, p] = sum over (o, r) of w[o, c, r] y[n, o, (p + padding - r * dilation) / stride]
     WEIGHT  w[o, c, r] = sum over (n, q) of y[n, o, q] x[n, c, q * stride - padding + r * dilation]
   An item is a tile of (image, group, phase): n fastest, then m, phase, group, image. Phases (INPUT only): positions p of one
   residue modulo the stride, which meet the same taps r, so that no product with a zero between strides is ever made. */
enum {
    RP__CONV_X,
    RP__CONV_W,
    RP__CONV_Y,
    RP__CONV_BIAS,
    RP__CONV_IMAGES,
    RP__CONV_GROUPS,
    RP__CONV_C,  /* input channels of a group */
    RP__CONV_O,  /* output channels of a group */
    RP__CONV_XS, /* extents of x, y, w */
    RP__CONV_YS = RP__CONV_XS + 3,
    RP__CONV_WS = RP__CONV_YS + 3,
    RP__CONV_STRIDE = RP__CONV_WS + 3,
    RP__CONV_PADDING = RP__CONV_STRIDE + 3,
    RP__CONV_DILATION = RP__CONV_PADDING + 3,
    RP__CONV_X_STRIDES = RP__CONV_DILATION + 3, /* (image, channel, three spatial) in elements */
    RP__CONV_W_STRIDES = RP__CONV_X_STRIDES + 5,
    RP__CONV_Y_STRIDES = RP__CONV_W_STRIDES + 5,
    RP__CONV_BIAS_STRIDE = RP__CONV_Y_STRIDES + 5,
    RP__CONV_TILE_M,
    RP__CONV_TILE_N,
    RP__CONV_FLAGS,
    RP__CONV_WORDS
};
/* Lanes of groups, of every instruction set; the most of a group's rows of y, taps, weights an item, places of x at once; of results also
   of the products of a place, its lines of K times its rows, and of places that leave together. */
enum {
    RP__CONV_LANES = 16,
    RP__CONV_LANES_ROWS = 12,
    RP__CONV_LANES_PAIRS = 16,
    RP__CONV_LANES_PHASES = 4, /* INPUT: of a line of the result that are calculated together */
    RP__CONV_LANES_PLACES = 256,
    RP__CONV_LANES_TAPS = 128,
    RP__CONV_LANES_SUMS = 4096,
    RP__CONV_LANES_ROOM = 2048
};
/* By taps: the most channels of y an item, sums, and elements of a channel of x at once. */
enum { RP__CONV_TAPS_ROWS = 128, RP__CONV_TAPS_SUMS = 32768, RP__CONV_TAPS_ROOM = 8192 };
/* By points: the most places of the result an item, and taps. */
enum { RP__CONV_POINTS = 256, RP__CONV_POINTS_TAPS = 256 };
typedef enum rp__conv_kind { RP__CONV_FORWARD, RP__CONV_INPUT, RP__CONV_WEIGHT, RP__CONV_KINDS } rp__conv_kind;

/* Taps of an input gradient that meet the same places stand so many apart. */
static inline int64_t rp__conv_step(int64_t stride, int64_t dilation) {
    int64_t common = stride, other = dilation % stride;
    while (other) {
        const int64_t rest = common % other;
        common = other, other = rest;
    }
    return stride / common;
}

/* The largest tile; that of few rows may be wider: of products whose second operand is read as it lies, and of convolutions
   (isa/gemm_tile.h). */
enum {
    RP__GEMM_MAX_TILE_M = 192,
    RP__GEMM_MAX_TILE_N = 256,
    RP__GEMM_BOX_TILE_N = 1024,
    RP__GEMM_STREAM_TILE_M = 4,
    RP__GEMM_DOTS_TILE_M = 16, /* as many for the matrix unit (dots.h) */
    RP__GEMM_STREAM_TILE_N = 2048,
    RP__GEMM_WEIGHT_BYTES = 2400 * 1024 /* of a convolution's weight, for one tile's rows */
};

/* What follows a product, or makes an operand: words behind those of the product, for a kernel that rp__gemm_rest runs, over rows "m" of
   elements "n": of an operand k is one of these. */
enum {
    RP__REST_DIMS, /* fixed ones, which an item names, those of m, those of n; each outermost first */
    RP__REST_FIXED,
    RP__REST_M,
    RP__REST_WORDS /* then as rp__contract_words */
};
enum { RP__REST_BLOCKS = 24 };
typedef struct rp__gemm_rest {
    _Alignas(64) char blocks[64 * RP__REST_BLOCKS]; /* uniform values of the line function */
    rp__line_fn *line;                              /* NULL: none, or it needs more than that */
    const rp__kernel *kernel;                       /* of the loop */
    const uint64_t *words;
    unsigned element;           /* bytes of a sum */
    int64_t fixed[RP_MAX_DIMS]; /* index of each fixed dim */
    /* of n: extents, and where an item's first index is and how far the next; one entry a dim */
    int64_t extent[RP_MAX_DIMS], start[RP_MAX_DIMS], step[RP_MAX_DIMS];
} rp__gemm_rest;
/* Of words at `words` for a product whose dims of n have the result's own extents; fixed indices are 0. part: of kernel/contract.h. */
void rp__gemm_rest_begin(rp__gemm_rest *r, const rp__kernel *kernel, unsigned part, const uint64_t *words,
                         unsigned element);
/* Sums, or elements to be made, [m0, m0 + mc) x [n0, n0 + nc), at `tile`, ld elements a row. */
void rp__gemm_rest_run(const rp__gemm_rest *r, const void *tile, int64_t ld, int64_t m0, int64_t mc, int64_t n0,
                       int64_t nc);

/* A product as words take it. */
typedef struct rp__gemm_problem {
    int64_t m, n, k, om, on, am, ak, bk, bn;
    bool turned; /* a and b are each other's, and so are m and n */
    unsigned n_batch;
    struct {
        int64_t extent, out, a, b;
    } batch[RP_MAX_DIMS];
} rp__gemm_problem;
void rp__gemm_turn(rp__gemm_problem *p);
/* Is it better read by out^T = b^T a^T, whatever lies how in the result? */
bool rp__gemm_reads_turned(const rp__gemm_problem *p, unsigned flags);
bool rp__cpu_dots(rp_dtype dtype); /* does the matrix unit multiply this type? */
/* Fills the words but for addresses, and what of the launch follows from them. */
void rp__cpu_gemm_words(const rp__gemm_problem *p, rp_dtype dtype, unsigned flags, rp__launch_buffer *buffer,
                        rp__launch *out);
/* Sizes of tiles for so many results of m x n, each a sum of k products. */
void rp__cpu_gemm_cut(int64_t m, int64_t n, int64_t problems, double k, int64_t most_m, int64_t *tile_m,
                      int64_t *tile_n);

/* Where a tile packs its operands and keeps partial sums: memory of the calling thread, whose stack may be small (musl gives 128
   KB, fibers less). Given back before the thread takes it again; where the system has no pages, threads take turns in one. */
enum { RP__GEMM_SCRATCH_BYTES = 4096 * 1024 }; /* touched as far as a tile needs it */
void *rp__gemm_scratch_take(void);             /* aligned to a page; never NULL */
void rp__gemm_scratch_give(const void *scratch);
extern bool rp__gemm_scratch_shared; /* tests: no thread gets its own */

typedef struct rp__gemm {
    const char *name;                       /* of the instruction set */
    int panel;                              /* columns of a 4-byte panel: tiles of n are multiples of it */
    rp__cpu_entry *matmul[RP__DTYPE_COUNT]; /* by rp_dtype; NULL: not a type of products */
    rp__cpu_entry *conv[RP__CONV_KINDS][RP__DTYPE_COUNT]; /* floating point only */
} rp__gemm;
extern const rp__gemm rp__gemm_baseline;
#ifndef RP_ISA_BASELINE_ONLY
extern const rp__gemm rp__gemm_avx2, rp__gemm_avx512;
#endif
/* The table of the instruction set in force (tiles.h). */
const rp__gemm *rp__gemm_current(void);

#endif
