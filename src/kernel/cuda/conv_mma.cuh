/* Convolution of 16-bit floats, and of f32 rounded to tf32 (RP_TF32), on tensor cores, where both operands are read 16 bytes at once: channels lie side by side, or, of
 * a window of one place, pixels do. conv.cuh has the three products (RP_KIND) and their rows, columns and inner index; this text gives the
 * same bits as that one's RP_MMA and differs in how a tile comes into shared memory:
 *   - what depends on a tap (offset, place) is in a table, found once by the block; what depends on a pixel is in a thread's registers
 *     (kinds 0 and 1), where a thread meets the same columns in every step, or in a table that runs along with the inner index (kind 2);
 *   - everything but what RP_HOLD says goes by cp.async, RP_STAGES tiles ahead;
 *   - an input gradient of a strided convolution takes the columns in classes of equal rest (RP_CLASSES), each with its own taps: no
 *     product with a zero in between;
 *   - results leave as vectors of eight (RP_OUT_WIDE) along what is contiguous in memory;
 *   - RP_WG (devices of 9.0): warpgroups multiply, RP_WM of them above each other and 2 / RP_WM side by side, out of tiles in the swizzled
 *     order that they read; a step's products run while the threads fetch the tile after next;
 *   - f32 for warpgroups, which do not round to tf32, comes by way of registers (RP_HOLD), a step ahead, and is rounded there, once: what
 *     passes through shared memory takes from what they read there. Other warps round what they multiply. Of kind 2 it is turned
 *     in registers, since warpgroups read f32 with the inner index running fastest (RP_TURNED).
 *
 * Macros as in conv.cuh: RP_NAME, RP_T, RP_ACC, RP_LOAD, RP_STORE, RP_MMA_STEP, RP_KIND, RP_SPATIAL, RP_BIAS, RP_TM, RP_TN, RP_TK, RP_WM,
 * RP_STAGES, RP_SPLIT, RP_PARTS, RP_INDEX, RP_OUT_ROWS, RP_REST, RP_RESIDENT; RP_TILES, of them in memory (fewer where there are fewer steps); RP_MASKS: a window of at most 32 places; RP_WG and, with it, RP_WG_STEP and its like; RP_UNIT, steps of which a share of the inner index is made;
 * RP_A_ALONG: vectors of the operand without windows run along the inner index, else along rows; RP_A_ONE: it is f32 and comes one by one, however it lies, neighbours in a warp along what RP_A_ALONG says; RP_B_ALONG: those of the other one
 * along the inner index, else along columns; RP_SAME: a step of the inner index is of one tap; RP_POINT: the window is the pixel itself, and pixel n of all images lies n steps from the first one in all that is read and written; RP_TAPS, the most that a window has.
 * Words as in conv.cuh. */
#define RP_FAR (-(1 << 29)) /* a place outside of every operand */

typedef struct __align__(16) {
    RP_INDEX off, at[RP_S];
}
rp_spot;

RP_FN int rp_inside(const rp_spot *a, const rp_spot *b, const RP_INDEX *bound) {
    int ok = 1;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) { ok = ok & rp_within(a->at[d] + b->at[d], bound[d]); }
    return ok;
}

#if RP_MASKS
/* Of a pixel the places of the window that are inside, a bit each; of a tap its own bit. */
typedef struct __align__(2 * sizeof(RP_INDEX)) {
    RP_INDEX off;
    rp_u32 key;
}
rp_near;
RP_FN rp_u32 rp_inside_all(const rp_spot *pixel, const rp_spot *taps, int n, const RP_INDEX *bound) {
    rp_u32 key = 0;
    for (int k = 0; k < n; k++) key |= (rp_u32)rp_inside(pixel, &taps[k], bound) << k;
    return key;
}
#else
typedef rp_spot rp_near;
#endif

