/* Chains: matrix products, each reading the rows of the one before, that become one launch.
   Requires  a fusion whose groups are final otherwise: loops merged, and joined to the products that they follow.
   Keeps     the graph, and the order that nodes must have.
   After it  a group may hold several products; the edge to a product that stayed apart from the one before has the library's
             reason. Rows between two products exist in memory only if another group reads them or they are a result.

   Members of a chain are its stages one after the other: a product, then the loops that follow it, which read what it makes and what
   other groups have stored. */
#include <string.h>

#include "compile/fuse.h"
#include "device/device.h"
#include "ops/product.h"

static rp__ir_value result_of(const rp__fusion *f, uint32_t k) { return f->ir->nodes[f->nodes[k].node].out[0]; }

/* The member that makes the value, or what it is a view of; n: none does. */
static uint32_t maker_of(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__ir_value v) {
    const uint32_t node = f->ir->values[rp__ir_root(f->ir, v)].node;
    const uint32_t made = node == RP__IR_NONE ? RP__IR_NONE : f->node_of[node];
    uint32_t m = 0;
    while (m < n && (made == RP__IR_NONE || members[m] != made)) m++;
    return m;
}

/* Does operand k of `reader` come from one of the members? */
static bool reads(const rp__fusion *f, uint32_t reader, uint32_t k, const uint32_t *members, uint32_t n) {
    const rp__ir_node *node = &f->ir->nodes[f->nodes[reader].node];
    return node->in[k] != RP__IR_NONE && maker_of(f, members, n, node->in[k]) < n;
}

/* A loop that a thread can run on an element of a product: it reads and stores at its own place. */
static bool is_of_points(const rp__fuse_node *n) {
    return n->kind == RP__FUSE_LOOP && n->inner == 0 && !n->combines && !n->opaque && n->memory_operands == 0 &&
           n->n_draws == 0 && n->n_windows == 0;
}

/* The stage that a group is, its product first; *out NULL: it is none. */
static rp_status stage_of(rp__fusion *f, const rp__fuse_group *g, uint32_t **out) {
    uint32_t at = 0, n = 1;
    *out = NULL;
    while (at < g->n_members && !rp__fuse_is_matmul(f, g->members[at])) at++;
    if (at == g->n_members) return RP_OK;
    for (uint32_t m = 0; m < g->n_members; m++)
        if (m != at && !is_of_points(&f->nodes[g->members[m]])) return RP_OK;
    uint32_t *members = RP__NEW(&f->arena, uint32_t, g->n_members);
    if (!members) return RP__OOM("fusion");
    members[0] = g->members[at];
    for (uint32_t m = 0; m < g->n_members; m++)
        if (m != at) members[n++] = g->members[m];
    for (uint32_t k = 0; k < f->ir->nodes[f->nodes[members[0]].node].n_in; k++) /* a factor that a member makes */
        if (reads(f, members[0], k, members + 1, n - 1)) return RP_OK;
    *out = members;
    return RP_OK;
}

uint32_t rp__chain_end(const rp__fusion *f, const uint32_t *members, uint32_t n, uint32_t first) {
    uint32_t end = first + 1;
    while (end < n && !rp__fuse_is_matmul(f, members[end])) end++;
    return end;
}

/* Is element i of the value, as it lies, computed where element i of the product is? */
static bool keeps_places(const rp__fusion *f, const rp__group_space *space, uint32_t product, rp__ir_value v) {
    const rp__axis_map *a = rp__group_map(space, result_of(f, product)), *b = rp__group_map(space, v);
    return a && b && a->begin[a->ndim] == b->begin[b->ndim] && !memcmp(a->axis, b->axis, a->begin[a->ndim]);
}

