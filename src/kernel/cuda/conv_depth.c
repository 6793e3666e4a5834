/* Depthwise convolutions on CUDA (conv_depth.cuh): which strips, vectors and shares, functions of sizes, strides, dtype and kind of
 * device. Weight gradients are a row of their own: shares of the images leave their sums in the call's workspace, and a second launch
 * (conv_shares.c) adds them up. */
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
    ACROSS = 29,    /* a thread makes results side by side */
    PARTS = ACROSS, /* of weight gradients */
    FEW = 30,       /* channels */
    OUT_WIDE = 31   /* what follows takes the sums of a thread's channels at once */
};
/* SLOTS: of conv_depth.cuh. A share of a weight gradient is worth so many turns of the slots. */
enum { MOST_WINDOW = 7, MOST_STEP = 4, SLOTS = 32, SPAN = 32, LEAST_TURNS = 4, MOST_PARTS = 256 };

typedef struct geometry { /* literals of the text */
    unsigned kh, kw, sy, sx, dy, dx, strip, vector, across, lanes;
} geometry;

/* Places of a piece of a weight gradient: of a large window they have much in common. */
static unsigned piece_of(int64_t taps) { return taps > 9 ? 2 : 1; }

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
                  1,
                  1,
                  1};
    const unsigned bytes = (unsigned)rp__dtype_bytes((rp_dtype)(facts & 0xff)), taps = g.kh * g.kw;
    if (field(facts, SPATIAL, 2) == 2) g.strip = 4;
    if (field(facts, KIND, 2) == 2) g.across = piece_of(taps);
    if (!(facts >> LAST & 1u)) return g;
    if (field(facts, KIND, 2) == 2) /* the window's sums stay in registers */
        g.vector = bytes == 8 ? 1 : taps <= 9 ? 4 : bytes == 2 ? 2 : 1;
    else {
        g.vector = bytes == 8 ? 1 : 2;
        g.across = !field(facts, ACROSS, 1) ? 1 : g.sx > 1 ? 2 : 4;
        g.lanes = field(facts, FEW, 1) ? 4 : 16;
    }
    return g;
}

static bool takes_lanes(uint64_t facts) { return field(facts, OUT_WIDE, 1); }

static void macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    const geometry g = geometry_of(facts);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_KIND %u\n#define RP_SPATIAL %u\n#define RP_BIAS %u\n#define RP_REST %u\n",
                 field(facts, KIND, 2), field(facts, SPATIAL, 2), field(facts, BIAS, 1), (unsigned)(facts >> 32));
    rp__text_add(out, "#define RP_PARTS %u\n#define RP_OUT_WIDE %u\n",
                 field(facts, KIND, 2) == 2 && field(facts, PARTS, 1), takes_lanes(facts));
    rp__text_add(out,
                 "#define RP_INDEX %s\n#define RP_LAST %u\n#define RP_P %u\n#define RP_V %u\n#define RP_X %u\n"
                 "#define RP_LANES %u\n",
                 facts >> WIDE & 1u ? "rp_i64" : "rp_i32", field(facts, LAST, 1), g.strip, g.vector, g.across, g.lanes);
    rp__text_add(
        out,
        "#define RP_KH %u\n#define RP_KW %u\n#define RP_SY %u\n#define RP_SX %u\n#define RP_DY %u\n#define RP_DX %u\n",
        g.kh, g.kw, g.sy, g.sx, g.dy, g.dx);
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

/* Channels of a vector. */
static unsigned vector_of(const rp__conv_extent *e, rp_dtype dtype) {
    return geometry_of((uint64_t)dtype | (uint64_t)e->kind << KIND | UINT64_C(1) << LAST).vector;
}

unsigned rp__conv_depth_lanes(const rp__problem *p) {
    const rp__operand *sorted[3];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    return !rp__conv_is_depthwise(p) || e.kind == 2 || p->o[0].dtype == RP_F64 ? 0 : vector_of(&e, p->o[0].dtype);
}