#if RP_WG
/* Rows of 128 bytes, whose pieces of 16 are in an order of their own: 64 of the inner index (of f32 32), or 64 rows (columns) in panels. */
#define RP_ALONG_AT(m, k) ((m) * (8 * RP_C) + (((k) / RP_C) ^ (m) % 8) * RP_C + (RP_A_ONE ? (k) % RP_C : 0))
#define RP_ACROSS_AT(m, k) ((m) / 64 * (64 * RP_TK) + (k)*64 + (((m) / 8 % 8) ^ (k) % 8) * 8)
#define RP_A_SIZE (RP_TM * RP_TK)
#define RP_B_SIZE (RP_TN * RP_TK)
#define RP_A_DEEP (RP_A_ALONG || RP_TF32) /* the inner index runs fastest, as tf32 has to */
#define RP_B_DEEP (RP_B_ALONG || RP_TF32)
#define RP_A_AT(m, k) (RP_A_DEEP ? RP_ALONG_AT(m, k) : RP_ACROSS_AT(m, k))
#define RP_B_AT(n, k) (RP_B_DEEP ? RP_ALONG_AT(n, k) : RP_ACROSS_AT(n, k))
#endif
/* Vectors of a thread in a tile; those side by side are along RP_A_ALONG, RP_B_ALONG. */
#define RP_AW (RP_A_ONE ? 1 : RP_C) /* elements of a copy */
#define RP_AV ((RP_A_ALONG ? RP_TK : RP_TM) / RP_AW)
#define RP_BV ((RP_B_ALONG ? RP_TK : RP_TN) / RP_C)
#define RP_NA ((RP_TM * RP_TK / RP_AW + 255) / 256)
#define RP_NB ((RP_TN * RP_TK / RP_C + 255) / 256)
#define RP_A_FULL (RP_TM * RP_TK / RP_AW % 256 == 0)
#define RP_B_FULL (RP_TN * RP_TK / RP_C % 256 == 0)
#define RP_HOLD (RP_WG && RP_TF32)
/* What is not there is not read, wherever its address may be. */
#define RP_HELD_OR_ZERO(v, from, there, each)                                                                          \
    if (there) {                                                                                                       \
        rp_floats_get(v, from, each);                                                                                  \
    } else {                                                                                                           \
        _Pragma("unroll") for (int q = 0; q < (each); q++)(v)[q] = 0;                                                  \
    }
/* Of kind 2 memory has rows side by side, and warpgroups read the inner index side by side: a thread has four rows of each of RP_TURNED elements of
 * the inner index next to each other, times how many there are, n of them in all. Lanes are numbered so that a warp reads whole lines, and eight
 * lanes (of pairs sixteen) that store at once meet all banks: two of them side by side are along rows, the next four (eight) along the inner index,
 * the others along rows again. RP_TURNED_AT: where element i of a thread is along the inner index. */
#define RP_TURNED(n) ((n) < 4 ? (n) : 4)
#define RP_TURNED_LANES(n) (RP_TURNED(n) == 4 ? 4 : 8)
#define RP_TURNED_WARPS(rows, n) ((rows)*RP_TURNED_LANES(n) / 128) /* side by side along rows */
#define RP_TURNED_ROW(rows, n)                                                                                         \
    ((t / 32 % RP_TURNED_WARPS(rows, n) * (32 / RP_TURNED_LANES(n)) + t % 2 + t % 32 / 2 / RP_TURNED_LANES(n) * 2) *   \
     RP_C)
#define RP_TURNED_AT(rows, n, i)                                                                                       \
    (((t / 32 / RP_TURNED_WARPS(rows, n) + (i) / RP_TURNED(n) * (8 / RP_TURNED_WARPS(rows, n))) * RP_TURNED_LANES(n) + \
      t / 2 % RP_TURNED_LANES(n)) *                                                                                    \
         RP_TURNED(n) +                                                                                                \
     (i) % RP_TURNED(n))
#define RP_BATCH 256 /* pixels found at once by kind 2, one a thread, while those before them are used */

extern "C" __global__ void RP_CLUSTER __launch_bounds__(256, RP_RESIDENT) RP_NAME(const RP_WORDS p) {
    /* RP_TILES tiles of both operands; then rows of results */
#if RP_WG /* tiles begin at multiples of 1024 bytes: what else is shared lies behind them */
    extern __shared__ __align__(1024) unsigned char room[];
    rp_near *const column = (rp_near *)(room + RP_TILES * (RP_A_SIZE + RP_B_SIZE) * sizeof(RP_T));
#if RP_KIND == 2
    rp_spot *const tap_spot = (rp_spot *)(column + RP_TN);
    rp_near *const inner = (rp_near *)(tap_spot + 32);
    RP_INDEX *const inner_plain = (RP_INDEX *)(inner + 512);
    rp_result *const result = (rp_result *)(inner_plain + 512);
#else
    rp_spot *const tap_spot = (rp_spot *)(column + RP_TN);
    RP_INDEX *const tap_plain = (RP_INDEX *)(tap_spot + RP_TAPS);
    rp_result *const result = (rp_result *)(tap_plain + RP_TAPS);
#endif
#else
    extern __shared__ __align__(16) unsigned char room[];
    __shared__ rp_near column[RP_TN];
    __shared__ rp_result result[RP_TN];
#if RP_KIND == 2
    __shared__ rp_spot tap_spot[32];
    __shared__ rp_near inner[2 * RP_BATCH];
    __shared__ RP_INDEX inner_plain[2 * RP_BATCH];
#else
    __shared__ rp_spot tap_spot[RP_TAPS];
    __shared__ RP_INDEX tap_plain[RP_TAPS]; /* offset in the operand without windows */
#endif
#endif
    RP_T *sa = (RP_T *)room, *sb = sa + RP_TILES * RP_A_SIZE;
    RP_ACC *st = (RP_ACC *)room;
    const int t = (int)threadIdx.x;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = G == 1 ? C : C / G, og = G == 1 ? O : O / G, g = (RP_INDEX)blockIdx.z;
    RP_SHARE_OF_BLOCK
    const RP_INDEX m0 = (RP_INDEX)blockIdx.y * RP_TM;
    const rp_places own = rp_places_of(&p, &number, RP_TN);
    RP_INDEX bound[RP_S];
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) bound[d] = RP_SIZE(RP_BOUND, d);
    const RP_INDEX n0 = number * RP_TN, taps = RP_POINT ? 1 : own.taps, points = own.points;
