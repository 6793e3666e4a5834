/* Convolutions by bulk copies (conv_bulk.cuh), forward and input gradient of 16-bit floats and of f32 rounded to tf32 on sm_90, and of the latter
 * weight gradients (conv_bulk_weight.cuh), a part of conv.c's row "mma": which of them, in which tiles, and what that takes. The bits are those of the row's other texts. */
#include <stdatomic.h>
#include <string.h>

#include "core/dtype.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/matmul.h"
#include "kernel/cuda/tensor_map.h"

/* Facts: those of conv.c where it has them, and MAPS: the logarithm of the maps of places, two bits. */
enum {
    POINT = 7,
    KIND = 8,
    SPATIAL = 10,
    BIAS = 12,
    TILE = 13,
    SPLIT = 17,
    MMA = 19,
    A_ALONG = 21,
    CLASSES,
    B_ALONG,
    OUT_WIDE,
    SAME,
    OUT_ROWS,
    BULK,
    MAPS,
    VECTORS = 30
};

/* Rows, columns, warpgroups above each other, tiles in shared memory, blocks that a multiprocessor holds. */
static const struct tile {
    uint16_t tm, tn, wm, stages, resident;
} tiles[] = {
    {128, 256, 2, 4, 1}, {128, 192, 2, 5, 1}, {128, 128, 2, 3, 2}, {128, 128, 2, 6, 1}, {128, 96, 2, 3, 2},
    {128, 64, 2, 4, 2},  {64, 256, 1, 5, 1},  {64, 192, 1, 3, 2},  {64, 128, 1, 4, 2},  {64, 64, 1, 4, 3},
    {64, 64, 1, 6, 2},   {64, 128, 1, 2, 3},  {128, 64, 2, 2, 3},  {64, 64, 1, 2, 4},
};
enum {
    N_TILES = sizeof tiles / sizeof *tiles,
    LINE = 128,        /* bytes of a tile's row */
    FIRST_FORCED = 16, /* of rp__cuda_conv_tile, these tiles come behind so many */
    LAST_FORCED = 32,
    FORCED_SPLIT = 6, /* and from this bit on the logarithm of shares + 1 */
    MOST_MAPS = 3     /* its logarithm */
};

static bool bit(uint64_t facts, unsigned at) { return facts >> at & 1; }
static unsigned field(uint64_t facts, unsigned at, unsigned bits) {
    return (unsigned)(facts >> at) & ((1u << bits) - 1);
}
static int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool rp__conv_is_bulk(uint64_t facts) { return bit(facts, VECTORS) && bit(facts, BULK); }

/* Weight gradients: a panel is of one tap, rows begin at 16 bytes, and few rows or columns would leave tiles empty. */
enum { PANEL = 32, EACH = 4, WEIGHT_ROWS = 32, WEIGHT_COLUMNS = 128, WEIGHT_STEP = 32 /* places */ };
static const struct tile weight_tiles[] = {{64, 128, 2, 4, 2}, {128, 128, 2, 6, 1}};
enum { N_WEIGHT_TILES = sizeof weight_tiles / sizeof *weight_tiles };
static const struct tile *tile_at(uint64_t facts) {
    return &(field(facts, KIND, 2) == 2 ? weight_tiles : tiles)[field(facts, TILE, 4)];
}

rp__conv_bulk_tile rp__conv_bulk_tile_of(uint64_t facts) {
    const struct tile *t = tile_at(facts);
    return (rp__conv_bulk_tile){.tm = t->tm,
                                .tn = t->tn,
                                .wm = t->wm,
                                .stages = t->stages,
                                .resident = t->resident,
                                .maps = 1u << field(facts, MAPS, 2)};
}

/* Tiles; barriers; and of columns their place in the result. */
static uint32_t room_of(const struct tile *t) {
    return t->stages * ((t->tm + t->tn) * (uint32_t)LINE + 16u) + t->tn * 16u;
}

