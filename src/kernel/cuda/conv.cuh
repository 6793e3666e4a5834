/* Convolution on CUDA, 1 to 3 spatial dims, as tiled products over computed indices (implicit GEMM), any strides. One text for
 * the three products; RP_KIND says which:
 *   0 forward  y (N, O, *)    rows o, columns (n, y*), inner (c, r*)
 *   1 input    dx (N, C, *)   rows c, columns (n, x*), inner (o, r*)
 *   2 weight   dw (O, C/g, *) rows o, columns (c, r*), inner (n, y*)
 * Each result adds up over the inner index in the order of kernel/product.h, so the bits depend on the operands alone. Macros of conv.c: RP_NAME, RP_T,
 * RP_ACC, RP_LOAD, RP_STORE, RP_MULADD as in matmul.cuh; RP_KIND; RP_SPATIAL; RP_BIAS; RP_REST,
 * words of what follows each sum x (0: it is stored) in a DAG: of group g, row m, spatial place at[], and first or last of the other dim.
 * Words: y x w bias; N C O groups; then per spatial dim: input size, output size, kernel size, stride, padding, dilation; then the
 * strides of y (n, o, *), x (n, c, *), w (o, c, *), bias. */
#define RP_TM 32
#define RP_TN 32
#define RP_TK 16
#define RP_S RP_SPATIAL
#define RP_W_SPACE 8
#define RP_W_STRIDES (8 + 6 * RP_S)
typedef struct {
    rp_u64 w[8 + 6 * RP_S + 3 * (2 + RP_S) + 1 + RP_REST];
} RP_WORDS;
#define RP_SIZE(field, d) ((rp_i64)p.w[RP_W_SPACE + 6 * (d) + (field)])
#define RP_STRIDE(tensor, d) ((rp_i64)p.w[RP_W_STRIDES + (tensor) * (2 + RP_S) + (d)])
enum { RP_IN, RP_OUT, RP_KERNEL, RP_STEP, RP_PAD, RP_DIL };

/* Splits `index` over the spatial sizes of `field`. */
RP_FN void rp_split(const RP_WORDS *q, rp_i64 *index, int field, rp_i64 *at) {
    _Pragma("unroll") for (int d = RP_S - 1; d >= 0; d--) {
        const rp_i64 size = (rp_i64)q->w[RP_W_SPACE + 6 * d + field];
        at[d] = *index % size;
        *index /= size;
    }
}

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    __shared__ RP_ACC sa[RP_TM][RP_TK + 1];
    __shared__ RP_ACC sb[RP_TK][RP_TN + 1];
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    const rp_i64 batch = (rp_i64)p.w[4], C = (rp_i64)p.w[5], O = (rp_i64)p.w[6], G = (rp_i64)p.w[7];
    const rp_i64 cg = C / G, og = O / G, g = (rp_i64)blockIdx.z;
    rp_i64 in_points = 1, out_points = 1, kernel_points = 1;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
        in_points *= RP_SIZE(RP_IN, d);
        out_points *= RP_SIZE(RP_OUT, d);
        kernel_points *= RP_SIZE(RP_KERNEL, d);
    }
#if RP_KIND == 0
    const rp_i64 M = og, N = batch * out_points, K = cg * kernel_points;
#elif RP_KIND == 1
    const rp_i64 M = cg, N = batch * in_points, K = og * kernel_points;
#else
    const rp_i64 M = og, N = cg * kernel_points, K = batch * out_points;
#endif
    const rp_i64 m0 = (rp_i64)blockIdx.y * RP_TM, n0 = (rp_i64)blockIdx.x * RP_TN;
    RP_ACC acc[2][2] = {{0, 0}, {0, 0}}, blocks[2][2] = {{0, 0}, {0, 0}}, groups[2][2] = {{0, 0}, {0, 0}};
    rp_launch_dependents();
    rp_grid_wait();
    RP_T *y = (RP_T *)p.w[0], *x = (RP_T *)p.w[1], *w = (RP_T *)p.w[2];
    for (rp_i64 k0 = 0; k0 < K; k0 += RP_TK) {
        for (int e = (int)threadIdx.x; e < RP_TM * RP_TK;
             e += 256) { /* the row operand: w forward and for dx, dy for dw */
            const rp_i64 m = m0 + e / RP_TK;
            rp_i64 k = k0 + e % RP_TK, at[RP_S];
            RP_ACC v = 0;
            if (m < M && k < K) {
#if RP_KIND == 0
                rp_split(&p, &k, RP_KERNEL, at);
                rp_i64 o = (g * og + m) * RP_STRIDE(2, 0) + k * RP_STRIDE(2, 1);
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) o += at[d] * RP_STRIDE(2, 2 + d);
                v = RP_LOAD(w[o]);
#elif RP_KIND == 1
                rp_split(&p, &k, RP_KERNEL, at);
                rp_i64 o = (g * og + k) * RP_STRIDE(2, 0) + m * RP_STRIDE(2, 1);
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) o += at[d] * RP_STRIDE(2, 2 + d);
                v = RP_LOAD(w[o]);
#else
                rp_split(&p, &k, RP_OUT, at);
                rp_i64 o = k * RP_STRIDE(0, 0) + (g * og + m) * RP_STRIDE(0, 1);
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) o += at[d] * RP_STRIDE(0, 2 + d);
                v = RP_LOAD(y[o]);
