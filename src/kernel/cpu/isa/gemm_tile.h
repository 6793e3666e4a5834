/* Template: one tile of a product for one storage type. gemm.c includes it once a dtype with
     S suffix of names, ST storage element, ACC/T/L the accumulator as in gemm_core.h, SAME 1 where ST is T,
     LOAD(x) ST -> T, STORE(x) T -> ST, WIDEN(dst, src, n) and NARROW(dst, src, n) for contiguous runs, FLOATING 1 for types
     that convolutions take.
   Blocks: KC of k at a time; b packed KC x tile_n in panels; a packed, all rows of the tile x KC, where it cannot be read in place. The
   sum of the blocks of k stays in the result where that is of type T with unit stride, else in `kept`; where there is more than one
   group of blocks, that of a group in `group` and that of groups in `kept`.
   DOTS defined: where the matrix unit is here (dots.h), it computes the sums. */
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)
#define N(name) NAME1(name, S)
#define A(name) NAME1(name, ACC)
#define KC (RP__PRODUCT_BLOCK * 4 / GEMM_BYTES)
#define GROUP (RP__PRODUCT_GROUP * KC)
#define NR (2 * L)
#define PAD (64 / GEMM_BYTES) /* a cache line between rows and between panels, against sets */
#define TM RP__GEMM_MAX_TILE_M
#define TN RP__GEMM_MAX_TILE_N
#define ROOM (TN + 128) /* sums of a row of a tile: those of boxes have gaps */

/* What a tile reads through a function of its own (convolution): fills dst as pack does. */
typedef struct N(job) {
    int64_t k;
    const ST *a, *b;
    ST *out;
    int64_t om, on, am, ak, bk, bn;
    int64_t a_first; /* the row of the product that a begins with */
    const ST *bias;
    int64_t bias_stride;
    unsigned flags;
    const struct conv_plan *conv; /* NULL: plain strides */
    /* true: rows of KC + PAD, else blocks of MICRO_ROWS */
    bool (*gather_a)(const struct conv_plan *c, const ST *base, int64_t m0, int64_t count, int64_t k0, int64_t kc,
                     T *dst, T *run);
    void (*gather_b)(const struct conv_plan *c, const ST *base, int64_t n0, int64_t count, int64_t k0, int64_t kc,
                     T *dst, T *run);
    const struct conv_box *box; /* b comes from boxes of its memory; NULL: gather_b */
    void (*scatter)(const struct conv_plan *c, ST *base, int64_t m0, int64_t mc, int64_t n0, int64_t nc, const T *src,
                    int64_t ld);
    const rp__gemm_rest *rest;              /* takes the sums; NULL: they are the result */
    const rp__gemm_rest *makes_a, *makes_b; /* in place of memory; NULL: there is some */
    bool dots, one;                         /* one: b is a column */
    bool near;                              /* all of b is small enough for a cache */
} N(job);

typedef struct N(scratch) {
    _Alignas(64) T pb[KC * TN + TN / NR * PAD + 4 * NR], pa[TM * (KC + PAD)];
    _Alignas(64) T kept[TM * ROOM], group[TM * ROOM];
    T bias[RP__GEMM_STREAM_TILE_N + NR];
    _Alignas(64) T run[8 * (KC + PAD)]; /* lines on their way into a panel */
    int64_t places[KC];
    struct conv_box box;
    _Alignas(64) ST weight[WEIGHT_BYTES / sizeof(ST)]; /* in the order of k: rows of a tile, kept from item to item */
#ifdef DOTS
    _Alignas(64) uint16_t rows[TM * DOTS_ROW];
    _Alignas(64) uint32_t pairs[DOTS_ROOM + RP__GEMM_STREAM_TILE_N];
#endif
} N(scratch);
#ifdef DOTS
/* Rows of a are read once or twice as they lie, and then in longer blocks. */
static bool N(dots_in_place)(const N(job) * g, int64_t mc, int64_t nc) {
    return !g->gather_a && g->ak == 1 && mc % RP__DOTS_ROWS == 0 && nc <= RP__DOTS_STRIP;
}
static int64_t N(dots_depth)(const N(job) * g, int64_t mc, int64_t nc) {
    const bool lines = g->bn == 1 || (g->bk == 1 && g->bn % 2 == 0 && (uintptr_t)g->b % 4 == 0);
    if (!lines || g->box || g->gather_b || g->gather_a || g->ak != 1) return KC;
    return N(dots_in_place)(g, mc, nc) ? 2 * DOTS_DEPTH : DOTS_DEPTH;
}
#endif
_Static_assert(sizeof(N(scratch)) <= RP__GEMM_SCRATCH_BYTES, "a tile's scratch is a thread's scratch");
_Static_assert(RP__GEMM_STREAM_TILE_M *RP__GEMM_STREAM_TILE_N <= TM * TN && TM <= RP__GEMM_STREAM_TILE_N,
               "a wide tile's sums are a tile's");

/* Lines into panels of W, converted: contiguous runs by vectors, else one by one. */
RP__VEC_FN void N(pack_lines)(const int W, const ST *src, int64_t along, int64_t down, int64_t count, int64_t kc,
                              T *dst, int64_t step, T *run) {
#if SAME
    (void)run;
    A(pack)(W, src, along, down, count, kc, dst, step);
#else
    for (int64_t p = 0; p < count; p += W, dst += step) {
        const int64_t w = count - p < W ? count - p : W;
        const ST *s = src + p * along;
        if (w < W) {
            for (int64_t i = 0; i < W * kc; i++) dst[i] = 0;
        }
        if (along == 1 && down != 1) {
            for (int64_t k = 0; k < kc; k++) WIDEN(dst + k * W, s + k * down, w);
        } else if (down == 1) {
            for (int64_t j = 0; j < w; j += 8) {
                const int64_t lines = w - j < 8 ? w - j : 8;
                for (int64_t i = 0; i < lines; i++) { /* as pack_turned: what is read later is fetched */
                    const int64_t line = p + j + i + 8;
                    const ST *const next = line < count ? src + line * along : src + (line - count) * along + kc;
                    for (int64_t k = 0; k < kc; k += 64 / (int64_t)sizeof(ST)) __builtin_prefetch(next + k, 0, 2);
                    WIDEN(run + i * (KC + PAD), s + (j + i) * along, kc);
                }
                A(pack_turned)(W, NULL, run, KC + PAD, lines, kc, dst + j);
            }
        } else {
            for (int64_t k = 0; k < kc; k++)
                for (int64_t j = 0; j < w; j++) dst[k * W + j] = LOAD(s[j * along + k * down]);
        }
    }
#endif
}

/* Columns [n0, n0 + nc) of b in panels, as pack_lines leaves them, by what makes them. */
RP__VEC_FN void N(make_panels)(const N(job) * g, int64_t n0, int64_t nc, int64_t k0, int64_t kc, T *dst, int64_t step,
                               T *run) {
    for (int64_t p = 0; p < nc; p += NR, dst += step) {
        const int64_t w = nc - p < NR ? nc - p : NR;
        if (w < NR) {
            for (int64_t i = 0; i < NR * kc; i++) dst[i] = 0;
        }
        if (!(g->flags & RP__GEMM_MAKES_B_ALONG)) {
            rp__gemm_rest_run(g->makes_b, dst, NR, k0, kc, n0 + p, w);
            continue;
        }
        for (int64_t j = 0; j < w; j += 8) {
            const int64_t lines = w - j < 8 ? w - j : 8;
            rp__gemm_rest_run(g->makes_b, run, KC + PAD, n0 + p + j, lines, k0, kc);
            A(pack_turned)(NR, NULL, run, KC + PAD, lines, kc, dst + j);
        }
    }
}

#ifdef LOAD_VECTOR
/* Few rows: b, whose rows lie one element after the other, is read once and as it lies, eight rows of k side by side; sums of a block
   of k are in `part`, ld elements a row. */
