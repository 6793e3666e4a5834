/* The CUDA C kernel that walks rows side by side, for outer dims that run fastest (emit_parts.h): a thread takes `vector`
 * neighbouring rows - columns of memory - and some of the groups of four lanes of each, one group after the other: its lanes are
 * neighbours in memory. Groups are visited so that what the tree of emit.h combines first comes first: one value a level waits for its
 * partner, however many groups there are. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

static unsigned log_of(unsigned n) {
    unsigned bits = 0;
    while (1u << bits < n) bits++;
    return bits;
}

void rp__emit_reversed(const rp__emitter *e, const char *from, unsigned count) {
    const unsigned bits = log_of(count);
    rp__text_puts(e->out, "(0");
    for (unsigned b = 0; b < bits; b++) rp__text_add(e->out, " | (%s >> %u & 1) << %u", from, b, bits - 1u - b);
    rp__text_puts(e->out, ")");
}

void rp__emit_waiting(const rp__emitter *e, unsigned node, char name, unsigned count, const char *size) {
    for (unsigned level = 0; level < log_of(count); level++)
        rp__text_add(e->out, "    %s %c%u_%u%s;\n", rp__emit_type(e->dag->nodes[node].dtype), name, node, level, size);
}

void rp__emit_visited(const rp__emitter *e, unsigned node, char name, unsigned count, const char *turn, const char *c,
                      const char *at) {
    const unsigned levels = log_of(count);
    char z[48];
    rp__text_puts(e->out, "    ");
    for (unsigned level = 0; level < levels; level++) {
        (void)snprintf(z, sizeof z, "%c%u_%u%s", name, node, level, at);
        rp__text_add(e->out, "if (!(%s >> %u & 1)) %s = %s; else { %s = ", turn, level, z, c, c);
        rp__emit_combine(e, &e->dag->nodes[node], z, c);
        rp__text_puts(e->out, "; ");
    }
    for (unsigned level = 0; level < levels; level++) rp__text_puts(e->out, "}");
    rp__text_puts(e->out, "\n");
}

/* h[row] of the places row + apart * m, m < count: their part of the tree. */
static void add_down_step(const rp__emitter *e, unsigned phase, unsigned apart, unsigned count, const char *row,
                          const char *column) {
    rp__text_add(e->out, "    rp_barrier();\n    if (%s < %u) {\n", row, apart);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        if (e->columns > 1) rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++)\n", e->columns);
        rp__text_add(e->out,
                     "    { %s q[%u]; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) q[m] = h%u[%s + m * %u][%s];\n",
                     rp__emit_type(e->dag->nodes[k].dtype), count, count, k, row, apart, column);
        rp__emit_halving(e, k, "q", count);
        rp__text_add(e->out, "    h%u[%s][%s] = q[0]; }\n", k, row, column);
    }
    rp__text_puts(e->out, "    }\n");
}

void rp__emit_down(const rp__emitter *e, unsigned phase, unsigned down, const char *row, const char *column) {
    for (unsigned left = down, count; left > 1; left /= count) { /* a barrier a step */
        count = left > 8 ? 8 : left;
        add_down_step(e, phase, left / count, count, row, column);
    }
    rp__text_puts(e->out, "    rp_barrier();\n");
}

/* A plain load of one element for all columns of a thread. */
static bool is_single(const rp__emitter *e, unsigned k) {
    const rp__node *n = &e->dag->nodes[k];
    return n->op == RP__LOAD && e->level[k] == RP__LEVEL_ELEMENT && e->needed[k] && n->a == RP__NO_VAL &&
           n->b == RP__NO_VAL && !e->dag->accesses[n->access].windows &&
           (e->c->vector == 1 || (e->c->staged_unit >> n->access & 1));
}

static bool is_whole(const rp__emitter *e, unsigned k) {
    return e->level[k] == RP__LEVEL_ELEMENT && e->needed[k] && rp__emit_in_vectors(e, &e->dag->nodes[k]);
}

/* Element i of the columns: its distance from the first one, of each access that is read or written in vectors. */
static void add_distances(const rp__emitter *e) {
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    rp__emit_inner_indices(e);
    for (unsigned a = 0; a < e->dag->n_accesses && c->vector > 1; a++) {
        if (!(c->unit >> a & 1)) continue;
        rp__text_add(e->out, "        const %s x%ui = 0", index, a);
        for (unsigned k = 0; k < c->n_inner; k++) {
            char i[8] = "i";
            if (c->n_inner > 1) (void)snprintf(i, sizeof i, "i%u", k);
            rp__text_add(e->out, " + %s * (%s)p.w[%u]", i, index, rp__emit_stride_word(e, a, c->n_outer + k));
        }
        rp__text_add(e->out, "; (void)x%ui;\n", a);
    }
}