/* ---- which convolutions, by sizes alone */

static int64_t channels_of(const rp__conv_extent *e) { return e->kind == 0 ? e->cg : e->og; }
static int64_t depth_of(rp_dtype dtype) { return LINE / (int64_t)rp__dtype_bytes(dtype); }

enum { ROUNDED_STEP = 8, NARROW_STEP = 16 }; /* of the inner index, of the tensor cores */
static bool has_panels(const rp__conv_extent *e) {
    return e->kind == 2 && e->m >= WEIGHT_ROWS && e->n >= WEIGHT_COLUMNS && e->cg % PANEL == 0 &&
           e->og % (e->groups > 1 ? PANEL : EACH) == 0;
}
bool rp__conv_rounds_even(const rp__conv_extent *e) {
    return e->kind == 2 ? has_panels(e) : channels_of(e) % ROUNDED_STEP == 0;
}

/* A step of the tensor cores is of one tap, as everywhere. Of 16-bit floats with short sums results bound the kernel, and conv_mma.cuh's tiles are
 * smaller than what copies need on their way. */
static bool is_of_kind(const rp__conv_extent *e, const rp__device *d, rp_dtype dtype) {
    enum { LEAST_ROWS = 24, SHORT = 2 /* tiles along the inner index */ };
    const int64_t channels = channels_of(e), depth = depth_of(dtype),
                  step = dtype == RP_F32 ? ROUNDED_STEP : NARROW_STEP;
    return d->arch == 90 && d->clusters && e->kind != 2 && e->m >= LEAST_ROWS && channels % step == 0 &&
           channels * 2 >= depth && (e->groups == 1 || channels % depth == 0) &&
           (dtype == RP_F32 || e->taps * over(channels, depth) > SHORT);
}

/* us of the tile with so many shares (an H200: gpu_kernels --conv-tile N, N of conv_parts.h): what comes to a multiprocessor bounds a step, or what
 * the tensor cores do with it, or, of few blocks, the way of a copy; results leave slowly. Classes without taps are zeros, results alone. */
static double time_of(const rp__conv_extent *e, const rp__device *d, rp_dtype dtype, const struct tile *t,
                      unsigned split) {
    static const double CLOCKS = 1755, ENDS = 1.25, SHARES = 0.9, BYTES = 53, ALONE = 580, LATENCY = 1550, BLOCK = 280,
                        RESULT = 0.30, ROUNDED = 0.17, GATHER = 0.5, MEMORY = 3.3e6,
                        PRODUCTS = 30.7; /* of all of a step, a clock */
    const int64_t channels = channels_of(e), depth = depth_of(dtype), rows = over(e->m, t->tm) * e->groups,
                  columns = over(e->class_n, t->tn), blocks = (columns * e->busy * rows) << split,
                  room = rp__cuda_in_clusters(d, split), turns = over(blocks, room * t->resident),
                  last = blocks - (turns - 1) * room * t->resident;
    const double steps = (double)over(e->class_taps * over(channels, depth), INT64_C(1) << split),
                 load = (double)(t->tm + t->tn) * LINE / BYTES, product = t->tm * t->tn / PRODUCTS,
                 step = load > product ? load : product, latency = LATENCY / (t->stages - 1),
                 alone = product > ALONE ? product : ALONE,
                 results = BLOCK + (dtype == RP_F32 || split ? RESULT : ROUNDED) * t->tm *
                                       t->tn; /* rounded before they leave */
    const double least = latency > alone ? latency : alone, held[2] = {t->resident, (double)over(last, room)};
    double clocks = (double)over(columns * (e->classes - e->busy) * rows, room) * results;
    for (unsigned k = 0; k < 2; k++) { /* full turns, and the last one */
        const double all = held[k] * step;
        clocks += (k ? 1 : (double)(turns - 1)) * (steps * (all > least ? all : least) + results * held[k]);
    }
    const double bytes = (double)rp__dtype_bytes(dtype) * (double)e->groups * (double)e->batch *
                         ((double)e->og * (double)e->points + (double)e->cg * (double)e->in),
                 us = ENDS + (split ? SHARES + GATHER * split * RESULT * t->tm * t->tn / CLOCKS : 0) + clocks / CLOCKS;
    return us > bytes / MEMORY ? us : bytes / MEMORY + 1e-3 * us; /* the better one of two that memory bounds */
}

