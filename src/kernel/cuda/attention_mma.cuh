/* Attention of f16 and bf16 on tensor cores: forward (RP_PART 0), gradients of keys and values (1), of queries (2). A warp has RP_MT times
 * 16 rows of a tile from its scores to the result: what the tensor core leaves of a product of scores is, rounded, the operand of the next one.
 * Tiles come by cp.async while the ones before are computed with; rows of shared memory are swizzled in pieces of 16 bytes. Sums run along keys,
 * or queries, in order; exponentials are powers of two.
 * Macros (attention.c): RP_NAME RP_WORDS RP_T RP_LOAD RP_STORE, RP_MMA(d, a, b) RP_PACK(low, high); RP_WARPS RP_MT; RP_N keys (queries, in part 1)
 * of a step; RP_D RP_V padded features and values, multiples of 32; RP_MASK (1 bool, 2 f32, 3 RP_T), RP_CAUSAL, RP_DROPOUT; RP_GENERAL: scores
 * are scaled one by one; RP_WIDE: operands are read 16 bytes at once; RP_KEEP_A: the row operand's fragments stay in registers;
 * RP_SPLIT blocks of a cluster share the keys of a tile; RP_SHARE: so do the warps of a block, and all have the same rows; RP_PACKED: rows are those of all heads of a group; RP_BLOCKS a multiprocessor.
 * Behind attention_common.cuh. */
#define RP_THREADS (32 * RP_WARPS)
#if RP_SHARE
#define RP_M (16 * RP_MT)
#define RP_NW (RP_N / RP_WARPS) /* columns of a warp */
#define RP_PARTS (RP_SPLIT * RP_WARPS)
#else
#define RP_M (16 * RP_MT * RP_WARPS)
#define RP_NW RP_N
#define RP_PARTS RP_SPLIT
#endif
/* Piece `chunk` of a row of `width` elements: the eight rows that ldmatrix reads at once lie in other banks. */
#define RP_AT(width, row, chunk) ((row) * (width) + (((chunk) ^ ((width) % 64 == 0 ? (row)&7 : (row) >> 1 & 3)) * 8))

/* Rows [first, first + n) of a tensor into a tile of `width` elements a row; zeros outside. rows: 0, or of a packed tile, in which row r is row
 * r % rows of head r / rows, heads `head` apart. */
RP_FN void rp_fetch(RP_T *to, const RP_T *from, rp_i64 row, rp_i64 column, int first, int n, int limit, int width,
                    int features, int rows, rp_i64 head) {
    const int pieces = width / 8, t = (int)threadIdx.x;
#if RP_WIDE
    if (RP_THREADS % pieces == 0 && !rows) { /* a thread's pieces lie below each other */
        const int each = RP_THREADS / pieces, r0 = t / pieces, chunk = t % pieces;
        const RP_T *at = from + (first + r0) * row + chunk * 8;
        const rp_i64 next = each * row;
        const int inside = chunk * 8 < features ? limit - first - r0 : 0;
        _Pragma("unroll") for (int j = 0; j < (n + each - 1) / each; j++, at += next) {
            if (n % each == 0 || r0 + j * each < n)
                rp_cp_async_16_zfill(&to[RP_AT(width, r0 + j * each, chunk)], j * each < inside ? at : from,
                                     j * each < inside ? 16 : 0);
        }
        return;
    }
#endif
    for (int i = t; i < n * pieces; i += RP_THREADS) {
        const int r = i / pieces, chunk = i % pieces, ok = first + r < limit && chunk * 8 < features;
        const RP_T *at = from;
        if (ok) at += rows ? (first + r) / rows * head + (first + r) % rows * row : (first + r) * row;
#if RP_WIDE
        rp_cp_async_16_zfill(&to[RP_AT(width, r, chunk)], ok ? at + chunk * 8 : from, ok ? 16 : 0);
#else
        rp_u32 two[4];
        for (int j = 0; j < 4; j++) {
            const int c = chunk * 8 + 2 * j;
            const rp_u32 low = ok && c < features ? at[c * column] : 0,
                         high = ok && c + 1 < features ? at[(c + 1) * column] : 0;
            two[j] = high << 16 | low;
        }
        const rp_u32x4 all = {two[0], two[1], two[2], two[3]};
        rp_st_v4_u32((rp_u32 *)(void *)&to[RP_AT(width, r, chunk)], all);
#endif
    }
    (void)column;
}

/* Operand a of rows [m, m + 16) and features [k, k + 16); operand b of two times eight rows and those features; operand b of sixteen rows as its
 * sum's index and two times eight features. */
