/* Functionalise: makes a graph in which no op writes memory.
   Requires  a graph as traced: in-place ops, views, program order. What is written of arguments and captured tensors is memory
             that no other of them lies in, and each element of which has a place of its own: anything else is refused
             (RP_ERROR_UNAVAILABLE), and the ops themselves run, one by one.
   Keeps     results and their order, random counters, sites, metas, gradient marks.
   Breaks    strides of values that were views of written memory: they become those of the functional result.
   After it  only ASSIGN nodes write, behind everything else, one a written argument or captured tensor; a result that shares
             memory with a written argument is a view of that argument. The one exception are ops without a functional form
             (optimizer steps over many tensors): they stay in place on the memory of arguments and captured tensors, and on
             copies of anything else, at their place in program order.

   A storage is the memory behind a base value (not a view). It has a version: the base's current functional value. A traced
   value is a path of view ops from its base. Reading a value whose derivation is older than the storage's version replays
   the path on the current base; writing through a path computes the new base by the inverse scatters, innermost first. */
#include <stdlib.h>
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "ops/view.h"

enum { STALE = UINT32_MAX };

typedef struct place {   /* of a traced value */
    rp__ir_value same;   /* the result of an in-place op is its operand: the value that stands for both */
    rp__ir_value base;   /* itself when it is no view */
    rp__ir_value parent; /* the value it is a view of; RP__IR_NONE */
    uint32_t node;       /* the view op */
    uint32_t version;    /* of the storage when map[] was derived; STALE: never */
    bool written;        /* a view whose map[] is what was written through it, not a view of the base */
} place;

typedef struct memory {   /* of a base value */
    rp__ir_value outer;   /* in dst, before any write */
    rp__ir_value current; /* in dst */
    uint32_t version;     /* 0: never written */
    const char *site;     /* of the last write */
    bool fixed;           /* argument of a region: must not be written */
} memory;

typedef struct functionaliser {
    rp__rewrite w;
    place *places;
    memory *memories;   /* indexed by base value */
    rp__ir_value *path; /* scratch for replays */
    rp__ir_value *first_outer,
        *next_outer;      /* arguments, then captured tensors: first of a storage, the next one there */
    uint32_t depth;       /* of regions */
    uint32_t checkpoints; /* opened around the node */
    uint32_t opened;      /* functions around the node: the outermost one's backward is that of all */
    rp_dim random_base;   /* counters reserved before the checkpoint that is being opened */
} functionaliser;

static void add_base(functionaliser *f, rp__ir_value v, bool fixed) {
    rp__ir_value made = f->w.map[v];
    f->places[v] = (place){.same = v, .base = v, .parent = RP__IR_NONE, .node = RP__IR_NONE, .version = 0};
    f->memories[v] = (memory){.outer = made, .current = made, .version = 0, .site = "", .fixed = fixed};
}

static rp_status emit_like(functionaliser *f, rp__ir_block *block, const rp__op *op, const rp__ir_value *in,
                           uint32_t n_in, const rp_attr *attrs, uint32_t n_attrs, rp__ir_value like, const char *site,
                           rp__ir_value *out) {
    rp__meta meta = f->w.dst->values[like].meta;
    const rp__ir_value_info *layout = &f->w.dst->values[like];
    rp_dim stride[RP_MAX_DIMS];
    const bool dense = rp__ir_value_dense(layout);
    memcpy(stride, layout->stride, sizeof stride);
    bool gradient = false; /* before `out` is written: it may be in[0] */
    for (uint32_t k = 0; k < n_in; k++) gradient = gradient || f->w.dst->values[in[k]].requires_grad;
    RP_TRY(rp__ir_emit(f->w.dst, block, op, in, n_in, attrs, n_attrs, &meta, 1, site, out));
    f->w.dst->values[*out].requires_grad = gradient;
    if (dense) memcpy(f->w.dst->values[*out].stride, stride, sizeof stride);
    return RP_OK;
}

