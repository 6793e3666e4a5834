/* CUDA C kernels in which the threads of a warp or block walk a row together (emit_parts.h): a row in registers, a long row
 * chunk by chunk, one chunk of a long row. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

static bool stores_elements(const rp__dag *d) {
    for (unsigned k = 0; k < d->n_stores; k++)
        if (!rp__dag_is_row(d, d->stores[k].axes)) return true;
    return false;
}

static void add_array_declarations(const rp__emitter *e, const char *size) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (e->level[k] != RP__LEVEL_ELEMENT || n->op == RP__CONST) continue;
        if (e->array[k]) rp__text_add(e->out, "    %s v%u[%s];\n", rp__emit_value_type(e, (rp__val)k), k, size);
    }
}

static bool is_vector_store(const rp__emitter *e, unsigned store) {
    const rp__store *s = &e->dag->stores[store];
    return !rp__dag_is_row(e->dag, s->axes) && rp__emit_vector_store(e, s);
}

#define FAR_PLACE "a@ + o@ + far@"
/* Vectors of elements, and of rows that begin anywhere what lies at their ends: a chunk of `length` elements begins at `chunk`. */
static void add_vector_stores(const rp__emitter *e, unsigned width, const char *place, unsigned length,
                              const char *chunk) {
    char at[64];
    if (!e->c->ragged) {
        rp__emit_vector_stores(e, false, width, "live && in", place);
        return;
    }
    for (unsigned k = 0; k < e->dag->n_stores; k++) {
        if (!is_vector_store(e, k)) continue;
        rp__emit_where(place, e->dag->stores[k].access, at, sizeof at);
        rp__emit_gathered_store(e, &e->dag->stores[k], k, width, "live && whole", at);
        rp__emit_ragged_store(e, &e->dag->stores[k], k, width, length, chunk);
    }
}

/* Loads of the phase at hand that are vectors of their own. */
static bool is_vector_load(const rp__emitter *e, unsigned k) {
    return e->level[k] == RP__LEVEL_ELEMENT && rp__emit_in_vectors(e, &e->dag->nodes[k]) && e->needed[k];
}

/* Of a cluster a block begins at a chunk of its own. */
static const char *chunk_of(const rp__emitter *e) { return e->c->template_ == RP__CUDA_CLUSTER ? "chunk + " : ""; }

/* b<access>: where this thread's first vector of the row lies. What follows is at constant distances from it. */
static void add_row_bases(const rp__emitter *e) {
    const rp__dag *d = e->dag;
    for (unsigned a = 0; a < d->n_accesses; a++) {
        const rp__access *x = &d->accesses[a];
        if (!(e->c->unit >> a & 1) || x->kind == RP__ACCESS_IOTA || e->c->vector == 1) continue;
        const char *constant = x->kind == RP__ACCESS_READ ? "const " : "";
        rp__text_add(e->out, "    %s%s *b%u = a%u + o%u + %st * %u%s; (void)b%u;\n", constant, rp__emit_type(x->dtype),
                     a, a, a, chunk_of(e), e->c->span, e->c->ragged ? " - shift" : "", a);
    }
}

/* far<access>: where the vector at element i4 of a row of several dims lies. */
static void add_far(const rp__emitter *e) {
    const char *index = rp__emit_index_type(e);
    rp__emit_indices(e, "i4", "q", e->c->n_outer, e->c->n_inner);
    for (unsigned a = 0; a < e->dag->n_accesses; a++) {
        if (!(e->c->unit >> a & 1) || e->dag->accesses[a].kind == RP__ACCESS_IOTA) continue;
        if (e->c->line >> a & 1) {
            rp__text_add(e->out, "    const %s far%u = i4; (void)far%u;\n", index, a, a);
            continue;
        }
        rp__text_add(e->out, "    const %s far%u = 0", index, a);
        for (unsigned x = 0; x < e->c->n_inner; x++)
            rp__text_add(e->out, " + q%u * (%s)p.w[%u]", x, index, rp__emit_stride_word(e, a, e->c->n_outer + x));
        rp__text_add(e->out, "; (void)far%u;\n", a);
    }
}

