/* scatter on CUDA. Macros (lib_select.c): RP_NAME RP_WORDS RP_T; RP_COMBINE(a, b) of b into a, in the storage type; RP_FORM
 *   0 an element of index a thread, RP_ATOMIC(p, v): in no fixed order
 *   1 a line along dim a thread, in rising order
 *   2 an element of out a thread, which walks the line's indices in rising order: few lines
 *   3 sums of integers of which there are many for each element of out: a block adds its share up in shared memory, RP_SUMS sums of RP_PARTS words
 *     in all, as often as they fit so that lanes of one index seldom meet, then to out
 * RP_ALONG 1: neighbours in a warp are neighbours along dim, of forms 0 and 3; else lines are. RP_DIMS dims other than dim. Forms 1 and 2 give the bits of the CPU, of integers the others too. A bad index is reported and its element skipped.
 * Words: out index src, error record, tag, length, bound, strides along dim of (out, index, src), lines, copies of the sums of form 3, then
 * extent and the same strides for each other dim. */
typedef struct {
    rp_u64 w[12 + 4 * RP_DIMS];
} RP_WORDS;

typedef struct {
    RP_T *out;
    const rp_i64 *index;
    const RP_T *src;
} rp_line;

RP_FN rp_line rp_line_of(const RP_WORDS *p, rp_i64 line) {
    rp_i64 oo = 0, ok = 0, os = 0;
    _Pragma("unroll") for (int d = RP_DIMS - 1; d >= 0; d--) {
        const rp_u64 *dim = p->w + 12 + 4 * d;
        rp_i64 i = line;
        if (d > 0) {
            i = line % (rp_i64)dim[0];
            line /= (rp_i64)dim[0];
        }
        oo += i * (rp_i64)dim[1];
        ok += i * (rp_i64)dim[2];
        os += i * (rp_i64)dim[3];
    }
    rp_line r;
    r.out = (RP_T *)p->w[0] + oo;
    r.index = (const rp_i64 *)p->w[1] + ok;
    r.src = (const RP_T *)p->w[2] + os;
    return r;
}

#if RP_ALONG
#define RP_LINE_OF(item) ((item) / length)
#define RP_STEP_OF(item) ((item) % length)
#else
#define RP_LINE_OF(item) (RP_DIMS ? (item) % lines : 0)
#define RP_STEP_OF(item) (RP_DIMS ? (item) / lines : (item))
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
    const rp_i64 length = (rp_i64)p.w[5], bound = (rp_i64)p.w[6], lines = (rp_i64)p.w[10];
    const rp_i64 so = (rp_i64)p.w[7], sk = (rp_i64)p.w[8], ss = (rp_i64)p.w[9];
    const rp_i64 all = RP_FORM == 1 ? lines : RP_FORM == 2 ? lines * bound : lines * length;
    rp_launch_dependents();
    rp_grid_wait();
#if RP_FORM == 3
    enum { EACH = 8 };
    __shared__ rp_u32 sums[RP_PARTS * RP_SUMS];
    const int t = (int)threadIdx.x, copies = (int)p.w[11], slots = (int)(lines * bound), pitch = slots | 1;
    for (int i = t; i < RP_PARTS * RP_SUMS; i += 256) sums[i] = 0;
    rp_barrier();
    for (rp_i64 i0 = (rp_i64)blockIdx.x * (256 * EACH); i0 < all; i0 += (rp_i64)gridDim.x * (256 * EACH)) {
        rp_i64 k[EACH];
        RP_T x[EACH];
        int slot[EACH];
        _Pragma("unroll") for (int j = 0; j < EACH; j++) {
            const rp_i64 item = i0 + j * 256 + t;
            k[j] = 0;
            slot[j] = -1;
            if (item >= all) continue;
            const rp_i64 line = RP_LINE_OF(item), step = RP_STEP_OF(item);
            const rp_line r = rp_line_of(&p, line);
            k[j] = r.index[step * sk];
            x[j] = r.src[step * ss];
            slot[j] = (int)(line * bound);
        }
        _Pragma("unroll") for (int j = 0; j < EACH; j++) {
            if (slot[j] < 0) continue;
            if (k[j] < 0 || k[j] >= bound)
                rp_report(p.w[3], p.w[4], 1, k[j], bound);
            else
                rp_add_up(sums + t % copies * pitch + slot[j] + (int)k[j], (rp_u64)(rp_i64)x[j]);
        }
    }
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
        if (sum) RP_ATOMIC(rp_line_of(&p, i / bound).out + i % bound * so, (RP_T)sum);
    }
#else
    for (rp_i64 item = (rp_i64)blockIdx.x * 256 + (rp_i64)threadIdx.x; item < all; item += (rp_i64)gridDim.x * 256) {
        const rp_i64 step = RP_STEP_OF(item);
        const rp_line r = rp_line_of(&p, RP_LINE_OF(item));
        RP_T *out = r.out;
        const rp_i64 *index = r.index;
        const RP_T *src = r.src;
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
#endif
}
