/* The CUDA C kernel that walks rows side by side, for outer dims that run fastest (emit_parts.h). */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

/* h<k>[ty][tx]: the groups of this thread combined. */
static void add_groups(const rp__emitter *e, unsigned k, unsigned many) {
    const rp__node *n = &e->dag->nodes[k];
    char a[32], b[32];
    (void)snprintf(a, sizeof a, "q%u[m]", k);
    for (unsigned half = many / 2; half > 0; half /= 2) {
        (void)snprintf(b, sizeof b, "q%u[m + %u]", k, half);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) %s = ", half, a);
        rp__emit_combine(e, n, a, b);
        rp__text_puts(e->out, ";\n");
    }
    rp__text_add(e->out, "    h%u[ty][tx] = q%u[0];\n", k, k);
}

/* Rows side by side: thread (tx, ty) walks row blockIdx * columns + tx; it holds the groups ty + down * m of every P lanes, m < T /
 * down, four lanes each, one group after the other, so that few accumulators leave registers for loads in flight: the same lanes and
 * the same tree as rp__emit_row. */
void rp__emit_column(const rp__emitter *e, const char *name, bool partial) {
    const rp__dag *d = e->dag;
    const unsigned threads = e->c->threads, down = e->c->down, many = threads / down, columns = rp__cuda_columns(e->c);
    const char *index = rp__emit_index_type(e);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), columns * down);
    char extents[24];
    (void)snprintf(extents, sizeof extents, "[%u][%u]", down,
                   columns + 1); /* columns of a warp lie in different banks */
    rp__emit_shared(e, extents);
    rp__emit_rows_start(e, true);
    rp__text_add(e->out, "    const int tx = (int)threadIdx.x %% %u, ty = (int)threadIdx.x / %u;\n", columns, columns);
    if (partial)
        rp__text_add(
            e->out,
            "    const %s stripes = (rows + %u) / %u, chunk_ = (%s)blockIdx.x / stripes, row_ = ((%s)blockIdx.x %% stripes) * %u + tx;\n",
            index, columns - 1, columns, index, index, columns);
    else
        rp__text_add(e->out, "    const %s row_ = (%s)blockIdx.x * %u + tx, chunk_ = 0;\n", index, index, columns);
    rp__emit_row_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    rp__text_add(e->out, "    const %s chunk = chunk_ * %u, end = R - chunk < %u ? R : chunk + %u;\n", index,
                 RP__CUDA_CHUNK, RP__CUDA_CHUNK, RP__CUDA_CHUNK);
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, 0))
            rp__text_add(e->out, "    %s q%u[%u];\n", rp__emit_type(d->nodes[k].dtype), k, many);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) {\n", many);
    rp__emit_accumulators(e, 0, 4);
    /* several places of a lane at once, so that their loads are in flight together */
    const unsigned ahead = d->n_nodes <= 16 ? 4 : 1;
    rp__text_add(e->out, "    for (%s from = chunk + (m * %u + ty) * 4; from < end; from += %u) {\n", index, down,
                 threads * 4 * ahead);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int w = 0; w < %u; w++) {\n", ahead);
    rp__text_puts(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n");
    rp__text_add(e->out, "        const %s i = from + w * %u + j; const int in = i < end; (void)in;\n", index,
                 threads * 4);
    rp__emit_inner_indices(e);
    rp__emit_element_nodes(e, 0, "in");
    rp__emit_accumulation(e, 0, "j", "in");
    rp__text_puts(e->out, "    } } }\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, 0)) {
            char into[24];
            (void)snprintf(into, sizeof into, "q%u[m]", k);
            rp__text_puts(e->out, "    ");
            rp__emit_four(e, k, "", into);
        }
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, 0)) add_groups(e, k, many);
    for (unsigned half = down / 2; half > 0; half /= 2) {
        rp__text_add(e->out, "    rp_barrier();\n    if (ty < %u) {\n", half);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (rp__emit_reduces_in(e, k, 0)) {
                char a[48], b[48];
                (void)snprintf(a, sizeof a, "h%u[ty][tx]", k);
                (void)snprintf(b, sizeof b, "h%u[ty + %u][tx]", k, half);
                rp__text_add(e->out, "        %s = ", a);
                rp__emit_combine(e, &d->nodes[k], a, b);
                rp__text_puts(e->out, ";\n");
            }
        rp__text_puts(e->out, "    }\n");
    }
    rp__text_puts(e->out, "    rp_barrier();\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, 0))
            rp__text_add(e->out, "    const %s %c%u = h%u[0][tx];\n", rp__emit_type(d->nodes[k].dtype),
                         partial ? 's' : 'r', k, k);
    if (partial) {
        rp__emit_partial_stores(e, "live && ty == 0", "chunk_");
    } else {
        for (unsigned phase = 1; phase < d->n_phases; phase++) rp__emit_row_nodes(e, phase);
        rp__emit_row_stores(e, "live && ty == 0");
    }
    rp__text_puts(e->out, "}\n");
}