static bool is_far(const rp__emitter *e) { return e->c->n_inner > 1 && e->c->vector > 1; }

/* Where vector u of a thread lies: before its loads, and before its elements. */
static void add_row_vector(const rp__emitter *e) {
    const rp__cuda_class *c = e->c;
    const unsigned step = (unsigned)c->threads * c->span, half = c->groups / 2;
    if (c->ragged) {
        char at[48], sure[32];
        (void)snprintf(at, sizeof at, "u * %u + t * %u", step, c->span);
        /* a row fills more than half of the groups */
        (void)snprintf(sure, sizeof sure, c->template_ == RP__CUDA_ROW && half > 1 ? "(u > 0 && u < %u)" : "0", half);
        rp__emit_ragged_vector(e, at, sure, c->span);
    } else if (is_far(e)) {
        const char *index = rp__emit_index_type(e);
        rp__text_add(e->out, "    const %s i4 = %s(%s)(u * %u + t * %u);\n", index, chunk_of(e), index, step, c->span);
        add_far(e);
    }
}

/* Which slots of a thread have an element for sure, "u < 2 || ": rows fill more than half of the groups, or, strided in a warp, all but the last step
 * of the slots. */
static void sure_slots(const rp__emitter *e, char *out, size_t bytes) {
    const rp__cuda_class *c = e->c;
    out[0] = 0;
    if (c->template_ != RP__CUDA_ROW || c->full || c->ragged || c->groups < 2) return;
    if (c->tile)
        (void)snprintf(out, bytes, "u * %u + j < %u || ", c->span, c->tile - rp__cuda_slot_step(c));
    else
        (void)snprintf(out, bytes, "u < %u || ", c->groups / 2u);
}

/* Loads of a phase that come in vectors: those that it keeps for later ones, or the others. */
static bool is_row_load(const rp__emitter *e, unsigned k, unsigned phase, bool kept) {
    return e->level[k] == RP__LEVEL_ELEMENT && rp__emit_in_vectors(e, &e->dag->nodes[k]) && e->place[k] == phase &&
           e->array[k] == kept;
}

static bool any_row_load(const rp__emitter *e, unsigned phase, bool kept) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_row_load(e, k, phase, kept)) return true;
    return false;
}

/* Vectors `from` and the `count` - 1 behind it, all of them loaded before anything is computed: l<node>[u * words]. */
static void add_row_loads(const rp__emitter *e, unsigned phase, bool kept, const char *from, unsigned count,
                          const char *guard) {
    const rp__cuda_class *c = e->c;
    const unsigned step = (unsigned)c->threads * c->span;
    if (!any_row_load(e, phase, kept)) return;
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = %s; u < %s + %u; u++) {\n", from, from, count);
    add_row_vector(e);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (!is_row_load(e, k, phase, kept)) continue;
        const unsigned words = rp__emit_words(e->dag->accesses[n->access].dtype, c->span);
        const char *type = rp__emit_word_type(e->dag->accesses[n->access].dtype);
        char at[64], to[32];
        if (is_far(e))
            (void)snprintf(at, sizeof at, "a%u + o%u + far%u", n->access, n->access, n->access);
        else
            (void)snprintf(at, sizeof at, "b%u + u * %u", n->access, step);
        (void)snprintf(to, sizeof to, "x%u", k);
        rp__text_add(e->out, "    rp_vec_%s_%u x%u;\n", type, words, k);
        if (c->ragged)
            rp__emit_ragged_load(e, k, to, c->span, step * c->groups, chunk_of(e), at);
        else
            rp__text_add(e->out,
                         "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x%u.e[j] = 0;\n"
                         "    if (%s) x%u = *(const rp_vec_%s_%u *)(%s);\n",
                         words, k, guard, k, type, words, at);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) l%u[u * %u + j] = x%u.e[j];\n",
                     words, k, words, k);
    }
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < e->dag->n_nodes && kept; k++) {
        if (!is_row_load(e, k, phase, true)) continue;
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int e = 0; e < %u; e++) v%u[e] = ", c->groups * c->span, k);
        rp__emit_loaded(e, k, "e");
        rp__text_puts(e->out, ";\n");
    }
}

