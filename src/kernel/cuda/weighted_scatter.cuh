/* weighted_scatter on CUDA (kernel/library.h). Macros (lib_select.c): RP_NAME RP_WORDS, RP_T and RP_LOAD of grad; RP_W, type of weights and of the
 * result, RP_RED(p, v) adds there; RP_K taps; RP_PLACE, type of index; RP_INDEX, RP_INVERSE and RP_SHARE as in scatter.cuh; RP_ORDERED: a plane a thread, along the
 * places, with the bits of the CPU. Else a thread has a place, whose taps it reads once, and some channels; neighbours in a warp are neighbours
 * among the places.
 * Words: out grad index weight, images, channels, places, places of out, channels a thread, threads for all channels, strides of each operand. */
typedef struct {
    rp_u64 w[22];
} RP_WORDS;

#define RP_STRIDE(operand, dim) ((RP_INDEX)p.w[10 + 3 * (operand) + (dim)])

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    RP_W *out = (RP_W *)p.w[0];
    const RP_T *grad = (const RP_T *)p.w[1];
    const RP_PLACE *index = (const RP_PLACE *)p.w[2];
    const RP_W *weight = (const RP_W *)p.w[3];
    const RP_INDEX images = (RP_INDEX)p.w[4], channels = (RP_INDEX)p.w[5], places = (RP_INDEX)p.w[6];
    const RP_PLACE size = (RP_PLACE)p.w[7];
    rp_launch_dependents();
    rp_grid_wait();
#if RP_ORDERED
    const RP_INDEX all = images * channels;
    const rp_u32 inverse = RP_INVERSE(channels);
    (void)inverse;
    for (RP_INDEX item = (RP_INDEX)blockIdx.x * 256 + (RP_INDEX)threadIdx.x; item < all;
         item += (RP_INDEX)gridDim.x * 256) {
        const RP_INDEX n = RP_SHARE(item, channels, inverse), c = item - n * channels;
        RP_W *to = out + n * RP_STRIDE(0, 0) + c * RP_STRIDE(0, 1);
        const RP_T *from = grad + n * RP_STRIDE(1, 0) + c * RP_STRIDE(1, 1);
        for (RP_INDEX place = 0; place < places; place++) {
            const RP_W x = (RP_W)RP_LOAD(from[place * RP_STRIDE(1, 2)]);
            for (int k = 0; k < RP_K; k++) {
                const RP_PLACE i = index[n * RP_STRIDE(2, 0) + k * RP_STRIDE(2, 1) + place * RP_STRIDE(2, 2)];
                if (i >= 0 && i < size)
                    to[(RP_INDEX)i * RP_STRIDE(0, 2)] +=
                        x * weight[n * RP_STRIDE(3, 0) + k * RP_STRIDE(3, 1) + place * RP_STRIDE(3, 2)];
            }
        }
    }
#else
    const RP_INDEX share = (RP_INDEX)p.w[8], shares = (RP_INDEX)p.w[9], all = images * shares * places;
    const rp_u32 of_places = RP_INVERSE(places), of_shares = RP_INVERSE(shares);
    (void)of_places, (void)of_shares;
    for (RP_INDEX item = (RP_INDEX)blockIdx.x * 256 + (RP_INDEX)threadIdx.x; item < all;
         item += (RP_INDEX)gridDim.x * 256) {
        const RP_INDEX row = RP_SHARE(item, places, of_places), place = item - row * places;
        const RP_INDEX n = RP_SHARE(row, shares, of_shares), first = (row - n * shares) * share;
        const RP_INDEX end = first + share < channels ? first + share : channels;
        RP_INDEX at[RP_K];
        RP_W by[RP_K];
        _Pragma("unroll") for (int k = 0; k < RP_K; k++) {
            const RP_PLACE i = index[n * RP_STRIDE(2, 0) + k * RP_STRIDE(2, 1) + place * RP_STRIDE(2, 2)];
            by[k] = weight[n * RP_STRIDE(3, 0) + k * RP_STRIDE(3, 1) + place * RP_STRIDE(3, 2)];
            at[k] = i >= 0 && i < size ? (RP_INDEX)i * RP_STRIDE(0, 2) : -1;
        }
        RP_W *to = out + n * RP_STRIDE(0, 0);
        const RP_T *from = grad + n * RP_STRIDE(1, 0) + place * RP_STRIDE(1, 2);
        for (RP_INDEX c = first; c < end; c += 4) {
            RP_W x[4];
            _Pragma("unroll") for (int j = 0; j < 4; j++) {
                const RP_INDEX channel = c + j < end ? c + j : c;
                x[j] = (RP_W)RP_LOAD(from[channel * RP_STRIDE(1, 1)]);
            }
            _Pragma("unroll") for (int j = 0; j < 4; j++) {
                if (c + j >= end) continue;
                RP_W *plane = to + (c + j) * RP_STRIDE(0, 1);
                _Pragma("unroll") for (int k = 0; k < RP_K; k++) if (at[k] >= 0) RP_RED(plane + at[k], x[j] * by[k]);
            }
        }
    }
#endif
}
