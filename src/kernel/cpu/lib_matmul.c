/* Matrix products on the CPU: from strided operands to the words of gemm.h. Folds batch dims, turns thin results around, cuts
   the result into tiles. Nothing decided here can be seen in the bits of the result (gemm.h). */
#include "kernel/cpu/gemm.h"

#include <string.h>
#include <sys/mman.h>

#include "core/fork.h"
#include "core/thread.h"
#include "kernel/cpu/dots.h"
#include "kernel/cpu/lib.h"
#include "kernel/cpu/tiles.h"

const rp__gemm *rp__gemm_current(void) { return RP__ISA_TABLE(rp__gemm); }

/* ---- scratch of a thread */

static _Thread_local void *thread_scratch;
static _Alignas(4096) char reserve[RP__GEMM_SCRATCH_BYTES]; /* untouched until needed: no page of it is in memory */
static rp__mutex reserve_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_reserve, &reserve_lock, 1)
bool rp__gemm_scratch_shared;

static void scratch_unmap(void *p) {
    (void)munmap(p, RP__GEMM_SCRATCH_BYTES);
    thread_scratch = NULL;
}

void *rp__gemm_scratch_take(void) {
    if (RP__LIKELY(thread_scratch && !rp__gemm_scratch_shared)) return thread_scratch;
    static rp__thread_end scratches = {.end = scratch_unmap};
    void *p = MAP_FAILED;
    if (!rp__gemm_scratch_shared)
        p = mmap(NULL, RP__GEMM_SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED && rp__thread_keep(&scratches, p)) return thread_scratch = p;
    if (p != MAP_FAILED) (void)munmap(p, RP__GEMM_SCRATCH_BYTES);
    rp__lock(&reserve_lock);
    return reserve;
}

void rp__gemm_scratch_give(const void *scratch) {
    if (RP__UNLIKELY(scratch == reserve)) rp__unlock(&reserve_lock);
}

/* ---- entries */

/* The kernel of a dtype is the same object for every instruction set: its entry looks the table up. */
static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end);
#define KERNEL(dtype, text)                                                                                            \
    [dtype] = {.kind = RP__KERNEL_CPU, .name = "matmul_" text, .key = {dtype, 0x6d61746d756c}, .cpu = run}
static rp__kernel kernels[RP__DTYPE_COUNT] = {
    KERNEL(RP_F32, "f32"), KERNEL(RP_F64, "f64"), KERNEL(RP_F16, "f16"), KERNEL(RP_BF16, "bf16"), KERNEL(RP_I32, "i32"),
    KERNEL(RP_I64, "i64"), KERNEL(RP_U8, "u8"),   KERNEL(RP_I8, "i8"),   KERNEL(RP_I16, "i16"),
};
static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    rp__gemm_current()->matmul[kernel - kernels](kernel, words, begin, end);
}

bool rp__cpu_dots(rp_dtype dtype) {
#ifdef RP_ISA_BASELINE_ONLY
    return false;
#else
    return dtype == RP_BF16 && rp__tiles_current() == &rp__tiles_avx512 && rp__dots_here();
#endif
}

static void swap(int64_t *x, int64_t *y) {
    const int64_t t = *x;
    *x = *y;
    *y = t;
}

