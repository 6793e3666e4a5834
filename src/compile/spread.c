/* Spread: every kernel makes its own copy of what is made from nothing.
   Requires  a functional graph.
   Keeps     every bit of every result; random counters (a copy draws the numbers of its original).
   Breaks    the absence of common subexpressions: simplify.c must not run after it.
   A fill, a range of numbers, a mask that compares random numbers with a constant: such values need no operand, so a reader that
   makes them in registers saves a load, and together all readers save the store. As one shared node they would tie readers to each
   other that have nothing else in common, for instance a forward and its backward. Fusion merges a copy with its only reader;
   copies that meet in one kernel are one value again, because a kernel hash-conses. */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"

/* Longer chains are made once: each reader would run all of it. */
enum { MAX_DEPTH = 4 };

typedef struct spreader {
    const rp_ir *src;
    rp__rewrite w;
    uint8_t *depth;    /* per src value: nodes in a row from nothing to it; 0: it needs an operand */
    bool *shared;      /* per src value: somebody reads the original */
    bool *drawn;       /* per src value: random numbers are in it */
    uint32_t *readers; /* per src value that is no view: loops that read it, through views */
} spreader;

static bool is_loop(const rp__ir_node *n) {
    return n->kind == RP__IR_OP && (n->op->lowering == RP__POINTWISE || n->op->lowering == RP__ROWS);
}

static bool find(spreader *s) {
    bool any = false;
    for (size_t k = 0; k < s->src->body.n_nodes; k++) {
        const rp__ir_node *n = &s->src->nodes[s->src->body.nodes[k]];
        bool view = rp__ir_is_view(n);
        if (n->dead || n->kind != RP__IR_OP || n->n_out != 1 || (n->op->flags & RP_OP_INPLACE) ||
            (!view && n->op->lowering != RP__POINTWISE)) {
            continue;
        }
        unsigned depth = view ? 0 : 1;
        bool made = true, drawn = (n->op->flags & RP_OP_RANDOM) != 0;
        for (uint32_t i = 0; i < n->n_in && made; i++) {
            unsigned below = n->in[i] == RP__IR_NONE ? 0 : s->depth[n->in[i]];
            made = below > 0;
            drawn = drawn || (made && s->drawn[n->in[i]]);
            if (below + !view > depth) depth = below + !view;
        }
        if (!made || depth > MAX_DEPTH) continue;
        s->depth[n->out[0]] = (uint8_t)depth;
        s->drawn[n->out[0]] = drawn;
        any = true;
    }
    return any;
}

static bool is_made(const spreader *s, rp__ir_value v) { return v != RP__IR_NONE && s->depth[v] > 0; }

/* Drawing once for all and keeping that, a store and a load for each but the first, against drawing for each. */
static bool is_dear(const spreader *s, rp__ir_value v) {
    rp__ir_value root = rp__ir_root(s->src, v);
    const rp__meta *m = &s->src->values[root].meta;
    return s->drawn[root] && s->readers[root] > 1 &&
           (s->readers[root] - 1) * rp__draw_bytes(m->device) > s->readers[root] * rp__dtype_bytes(m->dtype);
}

/* Marks whose originals stay: results, what anything but a loop reads, and what is dear to make. */
static void mark_shared(spreader *s) {
    const rp_ir *ir = s->src;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in && !n->dead && is_loop(n); i++) {
            if (n->in[i] != RP__IR_NONE) s->readers[rp__ir_root(ir, n->in[i])]++;
        }
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        if (ir->body.results[k] != RP__IR_NONE) s->shared[ir->body.results[k]] = true;
    }
    for (size_t k = ir->body.n_nodes; k-- > 0;) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        bool copies = n->n_out == 1 && is_made(s, n->out[0]) ? !s->shared[n->out[0]] : is_loop(n);
        for (uint32_t i = 0; i < n->n_in && !n->dead; i++) {
            if (is_made(s, n->in[i]) && (!copies || is_dear(s, n->in[i]))) s->shared[n->in[i]] = true;
        }
    }
}

/* A copy of v, and of what it is made from, at the end of the block. Recursion: MAX_DEPTH nodes and the views between them. */
static rp_status copy_of(spreader *s, rp__ir_value v, rp__ir_value *out) {
    uint32_t node = s->src->values[v].node;
    const rp__ir_node *n = &s->src->nodes[node];
    rp__ir_value in[RP__FEW_OPERANDS] = {0}, original = s->w.map[v];
    if (s->shared[v]) {
        *out = original;
        return RP_OK;
    }
    for (uint32_t k = 0; k < n->n_in; k++) RP_TRY(copy_of(s, n->in[k], &in[k]));
    RP_TRY(rp__rewrite_copy_with(&s->w, &s->w.dst->body, node, in));
    *out = s->w.map[v];
    s->w.map[v] = original;
    return RP_OK;
}

static rp_status visit(spreader *s, uint32_t node) {
    const rp__ir_node *n = &s->src->nodes[node];
    if (n->n_out == 1 && is_made(s, n->out[0]) && !s->shared[n->out[0]]) return RP_OK; /* made where it is read */
    rp__ir_value few[RP__FEW_OPERANDS] = {0}, *in = few;
    if (n->n_in > RP__FEW_OPERANDS) {
        in = rp__alloc(n->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < n->n_in && status == RP_OK; k++) {
        in[k] = n->in[k] == RP__IR_NONE ? RP__IR_NONE : s->w.map[n->in[k]];
        if (is_made(s, n->in[k])) status = copy_of(s, n->in[k], &in[k]);
    }
    if (status == RP_OK) status = rp__rewrite_copy_with(&s->w, &s->w.dst->body, node, in);
    if (in != few) rp__free(in);
    return status;
}

rp_status rp__spread(rp_ir *ir, rp_ir **out) {
    spreader s;
    memset(&s, 0, sizeof s);
    s.src = ir;
    size_t n = ir->n_values + 1;
    uint8_t *flags = rp__calloc(3 * n, sizeof *flags);
    s.readers = rp__calloc(n, sizeof *s.readers);
    *out = NULL;
    if (!flags || !s.readers) {
        rp__free(flags);
        rp__free(s.readers);
        return RP__OOM("copies of a pass");
    }
    s.depth = flags;
    s.shared = (bool *)(flags + n);
    s.drawn = (bool *)(flags + 2 * n);
    if (!find(&s)) {
        rp__free(flags);
        rp__free(s.readers);
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    mark_shared(&s);
    rp_status status = rp__rewrite_begin(&s.w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++) {
        if (!ir->nodes[ir->body.nodes[k]].dead) status = visit(&s, ir->body.nodes[k]);
    }
    if (status == RP_OK) status = rp__rewrite_results(&s.w, &ir->body, &s.w.dst->body);
    rp__free(flags);
    rp__free(s.readers);
    return rp__rewrite_end(&s.w, status, "spread", out);
}
