/* Chains of small matrix products on CUDA in one kernel (chain.cuh): whether a chain is worth it, and its launch record. A
 * single product whose tiles fit a block takes the same way, as a row of the table of templates. */
#include <string.h>

#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"
#include "tensor/tensor.h"

/* What a block may keep: without opting in to more. 48 KB also bound what every block reads again, about 800 cycles at the 64
 * bytes a cycle that a multiprocessor gets from the L2, which is less than a node of a graph costs (bench/gpu_reprise.c). */
enum { SHARED_BYTES = 48 * 1024, THREADS = 256, MAX_ROWS = 8, COLUMNS = 32 /* a block of a single product */ };

typedef struct weight {               /* a product's second operand, and where a block keeps it */
    int64_t n, k, row_stride, stride; /* of a row in shared memory, and along it */
    int64_t columns;                  /* of n, that a block takes */
    bool along_n;                     /* rows are k */
    int pitch, offset;                /* elements */
} weight;

typedef struct plan {
    int64_t m, tiles;                /* rows; blocks along columns */
    unsigned n_stages, log_x, log_r; /* threads along columns; rows a thread */
    int pitch, other, bytes;         /* elements of a row of values; offset of the second buffer; bytes of it all */
    weight w[RP__CHAIN_MAX];
} plan;

static bool is_matrix(const rp__operand *o) {
    for (unsigned d = 0; d + 2 < o->ndim; d++) {
        if (o->size[d] != 1) return false;
    }
    return o->ndim >= 2;
}
static int64_t last(const int64_t *of, const rp__operand *o, unsigned back) { return of[o->ndim - back]; }

/* Offsets in elements fit 32 bits with room for the tiles. */
static bool is_narrow(const rp__operand *o) {
    int64_t reach = 0;
    for (unsigned d = 0; d < o->ndim; d++) {
        if (o->size[d] > INT32_MAX / 4 || o->stride[d] > INT32_MAX / 4 || o->stride[d] < -(INT32_MAX / 4)) return false;
        reach += o->size[d] * (o->stride[d] < 0 ? -o->stride[d] : o->stride[d]);
        if (reach > INT32_MAX / 4) return false;
    }
    return true;
}

static bool is_small(int64_t m, int64_t n, int64_t k) {
    const int64_t most = RP__CUDA_SMALL_PRODUCT;
    return m > 0 && n > 0 && k > 0 && m <= most && n <= most / m && k <= most / (m * n);
}

/* Elements of a shared row: 16 byte pieces, an odd number of them so that a column of pieces meets every bank. */
static int pitch_of(int64_t n, int element, bool odd) {
    int64_t pieces = (n * element + 15) / 16;
    if (odd) pieces |= 1;
    return (int)(pieces * 16 / element);
}

