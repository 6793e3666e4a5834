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

int64_t rp__interp_position_step(const run *r, unsigned access) {
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
enum {
    COLUMN_ROWS = 8 * RP__LANES,
    WHOLE_ROWS =
        3 *
        RP__LANES /* of lanes with more elements than three the sums are worth their memory: rows can be read one by one */
};
typedef rp__columns_fn *columns_table[RP__TILE_TYPES][RP__LOAD_KINDS];
static rp__columns_fn *columns_fn(const run *r, const columns_table *of, const rp__insn *load, const rp__insn *i) {
    const rp__reduction *red = &r->p->reductions[i->access];
    return of[red->kind][red->type][r->p->access_load[load->access]];
}
/* Is it a phase that only reduces what it loads, from where it lies one element after the other? */
static bool only_reduces(const run *r, unsigned phase) {
    const rp__program *p = r->p;
    const rp__insn *load = p->insns + p->element[phase].begin, *stop = p->insns + p->element[phase].end;
    if (stop - load < 2 || load->kind != RP__INSN_LOAD || load->a != RP__NO_VAL || load->b != RP__NO_VAL ||
        load->home == RP__HOME_KEPT || r->form[load->access] != RP__INTERP_LINEAR)
        return false;
    for (const rp__insn *i = load + 1; i < stop; i++) {
        if (i->kind != RP__INSN_REDUCE || i->a != load->d) return false;
    }
    return true;
}
/* Such a phase, of rows that lie one after the other, that has functions. */
static bool loads_columns(const run *r, unsigned phase, const columns_table *of) {
    const rp__insn *load = r->p->insns + r->p->element[phase].begin, *stop = r->p->insns + r->p->element[phase].end;
    if (!only_reduces(r, phase)) return false;
    for (const rp__insn *i = load + 1; i < stop; i++) {
        if (!columns_fn(r, of, load, i)) return false;
    }
    return true;
}
/* The same, with one distance in memory from position to position. */
static bool only_columns(const run *r, unsigned phase, const columns_table *of, int64_t *step) {
    if (!loads_columns(r, phase, of)) return false;
    *step = rp__interp_position_step(r, r->p->insns[r->p->element[phase].begin].access);
    return *step >= 0;
}
static rp__columns_call columns_call(const run *r, unsigned access, int64_t pos, int64_t end, int64_t step) {
    const int64_t at = rp__interp_across_at(r, access, pos);
    return (rp__columns_call){.a = r->base[access] + at * r->p->access_size[access],
                              .lane = r->w,
                              .row = step,
                              .rows = end - pos < COLUMN_ROWS ? end - pos : COLUMN_ROWS,
                              .n = r->w};
}
/* Such a phase by columns (tiles.h). */
static bool by_columns(run *r, unsigned phase, int64_t begin, int64_t end) {
    const rp__program *p = r->p;
    const columns_table *of = p->tiles->reduce_columns;
    const rp__insn *load = p->insns + p->element[phase].begin, *stop = p->insns + p->element[phase].end;
    int64_t step;
    if (!only_columns(r, phase, of, &step)) return false;
    for (int64_t pos = begin; pos < end; pos += COLUMN_ROWS) {
        for (const rp__insn *i = load + 1; i < stop; i++) {
            rp__columns_call c = columns_call(r, load->access, pos, end, step);
            c.d = lanes_of(r, &p->reductions[i->access]);
            columns_fn(r, of, load, i)(&c);
        }
    }
    return true;
}
enum { WINDOW_KINDS = 3 }; /* of rp__load_kind, that windows have functions of */
static rp__window_fn *window_fn(const run *r, const rp__insn *load, const rp__insn *i) {
    const rp__reduction *red = &r->p->reductions[i->access];
    const unsigned kind = r->p->access_load[load->access];
    return kind < WINDOW_KINDS ? r->p->tiles->reduce_window[red->kind][red->type][kind] : NULL;
}
/* Such a phase of few positions, which lie anywhere: windows side by side of channels that lie last. */
static bool only_windows(const run *r, unsigned phase) {
    const rp__insn *load = r->p->insns + r->p->element[phase].begin, *stop = r->p->insns + r->p->element[phase].end;
    if (rp__interp_planes_off || r->row_len > RP__WINDOW_ROWS || !loads_columns(r, phase, r->p->tiles->whole_columns) ||
        rp__interp_position_step(r, load->access) >= 0)
        return false;
    for (const rp__insn *i = load + 1; i < stop; i++) {
        if (!window_fn(r, load, i)) return false;
    }
    return true;
}
static bool by_windows(run *r, unsigned phase) {
    const rp__program *p = r->p;
    if (!only_windows(r, phase)) return false;
    const rp__insn *load = p->insns + p->element[phase].begin, *stop = p->insns + p->element[phase].end;
    const void *rows[RP__WINDOW_ROWS];
    rp__window_tree tree;
    for (int64_t pos = 0; pos < r->row_len; pos++)
        rows[pos] =
            r->base[load->access] + rp__interp_across_at(r, load->access, pos) * r->p->access_size[load->access];
    rp__interp_tree(&tree, rows, r->row_len);
    for (const rp__insn *i = load + 1; i < stop; i++) {
        const rp__reduction *red = &p->reductions[i->access];
        char *const d = r->regs[red->d].p;
        window_fn(r, load, i)(&(rp__window_call){.d = d, .a = rows, .tree = &tree, .n = r->w});
        if (r->b > 1) rp__interp_replicate(r, d, red->size);
    }
    return true;
}
bool rp__interp_whole_columns(const run *r, unsigned phase) {
    int64_t step;
    if (r->row_len == 0) return false;
    if (r->row_len <= WHOLE_ROWS && only_columns(r, phase, r->p->tiles->whole_columns, &step)) return true;
    return only_windows(r, phase);
}
/* The same of columns that end here: they need no lanes in memory. */
static bool by_whole_columns(run *r, unsigned phase) {
    const rp__program *p = r->p;
    const columns_table *of = p->tiles->whole_columns;
    const rp__insn *load = p->insns + p->element[phase].begin, *stop = p->insns + p->element[phase].end;
    int64_t step;
    if (r->row_len == 0) return false;
    if (r->row_len > WHOLE_ROWS || !only_columns(r, phase, of, &step)) return by_windows(r, phase);
    for (const rp__insn *i = load + 1; i < stop; i++) {
        const rp__reduction *red = &p->reductions[i->access];
        rp__columns_call c = columns_call(r, load->access, 0, r->row_len, step);
        c.d = r->regs[red->d].p;
        columns_fn(r, of, load, i)(&c);
        if (r->b > 1) rp__interp_replicate(r, c.d, red->size);
    }
    return true;
}

static rp__row_fn *row_fn(const run *r, const rp__insn *load, const rp__insn *i) {
    const rp__reduction *red = &r->p->reductions[i->access];
    return r->p->tiles->whole_row[red->kind][red->type][r->p->access_load[load->access]];
}
/* Such a phase over positions [begin, end) of a row, where the order does not matter: the result, or the first lane of a chunk. */
static bool by_whole_row(run *r, unsigned phase, int64_t begin, int64_t end, bool result) {
    const rp__program *p = r->p;
    if (begin >= end || !only_reduces(r, phase)) return false;
    const rp__insn *load = p->insns + p->element[phase].begin, *stop = p->insns + p->element[phase].end;
    for (const rp__insn *i = load + 1; i < stop; i++) {
        if (!row_fn(r, load, i)) return false;
    }
    for (const rp__insn *i = load + 1; i < stop; i++) {
        const rp__reduction *red = &p->reductions[i->access];
        uint64_t v = 0;
        row_fn(r, load, i)(&v, r->base[load->access] + begin * p->access_size[load->access], end - begin);
        if (result)
            rp__interp_set_result(r, red, (const char *)&v);
        else
            memcpy(lanes_of(r, red), &v, red->size);
    }
    return true;
}

/* Inner positions [begin, end) of one phase, at most a chunk. */
void rp__interp_positions(run *r, unsigned phase, int64_t begin, int64_t end) {
    if (r->walk == RP__WALK_ACROSS ? by_columns(r, phase, begin, end) : by_whole_row(r, phase, begin, end, false))
        return;
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
        if (r->walk == RP__WALK_ACROSS ? by_whole_columns(r, phase) : by_whole_row(r, phase, 0, r->row_len, true))
            continue;
        if (RP__UNLIKELY(phase + 1 == p->largest.phase) && rp__interp_largest(r, phase)) continue;
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
