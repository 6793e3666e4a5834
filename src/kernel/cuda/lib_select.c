/* See lib_select.h: macros, words and grids of nonzero.cuh, multinomial.cuh, scatter.cuh, weighted_scatter.cuh, count_bins.cuh and ctc.cuh. */
#include "kernel/cuda/lib_select.h"

#include <string.h>

#include "core/dtype.h"
#include "device/cuda/cuda.h"
#include "device/error_record.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"
#include "tensor/tensor.h"

/* ---- nonzero: three kernels behind one record */

enum { NONZERO_CHUNK = 2048, NONZERO_WORDS = 8 + 2 * RP_MAX_DIMS, NONZERO_FACTS = NONZERO_WORDS };

static void nonzero_macros(uint64_t facts, rp__text *out) {
    rp_dtype dtype = (rp_dtype)(facts & 0xff);
    static const char *const types[9] = {[1] = "rp_u8", [2] = "rp_u16", [4] = "rp_u32", [8] = "rp_u64"};
    size_t bytes = rp__dtype_bytes(dtype);
    rp__text_add(out, "#define RP_T %s\n#define RP_PHASE %u\n#define RP_DIMS %u\n", types[bytes],
                 (unsigned)(facts >> 8 & 3), (unsigned)(facts >> 16 & 0xff));
    /* a float is zero whatever its sign */
    if (rp__dtype_is_float(dtype))
        rp__text_puts(out, "#define RP_BITS_OF(x) ((RP_T)((x) << 1))\n");
    else
        rp__text_puts(out, "#define RP_BITS_OF(x) (x)\n");
}

static rp_status nonzero_kernel(rp__device *d, uint64_t facts, unsigned phase, rp__kernel **out) {
    rp__text_kernel_key key = {.family = "nonzero"};
    key.facts = facts | (uint64_t)phase << 8;
    return rp__text_kernel(d, &key, nonzero_macros, rp__embed_nonzero_cuh, rp__embed_nonzero_cuh_len, out);
}

static rp_status nonzero_enqueue(const rp__kernel *k, rp_stream *s, const rp__launch *l) {
    (void)k;
    for (unsigned phase = 0; phase < 3; phase++) {
        rp__launch part = *l;
        RP_TRY(nonzero_kernel(s->device, l->words[NONZERO_FACTS], phase, &part.kernel));
        part.grid[0] = phase == 1 ? 1 : (uint32_t)l->words[5];
        RP_TRY(rp__cuda_enqueue(s->device, s, &part));
    }
    return RP_OK;
}

size_t rp__cuda_nonzero_workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                  const rp__library_call *call) {
    (void)op;
    (void)d;
    (void)call;
    return n < 3 ? 0 : (size_t)((rp__operand_numel(&o[2]) + NONZERO_CHUNK - 1) / NONZERO_CHUNK) * 8;
}

rp_status rp__cuda_nonzero_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op;
    static const uint32_t access[3] = {RP__WRITE, RP__WRITE, RP__READ};
    static rp__kernel kernel = {.refs = 1,
                                .kind = RP__KERNEL_CUDA_LIBRARY,
                                .key = {0x6e6f6e7a65726f, 1},
                                .name = "nonzero",
                                .enqueue = nonzero_enqueue};
    const rp__operand *indices = &o[0], *x = &o[2];
    rp__operand_slots(o, 3, access, buffer, out);
    RP_TRY(rp__workspace_slot(call, rp__cuda_nonzero_workspace(d, op, o, n, call), 3, buffer, out));
    uint64_t *w = buffer->words;
    memset(w + 4, 0, (NONZERO_WORDS + 1 - 4) * sizeof *w);
    w[4] = (uint64_t)rp__operand_numel(x), w[5] = (w[4] + NONZERO_CHUNK - 1) / NONZERO_CHUNK;
    w[6] = (uint64_t)indices->stride[0], w[7] = (uint64_t)indices->stride[1];
    for (unsigned i = 0; i < x->ndim; i++) w[8 + 2 * i] = (uint64_t)x->size[i], w[9 + 2 * i] = (uint64_t)x->stride[i];
    w[NONZERO_FACTS] = (uint64_t)x->dtype | (uint64_t)x->ndim << 16;
    out->n_words = NONZERO_FACTS + 1;
    /* built now: a capture must not meet a compilation */
    rp__kernel *part;
    for (unsigned phase = 0; phase < 3; phase++) RP_TRY(nonzero_kernel(d, w[NONZERO_FACTS], phase, &part));
    RP_TRY(rp__cuda_line_grid(out, call, (int64_t)w[5] > 0 ? (int64_t)w[5] : 1, 256));
    if (w[5] == 0) { /* nothing to look at: the count alone */
        RP_TRY(nonzero_kernel(d, w[NONZERO_FACTS], 1, &out->kernel));
        return RP_OK;
    }
    out->kernel = &kernel;
    return RP_OK;
}

