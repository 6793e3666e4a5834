/* See contract.h. */
#include "kernel/contract.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const rp__dag *dag;
    const rp__space *s;
    rp__contraction *out;
    const rp__space_access *a, *b; /* of the factors */
    const rp__space_window *windows;
    unsigned n_windows, n_outer, n_dims;
} reader;

static int64_t extent_of(const reader *r, uint8_t d) { return d == RP__NO_DIM ? 1 : r->s->extent[d]; }
static int64_t stride_of(const rp__space_access *x, uint8_t d) { return d == RP__NO_DIM ? 0 : x->stride[d]; }
static int64_t factor_of(const reader *r, unsigned window, uint8_t d) {
    return d == RP__NO_DIM ? 0 : r->windows[window].factor[d];
}

static rp__operand operand(const rp__space_access *x, rp_dtype dtype, unsigned ndim) {
    rp__operand o;
    memset(&o, 0, sizeof o);
    o.dtype = dtype;
    o.ndim = (uint8_t)ndim;
    if (x) {
        o.base = x->base;
        o.storage = x->storage;
    }
    return o;
}

static void set_dim(rp__operand *o, unsigned d, int64_t size, int64_t stride) {
    o->size[d] = size;
    o->stride[d] = stride;
}

/* ---- products */

/* Of the dims that one factor has alone, those that are one stride of it from the smallest on, in whichever order what follows has put them;
   the others are taken for batch dims. */
static unsigned run_of(const reader *r, const rp__space_access *x, const rp__space_access *other, uint8_t *dims,
                       bool *taken, int64_t *extent, int64_t *stride) {
    unsigned n = 0;
    *extent = 1;
    *stride = 1;
    for (unsigned next;; n++) {
        next = r->n_outer;
        for (unsigned d = r->n_outer; d-- > 0;) {
            if (x->stride[d] == 0 || other->stride[d] != 0 || taken[d]) continue;
            if (n > 0 ? x->stride[d] == *stride * *extent
                      : next == r->n_outer || llabs(x->stride[d]) < llabs(x->stride[next]))
                next = d;
        }
        if (next == r->n_outer) break;
        if (n == 0) *stride = x->stride[next];
        *extent *= r->s->extent[next];
        dims[n] = (uint8_t)next;
        taken[next] = true;
    }
    for (unsigned i = 0; i < n / 2; i++) { /* outermost first */
        const uint8_t d = dims[i];
        dims[i] = dims[n - 1 - i];
        dims[n - 1 - i] = d;
    }
    return n;
}

static rp_status read_product(reader *r, rp_dtype dtype) {
    rp__contraction *c = r->out;
    uint8_t m[RP__SPACE_MAX_DIMS], n[RP__SPACE_MAX_DIMS];
    bool taken[RP__SPACE_MAX_DIMS] = {false};
    int64_t m_extent, m_stride, n_extent, n_stride, k = 1, ak = 1, bk = 1;
    if (r->n_dims > r->n_outer + 1u || r->n_outer > RP_MAX_DIMS - 2) return RP_ERROR_INTERNAL;
    if (r->n_dims > r->n_outer) {
        const unsigned d = r->n_outer;
        k = r->s->extent[d], ak = r->a->stride[d], bk = r->b->stride[d];
        c->k = (uint8_t)d;
    }
    c->op = RP__LIB_MATMUL;
    c->n_m = (uint8_t)run_of(r, r->a, r->b, m, taken, &m_extent, &m_stride);
    c->n_n = (uint8_t)run_of(r, r->b, r->a, n, taken, &n_extent, &n_stride);
    const unsigned batch = r->n_outer - c->n_m - c->n_n;
    c->n_batch = (uint8_t)batch;
    c->o[0] = operand(NULL, dtype, batch + 2);
    c->o[1] = operand(r->a, dtype, batch + 2);
    c->o[2] = operand(r->b, dtype, batch + 2);
    unsigned at = 0;
    for (unsigned d = 0; d < r->n_outer; d++) {
        if (taken[d]) continue;
        set_dim(&c->o[0], at, r->s->extent[d], 0);
        set_dim(&c->o[1], at, r->s->extent[d], r->a->stride[d]);
        set_dim(&c->o[2], at, r->s->extent[d], r->b->stride[d]);
        c->dim[at++] = (uint8_t)d;
    }
    memcpy(c->dim + batch, m, c->n_m);
    memcpy(c->dim + batch + c->n_m, n, c->n_n);
    set_dim(&c->o[0], batch, m_extent, 0);
    set_dim(&c->o[0], batch + 1, n_extent, 0);
    set_dim(&c->o[1], batch, m_extent, m_stride);
    set_dim(&c->o[1], batch + 1, k, ak);
    set_dim(&c->o[2], batch, k, bk);
    set_dim(&c->o[2], batch + 1, n_extent, n_stride);
    return RP_OK;
}

