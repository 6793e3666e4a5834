/* The space of a group of loop nodes: finds axes on which all members agree, or the reason why there are none (fuse.h). Pure
   arithmetic over sizes; knows the maps of views, because they are what it is about, and no single op. */
#include <string.h>

#include "compile/fuse.h"
#include "core/alloc.h"
#include "ops/view.h"

typedef struct builder {
    const rp__fusion *f;
    rp__group_space *s;
    const char *why; /* "": out of memory */
} builder;

#define OUT_OF_MEMORY ""

static const char *const SPACES = "iteration-spaces-differ";
static const char *const RESHAPE = "reshape-splits-dims";

static unsigned dim_axes(const rp__axis_map *m, unsigned d) { return m->begin[d + 1] - m->begin[d]; }

static bool has_axis(const rp__axis_map *m, unsigned axis) {
    for (unsigned k = 0; k < m->begin[m->ndim]; k++) {
        if (m->axis[k] == axis) return true;
    }
    return false;
}

static void each_map(rp__group_space *s, void (*visit)(rp__axis_map *m, unsigned a, unsigned b), unsigned a,
                     unsigned b) {
    for (uint32_t k = 0; k < s->n_values; k++) visit(&s->values[k].map, a, b);
    for (uint32_t k = 0; k < s->n_nodes; k++) visit(&s->node_map[k], a, b);
}

/* Axis a becomes (a, b): b is inner. */
static void split_in_map(rp__axis_map *m, unsigned a, unsigned b) {
    unsigned n = m->begin[m->ndim];
    for (unsigned k = 0; k < n; k++) {
        if (m->axis[k] != a) continue;
        memmove(&m->axis[k + 2], &m->axis[k + 1], (n - k - 1) * sizeof m->axis[0]);
        m->axis[k + 1] = (uint8_t)b;
        for (unsigned d = 0; d <= m->ndim; d++) {
            if (m->begin[d] > k) m->begin[d]++;
        }
        return;
    }
}

static void rename_in_map(rp__axis_map *m, unsigned from, unsigned to) {
    for (unsigned k = 0; k < m->begin[m->ndim]; k++) {
        if (m->axis[k] == from) m->axis[k] = (uint8_t)to;
    }
}

static bool new_axis(builder *b, int64_t size, unsigned *out) {
    if (b->s->n_axes == RP__AXES) {
        b->why = SPACES;
        return false;
    }
    *out = b->s->n_axes;
    b->s->size[b->s->n_axes++] = size;
    return true;
}

static bool split_axis(builder *b, unsigned a, int64_t inner_size) {
    unsigned fresh;
    if (!new_axis(b, inner_size, &fresh)) return false;
    b->s->size[a] /= inner_size;
    each_map(b->s, split_in_map, a, fresh);
    return true;
}

/* The two axes are one loop from now on. */
static bool join_axes(builder *b, unsigned a, unsigned c) {
    if (a == c) return true;
    rp__group_space *s = b->s;
    for (uint32_t k = 0; k < s->n_values + s->n_nodes; k++) {
        const rp__axis_map *m = k < s->n_values ? &s->values[k].map : &s->node_map[k - s->n_values];
        if (has_axis(m, a) && has_axis(m, c)) { /* a diagonal */
            b->why = SPACES;
            return false;
        }
    }
    unsigned keep = a < c ? a : c, drop = a < c ? c : a, last = s->n_axes - 1u;
    each_map(s, rename_in_map, drop, keep);
    if (drop != last) {
        each_map(s, rename_in_map, last, drop);
        s->size[drop] = s->size[last];
    }
    s->n_axes--;
    return true;
}

/* Dims d of map x and e of map y run alike: their axes, innermost first, are split and joined until they are the same.
   Maps are named by their place because splitting moves axes. */
static rp__axis_map *map_at(rp__group_space *s, int place) {
    return place >= 0 ? &s->values[place].map : &s->node_map[-1 - place];
}