/* ---- multinomial */

static void multinomial_macros(uint64_t facts, rp__text *out) {
    rp__text_add(out, "#define RP_T %s\n", facts == RP_F64 ? "double" : "float");
}

size_t rp__cuda_multinomial_workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                      const rp__library_call *call) {
    (void)d, (void)op;
    return n < 2 || call->replacement ? 0 : (size_t)rp__operand_numel(&o[1]);
}

rp_status rp__cuda_multinomial_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                    const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op;
    static const uint32_t access[2] = {RP__WRITE, RP__READ};
    const rp__operand *y = &o[0], *x = &o[1];
    if (y->size[0] == 0 || y->size[1] == 0) return RP_OK;
    rp__operand_slots(o, 2, access, buffer, out);
    RP_TRY(rp__workspace_slot(call, rp__cuda_multinomial_workspace(d, op, o, n, call), 2, buffer, out));
    uint64_t *w = buffer->words;
    int shift = 62;
    for (int64_t m = 1; m < x->size[1]; m *= 2) shift--;
    w[3] = (uint64_t)(uintptr_t)call->draw.state, w[4] = call->draw.seed, w[5] = call->draw.inner;
    w[6] = (uint64_t)(uintptr_t)d->errors, w[7] = rp__error_tag(call->op, call->site);
    w[8] = (uint64_t)y->size[1], w[9] = (uint64_t)x->size[1], w[10] = (uint64_t)shift, w[11] = call->replacement;
    w[12] = (uint64_t)y->stride[0], w[13] = (uint64_t)y->stride[1];
    w[14] = (uint64_t)x->stride[0], w[15] = (uint64_t)x->stride[1];
    out->n_words = 16;
    out->draw = 3;
    out->n_draws = 1;
    rp__text_kernel_key key = {.family = "multinomial", .facts = (uint64_t)x->dtype};
    RP_TRY(rp__text_kernel(d, &key, multinomial_macros, rp__embed_multinomial_cuh, rp__embed_multinomial_cuh_len,
                           &out->kernel));
    return rp__cuda_line_grid(out, call, y->size[0], 256);
}

/* ---- scatter */

/* Which of them a device combines in one step; others by exchanges, but what is SET, which needs no more than a store. */
static const char *atomic_of(rp_dtype dtype, rp__scatter kind) {
    const bool half = rp__dtype_is_half(dtype);
    return kind == RP__SCATTER_MUL || (half && kind != RP__SCATTER_ADD) ? NULL : rp__cuda_atomic(dtype);
}

/* Words of shared memory for sums; items for each of them from which on a block's own ones pay, and for each that a block hands on. */
enum { SUM_WORDS = 8192, SUM_ITEMS = 512, SUM_SHARE = 8, SUM_COPIES = 8 };
static int64_t sums_of(rp_dtype dtype) { return SUM_WORDS / (dtype == RP_I64 ? 2 : 1); }
static bool sums_pay(rp_dtype dtype, rp__scatter kind, int64_t lines, int64_t bound, int64_t length) {
    return kind == RP__SCATTER_ADD && (dtype == RP_I32 || dtype == RP_I64) && bound > 0 && lines < sums_of(dtype) &&
           bound < sums_of(dtype) / lines && length / bound >= SUM_ITEMS;
}