/* Over the space of stage [first, n). */
static const char *find_rows(const rp__fusion *f, const rp__group_space *space, const uint32_t *members, uint32_t n,
                             uint32_t first, uint32_t next, rp__ir_value *rows) {
    const rp_ir *ir = f->ir;
    const rp__ir_node *node = &ir->nodes[f->nodes[next].node];
    const rp__ir_value from = rp__ir_root(ir, node->in[0]);
    const rp__ir_value_info *made = &ir->values[from], *read = &ir->values[node->in[0]],
                            *sum = &ir->values[result_of(f, members[first])];
    if (maker_of(f, members + first, n - first, from) == n - first || made->meta.dtype != sum->meta.dtype ||
        !rp__ir_is_row_major(read) || !rp__ir_is_row_major(made) || !rp__ir_is_row_major(sum) ||
        rp__numel(made->meta.size, made->meta.ndim) != rp__numel(read->meta.size, read->meta.ndim) ||
        rp__numel(made->meta.size, made->meta.ndim) != rp__numel(sum->meta.size, sum->meta.ndim) ||
        !keeps_places(f, space, members[first], from))
        return "product-reads-other-rows";
    for (uint32_t i = 1; i < node->n_in; i++)
        if (reads(f, next, i, members, n)) return "product-reads-other-rows";
    *rows = from;
    return NULL;
}

const char *rp__chain_rows(const rp__fusion *f, const uint32_t *members, uint32_t n, uint32_t first, uint32_t next,
                           rp__ir_value *rows) {
    rp__group_space space = {0};
    *rows = RP__IR_NONE;
    const char *why = rp__group_space_make(f, members + first, n - first, &space);
    if (!why && next != RP__IR_NONE) why = find_rows(f, &space, members, n, first, next, rows);
    rp__group_space_free(&space);
    if (why && !*why) (void)RP__OOM("fusion"); /* a space without memory says nothing */
    return why;
}

static const char *reason_of(rp__chain_answer answer) {
    switch (answer) {
    case RP__CHAIN_YES: break;
    case RP__CHAIN_TOO_LARGE: return "products-too-large";
    case RP__CHAIN_LAYOUT: return "product-reads-other-rows";
    case RP__CHAIN_OTHER_SUM: return "product-served-elsewhere";
    }
    return NULL;
}

/* NULL: the library takes the members as one. "": failed, with a sticky error. */
static const char *ask(const rp__fusion *f, rp__device *d, const uint32_t *members, uint32_t n) {
    rp__library_stage stages[RP__CHAIN_MAX];
    uint32_t n_stages = 0;
    memset(stages, 0, sizeof stages);
    for (uint32_t m = 0; m < n; m = rp__chain_end(f, members, n, m)) {
        const rp__fuse_node *fn = &f->nodes[members[m]];
        rp__call call;
        rp__product p;
        if (n_stages == RP__CHAIN_MAX) return reason_of(RP__CHAIN_TOO_LARGE);
        rp__library_stage *stage = &stages[n_stages++];
        rp__ir_call(&f->ir->nodes[fn->node], fn->in, fn->out, &call);
        if (rp__product_of(&call, &p) != RP_OK || rp__product_order(&call, d, &stage->order) != RP_OK) return "";
        if (p.n < 3) return reason_of(RP__CHAIN_LAYOUT); /* an empty product */
        memcpy(stage->o, p.o, sizeof stage->o);
    }
    return reason_of(d->ops->library->chain(d, stages, n_stages));
}

/* Why the members cannot be a chain: stages each of which reads the rows of the one before. */
static const char *check(const rp__fusion *f, rp__device *d, const uint32_t *members, uint32_t n) {
    for (uint32_t first = 0, end; first < n; first = end) {
        end = rp__chain_end(f, members, n, first);
        for (uint32_t m = first + 1; m < end; m++)
            for (uint32_t k = 0; k < f->ir->nodes[f->nodes[members[m]].node].n_in; k++)
                if (reads(f, members[m], k, members, first)) return "products-meet";
        rp__ir_value rows;
        const char *why = rp__chain_rows(f, members, end, first, end < n ? members[end] : RP__IR_NONE, &rows);
        if (why) return why;
    }
    return ask(f, d, members, n);
}

rp_status rp__fuse_chain_holds(const rp__fusion *f, rp__device *d, const rp__fuse_group *g, bool *holds) {
    *holds = false;
    if (!d->ops->library->chain) return RP_OK; /* remembered of another device */
    const char *why = check(f, d, g->members, g->n_members);
    if (why && !*why) return rp_error_status();
    *holds = !why;
    return RP_OK;
}

