/* Matrix products on CUDA, in our own kernel: any strides, any batch dims, a bias, or what follows the product in a DAG. out (B.., M, N) =
 * a (B.., M, K) b (B.., K, N). A block of 256 threads computes a TM x TN tile; a thread a TM/16 x TN/16 part; K runs in the
 * order of kernel/product.h, so the bits depend on the operands alone, not on the tile. Serves what is small, what cuBLASLt cannot
 * describe, and machines that have no cuBLASLt. Small products are latency: one round of loads for up to TK values of k, all in
 * flight together, then one barrier.
 * Parameters (matmul.c defines the macros):
 *   RP_NAME kernel name; RP_T storage type, RP_ACC accumulator, RP_LOAD(x), RP_STORE(x), RP_MULADD(a, b, c); RP_TM, RP_TN, RP_TK
 *   tile, TK a part of RP_BLOCK; RP_LONG 1 where K is more than one block; RP_INDEX type of offsets; RP_BATCH number of batch dims; RP_BIAS 0 or 1; RP_REST words of
 *   what surrounds the product: what follows each sum x of (batch, m, n), 0: it is stored; RP_MAKES_A, RP_MAKES_B 1 where an element x of
 *   (batch, m, k) or (batch, n, k) is made, not read.
 * Words: out a b bias, M N K, out's strides (m, n), a's (m, k), b's (k, n), bias' (n), one of product.cuh's, then for each batch dim its extent and the
 * strides of out, a, b. */
#define RP_I RP_TM / 16
#define RP_J RP_TN / 16
#define RP_LA (RP_TM * RP_TK / 256)
#define RP_LB (RP_TN * RP_TK / 256)
typedef struct {
    rp_u64 w[15 + 4 * RP_BATCH + RP_REST];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    __shared__ RP_ACC sa[RP_TM][RP_TK + 1];
    __shared__ RP_ACC sb[RP_TK][RP_TN + 1];
    const int t = (int)threadIdx.x, tx = t % 16, ty = t / 16;
    const RP_INDEX M = (RP_INDEX)p.w[4], N = (RP_INDEX)p.w[5], K = (RP_INDEX)p.w[6];
    const RP_INDEX om = (RP_INDEX)p.w[7], on = (RP_INDEX)p.w[8], am = (RP_INDEX)p.w[9], ak = (RP_INDEX)p.w[10];
    const RP_INDEX bk = (RP_INDEX)p.w[11], bn = (RP_INDEX)p.w[12];
    const RP_INDEX m0 = (RP_INDEX)blockIdx.y * RP_TM, n0 = (RP_INDEX)blockIdx.x * RP_TN;
    RP_INDEX ob = 0, ab = 0, bb = 0;
    const RP_INDEX batch = (RP_INDEX)blockIdx.z;
    RP_INDEX left = batch;
    (void)left;
    _Pragma("unroll") for (int d = RP_BATCH - 1; d >= 0; d--) {
        const RP_INDEX extent = (RP_INDEX)p.w[15 + 4 * d], i = left % extent;
        left /= extent;
        ob += i * (RP_INDEX)p.w[16 + 4 * d];
        ab += i * (RP_INDEX)p.w[17 + 4 * d];
        bb += i * (RP_INDEX)p.w[18 + 4 * d];
    }
    RP_ACC acc[RP_I][RP_J];
    _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++) acc[i][j] = 0;
#if RP_LONG
    RP_ACC blocks[RP_I][RP_J], groups[RP_I][RP_J]; /* those of the group under way, groups before it */
    _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++) blocks[i][j] =
        groups[i][j] = 0;
#endif
    /* neighbours in a warp read along the unit stride, whichever dim that is */
    const int a_along = ak == 1, b_along = bk == 1;
    rp_launch_dependents();
    rp_grid_wait();
    RP_T *out = (RP_T *)p.w[0] + ob;
    const RP_T *a = (const RP_T *)p.w[1] + ab;
    const RP_T *b = (const RP_T *)p.w[2] + bb;
