/* Convolutions on the CPU: from operands to the words of gemm.h. Any strides, groups, dilation; 1 to 3 spatial dims. */
#include "core/dtype.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/lib.h"

static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end);
#define KERNEL(which, dtype, text)                                                                                     \
    [dtype] = {.kind = RP__KERNEL_CPU, .name = text, .key = {(which) << 8 | (dtype), 0x636f6e76}, .cpu = run}
#define KERNELS(which, text)                                                                                           \
    [which] = {KERNEL(which, RP_F32, text "_f32"), KERNEL(which, RP_F64, text "_f64"),                                 \
               KERNEL(which, RP_F16, text "_f16"), KERNEL(which, RP_BF16, text "_bf16")}
static rp__kernel kernels[RP__CONV_KINDS][RP__DTYPE_COUNT] = {KERNELS(RP__CONV_FORWARD, "conv_forward"),
                                                              KERNELS(RP__CONV_INPUT, "conv_input"),
                                                              KERNELS(RP__CONV_WEIGHT, "conv_weight")};
static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    rp__gemm_current()->conv[kernel->key.lo >> 8][kernel->key.lo & 0xff](kernel, words, begin, end);
}

/* Channels of x for an item of weight gradients whose lanes are groups; 0: groups are too few, or too large. */
static int64_t channels_by_lanes(const int64_t *v, int64_t groups, int64_t O, int64_t C) {
    const int64_t *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION;
    const int64_t taps = ws[0] * ws[1] * ws[2], wide = (ys[2] - 1) * stride[2] + (ws[2] - 1) * dilation[2] + 1;
    if (groups < RP__CONV_LANES / 2 || O > RP__CONV_LANES_ROWS || taps > RP__CONV_LANES_TAPS ||
        (double)wide * (double)ws[0] * ((double)(ws[1] - 1) * (double)dilation[1] + 1) > RP__CONV_LANES_ROOM)
        return 0;
    const int64_t sets = (groups + RP__CONV_LANES - 1) / RP__CONV_LANES, most = RP__CONV_LANES_SUMS / (O * taps);
    const int64_t wanted = (4 * rp_num_threads() + sets - 1) / sets, parts = wanted < C ? wanted : C;
    const int64_t each = (C + parts - 1) / parts;
    return each < most ? each : most;
}

/* Channels of y and of x for an item of weight gradients by taps; false: no place is met by two taps, or the item would be too large. */
static bool channels_by_taps(const int64_t *v, int64_t groups, int64_t O, int64_t C, int64_t *tm, int64_t *tn) {
    enum { ALIGNED = 32 }; /* channels of y: whole panels of every instruction set */
    const int64_t *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION;
    if (stride[2] >= (ws[2] - 1) * dilation[2] + 1) return false; /* nothing of x is met by two taps */
    const double taps = (double)ws[0] * (double)ws[1] * (double)ws[2];
    const double wide = (double)(ys[2] - 1) * (double)stride[2] + (double)(ws[2] - 1) * (double)dilation[2] + 1;
    const double high = (double)(ws[1] - 1) * (double)dilation[1] + 1;
    if (taps * ALIGNED > RP__CONV_TAPS_SUMS || wide * high * (double)ws[0] > RP__CONV_TAPS_ROOM) return false;
    int64_t rows = (O + ALIGNED - 1) / ALIGNED * ALIGNED, most = RP__CONV_TAPS_SUMS / (int64_t)taps / ALIGNED * ALIGNED;
    most = most < RP__CONV_TAPS_ROWS ? most : RP__CONV_TAPS_ROWS;
    const int64_t tiles = (rows + most - 1) / most;
    rows = ((rows + tiles - 1) / tiles + ALIGNED - 1) / ALIGNED * ALIGNED;
    const int64_t sets = groups * ((O + rows - 1) / rows), fit = RP__CONV_TAPS_SUMS / ((int64_t)taps * rows);
    const int64_t threads = rp_num_threads(), wanted = threads == 1 ? 1 : (2 * threads + sets - 1) / sets;
    int64_t parts = (C + fit - 1) / fit;
    if (parts < wanted) parts = wanted < C ? wanted : C;
    *tm = rows < O ? rows : O, *tn = (C + parts - 1) / parts;
    return true;
}

/* Rows of the result for an item of FORWARD and INPUT whose lanes are groups, of which there are `phases` times as many for each image; 0: groups
   are too few, or too large. */