unsigned rp__conv_bulk_split(const rp__conv_extent *e, const rp__device *d, rp_dtype dtype, double *us) {
    const int64_t channels = channels_of(e), depth = depth_of(dtype),
                  most = channels % depth  ? e->class_taps
                         : dtype == RP_F32 ? channels / depth
                                           : channels / depth * e->class_taps;
    unsigned best = 0;
    *us = 0;
    if (!is_of_kind(e, d, dtype)) return UINT32_MAX;
    for (unsigned s = 0; s <= 3 && (s == 0 || INT64_C(1) << s <= most); s++) {
        if (rp__cuda_conv_tile >> FORCED_SPLIT && rp__cuda_conv_tile >> FORCED_SPLIT != s + 1) continue;
        for (unsigned k = 0; k < N_TILES; k++) {
            const double time = time_of(e, d, dtype, &tiles[k], s);
            if (*us == 0 || time < *us) best = s, *us = time;
        }
    }
    return best;
}

/* ---- where operands lie */

/* All taps as one dim: its stride, or 0 where there is none. */
static int64_t tap_stride(const rp__operand *w) {
    int64_t stride = 0, taps = 1;
    for (unsigned d = w->ndim; d-- > 2; taps *= w->size[d]) {
        if (w->size[d] <= 1) continue;
        if (taps == 1) stride = w->stride[d];
        if (w->stride[d] != stride * taps) return 0;
    }
    return taps == 1 ? w->size[0] * w->size[1] : stride; /* of one tap: nobody goes there */
}

static bool weights_of(const rp__conv_extent *e, const rp__operand *w, rp__map_rows *out, bool *along) {
    const unsigned inner = e->kind == 0 ? 1 : 0, row = 1 - inner;
    const int64_t each = 16 / (int64_t)rp__dtype_bytes(w->dtype), taps = tap_stride(w);
    *along = w->stride[inner] == 1 && (w->size[row] <= 1 || w->stride[row] % each == 0);
    const unsigned x = *along ? inner : row, z = 1 - x;
    *out = (rp__map_rows){.base = w->base,
                          .dtype = (uint8_t)w->dtype,
                          .size = {w->size[x], e->taps, w->size[z]},
                          .stride = {taps, w->stride[z]}};
    if (!*along && e->kind == 0) return false; /* rows of a forward convolution are far apart */
    return (uintptr_t)w->base % 16 == 0 && w->stride[x] == 1 && taps > 0 && (e->taps == 1 || taps % each == 0) &&
           (w->size[z] <= 1 || (w->stride[z] > 0 && w->stride[z] % (e->taps > 1 ? taps : each) == 0));
}

/* Places of class `which` (conv_common.cuh), of other convolutions all of them. False: the class has none, or no taps. */
static bool window_of(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                      int64_t which, rp__map_window *out) {
    bool any = true;
    *out = (rp__map_window){.spatial = e->spatial};
    for (unsigned d = e->spatial; d-- > 0;) {
        const int64_t in = o[1]->size[2 + d], kernel = o[2]->size[2 + d], step = conv->stride[d],
                      dil = conv->dilation[d];
        out->step[d] = 1;
        if (e->kind == 0) {
            out->lower[d] = -conv->padding[d], out->places[d] = o[0]->size[2 + d], out->step[d] = step;
            out->reach[d] = (kernel - 1) * dil;
        } else if (!e->strided) {
            out->lower[d] = conv->padding[d] - (kernel - 1) * dil, out->places[d] = in,
            out->reach[d] = (kernel - 1) * dil;
        } else {
            const int64_t many = step < in ? step : in, begin = which % many, from = begin + conv->padding[d];
            const int64_t period = step / rp__conv_common(step, dil);
            int64_t first = 0;
            which /= many;
            while (first < kernel && (from - first * dil) % step != 0) first++;
            out->places[d] = over(in - begin, step);
            if (first >= kernel) {
                any = false;
                continue;
            }
            const int64_t taps = over(kernel - first, period), last = first + (taps - 1) * period;
            out->lower[d] = (from - last * dil) / step;
            out->reach[d] = (taps - 1) * (period * dil / step);
        }
    }
    return any;
}