static bool unify(builder *b, int x, unsigned d, int y, unsigned e) {
    for (unsigned step = 0;; step++) {
        const rp__axis_map *m = map_at(b->s, x), *n = map_at(b->s, y);
        unsigned left = dim_axes(m, d), right = dim_axes(n, e);
        if (left <= step || right <= step) {
            if (left == right) return true;
            b->why = SPACES;
            return false;
        }
        unsigned p = m->axis[m->begin[d + 1] - 1 - step], q = n->axis[n->begin[e + 1] - 1 - step];
        int64_t sp = b->s->size[p], sq = b->s->size[q];
        if (p == q) continue;
        if (sp == sq) {
            if (!join_axes(b, p, q)) return false;
        } else if (sp > sq && sp % sq == 0) {
            if (!split_axis(b, p, sq)) return false;
            step--; /* again, now with equal sizes */
        } else if (sq > sp && sq % sp == 0) {
            if (!split_axis(b, q, sp)) return false;
            step--;
        } else {
            b->why = RESHAPE;
            return false;
        }
    }
}

static int find_value(const rp__group_space *s, rp__ir_value v) {
    for (uint32_t k = 0; k < s->n_values; k++) {
        if (s->values[k].value == v) return (int)k;
    }
    return -1;
}

const rp__axis_map *rp__group_map(const rp__group_space *s, rp__ir_value v) {
    int k = find_value(s, v);
    return k < 0 ? NULL : &s->values[k].map;
}

static bool add_value(builder *b, rp__ir_value v, const rp__axis_map *map) {
    if (!RP__GROW(&b->s->values, &b->s->values_capacity, b->s->n_values + 1u)) {
        b->why = OUT_OF_MEMORY;
        return false;
    }
    b->s->values[b->s->n_values++] = (rp__mapped_value){v, *map};
    return true;
}

static void add_dim(rp__axis_map *m, const rp__axis_map *from, unsigned d) {
    unsigned end = m->begin[m->ndim];
    for (unsigned k = from->begin[d]; k < from->begin[d + 1]; k++) m->axis[end++] = from->axis[k];
    m->ndim++;
    m->begin[m->ndim] = (uint8_t)end;
}
/* The last dim of m runs along dim d of `from` too. */
static void extend_dim(rp__axis_map *m, const rp__axis_map *from, unsigned d) {
    for (unsigned k = from->begin[d]; k < from->begin[d + 1]; k++) m->axis[m->begin[m->ndim]++] = from->axis[k];
}
static void add_empty_dim(rp__axis_map *m) {
    m->begin[m->ndim + 1] = m->begin[m->ndim];
    m->ndim++;
}

/* The map of a reshape: the axes of all dims in a row, cut anew. Axes are split where a cut falls inside one. */
static bool reshape_map(builder *b, int from_place, const rp__meta *from, const rp__meta *to, rp__axis_map *out) {
    /* a broadcast dim has no axes of its own: the order of elements is not that of the axes */
    const rp__axis_map *m = map_at(b->s, from_place);
    for (unsigned d = 0; d < from->ndim; d++) {
        if (from->size[d] != 1 && dim_axes(m, d) == 0) {
            b->why = RESHAPE;
            return false;
        }
    }
    uint8_t first[RP_MAX_DIMS + 1];
    unsigned at = m->begin[m->ndim];
    for (unsigned d = to->ndim; d-- > 0;) {
        int64_t want = to->size[d];
        first[d + 1] = (uint8_t)at;
        while (want > 1) {
            m = map_at(b->s, from_place);
            if (at == 0) {
                b->why = RESHAPE;
                return false;
            }
            unsigned axis = m->axis[at - 1];
            int64_t size = b->s->size[axis];
            if (want % size == 0) {
                want /= size;
                at--;
            } else if (size % want == 0) {
                if (!split_axis(b, axis, want)) return false;
                for (unsigned k = d + 1; k <= to->ndim; k++) first[k]++; /* one more axis before those cuts */
                want = 1; /* the inner half sits at `at` now; the outer half stays for the next dim */
                /* at - 1 is the outer half, at the inner one: the cut is between them */
            } else {
                b->why = RESHAPE;
                return false;
            }
        }
        first[d] = (uint8_t)at;
    }
    m = map_at(b->s, from_place);
    memset(out, 0, sizeof *out);
    out->ndim = to->ndim;
    for (unsigned d = 0; d < to->ndim; d++) {
        unsigned end = out->begin[d];
        for (unsigned k = first[d]; k < first[d + 1]; k++) out->axis[end++] = m->axis[k];
        out->begin[d + 1] = (uint8_t)end;
    }
    return true;
}

