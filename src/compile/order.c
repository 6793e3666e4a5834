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
    bool *done;
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

rp_status rp__fuse_order(const rp__fusion *f, uint32_t *order, uint32_t *n_live) {
    orderer o = {.f = f};
    uint32_t n = f->n_groups, n_ready = 0, done = 0;
    size_t words = 3 * ((size_t)n + 1) + f->ir->n_values + 1;
    uint32_t *scratch = rp__calloc(words, sizeof *scratch);
    uint32_t *seen = rp__calloc((size_t)n + 1, sizeof *seen);
    if (!scratch || !seen) {
        rp__free(scratch);
        rp__free(seen);
        return RP__OOM("order of a program");
    }
    o.waiting = scratch;
    uint32_t *ready = scratch + n + 1, *stamp = ready + n + 1;
    o.readers = stamp + n + 1;
    for (rp__ir_value v = 0; v < f->ir->n_values; v++) for_each_reading_group(f, v, stamp, v + 1, &o.readers[v]);
    *n_live = 0;
    for (uint32_t g = 0; g < n; g++) {
        if (f->groups[g].dead) continue;
        (*n_live)++;
        memset(seen, 0, ((size_t)n + 1) * sizeof *seen);
        for (uint32_t m = 0; m < f->groups[g].n_members; m++) {
            uint32_t node = f->groups[g].members[m];
            for (uint32_t s = 0; s < f->n_succ[node]; s++) {
                uint32_t to = f->nodes[f->succ[node][s]].group;
                if (to == g || seen[to]) continue;
                seen[to] = 1;
                o.waiting[to]++;
            }
        }
    }
    for (uint32_t g = 0; g < n; g++) {
        if (!f->groups[g].dead && o.waiting[g] == 0) ready[n_ready++] = g;
    }
    while (n_ready > 0) {
        uint32_t best = 0;
        int64_t least = INT64_MAX;
        for (uint32_t k = 0; k < n_ready; k++) {
            int64_t cost = n_ready > MAX_GREEDY_READY ? 0 : growth(&o, ready[k]);
            uint32_t at = f->groups[ready[k]].members[0], other = f->groups[ready[best]].members[0];
            if (cost < least || (cost == least && at < other)) {
                best = k;
                least = cost;
            }
        }
        uint32_t g = ready[best];
        ready[best] = ready[--n_ready];
        order[done++] = g;
        memset(seen, 0, ((size_t)n + 1) * sizeof *seen);
        for (uint32_t m = 0; m < f->groups[g].n_members; m++) {
            uint32_t node = f->groups[g].members[m];
            const rp__ir_node *ir_node = &f->ir->nodes[f->nodes[node].node];
            for (uint32_t s = 0; s < f->n_succ[node]; s++) {
                uint32_t to = f->nodes[f->succ[node][s]].group;
                if (to == g || seen[to]) continue;
                seen[to] = 1;
                if (--o.waiting[to] == 0) ready[n_ready++] = to;
            }
            for (uint32_t k = 0; k < ir_node->n_in; k++) {
                if (ir_node->in[k] == RP__IR_NONE) continue;
                rp__ir_value root = rp__ir_root(f->ir, ir_node->in[k]);
                bool again = false; /* counted once a group */
                for (uint32_t e = 0; e < m && !again; e++) {
                    const rp__ir_node *before = &f->ir->nodes[f->nodes[f->groups[g].members[e]].node];
                    for (uint32_t i = 0; i < before->n_in && !again; i++) {
                        again = before->in[i] != RP__IR_NONE && rp__ir_root(f->ir, before->in[i]) == root;
                    }
                }
                for (uint32_t i = 0; i < k && !again; i++) {
                    again = ir_node->in[i] != RP__IR_NONE && rp__ir_root(f->ir, ir_node->in[i]) == root;
                }
                if (!again && o.readers[root] > 0) o.readers[root]--;
            }
        }
    }
    rp__free(scratch);
    rp__free(seen);
    return done == *n_live ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "the groups of a program form a cycle");
}
