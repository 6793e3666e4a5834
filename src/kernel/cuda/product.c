/* Matrix products on CUDA through product.cuh, two rows of the table of templates: tensor cores (16-bit floats, integers of 8 bits, f32 where
 * its products may be rounded) and f32 by fma in large tiles. Here: which tile, into how many shares K is cut, and whether a block's warps
 * share out each step of it (slices), how the operands are read; and when a library is faster. Shares and slices are a function of sizes, dtype
 * and kind of device, and part of the order; all else acts on time alone. */
#include <string.h>

#include "kernel/cuda/emit.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/matmul.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Facts of a text: dtype in the low bits, then these; the words that follow from bit 32 on. */
enum {
    BATCH = 4,
    MATH = 8,
    TILE = 11, /* a row of `shapes`, of those of its math */
    SPLIT = 16,
    BIAS = 18,
    WIDE, /* 64-bit offsets */
    A_ALONG,
    A_WIDE,
    B_ALONG,
    B_WIDE,
    OUT_WIDE,
    LONG,
    LONGER,
    OUT_PAIRS,
    PROBLEMS = 30 /* less one, of products by themselves */
};
/* RP_MATH of the text (SLICED: that of FMA); a family of orders each. */
typedef enum math { FMA, MMA, TF32, BF16X3, INTEGER, WGMMA, SLICED } math;

/* tm x tn results; bytes of K a step; warps (wgmma: warpgroups) above each other and side by side, or (fma, slices) results a thread; tiles in flight; blocks that
 * a multiprocessor holds; clocks of a step of one block alone on a multiprocessor, and of each further one beside it, as measured on
 * an H200. */
static const struct tile {
    uint16_t tm, tn, depth;
    uint8_t wm, wn, stages, resident;
    uint16_t alone, beside;
} shapes[] = {
    {128, 256, 128, 2, 4, 3, 1, 2400, 2400}, {128, 128, 128, 2, 4, 3, 1, 1700, 1500},
    {64, 128, 128, 2, 4, 3, 2, 1130, 1200},  {64, 64, 128, 2, 2, 4, 3, 825, 600},
    {32, 64, 128, 2, 2, 4, 4, 600, 540},     {32, 32, 128, 2, 2, 4, 6, 420, 430},
    {16, 128, 128, 1, 4, 4, 3, 600, 400},    {16, 64, 128, 1, 4, 6, 3, 465, 250},
    {64, 16, 128, 4, 1, 6, 3, 465, 250}, /* tensor cores */
    {128, 128, 64, 8, 8, 3, 1, 4000, 3840},  {64, 64, 128, 8, 4, 3, 3, 2200, 1750},
    {32, 64, 128, 4, 4, 4, 4, 1450, 940},    {32, 32, 128, 4, 2, 4, 4, 900, 530},
    {16, 64, 128, 2, 4, 4, 4, 1040, 690},    {64, 16, 128, 4, 2, 4, 4, 1040, 690},
    {16, 128, 128, 4, 8, 4, 3, 1300, 900}, /* fma */
    {128, 256, 128, 2, 1, 4, 1, 1830, 1830}, {128, 128, 128, 2, 1, 3, 2, 1300, 1250},
    {64, 128, 128, 1, 2, 4, 2, 870, 700},    {128, 64, 128, 2, 1, 4, 2, 870, 700},
    {64, 64, 128, 1, 1, 4, 3, 535, 400},     {192, 256, 128, 3, 1, 4, 1, 2300, 2300},
    {128, 192, 128, 2, 1, 5, 1, 1500, 1500}, {128, 128, 128, 2, 1, 6, 1, 1150, 1150},
    {128, 96, 128, 2, 1, 7, 1, 950, 950},    {64, 96, 128, 1, 1, 9, 1, 600, 600},
    {64, 64, 128, 1, 1, 10, 1, 450, 450},    {64, 32, 128, 1, 1, 10, 1, 380, 380}, /* warpgroups */
    {64, 64, 128, 8, 8, 8, 1, 1900, 1700},   {32, 64, 128, 8, 8, 6, 2, 1300, 800},
    {64, 32, 128, 8, 8, 6, 2, 1300, 800},    {32, 32, 128, 8, 4, 8, 3, 750, 450},
    {16, 128, 128, 8, 8, 5, 2, 1100, 700},   {16, 64, 128, 8, 4, 6, 3, 650, 400},
    {64, 16, 128, 8, 4, 6, 3, 650, 400},     {8, 128, 128, 8, 4, 5, 2, 650, 450}, /* slices */
};
enum { FIRST_FMA = 9, FIRST_WGMMA = 16, FIRST_SLICED = 28, N_TILES = sizeof shapes / sizeof *shapes };
/* Of each math: its first tile, and the one behind its last. */
static const struct {
    uint8_t first, end;
} ranges[] = {[FMA] = {FIRST_FMA, FIRST_WGMMA},  [MMA] = {0, FIRST_FMA},     [TF32] = {0, FIRST_FMA},
              [BF16X3] = {0, FIRST_FMA},         [INTEGER] = {0, FIRST_FMA}, [WGMMA] = {FIRST_WGMMA, FIRST_SLICED},
              [SLICED] = {FIRST_SLICED, N_TILES}};