/* The functional value of traced value v now. */
static rp_status read_value(functionaliser *f, rp__ir_block *block, rp__ir_value v, rp__ir_value *out) {
    v = f->places[v].same;
    const memory *m = &f->memories[f->places[v].base];
    size_t n = 0;
    rp__ir_value at = v;
    while (f->places[at].version != m->version && f->places[at].parent != RP__IR_NONE) {
        f->path[n++] = at;
        at = f->places[at].parent;
    }
    if (f->places[at].version != m->version) { /* the base itself */
        f->w.map[at] = m->current;
        f->places[at].version = m->version;
    }
    while (n > 0) {
        rp__ir_value child = f->path[--n];
        const rp__ir_node *view = &f->w.src->nodes[f->places[child].node];
        rp__ir_value from = f->w.map[f->places[child].parent], made;
        /* `view` needs strides that fit; a functional value may lie in memory otherwise than the written one did. */
        if (m->version > 0 && rp__ir_is_op(view, RP__OP(view)) && !rp__ir_value_contiguous(&f->w.dst->values[from]) &&
            !rp__ir_is_outer(f->w.dst, rp__ir_root(f->w.dst, from))) {
            RP_TRY(rp__ir_emit_row_major(f->w.dst, block, from, view->site, &from));
        }
        RP_TRY(rp__ir_emit_view(f->w.dst, block, view->op, from, view->attrs, view->n_attrs, view->site, &made));
        /* A write may have given the base a history, and with it views that were made before. */
        const rp__ir_value_info *was = f->w.src->values;
        bool late = !was[f->places[child].parent].requires_grad && !rp__ir_is_op(view, RP__OP(detach)) &&
                    f->w.dst->values[from].requires_grad;
        f->w.dst->values[made].requires_grad = was[child].requires_grad || late;
        f->w.map[child] = made;
        f->places[child].version = m->version;
        f->places[child].written = false;
    }
    *out = f->w.map[v];
    return RP_OK;
}

/* value as a tensor of the sizes of `like`: element order kept. */
static rp_status emit_reshape(functionaliser *f, rp__ir_block *block, rp__ir_value value, rp__ir_value like,
                              const char *site, rp__ir_value *out) {
    rp_ir *dst = f->w.dst;
    *out = value;
    if (rp__meta_same_size(&dst->values[value].meta, &dst->values[like].meta)) return RP_OK;
    RP_TRY(rp__ir_emit_row_major(dst, block, value, site, &value));
    rp_dim dims[RP_MAX_DIMS];
    memcpy(dims, dst->values[like].meta.size, sizeof dims);
    rp_attr size = rp__attr_of_ints(dims, dst->values[like].meta.ndim);
    return rp__ir_emit_view(dst, block, RP__OP(view), value, &size, 1, site, out);
}

/* The parent's new value after `value` was written through the view: old is the parent's value before. */
static rp_status invert_view(functionaliser *f, rp__ir_block *block, const rp__ir_node *view, rp__ir_value old,
                             rp__ir_value value, const char *site, rp__ir_value *out) {
    rp_ir *dst = f->w.dst;
    rp__view map;
    int64_t order[RP_MAX_DIMS];
    RP_TRY(rp__ir_view_map(dst, view, old, &map));
    if (view->op->inverse) {
        rp__ir_value both[2] = {old, value};
        if (rp__view_overlaps(&map))
            return rp__fail(RP_ERROR_UNAVAILABLE,
                            "an in-place write through overlapping windows is left to the op itself");
        return emit_like(f, block, view->op->inverse, both, 2, view->attrs, view->n_attrs, old, site, out);
    }
    if (rp__view_repeats(&map)) {
        rp_dim before = rp__numel(dst->values[old].meta.size, dst->values[old].meta.ndim);
        rp_dim after = rp__numel(dst->values[value].meta.size, dst->values[value].meta.ndim);
        /* Direct writes are an error that the op itself reports when it runs; one element of it may be written. */
        if (!rp__dim_is(RP__DIM_EQ, before, after))
            return rp__fail(RP_ERROR_UNAVAILABLE,
                            "an in-place write through an expanded tensor is left to the op itself");
    }
    if (rp__view_order(&map, order)) {
        rp_attr dims = rp__attr_of_ints(order, map.ndim);
        RP_TRY(rp__ir_emit_view(dst, block, RP__OP(permute), value, &dims, 1, site, &value));
    }
    return emit_reshape(f, block, value, old, site, out);
}

/* Has each element a place of its own? Strides that are symbols are asked for. */
static bool is_apart_in_itself(const rp__ir_value_info *t) {
    unsigned order[RP_MAX_DIMS], n = 0;
    if (rp__ir_value_contiguous(t)) return true;
    for (unsigned d = 0; d < t->meta.ndim; d++) {
        if (rp__dim_is(RP__DIM_EQ, t->meta.size[d], 0)) return true;
        if (rp__dim_is(RP__DIM_EQ, t->meta.size[d], 1)) continue;
        unsigned at = n++;
        for (; at > 0 && rp__dim_before(t->stride[d], t->stride[order[at - 1]]); at--) order[at] = order[at - 1];
        order[at] = d;
    }
    rp_dim reach = 0; /* of the dims with smaller strides */
    for (unsigned k = 0; k < n; k++) {
        rp_dim stride = t->stride[order[k]], steps = rp__dim_apply(RP__DIM_SUB, t->meta.size[order[k]], 1);
        if (!rp__dim_is(RP__DIM_LT, reach, stride)) return false;
        reach = rp__dim_apply(RP__DIM_ADD, reach, rp__dim_apply(RP__DIM_MUL, stride, steps));
    }
    return true;
}

