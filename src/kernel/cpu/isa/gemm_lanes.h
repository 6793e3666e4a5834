/* Template: weight gradients of convolutions of many groups with few channels each, whose lanes are groups. gemm_tile.h includes it for a
   storage type, with its names.
   What RP__CONV_LANES groups have at one place is turned to lie side by side; a lane then adds up its group's own weights in the order
   of K (kernel/product.h), several taps of several rows at a time, so that each chain is the one that a product of one group has.
   What is outside of x is a zero that is multiplied, as everywhere else. */
#define LANES RP__CONV_LANES

/* sums[row][tap] += y[row][k] x[place k + tap], of n places; y_row and sums_row: elements from row to row. */
RP__VEC_FN void N(lane_block)(const int rows, const int taps, int64_t n, const T *y, int64_t y_row, const T *x,
                              const int64_t *places, const int64_t *taps_at, T *sums, int64_t sums_row) {
    enum { MOST = 16 };
    int64_t at[MOST];
    UNROLL for (int t = 0; t < taps; t++) at[t] = taps_at[t];
    for (int v = 0; v < LANES; v += L) {
        V acc[MOST], b[MOST];
        T *const s = sums + v;
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int t = 0; t < taps; t++) acc[r * taps + t] = A(load)(s + r * sums_row + t * LANES);
        }
        for (int64_t k = 0; k < n; k++) {
            const T *from = x + places[k] + v;
            UNROLL for (int r = 0; r < rows; r++) b[r] = A(load)(y + r * y_row + k * LANES + v);
            UNROLL for (int t = 0; t < taps; t++) {
                const V e = A(load)(from + at[t]);
                UNROLL for (int r = 0; r < rows; r++) acc[r * taps + t] += b[r] * e;
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int t = 0; t < taps; t++) A(store)(s + r * sums_row + t * LANES, acc[r * taps + t]);
        }
    }
}
#define LANE_BLOCK(name, rows, taps)                                                                                   \
    static __attribute__((noinline)) void N(name)(int64_t n, const T *y, int64_t y_row, const T *x,                    \
                                                  const int64_t *places, const int64_t *at, T *sums,                   \
                                                  int64_t sums_row) {                                                  \
        N(lane_block)(rows, taps, n, y, y_row, x, places, at, sums, sums_row);                                         \
    }
/* Sums, rows of y and one of x must fit the registers. */
#define SOME (MICRO_ROWS > 6 ? 4 : 3)
LANE_BLOCK(one_by_nine, 1, 9)
LANE_BLOCK(some_by_three, SOME, 3)
LANE_BLOCK(one_by_three, 1, 3)
LANE_BLOCK(eight_by_one, 8, 1)
LANE_BLOCK(one_by_one, 1, 1)
#undef LANE_BLOCK

/* All taps of all rows. */
static void N(lanes_sum)(int64_t rows, int64_t taps, int64_t n, const T *y, int64_t y_row, const T *x,
                         const int64_t *places, const int64_t *at, T *sums, int64_t sums_row) {
    for (int64_t t = 0, step; t < taps; t += step) {
        step = taps - t >= 9 && rows < SOME ? 9 : taps - t >= 3 ? 3 : 1;
        for (int64_t r = 0, some; r < rows; r += some) {
            const T *from = y + r * y_row;
            T *to = sums + r * sums_row + t * LANES;
            const int64_t left = rows - r;
            some = step == 3 && left >= SOME ? SOME : step == 1 && left >= 8 ? 8 : 1;
            (step == 9   ? N(one_by_nine)
             : step == 3 ? some > 1 ? N(some_by_three) : N(one_by_three)
             : some > 1 ? N(eight_by_one)
                         : N(one_by_one))(n, from, y_row, x, places, at + t, to, sums_row);
        }
    }
}

/* `count` elements of `lanes` groups, `step` and `pitch` apart: dst[element][lane], zeros in the lanes that are left. */
static void N(lanes_turn)(const ST *src, int64_t pitch, int64_t step, int64_t lanes, int64_t count, T *dst, T *run) {
    if (lanes < LANES) memset(dst, 0, (size_t)(count * LANES) * sizeof *dst);
    if (pitch == 1) {
        for (int64_t i = 0; i < count; i++) WIDEN(dst + i * LANES, src + i * step, lanes);
    } else if (step == 1) {
        for (int64_t i = 0; i < count; i += KC) {
            const int64_t n = count - i < KC ? count - i : KC;
#if SAME
            (void)run;
            A(turn_lines)(src + i, pitch, lanes, n, dst + i * LANES, LANES);
#else
            for (int64_t j = 0; j < lanes; j += 8) {
                const int64_t lines = lanes - j < 8 ? lanes - j : 8;
                for (int64_t q = 0; q < lines; q++) WIDEN(run + q * (KC + PAD), src + (j + q) * pitch + i, n);
                A(turn_lines)(run, KC + PAD, lines, n, dst + i * LANES + j, LANES);
            }
#endif
        }
    } else {
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < lanes; j++) dst[i * LANES + j] = LOAD(src[j * pitch + i * step]);
    }
}

