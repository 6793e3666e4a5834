/* Matrix products on CUDA: two rows of the table of templates, the plain kernel (matmul.cuh) and cuBLASLt (matmul_lt.c). (chain.c has
 * another, for what fits a block's shared memory; product.c those of tensor cores and of large tiles.) */
#include <string.h>

#include "kernel/cuda/library.h"
#include "kernel/cuda/matmul.h"
#include "kernel/cuda/text_kernel.h"
#include "kernel/product.h"
#include "reprise_embed.h"
#include "tensor/tensor.h"

#include "kernel/cuda/cublaslt_api.h"

void rp__matmul_read(const rp__operand *o, size_t n, rp__matmul *p) {
    unsigned nd = o[0].ndim, batch = nd - 2u;
    memset(p, 0, sizeof *p);
    p->dtype = o[0].dtype;
    p->m = o[0].size[nd - 2];
    p->n = o[0].size[nd - 1];
    p->k = o[1].size[nd - 1];
    p->om = o[0].stride[nd - 2];
    p->on = o[0].stride[nd - 1];
    p->am = o[1].stride[nd - 2];
    p->ak = o[1].stride[nd - 1];
    p->bk = o[2].stride[nd - 2];
    p->bn = o[2].stride[nd - 1];
    p->bias = n > 3 && o[3].base;
    p->bias_stride = p->bias ? o[3].stride[0] : 0;
    p->batch = 1;
    for (unsigned d = 0; d < batch; d++) {
        int64_t extent = o[0].size[d];
        p->batch *= extent;
        if (extent == 1) continue;
        unsigned last = p->n_batch - 1u;
        if (p->n_batch && p->so[last] == extent * o[0].stride[d] && p->sa[last] == extent * o[1].stride[d] &&
            p->sb[last] == extent * o[2].stride[d]) {
            p->extents[last] *= extent;
        } else {
            last = p->n_batch++;
            p->extents[last] = extent;
        }
        p->so[last] = o[0].stride[d];
        p->sa[last] = o[1].stride[d];
        p->sb[last] = o[2].stride[d];
    }
}

/* ---- cuBLASLt's view of it ---- */

/* A matrix of `rows` x `columns` with these strides as (leading dimension, transposed?) of a row-major one. */
static bool leading(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int64_t *ld,
                    int32_t *transposed) {
    if (column_stride == 1 && (row_stride >= columns || rows == 1)) {
        *ld = rows == 1 && row_stride < columns ? columns : row_stride;
        *transposed = 0;
        return true;
    }
    if (row_stride == 1 && (column_stride >= rows || columns == 1)) {
        *ld = columns == 1 && column_stride < rows ? rows : column_stride;
        *transposed = 1;
        return true;
    }
    return false;
}

static int32_t alignment_of(const rp__operand *o, size_t n) {
    uint64_t bits = 16;
    for (size_t k = 0; k < n; k++) bits |= (uint64_t)(uintptr_t)o[k].base;
    return (int32_t)(bits & (~bits + 1));
}

static bool allows_tf32(const rp__problem *p) {
    return p->call->precision == RP__FLOAT32_HIGH || p->call->precision == RP__FLOAT32_MEDIUM;
}

static bool lt_problem(const rp__problem *problem, const rp__matmul *p, rp__lt_problem *out) {
    const rp__device *d = problem->device;
    const rp__operand *o = problem->o;
    const size_t n = problem->n;
    memset(out, 0, sizeof *out);
    if (!rp__dtype_is_float(p->dtype) || p->n_batch > 1 || p->m == 0 || p->n == 0 || p->k == 0 || p->batch == 0 ||
        (p->bias && p->bias_stride != 1))
        return false;
    int32_t flipped = 0;
    if (!leading(p->m, p->n, p->om, p->on, &out->ldd, &flipped) || flipped ||
        !leading(p->m, p->k, p->am, p->ak, &out->lda, &out->transpose_a) ||
        !leading(p->k, p->n, p->bk, p->bn, &out->ldb, &out->transpose_b))
        return false;
    out->dtype = (int32_t)p->dtype;
    out->compute = p->dtype == RP_F64                           ? CUBLAS_COMPUTE_64F
                   : p->dtype == RP_F32 && allows_tf32(problem) ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                : CUBLAS_COMPUTE_32F;
    out->epilogue = p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    out->alignment = alignment_of(o, n > 3 && p->bias ? 4 : 3);
    out->device = d->id.index;
    out->m = p->m;
    out->n = p->n;
    out->k = p->k;
    out->batch = p->batch;
    if (p->n_batch) {
        out->stride_a = p->sa[0];
        out->stride_b = p->sb[0];
        out->stride_d = p->so[0];
    }
    return true;
}

