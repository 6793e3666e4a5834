/* Fusion: groups of loop nodes that become one kernel each.
   Requires  a functional graph with concrete sizes.
   Keeps     the graph (it is only read).
   After it  every node with work to do is in one group; groups form no cycle; every pair of producer and consumer that stayed
             apart has a reason.

   Pairs are tried by the bytes that merging saves, largest first; a merge must give a space on which all members agree
   (space.c), stay within the limits of a kernel, and leave no path from the group out and back in. */
#include "compile/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "device/device.h"
#include "ops/format.h"
#include "ops/lower.h"
#include "ops/product.h"

/* Limits of a kernel: pointers keep index registers in check, nodes keep the interpreter's tiles in L1. */
enum { MAX_MEMBERS = 64, MAX_POINTERS = 32, MAX_DAG_NODES = 1000, MAX_SCALARS = 48, MAX_DRAWS_A_KERNEL = 8 };
enum { MAX_ROW_NODES = 100 }; /* values once a row, which a kernel keeps all together */

/* ---- probing: what the lowering of a node asks for */

/* Without a builder only the place is asked for: what it is in the DAG was found at other sizes. */
typedef struct probe {
    rp__lower_sink sink;
    rp__fuse_node *node;
    unsigned n_sums;
    bool other; /* it reduces in another way, or scans */
} probe;

static uint16_t probe_any(const rp__lower_sink *s, rp__access_kind kind, rp_dtype dtype, rp__axes axes,
                          unsigned windows) {
    ((const probe *)s)->node->n_windows += windows;
    return s->builder ? rp__dag_access_windows(s->builder, kind, dtype, axes, windows) : 0;
}

static rp__val probe_in(rp__lower_sink *s, const rp__call *call, unsigned k, bool front) {
    rp_dtype dtype = (rp_dtype)call->in[k]->dtype;
    ((probe *)s)->node->plain_operands |= UINT64_C(1) << (k & 63);
    if (front) ((probe *)s)->node->front_operands |= UINT64_C(1) << (k & 63);
    uint16_t access = probe_any(s, RP__ACCESS_READ, dtype, RP__ELEMENTS, 0);
    return s->builder ? rp__dag_load(s->builder, access, RP__NO_VAL, RP__NO_VAL) : 0;
}
static void probe_out(rp__lower_sink *s, const rp__call *call, unsigned k, rp__val v) {
    const rp__axes axes = call->op->lowering == RP__PRODUCT ? RP__ALONG_ROWS : RP__ELEMENTS;
    uint16_t access = probe_any(s, RP__ACCESS_WRITE, (rp_dtype)call->out[k]->dtype, axes, 0);
    if (s->builder) rp__dag_store(s->builder, access, v);
}
static rp__val probe_reduce(rp__lower_sink *s, const rp__call *call, rp__reduce_kind kind, rp__val a) {
    (void)call;
    ((probe *)s)->node->combines = true;
    if (kind == RP__REDUCE_SUM)
        ((probe *)s)->n_sums++;
    else
        ((probe *)s)->other = true;
    return s->builder ? rp__dag_reduce(s->builder, kind, a, RP__ALONG_ROW) : 0;
}
static rp__val probe_scan(rp__lower_sink *s, const rp__call *call, rp__scan_kind kind, rp__val a) {
    (void)call;
    ((probe *)s)->node->combines = ((probe *)s)->other = true;
    return s->builder ? rp__dag_scan(s->builder, kind, a, RP__ALONG_ROW) : 0;
}
static rp__val probe_contract(rp__lower_sink *s, const rp__call *call, rp__val a, rp__val b, unsigned order) {
    (void)call;
    return s->builder ? rp__dag_contract(s->builder, a, b, RP__ALONG_ROW, order) : 0;
}
static void probe_join(rp__lower_sink *s, const rp__call *call, unsigned dim) {
    (void)call;
    ((probe *)s)->node->joined |= 1u << dim;
}
static void probe_reverse(rp__lower_sink *s, const rp__call *call) {
    (void)call;
    ((probe *)s)->node->reversed = true;
}
static rp__val probe_scalar(rp__lower_sink *s, const rp__call *call, const rp__lower_scalar *from, rp_dtype compute) {
    (void)call, (void)from;
    ((probe *)s)->node->n_scalars++;
    return s->builder ? rp__dag_scalar_value(s->builder, rp__dag_scalar(s->builder), compute) : 0;
}
static rp__val probe_iota(rp__lower_sink *s, const rp__call *call, rp__lower_iota kind, unsigned dim) {
    (void)call;
    ((probe *)s)->node->moves |= kind == RP__IOTA_DIM ? UINT32_C(1) << dim : UINT32_MAX;
    uint16_t access = probe_any(s, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS, 0);
    return s->builder ? rp__dag_iota(s->builder, access) : 0;
}
static unsigned probe_draw(rp__lower_sink *s, const rp__call *call, unsigned generator_attr, bool wide) {
    (void)call, (void)generator_attr, (void)wide;
    return ((probe *)s)->node->n_draws++;
}
static void probe_inner(rp__lower_sink *s, const rp__call *call, uint32_t mask) {
    (void)call;
    ((probe *)s)->node->inner = mask;
}
static void probe_space(rp__lower_sink *s, const rp__call *call, const rp_dim *size, size_t ndim, uint32_t inner_mask) {
    (void)call;
    rp__fuse_node *n = ((probe *)s)->node;
    n->ndim = (uint8_t)ndim;
    memcpy(n->size, size, ndim * sizeof *size);
    n->inner = inner_mask;
}
/* An access walks the dims of the space that it has an axis and a step for. */
static void note_steps(rp__fuse_node *n, const rp_dim *step, rp__axes axes) {
    for (unsigned d = 0; d < n->ndim && axes == RP__ELEMENTS; d++)
        n->moves |= (uint32_t)!rp__dim_same_word(step[d], 0) << d;
}
static uint16_t probe_access(rp__lower_sink *s, const rp__call *call, bool out, unsigned k, const rp_dim *stride,
                             rp__axes axes) {
    rp__fuse_node *n = ((probe *)s)->node;
    if (out) {
        n->opaque = true;
    } else {
        n->memory_operands |= UINT64_C(1) << (k & 63);
        note_steps(n, stride, axes);
    }
    rp_dtype dtype = (rp_dtype)(out ? call->out[k] : call->in[k])->dtype;
    return probe_any(s, out ? RP__ACCESS_WRITE : RP__ACCESS_READ, dtype, axes, 0);
}

static rp__val probe_factor(rp__lower_sink *s, const rp__call *call, unsigned k, const rp_dim *stride,
                            const uint8_t *along) {
    rp__fuse_node *n = ((probe *)s)->node;
    const uint16_t access = probe_access(s, call, false, k, stride, RP__ELEMENTS);
    if (along && n->n_factors < 2) {
        rp__fuse_factor *factor = &n->factor[n->n_factors++];
        *factor = (rp__fuse_factor){.operand = (uint8_t)k};
        memcpy(factor->along, along, call->in[k]->ndim);
    }
    return s->builder ? rp__dag_load(s->builder, access, RP__NO_VAL, RP__NO_VAL) : 0;
}

