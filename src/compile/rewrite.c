/* Graph to graph: the copying and emitting that all passes of floor 6 share. Owns no graph: the pass does. Must not know any
   op by name. */
#include "compile/rewrite.h"

#include <string.h>

#include "core/alloc.h"
#include "trace/symbols.h"

/* ---- asking */

bool rp__ir_is_outer(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_node *n = rp__ir_producer(ir, v);
    if (n) return n->kind == RP__IR_INPUT || n->kind == RP__IR_CAPTURED;
    for (uint32_t k = 0; k < ir->body.n_args; k++) {
        if (ir->body.args[k] == v) return true;
    }
    return false;
}

bool rp__ir_has_effect(const rp__ir_node *n) {
    return n->kind == RP__IR_ASSIGN;
}

bool rp__ir_contiguous(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_value_info *info = &ir->values[v];
    rp_dim expected = 1;
    for (unsigned d = info->meta.ndim; d-- > 0;) {
        rp_dim size = info->meta.size[d];
        if (size == 0) return true;
        if (size == 1) continue;
        if (info->stride[d] != expected) return false;
        if (rp__dim_is_symbol(size) || rp__dim_is_symbol(expected)) {
            expected = rp__dim_apply(RP__DIM_MUL, expected, size);
        } else if (!rp__mul_i64(expected, size, &expected)) {
            return false;
        }
    }
    return true;
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

void rp__ir_fake_tensor(const rp_ir *ir, rp__ir_value v, rp_tensor *out) {
    const rp__ir_value_info *info = &ir->values[v];
    memset(out, 0, sizeof *out);
    out->magic = RP__TENSOR_MAGIC;
    atomic_store_explicit(&out->refs, 1, memory_order_relaxed);
    out->dtype = (uint8_t)info->meta.dtype;
    out->ndim = info->meta.ndim;
    out->device = info->meta.device;
    out->op = "";
    out->site = info->site;
    memcpy(out->size, info->meta.size, sizeof out->size);
    memcpy(out->stride, info->stride, sizeof out->stride);
}

rp_status rp__pass_check(const rp_ir *ir, const char *pass) {
#ifdef NDEBUG
    (void)ir, (void)pass;
    return RP_OK;
#else
    rp_status status = rp_ir_check(ir);
    return status == RP_OK ? RP_OK : rp__fail_context("checking the graph after %s", pass);
#endif
}

/* ---- emitting */

static rp_status set_layout(rp_ir *ir, rp__ir_value v, const rp_dim *stride) {
    rp__ir_value_info *info = &ir->values[v];
    if (stride) {
        memcpy(info->stride, stride, sizeof info->stride);
    } else {
        rp__contiguous_strides(info->meta.size, info->meta.ndim, info->stride);
    }
    return RP_OK;
}

static rp_status add_outputs(rp_ir *ir, uint32_t node, const rp__meta *meta, uint32_t n, const char *site,
                             rp__ir_value *out) {
    for (uint32_t k = 0; k < n; k++) {
        rp__ir_value v = rp__ir_add_value(ir, &meta[k], node, k, site);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        ir->nodes[node].out[k] = v;
        RP_TRY(set_layout(ir, v, NULL));
        out[k] = v;
    }
    return RP_OK;
}

/* list_begin of a call whose operands are all single tensors: parameter p is operand p. */
static void plain_lists(const rp__op *op, uint32_t n_in, uint32_t list_begin[RP__MAX_PARAMS + 1]) {
    for (uint32_t p = 0; p <= RP__MAX_PARAMS; p++) list_begin[p] = p < n_in ? p : n_in;
    (void)op;
}

rp_status rp__ir_emit(rp_ir *ir, rp__ir_block *block, const rp__op *op, const rp__ir_value *in, uint32_t n_in,
                      const rp_attr *attrs, uint32_t n_attrs, const rp__meta *out_meta, uint32_t n_out,
                      const char *site, rp__ir_value *out) {
    uint32_t lists[RP__MAX_PARAMS + 1];
    plain_lists(op, n_in, lists);
    uint32_t node = rp__ir_add_node(ir, block, RP__IR_OP, op, in, n_in, lists, attrs, n_attrs, n_out, site);
    if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    return add_outputs(ir, node, out_meta, n_out, site, out);
}

rp_status rp__ir_emit_view(rp_ir *ir, rp__ir_block *block, const rp__op *op, rp__ir_value in, const rp_attr *attrs,
                           uint32_t n_attrs, const char *site, rp__ir_value *out) {
    rp_tensor fake, *operand = &fake;
    rp__ir_fake_tensor(ir, in, &fake);
    rp__call call = {.op = op, .site = site, .in = &operand, .n_in = 1, .attrs = attrs, .n_attrs = n_attrs};
    plain_lists(op, 1, call.list_begin);
    rp__view view;
    memset(&view, 0, sizeof view);
    RP_TRY(op->rule.view(&call, &view));
    rp__meta meta = ir->values[in].meta;
    meta.ndim = view.ndim;
    memcpy(meta.size, view.size, sizeof meta.size);
    RP_TRY(rp__ir_emit(ir, block, op, &in, 1, attrs, n_attrs, &meta, 1, site, out));
    return set_layout(ir, *out, view.stride);
}

rp_status rp__ir_emit_assign(rp_ir *ir, rp__ir_block *block, rp__ir_value target, rp__ir_value value, const char *site,
                             rp__ir_value *out) {
    rp__ir_value in[2] = {target, value};
    uint32_t lists[RP__MAX_PARAMS + 1];
    plain_lists(NULL, 2, lists);
    uint32_t node = rp__ir_add_node(ir, block, RP__IR_ASSIGN, NULL, in, 2, lists, NULL, 0, 1, site);
    if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    rp__meta meta = ir->values[target].meta;
    rp_dim stride[RP_MAX_DIMS];
    memcpy(stride, ir->values[target].stride, sizeof stride);
    RP_TRY(add_outputs(ir, node, &meta, 1, site, out));
    return set_layout(ir, *out, stride);
}

/* ---- copying */

rp_status rp__rewrite_args(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to) {
    if (from->n_args == 0) return RP_OK;
    to->args = RP__NEW(&w->dst->arena, rp__ir_value, from->n_args);
    if (!to->args) return RP__OOM("graph arguments");
    to->n_args = from->n_args;
    for (uint32_t k = 0; k < from->n_args; k++) {
        rp__ir_value v = from->args[k];
        const rp__ir_value_info *info = &w->src->values[v];
        if (info->node != RP__IR_NONE) { /* an INPUT node makes it: mapped when that node is copied */
            to->args[k] = RP__IR_NONE;
            continue;
        }
        rp__ir_value made = rp__ir_add_value(w->dst, &info->meta, RP__IR_NONE, info->out_index, info->site);
        if (made == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        memcpy(w->dst->values[made].stride, info->stride, sizeof info->stride);
        w->dst->values[made].requires_grad = info->requires_grad;
        w->map[v] = to->args[k] = made;
    }
    return RP_OK;
}

void rp__rewrite_inputs(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to) {
    for (uint32_t k = 0; k < from->n_args; k++) to->args[k] = w->map[from->args[k]];
}

rp_status rp__ir_share_outer(rp_ir *dst, const rp_ir *src) {
    if (src->symbols) dst->symbols = rp__symbols_retain(src->symbols);
    if (src->n_captured == 0) return RP_OK;
    dst->captured = rp__alloc(src->n_captured * sizeof *dst->captured);
    if (!dst->captured) return RP__OOM("captured tensors of a graph");
    dst->captured_capacity = dst->n_captured = src->n_captured;
    for (size_t k = 0; k < src->n_captured; k++) dst->captured[k] = rp_retain(src->captured[k]);
    return RP_OK;
}

rp_status rp__rewrite_results(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to) {
    if (from->n_results == 0) return RP_OK;
    to->results = RP__NEW(&w->dst->arena, rp__ir_value, from->n_results);
    if (!to->results) return RP__OOM("graph results");
    to->n_results = from->n_results;
    for (uint32_t k = 0; k < from->n_results; k++) {
        to->results[k] = from->results[k] == RP__IR_NONE ? RP__IR_NONE : w->map[from->results[k]];
    }
    return RP_OK;
}

rp_status rp__rewrite_begin(rp__rewrite *w, const rp_ir *src) {
    memset(w, 0, sizeof *w);
    w->src = src;
    w->dst = rp__ir_new(src->name);
    if (!w->dst || w->dst->status != RP_OK) return RP__OOM("graph");
    w->map = rp__alloc((src->n_values ? src->n_values : 1) * sizeof *w->map);
    if (!w->map) return RP__OOM("value map of a pass");
    memset(w->map, 0xff, src->n_values * sizeof *w->map);
    RP_TRY(rp__ir_share_outer(w->dst, src));
    return rp__rewrite_args(w, &src->body, &w->dst->body);
}

rp_status rp__rewrite_end(rp__rewrite *w, rp_status status, rp_ir **out) {
    rp__free(w->map);
    w->map = NULL;
    if (status == RP_OK) {
        *out = w->dst;
    } else {
        *out = NULL;
        if (w->dst) rp_ir_release(w->dst);
    }
    w->dst = NULL;
    return status;
}

rp_status rp__rewrite_copy_regions(rp__rewrite *w, rp__ir_block *block, uint32_t node, const rp__ir_value *in,
                                   rp__rewrite_block *visit, void *ctx) {
    const rp__ir_node *n = &w->src->nodes[node];
    uint32_t made = rp__ir_add_node(w->dst, block, n->kind, n->op, in, n->n_in, n->list_begin, n->attrs, n->n_attrs,
                                    n->n_out, n->site);
    if (made == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    w->dst->nodes[made].random_offset = n->random_offset;
    w->dst->nodes[made].random_count = n->random_count;
    if (n->n_regions > 0) {
        rp__ir_block *regions = RP__NEW(&w->dst->arena, rp__ir_block, n->n_regions);
        if (!regions) return RP__OOM("regions of a graph node");
        w->dst->nodes[made].regions = regions;
        w->dst->nodes[made].n_regions = n->n_regions;
        for (uint32_t r = 0; r < n->n_regions; r++) {
            RP_TRY(rp__rewrite_args(w, &n->regions[r], &regions[r]));
            RP_TRY(visit(ctx, &n->regions[r], &regions[r]));
            RP_TRY(rp__rewrite_results(w, &n->regions[r], &regions[r]));
        }
    }
    for (uint32_t k = 0; k < n->n_out; k++) {
        const rp__ir_value_info *info = &w->src->values[n->out[k]];
        rp__ir_value v = rp__ir_add_value(w->dst, &info->meta, made, k, info->site);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        memcpy(w->dst->values[v].stride, info->stride, sizeof info->stride);
        w->dst->values[v].requires_grad = info->requires_grad;
        w->dst->nodes[made].out[k] = v;
        w->map[n->out[k]] = v;
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
    rp__ir_value few[16], *in = few;
    if (n->n_in > 16) {
        in = rp__alloc(n->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    for (uint32_t k = 0; k < n->n_in; k++) in[k] = n->in[k] == RP__IR_NONE ? RP__IR_NONE : w->map[n->in[k]];
    rp_status status = rp__rewrite_copy_with(w, block, node, in);
    if (in != few) rp__free(in);
    return status;
}
