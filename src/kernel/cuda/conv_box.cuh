/* Convolution of f32 on CUDA whose windows lie close together: forward, and input gradients, of steps and dilations of one, 1 or 2 spatial
 * dims. conv.cuh's products, rows, columns, inner index and order, so its bits; but columns are boxes of RP_V lines by RP_X places, and what
 * a box sees of a channel lies in shared memory once, not once for each place of the window: a thread reads a line of it into registers and
 * takes all taps of the window's line out of these. It makes 8 rows of a box.
 *
 * A block's boxes, RP_TX of them, may be of several pictures. Stages of RP_CH channels come by cp.async, RP_STAGES - 1 ahead. Where an element lies
 * is found once: the channels of all boxes have the same places. Lines of a window that a block of the sum (RP_BLOCK), or a share of the
 * inner index, ends in are taken tap by tap.
 *
 * Macros as in conv.cuh: RP_NAME, RP_T, RP_ACC, RP_MULADD, RP_COPY, RP_KIND (0, 1), RP_SPATIAL, RP_BIAS, RP_INDEX (32 bits), RP_SPLIT, RP_UNIT,
 * RP_ASIDE, RP_OUT_ROWS, RP_LONG, RP_LONGER, RP_REST, RP_STAGES; RP_KH, RP_KW, the window; RP_V, RP_X; RP_TX; RP_CH. Words as in conv.cuh. */
#define RP_THREADS 128
#define RP_I 8 /* rows of a thread */
#define RP_TY (RP_THREADS / RP_TX)
#define RP_TM (RP_TY * RP_I)
#define RP_TN (RP_TX * RP_V * RP_X)
#define RP_TAPS (RP_KH * RP_KW)
/* What a box sees of a channel: lines in vectors of four, boxes in different banks. */
#define RP_LINES (RP_V + RP_KH - 1)
#define RP_LINE (RP_X + RP_KW - 1)
#define RP_PITCH ((RP_LINE + 3) / 4 * 4)
#define RP_BOX (RP_LINES * RP_PITCH / 4 % 2 ? RP_LINES * RP_PITCH : RP_LINES * RP_PITCH + 4)
#define RP_PLANE (RP_TX * RP_BOX)
#define RP_SEEN (RP_TX * RP_LINES * RP_LINE)
#define RP_NX ((RP_SEEN + RP_THREADS - 1) / RP_THREADS)
/* Weights of a stage: a row an element of the inner index. A thread's elements are of one of these, RP_BESIDE rows apart. */
#define RP_W_ROW (RP_TM + 4)
#define RP_DEEP (RP_CH * RP_TAPS)
#define RP_BESIDE (RP_THREADS / RP_DEEP)
#define RP_NW ((RP_TM + RP_BESIDE - 1) / RP_BESIDE)
#define RP_STAGE (RP_DEEP * RP_W_ROW + RP_CH * RP_PLANE)
#define RP_EACH                                                                                                        \
    _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int v = 0; v < RP_V; v++)                  \
        _Pragma("unroll") for (int j = 0; j < RP_X; j++)
/* Results leave in two passes, of four neighbouring rows of each thread. */
#define RP_PASS_ROWS (RP_TY * 4)
#define RP_OUT_ROW (RP_TN + 4)
#define RP_OURS (RP_PASS_ROWS / RP_SPLIT) /* blocks of a cluster share out the rows of a pass */

/* Of two dims. */
#define RP_Y(x) (RP_S == 2 ? (x) : 0)
#define RP_SIZE_Y(field) (RP_S == 2 ? RP_SIZE(field, 0) : 1)
#define RP_SIZE_X(field) RP_SIZE(field, RP_S - 1)
/* Where tap number k of a line of the window, or line number k of it, is: an input gradient goes through the window backwards. */
#define RP_TAP_AT(k) (RP_KIND == 1 ? RP_KW - 1 - (k) : (k))
#define RP_LINE_AT(k) (RP_KIND == 1 ? RP_KH - 1 - (k) : (k))

/* The weights of a thread's rows for one element of the inner index. */
RP_FN void rp_weights(RP_ACC *u, const RP_T *from) {
    _Pragma("unroll") for (int i = 0; i < RP_I; i += 4) {
        const rp_f32x4 four = *(const rp_f32x4 *)(from + i / 4 * (RP_TY * 4));
        u[i] = four.x, u[i + 1] = four.y, u[i + 2] = four.z, u[i + 3] = four.w;
    }
}

