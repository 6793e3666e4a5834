/* One kernel for a group: runs the lowerings of its members into one DAG, operands bound to the values of members where those
   make them and to loads elsewhere, and launches it over the group's space (recorded, by whoever builds a program).
   A DAG follows from what lowerings are asked for and ask for themselves, without the places: that is written down, so that
   the same group at other sizes runs its lowerings for their places alone and takes the DAG that is there. What they may read
   beside that is what the keys of eager launches hold (ops/lower.c).
   A value that an op boundary would have rounded to 16 bits is rounded here too, so that fused and eager have the same bits. */
#include <assert.h>
#include <string.h>

#include "compile/program.h"
#include "core/alloc.h"
#include "ops/lower.h"

typedef struct made { /* a value of the kernel */
    rp__ir_value value;
    rp__axes axes; /* loads: those of the access */
    rp__val val;
} made;

enum { MAX_DRAWS = 32 };

typedef struct lowering {
    rp__lower_sink sink; /* first */
    const rp__fusion *f;
    const rp__fuse_group *group;
    const rp__group_space *space;
    enum { WHOLE, ROWS, COLUMNS } stage;       /* of a space with column sums: its rows, and what adds up their lanes */
    uint8_t order[RP__AXES], n_order, n_inner; /* axes of the launch, those along a row last */
    const rp__executable_place *places, *partial;
    uint32_t member; /* being lowered */
    made *made;
    size_t n_made, made_capacity;
    uint16_t n_accesses, n_scalars;
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    rp__space_window windows[RP__DAG_WINDOWS];
    uint16_t n_windows;
    rp_scalar scalars[RP__DAG_MAX_SCALARS];
    struct {
        unsigned kind; /* rp__lower_scalar.kind */
        rp_dtype compute;
    } scalar_of[RP__DAG_MAX_SCALARS];
    rp__random_draw draws[MAX_DRAWS];
    uint16_t n_draws;
    uint64_t drawn; /* counters that the member's earlier draws took */
    uint64_t *asked;
    size_t n_asked, asked_capacity;
    rp__draw_source *draw;
    void *draw_ctx;
    rp__device *device;
    rp_status status;
    unsigned freedoms;
    bool any_size; /* the kernel serves other sizes as well */
    rp__tune_mode tune;
    bool contracts; /* a member is a product: rows are what follows it, also where it adds up one element */
    rp__chain_stage *kept;
    uint16_t rows; /* the access that kept->rows are stored by */
} lowering;

static const rp__ir_node *node_of(const lowering *l) {
    return &l->f->ir->nodes[l->f->nodes[l->group->members[l->member]].node];
}

static void fail(lowering *l, rp_status status) {
    if (l->status == RP_OK) l->status = status;
}

/* What shapes the DAG: `what` says who asks, with which answer. */
enum {
    ASKS_MEMBER,
    ASKS_ATTR,
    ASKS_STRUCTURAL,
    ASKS_ACCESS,
    ASKS_VALUE,
    ASKS_OUT,
    ASKS_REDUCE,
    ASKS_SCAN,
    ASKS_CONTRACT,
    ASKS_SCALAR,
    ASKS_DRAW
};
static void ask(lowering *l, unsigned what, uint64_t a, uint64_t b) {
    if (!RP__GROW(&l->asked, &l->asked_capacity, l->n_asked + 2)) {
        fail(l, RP__OOM("a fused kernel"));
        return;
    }
    l->asked[l->n_asked++] = what | a << 8;
    l->asked[l->n_asked++] = b;
}

/* The kernel's axes that an access with these strides by axis of the group walks; those that a value's map
   names. */
static rp__axes axes_of(const lowering *l, const int64_t *stride) {
    if (l->stage == COLUMNS) return RP__ALONG_ROWS;
    bool inner = l->space->n_inner == 0 && !l->contracts;
    for (unsigned a = 0; a < l->space->n_axes; a++) inner = inner || (l->space->is_inner[a] && stride[a] != 0);
    return inner ? RP__ELEMENTS : RP__ALONG_ROWS;
}
static rp__axes axes_of_map(const lowering *l, const rp__axis_map *map) {
    if (l->stage == COLUMNS) return RP__ALONG_ROWS;
    bool inner = l->space->n_inner == 0 && !l->contracts;
    for (unsigned k = 0; k < map->begin[map->ndim]; k++) inner = inner || l->space->is_inner[map->axis[k]];
    return inner ? RP__ELEMENTS : RP__ALONG_ROWS;
}

