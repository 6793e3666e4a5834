/* Template: convolutions, and their gradients by the input, of many groups with few channels each, whose lanes are groups. gemm_tile.h
   includes it for a storage type, behind gemm_lanes.h.
   What LANES groups have at one place is turned to lie side by side, line by line of the operand with windows, into a ring that holds the
   lines that a line of the result meets. A lane adds up its own group's chain (kernel/product.h), of one block, at several places at a time;
   results are turned back some lines at a time. What is outside is a zero that is multiplied. */
#define TOGETHER (LANES / L < 2 ? 1 : 2) /* vectors of lanes */
#define MOST_PLACES 6

/* to[place][lane] = the sum over K of w[k][lane] x[at[k] + place][lane]; step, apart: elements of x and of `to` from place to place. */
RP__VEC_FN void N(lane_places)(const int places, int64_t K, const T *w, const T *x, const int64_t *at, int64_t step,
                               T *to, int64_t apart) {
    for (int v = 0; v < LANES; v += TOGETHER * L) {
        V acc[MOST_PLACES][TOGETHER], b[TOGETHER];
        UNROLL for (int p = 0; p < places; p++) { UNROLL for (int i = 0; i < TOGETHER; i++) acc[p][i] = (V){0}; }
        for (int64_t k = 0; k < K; k++) {
            const T *from = x + at[k] + v;
            UNROLL for (int i = 0; i < TOGETHER; i++) b[i] = A(load)(w + k * LANES + v + i * L);
            UNROLL for (int p = 0; p < places; p++) {
                UNROLL for (int i = 0; i < TOGETHER; i++) acc[p][i] += b[i] * A(load)(from + p * step + i * L);
            }
        }
        UNROLL for (int p = 0; p < places; p++) {
            UNROLL for (int i = 0; i < TOGETHER; i++) A(store)(to + p * apart + v + i * L, acc[p][i]);
        }
    }
}
static __attribute__((noinline)) void N(lanes_line)(int64_t n, int64_t K, const T *w, const T *x, const int64_t *at,
                                                    int64_t step, T *to, int64_t apart) {
    for (int64_t left = n, some; left > 0; left -= some, x += some * step, to += some * apart) {
        const int64_t blocks = (left + MOST_PLACES - 1) / MOST_PLACES;
        some = (left + blocks - 1) / blocks;
        switch (some) {
        case 1: N(lane_places)(1, K, w, x, at, step, to, apart); break;
        case 2: N(lane_places)(2, K, w, x, at, step, to, apart); break;
        case 3: N(lane_places)(3, K, w, x, at, step, to, apart); break;
        case 4: N(lane_places)(4, K, w, x, at, step, to, apart); break;
        case 5: N(lane_places)(5, K, w, x, at, step, to, apart); break;
        default: N(lane_places)(MOST_PLACES, K, w, x, at, step, to, apart);
        }
    }
}

/* Places [from, from + wide) of a line of `extent` places, `step` apart, zeros around. */
static void N(lanes_fill)(const ST *src, int64_t pitch, int64_t step, int64_t lanes, int64_t from, int64_t wide,
                          int64_t extent, T *dst, T *run) {
    int64_t low = from < 0 ? -from : 0, high = extent - from;
    low = low < wide ? low : wide;
    high = high < wide ? high : wide;
    high = high > low ? high : low;
    memset(dst, 0, (size_t)(low * LANES) * sizeof *dst);
    if (high > low) N(lanes_turn)(src + (from + low) * step, pitch, step, lanes, high - low, dst + low * LANES, run);
    memset(dst + high * LANES, 0, (size_t)((wide - high) * LANES) * sizeof *dst);
}

/* Where results of `lanes` groups from `group` on go. */
struct N(lanes_to) {
    const struct conv_plan *plan; /* of the first group */
    rp__gemm_rest *rest;          /* NULL: out */
    bool along;
    ST *out;
    int64_t pitch, group, lanes; /* elements of the result from group to group */
    const ST *bias;              /* of the first group; NULL: none */
    int64_t bias_stride, bias_group;
};
/* `rows` rows of each group, at so many lines from line `first` on (an index of the two outer spatial dims), `wide` columns of each from
   column x0 on; more than one line: all columns. */
