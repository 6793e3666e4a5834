/* Sorting of rows on CUDA, stable: the first k of each row in order. RP_FORM (lib_sort.c):
 *   0 a group of lanes a row of up to RP_PADDED elements, a power of two up to 256: a bitonic network in registers
 *   1 a block a row of up to RP_TILE elements, which it reads once: a radix sort of eight bits a time, places exchanged through shared memory
 *   2 to 4 longer rows, three launches a digit: how often a chunk has each value of it; the sums of that over the chunks before; a move of each
 *     element to where its value begins and so many stand before it. Chunks are whole tiles, which are put in order before they are written.
 * Eight bits that all elements of a row share move nothing.
 * Macros: those of order.cuh; RP_FORM RP_THREADS RP_ITEMS RP_PADDED. Own words: chunk, chunks (a row), shift, then the offsets in the workspace:
 * keys and places, twice; counts (rows, 256, chunks), their sums (rows, 256), where each row lies (rows, digits): 0 in x, 1 or 2 in those. */
#define RP_TILE (RP_THREADS * RP_ITEMS)
#define RP_WARPS (RP_THREADS / 32)
#define RP_DIGITS (RP_BITS / 8)
#define RP_BLOCKS (RP_FORM ? 1024 / RP_THREADS : 1) /* of a multiprocessor, at least */

#if RP_FORM == 0
#define RP_LANES (RP_PADDED < 32 ? RP_PADDED : 32)
#define RP_EACH (RP_PADDED / RP_LANES)
/* One number for key and place, where one holds both. */
#if RP_BITS <= 16
#define RP_ENTRY rp_u32
#define RP_SHUFFLE rp_shfl_xor_u32
#define RP_SHIFT 8
#elif RP_BITS == 32
#define RP_ENTRY rp_u64
#define RP_SHUFFLE rp_shfl_xor_u64
#define RP_SHIFT 8
#else
#define RP_SHUFFLE rp_shfl_xor_u64
#endif

#elif RP_FORM == 1 || RP_FORM == 4
/* A tile in registers: item j of a lane is element warp * 32 * RP_ITEMS + j * 32 + lane. Behind `live` elements fillers follow, whose keys are
 * the last. Beside it in shared memory: */
typedef struct {
    rp_u16 of_warp[RP_WARPS][256]; /* where a warp's elements with this digit begin */
    rp_u32 part[8], alone;         /* shift + 1: all live elements have one digit */
} rp_ranks;

/* Where each element of the tile stands by the digit at `shift`. Of digit threadIdx.x: how many have it, and have lower ones. */
RP_FN void rp_rank(rp_ranks *s, const RP_K *key, int shift, rp_u32 live, rp_u32 *place, rp_u32 *total, rp_u32 *below) {
    const int t = (int)threadIdx.x, lane = t % 32;
    const rp_u32 lower = (1u << lane) - 1u;
    rp_u16 *mine = s->of_warp[t / 32];
    rp_warp_sync();
    _Pragma("unroll") for (int i = 0; i < 256; i += 32) mine[i + lane] = 0;
    rp_warp_sync();
    _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
        const rp_u32 digit = (rp_u32)(key[j] >> shift) & 255u;
        rp_u32 same = ~0u; /* lanes with this digit */
        _Pragma("unroll") for (int bit = 0; bit < 8; bit++) {
            const rp_i32 one = (rp_i32)(digit << (31 - bit)) >> 31; /* 0 or -1 */
            same &= ~(rp_ballot(one < 0) ^ (rp_u32)one);
        }
        const rp_u32 rank = (rp_u32)rp_popc(same & lower), before = mine[digit];
        place[j] = before + rank;
        rp_warp_sync();
        if (rank == 0) mine[digit] = (rp_u16)(before + (rp_u32)rp_popc(same));
        rp_warp_sync();
    }
    rp_barrier();
    rp_u32 sum = 0;
    if (t < 256) {
        _Pragma("unroll") for (int v = 0; v < RP_WARPS; v++) sum += s->of_warp[v][t];
        const rp_u32 fillers = t == 255 ? RP_TILE - live : 0;
        if (sum - fillers == live) s->alone = (rp_u32)shift + 1u;
    }
    rp_u32 next = rp_sum_below(s->part, sum);
    *total = sum;
    *below = next;
    if (t < 256) {
        _Pragma("unroll") for (int v = 0; v < RP_WARPS; v++) {
            const rp_u32 count = s->of_warp[v][t];
            s->of_warp[v][t] = (rp_u16)next;
            next += count;
        }
    }
    rp_barrier();
    _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) place[j] += mine[(rp_u32)(key[j] >> shift) & 255u];
}
#endif