#if RP_KIND == 0
    const RP_INDEX M = og, N = batch * points, channels = cg, K = cg * taps;
#elif RP_KIND == 1
    const RP_INDEX M = cg, N = batch * points, channels = og, K = og * taps;
#else
    const RP_INDEX M = og, N = cg * taps, channels = cg, K = batch * points;
#endif
    (void)channels;
#if RP_SPLIT == 1 && !RP_PARTS
    const RP_INDEX first = 0, end = K;
    (void)shares;
#else
    const RP_INDEX unit = RP_UNIT_OF(channels, taps), share = ((K + unit - 1) / unit + shares - 1) / shares * unit;
    const RP_INDEX first = rank * share < K ? rank * share : K, end = K - first < share ? K : first + share;
#endif
#if RP_CLASSES
    if (n0 >= N) return; /* a class with fewer places than the first one */
#endif
#if RP_POINT
    (void)tap_spot, (void)tap_plain, (void)bound;
#elif RP_KIND != 2
    for (int e = t; e < (int)taps; e += 256) {
        RP_INDEX k = e, r[RP_S], plain = 0;
        rp_spot s;
        s.off = 0;
        rp_split(own.kernel, &k, r);
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
#if RP_CLASSES
            r[d] = own.tap_begin[d] + r[d] * own.tap_step[d];
            s.at[d] = (own.begin[d] + RP_SIZE(RP_PAD, d) - r[d] * RP_SIZE(RP_DIL, d)) / RP_SIZE(RP_STEP, d);
#elif RP_KIND == 1
            s.at[d] = RP_SIZE(RP_PAD, d) - r[d] * RP_SIZE(RP_DIL, d);
#else
            s.at[d] = r[d] * RP_SIZE(RP_DIL, d);
#endif
            s.off += s.at[d] * RP_STRIDE(RP_WINDOWED, 2 + d);
            plain += r[d] * RP_STRIDE(2, 2 + d);
        }
        tap_spot[e] = s;
        tap_plain[e] = plain;
    }
#elif RP_MASKS
    const int window = (int)taps;
    for (int e = t; e < window; e += 256) {
        RP_INDEX k = e, r[RP_S];
        rp_spot s;
        s.off = 0;
        rp_split(own.kernel, &k, r);
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) s.at[d] = r[d] * RP_SIZE(RP_DIL, d);
        tap_spot[e] = s;
    }
#else
    (void)tap_spot;
#endif
#if RP_MASKS && !RP_POINT
    rp_barrier();
#endif
    for (int e = t; e < RP_TN; e += 256) {
        RP_INDEX n = n0 + e;
        rp_spot s;
        rp_result r;
#if RP_POINT
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) r.at[d] = d + 1 < RP_S ? 0 : n;
        r.n = 0;
        s.off = n * RP_STRIDE(RP_WINDOWED, 1 + RP_S);
#elif RP_KIND == 2
        const RP_INDEX c = n % channels;
        n /= channels;
        rp_split(own.kernel, &n, r.at);
        r.n = c;
        s.off = c * RP_STRIDE(RP_WINDOWED, 1);
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
            s.at[d] = r.at[d] * RP_SIZE(RP_DIL, d);
            s.off += s.at[d] * RP_STRIDE(RP_WINDOWED, 2 + d);
        }
#else
        rp_split(own.pixels, &n, r.at);
        r.n = n;
        s.off = n * RP_STRIDE(RP_WINDOWED, 0);
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
#if RP_KIND == 0
            s.at[d] = r.at[d] * RP_SIZE(RP_STEP, d) - RP_SIZE(RP_PAD, d);
#else
            s.at[d] = r.at[d];
#endif
            s.off += s.at[d] * RP_STRIDE(RP_WINDOWED, 2 + d);
