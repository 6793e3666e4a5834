/* The public view of a graph (reprise_ir.h): nodes, values, symbols. Reads and checks numbers; changes nothing, takes no lock, as a
   published graph is immutable. Graphs are made in compile/ir_build.c and by tracing. */
#include <string.h>

#include "core/text.h"
#include "reprise_ir.h"
#include "trace/ir.h"

_Static_assert((int)RP_IR_OP == RP__IR_OP && (int)RP_IR_CAPTURED == RP__IR_CAPTURED &&
                   (int)RP_IR_CONST == RP__IR_CONST && (int)RP_IR_COND == RP__IR_COND &&
                   (int)RP_IR_WHILE == RP__IR_WHILE && (int)RP_IR_CHECKPOINT == RP__IR_CHECKPOINT &&
                   (int)RP_IR_FUNCTION == RP__IR_FUNCTION && (int)RP_IR_ASSIGN == RP__IR_ASSIGN &&
                   (int)RP_IR_ASSIGN + 1 == RP__IR_KIND_COUNT,
               "kinds of nodes have public numbers");
_Static_assert(RP_IR_NONE == RP__IR_NONE, "an absent value has a public number");

/* A public block is a block of ours. */
static const rp__ir_block *inside(const rp_ir_block *block) { return (const rp__ir_block *)(const void *)block; }
static const rp_ir_block *outside(const rp__ir_block *block) { return (const rp_ir_block *)(const void *)block; }

/* Structs grow at their end: what the caller's version has is filled. */
static rp_status fill(void *to, size_t struct_size, const void *from, size_t bytes, size_t least, const char *what) {
    if (struct_size < least)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: struct_size is %zu; set it to the size of the struct", what,
                        struct_size);
    size_t n = struct_size < bytes ? struct_size : bytes;
    memcpy((char *)to + sizeof struct_size, (const char *)from + sizeof struct_size, n - sizeof struct_size);
    return RP_OK;
}

/* For what cannot fail: NULL, and a graph that could not be made, are empty ones; a released one is an error. */
static bool there(const rp_ir *ir, const char *call) {
    return ir && ir != rp__ir_failed() && rp__ir_usable(ir, call) == RP_OK;
}

/* ---- blocks */

const char *rp_ir_name(const rp_ir *ir) { return there(ir, "rp_ir_name") ? ir->name : ""; }

const rp_ir_block *rp_ir_body(const rp_ir *ir) { return there(ir, "rp_ir_body") ? outside(&ir->body) : NULL; }

size_t rp_ir_block_args(const rp_ir_block *block, const rp_ir_value **args) {
    if (args) *args = block ? inside(block)->args : NULL;
    return block ? inside(block)->n_args : 0;
}

size_t rp_ir_block_results(const rp_ir_block *block, const rp_ir_value **results) {
    if (results) *results = block ? inside(block)->results : NULL;
    return block ? inside(block)->n_results : 0;
}

/* ---- nodes */

static rp_status give_node(const rp_ir *ir, uint32_t number, rp_ir_node *out) {
    const rp__ir_node *n = &ir->nodes[number];
    rp_ir_node full;
    memset(&full, 0, sizeof full);
    full.number = number;
    full.kind = (rp_ir_kind)n->kind;
    full.op = n->kind == RP__IR_OP ? n->op->name : "";
    full.in = n->in, full.n_in = n->n_in;
    full.out = n->out, full.n_out = n->n_out;
    full.attrs = n->attrs, full.n_attrs = n->n_attrs;
    full.n_regions = n->n_regions;
    full.captured = n->kind == RP__IR_CAPTURED ? ir->captured[n->captured_index] : NULL;
    full.data = n->data, full.data_bytes = n->data_bytes;
    full.random_offset = n->random_offset, full.random_count = n->random_count;
    full.has_effect = rp__ir_node_has_effect(ir, n);
    full.site = n->site ? n->site : "";
    return fill(out, out->struct_size, &full, sizeof full, offsetof(rp_ir_node, site) + sizeof full.site, "rp_ir_node");
}

