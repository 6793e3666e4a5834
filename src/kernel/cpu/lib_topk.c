/* topk on the CPU: a heap of the k best of a row, then that heap sorted; many are told from the rest by their leading digit first. A sort, as topk of
   a whole row is, goes by digits, or merges runs if it is short. Equal values: the lower index first; -0 equals 0; NaN is the largest value of all.
   The result is always sorted. An item is a row. */
#include <string.h>

#include "core/dtype.h"
#include "kernel/cpu/lib.h"

/* `order` is larger for what comes first. */
typedef struct entry {
    uint64_t order;
    int64_t index;
} entry;

enum {
    VALUES,
    INDICES,
    X,
    HEAP,
    K,
    N,
    LARGEST,
    STRIDE_VALUES,
    STRIDE_INDICES,
    STRIDE_X,
    ROWS,
    WORDS
}; /* then the row dims */

enum { DIGIT = 11, DIGITS = 1 << DIGIT, MANY = 64, SHORT_SORT = 48, LONG_SORT = 2048 };
/* Entries of workspace for a row. */
static inline int64_t room(int64_t k, int64_t n) { return k == n || k > MANY ? 2 * k : k; }

static inline bool before(entry a, entry b) { return a.order > b.order || (a.order == b.order && a.index < b.index); }

/* Monotone maps of values to unsigned integers. */
static inline uint64_t order_f32(float x) {
    if (x != x) return UINT32_MAX;
    x += 0.0f; /* -0 becomes 0 */
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u >> 31 ? ~u : u | UINT32_C(1) << 31;
}
static inline uint64_t order_f64(double x) {
    if (x != x) return UINT64_MAX;
    x += 0.0;
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u >> 63 ? ~u : u | UINT64_C(1) << 63;
}

/* The root is the last of those kept. */
static void sift(entry *heap, int64_t n, int64_t at, entry x) {
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(heap[child], heap[child + 1])) child++;
        if (!before(x, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* In order, by insertion and then by merging runs of twice the length; b is as long. */
static void merge_sort(entry *a, entry *b, int64_t n) {
    enum { RUN = 16 };
    for (int64_t from = 0; from < n; from += RUN) {
        const int64_t to = from + RUN < n ? from + RUN : n;
        for (int64_t i = from + 1; i < to; i++) {
            const entry x = a[i];
            int64_t at = i;
            for (; at > from && a[at - 1].order < x.order; at--) a[at] = a[at - 1];
            a[at] = x;
        }
    }
    entry *from = a, *to = b;
    for (int64_t run = RUN; run < n; run *= 2) {
        for (int64_t low = 0; low < n; low += 2 * run) {
            const int64_t middle = low + run < n ? low + run : n, high = middle + run < n ? middle + run : n;
            int64_t i = low, j = middle;
            for (int64_t k = low; k < high; k++)
                to[k] = j < high && (i == middle || from[j].order > from[i].order) ? from[j++] : from[i++];
        }
        entry *const t = from;
        from = to;
        to = t;
    }
    if (from != a) memcpy(a, from, (size_t)n * sizeof *a);
}

/* In order; entries come by rising index, and b is as long. A pass a digit in which orders differ, from the last digit on, keeps the order of equal ones.
   Never inlined: merging, which stands beside it, needs the registers. */
static __attribute__((noinline)) void digit_sort(entry *a, entry *b, int64_t n) {
    uint64_t differ = 0;
    for (int64_t i = 1; i < n; i++) differ |= a[i].order ^ a[0].order;
    uint32_t at[DIGITS];
    const unsigned bits = n < LONG_SORT ? 8 : DIGIT; /* few entries are not worth many counts */
    const uint64_t last = (UINT64_C(1) << bits) - 1;
    entry *from = a, *to = b;
    while (differ) {
        const unsigned shift = (unsigned)__builtin_ctzll(differ);
        differ &= shift + bits < 64 ? UINT64_MAX << (shift + bits) : 0;
        memset(at, 0, (last + 1) * sizeof *at);
        for (int64_t i = 0; i < n; i++) at[from[i].order >> shift & last]++;
        uint32_t sum = 0;
        for (uint64_t d = last + 1; d-- > 0;) {
            const uint32_t many = at[d];
            at[d] = sum;
            sum += many;
        }
        for (int64_t i = 0; i < n; i++) to[at[from[i].order >> shift & last]++] = from[i];
        entry *const t = from;
        from = to;
        to = t;
    }
    if (from != a) memcpy(a, from, (size_t)n * sizeof *a);
}

static void sort(entry *a, entry *b, int64_t n) {
    if (n < SHORT_SORT || n > UINT32_MAX)
        merge_sort(a, b, n);
    else
        digit_sort(a, b, n);
}
static void make_heap(entry *heap, int64_t n) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(heap, n, i, heap[i]);
}
static void sort_heap(entry *heap, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        const entry last = heap[i];
        heap[i] = heap[0];
        sift(heap, i, 0, last);
    }
}
/* Of n elements whose leading digits, from that of `least` on, are so many: which orders compete for the last of k places, all greater ones have theirs.
   Returns how many those are. */
