/* Cats by placement: what a cat joins is stored where the cat has it, so that the cat itself has nothing to do.
   Requires  a functional graph with concrete sizes.
   Keeps     every value; nodes and their order.
   After it  a cat whose operands all lie in their parts of its result (rp__cat_is_joined) runs nothing; readers of the result still
             depend on it, and so on all that stored a part.

   Two steps. The first gives each operand that cannot be stored in its part a copy that can; a copy of what a loop makes is fused
   into that loop, so a launch remains only where something else has stored the operand: the caller, a library. The second, when
   no pass makes graphs anew any more, gives operands the memory of their parts; views of them follow. Both go from the last cat to
   the first, since a cat may be a part of another. What the caller gave, several operands of one cat that nothing else reads, is left to the
   cat itself: it copies in one launch what does not lie there yet.

   What a scatter writes into, if nothing else reads it, is stored where the scatter's result lies, so that it is not copied there:
   zeros, as a rule, or the sum of the scatters before. What others read, too, of what a loop makes, the first step gives a copy, which is
   one more store of that loop (four scatters into the same zeros: four stores). */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"

/* What the graph does with a value, through all views. */
enum {
    RESHAPED = 1 << 0,   /* a view of it may not exist over other strides */
    BY_LIBRARY = 1 << 1, /* a library call reads it */
    FIXED = 1 << 2,      /* it is written in place, or crosses the border of a region, or is a result */
    READ = 1 << 3,
    READ_AGAIN = 1 << 4
};

/* Addresses for which libraries have one algorithm. */
enum { LIBRARY_ALIGNMENT = 16 };

typedef struct layout {
    uint32_t storage;
    rp_dim offset, stride[RP_MAX_DIMS];
    uint32_t cat, operand; /* whose part it is; RP__IR_NONE: nobody's */
} layout;

typedef struct placer {
    const rp_ir *ir;
    layout *at;    /* per value */
    uint8_t *uses; /* per value that is no view */
} placer;

static bool is_empty(const rp__meta *m) { return rp__numel(m->size, m->ndim) == 0; }

static bool is_cat(const rp_ir *ir, const rp__ir_node *n) {
    return !n->dead && rp__ir_is_op(n, RP__OP(cat)) && !is_empty(&ir->values[n->out[0]].meta);
}

static bool is_scatter(const rp_ir *ir, const rp__ir_node *n) {
    return !n->dead &&
           (rp__ir_is_op(n, RP__OP(scatter_add)) || rp__ir_is_op(n, RP__OP(scatter_set)) ||
            rp__ir_is_op(n, RP__OP(scatter_mul)) || rp__ir_is_op(n, RP__OP(scatter_max)) ||
            rp__ir_is_op(n, RP__OP(scatter_min))) &&
           !is_empty(&ir->values[n->out[0]].meta);
}

static bool has_scatter(const rp_ir *ir) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        if (is_scatter(ir, &ir->nodes[ir->body.nodes[k]])) return true;
    }
    return false;
}

static bool has_cat(const rp_ir *ir) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        if (is_cat(ir, &ir->nodes[ir->body.nodes[k]])) return true;
    }
    return false;
}

static bool is_loop(const rp__ir_node *n) {
    return n->op->lowering == RP__POINTWISE || n->op->lowering == RP__ROWS || n->op->lowering == RP__INDEXED;
}

static void look(placer *p) {
    const rp_ir *ir = p->ir;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in && !n->dead; i++) {
            if (n->in[i] == RP__IR_NONE) continue;
            uint8_t *uses = &p->uses[rp__ir_root(ir, n->in[i])];
            if (!rp__ir_is_view(n)) *uses |= *uses & READ ? READ_AGAIN : READ;
            if (rp__ir_is_view(n)) {
                if (rp__ir_is_op(n, RP__OP(view))) *uses |= RESHAPED;
            } else if (n->n_regions > 0 || rp__ir_writes(n, i)) {
                *uses |= FIXED;
            } else if (n->kind == RP__IR_OP && !is_loop(n) && !rp__ir_is_op(n, RP__OP(cat))) {
                *uses |= BY_LIBRARY;
            }
        }
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        if (ir->body.results[k] != RP__IR_NONE) p->uses[rp__ir_root(ir, ir->body.results[k])] |= FIXED;
    }
}