static uint16_t probe_windows(rp__lower_sink *s, const rp__call *call, int k, const rp_dim *stride,
                              const rp__lw_window *windows, unsigned n, rp__axes axes) {
    rp__fuse_node *node = ((probe *)s)->node;
    if (k >= 0) node->memory_operands |= UINT64_C(1) << (k & 63);
    note_steps(node, stride, axes);
    for (unsigned i = 0; i < n; i++) note_steps(node, windows[i].factor, axes);
    rp_dtype dtype = k < 0 ? RP_I64 : (rp_dtype)call->in[k]->dtype;
    return probe_any(s, k < 0 ? RP__ACCESS_IOTA : RP__ACCESS_READ, dtype, axes, n);
}

/* One sum of floats, and nothing that goes on along what it runs over. Sizes may be symbols, where a graph is judged before it is
   specialised. */
static bool sums_only(const rp__fuse_node *fn, const rp__call *call, unsigned n_sums, bool other) {
    if (n_sums != 1 || other || fn->n_draws || fn->n_windows || fn->opaque || fn->memory_operands || fn->reversed)
        return false;
    const unsigned compute = rp__dtypes[call->in[0]->dtype].compute;
    if ((compute != RP_F32 && compute != RP_F64) || rp__dtypes[call->out[0]->dtype].compute != compute) return false;
    int64_t rows = 1;
    for (unsigned d = 0; d < fn->ndim; d++) rows *= fn->inner >> d & 1u ? 1 : rp__dim_hint(fn->size[d]);
    for (uint32_t k = 0; k < call->n_out; k++) {
        int64_t n = 1;
        for (unsigned d = 0; d < call->out[k]->ndim; d++) n *= rp__dim_hint(call->out[k]->size[d]);
        if (n != rows) return false;
    }
    return true;
}

static rp__dag_extent extent_of(const rp__dag *dag) {
    rp__dag_extent e = {.nodes = (uint16_t)dag->n_nodes};
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        const bool wide = rp__dtype_bytes((rp_dtype)n->dtype) > 4;
        e.row += n->op != RP__CONST && n->op != RP__SCALAR && rp__dag_is_row(dag, n->axes);
        e.cost = (uint16_t)(e.cost + (n->op == RP__LOAD ? 0 : rp__node_cost(n)));
        e.sums[wide] += n->op == RP__REDUCE;
        e.scans[wide] += n->op == RP__SCAN;
    }
    return e;
}

/* places_only: the DAG's extent is known. */
static rp_status probe_node(const rp_ir *ir, rp__fuse_node *fn, bool places_only) {
    const rp__ir_node *n = &ir->nodes[fn->node];
    rp__call call;
    rp__ir_call(n, fn->in, fn->out, &call);
    const rp_tensor *shape = n->op->lowering == RP__ROWS ? fn->in[0] : fn->out[0];
    fn->ndim = shape->ndim;
    memcpy(fn->size, shape->size, shape->ndim * sizeof *shape->size);
    probe p = {.sink = {.builder = places_only ? NULL : rp__dag_new(),
                        .in = probe_in,
                        .out = probe_out,
                        .reduce = probe_reduce,
                        .scan = probe_scan,
                        .contract = probe_contract,
                        .join = probe_join,
                        .reverse = probe_reverse,
                        .scalar = probe_scalar,
                        .iota = probe_iota,
                        .draw = probe_draw,
                        .inner = probe_inner,
                        .space = probe_space,
                        .access = probe_access,
                        .factor = probe_factor,
                        .windows = probe_windows},
               .node = fn};
    if (!places_only && !p.sink.builder) return rp_error_status();
    rp_status status = rp__lower_into(&p.sink, &call);
    fn->sums = sums_only(fn, &call, p.n_sums, p.other);
    if (places_only) return status;
    rp__dag *dag = rp__dag_finish(p.sink.builder);
    if (status == RP_OK && !dag) status = rp_error_status();
    if (dag) fn->extent = extent_of(dag);
    rp__dag_release(dag);
    return status;
}

/* ---- nodes and their order */

static bool is_empty(const rp__meta *m) {
    for (unsigned d = 0; d < m->ndim; d++) {
        if (m->size[d] == 0) return true;
    }
    return false;
}

static rp_status stand_ins(const rp_ir *ir, rp__arena *arena, rp__fuse_node *fn) {
    const rp__ir_node *n = &ir->nodes[fn->node];
    fn->in = RP__NEW(arena, rp_tensor *, n->n_in + 1u);
    fn->out = RP__NEW(arena, rp_tensor *, n->n_out + 1u);
    rp__ir_stand_in *handles = RP__NEW(arena, rp__ir_stand_in, n->n_in + n->n_out + 1u);
    if (!fn->in || !fn->out || !handles) return RP__OOM("fusion");
    for (uint32_t k = 0; k < n->n_in; k++) {
        fn->in[k] = n->in[k] == RP__IR_NONE ? NULL : rp__ir_stand_in_for(ir, n->in[k], handles++);
    }
    for (uint32_t k = 0; k < n->n_out; k++) fn->out[k] = rp__ir_stand_in_for(ir, n->out[k], handles++);
    return RP_OK;
}

rp_status rp__fuse_look(const rp_ir *ir, uint32_t node, rp__arena *arena, rp__fuse_node *out) {
    *out = (rp__fuse_node){.node = node, .kind = RP__FUSE_LOOP};
    RP_TRY(stand_ins(ir, arena, out));
    return probe_node(ir, out, false);
}

/* Products join others where some kernel of the order that they have by themselves takes what follows. */
static rp_status look_at_product(const rp_ir *ir, rp__device *d, rp__fuse_node *fn, bool places_only) {
    const rp__ir_node *n = &ir->nodes[fn->node];
    rp__call call;
    rp__order order;
    fn->kind = RP__FUSE_LIBRARY;
    if (!d) return RP_OK;
    rp__ir_call(n, fn->in, fn->out, &call);
    RP_TRY(rp__product_order(&call, d, &order));
    if (order == RP__ORDER_ELSEWHERE) return RP_OK;
    fn->kind = RP__FUSE_PRODUCT;
    RP_TRY(probe_node(ir, fn, places_only));
    if (!d->ops->library->factor_cost) fn->n_factors = 0;
    for (unsigned k = 0; k < fn->n_factors; k++)
        RP_TRY(rp__product_factor_cost(&call, d, order, fn->factor[k].operand, &fn->factor[k].most));
    return RP_OK;
}

