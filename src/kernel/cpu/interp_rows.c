/* Rows of the interpreter (interp_parts.h): phase after phase over the chunks of a row or a tile of rows; reductions by
   lanes, a halving tree over them, and a tree of partials over chunks (kernel/tree.h). */
#include "kernel/cpu/interp_parts.h"
#include "kernel/tree.h"

typedef rp__interp run;
typedef rp__interp_reg reg;

/* ---- reductions ----------------------------------------------------------------------------------------------------- */

static void fill_identity(const rp__reduction *red, char *d, int64_t n) {
    _Alignas(64) char block[64];
    int64_t bytes = n * red->size;
    rp__interp_splat(block, red->identity, red->size);
    for (; bytes >= 64; bytes -= 64, d += 64) memcpy(d, block, 64);
    memcpy(d, block, (size_t)bytes);
}
static char *lanes_of(const run *r, const rp__reduction *red) { return r->acc + (int64_t)red->at * r->lanes * r->w; }
void rp__interp_begin_chunk(run *r, unsigned phase) {
    for (unsigned k = 0; k < r->p->n_reductions; k++) {
        const rp__reduction *red = &r->p->reductions[k];
        if (red->phase == phase) fill_identity(red, lanes_of(r, red), r->lanes * r->w);
    }
}
/* The lanes of reduction `red` become w values at the start of its accumulators. Lanes that short rows lack would have the identity,
   which changes no value of another: it was there before that one's first element, so that a sum is never -0. */
char *rp__interp_finish_chunk(run *r, const rp__reduction *red) {
    char *acc = lanes_of(r, red);
    if (r->walk != RP__WALK_ACROSS) {
        rp__tile_call t = {.d = acc, .a = acc};
        r->p->tiles->finish_row[red->kind][red->type](&t);
        return acc;
    }
    int64_t lanes = r->lanes;
    for (int64_t s = RP__LANES / 2; s > 0; s /= 2) {
        if (lanes <= s) continue;
        rp__tile_call t = {.d = acc, .a = acc + s * r->w * red->size, .as = 1, .n = (lanes - s) * r->w};
        r->p->tiles->reduce_block[red->kind][red->type](&t);
        lanes = s;
    }
    return acc;
}
static void combine(const run *r, const rp__reduction *red, char *left, const char *right) {
    rp__tile_call t = {.d = left, .a = right, .as = 1, .n = r->w};
    r->p->tiles->reduce_block[red->kind][red->type](&t);
}
static char *stack_at(const run *r, const rp__reduction *red, unsigned level) {
    return r->stack + ((int64_t)level * r->p->acc_bytes + red->at) * r->w;
}
/* Chunk `count` of reduction red arrives as w values at v (which is overwritten). */
void rp__interp_push_chunk(run *r, const rp__reduction *red, uint64_t count, char *v) {
    unsigned level = rp__tree_push(count);
    for (unsigned l = 0; l < level; l++) {
        char *older = stack_at(r, red, l);
        combine(r, red, older, v);
        v = older;
    }
    char *to = stack_at(r, red, level);
    if (v != to) memcpy(to, v, (size_t)r->w * red->size);
}
char *rp__interp_finish_chunks(run *r, const rp__reduction *red, uint64_t count) {
    char *v = NULL;
    for (unsigned level = 0; count >> level; level++) {
        if (!(count >> level & 1)) continue;
        char *older = stack_at(r, red, level);
        if (v) combine(r, red, older, v);
        v = older;
    }
    return v;
}
void rp__interp_set_result(run *r, const rp__reduction *red, const char *v) {
    char *d = r->regs[red->d].p;
    if (r->walk != RP__WALK_ACROSS) {
        rp__interp_splat(d, rp__interp_peek(v, red->size), red->size);
    } else {
        memcpy(d, v, (size_t)r->w * red->size);
        if (r->b > 1) rp__interp_replicate(r, d, red->size);
    }
}