RP__VEC_FN void N(stream_rows)(const int mr, const N(job) * g, T *part, int64_t ld, int64_t m0, int64_t n0, int64_t nc,
                               int64_t k0, int64_t kc) {
    const int64_t bk = g->bk;
    for (int64_t k = 0; k < kc; k += 8) {
        const int64_t depth = kc - k < 8 ? kc - k : 8;
        const ST *b = g->b + (k0 + k) * bk + n0, *a = g->a + (m0 - g->a_first) * g->am + (k0 + k) * g->ak;
        T x[RP__GEMM_STREAM_TILE_M][8];
        for (int i = 0; i < mr; i++)
            for (int64_t q = 0; q < depth; q++) x[i][q] = LOAD(a[i * g->am + q * g->ak]);
        int64_t j = 0;
        if (depth == 8) {
            for (; j + L <= nc; j += L) {
                V acc[RP__GEMM_STREAM_TILE_M];
                UNROLL for (int i = 0; i < mr; i++) acc[i] = k ? A(load)(part + i * ld + j) : (V){0};
                UNROLL for (int q = 0; q < 8; q++) {
                    const V y = LOAD_VECTOR(b + q * bk + j);
                    UNROLL for (int i = 0; i < mr; i++) acc[i] += A(splat)(x[i][q]) * y;
                }
                UNROLL for (int i = 0; i < mr; i++) A(store)(part + i * ld + j, acc[i]);
            }
        }
        for (; j < nc; j += L) { /* the last columns and rows, through a padded copy */
            const int64_t w = nc - j < L ? nc - j : L;
            for (int i = 0; i < mr; i++) {
                V acc = k ? A(load)(part + i * ld + j) : (V){0};
                for (int64_t q = 0; q < depth; q++) {
                    T y[L] = {0};
                    WIDEN(y, b + q * bk + j, w);
                    acc += A(splat)(x[i][q]) * A(load)(y);
                }
                A(store)(part + i * ld + j, acc);
            }
        }
    }
}
static void N(stream)(const N(job) * g, T *part, int64_t ld, int64_t m0, int64_t mc, int64_t n0, int64_t nc, int64_t k0,
                      int64_t kc) {
    switch (mc) {
    case 1: N(stream_rows)(1, g, part, ld, m0, n0, nc, k0, kc); break;
    case 2: N(stream_rows)(2, g, part, ld, m0, n0, nc, k0, kc); break;
    case 3: N(stream_rows)(3, g, part, ld, m0, n0, nc, k0, kc); break;
    default: N(stream_rows)(4, g, part, ld, m0, n0, nc, k0, kc);
    }
}
#endif

#if defined(LOAD_VECTOR) && (SAME || defined(JOINED)) && RP_VEC_BYTES >= 32
/* Few rows, and columns of b as lines, the elements of one along k: L lines are read PIECE elements each and turned in registers, so that
   lanes are lines, as where lines lie across memory. Rows that fit the registers beside them: */
#define BY_LINES (RP_VEC_BYTES == 64 ? 6 : 3)
/* A chain waits for each of its additions, so that rows this few have two under way: of other lines, or of a later block of k. */
#define PAIRED (BY_LINES / 2 + 1)
#define PIECE (16 / GEMM_BYTES)

#define TURN(name) N(name)
#define TURN_FROM ST
#define TURN_V V
#define TURN_BYTES GEMM_BYTES
#define TURN_LANES L
#if SAME
#define TURN_ELEMENT T
#else
#define TURN_JOINED JOINED
#endif
#include "kernel/cpu/isa/turn.h"
/* The chains of one block of k, kc elements: for each of `chains` L lines from lines[c] on and rows of x from x[c] on. */
RP__VEC_FN void N(line_chains)(const int mr, const int chains, const ST *const *lines, int64_t pitch, const T *const *x,
                               int64_t x_row, int64_t kc, V (*sum)[BY_LINES]) {
    V acc[2][BY_LINES];
    UNROLL for (int c = 0; c < chains; c++) UNROLL for (int i = 0; i < mr; i++) acc[c][i] = (V){0};
    int64_t k = 0;
    for (; k + PIECE <= kc; k += PIECE) {
        UNROLL for (int c = 0; c < chains; c++) {
            V r[PIECE];
            N(turn_piece)(lines[c] + k, pitch, r);
            UNROLL for (int q = 0; q < PIECE; q++) {
                UNROLL for (int i = 0; i < mr; i++) acc[c][i] += A(splat)(x[c][i * x_row + k + q]) * r[q];
            }
        }
    }
    for (; k < kc; k++) {
        UNROLL for (int c = 0; c < chains; c++) {
            T y[L];
            for (int i = 0; i < L; i++) y[i] = LOAD(lines[c][i * pitch + k]);
            UNROLL for (int i = 0; i < mr; i++) acc[c][i] += A(splat)(x[c][i * x_row + k]) * A(load)(y);
        }
    }
    UNROLL for (int c = 0; c < chains; c++) UNROLL for (int i = 0; i < mr; i++) sum[c][i] = acc[c][i];
}
/* A group of blocks of k, `depth` elements from b on, of nc >= L columns; each line is read to its end before the next ones are. Two chains
   whole pages apart would push each other's lines out of the first-level cache: what is `near` then pairs some blocks only, and main memory
   keeps one waiting longer than a chain does. */
RP__VEC_FN void N(line_rows)(const int mr, const T *x, int64_t x_row, const ST *b, int64_t pitch, int64_t nc,
                             int64_t depth, bool near, T *sums, int64_t ld) {
    enum { PAGE = 4096 / (int)sizeof(ST) };
    int64_t half = depth / KC / 2 * KC;
    if (half % PAGE == 0 && near) half += KC;
    const bool beside = mr <= PAIRED && pitch % PAGE, behind = mr <= PAIRED && !beside && half % PAGE;
    const int64_t rest = (depth - half) / KC * KC, both = rest < half ? rest : half;
    for (int64_t j = 0; j < nc; j += beside ? 2 * L : L) {
        /* the last lines again, where fewer are left */
        const int64_t from[2] = {j + L < nc ? j : nc - L, j + 2 * L < nc ? j + L : nc - L};
        V block[2][GROUP / KC][BY_LINES];
        for (int i = 0; i < mr; i++) block[0][0][i] = block[1][0][i] = (V){0};
        for (int64_t k = 0; k < depth;) {
            const int64_t kc = depth - k < KC ? depth - k : KC;
            V sum[2][BY_LINES];
            if (beside || (behind && k < both)) {
                const int64_t ahead = behind ? half : 0;
                const ST *const lines[2] = {b + from[0] * pitch + k, b + from[beside ? 1 : 0] * pitch + k + ahead};
                const T *const rows[2] = {x + k, x + k + ahead};
                N(line_chains)(mr, 2, lines, pitch, rows, x_row, kc, sum);
                for (int i = 0; i < mr; i++) {
                    block[0][k / KC][i] = sum[0][i];
                    block[beside][(k + ahead) / KC][i] = sum[1][i];
                }
            } else {
                const ST *const lines = b + from[0] * pitch + k;
                const T *const rows = x + k;
                N(line_chains)(mr, 1, &lines, pitch, &rows, x_row, kc, sum);
                for (int i = 0; i < mr; i++) block[0][k / KC][i] = sum[0][i];
            }
            k += kc;
            if (behind && k == half) k += both;
        }
        for (int c = 0; c < (beside ? 2 : 1); c++) {
            for (int i = 0; i < mr; i++) {
                V total = block[c][0][i];
                for (int64_t k = KC; k < depth; k += KC) total = total + block[c][k / KC][i];
                A(store)(sums + i * ld + from[c], total);
            }
        }
    }
}
#define LINE_ROWS(mr)                                                                                                  \
    static __attribute__((noinline)) void N(line_rows##mr)(const T *x, int64_t x_row, const ST *b, int64_t pitch,      \
                                                           int64_t nc, int64_t depth, bool near, T *sums,              \
                                                           int64_t ld) {                                               \
        N(line_rows)(mr, x, x_row, b, pitch, nc, depth, near, sums, ld);                                               \
    }
