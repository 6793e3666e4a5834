/* Partition: cuts a joint graph into a forward and a backward by a minimum cut over what is saved between them.
   Requires  a joint graph (joint.c), simplified or not.
   Keeps     every result and gradient bit for bit: a recomputed node is the same node, a random op names the same counters.
   After it  values that the backward gets are results of the forward, its arguments or its captured tensors; none lies in
             memory that the forward writes.

   A value that no tangent reaches is split into two vertices joined by an edge whose capacity is the cost of saving it. The
   source feeds what cannot be recomputed, what the derivatives read feeds the sink, a node joins its operands to its results.
   Costs and bans are those of PyTorch's min-cut partitioner (bytes * 1.1^distance to the backward, twice that for a value that
   would otherwise live in registers), but random ops may be recomputed: their counters are part of the node. That has a price,
   the capacity of an arc from the source: drawing is work. */
#include <string.h>

#include "compile/fuse.h"
#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"

/* ---- maximum flow (Dinic) */

#define INFINITE (INT64_MAX / 4)
typedef struct arc {
    uint32_t to, next; /* next arc of the same vertex */
    int64_t capacity;
} arc;
typedef struct network {
    arc *arcs;
    size_t n_arcs, capacity;
    uint32_t *first, *level, *queue, *current, *path;
    uint32_t n;
    bool failed;
} network;

static bool network_new(network *g, uint32_t n) {
    memset(g, 0, sizeof *g);
    g->n = n;
    g->first = rp__alloc(5 * (size_t)n * sizeof *g->first);
    if (!g->first) return false;
    memset(g->first, 0xff, n * sizeof *g->first);
    g->level = g->first + n;
    g->queue = g->level + n;
    g->current = g->queue + n;
    g->path = g->current + n;
    return true;
}

static void network_free(network *g) {
    rp__free(g->first);
    rp__free(g->arcs);
}

static void add_arc(network *g, uint32_t from, uint32_t to, int64_t capacity) {
    if (g->failed || !RP__GROW(&g->arcs, &g->capacity, g->n_arcs + 2)) {
        g->failed = true;
        return;
    }
    g->arcs[g->n_arcs] = (arc){to, g->first[from], capacity};
    g->first[from] = (uint32_t)g->n_arcs++;
    g->arcs[g->n_arcs] = (arc){from, g->first[to], 0};
    g->first[to] = (uint32_t)g->n_arcs++;
}

static bool find_levels(network *g, uint32_t source, uint32_t sink) {
    memset(g->level, 0xff, g->n * sizeof *g->level);
    size_t head = 0, tail = 0;
    g->level[source] = 0;
    g->queue[tail++] = source;
    while (head < tail) {
        uint32_t v = g->queue[head++];
        for (uint32_t a = g->first[v]; a != UINT32_MAX; a = g->arcs[a].next) {
            uint32_t to = g->arcs[a].to;
            if (g->arcs[a].capacity <= 0 || g->level[to] != UINT32_MAX) continue;
            g->level[to] = g->level[v] + 1;
            g->queue[tail++] = to;
        }
    }
    return g->level[sink] != UINT32_MAX;
}

/* One augmenting path along rising levels, without recursion; 0 when there is none left in this phase. */
static int64_t augment(network *g, uint32_t source, uint32_t sink) {
    size_t depth = 0;
    uint32_t at = source;
    while (at != sink) {
        uint32_t a = g->current[at];
        while (a != UINT32_MAX && (g->arcs[a].capacity <= 0 || g->level[g->arcs[a].to] != g->level[at] + 1))
            a = g->arcs[a].next;
        g->current[at] = a;
        if (a != UINT32_MAX) {
            g->path[depth++] = a;
            at = g->arcs[a].to;
            continue;
        }
        if (depth == 0) return 0;
        a = g->path[--depth]; /* a dead end: step back and past the arc */
        at = g->arcs[a ^ 1].to;
        g->current[at] = g->arcs[a].next;
    }
    int64_t flow = INT64_MAX;
    for (size_t k = 0; k < depth; k++) {
        if (g->arcs[g->path[k]].capacity < flow) flow = g->arcs[g->path[k]].capacity;
    }
    for (size_t k = 0; k < depth; k++) {
        g->arcs[g->path[k]].capacity -= flow;
        g->arcs[g->path[k] ^ 1].capacity += flow;
    }
    return flow;
}

