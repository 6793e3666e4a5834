/* The way of a node through the lowerings (lower.h): what the language has for the whole op, the table's row, its loops, its view. */
#include "doors/lower.h"

#include <string.h>

#include "compile/rewrite.h"
#include "core/alloc.h"

rp_status rp__lower_call_of(const rp_ir *ir, const rp__ir_node *n, rp__lower_call *out) {
    const size_t count = (size_t)n->n_in + n->n_out;
    *out = (rp__lower_call){.stand_ins = rp__calloc(count + 1, sizeof *out->stand_ins),
                            .handles = rp__calloc(count + 1, sizeof *out->handles)};
    if (!out->stand_ins || !out->handles) {
        rp__lower_call_end(out);
        return RP__OOM("a node for another engine");
    }
    for (size_t k = 0; k < count; k++) {
        const rp__ir_value v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
        if (v == RP__IR_NONE) continue;
        rp_tensor *t = out->handles[k] = rp__ir_stand_in_for(ir, v, &out->stand_ins[k]);
        rp__contiguous_strides(t->size, t->ndim, t->stride);
        t->offset = 0;
    }
    rp__ir_call(n, out->handles, out->handles + n->n_in, &out->call);
    return RP_OK;
}

void rp__lower_call_end(rp__lower_call *c) {
    rp__free(c->stand_ins);
    rp__free(c->handles);
}

static bool is_loop(const rp__op *op) {
    return op->lowering == RP__POINTWISE || op->lowering == RP__ROWS || op->lowering == RP__INDEXED;
}

/* What lowerings give must be what the graph says; anything else is a defect here, found before an engine sees it. */
static void check(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n, const rp__put_val *out) {
    for (uint32_t k = 0; k < n->n_out && !e->failed; k++) {
        if (n->out[k] == RP__IR_NONE) continue;
        const rp__meta *m = &ir->values[n->out[k]].meta;
        if (out[k] == RP__EMIT_NONE || rp__put_dtype(e, out[k]) != m->dtype ||
            !rp__put_same_sizes(&e->types[out[k]], m->size, m->ndim))
            rp__put_lacks(e, "its lowering gives another type than the graph says");
    }
}

/* A loop of the graph: the state, and behind it what does not change. */
typedef struct looped {
    const rp__ir_node *n;
    rp__put_val *args;
} looped;

static const rp__put_val *args_of(const looped *l, const rp__put_val *state) {
    memcpy(l->args, state, l->n->n_out * sizeof *l->args);
    return l->args;
}

static rp__put_val loop_goes(rp__emitter *e, void *ctx, const rp__put_val *state) {
    const looped *l = ctx;
    rp__put_val go = RP__EMIT_NONE;
    (void)rp__lower_block(e, &l->n->regions[0], args_of(l, state), &go);
    return e->failed ? RP__EMIT_NONE : rp__lower_single(e, go);
}

static void loop_turns(rp__emitter *e, void *ctx, const rp__put_val *state, rp__put_val *next) {
    const looped *l = ctx;
    (void)rp__lower_block(e, &l->n->regions[1], args_of(l, state), next);
}

static void lower_while(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    looped l = {n, rp__alloc((n->n_in + 1u) * sizeof *l.args)};
    if (!l.args) {
        rp__put_oom(e);
        return;
    }
    memcpy(l.args, in, n->n_in * sizeof *l.args);
    const rp__put_loop loop = {n->n_out, n->attrs[0].v.i, loop_goes, loop_turns, &l};
    rp__put_repeat(e, &loop, in, out);
    rp__free(l.args);
}

static void lower_cond(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    if (!e->ops->choose) rp__put_lacks(e, "there is no branch");
    for (uint32_t k = 0; k < n->n_out; k++) {
        const rp__meta *m = &e->ir->values[n->regions[0].results[k]].meta;
        const rp__put_type t = rp__put_type_from(m->dtype, m->size, m->ndim);
        out[k] = rp__put_new(e, &t);
    }
    if (!e->failed) e->ops->choose(e, n, in, out);
}