/* Distance of positions in memory, where it is one; -1: it is not. */
static int64_t position_step(const run *r, unsigned access) {
    const int64_t *stride = r->stride + access * r->dims;
    int64_t step = 0, many = 1;
    for (unsigned d = r->dims; d-- > r->n_outer;) {
        if (r->extent[d] == 1) continue;
        if (many == 1) step = stride[d];
        if (stride[d] != step * many) return -1;
        many *= r->extent[d];
    }
    return step;
}
/* A phase that reduces what it loads, of rows that lie one after the other: by columns (tiles.h). */
static bool by_columns(run *r, unsigned phase, int64_t begin, int64_t end) {
    enum { ROWS = 8 * RP__LANES, KINDS = 3 };
    const rp__program *p = r->p;
    const rp__insn *load = p->insns + p->element[phase].begin, *stop = p->insns + p->element[phase].end;
    if (stop - load < 2 || load->kind != RP__INSN_LOAD || load->a != RP__NO_VAL || load->b != RP__NO_VAL ||
        load->home == RP__HOME_KEPT || r->form[load->access] != RP__INTERP_LINEAR ||
        p->access_load[load->access] >= KINDS)
        return false;
    const int64_t step = position_step(r, load->access);
    for (const rp__insn *i = load + 1; i < stop; i++) {
        const rp__reduction *red = &p->reductions[i->access];
        if (i->kind != RP__INSN_REDUCE || i->a != load->d ||
            !p->tiles->reduce_columns[red->kind][red->type][p->access_load[load->access]])
            return false;
    }
    if (step < 0) return false;
    for (int64_t pos = begin; pos < end; pos += ROWS) {
        for (const rp__insn *i = load + 1; i < stop; i++) {
            const rp__reduction *red = &p->reductions[i->access];
            const int64_t at = rp__interp_across_at(r, load->access, pos);
            const rp__columns_call c = {.d = lanes_of(r, red),
                                        .a = r->base[load->access] + at * p->access_size[load->access],
                                        .lane = r->w,
                                        .row = step,
                                        .rows = end - pos < ROWS ? end - pos : ROWS,
                                        .n = r->w};
            p->tiles->reduce_columns[red->kind][red->type][p->access_load[load->access]](&c);
        }
    }
    return true;
}

/* Inner positions [begin, end) of one phase, at most a chunk. */
void rp__interp_positions(run *r, unsigned phase, int64_t begin, int64_t end) {
    if (r->walk == RP__WALK_ACROSS && by_columns(r, phase, begin, end)) return;
    for (int64_t pos = begin; pos < end; pos += r->b) {
        int64_t m = end - pos < r->b ? end - pos : r->b;
        r->pos = pos;
        r->nq = m;
        rp__interp_element(r, phase, m * r->w);
    }
}
void rp__interp_store_rows(run *r) {
    for (unsigned k = 0; k < r->p->n_stores; k++) {
        const rp__program_store *st = &r->p->stores[k];
        if (!st->row) continue;
        const reg *v = &r->regs[st->value];
        const unsigned narrow = r->p->access_narrow[st->access];
        const int64_t n = r->walk == RP__WALK_ACROSS ? r->w : 1;
        const char *value = v->p;
        int64_t step = v->step;
        unsigned from = narrow ? 4 : st->size;
        if (narrow && st->mode == RP__STORE_SET) {
            rp__tile_call t = {.d = r->raw, .a = value, .as = step, .n = n};
            r->p->tiles->store_narrow[narrow - 1](&t);
            value = r->raw;
            step = 1;
            from = st->size;
        }
        if (r->walk == RP__WALK_ACROSS) {
            rp__interp_store_part(r, st, value, step, from, 0, r->n_outer, r->w0, n, 0, 0);
        } else {
            rp__interp_store_part(r, st, value, step, from, 0, 0, 0, 1, 0, 0);
        }
    }
}
/* All phases of the row, or tile of rows, that base (and w0) name. */
void rp__interp_phases(run *r) {
    const rp__program *p = r->p;
    for (unsigned phase = 0; phase < p->n_phases; phase++) {
        rp__interp_row(r, p->row[phase]);
        uint64_t chunks = 0;
        for (int64_t at = 0; at < r->row_len || !chunks; at += RP__CHUNK, chunks++) {
            rp__interp_begin_chunk(r, phase);
            int64_t end = r->row_len - at < RP__CHUNK ? r->row_len : at + RP__CHUNK;
            rp__interp_positions(r, phase, at, end);
            for (unsigned k = 0; k < p->n_reductions; k++) {
                const rp__reduction *red = &p->reductions[k];
                if (red->phase != phase) continue;
                char *v = rp__interp_finish_chunk(r, red);
                if (r->row_len <= RP__CHUNK)
                    rp__interp_set_result(r, red, v);
                else
                    rp__interp_push_chunk(r, red, chunks, v);
            }
        }
        for (unsigned k = 0; k < p->n_reductions && chunks > 1; k++) {
            const rp__reduction *red = &p->reductions[k];
            if (red->phase == phase) rp__interp_set_result(r, red, rp__interp_finish_chunks(r, red, chunks));
        }
    }
    rp__interp_row(r, p->row[p->n_phases]);
    rp__interp_store_rows(r);
}
