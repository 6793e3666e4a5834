/* The CUDA C kernel that walks rows side by side, for outer dims that run fastest (emit_parts.h). */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

/* Rows side by side: thread (tx, ty) walks row blockIdx * 32 + tx; it holds the groups ty + down * m of every P lanes, down =
 * min(32, T), m < T / down, four lanes each: the same lanes and the same tree as rp__emit_row. */
void rp__emit_column(const rp__emitter *e, const char *name, bool partial) {
    const rp__dag *d = e->dag;
    unsigned threads = e->c->threads, down = threads < 32 ? threads : 32, many = threads / down, lanes = many * 4;
    const char *index = rp__emit_index_type(e);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), 32 * down);
    char extents[24];
    (void)snprintf(extents, sizeof extents, "[%u][33]", down); /* 33: columns of a warp lie in different banks */
    rp__emit_shared(e, extents);
    rp__emit_rows_start(e, true);
    rp__text_puts(e->out, "    const int tx = (int)threadIdx.x % 32, ty = (int)threadIdx.x / 32;\n");
    if (partial)
        rp__text_add(
            e->out,
            "    const %s stripes = (rows + 31) / 32, chunk_ = (%s)blockIdx.x / stripes, row_ = ((%s)blockIdx.x %% stripes) * 32 + tx;\n",
            index, index, index);
    else
        rp__text_add(e->out, "    const %s row_ = (%s)blockIdx.x * 32 + tx;\n", index, index);
    rp__emit_row_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_find_needed(e, 0);
    if (!partial) rp__emit_fold_start(e, 0);
    if (partial)
        rp__text_add(e->out, "    { const %s chunk = chunk_ * %u;\n", index, RP__CUDA_CHUNK);
    else
        rp__text_add(e->out, "    for (%s chunk = 0; chunk < R; chunk += %u) {\n", index, RP__CUDA_CHUNK);
    rp__text_add(e->out, "    const %s end = R - chunk < %u ? R : chunk + %u;\n", index, RP__CUDA_CHUNK,
                 RP__CUDA_CHUNK);
    rp__emit_accumulators(e, 0, lanes);
    rp__text_add(e->out, "    for (%s base = chunk; base < end; base += %u) {\n", index, threads * 4);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) {\n", many);
    rp__text_puts(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n");
    rp__text_add(e->out, "        const %s i = base + (m * %u + ty) * 4 + j; const int in = i < end; (void)in;\n",
                 index, down);
    rp__emit_inner_indices(e);
    rp__emit_element_nodes(e, 0, "in");
    rp__emit_accumulation(e, 0, "m * 4 + j", "in");
    rp__text_puts(e->out, "    } } }\n");
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, 0)) continue;
        const rp__node *n = &d->nodes[k];
        const char *type = rp__emit_type(n->dtype);
        char a[48], b[48];
        rp__text_add(e->out, "    { %s q[%u]; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) { const %s lo = ", type,
                     many, many, type);
        (void)snprintf(a, sizeof a, "c%u[m * 4]", k);
        (void)snprintf(b, sizeof b, "c%u[m * 4 + 2]", k);
        rp__emit_combine(e, n, a, b);
        rp__text_puts(e->out, ", hi = ");
        (void)snprintf(a, sizeof a, "c%u[m * 4 + 1]", k);
        (void)snprintf(b, sizeof b, "c%u[m * 4 + 3]", k);
        rp__emit_combine(e, n, a, b);
        rp__text_puts(e->out, "; q[m] = ");
        rp__emit_combine(e, n, "lo", "hi");
        rp__text_puts(e->out, "; }\n");
        for (unsigned half = many / 2; half > 0; half /= 2) {
            (void)snprintf(b, sizeof b, "q[m + %u]", half);
            rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) q[m] = ", half);
            rp__emit_combine(e, n, "q[m]", b);
            rp__text_puts(e->out, ";\n");
        }
        rp__text_add(e->out, "    h%u[ty][tx] = q[0]; }\n", k);
    }
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
        if (rp__emit_reduces_in(e, k, 0)) {
            char s[24];
            (void)snprintf(s, sizeof s, "s%u", k);
            rp__text_add(e->out, "    const %s s%u = h%u[0][tx];\n", rp__emit_type(d->nodes[k].dtype), k, k);
            if (!partial) rp__emit_fold(e, k, s);
        }
    if (partial)
        rp__emit_partial_stores(e, "live && ty == 0", "chunk_");
    else
        rp__text_puts(e->out, "    rp_barrier();\n");
    rp__text_puts(e->out, "    }\n");
    if (!partial) {
        for (unsigned phase = 1; phase < d->n_phases; phase++) rp__emit_row_nodes(e, phase);
        rp__emit_row_stores(e, "live && ty == 0");
    }
    rp__text_puts(e->out, "}\n");
}