bool rp__conv_bulk_plan(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                        const rp__device *d, unsigned split, rp__conv_bulk *out) {
    const rp__operand *picture = o[e->kind == 0 ? 1 : 0], *w = o[2];
    const rp_dtype dtype = w->dtype;
    const unsigned forced = rp__cuda_conv_tile & ((1u << FORCED_SPLIT) - 1);
    rp__map_rows rows;
    rp__map_window window;
    bool along;
    if ((forced && (forced <= FIRST_FORCED || forced > LAST_FORCED)) || !is_of_kind(e, d, dtype) ||
        (uintptr_t)picture->base % 16 || !weights_of(e, w, &rows, &along))
        return false;
    unsigned maps = 0;
    while (INT64_C(1) << maps < e->classes) maps++;
    if (maps > MOST_MAPS) return false;
    for (int64_t which = 0; which < e->classes; which++)
        if (window_of(e, o, conv, which, &window) && !rp__map_fits(picture, &window)) return false;
    if (!out) return true;
    *out =
        (rp__conv_bulk){.facts = UINT64_C(1) << VECTORS | UINT64_C(1) << BULK | UINT64_C(1) << MMA |
                                 UINT64_C(1) << B_ALONG | (uint64_t)along << A_ALONG | (uint64_t)maps << MAPS |
                                 (uint64_t)split << SPLIT | (uint64_t)(channels_of(e) % depth_of(dtype) == 0) << SAME};
    unsigned best = N_TILES;
    for (unsigned k = 0; k < N_TILES; k++) {
        if (room_of(&tiles[k]) > d->shared_limit || (forced && forced != FIRST_FORCED + k + 1)) continue;
        const double time = time_of(e, d, dtype, &tiles[k], split);
        if (best < N_TILES && time >= out->us) continue;
        best = k, out->us = time;
    }
    if (best == N_TILES) return false;
    out->facts |= (uint64_t)best << TILE;
    out->tile = &tiles[best];
    out->columns = over(e->class_n, tiles[best].tn) * e->classes << split;
    out->rows = over(e->m, tiles[best].tm);
    out->shared_bytes = room_of(&tiles[best]);
    return true;
}

/* ---- weight gradients */

bool rp__conv_bulk_turns(const rp__conv_extent *e, const rp__device *d) {
    return d->arch == 90 && d->clusters && has_panels(e);
}

/* us in so many shares of a cluster, its logarithm, and parts in memory (an H200: gpu_kernels --conv-tile over works `convw tf32`): a step of one
 * block, and of as many as a multiprocessor holds. */
static double weight_time(const rp__conv_extent *e, const rp__device *d, unsigned tile, unsigned split, int64_t parts) {
    static const struct { double ends, alone, all; } of[N_WEIGHT_TILES] = {{5.4, 940, 1575}, {2.4, 1580, 1580}};
    static const double CLOCKS = 1755, SHARES = 2.6, SUM = 0.9, SUMS = 2.2e6;
    const struct tile *t = &weight_tiles[tile];
    const int64_t room = rp__cuda_in_clusters(d, split),
                  blocks = (over(e->m, t->tm) * over(e->n, t->tn) * e->groups * parts) << split,
                  turns = over(blocks, room * t->resident), last = blocks - (turns - 1) * room * t->resident,
                  steps = over(over(e->k, parts << split), WEIGHT_STEP);
    const double clocks = (double)(turns - 1) * of[tile].all + (last > room ? of[tile].all : of[tile].alone);
    return of[tile].ends + (double)steps * clocks / CLOCKS + SHARES * split +
           (parts > 1 ? SUM + 8 * (double)e->m * (double)e->groups * (double)e->n * (double)parts / SUMS : 0);
}

