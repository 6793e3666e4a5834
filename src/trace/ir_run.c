/* Interpreter of graphs (ir_run.h). Values die after their last use. Blocks of nodes are functions for rp_cond, rp_while and
   rp_checkpoint: the host decides and runs them, or a trace around makes regions of them again. That of a checkpoint runs again when
   the tape asks. */
#include "trace/ir_run.h"

#include <string.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "ops/autocast.h"
#include "ops/grad.h"
#include "trace/trace.h"

/* ---- random numbers */

/* What the random nodes of a graph have drawn: a node draws at its own offset, also when it was moved or is a recomputation,
   and in a capture as outside. Zeroed to begin. Counters of nodes that are gone are passed over, so that generators end
   behind them. */
typedef struct positions {
    struct position {
        rp_generator *generator; /* counted */
        rp_dim first, end;       /* offsets taken */
    } * entries;
    size_t n, capacity;
    bool whole;           /* the first node of a generator does not begin there, but at its offset */
    rp__random_log drawn; /* of all generators: an entry's counters follow one another in it */
} positions;

rp_generator *rp__ir_generator(const rp_attr *attrs, size_t n_attrs, rp_device device) {
    for (size_t k = 0; k < n_attrs; k++) {
        if (attrs[k].kind == RP_ATTR_GENERATOR && attrs[k].v.generator) return attrs[k].v.generator;
    }
    return rp_default_generator(device);
}

/* offset: where the first node of g that runs begins. */
static struct position *position_of(positions *p, rp_generator *g, rp_dim offset) {
    for (size_t i = 0; i < p->n; i++)
        if (p->entries[i].generator == g) return &p->entries[i];
    if (!RP__GROW(&p->entries, &p->capacity, p->n + 1)) {
        (void)RP__OOM("random numbers of a graph");
        return NULL;
    }
    if (p->whole) offset = 0;
    p->entries[p->n] = (struct position){rp__generator_retain(g), offset, offset};
    return &p->entries[p->n++];
}

static rp_status pass_over(rp_generator *g, rp_dim counters) {
    rp__random_draw unused;
    return rp__dim_number(counters) > 0
               ? rp__random_reserve(g, rp__current_stream(g->device), (uint64_t)counters, &unused)
               : RP_OK;
}

/* The draw of a node at `offset` that has been made before. */
static rp_status drawn_at(const positions *p, const struct position *at, rp_dim offset, rp_dim counters,
                          rp__random_log *out) {
    rp_dim begin = at->first;
    for (size_t i = 0; i < p->drawn.n; i++) {
        const struct rp__random_drawn *d = &p->drawn.drawn[i];
        if (d->generator != at->generator) continue;
        rp_dim end = begin + (rp_dim)d->counters;
        if (rp__dim_number(offset) >= rp__dim_number(begin) &&
            rp__dim_number(offset + counters) <= rp__dim_number(end)) {
            rp__random_draw draw = d->draw;
            draw.inner += (uint64_t)(offset - begin);
            return rp__random_log_add(out, d->generator, (uint64_t)counters, &draw, d->memory);
        }
        begin = end;
    }
    return rp__fail(RP_ERROR_INTERNAL, "a graph draws random numbers again that it did not draw so");
}

/* Dispatches a random node whose counters begin at `offset` of the graph. */
static rp_status run_random(positions *p, rp__call *call, rp_generator *g, rp_dim offset, rp_dim counters) {
    struct position *at = position_of(p, g, offset);
    rp_dim end = rp__dim_apply(RP__DIM_ADD, offset, counters);
    if (!at || rp_failed()) return rp_error_status();
    if (rp__dim_same_word(counters, 0)) return rp__dispatch(call);
    if (rp__dim_number(offset) < rp__dim_number(at->end)) {
        rp__random_log again = {0};
        rp_status status = drawn_at(p, at, offset, counters, &again);
        rp__random_log *outer_again = rp__random_again_set(&again), *outer_log = rp__random_log_set(NULL);
        if (status == RP_OK) status = rp__dispatch(call);
        (void)rp__random_log_set(outer_log);
        (void)rp__random_again_set(outer_again);
        rp__random_log_free(&again);
        return status;
    }
    rp__random_log *outer = rp__random_log_set(&p->drawn);
    p->drawn.outer = outer;
    rp_status status = pass_over(g, offset - at->end);
    if (status == RP_OK) status = rp__dispatch(call);
    (void)rp__random_log_set(outer);
    p->drawn.outer = NULL;
    at->end = end;
    return status;
}

