/* See attention.h. Of a problem the same kernel computes eager, compiled and captured calls: it is chosen by sizes and dtypes, and its bits
   do not depend on strides. */
#include "kernel/cuda/attention.h"

#include <string.h>

#include "core/dtype.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Words: addresses; sizes; strides in elements, four of each of the first, of (b, h, row, feature) in that order. */
#define ADDRESSES(X)                                                                                                   \
    X(OUT)                                                                                                             \
    X(DQ)                                                                                                              \
    X(DK)                                                                                                              \
    X(DV)                                                                                                              \
    X(GRAD)                                                                                                            \
    X(Q)                                                                                                               \
    X(K)                                                                                                               \
    X(V)                                                                                                               \
    X(LSE)                                                                                                             \
    X(DELTA)                                                                                                           \
    X(MASK)                                                                                                            \
    X(PLACE)                                                                                                           \
    X(HEADS)                                                                                                           \
    X(GROUP)                                                                                                           \
    X(ROWS)                                                                                                            \
    X(KEYS)                                                                                                            \
    X(FEATURES)                                                                                                        \
    X(VALUES)                                                                                                          \
    X(SCALE)                                                                                                           \
    X(KEEP)                                                                                                            \
    X(SECTION)                                                                                                         \
    X(TILES)
#define WORD(name) W_##name,
enum { ADDRESSES(WORD) W_STRIDES, N_WORDS = W_STRIDES + 4 * (W_MASK + 1) };

enum { FORWARD, KEYS, QUERIES }; /* RP_PART */
enum { NO_MASK, BOOL_MASK, F32_MASK, SAME_MASK };
/* Facts of a kernel: where each begins. */
enum {
    PART = 8,
    MASK = 10,
    CAUSAL = 12,
    DROPOUT,
    FEATURES = 17, /* in 16, as VALUES and STEP */
    VALUES = 22,
    MMA = 27, /* on tensor cores */
    WARPS,
    ROW_TILES = 32, /* without: rows of a thread, as a power of two */
    STEP = 34,
    SPLIT = 38,
    PACKED = 40,
    GENERAL,
    WIDE,
    KEEP_A,
    BLOCKS,
    HALVES = 47,
    SHARE,
    WARPGROUPS,
    SLOTS
};
static unsigned field(uint64_t facts, unsigned at, unsigned bits) {
    return (unsigned)(facts >> at & ((1u << bits) - 1));
}

static void word_macros(rp__text *out) {
#define NAME(name) #name,
    static const char *const names[] = {ADDRESSES(NAME)};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) rp__text_add(out, "#define W_%s %u\n", names[i], i);
    rp__text_add(out, "#define W_STRIDES %d\n#define RP_N_WORDS %d\n", W_STRIDES, N_WORDS);
}

