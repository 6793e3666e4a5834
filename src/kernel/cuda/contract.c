/* DAGs with a CONTRACT on CUDA: the texts of our products and convolutions, with the rest of the DAG in place of their store and, in the plain
 * product's, what makes a factor in place of its load. */
#include "kernel/contract.h"

#include <string.h>

#include "kernel/cuda/contract.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/emit.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/matmul.h"

/* What of the class the text depends on: the template's facts in `unit`, in `broadcast` how the dims divide, which row of the table it
 * is, and how many words that has; where several sums are taken at once (vector), rp__cuda_lanes in across, gathered, staged and staged_unit. */
enum { BATCH_SHIFT = 0, M_SHIFT = 8, N_SHIFT = 16, OP_SHIFT = 24, ROW_SHIFT = 32, WORDS_SHIFT = 40 };

bool rp__cuda_contract_is_wide(const rp__dag *dag, const rp__space *s) {
    const int64_t limit = INT32_MAX / 2;
    for (unsigned k = 0; k < dag->n_windows; k++) {
        const rp__space_window *w = &s->windows[k];
        const int64_t step = w->stride < 0 ? -w->stride : w->stride;
        if (step && w->size > limit / step) return true;
    }
    for (unsigned a = 0; a < dag->n_accesses; a++) {
        const rp__space_access *x = &s->accesses[a];
        int64_t reach = 0;
        for (unsigned d = 0; d < rp__space_dims(s); d++) {
            const int64_t stride = x->stride[d] < 0 ? -x->stride[d] : x->stride[d];
            if (s->extent[d] > limit || (stride && s->extent[d] > limit / stride)) return true;
            reach += s->extent[d] * stride;
            if (reach > limit) return true;
        }
    }
    return false;
}

/* ---- convolutions: eight sums at once, of depthwise ones as many as rp__conv_depth_lanes says */

/* The spatial dims as one: the stride of its last one, if the others follow from it. */
static bool is_flat(const rp__space *s, const rp__space_access *x, const rp__contraction *r, int64_t *step) {
    int64_t stride = 0;
    bool any = false;
    for (unsigned k = r->call.conv.spatial; k-- > 0;) {
        const uint8_t d = r->dim[RP__CONTRACT_SPATIAL + k];
        if (d == RP__NO_DIM || s->extent[d] == 1) continue;
        if (any && x->stride[d] != stride) return false;
        if (!any) *step = x->stride[d];
        any = true;
        stride = x->stride[d] * s->extent[d];
    }
    return any;
}

/* Do the places of all images, in rising order, lie one step apart in all that follows? */
static bool is_even(const rp__dag *dag, const rp__space *s, const rp__contraction *r) {
    const rp__dag *rest = dag->rest;
    const uint8_t images = r->dim[RP__CONTRACT_ALONE];
    int64_t points = 1;
    if (r->op == RP__LIB_MATMUL || !rest) return false;
    for (unsigned k = 0; k < r->call.conv.spatial; k++) points *= r->o[0].size[2 + k];
    for (unsigned a = 1; a < rest->n_accesses; a++) {
        const rp__space_access *x = &s->accesses[dag->rest_access[a]];
        int64_t step = 0;
        if (rest->accesses[a].windows || !is_flat(s, x, r, &step)) return false;
        if (images != RP__NO_DIM && s->extent[images] > 1 && x->stride[images] != step * points) return false;
    }
    return true;
}

/* The dims of the result. */
static unsigned dims_of(const rp__contraction *r) {
    return r->op == RP__LIB_MATMUL ? (unsigned)r->n_batch + r->n_m + r->n_n
                                   : (unsigned)RP__CONTRACT_SPATIAL + r->call.conv.spatial;
}

/* Are aligned neighbours along `along` (NO_DIM: along all spatial dims) a vector? What other dims are away is a multiple of it. */
static bool is_aligned(const rp__space *s, const rp__space_access *x, const rp__contraction *r, uint8_t along,
                       unsigned vector, unsigned bytes) {
    if ((uintptr_t)x->base % (bytes * vector > 16 ? 16 : bytes * vector)) return false;
    for (unsigned k = 0; k < dims_of(r); k++) {
        const uint8_t d = r->dim[k];
        if (d == RP__NO_DIM || d == along || s->extent[d] == 1 || (along == RP__NO_DIM && k >= RP__CONTRACT_SPATIAL))
            continue;
        if (x->stride[d] % vector) return false;
    }
    return true;
}

