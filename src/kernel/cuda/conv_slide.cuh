/* Weight gradient of f32 on CUDA, 1 or 2 spatial dims, whose windows are lines of several taps: conv.cuh's product, order and bits. A row is an
 * output channel, a column a tap, and the inner index runs through the places of the results; but the columns of a thread, RP_L lines of the
 * window (a channel's line each), share what they read: of RP_X places side by side each line of the picture is read once, into registers, for
 * all of its RP_KW taps.
 *
 * Places come in groups of RP_X, of one line of the result, the last of which may have fewer; a stage has RP_GROUPS of them, which cp.async fetches
 * RP_STAGES - 1 ahead. Where groups lie is found in batches while those before them are used. A share may begin and end, and a block of the
 * sum end, within a group.
 *
 * Macros as in conv.cuh: RP_NAME, RP_T, RP_ACC, RP_MULADD, RP_COPY, RP_KIND (2), RP_SPATIAL, RP_INDEX (32 bits), RP_SPLIT, RP_PARTS, RP_UNIT,
 * RP_ASIDE, RP_LONG, RP_LONGER, RP_REST, RP_STAGES; RP_KW, RP_SX: taps of a line, step along it; RP_L; RP_TX. Words as in conv.cuh. */
#define RP_THREADS 128
#define RP_I 8 /* rows of a thread */
#define RP_X 4
#define RP_GROUPS 4
#define RP_PLACES (RP_X * RP_GROUPS)
#define RP_TY (RP_THREADS / RP_TX)
#define RP_TM (RP_TY * RP_I)
#define RP_TL (RP_TX * RP_L) /* lines of a tile */
#define RP_TN (RP_TL * RP_KW)
/* What a group's places see of a line, read in pairs; lines side by side in different banks. */
#define RP_LINE ((RP_X - 1) * RP_SX + RP_KW)
#define RP_PITCH ((RP_LINE + 1) / 2 % 2 ? (RP_LINE + 1) / 2 * 2 : (RP_LINE + 1) / 2 * 2 + 2)
#define RP_SEEN (RP_GROUPS * RP_LINE)
#define RP_BESIDE (RP_THREADS / RP_SEEN) /* lines that all threads fetch at once */
#define RP_NX ((RP_TL + RP_BESIDE - 1) / RP_BESIDE)
#define RP_G_ROW (RP_TM + 4)
#define RP_NG (RP_TM * RP_PLACES / RP_THREADS)
#define RP_PLANE (RP_TL * RP_PITCH)
#define RP_STAGE (RP_PLACES * RP_G_ROW + RP_GROUPS * RP_PLANE)
#define RP_BATCH 128  /* groups found at once */
#define RP_AT_ONCE 10 /* lines whose copies of a thread are made together */
#define RP_EACH                                                                                                        \
    _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int l = 0; l < RP_L; l++)                  \
        _Pragma("unroll") for (int s = 0; s < RP_KW; s++)
/* Results leave in two passes, of four neighbouring rows of each thread. */
#define RP_PASS_ROWS (RP_TY * 4)
#define RP_OUT_ROW (RP_TN + 4)
#define RP_OURS (RP_PASS_ROWS / RP_SPLIT) /* blocks of a cluster share out the rows of a pass */

/* Of two dims. */
#define RP_Y(x) (RP_S == 2 ? (x) : 0)
#define RP_SIZE_Y(field) (RP_S == 2 ? RP_SIZE(field, 0) : 1)
#define RP_SIZE_X(field) RP_SIZE(field, RP_S - 1)

/* A group: where its first place is in dy, and what that sees first in x; which lines of the window are inside, a bit each; its number of the
 * line's places. */
typedef struct __align__(16) {
    RP_INDEX y_off, x_off;
    rp_u32 rows;
    RP_INDEX place;
}
rp_group;
/* A line of the window: from the first one of the first channel on; its bit of rp_group.rows, 0: none. */
typedef struct __align__(8) {
    RP_INDEX off;
    rp_u32 row;
}
rp_line_of;