/* The four lanes of group number n, combined; it waits for its partner. */
static void add_group(const rp__emitter *e, unsigned phase, unsigned groups) {
    const unsigned vector = e->c->vector;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        char lane[4][32], own[24];
        for (unsigned l = 0; l < 4; l++) (void)snprintf(lane[l], sizeof lane[l], "c%u[%u + j]", k, l * vector);
        (void)snprintf(own, sizeof own, "k%u[j]", k);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) { const %s lo = ", vector,
                     rp__emit_type(n->dtype));
        rp__emit_combine(e, n, lane[0], lane[2]);
        rp__text_puts(e->out, ", hi = ");
        rp__emit_combine(e, n, lane[1], lane[3]);
        rp__text_add(e->out, "; %s = ", own);
        rp__emit_combine(e, n, "lo", "hi");
        rp__text_puts(e->out, ";");
        rp__emit_visited(e, k, 'z', groups, "n", own, "[j]");
        rp__text_puts(e->out, "    }\n");
    }
}

/* Stores of elements, the last of the loop over a vector's places and what follows it: vectors are gathered in the loop. */
static void add_element_stores(const rp__emitter *e, bool stores, unsigned vector) {
    if (stores) rp__emit_lane_stores(e, false, "in && live");
    rp__text_puts(e->out, "    }\n");
    if (stores) rp__emit_vector_stores(e, false, vector, "in && live", "a@ + o@ + x@i");
}

/* `count` elements of this thread's columns, all loads before the first use. place: the text that declares i and in of element w. */
static void add_batch(const rp__emitter *e, unsigned phase, bool stores, unsigned count, const char *place) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        e->early[k] = is_single(e, k);
        if (e->early[k])
            rp__text_add(e->out, "    %s x%u[%u];\n", rp__emit_type(d->accesses[d->nodes[k].access].dtype), k, count);
        if (is_whole(e, k)) rp__emit_vectors(e, k, c->vector, count);
    }
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n%s", count, place);
    add_distances(e);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        char at[32];
        (void)snprintf(at, sizeof at, " + x%ui", d->nodes[k].access);
        if (e->early[k]) rp__emit_early_load(e, k, "in");
        if (is_whole(e, k)) rp__emit_vectors_load(e, k, c->vector, at, "in");
    }
    rp__text_add(e->out, "    }\n    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n%s", count, place);
    add_distances(e);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (is_whole(e, k)) rp__emit_vectors_use(e, k);
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (!rp__dag_is_row(d, d->stores[k].axes) && rp__emit_vector_store(e, &d->stores[k]))
            rp__emit_gathered(e, &d->stores[k], k, c->vector);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", c->vector);
    rp__emit_element_nodes(e, phase, "in");
    char lane[32];
    (void)snprintf(lane, sizeof lane, "(w & 3) * %u + j", c->vector);
    rp__emit_accumulation(e, phase, lane, "in");
    add_element_stores(e, stores, c->vector);
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < d->n_nodes; k++) e->early[k] = false;
}

/* h<k>[0] of a block's part becomes that of all parts of the cluster. Threads 0 to parts - 1 down a column read a part each, into rows behind
 * those that others read: a value is used before its reader says that it has been read (rp_cluster_done). */
static void add_cluster_exchange(const rp__emitter *e, unsigned phase, const char *column) {
    const rp__dag *d = e->dag;
    const unsigned parts = e->c->parts, down = e->c->down;
    char each[64] = "";
    if (e->columns > 1)
        (void)snprintf(each, sizeof each, "_Pragma(\"unroll\") for (int j = 0; j < %u; j++) ", e->columns);
    rp__text_add(e->out, "    rp_cluster_barrier(%u);\n", parts);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase))
            rp__text_add(e->out, "    if (ty < %u) %sh%u[%u + ty][%s] = rp_cluster_read_%s(&h%u[0][%s], ty, %u);\n",
                         parts, each, k, down, column, rp__emit_shuffle(d->nodes[k].dtype), k, column, parts);
    rp__text_add(e->out, "    rp_cluster_done(%u);\n    rp_barrier();\n", parts);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        rp__text_add(e->out, "    if (ty == 0) %s{ %s q[%u];\n", each, rp__emit_type(d->nodes[k].dtype), parts);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) q[m] = h%u[%u + m][%s];\n", parts, k,
                     down, column);
        rp__emit_halving(e, k, "q", parts);
        rp__text_add(e->out, "    h%u[0][%s] = q[0]; }\n", k, column);
    }
    rp__text_puts(e->out, "    rp_barrier();\n");
}

