/* Spread: every kernel makes its own copy of what is made from nothing.
   Requires  a functional graph.
   Keeps     every bit of every result; random counters (a copy draws the numbers of its original).
   Breaks    the absence of common subexpressions: simplify.c must not run after it.
   A fill, a range of numbers, a mask that compares random numbers with a constant: such values need no operand, so a reader that
   makes them in registers saves a load, and together all readers save the store. As one shared node they would tie readers to each
   other that have nothing else in common, for instance a forward and its backward. Fusion merges a copy with its only reader;
   copies that meet in one kernel are one value again, because a kernel hash-conses.
   On a GPU so are a few additions, products and casts of numbers of a row and one tensor, where a reader that makes them reads no more bytes
   than the value has: the normalised rows of a norm, once for their gradient and once for that of the weight. The tensor is an argument; or
   one that a node makes and that has fewer bytes - a gradient in bfloat16 beside what a norm computes of it in float32 -, or as many where
   several read both, so that one of the two need not be in memory. (On a CPU sums over the rows are in the kernel of the rows.) */
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
    bool *written;     /* per src value that is no view: its memory changes */
    uint32_t *readers; /* per src value that is no view: loops that read it, through views */
    int64_t *reads;    /* per src value with a depth: bytes of tensors that it is made from */
    uint32_t *turn;    /* per src value: 1 + the node that its last copy was made for */
    rp__ir_value *copy;
} spreader;

static bool is_loop(const rp__ir_node *n) {
    return n->kind == RP__IR_OP && (n->op->lowering == RP__POINTWISE || n->op->lowering == RP__ROWS);
}

static int64_t elements_of(const rp__meta *m) {
    int64_t n = 1;
    for (uint32_t d = 0; d < m->ndim; d++)
        if (!rp__mul_i64(n, rp__dim_hint(m->size[d]), &n)) return INT64_MAX / 64;
    return n;
}

/* Bytes of an operand that many elements are made from: next to nothing for fewer numbers. -1: what is there may change, or is too large.
 * inside: a node makes it. */
static int64_t at_hand(const spreader *s, rp__ir_value v, int64_t elements, bool *inside) {
    enum { FEW = 16 };
    const rp__ir_value root = rp__ir_root(s->src, v);
    const rp__meta *m = &s->src->values[root].meta;
    const uint32_t node = s->src->values[root].node;
    const int64_t own = elements_of(m);
    if (s->written[root]) return -1;
    if (own <= elements / FEW) return 0;
    *inside = node != RP__IR_NONE && s->src->nodes[node].kind != RP__IR_CAPTURED;
    return own > elements ? -1 : own * (int64_t)rp__dtype_bytes(m->dtype);
}

static bool is_cheap(const rp__ir_node *n) {
    return rp__ir_is_op(n, RP__OP(to_dtype)) || rp__ir_is_op(n, RP__OP(add)) || rp__ir_is_op(n, RP__OP(sub)) ||
           rp__ir_is_op(n, RP__OP(mul));
}

/* Of a node all of whose operands are made: the bytes of tensors below it, each operand once. Few enough, and cheap, or none at all? */
static bool stays_cheap(spreader *s, const rp__ir_node *n) {
    const rp__meta *m = &s->src->values[n->out[0]].meta;
    int64_t reads = 0;
    for (uint32_t i = 0; i < n->n_in; i++) {
        bool again = n->in[i] == RP__IR_NONE;
        for (uint32_t k = 0; k < i && !again; k++) again = n->in[k] == n->in[i];
        if (!again) reads += s->reads[n->in[i]];
    }
    s->reads[n->out[0]] = reads;
    return reads == 0 || (is_cheap(n) && reads <= elements_of(m) * (int64_t)rp__dtype_bytes(m->dtype));
}