static void problem_macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    const char *s = dtype == RP_F64 ? "f64" : "f32";
    rp__text_kernel_dtype(dtype, out);
    word_macros(out);
    rp__text_add(out, "#define RP_SHUFFLE(x, lanes, width) rp_shfl_xor_%s(x, lanes, width)\n", s);
    rp__text_add(out, "#define RP_PART %u\n#define RP_MASK %u\n#define RP_CAUSAL %u\n#define RP_DROPOUT %u\n",
                 field(facts, PART, 2), field(facts, MASK, 2), field(facts, CAUSAL, 1), field(facts, DROPOUT, 1));
    rp__text_add(out, "#define RP_D %u\n#define RP_V %u\n", 16 * field(facts, FEATURES, 5),
                 16 * field(facts, VALUES, 5));
    if (!field(facts, MMA, 1)) {
        rp__text_add(out, "#define RP_EXP2(x) rp_exp2_%s(x)\n#define RP_LOG2(x) rp_log2_%s(x)\n",
                     dtype == RP_F64 ? "f64" : "approx_f32", s);
        rp__text_add(out, "#define RP_WARPS %u\n#define RP_TM %u\n#define RP_N %u\n", field(facts, WARPS, 4),
                     1u << field(facts, ROW_TILES, 2), 16 * field(facts, STEP, 4));
        rp__text_add(out, "#define RP_BLOCKS %u\n#define RP_WIDE %u\n", field(facts, BLOCKS, 3), field(facts, WIDE, 1));
        rp__text_write(out, rp__embed_attention_common_cuh, rp__embed_attention_common_cuh_len);
        return;
    }
    s = rp__dtypes[dtype].short_name;
    if (field(facts, WARPGROUPS, 1)) {
        const unsigned n = 16 * field(facts, STEP, 4), d = 16 * field(facts, FEATURES, 5),
                       v = 16 * field(facts, VALUES, 5);
        rp__text_add(out, "#define RP_PACK(a, b) rp_cvt_f32_to_%sx2(a, b)\n#define RP_GROUPS %u\n#define RP_N %u\n", s,
                     field(facts, WARPS, 4) / 4, n);
        rp__text_add(out, "#define RP_MMA_N(d, a, b, accumulate) rp_wgmma_n%u_%s(d, a, b, accumulate, 0, 0)\n", n, s);
        rp__text_add(out, "#define RP_MMA_D(d, a, b) rp_wgmma_n%u_%s_ra(d, a, b, 1, 1)\n", d, s);
        rp__text_add(out, "#define RP_MMA_V(d, a, b) rp_wgmma_n%u_%s_ra(d, a, b, 1, 1)\n", v, s);
        rp__text_add(out, "#define RP_GENERAL %u\n#define RP_WIDE %u\n#define RP_BLOCKS %u\n#define RP_HALVES %u\n",
                     field(facts, GENERAL, 1), field(facts, WIDE, 1), field(facts, BLOCKS, 3),
                     field(facts, HALVES, 1) + 1);
        rp__text_add(out, "#define RP_SLOTS %u\n", field(facts, SLOTS, 2) + 1);
        rp__text_write(out, rp__embed_attention_common_cuh, rp__embed_attention_common_cuh_len);
        return;
    }
    rp__text_add(
        out, "#define RP_MMA(d, a, b) rp_mma_m16n8k16_%s(d, a, b)\n#define RP_PACK(a, b) rp_cvt_f32_to_%sx2(a, b)\n", s,
        s);
    rp__text_add(out,
                 "#define RP_WARPS %u\n#define RP_MT %u\n#define RP_N %u\n#define RP_SPLIT %u\n#define RP_PACKED %u\n",
                 field(facts, WARPS, 4), field(facts, ROW_TILES, 2), 16 * field(facts, STEP, 4),
                 1u << field(facts, SPLIT, 2), field(facts, PACKED, 1));
    rp__text_add(
        out,
        "#define RP_GENERAL %u\n#define RP_WIDE %u\n#define RP_KEEP_A %u\n#define RP_BLOCKS %u\n#define RP_HALVES %u\n",
        field(facts, GENERAL, 1), field(facts, WIDE, 1), field(facts, KEEP_A, 1), field(facts, BLOCKS, 3),
        field(facts, HALVES, 1) + 1);
    rp__text_add(out, "#define RP_SHARE %u\n", field(facts, SHARE, 1));
    rp__text_write(out, rp__embed_attention_common_cuh, rp__embed_attention_common_cuh_len);
}

static int64_t padded(int64_t n, int64_t to) { return n < 1 ? to : (n + to - 1) / to * to; }

typedef struct plan {
    unsigned warps, row_tiles, step, split, blocks, slots; /* split: as a power of two; blocks: a multiprocessor */
    bool packed, keep_a, halves, share; /* share: the warps of a block have the same rows, and keys of their own */
    bool warpgroups;                    /* attention_wgmma.cuh, rows_of does not hold, warps are those that multiply */
} plan;

/* ---- attention_simt.cuh: tiles */

static int64_t simt_rows(const plan *p) { return 4 * (INT64_C(1) << p->row_tiles) * p->warps; }

static int64_t simt_bytes(unsigned part, const plan *p, int64_t d, int64_t v, int64_t element) {
    const int64_t vector = 16 / element, m = simt_rows(p), n = p->step, ld = d + vector, lv = v + vector,
                  weights = m * (n + 2 * vector);
    return element * (part == FORWARD ? (m + n) * ld + n * lv + weights
                                      : (m + n) * (ld + lv) + weights + (part == KEYS ? 2 * n : 0));
}

/* Clocks of products without waiting, by multiply-adds: a warp's vectors of both sides, of which a multiprocessor's shared memory gives one in two
   clocks, are instructions beside the multiply-adds of four warps. */
static double simt_rate(double rows, double columns) {
    const double reads = 2 * (rows + columns) / (rows * columns), given = 1 + reads / 8;
    return reads > given ? reads : given;
}