static rp_status make_nodes(rp__fusion *f, rp__device *d, const rp__dag_extent *extents) {
    const rp_ir *ir = f->ir;
    f->nodes = RP__NEW(&f->arena, rp__fuse_node, ir->body.n_nodes + 1);
    f->node_of = RP__NEW(&f->arena, uint32_t, ir->n_nodes + 1);
    if (!f->nodes || !f->node_of) return RP__OOM("fusion");
    memset(f->node_of, 0xff, ir->n_nodes * sizeof *f->node_of);
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        uint32_t index = ir->body.nodes[k];
        const rp__ir_node *n = &ir->nodes[index];
        if (n->dead || n->kind == RP__IR_CAPTURED || n->kind == RP__IR_CONST || rp__ir_is_view(n)) continue;
        rp__fuse_node *fn = &f->nodes[f->n_nodes];
        fn->node = index;
        RP_TRY(stand_ins(ir, &f->arena, fn));
        bool empty = false,
             loop = n->kind == RP__IR_OP &&
                    (n->op->lowering == RP__POINTWISE || n->op->lowering == RP__ROWS || n->op->lowering == RP__INDEXED);
        for (uint32_t r = 0; r < n->n_in; r++)
            empty = empty || (n->in[r] != RP__IR_NONE && is_empty(&ir->values[n->in[r]].meta));
        bool no_result = n->kind == RP__IR_OP && n->n_out > 0;
        for (uint32_t r = 0; r < n->n_out; r++) {
            empty = empty || is_empty(&ir->values[n->out[r]].meta);
            no_result = no_result && is_empty(&ir->values[n->out[r]].meta);
        }
        if (n->kind == RP__IR_ASSIGN) {
            const rp__meta *meta = &ir->values[n->in[1]].meta;
            fn->kind = is_empty(meta) ? RP__FUSE_NOTHING : RP__FUSE_COPY;
            fn->ndim = meta->ndim;
            fn->extent.nodes = 1;
            fn->plain_operands = 2;
            memcpy(fn->size, meta->size, meta->ndim * sizeof *meta->size);
        } else if (rp__ir_is_op(n, RP__OP(empty)) || no_result || rp__cat_is_joined(ir, n)) {
            fn->kind = RP__FUSE_NOTHING;
        } else if (loop && !empty) {
            fn->kind = RP__FUSE_LOOP;
            RP_TRY(probe_node(ir, fn, extents != NULL));
            if (extents) fn->extent = extents[f->n_nodes];
        } else if (n->kind == RP__IR_OP && n->op->lowering == RP__PRODUCT && !empty) {
            RP_TRY(look_at_product(ir, d, fn, extents != NULL));
            if (extents && fn->kind == RP__FUSE_PRODUCT) fn->extent = extents[f->n_nodes];
        } else if (n->n_regions > 0) {
            fn->kind = RP__FUSE_REGION; /* its blocks are fused by themselves */
        } else {
            fn->kind = RP__FUSE_LIBRARY; /* runs through the op's own rule */
        }
        f->node_of[index] = f->n_nodes++;
    }
    return RP_OK;
}

/* Items come in rising order: one that is there is the last. */
static rp_status append(rp__fusion *f, uint32_t **list, uint32_t *n, uint32_t item) {
    if (*n && (*list)[*n - 1] == item) return RP_OK;
    if ((*n & (*n - 1)) == 0) { /* doubles at powers of two, in the arena */
        uint32_t *grown = RP__NEW(&f->arena, uint32_t, *n ? 2 * *n : 1);
        if (!grown) return RP__OOM("fusion");
        if (*n) memcpy(grown, *list, *n * sizeof *grown);
        *list = grown;
    }
    (*list)[(*n)++] = item;
    return RP_OK;
}

/* The storage that operand k of a node is written through; RP__IR_NONE: read only. */
static uint32_t written_storage(const rp_ir *ir, const rp__ir_node *n, uint32_t k) {
    return rp__ir_writes(n, k) ? ir->values[n->in[k]].storage : RP__IR_NONE;
}

/* Order between nodes: producers before readers; readers of memory before who writes it, writers before later readers. */
static rp_status make_order(rp__fusion *f) {
    const rp_ir *ir = f->ir;
    f->succ = RP__NEW(&f->arena, uint32_t *, f->n_nodes + 1u);
    f->n_succ = RP__NEW(&f->arena, uint32_t, f->n_nodes + 1u);
    f->readers = RP__NEW(&f->arena, uint32_t *, ir->n_values + 1);
    f->n_readers = RP__NEW(&f->arena, uint32_t, ir->n_values + 1);
    f->result_storage = RP__NEW(&f->arena, bool, ir->n_storages + 1u);
    uint32_t *writer = RP__NEW(&f->arena, uint32_t, ir->n_storages + 1u);   /* last writer in place + 1 */
    uint32_t **since = RP__NEW(&f->arena, uint32_t *, ir->n_storages + 1u); /* readers since */
    uint32_t *n_since = RP__NEW(&f->arena, uint32_t, ir->n_storages + 1u);
    if (!f->succ || !f->n_succ || !f->readers || !f->n_readers || !f->result_storage || !writer || !since || !n_since) {
        return RP__OOM("fusion");
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        if (ir->body.results[k] != RP__IR_NONE) f->result_storage[ir->values[ir->body.results[k]].storage] = true;
    }
    for (uint32_t i = 0; i < f->n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[f->nodes[i].node];
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (n->in[k] == RP__IR_NONE || (n->kind == RP__IR_ASSIGN && k == 0)) continue;
            rp__ir_value root = rp__ir_root(ir, n->in[k]);
            uint32_t producer = ir->values[root].node, storage = ir->values[root].storage;
            RP_TRY(append(f, &f->readers[root], &f->n_readers[root], i));
            if (producer != RP__IR_NONE && f->node_of[producer] != RP__IR_NONE) {
                uint32_t p = f->node_of[producer];
                RP_TRY(append(f, &f->succ[p], &f->n_succ[p], i));
            }
            if (writer[storage]) RP_TRY(append(f, &f->succ[writer[storage] - 1], &f->n_succ[writer[storage] - 1], i));
            RP_TRY(append(f, &since[storage], &n_since[storage], i));
        }
        for (uint32_t k = 0; k < n->n_in; k++) {
            uint32_t storage = n->in[k] == RP__IR_NONE ? RP__IR_NONE : written_storage(ir, n, k);
            if (storage == RP__IR_NONE) continue;
            for (uint32_t r = 0; r < n_since[storage]; r++) {
                uint32_t reader = since[storage][r];
                if (reader != i) RP_TRY(append(f, &f->succ[reader], &f->n_succ[reader], i));
            }
            if (writer[storage] && writer[storage] - 1 != i) {
                RP_TRY(append(f, &f->succ[writer[storage] - 1], &f->n_succ[writer[storage] - 1], i));
            }
            writer[storage] = i + 1;
            n_since[storage] = 0;
            since[storage] = NULL;
        }
    }
    return RP_OK;
}

/* ---- merging */

typedef struct edge {
    uint32_t a, b; /* fuse nodes; a before b */
    int64_t gain;  /* bytes of memory traffic that merging saves */
    bool direct;   /* producer and consumer; else readers of one value only */
    bool factor;   /* a loop behind a product, and another product that reads what it makes */
} edge;

static int by_pair(const void *x, const void *y) {
    const edge *p = x, *q = y;
    if (p->a != q->a) return p->a < q->a ? -1 : 1;
    return p->b < q->b ? -1 : p->b > q->b;
}

static int by_gain(const void *x, const void *y) {
    const edge *p = x, *q = y;
    if (p->factor != q->factor) return q->factor ? -1 : 1;
    if (p->gain != q->gain) return p->gain > q->gain ? -1 : 1;
    if (p->direct != q->direct) return p->direct ? -1 : 1;
    return by_pair(x, y);
}

