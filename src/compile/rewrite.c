/* Graph to graph: the copying and emitting that all passes of floor 6 share. Owns no graph: the pass does. Must not know any
   op by name. */
#include "compile/rewrite.h"

#include <string.h>

#include "core/alloc.h"
#include "ops/view.h"

/* ---- asking */

bool rp__ir_is_outer(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_node *n = rp__ir_producer(ir, v);
    return !n || n->kind == RP__IR_CAPTURED;
}

rp__ir_value rp__ir_root(const rp_ir *ir, rp__ir_value v) {
    for (const rp__ir_node *n = rp__ir_producer(ir, v); rp__ir_is_view(n); n = rp__ir_producer(ir, v)) v = n->in[0];
    return v;
}

void rp__ir_mark_written(const rp_ir *ir, bool assigned, bool *roots) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead || (n->kind == RP__IR_ASSIGN && !assigned)) continue;
        for (uint32_t i = 0; i < n->n_in; i++)
            if (n->in[i] != RP__IR_NONE && rp__ir_writes(n, i)) roots[rp__ir_root(ir, n->in[i])] = true;
    }
}

bool rp__meta_same_size(const rp__meta *a, const rp__meta *b) {
    return a->ndim == b->ndim && memcmp(a->size, b->size, a->ndim * sizeof a->size[0]) == 0;
}

int64_t rp__meta_bytes_hint(const rp__meta *m) {
    int64_t n = (int64_t)rp__dtype_bytes(m->dtype);
    for (unsigned d = 0; d < m->ndim; d++) {
        if (!rp__mul_i64(n, rp__dim_hint(m->size[d]), &n)) return INT64_MAX / 4;
    }
    return n;
}

rp_attr rp__attr_of_ints(const int64_t *ints, size_t n) {
    rp_attr a;
    memset(&a, 0, sizeof a);
    a.kind = RP_ATTR_INTS;
    a.n = n;
    a.v.ints = ints;
    return a;
}

rp_attr rp__attr_of_dtype(rp_dtype dtype) {
    rp_attr a;
    memset(&a, 0, sizeof a);
    a.kind = RP_ATTR_DTYPE;
    a.v.dtype = dtype;
    return a;
}

rp_tensor *rp__ir_stand_in_for(const rp_ir *ir, rp__ir_value v, rp__ir_stand_in *out) {
    const rp__ir_value_info *info = &ir->values[v];
    memset(out, 0, sizeof *out);
    rp_tensor *t = &out->tensor;
    t->magic = RP__TENSOR_MAGIC;
    atomic_init(&t->refs, 1);
    t->dtype = (uint8_t)info->meta.dtype;
    t->ndim = info->meta.ndim;
    t->device = info->meta.device;
    t->storage = &out->storage;
    t->storage->device = info->meta.device;
    t->offset = info->offset;
    t->op = "";
    t->site = info->site;
    memcpy(t->size, info->meta.size, sizeof t->size);
    memcpy(t->stride, info->stride, sizeof t->stride);
    return t;
}

/* ---- emitting */

