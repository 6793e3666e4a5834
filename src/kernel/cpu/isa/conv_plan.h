/* Convolution as a product with gathered operands: which element of x, w or y stands at (line, k). Every operand is addressed
   by two axes of four levels (channel or image, then three spatial levels); offsets add, and so do coordinates, which must
   lie within the operand's spatial extents. Included by gemm.c; knows no element type. */
struct conv_at {
    int64_t offset, c[3];
};
struct conv_axis {
    int64_t extent[4], offset[4], coordinate[4]; /* coordinate[1..3] moves c[0..2]; [0] moves none */
    struct conv_at start;
};
struct conv_gather {
    struct conv_axis line, k;
    int64_t bound[3];
    bool bounded; /* some element lies outside */
};
struct conv_plan {
    int64_t m, n, k;
    struct conv_gather a, b;
    struct conv_axis out; /* columns */
    int64_t out_m, bias_at;
    int64_t image, group;
    int64_t pitch[3];          /* of b's memory, a coordinate further on; not of WEIGHT */
    int64_t first[3], step[3]; /* spatial place in the result of the first column, and from one to the next */
};
struct conv_cursor {
    int64_t index[4];
    struct conv_at here;
};

static void conv_locate(struct conv_cursor *at, const struct conv_axis *x) {
    at->here = x->start;
    for (int l = 0; l < 4; l++) {
        at->here.offset += at->index[l] * x->offset[l];
        if (l) at->here.c[l - 1] += at->index[l] * x->coordinate[l];
    }
}
static void conv_start(struct conv_cursor *at, const struct conv_axis *x, int64_t i) {
    for (int l = 3; l > 0; l--) {
        at->index[l] = i % x->extent[l];
        i /= x->extent[l];
    }
    at->index[0] = i;
    conv_locate(at, x);
}
/* By at most what is left of the innermost level. */
static void conv_advance(struct conv_cursor *at, const struct conv_axis *x, int64_t by) {
    at->index[3] += by;
    if (at->index[3] < x->extent[3]) {
        at->here.offset += by * x->offset[3];
        at->here.c[2] += by * x->coordinate[3];
        return;
    }
    for (int l = 3; l > 0 && at->index[l] == x->extent[l]; l--) {
        at->index[l] = 0;
        at->index[l - 1]++;
    }
    conv_locate(at, x);
}
static void conv_next(struct conv_cursor *at, const struct conv_axis *x) { conv_advance(at, x, 1); }

/* Is the axis one stride? */
static bool conv_flat_axis(const struct conv_axis *x, int64_t *stride) {
    int64_t inner = 1;
    *stride = 1;
    bool any = false;
    for (int l = 3; l >= 0; l--) {
        if (x->extent[l] == 1) continue;
        if (!any)
            *stride = x->offset[l];
        else if (x->offset[l] != *stride * inner)
            return false;
        any = true;
        inner *= x->extent[l];
    }
    return true;
}
static bool conv_flat(const struct conv_axis *line, const struct conv_axis *k, int64_t *along, int64_t *down) {
    return conv_flat_axis(line, along) && conv_flat_axis(k, down);
}

/* Least and greatest coordinate that the two axes reach together. */
static bool conv_bounded(const struct conv_gather *g) {
    for (int d = 0; d < 3; d++) {
        int64_t low = g->line.start.c[d] + g->k.start.c[d], high = low;
        const int64_t reach[2] = {(g->line.extent[d + 1] - 1) * g->line.coordinate[d + 1],
                                  (g->k.extent[d + 1] - 1) * g->k.coordinate[d + 1]};
        for (int i = 0; i < 2; i++) {
            if (reach[i] < 0)
                low += reach[i];
            else
                high += reach[i];
        }
        if (low < 0 || high >= g->bound[d]) return true;
    }
    return false;
}

