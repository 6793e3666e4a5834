/* Partial results of long rows (emit_parts.h): where they lie, and the kernel that folds them. A chunk of a row has one, or one for each
 * of its `parts`: part q has the groups of lanes g % parts == q of the order in emit.h, which are subtrees of it. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

/* Partial result `which` of a part of a chunk of `row`: each has the room of 8 bytes, and its own type. */
void rp__emit_partial(const rp__emitter *e, unsigned node, unsigned which, const char *chunk, const char *part) {
    rp__text_add(
        e->out,
        "((%s *)((rp_u64 *)p.w[%u] + %u * chunks * (rp_i64)rows))[((rp_i64)%s * %u + %s) * (rp_i64)rows + (rp_i64)row",
        rp__emit_type(e->dag->nodes[node].dtype), rp__emit_extra_word(e, RP__CUDA_WORD_PARTIAL), which * e->c->parts,
        chunk, e->c->parts, part);
    rp__text_puts(e->out, e->columns > 1 ? " + j]" : "]");
}

void rp__emit_partial_stores(const rp__emitter *e, unsigned phase, const char *guard, const char *chunk,
                             const char *part) {
    unsigned which = 0;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__text_add(e->out, "    if (%s) ", guard);
            if (e->columns > 1) rp__text_add(e->out, "_Pragma(\"unroll\") for (int j = 0; j < %u; j++) ", e->columns);
            rp__emit_partial(e, k, which, chunk, part);
            rp__text_add(e->out, " = s%u%s;\n", k, e->columns > 1 ? "[j]" : "");
        }
        which += e->dag->nodes[k].op == RP__REDUCE;
    }
}

/* The reductions of a phase, if no value that e->needed has is made of them: zeros, since row values may be written of them all the same. */
static bool add_unneeded(const rp__emitter *e, unsigned phase) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase) && e->needed[k]) return false;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        rp__text_add(e->out, "    const %s r%u", rp__emit_type(e->dag->nodes[k].dtype), k);
        if (e->columns > 1)
            rp__text_add(e->out, "[%u] = {0};\n", e->columns);
        else
            rp__text_puts(e->out, " = 0;\n");
    }
    return true;
}

/* r<k> of the reductions of a phase, whose partial results a launch before this one has left: thread t is a fold lane. */
void rp__emit_partial_fold(const rp__emitter *e, unsigned phase) {
    unsigned which = 0;
    if (add_unneeded(e, phase)) return;
    rp__emit_fold_start(e, phase);
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__text_add(e->out, "    _Pragma(\"unroll 4\") for (rp_i64 c = t; c < chunks; c += %d) { const %s x = ",
                         RP__CUDA_FOLD, rp__emit_type(e->dag->nodes[k].dtype));
            rp__emit_partial(e, k, which, "c", "0");
            rp__text_puts(e->out, "; ");
            rp__emit_fold_step(e, k, "x");
            rp__text_puts(e->out, "    }\n");
        }
        which += e->dag->nodes[k].op == RP__REDUCE;
    }
    rp__emit_fold_end(e, phase, "");
}

/* A part's number in `chunk` that visit m of a thread comes to, of `pieces` parts that lie `apart`. */
static void add_part(const rp__emitter *e, unsigned own, unsigned apart, unsigned pieces, char *part, size_t bytes) {
    rp__text reversed = {0};
    rp__emitter other = *e;
    other.out = &reversed;
    rp__emit_reversed(&other, "m", pieces);
    (void)snprintf(part, bytes, "(ty / %u + %u * %s)", own, apart, reversed.data ? reversed.data : "0");
    e->out->failed = e->out->failed || reversed.failed;
    rp__text_free(&reversed);
}

/* Fold lanes and parts are the places of one halving tree, parts above lanes: thread ty has the
 * lanes and the parts that are ty in the bits combined last, and visits its own as emit_column.c does. */