/* What happens with a phase's elements: nodes, accumulation, stores. */
static void add_row_elements(const rp__emitter *e, unsigned phase, const rp__row_shape *shape, const char *guard) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    bool stores = phase + 1u == d->n_phases && stores_elements(d), whole = e->c->vector > 1;
    unsigned step = shape->threads * shape->span;
    char lane[48], sure[48];
    sure_slots(e, sure, sizeof sure);
    /* many vectors that are not kept would not fit beside those that are */
    const unsigned batch = phase == 0 || e->c->groups <= 8 || e->c->groups % 4 ? e->c->groups : 4;
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int first = 0; first < %u; first += %u) {\n", e->c->groups,
                 batch);
    add_row_loads(e, phase, false, "first", batch, guard);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = first; u < first + %u; u++) {\n", batch);
    if (e->c->template_ == RP__CUDA_CLUSTER && !e->c->full && !e->filled) /* the last block of a row has less to do */
        rp__text_add(e->out,
                     e->c->ragged ? "    if (u * %u >= len + shift) break;\n" : "    if (chunk + u * %u >= R) break;\n",
                     step);
    if (e->c->ragged || (stores && is_far(e))) add_row_vector(e);
    if (!e->c->ragged &&
        (whole || e->c->full)) /* R is a multiple of the span: a vector is inside or outside as a whole */
        rp__text_add(e->out,
                     e->c->full ? "    const int in = 1; (void)in;\n"
                                : "    const int in = %s%su * %u + t * %u < R; (void)in;\n",
                     sure, chunk_of(e), step, shape->span);
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (is_vector_store(e, k)) rp__emit_gathered(e, &d->stores[k], k, shape->span);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", shape->span);
    rp__text_add(e->out, "        const int e = u * %u + j; (void)e;\n", shape->span);
    if (e->c->tile) rp__text_add(e->out, "        if (e >= %u) break;\n", e->c->tile);
    if (e->c->ragged)
        rp__emit_ragged_element(e, step * e->c->groups, chunk_of(e));
    else if (e->c->strided)
        rp__text_add(e->out, "        const %s i = %s(%s)(u * %u + j * %u + t); (void)i;\n", index, chunk_of(e), index,
                     step, shape->threads);
    else
        rp__text_add(e->out, "        const %s i = %s(%s)(u * %u + t * %u) + j; (void)i;\n", index, chunk_of(e), index,
                     step, shape->span);
    if (!whole && !e->c->full) rp__text_add(e->out, "        const int in = %si < R; (void)in;\n", sure);
    rp__emit_inner_indices(e);
    rp__emit_element_nodes(e, phase, "in");
    (void)snprintf(lane, sizeof lane, "u %% %u * %u + j", shape->strips, shape->span);
    if (e->c->ragged)
        rp__emit_ragged_accumulation(e, phase, lane);
    else
        rp__emit_accumulation(e, phase, lane, "in");
    if (stores) rp__emit_lane_stores(e, false, "in && live");
    rp__text_puts(e->out, "    }\n");
    (void)snprintf(lane, sizeof lane, "b@ + u * %u", step);
    if (stores) add_vector_stores(e, shape->span, is_far(e) ? FAR_PLACE : lane, step * e->c->groups, chunk_of(e));
    rp__text_puts(e->out, "    }\n    }\n");
}

static void add_row_load_declarations(const rp__emitter *e, unsigned phase) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!is_row_load(e, k, phase, e->array[k])) continue;
        const unsigned dtype = e->dag->accesses[e->dag->nodes[k].access].dtype;
        rp__text_add(e->out, "    %s l%u[%u];\n", rp__emit_word_type(dtype), k,
                     e->c->groups * rp__emit_words(dtype, e->c->span));
    }
}

