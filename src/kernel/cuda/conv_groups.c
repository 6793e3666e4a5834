/* Convolutions of 16-bit floats whose groups have few channels (conv_groups.cuh): which of them, in turns of which shape, how operands are
 * read, into how many shares a weight gradient is cut. Forward and input gradients are one row, weight gradients, whose shares leave their
 * sums in the call's workspace, another. What bits depend on is a function of sizes, dtype and kind of device. */
#include <string.h>

#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Facts: dtype in the low byte, then these; the words that follow from bit 32 on. */
enum {
    KIND = 8,
    SPATIAL = 10,
    BIAS = 12,
    SHAPE = 13,    /* a row of `shapes` */
    CHANNELS = 16, /* their logarithm */
    WIDE = 19,
    LAST,
    OUT_ROWS,
    OUT_WIDE,
    ONCE = OUT_WIDE, /* of a weight gradient: there is room for one turn */
    W_LAST = 23,     /* of others: weights in vectors */
    WINDOW = 23,     /* of a weight gradient: its rows, its places in a row */
    WINDOW_X = 27
};

/* Places of a turn. */
static const struct shape {
    uint8_t th, tw;
} shapes[] = {{8, 16}, {16, 8}, {4, 32}, {2, 64}, {1, 128}, {8, 8}, {4, 16}, {1, 64}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
enum {
    SPAN = 64, /* RP_CB */
    MOST_CHANNELS = 32,
    MOST_TAPS = 25,
    MOST_SUMMED = 9,           /* taps of a weight gradient, whose sums are in registers */
    MOST_CHANNELS_SUMMED = 16, /* and channels of a group */
    MOST_STEP = 4,
    MOST_ROOM = 160 * 1024,
    FIXED_ROOM = 1024, /* and where taps are */
    RESIDENT = 3,      /* blocks of a multiprocessor; of weight gradients */
    RESIDENT_SUMMED = 2,
    MOST_PARTS = 256
};

static unsigned field(uint64_t facts, unsigned at, unsigned bits) {
    return (unsigned)(facts >> at & ((1u << bits) - 1));
}
static int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* What a problem's turns are. Sizes of one spatial dim are those of one row. */
typedef struct plan {
    rp__conv_extent e;
    const rp__operand *sorted[3];
    int64_t step[2], dilation[2], window[2], made[2]; /* y, x; made: places of what turns are of */
    int64_t classes, turns;
    unsigned shape, held; /* turns in shared memory at a time */
    uint32_t room;
} plan;

static int64_t turns_of(const plan *p, const struct shape *s) {
    return p->e.batch * over(p->made[0], s->th) * over(p->made[1], s->tw);
}

/* Bytes of shared memory. */
static int64_t room_of(const plan *p, const struct shape *s) {
    const bool weight = p->e.kind == 2, input = p->e.kind == 1;
    int64_t patch = SPAN + 8;
    for (unsigned k = 0; k < 2; k++) {
        const int64_t places = k ? s->tw : s->th, reach = (p->window[k] - 1) * p->dilation[k];
        patch *= input ? places + over(reach, p->step[k]) + 1 : (places - 1) * p->step[k] + reach + 1;
    }
    const int64_t places = s->th * s->tw, deep = p->e.cg > 16 ? p->e.cg : 16;
    if (weight) return (patch + places * (SPAN + 8)) * 2; /* of a turn: the next one is on its way */
    const int64_t out = places * (SPAN + 4) > SPAN * (places + 4) ? places * (SPAN + 4) : SPAN * (places + 4);
    return p->e.taps * SPAN * (deep + 8) * 2 + (patch * 2 > out * 4 ? patch * 2 : out * 4);
}

/* The shape that wastes least: places, and what a turn takes besides, of the turns that a multiprocessor has one after the other. N_SHAPES: none
 * fits. */
static unsigned shape_of(const plan *p, const rp__device *device) {
    const int64_t limit = (int64_t)device->shared_limit, side_by_side = p->classes * over(p->e.groups * p->e.cg, SPAN);
    int64_t least = 0;
    unsigned best = N_SHAPES;
    for (unsigned k = 0; k < N_SHAPES; k++) {
        const int64_t room = room_of(p, &shapes[k]),
                      turns = p->e.kind == 2 ? turns_of(p, &shapes[k])
                                             : over(turns_of(p, &shapes[k]) * side_by_side, device->multiprocessors),
                      time = turns * (shapes[k].th * shapes[k].tw + 24) * (room / 4096 + 24);
        if (room > MOST_ROOM || room * p->held + FIXED_ROOM > limit || (best < N_SHAPES && time >= least)) continue;
        best = k;
        least = time;
    }
    return best;
}

static bool plan_of(const rp__problem *p, plan *out) {
    const rp__conv_geometry *c = &p->call->conv;
    const rp__conv_extent e = out->e = rp__conv_sort(p, out->sorted);
    if (e.groups < 2 || e.cg != e.og || e.cg < 2 || e.cg > MOST_CHANNELS || (e.cg & (e.cg - 1)) || e.spatial > 2 ||
        e.m == 0 || e.n == 0 || e.k == 0 || p->o[0].dtype == RP_F32 || !rp__conv_on_tensor_cores(p))
        return false;
    if (e.taps > (e.kind == 2 ? MOST_SUMMED : MOST_TAPS) || (e.kind == 2 && e.cg > MOST_CHANNELS_SUMMED)) return false;
    const rp__operand *made = out->sorted[e.kind == 1 ? 1 : 0];
    out->classes = 1;
    for (unsigned k = 0; k < 2; k++) {
        const unsigned d = k + e.spatial - 2; /* wraps where there is no such dim */
        const bool there = k + e.spatial >= 2;
        out->step[k] = there ? c->stride[d] : 1;
        out->dilation[k] = there ? c->dilation[d] : 1;
        out->window[k] = there ? out->sorted[2]->size[2 + d] : 1;
        out->made[k] = there ? made->size[2 + d] : 1;
        if (out->step[k] > MOST_STEP || out->dilation[k] > 64) return false;
        if (e.kind == 1) {
            out->classes *= out->step[k];
            out->made[k] = over(out->made[k], out->step[k]);
        }
    }
    /* A weight gradient's next turn is on its way where there is room for two. */
    out->shape = N_SHAPES;
    for (out->held = e.kind == 2 ? 2 : 1; out->held > 0; out->held--) {
        out->shape = shape_of(out, p->device);
        if (out->shape < N_SHAPES) break;
    }
    if (out->shape == N_SHAPES) return false;
    out->room = (uint32_t)room_of(out, &shapes[out->shape]) * out->held;
    out->turns = turns_of(out, &shapes[out->shape]);
    return out->turns < INT32_MAX / 2;
}

bool rp__conv_is_grouped(const rp__problem *p) {
    plan unused;
    return plan_of(p, &unused);
}

/* Shares of the turns of a weight gradient: as many as fill the device. */
static int64_t parts_of(const rp__problem *p, const plan *of) {
    const int64_t most = RESIDENT_SUMMED * (int64_t)p->device->multiprocessors / over(of->e.groups * of->e.cg, SPAN);
    const int64_t parts = most < of->turns / 2 ? most : of->turns / 2;
    return parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
}
int64_t rp__conv_group_parts(const rp__problem *p) {
    plan of;
    return plan_of(p, &of) ? parts_of(p, &of) : 0;
}

static void macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    const struct shape *s = &shapes[field(facts, SHAPE, 3)];
    const unsigned kind = field(facts, KIND, 2);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_KIND %u\n#define RP_SPATIAL %u\n#define RP_BIAS %u\n#define RP_REST %u\n", kind,
                 field(facts, SPATIAL, 2), field(facts, BIAS, 1), (unsigned)(facts >> 32));
    rp__text_add(out, "#define RP_INDEX %s\n#define RP_SPLIT 1\n#define RP_PARTS %d\n#define RP_CG %u\n",
                 field(facts, WIDE, 1) ? "rp_i64" : "rp_i32", kind == 2, 1u << field(facts, CHANNELS, 3));
    rp__text_add(out, "#define RP_TH %u\n#define RP_TW %u\n#define RP_LAST %u\n#define RP_OUT_ROWS %u\n", s->th, s->tw,
                 field(facts, LAST, 1), field(facts, OUT_ROWS, 1));
    rp__text_add(out, "#define RP_W_LAST %u\n", kind == 2 ? 0 : field(facts, W_LAST, 1));
    rp__text_add(out, "#define RP_TURNS_HELD %u\n", kind == 2 && !field(facts, ONCE, 1) ? 2 : 1);
    rp__text_add(out, "#define RP_OUT_WIDE %u\n#define RP_TAPS %u\n#define RP_WINDOW_X %u\n",
                 kind != 2 && field(facts, OUT_WIDE, 1), field(facts, WINDOW, 4) * field(facts, WINDOW_X, 4),
                 field(facts, WINDOW_X, 4));
    rp__text_add(out, "#define RP_MMA_STEP(d, a, b) rp_mma_m16n8k16_%s(d, a, b)\n", rp__dtypes[dtype].short_name);
    rp__text_write(out, rp__embed_conv_common_cuh, rp__embed_conv_common_cuh_len);
}

