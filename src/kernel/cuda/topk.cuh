/* topk on CUDA: a block a row. Of a whole row, which is a sort, all entries are taken; else a radix selection over order-preserving keys finds the k-th best; what is better, and the lowest
 * indices of what equals it, are collected. Entries are sorted by (key, index): few by a bitonic network in shared memory, a whole long row by a stable radix sort. The result is always sorted; equal values: lower index first;
 * -0 equals 0; NaN is the largest value. Macros (lib_select.c):
 *   RP_NAME RP_WORDS RP_T RP_LOAD as in text_kernel.h; RP_BITS 32 or 64; RP_ORDER(x) value to rp_u64 in RP_BITS bits;
 *   RP_LARGEST 0 or 1; RP_FULL 1: k is n; RP_BIG 1: the k entries lie in the workspace, 0: in shared memory; RP_DIMS dims of rows.
 * Words: values indices x workspace, n k padded, strides of (values, indices, x) along the dim, then extent and the same strides for
 * each dim of rows. padded: the power of two from k on; the workspace holds 2 padded words a row, twice that where RP_FULL. */
typedef struct {
    rp_u64 w[10 + 4 * RP_DIMS];
} RP_WORDS;

RP_FN rp_u64 rp_order_f32(float x) {
    if (x != x) return 0xffffffffull;
    const rp_u32 u = rp_f32_bits(x + 0.0f);
    return u >> 31 ? (rp_u32)~u : u | 0x80000000u;
}
RP_FN rp_u64 rp_order_f64(double x) {
    if (x != x) return ~0ull;
    const rp_u64 u = rp_f64_bits(x + 0.0);
    return u >> 63 ? ~u : u | 1ull << 63;
}
RP_FN rp_u64 rp_key(RP_T raw) {
    const rp_u64 key = RP_ORDER(raw);
#if RP_LARGEST
    return key;
#elif RP_BITS == 32
    return (rp_u32)~key;
#else
    return ~key;
#endif
}

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
#if !RP_FULL || RP_BIG
    __shared__ rp_u32 hist[256];
#endif
#if RP_FULL && RP_BIG
    __shared__ rp_u32 of_warp[8][256], sorted;
#endif
#if !RP_FULL
    __shared__ rp_u32 warps[8];
    __shared__ rp_u64 chosen;
    __shared__ rp_u32 want_shared, equal_shared, filled;
#endif
#if !RP_BIG
    __shared__ rp_u64 keys[RP_SHARED_K], where[RP_SHARED_K];
#endif
    const int t = (int)threadIdx.x;
    const rp_i64 n = (rp_i64)p.w[4], k = (rp_i64)p.w[5], padded = (rp_i64)p.w[6];
    rp_i64 row = (rp_i64)blockIdx.x, ov = 0, oi = 0, ox = 0;
    _Pragma("unroll") for (int d = RP_DIMS - 1; d >= 0; d--) {
        const rp_i64 extent = (rp_i64)p.w[10 + 4 * d], i = row % extent;
        row /= extent;
        ov += i * (rp_i64)p.w[11 + 4 * d];
        oi += i * (rp_i64)p.w[12 + 4 * d];
        ox += i * (rp_i64)p.w[13 + 4 * d];
    }
    const rp_i64 sv = (rp_i64)p.w[7], si = (rp_i64)p.w[8], sx = (rp_i64)p.w[9];
    rp_launch_dependents();
    rp_grid_wait();
    RP_T *values = (RP_T *)p.w[0] + ov;
    rp_i64 *indices = (rp_i64 *)p.w[1] + oi;
    const RP_T *x = (const RP_T *)p.w[2] + ox;
#if RP_BIG
    rp_u64 *keys = (rp_u64 *)p.w[3] + (RP_FULL ? 4 : 2) * padded * (rp_i64)blockIdx.x, *where = keys + padded;
#endif
#if RP_FULL
    for (rp_i64 i = t; i < padded; i += 256) { /* fillers sort behind every entry */
        keys[i] = i < n ? rp_key(x[i * sx]) : 0;
        where[i] = i < n ? (rp_u64)i : ~0ull;
    }
    rp_barrier();
