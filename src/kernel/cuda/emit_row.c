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
        if (e->array[k]) rp__text_add(e->out, "    %s v%u[%s];\n", rp__emit_type(n->dtype), k, size);
    }
}

static void add_element_stores(const rp__emitter *e, const char *guard) {
    for (unsigned k = 0; k < e->dag->n_stores; k++)
        if (!rp__dag_is_row(e->dag, e->dag->stores[k].axes)) rp__emit_store(e, &e->dag->stores[k], guard);
}

static bool is_vector_store(const rp__emitter *e, unsigned store) {
    const rp__store *s = &e->dag->stores[store];
    return !rp__dag_is_row(e->dag, s->axes) && rp__emit_vector_store(e, s);
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
        rp__text_add(e->out, "    %s%s *b%u = a%u + o%u + %st * %u; (void)b%u;\n", constant, rp__emit_type(x->dtype), a,
                     a, a, chunk_of(e), e->c->span, a);
    }
}

/* What happens with a phase's elements: nodes, accumulation, stores. */
static void add_row_elements(const rp__emitter *e, unsigned phase, const rp__row_shape *shape) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    bool stores = phase + 1u == d->n_phases && stores_elements(d), whole = e->c->vector > 1;
    unsigned step = shape->threads * shape->span;
    char lane[48];
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", e->c->groups);
    if (whole || e->c->full) /* R is a multiple of the span: a vector is inside or outside as a whole */
        rp__text_add(e->out,
                     e->c->full ? "    const int in = 1; (void)in;\n"
                                : "    const int in = %su * %u + t * %u < R; (void)in;\n",
                     chunk_of(e), step, shape->span);
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (is_vector_store(e, k)) rp__emit_gathered(e, &d->stores[k], k, shape->span);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", shape->span);
    rp__text_add(e->out, "        const int e = u * %u + j; (void)e;\n", shape->span);
    if (e->c->strided)
        rp__text_add(e->out, "        const %s i = %s(%s)(u * %u + j * %u + t); (void)i;\n", index, chunk_of(e), index,
                     step, shape->threads);
    else
        rp__text_add(e->out, "        const %s i = %s(%s)(u * %u + t * %u) + j; (void)i;\n", index, chunk_of(e), index,
                     step, shape->span);
    if (!whole && !e->c->full) rp__text_puts(e->out, "        const int in = i < R; (void)in;\n");
    rp__emit_inner_indices(e);
    rp__emit_element_nodes(e, phase, "in");
    (void)snprintf(lane, sizeof lane, "u %% %u * %u + j", shape->strips, shape->span);
    rp__emit_accumulation(e, phase, lane, "in");
    for (unsigned k = 0; stores && k < d->n_stores; k++) {
        if (is_vector_store(e, k))
            rp__emit_gather(e, &d->stores[k], k);
        else if (!rp__dag_is_row(d, d->stores[k].axes))
            rp__emit_store(e, &d->stores[k], "in && live");
    }
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (is_vector_store(e, k)) {
            char at[64];
            (void)snprintf(at, sizeof at, "b%u + u * %u", d->stores[k].access, step);
            rp__emit_gathered_store(e, &d->stores[k], k, shape->span, "live && in", at);
        }
    rp__text_puts(e->out, "    }\n");
}