/* The map of a view's result from that of its operand (at `place`). */
static bool view_map(builder *b, const rp__ir_node *n, int place, rp__axis_map *out) {
    const rp_ir *ir = b->f->ir;
    const rp__meta *from = &ir->values[n->in[0]].meta, *to = &ir->values[n->out[0]].meta;
    const rp__axis_map *m = map_at(b->s, place);
    rp__view map;
    memset(out, 0, sizeof *out);
    if (rp__ir_view_map(ir, n, n->in[0], &map) != RP_OK || rp__view_is_part(&map, from->size, from->ndim)) {
        b->why = "view-of-part";
        return false;
    }
    for (unsigned d = 0; !map.folds && d < to->ndim; d++) {
        if (map.from[d][0] < 0)
            add_empty_dim(out);
        else
            add_dim(out, m, (unsigned)map.from[d][0]);
    }
    /* Dims of size 1 come and go: where the others stay, broadcast dims may stay too. */
    unsigned i = 0, j = 0;
    while (map.folds && (i < from->ndim || j < to->ndim)) {
        if (j < to->ndim && to->size[j] == 1) {
            add_empty_dim(out);
            j++;
        } else if (i < from->ndim && from->size[i] == 1) {
            i++;
        } else if (i < from->ndim && j < to->ndim && from->size[i] == to->size[j]) {
            add_dim(out, m, i);
            i++, j++;
        } else {
            return reshape_map(b, place, from, to, out);
        }
    }
    return true;
}

/* The place of v's map: known, or derived through views from a value that is. -1: nothing is known (why NULL), or the views
   cannot be expressed (why set). */
static int place_of(builder *b, rp__ir_value v) {
    const rp_ir *ir = b->f->ir;
    rp__ir_value path[64];
    unsigned n = 0;
    int place = find_value(b->s, v);
    while (place < 0) {
        const rp__ir_node *p = rp__ir_producer(ir, v);
        if (!rp__ir_is_view(p) || n == 64) return -1;
        path[n++] = v;
        v = p->in[0];
        place = find_value(b->s, v);
    }
    while (n > 0) {
        rp__axis_map map;
        rp__ir_value child = path[--n];
        if (!view_map(b, rp__ir_producer(ir, child), place, &map) || !add_value(b, child, &map)) return -1;
        place = (int)b->s->n_values - 1;
    }
    return place;
}

static bool in_members(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__ir_value v) {
    uint32_t node = f->ir->values[rp__ir_root(f->ir, v)].node;
    if (node == RP__IR_NONE || f->node_of[node] == RP__IR_NONE) return false;
    for (uint32_t k = 0; k < n; k++) {
        if (members[k] == f->node_of[node]) return true;
    }
    return false;
}

/* The dim of the space that dim 0 of operand k runs along. */
static unsigned lead_of(const rp__fuse_node *fn, uint32_t k, const rp__meta *meta) {
    return fn->front_operands >> k & 1u ? 0 : (unsigned)(fn->ndim - meta->ndim);
}

/* An axis for dim d of the node at `self`, which no operand ties: that of the same dim of another node, lest two dims of one
   size are taken for each other; else any of that size that the node does not use yet. RP__AXES: there is none.
   not: a mask of axes that it cannot be. */
static unsigned loose_axis(const rp__group_space *s, int self, unsigned d, int64_t size, uint32_t not ) {
    const rp__axis_map *mine = &s->node_map[-1 - self];
    for (int k = -1 - self; k-- > 0;) {
        const rp__axis_map *m = &s->node_map[k];
        if (m->ndim != mine->ndim || dim_axes(m, d) != 1) continue;
        unsigned a = m->axis[m->begin[d]];
        if (s->size[a] == size && !has_axis(mine, a) && !(not >> a & 1u)) return a;
    }
    for (unsigned a = s->n_axes; a-- > 0;) {
        if (s->size[a] == size && !has_axis(mine, a) && !(not >> a & 1u)) return a;
    }
    return RP__AXES;
}