/* Another one is forced, counted round. */
static bool is_left_out(unsigned tile) {
    const unsigned forced = rp__cuda_conv_tile & ((1u << FORCED_SPLIT) - 1);
    return forced && (forced - FIRST_FORCED - 1) % N_WEIGHT_TILES != tile;
}

rp__conv_cut rp__conv_bulk_cut(const rp__conv_extent *e, const rp__device *d) {
    enum { ROUNDS = 4 };
    /* places in memory have 32 bits */
    const int64_t most = rp__conv_most_shares(e),
                  held = INT32_MAX / 4 / (e->m * e->groups < INT32_MAX / 4 ? e->m * e->groups : INT32_MAX / 4) / e->n;
    rp__conv_cut best = {.parts = 1};
    double least = 0;
    for (unsigned s = 0; s <= 3 && (s == 0 || INT64_C(1) << s <= most); s++) {
        if (rp__cuda_conv_tile >> FORCED_SPLIT && rp__cuda_conv_tile >> FORCED_SPLIT != s + 1) continue;
        for (unsigned tile = 0; tile < N_WEIGHT_TILES; tile++) {
            const struct tile *t = &weight_tiles[tile];
            const int64_t blocks = (over(e->m, t->tm) * over(e->n, t->tn) * e->groups) << s;
            if (rp__cuda_conv_tile >> FORCED_SPLIT == 0 && is_left_out(tile)) continue;
            int64_t before = 0; /* of short sums most rounds are the same */
            for (unsigned k = 0; k <= ROUNDS; k++) {
                int64_t parts = k ? k * (int64_t)rp__cuda_in_clusters(d, s) / blocks : 1;
                if (parts > most >> s) parts = most >> s;
                if (parts > 1 && parts > held) parts = held;
                if (parts <= before) continue;
                before = parts;
                const double time = weight_time(e, d, tile, s, parts);
                if (least == 0 || time < least) best = (rp__conv_cut){s, parts}, least = time;
            }
        }
    }
    return best;
}

/* Places of y: one by one. */
static void places_of(const rp__conv_extent *e, const rp__operand *y, rp__map_window *out) {
    *out = (rp__map_window){.spatial = e->spatial};
    for (unsigned d = 0; d < e->spatial; d++) out->places[d] = y->size[2 + d], out->step[d] = 1;
}

bool rp__conv_bulk_weight_plan(const rp__conv_extent *e, const rp__operand *const *o, const rp__conv_geometry *conv,
                               const rp__device *d, rp__conv_cut cut, rp__conv_bulk *out) {
    const unsigned forced = rp__cuda_conv_tile & ((1u << FORCED_SPLIT) - 1);
    const rp__conv_extent as_forward = {.kind = 0, .spatial = e->spatial};
    rp__map_window of_x, of_y;
    if ((forced && (forced <= FIRST_FORCED || forced > LAST_FORCED)) || !rp__conv_bulk_turns(e, d) ||
        (uintptr_t)o[0]->base % 16 || (uintptr_t)o[1]->base % 16)
        return false;
    places_of(e, o[0], &of_y);
    if (!window_of(&as_forward, o, conv, 0, &of_x) || !rp__map_fits(o[1], &of_x) || !rp__map_fits(o[0], &of_y))
        return false;
    unsigned best = N_WEIGHT_TILES;
    for (unsigned k = 0; k < N_WEIGHT_TILES; k++) {
        if (room_of(&weight_tiles[k]) > d->shared_limit || is_left_out(k)) continue;
        const double time = weight_time(e, d, k, cut.split, cut.parts);
        if (best < N_WEIGHT_TILES && time >= out->us) continue;
        best = k, out->us = time;
    }
    if (best == N_WEIGHT_TILES) return false;
    const struct tile *t = &weight_tiles[best];
    *out = (rp__conv_bulk){.facts = UINT64_C(1) << VECTORS | UINT64_C(1) << BULK | UINT64_C(1) << MMA |
                                    (uint64_t)best << TILE | (uint64_t)cut.split << SPLIT,
                           .tile = t,
                           .us = out->us,
                           .columns = (over(e->n, t->tn) * cut.parts) << cut.split,
                           .rows = over(e->m, t->tm),
                           .shared_bytes = room_of(t)};
    return true;
}

