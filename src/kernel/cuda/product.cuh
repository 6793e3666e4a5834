/* Matrix products on CUDA in tiles that a pipeline of copies fills: out (B.., M, N) = a (B.., M, K) b (B.., K, N), any strides, any
 * batch dims, a bias, or what follows the product in a DAG. A block computes a tile of TM x TN; RP_SPLIT blocks, a cluster, take a
 * share of K each, and their sums are added up in rising order. RP_MATH says how a share adds up, always from left to right:
 *   0 fma of f32 in the order of kernel/product.h     1 tensor cores, f16 or bf16, 16 of K a step, sums in f32
 *   2 tensor cores, f32 rounded to tf32, 8 a step     3 tensor cores, f32 as the sum of two bf16, 16 a step: low x high, high x low,
 *   4 tensor cores, i8, 32 a step, sums in i32          high x high
 *   5 as 1, with the same bits, by instructions of warpgroups (wgmma.cuh): 16 bytes at once
 * RP_SLICES: of each RP_TK of K in a share (32) a slice, some warps of the block, takes an equal part; a slice adds up in the order of 0, with
 * blocks of its own elements, and slices are added up in rising order.
 * So the bits depend on RP_MATH, K, RP_SPLIT and RP_SLICES (product.c: a function of the sizes), not on tiles, strides or alignment.
 *
 * Macros of product.c: RP_NAME, RP_T, RP_LOAD, RP_STORE, RP_MULADD, RP_BLOCK, RP_GROUP as in matmul.cuh; RP_SUM type of sums; RP_TM,
 * RP_TN, RP_TK; RP_THREADS, those of all slices; RP_STAGES tiles in flight; RP_WM x RP_WN warps (5: warpgroups) of tensor cores; RP_TI x RP_TJ results a thread (fma);
 * RP_SPLIT; RP_A_ALONG, RP_B_ALONG: neighbours in a warp read neighbours of K; RP_A_WIDE, RP_B_WIDE: 16 bytes at once; RP_OUT_V
 * results of a row; RP_BATCH, RP_BIAS, RP_REST, RP_INDEX as in matmul.cuh; RP_LONG, RP_LONGER: a share is more than a block, than a group.
 * RP_PACK(low, high): two results as they are stored (1, 5).
 * RP_EIGHT: what follows takes eight neighbours of a row at once. RP_PROBLEMS: so many products in one launch, blocks of each side by side, alike but for their addresses.
 * Words: those of matmul.cuh, the 14th 1 where nothing in the graph writes b, so that tiles of it are asked for before the launches before this
 * one are complete; then the four addresses of each further problem. */
typedef struct {
    rp_u64 w[15 + 4 * RP_BATCH + RP_REST + 4 * (RP_PROBLEMS - 1)];
} RP_WORDS;