/* ---- convolutions: the second factor has the windows */

static rp_status read_conv(reader *r, rp__contract_form form, rp_dtype dtype) {
    rp__contraction *c = r->out;
    const unsigned spatial = r->n_windows;
    uint8_t tap[3] = {RP__NO_DIM, RP__NO_DIM, RP__NO_DIM}, channel = RP__NO_DIM;
    if (spatial < 1 || spatial > 3) return RP_ERROR_INTERNAL;
    memset(c->dim, RP__NO_DIM, sizeof c->dim);
    for (unsigned d = 0; d < r->n_dims; d++) {
        unsigned i = 0;
        while (i < spatial && r->windows[i].factor[d] == 0) i++;
        const bool a = r->a->stride[d] != 0, b = r->b->stride[d] != 0, inner = d >= r->n_outer;
        uint8_t *at = i < spatial ? inner ? &tap[i] : &c->dim[RP__CONTRACT_SPATIAL + i]
                      : inner ? &channel
                                  : &c->dim[a && b ? RP__CONTRACT_GROUP
                                            : a    ? RP__CONTRACT_ROW
                                                   : RP__CONTRACT_ALONE];
        if (*at != RP__NO_DIM || (i == spatial && !a && !b)) return RP_ERROR_INTERNAL;
        *at = (uint8_t)d;
    }
    const uint8_t alone = c->dim[RP__CONTRACT_ALONE], group = c->dim[RP__CONTRACT_GROUP],
                  row = c->dim[RP__CONTRACT_ROW];
    const int64_t n = extent_of(r, alone), g = extent_of(r, group), rows = extent_of(r, row), k = extent_of(r, channel);
    /* Of a channel dim: that of its group alone where a group has one channel. */
    const int64_t a_row = stride_of(r->a, rows > 1 ? row : group), a_k = stride_of(r->a, k > 1 ? channel : group),
                  b_k = stride_of(r->b, k > 1 ? channel : group), b_alone = stride_of(r->b, n > 1 ? alone : group);
    rp__operand *result = &c->o[0], *plain = &c->o[form == RP__CONTRACT_CONV_WEIGHT ? 1 : 2],
                *windowed = &c->o[form == RP__CONTRACT_CONV_WEIGHT ? 2 : 1];
    rp__conv_geometry *geometry = &c->call.conv;
    *result = operand(NULL, dtype, spatial + 2);
    *plain = operand(r->a, dtype, spatial + 2);
    *windowed = operand(r->b, dtype, spatial + 2);
    geometry->spatial = (uint8_t)spatial;
    geometry->groups = g;
    switch (form) {
    case RP__CONTRACT_CONV:
        c->op = RP__LIB_CONV_FORWARD;
        set_dim(result, 0, n, 0);
        set_dim(result, 1, rows * g, 0);
        set_dim(plain, 0, rows * g, a_row);
        set_dim(plain, 1, k, stride_of(r->a, channel));
        set_dim(windowed, 0, n, stride_of(r->b, alone));
        set_dim(windowed, 1, k * g, b_k);
        break;
    case RP__CONTRACT_CONV_INPUT:
        c->op = RP__LIB_CONV_INPUT;
        set_dim(result, 0, n, 0);
        set_dim(result, 1, rows * g, 0);
        set_dim(plain, 0, k * g, a_k);
        set_dim(plain, 1, rows, stride_of(r->a, row));
        set_dim(windowed, 0, n, stride_of(r->b, alone));
        set_dim(windowed, 1, k * g, b_k);
        break;
    default:
        c->op = RP__LIB_CONV_WEIGHT;
        set_dim(result, 0, rows * g, 0);
        set_dim(result, 1, n, 0);
        set_dim(plain, 0, k, stride_of(r->a, channel));
        set_dim(plain, 1, rows * g, a_row);
        set_dim(windowed, 0, k, stride_of(r->b, channel));
        set_dim(windowed, 1, n * g, b_alone);
    }
    for (unsigned i = 0; i < spatial; i++) {
        const rp__space_window *w = &r->windows[i];
        const uint8_t place = c->dim[RP__CONTRACT_SPATIAL + i];
        const int64_t along = factor_of(r, i, place), down = factor_of(r, i, tap[i]);
        set_dim(result, 2 + i, extent_of(r, place), 0);
        set_dim(plain, 2 + i, extent_of(r, tap[i]), stride_of(r->a, tap[i]));
        set_dim(windowed, 2 + i, w->size, w->stride);
        const bool input = form == RP__CONTRACT_CONV_INPUT, weight = form == RP__CONTRACT_CONV_WEIGHT;
        const int64_t step = weight ? down : along, dilation = weight ? along : input ? -down : down;
        geometry->stride[i] = input ? w->divisor : step ? step : 1;
        geometry->dilation[i] = dilation ? dilation : 1;
        geometry->padding[i] = input ? -w->pad : w->pad;
    }
    return RP_OK;
}

