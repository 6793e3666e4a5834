/* Cutting a graph into parts (door.h). Every node has a stage: those of the engine odd, others even; a node's stage is the least
   that none of its operands' producers exceeds, and others that depend on nothing come first. What has one stage is one part: every way from one of its nodes to another stays in
   the stage, so parts run in the order of stages, and there are as few of them as an order of alternating kinds can have.
   Views, captured tensors and constants have no stage: each part that reads one has it for itself, so that what passes between parts
   is whole memory. Writes into arguments and captured tensors come last. */
#include <stdlib.h>
#include <string.h>

#include "compile/rewrite.h"
#include "core/alloc.h"
#include "doors/door.h"

typedef struct cutter {
    const rp_ir *ir;
    const bool *takes;
    uint32_t *stage;          /* per node; 0: free */
    uint32_t n_stages;        /* largest + 1 */
    uint32_t *mark;           /* per node: the stage that has it already */
    uint32_t *read, *written; /* per memory: the last stage that reads it, and that writes it in place */
    uint32_t *slot_of;        /* per value; RP__IR_NONE: no part's */
    uint32_t n_slots;
} cutter;

static bool is_free(const rp__ir_node *n) {
    return n->kind == RP__IR_CAPTURED || n->kind == RP__IR_CONST || rp__ir_is_view(n);
}

/* The stage of the node that makes the memory of v; 0: it is there before. */
static uint32_t made_at(const cutter *c, rp__ir_value v) {
    const rp__ir_value root = rp__ir_root(c->ir, v);
    const uint32_t node = c->ir->values[root].node;
    return node == RP__IR_NONE ? 0 : c->stage[node];
}

/* The least stage from `at` on of a kind: odd for the engine. */
static uint32_t stage_of_kind(uint32_t at, bool engine) { return at + ((at & 1u) != (engine ? 1u : 0u)); }

/* Optimizer steps are in place: what reads memory before they write it stays before them, what reads it afterwards behind. */
static uint32_t after_writes(const cutter *c, const rp__ir_node *n, uint32_t least, bool engine) {
    for (uint32_t i = 0; i < n->n_in; i++) {
        if (n->in[i] == RP__IR_NONE) continue;
        const uint32_t m = c->ir->values[n->in[i]].storage;
        uint32_t s = c->written[m];
        if (rp__ir_writes(n, i) && c->read[m] > s) s = c->read[m];
        if (s == 0) continue;
        s = stage_of_kind(s, engine);
        if (s > least) least = s;
    }
    return least;
}

static void note_memory(cutter *c, const rp__ir_node *n, uint32_t stage) {
    for (uint32_t i = 0; i < n->n_in; i++) {
        if (n->in[i] == RP__IR_NONE) continue;
        const uint32_t m = c->ir->values[n->in[i]].storage;
        if (c->read[m] < stage) c->read[m] = stage;
        if (rp__ir_writes(n, i) && c->written[m] < stage) c->written[m] = stage;
    }
}

/* Stages from `base` on, which is odd, for the engine; others that depend on nothing may have the even one below it. */
static void find_stages(cutter *c, uint32_t base) {
    const rp__ir_block *body = &c->ir->body;
    uint32_t last = 0;
    bool assigns = true; /* does the engine take all of them? They stay together, and come last */
    for (size_t k = 0; k < body->n_nodes; k++) {
        const uint32_t at = body->nodes[k];
        const rp__ir_node *n = &c->ir->nodes[at];
        if (n->dead || is_free(n) || n->kind == RP__IR_ASSIGN) continue;
        const bool engine = c->takes[at];
        uint32_t least = engine ? base : 2;
        for (uint32_t i = 0; i < n->n_in; i++) {
            if (n->in[i] == RP__IR_NONE) continue;
            uint32_t s = made_at(c, n->in[i]);
            if (s == 0) continue;
            s = stage_of_kind(s, engine);
            if (s > least) least = s;
        }
        c->stage[at] = least = after_writes(c, n, least, engine);
        note_memory(c, n, least);
        if (least > last) last = least;
    }
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &c->ir->nodes[body->nodes[k]];
        if (!n->dead && n->kind == RP__IR_ASSIGN) assigns = assigns && c->takes[body->nodes[k]];
    }
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &c->ir->nodes[body->nodes[k]];
        if (n->dead || n->kind != RP__IR_ASSIGN) continue;
        c->stage[body->nodes[k]] = last = stage_of_kind(last ? last : assigns ? base : 2, assigns);
    }
    c->n_stages = last + 1;
}

/* Views, constants and captured tensors that a value comes through, each once a part. */
static void mark_way(cutter *c, rp__ir_value v, uint32_t stage) {
    while (v != RP__IR_NONE) {
        const uint32_t at = c->ir->values[v].node;
        if (at == RP__IR_NONE || !is_free(&c->ir->nodes[at])) return;
        c->mark[at] = stage;
        v = rp__ir_is_view(&c->ir->nodes[at]) ? c->ir->nodes[at].in[0] : RP__IR_NONE;
    }
}