rp_status rp__ir_emit(rp_ir *ir, rp__ir_block *block, const rp__op *op, const rp__ir_value *in, uint32_t n_in,
                      const rp_attr *attrs, uint32_t n_attrs, const rp__meta *out_meta, uint32_t n_out,
                      const char *site, rp__ir_value *out) {
    uint32_t node = rp__ir_add_node(ir, block, RP__IR_OP, op, in, n_in, NULL, attrs, n_attrs, n_out, site);
    if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    for (uint32_t k = 0; k < n_out; k++) {
        out[k] = rp__ir_set_out(ir, node, k, &out_meta[k]);
        if (out[k] == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    }
    return RP_OK;
}

rp_status rp__ir_emit_row_major(rp_ir *ir, rp__ir_block *block, rp__ir_value in, const char *site, rp__ir_value *out) {
    const rp_attr format = {.kind = RP_ATTR_INT, .v.i = RP_CONTIGUOUS_FORMAT};
    rp__meta meta = ir->values[in].meta;
    const bool gradient = ir->values[in].requires_grad; /* before *out is written: it may be `in` */
    *out = in;
    if (rp__ir_value_contiguous(&ir->values[in])) return RP_OK;
    RP_TRY(rp__ir_emit(ir, block, RP__OP(clone), &in, 1, &format, 1, &meta, 1, site, out));
    ir->values[*out].requires_grad = gradient;
    return RP_OK;
}

rp_status rp__ir_view_map(const rp_ir *ir, const rp__ir_node *view, rp__ir_value whole, rp__view *out) {
    rp__ir_stand_in stand_in;
    rp_tensor *operand = rp__ir_stand_in_for(ir, whole, &stand_in);
    const rp__call call = {.op = view->op,
                           .site = view->site,
                           .in = &operand,
                           .n_in = 1,
                           .list_begin = {0, 1},
                           .attrs = view->attrs,
                           .n_attrs = view->n_attrs};
    return rp__call_view_map(&call, out);
}

rp_status rp__ir_infer_view(const rp_ir *ir, const rp__op *op, rp__ir_value in, const rp_attr *attrs, uint32_t n_attrs,
                            const char *site, rp__meta *meta, rp__view *view) {
    rp__ir_stand_in stand_in;
    rp_tensor *operand = rp__ir_stand_in_for(ir, in, &stand_in), *result = NULL;
    rp__call call = {.op = op,
                     .site = site,
                     .in = &operand,
                     .n_in = 1,
                     .attrs = attrs,
                     .n_attrs = n_attrs,
                     .out = &result,
                     .n_out = 1};
    for (unsigned p = 1; p <= RP__MAX_PARAMS; p++) call.list_begin[p] = 1;
    memset(view, 0, sizeof *view);
    memset(meta, 0, sizeof *meta);
    return rp__op_view(&call, meta, view);
}

rp_status rp__ir_emit_view(rp_ir *ir, rp__ir_block *block, const rp__op *op, rp__ir_value in, const rp_attr *attrs,
                           uint32_t n_attrs, const char *site, rp__ir_value *out) {
    rp__view view;
    rp__meta meta;
    RP_TRY(rp__ir_infer_view(ir, op, in, attrs, n_attrs, site, &meta, &view));
    RP_TRY(rp__ir_emit(ir, block, op, &in, 1, attrs, n_attrs, &meta, 1, site, out));
    rp__ir_value_info *info = &ir->values[*out];
    memcpy(info->stride, view.stride, sizeof info->stride);
    info->offset = view.offset;
    info->storage = ir->values[in].storage;
    info->requires_grad = ir->values[in].requires_grad;
    return RP_OK;
}

rp_status rp__ir_emit_assign(rp_ir *ir, rp__ir_block *block, rp__ir_value target, rp__ir_value value,
                             const char *site) {
    rp__ir_value in[2] = {target, value};
    uint32_t node = rp__ir_add_node(ir, block, RP__IR_ASSIGN, NULL, in, 2, NULL, NULL, 0, 0, site);
    return node == RP__IR_NONE ? RP_ERROR_OUT_OF_MEMORY : RP_OK;
}

/* ---- copying */

static void take_layout(rp__rewrite *w, rp__ir_value from, rp__ir_value to) {
    const rp__ir_value_info *info = &w->src->values[from];
    rp__ir_value_info *made = &w->dst->values[to];
    memcpy(made->stride, info->stride, sizeof info->stride);
    made->offset = info->offset;
    made->shared = info->shared;
    made->requires_grad = info->requires_grad;
    w->map[from] = to;
}

/* Arguments that share memory go on to. `known`: storage in src -> storage in dst + 1. */
static rp_status share_storage(rp__rewrite *w, rp__map *known, rp__ir_value v, rp__ir_value made) {
    const uint32_t storage = w->src->values[v].storage;
    const rp__hash key = {rp__hash_mix(storage, 6), storage};
    const uintptr_t first = (uintptr_t)rp__map_get(known, key);
    if (first) w->dst->values[made].storage = (uint32_t)(first - 1);
    return first || rp__map_put(known, key, (void *)(uintptr_t)(w->dst->values[made].storage + 1u))
               ? RP_OK
               : RP__OOM("arguments of a graph");
}

static rp_status copy_args(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to) {
    rp__map known = {0};
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < from->n_args && status == RP_OK; k++) {
        rp__ir_value v = from->args[k];
        rp__ir_value made = rp__ir_add_arg(w->dst, to, &w->src->values[v].meta, w->src->values[v].site);
        if (made == RP__IR_NONE) {
            status = RP_ERROR_OUT_OF_MEMORY;
            break;
        }
        take_layout(w, v, made);
        if (from->n_args > 1) status = share_storage(w, &known, v, made);
    }
    rp__map_free(&known);
    return status;
}

rp_status rp__rewrite_results(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to) {
    RP_TRY(rp__ir_set_results(w->dst, to, from->results, from->n_results));
    for (uint32_t k = 0; k < to->n_results; k++) {
        if (to->results[k] != RP__IR_NONE) to->results[k] = w->map[to->results[k]];
    }
    return RP_OK;
}

rp_status rp__rewrite_begin_bare(rp__rewrite *w, const rp_ir *src) {
    memset(w, 0, sizeof *w);
    w->src = src;
    w->outer = rp__symbols_enter(NULL);
    w->dst = rp__ir_new(src->name);
    if (!w->dst) return RP_ERROR_OUT_OF_MEMORY;
    RP_TRY(rp__symbols_fork(src->symbols, &w->dst->symbols));
    (void)rp__symbols_enter(w->dst->symbols);
    w->map = rp__alloc((src->n_values + 1) * sizeof *w->map);
    if (!w->map) return RP__OOM("value map of a pass");
    memset(w->map, 0xff, (src->n_values + 1) * sizeof *w->map);
    if (src->n_captured > 0) {
        if (!RP__GROW(&w->dst->captured, &w->dst->captured_capacity, src->n_captured)) {
            return RP__OOM("captured tensors of a graph");
        }
        for (size_t k = 0; k < src->n_captured; k++) {
            w->dst->captured[k] = src->captured[k] ? rp_retain(src->captured[k]) : NULL;
            w->dst->n_captured++;
        }
    }
    return RP_OK;
}