/* A function of sizes, dtype and the device alone: of all tiles whose sums fit the registers the one of which a cost model says that it is
   fastest. False: shared memory is too small for any. */
static bool simt_plan_of(const rp__device *device, unsigned part, const rp__operand *q, const rp__operand *k, int64_t d,
                         int64_t v, int64_t element, bool causal, plan *best) {
    const int64_t rows = part == KEYS ? k->size[2] : q->size[2],
                  heads = q->size[0] * (part == KEYS ? k->size[1] : q->size[1]),
                  sums = part == FORWARD ? v
                         : part == KEYS  ? d + v
                                         : d;
    double least = 0;
    best->warps = 0;
    for (unsigned tiles = 0; tiles < 4; tiles++) {
        for (unsigned warps = 2; warps <= 8; warps *= 2) {
            for (unsigned step = 16; step <= 64; step *= 2) {
                plan p = {.warps = warps, .row_tiles = tiles, .step = step};
                const int64_t tm = INT64_C(1) << tiles, vector = 16 / element, m = simt_rows(&p),
                              bytes = simt_bytes(part, &p, d, v, element),
                              words = tm * sums / 8 + tm * step / 8 * (part == FORWARD ? 1 : 2) + (tm + 2) * vector,
                              registers = words * element / 4 + 60; /* and places, counters, rows' values */
                if (registers > 252 || bytes > (int64_t)device->shared_limit) continue;
                const int64_t by_registers = 65536 / (32 * (int64_t)warps * padded(registers, 8)),
                              by_shared = (int64_t)device->shared_limit / bytes,
                              most = by_registers < by_shared ? by_registers : by_shared,
                              resident = most < 7 ? most : 7, blocks = heads * ((rows + m - 1) / m);
                if (resident < 1) continue;
                p.blocks = (unsigned)resident;
                /* Blocks of the busiest multiprocessor; causal ones are half as long, and the longest fill it first. */
                const double each = (double)blocks / device->multiprocessors,
                             whole = (double)(int64_t)(each + 1 - 1e-9), busy = causal ? each / 2 + 0.5 : whole,
                             together = whole < (double)resident ? whole : (double)resident,
                             waits = 12 / (together * warps * (double)tm) +
                                     0.1 / together; /* not hidden by other warps, rows; blocks */
                const double scores = (double)(part == FORWARD ? d : d + v) * simt_rate((double)tm, step / 8.0),
                             adds = (double)sums * simt_rate((double)tm, (double)(part == KEYS ? sums / 2 : sums) / 8),
                             others = 24 + 8 * (double)(d + v) / (double)(vector * m), /* exponentials; copies */
                    clocks = busy * (double)m * (scores + adds + others) * (1 + waits);
                if (best->warps && clocks >= least) continue;
                *best = p;
                least = clocks;
            }
        }
    }
    return best->warps != 0;
}

/* ---- attention_mma.cuh: tiles */

static int64_t rows_of(const plan *p) { return 16 * (int64_t)p->row_tiles * (p->share ? 1 : p->warps); }

static int64_t mma_bytes(unsigned part, const plan *p, int64_t d, int64_t v) {
    const int64_t m = rows_of(p), n = p->step, tiles = 2 * (m + 2 * n) * (d + v);
    if (part != FORWARD) return tiles + (part == KEYS ? 16 * n : 0);
    const int64_t parts = p->share ? p->warps : 1, streamed = tiles - 2 * m * v,
                  result = p->split || p->share ? 4 * parts * m * (v + 2) : 2 * m * v;
    return streamed > result ? streamed : result;
}

/* Shares of the keys, as a power of two, with which so many blocks at once are done soonest: rounds that are not full are a share long. */
static unsigned split_of(int64_t blocks, int64_t steps, int64_t at_once) {
    unsigned split = 0;
    double least = 0;
    for (unsigned s = 0; s <= 3 && (s == 0 || steps >= INT64_C(2) << s); s++) {
        const double time = (double)(((blocks << s) + at_once - 1) / at_once) / (1 << s) * (1 + 0.06 * s);
        if (s == 0 || time < least) split = s, least = time;
    }
    return split;
}

