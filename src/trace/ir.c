/* The graph's memory, building, hash, equality and difference (ir.h). Knows no op by name; calls nothing of tracing. */
#include "trace/ir.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "ops/format.h"
#include "tensor/tensor.h"

/* ---- kinds of nodes */

const rp__ir_form rp__ir_forms[RP__IR_KIND_COUNT] = {
    [RP__IR_OP] = {NULL, -1, -1, .random = true},
    [RP__IR_CAPTURED] = {"captured", 0, 1, .index = true},
    [RP__IR_CONST] = {"const", 0, 1, .data = true},
    [RP__IR_COND] = {"cond", -1, -1, .random = true, .first = 1, .n_regions = 2,
                     .region = {{"then", {RP__IR_OPERANDS}, RP__IR_RESULTS},
                                {"else", {RP__IR_OPERANDS}, RP__IR_RESULTS}}},
    [RP__IR_WHILE] = {"while", -1, -1, .random = true, .state = true, .n_attrs = 2, .attr = {"max_iter", "keeps"},
                      .n_regions = 2,
                      .region = {{"cond", {RP__IR_OPERANDS}, RP__IR_CONDITION},
                                 {"body", {RP__IR_OPERANDS}, RP__IR_RESULTS}}},
    [RP__IR_CHECKPOINT] = {"checkpoint", -1, -1, .random = true, .n_regions = 1,
                           .region = {{"body", {RP__IR_OPERANDS}, RP__IR_RESULTS}}},
    [RP__IR_FUNCTION] = {"function", -1, -1, .random = true, .n_regions = 2,
                         .region = {{"forward", {RP__IR_OPERANDS}, RP__IR_RESULTS},
                                    {"backward", {RP__IR_OPERANDS, RP__IR_RESULTS, RP__IR_RESULTS}, RP__IR_GRADIENTS}}},
    [RP__IR_ASSIGN] = {.name = "assign", .n_in = 2, .n_out = 0},
};

const rp__ir_value *rp__ir_part_values(const rp__ir_node *n, rp__ir_part part, uint32_t *count) {
    bool out = part == RP__IR_RESULTS, in = part == RP__IR_OPERANDS || part == RP__IR_GRADIENTS;
    uint32_t first = part == RP__IR_OPERANDS ? rp__ir_forms[n->kind].first : 0;
    *count = out ? n->n_out : in ? n->n_in - first : 0;
    return out ? n->out : n->in + first;
}

void rp__ir_region_counts(const rp__ir_node *n, uint32_t r, uint32_t *args, uint32_t *results) {
    const rp__ir_form *form = &rp__ir_forms[n->kind];
    uint32_t count;
    *args = 0;
    for (int k = 0; k < 3; k++, *args += count) (void)rp__ir_part_values(n, form->region[r].takes[k], &count);
    (void)rp__ir_part_values(n, form->region[r].gives, results);
    if (form->region[r].gives == RP__IR_CONDITION) *results = 1;
}

const char *rp__ir_counts_fault(rp__ir_kind kind, uint32_t n_in, uint32_t n_out) {
    const rp__ir_form *form = &rp__ir_forms[kind];
    if (form->n_in >= 0 && n_in != (uint32_t)form->n_in) return "another number of operands than the kind of node has";
    if (form->n_out >= 0 && n_out != (uint32_t)form->n_out)
        return "another number of results than the kind of node has";
    if (n_in < form->first) return "the predicate is missing";
    return form->state && n_out > n_in ? "more results than operands" : NULL;
}

/* ---- life */

rp_ir *rp__ir_failed(void) {
    static rp_ir failed = {.name = ""};
    return &failed;
}

rp_status rp__ir_usable(const rp_ir *ir, const char *call) {
    if (RP__LIKELY(ir && rp__handle_is(ir, RP__HANDLE_IR))) return RP_OK;
    if (!ir) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the graph is NULL", call);
    if (ir == rp__ir_failed()) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the graph could not be made", call);
    return rp__handle_refuse(ir, RP__HANDLE_IR, call);
}

rp_ir *rp__ir_new(const char *name) {
    rp_ir *ir = rp__handle_new(RP__HANDLE_IR, sizeof *ir);
    if (ir) {
        atomic_init(&ir->refs, 1);
        ir->failures = rp__error_count();
        ir->name = rp__arena_strdup(&ir->arena, name ? name : "");
        if (ir->name) {
            (void)snprintf(ir->handle.name, sizeof ir->handle.name, "%s", ir->name);
            return ir;
        }
        rp__arena_free(&ir->arena);
        rp__handle_free(ir);
    }
    (void)RP__OOM("graph");
    return NULL;
}

