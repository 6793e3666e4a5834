/* Template: weight gradients of convolutions of more than one tap, whose vectors are channels of y. gemm_tile.h includes it for a storage type,
   with its names, after gemm_lanes.h.
   A weight is the sum over places of what y has there times what x has a tap further on. Elements of x are read by single ones, so that no
   copy of it for each tap is made: channels lie as rectangles with zeros around (lanes_find), and all that is turned is y, once for all
   taps. Each chain is the one that a product has (kernel/product.h). */
#if MICRO_ROWS > 6
#define MOST_PAIRS 9 /* rows of sums beside two vectors of y */
#else
#define MOST_PAIRS 6
#endif
#define MOST_ROWS 9

/* sums[row][o] += x[place k + at row] y[k][o], of n places. */
RP__VEC_FN void N(taps_block)(const int rows, const int vectors, int64_t n, const T *x, const int64_t *places,
                              const int64_t *row_at, const T *y, T *sums, int64_t ld) {
    V acc[MOST_ROWS][2], b[2];
    int64_t at[MOST_ROWS];
    UNROLL for (int i = 0; i < rows; i++) {
        at[i] = row_at[i];
        UNROLL for (int j = 0; j < vectors; j++) acc[i][j] = A(load)(sums + i * ld + j * L);
    }
    for (int64_t k = 0; k < n; k++, y += NR) {
        const T *from = x + places[k];
        UNROLL for (int j = 0; j < vectors; j++) b[j] = A(load)(y + j * L);
        UNROLL for (int i = 0; i < rows; i++) {
            const V e = A(splat)(from[at[i]]);
            UNROLL for (int j = 0; j < vectors; j++) acc[i][j] += e * b[j];
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < vectors; j++) A(store)(sums + i * ld + j * L, acc[i][j]);
    }
}
#define TAPS_ROWS(name, vectors, most)                                                                                 \
    static __attribute__((noinline)) void N(name)(int64_t rows, int64_t n, const T *x, const int64_t *places,          \
                                                  const int64_t *at, const T *y, T *sums, int64_t ld) {                \
        switch (rows) {                                                                                                \
        case 1: N(taps_block)(1, vectors, n, x, places, at, y, sums, ld); break;                                       \
        case 2: N(taps_block)(2, vectors, n, x, places, at, y, sums, ld); break;                                       \
        case 3: N(taps_block)(3, vectors, n, x, places, at, y, sums, ld); break;                                       \
        case 4: N(taps_block)(4, vectors, n, x, places, at, y, sums, ld); break;                                       \
        case 5: N(taps_block)(5, vectors, n, x, places, at, y, sums, ld); break;                                       \
        case 6: N(taps_block)(6, vectors, n, x, places, at, y, sums, ld); break;                                       \
        case 7: N(taps_block)((most) < 7 ? (most) : 7, vectors, n, x, places, at, y, sums, ld); break;                 \
        case 8: N(taps_block)((most) < 8 ? (most) : 8, vectors, n, x, places, at, y, sums, ld); break;                 \
        default: N(taps_block)(most, vectors, n, x, places, at, y, sums, ld);                                          \
        }                                                                                                              \
    }
TAPS_ROWS(taps_pairs, 2, MOST_PAIRS)
TAPS_ROWS(taps_single, 1, MOST_ROWS)
#undef TAPS_ROWS

/* What `lines` channels of y have at the run, as lines of memory->run or, where channels lie one after the other, as columns of a panel. */
static void N(taps_y)(const int64_t *v, const struct N(lanes_run) * r, const ST *y, int64_t channels, T *dst, T *run) {
    const int64_t *ys = v + RP__CONV_YS, *sy = v + RP__CONV_Y_STRIDES;
    if (channels < NR) memset(dst, 0, (size_t)(r->count * NR) * sizeof *dst);
    for (int64_t o = 0; o < channels; o += 8) {
        const int64_t lines = channels - o < 8 ? channels - o : 8;
        for (int64_t k = 0, row = r->row, i = r->column, n; k < r->count; k += n, i = 0, row++) {
            n = ys[2] - i < r->count - k ? ys[2] - i : r->count - k;
            const ST *const src = y + o * sy[1] + row * sy[3] + i * sy[4];
            if (sy[1] == 1 && sy[4] != 1) {
                if (o) continue;
                for (int64_t q = 0; q < n; q++) WIDEN(dst + (k + q) * NR, src + q * sy[4], channels);
                continue;
            }
            for (int64_t l = 0; l < lines; l++) {
                const ST *const s = src + l * sy[1];
                T *const d = run + l * (KC + PAD) + k;
                if (sy[4] == 1)
                    WIDEN(d, s, n);
                else
                    for (int64_t q = 0; q < n; q++) d[q] = LOAD(s[q * sy[4]]);
            }
        }
        if (sy[1] == 1 && sy[4] != 1) return;
        A(pack_turned)(NR, NULL, run, KC + PAD, lines, r->count, dst + o);
    }
}