extern "C" __global__ void RP_CLUSTER __launch_bounds__(RP_THREADS, 2) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char room[]; /* stages; then rows of results */
    __shared__ rp_group groups_at[2 * RP_BATCH];
    __shared__ rp_line_of lines[RP_TL];
    RP_T *const tiles = (RP_T *)room;
    RP_ACC *const st = (RP_ACC *)room;
    const int t = (int)threadIdx.x;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = C / G, og = O / G, g = (RP_INDEX)blockIdx.z;
    RP_SHARE_OF_BLOCK
    const RP_INDEX height = RP_SIZE_Y(RP_OUT), width = RP_SIZE_X(RP_OUT), across = (width + RP_X - 1) / RP_X;
    const RP_INDEX M = og, high = RP_SIZE_Y(RP_KERNEL), all_lines = cg * high, N = all_lines * RP_KW,
                   K = batch * height * width;
    const RP_INDEX m0 = (RP_INDEX)blockIdx.y * RP_TM, line0 = number * RP_TL;
    const RP_INDEX share = ((K + RP_UNIT - 1) / RP_UNIT + shares - 1) / shares * RP_UNIT;
    const RP_INDEX first = rank * share < K ? rank * share : K, end = K - first < share ? K : first + share;
    (void)N, (void)O;
    for (int e = t; e < RP_TL; e += RP_THREADS) {
        const RP_INDEX line = line0 + e, r = line % high;
        rp_line_of at;
        at.off = line < all_lines ? line / high * RP_STRIDE(1, 1) + RP_Y(r * RP_SIZE(RP_DIL, 0) * RP_STRIDE(1, 2)) : 0;
        at.row = line < all_lines ? 1u << r : 0;
        lines[e] = at;
    }
    /* Groups from the first one of the share on. */
    const RP_INDEX begin = first / width * across + first % width / RP_X;
    const RP_INDEX many = first < end ? (end - 1) / width * across + (end - 1) % width / RP_X + 1 - begin : 0;
    const int steps = (int)((many + RP_GROUPS - 1) / RP_GROUPS);
#define RP_FIND_GROUPS(n)                                                                                              \
    if ((n)*RP_BATCH < many) {                                                                                         \
        const RP_INDEX from = begin + (n)*RP_BATCH + t, of = from / across, image = of / height,                       \
                       y = of % height * (RP_S == 2 ? RP_SIZE_Y(RP_STEP) : 1) - RP_Y(RP_SIZE_Y(RP_PAD));               \
        rp_group found;                                                                                                \
        found.place = from % across * RP_X;                                                                            \
        found.y_off =                                                                                                  \
            image * RP_STRIDE(0, 0) + RP_Y(of % height * RP_STRIDE(0, 2)) + found.place * RP_STRIDE(0, 1 + RP_S);      \
        found.x_off = image * RP_STRIDE(1, 0) + RP_Y(y * RP_STRIDE(1, 2)) +                                            \
                      (found.place * RP_SX - RP_SIZE_X(RP_PAD)) * RP_STRIDE(1, 1 + RP_S);                              \
        found.rows = 0;                                                                                                \
        for (int r = 0; r < (int)high; r++)                                                                            \
            found.rows |= (rp_u32)(RP_S == 1 || rp_within(y + r * RP_SIZE(RP_DIL, 0), RP_SIZE(RP_IN, 0))) << r;        \
        if (image >= batch) found.rows = 0, found.place = width;                                                       \
        groups_at[(n) % 2 * RP_BATCH + t] = found;                                                                     \
    }
    rp_launch_dependents();
    rp_grid_wait();
    /* A thread's elements of dy are of one place of a stage, 8 rows apart; of x, of one place of what a group sees. */
    const int g_place = t % RP_PLACES, g_row = t / RP_PLACES, x_group = t % RP_SEEN / RP_LINE, x_at = t % RP_LINE,
              x_line = t / RP_SEEN;
    const RP_INDEX y_row = RP_STRIDE(0, 1), rows_left = M - m0 - g_row, y_step = RP_THREADS / RP_PLACES * y_row,
                   y_along = g_place % RP_X * RP_STRIDE(0, 1 + RP_S), x_along = x_at * RP_STRIDE(1, 1 + RP_S);
    const RP_T *const dy = (const RP_T *)rp_opaque((const RP_T *)p.w[0] + ((g * og + m0 + g_row) * y_row + y_along));
    const RP_T *const x = (const RP_T *)rp_opaque((const RP_T *)p.w[1] + (g * cg * RP_STRIDE(1, 1) + x_along));