/* Strides by axis of a value whose dims have `stride`, mapped by `map`. */
static void axis_strides(const lowering *l, const rp__axis_map *map, const rp_dim *stride, int64_t *out) {
    memset(out, 0, RP__AXES * sizeof *out);
    for (unsigned d = 0; d < map->ndim; d++) {
        int64_t step = stride[d];
        for (unsigned k = map->begin[d + 1]; k-- > map->begin[d];) {
            out[map->axis[k]] = step;
            step *= l->space->size[map->axis[k]];
        }
    }
}

/* stride[] by axis -> the access's by position; byte range of what is touched. NULL storage: an iota. */
static uint16_t add_access(lowering *l, rp__access_kind kind, rp_dtype dtype, const int64_t *stride, rp__axes axes,
                           rp__ir_value value, bool whole, unsigned windows) {
    if (l->n_accesses == RP__DAG_MAX_ACCESSES) {
        fail(l, rp__fail(RP_ERROR_INTERNAL, "a fused kernel has too many accesses"));
        return 0;
    }
    rp__space_access *a = &l->accesses[l->n_accesses];
    memset(a, 0, sizeof *a);
    for (unsigned k = 0; k < l->n_order; k++) a->stride[k] = stride[l->order[k]];
    if (kind != RP__ACCESS_IOTA) {
        const rp__ir_value_info *info = &l->f->ir->values[value];
        const rp__executable_place *p = &l->places[info->storage];
        int64_t bytes = (int64_t)rp__dtype_bytes(dtype), low = 0, high = 0;
        a->storage = p->storage;
        if (!l->kept || p->storage) a->base = (char *)p->storage->data + p->base + info->offset * bytes;
        for (unsigned k = 0; k < l->space->n_axes; k++) {
            int64_t reach = stride[k] * (l->space->size[k] - 1);
            if (reach < 0)
                low += reach;
            else
                high += reach;
        }
        a->begin = whole ? p->base : p->base + (info->offset + low) * bytes;
        a->end = whole ? p->base + p->bytes : p->base + (info->offset + high + 1) * bytes;
    }
    if (l->space->reversed) {
        int64_t reach = 0;
        for (unsigned k = l->space->n_axes - l->space->n_inner; k < l->space->n_axes; k++) {
            if (l->space->size[l->space->order[k]] > 0)
                reach += a->stride[k] * (l->space->size[l->space->order[k]] - 1);
            a->stride[k] = -a->stride[k];
        }
        if (kind == RP__ACCESS_IOTA)
            a->iota_base += reach;
        else
            a->base = (char *)a->base + reach * (int64_t)rp__dtype_bytes(dtype);
    }
    ask(l, ASKS_ACCESS, (uint64_t)kind | (uint64_t)dtype << 8 | (uint64_t)windows << 16, axes);
    if (l->sink.builder) (void)rp__dag_access_windows(l->sink.builder, kind, dtype, axes, windows);
    return l->n_accesses++;
}

static rp__val remember(lowering *l, rp__ir_value value, rp__axes axes, rp__val val) {
    if (!RP__GROW(&l->made, &l->made_capacity, l->n_made + 1)) {
        fail(l, RP__OOM("a fused kernel"));
        return RP__NO_VAL;
    }
    l->made[l->n_made++] = (made){value, axes, val};
    return val;
}

/* Value k of the kernel. */
static rp__val again(lowering *l, size_t k) {
    ask(l, ASKS_VALUE, 0, k);
    return l->made[k].val;
}

static rp__val load(lowering *l, rp__ir_value v, bool reduced) {
    int64_t stride[RP__AXES];
    const rp__axis_map *map = rp__group_map(l->space, v);
    if (!map) {
        fail(l, rp__fail(RP_ERROR_INTERNAL, "a fused kernel reads a value that has no place in its space"));
        return RP__NO_VAL;
    }
    axis_strides(l, map, l->f->ir->values[v].stride, stride);
    /* By strides, not by the map: what is expanded along a row is a value of the row. */
    rp__axes axes = reduced ? RP__ELEMENTS : axes_of(l, stride);
    for (size_t k = 0; k < l->n_made; k++) {
        if (l->made[k].value == v && l->made[k].axes == axes) return again(l, k);
    }
    rp_dtype dtype = l->f->ir->values[v].meta.dtype;
    uint16_t access = add_access(l, RP__ACCESS_READ, dtype, stride, axes, v, false, 0);
    rp__dag_builder *b = l->sink.builder;
    return remember(l, v, axes, b ? rp__dag_load(b, access, RP__NO_VAL, RP__NO_VAL) : 0);
}