/* Bytes of its storage from the first to behind the last one. False: its sizes are symbols. */
static bool bytes_of(const rp__ir_value_info *t, int64_t *begin, int64_t *end) {
    const int64_t bytes = (int64_t)rp__dtype_bytes(t->meta.dtype);
    if (rp__dim_is_symbol(t->offset)) return false;
    *begin = t->offset * bytes;
    *end = *begin + bytes;
    for (unsigned d = 0; d < t->meta.ndim; d++) {
        if (rp__dim_is_symbol(t->meta.size[d]) || rp__dim_is_symbol(t->stride[d])) return false;
        if (t->meta.size[d] == 0) *end = *begin;
        if (*end > *begin) *end += (t->meta.size[d] - 1) * t->stride[d] * bytes;
    }
    return true;
}

/* Are they two parts of one storage that have no byte in common? Guards hold them to their distance and their sizes. */
static bool are_apart(const rp__ir_value_info *a, const rp__ir_value_info *b) {
    int64_t a0, a1, b0, b1;
    return bytes_of(a, &a0, &a1) && bytes_of(b, &b0, &b1) && (a1 <= b0 || b1 <= a0);
}

static rp_status list_outer(functionaliser *f) {
    const rp_ir *src = f->w.src;
    f->first_outer = rp__alloc((src->n_storages + 1u) * sizeof *f->first_outer);
    f->next_outer = rp__alloc((src->n_values + 1) * sizeof *f->next_outer);
    if (!f->first_outer || !f->next_outer) return RP__OOM("tables of functionalisation");
    for (uint32_t s = 0; s < src->n_storages; s++) f->first_outer[s] = RP__IR_NONE;
    for (size_t k = src->body.n_nodes; k-- > 0;) {
        const rp__ir_node *n = &src->nodes[src->body.nodes[k]];
        if (n->dead || n->kind != RP__IR_CAPTURED) continue;
        rp__ir_value *first = &f->first_outer[src->values[n->out[0]].storage];
        f->next_outer[n->out[0]] = *first;
        *first = n->out[0];
    }
    for (uint32_t k = src->body.n_args; k-- > 0;) {
        rp__ir_value *first = &f->first_outer[src->values[src->body.args[k]].storage];
        f->next_outer[src->body.args[k]] = *first;
        *first = src->body.args[k];
    }
    return RP_OK;
}

/* Does argument v, which shares its storage with others, lie apart from each of them? */
static bool is_apart_from_others(const functionaliser *f, rp__ir_value v) {
    const rp_ir *ir = f->w.src;
    const rp__ir_value_info *own = &ir->values[v];
    bool shares = false;
    for (rp__ir_value other = f->first_outer[own->storage]; other != RP__IR_NONE; other = f->next_outer[other]) {
        if (other == v || rp__ir_producer(ir, other)) continue;
        if (!are_apart(own, &ir->values[other])) return false;
        shares = true;
    }
    return shares;
}

/* Arguments of one storage are one buffer of a program (program_place.c), which is written as a whole or not at all: an argument
   that lies apart gets a buffer of its own. (Captured tensors have one each.) */
static void part_arguments(const functionaliser *f) {
    const rp_ir *src = f->w.src;
    for (uint32_t k = 0; k < src->body.n_args; k++)
        if (is_apart_from_others(f, src->body.args[k]))
            f->w.dst->values[f->w.dst->body.args[k]].storage = f->w.dst->n_storages++;
}