bool rp__lower_node(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out) {
    e->ir = ir;
    e->node = n;
    for (uint32_t k = 0; k < n->n_out; k++) out[k] = RP__EMIT_NONE;
    if (n->kind == RP__IR_CONST) {
        const rp__meta *m = &ir->values[n->out[0]].meta;
        const rp__put_type t = rp__put_type_from(m->dtype, m->size, m->ndim);
        out[0] = rp__put_table(e, &t, n->data, n->data_bytes);
    } else if (n->kind == RP__IR_COND) {
        lower_cond(e, n, in, out);
    } else if (n->kind == RP__IR_WHILE) {
        lower_while(e, n, in, out);
    } else if (n->kind != RP__IR_OP) {
        rp__put_lacks(e, "it has no lowering for %s", rp__ir_forms[n->kind].name);
    } else if (e->ops->node && e->ops->node(e, n, in, out)) {
        ;
    } else if (rp__lower_by_row(e, n, in, out)) {
        ;
    } else if (!e->failed && n->op->lowering == RP__VIEW) {
        out[0] = rp__lower_view(e, n, in[0]);
    } else if (!e->failed && is_loop(n->op)) {
        rp__lower_loop(e, n, in, out);
    } else {
        rp__put_lacks(e, "there is no lowering");
    }
    check(e, ir, n, out);
    e->node = NULL;
    return !e->failed;
}

bool rp__lower_is_write(const rp__ir_node *n) {
    for (uint32_t k = 0; k < n->n_in; k++)
        if (rp__ir_writes(n, k)) return true;
    return false;
}

bool rp__lower_write(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n, const rp__put_val *in,
                     rp__put_val *written) {
    e->ir = ir;
    e->node = n;
    for (uint32_t k = 0; k < n->n_in; k++) written[k] = RP__EMIT_NONE;
    if (!e->writes)
        rp__put_lacks(e, "it writes in place");
    else if (n->kind == RP__IR_ASSIGN)
        written[0] = rp__put_cast(e, in[1], ir->values[n->in[0]].meta.dtype);
    else if (strcmp(n->op->name, "foreach_update_") != 0 || !rp__lower_update(e, n, in, written))
        rp__put_lacks(e, "there is no lowering");
    for (uint32_t k = 0; k < n->n_in && !e->failed; k++) {
        const rp__meta *m = n->in[k] == RP__IR_NONE ? NULL : &ir->values[n->in[k]].meta;
        if (!rp__ir_writes(n, k) || !m) continue;
        if (written[k] == RP__EMIT_NONE || rp__put_dtype(e, written[k]) != m->dtype ||
            !rp__put_same_sizes(&e->types[written[k]], m->size, m->ndim))
            rp__put_lacks(e, "its lowering gives another type than the graph says");
    }
    e->node = NULL;
    return !e->failed;
}

rp__put_val *rp__lower_map(const rp_ir *ir) {
    rp__put_val *map = rp__alloc((ir->n_values + 1) * sizeof *map);
    if (map) memset(map, 0xff, (ir->n_values + 1) * sizeof *map);
    return map;
}

rp__put_val rp__lower_current(rp__emitter *e, const rp_ir *ir, rp__put_val *map, rp__ir_value v) {
    if (v == RP__IR_NONE || map[v] != RP__EMIT_NONE || e->failed) return v == RP__IR_NONE ? RP__EMIT_NONE : map[v];
    const rp__ir_node *n = rp__ir_producer(ir, v);
    if (!n || !rp__ir_is_view(n)) return RP__EMIT_NONE;
    const rp__put_val in = rp__lower_current(e, ir, map, n->in[0]);
    rp__put_val out;
    if (in != RP__EMIT_NONE && rp__lower_node(e, ir, n, &in, &out)) map[v] = out;
    return map[v];
}