static void add_row_phase(const rp__emitter *e, unsigned phase, const rp__row_shape *shape, const char *guard) {
    add_row_loads(e, phase, true, "0", e->c->groups, guard);
    add_row_elements(e, phase, shape, guard);
}

/* A row in registers, of a block or of a cluster of blocks. */
void rp__emit_row(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const rp__row_shape shape = {c->threads, c->span, c->tree * 4u / ((unsigned)c->threads * c->span)};
    unsigned threads = c->threads, block = rp__cuda_row_block(c), rows = block / threads, step = threads * c->span;
    const char *index = rp__emit_index_type(e);
    char size[16], sure[48], guard[96];
    const bool cluster = c->template_ == RP__CUDA_CLUSTER;
    sure_slots(e, sure, sizeof sure);
    (void)snprintf(guard, sizeof guard, c->full ? "1" : "%s%su * %u + t * %u < R", sure, chunk_of(e), step, c->span);
    if (c->vector > 1) rp__emit_vector_types(e, c->span);
    rp__emit_signature(e, name, rp__cuda_word_count(d, c, 0), block);
    (void)snprintf(size, sizeof size, "[%u]", RP__ROW_SHARED(shape));
    if (threads > 32) rp__emit_shared(e, size);
    if (c->ragged) rp__emit_ragged_shared(e, block * shape.strips * shape.span);
    if (cluster) rp__emit_cluster_shared(e);
    rp__emit_rows_start(e, true);
    if (cluster)
        rp__text_add(
            e->out,
            "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)(blockIdx.x / %u), chunk = (%s)(blockIdx.x %% %u) * %d;\n",
            index, index, c->down, index, c->down, RP__CUDA_CHUNK);
    else
        rp__text_add(
            e->out,
            "    const int t = (int)threadIdx.x %% %u;\n    const %s row_ = (%s)blockIdx.x * %u + (%s)(threadIdx.x / %u);\n",
            threads, index, index, rows, index, threads);
    rp__emit_row_start(e, rows == 1);
    if (c->ragged) {
        rp__emit_ragged_start(e, c->span);
        if (cluster)
            rp__text_add(e->out, "    const int len = R - chunk < %d ? (int)(R - chunk) : %d;\n", RP__CUDA_CHUNK,
                         RP__CUDA_CHUNK);
        else
            rp__text_puts(e->out, "    const int len = (int)R;\n");
    }
    add_row_bases(e);
    (void)snprintf(size, sizeof size, "%u", (unsigned)c->groups * c->span);
    add_array_declarations(e, size);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        rp__emit_row_nodes(e, phase);
        rp__emit_accumulators(e, phase, shape.strips * shape.span);
        if (c->ragged) rp__emit_ragged_late(e, phase, c->span);
        add_row_load_declarations(e, phase);
        if (cluster && c->ragged) { /* all blocks but the last of a row have a whole chunk */
            rp__emitter filled = *e;
            filled.filled = true;
            rp__text_add(e->out, "    if (len == %d) {\n", RP__CUDA_CHUNK);
            add_row_phase(&filled, phase, &shape, guard);
            rp__text_puts(e->out, "    } else {\n");
            add_row_phase(e, phase, &shape, guard);
            rp__text_puts(e->out, "    }\n");
        } else {
            add_row_phase(e, phase, &shape, guard);
        }
        if (c->ragged) rp__emit_ragged_lanes(e, phase, &shape, step * c->groups);
        rp__emit_trees(e, phase, &shape, "");
        if (cluster) rp__emit_cluster_fold(e, phase);
        for (unsigned k = 0; k < d->n_nodes && !cluster; k++)
            if (rp__emit_reduces_in(e, k, phase))
                rp__text_add(e->out, "    const %s r%u = s%u;\n", rp__emit_type(d->nodes[k].dtype), k, k);
    }
    rp__emit_row_stores(e, cluster ? "chunk == 0 && t == 0" : "live && t == 0");
    if (cluster) rp__text_add(e->out, "    rp_cluster_done(%u); /* others have read what is here */\n", c->down);
    rp__text_puts(e->out, "}\n");
}

