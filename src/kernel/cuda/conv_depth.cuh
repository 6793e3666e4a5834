/* Depthwise convolutions on CUDA: a group is one channel in and one out, 1 or 2 spatial dims (of one, RP_KH is 1), any strides. No product
 * of matrices: what bounds them is memory, and instructions. Window, step and dilation are literals, so that all loops unroll.
 *   RP_KIND 0, 1  forward, input gradient: a thread makes RP_P by RP_X results, of RP_V channels, and reads each place that they share once,
 *                 a row after the other. A result is one chain of fma through the window, as conv.cuh's of so short an inner index.
 *   RP_KIND 2     weight gradient: the images' pieces of RP_P rows by RP_X places are cut into shares, a block each; of a channel RP_SLOTS threads take turns
 *                 in a share, each with its sums of the whole window in registers, which are then added up in rising order. So, by and large, does conv_sum.cuh
 *                 with the sums of several shares (RP_PARTS), which stay in memory.
 * Neighbours in a warp are neighbours along a row, or, RP_LAST, RP_LANES of them along channels, of which each thread has a vector of RP_V. The
 * bits depend on neither.
 *
 * Macros: RP_NAME, RP_T, RP_ACC, RP_LOAD, RP_STORE, RP_MULADD as in matmul.cuh; RP_KIND, RP_SPATIAL, RP_BIAS, RP_INDEX, RP_REST as in
 * conv.cuh; RP_OUT_WIDE: what follows takes RP_V sums at once; RP_KH, RP_KW, RP_SY, RP_SX, RP_DY, RP_DX: window, step, dilation; RP_P, RP_X, RP_V, RP_LAST, RP_LANES, RP_PARTS. Words as in conv.cuh; of
 * RP_PARTS word 3 is the memory of the shares' sums, and the last one their number. */
#define RP_S RP_SPATIAL
#define RP_W_SPACE 8
#define RP_W_STRIDES (8 + 6 * RP_S)
typedef struct {
    rp_u64 w[8 + 6 * RP_S + 3 * (2 + RP_S) + 2 + RP_REST];
} RP_WORDS;
/* Of rows and places in them; one spatial dim is one row. */
#define RP_SIZE_Y(field) (RP_S == 2 ? (RP_INDEX)p.w[RP_W_SPACE + (field)] : 1)
#define RP_SIZE_X(field) ((RP_INDEX)p.w[RP_W_SPACE + 6 * (RP_S - 1) + (field)])
#define RP_STRIDE(tensor, d) ((RP_INDEX)p.w[RP_W_STRIDES + (tensor) * (2 + RP_S) + (d)])
#define RP_STRIDE_Y(tensor) (RP_S == 2 ? RP_STRIDE(tensor, 2) : 0)
#define RP_STRIDE_X(tensor) RP_STRIDE(tensor, 1 + RP_S)
enum { RP_IN, RP_OUT, RP_KERNEL, RP_STEP, RP_PAD, RP_DIL };
#define RP_TAPS (RP_KH * RP_KW)
#define RP_SLOTS 32
/* Of the operand that is read, those that RP_P rows and RP_X places of results meet. */
#define RP_ROWS ((RP_P - 1) * RP_SY + (RP_KH - 1) * RP_DY + 1)
#define RP_COLUMNS ((RP_X - 1) * RP_SX + (RP_KW - 1) * RP_DX + 1)

typedef struct __align__(RP_V * sizeof(RP_T)) {
    RP_T e[RP_V];
}
rp_channels;

RP_FN void rp_read(const RP_T *from, int ok, RP_ACC *v) {
    _Pragma("unroll") for (int c = 0; c < RP_V; c++) v[c] = 0;
    if (ok) {
        const rp_channels all = *(const rp_channels *)from;
        _Pragma("unroll") for (int c = 0; c < RP_V; c++) v[c] = RP_LOAD(all.e[c]);
    }
}