/* Batch dims that are alike in all operands are one; (B, T, K) x (K, N): the batch is more rows. False: there is nothing to compute. */
static bool read_problem(const rp__operand *y, const rp__operand *a, const rp__operand *b, rp__gemm_problem *p) {
    const unsigned nd = y->ndim;
    *p = (rp__gemm_problem){.m = y->size[nd - 2],
                            .n = y->size[nd - 1],
                            .k = a->size[nd - 1],
                            .om = y->stride[nd - 2],
                            .on = y->stride[nd - 1],
                            .am = a->stride[nd - 2],
                            .ak = a->stride[nd - 1],
                            .bk = b->stride[nd - 2],
                            .bn = b->stride[nd - 1]};
    int64_t problems = 1;
    for (unsigned i = 0; i + 2 < nd; i++) {
        const int64_t extent = y->size[i];
        problems *= extent;
        if (extent == 1) continue;
        unsigned last = p->n_batch - 1u;
        if (p->n_batch && p->batch[last].out == y->stride[i] * extent && p->batch[last].a == a->stride[i] * extent &&
            p->batch[last].b == b->stride[i] * extent) {
            p->batch[last].extent *= extent;
        } else {
            last = p->n_batch++;
            p->batch[last].extent = extent;
        }
        p->batch[last].out = y->stride[i];
        p->batch[last].a = a->stride[i];
        p->batch[last].b = b->stride[i];
    }
    if (p->m == 0 || p->n == 0 || problems == 0) return false;
    if (p->n_batch && p->batch[p->n_batch - 1].b == 0) {
        const unsigned last = p->n_batch - 1u;
        if (p->m == 1) {
            p->om = p->batch[last].out, p->am = p->batch[last].a, p->m = p->batch[last].extent, p->n_batch--;
        } else if (p->batch[last].out == p->om * p->m && p->batch[last].a == p->am * p->m) {
            p->m *= p->batch[last].extent, p->n_batch--;
        }
    }
    return true;
}

void rp__gemm_turn(rp__gemm_problem *p) {
    swap(&p->m, &p->n);
    swap(&p->om, &p->on);
    swap(&p->am, &p->bn);
    swap(&p->ak, &p->bk);
    for (unsigned i = 0; i < p->n_batch; i++) swap(&p->batch[i].a, &p->batch[i].b);
    p->turned = !p->turned;
}

bool rp__gemm_reads_turned(const rp__gemm_problem *p, unsigned flags) {
    if (p->n <= 4 && p->m > p->n) return true;
    return flags & RP__GEMM_DOTS && p->bk == 1 && p->bn != 1 && p->m <= RP__GEMM_DOTS_TILE_M && p->n > p->m;
}

/* The cut of m x n, so many at once, into tiles that keep all threads about as long at work with little packing: a packed element of
   either side costs as much as some multiply-adds. */
void rp__cpu_gemm_cut(int64_t m, int64_t n, int64_t problems, double k, int64_t most_m, int64_t *tile_m,
                      int64_t *tile_n) {
    enum { ROWS = 12, COLUMNS = 32, PACK_A = 6, PACK_B = 12, TRIES = 8 };
    const int64_t threads = rp_num_threads();
    const int64_t least_m = (m + most_m - 1) / most_m, least_n = (n + RP__GEMM_MAX_TILE_N - 1) / RP__GEMM_MAX_TILE_N;
    const bool large = (double)m * (double)n * (double)problems * (k + 4) > 1e6;
    double least = 0;
    for (int64_t i = least_m; i < least_m + TRIES; i++) {
        int64_t tm = (m + i - 1) / i;
        if (i > 1) tm = (tm + ROWS - 1) / ROWS * ROWS;
        if (tm > most_m) tm = most_m;
        for (int64_t j = least_n; j < least_n + TRIES; j++) {
            int64_t tn = (n + j - 1) / j;
            if (j > 1) tn = (tn + COLUMNS - 1) / COLUMNS * COLUMNS;
            if (tn > RP__GEMM_MAX_TILE_N) tn = RP__GEMM_MAX_TILE_N;
            const int64_t tiles = problems * ((m + tm - 1) / tm) * ((n + tn - 1) / tn);
            const double turns = (double)((tiles + threads - 1) / threads);
            const double cost = turns * ((double)tm * (double)tn + PACK_A * (double)tm + PACK_B * (double)tn);
            if (least != 0 && cost >= least) continue;
            least = cost, *tile_m = tm, *tile_n = tn;
            if (!large) return;
        }
    }
}

