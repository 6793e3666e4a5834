/* The parts that shares of a weight gradient left in memory (RP_PARTS of conv.cuh and conv_mma.cuh), added up in rising order: a thread an
 * element. A part is a matrix: a row an output channel; columns channel and window, of which RP_CHANNELS says that the channel runs fastest.
 * Words: parts, dw, shares; O, channels of a group, window (3); strides of dw (o, c, window: 3).
 * Macros of conv_shares.c: RP_NAME, RP_T, RP_ACC, RP_STORE, RP_CHANNELS. */
/* The next shares, n reads under way together. */
#define RP_SHARES(n)                                                                                                   \
    for (; s + (n) <= shares; s += (n), from += (n)*all) {                                                             \
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
    const rp_i64 columns = channels * taps, all = rows * columns, i = (rp_i64)blockIdx.x * 256 + (rp_i64)threadIdx.x;
    rp_launch_dependents();
    rp_grid_wait();
    if (i >= all) return;
    const RP_ACC *from = (const RP_ACC *)p.w[0] + i;
    RP_ACC sum = from[0];
    rp_i64 s = 1;
    from += all;
    RP_SHARES(16)
    RP_SHARES(4)
    RP_SHARES(1)
    const rp_i64 n = i % columns, c = RP_CHANNELS ? n % channels : n / taps, r = RP_CHANNELS ? n / channels : n % taps;
    ((RP_T *)p.w[1])[i / columns * (rp_i64)p.w[8] + c * (rp_i64)p.w[9] + r / (size[1] * size[2]) * (rp_i64)p.w[10] +
                     r / size[2] % size[1] * (rp_i64)p.w[11] + r % size[2] * (rp_i64)p.w[12]] = RP_STORE(sum);
}