/* What is done with result x of channel g: in image n (kind 2: no), at place `at`. */
RP_FN void rp_finish(const RP_WORDS *q, RP_ACC x, RP_INDEX g, RP_INDEX n, RP_INDEX ay, RP_INDEX ax) {
    const RP_WORDS p = *q;
#if RP_REST
    const RP_INDEX m = 0, at[2] = {RP_S == 2 ? ay : ax, ax};
    (void)m, (void)at;
    RP_FOLLOW
#else
    const RP_INDEX o = (RP_KIND == 2 ? g * RP_STRIDE(2, 0) : n * RP_STRIDE(RP_KIND, 0) + g * RP_STRIDE(RP_KIND, 1)) +
                       ay * RP_STRIDE_Y(RP_KIND) + ax * RP_STRIDE_X(RP_KIND);
    RP_T *to = (RP_T *)p.w[RP_KIND];
#if RP_BIAS
    x = x + RP_LOAD(((const RP_T *)p.w[3])[g * (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]);
#endif
    to[o] = RP_STORE(x);
#endif
}

#if RP_OUT_WIDE
RP_WIDE_TYPES
/* What follows the sums of a thread's channels: what it reads of them alone, and of one place; what it makes of them. */
RP_FN void rp_line_load(const RP_WORDS *q, rp_line *held, RP_INDEX g) {
    const RP_WORDS p = *q;
    const RP_INDEX m = 0, n = 0, at[2] = {0};
    (void)p, (void)held, (void)g, (void)m, (void)n, (void)at;
    RP_WIDE_LINE
}
RP_FN void rp_held_load(const RP_WORDS *q, rp_held *held, RP_INDEX g, RP_INDEX n, RP_INDEX ay, RP_INDEX ax) {
    const RP_WORDS p = *q;
    const RP_INDEX m = 0, at[2] = {RP_S == 2 ? ay : ax, ax};
    (void)p, (void)held, (void)m, (void)at;
    RP_WIDE_HELD
}
RP_FN void rp_finish_wide(const RP_WORDS *q, const RP_ACC *sum, const rp_held *held, const rp_line *line, RP_INDEX g,
                          RP_INDEX n, RP_INDEX ay, RP_INDEX ax) {
    const RP_WORDS p = *q;
    const RP_INDEX m = 0, at[2] = {RP_S == 2 ? ay : ax, ax};
    (void)held, (void)line, (void)m, (void)at;
    RP_WIDE_REST
}
#endif

#if RP_KIND != 2
typedef struct __align__(RP_V * sizeof(RP_ACC)) {
    RP_ACC e[RP_V];
}
rp_weights;
/* A thread's weights: in registers where they are few. */
#define RP_KEEP (!RP_LAST || RP_TAPS <= 9)
#endif
#if RP_KIND == 2
/* Adds what a piece of the gradient, from g on, and the places that it meets, from `from` on, give to the sums. all: both are whole; else of the
 * gradient there are `high` rows of `wide` places, and the places are from (top, left) on among rows x width. What is not there has no product. */
RP_FN void rp_add_piece(RP_ACC (*sum)[RP_V], const RP_T *g, const RP_T *from, RP_INDEX g_row, RP_INDEX g_column,
                        RP_INDEX row, RP_INDEX column, int all, RP_INDEX high, RP_INDEX wide, RP_INDEX top,
                        RP_INDEX left, RP_INDEX rows, RP_INDEX width) {
    RP_ACC grad[RP_P][RP_X][RP_V];
    rp_u32 made = 0, there = 0; /* which results and columns there are, a bit each */
    RP_INDEX along[RP_COLUMNS];
    _Pragma("unroll") for (int j = 0; j < RP_P; j++) _Pragma("unroll") for (int u = 0; u < RP_X; u++) {
        const int ok = all || (j < high && u < wide);
        made |= (rp_u32)ok << (j * RP_X + u);
        rp_read(g + (j * g_row + u * g_column), ok, grad[j][u]);
    }
    _Pragma("unroll") for (int k = 0; k < RP_COLUMNS; k++) {
        along[k] = k * column;
        there |= (rp_u32)(all || (left + k >= 0 && left + k < width)) << k;
    }
    _Pragma("unroll") for (int r = 0; r < RP_ROWS; r++) {
        const RP_INDEX down = r * row;
        const rp_u32 inside = all || (top + r >= 0 && top + r < rows) ? there : 0;
        RP_ACC v[RP_COLUMNS][RP_V];
        _Pragma("unroll") for (int k = 0; k < RP_COLUMNS; k++)
            rp_read(from + (down + along[k]), all || (inside >> k & 1), v[k]);
        _Pragma("unroll") for (int j = 0; j < RP_P; j++) {
            const int below = r - j * RP_SY;
            if (below < 0 || below % RP_DY != 0 || below / RP_DY >= RP_KH) continue;
            _Pragma("unroll") for (int u = 0; u < RP_X; u++) if (all || (made >> (j * RP_X + u) & 1))
                _Pragma("unroll") for (int k = 0; k < RP_KW; k++) _Pragma("unroll") for (int e = 0; e < RP_V; e++) {
                RP_ACC *s = &sum[below / RP_DY * RP_KW + k][e];
                *s = RP_MULADD(grad[j][u][e], v[u * RP_SX + k * RP_DX][e], *s);
            }
        }
    }
}
#endif
#define RP_SOURCE (RP_KIND == 0 ? 1 : 0)
/* Where steps are wider than a place, which leaves few results a thread, loads of so many rows are under way before the first one is used: as many as
 * registers hold beside few weights. Elsewhere blocks hide each other's loads. */
#define RP_EARLY (RP_SX > 1 && RP_TAPS <= 9)
#define RP_AHEAD_ROWS (160 / (RP_COLUMNS * RP_V * (int)sizeof(RP_T)))
#define RP_AHEAD (RP_AHEAD_ROWS < 1 ? 1 : RP_AHEAD_ROWS < RP_ROWS ? RP_AHEAD_ROWS : RP_ROWS)
/* Row s of those that a thread meets: upwards is down the window of an input gradient. */
#define RP_ROW_AT(s) (RP_KIND == 0 ? (s) : RP_ROWS - 1 - (s))
/* Blocks of a multiprocessor: as many as the registers allow that the sums, weights and a row of places take. */
#define RP_RESIDENT (RP_KIND == 2 ? (RP_TAPS > 9 ? 1 : 2) : RP_TAPS <= 9 && RP_SX == 1 && sizeof(RP_T) == 2 ? 3 : 2)
extern "C" __global__ void __launch_bounds__(256, RP_RESIDENT) RP_NAME(const RP_WORDS p) {
#if RP_KIND != 2
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[7];
    const RP_INDEX rows = RP_SIZE_Y(RP_KIND == 0 ? RP_OUT : RP_IN), width = RP_SIZE_X(RP_KIND == 0 ? RP_OUT : RP_IN),
                   from_rows = RP_SIZE_Y(RP_KIND == 0 ? RP_IN : RP_OUT),
                   from_width = RP_SIZE_X(RP_KIND == 0 ? RP_IN : RP_OUT);
    const RP_INDEX strips = (rows + RP_P - 1) / RP_P, across = (width + RP_X - 1) / RP_X,
                   pad_y = RP_S == 2 ? RP_SIZE_Y(RP_PAD) : 0, pad_x = RP_SIZE_X(RP_PAD);
    const int t = (int)threadIdx.x;
#if RP_LAST
    __shared__ rp_weights shared[RP_TAPS * RP_LANES];
    const RP_INDEX spans = (C + RP_LANES * RP_V - 1) / (RP_LANES * RP_V);
    const RP_INDEX c0 = (RP_INDEX)blockIdx.x % spans * (RP_LANES * RP_V), c = c0 + t % RP_LANES * RP_V;
    RP_INDEX i = (RP_INDEX)blockIdx.x / spans * (256 / RP_LANES) + t / RP_LANES;
    const RP_INDEX ax = i % across * RP_X;
    i /= across;
    const RP_INDEX y0 = i % strips * RP_P, n = i / strips;
#else
    RP_INDEX i = (RP_INDEX)blockIdx.x * 256 + t;
    const RP_INDEX ax = i % across * RP_X;
    i /= across;
    const RP_INDEX y0 = i % strips * RP_P;
    i /= strips;
    const RP_INDEX c = i % C, n = i / C;
#endif
    rp_launch_dependents();
    rp_grid_wait();
    const RP_T *w = (const RP_T *)p.w[2];
#if RP_LAST
    for (int e = t; e < RP_TAPS * RP_LANES * RP_V; e += 256) {
        const int lane = e % (RP_LANES * RP_V), tap = e / (RP_LANES * RP_V);
        RP_ACC one = 0;
        if (c0 + lane < C)
            one =
                RP_LOAD(w[(c0 + lane) * RP_STRIDE(2, 0) + tap / RP_KW * RP_STRIDE_Y(2) + tap % RP_KW * RP_STRIDE_X(2)]);
        shared[tap * RP_LANES + lane / RP_V].e[lane % RP_V] = one;
    }
    rp_barrier();
#endif
    if (n >= batch || c >= C) return;
    const RP_T *from = (const RP_T *)p.w[RP_SOURCE] + (n * RP_STRIDE(RP_SOURCE, 0) + c * RP_STRIDE(RP_SOURCE, 1));
    const RP_INDEX row = RP_STRIDE_Y(RP_SOURCE), column = RP_STRIDE_X(RP_SOURCE);
#if RP_KEEP
    RP_ACC weight[RP_TAPS][RP_V];
    _Pragma("unroll") for (int k = 0; k < RP_TAPS; k++) {
#if RP_LAST
        const rp_weights all = shared[k * RP_LANES + t % RP_LANES];
        _Pragma("unroll") for (int e = 0; e < RP_V; e++) weight[k][e] = all.e[e];
#else
        weight[k][0] = RP_LOAD(w[c * RP_STRIDE(2, 0) + k / RP_KW * RP_STRIDE_Y(2) + k % RP_KW * RP_STRIDE_X(2)]);
#endif
    }
#define RP_WEIGHTS(k, of) const RP_ACC *const of = weight[k];
#else
#define RP_WEIGHTS(k, of)                                                                                              \
    const rp_weights of##_all = shared[(k)*RP_LANES + t % RP_LANES];                                                   \
    const RP_ACC *const of = of##_all.e;
#endif
    RP_ACC sum[RP_P][RP_X][RP_V];
    _Pragma("unroll") for (int j = 0; j < RP_P; j++) _Pragma("unroll") for (int u = 0; u < RP_X; u++)
        _Pragma("unroll") for (int e = 0; e < RP_V; e++) sum[j][u][e] = 0;
#if RP_KIND == 0 || (RP_SY == 1 && RP_SX == 1)
#if RP_KIND == 0
    const RP_INDEX top = y0 * RP_SY - pad_y, left = ax * RP_SX - pad_x;
#else
    const RP_INDEX top = y0 + pad_y - (RP_KH - 1) * RP_DY, left = ax + pad_x - (RP_KW - 1) * RP_DX;
#endif
#if RP_EARLY
    rp_u32 columns_there = 0; /* a bit each */
    _Pragma("unroll") for (int k = 0; k < RP_COLUMNS; k++) columns_there |=
        (rp_u32)(left + k >= 0 && left + k < from_width) << k;
    const RP_T *const corner = from + (top * row + left * column);
    rp_channels raw[RP_ROWS][RP_COLUMNS];
#define RP_FETCH(s)                                                                                                    \
    {                                                                                                                  \
        const rp_u32 there = top + RP_ROW_AT(s) >= 0 && top + RP_ROW_AT(s) < from_rows ? columns_there : 0;            \
        _Pragma("unroll") for (int k = 0; k < RP_COLUMNS; k++) {                                                       \
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) raw[s][k].e[e] = 0;                                       \
            if (there >> k & 1) raw[s][k] = *(const rp_channels *)(corner + (RP_ROW_AT(s) * row + k * column));        \
        }                                                                                                              \
    }
    _Pragma("unroll") for (int s = 0; s < RP_AHEAD; s++){RP_FETCH(s)}
#endif
    _Pragma("unroll") for (int s = 0; s < RP_ROWS; s++) {
        const int r = RP_ROW_AT(s);
        RP_ACC v[RP_COLUMNS][RP_V];
#if RP_EARLY
        if (s + RP_AHEAD < RP_ROWS) RP_FETCH(s + RP_AHEAD)
        _Pragma("unroll") for (int k = 0; k < RP_COLUMNS; k++) _Pragma("unroll") for (int e = 0; e < RP_V; e++)
            v[k][e] = RP_LOAD(raw[s][k].e[e]);
#else
        const RP_INDEX y = top + r;
        const int there = y >= 0 && y < from_rows;
        _Pragma("unroll") for (int k = 0; k < RP_COLUMNS; k++) {
            const RP_INDEX x = left + k;
            rp_read(from + (y * row + x * column), there && x >= 0 && x < from_width, v[k]);
        }
#endif
        _Pragma("unroll") for (int j = 0; j < RP_P; j++) {
            const int down = RP_KIND == 0 ? r - j * RP_SY : (RP_KH - 1) * RP_DY + j - r;
            if (down < 0 || down % RP_DY != 0 || down / RP_DY >= RP_KH) continue;
            _Pragma("unroll") for (int k = 0; k < RP_KW; k++) {
                RP_WEIGHTS(down / RP_DY * RP_KW + k, of)
                _Pragma("unroll") for (int u = 0; u < RP_X; u++) _Pragma("unroll") for (int e = 0; e < RP_V; e++)
                    sum[j][u][e] = RP_MULADD(
                        of[e], v[RP_KIND == 0 ? u * RP_SX + k * RP_DX : u + (RP_KW - 1 - k) * RP_DX][e], sum[j][u][e]);
            }
        }
    }
#else
    _Pragma("unroll") for (int j = 0; j < RP_P; j++) _Pragma("unroll") for (int r = 0; r < RP_KH; r++) {
        const RP_INDEX down = y0 + j + pad_y - r * RP_DY, y = down / RP_SY;
        const int there = down >= 0 && down % RP_SY == 0 && y < from_rows;
        _Pragma("unroll") for (int k = 0; k < RP_KW; k++) {
            const RP_INDEX along = ax + pad_x - k * RP_DX, x = along / RP_SX;
            RP_ACC v[RP_V];
            RP_WEIGHTS(r * RP_KW + k, of)
            rp_read(from + (y * row + x * column), there && along >= 0 && along % RP_SX == 0 && x < from_width, v);
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) sum[j][0][e] = RP_MULADD(of[e], v[e], sum[j][0][e]);
        }
    }
