/* The CUDA C kernel that walks rows side by side, for outer dims that run fastest (emit_parts.h): a thread takes `vector`
 * neighbouring rows - columns of memory - and some of the lanes of each, one lane after the other. Lanes are visited so that what
 * the tree of emit.h combines first comes first: one value a level waits for its partner, however many lanes there are. */
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

void rp__emit_down(const rp__emitter *e, unsigned phase, unsigned down, const char *row, const char *column) {
    const rp__dag *d = e->dag;
    for (unsigned half = down / 2; half > 0; half /= 2) {
        rp__text_add(e->out, "    rp_barrier();\n    if (%s < %u) {\n", row, half);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (rp__emit_reduces_in(e, k, phase)) {
                char a[64], b[64];
                (void)snprintf(a, sizeof a, "h%u[%s][%s]", k, row, column);
                (void)snprintf(b, sizeof b, "h%u[%s + %u][%s]", k, row, half, column);
                if (e->columns > 1)
                    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++)\n", e->columns);
                rp__text_add(e->out, "        %s = ", a);
                rp__emit_combine(e, &d->nodes[k], a, b);
                rp__text_puts(e->out, ";\n");
            }
        rp__text_puts(e->out, "    }\n");
    }
    rp__text_puts(e->out, "    rp_barrier();\n");
}

/* What happens at element i of this thread's columns, `in` saying whether there is one. */
static void add_elements(const rp__emitter *e, unsigned phase, bool stores) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    char at[32];
    rp__emit_inner_indices(e);
    for (unsigned a = 0; a < d->n_accesses && c->vector > 1; a++) {
        if (!(c->unit >> a & 1) || (c->broadcast >> a & 1)) continue;
        rp__text_add(e->out, "        const %s x%ui = 0", index, a);
        for (unsigned k = 0; k < c->n_inner; k++) {
            char i[8] = "i";
            if (c->n_inner > 1) (void)snprintf(i, sizeof i, "i%u", k);
            rp__text_add(e->out, " + %s * (%s)p.w[%u]", i, index, rp__emit_stride_word(e, a, c->n_outer + k));
        }
        rp__text_add(e->out, "; (void)x%ui;\n", a);
    }
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (e->level[k] == RP__LEVEL_ELEMENT && e->needed[k] && rp__emit_in_vectors(e, &d->nodes[k])) {
            (void)snprintf(at, sizeof at, " + x%ui", d->nodes[k].access);
            rp__emit_vector_load(e, k, c->vector, at, "in");
        }
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (!rp__dag_is_row(d, d->stores[k].axes) && rp__emit_vector_store(e, &d->stores[k]))
            rp__emit_gathered(e, &d->stores[k], k, c->vector);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", c->vector);
    rp__emit_element_nodes(e, phase, "in");
    rp__emit_accumulation(e, phase, "j", "in");
    for (unsigned k = 0; stores && k < d->n_stores; k++) {
        if (rp__dag_is_row(d, d->stores[k].axes)) continue;
        if (rp__emit_vector_store(e, &d->stores[k]))
            rp__emit_gather(e, &d->stores[k], k);
        else
            rp__emit_store(e, &d->stores[k], "in && live");
    }
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; stores && k < d->n_stores; k++)
        if (!rp__dag_is_row(d, d->stores[k].axes) && rp__emit_vector_store(e, &d->stores[k])) {
            const unsigned a = d->stores[k].access;
            char place[48];
            (void)snprintf(place, sizeof place, "a%u + o%u + x%ui", a, a, a);
            rp__emit_gathered_store(e, &d->stores[k], k, c->vector, "in && live", place);
        }
}

