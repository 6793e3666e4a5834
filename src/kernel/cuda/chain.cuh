/* A chain of small matrix products in one kernel on CUDA: v0 = x, v(s+1) = rest(s)(v(s) W(s)). A block of 256 threads
 * owns RP_Y * RP_R rows from the first product to the last: rows and all weights lie in shared memory, the copies of every
 * weight are in flight while the first product runs, and a barrier stands between two products. A thread computes RP_R rows of
 * a column, in the order of kernel/product.h as matmul.cuh does, and what lies between two products is rounded to the storage type,
 * so the bits are those of the products one by one. What follows a sum element by element is text of its own, whose operands are
 * read before the sum is made. Small chains are latency: one node, one round of loads. A single product is a chain as well, whose
 * blocks take RP_X columns each; by itself it has no text but perhaps a bias.
 * Parameters (chain.c defines the macros):
 *   RP_NAME kernel name; RP_T storage type, RP_BYTES its size, RP_ACC accumulator, RP_LOAD(x), RP_STORE(x), RP_MULADD(a, b, c);
 *   RP_STAGES products; RP_X threads along columns, RP_Y = 256 / RP_X along rows; RP_R rows a thread; RP_VECTOR elements that one
 *   copy of x takes; RP_FACTS four bits a product from the lowest on: bias, along_n (W's unit stride is along n, its rows in shared
 *   memory are k), two bits log2 of the elements of one copy of W; RP_REST words of what follows, 0: nothing does.
 * Words: x, M, x's strides (m, k), shared elements of a row of values and the offset of the second row buffer, lanes (log2) that
 * copy a row of x; then for each product: W bias out, N K, W's strides (of a shared row, along it), out's strides (m, n), bias'
 * stride and lanes (log2) of a row, offset and pitch of W in shared memory; then those of what follows, product by product. Two
 * numbers a word, the first in the low half.
 * Where something follows: RP_WIDE_HELD stands for statements that read, of product s, what row m, column n0 + n is made of besides the
 * sum, into held[i], an rp_held; RP_FOLLOW for those that store what it is wanted for, and make `made` of x. */
#define RP_WIDE (16 / RP_BYTES)
#define RP_LOW(k) ((int)(rp_u32)p.w[k])
#define RP_HIGH(k) ((int)(rp_u32)(p.w[k] >> 32))
typedef struct {
    rp_u64 w[5 + 8 * RP_STAGES + RP_REST];
} RP_WORDS;
#if RP_REST
typedef struct {
    int none;
    RP_WIDE_TYPES
} rp_held;
#endif

/* 16 bytes of shared memory in the accumulator's type. */
RP_FN void rp_chain_wide(RP_ACC *v, const RP_T *from) {
#if RP_BYTES == 8
    const rp_f64x2 q = rp_ld_v2_f64(from);
    v[0] = q.x, v[1] = q.y;
#elif RP_BYTES == 4
    const rp_f32x4 q = rp_ld_v4_f32(from);
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
#else
    const rp_u32x4 q = rp_ld_v4_u32((const rp_u32 *)(const void *)from);
    v[0] = RP_LOAD((rp_u16)q.x), v[1] = RP_LOAD((rp_u16)(q.x >> 16));
    v[2] = RP_LOAD((rp_u16)q.y), v[3] = RP_LOAD((rp_u16)(q.y >> 16));
    v[4] = RP_LOAD((rp_u16)q.z), v[5] = RP_LOAD((rp_u16)(q.z >> 16));
    v[6] = RP_LOAD((rp_u16)q.w), v[7] = RP_LOAD((rp_u16)(q.w >> 16));
#endif
}

/* Starts the copy of rows x columns elements into shared rows of `pitch`; `vector` elements a copy, 1 << lanes threads a row. */
RP_FN void rp_chain_copy(RP_T *to, int pitch, const RP_T *from, int rows, int columns, int row_stride,
                         int column_stride, int vector, int lanes, int t) {
    const int first = (t & ((1 << lanes) - 1)) * vector, step = vector << lanes;
    _Pragma("unroll 1") for (int r = t >> lanes; r < rows; r += 256 >> lanes) {
        _Pragma("unroll 1") for (int c = first; c < columns; c += step) {
            RP_T *a = to + r * pitch + c;
            const RP_T *b = from + r * row_stride + c * column_stride;
            const int bytes = vector * RP_BYTES;
            if (bytes == 16)
                rp_cp_async_16(a, b);
            else if (bytes == 8)
                rp_cp_async_8(a, b);
            else if (bytes == 4)
                rp_cp_async_4(a, b);
            else
                *a = *b;
        }
    }
}

