/* Attention without tensor cores: forward (RP_PART 0), gradients of keys and values (1), of queries (2). A block owns RP_M rows, of queries or (1) of
 * keys, and walks the others in tiles of RP_N rows. A warp owns a part of the rows and is 4 x 8 threads: a thread has every fourth of its warp's rows, and
 * every eighth of the tile's in a product along features (scores), neighbouring columns in one along the tile's rows (results). So what it reads of
 * shared memory are 16 bytes, along the operands' own rows; weights go through shared memory within a warp. Copies of the next tile of one operand are under way
 * while the other one is multiplied. Sums run along the features, or the rows of the tiles, in order. Macros (attention.c): RP_NAME RP_T RP_ACC
 * RP_LOAD RP_STORE RP_MULADD RP_SHUFFLE, RP_EXP2 RP_LOG2; RP_WARPS, RP_TM rows of a thread, RP_N; RP_BLOCKS a multiprocessor; RP_D RP_V padded features
 * and values; RP_WIDE (rows of all operands are read and written 16 bytes at once), RP_MASK, RP_CAUSAL, RP_DROPOUT as in attention_common.cuh, behind which this is put. */
#define RP_THREADS (32 * RP_WARPS)
#define RP_M (4 * RP_TM * RP_WARPS)
#define RP_TN (RP_N / 8)
#define RP_TD (RP_D / 8)
#define RP_TV (RP_V / 8)
#define RP_VEC (16 / (int)sizeof(RP_ACC))
/* Rows in shared memory: eight vectors of neighbouring rows lie in different banks; so do single weights of a warp. */
#define RP_LD (RP_D + RP_VEC)
#define RP_LV (RP_V + RP_VEC)
#define RP_LP (RP_N + 2 * RP_VEC)
typedef struct __align__(16) {
    RP_ACC e[RP_VEC];
}
rp_vector;
typedef struct __align__(2 * sizeof(RP_ACC)) {
    RP_ACC e[2];
}
rp_two;

/* One piece of a row, or zeros: under way, as a part of the next group of copies, unless it has to be converted. */
RP_FN void rp_copy(RP_ACC *to, const RP_T *from, int inside) {
    if (RP_WIDE)
        rp_cp_async_16_zfill(to, from, inside ? 16u : 0u);
    else if (sizeof(RP_T) == 8)
        rp_cp_async_8_zfill(to, from, inside ? 8u : 0u);
    else if (sizeof(RP_T) == 4)
        rp_cp_async_4_zfill(to, from, inside ? 4u : 0u);
    else
        *to = inside ? RP_LOAD(*from) : 0;
}
/* Rows [first, first + n) of a tensor to rows of `ld` elements, zeros outside. */
RP_FN void rp_read(RP_ACC *to, int ld, const RP_T *from, rp_i64 row, rp_i64 column, int first, int n, int rows,
                   int wide, int columns) {
    const int v = RP_WIDE ? RP_VEC : 1, pieces = wide / v, t = (int)threadIdx.x;
    if (RP_THREADS % pieces == 0) { /* a thread's are below each other */
        const int down = RP_THREADS / pieces, r = t / pieces, c = t % pieces * v,
                  left = c < columns ? rows - first - r : 0;
        const RP_T *x = from + ((first + r) * row + c * column);
        const rp_i64 next = down * row;
        to += r * ld + c;
        _Pragma("unroll 8") for (int i = 0; i < n; i += down) {
            if (n % down != 0 && r + i >= n) break;
            rp_copy(to + i * ld, i < left ? x : from, i < left);
            x += next;
        }
    } else {
        _Pragma("unroll 4") for (int i = t; i < n * pieces; i += RP_THREADS) {
            const int r = i / pieces, c = i % pieces * v, inside = first + r < rows && c < columns;
            rp_copy(to + (r * ld + c), inside ? from + ((first + r) * row + c * column) : from, inside);
        }
    }
}
#define RP_READ(to, ld, base, which, first, n, rows, wide, columns)                                                    \
    rp_read(to, ld, base, RP_STRIDE(which, 2), RP_STRIDE(which, 3), first, n, rows, wide, columns)

