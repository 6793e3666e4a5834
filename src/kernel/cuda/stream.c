/* Matrix products of few rows, or few columns, on CUDA through stream.cuh, a row of the table of templates: which ones, and how their operands
 * are read. Such a product takes as long as its long operand is read for; tiles of 16 rows and more would wait for each other, and are mostly empty. */
#include "kernel/cuda/emit.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/matmul.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

/* Facts of a text: dtype in the low bits, then these; the words that follow from bit 32 on. */
enum {
    BATCH = 4,
    FEW = 8,       /* less one */
    LINES = 12,    /* log2 */
    STAGES = 14,   /* less two */
    PROBLEMS = 17, /* less one */
    TURNED = 19,
    ALONG,
    W_WIDE,
    X_WIDE,
    BIAS,
    WIDE /* 64-bit offsets */
};
/* Most of the few lines, of 16-bit floats (the rows of the first factor, the columns of the second) before tensor cores take less; terms of
 * the sums (shorter ones are left to the kernel that makes factors), and of those that few blocks walk; bytes of the long operand that no block
 * of another kernel keeps whole (chain.c), and, where lines are innermost, of the one that cuBLASLt has a kernel for one row of. */
enum { MOST = 16, MOST_NARROW = 4, MOST_TURNED = 8, LEAST_K = RP__MATMUL_LONG, LONG_K = 4096, MOST_K = 1 << 14 };
enum { LEAST_BYTES = 48 << 10, MOST_ACROSS = 16 << 20, MOST_PROBLEMS = 4 /* in one launch */ };
/* PIECES of PIECE bytes of K are a warp's in a step, whose lanes are as many times GROUPS; steps in flight take RING bytes. */
enum { THREADS = 256, WARPS = THREADS / 32, GROUPS = 4, PIECES = 8, PIECE = 16, RING = 72 << 10, MOST_STAGES = 8 };

static bool bit(uint64_t facts, unsigned at) { return facts >> at & 1; }
static unsigned bytes_of(uint64_t facts) { return (unsigned)rp__dtype_bytes((rp_dtype)(facts & 15)); }
static unsigned few_of(uint64_t facts) { return (unsigned)(facts >> FEW & 15) + 1; }
static unsigned lines_of(uint64_t facts) { return 1u << (facts >> LINES & 3); }
static unsigned stages_of(uint64_t facts) { return (unsigned)(facts >> STAGES & 7) + 2; }
static unsigned problems_of(uint64_t facts) { return (unsigned)(facts >> PROBLEMS & 3) + 1; }

/* Bytes of a step in shared memory, of all warps. */
static unsigned step_bytes(unsigned few, unsigned lines, bool along, unsigned bytes) {
    const unsigned many = GROUPS << lines, gaps = along ? 0 : PIECES * many * bytes;
    return WARPS * (PIECES * PIECE * (few + many) + gaps);
}

static void macros(uint64_t facts, rp__text *out) {
    rp__text_kernel_dtype((rp_dtype)(facts & 15), out);
    rp__text_add(out, "#define RP_ELEMENT %u\n#define RP_F %u\n#define RP_J %u\n#define RP_STAGES %u\n",
                 bytes_of(facts), few_of(facts), lines_of(facts), stages_of(facts));
    rp__text_add(out, "#define RP_TURNED %d\n#define RP_ALONG %d\n#define RP_W_WIDE %d\n#define RP_X_WIDE %d\n",
                 bit(facts, TURNED), bit(facts, ALONG), bit(facts, W_WIDE), bit(facts, X_WIDE));
    rp__text_add(out, "#define RP_BATCH %u\n#define RP_BIAS %d\n#define RP_REST %u\n#define RP_INDEX %s\n",
                 (unsigned)(facts >> BATCH & 15), bit(facts, BIAS), (unsigned)(facts >> 32),
                 bit(facts, WIDE) ? "rp_i64" : "rp_i32");
    rp__text_add(out, "#define RP_PROBLEMS %u\n", problems_of(facts));
}

/* ---- which of them */

static int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* The product as stream.cuh sees it. */
typedef struct view {
    const rp__operand *w, *x; /* the long operand, the few lines */
    const int64_t *sw, *sx;   /* their strides along batch dims */
    int64_t few, many, ws, wk, xs, xk;
    bool turned, along;
} view;

static view view_of(const rp__problem *p, const rp__matmul *read) {
    const bool turned = read->n < read->m;
    view v = {&p->o[2], &p->o[1], read->sb, read->sa, read->m, read->n,
              read->bn, read->bk, read->am, read->ak, turned,  false};
    if (turned)
        v = (view){&p->o[1], &p->o[2], read->sa, read->sb, read->n, read->m,
                   read->am, read->ak, read->bn, read->bk, turned,  false};
    v.along = v.wk == 1 || (v.ws != 1 && v.wk < v.ws);
    return v;
}