/* A function of sizes and the device alone: it decides in which order sums are added up. False: not on these tensor cores. */
static bool plan_of(const rp__device *device, unsigned part, const rp__operand *q, const rp__operand *k, int64_t d,
                    int64_t v, plan *p) {
    const int64_t most = d > v ? d : v, heads = q->size[1], group = heads / k->size[1], rows = q->size[2],
                  keys = k->size[2], processors = device->multiprocessors;
    *p = (plan){.warps = 4, .row_tiles = 1, .step = most <= 128 ? 64 : 32, .blocks = most <= 128 ? 2 : 1};
    if (part == FORWARD) {
        p->packed = group > 1 && rows <= 16;
        const int64_t all = p->packed ? rows * group : rows, many = q->size[0] * (p->packed ? k->size[1] : heads);
        const unsigned step = most <= 64 ? 128 : 64;
        if (all <= (most <= 128 ? 32 : 16) && (most > 128 || keys > step / 2)) { /* keys for each warp */
            p->share = true;
            p->row_tiles = all <= 16 ? 1 : 2;
            p->step = step;
        } else if (most > 128) {
            p->step = 64;
            p->warps = 8;
        } else if (all > 64 && many * ((all + 127) / 128) * 2 >= processors * 3) {
            p->row_tiles = 2;
        }
        p->keep_a = most <= 64 && p->row_tiles == 1;
        const int64_t m = rows_of(p), blocks = many * ((all + m - 1) / m), steps = (keys + p->step - 1) / p->step;
        p->split = device->arch >= 90 ? split_of(blocks, steps, p->blocks * processors) : 0;
    } else if (part == KEYS) {
        const int64_t blocks = q->size[0] * k->size[1] * ((keys + 127) / 128);
        if (most <= 64 && blocks >= processors) p->row_tiles = 2, p->step = 32;
        if (most > 64) p->step = 32;
        p->halves = most > 128;
    } else {
        const int64_t blocks = q->size[0] * heads * ((rows + 127) / 128);
        if (most <= 128 && blocks >= processors) p->row_tiles = 2;
        if (p->row_tiles == 2 && most > 64) p->step = 32;
    }
    return mma_bytes(part, p, d, v) <= (int64_t)device->shared_limit;
}

/* ---- attention_wgmma.cuh: tiles */

/* Columns of a product for which there is an instruction. */
static int64_t columns_for(int64_t n) {
    static const uint8_t some[] = {16, 32, 48, 64, 80, 96, 128, 160, 192};
    for (size_t i = 0; i < sizeof some; i++)
        if (n <= some[i]) return some[i];
    return 256;
}

static int64_t warpgroup_bytes(unsigned part, const plan *p, int64_t d, int64_t v) {
    const int64_t m = 16 * (int64_t)p->warps, n = p->step, slots = p->slots, wide_d = padded(d, 64),
                  wide_v = padded(v, 64);
    return 2 * m * (part == FORWARD ? wide_d : wide_d + wide_v) + 2 * slots * n * (wide_d + wide_v) +
           (part == KEYS ? 8 * slots * n : 0) + 192;
}

