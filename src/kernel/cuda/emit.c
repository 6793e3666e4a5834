/* The CUDA C emitter: one kernel of text from a DAG and a class (emit.h). Called by loops.c and by `reprise dump`. Here: the
 * level of every node and the phase whose loop computes it; the text is written by the files that emit_parts.h names. It must
 * not call the driver, and every intrinsic it writes is a function of the prelude. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>
#include <string.h>

/* Up to 1024 elements a warp holds the row; longer rows have as many virtual threads as leave 16 elements or fewer each. */
int rp__cuda_row_threads(int64_t r) {
    int t = 1;
    if (r > 2048) return 256;
    if (r > 1024) return 128;
    while (t < 32 && t < (r + 3) / 4) t *= 2;
    return t;
}

unsigned rp__cuda_row_block(const rp__cuda_class *c) { return c->threads >= 64 ? c->threads : RP__CUDA_BLOCK; }

/* One in the first octave of lengths, four an octave behind it: few kernels for many lengths. */
unsigned rp__cuda_slot_step(const rp__cuda_class *c) { return c->groups > 2 ? c->groups / 2u : 1; }

/* Neighbours across lie in different banks: rows are an odd number of words apart. */
unsigned rp__cuda_tile_pitch(unsigned tile, unsigned bytes) { return tile + (bytes >= 4 ? 1u : 4u / bytes); }

unsigned rp__cuda_columns(const rp__cuda_class *c) { return (unsigned)c->tile * c->vector; }

uint32_t rp__cuda_group_words(const rp__dag *dag, const rp__cuda_class *c) {
    return c->n_outer == 1 ? 2u + dag->n_accesses : 3u + 3u * dag->n_accesses;
}

uint32_t rp__cuda_word_count(const rp__dag *dag, const rp__cuda_class *c, uint32_t n_groups) {
    if (c->template_ == RP__CUDA_MANY)
        return dag->n_scalars + RP__CUDA_EXTRA_WORDS + n_groups * rp__cuda_group_words(dag, c);
    rp__space_layout words;
    rp__space_layout_of(dag, (unsigned)c->n_outer + c->n_inner, 0, &words);
    return words.end + RP__CUDA_EXTRA_WORDS;
}

/* ---- analysis ---- */

static void raise_level(const rp__emitter *e, uint8_t *level, rp__val v) {
    if (v != RP__NO_VAL && e->level[v] > *level) *level = e->level[v];
}

/* Levels: a load whose strides are 0 along the inner dims is a row value whatever the DAG says; over points, one that all points
 * share, so that a thread computes what follows from learning rates and step counts once. */
static void find_levels(rp__emitter *e) {
    bool rows = rp__emit_is_rows(e->c);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        uint8_t level = RP__LEVEL_UNIFORM;
        raise_level(e, &level, n->a);
        raise_level(e, &level, n->b);
        raise_level(e, &level, n->c);
        if (n->op == RP__REDUCE)
            level = RP__LEVEL_ROW;
        else if (n->op == RP__SCAN)
            level = RP__LEVEL_ELEMENT;
        else if (n->op == RP__LOAD || n->op == RP__IOTA || n->op == RP__INSIDE) {
            uint8_t own = RP__LEVEL_ELEMENT;
            if (rows && (e->c->n_inner == 0 || (e->c->broadcast >> n->access & 1))) own = RP__LEVEL_ROW;
            if (rp__emit_is_still(e, n->access)) own = RP__LEVEL_ROW;
            if (level < own) level = own;
        }
        e->level[k] = level;
    }
}

/* Of points: element values that nothing with a stride along the last dim goes into. */
static void find_still(rp__emitter *e) {
    const bool vectors = e->c->template_ == RP__CUDA_POINTWISE || e->c->template_ == RP__CUDA_TILE ||
                         (e->c->template_ == RP__CUDA_MANY && e->n_dims > 1);
    for (unsigned k = 0; k < e->dag->n_nodes && vectors && e->c->vector > 1; k++) {
        const rp__node *n = &e->dag->nodes[k];
        const rp__val operands[3] = {n->a, n->b, n->c};
        bool still = e->level[k] == RP__LEVEL_ELEMENT && n->op != RP__CONST;
        for (int i = 0; i < 3 && still; i++)
            still = operands[i] == RP__NO_VAL || e->level[operands[i]] != RP__LEVEL_ELEMENT || e->still[operands[i]];
        if (still && (n->op == RP__LOAD || n->op == RP__IOTA || n->op == RP__INSIDE))
            still = (e->c->broadcast >> n->access & 1) && !e->dag->accesses[n->access].windows;
        e->still[k] = still;
    }
}

