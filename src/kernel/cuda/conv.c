/* Convolutions on CUDA: forward, input gradient and weight gradient by one text (conv.cuh). Here: which tile, which way operands are
 * read and into how many shares the inner index is split, all functions of sizes, strides, dtype and kind of device. */
#include <string.h>

#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Facts of a text: dtype in the low byte, then these; the words that follow from bit 32 on. */
enum {
    KIND = 8,
    SPATIAL = 10,
    BIAS = 12,
    TILE = 13,  /* a row of `shapes` */
    SPLIT = 17, /* its logarithm */
    MMA = 19,
    WIDE,    /* 64-bit offsets */
    A_ALONG, /* of the operand without windows: read along the inner index, eight at once; B: with windows */
    A_WIDE,
    B_ALONG,
    B_WIDE,
    SAME,
    OUT_ROWS,
    LONG,
    LONGER,
    DIRECT
};

/* tm rows by tn columns; threads side by side (without tensor cores), warps above each other (with them). */
static const struct tile {
    unsigned tm, tn, tx, wm;
} shapes[] = {
    {128, 64, 16, 0}, {64, 64, 16, 0}, {32, 64, 16, 0}, {32, 32, 16, 0}, {8, 128, 64, 0}, /* fma */
    {128, 128, 0, 2}, {64, 128, 0, 2}, {64, 64, 0, 2},  {32, 128, 0, 2}, {32, 64, 0, 2},
    {16, 128, 0, 1}, /* tensor cores */
};
enum { FIRST_MMA = 5, N_TILES = sizeof shapes / sizeof *shapes, MMA_TK = 32, FMA_TK = 16, STAGES = 4 };

static bool bit(uint64_t facts, unsigned at) { return facts >> at & 1; }

static unsigned depth_of(uint64_t facts) {
    return bit(facts, MMA) ? MMA_TK : (rp_dtype)(facts & 0xff) == RP_F64 ? FMA_TK / 2 : FMA_TK;
}
/* Operands that go straight into shared memory may be far ahead of their use; others wait in registers for a step. */
static unsigned stages_of(uint64_t facts) { return bit(facts, A_WIDE) && bit(facts, B_WIDE) ? STAGES : 2; }

/* Bytes of conv.cuh's `room`: tiles with their padding, or the rows of results that leave at once. */
static uint32_t room_of(uint64_t facts) {
    const struct tile *t = &shapes[facts >> TILE & 15];
    const unsigned k = depth_of(facts), bytes = bit(facts, MMA) ? 2 : (rp_dtype)(facts & 0xff) == RP_F64 ? 8 : 4;
    const unsigned a = !bit(facts, MMA)      ? k * (t->tm + 16 / bytes)
                       : bit(facts, A_ALONG) ? t->tm * (k + 8)
                                             : k * (t->tm + 8);
    const unsigned b = !bit(facts, MMA)      ? k * (t->tn + 16 / bytes)
                       : bit(facts, B_ALONG) ? t->tn * (k + 8)
                                             : k * (t->tn + 8);
    const unsigned rows = bit(facts, MMA) ? 16 * t->wm : 256 / t->tx, tiled = stages_of(facts) * (a + b) * bytes,
                   out = rows * (t->tn + 4) * (bytes == 8 ? 8 : 4);
    return tiled > out ? tiled : out;
}

