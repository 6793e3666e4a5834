/* Functionalise: makes a graph in which no op writes memory.
   Requires  a graph as traced: in-place ops, views, one value for each tensor handle, program order.
   Keeps     results and their order, random counters, sites, metas.
   Breaks    nothing that a later pass relies on; strides of values that were views of written memory become those of the
             functional result.
   After it  only ASSIGN nodes write, at the end of the body, at most one for each argument or captured tensor; a result that
             shares memory with a written argument is derived from the result of its ASSIGN.

   A storage is the memory behind a base value (not a view). It has a version: the base's current functional value. A traced
   value is a path of view ops from its base. Reading a value whose derivation is older than the storage's version replays
   the path on the current base; writing through a path computes the new base by the inverse scatters, innermost first. */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"

typedef struct place { /* of a traced value */
    rp__ir_value base;   /* itself when it is no view */
    rp__ir_value parent; /* the value it is a view of */
    uint32_t node;       /* the view op */
    uint32_t version;    /* of the storage when map[] was derived; STALE: never, or inside a region that has ended */
    uint32_t depth;      /* of the region in which map[] was derived */
} place;
enum { STALE = UINT32_MAX };

typedef struct storage { /* indexed by base value */
    rp__ir_value current; /* in dst */
    uint32_t version;     /* 0: never written */
    const char *site;     /* of the last write */
} storage;

typedef struct functionaliser {
    rp__rewrite w;
    place *places;
    rp__ir_value *same; /* the result of an in-place op is its operand: the value that stands for both */
    storage *storages;
    rp__ir_value *path; /* scratch for replays, n_values */
    uint32_t depth;     /* of regions */
    uint32_t *born;     /* region depth at which a base was made */
    rp__ir_value *outer; /* per base: its value in dst before any write */
} functionaliser;

static void add_base(functionaliser *f, rp__ir_value v) {
    f->same[v] = v;
    f->places[v] = (place){.base = v, .parent = RP__IR_NONE, .node = RP__IR_NONE, .version = 0, .depth = f->depth};
    f->storages[v] = (storage){.current = f->w.map[v], .version = 0, .site = ""};
    f->born[v] = f->depth;
    f->outer[v] = f->w.map[v];
}

/* The functional value of traced value v now. */
static rp_status read_value(functionaliser *f, rp__ir_block *block, rp__ir_value v, rp__ir_value *out) {
    v = f->same[v];
    const storage *s = &f->storages[f->places[v].base];
    size_t n = 0;
    rp__ir_value at = v;
    while (f->places[at].version != s->version && f->places[at].parent != RP__IR_NONE) {
        f->path[n++] = at;
        at = f->places[at].parent;
    }
    if (f->places[at].version != s->version) { /* the base itself */
        f->w.map[at] = s->current;
        f->places[at].version = s->version;
        f->places[at].depth = f->born[at]; /* written at the depth of its birth only */
    }
    while (n > 0) {
        rp__ir_value child = f->path[--n];
        const rp__ir_node *view = &f->w.src->nodes[f->places[child].node];
        rp__ir_value from = f->w.map[f->places[child].parent], made;
        /* `view` needs strides that fit; a functional value may lie in memory otherwise than the written one did. */
        if (view->op == rp__op_builtin(RP__OP_view) && !rp__ir_contiguous(f->w.dst, from)) {
            rp__meta meta = f->w.dst->values[from].meta;
            RP_TRY(rp__ir_emit(f->w.dst, block, rp__op_builtin(RP__OP_clone), &from, 1, NULL, 0, &meta, 1, view->site, &from));
        }
        RP_TRY(rp__ir_emit_view(f->w.dst, block, view->op, from, view->attrs, view->n_attrs, view->site, &made));
        f->w.dst->values[made].requires_grad = f->w.src->values[child].requires_grad;
        f->w.map[child] = made;
        f->places[child].version = s->version;
        f->places[child].depth = f->depth;
    }
    *out = f->w.map[v];
    return RP_OK;
}

static rp_attr int_attr(int64_t i) {
    rp_attr a;
    memset(&a, 0, sizeof a);
    a.kind = RP_ATTR_INT;
    a.v.i = i;
    return a;
}

static rp_status emit_like(functionaliser *f, rp__ir_block *block, rp__op_id op, const rp__ir_value *in, uint32_t n_in,
                           const rp_attr *attrs, uint32_t n_attrs, rp__ir_value like, const char *site,
                           rp__ir_value *out) {
    rp__meta meta = f->w.dst->values[like].meta;
    return rp__ir_emit(f->w.dst, block, rp__op_builtin(op), in, n_in, attrs, n_attrs, &meta, 1, site, out);
}