/* Into how many slices each step of K falls: one for each scheduler of a multiprocessor. */
enum { SLICES = 4 };
static unsigned slices_of(math m) { return m == SLICED ? SLICES : 1; }

static bool bit(uint64_t facts, unsigned at) { return facts >> at & 1; }
static unsigned threads_of(const struct tile *t) {
    const unsigned units = (unsigned)t->wm * t->wn, row = (unsigned)(t - shapes);
    return row < FIRST_FMA      ? 32u * units
           : row < FIRST_WGMMA  ? (unsigned)t->tm * t->tn / units
           : row < FIRST_SLICED ? 128u * units
                                : (unsigned)t->tm * t->tn / units * SLICES;
}
static unsigned problems_of(uint64_t facts) { return (unsigned)(facts >> PROBLEMS & 3) + 1; }
static math math_of(uint64_t facts) { return (math)(facts >> MATH & 7); }
static const struct tile *tile_at(uint64_t facts) {
    return &shapes[ranges[math_of(facts)].first + (facts >> TILE & 15)];
}
static unsigned bytes_of(uint64_t facts) { return (unsigned)rp__dtype_bytes((rp_dtype)(facts & 15)); }
/* Whether all copies go straight into shared memory, as product.cuh has it; else tiles wait in registers for a step. */
static bool is_async(uint64_t facts) { return bytes_of(facts) >= 4 || (bit(facts, A_WIDE) && bit(facts, B_WIDE)); }
static unsigned depth_of(uint64_t facts) { return tile_at(facts)->depth; }
static unsigned stages_of(uint64_t facts) { return is_async(facts) ? tile_at(facts)->stages : 2; }

/* Bytes of an operand's tile, rows padded as in product.cuh. */
static unsigned tile_bytes(uint64_t facts, unsigned rows, unsigned depth, bool along) {
    const unsigned bytes = bytes_of(facts), c = 16 / bytes;
    const math m = math_of(facts);
    const bool k_fast = m == INTEGER || along;
    if (m == WGMMA) return (along ? rows : (rows + 63) / 64 * 64) * depth * bytes;
    return (k_fast ? rows * (depth + c) : depth * (rows + (m == TF32 || m == BF16X3 ? 8 : c))) * bytes;
}

/* Bytes of product.cuh's `room`. */
static uint32_t room_of(uint64_t facts) {
    const struct tile *t = tile_at(facts);
    const unsigned depth = depth_of(facts) / bytes_of(facts);
    const unsigned tiles = stages_of(facts) * (tile_bytes(facts, t->tm, depth, bit(facts, A_ALONG)) +
                                               tile_bytes(facts, t->tn, depth, bit(facts, B_ALONG)));
    const unsigned out = t->tm * (t->tn + 8u) * 4u * slices_of(math_of(facts));
    return tiles > out ? tiles : out;
}

/* Of a text that something follows. */
static bool takes_lanes(uint64_t facts) { return bit(facts, OUT_WIDE); }