#endif
#if RP_OUT_WIDE
    rp_line line;
    rp_line_load(&p, &line, c);
#endif
    _Pragma("unroll") for (int j = 0; j < RP_P; j++) {
        if (y0 + j >= rows) break;
#if RP_OUT_WIDE
        rp_held held[RP_X];
        _Pragma("unroll") for (int u = 0; u < RP_X; u++) if (ax + u < width)
            rp_held_load(&p, &held[u], c, n, y0 + j, ax + u);
#endif
        _Pragma("unroll") for (int u = 0; u < RP_X; u++) {
            if (ax + u >= width) break;
#if RP_OUT_WIDE
            rp_finish_wide(&p, sum[j][u], &held[u], &line, c, n, y0 + j, ax + u);
#elif !RP_REST && RP_V > 1
            rp_channels all;
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) {
#if RP_BIAS
                sum[j][u][e] = sum[j][u][e] +
                               RP_LOAD(((const RP_T *)p.w[3])[(c + e) * (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]);
#endif
                all.e[e] = RP_STORE(sum[j][u][e]);
            }
            *(rp_channels *)((RP_T *)p.w[RP_KIND] +
                             (n * RP_STRIDE(RP_KIND, 0) + c * RP_STRIDE(RP_KIND, 1) + (y0 + j) * RP_STRIDE_Y(RP_KIND) +
                              (ax + u) * RP_STRIDE_X(RP_KIND))) = all;
#else
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) rp_finish(&p, sum[j][u][e], c + e, n, y0 + j, ax + u);
#endif
        }
    }