/* Neighbours among the `n` columns of a thread, and where its column j lies. */
#define RP_PIECE(n) ((n) % RP_VEC == 0 ? RP_VEC : 2)
#define RP_COLUMN(j, n) ((j) / RP_PIECE(n) * (8 * RP_PIECE(n)) + tx * RP_PIECE(n) + (j) % RP_PIECE(n))
RP_FN void rp_fetch(RP_ACC *to, const RP_ACC *from, int n) {
    if (n == RP_VEC) {
        const rp_vector x = *(const rp_vector *)from;
        _Pragma("unroll") for (int e = 0; e < RP_VEC; e++) to[e] = x.e[e];
    } else {
        const rp_two x = *(const rp_two *)from;
        _Pragma("unroll") for (int e = 0; e < 2; e++) to[e] = x.e[e];
    }
}
RP_FN void rp_store(RP_ACC *to, const RP_ACC *from, int n) {
    if (n == RP_VEC) {
        rp_vector x;
        _Pragma("unroll") for (int e = 0; e < RP_VEC; e++) x.e[e] = from[e];
        *(rp_vector *)to = x;
    } else {
        const rp_two x = {from[0], from[1]};
        *(rp_two *)to = x;
    }
}

#define RP_EACH(i, j, rn)                                                                                              \
    _Pragma("unroll") for (int i = 0; i < RP_TM; i++) _Pragma("unroll") for (int j = 0; j < (rn); j++)
#define RP_ZERO(acc, rn) RP_EACH(i, j, rn) acc[i][j] = 0
/* s = own rows times rows of the tile, along `length` features of rows of `ld`. */
#define RP_SCORES(s, own, tile, ld, length)                                                                            \
    {                                                                                                                  \
        const RP_ACC *at = (own) + mine * (ld), *with = (tile) + tx * (ld);                                            \
        RP_ZERO(s, RP_TN);                                                                                             \
        _Pragma("unroll 2") for (int k = 0; k < (length); k += RP_VEC) {                                               \
            rp_vector u[RP_TM];                                                                                        \
            _Pragma("unroll") for (int i = 0; i < RP_TM; i++) u[i] = *(const rp_vector *)&at[i * 4 * (ld) + k];        \
            _Pragma("unroll") for (int j = 0; j < RP_TN; j++) {                                                        \
                const rp_vector v = *(const rp_vector *)&with[j * 8 * (ld) + k];                                       \
                _Pragma("unroll") for (int e = 0; e < RP_VEC; e++) _Pragma("unroll") for (int i = 0; i < RP_TM; i++)   \
                    s[i][j] = RP_MULADD(u[i].e[e], v.e[e], s[i][j]);                                                   \
            }                                                                                                          \
        }                                                                                                              \
    }