/* Afterwards level[v] != UINT32_MAX says that v is on the source's side. */
static void minimum_cut(network *g, uint32_t source, uint32_t sink) {
    while (find_levels(g, source, sink)) {
        memcpy(g->current, g->first, g->n * sizeof *g->first);
        while (augment(g, source, sink) > 0) {}
    }
}

/* ---- the joint graph, seen by value */

typedef struct partitioner {
    const rp__joint *joint;
    const rp_ir *ir;
    bool *backward;     /* per value: a tangent reaches it */
    bool *result;       /* per value: a result of the forward */
    bool *written;      /* per value: lies in an argument or captured tensor that the forward writes at its end */
    bool *saved;        /* per value: the cut */
    uint32_t *distance; /* per value: steps to the nearest node of the backward */
    bool *fused;        /* per value: every reader would take it from registers */
    uint32_t *chain;    /* per value: recomputable nodes in a row that lead to it */
    bool *cheap;        /* per node: making its results again costs about what reading them does */
    bool keep_random;
} partitioner;

static bool is_leafy(const rp__ir_node *n) { return !n || n->kind == RP__IR_CAPTURED; }

static void classify(partitioner *p) {
    const rp_ir *ir = p->ir;
    const rp__ir_block *body = &ir->body;
    for (uint32_t k = p->joint->n_inputs; k < body->n_args; k++) p->backward[body->args[k]] = true;
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[body->nodes[k]];
        bool reached = false;
        for (uint32_t r = 0; r < n->n_in; r++) reached = reached || (n->in[r] != RP__IR_NONE && p->backward[n->in[r]]);
        for (uint32_t r = 0; r < n->n_out; r++) p->backward[n->out[r]] = reached;
    }
    for (uint32_t k = 0; k < p->joint->n_results; k++) {
        if (body->results[k] != RP__IR_NONE) p->result[body->results[k]] = true;
    }
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[body->nodes[k]];
        if (!n->dead && n->kind == RP__IR_ASSIGN) p->written[n->in[0]] = true;
    }
    for (rp__ir_value v = 0; v < ir->n_values; v++) p->written[v] = p->written[rp__ir_root(ir, v)];
    memset(p->distance, 0xff, ir->n_values * sizeof *p->distance);
    for (size_t v = 0; v < ir->n_values; v++) p->fused[v] = true;
    for (size_t k = body->n_nodes; k-- > 0;) {
        const rp__ir_node *n = &ir->nodes[body->nodes[k]];
        bool pointwise = n->kind == RP__IR_OP && (n->op->lowering == RP__POINTWISE || n->op->lowering == RP__VIEW);
        uint32_t steps = UINT32_MAX;
        for (uint32_t r = 0; r < n->n_out; r++) {
            uint32_t s = p->backward[n->out[r]] ? 0 : p->distance[n->out[r]];
            if (s < steps) steps = s;
        }
        for (uint32_t r = 0; r < n->n_in; r++) {
            if (n->in[r] == RP__IR_NONE) continue;
            if (!pointwise) p->fused[n->in[r]] = false;
            if (steps != UINT32_MAX && steps + 1 < p->distance[n->in[r]]) p->distance[n->in[r]] = steps + 1;
        }
    }
    for (uint32_t k = 0; k < body->n_results; k++) {
        if (body->results[k] != RP__IR_NONE) p->fused[body->results[k]] = false;
    }
}

/* ---- what is worth making again */

/* Elements that a node may read, or must keep alive, for each one that it gives: PyTorch's bound. */
enum { READS_A_RESULT = 4 };

/* Within the bound for one operand, or for the points of a space? */
static bool is_few(const rp_dim *size, size_t ndim, int64_t results) {
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) {
        if (!rp__mul_i64(n, rp__dim_hint(size[d]), &n)) return false;
    }
    return n / READS_A_RESULT <= results;
}

/* A loop that reduces nothing and reads little for what it gives; a view, and what copies alone. The work of other ops is not
   known here, or known to be large (products). */