/* A run of places of y in one plane of an image, and what of x they meet: for each tap of the outermost dim a rectangle, zeros around. */
struct N(lanes_run) {
    int64_t image, plane, row, column, count;
    int64_t high, wide; /* of a rectangle */
};
static void N(lanes_find)(const int64_t *v, int64_t k, int64_t most, int64_t room, struct N(lanes_run) * r) {
    const int64_t *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION;
    r->column = k % ys[2], k /= ys[2];
    r->row = k % ys[1], k /= ys[1];
    r->plane = k % ys[0], r->image = k / ys[0];
    r->wide = (ys[2] - 1) * stride[2] + (ws[2] - 1) * dilation[2] + 1;
    const int64_t reach = (ws[1] - 1) * dilation[1] + 1;
    int64_t rows = (room / (ws[0] * r->wide) - reach) / stride[1] + 1;
    if (rows > ys[1] - r->row) rows = ys[1] - r->row;
    r->count = rows * ys[2] - r->column;
    if (r->count > most) r->count = most;
    r->high = (r->column + r->count - 1) / ys[2] * stride[1] + reach;
}
/* Of one channel of x, whose group 0 begins at src. */
static void N(lanes_x)(const int64_t *v, const struct N(lanes_run) * r, const ST *src, int64_t lanes, T *dst, T *run) {
    const int64_t *xs = v + RP__CONV_XS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION, *padding = v + RP__CONV_PADDING, *sx = v + RP__CONV_X_STRIDES;
    const int64_t low = padding[2] < r->wide ? padding[2] : r->wide;
    int64_t high = xs[2] + padding[2] < r->wide ? xs[2] + padding[2] : r->wide;
    if (high < low) high = low;
    for (int64_t z = 0; z < ws[0]; z++) {
        const int64_t iz = r->plane * stride[0] - padding[0] + z * dilation[0];
        for (int64_t y = 0; y < r->high; y++, dst += r->wide * LANES) {
            const int64_t iy = r->row * stride[1] - padding[1] + y;
            if (iz < 0 || iz >= xs[0] || iy < 0 || iy >= xs[1] || low == high) {
                memset(dst, 0, (size_t)(r->wide * LANES) * sizeof *dst);
                continue;
            }
            memset(dst, 0, (size_t)(low * LANES) * sizeof *dst);
            N(lanes_turn)
            (src + iz * sx[2] + iy * sx[3] + (low - padding[2]) * sx[4], v[RP__CONV_C] * sx[1], sx[4], lanes,
             high - low, dst + low * LANES, run);
            memset(dst + high * LANES, 0, (size_t)((r->wide - high) * LANES) * sizeof *dst);
        }
    }
}

