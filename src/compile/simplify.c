/* Simplify: dead code, common subexpressions, identities.
   Requires  a functional graph.
   Keeps     every bit of every result (x + 0 stays: -0.0; x * 1 goes), random counters of the nodes that stay, which results
             share memory and which do not.
   Breaks    nothing.
   While gradients are still to be taken (gradients_done false) a value that carries a gradient never stands for one that
   does not: detach stays, and equal expressions on both sides of a no_grad boundary stay apart. */
#include <math.h>
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "ops/view.h"

typedef struct simplifier {
    rp__rewrite w;
    bool gradients_done;
    bool *live;        /* per src node */
    bool *escapes;     /* per dst root value: memory that a caller can reach (grown with dst) */
    bool *src_escapes; /* per src value: a result, or a view of one's memory */
    bool *unstable;    /* per src storage: an op in the body writes it in place */
    bool any_unstable;
    bool any_written;     /* so, or by an ASSIGN */
    uint32_t *last_use;   /* per src storage: the last node of the body that uses it; NEVER_LAST: a result does */
    uint32_t *assigned;   /* per src storage: the first ASSIGN to it; NEVER_LAST: none */
    uint32_t *kept_until; /* per dst root value of an argument or captured tensor: when it is assigned */
    bool *written;        /* per dst root value: a storage that it stands for is unstable */
    uint32_t *last;       /* per dst root value: the latest use of what it stands for */
    uint32_t at, regions; /* the node of the body that is visited, and how deep within */
    bool *is_result;      /* per src value */
    rp__map seen;         /* hash of a dst node -> node index + 1, in the block at hand */
    uint32_t changed;
} simplifier;

enum { NEVER_LAST = UINT32_MAX };

/* ---- liveness */

static void mark_block(const rp_ir *ir, const rp__ir_block *block, bool *live_node, bool *live_value) {
    for (uint32_t k = 0; k < block->n_results; k++) {
        if (block->results[k] != RP__IR_NONE) live_value[block->results[k]] = true;
    }
    for (size_t k = block->n_nodes; k-- > 0;) {
        const rp__ir_node *n = &ir->nodes[block->nodes[k]];
        bool live = !n->dead && rp__ir_node_has_effect(ir, n);
        for (uint32_t r = 0; r < n->n_out && !n->dead; r++) live = live || live_value[n->out[r]];
        live_node[block->nodes[k]] = live;
        if (!live) continue;
        for (uint32_t r = 0; r < n->n_in; r++) {
            if (n->in[r] != RP__IR_NONE) live_value[n->in[r]] = true;
        }
        for (uint32_t r = 0; r < n->n_regions; r++) mark_block(ir, &n->regions[r], live_node, live_value);
    }
}

/* The nodes of a block within one of the body count as that one. */
static void note_uses(simplifier *s, const rp__ir_block *block, uint32_t at, bool body) {
    const rp_ir *ir = s->w.src;
    for (size_t k = 0; k < block->n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[block->nodes[k]];
        const uint32_t here = body ? (uint32_t)k : at;
        for (uint32_t r = 0; r < n->n_in && !n->dead; r++)
            if (n->in[r] != RP__IR_NONE) s->last_use[ir->values[n->in[r]].storage] = here;
        for (uint32_t r = 0; r < n->n_regions && !n->dead; r++) note_uses(s, &n->regions[r], here, false);
        if (!body || n->dead || n->kind != RP__IR_ASSIGN) continue;
        uint32_t *first = &s->assigned[ir->values[n->in[0]].storage];
        if (here < *first) *first = here;
    }
    for (uint32_t k = 0; k < block->n_results; k++)
        if (block->results[k] != RP__IR_NONE)
            s->last_use[ir->values[block->results[k]].storage] = body ? NEVER_LAST : at;
}

/* ---- rules */

