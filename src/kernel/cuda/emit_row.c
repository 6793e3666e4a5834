/* CUDA C kernels in which the threads of a warp or block walk a row together (emit_parts.h): a row in registers, a long row chunk by
 * chunk, one chunk of a long row. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

static bool stores_elements(const rp__dag *d) {
    for (unsigned k = 0; k < d->n_stores; k++)
        if (!d->stores[k].row) return true;
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
        if (!e->dag->stores[k].row) rp__emit_store(e, &e->dag->stores[k], guard);
}

/* A row in registers: element (u, j) of thread t is i = (u * threads + t) * 4 + j. */
void rp__emit_row(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    unsigned threads = e->c->threads, groups = e->c->groups, count = groups * 4;
    unsigned block = threads > RP__CUDA_BLOCK ? threads
                     : threads >= 128         ? threads
                                              : RP__CUDA_BLOCK,
             rows = block / threads;
    const char *index = rp__emit_index_type(e);
    char size[16], at[96], guard[160];
    (void)snprintf(at, sizeof at, "(%s)(u * %u + t) * 4", index, threads);
    (void)snprintf(guard, sizeof guard, "%s < R", at);
    if (e->c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), block);
    (void)snprintf(size, sizeof size, "[%u]", threads);
    if (threads > 32) rp__emit_shared(e, size);
    rp__emit_rows_start(e, true);
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x %% %u;\n    const %s row_ = (%s)blockIdx.x * %u + (%s)(threadIdx.x / %u);\n",
        threads, index, index, rows, index, threads);
    rp__emit_row_start(e);
    (void)snprintf(size, sizeof size, "%u", count);
    add_array_declarations(e, size);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        rp__emit_row_nodes(e, phase);
        rp__emit_accumulators(e, phase, 4);
        rp__emit_vector_loads(e, (int)phase, groups, 4, at, true, guard);
        bool last = phase + 1u == d->n_phases;
        bool stores = last && stores_elements(d);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", groups);
        if (stores)
            for (unsigned k = 0; k < d->n_stores; k++)
                if (!d->stores[k].row && rp__emit_vector_store(e, &d->stores[k]))
                    rp__text_add(e->out, "    rp_vec_%s_4 w%u;\n",
                                 rp__emit_type(d->accesses[d->stores[k].access].dtype), k);
        rp__text_puts(
            e->out,
            "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n        const int e = u * 4 + j; (void)e;\n");
        rp__text_add(e->out, "        const %s i = (%s)(u * %u + t) * 4 + j; const int in = i < R; (void)in;\n", index,
                     index, threads);
        rp__emit_inner_indices(e);
        rp__emit_element_nodes(e, phase, "in");
        rp__emit_accumulation(e, phase, "j", "in");
        if (stores)
            for (unsigned k = 0; k < d->n_stores; k++) {
                const rp__store *s = &d->stores[k];
                if (s->row) continue;
                if (rp__emit_vector_store(e, s)) {
                    rp__text_add(e->out, "        w%u.e[j] = ", k);
                    rp__emit_stored(e, s->access, s->value);
                    rp__text_puts(e->out, ";\n");
                } else {
                    rp__emit_store(e, s, "in && live");
                }
            }
        rp__text_puts(e->out, "    }\n");
        if (stores)
            for (unsigned k = 0; k < d->n_stores; k++) {
                const rp__store *s = &d->stores[k];
                if (!s->row && rp__emit_vector_store(e, s))
                    rp__text_add(
                        e->out,
                        "    if (live && (%s)(u * %u + t) * 4 < R) *(rp_vec_%s_4 *)(a%u + o%u + (%s)(u * %u + t) * 4) = w%u;\n",
                        index, threads, rp__emit_type(d->accesses[s->access].dtype), s->access, s->access, index,
                        threads, k);
            }
        rp__text_puts(e->out, "    }\n");
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (rp__emit_reduces_in(e, k, phase)) {
                char shared[16];
                (void)snprintf(shared, sizeof shared, "h%u", k);
                rp__emit_tree(e, k, threads, shared);
                rp__text_add(e->out, "    const %s r%u = s%u;\n", rp__emit_type(d->nodes[k].dtype), k, k);
            }
    }
    rp__emit_row_stores(e, "live && t == 0");
    rp__text_puts(e->out, "}\n");
}

/* One chunk of a row in a block of 256 threads. */
static void add_chunk_loop(const rp__emitter *e, unsigned phase, bool stores) {
    const char *index = rp__emit_index_type(e);
    rp__text_add(e->out, "    for (int u = 0; u < %u; u++) {\n", RP__CUDA_CHUNK / 4 / RP__CUDA_BLOCK);
    rp__text_add(e->out, "    const %s i4 = chunk + (%s)(u * %u + t) * 4;\n", index, index, RP__CUDA_BLOCK);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->level[k] == RP__LEVEL_ELEMENT && rp__emit_in_vectors(e, &e->dag->nodes[k]) && e->needed[k])
            rp__emit_vector_load(e, k, 4, " + i4", "i4 < R");
    rp__text_puts(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n");
    rp__text_add(e->out, "        const %s i = i4 + j; const int in = i < R; (void)in;\n", index);
    rp__emit_inner_indices(e);
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
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    (void)snprintf(size, sizeof size, "[2][%u]",
                   RP__CUDA_BLOCK); /* a chunk may be written while the one before is read */
    rp__emit_shared(e, size);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out, "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x;\n", index, index);
    rp__emit_row_start(e);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        bool last = phase + 1u == d->n_phases;
        rp__emit_row_nodes(e, phase);
        rp__emit_find_needed(e, phase);
        rp__emit_fold_start(e, phase);
        if (last && !stores_elements(d)) break;
        rp__text_add(e->out,
                     "    { int turn = 0; (void)turn;\n    for (%s chunk = 0; chunk < R; chunk += %u, turn ^= 1) {\n",
                     index, RP__CUDA_CHUNK);
        rp__emit_accumulators(e, phase, 4);
        add_chunk_loop(e, phase, last);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (rp__emit_reduces_in(e, k, phase)) {
                char shared[24], s[24];
                (void)snprintf(shared, sizeof shared, "h%u[turn]", k);
                (void)snprintf(s, sizeof s, "s%u", k);
                rp__emit_tree(e, k, RP__CUDA_BLOCK, shared);
                rp__emit_fold(e, k, s);
            }
        rp__text_puts(e->out, "    } }\n");
    }
    rp__emit_row_stores(e, "live && t == 0");
    rp__text_puts(e->out, "}\n");
}

/* A block a chunk of a row: its result is a partial one. */
void rp__emit_partial_row(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    char size[16];
    if (e->c->vector > 1) rp__emit_vector_types(e, 4);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    (void)snprintf(size, sizeof size, "[%u]", RP__CUDA_BLOCK);
    rp__emit_shared(e, size);
    rp__emit_rows_start(e, true);
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x;\n    const %s row_ = (%s)blockIdx.x %% rows, chunk_ = (%s)blockIdx.x / rows;\n",
        index, index, index);
    rp__text_add(e->out, "    const %s chunk = chunk_ * %u;\n", index, RP__CUDA_CHUNK);
    rp__emit_row_start(e);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    rp__emit_accumulators(e, 0, 4);
    add_chunk_loop(e, 0, false);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, 0)) {
            char shared[16];
            (void)snprintf(shared, sizeof shared, "h%u", k);
            rp__emit_tree(e, k, RP__CUDA_BLOCK, shared);
        }
    rp__emit_partial_stores(e, "t == 0", "chunk_");
    rp__text_puts(e->out, "}\n");
}