/* Facts beside types and forms: items enough for several a thread; numbers of 64 bits. */
enum { SCATTER_MANY = 1 << 14, SCATTER_WIDE = 1 << 15 };
static unsigned scatter_each(unsigned form, bool many) { return form == 3 ? 8 : form == 0 && many ? 4 : 1; }

/* How far the last element of an operand lies from the first, and those that a negative stride leads to. */
static int64_t reach_of(const rp__operand *o) {
    int64_t reach = 0;
    for (unsigned d = 0; d < o->ndim; d++) {
        const int64_t stride = o->stride[d] < 0 ? -o->stride[d] : o->stride[d];
        if (o->size[d] > 1 && stride > INT32_MAX / (o->size[d] - 1)) return INT64_MAX;
        reach += (o->size[d] - 1) * stride;
    }
    return reach;
}

/* Are two halves of a word both elements wherever the other one lies between the first element, `low` from the base, and the last? Of what has
 * no gaps, and of rows of whole words. */
static bool fills_words(const rp__operand *o, int64_t low) {
    int64_t run = 1;
    uint32_t in = 0;
    for (unsigned d = 0; d < o->ndim;)
        if (o->size[d] > 1 && !(in >> d & 1) && (o->stride[d] == run || o->stride[d] == -run)) {
            run *= o->size[d];
            in |= 1u << d;
            d = 0;
        } else {
            d++;
        }
    if (run == rp__operand_numel(o)) return true;
    for (unsigned d = 0; d < o->ndim; d++)
        if (o->size[d] > 1 && !(in >> d & 1) && o->stride[d] % 2 != 0) return false;
    return run % 2 == 0 && ((uintptr_t)o->base + (uintptr_t)(2 * low)) % 4 == 0;
}

static void add_exchange(rp_dtype dtype, rp__scatter kind, rp__text *out) {
    static const char *const best[RP__SCATTERS] = {[RP__SCATTER_MAX] = "max", [RP__SCATTER_MIN] = "min"};
    const char *name = dtype == RP_F64 ? "f64" : "f32";
    const unsigned bytes = (unsigned)rp__dtype_bytes(dtype);
    const bool real = dtype == RP_F32 || dtype == RP_F64;
    rp__text_add(out, "#define RP_ATOMIC(p, v) rp_exchange(p, v)\n#define RP_EXCHANGE %u\n#define RP_WORD rp_u%u\n",
                 bytes, bytes == 8 ? 64 : 32);
    rp__text_add(out, "#define RP_CAS rp_atomic_cas_u%u\n", bytes == 8 ? 64 : 32);
    if (real)
        rp__text_add(out, "#define RP_BITS(x) rp_%s_bits(x)\n#define RP_OF_BITS(x) rp_bits_%s(x)\n", name, name);
    else
        rp__text_puts(out, "#define RP_BITS(x) ((RP_WORD)(x))\n#define RP_OF_BITS(x) ((RP_T)(x))\n");
    if (rp__dtype_is_half(dtype) && best[kind])
        rp__text_add(out, "#define RP_ANY_ORDER(a, b) RP_STORE(rp_%s_f32(RP_LOAD(a), RP_LOAD(b)))\n", best[kind]);
    else
        rp__text_puts(out, "#define RP_ANY_ORDER(a, b) RP_COMBINE(a, b)\n");
}

/* The type of places, and RP_SHARE: a / b of numbers without a sign, those of 32 bits by an inverse of b that a thread finds once. */
static void index_macros(bool wide, rp__text *out) {
    rp__text_puts(out,
                  wide ? "#define RP_INDEX rp_i64\n#define RP_INVERSE(b) 0\n"
                         "#define RP_SHARE(a, b, inverse) ((RP_INDEX)((rp_u64)(a) / (rp_u64)(b)))\n"
                       : "#define RP_INDEX rp_i32\n#define RP_INVERSE(b) rp_inverse((rp_u32)(b))\n"
                         "#define RP_SHARE(a, b, inverse) ((RP_INDEX)rp_share((rp_u32)(a), (rp_u32)(b), inverse))\n");
}