static void want(const rp__emitter *e, rp__val v, unsigned phase) {
    if (v != RP__NO_VAL && e->level[v] == RP__LEVEL_ELEMENT && phase < e->place[v]) e->place[v] = (uint8_t)phase;
}

static void keep(const rp__emitter *e, rp__val v, unsigned phase) {
    if (v != RP__NO_VAL && e->level[v] == RP__LEVEL_ELEMENT && phase > e->place[v]) e->array[v] = true;
}

static bool uses(const rp__node *n) {
    return n->op < RP__PRIM_COUNT || n->op == RP__LOAD || n->op == RP__REDUCE || n->op == RP__SCAN;
}

/* The phase whose loop an element node is computed in: the earliest that needs it. Stores run in the last phase, so that a row
 * that is overwritten has been read. */
static void find_places(rp__emitter *e) {
    const rp__dag *d = e->dag;
    unsigned last = d->n_phases - 1u;
    memset(e->place, 0xff, d->n_nodes);
    for (unsigned k = 0; k < d->n_stores; k++) {
        want(e, d->stores[k].value, last);
        want(e, d->stores[k].offset, last);
        want(e, d->stores[k].predicate, last);
    }
    for (unsigned k = d->n_nodes; k-- > 0;) {
        const rp__node *n = &d->nodes[k];
        unsigned phase = n->op == RP__REDUCE ? n->phase - 1u : e->place[k];
        if (!uses(n) || phase == 0xff) continue;
        want(e, n->a, phase);
        want(e, n->b, phase);
        want(e, n->c, phase);
    }
    memset(e->array, 0, d->n_nodes * sizeof *e->array);
    if (e->recompute || !rp__emit_is_rows(e->c)) return;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        unsigned phase = n->op == RP__REDUCE ? n->phase - 1u : e->place[k];
        if (!uses(n) || phase == 0xff) continue;
        keep(e, n->a, phase);
        keep(e, n->b, phase);
        keep(e, n->c, phase);
    }
    for (unsigned k = 0; k < d->n_stores; k++) {
        keep(e, d->stores[k].value, last);
        keep(e, d->stores[k].offset, last);
        keep(e, d->stores[k].predicate, last);
    }
}

/* Fills e->needed with what a launch of `phase` computes: its loop, or, rows: the stores of row values, too. */
static void find_needed(const rp__emitter *e, unsigned phase, bool rows) {
    const rp__dag *d = e->dag;
    bool *needed = e->needed;
    memset(needed, 0, d->n_nodes * sizeof *needed);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        if (n->op == RP__REDUCE && n->phase == phase + 1u) needed[n->a] = true;
    }
    if (e->c->once ? phase == 0 : phase + 1u == d->n_phases)
        for (unsigned k = 0; k < d->n_stores; k++) {
            const rp__store *s = &d->stores[k];
            if (!rows && rp__dag_is_row(d, s->axes)) continue;
            needed[s->value] = true;
            if (s->offset != RP__NO_VAL) needed[s->offset] = true;
            if (s->predicate != RP__NO_VAL) needed[s->predicate] = true;
        }
    for (unsigned k = d->n_nodes; k-- > 0;) {
        const rp__node *n = &d->nodes[k];
        if (!needed[k] || !uses(n) || n->op == RP__REDUCE) continue;
        if (n->a != RP__NO_VAL) needed[n->a] = true;
        if (n->b != RP__NO_VAL) needed[n->b] = true;
        if (n->c != RP__NO_VAL) needed[n->c] = true;
    }
}

void rp__emit_find_needed(const rp__emitter *e, unsigned phase) { find_needed(e, phase, false); }
void rp__emit_find_folded(const rp__emitter *e, unsigned phase) { find_needed(e, phase, true); }

static bool new_analysis(rp__emitter *e, rp__arena *arena) {
    e->level = RP__NEW(arena, uint8_t, e->dag->n_nodes + 1u);
    e->place = RP__NEW(arena, uint8_t, e->dag->n_nodes + 1u);
    e->array = RP__NEW(arena, bool, e->dag->n_nodes + 1u);
    e->needed = RP__NEW(arena, bool, e->dag->n_nodes + 1u);
    e->early = RP__NEW(arena, bool, e->dag->n_nodes + 1u);
    e->still = RP__NEW(arena, bool, e->dag->n_nodes + 1u);
    e->lined = RP__NEW(arena, uint8_t, e->dag->n_nodes + 1u);
    e->stage = RP__NEW(arena, uint8_t, e->dag->n_nodes + 1u);
    return e->stage && e->lined && e->early && e->still && e->level && e->place && e->array && e->needed;
}

