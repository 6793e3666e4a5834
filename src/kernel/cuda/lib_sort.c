/* See lib_sort.h: which text of sort.cuh and topk.cuh takes a row, its macros, words, grids and workspace. All of it follows from sizes and dtypes
 * but for the length of chunks, which follows from the device and which results do not depend on. */
#include "kernel/cuda/lib_sort.h"

#include <string.h>

#include "core/dtype.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

enum {
    LANES_MOST = 256,     /* elements of a row that a group of lanes sorts in registers */
    BLOCK_MOST = 8192,    /* that a block takes into registers */
    SELECTED_MOST = 1024, /* that are put in order in shared memory once they are found */
    TILE = 4096,          /* of a chunk of a long row */
    WAVES = 16            /* chunks a multiprocessor, at most: their counts are few beside what is counted */
};
typedef enum way { BY_LANES, BY_BLOCK, COUNT, ADD_UP, MOVE, SELECT } way; /* the forms of sort.cuh, then topk.cuh */

typedef struct plan {
    way way; /* of the first launch */
    int64_t n, k, rows;
    int64_t chunk, chunks; /* COUNT */
    unsigned bits;
    size_t at[7], bytes; /* offsets in the workspace: own words of the texts */
} plan;

static size_t room(plan *p, size_t bytes) {
    const size_t at = p->bytes;
    p->bytes += (bytes + 15) / 16 * 16;
    return at;
}

static int64_t parts_of(int64_t n) { return (n + BLOCK_MOST - 1) / BLOCK_MOST; }

/* Of the power of two from n on. */
static unsigned log_of(int64_t n) {
    unsigned log = 0;
    while (INT64_C(1) << log < n) log++;
    return log;
}

/* Threads and items of a block that takes n elements, in logarithms: 256 threads, or more where an item is one of `most` already. */
static void shape_of(int64_t n, unsigned most, unsigned *threads, unsigned *items) {
    const unsigned all = log_of(n);
    *threads = all <= 8 + most ? 8 : all - most;
    *items = all > *threads ? all - *threads : 0;
}

/* Shared memory of a block that has a row: keys and places, and what sort.cuh counts, a table a warp. */
enum { BLOCK_ITEMS = 3, COUNTS = 256 * 2, OTHERS = 64 };
static uint32_t exchange_of(unsigned bits, unsigned threads, unsigned items) {
    return (bits / 8 + 2) << (threads + items);
}
static bool fits_block(const rp__device *d, const plan *p) {
    unsigned threads, items;
    if (p->n > BLOCK_MOST) return false;
    shape_of(p->n, BLOCK_ITEMS, &threads, &items);
    return exchange_of(p->bits, threads, items) + (COUNTS << threads) / 32 + OTHERS <= d->shared_limit;
}

static plan plan_of(const rp__device *d, const rp__operand *o, const rp__library_call *call) {
    plan p = {.n = o[2].size[call->dim], .k = call->k, .bits = 8 * (unsigned)rp__dtype_bytes(o[2].dtype)};
    const size_t key = p.bits / 8, place = 4;
    p.rows = p.k ? rp__operand_numel(&o[0]) / p.k : 0;
    if (p.rows == 0) return p;
    /* A whole row is read once and sorted in four times as many instructions as a selection of it takes. */
    const bool few = p.k <= SELECTED_MOST && p.k <= p.n / 4;
    if (p.n <= LANES_MOST) {
        p.way = BY_LANES;
    } else if (few) {
        p.way = SELECT;
        for (unsigned half = 0; half < 2 && parts_of(p.n) > 1; half++) { /* what one launch writes the next one reads */
            const size_t most = (size_t)(p.rows * parts_of(p.n) * p.k);
            p.at[2 * half] = room(&p, most * key);
            p.at[2 * half + 1] = room(&p, most * place);
        }
    } else if (fits_block(d, &p)) { /* 64 KB on 7.5, which rows of up to 4096 leave room in */
        p.way = BY_BLOCK;
    } else {
        const int64_t tiles = (p.n + TILE - 1) / TILE, most = (int64_t)d->multiprocessors * WAVES;
        int64_t each = (tiles * p.rows + most - 1) / most;
        if (each > tiles) each = tiles;
        p.way = COUNT;
        p.chunk = each * TILE;
        p.chunks = (p.n + p.chunk - 1) / p.chunk;
        for (unsigned half = 0; half < 2; half++) {
            p.at[2 * half] = room(&p, (size_t)(p.rows * p.n) * key);
            p.at[2 * half + 1] = room(&p, (size_t)(p.rows * p.n) * place);
        }
        p.at[4] = room(&p, (size_t)(p.rows * 256 * p.chunks) * 4);
        p.at[5] = room(&p, (size_t)(p.rows * 256) * 4);
        p.at[6] = room(&p, (size_t)p.rows * (p.bits / 8) * 4);
    }
    return p;
}