#if RP_CLASSES
            r.at[d] = own.begin[d] + r.at[d] * RP_SIZE(RP_STEP, d);
#endif
        }
#endif
#if RP_MASKS
        rp_near found;
        found.off = s.off;
#if RP_POINT
        found.key = n0 + e < N;
#elif RP_KIND == 2
        found.key = n0 + e < N ? 1u << (n0 + e) / channels : 0;
#else
        found.key = n0 + e < N ? rp_inside_all(&s, tap_spot, (int)taps, bound) : 0;
#endif
        column[e] = found;
#else
        if (n0 + e >= N) s.at[0] = RP_FAR;
        column[e] = s;
#endif
#if RP_PARTS
        r.n = rank / RP_SPLIT * (O * N) + n0 + e;
#endif
        r.n = rp_column(&p, r.n, r.at);
        result[e] = r;
    }
    rp_launch_dependents();
    rp_grid_wait();
    const RP_T *y = (const RP_T *)p.w[0], *x = (const RP_T *)p.w[1], *w = (const RP_T *)p.w[2];
    (void)y, (void)x, (void)w;
#if RP_KIND == 0
    const RP_T *a = w + g * og * RP_STRIDE(2, 0), *b = x + g * cg * RP_STRIDE(1, 1);
    const RP_INDEX a_row = RP_STRIDE(2, 0), a_inner = RP_STRIDE(2, 1);
#elif RP_KIND == 1
    const RP_T *a = w + g * og * RP_STRIDE(2, 0), *b = y + g * og * RP_STRIDE(0, 1);
    const RP_INDEX a_row = RP_STRIDE(2, 1), a_inner = RP_STRIDE(2, 0);
#else
    const RP_T *a = y + g * og * RP_STRIDE(0, 1), *b = x + g * cg * RP_STRIDE(1, 1);
    const RP_INDEX a_row = RP_STRIDE(0, 1);
#endif
    rp_barrier();

#if RP_KIND == 2
#if RP_MASKS
#define RP_KEEP_INNER(to)                                                                                              \
    rp_near found;                                                                                                     \
    found.off = s.off;                                                                                                 \
    found.key = from < end ? rp_inside_all(&s, tap_spot, window, bound) : 0;                                           \
    to = found;
#define RP_MEET(one, two) ((two).key & (one).key)
#else
#define RP_KEEP_INNER(to)                                                                                              \
    if (from >= end) s.at[0] = RP_FAR;                                                                                 \
    to = s;
#define RP_MEET(one, two) rp_inside(&(one), &(two), bound)
#endif
/* Batch number n of the pixels of the inner index; read behind a barrier. */
#define RP_FIND_INNER(n)                                                                                               \
    if (first + (n)*RP_BATCH < end) {                                                                                  \
        const RP_INDEX from = first + (n)*RP_BATCH + t;                                                                \
        RP_INDEX k = from, at[RP_S];                                                                                   \
        rp_spot s;                                                                                                     \
        rp_split(own.pixels, &k, at);                                                                                  \
        RP_INDEX plain = k * RP_STRIDE(0, 0);                                                                          \
        s.off = k * RP_STRIDE(1, 0);                                                                                   \
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) {                                                             \
            plain += at[d] * RP_STRIDE(0, 2 + d);                                                                      \
            s.at[d] = at[d] * RP_SIZE(RP_STEP, d) - RP_SIZE(RP_PAD, d);                                                \
            s.off += s.at[d] * RP_STRIDE(1, 2 + d);                                                                    \
        }                                                                                                              \
        RP_KEEP_INNER(inner[(n) % 2 * RP_BATCH + t])                                                                   \
        inner_plain[(n) % 2 * RP_BATCH + t] = from < end ? plain : RP_FAR;                                             \
    }
    RP_FIND_INNER(0)
    rp_barrier();
    /* A thread's rows and columns are the same in every step. */
#if RP_HOLD
    const int am = RP_TURNED_ROW(RP_TM, RP_NA), bn = RP_TURNED_ROW(RP_TN, RP_NB);
    float ha[RP_NA * RP_C], hb[RP_NB * RP_C];
#else
    const int am = t % RP_AV * RP_C, ak = t / RP_AV, bn = t % RP_BV * RP_C, bk = t / RP_BV;
#endif
    const rp_near mine = column[bn];
    const RP_T *const a_from = a + (m0 + am) * a_row, *const b_from = b + mine.off;
    const int row_there = m0 + am < M;