/* Rectangles of `channels` channels of x, `size` elements each. */
static void N(taps_x)(const int64_t *v, const struct N(lanes_run) * r, const ST *src, int64_t channels, int64_t size,
                      T *dst, T *run) {
    const int64_t *xs = v + RP__CONV_XS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION, *padding = v + RP__CONV_PADDING, *sx = v + RP__CONV_X_STRIDES;
    const int64_t low = padding[2] < r->wide ? padding[2] : r->wide;
    int64_t high = xs[2] + padding[2] < r->wide ? xs[2] + padding[2] : r->wide;
    if (high < low) high = low;
    const bool turned = sx[1] == 1 && sx[4] != 1;
    for (int64_t z = 0; z < ws[0]; z++) {
        const int64_t iz = r->plane * stride[0] - padding[0] + z * dilation[0];
        for (int64_t y = 0; y < r->high; y++, dst += r->wide) {
            const int64_t iy = r->row * stride[1] - padding[1] + y;
            const bool here = iz >= 0 && iz < xs[0] && iy >= 0 && iy < xs[1];
            const int64_t from = here ? low : 0, to = here ? high : 0;
            const ST *const s = here ? src + iz * sx[2] + iy * sx[3] - padding[2] * sx[4] : src;
            for (int64_t c = 0; c < channels; c++) {
                T *const d = dst + c * size;
                for (int64_t i = 0; i < from; i++) d[i] = 0;
                if (sx[4] == 1)
                    WIDEN(d + from, s + c * sx[1] + from, to - from);
                else
                    for (int64_t i = from; i < to && !turned; i++) d[i] = LOAD(s[c * sx[1] + i * sx[4]]);
                for (int64_t i = to; i < r->wide; i++) d[i] = 0;
            }
            for (int64_t i = from; i < to && turned; i += 8) {
                const int64_t places = to - i < 8 ? to - i : 8;
                for (int64_t q = 0; q < places; q++) WIDEN(run + q * (KC + PAD), s + (i + q) * sx[4], channels);
                A(turn_lines)(run, KC + PAD, places, channels, dst + i, size);
            }
        }
    }
}

/* Adds the run to sums[channel of x, tap][channel of y], ld elements a row. */
static void N(taps_add)(const int64_t *v, const struct N(lanes_run) * r, const ST *x, const ST *y, int64_t mc,
                        int64_t channels, N(scratch) * memory, T *sums, int64_t ld) {
    const int64_t *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *stride = v + RP__CONV_STRIDE;
    const int64_t *dilation = v + RP__CONV_DILATION, *sx = v + RP__CONV_X_STRIDES, *sy = v + RP__CONV_Y_STRIDES;
    const int64_t taps = ws[0] * ws[1] * ws[2], size = ws[0] * r->high * r->wide;
    int64_t together = KC * TN / size;
    if (together > KC) together = KC;
    for (int64_t k = 0, row = 0, i = r->column; k < r->count; k++) {
        memory->places[k] = row * stride[1] * r->wide + i * stride[2];
        if (++i == ys[2]) i = 0, row++;
    }
    y += r->image * sy[0] + r->plane * sy[2], x += r->image * sx[0];
    for (int64_t o = 0; o < mc; o += NR)
        N(taps_y)(v, r, y + o * sy[1], mc - o < NR ? mc - o : NR, memory->pa + o * r->count, memory->run);
    for (int64_t c = 0; c < channels; c += together) {
        const int64_t some = channels - c < together ? channels - c : together, rows = some * taps;
        N(taps_x)(v, r, x + c * sx[1], some, size, memory->pb, memory->run);
        for (int64_t o = 0; o < mc; o += NR) {
            const bool pair = mc - o > L;
            const int64_t most = pair ? MOST_PAIRS : MOST_ROWS;
            int64_t at[MOST_ROWS], channel = 0, z = 0, j = 0, i = 0; /* of the next row */
            for (int64_t row = 0, n; row < rows; row += n) {
                const int64_t blocks = (rows - row + most - 1) / most;
                n = (rows - row + blocks - 1) / blocks;
                for (int64_t q = 0; q < n; q++) {
                    at[q] = channel * size + (z * r->high + j * dilation[1]) * r->wide + i * dilation[2];
                    if (++i < ws[2]) continue;
                    i = 0;
                    if (++j < ws[1]) continue;
                    j = 0;
                    if (++z < ws[0]) continue;
                    z = 0, channel++;
                }
                (pair ? N(taps_pairs) : N(taps_single))(n, r->count, memory->pb, memory->places, at,
                                                        memory->pa + o * r->count, sums + (c * taps + row) * ld + o,
                                                        ld);
            }
        }
    }
}

