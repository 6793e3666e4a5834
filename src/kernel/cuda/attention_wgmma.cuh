/* Attention of f16 and bf16 by the matrix instructions of warpgroups (devices of 9.0): forward (RP_PART 0), gradients of keys and values (1),
 * of queries (2). A warpgroup has 64 rows of a tile, a warp 16 of them, from its scores to the result: what a product of scores leaves in
 * registers is, rounded, the operand of the next one. The other operands lie in shared memory, in blocks of 64 features whose rows of 128
 * bytes are swizzled; four more warps bring them there while the ones before are computed with. Sums run along keys, or queries, in order;
 * exponentials are powers of two. The forward kernel multiplies the next scores, and the weights before, while it computes a tile's weights.
 * A block takes tile after tile, as many as it finds. Behind attention_common.cuh. Macros (attention.c): RP_NAME RP_WORDS RP_T RP_LOAD
 * RP_STORE RP_PACK(low, high); RP_GROUPS warpgroups that multiply; RP_N keys (queries, in part 1) of a step; RP_SLOTS tiles of steps;
 * RP_D RP_V padded features and values; products rp_wgmma_: RP_MMA_N(d, a, b, accumulate) of RP_N columns, RP_MMA_D(d, a, b), RP_MMA_V of
 * RP_D, RP_V columns, a in registers, added, b with its columns side by side; RP_MASK (1 bool, 2 f32, 3 RP_T), RP_CAUSAL, RP_DROPOUT;
 * RP_GENERAL: scores are scaled one by one; RP_WIDE: operands are read 16 bytes at once; RP_HALVES 2: keys and values have blocks of their
 * own; RP_BLOCKS a multiprocessor. */
#define RP_CONSUMERS (128 * RP_GROUPS)
#define RP_THREADS (RP_CONSUMERS + 128)
#define RP_M (64 * RP_GROUPS)
/* Elements of a tile of n rows; piece `chunk` of a row of it. */
#define RP_TILE(n, width) (((width) + 63) / 64 * 64 * (n))
#define RP_AT(n, row, chunk) (((chunk) / 8 * (n) + (row)) * 64 + (((chunk) ^ (row)) & 7) * 8)
/* A tile of n rows as an operand: rows are rows, and the sum runs along features; or the sum runs along rows. And its next sixteen of them. */
#define RP_ALONG(tile) rp_wgmma_desc(tile, 16, 1024, 128)
#define RP_ALONG_NEXT(n, k) ((k) / 4 * (n)*8 + (k) % 4 * 2)
#define RP_ACROSS(tile, n) rp_wgmma_desc(tile, (n)*128, 1024, 128)
#define RP_ACROSS_NEXT(k) ((k)*128)

/* n rows of a tensor, of which `left` are there, into a tile; zeros outside. By the four warps that bring tiles; at: the first row that this
 * thread brings, row t / 8 of them; from: an address that may be read. */
RP_FN void rp_fetch(RP_T *to, const RP_T *at, const RP_T *from, rp_i64 row, rp_i64 column, int left, int n, int width,
                    int features) {
    const int t = (int)threadIdx.x % 128, r0 = t / 8, chunk = t % 8, each = 16;
    RP_T *place = to + RP_AT(n, r0, chunk);
    const rp_i64 next = each * row;
#if RP_WIDE
    (void)column;
    at += chunk * 8;
    if (n <= left && features == width) {
        _Pragma("unroll 4") for (int j = 0; j < n / each; j++, at += next) {
            _Pragma("unroll") for (int b = 0; b < (width + 63) / 64; b++) {
                if (b * 64 + chunk * 8 < width) rp_cp_async_16(place + b * n * 64 + j * each * 64, at + b * 64);
            }
        }
        return;
    }
    _Pragma("unroll 1") for (int j = 0; j < n / each; j++, at += next) {
        _Pragma("unroll") for (int b = 0; b < (width + 63) / 64; b++) {
            const int ok = r0 + j * each < left && b * 64 + chunk * 8 < features;
            if (b * 64 + chunk * 8 < width)
                rp_cp_async_16_zfill(place + b * n * 64 + j * each * 64, ok ? at + b * 64 : from, ok ? 16 : 0);
        }
    }
#else
    (void)from;
    _Pragma("unroll 1") for (int r = r0; r < n; r += each, place += each * 64, at += next) {
        _Pragma("unroll 1") for (int b = 0; b < (width + 63) / 64; b++) {
            rp_u32 two[4];
            for (int j = 0; j < 4; j++) {
                const int c = b * 64 + chunk * 8 + 2 * j;
                const rp_u32 low = r < left && c < features ? at[c * column] : 0,
                             high = r < left && c + 1 < features ? at[(c + 1) * column] : 0;
                two[j] = high << 16 | low;
            }
            const rp_u32x4 four = {two[0], two[1], two[2], two[3]};
            rp_st_v4_u32((rp_u32 *)(void *)(place + b * n * 64), four);
        }
    }
#endif
}
/* A tile's rows [first, first + n) of a head. */
#define RP_FETCH(to, operand, b, h, first, n, limit, width, features)                                                  \
    rp_fetch(to, RP_BASE(const RP_T, operand, b, h) + ((first) + t / 8) * RP_STRIDE(operand, 2),                       \
             (const RP_T *)p.w[operand], RP_STRIDE(operand, 2), RP_STRIDE(operand, 3), (limit) - (first), n, width,    \
             features)