static bool lt_serves(const rp__problem *p, size_t *workspace) {
    rp__matmul read;
    rp__lt_problem problem;
    rp__matmul_read(p->o, p->n, &read);
    return lt_problem(p, &read, &problem) && rp__cuda_lt_plan(p->device, &problem, workspace);
}

static double lt_cost(const rp__problem *p) {
    (void)p;
    return (double)RP__CUDA_SMALL_PRODUCT;
}

void rp__matmul_start(const rp__problem *p, const rp__matmul *read, rp__launch_buffer *buffer, rp__launch *out) {
    static const uint32_t access[4] = {RP__WRITE, RP__READ, RP__READ | RP__AHEAD, RP__READ};
    rp__operand_slots(p->o, read->bias ? 4 : 3, access, buffer, out);
    if (!read->bias) buffer->words[3] = 0;
}

static rp_status lt_bind(const rp__problem *p, size_t bytes, rp__launch_buffer *buffer, rp__launch *out) {
    rp__matmul read;
    rp__lt_problem problem;
    rp__matmul_read(p->o, p->n, &read);
    if (!lt_problem(p, &read, &problem)) return rp__fail(RP_ERROR_INTERNAL, "%s: no product of cuBLASLt", p->call->op);
    rp__matmul_start(p, &read, buffer, out);
    buffer->words[4] = (uint64_t)(uintptr_t)p->call->workspace;
    buffer->words[5] = bytes;
    memcpy(&buffer->words[6], &problem, sizeof problem);
    out->n_words = 6 + sizeof problem / sizeof(uint64_t);
    out->kernel = rp__cuda_lt_kernel();
    if (bytes)
        buffer->slots[out->n_slots++] = (rp__slot){.word = 4,
                                                   .access = RP__READ | RP__WRITE,
                                                   .storage = p->call->workspace_storage,
                                                   .buffer = -1,
                                                   .begin = 0,
                                                   .end = (int64_t)bytes};
    return RP_OK;
}

const rp__cuda_product_row rp__cuda_lt_row = {.row = {.name = "cublasLt",
                                                      .ops = 1u << RP__LIB_MATMUL,
                                                      .available = rp__cuda_lt_available,
                                                      .serves = lt_serves,
                                                      .cost = lt_cost,
                                                      .bind = lt_bind}};

void rp__matmul_words(const rp__matmul *p, rp__launch_buffer *buffer, rp__launch *out) {
    const int64_t sizes[10] = {p->m, p->n, p->k, p->om, p->on, p->am, p->ak, p->bk, p->bn, p->bias_stride};
    uint64_t *w = buffer->words;
    for (unsigned k = 0; k < 10; k++) w[4 + k] = (uint64_t)sizes[k];
    w[RP__MATMUL_AHEAD] = 0;
    w += RP__MATMUL_WORDS;
    for (unsigned k = 0; k < p->n_batch; k++, w += RP__MATMUL_BATCH_WORDS) {
        w[0] = (uint64_t)p->extents[k];
        w[1] = (uint64_t)p->so[k];
        w[2] = (uint64_t)p->sa[k];
        w[3] = (uint64_t)p->sb[k];
    }
    out->n_words = RP__MATMUL_WORDS + RP__MATMUL_BATCH_WORDS * p->n_batch;
}