/* Depends on sizes, strides and dtypes alone: what is asked before there is memory is what is bound later. */
static rp__chain_answer make_plan(rp__device *d, const rp__library_stage *stages, size_t n, plan *p) {
    memset(p, 0, sizeof *p);
    if (n == 0 || n > RP__CHAIN_MAX) return RP__CHAIN_TOO_LARGE;
    const rp_dtype dtype = stages[0].o[0].dtype;
    const int element = (int)rp__dtype_bytes(dtype);
    if (!rp__dtype_is_float(dtype)) return RP__CHAIN_OTHER_SUM;
    int64_t widest = 0, columns = 0, weights = 0;
    p->n_stages = (unsigned)n;
    p->m = last(stages[0].o[0].size, &stages[0].o[0], 2);
    for (size_t s = 0; s < n; s++) {
        const rp__operand *out = &stages[s].o[0], *a = &stages[s].o[1], *b = &stages[s].o[2];
        if (!is_matrix(out) || !is_matrix(a) || !is_matrix(b) || b->dtype != dtype) return RP__CHAIN_LAYOUT;
        weight *w = &p->w[s];
        w->k = last(b->size, b, 2);
        w->n = last(b->size, b, 1);
        if (last(a->size, a, 2) != p->m || last(a->size, a, 1) != w->k || (s > 0 && p->w[s - 1].n != w->k))
            return RP__CHAIN_LAYOUT;
        for (size_t k = 0; k < stages[s].n; k++) {
            if (!is_narrow(&stages[s].o[k])) return RP__CHAIN_TOO_LARGE;
        }
        if (!is_small(p->m, w->n, w->k)) return RP__CHAIN_TOO_LARGE;
        const rp__library_call call = {.op = "chain", .site = ""};
        if (n > 1 && d->ops->library->order(d, RP__LIB_MATMUL, stages[s].o, stages[s].n, &call) !=
                         rp__order_of(RP__CONTRACT_PRODUCT, element == 8))
            return RP__CHAIN_OTHER_SUM;
        int64_t bk = last(b->stride, b, 2), bn = last(b->stride, b, 1);
        w->along_n = bk != 1 && bn == 1;
        w->row_stride = w->along_n ? bk : bn;
        w->stride = w->along_n ? bn : bk;
        w->columns = n == 1 && w->n > COLUMNS ? COLUMNS : w->n;
        w->pitch = pitch_of(w->along_n ? w->columns : w->k, element, !w->along_n);
        weights += (w->along_n ? w->k : w->columns) * w->pitch;
        if (weights * element > SHARED_BYTES) return RP__CHAIN_TOO_LARGE;
        if (w->k > widest) widest = w->k;
        if (w->columns > columns) columns = w->columns;
    }
    p->log_x = 5;
    while (p->log_x < 8 && INT64_C(1) << p->log_x < columns) p->log_x++;
    p->tiles = (p->w[n - 1].n + p->w[n - 1].columns - 1) / p->w[n - 1].columns;
    if (p->tiles > UINT16_MAX) return RP__CHAIN_TOO_LARGE; /* of a grid's second extent */
    const int64_t along_y = THREADS >> p->log_x;           /* rows that threads take side by side */
    while (1 << p->log_r < MAX_ROWS && p->m * p->tiles > (along_y << p->log_r) * 2 * d->multiprocessors) p->log_r++;
    const int rows = (int)(along_y << p->log_r);
    p->pitch = pitch_of(widest, element, false);
    p->other = rows * p->pitch;
    int64_t at = (n > 1 ? 2 : 1) * (int64_t)p->other;
    for (size_t s = 0; s < n; s++) {
        p->w[s].offset = (int)at;
        at += (p->w[s].along_n ? p->w[s].k : p->w[s].columns) * p->w[s].pitch;
    }
    if (at * element > SHARED_BYTES) return RP__CHAIN_TOO_LARGE;
    p->bytes = (int)at * element;
    return RP__CHAIN_YES;
}

rp__chain_answer rp__cuda_chain(rp__device *d, const rp__library_stage *stages, size_t n) {
    plan p;
    return make_plan(d, stages, n, &p);
}

/* log2 of the elements that one copy of at most 16 bytes takes, and of the threads that copy a row. */
static unsigned copy_width(const void *base, int64_t rows, int64_t columns, int64_t row_stride, int64_t stride,
                           unsigned element) {
    unsigned log = 0;
    while ((element << (log + 1)) <= 16 && stride == 1) {
        unsigned elements = 2u << log, bytes = element * elements;
        if ((uintptr_t)base % bytes || columns % elements || (rows > 1 && row_stride % elements)) break;
        log++;
    }
    return log;
}
static unsigned lanes_of(int64_t columns, unsigned log) {
    unsigned lanes = 0;
    while (lanes < 5 && (INT64_C(1) << (lanes + log)) < columns) lanes++;
    return lanes;
}

static uint64_t pair(int64_t low, int64_t high) {
    return (uint64_t)(uint32_t)(int32_t)low | (uint64_t)(uint32_t)(int32_t)high << 32;
}

/* facts: dtype 4 bits, stages 4, log_x - 5 2, log_r 2, log of the vector of x 2; then 6 bits a stage (chain.cuh). */
enum { STAGE_FACTS = 14, STAGE_BITS = 6 };
static void macros(uint64_t facts, rp__text *out) {
    rp_dtype dtype = (rp_dtype)(facts & 15);
    unsigned log_x = 5 + (unsigned)(facts >> 8 & 3);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_BYTES %u\n#define RP_STAGES %u\n#define RP_X %u\n#define RP_Y %u\n#define RP_R %u\n",
                 (unsigned)rp__dtype_bytes(dtype), (unsigned)(facts >> 4 & 15), 1u << log_x, THREADS >> log_x,
                 1u << (facts >> 10 & 3));
    rp__text_add(out, "#define RP_VECTOR %u\n#define RP_FACTS 0x%llxull\n", 1u << (facts >> 12 & 3),
                 (unsigned long long)(facts >> STAGE_FACTS));
}