/* All lanes of this thread, and the tree above them: r<k>, or s<k> of a chunk's part. */
static void add_reductions(const rp__emitter *e, unsigned phase, bool partial) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    const unsigned lanes = 4u * c->threads / c->parts / c->down, tree = 4u * c->threads;
    char size[16];
    (void)snprintf(size, sizeof size, "[%u]", c->vector);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__emit_waiting(e, k, 'z', lanes, size);
            rp__text_add(e->out, "    %s k%u%s;\n", rp__emit_type(d->nodes[k].dtype), k, size);
        }
    rp__text_add(e->out, "    %sfor (int n = 0; n < %u; n++) {\n", c->full ? "_Pragma(\"unroll 8\") " : "", lanes);
    rp__text_add(e->out, "    const %s lane = ((%s)part + %u * (ty + %u * ", index, index, c->parts, c->down);
    rp__emit_reversed(e, "(n >> 2)", lanes / 4);
    rp__text_puts(e->out, ")) * 4 + ((n & 1) * 2 + (n >> 1 & 1));\n");
    rp__emit_accumulators(e, phase, c->vector);
    if (c->full) { /* one element a lane at most */
        rp__text_add(e->out, "    { const %s i = chunk + lane; const int in = i < end; (void)in;\n", index);
    } else { /* several of a lane at once, so that their loads are in flight together */
        rp__text_add(e->out, "    for (%s from = chunk + lane; from < end; from += %u)\n", index, tree * c->unroll);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n", c->unroll);
        rp__text_add(e->out, "        const %s i = from + w * %u; const int in = i < end; (void)in;\n", index, tree);
    }
    add_elements(e, phase, false);
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            char at[24];
            rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {", c->vector);
            (void)snprintf(at, sizeof at, "c%u[j]", k);
            rp__emit_visited(e, k, 'z', lanes, "n", at, "[j]");
            rp__text_add(e->out, "    k%u[j] = c%u[j]; }\n", k, k);
        }
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase))
            rp__text_add(e->out,
                         "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) h%u[ty][tx * %u + j] = k%u[j];\n",
                         c->vector, k, c->vector, k);
    char column[32];
    (void)snprintf(column, sizeof column, e->columns > 1 ? "tx * %u + j" : "tx", c->vector);
    rp__emit_down(e, phase, c->down, "ty", column);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__text_add(e->out, "    %s %c%u", rp__emit_type(d->nodes[k].dtype), partial ? 's' : 'r', k);
            if (e->columns > 1)
                rp__text_add(e->out, "[%u]; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) %c%u[j]", e->columns,
                             e->columns, partial ? 's' : 'r', k);
            rp__text_add(e->out, " = h%u[0][%s];\n", k, column);
        }
}

static bool stores_elements(const rp__dag *d) {
    for (unsigned k = 0; k < d->n_stores; k++)
        if (!rp__dag_is_row(d, d->stores[k].axes)) return true;
    return false;
}

/* Thread (tx, ty) of block (stripe, part of a chunk, chunk): columns from stripe * columns + tx * vector on, groups of four lanes part +
 * parts * (ty + down * m). Of several phases each walks the columns again, which a cache still has. */
void rp__emit_column(const rp__emitter *e, const char *name, bool partial) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const unsigned columns = rp__cuda_columns(c);
    const char *index = rp__emit_index_type(e);
    if (c->vector > 1) rp__emit_vector_types(e, c->vector);
    rp__emit_signature(e, name, rp__cuda_word_count(d, c, 0), (unsigned)c->tile * c->down);
    char extents[32];
    (void)snprintf(extents, sizeof extents, "[%u][%u]", c->down, columns + 1); /* rows in different banks */
    rp__emit_shared(e, extents);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out, "    const int tx = (int)threadIdx.x %% %u, ty = (int)threadIdx.x / %u;\n", c->tile, c->tile);
    if (partial)
        rp__text_add(
            e->out,
            "    const %s stripes = (rows + %u) / %u, rest_ = (%s)blockIdx.x / stripes, row_ = "
            "((%s)blockIdx.x %% stripes) * %u + tx * %u;\n    const %s part = rest_ %% %u, chunk_ = rest_ / %u;\n",
            index, columns - 1, columns, index, index, columns, c->vector, index, c->parts, c->parts);
    else
        rp__text_add(e->out, "    const %s row_ = (%s)blockIdx.x * %u + tx * %u, chunk_ = 0, part = 0;\n", index, index,
                     columns, c->vector);
    rp__emit_row_start(e, false);
    rp__text_add(e->out, "    const %s chunk = chunk_ * %u, end = R - chunk < %u ? R : chunk + %u;\n", index,
                 RP__CUDA_CHUNK, RP__CUDA_CHUNK, RP__CUDA_CHUNK);
    for (unsigned phase = 0; phase < d->n_phases; phase++) {
        const bool last = phase + 1u == d->n_phases;
        rp__emit_row_nodes(e, phase);
        if (last && !stores_elements(d)) break;
        rp__emit_find_needed(e, phase);
        if (!last) {
            add_reductions(e, phase, partial);
            if (partial) break;
            continue;
        }
        rp__text_add(e->out, "    for (%s from = ty; from < R; from += %u)\n", index, c->down * c->unroll);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n", c->unroll);
        rp__text_add(e->out, "        const %s i = from + w * %u; const int in = i < R; (void)in;\n", index, c->down);
        add_elements(e, phase, true);
        rp__text_puts(e->out, "    }\n");
    }
    if (partial)
        rp__emit_partial_stores(e, "live && ty == 0", "chunk_", "part");
    else
        rp__emit_row_stores(e, "live && ty == 0");
    rp__text_puts(e->out, "}\n");
}