static void scatter_macros(uint64_t facts, rp__text *out) {
    static const char *const names[RP__SCATTERS] = {
        [RP__SCATTER_ADD] = "add", [RP__SCATTER_MAX] = "max", [RP__SCATTER_MIN] = "min"};
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    const rp__scatter kind = (rp__scatter)(facts >> 10 & 7);
    const bool floats = rp__dtype_is_float(dtype), truth = dtype == RP_BOOL;
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_FORM %u\n#define RP_DIMS %u\n#define RP_ALONG %u\n", (unsigned)(facts >> 8 & 3),
                 (unsigned)(facts >> 16 & 0xff), (unsigned)(facts >> 13 & 1));
    rp__text_add(out, "#define RP_SUMS %d\n#define RP_PARTS %d\n", (int)sums_of(dtype), dtype == RP_I64 ? 2 : 1);
    rp__text_add(out, "#define RP_EACH %u\n", scatter_each((unsigned)(facts >> 8 & 3), facts & SCATTER_MANY));
    index_macros(facts & SCATTER_WIDE, out);
    if (kind == RP__SCATTER_SET)
        rp__text_puts(out, "#define RP_ATOMIC(p, v) (*(p) = (v))\n#define RP_COMBINE(a, b) (b)\n");
    else if (atomic_of(dtype, kind))
        rp__text_add(out, "#define RP_ATOMIC(p, v) rp_red_%s_%s(p, v)\n", names[kind], atomic_of(dtype, kind));
    else
        add_exchange(dtype, kind, out);
    if (kind == RP__SCATTER_ADD && rp__dtype_is_half(dtype))
        rp__text_add(out, "#define RP_HALF(p, v) (void)rp_atomic_add_%s(p, v)\n", atomic_of(dtype, kind));
    if (kind == RP__SCATTER_SET) return;
    if (truth)
        rp__text_add(out, "#define RP_COMBINE(a, b) ((RP_T)((a) %s (b)))\n",
                     kind == RP__SCATTER_ADD || kind == RP__SCATTER_MAX ? "||" : "&&");
    else if (kind == RP__SCATTER_ADD || kind == RP__SCATTER_MUL)
        rp__text_add(out, "#define RP_COMBINE(a, b) RP_STORE(RP_LOAD(a) %s RP_LOAD(b))\n",
                     kind == RP__SCATTER_ADD ? "+" : "*");
    else
        rp__text_add(out, "#define RP_COMBINE(a, b) (%sRP_LOAD(a) %s RP_LOAD(b) ? (a) : (b))\n",
                     floats ? "RP_LOAD(a) != RP_LOAD(a) || " : "", kind == RP__SCATTER_MAX ? ">" : "<");
}

