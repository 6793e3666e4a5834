/* scatter on CUDA. Macros (lib_select.c): RP_NAME RP_WORDS RP_T; RP_COMBINE(a, b) of b into a, in the storage type; RP_FORM
 *   0 an element of index a thread, RP_ATOMIC(p, v): in no fixed order
 *   1 a line along dim a thread, in rising order
 *   2 an element of out a thread, which walks the line's indices in rising order: few lines
 * RP_DIMS dims other than dim. Forms 1 and 2 give the bits of the CPU. A bad index is reported and its element skipped.
 * Words: out index src, error record, tag, length, bound, strides along dim of (out, index, src), lines, then extent and the
 * same strides for each other dim. */
typedef struct {
    rp_u64 w[11 + 4 * RP_DIMS];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    const rp_i64 length = (rp_i64)p.w[5], bound = (rp_i64)p.w[6], lines = (rp_i64)p.w[10];
    const rp_i64 so = (rp_i64)p.w[7], sk = (rp_i64)p.w[8], ss = (rp_i64)p.w[9];
    const rp_i64 all = RP_FORM == 0 ? lines * length : RP_FORM == 1 ? lines : lines * bound;
    rp_launch_dependents();
    rp_grid_wait();
    for (rp_i64 item = (rp_i64)blockIdx.x * 256 + (rp_i64)threadIdx.x; item < all; item += (rp_i64)gridDim.x * 256) {
        /* lines are neighbours in a warp */
        rp_i64 line = item % lines, step = item / lines, oo = 0, ok = 0, os = 0;
        _Pragma("unroll") for (int d = RP_DIMS - 1; d >= 0; d--) {
            const rp_i64 extent = (rp_i64)p.w[11 + 4 * d], i = line % extent;
            line /= extent;
            oo += i * (rp_i64)p.w[12 + 4 * d];
            ok += i * (rp_i64)p.w[13 + 4 * d];
            os += i * (rp_i64)p.w[14 + 4 * d];
        }
        RP_T *out = (RP_T *)p.w[0] + oo;
        const rp_i64 *index = (const rp_i64 *)p.w[1] + ok;
        const RP_T *src = (const RP_T *)p.w[2] + os;
#if RP_FORM == 0
        const rp_i64 k = index[step * sk];
        if (k < 0 || k >= bound)
            rp_report(p.w[3], p.w[4], 1, k, bound);
        else
            RP_ATOMIC(out + k * so, src[step * ss]);
#elif RP_FORM == 1
        for (rp_i64 i = 0; i < length; i++) {
            const rp_i64 k = index[i * sk];
            if (k < 0 || k >= bound)
                rp_report(p.w[3], p.w[4], 1, k, bound);
            else
                out[k * so] = RP_COMBINE(out[k * so], src[i * ss]);
        }
        (void)step;
#else
        RP_T sum = out[step * so];
        int touched = 0;
        for (rp_i64 i = 0; i < length; i++) {
            const rp_i64 k = index[i * sk];
            if (k == step) {
                sum = RP_COMBINE(sum, src[i * ss]);
                touched = 1;
            } else if (step == 0 && (k < 0 || k >= bound)) {
                rp_report(p.w[3], p.w[4], 1, k, bound);
            }
        }
        if (touched) out[step * so] = sum;
#endif
    }
}