/* The first write to argument or captured tensor v: no other lies in what is written, or in one buffer with it. */
static rp_status check_outer(const functionaliser *f, rp__ir_value v) {
    const rp_ir *src = f->w.src;
    const rp__ir_value_info *own = &src->values[v];
    const rp__ir_node *made = rp__ir_producer(src, v);
    const char *what = made ? "captured tensor" : "argument";
    uint32_t number = made ? made->captured_index : own->out_index;
    if (own->shared)
        return rp__fail(RP_ERROR_UNAVAILABLE, "%s %u is written, in wrapped memory that another tensor lies in as well",
                        what, number);
    if (!is_apart_in_itself(own))
        return rp__fail(RP_ERROR_UNAVAILABLE, "%s %u is written, and its elements share memory", what, number);
    const bool apart = made || is_apart_from_others(f, v);
    for (rp__ir_value other = f->first_outer[own->storage]; other != RP__IR_NONE; other = f->next_outer[other]) {
        const rp__ir_node *captured = rp__ir_producer(src, other);
        if (other == v ||
            (are_apart(own, &src->values[other]) && (apart || captured || is_apart_from_others(f, other))))
            continue;
        return rp__fail(RP_ERROR_UNAVAILABLE, "%s %u shares memory with what is written",
                        captured ? "captured tensor" : "argument",
                        captured ? captured->captured_index : src->values[other].out_index);
    }
    return RP_OK;
}

static bool is_outer(const functionaliser *f, const memory *m) {
    return m->outer != RP__IR_NONE && rp__ir_is_outer(f->w.dst, m->outer);
}

/* Traced value v now holds `value` (same sizes and dtype). */
static rp_status write_value(functionaliser *f, rp__ir_block *block, rp__ir_value v, rp__ir_value value,
                             const char *site) {
    v = f->places[v].same;
    memory *m = &f->memories[f->places[v].base];
    if (m->fixed) {
        return rp__fail(RP_ERROR_UNAVAILABLE, "a branch or loop body writes a tensor from outside");
    }
    if (m->version == 0 && is_outer(f, m)) RP_TRY(check_outer(f, f->places[v].base));
    uint32_t before = m->version;
    rp__ir_value at = v;
    while (f->places[at].parent != RP__IR_NONE) {
        const rp__ir_node *view = &f->w.src->nodes[f->places[at].node];
        rp__ir_value parent = f->places[at].parent, old = RP__IR_NONE, above;
        RP_TRY(read_value(f, block, parent, &old)); /* before the version moves */
        RP_TRY(invert_view(f, block, view, old, value, site, &above));
        f->w.map[at] = value;
        f->places[at].version = before + 1;
        f->places[at].written = true;
        at = parent;
        value = above;
    }
    /* A tensor of the function's own keeps the strides it was made with: results and `view` count on them. */
    if (!is_outer(f, m) && !rp__ir_same_strides(&f->w.dst->values[value], &f->w.src->values[at])) {
        RP_TRY(emit_like(f, block, RP__OP(clone), &value, 1, NULL, 0, value, site, &value));
        memcpy(f->w.dst->values[value].stride, f->w.src->values[at].stride, sizeof f->w.src->values[at].stride);
    }
    f->w.map[at] = value;
    f->places[at].version = before + 1;
    m->version = before + 1;
    m->current = value;
    m->site = site;
    return RP_OK;
}

static rp_status read_operands(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, rp__ir_value *in) {
    for (uint32_t k = 0; k < n->n_in; k++) {
        in[k] = RP__IR_NONE;
        if (n->in[k] != RP__IR_NONE) RP_TRY(read_value(f, block, n->in[k], &in[k]));
    }
    return RP_OK;
}

/* add_(self, ...) -> self' = add(self, ...), converted to self's dtype where promotion widened it. */
static rp_status in_place(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, const rp__ir_value *in) {
    enum { MAX_OPERANDS = 4 };
    rp_ir *dst = f->w.dst;
    const rp__op *op = n->op->functional_op;
    rp__ir_stand_in handles[MAX_OPERANDS];
    rp_tensor *operands[MAX_OPERANDS] = {0}, *results[RP__MAX_OUTS] = {0};
    rp__call call;
    if (n->n_in > MAX_OPERANDS || op->schema.n_outs != 1) {
        return rp__fail(RP_ERROR_INTERNAL, "%s: an in-place op with %u operands", n->op->name, n->n_in);
    }
    rp__ir_call(n, operands, results, &call);
    call.op = op;
    call.n_out = 1;
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (in[k] != RP__IR_NONE) operands[k] = rp__ir_stand_in_for(dst, in[k], &handles[k]);
    }
    rp__meta meta[RP__MAX_OUTS];
    memset(meta, 0, sizeof meta);
    RP_TRY(rp__op_infer(&call, meta));
    rp__ir_value value;
    RP_TRY(rp__ir_emit(dst, block, op, in, n->n_in, n->attrs, n->n_attrs, meta, 1, n->site, &value));
    bool needs_grad = f->w.src->values[n->n_out > 0 ? n->out[0] : n->in[0]].requires_grad;
    dst->values[value].requires_grad = needs_grad;
    rp__ir_node *made = &dst->nodes[dst->values[value].node];
    made->random_offset = n->random_offset;
    made->random_count = n->random_count;
    rp_dtype dtype = f->w.src->values[n->in[0]].meta.dtype;
    if (meta[0].dtype != dtype) {
        rp_attr to = rp__attr_of_dtype(dtype);
        meta[0].dtype = dtype;
        RP_TRY(rp__ir_emit(dst, block, RP__OP(to_dtype), &value, 1, &to, 1, meta, 1, n->site, &value));
        dst->values[value].requires_grad = needs_grad;
    }
    return write_value(f, block, n->in[0], value, n->site);
}

