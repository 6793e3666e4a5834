/* nonzero on CUDA in three launches: count a chunk a block, add the counts up in one block, write. Macros (lib_select.c):
 *   RP_NAME RP_WORDS; RP_T a type whose bits decide; RP_BITS_OF(x) its bits without what does not count (the sign of a float);
 *   RP_PHASE 0, 1 or 2; RP_DIMS.
 * Words: indices count x workspace, elements chunks, strides of indices (row, column), then extent and stride of each dim. The
 * workspace holds chunks words: counts, then the numbers of the chunks' first rows. A thread has 8 neighbours in logical order. */
typedef struct {
    rp_u64 w[8 + 2 * (RP_DIMS > 0 ? RP_DIMS : 1)];
} RP_WORDS;

/* Sum over the lower threads of the block, and over all in *all. Every thread calls. */
RP_FN rp_u64 rp_prefix(rp_u64 *part, rp_u64 mine, rp_u64 *all) {
    const int t = (int)threadIdx.x;
    part[t] = mine;
    rp_barrier();
    for (int step = 1; step < 256; step *= 2) {
        const rp_u64 other = t >= step ? part[t - step] : 0;
        rp_barrier();
        part[t] += other;
        rp_barrier();
    }
    const rp_u64 inclusive = part[t];
    *all = part[255];
    rp_barrier();
    return inclusive - mine;
}

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    __shared__ rp_u64 part[256];
    const int t = (int)threadIdx.x;
    const rp_i64 chunks = (rp_i64)p.w[5];
    rp_u64 *counts = (rp_u64 *)p.w[3], all;
    rp_launch_dependents();
    rp_grid_wait();
#if RP_PHASE == 1
    rp_u64 before = 0;
    for (rp_i64 c0 = 0; c0 < chunks; c0 += 256) {
        const rp_i64 c = c0 + t;
        const rp_u64 mine = c < chunks ? counts[c] : 0, start = rp_prefix(part, mine, &all);
        if (c < chunks) counts[c] = before + start;
        before += all;
    }
    if (t == 0) *(rp_i64 *)p.w[1] = (rp_i64)before;
#else
    const rp_i64 numel = (rp_i64)p.w[4], first = (rp_i64)blockIdx.x * 2048 + t * 8;
    const RP_T *x = (const RP_T *)p.w[2];
    rp_u32 found = 0;
    for (int j = 0; j < 8; j++) {
        rp_i64 rest = first + j, at = 0;
        if (rest >= numel) break;
        for (int d = RP_DIMS - 1; d >= 0; d--) {
            at += rest % (rp_i64)p.w[8 + 2 * d] * (rp_i64)p.w[9 + 2 * d];
            rest /= (rp_i64)p.w[8 + 2 * d];
        }
        if (RP_BITS_OF(x[at]) != 0) found |= 1u << j;
    }
    const rp_u64 start = rp_prefix(part, (rp_u64)rp_popc(found), &all);
#if RP_PHASE == 0
    (void)start;
    if (t == 0) counts[blockIdx.x] = all;
#else
    rp_i64 *out = (rp_i64 *)p.w[0] + (rp_i64)(counts[blockIdx.x] + start) * (rp_i64)p.w[6];
    for (int j = 0; j < 8; j++) {
        if (!(found >> j & 1u)) continue;
        rp_i64 rest = first + j;
        for (int d = RP_DIMS - 1; d >= 0; d--) {
            out[d * (rp_i64)p.w[7]] = rest % (rp_i64)p.w[8 + 2 * d];
            rest /= (rp_i64)p.w[8 + 2 * d];
        }
        out += (rp_i64)p.w[6];
    }
#endif
#endif
}