LINE_ROWS(1)
LINE_ROWS(2)
LINE_ROWS(3)
#if RP_VEC_BYTES == 64
LINE_ROWS(4)
LINE_ROWS(5)
LINE_ROWS(6)
#endif
#undef LINE_ROWS
/* Sums of `depth` > 0 elements of k from k0 on, a group at most; `copy` holds rows of a that are not read as they lie. */
static void N(lines)(const N(job) * g, T *copy, T *sums, int64_t ld, int64_t m0, int64_t mc, int64_t n0, int64_t nc,
                     int64_t k0, int64_t depth) {
    const ST *a = g->a + (m0 - g->a_first) * g->am + k0 * g->ak, *b = g->b + n0 * g->bn + k0;
    const T *x = copy;
    int64_t x_row = GROUP + PAD;
    if (SAME && g->ak == 1 && mc == 1) {
        x = (const T *)(const void *)a, x_row = g->am;
    } else {
        for (int64_t i = 0; i < mc; i++) {
            T *const row = copy + i * x_row;
            if (g->ak == 1) {
                WIDEN(row, a + i * g->am, depth);
            } else {
                for (int64_t k = 0; k < depth; k++) row[k] = LOAD(a[i * g->am + k * g->ak]);
            }
        }
    }
    switch (mc) {
    case 1: N(line_rows1)(x, x_row, b, g->bn, nc, depth, g->near, sums, ld); break;
    case 2: N(line_rows2)(x, x_row, b, g->bn, nc, depth, g->near, sums, ld); break;
    case 3: N(line_rows3)(x, x_row, b, g->bn, nc, depth, g->near, sums, ld); break;
#if RP_VEC_BYTES == 64
    case 4: N(line_rows4)(x, x_row, b, g->bn, nc, depth, g->near, sums, ld); break;
    case 5: N(line_rows5)(x, x_row, b, g->bn, nc, depth, g->near, sums, ld); break;
    default: N(line_rows6)(x, x_row, b, g->bn, nc, depth, g->near, sums, ld);
#endif
    }
}
_Static_assert(BY_LINES *(GROUP + PAD) <= TM * (KC + PAD), "rows of a group fit the room of packed ones");
#endif

/* The columns of a box tile lie apart where a row of the result ends: moves them together. */
static void N(close_gaps)(const struct conv_box *x, T *kept, int64_t ld, int64_t mc, int64_t nc) {
    for (int64_t i = 0; i < mc; i++) {
        T *row = kept + i * ld;
        for (int64_t j = 0, run; j < nc; j += run) {
            const int64_t from = conv_box_column(x, j, &run);
            if (run > nc - j) run = nc - j;
            if (from != j) memmove(row + j, row + from, (size_t)run * sizeof *row);
        }
    }
}

#if FLOATING
/* Boxes of so many channels that lie one after the other in memory: eight places at a time, turned. */
static void N(fill_turned)(const struct conv_plan *p, const struct conv_box *x, const ST *src, int64_t channels, T *dst,
                           T *run) {
    const int64_t *bound = p->b.bound, *pitch = p->pitch, n = x->length[2], move = x->move[2];
    for (int64_t ez = 0; ez < x->classes[0]; ez++)
        for (int64_t ey = 0; ey < x->classes[1]; ey++)
            for (int64_t ex = 0; ex < x->classes[2]; ex++)
                for (int64_t z = 0; z < x->length[0]; z++)
                    for (int64_t y = 0; y < x->length[1]; y++, dst += n) {
                        const int64_t cz = x->move[0] * (x->from[0] + z) + x->residue[0][ez];
                        const int64_t cy = x->move[1] * (x->from[1] + y) + x->residue[1][ey];
                        const bool row = cz >= 0 && cz < bound[0] && cy >= 0 && cy < bound[1];
                        for (int64_t i = 0; i < n; i += 8) {
                            const int64_t places = n - i < 8 ? n - i : 8;
                            for (int64_t j = 0; j < places; j++) {
                                const int64_t at = move * (x->from[2] + i + j) + x->residue[2][ex];
                                if (row && at >= 0 && at < bound[2])
                                    WIDEN(run + j * (KC + PAD), src + cz * pitch[0] + cy * pitch[1] + at * pitch[2],
                                          channels);
                                else
                                    memset(run + j * (KC + PAD), 0, (size_t)channels * sizeof *run);
                            }
                            A(turn_lines)(run, KC + PAD, places, channels, dst + i, x->channel);
                        }
                    }
}
/* The boxes (conv_box) of the channels that k [k0, k0 + kc) meets. */
static void N(fill_box)(const struct conv_plan *p, const struct conv_box *x, const ST *src, int64_t k0, int64_t kc,
                        T *dst, T *run) {
    const struct conv_axis *line = &p->b.line, *k = &p->b.k;
    const int64_t taps = k->extent[1] * k->extent[2] * k->extent[3], *bound = p->b.bound, *pitch = p->pitch;
    const int64_t move = x->move[2], step = move * pitch[2], n = x->length[2];
    src += line->start.offset + k->start.offset;
    for (int d = 0; d < 3; d++) src -= line->start.c[d] * pitch[d];
    if (k->offset[0] == 1 && step != 1 && kc > 0) {
        N(fill_turned)(p, x, src + k0 / taps, (k0 + kc - 1) / taps - k0 / taps + 1, dst, run);
        return;
    }
    for (int64_t c = k0 / taps; kc > 0 && c <= (k0 + kc - 1) / taps; c++)
        for (int64_t ez = 0; ez < x->classes[0]; ez++)
            for (int64_t ey = 0; ey < x->classes[1]; ey++)
                for (int64_t ex = 0; ex < x->classes[2]; ex++) {
                    const int64_t at = move * x->from[2] + x->residue[2][ex];
                    int64_t low = at < 0 ? (-at + move - 1) / move : 0;
                    int64_t high = bound[2] > at ? (bound[2] - at + move - 1) / move : 0;
                    high = high < n ? high : n;
                    low = low < high ? low : high;
                    const bool lines = step == 1 && low == 0 && high == n && pitch[1] == n && x->move[1] == 1;
                    for (int64_t z = 0; z < x->length[0]; z++) {
                        const int64_t cz = x->move[0] * (x->from[0] + z) + x->residue[0][ez];
                        for (int64_t y = 0, many = 1; y < x->length[1]; y += many, dst += many * n) {
                            const int64_t cy = x->move[1] * (x->from[1] + y) + x->residue[1][ey];
                            many = 1;
                            if (cz < 0 || cz >= bound[0] || cy < 0 || cy >= bound[1]) {
                                memset(dst, 0, (size_t)n * sizeof *dst);
                                continue;
                            }
                            const ST *s = src + c * k->offset[0] + cz * pitch[0] + cy * pitch[1] + at * pitch[2];
                            if (lines) { /* whole ones, which follow each other */
                                many = bound[1] - cy < x->length[1] - y ? bound[1] - cy : x->length[1] - y;
                                WIDEN(dst, s, many * n);
                                continue;
                            }
                            for (int64_t i = 0; i < low; i++) dst[i] = 0;
                            if (step == 1) {
                                if (high > low) WIDEN(dst + low, s + low, high - low);
                            } else {
                                for (int64_t i = low; i < high; i++) dst[i] = LOAD(s[i * step]);
                            }
                            for (int64_t i = high; i < n; i++) dst[i] = 0;
                        }
                    }
                }
}
#endif

