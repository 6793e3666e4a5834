/* Convolution on CUDA, 1 to 3 spatial dims, as tiled products over computed places (implicit GEMM), any strides. One text for
 * the three products; RP_KIND says which:
 *   0 forward  y (N, O, *)    rows o, columns (n, y*), inner (c, r*)
 *   1 input    dx (N, C, *)   rows c, columns (n, x*), inner (o, r*)
 *   2 weight   dw (O, C/g, *) rows o, columns (c, r*), inner (n, y*)
 * A pixel (n, y* or x*) and a tap (c or o, r*) each have a spot: an offset and a place. Together they are an element of the operand with
 * windows if the places add up to one inside; the offsets add up too. An input gradient of a strided convolution takes its columns in
 * classes (RP_CLASSES, conv_common.cuh). So no element needs a division: spots of columns are found once, those of the inner index once, RP_BATCH at a time. Of windows of at
 * most 32 places (RP_MASKS) a pixel knows in a bit each which of them are inside, so that an element needs no comparison of places either.
 *
 * RP_MMA 0: chains of fma in the order of kernel/product.h, RP_TX threads side by side; RP_SLICES groups of threads take an equal part of each step
 * of a share each, with blocks of their own elements, and what they have is added up in rising order. RP_MMA 1, of 16-bit floats and of f32 rounded to tf32: tensor cores; the
 * inner index runs through the taps with the channel innermost (RP_CHUNK_OF), 16 (tf32: 8) a step of the sum, from left to right in f32. RP_SPLIT
 * blocks, a cluster, take a share of the inner index each, and their sums are added up in rising order (conv.c says how many of either: a
 * function of the sizes). The bits depend on nothing else: not on tiles, strides or memory format.
 *
 * Macros of conv.c: RP_NAME, RP_T, RP_ACC, RP_LOAD, RP_STORE, RP_MULADD as in matmul.cuh; RP_KIND, RP_SPATIAL, RP_BIAS; RP_MMA and, with
 * it, RP_MMA_STEP; RP_THREADS; RP_TM, RP_TN, RP_TK, the tile; RP_ASIDE, volatile where registers cannot hold sums of blocks beside those under way: memory does; RP_STAGES, tiles in flight; RP_TX; RP_WM, warps above each other; RP_SPLIT; RP_PARTS; RP_UNIT, elements of which shares are made; RP_INDEX, of offsets; RP_A_ALONG,
 * RP_B_ALONG: neighbours in a warp read neighbours of the inner index; RP_ASYNC, with RP_COPY: what is read needs no conversion and goes
 * straight into shared memory; RP_SAME: a step of the inner index is of one tap; RP_MASKS; RP_DIRECT: no tiles, RP_ROWS rows; RP_RESIDENT: blocks that a multiprocessor has to hold; RP_OUT_ROWS: rows lie side by side in the result; RP_LONG, RP_LONGER: K is more than a block, than a group; RP_REST, words
 * of what follows each sum x (0: it is stored) in a DAG: of group g, row m, spatial place at[], and first or last of the other dim n.
 * Words: y x w bias; N C O groups; then per spatial dim: input size, output size, kernel size, stride, padding, dilation; then the
 * strides of y (n, o, *), x (n, c, *), w (o, c, *), bias; 1 where nothing in the graph writes w, so that it may be read before the launches
 * before this one are complete. */
typedef struct __align__(16) {
    RP_INDEX off, rest; /* 0; -1: a column outside of the result, -2: behind the end of the inner index */
    RP_INDEX at[RP_S];
}
rp_spot;

/* Channel and window of number t of the taps of `channels`: with tensor cores the channel runs fastest (RP_CHUNK_OF). */
RP_FN RP_INDEX rp_tap(const rp_places *own, RP_INDEX t, RP_INDEX channels, RP_INDEX *at) {
    const RP_INDEX chunk = !RP_MMA ? 1 : RP_KIND == 2 ? channels : RP_CHUNK_OF(channels), c = t % chunk;
    t /= chunk;
    rp_split(own->kernel, &t, at);
#if RP_CLASSES
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) at[d] = own->tap_begin[d] + at[d] * own->tap_step[d];
#endif
    return t * chunk + c;
}

/* `at` is among the pixels of the columns, and becomes the place in the result. */
RP_FN rp_spot rp_pixel_spot(const RP_WORDS *q, const rp_places *own, RP_INDEX n, RP_INDEX *at) {
    const RP_WORDS p = *q;
    rp_spot s;
    (void)own;
    s.off = n * RP_STRIDE(RP_WINDOWED, 0);
    s.rest = 0;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
#if RP_CLASSES
        s.at[d] = at[d];
        at[d] = own->begin[d] + at[d] * RP_SIZE(RP_STEP, d);
#elif RP_KIND == 1
        s.at[d] = at[d] + RP_SIZE(RP_PAD, d);
#else
        s.at[d] = at[d] * RP_SIZE(RP_STEP, d) - RP_SIZE(RP_PAD, d);
#endif
        s.off += s.at[d] * RP_STRIDE(RP_WINDOWED, 2 + d);
    }
    return s;
}