static bool weight_words(const rp__problem *p, const rp__conv_extent *e, const rp__operand *const *o, uint32_t first,
                         rp__launch_buffer *buffer, rp__launch *out) {
    const rp__conv_extent as_forward = {.kind = 0, .spatial = e->spatial};
    rp__map_window window;
    for (unsigned k = 0; k < 2; k++) {
        const uint32_t at = first + k * RP__MAP_WORDS;
        if (k)
            (void)window_of(&as_forward, o, &p->call->conv, 0, &window);
        else
            places_of(e, o[0], &window);
        if (!rp__map_pixels(p->device, o[k], &window, true, PANEL, WEIGHT_STEP, buffer->words + at)) return false;
        rp__operand_slot(o[k], at, RP__READ, buffer, out);
    }
    return true;
}

static bool other_words(const rp__problem *p, const rp__conv_extent *e, const rp__operand *const *o,
                        const struct tile *t, uint32_t first, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__operand *picture = o[e->kind == 0 ? 1 : 0], *w = o[2];
    const bool tf32 = w->dtype == RP_F32;
    const unsigned depth = (unsigned)depth_of(w->dtype);
    rp__map_rows rows;
    bool along;
    (void)weights_of(e, w, &rows, &along);
    if (!rp__map_box(p->device, &rows, tf32, depth, along ? t->tm : depth, buffer->words + first)) return false;
    rp__operand_slot(w, first, RP__READ | RP__AHEAD, buffer, out);
    for (int64_t which = 0; which < e->classes; which++) {
        const uint32_t at = first + (1 + (uint32_t)which) * RP__MAP_WORDS;
        rp__map_window window;
        if (!window_of(e, o, &p->call->conv, which, &window)) continue;
        if (!rp__map_pixels(p->device, picture, &window, tf32, depth, t->tn, buffer->words + at)) return false;
        rp__operand_slot(picture, at, RP__READ, buffer, out);
    }
    return true;
}

/* Launches, for tests alone. */
_Atomic unsigned rp__conv_bulks;

bool rp__conv_bulk_words(const rp__problem *p, const rp__conv_extent *e, const rp__operand *const *o,
                         const rp__conv_bulk *plan, uint32_t behind, rp__launch_buffer *buffer, rp__launch *out) {
    const struct tile *t = plan->tile;
    const uint32_t before = behind > out->n_words ? behind : out->n_words, n_slots = out->n_slots,
                   first = (before + RP__MAP_ALIGN - 1) / RP__MAP_ALIGN * RP__MAP_ALIGN,
                   end = first + (1u + (1u << field(plan->facts, MAPS, 2))) * RP__MAP_WORDS;
    memset(buffer->words + before, 0, (end - before) * sizeof *buffer->words);
    if (!(e->kind == 2 ? weight_words(p, e, o, first, buffer, out) : other_words(p, e, o, t, first, buffer, out))) {
        out->n_slots = n_slots;
        return false;
    }
    out->n_words = end;
    (void)atomic_fetch_add_explicit(&rp__conv_bulks, 1, memory_order_relaxed);
    return true;
}
