/* Would merging two groups make a cycle (fuse.h)? Groups are a list in an order in which each comes before those that depend on it, so
   a way from one to another runs through what lies between the two, and nowhere else. A merge moves what lies there and depends on the first
   behind the second. Places in the list are numbers with room between them. */
#include <stdlib.h>
#include <string.h>

#include "compile/fuse.h"
#include "core/alloc.h"

static void number(rp__fuse_paths *p) {
    const uint32_t ends = p->f->n_groups;
    uint64_t k = 0;
    for (uint32_t g = p->next[ends]; g != ends; g = p->next[g]) p->place[g] = ++k << 32;
}

/* An order of groups that nodes' edges agree with: what can follow another group at once does, so that a chain lies together. */
static rp_status sort(rp__fuse_paths *p) {
    const rp__fusion *f = p->f;
    uint32_t *waiting = p->mark, *ready = p->stack, n = 0, n_ready = 0, last = f->n_groups; /* all 0 in the end */
    for (uint32_t k = 0; k < f->n_nodes; k++) {
        for (uint32_t s = 0; s < f->n_succ[k]; s++) {
            uint32_t to = f->nodes[f->succ[k][s]].group;
            waiting[to] += to != f->nodes[k].group;
        }
    }
    for (uint32_t g = f->n_groups; g-- > 0;)
        if (waiting[g] == 0) ready[n_ready++] = g;
    for (; n_ready > 0; n++) {
        const uint32_t at = ready[--n_ready];
        const rp__fuse_group *g = &f->groups[at];
        p->next[last] = at;
        p->before[at] = last;
        last = at;
        for (uint32_t m = 0; m < g->n_members; m++) {
            for (uint32_t s = 0; s < f->n_succ[g->members[m]]; s++) {
                uint32_t to = f->nodes[f->succ[g->members[m]][s]].group;
                if (to != at && --waiting[to] == 0) ready[n_ready++] = to;
            }
        }
    }
    p->next[last] = f->n_groups;
    p->before[f->n_groups] = last;
    number(p);
    return n == f->n_groups ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "the groups of a program form a cycle");
}

rp_status rp__fuse_paths_begin(rp__fuse_paths *p, const rp__fusion *f) {
    size_t n = f->n_groups + 1u;
    *p = (rp__fuse_paths){.f = f,
                          .place = rp__calloc(n, sizeof *p->place),
                          .later = rp__calloc(n, sizeof *p->later),
                          .stack = rp__calloc(4 * n, sizeof *p->stack)};
    if (!p->stack || !p->place || !p->later) return RP__OOM("fusion");
    p->mark = p->stack + n;
    p->next = p->mark + n;
    p->before = p->next + n;
    return sort(p);
}

void rp__fuse_paths_end(rp__fuse_paths *p) {
    rp__free(p->stack);
    rp__free(p->place);
    rp__free(p->later);
}

/* Lists as `later` what comes after group a and before group b in the order and depends on a. true: b depends on some of that. */
static bool reach(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    const rp__fusion *f = p->f;
    const uint64_t end = p->place[b];
    uint32_t top = 0;
    p->stamp++;
    p->n_later = 0;
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
                p->later[p->n_later++] = (rp__fuse_later){p->place[next], next};
                p->stack[top++] = next;
            }
        }
    }
    return false;
}

bool rp__fuse_path_around(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    return p->place[a] < p->place[b] ? reach(p, a, b) : reach(p, b, a);
}

static void take_out(rp__fuse_paths *p, uint32_t g) {
    p->next[p->before[g]] = p->next[g];
    p->before[p->next[g]] = p->before[g];
}

static void put_in(rp__fuse_paths *p, uint32_t g, uint32_t behind) {
    p->next[g] = p->next[behind];
    p->before[g] = behind;
    p->before[p->next[g]] = g;
    p->next[behind] = g;
}

static int by_place(const void *x, const void *y) {
    const rp__fuse_later *a = x, *b = y;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Room for n places behind that of g. */
static uint64_t room(const rp__fuse_paths *p, uint32_t g, uint32_t n) {
    const uint32_t next = p->next[g];
    return ((next == p->f->n_groups ? UINT64_MAX : p->place[next]) - p->place[g]) / (n + 1u);
}

/* The merged group stands where the second of the two does: what lies between and depends on the first goes behind it. */
void rp__fuse_paths_merge(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    const bool forward = p->place[a] < p->place[b];
    (void)reach(p, forward ? a : b, forward ? b : a);
    if (forward) {
        take_out(p, a);
        put_in(p, a, b);
        p->place[a] = p->place[b];
    }
    take_out(p, b); /* without members from now on */
    qsort(p->later, p->n_later, sizeof *p->later, by_place);
    for (uint32_t k = 0; k < p->n_later; k++) take_out(p, p->later[k].group);
    const uint64_t step = room(p, a, p->n_later);
    for (uint32_t k = 0, last = a; k < p->n_later; last = p->later[k++].group) {
        put_in(p, p->later[k].group, last);
        p->place[p->later[k].group] = p->place[last] + step;
    }
    if (step == 0 && p->n_later > 0) number(p);
}
