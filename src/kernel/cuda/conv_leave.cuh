/* How the sums of a tile leave (conv_mma.cuh, conv_bulk.cuh): a pass of rows and columns at a time goes through shared memory, so that neighbours
 * in a warp store neighbours, in vectors (RP_OUT_WIDE) of eight or, of f32 that nothing follows, four, and what other blocks of a cluster have is added up. Put behind the macros of a
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
/* What a block of a cluster takes of a pass, and a thread in turn u: r and in_pass, where the sums stand, m and j, the row and column of the
 * tile; is there anything? */
#if !RP_OUT_WIDE
#define RP_EACH 1
#elif RP_REST
#define RP_EACH 8
#else
#define RP_EACH RP_AT_ONCE
#endif
#define RP_OF_PASS (RP_PASS_ROWS * RP_PASS_COLUMNS / RP_EACH / RP_SPLIT)
#define RP_TURNS ((RP_OF_PASS + 255) / 256)
/* Of so many turns, a thread's reads that are under way at once. */
#define RP_UNDER_WAY(turns) ((turns) % 4 == 0 ? 4 : (turns) % 3 == 0 ? 3 : (turns) % 2 == 0 ? 2 : 1)
#define RP_TURNS_AT_ONCE RP_UNDER_WAY(RP_TURNS)
#define RP_PLACE_OF_TURN(u)                                                                                            \
    const int e = rank % RP_SPLIT * RP_OF_PASS + t + (u)*256,                                                          \
              r = RP_OUT_ROWS ? e % (RP_PASS_ROWS / RP_EACH) * RP_EACH : e / (RP_PASS_COLUMNS / RP_EACH),              \
              in_pass = RP_OUT_ROWS ? e / (RP_PASS_ROWS / RP_EACH) : e % (RP_PASS_COLUMNS / RP_EACH) * RP_EACH,        \
              j = RP_COLUMN_OF(pass, in_pass);                                                                         \
    const RP_INDEX m = m0 + RP_ROW_OF(pass, r);                                                                        \
    const int ours = RP_MULTIPLIES && (RP_OF_PASS % 256 == 0 || t + (u)*256 < RP_OF_PASS) && m < M && n0 + j < N;

#if RP_WG
#define RP_SUMS float *acc
#else
#define RP_SUMS float(*acc)[RP_FN_][4]
#endif
/* Two sums of a row of a pass, side by side from an even column on. */
RP_FN void rp_leave_two(RP_ACC *st, int row, int column, const float *two) {
#if RP_OUT_ROWS
    st[RP_ST_AT(row, column)] = two[0], st[RP_ST_AT(row, column + 1)] = two[1];
#else
    const rp_f32x2 both = {two[0], two[1]};
    *(rp_f32x2 *)&st[RP_ST_AT(row, column)] = both;
#endif
}
#if RP_WG && RP_OUT_WIDE && !RP_REST && !RP_PARTS && !RP_TF32 && RP_SPLIT == 1
/* 16-bit results that nothing follows are rounded first, and take half the room: all of them leave in one pass, eight a line of a matrix. */
#define RP_NARROW_ROW ((RP_OUT_ROWS ? RP_TM : RP_TN) + 8) /* lines of a matrix lie in different banks */
#define RP_NARROW_TURNS (RP_TM * RP_TN / 8 / 256)
#define RP_NARROW_ONCE RP_UNDER_WAY(RP_NARROW_TURNS)
RP_FN void rp_leave_narrow(const RP_WORDS *q, RP_T *st, const float *acc, const rp_result *result, int t, RP_INDEX g,
                           RP_INDEX m0, RP_INDEX n0, RP_INDEX M, RP_INDEX N, RP_INDEX cg, RP_INDEX og) {
    const int lane = t % 32, group = t / 128, wm = RP_WM == 2 ? group : 0, wn = RP_WM == 2 ? 0 : group;
    if (RP_MULTIPLIES) {
        const int row = wm * 64 + t / 32 % 4 * 16, matrix = lane / 8, line = lane % 8;
#if RP_BIAS
        float bias[2] = {0, 0};
        _Pragma("unroll") for (int i = 0; i < 2; i++) {
            const RP_INDEX m = m0 + row + lane / 4 + i * 8;
            if (m < M) rp_read_bias(q, &bias[i], g * og + m);
        }
#define RP_BIASED(x, i) ((x) + bias[i])
#else
#define RP_BIASED(x, i) (x)
#endif
        _Pragma("unroll") for (int j = 0; j < RP_WGN / 8; j += 2) {
            rp_u32 four[4];
            _Pragma("unroll") for (int v = 0; v < 8; v += 2) four[v / 2] =
                RP_STORE_TWO(RP_BIASED(acc[j * 4 + v], v / 2 % 2), RP_BIASED(acc[j * 4 + v + 1], v / 2 % 2));
            const int r = row + matrix % 2 * 8, n = wn * RP_WGN + (j + matrix / 2) * 8;
#if RP_OUT_ROWS
            rp_stmatrix_x4_trans(&st[(n + line) * RP_NARROW_ROW + r], four);
#else
            rp_stmatrix_x4(&st[(r + line) * RP_NARROW_ROW + n], four);
#endif
        }
    }
    rp_barrier();
    if (!RP_MULTIPLIES) return;
    const RP_WORDS p = *q;
    _Pragma("unroll") for (int u0 = 0; u0 < RP_NARROW_TURNS; u0 += RP_NARROW_ONCE) {
        rp_u32x4 eight[RP_NARROW_ONCE];
        RP_INDEX to[RP_NARROW_ONCE];
        _Pragma("unroll") for (int u = 0; u < RP_NARROW_ONCE; u++) {
            const int e = t + (u0 + u) * 256, r = RP_OUT_ROWS ? e % (RP_TM / 8) * 8 : e / (RP_TN / 8),
                      j = RP_OUT_ROWS ? e / (RP_TM / 8) : e % (RP_TN / 8) * 8;
            eight[u] = *(const rp_u32x4 *)&st[RP_OUT_ROWS ? j * RP_NARROW_ROW + r : r * RP_NARROW_ROW + j];
            to[u] = m0 + r < M && n0 + j < N ? rp_place_of(q, g, m0 + r, result[j].n, cg, og) : -1;
        }
        _Pragma("unroll") for (int u = 0; u < RP_NARROW_ONCE; u++) if (to[u] >= 0)
            rp_st_v4_u32((rp_u32 *)((RP_T *)p.w[RP_KIND] + to[u]), eight[u]);
    }
}
#define RP_NARROW 1
#else
#define RP_NARROW 0
#endif