rp_status rp__cuda_scatter_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op, (void)n;
    static const uint32_t access[3] = {RP__READ | RP__WRITE, RP__READ, RP__READ};
    rp__operand part[3] = {o[0], o[1], o[2]};
    const rp__operand *y = &part[0], *index = &part[1], *src = &part[2];
    const unsigned nd = index->ndim, dim = (unsigned)call->dim;
    if (rp__operand_numel(index) == 0) return RP_OK;
    for (unsigned i = 0; i < nd; i++) part[2].size[i] = index->size[i];
    rp__operand_slots(part, 3, access, buffer, out);
    uint64_t *w = buffer->words;
    const int64_t length = index->size[dim], bound = y->size[dim], lines = rp__operand_numel(index) / length;
    w[3] = (uint64_t)(uintptr_t)d->errors, w[4] = rp__error_tag(call->op, call->site);
    w[5] = (uint64_t)length, w[6] = (uint64_t)bound;
    w[7] = (uint64_t)y->stride[dim], w[8] = (uint64_t)index->stride[dim], w[9] = (uint64_t)src->stride[dim];
    w[10] = (uint64_t)lines, w[11] = 0;
    w[12] = w[13] = 0;
    for (unsigned i = 0; i < y->ndim; i++) w[y->stride[i] > 0 ? 13 : 12] += (uint64_t)((y->size[i] - 1) * y->stride[i]);
    if (!fills_words(y, (int64_t)w[12])) w[12] = 1, w[13] = 0;
    uint32_t at = 14;
    for (unsigned i = 0; i < nd; i++) {
        if (i == dim) continue;
        w[at++] = (uint64_t)index->size[i], w[at++] = (uint64_t)y->stride[i], w[at++] = (uint64_t)index->stride[i];
        w[at++] = (uint64_t)src->stride[i];
    }
    out->n_words = at;
    /* Of the two ordered forms the one with less to wait for: a chain of reads and writes (about 600 ns a step) that all lines
       walk side by side, or bound times as many threads that only read. */
    unsigned form = 0;
    const bool exact = !rp__dtype_is_float(y->dtype) && call->scatter != RP__SCATTER_SET; /* in any order */
    if (call->deterministic && !exact) {
        const double chains = (double)lines > 2e5 ? (double)lines / 2e5 : 1;
        form = chains * 600 > (double)lines * (double)bound * 1e-4 + 4 ? 2 : 1;
        if (bound == 0) form = 1; /* every index is out of range, and someone has to say so */
    } else if (sums_pay(y->dtype, call->scatter, lines, bound, length)) {
        form = 3;
    }
    const int64_t items = form == 1 ? lines : form == 2 ? lines * bound : lines * length;
    const bool many = items >= 4 * 256 * 4 * (int64_t)d->multiprocessors;
    const int64_t pass = 256 * (int64_t)scatter_each(form, many);
    int64_t blocks = (items + pass - 1) / pass;
    if (blocks > 1 << 20) blocks = 1 << 20;
    if (form == 3) {
        const int64_t slots = lines * bound, most = 4 * (int64_t)d->multiprocessors;
        int64_t copies = 1;
        while (copies < SUM_COPIES && 2 * copies * (slots + 1) <= sums_of(y->dtype)) copies *= 2;
        w[11] = (uint64_t)copies;
        if (blocks > items / (SUM_SHARE * slots)) blocks = items / (SUM_SHARE * slots);
        if (blocks > most) blocks = most;
    }
    const bool along =
        form % 3 == 0 && nd > 1 && index->stride[dim] == 1 && src->stride[dim] >= 0 && src->stride[dim] <= 1;
    bool wide = lines > INT32_MAX || length > INT32_MAX || bound > INT32_MAX || items + blocks * pass > INT32_MAX;
    for (unsigned k = 0; k < 3; k++) wide = wide || reach_of(&part[k]) > INT32_MAX;
    rp__text_kernel_key key = {.family = "scatter"};
    key.facts = (uint64_t)y->dtype | (uint64_t)form << 8 | (uint64_t)call->scatter << 10 | (uint64_t)along << 13 |
                (many ? SCATTER_MANY : 0) | (wide ? SCATTER_WIDE : 0) | (uint64_t)(nd - 1) << 16;
    RP_TRY(rp__text_kernel(d, &key, scatter_macros, rp__embed_scatter_cuh, rp__embed_scatter_cuh_len, &out->kernel));
    return rp__cuda_line_grid(out, call, blocks, 256);
}

/* ---- weighted_scatter */

/* Facts beside dtypes and taps. */
enum { WEIGHTED_SHORT = 1 << 8, WEIGHTED_ORDERED = 1 << 9, WEIGHTED_WIDE = 1 << 10, WEIGHTED_F64 = 1 << 11 };

static void weighted_scatter_macros(uint64_t facts, rp__text *out) {
    const bool wide = facts & WEIGHTED_F64;
    rp__text_kernel_dtype((rp_dtype)(facts & 0xff), out);
    rp__text_add(out, "#define RP_W %s\n#define RP_RED rp_red_add_%s\n", wide ? "double" : "float",
                 wide ? "f64" : "f32");
    rp__text_add(out, "#define RP_K %u\n#define RP_ORDERED %d\n#define RP_PLACE %s\n", (unsigned)(facts >> 16),
                 facts & WEIGHTED_ORDERED ? 1 : 0, facts & WEIGHTED_SHORT ? "rp_i32" : "rp_i64");
    index_macros(facts & WEIGHTED_WIDE, out);
}

