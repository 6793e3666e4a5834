/* Forward convolution of f32 rounded to tf32, on tensor cores, whose weights lie as they are made: a row's channels with all their taps are one
 * run. Where columns are few, what a convolution takes is the way of its weights into shared memory; here they come by vectors of 16 bytes,
 * each once, with all taps of RP_CHUNK channels a step, and their fragments are read across the taps. The places that a tile of RP_TN
 * columns sees, of RP_TW along the last dim, come once a step too, and not once a tap. Both are rounded where they then lie. The order of sums is
 * that of conv.cuh's RP_MMA: chunks of channels, in them taps, in them channels; shares of the inner index are whole steps.
 *
 * Macros as in conv_mma.cuh, and RP_CHUNK, channels of 128 bytes; RP_WINDOW_Y, RP_WINDOW_X, RP_JUMP: the window and its step; RP_B_ALONG: channels
 * of a place lie side by side, else the places of a channel. p.w has the words of conv_common.cuh. */
#define RP_TH (RP_TN / RP_TW)
#define RP_LAST (RP_S - 1)
#define RP_TAPS (RP_WINDOW_Y * RP_WINDOW_X)
#define RP_HIGH ((RP_TH - 1) * RP_JUMP + RP_WINDOW_Y)
#define RP_ACROSS ((RP_TW - 1) * RP_JUMP + RP_WINDOW_X)
#define RP_PLACES (RP_HIGH * RP_ACROSS)
/* Rows of weights, and places or channels, begin in other banks than their neighbours. */
#define RP_A_PITCH (RP_CHUNK * RP_TAPS + RP_C)
#define RP_A_SIZE (RP_TM * RP_A_PITCH)
#define RP_B_PITCH (RP_B_ALONG ? RP_CHUNK + RP_C : (RP_PLACES + 23) / 32 * 32 + 8)
#define RP_B_SIZE (RP_B_ALONG ? RP_PLACES * RP_B_PITCH : RP_CHUNK * RP_B_PITCH)
#define RP_NA (RP_TM / 32 * RP_TAPS) /* vectors of a thread in a step; of places, or elements */
#define RP_NB (RP_B_ALONG ? (RP_PLACES * 8 + 255) / 256 : (RP_PLACES * RP_CHUNK + 255) / 256)
#define RP_WN (8 / RP_WM)
#define RP_FM (RP_TM / RP_WM / 16)
#define RP_FN_ (RP_TN / RP_WN / 8)
#define RP_ST_ROW (RP_OUT_ROWS ? RP_TM + 4 : RP_TN + 4)
#define RP_ST_AT(r, n) (RP_OUT_ROWS ? (n)*RP_ST_ROW + (r) : (r)*RP_ST_ROW + (n))
#define RP_EACH (RP_OUT_WIDE ? 8 : 1)
#define RP_SHARE (RP_TM * RP_TN / RP_EACH / RP_SPLIT) /* of the results of a tile, a block's of a cluster */
#define RP_TURNS ((RP_SHARE + 255) / 256)

/* This thread's vector i of the weights of a step: of a row, eight threads side by side. */
#define RP_A_VECTOR(i) RP_T *const to = ta + ((i) / RP_TAPS * 32 * RP_A_PITCH + (i) % RP_TAPS * RP_CHUNK)
/* Its vector i of the places; of planes its element i, of channel c. */
#define RP_B_VECTOR(i)                                                                                                 \
    const int there = t / 8 + (i)*32 < RP_PLACES;                                                                      \
    RP_T *const to = tb + (i)*32 * RP_B_PITCH
#define RP_B_ELEMENT(i)                                                                                                \
    const int e = t + (i)*256, c = e / RP_PLACES, place = e % RP_PLACES, there = c < RP_CHUNK;                         \
    RP_T *const to = tb + (c * RP_B_PITCH + place)
/* n pieces of `each` floats, this thread's own, are rounded in their place, sixteen floats at a time. */
#define RP_ROUND_PIECES(n, each, PIECE, is_there)                                                                      \
    _Pragma("unroll") for (int begin = 0; begin < (n); begin += 16 / (each)) {                                         \
        float v[16];                                                                                                   \
        const int count = (n)-begin < 16 / (each) ? (n)-begin : 16 / (each);                                           \
        _Pragma("unroll") for (int k = 0; k < count; k++) {                                                            \
            PIECE(begin + k);                                                                                          \
            if (is_there) {                                                                                            \
                rp_floats_get(&v[k * (each)], to, each);                                                               \
            } else {                                                                                                   \
                _Pragma("unroll") for (int q = 0; q < (each); q++) v[k * (each) + q] = 0;                              \
            }                                                                                                          \
        }                                                                                                              \
        rp_tf32_all(v, count *(each));                                                                                 \
        _Pragma("unroll") for (int k = 0; k < count; k++) {                                                            \
            PIECE(begin + k);                                                                                          \
            if (is_there) rp_floats_put(to, &v[k * (each)], each);                                                     \
        }                                                                                                              \
    }