void rp__emit_partial_columns(const rp__emitter *e, unsigned phase, unsigned lanes, unsigned down, const char *column) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const unsigned own = lanes < down ? lanes : down, apart = down / own, visits = lanes / own,
                   pieces = c->parts / apart;
    unsigned which = 0;
    if (add_unneeded(e, phase)) return;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        const unsigned number = which;
        which += d->nodes[k].op == RP__REDUCE;
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        const char *type = rp__emit_type(d->nodes[k].dtype);
        rp__text_add(e->out, "    if (ty < %u) ", down);
        if (e->columns > 1) rp__text_add(e->out, "_Pragma(\"unroll\") for (int j = 0; j < %u; j++) ", e->columns);
        rp__text_puts(e->out, "{\n");
        rp__emit_waiting(e, k, 'z', visits, "");
        rp__text_add(e->out,
                     "    %s all = 0;\n    %sfor (int n = 0; n < %u; n++) {\n    const int lane = ty %% %u + %u * ",
                     type, c->full ? "_Pragma(\"unroll 8\") " : "", visits, own, own);
        rp__emit_reversed(e, "n", visits);
        rp__text_puts(e->out, ";\n");
        rp__emit_fold_identity(e, k);
        rp__text_add(e->out,
                     c->full ? "    { const rp_i64 chunk = lane; if (chunk < chunks) {\n"
                             : "    _Pragma(\"unroll 4\") for (rp_i64 chunk = lane; chunk < chunks; chunk += %u) { {\n",
                     lanes);
        if (pieces > 1) { /* what the parts of a chunk make together */
            rp__text_puts(e->out, "    {\n");
            rp__text_add(e->out, "    %s x = 0;\n", type);
            rp__emit_waiting(e, k, 'y', pieces, "");
            rp__text_add(e->out, "    _Pragma(\"unroll 8\") for (int m = 0; m < %u; m++) {\n    x = ", pieces);
            char part[256];
            add_part(e, own, apart, pieces, part, sizeof part);
            rp__emit_partial(e, k, number, "chunk", part);
            rp__text_puts(e->out, ";\n");
            rp__emit_visited(e, k, 'y', pieces, "m", "x", "");
            rp__text_puts(e->out, "    }\n    ");
            rp__emit_fold_step(e, k, "x");
            rp__text_puts(e->out, "    }\n");
        } else {
            char part[32];
            (void)snprintf(part, sizeof part, "(ty / %u)", own);
            rp__text_add(e->out, "    const %s x = ", type);
            rp__emit_partial(e, k, number, "chunk", part);
            rp__text_puts(e->out, "; ");
            rp__emit_fold_step(e, k, "x");
        }
        rp__text_puts(e->out, "    } }\n");
        char f[24];
        (void)snprintf(f, sizeof f, "f%u", k);
        rp__emit_visited(e, k, 'z', visits, "n", f, "");
        rp__text_add(e->out, "    all = f%u;\n    }\n    h%u[ty][%s] = all;\n    }\n", k, k, column);
    }
    rp__emit_down(e, phase, down, "ty", column);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        const char *type = rp__emit_type(d->nodes[k].dtype);
        if (e->columns > 1)
            rp__text_add(e->out,
                         "    %s r%u[%u]; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) r%u[j] = h%u[0][%s];\n",
                         type, k, e->columns, e->columns, k, k, column);
        else
            rp__text_add(e->out, "    const %s r%u = h%u[0][%s];\n", type, k, k, column);
    }
}

/* Rows side by side, `down` threads a row. */
void rp__emit_finish(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    char size[32];
    rp__emit_signature(e, name, rp__cuda_word_count(d, c, 0), (unsigned)c->tile * c->down);
    (void)snprintf(size, sizeof size, "[%u][%u]", c->down, c->tile + 1u);
    rp__emit_shared(e, size);
    rp__emit_rows_start(e, false);
    rp__text_add(e->out,
                 "    const rp_i64 chunks = (rp_i64)p.w[%u];\n    const int tx = (int)threadIdx.x %% %u, ty = "
                 "(int)threadIdx.x / %u;\n    const %s row_ = (%s)blockIdx.x * %u + tx;\n",
                 rp__emit_extra_word(e, RP__CUDA_WORD_CHUNKS), c->tile, c->tile, index, index, c->tile);
    rp__emit_row_start(e, false);
    rp__emit_row_nodes(e, 0);
    for (unsigned k = 0; k < d->n_nodes; k++) e->needed[k] = true;
    rp__emit_partial_columns(e, 0, c->threads, c->down, "tx");
    for (unsigned phase = 1; phase < d->n_phases; phase++) rp__emit_row_nodes(e, phase);
    rp__emit_row_stores(e, "live && ty == 0");
    rp__text_puts(e->out, "}\n");
}
