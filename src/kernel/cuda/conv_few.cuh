/* Forward convolution of 16-bit floats with few input channels, as nets begin with: an inner index of a few channels for each tap has no
 * vectors to read, so a block keeps all weights of its rows in shared memory, fetches the part of the picture that a tile of 256
 * results sees, and takes the second factor's fragments out of that by a table of offsets. Blocks stay for many tiles and fetch the next
 * one's part while they multiply. The order is conv.cuh's with RP_MMA: taps with all channels innermost, 16 at a time.
 *
 * Macros as in conv_mma.cuh, and RP_TW: places of a tile along the last dim, a multiple of 8; RP_ROWS_WHOLE: rows of the picture (a channel's, or with
 * RP_B_ALONG those of all channels, which lie side by side) are whole aligned vectors; RP_PAIRS: two neighbours of the inner index are
 * neighbours in memory. p.w has the words of conv_common.cuh. */
#define RP_TH (256 / RP_TW)
#define RP_FM (RP_TM / 16)
#define RP_LAST (RP_S - 1)
#define RP_COLUMNS 128 /* of a pass of results */
#define RP_ST_ROW (RP_OUT_ROWS ? RP_TM + 4 : RP_COLUMNS + 4)
#define RP_ST_AT(r, n) (RP_OUT_ROWS ? (n)*RP_ST_ROW + (r) : (r)*RP_ST_ROW + (n))
#define RP_EACH (RP_OUT_WIDE ? 8 : 1)
#define RP_TURNS (RP_TM * RP_COLUMNS / RP_EACH / 256)

/* The part of a picture that a tile sees: `high` rows of each of `planes` planes, `pitch` elements apart; its first element lies `shift` behind
 * a vector's begin. */
typedef struct {
    int high, planes, pitch, shift, length;
} rp_part;

/* Where a tile begins. */
typedef struct {
    int image, y, x;
} rp_tile;

RP_FN rp_tile rp_tile_at(int tile, int down, int across) {
    rp_tile at;
    at.x = tile % across * RP_TW;
    at.y = tile / across % down * RP_TH;
    at.image = tile / across / down;
    return at;
}

