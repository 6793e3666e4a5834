/* The CUDA C kernel of short rows (emit_parts.h): a thread has `vector` whole rows that lie side by side, and walks the elements of each.
 * Windows of pools are such rows. Extents and what windows move by are constants of the text, so that every loop is unrolled: what
 * neighbouring elements and rows have in common is computed once, elements that cannot be inside vanish, and all loads are in flight
 * together. What each thread adds up in the order of emit.h it adds up alone; lanes without an element hold the identity there, which
 * changes nothing, and are left out here. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

static unsigned elements_of(const rp__cuda_class *c) {
    unsigned r = 1;
    for (unsigned d = 0; d < c->n_inner; d++) r *= c->extent[d];
    return r;
}

static bool is_whole(const rp__emitter *e, unsigned k) {
    return e->level[k] == RP__LEVEL_ELEMENT && rp__emit_in_vectors(e, &e->dag->nodes[k]);
}

/* Row values of the first phase that all rows of a thread share. */
static void find_still(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        const rp__val operands[3] = {n->a, n->b, n->c};
        bool still = e->level[k] == RP__LEVEL_ROW && n->phase == 0 && n->op != RP__CONST && n->op != RP__REDUCE;
        for (int i = 0; i < 3 && still; i++)
            still = operands[i] == RP__NO_VAL || e->level[operands[i]] == RP__LEVEL_UNIFORM || e->still[operands[i]];
        if (still && (n->op == RP__LOAD || n->op == RP__IOTA || n->op == RP__INSIDE))
            still = e->c->staged_unit >> n->access & 1;
        e->still[k] = still;
    }
}

/* Indices b<dim> of the thread's first row. The last one is seen to be a multiple of the vector: what a window divides by often is one
 * too, and the compiler then knows which elements it leaves. */
static void add_first_row(const rp__emitter *e) {
    const rp__cuda_class *c = e->c;
    const char *u = c->wide ? "rp_u64" : "rp_u32", *index = rp__emit_index_type(e);
    rp__text_add(e->out,
                 "    %s g = (%s)blockIdx.x * %u + (%s)threadIdx.x;\n    if (g >= (%s)rows / %u) return;\n"
                 "    const int live = 1; (void)live;\n",
                 u, u, RP__CUDA_BLOCK, u, u, c->vector);
    for (unsigned d = c->n_outer; d-- > 0;) {
        const unsigned each = d + 1u == c->n_outer ? c->vector : 1;
        const uint32_t w = e->words.extent + d;
        if (d == 0)
            rp__text_add(e->out, "    const %s b0 = (%s)g * %u;\n", index, index, each);
        else
            rp__text_add(e->out, "    const %s b%u = (%s)(g %% ((%s)p.w[%u] / %u)) * %u;\n    g /= (%s)p.w[%u] / %u;\n",
                         index, d, index, u, w, each, each, u, w, each);
    }
}

/* What windows divide by along outer dim d, if it is one small number for all of them; else 1. Place d<dim> is that times h<dim>, and
 * m<dim>: what is left is a constant of each copy of the text, and so is whether an element is inside. Of the last dim the places of a
 * thread are such copies, where the vector is a multiple. */
unsigned rp__emit_divided(const rp__emitter *e, unsigned d) {
    enum { MOST = 4 };
    int by = 1;
    for (unsigned k = 0; k < e->dag->n_windows; k++) {
        const rp__cuda_window *x = &e->c->windows[k];
        if (!x->known || x->factor == 0 || x->outer != d || x->divisor == 1) continue;
        if (x->divisor > MOST || (by > 1 && x->divisor != by)) return 1;
        by = x->divisor;
    }
    return d + 1u == e->c->n_outer && e->c->vector % (unsigned)by ? 1 : (unsigned)by;
}

/* Opens a copy of the text for each m<dim>, of which a thread runs one. */
static unsigned add_copies(const rp__emitter *e) {
    unsigned opened = 0;
    for (unsigned d = 0; d < e->c->n_outer; d++) {
        const unsigned by = rp__emit_divided(e, d);
        if (by == 1) continue;
        rp__text_add(e->out, "    const %s h%u = b%u / %u;\n", rp__emit_index_type(e), d, d, by);
        if (d + 1u == e->c->n_outer) continue;
        rp__text_add(
            e->out,
            "    _Pragma(\"unroll\") for (int m%u = 0; m%u < %u; m%u++) { if (b%u - h%u * %u != m%u) continue;\n", d, d,
            by, d, d, d, by, d);
        opened++;
    }
    return opened;
}

