/* Keys that order values, for sort.cuh and topk.cuh: what comes first has the smaller one. -0 equals 0; NaN is the largest value.
 * Macros (lib_sort.c): RP_T; RP_K an unsigned type of RP_BITS bits, as wide as RP_T; RP_RAW(x) and RP_OF(u) a value's bits and back; RP_FLOAT with
 * RP_INFINITY, its bits; RP_SIGNED; RP_LARGEST 1: descending; RP_DIMS dims of rows.
 * Words that both texts begin with: values indices x workspace, n k rows, strides of (values, indices, x) along the dim, then RP_OWN words and
 * extent and the same strides for each dim of rows. */
typedef struct {
    rp_u64 w[10 + RP_OWN + 4 * RP_DIMS];
} RP_WORDS;

#define RP_TOP ((RP_K)((RP_K)1 << (RP_BITS - 1)))
#define RP_LAST ((RP_K) ~(RP_K)0) /* no key is larger */

RP_FN RP_K rp_key(RP_T x) {
    RP_K u = RP_RAW(x);
#if RP_FLOAT
    if ((RP_K)(u & (RP_K)~RP_TOP) > RP_INFINITY)
        u = RP_LAST;
    else if (u & RP_TOP)
        u = u == RP_TOP ? RP_TOP : (RP_K)~u;
    else
        u |= RP_TOP;
#elif RP_SIGNED
    u ^= RP_TOP;
#endif
    return RP_LARGEST ? (RP_K)~u : u;
}

/* The value, which stands at x: read there if several have its key. */
RP_FN RP_T rp_value(RP_K key, const RP_T *x) {
    RP_K u = RP_LARGEST ? (RP_K)~key : key;
#if RP_FLOAT
    if (u == RP_TOP || u == RP_LAST) return *x;
    u = u & RP_TOP ? (RP_K)(u ^ RP_TOP) : (RP_K)~u;
#elif RP_SIGNED
    u ^= RP_TOP;
#endif
    (void)x;
    return RP_OF(u);
}

typedef struct {
    RP_T *values;
    rp_i64 *indices;
    const RP_T *x;
} rp_row;

RP_FN rp_row rp_row_of(const RP_WORDS *p, rp_i64 row) {
    rp_i64 ov = 0, oi = 0, ox = 0;
    _Pragma("unroll") for (int d = RP_DIMS - 1; d >= 0; d--) {
        const rp_u64 *dim = p->w + 10 + RP_OWN + 4 * d;
        rp_i64 i = row;
        if (d > 0) {
            i = row % (rp_i64)dim[0];
            row /= (rp_i64)dim[0];
        }
        ov += i * (rp_i64)dim[1];
        oi += i * (rp_i64)dim[2];
        ox += i * (rp_i64)dim[3];
    }
    rp_row r;
    r.values = (RP_T *)p->w[0] + ov;
    r.indices = (rp_i64 *)p->w[1] + oi;
    r.x = (const RP_T *)p->w[2] + ox;
    return r;
}

/* Sum of the values of lower threads among the first 256; `part` has eight words. Every thread of the block calls. */
RP_FN rp_u32 rp_sum_below(rp_u32 *part, rp_u32 mine) {
    const int t = (int)threadIdx.x, lane = t % 32;
    rp_u32 sum = mine;
    _Pragma("unroll") for (int step = 1; step < 32; step *= 2) {
        const rp_u32 other = rp_shfl_up_u32(sum, (rp_u32)step, 32);
        if (lane >= step) sum += other;
    }
    if (t < 256 && lane == 31) part[t / 32] = sum;
    rp_barrier();
    for (int v = 0; v < t / 32 && v < 8; v++) sum += part[v];
    return sum - mine;
}