static void macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = (rp_dtype)(facts & 15);
    const math m = math_of(facts);
    const struct tile *t = tile_at(facts);
    const unsigned split = 1u << (facts >> SPLIT & 3);
    const bool eight = facts >> 32 && takes_lanes(facts);
    rp__text_kernel_dtype(dtype, out);
    const bool fma = m == FMA || m == SLICED;
    rp__text_add(out, "#define RP_MATH %u\n#define RP_SUM %s\n#define RP_ELEMENT %u\n#define RP_SLICES %u\n",
                 fma ? 0u : (unsigned)m, m == INTEGER ? "rp_i32" : "float", bytes_of(facts), slices_of(m));
    rp__text_add(out, "#define RP_TM %u\n#define RP_TN %u\n#define RP_TK %u\n#define RP_THREADS %u\n", t->tm, t->tn,
                 depth_of(facts) / bytes_of(facts), threads_of(t));
    rp__text_add(out, "#define RP_STAGES %u\n#define RP_RESIDENT %u\n#define RP_%s %u\n#define RP_%s %u\n",
                 stages_of(facts), m == BF16X3 ? (t->resident + 1u) / 2u : t->resident, fma ? "TI" : "WM", t->wm,
                 fma ? "TJ" : "WN", t->wn);
    rp__text_add(out, "#define RP_A_ALONG %d\n#define RP_A_WIDE %d\n#define RP_B_ALONG %d\n#define RP_B_WIDE %d\n",
                 bit(facts, A_ALONG), bit(facts, A_WIDE), bit(facts, B_ALONG), bit(facts, B_WIDE));
    rp__text_add(out, "#define RP_OUT_V %u\n#define RP_BATCH %u\n#define RP_BIAS %d\n#define RP_REST %u\n",
                 eight                   ? (unsigned)RP__CUDA_MAX_VECTOR
                 : bit(facts, OUT_WIDE)  ? 16 / bytes_of(facts)
                 : bit(facts, OUT_PAIRS) ? 2u
                                         : 1u,
                 (unsigned)(facts >> BATCH & 15), bit(facts, BIAS), (unsigned)(facts >> 32));
    rp__text_add(out, "#define RP_PROBLEMS %u\n#define RP_EIGHT %d\n", problems_of(facts), eight);
    rp__text_add(out, "#define RP_INDEX %s\n#define RP_LONG %d\n#define RP_LONGER %d\n#define RP_SPLIT %u\n",
                 bit(facts, WIDE) ? "rp_i64" : "rp_i32", bit(facts, LONG), bit(facts, LONGER), split);
    static const char *const steps[] = {"", "m16n8k16", "m16n8k8", "", "m16n8k32"};
    if (m == MMA || m == WGMMA)
        rp__text_add(out, "#define RP_PACK(low, high) rp_cvt_f32_to_%sx2(low, high)\n", rp__dtypes[dtype].short_name);
    if (m == WGMMA)
        rp__text_add(out, "#define RP_GROUP_MMA rp_wgmma_n%u_%s\n#define RP_GROUP_D %u\n", t->tn / t->wn,
                     rp__dtypes[dtype].short_name, t->tn / t->wn / 2u);
    else if (!fma && *steps[m])
        rp__text_add(out, "#define RP_MMA_STEP(d, a, b) rp_mma_%s_%s(d, a, b)\n", steps[m],
                     m == TF32 ? "tf32" : rp__dtypes[dtype].short_name);
    if (split > 1)
        rp__text_add(
            out,
            "#define RP_CLUSTER __cluster_dims__(%u, 1, 1)\n#define RP_CLUSTER_READ(p, r, n) rp_cluster_read_%s(p, r, n)\n",
            split, m == INTEGER ? "i32" : "f32");
    else
        rp__text_puts(out, "#define RP_CLUSTER\n");
    rp__text_write(out, rp__embed_mma_cuh, rp__embed_mma_cuh_len);
    if (m == SLICED) rp__text_write(out, rp__embed_slices_cuh, rp__embed_slices_cuh_len);
    if (m == WGMMA) rp__text_write(out, rp__embed_wgmma_cuh, rp__embed_wgmma_cuh_len);
}

/* ---- which of them */

static int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* Small products, of which those with sums of RP__MATMUL_LONG and more are cut into shares; shorter ones are left to the kernel that makes factors,
 * too. */
static bool is_small(const rp__matmul *p) {
    return (double)p->m * (double)p->n * (double)p->k * (double)p->batch < (double)RP__CUDA_SMALL_PRODUCT;
}

/* Clocks until a block has its first tile, of which each kind has one at least. */
enum { FIRST_TILE = 1500 };

/* Sums of slices that go through shared memory in a clock, and clocks of a block's beginning and end that others do not hide. */
enum { SLICES_RATE = 16, SLICES_MEET = 1500 };

/* Clocks of the steps along K, by how many blocks share a multiprocessor. */
static double clocks_of(const rp__matmul *p, const rp__device *d, unsigned split, const struct tile *t) {
    const int64_t blocks = (over(p->m, t->tm) * over(p->n, t->tn) * p->batch) << split,
                  share = over(p->k, INT64_C(1) << split);
    const unsigned row = (unsigned)(t - shapes);
    const int64_t room = rp__cuda_in_clusters(d, split);
    const double steps = (double)over(share * (int64_t)rp__dtype_bytes(p->dtype), t->depth),
                 together = (double)over(blocks, room);
    if (row >= FIRST_SLICED) /* a thread stores all of its sums and reads as many, four at once */
        return steps * (t->alone + (together - 1) * t->beside) +
               together * (t->tm * t->tn * SLICES / (double)SLICES_RATE + SLICES_MEET);
    if (row < FIRST_FMA || row >= FIRST_WGMMA) {
        /* Rounds of blocks side by side; one of them waits for its first tile, multiplies and stores, 16-bit floats that are no shares in half
         * the bytes and without waiting for other warps. Blocks of warps add to each other's steps, those of warpgroups take turns. */
        const double beside = together < t->resident ? together : t->resident,
                     results = t->tm * t->tn / (split || rp__dtype_bytes(p->dtype) != 2 ? 5.0 : 8.0),
                     rounds = (double)over(blocks, room * t->resident), one = steps * t->alone + FIRST_TILE + results,
                     all = row < FIRST_FMA ? one + (beside - 1) * (steps * t->beside + results)
                                           : beside * (steps * t->beside + FIRST_TILE / 2 + results);
        return rounds * (one > all ? one : all) - FIRST_TILE;
    }
    return steps * (t->alone + (together - 1) * t->beside) + t->tm * t->tn / 16.0; /* and of storing */
}

