/* Order: groups in an order that keeps little memory alive.
   Requires  a fusion whose groups form no cycle.
   Keeps     every dependency between nodes (data, and memory that is written in place).
   Greedy: of the groups whose predecessors are done, the one that frees most and allocates least; ties go to program order. */
#include <string.h>

#include "compile/program.h"
#include "core/alloc.h"

typedef struct orderer {
    const rp__fusion *f;
    uint32_t *waiting; /* per group: predecessors not done */
    uint32_t *readers; /* per value: reading groups not done */
    uint32_t *ready;   /* a heap: the first in program order at the front */
    uint32_t n_ready;
} orderer;

static uint32_t group_of_value(const rp__fusion *f, rp__ir_value v) {
    uint32_t node = f->ir->values[v].node;
    if (node == RP__IR_NONE || f->node_of[node] == RP__IR_NONE) return RP__IR_NONE;
    return f->nodes[f->node_of[node]].group;
}

/* Bytes alive after the group minus bytes alive before. */
static int64_t growth(const orderer *o, uint32_t g) {
    const rp__fusion *f = o->f;
    const rp__fuse_group *group = &f->groups[g];
    int64_t bytes = 0;
    if (f->nodes[group->members[0]].kind == RP__FUSE_NOTHING) return 0; /* parts of a cat stay where they are */
    for (uint32_t m = 0; m < group->n_members; m++) {
        const rp__ir_node *n = &f->ir->nodes[f->nodes[group->members[m]].node];
        for (uint32_t k = 0; k < n->n_out; k++) {
            if (rp__fuse_stored(f, group->members, group->n_members, n->out[k])) {
                bytes += rp__meta_bytes_hint(&f->ir->values[n->out[k]].meta);
            }
        }
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (n->in[k] == RP__IR_NONE) continue;
            rp__ir_value root = rp__ir_root(f->ir, n->in[k]);
            uint32_t from = group_of_value(f, root);
            if (from == RP__IR_NONE || from == g || f->result_storage[f->ir->values[root].storage]) continue;
            if (o->readers[root] == 1) bytes -= rp__meta_bytes_hint(&f->ir->values[root].meta);
        }
    }
    return bytes;
}

static void for_each_reading_group(const rp__fusion *f, rp__ir_value v, uint32_t *stamp, uint32_t mark,
                                   uint32_t *count) {
    for (uint32_t k = 0; k < f->n_readers[v]; k++) {
        uint32_t g = f->nodes[f->readers[v][k]].group;
        if (stamp[g] == mark) continue;
        stamp[g] = mark;
        (*count)++;
    }
}

/* Longer graphs keep program order among ready groups: the greedy choice is quadratic. */
enum { MAX_GREEDY_READY = 256 };

static bool comes_first(const orderer *o, uint32_t x, uint32_t y) { /* places in the heap */
    const rp__fuse_group *g = o->f->groups;
    return g[o->ready[x]].members[0] < g[o->ready[y]].members[0];
}

static void swap_ready(orderer *o, uint32_t x, uint32_t y) {
    uint32_t g = o->ready[x];
    o->ready[x] = o->ready[y];
    o->ready[y] = g;
}

static void move_to_front(orderer *o, uint32_t at) {
    for (; at > 0 && comes_first(o, at, (at - 1) / 2); at = (at - 1) / 2) swap_ready(o, at, (at - 1) / 2);
}

static void ready_add(orderer *o, uint32_t g) {
    o->ready[o->n_ready++] = g;
    move_to_front(o, o->n_ready - 1);
}

static uint32_t ready_take(orderer *o, uint32_t at) {
    const uint32_t g = o->ready[at];
    o->ready[at] = o->ready[--o->n_ready];
    if (at == o->n_ready) return g;
    move_to_front(o, at);
    for (uint32_t next; (next = 2 * at + 1) < o->n_ready; at = next) {
        if (next + 1 < o->n_ready && comes_first(o, next + 1, next)) next++;
        if (!comes_first(o, next, at)) break;
        swap_ready(o, next, at);
    }
    return g;
}

static uint32_t best_of(const orderer *o) {
    uint32_t best = 0;
    int64_t least = INT64_MAX;
    for (uint32_t k = 0; k < o->n_ready && o->n_ready <= MAX_GREEDY_READY; k++) {
        int64_t cost = growth(o, o->ready[k]);
        if (cost < least || (cost == least && comes_first(o, k, best))) {
            best = k;
            least = cost;
        }
    }
    return best;
}

rp_status rp__fuse_order(const rp__fusion *f, uint32_t *order, uint32_t *n_live) {
    orderer o = {.f = f};
    uint32_t n = f->n_groups, done = 0;
    size_t words = 4 * ((size_t)n + 1) + 2 * (f->ir->n_values + 1);
    uint32_t *scratch = rp__calloc(words, sizeof *scratch);
    if (!scratch) return RP__OOM("order of a program");
    o.waiting = scratch;
    o.ready = o.waiting + n + 1;
    uint32_t *stamp = o.ready + n + 1, *seen = stamp + n + 1; /* seen: number of the group that met it last + 1 */
    o.readers = seen + n + 1;
    uint32_t *read = o.readers + f->ir->n_values + 1; /* likewise */
    for (rp__ir_value v = 0; v < f->ir->n_values; v++) for_each_reading_group(f, v, stamp, v + 1, &o.readers[v]);
    *n_live = 0;
    for (uint32_t g = 0; g < n; g++) {
        if (f->groups[g].dead) continue;
        (*n_live)++;
        for (uint32_t m = 0; m < f->groups[g].n_members; m++) {
            uint32_t node = f->groups[g].members[m];
            for (uint32_t s = 0; s < f->n_succ[node]; s++) {
                uint32_t to = f->nodes[f->succ[node][s]].group;
                if (to == g || seen[to] == g + 1) continue;
                seen[to] = g + 1;
                o.waiting[to]++;
            }
        }
    }
    memset(seen, 0, ((size_t)n + 1) * sizeof *seen);
    for (uint32_t g = 0; g < n; g++)
        if (!f->groups[g].dead && o.waiting[g] == 0) ready_add(&o, g);
    while (o.n_ready > 0) {
        uint32_t g = ready_take(&o, best_of(&o));
        order[done++] = g;
        for (uint32_t m = 0; m < f->groups[g].n_members; m++) {
            uint32_t node = f->groups[g].members[m];
            const rp__ir_node *ir_node = &f->ir->nodes[f->nodes[node].node];
            for (uint32_t s = 0; s < f->n_succ[node]; s++) {
                uint32_t to = f->nodes[f->succ[node][s]].group;
                if (to == g || seen[to] == g + 1) continue;
                seen[to] = g + 1;
                if (--o.waiting[to] == 0) ready_add(&o, to);
            }
            for (uint32_t k = 0; k < ir_node->n_in; k++) {
                if (ir_node->in[k] == RP__IR_NONE) continue;
                rp__ir_value root = rp__ir_root(f->ir, ir_node->in[k]);
                if (read[root] == g + 1) continue; /* counted once a group */
                read[root] = g + 1;
                if (o.readers[root] > 0) o.readers[root]--;
            }
        }
    }
    rp__free(scratch);
    return done == *n_live ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "the groups of a program form a cycle");
}
