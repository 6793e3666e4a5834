/* Tiles of conv.cuh and conv_mma.cuh whose warps multiply by mma: put behind mma.cuh, whose RP_C elements are 16 bytes, and behind the macros of
 * conv_common.cuh, before either. RP_A_AT and RP_B_AT: where an element of a tile lies, in pieces of 16 bytes that lie in different banks, along the
 * inner index as the operand was read. RP_WM warps are above each other; a pass of results is 16 rows of each. A step of a sum is RP_MMA_K
 * elements of the inner index; f32 is rounded to tf32 on its way to the instruction. */
#define RP_A_ROW (RP_A_ALONG ? RP_TK + RP_C : RP_TM + 8)
#define RP_B_ROW (RP_B_ALONG ? RP_TK + RP_C : RP_TN + 8)
#define RP_A_SIZE ((RP_A_ALONG ? RP_TM : RP_TK) * RP_A_ROW)
#define RP_B_SIZE ((RP_B_ALONG ? RP_TN : RP_TK) * RP_B_ROW)
#define RP_A_AT(m, k) (RP_A_ALONG ? (m)*RP_A_ROW + (k) : (k)*RP_A_ROW + (m))
#define RP_B_AT(n, k) (RP_B_ALONG ? (n)*RP_B_ROW + (k) : (k)*RP_B_ROW + (n))
#define RP_WN (RP_THREADS / 32 / RP_WM)
#define RP_FM (RP_TM / RP_WM / 16) /* fragments of a warp */
#define RP_FN_ (RP_TN / RP_WN / 8)
#define RP_MMA_K (2 * RP_C)
#define RP_PASSES RP_FM
#define RP_PASS_ROWS (16 * RP_WM)
#define RP_FRAGMENT_ROW(i, wm, r) ((wm)*16 + (r)) /* in a pass, row r of 16 of fragment i */
#define RP_ROW_OF(pass, r) ((r) / 16 * (RP_TM / RP_WM) + (pass)*16 + (r) % 16)

/* A warp's sums with what a tile adds to them. */
RP_FN void rp_tile_multiply(float (*acc)[RP_FN_][4], const RP_T *ta, const RP_T *tb, int wm, int wn, int lane) {
    _Pragma("unroll") for (int k = 0; k < RP_TK; k += RP_MMA_K) {
        rp_u32 fa[RP_FM][4], fb[RP_FN_ / 2][4];
        _Pragma("unroll") for (int i = 0; i < RP_FM; i++)
            rp_fragment_a(fa[i], ta, wm * (RP_TM / RP_WM) + i * 16, k, lane, RP_A_ALONG, RP_A_ROW);
        _Pragma("unroll") for (int j = 0; j < RP_FN_ / 2; j++)
            rp_fragment_b(fb[j], tb, wn * (RP_TN / RP_WN) + j * 16, k, lane, RP_B_ALONG, RP_B_ROW);
#if RP_TF32
        _Pragma("unroll") for (int i = 0; i < RP_FM; i++) rp_fragment_tf32(fa[i], 4);
        _Pragma("unroll") for (int j = 0; j < RP_FN_ / 2; j++) rp_fragment_tf32(fb[j], 4);
#endif
        _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
            RP_MMA_STEP(acc[i][j], fa[i], &fb[j / 2][j % 2 * 2]);
    }
}