/* Most bytes of shared memory that a tile of 16-bit or 32-bit elements takes, however its operands lie (room_of). */
static unsigned most_room(const struct tile *t) {
    unsigned tiles = 0;
    for (unsigned k = 0; k < 2; k++) {
        const unsigned rows = k ? t->tn : t->tm, along = rows * (t->depth + 16u), across = t->depth * (rows + 8u);
        tiles += t->stages * (along > across ? along : across);
    }
    const unsigned out = t->tm * (t->tn + 8u) * 4u * (t - shapes >= FIRST_SLICED ? SLICES : 1u);
    return tiles > out ? tiles : out;
}

unsigned rp__cuda_product_tile;

static unsigned tile_of(const rp__matmul *p, const rp__device *d, math m, unsigned split, double *clocks) {
    unsigned best = N_TILES;
    for (unsigned k = ranges[m].first; k < ranges[m].end; k++) {
        if ((m == TF32 || m == BF16X3) && shapes[k].tn > 128) continue;      /* more shared memory than there is */
        if (m != WGMMA && most_room(&shapes[k]) > d->shared_limit) continue; /* 99 KB on 8.6 and 8.9; 9.0 has 227 */
        if (m == SLICED && rp__cuda_product_tile != k + 1 &&
            ((shapes[k].tm < 32 && p->m > shapes[k].tm) || (shapes[k].tn < 32 && p->n > shapes[k].tn)))
            continue; /* what the other operand has would be read again and again */
        const double c = clocks_of(p, d, split, &shapes[k]);
        if (best < N_TILES && c >= *clocks && rp__cuda_product_tile != k + 1) continue;
        best = k;
        *clocks = c;
        if (rp__cuda_product_tile == k + 1) break;
    }
    return best;
}

static const rp__order_family families[] = {
    [FMA] = RP__FAMILY_FMA,       [MMA] = RP__FAMILY_MMA,         [TF32] = RP__FAMILY_TF32,
    [BF16X3] = RP__FAMILY_BF16X3, [INTEGER] = RP__FAMILY_INTEGER, [SLICED] = RP__FAMILY_SLICES};

/* Of a launch and of adding up shares through a cluster; bytes a clock of memory. */
enum { LAUNCH = 3000, ADD_SHARES = 1500, BYTES = 2400 };
/* Clocks that a launch of ours may take longer: a third of one that what follows would be by itself. */
enum { JOINS = LAUNCH / 3 };
/* Operands that are read element by element, of more than FEW rows and columns; steps of 128 bytes of K by cuBLASLt for rows that are no whole
 * vectors. */
enum { FEW = 8, RAGGED_STEP = 300 };
static const double ONE_BY_ONE = 2.5, THIN = 1.8;

/* Whether there are warpgroups, and more rows and columns than the smallest tile of warps has. */
static bool has_groups(const rp__matmul *p, const rp__device *d) { return d->arch == 90 && p->m > 16 && p->n > 16; }

/* Of fma, whose clocks say too little of many shares: where few tiles of a fixed size would leave multiprocessors idle. */
static unsigned fma_split_of(const rp__matmul *p, const rp__device *d) {
    if (is_small(p)) return p->k >= 512 ? 3 : p->k >= RP__MATMUL_LONG ? 2 : 0; /* whatever the batch */
    const bool narrow = p->m <= 16 || p->n <= 16;
    const int64_t tall = narrow ? 64 : 32, rows = p->m <= 16 ? 16 : tall, columns = p->n <= 16 ? 16 : 64, least = 64,
                  blocks = over(p->m, rows) * over(p->n, columns) * p->batch;
    const unsigned limit = narrow || p->k > 4096 ? 3 : 1;
    unsigned split = 0;
    while (split < limit && blocks << (split + 1) <= 2 * (int64_t)d->multiprocessors && p->k >= least << (split + 1))
        split++;
    return split;
}

/* Shares of K, as a power of two: those that take least time, where each is long enough to pay for adding them up. Sums that are cut into
 * shares have other bits: a function of sizes, dtype and kind of device. */
static unsigned split_of(const rp__matmul *p, const rp__device *d, math m) {
    enum { LEAST = 256 }; /* bytes of K of a share: two steps */
    unsigned split = 0;
    double least = 0;
    if (d->arch < 90) return 0;
    if (m == FMA) return fma_split_of(p, d);
    for (unsigned s = 0; s <= 3 && (s == 0 || p->k * (int64_t)rp__dtype_bytes(p->dtype) >= (int64_t)LEAST << s); s++) {
        double clocks = 0, groups = 0;
        (void)tile_of(p, d, m, s, &clocks);
        if (m == MMA && has_groups(p, d)) {
            (void)tile_of(p, d, WGMMA, s, &groups);
            if (groups < clocks) clocks = groups;
        }
        clocks += s ? ADD_SHARES : 0;
        if (s == 0 || clocks < 0.95 * least) split = s, least = clocks;
    }
    return split;
}

/* Whether 16-bit floats are multiplied by warpgroups, whose tiles have 64 rows and columns at least. The bits are the same. */
static bool by_groups(const rp__matmul *p, const rp__device *d, unsigned split) {
    double groups = 0, warps = 0;
    if (!has_groups(p, d)) return false;
    if (rp__cuda_product_tile) return rp__cuda_product_tile > FIRST_WGMMA && rp__cuda_product_tile <= FIRST_SLICED;
    (void)tile_of(p, d, WGMMA, split, &groups);
    (void)tile_of(p, d, MMA, split, &warps);
    return groups < warps;
}