RP_FN rp_spot rp_tap_spot(const RP_WORDS *q, const rp_places *own, RP_INDEX c, const RP_INDEX *at) {
    const RP_WORDS p = *q;
    rp_spot s;
    (void)own;
    s.off = c * RP_STRIDE(RP_WINDOWED, 1);
    s.rest = 0;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
        const RP_INDEX away = at[d] * RP_SIZE(RP_DIL, d);
#if RP_CLASSES
        s.at[d] = (own->begin[d] + RP_SIZE(RP_PAD, d) - away) / RP_SIZE(RP_STEP, d);
#else
        s.at[d] = RP_KIND == 1 ? -away : away;
#endif
        s.off += s.at[d] * RP_STRIDE(RP_WINDOWED, 2 + d);
    }
    return s;
}

RP_FN int rp_meet(const rp_spot *a, const rp_spot *b, const RP_INDEX *bound) {
    int ok = a->rest == b->rest;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) { ok = ok & rp_within(a->at[d] + b->at[d], bound[d]); }
    return ok;
}

#if RP_MASKS
/* Of a pixel the places of the window that are inside, a bit each; of a tap its own bit, none outside of the product. */
typedef struct __align__(2 * sizeof(RP_INDEX)) {
    RP_INDEX off;
    rp_u32 key;
}
rp_found;
/* Do a column and an element of the inner index meet inside? */
#define RP_MEET(one, two) (((one).key & (two).key) != 0)
#else
typedef rp_spot rp_found;
#define RP_MEET(one, two) rp_meet(&(one), &(two), bound)
#endif

#if RP_MMA
typedef RP_T rp_kept; /* in shared memory */
#define RP_KEEP(x) (x)
#else
typedef RP_ACC rp_kept;
#define RP_KEEP(x) RP_LOAD(x)
#define RP_PAD_TILE (16 / sizeof(RP_ACC))
#define RP_A_ROW (RP_TM + RP_PAD_TILE)
#define RP_B_ROW (RP_TN + RP_PAD_TILE)
#define RP_A_SIZE (RP_TK * RP_A_ROW)
#define RP_B_SIZE (RP_TK * RP_B_ROW)
#define RP_A_AT(m, k) ((k)*RP_A_ROW + (m))
#define RP_B_AT(n, k) ((k)*RP_B_ROW + (n))
#define RP_TY (RP_THREADS / RP_SLICES / RP_TX)                 /* of a slice */
#define RP_LX (RP_TX < 8 ? RP_TX : RP_TY < 4 ? 32 / RP_TY : 8) /* of a warp */
#define RP_LY (32 / RP_LX)
#define RP_SLICE (RP_TK / RP_SLICES)
#define RP_I (RP_TM / RP_TY)
#define RP_J (RP_TN / RP_TX)
#define RP_VECTOR ((int)(16 / sizeof(RP_ACC)))
#define RP_VI (RP_I < RP_VECTOR ? RP_I : RP_VECTOR) /* neighbours of a thread */
#define RP_VJ (RP_J < RP_VECTOR ? RP_J : RP_VECTOR)
typedef struct __align__(RP_VI * sizeof(RP_ACC)) {
    RP_ACC e[RP_VI];
}
rp_row_part;
typedef struct __align__(RP_VJ * sizeof(RP_ACC)) {
    RP_ACC e[RP_VJ];
}
rp_column_part;
#define RP_EACH _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++)
#define RP_ROW(i, y) ((i) / RP_VI * (RP_TY * RP_VI) + (y)*RP_VI + (i) % RP_VI) /* of thread y's result i */
/* Results leave in as few passes as the tiles' room allows: all at once, one half after the other, or each thread's one by one. */
#define RP_FITS(passes) (RP_TM / (passes)*RP_OUT_ROW <= RP_STAGES * (RP_A_SIZE + RP_B_SIZE))
#define RP_PASSES (RP_SLICES > 1 || RP_FITS(1) ? 1 : RP_I / 2 % RP_VI == 0 && RP_FITS(2) ? 2 : RP_I)
#define RP_PASS_I (RP_I / RP_PASSES)
#define RP_PASS_ROWS (RP_TY * RP_PASS_I)
#define RP_PASS_ROW(i, y) (RP_PASS_I == 1 ? (y) : RP_ROW(i, y) % RP_PASS_ROWS)
#define RP_ROW_OF(pass, r) (RP_PASS_I == 1 ? RP_ROW(pass, r) : (pass)*RP_PASS_ROWS + (r))
#endif
#define RP_OUT_ROW (RP_TN + 4)
#define RP_LA ((RP_TM * RP_TK + RP_THREADS - 1) / RP_THREADS)
#define RP_LB (RP_TN * RP_TK / RP_THREADS)
/* Spots of the inner index are found RP_BATCH at once while those before them are used. */
#define RP_BATCH 256
#define RP_STEPS (RP_BATCH / RP_TK)

#if RP_DIRECT
/* Elements of one column of the operand without windows. */
typedef struct __align__((RP_ROWS == 1 ? 1 : RP_ROWS == 2 || sizeof(RP_ACC) == 8 ? 2 : 4) * sizeof(RP_ACC)) {
    RP_ACC e[RP_ROWS];
}
rp_direct_rows;
#endif

