/* Chains: matrix products, each reading the rows of the one before, that become one launch.
   Requires  a fusion whose groups are final otherwise: loops merged, and joined to the products that they follow.
   Keeps     the graph, and the order that nodes must have.
   After it  a group may hold several products; the edge to a product that stayed apart from the one before has the library's
             reason. Rows between two products exist in memory only if another group reads them or they are a result. */
#include <string.h>

#include "compile/fuse.h"
#include "device/device.h"
#include "ops/product.h"

static rp__ir_value result_of(const rp__fusion *f, uint32_t k) { return f->ir->nodes[f->nodes[k].node].out[0]; }

/* A relu that alone reads the product before it, element by element in the same order: RP__IR_NONE: node k is none. */
static rp__ir_value relu_of(const rp__fusion *f, uint32_t product, uint32_t k) {
    const rp_ir *ir = f->ir;
    const rp__ir_value made = result_of(f, product);
    const rp__ir_node *relu = &ir->nodes[f->nodes[k].node];
    if (!rp__ir_is_op(relu, RP__OP(relu)) || rp__ir_root(ir, relu->in[0]) != made || f->n_readers[made] != 1 ||
        f->result_storage[ir->values[made].storage])
        return RP__IR_NONE;
    const rp__ir_value_info *from = &ir->values[made], *read = &ir->values[relu->in[0]],
                            *out = &ir->values[relu->out[0]];
    return rp__ir_is_row_major(from) && rp__ir_is_row_major(read) && rp__ir_is_row_major(out) &&
                   out->storage != from->storage &&
                   rp__numel(read->meta.size, read->meta.ndim) == rp__numel(from->meta.size, from->meta.ndim)
               ? relu->out[0]
               : RP__IR_NONE;
}

/* Are the members products, each perhaps with its relu? */
static bool are_stages(const rp__fusion *f, const uint32_t *members, uint32_t n) {
    for (uint32_t m = 0; m < n; m++) {
        if (rp__fuse_is_matmul(f, members[m])) continue;
        if (m == 0 || !rp__fuse_is_matmul(f, members[m - 1]) || relu_of(f, members[m - 1], members[m]) == RP__IR_NONE)
            return false;
    }
    return true;
}

/* Operands without memory: the stand-ins of the fuse node. With memory: what `memory` gives, else the stand-in. What the product
   makes is stored as `result`, its own value or that of its relu. */
static rp_status stage_of(const rp__fusion *f, uint32_t k, rp__ir_value result, rp__chain_memory *memory, void *ctx,
                          rp__library_stage *stage) {
    const rp__fuse_node *fn = &f->nodes[k];
    const rp__ir_node *n = &f->ir->nodes[fn->node];
    const rp__ir_value_info *made = &f->ir->values[n->out[0]];
    rp_tensor *in[3], *out[1];
    rp__call call;
    rp__product p;
    memset(stage, 0, sizeof *stage);
    for (uint32_t i = 0; i < n->n_in; i++) {
        in[i] = memory && fn->in[i] ? memory(ctx, n->in[i]) : NULL;
        if (!in[i]) in[i] = fn->in[i];
        if (in[i] && rp__tensor_is_error(in[i])) return rp_error_status();
    }
    out[0] = memory ? memory(ctx, result) : NULL;
    if (!out[0]) out[0] = fn->out[0];
    if (rp__tensor_is_error(out[0])) return rp_error_status();
    if (out[0] != fn->out[0] && result != n->out[0]) { /* as the product has it */
        out[0]->ndim = made->meta.ndim;
        memcpy(out[0]->size, made->meta.size, made->meta.ndim * sizeof *out[0]->size);
        memcpy(out[0]->stride, made->stride, made->meta.ndim * sizeof *out[0]->stride);
    }
    rp__ir_call(n, in, out, &call);
    RP_TRY(rp__product_of(&call, &p));
    stage->op = p.op;
    stage->n = p.n;
    stage->relu = result != n->out[0];
    memcpy(stage->o, p.o, sizeof p.o);
    return RP_OK;
}