/* Operands that an op over many tensors writes, by memory: where it begins and ends in its base. */
typedef struct extent {
    rp__ir_value base;
    int64_t begin, end;
} extent;

static int by_begin(const void *x, const void *y) {
    const extent *a = x, *b = y;
    if (a->base != b->base) return a->base < b->base ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Need the operands that n writes be compared with each other (check_list)? *meet: some may have bytes in common. */
static rp_status may_meet(const functionaliser *f, const rp__ir_node *n, bool *meet) {
    extent few[RP__FEW_OPERANDS], *list = n->n_in > RP__FEW_OPERANDS ? rp__alloc(n->n_in * sizeof *list) : few;
    uint32_t count = 0;
    if (!list) return RP__OOM("operands of a graph node");
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (!rp__ir_writes(n, k)) continue;
        const rp__ir_value v = f->places[n->in[k]].same;
        extent *e = &list[count++];
        e->base = f->places[v].base;
        if (!bytes_of(&f->w.src->values[v], &e->begin, &e->end)) e->begin = INT64_MIN, e->end = INT64_MAX;
    }
    qsort(list, count, sizeof *list, by_begin);
    *meet = false;
    for (uint32_t k = 1; k < count && !*meet; k++) {
        *meet = list[k].base == list[k - 1].base && list[k].begin < list[k - 1].end;
        if (list[k].base == list[k - 1].base && list[k].end < list[k - 1].end) list[k].end = list[k - 1].end;
    }
    if (list != few) rp__free(list);
    return RP_OK;
}

/* Of an op over many tensors: two that it writes have bytes in common, as one gradient of two parameters has. Each is a value of its own
   in the functional form; executed, the second is written over the first. */
static rp_status check_list(const functionaliser *f, const rp__ir_node *n, uint32_t k) {
    const rp_ir *src = f->w.src;
    const rp__ir_value v = f->places[n->in[k]].same;
    for (uint32_t j = 0; j < k; j++) {
        if (!rp__ir_writes(n, j)) continue;
        const rp__ir_value other = f->places[n->in[j]].same;
        if (f->places[other].base == f->places[v].base && !are_apart(&src->values[v], &src->values[other]))
            return rp__fail(RP_ERROR_UNAVAILABLE, "`%s` writes operands %u and %u, which share memory", n->op->name, j,
                            k);
    }
    return RP_OK;
}

/* An op that writes several operands and has no functional form: it works on memory. Written arguments get their current value
   first; anything else is copied, and the copy is the value afterwards. */
static rp_status in_place_on_memory(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, rp__ir_value *in) {
    bool meet = false;
    RP_TRY(may_meet(f, n, &meet));
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (!rp__ir_writes(n, k)) continue;
        if (meet) RP_TRY(check_list(f, n, k));
        rp__ir_value v = f->places[n->in[k]].same;
        memory *m = &f->memories[f->places[v].base];
        if (m->fixed) return rp__fail(RP_ERROR_UNAVAILABLE, "a branch or loop body writes a tensor from outside");
        bool outer = is_outer(f, m);
        if (outer && f->places[v].base == v) {
            RP_TRY(check_outer(f, v));
            if (m->current != m->outer) {
                RP_TRY(rp__ir_emit_assign(f->w.dst, block, m->outer, m->current, n->site));
                m->current = m->outer;
                m->version++;
            }
            RP_TRY(read_value(f, block, v, &in[k]));
        } else {
            rp__ir_value copy;
            RP_TRY(emit_like(f, block, RP__OP(clone), &in[k], 1, NULL, 0, in[k], n->site, &copy));
            in[k] = copy;
        }
    }
    return RP_OK;
}

static rp_status functionalise_block(void *ctx, const rp__ir_block *from, rp__ir_block *to);
static rp_status visit_nodes(functionaliser *f, const rp__ir_block *from, rp__ir_block *to);