static void N(lanes_leave)(const struct N(lanes_to) * to, int64_t rows, int64_t first, int64_t lines, int64_t x0,
                           int64_t wide, T *sums, int64_t sums_row, T *turned) {
    const struct conv_axis *out = &to->plan->out;
    const int64_t count = lines * wide, ld = (count + 7) / 8 * 8, n0 = first * out->extent[3] + x0, on = out->offset[3];
    for (int64_t o = 0; o < rows; o++) {
        T *const s = sums + o * sums_row;
        if (to->bias) {
            T add[LANES] = {0};
            for (int64_t l = 0; l < to->lanes; l++) add[l] = LOAD(to->bias[(l * to->bias_group + o) * to->bias_stride]);
            for (int64_t i = 0; i < count * LANES; i += L) A(store)(s + i, A(load)(s + i) + A(load)(add + i % LANES));
        }
        if (to->rest) to->rest->fixed[1] = o;
        if (to->rest && to->along) {
            rp__gemm_rest_run(to->rest, s, LANES, n0, count, to->group, to->lanes);
            continue;
        }
        const bool lie = !to->rest && to->pitch == 1;
        if (!lie) A(turn_lines)(s, LANES, ld, LANES, turned, ld); /* with lines beyond the last that nobody reads */
        if (to->rest) {
            rp__gemm_rest_run(to->rest, turned, ld, to->group, to->lanes, n0, count);
            continue;
        }
        int64_t flat;
        if (!lie && on == 1 && conv_flat_axis(out, &flat) && flat == 1) {
            for (int64_t l = 0; l < to->lanes; l++)
                NARROW(to->out + l * to->pitch + o * to->plan->out_m + n0, turned + l * ld, count);
            continue;
        }
        for (int64_t q = 0; q < lines; q++) {
            const int64_t z = (first + q) / out->extent[2], y = (first + q) % out->extent[2];
            ST *d = to->out + o * to->plan->out_m + z * out->offset[1] + y * out->offset[2] + x0 * on;
            if (lie) {
                for (int64_t i = 0; i < wide; i++) NARROW(d + i * on, s + (q * wide + i) * LANES, to->lanes);
                continue;
            }
            for (int64_t l = 0; l < to->lanes; l++) {
                const T *t = turned + l * ld + q * wide;
                if (on == 1)
                    NARROW(d + l * to->pitch, t, wide);
                else
                    for (int64_t i = 0; i < wide; i++) d[l * to->pitch + i * on] = STORE(t[i]);
            }
        }
    }
}

/* Weights of one phase: w[row][k][lane]. */
static void N(places_weights)(const int64_t *v, const struct conv_plan *p, const ST *weight, int64_t lanes, T *w,
                              T *run) {
    const struct conv_axis *k = &p->a.k;
    const int64_t step = v[RP__CONV_O] * v[RP__CONV_W_STRIDES], taps = k->extent[1] * k->extent[2] * k->extent[3];
    int64_t flat;
    if (!conv_flat_axis(k, &flat)) flat = 0;
    weight += p->a.line.start.offset + k->start.offset;
    for (int64_t o = 0; o < p->m && p->k; o++, weight += p->a.line.offset[3]) {
        if (flat) {
            N(lanes_turn)(weight, step, flat, lanes, p->k, w, run);
            w += p->k * LANES;
            continue;
        }
        for (int64_t i = 0; i < p->k; i += k->extent[3], w += k->extent[3] * LANES) {
            const int64_t c = i / taps, z = i % taps / k->extent[3] / k->extent[2],
                          y = i % taps / k->extent[3] % k->extent[2];
            N(lanes_turn)
            (weight + c * k->offset[0] + z * k->offset[1] + y * k->offset[2], step, k->offset[3], lanes, k->extent[3],
             w, run);
        }
    }
}