rp_status rp__chain_stages(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__chain_memory *memory,
                           void *ctx, rp__library_stage *stages, uint32_t *n_stages) {
    uint32_t count = 0;
    for (uint32_t m = 0; m < n; m++) {
        rp__ir_value result = result_of(f, members[m]);
        const bool relu = m + 1 < n && !rp__fuse_is_matmul(f, members[m + 1]);
        if (relu) result = relu_of(f, members[m], members[m + 1]);
        RP_TRY(stage_of(f, members[m], result, memory, ctx, &stages[count++]));
        m += relu;
    }
    *n_stages = count;
    return RP_OK;
}

static const char *reason_of(rp__chain_answer answer) {
    switch (answer) {
    case RP__CHAIN_YES: return NULL;
    case RP__CHAIN_TOO_LARGE: return "products-too-large";
    case RP__CHAIN_LAYOUT: return "product-reads-other-rows";
    case RP__CHAIN_OTHER_SUM: return "product-served-elsewhere";
    default: return "library-op";
    }
}

/* NULL: the library takes the members as one. "": failed, with a sticky error. */
static const char *ask(const rp__fusion *f, rp__device *d, const uint32_t *members, uint32_t n) {
    rp__library_stage stages[RP__CHAIN_MAX];
    uint32_t n_stages = 0;
    for (uint32_t m = 0; m < n; m++) n_stages += rp__fuse_is_matmul(f, members[m]);
    if (n_stages > RP__CHAIN_MAX) return reason_of(RP__CHAIN_TOO_LARGE);
    if (rp__chain_stages(f, members, n, NULL, NULL, stages, &n_stages) != RP_OK) return "";
    for (uint32_t s = 0; s < n_stages; s++) {
        if (stages[s].n < 3) return reason_of(RP__CHAIN_LAYOUT); /* an empty product */
    }
    return reason_of(d->ops->library->chain(d, stages, n_stages));
}

/* Does product `next` read the rows of `last`, as they lie, and nothing else of it? */
static bool reads_rows(const rp__fusion *f, uint32_t last, uint32_t next) {
    const rp_ir *ir = f->ir;
    const rp__ir_node *node = &ir->nodes[f->nodes[next].node];
    const rp__ir_value rows = result_of(f, last);
    const rp__ir_value_info *made = &ir->values[rows], *read = &ir->values[node->in[0]];
    if (rp__ir_root(ir, node->in[0]) != rows || !rp__ir_is_row_major(read) || !rp__ir_is_row_major(made) ||
        rp__numel(made->meta.size, made->meta.ndim) != rp__numel(read->meta.size, read->meta.ndim))
        return false;
    for (uint32_t i = 1; i < node->n_in; i++) {
        if (node->in[i] != RP__IR_NONE && rp__ir_root(ir, node->in[i]) == rows) return false;
    }
    return true;
}

/* Why the product `next` cannot follow the group. */
static const char *follows(rp__fuse_paths *paths, rp__device *d, uint32_t group, uint32_t next, const uint32_t *members,
                           uint32_t n) {
    const rp__fusion *f = paths->f;
    const rp__fuse_group *g = &f->groups[group];
    if (!are_stages(f, members, n)) return "products-meet";
    if (!reads_rows(f, g->members[g->n_members - 1], next)) return reason_of(RP__CHAIN_LAYOUT);
    if (rp__fuse_path_around(paths, group, f->nodes[next].group)) return "would-make-a-cycle";
    return ask(f, d, members, n);
}

rp_status rp__fuse_chain_holds(const rp__fusion *f, rp__device *d, const rp__fuse_group *g, bool *holds) {
    *holds = false;
    if (!are_stages(f, g->members, g->n_members)) return RP_OK;
    for (uint32_t k = 1; k < g->n_members; k++) {
        if (rp__fuse_is_matmul(f, g->members[k]) && !reads_rows(f, g->members[k - 1], g->members[k])) return RP_OK;
    }
    const char *why = ask(f, d, g->members, g->n_members);
    if (why && !*why) return rp_error_status();
    *holds = !why;
    return RP_OK;
}

