/* DAGs with a CONTRACT on the CPU: the packed micro kernel of lib_matmul.c and lib_conv.c, and the rest of the DAG run as a loop
   kernel over each tile of sums while it lies in a cache near the core; what makes a factor is run for each block of it where others are packed. Tiles are cut into pieces of at most two dims, on which every
   access has one stride a dim. The order of a sum and what follows are the same as one after the other, so the bits are. */
#include "kernel/contract.h"

#include <string.h>

#include "core/alloc.h"
#include "kernel/cpu/contract.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/jit.h"
#include "kernel/cpu/lib.h"
#include "kernel/cpu/program.h"

/* Words of a piece of the rest, at most. */
enum { REST_DRAWS = 32, REST_WORDS = 1 + 3 * RP__DAG_MAX_ACCESSES + 2 + RP__DAG_MAX_SCALARS + 3 * REST_DRAWS + 2 };

typedef struct payload {
    rp__kernel *parts[RP__CONTRACT_PARTS]; /* counted */
    int conv;                              /* rp__conv_kind; negative: a product */
    rp_dtype dtype;
} payload;

static void destroy(rp__kernel *k) {
    payload *p = k->payload;
    for (unsigned i = 0; i < RP__CONTRACT_PARTS; i++)
        if (p->parts[i]) rp__kernel_release(p->parts[i]);
    rp__free(p);
    rp__free(k);
}

static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    const payload *p = kernel->payload;
    const rp__gemm *g = rp__gemm_current();
    (p->conv < 0 ? g->matmul[p->dtype] : g->conv[p->conv][p->dtype])(kernel, words, begin, end);
}

rp__kernel *rp__cpu_contract_kernel(const rp__dag *dag, rp__kernel *const parts[RP__CONTRACT_PARTS]) {
    rp__kernel *k = rp__calloc(1, sizeof *k);
    payload *p = rp__calloc(1, sizeof *p);
    if (!k || !p) {
        rp__free(k);
        rp__free(p);
        (void)RP__OOM("the kernel of a product");
        return NULL;
    }
    const rp__node *n = dag->nodes;
    while (n->op != RP__CONTRACT) n++;
    const rp__contract_form form = rp__order_form((rp__order)n->imm.i);
    for (unsigned i = 0; i < RP__CONTRACT_PARTS; i++) p->parts[i] = parts[i] ? rp__kernel_retain(parts[i]) : NULL;
    p->conv = form == RP__CONTRACT_CONV         ? RP__CONV_FORWARD
              : form == RP__CONTRACT_CONV_INPUT ? RP__CONV_INPUT
              : form == RP__CONTRACT_PRODUCT    ? -1
                                                : RP__CONV_WEIGHT;
    p->dtype = rp__contract_dtype(dag);
    atomic_init(&k->refs, 1);
    k->kind = RP__KERNEL_CPU;
    k->name = "contract";
    k->key = dag->key;
    atomic_init(&k->cpu, run);
    k->payload = p;
    k->destroy = destroy;
    return k;
}

rp__kernel *const *rp__cpu_contract_parts(const rp__kernel *contract) {
    return ((const payload *)contract->payload)->parts;
}

/* ---- binding */

static void operand_slot(const rp__operand *o, uint32_t word, rp__launch_buffer *buffer, rp__launch *out) {
    rp__operand_slot(o, word, RP__READ, buffer, out);
}

static rp_status add_part(rp__device *d, const rp__dag *dag, unsigned part, const rp__space *space, const uint8_t *dim,
                          unsigned fixed, unsigned m, unsigned n, uint32_t first, rp__launch_buffer *buffer,
                          rp__launch *out) {
    uint64_t *w = buffer->words + first;
    RP_TRY(rp__contract_words(d, dag, part, space, dim, fixed + m + n, first + RP__REST_WORDS, buffer, out));
    w[RP__REST_DIMS] = fixed + m + n;
    w[RP__REST_FIXED] = fixed;
    w[RP__REST_M] = m;
    return RP_OK;
}