/* Blocks are traced without a tape: what follows from a value that carries a gradient carries one. */
static void carry_gradients(rp_ir *dst, size_t first, size_t first_value) {
    for (size_t k = first; k < dst->n_nodes; k++) {
        const rp__ir_node *n = &dst->nodes[k];
        bool carries = false;
        for (uint32_t i = 0; i < n->n_in; i++)
            carries = carries || (n->in[i] != RP__IR_NONE && dst->values[n->in[i]].requires_grad);
        for (uint32_t i = 0; i < n->n_out; i++) {
            rp__ir_value_info *out = &dst->values[n->out[i]];
            if (n->out[i] >= first_value && !rp__ir_is_op(n, RP__OP(detach)))
                out->requires_grad = carries && rp__dtype_is_float(out->meta.dtype);
        }
    }
}

/* Grad mode was off when the node was recorded: none of its results carries a gradient, although operands may. Of a node in a
   block the marks say nothing; there such operands are detached. */
static bool without_tape(const functionaliser *f, const rp__ir_node *n) {
    if (!f->w.src->taped || f->depth > 0 || f->checkpoints > 0 || f->opened > 0) return false;
    for (uint32_t k = 0; k < n->n_out; k++)
        if (f->w.src->values[n->out[k]].requires_grad) return false;
    return true;
}

/* A checkpoint is opened: its nodes become the graph's own, marked to be run again rather than kept. */
static rp_status open_checkpoint(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, const rp__ir_value *in) {
    const rp__ir_block *region = &n->regions[0];
    for (uint32_t k = 0; k < region->n_args; k++) {
        f->w.map[region->args[k]] = in[k];
        add_base(f, region->args[k], true);
    }
    size_t first = f->w.dst->n_nodes, first_value = f->w.dst->n_values;
    rp_dim before = f->random_base;
    f->random_base = rp__dim_apply(RP__DIM_ADD, before, n->random_offset);
    f->checkpoints++;
    rp_status status = visit_nodes(f, region, block);
    f->checkpoints--;
    f->random_base = before;
    RP_TRY(status);
    if (without_tape(f, n)) {
        for (size_t v = first_value; v < f->w.dst->n_values; v++) f->w.dst->values[v].requires_grad = false;
    } else {
        carry_gradients(f->w.dst, first, first_value);
    }
    for (uint32_t k = 0; k < n->n_out; k++) {
        rp__ir_value result;
        RP_TRY(read_value(f, block, region->results[k], &result));
        f->w.map[n->out[k]] = result;
        add_base(f, n->out[k], false);
    }
    /* All but what makes the results, which the caller sees. */
    for (size_t k = first; k < f->w.dst->n_nodes; k++) f->w.dst->nodes[k].recompute = true;
    for (uint32_t k = 0; k < n->n_out; k++) {
        uint32_t made = f->w.dst->values[rp__ir_root(f->w.dst, f->w.map[n->out[k]])].node;
        if (made != RP__IR_NONE && made >= first) f->w.dst->nodes[made].recompute = false;
    }
    return RP_OK;
}

/* A function is opened: its forward is the graph's own. Its backward is recorded already, where it is differentiated at all. */
static rp_status open_function(functionaliser *f, rp__ir_block *block, const rp__ir_node *n, const rp__ir_value *in) {
    rp_ir *dst = f->w.dst;
    const rp__ir_block *region = &n->regions[0];
    for (uint32_t k = 0; k < region->n_args; k++) {
        f->w.map[region->args[k]] = in[k];
        add_base(f, region->args[k], true);
    }
    size_t first = dst->n_nodes;
    f->opened++;
    rp_status status = visit_nodes(f, region, block);
    f->opened--;
    RP_TRY(status);
    for (uint32_t k = 0; k < n->n_out; k++) { /* fresh memory, as the function gave it */
        rp__ir_value out;
        RP_TRY(read_value(f, block, region->results[k], &out));
        uint32_t made = dst->values[out].node;
        bool own = made != RP__IR_NONE && made >= first && !rp__ir_is_view(&dst->nodes[made]);
        for (uint32_t i = 0; i < k; i++) own = own && f->w.map[n->out[i]] != out;
        if (!own) RP_TRY(emit_like(f, block, RP__OP(clone), &out, 1, NULL, 0, out, n->site, &out));
        f->w.map[n->out[k]] = out;
    }
    for (size_t k = first; k < dst->n_nodes; k++)
        for (uint32_t i = 0; i < dst->nodes[k].n_out; i++) dst->values[dst->nodes[k].out[i]].requires_grad = false;
    for (uint32_t k = 0; k < n->n_out; k++) {
        dst->values[f->w.map[n->out[k]]].requires_grad = f->w.src->values[n->out[k]].requires_grad;
        add_base(f, n->out[k], false);
    }
    return RP_OK;
}