extern "C" __global__ void RP_CLUSTER __launch_bounds__(256, RP_RESIDENT) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char room[];
    RP_T *const sa = (RP_T *)room, *const sb = sa + RP_STAGES * RP_A_SIZE;
    RP_ACC *const st = (RP_ACC *)room;
    const int t = (int)threadIdx.x, lane = t % 32, early = p.w[RP_W_AHEAD] != 0;
    const RP_INDEX C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = C / G, og = O / G, g = (RP_INDEX)blockIdx.z, M = og, m0 = (RP_INDEX)blockIdx.y * RP_TM;
    RP_SHARE_OF_BLOCK
    const int out_wide = (int)RP_SIZE(RP_OUT, RP_LAST), in_wide = (int)RP_SIZE(RP_IN, RP_LAST);
#if RP_S == 2
    const int out_high = (int)RP_SIZE(RP_OUT, 0), in_high = (int)RP_SIZE(RP_IN, 0), pad_high = (int)RP_SIZE(RP_PAD, 0);
    const RP_INDEX down = RP_STRIDE(1, 2);
#else
    const int out_high = 1, in_high = 1, pad_high = 0;
    const RP_INDEX down = 0;
#endif
    const int tiles_across = (out_wide + RP_TW - 1) / RP_TW, tiles_down = (out_high + RP_TH - 1) / RP_TH;
    const int x0 = (int)number % tiles_across * RP_TW, y0 = (int)number / tiles_across % tiles_down * RP_TH;
    const RP_INDEX image = number / (tiles_across * tiles_down), across = RP_STRIDE(1, 2 + RP_LAST);
    const int in_x = x0 * RP_JUMP - (int)RP_SIZE(RP_PAD, RP_LAST), in_y = y0 * RP_JUMP - pad_high;
    const int chunks = (int)cg / RP_CHUNK, share = (chunks + shares - 1) / shares;
    const int first = rank * share < chunks ? rank * share : chunks,
              steps = chunks - first < share ? chunks - first : share;
    const RP_INDEX a_row = RP_STRIDE(2, 0), b_channel = RP_STRIDE(1, 1);
    const RP_T *const w = (const RP_T *)p.w[2], *const a = w + ((g * og + m0 + t / 8) * a_row +
                                                                (RP_INDEX)first * (RP_CHUNK * RP_TAPS) + t % 8 * RP_C);
    const RP_T *const x = (const RP_T *)p.w[1], *const b = x + (image * RP_STRIDE(1, 0) +
                                                                (g * cg + (RP_INDEX)first * RP_CHUNK) * b_channel);
    /* Where this thread's vectors of a step lie in shared memory. */
    RP_T *const own_a = sa + (t / 8 * RP_A_PITCH + t % 8 * RP_C), *const own_b =
                                                                      RP_B_ALONG
                                                                          ? sb + (t / 8 * RP_B_PITCH + t % 8 * RP_C)
                                                                          : sb;
#define RP_READ_A(step, slot)                                                                                          \
    {                                                                                                                  \
        RP_T *const ta = own_a + (slot)*RP_A_SIZE;                                                                     \
        const RP_T *from = a + (step) * (RP_CHUNK * RP_TAPS);                                                          \
        _Pragma("unroll") for (int i = 0; i < RP_NA; i++) {                                                            \
            const int ok = m0 + t / 8 + i / RP_TAPS * 32 < M;                                                          \
            RP_A_VECTOR(i);                                                                                            \
            rp_cp_async_16_zfill(to, ok ? from + (i / RP_TAPS * 32 * a_row + i % RP_TAPS * RP_CHUNK) : w,              \
                                 ok ? 16 : 0);                                                                         \
        }                                                                                                              \
    }