/* Along which of two dims does the first store lie closer? */
static bool lies_along(const rp__dag *dag, const rp__space *space, uint8_t n, uint8_t m) {
    const rp__space_access *x = &space->accesses[dag->stores[0].access];
    return x->stride[n] != 1 && x->stride[m] == 1;
}

static rp_status bind_product(rp__device *d, const rp__dag *dag, const rp__space *space, const rp__contraction *c,
                              rp__launch_buffer *buffer, rp__launch *out) {
    const unsigned nb = c->n_batch;
    const rp__operand *a = &c->o[1], *b = &c->o[2];
    uint8_t dim[RP__SPACE_MAX_DIMS];
    unsigned m = c->n_m, n = c->n_n;
    rp__gemm_problem p = {.m = c->o[0].size[nb],
                          .n = c->o[0].size[nb + 1],
                          .k = a->size[nb + 1],
                          .am = a->stride[nb],
                          .ak = a->stride[nb + 1],
                          .bk = b->stride[nb],
                          .bn = b->stride[nb + 1],
                          .n_batch = nb};
    for (unsigned i = 0; i < nb; i++) {
        p.batch[i].extent = a->size[i];
        p.batch[i].out = 0;
        p.batch[i].a = a->stride[i];
        p.batch[i].b = b->stride[i];
    }
    memcpy(dim, c->dim, nb + m + n);
    unsigned flags = rp__order_family_of(c->order) == RP__FAMILY_DOTS ? RP__GEMM_REST | RP__GEMM_DOTS : RP__GEMM_REST;
    if (rp__gemm_reads_turned(&p, flags) ||
        (p.m > 4 && m && n && lies_along(dag, space, dim[nb + m + n - 1], dim[nb + m - 1]))) {
        rp__gemm_turn(&p);
        memcpy(dim + nb, c->dim + nb + m, n);
        memcpy(dim + nb + n, c->dim + nb, m);
        const unsigned t = m;
        m = n, n = t;
    }
    RP_TRY(add_part(d, dag, RP__CONTRACT_REST, space, dim, nb, m, n, RP__GEMM_WORDS + 4 * nb, buffer, out));
    if (p.turned) flags |= RP__GEMM_TURNED;
    for (unsigned side = 0; side < 2; side++) { /* a: its rows are those of m; b */
        const unsigned factor = side ^ (p.turned ? 1u : 0u), word = side ? RP__GEMM_B : RP__GEMM_A;
        const rp__operand *o = factor ? b : a;
        if (!dag->before[factor]) {
            operand_slot(o, word, buffer, out);
            continue;
        }
        uint8_t made[RP__SPACE_MAX_DIMS + 1];
        const unsigned lines = side ? n : m;
        const bool along = !side || p.bk == 1;
        const uint32_t first = out->n_words;
        memcpy(made, dim, nb);
        memcpy(made + nb + !along, dim + nb + (side ? m : 0), lines);
        made[nb + (along ? lines : 0)] = c->k;
        buffer->words[word] = first;
        RP_TRY(add_part(d, dag, RP__CONTRACT_FIRST + factor, space, made, nb, along ? lines : 1, along ? 1 : lines,
                        first, buffer, out));
        flags |= !side ? RP__GEMM_MAKES_A : along ? RP__GEMM_MAKES_B | RP__GEMM_MAKES_B_ALONG : RP__GEMM_MAKES_B;
    }
    const uint32_t words = out->n_words;
    buffer->words[RP__GEMM_OUT] = buffer->words[RP__GEMM_BIAS] = buffer->words[RP__GEMM_BIAS_STRIDE] = 0;
    rp__cpu_gemm_words(&p, a->dtype, flags, buffer, out);
    out->n_words = words;
    return RP_OK;
}