/* Tiles lie in a ring of RP_SLOTS. Barriers of each: full, of what is brought, and empty, of the warps that have read it. A tile's number
 * of uses tells the parity: turn is that of the use which is next. */
#if RP_WIDE
#define RP_BROUGHT(full) rp_mbarrier_arrive_copied(full)
#else
#define RP_BROUGHT(full) rp_mbarrier_arrive(full)
#endif
#define RP_NEXT(slot, turn)                                                                                            \
    if (++slot == RP_SLOTS) slot = 0, turn ^= 1;
#define RP_DONE(empty)                                                                                                 \
    if (lane == 0) rp_mbarrier_arrive(empty);
/* Without a step before it: nothing else has waited for the lanes, one of which might find two phases gone. */
#define RP_DONE_AT_ONCE(empty)                                                                                         \
    rp_warp_sync();                                                                                                    \
    RP_DONE(empty)
#if RP_GROUPS > 1 && RP_PART == 0 /* groups begin their products in turn: while one computes, another multiplies */
#define RP_MY_TURN()                                                                                                   \
    rp_mbarrier_wait(order + group, group == 0 ? order_turn ^ 1 : order_turn);                                         \
    order_turn ^= 1;
#define RP_YOUR_TURN() RP_DONE(order + (group + 1 < RP_GROUPS ? group + 1 : 0))
#else
#define RP_MY_TURN()
#define RP_YOUR_TURN()
#endif

/* Results of a warp, 16 rows from `first` on, of `width` columns. Of four pieces of eight columns each lane of four gets one, whole. */
RP_FN void rp_give(const float *x, int width, float by0, float by1, RP_T *y, rp_i64 row, rp_i64 column, int first,
                   int limit, int columns) {
    const int lane = (int)threadIdx.x % 32;
    _Pragma("unroll") for (int h = 0; h < 2; h++) _Pragma("unroll") for (int j = 0; j < width / 8; j += 4) {
        const float by = h ? by1 : by0;
        const int r = first + h * 8 + lane / 4, chunk = j + lane % 4;
        rp_u32 q[4];
        _Pragma("unroll") for (int i = 0; i < 4; i++) q[i] =
            j + i < width / 8 ? RP_PACK(x[4 * (j + i) + 2 * h] * by, x[4 * (j + i) + 2 * h + 1] * by) : 0;
        _Pragma("unroll") for (int i = 0; i < 4; i += 2) {
            const rp_u32 other = rp_shfl_xor_u32(lane & 1 ? q[i] : q[i + 1], 1, 32);
            q[i] = lane & 1 ? other : q[i], q[i + 1] = lane & 1 ? q[i + 1] : other;
        }
        _Pragma("unroll") for (int i = 0; i < 2; i++) {
            const rp_u32 other = rp_shfl_xor_u32(lane & 2 ? q[i] : q[i + 2], 2, 32);
            q[i] = lane & 2 ? other : q[i], q[i + 2] = lane & 2 ? q[i + 2] : other;
        }
        if (r >= limit) continue;
        RP_T *to = y + r * row + chunk * 8 * column;
        if (columns % 8 == 0 && column == 1 && ((rp_u64)to & 15) == 0) {
            const rp_u32x4 four = {q[0], q[1], q[2], q[3]};
            if (chunk * 8 < columns) rp_st_v4_u32((rp_u32 *)(void *)to, four);
        } else {
            _Pragma("unroll") for (int c = 0; c < 8; c++) {
                if (chunk * 8 + c < columns) to[c * column] = (RP_T)(q[c / 2] >> c % 2 * 16);
            }
        }
    }
}
/* Barriers: a tile's own operands full, empty; turns of the groups; then of each slot. Part 0 has a ring of keys and one of values. */
#define RP_FULL(slot) (barriers + 8 + (slot))
#define RP_EMPTY(slot) (barriers + 12 + (slot))
#define RP_V_FULL(slot) (barriers + 16 + (slot))
#define RP_V_EMPTY(slot) (barriers + 20 + (slot))
#define RP_ZERO(x, n) _Pragma("unroll") for (int v_ = 0; v_ < (n); v_++) x[v_] = 0

/* x = rows a times rows b, each a tile's operand, over `width` features; begun. */
#define RP_SCORES(x, a, rows_a, b, width)                                                                              \
    {                                                                                                                  \
        _Pragma("unroll") for (int k_ = 0; k_ < (width) / 16; k_++) {                                                  \
            RP_MMA_N(x, (a) + RP_ALONG_NEXT(rows_a, k_), (b) + RP_ALONG_NEXT(RP_N, k_), k_ > 0);                       \
        }                                                                                                              \
        rp_wgmma_commit();                                                                                             \
    }
/* x += a, RP_N columns rounded, times the rows of tile b; begun. */
#define RP_ADD(x, a, b, MMA)                                                                                           \
    {                                                                                                                  \
        _Pragma("unroll") for (int k_ = 0; k_ < RP_N / 16; k_++) { MMA(x, (a) + 4 * k_, (b) + RP_ACROSS_NEXT(k_)); }   \
        rp_wgmma_commit();                                                                                             \
    }