#define RP_READ(n, slot)                                                                                               \
    {                                                                                                                  \
        const int spot = (n)*RP_GROUPS % (2 * RP_BATCH);                                                               \
        if ((n)*RP_GROUPS % RP_BATCH == 0) RP_FIND_GROUPS((n)*RP_GROUPS / RP_BATCH + 1)                                \
        RP_T *const stage = tiles + (slot)*RP_STAGE;                                                                   \
        const rp_group one = groups_at[spot + g_place / RP_X], two = groups_at[spot + x_group];                        \
        const int live = one.place + g_place % RP_X < width;                                                           \
        const RP_T *from = dy + one.y_off;                                                                             \
        _Pragma("unroll") for (int i = 0; i < RP_NG; i++) {                                                            \
            RP_COPY(&stage[g_place * RP_G_ROW + g_row + i * (RP_THREADS / RP_PLACES)], from,                           \
                    live &&i *(RP_THREADS / RP_PLACES) < rows_left);                                                   \
            from += y_step;                                                                                            \
        }                                                                                                              \
        const rp_u32 inside =                                                                                          \
            rp_within(two.place * RP_SX - RP_SIZE_X(RP_PAD) + x_at, RP_SIZE_X(RP_IN)) ? two.rows : 0;                  \
        const RP_T *const seen = x + two.x_off;                                                                        \
        RP_T *const to = stage + RP_PLACES * RP_G_ROW + x_group * RP_PLANE + x_at;                                     \
        if (x_line < RP_BESIDE) _Pragma("unroll") for (int i0 = 0; i0 < RP_NX; i0 += RP_AT_ONCE) {                     \
                rp_line_of at[RP_AT_ONCE]; /* before the first copy: one that follows a copy waits for it */           \
                _Pragma("unroll") for (int i = 0; i < RP_AT_ONCE && i0 + i < RP_NX; i++) {                             \
                    const int line = x_line + (i0 + i) * RP_BESIDE;                                                    \
                    at[i] = lines[line < RP_TL ? line : 0];                                                            \
                }                                                                                                      \
                _Pragma("unroll") for (int i = 0; i < RP_AT_ONCE && i0 + i < RP_NX; i++) {                             \
                    const int line = x_line + (i0 + i) * RP_BESIDE;                                                    \
                    if (RP_TL % RP_BESIDE == 0 || i0 + i < RP_NX - 1 || line < RP_TL)                                  \
                        RP_COPY(&to[line * RP_PITCH], seen + at[i].off, inside & at[i].row);                           \
                }                                                                                                      \
            }                                                                                                          \
    }
    /* a warp is 4 x 8 threads, so what it reads at once of either tile lies in different banks */
    const int tx = t / 32 % (RP_TX / 8) * 8 + t % 8, ty = t / 32 / (RP_TX / 8) * 4 + t / 8 % 4;
    RP_ACC acc[RP_I][RP_L][RP_KW];
    RP_EACH acc[i][l][s] = 0;
#if RP_LONG
    RP_ASIDE RP_ACC blocks[RP_I][RP_L][RP_KW]; /* of the group under way */
    RP_EACH blocks[i][l][s] = 0;
    int block = 0; /* how many there are */
#endif
#if RP_LONGER
    RP_ASIDE RP_ACC groups[RP_I][RP_L][RP_KW]; /* before it */
    RP_EACH groups[i][l][s] = 0;