static rp_status bind_conv(rp__device *d, const rp__dag *dag, const rp__space *space, const rp__contraction *c,
                           rp__launch_buffer *buffer, rp__launch *out) {
    uint8_t dim[6];
    const bool weight = c->op == RP__LIB_CONV_WEIGHT, input = c->op == RP__LIB_CONV_INPUT;
    const unsigned spatial = c->call.conv.spatial;
    rp__launch conv = *out;
    conv.n_slots = 0;
    const bool dots = rp__order_family_of(c->order) == RP__FAMILY_DOTS;
    RP_TRY((dots ? rp__cpu_conv_dots_bind : rp__cpu_conv_bind)(d, c->op, c->o, 3, &c->call, buffer, &conv));
    rp__slot slots[3];
    unsigned n_slots = 0;
    for (unsigned k = 0; k < conv.n_slots; k++) {
        if (!(buffer->slots[k].access & RP__WRITE)) slots[n_slots++] = buffer->slots[k];
    }
    const bool lanes = !weight && buffer->words[RP__CONV_FLAGS] & RP__CONV_BY_LANES;
    dim[0] = c->dim[weight ? RP__CONTRACT_GROUP : RP__CONTRACT_ALONE];
    dim[1] = c->dim[weight || lanes ? RP__CONTRACT_ROW : RP__CONTRACT_GROUP];
    dim[2] = c->dim[weight ? RP__CONTRACT_ALONE : lanes ? RP__CONTRACT_GROUP : RP__CONTRACT_ROW];
    for (unsigned i = 0; i < 3; i++)
        dim[3 + i] = i + spatial < 3 ? RP__NO_DIM : c->dim[RP__CONTRACT_SPATIAL + i + spatial - 3];
    bool along = lanes; /* groups are columns: positions have no steps between them, and groups lie side by side */
    for (unsigned i = 0; i < 3; i++) along = along && (!input || buffer->words[RP__CONV_STRIDE + i] == 1);
    along = along && dim[2] != RP__NO_DIM && dim[5] != RP__NO_DIM && lies_along(dag, space, dim[5], dim[2]);
    if (along) {
        const uint8_t group = dim[2];
        memmove(dim + 2, dim + 3, 3);
        dim[5] = group;
        buffer->words[RP__CONV_FLAGS] |= RP__CONV_LANES_ALONG;
    }
    RP_TRY(add_part(d, dag, RP__CONTRACT_REST, space, dim, weight ? 1 : 2, along ? 3 : 1,
                    weight  ? 4
                    : along ? 1
                            : 3,
                    RP__CONV_WORDS, buffer, out));
    for (unsigned k = 0; k < n_slots; k++) buffer->slots[out->n_slots++] = slots[k];
    buffer->words[RP__CONV_FLAGS] |= RP__GEMM_REST;
    out->items = conv.items;
    out->grain = conv.grain;
    return RP_OK;
}

rp_status rp__cpu_contract_bind(rp__device *d, rp__dag *dag, const rp__space *space, rp__kernel *kernel,
                                rp__launch_buffer *buffer, rp__launch *out) {
    rp__contraction c;
    out->kernel = NULL;
    out->n_slots = 0;
    if (dag->rest->n_draws > REST_DRAWS) return rp__fail(RP_ERROR_INTERNAL, "%s: too many draws", space->op);
    RP_TRY(rp__contract_read(dag, space, &c));
    const int64_t elements = rp__operand_numel(&c.o[0]);
    if (elements == 0) return RP_OK;
    RP_TRY(c.op == RP__LIB_MATMUL ? bind_product(d, dag, space, &c, buffer, out)
                                  : bind_conv(d, dag, space, &c, buffer, out));
    out->kernel = kernel;
    rp__kernel *const *parts = rp__cpu_contract_parts(kernel);
    rp__jit_count(dag->rest, parts[RP__CONTRACT_REST], elements);
    for (unsigned k = 0; k < 2; k++)
        if (dag->before[k]) rp__jit_count(dag->before[k], parts[1 + k], rp__operand_numel(&c.o[1 + k]));
    return RP_OK;
}