/* Of a part: the class and the words that its nodes are written by. */
static rp_status begin_part(const rp__cuda_part *part, rp__arena *arena, rp__cuda_class *c, rp__emitter *e,
                            rp__text *out) {
    *e = (rp__emitter){.dag = part->dag, .c = c, .out = out, .at = "", .columns = 1, .recompute = true};
    memset(c, 0, sizeof *c);
    for (unsigned k = 0; k < part->n_places; k++) e->n_dims += part->places[k].dims;
    c->template_ = RP__CUDA_POINTWISE;
    c->n_outer = (uint8_t)e->n_dims;
    c->vector = c->unroll = 1;
    c->wide = part->wide;
    rp__space_layout_of(part->dag, e->n_dims, part->first, &e->words);
    if (!new_analysis(e, arena)) return RP__OOM("CUDA source of a kernel");
    find_levels(e);
    find_places(e);
    rp__emit_places(e, part->places, part->n_places);
    return RP_OK;
}

static bool is_at_own_place(const rp__dag *part, const rp__node *n) {
    return n->op == RP__LOAD && n->access != 0 && n->a == RP__NO_VAL && n->b == RP__NO_VAL &&
           part->accesses[n->access].windows == 0;
}

static void add_part(const rp__emitter *e, const rp__cuda_part *part) {
    const rp__dag *dag = part->dag;
    char raw[64];
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *node = &dag->nodes[k];
        const bool held = part->held && is_at_own_place(dag, node), sum = node->op == RP__LOAD && node->access == 0;
        if (!held && !sum) {
            rp__emit_node(e, (rp__val)k, NULL);
            continue;
        }
        rp__text_add(e->out, "        const %s v%u = ", rp__emit_type(node->dtype), k);
        (void)snprintf(raw, sizeof raw, "%s%u", held ? part->held : "", k);
        if (held)
            rp__emit_converted(e, node->access, raw);
        else
            rp__text_add(e->out, "(%s)x", rp__emit_type(node->dtype));
        rp__text_puts(e->out, ";\n");
    }
    for (unsigned k = 0; k < dag->n_stores; k++)
        if (part->stores >> k & 1) rp__emit_store(e, &dag->stores[k], NULL);
    if (!part->to) return;
    rp__text_add(e->out, "        %s = ", part->to);
    rp__emit_stored(e, dag->stores[part->made].access, dag->stores[part->made].value);
    rp__text_puts(e->out, ";\n");
}

rp_status rp__cuda_emit_part(const rp__cuda_part *part, rp__text *out) {
    rp__arena arena = {0};
    rp__cuda_class c;
    rp__emitter e;
    rp_status status = begin_part(part, &arena, &c, &e, out);
    if (status == RP_OK) add_part(&e, part);
    rp__arena_free(&arena);
    return status == RP_OK && out->failed ? RP__OOM("CUDA source of a kernel") : status;
}

rp_status rp__cuda_emit_held(const rp__cuda_part *part, rp__text *fields, rp__text *fill) {
    rp__arena arena = {0};
    rp__cuda_class c;
    rp__emitter e;
    rp_status status = begin_part(part, &arena, &c, &e, fill);
    for (unsigned k = 0; k < part->dag->n_nodes && status == RP_OK; k++) {
        const rp__node *node = &part->dag->nodes[k];
        if (!is_at_own_place(part->dag, node)) continue;
        rp__text_add(fields, "    %s %s%u;\n", rp__emit_type(part->dag->accesses[node->access].dtype),
                     strrchr(part->held, '.') + 1, k);
        rp__text_add(fill, "        %s%u = a%u[o%u];\n", part->held, k, node->access, node->access);
    }
    rp__arena_free(&arena);
    return status == RP_OK && (fields->failed || fill->failed) ? RP__OOM("CUDA source of a kernel") : status;
}

/* Loads at their own place that rp_held or, where all columns share them, rp_line has: as vectors, or one number for all sums. */
static bool is_held(const rp__emitter *e, const rp__node *n) {
    return n->op == RP__LOAD && n->access != 0 && n->a == RP__NO_VAL && n->b == RP__NO_VAL &&
           ((e->c->unit | e->c->broadcast) >> n->access & 1);
}
static bool is_vector(const rp__emitter *e, unsigned k) { return rp__emit_in_vectors(e, &e->dag->nodes[k]); }
static bool is_of_line(const rp__emitter *e, unsigned k) { return e->c->staged_unit >> e->dag->nodes[k].access & 1; }