static bool scalar_is(const rp_attr *a, double value) {
    if (a->kind == RP_ATTR_SCALAR)
        return a->v.scalar.kind != RP_SCALAR_BOOL && !rp__scalar_is_symbol(a->v.scalar) &&
               rp__scalar_f64(a->v.scalar) == value;
    return a->kind == RP_ATTR_FLOAT && a->v.f == value;
}

/* Is a permutation of dims undone? */
static bool takes_back(const rp__view *outer, const rp__view *inner) {
    if (outer->folds || inner->folds || outer->ndim != inner->ndim) return false;
    for (int d = 0; d < outer->ndim; d++) {
        const int k = outer->from[d][0];
        if (k < 0 || outer->from[d][1] >= 0 || inner->from[k][0] != d || inner->from[k][1] >= 0 ||
            inner->size[k] != outer->size[d] || inner->step[k] != 1 || inner->start[d] != 0)
            return false;
    }
    return true;
}

/* Does an op write the memory of `value` of dst in place? Then what made it says nothing of what it holds elsewhere in the body. */
static bool is_written(const simplifier *s, rp__ir_value value) {
    return s->any_unstable && value != RP__IR_NONE && s->written[rp__ir_root(s->w.dst, value)];
}

/* What made `value`, which still holds that, of operands that do, too; NULL: anything else. */
static const rp__ir_node *maker_of(const simplifier *s, rp__ir_value value) {
    const rp__ir_node *n = value == RP__IR_NONE || is_written(s, value) ? NULL : rp__ir_producer(s->w.dst, value);
    bool stays = n && n->kind == RP__IR_OP;
    for (uint32_t k = 0; stays && k < n->n_in; k++) stays = !is_written(s, n->in[k]);
    return stays ? n : NULL;
}

/* The value of dst that stands for out 0 of node n (of src) with operands `in`; RP__IR_NONE: no rule. */
static rp__ir_value find_identity(simplifier *s, const rp__ir_node *n, const rp__ir_value *in) {
    const rp_ir *dst = s->w.dst;
    const rp__op *op = n->op;
    const rp__ir_node *producer = n->n_in > 0 ? maker_of(s, in[0]) : NULL;
    const rp__op *inner = producer ? producer->op : NULL;
    const rp__ir_value_info *out = &s->w.src->values[n->out[0]];
    if (op->lowering == RP__VIEW) {
        producer = rp__ir_producer(dst, in[0]); /* a view of memory, whatever that holds */
        if (op == RP__OP(detach)) return s->gradients_done ? in[0] : RP__IR_NONE;
        const rp__meta *from = &dst->values[in[0]].meta;
        rp__view map, under;
        if (rp__ir_view_map(dst, n, in[0], &map) != RP_OK || rp__view_is_part(&map, from->size, from->ndim))
            return RP__IR_NONE;
        if (rp__ir_is_view(producer) && rp__meta_same_size(&out->meta, &dst->values[producer->in[0]].meta) &&
            rp__ir_view_map(dst, producer, producer->in[0], &under) == RP_OK && takes_back(&map, &under))
            return producer->in[0];
        /* same sizes, same strides, no offset: the same tensor */
        if (!rp__meta_same_size(&out->meta, &dst->values[in[0]].meta)) return RP__IR_NONE;
        for (unsigned d = 0; d < out->meta.ndim; d++) {
            if (out->meta.size[d] != 1 && out->stride[d] != dst->values[in[0]].stride[d]) return RP__IR_NONE;
        }
        return in[0];
    }
    if (op == RP__OP(mul_scalar) || op == RP__OP(div_scalar)) {
        return scalar_is(&n->attrs[0], 1.0) && out->meta.dtype == dst->values[in[0]].meta.dtype ? in[0] : RP__IR_NONE;
    }
    if (op == RP__OP(add_scalar)) {
        return !rp__dtype_is_float(out->meta.dtype) && scalar_is(&n->attrs[0], 0.0) &&
                       out->meta.dtype == dst->values[in[0]].meta.dtype
                   ? in[0]
                   : RP__IR_NONE;
    }
    if (op == RP__OP(mul)) {
        for (unsigned k = 0; k < 2; k++) { /* x * ones */
            const rp__ir_node *p = maker_of(s, in[k]);
            if (p && p->op == RP__OP(full) && scalar_is(&p->attrs[1], 1.0) &&
                rp__meta_same_size(&out->meta, &dst->values[in[1 - k]].meta) &&
                out->meta.dtype == dst->values[in[1 - k]].meta.dtype) {
                return in[1 - k];
            }
        }
        return RP__IR_NONE;
    }
    if (inner && op == inner && op == RP__OP(neg)) return producer->in[0];
    if (inner && op == inner && (op == RP__OP(relu) || op == RP__OP(abs))) return in[0];
    if (op == RP__OP(to_dtype)) {
        if (out->meta.dtype == dst->values[in[0]].meta.dtype)
            return rp__ir_same_strides(out, &dst->values[in[0]]) ? in[0] : RP__IR_NONE;
        if (inner == op) {
            rp_dtype first = dst->values[producer->in[0]].meta.dtype, middle = dst->values[in[0]].meta.dtype;
            if (first == out->meta.dtype && rp__dtype_holds(middle, first) &&
                rp__ir_same_strides(out, &dst->values[producer->in[0]]))
                return producer->in[0];
        }
        return RP__IR_NONE;
    }
    if (op == RP__OP(clone)) return rp__ir_same_strides(out, &dst->values[in[0]]) ? in[0] : RP__IR_NONE;
    if (op == RP__OP(copy)) {
        const rp__ir_value_info *src = &dst->values[in[1]];
        return src->meta.dtype == out->meta.dtype && rp__meta_same_size(&src->meta, &out->meta) &&
                       rp__ir_same_strides(out, src)
                   ? in[1]
                   : RP__IR_NONE;
    }
    return RP__IR_NONE;
}