/* One image, group and phase. */
static void conv_plan_at(rp__conv_kind kind, const int64_t *v, int64_t image, int64_t group, int64_t phase,
                         struct conv_plan *p) {
    const int64_t *xs = v + RP__CONV_XS, *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS;
    const int64_t *stride = v + RP__CONV_STRIDE, *padding = v + RP__CONV_PADDING, *dilation = v + RP__CONV_DILATION;
    const int64_t *sx = v + RP__CONV_X_STRIDES, *sw = v + RP__CONV_W_STRIDES, *sy = v + RP__CONV_Y_STRIDES;
    const int64_t C = v[RP__CONV_C], O = v[RP__CONV_O];
    p->m = kind == RP__CONV_INPUT ? C : O;
    p->bias_at = group * O;
    p->image = image, p->group = group;
    for (int d = 0; d < 3; d++) p->first[d] = 0, p->step[d] = 1;
    struct conv_axis *al = &p->a.line, *ak = &p->a.k, *bl = &p->b.line, *bk = &p->b.k;
    *al = *ak = *bl = *bk = p->out = (struct conv_axis){.extent = {1, 1, 1, 1}};
    for (int d = 0; d < 3; d++) p->a.bound[d] = INT64_MAX;

    if (kind == RP__CONV_FORWARD) {
        /* a: w[o, (c, r)]; b: x[q, (c, r)] */
        al->extent[3] = O, al->offset[3] = sw[0], al->start.offset = group * O * sw[0];
        ak->extent[0] = bk->extent[0] = C, ak->offset[0] = sw[1], bk->offset[0] = sx[1];
        bl->start.offset = image * sx[0] + group * C * sx[1];
        p->out.start.offset = image * sy[0] + group * O * sy[1], p->out_m = sy[1];
        for (int d = 0; d < 3; d++) {
            const int l = d + 1;
            ak->extent[l] = bk->extent[l] = ws[d];
            ak->offset[l] = sw[2 + d];
            bk->coordinate[l] = dilation[d], bk->offset[l] = dilation[d] * sx[2 + d];
            bl->extent[l] = p->out.extent[l] = ys[d];
            bl->coordinate[l] = stride[d], bl->offset[l] = stride[d] * sx[2 + d];
            bl->start.c[d] = -padding[d], bl->start.offset -= padding[d] * sx[2 + d];
            p->out.offset[l] = sy[2 + d];
            p->pitch[d] = sx[2 + d];
            p->b.bound[d] = xs[d];
        }
    } else if (kind == RP__CONV_INPUT) {
        /* a: w[(o, r), c]; b: y[p, (o, r)]; positions first + stride i meet taps r0 + step j */
        al->extent[3] = C, al->offset[3] = sw[1], al->start.offset = group * O * sw[0];
        ak->extent[0] = bk->extent[0] = O, ak->offset[0] = sw[0], bk->offset[0] = sy[1];
        bl->start.offset = image * sy[0] + group * O * sy[1];
        p->out.start.offset = image * sx[0] + group * C * sx[1], p->out_m = sx[1];
        for (int d = 2; d >= 0; d--) {
            const int l = d + 1;
            const int64_t s = stride[d], first = phase % s;
            phase /= s;
            const int64_t step = rp__conv_step(s, dilation[d]), count = first < xs[d] ? (xs[d] - first + s - 1) / s : 0;
            int64_t r0 = 0;
            while (r0 < step && (first + padding[d] - r0 * dilation[d]) % s) r0++;
            const int64_t taps = r0 < step && r0 < ws[d] ? (ws[d] - r0 + step - 1) / step : 0;
            ak->extent[l] = bk->extent[l] = taps;
            ak->offset[l] = step * sw[2 + d], ak->start.offset += r0 * sw[2 + d];
            bk->coordinate[l] = -(step * dilation[d] / s), bk->offset[l] = bk->coordinate[l] * sy[2 + d];
            bl->extent[l] = p->out.extent[l] = count;
            bl->coordinate[l] = 1, bl->offset[l] = sy[2 + d];
            bl->start.c[d] = taps ? (first + padding[d] - r0 * dilation[d]) / s : 0;
            bl->start.offset += bl->start.c[d] * sy[2 + d];
            p->out.offset[l] = s * sx[2 + d], p->out.start.offset += first * sx[2 + d];
            p->first[d] = first, p->step[d] = s;
            p->pitch[d] = sy[2 + d];
            p->b.bound[d] = ys[d];
        }
    } else {
        /* a: y[o, (n, q)]; b: x[(c, r), (n, q)] */
        al->extent[3] = O, al->offset[3] = sy[1], al->start.offset = group * O * sy[1];
        ak->extent[0] = bk->extent[0] = v[RP__CONV_IMAGES], ak->offset[0] = sy[0], bk->offset[0] = sx[0];
        bl->extent[0] = p->out.extent[0] = C, bl->offset[0] = sx[1], bl->start.offset = group * C * sx[1];
        p->out.offset[0] = sw[1], p->out.start.offset = group * O * sw[0], p->out_m = sw[0];
        for (int d = 0; d < 3; d++) {
            const int l = d + 1;
            ak->extent[l] = bk->extent[l] = ys[d];
            ak->offset[l] = sy[2 + d];
            bk->coordinate[l] = stride[d], bk->offset[l] = stride[d] * sx[2 + d];
            bl->extent[l] = p->out.extent[l] = ws[d];
            bl->coordinate[l] = dilation[d], bl->offset[l] = dilation[d] * sx[2 + d];
            bl->start.c[d] = -padding[d], bl->start.offset -= padding[d] * sx[2 + d];
            p->out.offset[l] = sw[2 + d];
            p->b.bound[d] = xs[d];
        }
    }
    p->n = p->out.extent[0] * p->out.extent[1] * p->out.extent[2] * p->out.extent[3];
    p->k = bk->extent[0] * bk->extent[1] * bk->extent[2] * bk->extent[3];
    p->a.bounded = false;
    p->b.bounded = p->k > 0 && p->n > 0 && conv_bounded(&p->b);
}
/* The image, group, phase and tile of an item. False: a phase that is smaller than the largest has no such tile. */
static bool conv_plan_of(rp__conv_kind kind, const int64_t *v, int64_t item, struct conv_plan *p, int64_t *m0,
                         int64_t *n0) {
    const int64_t *xs = v + RP__CONV_XS, *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t tm = v[RP__CONV_TILE_M], tn = v[RP__CONV_TILE_N], groups = v[RP__CONV_GROUPS];
    int64_t phases = 1, columns = 1;
    for (int d = 0; d < 3; d++) {
        if (kind == RP__CONV_FORWARD)
            columns *= ys[d];
        else if (kind == RP__CONV_INPUT)
            columns *= (xs[d] + stride[d] - 1) / stride[d], phases *= stride[d];
        else
            columns *= ws[d];
    }
    if (kind == RP__CONV_WEIGHT) columns *= v[RP__CONV_C];
    const int64_t rows = kind == RP__CONV_INPUT ? v[RP__CONV_C] : v[RP__CONV_O];
    const int64_t tiles_n = (columns + tn - 1) / tn, tiles_m = (rows + tm - 1) / tm;
    *n0 = item % tiles_n * tn;
    item /= tiles_n;
    *m0 = item % tiles_m * tm;
    item /= tiles_m;
    const int64_t at = item / phases;
    conv_plan_at(kind, v, at / groups, at % groups, item % phases, p);
    return *n0 < p->n;
}