rp_ir *rp__ir_retain(rp_ir *ir) {
    if (ir != rp__ir_failed()) atomic_fetch_add_explicit(&ir->refs, 1, memory_order_relaxed);
    return ir;
}

static void free_blocks(rp_ir *ir) {
    /* Blocks own one growable list each; nodes are walked flat, so depth costs nothing. */
    for (size_t i = 0; i < ir->n_nodes; i++) {
        for (uint32_t r = 0; r < ir->nodes[i].n_regions; r++) rp__free(ir->nodes[i].regions[r].nodes);
    }
    rp__free(ir->body.nodes);
}

rp_ir *rp_ir_retain(const rp_ir *ir) {
    if (!ir || ir == rp__ir_failed()) return ir ? rp__ir_failed() : NULL;
    if (rp__ir_usable(ir, "rp_ir_retain") != RP_OK) return rp__ir_failed();
    rp_ir *counted = (rp_ir *)(uintptr_t)ir; /* counting does not change the graph */
    atomic_fetch_add_explicit(&counted->handle.held, 1, memory_order_relaxed);
    return rp__ir_retain(counted);
}

void rp_ir_release(rp_ir *ir) {
    if (!ir || ir == rp__ir_failed()) return;
    if (rp__handle_give_up(ir, RP__HANDLE_IR, "rp_ir_release")) rp__ir_release(ir);
}

void rp__ir_lend(rp_ir *ir) {
    if (!atomic_exchange(&ir->lent, true)) atomic_fetch_sub_explicit(&ir->handle.held, 1, memory_order_relaxed);
}

void rp__ir_release(rp_ir *ir) {
    if (!ir || ir == rp__ir_failed() || atomic_fetch_sub_explicit(&ir->refs, 1, memory_order_acq_rel) != 1) return;
    free_blocks(ir);
    for (size_t i = 0; i < ir->n_captured; i++) rp_release(ir->captured[i]);
    for (size_t i = 0; i < ir->n_generators; i++) rp__generator_drop(ir->generators[i]);
    rp__free(ir->captured);
    rp__free(ir->generators);
    rp__free(ir->nodes);
    rp__free(ir->values);
    rp__symbols_release(ir->symbols);
    rp__arena_free(&ir->arena);
    rp__handle_free(ir);
}

/* ---- building */

/* Strides of a fresh value; sizes may be words of the graph's table. */
static void fresh_strides(const rp_ir *ir, const rp__meta *meta, rp_dim *stride) {
    if (!ir->symbols) {
        rp__order_strides(meta->size, meta->ndim, meta->order, stride);
        return;
    }
    rp__symbols *outer = rp__symbols_enter(ir->symbols);
    rp__order_strides(meta->size, meta->ndim, meta->order, stride);
    (void)rp__symbols_enter(outer);
}

rp__ir_value rp__ir_add_value(rp_ir *ir, const rp__meta *meta, uint32_t node, uint32_t out_index, const char *site) {
    if (ir->n_values >= RP__IR_NONE - 1 || !RP__GROW(&ir->values, &ir->values_capacity, ir->n_values + 1)) {
        (void)RP__OOM("graph value");
        return RP__IR_NONE;
    }
    rp__ir_value_info *v = &ir->values[ir->n_values];
    memset(v, 0, sizeof *v);
    v->meta = *meta;
    v->node = node;
    v->out_index = out_index;
    v->site = site;
    v->storage = ir->n_storages++;
    fresh_strides(ir, meta, v->stride);
    v->meta.order = RP__ROW_MAJOR; /* the strides say it */
    return (rp__ir_value)ir->n_values++;
}

static rp_status hold_generator(rp_ir *ir, rp_generator *g) {
    for (size_t i = 0; i < ir->n_generators; i++) {
        if (ir->generators[i] == g) return RP_OK;
    }
    if (!RP__GROW(&ir->generators, &ir->generators_capacity, ir->n_generators + 1)) return RP__OOM("graph");
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    ir->generators[ir->n_generators++] = g;
    return RP_OK;
}