static rp_status judge(const partitioner *p, uint32_t index, bool *cheap) {
    const rp_ir *ir = p->ir;
    const rp__ir_node *n = &ir->nodes[index];
    *cheap = rp__ir_is_view(n) || rp__ir_is_op(n, RP__OP(cat));
    bool loop = n->op->lowering == RP__POINTWISE || n->op->lowering == RP__ROWS || n->op->lowering == RP__INDEXED;
    if (*cheap || !loop) return RP_OK;
    int64_t results = 0;
    for (uint32_t k = 0; k < n->n_out; k++) {
        const rp__meta *m = &ir->values[n->out[k]].meta;
        int64_t numel = 1;
        for (unsigned d = 0; d < m->ndim; d++)
            if (!rp__mul_i64(numel, rp__dim_hint(m->size[d]), &numel)) numel = INT64_MAX / RP__MAX_OUTS;
        results += numel;
    }
    bool few = true;
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (n->in[k] == RP__IR_NONE) continue;
        const rp__meta *m = &ir->values[n->in[k]].meta;
        few = few && is_few(m->size, m->ndim, results);
    }
    if (!few || results == 0) { /* nothing that is empty is lowered */
        *cheap = few;
        return RP_OK;
    }
    rp__arena arena = {0};
    rp__fuse_node looked;
    rp_status status = rp__fuse_look(ir, index, &arena, &looked);
    *cheap = status == RP_OK && looked.inner == 0 && is_few(looked.size, looked.ndim, results);
    rp__arena_free(&arena);
    return status;
}

static rp_status judge_all(partitioner *p) {
    rp_status status = RP_OK;
    const bool quiet = rp__symbols_quiet(true); /* sizes are asked for their hints */
    for (size_t k = 0; k < p->ir->body.n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &p->ir->nodes[p->ir->body.nodes[k]];
        if (!n->dead && n->kind == RP__IR_OP && n->n_out > 0 && !p->backward[n->out[0]])
            status = judge(p, p->ir->body.nodes[k], &p->cheap[p->ir->body.nodes[k]]);
    }
    (void)rp__symbols_quiet(quiet);
    return status;
}

/* A value made again in another kernel may differ in its last bit from what was made of the first one, and be equal to
   nothing (the gradient of amax looks for the largest by eq). */
static void keep_compared(const partitioner *p) {
    for (size_t k = 0; k < p->ir->body.n_nodes; k++) {
        const rp__ir_node *n = &p->ir->nodes[p->ir->body.nodes[k]];
        if (!rp__ir_is_op(n, RP__OP(eq)) && !rp__ir_is_op(n, RP__OP(ne))) continue;
        for (uint32_t i = 0; i < n->n_in; i++) {
            const rp__ir_value v = n->in[i] == RP__IR_NONE ? n->in[i] : rp__ir_root(p->ir, n->in[i]);
            const rp__ir_node *maker = v == RP__IR_NONE ? NULL : rp__ir_producer(p->ir, v);
            if (maker && maker->kind == RP__IR_OP && rp__dtype_is_float(p->ir->values[v].meta.dtype))
                p->cheap[maker - p->ir->nodes] = false;
        }
    }
}

/* May the backward make the results of the node again rather than have them kept? */
static bool recomputable(const partitioner *p, const rp__ir_node *n) {
    if (n->kind == RP__IR_CONST) return true;
    if (n->recompute && n->n_regions > 0) return true;
    if (n->kind != RP__IR_OP || (n->op->flags & (RP_OP_INPLACE | RP_OP_SYNC))) return false;
    if (p->keep_random && (n->op->flags & RP_OP_RANDOM)) return false;
    return n->recompute || p->cheap[n - p->ir->nodes];
}

static int64_t saving_cost(const partitioner *p, rp__ir_value v) {
    const rp__ir_node *n = rp__ir_producer(p->ir, v);
    if (p->written[v]) return INFINITE;            /* gone when the backward runs */
    if (n && n->kind == RP__IR_CAPTURED) return 0; /* lives anyway */
    if (n && n->recompute && !p->result[v] && recomputable(p, n)) return INFINITE;
    rp__ir_value root = rp__ir_root(p->ir, v);
    double cost = (double)rp__meta_bytes_hint(&p->ir->values[root].meta);
    uint32_t d = p->distance[v] < 1 ? 1 : p->distance[v] > 100 ? 100 : p->distance[v];
    for (uint32_t k = 0; k < d; k++) cost *= 1.1;
    if (is_leafy(n) || p->result[v]) {
        cost *= 0.5; /* the caller holds it as well */
    } else if (p->fused[v]) {
        cost *= 2;
    }
    cost += root == v ? 1 : 2; /* of equals the one that is memory itself */
    return cost < (double)(INFINITE / 4) ? (int64_t)cost : INFINITE / 4;
}

