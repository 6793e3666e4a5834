/* The recursion of CTC on CUDA (library.h): a block a sequence, its threads walk the states of one time after the other. Macros
 * (lib_select.c): RP_NAME RP_WORDS, RP_T float or double, RP_EXP, RP_LOG; RP_CARRY 1: the linear recursion over what reach holds.
 * Words: out in reach skips lengths, times sequences states back. */
typedef struct {
    rp_u64 w[9];
} RP_WORDS;

#define RP_NO_WAY ((RP_T)-1e30)

/* Of state l the ways from l, l - 1 and l - 2, a step before: what each is worth of all three; the logarithm of their sum. */
RP_FN RP_T rp_ways(const RP_T *from, const rp_u8 *skips, rp_i64 l, RP_T *weight) {
    const RP_T a = from[l], b = l > 0 ? from[l - 1] : RP_NO_WAY, c = l > 1 && skips[l] ? from[l - 2] : RP_NO_WAY;
    const RP_T ab = a > b ? a : b, most = ab > c ? ab : c;
    weight[0] = RP_EXP(a - most), weight[1] = RP_EXP(b - most), weight[2] = RP_EXP(c - most);
    const RP_T sum = weight[0] + weight[1] + weight[2];
    weight[0] /= sum, weight[1] /= sum, weight[2] /= sum;
    return RP_LOG(sum) + most;
}

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    const rp_i64 times = (rp_i64)p.w[5], states = (rp_i64)p.w[7], step = (rp_i64)p.w[6] * states;
    const rp_i64 row = (rp_i64)blockIdx.x * states, first = (rp_i64)threadIdx.x;
    rp_launch_dependents();
    rp_grid_wait();
    RP_T *out = (RP_T *)p.w[0] + row;
    const RP_T *in = (const RP_T *)p.w[1] + row;
    const rp_u8 *skips = (const rp_u8 *)p.w[3] + row;
    const rp_i64 length = ((const rp_i64 *)p.w[4])[blockIdx.x];
    RP_T weight[3];
#if RP_CARRY
    const RP_T *reach = (const RP_T *)p.w[2] + row;
    const int back = p.w[8] != 0;
    const rp_i64 start = back ? (times - 1) * step : 0;
    for (rp_i64 l = first; l < states; l += 256) out[start + l] = in[start + l];
    for (rp_i64 i = 1; i < times; i++) {
        const rp_i64 t = back ? times - i : i; /* the ways lead from t - 1 to t */
        const RP_T *from = reach + (t - 1) * step, *done = out + (back ? t : t - 1) * step;
        RP_T *next = out + (back ? t - 1 : t) * step;
        const RP_T *own = in + (back ? t - 1 : t) * step;
        rp_barrier();
        for (rp_i64 l = first; l < states; l += 256) {
            RP_T sum = own[l];
            if (t >= length) {
                sum += done[l];
            } else if (back) {
                for (rp_i64 k = 0; k < 3 && l + k < states; k++) {
                    rp_ways(from, skips, l + k, weight);
                    sum += weight[k] * done[l + k];
                }
            } else {
                rp_ways(from, skips, l, weight);
                for (rp_i64 k = 0; k < 3 && k <= l; k++) sum += weight[k] * done[l - k];
            }
            next[l] = sum;
        }
    }
#else
    for (rp_i64 l = first; l < states; l += 256) out[l] = l < 2 ? in[l] : RP_NO_WAY;
    for (rp_i64 t = 1; t < times; t++) {
        const RP_T *from = out;
        out += step, in += step;
        rp_barrier();
        for (rp_i64 l = first; l < states; l += 256)
            out[l] = t < length ? rp_ways(from, skips, l, weight) + in[l] : from[l];
    }
#endif
}
