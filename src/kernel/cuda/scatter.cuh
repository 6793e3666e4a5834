/* scatter on CUDA. Macros (lib_select.c): RP_NAME RP_WORDS RP_T; RP_COMBINE(a, b) of b into a, in the storage type; RP_FORM
 *   0 RP_EACH elements of index a thread, read before the first of them is written, RP_ATOMIC(p, v): in no fixed order
 *   1 a line along dim a thread, in rising order
 *   2 an element of out a thread, which walks the line's indices in rising order: few lines
 *   3 sums of integers of which there are many for each element of out: a block adds its share up in shared memory, RP_SUMS sums of RP_PARTS words
 *     in all, as often as they fit so that lanes of one index seldom meet, then to out
 * RP_ALONG 1: neighbours in a warp are neighbours along dim, of forms 0 and 3; else lines are. RP_DIMS dims other than dim. RP_INDEX: a type
 * for numbers of elements and for offsets: of 32 bits where they fit, since a division of 64 costs as much as all else; RP_SHARE(a, b, RP_INVERSE(b))
 * divides them. Forms 1 and 2 give the bits of the CPU, of integers the others too. A bad index is reported and its element skipped.
 * Words: out index src, error record, tag, length, bound, strides along dim of (out, index, src), lines, copies of the sums of form 3, where the first and the
 * last element of out lie, counted from its pointer (nowhere if what lies between them is not all its own), then extent and the same strides for each other dim.
 * RP_HALF(p, v): of types of 16 bits, whose RP_ATOMIC writes a whole word, where the other half is no element of out. */
typedef struct {
    rp_u64 w[14 + 4 * RP_DIMS];
} RP_WORDS;

typedef struct {
    RP_T *out;
    const rp_i64 *index;
    const RP_T *src;
} rp_line;

/* inverse: of the extents of the other dims. */
RP_FN rp_line rp_line_of(const RP_WORDS *p, RP_INDEX line, const rp_u32 *inverse) {
    RP_INDEX oo = 0, ok = 0, os = 0;
    _Pragma("unroll") for (int d = RP_DIMS - 1; d >= 0; d--) {
        const rp_u64 *dim = p->w + 14 + 4 * d;
        RP_INDEX i = line;
        if (d > 0) {
            const RP_INDEX rest = RP_SHARE(line, dim[0], inverse[d]);
            i = line - rest * (RP_INDEX)dim[0];
            line = rest;
        }
        oo += i * (RP_INDEX)dim[1];
        ok += i * (RP_INDEX)dim[2];
        os += i * (RP_INDEX)dim[3];
    }
    rp_line r;
    r.out = (RP_T *)p->w[0] + oo;
    r.index = (const rp_i64 *)p->w[1] + ok;
    r.src = (const RP_T *)p->w[2] + os;
    return r;
}

/* Item number `item` of lines of `length` elements: its line, and its place there. */
RP_FN RP_INDEX rp_split(RP_INDEX item, RP_INDEX lines, RP_INDEX length, rp_u32 inverse, RP_INDEX *line) {
#if RP_ALONG
    *line = RP_SHARE(item, length, inverse);
    return item - *line * length;
#elif RP_DIMS
    const RP_INDEX step = RP_SHARE(item, lines, inverse);
    *line = item - step * lines;
    return step;
#else
    *line = 0;
    return item;
#endif
}

#if defined(RP_EXCHANGE) && RP_FORM == 0
/* What has no instruction: the word of an element, of RP_EXCHANGE bytes, is exchanged if nobody was faster. RP_ANY_ORDER(a, b) as RP_COMBINE, RP_CAS,
 * RP_BITS and RP_OF_BITS of RP_WORD. */
RP_FN void rp_exchange(RP_T *p, RP_T v) {
#if RP_EXCHANGE < 4
    const int shift = (int)((rp_u64)p & 3) * 8;
    const rp_u32 mask = ((1u << 8 * RP_EXCHANGE) - 1) << shift;
#else
    const int shift = 0;
    const RP_WORD mask = ~(RP_WORD)0;
#endif
    RP_WORD *at = (RP_WORD *)((rp_u64)p & ~(rp_u64)3), seen = *(volatile RP_WORD *)at, assumed;
    do {
        assumed = seen;
        const RP_T old = RP_OF_BITS((assumed & mask) >> shift);
        const RP_WORD next = (assumed & ~mask) | (RP_BITS(RP_ANY_ORDER(old, v)) << shift & mask);
        if (next == assumed) break;
        seen = RP_CAS(at, assumed, next);
    } while (seen != assumed);
}
#endif

#ifdef RP_HALF
#define RP_PUT(at, v) rp_put(&p, at, v)
RP_FN void rp_put(const RP_WORDS *words, RP_T *p, RP_T v) {
    const rp_u64 other = (rp_u64)p ^ 2, out = words->w[0];
    if (other >= out + 2 * words->w[12] && other <= out + 2 * words->w[13])
        RP_ATOMIC(p, v);
    else
        RP_HALF(p, v);
}
#else
#define RP_PUT(at, v) RP_ATOMIC(at, v)
#endif

