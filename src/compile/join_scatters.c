/* Join: a sum of scatters into zeros that fill a tensor part by part becomes a cat of the parts.
   Requires  a functional graph with concrete sizes; no gradient is still to be taken.
   Keeps     every bit of every result: where one scatter has g the others have 0, so the sum has g + 0, which is g but for -0.0.
   The gradient of a tensor that was read by slices or index by index (split, chunk, unbind) is such a sum. A scatter reads its part
   at computed places, so the part must lie in memory and each element of the result asks all scatters; a cat's parts are stored
   where they belong by the kernels that make them (cats.c). */
#include <stdlib.h>
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"

enum { MAX_PARTS = 1024 };

typedef struct part {
    rp__ir_value value; /* what is scattered */
    int64_t start, length;
    bool index; /* by select_scatter: without the dim */
} part;

typedef struct sum {
    part *parts;
    uint32_t n_parts;
    unsigned dim;
} sum;

typedef struct joiner {
    const rp_ir *ir;
    rp__arena arena;
    sum **sums;        /* per node: what becomes a cat */
    bool *gone;        /* per node: its result is not needed any more */
    uint32_t *readers; /* per value; results count */
    bool *written;     /* per root value: a cat, which stands behind the scatters, might read something else there */
    part parts[MAX_PARTS];
    uint32_t n_parts;
    unsigned dim;
} joiner;

static bool is_sum(const joiner *j, const rp__ir_node *n) {
    if (!n || n->dead || !rp__ir_is_op(n, RP__OP(add)) || n->attrs[0].kind != RP_ATTR_SCALAR) return false;
    const rp__meta *out = &j->ir->values[n->out[0]].meta;
    for (uint32_t k = 0; k < 2; k++) {
        const rp__meta *in = &j->ir->values[n->in[k]].meta;
        if (in->dtype != out->dtype || !rp__meta_same_size(in, out)) return false;
    }
    return rp__scalar_f64(n->attrs[0].v.scalar) == 1 && out->dtype != RP_BOOL;
}

/* The node that fills v with zeros; NULL: it is anything else. */
static const rp__ir_node *zeros(const joiner *j, rp__ir_value v) {
    const rp__ir_value root = rp__ir_root(j->ir, v);
    const rp__ir_node *n = j->written[root] ? NULL : rp__ir_producer(j->ir, root);
    bool full = n && rp__ir_is_op(n, RP__OP(full)) && n->attrs[1].kind == RP_ATTR_SCALAR;
    return full && rp__scalar_f64(n->attrs[1].v.scalar) == 0 ? n : NULL;
}

/* A part that no loop makes costs a cat a launch of its own, which on a CPU is less than a scatter that every element asks. */
static bool stores_parts(const rp__ir_node *maker, const rp__meta *whole) {
    if (whole->device.type == RP_DEVICE_CPU) return true;
    return maker && maker->kind == RP__IR_OP &&
           (maker->op->lowering == RP__POINTWISE || maker->op->lowering == RP__ROWS ||
            maker->op->lowering == RP__INDEXED);
}

/* Is it a scatter into zeros? Then it becomes the next part. */
static bool take_scatter(joiner *j, const rp__ir_node *n) {
    const rp_ir *ir = j->ir;
    bool index = rp__ir_is_op(n, RP__OP(select_scatter));
    if (!index && !rp__ir_is_op(n, RP__OP(slice_scatter))) return false;
    const rp__ir_value_info *out = &ir->values[n->out[0]], *from = &ir->values[n->in[1]];
    const rp__ir_node *maker = rp__ir_producer(ir, rp__ir_root(ir, n->in[1]));
    if (j->n_parts == MAX_PARTS || !zeros(j, n->in[0]) || j->written[rp__ir_root(ir, n->in[1])] ||
        from->meta.dtype != out->meta.dtype || !stores_parts(maker, &out->meta) || (!index && n->attrs[3].v.i != 1)) {
        return false;
    }
    int64_t dim = n->attrs[0].v.i;
    if (dim < 0) dim += out->meta.ndim;
    if (j->n_parts > 0 && (unsigned)dim != j->dim) return false;
    j->dim = (unsigned)dim;
    rp__meta meta;
    rp__view view; /* of the row-major result: where the part begins */
    if (rp__ir_infer_view(ir, index ? RP__OP(select) : RP__OP(slice), n->out[0], n->attrs, n->n_attrs, n->site, &meta,
                          &view) != RP_OK) {
        (void)rp_error_take(); /* the scatter's own rule has accepted it */
        return false;
    }
    j->parts[j->n_parts++] = (part){.value = n->in[1],
                                    .start = out->stride[dim] ? view.offset / out->stride[dim] : 0,
                                    .length = index ? 1 : from->meta.size[dim],
                                    .index = index};
    return true;
}