/* The axes that products before member n add up over: nothing else runs along them. */
static uint32_t summed_axes(const builder *b, const uint32_t *members, uint32_t n) {
    uint32_t mask = 0;
    for (uint32_t k = 0; k < n; k++) {
        const rp__fuse_node *fn = &b->f->nodes[members[k]];
        const rp__axis_map *m = &b->s->node_map[k];
        for (unsigned d = 0; d < m->ndim && fn->kind == RP__FUSE_PRODUCT; d++) {
            for (unsigned a = m->begin[d]; a < m->begin[d + 1] && (fn->inner >> d & 1u); a++) mask |= 1u << m->axis[a];
        }
    }
    return mask;
}

static bool map_node(builder *b, const uint32_t *members, uint32_t n_members, uint32_t member) {
    const rp__fuse_node *fn = &b->f->nodes[members[member]];
    const rp__ir_node *n = &b->f->ir->nodes[fn->node];
    const rp_ir *ir = b->f->ir;
    rp__group_space *s = b->s;
    if (!RP__GROW(&s->node_map, &s->node_capacity, s->n_nodes + 1u)) {
        b->why = OUT_OF_MEMORY;
        return false;
    }
    rp__axis_map *map = &s->node_map[s->n_nodes++];
    int self = -(int)s->n_nodes; /* node_map[n_nodes - 1] */
    memset(map, 0, sizeof *map);
    map->ndim = fn->ndim;
    bool assigned[RP_MAX_DIMS];
    for (unsigned d = 0; d < fn->ndim; d++) assigned[d] = fn->size[d] == 1;
    uint32_t first = fn->kind == RP__FUSE_COPY ? 1 : 0; /* the target of an ASSIGN is written */
    for (uint32_t k = first; k < n->n_in; k++) {
        if (n->in[k] == RP__IR_NONE) continue;
        bool inside = in_members(b->f, members, n_members, n->in[k]);
        const rp__fuse_factor *factor = inside ? rp__fuse_factor_of(fn, k) : NULL;
        if (inside && (fn->memory_operands >> k & 1u) && (!factor || factor->most == 0)) {
            b->why = factor ? "factor-would-repeat" : "gathered-operand";
            return false;
        }
        if (!(fn->plain_operands >> k & 1u) && !factor) continue;
        int place = place_of(b, n->in[k]);
        if (place < 0) {
            if (inside || (b->why && !*b->why)) {
                if (!b->why) b->why = SPACES;
                return false;
            }
            b->why = NULL; /* memory is read through its strides: no map is needed beforehand */
            continue;
        }
        const rp__meta *meta = &ir->values[n->in[k]].meta;
        if (meta->ndim > fn->ndim) {
            b->why = SPACES;
            return false;
        }
        unsigned lead = lead_of(fn, k, meta);
        for (unsigned j = 0; j < meta->ndim; j++) {
            unsigned d = factor ? factor->along[j] : j + lead;
            const rp__axis_map *operand = map_at(s, place);
            if (meta->size[j] == 1 || dim_axes(operand, j) == 0) continue;
            if (d >= fn->ndim || meta->size[j] != fn->size[d]) {
                b->why = SPACES;
                return false;
            }
            if (assigned[d]) {
                if (!unify(b, self, d, place, j)) return false;
                continue;
            }
            rp__axis_map *mine = map_at(s, self);
            for (unsigned a = operand->begin[j]; a < operand->begin[j + 1]; a++) {
                if (!has_axis(mine, operand->axis[a])) continue;
                b->why = SPACES; /* one loop for two dims: a diagonal */
                return false;
            }
            unsigned count = dim_axes(operand, j), at = mine->begin[d], end = mine->begin[mine->ndim];
            memmove(&mine->axis[at + count], &mine->axis[at], end - at);
            memcpy(&mine->axis[at], &operand->axis[operand->begin[j]], count);
            for (unsigned e = d + 1; e <= mine->ndim; e++) mine->begin[e] = (uint8_t)(mine->begin[e] + count);
            assigned[d] = true;
        }
    }
    for (unsigned d = fn->ndim; d-- > 0;) {
        if (assigned[d]) continue;
        /* Those of a product are tied by what follows it. */
        unsigned axis = fn->kind == RP__FUSE_PRODUCT
                            ? RP__AXES
                            : loose_axis(s, self, d, fn->size[d], summed_axes(b, members, member));
        if (axis == RP__AXES && !new_axis(b, fn->size[d], &axis)) return false;
        rp__axis_map *mine = map_at(s, self);
        unsigned at = mine->begin[d], end = mine->begin[mine->ndim];
        memmove(&mine->axis[at + 1], &mine->axis[at], end - at);
        mine->axis[at] = (uint8_t)axis;
        for (unsigned e = d + 1; e <= mine->ndim; e++) mine->begin[e]++;
    }
    /* Operands from memory are walked as the node walks: later readers of the same value should agree. */
    for (uint32_t k = first; k < n->n_in; k++) {
        if (n->in[k] == RP__IR_NONE || !(fn->plain_operands >> k & 1u) || find_value(s, n->in[k]) >= 0) continue;
        const rp__meta *meta = &ir->values[n->in[k]].meta;
        if (meta->ndim > fn->ndim) {
            b->why = SPACES;
            return false;
        }
        rp__axis_map operand;
        memset(&operand, 0, sizeof operand);
        for (unsigned j = 0; j < meta->ndim; j++) {
            if (meta->size[j] == 1) {
                add_empty_dim(&operand);
            } else {
                add_dim(&operand, map_at(s, self), j + lead_of(fn, k, meta));
            }
        }
        if (!add_value(b, n->in[k], &operand)) return false;
    }
    for (uint32_t k = 0; k < n->n_out && n->kind == RP__IR_OP; k++) {
        const rp__meta *meta = &ir->values[n->out[k]].meta;
        rp__axis_map out;
        memset(&out, 0, sizeof out);
        for (unsigned d = 0, j = 0; d < fn->ndim; d++) {
            bool inner = fn->inner >> d & 1u;
            if (meta->ndim != fn->ndim && inner) continue; /* reduced away */
            const bool joined = fn->joined >> d & 1u;
            const rp_dim size = fn->size[d] * (joined ? fn->size[d + 1] : 1);
            if (j >= meta->ndim || (meta->size[j] != size && meta->size[j] != 1)) {
                b->why = SPACES;
                return false;
            }
            if (joined) {
                add_dim(&out, map_at(s, self), d++);
                extend_dim(&out, map_at(s, self), d);
            } else if (meta->size[j] == 1) {
                add_empty_dim(&out);
            } else {
                add_dim(&out, map_at(s, self), d);
            }
            j++;
        }
        if (out.ndim != meta->ndim) {
            b->why = SPACES;
            return false;
        }
        if (!add_value(b, n->out[k], &out)) return false;
    }
    return true;
}

