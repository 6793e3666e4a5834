/* Matrix products on CUDA, in our own kernel: any strides, any batch dims, bias and ReLU epilogues. out (B.., M, N) =
 * a (B.., M, K) b (B.., K, N). A block computes a TM x TN tile; a thread a TM/16 x TN/16 part; K runs in one rising chain a
 * result, so the bits depend on the operands alone. Serves what is small, what cuBLASLt cannot describe, and machines that have
 * no cuBLASLt. Parameters (matmul.c defines the macros):
 *   RP_NAME kernel name; RP_T storage type, RP_ACC accumulator, RP_LOAD(x), RP_STORE(x), RP_MULADD(a, b, c); RP_TM, RP_TN tile;
 *   RP_BATCH number of batch dims; RP_BIAS, RP_RELU 0 or 1.
 * Words: out a b bias, M N K, out's strides (m, n), a's (m, k), b's (k, n), bias' (n), then for each batch dim its extent and the
 * strides of out, a, b. */
#define RP_TK 32
typedef struct {
    rp_u64 w[14 + 4 * RP_BATCH];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    __shared__ RP_ACC sa[RP_TM][RP_TK + 1];
    __shared__ RP_ACC sb[RP_TK][RP_TN + 1];
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    const rp_i64 M = (rp_i64)p.w[4], N = (rp_i64)p.w[5], K = (rp_i64)p.w[6];
    const rp_i64 om = (rp_i64)p.w[7], on = (rp_i64)p.w[8], am = (rp_i64)p.w[9], ak = (rp_i64)p.w[10];
    const rp_i64 bk = (rp_i64)p.w[11], bn = (rp_i64)p.w[12];
    const rp_i64 m0 = (rp_i64)blockIdx.y * RP_TM, n0 = (rp_i64)blockIdx.x * RP_TN;
    rp_i64 ob = 0, ab = 0, bb = 0;
    rp_i64 batch = (rp_i64)blockIdx.z;
    _Pragma("unroll") for (int d = RP_BATCH - 1; d >= 0; d--) {
        const rp_i64 extent = (rp_i64)p.w[14 + 4 * d], i = batch % extent;
        batch /= extent;
        ob += i * (rp_i64)p.w[15 + 4 * d];
        ab += i * (rp_i64)p.w[16 + 4 * d];
        bb += i * (rp_i64)p.w[17 + 4 * d];
    }
    RP_ACC acc[RP_TM / 16][RP_TN / 16];
    _Pragma("unroll") for (int i = 0; i < RP_TM / 16; i++) _Pragma("unroll") for (int j = 0; j < RP_TN / 16; j++)
        acc[i][j] = 0;
    rp_launch_dependents();
    rp_grid_wait();
    RP_T *out = (RP_T *)p.w[0] + ob;
    const RP_T *a = (const RP_T *)p.w[1] + ab;
    const RP_T *b = (const RP_T *)p.w[2] + bb;
    for (rp_i64 k0 = 0; k0 < K; k0 += RP_TK) {
        /* neighbours in a warp read along the unit stride, whichever dim that is */
        for (int e = (int)threadIdx.x; e < RP_TM * RP_TK; e += 256) {
            const int m = ak == 1 ? e / RP_TK : e % RP_TM, k = ak == 1 ? e % RP_TK : e / RP_TM;
            RP_ACC x = 0;
            if (m0 + m < M && k0 + k < K) x = RP_LOAD(a[(m0 + m) * am + (k0 + k) * ak]);
            sa[m][k] = x;
        }
        for (int e = (int)threadIdx.x; e < RP_TN * RP_TK; e += 256) {
            const int n = bk == 1 ? e / RP_TK : e % RP_TN, k = bk == 1 ? e % RP_TK : e / RP_TN;
            RP_ACC x = 0;
            if (n0 + n < N && k0 + k < K) x = RP_LOAD(b[(k0 + k) * bk + (n0 + n) * bn]);
            sb[k][n] = x;
        }
        rp_barrier();
        const int last = K - k0 < RP_TK ? (int)(K - k0) : RP_TK; /* no added zeros: -0.0 and NaN stay what they are */
        for (int k = 0; k < last; k++) {
            RP_ACC x[RP_TM / 16], y[RP_TN / 16];
            _Pragma("unroll") for (int i = 0; i < RP_TM / 16; i++) x[i] = sa[ty + 16 * i][k];
            _Pragma("unroll") for (int j = 0; j < RP_TN / 16; j++) y[j] = sb[k][tx + 16 * j];
            _Pragma("unroll") for (int i = 0; i < RP_TM / 16; i++)
                _Pragma("unroll") for (int j = 0; j < RP_TN / 16; j++) acc[i][j] = RP_MULADD(x[i], y[j], acc[i][j]);
        }
        rp_barrier();
    }
    _Pragma("unroll") for (int i = 0; i < RP_TM / 16; i++) _Pragma("unroll") for (int j = 0; j < RP_TN / 16; j++) {
        const rp_i64 m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
        if (m >= M || n >= N) continue;
        RP_ACC x = acc[i][j];
#if RP_BIAS
        x = x + RP_LOAD(((const RP_T *)p.w[3])[n * (rp_i64)p.w[13]]);
#endif
#if RP_RELU
        x = x < 0 ? (RP_ACC)0 : x;
#endif
        out[m * om + n * on] = RP_STORE(x);
    }
}