#ifdef DOTS
/* Rows of a for the unit: in place, or copied to memory->rows, filled up with zeros. *am: elements from row to row. */
static const ST *N(dots_rows)(const N(job) * g, N(scratch) * memory, int64_t m0, int64_t mc, int64_t nc, int64_t k0,
                              int64_t kc, int64_t *am) {
    const ST *a = g->gather_a ? NULL : g->a + (m0 - g->a_first) * g->am + k0 * g->ak;
    T *const pa = memory->pa;
    uint16_t *const rows = memory->rows;
    const int64_t depth = (kc + RP__DOTS_STEP - 1) / RP__DOTS_STEP * RP__DOTS_STEP;
    if (N(dots_in_place)(g, mc, nc) && kc == depth) {
        *am = g->am;
        return a;
    }
    *am = DOTS_ROW;
    if (!kc) return rows; /* no products: a may be no memory at all */
    if (g->gather_a) {
        if (g->gather_a(g->conv, g->a, m0, mc, k0, kc, pa, memory->run)) {
            for (int64_t i = 0; i < mc; i++) NARROW(rows + i * DOTS_ROW, pa + i * (KC + PAD), kc);
        } else {
            for (int64_t i = 0; i < mc; i++) {
                const T *s = pa + i / MICRO_ROWS * (MICRO_ROWS * kc + PAD) + i % MICRO_ROWS;
                for (int64_t k = 0; k < kc; k++) rows[i * DOTS_ROW + k] = STORE(s[k * MICRO_ROWS]);
            }
        }
    } else if (g->ak == 1) {
        for (int64_t i = 0; i < mc; i++) memcpy(rows + i * DOTS_ROW, a + i * g->am, (size_t)kc * sizeof *a);
    } else if (g->am == 1) {
        for (int64_t k = 0; k < kc; k += 8) {
            const int64_t lines = kc - k < 8 ? kc - k : 8;
            for (int64_t i = 0; i < lines; i++) WIDEN(memory->run + i * (KC + PAD), a + (k + i) * g->ak, mc);
            A(turn_lines)(memory->run, KC + PAD, lines, mc, pa + k, KC + PAD);
        }
        for (int64_t i = 0; i < mc; i++) NARROW(rows + i * DOTS_ROW, pa + i * (KC + PAD), kc);
    } else {
        for (int64_t i = 0; i < mc; i++)
            for (int64_t k = 0; k < kc; k++) rows[i * DOTS_ROW + k] = a[i * g->am + k * g->ak];
    }
    for (int64_t i = 0; kc < depth && i < mc; i++)
        memset(rows + i * DOTS_ROW + kc, 0, (size_t)(depth - kc) * sizeof *rows);
    for (int64_t i = mc; i % RP__DOTS_ROWS; i++) memset(rows + i * DOTS_ROW, 0, (size_t)depth * sizeof *rows);
    return rows;
}
/* One row of pairs, of two rows of b: as they lie, w columns of a strip; and as sums have them, a strip. NULL: zeros. */
RP__VEC_FN void N(dots_pair)(uint32_t *to, const ST *even, const ST *odd, int64_t w) {
    for (int j = 0; j < RP__DOTS_STRIP; j += L) {
        if (j + L <= w) {
            const rp__vu32 low = rp__v_u32_u16(rp__v_load_u16h(even + j));
            A2(store)(to + j, odd ? low | rp__v_u32_u16(rp__v_load_u16h(odd + j)) << 16 : low);
        } else {
            for (int64_t i = j; i < j + L; i++) to[i] = i < w ? even[i] | (uint32_t)(odd ? odd[i] : 0) << 16 : 0;
        }
    }
}
RP__VEC_FN void N(dots_sums)(uint32_t *to, const T *even, const T *odd) {
    for (int j = 0; j < RP__DOTS_STRIP; j += L) {
        const rp__vu32 low = (rp__vu32)A(load)(even + j) >> 16;
        A2(store)(to + j, odd ? low | ((rp__vu32)A(load)(odd + j) & 0xffff0000u) : low);
    }
}
/* Strip [j, j + RP__DOTS_STRIP) of the columns of b, as pairs. */
static void N(dots_strip)(const N(job) * g, N(scratch) * memory, int64_t n0, int64_t nc, int64_t j, int64_t k0,
                          int64_t kc) {
    uint32_t *to = memory->pairs, *const end = to + (kc + RP__DOTS_STEP - 1) / RP__DOTS_STEP * DOTS_PAIRS;
    const ST *b = g->b + k0 * g->bk + (n0 + j) * g->bn;
    const int64_t w = nc - j < RP__DOTS_STRIP ? nc - j : RP__DOTS_STRIP;
    if (g->box || g->gather_b) {
        const T *s = memory->pb + (g->box ? g->box->start + j : j / NR * (NR * kc + PAD));
        for (int64_t k = 0; k < kc; k += 2, to += RP__DOTS_STRIP) {
            const int64_t odd = k + 1 < kc ? k + 1 : k;
            const T *x = s + (g->box ? memory->places[k] : k * NR), *y = s + (g->box ? memory->places[odd] : odd * NR);
            N(dots_sums)(to, x, odd > k ? y : NULL);
        }
    } else if (g->bk == 1 && g->bn % 2 == 0 && (uintptr_t)b % 4 == 0) {
        A2(pack)(RP__DOTS_STRIP, (const uint32_t *)(const void *)b, g->bn / 2, 1, w, kc / 2, to, 0);
        to += kc / 2 * RP__DOTS_STRIP;
        for (int64_t i = 0; kc % 2 && i < RP__DOTS_STRIP; i++) *to++ = i < w ? b[i * g->bn + kc - 1] : 0;
    } else {
        N(pack_lines)(NR, b, g->bn, g->bk, w, kc, memory->pb, 0, memory->run);
        for (int64_t k = 0; k < kc; k += 2, to += RP__DOTS_STRIP)
            N(dots_sums)(to, memory->pb + k * NR, k + 1 < kc ? memory->pb + (k + 1) * NR : NULL);
    }
    if (to < end) memset(to, 0, (size_t)(end - to) * sizeof *to);
}
/* b as it lies, where it is one column. */
static void N(dots_column)(const N(job) * g, N(scratch) * memory, int64_t k0, int64_t kc) {
    ST *const to = (ST *)(void *)memory->pairs;
    const ST *const b = g->b + k0 * g->bk;
    if (g->bk == 1 && kc)
        memcpy(to, b, (size_t)kc * sizeof *to);
    else
        for (int64_t k = 0; k < kc; k++) to[k] = b[k * g->bk];
    memset(to + kc, 0, (size_t)(-kc & (RP__DOTS_STEP - 1)) * sizeof *to);
}
/* All strips of rows [k0, k0 + kc) of b, which lie one element after the other: memory in its order. */
static void N(dots_strips)(const N(job) * g, uint32_t *pairs, int64_t pitch, int64_t n0, int64_t nc, int64_t k0,
                           int64_t kc) {
    enum { AHEAD = 8 };
    const int64_t steps = (kc + RP__DOTS_STEP - 1) / RP__DOTS_STEP;
    const ST *b = g->b + k0 * g->bk + n0;
    for (int64_t k = 0; k < steps * RP__DOTS_STEP; k += 2, b += 2 * g->bk) {
        uint32_t *to = pairs + k / 2 * RP__DOTS_STRIP;
        for (int64_t j = 0; j < nc; j += RP__DOTS_STRIP, to += pitch) {
            __builtin_prefetch(b + AHEAD * g->bk + j, 0, 2); /* runs are too short for the machine to see */
            __builtin_prefetch(b + (AHEAD + 1) * g->bk + j, 0, 2);
            if (k < kc)
                N(dots_pair)(to, b + j, k + 1 < kc ? b + g->bk + j : NULL, nc - j);
            else
                memset(to, 0, RP__DOTS_STRIP * sizeof *to);
        }
    }
}
/* Sums of a block of k, added to c. */
static void N(dots)(const N(job) * g, N(scratch) * memory, T *c, int64_t ld, int64_t m0, int64_t mc, int64_t n0,
                    int64_t nc, int64_t columns, int64_t k0, int64_t kc, bool first) {
    rp__dots_call d = {.rows = (mc + RP__DOTS_ROWS - 1) / RP__DOTS_ROWS, .ldc = ld, .first = first};
    const ST *a = N(dots_rows)(g, memory, m0, mc, nc, k0, kc, &d.am);
    d.far = a != memory->rows;
    const bool lines = g->bn == 1 && !g->one && !g->box && !g->gather_b;
    d.one = g->one;
#if FLOATING
    if (g->box) {
        N(fill_box)(g->conv, g->box, g->b, k0, kc, memory->pb, memory->run);
        conv_box_places(g->box, g->conv, k0, kc, memory->places);
    } else if (g->gather_b) {
        g->gather_b(g->conv, g->b, n0, nc, k0, kc, memory->pb, memory->run);
    }
#endif
    /* Wide tiles of few rows take as many rows of b at a time as there is room for. */
    int64_t part = (nc + RP__DOTS_STRIP - 1) / RP__DOTS_STRIP * DOTS_PAIRS;
    part = lines ? DOTS_ROOM / part * RP__DOTS_STEP : kc;
    for (int64_t k = 0; k < kc || k == 0; k += part, d.first = false) {
        const int64_t depth = kc - k < part ? kc - k : part;
        d.steps = (depth + RP__DOTS_STEP - 1) / RP__DOTS_STEP;
        d.a = a + k;
        const int64_t pitch = d.steps * DOTS_PAIRS + RP__DOTS_STRIP; /* against sets */
        if (lines) N(dots_strips)(g, memory->pairs, pitch, n0, nc, k0 + k, depth);
        for (int64_t j = 0; j < columns; j += RP__DOTS_STRIP) {
            if (g->one)
                N(dots_column)(g, memory, k0, kc);
            else if (!lines)
                N(dots_strip)(g, memory, n0, nc, j, k0, kc);
            d.pairs = memory->pairs + (lines ? j / RP__DOTS_STRIP * pitch : 0);
            d.c = c + j;
            d.columns = columns - j > RP__DOTS_STRIP / 2 ? 2 : 1;
            rp__dots_run(&d);
        }
        if (depth == 0) break;
    }
}
#endif