rp_status rp__cuda_weighted_scatter_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                         const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op;
    enum { LEAST = 4, MOST = 8, THREADS = 256 };
    static const uint32_t access[4] = {RP__READ | RP__WRITE, RP__READ, RP__READ, RP__READ};
    const int64_t images = o[1].size[0], channels = o[1].size[1], places = o[1].size[2], taps = o[2].size[1];
    if (rp__operand_numel(&o[1]) == 0 || taps == 0) return RP_OK;
    rp__operand_slots(o, n, access, buffer, out);
    uint64_t *w = buffer->words;
    w[4] = (uint64_t)images, w[5] = (uint64_t)channels, w[6] = (uint64_t)places, w[7] = (uint64_t)o[0].size[2];
    /* channels a thread: places and weights are read once for them */
    int64_t share = MOST;
    while (share > LEAST &&
           images * ((channels + share - 1) / share) * places < 4 * THREADS * (int64_t)d->multiprocessors)
        share /= 2;
    const int64_t shares = (channels + share - 1) / share,
                  items = call->deterministic ? images * channels : images * shares * places;
    w[8] = (uint64_t)share, w[9] = (uint64_t)shares;
    for (unsigned k = 0; k < 4; k++)
        for (unsigned i = 0; i < 3; i++) w[10 + 3 * k + i] = (uint64_t)o[k].stride[i];
    out->n_words = 22;
    int64_t blocks = (items + THREADS - 1) / THREADS;
    if (blocks > 1 << 20) blocks = 1 << 20;
    bool wide = items + blocks * THREADS > INT32_MAX;
    for (unsigned k = 0; k < 4; k++) wide = wide || reach_of(&o[k]) > INT32_MAX;
    rp__text_kernel_key key = {.family = "weighted_scatter"};
    key.facts = (uint64_t)o[1].dtype | (o[2].dtype == RP_I32 ? WEIGHTED_SHORT : 0) |
                (call->deterministic ? WEIGHTED_ORDERED : 0) | (wide ? WEIGHTED_WIDE : 0) |
                (o[0].dtype == RP_F64 ? WEIGHTED_F64 : 0) | (uint64_t)taps << 16;
    RP_TRY(rp__text_kernel(d, &key, weighted_scatter_macros, rp__embed_weighted_scatter_cuh,
                           rp__embed_weighted_scatter_cuh_len, &out->kernel));
    return rp__cuda_line_grid(out, call, blocks, THREADS);
}

/* ---- count_bins */

/* Words of shared memory; copies of the counts there, so that equal elements side by side seldom meet. Facts beside dtypes. */
enum { BIN_WORDS = 8192, MOST_BIN_WORDS = 12288, BIN_COPIES = 16 };
enum { BINS_SHARED = 1 << 16, BINS_ALIGNED = 1 << 17, BINS_MANY = 1 << 18 };

static void count_bins_macros(uint64_t facts, rp__text *out) {
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_COUNT %s\n#define RP_RED rp_red_add_%s\n",
                 (facts >> 8 & 0xff) == RP_I64 ? "rp_i64" : "rp_i32", (facts >> 8 & 0xff) == RP_I64 ? "i64" : "i32");
    rp__text_add(out, "#define RP_REAL %s\n#define RP_BITS(w) %s\n#define RP_SHARED %d\n#define RP_VECTOR %u\n",
                 dtype == RP_F64 ? "double" : "float", dtype == RP_F64 ? "rp_bits_f64(w)" : "rp_bits_f32((rp_u32)(w))",
                 facts & BINS_MANY     ? (int)MOST_BIN_WORDS
                 : facts & BINS_SHARED ? (int)BIN_WORDS
                                       : 0,
                 facts & BINS_ALIGNED ? 16 / (unsigned)rp__dtype_bytes(dtype) : 1);
}