static int64_t find_border(const uint32_t *many, uint64_t least, unsigned shift, int64_t k, uint64_t *low,
                           uint64_t *high) {
    int64_t above = 0, digit = DIGITS - 1;
    for (; above + many[digit] < k; digit--) above += many[digit];
    *low = (least + (uint64_t)digit) << shift;
    *high = *low + ((UINT64_C(1) << shift) - 1);
    return above;
}

#define ROWS_OF(name, T, ORDER)                                                                                        \
    static void select_many_##name(const T *x, int64_t stride, int64_t n, int64_t k, uint64_t flip, entry *best) {     \
        uint64_t least = UINT64_MAX, most = 0, low, high;                                                              \
        uint32_t many[DIGITS] = {0};                                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const uint64_t order = ORDER(x[i * stride]) ^ flip;                                                        \
            least = order < least ? order : least;                                                                     \
            most = order > most ? order : most;                                                                        \
        }                                                                                                              \
        const unsigned width = 64 - (unsigned)__builtin_clzll((least ^ most) | 1);                                     \
        const unsigned shift = width > DIGIT ? width - DIGIT : 0;                                                      \
        least >>= shift;                                                                                               \
        for (int64_t i = 0; i < n; i++) many[((ORDER(x[i * stride]) ^ flip) >> shift) - least]++;                      \
        const int64_t above = find_border(many, least, shift, k, &low, &high), left = k - above;                       \
        entry *const heap = best + above;                                                                              \
        for (int64_t i = 0, have = 0, in = 0; i < n; i++) {                                                            \
            const uint64_t order = ORDER(x[i * stride]) ^ flip;                                                        \
            if (order < low) continue;                                                                                 \
            if (order > high) {                                                                                        \
                best[have++] = (entry){order, i};                                                                      \
            } else if (in < left) {                                                                                    \
                heap[in++] = (entry){order, i};                                                                        \
                if (in == left) make_heap(heap, left);                                                                 \
            } else if (order > heap[0].order) { /* an equal value that comes later never gets in */                    \
                sift(heap, left, 0, (entry){order, i});                                                                \
            }                                                                                                          \
        }                                                                                                              \
        sort(best, best + k, above);                                                                                   \
        sort_heap(heap, left);                                                                                         \
    }                                                                                                                  \
    static void select_##name(const T *x, int64_t stride, int64_t n, int64_t k, uint64_t flip, entry *heap) {          \
        if (k > MANY && k < n && n <= UINT32_MAX) {                                                                    \
            select_many_##name(x, stride, n, k, flip, heap);                                                           \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < k; i++) heap[i] = (entry){ORDER(x[i * stride]) ^ flip, i};                             \
        if (k == n) {                                                                                                  \
            sort(heap, heap + n, n);                                                                                   \
            return;                                                                                                    \
        }                                                                                                              \
        make_heap(heap, k);                                                                                            \
        for (int64_t i = k; i < n; i++) {                                                                              \
            const uint64_t order = ORDER(x[i * stride]) ^ flip;                                                        \
            if (order > heap[0].order) sift(heap, k, 0, (entry){order, i});                                            \
        }                                                                                                              \
        sort_heap(heap, k);                                                                                            \
    }                                                                                                                  \
    static void run_##name(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {                  \
        (void)kernel;                                                                                                  \
        const int64_t *v = (const int64_t *)w, k = v[K];                                                               \
        for (int64_t row = begin; row < end; row++) {                                                                  \
            int64_t rest = row, ov = 0, oi = 0, ox = 0;                                                                \
            for (int64_t d = v[ROWS] - 1; d >= 0; d--) {                                                               \
                const int64_t *dim = v + WORDS + 4 * d, i = rest % dim[0];                                             \
                rest /= dim[0];                                                                                        \
                ov += i * dim[1], oi += i * dim[2], ox += i * dim[3];                                                  \
            }                                                                                                          \
            const T *x = (const T *)(uintptr_t)w[X] + ox;                                                              \
            T *values = (T *)(uintptr_t)w[VALUES] + ov;                                                                \
            int64_t *indices = (int64_t *)(uintptr_t)w[INDICES] + oi;                                                  \
            entry *heap = (entry *)(uintptr_t)w[HEAP] + row * room(k, v[N]);                                           \
            select_##name(x, v[STRIDE_X], v[N], k, w[LARGEST] ? 0 : UINT64_MAX, heap);                                 \
            for (int64_t i = 0; i < k; i++) {                                                                          \
                values[i * v[STRIDE_VALUES]] = x[heap[i].index * v[STRIDE_X]];                                         \
                indices[i * v[STRIDE_INDICES]] = heap[i].index;                                                        \
            }                                                                                                          \
        }                                                                                                              \
    }