bool rp_ir_next_at(const char *site, const rp_ir *ir, const rp_ir_block *block, size_t *at, rp_ir_node *node) {
    RP__CALLED_FROM(site);
    if (!there(ir, "rp_ir_next") || !block || !at || !node) return false;
    const rp__ir_block *b = inside(block);
    while (*at < b->n_nodes && ir->nodes[b->nodes[*at]].dead) ++*at;
    return *at < b->n_nodes && give_node(ir, b->nodes[(*at)++], node) == RP_OK;
}

static const rp__ir_node *node_at(const rp_ir *ir, uint32_t number, const char *call) {
    if (rp__ir_usable(ir, call) != RP_OK) return NULL;
    if (number < ir->n_nodes && !ir->nodes[number].dead) return &ir->nodes[number];
    (void)rp__fail(RP_ERROR_INDEX, "graph \"%s\" has no node %u", ir->name, number);
    return NULL;
}

rp_status rp_ir_node_get_at(const char *site, const rp_ir *ir, uint32_t number, rp_ir_node *node) {
    RP__CALLED_FROM(site);
    if (!node_at(ir, number, "rp_ir_node_get")) return rp_error_status();
    if (!node) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_node_get: nowhere to write to");
    return give_node(ir, number, node);
}

const rp_ir_block *rp_ir_node_region_at(const char *site, const rp_ir *ir, uint32_t node, size_t region) {
    RP__CALLED_FROM(site);
    const rp__ir_node *n = node_at(ir, node, "rp_ir_node_region");
    if (n && region < n->n_regions) return outside(&n->regions[region]);
    if (n) (void)rp__fail(RP_ERROR_INDEX, "node %u of graph \"%s\" has no region %zu", node, ir->name, region);
    return NULL;
}

bool rp_ir_node_writes_at(const char *site, const rp_ir *ir, uint32_t node, size_t k) {
    RP__CALLED_FROM(site);
    const rp__ir_node *n = node_at(ir, node, "rp_ir_node_writes");
    return n && k < n->n_in && rp__ir_writes(n, (uint32_t)k);
}

/* The parameter of that name: its number among tensors, or among attributes. */
static bool find_param(const rp_ir *ir, uint32_t node, const char *name, bool tensor, unsigned *place) {
    const rp__ir_node *n = node_at(ir, node, tensor ? "rp_ir_operands" : "rp_ir_attr");
    if (!n) return false;
    unsigned tensors = 0, attrs = 0;
    for (unsigned i = 0; n->kind == RP__IR_OP && i < n->op->schema.n_params; i++) {
        const rp__param *p = &n->op->schema.params[i];
        unsigned *count = p->kind == RP__PARAM_ATTR ? &attrs : &tensors;
        if (name && (p->kind != RP__PARAM_ATTR) == tensor && strcmp(p->name, name) == 0) {
            *place = *count;
            return true;
        }
        ++*count;
    }
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "node %u of graph \"%s\" (%s) has no %s '%s'", node, ir->name,
                   n->kind == RP__IR_OP ? n->op->schema_text : "not an op", tensor ? "operand" : "attribute",
                   name ? name : "(null)");
    return false;
}

size_t rp_ir_operands_at(const char *site, const rp_ir *ir, uint32_t node, const char *name, size_t *first) {
    RP__CALLED_FROM(site);
    unsigned place;
    if (!find_param(ir, node, name, true, &place)) return 0;
    const rp__ir_node *n = &ir->nodes[node];
    if (first) *first = n->list_begin[place];
    return n->list_begin[place + 1] - n->list_begin[place];
}

const rp_attr *rp_ir_attr_at(const char *site, const rp_ir *ir, uint32_t node, const char *name) {
    RP__CALLED_FROM(site);
    unsigned place;
    return find_param(ir, node, name, false, &place) ? &ir->nodes[node].attrs[place] : NULL;
}

/* ---- values */

size_t rp_ir_value_count(const rp_ir *ir) { return there(ir, "rp_ir_value_count") ? ir->n_values : 0; }