/* May `value` of dst stand for src value v? Its memory becomes v's memory: two results that eager keeps apart stay apart, a
   result never becomes an argument, gradients keep their boundary. A view that is itself goes through: it was one memory. */
static bool may_stand_for(const simplifier *s, const rp__ir_node *n, rp__ir_value v, rp__ir_value value) {
    const rp_ir *dst = s->w.dst;
    if (!s->gradients_done && dst->values[value].requires_grad != s->w.src->values[v].requires_grad) return false;
    if (s->is_result[v] && rp__ir_is_outer(dst, value)) return false; /* a view of an argument is another handle */
    if (n->op->lowering == RP__VIEW) return true;
    if (!rp__ir_same_strides(&dst->values[value], &s->w.src->values[v])) return false; /* views of it count on them */
    rp__ir_value root = rp__ir_root(dst, value);
    if (s->any_unstable && rp__ir_is_outer(dst, root)) return false; /* a reader might come to stand behind a write */
    if (s->any_written && rp__ir_is_outer(dst, root) && s->last_use[s->w.src->values[v].storage] > s->kept_until[root])
        return false; /* an ASSIGN would read what another one has written */
    /* What is written in place is nobody else's: the one that it would be is not used any more. */
    if (s->any_unstable && (s->written[root] || s->unstable[s->w.src->values[v].storage]) &&
        (s->regions > 0 || s->last[root] > s->at))
        return false;
    if (!s->src_escapes[v]) return true;
    return root == value && !rp__ir_is_outer(dst, root) && !s->escapes[root];
}

/* ---- common subexpressions */

static bool cse_able(const simplifier *s, const rp__ir_node *n, const rp__ir_value *in) {
    for (uint32_t k = 0; k < n->n_in && s->any_unstable; k++) {
        if (n->in[k] == RP__IR_NONE) continue;
        if (s->unstable[s->w.src->values[n->in[k]].storage] || is_written(s, in[k])) return false;
    }
    return n->kind == RP__IR_OP && n->n_regions == 0 && n->op->lowering != RP__HOST && n->op->lowering != RP__USER &&
           !(n->op->flags & RP_OP_INPLACE) && n->n_out == 1;
}