/* value as a tensor of the sizes of `like`: element order kept. */
static rp_status emit_reshape(functionaliser *f, rp__ir_block *block, rp__ir_value value, rp__ir_value like,
                              const char *site, rp__ir_value *out) {
    if (rp__meta_same_size(&f->w.dst->values[value].meta, &f->w.dst->values[like].meta)) {
        *out = value;
        return RP_OK;
    }
    if (!rp__ir_contiguous(f->w.dst, value)) {
        RP_TRY(emit_like(f, block, RP__OP_clone, &value, 1, NULL, 0, value, site, &value));
    }
    rp_attr size;
    memset(&size, 0, sizeof size);
    size.kind = RP_ATTR_INTS;
    const rp__meta *meta = &f->w.dst->values[like].meta;
    int64_t dims[RP_MAX_DIMS];
    memcpy(dims, meta->size, sizeof dims);
    size.n = meta->ndim;
    size.v.ints = dims;
    return rp__ir_emit_view(f->w.dst, block, rp__op_builtin(RP__OP_view), value, &size, 1, site, out);
}

/* The parent's new value after `value` was written through the view: old is the parent's value before. */
static rp_status invert_view(functionaliser *f, rp__ir_block *block, const rp__ir_node *view, rp__ir_value old,
                             rp__ir_value value, const char *site, rp__ir_value *out) {
    const rp__op *op = view->op;
    rp_ir *dst = f->w.dst;
    if (op == rp__op_builtin(RP__OP_detach)) {
        *out = value;
        return RP_OK;
    }
    if (op == rp__op_builtin(RP__OP_slice)) {
        rp__ir_value in[2] = {old, value};
        return emit_like(f, block, RP__OP_slice_scatter, in, 2, view->attrs, view->n_attrs, old, site, out);
    }
    if (op == rp__op_builtin(RP__OP_select)) {
        rp__ir_value in[2] = {old, value};
        return emit_like(f, block, RP__OP_select_scatter, in, 2, view->attrs, view->n_attrs, old, site, out);
    }
    if (op == rp__op_builtin(RP__OP_transpose)) {
        return rp__ir_emit_view(dst, block, op, value, view->attrs, view->n_attrs, site, out);
    }
    if (op == rp__op_builtin(RP__OP_permute)) {
        size_t n = view->attrs[0].n;
        int64_t inverse[RP_MAX_DIMS];
        for (size_t d = 0; d < n; d++) {
            size_t from = 0;
            RP_TRY(rp__wrap_dim(view->attrs[0].v.ints[d], n, &from));
            inverse[from] = (int64_t)d;
        }
        rp_attr dims = view->attrs[0];
        dims.v.ints = inverse;
        return rp__ir_emit_view(dst, block, op, value, &dims, 1, site, out);
    }
    if (op == rp__op_builtin(RP__OP_view) || op == rp__op_builtin(RP__OP_unsqueeze) ||
        op == rp__op_builtin(RP__OP_squeeze)) {
        return emit_reshape(f, block, value, old, site, out);
    }
    if (op == rp__op_builtin(RP__OP_expand)) {
        rp_dim before = rp__numel(dst->values[old].meta.size, dst->values[old].meta.ndim);
        rp_dim after = rp__numel(dst->values[value].meta.size, dst->values[value].meta.ndim);
        if (!rp__dim_is(RP__DIM_EQ, before, after)) {
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "in-place write through an expanded tensor: several elements share one memory location at %s",
                            site);
        }
        return emit_reshape(f, block, value, old, site, out);
    }
    return rp__fail(RP_ERROR_UNAVAILABLE, "in-place write through a view made by %s at %s", op->name, site);
}