static int64_t rows_by_lanes(const int64_t *v, rp__conv_kind kind, rp_dtype dtype, int64_t phases) {
    const int64_t *xs = v + RP__CONV_XS, *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION, groups = v[RP__CONV_GROUPS], C = v[RP__CONV_C], O = v[RP__CONV_O];
    const int64_t deep = kind == RP__CONV_FORWARD ? C : O, rows = kind == RP__CONV_FORWARD ? O : C;
    const int64_t block = rp_dtype_size(dtype) == 8 ? RP__PRODUCT_BLOCK / 2 : RP__PRODUCT_BLOCK;
    if (groups < RP__CONV_LANES / 2 || rows > RP__CONV_LANES_ROWS || rows * deep > RP__CONV_LANES_PAIRS ||
        (double)deep * (double)ws[0] * (double)ws[1] * (double)ws[2] > (double)block)
        return 0;
    /* lines of x that are held at once, and places of each for eight columns */
    const double held = (double)deep * (double)ws[0] * ((double)(ws[1] - 1) * (double)dilation[1] + 1);
    const double least = 7.0 * (double)stride[2] + (double)(ws[2] - 1) * (double)dilation[2] + 1;
    if (held * least > RP__CONV_LANES_ROOM) return 0;
    int64_t lines = 1;
    for (int d = 0; d < 2; d++) lines *= kind == RP__CONV_FORWARD ? ys[d] : (xs[d] + stride[d] - 1) / stride[d];
    const int64_t sets = (groups + RP__CONV_LANES - 1) / RP__CONV_LANES * phases * v[RP__CONV_IMAGES];
    const int64_t wanted = (4 * rp_num_threads() + sets - 1) / sets, most = (lines + 3) / 4;
    const int64_t parts = rp_num_threads() == 1 ? 1 : wanted < most ? wanted : most;
    return (lines + parts - 1) / parts;
}

/* Tiles of FORWARD and INPUT whose vectors are channels of the result; false: vectors of places serve better, or there is no room. */
static bool by_points(const int64_t *v, rp__conv_kind kind, rp_dtype dtype, int64_t rows, int64_t blocks, int64_t *tm,
                      int64_t *tn) {
    enum { ALIGNED = 32, PARTS = 8 }; /* whole panels of every instruction set */
    const bool forward = kind == RP__CONV_FORWARD;
    const int64_t *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE, *dilation = v + RP__CONV_DILATION;
    const int64_t *pitch = v + (forward ? RP__CONV_X_STRIDES : RP__CONV_Y_STRIDES);
    const int64_t deep = v[forward ? RP__CONV_C : RP__CONV_O], size = rp_dtype_size(dtype) == 8 ? 8 : 4;
    const int64_t panel = rp__gemm_current()->panel * 4 / size, lanes = panel / 2;
    const int64_t room = RP__PRODUCT_BLOCK * 4 / size * RP__GEMM_MAX_TILE_N, weights = RP__GEMM_WEIGHT_BYTES / size;
    int64_t places[3], move[3], reach[3];
    double taps = 1;
    for (int d = 0; d < 3; d++) {
        places[d] = forward ? v[RP__CONV_YS + d] : (v[RP__CONV_XS + d] + stride[d] - 1) / stride[d];
        move[d] = forward ? stride[d] : 1;
        reach[d] = (ws[d] - 1) * dilation[d] / (forward ? 1 : stride[d]);
        const int64_t apart = forward ? 1 : rp__conv_step(stride[d], dilation[d]);
        taps *= (double)((ws[d] + apart - 1) / apart);
    }
    const int64_t row = places[2], all = places[0] * places[1];
    if (taps > RP__CONV_POINTS_TAPS || (double)deep * taps > RP__PRODUCT_GROUP * RP__PRODUCT_BLOCK * 4.0 / (double)size)
        return false;
    /* Columns that are calculated for each that is wanted: whole vectors of channels, or rows with what windows need between them, and
       whole panels of these; for the latter channels that lie last must be turned, and places some steps apart taken apart. */
    const int64_t k = deep * (int64_t)taps, gap = reach[2] / move[2];
    int64_t lines = row >= RP__CONV_POINTS ? 1 : RP__CONV_POINTS / row, part = 1;
    if (lines > all) lines = all;
    const int64_t columns = lines * (row + gap) - gap;
    const double points = (double)((rows + lanes - 1) / lanes * lanes) / (double)rows;
    const double across = (double)((columns + panel - 1) / panel * panel) / (double)(lines * row);
    const bool last = pitch[1] == 1 && pitch[4] != 1 && deep > 1;
    if (points > across * (last ? 1.25 : move[2] > 1 ? 1 : 0.9)) return false;

    if (row > RP__CONV_POINTS) { /* parts of rows */
        while (part <= PARTS && (row % part || row / part > RP__CONV_POINTS)) part++;
        if (part > PARTS) return false;
    }
    const double plane =
        (double)deep * (double)(reach[0] + 1) * ((double)(row / part - 1) * (double)move[2] + (double)reach[2] + 1);
    while (lines > 1 && plane * ((double)(lines - 1) * (double)move[1] + (double)reach[1] + 1) > (double)room) lines--;
    if (plane * (double)(reach[1] + 1) > (double)room) return false;
    /* All channels, if there is room for their weights, of an input gradient, some of whose phases may have no room for their places, as
       many as any tile has; fewer places or, of few lines, fewer channels, where threads would have none. */
    const int64_t items = rp_num_threads() == 1 ? 1 : 2 * rp_num_threads();
    while (lines > 4 && blocks * ((all + lines - 1) / lines) < items) lines = (lines + 1) / 2;
    while (places[0] > 1 && places[1] % lines) lines--; /* no box of two planes */
    const int64_t tiles_n = part * ((all + lines - 1) / lines);
    for (int64_t tiles = 1;; tiles++) {
        *tm = ((rows + tiles - 1) / tiles + ALIGNED - 1) / ALIGNED * ALIGNED;
        if (*tm * k <= weights && (forward || *tm <= RP__GEMM_MAX_TILE_M) &&
            (blocks * tiles_n * tiles >= items || *tm == ALIGNED))
            break;
        if (*tm == ALIGNED) return false;
    }
    if (*tm > rows) *tm = rows;
    *tn = lines * row / part;
    return true;
}