static uint32_t axes_of(const rp__axis_map *m) {
    uint32_t mask = 0;
    for (unsigned k = 0; k < m->begin[m->ndim]; k++) mask |= 1u << m->axis[k];
    return mask;
}

bool rp__fuse_stored(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__ir_value v) {
    if (f->result_storage[f->ir->values[v].storage] || f->n_readers[v] > n) return true;
    for (uint32_t k = 0; k < f->n_readers[v]; k++) {
        bool inside = false;
        for (uint32_t m = 0; m < n && !inside; m++) inside = members[m] == f->readers[v][k];
        if (!inside) return true;
    }
    return false;
}

/* A reduction, also one over dims of size 1 or a 0-d value: its row must not become longer by an axis of somebody else. */
static bool reduces(const rp__fusion *f, const rp__fuse_node *fn) {
    const rp__ir_node *n = &f->ir->nodes[fn->node];
    return fn->inner != 0 || (n->kind == RP__IR_OP && (n->op->lowering == RP__ROWS || n->op->lowering == RP__PRODUCT));
}

/* Limits of rows beside columns. A column is one chunk of a reduction; its lanes pay where there are many rows for each; a row is
   worth vectors, and its sums stay in a second-level cache. */
enum { COLUMN_MOST = RP__CHUNK, ROW_MOST = RP__CHUNK };
int64_t rp__column_least = 256, rp__column_row_least = 32;