/* The dims of what follows: image and group, channel, three spatial dims; of a weight group, channel of y, channel of x, three spatial
   dims, of which the last four are columns. */
static void conv_rest(rp__gemm_rest *r, const struct conv_plan *p, rp__conv_kind kind) {
    const int weight = kind == RP__CONV_WEIGHT;
    r->fixed[0] = weight ? p->group : p->image;
    r->fixed[1] = p->group;
    for (int l = weight ? 0 : 1; l < 4; l++) {
        const int at = l - !weight;
        r->extent[at] = p->out.extent[l];
        r->start[at] = l ? p->first[l - 1] : 0;
        r->step[at] = l ? p->step[l - 1] : 1;
    }
}

/* ---- boxes: what the columns of a tile read of each channel, with zeros around, copied once for all taps. Column (z, y, x) meets tap j of
   a dim at coordinate move * index + tap_j = move * (index + tap_j div move) + tap_j mod move. So a channel is one box for each class of
   residues in each dim, element i of a box lies i behind its first, and a row of b is the box of its tap, so many elements further
   on. Columns stand as far apart as elements of a box: where a row of the result ends there are some that nobody wants. */
enum { CONV_CLASSES = 8 }; /* in a dim */
struct conv_box {
    int64_t from[3], length[3]; /* of a dim: place of the first element, without the residue, over move; elements */
    int64_t classes[3], residue[3][CONV_CLASSES];
    int64_t move[3], low[3]; /* of a place over move, the least of a tap */
    int64_t channel;         /* elements of one: all its boxes */
    int64_t start, columns;  /* of the tile: element of its first column, columns with those between */
    int64_t at[3], index[3], extent[3];
};
static int64_t conv_floor(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Element, counted from the tile's first column, of column j, and how many follow each other from there. */
static int64_t conv_box_column(const struct conv_box *x, int64_t j, int64_t *run) {
    const int64_t flat = x->at[2] + j, row = x->at[1] + flat / x->extent[2], column = flat % x->extent[2];
    const int64_t z = x->at[0] + row / x->extent[1], y = row % x->extent[1];
    *run = x->extent[2] - column;
    return ((z - x->index[0]) * x->length[1] + y - x->index[1]) * x->length[2] + column - x->index[2] - x->start;
}

/* For columns [n0, n0 + nc) and at most kc of k at once. False: more than `most` columns, too many to be worth it, or more than `room`
   elements. */
static bool conv_box_of(struct conv_box *x, const struct conv_plan *p, int64_t n0, int64_t nc, int64_t kc, int64_t most,
                        int64_t room) {
    const struct conv_axis *line = &p->b.line, *k = &p->b.k;
    int64_t last[3], taps = 1, at = n0, end = n0 + nc - 1, channels = 1;
    for (int d = 2; d >= 0; d--) {
        x->extent[d] = line->extent[d + 1];
        x->at[d] = at % x->extent[d], at /= x->extent[d];
        last[d] = end % x->extent[d], end /= x->extent[d];
    }
    bool rows = false; /* an outer dim moves: all of this one */
    for (int d = 0; d < 3; d++) {
        const int64_t move = line->coordinate[d + 1], n = k->extent[d + 1];
        const int64_t a = rows ? 0 : x->at[d], b = rows ? x->extent[d] - 1 : last[d];
        rows = rows || a != b;
        int64_t low = INT64_MAX, high = INT64_MIN;
        x->move[d] = move, x->index[d] = a, x->classes[d] = 0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t tap = line->start.c[d] + j * k->coordinate[d + 1], q = conv_floor(tap, move);
            low = q < low ? q : low, high = q > high ? q : high;
            int64_t e = 0;
            while (e < x->classes[d] && x->residue[d][e] != tap - q * move) e++;
            if (e == CONV_CLASSES) return false;
            if (e == x->classes[d]) x->residue[d][x->classes[d]++] = tap - q * move;
        }
        x->low[d] = low, x->from[d] = a + low, x->length[d] = b - a + high - low + 1;
        taps *= n;
        channels *= x->classes[d] * x->length[d];
        if (channels > room) return false;
    }
    x->channel = channels;
    int64_t run;
    x->start = 0;
    x->start = conv_box_column(x, 0, &run);
    x->columns = conv_box_column(x, nc - 1, &run) + 1;
    int64_t met = (kc - 1) / taps + 2;
    if (met > k->extent[0]) met = k->extent[0];
    return x->columns + 64 <= most && x->columns <= 2 * nc + 64 && met * x->channel <= room;
}