RP_FN void rp_read_a(rp_u32 *a, const RP_T *tile, int width, int m, int k) {
    const int lane = (int)threadIdx.x % 32;
    rp_ldmatrix_x4(a, &tile[RP_AT(width, m + lane % 16, k / 8 + lane / 16)]);
}
RP_FN void rp_read_b(rp_u32 *b, const RP_T *tile, int width, int n, int k) {
    const int lane = (int)threadIdx.x % 32;
    rp_ldmatrix_x4(b, &tile[RP_AT(width, n + lane % 8 + lane / 16 * 8, k / 8 + lane / 8 % 2)]);
}
RP_FN void rp_read_turned(rp_u32 *b, const RP_T *tile, int width, int k, int n) {
    const int lane = (int)threadIdx.x % 32;
    rp_ldmatrix_x4_trans(b, &tile[RP_AT(width, k + lane % 16, n / 8 + lane / 16)]);
}

#define RP_ZERO2(x, a, b)                                                                                              \
    _Pragma("unroll") for (int i_ = 0; i_ < (a); i_++) _Pragma("unroll") for (int j_ = 0; j_ < (b); j_++)              \
        _Pragma("unroll") for (int v_ = 0; v_ < 4; v_++) x[i_][j_][v_] = 0
/* Results of a warp, RP_MT * 16 rows of 8 * n columns, through shared memory (its own rows of `tile`, width elements) to rows [row, ..) of y. */
#define RP_GIVE(x, n, factor_of, tile, width, y_of, row_stride, column_stride, first, limit, columns)                  \
    {                                                                                                                  \
        rp_warp_sync();                                                                                                \
        _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int j = 0; j < (n); j++)           \
            _Pragma("unroll") for (int h = 0; h < 2; h++) {                                                            \
            const int r = (warp * RP_MT + mt) * 16 + h * 8 + lane / 4;                                                 \
            const float times = factor_of(mt, h);                                                                      \
            *(rp_u32 *)(void *)&tile[RP_AT(width, r, j) + lane % 4 * 2] =                                              \
                RP_PACK(x[mt][j][2 * h] * times, x[mt][j][2 * h + 1] * times);                                         \
        }                                                                                                              \
        rp_warp_sync();                                                                                                \
        for (int i = lane; i < RP_MT * 16 * ((width) / 8); i += 32) {                                                  \
            const int r = warp * RP_MT * 16 + i / ((width) / 8), chunk = i % ((width) / 8);                            \
            if ((first) + r >= (limit)) continue;                                                                      \
            const RP_T *from = &tile[RP_AT(width, r, chunk)];                                                          \
            RP_T *to = y_of((first) + r);                                                                              \
            if (RP_WIDE && (columns) % 8 == 0 && (column_stride) == 1 && (((rp_u64)to) & 15) == 0) {                   \
                if (chunk * 8 < (columns))                                                                             \
                    rp_st_v4_u32((rp_u32 *)(void *)(to + chunk * 8),                                                   \
                                 rp_ld_v4_u32((const rp_u32 *)(const void *)from));                                    \
            } else {                                                                                                   \
                for (int c = 0; c < 8 && chunk * 8 + c < (columns); c++)                                               \
                    to[(chunk * 8 + c) * (column_stride)] = from[c];                                                   \
            }                                                                                                          \
        }                                                                                                              \
    }

/* acc += the rows of a warp in tile a times those of tile b, over `width` features. */
#define RP_SCORES(acc, tile_a, tile_b, width)                                                                          \
    _Pragma("unroll") for (int f = 0; f < (width); f += 16) {                                                          \
        rp_u32 fa[RP_MT][4];                                                                                           \
        _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) rp_read_a(fa[mt], tile_a, width, warp_row + mt * 16, f);  \
        _Pragma("unroll") for (int n = 0; n < RP_NW; n += 16) {                                                        \
            rp_u32 fb[4];                                                                                              \
            rp_read_b(fb, tile_b, width, n, f);                                                                        \
            _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) {                                                     \
                RP_MMA(acc[mt][n / 8], fa[mt], fb);                                                                    \
                RP_MMA(acc[mt][n / 8 + 1], fa[mt], fb + 2);                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }
/* acc += x, rounded, times tile b, whose rows are x's columns. */
#define RP_ADD_TURNED(acc, x, tile_b, width)                                                                           \
    _Pragma("unroll") for (int n = 0; n < RP_NW; n += 16) {                                                            \
        rp_u32 fa[RP_MT][4];                                                                                           \
        _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int i = 0; i < 4; i++) fa[mt][i] = \
            RP_PACK(x[mt][n / 8 + i / 2][i % 2 * 2], x[mt][n / 8 + i / 2][i % 2 * 2 + 1]);                             \
        _Pragma("unroll") for (int f = 0; f < (width); f += 16) {                                                      \
            rp_u32 fb[4];                                                                                              \
            rp_read_turned(fb, tile_b, width, n, f);                                                                   \
            _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) {                                                     \
                RP_MMA(acc[mt][f / 8], fa[mt], fb);                                                                    \
                RP_MMA(acc[mt][f / 8 + 1], fa[mt], fb + 2);                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }

#if RP_PART == 1
/* Gradients of some keys (which & 1) and values (which & 2): a warp's rows are keys, columns are queries. */
RP_FN void rp_keys(const RP_WORDS *w, RP_T *memory, int which, int key0, rp_i64 batch, int kv) {
#define p (*w)
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32, warp_row = RP_SHARE ? 0 : warp * RP_MT * 16;
    const int rows = (int)p.w[W_ROWS], keys = (int)p.w[W_KEYS], heads = (int)p.w[W_HEADS], group = (int)p.w[W_GROUP];
    const int features = (int)p.w[W_FEATURES], values = (int)p.w[W_VALUES];
    const float scale = (float)(rp_bits_f64(p.w[W_SCALE]) * 1.4426950408889634);
    RP_T *sk = memory, *sv = sk + RP_M * RP_D, *sq = sv + RP_M * RP_V, *sg = sq + 2 * RP_N * RP_D;
    float *sl = (float *)(void *)(sg + 2 * RP_N * RP_V), *sd = sl + 2 * RP_N;
    float dk[RP_MT][RP_D / 8][4], dv[RP_MT][RP_V / 8][4];
    if (which & 1) RP_ZERO2(dk, RP_MT, RP_D / 8);
    if (which & 2) RP_ZERO2(dv, RP_MT, RP_V / 8);
    rp_fetch(sk, RP_BASE(const RP_T, W_K, batch, kv), RP_STRIDE(W_K, 2), RP_STRIDE(W_K, 3), key0, RP_M, keys, RP_D,
             features, 0, 0);
    rp_fetch(sv, RP_BASE(const RP_T, W_V, batch, kv), RP_STRIDE(W_V, 2), RP_STRIDE(W_V, 3), key0, RP_M, keys, RP_V,
             values, 0, 0);
    const int first = RP_CAUSAL ? key0 / RP_N : 0, blocks = (rows + RP_N - 1) / RP_N,
              each = blocks > first ? blocks - first : 0, steps = each * group;
#define RP_FETCH_QUERIES(step)                                                                                         \
    {                                                                                                                  \
        const int of = kv * group + (step) / each, at = (first + (step) % each) * RP_N;                                \
        const int slot = (step)&1;                                                                                     \
        rp_fetch(sq + slot * RP_N * RP_D, RP_BASE(const RP_T, W_Q, batch, of), RP_STRIDE(W_Q, 2), RP_STRIDE(W_Q, 3),   \
                 at, RP_N, rows, RP_D, features, 0, 0);                                                                \
        rp_fetch(sg + slot * RP_N * RP_V, RP_BASE(const RP_T, W_GRAD, batch, of), RP_STRIDE(W_GRAD, 2),                \
                 RP_STRIDE(W_GRAD, 3), at, RP_N, rows, RP_V, values, 0, 0);                                            \
        if (t < RP_N) {                                                                                                \
            float less, minus;                                                                                         \
            rp_row_sums(&p, batch, of, at + t, rows, &less, &minus);                                                   \
            sl[slot * RP_N + t] = less, sd[slot * RP_N + t] = minus;                                                   \
        }                                                                                                              \
    }
    if (steps > 0) RP_FETCH_QUERIES(0)
    rp_cp_async_commit();
    for (int step = 0; step < steps; step++) {
        const int head = kv * group + step / each, row0 = (first + step % each) * RP_N;
        const int slot = step & 1;
        const RP_T *tq = sq + slot * RP_N * RP_D, *tg = sg + slot * RP_N * RP_V;
        float s[RP_MT][RP_N / 8][4], d[RP_MT][RP_N / 8][4];
        RP_ZERO2(s, RP_MT, RP_N / 8);
        RP_ZERO2(d, RP_MT, RP_N / 8);
        rp_cp_async_wait(0);
        rp_barrier(); /* these queries are there, and the ones before are done with */
        if (step + 1 < steps) RP_FETCH_QUERIES(step + 1)
        rp_cp_async_commit();
        RP_SCORES(s, sk, tq, RP_D)
        if (which & 1) RP_SCORES(d, sv, tg, RP_V)
        const char *mask =
            (const char *)p.w[W_MASK] + (batch * RP_STRIDE(W_MASK, 0) + head * RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES;
        const int edge = RP_MASK || key0 + RP_M > keys || (RP_CAUSAL && key0 + RP_M - 1 > row0);
        (void)mask, (void)heads;
        _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++)
            _Pragma("unroll") for (int i = 0; i < 4; i++) {
            const int column = n * 8 + lane % 4 * 2 + i % 2;
            const int row = row0 + column, key = key0 + warp_row + mt * 16 + i / 2 * 8 + lane / 4;
            float weight, kept = 1;
            if (edge)
                weight = rp_exp2_approx_f32(rp_score(&p, s[mt][n][i] * scale, row, key, rows, keys, mask) -
                                            sl[slot * RP_N + column]);
            else
                weight = rp_exp2_approx_f32(rp_fma_f32(s[mt][n][i], scale, -sl[slot * RP_N + column]));
#if RP_DROPOUT
            kept = rp_kept(&p, (rp_u64)(((batch * heads + head) * rows + row) * keys + key));
#endif
            d[mt][n][i] = weight * (d[mt][n][i] * kept - sd[slot * RP_N + column]);
            s[mt][n][i] = weight * kept;
        }
        if (which & 2) RP_ADD_TURNED(dv, s, tg, RP_V)
        if (which & 1) RP_ADD_TURNED(dk, d, tq, RP_D)
    }
    rp_cp_async_wait(0);
    rp_barrier();
    const float by = (float)rp_bits_f64(p.w[W_SCALE]);
    RP_T *y;
#define RP_BY_SCALE(mt, h) by
#define RP_BY_ONE(mt, h) 1.0f
#define RP_KEY_AT(r) (y + (r)*RP_STRIDE(W_DK, 2))
#define RP_VALUE_AT(r) (y + (r)*RP_STRIDE(W_DV, 2))
    if (which & 1) {
        y = RP_BASE(RP_T, W_DK, batch, kv);
        RP_GIVE(dk, RP_D / 8, RP_BY_SCALE, sk, RP_D, RP_KEY_AT, 0, RP_STRIDE(W_DK, 3), key0, keys, features)
    }
    if (which & 2) {
        y = RP_BASE(RP_T, W_DV, batch, kv);
        RP_GIVE(dv, RP_V / 8, RP_BY_ONE, sv, RP_V, RP_VALUE_AT, 0, RP_STRIDE(W_DV, 3), key0, keys, values)
    }
#undef p
}
#endif