/* Of the block's tile, whose first result is (m0, n0) of M x N; `st` is room for a pass, and nobody reads there any more. */
RP_FN void rp_leave(const RP_WORDS *q, RP_ACC *st, RP_SUMS, const rp_result *result, int t, int rank, RP_INDEX g,
                    RP_INDEX m0, RP_INDEX n0, RP_INDEX M, RP_INDEX N, RP_INDEX cg, RP_INDEX og) {
#if RP_NARROW
    (void)rank;
    rp_leave_narrow(q, (RP_T *)st, acc, result, t, g, m0, n0, M, N, cg, og);
#else
    const int lane = t % 32;
#if RP_WG
    const int group = t / 128, wm = RP_WM == 2 ? group : 0, wn = RP_WM == 2 ? 0 : group,
              wrow = t / 32 % 4 * 16 + lane / 4;
#else
    const int wm = t / 32 / RP_WN, wn = t / 32 % RP_WN;
#endif
#if RP_OUT_WIDE && RP_REST
    rp_line line;
#endif
    _Pragma("unroll") for (int pass = 0; pass < RP_PASSES; pass++) {
#if RP_OUT_WIDE && RP_REST /* what follows reads ahead */
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
            _Pragma("unroll") for (int v = 0; v < 4; v += 2) if (RP_MULTIPLIES)
                rp_leave_two(st, wm * 64 + wrow + v / 2 * 8, wn * RP_PASS_WGN + j * 8 + lane % 4 * 2,
                             &acc[(pass * (RP_PASS_WGN / 8) + j) * 4 + v]);
#else
        _Pragma("unroll") for (int i = pass * (RP_FM / RP_PASSES); i < (pass + 1) * (RP_FM / RP_PASSES); i++)
            _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
                _Pragma("unroll") for (int v = 0; v < 4; v += 2) if (RP_MULTIPLIES)
                    rp_leave_two(st, RP_FRAGMENT_ROW(i, wm, lane / 4 + v / 2 * 8),
                                 wn * (RP_TN / RP_WN) + RP_COLUMN_AT(j, lane % 4 * 2), &acc[i][j][v]);
#endif
#if RP_SPLIT > 1
        rp_cluster_barrier(RP_SPLIT);
#else
        rp_barrier();
#endif
#if RP_OUT_WIDE && !RP_REST
        /* several turns' reads, then what they store */
        if (RP_MULTIPLIES) {
            _Pragma("unroll") for (int u0 = 0; u0 < RP_TURNS; u0 += RP_TURNS_AT_ONCE) {
                __align__(16) RP_ACC sum[RP_TURNS_AT_ONCE][RP_EACH];
                RP_INDEX to[RP_TURNS_AT_ONCE];
                _Pragma("unroll") for (int u = 0; u < RP_TURNS_AT_ONCE; u++) {
                    RP_PLACE_OF_TURN(u0 + u)
                    to[u] = -1;
                    if (!ours) continue;
                    rp_add_sums(sum[u], &st[RP_ST_AT(r, in_pass)], RP_EACH);
                    rp_add_bias(q, sum[u], RP_EACH, g * og + m);
                    to[u] = rp_place_of(q, g, m, result[j].n, cg, og);
                }
                _Pragma("unroll") for (int u = 0; u < RP_TURNS_AT_ONCE; u++) if (to[u] >= 0)
                    rp_store_wide(q, sum[u], to[u]);
            }
        }
#else
#if RP_OUT_WIDE
        _Pragma("unroll")
#elif RP_REST
        _Pragma("unroll 1")
#else
        _Pragma("unroll 4")
#endif
            for (int u = 0; u < RP_TURNS; u++) {
            RP_PLACE_OF_TURN(u)
            if (!ours) continue;
            __align__(16) RP_ACC sum[RP_EACH];
            const RP_ACC *from = &st[RP_ST_AT(r, in_pass)];
#if RP_OUT_WIDE
            rp_add_sums(sum, from, RP_EACH);
            rp_finish_wide(q, sum, &held[u], &line, g, m, result[j].n, result[j].at, cg, og);
#else
#if RP_SPLIT > 1
            RP_ACC part[RP_SPLIT];
            _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) part[other] =
                RP_CLUSTER_READ(from, other, RP_SPLIT);
            sum[0] = part[0];
            _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) sum[0] = sum[0] + part[other];
#else
            sum[0] = *from;
#endif
            const RP_INDEX n = result[j].n, *at = result[j].at;
            rp_finish(q, sum[0], g, m, n, at, cg, og);
#endif
        }
#endif
#if RP_SPLIT > 1
        rp_cluster_done(RP_SPLIT); /* others have read this pass */
#else
        rp_barrier();
#endif
    }
#endif
}
