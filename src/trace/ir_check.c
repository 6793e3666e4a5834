/* The checker: what every graph keeps (ir.h). Types and shapes come from the ops' own rules, run on handles without memory.
   A debug build runs it after every pass; rp_ir_check runs it for users. It changes nothing, and records no guard. */
#include <string.h>

#include "core/alloc.h"
#include "trace/ir.h"

typedef struct checker {
    rp_ir *ir;
    uint32_t *seen; /* value -> number of the block that defines it, 0: not yet */
    uint32_t blocks;
    rp__storage *memory; /* of the stand-in handles: one for each storage of the graph */
} checker;

static rp_status fail(const checker *c, uint32_t node, const char *text) {
    rp__text t = {0};
    if (node != RP__IR_NONE) rp__ir_print_node(c->ir, node, &t);
    rp_status status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph \"%s\": %s%s%s", c->ir->name, text,
                                t.data ? ": " : "", t.data ? t.data : "");
    rp__text_free(&t);
    return status;
}

static bool dim_ok(const checker *c, rp_dim d, bool may_be_negative) {
    return rp__dim_is_symbol(d) ? rp__symbols_knows(c->ir->symbols, d) : may_be_negative || d >= 0;
}

static rp_status define(checker *c, rp__ir_value v, uint32_t node, uint32_t index, uint32_t block) {
    if (v >= c->ir->n_values) return fail(c, node, "a result without a value");
    const rp__ir_value_info *info = &c->ir->values[v];
    if (c->seen[v]) return fail(c, node, "a value is defined twice");
    if (info->node != node || info->out_index != index) return fail(c, node, "a value does not know its producer");
    if (!rp__dtype_is_valid(info->meta.dtype) || info->meta.ndim > RP_MAX_DIMS || info->storage >= c->ir->n_storages)
        return fail(c, node, "a value without a type");
    for (unsigned d = 0; d < info->meta.ndim; d++) {
        if (!dim_ok(c, info->meta.size[d], false) || !dim_ok(c, info->stride[d], true))
            return fail(c, node, "a size or stride that is no size of this graph");
    }
    c->seen[v] = block;
    return RP_OK;
}

static bool visible(const checker *c, rp__ir_value v, uint32_t block) {
    return v < c->ir->n_values && c->seen[v] == block;
}

