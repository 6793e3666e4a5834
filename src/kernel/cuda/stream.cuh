/* Matrix products of few rows, or few columns, on CUDA: the long operand is streamed through shared memory once, each element of it meets
 * all of the few. out (B.., M, N) = a (B.., M, K) b (B.., K, N); RP_TURNED 0: the few lines are the rows of a, the many the columns of b; 1: the
 * other way round. A block has 4 RP_J of the many lines and RP_F of the few, and all of K: of each step of 256 elements (16 bit: 512) a warp
 * takes an eighth, and eight lanes of it 16 bytes each; the four groups of eight lanes have RP_J lines each. What a warp copies only that
 * warp reads, so nobody waits for another before all of K is there.
 * The order of a sum (RP__FAMILY_LANES): 64 chains of fma, chain c of the pieces of 16 bytes whose number is c modulo 64, zeros behind K; those of a
 * warp are added as a tree (4, 2 and 1 apart), the warps' from left to right. A function of K and the dtype, wherever and however the operands lie.
 *
 * Macros of stream.c: RP_NAME, RP_T, RP_LOAD, RP_STORE; RP_ELEMENT bytes of an element; RP_F of the few, a block's; RP_J a lane's lines; RP_TURNED;
 * RP_ALONG 1: K is innermost of the long operand, 0: its lines are; RP_W_WIDE, RP_X_WIDE: 16 bytes at once of the long and of the few; RP_STAGES steps in
 * flight; RP_BATCH, RP_BIAS, RP_REST, RP_INDEX as in matmul.cuh; RP_PROBLEMS as in product.cuh. Words: those of product.cuh. */
typedef struct {
    rp_u64 w[15 + 4 * RP_BATCH + RP_REST + 4 * (RP_PROBLEMS - 1)];
} RP_WORDS;

#define RP_V (16 / RP_ELEMENT) /* elements of a piece */
#define RP_LINES (4 * RP_J)    /* of the many, a block's */
#define RP_WARPS 8
#define RP_KW (8 * RP_V) /* of K, a warp's in a step */
#define RP_STEP (RP_WARPS * RP_KW)
/* In shared memory K is innermost of the few, and of the long operand if it is in memory; else RP_V rows of K are a lane's, and those of the next
 * lane begin where another bank does. */
#define RP_W_SIZE (RP_ALONG ? RP_LINES * RP_KW : 8 * (RP_V + 1) * RP_LINES)
#define RP_W_AT(line, row) (RP_ALONG ? (line)*RP_KW + (row) : ((row) + (row) / RP_V) * RP_LINES + (line))
#define RP_X_SIZE (RP_F * RP_KW)
#define RP_RING (RP_STAGES * (RP_W_SIZE + RP_X_SIZE) * RP_ELEMENT / 4) /* f32 of a warp */
#define RP_SUMS ((RP_F * RP_J + 7) / 8 * 8)                            /* of a lane */
typedef struct __align__(16) {
    RP_T e[RP_V];
}
rp_piece;
typedef struct __align__(RP_J *RP_ELEMENT < 16 ? RP_J * RP_ELEMENT : 16) {
    RP_T e[RP_J];
}
rp_lines;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char room[]; /* of each warp RP_STAGES steps, the many before the few */
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    const int piece = RP_ALONG ? lane % 8 : lane / 4, group = RP_ALONG ? lane / 8 : lane % 4;
    const unsigned each = gridDim.x / RP_PROBLEMS, problem = RP_PROBLEMS > 1 ? blockIdx.x / each : 0;
    rp_u64 address[4] = {p.w[0], p.w[1], p.w[2], p.w[3]};
    _Pragma("unroll") for (unsigned other = 1; other < RP_PROBLEMS; other++) {
        if (problem != other) continue;
        _Pragma("unroll") for (unsigned k = 0; k < 4; k++) address[k] =
            p.w[11 + 4 * RP_BATCH + RP_REST + 4 * other + k];
    }
    const RP_INDEX M = (RP_INDEX)p.w[4], N = (RP_INDEX)p.w[5], K = (RP_INDEX)p.w[6];
    const RP_INDEX am = (RP_INDEX)p.w[9], ak = (RP_INDEX)p.w[10], bk = (RP_INDEX)p.w[11], bn = (RP_INDEX)p.w[12];
    const RP_INDEX few = RP_TURNED ? N : M, many = RP_TURNED ? M : N;
    const RP_INDEX xs = RP_TURNED ? bn : am, xk = RP_TURNED ? bk : ak, ws = RP_TURNED ? am : bn,
                   wk = RP_TURNED ? ak : bk;
    const RP_INDEX across = (many + RP_LINES - 1) / RP_LINES, down = (few + RP_F - 1) / RP_F;
    RP_INDEX tile = (RP_INDEX)(RP_PROBLEMS > 1 ? blockIdx.x - problem * each : blockIdx.x), ob = 0, ab = 0, bb = 0;
    const RP_INDEX batch = RP_BATCH ? tile / (across * down) : 0;
    tile -= batch * (across * down);
    RP_INDEX left = batch;
    (void)each, (void)left;
    _Pragma("unroll") for (int d = RP_BATCH - 1; d >= 0; d--) {
        const RP_INDEX extent = (RP_INDEX)p.w[15 + 4 * d], i = left % extent;
        left /= extent;
        ob += i * (RP_INDEX)p.w[16 + 4 * d];
        ab += i * (RP_INDEX)p.w[17 + 4 * d];
        bb += i * (RP_INDEX)p.w[18 + 4 * d];
    }
    const RP_INDEX f0 = tile / across * RP_F, c0 = tile % across * RP_LINES;
    const int early = !RP_TURNED && RP_W_WIDE && p.w[14] != 0;
    rp_launch_dependents();
    if (!early) rp_grid_wait();
    RP_T *out = (RP_T *)address[0] + ob;
    const RP_T *a = (const RP_T *)address[1] + ab, *b = (const RP_T *)address[2] + bb;
    const RP_T *x = RP_TURNED ? b : a, *w = RP_TURNED ? a : b;
    RP_T *own = (RP_T *)(void *)room + warp * (RP_STAGES * (RP_W_SIZE + RP_X_SIZE));
    float *sums = (float *)(void *)own; /* in the end */
    (void)out, (void)wk, (void)xk;

