/* The parts that shares of a weight gradient left in memory (RP_PARTS of conv.cuh, conv_mma.cuh and conv_bulk_weight.cuh), added up in rising order: by a thread an
 * element, or four neighbours (RP_FOUR), or, of few elements, by RP_GROUPS threads that each have neighbouring shares, whose sums are added up in
 * rising order again. A part is a matrix: a row an output channel; columns channel and window, of which RP_CHANNELS says that the channel runs
 * fastest. Words: parts, dw, shares; O, channels of a group, window (3); strides of dw (o, c, window: 3).
 * Macros of conv_shares.c: RP_NAME, RP_T, RP_ACC, RP_STORE, RP_INDEX, of elements of all parts, RP_CHANNELS, RP_GROUPS, RP_FOUR: channels lie side by
 * side in dw, too, in fours that are aligned. */
#if RP_FOUR
typedef rp_f32x4 rp_some;
RP_FN rp_some rp_plus(rp_some a, rp_some b) {
    a.x = a.x + b.x, a.y = a.y + b.y, a.z = a.z + b.z, a.w = a.w + b.w;
    return a;
}
#else
typedef RP_ACC rp_some;
RP_FN rp_some rp_plus(rp_some a, rp_some b) { return a + b; }
#endif
/* The next shares, n reads under way together. */
#define RP_SHARES(n)                                                                                                   \
    for (; s + (n) <= end; s += (n), from += (n)*all) {                                                                \
        rp_some some[n];                                                                                               \
        _Pragma("unroll") for (int k = 0; k < (n); k++) some[k] = *(const rp_some *)(from + k * all);                  \
        _Pragma("unroll") for (int k = 0; k < (n); k++) sum = rp_plus(sum, some[k]);                                   \
    }
typedef struct {
    rp_u64 w[13];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    const RP_INDEX shares = (RP_INDEX)p.w[2], rows = (RP_INDEX)p.w[3], channels = (RP_INDEX)p.w[4];
    const RP_INDEX size[3] = {(RP_INDEX)p.w[5], (RP_INDEX)p.w[6], (RP_INDEX)p.w[7]}, taps = size[0] * size[1] * size[2];
    enum { EACH = 256 / RP_GROUPS, ONCE = RP_FOUR ? 4 : 1 }; /* threads of a block, elements of one */
    const int lane = (int)threadIdx.x % EACH, group = (int)threadIdx.x / EACH;
    const RP_INDEX columns = channels * taps, all = rows * columns, i = ((RP_INDEX)blockIdx.x * EACH + lane) * ONCE;
    rp_launch_dependents();
    /* where it is stored, while the parts are on their way */
    const RP_INDEX n = i % columns, c = RP_CHANNELS ? n % channels : n / taps,
                   r = RP_CHANNELS ? n / channels : n % taps;
    RP_T *const to =
        (RP_T *)p.w[1] + ((rp_i64)(i / columns) * (rp_i64)p.w[8] + (rp_i64)c * (rp_i64)p.w[9] +
                          (rp_i64)(r / (size[1] * size[2])) * (rp_i64)p.w[10] +
                          (rp_i64)(r / size[2] % size[1]) * (rp_i64)p.w[11] + (rp_i64)(r % size[2]) * (rp_i64)p.w[12]);
    rp_grid_wait();
    rp_some sum = {0};
    if (i < all) {
        RP_INDEX s = shares * group / RP_GROUPS;
        const RP_INDEX end = shares * (group + 1) / RP_GROUPS;
        const RP_ACC *from = (const RP_ACC *)p.w[0] + i + s * all;
        sum = *(const rp_some *)from;
        s++;
        from += all;
#if RP_FOUR
        RP_SHARES(8)
#else
        RP_SHARES(16)
#endif
        RP_SHARES(4)
        RP_SHARES(1)
    }
#if RP_GROUPS > 1
    __shared__ RP_ACC sums[256];
    sums[threadIdx.x] = sum;
    rp_barrier();
    if (group) return;
    _Pragma("unroll") for (int k = 1; k < RP_GROUPS; k++) sum = sum + sums[k * EACH + lane];
#endif
    if (i >= all) return;
#if RP_FOUR && RP_FOUR == 4
    rp_st_v4_f32((float *)to, sum);
#elif RP_FOUR
    rp_u32x2 two;
    two.x = RP_STORE(sum.x) | (rp_u32)RP_STORE(sum.y) << 16;
    two.y = RP_STORE(sum.z) | (rp_u32)RP_STORE(sum.w) << 16;
    rp_st_v2_u32((rp_u32 *)to, two);
#else
    *to = RP_STORE(sum);
#endif
}