/* Where rows [k0, k0 + kc) of b lie, from the first element of the first column on. */
static void conv_box_places(const struct conv_box *x, const struct conv_plan *p, int64_t k0, int64_t kc,
                            int64_t *places) {
    const struct conv_axis *line = &p->b.line, *axis = &p->b.k;
    const int64_t taps = axis->extent[1] * axis->extent[2] * axis->extent[3], first = k0 / taps;
    for (int64_t k = 0; k < kc; k++) {
        int64_t rest = (k0 + k) % taps, j[3], box = (k0 + k) / taps - first, at = 0;
        if (k >= taps) { /* as of the channel before */
            places[k] = places[k - taps] + x->channel;
            continue;
        }
        for (int d = 2; d >= 0; d--) j[d] = rest % axis->extent[d + 1], rest /= axis->extent[d + 1];
        for (int d = 0; d < 3; d++) {
            const int64_t tap = line->start.c[d] + j[d] * axis->coordinate[d + 1], q = conv_floor(tap, x->move[d]);
            int64_t e = 0;
            while (x->residue[d][e] != tap - q * x->move[d]) e++;
            box = box * x->classes[d] + e;
            at = at * x->length[d] + q - x->low[d];
        }
        places[k] = box * (x->length[0] * x->length[1] * x->length[2]) + at;
    }
}