/* Adds to the group the first product that can follow it. */
static rp_status extend(rp__fusion *f, rp__fuse_paths *paths, rp__device *d, uint32_t group, bool *done) {
    rp__fuse_group *g = &f->groups[group];
    const uint32_t last = g->members[g->n_members - 1];
    const rp__ir_value rows = result_of(f, last);
    *done = true;
    for (uint32_t r = 0; r < f->n_readers[rows]; r++) {
        const uint32_t next = f->readers[rows][r];
        const rp__fuse_group *h = &f->groups[f->nodes[next].group];
        if (!rp__fuse_is_matmul(f, next) || f->nodes[next].group == group || h->members[0] != next) continue;
        uint32_t *members = RP__NEW(&f->arena, uint32_t, g->n_members + h->n_members);
        if (!members) return RP__OOM("fusion");
        memcpy(members, g->members, g->n_members * sizeof *members);
        memcpy(members + g->n_members, h->members, h->n_members * sizeof *members);
        const uint32_t n = g->n_members + h->n_members;
        const char *why = follows(paths, d, group, next, members, n);
        if (why && !*why) return rp_error_status();
        for (uint32_t k = 0; k < f->n_unfused && why; k++) {
            if (f->unfused[k].producer == last && f->unfused[k].consumer == next) f->unfused[k].reason = why;
        }
        if (why) continue;
        rp__fuse_paths_merge(paths, group, f->nodes[next].group);
        rp__fuse_take(f, group, f->nodes[next].group, members, n);
        g->chain = true;
        *done = false;
        return RP_OK;
    }
    return RP_OK;
}

/* A product and a relu that share their kernel with others: alone if the next product could then be a stage behind them. */
static rp_status free_stage(rp__fusion *f, rp__device *d, uint32_t group) {
    const rp__fuse_group *g = &f->groups[group];
    const uint32_t product = g->members[0];
    for (uint32_t m = 1; m < g->n_members; m++) {
        const rp__ir_value rows = relu_of(f, product, g->members[m]);
        for (uint32_t r = 0; rows != RP__IR_NONE && r < f->n_readers[rows]; r++) {
            const uint32_t next = f->readers[rows][r], stages[3] = {product, g->members[m], next};
            const rp__fuse_group *h = &f->groups[f->nodes[next].group];
            if (!rp__fuse_is_matmul(f, next) || h->members[0] != next || !are_stages(f, h->members, h->n_members) ||
                rp__ir_root(f->ir, f->ir->nodes[f->nodes[next].node].in[0]) != rows)
                continue;
            const char *why = ask(f, d, stages, 3);
            if (why && !*why) return rp_error_status();
            if (!why) return rp__fuse_leave(f, group, stages);
        }
    }
    return RP_OK;
}

rp_status rp__fuse_chains(rp__fusion *f, rp__device *d) {
    for (uint32_t k = 0; k < f->n_nodes; k++) { /* moves members: before there is an order of groups */
        const rp__fuse_group *g = &f->groups[f->nodes[k].group];
        if (rp__fuse_is_matmul(f, k) && g->members[0] == k && !are_stages(f, g->members, g->n_members))
            RP_TRY(free_stage(f, d, f->nodes[k].group));
    }
    rp__fuse_paths paths;
    rp_status status = rp__fuse_paths_begin(&paths, f);
    for (uint32_t k = 0; k < f->n_nodes && status == RP_OK; k++) {
        const uint32_t group = f->nodes[k].group;
        const rp__fuse_group *g = &f->groups[group];
        if (!rp__fuse_is_matmul(f, k) || g->members[0] != k || !are_stages(f, g->members, g->n_members)) continue;
        bool done = false;
        while (!done && status == RP_OK) status = extend(f, &paths, d, group, &done);
        if (status != RP_OK || g->chain || g->n_members == 1) continue;
        const char *why = ask(f, d, g->members, g->n_members); /* a small product and its relu */
        if (why && !*why) status = rp_error_status();
        f->groups[group].chain = why == NULL;
    }
    rp__fuse_paths_end(&paths);
    return status;
}
