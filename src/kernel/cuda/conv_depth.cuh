/* Depthwise convolutions on CUDA: a group is one channel in and one out, 1 or 2 spatial dims (of one, RP_KH is 1), any strides. No product
 * of matrices: what bounds them is memory, and instructions. Window, step and dilation are literals, so that all loops unroll.
 *   RP_KIND 0, 1  forward, input gradient: a thread makes RP_P results below each other, of RP_V channels, and reads each row that they
 *                 share once. A result is one chain of fma through the window, as conv.cuh's of so short an inner index.
 *   RP_KIND 2     weight gradient: RP_SLOTS threads share the images and strips of RP_P rows of a channel, each with its sums of the whole
 *                 window in registers; the slots are then added up as a tree, the shares of RP_SPLIT blocks, a cluster, in rising order.
 * Neighbours in a warp are neighbours along a row, or, RP_LAST, along channels, of which each thread has a vector of RP_V. The bits depend
 * on neither.
 *
 * Macros: RP_NAME, RP_T, RP_ACC, RP_LOAD, RP_STORE, RP_MULADD as in matmul.cuh; RP_KIND, RP_SPATIAL, RP_BIAS, RP_SPLIT, RP_INDEX, RP_REST as in
 * conv.cuh; RP_KH, RP_KW, RP_SY, RP_SX, RP_DY, RP_DX: window, step, dilation; RP_P, RP_V, RP_LAST. Words as in conv.cuh. */
#define RP_S RP_SPATIAL
#define RP_W_SPACE 8
#define RP_W_STRIDES (8 + 6 * RP_S)
typedef struct {
    rp_u64 w[8 + 6 * RP_S + 3 * (2 + RP_S) + 1 + RP_REST];
} RP_WORDS;
/* Of rows and places in them; one spatial dim is one row. */
#define RP_SIZE_Y(field) (RP_S == 2 ? (RP_INDEX)p.w[RP_W_SPACE + (field)] : 1)
#define RP_SIZE_X(field) ((RP_INDEX)p.w[RP_W_SPACE + 6 * (RP_S - 1) + (field)])
#define RP_STRIDE(tensor, d) ((RP_INDEX)p.w[RP_W_STRIDES + (tensor) * (2 + RP_S) + (d)])
#define RP_STRIDE_Y(tensor) (RP_S == 2 ? RP_STRIDE(tensor, 2) : 0)
#define RP_STRIDE_X(tensor) RP_STRIDE(tensor, 1 + RP_S)
enum { RP_IN, RP_OUT, RP_KERNEL, RP_STEP, RP_PAD, RP_DIL };
#define RP_TAPS (RP_KH * RP_KW)
#define RP_SLOTS 128
#define RP_ROWS ((RP_P - 1) * RP_SY + (RP_KH - 1) * RP_DY + 1) /* of the input, that RP_P rows of the output meet */

typedef struct __align__(RP_V * sizeof(RP_T)) {
    RP_T e[RP_V];
}
rp_channels;

RP_FN void rp_read(const RP_T *from, int ok, RP_ACC *v) {
    _Pragma("unroll") for (int c = 0; c < RP_V; c++) v[c] = 0;
    if (ok) {
        const rp_channels all = *(const rp_channels *)from;
        _Pragma("unroll") for (int c = 0; c < RP_V; c++) v[c] = RP_LOAD(all.e[c]);
    }
}