/* A factor that is made, as if it lay in memory without gaps: it varies along the dims that something it is made of varies along. */
static void made_factor(const rp__dag *dag, unsigned k, const rp__space *space, rp__space_access *out) {
    const rp__dag *before = dag->before[k];
    const unsigned n_outer = rp__space_outer(dag, space), n = rp__space_dims(space);
    int64_t step = 1;
    bool along = false;
    memset(out, 0, sizeof *out);
    for (unsigned a = 1; a < before->n_accesses; a++) {
        const rp__space_access *x = &space->accesses[dag->before_access[k][a]];
        for (unsigned d = 0; d < n; d++) out->stride[d] = out->stride[d] || x->stride[d];
        along = along || (n > n_outer && x->stride[n_outer] == 1 && before->accesses[a].kind != RP__ACCESS_IOTA);
    }
    for (unsigned i = 0; i < n; i++) { /* innermost first: K, or the outer dims from the last to the first */
        const unsigned at = along || n == n_outer ? n - 1 - i : i < n_outer ? n_outer - 1 - i : i;
        if (out->stride[at]) out->stride[at] = step, step *= space->extent[at];
    }
}

static const rp__node *contract_of(const rp__dag *dag) {
    const rp__node *n = dag->nodes;
    while (n < dag->nodes + dag->n_nodes && n->op != RP__CONTRACT) n++;
    return n == dag->nodes + dag->n_nodes ? NULL : n;
}

rp_dtype rp__contract_dtype(const rp__dag *dag) {
    const rp__node *n = contract_of(dag);
    const rp__val factors[2] = {n->a, n->b};
    for (unsigned k = 0; k < 2; k++)
        if (!dag->before[k]) return (rp_dtype)dag->accesses[dag->nodes[factors[k]].access].dtype;
    return (rp_dtype)n->dtype;
}

rp_status rp__contract_read(const rp__dag *dag, const rp__space *space, rp__contraction *out) {
    memset(out, 0, sizeof *out);
    out->k = RP__NO_DIM;
    out->call.op = space->op;
    out->call.site = space->site;
    const rp__node *n = contract_of(dag);
    if (!n) return rp__fail(RP_ERROR_INTERNAL, "%s: no product to read", space->op);
    if (rp__order_family_of((rp__order)n->imm.i) == RP__FAMILY_TF32) out->call.precision = RP__FLOAT32_HIGH;
    const rp__contract_form form = rp__order_form((rp__order)n->imm.i);
    const rp__val factors[2] = {n->a, n->b};
    rp__space_access made[2];
    const rp__space_access *access[2];
    const rp_dtype dtype = rp__contract_dtype(dag);
    for (unsigned k = 0; k < 2; k++) {
        if (dag->before[k]) {
            made_factor(dag, k, space, &made[k]);
            access[k] = &made[k];
        } else {
            access[k] = &space->accesses[dag->nodes[factors[k]].access];
        }
    }
    out->order = (rp__order)n->imm.i;
    reader r = {.dag = dag,
                .s = space,
                .out = out,
                .a = access[0],
                .b = access[1],
                .n_outer = rp__space_outer(dag, space),
                .n_dims = rp__space_dims(space)};
    if (form != RP__CONTRACT_PRODUCT) { /* its factors are loads */
        const unsigned b = dag->nodes[n->b].access;
        if (dag->before[0] || dag->before[1])
            return rp__fail(RP_ERROR_INTERNAL, "%s: factors of a convolution are read", space->op);
        r.windows = space->windows;
        r.n_windows = dag->accesses[b].windows;
        for (unsigned i = 0; i < b; i++) r.windows += dag->accesses[i].windows;
    }
    const rp_status status = form == RP__CONTRACT_PRODUCT ? read_product(&r, dtype) : read_conv(&r, form, dtype);
    if (status == RP_OK) return RP_OK;
    return rp__fail(RP_ERROR_INTERNAL, "%s: a space that no product of ours makes", space->op);
}