/* Whether slices take less time than tiles whose threads walk all of K, in any shares, and then in how many: of the sizes alone. */
static bool is_sliced(const rp__matmul *p, const rp__device *d, unsigned *split) {
    double plain = 0, least = 0;
    *split = 0;
    if (d->arch < 90 || p->m * p->n * p->batch == 0) return false;
    if (rp__cuda_product_tile ? rp__cuda_product_tile <= FIRST_SLICED : is_small(p)) return false;
    for (unsigned s = 0; s <= 3 && (s == 0 || p->k >= INT64_C(64) << s); s++) {
        double clocks = 0;
        (void)tile_of(p, d, SLICED, s, &clocks);
        clocks += s ? ADD_SHARES : 0;
        if (s == 0 || clocks < least) *split = s, least = clocks;
    }
    if (rp__cuda_product_tile) return true;
    const unsigned whole = split_of(p, d, FMA);
    (void)tile_of(p, d, FMA, whole, &plain);
    return least < 1.1 * (plain + (whole ? ADD_SHARES : 0)); /* which has ends, too, that its clocks leave out */
}

/* Of the sizes alone. */
static unsigned own_split(const rp__matmul *p, const rp__device *d, math m) {
    unsigned sliced;
    if (m == SLICED) {
        (void)is_sliced(p, d, &sliced);
        return sliced;
    }
    return split_of(p, d, m);
}

/* How tensor cores multiply these operands; false: not at all. */
static bool tensor_math(const rp__problem *p, math *m) {
    if (p->device->arch < 80) return false;
    switch (p->o[0].dtype) {
    case RP_F16:
    case RP_BF16: *m = MMA; return true;
    case RP_I8: *m = INTEGER; return true;
    case RP_F32:
        if (p->order != RP__ORDER_ELSEWHERE) {
            const rp__order_family wanted = rp__order_family_of(p->order);
            *m = wanted == RP__FAMILY_TF32 ? TF32 : BF16X3;
            return wanted == families[*m];
        }
        *m = p->call->precision == RP__FLOAT32_BF16X3 ? BF16X3 : TF32;
        return p->call->precision != RP__FLOAT32_HIGHEST;
    default: return false;
    }
}
static bool plain_math(const rp__problem *p, math *m) {
    *m = FMA;
    if (p->o[0].dtype != RP_F32 || p->device->arch < 80) return false;
    rp__matmul read;
    unsigned split;
    rp__matmul_read(p->o, 3, &read);
    const bool sliced = p->order == RP__ORDER_ELSEWHERE ? is_sliced(&read, p->device, &split)
                                                        : rp__order_family_of(p->order) == RP__FAMILY_SLICES;
    if (sliced) *m = SLICED;
    return true;
}

static unsigned wanted_split(const rp__problem *p, const rp__matmul *read, math m) {
    const rp__order wanted = p->order;
    if (wanted != RP__ORDER_ELSEWHERE && rp__order_family_of(wanted) == families[m]) return rp__order_shares(wanted);
    if (!p->notes) return own_split(read, p->device, m);
    uint8_t *kept = &p->notes->split[m];
    if (!*kept) *kept = (uint8_t)(own_split(read, p->device, m) + 1);
    return *kept - 1u;
}

static rp__order order_of(const rp__problem *p, math m) {
    rp__matmul read;
    rp__matmul_read(p->o, 3, &read);
    return rp__order_with(rp__order_of(RP__CONTRACT_PRODUCT, 0), families[m], wanted_split(p, &read, m));
}
static rp__order tensor_order(const rp__problem *p) {
    math m;
    return tensor_math(p, &m) ? order_of(p, m) : RP__ORDER_ELSEWHERE;
}
static rp__order plain_order(const rp__problem *p) {
    math m;
    return plain_math(p, &m) ? order_of(p, m) : RP__ORDER_ELSEWHERE;
}

static bool fits(const rp__problem *p) {
    rp__matmul read;
    rp__matmul_read(p->o, 3, &read);
    /* of the smallest tile: one dimension of a grid */
    return read.m > 0 && read.n > 0 && read.k > 0 && read.batch > 0 &&
           (double)over(read.m, 16) * (double)over(read.n, 16) * (double)read.batch * 8 < INT32_MAX;
}
static bool tensor_serves(const rp__problem *p, size_t *workspace) {
    math m;
    (void)workspace;
    return tensor_math(p, &m) && fits(p);
}
static bool plain_serves(const rp__problem *p, size_t *workspace) {
    math m;
    (void)workspace;
    return plain_math(p, &m) && fits(p);
}

/* Below so many multiply-adds the plain kernels are as fast. */
#define SMALL_TENSOR (INT64_C(1) << 18)
/* f32 by fma: above so many cuBLASLt is faster. */
#define LARGE_FMA (INT64_C(1) << 27)