/* Sums of a block of k, added to c[column][row], NR elements a column. */
static void N(across)(const N(job) * g, T *c, int64_t m0, int64_t mc, int64_t n0, int64_t nc, int64_t k0, int64_t kc,
                      bool first, T *panel, T *run) {
#if SAME
    int64_t rows = SLIM;
    while (rows < mc) rows *= 2;
    N(pack_lines)(NR, g->a + (m0 - g->a_first) * g->am + k0 * g->ak, g->am, g->ak, mc, kc, panel, 0, run);
    const A(micro_call) m = {.kc = kc,
                             .a = (const T *)(const void *)(g->b + n0 * g->bn + k0),
                             .am = g->bn,
                             .ak = 1,
                             .b = panel,
                             .bk = NR,
                             .c = c,
                             .ldc = NR,
                             .first = first};
    A(slim_rows)(&m, rows, nc, g->bn);
#else
    (void)g, (void)c, (void)m0, (void)mc, (void)n0, (void)nc, (void)k0, (void)kc, (void)first, (void)panel, (void)run;
#endif
}

static void N(tile)(const N(job) * g, N(scratch) *restrict memory, int64_t m0, int64_t mc, int64_t n0, int64_t nc) {
    T *const pb = memory->pb, *const pa = memory->pa, *kept = memory->kept, *const bias = memory->bias;
    const struct conv_box *box = g->box;
    bool stream = false, by_lines = false;
#ifdef LOAD_VECTOR
    stream = !g->dots && mc <= RP__GEMM_STREAM_TILE_M && g->bn == 1 && !g->gather_a && !g->gather_b && !g->makes_a &&
             !g->makes_b && nc >= 4 * L;
#endif
#ifdef BY_LINES
    by_lines = !g->dots && mc <= BY_LINES && nc >= L && g->bk == 1 && g->bn != 1 && !g->gather_a && !g->gather_b &&
               !g->makes_a && !g->makes_b && !box;
#endif
    stream = stream || by_lines;
    const int64_t columns = box ? box->columns : nc;
    /* Few rows, and columns of b as lines: these are read in place, as rows of the turned product, each a vector or two that are nearly full. */
    const bool across = SAME && !stream && mc >= SLIM && (mc <= L || (mc <= NR && 4 * mc > 3 * NR)) && nc >= NR &&
                        g->bk == 1 && g->bn != 1 && !g->gather_a && !g->gather_b && !g->makes_a && !g->makes_b && !box;
    const bool groups = g->k > GROUP,
               direct = SAME && g->on == 1 && !g->scatter && !groups && !g->rest && !box && !stream && !across;
    const int64_t full = box ? columns : columns / NR * NR; /* columns in whole panels */
    /* Where the last ones begin that are stored as they are; too few of them with some that the panel before has, where nothing is added to
       what is there. nc: there are none, or they go through `kept`. */
    int64_t slim = nc;
    if (direct && nc - full >= SLIM)
        slim = full;
    else if (direct && full && full < nc && g->k <= KC && g->bn == 1 && !g->gather_b && !g->makes_b)
        slim = nc - SLIM;
    const int64_t ld = direct ? NR : (columns + NR - 1) / NR * NR; /* of kept: the ragged panel, or all */
    const int64_t held = across ? nc * NR : mc * ld;
    const int64_t K = g->k;
    const bool bias_n = g->flags & RP__GEMM_BIAS_N, bias_m = g->flags & RP__GEMM_BIAS_M;
    const bool bias_last = groups || stream || across || g->dots;
    int64_t depth = KC;
#ifdef DOTS
    if (g->dots) depth = N(dots_depth)(g, mc, nc);
#endif
    if (by_lines) depth = GROUP;
    if (bias_n) {
        for (int64_t j = 0; j < nc; j++) bias[j] = LOAD(g->bias[(n0 + j) * g->bias_stride]);
        for (int64_t j = nc; j < (nc + NR - 1) / NR * NR; j++) bias[j] = 0;
    } else if (bias_m) {
        for (int64_t i = 0; i < mc; i++) bias[i] = LOAD(g->bias[(m0 + i) * g->bias_stride]);
    }
    int64_t k0 = 0;
    do { /* once for K = 0: the epilogue alone */
        int64_t kc = K - k0 < depth ? K - k0 : depth;
#ifdef DOTS
        if (g->dots && kc > DOTS_DEPTH) kc -= kc % RP__DOTS_STEP; /* read in place, without a copy's zeros behind it */
#endif
        const bool first = k0 % GROUP == 0, last = !bias_last && k0 + kc == K;
        T *const sums = groups ? memory->group : kept;
#ifdef DOTS
        if (g->dots) {
            N(dots)(g, memory, sums, ld, m0, mc, n0, nc, columns, k0, kc, first);
        } else
#endif
#ifdef BY_LINES
            if (by_lines && kc > 0) {
            N(lines)(g, pa, sums, ld, m0, mc, n0, nc, k0, kc);
        } else
#endif
#ifdef LOAD_VECTOR
            if (stream) {
            N(stream)(g, first ? sums : pb, ld, m0, mc, n0, nc, k0, kc);
            if (kc == 0) memset(sums, 0, (size_t)(mc * ld) * sizeof *sums);
            for (int64_t i = 0; !first && i < mc * ld; i++) sums[i] = sums[i] + pb[i];
        } else
#endif
            if (across) {
            N(across)(g, sums, m0, mc, n0, nc, k0, kc, first, pb, memory->run);
        } else {
            const int64_t step = NR * kc + PAD; /* of packed b, from panel to panel */
            /* b in place pays when few rows use it, or when all of it is near */
            bool b_here = false;
            const ST *b = NULL;
            if (box) {
#if FLOATING
                N(fill_box)(g->conv, box, g->b, k0, kc, pb, memory->run);
                conv_box_places(box, g->conv, k0, kc, memory->places);
#endif
            } else if (g->gather_b) {
                g->gather_b(g->conv, g->b, n0, nc, k0, kc, pb, memory->run);
            } else if (g->makes_b) {
                N(make_panels)(g, n0, nc, k0, kc, pb, step, memory->run);
            } else {
                b = g->b + k0 * g->bk + n0 * g->bn;
                b_here = SAME && g->bn == 1 && (full || slim < nc) &&
                         (mc <= 2 * MICRO_ROWS || kc * (g->bk > 0 ? g->bk : -g->bk) <= 8192);
                const int64_t panels = slim < nc && g->bn == 1 ? full : nc;
                if (!b_here)
                    N(pack_lines)(NR, b, g->bn, g->bk, panels, kc, pb, step, memory->run);
                else if (full < panels)
                    N(pack_lines)(NR, b + full, g->bn, g->bk, nc - full, kc, pb + full / NR * step, step, memory->run);
            }
            const ST *a = g->gather_a || g->makes_a ? NULL : g->a + (m0 - g->a_first) * g->am + k0 * g->ak;
            /* a in place when it is read once or twice, or when all of it is near: rows far apart fall into few cache sets */
            const bool near = g->ak == 1 && mc * (g->am > 0 ? g->am : -g->am) <= 16384;
            const bool a_here = SAME && !g->gather_a && !g->makes_a && (near || nc <= 2 * NR || mc == 1);
            bool a_rows = !g->gather_a && g->ak == 1; /* packed a: rows of KC + PAD, or blocks of MICRO_ROWS */
            const int64_t block = MICRO_ROWS * kc + PAD;
            if (g->gather_a) {
                a_rows = g->gather_a(g->conv, g->a, m0, mc, k0, kc, pa, memory->run);
            } else if (g->makes_a) {
                rp__gemm_rest_run(g->makes_a, pa, KC + PAD, m0, mc, k0, kc);
                a_rows = true;
            } else if (!a_here && a_rows) {
                for (int64_t i = 0; i < mc; i++) WIDEN(pa + i * (KC + PAD), a + i * g->am, kc);
            } else if (!a_here) {
                N(pack_lines)(MICRO_ROWS, a, g->am, g->ak, mc, kc, pa, block, memory->run);
            }
            A(micro_call) m = {.kc = kc, .first = first, .last = last, .places = box ? memory->places : NULL};
            for (int64_t j = 0; j < columns; j += NR) {
                const bool ragged = j >= full, last_ones = ragged && slim < nc;
                const int64_t at = last_ones ? slim : j;
                if (direct && (!ragged || last_ones)) {
                    m.c = (T *)(void *)(g->out + m0 * g->om + n0 + at);
                    m.ldc = g->om;
                } else {
                    m.c = sums + (direct ? 0 : j);
                    m.ldc = ld;
                }
                int64_t panel_step = step;
                if (box) {
                    m.b = pb + box->start + j;
                    m.bk = 0;
                    panel_step = NR;
                } else if ((b_here && !ragged) || (last_ones && b && g->bn == 1)) {
                    m.b = (const T *)(const void *)(b + at);
                    m.bk = g->bk;
                    panel_step = NR;
                } else {
                    m.b = pb + j / NR * step;
                    m.bk = NR;
                }
                m.bias_n = last && bias_n ? bias + at : NULL;
                m.bias_m = last && bias_m ? bias : NULL;
                if (a_here || a_rows) {
                    int64_t am = KC + PAD;
                    m.a = pa, m.ak = 1;
                    if (a_here) m.a = (const T *)(const void *)a, am = g->am, m.ak = g->ak;
                    m.am = am;
                    if (last_ones) {
                        A(slim_rows)(&m, nc - slim, mc, am);
                    } else if (mc == 1 && j + WIDE * NR <= full) {
                        A(micro_wide)(&m, panel_step);
                        j += (WIDE - 1) * NR;
                    } else {
                        A(micro_rows)(&m, mc, am);
                    }
                } else {
                    for (int64_t i = 0; i < mc; i += MICRO_ROWS) {
                        A(micro_call) part = m;
                        part.a = pa + i / MICRO_ROWS * block, part.am = 1, part.ak = MICRO_ROWS;
                        part.c += i * part.ldc;
                        if (part.bias_m) part.bias_m += i;
                        const int64_t rows = mc - i < MICRO_ROWS ? mc - i : MICRO_ROWS;
                        if (last_ones)
                            A(slim_rows)(&part, nc - slim, rows, 1);
                        else
                            A(micro_rows)(&part, rows, 1);
                    }
                }
            }
        }
        k0 += kc;
        if (!groups || (k0 % GROUP != 0 && k0 < K)) continue;
        const T *part = memory->group;
        for (int64_t i = 0; i < held; i++) kept[i] = k0 <= GROUP ? part[i] : kept[i] + part[i];
    } while (k0 < K);
    if (across) {
        A(turn_lines)(kept, NR, nc, mc, memory->group, ld);
        kept = memory->group;
    }
    const bool gaps = box && columns > nc, plain = !g->rest && !g->scatter && g->on == 1 && !bias_last;
    if (gaps && !plain) N(close_gaps)(box, kept, ld, mc, nc);
    for (int64_t i = 0; bias_last && (bias_n || bias_m) && i < mc; i++) {
        for (int64_t j = 0; j < nc; j++) kept[i * ld + j] = kept[i * ld + j] + bias[bias_n ? j : i];
    }
    if (g->rest) {
        rp__gemm_rest_run(g->rest, kept, ld, m0, mc, n0, nc);
    } else if (g->scatter) {
        g->scatter(g->conv, g->out, m0, mc, n0, nc, kept, ld);
    } else if (g->om == 1 && g->on != 1 && mc >= 8) {
        for (int64_t i = 0; i < mc; i += KC) { /* a line of memory->run holds no more */
            const int64_t rows = mc - i < KC ? mc - i : KC;
            for (int64_t j = 0; j < nc; j += 8) {
                const int64_t lines = nc - j < 8 ? nc - j : 8;
                A(turn_lines)(kept + i * ld + j, ld, rows, lines, memory->run, KC + PAD);
                for (int64_t l = 0; l < lines; l++)
                    NARROW(g->out + m0 + i + (n0 + j + l) * g->on, memory->run + l * (KC + PAD), rows);
            }
        }
    } else if (!direct || (full < nc && slim == nc)) {
        const int64_t from = direct ? full : 0, count = nc - from;
        for (int64_t i = 0; i < mc; i++) {
            const T *s = kept + i * ld;
            ST *o = g->out + (m0 + i) * g->om + (n0 + from) * g->on;
            if (gaps && plain) {
                for (int64_t j = 0, run; j < nc; j += run) {
                    const int64_t at = conv_box_column(box, j, &run);
                    if (run > nc - j) run = nc - j;
                    NARROW(o + j, s + at, run);
                }
            } else if (g->on == 1) {
                NARROW(o, s, count);
            } else {
                for (int64_t j = 0; j < count; j++) o[j * g->on] = STORE(s[j]);
            }
        }
    }
}