rp_status rp__cuda_count_bins_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                   const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op;
    enum { THREADS = 256, EACH = 16 };
    static const uint32_t access[2] = {RP__READ | RP__WRITE, RP__READ};
    const int64_t bins = o[0].size[0], items = o[1].size[0];
    if (items == 0 || bins == 0) return RP_OK;
    rp__operand_slots(o, n, access, buffer, out);
    uint64_t *w = buffer->words;
    const rp_dtype real = o[1].dtype == RP_F64 ? RP_F64 : RP_F32;
    const bool shared = bins < MOST_BIN_WORDS, many = shared && bins > BIN_WORDS / 2,
               aligned = (uintptr_t)o[1].base % 16 == 0;
    w[2] = (uint64_t)items, w[3] = (uint64_t)bins;
    w[4] = rp__scalar_word(rp_f64(call->range[0]), real), w[5] = rp__scalar_word(rp_f64(call->range[1]), real);
    int64_t copies = 1, blocks = (items + THREADS * EACH - 1) / (THREADS * EACH);
    while (copies < BIN_COPIES && 2 * copies * (bins | 1) <= BIN_WORDS) copies *= 2;
    w[6] = (uint64_t)copies;
    out->n_words = 7;
    /* a block hands on all of its counts */
    int64_t most = (shared ? 2 : 8) * (int64_t)d->multiprocessors;
    if (shared && items / (2 * bins) < most) most = items / (2 * bins) > 0 ? items / (2 * bins) : 1;
    if (blocks > most) blocks = most;
    rp__text_kernel_key key = {.family = "count_bins"};
    key.facts = (uint64_t)o[1].dtype | (uint64_t)o[0].dtype << 8 | (shared ? BINS_SHARED : 0) | (many ? BINS_MANY : 0) |
                (aligned ? BINS_ALIGNED : 0);
    RP_TRY(rp__text_kernel(d, &key, count_bins_macros, rp__embed_count_bins_cuh, rp__embed_count_bins_cuh_len,
                           &out->kernel));
    return rp__cuda_line_grid(out, call, blocks, THREADS);
}

/* ---- ctc */

enum { CTC_CARRY = 1 << 8 };

static void ctc_macros(uint64_t facts, rp__text *out) {
    const bool wide = (rp_dtype)(facts & 0xff) == RP_F64;
    rp__text_add(out, "#define RP_T %s\n#define RP_EXP rp_exp_f%d\n#define RP_LOG rp_log_f%d\n#define RP_CARRY %d\n",
                 wide ? "double" : "float", wide ? 64 : 32, wide ? 64 : 32, facts & CTC_CARRY ? 1 : 0);
}

rp_status rp__cuda_ctc_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                            const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    static const uint32_t access[5] = {RP__WRITE, RP__READ, RP__READ, RP__READ, RP__READ};
    const bool carries = op == RP__LIB_CTC_CARRY;
    if (rp__operand_numel(&o[0]) == 0) return RP_OK;
    rp__operand_slots(o, n, access, buffer, out);
    uint64_t *w = buffer->words;
    if (!carries) { /* which reads no reach */
        w[4] = w[3], w[3] = w[2], w[2] = 0;
        buffer->slots[3].word = 4, buffer->slots[2].word = 3;
    }
    for (unsigned k = 0; k < 3; k++) w[5 + k] = (uint64_t)o[0].size[k];
    w[8] = call->back;
    out->n_words = 9;
    rp__text_kernel_key key = {.family = carries ? "ctc_carry" : "ctc_reach",
                               .facts = (uint64_t)o[0].dtype | (carries ? CTC_CARRY : 0)};
    RP_TRY(rp__text_kernel(d, &key, ctc_macros, rp__embed_ctc_cuh, rp__embed_ctc_cuh_len, &out->kernel));
    return rp__cuda_line_grid(out, call, o[0].size[1], 256);
}