/* Of what follows: do so many neighbours along rows (of channels: of depthwise convolutions the groups), or columns, leave as a vector, and which
   accesses are vectors, or the same number? */
static bool find_lanes(const rp__dag *dag, const rp__space *s, const rp__contraction *r, bool rows, unsigned channels,
                       unsigned vector, rp__cuda_lanes *out) {
    const rp__dag *rest = dag->rest;
    const uint8_t row = r->dim[channels], last = (uint8_t)(RP__CONTRACT_SPATIAL + r->call.conv.spatial - 1);
    const unsigned n = RP__CONTRACT_SPATIAL + (unsigned)r->call.conv.spatial;
    int64_t points = 1;
    for (unsigned k = 0; k < r->call.conv.spatial; k++) points *= r->o[0].size[2 + k];
    *out = (rp__cuda_lanes){.vector = vector};
    /* a vector begins at a multiple of it and ends within its group of channels, or its picture; along the last dim its step is read */
    if (rest->n_stores == 0 ||
        (rows ? row == RP__NO_DIM || s->extent[row] % vector : points % vector || r->o[0].size[last - 1] == 1))
        return false;
    out->along = rows ? channels : last;
    for (unsigned a = 1; a < rest->n_accesses; a++) {
        const rp__space_access *x = &s->accesses[dag->rest_access[a]];
        const bool iota = rest->accesses[a].kind == RP__ACCESS_IOTA;
        int64_t step = 0;
        bool line = rows && rest->accesses[a].kind == RP__ACCESS_READ;
        if (rest->accesses[a].windows || (!rows && !is_flat(s, x, r, &step))) return false;
        if (rows) step = x->stride[row];
        for (unsigned k = 0; k < n; k++) {
            const uint8_t d = r->dim[k];
            line = line && (k == RP__CONTRACT_ROW || k == RP__CONTRACT_GROUP || d == RP__NO_DIM || x->stride[d] == 0);
        }
        if (step == 0)
            out->same |= UINT64_C(1) << a;
        else if (step == 1 && !iota &&
                 is_aligned(s, x, r, rows ? row : RP__NO_DIM, vector,
                            (unsigned)rp__dtype_bytes(rest->accesses[a].dtype)))
            out->unit |= UINT64_C(1) << a;
        if (line) out->line |= UINT64_C(1) << a;
    }
    for (unsigned k = 0; k < rest->n_stores; k++)
        if (!(out->unit >> rest->stores[k].access & 1)) return false;
    return true;
}

/* The same of a product, along its columns. */
static bool find_columns(const rp__dag *dag, const rp__space *s, const rp__contraction *r, rp__cuda_lanes *out) {
    const rp__dag *rest = dag->rest;
    const uint8_t last = r->n_n ? r->dim[dims_of(r) - 1] : RP__NO_DIM;
    *out = (rp__cuda_lanes){.vector = RP__CUDA_MAX_VECTOR};
    if (!rest || rest->n_stores == 0 || last == RP__NO_DIM || s->extent[last] % RP__CUDA_MAX_VECTOR) return false;
    out->along = dims_of(r) - 1;
    for (unsigned a = 1; a < rest->n_accesses; a++) {
        const rp__space_access *x = &s->accesses[dag->rest_access[a]];
        if (rest->accesses[a].windows) return false;
        if (x->stride[last] == 0)
            out->same |= UINT64_C(1) << a;
        else if (x->stride[last] == 1 && rest->accesses[a].kind != RP__ACCESS_IOTA &&
                 is_aligned(s, x, r, last, RP__CUDA_MAX_VECTOR, (unsigned)rp__dtype_bytes(rest->accesses[a].dtype)))
            out->unit |= UINT64_C(1) << a;
    }
    for (unsigned k = 0; k < rest->n_stores; k++)
        if (!(out->unit >> rest->stores[k].access & 1)) return false;
    return true;
}