/* Can vectors of so many channels be read, and stored? */
static bool is_last(const rp__operand *o, unsigned vector) {
    if ((uintptr_t)o->base % (vector * rp__dtype_bytes(o->dtype)) || o->stride[1] != 1) return false;
    for (unsigned d = 0; d < o->ndim; d++)
        if (d != 1 && o->size[d] > 1 && o->stride[d] % vector) return false;
    return true;
}

/* A family of pictures may go by channels through it. A weight gradient reads two, that lie alike. */
void rp__conv_pictures_turned(const rp__problem *p, rp__turned *out) {
    const rp__operand *sorted[3];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    const uint32_t pictures = e.kind == 2 ? 6 : 2;
    uint32_t lie = 0;
    if (e.groups * e.cg % 8) return;
    for (unsigned k = 1; k < 3; k++)
        if (pictures >> k & 1u && is_last(&p->o[k], 1)) lie |= 1u << k;
    out->likes = pictures & ~lie;
    if ((out->there | lie) & pictures) out->channels = out->likes;
}

/* Shares of the images' pieces: as many as fill the device and have work for all slots. A function of sizes and kind of device. */
int64_t rp__conv_depth_parts(const rp__problem *p) {
    const rp__operand *sorted[3];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    if (e.kind != 2 || e.n == 0 || e.k == 0) return 0;
    const int64_t strip = e.spatial == 2 ? 4 : 1, rows = e.spatial == 2 ? sorted[0]->size[2] : 1,
                  piece = piece_of(e.taps),
                  items =
                      e.batch * ((rows + strip - 1) / strip) * ((sorted[0]->size[1 + e.spatial] + piece - 1) / piece);
    int64_t parts = 6 * (int64_t)p->device->multiprocessors / ((e.groups + SPAN - 1) / SPAN);
    if (parts > items / (SLOTS * LEAST_TURNS)) parts = items / (SLOTS * LEAST_TURNS);
    return parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
}

/* parts: of a weight gradient. */
static rp_status set_tiles(const rp__problem *p, int64_t parts, rp__launch_buffer *buffer, rp__launch *out,
                           uint64_t *facts) {
    const rp__operand *sorted[3], *result = &p->o[0];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    const rp__conv_geometry *c = &p->call->conv;
    const bool bias = rp__conv_has_bias(p);
    if (e.m == 0 || e.n == 0 || e.groups == 0) return RP_OK;
    if (parts)
        rp__conv_part_words(p, sorted, &e, parts, buffer, out);
    else
        rp__conv_words(p, sorted, &e, bias, buffer, out);
    const unsigned last = e.spatial - 1;
    uint64_t f = (uint64_t)result->dtype | (uint64_t)e.kind << KIND | (uint64_t)e.spatial << SPATIAL |
                 (uint64_t)bias << BIAS | (uint64_t)rp__conv_is_wide(sorted, c) << WIDE |
                 (uint64_t)sorted[2]->size[2 + last] << KW | (uint64_t)(c->stride[last] - 1) << SX |
                 (uint64_t)(c->dilation[last] - 1) << DX;
    f |= e.spatial == 2 ? (uint64_t)sorted[2]->size[2] << KH | (uint64_t)(c->stride[0] - 1) << SY |
                              (uint64_t)(c->dilation[0] - 1) << DY
                        : UINT64_C(1) << KH;
    geometry g = geometry_of(f | UINT64_C(1) << LAST);
    const rp__operand *images[2] = {e.kind == 1 ? sorted[0] : sorted[1], e.kind == 2 ? sorted[0] : result};
    bool along = e.groups % g.vector == 0 && images[0]->base && is_last(images[0], g.vector);
    along = along && (images[1]->base ? is_last(images[1], g.vector) : true);
    f |= (uint64_t)along << LAST;
    if (along && e.kind != 2 && p->call->neighbours == RP__NEIGHBOURS_ROWS) f |= UINT64_C(1) << OUT_WIDE;
    const int64_t threads = 1024 * (int64_t)p->device->multiprocessors;
    int64_t blocks;
    if (e.kind == 2) {
        g = geometry_of(f);
        const int64_t span = (int64_t)(256 / SLOTS) * g.vector;
        blocks = (e.groups + span - 1) / span * (parts ? parts : 1);
        f |= (uint64_t)(parts > 0) << PARTS;
    } else {
        const rp__operand *made = e.kind == 0 ? sorted[0] : sorted[1];
        const int64_t rows = e.spatial == 2 ? made->size[2] : 1, strips = (rows + g.strip - 1) / g.strip,
                      width = made->size[1 + e.spatial],
                      quads = e.batch * e.groups / g.vector * strips * ((width + 3) / 4);
        const bool steps = c->stride[last] > 1 || (e.spatial == 2 && c->stride[0] > 1);
        if (quads >= threads && !(e.kind == 1 && steps)) f |= UINT64_C(1) << ACROSS;
        if (e.groups <= 8 * g.vector) f |= UINT64_C(1) << FEW;
        g = geometry_of(f);
        const int64_t places = e.batch * strips * ((width + g.across - 1) / g.across), span = g.lanes * g.vector,
                      side = 256 / g.lanes;
        blocks = along ? (e.groups + span - 1) / span * ((places + side - 1) / side) : (places * e.groups + 255) / 256;
    }
    *facts = f;
    if (blocks > INT32_MAX)
        return rp__fail(RP_ERROR_SHAPE, "%s: this convolution is more than one CUDA launch takes", p->call->op);
    out->grid[0] = (uint32_t)blocks;
    out->grid[1] = out->grid[2] = 1;
    out->block[0] = 256;
    out->block[1] = out->block[2] = 1;
    return RP_OK;
}