/* One chunk of a row in a block of 256 threads. */
static const rp__row_shape chunk_shape = {RP__CUDA_BLOCK, 4, 1};

/* A tile of a scan: its elements begin at i4, and its vectors are loaded. */
static void add_scan_tile(const rp__emitter *e, unsigned phase, bool stores) {
    const char *index = rp__emit_index_type(e);
    const unsigned own = rp__emit_scan_own(e);
    const bool alone = own != 4 || (e->c->template_ == RP__CUDA_SCAN && e->c->span);
    char element[96];
    if (e->c->vector > 1) rp__text_puts(e->out, "    const int in = i4 < R; (void)in;\n"); /* R is a multiple of 4 */
    (void)snprintf(element, sizeof element, "        const %s i = i4 + j; (void)i;\n%s", index,
                   alone               ? "        const int in = 1; (void)in;\n"
                   : e->c->vector == 1 ? "        const int in = i < R; (void)in;\n"
                                       : "");
    rp__emit_scan_tile(e, element);
    for (unsigned k = 0; stores && k < e->dag->n_stores; k++)
        if (is_vector_store(e, k)) rp__emit_gathered(e, &e->dag->stores[k], k, 4);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n%s", own, element);
    rp__emit_inner_indices(e);
    rp__emit_scan_vectors(e);
    rp__emit_accumulation(e, phase, "j", "in");
    if (stores) rp__emit_lane_stores(e, false, "in && live");
    rp__text_puts(e->out, "    }\n");
    if (stores) rp__emit_vector_stores(e, false, 4, "live && in", "a@ + o@ + i4");
}

/* A warp walks its section: the vectors of four tiles are loaded before the first is used. */
static void add_section_loop(const rp__emitter *e, unsigned phase, bool stores) {
    const char *index = rp__emit_index_type(e);
    const unsigned threads = rp__emit_scan_threads(e), tiles = RP__CUDA_SECTION / 4 / threads,
                   batch = e->c->vector > 1 && e->dag->n_nodes <= 16 ? 4 : 1;
    char place[96];
    (void)snprintf(place, sizeof place, "    const %s i4 = chunk + (%s)((first + w) * %u + t) * 4;\n", index, index,
                   threads);
    rp__text_add(e->out,
                 "    for (int first = 0; first < %u; first += %u) {\n    if (chunk + first * %u >= R) break;\n", tiles,
                 batch, threads * 4);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_vector_load(e, k)) rp__emit_vectors(e, k, 4, batch);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n%s", batch, place);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_vector_load(e, k)) rp__emit_vectors_load(e, k, 4, " + i4", "i4 < R");
    rp__text_add(e->out,
                 "    (void)i4;\n    }\n    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n%s    const int u = "
                 "first + w;\n",
                 batch, place);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_vector_load(e, k)) rp__emit_vectors_use(e, k);
    add_scan_tile(e, phase, stores);
    rp__text_puts(e->out, "    }\n    }\n");
}

static void add_scan_loop(const rp__emitter *e, unsigned phase, bool stores) {
    const char *index = rp__emit_index_type(e);
    const unsigned threads = rp__emit_scan_threads(e);
    if (e->c->full)
        rp__text_puts(e->out, "    { const int u = 0; (void)u;\n");
    else
        rp__text_add(e->out, "    for (int u = 0; u < %u; u++) {\n    if (chunk + u * %u >= R) break;\n",
                     RP__CUDA_CHUNK / 4 / threads, threads * 4);
    rp__text_add(e->out, "    const %s i4 = chunk + (%s)(u * %u + t) * 4;\n", index, index, threads);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_vector_load(e, k)) rp__emit_vector_load(e, k, 4, " + i4", "i4 < R");
    add_scan_tile(e, phase, stores);
    rp__text_puts(e->out, "    }\n");
}