static rp__val value_of(lowering *l, rp__ir_value v, bool reduced) {
    rp__ir_value root = rp__ir_root(l->f->ir, v);
    uint32_t producer = l->f->ir->values[root].node;
    uint32_t fused = producer == RP__IR_NONE ? RP__IR_NONE : l->f->node_of[producer];
    for (uint32_t m = 0; m < l->group->n_members && fused != RP__IR_NONE; m++) {
        if (l->group->members[m] != fused) continue;
        for (size_t k = 0; k < l->n_made; k++) {
            if (l->made[k].value == root) return again(l, k);
        }
        fail(l, rp__fail(RP_ERROR_INTERNAL, "a fused kernel reads a value before it is made"));
        return RP__NO_VAL;
    }
    return load(l, v, reduced);
}

static bool is_column(const lowering *l) { return l->space->columns >> (l->member & 63) & 1u; }

int64_t rp__group_partial_bytes(const rp__fuse_group *g) {
    if (!g->space || !g->space->columns) return 0;
    int64_t bytes = 8 * RP__LANES * __builtin_popcountll(g->space->columns);
    for (unsigned a = 0; a < g->space->n_axes; a++) bytes *= g->space->is_inner[a] ? g->space->size[a] : 1;
    return bytes;
}

/* Where the lanes of the member's sums lie: those of members before it come first, each in 8 bytes an element. */
static uint16_t partial_access(lowering *l, rp_dtype dtype) {
    if (l->n_accesses == RP__DAG_MAX_ACCESSES) {
        fail(l, rp__fail(RP_ERROR_INTERNAL, "a fused kernel has too many accesses"));
        return 0;
    }
    const int64_t before = __builtin_popcountll(l->space->columns & ((UINT64_C(1) << l->member) - 1));
    rp__space_access *a = &l->accesses[l->n_accesses];
    memset(a, 0, sizeof *a);
    const unsigned first = l->stage == COLUMNS ? 0 : l->n_order - l->n_inner;
    int64_t step = 1;
    for (unsigned k = l->n_order; k-- > first;) {
        a->stride[k] = step;
        step *= l->space->size[l->order[k]];
    }
    if (l->stage == COLUMNS) a->stride[l->n_order] = step;
    a->storage = l->partial->storage;
    a->begin = l->partial->base + before * step * RP__LANES * 8;
    a->end = a->begin + step * RP__LANES * (int64_t)rp__dtype_bytes(dtype);
    a->base = (char *)l->partial->storage->data + a->begin;
    const rp__access_kind kind = l->stage == ROWS ? RP__ACCESS_READ_WRITE : RP__ACCESS_READ;
    ask(l, ASKS_ACCESS, (uint64_t)kind | (uint64_t)dtype << 8, RP__ELEMENTS);
    if (l->sink.builder) (void)rp__dag_access(l->sink.builder, kind, dtype, RP__ELEMENTS);
    return l->n_accesses++;
}

static rp__val sink_in(rp__lower_sink *s, const rp__call *call, unsigned k, bool front) {
    lowering *l = (lowering *)s;
    if (l->stage == COLUMNS && is_column(l)) { /* summed already */
        const rp_dtype dtype = rp__dtypes[call->in[k]->dtype].compute;
        return s->builder ? rp__dag_const(s->builder, dtype, rp_i64(0)) : 0;
    }
    (void)front; /* known since the probe: the space has placed it */
    return value_of(l, node_of(l)->in[k], call->op->lowering == RP__ROWS);
}

static void store(lowering *l, rp__ir_value v, const rp__axis_map *map, rp__val val) {
    int64_t stride[RP__AXES];
    axis_strides(l, map, l->f->ir->values[v].stride, stride);
    uint16_t access =
        add_access(l, RP__ACCESS_WRITE, l->f->ir->values[v].meta.dtype, stride, axes_of_map(l, map), v, false, 0);
    if (l->kept && l->kept->rows == v) l->rows = access;
    if (l->sink.builder) rp__dag_store(l->sink.builder, access, val);
}