#define RP_GROUPED (RP_MATH == 5)
#define RP_MMA (RP_MATH > 0 && !RP_GROUPED)
/* Does K run fastest in shared memory? */
#define RP_A_K (RP_MATH == 4 || RP_A_ALONG)
#define RP_B_K (RP_MATH == 4 || RP_B_ALONG)
#define RP_PAD_ACROSS (RP_MATH == 2 || RP_MATH == 3 ? 8 : RP_C)
#if RP_GROUPED
#define RP_A_ROW 64
#define RP_B_ROW 64
#define RP_A_SIZE (RP_TM * RP_TK)
#define RP_B_SIZE ((RP_B_ALONG ? RP_TN : (RP_TN + 63) / 64 * 64) * RP_TK)
#define RP_GROUP_M (RP_TM / RP_WM / 64) /* instructions above each other */
#define RP_GROUP_N (RP_TN / RP_WN)
#else
#define RP_A_ROW (RP_A_K ? RP_TK + RP_C : RP_TM + RP_PAD_ACROSS)
#define RP_B_ROW (RP_B_K ? RP_TK + RP_C : RP_TN + RP_PAD_ACROSS)
#define RP_A_SIZE ((RP_A_K ? RP_TM : RP_TK) * RP_A_ROW)
#define RP_B_SIZE ((RP_B_K ? RP_TN : RP_TK) * RP_B_ROW)
#endif
#define RP_ASYNC ((RP_A_WIDE || RP_ELEMENT >= 4) && (RP_B_WIDE || RP_ELEMENT >= 4))
#if RP_GROUPED
#elif RP_MMA
#define RP_FM (RP_TM / RP_WM / 16) /* fragments of a warp */
#define RP_FN_ (RP_TN / RP_WN / 8)
#define RP_GROUPS (RP_MATH == 3 ? 2 : 1)          /* of 32 bytes of K, a step */
#define RP_STEPS (RP_TK / (2 * RP_C * RP_GROUPS)) /* of K, a tile: at least 2 */
#else
#define RP_TX (RP_TN / RP_TJ) /* threads of a slice */
#define RP_TY (RP_TM / RP_TI)
#define RP_LX (RP_TX < 8 ? RP_TX : RP_TY < 4 ? 32 / RP_TY : 8) /* of a warp */
#define RP_LY (32 / RP_LX)
#define RP_PART (RP_TK / RP_SLICES)
#define RP_VI (RP_TI < 4 ? RP_TI : 4) /* neighbours of a thread */
#define RP_VJ (RP_TJ < 4 ? RP_TJ : 4)
typedef struct __align__(RP_VI * sizeof(RP_T)) {
    RP_T e[RP_VI];
}
rp_row_part;
typedef struct __align__(RP_VJ * sizeof(RP_T)) {
    RP_T e[RP_VJ];
}
rp_column_part;
#define RP_ROW(i) (RP_A_K ? (i)*RP_TY + ty : (i) / RP_VI * (RP_TY * RP_VI) + ty * RP_VI + (i) % RP_VI)
#define RP_COLUMN(j) (RP_B_K ? (j)*RP_TX + tx : (j) / RP_VJ * (RP_TX * RP_VJ) + tx * RP_VJ + (j) % RP_VJ)
#endif
#define RP_OUT_ROW (RP_TN + 8)           /* pairs of four rows, and quads of neighbours, lie in different banks */
#define RP_OUT_ACROSS (RP_TN / RP_OUT_V) /* threads along a row of results */
#define RP_OUT_KEEPS (RP_THREADS % RP_OUT_ACROSS == 0) /* a thread's are in the same columns */
typedef struct __align__(RP_OUT_V * sizeof(RP_T)) {
    RP_T e[RP_OUT_V];
}
rp_out_part;
/* Sums as they go through shared memory. */
typedef struct __align__(8) {
    RP_SUM e[2];
}
rp_sum_pair;
#define RP_SUM_V (RP_OUT_V < 4 ? RP_OUT_V : 4)
typedef struct __align__(RP_SUM_V * sizeof(RP_SUM)) {
    RP_SUM e[RP_SUM_V];
}
rp_sum_part;
/* Are results, 16-bit floats, stored 16 bytes at once, and is nothing done with them? RP_PARTS pieces of a warp then, 16 rows of RP_PART_N. */
#define RP_PACKED (!RP_REST && RP_SPLIT == 1 && RP_OUT_V == 8 && (RP_GROUPED || RP_MATH == 1))
#if RP_GROUPED
#define RP_PARTS RP_GROUP_M
#define RP_PART_N RP_GROUP_N
#define RP_PART_ROW(i) ((wm * RP_GROUP_M + (i)) * 64 + t / 32 % 4 * 16)
#define RP_PART_SUM(i, j, v) acc[i][4 * (j) + (v)]
#else
#define RP_PARTS RP_FM
#define RP_PART_N (RP_TN / RP_WN)
#define RP_PART_ROW(i) (wm * (RP_TM / RP_WM) + (i)*16)
#define RP_PART_SUM(i, j, v) acc[i][j][v]
#endif
#if RP_EIGHT
RP_WIDE_TYPES
/* Vectors that a thread has under way before it finishes the first of them. */
#define RP_HELD_MOST (RP_HELD_BYTES <= 16 ? 8 : RP_HELD_BYTES <= 32 ? 4 : RP_HELD_BYTES <= 64 ? 2 : 1)
#define RP_HELD_ALL ((RP_OUT_PARTS + RP_THREADS - 1) / RP_THREADS)
#define RP_HELD (RP_HELD_ALL < RP_HELD_MOST ? RP_HELD_ALL : RP_HELD_MOST)
#endif

extern "C" __global__ void RP_CLUSTER __launch_bounds__(RP_THREADS, RP_RESIDENT) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(1024) unsigned char room[]; /* RP_STAGES tiles of both operands; then rows of results */
    RP_T *sa = (RP_T *)room, *sb = sa + RP_STAGES * RP_A_SIZE;
    RP_SUM *st = (RP_SUM *)room;
    const unsigned each = gridDim.x / RP_PROBLEMS, problem = RP_PROBLEMS > 1 ? blockIdx.x / each : 0,
                   block = RP_PROBLEMS > 1 ? blockIdx.x - problem * each : blockIdx.x;
    const int t = (int)threadIdx.x, rank = (int)(block % RP_SPLIT);
    rp_u64 address[4] = {p.w[0], p.w[1], p.w[2], p.w[3]};
    _Pragma("unroll") for (unsigned other = 1; other < RP_PROBLEMS; other++) {
        if (problem != other) continue;
        _Pragma("unroll") for (unsigned k = 0; k < 4; k++) address[k] =
            p.w[11 + 4 * RP_BATCH + RP_REST + 4 * other + k];
    }
    (void)each, (void)address;
    const RP_INDEX M = (RP_INDEX)p.w[4], N = (RP_INDEX)p.w[5], K = (RP_INDEX)p.w[6];
    const RP_INDEX am = (RP_INDEX)p.w[9], ak = (RP_INDEX)p.w[10], bk = (RP_INDEX)p.w[11], bn = (RP_INDEX)p.w[12];
    const RP_INDEX down = (M + RP_TM - 1) / RP_TM, across = (N + RP_TN - 1) / RP_TN;
    RP_INDEX tile = (RP_INDEX)(block / RP_SPLIT), ob = 0, ab = 0, bb = 0;
    const RP_INDEX batch = RP_BATCH ? tile / (down * across) : 0;
    tile -= batch * (down * across);
    RP_INDEX left = batch;
    _Pragma("unroll") for (int d = RP_BATCH - 1; d >= 0; d--) {
        const RP_INDEX extent = (RP_INDEX)p.w[15 + 4 * d], i = left % extent;
        left /= extent;
        ob += i * (RP_INDEX)p.w[16 + 4 * d];
        ab += i * (RP_INDEX)p.w[17 + 4 * d];
        bb += i * (RP_INDEX)p.w[18 + 4 * d];
    }
    /* Blocks that run together share operands in the L2: eight tiles down, then the next column. */
    const RP_INDEX band = tile / (8 * across), in_band = tile - band * (8 * across),
                   height = down - band * 8 < 8 ? down - band * 8 : 8;
    const RP_INDEX m0 = (band * 8 + in_band % height) * RP_TM, n0 = in_band / height * RP_TN;
    const RP_INDEX share = RP_SPLIT > 1 ? ((K + RP_SPLIT - 1) / RP_SPLIT + 31) / 32 * 32 : K;
    const RP_INDEX first = rank * share < K ? rank * share : K, end = K - first < share ? K : first + share;
    const int early = RP_ASYNC && p.w[14] != 0;
    rp_launch_dependents();
    if (!early) rp_grid_wait();
    RP_T *out = (RP_T *)address[0] + ob;
    const RP_T *a = (const RP_T *)address[1] + (ab + m0 * am), *b = (const RP_T *)address[2] + (bb + n0 * bn);
    (void)out;