_Static_assert(RP__CONV_TAPS_ROWS *KC <= TM * (KC + PAD) && RP__CONV_TAPS_ROWS % NR == 0, "y of a block of K");
_Static_assert(RP__CONV_TAPS_SUMS <= TM * ROOM && RP__CONV_TAPS_SUMS * sizeof(T) <= WEIGHT_BYTES &&
                   RP__CONV_TAPS_SUMS <= KC * TN,
               "sums of an item, a tile");
_Static_assert(RP__CONV_TAPS_ROOM <= KC * TN, "x of a run");

/* An item is TILE_M channels of y and TILE_N of x of a group. */
static void N(conv_taps)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    const int64_t *v = (const int64_t *)w;
    const int64_t *ys = v + RP__CONV_YS, *ws = v + RP__CONV_WS, *sw = v + RP__CONV_W_STRIDES;
    const int64_t C = v[RP__CONV_C], O = v[RP__CONV_O], each = v[RP__CONV_TILE_N], tm = v[RP__CONV_TILE_M];
    const int64_t parts = (C + each - 1) / each, tiles = (O + tm - 1) / tm;
    const int64_t taps = ws[0] * ws[1] * ws[2], K = v[RP__CONV_IMAGES] * ys[0] * ys[1] * ys[2];
    const bool follows = w[RP__CONV_FLAGS] & RP__GEMM_REST;
    rp__gemm_rest rest;
    if (follows) rp__gemm_rest_begin(&rest, kernel, 0, w + RP__CONV_WORDS, sizeof(T));
    N(scratch) *memory = rp__gemm_scratch_take();
    T *const block = memory->kept, *const total = (T *)(void *)memory->weight;
    T *const group = K > GROUP ? memory->group : total; /* one group is all */
    const bool plain = sw[4] == 1 && sw[3] == ws[2] && sw[2] == ws[1] * ws[2] && sw[1] == taps;
    for (int64_t item = begin; item < end; item++) {
        const int64_t g = item / parts / tiles, m0 = item / parts % tiles * tm, c0 = item % parts * each;
        const int64_t mc = O - m0 < tm ? O - m0 : tm, channels = C - c0 < each ? C - c0 : each;
        const int64_t columns = channels * taps, ld = (mc + NR - 1) / NR * NR, sums = columns * ld;
        const ST *x = (const ST *)(uintptr_t)w[RP__CONV_X] + (g * C + c0) * v[RP__CONV_X_STRIDES + 1];
        const ST *y = (const ST *)(uintptr_t)w[RP__CONV_Y] + (g * O + m0) * v[RP__CONV_Y_STRIDES + 1];
        if (K == 0) memset(total, 0, (size_t)sums * sizeof *total);
        for (int64_t k0 = 0, kc; k0 < K; k0 += kc) {
            kc = K - k0 < KC ? K - k0 : KC;
            T *const to = k0 % GROUP ? block : group;
            memset(to, 0, (size_t)sums * sizeof *to);
            struct N(lanes_run) run;
            for (int64_t k = k0; k < k0 + kc; k += run.count) {
                N(lanes_find)(v, k, k0 + kc - k, RP__CONV_TAPS_ROOM, &run);
                N(taps_add)(v, &run, x, y, mc, channels, memory, to, ld);
            }
            for (int64_t i = 0; to == block && i < sums; i++) group[i] = group[i] + block[i];
            if (group == total || ((k0 + kc) % GROUP && k0 + kc < K)) continue;
            for (int64_t i = 0; i < sums; i++) total[i] = k0 < GROUP ? group[i] : total[i] + group[i];
        }
        T *const tile = memory->pb;
        A(turn_lines)(total, ld, columns, mc, tile, columns);
        if (follows) {
            rest.fixed[0] = g;
            rp__gemm_rest_run(&rest, tile, columns, m0, mc, c0 * taps, columns);
            continue;
        }
        const T *s = tile;
        for (int64_t o = 0; o < mc; o++) {
            if (plain) {
                NARROW((ST *)(uintptr_t)w[RP__CONV_W] + (g * O + m0 + o) * sw[0] + c0 * taps, s, columns);
                s += columns;
                continue;
            }
            for (int64_t c = 0; c < channels; c++) {
                ST *out = (ST *)(uintptr_t)w[RP__CONV_W] + (g * O + m0 + o) * sw[0] + (c0 + c) * sw[1];
                for (int64_t z = 0; z < ws[0]; z++)
                    for (int64_t j = 0; j < ws[1]; j++)
                        for (int64_t i = 0; i < ws[2]; i++) out[z * sw[2] + j * sw[3] + i * sw[4]] = STORE(*s++);
            }
        }
    }
    rp__gemm_scratch_give(memory);
}
#undef MOST_PAIRS
#undef MOST_ROWS