/* Is some dim of these one of neighbours in memory? */
static bool runs_along(const rp__space *space, const rp__space_access *x, const uint8_t *dims, unsigned n) {
    for (unsigned k = 0; k < n; k++)
        if (x->stride[dims[k]] == 1 && space->extent[dims[k]] > 1) return true;
    return false;
}

/* The operand with its last two dims exchanged. */
static rp__operand turned(rp__operand o) {
    const unsigned m = o.ndim - 2u, n = o.ndim - 1u;
    const int64_t size = o.size[m], stride = o.stride[m];
    set_dim(&o, m, o.size[n], o.stride[n]);
    set_dim(&o, n, size, stride);
    return o;
}

_Atomic unsigned rp__contract_turns;

void rp__contract_turn(const rp__dag *dag, const rp__space *space, rp__contraction *c) {
    const uint8_t *m = c->dim + c->n_batch, *n = m + c->n_m;
    uint8_t dims[RP__SPACE_MAX_DIMS];
    const rp__dag *rest = dag->rest;
    enum { FEW = 16, MOST = 65535 * 16 /* rows of blocks */ };
    if (c->op != RP__LIB_MATMUL || !rest || rest->n_stores == 0 || dag->before[0] || dag->before[1] ||
        c->o[0].size[c->n_batch] <= FEW || c->o[0].size[c->n_batch + 1] > MOST ||
        rp__order_family_of(c->order) == RP__FAMILY_BF16X3) /* adds up high parts of the first factor last */
        return;
    for (unsigned k = 0; k < rest->n_stores; k++) {
        const rp__space_access *x = &space->accesses[dag->rest_access[rest->stores[k].access]];
        if (!runs_along(space, x, m, c->n_m) || runs_along(space, x, n, c->n_n)) return;
    }
    memcpy(dims, n, c->n_n);
    memcpy(dims + c->n_n, m, c->n_m);
    memcpy(c->dim + c->n_batch, dims, c->n_n + c->n_m);
    const rp__operand first = turned(c->o[1]);
    c->o[0] = turned(c->o[0]), c->o[1] = turned(c->o[2]), c->o[2] = first;
    const uint8_t lines = c->n_m;
    c->n_m = c->n_n, c->n_n = lines;
    (void)atomic_fetch_add_explicit(&rp__contract_turns, 1, memory_order_relaxed);
}

rp_status rp__contract_words(rp__device *d, const rp__dag *dag, unsigned part, const rp__space *space,
                             const uint8_t *dim, unsigned n, uint32_t first, rp__launch_buffer *buffer,
                             rp__launch *out) {
    const rp__dag *of = rp__contract_part(dag, part);
    const uint16_t *from_access = part == RP__CONTRACT_REST ? dag->rest_access : dag->before_access[part - 1];
    const rp__launch before = *out;
    rp__slot *kept = buffer->slots + RP__DAG_MAX_ACCESSES; /* behind what the part has */
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    rp__space s = *space;
    if (n > RP__SPACE_MAX_DIMS || before.n_slots + 2 * RP__DAG_MAX_ACCESSES > RP__MAX_SLOTS)
        return rp__fail(RP_ERROR_INTERNAL, "%s: a product over too many dims", space->op);
    memmove(kept, buffer->slots, before.n_slots * sizeof *kept);
    memset(s.dims, 0, sizeof s.dims);
    s.dims[0] = (uint8_t)n;
    s.n_accesses = of->n_accesses;
    s.accesses = accesses;
    s.windows = NULL;
    memset(&accesses[0], 0, sizeof accesses[0]);
    for (unsigned i = 0; i < n; i++) s.extent[i] = dim[i] == RP__NO_DIM ? 1 : space->extent[dim[i]];
    for (unsigned a = 1; a < of->n_accesses; a++) {
        const rp__space_access *from = &space->accesses[from_access[a]];
        accesses[a] = *from;
        for (unsigned i = 0; i < n; i++) accesses[a].stride[i] = dim[i] == RP__NO_DIM ? 0 : from->stride[dim[i]];
    }
    RP_TRY(rp__space_words(d, of, &s, first, buffer, out));
    /* The first slot is of the sums, or of the factor, which are nowhere. */
    memmove(buffer->slots + out->n_slots, kept, before.n_slots * sizeof *kept);
    out->n_slots += before.n_slots - 1;
    memmove(buffer->slots, buffer->slots + 1, out->n_slots * sizeof *buffer->slots);
    if (part != RP__CONTRACT_REST) out->draw = before.draw, out->n_draws = before.n_draws; /* a factor draws none */
    return RP_OK;
}