/* Columns of a product that this block computes. */
RP_FN int rp_chain_columns(int N, int n0) {
    const int left = N - n0;
    return RP_STAGES == 1 && left > RP_X ? RP_X : left;
}

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) RP_T room[];
    const int tx = (int)threadIdx.x, ty = (int)threadIdx.y, t = ty * RP_X + tx;
    const int m0 = (int)blockIdx.x * (RP_Y * RP_R), left = RP_LOW(1) - m0;
    const int rows = left < RP_Y * RP_R ? left : RP_Y * RP_R, pitch = RP_LOW(3), other = RP_HIGH(3);
    const int n0 = RP_STAGES == 1 ? (int)blockIdx.y * RP_X : 0;
    RP_ACC bias[RP_STAGES];
    rp_launch_dependents();
    rp_grid_wait();
    rp_chain_copy(room, pitch, (const RP_T *)p.w[0] + m0 * RP_LOW(2), rows, RP_HIGH(8), RP_LOW(2), RP_HIGH(2),
                  RP_VECTOR, RP_LOW(4), t);
    _Pragma("unroll") for (int s = 0; s < RP_STAGES; s++) {
        const int at = 5 + 8 * s, facts = (int)(RP_FACTS >> (4 * s)) & 15, along_n = facts >> 1 & 1;
        const int K = RP_HIGH(at + 3), N = rp_chain_columns(RP_LOW(at + 3), n0);
        rp_chain_copy(room + RP_LOW(at + 7), RP_HIGH(at + 7),
                      (const RP_T *)p.w[at] + n0 * (along_n ? RP_HIGH(at + 4) : RP_LOW(at + 4)), along_n ? K : N,
                      along_n ? N : K, RP_LOW(at + 4), RP_HIGH(at + 4), 1 << (facts >> 2), RP_HIGH(at + 6), t);
        rp_cp_async_commit();
        bias[s] = 0;
        if ((facts & 1) && tx < N) bias[s] = RP_LOAD(((const RP_T *)p.w[at + 1])[(n0 + tx) * RP_LOW(at + 6)]);
    }
    _Pragma("unroll") for (int s = 0; s < RP_STAGES; s++) {
        const int at = 5 + 8 * s, facts = (int)(RP_FACTS >> (4 * s)) & 15, along_n = facts >> 1 & 1;
        const int K = RP_HIGH(at + 3), N = rp_chain_columns(RP_LOW(at + 3), n0), w_pitch = RP_HIGH(at + 7);
        const RP_T *from = room + (s & 1 ? other : 0) + ty * pitch, *w = room + RP_LOW(at + 7);
        RP_T *to = room + (s & 1 ? 0 : other) + ty * pitch;
        rp_cp_async_wait(RP_STAGES - 1 - s);
        rp_barrier(); /* also: the values before are written, and those before them are read */
        if (ty >= rows) continue;
        for (int n = tx; n < N; n += RP_X) {
            RP_ACC acc[RP_R], blocks[RP_R], groups[RP_R]; /* of a block of k; of the group under way, of groups */
            const RP_T *y = along_n ? w + n : w + n * w_pitch;
            int k = 0;
#if RP_REST
            rp_held held[RP_R];
            _Pragma("unroll") for (int i = 0; i < RP_R; i++) {
                const int m = m0 + ty + i * RP_Y;
                held[i].none = 0;
                if (ty + i * RP_Y >= rows) continue;
                RP_WIDE_HELD
            }
#endif
            _Pragma("unroll") for (int i = 0; i < RP_R; i++) blocks[i] = groups[i] = 0;
            _Pragma("unroll 1") for (int done = 0; done < K || done == 0;) {
                done = K - done > RP_BLOCK ? done + RP_BLOCK : K;
                _Pragma("unroll") for (int i = 0; i < RP_R; i++) acc[i] = 0;
                _Pragma("unroll 4") for (; k + RP_WIDE <= done; k += RP_WIDE) {
                    RP_ACC b[RP_WIDE];
                    if (along_n) {
                        _Pragma("unroll") for (int j = 0; j < RP_WIDE; j++) b[j] = RP_LOAD(y[(k + j) * w_pitch]);
                    } else {
                        rp_chain_wide(b, y + k);
                    }
                    _Pragma("unroll") for (int i = 0; i < RP_R; i++) {
                        RP_ACC a[RP_WIDE];
                        rp_chain_wide(a, from + i * RP_Y * pitch + k);
                        _Pragma("unroll") for (int j = 0; j < RP_WIDE; j++) acc[i] = RP_MULADD(a[j], b[j], acc[i]);
                    }
                }
                _Pragma("unroll") for (int j = 0; j < RP_WIDE - 1; j++) {
                    if (k + j >= done) continue;
                    const RP_ACC b = RP_LOAD(y[along_n ? (k + j) * w_pitch : k + j]);
                    _Pragma("unroll") for (int i = 0; i < RP_R; i++) acc[i] =
                        RP_MULADD(RP_LOAD(from[i * RP_Y * pitch + k + j]), b, acc[i]);
                }
                if (done == K && K <= RP_BLOCK) break;
                const int whole = done % (RP_BLOCK * RP_GROUP) == 0 || done == K;
                _Pragma("unroll") for (int i = 0; i < RP_R; i++) {
                    blocks[i] = (done - 1) / RP_BLOCK % RP_GROUP == 0 ? acc[i] : blocks[i] + acc[i];
                    if (whole) groups[i] = done <= RP_BLOCK * RP_GROUP ? blocks[i] : groups[i] + blocks[i];
                }
                if (done == K) {
                    _Pragma("unroll") for (int i = 0; i < RP_R; i++) acc[i] = groups[i];
                    break;
                }
            }
            _Pragma("unroll") for (int i = 0; i < RP_R; i++) {
                const int r = ty + i * RP_Y, m = m0 + r;
                RP_ACC x = acc[i];
                if (r >= rows) continue;
#if RP_REST
                RP_T made = 0;
                RP_FOLLOW
                if (s + 1 < RP_STAGES) to[i * RP_Y * pitch + n] = made;
#else
                if (facts & 1) x = x + bias[s];
                ((RP_T *)p.w[at + 2])[m * RP_LOW(at + 5) + (n0 + n) * RP_HIGH(at + 5)] = RP_STORE(x);
#endif
            }
        }
    }
}