size_t rp__cuda_topk_workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                               const rp__library_call *call) {
    (void)op;
    return n < 3 || (unsigned)call->dim >= o[2].ndim ? 0 : plan_of(d, o, call).bytes;
}

/* Facts: dtype, way << 8, dims << 16, log2 of threads << 24 and of items (lanes: of the padded row) << 28, then the bits: */
enum { LARGEST = 1 << 12, AGAIN = 1 << 13, ENDS = 1 << 14 };

static void macros(uint64_t facts, rp__text *out) {
    static const char *const raw[] = {[RP_F32] = "rp_f32_bits(x)", [RP_F64] = "rp_f64_bits(x)"},
                             *const back[] = {[RP_F32] = "rp_bits_f32(u)", [RP_F64] = "rp_bits_f64(u)"};
    const rp_dtype dtype = (rp_dtype)(facts & 0xff);
    const way w = (way)(facts >> 8 & 7);
    const unsigned bits = 8 * (unsigned)rp__dtype_bytes(dtype);
    const bool real = rp__dtype_is_float(dtype), wide = dtype == RP_F32 || dtype == RP_F64;
    rp__text_add(out, "#define RP_T %s\n#define RP_K rp_u%u\n#define RP_BITS %u\n", rp__dtypes[dtype].cuda, bits, bits);
    rp__text_add(out, "#define RP_RAW(x) ((RP_K)%s)\n#define RP_OF(u) ((RP_T)%s)\n", wide ? raw[dtype] : "(x)",
                 wide ? back[dtype] : "(u)");
    rp__text_add(out, "#define RP_FLOAT %d\n#define RP_SIGNED %d\n#define RP_LARGEST %d\n", real,
                 !real && dtype != RP_U8 && dtype != RP_BOOL, facts & LARGEST ? 1 : 0);
    if (real)
        rp__text_add(out, "#define RP_INFINITY 0x%llx%s\n", (unsigned long long)rp__dtype_infinity(dtype),
                     bits == 64   ? "ull"
                     : bits == 32 ? "u"
                                  : "");
    rp__text_add(out, "#define RP_DIMS %u\n#define RP_OWN %u\n", (unsigned)(facts >> 16 & 0xff),
                 w == SELECT ? 5u
                 : w < COUNT ? 0u
                             : 10u);
    rp__text_add(out, "#define RP_THREADS %u\n#define RP_ITEMS %u\n#define RP_PADDED %u\n", 1u << (facts >> 24 & 15),
                 1u << (facts >> 28 & 15), 1u << (facts >> 28 & 15));
    if (w == SELECT)
        rp__text_add(out, "#define RP_SHARED_K %d\n#define RP_AGAIN %d\n#define RP_ENDS %d\n", SELECTED_MOST,
                     facts & AGAIN ? 1 : 0, facts & ENDS ? 1 : 0);
    else
        rp__text_add(out, "#define RP_FORM %u\n", (unsigned)w);
    rp__text_write(out, rp__embed_order_cuh, rp__embed_order_cuh_len);
}