/* Indices d<dim> and offsets of row j of the thread. */
static void add_row_place(const rp__emitter *e, const char *j) {
    const char *index = rp__emit_index_type(e);
    for (unsigned d = 0; d < e->c->n_outer; d++) {
        const bool last = d + 1u == e->c->n_outer;
        rp__text_add(e->out, "    const %s d%u = b%u%s%s;\n", index, d, d, last ? " + " : "", last ? j : "");
        if (last && rp__emit_divided(e, d) > 1)
            rp__text_add(e->out, "    const int m%u = %s %% %u; const %s h%u_ = h%u + %s / %u;\n", d, j,
                         rp__emit_divided(e, d), index, d, d, j, rp__emit_divided(e, d));
        else if (rp__emit_divided(e, d) > 1)
            rp__text_add(e->out, "    const %s h%u_ = h%u;\n", index, d, d);
    }
    rp__emit_access_offsets(e, "d", 0, e->c->n_outer);
}

/* Opens a loop over elements e = i, with their inner indices. */
static void add_elements(const rp__emitter *e) {
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    unsigned step = elements_of(c);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int e = 0; e < %u; e++) {\n        const %s i = e; (void)i;\n",
                 step, index);
    for (unsigned d = 0; d < c->n_inner && c->n_inner > 1; d++) {
        step /= c->extent[d];
        rp__text_add(e->out, "        const %s i%u = i / %u %% %u; (void)i%u;\n", index, d, step, c->extent[d], d);
    }
}

/* The element values that say where loads of whole vectors lie. They are none of a row's own. */
static void add_computed_places(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) e->needed[k] = false;
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_whole(e, k) && e->dag->nodes[k].a != RP__NO_VAL) e->needed[e->dag->nodes[k].a] = true;
    for (unsigned k = e->dag->n_nodes; k-- > 0;) {
        const rp__node *n = &e->dag->nodes[k];
        const rp__val operands[3] = {n->a, n->b, n->c};
        for (int i = 0; i < 3 && e->needed[k]; i++)
            if (operands[i] != RP__NO_VAL) e->needed[operands[i]] = true;
    }
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!e->needed[k] || e->level[k] != RP__LEVEL_ELEMENT) continue;
        const bool kept = e->array[k];
        e->array[k] = false;
        rp__emit_node(e, (rp__val)k, NULL);
        e->array[k] = kept;
    }
}

/* l<node>: the vectors of all elements. */
static void add_loads(const rp__emitter *e) {
    const unsigned vector = e->c->vector;
    bool any = false;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!is_whole(e, k)) continue;
        const unsigned dtype = e->dag->accesses[e->dag->nodes[k].access].dtype;
        rp__text_add(e->out, "    %s l%u[%u];\n", rp__emit_word_type(dtype), k,
                     elements_of(e->c) * rp__emit_words(dtype, vector));
        any = true;
    }
    if (!any) return;
    rp__text_puts(e->out, "    {\n");
    add_row_place(e, "0");
    add_elements(e);
    add_computed_places(e);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!is_whole(e, k)) continue;
        const rp__node *n = &e->dag->nodes[k];
        const unsigned dtype = e->dag->accesses[n->access].dtype, words = rp__emit_words(dtype, vector);
        const char *type = rp__emit_word_type(dtype);
        char place[64];
        rp__text_puts(e->out, "        { ");
        rp__emit_place(e, n->access);
        rp__text_add(e->out,
                     "rp_vec_%s_%u x; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x.e[j] = 0;\n"
                     "        if (here) x = *(const rp_vec_%s_%u *)(a%u + f%s%s);\n"
                     "        _Pragma(\"unroll\") for (int j = 0; j < %u; j++) l%u[e * %u + j] = x.e[j]; }\n",
                     type, words, words, type, words, n->access, n->a != RP__NO_VAL ? " + " : "",
                     n->a != RP__NO_VAL ? rp__emit_value(e, n->a, place) : "", words, k, words);
    }
    rp__text_puts(e->out, "    }\n    }\n");
}

