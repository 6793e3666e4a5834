/* Would merging two groups make a cycle (fuse.h)? Groups are a list in an order in which each comes before those that depend on it, so
   a way from one to another runs through what lies between the two, and nowhere else. It is looked for from both ends, an edge at a time: what the
   first end leads to and what the second depends on. The end that has no more edges decides, and a merge moves what was found from there: what
   depends on the first goes behind the second, or what the second depends on before the first. So a value that thousands read costs
   nobody thousands of steps who depends on little. Places in the list are numbers with room between them. */
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

/* For each node those of which it is a successor. */
static rp_status turn_round(rp__fuse_paths *p) {
    const rp__fusion *f = p->f;
    size_t n = 0;
    for (uint32_t k = 0; k < f->n_nodes; k++) n += f->n_succ[k];
    p->pred_begin = rp__calloc(f->n_nodes + 2u, sizeof *p->pred_begin);
    p->pred = rp__calloc(n + 1, sizeof *p->pred);
    if (!p->pred_begin || !p->pred) return RP__OOM("fusion");
    uint32_t *end = p->pred_begin + 1; /* begin of k + 1 */
    for (uint32_t k = 0; k < f->n_nodes; k++)
        for (uint32_t s = 0; s < f->n_succ[k]; s++) end[f->succ[k][s] + 1]++;
    for (uint32_t k = 0; k < f->n_nodes; k++) end[k + 1] += end[k];
    for (uint32_t k = 0; k < f->n_nodes; k++)
        for (uint32_t s = 0; s < f->n_succ[k]; s++) p->pred[end[f->succ[k][s]]++] = k;
    return RP_OK;
}

rp_status rp__fuse_paths_begin(rp__fuse_paths *p, const rp__fusion *f) {
    size_t n = f->n_groups + 1u;
    *p = (rp__fuse_paths){
        .f = f,
        .place = rp__calloc(n, sizeof *p->place),
        .ends = {{.found = rp__calloc(n, sizeof *p->ends->found)}, {.found = rp__calloc(n, sizeof *p->ends->found)}},
        .stack = rp__calloc(4 * n, sizeof *p->stack)};
    if (!p->stack || !p->place || !p->ends[0].found || !p->ends[1].found) return RP__OOM("fusion");
    p->mark = p->stack + n;
    p->next = p->mark + n;
    p->before = p->next + n;
    RP_TRY(turn_round(p));
    RP_TRY(sort(p));
    memset(p->mark, 0, n * sizeof *p->mark);
    return RP_OK;
}

void rp__fuse_paths_end(rp__fuse_paths *p) {
    rp__free(p->stack);
    rp__free(p->place);
    for (unsigned k = 0; k < 2; k++) rp__free(p->ends[k].found);
    rp__free(p->pred_begin);
    rp__free(p->pred);
}

/* The other node of edge `e->edge` of a node, or of the first edge of a later node of the group; false: the group has no more. */
static bool next_edge(const rp__fuse_paths *p, rp__fuse_end *e, bool backward, uint32_t group, uint32_t *node) {
    const rp__fusion *f = p->f;
    for (; e->member < f->groups[group].n_members; e->member++, e->edge = 0) {
        const uint32_t at = f->groups[group].members[e->member];
        const uint32_t n = backward ? p->pred_begin[at + 1] - p->pred_begin[at] : f->n_succ[at];
        if (e->edge == n) continue;
        *node = backward ? p->pred[p->pred_begin[at] + e->edge] : f->succ[at][e->edge];
        e->edge++;
        return true;
    }
    return false;
}

typedef enum step { MORE, FOUND, NO_MORE } step;

/* Follows one edge from an end. FOUND: it leads to what the other end has found, or to that end itself by a detour. */
static step follow(rp__fuse_paths *p, unsigned side, uint32_t other) {
    rp__fuse_end *e = &p->ends[side];
    uint32_t node = 0;
    for (; e->at < e->n; e->at++, e->member = e->edge = 0) {
        const uint32_t from = e->found[e->at].group;
        if (!next_edge(p, e, side == 1, from, &node)) continue;
        const uint32_t to = p->f->nodes[node].group;
        if (to == from) return MORE;
        if (to == other) return e->at > 0 ? FOUND : MORE;
        if (side == 0 ? p->place[to] >= p->place[other] : p->place[to] <= p->place[other]) return MORE;
        if (p->mark[to] == p->stamp + !side) return FOUND;
        if (p->mark[to] == p->stamp + side) return MORE;
        p->mark[to] = p->stamp + side;
        e->found[e->n++] = (rp__fuse_found){p->place[to], to};
        return MORE;
    }
    return NO_MORE;
}

/* Does b depend on a, which comes before it, over another group? false: ends[p->complete] has found all that lies between and depends on a, or
   on which b depends; it begins with the end itself. true, too, where so many edges do not tell. */
static bool reach(rp__fuse_paths *p, uint32_t a, uint32_t b, uint32_t edges) {
    const uint32_t end[2] = {a, b};
    p->stamp += 2; /* and + 1: of the second end */
    for (unsigned side = 0; side < 2; side++) {
        rp__fuse_end *e = &p->ends[side];
        e->found[0] = (rp__fuse_found){p->place[end[side]], end[side]};
        e->n = 1;
        e->at = e->member = e->edge = 0;
    }
    for (unsigned side = 0;; side = !side) {
        const step s = follow(p, side, end[!side]);
        if (s == FOUND || (s == MORE && edges-- == 0)) return true;
        if (s == MORE) continue;
        p->complete = side;
        return false;
    }
}

bool rp__fuse_path_unless(rp__fuse_paths *p, uint32_t a, uint32_t b, uint32_t edges) {
    return p->place[a] < p->place[b] ? reach(p, a, b, edges) : reach(p, b, a, edges);
}

bool rp__fuse_path_around(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    return rp__fuse_path_unless(p, a, b, UINT32_MAX);
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
    const rp__fuse_found *a = x, *b = y;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* The merged group stands where the second of the two does, and what lies between and depends on the first goes behind it; or where the first does,
   and what lies between and the second depends on goes before it. */
void rp__fuse_paths_merge(rp__fuse_paths *p, uint32_t a, uint32_t b) {
    const uint32_t ends = p->f->n_groups, first = p->place[a] < p->place[b] ? a : b, second = first == a ? b : a;
    (void)reach(p, first, second, UINT32_MAX);
    const uint32_t stays = p->complete == 0 ? second : first;
    if (stays != a) {
        take_out(p, a);
        put_in(p, a, b);
        p->place[a] = p->place[b];
    }
    take_out(p, b); /* without members from now on */
    rp__fuse_found *moved = p->ends[p->complete].found + 1;
    const uint32_t n = p->ends[p->complete].n - 1;
    qsort(moved, n, sizeof *moved, by_place);
    for (uint32_t k = 0; k < n; k++) take_out(p, moved[k].group);
    uint32_t last = p->complete == 0 ? a : p->before[a];
    const uint32_t next = p->next[last];
    const uint64_t low = last == ends ? 0 : p->place[last], high = next == ends ? UINT64_MAX : p->place[next],
                   room = (high - low) / (n + 1u);
    for (uint32_t k = 0; k < n; last = moved[k++].group) {
        put_in(p, moved[k].group, last);
        p->place[moved[k].group] = low + (k + 1u) * room;
    }
    if (room == 0 && n > 0) number(p);
}
