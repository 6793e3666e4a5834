/* Attention without tensor cores: forward (RP_PART 0), gradients of keys and values (1), of queries (2). 256 threads, 16 x 16, of which
 * each has RP_RM rows and RP_RN columns of a tile of scores; every operand of a product lies in shared memory with its sum's index
 * outermost. Sums run along the keys, or queries, in order. Macros (attention.c): RP_NAME RP_WORDS RP_T RP_ACC RP_LOAD RP_STORE RP_MULADD,
 * RP_EXP RP_LOG; RP_M rows of queries, RP_N keys of a tile; RP_D RP_V padded features and values; RP_MASK (1 bool, 2 f32, 3 RP_T), RP_CAUSAL,
 * RP_DROPOUT. Words: attention.c, W_ there and here. */
typedef struct {
    rp_u64 w[RP_N_WORDS];
} RP_WORDS;
#define RP_RM (RP_M / 16)
#define RP_RN (RP_N / 16)
#define RP_RD (RP_D / 16)
#define RP_RV (RP_V / 16)
#define RP_PAD (16 / (int)sizeof(RP_ACC))
#define RP_LM (RP_M + RP_PAD) /* rows of what has queries innermost */
#define RP_LN (RP_N + RP_PAD)
#define RP_STRIDE(operand, dim) ((rp_i64)p.w[W_STRIDES + 4 * (operand) + (dim)])
#define RP_BASE(T, operand, b, h) ((T *)p.w[operand] + (b)*RP_STRIDE(operand, 0) + (h)*RP_STRIDE(operand, 1))
#define RP_INF rp_bits_f32(0x7f800000u)

/* Rows [first, first + n) of a tensor, to[row * ld + column], or turned, to[column * ld + row]; zeros outside. */
RP_FN void rp_read(RP_ACC *to, int ld, int turned, const RP_T *from, rp_i64 row, rp_i64 column, rp_i64 first, int n,
                   rp_i64 rows, int wide, int columns, RP_ACC factor) {
    for (int i = (int)threadIdx.x; i < n * wide; i += 256) {
        const int r = i / wide, c = i % wide;
        RP_ACC x = 0;
        if (first + r < rows && c < columns) x = RP_LOAD(from[(first + r) * row + c * column]) * factor;
        to[turned ? c * ld + r : r * ld + c] = x;
    }
}

/* Column j of a thread's n of 16 * n: neighbours in memory where there are four. */
RP_FN int rp_column(int j, int n) {
    const int tx = (int)threadIdx.x % 16;
    return n % 4 == 0 ? j / 4 * 64 + tx * 4 + j % 4 : tx * n + j;
}
#define RP_ADD(acc, rn, at, lda, rows_of, bt, ldb, length)                                                             \
    _Pragma("unroll 4") for (int k = 0; k < (length); k++) {                                                           \
        RP_ACC fa[RP_RMOST], fb[RP_CMOST];                                                                             \
        _Pragma("unroll") for (int i = 0; i < (rows_of); i++) fa[i] = (at)[k * (lda) + ty * (rows_of) + i];            \
        _Pragma("unroll") for (int j = 0; j < (rn); j++) fb[j] = (bt)[k * (ldb) + rp_column(j, rn)];                   \
        _Pragma("unroll") for (int i = 0; i < (rows_of); i++) _Pragma("unroll") for (int j = 0; j < (rn); j++)         \
            acc[i][j] = RP_MULADD(fa[i], fb[j], acc[i][j]);                                                            \
    }
#define RP_RMOST (RP_RM > RP_RN ? RP_RM : RP_RN)
#define RP_CMOST (RP_RD > RP_RV ? (RP_RD > RP_RN ? RP_RD : RP_RN) : (RP_RV > RP_RN ? RP_RV : RP_RN))
#define RP_ZERO(acc, rows_of, rn)                                                                                      \
    _Pragma("unroll") for (int i = 0; i < (rows_of); i++) _Pragma("unroll") for (int j = 0; j < (rn); j++) acc[i][j] = 0