static rp__val sink_scan(rp__lower_sink *s, const rp__call *call, rp__scan_kind kind, rp__val a) {
    (void)call;
    ask((lowering *)s, ASKS_SCAN, 0, (uint64_t)kind);
    return s->builder ? rp__dag_scan(s->builder, kind, a, RP__ALONG_ROW) : 0;
}
static rp__val sink_contract(rp__lower_sink *s, const rp__call *call, rp__val a, rp__val b, unsigned order) {
    (void)call;
    ask((lowering *)s, ASKS_CONTRACT, 0, order);
    return s->builder ? rp__dag_contract(s->builder, a, b, RP__ALONG_ROW, order) : 0;
}
static void sink_join(rp__lower_sink *s, const rp__call *call, unsigned dim) { (void)s, (void)call, (void)dim; }
static void sink_reverse(rp__lower_sink *s, const rp__call *call) { (void)s, (void)call; } /* known since the probe */
static rp__val sink_reduce(rp__lower_sink *s, const rp__call *call, rp__reduce_kind kind, rp__val a) {
    lowering *l = (lowering *)s;
    rp__dag_builder *b = s->builder;
    ask(l, ASKS_REDUCE, 0, (uint64_t)kind);
    if (l->stage == WHOLE || !is_column(l)) return b ? rp__dag_reduce(b, kind, a, RP__ALONG_ROW) : 0;
    const rp_dtype dtype = rp__dtypes[call->in[0]->dtype].compute;
    const uint16_t lanes = partial_access(l, dtype);
    if (!b) return 0;
    if (l->stage == COLUMNS)
        return rp__dag_reduce(b, kind, rp__dag_load(b, lanes, RP__NO_VAL, RP__NO_VAL), RP__ALONG_ROW);
    rp__dag_store_at(b, lanes, a, RP__NO_VAL, RP__NO_VAL, RP__STORE_ADD);
    return rp__dag_const(b, dtype, rp_i64(0));
}

static void sink_out(rp__lower_sink *s, const rp__call *call, unsigned k, rp__val val) {
    lowering *l = (lowering *)s;
    if (l->stage == ROWS && is_column(l)) return;
    rp__ir_value v = node_of(l)->out[k];
    rp_dtype dtype = (rp_dtype)call->out[k]->dtype;
    bool narrow = s->builder && rp__dtype_is_narrow(dtype);
    ask(l, ASKS_OUT, 0, dtype);
    (void)remember(l, v, 0, narrow ? rp__dag_cast(s->builder, val, dtype) : val);
    if (rp__fuse_stored(l->f, l->group->members, l->group->n_members, v)) store(l, v, rp__group_map(l->space, v), val);
}

/* Numbers that are alike are one parameter, so that what members calculate from them is one value. Not where the kernel serves other sizes
   as well: only some of them would make numbers alike, and these would have a kernel of their own. */
static rp__val sink_scalar(rp__lower_sink *s, const rp__call *call, const rp__lower_scalar *from, rp_dtype compute) {
    lowering *l = (lowering *)s;
    rp_scalar value;
    if (from->kind == RP__SCALAR_INNER_EXTENT) {
        const rp__fuse_node *n = &l->f->nodes[l->group->members[l->member]];
        int64_t extent = 1;
        for (unsigned d = 0; d < n->ndim; d++) extent *= n->inner >> d & 1u ? n->size[d] : 1;
        value = rp_i64(extent);
    } else {
        value = rp__lower_scalar_value(from, call);
    }
    uint16_t k = l->any_size ? (uint16_t)l->n_scalars : 0;
    while (k < l->n_scalars && (l->scalar_of[k].kind != (unsigned)from->kind || l->scalar_of[k].compute != compute ||
                                rp__scalar_word(l->scalars[k], compute) != rp__scalar_word(value, compute)))
        k++;
    if (k == RP__DAG_MAX_SCALARS) {
        fail(l, rp__fail(RP_ERROR_INTERNAL, "a fused kernel has too many scalars"));
        return RP__NO_VAL;
    }
    ask(l, ASKS_SCALAR, k, compute);
    if (k == l->n_scalars) {
        l->scalars[k] = value;
        l->scalar_of[k].kind = from->kind;
        l->scalar_of[k].compute = compute;
        l->n_scalars++;
        if (s->builder) (void)rp__dag_scalar(s->builder);
    }
    return s->builder ? rp__dag_scalar_value(s->builder, k, compute) : 0;
}

