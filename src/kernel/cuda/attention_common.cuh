/* What the texts of attention share: words (attention.c, W_ there and here), masks, random numbers of weights. */
typedef struct {
    rp_u64 w[RP_N_WORDS];
} RP_WORDS;
#define RP_STRIDE(operand, dim) ((rp_i64)p.w[W_STRIDES + 4 * (operand) + (dim)])
#define RP_BASE(T, operand, b, h) ((T *)p.w[operand] + (b)*RP_STRIDE(operand, 0) + (h)*RP_STRIDE(operand, 1))
#define RP_INF rp_bits_f32(0x7f800000u)
#define RP_LOG2E ((RP_ACC)1.4426950408889634)
#define RP_LN2 ((RP_ACC)0.6931471805599453)

#if RP_DROPOUT
/* 1 / keep where a weight stays, 0 where it does not. */
RP_FN RP_ACC rp_kept(const RP_WORDS *w, rp_u64 element) {
    const rp_u64 *place = (const rp_u64 *)w->w[W_PLACE];
    const double stays = rp_bits_f64(w->w[W_KEEP]);
    rp_u32 x[4];
    rp_philox(place[0], place[1] + element / 4, x);
    return (float)(rp_pick(x, (int)(element & 3)) >> 8) * rp_bits_f32(0x33800000u) < (float)stays ? (RP_ACC)(1 / stays)
                                                                                                  : 0;
}
/* Of two neighbours: mostly words of one counter. */
RP_FN void rp_kept2(const RP_WORDS *w, rp_u64 element, float *kept) {
    const rp_u64 *place = (const rp_u64 *)w->w[W_PLACE];
    const double stays = rp_bits_f64(w->w[W_KEEP]);
    const int k = (int)(element & 3);
    rp_u32 x[4], two[2];
    rp_philox(place[0], place[1] + element / 4, x);
    two[0] = rp_pick(x, k), two[1] = rp_pick(x, k + 1);
    if (k == 3) {
        rp_philox(place[0], place[1] + element / 4 + 1, x);
        two[1] = x[0];
    }
    _Pragma("unroll") for (int c = 0; c < 2; c++) kept[c] =
        (float)(two[c] >> 8) * rp_bits_f32(0x33800000u) < (float)stays ? (float)(1 / stays) : 0;
}
#endif
#define RP_MASK_BYTES (RP_MASK == 1 ? 1 : RP_MASK == 2 ? 4 : (int)sizeof(RP_T))

/* What the mask adds to the score of query i and key j, to the base 2. */
RP_FN RP_ACC rp_masked(const RP_WORDS *w, const char *mask, int i, int j) {
#if RP_MASK
    const rp_i64 at = i * (rp_i64)w->w[W_STRIDES + 4 * W_MASK + 2] + j * (rp_i64)w->w[W_STRIDES + 4 * W_MASK + 3];
#endif
#if RP_MASK == 1
    return ((const rp_u8 *)mask)[at] ? 0 : -RP_INF;
#elif RP_MASK == 2
    return (RP_ACC)((const float *)mask)[at] * RP_LOG2E;
#elif RP_MASK == 3
    return RP_LOAD(((const RP_T *)mask)[at]) * RP_LOG2E;
#else
    (void)w, (void)mask, (void)i, (void)j;
    return 0;
#endif
}
RP_FN int rp_sees(int i, int j, int keys) { return j < keys && !(RP_CAUSAL && j > i); }
/* The score of query i and key j, of which the product is s. */
RP_FN RP_ACC rp_score(const RP_WORDS *w, RP_ACC s, int i, int j, int rows, int keys, const char *mask) {
    if (!rp_sees(i, j, keys)) return -RP_INF;
    return RP_MASK && i < rows ? s + rp_masked(w, mask, i, j) : s;
}
/* What gradients need of a row of queries: the logarithm to the base 2 of its sum, and what all its slopes are less by. A row outside, and
 * one that sees nothing, has weights of 0. */
RP_FN void rp_row_sums(const RP_WORDS *w, rp_i64 batch, int head, int row, int rows, RP_ACC *less, RP_ACC *minus) {
#define p (*w)
    *less = RP_INF, *minus = 0;
    if (row >= rows) return;
    *less = RP_BASE(const RP_ACC, W_LSE, batch, head)[row * RP_STRIDE(W_LSE, 2)] * RP_LOG2E;
    *minus = RP_BASE(const RP_ACC, W_DELTA, batch, head)[row * RP_STRIDE(W_DELTA, 2)];
    if (*less == -RP_INF) *less = RP_INF;
#undef p
}

/* The head and the share of its rows or keys, of `blocks`, of block x of `all`. Where shares differ in work the longest of some heads come
 * first, those of as many heads as the second level cache holds. */
RP_FN int rp_turn(const RP_WORDS *w, int x, int blocks, int all, int *number) {
#if RP_CAUSAL
    const int heads = (int)w->w[W_SECTION], first = x / (heads * blocks) * heads, rest = all / blocks - first,
              n = rest < heads ? rest : heads, at = x - first * blocks;
    *number = first + at % n;
    return at / n;
#else
    (void)w, (void)all;
    *number = x / blocks;
    return x % blocks;
#endif
}