#if RP_DROPOUT
/* 1 / keep where a weight stays, 0 where it does not. */
RP_FN RP_ACC rp_kept(const RP_WORDS *w, rp_u64 element) {
    const rp_u64 *place = (const rp_u64 *)w->w[W_PLACE];
    const double stays = rp_bits_f64(w->w[W_KEEP]);
    rp_u32 x[4];
    rp_philox(place[0], place[1] + element / 4, x);
    return (float)(rp_pick(x, (int)(element & 3)) >> 8) * rp_bits_f32(0x33800000u) < (float)stays ? (RP_ACC)(1 / stays)
                                                                                                  : 0;
}
#endif

/* The score of query i and key j, of which the product is s. */
RP_FN RP_ACC rp_score(const RP_WORDS *w, RP_ACC s, rp_i64 i, rp_i64 j, rp_i64 rows, rp_i64 keys, const char *mask) {
    (void)w, (void)rows, (void)mask;
    if (j >= keys) return -RP_INF;
#if RP_CAUSAL
    if (j > i) return -RP_INF;
#endif
#if RP_MASK
    if (i < rows) {
        const rp_i64 at = i * (rp_i64)w->w[W_STRIDES + 4 * W_MASK + 2] + j * (rp_i64)w->w[W_STRIDES + 4 * W_MASK + 3];
#if RP_MASK == 1
        if (!((const rp_u8 *)mask)[at]) return -RP_INF;
#elif RP_MASK == 2
        s += (RP_ACC)((const float *)mask)[at];
#else
        s += RP_LOAD(((const RP_T *)mask)[at]);
#endif
    }
#endif
    return s;
}
#define RP_MASK_BYTES (RP_MASK == 1 ? 1 : RP_MASK == 2 ? 4 : (int)sizeof(RP_T))

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char rp_shared[];
    RP_ACC *memory = (RP_ACC *)(void *)rp_shared;
    const int t = (int)threadIdx.x, tx = t % 16, ty = t / 16;
    const rp_i64 rows = (rp_i64)p.w[W_ROWS], keys = (rp_i64)p.w[W_KEYS], heads = (rp_i64)p.w[W_HEADS],
                 group = (rp_i64)p.w[W_GROUP];
    const int features = (int)p.w[W_FEATURES], values = (int)p.w[W_VALUES];
    const RP_ACC scale = (RP_ACC)rp_bits_f64(p.w[W_SCALE]);
    (void)tx, (void)memory;
    rp_launch_dependents();
    rp_grid_wait();
#if RP_PART != 1 /* a block has some queries, and walks the keys */
    const rp_i64 blocks = (rows + RP_M - 1) / RP_M, number = (rp_i64)blockIdx.x / blocks;
    const rp_i64 row0 = ((RP_CAUSAL ? blocks - 1 : 0) + (RP_CAUSAL ? -1 : 1) * ((rp_i64)blockIdx.x % blocks)) * RP_M;
    const rp_i64 batch = number / heads, head = number % heads, kv = head / group;
    rp_i64 seen = keys;
    if (RP_CAUSAL && row0 + RP_M < seen) seen = row0 + RP_M;
#else
    const rp_i64 blocks = (keys + RP_N - 1) / RP_N, number = (rp_i64)blockIdx.x / blocks;
    const rp_i64 key0 = (rp_i64)blockIdx.x % blocks * RP_N, batch = number / (heads / group),
                 kv = number % (heads / group);
#endif
    const RP_T *k = RP_BASE(const RP_T, W_K, batch, kv), *v = RP_BASE(const RP_T, W_V, batch, kv);
    RP_ACC *tq = memory, *tk = tq + RP_D * RP_LM;
#if RP_PART == 0
    RP_ACC *sv = tk + RP_D * RP_LN, *tp = sv + RP_N * RP_V;
    RP_ACC out[RP_RM][RP_RV], most[RP_RM], sum[RP_RM];
    RP_ZERO(out, RP_RM, RP_RV);
    _Pragma("unroll") for (int i = 0; i < RP_RM; i++) most[i] = -RP_INF, sum[i] = 0;