#if RP_SPLIT > 1
#define RP_CLUSTER __cluster_dims__(RP_SPLIT, 1, 1)
#else
#define RP_CLUSTER
#endif
extern "C" __global__ void RP_CLUSTER __launch_bounds__(RP_THREADS, RP_BLOCKS) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char rp_shared[];
    RP_T *memory = (RP_T *)(void *)rp_shared;
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32, warp_row = RP_SHARE ? 0 : warp * RP_MT * 16;
    const int rows = (int)p.w[W_ROWS], keys = (int)p.w[W_KEYS], heads = (int)p.w[W_HEADS], group = (int)p.w[W_GROUP];
    const int features = (int)p.w[W_FEATURES], values = (int)p.w[W_VALUES];
    const float scale = (float)(rp_bits_f64(p.w[W_SCALE]) * 1.4426950408889634);
    (void)lane, (void)warp, (void)warp_row;
    rp_launch_dependents();
    rp_grid_wait();
#if RP_PART == 0
#if RP_PACKED
    const int all = rows * group;
#else
    const int all = rows;
#endif
    int number;
    const int blocks = (all + RP_M - 1) / RP_M,
              turn = rp_turn(&p, (int)blockIdx.x / RP_SPLIT, blocks, (int)gridDim.x / RP_SPLIT, &number),
              row0 = (RP_CAUSAL ? blocks - 1 - turn : turn) * RP_M;
    const int warp_key = RP_SHARE ? warp * RP_NW : 0;
#if RP_PACKED
    const rp_i64 batch = number / (heads / group), next_head = RP_STRIDE(W_Q, 1);
    const int kv = number % (heads / group), head = kv * group, first_row = 0, last_row = rows - 1;
#else
    const rp_i64 batch = number / heads, next_head = 0;
    const int head = number % heads, kv = head / group, first_row = row0, last_row = row0 + RP_M - 1;