/* A copy of attributes and of what they point to, in the arena. */
static rp_attr *copy_attrs(rp_ir *ir, const rp_attr *attrs, uint32_t n) {
    rp_attr *copy = RP__NEW(&ir->arena, rp_attr, n ? n : 1);
    if (!copy) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        copy[i] = attrs[i];
        if (attrs[i].kind == RP_ATTR_INTS && attrs[i].v.ints) {
            int64_t *ints = RP__NEW(&ir->arena, int64_t, attrs[i].n ? attrs[i].n : 1);
            if (!ints) return NULL;
            if (attrs[i].n) memcpy(ints, attrs[i].v.ints, attrs[i].n * sizeof *ints);
            copy[i].v.ints = ints;
        } else if (attrs[i].kind == RP_ATTR_FLOATS) {
            copy[i].v.floats = rp__arena_copy(&ir->arena, attrs[i].n ? attrs[i].v.floats : (const double[]){0},
                                              (attrs[i].n ? attrs[i].n : 1) * sizeof(double));
            if (!copy[i].v.floats) return NULL;
        } else if (attrs[i].kind == RP_ATTR_STRING && attrs[i].v.string) {
            copy[i].v.string = rp__arena_strdup(&ir->arena, attrs[i].v.string);
            if (!copy[i].v.string) return NULL;
        } else if (attrs[i].kind == RP_ATTR_GENERATOR && attrs[i].v.generator &&
                   hold_generator(ir, attrs[i].v.generator) != RP_OK) {
            return NULL;
        }
    }
    return copy;
}

rp_status rp__ir_block_append(rp_ir *ir, rp__ir_block *block, uint32_t node) {
    (void)ir;
    if (!RP__GROW(&block->nodes, &block->nodes_capacity, block->n_nodes + 1)) return RP__OOM("graph block");
    block->nodes[block->n_nodes++] = node;
    return RP_OK;
}

/* Attributes that a pass leaves out are the schema's defaults. An empty list is one, where None is no value of it. */
static uint32_t complete_attrs(const rp__op *op, const rp_attr *attrs, uint32_t n_attrs, rp_attr all[RP__MAX_PARAMS]) {
    uint32_t k = 0;
    for (unsigned i = 0; i < op->schema.n_params && k < op->schema.n_attrs; i++) {
        const rp__param *p = &op->schema.params[i];
        if (p->kind != RP__PARAM_ATTR) continue;
        all[k] = k < n_attrs ? attrs[k] : rp__param_default(p);
        if (all[k].kind == RP_ATTR_INTS && !all[k].v.ints && !p->optional) all[k].v.ints = p->default_ints;
        k++;
    }
    return k;
}

uint32_t rp__ir_add_node(rp_ir *ir, rp__ir_block *block, rp__ir_kind kind, const rp__op *op, const rp__ir_value *in,
                         uint32_t n_in, const uint32_t *list_begin, const rp_attr *attrs, uint32_t n_attrs,
                         uint32_t n_out, const char *site) {
    if (ir->n_nodes >= RP__IR_NONE - 1 || !RP__GROW(&ir->nodes, &ir->nodes_capacity, ir->n_nodes + 1)) goto failed;
    rp__ir_node n;
    memset(&n, 0, sizeof n);
    n.kind = kind;
    n.op = op;
    n.n_in = n_in;
    n.n_out = n_out;
    n.n_attrs = n_attrs;
    n.site = site;
    n.in = RP__NEW(&ir->arena, rp__ir_value, n_in ? n_in : 1);
    n.out = RP__NEW(&ir->arena, rp__ir_value, n_out ? n_out : 1);
    rp_attr all[RP__MAX_PARAMS];
    if (kind == RP__IR_OP) {
        n.n_attrs = complete_attrs(op, attrs, n_attrs, all);
        attrs = all;
    }
    n.attrs = copy_attrs(ir, attrs, n.n_attrs);
    if (!n.in || !n.out || !n.attrs) goto failed;
    if (n_in) memcpy(n.in, in, n_in * sizeof *in);
    for (uint32_t k = 0; k < n_out; k++) n.out[k] = RP__IR_NONE;
    for (uint32_t p = 0; p <= RP__MAX_PARAMS; p++) n.list_begin[p] = list_begin ? list_begin[p] : p < n_in ? p : n_in;
    if (block && rp__ir_block_append(ir, block, (uint32_t)ir->n_nodes) != RP_OK) return RP__IR_NONE;
    ir->nodes[ir->n_nodes] = n;
    return (uint32_t)ir->n_nodes++;
failed:
    (void)RP__OOM("graph node");
    return RP__IR_NONE;
}

rp__ir_value rp__ir_set_out(rp_ir *ir, uint32_t node, uint32_t k, const rp__meta *meta) {
    rp__ir_value v = rp__ir_add_value(ir, meta, node, k, ir->nodes[node].site);
    if (v != RP__IR_NONE) ir->nodes[node].out[k] = v;
    return v;
}

rp_status rp__ir_add_regions(rp_ir *ir, uint32_t node, uint32_t n) {
    rp__ir_block *regions = RP__NEW(&ir->arena, rp__ir_block, n);
    if (!regions) return RP__OOM("graph region");
    ir->nodes[node].regions = regions;
    ir->nodes[node].n_regions = n;
    return RP_OK;
}