rp_status rp__cuda_topk_step(rp__device *d, const rp__operand *o, const rp__library_call *call, unsigned step,
                             rp__launch_buffer *buffer, rp__launch *out) {
    static const uint32_t access[3] = {RP__WRITE, RP__WRITE, RP__READ};
    *out = (rp__launch){.op = call->op, .site = call->site};
    const rp__operand *values = &o[0], *indices = &o[1], *x = &o[2];
    const unsigned dim = (unsigned)call->dim, nd = x->ndim;
    if (x->size[dim] > UINT32_MAX)
        return rp__fail(RP_ERROR_SHAPE, "%s: rows are limited to 2^32 - 1 elements", call->op);
    const plan p = plan_of(d, o, call);
    if (p.rows == 0) return RP_OK;
    way now = p.way;
    int64_t length = p.n, blocks = p.rows, parts = 1;
    unsigned threads = 8, items = 0;
    uint64_t facts = 0, own[10];
    unsigned n_own = 0;
    if (p.way == SELECT) {
        for (unsigned k = 0; k < step; k++) {
            if (parts_of(length) == 1) return RP_OK;
            length = parts_of(length) * p.k;
        }
        parts = parts_of(length);
        blocks *= parts;
        shape_of((length + parts - 1) / parts, 4, &threads, &items);
        facts = (step ? AGAIN : 0) | (parts == 1 ? ENDS : 0);
        own[n_own++] = (uint64_t)parts;
        for (unsigned k = 0; k < 4; k++) own[n_own++] = p.at[(k + 2 * (step + 1)) % 4];
    } else if (p.way == COUNT) {
        static const int64_t of_scan = 32; /* blocks a row */
        if (step >= 3 * p.bits / 8) return RP_OK;
        now = (way)(COUNT + step % 3);
        threads = now == ADD_UP ? 8 : 9, items = 3;
        blocks *= now == ADD_UP ? of_scan : p.chunks;
        own[n_own++] = (uint64_t)p.chunk, own[n_own++] = (uint64_t)p.chunks, own[n_own++] = step / 3 * 8;
        for (unsigned k = 0; k < 7; k++) own[n_own++] = p.at[k];
        if (now == MOVE) out->shared_bytes = TILE * (p.bits / 8 + 4);
    } else {
        if (step > 0) return RP_OK;
        if (p.way == BY_LANES) {
            const int64_t padded = INT64_C(1) << (items = log_of(p.n)), a_block = 256 / (padded < 32 ? padded : 32);
            blocks = (p.rows + a_block - 1) / a_block;
        } else {
            shape_of(p.n, BLOCK_ITEMS, &threads, &items);
            out->shared_bytes = exchange_of(p.bits, threads, items);
        }
    }
    rp__operand_slots(o, 3, access, buffer, out);
    RP_TRY(rp__workspace_slot(call, p.bytes, 3, buffer, out));
    uint64_t *w = buffer->words;
    w[4] = (uint64_t)length, w[5] = (uint64_t)p.k, w[6] = (uint64_t)p.rows;
    w[7] = (uint64_t)values->stride[dim], w[8] = (uint64_t)indices->stride[dim], w[9] = (uint64_t)x->stride[dim];
    memcpy(w + 10, own, n_own * sizeof *own);
    uint32_t at = 10 + n_own;
    for (unsigned i = 0; i < nd; i++) {
        if (i == dim) continue;
        w[at++] = (uint64_t)x->size[i], w[at++] = (uint64_t)values->stride[i], w[at++] = (uint64_t)indices->stride[i];
        w[at++] = (uint64_t)x->stride[i];
    }
    out->n_words = at;
    rp__text_kernel_key key = {.family = p.way == SELECT ? "topk" : "sort"};
    key.facts = facts | (uint64_t)x->dtype | (uint64_t)now << 8 | (call->largest ? LARGEST : 0) |
                (uint64_t)(nd - 1) << 16 | (uint64_t)threads << 24 | (uint64_t)items << 28;
    RP_TRY(p.way == SELECT
               ? rp__text_kernel(d, &key, macros, rp__embed_topk_cuh, rp__embed_topk_cuh_len, &out->kernel)
               : rp__text_kernel(d, &key, macros, rp__embed_sort_cuh, rp__embed_sort_cuh_len, &out->kernel));
    return rp__cuda_line_grid(out, call, blocks, 1u << threads);
}

rp_status rp__cuda_topk_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                             const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op, (void)n;
    return rp__cuda_topk_step(d, o, call, 0, buffer, out);
}