static rp__val sink_iota(rp__lower_sink *s, const rp__call *call, rp__lower_iota kind, unsigned dim) {
    lowering *l = (lowering *)s;
    (void)call;
    const rp__fuse_node *n = &l->f->nodes[l->group->members[l->member]];
    rp_dim by_dim[RP_MAX_DIMS];
    int64_t stride[RP__AXES], step = 1;
    for (unsigned d = n->ndim; d-- > 0;) {
        by_dim[d] = kind == RP__IOTA_DIM ? d == dim : step;
        step *= n->size[d];
    }
    axis_strides(l, &l->space->node_map[l->member], by_dim, stride);
    const uint16_t access = add_access(l, RP__ACCESS_IOTA, RP_I64, stride, axes_of(l, stride), RP__IR_NONE, false, 0);
    return s->builder ? rp__dag_iota(s->builder, access) : 0;
}

static unsigned sink_draw(rp__lower_sink *s, const rp__call *call, unsigned generator_attr, bool wide) {
    lowering *l = (lowering *)s;
    if (l->n_draws == MAX_DRAWS) {
        fail(l, rp__fail(RP_ERROR_INTERNAL, "a fused kernel has too many draws"));
        return 0;
    }
    rp_generator *g = call->attrs[generator_attr].v.generator;
    uint64_t n = 1, per = wide ? 2 : 4, inner = (uint64_t)node_of(l)->random_offset + l->drawn;
    for (unsigned d = 0; d < call->out[0]->ndim; d++) n *= (uint64_t)call->out[0]->size[d];
    l->drawn += n / per + (n % per != 0);
    rp__random_draw drawn;
    memset(&drawn, 0, sizeof drawn);
    fail(l, l->draw(l->draw_ctx, g ? g : l->device->generator, inner, &drawn));
    for (unsigned k = 0; k < l->n_draws; k++) { /* a copy of another member draws the same */
        if (memcmp(&l->draws[k], &drawn, sizeof drawn) != 0) continue;
        ask(l, ASKS_DRAW, 0, k);
        return k;
    }
    ask(l, ASKS_DRAW, 0, l->n_draws);
    l->draws[l->n_draws] = drawn;
    return l->n_draws++;
}

static void sink_structural(rp__lower_sink *s, const rp__call *call, int64_t value) {
    (void)call;
    ask((lowering *)s, ASKS_STRUCTURAL, 0, (uint64_t)value);
}

static void sink_inner(rp__lower_sink *s, const rp__call *call, uint32_t mask) { (void)s, (void)call, (void)mask; }
static void sink_space(rp__lower_sink *s, const rp__call *call, const rp_dim *size, size_t ndim, uint32_t inner_mask) {
    (void)s, (void)call, (void)size, (void)ndim, (void)inner_mask; /* known since the probe */
}

static uint16_t sink_access(rp__lower_sink *s, const rp__call *call, bool out, unsigned k, const rp_dim *stride,
                            rp__axes axes) {
    lowering *l = (lowering *)s;
    (void)axes;
    const rp__ir_node *n = node_of(l);
    int64_t by_axis[RP__AXES];
    axis_strides(l, &l->space->node_map[l->member], stride, by_axis);
    rp_dtype dtype = (rp_dtype)(out ? call->out[k] : call->in[k])->dtype;
    return add_access(l, out ? RP__ACCESS_WRITE : RP__ACCESS_READ, dtype, by_axis, axes_of(l, by_axis),
                      out ? n->out[k] : n->in[k], true, 0);
}

/* What a member makes, or a load. */
static rp__val sink_factor(rp__lower_sink *s, const rp__call *call, unsigned k, const rp_dim *stride,
                           const uint8_t *along) {
    lowering *l = (lowering *)s;
    (void)along; /* the space has placed it */
    const rp__ir_value v = node_of(l)->in[k];
    const uint32_t producer = l->f->ir->values[rp__ir_root(l->f->ir, v)].node;
    const uint32_t fused = producer == RP__IR_NONE ? RP__IR_NONE : l->f->node_of[producer];
    for (uint32_t m = 0; m < l->member && fused != RP__IR_NONE; m++)
        if (l->group->members[m] == fused) return value_of(l, v, false);
    const uint16_t access = sink_access(s, call, false, k, stride, RP__ELEMENTS);
    return s->builder ? rp__dag_load(s->builder, access, RP__NO_VAL, RP__NO_VAL) : 0;
}

