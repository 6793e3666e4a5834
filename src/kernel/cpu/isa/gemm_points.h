/* Template: convolutions, and their gradients by the input, whose vectors are channels of the result and whose rows are places of it.
   gemm_tile.h includes it for a storage type, with its names.
   Elements of the operand with windows are read by single ones, where they lie or in a copy with zeros around, so no column is padded,
   strides need no order of their own, and channels that lie last are not turned. Weights are turned once for all items that read them.
   Each chain is the one that a product has (kernel/product.h). */
#if MICRO_ROWS > 6
#define MOST_PAIRS 9 /* places beside two vectors of weights */
#else
#define MOST_PAIRS 6
#endif
#define MOST_SINGLE 9

/* What a tile reads: element (tap, place) of channel c lies at x + tap_at + at + c channel. */
struct N(points) {
    bool copied;               /* a box with zeros around; else memory is read */
    bool last;                 /* of a box: channels lie last */
    int64_t low[3], length[3]; /* of a box: first coordinate, how many */
    int64_t channel, pitch[3];
    int64_t at[RP__CONV_POINTS], tap_at[RP__CONV_POINTS_TAPS];
};

/* sums[place][o] = or += the sum over k of x[places[k] + at place] w[k][o], of n elements of a block of k. */
RP__VEC_FN void N(points_block)(const int rows, const int vectors, int64_t n, bool first, const T *x,
                                const int64_t *places, const int64_t *row_at, const T *w, T *sums, int64_t ld) {
    V acc[MOST_SINGLE][2], b[2];
    const T *row[MOST_SINGLE];
    UNROLL for (int i = 0; i < rows; i++) {
        row[i] = x + row_at[i];
        UNROLL for (int j = 0; j < vectors; j++) acc[i][j] = (V){0};
    }
    for (int64_t k = 0; k < n; k++, w += NR) {
        const int64_t at = places[k];
        UNROLL for (int j = 0; j < vectors; j++) b[j] = A(load)(w + j * L);
        UNROLL for (int i = 0; i < rows; i++) {
            const V e = A(splat)(row[i][at]);
            UNROLL for (int j = 0; j < vectors; j++) acc[i][j] += e * b[j];
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < vectors; j++) {
            T *const to = sums + i * ld + j * L;
            A(store)(to, first ? acc[i][j] : A(load)(to) + acc[i][j]);
        }
    }
}
#define POINTS_ROWS(name, vectors, most)                                                                               \
    static __attribute__((noinline)) void N(name)(int64_t rows, int64_t n, bool first, const T *x,                     \
                                                  const int64_t *places, const int64_t *at, const T *w, T *sums,       \
                                                  int64_t ld) {                                                        \
        switch (rows) {                                                                                                \
        case 1: N(points_block)(1, vectors, n, first, x, places, at, w, sums, ld); break;                              \
        case 2: N(points_block)(2, vectors, n, first, x, places, at, w, sums, ld); break;                              \
        case 3: N(points_block)(3, vectors, n, first, x, places, at, w, sums, ld); break;                              \
        case 4: N(points_block)(4, vectors, n, first, x, places, at, w, sums, ld); break;                              \
        case 5: N(points_block)(5, vectors, n, first, x, places, at, w, sums, ld); break;                              \
        case 6: N(points_block)(6, vectors, n, first, x, places, at, w, sums, ld); break;                              \
        case 7: N(points_block)((most) < 7 ? (most) : 7, vectors, n, first, x, places, at, w, sums, ld); break;        \
        case 8: N(points_block)((most) < 8 ? (most) : 8, vectors, n, first, x, places, at, w, sums, ld); break;        \
        default: N(points_block)(most, vectors, n, first, x, places, at, w, sums, ld);                                 \
        }                                                                                                              \
    }
POINTS_ROWS(points_pairs, 2, MOST_PAIRS)
POINTS_ROWS(points_single, 1, MOST_SINGLE)
#undef POINTS_ROWS