#else
    /* A block has 256 / RP_SLOTS vectors of channels, or as many channels. Sums of a few taps at once are laid side by side. */
#define RP_BESIDE (256 / RP_SLOTS)
#define RP_PART_ROW (RP_BESIDE * (RP_SLOTS + 1))
#define RP_CHUNK_MOST (36864 / (RP_V * 256 * (int)sizeof(RP_ACC)))
#define RP_CHUNK (RP_TAPS < RP_CHUNK_MOST ? RP_TAPS : RP_CHUNK_MOST)
    __shared__ RP_ACC part[RP_CHUNK * RP_V][RP_PART_ROW];
    const int t = (int)threadIdx.x, lane = RP_LAST ? t % RP_BESIDE : t / RP_SLOTS,
              slot = RP_LAST ? t / RP_BESIDE : t % RP_SLOTS;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[7];
    const RP_INDEX rows = RP_SIZE_Y(RP_OUT), width = RP_SIZE_X(RP_OUT), from_rows = RP_SIZE_Y(RP_IN),
                   from_width = RP_SIZE_X(RP_IN);
    const RP_INDEX strips = (rows + RP_P - 1) / RP_P, across = (width + RP_X - 1) / RP_X,
                   pad_y = RP_S == 2 ? RP_SIZE_Y(RP_PAD) : 0, pad_x = RP_SIZE_X(RP_PAD);
    const RP_INDEX spans = (C + RP_BESIDE * RP_V - 1) / (RP_BESIDE * RP_V), share = (RP_INDEX)blockIdx.x / spans,
                   shares = RP_PARTS ? (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)] : 1;
    const RP_INDEX c0 = (RP_INDEX)blockIdx.x % spans * (RP_BESIDE * RP_V), c = c0 + lane * RP_V;
    const RP_INDEX all = batch * strips * across,
                   each = ((all + RP_SLOTS - 1) / RP_SLOTS + shares - 1) / shares * RP_SLOTS;
    const RP_INDEX begin = all < share * each ? all : share * each, end = all - begin < each ? all : begin + each;
    RP_INDEX turn = (begin + slot) % across, strip = (begin + slot) / across % strips,
             n = (begin + slot) / across / strips;
    rp_launch_dependents();
    rp_grid_wait();
    const RP_T *dy = (const RP_T *)p.w[0] + c * RP_STRIDE(0, 1), *x = (const RP_T *)p.w[1] + c * RP_STRIDE(1, 1);
    RP_ACC sum[RP_TAPS][RP_V];
    _Pragma("unroll") for (int k = 0; k < RP_TAPS; k++) _Pragma("unroll") for (int v = 0; v < RP_V; v++) sum[k][v] = 0;
    for (RP_INDEX i = c < C ? begin + slot : end; i < end; i += RP_SLOTS) {
        const RP_INDEX y0 = strip * RP_P, ax = turn * RP_X;
        const RP_INDEX top = y0 * RP_SY - pad_y, left = ax * RP_SX - pad_x, row = RP_STRIDE_Y(1),
                       column = RP_STRIDE_X(1), g_row = RP_STRIDE_Y(0), g_column = RP_STRIDE_X(0);
        const RP_T *g = dy + (n * RP_STRIDE(0, 0) + y0 * g_row + ax * g_column);
        const RP_T *from = x + (n * RP_STRIDE(1, 0) + top * row + left * column);
        if (y0 + RP_P <= rows && ax + RP_X <= width && top >= 0 && top + RP_ROWS <= from_rows && left >= 0 &&
            left + RP_COLUMNS <= from_width)
            rp_add_piece(sum, g, from, g_row, g_column, row, column, 1, 0, 0, 0, 0, 0, 0);
        else
            rp_add_piece(sum, g, from, g_row, g_column, row, column, 0, rows - y0, width - ax, top, left, from_rows,
                         from_width);
        turn += RP_SLOTS;
        while (turn >= across) {
            turn -= across;
            if (++strip == strips) strip = 0, n++;
        }
    }