#if RP_HOLD
#define RP_READ(step, slot)                                                                                            \
    {                                                                                                                  \
        const int spot = (step)*RP_TK % (2 * RP_BATCH);                                                                \
        if ((step) % (RP_BATCH / RP_TK) == 0) RP_FIND_INNER((step) / (RP_BATCH / RP_TK) + 1)                           \
        _Pragma("unroll") for (int i = 0; i < RP_NA; i++) {                                                            \
            const RP_INDEX plain = inner_plain[spot + RP_TURNED_AT(RP_TM, RP_NA, i)];                                  \
            const int ok = row_there && plain != RP_FAR;                                                               \
            RP_HELD_OR_ZERO(&ha[i * RP_C], a_from + plain, ok, RP_C)                                                   \
        }                                                                                                              \
        _Pragma("unroll") for (int i = 0; i < RP_NB; i++) {                                                            \
            const rp_near two = inner[spot + RP_TURNED_AT(RP_TN, RP_NB, i)];                                           \
            RP_HELD_OR_ZERO(&hb[i * RP_C], b_from + two.off, RP_MEET(mine, two), RP_C)                                 \
        }                                                                                                              \
    }
/* What was read is turned on its way: of a row (column) as many elements of the inner index as the thread has of it side by side. */
#define RP_ROUND_TURNED(tile, n, m, held, rows)                                                                        \
    _Pragma("unroll") for (int begin = 0; begin < (n); begin += RP_TURNED(n)) {                                        \
        const int k = RP_TURNED_AT(rows, n, begin);                                                                    \
        float v[RP_C * RP_TURNED(n)];                                                                                  \
        _Pragma("unroll") for (int c = 0; c < RP_C; c++) _Pragma("unroll") for (int i = 0; i < RP_TURNED(n); i++)      \
            v[c * RP_TURNED(n) + i] = (held)[(begin + i) * RP_C + c];                                                  \
        rp_tf32_all(v, RP_C *RP_TURNED(n));                                                                            \
        _Pragma("unroll") for (int c = 0; c < RP_C; c++)                                                               \
            rp_floats_put(&(tile)[RP_ALONG_AT((m) + c, k) + k % RP_C], &v[c * RP_TURNED(n)], RP_TURNED(n));            \
    }
#define RP_ROUND(slot)                                                                                                 \
    {                                                                                                                  \
        RP_ROUND_TURNED(&sa[(slot)*RP_A_SIZE], RP_NA, am, ha, RP_TM)                                                   \
        RP_ROUND_TURNED(&sb[(slot)*RP_B_SIZE], RP_NB, bn, hb, RP_TN)                                                   \
    }
#else
#define RP_READ(step, slot)                                                                                            \
    {                                                                                                                  \
        const int spot = (step)*RP_TK % (2 * RP_BATCH);                                                                \
        if ((step) % (RP_BATCH / RP_TK) == 0) RP_FIND_INNER((step) / (RP_BATCH / RP_TK) + 1)                           \
        _Pragma("unroll") for (int i = 0; i < RP_NA; i++) {                                                            \
            const int k = ak + i * (256 / RP_AV);                                                                      \
            if (!RP_A_FULL && k >= RP_TK) break;                                                                       \
            const RP_INDEX plain = inner_plain[spot + k];                                                              \
            const int ok = row_there && plain != RP_FAR;                                                               \
            rp_cp_async_16_zfill(&sa[(slot)*RP_A_SIZE + RP_A_AT(am, k)], a_from + (ok ? plain : 0), ok ? 16 : 0);      \
        }                                                                                                              \
        _Pragma("unroll") for (int i = 0; i < RP_NB; i++) {                                                            \
            const int k = bk + i * (256 / RP_BV);                                                                      \
            if (!RP_B_FULL && k >= RP_TK) break;                                                                       \
            const rp_near two = inner[spot + k];                                                                       \
            rp_cp_async_16_zfill(&sb[(slot)*RP_B_SIZE + RP_B_AT(bn, k)], b_from + two.off,                             \
                                 RP_MEET(mine, two) ? 16 : 0);                                                         \
        }                                                                                                              \
    }
#endif
#else
    /* Where this thread stands along the inner index, in both operands: tap and channel. */
    const int ak = RP_A_ALONG ? t % RP_AV * RP_AW : t / RP_AV, bk = RP_B_ALONG ? t % RP_BV * RP_C : t / RP_BV;
#if RP_POINT
    RP_INDEX a_k = first + ak, b_k = first + bk, a_in = 0, b_in = 0, a_tap = 0, b_tap = 0, a_c = a_k, b_c = b_k;
    (void)a_in, (void)b_in, (void)a_tap, (void)b_tap;
#else
    const RP_INDEX chunk = RP_CHUNK_OF(channels), some = taps > 0 ? taps : 1;
    RP_INDEX a_k = first + ak, b_k = first + bk, a_in = a_k % chunk, b_in = b_k % chunk, a_tap = a_k / chunk % some,
             b_tap = b_k / chunk % some, a_c = a_k / (chunk * some) * chunk + a_in,
             b_c = b_k / (chunk * some) * chunk + b_in;