static void positions_end(positions *p) {
    for (size_t i = 0; i < p->n; i++) rp__generator_drop(p->entries[i].generator);
    rp__free(p->entries);
    rp__random_log_free(&p->drawn);
    *p = (positions){0};
}

/* ---- running */

typedef struct run {
    const rp_ir *ir;
    const rp_dim *binding;
    rp_tensor *const *captured;
    positions *positions;
    rp_dim shift;                  /* counters before the block that runs (inside CHECKPOINT) */
    const rp__ir_pending *pending; /* of the body; NULL: values are the run's own */
} run;

static rp_dim word(const run *r, rp_dim d) {
    if (!r->ir->symbols || !rp__dim_is_symbol(d)) return d;
    return r->binding                        ? rp__symbols_substitute(r->ir->symbols, d, r->binding)
           : rp__dim_same_word(d, INT64_MIN) ? d
                                             : rp__symbols_hint(r->ir->symbols, d);
}

static rp_scalar scalar_of(const run *r, rp_scalar s) {
    double value = 0;
    if (rp__scalar_is_size(s)) return rp__scalar_dim(word(r, s.v.i));
    if (!r->ir->symbols) return s;
    if (r->binding) return rp__symbols_substitute_number(r->ir->symbols, s.v.i, r->binding);
    return rp__symbols_number(r->ir->symbols, s.v.i, NULL, &value) ? rp_f64(value) : s;
}

/* Attributes with symbols replaced: `copy` has room for them, ints come from `arena`. */
static rp_status attributes(const run *r, const rp__ir_node *n, rp_attr *copy, rp__arena *arena) {
    for (uint32_t k = 0; k < n->n_attrs; k++) {
        copy[k] = n->attrs[k];
        if (copy[k].kind == RP_ATTR_INT) copy[k].v.i = word(r, copy[k].v.i);
        if (copy[k].kind == RP_ATTR_SCALAR && rp__scalar_is_symbol(copy[k].v.scalar))
            copy[k].v.scalar = scalar_of(r, copy[k].v.scalar);
        if (copy[k].kind == RP_ATTR_INTS && copy[k].n) {
            int64_t *ints = RP__NEW(arena, int64_t, copy[k].n);
            if (!ints) return RP__OOM("graph run");
            for (size_t i = 0; i < copy[k].n; i++) ints[i] = word(r, n->attrs[k].v.ints[i]);
            copy[k].v.ints = ints;
        }
    }
    return rp_failed() ? rp_error_status() : RP_OK;
}

static rp_status run_op(const run *r, const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out) {
    rp__call call;
    rp_attr attrs[RP__MAX_PARAMS];
    rp__arena arena = {0};
    rp_status status = RP_OK;
    rp__ir_call(n, in, out, &call);
    if (r->ir->symbols && n->n_attrs) {
        status = attributes(r, n, attrs, &arena);
        call.attrs = attrs;
    }
    const rp_device device = n->n_out ? r->ir->values[n->out[0]].meta.device : rp_default_device();
    const rp_device usual = rp_default_device();
    const bool elsewhere = n->n_in == 0 && !rp__device_equal(device, usual); /* the function has moved it meanwhile */
    if (status == RP_OK && elsewhere) status = rp_set_default_device(device);
    if (status == RP_OK && (n->op->flags & RP_OP_RANDOM) && !rp__trace_current()) {
        rp_generator *g = rp__ir_generator(n->attrs, n->n_attrs, device);
        rp_dim offset = rp__dim_apply(RP__DIM_ADD, word(r, n->random_offset), r->shift);
        status = run_random(r->positions, &call, g, offset, word(r, n->random_count));
    } else if (status == RP_OK) {
        status = rp__dispatch(&call);
    }
    if (elsewhere && !rp__device_equal(rp_default_device(), usual)) {
        rp_status back = rp_set_default_device(usual);
        if (status == RP_OK) status = back;
    }
    rp__arena_free(&arena);
    return status;
}