static int64_t drawing_cost(const partitioner *p, rp__ir_value v) {
    const rp__meta *m = &p->ir->values[v].meta;
    int64_t bytes = (int64_t)rp__dtype_bytes(m->dtype), n = rp__meta_bytes_hint(m) / bytes;
    return n < INFINITE / 256 ? n * rp__draw_bytes(m->device) : INFINITE / 4;
}

/* Chains of recomputation longer than this are cut: each link would be run again for every reader's sake. */
enum { MAX_CHAIN = 100 };

static rp_status choose(partitioner *p) {
    const rp_ir *ir = p->ir;
    const rp__ir_block *body = &ir->body;
    uint32_t source = 2 * (uint32_t)ir->n_values, sink = source + 1;
    network g;
    if (ir->n_values > UINT32_MAX / 2 - 2 || !network_new(&g, sink + 1)) return RP__OOM("partition of a graph");
    for (uint32_t k = 0; k < p->joint->n_inputs; k++) add_arc(&g, source, 2 * body->args[k], INFINITE);
    for (rp__ir_value v = 0; v < ir->n_values; v++) {
        if (!p->backward[v]) add_arc(&g, 2 * v, 2 * v + 1, saving_cost(p, v));
    }
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[body->nodes[k]];
        if (n->kind == RP__IR_ASSIGN) continue;
        uint32_t longest = 0;
        bool again = n->kind != RP__IR_CAPTURED && recomputable(p, n);
        for (uint32_t r = 0; r < n->n_in; r++) {
            if (n->in[r] != RP__IR_NONE && p->chain[n->in[r]] > longest) longest = p->chain[n->in[r]];
        }
        if (again && longest >= MAX_CHAIN && !n->recompute) again = false;
        for (uint32_t r = 0; r < n->n_out; r++) {
            rp__ir_value out = n->out[r];
            p->chain[out] = again ? longest + 1 : 0;
            if (p->backward[out]) continue;
            if (!again) add_arc(&g, source, 2 * out, INFINITE);
            if (again && (n->op && (n->op->flags & RP_OP_RANDOM))) add_arc(&g, source, 2 * out, drawing_cost(p, out));
            for (uint32_t i = 0; i < n->n_in && again; i++) {
                if (n->in[i] != RP__IR_NONE) add_arc(&g, 2 * n->in[i] + 1, 2 * out, INFINITE);
            }
        }
        bool reached = n->n_out > 0 && p->backward[n->out[0]];
        for (uint32_t i = 0; i < n->n_in && reached; i++) {
            if (n->in[i] != RP__IR_NONE && !p->backward[n->in[i]]) add_arc(&g, 2 * n->in[i] + 1, sink, INFINITE);
        }
    }
    for (uint32_t k = p->joint->n_results; k < body->n_results; k++) {
        rp__ir_value v = body->results[k];
        if (v != RP__IR_NONE && !p->backward[v]) add_arc(&g, 2 * v + 1, sink, INFINITE);
    }
    rp_status status = g.failed ? RP__OOM("partition of a graph") : RP_OK;
    if (status == RP_OK) {
        minimum_cut(&g, source, sink);
        for (rp__ir_value v = 0; v < ir->n_values; v++) {
            p->saved[v] = !p->backward[v] && g.level[2 * v] != UINT32_MAX && g.level[2 * v + 1] == UINT32_MAX;
        }
    }
    network_free(&g);
    return status;
}

/* ---- extraction */

static void need(const rp_ir *ir, const rp__ir_value *values, uint32_t n, bool *needed) {
    (void)ir;
    for (uint32_t k = 0; k < n; k++) {
        if (values[k] != RP__IR_NONE) needed[values[k]] = true;
    }
}

/* Marks what `needed` values need, back to saved ones if `stop`. */
static void need_back(const partitioner *p, bool *needed, bool stop) {
    const rp__ir_block *body = &p->ir->body;
    for (size_t k = body->n_nodes; k-- > 0;) {
        const rp__ir_node *n = &p->ir->nodes[body->nodes[k]];
        bool run = false;
        for (uint32_t r = 0; r < n->n_out; r++) run = run || (needed[n->out[r]] && !(stop && p->saved[n->out[r]]));
        if (run) need(p->ir, n->in, n->n_in, needed);
    }
}