extern "C" __global__ void RP_CLUSTER __launch_bounds__(RP_THREADS, RP_RESIDENT) RP_NAME(const RP_WORDS p) {
#if RP_DIRECT /* few rows: a thread the results of all of them at a place, which needs no tile */
    __shared__ rp_spot inner[RP_BLOCK];
    __shared__ rp_direct_rows plain[RP_BLOCK];
    const int t = (int)threadIdx.x;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = C / G, og = O / G, g = (RP_INDEX)blockIdx.z;
    RP_INDEX number = (RP_INDEX)blockIdx.x, bound[RP_S], at[RP_S];
    const rp_places own = rp_places_of(&p, &number, 256);
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) bound[d] = RP_SIZE(RP_BOUND, d);
    const RP_INDEX channels = RP_KIND == 0 ? cg : og, N = batch * own.points, K = channels * own.taps,
                   place = number * 256 + t;
    RP_INDEX n = place;
    rp_split(own.pixels, &n, at);
    rp_spot here = rp_pixel_spot(&p, &own, n, at);
    if (place >= N) here.rest = -1;
    rp_launch_dependents();
    rp_grid_wait();
    RP_T *y = (RP_T *)p.w[0], *x = (RP_T *)p.w[1], *w = (RP_T *)p.w[2];
    (void)y, (void)x;
    const RP_T *b = RP_KIND == 0 ? x + g * cg * RP_STRIDE(1, 1) : y + g * og * RP_STRIDE(0, 1);
    const RP_T *const mine = (const RP_T *)rp_opaque(b + here.off);
    const RP_INDEX row = RP_STRIDE(2, RP_KIND == 0 ? 0 : 1);
    RP_ACC blocks[RP_ROWS], groups[RP_ROWS];
    _Pragma("unroll") for (int m = 0; m < RP_ROWS; m++) blocks[m] = groups[m] = 0;
    for (RP_INDEX k0 = 0; k0 < K; k0 += RP_BLOCK) {
        const int many = K - k0 < RP_BLOCK ? (int)(K - k0) : RP_BLOCK;
        RP_ACC sum[RP_ROWS];
        if (k0 > 0) rp_barrier();
        for (int k = t; k < many; k += 256) {
            RP_INDEX r[RP_S];
            const RP_INDEX c = rp_tap(&own, k0 + k, channels, r);
            RP_INDEX o = RP_KIND == 0 ? g * og * RP_STRIDE(2, 0) + c * RP_STRIDE(2, 1) : (g * og + c) * RP_STRIDE(2, 0);
            _Pragma("unroll") for (int d = 0; d < RP_S; d++) o += r[d] * RP_STRIDE(2, 2 + d);
            inner[k] = rp_tap_spot(&p, &own, c, r);
            _Pragma("unroll") for (int m = 0; m < RP_ROWS; m++) plain[k].e[m] = RP_LOAD(w[o + m * row]);
        }
        rp_barrier();
        _Pragma("unroll") for (int m = 0; m < RP_ROWS; m++) sum[m] = 0;
        _Pragma("unroll 8") for (int k = 0; k < many; k++) {
            const rp_spot two = inner[k];
            const rp_direct_rows u = plain[k];
            RP_ACC v = 0;
            if (rp_meet(&here, &two, bound)) v = RP_LOAD(mine[two.off]);
            _Pragma("unroll") for (int m = 0; m < RP_ROWS; m++) sum[m] = RP_MULADD(u.e[m], v, sum[m]);
        }
        const RP_INDEX one = k0 / RP_BLOCK; /* blocks before this one */
        _Pragma("unroll") for (int m = 0; m < RP_ROWS; m++) {
            blocks[m] = one % RP_GROUP == 0 ? sum[m] : blocks[m] + sum[m];
            if (one % RP_GROUP == RP_GROUP - 1 || K - k0 <= RP_BLOCK)
                groups[m] = one < RP_GROUP ? blocks[m] : groups[m] + blocks[m];
        }
    }
    if (place >= N) return;
    n = rp_column(&p, n, at);
    _Pragma("unroll") for (int m = 0; m < RP_ROWS; m++) rp_finish(&p, groups[m], g, m, n, at, cg, og);
#else
    extern __shared__ __align__(16) unsigned char room[]; /* RP_STAGES tiles of both operands; then rows of results */
    __shared__ rp_found column[RP_TN], inner[2 * RP_BATCH];
    __shared__ RP_INDEX inner_plain[2 * RP_BATCH]; /* offset in the operand without windows */
    __shared__ rp_result result[RP_TN];
    rp_kept *sa = (rp_kept *)room, *sb = sa + RP_STAGES * RP_A_SIZE;
    RP_ACC *st = (RP_ACC *)room;
    const int t = (int)threadIdx.x, early = RP_ASYNC && RP_KIND != 2 && p.w[RP_W_AHEAD] != 0;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = C / G, og = O / G, g = (RP_INDEX)blockIdx.z;
    rp_launch_dependents();
    RP_SHARE_OF_BLOCK
    const rp_places own = rp_places_of(&p, &number, RP_TN);
    RP_INDEX bound[RP_S];
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) bound[d] = RP_SIZE(RP_BOUND, d);
#if RP_KIND == 0
    const RP_INDEX M = og, N = batch * own.points, K = cg * own.taps;