/* Sums of a product, rounded, as an operand: two neighbours in one register lie in the same order there. */
RP_FN void rp_round(rp_u32 *to, const float *x) {
    _Pragma("unroll") for (int i = 0; i < RP_N / 4; i++) to[i] = RP_PACK(x[2 * i], x[2 * i + 1]);
}

/* Of a thread's two rows what they do not see, from key `key` on. */
#define RP_HIDE(s, row, key)                                                                                           \
    _Pragma("unroll") for (int h = 0; h < 2; h++) {                                                                    \
        const int bound = (RP_CAUSAL && (row) + h * 8 + 1 < keys ? (row) + h * 8 + 1 : keys) - (key)-lane % 4 * 2;     \
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)             \
            s[4 * n + 2 * h + c] = n * 8 + c < bound ? s[4 * n + 2 * h + c] : -RP_INF;                                 \
    }

#if RP_PART == 0
/* Scores of a thread's two rows, row and row + 8, become weights. less: what the sums before are to be multiplied by. */
RP_FN void rp_weigh(const RP_WORDS *w, float *s, float *most, float *sum, float *less, int row, int key, int edge,
                    int head, int batch) {
#define p (*w)
    const int lane = (int)threadIdx.x % 32, rows = (int)p.w[W_ROWS], keys = (int)p.w[W_KEYS];
    const float scale = (float)(rp_bits_f64(p.w[W_SCALE]) * 1.4426950408889634);
    (void)rows, (void)head, (void)batch;
#if RP_GENERAL
    const char *mask =
        (const char *)p.w[W_MASK] + (batch * RP_STRIDE(W_MASK, 0) + head * RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES;
    _Pragma("unroll") for (int i = 0; i < RP_N / 2; i++) s[i] *= scale;
    if (RP_MASK && RP_STRIDE(W_MASK, 2) == 0) { /* one for all rows, as padding has it */
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++) {
            const int at = key + n * 8 + lane % 4 * 2 + c;
            const float add = at < keys ? rp_masked(w, mask, 0, at) : 0;
            s[4 * n + c] += add, s[4 * n + 2 + c] += add;
        }
    } else if (RP_MASK) {
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int i = 0; i < 4; i++) {
            const int at = key + n * 8 + lane % 4 * 2 + i % 2;
            if (row + i / 2 * 8 < rows && at < keys) s[4 * n + i] += rp_masked(w, mask, row + i / 2 * 8, at);
        }
    }
#endif
    if (edge) RP_HIDE(s, row, key)
    _Pragma("unroll") for (int h = 0; h < 2; h++) {
        float m[2] = {most[h], most[h]}, total[2] = {0, 0};
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++) m[c] =
            rp_fmax_f32(m[c], s[4 * n + 2 * h + c]);
        m[0] = rp_fmax_f32(m[0], m[1]);
        m[0] = rp_fmax_f32(m[0], rp_shfl_xor_f32(m[0], 1, 32));
        m[0] = rp_fmax_f32(m[0], rp_shfl_xor_f32(m[0], 2, 32));
        const float from = m[0] == -RP_INF ? 0 : m[0];
#if RP_GENERAL
        less[h] = rp_exp2_approx_f32(most[h] - from);
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)
            s[4 * n + 2 * h + c] = rp_exp2_approx_f32(s[4 * n + 2 * h + c] - from);
#else
        const float minus = -from * scale;
        less[h] = rp_exp2_approx_f32(rp_fma_f32(most[h], scale, minus));
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)
            s[4 * n + 2 * h + c] = rp_exp2_approx_f32(rp_fma_f32(s[4 * n + 2 * h + c], scale, minus));
#endif
        most[h] = m[0];
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++) total[c] +=
            s[4 * n + 2 * h + c];
        sum[h] = sum[h] * less[h] + (total[0] + total[1]);
#if RP_DROPOUT
        const rp_u64 element =
            (rp_u64)((((rp_i64)batch * (int)p.w[W_HEADS] + head) * rows + row + h * 8) * keys + key + lane % 4 * 2);
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) {
            float kept[2];
            rp_kept2(w, element + (rp_u64)(n * 8), kept);
            s[4 * n + 2 * h] *= kept[0], s[4 * n + 2 * h + 1] *= kept[1];
        }
#endif
    }
#undef p
}
#endif

/* A weight of the score s, that of a row whose sums' logarithm is `less`. */
#if RP_GENERAL
#define RP_WEIGHT_OF(s, less) rp_exp2_approx_f32((s) - (less))
#else
#define RP_WEIGHT_OF(s, less) rp_exp2_approx_f32(rp_fma_f32(s, scale, -(less)))
#endif