/* As plan_of, where tiles of 64 rows a warpgroup fill the device, of large heads some of it. */
static bool warpgroup_plan_of(const rp__device *device, unsigned part, const rp__operand *q, const rp__operand *k,
                              int64_t d, int64_t v, plan *p) {
    const int64_t most = d > v ? d : v, rows = part == KEYS ? k->size[2] : q->size[2],
                  heads = q->size[0] * (part == KEYS ? k->size[1] : q->size[1]), tiles = heads * ((rows + 127) / 128);
    if (device->arch != 90 || most > 256 || q->size[2] <= 32) return false;
    *p = (plan){.warps = 8, .blocks = 1, .slots = 4, .warpgroups = true};
    if (part == FORWARD) {
        /* rows of the busiest multiprocessor; three warpgroups hide a tenth more than two */
        const int64_t three = (heads * ((rows + 191) / 192) + device->multiprocessors - 1) / device->multiprocessors,
                      two = (tiles + device->multiprocessors - 1) / device->multiprocessors;
        p->warps = most <= 96 && 9 * three * 192 <= 10 * two * 128 ? 12 : 8;
        p->step = most <= 64 ? 128 : most <= 96 ? 96 : most <= 128 ? 128 : most <= 192 ? 96 : 80;
        p->slots = most > 96 && most <= 128 ? 3 : 2;
        if (most > 96 && most <= 128 && k->size[2] >= 4096) p->step = 176, p->slots = 2; /* long: fewer steps */
        if (k->size[2] > 0 && k->size[2] <= p->step) p->step = (unsigned)columns_for(k->size[2]);
    } else if (part == KEYS) {
        p->step = most <= 80 ? 64 : most <= 128 ? 48 : 32;
        p->halves = most > 128;
    } else {
        if (most <= 64) p->warps = 12;
        p->step = most <= 128 ? 64 : 32;
    }
    if (part != FORWARD && most > 192) p->slots = 3; /* what fits */
    const unsigned together = part != FORWARD ? 0 : most <= 64 ? 3 : most <= 128 ? 2 : 0;
    if (heads * ((rows + 63) / 64) <= together * device->multiprocessors ||
        (part == FORWARD && most <= 64 && k->size[2] <= 256)) { /* all at once, or short */
        p->warps = 4, p->blocks = together, p->slots = 2;
        if (p->step > 64) p->step = 64;
    } else if ((p->halves ? 2 : 1) * tiles < device->multiprocessors) {
        p->warps = 4; /* twice as many blocks of 64 rows */
    }
    /* of large heads a multiprocessor computes some four times as much so as by attention_mma.cuh, whose blocks may share out the keys */
    return (part == FORWARD && most > 128 ? 8 : 2) * tiles >= device->multiprocessors &&
           warpgroup_bytes(part, p, d, v) <= (int64_t)device->shared_limit;
}

/* Can rows be read 16 bytes at once? */
static bool is_wide(const rp__operand *o) {
    const int64_t vector = 16 / (int64_t)rp__dtype_bytes(o->dtype);
    if ((uintptr_t)o->base % 16 || o->size[3] % vector || (o->size[3] > 1 && o->stride[3] != 1)) return false;
    for (unsigned i = 0; i < 3; i++)
        if (o->size[i] > 1 && o->stride[i] % vector) return false;
    return true;
}

/* Heads whose rows of what their blocks all read fit a second level cache. */
static int64_t section_of(unsigned part, const rp__operand *q, const rp__operand *k, const rp__operand *v) {
    const int64_t group = q->size[1] / k->size[1], rows = part == KEYS ? group * q->size[2] : k->size[2],
                  bytes = rows * (q->size[3] + v->size[3]) * (int64_t)rp__dtype_bytes(q->dtype) + 1,
                  n = (INT64_C(40) << 20) / bytes, some = (n < 1 ? 1 : n) * (part == KEYS ? 1 : group),
                  all = q->size[0] * q->size[1];
    return some < all ? some : all;
}

static void put(const rp__operand *o, unsigned which, const unsigned *order, uint32_t access, rp__launch_buffer *buffer,
                rp__launch *out) {
    if (!o->base) return;
    rp__operand_slot(o, which, access, buffer, out);
    for (unsigned i = 0; i < 4 && i < o->ndim; i++)
        buffer->words[W_STRIDES + 4 * which + i] = (uint64_t)o->stride[order[i]];
}
static const unsigned heads_first[4] = {0, 1, 2, 3}, rows_first[4] = {0, 2, 1, 3};

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

