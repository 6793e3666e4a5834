/* Depthwise convolutions on CUDA (conv_depth.cuh): which strips, vectors and shares, functions of sizes, strides, dtype and kind of
 * device. */
#include <string.h>

#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Facts: dtype in the low byte, then these; window, steps and dilations less 1; the words that follow from bit 32 on. */
enum {
    KIND = 8,
    SPATIAL = 10,
    BIAS = 12,
    KH = 13,
    KW = 16,
    LAST = 19,
    WIDE,
    SY = 21,
    SX = 23,
    DY = 25,
    DX = 27,
    SPLIT = 29
};
enum { MOST_WINDOW = 7, MOST_STEP = 4, SLOTS = 128 };

typedef struct geometry { /* literals of the text */
    unsigned kh, kw, sy, sx, dy, dx, strip, vector;
} geometry;

static unsigned field(uint64_t facts, unsigned at, unsigned bits) {
    return (unsigned)(facts >> at & ((1u << bits) - 1));
}

static geometry geometry_of(uint64_t facts) {
    geometry g = {field(facts, KH, 3),
                  field(facts, KW, 3),
                  field(facts, SY, 2) + 1,
                  field(facts, SX, 2) + 1,
                  field(facts, DY, 2) + 1,
                  field(facts, DX, 2) + 1,
                  1,
                  1};
    const unsigned bytes = (unsigned)rp__dtype_bytes((rp_dtype)(facts & 0xff)), taps = g.kh * g.kw;
    if (field(facts, SPATIAL, 2) == 2) g.strip = 4;
    /* weights and sums stay in registers */
    if (facts >> LAST & 1u) g.vector = bytes == 8 ? 1 : taps <= 9 ? 4 : bytes == 2 ? 2 : 1;
    return g;
}

static void macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    const geometry g = geometry_of(facts);
    const unsigned split = 1u << field(facts, SPLIT, 2);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_KIND %u\n#define RP_SPATIAL %u\n#define RP_BIAS %u\n#define RP_REST %u\n",
                 field(facts, KIND, 2), field(facts, SPATIAL, 2), field(facts, BIAS, 1), (unsigned)(facts >> 32));
    rp__text_add(out,
                 "#define RP_INDEX %s\n#define RP_LAST %u\n#define RP_P %u\n#define RP_V %u\n#define RP_SPLIT %u\n",
                 facts >> WIDE & 1u ? "rp_i64" : "rp_i32", field(facts, LAST, 1), g.strip, g.vector, split);
    rp__text_add(
        out,
        "#define RP_KH %u\n#define RP_KW %u\n#define RP_SY %u\n#define RP_SX %u\n#define RP_DY %u\n#define RP_DX %u\n",
        g.kh, g.kw, g.sy, g.sx, g.dy, g.dx);
    if (split > 1)
        rp__text_add(
            out,
            "#define RP_CLUSTER __cluster_dims__(%u, 1, 1)\n#define RP_CLUSTER_READ(p, r, n) rp_cluster_read_%s(p, r, n)\n",
            split, dtype == RP_F64 ? "f64" : "f32");
    else
        rp__text_puts(out, "#define RP_CLUSTER\n");
}

bool rp__conv_is_depthwise(const rp__problem *p) {
    const rp__conv_geometry *g = &p->call->conv;
    const rp__operand *sorted[3];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    if (e.groups < 2 || e.cg != 1 || e.og != 1 || e.spatial > 2 || !rp__dtype_is_float(p->o[0].dtype)) return false;
    for (unsigned k = 0; k < e.spatial; k++)
        if (sorted[2]->size[2 + k] > MOST_WINDOW || g->stride[k] > MOST_STEP || g->dilation[k] > MOST_STEP)
            return false;
    return e.taps > 0;
}

/* Can vectors of so many channels be read, and stored? */
static bool is_last(const rp__operand *o, unsigned vector) {
    if (!o->base || (uintptr_t)o->base % (vector * rp__dtype_bytes(o->dtype)) || o->stride[1] != 1) return false;
    for (unsigned d = 0; d < o->ndim; d++)
        if (d != 1 && o->size[d] > 1 && o->stride[d] % vector) return false;
    return true;
}

/* Shares of the images, as a power of two, where channels are few. */
static unsigned split_of(const rp__device *d, const rp__conv_extent *e) {
    unsigned split = 0;
    if (!d->clusters || e->kind != 2) return 0;
    while (split < 3 && (e->groups << split) < 2 * (int64_t)d->multiprocessors &&
           e->k >= (int64_t)SLOTS * 32 << (split + 1))
        split++;
    return split;
}