#elif RP_KIND == 1
    const RP_INDEX M = cg, N = batch * own.points, K = og * own.taps;
#else
    const RP_INDEX M = og, N = cg * own.taps, K = batch * own.points;
#endif
    const RP_INDEX m0 = (RP_INDEX)blockIdx.y * RP_TM, n0 = number * RP_TN;
#if RP_CLASSES
    if (n0 >= N) return;                  /* a class with fewer places than the first one */
#endif
#if RP_MASKS
    __shared__ rp_spot window[32];        /* of the first channel */
    __shared__ RP_INDEX window_plain[32]; /* offset in the weight */
    _Pragma("unroll 1") for (int e = t; e < (int)own.taps; e += RP_THREADS) {
        RP_INDEX at[RP_S], plain = 0;
        rp_tap(&own, e, 1, at);
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) plain += at[d] * RP_STRIDE(2, 2 + d);
        window[e] = rp_tap_spot(&p, &own, 0, at);
        window_plain[e] = plain;
    }
    rp_barrier();
#define RP_FIND_PIXEL(to, spot, live)                                                                                  \
    {                                                                                                                  \
        rp_u32 inside = 0;                                                                                             \
        _Pragma("unroll 1") for (int r = 0; r < (int)own.taps; r++) inside |=                                          \
            (rp_u32)rp_meet(&(spot), &window[r], bound) << r;                                                          \
        (to).off = (spot).off;                                                                                         \
        (to).key = (live) ? inside : 0;                                                                                \
    }
#define RP_FIND_TAP(to, c, r, live)                                                                                    \
    {                                                                                                                  \
        (to).off = (c)*RP_STRIDE(RP_WINDOWED, 1) + window[r].off;                                                      \
        (to).key = (live) ? 1u << (r) : 0;                                                                             \
    }
#endif
    const RP_INDEX unit = RP_UNIT_OF((RP_KIND == 0 ? cg : og), own.taps),
                   share = ((K + unit - 1) / unit + shares - 1) / shares * unit;
    const RP_INDEX first = rank * share < K ? rank * share : K, end = K - first < share ? K : first + share;
    _Pragma("unroll 1") for (int e = t; e < RP_TN; e += RP_THREADS) {
        RP_INDEX n = n0 + e;
        rp_spot s;
        rp_result r;
#if RP_KIND == 2
        r.n = rp_tap(&own, n, cg, r.at);
#if RP_MASKS
        const RP_INDEX tap = RP_MMA ? n / cg : n % own.taps;
        RP_FIND_TAP(column[e], r.n, tap < own.taps ? tap : 0, n0 + e < N)
#else
        s = rp_tap_spot(&p, &own, r.n, r.at);
#endif
#else
        rp_split(own.pixels, &n, r.at);
        r.n = n;
        s = rp_pixel_spot(&p, &own, n, r.at);
#if RP_MASKS
        RP_FIND_PIXEL(column[e], s, n0 + e < N)
#endif
#endif
#if RP_MASKS
        (void)s;
#else
        if (n0 + e >= N) s.rest = -1;
        column[e] = s;
#endif
#if RP_PARTS
        r.n = rank / RP_SPLIT * (O * N) + n0 + e;
#endif
        r.n = rp_column(&p, r.n, r.at);
        result[e] = r;
    }
    RP_T *y = (RP_T *)p.w[0], *x = (RP_T *)p.w[1], *w = (RP_T *)p.w[2];
    (void)y, (void)x, (void)w;
#if RP_KIND == 0
    const RP_T *a = w + g * og * RP_STRIDE(2, 0), *b = x + g * cg * RP_STRIDE(1, 1);
    const RP_INDEX a_row = RP_STRIDE(2, 0);
#elif RP_KIND == 1
    const RP_T *a = w + g * og * RP_STRIDE(2, 0), *b = y + g * og * RP_STRIDE(0, 1);
    const RP_INDEX a_row = RP_STRIDE(2, 1);
#else
    const RP_T *a = y + g * og * RP_STRIDE(0, 1), *b = x + g * cg * RP_STRIDE(1, 1);
    const RP_INDEX a_row = RP_STRIDE(0, 1);
#endif
/* Batch number n of the spots of the inner index; read behind a barrier. */
#define RP_FIND_INNER(n)                                                                                               \
    if (first + (n)*RP_BATCH < end) {                                                                                  \
        const RP_INDEX many = end - first - (n)*RP_BATCH + RP_TK; /* to the end of a step */                           \
        _Pragma("unroll 1") for (int e = t; e < RP_BATCH && e < many; e += RP_THREADS) {                               \
            const RP_INDEX from = first + (n)*RP_BATCH + e;                                                            \
            RP_INDEX k = from, at[RP_S], plain;                                                                        \
            rp_found s;                                                                                                \
            RP_INNER_SPOT                                                                                              \
            inner[(n) % 2 * RP_BATCH + e] = s;                                                                         \
            inner_plain[(n) % 2 * RP_BATCH + e] = plain;                                                               \
        }                                                                                                              \
    }
#if RP_MASKS
#define RP_FIND_AT(spot) RP_FIND_PIXEL(s, spot, from < end)
#else
#define RP_FIND_AT(spot)                                                                                               \
    s = spot;                                                                                                          \
    if (from >= end) s.rest = -2;