uint32_t rp__matmul_n_words(const rp__problem *p) {
    rp__matmul read;
    rp__matmul_read(p->o, 3, &read);
    return RP__MATMUL_WORDS + RP__MATMUL_BATCH_WORDS * read.n_batch;
}

enum { ADDRESSES = 4 };

void rp__matmul_read_words(const uint64_t *words, rp_dtype dtype, unsigned n_batch, rp__matmul *out) {
    memset(out, 0, sizeof *out);
    out->dtype = dtype;
    out->m = (int64_t)words[4], out->n = (int64_t)words[5], out->k = (int64_t)words[6];
    out->n_batch = n_batch;
    out->batch = 1;
    for (unsigned d = 0; d < n_batch; d++) out->batch *= (int64_t)words[RP__MATMUL_WORDS + RP__MATMUL_BATCH_WORDS * d];
}

bool rp__matmul_is_alike(const rp__launch *a, const rp__launch *b) {
    return memcmp(a->words + ADDRESSES, b->words + ADDRESSES, (b->n_words - ADDRESSES) * sizeof *b->words) == 0;
}

void rp__matmul_join(const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer, rp__launch *out) {
    *out = *a;
    memmove(buffer->words, a->words, a->n_words * sizeof *a->words);
    memcpy(buffer->words + a->n_words, b->words, ADDRESSES * sizeof *b->words);
    memmove(buffer->slots, a->slots, a->n_slots * sizeof *a->slots);
    for (unsigned k = 0; k < b->n_slots; k++) {
        buffer->slots[a->n_slots + k] = b->slots[k];
        buffer->slots[a->n_slots + k].word += a->n_words;
    }
    out->words = buffer->words;
    out->slots = buffer->slots;
    out->n_words = a->n_words + ADDRESSES;
    out->n_slots = a->n_slots + b->n_slots;
    out->kernel = NULL;
}

void rp__matmul_factors(const rp__problem *p, rp__launch_buffer *buffer, rp__launch *out) {
    for (unsigned k = 0; k < 4; k++) buffer->words[k] = 0;
    for (unsigned k = 1; k < 3; k++)
        if (p->o[k].storage) rp__operand_slot(&p->o[k], k, k == 2 ? RP__READ | RP__AHEAD : RP__READ, buffer, out);
}

/* ---- our own kernel ---- */

static void macros(uint64_t facts, rp__text *out) {
    unsigned tile = facts >> 16 & 0xff;
    rp__text_kernel_dtype((rp_dtype)(facts & 0xff), out);
    rp__text_add(out, "#define RP_BATCH %u\n#define RP_BIAS %u\n#define RP_INDEX %s\n", (unsigned)(facts >> 8 & 0xff),
                 (unsigned)(facts >> 24 & 1), facts >> 26 & 1 ? "rp_i64" : "rp_i32");
    rp__text_add(out, "#define RP_REST %u\n", (unsigned)(facts >> 32));
    rp__text_add(out, "#define RP_LONG %u\n", (unsigned)(facts >> 27 & 1));
    rp__text_add(out, "#define RP_MAKES_A %u\n#define RP_MAKES_B %u\n", (unsigned)(facts >> RP__MATMUL_MAKES & 1),
                 (unsigned)(facts >> (RP__MATMUL_MAKES + 1) & 1));
    rp__text_add(out, "#define RP_TM %u\n#define RP_TN %u\n#define RP_TK %u\n", tile, tile,
                 tile == 16   ? 64
                 : tile == 32 ? 32
                              : 16);
}

bool rp__matmul_is_wide(const rp__operand *o, size_t n) {
    for (size_t k = 0; k < n; k++) {
        int64_t reach = 0;
        for (unsigned d = 0; d < o[k].ndim; d++) {
            int64_t stride = o[k].stride[d] < 0 ? -o[k].stride[d] : o[k].stride[d];
            if (o[k].size[d] > INT32_MAX / 2 || stride > INT32_MAX / 2) return true;
            reach += o[k].size[d] * stride;
        }
        if (reach > INT32_MAX / 2) return true;
    }
    return false;
}