static rp_status begin(placer *p, const rp_ir *ir) {
    *p = (placer){.ir = ir,
                  .at = rp__alloc((ir->n_values + 1) * sizeof *p->at),
                  .uses = rp__calloc(ir->n_values + 1, sizeof *p->uses)};
    if (!p->at || !p->uses) return RP__OOM("parts of a cat");
    for (rp__ir_value v = 0; v < ir->n_values; v++) {
        const rp__ir_value_info *info = &ir->values[v];
        p->at[v] = (layout){.storage = info->storage, .offset = info->offset, .cat = RP__IR_NONE};
        memcpy(p->at[v].stride, info->stride, sizeof p->at[v].stride);
    }
    look(p);
    return RP_OK;
}

static void end(placer *p) {
    rp__free(p->at);
    rp__free(p->uses);
}

static bool is_dense(const rp__meta *m, const rp_dim *stride) {
    rp_dim step = 1;
    for (unsigned d = m->ndim; d-- > 0;) {
        if (m->size[d] != 1 && stride[d] != step) return false;
        step *= m->size[d];
    }
    return true;
}

/* Can the node that makes v store it at `to`, with all readers of v reading it there? */
static bool can_lie(const placer *p, rp__ir_value v, const rp__meta *cat, const layout *to) {
    const rp_ir *ir = p->ir;
    const rp__ir_value_info *info = &ir->values[v];
    const rp__ir_node *n = rp__ir_producer(ir, v);
    if (!n || n->kind != RP__IR_OP || rp__ir_is_view(n) || (n->op->flags & RP_OP_INPLACE) ||
        p->at[v].cat != RP__IR_NONE || (p->uses[v] & FIXED) || info->meta.dtype != cat->dtype || info->offset != 0 ||
        !is_dense(&info->meta, info->stride)) {
        return false;
    }
    bool library = !is_loop(n) && !rp__ir_is_op(n, RP__OP(cat));
    if (library && n->op->lowering != RP__LIBRARY && n->op->lowering != RP__PRODUCT) return false;
    library = library || (p->uses[v] & BY_LIBRARY);
    if (!is_dense(&info->meta, to->stride)) return !library && !(p->uses[v] & RESHAPED);
    return !library || to->offset * (int64_t)rp__dtype_bytes(cat->dtype) % LIBRARY_ALIGNMENT == 0;
}

/* Does the caller give it to this cat alone? */
static bool is_given(const placer *p, rp__ir_value v, rp_dtype dtype) {
    const rp__ir_value root = rp__ir_root(p->ir, v);
    return p->ir->values[root].node == RP__IR_NONE && p->ir->values[v].meta.dtype == dtype &&
           !(p->uses[root] & READ_AGAIN);
}

/* Places of a cat's operands within `to`, where the cat lies; false behind the last. What is empty has none. */
static bool next_part(const rp_ir *ir, const rp__ir_node *cat, uint32_t *k, layout *to) {
    const rp__meta *out = &ir->values[cat->out[0]].meta;
    const int64_t given = cat->attrs[0].v.i;
    const unsigned dim = (unsigned)(given < 0 ? given + out->ndim : given);
    if (*k < cat->n_in && to->operand == *k) to->offset += ir->values[cat->in[(*k)++]].meta.size[dim] * to->stride[dim];
    while (*k < cat->n_in && is_empty(&ir->values[cat->in[*k]].meta)) ++*k;
    to->operand = *k;
    return *k < cat->n_in;
}