static void N(matmul)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    const int64_t *v = (const int64_t *)w;
    const int64_t M = v[RP__GEMM_M], NN = v[RP__GEMM_N], tm = v[RP__GEMM_TILE_M], tn = v[RP__GEMM_TILE_N];
    const int64_t tiles_n = (NN + tn - 1) / tn, tiles_m = (M + tm - 1) / tm, tiles = tiles_n * tiles_m;
    N(job)
    g = {.k = v[RP__GEMM_K],
         .om = v[RP__GEMM_OM],
         .on = v[RP__GEMM_ON],
         .am = v[RP__GEMM_AM],
         .ak = v[RP__GEMM_AK],
         .bk = v[RP__GEMM_BK],
         .bn = v[RP__GEMM_BN],
         .bias = (const ST *)(uintptr_t)w[RP__GEMM_BIAS],
         .bias_stride = v[RP__GEMM_BIAS_STRIDE],
         .flags = (unsigned)w[RP__GEMM_FLAGS],
         .near = (double)NN * (double)v[RP__GEMM_K] * sizeof(ST) <= NEAR_BYTES};
    rp__gemm_rest rest, makes[2];
    const bool makes_a = g.flags & RP__GEMM_MAKES_A, makes_b = g.flags & RP__GEMM_MAKES_B;
    if (g.flags & RP__GEMM_REST) {
        rp__gemm_rest_begin(&rest, kernel, 0, w + RP__GEMM_WORDS + 4 * v[RP__GEMM_BATCH], sizeof(T));
        g.rest = &rest;
    }
    const unsigned first = g.flags & RP__GEMM_TURNED ? 2 : 1; /* the part that makes a */
    if (makes_a) rp__gemm_rest_begin(&makes[0], kernel, first, w + w[RP__GEMM_A], sizeof(T)), g.makes_a = &makes[0];
    if (makes_b) rp__gemm_rest_begin(&makes[1], kernel, 3 - first, w + w[RP__GEMM_B], sizeof(T)), g.makes_b = &makes[1];
    N(scratch) *memory = rp__gemm_scratch_take();
#ifdef DOTS
    g.one = NN == 1;
    if ((g.dots = g.flags & RP__GEMM_DOTS)) rp__dots_begin(M < tm ? M : tm, g.one);