static bool is_loop(const rp__fuse_node *n) { return n->kind == RP__FUSE_LOOP || n->kind == RP__FUSE_COPY; }
static bool merges(const rp__fuse_node *n) { return is_loop(n) || n->kind == RP__FUSE_PRODUCT; }

/* Members that make a factor of the product, member `product`: those whose results nobody but the product as that factor, and others that make
   it, reads within the group. */
static uint64_t makers_of(const rp__fusion *f, const uint32_t *members, uint32_t product,
                          const rp__fuse_factor *factor) {
    const rp_ir *ir = f->ir;
    const rp__ir_node *p = &ir->nodes[f->nodes[members[product]].node];
    uint64_t makers = 0;
    for (uint32_t i = product; i-- > 0;) {
        for (uint32_t j = i + 1; j <= product; j++) {
            const rp__ir_node *reader = &ir->nodes[f->nodes[members[j]].node];
            if (j < product && !(makers >> j & 1u)) continue;
            for (uint32_t k = 0; k < reader->n_in; k++) {
                if (reader->in[k] == RP__IR_NONE || (j == product && reader->in[k] != p->in[factor->operand])) continue;
                const uint32_t node = ir->values[rp__ir_root(ir, reader->in[k])].node;
                if (node != RP__IR_NONE && f->node_of[node] == members[i]) makers |= UINT64_C(1) << i;
            }
        }
    }
    return makers;
}

/* Why they cannot be computed where the factor would be read; NULL: they can. */
static const char *why_not_made(const rp__fusion *f, const uint32_t *members, uint32_t n, const rp__group_space *s,
                                uint64_t makers, const rp__fuse_factor *factor) {
    const rp_ir *ir = f->ir;
    uint32_t cost = 0;
    if (!makers) return NULL;
    if (s->n_inner > 1) return "reshape-splits-dims";
    for (uint32_t k = 0; k < n; k++) {
        const rp__fuse_node *fn = &f->nodes[members[k]];
        if (makers >> k & 1u) {
            if (fn->kind != RP__FUSE_LOOP || fn->opaque || fn->n_windows || fn->memory_operands || fn->n_draws ||
                fn->inner || fn->combines)
                return "gathered-operand";
            const rp__ir_node *maker = &ir->nodes[fn->node];
            for (uint32_t r = 0; r < maker->n_out; r++)
                if (rp__fuse_stored(f, members, n, maker->out[r])) return "store-would-repeat";
            cost += fn->extent.cost;
            continue;
        }
        const rp__ir_node *reader = &ir->nodes[fn->node];
        for (uint32_t i = 0; i < reader->n_in && fn->kind != RP__FUSE_PRODUCT; i++) {
            if (reader->in[i] == RP__IR_NONE) continue;
            const uint32_t node = ir->values[rp__ir_root(ir, reader->in[i])].node;
            for (uint32_t j = 0; j < n && node != RP__IR_NONE; j++)
                if ((makers >> j & 1u) && f->node_of[node] == members[j]) return "gathered-operand";
        }
    }
    return cost > factor->most || factor->most == 0 ? "factor-would-repeat" : NULL;
}

/* What may share a kernel with a product: what is computed of each of its elements, where it stands, and what makes its factors. A dim of
   a convolution is one stride of its operands. */
static const char *joins_product(const rp__fusion *f, const uint32_t *members, uint32_t n, const rp__group_space *s) {
    uint32_t products = 0, product = 0;
    uint64_t makers = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (f->nodes[members[k]].kind != RP__FUSE_PRODUCT) continue;
        products++;
        product = k;
    }
    if (products == 0) return NULL;
    if (products > 1) return "products-meet";
    if (s->n_axes > RP__AXES - 4) return "kernel-too-large";
    const rp__fuse_node *of = &f->nodes[members[product]];
    for (uint32_t k = 0; k < of->n_factors; k++) {
        const uint64_t mine = makers_of(f, members, product, &of->factor[k]);
        const char *why = makers & mine ? "gathered-operand" : why_not_made(f, members, n, s, mine, &of->factor[k]);
        if (why) return why;
        makers |= mine;
    }
    for (uint32_t k = 0; k < n; k++) {
        const rp__fuse_node *fn = &f->nodes[members[k]];
        const rp__axis_map *m = &s->node_map[k];
        if (makers >> k & 1u) continue;
        if (fn->kind != RP__FUSE_PRODUCT) {
            if (fn->opaque || fn->n_windows > 0 || fn->inner != 0 || fn->combines) return "not-of-elements";
            for (unsigned a = 0; a < m->begin[m->ndim]; a++) {
                if (s->is_inner[m->axis[a]]) return "iteration-spaces-differ";
            }
            continue;
        }
        for (unsigned d = 0; d < m->ndim && fn->n_windows > 0; d++) {
            if (m->begin[d + 1] - m->begin[d] > 1) return "reshape-splits-dims";
        }
    }
    return NULL;
}

/* Does what member `reader` makes stay once a row, through all members that use it? Then nobody but the thread that stores
   for the row computes with what it read. */
static bool stays_in_row(const rp__fusion *f, const uint32_t *members, uint32_t n, const rp__group_space *s,
                         uint32_t reader) {
    const rp_ir *ir = f->ir;
    uint64_t reached = UINT64_C(1) << reader; /* MAX_MEMBERS bits */
    for (uint32_t j = reader; j < n; j++) {
        const rp__ir_node *node = &ir->nodes[f->nodes[members[j]].node];
        for (uint32_t k = 0; k < node->n_in && !(reached >> j & 1u); k++) {
            uint32_t from = node->in[k] == RP__IR_NONE ? RP__IR_NONE : ir->values[rp__ir_root(ir, node->in[k])].node;
            for (uint32_t i = reader; i < j && from != RP__IR_NONE; i++) {
                if ((reached >> i & 1u) && members[i] == f->node_of[from]) reached |= UINT64_C(1) << j;
            }
        }
        if (!(reached >> j & 1u)) continue;
        const rp__axis_map *map = &s->node_map[j];
        for (unsigned a = 0; a < map->begin[map->ndim]; a++) {
            if (s->is_inner[map->axis[a]]) return false;
        }
    }
    return true;
}

/* A group that writes memory in place and reads it as well: only where every element is read before it is written, by the same
   element's computation; and no other writer of it. */
static bool memory_is_safe(const rp__fusion *f, const uint32_t *members, uint32_t n, const rp__group_space *s) {
    const rp_ir *ir = f->ir;
    for (uint32_t i = 0; i < n; i++) {
        if (f->nodes[members[i]].kind != RP__FUSE_COPY) continue;
        const rp__ir_node *assign = &ir->nodes[f->nodes[members[i]].node];
        const rp__ir_value_info *target = &ir->values[assign->in[0]];
        const rp__axis_map *to = &s->node_map[i];
        for (uint32_t j = 0; j < n; j++) {
            const rp__ir_node *reader = &ir->nodes[f->nodes[members[j]].node];
            for (uint32_t k = 0; k < reader->n_in; k++) {
                if (reader->in[k] == RP__IR_NONE || (j == i && k == 0)) continue;
                const rp__ir_value_info *from = &ir->values[reader->in[k]];
                if (from->storage != target->storage) continue;
                if (reader->kind == RP__IR_ASSIGN && k == 0) return false;
                const rp__axis_map *map = rp__group_map(s, reader->in[k]);
                if (!map || from->offset != target->offset || map->ndim != to->ndim ||
                    memcmp(map->begin, to->begin, map->ndim + 1u) != 0 ||
                    memcmp(map->axis, to->axis, map->begin[map->ndim]) != 0 ||
                    !rp__meta_same_size(&from->meta, &target->meta) ||
                    memcmp(from->stride, target->stride, map->ndim * sizeof from->stride[0]) != 0) {
                    return false;
                }
                if (s->n_inner > 0 && !stays_in_row(f, members, n, s, j)) return false;
            }
        }
    }
    return true;
}