static bool same_dims(const rp_dim *a, const rp_dim *b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

static bool same_meta(const rp__meta *a, const rp__meta *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && rp__device_equal(a->device, b->device) &&
           same_dims(a->size, b->size, a->ndim);
}

/* The strides of v; of a dim of one element it is never used, and a graph whose sizes were symbols has that of a longer one. */
static bool has_strides(const rp__ir_value_info *v, const rp_dim *stride) {
    for (unsigned d = 0; d < v->meta.ndim; d++)
        if (v->meta.size[d] != 1 && v->stride[d] != stride[d]) return false;
    return true;
}

/* A handle that shape rules may ask for everything but data. */
static void stand_in(const checker *c, rp__ir_value v, rp_tensor *t) {
    const rp__ir_value_info *info = &c->ir->values[v];
    memset(t, 0, sizeof *t);
    t->magic = RP__TENSOR_MAGIC;
    atomic_init(&t->refs, 1);
    t->dtype = (uint8_t)info->meta.dtype;
    t->ndim = info->meta.ndim;
    t->device = info->meta.device;
    t->storage = &c->memory[info->storage];
    t->storage->device = info->meta.device;
    t->offset = info->offset;
    memcpy(t->size, info->meta.size, sizeof t->size);
    memcpy(t->stride, info->stride, sizeof t->stride);
}

static rp_status check_op(checker *c, uint32_t at) {
    const rp__ir_node *n = &c->ir->nodes[at];
    const rp__op *op = n->op;
    if (!op || op->lowering == RP__COMPOSITE || (op->lowering != RP__VIEW && !op->infer))
        return fail(c, at, "not an op that a graph can hold");
    if (n->n_out != op->schema.n_outs || n->n_attrs != op->schema.n_attrs || n->n_in > RP__MAX_IN)
        return fail(c, at, "operands, attributes or results do not fit the schema");
    unsigned tensor = 0, attr = 0;
    for (unsigned i = 0; i < op->schema.n_params; i++) {
        const rp__param *p = &op->schema.params[i];
        if (p->kind == RP__PARAM_ATTR) {
            if (n->attrs[attr++].kind != (rp_attr_kind)p->attr_kind)
                return fail(c, at, "an attribute of another kind than the schema's");
            continue;
        }
        uint32_t begin = n->list_begin[tensor], end = n->list_begin[tensor + 1];
        tensor++;
        if (begin > end || end > n->n_in || (p->kind != RP__PARAM_TENSORS && end - begin != 1))
            return fail(c, at, "operands do not fit the schema");
        for (uint32_t k = begin; k < end; k++) {
            if (n->in[k] == RP__IR_NONE && p->kind != RP__PARAM_OPTIONAL_TENSOR && !p->optional)
                return fail(c, at, "an operand is missing");
        }
    }
    if (n->list_begin[tensor] != n->n_in) return fail(c, at, "operands do not fit the schema");

    rp_tensor *handles = rp__alloc((n->n_in + 1u) * sizeof *handles);
    rp_tensor **in = rp__calloc(n->n_in + 1u, sizeof *in);
    rp__meta meta[RP__MAX_OUTS];
    rp_tensor *out[RP__MAX_OUTS] = {NULL};
    rp__call call;
    rp__site_frame frame = rp__site_push(NULL, NULL);
    rp__site_pop(frame);
    rp_status status = RP_OK;
    if (!handles || !in) {
        status = RP__OOM("graph check");
        goto done;
    }
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (n->in[k] == RP__IR_NONE) continue;
        stand_in(c, n->in[k], &handles[k]);
        in[k] = &handles[k];
    }
    rp__ir_call(n, in, out, &call);
    memset(meta, 0, sizeof meta);
    frame = rp__site_push(n->site, op->name); /* rules name the op and the place */
    if (op->lowering == RP__VIEW) {
        rp__view view = {0};
        RP_TRY_GOTO(status, done, rp__op_view(&call, &meta[0], &view));
        const rp__ir_value_info *base = &c->ir->values[n->in[0]], *result = &c->ir->values[n->out[0]];
        if (result->storage != base->storage || result->offset != view.offset || result->meta.ndim != view.ndim ||
            !has_strides(result, view.stride))
            status = fail(c, at, "a view whose memory is not that of its rule");
    } else {
        RP_TRY_GOTO(status, done, rp__op_infer(&call, meta));
    }
    for (uint32_t k = 0; k < n->n_out && status == RP_OK; k++) {
        const rp__ir_value_info *info = &c->ir->values[n->out[k]];
        if (n->n_in == 0) meta[k].device = info->meta.device; /* a factory's is that of its trace, not of this thread */
        if (op->schema.out_written[k]) {
            uint32_t w = 0;
            while (w < n->n_in && !rp__ir_writes(n, w)) w++;
            const rp__ir_value_info *written = &c->ir->values[n->in[w < n->n_in ? w : 0]];
            if (w == n->n_in || info->storage != written->storage || info->offset != written->offset ||
                !same_meta(&info->meta, &written->meta) || !has_strides(info, written->stride))
                status = fail(c, at, "an in-place result that is not its operand");
        } else if (!same_meta(&info->meta, &meta[k])) {
            char want[RP__SHAPE_TEXT];
            rp__text t = {0};
            rp__text_add(&t, "the rule gives %s %s", rp_dtype_name(meta[k].dtype),
                         rp__shape_text(meta[k].size, meta[k].ndim, want));
            status = fail(c, at, t.data ? t.data : "the rule gives another type");
            rp__text_free(&t);
        } else if (op->lowering != RP__VIEW && !rp__ir_value_dense(info)) {
            status = fail(c, at, "a fresh result that does not fill its memory");
        }
    }
done:
    rp__site_pop(frame);
    rp__free(handles);
    rp__free(in);
    return status;
}

static rp_status check_block(checker *c, const rp__ir_block *block, unsigned depth);