static bool divides(unsigned op) { return op == RP__DIV || op == RP__SQRT || op == RP__RSQRT || op == RP__RECIP; }

/* What is made of rp_line alone is computed there, once for all columns of a thread, where it costs more than reading it: of batch norm the root
   of a variance. What is kept is what something else needs. */
static void find_lined(const rp__emitter *e, rp__arena *arena, bool *failed) {
    enum { LEAST = 4, DIVISION = 8 }; /* rp__node_cost, for which a division is no more than others */
    const rp__dag *d = e->dag;
    unsigned *cost = RP__NEW(arena, unsigned, d->n_nodes + 1u);
    bool *wanted = RP__NEW(arena, bool, d->n_nodes + 1u);
    if (!cost || !wanted) {
        *failed = true;
        return;
    }
    memset(wanted, 0, d->n_nodes * sizeof *wanted);
    memset(cost, 0, d->n_nodes * sizeof *cost);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        const rp__val operands[3] = {n->a, n->b, n->c};
        bool alone = e->level[k] == RP__LEVEL_ELEMENT;
        if (n->op == RP__LOAD)
            alone = alone && is_held(e, n) && is_of_line(e, k);
        else
            alone = alone && n->op < RP__PRIM_COUNT;
        if (alone && n->op != RP__LOAD) cost[k] = divides(n->op) ? DIVISION : rp__node_cost(n);
        for (unsigned i = 0; i < 3 && alone && n->op != RP__LOAD; i++) {
            if (operands[i] == RP__NO_VAL || e->level[operands[i]] != RP__LEVEL_ELEMENT) continue;
            alone = e->lined[operands[i]] != RP__LINED_NOT;
            cost[k] += cost[operands[i]];
        }
        e->lined[k] = alone ? RP__LINED_ALONE : RP__LINED_NOT;
    }
    for (unsigned k = 0; k < d->n_stores; k++) wanted[d->stores[k].value] = true;
    for (unsigned k = d->n_nodes; k-- > 0;) { /* by something else */
        const rp__node *n = &d->nodes[k];
        const rp__val operands[3] = {n->a, n->b, n->c};
        if (wanted[k] && e->lined[k] && n->op != RP__LOAD && cost[k] >= LEAST) e->lined[k] = RP__LINED_KEPT;
        for (unsigned i = 0; i < 3; i++)
            if (operands[i] != RP__NO_VAL && (!e->lined[k] || (wanted[k] && e->lined[k] == RP__LINED_ALONE)))
                wanted[operands[i]] = true;
    }
}

static void add_held_types(const rp__emitter *e) {
    const unsigned width = e->c->vector;
    unsigned bytes = 0;
    rp__emit_vector_types(e, width);
    for (unsigned line = 0; line < 2; line++) {
        rp__text_puts(e->out, "typedef struct {\n    int none;\n");
        for (unsigned k = 0; k < e->dag->n_nodes; k++) {
            const rp__node *n = &e->dag->nodes[k];
            if (line && e->lined[k] == RP__LINED_KEPT)
                rp__text_add(e->out, "    %s v%u[%u];\n", rp__emit_type(n->dtype), k, width);
            if (!is_held(e, n) || is_of_line(e, k) != (line > 0)) continue;
            const unsigned dtype = e->dag->accesses[n->access].dtype;
            if (is_vector(e, k))
                rp__text_add(e->out, "    rp_vec_%s_%u x%u;\n", rp__emit_word_type(dtype), rp__emit_words(dtype, width),
                             k);
            else
                rp__text_add(e->out, "    %s x%u;\n", rp__emit_type(dtype), k);
            if (!line) bytes += (unsigned)rp__dtype_bytes((rp_dtype)dtype) * (is_vector(e, k) ? width : 1);
        }
        rp__text_add(e->out, "}\n%s;\n", line ? "rp_line" : "rp_held");
    }
    rp__text_add(e->out, "#define RP_HELD_BYTES %u\n", bytes);
}