#if RP_FORM >= 2
/* Where the row lies before the digit at `shift` is sorted. */
RP_FN rp_u32 rp_place_of(const RP_WORDS *p, rp_i64 row) {
    const rp_u32 *places = (const rp_u32 *)(p->w[3] + p->w[19]);
    const int digit = (int)p->w[12] / 8;
    return digit ? places[row * RP_DIGITS + digit] : 0;
}
RP_FN RP_K *rp_keys_of(const RP_WORDS *p, rp_i64 row, rp_u32 which) {
    return (RP_K *)(p->w[3] + p->w[11 + 2 * which]) + row * (rp_i64)p->w[4];
}
RP_FN rp_u32 *rp_places_of(const RP_WORDS *p, rp_i64 row, rp_u32 which) {
    return (rp_u32 *)(p->w[3] + p->w[12 + 2 * which]) + row * (rp_i64)p->w[4];
}
/* Of digit 0 in chunk 0; digits are `chunks` apart. */
RP_FN rp_u32 *rp_counts_of(const RP_WORDS *p, rp_i64 row) {
    return (rp_u32 *)(p->w[3] + p->w[17]) + row * 256 * (rp_i64)p->w[11];
}
RP_FN rp_u32 *rp_sums_of(const RP_WORDS *p, rp_i64 row) { return (rp_u32 *)(p->w[3] + p->w[18]) + row * 256; }
#endif

#if RP_FORM == 1 || RP_FORM == 4
extern __shared__ rp_u64 rp_exchange[]; /* keys of a tile, then places */
#endif

extern "C" __global__ void __launch_bounds__(RP_THREADS, RP_BLOCKS) RP_NAME(const RP_WORDS p) {
#if RP_FORM == 0
    const int t = (int)threadIdx.x, lane = t % RP_LANES;
    const int n = (int)p.w[4], k = (int)p.w[5];
    const rp_i64 rows = (rp_i64)p.w[6], mine = (rp_i64)blockIdx.x * (256 / RP_LANES) + t / RP_LANES;
    const rp_i64 sv = (rp_i64)p.w[7], si = (rp_i64)p.w[8], sx = (rp_i64)p.w[9];
    const rp_row r = rp_row_of(&p, mine < rows ? mine : 0);
    rp_launch_dependents();
    rp_grid_wait();
#if RP_BITS == 64
    rp_u64 key[RP_EACH];
    rp_u32 place[RP_EACH];
#else
    RP_ENTRY entry[RP_EACH];
#endif
    _Pragma("unroll") for (int j = 0; j < RP_EACH; j++) {
        const int e = j * RP_LANES + lane;
        const RP_K first = e < n ? rp_key(r.x[e * sx]) : RP_LAST; /* fillers come last */
#if RP_BITS == 64
        key[j] = first;
        place[j] = (rp_u32)e;
#else
        entry[j] = (RP_ENTRY)first << RP_SHIFT | (RP_ENTRY)e;
#endif
    }
    _Pragma("unroll") for (int size = 2; size <= RP_PADDED; size *= 2) {
        _Pragma("unroll") for (int step = size / 2; step > 0; step /= 2) {
            _Pragma("unroll") for (int j = 0; j < RP_EACH; j++) {
                const int e = j * RP_LANES + lane, across = step < RP_LANES;
                const int other = across ? j : j ^ (step / RP_LANES), up = (e & size) == 0;
                if (!across && other < j) continue;
#if RP_BITS == 64
                const rp_u64 b = across ? RP_SHUFFLE(key[j], step % RP_LANES, 32) : key[other];
                const rp_u32 q = across ? rp_shfl_xor_u32(place[j], step % RP_LANES, 32) : place[other];
                const int after = key[j] > b || (key[j] == b && place[j] > q);
                if (after == (across && (e & step) ? !up : up)) {
                    if (!across) key[other] = key[j], place[other] = place[j];
                    key[j] = b, place[j] = q;
                }
#else
                const RP_ENTRY a = entry[j], b = across ? RP_SHUFFLE(a, step % RP_LANES, 32) : entry[other];
                const RP_ENTRY low = a < b ? a : b, high = a < b ? b : a;
                entry[j] = (across && (e & step) ? !up : up) ? low : high;
                if (!across) entry[other] = up ? high : low;
#endif
            }
        }
    }
    if (mine >= rows) return;
    _Pragma("unroll") for (int j = 0; j < RP_EACH; j++) {
        const int e = j * RP_LANES + lane;
        if (e >= k) continue;
#if RP_BITS == 64
        const rp_i64 at = (rp_i64)place[j];
        r.values[e * sv] = rp_value(key[j], r.x + at * sx);
#else
        const rp_i64 at = (rp_i64)(entry[j] & 255);
        r.values[e * sv] = rp_value((RP_K)(entry[j] >> RP_SHIFT), r.x + at * sx);
#endif
        r.indices[e * si] = at;
    }

#elif RP_FORM == 1
    __shared__ rp_ranks ranks;
    const int t = (int)threadIdx.x, first = t / 32 * 32 * RP_ITEMS + t % 32;
    const int n = (int)p.w[4], k = (int)p.w[5];
    const rp_i64 sv = (rp_i64)p.w[7], si = (rp_i64)p.w[8], sx = (rp_i64)p.w[9];
    const rp_row r = rp_row_of(&p, (rp_i64)blockIdx.x);
    RP_K key[RP_ITEMS], *keys = (RP_K *)rp_exchange;
    rp_u16 *places = (rp_u16 *)(keys + RP_TILE);
    rp_u32 from[RP_ITEMS], to[RP_ITEMS], total, below;
    rp_launch_dependents();
    rp_grid_wait();
    if (t == 0) ranks.alone = 0;
    _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
        const int e = first + j * 32;
        key[j] = e < n ? rp_key(r.x[e * sx]) : RP_LAST;
        from[j] = (rp_u32)e;
    }
    for (int shift = 0; shift < RP_BITS; shift += 8) {
        rp_rank(&ranks, key, shift, (rp_u32)n, to, &total, &below);
        if (ranks.alone == (rp_u32)shift + 1u) continue; /* fillers stand behind already */
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
            keys[to[j]] = key[j];
            places[to[j]] = (rp_u16)from[j];
        }
        rp_barrier();
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
            key[j] = keys[first + j * 32];
            from[j] = places[first + j * 32];
        }
    }
    _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
        const int e = first + j * 32;
        if (e >= k) continue;
        r.values[e * sv] = rp_value(key[j], r.x + (rp_i64)from[j] * sx);
        r.indices[e * si] = (rp_i64)from[j];
    }