extern "C" __global__ void RP_CLUSTER __launch_bounds__(RP_THREADS, 2) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char room[]; /* stages; then rows of results */
    __shared__ rp_result result[RP_TX];                   /* where a box begins; n < 0: nowhere */
    RP_T *const tiles = (RP_T *)room;
    RP_ACC *const st = (RP_ACC *)room;
    const int t = (int)threadIdx.x;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = C / G, og = O / G, g = (RP_INDEX)blockIdx.z;
    RP_SHARE_OF_BLOCK
    const RP_INDEX M = RP_KIND == 0 ? og : cg, channels = RP_KIND == 0 ? cg : og, K = channels * RP_TAPS,
                   m0 = (RP_INDEX)blockIdx.y * RP_TM;
    const RP_INDEX height = RP_SIZE_Y(RP_KIND == 0 ? RP_OUT : RP_IN), width = RP_SIZE_X(RP_KIND == 0 ? RP_OUT : RP_IN),
                   down = (height + RP_V - 1) / RP_V, across = (width + RP_X - 1) / RP_X;
    const RP_INDEX share = ((K + RP_UNIT - 1) / RP_UNIT + shares - 1) / shares * RP_UNIT;
    const RP_INDEX first = rank * share < K ? rank * share : K, end = K - first < share ? K : first + share;
    for (int e = t; e < RP_TX; e += RP_THREADS) {
        const RP_INDEX box = number * RP_TX + e;
        rp_result r;
        r.n = box / across / down < batch ? box / across / down : -1;
        r.at[0] = box / across % down * RP_V;
        r.at[RP_S - 1] = box % across * RP_X;
        result[e] = r;
    }
    rp_barrier();
    /* What a thread fetches of every channel: offset, place in the plane, and a bit each: is it there? */
    RP_INDEX off[RP_NX];
    int to[RP_NX];
    rp_u32 there = 0;
    _Pragma("unroll") for (int i = 0; i < RP_NX; i++) {
        const int e = t + i * RP_THREADS, box = e / (RP_LINES * RP_LINE), line = e / RP_LINE % RP_LINES,
                  j = e % RP_LINE;
        const rp_result r = result[box < RP_TX ? box : 0];
        const RP_INDEX y = RP_S == 2
                               ? r.at[0] + line + (RP_KIND == 0 ? -RP_SIZE_Y(RP_PAD) : RP_SIZE_Y(RP_PAD) - (RP_KH - 1))
                               : 0,
                       x = r.at[RP_S - 1] + j + (RP_KIND == 0 ? -RP_SIZE_X(RP_PAD) : RP_SIZE_X(RP_PAD) - (RP_KW - 1));
        const int ok = r.n >= 0 && rp_within(y, RP_SIZE_Y(RP_BOUND)) && rp_within(x, RP_SIZE_X(RP_BOUND));
        off[i] = ok ? r.n * RP_STRIDE(RP_WINDOWED, 0) + RP_Y(y * RP_STRIDE(RP_WINDOWED, 2)) +
                          x * RP_STRIDE(RP_WINDOWED, 1 + RP_S)
                    : 0;
        to[i] = RP_DEEP * RP_W_ROW + box * RP_BOX + line * RP_PITCH + j;
        there |= (rp_u32)ok << i;
    }
    /* And of the weights. */
    const int wk = t % RP_DEEP, wm = t / RP_DEEP, tap = wk % RP_TAPS;
    const RP_INDEX w_row = RP_STRIDE(2, RP_KIND == 0 ? 0 : 1), w_channel = RP_STRIDE(2, RP_KIND == 0 ? 1 : 0),
                   b_channel = RP_STRIDE(RP_WINDOWED, 1);
    const RP_INDEX rows_left = wm < RP_BESIDE ? M - m0 - wm : 0, deep = wk / RP_TAPS;
    const RP_INDEX begin = first / RP_TAPS, stop = (end + RP_TAPS - 1) / RP_TAPS; /* channels */
    const int steps = first < end ? (int)((stop - begin + RP_CH - 1) / RP_CH) : 0;
    rp_launch_dependents();
    rp_grid_wait();
    const RP_T *const b = RP_KIND == 0 ? (const RP_T *)p.w[1] + g * cg * RP_STRIDE(1, 1)
                                       : (const RP_T *)p.w[0] + g * og * RP_STRIDE(0, 1);
    const RP_T *const w = (const RP_T *)rp_opaque(
        (const RP_T *)p.w[2] + (g * og * RP_STRIDE(2, 0) + (m0 + wm) * w_row + deep * w_channel +
                                RP_Y(tap / RP_KW * RP_STRIDE(2, 2)) + tap % RP_KW * RP_STRIDE(2, 1 + RP_S)));
    const RP_INDEX w_step = RP_BESIDE * w_row;