/* What nodes read that lies in *held or *line: names of vectors, and of numbers in the form of rp__emit_early_load. */
static void add_held_names(const rp__emitter *e, const char *line, bool all) {
    const rp__dag *d = e->dag;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        if (e->level[k] != RP__LEVEL_ELEMENT || !is_held(e, n) || (!all && !is_of_line(e, k))) continue;
        const char *from = is_of_line(e, k) ? line : "held";
        const unsigned dtype = d->accesses[n->access].dtype;
        e->early[k] = !is_vector(e, k);
        if (e->early[k])
            rp__text_add(e->out, "        const %s x%u[1] = {%s->x%u};\n", rp__emit_type(dtype), k, from, k);
        else
            rp__text_add(e->out, "        const %s *l%u = %s->x%u.e;\n", rp__emit_word_type(dtype), k, from, k);
    }
}

static void add_uniform(const rp__emitter *e) {
    rp__text_puts(e->out, "        const int w = 0;\n        (void)w;\n");
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->level[k] != RP__LEVEL_ELEMENT) rp__emit_node(e, (rp__val)k, NULL);
}

static void add_held_loads(const rp__emitter *e, bool line) {
    bool keeps = false;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        keeps = keeps || (line && e->lined[k] == RP__LINED_KEPT);
        if (!is_held(e, &e->dag->nodes[k]) || is_of_line(e, k) != line) continue;
        const unsigned access = e->dag->nodes[k].access, dtype = e->dag->accesses[access].dtype;
        if (is_vector(e, k))
            rp__text_add(e->out, "        held->x%u = *(const rp_vec_%s_%u *)(a%u + o%u);\n", k,
                         rp__emit_word_type(dtype), rp__emit_words(dtype, e->c->vector), access, access);
        else
            rp__text_add(e->out, "        held->x%u = a%u[o%u];\n", k, access, access);
    }
    if (!keeps) return;
    add_uniform(e);
    add_held_names(e, "held", false);
    rp__text_add(e->out, "        _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", e->c->vector);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (e->lined[k] == RP__LINED_NOT) continue;
        rp__emit_node(e, (rp__val)k, NULL);
        if (e->lined[k] == RP__LINED_KEPT) rp__text_add(e->out, "        held->v%u[j] = v%u;\n", k, k);
    }
    rp__text_puts(e->out, "        }\n");
}

static void add_wide_rest(const rp__emitter *e) {
    const rp__dag *d = e->dag;
    add_uniform(e);
    add_held_names(e, "line", true);
    for (unsigned k = 0; k < d->n_stores; k++)
        if (rp__emit_vector_store(e, &d->stores[k])) rp__emit_gathered(e, &d->stores[k], k, e->c->vector);
    rp__text_add(e->out, "        _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", e->c->vector);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        if (n->op == RP__LOAD && n->access == 0)
            rp__text_add(e->out, "        const %s v%u = (%s)sum[j];\n", rp__emit_type(n->dtype), k,
                         rp__emit_type(n->dtype));
        else if (e->lined[k] == RP__LINED_KEPT)
            rp__text_add(e->out, "        const %s v%u = line->v%u[j];\n", rp__emit_type(n->dtype), k, k);
        else if (e->level[k] == RP__LEVEL_ELEMENT)
            rp__emit_node(e, (rp__val)k, NULL);
    }
    rp__emit_lane_stores(e, true, NULL);
    rp__text_puts(e->out, "        }\n");
    rp__emit_vector_stores(e, true, e->c->vector, "1", "a@ + o@");
}

rp_status rp__cuda_emit_wide(const rp__dag *rest, const rp__cuda_place *places, unsigned n, uint32_t first, bool wide,
                             const rp__cuda_lanes *lanes, rp__text out[RP__CUDA_WIDE_TEXTS]) {
    rp__arena arena = {0};
    rp__cuda_class c;
    rp__emitter e = {.dag = rest, .c = &c, .at = "[j]", .columns = 1, .along = lanes->along, .recompute = true};
    memset(&c, 0, sizeof c);
    for (unsigned k = 0; k < n; k++) e.n_dims += places[k].dims;
    c.template_ = RP__CUDA_POINTWISE;
    c.n_outer = (uint8_t)e.n_dims;
    c.vector = (uint8_t)lanes->vector;
    c.unroll = 1;
    c.wide = wide;
    c.unit = lanes->unit;
    c.broadcast = lanes->same;
    c.staged_unit = lanes->line;
    rp__space_layout_of(rest, e.n_dims, first, &e.words);
    if (!new_analysis(&e, &arena)) {
        rp__arena_free(&arena);
        return RP__OOM("CUDA source of a kernel");
    }
    find_levels(&e);
    find_places(&e);
    bool failed = false;
    find_lined(&e, &arena, &failed);
    for (unsigned k = 0; k < RP__CUDA_WIDE_TEXTS && !failed; k++) {
        e.out = &out[k];
        if (k != RP__CUDA_WIDE_TYPES) rp__emit_places(&e, places, n);
        switch (k) {
        case RP__CUDA_WIDE_TYPES: add_held_types(&e); break;
        case RP__CUDA_WIDE_REST: add_wide_rest(&e); break;
        default: add_held_loads(&e, k == RP__CUDA_WIDE_LINE);
        }
        failed = failed || out[k].failed;
    }
    rp__arena_free(&arena);
    return failed ? RP__OOM("CUDA source of a kernel") : RP_OK;
}