static rp_status check_pass(const checker *c, uint32_t at, const rp__ir_value *values, uint32_t n,
                            const rp__ir_value *others, const char *text) {
    for (uint32_t k = 0; k < n; k++) {
        if (values[k] >= c->ir->n_values || others[k] >= c->ir->n_values ||
            !same_meta(&c->ir->values[values[k]].meta, &c->ir->values[others[k]].meta))
            return fail(c, at, text);
    }
    return RP_OK;
}

/* One region: what it takes and gives is of the types of the node's values. */
static rp_status check_region(checker *c, uint32_t at, uint32_t r, unsigned depth) {
    const rp__ir_node *n = &c->ir->nodes[at];
    const rp__ir_block *b = &n->regions[r];
    const rp__ir_part *takes = rp__ir_forms[n->kind].region[r].takes, gives = rp__ir_forms[n->kind].region[r].gives;
    uint32_t n_args, n_results, count, begin = 0;
    rp__ir_region_counts(n, r, &n_args, &n_results);
    if (b->n_args != n_args || b->n_results != n_results)
        return fail(c, at, "a block whose arguments or results are not those of its node");
    for (int k = 0; k < 3; k++, begin += count) {
        const rp__ir_value *values = rp__ir_part_values(n, takes[k], &count);
        RP_TRY(check_pass(c, at, b->args + begin, count, values,
                          "a block argument of another type than the node's value"));
    }
    RP_TRY(check_block(c, b, depth + 1));
    if (gives == RP__IR_CONDITION)
        return b->results[0] < c->ir->n_values && c->ir->values[b->results[0]].meta.dtype == RP_BOOL
                   ? RP_OK
                   : fail(c, at, "the condition is not bool");
    const rp__ir_value *values = rp__ir_part_values(n, gives, &count);
    for (uint32_t k = 0; k < count; k++) {
        if (gives == RP__IR_GRADIENTS && b->results[k] == RP__IR_NONE) continue;
        RP_TRY(
            check_pass(c, at, b->results + k, 1, values + k, "a block result of another type than the node's value"));
    }
    return RP_OK;
}

/* ---- what the table of kinds does not say */

/* A loop that keeps the history of its state: values, count, stacks. */
static rp_status check_while(checker *c, uint32_t at) {
    const rp__ir_node *n = &c->ir->nodes[at];
    int64_t keeps = n->attrs[1].v.i;
    if (keeps == 0) return RP_OK;
    if (keeps < 0 || keeps > n->n_out || n->n_out != 2 * keeps + 1 || n->attrs[0].v.i <= 0)
        return fail(c, at, "a history that does not fit the state of the loop");
    const rp__meta *count = &c->ir->values[n->in[keeps]].meta;
    if (count->dtype != RP_I64 || count->ndim != 0) return fail(c, at, "a history without a count of iterations");
    for (int64_t k = 0; k < keeps; k++) {
        const rp__meta *x = &c->ir->values[n->in[k]].meta, *stack = &c->ir->values[n->in[keeps + 1 + k]].meta;
        if (stack->dtype != x->dtype || stack->ndim != x->ndim + 1 || stack->size[0] != n->attrs[0].v.i ||
            !same_dims(stack->size + 1, x->size, x->ndim))
            return fail(c, at, "a history of another type than the state");
    }
    return RP_OK;
}

static rp_status check_cond(checker *c, uint32_t at) {
    const rp__ir_node *n = &c->ir->nodes[at];
    return c->ir->values[n->in[0]].meta.dtype == RP_BOOL ? RP_OK : fail(c, at, "the predicate is not bool");
}

static rp_status check_captured(checker *c, uint32_t at) {
    return c->ir->nodes[at].captured_index < c->ir->n_captured
               ? RP_OK
               : fail(c, at, "a captured tensor that the graph does not hold");
}

static rp_status check_const(checker *c, uint32_t at) {
    const rp__ir_node *n = &c->ir->nodes[at];
    const rp__meta *m = &c->ir->values[n->out[0]].meta;
    rp_dim numel = rp__numel(m->size, m->ndim);
    return !rp__dim_is_symbol(numel) && (size_t)numel * rp__dtype_bytes(m->dtype) == n->data_bytes
               ? RP_OK
               : fail(c, at, "a constant whose data does not fit its type");
}

