/* Partial results of long rows (emit_parts.h): where they lie, and the kernel that folds them. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

/* The address of partial result `which` of (chunk, row). */
static void add_partial(const rp__emitter *e, unsigned which, const char *chunk) {
    rp__text_add(
        e->out, "((rp_u64 *)p.w[%u])[((rp_i64)%u * (rp_i64)p.w[%u] + (rp_i64)%s) * (rp_i64)rows + (rp_i64)row]",
        rp__emit_extra_word(e, RP__CUDA_WORD_PARTIAL), which, rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS), chunk);
}

void rp__emit_partial_stores(const rp__emitter *e, const char *guard, const char *chunk) {
    unsigned which = 0;
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, 0)) {
            unsigned dtype = e->dag->nodes[k].dtype;
            rp__text_add(e->out, "    if (%s) ", guard);
            add_partial(e, which++, chunk);
            if (dtype == RP_F32)
                rp__text_add(e->out, " = (rp_u64)rp_f32_bits(s%u);\n", k);
            else if (dtype == RP_F64)
                rp__text_add(e->out, " = rp_f64_bits(s%u);\n", k);
            else
                rp__text_add(e->out, " = (rp_u64)(rp_i64)s%u;\n", k);
        }
}

/* A thread a fold lane. */
void rp__emit_finish(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const char *index = rp__emit_index_type(e);
    const unsigned lanes = e->c->threads;
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    if (lanes > 32) {
        char size[16];
        (void)snprintf(size, sizeof size, "[%u]", lanes + 1);
        rp__emit_shared(e, size);
    }
    rp__emit_rows_start(e, false);
    rp__text_add(e->out, "    const rp_i64 chunks = (rp_i64)p.w[%u];\n", rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS));
    rp__text_add(
        e->out,
        "    const int t = (int)threadIdx.x %% %u;\n    const %s row_ = (%s)blockIdx.x * %u + (%s)threadIdx.x / %u;\n",
        lanes, index, index, RP__CUDA_BLOCK / lanes, index, lanes);
    rp__emit_row_start(e, false);
    rp__emit_row_nodes(e, 0);
    rp__emit_fold_start(e, 0);
    unsigned which = 0;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, 0)) continue;
        unsigned dtype = d->nodes[k].dtype;
        rp__text_add(
            e->out,
            "    _Pragma(\"unroll 4\") for (rp_i64 chunk = t; chunk < chunks; chunk += %u) {\n        const %s x = ",
            lanes, rp__emit_type(dtype));
        rp__text_puts(e->out, dtype == RP_F32   ? "rp_bits_f32((rp_u32)"
                              : dtype == RP_F64 ? "rp_bits_f64("
                              : dtype == RP_I64 ? "(rp_i64)("
                                                : "(");
        add_partial(e, which++, "chunk");
        rp__text_puts(e->out, ");\n    ");
        rp__emit_fold_step(e, k, "x");
        rp__text_puts(e->out, "    }\n");
    }
    rp__emit_fold_lanes(e, 0, lanes, "");
    for (unsigned phase = 1; phase < d->n_phases; phase++) rp__emit_row_nodes(e, phase);
    rp__emit_row_stores(e, "live && t == 0");
    rp__text_puts(e->out, "}\n");
}