#endif
    const RP_INDEX b_inner = RP_STRIDE(RP_WINDOWED, 1);
    rp_near mine[RP_B_ALONG ? RP_NB : 1];
    _Pragma("unroll") for (int i = 0; i < (RP_B_ALONG ? RP_NB : 1); i++) {
        const int n = RP_B_ALONG ? t / RP_BV + i * (256 / RP_BV) : t % RP_BV * RP_C;
        mine[i] = column[n < RP_TN ? n : 0];
    }
/* Goes `by` on along the inner index; where tap `tap` lies. */
#if RP_POINT
#define RP_GO_ON(tap, c, in, by) c += (by);
#define RP_PLAIN_OF(tap) 0
#define RP_SPOT_OF(tap)                                                                                                \
    rp_spot two;                                                                                                       \
    two.off = 0;                                                                                                       \
    (void)(tap);
#else
#define RP_PLAIN_OF(tap) tap_plain[tap]
#define RP_SPOT_OF(tap) const rp_spot two = tap_spot[tap];
#define RP_GO_ON(tap, c, in, by)                                                                                       \
    c += (by);                                                                                                         \
    in += (by);                                                                                                        \
    while (in >= chunk) {                                                                                              \
        in -= chunk, c -= chunk;                                                                                       \
        if (++tap == taps) tap = 0, c += chunk;                                                                        \
        if (RP_SAME) break;                                                                                            \
    }
#endif
#if RP_HOLD
    float ha[RP_NA * RP_AW], hb[RP_NB * RP_C];
#define RP_COPY_A(to, from, there) RP_HELD_OR_ZERO(&ha[i * RP_AW], from, there, RP_AW)
#define RP_COPY_B(to, from, there) RP_HELD_OR_ZERO(&hb[i * RP_C], from, there, RP_C)
#else
#define RP_COPY_A(to, from, there)                                                                                     \
    if (RP_A_ONE)                                                                                                      \
        rp_cp_async_4_zfill(to, from, (there) ? 4 : 0);                                                                \
    else                                                                                                               \
        rp_cp_async_16_zfill(to, from, (there) ? 16 : 0)
#define RP_COPY_B(to, from, there) rp_cp_async_16_zfill(to, from, (there) ? 16 : 0)
#endif
#if RP_A_ALONG
    const RP_T *const a_from = a + (m0 + t / RP_AV) * a_row;
    const RP_INDEX a_step = 256 / RP_AV * a_row;
#define RP_READ_A(slot)                                                                                                \
    {                                                                                                                  \
        const int live = a_k < end;                                                                                    \
        const RP_T *const from = a_from + (live ? RP_PLAIN_OF(a_tap) + (RP_A_ONE ? a_c * a_inner : a_c) : 0);          \
        _Pragma("unroll") for (int i = 0; i < RP_NA; i++) {                                                            \
            const int m = t / RP_AV + i * (256 / RP_AV);                                                               \
            if (!RP_A_FULL && m >= RP_TM) break;                                                                       \
            RP_COPY_A(&sa[(slot)*RP_A_SIZE + RP_A_AT(m, ak)], from + i * a_step, live && m0 + m < M);                  \
        }                                                                                                              \
        a_k += RP_TK;                                                                                                  \
        RP_GO_ON(a_tap, a_c, a_in, RP_TK)                                                                              \
    }
#else
    const int a_m = t % RP_AV * RP_AW;
    const RP_T *const a_from = a + (m0 + a_m) * a_row;
    const int row_there = m0 + a_m < M;
#define RP_READ_A(slot)                                                                                                \
    {                                                                                                                  \
        RP_INDEX tap = a_tap, c = a_c, in = a_in;                                                                      \
        (void)tap, (void)in;                                                                                           \
        const RP_T *const from = a_from + (a_k < end ? RP_PLAIN_OF(tap) + c * a_inner : 0);                            \
        _Pragma("unroll") for (int i = 0; i < RP_NA; i++) {                                                            \
            const int k = ak + i * (256 / RP_AV);                                                                      \
            if (!RP_A_FULL && k >= RP_TK) break;                                                                       \
            const int ok = row_there && a_k + (k - ak) < end;                                                          \
            const RP_T *const at = RP_SAME && RP_SPLIT == 1 ? from + i * (256 / RP_AV) * a_inner                       \
                                   : ok                     ? a_from + (RP_PLAIN_OF(tap) + c * a_inner)                \
                                                            : a;                                                                           \
            RP_COPY_A(&sa[(slot)*RP_A_SIZE + RP_A_AT(a_m, k)], at, ok);                                                \
            RP_GO_ON(tap, c, in, 256 / RP_AV)                                                                          \
        }                                                                                                              \
        a_k += RP_TK;                                                                                                  \
        RP_GO_ON(a_tap, a_c, a_in, RP_TK)                                                                              \
    }