/* Gives operands of the cat their parts. */
static void place(placer *p, uint32_t cat) {
    const rp__ir_node *n = &p->ir->nodes[cat];
    const rp__meta *out = &p->ir->values[n->out[0]].meta;
    layout to = p->at[n->out[0]];
    to.cat = cat;
    to.operand = RP__IR_NONE;
    for (uint32_t k = 0; next_part(p->ir, n, &k, &to);)
        if (can_lie(p, n->in[k], out, &to)) p->at[n->in[k]] = to;
}

/* Cats within cats that are looked into: what lies deeper counts as read again. */
enum { DEEPEST = 64 };

/* Of a cat that lies at `to`: is what would lie in a part of it, or in one of that part's, read by others as well? */
static bool parts_are_read_again(const placer *p, const rp__ir_node *cat, layout to, unsigned depth) {
    if (depth == DEEPEST) return true;
    to.operand = RP__IR_NONE;
    for (uint32_t k = 0; next_part(p->ir, cat, &k, &to);) {
        const rp__ir_value v = cat->in[k];
        const rp__ir_node *maker = rp__ir_producer(p->ir, v);
        if (!can_lie(p, v, &p->ir->values[cat->out[0]].meta, &to)) continue;
        if (p->uses[v] & READ_AGAIN || (is_cat(p->ir, maker) && parts_are_read_again(p, maker, to, depth + 1)))
            return true;
    }
    return false;
}

/* Gives what a scatter writes into the memory of its result; a cat only if its parts, which then lie there, too, are read by it alone: after
   the scatter they are others. */
static void place_self(placer *p, uint32_t scatter) {
    const rp__ir_node *n = &p->ir->nodes[scatter], *maker = rp__ir_producer(p->ir, n->in[0]);
    const rp__meta *out = &p->ir->values[n->out[0]].meta;
    layout to = p->at[n->out[0]];
    to.cat = scatter;
    to.operand = 0;
    if ((p->uses[rp__ir_root(p->ir, n->in[0])] & READ_AGAIN) || !is_dense(out, to.stride) ||
        !can_lie(p, n->in[0], out, &to))
        return;
    if (!is_cat(p->ir, maker) || !parts_are_read_again(p, maker, to, 0)) p->at[n->in[0]] = to;
}

static void place_all(placer *p, bool scatters) {
    for (size_t k = p->ir->body.n_nodes; k-- > 0;) {
        uint32_t node = p->ir->body.nodes[k];
        if (is_cat(p->ir, &p->ir->nodes[node])) place(p, node);
        if (scatters && is_scatter(p->ir, &p->ir->nodes[node])) place_self(p, node);
    }
}

/* ---- the first step */

static rp_status copy_cat(rp__rewrite *w, const placer *p, uint32_t node) {
    const rp__ir_node *n = &w->src->nodes[node];
    const rp_dtype dtype = w->src->values[n->out[0]].meta.dtype;
    const rp_attr to = rp__attr_of_dtype(dtype);
    rp__ir_value *in = rp__alloc((n->n_in + 1u) * sizeof *in);
    if (!in) return RP__OOM("operands of a cat");
    rp_status status = RP_OK;
    uint32_t given = 0;
    for (uint32_t k = 0; k < n->n_in; k++)
        given += is_given(p, n->in[k], dtype) && !is_empty(&w->src->values[n->in[k]].meta);
    for (uint32_t k = 0; k < n->n_in && status == RP_OK; k++) {
        const layout *at = &p->at[n->in[k]];
        rp__meta meta = w->src->values[n->in[k]].meta;
        in[k] = w->map[n->in[k]];
        if (is_empty(&meta) || (at->cat == node && at->operand == k) || (given > 1 && is_given(p, n->in[k], dtype)))
            continue;
        const bool same = meta.dtype == dtype;
        meta.dtype = dtype;
        rp__ir_value from = in[k];
        status =
            same ? rp__ir_emit(w->dst, &w->dst->body, RP__OP(clone), &from, 1, NULL, 0, &meta, 1, n->site, &in[k])
                 : rp__ir_emit(w->dst, &w->dst->body, RP__OP(to_dtype), &from, 1, &to, 1, &meta, 1, n->site, &in[k]);
    }
    if (status == RP_OK) status = rp__rewrite_copy_with(w, &w->dst->body, node, in);
    rp__free(in);
    return status;
}