static void macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    const struct tile *tile = &shapes[facts >> TILE & 15];
    const unsigned split = 1u << (facts >> SPLIT & 3);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_KIND %u\n#define RP_SPATIAL %u\n#define RP_BIAS %u\n#define RP_REST %u\n",
                 (unsigned)(facts >> KIND & 3), (unsigned)(facts >> SPATIAL & 3), (unsigned)bit(facts, BIAS),
                 (unsigned)(facts >> 32));
    rp__text_add(out, "#define RP_TM %u\n#define RP_TN %u\n#define RP_TK %u\n#define RP_TX %u\n#define RP_WM %u\n",
                 tile->tm, tile->tn,
                 bit(facts, MMA)   ? MMA_TK
                 : dtype == RP_F64 ? FMA_TK / 2
                                   : FMA_TK,
                 tile->tx, tile->wm);
    rp__text_add(out, "#define RP_MMA %d\n#define RP_INDEX %s\n#define RP_SPLIT %u\n", bit(facts, MMA),
                 bit(facts, WIDE) ? "rp_i64" : "rp_i32", split);
    if (bit(facts, MMA))
        rp__text_add(out, "#define RP_MMA_STEP(d, a, b) rp_mma_m16n8k16_%s(d, a, b)\n", rp__dtypes[dtype].short_name);
    if (split > 1)
        rp__text_add(
            out,
            "#define RP_CLUSTER __cluster_dims__(%u, 1, 1)\n#define RP_CLUSTER_READ(p, r, n) rp_cluster_read_%s(p, r, n)\n",
            split, dtype == RP_F64 ? "f64" : "f32");
    else
        rp__text_puts(out, "#define RP_CLUSTER\n");
    rp__text_add(out, "#define RP_A_ALONG %d\n#define RP_A_WIDE %d\n#define RP_B_ALONG %d\n#define RP_B_WIDE %d\n",
                 bit(facts, A_ALONG), bit(facts, A_WIDE), bit(facts, B_ALONG), bit(facts, B_WIDE));
    /* two blocks hide each other's loads; large tiles of wide types need all registers */
    rp__text_add(out, "#define RP_SAME %d\n#define RP_STAGES %u\n#define RP_DIRECT %d\n#define RP_RESIDENT %d\n",
                 bit(facts, SAME), stages_of(facts), bit(facts, DIRECT),
                 bit(facts, MMA) ? tile->tm * tile->tn <= 64 * 128 || bit(facts, B_WIDE) ? 2 : 1
                 : dtype == RP_F64 || tile->tm * tile->tn > 64 * 64 ? 1
                                                                    : 2);
    rp__text_add(out, "#define RP_OUT_ROWS %d\n#define RP_LONG %d\n#define RP_LONGER %d\n", bit(facts, OUT_ROWS),
                 bit(facts, LONG), bit(facts, LONGER));
}

/* The product that a convolution is: rows and columns of one group, K. */
typedef struct extents {
    unsigned kind, spatial;
    int64_t groups, batch, cg, og, in, points, taps, m, n, k;
} extents;

