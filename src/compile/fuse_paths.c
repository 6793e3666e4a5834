/* Would merging two groups make a cycle (fuse.h)? Groups are kept in an order in which each comes before those that depend on it, so
   a way from one to another runs through what lies between the two, and nowhere else; a merge moves only that. */
#include <string.h>

#include "compile/fuse.h"
#include "core/alloc.h"

/* An order of groups that nodes' edges agree with. */
static rp_status sort(rp__fuse_paths *p) {
    const rp__fusion *f = p->f;
    uint32_t *waiting = p->stack, n = 0; /* the stack of searches is idle */
    memset(waiting, 0, f->n_groups * sizeof *waiting);
    for (uint32_t k = 0; k < f->n_nodes; k++) {
        for (uint32_t s = 0; s < f->n_succ[k]; s++) {
            uint32_t to = f->nodes[f->succ[k][s]].group;
            waiting[to] += to != f->nodes[k].group;
        }
    }
    for (uint32_t g = 0; g < f->n_groups; g++) {
        if (waiting[g] == 0) p->order[n++] = g;
    }
    for (uint32_t at = 0; at < n; at++) {
        const rp__fuse_group *g = &f->groups[p->order[at]];
        p->place[p->order[at]] = at;
        for (uint32_t m = 0; m < g->n_members; m++) {
            for (uint32_t s = 0; s < f->n_succ[g->members[m]]; s++) {
                uint32_t to = f->nodes[f->succ[g->members[m]][s]].group;
                if (to != p->order[at] && --waiting[to] == 0) p->order[n++] = to;
            }
        }
    }
    return n == f->n_groups ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "the groups of a program form a cycle");
}

rp_status rp__fuse_paths_begin(rp__fuse_paths *p, const rp__fusion *f) {
    size_t n = f->n_groups + 1u;
    *p = (rp__fuse_paths){.f = f, .stack = rp__calloc(5 * n, sizeof *p->stack)};
    if (!p->stack) return RP__OOM("fusion");
    p->mark = p->stack + n;
    p->order = p->mark + n;
    p->place = p->order + n;
    p->later = p->place + n;
    return sort(p);
}

void rp__fuse_paths_end(rp__fuse_paths *p) { rp__free(p->stack); }

/* Marks what comes after group a and before group b in the order and depends on a. true: b depends on some of that. */
static bool reach(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    const rp__fusion *f = p->f;
    const uint32_t end = p->place[b];
    uint32_t top = 0;
    p->stamp++;
    p->stack[top++] = a;
    while (top > 0) {
        uint32_t g = p->stack[--top];
        for (uint32_t k = 0; k < f->groups[g].n_members; k++) {
            uint32_t node = f->groups[g].members[k];
            for (uint32_t s = 0; s < f->n_succ[node]; s++) {
                uint32_t next = f->nodes[f->succ[node][s]].group;
                if (next == b && g != a) return true;
                if (next == g || p->place[next] >= end || p->mark[next] == p->stamp) continue;
                p->mark[next] = p->stamp;
                p->stack[top++] = next;
            }
        }
    }
    return false;
}

bool rp__fuse_path_around(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    return p->place[a] < p->place[b] ? reach(p, a, b) : reach(p, b, a);
}

/* Of what lies between the two, what does not depend on the first goes before the merged group, the rest behind it. */
void rp__fuse_paths_merge(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    const bool forward = p->place[a] < p->place[b];
    const uint32_t first = forward ? a : b, last = forward ? b : a;
    uint32_t at = p->place[first], n_later = 0;
    const uint32_t end = p->place[last];
    (void)reach(p, first, last);
    for (uint32_t k = at + 1; k < end; k++) {
        uint32_t g = p->order[k];
        if (p->mark[g] == p->stamp)
            p->later[n_later++] = g;
        else
            p->order[at++] = g;
    }
    p->order[at++] = b; /* without members from now on */
    p->order[at++] = a;
    memcpy(&p->order[at], p->later, n_later * sizeof *p->later);
    for (uint32_t k = forward ? p->place[a] : p->place[b]; k <= end; k++) p->place[p->order[k]] = k;
}