static rp_status refuse_written(const partitioner *p, rp__ir_value v) {
    const char *site = NULL;
    for (size_t k = 0; k < p->ir->body.n_nodes && !site; k++) {
        const rp__ir_node *n = &p->ir->nodes[p->ir->body.nodes[k]];
        if (!n->dead && n->kind == RP__IR_ASSIGN && n->in[0] == rp__ir_root(p->ir, v)) site = n->site;
    }
    return rp__fail(RP_ERROR_UNAVAILABLE, "the function writes a tensor whose old value its backward needs%s%s",
                    site && *site ? ", at " : "", site ? site : "");
}

/* A cut of no capacity holds nothing back: captured tensors that the backward does not read are not saved. Nor can anything
   be saved that the forward writes: its readers must do without, as those of eager execution must. */
static rp_status drop_unread(partitioner *p, bool *needed) {
    const rp__ir_block *body = &p->ir->body;
    memset(needed, 0, p->ir->n_values * sizeof *needed);
    need(p->ir, body->results + p->joint->n_results, body->n_results - p->joint->n_results, needed);
    need_back(p, needed, true);
    for (rp__ir_value v = 0; v < p->ir->n_values; v++) {
        if (needed[v] && p->written[v]) return refuse_written(p, v);
        p->saved[v] = p->saved[v] && needed[v];
    }
    return RP_OK;
}

static rp_status make_forward(partitioner *p, bool *needed, rp__partitioned *out) {
    const rp_ir *ir = p->ir;
    const rp__ir_block *body = &ir->body;
    uint32_t n_saved = 0, n_results = p->joint->n_results;
    for (rp__ir_value v = 0; v < ir->n_values; v++) n_saved += p->saved[v];
    rp__ir_value *results = rp__alloc((n_results + n_saved + 1u) * sizeof *results);
    out->saved = rp__alloc((n_saved + 1u) * sizeof *out->saved);
    if (!results || !out->saved) {
        rp__free(results);
        return RP__OOM("forward graph");
    }
    memcpy(results, body->results, n_results * sizeof *results);
    for (rp__ir_value v = 0; v < ir->n_values; v++) {
        if (!p->saved[v]) continue;
        const rp__ir_node *n = rp__ir_producer(ir, v);
        rp__saved_source *s = &out->saved[out->n_saved++];
        *s = (rp__saved_source){RP__SAVED_RESULT, 0};
        if (!n) {
            *s = (rp__saved_source){RP__SAVED_ARG, ir->values[v].out_index};
        } else if (n->kind == RP__IR_CAPTURED) {
            *s = (rp__saved_source){RP__SAVED_CAPTURED, n->captured_index};
        } else {
            while (s->index < n_results && results[s->index] != v) s->index++;
            if (s->index == n_results) results[n_results++] = v;
            out->saved_bytes += rp__meta_bytes_hint(&ir->values[v].meta);
        }
    }
    memset(needed, 0, ir->n_values * sizeof *needed);
    need(ir, results, n_results, needed);
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[body->nodes[k]];
        if (n->kind == RP__IR_ASSIGN) need(ir, n->in, n->n_in, needed);
        if (p->keep_random && n->kind == RP__IR_OP && (n->op->flags & RP_OP_RANDOM)) need(ir, n->in, n->n_in, needed);
    }
    need_back(p, needed, false);
    rp__rewrite w;
    rp_status status = rp__rewrite_begin_bare(&w, ir);
    for (uint32_t k = 0; k < p->joint->n_inputs && status == RP_OK; k++) {
        status = rp__rewrite_arg(&w, body->args[k]);
        for (uint32_t j = 0; j < k && status == RP_OK; j++) {
            if (ir->values[body->args[j]].storage == ir->values[body->args[k]].storage) {
                w.dst->values[w.map[body->args[k]]].storage = w.dst->values[w.map[body->args[j]]].storage;
                break;
            }
        }
    }
    for (size_t k = 0; k < body->n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &ir->nodes[body->nodes[k]];
        bool run =
            n->kind == RP__IR_ASSIGN || (p->keep_random && n->kind == RP__IR_OP && (n->op->flags & RP_OP_RANDOM));
        for (uint32_t r = 0; r < n->n_out; r++) run = run || needed[n->out[r]];
        if (run) status = rp__rewrite_copy(&w, &w.dst->body, body->nodes[k]);
    }
    if (status == RP_OK) status = rp__ir_set_results(w.dst, &w.dst->body, results, n_results);
    for (uint32_t k = 0; k < n_results && status == RP_OK; k++) {
        if (results[k] != RP__IR_NONE) w.dst->body.results[k] = w.map[results[k]];
    }
    rp__free(results);
    return rp__rewrite_end(&w, status, "partition (forward)", &out->forward);
}