#if RP_B_ALONG
    RP_INDEX off[RP_NB];                    /* of this thread's places */
    rp_u32 inside[(RP_NB + 31) / 32] = {0}; /* a bit each: is it one of the picture's? */
    _Pragma("unroll") for (int i = 0; i < RP_NB; i++) {
        const int place = t / 8 + i * 32, at_y = in_y + place / RP_ACROSS, at_x = in_x + place % RP_ACROSS;
        inside[i / 32] |= (rp_u32)((rp_u32)at_y < (rp_u32)in_high && (rp_u32)at_x < (rp_u32)in_wide) << i % 32;
        off[i] = at_y * down + at_x * across + t % 8 * RP_C;
    }
#define RP_READ_B(step, slot)                                                                                          \
    {                                                                                                                  \
        RP_T *const tb = own_b + (slot)*RP_B_SIZE;                                                                     \
        _Pragma("unroll") for (int i = 0; i < RP_NB; i++) {                                                            \
            RP_B_VECTOR(i);                                                                                            \
            const int ok = inside[i / 32] >> i % 32 & 1;                                                               \
            if (there) rp_cp_async_16_zfill(to, ok ? b + (off[i] + (step)*RP_CHUNK) : x, ok ? 16 : 0);                 \
        }                                                                                                              \
    }
#else
#define RP_READ_B(step, slot)                                                                                          \
    {                                                                                                                  \
        RP_T *const tb = own_b + (slot)*RP_B_SIZE;                                                                     \
        _Pragma("unroll") for (int i = 0; i < RP_NB; i++) {                                                            \
            RP_B_ELEMENT(i);                                                                                           \
            const int at_y = in_y + place / RP_ACROSS, at_x = in_x + place % RP_ACROSS,                                \
                      ok = (rp_u32)at_y < (rp_u32)in_high && (rp_u32)at_x < (rp_u32)in_wide;                           \
            if (there)                                                                                                 \
                rp_cp_async_4_zfill(                                                                                   \
                    to, ok ? b + (((step)*RP_CHUNK + c) * b_channel + (at_y * down + at_x * across)) : x, ok ? 4 : 0); \
        }                                                                                                              \
    }
#endif
    rp_launch_dependents();
    if (early) { /* the weights are nobody's result */
        _Pragma("unroll") for (int s = 0; s < RP_STAGES; s++) if (s < steps) RP_READ_A(s, s)
    }
    rp_grid_wait();
    _Pragma("unroll") for (int s = 0; s < RP_STAGES; s++) {
        if (s < steps) {
            if (!early) RP_READ_A(s, s)
            RP_READ_B(s, s)
        }
        rp_cp_async_commit();
    }
    const int wm = t / 32 / RP_WN, wn = t / 32 % RP_WN, inner = lane % 4;
    RP_ACC acc[RP_FM][RP_FN_][4];
    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
        _Pragma("unroll") for (int v = 0; v < 4; v++) acc[i][j][v] = 0;
    /* A lane's row, and its columns: places that the window's first tap meets. */
    const int from_row = (wm * (RP_TM / RP_WM) + lane / 4) * RP_A_PITCH + inner * RP_TAPS;
    int column[RP_FN_];
    _Pragma("unroll") for (int j = 0; j < RP_FN_; j++) {
        const int n = wn * (RP_TN / RP_WN) + j * 8 + lane / 4, place = (n / RP_TW * RP_ACROSS + n % RP_TW) * RP_JUMP;
        column[j] = RP_B_ALONG ? place * RP_B_PITCH + inner : inner * RP_B_PITCH + place;
    }
    int turn = 0;
    for (int step = 0; step < steps; step++) {
        rp_cp_async_wait(RP_STAGES - 1);
        {
            RP_T *const ta = own_a + turn * RP_A_SIZE, *const tb = own_b + turn * RP_B_SIZE;
            RP_ROUND_PIECES(RP_NA, 4, RP_A_VECTOR, 1)
#if RP_B_ALONG
            RP_ROUND_PIECES(RP_NB, 4, RP_B_VECTOR, there)
#else
            RP_ROUND_PIECES(RP_NB, 1, RP_B_ELEMENT, there)
#endif
        }
        rp_barrier();
        const rp_u32 *const ta = (const rp_u32 *)sa + turn * RP_A_SIZE, *const tb =
                                                                            (const rp_u32 *)sb + turn * RP_B_SIZE;
        _Pragma("unroll 1") for (int y = 0; y < RP_WINDOW_Y; y++) {
            _Pragma("unroll") for (int z = 0; z < RP_WINDOW_X; z++) {
                const rp_u32 *const fa_at = ta + from_row + (y * RP_WINDOW_X + z);
                const rp_u32 *const fb_at = tb + (y * RP_ACROSS + z) * (RP_B_ALONG ? RP_B_PITCH : 1);
                _Pragma("unroll") for (int k = 0; k < RP_CHUNK; k += 8) {
                    rp_u32 fa[RP_FM][4], fb[RP_FN_][2];
                    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int v = 0; v < 4; v++)
                        fa[i][v] = fa_at[(i * 16 + v % 2 * 8) * RP_A_PITCH + (k + v / 2 * 4) * RP_TAPS];
                    _Pragma("unroll") for (int j = 0; j < RP_FN_; j++) _Pragma("unroll") for (int v = 0; v < 2; v++)
                        fb[j][v] = fb_at[column[j] + (k + v * 4) * (RP_B_ALONG ? 1 : RP_B_PITCH)];
                    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
                        RP_MMA_STEP(acc[i][j], fa[i], fb[j]);
                }
            }
        }
        rp_barrier();
        if (step + RP_STAGES < steps) {
            RP_READ_A(step + RP_STAGES, turn)
            RP_READ_B(step + RP_STAGES, turn)
        }
        rp_cp_async_commit();
        turn = turn + 1 == RP_STAGES ? 0 : turn + 1;
    }
    rp_cp_async_wait(0);
    /* Results by way of shared memory, so that neighbours in a warp store neighbours; blocks of a cluster share them. */
