/* The first k of a long row on CUDA, few of many: a radix selection. A block takes a part of a row into registers and finds the k-th key, eight bits at a
 * time; what comes before it and the first ones of what equals it are put in order by a bitonic network. Of a row of several parts these are
 * candidates, which the next launch takes for a row: of equal keys the ones in front are those with lower indices there, too.
 * Macros: those of order.cuh; RP_THREADS RP_ITEMS; RP_SHARED_K at least k; RP_AGAIN 1: from candidates; RP_ENDS 1: into the results. Own words: parts of
 * a row, then offsets in the workspace: keys and places that are read, keys and places that are written. n is the length of a row that is read. */
#define RP_WARPS (RP_THREADS / 32)

extern "C" __global__ void __launch_bounds__(RP_THREADS) RP_NAME(const RP_WORDS p) {
    __shared__ rp_u32 hist[4][257], part[8]; /* lanes that meet in one digit are spread over four */
    __shared__ rp_u32 of_warp[RP_WARPS], chosen, want_shared, equal_shared;
    __shared__ RP_K keys[RP_SHARED_K];
    __shared__ rp_u32 where[RP_SHARED_K];
    const int t = (int)threadIdx.x, lane = t % 32, first = t / 32 * 32 * RP_ITEMS + lane;
    const rp_i64 n = (rp_i64)p.w[4], parts = (rp_i64)p.w[10], row = (rp_i64)blockIdx.x / parts;
    const rp_i64 mine = (rp_i64)blockIdx.x % parts, begin = mine * n / parts;
    const int k = (int)p.w[5], length = (int)((mine + 1) * n / parts - begin);
    const rp_i64 sv = (rp_i64)p.w[7], si = (rp_i64)p.w[8], sx = (rp_i64)p.w[9];
    const rp_row r = rp_row_of(&p, row);
    int padded = 1;
    while (padded < k) padded *= 2;
    rp_launch_dependents();
    rp_grid_wait();
#if RP_AGAIN
    const RP_K *in = (const RP_K *)(p.w[3] + p.w[11]) + row * n + begin;
    const rp_u32 *in_places = (const rp_u32 *)(p.w[3] + p.w[12]) + row * n + begin;
#endif
    RP_K key[RP_ITEMS];
    _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
        const int e = first + j * 32;
        key[j] = RP_LAST;
#if RP_AGAIN
        if (e < length) key[j] = in[e];
#else
        if (e < length) key[j] = rp_key(r.x[(begin + e) * sx]);
#endif
    }
    /* the k-th key: `want` are still to be found among those that begin with `prefix` */
    RP_K prefix = 0, mask = 0;
    rp_u32 want = (rp_u32)k, equal = 0;
    for (int shift = RP_BITS - 8; shift >= 0 && equal != want; shift -= 8) {
        for (int i = t; i < 4 * 257; i += RP_THREADS) (&hist[0][0])[i] = 0;
        rp_barrier();
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS;
                               j++) if (first + j * 32 < length && (RP_K)(key[j] & mask) == prefix)
            rp_atomic_add_u32(&hist[lane % 4][(int)(key[j] >> shift) & 255], 1u);
        rp_barrier();
        rp_u32 count = 0;
        if (t < 256) count = hist[0][t] + hist[1][t] + hist[2][t] + hist[3][t];
        const rp_u32 below = rp_sum_below(part, count);
        if (t < 256 && below < want && want <= below + count) {
            chosen = (rp_u32)t;
            want_shared = want - below;
            equal_shared = count;
        }
        rp_barrier();
        prefix = (RP_K)(prefix | (RP_K)((RP_K)chosen << shift));
        mask = (RP_K)(mask | (RP_K)((RP_K)255 << shift));
        want = want_shared;
        equal = equal_shared;
    }
    for (int i = k + t; i < padded; i += RP_THREADS) { /* fillers sort behind every entry */
        keys[i] = RP_LAST;
        where[i] = ~0u;
    }
    /* entries in the order of the row: those before the k-th, then the first of its equals; a warp has neighbours of the row */
    rp_u32 better = 0, equals = 0;
    _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
        const int there = first + j * 32 < length;
        better += (rp_u32)rp_popc(rp_ballot(there && (RP_K)(key[j] & mask) < prefix));
        equals += (rp_u32)rp_popc(rp_ballot(there && (RP_K)(key[j] & mask) == prefix));
    }
    if (lane == 0) of_warp[t / 32] = better | equals << 16;
    rp_barrier();
    better = 0, equals = 0;
    for (int v = 0; v < t / 32; v++) {
        better += of_warp[v] & 0xffffu;
        equals += of_warp[v] >> 16;
    }
    _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
        const int e = first + j * 32, there = e < length;
        const int before = there && (RP_K)(key[j] & mask) < prefix, same = there && (RP_K)(key[j] & mask) == prefix;
        const rp_u32 votes = rp_ballot(before), votes_same = rp_ballot(same), lower = (1u << lane) - 1u;
        const rp_u32 rank = equals + (rp_u32)rp_popc(votes_same & lower);
        const rp_u32 at = before ? better + (rp_u32)rp_popc(votes & lower) : (rp_u32)k - want + rank;
        if (before || (same && rank < want)) {
            keys[at] = key[j];
#if RP_AGAIN
            where[at] = in_places[e];
#else
            where[at] = (rp_u32)(begin + e);
#endif
        }
        better += (rp_u32)rp_popc(votes);
        equals += (rp_u32)rp_popc(votes_same);
    }
    rp_barrier();
    for (int size = 2; size <= padded; size *= 2) { /* bitonic, by key and place */
        for (int step = size / 2; step > 0; step /= 2) {
            for (int q = t; q < padded / 2; q += RP_THREADS) {
                const int i = 2 * q - (q & (step - 1)), j = i + step;
                const RP_K ka = keys[i], kb = keys[j];
                const rp_u32 wa = where[i], wb = where[j];
                const int after = ka > kb || (ka == kb && wa > wb);
                if (after == ((i & size) == 0)) {
                    keys[i] = kb;
                    keys[j] = ka;
                    where[i] = wb;
                    where[j] = wa;
                }
            }
            rp_barrier();
        }
    }
    for (int i = t; i < k; i += RP_THREADS) {
#if RP_ENDS
        r.values[i * sv] = rp_value(keys[i], r.x + (rp_i64)where[i] * sx);
        r.indices[i * si] = (rp_i64)where[i];
#else
        const rp_i64 at = (rp_i64)blockIdx.x * k + i;
        ((RP_K *)(p.w[3] + p.w[13]))[at] = keys[i];
        ((rp_u32 *)(p.w[3] + p.w[14]))[at] = where[i];
#endif
    }
}