#endif
#if RP_KIND == 2
#define RP_INNER_SPOT                                                                                                  \
    rp_split(own.pixels, &k, at);                                                                                      \
    const rp_spot pixel = rp_pixel_spot(&p, &own, k, at);                                                              \
    RP_FIND_AT(pixel)                                                                                                  \
    plain = k * RP_STRIDE(0, 0);                                                                                       \
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) plain += at[d] * RP_STRIDE(0, 2 + d);
#elif RP_MASKS
#define RP_INNER_SPOT                                                                                                  \
    const RP_INDEX all = RP_KIND == 0 ? cg : og, chunk = RP_MMA ? RP_CHUNK_OF(all) : 1, r = k / chunk % own.taps,      \
                   c = k / (chunk * own.taps) * chunk + k % chunk, tap = r;                                            \
    (void)at;                                                                                                          \
    RP_FIND_TAP(s, c, tap, from < end)                                                                                 \
    plain = c * RP_STRIDE(2, RP_KIND == 0 ? 1 : 0) + window_plain[tap];
#else
#define RP_INNER_SPOT                                                                                                  \
    const RP_INDEX c = rp_tap(&own, k, RP_KIND == 0 ? cg : og, at);                                                    \
    const rp_spot tap = rp_tap_spot(&p, &own, c, at);                                                                  \
    RP_FIND_AT(tap)                                                                                                    \
    plain = c * RP_STRIDE(2, RP_KIND == 0 ? 1 : 0);                                                                    \
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) plain += at[d] * RP_STRIDE(2, 2 + d);
#endif
    const RP_INDEX b_channel = RP_STRIDE(RP_WINDOWED, 1);
    (void)b_channel;
#if RP_ASYNC /* straight into shared memory, RP_STAGES tiles ahead; nothing is read from where an element is not there */
#define RP_TAKE_A(turn, e, m, k, ok, from) RP_COPY(&sa[(turn)*RP_A_SIZE + RP_A_AT(m, k)], from, ok);
#define RP_TAKE_B(turn, e, n, k, ok, from) RP_COPY(&sb[(turn)*RP_B_SIZE + RP_B_AT(n, k)], from, ok);
#define RP_PUT_A(turn)
#define RP_PUT_B(turn)
#else /* into registers, from where RP_PUT stores them */
    RP_T la[RP_LA], lb[RP_LB];
#define RP_TAKE_A(turn, e, m, k, ok, from)                                                                             \
    la[e] = 0;                                                                                                         \
    if (ok) la[e] = *(from);
#define RP_TAKE_B(turn, e, n, k, ok, from)                                                                             \
    lb[e] = 0;                                                                                                         \
    if (ok) lb[e] = *(from);
#define RP_PUT_A(turn)                                                                                                 \
    _Pragma("unroll") for (int e = 0; e < RP_LA; e++) {                                                                \
        const int i = e * RP_THREADS + t, m = RP_A_ALONG ? i / RP_TK : i % RP_TM,                                      \
                  k = RP_A_ALONG ? i % RP_TK : i / RP_TM;                                                              \
        if (RP_TM * RP_TK % RP_THREADS == 0 || i < RP_TM * RP_TK)                                                      \
            sa[(turn)*RP_A_SIZE + RP_A_AT(m, k)] = RP_KEEP(la[e]);                                                     \
    }
#define RP_PUT_B(turn)                                                                                                 \
    _Pragma("unroll") for (int e = 0; e < RP_LB; e++) {                                                                \
        const int i = e * RP_THREADS + t, n = RP_B_ALONG ? i / RP_TK : i % RP_TN,                                      \
                  k = RP_B_ALONG ? i % RP_TK : i / RP_TN;                                                              \
        sb[(turn)*RP_B_SIZE + RP_B_AT(n, k)] = RP_KEEP(lb[e]);                                                         \
    }
#endif
/* Tile `turn`; `at` is the spot of its first element of the inner index, `left` elements of which are there. What a thread meets again in each
 * of its elements is read once, and what shared memory knows of them before the first copy: a copy that waits for such a read keeps the
 * next read waiting. */
#define RP_A_K (RP_A_ALONG ? t % RP_TK : t / RP_TM)       /* of a thread's first element */
#define RP_A_K_STEP (RP_A_ALONG ? 0 : RP_THREADS / RP_TM) /* from one of them to the next */
#define RP_A_M (RP_A_ALONG ? t / RP_TK : t % RP_TM)
#define RP_A_M_STEP (RP_A_ALONG ? RP_THREADS / RP_TK : 0)
#define RP_A_THERE (RP_TM * RP_TK % RP_THREADS == 0 || t < RP_TM * RP_TK)
    const RP_T *const a_mine = (const RP_T *)rp_opaque(a + (m0 + RP_A_M) * a_row);
    const RP_INDEX rows_left = M - m0 - RP_A_M, a_step = RP_A_M_STEP * a_row;
    (void)a_step;