static int by_stride(const rp__ir_value_info *info, unsigned a, unsigned b) {
    /* sizes 1 have no place of their own: they stay where they are */
    return info->stride[a] > info->stride[b] ? -1 : info->stride[a] < info->stride[b] ? 1 : 0;
}

static void describe(const rp_ir *ir, rp__ir_value v, rp__door_value *out) {
    const rp__ir_value_info *info = &ir->values[v];
    *out = (rp__door_value){.value = v, .slot = RP__IR_NONE};
    unsigned n = info->meta.ndim;
    for (unsigned d = 0; d < n; d++) out->order[d] = d;
    const bool dense = rp__ir_value_dense(info);
    if (dense && !rp__ir_value_contiguous(info)) {
        for (unsigned i = 1; i < n; i++) { /* few dims, nearly in order */
            for (unsigned k = i; k > 0; k--) {
                const unsigned a = (unsigned)out->order[k - 1], b = (unsigned)out->order[k];
                if (by_stride(info, a, b) <= 0) break;
                out->order[k - 1] = b;
                out->order[k] = a;
            }
        }
    }
    out->type = rp__put_type_from(info->meta.dtype, info->meta.size, n);
    for (unsigned d = 0; d < n; d++) {
        out->type.size[d] = info->meta.size[out->order[d]];
        out->turned = out->turned || out->order[d] != (int64_t)d;
    }
}

static rp_status push(rp__door_value **list, uint32_t *n, size_t *capacity, const cutter *c, rp__ir_value v) {
    for (uint32_t k = 0; k < *n; k++)
        if ((*list)[k].value == v) return RP_OK;
    if (!RP__GROW(list, capacity, *n + 1u)) return RP__OOM("parts of a graph");
    describe(c->ir, v, &(*list)[*n]);
    (*n)++;
    return RP_OK;
}

static bool is_read_elsewhere(const cutter *c, rp__ir_value root, uint32_t stage) {
    const rp__ir_block *body = &c->ir->body;
    for (uint32_t k = 0; k < body->n_results; k++)
        if (body->results[k] != RP__IR_NONE && rp__ir_root(c->ir, body->results[k]) == root) return true;
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &c->ir->nodes[body->nodes[k]];
        if (n->dead || is_free(n) || c->stage[body->nodes[k]] == stage) continue;
        for (uint32_t i = 0; i < n->n_in; i++)
            if (n->in[i] != RP__IR_NONE && rp__ir_root(c->ir, n->in[i]) == root) return true;
    }
    return false;
}

/* Which inputs the part's nodes write. */
static rp_status note_writes(const cutter *c, rp__door_part *p) {
    p->writes = rp__calloc(p->n_in + 1u, sizeof *p->writes);
    if (!p->writes) return RP__OOM("parts of a graph");
    for (uint32_t k = 0; k < p->n_in; k++) {
        bool written = false;
        for (size_t at = 0; at < p->n_nodes && !written; at++) {
            const rp__ir_node *n = &c->ir->nodes[p->nodes[at]];
            for (uint32_t i = 0; i < n->n_in && !written; i++)
                written = n->in[i] == p->in[k].value && rp__ir_writes(n, i);
        }
        if (written) p->writes[p->n_writes++] = k;
    }
    return RP_OK;
}

static rp_status fill(cutter *c, uint32_t stage, rp__door_part *p) {
    const rp__ir_block *body = &c->ir->body;
    size_t capacity = 0, in_capacity = 0, out_capacity = 0;
    *p = (rp__door_part){.ir = c->ir, .engine = stage & 1u};
    for (size_t k = 0; k < body->n_nodes; k++) {
        const rp__ir_node *n = &c->ir->nodes[body->nodes[k]];
        if (n->dead || c->stage[body->nodes[k]] != stage || is_free(n)) continue;
        c->mark[body->nodes[k]] = stage;
        for (uint32_t i = 0; i < n->n_in; i++)
            if (n->in[i] != RP__IR_NONE) mark_way(c, n->in[i], stage);
    }
    for (size_t k = 0; k < body->n_nodes; k++) {
        const uint32_t at = body->nodes[k];
        const rp__ir_node *n = &c->ir->nodes[at];
        if (n->dead || c->mark[at] != stage) continue;
        if (!RP__GROW(&p->nodes, &capacity, p->n_nodes + 1)) return RP__OOM("parts of a graph");
        p->nodes[p->n_nodes++] = at;
        if (n->kind == RP__IR_CAPTURED) {
            RP_TRY(push(&p->in, &p->n_in, &in_capacity, c, n->out[0]));
            rp__door_value *v = &p->in[p->n_in - 1];
            v->tensor = c->ir->captured[n->captured_index];
            v->slot = c->ir->body.n_args + n->captured_index;
            continue;
        }
        for (uint32_t i = 0; i < n->n_in; i++) {
            if (n->in[i] == RP__IR_NONE) continue;
            const uint32_t from = c->ir->values[n->in[i]].node;
            if (from != RP__IR_NONE && c->mark[from] == stage) continue;
            RP_TRY(push(&p->in, &p->n_in, &in_capacity, c, n->in[i]));
            rp__door_value *v = &p->in[p->n_in - 1];
            if (v->slot == RP__IR_NONE)
                v->slot = from == RP__IR_NONE ? c->ir->values[n->in[i]].out_index : c->slot_of[n->in[i]];
        }
        for (uint32_t i = 0; i < n->n_out && !is_free(n); i++) {
            if (n->out[i] == RP__IR_NONE || !is_read_elsewhere(c, n->out[i], stage)) continue;
            RP_TRY(push(&p->out, &p->n_out, &out_capacity, c, n->out[i]));
            c->slot_of[n->out[i]] = p->out[p->n_out - 1].slot = c->n_slots++;
        }
    }
    return p->n_nodes ? note_writes(c, p) : RP_OK; /* the place of an empty one is used again */
}