/* A scatter into what a loop makes and others read, too. */
static bool shares_self(const placer *p, const rp__ir_node *n) {
    if (!is_scatter(p->ir, n)) return false;
    const rp__ir_node *maker = rp__ir_producer(p->ir, n->in[0]);
    return maker && maker->kind == RP__IR_OP && is_loop(maker) && (p->uses[n->in[0]] & READ_AGAIN);
}

static rp_status copy_scatter(rp__rewrite *w, uint32_t node) {
    const rp__ir_node *n = &w->src->nodes[node];
    rp__ir_value in[3], self = w->map[n->in[0]];
    const rp__meta meta = w->src->values[n->in[0]].meta;
    for (uint32_t k = 0; k < 3; k++) in[k] = w->map[n->in[k]];
    RP_TRY(rp__ir_emit(w->dst, &w->dst->body, RP__OP(clone), &self, 1, NULL, 0, &meta, 1, n->site, &in[0]));
    return rp__rewrite_copy_with(w, &w->dst->body, node, in);
}

rp_status rp__cats_part(rp_ir *ir, rp_ir **out) {
    if (!has_cat(ir) && !has_scatter(ir)) {
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    *out = NULL;
    placer p;
    rp_status status = begin(&p, ir);
    if (status != RP_OK) {
        end(&p);
        return status;
    }
    place_all(&p, false);
    rp__rewrite w;
    status = rp__rewrite_begin(&w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        const uint32_t node = ir->body.nodes[k];
        status = is_cat(ir, n)        ? copy_cat(&w, &p, node)
                 : shares_self(&p, n) ? copy_scatter(&w, node)
                                      : rp__rewrite_copy(&w, &w.dst->body, node);
    }
    if (status == RP_OK) status = rp__rewrite_results(&w, &ir->body, &w.dst->body);
    end(&p);
    return rp__rewrite_end(&w, status, "cats", out);
}

/* ---- the second step */

bool rp__cat_is_joined(const rp_ir *ir, const rp__ir_node *n) {
    if (!is_cat(ir, n)) return false;
    for (uint32_t k = 0; k < n->n_in; k++) {
        const rp__ir_value_info *part = &ir->values[n->in[k]];
        if (!is_empty(&part->meta) && part->storage != ir->values[n->out[0]].storage) return false;
    }
    return true;
}

/* From here on results lie in parts of others: no pass may copy the graph, and its checker would not take it. */
rp_status rp__cats_place(rp_ir *ir) {
    if (!has_cat(ir) && !has_scatter(ir)) return RP_OK;
    placer p;
    rp_status status = begin(&p, ir);
    if (status == RP_OK) place_all(&p, true);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        if (rp__ir_is_view(n)) {
            rp__view view;
            rp__meta meta;
            status = rp__ir_infer_view(ir, n->op, n->in[0], n->attrs, n->n_attrs, n->site, &meta, &view);
            rp__ir_value_info *info = &ir->values[n->out[0]];
            if (status != RP_OK) break;
            memcpy(info->stride, view.stride, sizeof info->stride);
            info->offset = view.offset;
            info->storage = ir->values[n->in[0]].storage;
            continue;
        }
        for (uint32_t r = 0; r < n->n_out; r++) {
            const layout *at = &p.at[n->out[r]];
            rp__ir_value_info *info = &ir->values[n->out[r]];
            if (at->cat == RP__IR_NONE) continue;
            memcpy(info->stride, at->stride, sizeof info->stride);
            info->offset = at->offset;
            info->storage = at->storage;
        }
    }
    end(&p);
    return status;
}