/* Is v, which has a map, another value at each place of a row? Not where it is expanded along it, or made by members that read nothing
   but such. */
static bool varies_along_row(const rp__fusion *f, const uint32_t *members, uint32_t n, const rp__group_space *s,
                             uint64_t varying, rp__ir_value v, const rp__axis_map *map) {
    bool along = false;
    for (unsigned d = 0; d < map->ndim; d++) {
        for (unsigned a = map->begin[d]; a < map->begin[d + 1]; a++)
            along = along || (s->is_inner[map->axis[a]] && !rp__dim_same_word(f->ir->values[v].stride[d], 0));
    }
    const uint32_t from = f->ir->values[rp__ir_root(f->ir, v)].node;
    for (uint32_t j = 0; j < n && along && from != RP__IR_NONE; j++)
        if (members[j] == f->node_of[from]) return varying >> j & 1u;
    return along;
}

/* Nodes of the DAG that are computed once a row, at most: those of members that no inner axis walks or that read nothing which varies along
   a row, and of others what follows from their own reductions, or from such an operand: all but what varies and the result. A
   reduction of single elements has rows without an inner axis, and then every value is a row's. So it is in the launch behind sums over the
   rows, whose rows are lanes. */
static uint32_t row_nodes(const rp__fusion *f, const uint32_t *members, uint32_t n, const rp__group_space *s) {
    uint32_t total = 0, behind = 0;
    uint64_t varying = 0; /* MAX_MEMBERS bits */
    bool rows_of_one = false;
    for (uint32_t k = 0; k < n; k++) rows_of_one = rows_of_one || f->nodes[members[k]].combines;
    if (s->n_inner == 0 && !rows_of_one) return 0;
    for (uint32_t k = 0; k < n; k++) {
        const rp__axis_map *m = &s->node_map[k];
        const rp__fuse_node *fn = &f->nodes[members[k]];
        const rp__ir_node *node = &f->ir->nodes[fn->node];
        const rp__dag_extent *e = &fn->extent;
        const uint64_t bit = UINT64_C(1) << k;
        uint32_t vary = 0, still = 0;
        if ((s->columns | s->behind) & bit) behind += e->nodes;
        if (s->behind & bit) continue;
        bool walked = false;
        for (unsigned d = 0; d < m->ndim; d++) {
            for (unsigned a = m->begin[d]; a < m->begin[d + 1]; a++) {
                if (!s->is_inner[m->axis[a]]) continue;
                walked = true;
                if (fn->moves >> d & 1u) vary = 1;
            }
        }
        for (uint32_t i = 0; i < node->n_in && walked; i++) {
            const rp__axis_map *map = node->in[i] == RP__IR_NONE ? NULL : rp__group_map(s, node->in[i]);
            if (!map) continue; /* read at computed places: as what they are computed from, and as it moves */
            if (varies_along_row(f, members, n, s, varying, node->in[i], map))
                vary++;
            else
                still++;
        }
        if (walked && vary == 0 && fn->memory_operands) still++;
        if (walked && (vary > 0 || still == 0)) varying |= bit;
        uint32_t rows = walked ? e->row : e->nodes;
        if (walked && still > 0) rows = vary == 0 ? e->nodes : e->nodes > vary + 1 ? e->nodes - vary - 1 : 0;
        total += rows > e->row ? rows : e->row;
    }
    return total > behind ? total : behind;
}

/* Do the nodes hold more than a kernel takes, wherever they are walked? Where widths are mixed, each may be aligned to the wider. */
static bool holds_too_much(const rp__fusion *f, const uint32_t *members, uint32_t n) {
    uint32_t nodes = 0, windows = 0, scalars = 0, draws = 0, sums[2] = {0}, scans[2] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const rp__fuse_node *fn = &f->nodes[members[i]];
        nodes += fn->extent.nodes;
        windows += fn->n_windows;
        scalars += fn->n_scalars;
        draws += fn->n_draws;
        for (unsigned wide = 0; wide < 2; wide++) {
            sums[wide] += fn->extent.sums[wide];
            scans[wide] += fn->extent.scans[wide];
        }
    }
    return nodes > MAX_DAG_NODES || windows > RP__DAG_WINDOWS || scalars > MAX_SCALARS || draws > MAX_DRAWS_A_KERNEL ||
           8 * sums[1] + (sums[1] ? 8 : 4) * sums[0] > RP__LOOP_SUM_BYTES ||
           8 * scans[1] + (scans[1] ? 8 : 4) * scans[0] > RP__LOOP_SCAN_BYTES;
}

/* NULL and their space, or why the nodes cannot be one kernel. "": out of memory. */
static const char *legal(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__group_space *space) {
    const rp_ir *ir = f->ir;
    uint32_t pointers = 0;
    if (n > MAX_MEMBERS || holds_too_much(f, members, n)) return "kernel-too-large";
    for (uint32_t i = 0; i < n; i++) {
        const rp__fuse_node *fn = &f->nodes[members[i]];
        const rp__ir_node *node = &ir->nodes[fn->node];
        for (uint32_t k = 0; k < node->n_in; k++) {
            if (node->in[k] == RP__IR_NONE) continue;
            uint32_t producer = ir->values[rp__ir_root(ir, node->in[k])].node;
            bool inside = false;
            for (uint32_t j = 0; j < n && producer != RP__IR_NONE && !inside; j++) {
                inside = f->node_of[producer] == members[j];
            }
            pointers += !inside;
        }
        for (uint32_t k = 0; k < node->n_out; k++) {
            if (!rp__fuse_stored(f, members, n, node->out[k])) continue;
            pointers++;
        }
        if (fn->opaque) {
            for (uint32_t k = 0; k < node->n_out; k++) {
                for (uint32_t r = 0; r < f->n_readers[node->out[k]]; r++) {
                    for (uint32_t j = 0; j < n; j++) {
                        if (f->readers[node->out[k]][r] == members[j]) return "scattered-result";
                    }
                }
            }
        }
    }
    if (pointers > MAX_POINTERS) return "too-many-pointers";
    const char *why = rp__group_space_make(f, members, n, space);
    if (why) return why;
    why = joins_product(f, members, n, space);
    if (!why && n > 1 && row_nodes(f, members, n, space) > MAX_ROW_NODES) why = "kernel-too-large";
    if (!why && !memory_is_safe(f, members, n, space)) why = "written-memory";
    if (why) rp__group_space_free(space);
    return why;
}