/* k<k> of the threads down a column: r<k>, or s<k> of a chunk's part. */
static void add_columns_trees(const rp__emitter *e, unsigned phase, bool partial) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase))
            rp__text_add(e->out,
                         "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) h%u[ty][tx * %u + j] = k%u[j];\n",
                         c->vector, k, c->vector, k);
    char column[32];
    (void)snprintf(column, sizeof column, e->columns > 1 ? "tx * %u + j" : "tx", c->vector);
    rp__emit_down(e, phase, c->down, "ty", column);
    if (c->template_ == RP__CUDA_CLUSTER_COLUMN) add_cluster_exchange(e, phase, column);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__text_add(e->out, "    %s %c%u", rp__emit_type(d->nodes[k].dtype), partial ? 's' : 'r', k);
            if (e->columns > 1)
                rp__text_add(e->out, "[%u]; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) %c%u[j]", e->columns,
                             e->columns, partial ? 's' : 'r', k);
            rp__text_add(e->out, " = h%u[0][%s];\n", k, column);
        }
}

/* All lanes of this thread, and the tree above them: r<k>, or s<k> of a chunk's part. */
static void add_reductions(const rp__emitter *e, unsigned phase, bool partial) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    const unsigned groups = (unsigned)c->threads / c->parts / c->down, tree = 4u * c->threads;
    char size[16], place[200];
    (void)snprintf(size, sizeof size, "[%u]", c->vector);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__emit_waiting(e, k, 'z', groups, size);
            rp__text_add(e->out, "    %s k%u%s;\n", rp__emit_type(d->nodes[k].dtype), k, size);
        }
    rp__text_add(e->out, "    for (int n = 0; n < %u; n++) {\n", groups);
    rp__emit_accumulators(e, phase, 4u * c->vector);
    rp__text_add(e->out, "    %s from = chunk + ((%s)part + %u * (ty + %u * ", index, index, c->parts, c->down);
    rp__emit_reversed(e, "n", groups);
    rp__text_puts(e->out, ")) * 4;\n");
    for (int whole = 1; whole >= 0; whole--) { /* what is inside asks nothing; then what may end */
        rp__text_add(e->out, "    for (; from + %u < end; from += %u) {\n", whole ? tree * (c->unroll - 1u) + 3 : 0,
                     tree * c->unroll);
        (void)snprintf(place, sizeof place,
                       "        const %s i = from + (w >> 2) * %u + (w & 3); const int in = %s; (void)in;\n", index,
                       tree, whole ? "1" : "i < end");
        add_batch(e, phase, c->once && phase == 0, 4u * c->unroll, place);
        rp__text_puts(e->out, "    }\n");
    }
    add_group(e, phase, groups);
    rp__text_puts(e->out, "    }\n");
    add_columns_trees(e, phase, partial);
}

static bool stores_elements(const rp__dag *d) {
    for (unsigned k = 0; k < d->n_stores; k++)
        if (!rp__dag_is_row(d, d->stores[k].axes)) return true;
    return false;
}

/* Element i of slot w of a thread that holds its columns: the lanes of a group are neighbours, then what a lane adds up, then groups in
 * the order in which add_group wants them. */
static void add_held_place(const rp__emitter *e) {
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    char n[32];
    (void)snprintf(n, sizeof n, "(w / %u)", 4u * c->groups);
    rp__text_add(e->out, "        const %s i = (%s)(w / 4 %% %u * %u + (part + %u * (ty + %u * ", index, index,
                 c->groups, 4u * c->threads, c->parts, c->down);
    rp__emit_reversed(e, n, (unsigned)c->threads / c->parts / c->down);
    rp__text_puts(e->out, ")) * 4 + w % 4); const int in = i < R; (void)in;\n");
}