static uint16_t sink_windows(rp__lower_sink *s, const rp__call *call, int k, const rp_dim *stride,
                             const rp__lw_window *windows, unsigned n, rp__axes axes) {
    lowering *l = (lowering *)s;
    (void)axes;
    if (l->n_windows + n > RP__DAG_WINDOWS) {
        fail(l, rp__fail(RP_ERROR_INTERNAL, "a fused kernel has too many windows"));
        return 0;
    }
    const rp__axis_map *map = &l->space->node_map[l->member];
    int64_t by_axis[RP__AXES], factor[RP__AXES];
    axis_strides(l, map, stride, by_axis);
    rp__axes own = axes_of(l, by_axis);
    for (unsigned i = 0; i < n; i++) {
        const rp__lw_window *from = &windows[i];
        rp__space_window *w = &l->windows[l->n_windows++];
        *w = (rp__space_window){.size = from->size, .stride = from->stride, .pad = from->pad, .divisor = from->divisor};
        axis_strides(l, map, from->factor, factor);
        own |= axes_of(l, factor);
        for (unsigned a = 0; a < l->space->n_axes; a++) {
            const unsigned axis = l->space->order[a];
            w->factor[a] = factor[axis];
            if (!l->space->reversed || !l->space->is_inner[axis]) continue;
            w->pad -= factor[axis] * (l->space->size[axis] - 1);
            w->factor[a] = -factor[axis];
        }
    }
    rp_dtype dtype = k < 0 ? RP_I64 : (rp_dtype)call->in[k]->dtype;
    return add_access(l, k < 0 ? RP__ACCESS_IOTA : RP__ACCESS_READ, dtype, by_axis, own,
                      k < 0 ? RP__IR_NONE : node_of(l)->in[k], true, n);
}

static void lower_member(lowering *l) {
    const rp__fuse_node *fn = &l->f->nodes[l->group->members[l->member]];
    const rp__ir_node *n = node_of(l);
    rp__site_frame frame = rp__site_push(n->site ? n->site : "", n->kind == RP__IR_OP ? n->op->name : "assign");
    ask(l, ASKS_MEMBER, 0, l->group->members[l->member]);
    for (uint32_t k = 0; k < n->n_attrs; k++) {
        if (n->attrs[k].kind != RP_ATTR_SCALAR) continue;
        ask(l, ASKS_ATTR, k, (uint64_t)n->attrs[k].v.scalar.kind << 1 | rp__scalar_is_one(n->attrs[k].v.scalar));
    }
    if (fn->kind == RP__FUSE_COPY) {
        store(l, n->in[0], &l->space->node_map[l->member], value_of(l, n->in[1], false));
    } else {
        rp__call call;
        rp__ir_call(n, fn->in, fn->out, &call);
        l->drawn = 0;
        fail(l, rp__lower_into(&l->sink, &call));
    }
    rp__site_pop(frame);
}

/* The schedule that is known to be the fastest, and what explain says of it. */
static rp_status choose(lowering *l, rp__dag *dag, rp__space *space, rp__group_made *out, unsigned k) {
    rp__tuned *t = &out->tuned[k];
    rp__text text = {0};
    if (rp__tune_find(l->device, dag, space, l->freedoms != 0, t)) space->how = &t->how;
    out->moved[k] = rp__tune_bytes(dag, space);
    l->device->ops->loops->schedule_text(l->device, dag, space, &text);
    if (text.failed) {
        rp__text_free(&text);
        return RP__OOM("the schedule of a kernel");
    }
    out->schedule[k] = text.data;
    return RP_OK;
}

/* For who launches the whole chain. */
static rp_status keep_stage(const lowering *l, rp__dag *dag, const rp__space *space) {
    rp__chain_stage *kept = l->kept;
    unsigned k = 0;
    if (!dag->rest || l->n_windows || l->n_draws)
        return rp__fail(RP_ERROR_INTERNAL, "%s: a chain takes no such group", space->op);
    while (k < dag->rest->n_stores && dag->rest_access[dag->rest->stores[k].access] != l->rows) k++;
    if (kept->rows != RP__IR_NONE && k == dag->rest->n_stores)
        return rp__fail(RP_ERROR_INTERNAL, "%s: rows of a chain are not stored", space->op);
    kept->store = k;
    kept->dag = rp__dag_retain(dag);
    kept->space = *space;
    memcpy(kept->accesses, l->accesses, l->n_accesses * sizeof *l->accesses);
    memcpy(kept->scalars, l->scalars, l->n_scalars * sizeof *l->scalars);
    kept->space.accesses = kept->accesses;
    kept->space.scalars = kept->scalars;
    kept->space.windows = NULL;
    return RP_OK;
}