/* Places [n0, n0 + nc) of a plan; false: what they read has no room. */
static bool N(points_of)(const struct conv_plan *c, int64_t n0, int64_t nc, struct N(points) * p) {
    const struct conv_axis *line = &c->b.line, *k = &c->b.k;
    int64_t first[3], last[3], at = n0, end = n0 + nc - 1, taps = 1;
    p->copied = c->k > 0 && (!SAME || c->b.bounded);
    p->last = k->offset[0] == 1 && c->pitch[2] != 1;
    for (int d = 2; d >= 0; d--) {
        first[d] = at % line->extent[d + 1], at /= line->extent[d + 1];
        last[d] = end % line->extent[d + 1], end /= line->extent[d + 1];
        taps *= k->extent[d + 1];
    }
    if (taps > RP__CONV_POINTS_TAPS || nc > RP__CONV_POINTS || c->k > GROUP) return false;
    if (c->k == 0) return true; /* no tap meets this phase */
    bool rows = false;          /* an outer dim moves: all of this one */
    double size = (double)k->extent[0];
    for (int d = 0; d < 3; d++) {
        const int64_t low = rows ? 0 : first[d], high = rows ? line->extent[d + 1] - 1 : last[d];
        const int64_t reach = (k->extent[d + 1] - 1) * k->coordinate[d + 1];
        rows = rows || low != high;
        p->low[d] = line->start.c[d] + low * line->coordinate[d + 1] + (reach < 0 ? reach : 0);
        p->length[d] = (high - low) * line->coordinate[d + 1] + (reach < 0 ? -reach : reach) + 1;
        size *= (double)p->length[d];
    }
    if (p->copied && size > KC * TN) return false;
    if (!p->copied) {
        for (int d = 0; d < 3; d++) p->pitch[d] = c->pitch[d];
        p->channel = k->offset[0];
    } else {
        p->pitch[2] = p->last ? k->extent[0] : 1;
        for (int d = 1; d >= 0; d--) p->pitch[d] = p->length[d + 1] * p->pitch[d + 1];
        p->channel = p->last ? 1 : p->length[0] * p->pitch[0];
    }
    struct conv_cursor cursor;
    conv_start(&cursor, line, n0);
    for (int64_t j = 0; j < nc; j++, conv_next(&cursor, line)) {
        p->at[j] = 0;
        for (int d = 0; d < 3; d++)
            p->at[j] += (cursor.here.c[d] - (p->copied ? p->low[d] : line->start.c[d])) * p->pitch[d];
    }
    for (int64_t j = 0; j < taps; j++) {
        int64_t rest = j;
        p->tap_at[j] = 0;
        for (int d = 2; d >= 0; d--) {
            p->tap_at[j] += rest % k->extent[d + 1] * k->coordinate[d + 1] * p->pitch[d];
            rest /= k->extent[d + 1];
        }
    }
    return true;
}

/* The box of a tile, all channels; src: the operand at coordinate 0. */
static void N(points_copy)(const struct conv_plan *c, const struct N(points) * p, const ST *src, T *dst) {
    const int64_t *bound = c->b.bound, *pitch = c->pitch, channels = c->b.k.extent[0], step = c->b.k.offset[0];
    const int64_t n = p->length[2], low = p->low[2] < 0 ? (-p->low[2] < n ? -p->low[2] : n) : 0;
    int64_t high = bound[2] - p->low[2] < n ? bound[2] - p->low[2] : n;
    if (high < low) high = low;
    const int64_t outer = p->last ? 1 : channels, inner = p->last ? channels : 1;
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t z = 0; z < p->length[0]; z++) {
            for (int64_t y = 0; y < p->length[1]; y++, dst += n * inner) {
                const int64_t cz = p->low[0] + z, cy = p->low[1] + y;
                if (cz < 0 || cz >= bound[0] || cy < 0 || cy >= bound[1]) {
                    memset(dst, 0, (size_t)(n * inner) * sizeof *dst);
                    continue;
                }
                const ST *s = src + o * step + cz * pitch[0] + cy * pitch[1] + p->low[2] * pitch[2];
                for (int64_t i = 0; i < low * inner; i++) dst[i] = 0;
                if (pitch[2] == inner) {
                    WIDEN(dst + low * inner, s + low * inner, (high - low) * inner);
                } else if (p->last) {
                    for (int64_t i = low; i < high; i++) WIDEN(dst + i * inner, s + i * pitch[2], inner);
                } else {
                    for (int64_t i = low; i < high; i++) dst[i] = LOAD(s[i * pitch[2]]);
                }
                for (int64_t i = high * inner; i < n * inner; i++) dst[i] = 0;
            }
        }
    }
}

/* Rows [m0, m0 + mc) of a weight in panels, all of k each. src: of row 0. */
static void N(points_weights)(const struct conv_plan *c, N(scratch) * memory, const ST *src, int64_t m0, int64_t mc,
                              T *panels) {
    const struct conv_axis *line = &c->a.line;
    struct conv_cursor k;
    int64_t step;
    const bool flat = conv_flat_axis(&c->a.k, &step) && step == 1;
    src += line->start.offset + c->a.k.start.offset + m0 * line->offset[3];
    if (c->k == 0) return; /* no tap meets this phase */
    if (mc % NR) memset(panels + mc / NR * NR * c->k, 0, (size_t)(NR * c->k) * sizeof *panels);
    conv_start(&k, &c->a.k, 0);
    for (int64_t k0 = 0; k0 < c->k; k0 += KC) {
        const int64_t kc = c->k - k0 < KC ? c->k - k0 : KC;
        for (int64_t i = 0; i < kc; i++, conv_next(&k, &c->a.k))
            memory->places[i] = k.here.offset - c->a.k.start.offset;
        for (int64_t m = 0; m < mc; m += NR) {
            const int64_t lines = mc - m < NR ? mc - m : NR;
            const ST *const s = src + m * line->offset[3];
            T *const to = panels + m * c->k + k0 * NR;
            if (line->offset[3] == 1) {
                for (int64_t q = 0; q < kc; q++) WIDEN(to + q * NR, s + memory->places[q], lines);
            } else if (lines == NR && !flat) {
                for (int64_t q = 0; q < kc; q++) {
                    const ST *const from = s + memory->places[q];
                    UNROLL for (int i = 0; i < NR; i++) to[q * NR + i] = LOAD(from[i * line->offset[3]]);
                }
            } else {
                for (int64_t i = 0; i < lines; i += 8) {
                    const int64_t some = lines - i < 8 ? lines - i : 8;
                    for (int64_t l = 0; l < some; l++) {
                        const ST *const from = s + (i + l) * line->offset[3];
                        T *const d = memory->run + l * (KC + PAD);
                        if (flat)
                            WIDEN(d, from + k0, kc);
                        else
                            for (int64_t q = 0; q < kc; q++) d[q] = LOAD(from[memory->places[q]]);
                    }
                    A(pack_turned)(NR, NULL, memory->run, KC + PAD, some, kc, to + i);
                }
            }
        }
    }
}