/* ---- the parts, tile by tile */

static unsigned columns_of(const uint64_t *w) {
    return (unsigned)(w[RP__REST_DIMS] - w[RP__REST_FIXED] - w[RP__REST_M]);
}
static const rp__program *program_of(const rp__kernel *rest) {
    return ((const rp__cpu_loop *)rest->payload)->programs[RP__PLAN_ELEMENTS];
}

void rp__gemm_rest_begin(rp__gemm_rest *r, const rp__kernel *kernel, unsigned part, const uint64_t *words,
                         unsigned element) {
    r->kernel = ((const payload *)kernel->payload)->parts[part];
    r->words = words;
    r->element = element;
    memset(r->fixed, 0, sizeof r->fixed);
    const int64_t *extent = (const int64_t *)(words + RP__REST_WORDS + program_of(r->kernel)->n_accesses);
    const unsigned n = columns_of(words), first = (unsigned)words[RP__REST_DIMS] - n;
    for (unsigned k = 0; k < n; k++) {
        r->extent[k] = extent[first + k];
        r->start[k] = 0;
        r->step[k] = 1;
    }
    const rp__cpu_loop *loop = r->kernel->payload;
    const rp__program *p = program_of(r->kernel);
    r->line = atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire);
    if (p->n_blocks > RP__REST_BLOCKS) r->line = NULL;
    for (unsigned a = 0; a < p->n_accesses && r->line; a++) {
        if (p->access_iota[a]) r->line = NULL;
    }
    const unsigned dims = (unsigned)words[RP__REST_DIMS];
    if (r->line) rp__line_blocks(p, (const uint64_t *)(extent + dims) + (size_t)dims * p->n_accesses, r->blocks);
}

/* One side of a tile: its dims, of which the innermost ones that every access walks as one are a run. */
typedef struct side {
    unsigned n, outer; /* dims; those outside of the run */
    const int64_t *extent, *step;
    int64_t run;
    const int64_t *stride[RP__DAG_MAX_ACCESSES]; /* of each access, by dim */
    int64_t along[RP__DAG_MAX_ACCESSES];         /* of each access, of the run */
} side;

static void find_run(side *s, unsigned accesses) {
    s->run = s->n ? s->extent[s->n - 1] : 1;
    s->outer = s->n ? s->n - 1 : 0;
    for (unsigned a = 1; a < accesses; a++)
        s->along[a] = s->n ? s->stride[a][s->n - 1] * (s->step ? s->step[s->n - 1] : 1) : 0;
    while (s->outer > 0) {
        const unsigned d = s->outer - 1;
        bool one = true;
        for (unsigned a = 1; a < accesses && one; a++)
            one = s->extent[d] == 1 || s->stride[a][d] * (s->step ? s->step[d] : 1) == s->along[a] * s->run;
        if (!one) break;
        s->run *= s->extent[d];
        s->outer = d;
    }
}

/* Elements from index 0 to index i. */
static int64_t offset_of(const side *s, unsigned access, int64_t i) {
    int64_t offset = i % s->run * s->along[access], at = i / s->run;
    for (unsigned d = s->outer; d-- > 0;) {
        offset += (d ? at % s->extent[d] : at) * s->stride[access][d] * (s->step ? s->step[d] : 1);
        at /= s->extent[d];
    }
    return offset;
}