typedef struct sequence { /* of axes */
    uint8_t axis[RP__AXES];
    unsigned n;
} sequence;

static sequence reduced_by(const builder *b, const rp__fuse_node *fn, uint32_t member) {
    const rp__axis_map *m = &b->s->node_map[member];
    sequence q = {.n = 0};
    for (unsigned d = 0; d < fn->ndim; d++) {
        if (!(fn->inner >> d & 1u)) continue;
        for (unsigned a = m->begin[d]; a < m->begin[d + 1]; a++) q.axis[q.n++] = m->axis[a];
    }
    return q;
}
static bool same_sequence(const sequence *x, const sequence *y) {
    return x->n == y->n && memcmp(x->axis, y->axis, x->n) == 0;
}
static uint32_t mask_of(const sequence *q) {
    uint32_t mask = 0;
    for (unsigned k = 0; k < q->n; k++) mask |= 1u << q->axis[k];
    return mask;
}
static int64_t extent_of(const rp__group_space *s, const sequence *q) {
    int64_t n = 1;
    for (unsigned k = 0; k < q->n; k++) n *= s->size[q->axis[k]];
    return n;
}

/* Does memory run along one of these axes, for all elements? */
static bool lies_along(const builder *b, uint32_t axes, uint32_t all) {
    const rp__group_space *s = b->s;
    for (uint32_t k = 0; k < s->n_values; k++) {
        const rp__axis_map *m = &s->values[k].map;
        const rp__ir_value_info *v = &b->f->ir->values[s->values[k].value];
        if (axes_of(m) != all) continue;
        for (unsigned d = 0; d < m->ndim; d++) {
            if (dim_axes(m, d) > 0 && v->stride[d] == 1) return axes >> m->axis[m->begin[d + 1] - 1] & 1u;
        }
    }
    return false;
}

/* The member that makes v; members: there is none. */
static uint32_t maker(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__ir_value v) {
    uint32_t node = f->ir->values[rp__ir_root(f->ir, v)].node, k = 0;
    if (node == RP__IR_NONE || f->node_of[node] == RP__IR_NONE) return n;
    while (k < n && members[k] != f->node_of[node]) k++;
    return k;
}

/* Marks what reduces by `columns` instead of `rows`, and what is behind that. Why not: NULL. */
static const char *find_columns(builder *b, const uint32_t *members, uint32_t n, const sequence *rows,
                                const sequence *columns) {
    const rp__fusion *f = b->f;
    rp__group_space *s = b->s;
    const uint32_t all = (1u << s->n_axes) - 1u, inner = mask_of(rows), outer = mask_of(columns);
    const char *const why = "reduction-dims-differ";
    if (f->on_gpu || s->reversed || n > 64 || (inner & outer) || (inner | outer) != all ||
        extent_of(s, columns) < rp__column_least || extent_of(s, columns) > COLUMN_MOST ||
        extent_of(s, rows) < rp__column_row_least || extent_of(s, rows) > ROW_MOST || !lies_along(b, inner, all)) {
        return why;
    }
    s->columns = s->behind = 0;
    for (uint32_t k = 0; k < n; k++) {
        const rp__fuse_node *fn = &f->nodes[members[k]];
        const rp__ir_node *node = &f->ir->nodes[fn->node];
        if (fn->kind != RP__FUSE_LOOP || fn->n_draws || fn->n_windows || fn->opaque || fn->memory_operands) return why;
        bool after = false, beside = false;
        for (uint32_t i = 0; i < node->n_in; i++) {
            uint32_t from = node->in[i] == RP__IR_NONE ? n : maker(f, members, n, node->in[i]);
            if (from == n) continue;
            bool column = (s->columns | s->behind) >> from & 1u;
            after = after || column;
            beside = beside || !column;
        }
        if (reduces(b->f, fn)) {
            sequence q = reduced_by(b, fn, k);
            if (after) return why;
            if (same_sequence(&q, rows)) continue;
            if (!same_sequence(&q, columns) || !fn->sums) return why;
            s->columns |= UINT64_C(1) << k;
        } else if (after) {
            if (beside || (axes_of(&s->node_map[k]) & outer)) return why;
            s->behind |= UINT64_C(1) << k;
        }
    }
    return NULL;
}