#elif RP_FORM == 2
    __shared__ rp_u32 hist[4][257]; /* lanes that meet in one digit are spread over four */
    const int t = (int)threadIdx.x, shift = (int)p.w[12];
    const rp_i64 n = (rp_i64)p.w[4], chunks = (rp_i64)p.w[11], row = (rp_i64)blockIdx.x / chunks;
    const rp_i64 chunk = (rp_i64)blockIdx.x % chunks, begin = chunk * (rp_i64)p.w[10], sx = (rp_i64)p.w[9];
    const rp_i64 end = begin + (rp_i64)p.w[10] < n ? begin + (rp_i64)p.w[10] : n;
    const rp_row r = rp_row_of(&p, row);
    rp_launch_dependents();
    for (int i = t; i < 4 * 257; i += RP_THREADS) (&hist[0][0])[i] = 0;
    rp_barrier();
    rp_grid_wait();
    const rp_u32 which = rp_place_of(&p, row);
    const RP_K *keys = rp_keys_of(&p, row, which ? which : 1);
    for (rp_i64 i0 = begin; i0 < end; i0 += RP_TILE) {
        rp_u32 digit[RP_ITEMS];
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
            const rp_i64 i = i0 + j * RP_THREADS + t;
            digit[j] = 256; /* none */
            if (i < end) digit[j] = (rp_u32)((which ? keys[i] : rp_key(r.x[i * sx])) >> shift) & 255u;
        }
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
            if (rp_all(digit[j] == rp_shfl_idx_u32(digit[j], 0, 32))) {
                if (t % 32 == 0) rp_atomic_add_u32(&hist[0][digit[j]], 32u);
            } else {
                rp_atomic_add_u32(&hist[t % 4][digit[j]], 1u);
            }
        }
    }
    rp_barrier();
    if (t < 256) rp_counts_of(&p, row)[(rp_i64)t * chunks + chunk] = hist[0][t] + hist[1][t] + hist[2][t] + hist[3][t];