void rp__gemm_rest_run(const rp__gemm_rest *r, const void *tile, int64_t ld, int64_t m0, int64_t mc, int64_t n0,
                       int64_t nc) {
    const rp__program *p = program_of(r->kernel);
    const unsigned dims = (unsigned)r->words[RP__REST_DIMS], fixed = (unsigned)r->words[RP__REST_FIXED],
                   m = (unsigned)r->words[RP__REST_M], accesses = p->n_accesses,
                   tail = p->n_scalars + 3u * p->n_draws + (p->checks ? 2u : 0u);
    const uint64_t *address = r->words + RP__REST_WORDS;
    const int64_t *extent = (const int64_t *)(address + accesses), *stride = extent + dims;
    const uint64_t *end = (const uint64_t *)(stride + (size_t)dims * accesses);
    side row = {.n = m, .extent = extent + fixed},
         column = {.n = dims - fixed - m, .extent = r->extent, .step = r->step};
    uint64_t base[RP__DAG_MAX_ACCESSES], words[REST_WORDS];
    for (unsigned a = 1; a < accesses; a++) {
        const int64_t *own = stride + (size_t)a * dims;
        int64_t offset = 0;
        for (unsigned d = 0; d < fixed; d++) offset += r->fixed[d] * own[d];
        for (unsigned d = 0; d < column.n; d++) offset += r->start[d] * own[fixed + m + d];
        row.stride[a] = own + fixed;
        column.stride[a] = own + fixed + m;
        base[a] = address[a] + (uint64_t)offset * (p->access_iota[a] ? 1u : p->access_size[a]);
    }
    find_run(&row, accesses);
    find_run(&column, accesses);
    uint64_t still = 0;
    bool line = r->line != NULL;
    for (unsigned a = 1; a < accesses && line; a++) {
        line = column.along[a] == 0 || column.along[a] == 1;
        if (column.along[a] == 0) still |= UINT64_C(1) << a;
    }
    if (still & p->written) line = false;
    rp__cpu_entry *entry = atomic_load_explicit(&r->kernel->cpu, memory_order_acquire);
    for (int64_t i = 0, rows; i < mc; i += rows) {
        const int64_t in_row = (m0 + i) % row.run;
        rows = row.run - in_row < mc - i ? row.run - in_row : mc - i;
        for (int64_t j = 0, columns; j < nc; j += columns) {
            const int64_t in_column = (n0 + j) % column.run;
            columns = column.run - in_column < nc - j ? column.run - in_column : nc - j;
            if (line) {
                char *at[RP__DAG_MAX_ACCESSES];
                int64_t next[RP__DAG_MAX_ACCESSES];
                at[0] = (char *)(uintptr_t)tile + (size_t)(i * ld + j) * r->element;
                next[0] = ld * (int64_t)r->element;
                for (unsigned a = 1; a < accesses; a++) {
                    at[a] = (char *)(uintptr_t)base[a] +
                            (offset_of(&row, a, m0 + i) + offset_of(&column, a, n0 + j)) * p->access_size[a];
                    next[a] = row.along[a] * p->access_size[a];
                }
                r->line(&(rp__line){.base = at,
                                    .row = rows > 1 ? next : NULL,
                                    .blocks = r->blocks,
                                    .rows = rows,
                                    .n = columns,
                                    .still = still});
                continue;
            }
            const unsigned nd = rows > 1 ? 2 : 1;
            uint64_t *at = words;
            *at++ = rp__cpu_header(RP__WALK_ELEMENTS, nd, 0);
            *at++ = (uint64_t)(uintptr_t)((const char *)tile + (size_t)(i * ld + j) * r->element);
            for (unsigned a = 1; a < accesses; a++) {
                const int64_t offset = offset_of(&row, a, m0 + i) + offset_of(&column, a, n0 + j);
                *at++ = base[a] + (uint64_t)offset * (p->access_iota[a] ? 1u : p->access_size[a]);
            }
            if (nd > 1) *at++ = (uint64_t)rows;
            *at++ = (uint64_t)columns;
            for (unsigned a = 0; a < accesses; a++) {
                if (nd > 1) *at++ = (uint64_t)(a ? row.along[a] : ld);
                *at++ = (uint64_t)(a ? column.along[a] : 1);
            }
            memcpy(at, end, tail * sizeof *at);
            entry(r->kernel, words, 0, rows * columns);
        }
    }
}