static rp_status run_block(const run *r, const rp__ir_block *block, rp_tensor *const *in, rp_tensor **out);

/* A block as a function, for tracing it again as a region. */
typedef struct block_fn {
    run r;
    const rp__ir_block *block;
    rp_status status;
} block_fn;

static void block_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    block_fn *b = ctx;
    (void)n_in;
    (void)n_out;
    b->status = run_block(&b->r, b->block, in, out);
}

static rp_fn fn_of(block_fn *b, const char *name) { return (rp_fn){block_body, b, 0, name}; }

/* A block as a function that outlives the run, for the tape: it runs again when the backward asks. */
typedef struct kept_block {
    run r;
    rp_ir *ir; /* counted */
    const rp__ir_block *block;
    rp_dim *binding;
    rp_tensor **captured; /* n_captured, counted */
    size_t n_captured;
    positions positions; /* as they were before the block */
} kept_block;

/* Of a run that goes on from there: what was drawn before it is not drawn again in it. */
static rp_status copy_positions(const positions *from, positions *to) {
    if (!RP__GROW(&to->entries, &to->capacity, from->n + 1)) return RP__OOM("random numbers of a graph");
    for (to->n = 0; to->n < from->n; to->n++) {
        const struct position *at = &from->entries[to->n];
        to->entries[to->n] = (struct position){rp__generator_retain(at->generator), at->end, at->end};
    }
    return RP_OK;
}

static void kept_free(void *ctx) {
    kept_block *b = ctx;
    positions_end(&b->positions);
    for (size_t k = 0; k < b->n_captured && b->captured; k++) rp_release(b->captured[k]);
    rp__free(b->captured);
    rp__free(b->binding);
    rp__ir_release(b->ir);
    rp__free(b);
}

/* The first run continues the counters of the graph; those after it start again from where that began. */
static void kept_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    kept_block *b = ctx;
    positions again = {0};
    run r = b->r;
    (void)n_in;
    if (!r.positions) {
        r.positions = &again;
        if (copy_positions(&b->positions, &again) != RP_OK) return;
    }
    if (run_block(&r, b->block, in, out) != RP_OK)
        for (size_t k = 0; k < n_out; k++) out[k] = rp__tensor_error();
    b->r.positions = NULL;
    positions_end(&again);
}

static rp_status kept_new(const run *r, const rp__ir_block *block, kept_block **out) {
    kept_block *b = *out = rp__calloc(1, sizeof *b);
    if (!b) return RP__OOM("rp_checkpoint");
    size_t n_symbols = r->ir->symbols ? rp__symbols_count(r->ir->symbols) : 0, n_captured = r->ir->n_captured;
    b->r = *r;
    b->r.pending = NULL;
    b->block = block;
    b->ir = rp__ir_retain((rp_ir *)(uintptr_t)r->ir);
    b->n_captured = n_captured;
    b->captured = rp__calloc(n_captured + 1, sizeof *b->captured);
    b->binding = rp__alloc((n_symbols + 1) * sizeof *b->binding);
    rp_status status =
        b->captured && b->binding ? copy_positions(r->positions, &b->positions) : RP__OOM("rp_checkpoint");
    if (status != RP_OK) {
        kept_free(b);
        *out = NULL;
        return status;
    }
    for (size_t k = 0; k < n_captured; k++) b->captured[k] = r->captured[k] ? rp_retain(r->captured[k]) : NULL;
    if (r->binding && n_symbols) memcpy(b->binding, r->binding, n_symbols * sizeof *b->binding);
    b->r.captured = b->captured;
    b->r.binding = r->binding ? b->binding : NULL;
    return RP_OK;
}