#if RP_PART == 1
#define RP_KEYS_OF(which)                                                                                              \
    const int rows = (int)p.w[W_ROWS], keys = (int)p.w[W_KEYS], heads = (int)p.w[W_HEADS],                             \
              group_of = (int)p.w[W_GROUP];                                                                            \
    const int features = (int)p.w[W_FEATURES], values = (int)p.w[W_VALUES];                                            \
    const int first = RP_CAUSAL ? key0 / RP_N * RP_N : 0,                                                              \
              steps = first < rows ? (rows - first + RP_N - 1) / RP_N * group_of : 0;                                  \
    RP_T *sk = memory, *sv = sk + RP_TILE(RP_M, RP_D), *sq = sv + RP_TILE(RP_M, RP_V),                                 \
         *sg = sq + RP_SLOTS * RP_TILE(RP_N, RP_D);                                                                    \
    float *sl = (float *)(void *)(sg + RP_SLOTS * RP_TILE(RP_N, RP_V)), *sd = sl + RP_SLOTS * RP_N;                    \
    (void)heads, (void)features, (void)values, (void)sk, (void)sv, (void)sd
/* What a tile of keys is multiplied with: itself (which & 1: values too), and all queries of its heads. */
RP_FN void rp_bring_queries(const RP_WORDS *w, RP_T *memory, rp_u64 *barriers, int which, int key0, int batch, int kv,
                            int *slot_, int *turn_, int tile_turn) {
#define p (*w)
    RP_KEYS_OF(which);
    const int t = (int)threadIdx.x % 128;
    int slot = *slot_, turn = *turn_, head = kv * group_of, at = first;
    rp_mbarrier_wait(barriers + 1, tile_turn ^ 1);
    RP_FETCH(sk, W_K, batch, kv, key0, RP_M, keys, RP_D, features);
    if (which & 1) RP_FETCH(sv, W_V, batch, kv, key0, RP_M, keys, RP_V, values);
    RP_BROUGHT(barriers);
    for (int step = 0; step < steps; step++) {
        float less = 0, minus = 0;
        if (t < RP_N) rp_row_sums(w, batch, head, at + t, rows, &less, &minus);
        rp_mbarrier_wait(RP_EMPTY(slot), turn ^ 1);
        RP_FETCH(sq + slot * RP_TILE(RP_N, RP_D), W_Q, batch, head, at, RP_N, rows, RP_D, features);
        RP_FETCH(sg + slot * RP_TILE(RP_N, RP_V), W_GRAD, batch, head, at, RP_N, rows, RP_V, values);
        if (t < RP_N) sl[slot * RP_N + t] = less, sd[slot * RP_N + t] = minus;
        RP_BROUGHT(RP_FULL(slot));
        rp_mbarrier_arrive(RP_FULL(slot)); /* the sums too */
        at += RP_N;
        if (at >= rows) head++, at = first;
        RP_NEXT(slot, turn)
    }
    *slot_ = slot, *turn_ = turn;
#undef p
}
/* Gradients of some keys (which & 1) and values (which & 2): a warp's rows are keys, columns are queries. */
RP_FN void rp_keys(const RP_WORDS *w, RP_T *memory, rp_u64 *barriers, int which, int key0, int batch, int kv,
                   int *slot_, int *turn_, int tile_turn) {
#define p (*w)
    RP_KEYS_OF(which);
    const int t = (int)threadIdx.x, lane = t % 32, group = rp_shfl_idx_i32(t / 128, 0, 32), group_row = group * 64;
    const float scale = (float)(rp_bits_f64(p.w[W_SCALE]) * 1.4426950408889634);
    float dk[RP_D / 2], dv[RP_V / 2];
    rp_u32 x[RP_N / 4], y[RP_N / 4]; /* y: of the step before */
    int last = *slot_, slot = last, turn = *turn_, head = kv * group_of, row0 = first;
    (void)head;
    RP_ZERO(y, RP_N / 4);
    if (which & 1) RP_ZERO(dk, RP_D / 2);
    if (which & 2) RP_ZERO(dv, RP_V / 2);
    const rp_u64 ak = RP_ALONG(sk + group_row * 64), av = ak + RP_TILE(RP_M, RP_D) / 8;
    const int row_of_warp = key0 + t / 32 * 16 + lane / 4;
    rp_mbarrier_wait(barriers, tile_turn);
    for (int step = 0; step < steps; step++) {
        const RP_T *tq = sq + slot * RP_TILE(RP_N, RP_D), *tg = sg + slot * RP_TILE(RP_N, RP_V);
        float s[RP_N / 2], d[RP_N / 2];
        rp_mbarrier_wait(RP_FULL(slot), turn);
        rp_fence_proxy_async();
        rp_wgmma_fence();
        RP_SCORES(s, ak, RP_M, RP_ALONG(tq), RP_D)
        if (which & 1) RP_SCORES(d, av, RP_M, RP_ALONG(tg), RP_V)
        if (which & 1) RP_ADD(dk, y, RP_ACROSS(sq + last * RP_TILE(RP_N, RP_D), RP_N), RP_MMA_D)
        rp_wgmma_wait(which & 1 ? 2 : 0);
        rp_wgmma_hold(s, RP_N / 2);
#if RP_GENERAL
        const char *mask =
            (const char *)p.w[W_MASK] + (batch * RP_STRIDE(W_MASK, 0) + head * RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES;
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int i = 0; i < 4; i++)
            s[4 * n + i] = rp_score(&p, s[4 * n + i] * scale, row0 + n * 8 + lane % 4 * 2 + i % 2,
                                    row_of_warp + i / 2 * 8, rows, keys, mask);
#else
        if (key0 + RP_M > keys || (RP_CAUSAL && key0 + group_row + 63 > row0))
            _Pragma("unroll") for (int h = 0; h < 2; h++) {
                const int key = row_of_warp + h * 8, bound = key >= keys ? RP_N
                                                             : RP_CAUSAL
                                                                 ? key - row0 - lane % 4 * 2
                                                                 : -1; /* column n * 8 + c sees it from there on */
                _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int c = 0; c < 2; c++)
                    s[4 * n + 2 * h + c] = n * 8 + c >= bound ? s[4 * n + 2 * h + c] : -RP_INF;
            }
#endif
        _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) {
            const rp_f32x2 two = rp_ld_v2_f32(sl + slot * RP_N + n * 8 + lane % 4 * 2);
            _Pragma("unroll") for (int i = 0; i < 4; i++) {
                s[4 * n + i] = RP_WEIGHT_OF(s[4 * n + i], i % 2 ? two.y : two.x);
#if RP_DROPOUT /* a weight that goes is negative */
                const int row = row0 + n * 8 + lane % 4 * 2 + i % 2, key = row_of_warp + i / 2 * 8;
                if (rp_kept(&p, (rp_u64)((((rp_i64)batch * heads + head) * rows + row) * keys + key)) == 0)
                    s[4 * n + i] = -s[4 * n + i];
#endif
            }
        }