static rp_status bind_parts(const rp__problem *p, int64_t parts, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "conv_depth"};
    memset(out, 0, sizeof *out);
    out->op = p->call->op;
    out->site = p->call->site;
    RP_TRY(set_tiles(p, parts, buffer, out, &key.facts));
    if (out->grid[0] == 0) return RP_OK;
    return rp__text_kernel(p->device, &key, macros, rp__embed_conv_depth_cuh, rp__embed_conv_depth_cuh_len,
                           &out->kernel);
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return bind_parts(p, 0, buffer, out);
}

static rp_status bind_weight(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return bind_parts(p, rp__conv_depth_parts(p), buffer, out);
}

static rp_status bind_tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                            uint64_t *facts) {
    (void)wide; /* places of results are RP_INDEX, whatever follows them */
    return set_tiles(p, 0, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_conv_depth_cuh, rp__embed_conv_depth_cuh_len, parts, out);
}

static bool serves(const rp__problem *p, size_t *workspace) {
    (void)workspace;
    return rp__conv_is_depthwise(p) && (p->op != RP__LIB_CONV_WEIGHT || rp__conv_depth_parts(p) <= 1);
}

static bool serves_weight(const rp__problem *p, size_t *workspace) {
    const rp__operand *sorted[3];
    const rp__conv_extent e = rp__conv_sort(p, sorted);
    const int64_t parts = rp__conv_is_depthwise(p) ? rp__conv_depth_parts(p) : 0;
    if (parts <= 1) return false;
    *workspace = rp__conv_parts_bytes(&e, p->o[0].dtype, parts);
    return true;
}

static double cost(const rp__problem *p) { return rp__problem_work(p) / 32; }

/* The inner index of results and input gradients is a window: one chain, as everywhere. */
static rp__order order(const rp__problem *p) {
    const rp__order simt = rp__problem_order(p);
    return p->op == RP__LIB_CONV_WEIGHT ? rp__order_with(simt, RP__FAMILY_SLOTS, 0) : simt;
}
const rp__cuda_product_row rp__cuda_conv_depth_row = {.row = {.name = "depthwise",
                                                              .ops = RP__CUDA_CONVOLUTIONS,
                                                              .follows = true,
                                                              .serves = serves,
                                                              .order = order,
                                                              .cost = cost,
                                                              .bind = bind},
                                                      .words = rp__conv_n_words,
                                                      .tiles = bind_tiles,
                                                      .source = source,
                                                      .takes_lanes = takes_lanes};
const rp__cuda_product_row rp__cuda_conv_depth_shares_row = {.row = {.name = "depthwise shares",
                                                                     .ops = 1u << RP__LIB_CONV_WEIGHT,
                                                                     .serves = serves_weight,
                                                                     .cost = cost,
                                                                     .bind = bind_weight}};