static rp_status run_checkpoint(const run *r, const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out) {
    run inner = *r;
    inner.shift = rp__dim_apply(RP__DIM_ADD, r->shift, word(r, n->random_offset));
    if (!rp__grad_recording()) return run_block(&inner, &n->regions[0], in, out);
    kept_block *b;
    RP_TRY(kept_new(&inner, &n->regions[0], &b));
    return rp__checkpoint_run(n->site, (rp_fn){kept_body, b, 0, "checkpoint"}, kept_free, in, n->n_in, out, n->n_out);
}

/* ---- custom functions: a node of the tape whose backward is the block */

typedef struct function_payload {
    kept_block *backward;
    uint32_t n_saved;  /* operands, then results */
    rp__saved saved[]; /* without a tensor where the backward does not read it: a write to it does no harm */
} function_payload;

static void function_release_saved(rp__tape_node *n) {
    function_payload *p = n->payload;
    for (uint32_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    n->released = true;
}

static void function_free(function_payload *p) {
    for (uint32_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    kept_free(p->backward);
    rp__free(p);
}

static void function_destroy(rp__tape_node *n) { function_free(n->payload); }

static rp_status function_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in,
                                   bool create_graph) {
    function_payload *p = n->payload;
    (void)create_graph;
    rp_tensor **args = rp__calloc(p->n_saved + n->n_out + 1u, sizeof *args);
    if (!args) return RP__OOM("backward of a custom function");
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < p->n_saved && status == RP_OK; k++) {
        if (!p->saved[k].tensor && !p->saved[k].checkpoint) continue;
        args[k] = rp__saved_unpack(&p->saved[k], n);
        if (rp__tensor_is_error(args[k])) status = rp_error_status();
    }
    for (uint32_t k = 0; k < n->n_out && status == RP_OK; k++) {
        rp__meta meta;
        rp__tape_out_meta(n, k, &meta);
        args[p->n_saved + k] = grad_out[k] ? grad_out[k] : rp__zeros_of(&meta);
        if (rp__tensor_is_error(args[p->n_saved + k])) status = rp_error_status();
    }
    positions none = {0};
    run r = p->backward->r;
    r.positions = &none;
    if (status == RP_OK) status = run_block(&r, p->backward->block, args, grad_in);
    positions_end(&none);
    rp__free(args);
    return status;
}

static const rp__tape_class function_class = {"function", function_backward, function_release_saved, function_destroy};

static rp_status run_forward(const run *r, const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out, bool needed) {
    bool traced = false;
    if (rp__trace_current()) {
        block_fn a = {*r, &n->regions[0], RP_OK}, b = {*r, &n->regions[1], RP_OK};
        RP_TRY(rp__trace_function(n->site, fn_of(&a, "forward"), fn_of(&b, "backward"), in, n->n_in, out, n->n_out,
                                  needed, &traced));
    }
    if (traced) return RP_OK;
    bool grad = rp__grad_switch(false);
    rp_status status = run_block(r, &n->regions[0], in, out);
    if (status == RP_OK) status = rp__region_own_results(in, n->n_in, out, n->n_out);
    (void)rp__grad_switch(grad);
    return status;
}

static bool reads(const rp_ir *ir, const rp__ir_block *block, rp__ir_value v) {
    for (uint32_t k = 0; k < block->n_results; k++)
        if (block->results[k] == v) return true;
    for (size_t i = 0; i < block->n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[i]];
        for (uint32_t k = 0; k < n->n_in && !n->dead; k++)
            if (n->in[k] == v) return true;
    }
    return false; /* blocks of its nodes read operands alone */
}