rp__ir_value rp__ir_add_arg(rp_ir *ir, rp__ir_block *block, const rp__meta *meta, const char *site) {
    /* Arguments are few and mostly added one after the other: the list doubles at powers of two. */
    if ((block->n_args & (block->n_args - 1)) == 0) {
        rp__ir_value *args = RP__NEW(&ir->arena, rp__ir_value, block->n_args ? 2u * block->n_args : 1u);
        if (!args) {
            (void)RP__OOM("graph argument");
            return RP__IR_NONE;
        }
        if (block->n_args) memcpy(args, block->args, block->n_args * sizeof *args);
        block->args = args;
    }
    rp__ir_value v = rp__ir_add_value(ir, meta, RP__IR_NONE, block->n_args, site);
    if (v != RP__IR_NONE) block->args[block->n_args++] = v;
    return v;
}

rp_status rp__ir_set_results(rp_ir *ir, rp__ir_block *block, const rp__ir_value *results, uint32_t n) {
    block->results = RP__NEW(&ir->arena, rp__ir_value, n ? n : 1);
    if (!block->results) return RP__OOM("graph results");
    if (n) memcpy(block->results, results, n * sizeof *results);
    block->n_results = n;
    return RP_OK;
}

void rp__ir_meta_of(const rp_tensor *t, rp__meta *out) {
    memset(out, 0, sizeof *out);
    out->dtype = (rp_dtype)t->dtype;
    out->device = t->device;
    out->ndim = t->ndim;
    memcpy(out->size, t->size, t->ndim * sizeof *t->size);
}

rp_status rp__ir_set_captured(rp_ir *ir, uint32_t node, rp_tensor *t) {
    if (!RP__GROW(&ir->captured, &ir->captured_capacity, ir->n_captured + 1)) return RP__OOM("captured tensor");
    ir->nodes[node].captured_index = (uint32_t)ir->n_captured;
    ir->captured[ir->n_captured++] = t ? rp_retain(t) : NULL;
    return RP_OK;
}

rp_status rp__ir_set_data(rp_ir *ir, uint32_t node, const void *data, size_t bytes) {
    void *copy = rp__arena_alloc(&ir->arena, bytes ? bytes : 1);
    if (!copy) return RP__OOM("graph constant");
    if (bytes) memcpy(copy, data, bytes);
    ir->nodes[node].data = copy;
    ir->nodes[node].data_bytes = bytes;
    return RP_OK;
}

/* The one result of a node without operands, the last of its block; a node that could not be finished leaves it. */
static rp__ir_value only_result(rp_ir *ir, rp__ir_block *block, uint32_t node, rp_status status, const rp__meta *meta) {
    rp__ir_value v = status == RP_OK ? rp__ir_set_out(ir, node, 0, meta) : RP__IR_NONE;
    if (v == RP__IR_NONE && block) block->n_nodes--;
    return v;
}

rp__ir_value rp__ir_add_captured(rp_ir *ir, rp__ir_block *block, rp_tensor *t, const char *site) {
    uint32_t node = rp__ir_add_node(ir, block, RP__IR_CAPTURED, NULL, NULL, 0, NULL, NULL, 0, 1, site);
    if (node == RP__IR_NONE) return RP__IR_NONE;
    rp__meta meta = {.dtype = RP_F32};
    if (t) rp__ir_meta_of(t, &meta);
    rp__ir_value v = only_result(ir, block, node, rp__ir_set_captured(ir, node, t), &meta);
    if (v != RP__IR_NONE && t) {
        memcpy(ir->values[v].stride, t->stride, t->ndim * sizeof *t->stride);
        ir->values[v].offset = t->offset;
    }
    return v;
}

rp__ir_value rp__ir_add_const(rp_ir *ir, rp__ir_block *block, const rp__meta *meta, const void *data, size_t bytes,
                              const char *site) {
    uint32_t node = rp__ir_add_node(ir, block, RP__IR_CONST, NULL, NULL, 0, NULL, NULL, 0, 1, site);
    return node == RP__IR_NONE ? node : only_result(ir, block, node, rp__ir_set_data(ir, node, data, bytes), meta);
}

/* ---- copying blocks */

typedef struct copier {
    rp_ir *ir;
    const rp_ir *source;
    rp__ir_value *value; /* of source -> of ir */
    uint32_t *storage;
    uint32_t depth;
} copier;