#define RP_READ_A(turn, at, left)                                                                                      \
    if (RP_A_THERE) {                                                                                                  \
        RP_INDEX plain[RP_A_ALONG ? 1 : RP_LA];                                                                        \
        _Pragma("unroll") for (int e = 0; e < (RP_A_ALONG ? 1 : RP_LA); e++) plain[e] =                                \
            inner_plain[(at) + RP_A_K + e * RP_A_K_STEP];                                                              \
        const RP_T *from = a_mine + plain[0];                                                                          \
        _Pragma("unroll") for (int e = 0; e < RP_LA; e++) {                                                            \
            const int m = RP_A_M + e * RP_A_M_STEP, k = RP_A_K + e * RP_A_K_STEP,                                      \
                      ok = k < (left) && e * RP_A_M_STEP < rows_left;                                                  \
            if (!RP_A_ALONG) from = a_mine + plain[RP_A_ALONG ? 0 : e];                                                \
            RP_TAKE_A(turn, e, m, k, ok, from)                                                                         \
            if (RP_A_ALONG) from += a_step;                                                                            \
        }                                                                                                              \
    }
/* Not along the inner index a thread has RP_MINE columns, or one that it shares with others. */
#define RP_MINE (RP_TN > RP_THREADS ? RP_TN / RP_THREADS : 1)
#define RP_B_N(e) ((t + (e) % RP_MINE * RP_THREADS) % RP_TN)
#define RP_B_K(e) (t / RP_TN + (e) / RP_MINE * (RP_TN > RP_THREADS ? 1 : RP_THREADS / RP_TN))
#if RP_B_ALONG
#define RP_READ_B(turn, at)                                                                                            \
    {                                                                                                                  \
        const int k = t % RP_TK;                                                                                       \
        const rp_found two = inner[(at) + k];                                                                          \
        const RP_T *from = (const RP_T *)rp_opaque(b + two.off);                                                       \
        rp_found one[RP_LB];                                                                                           \
        _Pragma("unroll") for (int e = 0; e < RP_LB; e++) one[e] = column[t / RP_TK + e * (RP_THREADS / RP_TK)];       \
        _Pragma("unroll") for (int e = 0; e < RP_LB; e++) {                                                            \
            const int ok = RP_MEET(one[e], two);                                                                       \
            RP_TAKE_B(turn, e, t / RP_TK + e * (RP_THREADS / RP_TK), k, ok, from + one[e].off)                         \
        }                                                                                                              \
    }
#elif RP_SAME
/* One tap a step: the places of all elements of a column are the same but for the channel. */
#define RP_READ_B(turn, at)                                                                                            \
    {                                                                                                                  \
        const rp_found two = inner[(at) + 0];                                                                          \
        const int ok = RP_MEET(mine[0], two);                                                                          \
        const RP_T *from = b + (ok ? mine[0].off + two.off + RP_B_K(0) * b_channel : 0);                               \
        _Pragma("unroll") for (int e = 0; e < RP_LB; e++) {                                                            \
            RP_TAKE_B(turn, e, RP_B_N(e), RP_B_K(e), ok, from + (RP_B_K(e) - RP_B_K(0)) * b_channel)                   \
        }                                                                                                              \
    }
#else
#define RP_READ_B(turn, at)                                                                                            \
    {                                                                                                                  \
        rp_found two[RP_LB / RP_MINE];                                                                                 \
        _Pragma("unroll") for (int e = 0; e < RP_LB; e += RP_MINE) two[e / RP_MINE] = inner[(at) + RP_B_K(e)];         \
        _Pragma("unroll") for (int e = 0; e < RP_LB; e++) {                                                            \
            const int ok = RP_MEET(mine[e % RP_MINE], two[e / RP_MINE]);                                               \
            RP_TAKE_B(turn, e, RP_B_N(e), RP_B_K(e), ok, b_mine[e % RP_MINE] + two[e / RP_MINE].off)                   \
        }                                                                                                              \
    }
#endif
#if RP_MMA
    const int lane = t % 32, wm = t / 32 / RP_WN, wn = t / 32 % RP_WN;
    RP_ACC acc[RP_FM][RP_FN_][4];
    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
        _Pragma("unroll") for (int v = 0; v < 4; v++) acc[i][j][v] = 0;
#else
    /* a warp is 4 x 8 threads, so what it reads at once of either tile lies in 128 bytes, or as near to it as the tile allows */
    const int slice = RP_SLICES > 1 ? t / (RP_TX * RP_TY) : 0, warp = t / 32 - slice * (RP_TX * RP_TY / 32),
              tx = warp % (RP_TX / RP_LX) * RP_LX + t % RP_LX, ty = warp / (RP_TX / RP_LX) * RP_LY + t / RP_LX % RP_LY;
    RP_ACC acc[RP_I][RP_J];
    RP_EACH acc[i][j] = 0;
#if RP_LONG
    RP_ASIDE RP_ACC blocks[RP_I][RP_J]; /* of the group under way */
    RP_EACH blocks[i][j] = 0;
#endif
#if RP_LONGER
    RP_ASIDE RP_ACC groups[RP_I][RP_J]; /* before it */
    RP_EACH groups[i][j] = 0;
#endif
#endif
    RP_FIND_INNER(0)
    rp_barrier();
    rp_found mine[RP_MINE];
    const RP_T *b_mine[RP_MINE];
    _Pragma("unroll") for (int e = 0; e < RP_MINE; e++) {
        mine[e] = column[RP_B_N(e)];
        b_mine[e] = (const RP_T *)rp_opaque(b + mine[e].off);
    }
    (void)mine, (void)b_mine;