#endif
            }
            sa[e / RP_TK][e % RP_TK] = v;
        }
        for (int e = (int)threadIdx.x; e < RP_TN * RP_TK;
             e += 256) { /* the column operand: x forward and for dw, dy for dx */
            rp_i64 n = n0 + e % RP_TN, k = k0 + e / RP_TN, at[RP_S], r[RP_S];
            RP_ACC v = 0;
            int ok = n < N && k < K;
            if (ok) {
#if RP_KIND == 1
                rp_split(&p, &n, RP_IN, at);
                rp_split(&p, &k, RP_KERNEL, r);
                rp_i64 o = n * RP_STRIDE(0, 0) + (g * og + k) * RP_STRIDE(0, 1);
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
                    const rp_i64 top = at[d] + RP_SIZE(RP_PAD, d) - r[d] * RP_SIZE(RP_DIL, d),
                                 step = RP_SIZE(RP_STEP, d);
                    ok = ok && top >= 0 && top % step == 0 && top / step < RP_SIZE(RP_OUT, d);
                    o += top / step * RP_STRIDE(0, 2 + d);
                }
                if (ok) v = RP_LOAD(y[o]);
#else
#if RP_KIND == 0
                rp_split(&p, &n, RP_OUT, at);
                rp_split(&p, &k, RP_KERNEL, r);
                rp_i64 o = n * RP_STRIDE(1, 0) + (g * cg + k) * RP_STRIDE(1, 1);
#else
                rp_split(&p, &k, RP_OUT, at);
                rp_split(&p, &n, RP_KERNEL, r);
                rp_i64 o = k * RP_STRIDE(1, 0) + (g * cg + n) * RP_STRIDE(1, 1);
#endif
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
                    const rp_i64 i = at[d] * RP_SIZE(RP_STEP, d) - RP_SIZE(RP_PAD, d) + r[d] * RP_SIZE(RP_DIL, d);
                    ok = ok && i >= 0 && i < RP_SIZE(RP_IN, d);
                    o += i * RP_STRIDE(1, 2 + d);
                }
                if (ok) v = RP_LOAD(x[o]);
#endif
            }
            sb[e / RP_TN][e % RP_TN] = v;
        }
        rp_barrier();
        const int last = K - k0 < RP_TK ? (int)(K - k0) : RP_TK;
        for (int k = 0; k < last; k++) {
            const RP_ACC x0 = sa[ty][k], x1 = sa[ty + 16][k], y0 = sb[k][tx], y1 = sb[k][tx + 16];
            acc[0][0] = RP_MULADD(x0, y0, acc[0][0]);
            acc[0][1] = RP_MULADD(x0, y1, acc[0][1]);
            acc[1][0] = RP_MULADD(x1, y0, acc[1][0]);
            acc[1][1] = RP_MULADD(x1, y1, acc[1][1]);
        }
        rp_barrier();
        const rp_i64 done = k0 + RP_TK < K ? k0 + RP_TK : K;
        if (done % RP_BLOCK != 0 && done < K) continue;
        const int first = (done - 1) / RP_BLOCK % RP_GROUP == 0, whole = done % (RP_BLOCK * RP_GROUP) == 0 || done == K;
        _Pragma("unroll") for (int i = 0; i < 2; i++) _Pragma("unroll") for (int j = 0; j < 2; j++) {
            blocks[i][j] = first ? acc[i][j] : blocks[i][j] + acc[i][j];
            if (whole) groups[i][j] = done <= RP_BLOCK * RP_GROUP ? blocks[i][j] : groups[i][j] + blocks[i][j];
            acc[i][j] = 0;
        }
    }
    _Pragma("unroll") for (int i = 0; i < 2; i++) _Pragma("unroll") for (int j = 0; j < 2; j++) {
        const rp_i64 m = m0 + ty + 16 * i;
        rp_i64 n = n0 + tx + 16 * j, at[RP_S];
        if (m >= M || n >= N) continue;
        const RP_ACC x = groups[i][j];
#if RP_KIND == 0
        rp_split(&p, &n, RP_OUT, at);
#elif RP_KIND == 1
        rp_split(&p, &n, RP_IN, at);
#else
        rp_split(&p, &n, RP_KERNEL, at);
#endif
#if RP_REST
        RP_FOLLOW
#else
        const rp_i64 first = RP_KIND == 2 ? g * og + m : n, second = RP_KIND == 0   ? g * og + m
                                                                     : RP_KIND == 1 ? g * cg + m
                                                                                    : n;
        rp_i64 o = first * RP_STRIDE(RP_KIND, 0) + second * RP_STRIDE(RP_KIND, 1);
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) o += at[d] * RP_STRIDE(RP_KIND, 2 + d);
        RP_T *to = (RP_T *)p.w[RP_KIND];
#if RP_BIAS
        to[o] =
            RP_STORE(x + RP_LOAD(((const RP_T *)p.w[3])[(g * og + m) * (rp_i64)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]));
#else
        to[o] = RP_STORE(x);
#endif
#endif
    }
}