/* What is done with result x of channel g: in image n (kind 2: no), at place `at`. */
RP_FN void rp_finish(const RP_WORDS *q, RP_ACC x, RP_INDEX g, RP_INDEX n, RP_INDEX ay, RP_INDEX ax) {
    const RP_WORDS p = *q;
#if RP_REST
    const RP_INDEX m = 0, at[2] = {RP_S == 2 ? ay : ax, ax};
    (void)m, (void)at;
    RP_FOLLOW
#else
    const RP_INDEX o = (RP_KIND == 2 ? g * RP_STRIDE(2, 0) : n * RP_STRIDE(RP_KIND, 0) + g * RP_STRIDE(RP_KIND, 1)) +
                       ay * RP_STRIDE_Y(RP_KIND) + ax * RP_STRIDE_X(RP_KIND);
    RP_T *to = (RP_T *)p.w[RP_KIND];
#if RP_BIAS
    x = x + RP_LOAD(((const RP_T *)p.w[3])[g * (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]);
#endif
    to[o] = RP_STORE(x);
#endif
}

#define RP_SOURCE (RP_KIND == 0 ? 1 : 0)
extern "C" __global__ void RP_CLUSTER __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
#if RP_KIND != 2
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[7] / RP_V;
    const RP_INDEX rows = RP_SIZE_Y(RP_KIND == 0 ? RP_OUT : RP_IN), width = RP_SIZE_X(RP_KIND == 0 ? RP_OUT : RP_IN),
                   from_rows = RP_SIZE_Y(RP_KIND == 0 ? RP_IN : RP_OUT),
                   from_width = RP_SIZE_X(RP_KIND == 0 ? RP_IN : RP_OUT);
    const RP_INDEX strips = (rows + RP_P - 1) / RP_P, pad_y = RP_S == 2 ? RP_SIZE_Y(RP_PAD) : 0,
                   pad_x = RP_SIZE_X(RP_PAD);
    RP_INDEX i = (RP_INDEX)blockIdx.x * 256 + (RP_INDEX)threadIdx.x, c, ax;
#if RP_LAST
    c = i % C;
    i /= C;
    ax = i % width;
    i /= width;
    const RP_INDEX y0 = i % strips * RP_P, n = i / strips;
#else
    ax = i % width;
    i /= width;
    const RP_INDEX y0 = i % strips * RP_P;
    i /= strips;
    c = i % C;
    const RP_INDEX n = i / C;
#endif
    c *= RP_V;
    rp_launch_dependents();
    rp_grid_wait();
    if (n >= batch) return;
    const RP_T *from = (const RP_T *)p.w[RP_SOURCE] + (n * RP_STRIDE(RP_SOURCE, 0) + c * RP_STRIDE(RP_SOURCE, 1));
    const RP_T *w = (const RP_T *)p.w[2] + c * RP_STRIDE(2, 0);
    const RP_INDEX row = RP_STRIDE_Y(RP_SOURCE), column = RP_STRIDE_X(RP_SOURCE);
    RP_ACC weight[RP_TAPS][RP_V], sum[RP_P][RP_V];
    _Pragma("unroll") for (int t = 0; t < RP_TAPS; t++) _Pragma("unroll") for (int v = 0; v < RP_V; v++) weight[t][v] =
        RP_LOAD(w[v * RP_STRIDE(2, 0) + t / RP_KW * RP_STRIDE_Y(2) + t % RP_KW * RP_STRIDE_X(2)]);
    _Pragma("unroll") for (int j = 0; j < RP_P; j++) _Pragma("unroll") for (int v = 0; v < RP_V; v++) sum[j][v] = 0;
#if RP_KIND == 0
    const RP_INDEX top = y0 * RP_SY - pad_y, left = ax * RP_SX - pad_x;
    _Pragma("unroll") for (int r = 0; r < RP_ROWS; r++) {
        const RP_INDEX y = top + r;
        const int there = y >= 0 && y < from_rows;
        _Pragma("unroll") for (int k = 0; k < RP_KW; k++) {
            const RP_INDEX x = left + k * RP_DX;
            RP_ACC v[RP_V];
            rp_read(from + (y * row + x * column), there && x >= 0 && x < from_width, v);
            _Pragma("unroll") for (int j = 0; j < RP_P; j++) if (r >= j * RP_SY && (r - j * RP_SY) % RP_DY == 0 &&
                                                                 (r - j * RP_SY) / RP_DY < RP_KH)
                _Pragma("unroll") for (int e = 0; e < RP_V; e++) sum[j][e] =
                    RP_MULADD(weight[(r - j * RP_SY) / RP_DY * RP_KW + k][e], v[e], sum[j][e]);
        }
    }
#elif RP_SY == 1 && RP_SX == 1
    const RP_INDEX top = y0 + pad_y - (RP_KH - 1) * RP_DY;
    _Pragma("unroll") for (int r = RP_ROWS - 1; r >= 0; r--) { /* upwards, which is down the window */
        const RP_INDEX y = top + r;
        const int there = y >= 0 && y < from_rows;
        _Pragma("unroll") for (int k = 0; k < RP_KW; k++) {
            const RP_INDEX x = ax + pad_x - k * RP_DX;
            RP_ACC v[RP_V];
            rp_read(from + (y * row + x * column), there && x >= 0 && x < from_width, v);
            _Pragma("unroll") for (int j = 0; j < RP_P; j++) {
                const int down = (RP_KH - 1) * RP_DY + j - r;
                if (down >= 0 && down % RP_DY == 0 && down / RP_DY < RP_KH)
                    _Pragma("unroll") for (int e = 0; e < RP_V; e++) sum[j][e] =
                        RP_MULADD(weight[down / RP_DY * RP_KW + k][e], v[e], sum[j][e]);
            }
        }
    }
#else
    _Pragma("unroll") for (int j = 0; j < RP_P; j++) _Pragma("unroll") for (int r = 0; r < RP_KH; r++) {
        const RP_INDEX down = y0 + j + pad_y - r * RP_DY, y = down / RP_SY;
        const int there = down >= 0 && down % RP_SY == 0 && y < from_rows;
        _Pragma("unroll") for (int k = 0; k < RP_KW; k++) {
            const RP_INDEX along = ax + pad_x - k * RP_DX, x = along / RP_SX;
            RP_ACC v[RP_V];
            rp_read(from + (y * row + x * column), there && along >= 0 && along % RP_SX == 0 && x < from_width, v);
            _Pragma("unroll") for (int e = 0; e < RP_V; e++) sum[j][e] =
                RP_MULADD(weight[r * RP_KW + k][e], v[e], sum[j][e]);
        }
    }
#endif
    _Pragma("unroll") for (int j = 0; j < RP_P; j++) {
        if (y0 + j >= rows) break;
#if !RP_REST && RP_V > 1
        rp_channels all;
        _Pragma("unroll") for (int e = 0; e < RP_V; e++) {
#if RP_BIAS
            sum[j][e] =
                sum[j][e] + RP_LOAD(((const RP_T *)p.w[3])[(c + e) * (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]);
#endif
            all.e[e] = RP_STORE(sum[j][e]);
        }
        *(rp_channels *)((RP_T *)p.w[RP_KIND] + (n * RP_STRIDE(RP_KIND, 0) + c * RP_STRIDE(RP_KIND, 1) +
                                                 (y0 + j) * RP_STRIDE_Y(RP_KIND) + ax * RP_STRIDE_X(RP_KIND))) = all;
#else
        _Pragma("unroll") for (int e = 0; e < RP_V; e++) rp_finish(&p, sum[j][e], c + e, n, y0 + j, ax);
#endif
    }
#else
    /* A block has two vectors of channels, or two channels. */
    __shared__ RP_ACC part[2 * RP_SLOTS], whole[2 * RP_V * RP_TAPS];
    const int t = (int)threadIdx.x, lane = RP_LAST ? t % 2 : t / RP_SLOTS, slot = RP_LAST ? t / 2 : t % RP_SLOTS;
    const int rank = (int)(blockIdx.x % RP_SPLIT);
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[7];
    const RP_INDEX c0 = (RP_INDEX)(blockIdx.x / RP_SPLIT) * 2 * RP_V, c = c0 + lane * RP_V;
    const RP_INDEX rows = RP_SIZE_Y(RP_OUT), width = RP_SIZE_X(RP_OUT), from_rows = RP_SIZE_Y(RP_IN),
                   from_width = RP_SIZE_X(RP_IN);
    const RP_INDEX strips = (rows + RP_P - 1) / RP_P, pad_y = RP_S == 2 ? RP_SIZE_Y(RP_PAD) : 0,
                   pad_x = RP_SIZE_X(RP_PAD);
    const RP_INDEX all = batch * strips * width;
    rp_launch_dependents();
    rp_grid_wait();
    const RP_T *dy = (const RP_T *)p.w[0] + c * RP_STRIDE(0, 1), *x = (const RP_T *)p.w[1] + c * RP_STRIDE(1, 1);
    RP_ACC sum[RP_TAPS][RP_V];
    _Pragma("unroll") for (int k = 0; k < RP_TAPS; k++) _Pragma("unroll") for (int v = 0; v < RP_V; v++) sum[k][v] = 0;
    for (RP_INDEX i = c < C ? rank * RP_SLOTS + slot : all; i < all; i += RP_SPLIT * RP_SLOTS) {
        const RP_INDEX ax = i % width, y0 = i / width % strips * RP_P, n = i / width / strips;
        const RP_T *g = dy + (n * RP_STRIDE(0, 0) + y0 * RP_STRIDE_Y(0) + ax * RP_STRIDE_X(0));
        const RP_T *from = x + n * RP_STRIDE(1, 0);
        RP_ACC grad[RP_P][RP_V];
        _Pragma("unroll") for (int j = 0; j < RP_P; j++) rp_read(g + j * RP_STRIDE_Y(0), y0 + j < rows, grad[j]);
        const RP_INDEX top = y0 * RP_SY - pad_y, left = ax * RP_SX - pad_x;
        _Pragma("unroll") for (int r = 0; r < RP_ROWS; r++) {
            const RP_INDEX y = top + r;
            const int there = y >= 0 && y < from_rows;
            _Pragma("unroll") for (int k = 0; k < RP_KW; k++) {
                const RP_INDEX at = left + k * RP_DX;
                RP_ACC v[RP_V];
                rp_read(from + (y * RP_STRIDE_Y(1) + at * RP_STRIDE_X(1)), there && at >= 0 && at < from_width, v);
                _Pragma("unroll") for (int j = 0; j < RP_P; j++) if (r >= j * RP_SY && (r - j * RP_SY) % RP_DY == 0 &&
                                                                     (r - j * RP_SY) / RP_DY < RP_KH)
                    _Pragma("unroll") for (int e = 0; e < RP_V; e++) {
                    RP_ACC *s = &sum[(r - j * RP_SY) / RP_DY * RP_KW + k][e];
                    *s = RP_MULADD(grad[j][e], v[e], *s);
                }
            }
        }
    }
    _Pragma("unroll") for (int k = 0; k < RP_TAPS; k++) _Pragma("unroll") for (int e = 0; e < RP_V; e++) {
        part[lane * RP_SLOTS + slot] = sum[k][e];
        rp_barrier();
        for (int half = RP_SLOTS / 2; half > 0; half /= 2) {
            if (slot < half)
                part[lane * RP_SLOTS + slot] = part[lane * RP_SLOTS + slot] + part[lane * RP_SLOTS + slot + half];
            rp_barrier();
        }
        if (slot == 0) whole[(lane * RP_V + e) * RP_TAPS + k] = part[lane * RP_SLOTS];
        rp_barrier();
    }
#if RP_SPLIT > 1
    rp_cluster_barrier(RP_SPLIT);
#endif
    for (int i = t; i < 2 * RP_V * RP_TAPS; i += 256) {
        const RP_INDEX ch = c0 + i / RP_TAPS;
        if (ch >= C) break;
#if RP_SPLIT > 1
        if (i / 32 % RP_SPLIT != rank) continue;
        RP_ACC of[RP_SPLIT];
        _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) of[other] =
            RP_CLUSTER_READ(&whole[i], other, RP_SPLIT);
        RP_ACC s = of[0];
        _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) s = s + of[other];
#else
        const RP_ACC s = whole[i];
#endif
        rp_finish(&p, s, ch, 0, i % RP_TAPS / RP_KW, i % RP_KW);
    }
#if RP_SPLIT > 1
    rp_cluster_barrier(RP_SPLIT); /* others have read */
#endif
#endif
}