static rp_status run_function(const run *r, const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out) {
    bool needed = false;
    for (uint32_t k = 0; k < n->n_in && rp__grad_recording(); k++) needed = needed || rp__grad_needed(in[k]);
    if (!needed) return run_forward(r, n, in, out, false);
    uint32_t n_saved = n->n_in + n->n_out;
    function_payload *p = rp__calloc(1, sizeof *p + n_saved * sizeof *p->saved);
    if (!p) return RP__OOM("custom function");
    p->n_saved = n_saved;
    rp_status status = kept_new(r, &n->regions[1], &p->backward);
    if (status != RP_OK) {
        rp__free(p);
        return status;
    }
    const rp__ir_block *b = &n->regions[1];
    for (uint32_t k = 0; k < n->n_in && status == RP_OK; k++)
        if (reads(r->ir, b, b->args[k])) status = rp__saved_pack(&p->saved[k], in[k], false, 0);
    if (status == RP_OK) status = run_forward(r, n, in, out, true);
    for (uint32_t k = n->n_in; k < n_saved && status == RP_OK; k++)
        if (reads(r->ir, b, b->args[k])) status = rp__saved_pack(&p->saved[k], out[k - n->n_in], true, k - n->n_in);
    if (status != RP_OK) {
        function_free(p);
        return status;
    }
    return rp__tape_attach(&function_class, p, "function", n->site ? n->site : "", in, n->n_in, out, n->n_out, NULL);
}

static rp_status run_regions(const run *r, const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out) {
    if (n->kind == RP__IR_FUNCTION) return run_function(r, n, in, out);
    if (n->kind == RP__IR_CHECKPOINT && !rp__trace_current()) return run_checkpoint(r, n, in, out);
    block_fn a = {*r, &n->regions[0], RP_OK}, b = {*r, n->n_regions > 1 ? &n->regions[1] : NULL, RP_OK};
    if (n->kind == RP__IR_COND)
        return rp__cond_outside(n->site, in[0], fn_of(&a, "then"), fn_of(&b, "else"), in + 1, 0, n->n_in - 1, out,
                                n->n_out);
    if (n->kind == RP__IR_WHILE)
        return rp__while_invariant(n->site, fn_of(&a, "cond"), fn_of(&b, "body"), in, n->n_out, n->n_in,
                                   n->attrs[0].v.i, out);
    return rp_checkpoint_at(n->site, fn_of(&a, "body"), in, n->n_in, out, n->n_out);
}

static rp_status make_const(const run *r, const rp__ir_node *n, rp_tensor **out) {
    const rp__meta *m = &r->ir->values[n->out[0]].meta;
    rp__device *d = rp__device_get(m->device);
    if (!d) return rp_error_status();
    rp_tensor *t = rp__tensor_empty(d, m->dtype, m->size, m->ndim);
    *out = t;
    if (rp__tensor_is_error(t)) return rp_error_status();
    return n->data_bytes ? d->ops->copy_in(d, rp__current_stream(d), rp__tensor_data(t), n->data, n->data_bytes)
                         : RP_OK;
}