/* Eight channels at once? */
static bool is_last(const rp__operand *o) {
    if (!o->base || (uintptr_t)o->base % 16 || o->stride[1] != 1 || o->size[1] % 8) return false;
    for (unsigned d = 0; d < o->ndim; d++)
        if (d != 1 && o->size[d] > 1 && o->stride[d] % 8) return false;
    return true;
}

static rp_status set_tiles(const rp__problem *p, rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    plan of;
    if (!plan_of(p, &of)) return rp__fail(RP_ERROR_INTERNAL, "%s: groups of another kind", p->call->op);
    const rp__conv_extent *e = &of.e;
    const bool bias = rp__conv_has_bias(p);
    const rp__operand *result = &p->o[0], *read = of.sorted[e->kind == 1 ? 0 : 1];
    const int64_t spans = over(e->groups * e->cg, SPAN), parts = e->kind == 2 ? parts_of(p, &of) : 0;
    if (parts)
        rp__conv_part_words(p, of.sorted, e, parts, buffer, out);
    else
        rp__conv_words(p, of.sorted, e, bias, buffer, out);
    unsigned channels = 0;
    while (INT64_C(1) << channels < e->cg) channels++;
    *facts = (uint64_t)result->dtype | (uint64_t)e->kind << KIND | (uint64_t)e->spatial << SPATIAL |
             (uint64_t)bias << BIAS | (uint64_t)of.shape << SHAPE | (uint64_t)channels << CHANNELS |
             (uint64_t)rp__conv_is_wide(of.sorted, &p->call->conv) << WIDE;
    const bool last = is_last(read) && (e->kind != 2 || is_last(of.sorted[0]));
    *facts |= (uint64_t)last << LAST;
    int64_t blocks = of.turns;
    if (parts) {
        *facts |=
            (uint64_t)of.window[0] << WINDOW | (uint64_t)of.window[1] << WINDOW_X | (uint64_t)(of.held == 1) << ONCE;
        blocks = parts;
    } else {
        const bool rows = result->base ? result->stride[1] == 1 : read->stride[1] == 1;
        *facts |= (uint64_t)(e->kind == 0 && e->cg % 8 == 0 && is_last(of.sorted[2])) << W_LAST;
        *facts |= (uint64_t)rows << OUT_ROWS | (uint64_t)(rows && is_last(result)) << OUT_WIDE;
        const int64_t most = RESIDENT * (int64_t)p->device->multiprocessors / (spans * of.classes);
        if (blocks > most) blocks = most < 1 ? 1 : most;
    }
    if (blocks * spans > INT32_MAX)
        return rp__fail(RP_ERROR_SHAPE, "%s: this convolution is more than one CUDA launch takes", p->call->op);
    out->grid[0] = (uint32_t)(blocks * spans);
    out->grid[1] = (uint32_t)of.classes;
    out->grid[2] = 1;
    out->block[0] = 256;
    out->block[1] = out->block[2] = 1;
    out->shared_bytes = of.room;
    return RP_OK;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "conv_groups"};
    (void)workspace;
    memset(out, 0, sizeof *out);
    out->op = p->call->op;
    out->site = p->call->site;
    RP_TRY(set_tiles(p, buffer, out, &key.facts));
    return rp__text_kernel(p->device, &key, macros, rp__embed_conv_groups_cuh, rp__embed_conv_groups_cuh_len,
                           &out->kernel);
}