rp_status rp__cuda_emit(const rp__dag *dag, const rp__cuda_class *c, const char *name, rp__text *out) {
    rp__arena arena = {0};
    rp__emitter e = {.dag = dag, .c = c, .out = out, .n_dims = (uint32_t)c->n_outer + c->n_inner, .at = "[e]"};
    e.along = e.n_dims - 1;
    rp__space_layout_of(dag, e.n_dims, 0, &e.words);
    if (!new_analysis(&e, &arena)) {
        rp__arena_free(&arena);
        return RP__OOM("CUDA source of a kernel");
    }
    const bool column = c->template_ == RP__CUDA_COLUMN || c->template_ == RP__CUDA_CLUSTER_COLUMN ||
                        c->template_ == RP__CUDA_PARTIAL_COLUMN || c->template_ == RP__CUDA_SPLIT_COLUMN,
               held = column && c->groups; /* in registers */
    e.recompute =
        c->template_ != RP__CUDA_ROW && c->template_ != RP__CUDA_CLUSTER && c->template_ != RP__CUDA_SHORT && !held;
    e.columns = column ? c->vector : 1;
    if ((column && !held) || (c->template_ == RP__CUDA_MANY && c->n_outer == 2) || c->template_ == RP__CUDA_ROW_LOOP ||
        c->template_ == RP__CUDA_PARTIAL_ROW || c->template_ == RP__CUDA_SPLIT || c->template_ == RP__CUDA_SCAN ||
        c->template_ == RP__CUDA_SCAN_TOTALS || c->template_ == RP__CUDA_SCAN_PARTS || c->template_ == RP__CUDA_TILE ||
        (c->template_ == RP__CUDA_POINTWISE && !rp__emit_loads_early(&e)))
        e.at = "[j]";
    find_levels(&e);
    find_still(&e);
    find_places(&e);
    rp__emit_find_stages(&e);
    for (unsigned k = 0; dag->scans && k < dag->n_nodes; k++)
        e.array[k] = e.level[k] == RP__LEVEL_ELEMENT && dag->nodes[k].op != RP__CONST &&
                     !rp__emit_in_vectors(&e, &dag->nodes[k]);
    switch ((rp__cuda_template)c->template_) {
    case RP__CUDA_POINTWISE: rp__emit_pointwise(&e, name); break;
    case RP__CUDA_TILE: rp__emit_tile(&e, name); break;
    case RP__CUDA_ROW:
    case RP__CUDA_CLUSTER: rp__emit_row(&e, name); break;
    case RP__CUDA_SHORT: rp__emit_short(&e, name); break;
    case RP__CUDA_ROW_LOOP: rp__emit_row_loop(&e, name); break;
    case RP__CUDA_COLUMN:
    case RP__CUDA_CLUSTER_COLUMN: rp__emit_column(&e, name, false); break;
    case RP__CUDA_PARTIAL_ROW: rp__emit_partial_row(&e, name); break;
    case RP__CUDA_PARTIAL_COLUMN: rp__emit_column(&e, name, true); break;
    case RP__CUDA_SCAN: rp__emit_scan(&e, name); break;
    case RP__CUDA_SCAN_TOTALS: rp__emit_scan_parts(&e, name, true); break;
    case RP__CUDA_SCAN_PARTS: rp__emit_scan_parts(&e, name, false); break;
    case RP__CUDA_SPLIT: rp__emit_split(&e, name); break;
    case RP__CUDA_SPLIT_COLUMN: rp__emit_split_column(&e, name); break;
    case RP__CUDA_FINISH: rp__emit_finish(&e, name); break;
    case RP__CUDA_MANY: rp__emit_many(&e, name, c->problems); break;
    case RP__CUDA_CONTRACT: break; /* no template of this file */
    }
    rp__arena_free(&arena);
    return out->failed ? RP__OOM("CUDA source of a kernel") : RP_OK;
}
