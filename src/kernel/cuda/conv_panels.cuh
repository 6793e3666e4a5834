/* Tiles of f32 as bulk copies bring them with channels side by side (conv_bulk_weight.cuh): lines of 32 channels of an operand, RP_TK of them
 * along the inner index, are a panel, whose pieces of 16 bytes are swizzled; panels lie beside each other. Warps multiply by mma: rows of a
 * fragment are four of one piece and four of the piece 64 bytes further, so that what a warp reads at once lies in different banks. Put behind the
 * macros of a tile, before conv_leave.cuh, which asks where rows and columns of a fragment are. */
#define RP_PANEL 32
#define RP_PANEL_SIZE (RP_PANEL * RP_TK)
#define RP_A_SIZE (RP_TM * RP_TK)
#define RP_B_SIZE (RP_TN * RP_TK)
#define RP_WN (8 / RP_WM)
#define RP_FM (RP_TM / RP_WM / 16) /* fragments of a warp */
#define RP_FN_ (RP_TN / RP_WN / 8)
/* Row (column) i of eight of piece q in a panel, and where element k of it is. */
#define RP_ROW_IN_PANEL(q, i) ((q)*4 + (i) % 4 + (i) / 4 * 16)
#define RP_IN_PANEL(r, k) ((k)*RP_PANEL + (((r) / 4) ^ (k) % 8) * 4 + (r) % 4)
#define RP_PASSES 1
#define RP_PASS_ROWS RP_TM
#define RP_ROW_OF(pass, r) (r)
#define RP_FRAGMENT_ROW(i, wm, r)                                                                                      \
    ((wm) * (RP_TM / RP_WM) + (i) / 2 * RP_PANEL + RP_ROW_IN_PANEL((i) % 2 * 2 + (r) / 8, (r) % 8))
#define RP_COLUMN_AT(j, i) ((j) / 4 * RP_PANEL + RP_ROW_IN_PANEL((j) % 4, i))

/* A warp's sums with what a step adds to them. */
RP_FN void rp_panels_multiply(float (*acc)[RP_FN_][4], const rp_u32 *a, const rp_u32 *b, int warp, int lane) {
    const int i8 = lane / 4, k4 = lane % 4;
    const rp_u32 *const ta = a + warp / RP_WN * (RP_FM / 2 * RP_PANEL_SIZE), *const tb =
                                                                                 b + warp % RP_WN *
                                                                                         (RP_FN_ / 4 * RP_PANEL_SIZE);
    _Pragma("unroll") for (int k = 0; k < RP_TK; k += 8) {
        rp_u32 fa[RP_FM][4], fb[RP_FN_][2];
        _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int v = 0; v < 4; v++) fa[i][v] =
            ta[i / 2 * RP_PANEL_SIZE + RP_IN_PANEL(RP_ROW_IN_PANEL(i % 2 * 2 + v % 2, i8), k + k4 + v / 2 * 4)];
        _Pragma("unroll") for (int j = 0; j < RP_FN_; j++) _Pragma("unroll") for (int v = 0; v < 2; v++) fb[j][v] =
            tb[j / 4 * RP_PANEL_SIZE + RP_IN_PANEL(RP_ROW_IN_PANEL(j % 4, i8), k + k4 + v * 4)];
        _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
            RP_MMA_STEP(acc[i][j], fa[i], fb[j]);
    }
}