rp_status rp__cuda_attention_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                  const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    const unsigned part = op == RP__LIB_ATTENTION ? FORWARD : op == RP__LIB_ATTENTION_KEYS ? KEYS : QUERIES;
    const rp__operand *q = part == FORWARD ? &o[2] : &o[4], *k = q + 1, *v = q + 2, *mask = &o[n - 2],
                      *place = &o[n - 1];
    uint64_t *w = buffer->words;
    memset(out, 0, sizeof *out);
    out->op = call->op;
    out->site = call->site;
    if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4 || k->size[1] < 1 || q->size[1] % k->size[1])
        return rp__fail(RP_ERROR_INTERNAL, "%s: operands of attention do not fit", call->op);
    if (q->size[2] * (q->size[1] / k->size[1]) > INT32_MAX / 2 || k->size[2] > INT32_MAX / 2)
        return rp__fail(RP_ERROR_SHAPE, "%s: sequences of more than 2^30 elements on CUDA", call->op);
    memset(w, 0, N_WORDS * sizeof *w);
    if (part == FORWARD) {
        put(&o[0], W_OUT, rows_first, RP__WRITE, buffer, out);
        put(&o[1], W_LSE, heads_first, RP__WRITE, buffer, out);
    } else {
        if (part == QUERIES) put(&o[0], W_DQ, rows_first, RP__WRITE, buffer, out);
        if (part == KEYS) put(&o[1], W_DK, rows_first, RP__WRITE, buffer, out);
        if (part == KEYS) put(&o[2], W_DV, rows_first, RP__WRITE, buffer, out);
        put(&o[3], W_GRAD, rows_first, RP__READ, buffer, out);
        put(&o[7], W_LSE, heads_first, RP__READ, buffer, out);
        put(&o[8], W_DELTA, heads_first, RP__READ, buffer, out);
    }
    put(q, W_Q, heads_first, RP__READ, buffer, out);
    put(k, W_K, heads_first, RP__READ, buffer, out);
    put(v, W_V, heads_first, RP__READ, buffer, out);
    put(mask, W_MASK, heads_first, RP__READ, buffer, out);
    if (place->base) rp__operand_slot(place, W_PLACE, RP__READ, buffer, out);
    w[W_HEADS] = (uint64_t)q->size[1], w[W_GROUP] = (uint64_t)(q->size[1] / k->size[1]);
    w[W_ROWS] = (uint64_t)q->size[2], w[W_KEYS] = (uint64_t)k->size[2];
    w[W_FEATURES] = (uint64_t)q->size[3], w[W_VALUES] = (uint64_t)v->size[3];
    w[W_SCALE] = bits_of(call->attention.scale), w[W_KEEP] = bits_of(1 - call->attention.dropout);
    out->n_words = N_WORDS;
    const rp_dtype dtype = q->dtype;
    const unsigned kind = !mask->base              ? NO_MASK
                          : mask->dtype == RP_BOOL ? BOOL_MASK
                          : mask->dtype == RP_F32  ? F32_MASK
                                                   : SAME_MASK;
    rp__text_kernel_key key = {.family = "attention"};
    key.facts = (uint64_t)dtype | (uint64_t)part << PART | (uint64_t)kind << MASK |
                (uint64_t)call->attention.causal << CAUSAL | (uint64_t)(place->base != NULL) << DROPOUT;
    plan tiles;
    int64_t features = padded(q->size[3], 32), values = padded(v->size[3], 32), tile, bytes, copies = 1;
    const bool rows_wide = is_wide(q) && is_wide(k) && is_wide(v) && (part == FORWARD || is_wide(&o[3]));
    const bool narrow = rp__dtype_is_half(dtype) && d->arch >= 80,
               general = kind != NO_MASK || !(call->attention.scale > 0),
               groups =
                   narrow && warpgroup_plan_of(d, part, q, k, columns_for(q->size[3]), columns_for(v->size[3]), &tiles),
               mma = groups || (narrow && plan_of(d, part, q, k, features, values, &tiles));
    if (mma) {
        if (groups) features = columns_for(q->size[3]), values = columns_for(v->size[3]);
        tile = groups ? 16 * (int64_t)tiles.warps : rows_of(&tiles);
        bytes = (groups ? warpgroup_bytes : mma_bytes)(part, &tiles, features, values);
        copies = tiles.halves ? 2 : (int64_t)1 << tiles.split;
        key.facts |= UINT64_C(1) << MMA | (uint64_t)tiles.warps << WARPS | (uint64_t)tiles.row_tiles << ROW_TILES |
                     (uint64_t)tiles.step / 16 << STEP | (uint64_t)tiles.split << SPLIT |
                     (uint64_t)tiles.packed << PACKED | (uint64_t)general << GENERAL | (uint64_t)rows_wide << WIDE |
                     (uint64_t)tiles.keep_a << KEEP_A | (uint64_t)tiles.blocks << BLOCKS |
                     (uint64_t)tiles.halves << HALVES | (uint64_t)tiles.share << SHARE |
                     (uint64_t)tiles.warpgroups << WARPGROUPS | (uint64_t)(groups ? tiles.slots - 1 : 0) << SLOTS;
    } else {
        const int64_t element = dtype == RP_F64 ? 8 : 4;
        features = padded(q->size[3], 16), values = padded(v->size[3], 16);
        if (!simt_plan_of(d, part, q, k, features, values, element, call->attention.causal, &tiles))
            return rp__fail(RP_ERROR_UNAVAILABLE,
                            "%s: heads of %lld features do not fit the shared memory of this device", call->op,
                            (long long)(q->size[3] > v->size[3] ? q->size[3] : v->size[3]));
        tile = simt_rows(&tiles);
        bytes = simt_bytes(part, &tiles, features, values, element);
        const bool out_wide = part == KEYS ? is_wide(&o[1]) && is_wide(&o[2]) : is_wide(&o[0]);
        /* 16-bit floats are converted on their way to shared memory */
        key.facts |= (uint64_t)tiles.warps << WARPS | (uint64_t)tiles.row_tiles << ROW_TILES |
                     (uint64_t)tiles.step / 16 << STEP | (uint64_t)tiles.blocks << BLOCKS |
                     (uint64_t)(rows_wide && out_wide && (int64_t)rp__dtype_bytes(dtype) == element) << WIDE;
    }
    key.facts |= (uint64_t)features / 16 << FEATURES | (uint64_t)values / 16 << VALUES;
    const bool packed = mma && tiles.packed;
    const int64_t along = part == KEYS ? k->size[2]
                          : packed     ? q->size[2] * (q->size[1] / k->size[1])
                                       : q->size[2],
                  blocks = q->size[0] * (part == KEYS || packed ? k->size[1] : q->size[1]) *
                           ((along + tile - 1) / tile) * copies;
    if (blocks == 0) return RP_OK;
    w[W_SECTION] = (uint64_t)section_of(part, q, k, v);
    if (blocks > INT32_MAX) return rp__fail(RP_ERROR_SHAPE, "%s: this is more than one CUDA launch takes", call->op);
    const int64_t resident = (int64_t)d->multiprocessors * tiles.blocks;
    w[W_TILES] = (uint64_t)blocks;
    out->grid[0] = (uint32_t)(groups && blocks > resident ? resident : blocks);
    out->block[0] = 32 * tiles.warps + (groups ? 128 : 0);
    out->grid[1] = out->grid[2] = out->block[1] = out->block[2] = 1;
    out->shared_bytes = (uint32_t)bytes;
    if (groups)
        return rp__text_kernel(d, &key, problem_macros, rp__embed_attention_wgmma_cuh,
                               rp__embed_attention_wgmma_cuh_len, &out->kernel);
    if (mma)
        return rp__text_kernel(d, &key, problem_macros, rp__embed_attention_mma_cuh, rp__embed_attention_mma_cuh_len,
                               &out->kernel);
    return rp__text_kernel(d, &key, problem_macros, rp__embed_attention_simt_cuh, rp__embed_attention_simt_cuh_len,
                           &out->kernel);
}