/* Where vector u of a thread lies in its chunk: before its loads, and before its elements. */
static void add_chunk_vector(const rp__emitter *e) {
    const char *index = rp__emit_index_type(e);
    rp__text_add(e->out,
                 "    const int u = first + w; const %s i4 = chunk + (%s)(u * %u + t) * 4; (void)u; (void)i4;\n", index,
                 index, RP__CUDA_BLOCK);
    if (is_far(e)) add_far(e);
    if (e->c->ragged) {
        char place[48];
        (void)snprintf(place, sizeof place, "(u * %u + t) * 4", RP__CUDA_BLOCK);
        rp__emit_ragged_vector(e, place, "0", 4);
    } else if (e->c->vector > 1) { /* R is a multiple of 4 */
        rp__text_puts(e->out, "    const int in = i4 < R; (void)in;\n");
    }
}

/* Several vectors of a thread are in flight: their loads come before the first use. */
static void add_chunk_loop(const rp__emitter *e, unsigned phase, bool stores) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    const bool ragged = e->c->ragged;
    unsigned loads = 0;
    if (d->scans) {
        add_scan_loop(e, phase, stores);
        return;
    }
    for (unsigned k = 0; k < d->n_nodes; k++) loads += d->nodes[k].op == RP__LOAD && is_vector_load(e, k);
    const unsigned batch = d->n_nodes > 24 ? 2 : loads == 1 ? 8 : 4;
    rp__text_add(e->out,
                 "    const int len = R - chunk < %d ? (int)(R - chunk) : %d;\n"
                 "    for (int first = 0; first < %u && first * %u < len; first += %u) {\n",
                 RP__CUDA_CHUNK, RP__CUDA_CHUNK, RP__CUDA_CHUNK / 4 / RP__CUDA_BLOCK, RP__CUDA_BLOCK * 4, batch);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (is_vector_load(e, k)) rp__emit_vectors(e, k, 4, batch);
    if (loads) {
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n", batch);
        add_chunk_vector(e);
        for (unsigned k = 0; k < d->n_nodes; k++) {
            const unsigned access = d->nodes[k].access;
            char at[64], to[32];
            if (!is_vector_load(e, k)) continue;
            if (ragged) {
                (void)snprintf(at, sizeof at, "a%u + o%u + i4 - shift", access, access);
                (void)snprintf(to, sizeof to, "x%u[w]", k);
                rp__emit_ragged_load(e, k, to, 4, RP__CUDA_CHUNK, "chunk + ", at);
            } else {
                (void)snprintf(at, sizeof at, is_far(e) ? " + far%u" : " + i4", access);
                rp__emit_vectors_load(e, k, 4, at, "in");
            }
        }
        rp__text_puts(e->out, "    }\n");
    }
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n", batch);
    add_chunk_vector(e);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (is_vector_load(e, k)) rp__emit_vectors_use(e, k);
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (is_vector_store(e, k)) rp__emit_gathered(e, &d->stores[k], k, 4);
    rp__text_puts(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n");
    if (ragged)
        rp__emit_ragged_element(e, RP__CUDA_CHUNK, "chunk + ");
    else
        rp__text_add(e->out, "        const %s i = i4 + j; (void)i;\n%s", index,
                     e->c->vector == 1 ? "        const int in = i < R; (void)in;\n" : "");
    rp__emit_inner_indices(e);
    rp__emit_element_nodes(e, phase, "in");
    if (ragged)
        rp__emit_ragged_accumulation(e, phase, "j");
    else
        rp__emit_accumulation(e, phase, "j", "in");
    if (stores) rp__emit_lane_stores(e, false, "in && live");
    rp__text_puts(e->out, "    }\n");
    const char *place = is_far(e) ? FAR_PLACE : ragged ? "a@ + o@ + i4 - shift" : "a@ + o@ + i4";
    if (stores) add_vector_stores(e, 4, place, RP__CUDA_CHUNK, "chunk + ");
    rp__text_puts(e->out, "    }\n    }\n");
}

