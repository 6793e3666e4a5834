/* How the sums of a tile leave (conv_mma.cuh, conv_bulk.cuh): a pass of rows and columns at a time goes through shared memory, so that neighbours
 * in a warp store neighbours, in vectors of eight (RP_OUT_WIDE), and what other blocks of a cluster have is added up. Put behind the macros of a
 * tile (RP_TM, RP_TN, RP_WM, RP_TILES; without RP_WG those of conv_tile.cuh) and conv_common.cuh. */
#if RP_WG
/* Columns of a warpgroup; a pass of results is of all rows and of columns of both warpgroups: as many as leave each thread eight vectors, of
 * which it reads 16 bytes each ahead, and fit the room of the tiles; else 64. */
#define RP_WGN (RP_TN / (2 / RP_WM))
#if RP_OUT_WIDE && RP_HELD_BYTES <= 24 && RP_TILES > 1
#define RP_PASSES ((RP_TM * RP_TN + 16383) / 16384)
#else
#define RP_PASSES (RP_TN / 64)
#endif
#define RP_PASS_ROWS RP_TM
#define RP_PASS_COLUMNS (RP_TN / RP_PASSES)
#define RP_PASS_WGN (RP_WGN / RP_PASSES)
#define RP_ROW_OF(pass, r) (r)
#define RP_COLUMN_OF(pass, j) ((j) / RP_PASS_WGN * RP_WGN + (pass)*RP_PASS_WGN + (j) % RP_PASS_WGN)
#else
#define RP_PASS_COLUMNS RP_TN
#define RP_COLUMN_OF(pass, j) (j)
#ifndef RP_COLUMN_AT /* of a warp, fragment j */
#define RP_COLUMN_AT(j, i) ((j)*8 + (i))
#endif
#endif
#ifdef RP_BESIDE /* threads behind the 256 that multiply come along */
#define RP_MULTIPLIES (t < 256)
#else
#define RP_MULTIPLIES 1
#endif
/* A pass of results, neighbours in memory side by side. */
#define RP_ST_ROW (RP_OUT_ROWS ? RP_PASS_ROWS + 4 : RP_PASS_COLUMNS + 4)
#define RP_ST_AT(r, n) (RP_OUT_ROWS ? (n)*RP_ST_ROW + (r) : (r)*RP_ST_ROW + (n))
/* What a thread takes of a pass, and turn u of it: r and in_pass, where the sums stand, m and j, the row and column of the tile; is it ours? */
#define RP_EACH (RP_OUT_WIDE ? 8 : 1)
#define RP_TURNS (RP_PASS_ROWS * RP_PASS_COLUMNS / RP_EACH / 256)
#define RP_PLACE_OF_TURN(u)                                                                                            \
    const int e = t + (u)*256,                                                                                         \
              r = RP_OUT_ROWS ? e % (RP_PASS_ROWS / RP_EACH) * RP_EACH : e / (RP_PASS_COLUMNS / RP_EACH),              \
              in_pass = RP_OUT_ROWS ? e / (RP_PASS_ROWS / RP_EACH) : e % (RP_PASS_COLUMNS / RP_EACH) * RP_EACH,        \
              j = RP_COLUMN_OF(pass, in_pass);                                                                         \
    const RP_INDEX m = m0 + RP_ROW_OF(pass, r);                                                                        \
    const int ours = RP_MULTIPLIES && m < M && n0 + j < N &&                                                           \
                     (u) % RP_SPLIT == rank % RP_SPLIT; /* blocks of a cluster share a pass */

#if RP_WG
#define RP_SUMS float *acc
#else
#define RP_SUMS float(*acc)[RP_FN_][4]
#endif
/* Of the block's tile, whose first result is (m0, n0) of M x N; `st` is room for a pass, and nobody reads there any more. */
RP_FN void rp_leave(const RP_WORDS *q, RP_ACC *st, RP_SUMS, const rp_result *result, int t, int rank, RP_INDEX g,
                    RP_INDEX m0, RP_INDEX n0, RP_INDEX M, RP_INDEX N, RP_INDEX cg, RP_INDEX og) {
    const int lane = t % 32;
#if RP_WG
    const int group = t / 128, wm = RP_WM == 2 ? group : 0, wn = RP_WM == 2 ? 0 : group,
              wrow = t / 32 % 4 * 16 + lane / 4;
#else
    const int wm = t / 32 / RP_WN, wn = t / 32 % RP_WN;
#endif
#if RP_OUT_WIDE
    rp_line line;
#endif
    _Pragma("unroll") for (int pass = 0; pass < RP_PASSES; pass++) {
#if RP_OUT_WIDE /* what follows reads ahead */
        rp_held held[RP_TURNS];
        _Pragma("unroll") for (int u = 0; u < RP_TURNS; u++) {
            RP_PLACE_OF_TURN(u)
            /* a thread's rows are the same in all turns, and where a pass has all rows of the tile */
            if (u == 0 && m < M && (pass == 0 || RP_PASS_ROWS != RP_TM)) rp_line_load(q, &line, g, m);
            if (ours) rp_held_load(q, &held[u], g, m, result[j].n, result[j].at);
        }
#endif
#if RP_WG
        _Pragma("unroll") for (int j = 0; j < RP_PASS_WGN / 8; j++)
            _Pragma("unroll") for (int v = 0; v < 4; v++) if (RP_MULTIPLIES)
                st[RP_ST_AT(wm * 64 + wrow + v / 2 * 8, wn * RP_PASS_WGN + j * 8 + lane % 4 * 2 + v % 2)] =
                    acc[(pass * (RP_PASS_WGN / 8) + j) * 4 + v];
#else
        _Pragma("unroll") for (int j = 0; j < RP_FN_; j++) _Pragma("unroll") for (int v = 0; v < 4;
                                                                                  v++) if (RP_MULTIPLIES)
            st[RP_ST_AT(wm * 16 + lane / 4 + v / 2 * 8, wn * (RP_TN / RP_WN) + RP_COLUMN_AT(j, lane % 4 * 2 + v % 2))] =
                acc[pass][j][v];
#endif
#if RP_SPLIT > 1
        rp_cluster_barrier(RP_SPLIT);
#else
        rp_barrier();
#endif
#if RP_OUT_WIDE
        _Pragma("unroll")
#else
        _Pragma("unroll 1")
#endif
            for (int u = 0; u < RP_TURNS; u++) {
            RP_PLACE_OF_TURN(u)
            if (!ours) continue;
            __align__(16) RP_ACC sum[RP_EACH];
            const RP_ACC *from = &st[RP_ST_AT(r, in_pass)];
#if RP_OUT_WIDE
            rp_eight_sums(sum, from);
#elif RP_SPLIT > 1
            RP_ACC part[RP_SPLIT];
            _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) part[other] =
                RP_CLUSTER_READ(from, other, RP_SPLIT);
            sum[0] = part[0];
            _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) sum[0] = sum[0] + part[other];
#else
            sum[0] = *from;
#endif
#if RP_OUT_WIDE
            rp_finish_wide(q, sum, &held[u], &line, g, m, result[j].n, result[j].at, cg, og);
#else
            const RP_INDEX n = result[j].n, *at = result[j].at;
            rp_finish(q, sum[0], g, m, n, at, cg, og);
#endif
        }
#if RP_SPLIT > 1
        rp_cluster_done(RP_SPLIT); /* others have read this pass */
#else
        rp_barrier();
#endif
    }
}