/* Depth is bounded by the parts: a sum that is not one of scatters ends the search. */
static bool collect(joiner *j, rp__ir_value v, bool root) {
    const rp__ir_node *n = rp__ir_producer(j->ir, v);
    if (!n || n->kind != RP__IR_OP || (!root && j->readers[v] != 1)) return false;
    if (take_scatter(j, n)) return true;
    /* the chain that a tape makes leans to the left */
    while (is_sum(j, n)) {
        const rp__ir_node *right = rp__ir_producer(j->ir, n->in[1]), *left = rp__ir_producer(j->ir, n->in[0]);
        if (!right || j->readers[n->in[1]] != 1 || !left || j->readers[n->in[0]] != 1) return false;
        if (!(is_sum(j, right) ? collect(j, n->in[1], false) : take_scatter(j, right))) return false;
        if (take_scatter(j, left)) return true;
        n = left;
    }
    return false;
}

static int by_start(const void *x, const void *y) {
    const part *p = x, *q = y;
    return p->start < q->start ? -1 : p->start > q->start;
}

static bool fills(joiner *j, const rp__meta *m) {
    int64_t at = 0;
    qsort(j->parts, j->n_parts, sizeof *j->parts, by_start);
    for (uint32_t k = 0; k < j->n_parts; k++) {
        if (j->parts[k].start != at || j->parts[k].length == 0) return false;
        at += j->parts[k].length;
    }
    return j->n_parts > 1 && at == m->size[j->dim];
}

/* Nobody reads v any more, nor what only v was made from. */
static void forget(joiner *j, rp__ir_value v) {
    if (v == RP__IR_NONE || --j->readers[v] > 0) return;
    uint32_t node = j->ir->values[v].node;
    if (node == RP__IR_NONE) return;
    const rp__ir_node *n = &j->ir->nodes[node];
    bool scatter = rp__ir_is_op(n, RP__OP(slice_scatter)) || rp__ir_is_op(n, RP__OP(select_scatter));
    if (!scatter && !is_sum(j, n) && !rp__ir_is_op(n, RP__OP(full)) && !rp__ir_is_view(n)) return;
    j->gone[node] = true;
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (!scatter || k == 0) forget(j, n->in[k]); /* the cat reads what is scattered */
    }
}

static rp_status emit_cat(rp__rewrite *w, const sum *of, const rp__ir_node *n) {
    rp__ir_block *block = &w->dst->body;
    const rp__ir_value_info *out = &w->src->values[n->out[0]];
    rp__ir_value *in = rp__alloc(of->n_parts * sizeof *in);
    if (!in) return RP__OOM("operands of a cat");
    const rp_attr zero[2] = {{.kind = RP_ATTR_SCALAR, .v.scalar = rp_i64(0)},
                             {.kind = RP_ATTR_SCALAR, .v.scalar = rp_i64(1)}},
                  dim = {.kind = RP_ATTR_INT, .v.i = of->dim};
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < of->n_parts && status == RP_OK; k++) {
        rp__ir_value from = w->map[of->parts[k].value];
        if (of->parts[k].index)
            status = rp__ir_emit_view(w->dst, block, RP__OP(unsqueeze), from, &dim, 1, n->site, &from);
        if (status != RP_OK) break;
        rp__meta meta = w->dst->values[from].meta;
        status = rp__ir_emit(w->dst, block, RP__OP(add_scalar), &from, 1, zero, 2, &meta, 1, n->site, &in[k]);
    }
    uint32_t node = RP__IR_NONE, list[RP__MAX_PARAMS + 1] = {0};
    for (unsigned p = 1; p <= RP__MAX_PARAMS; p++) list[p] = of->n_parts;
    if (status == RP_OK)
        node = rp__ir_add_node(w->dst, block, RP__IR_OP, RP__OP(cat), in, of->n_parts, list, &dim, 1, 1, n->site);
    rp__free(in);
    RP_TRY(status);
    rp__ir_value made = node == RP__IR_NONE ? RP__IR_NONE : rp__ir_set_out(w->dst, node, 0, &out->meta);
    if (made == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    w->dst->values[made].requires_grad = out->requires_grad;
    w->map[n->out[0]] = made;
    return RP_OK;
}