static rp__hash hash_node(const simplifier *s, const rp__ir_node *n, const rp__ir_value *in) {
    const rp__ir_value_info *out = &s->w.src->values[n->out[0]];
    uint64_t head[7] = {(uint64_t)(uintptr_t)n->op,
                        n->n_in,
                        (uint64_t)n->random_offset,
                        (uint64_t)n->random_count,
                        s->gradients_done ? 0 : out->requires_grad,
                        out->meta.dtype,
                        n->recompute};
    rp__hash h = rp__hash_bytes(head, sizeof head, rp__hash_none());
    if (n->n_in) h = rp__hash_bytes(in, n->n_in * sizeof *in, h);
    h = rp__hash_bytes(n->list_begin, sizeof n->list_begin, h);
    for (uint32_t k = 0; k < n->n_attrs; k++) {
        const rp_attr *a = &n->attrs[k];
        uint64_t word[3] = {a->kind, 0, 0};
        switch (a->kind) {
        case RP_ATTR_INTS:
        case RP_ATTR_FLOATS:
            word[1] = a->n;
            word[2] = a->v.ints != NULL;
            if (a->n) h = rp__hash_bytes(a->v.ints, a->n * sizeof *a->v.ints, h);
            break;
        case RP_ATTR_STRING:
            if (a->v.string) h = rp__hash_bytes(a->v.string, strlen(a->v.string), h);
            break;
        case RP_ATTR_SCALAR:
            word[1] = a->v.scalar.kind;
            word[2] = a->v.scalar.kind == RP_SCALAR_NONE   ? 0
                      : a->v.scalar.kind == RP_SCALAR_BOOL ? a->v.scalar.v.b
                                                           : (uint64_t)a->v.scalar.v.i;
            break;
        case RP_ATTR_BOOL: word[1] = a->v.b; break;
        case RP_ATTR_DTYPE: word[1] = a->v.dtype; break;
        default: memcpy(&word[1], &a->v, sizeof word[1]);
        }
        h = rp__hash_bytes(word, sizeof word, h);
    }
    return h;
}

/* ---- replacing an op by another */

/* The new value has the memory layout of the one that it stands for, and its mark. */
static void take_place(simplifier *s, rp__ir_value made, const rp__ir_value_info *out) {
    memcpy(s->w.dst->values[made].stride, out->stride, sizeof out->stride);
    s->w.dst->values[made].requires_grad = out->requires_grad;
}

static rp_status emit_fill_as_full(simplifier *s, rp__ir_block *block, const rp__ir_node *n, bool *done) {
    const rp__ir_value_info *out = &s->w.src->values[n->out[0]];
    const rp_attr attrs[3] = {rp__attr_of_ints(out->meta.size, out->meta.ndim), n->attrs[0],
                              rp__attr_of_dtype(out->meta.dtype)};
    rp__ir_value made;
    RP_TRY(rp__ir_emit(s->w.dst, block, RP__OP(full), NULL, 0, attrs, 3, &out->meta, 1, n->site, &made));
    take_place(s, made, out);
    s->w.map[n->out[0]] = made;
    *done = true;
    s->changed++;
    return RP_OK;
}

