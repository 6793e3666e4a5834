/* multinomial on CUDA by the integer rule of docs/random.md: a block a row. Thread t owns the t-th of 256 runs of the row;
 * the runs' integer sums find the run of a draw, a walk of that run the index. Without replacement thread 0 draws one after
 * the other and marks what is gone in the workspace (a byte a weight). Macros (lib_select.c): RP_NAME RP_WORDS, RP_T float or
 * double. Words: out weights workspace, state seed inner, error record, tag, samples n shift replacement, strides of out
 * (row, sample) and of weights (row, n). */
typedef struct {
    rp_u64 w[16];
} RP_WORDS;

RP_FN rp_u64 rp_weight(double w, double max, double scale) {
    if (!(w > 0)) return 0;
    const rp_u64 x = (rp_u64)(w / max * scale);
    return x ? x : 1;
}

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    __shared__ double largest[256];
    __shared__ rp_u64 sums[256], before[257];
    __shared__ rp_u32 positive[256], bad;
    const int t = (int)threadIdx.x;
    const rp_i64 row = (rp_i64)blockIdx.x, samples = (rp_i64)p.w[8], n = (rp_i64)p.w[9];
    const rp_i64 run = (n + 255) / 256, sw = (rp_i64)p.w[15], so = (rp_i64)p.w[13];
    const rp_i64 first = t * run < n ? t * run : n, last = first + run < n ? first + run : n;
    const double scale = rp_bits_f64((rp_u64)(1023 + (rp_i64)p.w[10]) << 52);
    const int replacement = p.w[11] != 0;
    rp_launch_dependents();
    rp_grid_wait();
    rp_i64 *out = (rp_i64 *)p.w[0] + row * (rp_i64)p.w[12];
    const RP_T *x = (const RP_T *)p.w[1] + row * (rp_i64)p.w[14];
    rp_u8 *gone = (rp_u8 *)p.w[2] + row * n;
    if (t == 0) bad = 0;
    rp_barrier();
    double max = 0;
    rp_u32 count = 0;
    for (rp_i64 i = first; i < last; i++) {
        const double w = (double)x[i * sw];
        if (!(w >= 0) || !rp_isfinite_f64(w)) bad = 1;
        count += w > 0;
        if (w > max) max = w;
        if (!replacement) gone[i] = 0;
    }
    largest[t] = max;
    positive[t] = count;
    rp_barrier();
    rp_i64 usable = 0;
    for (int i = 0; i < 256; i++) {
        if (largest[i] > max) max = largest[i];
        usable += positive[i];
    }
    const rp_u64 code = bad ? 3 : usable == 0 ? 4 : !replacement && usable < samples ? 5 : 0; /* rp__error_code */
    if (code) { /* the same for all threads of the block */
        if (t == 0) rp_report(p.w[6], p.w[7], code, row, n);
        for (rp_i64 s = t; s < samples; s += 256) out[s * so] = 0;
        return;
    }
    rp_u64 sum = 0;
    for (rp_i64 i = first; i < last; i++) sum += rp_weight((double)x[i * sw], max, scale);
    sums[t] = sum;
    rp_barrier();
    if (t == 0) {
        before[0] = 0;
        for (int i = 0; i < 256; i++) before[i + 1] = before[i] + sums[i];
    }
    rp_barrier();
    if (replacement) {
        for (rp_i64 s = t; s < samples; s += 256) {
            rp_u64 left =
                rp_mulhi_u64((rp_u64)rp_random_word64(p.w[3], p.w[4], p.w[5], row * samples + s), before[256]);
            int low = 0, high = 255; /* the first run whose inclusive sum exceeds it */
            while (low < high) {
                const int middle = (low + high) / 2;
                if (before[middle + 1] > left)
                    high = middle;
                else
                    low = middle + 1;
            }
            left -= before[low];
            rp_i64 i = low * run;
            for (;; i++) {
                const rp_u64 w = rp_weight((double)x[i * sw], max, scale);
                if (w > left) break;
                left -= w;
            }
            out[s * so] = i;
        }
    } else if (t == 0) {
        rp_u64 total = before[256];
        for (rp_i64 s = 0; s < samples; s++) {
            rp_u64 left = rp_mulhi_u64((rp_u64)rp_random_word64(p.w[3], p.w[4], p.w[5], row * samples + s), total);
            int r = 0;
            while (sums[r] <= left) left -= sums[r++];
            rp_i64 i = r * run;
            rp_u64 w;
            for (;; i++) {
                w = gone[i] ? 0 : rp_weight((double)x[i * sw], max, scale);
                if (w > left) break;
                left -= w;
            }
            out[s * so] = i;
            gone[i] = 1;
            sums[r] -= w;
            total -= w;
        }
    }
}