rp_status rp_ir_value_get_at(const char *site, const rp_ir *ir, rp_ir_value value, rp_ir_value_info *info) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__ir_usable(ir, "rp_ir_value_get"));
    if (!info) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_value_get: nowhere to write to");
    if (value >= ir->n_values) return rp__fail(RP_ERROR_INDEX, "graph \"%s\" has no value %u", ir->name, value);
    const rp__ir_value_info *v = &ir->values[value];
    rp_ir_value_info full;
    memset(&full, 0, sizeof full);
    full.dtype = v->meta.dtype;
    full.device = v->meta.device;
    full.ndim = v->meta.ndim;
    memcpy(full.size, v->meta.size, v->meta.ndim * sizeof *full.size);
    memcpy(full.stride, v->stride, v->meta.ndim * sizeof *full.stride);
    full.offset = v->offset;
    rp__symbols *scratch;
    RP_TRY(rp__symbols_scratch(ir->symbols, &scratch));
    rp__symbols *before = rp__symbols_enter(scratch);
    bool quiet = rp__symbols_quiet(true);
    full.contiguous = rp__ir_value_contiguous(v);
    (void)rp__symbols_quiet(quiet);
    (void)rp__symbols_enter(before);
    rp__symbols_release(scratch);
    full.memory = v->storage;
    full.producer = v->node;
    full.index = v->out_index;
    full.requires_grad = v->requires_grad;
    full.site = v->site ? v->site : "";
    return fill(info, info->struct_size, &full, sizeof full, offsetof(rp_ir_value_info, site) + sizeof full.site,
                "rp_ir_value_info");
}

/* ---- symbols */

bool rp_ir_is_symbolic(int64_t size) { return rp__dim_is_symbol(size); }

size_t rp_ir_symbol_count(const rp_ir *ir) {
    return there(ir, "rp_ir_symbol_count") ? rp__symbols_count(ir->symbols) : 0;
}

rp_status rp_ir_symbol_get_at(const char *site, const rp_ir *ir, size_t index, rp_ir_symbol *symbol) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__ir_usable(ir, "rp_ir_symbol_get"));
    if (!symbol) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_symbol_get: nowhere to write to");
    if (index >= rp_ir_symbol_count(ir))
        return rp__fail(RP_ERROR_INDEX, "graph \"%s\" has no symbol %zu", ir->name, index);
    const rp__symbol *s = rp__symbols_at(ir->symbols, index);
    rp_ir_symbol full;
    memset(&full, 0, sizeof full);
    full.arg = s->input == RP__SYMBOL_NO_SOURCE ? SIZE_MAX : s->input;
    full.dim = s->dim;
    full.is_stride = s->is_stride;
    full.hint = s->hint;
    return fill(symbol, symbol->struct_size, &full, sizeof full, offsetof(rp_ir_symbol, hint) + sizeof full.hint,
                "rp_ir_symbol");
}

/* A number, or a word of this graph's table. */
static rp_status known(const rp_ir *ir, int64_t size, const char *call) {
    RP_TRY(rp__ir_usable(ir, call));
    if (rp__symbols_knows(ir->symbols, size)) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the size is a symbol of another graph than \"%s\"", ir->name);
}

size_t rp_ir_symbol_of_at(const char *site, const rp_ir *ir, int64_t size) {
    RP__CALLED_FROM(site);
    size_t index;
    if (!rp__dim_is_symbol(size) || known(ir, size, "rp_ir_symbol_of") != RP_OK) return SIZE_MAX;
    return rp__symbols_is_plain(ir->symbols, size, &index) ? index : SIZE_MAX;
}

int64_t rp_ir_size_hint_at(const char *site, const rp_ir *ir, int64_t size) {
    RP__CALLED_FROM(site);
    if (!rp__dim_is_symbol(size)) return size;
    return known(ir, size, "rp_ir_size_hint") == RP_OK ? rp__symbols_hint(ir->symbols, size) : 0;
}