/* Is the node a float that is cheaply made of what is at hand? Then how many nodes in a row, or 0. */
static unsigned find_cheap(spreader *s, const rp__ir_node *n) {
    const rp__meta *m = &s->src->values[n->out[0]].meta;
    const int64_t elements = elements_of(m), bytes_of_it = elements * (int64_t)rp__dtype_bytes(m->dtype);
    int64_t reads = 0;
    unsigned depth = 1;
    bool as_many = false;
    if (m->device.type != RP_DEVICE_CUDA || !rp__dtype_is_float(m->dtype) || !is_cheap(n)) return 0;
    for (uint32_t i = 0; i < n->n_in; i++) {
        if (n->in[i] == RP__IR_NONE) continue;
        const unsigned below = s->depth[n->in[i]];
        bool inside = false;
        const int64_t bytes = below ? s->reads[n->in[i]] : at_hand(s, n->in[i], elements, &inside);
        if (bytes < 0 || s->drawn[n->in[i]]) return 0;
        reads += bytes;
        if (inside && bytes >= bytes_of_it) {
            if (s->readers[rp__ir_root(s->src, n->in[i])] < 2 || s->readers[n->out[0]] < 2) return 0;
            as_many = true;
        }
        if (below + 1 > depth) depth = below + 1;
    }
    if (reads > bytes_of_it || (as_many && depth > 1)) return 0;
    s->reads[n->out[0]] = reads;
    return depth;
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
        if (view && made)
            s->reads[n->out[0]] = s->reads[n->in[0]];
        else if (made)
            made = stays_cheap(s, n);
        if (!made && !view) {
            depth = find_cheap(s, n);
            made = depth > 0;
            drawn = false;
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

static void count_readers(spreader *s) {
    const rp_ir *ir = s->src;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in && !n->dead && is_loop(n); i++) {
            if (n->in[i] != RP__IR_NONE) s->readers[rp__ir_root(ir, n->in[i])]++;
        }
    }
}

/* Marks whose originals stay: results, what anything but a loop reads, and what is dear to make. */
static void mark_shared(spreader *s) {
    const rp_ir *ir = s->src;
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

/* A copy of v, and of what it is made from, at the end of the block: one for each reader. Recursion: MAX_DEPTH nodes and the views between
 * them. */
static rp_status copy_of(spreader *s, rp__ir_value v, uint32_t reader, rp__ir_value *out) {
    rp__ir_value in[RP__FEW_OPERANDS] = {0}, original = s->w.map[v];
    if (s->shared[v] || !is_made(s, v)) {
        *out = original;
        return RP_OK;
    }
    if (s->turn[v] == reader + 1) {
        *out = s->copy[v];
        return RP_OK;
    }
    const uint32_t node = s->src->values[v].node;
    const rp__ir_node *n = &s->src->nodes[node];
    for (uint32_t k = 0; k < n->n_in; k++) {
        in[k] = RP__IR_NONE;
        if (n->in[k] != RP__IR_NONE) RP_TRY(copy_of(s, n->in[k], reader, &in[k]));
    }
    RP_TRY(rp__rewrite_copy_with(&s->w, &s->w.dst->body, node, in));
    *out = s->copy[v] = s->w.map[v];
    s->turn[v] = reader + 1;
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
        if (is_made(s, n->in[k])) status = copy_of(s, n->in[k], node, &in[k]);
    }
    if (status == RP_OK) status = rp__rewrite_copy_with(&s->w, &s->w.dst->body, node, in);
    if (in != few) rp__free(in);
    return status;
}

static void free_all(spreader *s) {
    rp__free(s->depth);
    rp__free(s->readers);
    rp__free(s->reads);
    rp__free(s->turn);
    rp__free(s->copy);
}

rp_status rp__spread(rp_ir *ir, rp_ir **out) {
    spreader s;
    memset(&s, 0, sizeof s);
    s.src = ir;
    const size_t n = ir->n_values + 1;
    s.depth = rp__calloc(4 * n, sizeof *s.depth);
    s.readers = rp__calloc(n, sizeof *s.readers);
    s.reads = rp__calloc(n, sizeof *s.reads);
    s.turn = rp__calloc(n, sizeof *s.turn);
    s.copy = rp__calloc(n, sizeof *s.copy);
    *out = NULL;
    if (!s.depth || !s.readers || !s.reads || !s.turn || !s.copy) {
        free_all(&s);
        return RP__OOM("copies of a pass");
    }
    s.shared = (bool *)(s.depth + n);
    s.drawn = (bool *)(s.depth + 2 * n);
    s.written = (bool *)(s.depth + 3 * n);
    rp__ir_mark_written(ir, true, s.written);
    count_readers(&s);
    if (!find(&s)) {
        free_all(&s);
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    mark_shared(&s);
    rp_status status = rp__rewrite_begin(&s.w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++) {
        if (!ir->nodes[ir->body.nodes[k]].dead) status = visit(&s, ir->body.nodes[k]);
    }
    if (status == RP_OK) status = rp__rewrite_results(&s.w, &ir->body, &s.w.dst->body);
    free_all(&s);
    return rp__rewrite_end(&s.w, status, "spread", out);
}