/* Traced value v now holds `value` (same sizes and dtype). */
static rp_status write_value(functionaliser *f, rp__ir_block *block, rp__ir_value v, rp__ir_value value,
                             const char *site) {
    v = f->same[v];
    storage *s = &f->storages[f->places[v].base];
    if (f->born[f->places[v].base] < f->depth) {
        return rp__fail(RP_ERROR_UNAVAILABLE, "a branch or loop body writes a tensor from outside at %s", site);
    }
    /* Old values of the parents are read before the version moves. */
    rp__ir_value at = v;
    uint32_t old_version = s->version;
    while (f->places[at].parent != RP__IR_NONE) {
        const rp__ir_node *view = &f->w.src->nodes[f->places[at].node];
        rp__ir_value parent = f->places[at].parent, old, above;
        if (view->op == rp__op_builtin(RP__OP_detach)) {
            old = RP__IR_NONE; /* not read */
        } else {
            RP_TRY(read_value(f, block, parent, &old));
        }
        RP_TRY(invert_view(f, block, view, old, value, site, &above));
        f->w.map[at] = value;
        f->places[at].version = old_version + 1;
        f->places[at].depth = f->depth;
        at = parent;
        value = above;
    }
    f->w.map[at] = value;
    f->places[at].version = old_version + 1;
    s->version = old_version + 1;
    s->current = value;
    s->site = site;
    return RP_OK;
}

static rp_status functionalise_region(void *ctx, const rp__ir_block *from, rp__ir_block *to);

/* Makes map[] of every result current, so that rp__rewrite_results takes the right values. */
static rp_status read_results(functionaliser *f, const rp__ir_block *from, rp__ir_block *to) {
    for (uint32_t k = 0; k < from->n_results; k++) {
        rp__ir_value v = from->results[k];
        if (v != RP__IR_NONE) RP_TRY(read_value(f, to, v, &f->w.map[v]));
    }
    return RP_OK;
}

/* Operands of a node, as functional values. */
static rp_status read_operands(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, rp__ir_value *in) {
    for (uint32_t k = 0; k < n->n_in; k++) {
        in[k] = RP__IR_NONE;
        if (n->in[k] != RP__IR_NONE) RP_TRY(read_value(f, block, n->in[k], &in[k]));
    }
    return RP_OK;
}

/* The parameter that flat operand k belongs to; NULL if none. */
static const rp__param *param_of(const rp__ir_node *n, uint32_t k) {
    const rp__schema *s = &n->op->schema;
    uint32_t tensor = 0;
    for (uint32_t p = 0; p < s->n_params; p++) {
        if (s->params[p].kind == RP__PARAM_ATTR) continue;
        if (k >= n->list_begin[tensor] && k < n->list_begin[tensor + 1]) return &s->params[p];
        tensor++;
    }
    return NULL;
}

/* add_(self, ...) -> self' = add(self, ...), converted to self's dtype where promotion widened it. */
static rp_status in_place(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, const rp__ir_value *in) {
    rp_ir *dst = f->w.dst;
    const rp__op *op = rp__op_find(n->op->functional);
    if (!op) {
        return rp__fail(RP_ERROR_INTERNAL, "the functional form of %s, %s, is not in the op table", n->op->name,
                        n->op->functional);
    }
    rp_tensor fakes[8], *operands[8] = {0};
    rp__call call = {.op = op, .site = n->site, .in = operands, .n_in = n->n_in, .attrs = n->attrs, .n_attrs = n->n_attrs};
    if (n->n_in > 8) return rp__fail(RP_ERROR_INTERNAL, "%s has %u operands", n->op->name, n->n_in);
    memcpy(call.list_begin, n->list_begin, sizeof call.list_begin);
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (in[k] == RP__IR_NONE) continue;
        rp__ir_fake_tensor(dst, in[k], &fakes[k]);
        operands[k] = &fakes[k];
    }
    rp__meta meta[RP__MAX_OUTS];
    RP_TRY(rp__op_infer(&call, meta));
    rp__ir_value value;
    RP_TRY(rp__ir_emit(dst, block, op, in, n->n_in, n->attrs, n->n_attrs, meta, 1, n->site, &value));
    bool needs_grad = n->n_out > 0 && f->w.src->values[n->out[0]].requires_grad;
    dst->values[value].requires_grad = needs_grad;
    uint32_t node = dst->values[value].node;
    dst->nodes[node].random_offset = n->random_offset;
    dst->nodes[node].random_count = n->random_count;
    rp_dtype dtype = f->w.src->values[n->in[0]].meta.dtype;
    if (meta[0].dtype != dtype) {
        rp_attr to;
        memset(&to, 0, sizeof to);
        to.kind = RP_ATTR_DTYPE;
        to.v.dtype = dtype;
        meta[0].dtype = dtype;
        RP_TRY(rp__ir_emit(dst, block, rp__op_builtin(RP__OP_to_dtype), &value, 1, &to, 1, meta, 1, n->site, &value));
        dst->values[value].requires_grad = needs_grad;
    }
    return write_value(f, block, n->in[0], value, n->site);
}

