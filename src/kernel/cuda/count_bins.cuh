/* count_bins on CUDA (kernel/library.h). Macros (lib_select.c): RP_NAME RP_WORDS, RP_T and RP_LOAD of the elements, RP_REAL in which places are computed,
 * with the bits of the CPU, and RP_BITS(word) as a number of it; RP_COUNT, type of the counts, RP_RED(p, v) adds there; RP_VECTOR elements are read at once; RP_SHARED: words of
 * shared memory in which a block counts first, as many copies as the words say, 0: it adds to the result at once.
 * Words: out, x, elements, bins, low, high, copies. */
typedef struct {
    rp_u64 w[7];
} RP_WORDS;

typedef union {
    rp_u32x4 words;
    RP_T x[16 / sizeof(RP_T)];
} rp_elements;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    RP_COUNT *out = (RP_COUNT *)p.w[0];
    const RP_T *x = (const RP_T *)p.w[1];
    const rp_i64 all = (rp_i64)p.w[2], bins = (rp_i64)p.w[3];
    const int t = (int)threadIdx.x;
    const RP_REAL low = RP_BITS(p.w[4]), high = RP_BITS(p.w[5]), parts = (RP_REAL)bins, wide = high - low;
#if RP_SHARED
    __shared__ rp_u32 counts[RP_SHARED];
    const int copies = (int)p.w[6], pitch = (int)bins | 1;
    rp_u32 *own = counts + t % copies * pitch;
    for (int i = t; i < copies * pitch; i += 256) counts[i] = 0;
#define RP_ONE(bin) rp_atomic_add_u32(own + (int)(bin), 1)
#else
#define RP_ONE(bin) RP_RED(out + (bin), 1)
#endif
#define RP_PUT(element)                                                                                                \
    {                                                                                                                  \
        const RP_REAL v = (RP_REAL)RP_LOAD(element);                                                                   \
        const RP_REAL part = (v - low) * parts / wide;                                                                 \
        if (low <= v && v <= high) RP_ONE(part >= parts ? bins - 1 : part > 0 ? (rp_i64)part : 0);                     \
    }
    rp_launch_dependents();
    rp_grid_wait();
#if RP_SHARED
    rp_barrier();
#endif
    const rp_i64 pieces = all / RP_VECTOR;
    for (rp_i64 i0 = (rp_i64)blockIdx.x * 1024 + t; i0 < pieces; i0 += (rp_i64)gridDim.x * 1024) {
        rp_elements e[4];
        _Pragma("unroll") for (int u = 0; u < 4; u++) {
            const rp_i64 i = i0 + u * 256 < pieces ? i0 + u * 256 : i0;
#if RP_VECTOR > 1
            e[u].words = rp_ld_v4_u32((const rp_u32 *)(const void *)(x + i * RP_VECTOR));
#else
            e[u].x[0] = x[i];
#endif
        }
        _Pragma("unroll") for (int u = 0; u < 4; u++) {
            if (i0 + u * 256 >= pieces) continue;
            _Pragma("unroll") for (int j = 0; j < RP_VECTOR; j++) RP_PUT(e[u].x[j]);
        }
    }
    if (blockIdx.x == 0 && t < (int)(all - pieces * RP_VECTOR)) RP_PUT(x[pieces * RP_VECTOR + t]);
#if RP_SHARED
    rp_barrier();
    for (int i = t; i < (int)bins; i += 256) {
        RP_COUNT sum = 0;
        for (int c = 0; c < copies; c++) sum += (RP_COUNT)counts[c * pitch + i];
        if (sum) RP_RED(out + i, sum);
    }
#endif
}