/* The space of a group; NULL: it has none, or there is no memory. */
static const rp__group_space *space_of(rp__fuse_group *g, const rp__fusion *f) {
    if (g->space) return g->space;
    rp__group_space *s = rp__alloc(sizeof *s);
    if (!s || rp__group_space_make(f, g->members, g->n_members, s) != NULL) {
        rp__free(s);
        return NULL;
    }
    return g->space = s;
}

static void drop_space(rp__fuse_group *g) {
    if (g->space) rp__group_space_free(g->space);
    rp__free(g->space);
    g->space = NULL;
}

static rp_status note_unfused(rp__fusion *f, uint32_t a, uint32_t b, const char *reason) {
    if (!RP__GROW(&f->unfused, &f->unfused_capacity, f->n_unfused + 1u)) return RP__OOM("fusion");
    f->unfused[f->n_unfused++] = (rp__unfused_edge){a, b, reason};
    return RP_OK;
}

/* The members of both in program order; NULL: out of memory. */
static uint32_t *join(rp__fusion *f, const rp__fuse_group *x, const rp__fuse_group *y) {
    uint32_t n = 0, *members = RP__NEW(&f->arena, uint32_t, x->n_members + y->n_members);
    for (uint32_t i = 0, j = 0; members && (i < x->n_members || j < y->n_members);) {
        bool left = j == y->n_members || (i < x->n_members && x->members[i] < y->members[j]);
        members[n++] = left ? x->members[i++] : y->members[j++];
    }
    return members;
}

void rp__fuse_set_members(rp__fuse_group *g, uint32_t *members, uint32_t n) {
    drop_space(g);
    g->members = members;
    g->n_members = n;
    g->version++;
}

void rp__fuse_take(rp__fusion *f, uint32_t a, uint32_t b, uint32_t *members, uint32_t n) {
    rp__fuse_set_members(&f->groups[a], members, n);
    rp__fuse_set_members(&f->groups[b], NULL, 0);
    f->groups[b].dead = true;
    for (uint32_t k = 0; k < n; k++) f->nodes[members[k]].group = a;
}

/* A row belongs to one block of threads, whose threads lie along the row. On a GPU that is slow where few rows are long, and
   where memory runs across rows, once elements are stored: reductions alone have kernels for both, and blocks have short rows side by
   side in registers. */
enum { FEW_ROWS = 64, HELD_ROW = 1024, LONG_ROW = 8192, MANY_ELEMENTS = 1 << 18 };

unsigned rp__fuse_size_class(int64_t size) {
    return (size >= FEW_ROWS) + (size > HELD_ROW) + (size > LONG_ROW) + (size > MANY_ELEMENTS);
}

static bool runs_slowly(const rp__fusion *f, const uint32_t *members, uint32_t n, const rp__group_space *s) {
    const rp_ir *ir = f->ir;
    if (!f->on_gpu || !s) return false;
    int64_t rows = 1, row = 1;
    bool stores = false, across = false;
    for (unsigned a = 0; a < s->n_axes; a++) *(s->is_inner[a] ? &row : &rows) *= s->size[a];
    for (uint32_t k = 0; k < n && s->n_inner > 0; k++) {
        const rp__ir_node *node = &ir->nodes[f->nodes[members[k]].node];
        for (uint32_t r = 0; r < node->n_out; r++) {
            const rp__axis_map *map = rp__group_map(s, node->out[r]);
            if (!map || !rp__fuse_stored(f, members, n, node->out[r])) continue;
            unsigned end = map->begin[map->ndim];
            bool elements = false;
            for (unsigned a = 0; a < end; a++) elements = elements || s->is_inner[map->axis[a]];
            stores = stores || elements;
            across = across || (elements && !s->is_inner[map->axis[end - 1]]);
        }
    }
    return stores && ((rows < FEW_ROWS && row > LONG_ROW) || (across && row > HELD_ROW && rows * row > MANY_ELEMENTS));
}

/* Of two nodes that are not both loops or products. */
static const char *why_apart(const rp__fusion *f, const rp__fuse_node *a, const rp__fuse_node *b) {
    if (a->kind == RP__FUSE_NOTHING) return "joined-in-memory";
    if (a->kind == RP__FUSE_REGION || b->kind == RP__FUSE_REGION) return "region";
    const rp__fuse_node *both[2] = {a, b};
    for (unsigned k = 0; k < 2; k++) {
        const rp__ir_node *n = &f->ir->nodes[both[k]->node];
        if (both[k]->kind == RP__FUSE_LIBRARY && n->kind == RP__IR_OP && n->op->lowering == RP__PRODUCT)
            return "product-served-elsewhere";
    }
    return "library-op";
}

/* Would a product's kernel store large results in two orders of dims on a GPU? One of them element by element, each a line of memory; from so many
   elements on another kernel, which turns tiles, takes less. */
static bool stores_two_ways(const rp__fusion *f, const uint32_t *members, uint32_t n) {
    const rp_ir *ir = f->ir;
    bool product = false, two = false, any = false;
    rp__dim_order first = 0;
    unsigned ndim = 0;
    for (uint32_t k = 0; k < n && f->on_gpu; k++) {
        const rp__fuse_node *fn = &f->nodes[members[k]];
        const rp__ir_node *node = &ir->nodes[fn->node];
        product = product || fn->kind == RP__FUSE_PRODUCT;
        for (uint32_t r = 0; r < node->n_out; r++) {
            const rp__ir_value_info *v = &ir->values[node->out[r]];
            int64_t elements = 1;
            for (unsigned d = 0; d < v->meta.ndim; d++) elements *= rp__dim_hint(v->meta.size[d]);
            if (elements <= MANY_ELEMENTS || !rp__fuse_stored(f, members, n, node->out[r])) continue;
            const rp__dim_order order = rp__strides_order(v->meta.size, v->stride, v->meta.ndim);
            two = two || (any && ndim == v->meta.ndim && first != order);
            if (!any) any = true, first = order, ndim = v->meta.ndim;
        }
    }
    return product && two;
}

/* Pairs of groups that were found apart: the answer stands until one of the two changes. */
typedef struct apart {
    uint32_t a, b, version_a, version_b;
    const char *why;
} apart;
enum { APART = 1024 };

typedef struct merger {
    rp__fusion *f;
    rp__fuse_paths paths;
    apart apart[APART];
} merger;

static apart *apart_at(merger *m, uint32_t a, uint32_t b) { return &m->apart[(a * 31u + b) % APART]; }

static const char *known_apart(merger *m, uint32_t a, uint32_t b) {
    const apart *k = apart_at(m, a, b);
    bool same = k->why && k->a == a && k->b == b && k->version_a == m->f->groups[a].version &&
                k->version_b == m->f->groups[b].version;
    return same ? k->why : NULL;
}

/* The two become one, or why they cannot. "": out of memory. Merges elsewhere take no way around away, and what must be stored
   depends on the two alone, so a reason stays one. */