static void add_held_loads(const rp__emitter *e, unsigned phase, unsigned slots) {
    const rp__dag *d = e->dag;
    const unsigned vector = e->c->vector;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const rp__node *n = &d->nodes[k];
        if (e->level[k] != RP__LEVEL_ELEMENT || !rp__emit_in_vectors(e, n) || e->place[k] != phase) continue;
        const unsigned dtype = d->accesses[n->access].dtype, words = rp__emit_words(dtype, vector);
        const char *type = rp__emit_word_type(dtype);
        rp__text_add(e->out, "    %s l%u[%u];\n    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n", type, k,
                     slots * words, slots);
        add_held_place(e);
        add_distances(e);
        rp__text_add(e->out,
                     "        rp_vec_%s_%u x; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x.e[j] = 0;\n"
                     "        if (in) x = *(const rp_vec_%s_%u *)(a%u + o%u + x%ui);\n"
                     "        _Pragma(\"unroll\") for (int j = 0; j < %u; j++) l%u[w * %u + j] = x.e[j];\n    }\n",
                     type, words, words, type, words, n->access, n->access, n->access, words, k, words);
        if (!e->array[k]) continue;
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int e = 0; e < %u; e++) v%u[e] = ", slots * vector, k);
        rp__emit_loaded(e, k, "e");
        rp__text_puts(e->out, ";\n");
    }
}

/* The values of slot w, and what is stored of them. */
static void add_held_slot(const rp__emitter *e, unsigned phase, bool stores) {
    const rp__dag *d = e->dag;
    const unsigned vector = e->c->vector;
    add_held_place(e);
    add_distances(e);
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (!rp__dag_is_row(d, d->stores[k].axes) && rp__emit_vector_store(e, &d->stores[k]))
            rp__emit_gathered(e, &d->stores[k], k, vector);
    rp__text_add(e->out,
                 "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n        const int e = w * %u + j; (void)e;\n",
                 vector, vector);
    rp__emit_element_nodes(e, phase, "in");
    char lane[32];
    (void)snprintf(lane, sizeof lane, "w %% 4 * %u + j", vector);
    rp__emit_accumulation(e, phase, lane, "in");
    add_element_stores(e, stores, vector);
}

/* A phase of columns that are in registers: read once, whatever the number of phases. */
static void add_held_phase(const rp__emitter *e, unsigned phase, bool stores) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const unsigned groups = (unsigned)c->threads / c->parts / c->down, each = 4u * c->groups, slots = groups * each;
    char size[16];
    add_held_loads(e, phase, slots);
    if (phase + 1u == d->n_phases) {
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n", slots);
        add_held_slot(e, phase, stores);
        rp__text_puts(e->out, "    }\n");
        return;
    }
    (void)snprintf(size, sizeof size, "[%u]", c->vector);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__emit_waiting(e, k, 'z', groups, size);
            rp__text_add(e->out, "    %s k%u%s;\n", rp__emit_type(d->nodes[k].dtype), k, size);
        }
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int n = 0; n < %u; n++) {\n", groups);
    rp__emit_accumulators(e, phase, 4u * c->vector);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = n * %u; w < n * %u + %u; w++) {\n", each, each, each);
    add_held_slot(e, phase, false);
    rp__text_puts(e->out, "    }\n");
    add_group(e, phase, groups);
    rp__text_puts(e->out, "    }\n");
    add_columns_trees(e, phase, false);
}

/* Thread (tx, ty) of block (stripe, part of a chunk, chunk): columns from stripe * columns + tx * vector on, groups of four lanes part +
 * parts * (ty + down * m). chunks: there may be several, and parts. */
static void add_start(const rp__emitter *e, const char *name, bool chunks) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const unsigned columns = rp__cuda_columns(c);
    const char *index = rp__emit_index_type(e);
    if (c->vector > 1) rp__emit_vector_types(e, c->vector);
    rp__emit_signature(e, name, rp__cuda_word_count(d, c, 0), (unsigned)c->tile * c->down);
    char extents[32];
    const unsigned exchanged = c->template_ == RP__CUDA_CLUSTER_COLUMN ? c->parts : 0;
    (void)snprintf(extents, sizeof extents, "[%u][%u]", c->down + exchanged, columns + 1); /* rows in different banks */
    rp__emit_shared(e, extents);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out, "    const int tx = (int)threadIdx.x %% %u, ty = (int)threadIdx.x / %u;\n", c->tile, c->tile);
    if (chunks)
        rp__text_add(
            e->out,
            "    const %s stripes = (rows + %u) / %u, rest_ = (%s)blockIdx.x / stripes, row_ = "
            "((%s)blockIdx.x %% stripes) * %u + tx * %u;\n    const %s part = rest_ %% %u, chunk_ = rest_ / %u;\n",
            index, columns - 1, columns, index, index, columns, c->vector, index, c->parts, c->parts);
    else if (c->template_ == RP__CUDA_CLUSTER_COLUMN)
        rp__text_add(
            e->out,
            "    const %s row_ = (%s)(blockIdx.x / %u) * %u + tx * %u, chunk_ = 0, part = (%s)blockIdx.x %% %u;\n",
            index, index, c->parts, columns, c->vector, index, c->parts);
    else
        rp__text_add(e->out, "    const %s row_ = (%s)blockIdx.x * %u + tx * %u, chunk_ = 0, part = 0;\n", index, index,
                     columns, c->vector);
    if (chunks)
        rp__text_add(e->out, "    const rp_i64 chunks = (rp_i64)p.w[%u];\n",
                     rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    rp__emit_row_start(e, false);
    rp__text_add(e->out, "    const %s chunk = chunk_ * %u, end = R - chunk < %u ? R : chunk + %u;\n", index,
                 RP__CUDA_CHUNK, RP__CUDA_CHUNK, RP__CUDA_CHUNK);
}