#endif
    int seen = keys;
    if (RP_CAUSAL && last_row + 1 < seen) seen = last_row + 1;
    const int steps = (seen + RP_N - 1) / RP_N;
#if RP_SPLIT > 1
    const int share = (steps + RP_SPLIT - 1) / RP_SPLIT, rank = (int)blockIdx.x % RP_SPLIT;
    const int begin = rank * share < steps ? rank * share : steps, end = begin + share < steps ? begin + share : steps;
#else
    const int rank = 0, begin = 0, end = steps;
    (void)rank;
#endif
    const RP_T *q = RP_BASE(const RP_T, W_Q, batch, head), *k = RP_BASE(const RP_T, W_K, batch, kv),
               *v = RP_BASE(const RP_T, W_V, batch, kv);
    RP_T *sq = memory, *sk = sq + RP_M * RP_D, *sv = sk + 2 * RP_N * RP_D;
    const rp_i64 k_row = RP_STRIDE(W_K, 2), k_column = RP_STRIDE(W_K, 3), v_row = RP_STRIDE(W_V, 2),
                 v_column = RP_STRIDE(W_V, 3);
    float out[RP_MT][RP_V / 8][4], most[RP_MT][2], sum[RP_MT][2];
    RP_ZERO2(out, RP_MT, RP_V / 8);
    _Pragma("unroll") for (int i = 0; i < RP_MT; i++) {
        most[i][0] = most[i][1] = -RP_INF;
        sum[i][0] = sum[i][1] = 0;
    }
#define RP_FETCH_STEP(step)                                                                                            \
    {                                                                                                                  \
        rp_fetch(sk + ((step)&1) * RP_N * RP_D, k, k_row, k_column, (step)*RP_N, RP_N, keys, RP_D, features, 0, 0);    \
        rp_fetch(sv + ((step)&1) * RP_N * RP_V, v, v_row, v_column, (step)*RP_N, RP_N, keys, RP_V, values, 0, 0);      \
    }
    rp_fetch(sq, q, RP_STRIDE(W_Q, 2), RP_STRIDE(W_Q, 3), row0, RP_M, all, RP_D, features, RP_PACKED ? rows : 0,
             next_head);
    if (begin < end) RP_FETCH_STEP(begin)
    rp_cp_async_commit();
#if RP_KEEP_A
    rp_u32 kept_a[RP_MT][RP_D / 16][4];
#endif
    for (int step = begin; step < end; step++) {
        const int key = step * RP_N + warp_key;
        const RP_T *tk = sk + (step & 1) * RP_N * RP_D + warp_key * RP_D,
                   *tv = sv + (step & 1) * RP_N * RP_V + warp_key * RP_V;
        float s[RP_MT][RP_NW / 8][4];
        RP_ZERO2(s, RP_MT, RP_NW / 8);
        rp_cp_async_wait(0);
        rp_barrier(); /* these keys and values are there, and the ones before are done with */
        if (step + 1 < end) RP_FETCH_STEP(step + 1)
        rp_cp_async_commit();
#if RP_KEEP_A
        if (step == begin)
            _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int f = 0; f < RP_D; f += 16)
                rp_read_a(kept_a[mt][f / 16], sq, RP_D, warp_row + mt * 16, f);
        _Pragma("unroll") for (int f = 0; f < RP_D; f += 16) _Pragma("unroll") for (int n = 0; n < RP_NW; n += 16) {
            rp_u32 fb[4];
            rp_read_b(fb, tk, RP_D, n, f);
            _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) {
                RP_MMA(s[mt][n / 8], kept_a[mt][f / 16], fb);
                RP_MMA(s[mt][n / 8 + 1], kept_a[mt][f / 16], fb + 2);
            }
        }
#else
        RP_SCORES(s, sq, tk, RP_D)