#define RP_PLACE_OF_TURN(u)                                                                                            \
    const int in_share = t + (u)*256, e = rank % RP_SPLIT * RP_SHARE + in_share,                                       \
              r = RP_OUT_ROWS ? e % (RP_TM / RP_EACH) * RP_EACH : e / (RP_TN / RP_EACH),                               \
              j = RP_OUT_ROWS ? e / (RP_TM / RP_EACH) : e % (RP_TN / RP_EACH) * RP_EACH, at_y = y0 + j / RP_TW;        \
    const RP_INDEX m = m0 + r;                                                                                         \
    RP_INDEX spot[RP_S];                                                                                               \
    spot[RP_LAST] = x0 + j % RP_TW;                                                                                    \
    if (RP_S == 2) spot[0] = at_y;                                                                                     \
    const int ours = in_share < RP_SHARE && m < M && spot[RP_LAST] < out_wide && at_y < out_high
#if RP_OUT_WIDE /* what follows reads ahead */
    rp_held held[RP_TURNS];
    rp_line line;
    _Pragma("unroll") for (int u = 0; u < RP_TURNS; u++) {
        RP_PLACE_OF_TURN(u);
        if (u == 0 && m < M) rp_line_load(&p, &line, g, m); /* a thread's rows are the same in all turns */
        if (ours) rp_held_load(&p, &held[u], g, m, image, spot);
    }
#endif
    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
        _Pragma("unroll") for (int v = 0; v < 4; v++)
            st[RP_ST_AT(wm * (RP_TM / RP_WM) + i * 16 + lane / 4 + v / 2 * 8,
                        wn * (RP_TN / RP_WN) + j * 8 + lane % 4 * 2 + v % 2)] = acc[i][j][v];
#if RP_SPLIT > 1
    rp_cluster_barrier(RP_SPLIT);
#else
    rp_barrier();
#endif
#if RP_OUT_WIDE
    _Pragma("unroll")
#elif RP_REST
    _Pragma("unroll 1")
#else
    _Pragma("unroll 4")
#endif
        for (int u = 0; u < RP_TURNS; u++) {
        RP_PLACE_OF_TURN(u);
        if (!ours) continue;
        const RP_ACC *const from = &st[RP_ST_AT(r, j)];
        const RP_INDEX n = rp_column(&p, image, spot);
#if RP_OUT_WIDE
        __align__(16) RP_ACC sum[8];
        rp_add_sums(sum, from, 8);
        rp_finish_wide(&p, sum, &held[u], &line, g, m, n, spot, cg, og);
#else
        RP_ACC sum = *from;
#if RP_SPLIT > 1
        RP_ACC part[RP_SPLIT];
        _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) part[other] =
            RP_CLUSTER_READ(from, other, RP_SPLIT);
        sum = part[0];
        _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) sum = sum + part[other];
#endif
        rp_finish(&p, sum, g, m, n, spot, cg, og);
#endif
    }
#if RP_SPLIT > 1
    rp_cluster_done(RP_SPLIT); /* others have read this block's */
#endif
}