static rp_status run_node(const run *r, const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out) {
    switch (n->kind) {
    case RP__IR_OP: return run_op(r, n, in, out);
    case RP__IR_CAPTURED: {
        rp_tensor *t = r->captured[n->captured_index];
        if (!t)
            return rp__fail(RP_ERROR_STATE,
                            "graph \"%s\": captured tensor %u is not there: a parsed graph can be read, not run",
                            r->ir->name, n->captured_index);
        out[0] = t;
        return RP_OK;
    }
    case RP__IR_CONST: return make_const(r, n, out);
    case RP__IR_ASSIGN: {
        rp_tensor *results[1];
        rp_attr non_blocking = {.kind = RP_ATTR_BOOL, .v.b = false};
        bool grad = rp__grad_switch(false);
        rp_tensor *operands[] = {in[0], in[1]};
        rp__call call = {.op = RP__OP(copy_),
                         .site = n->site,
                         .in = operands,
                         .n_in = 2,
                         .list_begin = {0, 1, 2},
                         .attrs = &non_blocking,
                         .n_attrs = 1,
                         .out = results,
                         .n_out = 1};
        rp_status status = rp__dispatch(&call);
        (void)rp__grad_switch(grad);
        if (n->n_out) out[0] = in[0];
        return status;
    }
    case RP__IR_COND:
    case RP__IR_WHILE:
    case RP__IR_CHECKPOINT:
    case RP__IR_FUNCTION: return run_regions(r, n, in, out);
    case RP__IR_KIND_COUNT: break;
    }
    return rp__fail(RP_ERROR_INTERNAL, "a graph node without a kind");
}

/* Was the node recorded with grad mode off? It is run so again, lest a tape takes it for a part of the function. */
static bool untaped(const rp_ir *ir, const rp__ir_node *n) { return ir->taped && n->untaped; }

/* Is a pending result of the node there without running it? */
static bool is_there(const rp__ir_node *n) {
    return n->kind == RP__IR_CAPTURED || n->kind == RP__IR_CONST ||
           (n->kind == RP__IR_OP && n->op->lowering == RP__VIEW);
}

/* In a trace of the whole graph a node draws at its own offset, also where nodes before it are gone. */
static void seek(const run *r, const rp__ir_block *block, const rp__ir_node *n) {
    rp__trace *t = rp__trace_current();
    const rp__ir_node *drawn = n;
    if (!t || block != &r->ir->body || !r->positions->whole || rp__dim_same_word(n->random_count, 0)) return;
    for (uint32_t i = 0; n->kind != RP__IR_OP && i < n->n_regions; i++) {
        for (size_t k = 0; k < n->regions[i].n_nodes && drawn == n; k++) {
            const rp__ir_node *m = &r->ir->nodes[n->regions[i].nodes[k]];
            if (m->kind == RP__IR_OP && (m->op->flags & RP_OP_RANDOM)) drawn = m;
        }
    }
    if (drawn->kind != RP__IR_OP) return;
    rp_device device = r->ir->values[drawn->out[0]].meta.device;
    rp__trace_random_seek(t, rp__ir_generator(drawn->attrs, drawn->n_attrs, device), word(r, n->random_offset));
}