static rp_status visit_node(functionaliser *f, rp__ir_block *block, uint32_t index, rp__ir_value *in) {
    const rp__ir_node *n = &f->w.src->nodes[index];
    if (rp__ir_is_view(n)) {
        /* Emitted where it was traced, read or not: derivatives are added up in the order of nodes. */
        rp__ir_value v = n->out[0], parent = f->places[n->in[0]].same;
        f->places[v] =
            (place){.same = v, .base = f->places[parent].base, .parent = parent, .node = index, .version = STALE};
        rp__ir_value unused;
        return read_value(f, block, v, &unused);
    }
    if (n->kind == RP__IR_ASSIGN) { /* a write back in the trace: copy_ over the whole */
        rp__ir_value value;
        RP_TRY(read_value(f, block, n->in[1], &value));
        return write_value(f, block, n->in[0], value, n->site);
    }
    RP_TRY(read_operands(f, block, n, in));
    bool writes = n->kind == RP__IR_OP && (n->op->flags & RP_OP_INPLACE);
    if (writes && n->op->functional_op) {
        RP_TRY(in_place(f, block, n, in));
        for (uint32_t k = 0; k < n->n_out; k++) f->places[n->out[k]].same = f->places[n->in[0]].same;
        return RP_OK;
    }
    if (writes) {
        RP_TRY(in_place_on_memory(f, block, n, in));
        RP_TRY(rp__rewrite_copy_with(&f->w, block, index, in));
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (!rp__ir_writes(n, k)) continue;
            rp__ir_value v = f->places[n->in[k]].same;
            memory *m = &f->memories[f->places[v].base];
            if (f->places[v].base == v && m->current == in[k]) {
                m->site = n->site; /* on the memory itself: its values read the new content */
            } else {
                RP_TRY(write_value(f, block, v, in[k], n->site));
            }
        }
        for (uint32_t k = 0; k < n->n_out; k++) f->places[n->out[k]].same = f->places[n->in[0]].same;
        return RP_OK;
    }
    if (n->kind == RP__IR_CHECKPOINT) return open_checkpoint(f, block, n, in);
    if (n->kind == RP__IR_FUNCTION) return open_function(f, block, n, in);
    if (n->n_regions > 0) {
        f->depth++;
        rp_status status = rp__rewrite_copy_regions(&f->w, block, index, in, functionalise_block, f);
        f->depth--;
        RP_TRY(status);
    } else {
        RP_TRY(rp__rewrite_copy_with(&f->w, block, index, in));
        if (f->random_base != 0 && n->random_count != 0) {
            rp__ir_node *made = &f->w.dst->nodes[f->w.dst->n_nodes - 1];
            made->random_offset = rp__dim_apply(RP__DIM_ADD, made->random_offset, f->random_base);
        }
    }
    for (uint32_t k = 0; k < n->n_out; k++) add_base(f, n->out[k], false);
    return RP_OK;
}

/* Makes map[] of every result current, so that rp__rewrite_results takes the right values. */
static rp_status read_results(functionaliser *f, const rp__ir_block *from, rp__ir_block *to) {
    for (uint32_t k = 0; k < from->n_results; k++) {
        rp__ir_value v = from->results[k];
        if (v == RP__IR_NONE) continue;
        /* A result that is a view shares its base's memory, also if it was written through. */
        rp__ir_value at = f->places[v].same;
        bool again = false;
        for (; f->places[at].parent != RP__IR_NONE; at = f->places[at].parent) again = again || f->places[at].written;
        for (at = f->places[v].same; again && f->places[at].parent != RP__IR_NONE; at = f->places[at].parent) {
            f->places[at].version = STALE;
        }
        RP_TRY(read_value(f, to, v, &f->w.map[v]));
    }
    return RP_OK;
}

static rp_status visit_nodes(functionaliser *f, const rp__ir_block *from, rp__ir_block *to) {
    rp_status status = RP_OK;
    rp__ir_value few[RP__FEW_OPERANDS];
    for (size_t k = 0; k < from->n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &f->w.src->nodes[from->nodes[k]];
        if (n->dead) continue;
        rp__ir_value *in = n->n_in > RP__FEW_OPERANDS ? rp__alloc(n->n_in * sizeof *in) : few;
        if (!in) return RP__OOM("operands of a graph node");
        rp__site_frame frame = rp__site_push(n->site ? n->site : "", n->kind == RP__IR_OP ? n->op->name : "");
        status = visit_node(f, to, from->nodes[k], in);
        rp__site_pop(frame);
        if (in != few) rp__free(in);
    }
    return status;
}

