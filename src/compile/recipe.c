/* Recipes of a unit (recipe.h): a short list, used last first. */
#include "compile/recipe.h"

#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"

enum { LIMIT = 16 };

struct rp__recipe {
    rp__recipe *next;
    rp__hash domain;
    uint32_t n_nodes;        /* of the fusion; 0: empty */
    rp__dag_extent *extents; /* per node; of products without nodes: one by itself, which another library serves */
    uint32_t *members,
        *first;         /* of group g: members[first[g]] to members[first[g + 1] - 1]; none: merged into another */
    bool *slow, *chain; /* per group */
    uint32_t *order, n_order;
    rp__unfused_edge *unfused;
    uint32_t n_unfused;
    rp__group_kernel *kernels; /* two a group; groups are numbered as nodes are, and a domain has so many */
    uint32_t n_kernels;
};
struct rp__recipes {
    rp__recipe *list;
};

/* Of a fusion. Kernels stay: who asks for another one replaces it, and parts of the program that is being made may point to them. */
static void clear(rp__recipe *r) {
    rp__free(r->extents);
    rp__free(r->members);
    rp__free(r->first);
    rp__free(r->slow);
    rp__free(r->chain);
    rp__free(r->order);
    rp__free(r->unfused);
    *r = (rp__recipe){.next = r->next, .domain = r->domain, .kernels = r->kernels, .n_kernels = r->n_kernels};
}

rp__recipes *rp__recipes_new(void) {
    rp__recipes *r = rp__calloc(1, sizeof *r);
    if (!r) (void)RP__OOM("compiled graph");
    return r;
}

static void free_list(rp__recipe *r) {
    for (rp__recipe *next; r; r = next) {
        next = r->next;
        clear(r);
        for (uint32_t k = 0; k < r->n_kernels; k++) rp__group_kernel_free(&r->kernels[k]);
        rp__free(r->kernels);
        rp__free(r);
    }
}

void rp__recipes_free(rp__recipes *r) {
    if (!r) return;
    free_list(r->list);
    rp__free(r);
}

void rp__recipes_trim(rp__recipes *r) {
    rp__recipe *last = r->list;
    for (unsigned k = 1; k < LIMIT && last; k++) last = last->next;
    if (!last) return;
    free_list(last->next);
    last->next = NULL;
}

/* ---- domains */

typedef struct domain {
    uint64_t *words;
    size_t n, capacity;
    int64_t *sizes; /* met so far */
    size_t n_sizes, sizes_capacity;
    bool failed;
} domain;

static void add(domain *d, uint64_t word) {
    if (d->failed || !RP__GROW(&d->words, &d->capacity, d->n + 1)) {
        d->failed = true;
        return;
    }
    d->words[d->n++] = word;
}

/* A size is known by its place among those that differ. */
static void add_size(domain *d, int64_t size) {
    size_t k = d->n_sizes;
    while (k > 0 && d->sizes[k - 1] != size) k--;
    if (k == 0 && size > 1) {
        if (!RP__GROW(&d->sizes, &d->sizes_capacity, d->n_sizes + 1)) {
            d->failed = true;
            return;
        }
        d->sizes[d->n_sizes++] = size;
        k = d->n_sizes;
    }
    add(d, size <= 1 ? (uint64_t)size : k + 1);
}

static void add_value(domain *d, const rp__ir_value_info *v) {
    const bool on_gpu = v->meta.device.type != RP_DEVICE_CPU;
    int64_t n = 1;
    add(d, (uint64_t)v->meta.dtype | (uint64_t)v->meta.ndim << 8 | (uint64_t)v->meta.device.type << 16 |
               (uint64_t)v->storage << 32);
    for (unsigned k = 0; k < v->meta.ndim; k++) {
        const int64_t size = v->meta.size[k];
        add_size(d, size);
        n *= size;
        if (on_gpu) add(d, rp__fuse_size_class(size));
    }
    if (on_gpu) add(d, rp__fuse_size_class(n));
}

static rp_status domain_of(const rp_ir *ir, rp__hash *out) {
    domain d = {0};
    add(&d, rp__float32_precisions());
    for (size_t v = 0; v < ir->n_values; v++) add_value(&d, &ir->values[v]);
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        add(&d, (uint64_t)(uintptr_t)n->op);
        add(&d, (uint64_t)n->kind | (uint64_t)n->dead << 8 | (uint64_t)n->n_in << 32);
        for (uint32_t i = 0; i < n->n_in; i++) add(&d, n->in[i]);
        add(&d, n->n_out);
        for (uint32_t i = 0; i < n->n_out; i++) add(&d, n->out[i]);
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++) add(&d, ir->body.results[k]);
    if (!d.failed) *out = rp__hash_bytes(d.words, d.n * sizeof *d.words, rp__hash_none());
    rp__free(d.words);
    rp__free(d.sizes);
    return d.failed ? RP__OOM("compiled graph") : RP_OK;
}

rp_status rp__recipes_find(rp__recipes *r, const rp_ir *ir, rp__recipe **out) {
    rp__hash of;
    *out = NULL;
    RP_TRY(domain_of(ir, &of));
    rp__recipe **at = &r->list;
    while (*at && !rp__hash_equal((*at)->domain, of)) at = &(*at)->next;
    rp__recipe *found = *at;
    if (found) {
        *at = found->next;
    } else {
        found = rp__calloc(1, sizeof *found);
        if (!found) return RP__OOM("compiled graph");
        found->domain = of;
    }
    found->next = r->list;
    *out = r->list = found;
    return RP_OK;
}