#if !RP_ASYNC
    RP_T ha[RP_A_WIDE ? 1 : RP_TILE_ELEMENTS(RP_TM)], hb[RP_B_WIDE ? 1 : RP_TILE_ELEMENTS(RP_TN)];
    (void)ha, (void)hb;
#endif
/* The next tile, at `at` of K, into slot `slot`, or into registers first. */
#define RP_LINES_PER(rows, along) (RP_GROUPED || (along) ? RP_TK / RP_C : (rows) / RP_C) /* threads of a line */
#if RP_GROUPED
#define RP_LINES_PLACE(per, row, along) ((along) ? rp_swizzled(t / 8, t % 8 * 8, 1) : rp_swizzled(t % 8 * 8, t / 8, 0))
#else
#define RP_LINES_PLACE(per, row, along) (t / (per) * (row) + t % (per)*RP_C)
#endif
#define RP_READ_LINES(tile, place, next, from, row_stride, k_stride, rows_left, k_left, rows, along, row)              \
    if (along)                                                                                                         \
        rp_lines_copy((tile) + (place), next, from, row_stride, rows_left, k_left, t, rows, RP_TK,                     \
                      RP_LINES_PER(rows, 1), row, 0, 1);                                                               \
    else                                                                                                               \
        rp_lines_copy((tile) + (place), next, from, k_stride, k_left, rows_left, t, RP_TK, rows,                       \
                      RP_LINES_PER(rows, 0), row, 4096, 0);                                                            \
    next += RP_TK * (k_stride);
#if RP_GROUPED || RP_A_WIDE
    const int per_a = RP_LINES_PER(RP_TM, RP_A_ALONG);
    const RP_T *next_a = a + (first * ak + t / per_a * (RP_A_ALONG ? am : ak) + t % per_a * RP_C);
    const int place_a = RP_LINES_PLACE(per_a, RP_A_ROW, RP_A_ALONG);
#define RP_READ_A(slot, at)                                                                                            \
    {                                                                                                                  \
        RP_READ_LINES(sa + (slot)*RP_A_SIZE, place_a, next_a, a, am, ak, M - m0, end - (at), RP_TM, RP_A_ALONG,        \
                      RP_A_ROW)                                                                                        \
    }
#define RP_PUT_A(slot)
#elif RP_ASYNC
#define RP_READ_A(slot, at)                                                                                            \
    rp_tile_copy_elements(sa + (slot)*RP_A_SIZE, a + (at)*ak, am, ak, M - m0, end - (at), t, RP_TM, RP_A_ALONG,        \
                          RP_A_K, RP_A_ROW);
#define RP_PUT_A(slot)
#else
#define RP_READ_A(slot, at) rp_tile_get(ha, a + (at)*ak, am, ak, M - m0, end - (at), t, RP_TM, RP_A_ALONG);
#define RP_PUT_A(slot) rp_tile_put(sa + (slot)*RP_A_SIZE, ha, t, RP_TM, RP_A_ALONG, RP_A_K, RP_A_ROW);
#endif
#if RP_GROUPED || RP_B_WIDE
    const int per_b = RP_LINES_PER(RP_TN, RP_B_ALONG);
    const RP_T *next_b = b + (first * bk + t / per_b * (RP_B_ALONG ? bn : bk) + t % per_b * RP_C);
    const int place_b = RP_LINES_PLACE(per_b, RP_B_ROW, RP_B_ALONG);
#define RP_READ_B(slot, at)                                                                                            \
    {                                                                                                                  \
        RP_READ_LINES(sb + (slot)*RP_B_SIZE, place_b, next_b, b, bn, bk, N - n0, end - (at), RP_TN, RP_B_ALONG,        \
                      RP_B_ROW)                                                                                        \
    }