static rp_status bind_tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out,
                            uint64_t *facts) {
    *wide = true;
    return set_tiles(p, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_conv_groups_cuh, rp__embed_conv_groups_cuh_len, parts, out);
}

static bool serves(const rp__problem *p, size_t *workspace) {
    (void)workspace;
    return rp__conv_is_grouped(p);
}

static bool serves_weight(const rp__problem *p, size_t *workspace) {
    plan of;
    if (!plan_of(p, &of)) return false;
    *workspace = rp__conv_parts_bytes(&of.e, p->o[0].dtype, parts_of(p, &of));
    return true;
}

/* That of other convolutions on tensor cores but for the steps, of a tap each; the number tells the two apart. */
static rp__order order(const rp__problem *p) { return rp__order_with(rp__problem_order(p), RP__FAMILY_MMA, 1); }

static double cost(const rp__problem *p) { return rp__problem_work(p) / 128; }

const rp__cuda_product_row rp__cuda_conv_groups_row = {
    .row = {.name = "groups",
            .ops = 1u << RP__LIB_CONV_FORWARD | 1u << RP__LIB_CONV_INPUT,
            .follows = true,
            .serves = serves,
            .order = order,
            .cost = cost,
            .bind = bind},
    .words = rp__conv_n_words,
    .tiles = bind_tiles,
    .source = source};
const rp__cuda_product_row rp__cuda_conv_group_shares_row = {
    .row = {
        .name = "group shares", .ops = 1u << RP__LIB_CONV_WEIGHT, .serves = serves_weight, .cost = cost, .bind = bind}};