static rp__ir_value copied_value(copier *c, rp__ir_value v, rp__ir_value to) {
    const rp__ir_value_info *from = &c->source->values[v];
    rp__ir_value_info *info = &c->ir->values[to];
    memcpy(info->stride, from->stride, sizeof info->stride);
    info->offset = from->offset;
    info->shared = from->shared;
    info->requires_grad = from->requires_grad;
    if (c->storage[from->storage] == RP__IR_NONE) c->storage[from->storage] = info->storage;
    info->storage = c->storage[from->storage];
    c->value[v] = to;
    return to;
}

static rp__ir_value mapped(const copier *c, rp__ir_value v) { return v == RP__IR_NONE ? RP__IR_NONE : c->value[v]; }

enum { MAX_REGION_DEPTH = 64 };

static rp_status copy_into(copier *c, rp__ir_block *to, const rp__ir_block *from) {
    rp_ir *ir = c->ir;
    if (++c->depth > MAX_REGION_DEPTH)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "regions nest deeper than %d", MAX_REGION_DEPTH);
    for (uint32_t i = 0; i < from->n_args; i++) (void)copied_value(c, from->args[i], to->args[i]);
    for (size_t i = 0; i < from->n_nodes; i++) {
        const rp__ir_node *n = &c->source->nodes[from->nodes[i]];
        if (n->dead) continue;
        uint32_t at = rp__ir_add_node(ir, to, n->kind, n->op, n->in, n->n_in, n->list_begin, n->attrs, n->n_attrs,
                                      n->n_out, n->site);
        if (at == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        rp__ir_node *m = &ir->nodes[at];
        for (uint32_t k = 0; k < n->n_in; k++) m->in[k] = mapped(c, n->in[k]);
        m->random_offset = n->random_offset;
        m->random_count = n->random_count;
        m->recompute = n->recompute;
        const rp__ir_form *form = &rp__ir_forms[n->kind];
        if (form->data) RP_TRY(rp__ir_set_data(ir, at, n->data, n->data_bytes));
        if (form->index) RP_TRY(rp__ir_set_captured(ir, at, c->source->captured[n->captured_index]));
        for (uint32_t k = 0; k < n->n_out; k++) {
            rp__ir_value v = rp__ir_set_out(ir, at, k, &c->source->values[n->out[k]].meta);
            if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
            (void)copied_value(c, n->out[k], v);
        }
        if (n->n_regions) RP_TRY(rp__ir_add_regions(ir, at, n->n_regions));
        for (uint32_t r = 0; r < n->n_regions; r++) {
            rp__ir_block *region = &ir->nodes[at].regions[r]; /* in the arena: stays put */
            for (uint32_t k = 0; k < n->regions[r].n_args; k++) {
                const rp__ir_value_info *arg = &c->source->values[n->regions[r].args[k]];
                if (rp__ir_add_arg(ir, region, &arg->meta, arg->site) == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
            }
            RP_TRY(copy_into(c, region, &n->regions[r]));
        }
    }
    c->depth--;
    RP_TRY(rp__ir_set_results(ir, to, from->results, from->n_results));
    for (uint32_t i = 0; i < to->n_results; i++) to->results[i] = mapped(c, to->results[i]);
    return RP_OK;
}

rp_status rp__ir_copy_block(rp_ir *ir, rp__ir_block *to, const rp_ir *source, const rp__ir_block *from) {
    copier c = {.ir = ir, .source = source};
    rp_status status = RP_OK;
    c.value = rp__alloc((source->n_values + 1) * sizeof *c.value);
    c.storage = rp__alloc((source->n_storages + 1u) * sizeof *c.storage);
    if (!c.value || !c.storage) {
        status = RP__OOM("graph copy");
    } else {
        memset(c.value, 0xff, (source->n_values + 1) * sizeof *c.value);
        memset(c.storage, 0xff, (source->n_storages + 1u) * sizeof *c.storage);
        status = copy_into(&c, to, from);
    }
    rp__free(c.value);
    rp__free(c.storage);
    return status;
}

/* ---- asking */

bool rp__ir_value_contiguous(const rp__ir_value_info *v) {
    rp_dim stride[RP_MAX_DIMS];
    rp__contiguous_strides(v->meta.size, v->meta.ndim, stride);
    return memcmp(stride, v->stride, v->meta.ndim * sizeof *stride) == 0;
}

bool rp__ir_same_strides(const rp__ir_value_info *a, const rp__ir_value_info *b) {
    for (unsigned d = 0; d < a->meta.ndim; d++)
        if (!rp__dim_same_word(a->meta.size[d], 1) && !rp__dim_same_word(a->stride[d], b->stride[d])) return false;
    return true;
}

bool rp__ir_lies_as(const rp_ir *ir, rp__ir_value v, const rp_tensor *t) {
    const rp__ir_value_info *info = &ir->values[v];
    for (unsigned d = 0; d < info->meta.ndim; d++)
        if (!rp__dim_same_word(info->meta.size[d], 1) && !rp__dim_same_word(info->stride[d], t->stride[d]))
            return false;
    return true;
}

bool rp__ir_value_dense(const rp__ir_value_info *v) {
    uint32_t left = 0;
    if (rp__ir_value_contiguous(v)) return true;
    for (unsigned d = 0; d < v->meta.ndim; d++) {
        if (rp__dim_same_word(v->meta.size[d], 0)) return true;
        if (!rp__dim_same_word(v->meta.size[d], 1)) left |= 1u << d;
    }
    for (rp_dim run = 1; left;) { /* from the innermost dim on, by words */
        unsigned d = 0;
        while (d < v->meta.ndim && !(left >> d & 1u && rp__dim_same_word(v->stride[d], run))) d++;
        if (d == v->meta.ndim) return false;
        left &= ~(1u << d);
        run = rp__dim_apply(RP__DIM_MUL, run, v->meta.size[d]);
    }
    return true;
}

bool rp__ir_writes(const rp__ir_node *n, uint32_t k) {
    if (n->kind == RP__IR_ASSIGN) return k == 0;
    if (n->kind != RP__IR_OP) return false;
    uint32_t tensor = 0;
    for (uint32_t p = 0; p < n->op->schema.n_params; p++) {
        const rp__param *param = &n->op->schema.params[p];
        if (param->kind == RP__PARAM_ATTR) continue;
        if (k >= n->list_begin[tensor] && k < n->list_begin[tensor + 1]) return param->written;
        tensor++;
    }
    return false;
}

bool rp__ir_node_has_effect(const rp_ir *ir, const rp__ir_node *n) {
    if (n->kind == RP__IR_ASSIGN) return true;
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (rp__ir_writes(n, k)) return true;
    }
    for (uint32_t r = 0; r < n->n_regions; r++) {
        for (size_t i = 0; i < n->regions[r].n_nodes; i++) {
            if (rp__ir_node_has_effect(ir, &ir->nodes[n->regions[r].nodes[i]])) return true;
        }
    }
    return false;
}