/* Step number n into a slot: of the operands the first, the one with windows or both. */
#define RP_READ_SOME(n, slot, first_one, windowed)                                                                     \
    {                                                                                                                  \
        const int step = (n), spot = step * RP_TK % (2 * RP_BATCH);                                                    \
        const RP_INDEX left = end - first - (RP_INDEX)step * RP_TK;                                                    \
        (void)left;                                                                                                    \
        if (first_one) {                                                                                               \
            if (step % RP_STEPS == 0) RP_FIND_INNER(step / RP_STEPS + 1)                                               \
            RP_READ_A(slot, spot, left)                                                                                \
        }                                                                                                              \
        if (windowed) RP_READ_B(slot, spot)                                                                            \
    }
    int turn = 0;
#if RP_ASYNC
    /* The first turns read alone, `ahead` steps, and multiply nothing: all code is here once, since a kernel of a few us spends much of them
     * in fetching instructions for the first time. Weights that nothing in the graph writes: they are asked for by turns of their own, before
     * what precedes the launch is complete. */
    enum { RP_AHEAD = RP_STAGES - 1 };
    const int turns = (int)((end - first + RP_TK - 1) / RP_TK);
    _Pragma("unroll 1") for (int steps = early ? -2 * RP_AHEAD : -RP_AHEAD; steps < turns; steps++) {
        const int alone = steps < -RP_AHEAD, next = steps + (alone ? 2 : 1) * RP_AHEAD;
        const RP_INDEX k0 = first + (RP_INDEX)steps * RP_TK;
        if (steps == -RP_AHEAD) rp_grid_wait(); /* nothing of the above is in memory */
        if (steps >= 0) {
            rp_cp_async_wait(RP_AHEAD - 1);
            rp_barrier();
        }
        if (next < turns) RP_READ_SOME(next, next % RP_STAGES, !early || steps >= 0 || alone, !alone)
        if (!alone) rp_cp_async_commit();
        if (steps < 0) continue;
#else
    int steps = 0;
    rp_grid_wait();
    if (first < end) {
        RP_READ_SOME(0, 0, 1, 1)
        RP_PUT_A(0)
        RP_PUT_B(0)
    }
    rp_barrier();
    for (RP_INDEX k0 = first; k0 < end; k0 += RP_TK, steps++) {
        const int into = turn == 0 ? RP_STAGES - 1 : turn - 1; /* the slot of the step before */
        const int more = k0 + RP_TK < end;
        if (more) RP_READ_SOME(steps + 1, into, 1, 1)
#endif
#if RP_MMA
        rp_tile_multiply(acc, sa + turn * RP_A_SIZE, sb + turn * RP_B_SIZE, wm, wn, lane);
#else
        const rp_kept *ta = sa + turn * RP_A_SIZE, *tb = sb + turn * RP_B_SIZE;
        const int last =
            end - k0 < RP_TK ? (int)(end - k0) : RP_TK; /* no added zeros: -0.0 and NaN stay what they are */
#define RP_FOR_K(k)                                                                                                    \
    {                                                                                                                  \
        RP_ACC u[RP_I], v[RP_J];                                                                                       \
        _Pragma("unroll") for (int i = 0; i < RP_I; i += RP_VI) {                                                      \
            const rp_row_part part = *(const rp_row_part *)&ta[RP_A_AT(i * RP_TY + ty * RP_VI, k)];                    \
            _Pragma("unroll") for (int e = 0; e < RP_VI; e++) u[i + e] = part.e[e];                                    \
        }                                                                                                              \
        _Pragma("unroll") for (int j = 0; j < RP_J; j += RP_VJ) {                                                      \
            const rp_column_part part = *(const rp_column_part *)&tb[RP_B_AT(j * RP_TX + tx * RP_VJ, k)];              \
            _Pragma("unroll") for (int e = 0; e < RP_VJ; e++) v[j + e] = part.e[e];                                    \
        }                                                                                                              \
        RP_EACH acc[i][j] = RP_MULADD(u[i], v[j], acc[i][j]);                                                          \
    }
        if (last == RP_TK) {
            _Pragma("unroll") for (int k = 0; k < RP_SLICE; k++) RP_FOR_K(slice * RP_SLICE + k)
        } else {
            _Pragma("unroll 1") for (int k = slice * RP_SLICE; k < last && k < (slice + 1) * RP_SLICE; k++) RP_FOR_K(k)
        }
#if RP_LONG
        const RP_INDEX done = (k0 + RP_TK < end ? k0 + RP_TK : end) - first, all = end - first; /* of the share */
        if (done % (RP_BLOCK * RP_SLICES) == 0 || done == all) {
            const int begins = (done - 1) / (RP_BLOCK * RP_SLICES) % RP_GROUP == 0;
#if RP_LONGER
            const int whole = done % (RP_BLOCK * RP_SLICES * RP_GROUP) == 0 || done == all,
                      alone = done <= RP_BLOCK * RP_SLICES * RP_GROUP;
#endif
            if (begins) {
                RP_EACH blocks[i][j] = acc[i][j];
            } else {
                RP_EACH blocks[i][j] = blocks[i][j] + acc[i][j];
            }
#if RP_LONGER
            if (whole && alone) {
                RP_EACH groups[i][j] = blocks[i][j];
            } else if (whole) {
                RP_EACH groups[i][j] = groups[i][j] + blocks[i][j];
            }
#endif
            RP_EACH acc[i][j] = 0;
        }
#endif
#endif
#if !RP_ASYNC
        if (more) {
            RP_PUT_A(into)
            RP_PUT_B(into)
        }
        rp_barrier();
#endif
        turn = turn == RP_STAGES - 1 ? 0 : turn + 1;
    }
#if RP_ASYNC
    rp_cp_async_wait(0);
    rp_barrier();
#endif
/* Blocks of a cluster share out the rows of a pass; a thread has several of their sums under way, which others hold. */
#define RP_OURS (RP_PASS_ROWS / RP_SPLIT)
#define RP_EACH_HAS ((RP_OURS * RP_TN + RP_THREADS - 1) / RP_THREADS)
#define RP_TURNS (RP_EACH_HAS < 4 ? RP_EACH_HAS : 4)
/* Where turn i is: in one row, or in one column, wherever that can be. */
#define RP_ONE_ROW (RP_OUT_ROWS && RP_THREADS % RP_OURS == 0)
#define RP_ONE_COLUMN (!RP_OUT_ROWS && RP_THREADS % RP_TN == 0)
#define RP_PLACE_OF(i)                                                                                                 \
    const int e = t + (i)*RP_THREADS,                                                                                  \
              r = (RP_ONE_ROW      ? t % RP_OURS                                                                       \
                   : RP_ONE_COLUMN ? t / RP_TN + (i) * (RP_THREADS / RP_TN)                                            \
                   : RP_OUT_ROWS   ? e % RP_OURS                                                                       \
                                   : e / RP_TN) *                                                                        \
                      RP_SPLIT +                                                                                       \
                  rank % RP_SPLIT,                                                                                     \
              j = RP_ONE_ROW      ? t / RP_OURS + (i) * (RP_THREADS / RP_OURS)                                         \
                  : RP_ONE_COLUMN ? t % RP_TN                                                                          \
                  : RP_OUT_ROWS   ? e / RP_OURS                                                                        \
                                  : e % RP_TN;                                                                           \
    const int there = RP_OURS * RP_TN % RP_THREADS == 0 || e < RP_OURS * RP_TN;
    /* A pass of rows at a time goes through shared memory, so that neighbours in a warp store neighbours. */
    _Pragma("unroll") for (int pass = 0; pass < RP_PASSES; pass++) {
#if RP_MMA
        _Pragma("unroll") for (int j = 0; j < RP_FN_; j++) _Pragma("unroll") for (int v = 0; v < 4; v++)
            st[(wm * 16 + lane / 4 + v / 2 * 8) * RP_OUT_ROW + wn * (RP_TN / RP_WN) + j * 8 + lane % 4 * 2 + v % 2] =
                acc[pass][j][v];
#else
        _Pragma("unroll") for (int i = pass * RP_PASS_I; i < (pass + 1) * RP_PASS_I; i++)
            _Pragma("unroll") for (int j = 0; j < RP_J; j++) st[(slice * RP_TM + RP_PASS_ROW(i, ty)) * RP_OUT_ROW +
                                                                j / RP_VJ * (RP_TX * RP_VJ) + tx * RP_VJ + j % RP_VJ] =
#if RP_LONGER
                groups[i][j];
#elif RP_LONG
                blocks[i][j];
#else
                acc[i][j];
#endif
#if RP_SLICES > 1
        rp_barrier();
        rp_add_slices(st, RP_OUT_ROW, t, m0, M);
#endif
#endif
#if RP_SPLIT > 1
        rp_cluster_barrier(RP_SPLIT);
#else
        rp_barrier();
#endif
        _Pragma("unroll 1") for (int i0 = 0; i0 < RP_EACH_HAS; i0 += RP_TURNS) {
            RP_ACC part[RP_TURNS][RP_SPLIT];
            _Pragma("unroll") for (int u = 0; u < RP_TURNS; u++) {
                RP_PLACE_OF(i0 + u)
                /* what is read is used: rp_cluster_done */
                if (!there || m0 + RP_ROW_OF(pass, r) >= M || n0 + j >= N) continue;
#if RP_SPLIT > 1
                _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) part[u][other] =
                    RP_CLUSTER_READ(&st[r * RP_OUT_ROW + j], other, RP_SPLIT);
#else
                part[u][0] = st[r * RP_OUT_ROW + j];
#endif
            }
            _Pragma("unroll") for (int u = 0; u < RP_TURNS; u++) {
                RP_PLACE_OF(i0 + u)
                const RP_INDEX m = m0 + RP_ROW_OF(pass, r);
                if (!there || m >= M || n0 + j >= N) continue;
                RP_ACC x = part[u][0];
                _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) x = x + part[u][other];
                const RP_INDEX n = result[j].n, *at = result[j].at;
                rp_finish(&p, x, g, m, n, at, cg, og);
            }
        }
#if RP_SPLIT > 1
        rp_cluster_done(RP_SPLIT); /* others have read this pass */
#else
        rp_barrier();
#endif
    }
#endif
}