rp_status rp_ir_size_value_at(const char *site, const rp_ir *ir, int64_t size, const int64_t *symbols, int64_t *value) {
    RP__CALLED_FROM(site);
    if (!value) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_size_value: nowhere to write to");
    *value = size;
    if (!rp__dim_is_symbol(size)) return RP_OK;
    *value = 0;
    RP_TRY(known(ir, size, "rp_ir_size_value"));
    if (!symbols) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_size_value: the values of symbols are NULL");
    if (rp__symbols_value(ir->symbols, size, symbols, value)) return RP_OK;
    return rp__fail(RP_ERROR_SHAPE, "a size of graph \"%s\" overflows for these symbols", ir->name);
}

rp_status rp_ir_scalar_value_at(const char *site, const rp_ir *ir, rp_scalar scalar, const int64_t *symbols,
                                rp_scalar *value) {
    RP__CALLED_FROM(site);
    int64_t size;
    double number;
    if (!value) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_scalar_value: nowhere to write to");
    *value = scalar;
    if (!rp__scalar_is_symbol(scalar)) return RP_OK;
    *value = rp_i64(0);
    if (rp__scalar_is_size(scalar)) {
        RP_TRY(rp_ir_size_value_at(site, ir, scalar.v.i, symbols, &size));
        *value = rp_i64(size);
        return RP_OK;
    }
    RP_TRY(rp__ir_usable(ir, "rp_ir_scalar_value"));
    if (!symbols) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_scalar_value: the values of symbols are NULL");
    if (!rp__symbols_number(ir->symbols, scalar.v.i, symbols, &number))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "the number is one of another graph than \"%s\", or overflows for these symbols", ir->name);
    *value = rp_f64(number);
    return RP_OK;
}

rp_status rp_ir_symbols_of_args_at(const char *site, const rp_ir *ir, rp_tensor *const *in, size_t n_in,
                                   int64_t *symbols) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__ir_usable(ir, "rp_ir_symbols_of_args"));
    if (n_in != ir->body.n_args || (n_in && !in) || (rp_ir_symbol_count(ir) && !symbols))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph \"%s\" takes %u arguments, not %zu", ir->name,
                        ir->body.n_args, n_in);
    for (size_t k = 0; k < rp_ir_symbol_count(ir); k++) {
        const rp__symbol *s = rp__symbols_at(ir->symbols, k);
        symbols[k] = s->hint;
        if (s->input == RP__SYMBOL_NO_SOURCE) continue;
        if (s->input >= n_in || s->dim >= rp_ndim(in[s->input]))
            return rp__fail(RP_ERROR_GUARD, "argument %u has no dimension %u, which graph \"%s\" reads", s->input,
                            s->dim, ir->name);
        symbols[k] = s->is_stride ? rp_stride(in[s->input], s->dim) : rp_size(in[s->input], s->dim);
    }
    size_t failed;
    if (!ir->symbols || rp__symbols_hold(ir->symbols, symbols, &failed)) return RP_OK;
    rp__text t = {0};
    rp__symbols_guard_text(ir->symbols, rp__symbols_guard_at(ir->symbols, failed), true, &t);
    rp_status status = rp__fail(RP_ERROR_GUARD, "graph \"%s\" holds where %s", ir->name, t.data ? t.data : "");
    rp__text_free(&t);
    return status;
}

size_t rp_ir_size_text_at(const char *site, const rp_ir *ir, int64_t size, char *buf, size_t bytes) {
    RP__CALLED_FROM(site);
    if (buf && bytes) *buf = '\0';
    if (rp__dim_is_symbol(size) && known(ir, size, "rp_ir_size_text") != RP_OK) return 0;
    rp__text t = {0};
    rp__symbols_text(rp__dim_is_symbol(size) ? ir->symbols : NULL, size, false, &t);
    size_t n = t.data ? strlen(t.data) : 0;
    if (buf && bytes) {
        size_t copied = n < bytes ? n : bytes - 1;
        if (copied) memcpy(buf, t.data, copied);
        buf[copied] = '\0';
    }
    rp__text_free(&t);
    return n;
}