enum { FEW_LINES = 64, LONG_LINES = 1024 };

void rp__cpu_gemm_words(const rp__gemm_problem *p, rp_dtype dtype, unsigned flags, rp__launch_buffer *buffer,
                        rp__launch *out) {
    uint64_t *w = buffer->words;
    int64_t problems = 1, tm, tn;
    for (unsigned i = 0; i < p->n_batch; i++) problems *= p->batch[i].extent;
    const double work = (double)p->m * (double)p->n * (double)(p->k + 4);
    const bool wide =
        dtype != RP_U8 && dtype != RP_I8 && dtype != RP_I16; /* isa/gemm_tile.h reads their rows in place */
    const bool made = flags & (RP__GEMM_MAKES_A | RP__GEMM_MAKES_B);
    const int64_t few = flags & RP__GEMM_DOTS ? RP__GEMM_DOTS_TILE_M : RP__GEMM_STREAM_TILE_M;
    if (p->m <= few && p->bn == 1 && p->n > RP__GEMM_MAX_TILE_N && wide && !made) {
        const int64_t threads = problems < rp_num_threads() ? rp_num_threads() : 1;
        tm = p->m;
        tn = ((p->n + threads - 1) / threads + 63) / 64 * 64;
        if (tn < RP__GEMM_MAX_TILE_N) tn = RP__GEMM_MAX_TILE_N;
        if (tn > RP__GEMM_STREAM_TILE_N) tn = RP__GEMM_STREAM_TILE_N;
    } else {
        rp__cpu_gemm_cut(p->m, p->n, problems, (double)p->k, RP__GEMM_MAX_TILE_M, &tm, &tn);
        /* Long lines of b that few rows use: some at a time from end to end, as they lie in memory. */
        const int64_t most = rp__tiles_current()->vec_bytes >= 64 ? 6 : 3; /* BY_LINES of isa/gemm_tile.h */
        if (p->m <= most && p->bk == 1 && p->bn != 1 && p->k >= LONG_LINES && !made && tn > FEW_LINES) tn = FEW_LINES;
    }
    const int64_t tiles_m = (p->m + tm - 1) / tm, tiles_n = (p->n + tn - 1) / tn;

    w[RP__GEMM_M] = (uint64_t)p->m, w[RP__GEMM_N] = (uint64_t)p->n, w[RP__GEMM_K] = (uint64_t)p->k;
    w[RP__GEMM_OM] = (uint64_t)p->om, w[RP__GEMM_ON] = (uint64_t)p->on;
    /* A strided extent of 1 may have any stride. */
    if (p->n == 1) w[RP__GEMM_ON] = 1;
    w[RP__GEMM_AM] = (uint64_t)p->am, w[RP__GEMM_AK] = (uint64_t)(p->k == 1 ? 1 : p->ak);
    w[RP__GEMM_BK] = (uint64_t)(p->k == 1 ? 1 : p->bk), w[RP__GEMM_BN] = (uint64_t)(p->n == 1 ? 1 : p->bn);
    w[RP__GEMM_TILE_M] = (uint64_t)tm, w[RP__GEMM_TILE_N] = (uint64_t)tn;
    w[RP__GEMM_FLAGS] = flags;
    w[RP__GEMM_BATCH] = p->n_batch;
    memcpy(w + RP__GEMM_WORDS, p->batch, p->n_batch * sizeof *p->batch);
    out->n_words = RP__GEMM_WORDS + 4 * p->n_batch;
    out->items = problems * tiles_m * tiles_n;
    /* Products of few rows take as long as b takes to come from memory. */
    const double read = (double)p->n * (double)p->k * (double)rp__dtype_bytes(dtype) / 12;
    const double cycles = work / 8 > read ? work / 8 : read;
    out->grain = rp__cpu_grain(out->items, cycles * (double)problems / (double)out->items + 100);
}