#if RP_FORM == 3
/* The words of a sum lie RP_SUMS apart: the carry of the lower one goes to the upper one, in any order. */
RP_FN void rp_add_up(rp_u32 *sum, rp_u64 x) {
    const rp_u32 low = (rp_u32)x;
#if RP_PARTS == 2
    rp_u32 high = (rp_u32)(x >> 32);
    if (low && (rp_u32)(rp_atomic_add_u32(sum, low) + low) < low) high++;
    if (high) rp_atomic_add_u32(sum + RP_SUMS, high);
#else
    rp_atomic_add_u32(sum, low);
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    const RP_INDEX length = (RP_INDEX)p.w[5], lines = (RP_INDEX)p.w[10];
    const RP_INDEX so = (RP_INDEX)p.w[7], sk = (RP_INDEX)p.w[8], ss = (RP_INDEX)p.w[9];
    const rp_i64 bound = (rp_i64)p.w[6];
    const RP_INDEX all = RP_FORM == 1 ? lines : RP_FORM == 2 ? lines * (RP_INDEX)bound : lines * length;
    rp_u32 inverse[RP_DIMS + 1];
    const rp_u32 part = RP_INVERSE(RP_ALONG ? length : lines);
    _Pragma("unroll") for (int d = 0; d < RP_DIMS; d++) inverse[d] = RP_INVERSE(p.w[14 + 4 * d]);
    (void)part;
    rp_launch_dependents();
    rp_grid_wait();
#if RP_FORM == 0 || RP_FORM == 3
    const RP_INDEX pass = 256 * RP_EACH;
#if RP_FORM == 3
    __shared__ rp_u32 sums[RP_PARTS * RP_SUMS];
    const int t = (int)threadIdx.x, copies = (int)p.w[11], slots = (int)(lines * (RP_INDEX)bound), pitch = slots | 1;
    for (int i = t; i < copies * pitch; i += 256) {
        sums[i] = 0;
#if RP_PARTS == 2
        sums[RP_SUMS + i] = 0;
#endif
    }
    rp_barrier();
#else
    const int t = (int)threadIdx.x;
#endif
    for (RP_INDEX i0 = (RP_INDEX)blockIdx.x * pass; i0 < all; i0 += (RP_INDEX)gridDim.x * pass) {
        rp_i64 k[RP_EACH];
        RP_T x[RP_EACH];
#if RP_FORM == 3
        int to[RP_EACH];
#else
        RP_T *to[RP_EACH];
#endif
        _Pragma("unroll") for (int j = 0; j < RP_EACH; j++) {
            const RP_INDEX item = i0 + j * 256 + t;
            k[j] = 0;
            x[j] = 0;
#if RP_FORM == 3
            to[j] = -1;
#else
            to[j] = 0;
#endif
            if (item >= all) continue;
            RP_INDEX line;
            const RP_INDEX step = rp_split(item, lines, length, part, &line);
            const rp_line r = rp_line_of(&p, line, inverse);
            k[j] = r.index[step * sk];
            x[j] = r.src[step * ss];
#if RP_FORM == 3
            to[j] = (int)(line * (RP_INDEX)bound);
#else
            to[j] = r.out;
#endif
        }
        _Pragma("unroll") for (int j = 0; j < RP_EACH; j++) {
            if (i0 + j * 256 + t >= all) continue;
            if (k[j] < 0 || k[j] >= bound) {
                rp_report(p.w[3], p.w[4], 1, k[j], bound);
                continue;
            }
#if RP_FORM == 3
            rp_add_up(sums + t % copies * pitch + to[j] + (int)k[j], (rp_u64)(rp_i64)x[j]);
#else
            RP_PUT(to[j] + (RP_INDEX)k[j] * so, x[j]);
#endif
        }
    }
#if RP_FORM == 3
    rp_barrier();
    for (int i = t; i < slots; i += 256) {
        rp_u64 sum = 0;
        for (int c = 0; c < copies; c++) {
            const rp_u32 *part = sums + c * pitch + i;
            sum += part[0];
#if RP_PARTS == 2
            sum += (rp_u64)part[RP_SUMS] << 32;
#endif
        }
        if (sum) RP_ATOMIC(rp_line_of(&p, i / (RP_INDEX)bound, inverse).out + i % (RP_INDEX)bound * so, (RP_T)sum);
    }
#endif
#else
    for (RP_INDEX item = (RP_INDEX)blockIdx.x * 256 + (RP_INDEX)threadIdx.x; item < all;
         item += (RP_INDEX)gridDim.x * 256) {
        RP_INDEX line;
        const RP_INDEX step = rp_split(item, lines, length, part, &line);
        const rp_line r = rp_line_of(&p, line, inverse);
        RP_T *out = r.out;
        const rp_i64 *index = r.index;
        const RP_T *src = r.src;
#if RP_FORM == 1
        for (RP_INDEX i = 0; i < length; i++) {
            const rp_i64 k = index[i * sk];
            if (k < 0 || k >= bound)
                rp_report(p.w[3], p.w[4], 1, k, bound);
            else
                out[(RP_INDEX)k * so] = RP_COMBINE(out[(RP_INDEX)k * so], src[i * ss]);
        }
        (void)step;
#else
        RP_T sum = out[step * so];
        int touched = 0;
        for (RP_INDEX i = 0; i < length; i++) {
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
#endif
}