static rp_status make_backward(partitioner *p, bool *needed, rp__partitioned *out) {
    const rp_ir *ir = p->ir;
    const rp__ir_block *body = &ir->body;
    const rp__ir_value *grads = body->results + p->joint->n_results;
    uint32_t n_grads = body->n_results - p->joint->n_results;
    memset(needed, 0, ir->n_values * sizeof *needed);
    need(ir, grads, n_grads, needed);
    need_back(p, needed, true);
    rp__rewrite w;
    rp_status status = rp__rewrite_begin_bare(&w, ir);
    for (rp__ir_value v = 0; v < ir->n_values && status == RP_OK; v++) {
        if (p->saved[v]) status = rp__rewrite_arg(&w, v);
    }
    for (uint32_t k = p->joint->n_inputs; k < body->n_args && status == RP_OK; k++) {
        status = rp__rewrite_arg(&w, body->args[k]);
    }
    for (size_t k = 0; k < body->n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &ir->nodes[body->nodes[k]];
        bool run = false;
        for (uint32_t r = 0; r < n->n_out; r++) run = run || (needed[n->out[r]] && !p->saved[n->out[r]]);
        if (!run) continue;
        if (n->n_out > 0 && !p->backward[n->out[0]] && n->kind != RP__IR_CAPTURED) out->n_recomputed++;
        /* a node with several results may make one that was saved as well: readers take the saved one */
        rp__ir_value kept[RP__MAX_OUTS];
        for (uint32_t r = 0; r < n->n_out && r < RP__MAX_OUTS; r++) kept[r] = w.map[n->out[r]];
        status = rp__rewrite_copy(&w, &w.dst->body, body->nodes[k]);
        for (uint32_t r = 0; r < n->n_out && r < RP__MAX_OUTS && status == RP_OK; r++) {
            if (p->saved[n->out[r]]) w.map[n->out[r]] = kept[r];
        }
    }
    if (status == RP_OK) status = rp__ir_set_results(w.dst, &w.dst->body, grads, n_grads);
    for (uint32_t k = 0; k < n_grads && status == RP_OK; k++) {
        if (grads[k] != RP__IR_NONE) w.dst->body.results[k] = w.map[grads[k]];
    }
    return rp__rewrite_end(&w, status, "partition (backward)", &out->backward);
}

rp_status rp__partition(const rp__joint *joint, bool keep_random, rp__partitioned *out) {
    memset(out, 0, sizeof *out);
    size_t n = joint->ir->n_values + 1;
    partitioner p = {.joint = joint, .ir = joint->ir, .keep_random = keep_random};
    bool *flags = rp__calloc(6 * n + joint->ir->n_nodes, sizeof *flags), *needed = flags ? flags + 5 * n : NULL;
    uint32_t *words = rp__calloc(2 * n, sizeof *words);
    rp__symbols *outer = rp__symbols_enter(joint->ir->symbols);
    rp_status status = RP_OK;
    if (!flags || !words) {
        status = RP__OOM("partition of a graph");
        goto done;
    }
    p.backward = flags;
    p.result = flags + n;
    p.saved = flags + 2 * n;
    p.fused = flags + 3 * n;
    p.written = flags + 4 * n;
    p.cheap = flags + 6 * n;
    p.distance = words;
    p.chain = words + n;
    classify(&p);
    RP_TRY_GOTO(status, done, judge_all(&p));
    if (joint->relaxed) keep_compared(&p);
    RP_TRY_GOTO(status, done, choose(&p));
    RP_TRY_GOTO(status, done, drop_unread(&p, needed));
    RP_TRY_GOTO(status, done, make_forward(&p, needed, out));
    status = make_backward(&p, needed, out);
done:
    (void)rp__symbols_enter(outer);
    rp__free(flags);
    rp__free(words);
    if (status != RP_OK) rp__partitioned_free(out);
    return status;
}

void rp__partitioned_free(rp__partitioned *p) {
    if (p->forward) rp__ir_release(p->forward);
    if (p->backward) rp__ir_release(p->backward);
    rp__free(p->saved);
    memset(p, 0, sizeof *p);
}