/* Adds the run to sums[row of y][channel][tap][lane]. */
static void N(lanes_add)(const int64_t *v, const struct N(lanes_run) * r, const ST *x, const ST *y, int64_t lanes,
                         int64_t channels, N(scratch) * memory, T *sums) {
    const int64_t *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION, *sx = v + RP__CONV_X_STRIDES, *sy = v + RP__CONV_Y_STRIDES;
    const int64_t O = v[RP__CONV_O], taps = ws[0] * ws[1] * ws[2], y_row = r->count * LANES;
    int64_t at[RP__CONV_LANES_TAPS];
    for (int64_t t = 0; t < taps; t++) {
        const int64_t i = t % ws[2], j = t / ws[2] % ws[1], z = t / ws[2] / ws[1];
        at[t] = ((z * r->high + j * dilation[1]) * r->wide + i * dilation[2]) * LANES;
    }
    for (int64_t k = 0, row = 0, i = r->column; k < r->count; k++) {
        memory->places[k] = (row * stride[1] * r->wide + i * stride[2]) * LANES;
        if (++i == ys[2]) i = 0, row++;
    }
    y += r->image * sy[0] + r->plane * sy[2];
    for (int64_t o = 0; o < O; o++) {
        for (int64_t k = 0, row = r->row, i = r->column, n; k < r->count; k += n, i = 0, row++) {
            n = ys[2] - i < r->count - k ? ys[2] - i : r->count - k;
            N(lanes_turn)
            (y + o * sy[1] + row * sy[3] + i * sy[4], O * sy[1], sy[4], lanes, n, memory->pa + o * y_row + k * LANES,
             memory->run);
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        N(lanes_x)(v, r, x + r->image * sx[0] + c * sx[1], lanes, memory->pb, memory->run);
        N(lanes_sum)
        (O, taps, r->count, memory->pa, y_row, memory->pb, memory->places, at, sums + c * taps * LANES,
         channels * taps * LANES);
    }
}

_Static_assert(RP__CONV_LANES_ROWS *KC *LANES <= TM * (KC + PAD), "rows of y for a block of K");
_Static_assert(RP__CONV_LANES_SUMS *LANES <= TM * ROOM && RP__CONV_LANES_SUMS * LANES * sizeof(T) <= WEIGHT_BYTES,
               "sums of an item");
_Static_assert(RP__CONV_LANES_ROOM *LANES <= KC * TN && RP__CONV_LANES_SUMS <= KC * TN, "x of a run, a tile");

/* Items are channels of x, TILE_N at most, of LANES groups. */
static void N(conv_lanes)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    const int64_t *v = (const int64_t *)w;
    const int64_t *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *sw = v + RP__CONV_W_STRIDES;
    const int64_t C = v[RP__CONV_C], O = v[RP__CONV_O], each = v[RP__CONV_TILE_N], parts = (C + each - 1) / each;
    const int64_t taps = ws[0] * ws[1] * ws[2], K = v[RP__CONV_IMAGES] * ys[0] * ys[1] * ys[2];
    const bool follows = w[RP__CONV_FLAGS] & RP__GEMM_REST;
    rp__gemm_rest rest;
    if (follows) rp__gemm_rest_begin(&rest, kernel, 0, w + RP__CONV_WORDS, sizeof(T));
    N(scratch) *memory = rp__gemm_scratch_take();
    T *const block = memory->kept, *const group = memory->group, *const total = (T *)(void *)memory->weight;
    for (int64_t item = begin; item < end; item++) {
        const int64_t first = item / parts * LANES, c0 = item % parts * each;
        const int64_t lanes = v[RP__CONV_GROUPS] - first < LANES ? v[RP__CONV_GROUPS] - first : LANES;
        const int64_t channels = C - c0 < each ? C - c0 : each, columns = channels * taps, sums = O * columns * LANES;
        const ST *x = (const ST *)(uintptr_t)w[RP__CONV_X] + (first * C + c0) * v[RP__CONV_X_STRIDES + 1];
        const ST *y = (const ST *)(uintptr_t)w[RP__CONV_Y] + first * O * v[RP__CONV_Y_STRIDES + 1];
        memset(total, 0, (size_t)sums * sizeof *total);
        for (int64_t k0 = 0, kc; k0 < K; k0 += kc) {
            kc = K - k0 < KC ? K - k0 : KC;
            T *const to = k0 % GROUP ? block : group;
            memset(to, 0, (size_t)sums * sizeof *to);
            struct N(lanes_run) run;
            for (int64_t k = k0; k < k0 + kc; k += run.count) {
                N(lanes_find)(v, k, k0 + kc - k, RP__CONV_LANES_ROOM, &run);
                N(lanes_add)(v, &run, x, y, lanes, channels, memory, to);
            }
            for (int64_t i = 0; to == block && i < sums; i++) group[i] = group[i] + block[i];
            if ((k0 + kc) % GROUP && k0 + kc < K) continue;
            for (int64_t i = 0; i < sums; i++) total[i] = k0 < GROUP ? group[i] : total[i] + group[i];
        }
        for (int64_t lane = 0; lane < lanes; lane++) {
            T *const tile = memory->pb;
            for (int64_t i = 0; i < O * columns; i++) tile[i] = total[i * LANES + lane];
            if (follows) {
                rest.fixed[0] = first + lane;
                rp__gemm_rest_run(&rest, tile, columns, 0, O, c0 * taps, columns);
                continue;
            }
            const T *s = tile;
            for (int64_t o = 0; o < O; o++)
                for (int64_t c = 0; c < channels; c++) {
                    ST *out = (ST *)(uintptr_t)w[RP__CONV_W] + ((first + lane) * O + o) * sw[0] + (c0 + c) * sw[1];
                    for (int64_t z = 0; z < ws[0]; z++)
                        for (int64_t j = 0; j < ws[1]; j++)
                            for (int64_t i = 0; i < ws[2]; i++) out[z * sw[2] + j * sw[3] + i * sw[4]] = STORE(*s++);
                }
        }
    }
    rp__gemm_scratch_give(memory);
}
#undef SOME