/* What of a row is kept for its phases: v<node>[elements]; those of whole vectors are all there. */
static void add_row_arrays(const rp__emitter *e) {
    const unsigned r = elements_of(e->c);
    char at[32];
    (void)snprintf(at, sizeof at, "(e * %u + j)", e->c->vector);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (e->level[k] != RP__LEVEL_ELEMENT || e->dag->nodes[k].op == RP__CONST) continue;
        if (is_whole(e, k)) e->array[k] = true;
        if (!e->array[k]) continue;
        rp__text_add(e->out, "    %s v%u[%u];\n", rp__emit_value_type(e, (rp__val)k), k, r);
        if (!is_whole(e, k)) continue;
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int e = 0; e < %u; e++) v%u[e] = ", r, k);
        rp__emit_loaded(e, k, at);
        rp__text_puts(e->out, ";\n");
    }
}

/* c<node>[a] takes in c<node>[b], if there is such a lane. */
static void add_pair(const rp__emitter *e, unsigned k, unsigned a, unsigned b, unsigned r) {
    char to[32], from[32];
    if (b >= r) return;
    (void)snprintf(to, sizeof to, "c%u[%u]", k, a);
    (void)snprintf(from, sizeof from, "c%u[%u]", k, b);
    rp__text_add(e->out, "    %s = ", to);
    rp__emit_combine(e, &e->dag->nodes[k], to, from);
    rp__text_puts(e->out, ";\n");
}

/* r<node>: the tree of emit.h over the lanes of a row, one element each. */
static void add_tree(const rp__emitter *e, unsigned k) {
    const unsigned r = elements_of(e->c), groups = (unsigned)rp__cuda_row_threads(r);
    for (unsigned lane = 0; lane < r; lane += 4) {
        add_pair(e, k, lane, lane + 2, r);
        add_pair(e, k, lane + 1, lane + 3, r);
        add_pair(e, k, lane, lane + 1, r);
    }
    for (unsigned half = groups / 2; half > 0; half /= 2)
        for (unsigned g = 0; g < half; g++) add_pair(e, k, 4 * g, 4 * (g + half), r);
    rp__text_add(e->out, "    const %s r%u = c%u[0];\n", rp__emit_type(e->dag->nodes[k].dtype), k, k);
}

static void add_phase(const rp__emitter *e, unsigned phase) {
    const rp__dag *d = e->dag;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        if (e->level[k] == RP__LEVEL_ROW && n->phase == phase && !e->still[k]) rp__emit_node(e, (rp__val)k, NULL);
    }
    if (phase + 1u == d->n_phases) return;
    rp__emit_accumulators(e, phase, elements_of(e->c));
    add_elements(e);
    rp__emit_element_nodes(e, phase, NULL);
    rp__emit_accumulation(e, phase, "e", NULL);
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) add_tree(e, k);
}

void rp__emit_short(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const unsigned vector = e->c->vector;
    if (vector > 1) rp__emit_vector_types(e, vector);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    rp__emit_rows_start(e, false);
    add_first_row(e);
    find_still(e);
    const unsigned opened = add_copies(e);
    rp__text_puts(e->out, "    {\n");
    add_row_place(e, "0");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (e->still[k]) rp__emit_node(e, (rp__val)k, NULL);
    add_loads(e);
    for (unsigned k = 0; k < d->n_stores; k++)
        if (rp__emit_vector_store(e, &d->stores[k])) rp__emit_gathered(e, &d->stores[k], k, vector);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", vector);
    add_row_place(e, "j");
    add_row_arrays(e);
    for (unsigned phase = 0; phase < d->n_phases; phase++) add_phase(e, phase);
    rp__emit_lane_stores(e, true, NULL);
    rp__text_puts(e->out, "    }\n");
    rp__emit_vector_stores(e, true, vector, "1", "a@ + o@");
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < opened; k++) rp__text_puts(e->out, "    }\n");
    rp__text_puts(e->out, "}\n");
}