static rp__neighbours neighbours_of(const rp__problem *p, const rp__dag *dag, const rp__space *s,
                                    const rp__contraction *r, rp__cuda_lanes *out) {
    const unsigned few = rp__conv_depth_lanes(p);
    if (few)
        return find_lanes(dag, s, r, true, RP__CONTRACT_GROUP, few, out) ? RP__NEIGHBOURS_ROWS : RP__NEIGHBOURS_NONE;
    return find_lanes(dag, s, r, true, RP__CONTRACT_ROW, RP__CUDA_MAX_VECTOR, out)    ? RP__NEIGHBOURS_ROWS
           : find_lanes(dag, s, r, false, RP__CONTRACT_ROW, RP__CUDA_MAX_VECTOR, out) ? RP__NEIGHBOURS_COLUMNS
                                                                                      : RP__NEIGHBOURS_NONE;
}

static rp__library_op op_of(const rp__cuda_class *c) { return (rp__library_op)(c->broadcast >> OP_SHIFT & 0xff); }

rp_status rp__cuda_contract_class(rp__device *d, const rp__dag *dag, const rp__space *space, rp__launch_buffer *buffer,
                                  rp__launch *out, rp__cuda_class *c) {
    rp__contraction r;
    uint64_t facts = 0;
    memset(c, 0, sizeof *c);
    memset(out, 0, sizeof *out);
    RP_TRY(rp__contract_read(dag, space, &r));
    rp__contract_turn(dag, space, &r);
    for (unsigned k = 0; k < r.o[0].ndim; k++) {
        if (r.o[0].size[k] == 0) return RP_OK;
    }
    const unsigned n = dims_of(&r);
    rp__cuda_lanes lanes = {0};
    rp__problem_notes notes = {.even = is_even(dag, space, &r)};
    const rp__problem p = {d, r.op, r.o, 3, &r.call, r.order, &notes};
    if (r.op == RP__LIB_CONV_FORWARD || r.op == RP__LIB_CONV_INPUT)
        r.call.neighbours = neighbours_of(&p, dag, space, &r, &lanes);
    else if (r.op == RP__LIB_MATMUL && find_columns(dag, space, &r, &lanes))
        r.call.neighbours = RP__NEIGHBOURS_COLUMNS;
    const bool makes = dag->before[0] || dag->before[1];
    unsigned place = 0;
    const rp__cuda_product_row *t =
        makes ? rp__cuda_template_making(&p, &place) : rp__cuda_template_following(&p, r.order, &place);
    if (!t) return rp__fail(RP_ERROR_INTERNAL, "%s: no kernel takes what surrounds this product", space->op);
    const uint32_t first = t->words(&p);
    bool wide = rp__cuda_contract_is_wide(dag, space);
    RP_TRY(rp__contract_words(d, dag, RP__CONTRACT_REST, space, r.dim, n, first, buffer, out));
    for (unsigned k = 0; k < 2; k++) {
        if (!dag->before[k]) continue;
        uint8_t dim[RP__SPACE_MAX_DIMS + 1];
        const unsigned lines = k ? r.n_n : r.n_m;
        memcpy(dim, r.dim, r.n_batch);
        memcpy(dim + r.n_batch, r.dim + r.n_batch + (k ? r.n_m : 0), lines);
        dim[r.n_batch + lines] = r.k;
        RP_TRY(rp__contract_words(d, dag, RP__CONTRACT_FIRST + k, space, dim, r.n_batch + lines + 1, out->n_words,
                                  buffer, out));
    }
    const uint32_t words = out->n_words;
    RP_TRY(t->tiles(&p, &wide, buffer, out, &facts));
    if (out->n_words < words) out->n_words = words; /* tensor maps lie behind all others (conv_bulk.c) */
    for (unsigned k = 0; k < 2; k++)
        if (dag->before[k]) facts |= UINT64_C(1) << (RP__MATMUL_MAKES + k);
    c->template_ = RP__CUDA_CONTRACT;
    c->n_outer = (uint8_t)n;
    c->wide = wide;
    c->unit = facts | (uint64_t)(words - first) << 32;
    if (t->takes_lanes && t->takes_lanes(facts)) {
        c->vector = (uint8_t)lanes.vector;
        c->across = (uint8_t)lanes.along;
        c->gathered = lanes.unit;
        c->staged = lanes.same;
        c->staged_unit = lanes.line;
    }
    c->broadcast = (uint64_t)r.n_batch << BATCH_SHIFT | (uint64_t)r.n_m << M_SHIFT | (uint64_t)r.n_n << N_SHIFT |
                   (uint64_t)r.op << OP_SHIFT | (uint64_t)place << ROW_SHIFT | (uint64_t)first << WORDS_SHIFT;
    return RP_OK;
}