static rp_status replace(simplifier *s, rp__ir_block *block, const rp__ir_node *n, const rp__ir_value *in, bool *done) {
    const rp__op *op = n->op;
    const rp__ir_value_info *out = &s->w.src->values[n->out[0]];
    rp_ir *dst = s->w.dst;
    if (op == RP__OP(fill)) return emit_fill_as_full(s, block, n, done);
    const rp__ir_node *producer = n->n_in > 0 ? maker_of(s, in[0]) : NULL;
    const rp__op *inner = producer ? producer->op : NULL;
    if (op == RP__OP(copy) && rp__meta_same_size(&dst->values[in[1]].meta, &out->meta)) {
        /* the old value is not read: only src, converted */
        bool convert = dst->values[in[1]].meta.dtype != out->meta.dtype;
        rp_attr to = rp__attr_of_dtype(out->meta.dtype);
        rp__ir_value made;
        RP_TRY(rp__ir_emit(dst, block, convert ? RP__OP(to_dtype) : RP__OP(clone), &in[1], 1, &to, convert ? 1 : 0,
                           &out->meta, 1, n->site, &made));
        take_place(s, made, out);
        s->w.map[n->out[0]] = made;
        *done = true;
        s->changed++;
        return RP_OK;
    }
    if (op == RP__OP(to_dtype) && inner == op &&
        rp__dtype_holds(dst->values[in[0]].meta.dtype, dst->values[producer->in[0]].meta.dtype) &&
        (s->gradients_done || !dst->values[in[0]].requires_grad)) {
        rp__ir_value from = producer->in[0], made;
        RP_TRY(rp__ir_emit(dst, block, op, &from, 1, n->attrs, n->n_attrs, &out->meta, 1, n->site, &made));
        memcpy(dst->values[made].stride, out->stride, sizeof out->stride);
        s->w.map[n->out[0]] = made;
        *done = true;
        s->changed++;
        return RP_OK;
    }
    /* view of view: the outer one alone, where the inner is a plain reshape of a row-major tensor */
    const rp__ir_node *under = op == RP__OP(view) ? rp__ir_producer(dst, in[0]) : NULL;
    if (rp__ir_is_op(under, op) && rp__ir_value_contiguous(&dst->values[under->in[0]])) {
        rp__ir_value base = under->in[0], made;
        RP_TRY(rp__ir_emit_view(dst, block, op, base, n->attrs, n->n_attrs, n->site, &made));
        dst->values[made].requires_grad = out->requires_grad;
        s->w.map[n->out[0]] = made;
        *done = true;
        s->changed++;
        return RP_OK;
    }
    /* a view of a filled tensor that no caller can reach is a filled tensor */
    if (op->lowering == RP__VIEW && op != RP__OP(detach) && inner == RP__OP(full) && !s->src_escapes[n->out[0]] &&
        !s->src_escapes[n->in[0]]) {
        const rp_attr attrs[3] = {rp__attr_of_ints(out->meta.size, out->meta.ndim), producer->attrs[1],
                                  producer->attrs[2]};
        rp__ir_value made;
        RP_TRY(rp__ir_emit(dst, block, inner, NULL, 0, attrs, 3, &out->meta, 1, n->site, &made));
        dst->values[made].requires_grad = out->requires_grad;
        s->w.map[n->out[0]] = made;
        *done = true;
        s->changed++;
    }
    return RP_OK;
}

/* States before the first step that are zeros need not lie in memory. */
static void leave_zeros_out(const simplifier *s, rp__ir_value *in) {
    for (unsigned k = 3; k < 5; k++) {
        const rp__ir_node *p = maker_of(s, in[k]);
        if (p && p->op == RP__OP(full) && scalar_is(&p->attrs[1], 0.0) &&
            !signbit(rp__scalar_f64(p->attrs[1].v.scalar)) &&
            (s->gradients_done || !s->w.dst->values[in[k]].requires_grad))
            in[k] = RP__IR_NONE;
    }
}

/* ---- the walk */

static rp_status visit_block(void *ctx, const rp__ir_block *from, rp__ir_block *to);

/* Value v of src is `made` of dst. */
static void note_value(simplifier *s, rp__ir_value v, rp__ir_value made) {
    const rp__ir_value root = rp__ir_root(s->w.dst, made);
    if (s->src_escapes[v]) s->escapes[root] = true;
    if (!s->any_written) return;
    const uint32_t storage = s->w.src->values[v].storage;
    if (rp__ir_is_outer(s->w.dst, root) && s->assigned[storage] < s->kept_until[root])
        s->kept_until[root] = s->assigned[storage];
    s->written[root] = s->written[root] || s->unstable[storage];
    if (s->last_use[storage] > s->last[root]) s->last[root] = s->last_use[storage];
}