bool rp__ir_block_random(const rp_ir *ir, const rp__ir_block *block) {
    for (size_t i = 0; i < block->n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[i]];
        if (n->dead) continue;
        if (n->kind == RP__IR_OP && (n->op->flags & RP_OP_RANDOM)) return true;
        for (uint32_t r = 0; r < n->n_regions; r++) {
            if (rp__ir_block_random(ir, &n->regions[r])) return true;
        }
    }
    return false;
}

rp_status rp__ir_walk(rp_ir *ir, rp__ir_block *block, rp_status (*visit)(void *ctx, rp_ir *ir, rp__ir_block *block),
                      void *ctx) {
    for (size_t i = 0; i < block->n_nodes; i++) {
        uint32_t at = block->nodes[i];
        if (ir->nodes[at].dead) continue;
        for (uint32_t r = 0; r < ir->nodes[at].n_regions; r++)
            RP_TRY(rp__ir_walk(ir, &ir->nodes[at].regions[r], visit, ctx));
    }
    return visit(ctx, ir, block);
}

void rp__ir_call(const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out, rp__call *call) {
    memset(call, 0, sizeof *call);
    call->op = n->op;
    call->site = n->site;
    call->in = in;
    call->n_in = n->n_in;
    memcpy(call->list_begin, n->list_begin, sizeof call->list_begin);
    call->attrs = n->attrs;
    call->n_attrs = n->n_attrs;
    call->out = out;
    call->n_out = n->n_out;
}

/* ---- structure as words: what the hash and equality are over */

typedef struct words {
    uint64_t *data;
    size_t n, capacity;
    bool failed;
    uint32_t *value; /* canonical number + 1; 0: not met */
    uint32_t *storage;
    uint32_t n_values, n_storages;
    size_t *node_end; /* for rp__ir_diff: words after each node, in print order; NULL: not wanted */
    uint32_t *node_id;
    size_t n_nodes;
} words;

static void put(words *w, uint64_t x) {
    if (w->failed || !RP__GROW(&w->data, &w->capacity, w->n + 1)) {
        w->failed = true;
        return;
    }
    w->data[w->n++] = x;
}

static void put_bytes(words *w, const void *bytes, size_t n) {
    put(w, n);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = 0;
        memcpy(&x, (const char *)bytes + i, n - i < 8 ? n - i : 8);
        put(w, x);
    }
}