/* out += the weights of own rows times the tile's rows of 8 * rn columns. */
#define RP_ADD(out, tile, ld, rn)                                                                                      \
    {                                                                                                                  \
        const RP_ACC *at = weights + mine * RP_LP, *with = (tile) + tx * RP_PIECE(rn);                                 \
        _Pragma("unroll 2") for (int k = 0; k < RP_N; k += RP_VEC) {                                                   \
            rp_vector u[RP_TM];                                                                                        \
            _Pragma("unroll") for (int i = 0; i < RP_TM; i++) u[i] = *(const rp_vector *)&at[i * 4 * RP_LP + k];       \
            _Pragma("unroll") for (int e = 0; e < RP_VEC; e++)                                                         \
                _Pragma("unroll") for (int j = 0; j < (rn); j += RP_PIECE(rn)) {                                       \
                RP_ACC v[RP_VEC];                                                                                      \
                rp_fetch(v, &with[(k + e) * (ld) + j * 8], RP_PIECE(rn));                                              \
                _Pragma("unroll") for (int c = 0; c < RP_PIECE(rn); c++)                                               \
                    _Pragma("unroll") for (int i = 0; i < RP_TM; i++) out[i][j + c] =                                  \
                        RP_MULADD(u[i].e[e], v[c], out[i][j + c]);                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }
/* To where the threads of the warp read them. */
#define RP_PUT(x)                                                                                                      \
    RP_EACH(i, j, RP_TN) weights[(mine + i * 4) * RP_LP + j * 8 + tx] = x[i][j];                                       \
    rp_warp_sync();
#define RP_GIVE(which, acc, rn, columns, limit, factor)                                                                \
    {                                                                                                                  \
        RP_T *y = RP_BASE(RP_T, which, batch, RP_PART == 1 ? kv : head);                                               \
        _Pragma("unroll") for (int i = 0; i < RP_TM; i++) {                                                            \
            const int r = own0 + mine + i * 4;                                                                         \
            RP_T *line = y + r * RP_STRIDE(which, 2);                                                                  \
            if (r >= (limit)) continue;                                                                                \
            _Pragma("unroll") for (int j = 0; j < (rn); j += RP_PIECE(rn)) {                                           \
                const int c = RP_COLUMN(j, rn);                                                                        \
                RP_ACC x[RP_VEC];                                                                                      \
                _Pragma("unroll") for (int e = 0; e < RP_PIECE(rn); e++) x[e] = acc[i][j + e] * (factor);              \
                if (RP_WIDE) {                                                                                         \
                    if (c < (columns)) rp_store((RP_ACC *)(void *)line + c, x, RP_PIECE(rn));                          \
                } else {                                                                                               \
                    _Pragma("unroll") for (int e = 0; e < RP_PIECE(rn); e++) if (c + e < (columns))                    \
                        line[(c + e) * RP_STRIDE(which, 3)] = RP_STORE(x[e]);                                          \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
#define RP_MASK_OF(of)                                                                                                 \
    ((const char *)p.w[W_MASK] + (batch * RP_STRIDE(W_MASK, 0) + (of)*RP_STRIDE(W_MASK, 1)) * RP_MASK_BYTES)
#if RP_DROPOUT
#define RP_KEPT(of, query, key) rp_kept(&p, (rp_u64)(((batch * heads + (of)) * rows + (query)) * keys + (key)))
#else
#define RP_KEPT(of, query, key) 1
#endif
/* The weight of a query and a key, to s, and what their score changes the result by, to d, of which they are the products. */
#define RP_SLOPE(s, d, of, query, key, less, minus)                                                                    \
    {                                                                                                                  \
        const RP_ACC weight = RP_EXP2(rp_score(&p, s * scale2, query, key, rows, keys, mask) - (less)),                \
                     kept = RP_KEPT(of, query, key);                                                                   \
        d = weight * (d * kept - (minus));                                                                             \
        s = weight * kept;                                                                                             \
    }
/* Of the logarithm of a query's sum: one that sees nothing has weights of 0. */
#define RP_LESS(lse) ((lse) == -RP_INF ? RP_INF : (lse)*RP_LOG2E)

extern "C" __global__ void __launch_bounds__(RP_THREADS, RP_BLOCKS) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char rp_shared[];
    RP_ACC *memory = (RP_ACC *)(void *)rp_shared;
    /* Threads 1 apart read the same of one operand, threads 2 apart of the other: half a warp's 16 bytes are one access. */
    const int t = (int)threadIdx.x, lane = t % 32, tx = lane / 2 % 8, ty = lane / 16 * 2 + lane % 2,
              mine = t / 32 * 4 * RP_TM + ty;
    const int rows = (int)p.w[W_ROWS], keys = (int)p.w[W_KEYS], group = (int)p.w[W_GROUP],
              features = (int)p.w[W_FEATURES], values = (int)p.w[W_VALUES];
    const rp_i64 heads = (rp_i64)p.w[W_HEADS];
    const RP_ACC scale = (RP_ACC)rp_bits_f64(p.w[W_SCALE]), scale2 = scale * RP_LOG2E;
    int number;
    (void)scale, (void)group;
    rp_launch_dependents();
    rp_grid_wait();
    const int own = RP_PART == 1 ? keys : rows, blocks = (own + RP_M - 1) / RP_M,
              turn = rp_turn(&p, (int)blockIdx.x, blocks, (int)gridDim.x, &number),
              own0 = (RP_CAUSAL && RP_PART != 1 ? blocks - 1 - turn : turn) * RP_M;
#if RP_PART == 1
    const rp_i64 batch = number / (heads / group), kv = number % (heads / group);
#else
    const rp_i64 batch = number / heads, head = number % heads, kv = head / group;
    const int seen = RP_CAUSAL && own0 + RP_M < keys ? own0 + RP_M : keys;
    const char *mask = RP_MASK_OF(head);
#endif
    const RP_T *k = RP_BASE(const RP_T, W_K, batch, kv), *v = RP_BASE(const RP_T, W_V, batch, kv);
    RP_ACC s[RP_TM][RP_TN];
#if RP_PART == 0
    RP_ACC *sq = memory, *sk = sq + RP_M * RP_LD, *sv = sk + RP_N * RP_LD, *weights = sv + RP_N * RP_LV;
    RP_ACC out[RP_TM][RP_TV], most[RP_TM], sum[RP_TM];
    RP_ZERO(out, RP_TV);
    _Pragma("unroll") for (int i = 0; i < RP_TM; i++) most[i] = -RP_INF, sum[i] = 0;
    RP_READ(sq, RP_LD, RP_BASE(const RP_T, W_Q, batch, head), W_Q, own0, RP_M, rows, RP_D, features);
    RP_READ(sk, RP_LD, k, W_K, 0, RP_N, keys, RP_D, features);
    rp_cp_async_commit();
    for (int key = 0; key < seen; key += RP_N) {
        rp_cp_async_wait(0); /* the keys are there, and nobody reads values */
        rp_barrier();
        RP_READ(sv, RP_LV, v, W_V, key, RP_N, keys, RP_V, values);
        rp_cp_async_commit();
        RP_SCORES(s, sq, sk, RP_LD, RP_D)
        rp_cp_async_wait(0); /* and the other way round */
        rp_barrier();
        if (key + RP_N < seen) RP_READ(sk, RP_LD, k, W_K, key + RP_N, RP_N, keys, RP_D, features);
        rp_cp_async_commit();
        _Pragma("unroll") for (int i = 0; i < RP_TM; i++) {
            const int row = own0 + mine + i * 4;
            RP_ACC m = most[i], total = 0;
            _Pragma("unroll") for (int j = 0; j < RP_TN; j++) {
                s[i][j] = rp_score(&p, s[i][j] * scale2, row, key + j * 8 + tx, rows, keys, mask);
                m = s[i][j] > m ? s[i][j] : m;
            }
            _Pragma("unroll") for (int n = 2; n < 16; n *= 2) {
                const RP_ACC other = RP_SHUFFLE(m, n, 32);
                m = other > m ? other : m;
            }
            const RP_ACC from = m == -RP_INF ? 0 : m, less = RP_EXP2(most[i] - from);
            most[i] = m;
            _Pragma("unroll") for (int j = 0; j < RP_TN; j++) {
                s[i][j] = RP_EXP2(s[i][j] - from);
                total += s[i][j];
                s[i][j] *= RP_KEPT(head, row, key + j * 8 + tx);
            }
            _Pragma("unroll") for (int n = 2; n < 16; n *= 2) total += RP_SHUFFLE(total, n, 32);
            sum[i] = sum[i] * less + total;
            _Pragma("unroll") for (int j = 0; j < RP_TV; j++) out[i][j] *= less;
        }
        RP_PUT(s)
        RP_ADD(out, sv, RP_LV, RP_TV)
    }
    _Pragma("unroll") for (int i = 0; i < RP_TM; i++) {
        const int row = own0 + mine + i * 4;
        const RP_ACC by = sum[i] == 0 ? 0 : 1 / sum[i];
        RP_ACC *lse = RP_BASE(RP_ACC, W_LSE, batch, head) + row * RP_STRIDE(W_LSE, 2);
        if (tx == 0 && row < rows) *lse = sum[i] == 0 ? -RP_INF : (most[i] + RP_LOG2(sum[i])) * RP_LN2;
        _Pragma("unroll") for (int j = 0; j < RP_TV; j++) out[i][j] *= by;
    }
    RP_GIVE(W_OUT, out, RP_TV, values, rows, 1)
#elif RP_PART == 2
    RP_ACC *sq = memory, *sg = sq + RP_M * RP_LD, *sk = sg + RP_M * RP_LV, *sv = sk + RP_N * RP_LD,
           *weights = sv + RP_N * RP_LV;
    RP_ACC d[RP_TM][RP_TN], dq[RP_TM][RP_TD], less[RP_TM], minus[RP_TM];
    RP_ZERO(dq, RP_TD);
    RP_READ(sq, RP_LD, RP_BASE(const RP_T, W_Q, batch, head), W_Q, own0, RP_M, rows, RP_D, features);
    RP_READ(sg, RP_LV, RP_BASE(const RP_T, W_GRAD, batch, head), W_GRAD, own0, RP_M, rows, RP_V, values);
    RP_READ(sv, RP_LV, v, W_V, 0, RP_N, keys, RP_V, values);
    rp_cp_async_commit();
    _Pragma("unroll") for (int i = 0; i < RP_TM; i++) {
        const int row = own0 + mine + i * 4;
        less[i] = RP_INF, minus[i] = 0;
        if (row >= rows) continue;
        less[i] = RP_BASE(const RP_ACC, W_LSE, batch, head)[row * RP_STRIDE(W_LSE, 2)];
        less[i] = RP_LESS(less[i]);
        minus[i] = RP_BASE(const RP_ACC, W_DELTA, batch, head)[row * RP_STRIDE(W_DELTA, 2)];
    }
    for (int key = 0; key < seen; key += RP_N) {
        rp_cp_async_wait(0); /* the values are there, and nobody reads keys */
        rp_barrier();
        RP_READ(sk, RP_LD, k, W_K, key, RP_N, keys, RP_D, features);
        rp_cp_async_commit();
        RP_SCORES(d, sg, sv, RP_LV, RP_V)
        rp_cp_async_wait(0);
        rp_barrier();
        if (key + RP_N < seen) RP_READ(sv, RP_LV, v, W_V, key + RP_N, RP_N, keys, RP_V, values);
        rp_cp_async_commit();
        RP_SCORES(s, sq, sk, RP_LD, RP_D)
        RP_EACH(i, j, RP_TN)
        RP_SLOPE(s[i][j], d[i][j], head, own0 + mine + i * 4, key + j * 8 + tx, less[i], minus[i])
        RP_PUT(d)
        RP_ADD(dq, sk, RP_LD, RP_TD)
    }
    RP_GIVE(W_DQ, dq, RP_TD, features, rows, scale)
#else
    RP_ACC *sk = memory, *sv = sk + RP_M * RP_LD, *sq = sv + RP_M * RP_LV, *sg = sq + RP_N * RP_LD,
           *weights = sg + RP_N * RP_LV, *sl = weights + RP_M * RP_LP, *sd = sl + RP_N;
    RP_ACC d[RP_TM][RP_TN], dk[RP_TM][RP_TD], dv[RP_TM][RP_TV];
    const int start = RP_CAUSAL ? own0 / RP_N * RP_N : 0;
    const rp_i64 last = (kv + 1) * group;
    rp_i64 head = start < rows ? kv * group : last;
    RP_ZERO(dk, RP_TD);
    RP_ZERO(dv, RP_TV);
    RP_READ(sk, RP_LD, k, W_K, own0, RP_M, keys, RP_D, features);
    RP_READ(sv, RP_LV, v, W_V, own0, RP_M, keys, RP_V, values);
    if (head < last) RP_READ(sq, RP_LD, RP_BASE(const RP_T, W_Q, batch, head), W_Q, start, RP_N, rows, RP_D, features);
    rp_cp_async_commit();
    for (int row = start; head < last;) {
        const char *mask = RP_MASK_OF(head);
        const rp_i64 of = head;
        rp_cp_async_wait(0); /* the queries are there, and nobody reads gradients */
        rp_barrier();
        RP_READ(sg, RP_LV, RP_BASE(const RP_T, W_GRAD, batch, head), W_GRAD, row, RP_N, rows, RP_V, values);
        rp_cp_async_commit();
        RP_ACC less = RP_INF, minus = 0; /* under way while scores are computed */
        if (t < RP_N && row + t < rows) {
            less = RP_BASE(const RP_ACC, W_LSE, batch, head)[(row + t) * RP_STRIDE(W_LSE, 2)];
            minus = RP_BASE(const RP_ACC, W_DELTA, batch, head)[(row + t) * RP_STRIDE(W_DELTA, 2)];
        }
        RP_SCORES(s, sk, sq, RP_LD, RP_D)
        if (t < RP_N) sl[t] = RP_LESS(less), sd[t] = minus;
        rp_cp_async_wait(0);
        rp_barrier();
        RP_SCORES(d, sv, sg, RP_LV, RP_V)
        RP_EACH(i, j, RP_TN)
        RP_SLOPE(s[i][j], d[i][j], of, row + j * 8 + tx, own0 + mine + i * 4, sl[j * 8 + tx], sd[j * 8 + tx])
        RP_PUT(d)
        RP_ADD(dk, sq, RP_LD, RP_TD)
        row += RP_N;
        if (row >= rows) row = start, head++;
        rp_barrier(); /* nobody reads the queries */
        if (head < last)
            RP_READ(sq, RP_LD, RP_BASE(const RP_T, W_Q, batch, head), W_Q, row, RP_N, rows, RP_D, features);
        rp_cp_async_commit();
        RP_PUT(s)
        RP_ADD(dv, sg, RP_LV, RP_TV)
    }
    RP_GIVE(W_DK, dk, RP_TD, features, keys, scale)
    RP_GIVE(W_DV, dv, RP_TV, values, keys, 1)
#endif
}