static rp__conv_kind kind_of(rp__library_op op) {
    return op == RP__LIB_CONV_FORWARD ? RP__CONV_FORWARD : op == RP__LIB_CONV_INPUT ? RP__CONV_INPUT : RP__CONV_WEIGHT;
}

rp_status rp__cpu_conv_words(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                             unsigned flags, rp__launch_buffer *buffer, rp__launch *out) {
    /* where x, w, y stand among the operands; the first operand is the result */
    static const unsigned order[RP__CONV_KINDS][3] = {{1, 2, 0}, {0, 2, 1}, {2, 0, 1}};
    static const uint32_t words_of[3] = {RP__CONV_X, RP__CONV_W, RP__CONV_Y};
    const rp__conv_kind kind = kind_of(op);
    const rp__conv_geometry *g = &call->conv;
    const unsigned s = g->spatial;
    if (n < 3 || s < 1 || s > 3)
        return rp__fail(RP_ERROR_INTERNAL, "%s: operands of a convolution do not fit", call->op);
    const rp__operand *part[3] = {&o[order[kind][0]], &o[order[kind][1]], &o[order[kind][2]]};
    const rp__operand *x = part[0], *w = part[1], *y = part[2],
                      *bias = kind == RP__CONV_FORWARD && n > 3 && o[3].base ? &o[3] : NULL;
    for (unsigned i = 0; i < 3; i++) {
        if (part[i]->ndim != s + 2 || part[i]->dtype != x->dtype)
            return rp__fail(RP_ERROR_INTERNAL, "%s: operands of a convolution do not fit", call->op);
    }
    if (x->dtype == RP_BOOL || (bias && (bias->dtype != x->dtype || bias->ndim != 1)))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: no convolution of %s", call->op, rp_dtype_name(x->dtype));
    const int64_t groups = g->groups;
    if (groups < 1 || x->size[1] % groups || w->size[0] % groups || w->size[1] != x->size[1] / groups ||
        y->size[1] != w->size[0] || y->size[0] != x->size[0])
        return rp__fail(RP_ERROR_INTERNAL, "%s: channels of a convolution do not fit", call->op);
    if (rp__operand_numel(&o[0]) == 0) return RP_OK;

    uint64_t *v = buffer->words;
    for (unsigned i = 0; i < 3; i++) {
        rp__operand_slot(part[i], words_of[i], part[i] == &o[0] ? RP__WRITE : RP__READ, buffer, out);
        uint64_t *strides = v + (i == 0 ? RP__CONV_X_STRIDES : i == 1 ? RP__CONV_W_STRIDES : RP__CONV_Y_STRIDES);
        uint64_t *extents = v + (i == 0 ? RP__CONV_XS : i == 1 ? RP__CONV_WS : RP__CONV_YS);
        strides[0] = (uint64_t)part[i]->stride[0], strides[1] = (uint64_t)part[i]->stride[1];
        for (unsigned k = 0; k < 3; k++) {
            const bool missing = k + s < 3;
            strides[2 + k] = missing ? 0 : (uint64_t)part[i]->stride[2 + k + s - 3];
            extents[k] = missing ? 1 : (uint64_t)part[i]->size[2 + k + s - 3];
        }
    }
    v[RP__CONV_BIAS] = 0;
    if (bias) rp__operand_slot(bias, RP__CONV_BIAS, RP__READ, buffer, out);
    v[RP__CONV_BIAS_STRIDE] = bias ? (uint64_t)bias->stride[0] : 0;
    for (unsigned k = 0; k < 3; k++) {
        const bool missing = k + s < 3;
        v[RP__CONV_STRIDE + k] = missing ? 1 : (uint64_t)g->stride[k + s - 3];
        v[RP__CONV_PADDING + k] = missing ? 0 : (uint64_t)g->padding[k + s - 3];
        v[RP__CONV_DILATION + k] = missing ? 1 : (uint64_t)g->dilation[k + s - 3];
    }
    const int64_t C = w->size[1], O = w->size[0] / groups, images = x->size[0];
    v[RP__CONV_IMAGES] = (uint64_t)images, v[RP__CONV_GROUPS] = (uint64_t)groups;
    v[RP__CONV_C] = (uint64_t)C, v[RP__CONV_O] = (uint64_t)O;
    v[RP__CONV_FLAGS] = flags | (bias ? RP__GEMM_BIAS_M : 0u);
    out->n_words = RP__CONV_WORDS;
    return RP_OK;
}