static void count(joiner *j) {
    const rp_ir *ir = j->ir;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in && !n->dead; i++) {
            if (n->in[i] != RP__IR_NONE) j->readers[n->in[i]]++;
        }
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        if (ir->body.results[k] != RP__IR_NONE) j->readers[ir->body.results[k]]++;
    }
}

static rp_status join(joiner *j, uint32_t node) {
    const rp__ir_node *n = &j->ir->nodes[node];
    j->n_parts = 0;
    if (j->gone[node] || !is_sum(j, n) || !collect(j, n->out[0], true) || !fills(j, &j->ir->values[n->out[0]].meta))
        return RP_OK;
    sum *made = RP__NEW(&j->arena, sum, 1);
    part *parts = RP__NEW(&j->arena, part, j->n_parts);
    if (!made || !parts) return RP__OOM("sums of a graph");
    memcpy(parts, j->parts, j->n_parts * sizeof *parts);
    *made = (sum){parts, j->n_parts, j->dim};
    j->sums[node] = made;
    for (uint32_t i = 0; i < 2; i++) forget(j, n->in[i]);
    return RP_OK;
}

static bool has_scatters(const rp_ir *ir) {
    uint32_t n_scatters = 0;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        n_scatters += rp__ir_is_op(n, RP__OP(slice_scatter)) || rp__ir_is_op(n, RP__OP(select_scatter));
    }
    return n_scatters > 1;
}

static rp_status join_all(joiner *j, bool *any) {
    const rp_ir *ir = j->ir;
    j->readers = RP__NEW(&j->arena, uint32_t, ir->n_values + 1);
    j->gone = RP__NEW(&j->arena, bool, ir->n_nodes + 1);
    j->sums = RP__NEW(&j->arena, sum *, ir->n_nodes + 1);
    j->written = RP__NEW(&j->arena, bool, ir->n_values + 1);
    if (!j->readers || !j->gone || !j->sums || !j->written) return RP__OOM("sums of a graph");
    count(j);
    rp__ir_mark_written(ir, false, j->written);
    for (size_t k = ir->body.n_nodes; k-- > 0;) { /* the last sum of a chain is met first */
        RP_TRY(join(j, ir->body.nodes[k]));
        *any = *any || j->sums[ir->body.nodes[k]];
    }
    return RP_OK;
}

static rp_status rewrite(const joiner *j, rp_ir **out) {
    const rp_ir *ir = j->ir;
    rp__rewrite w;
    rp_status status = rp__rewrite_begin(&w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++) {
        uint32_t node = ir->body.nodes[k];
        if (ir->nodes[node].dead || j->gone[node]) continue;
        status =
            j->sums[node] ? emit_cat(&w, j->sums[node], &ir->nodes[node]) : rp__rewrite_copy(&w, &w.dst->body, node);
    }
    if (status == RP_OK) status = rp__rewrite_results(&w, &ir->body, &w.dst->body);
    return rp__rewrite_end(&w, status, "join_scatters", out);
}

rp_status rp__join_scatters(rp_ir *ir, rp_ir **out) {
    *out = NULL;
    if (!has_scatters(ir)) {
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    joiner *j = rp__calloc(1, sizeof *j);
    if (!j) return RP__OOM("sums of a graph");
    j->ir = ir;
    bool any = false;
    rp_status status = join_all(j, &any);
    if (status == RP_OK && any) status = rewrite(j, out);
    if (status == RP_OK && !any) *out = rp__ir_retain(ir);
    rp__arena_free(&j->arena);
    rp__free(j);
    return status;
}