#endif
    for (int64_t item = begin; item < end; item++) {
        int64_t batch = tiles == 1 ? item : item / tiles, t = tiles == 1 ? 0 : item % tiles;
        int64_t oo = 0, oa = 0, ob = 0;
        for (int64_t d = v[RP__GEMM_BATCH] - 1; d >= 0; d--) {
            const int64_t *dim = v + RP__GEMM_WORDS + 4 * d;
            const int64_t i = d ? batch % dim[0] : batch;
            if (d) batch /= dim[0];
            if (g.rest) rest.fixed[d] = i;
            if (makes_a) makes[0].fixed[d] = i;
            if (makes_b) makes[1].fixed[d] = i;
            oo += i * dim[1];
            oa += i * dim[2];
            ob += i * dim[3];
        }
        g.out = (ST *)(uintptr_t)w[RP__GEMM_OUT] + oo;
        g.a = makes_a ? NULL : (const ST *)(uintptr_t)w[RP__GEMM_A] + oa;
        g.b = makes_b ? NULL : (const ST *)(uintptr_t)w[RP__GEMM_B] + ob;
        const int64_t m0 = t / tiles_n * tm, n0 = t % tiles_n * tn;
        N(tile)(&g, memory, m0, M - m0 < tm ? M - m0 : tm, n0, NN - n0 < tn ? NN - n0 : tn);
    }
#ifdef DOTS
    if (g.dots) rp__dots_end();
#endif
    rp__gemm_scratch_give(memory);
}

#if FLOATING
/* Lines [l0, l0 + count) times k [k0, k0 + kc) in panels of W: what lies in bounds, zero elsewhere. Lines that are neighbours
   along the innermost level form runs with one step. */