static const char *merge(merger *m, uint32_t a, uint32_t b) {
    rp__fusion *f = m->f;
    rp__fuse_group *x = &f->groups[a], *y = &f->groups[b];
    if (rp__fuse_path_around(&m->paths, a, b)) return "would-make-a-cycle";
    if (x->n_members + y->n_members > MAX_MEMBERS) return "kernel-too-large";
    uint32_t n = x->n_members + y->n_members, *members = join(f, x, y);
    rp__group_space *space = rp__alloc(sizeof *space);
    if (!members || !space) {
        rp__free(space);
        return "";
    }
    const char *why = legal(f, members, n, space);
    if (!why && runs_slowly(f, members, n, space) && !runs_slowly(f, x->members, x->n_members, space_of(x, f)) &&
        !runs_slowly(f, y->members, y->n_members, space_of(y, f))) {
        rp__group_space_free(space);
        why = "slow-rows";
    }
    if (!why && stores_two_ways(f, members, n)) {
        rp__group_space_free(space);
        why = "stored-two-ways";
    }
    if (why) {
        rp__free(space);
        return why;
    }
    rp__fuse_paths_merge(&m->paths, a, b);
    rp__fuse_take(f, a, b, members, n);
    x->space = space;
    return NULL;
}

static rp_status try_merge(merger *m, const edge *e) {
    rp__fusion *f = m->f;
    uint32_t a = f->nodes[e->a].group, b = f->nodes[e->b].group;
    if (a == b) return RP_OK;
    const char *why = NULL;
    if (f->nodes[e->b].kind == RP__FUSE_NOTHING) return RP_OK; /* what a cat joins: stored where it has it */
    if (!merges(&f->nodes[e->a]) || !merges(&f->nodes[e->b])) {
        why = why_apart(f, &f->nodes[e->a], &f->nodes[e->b]);
    } else {
        why = known_apart(m, a, b);
        if (!why && (why = merge(m, a, b))) {
            if (!*why) return RP__OOM("fusion");
            *apart_at(m, a, b) = (apart){a, b, f->groups[a].version, f->groups[b].version, why};
        }
    }
    if (!why) return RP_OK;
    if (rp__log_on(RP__LOG_FUSION)) {
        rp__log(RP__LOG_FUSION, "node %u and node %u stay apart: %s", f->nodes[e->a].node, f->nodes[e->b].node, why);
    }
    return e->direct ? note_unfused(f, e->a, e->b, why) : RP_OK;
}

/* Loops that compute, with others before them or not, from a product. */
static void find_behind(const rp__fusion *f, bool *behind) {
    for (uint32_t k = 0; k < f->n_nodes; k++) { /* in program order */
        const rp__ir_node *n = &f->ir->nodes[f->nodes[k].node];
        behind[k] = false;
        for (uint32_t i = 0; i < n->n_in && is_loop(&f->nodes[k]); i++) {
            const rp__ir_value v = n->in[i] == RP__IR_NONE ? RP__IR_NONE : rp__ir_root(f->ir, n->in[i]);
            const uint32_t node = v == RP__IR_NONE ? RP__IR_NONE : f->ir->values[v].node,
                           from = node == RP__IR_NONE ? RP__IR_NONE : f->node_of[node];
            behind[k] = behind[k] || (from != RP__IR_NONE && (behind[from] || f->nodes[from].kind == RP__FUSE_PRODUCT));
        }
    }
}

/* Producers with consumers, and readers of one value. What merging saves: a consumer's load, the store too if nobody else reads
   the value, and one of two loads of a value that both read; summed over all values between the two. What follows a product
   and makes a factor of another joins the latter last: it would be computed again for each tile there. So a loss and its gradient,
   which share the logits, find each other before a small sum behind the loss ties it to something that the gradient waits for.
   Of the readers of a value only neighbours are paired: one that is read a thousand times makes no million pairs. */

static rp_status collect_edges(rp__fusion *f, edge **edges, size_t *n_edges) {
    const rp_ir *ir = f->ir;
    size_t capacity = 0;
    bool *behind = RP__NEW(&f->arena, bool, f->n_nodes + 1u);
    *edges = NULL;
    *n_edges = 0;
    if (!behind) return RP__OOM("fusion");
    find_behind(f, behind);
    for (rp__ir_value v = 0; v < ir->n_values; v++) {
        if (f->n_readers[v] == 0) continue;
        uint32_t producer = ir->values[v].node, last_loop = RP__IR_NONE;
        uint32_t p = producer == RP__IR_NONE ? RP__IR_NONE : f->node_of[producer];
        int64_t bytes = rp__meta_bytes_hint(&ir->values[v].meta);
        bool alone = f->n_readers[v] == 1 && !f->result_storage[ir->values[v].storage];
        for (uint32_t k = 0; k < f->n_readers[v]; k++) {
            uint32_t reader = f->readers[v][k];
            if (!RP__GROW(edges, &capacity, *n_edges + 2)) return RP__OOM("fusion");
            if (p != RP__IR_NONE)
                (*edges)[(*n_edges)++] = (edge){p, reader, alone ? 2 * bytes : bytes, true,
                                                behind[p] && f->nodes[reader].kind == RP__FUSE_PRODUCT};
            if (!is_loop(&f->nodes[reader])) continue;
            if (last_loop != RP__IR_NONE && last_loop != reader) {
                bool before = last_loop < reader;
                (*edges)[(*n_edges)++] =
                    (edge){before ? last_loop : reader, before ? reader : last_loop, bytes, false, false};
            }
            last_loop = reader;
        }
    }
    if (*n_edges < 2) return RP_OK;
    qsort(*edges, *n_edges, sizeof **edges, by_pair);
    size_t kept = 0;
    for (size_t k = 1; k < *n_edges; k++) { /* one edge a pair */
        edge *last = &(*edges)[kept], *next = &(*edges)[k];
        if (by_pair(last, next) != 0) {
            (*edges)[++kept] = *next;
            continue;
        }
        last->gain += next->gain;
        last->direct = last->direct || next->direct;
    }
    *n_edges = kept + 1;
    qsort(*edges, *n_edges, sizeof **edges, by_gain);
    return RP_OK;
}

/* A node that computes one number, by itself: a step counter. One launch less where a kernel makes one row anyway: the number is
   computed and stored once a row. */
static bool is_one_number(const rp__fusion *f, const uint32_t *members, uint32_t n) {
    bool one = true;
    for (uint32_t k = 0; k < n; k++) {
        const rp__fuse_node *fn = &f->nodes[members[k]];
        one = one && is_loop(fn) && !fn->opaque && fn->memory_operands == 0;
        for (unsigned d = 0; d < fn->ndim; d++) one = one && fn->size[d] == 1;
    }
    return one;
}

static bool is_one_row(const rp__group_space *s) { return s && s->n_inner == s->n_axes; } /* also nothing but numbers */

/* Not each with each: a chain of thousands of numbers is a hundred groups, of which none can join another. */
static rp_status merge_numbers(merger *m) {
    enum { TRIED = 64, EDGES = 1000 };
    rp__fusion *f = m->f;
    for (uint32_t a = 0; a < f->n_groups; a++) {
        rp__fuse_group *x = &f->groups[a];
        if (x->dead || !is_one_number(f, x->members, x->n_members)) continue;
        unsigned tried = 0;
        for (uint32_t b = 0; b < f->n_groups && tried < TRIED; b++) {
            rp__fuse_group *y = &f->groups[b];
            if (a == b || y->dead || x->n_members + y->n_members > MAX_MEMBERS || !is_loop(&f->nodes[y->members[0]]) ||
                !is_one_row(space_of(y, f)))
                continue;
            tried++;
            if (rp__fuse_path_unless(&m->paths, a, b, EDGES)) continue;
            uint32_t *members = join(f, x, y), n = x->n_members + y->n_members;
            if (!members) return RP__OOM("fusion");
            rp__group_space space;
            const char *why = legal(f, members, n, &space);
            if (why && !*why) return RP__OOM("fusion");
            if (why) continue;
            bool one = is_one_row(&space);
            rp__group_space_free(&space);
            if (!one) continue;
            rp__fuse_paths_merge(&m->paths, a, b);
            rp__fuse_take(f, a, b, members, n);
            break;
        }
    }
    return RP_OK;
}