#else
    /* the k-th key, eight bits at a time from the top */
    rp_u64 prefix = 0, mask = 0;
    rp_u32 want = (rp_u32)k;
    for (int shift = RP_BITS - 8; shift >= 0; shift -= 8) {
        hist[t] = 0;
        rp_barrier();
        for (rp_i64 i = t; i < n; i += 256) {
            const rp_u64 key = rp_key(x[i * sx]);
            if ((key & mask) == prefix) rp_atomic_add_u32(&hist[(int)(key >> shift & 255)], 1u);
        }
        rp_barrier();
        if (t == 0) {
            int b = 255;
            rp_u32 left = want;
            while (b > 0 && hist[b] < left) {
                left -= hist[b];
                b--;
            }
            chosen = (rp_u64)b;
            want_shared = left;
            equal_shared = hist[b];
        }
        rp_barrier();
        prefix |= chosen << shift;
        mask |= 255ull << shift;
        want = want_shared;
        rp_barrier();
    }
    const rp_u32 equal = equal_shared;
    if (t == 0) filled = 0;
    for (rp_i64 i = k + t; i < padded; i += 256) { /* fillers sort behind every entry */
        keys[i] = 0;
        where[i] = ~0ull;
    }
    rp_barrier();
    for (rp_i64 i = t; i < n; i += 256) {
        const rp_u64 key = rp_key(x[i * sx]);
        if (key > prefix || (key == prefix && equal == want)) {
            const rp_u32 at = rp_atomic_add_u32(&filled, 1u);
            keys[at] = key;
            where[at] = (rp_u64)i;
        }
    }
    if (equal != want) { /* the lowest indices among equals, counted in order */
        rp_u32 taken = 0;
        const rp_u32 base = (rp_u32)k - want;
        for (rp_i64 i0 = 0; i0 < n && taken < want; i0 += 256) {
            const rp_i64 i = i0 + t;
            int is_equal = 0;
            if (i < n) is_equal = rp_key(x[i * sx]) == prefix;
            const rp_u32 votes = rp_ballot(is_equal);
            if (t % 32 == 0) warps[t / 32] = (rp_u32)rp_popc(votes);
            rp_barrier();
            rp_u32 rank = taken, all = 0;
            for (int v = 0; v < 8; v++) {
                if (v < t / 32) rank += warps[v];
                all += warps[v];
            }
            rank += (rp_u32)rp_popc(votes & ((1u << (t % 32)) - 1u));
            if (is_equal && rank < want) {
                keys[base + rank] = prefix;
                where[base + rank] = (rp_u64)i;
            }
            taken += all;
            rp_barrier();
        }
    }
    rp_barrier();
#endif
#if RP_FULL && RP_BIG
    rp_u64 *to_keys = where + padded, *to_where = to_keys + padded;
    for (int shift = 0; shift < RP_BITS; shift += 8) { /* eight bits at a time, the highest digit first */
        hist[t] = 0;
        rp_barrier();
        for (rp_i64 i = t; i < n; i += 256) rp_atomic_add_u32(&hist[255 - (int)(keys[i] >> shift & 255)], 1u);
        rp_barrier();
        if (t == 0) { /* where each digit begins */
            rp_u32 begin = 0, most = 0;
            for (int d = 0; d < 256; d++) {
                const rp_u32 count = hist[d];
                most = count > most ? count : most;
                hist[d] = begin;
                begin += count;
            }
            sorted = most == begin;
        }
        rp_barrier();
        if (sorted)
            continue; /* one digit alone; the barrier behind hist[t] = 0 comes before the next look at `sorted` */
        for (rp_i64 i0 = 0; i0 < n; i0 += 256) {
            for (int v = 0; v < 8; v++) of_warp[v][t] = 0;
            rp_barrier();
            const rp_i64 i = i0 + t;
            const int live = i < n, digit = live ? 255 - (int)(keys[i] >> shift & 255) : 0;
            rp_u32 same = rp_ballot(live); /* lanes with this digit */
            for (int bit = 0; bit < 8; bit++) {
                const rp_u32 votes = rp_ballot(digit >> bit & 1);
                same &= digit >> bit & 1 ? votes : ~votes;
            }
            const rp_u32 rank = (rp_u32)rp_popc(same & ((1u << (t % 32)) - 1u));
            if (live && rank == 0) of_warp[t / 32][digit] = (rp_u32)rp_popc(same);
            rp_barrier();
            if (live) {
                rp_u32 at = hist[digit] + rank;
                for (int v = 0; v < t / 32; v++) at += of_warp[v][digit];
                to_keys[at] = keys[i];
                to_where[at] = where[i];
            }
            rp_barrier();
            for (int v = 0; v < 8; v++) hist[t] += of_warp[v][t];
            rp_barrier();
        }
        rp_u64 *const k2 = keys, *const w2 = where;
        keys = to_keys;
        where = to_where;
        to_keys = k2;
        to_where = w2;
    }
#else
    for (rp_i64 size = 2; size <= padded; size *= 2) { /* bitonic */
        for (rp_i64 step = size / 2; step > 0; step /= 2) {
            for (rp_i64 i = t; i < padded; i += 256) {
                const rp_i64 j = i ^ step;
                if (j > i) {
                    const rp_u64 ka = keys[i], kb = keys[j], wa = where[i], wb = where[j];
                    const int ordered = ka > kb || (ka == kb && wa < wb);
                    if (ordered != ((i & size) == 0)) {
                        keys[i] = kb;
                        keys[j] = ka;
                        where[i] = wb;
                        where[j] = wa;
                    }
                }
            }
            rp_barrier();
        }
    }
#endif
    for (rp_i64 i = t; i < k; i += 256) {
        const rp_i64 at = (rp_i64)where[i];
        values[i * sv] = x[at * sx];
        indices[i * si] = at;
    }
}
