/* What the texts of tiled convolutions (conv.cuh, conv_mma.cuh) share: words, shares of the inner index, and where a sum goes. conv.c puts it
 * behind the macros and before either. The line RP_FOLLOW is replaced as in the texts themselves. */
#define RP_S RP_SPATIAL
#define RP_W_SPACE 8
#define RP_W_STRIDES (8 + 6 * RP_S)
typedef struct {
    rp_u64 w[8 + 6 * RP_S + 3 * (2 + RP_S) + 1 + RP_REST];
} RP_WORDS;
#define RP_SIZE(field, d) ((RP_INDEX)p.w[RP_W_SPACE + 6 * (d) + (field)])
#define RP_STRIDE(tensor, d) ((RP_INDEX)p.w[RP_W_STRIDES + (tensor) * (2 + RP_S) + (d)])
enum { RP_IN, RP_OUT, RP_KERNEL, RP_STEP, RP_PAD, RP_DIL };
/* The operand with windows, and the bounds of its places. */
#define RP_WINDOWED (RP_KIND == 1 ? 0 : 1)
#define RP_BOUND (RP_KIND == 1 ? RP_OUT : RP_IN)

typedef struct {
    RP_INDEX n, at[RP_S];
} rp_result;

/* Which share of the inner index a block takes, and the number of its tile among those of its rows: the blocks of a cluster take one tile, or, of
 * RP_PARTS, as many as the last word says leave their sums in memory, as parts that another kernel adds up. */
#if RP_PARTS
#define RP_SHARE_OF_BLOCK                                                                                              \
    const int shares = (int)p.w[RP_W_STRIDES + 3 * (2 + RP_S)], tiles_of_share = (int)(gridDim.x / (rp_u32)shares),    \
              rank = (int)blockIdx.x / tiles_of_share;                                                                 \
    RP_INDEX number = (RP_INDEX)blockIdx.x % tiles_of_share;
#else
#define RP_SHARE_OF_BLOCK                                                                                              \
    const int shares = RP_SPLIT, rank = (int)(blockIdx.x % RP_SPLIT);                                                  \
    RP_INDEX number = (RP_INDEX)(blockIdx.x / RP_SPLIT);
#endif
#if RP_S == 1
#define RP_TAPS_OF(p) RP_SIZE(RP_KERNEL, 0)
#elif RP_S == 2
#define RP_TAPS_OF(p) (RP_SIZE(RP_KERNEL, 0) * RP_SIZE(RP_KERNEL, 1))
#else
#define RP_TAPS_OF(p) (RP_SIZE(RP_KERNEL, 0) * RP_SIZE(RP_KERNEL, 1) * RP_SIZE(RP_KERNEL, 2))
#endif

/* On tensor cores the inner index of kinds 0 and 1 runs through the taps with so many channels innermost: 64 where they come in such chunks,
 * whose places the taps read again and again, else all. */
#define RP_CHUNK_OF(channels) ((channels) % 64 == 0 ? 64 : (channels))

/* Of a column of the result: where it lies, if sums are only stored, else its number and place. */
RP_FN RP_INDEX rp_column(const RP_WORDS *q, RP_INDEX n, const RP_INDEX *at) {
#if RP_REST || RP_PARTS
    (void)q, (void)at;
    return n;
#else
    const RP_WORDS p = *q;
    RP_INDEX o = n * RP_STRIDE(RP_KIND, RP_KIND == 2 ? 1 : 0);
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) o += at[d] * RP_STRIDE(RP_KIND, 2 + d);
    return o;
#endif
}

/* What is done with the sum of row m and a column: n is what rp_column gave. */
RP_FN void rp_finish(const RP_WORDS *q, RP_ACC x, RP_INDEX g, RP_INDEX m, RP_INDEX n, const RP_INDEX *at, RP_INDEX cg,
                     RP_INDEX og) {
    const RP_WORDS p = *q;
    (void)cg, (void)og, (void)at;
#if RP_REST
    RP_FOLLOW
#elif RP_PARTS /* n: column of the share's part, counted from the first share's */
    ((RP_ACC *)p.w[3])[n + (g * og + m) * (cg * RP_TAPS_OF(p))] = x;
#else
    const RP_INDEX o = n + (g * (RP_KIND == 1 ? cg : og) + m) * RP_STRIDE(RP_KIND, RP_KIND == 2 ? 0 : 1);
    RP_T *to = (RP_T *)p.w[RP_KIND];
#if RP_BIAS
    to[o] = RP_STORE(x + RP_LOAD(((const RP_T *)p.w[3])[(g * og + m) * (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]));
#else
    to[o] = RP_STORE(x);
#endif
#endif
}