/* Of cuBLASLt: clocks of a launch, of 128 bytes of K, multiply-adds a clock and multiprocessor; and so many where rows of the result are no
 * whole vectors, as with a vocabulary of 30522: it has kernels of older devices alone for these. A launch of ours that takes a little
 * longer is still better: what follows may join it, and what it computes need not be copied out of a graph. */
static const struct peer {
    double launch, step, rate, ragged;
} peers[] = {[MMA] = {4500, 80, 1600, 500}, [TF32] = {7000, 80, 800, 800}};

/* Which way an operand of rows and K is read: along K or across. */
static bool runs_along(int64_t rows, int64_t row, int64_t k, const rp__matmul *p) {
    const int64_t size_row = row < 0 ? -row : row, size_k = k < 0 ? -k : k;
    return p->k > 1 && (k == 1 || (row != 1 && size_k < size_row) || rows == 1);
}
/* Whether an operand that begins at 16 bytes can be read 16 bytes at once. */
static bool strides_fit(const rp__operand *o, int64_t rows, int64_t row, int64_t k, const int64_t *batch,
                        const rp__matmul *p) {
    const int64_t c = 16 / (int64_t)rp__dtype_bytes(o->dtype);
    bool fit =
        runs_along(rows, row, k, p) ? k == 1 && (rows == 1 || row % c == 0) : row == 1 && (p->k == 1 || k % c == 0);
    for (unsigned d = 0; d < p->n_batch; d++) fit = fit && batch[d] % c == 0;
    return fit;
}

/* Bytes of operands and result over what memory moves in a clock. */
static double moved_of(const rp__matmul *p) {
    return (double)rp__dtype_bytes(p->dtype) * (double)p->batch *
           ((double)p->m * (double)p->n + ((double)p->m + (double)p->n) * (double)p->k) / BYTES;
}

/* Are both operands read 16 bytes at once, if they begin there? */
static bool reads_vectors(const rp__problem *p, const rp__matmul *read) {
    return strides_fit(&p->o[1], read->m, read->am, read->ak, read->sa, read) &&
           strides_fit(&p->o[2], read->n, read->bn, read->bk, read->sb, read);
}
/* Clocks of a launch of tensor cores. */
static double tensor_clocks(const rp__problem *p, const rp__matmul *read, math m) {
    const unsigned split = wanted_split(p, read, m);
    const bool in_vectors = reads_vectors(p, read);
    double steps = 0;
    (void)tile_of(read, p->device, m == MMA && in_vectors && by_groups(read, p->device, split) ? WGMMA : m, split,
                  &steps);
    if (!in_vectors && read->m > FEW && read->n > FEW) steps *= ONE_BY_ONE;
    /* tiles of one row of blocks keep less of memory under way */
    const double moved = moved_of(read) * (read->m <= 16 || read->n <= 16 ? THIN : 1);
    return LAUNCH + (split ? ADD_SHARES : 0) + (steps > moved ? steps : moved);
}
static bool is_sooner(const rp__problem *p, const rp__matmul *read, math m, double ours) {
    const double bytes = (double)rp__dtype_bytes(read->dtype), moved = moved_of(read);
    const bool ragged = reads_vectors(p, read) && read->m > 1 && read->om * (int64_t)bytes % 16 != 0;
    const double rate = ragged ? peers[m].ragged : peers[m].rate,
                 work = rp__problem_work(p) / (rate * p->device->multiprocessors);
    const double theirs = peers[m].launch + (work > moved ? work : moved) +
                          (ragged ? RAGGED_STEP : peers[m].step) * bytes / 128 * (double)read->k;
    return rp__cuda_product_tile || ours <= 1.1 * theirs + JOINS;
}