#if RP_DROPOUT
        const float stays = (float)(1 / rp_bits_f64(p.w[W_KEEP]));
#define RP_WEIGHT(i) (s[i] < 0 ? 0 : s[i] * stays)
#define RP_SLOPE(i, minus) (s[i] < 0 ? s[i] * (minus) : s[i] * (d[i] * stays - (minus)))
#else
#define RP_WEIGHT(i) s[i]
#define RP_SLOPE(i, minus) (s[i] * (d[i] - (minus)))
#endif
        rp_wgmma_wait(0);
        if ((which & 1) && step > 0) RP_DONE(RP_EMPTY(last))
        last = slot;
        if (which & 2) {
            _Pragma("unroll") for (int i = 0; i < RP_N / 4; i++) x[i] = RP_PACK(RP_WEIGHT(2 * i), RP_WEIGHT(2 * i + 1));
            rp_wgmma_fence();
            RP_ADD(dv, x, RP_ACROSS(tg, RP_N), RP_MMA_V)
        }
        if (which & 1) {
            rp_wgmma_hold(d, RP_N / 2);
            rp_wgmma_hold(dk, RP_D / 2);
            _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) {
                const rp_f32x2 two = rp_ld_v2_f32(sd + slot * RP_N + n * 8 + lane % 4 * 2);
                _Pragma("unroll") for (int i = 4 * n; i < 4 * n + 4; i++) d[i] = RP_SLOPE(i, i % 2 ? two.y : two.x);
            }
            rp_round(y, d);
        }
        row0 += RP_N;
        if (row0 >= rows) head++, row0 = first;
        rp_wgmma_wait(0);
        if (which & 2) rp_wgmma_hold(dv, RP_V / 2);
        if (!(which & 1)) RP_DONE(RP_EMPTY(slot))
        RP_NEXT(slot, turn)
    }
    if ((which & 1) && steps > 0) {
        rp_wgmma_fence();
        RP_ADD(dk, y, RP_ACROSS(sq + last * RP_TILE(RP_N, RP_D), RP_N), RP_MMA_D)
        rp_wgmma_wait(0);
        rp_wgmma_hold(dk, RP_D / 2);
        RP_DONE(RP_EMPTY(last))
    }
    RP_DONE_AT_ONCE(barriers + 1)
    *slot_ = slot, *turn_ = turn;
    const float by = (float)rp_bits_f64(p.w[W_SCALE]);
    const int row = key0 + t / 32 * 16;
    if (which & 1)
        rp_give(dk, RP_D, by, by, RP_BASE(RP_T, W_DK, batch, kv), RP_STRIDE(W_DK, 2), RP_STRIDE(W_DK, 3), row, keys,
                features);
    if (which & 2)
        rp_give(dv, RP_V, 1, 1, RP_BASE(RP_T, W_DV, batch, kv), RP_STRIDE(W_DV, 2), RP_STRIDE(W_DV, 3), row, keys,
                values);
#undef p
}
#endif

/* The tiles of a block. Causal ones come with the longest first: each other round goes the other way. */
#define RP_EACH_TILE                                                                                                   \
    for (int tile = (int)blockIdx.x, round = 1; tile < tiles;                                                          \
         tile = round * (int)gridDim.x +                                                                               \
                (RP_CAUSAL && round % 2 ? (int)gridDim.x - 1 - (int)blockIdx.x : (int)blockIdx.x),                     \
             round++, tile_turn ^= 1)
#define RP_BYTES                                                                                                       \
    (2 * (RP_TILE(RP_M, RP_D) + (RP_PART > 0 ? RP_TILE(RP_M, RP_V) : 0) +                                              \
          RP_SLOTS * (RP_TILE(RP_N, RP_D) + RP_TILE(RP_N, RP_V))) +                                                    \
     (RP_PART == 1 ? 8 * RP_SLOTS * RP_N : 0))