/* Words but for addresses, grid and facts of our kernel. */
static rp_status set_tiles(const rp__device *d, const rp__matmul *p, bool wide, const rp__library_call *call,
                           rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    /* larger tiles reuse more, smaller ones fill more multiprocessors and wait less; the order of a sum is the same */
    int64_t small = ((p->m + 15) / 16) * ((p->n + 15) / 16) * p->batch;
    unsigned tile = small <= 4 * (int64_t)d->multiprocessors ? 16 : small <= 64 * (int64_t)d->multiprocessors ? 32 : 64;
    *facts = (uint64_t)p->dtype | (uint64_t)p->n_batch << 8 | (uint64_t)tile << 16 | (uint64_t)p->bias << 24 |
             (uint64_t)wide << 26 | (uint64_t)(p->k > RP__PRODUCT_BLOCK / (p->dtype == RP_F64 ? 2 : 1)) << 27;
    rp__matmul_words(p, buffer, out);
    int64_t gx = (p->n + tile - 1) / tile, gy = (p->m + tile - 1) / tile;
    if (gx > INT32_MAX || gy > 65535 || p->batch > 65535)
        return rp__fail(RP_ERROR_SHAPE,
                        "%s: a product of %lld x %lld in %lld batches is more than one CUDA launch takes", call->op,
                        (long long)p->m, (long long)p->n, (long long)p->batch);
    out->grid[0] = (uint32_t)gx;
    out->grid[1] = (uint32_t)gy;
    out->grid[2] = (uint32_t)p->batch;
    out->block[0] = 256;
    out->block[1] = out->block[2] = 1;
    return RP_OK;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "matmul"};
    rp__matmul read;
    (void)workspace;
    rp__matmul_read(p->o, p->n, &read);
    if (read.batch * read.m * read.n == 0) return RP_OK;
    rp__matmul_start(p, &read, buffer, out);
    RP_TRY(set_tiles(p->device, &read, rp__matmul_is_wide(p->o, read.bias ? 4 : 3), p->call, buffer, out, &key.facts));
    return rp__text_kernel(p->device, &key, macros, rp__embed_matmul_cuh, rp__embed_matmul_cuh_len, &out->kernel);
}

static rp_status tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    rp__matmul read;
    rp__matmul_read(p->o, 3, &read);
    rp__matmul_factors(p, buffer, out);
    *wide = *wide || rp__matmul_is_wide(p->o + 1, 2);
    return set_tiles(p->device, &read, *wide, p->call, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_matmul_cuh, rp__embed_matmul_cuh_len, parts, out);
}

/* Long sums are another row's, if there is one. */
static double cost(const rp__problem *p) {
    rp__matmul read;
    rp__matmul_read(p->o, 3, &read);
    const bool narrow = rp__dtype_is_float(read.dtype) && rp__dtype_is_narrow(read.dtype) && p->device->arch >= 80;
    return rp__problem_work(p) +
           (read.k >= (narrow ? RP__MATMUL_LONG_NARROW : RP__MATMUL_LONG) ? 4 * (double)RP__CUDA_SMALL_PRODUCT : 0);
}

/* Integers add up in 64 bits here; in whichever order and words, what a result holds of a sum is the same. */
static rp__order order(const rp__problem *p) {
    if (rp__dtype_is_float(p->o[0].dtype)) return rp__problem_order(p);
    const rp__order any = rp__order_with(rp__order_of(RP__CONTRACT_PRODUCT, 0), RP__FAMILY_INTEGER, 0);
    return p->order != RP__ORDER_ELSEWHERE && rp__order_family_of(p->order) == RP__FAMILY_INTEGER ? p->order : any;
}

const rp__cuda_product_row rp__cuda_matmul_row = {
    .row = {.name = "simt", .ops = 1u << RP__LIB_MATMUL, .follows = true, .order = order, .cost = cost, .bind = bind},
    .words = rp__matmul_n_words,
    .tiles = tiles,
    .source = source};