#if RP_BIAS
    RP_ACC bias[RP_J]; /* in flight with the first tile */
    _Pragma("unroll") for (int j = 0; j < RP_J; j++) {
        const RP_INDEX n = n0 + tx + 16 * j;
        bias[j] = 0;
        if (n < N) bias[j] = RP_LOAD(((const RP_T *)p.w[3])[n * (RP_INDEX)p.w[13]]);
    }
#endif
    for (RP_INDEX k0 = 0; k0 < K; k0 += RP_TK) {
        RP_ACC la[RP_LA], lb[RP_LB];
        _Pragma("unroll") for (int e = 0; e < RP_LA; e++) {
            const int at = e * 256 + t;
            const RP_INDEX m = m0 + (a_along ? at / RP_TK : at % RP_TM), k = k0 + (a_along ? at % RP_TK : at / RP_TM);
            la[e] = 0;
#if RP_MAKES_A
            if (m < M && k < K) {
                RP_ACC x;
                RP_FACTOR_A
                la[e] = x;
            }
#else
            if (m < M && k < K) la[e] = RP_LOAD(a[m * am + k * ak]);
#endif
        }
        _Pragma("unroll") for (int e = 0; e < RP_LB; e++) {
            const int at = e * 256 + t;
            const RP_INDEX n = n0 + (b_along ? at / RP_TK : at % RP_TN), k = k0 + (b_along ? at % RP_TK : at / RP_TN);
            lb[e] = 0;
#if RP_MAKES_B
            if (n < N && k < K) {
                RP_ACC x;
                RP_FACTOR_B
                lb[e] = x;
            }
#else
            if (n < N && k < K) lb[e] = RP_LOAD(b[k * bk + n * bn]);
#endif
        }
        if (k0 > 0) rp_barrier(); /* the tile before is read */
        _Pragma("unroll") for (int e = 0; e < RP_LA; e++) {
            const int x = e * 256 + t;
            sa[a_along ? x / RP_TK : x % RP_TM][a_along ? x % RP_TK : x / RP_TM] = la[e];
        }
        _Pragma("unroll") for (int e = 0; e < RP_LB; e++) {
            const int x = e * 256 + t;
            sb[b_along ? x % RP_TK : x / RP_TN][b_along ? x / RP_TK : x % RP_TN] = lb[e];
        }
        rp_barrier();
        const int last = K - k0 < RP_TK ? (int)(K - k0) : RP_TK; /* no added zeros: -0.0 and NaN stay what they are */
        _Pragma("unroll 8") for (int k = 0; k < last; k++) {
            RP_ACC x[RP_I], y[RP_J];
            _Pragma("unroll") for (int i = 0; i < RP_I; i++) x[i] = sa[ty + 16 * i][k];
            _Pragma("unroll") for (int j = 0; j < RP_J; j++) y[j] = sb[k][tx + 16 * j];
            _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++)
                acc[i][j] = RP_MULADD(x[i], y[j], acc[i][j]);
        }
#if RP_LONG
        const RP_INDEX done = k0 + RP_TK < K ? k0 + RP_TK : K;
        if (done % RP_BLOCK != 0 && done < K) continue;
        const int first = (done - 1) / RP_BLOCK % RP_GROUP == 0, whole = done % (RP_BLOCK * RP_GROUP) == 0 || done == K;
        const int alone = done <= RP_BLOCK * RP_GROUP;
        _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++) {
            blocks[i][j] = first ? acc[i][j] : blocks[i][j] + acc[i][j];
            if (whole) groups[i][j] = alone ? blocks[i][j] : groups[i][j] + blocks[i][j];
            acc[i][j] = 0;
        }
#endif
    }
#if RP_LONG
    _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++) acc[i][j] =
        groups[i][j];
#endif
    _Pragma("unroll") for (int i = 0; i < RP_I; i++) _Pragma("unroll") for (int j = 0; j < RP_J; j++) {
        const RP_INDEX m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
        if (m >= M || n >= N) continue;
        RP_ACC x = acc[i][j];
#if RP_BIAS
        x = x + bias[j];
#endif
#if RP_REST
        RP_FOLLOW
#else
        out[m * om + n * on] = RP_STORE(x);
#endif
    }
}