/* An operand is packed once for each tile of the result along the other. What is saved is a pass that stores it and one that reads it back: worth
   a few additions. */
unsigned rp__cpu_factor_cost(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                             const rp__library_call *call, rp__order order, unsigned k) {
    enum { WORTH = 8, MOST = 64 };
    rp__gemm_problem p;
    int64_t problems = 1, again = 1, tm, tn;
    (void)d, (void)n, (void)call;
    if (op != RP__LIB_MATMUL || !rp__dtype_is_float((rp_dtype)o->dtype) ||
        rp__order_family_of(order) == RP__FAMILY_DOTS || !read_problem(&o[0], &o[1], &o[2], &p))
        return 0;
    for (unsigned i = 0; i < p.n_batch; i++) {
        problems *= p.batch[i].extent;
        if ((k ? p.batch[i].b : p.batch[i].a) == 0) again *= p.batch[i].extent;
    }
    rp__cpu_gemm_cut(p.m, p.n, problems, (double)p.k, RP__GEMM_MAX_TILE_M, &tm, &tn);
    again *= k ? (p.m + tm - 1) / tm : (p.n + tn - 1) / tn;
    return again == 1 ? MOST : again <= WORTH ? (unsigned)(WORTH / (again - 1)) : 0;
}

static rp_status bind(const rp__operand *o, size_t n, const rp__library_call *call, unsigned flags,
                      rp__launch_buffer *buffer, rp__launch *out) {
    const rp__operand *y = &o[0], *a = &o[1], *b = &o[2], *bias = n > 3 ? &o[3] : NULL;
    const unsigned nd = y->ndim;
    if (n < 3 || nd < 2 || a->ndim != nd || b->ndim != nd || (bias && bias->ndim != 1))
        return rp__fail(RP_ERROR_INTERNAL, "%s: operands of a product need equal ranks of at least 2", call->op);
    if (!rp__dtype_is_valid((rp_dtype)y->dtype) || !kernels[y->dtype].name || a->dtype != y->dtype ||
        b->dtype != y->dtype || (bias && bias->dtype != y->dtype))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: no matrix product of %s, %s to %s", call->op,
                        rp_dtype_name(a->dtype), rp_dtype_name(b->dtype), rp_dtype_name(y->dtype));
    rp__gemm_problem p;
    if (!read_problem(y, a, b, &p)) return RP_OK;
    /* Vectors run along n. A result with few columns, or one that lies by columns, is computed as out^T = b^T a^T. */
    if (p.n == 1) p.on = 1;
    if (rp__gemm_reads_turned(&p, flags) || (p.on != 1 && p.om == 1 && p.m > 4)) rp__gemm_turn(&p);
    if (bias) flags |= p.turned ? RP__GEMM_BIAS_M : RP__GEMM_BIAS_N;
    out->n_slots = 0;
    rp__operand_slot(y, RP__GEMM_OUT, RP__WRITE, buffer, out);
    rp__operand_slot(a, p.turned ? RP__GEMM_B : RP__GEMM_A, RP__READ, buffer, out);
    rp__operand_slot(b, p.turned ? RP__GEMM_A : RP__GEMM_B, RP__READ, buffer, out);
    buffer->words[RP__GEMM_BIAS] = 0;
    if (bias) rp__operand_slot(bias, RP__GEMM_BIAS, RP__READ, buffer, out);
    buffer->words[RP__GEMM_BIAS_STRIDE] = bias ? (uint64_t)bias->stride[0] : 0;
    rp__cpu_gemm_words(&p, y->dtype, flags, buffer, out);
    out->kernel = &kernels[y->dtype];
    return RP_OK;
}

rp_status rp__cpu_matmul_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                              const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op;
    return bind(o, n, call, 0, buffer, out);
}
rp_status rp__cpu_matmul_dots_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                   const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op;
    return bind(o, n, call, RP__GEMM_DOTS, buffer, out);
}