/* ---- fusions */

static rp_status take(const rp__recipe *r, rp__device *d, rp__fusion *f, bool *taken) {
    if (f->n_nodes != r->n_nodes) return RP_OK;
    for (uint32_t k = 0; k < f->n_nodes; k++) {
        const bool product = f->nodes[k].kind == RP__FUSE_PRODUCT, library = f->nodes[k].kind == RP__FUSE_LIBRARY;
        if ((product && r->extents[k].nodes == 0) || (library && r->extents[k].nodes != 0)) return RP_OK;
    }
    uint32_t *members = rp__arena_copy(&f->arena, r->members, r->n_nodes * sizeof *members);
    if (!members) return RP__OOM("fusion");
    for (uint32_t g = 0; g < f->n_groups; g++) {
        rp__fuse_group *group = &f->groups[g];
        const uint32_t n = r->first[g + 1] - r->first[g];
        group->members = &members[r->first[g]];
        group->n_members = n;
        group->dead = n == 0;
        group->chain = r->chain[g];
        for (uint32_t k = 0; k < n; k++) f->nodes[group->members[k]].group = g;
    }
    for (uint32_t g = 0; g < f->n_groups; g++) {
        rp__fuse_group *group = &f->groups[g];
        if (group->n_members < 2) continue;
        bool holds;
        if (group->chain)
            RP_TRY(rp__fuse_chain_holds(f, d, group, &holds));
        else
            holds = rp__fuse_holds(f, group) && rp__fuse_runs_slowly(f, group) == r->slow[g];
        if (!holds) return RP_OK;
    }
    for (uint32_t k = 0; k < r->n_unfused; k++) {
        if (!RP__GROW(&f->unfused, &f->unfused_capacity, f->n_unfused + 1u)) return RP__OOM("fusion");
        f->unfused[f->n_unfused++] = r->unfused[k];
    }
    *taken = true;
    return RP_OK;
}

rp_status rp__recipe_take(const rp__recipe *r, const rp_ir *ir, rp__device *d, rp__fusion *f, bool *taken) {
    *taken = false;
    if (r->n_nodes == 0) return RP_OK;
    RP_TRY(rp__fuse_begin(ir, d, r->extents, f));
    rp_status status = take(r, d, f, taken);
    if (status != RP_OK || !*taken) rp__fusion_free(f);
    return status;
}

void rp__recipe_order(const rp__recipe *r, uint32_t *order, uint32_t *n_order) {
    if (r->n_order) memcpy(order, r->order, r->n_order * sizeof *order);
    *n_order = r->n_order;
}

static void copy_groups(rp__recipe *r, const rp__fusion *f) {
    uint32_t at = 0;
    for (uint32_t k = 0; k < f->n_nodes; k++) r->extents[k] = f->nodes[k].extent;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const rp__fuse_group *group = &f->groups[g];
        const uint32_t n = group->dead ? 0 : group->n_members;
        r->first[g] = at;
        if (n) memcpy(&r->members[at], group->members, n * sizeof *r->members);
        at += n;
        r->chain[g] = group->chain;
        r->slow[g] = n > 1 && !group->chain && rp__fuse_runs_slowly(f, group);
    }
    r->first[f->n_groups] = at;
}

rp_status rp__recipe_keep(rp__recipe *r, const rp__fusion *f, const uint32_t *order, uint32_t n_order) {
    const uint32_t n = f->n_nodes;
    clear(r);
    if (n == 0) return RP_OK;
    if (r->kernels && r->n_kernels != 2 * n)
        return rp__fail(RP_ERROR_INTERNAL, "a domain with graphs of several forms");
    r->extents = rp__alloc(n * sizeof *r->extents);
    r->members = rp__alloc(n * sizeof *r->members);
    r->first = rp__alloc((n + 1u) * sizeof *r->first);
    r->slow = rp__alloc(n * sizeof *r->slow);
    r->chain = rp__alloc(n * sizeof *r->chain);
    r->order = rp__alloc((n_order + 1u) * sizeof *r->order);
    r->unfused = rp__alloc((f->n_unfused + 1u) * sizeof *r->unfused);
    if (!r->kernels) {
        r->kernels = rp__calloc(2 * (size_t)n, sizeof *r->kernels);
        r->n_kernels = r->kernels ? 2 * n : 0;
    }
    if (!r->extents || !r->members || !r->first || !r->slow || !r->chain || !r->order || !r->unfused || !r->kernels) {
        clear(r);
        return RP__OOM("compiled graph");
    }
    r->n_nodes = n;
    copy_groups(r, f);
    memcpy(r->order, order, n_order * sizeof *order);
    r->n_order = n_order;
    if (f->n_unfused) memcpy(r->unfused, f->unfused, f->n_unfused * sizeof *r->unfused);
    r->n_unfused = f->n_unfused;
    return RP_OK;
}

rp__group_kernel *rp__recipe_kernels(rp__recipe *r) { return r->kernels; }