#define RP_READ(n, slot)                                                                                               \
    {                                                                                                                  \
        const RP_INDEX c = begin + (n)*RP_CH;                                                                          \
        RP_T *const stage = tiles + (slot)*RP_STAGE;                                                                   \
        const RP_T *from = w + c * w_channel;                                                                          \
        const RP_INDEX left = c + deep < channels ? rows_left : 0;                                                     \
        _Pragma("unroll") for (int i = 0; i < RP_NW; i++) {                                                            \
            if (wm < RP_BESIDE && (RP_TM % RP_BESIDE == 0 || i < RP_NW - 1 || wm + i * RP_BESIDE < RP_TM))             \
                RP_COPY(&stage[wk * RP_W_ROW + wm + i * RP_BESIDE], from, i *RP_BESIDE < left);                        \
            from += w_step;                                                                                            \
        }                                                                                                              \
        _Pragma("unroll") for (int ch = 0; ch < RP_CH; ch++) {                                                         \
            const RP_T *const plane = b + (c + ch) * b_channel;                                                        \
            const int live = c + ch < channels;                                                                        \
            _Pragma("unroll") for (int i = 0; i < RP_NX; i++) if (RP_SEEN % RP_THREADS == 0 || i < RP_NX - 1 ||        \
                                                                  t + i * RP_THREADS < RP_SEEN)                        \
                RP_COPY(&stage[to[i] + ch * RP_PLANE], plane + off[i], live && (there >> i & 1));                      \
        }                                                                                                              \
    }
    /* a warp is 4 x 8 threads, so what it reads at once of either tile lies in different banks */
    const int tx = t / 32 % (RP_TX / 8) * 8 + t % 8, ty = t / 32 / (RP_TX / 8) * 4 + t / 8 % 4;
    RP_ACC acc[RP_I][RP_V][RP_X];
    RP_EACH acc[i][v][j] = 0;
#if RP_LONG
    RP_ASIDE RP_ACC blocks[RP_I][RP_V][RP_X]; /* of the group under way */
    RP_EACH blocks[i][v][j] = 0;
    int block = 0; /* how many there are */
#endif
#if RP_LONGER
    RP_ASIDE RP_ACC groups[RP_I][RP_V][RP_X]; /* before it */
    RP_EACH groups[i][v][j] = 0;