static extents extents_of(rp__library_op op, const rp__operand *y, const rp__operand *x, const rp__operand *w,
                          const rp__conv_geometry *conv) {
    extents e = {.kind = op == RP__LIB_CONV_FORWARD ? 0
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
    return e;
}

/* Do places, or offsets on their way to one, need 64 bits? */
static bool is_wide(const rp__operand *const *o, const rp__conv_geometry *conv) {
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

/* May eight neighbours along a dim of stride 1 be read at once, wherever the others stand? */
static bool is_aligned(const rp__operand *o, unsigned along) {
    if ((uintptr_t)o->base % 16 || o->stride[along] != 1 || rp__dtype_bytes(o->dtype) != 2) return false;
    for (unsigned d = 0; d < o->ndim; d++)
        if (d != along && o->size[d] > 1 && o->stride[d] % 8) return false;
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

/* How the operands are read: along what is contiguous in memory. a: without windows, b: with them. */
static uint64_t readings(const extents *e, const rp__operand *a, const rp__operand *b, bool mma) {
    uint64_t facts = 0;
    const unsigned a_inner = e->kind == 1 ? 0 : 1, a_row = e->kind == 0 ? 0 : 1; /* channel dims of w, w, y */
    if (e->kind == 2) {
        facts |= (uint64_t)!neighbours(a, 1) << A_ALONG;
        facts |= (uint64_t)!neighbours(b, 1) << B_ALONG;
        if (mma && neighbours(a, 1) && e->og % 8 == 0 && is_aligned(a, 1)) facts |= UINT64_C(1) << A_WIDE;
        if (mma && !neighbours(a, 1) && e->points % 8 == 0 && is_dense(a)) {
            rp__operand flat = *a; /* one dim of all points */
            flat.ndim = 3;
            flat.size[2] = e->points;
            flat.stride[2] = 1;
            if (is_aligned(&flat, 2)) facts |= UINT64_C(1) << A_WIDE;
        }
        if (mma && neighbours(b, 1) && e->cg % 8 == 0 && is_aligned(b, 1)) facts |= UINT64_C(1) << B_WIDE;
        return facts;
    }
    /* with tensor cores the channel runs fastest along the inner index, else the window does */
    const int64_t ka = e->kind == 0 ? e->cg : e->og;
    const int64_t row = e->m > 1 ? a->stride[a_row] : INT64_MAX,
                  inner = mma ? a->stride[a_inner] : a->stride[a->ndim - 1];
    const bool along = row < 0 || (inner >= 0 && inner <= row);
    facts |= (uint64_t)along << A_ALONG;
    if (mma && along && ka % 8 == 0 && is_aligned(a, a_inner)) facts |= UINT64_C(1) << A_WIDE;
    if (mma && !along && e->m % 8 == 0 && is_aligned(a, a_row)) facts |= UINT64_C(1) << A_WIDE;
    if (mma && ka % MMA_TK == 0) facts |= UINT64_C(1) << SAME;
    if (mma && neighbours(b, 1)) {
        facts |= UINT64_C(1) << B_ALONG;
        if (ka % 8 == 0 && is_aligned(b, 1)) facts |= UINT64_C(1) << B_WIDE;
    }
    return facts;
}

static int64_t blocks_of(const extents *e, const struct tile *t) {
    return (e->m + t->tm - 1) / t->tm * ((e->n + t->tn - 1) / t->tn) * e->groups;
}

/* The largest tile that wastes no half of itself and gives every multiprocessor one; else the one with most blocks. */
static unsigned tile_of(const extents *e, const rp__device *d, rp_dtype dtype, bool mma, bool wide, int64_t split) {
    unsigned best = N_TILES;
    for (unsigned k = mma ? FIRST_MMA : 0; k < (mma ? N_TILES : FIRST_MMA); k++) {
        const struct tile *t = &shapes[k];
        const int64_t least = mma ? 16 : 8;
        if (dtype == RP_F64 && t->tm * t->tn > 64 * 64) continue; /* what a multiprocessor's registers hold */
        if (t->tm * t->tn > 128 * 64 && (wide || e->spatial == 3))
            continue; /* 48 KB of shared memory, with the spots */
        if (t->tm == least ? e->m > 16 : e->m <= t->tm / 2) continue;
        if (best == N_TILES || blocks_of(e, t) > blocks_of(e, &shapes[best])) best = k;
        if (blocks_of(e, t) * split >= d->multiprocessors) break;
    }
    return best;
}

/* Shares of the inner index, as a power of two: as many as leave whole units of it and blocks enough, counted in tiles of a
 * fixed size, so that the order depends on sizes and the kind of device alone. */
static unsigned split_of(const extents *e, const rp__device *d, rp_dtype dtype, bool mma) {
    const int64_t unit = mma ? 8 * MMA_TK : (int64_t)RP__PRODUCT_BLOCK / (dtype == RP_F64 ? 2 : 1) * RP__PRODUCT_GROUP;
    const int64_t blocks = (e->m + 63) / 64 * ((e->n + 63) / 64) * e->groups;
    unsigned split = 0;
    if (!d->clusters) return 0;
    while (split < 3 && (blocks << (split + 1)) <= 2 * (int64_t)d->multiprocessors && e->k >= unit << (split + 1))
        split++;
    return split;
}

/* Words, slots, grid and facts of the kernel; out->grid[0] is 0: there is nothing to compute. A result without memory has no
 * slot. */
static rp_status set_tiles(const rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                           const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    /* which operand is y, x, w; the first operand is always the one written */
    static const unsigned order[3][3] = {{0, 1, 2}, {1, 0, 2}, {1, 2, 0}};
    const unsigned kind = op == RP__LIB_CONV_FORWARD ? 0 : op == RP__LIB_CONV_INPUT ? 1 : 2, s = call->conv.spatial;
    rp__operand sorted[4];
    uint32_t access[4] = {RP__READ, RP__READ, RP__READ, RP__READ};
    bool bias = kind == 0 && n > 3 && o[3].base;
    for (unsigned k = 0; k < 3; k++) {
        sorted[k] = o[order[kind][k]];
        if (order[kind][k] == 0) access[k] = RP__WRITE;
    }
    if (bias) sorted[3] = o[3];
    const rp__operand *y = &sorted[0], *x = &sorted[1], *w = &sorted[2];
    const extents e = extents_of(op, y, x, w, &call->conv);
    if (e.m == 0 || e.n == 0 || e.groups == 0) return RP_OK;
    uint64_t *words = buffer->words;
    for (unsigned k = 0; k < (bias ? 4u : 3u); k++) {
        words[k] = 0;
        if (sorted[k].base) rp__cuda_operand_slot(&sorted[k], k, access[k], buffer, out);
    }
    if (!bias) words[3] = 0;
    words[4] = (uint64_t)e.batch;
    words[5] = (uint64_t)x->size[1];
    words[6] = (uint64_t)w->size[0];
    words[7] = (uint64_t)e.groups;
    uint32_t at = 8;
    for (unsigned k = 0; k < s; k++) {
        const int64_t sizes[6] = {x->size[2 + k],       y->size[2 + k],        w->size[2 + k],
                                  call->conv.stride[k], call->conv.padding[k], call->conv.dilation[k]};
        for (unsigned f = 0; f < 6; f++) words[at++] = (uint64_t)sizes[f];
    }
    for (unsigned t = 0; t < 3; t++)
        for (unsigned k = 0; k < 2 + s; k++) words[at++] = (uint64_t)sorted[t].stride[k];
    words[at++] = bias ? (uint64_t)sorted[3].stride[0] : 0;
    out->n_words = at;
    const rp_dtype dtype = y->dtype;
    const rp__operand *const all[3] = {y, x, w}, *plain = kind == 2 ? y : w, *windowed = kind == 1 ? y : x;
    const int64_t block = (int64_t)RP__PRODUCT_BLOCK / (dtype == RP_F64 ? 2 : 1);
    const bool direct = kind != 2 && e.m <= 2 && e.k <= block,
               mma = !direct && rp__dtype_is_float(dtype) && rp__dtype_is_narrow(dtype) && d->arch >= 80;
    const bool wide = is_wide(all, &call->conv);
    const unsigned split = split_of(&e, d, dtype, mma), tile = tile_of(&e, d, dtype, mma, wide, INT64_C(1) << split);
    *facts = (uint64_t)dtype | (uint64_t)kind << KIND | (uint64_t)s << SPATIAL | (uint64_t)bias << BIAS |
             (uint64_t)tile << TILE | (uint64_t)split << SPLIT | (uint64_t)mma << MMA | (uint64_t)wide << WIDE |
             readings(&e, plain, windowed, mma) | (uint64_t)(kind != 2 && neighbours(windowed, 1)) << OUT_ROWS;
    if (!mma) *facts |= (uint64_t)(e.k > block) << LONG | (uint64_t)(e.k > block * RP__PRODUCT_GROUP) << LONGER;
    int64_t gx = (e.n + shapes[tile].tn - 1) / shapes[tile].tn << split,
            gy = (e.m + shapes[tile].tm - 1) / shapes[tile].tm;
    if (direct) {
        *facts = (uint64_t)dtype | (uint64_t)kind << KIND | (uint64_t)s << SPATIAL | (uint64_t)bias << BIAS |
                 (uint64_t)wide << WIDE | UINT64_C(1) << DIRECT;
        gx = (e.n + 255) / 256, gy = e.m;
    }
    if (gx > INT32_MAX || gy > 65535 || e.groups > 65535)
        return rp__fail(RP_ERROR_SHAPE, "%s: this convolution is more than one CUDA launch takes", call->op);
    out->grid[0] = (uint32_t)gx;
    out->grid[1] = (uint32_t)gy;
    out->grid[2] = (uint32_t)e.groups;
    out->block[0] = 256;
    out->block[1] = out->block[2] = 1;
    out->shared_bytes = direct ? 0 : room_of(*facts);
    return RP_OK;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "conv"};
    (void)workspace;
    memset(out, 0, sizeof *out);
    out->op = p->call->op;
    out->site = p->call->site;
    RP_TRY(set_tiles(p->device, p->op, p->o, p->n, p->call, buffer, out, &key.facts));
    if (out->grid[0] == 0) return RP_OK;
    return rp__text_kernel(p->device, &key, macros, rp__embed_conv_cuh, rp__embed_conv_cuh_len, &out->kernel);
}

static uint32_t words(const rp__problem *p) {
    const unsigned spatial = p->call->conv.spatial;
    return 8 + 6 * spatial + 3 * (2 + spatial) + 1;
}

static rp_status bind_tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                            uint64_t *facts) {
    *wide = true;
    return set_tiles(p->device, p->op, p->o, 3, p->call, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const char *follow, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_conv_cuh, rp__embed_conv_cuh_len, follow, out);
}

const rp__cuda_product_row rp__cuda_conv_row = {
    .row = {.name = "simt", .ops = RP__CUDA_CONVOLUTIONS, .follows = true, .order = rp__problem_order, .bind = bind},
    .words = words,
    .tiles = bind_tiles,
    .source = source};