#endif
#if RP_B_ALONG
#if RP_MASKS
#define RP_MEET_TAP(i) (mine[i].key & (live ? 1u << tap : 0))
#else
#define RP_MEET_TAP(i) (live & rp_inside(&mine[i], &two, bound))
#endif
#define RP_READ_B(slot)                                                                                                \
    {                                                                                                                  \
        const int live = b_k < end, tap = live ? (int)b_tap : 0;                                                       \
        RP_SPOT_OF(tap)                                                                                                \
        const RP_T *const from = b + (two.off + b_c);                                                                  \
        _Pragma("unroll") for (int i = 0; i < RP_NB; i++) {                                                            \
            const int n = t / RP_BV + i * (256 / RP_BV);                                                               \
            if (!RP_B_FULL && n >= RP_TN) break;                                                                       \
            RP_COPY_B(&sb[(slot)*RP_B_SIZE + RP_B_AT(n, bk)], from + mine[i].off, RP_MEET_TAP(i));                     \
        }                                                                                                              \
        b_k += RP_TK;                                                                                                  \
        RP_GO_ON(b_tap, b_c, b_in, RP_TK)                                                                              \
    }
#else /* one tap, at the place of the pixel: the inner index is the channel */
#if RP_MASKS
#define RP_THERE(near) (near).key != 0
#else
#define RP_THERE(near) (near).at[0] != RP_FAR
#endif
#define RP_READ_B(slot)                                                                                                \
    {                                                                                                                  \
        const int n = t % RP_BV * RP_C;                                                                                \
        _Pragma("unroll") for (int i = 0; i < RP_NB; i++) {                                                            \
            const int k = bk + i * (256 / RP_BV);                                                                      \
            if (!RP_B_FULL && k >= RP_TK) break;                                                                       \
            const int ok = b_k + (k - bk) < end && RP_THERE(mine[0]);                                                  \
            RP_COPY_B(&sb[(slot)*RP_B_SIZE + RP_B_AT(n, k)], ok ? b + (mine[0].off + (b_k + (k - bk)) * b_inner) : b,  \
                      ok);                                                                                             \
        }                                                                                                              \
        b_k += RP_TK;                                                                                                  \
    }
#endif
#define RP_READ(step, slot) {RP_READ_A(slot) RP_READ_B(slot)}
    (void)b_inner, (void)b_c, (void)a_inner;
#endif
#if RP_HOLD && RP_KIND != 2
/* Places of what this thread brings of a tile, turn i: the tiles of warpgroups leave no thread over. */
#define RP_A_TURN(slot, i)                                                                                             \
    &sa[(slot)*RP_A_SIZE + (RP_A_ALONG ? RP_A_AT(t / RP_AV + (i) * (256 / RP_AV), t % RP_AV * RP_AW)                   \
                                       : RP_A_AT(t % RP_AV * RP_AW, t / RP_AV + (i) * (256 / RP_AV)))]
#define RP_B_TURN(slot, i)                                                                                             \
    &sb[(slot)*RP_B_SIZE + (RP_B_ALONG ? RP_B_AT(t / RP_BV + (i) * (256 / RP_BV), t % RP_BV * RP_C)                    \
                                       : RP_B_AT(t % RP_BV * RP_C, t / RP_BV + (i) * (256 / RP_BV)))]
/* n turns of `each` elements are rounded, sixteen at a time: got from `from`, put to `to`, both of turn i. */
#define RP_ROUND_ALL(n, each, from, to)                                                                                \
    _Pragma("unroll") for (int begin = 0; begin < (n); begin += 16 / (each)) {                                         \
        float v[16];                                                                                                   \
        const int count = (n)-begin < 16 / (each) ? (n)-begin : 16 / (each);                                           \
        _Pragma("unroll") for (int k = 0; k < count; k++) {                                                            \
            const int i = begin + k;                                                                                   \
            rp_floats_get(&v[k * (each)], from, each);                                                                 \
        }                                                                                                              \
        rp_tf32_all(v, count *(each));                                                                                 \
        _Pragma("unroll") for (int k = 0; k < count; k++) {                                                            \
            const int i = begin + k;                                                                                   \
            rp_floats_put(to, &v[k * (each)], each);                                                                   \
        }                                                                                                              \
    }