/* An op that writes several operands and has no functional form (optimizer steps): the node stays, is read as a function, and
   gets one result a written operand, in order: the operand's value afterwards. program.c runs it on the memory itself where
   nobody needs the old value. */
static rp_status written_lists(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, const rp__ir_value *in) {
    rp_ir *dst = f->w.dst;
    uint32_t n_written = 0;
    for (uint32_t k = 0; k < n->n_in; k++) {
        const rp__param *p = param_of(n, k);
        if (p && p->written) n_written++;
    }
    uint32_t node = rp__ir_add_node(dst, block, RP__IR_OP, n->op, in, n->n_in, n->list_begin, n->attrs, n->n_attrs,
                                    n_written, n->site);
    if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    uint32_t made = 0;
    for (uint32_t k = 0; k < n->n_in; k++) {
        const rp__param *p = param_of(n, k);
        if (!p || !p->written) continue;
        rp__meta meta = dst->values[in[k]].meta;
        rp__ir_value v = rp__ir_add_value(dst, &meta, node, made, n->site);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        memcpy(dst->values[v].stride, dst->values[in[k]].stride, sizeof dst->values[v].stride);
        dst->nodes[node].out[made++] = v;
    }
    made = 0;
    for (uint32_t k = 0; k < n->n_in; k++) {
        const rp__param *p = param_of(n, k);
        if (p && p->written) RP_TRY(write_value(f, block, n->in[k], dst->nodes[node].out[made++], n->site));
    }
    return RP_OK;
}