/* Clocks of an element of K of the kernel that walks it alone. */
enum { SIMT = 55 };
static double tensor_cost(const rp__problem *p) {
    math m = MMA;
    rp__matmul read;
    const double work = rp__problem_work(p);
    rp__matmul_read(p->o, 3, &read);
    if (work < (double)SMALL_TENSOR || read.k < 32 || !tensor_math(p, &m)) return work + 1;
    if (m != MMA && m != TF32) return 1; /* no library has these */
    const double ours = tensor_clocks(p, &read, m);
    if (is_sooner(p, &read, m, ours)) return 1;
    if (work < (double)RP__CUDA_SMALL_PRODUCT &&
        read.k < RP__MATMUL_LONG_NARROW) /* what matmul.c's row costs less for */
        return ours < LAUNCH + (double)SIMT * (double)read.k ? 1 : work + 1;
    return 2 * (double)RP__CUDA_SMALL_PRODUCT;
}
/* A small product whose sums are long: the kernel of small ones walks K alone in each of its few blocks, SIMT clocks an element. */
static bool has_long_sums(const rp__problem *p, const rp__matmul *read) {
    const unsigned split = wanted_split(p, read, FMA);
    double steps = 0;
    if (read->k < RP__MATMUL_LONG) return false;
    (void)tile_of(read, p->device, FMA, split, &steps);
    return (split ? ADD_SHARES : 0) + steps < (double)SIMT * (double)read->k;
}
/* How much longer than clocks_of says: tiles of few rows or columns are nearly empty, and elements read one by one are as many instructions. */
static double hardship_of(const rp__problem *p, const rp__matmul *read) {
    const int64_t least = read->m < read->n ? read->m : read->n;
    if (!reads_vectors(p, read)) return 2;
    return least <= FEW ? 1.5 : 1;
}
/* Is cuBLASLt no sooner, which reads a matrix at the rate of memory and multiplies so many terms a clock and multiprocessor? */
static bool is_plain_sooner(const rp__problem *p, const rp__matmul *read, double hardship) {
    enum { TERMS = 40 };
    math m = FMA;
    (void)plain_math(p, &m);
    const unsigned split = wanted_split(p, read, m);
    const double moved = moved_of(read), work = rp__problem_work(p) / (TERMS * (double)p->device->multiprocessors);
    double steps = 0;
    (void)tile_of(read, p->device, m, split, &steps);
    return LAUNCH + (split ? ADD_SHARES : 0) + steps * hardship <=
           1.1 * (peers[MMA].launch + (work > moved ? work : moved)) + JOINS;
}
static double plain_cost(const rp__problem *p) {
    rp__matmul read;
    const double work = rp__problem_work(p);
    rp__matmul_read(p->o, 3, &read);
    if (p->order == RP__ORDER_ELSEWHERE && p->call->precision != RP__FLOAT32_HIGHEST)
        return work + 2; /* tensor cores, then */
    if (rp__cuda_product_tile) return 1;
    const bool is_large = work >= (double)RP__CUDA_SMALL_PRODUCT, is_thin = read.m < 4 || read.n < 4;
    if (!is_large && !has_long_sums(p, &read)) return work + 1;
    const double hardship = hardship_of(p, &read);
    const bool ours =
        work <= (double)LARGE_FMA && !(is_large && is_thin) && (hardship == 1 || is_plain_sooner(p, &read, hardship));
    return ours ? 1 : 2 * (double)RP__CUDA_SMALL_PRODUCT;
}

/* ---- launches */

/* Whether so many results of a row lie side by side, aligned. */
static bool out_lies(const rp__operand *o, const rp__matmul *p, int64_t n) {
    bool lies = o->base && (uintptr_t)o->base % ((size_t)n * rp__dtype_bytes(o->dtype)) == 0 && p->on == 1 &&
                p->n % n == 0 && (p->m == 1 || p->om % n == 0);
    for (unsigned d = 0; d < p->n_batch; d++) lies = lies && p->so[d] % n == 0;
    return lies;
}

static void readings(const rp__operand *o, int64_t rows, int64_t row, int64_t k, const int64_t *batch,
                     const rp__matmul *p, math m, unsigned along_at, unsigned wide_at, uint64_t *facts) {
    const bool along = runs_along(rows, row, k, p),
               wide = (along || m != INTEGER) && (uintptr_t)o->base % 16 == 0 && strides_fit(o, rows, row, k, batch, p);
    *facts |= (uint64_t)along << along_at | (uint64_t)wide << wide_at;
}

static void set_grid(const rp__matmul *read, const struct tile *t, unsigned split, unsigned problems, uint64_t facts,
                     rp__launch *out) {
    out->grid[0] = (uint32_t)((over(read->m, t->tm) * over(read->n, t->tn) * read->batch) << split) * problems;
    out->grid[1] = out->grid[2] = 1;
    out->block[0] = threads_of(t);
    out->block[1] = out->block[2] = 1;
    out->shared_bytes = room_of(facts);
}

static rp_status set_tiles(const rp__problem *p, const rp__matmul *read, math m, bool wide, rp__launch_buffer *buffer,
                           rp__launch *out, uint64_t *facts) {
    const unsigned split = wanted_split(p, read, m);
    double clocks = 0;
    const int64_t share = split ? over(over(read->k, INT64_C(1) << split), 32) * 32 : read->k,
                  c = 16 / (int64_t)rp__dtype_bytes(read->dtype);
    *facts = (uint64_t)read->dtype | (uint64_t)read->n_batch << BATCH | (uint64_t)m << MATH | (uint64_t)split << SPLIT |
             (uint64_t)read->bias << BIAS | (uint64_t)wide << WIDE;
    readings(&p->o[1], read->m, read->am, read->ak, read->sa, read, m, A_ALONG, A_WIDE, facts);
    readings(&p->o[2], read->n, read->bn, read->bk, read->sb, read, m, B_ALONG, B_WIDE, facts);
    const bool out_wide = out_lies(&p->o[0], read, c);
    *facts |= (uint64_t)out_wide << OUT_WIDE | (uint64_t)(!out_wide && out_lies(&p->o[0], read, 2)) << OUT_PAIRS;
    if (m == MMA && is_async(*facts) && by_groups(read, p->device, split)) m = WGMMA;
    const unsigned tile = tile_of(read, p->device, m, split, &clocks);
    const struct tile *t = &shapes[tile];
    *facts |= (uint64_t)(tile - ranges[m].first) << TILE | (uint64_t)m << MATH;
    if (m == FMA || m == SLICED) {
        const int64_t block = (int64_t)RP__PRODUCT_BLOCK * slices_of(m);
        *facts |= (uint64_t)(share > block) << LONG | (uint64_t)(share > block * RP__PRODUCT_GROUP) << LONGER;
    }
    rp__matmul_words(read, buffer, out);
    out->ahead = is_async(*facts) ? RP__MATMUL_AHEAD : 0;
    set_grid(read, t, split, 1, *facts, out);
    return RP_OK;
}

