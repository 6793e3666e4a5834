/* Tiles of conv.cuh and conv_mma.cuh whose warps multiply by mma: put behind the macros of conv_common.cuh, before either. RP_A_AT and RP_B_AT: where
 * an element of a tile lies, in rows of eight that lie in different banks, along the inner index as the operand was read. Eight warps, RP_WM above
 * each other; a pass of results is 16 rows of each. */
#define RP_A_ROW (RP_A_ALONG ? RP_TK + 8 : RP_TM + 8)
#define RP_B_ROW (RP_B_ALONG ? RP_TK + 8 : RP_TN + 8)
#define RP_A_SIZE ((RP_A_ALONG ? RP_TM : RP_TK) * RP_A_ROW)
#define RP_B_SIZE ((RP_B_ALONG ? RP_TN : RP_TK) * RP_B_ROW)
#define RP_A_AT(m, k) (RP_A_ALONG ? (m)*RP_A_ROW + (k) : (k)*RP_A_ROW + (m))
#define RP_B_AT(n, k) (RP_B_ALONG ? (n)*RP_B_ROW + (k) : (k)*RP_B_ROW + (n))
#define RP_WN (8 / RP_WM)
#define RP_FM (RP_TM / RP_WM / 16) /* fragments of a warp */
#define RP_FN_ (RP_TN / RP_WN / 8)
#define RP_PASSES RP_FM
#define RP_PASS_ROWS (16 * RP_WM)
#define RP_ROW_OF(pass, r) ((r) / 16 * (RP_TM / RP_WM) + (pass)*16 + (r) % 16)