RP_FN void rp_part_fetch(const RP_WORDS *q, RP_T *to, const RP_T *x, const rp_part *part, rp_tile at, int channels) {
    const RP_WORDS p = *q;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, each = RP_B_ALONG ? channels : 1;
#if RP_S == 2
    const int height = (int)RP_SIZE(RP_IN, 0), y0 = at.y * (int)RP_SIZE(RP_STEP, 0) - (int)RP_SIZE(RP_PAD, 0);
    const RP_INDEX down = RP_STRIDE(1, 2);
#else
    const int height = 1, y0 = 0;
    const RP_INDEX down = 0;
#endif
    const int width = (int)RP_SIZE(RP_IN, RP_LAST) * each,
              x0 = (at.x * (int)RP_SIZE(RP_STEP, RP_LAST) - (int)RP_SIZE(RP_PAD, RP_LAST)) * each - part->shift;
    const RP_INDEX along = RP_B_ALONG ? 1 : RP_STRIDE(1, 2 + RP_LAST);
    for (int row = warp; row < part->high * part->planes; row += 8) {
        const int plane = row / part->high, y = y0 + row % part->high, there = (rp_u32)y < (rp_u32)height;
        const RP_T *from = x + (at.image * RP_STRIDE(1, 0) + plane * RP_STRIDE(1, 1) + (there ? y : 0) * down);
        RP_T *line = to + row * part->pitch;
#if RP_ROWS_WHOLE
        for (int i = lane * 8; i < part->pitch; i += 256) {
            const int ok = there && (rp_u32)(x0 + i) < (rp_u32)width;
            rp_cp_async_16_zfill(line + i, ok ? from + (x0 + i) : x, ok ? 16 : 0);
        }
#else
        for (int first = lane; first < part->length; first += 128) {
            RP_T some[4];
            _Pragma("unroll") for (int u = 0; u < 4; u++) {
                const int i = first + 32 * u, ok = there && i < part->length && (rp_u32)(x0 + i) < (rp_u32)width;
                some[u] = 0;
                if (ok) some[u] = from[(x0 + i) * along];
            }
            _Pragma("unroll") for (int u = 0; u < 4; u++) if (first + 32 * u < part->length) line[first + 32 * u] =
                some[u];
        }
#endif
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char room[];
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    const int channels = (int)p.w[5], og = (int)p.w[6], cg = channels, M = og, m0 = (int)blockIdx.y * RP_TM;
    const RP_INDEX g = 0;
    int taps = 1, K;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) taps *= (int)RP_SIZE(RP_KERNEL, d);
    K = taps * channels;
    const int steps = (K + 15) / 16, w_pitch = steps * 16 + 8;
    const int wide = (int)RP_SIZE(RP_KERNEL, RP_LAST), x_step = (int)RP_SIZE(RP_STEP, RP_LAST),
              x_dil = (int)RP_SIZE(RP_DIL, RP_LAST), out_wide = (int)RP_SIZE(RP_OUT, RP_LAST);
#if RP_S == 2
    const int y_step = (int)RP_SIZE(RP_STEP, 0), y_dil = (int)RP_SIZE(RP_DIL, 0), out_high = (int)RP_SIZE(RP_OUT, 0),
              high = (int)RP_SIZE(RP_KERNEL, 0);
#else
    const int y_step = 1, y_dil = 1, out_high = 1, high = 1;
#endif
    const int each = RP_B_ALONG ? channels : 1, across = (out_wide + RP_TW - 1) / RP_TW,
              down = (out_high + RP_TH - 1) / RP_TH, tiles = (int)p.w[4] * down * across;
    rp_part part;
    part.high = (RP_TH - 1) * y_step + (high - 1) * y_dil + 1;
    part.planes = RP_B_ALONG ? 1 : channels;
    part.shift = RP_ROWS_WHOLE ? (-(int)RP_SIZE(RP_PAD, RP_LAST) * each) & 7 : 0;
    part.length = part.shift + ((RP_TW - 1) * x_step + (wide - 1) * x_dil + 1) * each;
    part.pitch = (part.length + 7) / 8 * 8;
    const int part_size = part.high * part.planes * part.pitch;
    RP_ACC *const st = (RP_ACC *)room;
    rp_i32 *const inner = (rp_i32 *)(st + (RP_OUT_ROWS ? RP_COLUMNS : RP_TM) * RP_ST_ROW);
    RP_T *const sw = (RP_T *)(inner + steps * 16), *const sx = sw + RP_TM * w_pitch;

    /* Offsets of the inner index in a part. */
    for (int k = t; k < steps * 16; k += 256) {
        const int tap = k / channels, c = k % channels;
        inner[k] = k < K ? tap / wide * y_dil * part.pitch + tap % wide * x_dil * each +
                               c * (RP_B_ALONG ? 1 : part.high * part.pitch)
                         : 0;
    }
    rp_launch_dependents();
    rp_grid_wait();
    const RP_T *const x = (const RP_T *)p.w[1], *const w = (const RP_T *)p.w[2];
    for (int k = lane; k < w_pitch; k += 32) {
        const int tap = k / channels;
        RP_INDEX from = k % channels * RP_STRIDE(2, 1) + tap % wide * RP_STRIDE(2, 2 + RP_LAST);
#if RP_S == 2
        from += tap / wide * RP_STRIDE(2, 2);
#endif
        RP_T some[RP_TM / 8];
        _Pragma("unroll") for (int i = 0; i < RP_TM / 8; i++) {
            const int r = warp + i * 8;
            some[i] = 0;
            if (k < K && m0 + r < M) some[i] = w[from + (m0 + r) * RP_STRIDE(2, 0)];
        }
        _Pragma("unroll") for (int i = 0; i < RP_TM / 8; i++) sw[(warp + i * 8) * w_pitch + k] = some[i];
    }
    /* A lane's columns in the fragments of its warp. */
    int column[4];
    _Pragma("unroll") for (int j = 0; j < 4; j++) {
        const int n = warp * 32 + j * 8 + lane / 4;
        column[j] = part.shift + n / RP_TW * y_step * part.pitch + n % RP_TW * x_step * each;
    }
    int tile = (int)blockIdx.x, turn = 0;
    if (tile < tiles) rp_part_fetch(&p, sx, x, &part, rp_tile_at(tile, down, across), channels);
    rp_cp_async_commit();
    for (; tile < tiles; tile += (int)gridDim.x, turn ^= 1) {
        const rp_tile at = rp_tile_at(tile, down, across);
        if (tile + (int)gridDim.x < tiles)
            rp_part_fetch(&p, sx + (turn ^ 1) * part_size, x, &part, rp_tile_at(tile + (int)gridDim.x, down, across),
                          channels);
        rp_cp_async_commit();
        rp_cp_async_wait(1);
        rp_barrier();
        RP_ACC acc[RP_FM][4][4];
        _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < 4; j++)
            _Pragma("unroll") for (int v = 0; v < 4; v++) acc[i][j][v] = 0;
        const RP_T *const from = sx + turn * part_size;
        for (int step = 0; step < steps; step++) {
            rp_u32 fa[RP_FM][4];
            int off[4];
            const int k = step * 16 + lane % 4 * 2, last = step == steps - 1;
            _Pragma("unroll") for (int v = 0; v < 4; v++) off[v] = inner[k + v / 2 * 8 + v % 2];
            _Pragma("unroll") for (int i = 0; i < RP_FM; i++)
                rp_ldmatrix_x4(fa[i], &sw[(i * 16 + lane % 16) * w_pitch + step * 16 + lane / 16 * 8]);
            _Pragma("unroll") for (int j = 0; j < 4; j++) {
                rp_u32 fb[2];
                const RP_T *const spot = from + column[j];
                _Pragma("unroll") for (int v = 0; v < 2; v++) {
#if RP_PAIRS
                    fb[v] = *(const rp_u32 *)(spot + off[v * 2]);
                    if (last && k + v * 8 >= K) fb[v] = 0;
#else
                    fb[v] = spot[off[v * 2]] | (rp_u32)spot[off[v * 2 + 1]] << 16;
                    if (last) { /* what lies there may be no number */
                        if (k + v * 8 >= K) fb[v] = 0;
                        if (k + v * 8 + 1 >= K) fb[v] &= 0xffffu;
                    }
#endif
                }
                _Pragma("unroll") for (int i = 0; i < RP_FM; i++) RP_MMA_STEP(acc[i][j], fa[i], fb);
            }
        }
        /* Results by way of shared memory, two columns' fragments of each warp at a time. */
        _Pragma("unroll") for (int pass = 0; pass < 2; pass++) {
#define RP_PLACE_OF_TURN(u)                                                                                            \
    const int e = t + (u)*256, r = RP_OUT_ROWS ? e % (RP_TM / RP_EACH) * RP_EACH : e / (RP_COLUMNS / RP_EACH),         \
              in_pass = RP_OUT_ROWS ? e / (RP_TM / RP_EACH) : e % (RP_COLUMNS / RP_EACH) * RP_EACH,                    \
              j = in_pass / 16 * 32 + pass * 16 + in_pass % 16;                                                        \
    const RP_INDEX m = m0 + r;                                                                                         \
    RP_INDEX spot[RP_S];                                                                                               \
    spot[RP_LAST] = at.x + j % RP_TW;                                                                                  \
    if (RP_S == 2) spot[0] = at.y + j / RP_TW;                                                                         \
    const int ours = m < M && spot[RP_LAST] < out_wide && (RP_S == 2 ? spot[0] : at.y + j / RP_TW) < out_high
#if RP_OUT_WIDE /* what follows reads ahead */
            rp_held held[RP_TURNS];
            rp_line line;
            _Pragma("unroll") for (int u = 0; u < RP_TURNS; u++) {
                RP_PLACE_OF_TURN(u);
                if (u == 0 && m < M) rp_line_load(&p, &line, g, m); /* a thread's rows are the same in all turns */
                if (ours) rp_held_load(&p, &held[u], g, m, at.image, spot);
            }
#endif
            _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < 2; j++)
                _Pragma("unroll") for (int v = 0; v < 4; v++)
                    st[RP_ST_AT(i * 16 + lane / 4 + v / 2 * 8, warp * 16 + j * 8 + lane % 4 * 2 + v % 2)] =
                        acc[i][pass * 2 + j][v];
            rp_barrier();
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
                const RP_ACC *sums = &st[RP_ST_AT(r, in_pass)];
                const RP_INDEX n = rp_column(&p, at.image, spot);
#if RP_OUT_WIDE
                __align__(16) RP_ACC sum[8];
                rp_add_sums(sum, sums, 8);
                rp_finish_wide(&p, sum, &held[u], &line, g, m, n, spot, cg, og);
#else
                rp_finish(&p, *sums, g, m, n, spot, cg, og);
#endif
            }
            rp_barrier();
        }
    }
    rp_cp_async_wait(0);
}