static rp_status bind(const rp__problem *p, math m, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "product"};
    rp__matmul read;
    rp__matmul_read(p->o, p->n, &read);
    rp__matmul_start(p, &read, buffer, out);
    RP_TRY(set_tiles(p, &read, m, rp__matmul_is_wide(p->o, read.bias ? 4 : 3), buffer, out, &key.facts));
    return rp__text_kernel(p->device, &key, macros, rp__embed_product_cuh, rp__embed_product_cuh_len, &out->kernel);
}
/* ---- several at once */

static rp_status join(rp__device *d, const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer,
                      rp__launch *out) {
    enum { MOST = 4 };
    const uint64_t varies = (uint64_t)15 << TILE | (uint64_t)3 << PROBLEMS;
    rp__text_kernel_key key = {.family = "product"};
    uint64_t one;
    rp__matmul read;
    double clocks = 0;
    if (!rp__text_kernel_facts(a->kernel, key.family, &key.facts) ||
        !rp__text_kernel_facts(b->kernel, key.family, &one))
        return RP_OK;
    const unsigned n = problems_of(key.facts);
    if (n == MOST || problems_of(one) > 1 || (key.facts & ~varies) != (one & ~varies) || !rp__matmul_is_alike(a, b))
        return RP_OK;
    rp__matmul_read_words(b->words, (rp_dtype)(one & 15), (unsigned)(one >> BATCH & 15), &read);
    const unsigned split = (unsigned)(one >> SPLIT & 3);
    const int64_t batch = read.batch;
    read.batch *= n + 1;
    if (over(read.m, 16) * over(read.n, 16) * read.batch * 8 >= INT32_MAX) return RP_OK;
    const math m = math_of(one);
    const unsigned tile = tile_of(&read, d, m, split, &clocks);
    read.batch = batch;
    key.facts = (one & ~varies) | (uint64_t)(tile - ranges[m].first) << TILE | (uint64_t)n << PROBLEMS;
    rp__matmul_join(a, b, buffer, out);
    set_grid(&read, &shapes[tile], split, n + 1, key.facts, out);
    return rp__text_kernel(d, &key, macros, rp__embed_product_cuh, rp__embed_product_cuh_len, &out->kernel);
}

static rp_status tensor_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    math m = MMA;
    (void)workspace;
    (void)tensor_math(p, &m);
    return bind(p, m, buffer, out);
}
static rp_status plain_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    math m;
    (void)workspace;
    (void)plain_math(p, &m);
    return bind(p, m, buffer, out);
}

static rp_status tiles(const rp__problem *p, math m, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                       uint64_t *facts) {
    rp__matmul read;
    rp__matmul_read(p->o, 3, &read);
    rp__matmul_factors(p, buffer, out);
    *wide = *wide || rp__matmul_is_wide(p->o + 1, 2);
    RP_TRY(set_tiles(p, &read, m, *wide, buffer, out, facts));
    *facts |= (uint64_t)(p->call->neighbours == RP__NEIGHBOURS_COLUMNS) << OUT_WIDE;
    return RP_OK;
}
static rp_status tensor_tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                              uint64_t *facts) {
    math m = MMA;
    (void)tensor_math(p, &m);
    return tiles(p, m, wide, buffer, out, facts);
}
static rp_status plain_tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                             uint64_t *facts) {
    math m;
    (void)plain_math(p, &m);
    return tiles(p, m, wide, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_product_cuh, rp__embed_product_cuh_len, parts, out);
}

const rp__cuda_product_row rp__cuda_tensor_row = {.row = {.name = "mma",
                                                          .ops = 1u << RP__LIB_MATMUL,
                                                          .follows = true,
                                                          .serves = tensor_serves,
                                                          .order = tensor_order,
                                                          .cost = tensor_cost,
                                                          .bind = tensor_bind},
                                                  .words = rp__matmul_n_words,
                                                  .tiles = tensor_tiles,
                                                  .join = join, /* fma's, too */
                                                  .source = source,
                                                  .takes_lanes = takes_lanes};

const rp__cuda_product_row rp__cuda_fma_row = {.row = {.name = "fma",
                                                       .ops = 1u << RP__LIB_MATMUL,
                                                       .follows = true,
                                                       .serves = plain_serves,
                                                       .order = plain_order,
                                                       .cost = plain_cost,
                                                       .bind = plain_bind},
                                               .words = rp__matmul_n_words,
                                               .tiles = plain_tiles,
                                               .source = source,
                                               .takes_lanes = takes_lanes};