/* ---- random numbers */

static void draw_macros(uint64_t facts, rp__text *out) { rp__text_add(out, "#define RP_PART %u\n", (unsigned)facts); }

rp_status rp__cuda_attention_draw_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                       const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)n;
    const bool keep = op == RP__LIB_ATTENTION_KEEP;
    uint64_t *w = buffer->words;
    int64_t items = 1;
    memset(out, 0, sizeof *out);
    out->op = call->op;
    out->site = call->site;
    rp__operand_slot(&o[0], 0, RP__WRITE, buffer, out);
    if (keep) {
        int64_t numbers = 1;
        for (unsigned i = 0; i < o->ndim; i++) numbers *= o->size[i];
        if (numbers == 0) return RP_OK;
        rp__operand_slot(&o[1], 1, RP__READ, buffer, out);
        w[2] = (uint64_t)numbers, w[3] = bits_of(1 - call->attention.dropout);
        items = (numbers + 3) / 4;
    } else {
        w[1] = (uint64_t)(uintptr_t)call->draw.state, w[2] = call->draw.seed, w[3] = call->draw.inner;
        out->draw = 1;
        out->n_draws = 1;
    }
    out->n_words = 4;
    if ((items + 255) / 256 > INT32_MAX)
        return rp__fail(RP_ERROR_SHAPE, "%s: this is more than one CUDA launch takes", call->op);
    out->grid[0] = (uint32_t)((items + 255) / 256);
    out->block[0] = 256;
    out->grid[1] = out->grid[2] = out->block[1] = out->block[2] = 1;
    rp__text_kernel_key key = {.family = "attention_draw", .facts = keep};
    return rp__text_kernel(d, &key, draw_macros, rp__embed_attention_draw_cuh, rp__embed_attention_draw_cuh_len,
                           &out->kernel);
}