#endif
        const int edge = key + RP_NW > keys || (RP_CAUSAL && key + RP_NW - 1 > first_row);
        float less[RP_MT][2];
        _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int h = 0; h < 2; h++) {
            int row = row0 + warp_row + mt * 16 + h * 8 + lane / 4, query = head;
            float m = most[mt][h];
#if RP_PACKED
            query += row / rows, row %= rows;
#endif
#if RP_GENERAL
            const char *mask = (const char *)p.w[W_MASK] +
                               (batch * RP_STRIDE(W_MASK, 0) + query * RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES;
            const int masked = RP_MASK && query < heads && row < rows;
            _Pragma("unroll") for (int n = 0; n < RP_NW / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++) {
                const int at = key + n * 8 + lane % 4 * 2 + c;
                s[mt][n][2 * h + c] *= scale;
                if (masked && at < keys) s[mt][n][2 * h + c] += rp_masked(&p, mask, row, at);
            }
#endif
            if (edge) {
                const int bound = (RP_CAUSAL && row + 1 < keys ? row + 1 : keys) - key - lane % 4 * 2;
                _Pragma("unroll") for (int n = 0; n < RP_NW / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)
                    s[mt][n][2 * h + c] = n * 8 + c < bound ? s[mt][n][2 * h + c] : -RP_INF;
            }
            _Pragma("unroll") for (int n = 0; n < RP_NW / 8; n++) {
                m = rp_fmax_f32(m, rp_fmax_f32(s[mt][n][2 * h], s[mt][n][2 * h + 1]));
            }
            m = rp_fmax_f32(m, rp_shfl_xor_f32(m, 1, 32));
            m = rp_fmax_f32(m, rp_shfl_xor_f32(m, 2, 32));
            const float from = m == -RP_INF ? 0 : m;
            float total = 0;
#if RP_GENERAL
            less[mt][h] = rp_exp2_approx_f32(most[mt][h] - from);
            _Pragma("unroll") for (int n = 0; n < RP_NW / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)
                s[mt][n][2 * h + c] = rp_exp2_approx_f32(s[mt][n][2 * h + c] - from);
#else
            const float minus = -from * scale;
            less[mt][h] = rp_exp2_approx_f32(rp_fma_f32(most[mt][h], scale, minus));
            _Pragma("unroll") for (int n = 0; n < RP_NW / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)
                s[mt][n][2 * h + c] = rp_exp2_approx_f32(rp_fma_f32(s[mt][n][2 * h + c], scale, minus));
#endif
            most[mt][h] = m;
            _Pragma("unroll") for (int n = 0; n < RP_NW / 8; n++) { total += s[mt][n][2 * h] + s[mt][n][2 * h + 1]; }
            sum[mt][h] = sum[mt][h] * less[mt][h] + total;
#if RP_DROPOUT
            _Pragma("unroll") for (int n = 0; n < RP_NW / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)
                s[mt][n][2 * h + c] *=
                rp_kept(&p, (rp_u64)(((batch * heads + query) * rows + row) * keys + key + n * 8 + lane % 4 * 2 + c));
#endif
        }
        int grown = 0; /* is there a larger score than before? */
        _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) { grown |= less[mt][0] != 1 || less[mt][1] != 1; }
        if (rp_any(grown))
            _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int j = 0; j < RP_V / 8; j++)
                _Pragma("unroll") for (int i = 0; i < 4; i++) out[mt][j][i] *= less[mt][i / 2];
        RP_ADD_TURNED(out, s, tv, RP_V)
    }
    _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int h = 0; h < 2; h++) {
        sum[mt][h] += rp_shfl_xor_f32(sum[mt][h], 1, 32);
        sum[mt][h] += rp_shfl_xor_f32(sum[mt][h], 2, 32);
    }
    rp_cp_async_wait(0);
    rp_barrier();
    float *lse = (float *)p.w[W_LSE] + batch * RP_STRIDE(W_LSE, 0) + head * RP_STRIDE(W_LSE, 1);
    RP_T *y = RP_BASE(RP_T, W_OUT, batch, head);