static bool lower_write(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n, const rp__put_val *in,
                        rp__put_val *map) {
    rp__put_val *written = rp__alloc((n->n_in + 1u) * sizeof *written);
    if (!written) {
        rp__put_oom(e);
        return false;
    }
    const bool good = rp__lower_write(e, ir, n, in, written);
    for (uint32_t k = 0; k < n->n_in && good; k++) {
        if (written[k] == RP__EMIT_NONE) continue;
        const uint32_t memory = ir->values[n->in[k]].storage;
        for (size_t v = 0; v < ir->n_values; v++)
            if (ir->values[v].storage == memory) map[v] = RP__EMIT_NONE;
        map[n->in[k]] = written[k];
    }
    rp__free(written);
    return good;
}

/* One node of several: its operands are looked up, its results entered. */
static bool lower_next(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n, rp__put_val *map) {
    rp__put_val few[RP__FEW_OPERANDS + RP__MAX_OUTS] = {0}, *in = few;
    if (n->n_in + n->n_out > RP__FEW_OPERANDS + RP__MAX_OUTS) in = rp__alloc(((size_t)n->n_in + n->n_out) * sizeof *in);
    if (!in) {
        rp__put_oom(e);
        return false;
    }
    rp__put_val *out = in + n->n_in;
    for (uint32_t i = 0; i < n->n_in; i++) in[i] = rp__lower_current(e, ir, map, n->in[i]);
    if (e->failed) {
        ;
    } else if (rp__lower_is_write(n)) {
        (void)lower_write(e, ir, n, in, map);
    } else if (rp__lower_node(e, ir, n, in, out)) {
        for (uint32_t i = 0; i < n->n_out; i++)
            if (n->out[i] != RP__IR_NONE) map[n->out[i]] = out[i];
    }
    if (in != few) rp__free(in);
    return !e->failed;
}

bool rp__lower_nodes(rp__emitter *e, const rp_ir *ir, const uint32_t *nodes, size_t n, rp__put_val *map,
                     uint32_t *failed) {
    for (size_t k = 0; k < n && !e->failed; k++) {
        const rp__ir_node *node = &ir->nodes[nodes[k]];
        if (node->dead || node->kind == RP__IR_CAPTURED) continue;
        *failed = nodes[k];
        (void)lower_next(e, ir, node, map);
    }
    return !e->failed;
}

bool rp__lower_block(rp__emitter *e, const rp__ir_block *block, const rp__put_val *args, rp__put_val *results) {
    const rp_ir *ir = e->ir;
    const rp__ir_node *node = e->node;
    rp__put_val *map = rp__lower_map(ir);
    if (!map) rp__put_oom(e);
    for (uint32_t k = 0; k < block->n_args && map; k++) map[block->args[k]] = args[k];
    for (size_t k = 0; k < block->n_nodes && !e->failed; k++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[k]];
        if (n->dead) continue;
        if (rp__lower_is_write(n))
            rp__put_lacks(e, "%s writes within a region", n->kind == RP__IR_OP ? n->op->name : "a node");
        else if (!lower_next(e, ir, n, map) && n->kind == RP__IR_OP)
            rp__put_within(e, n->op->name);
    }
    for (uint32_t k = 0; k < block->n_results && !e->failed; k++) results[k] = map[block->results[k]];
    rp__free(map);
    e->node = node;
    return !e->failed;
}

static bool block_reads(const rp_ir *ir, const rp__ir_block *block, rp__ir_value v) {
    for (size_t k = 0; k < block->n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[k]];
        if (n->dead) continue;
        for (uint32_t i = 0; i < n->n_in; i++)
            if (n->in[i] == v) return true;
        for (uint32_t i = 0; i < n->n_regions; i++)
            if (block_reads(ir, &n->regions[i], v)) return true;
    }
    for (uint32_t k = 0; k < block->n_results; k++)
        if (block->results[k] == v) return true;
    return false;
}

bool rp__lower_is_read(const rp_ir *ir, rp__ir_value v) { return block_reads(ir, &ir->body, v); }