rp_status rp__cuda_chain_bind(rp__device *d, const rp__library_stage *stages, size_t n, const rp__library_call *call,
                              rp__launch_buffer *buffer, rp__launch *out) {
    plan p;
    memset(out, 0, sizeof *out);
    if (make_plan(d, stages, n, &p) != RP__CHAIN_YES)
        return rp__fail(RP_ERROR_INTERNAL, "%s: these products are not one kernel", call->op);
    const rp__operand *x = &stages[0].o[1];
    const unsigned element = (unsigned)rp__dtype_bytes(x->dtype);
    const int64_t xm = last(x->stride, x, 2), xk = last(x->stride, x, 1);
    unsigned log = copy_width(x->base, p.m, p.w[0].k, xm, xk, element);
    uint64_t *w = buffer->words, facts = (uint64_t)x->dtype | (uint64_t)n << 4 | (uint64_t)(p.log_x - 5) << 8 |
                                         (uint64_t)p.log_r << 10 | (uint64_t)log << 12;
    out->op = call->op;
    out->site = call->site;
    rp__operand_slot(x, 0, RP__READ, buffer, out);
    w[1] = (uint64_t)p.m;
    w[2] = pair(xm, xk);
    w[3] = pair(p.pitch, p.other);
    w[4] = lanes_of(p.w[0].k, log);
    for (size_t s = 0; s < n; s++) {
        const rp__operand *y = &stages[s].o[0], *b = &stages[s].o[2], *bias = stages[s].n > 3 ? &stages[s].o[3] : NULL;
        const weight *v = &p.w[s];
        const uint32_t at = 5 + 8 * (uint32_t)s;
        const int64_t columns = v->along_n ? v->columns : v->k, rows = v->along_n ? v->k : v->n;
        if (bias && !bias->base) bias = NULL;
        log = copy_width(b->base, rows, columns, v->row_stride, v->stride, element);
        rp__operand_slot(b, at, RP__READ, buffer, out);
        w[at + 1] = w[at + 2] = 0;
        if (bias) rp__operand_slot(bias, at + 1, RP__READ, buffer, out);
        if (y->base) rp__operand_slot(y, at + 2, RP__WRITE, buffer, out);
        w[at + 3] = pair(v->n, v->k);
        w[at + 4] = pair(v->row_stride, v->stride);
        w[at + 5] = pair(last(y->stride, y, 2), last(y->stride, y, 1));
        w[at + 6] = pair(bias ? bias->stride[0] : 0, lanes_of(columns, log));
        w[at + 7] = pair(v->offset, v->pitch);
        const uint64_t bits = (uint64_t)(bias != NULL) | (uint64_t)stages[s].relu << 1 |
                              (uint64_t)(y->base != NULL) << 2 | (uint64_t)v->along_n << 3 | (uint64_t)log << 4;
        facts |= bits << (STAGE_FACTS + STAGE_BITS * s);
    }
    rp__text_kernel_key key = {.family = "chain", .facts = facts};
    RP_TRY(rp__text_kernel(d, &key, macros, rp__embed_chain_cuh, rp__embed_chain_cuh_len, &out->kernel));
    const int64_t rows = (int64_t)(THREADS >> p.log_x) << p.log_r;
    out->n_words = 5 + 8 * (uint32_t)n;
    out->grid[0] = (uint32_t)((p.m + rows - 1) / rows);
    out->grid[1] = (uint32_t)p.tiles;
    out->grid[2] = 1;
    out->block[0] = 1u << p.log_x;
    out->block[1] = (uint32_t)THREADS >> p.log_x;
    out->block[2] = 1;
    out->shared_bytes = (uint32_t)p.bytes;
    return RP_OK;
}

/* ---- the row of a single product */

static rp__library_stage alone(const rp__problem *p) {
    rp__library_stage stage = {.op = RP__LIB_MATMUL, .n = p->n};
    memcpy(stage.o, p->o, p->n * sizeof *p->o);
    return stage;
}

static bool serves(const rp__problem *p, size_t *workspace) {
    const rp__library_stage stage = alone(p);
    plan unused;
    (void)workspace;
    return make_plan(p->device, &stage, 1, &unused) == RP__CHAIN_YES;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__library_stage stage = alone(p);
    (void)workspace;
    return rp__cuda_chain_bind(p->device, &stage, 1, p->call, buffer, out);
}

const rp__cuda_product_row rp__cuda_chain_row = {
    .row = {.name = "chain", .ops = 1u << RP__LIB_MATMUL, .serves = serves, .order = rp__problem_order, .bind = bind}};