#if RP_PACKED
#define RP_LSE_AT(r) lse[(r) / rows * RP_STRIDE(W_LSE, 1) + (r) % rows * RP_STRIDE(W_LSE, 2)]
#define RP_Y_AT(r) (y + (r) / rows * RP_STRIDE(W_OUT, 1) + (r) % rows * RP_STRIDE(W_OUT, 2))
#else
#define RP_LSE_AT(r) lse[(r)*RP_STRIDE(W_LSE, 2)]
#define RP_Y_AT(r) (y + (r)*RP_STRIDE(W_OUT, 2))
#endif
#if RP_GENERAL
#define RP_SCALED(m) (m)
#else
#define RP_SCALED(m) ((m)*scale)
#endif
#if RP_SPLIT > 1
#define RP_LEFT(place, part) rp_cluster_read_f32(&(place), (part) / (RP_PARTS / RP_SPLIT), RP_SPLIT)
#define RP_MEET() rp_cluster_barrier(RP_SPLIT)
#else
#define RP_LEFT(place, part) (place)
#define RP_MEET() rp_barrier()
#endif
#if RP_PARTS > 1
    /* Each part of the keys leaves its sums; the blocks add them up, each some of the rows, in the order of the keys. */
    float *left = (float *)(void *)rp_shared, *left_most = left + RP_PARTS / RP_SPLIT * RP_M * RP_V,
          *left_sum = left_most + RP_PARTS / RP_SPLIT * RP_M;
    const int own = RP_SHARE ? warp * RP_M : 0;
    _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int h = 0; h < 2; h++) {
        const int r = own + warp_row + mt * 16 + h * 8 + lane / 4;
        if (lane % 4 == 0) {
            left_most[r] = most[mt][h] == -RP_INF ? -RP_INF : RP_SCALED(most[mt][h]);
            left_sum[r] = sum[mt][h];
        }
        _Pragma("unroll") for (int j = 0; j < RP_V / 8; j++) _Pragma("unroll") for (int c = 0; c < 2; c++)
            left[r * RP_V + j * 8 + lane % 4 * 2 + c] = out[mt][j][2 * h + c];
    }
    RP_MEET();
    for (int r = rank; r < RP_M; r += RP_SPLIT) {
        const int row = row0 + r;
        if (row >= all) break;
        float m = -RP_INF, total = 0, fewer[RP_PARTS];
        _Pragma("unroll") for (int n = 0; n < RP_PARTS; n++) {
            fewer[n] = RP_LEFT(left_most[n % (RP_PARTS / RP_SPLIT) * RP_M + r], n);
            m = rp_fmax_f32(m, fewer[n]);
        }
        _Pragma("unroll") for (int n = 0; n < RP_PARTS; n++) {
            fewer[n] = m == -RP_INF ? 0 : rp_exp2_approx_f32(fewer[n] - m);
            total += fewer[n] * RP_LEFT(left_sum[n % (RP_PARTS / RP_SPLIT) * RP_M + r], n);
        }
        if (t == 0) RP_LSE_AT(row) = total == 0 ? -RP_INF : (m + rp_log2_f32(total)) * RP_LN2;
        for (int c = t; c < values; c += RP_THREADS) {
            float x = 0;
            _Pragma("unroll") for (int n = 0; n < RP_PARTS; n++) {
                x += fewer[n] * RP_LEFT(left[(n % (RP_PARTS / RP_SPLIT) * RP_M + r) * RP_V + c], n);
            }
            RP_Y_AT(row)[c * RP_STRIDE(W_OUT, 3)] = RP_STORE(total == 0 ? 0 : x / total);
        }
    }
    RP_MEET();
#else
    _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int h = 0; h < 2; h++) {
        const int row = row0 + warp_row + mt * 16 + h * 8 + lane / 4;
        if (lane % 4 == 0 && row < all)
            RP_LSE_AT(row) = sum[mt][h] == 0 ? -RP_INF : (RP_SCALED(most[mt][h]) + rp_log2_f32(sum[mt][h])) * RP_LN2;
        sum[mt][h] = sum[mt][h] == 0 ? 0 : 1 / sum[mt][h];
    }
#define RP_BY_SUM(mt, h) sum[mt][h]
    RP_GIVE(out, RP_V / 8, RP_BY_SUM, memory, RP_V, RP_Y_AT, RP_STRIDE(W_OUT, 2), RP_STRIDE(W_OUT, 3), row0, all,
            values)
#endif
#endif /* part 0 */

#if RP_PART == 1
    int number;
    const int blocks = (keys + RP_M - 1) / RP_M,
              turn = rp_turn(&p, (int)blockIdx.x, blocks * RP_HALVES, (int)gridDim.x, &number),
              kv = number % (heads / group);
    const rp_i64 batch = number / (heads / group);
    (void)rows, (void)features, (void)values, (void)scale;
#if RP_HALVES == 2 /* the sums of both do not fit the registers */
    if (turn % 2)
        rp_keys(&p, memory, 2, turn / 2 * RP_M, batch, kv);
    else
        rp_keys(&p, memory, 1, turn / 2 * RP_M, batch, kv);
#else
    rp_keys(&p, memory, 3, turn * RP_M, batch, kv);