/* Symbolic words as text: two tables number their expressions differently. */
static void put_dim(words *w, const rp_ir *ir, rp_dim d) {
    if (!rp__dim_is_symbol(d) || rp__dim_same_word(d, INT64_MIN)) { /* INT64_MIN: None of an optional integer */
        put(w, (uint64_t)d);
        return;
    }
    rp__text t = {0};
    rp__symbols_text(ir->symbols, d, false, &t);
    if (t.failed)
        w->failed = true;
    else
        put_bytes(w, t.data, t.length);
    rp__text_free(&t);
}

static void put_use(words *w, rp__ir_value v) { put(w, v == RP__IR_NONE ? 0 : w->value[v]); }

static void put_definition(words *w, const rp_ir *ir, rp__ir_value v) {
    if (v == RP__IR_NONE) {
        put(w, UINT64_MAX);
        return;
    }
    const rp__ir_value_info *info = &ir->values[v];
    w->value[v] = ++w->n_values;
    if (w->storage[info->storage] == 0) w->storage[info->storage] = ++w->n_storages;
    put(w, (uint64_t)info->meta.dtype | (uint64_t)info->meta.ndim << 8 | (uint64_t)info->meta.device.type << 16 |
               (uint64_t)info->requires_grad << 24 | (uint64_t)info->shared << 25 |
               (uint64_t)(uint32_t)info->meta.device.index << 32);
    put(w, w->storage[info->storage]);
    put_dim(w, ir, info->offset);
    for (unsigned d = 0; d < info->meta.ndim; d++) {
        put_dim(w, ir, info->meta.size[d]);
        put_dim(w, ir, info->stride[d]);
    }
}

static uint64_t generator_number(const rp_ir *ir, const rp_generator *g) {
    for (size_t i = 0; i < ir->n_generators; i++) {
        if (ir->generators[i] == g) return i + 1;
    }
    return 0;
}

static void put_attr(words *w, const rp_ir *ir, const rp_attr *a) {
    put(w, a->kind);
    switch (a->kind) {
    case RP_ATTR_INT: put_dim(w, ir, a->v.i); break;
    case RP_ATTR_FLOAT: put_bytes(w, &a->v.f, sizeof a->v.f); break;
    case RP_ATTR_BOOL: put(w, a->v.b); break;
    case RP_ATTR_SCALAR:
        put(w, a->v.scalar.kind);
        if (a->v.scalar.kind == RP_SCALAR_NONE) break;
        if (rp__scalar_is_symbol(a->v.scalar)) {
            put_dim(w, ir, a->v.scalar.v.i);
            break;
        }
        if (a->v.scalar.kind == RP_SCALAR_BOOL)
            put(w, a->v.scalar.v.b);
        else
            put_bytes(w, &a->v.scalar.v, 8);
        break;
    case RP_ATTR_DTYPE: put(w, a->v.dtype); break;
    case RP_ATTR_INTS:
        put(w, a->n);
        put(w, a->v.ints != NULL);
        for (size_t i = 0; i < a->n; i++) put_dim(w, ir, a->v.ints[i]);
        break;
    case RP_ATTR_FLOATS: put_bytes(w, a->n ? (const void *)a->v.floats : "", a->n * sizeof(double)); break;
    case RP_ATTR_NONE: break;
    case RP_ATTR_GENERATOR: put(w, generator_number(ir, a->v.generator)); break;
    case RP_ATTR_STRING: put_bytes(w, a->v.string ? a->v.string : "", a->v.string ? strlen(a->v.string) : 0); break;
    }
}

static void put_block(words *w, const rp_ir *ir, const rp__ir_block *block) {
    put(w, block->n_args);
    for (uint32_t i = 0; i < block->n_args; i++) put_definition(w, ir, block->args[i]);
    for (size_t i = 0; i < block->n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[i]];
        if (n->dead) continue;
        put(w, (uint64_t)n->kind << 32 | n->n_regions);
        if (n->kind == RP__IR_OP) put_bytes(w, n->op->name, strlen(n->op->name));
        put(w, (uint64_t)n->n_in << 32 | n->n_out);
        for (uint32_t k = 0; k < n->n_in; k++) put_use(w, n->in[k]);
        if (n->kind == RP__IR_OP) {
            for (unsigned p = 0, last = n->op->schema.n_tensor_params; p <= last; p++) put(w, n->list_begin[p]);
        }
        put(w, n->n_attrs);
        for (uint32_t k = 0; k < n->n_attrs; k++) put_attr(w, ir, &n->attrs[k]);
        if (rp__ir_forms[n->kind].index) put(w, n->captured_index);
        if (rp__ir_forms[n->kind].data) put_bytes(w, n->data, n->data_bytes);
        put_dim(w, ir, n->random_offset);
        put_dim(w, ir, n->random_count);
        for (uint32_t r = 0; r < n->n_regions; r++) put_block(w, ir, &n->regions[r]);
        for (uint32_t k = 0; k < n->n_out; k++) put_definition(w, ir, n->out[k]);
        if (w->node_end) {
            w->node_end[w->n_nodes] = w->n;
            w->node_id[w->n_nodes++] = block->nodes[i];
        }
    }
    put(w, block->n_results);
    for (uint32_t i = 0; i < block->n_results; i++) put_use(w, block->results[i]);
}