#define ORDER_F16(x) order_f32(rp__f16_to_f32(x))
#define ORDER_BF16(x) order_f32(rp__bf16_to_f32(x))
#define ORDER_INT(x) ((uint64_t)(int64_t)(x) ^ UINT64_C(1) << 63)
ROWS_OF(f32, float, order_f32)
ROWS_OF(f64, double, order_f64)
ROWS_OF(f16, uint16_t, ORDER_F16)
ROWS_OF(bf16, uint16_t, ORDER_BF16)
ROWS_OF(i32, int32_t, ORDER_INT)
ROWS_OF(i64, int64_t, ORDER_INT)
ROWS_OF(u8, uint8_t, ORDER_INT)
ROWS_OF(i8, int8_t, ORDER_INT)
ROWS_OF(i16, int16_t, ORDER_INT)

#define KERNEL(dtype, text)                                                                                            \
    [dtype] = {.kind = RP__KERNEL_CPU, .name = "topk_" #text, .key = {dtype, 0x746f706b}, .cpu = run_##text}
static rp__kernel kernels[RP__DTYPE_COUNT] = {
    KERNEL(RP_F32, f32), KERNEL(RP_F64, f64), KERNEL(RP_F16, f16), KERNEL(RP_BF16, bf16), KERNEL(RP_I32, i32),
    KERNEL(RP_I64, i64), KERNEL(RP_U8, u8),   KERNEL(RP_BOOL, u8), KERNEL(RP_I8, i8),     KERNEL(RP_I16, i16),
};

size_t rp__cpu_topk_workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                              const rp__library_call *call) {
    (void)d, (void)op;
    if (n < 3 || (unsigned)call->dim >= o[2].ndim || call->k < 1) return 0;
    return (size_t)(rp__operand_numel(&o[0]) / call->k * room(call->k, o[2].size[call->dim])) * sizeof(entry);
}

rp_status rp__cpu_topk_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                            const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__operand *values = &o[0], *indices = &o[1], *x = &o[2];
    const unsigned dim = (unsigned)call->dim, nd = x->ndim;
    const size_t bytes = rp__cpu_topk_workspace(d, op, o, n, call);
    if (!bytes) return RP_OK;
    uint64_t *w = buffer->words;
    rp__operand_slot(values, VALUES, RP__WRITE, buffer, out);
    rp__operand_slot(indices, INDICES, RP__WRITE, buffer, out);
    rp__operand_slot(x, X, RP__READ, buffer, out);
    RP_TRY(rp__workspace_slot(call, bytes, HEAP, buffer, out));
    w[K] = (uint64_t)call->k, w[N] = (uint64_t)x->size[dim], w[LARGEST] = call->largest;
    w[STRIDE_VALUES] = (uint64_t)values->stride[dim], w[STRIDE_INDICES] = (uint64_t)indices->stride[dim];
    w[STRIDE_X] = (uint64_t)x->stride[dim];
    uint64_t *at = w + WORDS;
    int64_t rows = 1;
    for (unsigned i = 0; i < nd; i++) {
        if (i == dim) continue;
        rows *= x->size[i];
        *at++ = (uint64_t)x->size[i], *at++ = (uint64_t)values->stride[i], *at++ = (uint64_t)indices->stride[i];
        *at++ = (uint64_t)x->stride[i];
    }
    w[ROWS] = nd - 1;
    out->n_words = (uint32_t)(at - w);
    out->items = rows;
    out->grain = rp__cpu_grain(rows, 3.0 * (double)x->size[dim] + 40.0 * (double)call->k);
    out->kernel = &kernels[x->dtype];
    return RP_OK;
}