/* Bytes of a piece at k that lie before the end of K. */
#define RP_BYTES(k) ((K - (k)) >= RP_V ? 16u : (K - (k)) > 0 ? (rp_u32)(K - (k)) * RP_ELEMENT : 0u)
#define RP_SLOT(slot) (own + (slot) * (RP_W_SIZE + RP_X_SIZE))
#if RP_W_WIDE && RP_ALONG
#define RP_READ_W(slot, k0)                                                                                            \
    _Pragma("unroll") for (int i = 0; i < RP_LINES / 4; i++) {                                                         \
        const int line = i * 4 + lane / 8, row = lane % 8 * RP_V;                                                      \
        const RP_INDEX c = c0 + line < many ? c0 + line : many - 1, k = (k0) + row;                                    \
        const rp_u32 bytes = RP_BYTES(k);                                                                              \
        rp_cp_async_16_zfill(RP_SLOT(slot) + RP_W_AT(line, row), w + (c * ws + (bytes ? k : 0)), bytes);               \
    }
#elif RP_W_WIDE
#define RP_READ_W(slot, k0)                                                                                            \
    _Pragma("unroll") for (int i = 0; i < RP_LINES / 4; i++) {                                                         \
        enum { ACROSS = RP_LINES / RP_V };                                                                             \
        const int e = i * 32 + lane, row = e / ACROSS, line = e % ACROSS * RP_V;                                       \
        const RP_INDEX c = c0 + line < many ? c0 + line : 0, k = (k0) + row;                                           \
        rp_cp_async_16_zfill(RP_SLOT(slot) + RP_W_AT(line, row), w + ((k < K ? k : 0) * wk + c), k < K ? 16u : 0u);    \
    }
#else
#define RP_READ_W(slot, k0)                                                                                            \
    _Pragma("unroll 1") for (int e = lane; e < RP_LINES * RP_KW; e += 32) {                                            \
        const int line = RP_ALONG ? e / RP_KW : e % RP_LINES, row = RP_ALONG ? e % RP_KW : e / RP_LINES;               \
        const RP_INDEX c = c0 + line < many ? c0 + line : many - 1, k = (k0) + row;                                    \
        RP_SLOT(slot)[RP_W_AT(line, row)] = k < K ? w[c * ws + k * wk] : (RP_T)0;                                      \
    }
#endif
#if RP_X_WIDE
#define RP_READ_X(slot, k0)                                                                                            \
    _Pragma("unroll") for (int i = 0; i < (RP_F + 3) / 4; i++) {                                                       \
        const int line = i * 4 + lane / 8, row = lane % 8 * RP_V;                                                      \
        const RP_INDEX f = f0 + line < few ? f0 + line : few - 1, k = (k0) + row;                                      \
        const rp_u32 bytes = RP_BYTES(k);                                                                              \
        if (RP_F % 4 == 0 || line < RP_F)                                                                              \
            rp_cp_async_16_zfill(RP_SLOT(slot) + RP_W_SIZE + line * RP_KW + row, x + (f * xs + (bytes ? k : 0)),       \
                                 bytes);                                                                               \
    }
#else
#define RP_READ_X(slot, k0)                                                                                            \
    _Pragma("unroll 1") for (int e = lane; e < RP_F * RP_KW; e += 32) {                                                \
        const int line = e / RP_KW, row = e % RP_KW;                                                                   \
        const RP_INDEX f = f0 + line < few ? f0 + line : few - 1, k = (k0) + row;                                      \
        RP_SLOT(slot)[RP_W_SIZE + line * RP_KW + row] = k < K ? x[f * xs + k * xk] : (RP_T)0;                          \
    }