static rp_status visit_op(functionaliser *f, rp__ir_block *block, uint32_t index) {
    const rp__ir_node *n = &f->w.src->nodes[index];
    rp__ir_value few[16], *in = few;
    if (n->n_in > 16) {
        in = rp__alloc(n->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    rp_status status = RP_OK;
    if (rp__ir_is_view(n)) {
        /* Nothing is emitted for a view until it is read: what a later write makes stale is never made. */
        rp__ir_value v = n->out[0], parent = f->same[n->in[0]];
        f->same[v] = v;
        f->places[v] = (place){.base = f->places[parent].base, .parent = parent, .node = index, .version = STALE};
        goto done;
    }
    RP_TRY_GOTO(status, done, read_operands(f, block, n, in));
    if (n->op->flags & RP_OP_INPLACE) {
        status = n->op->functional[0] ? in_place(f, block, n, in) : written_lists(f, block, n, in);
        if (status != RP_OK) goto done;
        for (uint32_t k = 0; k < n->n_out; k++) f->same[n->out[k]] = f->same[n->in[0]];
        goto done;
    }
    RP_TRY_GOTO(status, done, rp__rewrite_copy_with(&f->w, block, index, in));
    for (uint32_t k = 0; k < n->n_out; k++) add_base(f, n->out[k]);
done:
    if (in != few) rp__free(in);
    return status;
}

/* Regions: inputs are read, inner storages are functional in themselves; writing an outer one is refused in write_value. */
static rp_status visit_region_node(functionaliser *f, rp__ir_block *block, uint32_t index) {
    const rp__ir_node *n = &f->w.src->nodes[index];
    rp__ir_value few[16], *in = few;
    if (n->n_in > 16) {
        in = rp__alloc(n->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    rp_status status;
    RP_TRY_GOTO(status, done, read_operands(f, block, n, in));
    f->depth++;
    status = rp__rewrite_copy_regions(&f->w, block, index, in, functionalise_region, f);
    f->depth--;
    if (status != RP_OK) goto done;
    for (size_t v = 0; v < f->w.src->n_values; v++) { /* what a region derived does not exist outside it */
        if (f->places[v].depth > f->depth) f->places[v].version = STALE;
    }
    for (uint32_t k = 0; k < n->n_out; k++) add_base(f, n->out[k]);
done:
    if (in != few) rp__free(in);
    return status;
}

static rp_status functionalise_region(void *ctx, const rp__ir_block *from, rp__ir_block *to) {
    functionaliser *f = ctx;
    for (uint32_t k = 0; k < from->n_args; k++) add_base(f, from->args[k]);
    for (size_t k = 0; k < from->n_nodes; k++) {
        uint32_t index = from->nodes[k];
        const rp__ir_node *n = &f->w.src->nodes[index];
        if (n->dead) continue;
        switch (n->kind) {
        case RP__IR_OP: RP_TRY(visit_op(f, to, index)); break;
        case RP__IR_COND:
        case RP__IR_WHILE:
        case RP__IR_CHECKPOINT: RP_TRY(visit_region_node(f, to, index)); break;
        case RP__IR_ASSIGN: { /* a traced write back: the same as copy_ over the whole */
            rp__ir_value value;
            RP_TRY(read_value(f, to, n->in[1], &value));
            RP_TRY(write_value(f, to, n->in[0], value, n->site));
            for (uint32_t r = 0; r < n->n_out; r++) f->same[n->out[r]] = f->same[n->in[0]];
            break;
        }
        default:
            RP_TRY(rp__rewrite_copy(&f->w, to, index));
            for (uint32_t r = 0; r < n->n_out; r++) add_base(f, n->out[r]);
        }
    }
    return f->depth == 0 ? RP_OK : read_results(f, from, to); /* the body's results follow the write backs */
}

static bool to_write_back(const functionaliser *f, rp__ir_value v) {
    const storage *s = &f->storages[v];
    return s->version > 0 && f->same[v] == v && f->places[v].base == v && rp__ir_is_outer(f->w.src, v) &&
           s->current != f->outer[v];
}

/* One ASSIGN a written argument or captured tensor, in the order of their values. */
static rp_status write_back(functionaliser *f) {
    const rp_ir *src = f->w.src;
    /* Assignments among arguments (a swap) would read what another one has written: those values are copied first. */
    for (rp__ir_value v = 0; v < src->n_values; v++) {
        if (!to_write_back(f, v)) continue;
        storage *s = &f->storages[v];
        rp__ir_value root = s->current;
        for (const rp__ir_node *p = rp__ir_producer(f->w.dst, root); rp__ir_is_view(p); p = rp__ir_producer(f->w.dst, root)) {
            root = p->in[0];
        }
        if (!rp__ir_is_outer(f->w.dst, root)) continue;
        RP_TRY(emit_like(f, &f->w.dst->body, RP__OP_clone, &s->current, 1, NULL, 0, s->current, s->site, &s->current));
    }
    for (rp__ir_value v = 0; v < src->n_values; v++) {
        storage *s = &f->storages[v];
        if (!to_write_back(f, v)) continue;
        rp__ir_value target = f->outer[v], after;
        RP_TRY(rp__ir_emit_assign(f->w.dst, &f->w.dst->body, target, s->current, s->site, &after));
        s->current = after;
        s->version++;
    }
    return RP_OK;
}

rp_status rp__functionalise(const rp_ir *ir, rp_ir **out) {
    functionaliser f;
    memset(&f, 0, sizeof f);
    size_t n = ir->n_values ? ir->n_values : 1;
    rp_status status = rp__rewrite_begin(&f.w, ir);
    if (status != RP_OK) goto done;
    f.places = rp__calloc(n, sizeof *f.places);
    f.same = rp__calloc(n, sizeof *f.same);
    f.storages = rp__calloc(n, sizeof *f.storages);
    f.path = rp__calloc(n, sizeof *f.path);
    f.born = rp__calloc(n, sizeof *f.born);
    f.outer = rp__calloc(n, sizeof *f.outer);
    if (!f.places || !f.same || !f.storages || !f.path || !f.born || !f.outer) {
        status = RP__OOM("tables of functionalisation");
        goto done;
    }
    for (size_t v = 0; v < ir->n_values; v++) {
        f.same[v] = (rp__ir_value)v;
        f.places[v] = (place){.base = (rp__ir_value)v, .parent = RP__IR_NONE, .node = RP__IR_NONE, .version = STALE};
    }
    RP_TRY_GOTO(status, done, functionalise_region(&f, &ir->body, &f.w.dst->body));
    RP_TRY_GOTO(status, done, write_back(&f));
    RP_TRY_GOTO(status, done, read_results(&f, &ir->body, &f.w.dst->body));
    rp__rewrite_inputs(&f.w, &ir->body, &f.w.dst->body);
    RP_TRY_GOTO(status, done, rp__rewrite_results(&f.w, &ir->body, &f.w.dst->body));
    status = rp__pass_check(f.w.dst, "functionalise");
done:
    rp__free(f.places);
    rp__free(f.same);
    rp__free(f.storages);
    rp__free(f.path);
    rp__free(f.born);
    rp__free(f.outer);
    return rp__rewrite_end(&f.w, status, out);
}