/* The reductions of a phase over a chunk: s<node>. */
static void add_chunk_reductions(const rp__emitter *e, unsigned phase, bool stores, const char *turn) {
    rp__emit_accumulators(e, phase, 4);
    if (e->c->ragged) rp__emit_ragged_late(e, phase, 4);
    add_chunk_loop(e, phase, stores);
    if (e->c->ragged) rp__emit_ragged_lanes(e, phase, &chunk_shape, RP__CUDA_CHUNK);
    if (e->dag->scans) rp__emit_scan_chunk_end(e);
    rp__emit_trees(e, phase, &chunk_shape, turn);
}

/* What a kernel over chunks opens with, once it knows its row. */
static void add_chunk_start(const rp__emitter *e, bool exact) {
    rp__emit_row_start(e, exact);
    if (e->c->ragged) rp__emit_ragged_start(e, 4);
}

/* A block a row, chunk by chunk. */
void rp__emit_row_loop(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    char size[16];
    if (e->c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_scan_functions(e);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    /* a chunk may be written while the one before is read */
    (void)snprintf(size, sizeof size, "[2][%u]", RP__ROW_SHARED(chunk_shape));
    rp__emit_shared(e, size);
    if (e->c->ragged) rp__emit_ragged_shared(e, RP__CUDA_BLOCK * 4);
    rp__emit_scan_shared(e);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out, "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x;\n", index, index);
    add_chunk_start(e, false);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        bool last = phase + 1u == d->n_phases;
        rp__emit_row_nodes(e, phase);
        rp__emit_find_needed(e, phase);
        rp__emit_fold_start(e, phase);
        if (last && !stores_elements(d)) break;
        rp__text_puts(e->out, "    { int turn = 0; (void)turn;\n");
        rp__emit_scan_row(e);
        rp__text_add(e->out, "    for (%s chunk = 0; chunk < R; chunk += %u, turn ^= 1) {\n", index, RP__CUDA_CHUNK);
        rp__emit_scan_chunk(e);
        add_chunk_reductions(e, phase, last, "[turn]");
        rp__emit_fold(e, phase);
        rp__text_puts(e->out, "    }\n");
        rp__emit_fold_end(e, phase, "[turn]");
        rp__text_puts(e->out, "    }\n");
    }
    rp__emit_row_stores(e, "live && t == 0");
    rp__text_puts(e->out, "}\n");
}

/* A block a chunk of a row, in launch number `phase` of those that a long row takes: all of them know the row values of the phases
 * before. */