#elif RP_FORM == 3 /* a warp a digit of a row */
    const int t = (int)threadIdx.x, lane = t % 32, digit = (int)(blockIdx.x % 32) * 8 + t / 32;
    const rp_i64 row = (rp_i64)blockIdx.x / 32, chunks = (rp_i64)p.w[11];
    rp_launch_dependents();
    rp_grid_wait();
    rp_u32 *counts = rp_counts_of(&p, row) + digit * chunks, before = 0;
    for (rp_i64 c0 = 0; c0 < chunks; c0 += 32) {
        const rp_i64 c = c0 + lane;
        const rp_u32 mine = c < chunks ? counts[c] : 0;
        rp_u32 sum = mine;
        _Pragma("unroll") for (int step = 1; step < 32; step *= 2) {
            const rp_u32 other = rp_shfl_up_u32(sum, (rp_u32)step, 32);
            if (lane >= step) sum += other;
        }
        if (c < chunks) counts[c] = before + sum - mine;
        before += rp_shfl_idx_u32(sum, 31, 32);
    }
    if (lane == 0) rp_sums_of(&p, row)[digit] = before;

#else
    __shared__ rp_ranks ranks;
    __shared__ rp_u32 to_digit[256], moves; /* where the next element of a digit goes */
    const int t = (int)threadIdx.x, first = t / 32 * 32 * RP_ITEMS + t % 32, shift = (int)p.w[12];
    const rp_i64 n = (rp_i64)p.w[4], k = (rp_i64)p.w[5], chunks = (rp_i64)p.w[11];
    const rp_i64 row = (rp_i64)blockIdx.x / chunks, chunk = (rp_i64)blockIdx.x % chunks;
    const rp_i64 sv = (rp_i64)p.w[7], si = (rp_i64)p.w[8], sx = (rp_i64)p.w[9];
    const rp_i64 begin = chunk * (rp_i64)p.w[10], end = begin + (rp_i64)p.w[10] < n ? begin + (rp_i64)p.w[10] : n;
    const int last = shift == RP_BITS - 8;
    const rp_row r = rp_row_of(&p, row);
    RP_K key[RP_ITEMS], *keys = (RP_K *)rp_exchange;
    rp_u32 from[RP_ITEMS], to[RP_ITEMS], total, begins, *places = (rp_u32 *)(keys + RP_TILE);
    if (t == 0) moves = 1;
    rp_barrier();
    rp_launch_dependents();
    rp_grid_wait();
    const rp_u32 sum = t < 256 ? rp_sums_of(&p, row)[t] : 0, below = rp_sum_below(ranks.part, sum);
    if (t < 256) {
        to_digit[t] = below + rp_counts_of(&p, row)[(rp_i64)t * chunks + chunk];
        if (sum == (rp_u32)n && !last) moves = 0;
    }
    rp_barrier();
    const rp_u32 which = rp_place_of(&p, row), next = !moves ? which : which == 1 ? 2 : 1;
    if (chunk == 0 && t == 0 && !last) ((rp_u32 *)(p.w[3] + p.w[19]))[row * RP_DIGITS + shift / 8 + 1] = next;
    if (!moves) return;
    const RP_K *in = rp_keys_of(&p, row, which ? which : 1);
    const rp_u32 *in_places = rp_places_of(&p, row, which ? which : 1);
    RP_K *out = rp_keys_of(&p, row, next);
    rp_u32 *out_places = rp_places_of(&p, row, next);
    for (rp_i64 i0 = begin; i0 < end; i0 += RP_TILE) {
        const rp_u32 live = end - i0 < RP_TILE ? (rp_u32)(end - i0) : RP_TILE;
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
            const rp_i64 i = i0 + first + j * 32;
            const int there = (rp_u32)(first + j * 32) < live;
            key[j] = RP_LAST;
            from[j] = (rp_u32)i;
            if (there) key[j] = which ? in[i] : rp_key(r.x[i * sx]);
            if (there && which) from[j] = in_places[i];
        }
        rp_rank(&ranks, key, shift, live, to, &total, &begins);
        if (t < 256) to_digit[t] -= begins; /* an element goes to its place in the tile and this */
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
            keys[to[j]] = key[j];
            places[to[j]] = from[j];
        }
        rp_barrier();
        _Pragma("unroll") for (int j = 0; j < RP_ITEMS; j++) {
            const rp_u32 e = (rp_u32)(first + j * 32);
            if (e >= live) continue;
            const RP_K one = keys[e];
            const rp_u32 digit = (rp_u32)(one >> shift) & 255u, place = places[e];
            const rp_i64 at = (rp_i64)(to_digit[digit] + e);
            if (!last) {
                out[at] = one;
                out_places[at] = place;
            } else if (at < k) {
                r.values[at * sv] = rp_value(one, r.x + (rp_i64)place * sx);
                r.indices[at * si] = (rp_i64)place;
            }
        }
        rp_barrier();
        if (t < 256) to_digit[t] += begins + total; /* fillers of the last tile are counted, and nothing follows */
    }
#endif
}