#define RP_LAUNCHED (65536 / (RP_THREADS * RP_BLOCKS) / 8 * 8) /* registers of a thread, at first */
#define RP_GIVEN (RP_GROUPS == 3 ? 32 : 40)
#define RP_TAKEN ((RP_LAUNCHED * RP_THREADS - 128 * RP_GIVEN) / RP_CONSUMERS / 8 * 8)
#define RP_MOVES (RP_LAUNCHED < 256)

extern "C" __global__ void __launch_bounds__(RP_THREADS, RP_BLOCKS) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(1024) unsigned char rp_shared[];
    RP_T *memory = (RP_T *)(void *)rp_shared;
    rp_u64 *barriers = (rp_u64 *)(void *)(rp_shared + RP_BYTES);
    const int group = rp_shfl_idx_i32((int)threadIdx.x / 128, 0, 32);
    const int rows = (int)p.w[W_ROWS], keys = (int)p.w[W_KEYS], heads = (int)p.w[W_HEADS], group_of = (int)p.w[W_GROUP];
    const int tiles = (int)p.w[W_TILES];
    int number, slot = 0, turn = 0, tile_turn = 0;
    rp_launch_dependents();
    if (threadIdx.x == 0) {
        const int brought = RP_PART == 1 ? 256 : 128;
        rp_mbarrier_init(barriers, 128);
        rp_mbarrier_init(barriers + 1, 4 * RP_GROUPS);
        for (int i = 0; i < RP_GROUPS; i++) rp_mbarrier_init(barriers + 2 + i, 4);
        for (int i = 0; i < RP_SLOTS; i++) {
            rp_mbarrier_init(RP_FULL(i), brought);
            rp_mbarrier_init(RP_EMPTY(i), 4 * RP_GROUPS);
            rp_mbarrier_init(RP_V_FULL(i), brought);
            rp_mbarrier_init(RP_V_EMPTY(i), 4 * RP_GROUPS);
        }
    }
    rp_barrier();
    rp_grid_wait();
#if RP_PART == 1
    const int blocks = (keys + RP_M - 1) / RP_M * RP_HALVES;
    (void)rows;
#define RP_PLACE()                                                                                                     \
    const int share = rp_turn(&p, tile, blocks, tiles, &number), kv = number % (heads / group_of),                     \
              batch = number / (heads / group_of), which = RP_HALVES == 2 ? share % 2 ? 2 : 1 : 3,                     \
              key0 = share / RP_HALVES * RP_M
    if (group == RP_GROUPS) {
#if RP_MOVES
        rp_registers_give(RP_GIVEN);
#endif
        _Pragma("unroll 1") RP_EACH_TILE {
            RP_PLACE();
            rp_bring_queries(&p, memory, barriers, which, key0, batch, kv, &slot, &turn, tile_turn);
        }
        rp_cp_async_wait(0);
        return;
    }
#if RP_MOVES
    rp_registers_take(RP_TAKEN);
#endif
    _Pragma("unroll 1") RP_EACH_TILE {
        RP_PLACE();
#if RP_HALVES == 2 /* the sums of both do not fit the registers */
        if (which == 2)
            rp_keys(&p, memory, barriers, 2, key0, batch, kv, &slot, &turn, tile_turn);
        else
            rp_keys(&p, memory, barriers, 1, key0, batch, kv, &slot, &turn, tile_turn);
#else
        rp_keys(&p, memory, barriers, 3, key0, batch, kv, &slot, &turn, tile_turn);
#endif
    }
#else
    const int blocks = (rows + RP_M - 1) / RP_M;
    const int features = (int)p.w[W_FEATURES], values = (int)p.w[W_VALUES];
#define RP_PLACE()                                                                                                     \
    const int share = rp_turn(&p, tile, blocks, tiles, &number),                                                       \
              row0 = (RP_CAUSAL ? blocks - 1 - share : share) * RP_M, head = number % heads, batch = number / heads,   \
              kv = head / group_of, seen = RP_CAUSAL && row0 + RP_M < keys ? row0 + RP_M : keys,                       \
              steps = (seen + RP_N - 1) / RP_N
    RP_T *sq = memory, *sg = sq + RP_TILE(RP_M, RP_D), *sk = sg + (RP_PART == 2 ? RP_TILE(RP_M, RP_V) : 0),
         *sv = sk + RP_SLOTS * RP_TILE(RP_N, RP_D);