#define RP_PUT_B(slot)
#elif RP_ASYNC
#define RP_READ_B(slot, at)                                                                                            \
    rp_tile_copy_elements(sb + (slot)*RP_B_SIZE, b + (at)*bk, bn, bk, N - n0, end - (at), t, RP_TN, RP_B_ALONG,        \
                          RP_B_K, RP_B_ROW);
#define RP_PUT_B(slot)
#else
#define RP_READ_B(slot, at) rp_tile_get(hb, b + (at)*bk, bn, bk, N - n0, end - (at), t, RP_TN, RP_B_ALONG);
#define RP_PUT_B(slot) rp_tile_put(sb + (slot)*RP_B_SIZE, hb, t, RP_TN, RP_B_ALONG, RP_B_K, RP_B_ROW);
#endif
#if RP_GROUPED
    const int lane = t % 32, own = RP_WM * RP_WN > 1 ? rp_shfl_idx_i32(t / 128, 0, 32) : 0, wm = own / RP_WN,
              wn = own % RP_WN;
    RP_SUM acc[RP_GROUP_M][RP_GROUP_D];
    const rp_u64 ga = rp_swizzled_matrix(sa) + (rp_u64)(wm * RP_GROUP_M * 512),
                 gb = rp_swizzled_matrix(sb) + (rp_u64)(wn * RP_GROUP_N * 8);
#elif RP_MMA
    const int lane = t % 32, wm = t / 32 / RP_WN, wn = t / 32 % RP_WN;
    RP_SUM acc[RP_FM][RP_FN_][4];
    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
        _Pragma("unroll") for (int v = 0; v < 4; v++) acc[i][j][v] = 0;
#else
    /* a warp is 4 x 8 threads, so what it reads of either tile lies in 128 bytes, or as near to it as the tile allows */
    const int slice = RP_SLICES > 1 ? t / (RP_TX * RP_TY) : 0, warp = t / 32 - slice * (RP_TX * RP_TY / 32),
              tx = warp % (RP_TX / RP_LX) * RP_LX + t % RP_LX, ty = warp / (RP_TX / RP_LX) * RP_LY + t / RP_LX % RP_LY;
    RP_SUM acc[RP_TI][RP_TJ];
    _Pragma("unroll") for (int i = 0; i < RP_TI; i++) _Pragma("unroll") for (int j = 0; j < RP_TJ; j++) acc[i][j] = 0;
#if RP_LONG
    RP_SUM blocks[RP_TI][RP_TJ]; /* of the group under way */
    _Pragma("unroll") for (int i = 0; i < RP_TI; i++) _Pragma("unroll") for (int j = 0; j < RP_TJ; j++) blocks[i][j] =
        0;
#endif
#if RP_LONGER
    RP_SUM groups[RP_TI][RP_TJ]; /* before it */
    _Pragma("unroll") for (int i = 0; i < RP_TI; i++) _Pragma("unroll") for (int j = 0; j < RP_TJ; j++) groups[i][j] =
        0;
#endif
#endif
#if RP_MMA
    rp_u32 fa[2][RP_FM][RP_GROUPS][4], fb[2][RP_FN_ / 2][RP_GROUPS][4]; /* of two steps */
#define RP_FRAGMENTS(at, turn, step)                                                                                   \
    _Pragma("unroll") for (int g = 0; g < RP_GROUPS; g++) {                                                            \
        const int k = ((step)*RP_GROUPS + g) * 2 * RP_C;                                                               \
        _Pragma("unroll") for (int i = 0; i < RP_FM; i++) rp_fragment_a(                                               \
            fa[at][i][g], sa + (turn)*RP_A_SIZE, wm * (RP_TM / RP_WM) + i * 16, k, lane, RP_A_K, RP_A_ROW);            \
        _Pragma("unroll") for (int j = 0; j < RP_FN_ / 2; j++) rp_fragment_b(                                          \
            fb[at][j][g], sb + (turn)*RP_B_SIZE, wn * (RP_TN / RP_WN) + j * 16, k, lane, RP_B_K, RP_B_ROW);            \
    }
#define RP_EACH _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
#if RP_MATH == 3 /* two steps of 8 are one of 16, in the same order of both factors */
#define RP_MULTIPLY(at)                                                                                                \
    {                                                                                                                  \
        rp_u32 ha[RP_FM][4], la[RP_FM][4], hb[RP_FN_ / 2][4], lb[RP_FN_ / 2][4];                                       \
        _Pragma("unroll") for (int g = 0; g < 2; g++) _Pragma("unroll") for (int r = 0; r < 2; r++) {                  \
            _Pragma("unroll") for (int i = 0; i < RP_FM; i++)                                                          \
                rp_halve_f32(&ha[i][g * 2 + r], &la[i][g * 2 + r], fa[at][i][g][r], fa[at][i][g][r + 2]);              \
            _Pragma("unroll") for (int j = 0; j < RP_FN_ / 2; j++)                                                     \
                rp_halve_f32(&hb[j][r * 2 + g], &lb[j][r * 2 + g], fb[at][j][g][r * 2], fb[at][j][g][r * 2 + 1]);      \
        }                                                                                                              \
        RP_EACH {                                                                                                      \
            rp_mma_m16n8k16_bf16(acc[i][j], la[i], &hb[j / 2][j % 2 * 2]);                                             \
            rp_mma_m16n8k16_bf16(acc[i][j], ha[i], &lb[j / 2][j % 2 * 2]);                                             \
            rp_mma_m16n8k16_bf16(acc[i][j], ha[i], &hb[j / 2][j % 2 * 2]);                                             \
        }                                                                                                              \
    }