#endif
#endif
#if RP_PART == 2
    int number;
    const int blocks = (rows + RP_M - 1) / RP_M, turn = rp_turn(&p, (int)blockIdx.x, blocks, (int)gridDim.x, &number),
              row0 = (RP_CAUSAL ? blocks - 1 - turn : turn) * RP_M, head = number % heads, kv = head / group;
    const rp_i64 batch = number / heads;
    int seen = keys;
    if (RP_CAUSAL && row0 + RP_M < seen) seen = row0 + RP_M;
    const int steps = (seen + RP_N - 1) / RP_N;
    const RP_T *k = RP_BASE(const RP_T, W_K, batch, kv), *v = RP_BASE(const RP_T, W_V, batch, kv);
    RP_T *sq = memory, *sg = sq + RP_M * RP_D, *sk = sg + RP_M * RP_V, *sv = sk + 2 * RP_N * RP_D;
    float dq[RP_MT][RP_D / 8][4], less[RP_MT][2], minus[RP_MT][2];
    RP_ZERO2(dq, RP_MT, RP_D / 8);
    _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int h = 0; h < 2; h++) {
        const int row = row0 + warp_row + mt * 16 + h * 8 + lane / 4;
        rp_row_sums(&p, batch, head, row, rows, &less[mt][h], &minus[mt][h]);
    }
    rp_fetch(sq, RP_BASE(const RP_T, W_Q, batch, head), RP_STRIDE(W_Q, 2), RP_STRIDE(W_Q, 3), row0, RP_M, rows, RP_D,
             features, 0, 0);
    rp_fetch(sg, RP_BASE(const RP_T, W_GRAD, batch, head), RP_STRIDE(W_GRAD, 2), RP_STRIDE(W_GRAD, 3), row0, RP_M, rows,
             RP_V, values, 0, 0);
#define RP_FETCH_KEYS(step)                                                                                            \
    {                                                                                                                  \
        const int slot = (step)&1;                                                                                     \
        rp_fetch(sk + slot * RP_N * RP_D, k, RP_STRIDE(W_K, 2), RP_STRIDE(W_K, 3), (step)*RP_N, RP_N, keys, RP_D,      \
                 features, 0, 0);                                                                                      \
        rp_fetch(sv + slot * RP_N * RP_V, v, RP_STRIDE(W_V, 2), RP_STRIDE(W_V, 3), (step)*RP_N, RP_N, keys, RP_V,      \
                 values, 0, 0);                                                                                        \
    }
    if (steps > 0) RP_FETCH_KEYS(0)
    rp_cp_async_commit();
    const char *mask =
        (const char *)p.w[W_MASK] + (batch * RP_STRIDE(W_MASK, 0) + head * RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES;
    for (int step = 0; step < steps; step++) {
        const int key0 = step * RP_N;
        const int slot = step & 1;
        const RP_T *tk = sk + slot * RP_N * RP_D, *tv = sv + slot * RP_N * RP_V;
        float s[RP_MT][RP_N / 8][4], d[RP_MT][RP_N / 8][4];
        RP_ZERO2(s, RP_MT, RP_N / 8);
        RP_ZERO2(d, RP_MT, RP_N / 8);
        rp_cp_async_wait(0);
        rp_barrier(); /* these keys are there, and the ones before are done with */
        if (step + 1 < steps) RP_FETCH_KEYS(step + 1)
        rp_cp_async_commit();
        RP_SCORES(s, sq, tk, RP_D)
        RP_SCORES(d, sg, tv, RP_V)
        const int edge = RP_MASK || key0 + RP_N > keys || (RP_CAUSAL && key0 + RP_N - 1 > row0);
        _Pragma("unroll") for (int mt = 0; mt < RP_MT; mt++) _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++)
            _Pragma("unroll") for (int i = 0; i < 4; i++) {
            const int row = row0 + warp_row + mt * 16 + i / 2 * 8 + lane / 4, key = key0 + n * 8 + lane % 4 * 2 + i % 2;
            float weight, kept = 1;
            if (edge)
                weight =
                    rp_exp2_approx_f32(rp_score(&p, s[mt][n][i] * scale, row, key, rows, keys, mask) - less[mt][i / 2]);
            else
                weight = rp_exp2_approx_f32(rp_fma_f32(s[mt][n][i], scale, -less[mt][i / 2]));
#if RP_DROPOUT
            kept = rp_kept(&p, (rp_u64)(((batch * heads + head) * rows + row) * keys + key));
#endif
            d[mt][n][i] = weight * (d[mt][n][i] * kept - minus[mt][i / 2]);
        }
        RP_ADD_TURNED(dq, d, tk, RP_D)
    }
    rp_cp_async_wait(0);
    rp_barrier();
    const float by = (float)rp_bits_f64(p.w[W_SCALE]);
    RP_T *y = RP_BASE(RP_T, W_DQ, batch, head);
#define RP_BY_SCALE(mt, h) by
#define RP_QUERY_AT(r) (y + (r)*RP_STRIDE(W_DQ, 2))
    RP_GIVE(dq, RP_D / 8, RP_BY_SCALE, sq, RP_D, RP_QUERY_AT, 0, RP_STRIDE(W_DQ, 3), row0, rows, features)
#endif
}