static bool copies(const rp__ir_node *n) { return rp__ir_is_op(n, RP__OP(clone)) || rp__ir_is_op(n, RP__OP(to_dtype)); }

/* Why node `copy`, in a kernel of nothing but copies, is needed for a cat; NULL: it is no such node, or the edge from the loop that
   makes what it copies has its reason. */
static const char *why_copied(const rp__fusion *f, uint32_t copy) {
    const rp_ir *ir = f->ir;
    const rp__ir_node *n = &ir->nodes[f->nodes[copy].node];
    const rp__fuse_group *g = &f->groups[f->nodes[copy].group];
    for (uint32_t m = 0; m < g->n_members; m++) {
        if (!copies(&ir->nodes[f->nodes[g->members[m]].node])) return NULL;
    }
    const rp__ir_value root = rp__ir_root(ir, n->in[0]);
    const rp__ir_value_info *made = &ir->values[root];
    if (made->node == RP__IR_NONE || f->node_of[made->node] == RP__IR_NONE) return "cat-of-outside";
    const rp__fuse_node *maker = &f->nodes[f->node_of[made->node]];
    if (maker->kind == RP__FUSE_REGION) return "cat-of-outside";
    if (maker->kind != RP__FUSE_LIBRARY && maker->kind != RP__FUSE_NOTHING) return NULL;
    for (uint32_t k = 0; k < f->n_readers[root]; k++) {
        const rp__ir_node *other = &ir->nodes[f->nodes[f->readers[root][k]].node];
        if (rp__cat_is_joined(ir, other) && ir->values[other->out[0]].storage == made->storage) return "cat-of-part";
    }
    return f->result_storage[made->storage] ? "cat-of-result" : "cat-of-library";
}

static rp_status note_copies(rp__fusion *f) {
    for (uint32_t k = 0; k < f->n_nodes; k++) {
        const rp__ir_node *n = &f->ir->nodes[f->nodes[k].node];
        if (!rp__cat_is_joined(f->ir, n)) continue;
        for (uint32_t i = 0; i < n->n_in; i++) {
            uint32_t maker = f->ir->values[n->in[i]].node;
            uint32_t part = maker == RP__IR_NONE ? RP__IR_NONE : f->node_of[maker];
            const char *why = part == RP__IR_NONE ? NULL : why_copied(f, part);
            if (why) RP_TRY(note_unfused(f, part, k, why));
        }
    }
    return RP_OK;
}

static rp_status merge_all(merger *m) {
    rp__fusion *f = m->f;
    edge *edges = NULL;
    size_t n_edges = 0;
    rp_status status = collect_edges(f, &edges, &n_edges);
    /* A later merge can open the way for an edge that failed for a store that has gone since: a second round. */
    for (unsigned round = 0; round < 2 && status == RP_OK; round++) {
        f->n_unfused = 0;
        for (size_t k = 0; k < n_edges && status == RP_OK; k++) status = try_merge(m, &edges[k]);
    }
    if (status == RP_OK) status = merge_numbers(m);
    if (status == RP_OK) status = note_copies(f);
    rp__free(edges);
    return status;
}

bool rp__fuse_runs_slowly(const rp__fusion *f, const rp__fuse_group *g) {
    return runs_slowly(f, g->members, g->n_members, g->space);
}

bool rp__fuse_holds(const rp__fusion *f, rp__fuse_group *g) {
    if (g->n_members == 1) return true;
    rp__group_space *s = rp__alloc(sizeof *s);
    if (!s || legal(f, g->members, g->n_members, s) != NULL) {
        rp__free(s);
        return false;
    }
    g->space = s;
    return true;
}

rp_status rp__fuse_begin(const rp_ir *ir, rp__device *d, const rp__dag_extent *extents, rp__fusion *out) {
    memset(out, 0, sizeof *out);
    out->ir = ir;
    for (size_t v = 0; v < ir->n_values; v++) {
        out->on_gpu = out->on_gpu || ir->values[v].meta.device.type != RP_DEVICE_CPU;
    }
    rp_status status = make_nodes(out, d, extents);
    if (status == RP_OK) status = make_order(out);
    if (status == RP_OK) {
        out->groups = RP__NEW(&out->arena, rp__fuse_group, out->n_nodes + 1u);
        if (!out->groups) status = RP__OOM("fusion");
    }
    for (uint32_t k = 0; k < out->n_nodes && status == RP_OK; k++) {
        out->nodes[k].group = k;
        out->groups[k].members = RP__NEW(&out->arena, uint32_t, 1);
        if (!out->groups[k].members) {
            status = RP__OOM("fusion");
            break;
        }
        out->groups[k].members[0] = k;
        out->groups[k].n_members = 1;
        out->n_groups++;
    }
    if (status != RP_OK) rp__fusion_free(out);
    return status;
}

rp_status rp__fuse(const rp_ir *ir, rp__device *d, bool none, rp__fusion *out) {
    RP_TRY(rp__fuse_begin(ir, none ? NULL : d, NULL, out));
    if (none) return RP_OK;
    merger *m = rp__calloc(1, sizeof *m);
    rp_status status = m ? rp__fuse_paths_begin(&m->paths, out) : RP__OOM("fusion");
    if (m) m->f = out;
    if (status == RP_OK) status = merge_all(m);
    for (uint32_t g = 0; g < out->n_groups && status == RP_OK; g++) { /* what places and lowers it asks for it */
        rp__fuse_group *group = &out->groups[g];
        if (group->n_members > 1 && !space_of(group, out)) status = RP__OOM("fusion"); /* it was found to have one */
    }
    if (m) rp__fuse_paths_end(&m->paths);
    rp__free(m);
    if (status != RP_OK) rp__fusion_free(out);
    return status;
}

const rp__fuse_node *rp__fuse_product(const rp__fusion *f, const rp__fuse_group *g) {
    for (uint32_t k = 0; k < g->n_members; k++)
        if (f->nodes[g->members[k]].kind == RP__FUSE_PRODUCT) return &f->nodes[g->members[k]];
    return NULL;
}

uint32_t rp__fuse_named(const rp__fusion *f, const rp__fuse_group *g) {
    for (uint32_t k = 0; k < g->n_members; k++) {
        if (f->ir->nodes[f->nodes[g->members[k]].node].n_in > 0) return g->members[k];
    }
    return g->members[0];
}

void rp__fusion_free(rp__fusion *f) {
    for (uint32_t g = 0; g < f->n_groups; g++) drop_space(&f->groups[g]);
    rp__free(f->unfused);
    rp__arena_free(&f->arena);
    memset(f, 0, sizeof *f);
}