static rp_status words_of(const rp_ir *ir, words *w) {
    w->value = rp__calloc(ir->n_values + 1, sizeof *w->value);
    w->storage = rp__calloc(ir->n_storages + 1u, sizeof *w->storage);
    if (!w->value || !w->storage) return RP__OOM("graph comparison");
    put_block(w, ir, &ir->body);
    put(w, rp__symbols_count(ir->symbols));
    for (size_t i = 0; i < rp__symbols_count(ir->symbols); i++) {
        const rp__symbol *s = rp__symbols_at(ir->symbols, i);
        put(w, (uint64_t)s->input << 32 | (uint64_t)s->dim << 8 | s->is_stride);
    }
    for (size_t i = 0; i < rp__symbols_guard_count(ir->symbols); i++) {
        const rp__size_guard *g = rp__symbols_guard_at(ir->symbols, i);
        put(w, g->relation);
        put_dim(w, ir, g->a);
        put_dim(w, ir, g->b);
    }
    return w->failed ? RP__OOM("graph comparison") : RP_OK;
}

static void words_free(words *w) {
    rp__free(w->data);
    rp__free(w->value);
    rp__free(w->storage);
    rp__free(w->node_end);
    rp__free(w->node_id);
}

rp_status rp__ir_hash(const rp_ir *ir, rp__hash *out) {
    words w = {0};
    rp_status status = words_of(ir, &w);
    if (status == RP_OK) *out = rp__hash_bytes(w.data, w.n * sizeof *w.data, rp__hash_none());
    words_free(&w);
    return status;
}

bool rp_ir_equal_at(const char *site, const rp_ir *a, const rp_ir *b) {
    RP__CALLED_FROM(site);
    if (rp__ir_usable(a, "rp_ir_equal") != RP_OK || rp__ir_usable(b, "rp_ir_equal") != RP_OK) return false;
    words x = {0}, y = {0};
    bool equal = words_of(a, &x) == RP_OK && words_of(b, &y) == RP_OK && x.n == y.n &&
                 memcmp(x.data, y.data, x.n * sizeof *x.data) == 0;
    words_free(&x);
    words_free(&y);
    return equal;
}

/* ---- difference */

static bool diff_words(const rp_ir *ir, words *w) {
    w->node_end = rp__calloc(ir->n_nodes + 1, sizeof *w->node_end);
    w->node_id = rp__calloc(ir->n_nodes + 1, sizeof *w->node_id);
    return w->node_end && w->node_id && words_of(ir, w) == RP_OK;
}

static void describe(const rp_ir *ir, const words *w, size_t k, rp__text *out) {
    if (k >= w->n_nodes)
        rp__text_puts(out, "the end of the graph");
    else
        rp__ir_print_node(ir, w->node_id[k], out);
}

const char *rp__ir_diff(const rp_ir *a, const rp_ir *b, rp__text *out) {
    const char *site = NULL;
    words x = {0}, y = {0};
    if (diff_words(a, &x) && diff_words(b, &y)) {
        size_t at = 0, k = 0;
        while (at < x.n && at < y.n && x.data[at] == y.data[at]) at++;
        while (k < x.n_nodes && k < y.n_nodes && x.node_end[k] <= at && y.node_end[k] <= at) k++;
        if (at == x.n && at == y.n) {
            rp__text_puts(out, "no difference");
        } else if (k == x.n_nodes && k == y.n_nodes) {
            rp__text_puts(out, "the results or the size guards differ");
        } else if (k == 0 && (a->body.n_args != b->body.n_args || (x.n_nodes && y.n_nodes && at < 1))) {
            rp__text_puts(out, "the arguments differ");
        } else {
            rp__text_add(out, "node %zu: ", k);
            describe(b, &y, k, out);
            rp__text_puts(out, " instead of ");
            describe(a, &x, k, out);
            if (k < y.n_nodes)
                site = b->nodes[y.node_id[k]].site;
            else if (k < x.n_nodes)
                site = a->nodes[x.node_id[k]].site;
        }
    }
    words_free(&x);
    words_free(&y);
    return site;
}