const char *rp__cuda_contract_row(const rp__cuda_class *c) {
    return rp__cuda_template_at((unsigned)(c->broadcast >> ROW_SHIFT & 0xff))->row.name;
}

rp_status rp__cuda_contract_emit(const rp__dag *dag, const rp__cuda_class *c, const char *name, rp__text *out) {
    const unsigned batch = (unsigned)(c->broadcast >> BATCH_SHIFT & 0xff),
                   m = (unsigned)(c->broadcast >> M_SHIFT & 0xff), n = (unsigned)(c->broadcast >> N_SHIFT & 0xff);
    const rp__cuda_place product[3] = {{"(rp_i64)batch", batch}, {"m", m}, {"n", n}};
    const rp__cuda_place factors[2][3] = {{{"(rp_i64)batch", batch}, {"m", m}, {"k", 1}},
                                          {{"(rp_i64)batch", batch}, {"n", n}, {"k", 1}}};
    const rp__cuda_place conv[6] = {{"n", 1}, {"g", 1}, {"m", 1}, {"at[0]", 1}, {"at[1]", 1}, {"at[2]", 1}};
    const bool is_product = op_of(c) == RP__LIB_MATMUL;
    const unsigned dims[RP__CONTRACT_PARTS] = {is_product ? batch + m + n : c->n_outer, batch + m + 1, batch + n + 1};
    uint32_t first = (uint32_t)(c->broadcast >> WORDS_SHIFT & 0xff);
    const rp__cuda_lanes lanes = {c->across, c->vector, c->gathered, c->staged, c->staged_unit};
    rp__text wide[RP__CUDA_WIDE_TEXTS] = {{0}};
    rp__text texts[RP__CONTRACT_PARTS] = {{0}};
    rp_status status = RP_OK;
    if (c->vector)
        status = rp__cuda_emit_wide(dag->rest, is_product ? product : conv, is_product ? 3 : c->n_outer, first, c->wide,
                                    &lanes, wide);
    for (unsigned k = 0; k < RP__CONTRACT_PARTS && status == RP_OK; k++) {
        const rp__dag *part = rp__contract_part(dag, k);
        if (!part) continue;
        rp__space_layout at;
        rp__space_layout_of(part, dims[k], first, &at);
        const rp__cuda_part how = {.dag = part,
                                   .places = k            ? factors[k - 1]
                                             : is_product ? product
                                                          : conv,
                                   .n_places = k || is_product ? 3 : c->n_outer,
                                   .first = first,
                                   .wide = c->wide,
                                   .stores = k == RP__CONTRACT_REST ? UINT64_MAX : 0,
                                   .to = k == RP__CONTRACT_REST ? NULL : "x"};
        status = rp__cuda_emit_part(&how, &texts[k]);
        first = at.end;
    }
    const rp__text_parts parts = {texts[0].data,
                                  {texts[1].data, texts[2].data},
                                  {wide[RP__CUDA_WIDE_TYPES].data, wide[RP__CUDA_WIDE_HELD].data,
                                   wide[RP__CUDA_WIDE_LINE].data, wide[RP__CUDA_WIDE_REST].data}};
    if (status == RP_OK)
        rp__cuda_template_at((unsigned)(c->broadcast >> ROW_SHIFT & 0xff))->source(name, c->unit, &parts, out);
    for (unsigned k = 0; k < RP__CONTRACT_PARTS; k++) rp__text_free(&texts[k]);
    for (unsigned k = 0; k < RP__CUDA_WIDE_TEXTS; k++) rp__text_free(&wide[k]);
    if (status == RP_OK && out->failed) status = RP__OOM("CUDA source of a kernel");
    return status;
}