static rp_status launch(lowering *l, rp_stream *s, rp__dag *dag, rp__group_made *out, unsigned number) {
    const rp__ir_node *first = &l->f->ir->nodes[l->f->nodes[rp__fuse_named(l->f, l->group)].node];
    rp__space space = {.dims = {(uint8_t)(l->n_order - l->n_inner), l->n_inner},
                       .n_accesses = l->n_accesses,
                       .n_scalars = l->n_scalars,
                       .accesses = l->accesses,
                       .windows = l->windows,
                       .scalars = l->scalars,
                       .draw = l->n_draws ? l->draws : NULL,
                       .n_draws = l->n_draws,
                       .lanes = l->stage == ROWS,
                       .op = first->kind == RP__IR_OP ? first->op->name : "copy_",
                       .site = first->site ? first->site : ""};
    for (unsigned k = 0; k < l->n_order; k++) space.extent[k] = l->space->size[l->order[k]];
    if (l->stage == COLUMNS) {
        space.dims[1] = 1;
        space.extent[l->n_order] = RP__LANES;
    }
    rp__space_collapse(dag, &space, l->accesses);
    if (l->kept) return keep_stage(l, dag, &space);
    if (l->tune == RP__TUNE_MEASURE) return rp__tune_measure(l->device, dag, &space, l->freedoms != 0);
    if (l->tune == RP__TUNE_USE) RP_TRY(choose(l, dag, &space, out, number));
    return rp__loop_launch(l->device, s, dag, &space);
}

/* Is the member one of the stage? */
static bool takes_part(const lowering *l) {
    const uint64_t bit = UINT64_C(1) << (l->member & 63);
    return l->stage == WHOLE  ? true
           : l->stage == ROWS ? !(l->space->behind & bit)
                              : ((l->space->columns | l->space->behind) & bit) != 0;
}

/* Runs every lowering of the stage; builder NULL: for places. */
static rp_status run(lowering *l, rp__dag_builder *builder) {
    l->sink.builder = builder;
    l->n_made = l->n_asked = 0;
    l->n_accesses = l->n_scalars = l->n_windows = l->n_draws = 0;
    l->status = RP_OK;
    for (l->member = 0; l->member < l->group->n_members && l->status == RP_OK; l->member++) {
        if (takes_part(l)) lower_member(l);
    }
    return l->status;
}

static rp_status build(lowering *l, rp__dag **dag, uint32_t taken[RP__FREE_COUNT]) {
    rp__dag_builder *b = rp__dag_new();
    if (!b) return rp_error_status();
    rp_status status = run(l, b);
    if (status != RP_OK) {
        rp__dag_abandon(b);
        return status;
    }
    memset(taken, 0, RP__FREE_COUNT * sizeof *taken);
    *dag = rp__dag_relax(rp__dag_finish(b), l->freedoms, taken);
    return *dag ? RP_OK : rp_error_status();
}

/* The kernel that is there, counted, if lowerings ask for what they asked for when it was made. In builds with assertions it is made
   again: DAGs are interned, so that equal ones are one. */
static rp_status known(lowering *l, const rp__group_kernel *kernel, rp__dag **dag) {
    RP_TRY(run(l, NULL));
    if (l->n_asked != kernel->n_asked || memcmp(l->asked, kernel->asked, l->n_asked * sizeof *l->asked) != 0)
        return RP_OK;
    *dag = rp__dag_retain(kernel->dag);
#ifndef NDEBUG
    rp__dag *same = NULL;
    uint32_t taken[RP__FREE_COUNT];
    RP_TRY(build(l, &same, taken));
    assert(same == *dag);
    rp__dag_release(same);
#endif
    return RP_OK;
}

void rp__group_kernel_free(rp__group_kernel *k) {
    rp__free(k->asked);
    rp__dag_release(k->dag);
    *k = (rp__group_kernel){0};
}