/* A row in registers, of a block or of a cluster of blocks. */
void rp__emit_row(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const rp__row_shape shape = {c->threads, c->span, c->tree * 4u / ((unsigned)c->threads * c->span)};
    unsigned threads = c->threads, block = rp__cuda_row_block(c), rows = block / threads, step = threads * c->span;
    const char *index = rp__emit_index_type(e);
    char size[16], at[32], guard[64];
    (void)snprintf(at, sizeof at, "u * %u", step);
    const bool cluster = c->template_ == RP__CUDA_CLUSTER;
    (void)snprintf(guard, sizeof guard, c->full ? "1" : "%su * %u + t * %u < R", chunk_of(e), step, c->span);
    if (c->vector > 1) rp__emit_vector_types(e, c->span);
    rp__emit_signature(e, name, rp__cuda_word_count(d, c, 0), block);
    (void)snprintf(size, sizeof size, "[%u]", RP__ROW_SHARED(shape));
    if (threads > 32) rp__emit_shared(e, size);
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
    add_row_bases(e);
    (void)snprintf(size, sizeof size, "%u", (unsigned)c->groups * c->span);
    add_array_declarations(e, size);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        rp__emit_row_nodes(e, phase);
        rp__emit_accumulators(e, phase, shape.strips * shape.span);
        rp__emit_vector_loads(e, (int)phase, c->groups, c->span, at, 'b', guard);
        add_row_elements(e, phase, &shape);
        rp__emit_trees(e, phase, &shape, "");
        if (cluster) rp__emit_cluster_fold(e, phase);
        for (unsigned k = 0; k < d->n_nodes && !cluster; k++)
            if (rp__emit_reduces_in(e, k, phase))
                rp__text_add(e->out, "    const %s r%u = s%u;\n", rp__emit_type(d->nodes[k].dtype), k, k);
    }
    rp__emit_row_stores(e, cluster ? "chunk == 0 && t == 0" : "live && t == 0");
    if (cluster) rp__text_add(e->out, "    rp_cluster_barrier(%u); /* others have read what is here */\n", c->down);
    rp__text_puts(e->out, "}\n");
}

/* One chunk of a row in a block of 256 threads. */
static const rp__row_shape chunk_shape = {RP__CUDA_BLOCK, 4, 1};

static void add_chunk_loop(const rp__emitter *e, unsigned phase, bool stores) {
    const char *index = rp__emit_index_type(e);
    const bool far = e->c->n_inner > 1 && e->c->vector > 1;
    /* several vectors of a thread in flight, unless stores could be in the way of the loads */
    rp__text_add(e->out, "    %sfor (int u = 0; u < %u; u++) {\n",
                 e->dag->scans || stores || e->dag->n_nodes > 24 ? "" : "_Pragma(\"unroll 4\") ",
                 RP__CUDA_CHUNK / 4 / RP__CUDA_BLOCK);
    if (e->dag->scans) rp__text_add(e->out, "    if (chunk + u * %u >= R) break;\n", RP__CUDA_BLOCK * 4);
    rp__text_add(e->out, "    const %s i4 = chunk + (%s)(u * %u + t) * 4;\n", index, index, RP__CUDA_BLOCK);
    if (far) rp__emit_indices(e, "i4", "q", e->c->n_outer, e->c->n_inner);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->level[k] == RP__LEVEL_ELEMENT && rp__emit_in_vectors(e, &e->dag->nodes[k]) && e->needed[k]) {
            const unsigned access = e->dag->nodes[k].access;
            char at[48];
            (void)snprintf(at, sizeof at, far ? " + far%u" : " + i4", access);
            if (far) {
                rp__text_add(e->out, "    const %s far%u = 0", index, access);
                for (unsigned x = 0; x < e->c->n_inner; x++)
                    rp__text_add(e->out, " + q%u * (%s)p.w[%u]", x, index,
                                 rp__emit_stride_word(e, access, e->c->n_outer + x));
                rp__text_puts(e->out, ";\n");
            }
            rp__emit_vector_load(e, k, 4, at, "i4 < R");
        }
    if (e->c->vector > 1) rp__text_puts(e->out, "    const int in = i4 < R; (void)in;\n"); /* R is a multiple of 4 */
    char element[96];
    (void)snprintf(element, sizeof element, "        const %s i = i4 + j; (void)i;\n%s", index,
                   e->c->vector == 1 ? "        const int in = i < R; (void)in;\n" : "");
    if (e->dag->scans) rp__emit_scan_tile(e, element);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n%s", element);
    rp__emit_inner_indices(e);
    if (e->dag->scans)
        rp__emit_scan_vectors(e);
    else
        rp__emit_element_nodes(e, phase, "in");
    rp__emit_accumulation(e, phase, "j", "in");
    if (stores) add_element_stores(e, "in");
    rp__text_puts(e->out, "    }\n    }\n");
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
    rp__emit_scan_shared(e);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out, "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x;\n", index, index);
    rp__emit_row_start(e, false);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        bool last = phase + 1u == d->n_phases;
        rp__emit_row_nodes(e, phase);
        rp__emit_find_needed(e, phase);
        rp__emit_fold_start(e, phase);
        if (last && !stores_elements(d)) break;
        rp__text_puts(e->out, "    { int turn = 0; (void)turn;\n");
        rp__emit_scan_carries(e, 'Q');
        rp__text_add(e->out, "    for (%s chunk = 0; chunk < R; chunk += %u, turn ^= 1) {\n", index, RP__CUDA_CHUNK);
        rp__emit_scan_carries(e, 'q');
        rp__emit_accumulators(e, phase, 4);
        add_chunk_loop(e, phase, last);
        rp__emit_scan_chunk_end(e);
        rp__emit_trees(e, phase, &chunk_shape, "[turn]");
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
    rp__emit_rows_start(e, true);
    rp__text_add(e->out,
                 "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x %% rows, chunk_ = "
                 "(%s)blockIdx.x / rows, chunk = chunk_ * %u;\n    const rp_i64 chunks = (rp_i64)p.w[%u];\n",
                 index, index, index, RP__CUDA_CHUNK, rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    rp__emit_row_start(e, false);
    for (unsigned before = 0; before < phase; before++) {
        rp__emit_row_nodes(e, before);
        rp__emit_partial_fold(e, before);
    }
    rp__emit_row_nodes(e, phase);
    rp__emit_find_needed(e, phase);
    if (phase + 1u < d->n_phases) {
        rp__emit_accumulators(e, phase, 4);
        add_chunk_loop(e, phase, false);
        rp__emit_trees(e, phase, &chunk_shape, "");
        rp__emit_partial_stores(e, phase, "t == 0", "chunk_", "0");
    } else {
        if (stores_elements(d)) add_chunk_loop(e, phase, true);
        rp__emit_row_stores(e, "live && t == 0 && chunk_ == 0");
    }
    rp__text_puts(e->out, "}\n");
}