#endif
    RP_FIND_GROUPS(0)
    rp_barrier();
    _Pragma("unroll") for (int n = 0; n < RP_STAGES - 1; n++) {
        if (n < steps) RP_READ(n, n)
        rp_cp_async_commit();
    }
    RP_INDEX k = first - first % width % RP_X, place = first % width / RP_X * RP_X; /* of the group under way */
    int turn = 0, left = RP_BLOCK;                                                  /* places until a block ends */
    for (int n = 0; n < steps; n++) {
        rp_cp_async_wait(RP_STAGES - 2);
        rp_barrier();
        if (n + RP_STAGES - 1 < steps) RP_READ(n + RP_STAGES - 1, (turn == 0 ? RP_STAGES - 1 : turn - 1))
        rp_cp_async_commit();
        _Pragma("unroll 1") for (int q = 0; q < RP_GROUPS && k < end; q++) {
            const RP_T *const g_from = tiles + turn * RP_STAGE + q * (RP_X * RP_G_ROW) + ty * 4;
            const RP_T *const x_from = tiles + turn * RP_STAGE + RP_PLACES * RP_G_ROW + q * RP_PLANE + tx * RP_PITCH;
            const int some = width - place < RP_X ? (int)(width - place) : RP_X,
                      last = end - k < some ? (int)(end - k) : some;
            RP_ACC v[RP_L][RP_PITCH];
            _Pragma("unroll") for (int l = 0; l < RP_L; l++) _Pragma("unroll") for (int j = 0; j < RP_LINE; j += 2) {
                const rp_f32x2 two = *(const rp_f32x2 *)(x_from + l * (RP_TX * RP_PITCH) + j);
                v[l][j] = two.x, v[l][j + 1] = two.y;
            }
            int at = first > k ? (int)(first - k) : 0;
            while (at < last) {
                const int to = last - at < left ? last : at + left;
                _Pragma("unroll") for (int u = 0; u < RP_X; u++) if (u >= at && u < to) {
                    RP_ACC d[RP_I];
                    _Pragma("unroll") for (int i = 0; i < RP_I; i += 4) {
                        const rp_f32x4 four = *(const rp_f32x4 *)(g_from + u * RP_G_ROW + i / 4 * (RP_TY * 4));
                        d[i] = four.x, d[i + 1] = four.y, d[i + 2] = four.z, d[i + 3] = four.w;
                    }
                    RP_EACH acc[i][l][s] = RP_MULADD(d[i], v[l][u * RP_SX + s], acc[i][l][s]);
                }
                left -= to - at;
                at = to;
#if RP_LONG
                const int ends = k + at == end;
                if (left == 0 || ends) {
                    if (block % RP_GROUP == 0) {
                        RP_EACH blocks[i][l][s] = acc[i][l][s];
                    } else {
                        RP_EACH blocks[i][l][s] = blocks[i][l][s] + acc[i][l][s];
                    }
#if RP_LONGER
                    if (block % RP_GROUP == RP_GROUP - 1 || ends) {
                        if (block < RP_GROUP) {
                            RP_EACH groups[i][l][s] = blocks[i][l][s];
                        } else {
                            RP_EACH groups[i][l][s] = groups[i][l][s] + blocks[i][l][s];
                        }
                    }
#endif
                    RP_EACH acc[i][l][s] = 0;
                    block++;
                    left = RP_BLOCK;
                }
#endif
            }
            k += some;
            place = place + RP_X < width ? place + RP_X : 0;
        }
        turn = turn == RP_STAGES - 1 ? 0 : turn + 1;
    }
    rp_cp_async_wait(0);
    rp_barrier();
    _Pragma("unroll") for (int pass = 0; pass < RP_I / 4; pass++) {
        _Pragma("unroll") for (int i = 0; i < 4; i++) _Pragma("unroll") for (int l = 0; l < RP_L; l++)
            _Pragma("unroll") for (int s = 0; s < RP_KW; s++)
                st[(ty * 4 + i) * RP_OUT_ROW + (l * RP_TX + tx) * RP_KW + s] =
#if RP_LONGER
                    groups[pass * 4 + i][l][s];
#elif RP_LONG
                    blocks[pass * 4 + i][l][s];
#else
                    acc[pass * 4 + i][l][s];
#endif
#if RP_SPLIT > 1
        rp_cluster_barrier(RP_SPLIT);
#else
        rp_barrier();
#endif
        for (int e = t; e < RP_OURS * RP_TN; e += RP_THREADS) {
            const int r = e / RP_TN * RP_SPLIT + (RP_SPLIT > 1 ? rank : 0), column = e % RP_TN;
#if RP_SPLIT > 1
            RP_ACC part[RP_SPLIT];
            _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) part[other] =
                RP_CLUSTER_READ(&st[r * RP_OUT_ROW + column], other, RP_SPLIT);
            RP_ACC sum = part[0];
            _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) sum = sum + part[other];
#else
            const RP_ACC sum = st[r * RP_OUT_ROW + column];
#endif
            const RP_INDEX m = m0 + pass * RP_PASS_ROWS + r, line = line0 + column / RP_KW;
            if (m >= M || line >= all_lines) continue;
            RP_INDEX at[RP_S];
            at[0] = line % high;
            at[RP_S - 1] = column % RP_KW;
#if RP_PARTS
            rp_finish(&p, sum, g, m, rank * (O * N) + line0 * RP_KW + column, at, cg, og);
#else
            rp_finish(&p, sum, g, m, rp_column(&p, line / high, at), at, cg, og);
#endif
        }
#if RP_SPLIT > 1
        rp_cluster_barrier(RP_SPLIT); /* others have read this pass */
#else
        rp_barrier();
#endif
    }
}