static rp_status check_assign(checker *c, uint32_t at) {
    const rp__ir_node *n = &c->ir->nodes[at];
    uint32_t producer = c->ir->values[n->in[0]].node;
    if (producer != RP__IR_NONE && c->ir->nodes[producer].kind != RP__IR_CAPTURED)
        return fail(c, at, "assign writes to something that is neither an argument nor captured");
    return same_meta(&c->ir->values[n->in[0]].meta, &c->ir->values[n->in[1]].meta)
               ? RP_OK
               : fail(c, at, "assign of another type");
}

static rp_status (*const rule[RP__IR_KIND_COUNT])(checker *c, uint32_t at) = {
    [RP__IR_OP] = check_op,     [RP__IR_CAPTURED] = check_captured, [RP__IR_CONST] = check_const,
    [RP__IR_COND] = check_cond, [RP__IR_WHILE] = check_while,       [RP__IR_ASSIGN] = check_assign};

static rp_status check_node(checker *c, uint32_t at, unsigned depth) {
    const rp__ir_node *n = &c->ir->nodes[at];
    const rp__ir_form *form = &rp__ir_forms[n->kind];
    const char *fault = rp__ir_counts_fault(n->kind, n->n_in, n->n_out);
    if (fault) return fail(c, at, fault);
    if (n->n_regions != form->n_regions || (form->name && n->n_attrs != form->n_attrs))
        return fail(c, at, "attributes or regions do not fit the kind of node");
    if (form->n_regions && depth > 64) return fail(c, at, "regions nest too deep");
    if (rule[n->kind]) RP_TRY(rule[n->kind](c, at));
    for (uint32_t r = 0; r < form->n_regions; r++) RP_TRY(check_region(c, at, r, depth));
    return form->state ? check_pass(c, at, n->out, n->n_out, n->in, "a loop state that changes its type") : RP_OK;
}

static rp_status check_block(checker *c, const rp__ir_block *block, unsigned depth) {
    uint32_t number = ++c->blocks;
    for (uint32_t i = 0; i < block->n_args; i++) RP_TRY(define(c, block->args[i], RP__IR_NONE, i, number));
    for (size_t i = 0; i < block->n_nodes; i++) {
        uint32_t at = block->nodes[i];
        if (at >= c->ir->n_nodes) return fail(c, RP__IR_NONE, "a block lists a node that does not exist");
        const rp__ir_node *n = &c->ir->nodes[at];
        if (n->dead) continue;
        if (n->kind >= RP__IR_KIND_COUNT) return fail(c, RP__IR_NONE, "a node without a kind");
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (n->in[k] != RP__IR_NONE ? !visible(c, n->in[k], number) : n->kind != RP__IR_OP)
                return fail(c, at, "an operand that is not defined before, in this block");
        }
        for (uint32_t k = 0; k < n->n_out; k++) RP_TRY(define(c, n->out[k], at, k, number));
        RP_TRY(check_node(c, at, depth));
    }
    for (uint32_t i = 0; i < block->n_results; i++) {
        if (block->results[i] != RP__IR_NONE && !visible(c, block->results[i], number))
            return fail(c, RP__IR_NONE, "a result that is not defined in its block");
    }
    return RP_OK;
}

rp_status rp_ir_check_at(const char *site, const rp_ir *ir) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__ir_usable(ir, "rp_ir_check"));
    checker c = {.ir = (rp_ir *)(uintptr_t)ir};
    rp__symbols *scratch; /* shape rules calculate with its words */
    RP_TRY(rp__symbols_scratch(ir->symbols, &scratch));
    rp__symbols *outer = rp__symbols_enter(scratch);
    bool quiet = rp__symbols_quiet(true);
    c.seen = rp__calloc(ir->n_values + 1, sizeof *c.seen);
    c.memory = rp__calloc(ir->n_storages + 1u, sizeof *c.memory);
    rp_status status = c.seen && c.memory ? check_block(&c, &ir->body, 0) : RP__OOM("graph check");
    rp__free(c.seen);
    rp__free(c.memory);
    (void)rp__symbols_quiet(quiet);
    (void)rp__symbols_enter(outer);
    rp__symbols_release(scratch);
    return status;
}