#if RP_PARTS
    RP_ACC *to = (RP_ACC *)p.w[3] + share * (C * RP_TAPS);
#endif
    _Pragma("unroll") for (int k0 = 0; k0 < RP_TAPS; k0 += RP_CHUNK) {
        _Pragma("unroll") for (int k = 0; k < RP_CHUNK; k++)
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) if (k0 + k < RP_TAPS)
                part[k * RP_V + e][RP_LAST ? slot * RP_BESIDE + lane : lane * (RP_SLOTS + 1) + slot] = sum[k0 + k][e];
        rp_barrier();
        const int some = RP_TAPS - k0 < RP_CHUNK ? RP_TAPS - k0 : RP_CHUNK;
        for (int e = t; e < some * RP_V * RP_BESIDE; e += 256) {
            const int beside = e % RP_BESIDE, at = e / RP_BESIDE;
            const RP_INDEX ch = c0 + beside * RP_V + at % RP_V;
            RP_ACC all_slots = 0;
            _Pragma("unroll 8") for (int s = 0; s < RP_SLOTS; s++) {
                const RP_ACC one = part[at][RP_LAST ? s * RP_BESIDE + beside : beside * (RP_SLOTS + 1) + s];
                all_slots = s ? all_slots + one : one;
            }
            if (ch >= C) continue;
#if RP_PARTS
            to[ch * RP_TAPS + k0 + at / RP_V] = all_slots;
#else
            rp_finish(&p, all_slots, ch, 0, (k0 + at / RP_V) / RP_KW, (k0 + at / RP_V) % RP_KW);
#endif
        }
        rp_barrier();
    }
#endif
}