#else
#if RP_MATH == 2
#define RP_ROUND(at)                                                                                                   \
    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) rp_fragment_tf32(fa[at][i][0], 4);                               \
    _Pragma("unroll") for (int j = 0; j < RP_FN_ / 2; j++) rp_fragment_tf32(fb[at][j][0], 4);
#else
#define RP_ROUND(at)
#endif
#define RP_MULTIPLY(at)                                                                                                \
    {                                                                                                                  \
        RP_ROUND(at)                                                                                                   \
        RP_EACH RP_MMA_STEP(acc[i][j], fa[at][i][0], &fb[at][j / 2][0][j % 2 * 2]);                                    \
    }
#endif
#else
/* Four of K: what a thread needs of both tiles, in 16 bytes each. */
#define RP_FMA_STEP(k)                                                                                                 \
    {                                                                                                                  \
        RP_T u[RP_TI][4], v[RP_TJ][4];                                                                                 \
        _Pragma("unroll") for (int i = 0; i < RP_TI; i += RP_A_K ? 1 : RP_VI) {                                        \
            if (RP_A_K) {                                                                                              \
                const rp_f32x4 part = rp_ld_v4_f32(&ta[RP_ROW(i) * RP_A_ROW + (k)]);                                   \
                u[i][0] = part.x, u[i][1] = part.y, u[i][2] = part.z, u[i][3] = part.w;                                \
            } else {                                                                                                   \
                _Pragma("unroll") for (int e = 0; e < 4; e++) {                                                        \
                    const rp_row_part part = *(const rp_row_part *)&ta[((k) + e) * RP_A_ROW + RP_ROW(i)];              \
                    _Pragma("unroll") for (int x = 0; x < RP_VI; x++) u[(i + x) % RP_TI][e] = part.e[x];               \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("unroll") for (int j = 0; j < RP_TJ; j += RP_B_K ? 1 : RP_VJ) {                                        \
            if (RP_B_K) {                                                                                              \
                const rp_f32x4 part = rp_ld_v4_f32(&tb[RP_COLUMN(j) * RP_B_ROW + (k)]);                                \
                v[j][0] = part.x, v[j][1] = part.y, v[j][2] = part.z, v[j][3] = part.w;                                \
            } else {                                                                                                   \
                _Pragma("unroll") for (int e = 0; e < 4; e++) {                                                        \
                    const rp_column_part part = *(const rp_column_part *)&tb[((k) + e) * RP_B_ROW + RP_COLUMN(j)];     \
                    _Pragma("unroll") for (int x = 0; x < RP_VJ; x++) v[(j + x) % RP_TJ][e] = part.e[x];               \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("unroll") for (int e = 0; e < 4; e++) _Pragma("unroll") for (int i = 0; i < RP_TI; i++)                \
            _Pragma("unroll") for (int j = 0; j < RP_TJ; j++) acc[i][j] = RP_MULADD(u[i][e], v[j][e], acc[i][j]);      \
    }
#endif
    int slot = 0;
#if RP_MATH == 0 /* the first turns of the loop below */
#elif RP_ASYNC
    _Pragma("unroll 1") for (int n = 0; n < RP_STAGES - 1 - RP_GROUPED; n++) {
        const RP_INDEX at = first + n * RP_TK;
        if (at < end) {
            if (!early) RP_READ_A(n, at)
            RP_READ_B(n, at)
        }
        if (!early) rp_cp_async_commit();
    }
    if (early) {
        rp_grid_wait();
        _Pragma("unroll 1") for (int n = 0; n < RP_STAGES - 1 - RP_GROUPED; n++) {
            const RP_INDEX at = first + n * RP_TK;
            if (at < end) RP_READ_A(n, at)
            rp_cp_async_commit();
        }
    }
#else
    if (first < end) {
        RP_READ_A(0, first)
        RP_READ_B(0, first)
    }
    rp_cp_async_commit();
    if (first < end) {
        RP_PUT_A(0)
        RP_PUT_B(0)
    }
    rp_cp_async_wait(0);
    rp_barrier();
#endif
#if RP_BIAS && RP_PACKED
    __shared__ __align__(16) float bias_of[RP_TN];
    for (int j = t; j < RP_TN; j += RP_THREADS)
        bias_of[j] = n0 + j < N ? RP_LOAD(((const RP_T *)address[3])[(n0 + j) * (RP_INDEX)p.w[13]]) : 0;
#endif
#if RP_GROUPED
    _Pragma("unroll 1") for (RP_INDEX k0 = first; k0 < end; k0 += RP_TK) {
        /* The tile is there. Behind the barrier all have multiplied the last but one, in whose place the next one to read goes. */
        rp_cp_async_wait(RP_STAGES - 3);
        RP_GROUP_SEES();
        rp_barrier();
        RP_GROUP_PRODUCT(acc, RP_GROUP_M, ga + (rp_u64)(slot * (RP_A_SIZE / 8)), gb + (rp_u64)(slot * (RP_B_SIZE / 8)),
                         RP_A_ALONG, RP_B_ALONG, k0 > first)
        const RP_INDEX ahead = k0 + (RP_STAGES - 2) * RP_TK;
        const int into = slot < 2 ? slot + RP_STAGES - 2 : slot - 2;
        if (ahead < end) {
            RP_READ_A(into, ahead)
            RP_READ_B(into, ahead)
        }
        rp_cp_async_commit();
        RP_GROUP_WAIT(1);
        slot = slot == RP_STAGES - 1 ? 0 : slot + 1;
    }
    RP_GROUP_END(acc, RP_GROUP_M)
#if RP_SPLIT > 1
    if (first >= end) {
        _Pragma("unroll") for (int i = 0; i < RP_GROUP_M; i++) _Pragma("unroll") for (int v = 0; v < RP_GROUP_D; v++)
            acc[i][v] = 0;
    }
#endif
#elif RP_ASYNC && RP_MMA
    /* Fragments of a step are loaded while the step before is multiplied, across tiles too. */
    rp_cp_async_wait(RP_STAGES - 2);
    rp_barrier();
    if (first < end) RP_FRAGMENTS(0, 0, 0)
    for (RP_INDEX k0 = first; k0 < end; k0 += RP_TK) {
        const int into = slot == 0 ? RP_STAGES - 1 : slot - 1, next = slot == RP_STAGES - 1 ? 0 : slot + 1;
        _Pragma("unroll") for (int step = 0; step < RP_STEPS; step++) {
            if (step == RP_STEPS - 1) { /* the next tile is there, and nobody reads this one any more */
                rp_cp_async_wait(RP_STAGES - 2);
                rp_barrier();
            }
            RP_FRAGMENTS((step + 1) % 2, step == RP_STEPS - 1 ? next : slot, (step + 1) % RP_STEPS)
            if (step == 0) {
                const RP_INDEX ahead = k0 + (RP_STAGES - 1) * RP_TK;
                if (ahead < end) {
                    RP_READ_A(into, ahead)
                    RP_READ_B(into, ahead)
                }
                rp_cp_async_commit();
            }
            RP_MULTIPLY(step % 2)
        }
        slot = next;
    }
#else
#if RP_MATH == 0
    /* The first turns read alone, `ahead` steps, and multiply nothing: all code is here once, since a kernel of a few us spends much of them
     * in fetching instructions for the first time. Tiles of b that may be read early have turns of their own. */
    enum { RP_AHEAD = RP_STAGES - 1 };
    const int turns = (int)((end - first + RP_TK - 1) / RP_TK);
    _Pragma("unroll 1") for (int turn = early ? -2 * RP_AHEAD : -RP_AHEAD; turn < turns; turn++) {
        const int alone = turn < -RP_AHEAD, next = turn + (alone ? 2 : 1) * RP_AHEAD;
        const RP_INDEX k0 = first + (RP_INDEX)turn * RP_TK, at = first + (RP_INDEX)next * RP_TK;
        if (turn == -RP_AHEAD && early) rp_grid_wait();
        if (turn >= 0) {
            rp_cp_async_wait(RP_STAGES - 2);
            rp_barrier();
        }
        if (next < turns) {
            const int into = next % RP_STAGES;
            if (!alone) RP_READ_A(into, at)
            if (!early || alone || turn >= 0) RP_READ_B(into, at)
        }
        if (!alone) rp_cp_async_commit();
        if (turn < 0) continue;
#else
    for (RP_INDEX k0 = first; k0 < end; k0 += RP_TK) {
        const int more = k0 + RP_TK < end;
        if (more) {
            RP_READ_A(slot ^ 1, k0 + RP_TK)
            RP_READ_B(slot ^ 1, k0 + RP_TK)
        }
        rp_cp_async_commit();
#endif
#if RP_MMA
        _Pragma("unroll") for (int step = 0; step < RP_STEPS; step++) {
            RP_FRAGMENTS(0, slot, step)
            RP_MULTIPLY(0)
        }
#else
        const RP_T *ta = sa + slot * RP_A_SIZE, *tb = sb + slot * RP_B_SIZE;
        if (end - k0 >= RP_TK) {
            _Pragma("unroll") for (int k = 0; k < RP_PART; k += 4) RP_FMA_STEP(slice * RP_PART + k)
        } else { /* no added zeros: -0.0 and NaN stay what they are */
            const int left = (int)(end - k0), last = left < (slice + 1) * RP_PART ? left : (slice + 1) * RP_PART;
            _Pragma("unroll 1") for (int k = slice * RP_PART; k < last; k++) {
                _Pragma("unroll") for (int i = 0; i < RP_TI; i++) _Pragma("unroll") for (int j = 0; j < RP_TJ; j++)
                    acc[i][j] =
                        RP_MULADD(ta[RP_A_K ? RP_ROW(i) * RP_A_ROW + k : k * RP_A_ROW + RP_ROW(i)],
                                  tb[RP_B_K ? RP_COLUMN(j) * RP_B_ROW + k : k * RP_B_ROW + RP_COLUMN(j)], acc[i][j]);
            }
        }
#if RP_LONG
        const RP_INDEX stop = k0 + RP_TK < end ? k0 + RP_TK : end, done = stop - first;
        if (done % (RP_BLOCK * RP_SLICES) == 0 || stop == end) {
            const int begins = (done - 1) / (RP_BLOCK * RP_SLICES) % RP_GROUP == 0;
#if RP_LONGER
            const int whole = done % (RP_BLOCK * RP_SLICES * RP_GROUP) == 0 || stop == end,
                      alone = done <= RP_BLOCK * RP_SLICES * RP_GROUP;
#endif
            _Pragma("unroll") for (int i = 0; i < RP_TI; i++) _Pragma("unroll") for (int j = 0; j < RP_TJ; j++) {
                blocks[i][j] = begins ? acc[i][j] : blocks[i][j] + acc[i][j];
#if RP_LONGER
                if (whole) groups[i][j] = alone ? blocks[i][j] : groups[i][j] + blocks[i][j];
#endif
                acc[i][j] = 0;
            }
        }
#endif
#endif
#if RP_MATH == 0
        slot = slot == RP_STAGES - 1 ? 0 : slot + 1;
#else
        if (more) {
            RP_PUT_A(slot ^ 1)
            RP_PUT_B(slot ^ 1)
        }
        rp_cp_async_wait(0);
        rp_barrier();
        slot ^= 1;
#endif
    }
#endif
#if RP_ASYNC
    rp_cp_async_wait(0);
    rp_barrier();
#endif
#if RP_BIAS && !RP_PACKED
    RP_SUM bias[RP_OUT_V]; /* under way while sums go through shared memory */
    _Pragma("unroll") for (int v = 0; v < RP_OUT_V; v++) {
        const RP_INDEX n = n0 + t % RP_OUT_ACROSS * RP_OUT_V + v;
        bias[v] = RP_OUT_KEEPS && n < N ? RP_LOAD(((const RP_T *)address[3])[n * (RP_INDEX)p.w[13]]) : 0;
    }
#endif
#if RP_PACKED
    /* Results go through shared memory as they are stored, and a warp stores what it has computed: 16 bytes at once, nobody waits for another. */
    RP_T *so = (RP_T *)room;
    const int column = wn * RP_PART_N;
    _Pragma("unroll") for (int i = 0; i < RP_PARTS; i++) _Pragma("unroll") for (int j = 0; j < RP_PART_N / 8; j++) {
        const int at = column + j * 8 + lane % 4 * 2;
#if RP_BIAS
        const rp_f32x2 bias = rp_ld_v2_f32(&bias_of[at]);
#endif
        _Pragma("unroll") for (int h = 0; h < 2; h++) {
            float x = RP_PART_SUM(i, j, 2 * h), y = RP_PART_SUM(i, j, 2 * h + 1);
#if RP_BIAS
            x = x + bias.x, y = y + bias.y;
#endif
            *(rp_u32 *)(void *)&so[(RP_PART_ROW(i) + h * 8 + lane / 4) * RP_OUT_ROW + at] = RP_PACK(x, y);
        }
    }
    rp_warp_sync();
    _Pragma("unroll 4") for (int e = lane; e < RP_PARTS * 16 * (RP_PART_N / 8); e += 32) {
        const int i = e / (RP_PART_N / 8), r = RP_PART_ROW(i / 16) + i % 16, j = column + e % (RP_PART_N / 8) * 8;
        const RP_INDEX m = m0 + r, n = n0 + j;
        if (m < M && n < N)
            rp_st_v4_u32((rp_u32 *)(void *)&out[m * (RP_INDEX)p.w[7] + n],
                         rp_ld_v4_u32((const rp_u32 *)(const void *)&so[r * RP_OUT_ROW + j]));
    }
#else
    /* The tile of results goes through shared memory, so that neighbours in a warp store neighbours; blocks of a cluster share out its
     * rows. */
#if RP_GROUPED
    _Pragma("unroll") for (int i = 0; i < RP_GROUP_M; i++) _Pragma("unroll") for (int v = 0; v < RP_GROUP_D; v += 2) {
        const int r = (wm * RP_GROUP_M + i) * 64 + t / 32 % 4 * 16 + lane / 4 + v / 2 % 2 * 8;
        const rp_sum_pair two = {acc[i][v], acc[i][v + 1]};
        *(rp_sum_pair *)&st[r * RP_OUT_ROW + wn * RP_GROUP_N + v / 4 * 8 + lane % 4 * 2] = two;
    }
#elif RP_MMA
    RP_EACH _Pragma("unroll") for (int v = 0; v < 4; v += 2) {
        const rp_sum_pair two = {acc[i][j][v], acc[i][j][v + 1]};
        *(rp_sum_pair *)&st[(wm * (RP_TM / RP_WM) + i * 16 + lane / 4 + v / 2 * 8) * RP_OUT_ROW + wn * (RP_TN / RP_WN) +
                            j * 8 + lane % 4 * 2] = two;
    }
#else
    _Pragma("unroll") for (int i = 0; i < RP_TI; i++) _Pragma("unroll") for (int j = 0; j < RP_TJ; j++)
        st[(slice * RP_TM + RP_ROW(i)) * RP_OUT_ROW + RP_COLUMN(j)] =
#if RP_LONGER
            groups[i][j];
#elif RP_LONG
            blocks[i][j];
#else
            acc[i][j];
#endif
#if RP_SLICES > 1
    rp_barrier();
    rp_add_slices(st, RP_OUT_ROW, t, m0, M);
#endif
#endif
#if RP_SPLIT > 1
    rp_cluster_barrier(RP_SPLIT);
#else
    rp_barrier();
#endif
#define RP_OUT_PARTS (RP_TM / RP_SPLIT * RP_OUT_ACROSS)
/* Where part `e` of the tile's results lies. */
#define RP_OUT_PLACE(e)                                                                                                \
    const int r = (e) / RP_OUT_ACROSS * RP_SPLIT + rank, j = (RP_OUT_KEEPS ? t : (e)) % RP_OUT_ACROSS * RP_OUT_V;      \
    const RP_INDEX m = m0 + r;
/* RP_SUM_V sums at `at` of the block's rows, of all shares. */
#if RP_SPLIT > 1 && RP_SUM_V == 4 && RP_MATH != 4
#define RP_OUT_SUMS(sum, at)                                                                                           \
    _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) {                                                 \
        const rp_f32x4 four = rp_cluster_read_v4_f32(at, other, RP_SPLIT);                                             \
        (sum)[0] = other ? (sum)[0] + four.x : four.x, (sum)[1] = other ? (sum)[1] + four.y : four.y;                  \
        (sum)[2] = other ? (sum)[2] + four.z : four.z, (sum)[3] = other ? (sum)[3] + four.w : four.w;                  \
    }
#elif RP_SPLIT > 1
#define RP_OUT_SUMS(sum, at)                                                                                           \
    _Pragma("unroll") for (int x_ = 0; x_ < RP_SUM_V; x_++) {                                                          \
        (sum)[x_] = RP_CLUSTER_READ((at) + x_, 0, RP_SPLIT);                                                           \
        _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) {                                             \
            (sum)[x_] = (sum)[x_] + RP_CLUSTER_READ((at) + x_, other, RP_SPLIT);                                       \
        }                                                                                                              \
    }
#else
#define RP_OUT_SUMS(sum, at)                                                                                           \
    {                                                                                                                  \
        const rp_sum_part some = *(const rp_sum_part *)(at);                                                           \
        _Pragma("unroll") for (int x_ = 0; x_ < RP_SUM_V; x_++) { (sum)[x_] = some.e[x_]; }                            \
    }
#endif
#if RP_EIGHT
    _Pragma("unroll 1") for (int e0 = t; e0 < RP_OUT_PARTS; e0 += RP_HELD * RP_THREADS) {
        rp_held several[RP_HELD]; /* what follows reads of memory: all before the first store */
        _Pragma("unroll") for (int h = 0; h < RP_HELD; h++) {
            const int e = e0 + h * RP_THREADS;
            RP_OUT_PLACE(e)
            const RP_INDEX n = n0 + j;
            rp_held *const held = &several[h];
            if (e >= RP_OUT_PARTS || m >= M || n >= N) continue;
            (void)held;
            RP_WIDE_HELD
        }
        _Pragma("unroll") for (int h = 0; h < RP_HELD; h++) {
            const int e = e0 + h * RP_THREADS;
            RP_OUT_PLACE(e)
            const RP_INDEX n = n0 + j;
            const rp_held *const held = &several[h];
            RP_SUM sum[RP_OUT_V];
            if (e >= RP_OUT_PARTS || m >= M || n >= N) continue;
            (void)held;
            _Pragma("unroll") for (int v = 0; v < RP_OUT_V; v += RP_SUM_V)
                RP_OUT_SUMS(sum + v, &st[r * RP_OUT_ROW + j + v]);
            RP_WIDE_REST
        }
    }
#else
    _Pragma("unroll 4") for (int i = 0; i < (RP_OUT_PARTS + RP_THREADS - 1) / RP_THREADS; i++) {
        const int e = i * RP_THREADS + t;
        RP_OUT_PLACE(e)
        if (e >= RP_OUT_PARTS || m >= M || n0 + j >= N) continue;
#if !RP_REST
        rp_out_part part;
#endif
        RP_SUM sums[RP_OUT_V];
        _Pragma("unroll") for (int v = 0; v < RP_OUT_V; v += RP_SUM_V)
            RP_OUT_SUMS(sums + v, &st[r * RP_OUT_ROW + j + v]);
        _Pragma("unroll") for (int v = 0; v < RP_OUT_V; v++) {
            const RP_INDEX n = n0 + j + v;
            RP_SUM x = sums[v];
#if RP_BIAS
            x = x + (RP_OUT_KEEPS ? bias[v] : RP_LOAD(((const RP_T *)address[3])[n * (RP_INDEX)p.w[13]]));
#endif
#if RP_REST
            (void)n;
            RP_FOLLOW
#else
            (void)n;
            part.e[v] = RP_STORE(x);
#endif
        }
#if !RP_REST
        *(rp_out_part *)&out[m * (RP_INDEX)p.w[7] + (n0 + j) * (RP_INDEX)p.w[8]] = part;
#endif
    }
#endif
#if RP_SPLIT > 1
    rp_cluster_done(RP_SPLIT); /* others have read this block's */
#endif
#endif
}