void rp__emit_split(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    const unsigned phase = e->c->phase;
    char size[16];
    if (e->c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    (void)snprintf(size, sizeof size, "[%u]", RP__ROW_SHARED(chunk_shape));
    rp__emit_shared(e, size);
    if (e->c->ragged) rp__emit_ragged_shared(e, RP__CUDA_BLOCK * 4);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out,
                 "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x %% rows, chunk_ = "
                 "(%s)blockIdx.x / rows, chunk = chunk_ * %u;\n    const rp_i64 chunks = (rp_i64)p.w[%u];\n",
                 index, index, index, RP__CUDA_CHUNK, rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    add_chunk_start(e, false);
    rp__emit_find_folded(e, phase);
    for (unsigned before = 0; before < phase; before++) {
        rp__emit_row_nodes(e, before);
        rp__emit_partial_fold(e, before);
    }
    rp__emit_row_nodes(e, phase);
    rp__emit_find_needed(e, phase);
    if (phase + 1u < d->n_phases) {
        add_chunk_reductions(e, phase, false, "");
        rp__emit_partial_stores(e, phase, "t == 0", "chunk_", "0");
    } else {
        if (stores_elements(d)) add_chunk_loop(e, phase, true);
        rp__emit_row_stores(e, "live && t == 0 && chunk_ == 0");
    }
    rp__text_puts(e->out, "}\n");
}

/* Scans without reductions: several rows a block where they are short. */
void rp__emit_scan(const rp__emitter *e, const char *name) {
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    if (c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_scan_functions(e);
    rp__emit_signature(e, name, rp__cuda_word_count(e->dag, c, 0), (unsigned)c->threads * c->tile);
    rp__emit_scan_shared(e);
    rp__emit_rows_start(e, true);
    if (c->across)
        rp__text_add(e->out, "    const int tx = (int)threadIdx.x %% %u, t = (int)threadIdx.x / %u;\n", c->tile,
                     c->tile);
    else
        rp__text_add(e->out, "    const int t = (int)threadIdx.x %% %u, tx = (int)threadIdx.x / %u;\n", c->threads,
                     c->threads);
    rp__text_add(e->out, "    const %s row_ = (%s)blockIdx.x * %u + tx;\n", index, index, c->tile);
    rp__emit_row_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    rp__emit_scan_row(e);
    if (c->full)
        rp__text_add(e->out, "    { const %s chunk = 0;\n", index);
    else
        rp__text_add(e->out, "    for (%s chunk = 0; chunk < R; chunk += %u) {\n", index, RP__CUDA_CHUNK);
    rp__emit_scan_chunk(e);
    add_scan_loop(e, 0, true);
    if (!c->full) rp__emit_scan_chunk_end(e);
    rp__text_puts(e->out, "    }\n");
    rp__emit_row_stores(e, "live && t == 0");
    rp__text_puts(e->out, "}\n");
}

/* A block a chunk of a row with scans: their totals, or what they are, from the totals of what lies before. */
void rp__emit_scan_parts(const rp__emitter *e, const char *name, bool totals) {
    const char *index = rp__emit_index_type(e);
    if (e->c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_scan_functions(e);
    rp__emit_signature(e, name, rp__cuda_word_count(e->dag, e->c, 0), RP__CUDA_BLOCK);
    rp__emit_scan_shared(e);
    rp__emit_rows_start(e, true);
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x %% 32, section = (int)threadIdx.x / 32;\n    const %s row_ = (%s)blockIdx.x "
        "%% rows, chunk_ = (%s)blockIdx.x / rows, chunk = chunk_ * %u + section * %u;\n    const rp_i64 chunks = "
        "(rp_i64)p.w[%u];\n",
        index, index, index, RP__CUDA_CHUNK, RP__CUDA_SECTION, rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    add_chunk_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    rp__emit_scan_row(e);
    rp__emit_scan_chunk(e);
    if (!totals) rp__emit_scan_before(e);
    add_section_loop(e, 0, !totals);
    if (totals)
        rp__emit_scan_totals(e);
    else
        rp__emit_row_stores(e, "live && threadIdx.x == 0 && chunk_ == 0");
    rp__text_puts(e->out, "}\n");
}

/* A block a chunk of a row: its result is a partial one. */
void rp__emit_partial_row(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    char size[16];
    if (e->c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    (void)snprintf(size, sizeof size, "[%u]", RP__ROW_SHARED(chunk_shape));
    rp__emit_shared(e, size);
    if (e->c->ragged) rp__emit_ragged_shared(e, RP__CUDA_BLOCK * 4);
    rp__emit_rows_start(e, true);
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x %% rows, chunk_ = (%s)blockIdx.x / rows;\n",
        index, index, index);
    rp__text_add(e->out, "    const %s chunk = chunk_ * %u;\n    const rp_i64 chunks = (rp_i64)p.w[%u];\n", index,
                 RP__CUDA_CHUNK, rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    add_chunk_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    add_chunk_reductions(e, 0, false, "");
    rp__emit_partial_stores(e, 0, "t == 0", "chunk_", "0");
    rp__text_puts(e->out, "}\n");
}