/* Lines [begin, end) of the result, of LANES groups, in phase `p` of an image: or in n_p of them, whose columns take turns. */
static void N(places_item)(const int64_t *v, const struct conv_plan *p, int n_p, int64_t begin, int64_t end,
                           int64_t group_step, const ST *weight, const ST *src, const struct N(lanes_to) * to,
                           N(scratch) * memory) {
    const struct conv_axis *line = &p->b.line, *k = &p->b.k;
    const int64_t rows = p->m, deep = k->extent[0], *pitch = p->pitch, columns = to->plan->out.extent[3];
    const int64_t move_y = line->coordinate[2], move_x = line->coordinate[3];
    T *const ring = memory->pb, *const sums = memory->kept, *w[RP__CONV_LANES_PHASES];
    int64_t *at[RP__CONV_LANES_PHASES], low_x = INT64_MAX, high_x = INT64_MIN, all = 0;
    src += line->start.offset + k->start.offset;
    for (int d = 0; d < 3; d++) src -= line->start.c[d] * pitch[d];
    for (int i = 0; i < n_p; i++) {
        w[i] = i ? w[i - 1] + rows * p[i - 1].k * LANES : memory->pa;
        at[i] = i ? at[i - 1] + p[i - 1].k : memory->places;
        N(places_weights)(v, &p[i], weight, to->lanes, w[i], memory->run);
        if (p[i].k == 0) continue;
        const int64_t reach = (p[i].b.k.extent[3] - 1) * p[i].b.k.coordinate[3], x = p[i].b.line.start.c[2];
        low_x = x + (reach < 0 ? reach : 0) < low_x ? x + (reach < 0 ? reach : 0) : low_x;
        high_x = x + (reach > 0 ? reach : 0) > high_x ? x + (reach > 0 ? reach : 0) : high_x;
        all = p[i].k;
    }
    if (!all) low_x = high_x = 0;
    const int64_t reach_y = all ? (k->extent[2] - 1) * k->coordinate[2] : 0;
    const int64_t low_y = line->start.c[1] + (reach_y < 0 ? reach_y : 0),
                  slots = (reach_y < 0 ? -reach_y : reach_y) + 1;
    const int64_t planes = all ? deep * k->extent[1] : 1, span = high_x - low_x + 1;
    int64_t block = (RP__CONV_LANES_ROOM / (planes * slots) - span) / move_x + 1;
    if (block > RP__CONV_LANES_PLACES / n_p) block = RP__CONV_LANES_PLACES / n_p;
    if (block > (columns + n_p - 1) / n_p) block = (columns + n_p - 1) / n_p;
    const int64_t wide = (block - 1) * move_x + span, sums_row = RP__CONV_LANES_PLACES * LANES;
    int64_t held[RP__CONV_LANES_ROOM / 8]; /* the line in each slot, of all planes */
    for (int64_t x0 = 0; x0 < columns; x0 += block * n_p) {
        const int64_t n = columns - x0 < block * n_p ? columns - x0 : block * n_p; /* columns of the result */
        int64_t first = begin, z = -1;
        for (int64_t r = begin; r < end; r++) {
            const int64_t y = r % line->extent[2];
            if (z != r / line->extent[2]) {
                z = r / line->extent[2];
                for (int64_t i = 0; i < slots; i++) held[i] = INT64_MIN;
            }
            for (int64_t j = 0; j < k->extent[2] && all; j++) {
                const int64_t cy = line->start.c[1] + y * move_y + j * k->coordinate[2], slot = (cy - low_y) % slots;
                for (int64_t i = 0; i < planes; i++) {
                    const int64_t c = i / k->extent[1], jz = i % k->extent[1];
                    const int64_t cz = line->start.c[0] + z * line->coordinate[1] + jz * k->coordinate[1];
                    T *const d = ring + (i * slots + slot) * wide * LANES;
                    for (int f = 0; f < n_p; f++) {
                        const int64_t taps = p[f].k ? p[f].b.k.extent[3] : 0;
                        for (int64_t q = 0; q < taps; q++)
                            at[f][(i * k->extent[2] + j) * taps + q] =
                                d - ring + (p[f].b.line.start.c[2] + q * k->coordinate[3] - low_x) * LANES;
                    }
                    if (held[slot] == cy) continue;
                    if (cz < 0 || cz >= p->b.bound[0] || cy < 0 || cy >= p->b.bound[1])
                        memset(d, 0, (size_t)(wide * LANES) * sizeof *d);
                    else
                        N(lanes_fill)
                    (src + c * k->offset[0] + cz * pitch[0] + cy * pitch[1], group_step, pitch[2], to->lanes,
                     low_x + x0 / n_p * move_x, ((n + n_p - 1) / n_p - 1) * move_x + span, p->b.bound[2], d,
                     memory->run);
                }
                held[slot] = cy;
            }
            T *const s = sums + (r - first) * n * LANES;
            for (int64_t o = 0; o < rows; o++) {
                for (int f = 0; f < n_p; f++) N(lanes_line)
                ((n - f + n_p - 1) / n_p, p[f].k, w[f] + o * p[f].k * LANES, ring, at[f], move_x * LANES,
                 s + o * sums_row + f * LANES, n_p * LANES);
            }
            if (r + 1 < end && n == columns && (r + 2 - first) * n <= RP__CONV_LANES_PLACES) continue;
            N(lanes_leave)(to, rows, first, r + 1 - first, x0, n, sums, sums_row, memory->group);
            first = r + 1;
        }
    }
}