/* A block a chunk of a row with scans: their totals in the chunk, or what they are, from the totals of the chunks before. */
void rp__emit_scan_parts(const rp__emitter *e, const char *name, bool totals) {
    const char *index = rp__emit_index_type(e);
    if (e->c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_scan_functions(e);
    rp__emit_signature(e, name, rp__cuda_word_count(e->dag, e->c, 0), RP__CUDA_BLOCK);
    rp__emit_scan_shared(e);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out,
                 "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x %% rows, chunk_ = "
                 "(%s)blockIdx.x / rows, chunk = chunk_ * %u;\n    const rp_i64 chunks = (rp_i64)p.w[%u];\n",
                 index, index, index, RP__CUDA_CHUNK, rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    rp__emit_row_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    rp__emit_scan_carries(e, 'Q');
    rp__emit_scan_carries(e, 'q');
    if (!totals) rp__emit_scan_before(e);
    add_chunk_loop(e, 0, !totals);
    if (totals)
        rp__emit_scan_totals(e);
    else
        rp__emit_row_stores(e, "live && t == 0 && chunk_ == 0");
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
    rp__emit_rows_start(e, true);
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x %% rows, chunk_ = (%s)blockIdx.x / rows;\n",
        index, index, index);
    rp__text_add(e->out, "    const %s chunk = chunk_ * %u;\n    const rp_i64 chunks = (rp_i64)p.w[%u];\n", index,
                 RP__CUDA_CHUNK, rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    rp__emit_row_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    rp__emit_accumulators(e, 0, 4);
    add_chunk_loop(e, 0, false);
    rp__emit_trees(e, 0, &chunk_shape, "");
    rp__emit_partial_stores(e, 0, "t == 0", "chunk_", "0");
    rp__text_puts(e->out, "}\n");
}