/* Places [n0, n0 + nc) of channels [m0, m0 + mc), at most a tile's rows, whose weights are in panels; x: where places read. */
static void N(points_tile)(const N(job) * g, const struct conv_plan *c, const struct N(points) * p, const T *x,
                           N(scratch) *restrict memory, const T *panels, int64_t m0, int64_t mc, int64_t n0,
                           int64_t nc) {
    const int64_t ld = (mc + L - 1) / L * L, wide = (nc + 7) / 8 * 8;
    T *const sums = memory->kept, *const turned = memory->group;
    if (c->k == 0) memset(sums, 0, (size_t)(nc * ld) * sizeof *sums);
    int64_t taps = 1, tap = 0, channel = 0;
    for (int d = 0; d < 3; d++) taps *= c->b.k.extent[d + 1];
    for (int64_t k0 = 0, kc; k0 < c->k; k0 += kc) {
        kc = c->k - k0 < KC ? c->k - k0 : KC;
        for (int64_t k = 0; k < kc; k++) {
            memory->places[k] = p->tap_at[tap] + channel;
            if (++tap == taps) tap = 0, channel += p->channel;
        }
        for (int64_t o = 0; o < mc; o += NR) {
            const bool pair = mc - o > L;
            const int64_t most = pair ? MOST_PAIRS : MOST_SINGLE;
            for (int64_t j = 0, n; j < nc; j += n) {
                const int64_t blocks = (nc - j + most - 1) / most;
                n = (nc - j + blocks - 1) / blocks;
                (pair ? N(points_pairs) : N(points_single))(n, kc, k0 == 0, x, memory->places, p->at + j,
                                                            panels + o * c->k + k0 * NR, sums + j * ld + o, ld);
            }
        }
    }
    if (g->flags & RP__GEMM_BIAS_M) {
        for (int64_t i = 0; i < ld; i++) memory->bias[i] = i < mc ? LOAD(g->bias[(m0 + i) * g->bias_stride]) : 0;
        for (int64_t j = 0; j < nc; j++) {
            T *const s = sums + j * ld;
            for (int64_t i = 0; i < ld; i += L) A(store)(s + i, A(load)(s + i) + A(load)(memory->bias + i));
        }
    }
    if (!g->rest && c->out_m == 1) {
        struct conv_cursor at;
        conv_start(&at, &c->out, n0);
        for (int64_t j = 0; j < nc; j++, conv_next(&at, &c->out))
            NARROW(g->out + at.here.offset + m0, sums + j * ld, mc);
        return;
    }
    A(turn_lines)(sums, ld, nc, mc, turned, wide);
    if (g->rest) {
        rp__gemm_rest_run(g->rest, turned, wide, m0, mc, n0, nc);
    } else if (g->scatter || g->on != 1) {
        N(scatter)(c, g->out, m0, mc, n0, nc, turned, wide);
    } else {
        for (int64_t i = 0; i < mc; i++) NARROW(g->out + (m0 + i) * g->om + n0, turned + i * wide, nc);
    }
}
/* All channels [m0, m0 + mc) of a tile. */
static void N(points_run)(const N(job) * g, const struct conv_plan *c, const struct N(points) * p, N(scratch) * memory,
                          const T *panels, int64_t m0, int64_t mc, int64_t n0, int64_t nc) {
    const struct conv_axis *line = &c->b.line;
    const ST *src = g->b + line->start.offset + c->b.k.start.offset; /* of tap 0 of the first place */
    const T *x = (const T *)(const void *)src;
    if (p->copied) {
        for (int d = 0; d < 3; d++) src -= line->start.c[d] * c->pitch[d];
        N(points_copy)(c, p, src, memory->pb);
        x = memory->pb;
    }
    for (int64_t m = 0; m < mc; m += TM)
        N(points_tile)(g, c, p, x, memory, panels + m * c->k, m0 + m, mc - m < TM ? mc - m : TM, n0, nc);
}
_Static_assert(TM % NR == 0, "tiles of whole panels");
_Static_assert(RP__CONV_POINTS *(TM + L) <= TM * ROOM, "sums of a tile of places");
#undef MOST_PAIRS
#undef MOST_SINGLE