/* Are pieces of 16 bytes in one line, if the operand begins at one? */
static bool is_whole(const rp__matmul *read, const int64_t *batch, int64_t along, int64_t across, int64_t lines) {
    const int64_t c = PIECE / (int64_t)rp__dtype_bytes(read->dtype);
    bool whole = along == 1 && (lines == 1 || across % c == 0);
    for (unsigned d = 0; d < read->n_batch; d++) whole = whole && batch[d] % c == 0;
    return whole;
}
static bool is_w_whole(const rp__matmul *read, const view *v) {
    const int64_t c = PIECE / (int64_t)rp__dtype_bytes(read->dtype);
    return v->along ? is_whole(read, v->sw, v->wk, v->ws, v->many)
                    : v->many % c == 0 && is_whole(read, v->sw, v->ws, v->wk, read->k);
}
static bool is_x_whole(const rp__matmul *read, const view *v) { return is_whole(read, v->sx, v->xk, v->xs, v->few); }

/* log2 of the lines of a lane: as many as leave a block for each multiprocessor, of four lines two. */
static unsigned lines_for(const rp__matmul *read, const view *v, const rp__device *d, int64_t problems) {
    const int64_t small = v->many * over(v->few, MOST) * read->batch * problems / GROUPS;
    unsigned lines = 2;
    while (lines && small >> lines < (int64_t)d->multiprocessors * (lines == 2 ? 2 : 1) * 2 / 3) lines--;
    return lines || v->along || rp__dtype_bytes(read->dtype) == 4 ? lines : 1; /* a whole piece */
}

static rp__order tag(void) { return rp__order_with(rp__order_of(RP__CONTRACT_PRODUCT, 0), RP__FAMILY_LANES, 0); }

/* By sizes, strides and dtype alone. */
static bool pays(const rp__problem *p) {
    rp__matmul read;
    if (p->device->arch < 80) return false; /* without copies into shared memory */
    rp__matmul_read(p->o, 3, &read);
    if (read.dtype != RP_F32 && read.dtype != RP_F16 && read.dtype != RP_BF16) return false;
    const view v = view_of(p, &read);
    const int64_t bytes = (int64_t)rp__dtype_bytes(read.dtype), blocks = over(v.many, GROUPS) * read.batch;
    if (v.few < 1 || read.batch < 1 || v.few > (bytes == 4 ? MOST : v.turned ? MOST_TURNED : MOST_NARROW)) return false;
    if (read.k < LEAST_K || read.k > MOST_K || v.many <= LEAST_BYTES / (read.k * bytes)) return false;
    if (read.k > LONG_K && blocks < p->device->multiprocessors / 2) return false;
    if (v.few == 1 && !v.along && v.many > MOST_ACROSS / (read.k * bytes)) return false;
    return is_w_whole(&read, &v) && is_x_whole(&read, &v);
}
static bool is_wanted(const rp__problem *p) { return p->order == RP__ORDER_ELSEWHERE ? pays(p) : p->order == tag(); }

static rp__order order(const rp__problem *p) { return is_wanted(p) ? tag() : RP__ORDER_ELSEWHERE; }

static bool serves(const rp__problem *p, size_t *workspace) {
    rp__matmul read;
    (void)workspace;
    rp__matmul_read(p->o, 3, &read);
    const double blocks = (double)over(read.m < read.n ? read.m : read.n, MOST) *
                          (double)over(read.m < read.n ? read.n : read.m, GROUPS) * (double)read.batch;
    return is_wanted(p) && read.m > 0 && read.n > 0 && read.batch > 0 && blocks < INT32_MAX / MOST_PROBLEMS;
}

/* Others cost 1 and more. */
static double cost(const rp__problem *p) {
    return is_wanted(p) ? 0.5 : rp__problem_work(p) + 16 * (double)RP__CUDA_SMALL_PRODUCT;
}

/* ---- launches */