_Static_assert(RP__CONV_LANES_ROWS *RP__CONV_LANES_PLACES *LANES <= TM * ROOM, "results of a set of groups");
_Static_assert(RP__CONV_LANES_ROWS *KC *LANES <= TM * (KC + PAD) && RP__CONV_LANES_PAIRS < 2 * RP__CONV_LANES_ROWS,
               "weights of a set of groups, whose K is a block at most");
_Static_assert(RP__CONV_LANES_PLACES % 8 == 0 && RP__CONV_LANES_ROOM <= KC * TN / LANES, "lines");

static void N(conv_places)(rp__conv_kind kind, const rp__kernel *kernel, const uint64_t *words, int64_t begin,
                           int64_t end) {
    const int64_t *v = (const int64_t *)words;
    const int64_t *xs = v + RP__CONV_XS, *ys = v + RP__CONV_YS, *stride = v + RP__CONV_STRIDE;
    const int64_t groups = v[RP__CONV_GROUPS], sets = (groups + LANES - 1) / LANES, each = v[RP__CONV_TILE_N];
    const bool forward = kind == RP__CONV_FORWARD;
    int64_t phases = 1, lines = 1;
    for (int d = 0; d < 3; d++) {
        if (d < 2) lines *= forward ? ys[d] : (xs[d] + stride[d] - 1) / stride[d];
        if (!forward) phases *= stride[d];
    }
    const int n_p = !forward && stride[2] <= RP__CONV_LANES_PHASES ? (int)stride[2] : 1;
    phases /= n_p;
    const int64_t parts = (lines + each - 1) / each;
    rp__gemm_rest rest;
    const bool follows = words[RP__CONV_FLAGS] & RP__GEMM_REST;
    if (follows) rp__gemm_rest_begin(&rest, kernel, 0, words + RP__CONV_WORDS, sizeof(T));
    const ST *x = (const ST *)(uintptr_t)words[RP__CONV_X], *y = (const ST *)(uintptr_t)words[RP__CONV_Y];
    const ST *bias = (const ST *)(uintptr_t)words[RP__CONV_BIAS];
    N(scratch) *memory = rp__gemm_scratch_take();
    for (int64_t item = begin; item < end; item++) {
        struct conv_plan p[RP__CONV_LANES_PHASES], result;
        const int64_t set = item / parts / phases, group = set % sets * LANES;
        const int64_t phase = item / parts % phases * n_p;
        conv_plan_at(kind, v, set / sets, group, phase, &p[0]);
        for (int i = 1; i < n_p; i++) conv_plan_at(kind, v, set / sets, group, phase + i, &p[i]);
        result = p[0];
        if (n_p > 1) {
            result.out.extent[3] = xs[2], result.out.offset[3] = v[RP__CONV_X_STRIDES + 4];
            result.first[2] = 0, result.step[2] = 1;
        }
        const int64_t first = item % parts * each, all = result.out.extent[1] * result.out.extent[2];
        const int64_t last = first + each < all ? first + each : all;
        if (first >= last || result.out.extent[3] == 0) continue;
        struct N(lanes_to)
            to = {.plan = &result,
                  .rest = follows ? &rest : NULL,
                  .along = words[RP__CONV_FLAGS] & RP__CONV_LANES_ALONG,
                  .out = (ST *)(uintptr_t)words[forward ? RP__CONV_Y : RP__CONV_X] + result.out.start.offset,
                  .pitch = result.m * result.out_m,
                  .group = group,
                  .lanes = groups - group < LANES ? groups - group : LANES,
                  .bias = bias ? bias + result.bias_at * v[RP__CONV_BIAS_STRIDE] : NULL,
                  .bias_stride = v[RP__CONV_BIAS_STRIDE],
                  .bias_group = v[RP__CONV_O]};
        if (follows) {
            rest.fixed[0] = result.image;
            for (int d = 0; d < 3 && !to.along; d++)
                rest.extent[d] = result.out.extent[d + 1], rest.start[d] = result.first[d],
                rest.step[d] = result.step[d];
        }
        N(places_item)
        (v, p, n_p, first, last,
         forward ? v[RP__CONV_C] * v[RP__CONV_X_STRIDES + 1] : v[RP__CONV_O] * v[RP__CONV_Y_STRIDES + 1],
         (const ST *)(uintptr_t)words[RP__CONV_W], forward ? x : y, &to, memory);
    }
    rp__gemm_scratch_give(memory);
}
#undef LANES
#undef TOGETHER
#undef MOST_PLACES
