/* The parts that shares of a weight gradient left in memory (RP_PARTS of conv.cuh and conv_mma.cuh), added up in rising order: by a thread an
 * element, or, of few elements, by RP_GROUPS threads that each have neighbouring shares, whose sums are added up in rising order again. A part is a matrix: a row an output channel; columns channel and window, of which RP_CHANNELS says that the channel runs fastest.
 * Words: parts, dw, shares; O, channels of a group, window (3); strides of dw (o, c, window: 3).
 * Macros of conv_shares.c: RP_NAME, RP_T, RP_ACC, RP_STORE, RP_CHANNELS, RP_GROUPS. */
/* The next shares, n reads under way together. */
#define RP_SHARES(n)                                                                                                   \
    for (; s + (n) <= end; s += (n), from += (n)*all) {                                                                \
        RP_ACC some[n];                                                                                                \
        _Pragma("unroll") for (int k = 0; k < (n); k++) some[k] = from[k * all];                                       \
        _Pragma("unroll") for (int k = 0; k < (n); k++) sum = sum + some[k];                                           \
    }
typedef struct {
    rp_u64 w[13];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    const rp_i64 shares = (rp_i64)p.w[2], rows = (rp_i64)p.w[3], channels = (rp_i64)p.w[4];
    const rp_i64 size[3] = {(rp_i64)p.w[5], (rp_i64)p.w[6], (rp_i64)p.w[7]}, taps = size[0] * size[1] * size[2];
    enum { EACH = 256 / RP_GROUPS }; /* elements of a block */
    const int lane = (int)threadIdx.x % EACH, group = (int)threadIdx.x / EACH;
    const rp_i64 columns = channels * taps, all = rows * columns, i = (rp_i64)blockIdx.x * EACH + lane;
    rp_launch_dependents();
    rp_grid_wait();
    RP_ACC sum = 0;
    if (i < all) {
        rp_i64 s = shares * group / RP_GROUPS;
        const rp_i64 end = shares * (group + 1) / RP_GROUPS;
        const RP_ACC *from = (const RP_ACC *)p.w[0] + i + s * all;
        sum = from[0];
        s++;
        from += all;
        RP_SHARES(16)
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
    const rp_i64 n = i % columns, c = RP_CHANNELS ? n % channels : n / taps, r = RP_CHANNELS ? n / channels : n % taps;
    ((RP_T *)p.w[1])[i / columns * (rp_i64)p.w[8] + c * (rp_i64)p.w[9] + r / (size[1] * size[2]) * (rp_i64)p.w[10] +
                     r / size[2] % size[1] * (rp_i64)p.w[11] + r % size[2] * (rp_i64)p.w[12]] = RP_STORE(sum);
}