#endif

    float acc[RP_F][RP_J];
    _Pragma("unroll") for (int i = 0; i < RP_F; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++) acc[i][j] = 0;
    /* The first turns read alone, as in product.cuh: of the long operand before the launches before this one are complete, where that may be. */
    enum { RP_AHEAD = RP_STAGES - 1 };
    const RP_INDEX first = (RP_INDEX)warp * RP_KW;
    const int turns = K > first ? (int)((K - first + RP_STEP - 1) / RP_STEP) : 0;
    _Pragma("unroll 1") for (int turn = early ? -2 * RP_AHEAD : -RP_AHEAD; turn < turns; turn++) {
        const int alone = turn < -RP_AHEAD, next = turn + (alone ? 2 : 1) * RP_AHEAD;
        if (turn == -RP_AHEAD && early) rp_grid_wait();
        if (turn >= 0) {
            rp_cp_async_wait(RP_STAGES - 2);
            rp_warp_sync();
        }
        if (next < turns) {
            const int into = next % RP_STAGES;
            const RP_INDEX at = first + (RP_INDEX)next * RP_STEP;
            if (!early || alone || turn >= 0) RP_READ_W(into, at)
            if (!alone) RP_READ_X(into, at)
        }
        if (!alone) rp_cp_async_commit();
        if (turn < 0) continue;
        const RP_T *sw = RP_SLOT(turn % RP_STAGES), *sx = sw + RP_W_SIZE;
        float v[RP_V][RP_J];
#if RP_ALONG
        _Pragma("unroll") for (int j = 0; j < RP_J; j++) {
            const rp_piece part = *(const rp_piece *)(const void *)&sw[RP_W_AT(group * RP_J + j, piece * RP_V)];
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) v[e][j] = RP_LOAD(part.e[e]);
        }
#else
        _Pragma("unroll") for (int e = 0; e < RP_V; e++) {
            const rp_lines part = *(const rp_lines *)(const void *)&sw[RP_W_AT(group * RP_J, piece * RP_V + e)];
            _Pragma("unroll") for (int j = 0; j < RP_J; j++) v[e][j] = RP_LOAD(part.e[j]);
        }
#endif
        _Pragma("unroll") for (int i = 0; i < RP_F; i++) {
            const rp_piece part = *(const rp_piece *)(const void *)&sx[i * RP_KW + piece * RP_V];
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) {
                const float u = RP_LOAD(part.e[e]);
                _Pragma("unroll") for (int j = 0; j < RP_J; j++) acc[i][j] = rp_fma_f32(u, v[e][j], acc[i][j]);
            }
        }
    }
    /* Half of a lane's sums go to the lane across, three times. */
    float s[RP_SUMS];
    _Pragma("unroll") for (int i = 0; i < RP_SUMS; i++) s[i] = i < RP_F * RP_J ? acc[i / RP_J % RP_F][i % RP_J] : 0.0f;
#define RP_FOLD(half, bit)                                                                                             \
    _Pragma("unroll") for (int i = 0; i < (half); i++) {                                                               \
        const int up = piece & (bit);                                                                                  \
        const float other = rp_shfl_xor_f32(up ? s[i] : s[i + (half)], (bit) * (RP_ALONG ? 1 : 4), 32);                \
        s[i] = (up ? s[i + (half)] : s[i]) + other;                                                                    \
    }
    RP_FOLD(RP_SUMS / 2, 4)
    RP_FOLD(RP_SUMS / 4, 2)
    RP_FOLD(RP_SUMS / 8, 1)
    rp_warp_sync();
    _Pragma("unroll") for (int i = 0; i < RP_SUMS / 8; i++)
        sums[group * RP_SUMS + (piece & 4 ? RP_SUMS / 2 : 0) + (piece & 2 ? RP_SUMS / 4 : 0) +
             (piece & 1 ? RP_SUMS / 8 : 0) + i] = s[i];
#define RP_SUM_AT(i, c) ((c) / RP_J * RP_SUMS + (i)*RP_J + (c) % RP_J)
    rp_barrier();
    for (int e = t; e < RP_F * RP_LINES; e += 256) {
        const int i = RP_TURNED ? e % RP_F : e / RP_LINES, c = RP_TURNED ? e / RP_F : e % RP_LINES;
        const RP_INDEX m = RP_TURNED ? c0 + c : f0 + i, n = RP_TURNED ? f0 + i : c0 + c;
        if (m >= M || n >= N) continue;
        float x = ((const float *)(const void *)room)[RP_SUM_AT(i, c)];
        _Pragma("unroll") for (int other = 1; other < RP_WARPS; other++) x =
            x + ((const float *)(const void *)room)[other * RP_RING + RP_SUM_AT(i, c)];
#if RP_BIAS
        x = x + RP_LOAD(((const RP_T *)address[3])[n * (RP_INDEX)p.w[13]]);
#endif
#if RP_REST
        RP_FOLLOW
#else
        out[m * (RP_INDEX)p.w[7] + n * (RP_INDEX)p.w[8]] = RP_STORE(x);
#endif
    }
}
