/* Chains of small matrix products on CUDA, with what follows each, in one kernel (chain.cuh): whether a chain is worth it, and its launch
 * record. A single product whose tiles fit a block takes the same way, as a row of the table of templates. */
#include <stdio.h>
#include <string.h>

#include "kernel/contract.h"
#include "kernel/cuda/contract.h"
#include "kernel/cuda/emit.h"
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

/* Operands of a product: of a question, of a single one. */
typedef struct factors {
    const rp__operand *out, *a, *b;
} factors;

/* Depends on sizes, strides and dtypes alone: what is asked before there is memory is what is bound later. A stride of one index is none. */
static rp__chain_answer make_plan(const rp__device *d, const factors *stages, size_t n, plan *p) {
    memset(p, 0, sizeof *p);
    const rp_dtype dtype = stages[0].out->dtype;
    const int element = (int)rp__dtype_bytes(dtype);
    if (!rp__dtype_is_float(dtype)) return RP__CHAIN_OTHER_SUM;
    int64_t widest = 0, columns = 0, weights = 0;
    p->n_stages = (unsigned)n;
    p->m = last(stages[0].out->size, stages[0].out, 2);
    for (size_t s = 0; s < n; s++) {
        const rp__operand *a = stages[s].a, *b = stages[s].b;
        if (!is_matrix(stages[s].out) || !is_matrix(a) || !is_matrix(b) || b->dtype != dtype) return RP__CHAIN_LAYOUT;
        weight *w = &p->w[s];
        w->k = last(b->size, b, 2);
        w->n = last(b->size, b, 1);
        if (last(a->size, a, 2) != p->m || last(a->size, a, 1) != w->k || (s > 0 && p->w[s - 1].n != w->k))
            return RP__CHAIN_LAYOUT;
        if (!is_narrow(stages[s].out) || !is_narrow(a) || !is_narrow(b)) return RP__CHAIN_TOO_LARGE;
        if (!is_small(p->m, w->n, w->k)) return RP__CHAIN_TOO_LARGE;
        const int64_t bk = w->k == 1 ? 1 : last(b->stride, b, 2), bn = w->n == 1 ? 1 : last(b->stride, b, 1);
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

/* That of kernel/product.h. */
static rp__order order_here(unsigned dtype) {
    return rp__order_of(RP__CONTRACT_PRODUCT, rp__dtype_bytes((rp_dtype)dtype) == 8);
}

/* Rows, or columns, that are all the same lie along no dim of a CONTRACT's factor. */
static bool is_expanded(const rp__operand *o, unsigned dim) {
    return last(o->size, o, dim) > 1 && last(o->stride, o, dim) == 0;
}

rp__chain_answer rp__cuda_chain(rp__device *d, const rp__library_stage *stages, size_t n) {
    factors of[RP__CHAIN_MAX];
    plan p;
    if (n == 0 || n > RP__CHAIN_MAX) return RP__CHAIN_TOO_LARGE;
    for (size_t s = 0; s < n; s++) {
        const rp__operand *o = stages[s].o;
        of[s] = (factors){&o[0], &o[1], &o[2]};
        if (o[1].ndim < 2 || o[2].ndim < 2 || is_expanded(&o[1], 2) || is_expanded(&o[2], 1)) return RP__CHAIN_LAYOUT;
    }
    const rp__chain_answer answer = make_plan(d, of, n, &p);
    for (size_t s = 0; s < n && answer == RP__CHAIN_YES; s++)
        if (stages[s].order != order_here(stages[s].o[0].dtype)) return RP__CHAIN_OTHER_SUM;
    return answer;
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

/* facts: dtype 4 bits, stages 4, log_x - 5 2, log_r 2, log of the vector of x 2; then 4 bits a stage (chain.cuh) and the words of what
 * follows. */
enum { STAGE_FACTS = 14, STAGE_BITS = 4, REST_FACTS = STAGE_FACTS + STAGE_BITS * RP__CHAIN_MAX };
_Static_assert(RP__MAX_WORDS <= 1 << (64 - REST_FACTS - 1), "words of what follows");
static void macros(uint64_t facts, rp__text *out) {
    rp_dtype dtype = (rp_dtype)(facts & 15);
    unsigned log_x = 5 + (unsigned)(facts >> 8 & 3);
    rp__text_kernel_dtype(dtype, out);
    rp__text_add(out, "#define RP_BYTES %u\n#define RP_STAGES %u\n#define RP_X %u\n#define RP_Y %u\n#define RP_R %u\n",
                 (unsigned)rp__dtype_bytes(dtype), (unsigned)(facts >> 4 & 15), 1u << log_x, THREADS >> log_x,
                 1u << (facts >> 10 & 3));
    rp__text_add(out, "#define RP_VECTOR %u\n#define RP_FACTS 0x%llxull\n#define RP_REST %u\n", 1u << (facts >> 12 & 3),
                 (unsigned long long)(facts >> STAGE_FACTS & ((1u << STAGE_BITS * RP__CHAIN_MAX) - 1)),
                 (unsigned)(facts >> REST_FACTS));
}

/* Words and slots of the factors, grid and facts. */
static void set_launch(const plan *p, const factors *stages, rp__launch_buffer *buffer, rp__launch *out,
                       uint64_t *facts) {
    const rp__operand *x = stages[0].a;
    const unsigned element = (unsigned)rp__dtype_bytes((rp_dtype)x->dtype);
    const int64_t xm = last(x->stride, x, 2), xk = last(x->stride, x, 1);
    unsigned log = copy_width(x->base, p->m, p->w[0].k, xm, xk, element);
    uint64_t *w = buffer->words;
    *facts = (uint64_t)x->dtype | (uint64_t)p->n_stages << 4 | (uint64_t)(p->log_x - 5) << 8 |
             (uint64_t)p->log_r << 10 | (uint64_t)log << 12;
    rp__operand_slot(x, 0, RP__READ, buffer, out);
    w[1] = (uint64_t)p->m;
    w[2] = pair(xm, xk);
    w[3] = pair(p->pitch, p->other);
    w[4] = lanes_of(p->w[0].k, log);
    for (unsigned s = 0; s < p->n_stages; s++) {
        const rp__operand *b = stages[s].b;
        const weight *v = &p->w[s];
        const uint32_t at = 5 + 8 * s;
        const int64_t columns = v->along_n ? v->columns : v->k, rows = v->along_n ? v->k : v->n;
        log = copy_width(b->base, rows, columns, v->row_stride, v->stride, element);
        rp__operand_slot(b, at, RP__READ, buffer, out);
        w[at + 1] = w[at + 2] = w[at + 5] = 0;
        w[at + 3] = pair(v->n, v->k);
        w[at + 4] = pair(v->row_stride, v->stride);
        w[at + 6] = pair(0, lanes_of(columns, log));
        w[at + 7] = pair(v->offset, v->pitch);
        *facts |= ((uint64_t)v->along_n << 1 | (uint64_t)log << 2) << (STAGE_FACTS + STAGE_BITS * s);
    }
    const int64_t rows = (int64_t)(THREADS >> p->log_x) << p->log_r;
    out->words = w;
    out->slots = buffer->slots;
    out->n_words = 5 + 8 * p->n_stages;
    out->grid[0] = (uint32_t)((p->m + rows - 1) / rows);
    out->grid[1] = (uint32_t)p->tiles;
    out->grid[2] = 1;
    out->block[0] = 1u << p->log_x;
    out->block[1] = (uint32_t)THREADS >> p->log_x;
    out->block[2] = 1;
    out->shared_bytes = (uint32_t)p->bytes;
}

/* ---- with what follows */

typedef struct chain_texts {
    rp__text fields, held, follow;
} chain_texts;

static rp_status add_stage(const rp__library_stage *stage, const rp__contraction *r, unsigned s, unsigned n,
                           uint32_t first, chain_texts *out) {
    const rp__dag *rest = stage->dag->rest;
    const rp__cuda_place places[2] = {{"m", r->n_m}, {"n0 + n", r->n_n}};
    char held[16];
    (void)snprintf(held, sizeof held, "held[i].s%u_", s);
    rp__cuda_part part = {.dag = rest,
                          .places = places,
                          .n_places = 2,
                          .first = first,
                          .wide = rp__cuda_contract_is_wide(stage->dag, stage->space),
                          .stores = UINT64_MAX,
                          .held = held};
    if (s + 1 < n) {
        part.to = "made";
        part.made = stage->rows;
        if (!stage->space->accesses[stage->dag->rest_access[rest->stores[stage->rows].access]].storage)
            part.stores &= ~(UINT64_C(1) << stage->rows);
    }
    rp__text_add(&out->held, "if (s == %u) {\n", s);
    rp__text_add(&out->follow, "if (s == %u) {\n", s);
    RP_TRY(rp__cuda_emit_held(&part, &out->fields, &out->held));
    RP_TRY(rp__cuda_emit_part(&part, &out->follow));
    rp__text_puts(&out->held, "}\n");
    rp__text_puts(&out->follow, "}\n");
    return RP_OK;
}

/* Rows that nobody wants in memory have none. */
static void drop_absent(rp__launch_buffer *buffer, rp__launch *out) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < out->n_slots; k++)
        if (buffer->slots[k].storage) buffer->slots[n++] = buffer->slots[k];
    out->n_slots = n;
}

static rp_status bind_stages(rp__device *d, const rp__library_stage *stages, size_t n, rp__launch_buffer *buffer,
                             rp__launch *out, chain_texts *texts) {
    rp__contraction r[RP__CHAIN_MAX];
    factors of[RP__CHAIN_MAX];
    rp__text_kernel_key key = {.family = "chain"};
    plan p;
    if (n == 0 || n > RP__CHAIN_MAX) return rp__fail(RP_ERROR_INTERNAL, "%s: a chain of %zu products", out->op, n);
    for (size_t s = 0; s < n; s++) {
        RP_TRY(rp__contract_read(stages[s].dag, stages[s].space, &r[s]));
        of[s] = (factors){&r[s].o[0], &r[s].o[1], &r[s].o[2]};
        if (stages[s].dag->before[0] || stages[s].dag->before[1] || r[s].order != order_here(r[s].o[0].dtype))
            return rp__fail(RP_ERROR_INTERNAL, "%s: a product that no chain has", out->op);
    }
    if (make_plan(d, of, n, &p) != RP__CHAIN_YES)
        return rp__fail(RP_ERROR_INTERNAL, "%s: these products are not one kernel", out->op);
    set_launch(&p, of, buffer, out, &key.facts);
    const char *op = out->op, *site = out->site;
    const uint32_t start = out->n_words;
    for (unsigned s = 0; s < n; s++) {
        const uint32_t first = out->n_words;
        RP_TRY(rp__contract_words(d, stages[s].dag, RP__CONTRACT_REST, stages[s].space, r[s].dim,
                                  (unsigned)r[s].n_m + r[s].n_n, first, buffer, out));
        RP_TRY(add_stage(&stages[s], &r[s], s, (unsigned)n, first, texts));
    }
    out->op = op;
    out->site = site;
    drop_absent(buffer, out);
    key.facts |= (uint64_t)(out->n_words - start) << REST_FACTS;
    if (texts->fields.failed || texts->held.failed || texts->follow.failed) return RP__OOM("CUDA source of a kernel");
    key.parts = &(rp__text_parts){
        .follow = texts->follow.data,
        .wide = {[RP__CUDA_WIDE_TYPES] = texts->fields.data, [RP__CUDA_WIDE_HELD] = texts->held.data}};
    return rp__text_kernel(d, &key, macros, rp__embed_chain_cuh, rp__embed_chain_cuh_len, &out->kernel);
}

rp_status rp__cuda_chain_bind(rp__device *d, const rp__library_stage *stages, size_t n, const rp__library_call *call,
                              rp__launch_buffer *buffer, rp__launch *out) {
    chain_texts texts;
    memset(&texts, 0, sizeof texts);
    *out = (rp__launch){.op = call->op, .site = call->site};
    const rp_status status = bind_stages(d, stages, n, buffer, out, &texts);
    rp__text_free(&texts.fields);
    rp__text_free(&texts.held);
    rp__text_free(&texts.follow);
    return status;
}

/* ---- the row of a single product */

static factors alone(const rp__problem *p) { return (factors){&p->o[0], &p->o[1], &p->o[2]}; }

static bool serves(const rp__problem *p, size_t *workspace) {
    const factors f = alone(p);
    plan unused;
    (void)workspace;
    return (p->n < 4 || is_narrow(&p->o[3])) && make_plan(p->device, &f, 1, &unused) == RP__CHAIN_YES;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    const factors f = alone(p);
    const rp__operand *y = &p->o[0], *bias = p->n > 3 && p->o[3].base ? &p->o[3] : NULL;
    rp__text_kernel_key key = {.family = "chain"};
    plan of;
    (void)workspace;
    *out = (rp__launch){.op = p->call->op, .site = p->call->site};
    if (make_plan(p->device, &f, 1, &of) != RP__CHAIN_YES)
        return rp__fail(RP_ERROR_INTERNAL, "%s: this product is not one kernel", p->call->op);
    set_launch(&of, &f, buffer, out, &key.facts);
    enum { BIAS = 6, OUT, OUT_STRIDES = 10, BIAS_STRIDE };
    if (bias) rp__operand_slot(bias, BIAS, RP__READ, buffer, out);
    rp__operand_slot(y, OUT, RP__WRITE, buffer, out);
    buffer->words[OUT_STRIDES] = pair(last(y->stride, y, 2), last(y->stride, y, 1));
    buffer->words[BIAS_STRIDE] |= (uint32_t)(bias ? bias->stride[0] : 0);
    key.facts |= (uint64_t)(bias != NULL) << STAGE_FACTS;
    return rp__text_kernel(p->device, &key, macros, rp__embed_chain_cuh, rp__embed_chain_cuh_len, &out->kernel);
}

const rp__cuda_product_row rp__cuda_chain_row = {
    .row = {.name = "chain", .ops = 1u << RP__LIB_MATMUL, .serves = serves, .order = rp__problem_order, .bind = bind}};