/* The elements of the last phase: `blocks` of them share those from chunk to end. */
static void add_last_phase(const rp__emitter *e, unsigned phase, unsigned blocks) {
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    const unsigned deep = 4u * c->unroll, step = c->down * deep;
    char place[128];
    rp__text_add(e->out, "    %s from = chunk + (%s)(part * %u + ty);\n", index, index, step);
    for (int whole = 1; whole >= 0; whole--) { /* what is inside asks nothing; then what may end */
        rp__text_add(e->out, "    for (; from + %u < end; from += %u) {\n", whole ? c->down * (deep - 1) : 0,
                     step * blocks);
        (void)snprintf(place, sizeof place, "        const %s i = from + w * %u; const int in = %s; (void)in;\n", index,
                       c->down, whole ? "1" : "i < end");
        add_batch(e, phase, true, deep, place);
        rp__text_puts(e->out, "    }\n");
    }
}

/* Of several phases each walks the columns again, which a cache still has. */
void rp__emit_column(const rp__emitter *e, const char *name, bool partial) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    add_start(e, name, partial);
    for (unsigned k = 0; k < d->n_nodes && c->groups; k++)
        if (e->level[k] == RP__LEVEL_ELEMENT && d->nodes[k].op != RP__CONST && e->array[k])
            rp__text_add(e->out, "    %s v%u[%u];\n", rp__emit_type(d->nodes[k].dtype), k,
                         4u * c->groups * c->threads / c->parts / c->down * c->vector);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        const bool last = phase + 1u == d->n_phases;
        rp__emit_row_nodes(e, phase);
        if (last && (c->once || !stores_elements(d))) break;
        if (c->groups) {
            add_held_phase(e, phase, last);
            continue;
        }
        rp__emit_find_needed(e, phase);
        if (last) {
            add_last_phase(e, phase, c->parts);
            continue;
        }
        add_reductions(e, phase, partial);
        if (partial) break;
    }
    if (partial)
        rp__emit_partial_stores(e, 0, "live && ty == 0", "chunk_", "part");
    else
        rp__emit_row_stores(e, c->parts > 1 ? "live && ty == 0 && part == 0" : "live && ty == 0");
    rp__text_puts(e->out, "}\n");
}

/* A part of a chunk a block, in launch number `phase` of those that columns of several phases take: all of them know the row values of the
 * phases before. */
void rp__emit_split_column(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const unsigned phase = c->phase, places = (unsigned)c->tree * c->parts, down = c->down < places ? c->down : places;
    char column[32];
    (void)snprintf(column, sizeof column, e->columns > 1 ? "tx * %u + j" : "tx", c->vector);
    add_start(e, name, true);
    rp__emit_find_folded(e, phase);
    for (unsigned before = 0; before < phase; before++) {
        rp__emit_row_nodes(e, before);
        rp__emit_partial_columns(e, before, c->tree, down, column);
    }
    rp__emit_row_nodes(e, phase);
    rp__emit_find_needed(e, phase);
    if (phase + 1u < d->n_phases) {
        add_reductions(e, phase, true);
        rp__emit_partial_stores(e, phase, "live && ty == 0", "chunk_", "part");
    } else {
        if (stores_elements(d)) add_last_phase(e, phase, c->parts);
        rp__emit_row_stores(e, "live && ty == 0 && part == 0 && chunk_ == 0");
    }
    rp__text_puts(e->out, "}\n");
}