static void keep(lowering *l, rp__group_kernel *kernel, rp__dag *dag, const uint32_t taken[RP__FREE_COUNT]) {
    rp__group_kernel_free(kernel);
    *kernel = (rp__group_kernel){l->asked, l->n_asked, l->asked_capacity, rp__dag_retain(dag), {0}};
    memcpy(kernel->taken, taken, sizeof kernel->taken);
    l->asked = NULL;
    l->n_asked = l->asked_capacity = 0;
}

/* The stage's kernel, number k of what is made, launched; counts it if it had to be made. */
static rp_status lower_stage(lowering *l, rp_stream *s, rp__group_kernel *kernel, rp__group_made *out, unsigned k) {
    const unsigned first = l->stage == COLUMNS ? l->space->n_axes - l->space->n_inner : 0;
    rp__dag *dag = NULL;
    l->n_order = (uint8_t)(l->space->n_axes - first);
    l->n_inner = l->stage == COLUMNS ? 0 : l->space->n_inner;
    memcpy(l->order, l->space->order + first, l->n_order);
    rp_status status = kernel && kernel->dag ? known(l, kernel, &dag) : RP_OK;
    if (dag) memcpy(out->taken[k], kernel->taken, sizeof out->taken[k]);
    if (status == RP_OK && !dag) {
        out->built++;
        status = build(l, &dag, out->taken[k]);
        if (status == RP_OK && kernel) keep(l, kernel, dag, out->taken[k]);
    }
    if (status == RP_OK) status = launch(l, s, dag, out, k);
    if (status == RP_OK)
        out->dags[k] = dag;
    else
        rp__dag_release(dag);
    return status;
}

static rp_status lower_stages(lowering *l, const rp__group_lowering *how, rp__group_made *out) {
    rp__group_kernel *kernels = how->kernels;
    l->stage = l->space->columns ? ROWS : WHOLE;
    RP_TRY(lower_stage(l, how->stream, kernels, out, 0));
    if (l->stage == WHOLE) return RP_OK;
    l->stage = COLUMNS;
    rp_status status = lower_stage(l, how->stream, kernels ? kernels + 1 : NULL, out, 1);
    if (status == RP_OK) return RP_OK;
    rp__dag_release(out->dags[0]);
    out->dags[0] = NULL;
    return status;
}

rp_status rp__group_lower(const rp__fusion *f, const rp__fuse_group *g, const rp__group_lowering *how,
                          rp__group_made *out) {
    *out = (rp__group_made){.built = 0};
    lowering *l = rp__calloc(1, sizeof *l);
    if (!l) return RP__OOM("a fused kernel");
    *l = (lowering){.sink = {.in = sink_in,
                             .out = sink_out,
                             .reduce = sink_reduce,
                             .scan = sink_scan,
                             .contract = sink_contract,
                             .join = sink_join,
                             .reverse = sink_reverse,
                             .scalar = sink_scalar,
                             .iota = sink_iota,
                             .draw = sink_draw,
                             .structural = sink_structural,
                             .inner = sink_inner,
                             .space = sink_space,
                             .access = sink_access,
                             .factor = sink_factor,
                             .windows = sink_windows},
                    .f = f,
                    .group = g,
                    .places = how->places,
                    .partial = how->partial,
                    .device = how->device,
                    .freedoms = how->freedoms,
                    .tune = how->tune,
                    .any_size = how->kernels != NULL,
                    .kept = how->stage,
                    .draw = how->draw,
                    .draw_ctx = how->draw_ctx};
    for (uint32_t m = 0; m < g->n_members; m++)
        l->contracts = l->contracts || f->nodes[g->members[m]].kind == RP__FUSE_PRODUCT;
    rp__group_space own = {0}; /* of a group that nobody asked about before */
    const char *why = g->space ? NULL : rp__group_space_make(f, g->members, g->n_members, &own);
    l->space = g->space ? g->space : &own;
    rp_status status = !why   ? lower_stages(l, how, out)
                       : *why ? rp__fail(RP_ERROR_INTERNAL, "a group of nodes has lost its space: %s", why)
                              : RP__OOM("a fused kernel");
    for (unsigned k = 0; k < 2 && status != RP_OK; k++) {
        rp__free(out->schedule[k]);
        out->schedule[k] = NULL;
    }
    rp__free(l->asked);
    rp__free(l->made);
    rp__group_space_free(&own);
    rp__free(l);
    return status;
}