/* Each value is held once while later nodes need it. */
static rp_status run_block(const run *r, const rp__ir_block *block, rp_tensor *const *in, rp_tensor **out) {
    const rp_ir *ir = r->ir;
    const rp__ir_pending *pending = block == &ir->body ? r->pending : NULL;
    rp_tensor **value = rp__calloc(ir->n_values + 1, sizeof *value);
    uint32_t *uses = rp__calloc(ir->n_values + 1, sizeof *uses);
    rp_tensor *operands[RP__MAX_IN], **operand = operands, **wide = NULL;
    uint32_t widest = 0;
    rp_status status = RP_OK;
    if (!value || !uses) {
        status = RP__OOM("graph run");
        goto done;
    }
    for (size_t i = 0; i < block->n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[i]];
        if (n->dead) continue;
        for (uint32_t k = 0; k < n->n_in; k++) uses[n->in[k] == RP__IR_NONE ? ir->n_values : n->in[k]]++;
        widest = n->n_in + n->n_out > widest ? n->n_in + n->n_out : widest;
    }
    for (uint32_t k = 0; k < block->n_results; k++)
        uses[block->results[k] == RP__IR_NONE ? ir->n_values : block->results[k]]++;
    if (widest > RP__MAX_IN) {
        operand = wide = rp__calloc(widest, sizeof *wide);
        if (!wide) {
            status = RP__OOM("graph run");
            goto done;
        }
    }
    for (uint32_t k = 0; k < block->n_args && !pending; k++) value[block->args[k]] = rp_retain(in[k]);
    for (size_t i = 0; i < block->n_nodes && status == RP_OK; i++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[i]];
        if (n->dead) continue;
        rp_tensor **result = operand + n->n_in;
        for (uint32_t k = 0; k < n->n_in; k++) operand[k] = n->in[k] == RP__IR_NONE ? NULL : value[n->in[k]];
        for (uint32_t k = 0; k < n->n_out; k++) result[k] = NULL;
        /* A constant stays in the caller's scope: a trace around knows it by that as made inside. */
        bool scoped = n->kind != RP__IR_CONST;
        rp_scope scope = {0};
        if (scoped) scope = rp__scope_begin();
        bool off = block == &ir->body && untaped(ir, n);
        bool grad = off && rp_set_grad_enabled(false); /* as the function did: a trace of a block is to know */
        bool there = pending && is_there(n);
        if (pending && !there) status = pending->operands(pending->ctx, block->nodes[i], operand);
        seek(r, block, n);
        if (status == RP_OK && !there) status = run_node(r, n, operand, result);
        if (off) (void)rp_set_grad_enabled(grad);
        if (pending && !there && status == RP_OK) status = pending->results(pending->ctx, block->nodes[i], result);
        for (uint32_t k = 0; k < n->n_out && status == RP_OK && !pending; k++) {
            if (uses[n->out[k]]) value[n->out[k]] = rp_retain(result[k]);
        }
        if (scoped) rp__scope_end(scope, NULL, 0);
        if (pending && status == RP_OK) pending->done(pending->ctx, block->nodes[i]);
        for (uint32_t k = 0; k < n->n_in && status == RP_OK; k++) {
            rp__ir_value v = n->in[k];
            if (v != RP__IR_NONE && --uses[v] == 0) {
                rp_release(value[v]);
                value[v] = NULL;
            }
        }
    }
    for (uint32_t k = 0; k < block->n_results && status == RP_OK && !pending; k++) {
        rp__ir_value v = block->results[k];
        out[k] = v == RP__IR_NONE ? NULL : rp__tensor_enter_scope(value[v]);
        if (out[k] && rp__tensor_is_error(out[k])) status = rp_error_status();
    }
done:
    for (size_t v = 0; value && v < ir->n_values; v++) rp_release(value[v]);
    rp__free(value);
    rp__free(uses);
    rp__free(wide);
    return status;
}