static void set_grid(const rp__matmul *read, const view *v, unsigned lines, unsigned problems, uint64_t *facts,
                     rp__launch *out) {
    const unsigned bytes = (unsigned)rp__dtype_bytes(read->dtype), few = few_of(*facts),
                   step = step_bytes(few, lines, v->along, bytes);
    const int64_t steps = over(read->k, (int64_t)WARPS * PIECES * PIECE / bytes);
    unsigned stages = RING / step;
    stages = stages < 2 ? 2 : stages > MOST_STAGES ? MOST_STAGES : stages;
    if (stages > steps + 1) stages = steps + 1 < 2 ? 2 : (unsigned)steps + 1;
    *facts |= (uint64_t)lines << LINES | (uint64_t)(stages - 2) << STAGES | (uint64_t)(problems - 1) << PROBLEMS;
    out->grid[0] = (uint32_t)(over(v->many, (int64_t)GROUPS << lines) * over(v->few, few) * read->batch) * problems;
    out->grid[1] = out->grid[2] = 1;
    out->block[0] = THREADS;
    out->block[1] = out->block[2] = 1;
    out->shared_bytes = stages * step;
}

static void set_launch(const rp__problem *p, const rp__matmul *read, bool wide, rp__launch_buffer *buffer,
                       rp__launch *out, uint64_t *facts) {
    /* a text for each number of lines would be too many */
    static const uint8_t counts[] = {1, 2, 3, 4, 6, 8, 12, MOST};
    const view v = view_of(p, read);
    unsigned few = 0;
    while (counts[few] < v.few && counts[few] < MOST) few++;
    *facts = (uint64_t)read->dtype | (uint64_t)read->n_batch << BATCH | (uint64_t)(counts[few] - 1u) << FEW |
             (uint64_t)v.turned << TURNED | (uint64_t)v.along << ALONG | (uint64_t)read->bias << BIAS |
             (uint64_t)wide << WIDE | (uint64_t)(is_w_whole(read, &v) && (uintptr_t)v.w->base % PIECE == 0) << W_WIDE |
             (uint64_t)(is_x_whole(read, &v) && (uintptr_t)v.x->base % PIECE == 0) << X_WIDE;
    rp__matmul_words(read, buffer, out);
    out->ahead = !v.turned && bit(*facts, W_WIDE) ? RP__MATMUL_AHEAD : 0;
    set_grid(read, &v, lines_for(read, &v, p->device, 1), 1, facts, out);
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "stream"};
    rp__matmul read;
    (void)workspace;
    rp__matmul_read(p->o, p->n, &read);
    rp__matmul_start(p, &read, buffer, out);
    set_launch(p, &read, rp__matmul_is_wide(p->o, read.bias ? 4 : 3), buffer, out, &key.facts);
    return rp__text_kernel(p->device, &key, macros, rp__embed_stream_cuh, rp__embed_stream_cuh_len, &out->kernel);
}

static rp_status join(rp__device *d, const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer,
                      rp__launch *out) {
    const uint64_t varies = (uint64_t)3 << LINES | (uint64_t)7 << STAGES | (uint64_t)3 << PROBLEMS;
    rp__text_kernel_key key = {.family = "stream"};
    uint64_t one;
    rp__matmul read;
    if (!rp__text_kernel_facts(a->kernel, key.family, &key.facts) ||
        !rp__text_kernel_facts(b->kernel, key.family, &one))
        return RP_OK;
    const unsigned n = problems_of(key.facts);
    if (n == MOST_PROBLEMS || problems_of(one) > 1 || (key.facts & ~varies) != (one & ~varies) ||
        !rp__matmul_is_alike(a, b))
        return RP_OK;
    rp__matmul_read_words(b->words, (rp_dtype)(one & 15), (unsigned)(one >> BATCH & 15), &read);
    const view v = {.few = bit(one, TURNED) ? read.n : read.m,
                    .many = bit(one, TURNED) ? read.m : read.n,
                    .along = bit(one, ALONG)};
    key.facts = one & ~varies;
    rp__matmul_join(a, b, buffer, out);
    set_grid(&read, &v, lines_for(&read, &v, d, n + 1), n + 1, &key.facts, out);
    return rp__text_kernel(d, &key, macros, rp__embed_stream_cuh, rp__embed_stream_cuh_len, &out->kernel);
}

static rp_status tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    rp__matmul read;
    rp__matmul_read(p->o, 3, &read);
    rp__matmul_factors(p, buffer, out);
    *wide = *wide || rp__matmul_is_wide(p->o + 1, 2);
    set_launch(p, &read, *wide, buffer, out, facts);
    return RP_OK;
}

static void source(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_stream_cuh, rp__embed_stream_cuh_len, parts, out);
}

const rp__cuda_product_row rp__cuda_stream_row = {.row = {.name = "stream",
                                                          .ops = 1u << RP__LIB_MATMUL,
                                                          .follows = true,
                                                          .serves = serves,
                                                          .order = order,
                                                          .cost = cost,
                                                          .bind = bind},
                                                  .words = rp__matmul_n_words,
                                                  .join = join,
                                                  .tiles = tiles,
                                                  .source = source};