#define RP_K(slot) (sk + (slot)*RP_TILE(RP_N, RP_D))
#define RP_VALUES(slot) (sv + (slot)*RP_TILE(RP_N, RP_V))
    if (group == RP_GROUPS) {
        const int t = (int)threadIdx.x % 128;
#if RP_MOVES
        rp_registers_give(RP_GIVEN);
#endif
#if RP_PART == 0
        int v_slot = 0, v_turn = 0;
#endif
        _Pragma("unroll 1") RP_EACH_TILE {
            RP_PLACE();
            rp_mbarrier_wait(barriers + 1, tile_turn ^ 1);
            RP_FETCH(sq, W_Q, batch, head, row0, RP_M, rows, RP_D, features);
            if (RP_PART == 2) RP_FETCH(sg, W_GRAD, batch, head, row0, RP_M, rows, RP_V, values);
            RP_BROUGHT(barriers);
#if RP_PART == 0
            _Pragma("unroll 1") for (int step = 0; step <= steps; step++) {
                if (step < steps) {
                    rp_mbarrier_wait(RP_EMPTY(slot), turn ^ 1);
                    RP_FETCH(RP_K(slot), W_K, batch, kv, step * RP_N, RP_N, keys, RP_D, features);
                    RP_BROUGHT(RP_FULL(slot));
                    RP_NEXT(slot, turn)
                }
                if (step > 0) {
                    rp_mbarrier_wait(RP_V_EMPTY(v_slot), v_turn ^ 1);
                    RP_FETCH(RP_VALUES(v_slot), W_V, batch, kv, (step - 1) * RP_N, RP_N, keys, RP_V, values);
                    RP_BROUGHT(RP_V_FULL(v_slot));
                    RP_NEXT(v_slot, v_turn)
                }
            }
#else
            _Pragma("unroll 1") for (int step = 0; step < steps; step++) {
                rp_mbarrier_wait(RP_EMPTY(slot), turn ^ 1);
                RP_FETCH(RP_K(slot), W_K, batch, kv, step * RP_N, RP_N, keys, RP_D, features);
                RP_FETCH(RP_VALUES(slot), W_V, batch, kv, step * RP_N, RP_N, keys, RP_V, values);
                RP_BROUGHT(RP_FULL(slot));
                RP_NEXT(slot, turn)
            }
#endif
        }
        rp_cp_async_wait(0);
        return;
    }
#if RP_MOVES
    rp_registers_take(RP_TAKEN);
#endif
    const int t = (int)threadIdx.x, lane = t % 32, group_row = group * 64;
    const rp_u64 aq = RP_ALONG(sq + group_row * 64);
#endif
#if RP_PART == 0
#define RP_EDGE(step) ((step + 1) * RP_N > keys || (RP_CAUSAL && (step + 1) * RP_N - 1 > row0 + group_row))
    rp_u64 *order = barriers + 2;
    int v_slot = 0, v_turn = 0, order_turn = 0;
    (void)order, (void)order_turn;
    _Pragma("unroll 1") RP_EACH_TILE {
        RP_PLACE();
        const int row = row0 + t / 32 * 16 + lane / 4; /* the thread's rows: this one and the eighth behind it */
        float out[RP_V / 2], s[RP_N / 2], most[2] = {-RP_INF, -RP_INF}, sum[2] = {0, 0}, less[2];
        rp_u32 w[RP_N / 4];
        RP_ZERO(out, RP_V / 2);
        rp_mbarrier_wait(barriers, tile_turn);
        if (steps > 0) {
            rp_mbarrier_wait(RP_FULL(slot), turn);
            rp_fence_proxy_async();
            RP_MY_TURN()
            rp_wgmma_fence();
            RP_SCORES(s, aq, RP_M, RP_ALONG(RP_K(slot)), RP_D)
            RP_YOUR_TURN()
            rp_wgmma_wait(0);
            rp_wgmma_hold(s, RP_N / 2);
            RP_DONE(RP_EMPTY(slot))
            RP_NEXT(slot, turn)
            if (steps == 1) RP_DONE(barriers + 1)
            rp_weigh(&p, s, most, sum, less, row, 0, RP_EDGE(0), head, batch);
            rp_round(w, s);
            for (int step = 1; step < steps; step++) {
                rp_mbarrier_wait(RP_FULL(slot), turn);
                rp_mbarrier_wait(RP_V_FULL(v_slot), v_turn);
                rp_fence_proxy_async();
                RP_MY_TURN()
                rp_wgmma_fence();
                RP_SCORES(s, aq, RP_M, RP_ALONG(RP_K(slot)), RP_D)
                RP_ADD(out, w, RP_ACROSS(RP_VALUES(v_slot), RP_N), RP_MMA_V)
                RP_YOUR_TURN()
                rp_wgmma_wait(1);
                rp_wgmma_hold(s, RP_N / 2);
                RP_DONE(RP_EMPTY(slot))
                if (step + 1 == steps) RP_DONE(barriers + 1)
                rp_weigh(&p, s, most, sum, less, row, step * RP_N, RP_EDGE(step), head, batch);
                rp_wgmma_wait(0);
                rp_wgmma_hold(out, RP_V / 2);
                RP_DONE(RP_V_EMPTY(v_slot))
                if (rp_any(less[0] != 1 || less[1] != 1)) /* is there a larger score than before? */
                    _Pragma("unroll") for (int i = 0; i < RP_V / 2; i++) out[i] *= less[i / 2 % 2];
                rp_round(w, s);
                RP_NEXT(slot, turn)
                RP_NEXT(v_slot, v_turn)
            }
            rp_mbarrier_wait(RP_V_FULL(v_slot), v_turn);
            rp_fence_proxy_async();
            rp_wgmma_fence();
            RP_ADD(out, w, RP_ACROSS(RP_VALUES(v_slot), RP_N), RP_MMA_V)
            rp_wgmma_wait(0);
            rp_wgmma_hold(out, RP_V / 2);
            RP_DONE(RP_V_EMPTY(v_slot))
            RP_NEXT(v_slot, v_turn)
        } else {
            RP_DONE_AT_ONCE(barriers + 1)
        }
        _Pragma("unroll") for (int h = 0; h < 2; h++) {
            float *lse = RP_BASE(float, W_LSE, batch, head) + (row + h * 8) * RP_STRIDE(W_LSE, 2);
            sum[h] += rp_shfl_xor_f32(sum[h], 1, 32);
            sum[h] += rp_shfl_xor_f32(sum[h], 2, 32);
#if !RP_GENERAL
            most[h] *= (float)(rp_bits_f64(p.w[W_SCALE]) * 1.4426950408889634);
#endif
            if (lane % 4 == 0 && row + h * 8 < rows)
                *lse = sum[h] == 0 ? -RP_INF : (most[h] + rp_log2_f32(sum[h])) * RP_LN2;
            sum[h] = sum[h] == 0 ? 0 : 1 / sum[h];
        }
        rp_give(out, RP_V, sum[0], sum[1], RP_BASE(RP_T, W_OUT, batch, head), RP_STRIDE(W_OUT, 2), RP_STRIDE(W_OUT, 3),
                row - lane / 4, rows, values);
    }