#endif
    _Pragma("unroll") for (int n = 0; n < RP_STAGES - 1; n++) {
        if (n < steps) RP_READ(n, n)
        rp_cp_async_commit();
    }
    RP_INDEX k = begin * RP_TAPS;  /* of the window's line under way */
    int turn = 0, left = RP_BLOCK; /* elements until a block ends */
    for (int n = 0; n < steps; n++) {
        rp_cp_async_wait(RP_STAGES - 2);
        rp_barrier();
        if (n + RP_STAGES - 1 < steps) RP_READ(n + RP_STAGES - 1, (turn == 0 ? RP_STAGES - 1 : turn - 1))
        rp_cp_async_commit();
        const RP_T *u_from = tiles + turn * RP_STAGE + ty * 4;
        const RP_T *const plane = tiles + turn * RP_STAGE + RP_DEEP * RP_W_ROW + tx * RP_BOX;
        _Pragma("unroll 1") for (int line = 0; line < RP_CH * RP_KH && k < end; line++) {
            const RP_T *const x_from = plane + line / RP_KH * RP_PLANE + RP_LINE_AT(line % RP_KH) * RP_PITCH;
            int s = first > k ? (int)(first - k) : 0;
            const int all = end - k < RP_KW ? (int)(end - k) : RP_KW;
            while (s < all) {
                const int some = all - s < left ? all - s : left;
                if (some == RP_KW) {
                    RP_ACC x[RP_V][RP_PITCH];
                    _Pragma("unroll") for (int v = 0; v < RP_V; v++)
                        _Pragma("unroll") for (int j = 0; j < RP_PITCH; j += 4) {
                        const rp_f32x4 four = *(const rp_f32x4 *)(x_from + v * RP_PITCH + j);
                        x[v][j] = four.x, x[v][j + 1] = four.y, x[v][j + 2] = four.z, x[v][j + 3] = four.w;
                    }
                    _Pragma("unroll") for (int q = 0; q < RP_KW; q++) {
                        RP_ACC u[RP_I];
                        rp_weights(u, u_from + q * RP_W_ROW);
                        RP_EACH acc[i][v][j] = RP_MULADD(u[i], x[v][j + RP_TAP_AT(q)], acc[i][v][j]);
                    }
                } else
                    _Pragma("unroll 1") for (int q = s; q < s + some; q++) {
                        RP_ACC u[RP_I], x[RP_V][RP_X];
                        rp_weights(u, u_from + q * RP_W_ROW);
                        _Pragma("unroll") for (int v = 0; v < RP_V; v++)
                            _Pragma("unroll") for (int j = 0; j < RP_X; j++) x[v][j] =
                                x_from[v * RP_PITCH + j + RP_TAP_AT(q)];
                        RP_EACH acc[i][v][j] = RP_MULADD(u[i], x[v][j], acc[i][v][j]);
                    }
                s += some;
                left -= some;
#if RP_LONG
                const int last = k + s == end;
                if (left == 0 || last) {
                    if (block % RP_GROUP == 0) {
                        RP_EACH blocks[i][v][j] = acc[i][v][j];
                    } else {
                        RP_EACH blocks[i][v][j] = blocks[i][v][j] + acc[i][v][j];
                    }
#if RP_LONGER
                    if (block % RP_GROUP == RP_GROUP - 1 || last) {
                        if (block < RP_GROUP) {
                            RP_EACH groups[i][v][j] = blocks[i][v][j];
                        } else {
                            RP_EACH groups[i][v][j] = groups[i][v][j] + blocks[i][v][j];
                        }
                    }
#endif
                    RP_EACH acc[i][v][j] = 0;
                    block++;
                    left = RP_BLOCK;
                }
#endif
            }
            k += RP_KW;
            u_from += RP_KW * RP_W_ROW;
        }
        turn = turn == RP_STAGES - 1 ? 0 : turn + 1;
    }
    rp_cp_async_wait(0);
    rp_barrier();
    _Pragma("unroll") for (int pass = 0; pass < RP_I / 4; pass++) {
        _Pragma("unroll") for (int i = 0; i < 4; i++) _Pragma("unroll") for (int v = 0; v < RP_V; v++)
            _Pragma("unroll") for (int j = 0; j < RP_X; j++)
                st[(ty * 4 + i) * RP_OUT_ROW + (v * RP_TX + tx) * RP_X + j] =
#if RP_LONGER
                    groups[pass * 4 + i][v][j];
#elif RP_LONG
                    blocks[pass * 4 + i][v][j];
#else
                    acc[pass * 4 + i][v][j];
#endif
#if RP_SPLIT > 1
        rp_cluster_barrier(RP_SPLIT);
#else
        rp_barrier();
#endif
        for (int e = t; e < RP_OURS * RP_TN; e += RP_THREADS) {
            const int r = (RP_OUT_ROWS ? e % RP_OURS : e / RP_TN) * RP_SPLIT + (RP_SPLIT > 1 ? rank : 0),
                      at_tile = RP_OUT_ROWS ? e / RP_OURS : e % RP_TN, box = at_tile / RP_X % RP_TX;
#if RP_SPLIT > 1
            RP_ACC part[RP_SPLIT];
            _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) part[other] =
                RP_CLUSTER_READ(&st[r * RP_OUT_ROW + at_tile], other, RP_SPLIT);
            RP_ACC x = part[0];
            _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) x = x + part[other];
#else
            const RP_ACC x = st[r * RP_OUT_ROW + at_tile];
#endif
            const rp_result begins = result[box];
            const RP_INDEX m = m0 + pass * RP_PASS_ROWS + r,
                           y = RP_S == 2 ? begins.at[0] + at_tile / (RP_TX * RP_X) : 0;
            RP_INDEX at[RP_S];
            at[0] = y;
            at[RP_S - 1] = begins.at[RP_S - 1] + at_tile % RP_X;
            if (m >= M || begins.n < 0 || y >= height || at[RP_S - 1] >= width) continue;
            rp_finish(&p, x, g, m, rp_column(&p, begins.n, at), at, cg, og);
        }
#if RP_SPLIT > 1
        rp_cluster_barrier(RP_SPLIT); /* others have read this pass */
#else
        rp_barrier();
#endif
    }
}