#define RP_ROUND(slot)                                                                                                 \
    {                                                                                                                  \
        RP_ROUND_ALL(RP_NA, RP_AW, &ha[i * RP_AW], RP_A_TURN(slot, i))                                                 \
        RP_ROUND_ALL(RP_NB, RP_C, &hb[i * RP_C], RP_B_TURN(slot, i))                                                   \
    }
#endif
#if RP_WG
    const int group = t / 128, wm = RP_WM == 2 ? group : 0, wn = RP_WM == 2 ? 0 : group;
    /* The warpgroup's part of a tile, and how far a step of 16 (of f32 8) along the inner index is. */
    const RP_T *const a_part = sa + (RP_A_DEEP ? RP_ALONG_AT(wm * 64, 0) : RP_ACROSS_AT(wm * 64, 0)),
                      *const b_part = sb + (RP_B_DEEP ? RP_ALONG_AT(wn * RP_WGN, 0) : RP_ACROSS_AT(wn * RP_WGN, 0));
    const rp_u64 a_desc = RP_WG_DESC(a_part, RP_A_DEEP ? 16 : 128 * RP_TK, 1024, 128),
                 b_desc = RP_WG_DESC(b_part, RP_B_DEEP ? 16 : 128 * RP_TK, 1024, 128);
    float acc[RP_WGN / 2];
    _Pragma("unroll") for (int i = 0; i < RP_WGN / 2; i++) acc[i] = 0;
#define RP_AHEAD (RP_STAGES - 2) /* the last step's products may still be under way, those before it are not */
#else
    const int lane = t % 32, wm = t / 32 / RP_WN, wn = t / 32 % RP_WN;
    RP_ACC acc[RP_FM][RP_FN_][4];
    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
        _Pragma("unroll") for (int v = 0; v < 4; v++) acc[i][j][v] = 0;
#define RP_AHEAD (RP_STAGES - 1)
#endif
    const int steps = (int)((end - first + RP_TK - 1) / RP_TK);
#if RP_HOLD
    if (steps > 0) {
        RP_READ(0, 0)
        RP_ROUND(0)
        if (steps > 1) RP_READ(1, 1)
    }
    int turn = 0;
    for (int step = 0; step < steps; step++) {
        rp_fence_proxy_async();
        rp_barrier();
        RP_WG_FENCE();
        _Pragma("unroll") for (int k = 0; k < RP_TK; k += 8)
            RP_WG_STEP(acc, a_desc + (rp_u32)(turn * (RP_A_SIZE / 4) + k / 4),
                       b_desc + (rp_u32)(turn * (RP_B_SIZE / 4) + k / 4), 1);
        RP_WG_COMMIT();
        turn = turn + 1 == RP_STAGES ? 0 : turn + 1;
        if (step + 1 < steps) RP_ROUND(turn)
        if (step + 2 < steps) RP_READ(step + 2, 0)
        RP_WG_WAIT(1); /* the tile after next takes the place of the one before */
    }
#else
    _Pragma("unroll") for (int ahead = 0; ahead < RP_AHEAD; ahead++) {
        if (ahead < steps) RP_READ(ahead, ahead)
        rp_cp_async_commit();
    }
    int turn = 0, next = RP_AHEAD;
    for (int step = 0; step < steps; step++) {
        rp_cp_async_wait(RP_AHEAD - 1);
#if RP_WG
        rp_fence_proxy_async();
        rp_barrier();
        RP_WG_FENCE();
        _Pragma("unroll") for (int k = 0; k < RP_TK; k += 16) RP_WG_STEP(
            acc, a_desc + (rp_u32)(turn * (RP_A_SIZE / 8) + k / 16 * (RP_A_ALONG ? 2 : 128)),
            b_desc + (rp_u32)(turn * (RP_B_SIZE / 8) + k / 16 * (RP_B_ALONG ? 2 : 128)), 1, !RP_A_ALONG, !RP_B_ALONG);
        RP_WG_COMMIT();
#else
        rp_barrier();
#endif
        if (step + RP_AHEAD < steps) RP_READ(step + RP_AHEAD, next)
        rp_cp_async_commit();
#if RP_WG
        RP_WG_WAIT(1);
#else
        rp_tile_multiply(acc, sa + turn * RP_A_SIZE, sb + turn * RP_B_SIZE, wm, wn, lane);
#endif
        turn = turn + 1 == RP_STAGES ? 0 : turn + 1;
        next = next + 1 == RP_STAGES ? 0 : next + 1;
    }
#endif
#if RP_WG
    RP_WG_WAIT(0);
    RP_WG_HOLD(acc, RP_WGN / 2);
#endif
    rp_cp_async_wait(0);
    rp_barrier();
    rp_leave(&p, st, acc, result, t, rank, g, m0, n0, M, N, cg, og);
}