static rp_status functionalise_block(void *ctx, const rp__ir_block *from, rp__ir_block *to) {
    functionaliser *f = ctx;
    for (uint32_t k = 0; k < from->n_args; k++) add_base(f, from->args[k], f->depth > 0);
    rp_status status = visit_nodes(f, from, to);
    if (status != RP_OK || f->depth == 0) return status; /* the body's results follow the write backs */
    return read_results(f, from, to);
}

static bool to_write_back(const functionaliser *f, rp__ir_value v) {
    const memory *m = &f->memories[v];
    return f->places[v].same == v && f->places[v].base == v && m->version > 0 && !m->fixed && m->outer != RP__IR_NONE &&
           rp__ir_is_outer(f->w.dst, m->outer) && m->current != m->outer;
}

/* One ASSIGN a written argument or captured tensor, in the order of their values. */
static rp_status write_back(functionaliser *f) {
    const rp_ir *src = f->w.src;
    rp__ir_block *body = &f->w.dst->body;
    for (rp__ir_value v = 0; v < src->n_values; v++) {
        if (!to_write_back(f, v)) continue;
        memory *m = &f->memories[v];
        /* Assignments among arguments (a swap) would read what another one has written: those values are copied first. */
        if (!rp__ir_is_outer(f->w.dst, rp__ir_root(f->w.dst, m->current))) continue;
        RP_TRY(emit_like(f, body, RP__OP(clone), &m->current, 1, NULL, 0, m->current, m->site, &m->current));
    }
    for (rp__ir_value v = 0; v < src->n_values; v++) {
        if (!to_write_back(f, v)) continue;
        memory *m = &f->memories[v];
        RP_TRY(rp__ir_emit_assign(f->w.dst, body, m->outer, m->current, m->site));
        m->current = m->outer; /* from here on the memory holds it */
        m->version++;
    }
    return RP_OK;
}

/* A caller may write what it gets: a constant is copied. */
static rp_status copy_constant_results(functionaliser *f) {
    rp__ir_block *body = &f->w.dst->body;
    for (uint32_t k = 0; k < body->n_results; k++) {
        rp__ir_value v = body->results[k];
        const rp__ir_node *n = v == RP__IR_NONE ? NULL : rp__ir_producer(f->w.dst, rp__ir_root(f->w.dst, v));
        if (!n || n->kind != RP__IR_CONST) continue;
        RP_TRY(emit_like(f, body, RP__OP(clone), &v, 1, NULL, 0, v, "", &body->results[k]));
    }
    return RP_OK;
}

rp_status rp__functionalise(const rp_ir *ir, rp_ir **out) {
    functionaliser f;
    memset(&f, 0, sizeof f);
    size_t n = ir->n_values + 1;
    rp_status status = rp__rewrite_begin(&f.w, ir);
    if (status != RP_OK) goto done;
    RP_TRY_GOTO(status, done, list_outer(&f));
    part_arguments(&f);
    f.places = rp__calloc(n, sizeof *f.places);
    f.memories = rp__calloc(n, sizeof *f.memories);
    f.path = rp__calloc(n, sizeof *f.path);
    if (!f.places || !f.memories || !f.path) {
        status = RP__OOM("tables of functionalisation");
        goto done;
    }
    for (size_t v = 0; v < ir->n_values; v++) {
        f.places[v] = (place){.same = (rp__ir_value)v,
                              .base = (rp__ir_value)v,
                              .parent = RP__IR_NONE,
                              .node = RP__IR_NONE,
                              .version = STALE};
        f.memories[v].outer = f.memories[v].current = RP__IR_NONE;
    }
    RP_TRY_GOTO(status, done, functionalise_block(&f, &ir->body, &f.w.dst->body));
    RP_TRY_GOTO(status, done, write_back(&f));
    RP_TRY_GOTO(status, done, read_results(&f, &ir->body, &f.w.dst->body));
    RP_TRY_GOTO(status, done, rp__rewrite_results(&f.w, &ir->body, &f.w.dst->body));
    status = copy_constant_results(&f);
done:
    rp__free(f.places);
    rp__free(f.memories);
    rp__free(f.path);
    rp__free(f.first_outer);
    rp__free(f.next_outer);
    return rp__rewrite_end(&f.w, status, "functionalise", out);
}