static rp_status visit_node(simplifier *s, rp__ir_block *block, uint32_t index) {
    const rp__ir_node *n = &s->w.src->nodes[index];
    rp__ir_value few[RP__FEW_OPERANDS] = {0}, *in = few;
    if (n->n_in > RP__FEW_OPERANDS) {
        in = rp__alloc(n->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    for (uint32_t k = 0; k < n->n_in; k++) in[k] = n->in[k] == RP__IR_NONE ? RP__IR_NONE : s->w.map[n->in[k]];
    if (n->kind == RP__IR_OP && n->op == RP__OP(recur)) leave_zeros_out(s, in);
    rp_status status = RP_OK;
    if (n->kind == RP__IR_OP && n->n_out == 1 && !(n->op->flags & RP_OP_INPLACE)) {
        rp__ir_value value = find_identity(s, n, in);
        if (value != RP__IR_NONE && may_stand_for(s, n, n->out[0], value)) {
            s->w.map[n->out[0]] = value;
            note_value(s, n->out[0], value);
            s->changed++;
            goto done;
        }
        bool replaced = false;
        RP_TRY_GOTO(status, done, replace(s, block, n, in, &replaced));
        if (replaced) {
            note_value(s, n->out[0], s->w.map[n->out[0]]);
            goto done;
        }
    }
    if (cse_able(s, n, in)) {
        rp__hash key = hash_node(s, n, in);
        uintptr_t before = (uintptr_t)rp__map_get(&s->seen, key);
        if (before) {
            rp__ir_value value = s->w.dst->nodes[before - 1].out[0];
            if (!is_written(s, value) && may_stand_for(s, n, n->out[0], value)) {
                s->w.map[n->out[0]] = value;
                note_value(s, n->out[0], value);
                s->changed++;
                goto done;
            }
        }
        RP_TRY_GOTO(status, done, rp__rewrite_copy_with(&s->w, block, index, in));
        if (!before && !rp__map_put(&s->seen, key, (void *)(uintptr_t)s->w.dst->n_nodes)) {
            status = RP__OOM("table of expressions");
            goto done;
        }
    } else if (n->n_regions == 0) { /* effects, constants, ops that are never merged */
        RP_TRY_GOTO(status, done, rp__rewrite_copy_with(&s->w, block, index, in));
    } else {
        rp__map outer = s->seen; /* a region sees only its own expressions */
        memset(&s->seen, 0, sizeof s->seen);
        s->regions++;
        status = rp__rewrite_copy_regions(&s->w, block, index, in, visit_block, s);
        s->regions--;
        rp__map_free(&s->seen);
        s->seen = outer;
        if (status != RP_OK) goto done;
    }
    for (uint32_t k = 0; k < n->n_out; k++) note_value(s, n->out[k], s->w.map[n->out[k]]);
done:
    if (in != few) rp__free(in);
    return status;
}

static rp_status visit_block(void *ctx, const rp__ir_block *from, rp__ir_block *to) {
    simplifier *s = ctx;
    rp__map_free(&s->seen); /* blocks of one node do not see each other either */
    for (uint32_t k = 0; k < from->n_args && s->regions == 0; k++)
        note_value(s, from->args[k], s->w.map[from->args[k]]);
    for (size_t k = 0; k < from->n_nodes; k++) {
        uint32_t index = from->nodes[k];
        if (s->regions == 0) s->at = (uint32_t)k;
        if (s->live[index]) {
            RP_TRY(visit_node(s, to, index));
        } else {
            s->changed++;
        }
    }
    return RP_OK;
}

static rp_status simplify_once(const rp_ir *ir, bool gradients_done, rp_ir **out, uint32_t *changed) {
    simplifier s;
    memset(&s, 0, sizeof s);
    s.gradients_done = gradients_done;
    bool *live_value = NULL;
    rp_status status = rp__rewrite_begin(&s.w, ir);
    if (status != RP_OK) goto done;
    s.live = rp__calloc(ir->n_nodes + 1, sizeof *s.live);
    live_value = rp__calloc(ir->n_values + 1, sizeof *live_value);
    s.escapes = rp__calloc(ir->n_values + 1, sizeof *s.escapes); /* dst never has more values than src */
    s.src_escapes = rp__calloc(ir->n_values + 1, sizeof *s.src_escapes);
    s.unstable = rp__calloc(ir->n_storages + 1u, sizeof *s.unstable);
    s.is_result = rp__calloc(ir->n_values + 1, sizeof *s.is_result);
    s.last_use = rp__calloc(ir->n_storages + 1u, sizeof *s.last_use);
    s.written = rp__calloc(ir->n_values + 1, sizeof *s.written);
    s.last = rp__calloc(ir->n_values + 1, sizeof *s.last);
    s.assigned = rp__calloc(ir->n_storages + 1u, sizeof *s.assigned);
    s.kept_until = rp__calloc(ir->n_values + 1, sizeof *s.kept_until);
    if (!s.live || !live_value || !s.unstable || !s.is_result || !s.escapes || !s.src_escapes || !s.last_use ||
        !s.written || !s.last || !s.assigned || !s.kept_until) {
        status = RP__OOM("tables of simplification");
        goto done;
    }
    mark_block(ir, &ir->body, s.live, live_value);
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t r = 0; r < n->n_in && n->kind == RP__IR_OP && !n->dead; r++) {
            if (rp__ir_writes(n, r)) s.any_unstable = s.unstable[ir->values[n->in[r]].storage] = true;
        }
    }
    for (size_t k = 0; k < ir->body.n_nodes && !s.any_written; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        s.any_written = s.any_unstable || (n->kind == RP__IR_ASSIGN && !n->dead);
    }
    memset(s.assigned, 0xff, (ir->n_storages + 1u) * sizeof *s.assigned);
    memset(s.kept_until, 0xff, (ir->n_values + 1) * sizeof *s.kept_until);
    if (s.any_written) note_uses(&s, &ir->body, 0, true);
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        if (ir->body.results[k] == RP__IR_NONE) continue;
        s.is_result[ir->body.results[k]] = true;
        s.src_escapes[rp__ir_root(ir, ir->body.results[k])] = true;
    }
    for (size_t v = 0; v < ir->n_values; v++) {
        if (s.src_escapes[rp__ir_root(ir, (rp__ir_value)v)]) s.src_escapes[v] = true;
    }
    RP_TRY_GOTO(status, done, visit_block(&s, &ir->body, &s.w.dst->body));
    status = rp__rewrite_results(&s.w, &ir->body, &s.w.dst->body);
done:
    *changed = s.changed;
    rp__free(s.live);
    rp__free(live_value);
    rp__free(s.escapes);
    rp__free(s.src_escapes);
    rp__free(s.unstable);
    rp__free(s.last_use);
    rp__free(s.written);
    rp__free(s.last);
    rp__free(s.assigned);
    rp__free(s.kept_until);
    rp__free(s.is_result);
    rp__map_free(&s.seen);
    return rp__rewrite_end(&s.w, status, "simplify", out);
}

rp_status rp__simplify(const rp_ir *ir, bool gradients_done, rp_ir **out) {
    /* Rules feed each other; three rounds settle what real graphs hold, the bound is for those that never would. */
    rp_ir *at = NULL;
    for (unsigned round = 0; round < 8; round++) {
        rp_ir *next;
        uint32_t changed;
        rp_status status = simplify_once(at ? at : ir, gradients_done, &next, &changed);
        if (at) rp__ir_release(at);
        at = NULL;
        if (status != RP_OK) return status;
        at = next;
        if (changed == 0) break;
    }
    *out = at;
    return RP_OK;
}