#else
    RP_ACC *tg = tk + RP_D * RP_LN, *tv = tg + RP_V * RP_LM, *td = tv + RP_V * RP_LN, *sk = td + RP_N * RP_LM, *sp = sk,
           *sq = sp + RP_M * RP_LN, *sg = sq + RP_M * RP_D; /* part 1 has no sk, part 2 none of the last three */
    (void)sp, (void)td, (void)sq, (void)sg, (void)sk;
#endif
#if RP_PART == 0
    rp_read(tq, RP_LM, 1, RP_BASE(const RP_T, W_Q, batch, head), RP_STRIDE(W_Q, 2), RP_STRIDE(W_Q, 3), row0, RP_M, rows,
            RP_D, features, scale);
    const char *mask =
        (const char *)p.w[W_MASK] + (batch * RP_STRIDE(W_MASK, 0) + head * RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES;
    for (rp_i64 key = 0; key < seen; key += RP_N) {
        RP_ACC s[RP_RM][RP_RN];
        RP_ZERO(s, RP_RM, RP_RN);
        rp_barrier();
        rp_read(tk, RP_LN, 1, k, RP_STRIDE(W_K, 2), RP_STRIDE(W_K, 3), key, RP_N, keys, RP_D, features, 1);
        rp_read(sv, RP_V, 0, v, RP_STRIDE(W_V, 2), RP_STRIDE(W_V, 3), key, RP_N, keys, RP_V, values, 1);
        rp_barrier();
        RP_ADD(s, RP_RN, tq, RP_LM, RP_RM, tk, RP_LN, RP_D)
        _Pragma("unroll") for (int i = 0; i < RP_RM; i++) {
            const rp_i64 row = row0 + ty * RP_RM + i;
            RP_ACC m = most[i], total = 0;
            _Pragma("unroll") for (int j = 0; j < RP_RN; j++) {
                s[i][j] = rp_score(&p, s[i][j], row, key + rp_column(j, RP_RN), rows, keys, mask);
                m = s[i][j] > m ? s[i][j] : m;
            }
            _Pragma("unroll") for (int n = 1; n < 16; n *= 2) {
                const RP_ACC other = RP_SHUFFLE(m, n, 32);
                m = other > m ? other : m;
            }
            const RP_ACC from = m == -RP_INF ? 0 : m, less = RP_EXP(most[i] - from);
            most[i] = m;
            _Pragma("unroll") for (int j = 0; j < RP_RN; j++) {
                s[i][j] = RP_EXP(s[i][j] - from);
                total += s[i][j];
            }
            _Pragma("unroll") for (int n = 1; n < 16; n *= 2) total += RP_SHUFFLE(total, n, 32);
            sum[i] = sum[i] * less + total;
            _Pragma("unroll") for (int j = 0; j < RP_RV; j++) out[i][j] *= less;
            _Pragma("unroll") for (int j = 0; j < RP_RN; j++) {
                const int column = rp_column(j, RP_RN);
#if RP_DROPOUT
                s[i][j] *= rp_kept(&p, (rp_u64)((number * rows + row) * keys + key + column));
#endif
                tp[column * RP_LM + ty * RP_RM + i] = s[i][j];
            }
        }
        rp_barrier();
        RP_ADD(out, RP_RV, tp, RP_LM, RP_RM, sv, RP_V, RP_N)
    }
    RP_T *y = RP_BASE(RP_T, W_OUT, batch, head);
    RP_ACC *lse = RP_BASE(RP_ACC, W_LSE, batch, head);
    _Pragma("unroll") for (int i = 0; i < RP_RM; i++) {
        const rp_i64 row = row0 + ty * RP_RM + i;
        if (row >= rows) continue;
        const RP_ACC by = sum[i] == 0 ? 0 : 1 / sum[i];
        if (tx == 0) lse[row * RP_STRIDE(W_LSE, 2)] = sum[i] == 0 ? -RP_INF : most[i] + RP_LOG(sum[i]);
        _Pragma("unroll") for (int j = 0; j < RP_RV; j++) {
            const int column = rp_column(j, RP_RV);
            if (column < values) y[row * RP_STRIDE(W_OUT, 2) + column * RP_STRIDE(W_OUT, 3)] = RP_STORE(out[i][j] * by);
        }
    }
#else
/* The weights and what their scores change the result by, of queries [row, ..) and keys [key, ..), to sp and, turned, td: what follows
   takes one of the two forms. */
#define RP_TILE(row_first, key_first, head_of)                                                                         \
    RP_ACC s[RP_RM][RP_RN], d[RP_RM][RP_RN];                                                                           \
    RP_ZERO(s, RP_RM, RP_RN);                                                                                          \
    RP_ZERO(d, RP_RM, RP_RN);                                                                                          \
    RP_ADD(s, RP_RN, tq, RP_LM, RP_RM, tk, RP_LN, RP_D)                                                                \
    RP_ADD(d, RP_RN, tg, RP_LM, RP_RM, tv, RP_LN, RP_V)                                                                \
    _Pragma("unroll") for (int i = 0; i < RP_RM; i++) {                                                                \
        const rp_i64 row = (row_first) + ty * RP_RM + i;                                                               \
        RP_ACC less = RP_INF, minus = 0;                                                                               \
        if (row < rows) {                                                                                              \
            less = RP_BASE(const RP_ACC, W_LSE, batch, head_of)[row * RP_STRIDE(W_LSE, 2)];                            \
            minus = RP_BASE(const RP_ACC, W_DELTA, batch, head_of)[row * RP_STRIDE(W_DELTA, 2)];                       \
        }                                                                                                              \
        if (less == -RP_INF) less = RP_INF; /* a row that sees nothing has weights of 0 */                             \
        _Pragma("unroll") for (int j = 0; j < RP_RN; j++) {                                                            \
            const int column = rp_column(j, RP_RN);                                                                    \
            RP_ACC weight = RP_EXP(rp_score(&p, s[i][j] * scale, row, (key_first) + column, rows, keys, mask) - less); \
            RP_ACC slope = d[i][j], kept = 1;                                                                          \
            RP_KEEP_WEIGHT(((batch * heads + (head_of)) * rows + row) * keys + (key_first) + column)                   \
            slope = weight * (slope * kept - minus);                                                                   \
            weight *= kept;                                                                                            \
            RP_PUT(ty *RP_RM + i, column)                                                                              \
        }                                                                                                              \
    }
#if RP_DROPOUT
#define RP_KEEP_WEIGHT(element) kept = rp_kept(&p, (rp_u64)(element));
#else
#define RP_KEEP_WEIGHT(element)
#endif
#define RP_MASK_OF(head_of)                                                                                            \
    ((const char *)p.w[W_MASK] + (batch * RP_STRIDE(W_MASK, 0) + (head_of)*RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES)
#if RP_PART == 2
#define RP_PUT(row_at, column_at) td[(column_at)*RP_LM + (row_at)] = slope;
    RP_ACC dq[RP_RM][RP_RD];
    RP_ZERO(dq, RP_RM, RP_RD);
    rp_read(tq, RP_LM, 1, RP_BASE(const RP_T, W_Q, batch, head), RP_STRIDE(W_Q, 2), RP_STRIDE(W_Q, 3), row0, RP_M, rows,
            RP_D, features, 1);
    rp_read(tg, RP_LM, 1, RP_BASE(const RP_T, W_GRAD, batch, head), RP_STRIDE(W_GRAD, 2), RP_STRIDE(W_GRAD, 3), row0,
            RP_M, rows, RP_V, values, 1);
    const char *mask = RP_MASK_OF(head);
    for (rp_i64 key = 0; key < seen; key += RP_N) {
        rp_barrier();
        rp_read(tk, RP_LN, 1, k, RP_STRIDE(W_K, 2), RP_STRIDE(W_K, 3), key, RP_N, keys, RP_D, features, 1);
        rp_read(sk, RP_D, 0, k, RP_STRIDE(W_K, 2), RP_STRIDE(W_K, 3), key, RP_N, keys, RP_D, features, 1);
        rp_read(tv, RP_LN, 1, v, RP_STRIDE(W_V, 2), RP_STRIDE(W_V, 3), key, RP_N, keys, RP_V, values, 1);
        rp_barrier();
        RP_TILE(row0, key, head)
        rp_barrier();
        RP_ADD(dq, RP_RD, td, RP_LM, RP_RM, sk, RP_D, RP_N)
    }
    RP_T *y = RP_BASE(RP_T, W_DQ, batch, head);
    _Pragma("unroll") for (int i = 0; i < RP_RM; i++) {
        const rp_i64 row = row0 + ty * RP_RM + i;
        if (row >= rows) continue;
        _Pragma("unroll") for (int j = 0; j < RP_RD; j++) {
            const int column = rp_column(j, RP_RD);
            if (column < features)
                y[row * RP_STRIDE(W_DQ, 2) + column * RP_STRIDE(W_DQ, 3)] = RP_STORE(dq[i][j] * scale);
        }
    }
#else
#define RP_PUT(row_at, column_at)                                                                                      \
    sp[(row_at)*RP_LN + (column_at)] = weight;                                                                         \
    td[(row_at)*RP_LN + (column_at)] = slope;
    RP_ACC dk[RP_RN][RP_RD], dv[RP_RN][RP_RV];
    RP_ZERO(dk, RP_RN, RP_RD);
    RP_ZERO(dv, RP_RN, RP_RV);
    rp_read(tk, RP_LN, 1, k, RP_STRIDE(W_K, 2), RP_STRIDE(W_K, 3), key0, RP_N, keys, RP_D, features, 1);
    rp_read(tv, RP_LN, 1, v, RP_STRIDE(W_V, 2), RP_STRIDE(W_V, 3), key0, RP_N, keys, RP_V, values, 1);
    for (rp_i64 head = kv * group; head < (kv + 1) * group; head++) {
        const RP_T *q = RP_BASE(const RP_T, W_Q, batch, head), *g = RP_BASE(const RP_T, W_GRAD, batch, head);
        const char *mask = RP_MASK_OF(head);
        for (rp_i64 row0 = RP_CAUSAL ? key0 / RP_M * RP_M : 0; row0 < rows; row0 += RP_M) {
            rp_barrier();
            rp_read(tq, RP_LM, 1, q, RP_STRIDE(W_Q, 2), RP_STRIDE(W_Q, 3), row0, RP_M, rows, RP_D, features, 1);
            rp_read(sq, RP_D, 0, q, RP_STRIDE(W_Q, 2), RP_STRIDE(W_Q, 3), row0, RP_M, rows, RP_D, features, 1);
            rp_read(tg, RP_LM, 1, g, RP_STRIDE(W_GRAD, 2), RP_STRIDE(W_GRAD, 3), row0, RP_M, rows, RP_V, values, 1);
            rp_read(sg, RP_V, 0, g, RP_STRIDE(W_GRAD, 2), RP_STRIDE(W_GRAD, 3), row0, RP_M, rows, RP_V, values, 1);
            rp_barrier();
            RP_TILE(row0, key0, head)
            rp_barrier();
            RP_ADD(dv, RP_RV, sp, RP_LN, RP_RN, sg, RP_V, RP_M)
            RP_ADD(dk, RP_RD, td, RP_LN, RP_RN, sq, RP_D, RP_M)
        }
    }
    RP_T *yk = RP_BASE(RP_T, W_DK, batch, kv), *yv = RP_BASE(RP_T, W_DV, batch, kv);
    _Pragma("unroll") for (int i = 0; i < RP_RN; i++) {
        const rp_i64 key = key0 + ty * RP_RN + i;
        if (key >= keys) continue;
        _Pragma("unroll") for (int j = 0; j < RP_RD; j++) {
            const int column = rp_column(j, RP_RD);
            if (column < features)
                yk[key * RP_STRIDE(W_DK, 2) + column * RP_STRIDE(W_DK, 3)] = RP_STORE(dk[i][j] * scale);
        }
        _Pragma("unroll") for (int j = 0; j < RP_RV; j++) {
            const int column = rp_column(j, RP_RV);
            if (column < values) yv[key * RP_STRIDE(W_DV, 2) + column * RP_STRIDE(W_DV, 3)] = RP_STORE(dv[i][j]);
        }
    }
#endif
#endif
}