rp_status rp__ir_bind(const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_dim *binding) {
    bool values = true;
    if (n_in != ir->body.n_args)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph \"%s\" takes %u arguments, %zu were given", ir->name,
                        ir->body.n_args, n_in);
    for (size_t i = 0; i < rp__symbols_count(ir->symbols); i++) binding[i] = rp__symbols_at(ir->symbols, i)->hint;
    for (size_t k = 0; k < n_in; k++) {
        RP_TRY(rp__tensor_check(in[k], "an argument"));
        if (rp__tensor_is_error(in[k]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph \"%s\": argument %zu is the error tensor", ir->name, k);
        const rp__ir_value_info *info = &ir->values[ir->body.args[k]];
        char have[RP__SHAPE_TEXT], want[RP__SHAPE_TEXT];
        bool fits = in[k]->dtype == info->meta.dtype && in[k]->ndim == info->meta.ndim &&
                    rp__device_equal(in[k]->device, info->meta.device);
        for (unsigned d = 0; fits && d < info->meta.ndim; d++) {
            size_t symbol;
            rp_dim size = in[k]->size[d];
            values = values && !rp__dim_is_symbol(size);
            if (rp__symbols_is_plain(ir->symbols, info->meta.size[d], &symbol) &&
                rp__symbols_at(ir->symbols, symbol)->input == k && rp__symbols_at(ir->symbols, symbol)->dim == d &&
                !rp__symbols_at(ir->symbols, symbol)->is_stride)
                binding[symbol] = size;
            else if (!rp__dim_is_symbol(info->meta.size[d]))
                fits = rp__dim_is(RP__DIM_EQ, size, info->meta.size[d]);
        }
        if (!fits)
            return rp__fail(RP_ERROR_SHAPE, "graph \"%s\": argument %zu is %s, not %s %s", ir->name, k,
                            rp__tensor_text(in[k], have), rp_dtype_name(info->meta.dtype),
                            rp__shape_text(info->meta.size, info->meta.ndim, want));
        for (size_t i = 0; i < rp__symbols_count(ir->symbols); i++) {
            const rp__symbol *s = rp__symbols_at(ir->symbols, i);
            if (s->is_stride && s->input == k && s->dim < in[k]->ndim) binding[i] = in[k]->stride[s->dim];
        }
    }
    size_t failed;
    if (values && !rp__symbols_hold(ir->symbols, binding, &failed)) {
        rp__text t = {0};
        rp__symbols_guard_text(ir->symbols, rp__symbols_guard_at(ir->symbols, failed), true, &t);
        rp_status status = rp__fail(RP_ERROR_GUARD, "graph \"%s\" is for arguments with %s", ir->name,
                                    t.data ? t.data : "other sizes");
        rp__text_free(&t);
        return status;
    }
    return RP_OK;
}

/* The casts of the function are nodes: autocast adds none of its own. */
static rp_status run_body(const run *r, rp_tensor *const *in, rp_tensor **out) {
    const uint8_t autocast = rp__autocast_switch(0);
    rp_status status = run_block(r, &r->ir->body, in, out);
    (void)rp__autocast_switch(autocast);
    return status;
}

rp_status rp__ir_run(const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                     const rp__ir_run_options *options) {
    if (n_out != ir->body.n_results)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph \"%s\" gives %u results, %zu were asked for", ir->name,
                        ir->body.n_results, n_out);
    size_t n_symbols = rp__symbols_count(ir->symbols);
    rp_dim *binding = n_symbols ? rp__calloc(n_symbols, sizeof *binding) : NULL;
    if (n_symbols && !binding) return RP__OOM("graph run");
    positions drawn = {.whole = options && options->whole};
    rp__error_state before; /* an older error of the thread is none of this run */
    const bool failed = rp_failed();
    if (failed) rp__error_save(&before);
    run r = {.ir = ir, .binding = options && options->binding ? options->binding : binding, .positions = &drawn};
    r.captured = options && options->captured ? options->captured : ir->captured;
    rp_status status = RP_OK;
    if (!(options && options->binding)) status = rp__ir_bind(ir, in, n_in, binding);
    if (status == RP_OK) status = run_body(&r, in, out);
    positions_end(&drawn);
    if (status != RP_OK) {
        for (size_t k = 0; k < n_out; k++) out[k] = rp__tensor_error();
    }
    if (failed) rp__error_restore(&before);
    rp__free(binding);
    return status;
}

rp_status rp__ir_run_pending(const rp_ir *ir, const rp__ir_pending *pending) {
    positions drawn = {0};
    const run r = {.ir = ir, .captured = ir->captured, .positions = &drawn, .pending = pending};
    rp_status status = run_body(&r, NULL, NULL);
    positions_end(&drawn);
    return status;
}

rp_status rp_ir_run_at(const char *site, const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                       size_t n_out) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__ir_usable(ir, "rp_ir_run"));
    if ((n_in && !in) || (n_out && !out)) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_run: an argument is NULL");
    RP__LISTS_APART(in, n_in, out, n_out, rp_ir_run(ir, apart, n_in, out, n_out));
    RP_TRY(rp_ir_check(ir)); /* a parsed graph may say anything */
    return rp__ir_run(ir, in, n_in, out, n_out, NULL);
}