static rp_status cut(cutter *c, rp__door_part **parts, size_t *n) {
    find_stages(c, 3);
    *parts = rp__calloc(c->n_stages + 1u, sizeof **parts);
    if (!*parts) return RP__OOM("parts of a graph");
    for (uint32_t s = 1; s < c->n_stages; s++) {
        RP_TRY(fill(c, s, &(*parts)[*n]));
        if ((*parts)[*n].n_nodes > 0) (*n)++;
    }
    return RP_OK;
}

rp_status rp__door_parts(const rp_ir *ir, const bool *takes, rp__door_part **parts, size_t *n, uint32_t *n_slots,
                         uint32_t *slot_of) {
    cutter c = {.ir = ir, .takes = takes, .slot_of = slot_of};
    *parts = NULL;
    *n = 0;
    c.stage = rp__calloc(ir->n_nodes + 1, sizeof *c.stage);
    c.mark = rp__calloc(ir->n_nodes + 1, sizeof *c.mark);
    c.read = rp__calloc(ir->n_storages + 1u, sizeof *c.read);
    c.written = rp__calloc(ir->n_storages + 1u, sizeof *c.written);
    c.n_slots = ir->body.n_args + (uint32_t)ir->n_captured;
    memset(slot_of, 0xff, ir->n_values * sizeof *slot_of);
    for (uint32_t k = 0; k < ir->body.n_args; k++) slot_of[ir->body.args[k]] = k;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *node = &ir->nodes[ir->body.nodes[k]];
        if (!node->dead && node->kind == RP__IR_CAPTURED)
            slot_of[node->out[0]] = ir->body.n_args + node->captured_index;
    }
    rp_status status = c.stage && c.mark && c.read && c.written ? cut(&c, parts, n) : RP__OOM("parts of a graph");
    *n_slots = c.n_slots;
    rp__free(c.stage);
    rp__free(c.mark);
    rp__free(c.read);
    rp__free(c.written);
    if (status == RP_OK) return RP_OK;
    rp__door_parts_free(*parts, *n + 1);
    *parts = NULL;
    *n = 0;
    return status;
}

void rp__door_parts_free(rp__door_part *parts, size_t n) {
    for (size_t k = 0; parts && k < n; k++) {
        rp__free(parts[k].nodes);
        rp__free(parts[k].in);
        rp__free(parts[k].out);
        rp__free(parts[k].writes);
    }
    rp__free(parts);
}

rp_status rp__door_part_graph(const rp__door_part *part, rp_ir **out) {
    rp__rewrite w;
    rp_status status = rp__rewrite_begin_bare(&w, part->ir);
    for (uint32_t k = 0; k < part->n_in && status == RP_OK; k++) {
        const rp__ir_node *n = rp__ir_producer(part->ir, part->in[k].value);
        if (!n || n->kind != RP__IR_CAPTURED) status = rp__rewrite_arg(&w, part->in[k].value);
    }
    for (size_t k = 0; k < part->n_nodes && status == RP_OK; k++)
        status = rp__rewrite_copy(&w, &w.dst->body, part->nodes[k]);
    rp__ir_value *results = rp__alloc((part->n_out + 1u) * sizeof *results);
    if (!results && status == RP_OK) status = RP__OOM("a part of a graph");
    for (uint32_t k = 0; k < part->n_out && status == RP_OK; k++) results[k] = w.map[part->out[k].value];
    if (status == RP_OK) status = rp__ir_set_results(w.dst, &w.dst->body, results, part->n_out);
    rp__free(results);
    return rp__rewrite_end(&w, status, "cutting for an engine", out);
}