static rp_status bind(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call, unsigned flags,
                      rp__launch_buffer *buffer, rp__launch *out) {
    const rp__conv_kind kind = kind_of(op);
    const rp_dtype dtype = (rp_dtype)o[0].dtype;
    uint64_t *const v = buffer->words;
    RP_TRY(rp__cpu_conv_words(op, o, n, call, flags, buffer, out));
    if (rp__operand_numel(&o[0]) == 0) return RP_OK;
    const int64_t groups = (int64_t)v[RP__CONV_GROUPS], images = (int64_t)v[RP__CONV_IMAGES];
    const int64_t C = (int64_t)v[RP__CONV_C], O = (int64_t)v[RP__CONV_O];
    int64_t taps = 1, points = 1, positions = 1, phases = 1;
    for (unsigned k = 0; k < 3; k++) {
        const int64_t step = (int64_t)v[RP__CONV_STRIDE + k], extent = (int64_t)v[RP__CONV_XS + k];
        taps *= (int64_t)v[RP__CONV_WS + k], points *= (int64_t)v[RP__CONV_YS + k];
        positions *= (extent + step - 1) / step, phases *= step;
    }
    if (kind != RP__CONV_INPUT) phases = 1;
    const int64_t rows = kind == RP__CONV_INPUT ? C : O;
    const int64_t columns = kind == RP__CONV_FORWARD ? points : kind == RP__CONV_INPUT ? positions : C * taps;
    const int64_t blocks = phases * groups * (kind == RP__CONV_WEIGHT ? 1 : images);
    const double work = (double)images * (double)groups * (double)O * (double)C * (double)points * (double)taps;
    int64_t tm = O, tn = 0;
    out->kernel = &kernels[kind][dtype];
    bool by_taps = false;
    if (kind == RP__CONV_WEIGHT && !(flags & RP__GEMM_DOTS)) {
        /* Channels of y that fill a vector are as good as groups that do. */
        by_taps = O >= RP__CONV_LANES / 2 && channels_by_taps((const int64_t *)v, groups, O, C, &tm, &tn);
        if (!by_taps) tn = channels_by_lanes((const int64_t *)v, groups, O, C);
        if (!by_taps && tn == 0) by_taps = channels_by_taps((const int64_t *)v, groups, O, C, &tm, &tn);
    }
    if (by_taps) {
        v[RP__CONV_TILE_M] = (uint64_t)tm, v[RP__CONV_TILE_N] = (uint64_t)tn;
        v[RP__CONV_FLAGS] |= RP__CONV_BY_TAPS;
        out->items = groups * ((O + tm - 1) / tm) * ((C + tn - 1) / tn);
        out->grain = rp__cpu_grain(out->items, work / (double)out->items / 12 + 300);
        return RP_OK;
    }
    if (kind != RP__CONV_WEIGHT && !(flags & RP__GEMM_DOTS)) {
        const int64_t step = kind == RP__CONV_INPUT ? (int64_t)v[RP__CONV_STRIDE + 2] : 1;
        const int64_t width = (int64_t)v[(kind == RP__CONV_INPUT ? RP__CONV_XS : RP__CONV_YS) + 2];
        const int64_t apart = step <= RP__CONV_LANES_PHASES ? phases / step : phases;
        tn = rows_by_lanes((const int64_t *)v, kind, dtype, apart);
        if (tn > 0) {
            v[RP__CONV_TILE_M] = (uint64_t)rows, v[RP__CONV_TILE_N] = (uint64_t)tn;
            v[RP__CONV_FLAGS] |= RP__CONV_BY_LANES;
            const int64_t lines = columns / ((width + step - 1) / step),
                          sets = (groups + RP__CONV_LANES - 1) / RP__CONV_LANES;
            out->items = images * sets * apart * ((lines + tn - 1) / tn);
            out->grain = rp__cpu_grain(out->items, work / (double)out->items / 8 + 300);
            return RP_OK;
        }
    }
    if (tn > 0) {
        v[RP__CONV_TILE_M] = (uint64_t)tm, v[RP__CONV_TILE_N] = (uint64_t)tn;
        v[RP__CONV_FLAGS] |= RP__CONV_BY_LANES;
        out->items = (groups + RP__CONV_LANES - 1) / RP__CONV_LANES * ((C + tn - 1) / tn);
        out->grain = rp__cpu_grain(out->items, work / (double)out->items / 12 + 300);
        return RP_OK;
    }
    if (kind != RP__CONV_WEIGHT && !(flags & RP__GEMM_DOTS) &&
        by_points((const int64_t *)v, kind, dtype, rows, blocks, &tm, &tn)) {
        v[RP__CONV_TILE_M] = (uint64_t)tm, v[RP__CONV_TILE_N] = (uint64_t)tn;
        v[RP__CONV_FLAGS] |= RP__CONV_BY_POINTS;
        out->items = blocks * ((rows + tm - 1) / tm) * ((columns + tn - 1) / tn);
        out->grain = rp__cpu_grain(out->items, work / (double)out->items / 8 + 300);
        return RP_OK;
    }
    rp__cpu_gemm_cut(rows, columns, blocks, work / (double)rows / (double)columns, RP__GEMM_MAX_TILE_M, &tm, &tn);
    /* Whole rows of the result: their columns read one box of each channel (isa/conv_plan.h). */
    const int64_t step = kind == RP__CONV_INPUT ? (int64_t)v[RP__CONV_STRIDE + 2] : 1;
    const int64_t row =
        (((kind == RP__CONV_INPUT ? (int64_t)v[RP__CONV_XS + 2] : (int64_t)v[RP__CONV_YS + 2])) + step - 1) / step;
    if (kind != RP__CONV_WEIGHT && tn < columns && row <= RP__GEMM_MAX_TILE_N)
        tn = rows <= RP__GEMM_STREAM_TILE_M && blocks >= rp_num_threads() && columns <= RP__GEMM_BOX_TILE_N
                 ? columns
                 : row * (tn / row + (tn % row && (tn / row + 1) * row <= RP__GEMM_MAX_TILE_N));
    const int64_t tiles_m = (rows + tm - 1) / tm, tiles_n = (columns + tn - 1) / tn;
    v[RP__CONV_TILE_M] = (uint64_t)tm, v[RP__CONV_TILE_N] = (uint64_t)tn;
    out->items = blocks * tiles_m * tiles_n;
    out->grain = rp__cpu_grain(out->items, work / (double)out->items / 6 + 300);
    return RP_OK;
}

rp_status rp__cpu_conv_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                            const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d;
    return bind(op, o, n, call, 0, buffer, out);
}

rp_status rp__cpu_conv_dots_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                 const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d;
    return bind(op, o, n, call, RP__GEMM_DOTS, buffer, out);
}