static rp_status set_tiles(const rp__problem *p, rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    const rp__operand *sorted[3], *result = &p->o[0];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    const rp__conv_geometry *c = &p->call->conv;
    const bool bias = rp__conv_has_bias(p);
    if (e.m == 0 || e.n == 0 || e.groups == 0) return RP_OK;
    rp__conv_words(p, sorted, &e, bias, buffer, out);
    const unsigned last = e.spatial - 1, split = split_of(p->device, &e);
    uint64_t f = (uint64_t)result->dtype | (uint64_t)e.kind << KIND | (uint64_t)e.spatial << SPATIAL |
                 (uint64_t)bias << BIAS | (uint64_t)rp__conv_is_wide(sorted, c) << WIDE | (uint64_t)split << SPLIT |
                 (uint64_t)sorted[2]->size[2 + last] << KW | (uint64_t)(c->stride[last] - 1) << SX |
                 (uint64_t)(c->dilation[last] - 1) << DX;
    f |= e.spatial == 2 ? (uint64_t)sorted[2]->size[2] << KH | (uint64_t)(c->stride[0] - 1) << SY |
                              (uint64_t)(c->dilation[0] - 1) << DY
                        : UINT64_C(1) << KH;
    geometry g = geometry_of(f | UINT64_C(1) << LAST);
    const rp__operand *images[2] = {e.kind == 1 ? sorted[0] : sorted[1], e.kind == 2 ? sorted[0] : result};
    bool along = e.groups % g.vector == 0 && is_last(images[0], g.vector);
    along = along && (images[1]->base ? is_last(images[1], g.vector) : true);
    f |= (uint64_t)along << LAST;
    g = geometry_of(f);
    *facts = f;
    int64_t blocks;
    if (e.kind == 2) {
        blocks = (e.groups + 2 * g.vector - 1) / (2 * g.vector) << split;
    } else {
        const rp__operand *made = e.kind == 0 ? sorted[0] : sorted[1];
        const int64_t rows = e.spatial == 2 ? made->size[2] : 1, strips = (rows + g.strip - 1) / g.strip;
        blocks = (e.batch * (e.groups / g.vector) * strips * made->size[1 + e.spatial] + 255) / 256;
    }
    if (blocks > INT32_MAX)
        return rp__fail(RP_ERROR_SHAPE, "%s: this convolution is more than one CUDA launch takes", p->call->op);
    out->grid[0] = (uint32_t)blocks;
    out->grid[1] = out->grid[2] = 1;
    out->block[0] = 256;
    out->block[1] = out->block[2] = 1;
    return RP_OK;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "conv_depth"};
    (void)workspace;
    memset(out, 0, sizeof *out);
    out->op = p->call->op;
    out->site = p->call->site;
    RP_TRY(set_tiles(p, buffer, out, &key.facts));
    if (out->grid[0] == 0) return RP_OK;
    return rp__text_kernel(p->device, &key, macros, rp__embed_conv_depth_cuh, rp__embed_conv_depth_cuh_len,
                           &out->kernel);
}

static rp_status bind_tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                            uint64_t *facts) {
    *wide = true;
    return set_tiles(p, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_conv_depth_cuh, rp__embed_conv_depth_cuh_len, parts, out);
}

static bool serves(const rp__problem *p, size_t *workspace) {
    (void)workspace;
    return rp__conv_is_depthwise(p);
}

/* The inner index of results and input gradients is a window: one chain, as everywhere. */
static rp__order order(const rp__problem *p) {
    const rp__order simt = rp__problem_order(p);
    return p->op == RP__LIB_CONV_WEIGHT ? rp__order_with(simt, RP__FAMILY_SLOTS, 0) : simt;
}

static double cost(const rp__problem *p) { return rp__problem_work(p) / 32; }

const rp__cuda_product_row rp__cuda_conv_depth_row = {.row = {.name = "depthwise",
                                                              .ops = RP__CUDA_CONVOLUTIONS,
                                                              .follows = true,
                                                              .serves = serves,
                                                              .order = order,
                                                              .cost = cost,
                                                              .bind = bind},
                                                      .words = rp__conv_n_words,
                                                      .tiles = bind_tiles,
                                                      .source = source};