RP__VEC_FN void N(gather)(const int W, const struct conv_gather *g, const ST *src, int64_t l0, int64_t count,
                          int64_t k0, int64_t kc, T *dst) {
    struct conv_at ks[KC];
    struct conv_cursor at;
    if (kc == 0) return; /* no tap meets this phase */
    conv_start(&at, &g->k, k0);
    for (int64_t k = 0; k < kc; k++, conv_next(&at, &g->k)) ks[k] = at.here;
    const int64_t step = g->line.offset[3], move = g->line.coordinate[3], bound = g->bound[2];
    conv_start(&at, &g->line, l0);
    for (int64_t p = 0; p < count; p += W, dst += W * kc + PAD) {
        const int64_t w = count - p < W ? count - p : W;
        if (w < W) memset(dst, 0, (size_t)(W * kc) * sizeof *dst);
        for (int64_t j = 0; j < w;) {
            const int64_t left = g->line.extent[3] - at.index[3], run = left < w - j ? left : w - j;
            for (int64_t k = 0; k < kc; k++) {
                const int64_t x = at.here.c[2] + ks[k].c[2], y = at.here.c[1] + ks[k].c[1],
                              z = at.here.c[0] + ks[k].c[0];
                int64_t low = 0, high = run;
                if (z < 0 || z >= g->bound[0] || y < 0 || y >= g->bound[1]) {
                    high = 0;
                } else if (move == 0) {
                    if (x < 0 || x >= bound) high = 0;
                } else if (x < 0 || x + (run - 1) * move >= bound) {
                    low = x < 0 ? (-x + move - 1) / move : 0;
                    high = bound > x ? (bound - x + move - 1) / move : 0;
                    high = high < run ? high : run;
                    low = low < high ? low : high;
                }
                const ST *s = src + at.here.offset + ks[k].offset;
                T *d = dst + k * W + j;
                for (int64_t i = 0; i < low; i++) d[i] = 0;
                if (step == 1) {
                    if (high > low) WIDEN(d + low, s + low, high - low);
                } else {
                    for (int64_t i = low; i < high; i++) d[i] = LOAD(s[i * step]);
                }
                for (int64_t i = high; i < run; i++) d[i] = 0;
            }
            j += run;
            conv_advance(&at, &g->line, run);
        }
    }
}
/* The same where k has the longer innermost level, or memory lies along it (gradients of weights): lines of kc elements, `ld` apart. */
static void N(gather_lines)(const struct conv_gather *g, const ST *src, struct conv_cursor *line, int64_t count,
                            int64_t k0, int64_t kc, T *dst, int64_t ld) {
    const int64_t step = g->k.offset[3], move = g->k.coordinate[3], bound = g->bound[2];
    struct conv_cursor at, begin;
    conv_start(&begin, &g->k, k0);
    for (int64_t j = 0; j < count; j++, dst += ld, conv_next(line, &g->line)) {
        at = begin;
        for (int64_t k = 0; k < kc;) {
            const int64_t left = g->k.extent[3] - at.index[3], run = left < kc - k ? left : kc - k;
            const int64_t x = line->here.c[2] + at.here.c[2], y = line->here.c[1] + at.here.c[1];
            const int64_t z = line->here.c[0] + at.here.c[0];
            int64_t low = 0, high = run;
            if (z < 0 || z >= g->bound[0] || y < 0 || y >= g->bound[1]) {
                high = 0;
            } else if (move > 0) {
                if (x < 0) low = (-x + move - 1) / move;
                if (x + (run - 1) * move >= bound) high = bound > x ? (bound - x + move - 1) / move : 0;
                low = low < high ? low : high;
            } else if (x < 0 || x >= bound) {
                high = 0;
            }
            const ST *s = src + line->here.offset + at.here.offset;
            T *d = dst + k;
            for (int64_t i = 0; i < low; i++) d[i] = 0;
            if (step == 1) {
                if (high > low) WIDEN(d + low, s + low, high - low);
            } else {
                for (int64_t i = low; i < high; i++) d[i] = LOAD(s[i * step]);
            }
            for (int64_t i = high < low ? low : high; i < run; i++) d[i] = 0;
            k += run;
            conv_advance(&at, &g->k, run);
        }
    }
}
static bool N(runs_along_k)(const struct conv_gather *g) {
    return (g->k.extent[3] > g->line.extent[3] || g->k.offset[3] == 1) && g->k.coordinate[3] >= 0;
}
static bool N(gather_a)(const struct conv_plan *c, const ST *src, int64_t l0, int64_t count, int64_t k0, int64_t kc,
                        T *dst, T *run) {
    (void)run;
    if (c->a.k.extent[3] < 16 && kc) { /* weights: nothing is outside, and runs are short */
        struct conv_cursor at;
        int64_t places[KC];
        conv_start(&at, &c->a.k, k0);
        for (int64_t k = 0; k < kc; k++, conv_next(&at, &c->a.k)) places[k] = at.here.offset;
        conv_start(&at, &c->a.line, l0);
        for (int64_t i = 0; i < count; i++, dst += KC + PAD, conv_next(&at, &c->a.line)) {
            const ST *s = src + at.here.offset;
            for (int64_t k = 0; k < kc; k++) dst[k] = LOAD(s[places[k]]);
        }
        return true;
    }
    if (!N(runs_along_k)(&c->a)) {
        N(gather)(MICRO_ROWS, &c->a, src, l0, count, k0, kc, dst);
        return false;
    }
    struct conv_cursor line;
    conv_start(&line, &c->a.line, l0);
    if (kc) N(gather_lines)(&c->a, src, &line, count, k0, kc, dst, KC + PAD);
    return true;
}
/* Rows of a weight in the order of k, which other items read as well: true if memory->weight has room for them. */
static bool N(order_weight)(const struct conv_plan *c, N(scratch) * memory, const ST *src, int64_t m0, int64_t mc,
                            int64_t pitch) {
    if (mc * pitch > (int64_t)(WEIGHT_BYTES / sizeof(ST))) return false;
    struct conv_cursor k, line;
    conv_start(&k, &c->a.k, 0);
    for (int64_t k0 = 0; k0 < c->k; k0 += KC) {
        const int64_t kc = c->k - k0 < KC ? c->k - k0 : KC;
        for (int64_t i = 0; i < kc; i++, conv_next(&k, &c->a.k)) memory->places[i] = k.here.offset;
        conv_start(&line, &c->a.line, m0);
        for (int64_t i = 0; i < mc; i++, conv_next(&line, &c->a.line)) {
            const ST *s = src + line.here.offset;
            ST *d = memory->weight + i * pitch + k0;
            for (int64_t q = 0; q < kc; q++) d[q] = s[memory->places[q]];
        }
    }
    return true;
}
static void N(gather_b)(const struct conv_plan *c, const ST *src, int64_t l0, int64_t count, int64_t k0, int64_t kc,
                        T *dst, T *run) {
    if (!N(runs_along_k)(&c->b)) {
        N(gather)(NR, &c->b, src, l0, count, k0, kc, dst);
        return;
    }
    struct conv_cursor line;
    conv_start(&line, &c->b.line, l0);
    for (int64_t p = 0; p < count && kc; p += NR, dst += NR * kc + PAD) {
        const int64_t w = count - p < NR ? count - p : NR;
        if (w < NR) memset(dst, 0, (size_t)(NR * kc) * sizeof *dst);
        for (int64_t j = 0; j < w; j += 8) {
            const int64_t lines = w - j < 8 ? w - j : 8;
            N(gather_lines)(&c->b, src, &line, lines, k0, kc, run, KC + PAD);
            A(pack_turned)(NR, NULL, run, KC + PAD, lines, kc, dst + j);
        }
    }
}
static void N(scatter)(const struct conv_plan *c, ST *out, int64_t m0, int64_t mc, int64_t n0, int64_t nc, const T *src,
                       int64_t ld) {
    struct conv_cursor at;
    const int64_t step = c->out.offset[3];
    conv_start(&at, &c->out, n0);
    for (int64_t j = 0, run; j < nc; j += run, conv_advance(&at, &c->out, run)) {
        const int64_t left = c->out.extent[3] - at.index[3];
        run = left < nc - j ? left : nc - j;
        for (int64_t i = 0; i < mc; i++) {
            ST *const o = out + at.here.offset + (m0 + i) * c->out_m;
            const T *const s = src + i * ld + j;
            for (int64_t q = 0; q < run; q++) o[q * step] = STORE(s[q]);
        }
    }
}
#include "kernel/cpu/isa/gemm_points.h"
RP__VEC_FN void N(conv)(const rp__conv_kind kind, const rp__kernel *kernel, const uint64_t *w, int64_t begin,
                        int64_t end) {
    const int64_t *v = (const int64_t *)w;
    const bool follows = w[RP__CONV_FLAGS] & RP__GEMM_REST;
    rp__gemm_rest rest;
    if (follows) rp__gemm_rest_begin(&rest, kernel, 0, w + RP__CONV_WORDS, sizeof(T));
    const ST *x = (const ST *)(uintptr_t)w[RP__CONV_X], *wt = (const ST *)(uintptr_t)w[RP__CONV_W];
    const ST *y = (const ST *)(uintptr_t)w[RP__CONV_Y];
    N(scratch) *memory = rp__gemm_scratch_take();
    struct conv_gather ordered; /* what memory->weight holds, of rows from ordered_m on; negative: nothing */
    int64_t ordered_m = -1, ordered_mc = 0;
    bool ordered_panels = false, dots = false;
#ifdef DOTS
    if ((dots = w[RP__CONV_FLAGS] & RP__GEMM_DOTS)) rp__dots_begin(RP__DOTS_ROWS, false);
#endif
    for (int64_t item = begin; item < end; item++) {
        struct conv_plan c;
        int64_t m0, n0;
        if (!conv_plan_of(kind, v, item, &c, &m0, &n0)) continue;
        N(job)
        g = {.k = c.k,
             .a = kind == RP__CONV_WEIGHT ? y : wt,
             .b = kind == RP__CONV_INPUT ? y : x,
             .out = (ST *)(uintptr_t)w[kind == RP__CONV_FORWARD ? RP__CONV_Y
                                       : kind == RP__CONV_INPUT ? RP__CONV_X
                                                                : RP__CONV_W],
             .om = c.out_m,
             .conv = &c,
             .dots = dots,
             .flags = (unsigned)w[RP__CONV_FLAGS],
             .bias = (const ST *)(uintptr_t)w[RP__CONV_BIAS],
             .bias_stride = v[RP__CONV_BIAS_STRIDE]};
        const int64_t tm = v[RP__CONV_TILE_M], tn = v[RP__CONV_TILE_N];
        const int64_t mc = c.m - m0 < tm ? c.m - m0 : tm, pitch = (c.k + 63) / 64 * 64 + PAD,
                      stop = c.n - n0 < tn ? c.n : n0 + tn;
        int64_t nc = stop - n0;
        if (c.bias_at) g.bias += c.bias_at * g.bias_stride;
        g.out += c.out.start.offset;
        c.out.start.offset = 0;
        if (follows) conv_rest(&rest, &c, kind), g.rest = &rest;
        if (!conv_flat_axis(&c.out, &g.on)) g.scatter = N(scatter);
        const bool same = ordered_m == m0 && ordered_mc == mc && !memcmp(&ordered.line, &c.a.line, sizeof c.a.line) &&
                          !memcmp(&ordered.k, &c.a.k, sizeof c.a.k);
        struct N(points) points;
        if (kind != RP__CONV_WEIGHT && g.flags & RP__CONV_BY_POINTS && N(points_of)(&c, n0, nc, &points) &&
            (mc + NR - 1) / NR * NR * c.k <= (int64_t)(WEIGHT_BYTES / sizeof(T))) {
            T *const panels = (T *)(void *)memory->weight;
            if (!same || !ordered_panels) N(points_weights)(&c, memory, wt, m0, mc, panels);
            ordered = c.a, ordered_m = m0, ordered_mc = mc, ordered_panels = true;
            N(points_run)(&g, &c, &points, memory, panels, m0, mc, n0, nc);
            continue;
        }
        if (conv_flat(&c.a.line, &c.a.k, &g.am, &g.ak) && !c.a.bounded)
            g.a += c.a.line.start.offset + c.a.k.start.offset;
        else
            g.gather_a = N(gather_a);
        if (conv_flat(&c.b.line, &c.b.k, &g.bn, &g.bk) && !c.b.bounded)
            g.b += c.b.line.start.offset + c.b.k.start.offset;
        else
            g.gather_b = N(gather_b);
        if (g.gather_a && kind != RP__CONV_WEIGHT && c.k > 0) {
            const bool here = same && !ordered_panels;
            if (!here) ordered_m = -1;
            if (here || N(order_weight)(&c, memory, g.a, m0, mc, pitch)) {
                ordered = c.a, ordered_m = m0, ordered_mc = mc, ordered_panels = false;
                g.gather_a = NULL, g.a = memory->weight, g.a_first = m0, g.am = pitch, g.ak = 1;
            }
        }
        if (g.gather_b && kind != RP__CONV_WEIGHT && c.k > 0 &&
            conv_box_of(&memory->box, &c, n0, nc, KC, TM * ROOM / mc, KC * TN))
            g.box = &memory->box;
        else if (nc > TN)
            nc = TN; /* tiles of boxes alone are larger */
        for (; n0 < stop; n0 += nc) N(tile)(&g, memory, m0, mc, n0, stop - n0 < nc ? stop - n0 : nc);
    }
#ifdef DOTS
    if (dots) rp__dots_end();
#endif
    rp__gemm_scratch_give(memory);
}
#include "kernel/cpu/isa/gemm_lanes.h"
#include "kernel/cpu/isa/gemm_places.h"
#include "kernel/cpu/isa/gemm_taps.h"
static void N(conv_forward)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    if (w[RP__CONV_FLAGS] & RP__CONV_BY_LANES)
        N(conv_places)(RP__CONV_FORWARD, kernel, w, begin, end);
    else
        N(conv)(RP__CONV_FORWARD, kernel, w, begin, end);
}
static void N(conv_input)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    if (w[RP__CONV_FLAGS] & RP__CONV_BY_LANES)
        N(conv_places)(RP__CONV_INPUT, kernel, w, begin, end);
    else
        N(conv)(RP__CONV_INPUT, kernel, w, begin, end);
}
static void N(conv_weight)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    if (w[RP__CONV_FLAGS] & RP__CONV_BY_LANES)
        N(conv_lanes)(kernel, w, begin, end);
    else if (w[RP__CONV_FLAGS] & RP__CONV_BY_TAPS)
        N(conv_taps)(kernel, w, begin, end);
    else
        N(conv)(RP__CONV_WEIGHT, kernel, w, begin, end);
}
#endif

#undef A
#undef N
#undef NAME1
#undef NAME2
#undef KC
#undef GROUP
#undef NR
#undef PAD
#undef TM
#undef TN
#undef ROOM
#undef LOAD_VECTOR
#undef JOINED
#undef BY_LINES
#undef PAIRED
#undef PIECE
#undef DOTS
#undef V
#undef S
#undef ST
#undef ACC
#undef T
#undef L
#undef SAME
#undef LOAD
#undef STORE
#undef WIDEN
#undef NARROW
#undef GEMM_BYTES
#undef FLOATING