/* Which axes are inner: those that members reduce over; without reductions those that a stored value lacks. */
static bool find_inner(builder *b, const uint32_t *members, uint32_t n) {
    rp__group_space *s = b->s;
    const rp_ir *ir = b->f->ir;
    uint32_t all = (1u << s->n_axes) - 1u, inner = 0;
    sequence found[2];
    unsigned n_found = 0;
    for (uint32_t k = 0; k < n; k++) {
        const rp__fuse_node *fn = &b->f->nodes[members[k]];
        if (!reduces(b->f, fn)) continue;
        sequence mine = reduced_by(b, fn, k);
        bool known = false;
        for (unsigned i = 0; i < n_found; i++) known = known || same_sequence(&found[i], &mine);
        if (n_found > 0 && s->reversed != fn->reversed) {
            b->why = known ? "walks-the-other-way" : "reduction-dims-differ";
            return false;
        }
        s->reversed = fn->reversed;
        if (known) continue;
        if (n_found == 2) {
            b->why = "reduction-dims-differ";
            return false;
        }
        found[n_found++] = mine;
    }
    if (n_found == 2) {
        if (find_columns(b, members, n, &found[0], &found[1]) != NULL) {
            b->why = find_columns(b, members, n, &found[1], &found[0]);
            if (b->why) return false;
            sequence first = found[0];
            found[0] = found[1];
            found[1] = first;
        }
    }
    sequence rows = {.n = 0};
    if (n_found > 0) rows = found[0];
    inner = mask_of(&rows);
    for (uint32_t k = 0; k < n; k++) {
        const rp__fuse_node *fn = &b->f->nodes[members[k]];
        const rp__ir_node *node = &ir->nodes[fn->node];
        uint32_t mine = axes_of(&s->node_map[k]);
        if (reduces(b->f, fn) && mine != all) {
            b->why = "reduction-would-repeat";
            return false;
        }
        const bool column = n_found == 2 && ((s->columns | s->behind) >> k & 1u);
        uint32_t n_out = node->kind == RP__IR_OP ? node->n_out : 0;
        for (uint32_t r = 0; r <= n_out; r++) {
            uint32_t axes;
            if (r < n_out) {
                if (!rp__fuse_stored(b->f, members, n, node->out[r])) continue;
                axes = axes_of(rp__group_map(s, node->out[r]));
            } else {
                if (fn->kind != RP__FUSE_COPY && !fn->opaque) continue;
                axes = mine;
            }
            if (column ? axes == inner : axes == all) continue;
            if (n_found == 0 && inner == 0) inner = all & ~axes;
            if (column || axes != (all & ~inner)) {
                b->why = "store-would-repeat";
                return false;
            }
        }
    }
    if (n_found == 0) {
        for (unsigned a = 0; a < s->n_axes; a++) {
            if (inner >> a & 1u) rows.axis[rows.n++] = (uint8_t)a;
        }
    }
    unsigned at = 0;
    for (unsigned a = 0; a < s->n_axes; a++) {
        s->is_inner[a] = inner >> a & 1u;
        if (!s->is_inner[a]) s->order[at++] = (uint8_t)a;
    }
    if (n_found == 2) memcpy(s->order, found[1].axis, found[1].n); /* lanes go by the order of what is summed */
    for (unsigned k = 0; k < rows.n; k++) s->order[at++] = rows.axis[k];
    s->n_inner = (uint8_t)rows.n;
    return true;
}

const char *rp__group_space_make(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__group_space *out) {
    memset(out, 0, sizeof *out);
    builder b = {.f = f, .s = out};
    bool fits = true;
    for (uint32_t k = 0; k < n && fits; k++) fits = map_node(&b, members, n, k);
    if (fits) fits = find_inner(&b, members, n);
    if (fits) return NULL;
    rp__group_space_free(out);
    return b.why ? b.why : OUT_OF_MEMORY;
}

void rp__group_space_free(rp__group_space *s) {
    rp__free(s->values);
    rp__free(s->node_map);
    memset(s, 0, sizeof *s);
}