/* The edge over which product `next` reads what the group makes has this reason. */
static void explain(rp__fusion *f, const uint32_t *members, uint32_t n, uint32_t next, const char *why) {
    for (uint32_t k = 0; k < f->n_unfused; k++) {
        rp__unfused_edge *e = &f->unfused[k];
        for (uint32_t m = 0; m < n; m++)
            if (e->producer == members[m] && e->consumer == next) e->reason = why;
    }
}

/* Adds to the group, whose last stage begins at member `first`, the first product that reads `made` and can follow that stage. */
static rp_status follow(rp__fusion *f, rp__fuse_paths *paths, rp__device *d, uint32_t group, uint32_t first,
                        rp__ir_value made, bool *done) {
    const rp__fuse_group *g = &f->groups[group];
    for (uint32_t r = 0; r < f->n_readers[made]; r++) {
        const uint32_t next = f->readers[made][r];
        if (!rp__fuse_is_matmul(f, next) || f->nodes[next].group == group) continue;
        const rp__fuse_group *h = &f->groups[f->nodes[next].group];
        const uint32_t n = g->n_members + h->n_members;
        uint32_t *stage;
        RP_TRY(stage_of(f, h, &stage));
        if (!stage || stage[0] != next) continue;
        uint32_t *members = RP__NEW(&f->arena, uint32_t, n);
        if (!members) return RP__OOM("fusion");
        memcpy(members, g->members, g->n_members * sizeof *members);
        memcpy(members + g->n_members, stage, h->n_members * sizeof *members);
        const char *why =
            rp__fuse_path_around(paths, group, f->nodes[next].group) ? "would-make-a-cycle" : check(f, d, members, n);
        if (why && !*why) return rp_error_status();
        if (why) {
            explain(f, g->members + first, g->n_members - first, next, why);
            continue;
        }
        rp__fuse_paths_merge(paths, group, f->nodes[next].group);
        rp__fuse_take(f, group, f->nodes[next].group, members, n);
        f->groups[group].chain = true;
        *done = false;
        return RP_OK;
    }
    return RP_OK;
}

/* Adds to the group the first product that can follow its last stage. */
static rp_status extend(rp__fusion *f, rp__fuse_paths *paths, rp__device *d, uint32_t group, bool *done) {
    const rp__fuse_group *g = &f->groups[group];
    const uint32_t n = g->n_members;
    uint32_t first = 0;
    *done = true;
    for (uint32_t end; (end = rp__chain_end(f, g->members, n, first)) < n;) first = end;
    for (uint32_t m = first; m < n && *done; m++) {
        const rp__ir_node *node = &f->ir->nodes[f->nodes[g->members[m]].node];
        for (uint32_t k = 0; k < node->n_out && *done; k++)
            RP_TRY(follow(f, paths, d, group, first, node->out[k], done));
    }
    return RP_OK;
}

/* The group of this product, once it is a stage: a chain from here on. */
static rp_status begin(rp__fusion *f, rp__fuse_paths *paths, rp__device *d, uint32_t product) {
    const uint32_t group = f->nodes[product].group;
    rp__fuse_group *g = &f->groups[group];
    if (g->chain) return RP_OK;
    uint32_t *stage, *before = g->members;
    RP_TRY(stage_of(f, g, &stage));
    if (!stage || stage[0] != product) return RP_OK;
    g->members = stage; /* the same ones */
    bool done = false;
    while (!done) RP_TRY(extend(f, paths, d, group, &done));
    if (!g->chain && g->n_members > 1) { /* a small product and what follows it */
        const char *why = check(f, d, g->members, g->n_members);
        if (why && !*why) return rp_error_status();
        g->chain = why == NULL;
    }
    if (!g->chain) g->members = before;
    if (g->chain && g->members == stage) rp__fuse_set_members(g, stage, g->n_members);
    return RP_OK;
}

rp_status rp__fuse_chains(rp__fusion *f, rp__device *d) {
    rp__fuse_paths paths;
    if (!d->ops->library->chain) return RP_OK;
    rp_status status = rp__fuse_paths_begin(&paths, f);
    for (uint32_t k = 0; k < f->n_nodes && status == RP_OK; k++)
        if (rp__fuse_is_matmul(f, k)) status = begin(f, &paths, d, k);
    rp__fuse_paths_end(&paths);
    return status;
}