rp_status rp__rewrite_begin(rp__rewrite *w, const rp_ir *src) {
    RP_TRY(rp__rewrite_begin_bare(w, src));
    return copy_args(w, &src->body, &w->dst->body);
}

rp_status rp__rewrite_arg(rp__rewrite *w, rp__ir_value v) {
    rp__ir_value made = rp__ir_add_arg(w->dst, &w->dst->body, &w->src->values[v].meta, w->src->values[v].site);
    if (made == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    take_layout(w, v, made);
    return RP_OK;
}

rp_status rp__rewrite_end(rp__rewrite *w, rp_status status, const char *pass, rp_ir **out) {
    rp__free(w->map);
    w->map = NULL;
#ifndef NDEBUG
    if (status == RP_OK) {
        status = rp_ir_check(w->dst);
        if (status != RP_OK) (void)rp__fail_context("checking the graph after %s", pass);
    }
#else
    (void)pass;
#endif
    if (w->src) {
        (void)rp__symbols_enter(w->outer);
    }
    if (status != RP_OK && w->dst) rp__ir_release(w->dst);
    *out = status == RP_OK ? w->dst : NULL;
    w->dst = NULL;
    return status;
}

rp_status rp__rewrite_copy_regions(rp__rewrite *w, rp__ir_block *block, uint32_t node, const rp__ir_value *in,
                                   rp__rewrite_block *visit, void *ctx) {
    const rp__ir_node *n = &w->src->nodes[node];
    if (rp__ir_is_view(n)) {
        rp__ir_value made;
        RP_TRY(rp__ir_emit_view(w->dst, block, n->op, in[0], n->attrs, n->n_attrs, n->site, &made));
        w->dst->values[made].requires_grad = w->src->values[n->out[0]].requires_grad;
        w->map[n->out[0]] = made;
        return RP_OK;
    }
    uint32_t made = rp__ir_add_node(w->dst, block, n->kind, n->op, in, n->n_in, n->list_begin, n->attrs, n->n_attrs,
                                    n->n_out, n->site);
    if (made == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    rp__ir_node *m = &w->dst->nodes[made];
    m->random_offset = n->random_offset;
    m->random_count = n->random_count;
    m->captured_index = n->captured_index;
    m->recompute = n->recompute;
    if (n->data_bytes > 0) {
        m->data = rp__arena_copy(&w->dst->arena, n->data, n->data_bytes);
        m->data_bytes = n->data_bytes;
        if (!m->data) return RP__OOM("graph constant");
    }
    if (n->n_regions > 0) {
        RP_TRY(rp__ir_add_regions(w->dst, made, n->n_regions));
        for (uint32_t r = 0; r < n->n_regions; r++) {
            rp__ir_block *to = &w->dst->nodes[made].regions[r]; /* in the arena: stays put */
            RP_TRY(copy_args(w, &n->regions[r], to));
            RP_TRY(visit(ctx, &n->regions[r], to));
            RP_TRY(rp__rewrite_results(w, &n->regions[r], to));
        }
    }
    for (uint32_t k = 0; k < n->n_out; k++) {
        rp__ir_value v = rp__ir_set_out(w->dst, made, k, &w->src->values[n->out[k]].meta);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        take_layout(w, n->out[k], v);
    }
    return RP_OK;
}

static rp_status copy_block(void *ctx, const rp__ir_block *from, rp__ir_block *to) {
    rp__rewrite *w = ctx;
    for (size_t k = 0; k < from->n_nodes; k++) {
        if (!w->src->nodes[from->nodes[k]].dead) RP_TRY(rp__rewrite_copy(w, to, from->nodes[k]));
    }
    return RP_OK;
}

rp_status rp__rewrite_copy_with(rp__rewrite *w, rp__ir_block *block, uint32_t node, const rp__ir_value *in) {
    return rp__rewrite_copy_regions(w, block, node, in, copy_block, w);
}

rp_status rp__rewrite_copy(rp__rewrite *w, rp__ir_block *block, uint32_t node) {
    const rp__ir_node *n = &w->src->nodes[node];
    rp__ir_value few[RP__FEW_OPERANDS] = {0}, *in = few;
    if (n->n_in > RP__FEW_OPERANDS) {
        in = rp__alloc(n->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    for (uint32_t k = 0; k < n->n_in; k++) in[k] = n->in[k] == RP__IR_NONE ? RP__IR_NONE : w->map[n->in[k]];
    rp_status status = rp__rewrite_copy_with(w, block, node, in);
    if (in != few) rp__free(in);
    return status;
}
