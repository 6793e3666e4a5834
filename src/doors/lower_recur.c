/* A recurrent layer for emitters: what the kernel of kernel/library.h's RP__LIB_RECUR computes, step by step. */
#include "core/alloc.h"
#include "doors/lower.h"

typedef rp__put_val val;

/* Columns of part k of (N, parts H). */
static val part(rp__emitter *e, val a, int64_t k, rp_dim rows, rp_dim units) {
    const rp_dim start[] = {0, rp__dim_apply(RP__DIM_MUL, units, k)}, size[] = {rows, units};
    static const int64_t step[] = {1, 1};
    return rp__put_slice(e, a, start, size, step);
}

static val sum(rp__emitter *e, val a, val b) { return RP__EMIT2(e, ADD, a, b); }
static val product(rp__emitter *e, val a, val b) { return RP__EMIT2(e, MUL, a, b); }

typedef struct state {
    val h, c, kept; /* kept: what the step leaves for the way back */
} state;

/* x: what the inputs add, y: what the state gives, (N, G H). */
static state step(rp__emitter *e, int64_t cell, val x, val y, state s, rp_dim rows, rp_dim units) {
    val of[4];
    if (cell == RP__CELL_TANH) return (state){.h = RP__EMIT1(e, TANH, sum(e, x, y)), s.c, s.kept};
    if (cell == RP__CELL_RELU) {
        const val z = sum(e, x, y);
        return (state){.h = RP__EMIT2(e, MAX, z, rp__put_number(e, rp__put_dtype(e, z), 0)), s.c, s.kept};
    }
    if (cell == RP__CELL_GRU) {
        for (int64_t k = 0; k < 2; k++)
            of[k] = RP__EMIT1(e, SIGMOID, sum(e, part(e, x, k, rows, units), part(e, y, k, rows, units)));
        of[3] = part(e, y, 2, rows, units);
        of[2] = RP__EMIT1(e, TANH, sum(e, part(e, x, 2, rows, units), product(e, of[0], of[3])));
        s.h = sum(e, of[2], product(e, of[1], RP__EMIT2(e, SUB, s.h, of[2])));
    } else {
        const val z = sum(e, x, y);
        for (int64_t k = 0; k < 4; k++) {
            const val one = part(e, z, k, rows, units);
            of[k] = k == 2 ? RP__EMIT1(e, TANH, one) : RP__EMIT1(e, SIGMOID, one);
        }
        s.c = sum(e, product(e, of[1], s.c), product(e, of[0], of[2]));
        s.h = product(e, of[3], RP__EMIT1(e, TANH, s.c));
    }
    s.kept = rp__put_cat(e, of, 4, 1);
    return s;
}

/* Result k from one of each place, (N, .); of nothing where the cell has it not. */
static val stacked(rp__emitter *e, const rp__ir_node *n, unsigned k, val *list, unsigned places) {
    const rp__meta *m = &e->ir->values[n->out[k]].meta;
    if (list[0] == RP__EMIT_NONE) return rp__put_expand(e, rp__put_int(e, m->dtype, 0), m->size, m->ndim);
    const rp_dim one[] = {1, m->size[1], m->size[2]};
    for (unsigned i = 0; i < places; i++) list[i] = rp__put_reshape(e, list[i], one, 3);
    return rp__put_cat(e, list, places, 0);
}

/* in: x, w, b, h, c. */
bool rp__lower_recur(rp__emitter *e, const rp__ir_node *n, const val *in, val *out) {
    const rp__put_type *x = &e->types[in[0]], *weights = &e->types[in[1]];
    static const int64_t turned[] = {1, 0}, steps_of[] = {1, 1, 1};
    const int64_t cell = n->attrs[0].v.i;
    const bool reverse = n->attrs[1].v.b;
    if (rp__dim_is_symbol(x->size[0])) {
        rp__put_lacks(e, "the number of its steps is not known");
        return false;
    }
    const int64_t steps = rp__dim_number(x->size[0]);
    const rp_dim rows = x->size[1], units = weights->size[1], width = x->size[2], each[] = {rows, width},
                 size[] = {1, rows, width};
    val *list = rp__calloc((size_t)(steps + 1) * 3, sizeof *list), *cells = list + steps + 1, *kept = cells + steps + 1;
    if (!list) {
        rp__put_oom(e);
        return false;
    }
    const val w = rp__put_permute(e, in[1], turned);
    const rp_dim one[] = {rows, units};
    const val zeros = rp__put_expand(e, rp__put_int(e, x->dtype, 0), one, 2);
    state s = {.h = in[3] != RP__EMIT_NONE ? in[3] : zeros,
               .c = cell != RP__CELL_LSTM || in[4] != RP__EMIT_NONE ? in[4] : zeros,
               .kept = RP__EMIT_NONE};
    list[reverse ? steps : 0] = s.h;
    cells[reverse ? steps : 0] = s.c;
    for (int64_t i = 0; i < steps; i++) {
        const int64_t t = reverse ? steps - 1 - i : i;
        const rp_dim start[] = {t, 0, 0};
        val y = rp__put_matmul(e, s.h, w);
        if (in[2] != RP__EMIT_NONE) y = sum(e, y, in[2]);
        s = step(e, cell, rp__put_reshape(e, rp__put_slice(e, in[0], start, size, steps_of), each, 2), y, s, rows,
                 units);
        list[reverse ? t : t + 1] = s.h;
        cells[reverse ? t : t + 1] = s.c;
        kept[t] = s.kept;
    }
    out[1] = s.h;
    out[0] = stacked(e, n, 0, list, (unsigned)steps + 1);
    out[2] = stacked(e, n, 2, cells, (unsigned)steps + 1);
    const rp__meta *m = &e->ir->values[n->out[3]].meta;
    out[3] = s.c != RP__EMIT_NONE ? s.c : rp__put_expand(e, rp__put_int(e, m->dtype, 0), m->size, m->ndim);
    out[4] = stacked(e, n, 4, kept, (unsigned)steps);
    rp__free(list);
    return !e->failed;
}