#endif
#if RP_PART == 2
    const float scale = (float)(rp_bits_f64(p.w[W_SCALE]) * 1.4426950408889634), by = (float)rp_bits_f64(p.w[W_SCALE]);
    const rp_u64 ag = aq + RP_TILE(RP_M, RP_D) / 8;
    _Pragma("unroll 1") RP_EACH_TILE {
        RP_PLACE();
        const int row = row0 + t / 32 * 16 + lane / 4;
        float dq[RP_D / 2], less[2], minus[2];
        rp_u32 y[RP_N / 4]; /* of the step before */
        int last = slot;
        RP_ZERO(dq, RP_D / 2);
        RP_ZERO(y, RP_N / 4);
        _Pragma("unroll") for (int h = 0; h < 2; h++)
            rp_row_sums(&p, batch, head, row + h * 8, rows, &less[h], &minus[h]);
        rp_mbarrier_wait(barriers, tile_turn);
        for (int step = 0; step < steps; step++) {
            const int key0 = step * RP_N;
            float s[RP_N / 2], d[RP_N / 2];
            rp_mbarrier_wait(RP_FULL(slot), turn);
            rp_fence_proxy_async();
            rp_wgmma_fence();
            RP_SCORES(s, aq, RP_M, RP_ALONG(RP_K(slot)), RP_D)
            RP_SCORES(d, ag, RP_M, RP_ALONG(RP_VALUES(slot)), RP_V)
            RP_ADD(dq, y, RP_ACROSS(RP_K(last), RP_N), RP_MMA_D)
            rp_wgmma_wait(2);
            rp_wgmma_hold(s, RP_N / 2);
#if RP_GENERAL
            const char *mask = (const char *)p.w[W_MASK] +
                               (batch * RP_STRIDE(W_MASK, 0) + head * RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES;
            _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int i = 0; i < 4; i++)
                s[4 * n + i] = rp_score(&p, s[4 * n + i] * scale, row + i / 2 * 8, key0 + n * 8 + lane % 4 * 2 + i % 2,
                                        rows, keys, mask);
#else
            if (key0 + RP_N > keys || (RP_CAUSAL && key0 + RP_N - 1 > row0 + group_row)) RP_HIDE(s, row, key0)
#endif
            _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int i = 0; i < 4; i++)
                s[4 * n + i] = RP_WEIGHT_OF(s[4 * n + i], less[i / 2]);
            rp_wgmma_wait(1);
            rp_wgmma_hold(d, RP_N / 2);
            _Pragma("unroll") for (int n = 0; n < RP_N / 8; n++) _Pragma("unroll") for (int h = 0; h < 2; h++) {
                float kept[2] = {1, 1};
#if RP_DROPOUT
                rp_kept2(&p,
                         (rp_u64)((((rp_i64)batch * heads + head) * rows + row + h * 8) * keys + key0 + n * 8 +
                                  lane % 4 * 2),
                         kept);
#endif
                _Pragma("unroll") for (int c = 0; c < 2; c++) s[4 * n + 2 * h + c] *=
                    d[4 * n + 2 * h + c] * kept[c] - minus[h];
            }
            rp_wgmma_wait(0);
            rp_wgmma_hold(dq, RP_D / 2);
            if (step > 0) RP_DONE(RP_EMPTY(last))
            last = slot;
            RP_NEXT(slot, turn)
            rp_round(y, s);
        }
        if (steps > 0) {
            rp_wgmma_fence();
            RP_ADD(dq, y, RP_ACROSS(RP_K(last), RP_N), RP_MMA_D)
            rp_wgmma_wait(0);
            rp_wgmma_hold(dq, RP_D / 2);
            RP_DONE(RP_EMPTY(last))
        }
        RP_DONE_AT_ONCE(barriers + 1)
        rp_give(dq, RP_D, by, by, RP_BASE(RP_T, W_DQ, batch, head), RP_STRIDE(W_DQ, 2), RP_STRIDE(W_DQ, 3),
                row - lane / 4, rows, features);
    }
#endif
}
